//! What is known of a title before any segment of it is made: its tracks, and when each segment begins.
//!
//! Cuts are those of the transport stream's segments. A picture belongs to the segment in whose bytes its PES packet begins; cuts are access points, so
//! that is where it is in decoding order. A frame of sound belongs to the segment in whose time it begins, wherever in the title it lies. Both rules
//! need nothing of other segments, and put each picture and each frame into one segment.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::limits::web::{
    DESCRIBE_BYTES, MADE_READ_BYTES, MADE_TAIL_BYTES, MAX_CMAF_PARTS, MAX_CMAF_TRACKS,
    MAX_MADE_SEGMENT_BYTES, MAX_STAMP_DISTANCE_TICKS, MAX_TRACK_LOOK_BYTES,
};
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_core::units::BitRate;
use millrace_store::index::TitleIndex;
use millrace_store::ingest::ts_packet::{PesStart, TsPacket};
use millrace_store::volume::TitleInfo;

use super::audio::{self, Coding};
use super::boxes::Config;
use super::demux::{Demux, Elementary};
use super::timeline::Timeline;
use super::video::{self, Syntax};
use crate::hls::answer::Text;
use crate::hls::segments::{Segment, segments};
use crate::site::{SiteError, TitleBytes};

/// A stream of a title that segments are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Track {
    pub(crate) pid: u16,
    /// What it is as the title has it.
    codec: String,
    pub(crate) config: Config,
    /// ISO 639-2.
    pub(crate) language: Option<String>,
    /// Of a sound; nobody asks for that of pictures.
    pub(crate) rate: BitRate,
}

/// A stretch of a title in which time stamps do not jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its segments.
    pub(crate) segments: Range<usize>,
    pub(crate) bytes: Range<u64>,
    /// When each track begins and ends in it.
    pub(crate) spans: Vec<Range<i64>>,
    /// What decoders are told of each track: joined recordings may differ.
    pub(crate) configs: Vec<Config>,
}

/// All of that.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) timeline: Timeline,
    pub(crate) segments: Vec<Segment>,
    /// When each segment begins.
    pub(crate) times: Vec<i64>,
    /// At least one; pictures first.
    pub(crate) tracks: Vec<Track>,
    pub(crate) parts: Vec<Part>,
    /// How much later than it is decoded the first picture is shown. The title's time begins so much before that, so that no picture is decoded before 0.
    pub(crate) reorder: i64,
    /// The media playlists of each track: of its segments, and of pictures that stand alone.
    pub(crate) playlists: Vec<[OnceLock<Text>; 2]>,
}

/// Why a title cannot be had in this form: for viewers.
pub(crate) type Unsuitable = &'static str;

/// Looks at a title.
pub(crate) fn plan(
    title: &TitleInfo,
    index: Arc<TitleIndex>,
    bytes: &mut dyn TitleBytes,
) -> Result<Result<Plan, Unsuitable>, SiteError> {
    let found = segments(&index);
    if !found.are_independent {
        return Ok(Err("the title has no places where a decoder can start"));
    }
    let length = |segment: &Segment| segment.bytes.end - segment.bytes.start;
    if found.list.iter().any(|segment| length(segment) > MAX_MADE_SEGMENT_BYTES as u64) {
        return Ok(Err("the title has too few places where a decoder can start"));
    }
    let parts = parts(&found.list);
    if parts.len() > MAX_CMAF_PARTS {
        return Ok(Err("the title's time stamps jump too often"));
    }
    let first = index.access_points()[0].byte;
    let (mut tracks, demux) = find_tracks(title, first..index.data_bytes(), bytes)?;
    if tracks.is_empty() {
        return Ok(Err("the title has no pictures of H.264 or H.265 and no sound of AAC, AC-3 or E-AC-3"));
    }
    for track in &mut tracks {
        if let Config::Audio(config) = &track.config {
            track.rate = audio::bit_rate(demux.stream(track.pid), config);
        }
    }
    let stamps = demux.stream(tracks[0].pid).marks.iter().find_map(|mark| mark.stamps);
    let (pts, dts) = stamps.unwrap_or_default();
    let reorder = match tracks[0].config {
        Config::Video(_) => pts.wrapping_sub(dts) % millrace_store::index::PTS_MODULUS,
        Config::Audio(_) => 0,
    };
    // More than any decoder reorders is a damaged stamp.
    let reorder = if reorder <= MAX_STAMP_DISTANCE_TICKS { reorder.cast_signed() } else { 0 };
    let mut plan = Plan {
        playlists: tracks.iter().map(|_| Default::default()).collect(),
        timeline: Timeline::new(index, pts),
        parts,
        segments: found.list,
        times: Vec::new(),
        tracks,
        reorder,
    };
    plan.find_spans(bytes)?;
    plan.find_times(bytes)?;
    Ok(Ok(plan))
}

