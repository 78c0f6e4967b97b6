//! What happens to payloads once they are in order: checked, compared, written. On a thread of its own, so that a slow
//! disk, a reader of a pipe that pauses or a search through the reference never delays the receiving loop.
//!
//! Payloads travel in blocks of 256 KiB, 16 MiB of them at most. When all are in flight, the sink
//! reports it and the loop stops reading media: the kernel counts the loss that follows, and none
//! is silent.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::thread;
use std::time::Duration;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::Instant;
use millrace_ts::Analyser;

use crate::error::ClientError;
use crate::limits::{BLOCK_AGE_NS, BLOCK_BYTES, BLOCKS, FULL_RETRY_NS};
use crate::reorder::InOrder;
use crate::verify::{ByteCheck, Verifier};

/// Where the transport stream goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Nowhere: it is measured only.
    #[default]
    Null,
    /// Standard output.
    Stdout,
    /// A file, created or emptied.
    File(PathBuf),
}

#[derive(Clone, Copy, Debug)]
enum Mark {
    Run,
    Gap { count: u64 },
    Payload { ext: u64, len: u32 },
}

#[derive(Debug, Default)]
struct SinkBlock {
    bytes: Vec<u8>,
    marks: Vec<Mark>,
}

/// What became of the payloads.
#[derive(Debug)]
pub(crate) struct SinkReport {
    pub(crate) analysis: millrace_ts::AnalysisReport,
    /// Payloads whose length is not a multiple of 188.
    pub(crate) odd_payloads: u64,
    pub(crate) byte_check: Option<ByteCheck>,
    pub(crate) written: u64,
    /// The reader of standard output has gone.
    pub(crate) reader_gone: bool,
}

/// The receiving loop's end.
pub(crate) struct SinkWriter {
    blocks: Option<SyncSender<SinkBlock>>,
    spare: Receiver<SinkBlock>,
    result: Receiver<Result<SinkReport, ClientError>>,
    path: PathBuf,
    block: SinkBlock,
    since: Option<Instant>,
    full: bool,
    gone: bool,
}

/// The far end of an output.
enum OutputTarget {
    Null,
    /// A pipe or the like: its reader may pause, and may go away without that being an error.
    Stream(File),
    File(File),
}

struct Worker {
    target: OutputTarget,
    path: PathBuf,
    analyser: Analyser,
    odd_payloads: u64,
    verifier: Option<Verifier>,
    written: u64,
    reader_gone: bool,
}

fn output_path(output: &Output) -> PathBuf {
    match output {
        Output::Null => PathBuf::from("(nowhere)"),
        Output::Stdout => PathBuf::from("-"),
        Output::File(path) => path.clone(),
    }
}

fn output_error(path: &Path, written: u64, source: io::Error) -> ClientError {
    let advice = match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space, or write elsewhere",
        io::ErrorKind::PermissionDenied => "choose a file that may be written",
        io::ErrorKind::NotFound => "create its directory first",
        _ => "write elsewhere, or to nowhere",
    };
    ClientError::Output { path: path.to_owned(), written, source, advice }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    identity(one).is_some_and(|found| Some(found) == identity(other))
}

impl SinkWriter {
    /// Opens output and reference and starts the thread.
    pub(crate) fn start(output: &Output, reference: Option<&Path>) -> Result<Self, ClientError> {
        let path = output_path(output);
        // Before the output is emptied: an unusable reference must not cost an earlier recording.
        let verifier = reference.map(Verifier::open).transpose()?;
        if reference.is_some_and(|reference| is_same_file(&path, reference)) {
            let allowed = "any file but the one to compare with, which would be emptied";
            return Err(ClientError::Option { option: "output", got: path.display().to_string(), allowed });
        }
        let target = match output {
            Output::Null => OutputTarget::Null,
            Output::Stdout => {
                // The descriptor itself: the line buffer of standard output would cut blocks to pieces.
                let stdout =
                    rustix::io::dup(io::stdout()).map_err(|errno| output_error(&path, 0, errno.into()))?;
                OutputTarget::Stream(File::from(stdout))
            }
            Output::File(file) => {
                OutputTarget::File(File::create(file).map_err(|error| output_error(&path, 0, error))?)
            }
        };
        Self::spawn(target, path, verifier)
    }

