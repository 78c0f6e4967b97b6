//! The threads beside a gate: one checks passwords, the other watches the file for changes.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Weak};

use crate::clock::Now;
use crate::copies::Copies;
use crate::decide::Policy;
use crate::error::FileError;
use crate::file::RightsFile;
use crate::gate::{CheckJob, Gate};
use crate::known::RightsSnapshot;
use crate::limits::{MAX_CHECKS_WAITING, RIGHTS_LOOK_EVERY, RIGHTS_RETRY_LOOKS};
use crate::secret::SecretError;

/// Why a gate cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Of the file.
    #[error(transparent)]
    File(#[from] FileError),
    /// Of the system.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Of its thread.
    #[error("cannot start the thread that watches the rights: {0}")]
    Thread(io::Error),
}

impl Gate {
    /// Starts a gate for the rights in a file, which may exist now or later. Two threads run beside
    /// the gate until it is dropped: one checks passwords, the other follows the file, whose disk
    /// may hang.
    ///
    /// # Errors
    /// The file exists but cannot be read, or a record shows that it should exist.
    pub fn start(policy: Policy, copies: &Copies) -> Result<Arc<Self>, StartError> {
        let mut source = WatchedRightsFile::new(copies.clone());
        let known = source.look()?.unwrap_or_default();
        let (checks, jobs) = sync_channel(MAX_CHECKS_WAITING);
        let gate = Arc::new(Self::with_checks(policy, known, Some(checks))?);
        let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(StartError::Thread)
        };
        let weak = Arc::downgrade(&gate);
        start("rights", Box::new(move || check(&weak, &jobs)))?;
        let weak = Arc::downgrade(&gate);
        start("rights-file", Box::new(move || follow(&weak, source)))?;
        Ok(gate)
    }
}

/// Checks passwords until the gate is dropped.
fn check(gate: &Weak<Gate>, jobs: &Receiver<CheckJob>) {
    while let Ok((check, done)) = jobs.recv() {
        // Dropped before the next wait: the gate ends when those who use it do.
        let Some(gate) = gate.upgrade() else { return };
        gate.carry_out(check, Now::read());
        done();
    }
}

/// Looks for changes until the gate is dropped.
fn follow(gate: &Weak<Gate>, mut source: WatchedRightsFile) {
    loop {
        std::thread::sleep(RIGHTS_LOOK_EVERY);
        if gate.strong_count() == 0 {
            return;
        }
        if let Some(known) = source.news()
            && let Some(gate) = gate.upgrade()
        {
            gate.replace(known);
        }
    }
}

/// The file that is watched for changes, with its copies.
struct WatchedRightsFile {
    copies: Copies,
    /// The newest copy, as of the last read.
    open: Option<OpenCopy>,
    /// Stamps of all copies at that time.
    seen: Vec<(PathBuf, Option<CopyStamp>)>,
    /// Number of looks since then.
    looks: u32,
    /// The last warning; it is not logged again while it stays the same.
    trouble: Option<String>,
}

/// The open copy. Its name may refer to another file by now.
struct OpenCopy {
    file: RightsFile,
    version: i64,
}

/// Distinguishes one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyStamp {
    number: (u64, u64),
    bytes: u64,
    modified_ns: (i64, i64),
}

impl CopyStamp {
    /// Uses the name alone: opening and closing the file would release SQLite's locks.
    fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        let modified_ns = (meta.mtime(), meta.mtime_nsec());
        Some(Self { number: (meta.dev(), meta.ino()), bytes: meta.len(), modified_ns })
    }
}

impl WatchedRightsFile {
    fn new(copies: Copies) -> Self {
        Self { copies, open: None, seen: Vec::new(), looks: 0, trouble: None }
    }

    /// Returns the current users and rights, if they have changed.
    fn news(&mut self) -> Option<RightsSnapshot> {
        match self.look() {
            Ok(known) => {
                self.trouble = None;
                known.inspect(|known| tracing::info!("rights: {} users are known", known.users.len()))
            }
            // The known users and rights stay: they are not lost with a file.
            Err(error) => {
                let said = error.to_string();
                if self.trouble.as_ref() != Some(&said) {
                    tracing::warn!("{said}; until then the previous users and rights stay in use");
                    self.trouble = Some(said);
                }
                None
            }
        }
    }

    fn look(&mut self) -> Result<Option<RightsSnapshot>, FileError> {
        let now = self.stamps();
        let version = self.open.as_ref().map(|open| open.file.version()).transpose();
        let is_same = match (&self.open, version) {
            (Some(open), Ok(version)) => version == Some(open.version),
            _ => false,
        };
        self.looks += 1;
        // A member that could not be brought up to date looks the same as before, so it is retried
        // now and then.
        if is_same && now == self.seen && (!self.copies.is_volume() || self.looks < RIGHTS_RETRY_LOOKS) {
            return Ok(None);
        }
        let was_open = self.open.is_some();
        let mut file = match RightsFile::open_copies(&self.copies) {
            Err(FileError::Missing(_)) if !was_open => return Ok(None),
            opened => opened?,
        };
        // In this order: what changes in between is read again.
        let (version, seen) = (file.version()?, self.stamps());
        let known = file.read()?;
        let is_news = self.open.as_ref().is_none_or(|open| open.file.content() != file.content());
        self.open = Some(OpenCopy { file, version });
        (self.seen, self.looks) = (seen, 0);
        Ok(is_news.then_some(known))
    }

    fn stamps(&self) -> Vec<(PathBuf, Option<CopyStamp>)> {
        self.copies.paths().into_iter().map(|path| (path.clone(), CopyStamp::of(&path))).collect()
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
