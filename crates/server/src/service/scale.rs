//! Other speeds: fast forward, rewind and slow motion are titles that were made of the one that is watched, and are sent in its place; faster
//! delivery is the same packets at another pace. See `docs/design/0026-trick-play.md`.
//!
//! A viewer's position is always given in the time of the title that it watches ("shown time"). A
//! made title has a time of its own ("media time"), and both run evenly: at media time `t` a title
//! made for speed `s` shows `t * s`, or, backwards, the duration less `t * |s|`.
//!
//! A viewer that watches a title transformed receives the titles made from it transformed as well:
//! a speed that is not available in this form is not played.

use std::cmp::Ordering;

use millrace_core::ids::TitleRef;
use millrace_core::scale::Scale;
use millrace_core::time::Instant;
use millrace_offload::command;

use super::event::ServiceEvent;
use super::exhausted::Exhausted;
use super::keys::{ConnKey, StreamKey};
use super::matrix::FecMode;
use super::ports::{AccessPoint, NeededPart, TitleEntry};
use super::refusal::Refusal;
use super::run::DeliveryState;
use super::shown::{ShownEntry, SubstituteTitle};
use super::speed::{LOWER_SPEEDS, Speed};
use super::state::Service;
use super::stream::PlaybackStream;

/// How far a speed is from the one that is wished: the ratio of the two. Of two that are equally far the one that is not normal is nearer:
/// something else was wished.
fn by_distance(wished: Scale, a: Scale, b: Scale) -> Ordering {
    let sides = |scale: Scale| {
        let (one, other) = (u32::from(scale.speed_hundredths()), u32::from(wished.speed_hundredths()));
        (one.max(other), one.min(other))
    };
    let ((a_high, a_low), (b_high, b_low)) = (sides(a), sides(b));
    (a_high * b_low).cmp(&(b_high * a_low)).then(a.is_normal().cmp(&b.is_normal()))
}

/// Speeds that are worth a title of their own, in hundredths: those that players have buttons for. So viewers cannot have any number made.
const USUAL: [i16; 14] = [25, 50, 75, 200, 400, 800, 1_600, 3_200, -100, -200, -400, -800, -1_600, -3_200];

/// The usual speed that is nearer to the one that is wished than `nearest`, which is the nearest there is.
fn worth_making(wished: Scale, nearest: Option<Scale>) -> Option<Scale> {
    let usual = USUAL.into_iter().filter_map(Scale::from_hundredths);
    let in_direction = usual.filter(|scale| scale.is_reverse() == wished.is_reverse());
    let best = in_direction.min_by(|a, b| by_distance(wished, *a, *b))?;
    nearest.is_none_or(|nearest| by_distance(wished, best, nearest).is_lt()).then_some(best)
}

