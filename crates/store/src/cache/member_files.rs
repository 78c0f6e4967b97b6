//! The files of a title on its members: opened when they are needed first, and again when a member has been replaced.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::ids::TitleId;
use millrace_core::time::Instant;

use crate::blocking::{BlockingCalls, Timeout};
use crate::limits::cache::{FILE_RETRY_NS, REOPEN_NS};
use crate::member_set::MemberSet;
use crate::stripes::StripeLayout;

/// A file that a title has on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TitleFile {
    /// The member's data units; the title, if there is one member.
    Data,
    /// The member's parity units.
    Parity,
    /// The records of the packet size, or the default-size records that they are derived from.
    Meta,
    /// The range sums that they are derived from.
    Sums,
    /// The records of the default-size packets.
    StripeMeta,
    /// The records of the parity packets.
    ParityMeta,
    /// The CRCs of the default-size packets.
    Crcs,
    /// The CRCs of the parity packets.
    ParityCrcs,
}

const FILES: usize = 8;

/// The cache's requirements on a title that lies on several members or has parity. A *position* is
/// the index of a member among those of the title.
pub trait MemberFiles: Send + Sync {
    /// Slot in the volume of the member at a position.
    fn slot(&self, position: usize) -> u16;
    /// Returns whether that member is present and trusted.
    fn is_usable(&self, position: usize) -> bool;
    /// Returns whether that member is present, trusted or not: it may hold data and parity, which
    /// their stored sums verify.
    fn is_present(&self, position: usize) -> bool {
        self.is_usable(position)
    }
    /// Changes when files on that member have to be opened again.
    fn epoch(&self, position: usize) -> u32;
    /// Returns the path of a file on that member; `None`: this title has no such file.
    fn path(&self, position: usize, file: TitleFile) -> Option<PathBuf>;
    /// Returns the blocking calls on that member. The default is a new set without earlier calls.
    fn blocking(&self, _position: usize) -> BlockingCalls {
        BlockingCalls::default()
    }
}

/// An open file.
#[derive(Clone)]
pub(super) struct OpenFile {
    pub(super) file: Arc<File>,
    /// Open for direct reads.
    pub(super) direct: bool,
    /// Result of [`may_wait`] for this file.
    pub(super) may_wait: bool,
    epoch: u32,
    /// When it was opened; not known of those that were opened with the title.
    since: Option<Instant>,
}

/// State of one file of a title.
#[derive(Clone, Default)]
enum TitleFileState {
    #[default]
    Nothing,
    Open(OpenFile),
    /// It could not be opened. The time of the next attempt is unknown until a caller supplies the
    /// current time.
    Refused {
        errno: i32,
        epoch: u32,
        until: Option<Instant>,
    },
}

#[derive(Default)]
struct FileTableState {
    /// By position and kind of file.
    files: Vec<[TitleFileState; FILES]>,
    /// Slots of members with a file that could not be opened since the last query, and the cause.
    refusals: Vec<(u16, i32)>,
    /// Members that did not answer when a file was opened since the last query.
    silent: MemberSet,
}

/// The open files of one title.
#[derive(Default)]
pub(super) struct FileTable {
    table: Mutex<FileTableState>,
}

impl FileTable {
    /// Opens the files that an extent needs while nothing is missing: the data files, or the parity
    /// files of a parity track, and the copies of the records that are read first. There is time to
    /// wait for a disk when a title is opened, but not when an extent is needed.
    pub(super) fn open_first(
        &self,
        title: TitleId,
        stripes: &StripeLayout,
        members: &dyn MemberFiles,
        parity: bool,
    ) {
        let (units, records): (_, &[TitleFile]) = match parity {
            true => {
                (TitleFile::Parity, &[TitleFile::StripeMeta, TitleFile::ParityMeta, TitleFile::ParityCrcs])
            }
            false => (TitleFile::Data, &[TitleFile::Meta, TitleFile::Sums, TitleFile::Crcs]),
        };
        for position in 0..stripes.members() {
            let _ = self.get_within(members, position, (units, true), (None, Timeout::Call));
        }
        let first = first_copy(title, stripes.members());
        for &kind in records {
            let _ = self.get_within(members, first, (kind, false), (None, Timeout::Call));
        }
    }

    /// Returns a file of the member at a position. Data and parity are opened for direct reads if
    /// the file system supports them and `direct` is set.
    ///
    /// # Errors
    /// The `errno` of the failed open; none if the member is not present, has no such file, or does
    /// not answer in the time that media allows ([`FileTable::take_silent`]).
    pub(super) fn get(
        &self,
        members: &dyn MemberFiles,
        position: usize,
        file: (TitleFile, bool),
        now: Instant,
    ) -> Result<OpenFile, Option<i32>> {
        self.get_within(members, position, file, (Some(now), Timeout::Brief))
    }

