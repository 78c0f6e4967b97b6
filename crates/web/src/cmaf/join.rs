//! How the parts of a title follow each other: when each track begins and ends in each part, and
//! which bytes hold its samples.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::MEDIA_HZ;
use millrace_core::units::BitRate;
use millrace_store::index::LayoutStream;

use super::plan::{CmafPlan, ContinuousPart, InPart};
use super::tracks;
use crate::elementary::{Config, Demux, Elementary, audio, read, video};
use crate::limits::{MADE_LOOK_TICKS, MADE_TAIL_BYTES, MAX_TRACK_LOOK_BYTES};
use crate::site::{SiteError, TitleBytes};

/// Results from the beginning of a stream in a part.
#[derive(Clone, Copy, Debug, Default)]
struct Beginning {
    time: Option<i64>,
    rate: BitRate,
}

/// A point at which the format of an audio track changes.
#[derive(Clone, Copy, Debug)]
struct Seam {
    /// Byte of the PES packet that contains the first frame of the new format.
    byte: u64,
    /// Its presentation time.
    time: i64,
    /// End of the last frame of the old format.
    before: Option<i64>,
}

impl CmafPlan {
    /// Sets when tracks begin and end in each part. If a track would begin before its end in an
    /// earlier part, the rest of the title is delayed.
    pub(super) fn join_parts(
        &mut self,
        layouts: &[Vec<LayoutStream>],
        bytes: &mut dyn TitleBytes,
    ) -> Result<(), SiteError> {
        let mut shift = 0;
        for at in 0..self.parts.len() {
            let changes = self.find_reach(at, layouts);
            let begins = self.begins(bytes, at, &changes)?;
            let unknown = self.tracks.iter_mut().zip(&begins).filter(|(track, _)| track.rate.0 == 0);
            unknown.for_each(|(track, begin)| track.rate = begin.rate);
            // Time 0 is the earliest time of any track.
            let mut offset = 0;
            if at == 0 {
                self.reorder = -begins.iter().filter_map(|begin| begin.time).min().unwrap_or(0);
                offset = self.reorder;
            }
            let mut begins: Vec<Option<i64>> =
                begins.iter().map(|begin| begin.time.map(|time| time + offset)).collect();
            for (track, change) in changes.iter().enumerate() {
                if let Some(byte) = change
                    && let Some(seam) = self.seam(bytes, at, track, *byte)?
                {
                    begins[track] = Some(seam.time);
                    self.set_seam(at, track, &seam);
                }
            }
            let further = self.overlap(at, &begins);
            if further > 0 {
                shift += further;
                begins.iter_mut().flatten().for_each(|begin| *begin += further);
            }
            self.timeline.shift(self.shifts_from(at, further), shift);
            let ends = self.ends(bytes, at)?;
            self.set_spans(at, &begins, &ends);
        }
        Ok(())
    }

    /// Frames before a seam belong to the previous part, later ones to this part.
    fn set_seam(&mut self, at: usize, track: usize, seam: &Seam) {
        let (before, rest) = self.parts.split_at_mut(at);
        if let Some(before) = before.last_mut().and_then(|part| part.tracks[track].as_mut()) {
            before.span.end = seam.before.unwrap_or(seam.time).max(before.span.start);
            before.reach.end = seam.byte + 1;
        }
        if let Some(now) = &mut rest[0].tracks[track] {
            now.reach.start = seam.byte;
        }
    }

    /// Returns the byte at which the delay of a part starts: the first byte of its samples.
    fn shifts_from(&self, at: usize, further: i64) -> u64 {
        let part = &self.parts[at];
        let begins = part.tracks.iter().flatten().filter(|of| further > 0 && !of.goes_on.0);
        begins.map(|of| of.reach.start).min().unwrap_or(part.bytes.start).min(part.bytes.start)
    }

    /// Sets which bytes may hold the samples of a part's tracks, and which audio tracks continue
    /// from the previous part. Returns, for audio tracks whose format changes, about which byte the
    /// new format starts at.
    fn find_reach(&mut self, at: usize, layouts: &[Vec<LayoutStream>]) -> Vec<Option<u64>> {
        let mut changes = vec![None; self.tracks.len()];
        let (before, rest) = self.parts.split_at_mut(at);
        let part = &mut rest[0];
        let Some(before) = before.last_mut() else { return changes };
        if self.segments[part.segments.start].is_jump {
            return changes;
        }
        let from = self.segments[before.segments.start].layout;
        let to = self.segments[part.segments.start].layout;
        for (track, change) in changes.iter_mut().enumerate() {
            let Some(now) = &mut part.tracks[track] else { continue };
            if matches!(now.config, Config::Video(_)) {
                continue;
            }
            let begins =
                tracks::since(&layouts[(from + 1).min(to)..=to], &now.stream).unwrap_or(part.bytes.start);
            let begins = begins.min(part.bytes.start).max(part.stretch.start);
            match &mut before.tracks[track] {
                Some(before) if before.stream.pid == now.stream.pid => {
                    let is_same = matches!((&before.config, &now.config),
                        (Config::Audio(one), Config::Audio(other)) if one.is_like(other));
                    if is_same {
                        (before.goes_on.1, now.goes_on.0) = (true, true);
                        before.reach.end = part.stretch.end;
                        now.reach.start = before.reach.start;
                    } else {
                        *change = Some(begins);
                        now.reach.start = begins;
                    }
                }
                _ => now.reach.start = begins,
            }
        }
        changes
    }

