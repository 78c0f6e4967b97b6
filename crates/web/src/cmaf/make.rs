//! One segment of all tracks, made of the title's bytes in one pass.

use std::ops::Range;

use millrace_core::limits::TS_PACKET_BYTES;

use super::boxes::{self, Mp4Sample};
use super::plan::{CmafPlan, ContinuousPart, InPart};
use super::tracks::PartStream;
use crate::elementary::audio::{self, AudioConfig};
use crate::elementary::video::{self, Picture, VideoConfig};
use crate::elementary::{Config, Demux, Elementary, read};
use crate::limits::{MADE_FIRST_LOOK_TICKS, MADE_LOOK_BYTES, MADE_LOOK_TICKS, MAX_MADE_SEGMENT_BYTES};
use crate::site::{SiteError, TitleBytes};

/// Which segment is made, and what bounds it.
struct Bounds<'a> {
    number: usize,
    /// The bytes of the segment, and its part of the title.
    bytes: Range<u64>,
    part: &'a ContinuousPart,
    /// The time range of each track; `None` where the track begins or ends.
    times: Vec<(Option<i64>, Option<i64>)>,
}

/// Media segments of this number: of each track one.
pub(crate) fn make(
    plan: &CmafPlan,
    bytes: &mut dyn TitleBytes,
    number: usize,
) -> Result<Vec<Vec<u8>>, SiteError> {
    let segment = plan.segments.get(number).ok_or(SiteError::NoTitle)?;
    let bounds = Bounds {
        number,
        bytes: segment.bytes.clone(),
        part: &plan.parts[plan.part_of(number)],
        times: (0..plan.tracks.len()).map(|track| plan.bounds(track, number)).collect(),
    };
    let demux = gather(plan, bytes, &bounds)?;
    let made = bounds.part.tracks.iter().enumerate().map(|(track, of)| match of {
        None => Vec::new(),
        Some(of) => match &of.config {
            Config::Video(config) => pictures(plan, &demux, &bounds, track, of, config),
            Config::Audio(config) => sound(plan, &demux, &bounds, track, of, config),
        },
    });
    Ok(made.collect())
}

/// The audio tracks of a part.
fn sounds<'a>(bounds: &'a Bounds<'_>) -> impl Iterator<Item = (usize, &'a InPart)> {
    let tracks = bounds.part.tracks.iter().enumerate();
    tracks
        .filter_map(|(track, of)| Some((track, of.as_ref()?)))
        .filter(|(_, of)| matches!(of.config, Config::Audio(_)))
}

/// Reads everything that the segment needs: its bytes, sound before and behind them, the end of its last picture.
fn gather(plan: &CmafPlan, bytes: &mut dyn TitleBytes, bounds: &Bounds<'_>) -> Result<Demux, SiteError> {
    let Range { start, end } = bounds.bytes;
    let from = look_back(plan, bytes, bounds)?;
    let part = plan.part_of(bounds.number);
    let mut demux = plan.demux(part);
    let is_sound = |pid| sounds(bounds).any(|(_, of)| of.stream.pid == pid);
    read(bytes, from..start, |at, piece| {
        demux.push(at, piece, is_sound);
        true
    })?;
    read(bytes, start..end, |at, piece| {
        demux.push(at, piece, |_| true);
        true
    })?;
    // After the end of the part only audio that continues is needed.
    let is_last = bounds.number + 1 == bounds.part.segments.end;
    let reach = if is_last { bounds.part.stretch.end } else { bounds.part.bytes.end };
    if !is_last || sounds(bounds).any(|(track, _)| bounds.times[track].1.is_some()) {
        let limit = plan.timeline.place(end, MADE_LOOK_TICKS.cast_signed(), end..reach.max(end));
        read(bytes, end..limit.min(end + MADE_LOOK_BYTES as u64), |at, piece| {
            demux.push(at, piece, |pid| !is_last || is_sound(pid));
            !is_complete(plan, &demux, bounds, is_last)
        })?;
    }
    plan.forget_stamps(&mut demux);
    Ok(demux)
}