impl PlaybackStream {
    /// Returns the entry to send at this speed, or at normal speed in this rendition; `None` if it
    /// is not open.
    pub(super) fn at(&self, scale: Scale, rendition: usize) -> Option<ShownEntry<'_>> {
        let (entry, _) = self.open_at(scale, rendition)?;
        Some(ShownEntry::new(&self.entry, entry))
    }

    /// The same, with the cache's reference to it.
    fn open_at(&self, scale: Scale, rendition: usize) -> Option<(&TitleEntry, TitleRef)> {
        let made = match self.renditions.made(rendition) {
            _ if !scale.is_normal() => self.trick(scale)?,
            Some(name) => self.made.iter().find(|made| made.entry.name == name)?,
            None => return Some((&self.entry, self.title)),
        };
        Some((&made.entry, made.title))
    }

    /// What its last run sent.
    pub(super) fn shown(&self) -> ShownEntry<'_> {
        self.at(self.scale, self.renditions.sent).unwrap_or(ShownEntry::new(&self.entry, &self.entry))
    }

    /// Returns the media that a run at this speed, or at normal speed in this rendition, sends on
    /// the stream's timeline.
    pub(super) fn media_at(&self, scale: Scale, rendition: usize) -> command::RunMedia {
        let (entry, title) = self.open_at(scale, rendition).unwrap_or((&self.entry, self.title));
        let TitleEntry { packets, layout, .. } = *entry;
        let spare = if self.is_plain() { self.spare() } else { 0 };
        command::RunMedia { title, packets, timeline: self.timeline, layout, spare }
    }

    pub(super) fn trick(&self, scale: Scale) -> Option<&SubstituteTitle> {
        self.made.iter().find(|made| made.entry.scale == scale && !scale.is_normal())
    }

    /// Returns whether this one is sent, or will be.
    fn needs(&self, made: &SubstituteTitle) -> bool {
        let TitleEntry { scale, name, .. } = &made.entry;
        if scale.is_normal() { self.renditions.needs(name) } else { *scale == self.scale }
    }

    /// Prepares a stopped stream for another path, where packet numbering starts over: the stream
    /// now stands in its title, which was not open in this size, at the position that it had in the
    /// title made from it.
    pub(super) fn go_back_to_title(&mut self) {
        let shown = self.position(Instant(0));
        let is_title = self.scale.is_normal() && self.renditions.made(self.renditions.sent).is_none();
        if let (DeliveryState::Paused { next_sequence, .. }, false) = (self.media, is_title) {
            let AccessPoint { packet, .. } = self.entry.access.access_at_or_before(shown.unwrap_or_default());
            let stop = ShownEntry::new(&self.entry, &self.entry).end();
            self.media = DeliveryState::Paused { next_packet: packet, next_sequence, stop };
        }
        (self.scale, self.speed) = (Scale::NORMAL, Speed::NORMAL);
        (self.timeline, self.has_own_timeline) = (self.entry.timeline, false);
        self.renditions.go_back_to_title();
    }

    /// Returns why none of its FEC accompanies the media that is sent now; reported with each such
    /// run.
    pub(super) fn fec_rests(&self) -> Option<String> {
        let rests = !self.is_plain() && self.fec_mode() != FecMode::Off;
        rests.then(|| "FEC goes with normal speed only".to_owned())
    }

    /// Bits a second of its title, at normal speed and without FEC.
    pub(super) fn title_rate(&self) -> u64 {
        self.rate - self.fec_rate() - self.speed_rate
    }
}

impl Service {
    /// Returns the speed nearest to this one, in its direction, at which the stream can be played.
    /// The entry to send for it is open then.
    ///
    /// # Errors
    /// [`Refusal::NoReverse`]; [`Refusal::Opening`] while it is being opened; [`Refusal::Broken`]
    /// if no reverse title can be opened.
    pub(super) fn nearest_scale(
        &mut self,
        now: Instant,
        key: StreamKey,
        conn: Option<ConnKey>,
        wished: Scale,
    ) -> Result<Scale, Refusal> {
        if wished.is_normal() {
            return Ok(wished);
        }
        let entry = self.streams.get(&key).ok_or(Refusal::Gone)?.entry.clone();
        let mut there = self.titles.library.derived(&entry);
        there.retain(|(scale, _)| scale.is_reverse() == wished.is_reverse() && !scale.is_normal());
        if !wished.is_reverse() {
            there.push((Scale::NORMAL, String::new()));
        }
        there.sort_by(|(a, _), (b, _)| by_distance(wished, *a, *b));
        let better = worth_making(wished, there.first().map(|(scale, _)| *scale));
        there.retain(|(_, name)| !self.titles.unread.has(now, name));
        let found = self.first_that_opens(now, key, conn, there);
        // One that waits is made again.
        if let Some(better) = better
            && matches!(found, Ok(_) | Err(Refusal::NoReverse))
        {
            self.titles.library.wish(&entry, better);
        }
        found
    }

    /// The first of these speeds that can be opened.
    fn first_that_opens(
        &mut self,
        now: Instant,
        key: StreamKey,
        conn: Option<ConnKey>,
        there: Vec<(Scale, String)>,
    ) -> Result<Scale, Refusal> {
        if there.is_empty() {
            return Err(Refusal::NoReverse);
        }
        for (scale, name) in there {
            if scale.is_normal() {
                return Ok(scale);
            }
            match self.open_made(now, key, conn, &name, scale) {
                Ok(()) => return Ok(scale),
                Err(
                    wait @ (Refusal::Opening
                    | Refusal::Exhausted(Exhausted::Openings)
                    | Refusal::ShuttingDown),
                ) => {
                    return Err(wait);
                }
                // The operator has been informed; the viewer gets the next one.
                Err(_) => {}
            }
        }
        Err(Refusal::Broken)
    }

