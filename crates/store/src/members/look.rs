//! The findings in a member's directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::blocking::{BlockingCalls, BlockingCallsByDir, TimedOut, Timeout};
use crate::dirs::{Dirs, TITLES_DIR, read_superblock, read_whole};
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::members::{MAX_MEMBERS_FILE_BYTES, MEMBERS_FILE, MemberState, MembersRecord};
use crate::format::superblock::Superblock;

/// State of a directory that may be a member.
#[derive(Debug)]
pub(super) struct DirectoryFindings {
    pub(super) dir: PathBuf,
    /// The same by the name that the list of members has it by.
    pub(super) hint: PathBuf,
    is_dir: bool,
    pub(super) block: Result<Superblock, StoreError>,
    /// `None`: there is no such file.
    pub(super) record: Option<Result<MembersRecord, StoreError>>,
    pub(super) titles: TitlesDirState,
    /// The blocking calls on it.
    pub(super) blocking: BlockingCalls,
}

/// State of the directory with a member's titles.
#[derive(Debug)]
pub(super) enum TitlesDirState {
    /// They can be listed; whether there are any.
    Listed { any: bool },
    /// There is no such directory: the member is new, or has lost it.
    None,
    /// They, or the titles being made beside them, cannot be listed.
    Unlisted(StoreError),
}

impl TitlesDirState {
    fn of(dirs: &Dirs) -> Self {
        let first = |dir: &Path| fs::read_dir(dir).and_then(|mut entries| entries.next().transpose());
        match (first(&dirs.titles), first(&dirs.tmp)) {
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => Self::None,
            (Err(error), _) => Self::Unlisted(StoreError::io("list", &dirs.titles)(error)),
            // One that is not there is made when the volume is opened.
            (Ok(_), Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                Self::Unlisted(StoreError::io("list", &dirs.tmp)(error))
            }
            (Ok(title), _) => Self::Listed { any: title.is_some() },
        }
    }
}

impl DirectoryFindings {
    fn at(dir: &Path, blocking: BlockingCalls) -> Self {
        let dirs = Dirs::new(dir);
        let block = read_superblock(&dirs);
        let (record, titles) = (read_record(dir), TitlesDirState::of(&dirs));
        Self {
            dir: dir.to_path_buf(),
            hint: hint(dir),
            is_dir: dir.is_dir(),
            block,
            record,
            titles,
            blocking,
        }
    }

    /// A directory that cannot be looked at now.
    fn unanswered(dir: PathBuf, blocking: BlockingCalls) -> Self {
        let hint = std::path::absolute(&dir).unwrap_or_else(|_| dir.clone());
        let block = Err(StoreError::TimedOut { path: dir.clone() });
        Self { dir, hint, is_dir: true, block, record: None, titles: TitlesDirState::None, blocking }
    }

    /// Looks at all of these directories at once. One that does not answer is waited for, but not one after the other.
    pub(super) fn at_all(
        dirs: impl IntoIterator<Item = PathBuf>,
        book: &BlockingCallsByDir,
        timeout: Timeout,
    ) -> Vec<Self> {
        let begin = |dir: PathBuf| {
            let blocking = book.at(&dir);
            let (at, by) = (dir.clone(), blocking.clone());
            let begun = blocking.begin(timeout, move || Self::at(&at, by));
            (dir, blocking, begun)
        };
        let begun: Vec<_> = dirs.into_iter().map(begin).collect();
        let mut waited = false;
        let take = |(dir, blocking, begun): (
            PathBuf,
            BlockingCalls,
            Result<crate::blocking::PendingCall<Self>, TimedOut>,
        )| {
            let Ok(pending) = begun else { return Self::unanswered(dir, blocking) };
            let answer = if waited { pending.take(timeout) } else { pending.wait(timeout) };
            waited |= answer.is_err();
            answer.unwrap_or_else(|TimedOut| Self::unanswered(dir, blocking))
        };
        begun.into_iter().map(take).collect()
    }

    /// Returns why nothing can be read from it although it is the right member. A trusted member
    /// has its titles, if `any` member has some.
    pub(super) fn why_unlisted(&self, state: MemberState, any: bool) -> Option<String> {
        match &self.titles {
            TitlesDirState::Unlisted(error) => Some(error.to_string()),
            TitlesDirState::None if any && state == MemberState::Active => Some(format!(
                "{}: is missing, with all that the member had; put it back, or give the member a new directory with \
                 millrace volume replace",
                self.dir.join(TITLES_DIR).display()
            )),
            _ => None,
        }
    }

    pub(super) fn is_member(&self, volume: Uuid, member: Uuid) -> bool {
        self.block.as_ref().is_ok_and(|block| (block.volume, block.member) == (volume, member))
    }

    /// Its list of members, if it is of this volume.
    pub(super) fn record_of(&self, volume: Uuid) -> Option<&MembersRecord> {
        let member = self.block.as_ref().is_ok_and(|block| block.volume == volume);
        self.record.as_ref()?.as_ref().ok().filter(|record| member && record.volume == volume)
    }

    /// Why it is not the member that was looked for.
    pub(super) fn why_not(&self) -> String {
        match &self.block {
            Ok(block) => format!("holds member {} instead", block.member),
            Err(StoreError::NotAStore { .. }) if !self.is_dir => "the directory is missing".to_owned(),
            Err(StoreError::NotAStore { .. }) => "volume.mrv is missing".to_owned(),
            Err(StoreError::TimedOut { .. }) => TimedOut.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

/// The copy of `members.mrm` in `dir`; `None` if there is none.
pub(crate) fn read_record(dir: &Path) -> Option<Result<MembersRecord, StoreError>> {
    let path = dir.join(MEMBERS_FILE);
    match read_whole(&path, MAX_MEMBERS_FILE_BYTES) {
        Err(StoreError::Io { error, .. })
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            None
        }
        Err(error) => Some(Err(error)),
        Ok(bytes) => Some(MembersRecord::decode(&bytes).map_err(StoreError::format(&path))),
    }
}

/// A directory as it is written into the list of members: absolute, and the same by whatever name it was reached.
pub(crate) fn hint(dir: &Path) -> PathBuf {
    fs::canonicalize(dir).or_else(|_| std::path::absolute(dir)).unwrap_or_else(|_| dir.to_path_buf())
}