/// Reads bytes of a title, whole packets, a piece at a time; `each` says whether to go on.
pub(crate) fn read(
    bytes: &mut dyn TitleBytes,
    range: Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), SiteError> {
    let mut at = range.start;
    let mut piece = vec![0; MADE_READ_BYTES];
    while at < range.end {
        let length = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(MADE_READ_BYTES);
        bytes.read(at, &mut piece[..length])?;
        if !each(at, &piece[..length]) {
            break;
        }
        at += length as u64;
    }
    Ok(())
}

/// What a stream can become.
fn kind(codec: &str) -> Option<Result<Syntax, Coding>> {
    match codec {
        "H.264" => Some(Ok(Syntax::H264)),
        "H.265" => Some(Ok(Syntax::H265)),
        "AAC" => Some(Err(Coding::Aac)),
        "AC-3" => Some(Err(Coding::Ac3)),
        "E-AC-3" => Some(Err(Coding::Eac3)),
        _ => None,
    }
}

/// Whether pictures or a sound of this coding can be had in this form; `Some(true)`: they are pictures.
pub(crate) fn can_have(codec: &str) -> Option<bool> {
    kind(codec).map(|kind| kind.is_ok())
}

/// What decoders are told of a stream, if that is in these bytes of it.
pub(crate) fn config_of(stream: &Elementary, codec: &str) -> Option<Config> {
    match kind(codec)? {
        Ok(syntax) => video::config(stream, syntax).map(Config::Video),
        Err(coding) => audio::config(stream, coding).map(Config::Audio),
    }
}

/// The first pictures and all sounds that can be had, and what was read for that.
fn find_tracks(
    title: &TitleInfo,
    range: Range<u64>,
    bytes: &mut dyn TitleBytes,
) -> Result<(Vec<Track>, Demux), SiteError> {
    let is = |video: bool| {
        title.streams.iter().filter(move |s| kind(&s.codec).is_some_and(|kind| kind.is_ok() == video))
    };
    let wanted: Vec<_> = is(true).take(1).chain(is(false)).take(MAX_CMAF_TRACKS).collect();
    let mut demux = Demux::new(wanted.iter().map(|stream| stream.pid));
    let mut tracks: Vec<Option<Track>> = vec![None; wanted.len()];
    let mut next_look = DESCRIBE_BYTES as u64;
    let end = range.end.min(range.start + MAX_TRACK_LOOK_BYTES as u64);
    read(bytes, range.start..end, |at, piece| {
        demux.push(at, piece, |_| true);
        let have = at + piece.len() as u64 - range.start;
        if have >= next_look || at + piece.len() as u64 == end {
            next_look = have * 2;
            for (track, stream) in tracks.iter_mut().zip(&wanted).filter(|(track, _)| track.is_none()) {
                let config = config_of(demux.stream(stream.pid), &stream.codec);
                let language = stream.language.clone();
                *track = config.map(|config| Track {
                    pid: stream.pid,
                    codec: stream.codec.clone(),
                    config,
                    language,
                    rate: BitRate(0),
                });
            }
        }
        tracks.iter().any(Option::is_none)
    })?;
    Ok((tracks.into_iter().flatten().collect(), demux))
}

/// The stretches between jumps of the time stamps.
fn parts(segments: &[Segment]) -> Vec<Part> {
    let jumps = segments.iter().enumerate().filter(|(at, segment)| *at == 0 || segment.is_discontinuous);
    let starts: Vec<usize> = jumps.map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([segments.len()]);
    let part = |(start, end): (usize, usize)| Part {
        segments: start..end,
        bytes: segments[start].bytes.start..segments[end - 1].bytes.end,
        spans: Vec::new(),
        configs: Vec::new(),
    };
    starts.iter().copied().zip(ends).map(part).collect()
}

