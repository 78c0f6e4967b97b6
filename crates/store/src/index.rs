//! The index of a title: time to packet, random access points, clock pieces, PIDs.
//!
//! It counts in default-size packets ([`DEFAULT_PACKET_BYTES`]) whatever size is sent; bytes of the data file join it
//! with the other sizes.

use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::time::MediaTicks;
use millrace_media::ts_packet::PTS_MODULUS;

use crate::limits::volume::MAX_CODEC_NAME_BYTES;

/// Packets from one entry of the time index to the next. At 2 Mb/s that is 1.3 s: an hour has 22 KB of time index, and
/// an exact search ends within two blocks of the metadata file.
pub const TIME_STEP_PACKETS: u32 = 256;

const PACKET_BYTES: u64 = DEFAULT_PACKET_BYTES as u64;

/// A place where a decoder can start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomAccessPoint {
    /// Default-size packet where sending must start: holds the PAT before the access point if one lies within 1 s,
    /// else the access point's own packet.
    pub packet: u32,
    /// Media time of `packet`.
    pub time: MediaTicks,
    /// Offset of the TS packet with the access point in the data file.
    pub byte: u64,
}

/// A piece of the title's clock: media time runs linearly over the bytes from here to the next piece (the last piece:
/// to the end of the data at the title's duration).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockPiece {
    /// First byte of the piece in the data file.
    pub byte: u64,
    /// Media time of this byte.
    pub time: MediaTicks,
}

impl ClockPiece {
    /// Media time of `byte` on the line from here to `next`, rounded down; clamped to the two ends.
    pub fn time_of(&self, next: &Self, byte: u64) -> MediaTicks {
        let byte = byte.clamp(self.byte, next.byte.max(self.byte));
        let (run, rise) = (next.byte.saturating_sub(self.byte), next.time.since(self.time).0);
        if run == 0 {
            return self.time;
        }
        // `run` and `rise` both fit 64 bits, so the product fits 128.
        let up = u128::from(byte - self.byte) * u128::from(rise) / u128::from(run);
        MediaTicks(self.time.0 + up as u64)
    }

    /// The first byte whose [`ClockPiece::time_of`] is at least `time`; `None` if the line ends before it.
    fn byte_at(&self, next: &Self, time: MediaTicks) -> Option<u64> {
        if time <= self.time {
            return Some(self.byte);
        }
        if time > next.time || next.byte <= self.byte {
            return None;
        }
        let (run, rise) = (next.byte - self.byte, next.time.0 - self.time.0);
        let along = (u128::from(time.0 - self.time.0) * u128::from(run)).div_ceil(u128::from(rise));
        Some(self.byte + along as u64)
    }
}

/// From here on the stream's presentation time stamps count from another origin. A recording has one of these; joined
/// recordings have one for each part whose clock jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeBase {
    /// First byte in the data file.
    pub byte: u64,
    /// Media time of this byte.
    pub time: MediaTicks,
    /// The lowest of the first time stamps of each sound and picture stream from there on, below [`PTS_MODULUS`]. Players that
    /// count in time stamps take it for the beginning.
    pub first_pts: u64,
}

/// A video or audio stream from a byte on. All streams with the same first byte form a layout,
/// which is in force up to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutStream {
    /// First byte of the layout in the data file.
    pub byte: u64,
    /// 13 bits.
    pub pid: u16,
    /// `stream_type` of the PMT.
    pub stream_type: u8,
    /// Name of the codec, at most 24 bytes.
    pub codec: String,
    /// Three lower-case letters.
    pub language: Option<String>,
    /// Checksum of the decoder configuration: the sequence parameter sets of video, the format of
    /// audio. If it changes, decoders have to restart. 0: unknown.
    pub config: u32,
}

/// The content of a PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PidRole {
    /// Something not announced.
    Other = 0,
    /// Program association table.
    Pat = 1,
    /// Program map table.
    Pmt = 2,
    /// An elementary stream of the program.
    Stream = 3,
    /// Stuffing (PID 0x1fff).
    Null = 4,
}

impl PidRole {
    /// From the stored number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Other, Self::Pat, Self::Pmt, Self::Stream, Self::Null].into_iter().find(|r| *r as u8 == number)
    }
}

/// A PID and how often it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PidUse {
    /// 13 bits.
    pub pid: u16,
    /// Its content.
    pub role: PidRole,
    /// `stream_type` of the PMT (ISO/IEC 13818-1 table 2-34); 0 unless an elementary stream.
    pub stream_type: u8,
    /// Whether the program's PCR comes on this PID.
    pub pcr: bool,
    /// TS packets.
    pub ts_packets: u64,
}