    fn spawn(target: OutputTarget, path: PathBuf, verifier: Option<Verifier>) -> Result<Self, ClientError> {
        let worker = Worker {
            target,
            path: path.clone(),
            analyser: Analyser::default(),
            odd_payloads: 0,
            verifier,
            written: 0,
            reader_gone: false,
        };
        let (block_tx, block_rx) = sync_channel(BLOCKS);
        let (spare_tx, spare_rx) = sync_channel(BLOCKS);
        let (result_tx, result_rx) = channel();
        thread::Builder::new()
            .name("sink".to_owned())
            .spawn(move || {
                // The loop may be gone already when it was cancelled with a blocked output.
                let _ = result_tx.send(worker.run(&block_rx, &spare_tx));
            })
            .map_err(|source| ClientError::Socket { what: "thread of the output", source })?;
        Ok(Self {
            blocks: Some(block_tx),
            spare: spare_rx,
            result: result_rx,
            path,
            block: SinkBlock::default(),
            since: None,
            full: false,
            gone: false,
        })
    }

    /// The next payload begins a run.
    pub(crate) fn begin_run(&mut self) {
        self.block.marks.push(Mark::Run);
    }

    /// To be called once a turn: sends a block on that has waited long enough.
    pub(crate) fn turn(&mut self, now: Instant) {
        if self.block.marks.is_empty() {
            self.since = None;
            return;
        }
        let since = *self.since.get_or_insert(now);
        if self.full || now >= since.plus_ns(BLOCK_AGE_NS) {
            self.send();
            self.since = self.full.then_some(now);
        }
    }

    /// When [`Self::turn`] has something to do.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        self.since.map(|since| since.plus_ns(if self.full { FULL_RETRY_NS } else { BLOCK_AGE_NS }))
    }

    fn send(&mut self) {
        let Some(blocks) = &self.blocks else { return };
        let next = self.spare.try_recv().unwrap_or_default();
        match blocks.try_send(std::mem::replace(&mut self.block, next)) {
            Ok(()) => {
                self.full = false;
                self.since = None;
            }
            Err(TrySendError::Full(block)) => {
                self.block = block;
                self.full = true;
            }
            Err(TrySendError::Disconnected(_)) => self.gone = true,
        }
    }

    /// Whether the output is too far behind to read more media.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Whether the thread has ended: by an error, or because the reader of the pipe is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Hands over the rest and waits for the thread, at most `timeout`.
    pub(crate) fn finish(mut self, timeout: Duration) -> Result<SinkReport, ClientError> {
        let path = self.path.clone();
        let stuck =
            || output_error(&path, 0, io::Error::new(io::ErrorKind::TimedOut, "it takes no more bytes"));
        let step = Duration::from_millis(10);
        let mut waited = Duration::ZERO;
        while !self.block.marks.is_empty() && !self.gone {
            self.send();
            if self.full {
                if waited >= timeout {
                    return Err(stuck());
                }
                thread::sleep(step);
                waited += step;
            }
        }
        drop(self.blocks.take());
        match self.result.recv_timeout(timeout.saturating_sub(waited)) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(stuck()),
            Err(RecvTimeoutError::Disconnected) => {
                Err(output_error(&self.path, 0, io::Error::other("its thread ended early")))
            }
        }
    }
}

impl InOrder for SinkWriter {
    fn payload(&mut self, ext: u64, bytes: &[u8]) {
        if self.gone {
            return;
        }
        self.block.bytes.extend_from_slice(bytes);
        self.block.marks.push(Mark::Payload { ext, len: bytes.len() as u32 });
        if self.block.bytes.len() >= BLOCK_BYTES {
            self.send();
        }
    }

