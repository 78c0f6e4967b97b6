//! Recordings: a stream at the end of the files waits until there is more, or learns that there will be none.

use millrace_core::seam::Want;
use millrace_core::time::Instant;

use super::super::handle::ReadFailure;
use super::super::plan::{ExtentKey, Waiter};
use super::super::playheads::StreamKey;
use super::super::streams::ExtentNeed;
use super::{Policy, grant, ns};

impl Policy {
    /// Whether a stream wants something that the files of its title do not have yet, or never will.
    pub(super) fn is_behind_edge(&self, want: &Want) -> bool {
        let place = u32::from(want.place);
        self.edge(ExtentKey { title: want.title, extent: want.extent }, place).is_some()
    }

    /// For a packet behind the readable ones of a title whose files grow: whether no more will come.
    fn edge(&self, key: ExtentKey, place: u32) -> Option<bool> {
        let title = self.title(key.title)?;
        // Before the mark: the writer raises it first.
        let is_over = title.kind().growth()?.is_over();
        let packets = title.packets_of(key.extent).map_or(0, |packets| packets.end - packets.start);
        (place >= packets).then_some(is_over)
    }

    pub(super) fn want_at_edge(&mut self, now: Instant, handle: u16, want: &Want) {
        let stream = StreamKey { handle, index: want.stream.index };
        let key = ExtentKey { title: want.title, extent: want.extent };
        self.forget_reader(stream);
        if !self.enter(stream, want) {
            let refused = grant(want.stream, want.run, key, Err(ReadFailure::OutOfRange));
            return self.grants.push_back((handle, refused));
        }
        // Nothing can be read ahead for it.
        self.move_head(stream, None);
        let need = ExtentNeed { run: want.run, by: ns(want.by), spare: want.spare, place: want.place };
        if self.streams.rewant(stream, key, need) {
            return;
        }
        let Some((waiter, displaced)) = self.streams.wait(stream, key, need) else { return };
        if let Some(displaced) = displaced {
            self.counters.displaced.add(1);
            self.plan.unwant(displaced);
        }
        self.counters.joins.add(1);
        if self.at_edge.len() == self.at_edge.capacity() {
            self.at_edge.retain(|(key, waiter)| self.streams.is_waiting(*key, waiter));
        }
        // It may have grown in this moment.
        if self.is_still_at_edge(now, key, &waiter) {
            self.at_edge.push((key, waiter));
        }
    }

    /// Whether a recording has grown that streams wait for.
    pub(in crate::cache) fn has_grown(&self) -> bool {
        let growth = |key: &ExtentKey| self.title(key.title).and_then(|title| title.kind().growth());
        self.at_edge.iter().any(|(key, _)| growth(key).is_some_and(|growth| growth.has_news()))
    }

    /// Orders the reads of extents that recordings have got meanwhile, for their waiters. Returns the number of waiters with news.
    pub(in crate::cache) fn take_grown(&mut self, now: Instant) -> usize {
        let growth = |key: &ExtentKey| self.title(key.title).and_then(|title| title.kind().growth());
        let has_news = |(key, _): &&(ExtentKey, _)| growth(key).is_some_and(|growth| growth.take_news());
        let news = self.at_edge.iter().filter(has_news).count();
        if news > 0 {
            self.serve_edge(now);
        }
        news
    }

    pub(super) fn serve_edge(&mut self, now: Instant) {
        let mut waiters = std::mem::take(&mut self.at_edge);
        waiters.retain(|(key, waiter)| self.is_still_at_edge(now, *key, waiter));
        self.at_edge = waiters;
    }

    /// Whether a waiter goes on waiting; else it is answered, or its read is ordered.
    fn is_still_at_edge(&mut self, now: Instant, key: ExtentKey, waiter: &Waiter) -> bool {
        let Some(need) = self.streams.needs(key, waiter) else { return false };
        match self.edge(key, need.place.into()) {
            Some(false) => return true,
            Some(true) => self.answer(ns(now), key, waiter, Err(ReadFailure::Ended)),
            None if self.extent_table.holds(key, need.spare) => self.answer(ns(now), key, waiter, Ok(())),
            None if self.titles.get(key.title).is_none() => {
                self.answer(ns(now), key, waiter, Err(ReadFailure::NoTitle));
            }
            None => {
                let streams = &self.streams;
                let is_waiting = |waiter: &_| streams.is_waiting(key, waiter);
                self.plan.demand(key, (need.by, need.spare), *waiter, is_waiting);
            }
        }
        false
    }
}
