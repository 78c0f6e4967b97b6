//! Fills the gaps in the clock of transport streams that ffmpeg writes.
//!
//! ffmpeg puts clock references (PCR) into video packets only, one for each picture. In a gap
//! without pictures, because audio begins earlier or ends later, or the video stands still, it
//! writes none, and the sending rate is undefined. ISO/IEC 13818-1 section 2.7.2 allows at most 100
//! ms between two. This stage inserts packets that hold nothing but a clock reference, computed
//! from the decoding time stamps of all streams:
//!
//! ```text
//!  ffmpeg ──► input ──► held: packets since the last clock value ──► out ──► pass
//!                         the next value sets their times, and so the places of missing values
//! ```
//!
//! It also moves the access unit delimiter of H.264 back to the front if the bit stream filter that
//! repeats parameter sets has written them before it (ISO/IEC 14496-10 section 7.4.1.2.3).
//!
//! The result depends on the stream alone, not on how it is split into reads. A gap is filled while
//! it is read, so memory does not grow with its length.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_media::codec::{StreamKind, VideoSyntax};
use millrace_media::ts_packet::{PCR_MODULUS, PesStart, SYSTEM_HZ, SYSTEM_TICKS_PER_MEDIA_TICK, TsPacket};
use millrace_media::ts_write::clock_packet;

use super::program::Programs;
use crate::limits::ingest::{MAX_HELD_FOR_CLOCK_BYTES, MAX_PCR_INTERVAL_TICKS};

/// Delay of ffmpeg's clock behind the decoding time stamps that it writes: its `-muxdelay`.
pub(crate) const MUX_DELAY_SECS: &str = "0.7";
const MUX_DELAY_TICKS: u64 = SYSTEM_HZ * 7 / 10;
/// Packets held before a long gap are released within this time, so that all of them arrive before
/// they are decoded.
const SPREAD_TICKS: u64 = SYSTEM_HZ / 2;
/// Packets after the last clock value need no further clock references unless they last longer than
/// this: in every film the audio ends shortly after the last picture.
const END_TICKS: u64 = SYSTEM_HZ / 4;
/// Number of clock references of a long gap written at a time.
const PACKETS_AT_A_TIME: usize = 256;

/// A stream whose time stamps drive the clock.
#[derive(Debug)]
struct TimedStream {
    pid: u16,
    kind: StreamKind,
    /// Clock at which its last PES packet was due.
    due: u64,
    /// Time between its last two PES packets.
    step: u64,
    /// TS packets of its last PES packet and of the one before.
    packets: u64,
    packets_before: u64,
}

impl TimedStream {
    fn new(pid: u16, kind: StreamKind) -> Self {
        Self { pid, kind, due: 0, step: 0, packets: 0, packets_before: 0 }
    }

    fn starts(&mut self, due: u64) {
        self.step = if self.due > 0 { due.saturating_sub(self.due) } else { 0 };
        self.due = due;
        self.packets_before = std::mem::replace(&mut self.packets, 0);
    }

    /// Estimated end of its last PES packet.
    fn end(&self) -> u64 {
        let step = self.step.min(MUX_DELAY_TICKS);
        match self.kind == StreamKind::Audio && self.packets_before > 0 {
            true => self.due + step * self.packets.min(self.packets_before) / self.packets_before,
            false => self.due + step,
        }
    }
}

/// Pending clock references, at even distances up to the next value.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: u64,
    ticks: u64,
    /// Number of intervals in the gap, and number of the next clock reference.
    parts: u64,
    next: u64,
}

impl Gap {
    fn new(from: u64, ticks: u64) -> Self {
        Self { from, ticks, parts: ticks.div_ceil(MAX_PCR_INTERVAL_TICKS), next: 1 }
    }

    /// Time of the next clock reference after the beginning of the gap.
    fn next_ticks(&self) -> Option<u64> {
        let ticks = u128::from(self.ticks) * u128::from(self.next) / u128::from(self.parts.max(1));
        (self.next < self.parts).then_some(ticks as u64)
    }
}

/// See the module's text. [`ClockFiller::push`] takes ffmpeg's bytes, [`ClockFiller::read`] returns
/// them with a complete clock.
#[derive(Debug, Default)]
pub(crate) struct ClockFiller {
    programs: Programs,
    pcr_pid: Option<u16>,
    tracks: Vec<TimedStream>,
    /// Pushed bytes; those before `taken` are processed.
    input: Vec<u8>,
    taken: usize,
    held: Vec<u8>,
    /// Bytes ready to read; those before `given` were read.
    out: Vec<u8>,
    given: usize,
    gap: Option<Gap>,
    /// The last clock value. It does not wrap.
    now: Option<u64>,
    /// Continuity counter of the last packet on the clock's PID.
    counter: u8,
}

