//! One transport stream of several titles, as if a single encoder had made it.
//!
//! ```text
//!   title A   pictures ────────────────┐ last one ends
//!             clock  ─────────────┐ ends
//!   title B                       │    ┌ first picture      moved by the smallest time at which neither its clock
//!                         clock ──┴────┴─                    nor its presentation begins before the end of A's
//! ```
//!
//! * PIDs and tables are those of `SplicedProgram`; the titles' own tables are dropped.
//! * Clock references and time stamps move by one constant for each title ([`Restamp`]). A title's clock that jumps is moved again, so
//!   that the jump is closed.
//! * Continuity counters go on from title to title. Within a title they keep the gaps that they have: a decoder must notice lost packets.
//! * A stream begins with the start of a PES packet, video with a picture that a decoder can start at. An audio PES packet that the end of
//!   its title cuts is left out.
//! * Where the clock of the splice would stand still for long, between two titles, packets with nothing but a clock reference are added.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_media::codec::StreamKind;
use millrace_media::psi::{self, SectionAssembler};
use millrace_media::ts_packet::{
    PCR_MODULUS, PID_NULL, PIDS, PTS_MODULUS, PesStart, SYSTEM_TICKS_PER_MEDIA_TICK, TsPacket,
};
use millrace_media::ts_write::clock_packet;
use millrace_store::transform::restamp::{Continuity, Restamp, RestampSpec};

use super::head::{TitleHead, read_head, stamp_distance};
use super::program::{SplicedProgram, SplicedStream};
use crate::limits::channel::{
    FIRST_SPLICE_HEAD_BYTES, MAX_CLOCK_STEP_TICKS, MAX_FRAME_TICKS, MAX_RUN_BYTES, MAX_SPLICE_HEAD_BYTES,
    MAX_STAMP_DISTANCE_TICKS, SPLICE_CLOCK_TICKS, SPLICE_TABLE_TICKS,
};

type TsBytes = [u8; TS_PACKET_BYTES];

/// Why a title cannot be part of a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpliceError {
    /// The tables of no program come.
    #[error(
        "it has no program tables (PAT, PMT); add it to a store with millrace add, which repairs streams"
    )]
    NoProgram,
    /// The program has no clock.
    #[error("it has no clock references (PCR); add it to a store with millrace add, which repairs streams")]
    NoClock,
    /// There is neither audio nor video.
    #[error("it has no audio and no video with time stamps")]
    NoMedia,
    /// The media is scrambled.
    #[error("PID {pid} is scrambled; use a copy without encryption")]
    Scrambled {
        /// The stream.
        pid: u16,
    },
}

/// Packets from one clock reference up to the next. Times are in 27 MHz ticks and do not wrap; they begin with the splice's.
#[derive(Clone, Copy, Debug)]
pub struct SpliceRun<'a> {
    /// Whole TS packets.
    pub bytes: &'a [u8],
    /// Time of the first byte.
    pub from: u64,
    /// Time of the byte behind the last one.
    pub to: u64,
}

/// Where packets go.
pub type RunSink<'a> = &'a mut dyn FnMut(SpliceRun<'_>);

/// A title that was spliced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplicedTitle {
    /// TS packets of it that were passed on.
    pub packets: u64,
    /// Packets left out because their time stamps could not be moved.
    pub left_out: u64,
    /// Jumps of its clock that were closed.
    pub jumps: u64,
    /// Media time that it took; 27 MHz.
    pub ticks: u64,
}

/// The last presentations of a stream in the splice; 90 kHz, without a wrap.
#[derive(Clone, Copy, Debug)]
struct StreamEnd {
    pid: u16,
    /// Decoding time and length (0: unknown) of the last PES packet.
    decoded: u64,
    bytes: u64,
    /// The same of the packet before it: its duration and length.
    frame: u64,
    frame_bytes: u64,
    latest: u64,
}

impl StreamEnd {
    /// The end of the last presentation. A PES packet of audio has several frames, the last one often fewer than the others: its
    /// duration follows from its length.
    fn end(&self) -> u64 {
        let has_lengths = self.bytes > 0 && self.frame_bytes > 0;
        let frame = if has_lengths { self.frame * self.bytes / self.frame_bytes } else { self.frame };
        self.latest + frame.min(self.frame)
    }
}

