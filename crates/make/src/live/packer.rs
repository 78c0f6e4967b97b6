//! TS packets of a live source, packed to the packets of a title.
//!
//! ```text
//!   datagrams ──► TS packets ──► held while a picture is undecided ──► packets of 7, with flags and time
//!                  │ PAT, PMT: which streams                               ▲ at an access point: padding,
//!                  └ PCR: LiveClock                                        │ then the last PAT and PMT
//! ```
//!
//! A viewer joins at an access point, so each begins a packet, and the tables stand in front of it. They are the source's own, with
//! their old continuity counters: a receiver that has them takes them for the duplicates that a stream may have (ISO/IEC 13818-1
//! section 2.4.3.3). Tables of more than one packet cannot be repeated so, and are left to the source.

use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::time::{Instant, MediaTicks};
use millrace_media::codec::StreamKind;
use millrace_media::psi::section_bytes;
use millrace_media::ts_packet::{PID_NULL, PID_PAT, PesStart, SYNC, SYSTEM_TICKS_PER_MEDIA_TICK, TsPacket};

use super::clock::{LiveClock, system_ticks};
use crate::ingest::access::{PictureAccess, PictureLook};
use crate::ingest::program::Programs;
use crate::limits::live::{
    DISCONTINUITY_AFTER_NS, FLUSH_AFTER_NS, MAX_ACCESS_WAIT_NS, MAX_HELD_TS_PACKETS, MIN_ACCESS_GAP_TICKS,
};

type TsBytes = [u8; TS_PACKET_BYTES];

/// A packet of the title.
#[derive(Clone, Copy, Debug)]
pub struct LivePacket<'a> {
    /// As many as [`DEFAULT_PACKET_BYTES`].
    pub bytes: &'a [u8],
    /// As in [`PacketMeta`].
    pub flags: u8,
    /// Never less than that of the packet before.
    pub time: MediaTicks,
    /// Number of the first TS packet in it that begins a picture; of a program without video, a frame of audio.
    pub begins_unit: Option<u8>,
    /// Presentation time stamp of the picture or the audio frame at which a viewer can join here; 90 kHz, 33 bits.
    pub stamp: Option<u64>,
}

/// Where packets go.
pub type LiveSink<'a> = &'a mut dyn FnMut(LivePacket<'_>);

/// A datagram that does not consist of TS packets. Nothing of it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTs {
    /// Anything.
    #[error("not MPEG-TS")]
    Garbage,
    /// TS packets behind an RTP header.
    #[error("MPEG-TS in RTP")]
    Rtp,
}

/// The streams that are looked at.
#[derive(Debug)]
struct FollowedStreams {
    /// PID of the clock; `None` before the first PMT, when any clock counts.
    clock: Option<u16>,
    video: u16,
    /// The audio of a program without video, where every frame is an access point.
    audio: u16,
}

/// Whether packets are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PackerOutput {
    Given,
    Withheld,
    /// From the next access point on; since when it is waited for.
    FromAccess(Instant),
}

/// See the module's text.
#[derive(Debug)]
pub struct LivePacker {
    origin: Instant,
    clock: LiveClock,
    programs: Programs,
    follows: FollowedStreams,
    look: Option<PictureLook>,
    /// TS packets from the start of an undecided picture on.
    held: Vec<u8>,
    pat: Option<TsBytes>,
    pmt: Option<TsBytes>,
    part: [u8; DEFAULT_PACKET_BYTES],
    filled: usize,
    flags: u8,
    begins_unit: Option<u8>,
    time: MediaTicks,
    stamp: Option<u64>,
    /// Of the undecided picture.
    held_stamp: Option<u64>,
    last_access: Option<u64>,
    /// The next clock reference is marked as a discontinuity.
    is_broken: bool,
    last_input: Instant,
    discontinuities: u64,
    output: PackerOutput,
}