    /// Returns how long to delay a part so that no track begins before its end in an earlier part.
    /// A small overlap or gap changes the end of the last picture or frame instead.
    fn overlap(&mut self, at: usize, begins: &[Option<i64>]) -> i64 {
        let is_jump = self.segments[self.parts[at].segments.start].is_jump;
        let (before, rest) = self.parts.split_at_mut(at);
        let mut most = 0;
        for (track, begin) in begins.iter().enumerate() {
            // The latest part that has the track; titles have few parts.
            let last = before.iter_mut().rev().find_map(|part| part.tracks[track].as_mut());
            let (Some(last), Some(begin)) = (last, *begin) else { continue };
            let is_ours = rest[0].tracks[track].as_ref().is_some_and(|now| now.goes_on.0);
            if is_ours {
                continue;
            }
            // Tolerance: the length of a picture is estimated, and audio time stamps are rounded.
            let near = match &last.config {
                Config::Video(_) => MEDIA_HZ / 20,
                Config::Audio(_) => MEDIA_HZ / 1000,
            };
            // A picture stands until the next one.
            let stands = matches!(last.config, Config::Video(_)) && !is_jump && begin > last.span.end;
            let is_near = stands || (last.span.end - begin).unsigned_abs() < near;
            match is_near && begin > last.span.start {
                true => last.span.end = begin,
                false => most = most.max(last.span.end - begin),
            }
        }
        most
    }

    fn set_spans(&mut self, at: usize, begins: &[Option<i64>], ends: &[Option<i64>]) {
        let (first, last) = (self.parts[at].bytes.start, self.parts[at].bytes.end - TS_PACKET_BYTES as u64);
        let about = self.about(first)..self.about(last);
        let start = begins.first().copied().flatten().unwrap_or(about.start);
        let (before, rest) = self.parts.split_at_mut(at);
        for (track, now) in rest[0].tracks.iter_mut().enumerate() {
            let Some(now) = now else { continue };
            let mut begin = begins[track].unwrap_or(about.start);
            if now.goes_on.0
                && let Some(before) = before.last_mut().and_then(|part| part.tracks[track].as_mut())
            {
                begin = start.max(before.span.start);
                before.span.end = begin;
            }
            now.span = begin..ends[track].unwrap_or(about.end).max(begin);
        }
    }

    /// Returns when each track begins in a part: at the first picture that a decoder can start
    /// with, or at the first audio frame.
    fn begins(
        &self,
        bytes: &mut dyn TitleBytes,
        part: usize,
        changes: &[Option<u64>],
    ) -> Result<Vec<Beginning>, SiteError> {
        let of = &self.parts[part];
        let mut begins = vec![Beginning::default(); self.tracks.len()];
        let wanted = |track: usize| of.tracks[track].as_ref().filter(|_| changes[track].is_none());
        // An audio track that continues from the previous part begins with the part.
        let from = (0..self.tracks.len()).filter_map(|track| wanted(track).filter(|of| !of.goes_on.0));
        let from = from.map(|of| of.reach.start).min().unwrap_or(of.bytes.start).min(of.bytes.start);
        let end = of.bytes.end.min(of.bytes.start + MAX_TRACK_LOOK_BYTES as u64);
        let mut demux = self.demux(part);
        read(bytes, from..end, |at, piece| {
            demux.push(at, piece, |_| true);
            let mut is_complete = true;
            for (track, begin) in begins.iter_mut().enumerate() {
                let Some(now) = wanted(track) else { continue };
                begin.time = begin.time.or_else(|| self.first_time(&demux, now));
                is_complete &= begin.time.is_some() || now.goes_on.0;
            }
            !is_complete
        })?;
        for (begin, now) in begins.iter_mut().zip(&of.tracks) {
            if let Some(InPart { config: Config::Audio(config), stream, .. }) = now {
                begin.rate = audio::bit_rate(demux.stream(stream.pid), config);
            }
        }
        Ok(begins)
    }

