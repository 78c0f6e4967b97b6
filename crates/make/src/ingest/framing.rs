//! Finds the packets in a stream of bytes: 188 bytes each, or 192 with a time stamp before (Blu-ray's M2TS), or 204
//! with a Reed-Solomon suffix (DVB); steps over damage.
//!
//! A packet is taken when its own sync byte and that of the next packet are in place. Where the
//! next one is missing, the first place followed by [`CONFIRM`] consecutive packets decides:
//!
//! ```text
//!   s            s+stride                          packet s is
//!   |47 ........ |?? ........ |47 ... |47 ...      kept: the grid goes on, only sync bytes were hit
//!   |47 ....|47 ........ |47 ... |47 ...           dropped: a later packet begins inside it, so its end is missing
//!   |47 ........ |?? .....|47 ... |47 ...          kept: the damage lies behind it
//! ```

use std::ops::Range;

use millrace_core::limits::TS_PACKET_BYTES;
pub(crate) use millrace_core::limits::volume::BUFFER_BYTES;

use millrace_media::ts_packet::SYNC;

/// Packets that must follow each other before a place counts as the start of a packet. A chance hit has
/// probability 2^-32 at each byte.
const CONFIRM: usize = 4;
/// Packets that must follow each other before a file counts as a transport stream at all.
const CONFIRM_FILE: usize = 8;

/// How packets lie in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// 188 bytes each, nothing between.
    Plain,
    /// Four bytes (copy permission and arrival time) before each packet.
    M2ts,
    /// Sixteen bytes of outer code behind each packet (ETSI EN 300 429).
    ReedSolomon,
}

impl Framing {
    /// Bytes from one packet to the next.
    pub fn stride(self) -> usize {
        match self {
            Self::Plain => TS_PACKET_BYTES,
            Self::M2ts => 192,
            Self::ReedSolomon => 204,
        }
    }

    /// Bytes before the sync byte.
    fn lead(self) -> usize {
        if self == Self::M2ts { 4 } else { 0 }
    }

    /// Returns how many bytes of the last packet must be there: bytes behind the 188 may be cut
    /// off.
    fn needed(self) -> usize {
        self.lead() + TS_PACKET_BYTES
    }

    /// Whether `want` packets follow each other from `at` on. Where the bytes end before that, those that are left
    /// decide if they are at least `least`, and a single one only if it ends exactly there.
    fn confirmed(self, bytes: &[u8], at: usize, want: usize, least: usize) -> bool {
        let mut found = 0;
        while found < want {
            let packet = at + found * self.stride();
            match bytes.get(packet + self.lead()) {
                Some(&SYNC) if packet + self.needed() <= bytes.len() => found += 1,
                Some(&SYNC) | None => break,
                Some(_) => return false,
            }
        }
        let left = bytes.len().saturating_sub(at);
        let exact = left == self.stride() || left == self.needed();
        found == want || found >= least && (found >= 2 || exact)
    }

    /// Whether the bytes from `at` are too few to decide.
    fn undecided(self, bytes: &[u8], at: usize) -> bool {
        at + (CONFIRM - 1) * self.stride() + self.needed() > bytes.len()
    }
}

/// Returns the layout of packets in a source that begins with `head`, and the number of bytes
/// before the first packet; `None` if it is not a transport stream. `whole`: `head` is the entire
/// source.
pub(crate) fn detect(head: &[u8], whole: bool) -> Option<(Framing, usize)> {
    let starts = |framing: Framing, at: usize| {
        // A file of a few packets must consist of them; else chance would find two packets at the end of anything.
        let least = if whole && at < framing.stride() { 1 } else { CONFIRM_FILE };
        head.get(at + framing.lead()) == Some(&SYNC) && framing.confirmed(head, at, CONFIRM_FILE, least)
    };
    [Framing::Plain, Framing::M2ts, Framing::ReedSolomon]
        .into_iter()
        .filter_map(|framing| Some((framing, (0..head.len()).find(|&at| starts(framing, at))?)))
        .min_by_key(|&(_, at)| at)
}

/// Bytes that were left out, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Bytes before the first packet.
    pub before_bytes: u64,
    /// Bytes of damage between packets.
    pub bytes: u64,
    /// Places of damage.
    pub places: u64,
    /// Offset in the source of the first damage.
    pub first_offset: u64,
    /// Bytes of a cut packet, or of something else, at the end.
    pub tail_bytes: u64,
}

/// Turns reads of any length into runs of whole packets, 188 bytes each, in place.
///
/// Call order: read into [`Framer::space`], tell [`Framer::filled`] (or [`Framer::end`]), take [`Framer::next_run`]
/// until it gives none.
#[derive(Debug)]
pub(crate) struct Framer {
    framing: Framing,
    buffer: Vec<u8>,
    /// The bytes read and not yet returned.
    held: Range<usize>,
    /// Offset in the source of `held.start`.
    offset: u64,
    ended: bool,
    /// Whether a packet begins at `held.start`.
    synced: bool,
    /// Whether any packet was found.
    any: bool,
    /// Bytes dropped since step was lost.
    gap_bytes: u64,
    /// Whether bytes were dropped before the next run.
    gap_before_run: bool,
    skipped: Skipped,
}

impl Framer {
    /// Creates a framer for packets of 188 bytes until [`Framer::set_framing`] changes this; the
    /// buffer has at least 4 KiB.
    pub(crate) fn new(buffer_bytes: usize) -> Self {
        Self {
            framing: Framing::Plain,
            buffer: vec![0; buffer_bytes.max(4096)],
            held: 0..0,
            offset: 0,
            ended: false,
            synced: false,
            any: false,
            gap_bytes: 0,
            gap_before_run: false,
            skipped: Skipped::default(),
        }
    }