/// The title that plays.
struct PlayingTitle {
    head: TitleHead,
    table: SectionAssembler,
    restamp: Restamp,
    /// The last clock reference of the title, and bytes since.
    pcr: u64,
    /// Number of the next packet.
    number: usize,
    /// By PID of the title: what to add to the counter; `None`: the stream has not begun.
    counters: Box<[Option<u8>; PIDS]>,
    from: u64,
    /// While it is cut off: PIDs of the title whose last PES packet was passed on.
    ended: Option<Vec<u16>>,
    report: SplicedTitle,
}

/// See the module's text.
pub struct Splicer {
    program: SplicedProgram,
    /// By PID of the splice: counter of the last packet.
    last_counters: Box<[u8; PIDS]>,
    run: Vec<u8>,
    run_from: u64,
    /// When the tables were sent last.
    tables_at: u64,
    /// Bytes and ticks of the last run.
    rate: (u64, u64),
    ends: Vec<StreamEnd>,
    /// The end of the last presentation of the titles before; 90 kHz.
    presented: Option<u64>,
    head: Vec<u8>,
    /// The head is read again when it has this many bytes.
    read_head_at: usize,
    playing: Option<PlayingTitle>,
}

impl Splicer {
    /// The clock of the splice begins at `start` (27 MHz).
    pub fn new(start: u64) -> Self {
        Self {
            program: SplicedProgram::default(),
            last_counters: Box::new([15; PIDS]),
            run: Vec::new(),
            run_from: start,
            tables_at: start,
            rate: (0, 0),
            ends: Vec::new(),
            presented: None,
            head: Vec::new(),
            read_head_at: FIRST_SPLICE_HEAD_BYTES,
            playing: None,
        }
    }

    /// Time up to which packets were passed on.
    pub fn now(&self) -> u64 {
        self.run_from
    }

    /// Takes the next TS packets of the title that plays, or the first ones of the next title.
    ///
    /// # Errors
    /// The title cannot be part of the splice. Nothing of it was passed on; the next call takes another title.
    pub fn push(&mut self, packets: &[u8], out: RunSink<'_>) -> Result<(), SpliceError> {
        if let Some(mut playing) = self.playing.take() {
            self.take_all(&mut playing, packets, out);
            self.playing = Some(playing);
            return Ok(());
        }
        self.head.extend_from_slice(packets);
        if self.head.len() < self.read_head_at {
            return Ok(());
        }
        let is_all = self.head.len() >= MAX_SPLICE_HEAD_BYTES;
        self.read_head_at = (2 * self.head.len()).min(MAX_SPLICE_HEAD_BYTES);
        if let Some(head) = self.read_head(is_all)? {
            self.begin(head, out);
        }
        Ok(())
    }

    /// As [`Splicer::push`], for a title that is cut off: each stream ends with its present picture or audio PES packet. Returns whether all video and audio has
    /// ended; then [`Splicer::end`] follows.
    ///
    /// # Errors
    /// As [`Splicer::push`].
    pub fn push_end(&mut self, packets: &[u8], out: RunSink<'_>) -> Result<bool, SpliceError> {
        if let Some(playing) = &mut self.playing {
            playing.ended.get_or_insert_default();
        }
        self.push(packets, out)?;
        let Some(ended) = self.playing.as_ref().and_then(|playing| playing.ended.as_ref()) else {
            return Ok(false); // its head is not read yet
        };
        let mut needed = self.program.streams().iter().filter(|stream| stream.kind != StreamKind::Other);
        Ok(needed.all(|stream| ended.contains(&stream.from)))
    }

    /// The title has ended.
    ///
    /// # Errors
    /// As [`Splicer::push`].
    pub fn end(&mut self, out: RunSink<'_>) -> Result<SplicedTitle, SpliceError> {
        if self.playing.is_none() {
            let head = self.read_head(true)?.ok_or(SpliceError::NoMedia)?;
            self.begin(head, out);
        }
        self.cut_audio();
        let end = self.run_from + self.estimate();
        self.pass_run(end, out);
        self.read_head_at = FIRST_SPLICE_HEAD_BYTES;
        for end in self.ends.drain(..) {
            self.presented = self.presented.max(Some(end.end()));
        }
        let Some(playing) = self.playing.take() else { return Err(SpliceError::NoMedia) };
        Ok(SplicedTitle { ticks: end - playing.from, ..playing.report })
    }

    /// The head of the next title. After an error nothing is left of it.
    fn read_head(&mut self, is_all: bool) -> Result<Option<TitleHead>, SpliceError> {
        let head = read_head(&self.head, is_all);
        if head.is_err() {
            self.head.clear();
            self.read_head_at = FIRST_SPLICE_HEAD_BYTES;
        }
        head
    }

