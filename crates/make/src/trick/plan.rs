//! Which pictures a derived title shows, and when.

use std::iter::successors;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_media::ts_write::packets_of_picture;
use millrace_store::volume::Derived;

use super::error::TrickError;
use super::pace::{SlotCapacity, SlotPacer, slot_of, slots_of};
use super::scan::{Picture, Scanned};
use crate::limits::trick::{
    MAX_DELAY_SLOTS, MAX_KEY_SLOTS, MAX_PICTURE_TICKS, MIN_PICTURE_TICKS, MIN_SLOT_ROOM, TRICK_SLOT_TICKS,
};

/// A picture to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownPicture {
    /// Its place in [`Scanned::pictures`].
    pub(super) number: usize,
    /// When it is shown and decoded, in ticks of the derived title, without the delay.
    pub(super) pts: i64,
    pub(super) dts: i64,
}

/// How pictures are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Those that stand alone.
    Key,
    /// All but those that no other refers to.
    Thinned,
    /// All.
    All,
}

/// The pictures to send.
#[derive(Clone, Debug)]
pub(super) struct TrickPlan {
    pub(super) how: How,
    /// In the order in which they are sent. A key picture may come several times in a row.
    pub(super) shown: Vec<ShownPicture>,
    /// From when a picture may be sent to when it is decoded, in slots.
    pub(super) delay: u64,
    /// Key pictures that were left out.
    pub(super) dropped: u64,
}

/// Of what, how, and at most how fast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order<'a> {
    pub(super) scanned: &'a Scanned,
    pub(super) derived: Derived,
    pub(super) parent_duration: MediaTicks,
    pub(super) peak: BitRate,
    pub(super) shape: SlotCapacity,
}