    /// How packets lie in the source. Before the first [`Framer::next_run`].
    pub(crate) fn set_framing(&mut self, framing: Framing) {
        self.framing = framing;
    }

    /// Returns the bytes read and not yet returned.
    pub(crate) fn held(&self) -> &[u8] {
        &self.buffer[self.held.clone()]
    }

    /// Returns the number of bytes read.
    pub(crate) fn offset(&self) -> u64 {
        self.offset + self.held.len() as u64
    }

    /// Room for the next read; never empty.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.held.start > 0 {
            self.buffer.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
        }
        &mut self.buffer[self.held.end..]
    }

    /// `n` bytes have been read into [`Framer::space`].
    ///
    /// # Panics
    /// If `n` is more than the room there was.
    pub(crate) fn filled(&mut self, n: usize) {
        let room = self.buffer.len() - self.held.end;
        assert!(n <= room, "{n} bytes read into room for {room}");
        self.held.end += n;
    }

    /// There is no more to read.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Returns the bytes left out until now.
    pub(crate) fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// The next run of packets, a multiple of 188 bytes long, and whether bytes are missing before it; `None`: read on.
    pub(crate) fn next_run(&mut self) -> Option<(&[u8], bool)> {
        loop {
            let count = if self.synced { self.look() } else { self.search() }?;
            if count > 0 {
                self.any = true;
                let damaged = std::mem::take(&mut self.gap_before_run);
                let run = self.compact(count);
                return Some((&self.buffer[run], damaged));
            }
        }
    }

    /// Takes `count` packets from the front; returns where their 188-byte packets now lie, back to back.
    fn compact(&mut self, count: usize) -> Range<usize> {
        let (from, stride, lead) = (self.held.start, self.framing.stride(), self.framing.lead());
        if self.framing != Framing::Plain {
            for i in 0..count {
                let packet = from + i * stride + lead;
                self.buffer.copy_within(packet..packet + TS_PACKET_BYTES, from + i * TS_PACKET_BYTES);
            }
        }
        // What follows the last packet's 188 bytes may be missing at the end of the source.
        self.drop_front((count * stride).min(self.held.len()));
        from..from + count * TS_PACKET_BYTES
    }

    /// In step: how many packets can go; 0: look again; `None`: more bytes are needed, or there are none.
    fn look(&mut self) -> Option<usize> {
        let (stride, lead) = (self.framing.stride(), self.framing.lead());
        let bytes = &self.buffer[self.held.clone()];
        // The first packet's sync byte is known to be in place; a packet goes when the next one's is, too.
        let mut count = 0;
        let mut next = stride + lead;
        while bytes.get(next) == Some(&SYNC) {
            count += 1;
            next += stride;
        }
        if count > 0 {
            return Some(count);
        }
        if bytes.len() > stride + lead {
            return self.suspect();
        }
        if !self.ended {
            return None;
        }
        if bytes.len() >= self.framing.needed() {
            return Some(1);
        }
        self.drop_tail();
        None
    }

    /// In step at a packet whose successor has no sync byte: decides whether it is kept (see the module's picture).
    fn suspect(&mut self) -> Option<usize> {
        let stride = self.framing.stride();
        let bytes = &self.buffer[self.held.clone()];
        if !self.ended && bytes.len() < self.buffer.len() && self.framing.undecided(bytes, 2 * stride) {
            return None;
        }
        let least = if self.ended { 2 } else { CONFIRM };
        let confirmed = |at| self.framing.confirmed(bytes, at, CONFIRM, least);
        let inside = if confirmed(2 * stride) { None } else { (1..stride).find(|&at| confirmed(at)) };
        match inside {
            Some(at) => {
                self.skip(at);
                self.regain();
                Some(0)
            }
            None => {
                self.synced = false;
                Some(1)
            }
        }
    }

    /// After a loss of sync: drops the bytes before the next packet. Returns as [`Framer::look`]
    /// does.
    fn search(&mut self) -> Option<usize> {
        let bytes = &self.buffer[self.held.clone()];
        let least = if self.ended { 1 } else { CONFIRM };
        let lead = self.framing.lead();
        let found =
            (0..bytes.len()).take_while(|&at| self.ended || !self.framing.undecided(bytes, at)).find(|&at| {
                bytes.get(at + lead) == Some(&SYNC) && self.framing.confirmed(bytes, at, CONFIRM, least)
            });
        if let Some(at) = found {
            self.skip(at);
            self.regain();
            return Some(0);
        }
        if self.ended {
            self.drop_tail();
        } else {
            let searched = (0..bytes.len()).take_while(|&at| !self.framing.undecided(bytes, at)).count();
            self.skip(searched);
        }
        None
    }

    fn skip(&mut self, bytes: usize) {
        self.gap_bytes += bytes as u64;
        self.drop_front(bytes);
    }

    /// A packet begins here: the bytes dropped before it are one place of damage.
    fn regain(&mut self) {
        self.synced = true;
        let gap = std::mem::take(&mut self.gap_bytes);
        if !self.any {
            self.skipped.before_bytes += gap;
        } else if gap > 0 {
            if self.skipped.places == 0 {
                self.skipped.first_offset = self.offset - gap;
            }
            self.skipped.places += 1;
            self.skipped.bytes += gap;
            self.gap_before_run = true;
        }
    }

    fn drop_tail(&mut self) {
        self.skipped.tail_bytes += std::mem::take(&mut self.gap_bytes) + self.held.len() as u64;
        self.drop_front(self.held.len());
    }

    fn drop_front(&mut self, bytes: usize) {
        self.held.start += bytes;
        self.offset += bytes as u64;
    }
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