    fn get_within(
        &self,
        members: &dyn MemberFiles,
        position: usize,
        (kind, direct): (TitleFile, bool),
        (now, timeout): (Option<Instant>, Timeout),
    ) -> Result<OpenFile, Option<i32>> {
        let mut table = self.lock();
        if table.files.len() <= position {
            table.files.resize_with(position + 1, Default::default);
        }
        let FileTableState { files, refusals, silent } = &mut *table;
        let files = &mut files[position];
        if !members.is_present(position) {
            *files = Default::default();
            return Err(None);
        }
        let epoch = members.epoch(position);
        let may_direct = direct && matches!(kind, TitleFile::Data | TitleFile::Parity);
        match &mut files[kind as usize] {
            TitleFileState::Open(file) if file.epoch == epoch && (may_direct || !file.direct) => {
                return Ok(file.clone());
            }
            TitleFileState::Refused { errno, epoch: of, until } if *of == epoch => {
                let until = until.or(now.map(|now| now.plus_ns(FILE_RETRY_NS)));
                if until.zip(now).is_none_or(|(until, now)| now < until) {
                    let errno = *errno;
                    files[kind as usize] = TitleFileState::Refused { errno, epoch, until };
                    return Err(Some(errno));
                }
            }
            _ => {}
        }
        let path = members.path(position, kind).ok_or(None)?;
        let open = move || open_file(&path, may_direct);
        let opened = members.blocking(position).send(timeout, open);
        // A member that does not answer is asked again as its blocking calls allow.
        let place = &mut files[kind as usize];
        *place = TitleFileState::Nothing;
        let opened = opened.inspect_err(|_| silent.insert(members.slot(position)));
        match opened.map_err(|_| None)? {
            Ok((file, direct, may_wait)) => {
                let file = OpenFile { file: Arc::new(file), direct, may_wait, epoch, since: now };
                *place = TitleFileState::Open(file.clone());
                Ok(file)
            }
            Err(errno) if is_exhaustion(errno) => Err(Some(errno)),
            Err(errno) => {
                // A missing file is no evidence against the disk.
                let slot = members.slot(position);
                if errno != libc::ENOENT && !refusals.contains(&(slot, errno)) {
                    refusals.push((slot, errno));
                }
                let until = now.map(|now| now.plus_ns(FILE_RETRY_NS));
                *place = TitleFileState::Refused { errno, epoch, until };
                Err(Some(errno))
            }
        }
    }

    /// Returns the slots of members whose files could not be opened since the last call, each with
    /// the cause.
    pub(super) fn take_refusals(&self) -> Vec<(u16, i32)> {
        std::mem::take(&mut self.lock().refusals)
    }

    /// Returns the members that did not answer when files were opened since the last call.
    pub(super) fn take_silent(&self) -> MemberSet {
        std::mem::take(&mut self.lock().silent)
    }

    /// Files of the member at a position are opened again when they are needed next, if they have been open for a while; those that could
    /// not be opened are tried again.
    pub(super) fn reopen(&self, position: usize, now: Instant) {
        let mut table = self.lock();
        for known in table.files.get_mut(position).into_iter().flatten() {
            let since = match known {
                TitleFileState::Nothing => continue,
                TitleFileState::Open(file) => file.since.map_or(0, |since| since.0),
                TitleFileState::Refused { until, .. } => {
                    until.map_or(0, |until| until.0.saturating_sub(FILE_RETRY_NS))
                }
            };
            if now.0.saturating_sub(since) >= REOPEN_NS {
                *known = TitleFileState::Nothing;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, FileTableState> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether that is a limit of this process or machine, and no word about the disk.
pub(super) fn is_exhaustion(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
}

/// The position whose copies of a title's records are read as long as that works: titles are spread over the members.
pub(super) fn first_copy(title: TitleId, members: usize) -> usize {
    usize::from(title.0[0]) % members.max(1)
}

fn open_file(path: &Path, direct: bool) -> Result<(File, bool, bool), i32> {
    let mut options = OpenOptions::new();
    options.read(true);
    let file = direct.then(|| options.clone().custom_flags(libc::O_DIRECT).open(path).ok()).flatten();
    let (file, direct) = match file {
        Some(file) => (file, true),
        // Some network and memory file systems have no direct reads.
        None => (options.open(path).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?, false),
    };
    let may_wait = may_wait(&file);
    Ok((file, direct, may_wait))
}

/// Returns whether beginning to read from a file may already wait for its disk. These file systems
/// report instead that it would, and the kernel then begins the read on a thread of its own; others
/// (FUSE) report nothing and wait. This call may itself wait.
pub(super) fn may_wait(file: &File) -> bool {
    const KNOWN: [i64; 5] = [
        libc::EXT4_SUPER_MAGIC,
        libc::XFS_SUPER_MAGIC,
        libc::BTRFS_SUPER_MAGIC,
        libc::F2FS_SUPER_MAGIC,
        libc::TMPFS_MAGIC,
    ];
    rustix::fs::fstatfs(file).map_or(true, |found| !KNOWN.contains(&found.f_type))
}

#[cfg(test)]
#[path = "member_files_tests.rs"]
mod tests;
