//! The file of a capture: blocks of pcapng (draft-ietf-opsawg-pcapng), little-endian.
//!
//! ```text
//!   section header, interface ─ packet, packet, ... ─ statistics: how many packets, how many are missing, why it ends
//! ```

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

use millrace_tcp::ip::LinkLayer;

use super::{Capture, Stamp};
use crate::limits::{CAPTURE_BATCH_BYTES, CAPTURE_END_BYTES};

const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const VERSION: [u16; 2] = [1, 0];
/// Half of a section length that is not known yet.
const UNKNOWN: u32 = u32::MAX;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// Options, of any block and of each kind.
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const APPLICATION: u16 = 4;
const RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;
/// A clock of 10^-9 s.
const NANOSECONDS: u8 = 9;
/// Link types: Ethernet, and packets of IPv4 or IPv6 with nothing in front.
const ETHERNET: u16 = 1;
const RAW_IP: u16 = 101;

/// A block under construction.
struct CaptureBlock<'a> {
    to: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> CaptureBlock<'a> {
    fn new(to: &'a mut Vec<u8>, kind: u32) -> Self {
        let start = to.len();
        to.extend(kind.to_le_bytes());
        // Its length, which is known at the end.
        to.extend([0; 4]);
        Self { to, start }
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.to.extend(bytes);
        while !(self.to.len() - self.start).is_multiple_of(4) {
            self.to.push(0);
        }
        self
    }

    fn half(&mut self, half: u16) -> &mut Self {
        self.to.extend(half.to_le_bytes());
        self
    }

    fn word(&mut self, word: u32) -> &mut Self {
        self.to.extend(word.to_le_bytes());
        self
    }

    /// A time: its high half first, whatever the order of bytes.
    fn time(&mut self, ns: u64) -> &mut Self {
        self.word((ns >> 32) as u32).word(ns as u32)
    }

    fn option(&mut self, code: u16, value: &[u8]) -> &mut Self {
        self.half(code).half(value.len() as u16).bytes(value)
    }

    /// Ends the options and the block.
    fn end(&mut self) {
        self.option(END_OF_OPTIONS, &[]);
        let length = ((self.to.len() - self.start + 4) as u32).to_le_bytes();
        self.to.extend(length);
        self.to[self.start + 4..self.start + 8].copy_from_slice(&length);
    }
}

/// Puts blocks into a file, many at once.
pub(super) struct CaptureWriter {
    file: File,
    name: String,
    max_bytes: u64,
    /// Length of the file: whole blocks.
    written: u64,
    batch: Vec<u8>,
    packets: u64,
    last_ns: u64,
}

impl CaptureWriter {
    pub(super) fn new(file: File, capture: &Capture, link: LinkLayer) -> io::Result<Self> {
        let mut batch = Vec::with_capacity(2 * CAPTURE_BATCH_BYTES);
        let [major, minor] = VERSION;
        let mut block = CaptureBlock::new(&mut batch, SECTION);
        block.word(BYTE_ORDER).half(major).half(minor).word(UNKNOWN).word(UNKNOWN);
        block.option(APPLICATION, b"millrace").end();
        let kind = if matches!(link, LinkLayer::Ethernet { .. }) { ETHERNET } else { RAW_IP };
        CaptureBlock::new(&mut batch, INTERFACE)
            .half(kind)
            .half(0)
            .word(capture.snap_bytes)
            .option(RESOLUTION, &[NANOSECONDS])
            .end();
        let name = capture.file.display().to_string();
        let mut this =
            Self { file, name, max_bytes: capture.max_bytes, written: 0, batch, packets: 0, last_ns: 0 };
        this.flush()?;
        Ok(this)
    }

    /// Adds a packet; `bytes` is the part that was kept.
    pub(super) fn packet(&mut self, stamp: &Stamp, bytes: &[u8]) -> io::Result<()> {
        let start = self.batch.len();
        CaptureBlock::new(&mut self.batch, PACKET)
            .word(0)
            .time(stamp.ns)
            .word(stamp.kept)
            .word(stamp.length)
            .bytes(bytes)
            .option(PACKET_FLAGS, &(stamp.way as u32).to_le_bytes())
            .end();
        if self.written + self.batch.len() as u64 + CAPTURE_END_BYTES > self.max_bytes {
            self.batch.truncate(start);
            self.flush()?;
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it has reached the size that was set"));
        }
        (self.packets, self.last_ns) = (self.packets + 1, stamp.ns);
        if self.batch.len() >= CAPTURE_BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes the finished blocks.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.batch)?;
        self.written += self.batch.len() as u64;
        self.batch.clear();
        Ok(())
    }

    /// The last block: how many packets, how many more there were, and why nothing follows.
    pub(super) fn end(&mut self, lost: u64, why: &str) -> io::Result<()> {
        CaptureBlock::new(&mut self.batch, STATISTICS)
            .word(0)
            .time(self.last_ns)
            .option(COMMENT, why.as_bytes())
            .option(RECEIVED, &(self.packets + lost).to_le_bytes())
            .option(DROPPED, &lost.to_le_bytes())
            .end();
        self.flush()
    }

    /// The file takes no more: ends it after its last whole block, with the statistics if there is
    /// room. Returns the text to report.
    pub(super) fn give_up(&mut self, error: &io::Error, lost: u64) -> String {
        let text = format!(
            "the capture to {} has ended after {} packets: {error}; the engine goes on. Choose another file or a shorter snap length",
            self.name, self.packets
        );
        self.batch.clear();
        // Of both, what fails leaves a file that ends in the middle of a block, which readers can do with.
        let _ = self.file.set_len(self.written).and_then(|()| self.file.seek(SeekFrom::Start(self.written)));
        let _ = self.end(lost, &error.to_string());
        text
    }
}