    /// Begins a title whose head is known, and takes the packets of the head.
    fn begin(&mut self, head: TitleHead, out: RunSink<'_>) {
        let now = self.run_from;
        let per_tick = SYSTEM_TICKS_PER_MEDIA_TICK.cast_signed();
        // The title's clock may begin when the splice's has got there, and when nothing is presented before all else has been.
        let presents = self.presented.zip(head.start.presents_after);
        let by_stamps =
            presents.map(|(presented, after)| (presented.cast_signed() - after).saturating_mul(per_tick));
        let begin = by_stamps.unwrap_or(0).max(now.cast_signed());
        let begin = begin.min(now.cast_signed() + 2 * MAX_STAMP_DISTANCE_TICKS * per_tick);
        let ticks = (begin - head.start.pcr.cast_signed() + per_tick - 1).div_euclid(per_tick);
        let begin = (head.start.pcr.cast_signed() + ticks * per_tick).cast_unsigned();
        self.bridge(begin, out);
        self.program.follow(&head.pmt, &head.section);
        self.put_tables();
        if head.start.is_pcr_before {
            self.put_clock(begin);
        }
        let (first, pcr) = (head.start.packet, head.start.pcr);
        let bytes = std::mem::take(&mut self.head);
        let mut playing = PlayingTitle {
            head,
            table: SectionAssembler::default(),
            restamp: restamp(ticks),
            pcr,
            number: first,
            counters: Box::new([None; PIDS]),
            from: begin,
            ended: None,
            report: SplicedTitle::default(),
        };
        self.take_all(&mut playing, &bytes[first * TS_PACKET_BYTES..], out);
        self.playing = Some(playing);
    }

    /// Lets the clock go on to `until`, where nothing else is sent.
    fn bridge(&mut self, until: u64, out: RunSink<'_>) {
        let has_clock = !self.program.streams().is_empty();
        while has_clock && self.run_from < until {
            self.put_due_tables();
            self.put_clock(self.run_from);
            self.pass_run(until.min(self.run_from + SPLICE_CLOCK_TICKS), out);
        }
        self.run_from = until;
    }

    fn put_clock(&mut self, time: u64) {
        let pid = self.program.clock_pid();
        let counter = self.last_counters[usize::from(pid)];
        self.run.extend_from_slice(&clock_packet(pid, counter, time % PCR_MODULUS));
    }

    fn pass_run(&mut self, until: u64, out: RunSink<'_>) {
        if !self.run.is_empty() {
            out(SpliceRun { bytes: &self.run, from: self.run_from, to: until });
            if until > self.run_from {
                self.rate = (self.run.len() as u64, until - self.run_from);
            }
        }
        self.run.clear();
        self.run_from = until;
    }

    /// The likely time of the run that has not ended: by its bytes, at most that of the run before. Muxers write the rest of all streams
    /// behind the last clock reference. At least a tick, since the next reference must be another one.
    fn estimate(&self) -> u64 {
        let (bytes, ticks) = self.rate;
        let by_bytes = u128::from(self.run.len() as u64) * u128::from(ticks) / u128::from(bytes.max(1));
        u64::try_from(by_bytes).unwrap_or(ticks).min(ticks).max(1)
    }

    fn take_all(&mut self, playing: &mut PlayingTitle, packets: &[u8], out: RunSink<'_>) {
        for packet in packets.as_chunks::<TS_PACKET_BYTES>().0 {
            self.take(playing, packet, out);
            playing.number += 1;
        }
    }

    fn take(&mut self, playing: &mut PlayingTitle, packet: &TsBytes, out: RunSink<'_>) {
        let view = TsPacket(packet);
        let pid = view.pid();
        if view.has_error() {
            return;
        }
        if pid == playing.head.table_pid {
            self.follow_table(playing, view);
        }
        let pcr = view.adaptation().filter(|_| pid == playing.head.pmt.pcr_pid).and_then(|field| field.pcr());
        if let Some(pcr) = pcr {
            self.note_clock(playing, pcr, out);
        } else if self.run.len() >= MAX_RUN_BYTES {
            self.pass_run(self.run_from + self.estimate(), out);
        }
        let is_over = playing.ended.as_mut().is_some_and(|ended| {
            if view.starts_unit() && !ended.contains(&pid) {
                ended.push(pid);
            }
            ended.contains(&pid)
        });
        let is_kept = match self.program.stream(pid) {
            _ if is_over => false,
            Some(stream) => self.put(playing, packet, stream),
            None if pid == PID_NULL => {
                self.run.extend_from_slice(packet);
                true
            }
            None => false,
        };
        if is_kept {
            playing.report.packets += 1;
        } else if pcr.is_some() {
            self.put_clock(self.run_from);
        }
    }

