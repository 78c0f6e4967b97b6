//! The requirements of every step of a repair or scrub: the pace, the readers' faults, the counts,
//! and the receiver of progress reports.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use millrace_core::units::HumanDuration;

use super::ask::Asker;
use super::error::RepairError;
use super::pace::{RepairThrottle, Timekeeper};
use super::report::{RepairProgress, RepairReport};
use crate::disk::ReadFaults;
use crate::limits::REPAIR_READ_BYTES;

/// Carried through all steps.
pub(crate) struct Work<'a> {
    pace: RepairThrottle<'a>,
    faults: ReadFaults,
    asker: Asker,
    /// All data read goes through here: a thread that hangs must not hold the reader's memory.
    buffer: Vec<u8>,
    pub(crate) report: RepairReport,
    pub(crate) progress: RepairProgress,
    tell: &'a mut dyn FnMut(&RepairProgress),
}

/// The clock, the stop flag, where progress is reported, and how readers fail in a test.
pub struct Setting<'a> {
    /// The clock and the only wait.
    pub time: &'a dyn Timekeeper,
    /// Set from another thread: the work ends at the next step, all that is done stays done.
    pub stop: &'a std::sync::atomic::AtomicBool,
    /// Hears how far it is.
    pub tell: &'a mut dyn FnMut(&RepairProgress),
    /// Faults of readers on order; the default has none.
    pub faults: ReadFaults,
    /// How long a member may take to answer, in nanoseconds; after that the run goes on without it.
    pub answer_ns: u64,
}

impl<'a> Work<'a> {
    pub(crate) fn new(setting: Setting<'a>, rate_bytes_per_s: u64) -> Self {
        let Setting { time, stop, tell, faults, answer_ns } = setting;
        let pace = RepairThrottle::new(time, stop, rate_bytes_per_s);
        let (report, progress) = (RepairReport::default(), RepairProgress::default());
        Self { pace, faults, asker: Asker::new(answer_ns), buffer: Vec::new(), report, progress, tell }
    }

    /// Fills `bytes` from `at` on in a file of the member in `slot`. The outer error ends the work, the inner one is the
    /// disk's.
    pub(crate) fn read(
        &mut self,
        slot: u16,
        file: &File,
        bytes: &mut [u8],
        at: u64,
    ) -> Result<io::Result<()>, RepairError> {
        if self.has_given_up(slot) {
            return Ok(Err(self.silence()));
        }
        self.report.bytes_read += bytes.len() as u64;
        self.pace.moved(bytes.len() as u64)?;
        let file = match file.try_clone() {
            Ok(file) => file,
            Err(error) => return Ok(Err(error)),
        };
        let (faults, mut buffer, len) = (self.faults.clone(), std::mem::take(&mut self.buffer), bytes.len());
        let answer = self.ask(slot, move || {
            buffer.resize(len, 0);
            let read = faults.read_exact_at(slot, &file, &mut buffer, at);
            Ok((read, buffer))
        })?;
        Ok(answer.and_then(|(read, buffer)| {
            bytes.copy_from_slice(&buffer);
            self.buffer = buffer;
            read
        }))
    }

    /// Returns the answer of the member in `slot` to a question about its files. The outer error
    /// ends the work, the inner one is the disk's, or reports that it does not answer.
    pub(crate) fn ask<T: Send + 'static>(
        &mut self,
        slot: u16,
        question: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<io::Result<T>, RepairError> {
        let pace = &self.pace;
        let answer = self.asker.ask(slot, question, || pace.check())?;
        Ok(answer.unwrap_or_else(|| Err(self.silence())))
    }

    /// The same for what nothing can be done without.
    pub(crate) fn demand<T: Send + 'static>(
        &mut self,
        slot: u16,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RepairError> {
        let pace = &self.pace;
        self.asker.ask(slot, question, || pace.check())?.ok_or(RepairError::Silent(slot))
    }

    /// Whether the member in `slot` did not answer in time: nothing is asked of it any more.
    pub(crate) fn has_given_up(&self, slot: u16) -> bool {
        self.asker.has_given_up(slot)
    }

    /// All such members.
    pub(crate) fn given_up(&self) -> Vec<u16> {
        self.asker.given_up()
    }

    fn silence(&self) -> io::Error {
        let limit = HumanDuration(Duration::from_nanos(self.asker.limit_ns()));
        io::Error::new(io::ErrorKind::TimedOut, format!("the disk has not answered for {limit}, it hangs"))
    }

    /// `bytes` are about to be written.
    pub(crate) fn writes(&mut self, bytes: u64) -> Result<(), RepairError> {
        self.report.bytes_written += bytes;
        self.pace.moved(bytes)
    }

    /// Whether the user wants to stop.
    pub(crate) fn check(&self) -> Result<(), RepairError> {
        self.pace.check()
    }

    /// Tells how far it is.
    pub(crate) fn tell(&mut self) {
        (self.tell)(&self.progress);
    }

    /// Hands every piece of a file of the member in `slot` to `with`, in order; its BLAKE3 and length. The inner error is the
    /// disk's.
    pub(crate) fn each_piece(
        &mut self,
        slot: u16,
        path: &Path,
        mut with: impl FnMut(&mut Self, &[u8]) -> Result<(), RepairError>,
    ) -> Result<io::Result<(blake3::Hash, u64)>, RepairError> {
        let owned = path.to_path_buf();
        let open = move || File::open(&owned).and_then(|file| file.metadata().map(|meta| (file, meta.len())));
        let (file, len) = match self.ask(slot, open)? {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error)),
        };
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; (REPAIR_READ_BYTES as u64).min(len.max(1)) as usize];
        let mut at = 0;
        while at < len {
            let piece = &mut buffer[..(len - at).min(REPAIR_READ_BYTES as u64) as usize];
            if let Err(error) = self.read(slot, &file, piece, at)? {
                return Ok(Err(error));
            }
            hasher.update(piece);
            with(self, piece)?;
            at += piece.len() as u64;
        }
        Ok(Ok((hasher.finalize(), len)))
    }

    /// Returns the fault of a file that should have this length and BLAKE3; `None` if it has none.
    pub(crate) fn wrong_with(
        &mut self,
        slot: u16,
        path: &Path,
        bytes: u64,
        blake3: &str,
    ) -> Result<Option<String>, RepairError> {
        let owned = path.to_path_buf();
        match self.ask(slot, move || owned.metadata())? {
            Ok(meta) if meta.len() == bytes => {}
            Ok(meta) => {
                return Ok(Some(format!("is {} bytes long; the manifest promises {bytes}", meta.len())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some("is missing".to_owned()));
            }
            Err(error) => return Ok(Some(format!("cannot be inspected: {error}"))),
        }
        Ok(match self.each_piece(slot, path, |_, _| Ok(()))? {
            Err(error) => Some(format!("cannot be read: {error}")),
            Ok((hash, _)) if hash.to_hex().as_str() != blake3 => Some("its BLAKE3 differs".to_owned()),
            Ok(_) => None,
        })
    }
}
