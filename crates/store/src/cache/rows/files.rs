//! The files of a title on its members: opened when they are needed first, and anew when a member has been replaced.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

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
}

/// An open file.
#[derive(Clone)]
pub(in crate::cache) struct OpenFile {
    pub(in crate::cache) file: Arc<File>,
    /// Open for direct reads.
    pub(in crate::cache) direct: bool,
    epoch: u32,
}

/// The open files of one title.
#[derive(Default)]
pub(in crate::cache) struct FileTable {
    /// By position and kind of file.
    open: Mutex<Vec<[Option<OpenFile>; FILES]>>,
}

impl FileTable {
    /// Opens what an extent needs as long as nothing is missing: the data files, or the parity files of a parity track.
    pub(in crate::cache) fn open_data(&self, rows: &Rows, members: &dyn MemberFiles, parity: bool) {
        let kind = if parity { TitleFile::Parity } else { TitleFile::Data };
        for position in 0..rows.members() {
            let _ = self.get(members, position, kind, true);
        }
    }

    /// A file of the member at a position: data and parity for direct reads, where the file system has them and `direct` says
    /// so. `None`: the member cannot be used, or has no such file.
    pub(in crate::cache) fn get(
        &self,
        members: &dyn MemberFiles,
        position: usize,
        kind: TitleFile,
        direct: bool,
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
            let opened = members.path(position, kind).and_then(|path| open_file(&path, may_direct));
            *place = opened.map(|(file, direct)| OpenFile { file: Arc::new(file), direct, epoch });
        }
        place.clone()
    }
}

fn open_file(path: &Path, direct: bool) -> Option<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true);
    let file = direct.then(|| options.clone().custom_flags(libc::O_DIRECT).open(path).ok()).flatten();
    match file {
        Some(file) => Some((file, true)),
        // Some network and memory file systems have no direct reads.
        None => options.open(path).ok().map(|file| (file, false)),
    }
}
