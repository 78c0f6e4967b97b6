//! The planned reads, most urgent first, and their waiters.
//!
//! An extent is asked for by streams that wait for it (a *demand*) or by a playhead that will come to it (*ahead*).
//! It is in the plan once, however many ask; its deadline is the soonest of all of theirs.

use std::collections::{BTreeSet, HashMap};

use millrace_core::ids::{StreamId, TitleRef};

use super::playheads::Ns;

/// An extent of an open title.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ExtentKey {
    /// The title.
    pub(super) title: TitleRef,
    /// Its extent.
    pub(super) extent: u32,
}

/// A stream that waits for an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    /// Of which engine.
    pub(super) handle: u16,
    /// The stream.
    pub(super) stream: StreamId,
    /// Which of its wants: a waiter counts only while its stream still has this want.
    pub(super) serial: u64,
}

/// The most urgent read of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextRead {
    /// What.
    pub(super) key: ExtentKey,
    /// By when.
    pub(super) by: Ns,
    /// Whether a stream waits for it.
    pub(super) demand: bool,
    /// Packets of one codeword that every requester can do without.
    pub(super) spare: u8,
}

#[derive(Debug)]
struct PlannedRead {
    by: Ns,
    /// The minimum over all requests, which may include one of a stream that has left.
    spare: u8,
    reading: bool,
    /// There was no room for it when its turn came.
    waited: bool,
    waiters: Vec<Waiter>,
    /// Waiters whose stream still wants it; the others are left in the list until it is half dead.
    live: usize,
}

impl PlannedRead {
    fn new(by: Ns, spare: u8) -> Self {
        Self { by, spare, reading: false, waited: false, waiters: Vec::new(), live: 0 }
    }
}

/// Reads that have not begun, by deadline.
#[derive(Debug, Default)]
struct Queues {
    /// Reads that a stream waits for.
    demand: BTreeSet<(Ns, ExtentKey)>,
    /// Reads that no stream waits for yet.
    ahead: BTreeSet<(Ns, ExtentKey)>,
}

impl Queues {
    fn of(&mut self, asked: &PlannedRead) -> &mut BTreeSet<(Ns, ExtentKey)> {
        if asked.live > 0 { &mut self.demand } else { &mut self.ahead }
    }

    fn insert(&mut self, key: ExtentKey, asked: &PlannedRead) {
        if !asked.reading {
            self.of(asked).insert((asked.by, key));
        }
    }

    fn remove(&mut self, key: ExtentKey, asked: &PlannedRead) {
        if !asked.reading {
            self.of(asked).remove(&(asked.by, key));
        }
    }
}

/// The planned reads and those in progress.
#[derive(Debug)]
pub(super) struct ReadPlan {
    asked: HashMap<ExtentKey, PlannedRead>,
    queues: Queues,
    ahead_limit: usize,
}

impl ReadPlan {
    /// Creates a plan with at most `ahead_limit` reads that no stream waits for.
    pub(super) fn new(ahead_limit: usize) -> Self {
        Self { asked: HashMap::new(), queues: Queues::default(), ahead_limit }
    }

    /// Reads that have not begun.
    pub(super) fn queued(&self) -> usize {
        self.queues.demand.len() + self.queues.ahead.len()
    }

    /// Adds a stream that can do without `spare` packets of a codeword and waits for `key` by `by`.
    /// `is_live` decides which of the old waiters still count. Returns whether the extent was
    /// already in the plan.
    pub(super) fn demand(
        &mut self,
        key: ExtentKey,
        (by, spare): (Ns, u8),
        waiter: Waiter,
        is_live: impl Fn(&Waiter) -> bool,
    ) -> bool {
        let joined = self.asked.contains_key(&key);
        let asked = self.asked.entry(key).or_insert_with(|| PlannedRead::new(by, spare));
        self.queues.remove(key, asked);
        if asked.waiters.len() > 2 * asked.live + 8 {
            asked.waiters.retain(is_live);
        }
        asked.waiters.push(waiter);
        asked.live += 1;
        asked.by = asked.by.min(by);
        asked.spare = asked.spare.min(spare);
        self.queues.insert(key, asked);
        joined
    }

