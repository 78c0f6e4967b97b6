//! The facts known about a title before any segment of it is made: its tracks, and the start of
//! each segment.
//!
//! Cuts are those of the transport stream's segments. A picture belongs to the segment in whose bytes its PES packet begins; cuts are access points, so
//! that is where it is in decoding order. A frame of sound belongs to the segment in whose time it begins, wherever in the title it lies. Both rules
//! need nothing of other segments, and put each picture and each frame into one segment.
//!
//! A title consists of parts, which begin where time stamps jump or the streams change. In each
//! part a track is one stream, or absent. If an audio track continues into the next part, the
//! boundary is a time, as between any two segments; if its format changes there, the boundary is
//! the first frame of the new format.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_core::units::BitRate;
use millrace_media::ts_packet::{PesStart, TsPacket};
use millrace_store::index::{LayoutStream, TitleIndex};
use millrace_store::volume::TitleInfo;

use super::tracks::{self, PartStream};
use crate::elementary::audio::{AudioConfig, AudioFrame};
use crate::elementary::{Config, Demux, Elementary, Timeline, config_of, is_audio, is_video, read};
use crate::hls::segments::{MediaSegment, segments};
use crate::hls::text::Text;
use crate::limits::{DESCRIBE_BYTES, MAX_CMAF_PARTS, MAX_MADE_SEGMENT_BYTES, MAX_TRACK_LOOK_BYTES};
use crate::site::{SiteError, TitleBytes};

/// A stream of a title that segments are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CmafTrack {
    /// Its first PID if that is unique, otherwise another number; used as its name in addresses.
    pub(crate) pid: u16,
    /// The decoder configuration in the first part that has the track.
    pub(crate) config: Config,
    /// ISO 639-2.
    pub(crate) language: Option<String>,
    /// Of an audio track; that of video is not used.
    pub(crate) rate: BitRate,
}

/// A track in one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InPart {
    pub(crate) stream: PartStream,
    /// The decoder configuration in this part.
    pub(crate) config: Config,
    /// The bytes of the title that may hold its samples.
    pub(crate) reach: Range<u64>,
    /// The times at which it begins and ends.
    pub(crate) span: Range<i64>,
    /// Whether the track continues from the previous part, and into the next one. Their bytes then
    /// overlap, and only time separates their samples.
    pub(crate) goes_on: (bool, bool),
}

/// A stretch of a title in which time stamps do not jump and streams do not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContinuousPart {
    /// Its segments.
    pub(crate) segments: Range<usize>,
    pub(crate) bytes: Range<u64>,
    /// The bytes of all adjacent parts that no time stamp jump separates.
    pub(crate) stretch: Range<u64>,
    /// By track; `None` if the part lacks the track.
    pub(crate) tracks: Vec<Option<InPart>>,
}

/// The plan for a title in fragmented MP4: its segments, tracks and parts.
#[derive(Clone, Debug)]
pub(crate) struct CmafPlan {
    pub(crate) timeline: Timeline,
    pub(crate) segments: Vec<MediaSegment>,
    /// When each segment begins.
    pub(crate) times: Vec<i64>,
    /// At least one; pictures first.
    pub(crate) tracks: Vec<CmafTrack>,
    pub(crate) parts: Vec<ContinuousPart>,
    /// Delay of all times relative to the first time stamp, so that no picture is decoded and no
    /// audio is played before 0.
    pub(crate) reorder: i64,
    /// Whether the index records where parameter sets change.
    pub(crate) knows_layouts: bool,
    /// The media playlists of each track: of its segments, and of pictures that stand alone.
    pub(crate) playlists: Vec<[OnceLock<Text>; 2]>,
}

