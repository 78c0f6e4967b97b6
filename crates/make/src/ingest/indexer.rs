//! One pass over the packets: copies them out, sums them, reads clock, tables and access points, and gives every media
//! packet its metadata.
//!
//! A packet's time is known only when the next clock value has come, so packets wait: at most the bytes between two
//! clock values, the first second, and [`MAX_BYTES_BETWEEN_ANCHORS`] in a stream whose clock does not come.

use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_TITLE_PACKETS, TS_PACKET_BYTES};
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_media::codec::{self, StreamKind};
use millrace_media::psi::PmtStream;
use millrace_media::ts_packet::{
    Adaptation, PID_NULL, PID_PAT, PIDS, PesStart, SYSTEM_HZ, SYSTEM_TICKS_PER_MEDIA_TICK, TsPacket,
};

use millrace_store::index::{PidRole, PidUse, TitleIndex};
use millrace_store::volume::ElementaryStream;

use super::access_watch::{AccessWatch, BarePictures};
use super::clock::{MAX_BYTES_BETWEEN_ANCHORS, Point};
use super::clock_source::{ClockOrigin, ClockSample, ClockSource};
use super::error::StreamError;
pub use super::indexed::{Indexed, Oddities};
use super::packetize::{Packetizer, PeakRate};
use super::pieces::PieceList;
use super::presentation::Presentation;
use super::program::{Programs, TableNews};
use super::sink::{IndexSink, NullSink};

/// No continuity counter is expected yet.
const ANY: u8 = 0xff;

/// What to look for on a PID.
mod watch {
    /// PAT or PMT.
    pub(crate) const TABLE: u8 = 1;
    /// Access points.
    pub(crate) const ACCESS: u8 = 2;
    /// Decoding time stamps.
    pub(crate) const STAMP: u8 = 4;
    /// The codec, which the tables do not tell: the layer of MPEG audio, sound in private data.
    pub(crate) const CODEC: u8 = 8;
    /// Presentation time stamps.
    pub(crate) const PRESENTATION: u8 = 16;
    /// Audio access points in gaps without pictures.
    pub(crate) const AUDIO_ACCESS: u8 = 32;
    /// Audio format.
    pub(crate) const FORMAT: u8 = 64;
}