impl LivePacker {
    /// Media time begins at `origin`.
    pub fn new(origin: Instant) -> Self {
        Self {
            origin,
            clock: LiveClock::default(),
            programs: Programs::default(),
            follows: FollowedStreams { clock: None, video: PID_NULL, audio: PID_NULL },
            look: None,
            held: Vec::with_capacity(MAX_HELD_TS_PACKETS * TS_PACKET_BYTES),
            pat: None,
            pmt: None,
            part: [0; DEFAULT_PACKET_BYTES],
            filled: 0,
            flags: 0,
            begins_unit: None,
            time: MediaTicks(0),
            stamp: None,
            held_stamp: None,
            last_access: None,
            is_broken: false,
            last_input: origin,
            discontinuities: 0,
            output: PackerOutput::Given,
        }
    }

    /// Gives nothing out any more, and follows the source.
    pub fn withhold(&mut self) {
        self.output = PackerOutput::Withheld;
    }

    /// Gives packets out again, from the next access point on, which is marked as a break. A stream without access points
    /// begins after [`MAX_ACCESS_WAIT_NS`].
    pub fn resume(&mut self, now: Instant) {
        if self.output == PackerOutput::Withheld {
            self.output = PackerOutput::FromAccess(now);
        }
    }

    /// Whether packets are given out.
    pub fn gives(&self) -> bool {
        self.output == PackerOutput::Given
    }

    /// Times that the source's clock jumped, or that it was silent.
    pub fn discontinuities(&self) -> u64 {
        self.discontinuities
    }

    /// Whether the tables of a program have come.
    pub fn has_program(&self) -> bool {
        self.programs.chosen().is_some()
    }

    /// Times that the source had become a second faster than time.
    pub fn hurries(&self) -> u64 {
        self.clock.hurries()
    }

    /// How far the source is ahead of real time.
    pub fn ahead_ns(&self, now: Instant) -> u64 {
        MediaTicks(self.clock.ahead(self.ticks(now)) / SYSTEM_TICKS_PER_MEDIA_TICK).to_ns()
    }

    /// Takes whole TS packets that came at `arrival`.
    ///
    /// # Errors
    /// [`NotTs`].
    pub fn push(&mut self, arrival: Instant, bytes: &[u8], out: LiveSink<'_>) -> Result<(), NotTs> {
        let (packets, rest) = bytes.as_chunks::<TS_PACKET_BYTES>();
        if packets.is_empty() || !rest.is_empty() || packets.iter().any(|packet| packet[0] != SYNC) {
            let is_rtp = bytes.first().is_some_and(|first| first >> 6 == 2)
                && bytes.len() % TS_PACKET_BYTES == 12
                && bytes.get(12) == Some(&SYNC);
            return Err(if is_rtp { NotTs::Rtp } else { NotTs::Garbage });
        }
        if arrival.ns_since(self.last_input) > DISCONTINUITY_AFTER_NS && self.last_access.is_some() {
            self.note_break();
        }
        self.last_input = arrival;
        if let PackerOutput::FromAccess(since) = self.output
            && arrival.ns_since(since) >= MAX_ACCESS_WAIT_NS
        {
            self.begin_output(arrival, out);
        }
        for packet in packets {
            self.take(arrival, packet, out);
        }
        Ok(())
    }