    fn follow_table(&mut self, playing: &mut PlayingTitle, packet: TsPacket<'_>) {
        let PlayingTitle { table, head, .. } = playing;
        let mut newest = None;
        table.push(packet, |section| {
            if section != head.section
                && psi::parse_pmt(section).is_some_and(|pmt| pmt.program == head.pmt.program)
            {
                newest = Some(section.to_vec());
            }
        });
        let Some(section) = newest else { return };
        let Some(pmt) = psi::parse_pmt(&section) else { return };
        if self.program.follow(&pmt, &section) == Some(true) {
            self.put_tables();
        }
        (head.pmt, head.section) = (pmt, section);
        playing.counters.fill(None);
    }

    /// Takes a clock reference of the title: the packets before it are passed on.
    fn note_clock(&mut self, playing: &mut PlayingTitle, pcr: u64, out: RunSink<'_>) {
        let step = (pcr + PCR_MODULUS - playing.pcr) % PCR_MODULUS;
        playing.pcr = pcr;
        if step == 0 {
            return;
        }
        if step <= MAX_CLOCK_STEP_TICKS {
            self.pass_run(self.run_from + step, out);
            return self.put_due_tables();
        }
        let per_tick = SYSTEM_TICKS_PER_MEDIA_TICK.cast_signed();
        let now = self.run_from + self.estimate();
        let ticks = (now.cast_signed() - pcr.cast_signed() + per_tick - 1).div_euclid(per_tick);
        self.pass_run((pcr.cast_signed() + ticks * per_tick).cast_unsigned(), out);
        playing.restamp = restamp(ticks);
        playing.report.jumps += 1;
        self.put_due_tables();
    }

    fn put_due_tables(&mut self) {
        if self.run_from - self.tables_at >= SPLICE_TABLE_TICKS {
            self.put_tables();
        }
    }

    fn put_tables(&mut self) {
        self.tables_at = self.run_from;
        self.program.write_tables(&mut self.run);
    }

    /// Adds a packet of a stream to the run. `false`: it is left out.
    fn put(&mut self, playing: &mut PlayingTitle, packet: &TsBytes, stream: SplicedStream) -> bool {
        let view = TsPacket(packet);
        let has_begun = playing.counters[usize::from(stream.from)].is_some();
        if !has_begun && !self.begins(playing, view, stream) {
            return false;
        }
        let mut moved = *packet;
        let is_marked = view.adaptation().is_some_and(|field| field.is_discontinuity());
        if is_marked {
            // The splice has no discontinuity: clock and counter are moved.
            moved[5] &= 0x7f;
        }
        let last = self.last_counters[usize::from(stream.to)];
        let follows = if view.has_payload() { last.wrapping_add(1) } else { last };
        let offset = match playing.counters[usize::from(stream.from)] {
            Some(offset) if !is_marked => offset,
            _ => follows.wrapping_sub(view.continuity()) & 15,
        };
        if !playing.restamp.change(&mut moved) {
            playing.counters[usize::from(stream.from)] = Some(offset.wrapping_sub(1) & 15);
            playing.report.left_out += 1;
            return false;
        }
        playing.counters[usize::from(stream.from)] = Some(offset);
        let counter = (view.continuity() + offset) & 15;
        let [high, low] = stream.to.to_be_bytes();
        (moved[1], moved[2], moved[3]) = (moved[1] & 0xe0 | high, low, moved[3] & 0xf0 | counter);
        self.last_counters[usize::from(stream.to)] = counter;
        if stream.kind != StreamKind::Other {
            self.note_stamps(TsPacket(&moved), stream);
        }
        self.run.extend_from_slice(&moved);
        true
    }

    /// Whether a stream of the title can begin with this packet.
    fn begins(&self, playing: &PlayingTitle, packet: TsPacket<'_>, stream: SplicedStream) -> bool {
        if !packet.starts_unit() || packet.payload().is_empty() {
            return false;
        }
        let head = &playing.head;
        match stream.kind {
            StreamKind::Video(_) => {
                head.picture.is_none_or(|(number, pid)| playing.number >= number || pid != stream.from)
            }
            StreamKind::Audio => {
                let stamp = PesStart::parse(packet.payload()).and_then(|start| start.presentation_stamp);
                let clock = head.start.pcr / SYSTEM_TICKS_PER_MEDIA_TICK;
                stamp
                    .zip(head.start.audio_from)
                    .is_none_or(|(stamp, from)| stamp_distance(clock, stamp) >= from)
            }
            StreamKind::Other => true,
        }
    }

