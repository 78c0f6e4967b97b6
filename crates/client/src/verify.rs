//! Byte check: do the bytes received match the file at the position where they belong?
//!
//! A run of payloads is first aligned with the reference: by sequence number (packet number + 1
//! modulo 2^16, as Millrace numbers a title), else by content, with a search through the file in
//! steps of one TS packet. From there every payload's position follows from the one before it and
//! from the gaps, so a wrong, missing or repeated byte is a difference and never a reason to align
//! again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::wire::rtp::FIRST_SEQUENCE;
use serde::Serialize;

use crate::error::ClientError;
use crate::limits::{MAX_SEARCHES, VERIFY_WINDOW_BYTES};

/// Payloads that are looked at together to find a run's place: one alone may be stuffing, or damaged.
const ALIGN_PAYLOADS: usize = 8;

/// The first byte that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Offset in the reference.
    pub position: u64,
    /// RTP sequence number of the packet.
    pub sequence: u16,
    /// The reference's byte at this position; `None` beyond its end.
    pub expected: Option<u8>,
    /// The byte received.
    pub got: u8,
}

/// Result of the byte check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByteCheck {
    /// Bytes compared, equal or not.
    pub checked_bytes: u64,
    /// Bytes that differ.
    pub different_bytes: u64,
    /// Bytes whose place in the reference could not be found.
    pub unaligned_bytes: u64,
    /// The first byte that differs.
    pub first_difference: Option<Difference>,
    /// Offset in the reference where each run began, at most 64.
    pub starts: Vec<Option<u64>>,
    /// Length of the reference.
    pub reference_bytes: u64,
}

struct Reference {
    path: PathBuf,
    file: File,
    len: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl Reference {
    fn error(path: &Path, source: io::Error) -> ClientError {
        ClientError::Reference { path: path.to_owned(), source }
    }

    fn open(path: &Path) -> Result<Self, ClientError> {
        let opened = File::open(path).and_then(|file| file.metadata().map(|meta| (file, meta.len())));
        let (file, len) = opened.map_err(|source| Self::error(path, source))?;
        Ok(Self { path: path.to_owned(), file, len, window: Vec::new(), window_at: 0 })
    }

    /// Bytes `at..at + len`, fewer at the end of the file.
    fn get(&mut self, at: u64, len: usize) -> Result<&[u8], ClientError> {
        let inside = at >= self.window_at && at + len as u64 <= self.window_at + self.window.len() as u64;
        if !inside {
            let wanted = (self.len.saturating_sub(at)).min(VERIFY_WINDOW_BYTES.max(len) as u64) as usize;
            self.window.resize(wanted, 0);
            self.window_at = at;
            self.file
                .read_exact_at(&mut self.window, at)
                .map_err(|source| Self::error(&self.path, source))?;
        }
        let from = (at - self.window_at) as usize;
        Ok(&self.window[from..(from + len).min(self.window.len())])
    }

    fn equals(&mut self, at: u64, bytes: &[u8]) -> Result<bool, ClientError> {
        Ok(self.get(at, bytes.len())? == bytes)
    }
}

/// A payload that waits for its run's place to be found.
struct UnplacedPayload {
    ext: u64,
    /// Bytes from the run's start.
    offset: u64,
    bytes: Vec<u8>,
}

/// Compares payloads in order with a reference file.
pub struct Verifier {
    reference: Reference,
    result: ByteCheck,
    /// Place of the next payload; `None` until the run is aligned.
    place: Option<u64>,
    waiting: Vec<UnplacedPayload>,
    /// Bytes from the run's start to the next payload, while it is not aligned.
    offset: u64,
    /// Length of a full payload of the run.
    nominal: usize,
    /// The run was searched for in vain.
    hopeless: bool,
}

impl Verifier {
    /// Opens the reference.
    ///
    /// # Errors
    /// [`ClientError::Reference`].
    pub fn open(path: &Path) -> Result<Self, ClientError> {
        let reference = Reference::open(path)?;
        let result = ByteCheck { reference_bytes: reference.len, ..ByteCheck::default() };
        Ok(Self {
            reference,
            result,
            place: None,
            waiting: Vec::new(),
            offset: 0,
            nominal: 0,
            hopeless: false,
        })
    }

    /// The next payload begins a run: its place is unknown.
    ///
    /// # Errors
    /// The reference cannot be read.
    pub fn begin_run(&mut self) -> Result<(), ClientError> {
        self.align()?;
        (self.place, self.offset, self.nominal, self.hopeless) = (None, 0, 0, false);
        Ok(())
    }

    /// `count` packets are missing before the next payload.
    pub fn gap(&mut self, count: u64) {
        let bytes = count * self.nominal as u64;
        self.offset += bytes;
        self.place = self.place.map(|place| place + bytes);
    }