    /// Plans the read of `key` for a playhead that will reach it at `by` and whose stream can do
    /// without `spare` packets of a codeword, or makes the planned read more urgent. Returns
    /// whether this is a new read; it is not if too much is already planned ahead.
    pub(super) fn ahead(&mut self, key: ExtentKey, by: Ns, spare: u8) -> bool {
        if self.asked.contains_key(&key) {
            self.hasten(key, by, spare);
            return false;
        }
        if self.queues.ahead.len() >= self.ahead_limit {
            return false;
        }
        let asked = PlannedRead::new(by, spare);
        self.queues.insert(key, &asked);
        self.asked.insert(key, asked);
        true
    }

    /// If `key` is in the plan, brings its deadline forward to `by`, for a stream that can do
    /// without `spare` packets of a codeword.
    pub(super) fn hasten(&mut self, key: ExtentKey, by: Ns, spare: u8) {
        let Some(asked) = self.asked.get_mut(&key) else { return };
        asked.spare = asked.spare.min(spare);
        if by < asked.by {
            self.queues.remove(key, asked);
            asked.by = by;
            self.queues.insert(key, asked);
        }
    }

    /// A stream does not wait for `key` any more.
    pub(super) fn unwant(&mut self, key: ExtentKey) {
        if let Some(asked) = self.asked.get_mut(&key) {
            self.queues.remove(key, asked);
            asked.live = asked.live.saturating_sub(1);
            self.queues.insert(key, asked);
        }
    }

    /// Returns the most urgent read that a stream waits for.
    pub(super) fn first_demand(&self) -> Option<NextRead> {
        self.queues.demand.first().map(|&(by, key)| NextRead {
            key,
            by,
            demand: true,
            spare: self.spare(key),
        })
    }

    /// Returns the most urgent read that no stream waits for yet.
    pub(super) fn first_ahead(&self) -> Option<NextRead> {
        self.queues.ahead.first().map(|&(by, key)| NextRead {
            key,
            by,
            demand: false,
            spare: self.spare(key),
        })
    }

    /// Whether `key` is in the plan, being read or not.
    pub(super) fn has(&self, key: ExtentKey) -> bool {
        self.asked.contains_key(&key)
    }

    /// `key`, if it is in the plan and its read has not begun.
    pub(super) fn unread(&self, key: ExtentKey) -> Option<NextRead> {
        let asked = self.asked.get(&key).filter(|asked| !asked.reading)?;
        Some(NextRead { key, by: asked.by, demand: asked.live > 0, spare: asked.spare })
    }

    fn spare(&self, key: ExtentKey) -> u8 {
        self.asked.get(&key).map_or(0, |asked| asked.spare)
    }

    /// The read of `key` begins.
    pub(super) fn begin(&mut self, key: ExtentKey) {
        if let Some(asked) = self.asked.get_mut(&key) {
            self.queues.remove(key, asked);
            asked.reading = true;
        }
    }

    /// There is no room for `key`; whether this is new.
    pub(super) fn note_wait(&mut self, key: ExtentKey) -> bool {
        self.asked.get_mut(&key).is_some_and(|asked| !std::mem::replace(&mut asked.waited, true))
    }

    /// Removes `key` from the plan. Returns all its recorded waiters; some may no longer be
    /// waiting.
    pub(super) fn finish(&mut self, key: ExtentKey) -> Vec<Waiter> {
        let Some(asked) = self.asked.remove(&key) else { return Vec::new() };
        self.queues.remove(key, &asked);
        asked.waiters
    }

    /// Removes a title from the plan. Returns all its recorded waiters. Reads already in progress
    /// stay, without waiters, until [`ReadPlan::finish`].
    pub(super) fn forget_title(&mut self, title: TitleRef) -> Vec<(ExtentKey, Waiter)> {
        let mut waiters = Vec::new();
        self.queues.demand.retain(|(_, key)| key.title != title);
        self.queues.ahead.retain(|(_, key)| key.title != title);
        self.asked.retain(|&key, asked| {
            if key.title != title {
                return true;
            }
            waiters.extend(std::mem::take(&mut asked.waiters).into_iter().map(|waiter| (key, waiter)));
            asked.live = 0;
            asked.reading
        });
        waiters
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