    /// Fills up what waits for more for too long.
    pub fn flush(&mut self, now: Instant, out: LiveSink<'_>) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.decide_untold(now, out);
            self.pad(now, out);
        }
    }

    /// When [`LivePacker::flush`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let waits = self.filled > 0 || !self.held.is_empty();
        waits.then(|| self.last_input.plus_ns(FLUSH_AFTER_NS))
    }

    fn ticks(&self, at: Instant) -> u64 {
        system_ticks(at.ns_since(self.origin))
    }

    fn note_break(&mut self) {
        if !self.is_broken {
            (self.is_broken, self.discontinuities) = (true, self.discontinuities + 1);
            self.flags |= PacketMeta::DISCONTINUITY;
        }
    }

    fn take(&mut self, arrival: Instant, bytes: &TsBytes, out: LiveSink<'_>) {
        let packet = TsPacket(bytes);
        self.note_clock(arrival, packet);
        if self.programs.table_pids().any(|pid| pid == packet.pid()) {
            self.note_tables(packet, bytes);
        }
        let is_video = packet.pid() == self.follows.video;
        if !self.held.is_empty() {
            if is_video && packet.starts_unit() {
                let verdict = self.look.as_mut().map_or(PictureAccess::NoAccess, PictureLook::end);
                self.decide(arrival, verdict, out);
            } else {
                return self.hold(arrival, bytes, is_video, out);
            }
        }
        if is_video && packet.starts_unit() {
            return self.begin_picture(arrival, bytes, out);
        }
        if packet.pid() == self.follows.audio && packet.starts_unit() {
            let start = PesStart::parse(packet.payload());
            self.begin_access(arrival, start.and_then(|start| start.presentation_stamp), out);
        }
        self.put(arrival, bytes, out);
    }

    fn note_clock(&mut self, arrival: Instant, packet: TsPacket<'_>) {
        let is_clock = self.follows.clock.is_none_or(|pid| pid == packet.pid());
        if let Some(field) = packet.adaptation().filter(|_| is_clock)
            && let Some(pcr) = field.pcr()
            && self.clock.reference(pcr, self.ticks(arrival), field.is_discontinuity())
        {
            self.note_break();
        }
        self.clock.count(TS_PACKET_BYTES);
    }

    fn note_tables(&mut self, packet: TsPacket<'_>, bytes: &TsBytes) {
        let news = self.programs.push(packet);
        if news.changed {
            self.follow();
        }
        let copy = is_whole_section(packet).then_some(*bytes);
        if packet.pid() == PID_PAT {
            self.pat = copy;
        } else if Some(packet.pid()) == self.programs.chosen_table_pid() {
            self.pmt = copy;
        }
    }

    fn follow(&mut self) {
        let Some(program) = self.programs.chosen() else { return };
        let video = program.streams.iter().find_map(|stream| match stream.kind {
            StreamKind::Video(syntax) => Some((stream.pid, syntax)),
            _ => None,
        });
        let audio = program.streams.iter().find(|stream| stream.kind == StreamKind::Audio);
        self.look = video.map(|(_, syntax)| PictureLook::new(syntax));
        self.follows = FollowedStreams {
            clock: Some(program.pcr_pid),
            video: video.map_or(PID_NULL, |(pid, _)| pid),
            audio: audio.filter(|_| video.is_none()).map_or(PID_NULL, |stream| stream.pid),
        };
    }

    fn begin_picture(&mut self, arrival: Instant, bytes: &TsBytes, out: LiveSink<'_>) {
        let packet = TsPacket(bytes);
        let is_indicated = packet.adaptation().is_some_and(|field| field.is_random_access());
        let start = PesStart::parse(packet.payload());
        self.held_stamp = start.as_ref().and_then(|start| start.presentation_stamp);
        let verdict = match (&mut self.look, start) {
            (Some(look), Some(start)) => {
                look.begin(is_indicated);
                look.push(start.payload)
            }
            _ if is_indicated => PictureAccess::Access,
            _ => PictureAccess::NoAccess,
        };
        self.held.extend_from_slice(bytes);
        if verdict != PictureAccess::More {
            self.decide(arrival, verdict, out);
        }
    }

    /// Holds another packet of an undecided picture, or one between its packets.
    fn hold(&mut self, arrival: Instant, bytes: &TsBytes, is_video: bool, out: LiveSink<'_>) {
        self.held.extend_from_slice(bytes);
        let is_full = self.held.len() >= MAX_HELD_TS_PACKETS * TS_PACKET_BYTES;
        match &mut self.look {
            Some(look) if is_video => match look.push(TsPacket(bytes).payload()) {
                PictureAccess::More if is_full => self.decide_untold(arrival, out),
                PictureAccess::More => {}
                verdict => self.decide(arrival, verdict, out),
            },
            Some(_) if !is_full => {}
            _ => self.decide_untold(arrival, out),
        }
    }

    fn decide_untold(&mut self, arrival: Instant, out: LiveSink<'_>) {
        let verdict = self.look.as_ref().map_or(PictureAccess::NoAccess, PictureLook::untold);
        self.decide(arrival, verdict, out);
    }

    /// Passes on the held packets.
    fn decide(&mut self, arrival: Instant, verdict: PictureAccess, out: LiveSink<'_>) {
        if self.held.is_empty() {
            return;
        }
        if verdict == PictureAccess::Access {
            self.begin_access(arrival, self.held_stamp, out);
        }
        let held = std::mem::take(&mut self.held);
        for bytes in held.as_chunks::<TS_PACKET_BYTES>().0 {
            self.put(arrival, bytes, out);
        }
        self.held = held;
        self.held.clear();
    }

    /// Begins a packet that a viewer can join at.
    fn begin_access(&mut self, arrival: Instant, stamp: Option<u64>, out: LiveSink<'_>) {
        let now = self.ticks(arrival);
        if self.last_access.is_some_and(|last| now.saturating_sub(last) < MIN_ACCESS_GAP_TICKS) {
            return;
        }
        self.last_access = Some(now);
        self.pad(arrival, out);
        if let PackerOutput::FromAccess(_) = self.output {
            self.begin_output(arrival, out);
        }
        if let (Some(pat), Some(pmt)) = (self.pat, self.pmt) {
            self.put(arrival, &pat, out);
            self.put(arrival, &pmt, out);
        }
        self.flags |= PacketMeta::RANDOM_ACCESS;
        self.stamp = stamp;
    }

    /// Begins to give packets out: viewers get another stream than before.
    fn begin_output(&mut self, arrival: Instant, out: LiveSink<'_>) {
        self.pad(arrival, out);
        self.output = PackerOutput::Given;
        self.is_broken = false;
        self.note_break();
    }

    /// Fills the packet that is begun.
    fn pad(&mut self, arrival: Instant, out: LiveSink<'_>) {
        while self.filled > 0 {
            self.put(arrival, &NULL_PACKET, out);
        }
    }

    fn put(&mut self, arrival: Instant, bytes: &TsBytes, out: LiveSink<'_>) {
        if self.filled == 0 {
            self.time = self.clock.time(self.ticks(arrival));
        }
        let place = &mut self.part[self.filled..][..TS_PACKET_BYTES];
        place.copy_from_slice(bytes);
        let packet = TsPacket(bytes);
        let FollowedStreams { clock, video, audio } = self.follows;
        if packet.starts_unit() && (packet.pid() == video || packet.pid() == audio) {
            self.begins_unit.get_or_insert((self.filled / TS_PACKET_BYTES) as u8);
        }
        let is_clock = clock == Some(packet.pid());
        if self.is_broken && is_clock && packet.adaptation().is_some_and(|field| field.pcr().is_some()) {
            place[ADAPTATION_FLAGS] |= DISCONTINUITY_INDICATOR;
            self.is_broken = false;
        }
        self.filled += TS_PACKET_BYTES;
        if self.filled == DEFAULT_PACKET_BYTES {
            let (flags, begins_unit) = (std::mem::take(&mut self.flags), self.begins_unit.take());
            let stamp = self.stamp.take();
            self.filled = 0;
            if self.gives() {
                out(LivePacket { bytes: &self.part, flags, time: self.time, begins_unit, stamp });
            }
        }
    }
}

/// Offset of the flags of an adaptation field (ISO/IEC 13818-1 section 2.4.3.4), and the first of them.
const ADAPTATION_FLAGS: usize = 5;
const DISCONTINUITY_INDICATOR: u8 = 0x80;

/// A packet of stuffing, payload only.
const NULL_PACKET: TsBytes = {
    let mut bytes = [0xff; TS_PACKET_BYTES];
    (bytes[0], bytes[1], bytes[2], bytes[3]) = (SYNC, (PID_NULL >> 8) as u8, PID_NULL as u8, 0x10);
    bytes
};

/// Whether a section begins in this packet and ends in it.
fn is_whole_section(packet: TsPacket<'_>) -> bool {
    let payload = packet.payload();
    let section = payload.first().and_then(|&pointer| payload.get(1 + usize::from(pointer)..));
    let is_whole =
        section.is_some_and(|section| section_bytes(section).is_some_and(|length| length <= section.len()));
    packet.starts_unit() && is_whole
}

#[cfg(test)]
#[path = "packer_tests.rs"]
mod tests;