    /// Checks the payload of packet `ext`.
    ///
    /// # Errors
    /// The reference cannot be read.
    pub fn payload(&mut self, ext: u64, bytes: &[u8]) -> Result<(), ClientError> {
        self.nominal = self.nominal.max(bytes.len());
        if self.place.is_some() {
            return self.compare(ext, bytes);
        }
        if self.hopeless {
            self.result.unaligned_bytes += bytes.len() as u64;
            return Ok(());
        }
        self.waiting.push(UnplacedPayload { ext, offset: self.offset, bytes: bytes.to_vec() });
        self.offset += bytes.len() as u64;
        if self.waiting.len() == ALIGN_PAYLOADS { self.align() } else { Ok(()) }
    }

    /// The result; what still waits is aligned first.
    ///
    /// # Errors
    /// The reference cannot be read.
    pub fn finish(mut self) -> Result<ByteCheck, ClientError> {
        self.align()?;
        Ok(self.result)
    }

    fn compare(&mut self, ext: u64, bytes: &[u8]) -> Result<(), ClientError> {
        let Some(place) = self.place else { return Ok(()) };
        self.place = Some(place + bytes.len() as u64);
        self.result.checked_bytes += bytes.len() as u64;
        let expected = self.reference.get(place.min(self.reference.len), bytes.len())?;
        if expected == bytes {
            return Ok(());
        }
        for (at, got) in bytes.iter().enumerate() {
            let expected = expected.get(at).copied();
            if expected != Some(*got) {
                self.result.different_bytes += 1;
                let position = place + at as u64;
                let found = Difference { position, sequence: ext as u16, expected, got: *got };
                self.result.first_difference.get_or_insert(found);
            }
        }
        Ok(())
    }

    /// Finds the place of the run from the payloads that wait, and compares them.
    fn align(&mut self) -> Result<(), ClientError> {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return Ok(());
        }
        let start = match self.by_sequence(&waiting)? {
            Some(start) => Some(start),
            None => self.by_content(&waiting)?,
        };
        if self.result.starts.len() < 64 {
            self.result.starts.push(start);
        }
        let Some(start) = start else {
            self.hopeless = true;
            self.result.unaligned_bytes += waiting.iter().map(|w| w.bytes.len() as u64).sum::<u64>();
            return Ok(());
        };
        for UnplacedPayload { ext, offset, bytes } in waiting {
            self.place = Some(start + offset);
            self.compare(ext, &bytes)?;
        }
        self.place = Some(start + self.offset);
        Ok(())
    }

    /// How many of the payloads that wait are found if the run begins at `start`.
    fn score(&mut self, waiting: &[UnplacedPayload], start: u64) -> Result<usize, ClientError> {
        let mut score = 0;
        for w in waiting {
            score += usize::from(self.reference.equals(start + w.offset, &w.bytes)?);
        }
        Ok(score)
    }

    /// Whether this many payloads found are enough: more than half, so that neither stuffing nor
    /// damage misleads.
    fn is_enough(waiting: &[UnplacedPayload], score: usize) -> bool {
        2 * score > waiting.len()
    }

    fn by_sequence(&mut self, waiting: &[UnplacedPayload]) -> Result<Option<u64>, ClientError> {
        let step = self.nominal as u64;
        let mut best = (0, None);
        let packets = self.reference.len.div_ceil(step.max(1));
        let first = waiting[0].ext.wrapping_sub(u64::from(FIRST_SEQUENCE)) % 65_536;
        for number in (first..packets).step_by(65_536) {
            let score = self.score(waiting, number * step)?;
            if Self::is_enough(waiting, score) && score > best.0 {
                best = (score, Some(number * step));
            }
        }
        Ok(best.1)
    }

    fn by_content(&mut self, waiting: &[UnplacedPayload]) -> Result<Option<u64>, ClientError> {
        let mut best = (0, None);
        for sought in waiting.iter().filter(|w| !w.bytes.is_empty()).take(MAX_SEARCHES) {
            let mut at = 0;
            while let Some(found) = self.search(at, &sought.bytes)? {
                at = found + TS_PACKET_BYTES as u64;
                let Some(start) = found.checked_sub(sought.offset) else { continue };
                let score = self.score(waiting, start)?;
                if score == waiting.len() {
                    return Ok(Some(start));
                }
                if Self::is_enough(waiting, score) && score > best.0 {
                    best = (score, Some(start));
                }
            }
            if best.1.is_some() {
                break;
            }
        }
        Ok(best.1)
    }

    /// The first place from `at` on, in steps of one TS packet, where the reference has `bytes`.
    fn search(&mut self, mut at: u64, bytes: &[u8]) -> Result<Option<u64>, ClientError> {
        while at + bytes.len() as u64 <= self.reference.len {
            let window = self.reference.get(at, VERIFY_WINDOW_BYTES.max(bytes.len()))?;
            let steps = (window.len() - bytes.len()) / TS_PACKET_BYTES + 1;
            let found = (0..steps).find(|step| window[step * TS_PACKET_BYTES..].starts_with(bytes));
            if let Some(step) = found {
                return Ok(Some(at + (step * TS_PACKET_BYTES) as u64));
            }
            at += (steps * TS_PACKET_BYTES) as u64;
        }
        Ok(None)
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