/// Why a title has no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// The title is not available in this form; states the reason, for viewers.
    #[error("{0}")]
    Unsuitable(&'static str),
    /// The title cannot be read.
    #[error(transparent)]
    Site(#[from] SiteError),
}

/// Looks at a title.
pub(crate) fn plan(
    title: &TitleInfo,
    index: Arc<TitleIndex>,
    bytes: &mut dyn TitleBytes,
) -> Result<CmafPlan, PlanError> {
    let found = segments(&index);
    if !found.are_independent {
        return Err(PlanError::Unsuitable("the title has no places where a decoder can start"));
    }
    let length = |segment: &MediaSegment| segment.bytes.end - segment.bytes.start;
    if found.list.iter().any(|segment| length(segment) > MAX_MADE_SEGMENT_BYTES as u64) {
        return Err(PlanError::Unsuitable("the title has too few places where a decoder can start"));
    }
    let starts =
        || found.list.iter().enumerate().filter(|(at, segment)| *at == 0 || segment.is_discontinuous);
    if starts().count() > MAX_CMAF_PARTS {
        return Err(PlanError::Unsuitable("the title's time stamps or streams change too often"));
    }
    let layouts = tracks::layouts(title, &index);
    let in_parts: Vec<usize> = starts().map(|(_, segment)| segment.layout).collect();
    let first = match index.bases().first() {
        Some(base) => base.first_pts,
        None => first_stamp(&layouts[0], &index, bytes)?,
    };
    let mut plan = CmafPlan {
        timeline: Timeline::new(Arc::clone(&index), first),
        segments: found.list.clone(),
        times: Vec::new(),
        tracks: Vec::new(),
        parts: Vec::new(),
        reorder: 0,
        knows_layouts: index.layouts().next().is_some(),
        playlists: Vec::new(),
    };
    let list = tracks::match_up(&layouts, &in_parts);
    plan.find_parts(&index, &list, bytes)?;
    if !plan.choose_tracks(&list) {
        return Err(PlanError::Unsuitable(
            "the title has no pictures of H.264 or H.265 and no sound of AAC, AC-3 or E-AC-3",
        ));
    }
    plan.join_parts(&layouts, bytes)?;
    plan.find_times(bytes)?;
    Ok(plan)
}

/// The first time stamp of the video, or of any stream: the origin of a title whose index has none.
fn first_stamp(
    streams: &[LayoutStream],
    index: &TitleIndex,
    bytes: &mut dyn TitleBytes,
) -> Result<u64, SiteError> {
    let video = streams.iter().find(|stream| is_video(&stream.codec));
    let stream = video.or_else(|| streams.iter().find(|stream| is_audio(&stream.codec)));
    let Some(stream) = stream else { return Ok(0) };
    let first = index.access_points().first().map_or(0, |point| point.byte);
    let mut demux = Demux::new([stream.pid]);
    let mut found = None;
    read(bytes, first..index.data_bytes().min(first + MAX_TRACK_LOOK_BYTES as u64), |at, piece| {
        demux.push(at, piece, |_| true);
        found = demux.stream(stream.pid).marks.iter().find_map(|mark| mark.stamps);
        found.is_none()
    })?;
    Ok(found.map_or(0, |(shown, _)| shown))
}

impl CmafPlan {
    /// Finds the parts, with the stream and the configuration of each track. Their times are set
    /// later.
    fn find_parts(
        &mut self,
        index: &TitleIndex,
        list: &[tracks::Sketch],
        bytes: &mut dyn TitleBytes,
    ) -> Result<(), SiteError> {
        let is_start = |at: &usize| *at == 0 || self.segments[*at].is_discontinuous;
        let starts: Vec<usize> = (0..self.segments.len()).filter(is_start).collect();
        let is_jump = |at: usize| at >= self.segments.len() || at == 0 || self.segments[at].is_jump;
        for (number, &start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).copied().unwrap_or(self.segments.len());
            let from = (0..=start).rev().find(|&at| is_jump(at)).unwrap_or(0);
            let to = (end..=self.segments.len()).find(|&at| is_jump(at)).unwrap_or(end);
            let range = self.segments[start].bytes.start..self.segments[end - 1].bytes.end;
            let streams: Vec<Option<&PartStream>> =
                list.iter().map(|sketch| sketch.streams[number].as_ref()).collect();
            let configs = configs(bytes, index, &range, &streams)?;
            let tracks = streams.iter().zip(configs).map(|(stream, config)| {
                Some(InPart {
                    stream: (*stream)?.clone(),
                    config: config?,
                    reach: range.clone(),
                    span: 0..0,
                    goes_on: (false, false),
                })
            });
            self.parts.push(ContinuousPart {
                segments: start..end,
                stretch: self.segments[from].bytes.start..self.segments[to - 1].bytes.end,
                tracks: tracks.collect(),
                bytes: range,
            });
        }
        Ok(())
    }

    /// Keeps the tracks that have data in some part. Returns whether there are any.
    fn choose_tracks(&mut self, list: &[tracks::Sketch]) -> bool {
        let found = |at: usize| self.parts.iter().find_map(|part| part.tracks[at].as_ref());
        let kept: Vec<bool> = (0..list.len()).map(|at| found(at).is_some()).collect();
        for (at, sketch) in list.iter().enumerate() {
            if let Some(first) = self.parts.iter().find_map(|part| part.tracks[at].as_ref()) {
                self.tracks.push(CmafTrack {
                    pid: sketch.id,
                    config: first.config.clone(),
                    language: sketch.language.clone(),
                    rate: BitRate(0),
                });
            }
        }
        for part in &mut self.parts {
            let mut kept = kept.iter();
            part.tracks.retain(|_| kept.next() == Some(&true));
        }
        self.playlists = self.tracks.iter().map(|_| Default::default()).collect();
        !self.tracks.is_empty()
    }

    /// The part that has a segment.
    pub(crate) fn part_of(&self, segment: usize) -> usize {
        self.parts.partition_point(|part| part.segments.end <= segment).min(self.parts.len() - 1)
    }

    /// The time range of a track's samples in a segment; empty if it has none.
    pub(crate) fn span(&self, track: usize, segment: usize) -> Range<i64> {
        let part = &self.parts[self.part_of(segment)];
        let Some(of) = &part.tracks[track] else { return self.times[segment]..self.times[segment] };
        let (open, span) = (self.bounds(track, segment), &of.span);
        // A track may begin later than its part, and end earlier.
        let start = open.0.unwrap_or(span.start).max(span.start);
        let end = open.1.unwrap_or(span.end).min(span.end);
        start..end.max(start)
    }

    /// The bounds of a track's samples in a segment; `None` where the track begins or ends.
    pub(crate) fn bounds(&self, track: usize, segment: usize) -> (Option<i64>, Option<i64>) {
        let part = &self.parts[self.part_of(segment)];
        let of = part.tracks[track].as_ref();
        let goes_on = of.map_or((false, false), |of| of.goes_on);
        let span = of.map(|of| of.span.clone());
        let start = match segment == part.segments.start {
            true => span.clone().filter(|_| goes_on.0).map(|span| span.start),
            false => Some(self.times[segment]),
        };
        let end = match segment + 1 == part.segments.end {
            true => span.filter(|_| goes_on.1).map(|span| span.end),
            false => Some(self.times[segment + 1]),
        };
        (start, end)
    }

    /// The segments of a track with the lengths that its playlist lists; for audio, the length of
    /// the frames in each. A segment without samples has length 0, and its time is added to a
    /// neighbouring segment, so that all tracks keep the same times.
    pub(crate) fn listed(&self, track: usize) -> Vec<MediaSegment> {
        let mut listed: Vec<MediaSegment> = Vec::with_capacity(self.segments.len());
        let (mut last, mut carried) = (None, 0);
        for (at, segment) in self.segments.iter().enumerate() {
            let span = self.span(track, at);
            let of = self.parts[self.part_of(at)].tracks[track].as_ref();
            let span = of.map_or(0..0, |of| of.whole_frames(span));
            let mut length = span.end - span.start;
            if length > 0 {
                length += std::mem::take(&mut carried);
                last = Some(at);
            } else {
                let until = self.times.get(at + 1).map_or(self.times[at], |&next| next.max(self.times[at]));
                match last.and_then(|last: usize| listed.get_mut(last)) {
                    Some(last) => last.duration.0 += (until - self.times[at]).cast_unsigned(),
                    None => carried += until - self.times[at],
                }
            }
            listed.push(MediaSegment {
                duration: MediaTicks(length.max(0).cast_unsigned()),
                ..segment.clone()
            });
        }
        listed
    }

    /// When what begins with a PES packet is decoded, and when it is shown.
    pub(crate) fn stamps(&self, byte: u64, stamps: Option<(u64, u64)>) -> Option<(i64, i64)> {
        let (pts, dts) = stamps?;
        Some((self.timeline.time(byte, dts)? + self.reorder, self.timeline.time(byte, pts)? + self.reorder))
    }

    /// About when the packet at `byte` is shown.
    pub(super) fn about(&self, byte: u64) -> i64 {
        self.timeline.about(byte) + self.reorder
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
            let first = part.tracks[0].as_ref();
            let found = match at == part.segments.start {
                true => first.map(|first| first.span.start),
                false => {
                    let mut packet = [0; TS_PACKET_BYTES];
                    bytes.read(byte, &mut packet)?;
                    let packet = TsPacket(&packet);
                    let is_ours = first.is_some_and(|first| packet.pid() == first.stream.pid);
                    let start = PesStart::parse(packet.payload()).filter(|_| is_ours && packet.starts_unit());
                    let stamps = start.and_then(|start| start.presentation_stamp.zip(start.decode_stamp));
                    self.stamps(byte, stamps).map(|(decoded, _)| decoded)
                }
            };
            before = found.unwrap_or_else(|| self.about(byte)).max(before + 1);
            self.times.push(before);
        }
        Ok(())
    }

    pub(crate) fn demux(&self, part: usize) -> Demux {
        Demux::new(self.parts[part].tracks.iter().flatten().map(|of| of.stream.pid))
    }

    /// Where the PES packets of a track begin that have usable stamps, and when what begins there is decoded.
    pub(crate) fn times_of<'a>(
        &'a self,
        demux: &'a Demux,
        of: &InPart,
    ) -> impl DoubleEndedIterator<Item = (u64, i64)> + 'a {
        let marks = &demux.stream(of.stream.pid).marks;
        marks.iter().filter_map(move |mark| {
            self.stamps(mark.byte, mark.stamps).map(|(decoded, _)| (mark.byte, decoded))
        })
    }

    /// When a frame of sound is played, in parts of a tick: times `rate`, the samples a second.
    pub(crate) fn frame_time(&self, rate: u32, stream: &Elementary, frame: &AudioFrame) -> Option<i64> {
        let mark = &stream.marks[frame.mark];
        let (time, _) = self.stamps(mark.byte, mark.stamps)?;
        let behind = frame.samples * MEDIA_HZ * u64::from(rate) / u64::from(frame.config.rate);
        Some((time + frame.ticks.cast_signed()) * i64::from(rate) + behind.cast_signed())
    }
}