impl ClockFiller {
    /// Creates a filler for the beginning of a stream. ffmpeg counts packets from 0.
    pub(crate) fn new() -> Self {
        Self { counter: 15, ..Self::default() }
    }

    /// Adds the next bytes of ffmpeg.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.input.drain(..self.taken);
        self.taken = 0;
        self.input.extend_from_slice(bytes);
    }

    /// Releases the held packets at the end of ffmpeg's output, after [`ClockFiller::read`] has
    /// returned everything. The clock continues to the end of the last frame if that is far away.
    pub(crate) fn end(&mut self) {
        let end = self.tracks.iter().map(TimedStream::end).max();
        if let (Some(now), Some(end)) = (self.now, end)
            && end > now + END_TICKS
        {
            self.release(Gap::new(now, end - now));
        }
        // An incomplete packet is passed on to the framer, which reports it.
        self.held.extend_from_slice(&self.input[self.taken..]);
        self.taken = self.input.len();
        self.flush_held();
    }

    /// Reads ready bytes; returns 0 if more must be pushed first.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> usize {
        loop {
            let ready = &self.out[self.given..];
            if !ready.is_empty() {
                let count = ready.len().min(room.len());
                room[..count].copy_from_slice(&ready[..count]);
                self.given += count;
                return count;
            }
            self.out.clear();
            self.given = 0;
            if let Some(gap) = self.gap {
                self.fill(gap);
            } else if !self.process_one() {
                return 0;
            }
        }
    }

    /// Processes the next packet of the input; `false`: there is none.
    fn process_one(&mut self) -> bool {
        let Some(packet) = self.input.get(self.taken..).and_then(|rest| rest.first_chunk()).copied() else {
            return false;
        };
        self.taken += TS_PACKET_BYTES;
        self.packet(packet);
        true
    }

    fn packet(&mut self, mut bytes: [u8; TS_PACKET_BYTES]) {
        let packet = TsPacket(&bytes);
        let pid = packet.pid();
        let track = self.tracks.iter().position(|track| track.pid == pid);
        if track.is_none() && self.programs.table_pids().any(|table| table == pid) {
            self.table(packet);
        }
        let is_clock_pid = self.pcr_pid == Some(pid);
        let value = packet.adaptation().and_then(|field| field.pcr()).filter(|_| is_clock_pid);
        let due = track.and_then(|_| self.due(packet));
        if let (Some(track), Some(due)) = (track, due) {
            self.tracks[track].starts(due);
        }
        let is_marked = packet.adaptation().is_some_and(|field| field.is_random_access());
        if let Some(track) = track {
            self.tracks[track].packets += 1;
            if due.is_some() && is_marked && self.tracks[track].kind == StreamKind::Video(VideoSyntax::H264) {
                put_delimiter_first(&mut bytes);
            }
        }
        match value {
            Some(value) => {
                let value = self.unwrap(value);
                if self.now.is_some_and(|now| value <= now) {
                    remove_clock(&mut bytes);
                } else {
                    self.reach(value);
                }
            }
            None => {
                if let Some(due) = due
                    && self.now.is_none_or(|now| due > now.saturating_add(MAX_PCR_INTERVAL_TICKS))
                {
                    self.reach(due);
                    self.held_clock(due);
                }
            }
        }
        self.held.extend_from_slice(&bytes);
        if self.held.len() >= MAX_HELD_FOR_CLOCK_BYTES {
            self.flush_held();
        }
    }

    #[cold]
    fn table(&mut self, packet: TsPacket<'_>) {
        if !self.programs.push(packet).changed {
            return;
        }
        let Some(pmt) = self.programs.chosen() else { return };
        self.pcr_pid = Some(pmt.pcr_pid);
        self.tracks.retain(|track| pmt.streams.iter().any(|stream| stream.pid == track.pid));
        for stream in pmt.streams.iter().filter(|stream| stream.kind != StreamKind::Other) {
            if !self.tracks.iter().any(|track| track.pid == stream.pid) {
                self.tracks.push(TimedStream::new(stream.pid, stream.kind));
            }
        }
    }

    /// Clock value at which ffmpeg writes the PES packet that begins here.
    fn due(&self, packet: TsPacket<'_>) -> Option<u64> {
        if !packet.starts_unit() {
            return None;
        }
        let stamp = PesStart::parse(packet.payload())?.decode_stamp? * SYSTEM_TICKS_PER_MEDIA_TICK;
        Some(self.unwrap((stamp + PCR_MODULUS - MUX_DELAY_TICKS) % PCR_MODULUS))
    }

    /// Converts a clock value to the nearest one on the clock that does not wrap.
    fn unwrap(&self, value: u64) -> u64 {
        // Start one modulus above zero, so that values slightly before the first one do not
        // underflow.
        let Some(now) = self.now else { return PCR_MODULUS + value };
        let ahead = (value + PCR_MODULUS - now % PCR_MODULUS) % PCR_MODULUS;
        if ahead < PCR_MODULUS / 2 { now + ahead } else { (now + ahead).saturating_sub(PCR_MODULUS) }
    }

    /// Advances the clock to `value` and releases the packets held up to then.
    fn reach(&mut self, value: u64) {
        if let Some(now) = self.now {
            self.release(Gap::new(now, value - now));
        }
        self.now = Some(value);
    }

    /// Releases the held packets and inserts the missing clock references. Those of a long gap
    /// follow in [`ClockFiller::fill`].
    fn release(&mut self, mut gap: Gap) {
        let held = std::mem::take(&mut self.held);
        let spread = gap.ticks.clamp(1, SPREAD_TICKS);
        let (all, mut written) = ((held.len() / TS_PACKET_BYTES) as u64, 0);
        while let Some(ticks) = gap.next_ticks().filter(|&ticks| ticks < spread) {
            // At least one packet goes first: it may carry the clock value at which the gap begins.
            let packets = (all * ticks / spread).max(1).min(all);
            let upto = packets as usize * TS_PACKET_BYTES;
            self.give(&held[written..upto]);
            written = upto;
            self.clock(gap.from + ticks);
            gap.next += 1;
        }
        self.give(&held[written..]);
        self.gap = gap.next_ticks().map(|_| gap);
        self.held = held;
        self.held.clear();
    }

    fn fill(&mut self, mut gap: Gap) {
        for _ in 0..PACKETS_AT_A_TIME {
            let Some(ticks) = gap.next_ticks() else { break };
            self.clock(gap.from + ticks);
            gap.next += 1;
        }
        self.gap = gap.next_ticks().map(|_| gap);
    }

    fn flush_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        // The clock references of the gap precede the held packets.
        while let Some(gap) = self.gap {
            self.fill(gap);
        }
        self.give(&held);
        self.held = held;
        self.held.clear();
    }

    /// Writes whole packets to the output.
    fn give(&mut self, bytes: &[u8]) {
        if let Some(pid) = self.pcr_pid {
            let packets = bytes.as_chunks().0.iter().map(TsPacket);
            let last = packets.rev().find(|packet| packet.pid() == pid);
            self.counter = last.map_or(self.counter, TsPacket::continuity);
        }
        self.out.extend_from_slice(bytes);
    }

    /// Writes a clock reference to the output.
    fn clock(&mut self, value: u64) {
        let Some(pid) = self.pcr_pid else { return };
        self.out.extend(clock_packet(pid, self.counter, value % PCR_MODULUS));
    }

    /// Inserts a clock reference before the current packet. It repeats the counter of the last
    /// packet written, because all held packets have been released.
    fn held_clock(&mut self, value: u64) {
        let Some(pid) = self.pcr_pid else { return };
        self.held.extend(clock_packet(pid, self.counter, value % PCR_MODULUS));
    }
}