/// Parts of an index that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} number {number}: must {problem}")]
pub struct IndexError {
    /// "access points", "clock pieces", "times", "PIDs", "data bytes", "time bases", "layouts", "end".
    pub what: &'static str,
    /// Which one, from 0.
    pub number: usize,
    /// The requirement that it violates.
    pub problem: &'static str,
}

/// All parts of an index, for its encoder and for tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexParts {
    /// Random access points in ascending order.
    pub access: Vec<RandomAccessPoint>,
    /// Pieces of the clock in ascending order.
    pub pieces: Vec<ClockPiece>,
    /// PIDs in ascending order.
    pub pids: Vec<PidUse>,
    /// Media time of packets 0, 256, 512 ...
    pub times: Vec<MediaTicks>,
    /// Length of the data file.
    pub data_bytes: u64,
    /// Media time that the packets take.
    pub duration: MediaTicks,
    /// Origins of the presentation time stamps in ascending order, the first at byte 0; empty: unknown.
    pub bases: Vec<TimeBase>,
    /// Streams of the layouts in ascending order of bytes, the first layout at byte 0; empty:
    /// unknown.
    pub layouts: Vec<LayoutStream>,
    /// When the last picture (or sound) has been shown: at or after the duration. `None`: unknown.
    pub end: Option<MediaTicks>,
}

/// The index of one title.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TitleIndex {
    parts: IndexParts,
}

impl TitleIndex {
    /// Makes an index from the findings of the ingest, each list in ascending order.
    /// [`crate::volume::TitleWriter::commit`] adds the time index, length and duration.
    pub fn new(
        access: Vec<RandomAccessPoint>,
        pieces: Vec<ClockPiece>,
        pids: Vec<PidUse>,
    ) -> Result<Self, IndexError> {
        let parts = IndexParts { access, pieces, pids, ..IndexParts::default() };
        check_access(&parts.access)?;
        check_pieces(&parts.pieces)?;
        check_pids(&parts.pids)?;
        Ok(Self { parts })
    }

    /// From all parts, which are checked one by one and against each other.
    pub fn from_parts(parts: IndexParts) -> Result<Self, IndexError> {
        let IndexParts { access, pieces, pids, times, data_bytes, duration, bases, layouts, end } = parts;
        let index = Self::new(access, pieces, pids)?.with_presentation(bases, end)?;
        index.with_layouts(layouts)?.complete(times, data_bytes, duration)
    }

    /// Adds the known facts about the presentation time stamps.
    pub fn with_presentation(
        mut self,
        bases: Vec<TimeBase>,
        end: Option<MediaTicks>,
    ) -> Result<Self, IndexError> {
        check_bases(&bases)?;
        (self.parts.bases, self.parts.end) = (bases, end);
        Ok(self)
    }

    /// Adds the layouts.
    pub fn with_layouts(mut self, layouts: Vec<LayoutStream>) -> Result<Self, IndexError> {
        check_layouts(&layouts)?;
        self.parts.layouts = layouts;
        Ok(self)
    }

    /// Only the parts before `end`, where a line of the clock is known to end: the index of a title that grows.
    pub(crate) fn cut_at(mut self, end: ClockPiece) -> Self {
        let ClockPiece { byte, time } = end;
        let parts = &mut self.parts;
        parts.access.retain(|point| point.byte < byte && point.time <= time);
        parts.pieces.retain(|piece| piece.byte < byte && piece.time <= time);
        parts.pieces.push(end);
        parts.bases.retain(|base| base.byte < byte && base.time <= time);
        parts.layouts.retain(|layout| layout.byte < byte);
        parts.end = None;
        self
    }

    /// Adds the data known to the writer of the title, and checks the whole.
    pub(crate) fn complete(
        mut self,
        times: Vec<MediaTicks>,
        data_bytes: u64,
        duration: MediaTicks,
    ) -> Result<Self, IndexError> {
        let fail = |what, number, problem| Err(IndexError { what, number, problem });
        let parts = &mut self.parts;
        let packets = data_bytes.div_ceil(PACKET_BYTES);
        if packets > u64::from(u32::MAX) || !data_bytes.is_multiple_of(TS_PACKET_BYTES as u64) {
            return fail("data bytes", 0, "be a multiple of 188, at most 2^32 - 1 packets");
        }
        if times.len() as u64 != packets.div_ceil(u64::from(TIME_STEP_PACKETS)) {
            return fail("times", times.len(), "be one for every 256 packets");
        }
        if let Some(i) = (1..times.len()).find(|&i| times[i] < times[i - 1]) {
            return fail("times", i, "not be before the one before it");
        }
        if times.last().is_some_and(|&last| last > duration) {
            return fail("times", times.len() - 1, "not be after the duration");
        }
        if let Some(last) = parts.access.last()
            && (last.byte >= data_bytes || last.time > duration)
        {
            return fail("access points", parts.access.len() - 1, "lie within the data and the duration");
        }
        if let Some(last) = parts.pieces.last()
            && (last.byte > data_bytes || last.time > duration)
        {
            return fail("clock pieces", parts.pieces.len() - 1, "lie within the data and the duration");
        }
        if let Some(last) = parts.bases.last()
            && (last.byte >= data_bytes || last.time > duration)
        {
            return fail("time bases", parts.bases.len() - 1, "lie within the data and the duration");
        }
        if parts.layouts.last().is_some_and(|last| last.byte >= data_bytes) {
            return fail("layouts", parts.layouts.len() - 1, "lie within the data");
        }
        if parts.end.is_some_and(|end| end < duration) {
            return fail("end", 0, "not be before the duration");
        }
        (parts.times, parts.data_bytes, parts.duration) = (times, data_bytes, duration);
        Ok(self)
    }