    /// Opens a made title for a stream, unless it is open: one that shows its title at this speed.
    pub(super) fn open_made(
        &mut self,
        now: Instant,
        key: StreamKey,
        conn: Option<ConnKey>,
        name: &str,
        scale: Scale,
    ) -> Result<(), Refusal> {
        self.need(now, conn, [NeededPart::title(name)])?;
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        if stream.made.iter().any(|made| made.entry.name == name) {
            return Ok(());
        }
        let (is_raw, transform) = (stream.entry.layout.is_raw(), stream.entry.transform.clone());
        let entry = self.titles.library.find(name).filter(|entry| entry.is_made && entry.scale == scale);
        let entry = entry.ok_or(Refusal::Broken)?;
        let entry = match transform {
            Some(of) => self.titles.library.transformed(&entry, &of.name).ok_or(Refusal::Broken)?,
            None => entry,
        };
        let entry = if is_raw { entry.raw().ok_or(Refusal::Broken)? } else { entry };
        self.need(now, conn, [NeededPart::media(&entry)])?;
        let title = self.open_title(&entry).inspect_err(|refusal| {
            // The viewer gets another speed, so the operator is informed.
            if let Refusal::Unfit(reason) = refusal {
                self.tell(ServiceEvent::Broken { title: name.to_owned(), reason: reason.clone() });
            }
        })?;
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.made.push(SubstituteTitle { entry, title });
        }
        Ok(())
    }

    /// Opens all made titles of a stream once more, for another place of the stream; `None` if that
    /// fails.
    pub(super) fn open_made_again(&mut self, key: StreamKey) -> Option<Vec<SubstituteTitle>> {
        let made = self.streams.get(&key).map_or(&[][..], |stream| stream.made.as_slice()).iter();
        let entries: Vec<_> = made.map(|trick| trick.entry.clone()).collect();
        self.titles.open_made(entries)
    }

    /// Closes the made titles that a stream has open, except the one that it plays from now on and
    /// the rendition that will follow.
    pub(super) fn release_made(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let made = std::mem::take(&mut stream.made);
        let (kept, done): (Vec<_>, Vec<_>) = made.into_iter().partition(|made| stream.needs(made));
        stream.made = kept;
        self.titles.close_made(done);
    }

    /// Reserves the rate of faster delivery beyond the normal one, at the highest speed up to the
    /// requested one that there is room for.
    pub(super) fn reserve_speed(&mut self, key: StreamKey, wished: Speed) -> Speed {
        let Some(stream) = self.streams.get(&key) else { return Speed::NORMAL };
        let (title_rate, has) = (stream.title_rate(), stream.speed_rate);
        let slower = LOWER_SPEEDS.into_iter().filter(|speed| *speed < wished);
        let granted = std::iter::once(wished).chain(slower).find(|speed| {
            let more = speed.more_of(title_rate);
            more <= has || self.room_for_more(stream, more - has).is_ok()
        });
        let granted = granted.unwrap_or(Speed::NORMAL);
        self.set_speed_rate(key, granted.more_of(title_rate));
        granted
    }

    /// Sets the rate of a stream's delivery beyond the normal one.
    pub(super) fn set_speed_rate(&mut self, key: StreamKey, more: u64) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let before = std::mem::replace(&mut stream.speed_rate, more);
        let rate = stream.rate - before + more;
        self.change_rate(key, rate);
    }

    /// Returns the media that a run may send ahead: the operator's limit for viewers whose packets
    /// wait in a connection until they are read, if there is room for as much again.
    pub(super) fn lead_ms(&self, stream: &PlaybackStream) -> u16 {
        let ahead_ms = self.config.fast_start_ms;
        let is_for_it = ahead_ms > 0 && stream.path.conn().is_some();
        if is_for_it && self.room_for_more(stream, stream.title_rate()).is_ok() { ahead_ms } else { 0 }
    }
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