    /// Follows the last presentations of each stream.
    fn note_stamps(&mut self, packet: TsPacket<'_>, stream: SplicedStream) {
        let start = packet.starts_unit().then(|| PesStart::parse(packet.payload())).flatten();
        let Some((presented, decoded)) =
            start.and_then(|start| start.presentation_stamp.zip(start.decode_stamp))
        else {
            return;
        };
        let clock = self.run_from / SYSTEM_TICKS_PER_MEDIA_TICK;
        let near = |stamp: u64| {
            let distance = stamp_distance(clock % PTS_MODULUS, stamp);
            (distance.abs() <= MAX_STAMP_DISTANCE_TICKS).then(|| clock.saturating_add_signed(distance))
        };
        let (Some(presented), Some(decoded)) = (near(presented), near(decoded)) else { return };
        let bytes = pes_length(packet.payload()) as u64;
        match self.ends.iter_mut().find(|end| end.pid == stream.to) {
            Some(end) => {
                let frame = decoded.saturating_sub(end.decoded);
                if (1..=MAX_FRAME_TICKS).contains(&frame) {
                    (end.frame, end.frame_bytes) = (frame, end.bytes);
                }
                (end.decoded, end.bytes, end.latest) = (decoded, bytes, end.latest.max(presented));
            }
            None => {
                let (pid, latest) = (stream.to, presented);
                self.ends.push(StreamEnd { pid, decoded, bytes, frame: 0, frame_bytes: 0, latest });
            }
        }
    }

    /// Leaves out the last PES packet of each audio stream if the end of the title has cut it.
    fn cut_audio(&mut self) {
        // Not where audio carries the clock: the last references would be gone.
        let clock_pid = self.program.clock_pid();
        let audio = self.program.streams().iter().filter(|stream| stream.kind == StreamKind::Audio);
        let audio = audio.map(|stream| stream.to).filter(|&pid| pid != clock_pid);
        let cut: Vec<u16> = audio.filter(|&pid| is_cut(&self.run, pid)).collect();
        for pid in cut {
            let (packets, _) = self.run.as_chunks::<TS_PACKET_BYTES>();
            let starts = |packet: &TsBytes| TsPacket(packet).pid() == pid && TsPacket(packet).starts_unit();
            let Some(from) = packets.iter().rposition(starts) else { continue };
            self.last_counters[usize::from(pid)] = TsPacket(&packets[from]).continuity().wrapping_sub(1) & 15;
            let kept = |(number, packet): (usize, &TsBytes)| number < from || TsPacket(packet).pid() != pid;
            let kept: Vec<TsBytes> =
                packets.iter().enumerate().filter(|&each| kept(each)).map(|(_, packet)| *packet).collect();
            self.run.clear();
            self.run.extend_from_slice(kept.as_flattened());
        }
    }
}

/// Whether the last PES packet of a PID is shorter than the length in its header.
fn is_cut(run: &[u8], pid: u16) -> bool {
    let of_pid = |packet: &&TsBytes| TsPacket(packet).pid() == pid;
    let (mut expected, mut come) = (0, 0);
    for packet in run.as_chunks::<TS_PACKET_BYTES>().0.iter().filter(of_pid).map(TsPacket) {
        let payload = packet.payload();
        if packet.starts_unit() {
            let length = pes_length(payload);
            (expected, come) = (if length > 0 { length + 6 } else { 0 }, 0);
        }
        come += payload.len();
    }
    come < expected
}

/// The length field of the PES packet that begins here; 0: it has none.
fn pes_length(payload: &[u8]) -> usize {
    payload.get(4..6).map_or(0, |field| usize::from(field[0]) << 8 | usize::from(field[1]))
}

/// `ticks` of 90 kHz, of either sign.
fn restamp(ticks: i64) -> Restamp {
    let ticks = ticks.rem_euclid(PTS_MODULUS.cast_signed()).cast_unsigned();
    Restamp::new(&RestampSpec { ticks, continuity: Continuity::All(0) })
}

#[cfg(test)]
#[path = "splicer_tests.rs"]
mod tests;
