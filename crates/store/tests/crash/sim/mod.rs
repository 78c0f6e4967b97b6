//! A disk that loses power and fails, on order.
//!
//! [`Sim`] does every operation for real in the directories of a test and records it. From its
//! [`Recording`] it can rebuild, in fresh directories, the state that a power cut after any
//! operation may have left: [`CrashState`]. It also refuses operations: an error, a short write, a
//! full disk.
//!
//! The model is harsher than any file system in use, but one promise is kept: a rename happens whole or not at all.
//!
//! * The content of a file is durable after its own sync. Until then each write may be lost, kept,
//!   kept for some of its 512-byte sectors, or show as zeros of the right length, whatever happened
//!   to writes before and after it.
//! * A name (create, rename, remove) is durable after a sync of its directory, a rename after that of the directory it leads
//!   to. Until then it may be lost or kept, in any order but that of one name's own changes. Syncing a file does not keep
//!   its name.
//! * After a failed sync, the data that it should have kept can never be relied on, even if a later
//!   sync succeeds.
//!
//! | file | does |
//! | --- | --- |
//! | `model` | replays operations: which changes are durable, and which may still be lost |
//! | `state` | decides which changes are lost, and writes the rest into fresh directories |

#![allow(unreachable_pub)]

mod model;
mod state;

pub use state::{CrashState, Fate};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::model::{Event, Model, Place, Tree};
use millrace_store::disk::{Disk, DiskInterceptor, Op};

/// `EIO` as the operating system numbers it.
pub const EIO: i32 = 5;
/// `ENOSPC` as the operating system numbers it.
pub const ENOSPC: i32 = 28;

/// An operation that is to fail. Operations are counted from 0 on, those that fail too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Operation `op` fails with `errno`, undone.
    Fail {
        /// Its number.
        op: u64,
        /// The error.
        errno: i32,
    },
    /// Operation `op` and all after it fail with `errno`: the disk has died.
    FailFrom {
        /// The first one's number.
        op: u64,
        /// The error.
        errno: i32,
    },
    /// Operation `op`, if it is a write, writes half of its bytes and fails with `errno`; if it is not, it just fails.
    Short {
        /// Its number.
        op: u64,
        /// The error.
        errno: i32,
    },
    /// Writes beyond this many bytes in all fail with `ENOSPC` where the last byte fits.
    Full {
        /// Room on the disk.
        bytes: u64,
    },
}

/// A disk that records and fails; see the module.
#[derive(Debug)]
pub struct Sim {
    roots: Vec<PathBuf>,
    base: Vec<Tree>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    order: Option<Order>,
    /// Operations tried, and bytes written.
    tried: u64,
    written_bytes: u64,
}