impl Order<'_> {
    /// Slow motion shows all pictures. Up to twice the speed leaves out the pictures that no other
    /// refers to, if the rest is not more than the parent gives a decoder to do. All else, and all
    /// that goes backwards, shows key pictures.
    pub(super) fn plan(&self) -> Result<TrickPlan, TrickError> {
        let scale = self.derived.scale();
        if scale.is_reverse() || scale.speed_hundredths() > 200 {
            return self.key();
        }
        if scale.speed_hundredths() < 100 {
            let (peak, scale) = (self.peak, scale);
            return self.all(How::All, |_| true)?.ok_or(TrickError::NoRoom { peak, scale });
        }
        let is_kept = |picture: &Picture| picture.found.is_reference;
        let kept = self.scanned.pictures.iter().filter(|picture| is_kept(picture)).count() as u64;
        // As many pictures a second as the parent shows: its decoder's level promises no more.
        let is_few = kept * u64::from(scale.speed_hundredths()) <= self.scanned.count * 100;
        match is_few.then(|| self.all(How::Thinned, is_kept)) {
            Some(Ok(Some(plan))) => Ok(plan),
            _ => self.key(),
        }
    }

    /// The time at which a time of the parent is shown; `None` where the parent has no such time.
    fn own(&self, parent: i64) -> Option<i64> {
        let parent = MediaTicks(u64::try_from(parent).ok()?);
        let own =
            (parent <= self.parent_duration).then(|| self.derived.own_time(parent, self.parent_duration))?;
        i64::try_from(own.0).ok()
    }

    fn packets(&self, picture: &Picture) -> u64 {
        let parameters =
            picture.found.alone.and_then(|number| self.scanned.parameters.get(usize::from(number)));
        let own = picture.found.bytes as usize + parameters.map_or(0, |parameters| parameters.bytes.len());
        // Rewriting adds delimiters and group headers, and a few bits to each slice; emulation prevention may grow with them.
        packets_of_picture(own + own / 64 + 256)
    }

    /// Bytes that a plan makes, at most.
    pub(super) fn most_bytes(&self, plan: &TrickPlan) -> u64 {
        let pictures = plan.shown.iter().map(|shown| self.packets(&self.scanned.pictures[shown.number]));
        let slots = slots_of(self.derived.duration(self.parent_duration)) + 1;
        // A slot has clock and tables beside its pictures, or is filled up.
        let packets = pictures.sum::<u64>() + slots * (self.shape.least + MIN_SLOT_ROOM);
        packets * TS_PACKET_BYTES as u64
    }

    /// Key pictures, those left out that would come too late, and those repeated that are far from the next.
    fn key(&self) -> Result<TrickPlan, TrickError> {
        let pictures = self.scanned.pictures.iter().enumerate();
        let mut candidates: Vec<ShownPicture> = pictures
            .filter(|(_, picture)| picture.found.alone.is_some())
            .filter_map(|(number, picture)| {
                let at = self.own(picture.times?.0)?;
                Some(ShownPicture { number, pts: at, dts: at })
            })
            .collect();
        candidates.sort_by_key(|shown| shown.pts);
        let packets = |shown: &ShownPicture| self.packets(&self.scanned.pictures[shown.number]);
        // Alone, from a slot with tables on.
        let alone = |shown: &ShownPicture| SlotPacer::new(self.shape).send(0, packets(shown)) + 1;
        let delay =
            candidates.iter().map(alone).filter(|&slots| slots <= MAX_KEY_SLOTS).max().unwrap_or(0) + 1;
        let (mut pace, mut shown, mut count) = (SlotPacer::new(self.shape), Vec::<ShownPicture>::new(), 0);
        let end = slots_of(self.derived.duration(self.parent_duration));
        let all = candidates.len();
        let send = |mut pace: SlotPacer, next: ShownPicture| {
            let sent = pace.send(slot_of(next.pts), packets(&next));
            let is_in_time =
                (sent + 1) * TRICK_SLOT_TICKS <= next.pts.unsigned_abs() + delay * TRICK_SLOT_TICKS;
            // The last slot is without pictures: nothing behind it gives its duration.
            (is_in_time && sent + 1 < end).then_some(pace)
        };
        for next in candidates {
            let last = shown.last().copied();
            if last.is_some_and(|last| next.pts - last.pts < MIN_PICTURE_TICKS.cast_signed()) {
                continue;
            }
            // Fewer repetitions, or none, rather than that the next one is late.
            let mut fewer =
                successors(Some(repetitions(last, next)), |times| (*times > 0).then_some(times / 2));
            let run = |times| repeated(last, next, times).chain([next]);
            let in_time = fewer.find_map(|times| Some((times, run(times).try_fold(pace, send)?)));
            if let Some((times, then)) = in_time {
                shown.extend(run(times));
                (pace, count) = (then, count + 1);
            }
        }
        // One picture is no other speed.
        if count < 2 {
            let pictures = self.scanned.count;
            return Err(TrickError::NoKeyPictures { pictures, scale: self.derived.scale() });
        }
        Ok(TrickPlan { how: How::Key, shown, delay, dropped: (all - count) as u64 })
    }

    /// Pictures in decoding order, times stretched. `None` if they would not fit.
    fn all(&self, how: How, is_kept: impl Fn(&Picture) -> bool) -> Result<Option<TrickPlan>, TrickError> {
        let (mut pace, mut shown, mut delay) = (SlotPacer::new(self.shape), Vec::new(), 0);
        let end = slots_of(self.derived.duration(self.parent_duration));
        let speed = i64::from(self.derived.scale().speed_hundredths());
        let stretched = |ticks: i64| (ticks * 100).div_euclid(speed);
        let mut last = i64::MIN;
        for (number, picture) in self.scanned.pictures.iter().enumerate() {
            let (pts, dts) = picture.times.ok_or(TrickError::NoStamps)?;
            if dts < last {
                return Err(TrickError::NoStamps);
            }
            last = dts;
            if !is_kept(picture) {
                continue;
            }
            let next = ShownPicture { number, pts: stretched(pts), dts: stretched(dts) };
            let sent = pace.send(slot_of(next.dts), self.packets(picture));
            // Pictures behind the end of a title that was cut off are left out, as there.
            if sent + 1 >= end {
                break;
            }
            let ready = ((sent + 1) * TRICK_SLOT_TICKS).cast_signed();
            delay = delay.max(slot_of(ready - next.dts));
            if delay > MAX_DELAY_SLOTS {
                return Ok(None);
            }
            shown.push(next);
        }
        if shown.is_empty() {
            let (pictures, scale) = (self.scanned.count, self.derived.scale());
            return Err(TrickError::NoKeyPictures { pictures, scale });
        }
        Ok(Some(TrickPlan { how, shown, delay: delay + 1, dropped: 0 }))
    }
}

/// Returns how often a picture must be shown again before the next, so that no viewer waits for
/// one.
fn repetitions(last: Option<ShownPicture>, next: ShownPicture) -> i64 {
    last.map_or(0, |last| (next.pts - last.pts - 1) / MAX_PICTURE_TICKS.cast_signed())
}

/// Returns the last picture `times` more times, evenly up to the next.
fn repeated(
    last: Option<ShownPicture>,
    next: ShownPicture,
    times: i64,
) -> impl Iterator<Item = ShownPicture> {
    (1..=times).zip(std::iter::repeat(last)).filter_map(move |(time, last)| {
        let last = last?;
        let at = last.pts + (next.pts - last.pts) * time / (times + 1);
        Some(ShownPicture { pts: at, dts: at, ..last })
    })
}
