//! Titles that are still being written: feeders receive extents, streams wait for the data fed.

use millrace_core::ids::TitleRef;
use millrace_core::limits::{MAX_LIVE_EXTENTS, MIN_LIVE_EXTENTS};
use millrace_core::seam::Want;
use millrace_core::time::Instant;

use super::super::error::CacheError;
use super::super::extent_table::Brings;
use super::super::handle::ReadFailure;
use super::super::live::Feed;
use super::super::plan::ExtentKey;
use super::super::playheads::StreamKey;
use super::super::source::OpenTitle;
use super::super::streams::ExtentNeed;
use super::{Policy, grant, ns, positions_of};
use crate::limits::MAX_FEEDERS;

impl Policy {
    /// Opens a title that is fed, and brings the feeder its first extents.
    pub(in crate::cache) fn open_live(
        &mut self,
        now: Instant,
        title: OpenTitle,
        feed: Feed,
    ) -> Result<TitleRef, CacheError> {
        let (most, left) = (feed.most(), self.extents / 2 - self.live_extents());
        if !(MIN_LIVE_EXTENTS..=MAX_LIVE_EXTENTS).contains(&most) {
            return Err(CacheError::LiveExtents(most));
        }
        if most > left {
            return Err(CacheError::NoRoomForLive { most, left });
        }
        if self.live.len() >= MAX_FEEDERS {
            return Err(CacheError::TooManyFeeders);
        }
        if self.titles.has(&title) {
            return Err(CacheError::HasFeeder);
        }
        let title = self.open_title(title).ok_or(CacheError::TooManyTitles)?;
        self.live.push((title, feed));
        self.count_live();
        self.bring(now, self.live.len() - 1);
        Ok(title)
    }

    /// Closes a title, if it is one that is fed.
    pub(super) fn close_live(&mut self, now: Instant, title: TitleRef) {
        let Some(at) = self.live_at(title) else { return };
        let (slots, waiters) = self.live.swap_remove(at).1.close();
        slots.into_iter().for_each(|slot| self.extent_table.retire(slot));
        self.count_live();
        for (key, waiter) in waiters {
            self.answer(ns(now), key, &waiter, Err(ReadFailure::NoTitle));
        }
    }

    /// Its place among those that are fed.
    pub(super) fn live_at(&self, title: TitleRef) -> Option<usize> {
        self.live.iter().position(|(live, _)| *live == title)
    }

    fn live_extents(&self) -> usize {
        self.live.iter().map(|(_, feed)| feed.most()).sum()
    }

    /// The extents they hold serve no other viewers.
    fn count_live(&self) {
        let extents = self.extents - self.live_extents();
        self.counters.positions_max.set(positions_of(extents, self.max_extents));
    }

    /// Handles a stream's request for an extent of a title that is fed. The stream's position does
    /// not matter to the cache: nothing is read ahead for it, and the oldest extent is evicted.
    pub(super) fn want_live(&mut self, now: Instant, handle: u16, want: &Want, at: usize) {
        let stream = StreamKey { handle, index: want.stream.index };
        let key = ExtentKey { title: want.title, extent: want.extent };
        if !self.enter(stream, want) {
            let refused = grant(want.stream, want.run, key, Err(ReadFailure::OutOfRange));
            return self.grants.push_back((handle, refused));
        }
        self.move_head(stream, None);
        self.note_reader(now, stream, (at, want.extent));
        let need = ExtentNeed { run: want.run, by: ns(want.by), spare: want.spare, place: want.place };
        if self.streams.rewant(stream, key, need) {
            return;
        }
        let Some((waiter, displaced)) = self.streams.wait(stream, key, need) else { return };
        if let Some(displaced) = displaced {
            self.counters.displaced.add(1);
            self.plan.unwant(displaced);
        }
        let (_, feed) = &mut self.live[at];
        if let Some(outcome) = feed.look(key.extent, need.place) {
            self.counters.hits.add(1);
            return self.answer(ns(now), key, &waiter, outcome);
        }
        self.counters.joins.add(1);
        if feed.waiters.len() == feed.waiters.capacity() {
            feed.waiters.retain(|(key, waiter)| self.streams.is_waiting(*key, waiter));
        }
        feed.waiters.push((key, waiter));
    }

    /// Where a stream is, in a title whose feeder waits for its viewers. A stream is in one title at a time.
    fn note_reader(&mut self, now: Instant, stream: StreamKey, (at, extent): (usize, u32)) {
        for index in 0..self.live.len() {
            if self.live[index].1.note_reader(stream, (index == at).then_some(extent)) {
                self.bring(now, index);
            }
        }
    }

    /// A stream plays no more.
    pub(super) fn forget_reader(&mut self, stream: StreamKey) {
        for (_, feed) in &mut self.live {
            // Whether there is room now is looked at in the next turn.
            feed.is_short |= feed.note_reader(stream, None);
        }
    }

    /// Whether a feeder has brought something.
    pub(in crate::cache) fn has_fed(&self) -> bool {
        self.live.iter().any(|(_, feed)| feed.has_news())
    }

    /// Leases the data fed to its waiters, and gives another extent to feeders that have begun one.
    /// Returns the number of feeds with news.
    pub(in crate::cache) fn take_fed(&mut self, now: Instant) -> usize {
        let mut work = 0;
        for at in 0..self.live.len() {
            let (_, feed) = &mut self.live[at];
            let (has_news, is_short) = (feed.take_news(), feed.is_short);
            if has_news {
                // Before anything goes.
                self.serve(now, at);
                work += 1;
            }
            if has_news || is_short {
                self.bring(now, at);
            }
        }
        work
    }

    fn bring(&mut self, now: Instant, at: usize) {
        let (_, feed) = &mut self.live[at];
        feed.is_short = false;
        while feed.has_room() {
            if let Some(oldest) = feed.shed() {
                self.extent_table.retire(oldest);
            }
            let Some(fill) = self.extent_table.take(ns(now), Brings::Demand, &mut self.titles) else {
                feed.is_short = true;
                return;
            };
            feed.give(fill);
        }
    }

    fn serve(&mut self, now: Instant, at: usize) {
        let mut waiters = std::mem::take(&mut self.live[at].1.waiters);
        waiters.retain(|(key, waiter)| {
            let Some(need) = self.streams.needs(*key, waiter) else { return false };
            let outcome = self.live[at].1.look(key.extent, need.place);
            if let Some(outcome) = outcome {
                self.answer(ns(now), *key, waiter, outcome);
            }
            outcome.is_none()
        });
        self.live[at].1.waiters = waiters;
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