impl Plan {
    /// The part that has a segment.
    pub(crate) fn part_of(&self, segment: usize) -> usize {
        self.parts.partition_point(|part| part.segments.end <= segment).min(self.parts.len() - 1)
    }

    /// When a track's samples of a segment begin and end.
    pub(crate) fn span(&self, track: usize, segment: usize) -> Range<i64> {
        let part = &self.parts[self.part_of(segment)];
        let span = &part.spans[track];
        let is_first = segment == part.segments.start;
        let is_last = segment + 1 == part.segments.end;
        // A track may begin later than its part, and end earlier.
        let start = if is_first { span.start } else { self.times[segment].max(span.start) };
        let end = if is_last { span.end } else { self.times[segment + 1].min(span.end) };
        start..end.max(start)
    }

    /// The same for all segments, as playlists have them.
    pub(crate) fn listed(&self, track: usize) -> Vec<Segment> {
        let listed = self.segments.iter().enumerate().map(|(at, segment)| {
            let span = self.span(track, at);
            Segment { duration: MediaTicks((span.end - span.start).cast_unsigned()), ..segment.clone() }
        });
        listed.collect()
    }

    /// When what begins with a PES packet is decoded, and when it is shown.
    pub(crate) fn stamps(&self, byte: u64, stamps: Option<(u64, u64)>) -> Option<(i64, i64)> {
        let (pts, dts) = stamps?;
        Some((self.timeline.time(byte, dts)? + self.reorder, self.timeline.time(byte, pts)? + self.reorder))
    }

    /// About when the packet at `byte` is shown.
    fn about(&self, byte: u64) -> i64 {
        self.timeline.about(byte) + self.reorder
    }

    /// When tracks begin and end in each part. Where one would begin before it has ended in the part before, all that follows is shown later.
    fn find_spans(&mut self, bytes: &mut dyn TitleBytes) -> Result<(), SiteError> {
        let mut shift = 0;
        for at in 0..self.parts.len() {
            let range = self.parts[at].bytes.clone();
            let (begins, configs) = self.begins(bytes, range.clone())?;
            self.parts[at].configs = configs;
            // The shift of the part before counts here already.
            let mut further = 0;
            if let Some(before) = at.checked_sub(1).map(|before| &self.parts[before]) {
                let overlaps =
                    before.spans.iter().zip(&begins).filter_map(|(span, begin)| Some(span.end - (*begin)?));
                further = overlaps.max().unwrap_or(0).max(0);
            }
            shift += further;
            self.timeline.shift(range.start, shift);
            let ends = self.ends(bytes, at)?;
            let last = range.end - TS_PACKET_BYTES as u64;
            let about = self.about(range.start)..self.about(last);
            let span = |(begin, end): (Option<i64>, Option<i64>)| {
                let begin = begin.map_or(about.start, |begin| begin + further).max(0);
                begin..end.unwrap_or(about.end).max(begin)
            };
            self.parts[at].spans = begins.into_iter().zip(ends).map(span).collect();
        }
        Ok(())
    }

    /// The first time of each track in these bytes, and what decoders are told of it: what is said of the whole title where nothing is found.
    fn begins(
        &self,
        bytes: &mut dyn TitleBytes,
        range: Range<u64>,
    ) -> Result<(Vec<Option<i64>>, Vec<Config>), SiteError> {
        let mut begins = vec![None; self.tracks.len()];
        let mut configs: Vec<Option<Config>> = vec![None; self.tracks.len()];
        let mut next_look = DESCRIBE_BYTES as u64;
        let end = range.end.min(range.start + MAX_TRACK_LOOK_BYTES as u64);
        let mut demux = self.demux();
        read(bytes, range.start..end, |at, piece| {
            demux.push(at, piece, |_| true);
            for (track, begin) in begins.iter_mut().enumerate().filter(|(_, begin)| begin.is_none()) {
                *begin = self.times_of(&demux, track).next().map(|(_, time)| time);
            }
            let have = at + piece.len() as u64 - range.start;
            if have >= next_look || at + piece.len() as u64 == end {
                next_look = have * 2;
                for (config, track) in
                    configs.iter_mut().zip(&self.tracks).filter(|(config, _)| config.is_none())
                {
                    *config = config_of(demux.stream(track.pid), &track.codec);
                }
            }
            begins.iter().any(Option::is_none) || configs.iter().any(Option::is_none)
        })?;
        let known = self.tracks.iter().map(|track| track.config.clone());
        let configs = configs.into_iter().zip(known).map(|(found, known)| found.unwrap_or(known));
        Ok((begins, configs.collect()))
    }