/// From where on there is sound of the segment.
fn look_back(plan: &CmafPlan, bytes: &mut dyn TitleBytes, bounds: &Bounds<'_>) -> Result<u64, SiteError> {
    let start = bounds.bytes.start;
    let is_first = bounds.number == bounds.part.segments.start;
    // Audio may begin before its part does, and is then needed from its first sample on.
    let reach =
        sounds(bounds).filter(|(_, of)| is_first && !of.goes_on.0).map(|(_, of)| of.reach.start).min();
    let most = if is_first { MAX_MADE_SEGMENT_BYTES } else { MADE_LOOK_BYTES } as u64;
    let lowest = sounds(bounds).map(|(_, of)| of.reach.start).min().unwrap_or(start);
    let least =
        start.saturating_sub(most / TS_PACKET_BYTES as u64 * TS_PACKET_BYTES as u64).max(lowest).min(start);
    let mut from = reach.unwrap_or(start).clamp(least, start);
    let wanted = |track: usize, of: &InPart| {
        bounds.times[track].0.filter(|time| of.span.start < *time || is_first && of.goes_on.0)
    };
    let mut missing: Vec<(&InPart, i64)> =
        sounds(bounds).filter_map(|(track, of)| Some((of, wanted(track, of)?))).collect();
    let mut ticks = MADE_FIRST_LOOK_TICKS;
    while !missing.is_empty() && from > least && (is_first || ticks <= MADE_LOOK_TICKS) {
        let before = plan.timeline.place(start, -ticks.cast_signed(), least..start).min(from);
        let mut demux = plan.demux(plan.part_of(bounds.number));
        read(bytes, before..from, |at, piece| {
            demux.push(at, piece, |_| true);
            true
        })?;
        missing.retain(|(of, time)| !plan.times_of(&demux, of).any(|(_, at)| at <= *time));
        (from, ticks) = (before, ticks * 2);
    }
    Ok(from)
}

/// Whether the bytes already read hold the whole segment. A PES packet of the next segment must
/// have begun, and another one after it, because only then is the last packet of this segment
/// complete.
fn is_complete(plan: &CmafPlan, demux: &Demux, bounds: &Bounds<'_>, is_last: bool) -> bool {
    let tracks = bounds.part.tracks.iter().enumerate();
    tracks.filter_map(|(track, of)| Some((track, of.as_ref()?))).all(|(track, of)| match of.config {
        Config::Video(_) => {
            let marks = &demux.stream(of.stream.pid).marks;
            is_last || marks.iter().rev().take_while(|mark| mark.byte >= bounds.bytes.end).count() >= 2
        }
        Config::Audio(_) => bounds.times[track].1.is_none_or(|time| {
            of.span.end <= time && !of.goes_on.1
                || plan.times_of(demux, of).rev().take_while(|(_, at)| *at >= time).count() >= 2
        }),
    })
}

/// The pictures that begin in the segment's bytes.
fn pictures(
    plan: &CmafPlan,
    demux: &Demux,
    bounds: &Bounds<'_>,
    track: usize,
    of: &InPart,
    config: &VideoConfig,
) -> Vec<u8> {
    let stream = demux.stream(of.stream.pid);
    let is_first = bounds.number == bounds.part.segments.start;
    let mut list = entered(plan, stream, bounds, config);
    list.retain(|picture| bounds.bytes.contains(&stream.marks[picture.mark].byte));
    let stamps: Vec<Option<(i64, i64)>> = list
        .iter()
        .map(|picture| {
            let mark = &stream.marks[picture.mark];
            picture.is_first.then(|| plan.stamps(mark.byte, mark.stamps)).flatten()
        })
        .collect();
    let decoded: Vec<Option<i64>> = stamps.iter().map(|stamps| Some((*stamps)?.0)).collect();
    let (span, (start, end)) = (plan.span(track, bounds.number), bounds.times[track]);
    let mut times = decode_times(&decoded, start.unwrap_or(span.start), end.unwrap_or(span.end));
    let shown: Vec<i64> =
        stamps.iter().zip(&times).map(|(stamps, time)| stamps.map_or(*time, |(_, shown)| shown)).collect();
    if is_first {
        show_first_at_once(&mut times, &shown);
    }
    let mut data = Vec::with_capacity(stream.bytes.len());
    let mut samples = Vec::with_capacity(list.len());
    // At the start of a part, decoders that ignored its init segment find the parameter sets in its
    // first picture.
    let mut keeps_sets = !plan.knows_layouts;
    for (at, picture) in list.iter().enumerate() {
        let before = data.len();
        let mut keeps_here = keeps_sets || at == 0 && is_first;
        let is_decided = keeps_here;
        picture.append_to(&mut data, &stream.bytes, config, &mut keeps_here);
        keeps_sets |= keeps_here && !is_decided;
        samples.push(Mp4Sample {
            bytes: (data.len() - before) as u32,
            duration: u32::try_from(times[at + 1] - times[at]).unwrap_or(0),
            // A cut is an access point, whether or not the picture itself is marked as one.
            is_sync: picture.is_sync || at == 0,
            offset: i32::try_from(shown[at] - times[at]).unwrap_or(0),
        });
    }
    segment(bounds.number, times[0], &samples, &data)
}