impl InPart {
    /// Rounds a range up to frame boundaries, assuming that frames are contiguous from the
    /// beginning of the track.
    fn whole_frames(&self, span: Range<i64>) -> Range<i64> {
        let Config::Audio(AudioConfig { frame, rate, .. }) = &self.config else { return span };
        let (frame, rate) = (i64::from(*frame) * MEDIA_HZ.cast_signed(), i64::from(*rate));
        let whole = |time: i64| {
            let frames = ((time - self.span.start) * rate).div_euclid(frame);
            let at = |frames: i64| self.span.start + (frames * frame).div_euclid(rate);
            if at(frames) >= time { at(frames) } else { at(frames + 1) }
        };
        let end = if span.end >= self.span.end { span.end } else { whole(span.end) };
        let start = whole(span.start);
        // Less than a millisecond is not a frame: the ends of tracks are rounded up.
        start..if end - start < MEDIA_HZ.cast_signed() / 1000 { start } else { end }
    }
}

/// The decoder configuration of each stream in a range of the title.
fn configs(
    bytes: &mut dyn TitleBytes,
    index: &TitleIndex,
    range: &Range<u64>,
    streams: &[Option<&PartStream>],
) -> Result<Vec<Option<Config>>, SiteError> {
    let mut configs: Vec<Option<Config>> = vec![None; streams.len()];
    // Start at the first access point, which has everything that a decoder needs.
    let points = index.access_points();
    let first = points.get(points.partition_point(|point| point.byte < range.start)).map(|point| point.byte);
    let start = first.filter(|&first| first < range.end).unwrap_or(range.start);
    let end = range.end.min(start + MAX_TRACK_LOOK_BYTES as u64);
    let mut demux = Demux::new(streams.iter().flatten().map(|stream| stream.pid));
    let mut next_look = DESCRIBE_BYTES as u64;
    read(bytes, start..end, |at, piece| {
        demux.push(at, piece, |_| true);
        let have = at + piece.len() as u64 - start;
        if have >= next_look || at + piece.len() as u64 == end {
            next_look = have * 2;
            for (config, stream) in configs.iter_mut().zip(streams).filter(|(config, _)| config.is_none()) {
                *config = stream.and_then(|stream| config_of(demux.stream(stream.pid), &stream.codec));
            }
        }
        configs.iter().zip(streams).any(|(config, stream)| config.is_none() && stream.is_some())
    })?;
    Ok(configs)
}