impl Sim {
    /// Starts with the present contents of the directories `roots`, all of them durable. Files of
    /// the catalogue are not examined.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn new(roots: &[&Path]) -> io::Result<Arc<Self>> {
        let base = roots.iter().map(|root| Tree::read(root)).collect::<io::Result<_>>()?;
        let roots = roots.iter().map(|root| root.to_path_buf()).collect();
        Ok(Arc::new(Self { roots, base, state: Mutex::default() }))
    }

    /// Returns the handle to give to the store. Changes outside the roots are made but not
    /// recorded.
    pub fn disk(self: &Arc<Self>) -> Disk {
        Disk::watched(Arc::clone(self) as Arc<dyn DiskInterceptor>)
    }

    /// Sets the failure to inject from now on, in place of the previous order.
    pub fn order(&self, order: Option<Order>) {
        self.lock().order = order;
    }

    /// Notes in the recording that something has been promised to a user: states of later power cuts know of it.
    pub fn mark(&self, label: &str) {
        self.lock().events.push(Event::Mark(label.to_owned()));
    }

    /// How many operations have been tried.
    pub fn operations(&self) -> u64 {
        self.lock().tried
    }

    /// Returns everything that has happened until now.
    pub fn recording(&self) -> Recording {
        Recording { base: self.base.clone(), events: self.lock().events.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a path is in the roots.
    fn place(&self, path: &Path) -> Option<Place> {
        let below = |(root, dir): (usize, &PathBuf)| {
            Some(Place { root, path: path.strip_prefix(dir).ok()?.to_path_buf() })
        };
        self.roots.iter().enumerate().find_map(below)
    }
}

impl State {
    /// How many bytes of a write may be written, and what to fail with then.
    fn verdict(&mut self, op: &Op<'_>) -> (usize, Option<i32>) {
        let number = self.tried;
        self.tried += 1;
        let bytes = if let Op::Write { bytes, .. } = op { bytes.len() } else { 0 };
        match self.order {
            Some(Order::Fail { op, errno }) if op == number => (0, Some(errno)),
            Some(Order::FailFrom { op, errno }) if op <= number => (0, Some(errno)),
            Some(Order::Short { op, errno }) if op == number => (bytes / 2, Some(errno)),
            Some(Order::Full { bytes: room }) if self.written_bytes + bytes as u64 > room => {
                (room.saturating_sub(self.written_bytes) as usize, Some(ENOSPC))
            }
            _ => (bytes, None),
        }
    }
}

impl DiskInterceptor for Sim {
    fn run(&self, op: &Op<'_>, perform: &mut dyn FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        // Held until the operation is done: the recording has the order in which things happened.
        let mut state = self.lock();
        let (bytes, errno) = state.verdict(op);
        if errno.is_none() || bytes > 0 {
            perform(if errno.is_none() { usize::MAX } else { bytes })?;
            state.written_bytes += bytes as u64;
            let event = self.event(op, bytes);
            state.events.extend(event);
        }
        let Some(errno) = errno else { return Ok(()) };
        if let Op::SyncFile { file, .. } = op {
            state.events.push(Event::SyncFailed(*file));
        }
        Err(io::Error::from_raw_os_error(errno))
    }
}

impl Sim {
    fn event(&self, op: &Op<'_>, written: usize) -> Option<Event> {
        Some(match *op {
            Op::CreateFile { path, file } | Op::OpenFile { path, file } => {
                Event::Open(self.place(path)?, file)
            }
            Op::Write { file, at, bytes, .. } => Event::Write(file, at, bytes[..written].into()),
            Op::SetLen { file, bytes, .. } => Event::SetLen(file, bytes),
            Op::SyncFile { file, .. } => Event::SyncFile(file),
            Op::CreateDir { path } => Event::CreateDir(self.place(path)?),
            Op::SyncDir { path } => Event::SyncDir(self.place(path)?),
            Op::Rename { from, to } => Event::Rename(self.place(from)?, self.place(to)?),
            Op::RemoveFile { path } | Op::RemoveDir { path } => Event::Remove(self.place(path)?),
        })
    }
}

/// Operations performed, in order.
#[derive(Clone, Debug)]
pub struct Recording {
    base: Vec<Tree>,
    events: Vec<Event>,
}

impl Recording {
    /// Number of places where power can be cut: before the first event, between any two, and after the last.
    pub fn points(&self) -> usize {
        self.events.len() + 1
    }

    /// The event before `point`, for messages.
    pub fn before(&self, point: usize) -> String {
        point.checked_sub(1).and_then(|i| self.events.get(i)).map_or("nothing".to_owned(), Event::describe)
    }

    /// Returns the guarantees given before `point`, in order.
    pub fn marks(&self, point: usize) -> Vec<&str> {
        let events = self.events.iter().take(point);
        let marks = events.filter_map(|event| match event {
            Event::Mark(label) => Some(label.as_str()),
            _ => None,
        });
        marks.collect()
    }

    /// Returns a state that a power cut at `point` may have left, decided by `fate`.
    pub fn state(&self, point: usize, fate: Fate) -> CrashState {
        let mut model = Model::new(&self.base);
        for event in self.events.iter().take(point) {
            model.replay(event);
        }
        CrashState::decide(&model, fate)
    }
}

impl Tree {
    /// Reads a directory with all in it but the catalogue, which SQLite writes and which is only a cache.
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_string_lossy().starts_with(millrace_store::volume::CATALOGUE_FILE) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                tree.dirs.insert(name, Self::read(&entry.path())?);
            } else {
                tree.files.insert(name, fs::read(entry.path())?.into());
            }
        }
        Ok(tree)
    }
}