    /// The last random access point whose sending starts at or before `t`; packet 0 if there is none.
    pub fn access_at_or_before(&self, t: MediaTicks) -> RandomAccessPoint {
        let after = self.parts.access.partition_point(|p| p.time <= t);
        after.checked_sub(1).map(|i| self.parts.access[i]).unwrap_or_default()
    }

    /// All random access points in ascending order.
    pub fn access_points(&self) -> &[RandomAccessPoint] {
        &self.parts.access
    }

    /// The first packet with a media time of at least `t`; the number of packets if there is none.
    ///
    /// No file is read for it, so it is exact only where media times lie on the lines between clock pieces, which the
    /// ingest's do but for rounding at a jump of the source's clock; elsewhere it is within the right 256 packets.
    /// [`crate::volume::TitleFiles::packet_at`] asks the metadata file too and is always exact.
    pub fn packet_at(&self, t: MediaTicks) -> u32 {
        let window = self.window_of(t);
        if window.start == window.end {
            return window.start;
        }
        let byte = self.byte_by_pieces(t).or_else(|| self.byte_by_times(t));
        let packet = byte.map_or(u64::from(window.end), |byte| byte.div_ceil(PACKET_BYTES));
        packet.clamp(u64::from(window.start), u64::from(window.end)) as u32
    }

    /// `start..=end` as a range `start..end`: the first packet with a media time of at least `t` is one of these or
    /// `end` itself. From the time index alone.
    pub(crate) fn window_of(&self, t: MediaTicks) -> std::ops::Range<u32> {
        let after = self.parts.times.partition_point(|&time| time < t) as u64;
        let step = u64::from(TIME_STEP_PACKETS);
        let start = if after == 0 { 0 } else { (after - 1) * step + 1 };
        let packets = u64::from(self.packets());
        start.min(packets) as u32..(after * step).min(packets) as u32
    }

    /// By the clock piece whose line passes `t`.
    fn byte_by_pieces(&self, t: MediaTicks) -> Option<u64> {
        let pieces = &self.parts.pieces;
        let from = pieces.partition_point(|p| p.time < t).checked_sub(1)?;
        let end = ClockPiece { byte: self.parts.data_bytes, time: self.parts.duration };
        pieces[from].byte_at(pieces.get(from + 1).unwrap_or(&end), t)
    }

    /// By the line between two entries of the time index.
    fn byte_by_times(&self, t: MediaTicks) -> Option<u64> {
        let times = &self.parts.times;
        let from = times.partition_point(|&time| time < t).checked_sub(1)?;
        let place = |i: usize| i as u64 * u64::from(TIME_STEP_PACKETS) * PACKET_BYTES;
        let start = ClockPiece { byte: place(from), time: times[from] };
        let end = match times.get(from + 1) {
            Some(&time) => ClockPiece { byte: place(from + 1), time },
            None => ClockPiece { byte: self.parts.data_bytes, time: self.parts.duration },
        };
        start.byte_at(&end, t)
    }

    /// Media time of a byte, by the index alone: within a tick where media times lie on the lines between clock pieces, as the
    /// ingest's do, and never outside the right 256 packets.
    pub fn time_of(&self, byte: u64) -> MediaTicks {
        let IndexParts { times, pieces, data_bytes, duration, .. } = &self.parts;
        let time = interpolate(pieces, ClockPiece { byte: *data_bytes, time: *duration }, byte);
        let at = usize::try_from(byte / PACKET_BYTES / u64::from(TIME_STEP_PACKETS)).unwrap_or(usize::MAX);
        let least = times.get(at).copied().unwrap_or_default();
        let most = times.get(at.saturating_add(1)).unwrap_or(duration);
        time.min(*most).max(least)
    }

    /// The pieces of the title's clock.
    pub fn pieces(&self) -> &[ClockPiece] {
        &self.parts.pieces
    }