#[derive(Clone, Copy, Debug)]
struct PidState {
    packets: u64,
    /// Continuity counter of the next packet with payload.
    next: u8,
    /// Bits of [`watch`].
    watch: u8,
    /// A new time base was announced since the last PCR.
    new_base: bool,
    /// Ever a table, so that it is listed as one.
    table: bool,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Indexer {
    pids: Vec<PidState>,
    bytes: u64,
    programs: Programs,
    table_pids: Vec<u16>,
    pat_start: u64,
    last_pat: Option<u64>,
    /// Where the last PAT begins that a PMT follows.
    joined: Option<u64>,
    streams: Vec<PmtStream>,
    program: u16,
    clock: ClockSource,
    points: Vec<Point>,
    pieces: PieceList,
    presentation: Presentation,
    packetizers: Vec<Packetizer>,
    peak: PeakRate,
    access: AccessWatch,
    losses: u64,
    oddities: Oddities,
    /// Breaks of the counters up to the last clock value: how many, and where the first was.
    breaks_at_clock: (u64, u64),
    untold: Vec<(u16, &'static str)>,
}

impl Indexer {
    /// For these packet sizes (multiples of 188, the default among them); `sums`: see [`IndexSink::SUMS`];
    /// `trusted_clock`: see [`super::clock`].
    pub(crate) fn new(packet_sizes: &[u16], sums: bool, trusted_clock: bool) -> Self {
        let state = PidState { packets: 0, next: ANY, watch: 0, new_base: false, table: false };
        let mut pids = vec![state; PIDS];
        pids[usize::from(PID_PAT)].watch = watch::TABLE;
        Self {
            pids,
            bytes: 0,
            programs: Programs::default(),
            table_pids: vec![PID_PAT],
            pat_start: 0,
            last_pat: None,
            joined: None,
            streams: Vec::new(),
            program: 0,
            clock: ClockSource::new(trusted_clock),
            points: Vec::new(),
            pieces: PieceList::new(),
            presentation: Presentation::default(),
            packetizers: packet_sizes.iter().map(|&size| Packetizer::new(size, sums)).collect(),
            peak: PeakRate::new(),
            access: AccessWatch::new(),
            losses: 0,
            oddities: Oddities::default(),
            breaks_at_clock: (0, 0),
            untold: Vec::new(),
        }
    }

    /// Media time up to the last clock value.
    pub(crate) fn media_done(&self) -> MediaTicks {
        MediaTicks(self.clock.clock().now_ticks() / SYSTEM_TICKS_PER_MEDIA_TICK)
    }

    /// Returns the number of bytes of data.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a run of whole packets; `gap`: bytes are missing before it.
    pub(crate) fn run<S: IndexSink>(
        &mut self,
        ts: &[u8],
        gap: bool,
        sink: &mut S,
    ) -> Result<(), StreamError> {
        sink.data(ts)?;
        self.losses += u64::from(gap);
        for packetizer in &mut self.packetizers {
            packetizer.data(ts);
        }
        let (packets, _) = ts.as_chunks::<TS_PACKET_BYTES>();
        for packet in packets {
            self.packet(TsPacket(packet));
        }
        if self.clock.origin().is_none() && self.bytes > MAX_BYTES_BETWEEN_ANCHORS {
            self.choose_now()?;
        }
        self.clock.reached(self.bytes, &mut self.points);
        self.hand_out(sink)
    }

    /// The data is complete.
    pub(crate) fn finish<S: IndexSink>(mut self, sink: &mut S) -> Result<Indexed, StreamError> {
        if self.bytes == 0 {
            return Err(StreamError::NoPackets { bytes: 0 });
        }
        self.access.decide_at_end();
        self.choose_now()?;
        self.clock.finish(self.bytes, &mut self.points);
        for packetizer in &mut self.packetizers {
            packetizer.end();
        }
        self.hand_out(sink)?;
        self.summary()
    }

    /// One packet. Most have neither an adaptation field nor anything to watch for and end here.
    #[inline]
    fn packet(&mut self, packet: TsPacket<'_>) {
        let byte = self.bytes;
        self.bytes += TS_PACKET_BYTES as u64;
        let state = &mut self.pids[usize::from(packet.pid())];
        state.packets += 1;
        let watch = state.watch;
        let counter = packet.continuity();
        if packet.has_payload() {
            let expected = std::mem::replace(&mut state.next, (counter + 1) & 0x0f);
            if counter != expected {
                self.out_of_step(packet, expected, byte);
            }
        }
        if packet.has_error() | packet.is_scrambled() {
            self.oddities.marked_damaged += u64::from(packet.has_error());
            self.oddities.scrambled += u64::from(packet.is_scrambled());
        }
        if let Some(adaptation) = packet.adaptation() {
            self.adaptation(packet.pid(), adaptation, byte);
        }
        if watch != 0 {
            self.watched(packet, watch, byte);
        }
    }

    #[cold]
    fn out_of_step(&mut self, packet: TsPacket<'_>, expected: u8, byte: u64) {
        let is_duplicate = (packet.continuity() + 1) & 0x0f == expected;
        let on_purpose = packet.adaptation().is_some_and(|a| a.is_discontinuity());
        if packet.pid() == PID_NULL || expected == ANY || is_duplicate || on_purpose {
            return;
        }
        if self.oddities.breaks == 0 {
            self.oddities.first_break = byte;
        }
        self.oddities.breaks += 1;
        self.losses += 1;
    }

    fn adaptation(&mut self, pid: u16, adaptation: Adaptation<'_>, byte: u64) {
        let state = &mut self.pids[usize::from(pid)];
        state.new_base |= adaptation.is_discontinuity();
        if adaptation.is_random_access() && state.watch & watch::ACCESS != 0 {
            self.access.indicated();
        }
        if let Some(value) = adaptation.pcr() {
            let new_base = std::mem::take(&mut state.new_base);
            if self.clock.wants_pcr(pid) {
                let found = ClockSample { pid, byte, value, new_base, losses: self.losses };
                let jumps = self.clock.clock().jumps();
                self.clock.pcr(found, &mut self.points);
                let now_jumps = self.clock.clock().jumps();
                self.presentation.clock_moved(now_jumps, byte);
                if now_jumps > jumps {
                    self.begins_anew();
                }
                self.breaks_at_clock = (self.oddities.breaks, self.oddities.first_break);
            }
        }
    }

    /// The clock has jumped: another recording begins here, or this one goes on after a pause. That no counter goes on where it
    /// was belongs to that and is no damage: neither since the last clock value, nor in the next packet of each stream.
    #[cold]
    fn begins_anew(&mut self) {
        (self.oddities.breaks, self.oddities.first_break) = self.breaks_at_clock;
        self.pids.iter_mut().for_each(|state| state.next = ANY);
    }

    fn watched(&mut self, packet: TsPacket<'_>, watch: u8, byte: u64) {
        if watch & watch::TABLE != 0 {
            self.table(packet, byte);
            return;
        }
        if packet.starts_unit() {
            let payload = if packet.is_scrambled() { &[] } else { packet.payload() };
            let start = PesStart::parse(payload);
            if watch & watch::STAMP != 0 {
                self.stamp(packet.pid(), start, byte);
            }
            if watch & watch::PRESENTATION != 0
                && let Some(stamp) = start.and_then(|start| start.presentation_stamp)
            {
                self.presentation.stamp(packet.pid(), stamp, self.clock.clock());
            }
            if watch & watch::CODEC != 0 {
                self.codec(packet.pid(), start);
            }
            if watch & watch::FORMAT != 0
                && let Some(start) = start
            {
                self.access.layouts.sound(packet.pid(), start.payload, byte);
            }
            if watch & watch::ACCESS != 0 {
                self.access.unit_starts(start, byte, self.joined);
            } else if watch & watch::AUDIO_ACCESS != 0
                && let Some(start) = start
            {
                self.access.audio_starts(start, byte, self.joined);
            }
        } else if watch & watch::ACCESS != 0 && self.access.is_looking() && !packet.is_scrambled() {
            self.access.unit_continues(packet.payload(), byte);
        }
    }

    fn table(&mut self, packet: TsPacket<'_>, byte: u64) {
        if packet.pid() == PID_PAT && packet.starts_unit() {
            self.pat_start = byte;
        }
        let TableNews { pat, pmt, changed, pids_changed } = self.programs.push(packet);
        if pat {
            self.last_pat = Some(self.pat_start);
            self.access.list.tables_at(self.pat_start);
        }
        if pids_changed {
            self.watch_tables();
        }
        if changed {
            self.follow_program(byte);
        }
        if pmt && self.last_pat.is_some() {
            self.joined = self.last_pat;
        }
    }

    fn watch_tables(&mut self) {
        for pid in std::mem::take(&mut self.table_pids) {
            self.pids[usize::from(pid)].watch &= !watch::TABLE;
        }
        self.table_pids = self.programs.table_pids().collect();
        for &pid in &self.table_pids {
            let state = &mut self.pids[usize::from(pid)];
            state.watch |= watch::TABLE;
            state.table = true;
        }
    }

    /// Follows the chosen program, which is new or has a new table in force from `byte` on.
    fn follow_program(&mut self, byte: u64) {
        let Some(pmt) = self.programs.chosen().cloned() else { return };
        self.access.decide_at_end();
        self.oddities.table_changes += 1;
        self.program = pmt.program;
        for state in &mut self.pids {
            state.watch &= watch::TABLE;
        }
        for stream in &pmt.streams {
            let mut bits = 0;
            if stream.kind != StreamKind::Other {
                bits |= watch::STAMP | watch::PRESENTATION;
            }
            if stream.codec == codec::MPEG_AUDIO || stream.codec == codec::PRIVATE {
                bits |= watch::CODEC;
            }
            if stream.kind == StreamKind::Audio || stream.codec == codec::PRIVATE {
                bits |= watch::FORMAT;
            }
            self.pids[usize::from(stream.pid)].watch |= bits;
        }
        let video = pmt.streams.iter().find_map(|s| match s.kind {
            StreamKind::Video(syntax) => Some((s.pid, syntax)),
            _ => None,
        });
        let audio = pmt.streams.iter().find(|s| s.kind == StreamKind::Audio);
        self.access.follow(video);
        if let Some((pid, _)) = video {
            self.pids[usize::from(pid)].watch |= watch::ACCESS;
        }
        if let Some(audio) = audio {
            let bit = if video.is_some() { watch::AUDIO_ACCESS } else { watch::ACCESS };
            self.pids[usize::from(audio.pid)].watch |= bit;
        }
        if pmt.pcr_pid != PID_NULL {
            self.clock.announce(pmt.pcr_pid, &mut self.points);
        }
        self.access.layouts.announce(byte, &pmt.streams);
        self.remember_streams(pmt.streams);
    }

    /// Streams that an earlier table announced stay listed; their packets are in the data.
    fn remember_streams(&mut self, streams: Vec<PmtStream>) {
        let old = std::mem::replace(&mut self.streams, streams);
        for stream in old {
            if !self.streams.iter().any(|s| s.pid == stream.pid) && self.streams.len() < PIDS {
                self.streams.push(stream);
            }
        }
    }

    fn stamp(&mut self, pid: u16, start: Option<PesStart<'_>>, byte: u64) {
        if let Some(value) = start.and_then(|s| s.decode_stamp) {
            let found = ClockSample { pid, byte, value, new_base: false, losses: self.losses };
            self.clock.stamp(found, &mut self.points);
            self.presentation.clock_moved(self.clock.clock().jumps(), byte);
        }
    }

    /// Looks for properties of a stream that the tables do not give.
    fn codec(&mut self, pid: u16, start: Option<PesStart<'_>>) {
        let Some(payload) = start.map(|s| s.payload) else { return };
        for stream in self.streams.iter_mut().filter(|s| s.pid == pid) {
            let is_private = stream.codec == codec::PRIVATE;
            let found =
                if is_private { codec::private_sound(payload) } else { codec::mpeg_audio_layer(payload) };
            let Some(found) = found else { continue };
            stream.codec = found.to_owned();
            self.access.layouts.name(pid, found);
            self.pids[usize::from(pid)].watch &= !watch::CODEC;
            if is_private {
                self.untold.push((pid, found));
            }
        }
    }

    /// Program and clock must be known now.
    fn choose_now(&mut self) -> Result<(), StreamError> {
        if self.programs.choose_now() {
            self.follow_program(self.bytes);
        }
        if self.streams.is_empty() && self.programs.chosen().is_none() {
            let missing = match self.programs.has_pat() {
                false => "program association table (PAT)",
                true => "program map table (PMT)",
            };
            return Err(StreamError::NoProgram { missing, bytes: self.bytes });
        }
        let of_kind = |video: bool| {
            self.streams.iter().filter(move |s| match s.kind {
                StreamKind::Video(_) => video,
                StreamKind::Audio => !video,
                StreamKind::Other => false,
            })
        };
        let pids: Vec<u16> = of_kind(true).chain(of_kind(false)).map(|s| s.pid).collect();
        let pcrs = self.clock.early_pcrs();
        match self.clock.choose_now(&pids, &mut self.points) {
            true => Ok(()),
            false => Err(StreamError::NoClock { bytes: self.bytes, pcrs, pids }),
        }
    }

    fn hand_out<S: IndexSink>(&mut self, sink: &mut S) -> Result<(), StreamError> {
        let limit = self.access.decided_up_to(self.bytes);
        let marks = self.access.take_marks();
        for packetizer in &mut self.packetizers {
            marks.iter().for_each(|&byte| packetizer.mark_access(byte));
        }
        for point in self.points.drain(..) {
            self.pieces.push(point);
            for packetizer in &mut self.packetizers {
                packetizer.point(point);
            }
        }
        for packetizer in &mut self.packetizers {
            let packet_bytes = packetizer.packet_bytes();
            let is_default = usize::from(packet_bytes) == DEFAULT_PACKET_BYTES;
            while let Some(ready) = packetizer.next_ready(limit) {
                if ready.number >= MAX_TITLE_PACKETS {
                    return Err(StreamError::TooLong { packet_bytes });
                }
                if is_default {
                    self.access.list.packet(ready.number, ready.ticks);
                    self.peak.add(ready.ticks, ready.bytes);
                }
                sink.meta(packet_bytes, ready.meta)?;
            }
        }
        Ok(())
    }

    /// The same for a title that goes on: without access points that what follows may take back.
    pub(super) fn finish_until_now(mut self) -> Result<Indexed, StreamError> {
        self.access.list.leave_open();
        self.finish(&mut NullSink)
    }

    fn summary(mut self) -> Result<Indexed, StreamError> {
        let clock = self.clock.clock();
        self.oddities.wrong_crcs = self.programs.wrong_crcs();
        self.oddities.programs = self.programs.count();
        self.oddities.jumps = clock.jumps();
        self.oddities.first_jump = clock.first_jump().unwrap_or(0);
        self.oddities.coasted = clock.coasted();
        let BarePictures { count, first } = self.access.bare();
        (self.oddities.bare_pictures, self.oddities.first_bare_picture) = (count, first);
        // The first table is no change.
        self.oddities.table_changes = self.oddities.table_changes.saturating_sub(1);
        let ticks = clock.now_ticks();
        let rate = u128::from(self.bytes) * 8 * u128::from(SYSTEM_HZ) / u128::from(ticks.max(1));
        let mean_rate = BitRate(u64::try_from(rate).unwrap_or(u64::MAX));
        let peak_rate = mean_rate.max(BitRate(self.peak.bytes_per_s().saturating_mul(8)));
        let origin = self.clock.origin().ok_or(StreamError::NoClock {
            bytes: self.bytes,
            pcrs: self.clock.early_pcrs(),
            pids: Vec::new(),
        })?;
        let is_pcr = !matches!(origin, ClockOrigin::Stamps(_));
        let constant_rate = is_pcr && clock.is_constant();
        let pids = self.pid_uses(origin);
        let (pieces, duration) = (self.pieces.into_pieces(), MediaTicks(ticks / SYSTEM_TICKS_PER_MEDIA_TICK));
        let (bases, end) = self.presentation.finish(clock, &pieces, self.bytes, duration);
        let layouts = std::mem::take(&mut self.access.layouts);
        let index = TitleIndex::new(self.access.list.into_points(), pieces, pids)
            .and_then(|index| index.with_presentation(bases, end))
            .and_then(|index| index.with_layouts(layouts.into_streams(self.bytes)));
        let stream = |s: PmtStream| ElementaryStream {
            pid: s.pid,
            stream_type: s.stream_type,
            codec: s.codec,
            language: s.language,
            role: s.role,
        };
        Ok(Indexed {
            bytes: self.bytes,
            duration,
            mean_rate,
            peak_rate,
            constant_rate,
            streams: self.streams.into_iter().map(stream).collect(),
            index: index.map_err(millrace_store::StoreError::from)?,
            clock: origin,
            program: self.program,
            oddities: self.oddities,
            untold: self.untold,
        })
    }

    fn pid_uses(&self, origin: ClockOrigin) -> Vec<PidUse> {
        let used = self.pids.iter().enumerate().filter(|(_, state)| state.packets > 0);
        used.map(|(pid, state)| {
            let pid = pid as u16;
            let stream = self.streams.iter().find(|s| s.pid == pid);
            let role = match pid {
                PID_PAT => PidRole::Pat,
                PID_NULL => PidRole::Null,
                _ if stream.is_some() => PidRole::Stream,
                _ if state.table => PidRole::Pmt,
                _ => PidRole::Other,
            };
            PidUse {
                pid,
                role,
                stream_type: stream.map_or(0, |s| s.stream_type),
                pcr: matches!(origin, ClockOrigin::Announced(p) | ClockOrigin::Unannounced(p) if p == pid),
                ts_packets: state.packets,
            }
        })
        .collect()
    }
}