    fn first_time(&self, demux: &Demux, now: &InPart) -> Option<i64> {
        let stream = demux.stream(now.stream.pid);
        let mut marks = stream.marks.iter().filter(|mark| now.reach.contains(&mark.byte));
        match &now.config {
            Config::Audio(_) => {
                marks.find_map(|mark| self.stamps(mark.byte, mark.stamps)).map(|(time, _)| time)
            }
            Config::Video(config) => {
                let list = video::pictures(stream, config.syntax, Some(config));
                let first = video::first_entry(&list, |picture| {
                    self.timeline.is_access(stream.marks[picture.mark].byte)
                })?;
                let mark = &stream.marks[list[first].mark];
                self.stamps(mark.byte, mark.stamps).map(|(time, _)| time)
            }
        }
    }

    /// Finds where the new format of an audio track begins, near `byte`.
    fn seam(
        &self,
        bytes: &mut dyn TitleBytes,
        part: usize,
        track: usize,
        byte: u64,
    ) -> Result<Option<Seam>, SiteError> {
        let of = &self.parts[part];
        let Some(InPart { stream, config: Config::Audio(config), .. }) = &of.tracks[track] else {
            return Ok(None);
        };
        let back = self.timeline.place(byte, -MADE_LOOK_TICKS.cast_signed() / 2, of.stretch.start..byte);
        let mut demux = Demux::new([stream.pid]);
        let mut found = None;
        read(bytes, back..of.bytes.end.min(byte + MAX_TRACK_LOOK_BYTES as u64), |at, piece| {
            demux.push(at, piece, |_| true);
            let stream = demux.stream(stream.pid);
            let frames = audio::frames(stream, config);
            let is_new = |frame: &audio::AudioFrame| {
                stream.marks[frame.mark].byte >= byte && frame.config.is_like(config)
            };
            let Some(at) = frames.iter().position(is_new) else { return true };
            let others = frames[..at].iter().rposition(|frame| !frame.config.is_like(config));
            let first = &frames[others.map_or(0, |at| at + 1)];
            found = self.frame_time(config.rate, stream, first).map(|time| Seam {
                byte: stream.marks[first.mark].byte,
                time: time.div_euclid(i64::from(config.rate)),
                before: others.and_then(|at| self.frame_end(config.rate, stream, &frames[at])),
            });
            false
        })?;
        Ok(found)
    }

    /// Returns the time at which a frame ends.
    fn frame_end(&self, rate: u32, stream: &Elementary, frame: &audio::AudioFrame) -> Option<i64> {
        let time = self.frame_time(rate, stream, frame)?;
        let end = time + i64::from(frame.config.length_at(rate)) * MEDIA_HZ.cast_signed();
        // Rounded up, plus one tick because rounding to samples may add one.
        Some(end.div_euclid(i64::from(rate)) + 2)
    }

    /// Returns when the last picture or frame of each track in a part ends.
    fn ends(&self, bytes: &mut dyn TitleBytes, part: usize) -> Result<Vec<Option<i64>>, SiteError> {
        let ContinuousPart { bytes: range, tracks, .. } = &self.parts[part];
        let mut ends: Vec<Option<i64>> = vec![None; tracks.len()];
        let mut length = MADE_TAIL_BYTES as u64;
        // An audio track may have ended long before the part does: each look reads further back.
        while ends.iter().zip(tracks).any(|(end, of)| end.is_none() && of.is_some()) {
            let tail = range.end.saturating_sub(length).max(range.start);
            let mut demux = self.demux(part);
            read(bytes, tail..range.end, |at, piece| {
                demux.push(at, piece, |_| true);
                true
            })?;
            self.forget_stamps(&mut demux);
            for (end, of) in ends.iter_mut().zip(tracks) {
                *end = end.or_else(|| self.end_of(&demux, of.as_ref()?));
            }
            if tail == range.start || length > MAX_TRACK_LOOK_BYTES as u64 {
                break;
            }
            length *= 4;
        }
        Ok(ends)
    }

    fn end_of(&self, demux: &Demux, of: &InPart) -> Option<i64> {
        let stream = demux.stream(of.stream.pid);
        match &of.config {
            Config::Audio(config) => {
                let frames = audio::frames(stream, config);
                frames.iter().rev().find_map(|frame| self.frame_end(config.rate, stream, frame))
            }
            Config::Video(_) => {
                let times: Vec<i64> = self.times_of(demux, of).map(|(_, time)| time).collect();
                let last = *times.last()?;
                let before = times.iter().rev().find(|&&time| time < last);
                // A single picture gets the duration of one of 25 a second, as nothing indicates
                // how long it is shown.
                Some(last + before.map_or(MEDIA_HZ.cast_signed() / 25, |before| last - before))
            }
        }
    }
}