/// The pictures of a segment. At the start of a part, pictures before the first access point are
/// dropped: they need pictures of another part, or lost ones.
fn entered(plan: &CmafPlan, stream: &Elementary, bounds: &Bounds<'_>, config: &VideoConfig) -> Vec<Picture> {
    let mut list = video::pictures(stream, config.syntax, Some(config));
    if bounds.number == bounds.part.segments.start {
        let is_access = |picture: &Picture| plan.timeline.is_access(stream.marks[picture.mark].byte);
        list.drain(..video::first_entry(&list, is_access).unwrap_or(0));
    }
    list
}

/// Times for all pictures, and behind them when the last one ends: those that are known, evenly spread ones between them, each later than the one before.
fn decode_times(known: &[Option<i64>], start: i64, end: i64) -> Vec<i64> {
    let mut times = vec![start];
    for (at, time) in known.iter().enumerate().skip(1) {
        let before = times[at - 1];
        let next = || {
            let (ahead, time) = (1..).zip(&known[at + 1..]).find_map(|(n, time)| Some((n, (*time)?)))?;
            Some((time - before) / (ahead + 1))
        };
        let rest = (known.len() - at + 1) as i64;
        let time = time.unwrap_or_else(|| before + next().unwrap_or((end - before) / rest));
        times.push(time.max(before + 1));
    }
    if !known.is_empty() {
        keep_before(&mut times, end);
        let last = times.last().copied().unwrap_or(start);
        times.push(end.max(last + 1));
    }
    times
}

/// Moves times that reach into the next segment to before it, evenly: where joined recordings overlap a little, players would
/// take the last pictures of one and the first of the other for the same.
fn keep_before(times: &mut [i64], end: i64) {
    let late = times.partition_point(|&time| time < end);
    let Some(&before) = late.checked_sub(1).and_then(|at| times.get(at)) else { return };
    let steps = (times.len() - late + 1) as i64;
    if end - before < steps {
        return;
    }
    for (step, time) in (1..).zip(&mut times[late..]) {
        *time = before + (end - before) * step / steps;
    }
}

/// Moves the decode times of the first pictures, evenly, so that the first one is shown when it is
/// decoded: hls.js takes the decode time at which a part of a title begins for the time at which it is
/// shown, and would leave a hole before each part. Nothing is moved if a picture would have to be
/// shown before it is decoded.
fn show_first_at_once(times: &mut [i64], shown: &[i64]) {
    let Some(&first) = shown.first() else { return };
    let early = times.partition_point(|&time| time <= first);
    let Some(next) = times.get(early) else { return };
    let moved: Vec<i64> = (0..early as i64).map(|at| first + (next - first) * at / early as i64).collect();
    let is_possible = moved.iter().zip(shown).all(|(time, shown)| time <= shown)
        && moved.windows(2).all(|pair| pair[0] < pair[1]);
    if is_possible {
        times[..early].copy_from_slice(&moved);
    }
}

