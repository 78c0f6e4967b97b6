//! The files of a title on its members: opened when they are needed first, and again when a member has been replaced.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::ids::TitleId;
use millrace_core::time::Instant;

use crate::blocking::{BlockingCalls, Timeout};
use crate::cache::order::bit;
use crate::limits::cache::{FILE_RETRY_NS, REOPEN_NS};
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

/// What the cache needs of a title that lies on several members or has parity. A *position* is the place of a member among
/// those of the title.
pub trait MemberFiles: Send + Sync {
    /// Slot in the volume of the member at a position.
    fn slot(&self, position: usize) -> u16;
    /// Whether that member is there and believed.
    fn is_usable(&self, position: usize) -> bool;
    /// Whether that member is there, believed or not: it may hold data and parity, which their stored sums prove.
    fn is_present(&self, position: usize) -> bool {
        self.is_usable(position)
    }
    /// Changes when files on that member have to be opened again.
    fn epoch(&self, position: usize) -> u32;
    /// Where a file is on that member; `None`: this title has none of that kind.
    fn path(&self, position: usize, file: TitleFile) -> Option<PathBuf>;
    /// Who is sent to that member. By itself: nobody has been before.
    fn blocking(&self, _position: usize) -> BlockingCalls {
        BlockingCalls::default()
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
    /// When it was opened; not known of those that were opened with the title.
    since: Option<Instant>,
}

/// What is known of a file.
#[derive(Clone, Default)]
enum Known {
    #[default]
    Nothing,
    Open(OpenFile),
    /// It could not be opened. Until when that is taken for granted is not known before somebody has said what time it is.
    Refused {
        errno: i32,
        epoch: u32,
        until: Option<Instant>,
    },
}

#[derive(Default)]
struct Table {
    /// By position and kind of file.
    files: Vec<[Known; FILES]>,
    /// Slots of members of which a file could not be opened, and why, since somebody asked.
    refusals: Vec<(u16, i32)>,
    /// Slots of members that did not answer when a file was to be opened, since somebody asked, as bits.
    silent: u32,
}

/// The open files of one title.
#[derive(Default)]
pub(in crate::cache) struct FileTable {
    table: Mutex<Table>,
}

impl FileTable {
    /// Opens what an extent needs as long as nothing is missing: the data files, or the parity files of a parity track, and the
    /// copies of the records that are read first. Whoever opens a title has time to wait for a disk; who needs an extent has not.
    pub(in crate::cache) fn open_first(
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

    /// A file of the member at a position: data and parity for direct reads, where the file system has them and `direct` says
    /// so.
    ///
    /// # Errors
    /// The `errno` with which it cannot be opened; none if the member is not there, has no such file, or does not answer as
    /// soon as media is needed ([`FileTable::take_silent`]).
    pub(in crate::cache) fn get(
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
        let Table { files, refusals, silent } = &mut *table;
        let files = &mut files[position];
        if !members.is_present(position) {
            *files = Default::default();
            return Err(None);
        }
        let epoch = members.epoch(position);
        let may_direct = direct && matches!(kind, TitleFile::Data | TitleFile::Parity);
        match &mut files[kind as usize] {
            Known::Open(file) if file.epoch == epoch && (may_direct || !file.direct) => {
                return Ok(file.clone());
            }
            Known::Refused { errno, epoch: of, until } if *of == epoch => {
                let until = until.or(now.map(|now| now.plus_ns(FILE_RETRY_NS)));
                if until.zip(now).is_none_or(|(until, now)| now < until) {
                    let errno = *errno;
                    files[kind as usize] = Known::Refused { errno, epoch, until };
                    return Err(Some(errno));
                }
            }
            _ => {}
        }
        let path = members.path(position, kind).ok_or(None)?;
        let open = move || open_file(&path, may_direct);
        let opened = members.blocking(position).send(timeout, open);
        // Whoever does not answer is asked again as its blocking calls allow.
        let place = &mut files[kind as usize];
        *place = Known::Nothing;
        let opened = opened.inspect_err(|_| *silent |= bit(members.slot(position)));
        match opened.map_err(|_| None)? {
            Ok((file, direct, may_wait)) => {
                let file = OpenFile { file: Arc::new(file), direct, may_wait, epoch, since: now };
                *place = Known::Open(file.clone());
                Ok(file)
            }
            Err(errno) if is_exhaustion(errno) => Err(Some(errno)),
            Err(errno) => {
                // That a file is not there says nothing about the disk.
                let slot = members.slot(position);
                if errno != libc::ENOENT && !refusals.contains(&(slot, errno)) {
                    refusals.push((slot, errno));
                }
                let until = now.map(|now| now.plus_ns(FILE_RETRY_NS));
                *place = Known::Refused { errno, epoch, until };
                Err(Some(errno))
            }
        }
    }

    /// Slots of members of which files could not be opened since this was asked last, and why.
    pub(in crate::cache) fn take_refusals(&self) -> Vec<(u16, i32)> {
        std::mem::take(&mut self.lock().refusals)
    }

    /// Slots of members that did not answer when files were to be opened since this was asked last, as bits.
    pub(in crate::cache) fn take_silent(&self) -> u32 {
        std::mem::take(&mut self.lock().silent)
    }

    /// Files of the member at a position are opened again when they are needed next, if they have been open for a while; those that could
    /// not be opened are tried again.
    pub(in crate::cache) fn reopen(&self, position: usize, now: Instant) {
        let mut table = self.lock();
        for known in table.files.get_mut(position).into_iter().flatten() {
            let since = match known {
                Known::Nothing => continue,
                Known::Open(file) => file.since.map_or(0, |since| since.0),
                Known::Refused { until, .. } => {
                    until.map_or(0, |until| until.0.saturating_sub(FILE_RETRY_NS))
                }
            };
            if now.0.saturating_sub(since) >= REOPEN_NS {
                *known = Known::Nothing;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether that is a limit of this process or machine, and no word about the disk.
pub(super) fn is_exhaustion(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
}

/// The position whose copies of a title's records are read as long as that works: titles are spread over the members.
pub(in crate::cache) fn first_copy(title: TitleId, members: usize) -> usize {
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

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
