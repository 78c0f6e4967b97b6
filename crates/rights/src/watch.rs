//! The thread beside a gate: it checks passwords, and looks whether the file has changed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use millrace_core::limits::rights::{MAX_CHECKS_WAITING, RIGHTS_LOOK_EVERY};

use crate::clock::Now;
use crate::decide::Policy;
use crate::file::{FileError, RightsFile, number_of};
use crate::gate::{Gate, Job};
use crate::known::Known;
use crate::secret::SecretError;

/// Why a gate cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Of the file.
    #[error(transparent)]
    File(#[from] FileError),
    /// Of the system.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Of its thread.
    #[error("the thread that looks after rights: {0}")]
    Thread(io::Error),
}

impl Gate {
    /// A gate for those in a file, if there is one, now or later; and a thread beside it, which ends when the gate is dropped.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn start(policy: Policy, path: &Path) -> Result<Arc<Self>, StartError> {
        let mut source = Source { path: path.to_owned(), open: None, trouble: None };
        let known = source.look()?.unwrap_or_default();
        let (checks, jobs) = sync_channel(MAX_CHECKS_WAITING);
        let gate = Arc::new(Self::with_checks(policy, known, Some(checks))?);
        let weak = Arc::downgrade(&gate);
        std::thread::Builder::new()
            .name("rights".to_owned())
            .spawn(move || run(&weak, &jobs, source))
            .map_err(StartError::Thread)?;
        Ok(gate)
    }
}

fn run(gate: &Weak<Gate>, jobs: &Receiver<Job>, mut source: Source) {
    let mut looked = Now::read().mono;
    loop {
        let wait = RIGHTS_LOOK_EVERY.saturating_sub(Now::read().mono - looked);
        let job = match jobs.recv_timeout(wait) {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Dropped before the next wait: the gate ends when those who use it do.
        let Some(gate) = gate.upgrade() else { return };
        if let Some((check, done)) = job {
            gate.carry_out(check, Now::read());
            done();
        }
        let now = Now::read().mono;
        if now - looked >= RIGHTS_LOOK_EVERY || wait == Duration::ZERO {
            looked = now;
            if let Some(known) = source.news() {
                gate.replace(known);
            }
        }
    }
}

/// The file that is looked at.
struct Source {
    path: PathBuf,
    open: Option<Open>,
    /// What was said last, so that it is said once.
    trouble: Option<String>,
}

/// The file that is open, which may be another than that of its name by now.
struct Open {
    file: RightsFile,
    number: (u64, u64),
    version: i64,
}

impl Source {
    /// What is known now, if that has changed.
    fn news(&mut self) -> Option<Known> {
        match self.look() {
            Ok(known) => {
                self.trouble = None;
                known.inspect(|known| tracing::info!("rights: {} users are known", known.users.len()))
            }
            // What is known stays: rights are not lost with a file.
            Err(error) => {
                let said = error.to_string();
                if self.trouble.as_ref() != Some(&said) {
                    tracing::warn!("{said}; until then users and rights stay as they are");
                    self.trouble = Some(said);
                }
                None
            }
        }
    }

    fn look(&mut self) -> Result<Option<Known>, FileError> {
        let number = match number_of(&self.path) {
            Ok(number) => number,
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.open.is_none() => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(FileError::Missing(self.path.clone()));
            }
            Err(source) => return Err(FileError::Open { path: self.path.clone(), source }),
        };
        if let Some(open) = &mut self.open
            && open.number == number
        {
            let version = open.file.version()?;
            if version == open.version {
                return Ok(None);
            }
            let known = open.file.read()?;
            open.version = version;
            return Ok(Some(known));
        }
        let mut file = RightsFile::open(&self.path)?;
        // In this order: what changes in between is read again.
        let version = file.version()?;
        let known = file.read()?;
        self.open = Some(Open { file, number, version });
        Ok(Some(known))
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