/// The frames that are played in the segment's time.
fn sound(
    plan: &CmafPlan,
    demux: &Demux,
    bounds: &Bounds<'_>,
    track: usize,
    of: &InPart,
    config: &AudioConfig,
) -> Vec<u8> {
    let stream = demux.stream(of.stream.pid);
    let frames = audio::frames(stream, config);
    let scaled = |time: i64| time * i64::from(config.rate);
    // The PES packet in which the format changes has frames of both parts.
    let is_ours = |(frame, time): &(&audio::AudioFrame, i64)| {
        let byte = stream.marks[frame.mark].byte;
        of.reach.contains(&byte)
            && (of.goes_on.0 || byte != of.reach.start || *time >= scaled(of.span.start))
            && (of.goes_on.1 || byte + 1 != of.reach.end || frame.config.is_like(config))
    };
    let timed = frames.iter().filter_map(|frame| Some((frame, plan.frame_time(config.rate, stream, frame)?)));
    let timed = timed.filter(is_ours);
    let (start, end) = bounds.times[track];
    let (mut data, mut list, mut times) = (Vec::new(), Vec::<&audio::AudioFrame>::new(), Vec::<i64>::new());
    let mut next = None;
    for (frame, time) in timed {
        if start.is_some_and(|start| time < scaled(start)) {
            continue;
        }
        if end.is_some_and(|end| time >= scaled(end)) {
            next = Some(config.samples(time));
            break;
        }
        data.extend_from_slice(&stream.bytes[frame.at..frame.at + frame.length]);
        times.push(config.samples(time));
        list.push(frame);
    }
    let span = plan.span(track, bounds.number);
    let begins = times.first().copied().unwrap_or_else(|| config.samples(scaled(span.start)));
    let lengths: Vec<u32> = list.iter().map(|frame| frame.config.length_at(config.rate)).collect();
    let times = smooth(times, &lengths, config.rate);
    let mut samples = Vec::with_capacity(list.len());
    for (at, frame) in list.iter().enumerate() {
        let length = lengths[at];
        let end = times.get(at + 1).copied().or(next).unwrap_or(times[at] + i64::from(length));
        let duration = u32::try_from(end - times[at]).ok().filter(|&d| d > 0).unwrap_or(length);
        samples.push(Mp4Sample { bytes: frame.length as u32, duration, is_sync: true, offset: 0 });
    }
    if samples.is_empty()
        && let Some(frame) = frames.first()
    {
        // Players treat a segment without samples as damaged, so a frame from beside the gap fills
        // an interruption of the audio.
        data.extend_from_slice(&stream.bytes[frame.at..frame.at + frame.length]);
        let length = u32::try_from(config.samples(scaled(span.end - span.start))).unwrap_or(0);
        let duration = length.max(config.frame);
        samples.push(Mp4Sample { bytes: frame.length as u32, duration, is_sync: true, offset: 0 });
    }
    segment(bounds.number, begins, &samples, &data)
}

/// Removes gaps between frames of these lengths if they come from rounding: one tick of a time
/// stamp can be as long as a sample.
fn smooth(mut times: Vec<i64>, lengths: &[u32], rate: u32) -> Vec<i64> {
    // A millisecond.
    let tolerance = i64::from(rate / 1000);
    for at in 1..times.len() {
        let expected = times[at - 1] + i64::from(lengths[at - 1]);
        // If joined recordings overlap slightly, frames are shortened, because the segment would
        // otherwise overlap the next one.
        times[at] = match (times[at] - expected).abs() < tolerance {
            true => expected,
            false => times[at].max(times[at - 1] + 1),
        };
    }
    times
}

fn segment(number: usize, time: i64, samples: &[Mp4Sample], data: &[u8]) -> Vec<u8> {
    let time = u64::try_from(time).unwrap_or(0);
    let mut segment = boxes::before_samples(number as u32, time, samples);
    segment.extend_from_slice(data);
    segment
}

/// The picture at the beginning of a segment alone, for players that show pictures while a viewer seeks.
pub(crate) fn first_picture(
    plan: &CmafPlan,
    bytes: &mut dyn TitleBytes,
    number: usize,
) -> Result<Option<Vec<u8>>, SiteError> {
    let segment = plan.segments.get(number).ok_or(SiteError::NoTitle)?;
    let part = &plan.parts[plan.part_of(number)];
    let Some(Some(InPart { stream: PartStream { pid, .. }, config: Config::Video(config), .. })) =
        part.tracks.first()
    else {
        return Ok(None);
    };
    let bounds = Bounds { number, bytes: segment.bytes.clone(), part, times: Vec::new() };
    let mut demux = Demux::new([*pid]);
    read(bytes, segment.bytes.clone(), |at, piece| {
        demux.push(at, piece, |_| true);
        entered(plan, demux.stream(*pid), &bounds, config).len() < 2
    })?;
    let stream = demux.stream(*pid);
    let list = entered(plan, stream, &bounds, config);
    let Some(first) = list.first() else { return Ok(None) };
    let mut data = Vec::new();
    let mut keeps_sets = !plan.knows_layouts || number == part.segments.start;
    first.append_to(&mut data, &stream.bytes, config, &mut keeps_sets);
    let span = plan.span(0, number);
    let mark = &stream.marks[first.mark];
    let shown = plan.stamps(mark.byte, mark.stamps).map_or(span.start, |(_, shown)| shown);
    // As in the segment itself.
    let decoded = if number == part.segments.start { shown } else { span.start };
    let sample = Mp4Sample {
        bytes: data.len() as u32,
        duration: u32::try_from(span.end - decoded).unwrap_or(0),
        is_sync: true,
        offset: i32::try_from(shown - decoded).unwrap_or(0),
    };
    Ok(Some(self::segment(number, decoded, &[sample], &data)))
}

#[cfg(test)]
#[path = "make_tests.rs"]
mod tests;
