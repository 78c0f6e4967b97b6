//! Which extent to evict: the one that will be read last (Belady's rule over the known playheads);
//! among those that no playhead will read, the one used longest ago.
//!
//! Candidates are chosen in batches, so that looking at every extent costs little per eviction. The caller checks a
//! candidate once more when its turn comes.

use super::playheads::{NextUse, Ns};
use crate::limits::cache::{AGE_PER_EXTENT_NS, LOOKED_AT_PER_CANDIDATE, MIN_AGE_NS};

/// An extent that may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its place in the arena.
    pub(super) slot: u32,
    /// When it will be read next, as known when the batch was chosen.
    pub(super) next_use: NextUse,
    /// Stamp of its last use: greater is later. A different stamp later means a different content or a new use.
    pub(super) used: u64,
}

impl Candidate {
    /// Greater goes first.
    fn rank(&self) -> (NextUse, std::cmp::Reverse<u64>) {
        (self.next_use, std::cmp::Reverse(self.used))
    }
}

/// Whether a batch of candidates has to be chosen again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// There are candidates, and they are young enough.
    Good,
    /// Choose again.
    Stale,
    /// Nothing could go when it was last tried, a moment ago.
    Nothing,
}

/// The current batch of candidates.
#[derive(Debug)]
pub(super) struct Victims {
    /// Ascending rank: the last goes first.
    batch: Vec<Candidate>,
    /// When the batch was chosen; `None`: not yet.
    chosen_at: Option<Ns>,
    /// The last choice found nothing at all.
    barren: bool,
    max_age_ns: Ns,
}

impl Victims {
    /// For an arena of `extents`.
    pub(super) fn new(extents: usize) -> Self {
        let max_age_ns = MIN_AGE_NS + AGE_PER_EXTENT_NS * extents as Ns;
        Self { batch: Vec::new(), chosen_at: None, barren: false, max_age_ns }
    }

    /// Whether to choose again before taking one; `retry_ns`: for how long a choice that found nothing holds.
    pub(super) fn freshness(&self, now: Ns, retry_ns: Ns) -> Freshness {
        let Some(age) = self.chosen_at.map(|at| now.saturating_sub(at)) else { return Freshness::Stale };
        match (self.batch.is_empty(), self.barren) {
            (true, true) if age < retry_ns => Freshness::Nothing,
            (true, _) => Freshness::Stale,
            (false, _) if age > self.max_age_ns => Freshness::Stale,
            (false, _) => Freshness::Good,
        }
    }

    /// Forgets that nothing could go a moment ago.
    pub(super) fn retry(&mut self) {
        self.barren = false;
    }

    /// Chooses the batch from everything that may go now; the search has looked at `looked_at`
    /// extents and playheads.
    pub(super) fn choose(&mut self, now: Ns, looked_at: usize, candidates: impl Iterator<Item = Candidate>) {
        let batch_len = (looked_at / LOOKED_AT_PER_CANDIDATE).max(1);
        self.batch.clear();
        self.batch.extend(candidates);
        if self.batch.len() > batch_len {
            let cut = self.batch.len() - batch_len;
            self.batch.select_nth_unstable_by_key(cut, Candidate::rank);
            self.batch.drain(..cut);
        }
        self.batch.sort_unstable_by_key(Candidate::rank);
        self.chosen_at = Some(now);
        self.barren = self.batch.is_empty();
    }

    /// The candidate whose turn it is.
    pub(super) fn peek(&self) -> Option<Candidate> {
        self.batch.last().copied()
    }

    /// Takes it off the batch.
    pub(super) fn pop(&mut self) {
        self.batch.pop();
    }

    /// The soonest next use in the batch: a candidate that turns out to be needed sooner does not belong to it.
    pub(super) fn cut(&self) -> NextUse {
        self.batch.first().map_or(NextUse::Never, |c| c.next_use)
    }
}

#[cfg(test)]
#[path = "evict_tests.rs"]
mod tests;