    fn gap(&mut self, _from: u64, count: u64) {
        self.block.marks.push(Mark::Gap { count });
    }
}

impl Worker {
    fn run(
        mut self,
        blocks: &Receiver<SinkBlock>,
        spare: &SyncSender<SinkBlock>,
    ) -> Result<SinkReport, ClientError> {
        while let Ok(mut block) = blocks.recv() {
            self.check(&block)?;
            if let Err(error) = self.write(&block.bytes) {
                if error.kind() == io::ErrorKind::BrokenPipe && matches!(self.target, OutputTarget::Stream(_))
                {
                    self.reader_gone = true;
                    break;
                }
                return Err(output_error(&self.path, self.written, error));
            }
            block.bytes.clear();
            block.marks.clear();
            // Full when the loop has more blocks than it needs: this one is freed then.
            let _ = spare.try_send(block);
        }
        Ok(SinkReport {
            analysis: self.analyser.finish(),
            odd_payloads: self.odd_payloads,
            byte_check: self.verifier.map(Verifier::finish).transpose()?,
            written: self.written,
            reader_gone: self.reader_gone,
        })
    }

    fn check(&mut self, block: &SinkBlock) -> Result<(), ClientError> {
        let mut at = 0;
        for mark in &block.marks {
            match *mark {
                Mark::Run => {
                    self.analyser.jumped();
                    self.verifier.as_mut().map_or(Ok(()), Verifier::begin_run)?;
                }
                Mark::Gap { count } => {
                    self.analyser.lost();
                    if let Some(verifier) = &mut self.verifier {
                        verifier.gap(count);
                    }
                }
                Mark::Payload { ext, len } => {
                    let payload = &block.bytes[at..at + len as usize];
                    at += len as usize;
                    self.odd_payloads +=
                        u64::from(payload.is_empty() || !payload.len().is_multiple_of(TS_PACKET_BYTES));
                    self.analyser.push_packets(payload);
                    self.verifier.as_mut().map_or(Ok(()), |verifier| verifier.payload(ext, payload))?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = match &mut self.target {
                OutputTarget::Null => return Ok(()),
                OutputTarget::Stream(file) | OutputTarget::File(file) => file.write(bytes),
            };
            match taken {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => {
                    self.written += taken as u64;
                    bytes = &bytes[taken..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(5))
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn payloads_arrive_in_the_file_as_they_were_given() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.ts");
        let mut sink = SinkWriter::start(&Output::File(path.clone()), None).unwrap();
        let mut expected = Vec::new();
        sink.begin_run();
        for ext in 0..2000u64 {
            let payload = vec![ext as u8; 1316];
            expected.extend_from_slice(&payload);
            while sink.is_full() {
                thread::yield_now();
                sink.turn(Instant(ext));
            }
            sink.payload(ext, &payload);
            sink.turn(Instant(ext * 1_000_000));
        }
        let report = sink.finish(TIMEOUT).unwrap();
        assert_eq!(report.written, expected.len() as u64);
        assert_eq!(report.analysis.packets, 14_000);
        assert!(std::fs::read(path).unwrap() == expected);
    }

    fn pipe() -> (File, SinkWriter) {
        let (read, write) = io::pipe().unwrap();
        let stream = OutputTarget::Stream(File::from(OwnedFd::from(write)));
        let sink = SinkWriter::spawn(stream, "-".into(), None).unwrap();
        (File::from(OwnedFd::from(read)), sink)
    }

    #[test]
    fn sink_with_paused_reader_fills_up_and_loses_nothing() {
        use std::io::Read;
        let (mut reader, mut sink) = pipe();
        let (mut given, mut ext) = (Vec::new(), 0u64);
        while !sink.is_full() {
            let payload = [ext as u8; 1316];
            given.extend_from_slice(&payload);
            sink.payload(ext, &payload);
            ext += 1;
        }
        // 64 blocks in flight, one being written, one at hand, and the contents of a pipe.
        assert!(
            given.len() >= BLOCKS * BLOCK_BYTES && given.len() < (BLOCKS + 4) * BLOCK_BYTES,
            "{}",
            given.len()
        );
        let (done, length) = (std::sync::mpsc::channel(), given.len());
        let thread = std::thread::spawn(move || {
            let mut got = vec![0; length];
            reader.read_exact(&mut got).unwrap();
            done.0.send(got).unwrap();
        });
        let deadline = std::time::Instant::now() + TIMEOUT;
        let mut now = Instant(0);
        while sink.is_full() {
            assert!(std::time::Instant::now() < deadline, "it stays full");
            assert!(sink.poll_at().is_none_or(|at| at.ns_since(now) <= FULL_RETRY_NS));
            now = now.plus_ns(FULL_RETRY_NS);
            sink.turn(now);
            thread::yield_now();
        }
        assert_eq!(sink.finish(TIMEOUT).unwrap().written, given.len() as u64);
        assert!(done.1.recv_timeout(TIMEOUT).unwrap() == given);
        thread.join().unwrap();
    }

    #[test]
    fn sink_with_closed_pipe_finishes_without_error() {
        let (reader, mut sink) = pipe();
        drop(reader);
        sink.payload(0, &[0x47; 188]);
        let report = sink.finish(TIMEOUT).unwrap();
        assert!(report.reader_gone);
        assert_eq!((report.written, report.analysis.packets), (0, 1));
    }

    #[test]
    fn sink_finish_with_blocked_output_times_out() {
        let (reader, mut sink) = pipe();
        sink.payload(0, &vec![0x47; 188 * 1000]); // more than a pipe holds
        let error = sink.finish(Duration::from_millis(100)).unwrap_err().to_string();
        assert!(error.contains("output -") && error.contains("takes no more"), "{error}");
        drop(reader);
    }

    #[test]
    fn sink_on_full_disk_reports_path_and_cause() {
        let mut sink = SinkWriter::start(&Output::File("/dev/full".into()), None).unwrap();
        sink.payload(0, &[0x47; 188]);
        let error = sink.finish(TIMEOUT).unwrap_err().to_string();
        assert!(
            error.contains("/dev/full") && error.contains("No space left") && error.contains("free some"),
            "{error}"
        );
    }

    #[test]
    fn sink_is_gone_after_output_failure() {
        let mut sink = SinkWriter::start(&Output::File("/dev/full".into()), None).unwrap();
        let deadline = std::time::Instant::now() + TIMEOUT;
        while !sink.is_gone() {
            assert!(std::time::Instant::now() < deadline, "the failure was not noticed");
            sink.payload(0, &[0x47; BLOCK_BYTES]);
        }
        assert!(sink.finish(TIMEOUT).is_err());
    }

    #[test]
    fn outputs_that_cannot_be_opened_fail_at_once() {
        let Err(error) = SinkWriter::start(&Output::File("/nonexistent/x.ts".into()), None) else { panic!() };
        assert!(error.to_string().contains("create its directory"), "{error}");
        assert!(SinkWriter::start(&Output::Null, Some(Path::new("/nonexistent/x.ts"))).is_err());
    }

    #[test]
    fn sink_start_with_invalid_reference_keeps_existing_recording() {
        let dir = tempfile::tempdir().unwrap();
        let recording = dir.path().join("copy.ts");
        std::fs::write(&recording, b"an earlier recording").unwrap();
        let link = dir.path().join("link.ts");
        std::os::unix::fs::symlink(&recording, &link).unwrap();
        let output = Output::File(recording.clone());
        for reference in [&dir.path().join("misspelt.ts"), &recording, &link] {
            assert!(SinkWriter::start(&output, Some(reference)).is_err(), "{reference:?}");
            assert_eq!(std::fs::read(&recording).unwrap(), b"an earlier recording");
        }
    }
}
