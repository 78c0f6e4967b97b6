//! The files of a title on its members: opened when they are needed first, and anew when a member has been replaced.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::ids::TitleId;

use crate::errand::{Errands, Patience};
use crate::rows::Rows;

/// A file that a title has on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TitleFile {
    /// The member's data units; the film, if there is one member.
    Data,
    /// The member's parity units.
    Parity,
    /// The records of the packet size, or the default-size records that they are derived from.
    Meta,
    /// The range sums that they are derived from.
    Sums,
    /// The records of the default-size packets.
    RowMeta,
    /// The records of the parity packets.
    ParityMeta,
}

const FILES: usize = 6;

/// What the cache needs of a title that lies on several members or has parity. A *position* is the place of a member among
/// those of the title.
pub trait MemberFiles: Send + Sync {
    /// Slot in the volume of the member at a position.
    fn slot(&self, position: usize) -> u16;
    /// Whether that member is there and believed.
    fn is_usable(&self, position: usize) -> bool;
    /// Changes when files on that member have to be opened anew.
    fn epoch(&self, position: usize) -> u32;
    /// Where a file is on that member; `None`: this title has none of that kind.
    fn path(&self, position: usize, file: TitleFile) -> Option<PathBuf>;
    /// Who is sent to that member. By itself: nobody has been before.
    fn errands(&self, _position: usize) -> Errands {
        Errands::default()
    }
}

/// An open file.
#[derive(Clone)]
pub(in crate::cache) struct OpenFile {
    pub(in crate::cache) file: Arc<File>,
    /// Open for direct reads.
    pub(in crate::cache) direct: bool,
    /// [`may_wait`] says so of it.
    pub(in crate::cache) may_wait: bool,
    epoch: u32,
}

/// The open files of one title.
#[derive(Default)]
pub(in crate::cache) struct FileTable {
    /// By position and kind of file.
    open: Mutex<Vec<[Option<OpenFile>; FILES]>>,
}

impl FileTable {
    /// Opens what an extent needs as long as nothing is missing: the data files, or the parity files of a parity track, and the
    /// copies of the records that are read first. Whoever opens a title has time to wait for a disk; who needs an extent has not.
    pub(in crate::cache) fn open_first(
        &self,
        title: TitleId,
        rows: &Rows,
        members: &dyn MemberFiles,
        parity: bool,
    ) {
        let (units, records): (_, &[TitleFile]) = match parity {
            true => (TitleFile::Parity, &[TitleFile::RowMeta, TitleFile::ParityMeta]),
            false => (TitleFile::Data, &[TitleFile::Meta, TitleFile::Sums]),
        };
        for position in 0..rows.members() {
            let _ = self.get_within(members, position, (units, true), Patience::Call);
        }
        for &kind in records {
            let _ =
                self.get_within(members, first_copy(title, rows.members()), (kind, false), Patience::Call);
        }
    }

    /// A file of the member at a position: data and parity for direct reads, where the file system has them and `direct` says
    /// so. `None`: the member cannot be used, has no such file, or does not answer as soon as film is needed.
    pub(in crate::cache) fn get(
        &self,
        members: &dyn MemberFiles,
        position: usize,
        kind: TitleFile,
        direct: bool,
    ) -> Option<OpenFile> {
        self.get_within(members, position, (kind, direct), Patience::Brief)
    }

    fn get_within(
        &self,
        members: &dyn MemberFiles,
        position: usize,
        (kind, direct): (TitleFile, bool),
        patience: Patience,
    ) -> Option<OpenFile> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() <= position {
            open.resize_with(position + 1, Default::default);
        }
        let files = &mut open[position];
        if !members.is_usable(position) {
            *files = Default::default();
            return None;
        }
        let (epoch, place) = (members.epoch(position), &mut files[kind as usize]);
        let may_direct = direct && matches!(kind, TitleFile::Data | TitleFile::Parity);
        let is_good = |file: &OpenFile| file.epoch == epoch && (may_direct || !file.direct);
        if !place.as_ref().is_some_and(is_good) {
            let open = |path: PathBuf| {
                let open = move || open_file(&path, may_direct);
                members.errands(position).send(patience, open).ok().flatten()
            };
            let opened = members.path(position, kind).and_then(open);
            *place = opened.map(|(file, direct, may_wait)| {
                let file = Arc::new(file);
                OpenFile { file, direct, may_wait, epoch }
            });
        }
        place.clone()
    }
}

/// The position whose copies of a title's records are read as long as that works: titles are spread over the members.
pub(in crate::cache) fn first_copy(title: TitleId, members: usize) -> usize {
    usize::from(title.0[0]) % members.max(1)
}

fn open_file(path: &Path, direct: bool) -> Option<(File, bool, bool)> {
    let mut options = OpenOptions::new();
    options.read(true);
    let file = direct.then(|| options.clone().custom_flags(libc::O_DIRECT).open(path).ok()).flatten();
    let (file, direct) = match file {
        Some(file) => (file, true),
        // Some network and memory file systems have no direct reads.
        None => (options.open(path).ok()?, false),
    };
    let may_wait = may_wait(&file);
    Some((file, direct, may_wait))
}

/// Whether beginning to read from a file may already wait for its disk. These file systems say instead that it would, and
/// the kernel has the read begun by a thread of its own then; others (FUSE) say nothing and wait. May itself wait.
pub(in crate::cache) fn may_wait(file: &File) -> bool {
    const KNOWN: [i64; 5] = [
        libc::EXT4_SUPER_MAGIC,
        libc::XFS_SUPER_MAGIC,
        libc::BTRFS_SUPER_MAGIC,
        libc::F2FS_SUPER_MAGIC,
        libc::TMPFS_MAGIC,
    ];
    rustix::fs::fstatfs(file).map_or(true, |found| !KNOWN.contains(&found.f_type))
}
