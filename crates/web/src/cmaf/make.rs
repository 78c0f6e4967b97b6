//! One segment of all tracks, made of the title's bytes in one pass.

use std::ops::Range;

use millrace_core::limits::web::{MADE_FIRST_LOOK_TICKS, MADE_LOOK_BYTES, MADE_LOOK_TICKS};

use super::audio::{self, AudioConfig};
use super::boxes::{self, Config, Sample};
use super::demux::Demux;
use super::plan::{Plan, read};
use super::video::{self, VideoConfig};
use crate::site::{SiteError, TitleBytes};

/// Which segment is made, and what bounds it.
struct Bounds {
    number: usize,
    /// Its bytes, and those of the part of the title that it is in.
    bytes: Range<u64>,
    part: Range<u64>,
    /// From when to when its sound is; open where the part begins and ends.
    start: Option<i64>,
    end: Option<i64>,
}

/// Media segments of this number: of each track one.
pub(crate) fn make(
    plan: &Plan,
    bytes: &mut dyn TitleBytes,
    number: usize,
) -> Result<Vec<Vec<u8>>, SiteError> {
    let segment = plan.segments.get(number).ok_or(SiteError::NoTitle)?;
    let part = &plan.parts[plan.part_of(number)];
    let bounds = Bounds {
        number,
        bytes: segment.bytes.clone(),
        part: part.bytes.clone(),
        start: (number != part.segments.start).then(|| plan.times[number]),
        end: (number + 1 != part.segments.end).then(|| plan.times[number + 1]),
    };
    let demux = gather(plan, bytes, &bounds)?;
    let made = part.configs.iter().enumerate().map(|(track, config)| match config {
        Config::Video(config) => pictures(plan, &demux, &bounds, track, config),
        Config::Audio(config) => sound(plan, &demux, &bounds, track, config),
    });
    Ok(made.collect())
}

/// Reads everything that the segment needs: its bytes, sound before and behind them, the end of its last picture.
fn gather(plan: &Plan, bytes: &mut dyn TitleBytes, bounds: &Bounds) -> Result<Demux, SiteError> {
    let Range { start, end } = bounds.bytes;
    let from = look_back(plan, bytes, bounds)?;
    let mut demux = plan.demux();
    let is_video =
        |pid| plan.tracks.iter().any(|track| track.pid == pid && matches!(track.config, Config::Video(_)));
    read(bytes, from..start, |at, piece| {
        demux.push(at, piece, |pid| !is_video(pid));
        true
    })?;
    read(bytes, start..end, |at, piece| {
        demux.push(at, piece, |_| true);
        true
    })?;
    if let Some(time) = bounds.end {
        let limit = plan.timeline.place(end, MADE_LOOK_TICKS.cast_signed(), end..bounds.part.end);
        read(bytes, end..limit.min(end + MADE_LOOK_BYTES as u64), |at, piece| {
            demux.push(at, piece, |_| true);
            !is_complete(plan, &demux, end, time)
        })?;
    }
    plan.forget_stamps(&mut demux);
    Ok(demux)
}

/// From where on there is sound of the segment.
fn look_back(plan: &Plan, bytes: &mut dyn TitleBytes, bounds: &Bounds) -> Result<u64, SiteError> {
    let Some(time) = bounds.start else { return Ok(bounds.bytes.start) };
    let is_audio = |track: &usize| matches!(plan.tracks[*track].config, Config::Audio(_));
    // A track that begins later has nothing there.
    let begins = |track: &usize| plan.parts[plan.part_of(bounds.number)].spans[*track].start < time;
    let mut missing: Vec<usize> = (0..plan.tracks.len()).filter(is_audio).filter(begins).collect();
    let (mut from, mut ticks) = (bounds.bytes.start, MADE_FIRST_LOOK_TICKS);
    let least = bounds.bytes.start.saturating_sub(MADE_LOOK_BYTES as u64).max(bounds.part.start);
    while !missing.is_empty() && from > least && ticks <= MADE_LOOK_TICKS {
        let before = plan
            .timeline
            .place(bounds.bytes.start, -ticks.cast_signed(), least..bounds.bytes.start)
            .min(from);
        let mut demux = plan.demux();
        read(bytes, before..from, |at, piece| {
            demux.push(at, piece, |_| true);
            true
        })?;
        missing.retain(|&track| !plan.times_of(&demux, track).any(|(_, at)| at <= time));
        (from, ticks) = (before, ticks * 2);
    }
    Ok(from)
}

/// Whether nothing that comes behind these bytes belongs to a segment that ends at byte `end` and at `time`: the PES packet that does not has begun, and
/// with the next one what the one before had of this segment has ended.
fn is_complete(plan: &Plan, demux: &Demux, end: u64, time: i64) -> bool {
    plan.tracks.iter().enumerate().all(|(track, of)| match of.config {
        Config::Video(_) => {
            demux.stream(of.pid).marks.iter().rev().take_while(|mark| mark.byte >= end).count() >= 2
        }
        Config::Audio(_) => {
            let span = &plan.parts[plan.parts.partition_point(|part| part.bytes.end < end)].spans[track];
            span.end <= time
                || plan.times_of(demux, track).rev().take_while(|(_, at)| *at >= time).count() >= 2
        }
    })
}