    /// The layouts in ascending order, each with its streams; none: unknown.
    pub fn layouts(&self) -> impl Iterator<Item = &[LayoutStream]> {
        self.parts.layouts.chunk_by(|one, other| one.byte == other.byte)
    }

    /// The PIDs in ascending order.
    pub fn pids(&self) -> &[PidUse] {
        &self.parts.pids
    }

    /// Media time of packets 0, 256, 512 ...
    pub fn times(&self) -> &[MediaTicks] {
        &self.parts.times
    }

    /// Default-size packets.
    pub fn packets(&self) -> u32 {
        self.parts.data_bytes.div_ceil(PACKET_BYTES) as u32
    }

    /// Length of the data file.
    pub fn data_bytes(&self) -> u64 {
        self.parts.data_bytes
    }

    /// Media time that the packets take.
    pub fn duration(&self) -> MediaTicks {
        self.parts.duration
    }

    /// When the last picture has been shown; the duration where that is unknown.
    pub fn end(&self) -> MediaTicks {
        self.parts.end.unwrap_or(self.parts.duration)
    }

    /// Origins of the presentation time stamps, the first at byte 0; empty where they are unknown.
    pub fn bases(&self) -> &[TimeBase] {
        &self.parts.bases
    }

    /// All parts.
    pub fn parts(&self) -> &IndexParts {
        &self.parts
    }
}

/// Media time of `byte`, on straight lines from each piece's beginning to the next and to the end.
fn interpolate(pieces: &[ClockPiece], end: ClockPiece, byte: u64) -> MediaTicks {
    let after = pieces.partition_point(|piece| piece.byte <= byte);
    let from = after.checked_sub(1).map(|i| pieces[i]).unwrap_or_default();
    from.time_of(pieces.get(after).unwrap_or(&end), byte)
}

fn check_access(access: &[RandomAccessPoint]) -> Result<(), IndexError> {
    let what = "access points";
    for (number, point) in access.iter().enumerate() {
        if u64::from(point.packet) > point.byte / PACKET_BYTES {
            return Err(IndexError {
                what,
                number,
                problem: "start sending at or before the packet with its byte",
            });
        }
        if let Some(before) = number.checked_sub(1).map(|i| &access[i])
            && (point.byte <= before.byte || point.packet < before.packet || point.time < before.time)
        {
            return Err(IndexError { what, number, problem: "lie behind the one before it" });
        }
    }
    Ok(())
}

fn check_pieces(pieces: &[ClockPiece]) -> Result<(), IndexError> {
    match (1..pieces.len())
        .find(|&i| pieces[i].byte <= pieces[i - 1].byte || pieces[i].time < pieces[i - 1].time)
    {
        None => Ok(()),
        Some(number) => {
            Err(IndexError { what: "clock pieces", number, problem: "lie behind the one before it" })
        }
    }
}

fn check_bases(bases: &[TimeBase]) -> Result<(), IndexError> {
    let what = "time bases";
    for (number, base) in bases.iter().enumerate() {
        let fail = |problem| Err(IndexError { what, number, problem });
        if base.first_pts >= PTS_MODULUS {
            return fail("have a time stamp of 33 bits");
        }
        match number.checked_sub(1).map(|i| &bases[i]) {
            None if base.byte != 0 || base.time != MediaTicks(0) => {
                return fail("begin at byte 0 and time 0");
            }
            Some(before) if base.byte <= before.byte || base.time < before.time => {
                return fail("lie behind the one before it");
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_layouts(layouts: &[LayoutStream]) -> Result<(), IndexError> {
    for (number, stream) in layouts.iter().enumerate() {
        let fail = |problem| Err(IndexError { what: "layouts", number, problem });
        if stream.pid > 0x1fff {
            return fail("have a PID of at most 0x1fff");
        }
        if stream.codec.len() > MAX_CODEC_NAME_BYTES || stream.codec.contains('\0') {
            return fail("have a codec of at most 24 bytes");
        }
        if stream.language.as_ref().is_some_and(|language| language.len() != 3) {
            return fail("have a language of three letters");
        }
        match number.checked_sub(1).map(|i| &layouts[i]) {
            None if stream.byte != 0 => return fail("begin at byte 0"),
            Some(before) if stream.byte < before.byte => return fail("not lie before the one before it"),
            _ => {}
        }
    }
    Ok(())
}

fn check_pids(pids: &[PidUse]) -> Result<(), IndexError> {
    let what = "PIDs";
    for (number, pid) in pids.iter().enumerate() {
        if pid.pid > 0x1fff {
            return Err(IndexError { what, number, problem: "be at most 0x1fff" });
        }
        if number > 0 && pid.pid <= pids[number - 1].pid {
            return Err(IndexError { what, number, problem: "be above the one before it" });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