    /// When the last picture or frame of each track in a part ends.
    fn ends(&self, bytes: &mut dyn TitleBytes, part: usize) -> Result<Vec<Option<i64>>, SiteError> {
        let Part { bytes: range, configs, .. } = &self.parts[part];
        let tail = range.end.saturating_sub(MADE_TAIL_BYTES as u64).max(range.start);
        let mut demux = self.demux();
        read(bytes, tail..range.end, |at, piece| {
            demux.push(at, piece, |_| true);
            true
        })?;
        self.forget_stamps(&mut demux);
        let end = |(track, config): (usize, &Config)| match config {
            Config::Audio(config) => {
                let stream = demux.stream(self.tracks[track].pid);
                audio::frames(stream, config).iter().rev().find_map(|frame| {
                    let time = self.frame_time(config.rate, stream, frame)?;
                    let end = time + i64::from(config.frame) * MEDIA_HZ.cast_signed();
                    // Rounded up, and a tick more for what rounding to samples may add.
                    Some(end.div_euclid(i64::from(config.rate)) + 2)
                })
            }
            Config::Video(_) => {
                let times: Vec<i64> = self.times_of(&demux, track).map(|(_, time)| time).collect();
                let last = *times.last()?;
                let before = times.iter().rev().find(|&&time| time < last);
                Some(last + before.map_or(0, |before| last - before))
            }
        };
        Ok(configs.iter().enumerate().map(end).collect())
    }

    /// Forgets the stamps that say nothing.
    pub(crate) fn forget_stamps(&self, demux: &mut Demux) {
        demux.forget_stamps(|mark| self.stamps(mark.byte, mark.stamps).is_some());
    }

    /// When each segment begins: with the picture at its beginning.
    fn find_times(&mut self, bytes: &mut dyn TitleBytes) -> Result<(), SiteError> {
        let mut before = -1;
        for at in 0..self.segments.len() {
            let part = &self.parts[self.part_of(at)];
            let byte = self.segments[at].bytes.start;
            let found = match at == part.segments.start {
                true => Some(part.spans[0].start),
                false => {
                    let mut packet = [0; TS_PACKET_BYTES];
                    bytes.read(byte, &mut packet)?;
                    let packet = TsPacket(&packet);
                    let start = PesStart::parse(packet.payload())
                        .filter(|_| packet.pid() == self.tracks[0].pid && packet.starts_unit());
                    let stamps = start.and_then(|start| start.presentation_stamp.zip(start.decode_stamp));
                    self.stamps(byte, stamps).map(|(decoded, _)| decoded)
                }
            };
            before = found.unwrap_or_else(|| self.about(byte)).max(before + 1);
            self.times.push(before);
        }
        Ok(())
    }

    pub(crate) fn demux(&self) -> Demux {
        Demux::new(self.tracks.iter().map(|track| track.pid))
    }

    /// Where the PES packets of a track begin that have usable stamps, and when what begins there is decoded.
    pub(crate) fn times_of<'a>(
        &'a self,
        demux: &'a Demux,
        track: usize,
    ) -> impl DoubleEndedIterator<Item = (u64, i64)> + 'a {
        let marks = &demux.stream(self.tracks[track].pid).marks;
        marks.iter().filter_map(move |mark| {
            self.stamps(mark.byte, mark.stamps).map(|(decoded, _)| (mark.byte, decoded))
        })
    }

    /// When a frame of sound is played, in parts of a tick: times `rate`, the samples a second.
    pub(crate) fn frame_time(&self, rate: u32, stream: &Elementary, frame: &audio::Frame) -> Option<i64> {
        let mark = &stream.marks[frame.mark];
        let (time, _) = self.stamps(mark.byte, mark.stamps)?;
        Some(time * i64::from(rate) + (frame.behind * MEDIA_HZ).cast_signed())
    }
}