/// The pictures that begin in the segment's bytes.
fn pictures(plan: &Plan, demux: &Demux, bounds: &Bounds, track: usize, config: &VideoConfig) -> Vec<u8> {
    let stream = demux.stream(plan.tracks[track].pid);
    let mut list = video::pictures(stream, config.syntax, Some(config));
    list.retain(|picture| bounds.bytes.contains(&stream.marks[picture.mark].byte));
    let stamps: Vec<Option<(i64, i64)>> = list
        .iter()
        .map(|picture| {
            let mark = &stream.marks[picture.mark];
            picture.is_first.then(|| plan.stamps(mark.byte, mark.stamps)).flatten()
        })
        .collect();
    let decoded: Vec<Option<i64>> = stamps.iter().map(|stamps| Some((*stamps)?.0)).collect();
    let span = plan.span(track, bounds.number);
    let times = decode_times(&decoded, bounds.start.unwrap_or(span.start), bounds.end.unwrap_or(span.end));
    let mut data = Vec::with_capacity(stream.bytes.len());
    let mut samples = Vec::with_capacity(list.len());
    for (at, picture) in list.iter().enumerate() {
        let start = data.len();
        picture.append_to(&mut data, &stream.bytes, config);
        let shown = stamps[at].map_or(times[at], |(_, shown)| shown);
        samples.push(Sample {
            bytes: (data.len() - start) as u32,
            duration: u32::try_from(times[at + 1] - times[at]).unwrap_or(0),
            // A cut is an access point, whether or not the picture says so itself.
            is_sync: picture.is_sync || at == 0 && bounds.start.is_some(),
            offset: i32::try_from(shown - times[at]).unwrap_or(0),
        });
    }
    segment(bounds.number, times[0], &samples, &data)
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
    let last = times.last().copied().unwrap_or(start);
    if !known.is_empty() {
        times.push(end.max(last + 1));
    }
    times
}

/// The frames that are played in the segment's time.
fn sound(plan: &Plan, demux: &Demux, bounds: &Bounds, track: usize, config: &AudioConfig) -> Vec<u8> {
    let stream = demux.stream(plan.tracks[track].pid);
    let frames = audio::frames(stream, config);
    let timed = frames.iter().filter_map(|frame| Some((frame, plan.frame_time(config.rate, stream, frame)?)));
    let scaled = |time: i64| time * i64::from(config.rate);
    let (mut data, mut samples, mut times) = (Vec::new(), Vec::<Sample>::new(), Vec::<i64>::new());
    let mut next = None;
    for (frame, time) in timed {
        if bounds.start.is_some_and(|start| time < scaled(start)) {
            continue;
        }
        if bounds.end.is_some_and(|end| time >= scaled(end)) {
            next = Some(config.samples(time));
            break;
        }
        data.extend_from_slice(&stream.bytes[frame.at..frame.at + frame.length]);
        times.push(config.samples(time));
        samples.push(Sample { bytes: frame.length as u32, duration: config.frame, is_sync: true, offset: 0 });
    }
    let start = times
        .first()
        .copied()
        .unwrap_or_else(|| config.samples(scaled(plan.span(track, bounds.number).start)));
    let times = smooth(times, config);
    for at in 0..samples.len() {
        let end = times.get(at + 1).copied().or(next).unwrap_or(times[at] + i64::from(config.frame));
        samples[at].duration = u32::try_from(end - times[at]).ok().filter(|&d| d > 0).unwrap_or(config.frame);
    }
    segment(bounds.number, start, &samples, &data)
}

/// Frames follow each other without a gap where stamps are off by rounding only: a tick is up to a sample.
fn smooth(mut times: Vec<i64>, config: &AudioConfig) -> Vec<i64> {
    // A millisecond.
    let tolerance = i64::from(config.rate / 1000);
    for at in 1..times.len() {
        let expected = times[at - 1] + i64::from(config.frame);
        if times[at] < expected + tolerance {
            times[at] = expected;
        }
    }
    times
}

fn segment(number: usize, time: i64, samples: &[Sample], data: &[u8]) -> Vec<u8> {
    let time = u64::try_from(time).unwrap_or(0);
    let mut segment = boxes::before_samples(number as u32, time, samples);
    segment.extend_from_slice(data);
    segment
}

/// The picture at the beginning of a segment alone, for players that show pictures while a viewer seeks.
pub(crate) fn first_picture(
    plan: &Plan,
    bytes: &mut dyn TitleBytes,
    number: usize,
) -> Result<Option<Vec<u8>>, SiteError> {
    let segment = plan.segments.get(number).ok_or(SiteError::NoTitle)?;
    let part = &plan.parts[plan.part_of(number)];
    let Some(Config::Video(config)) = part.configs.first() else { return Ok(None) };
    let mut demux = plan.demux();
    let pid = plan.tracks[0].pid;
    read(bytes, segment.bytes.clone(), |at, piece| {
        demux.push(at, piece, |of| of == pid);
        video::pictures(demux.stream(pid), config.syntax, Some(config)).len() < 2
    })?;
    let stream = demux.stream(pid);
    let list = video::pictures(stream, config.syntax, Some(config));
    let Some(first) = list.first() else { return Ok(None) };
    let mut data = Vec::new();
    first.append_to(&mut data, &stream.bytes, config);
    let span = plan.span(0, number);
    let mark = &stream.marks[first.mark];
    let shown = plan.stamps(mark.byte, mark.stamps).map_or(span.start, |(_, shown)| shown);
    let sample = Sample {
        bytes: data.len() as u32,
        duration: u32::try_from(span.end - span.start).unwrap_or(0),
        is_sync: true,
        offset: i32::try_from(shown - span.start).unwrap_or(0),
    };
    Ok(Some(self::segment(number, span.start, &[sample], &data)))
}

#[cfg(test)]
#[path = "make_tests.rs"]
mod tests;