/// Moves the access unit delimiter of a picture before the parameter sets that precede it, if all
/// of them lie in the packet.
fn put_delimiter_first(bytes: &mut [u8; TS_PACKET_BYTES]) {
    const DELIMITER: u8 = 9;
    let payload = TsPacket(bytes).payload();
    let Some(stream) = PesStart::parse(payload).map(|start| start.payload) else { return };
    let from = TS_PACKET_BYTES - stream.len();
    // Start codes of four bytes, as bit stream filters write them before parameter sets and delimiters, or of three.
    let codes = || stream.windows(4).enumerate().filter(|(_, window)| window[..3] == [0, 0, 1]);
    let begins = |at: usize| if at > 0 && stream[at - 1] == 0 { at - 1 } else { at };
    let mut units = codes().skip_while(|(_, window)| matches!(window[3] & 0x1f, 7 | 8));
    let Some((delimiter, _)) = units.next().filter(|(_, window)| window[3] & 0x1f == DELIMITER) else {
        return;
    };
    let Some((next, _)) = units.next() else { return };
    let (delimiter, next) = (begins(delimiter), begins(next));
    bytes[from..from + next].rotate_right(next - delimiter);
}

/// Replaces the clock reference of a packet by stuffing.
fn remove_clock(bytes: &mut [u8; TS_PACKET_BYTES]) {
    const FLAGS: usize = 5;
    bytes[FLAGS] &= !0x10;
    bytes[FLAGS + 1..FLAGS + 7].fill(0xff);
}

#[cfg(test)]
#[path = "clock_fill_tests.rs"]
mod tests;
