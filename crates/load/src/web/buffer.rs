//! A player's buffer on a clock that is passed in: how much media is there, how far the picture is, when it stands still.
//!
//! Media received is passed in with [`PlayBuffer::received`]. The picture starts when
//! [`BufferPlan::start_ns`] of media are present, stands still when it reaches the end of the media
//! present, and goes on when `start_ns` are present again. A piece of media is late by the time
//! from when the picture needed its first byte until the piece was present; media that comes before
//! it is needed is not late at all.

use millrace_core::time::Instant;
use serde::Serialize;

/// How much media a viewer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPlan {
    /// It reads on until it has this much media ahead of the picture, then only as fast as it
    /// plays.
    pub goal_ns: u64,
    /// The picture starts, or goes on after standing still, with this much media. No more than
    /// `goal_ns`.
    pub start_ns: u64,
    /// With a full buffer, reading goes on when the buffer has fallen by this much.
    pub step_ns: u64,
}

impl BufferPlan {
    /// Reading ahead `goal_ns`, starting with `start_ns`.
    pub fn new(goal_ns: u64, start_ns: u64) -> Self {
        Self { goal_ns, start_ns: start_ns.min(goal_ns), step_ns: (goal_ns / 10).min(250_000_000) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaybackState {
    /// Not yet enough media since this time.
    Starting { since: Instant },
    /// The picture was at `from_ns` at `since`.
    Playing { since: Instant, from_ns: u64 },
    /// The picture has stood at `at_ns` since `since` for want of media.
    Stalled { since: Instant, at_ns: u64 },
    /// The viewer has stopped the picture at `at_ns`.
    Paused { at_ns: u64 },
    /// Everything has been seen.
    Ended { at_ns: u64 },
}

/// A viewer's experience.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BufferCounts {
    /// From the wish to see the title to the first picture.
    pub startup_ns: Option<u64>,
    /// The same for the slowest seek.
    pub slowest_seek_ns: Option<u64>,
    /// Times that the picture stood still for want of media.
    pub stalls: u64,
    /// For how long, all together.
    pub stalled_ns: u64,
    /// The longest of them.
    pub longest_stall_ns: u64,
    /// Media that was seen.
    pub played_ns: u64,
    /// The latest piece.
    pub lateness_max_ns: u64,
}

/// The buffer and picture of one viewer. Times must not run back.
#[derive(Clone, Debug)]
pub struct PlayBuffer {
    plan: BufferPlan,
    state: PlaybackState,
    /// Media that has come, since the last start or seek.
    received_ns: u64,
    is_complete: bool,
    is_seek: bool,
    /// Media seen before the last seek.
    played_before_ns: u64,
    counts: BufferCounts,
}

impl PlayBuffer {
    /// The viewer wants to see the title `now`.
    pub fn new(plan: BufferPlan, now: Instant) -> Self {
        Self {
            plan,
            state: PlaybackState::Starting { since: now },
            received_ns: 0,
            is_complete: false,
            is_seek: false,
            played_before_ns: 0,
            counts: BufferCounts::default(),
        }
    }

    /// Changes how much media is held.
    pub fn set_plan(&mut self, plan: BufferPlan) {
        self.plan = plan;
    }

    /// Where the picture is at `now`, from where the title or the last seek began.
    fn position_ns(&self, now: Instant) -> u64 {
        match self.state {
            PlaybackState::Starting { .. } => 0,
            PlaybackState::Playing { since, from_ns } => {
                from_ns.saturating_add(now.ns_since(since)).min(self.received_ns)
            }
            PlaybackState::Stalled { at_ns, .. }
            | PlaybackState::Paused { at_ns }
            | PlaybackState::Ended { at_ns } => at_ns,
        }
    }

    /// Detects that the picture has reached the end of the media present.
    fn advance(&mut self, now: Instant) {
        let PlaybackState::Playing { since, from_ns } = self.state else { return };
        let at = since.plus_ns(self.received_ns.saturating_sub(from_ns));
        if at <= now {
            let at_ns = self.received_ns;
            self.state = if self.is_complete {
                PlaybackState::Ended { at_ns }
            } else {
                self.counts.stalls += 1;
                PlaybackState::Stalled { since: at, at_ns }
            };
        }
    }

    /// Media up to `to_ns` (from where it, or the last seek, began) is there. Returns by how much the piece since the
    /// last call is late.
    pub fn received(&mut self, now: Instant, to_ns: u64) -> u64 {
        self.advance(now);
        let late_ns = match self.state {
            PlaybackState::Stalled { since, at_ns } => {
                now.ns_since(since.plus_ns(self.received_ns.saturating_sub(at_ns)))
            }
            _ => 0,
        };
        self.counts.lateness_max_ns = self.counts.lateness_max_ns.max(late_ns);
        self.received_ns = self.received_ns.max(to_ns);
        self.start_if_enough(now);
        late_ns
    }

    /// All of the title is there.
    pub fn complete(&mut self, now: Instant) {
        self.advance(now);
        self.is_complete = true;
        self.start_if_enough(now);
        self.advance(now);
    }

    fn start_if_enough(&mut self, now: Instant) {
        let (at_ns, since) = match self.state {
            PlaybackState::Starting { since } => (0, since),
            PlaybackState::Stalled { since, at_ns } => (at_ns, since),
            _ => return,
        };
        if !self.is_complete && self.received_ns.saturating_sub(at_ns) < self.plan.start_ns.max(1) {
            return;
        }
        let waited_ns = now.ns_since(since);
        match self.state {
            PlaybackState::Starting { .. } if self.is_seek => {
                self.counts.slowest_seek_ns = self.counts.slowest_seek_ns.max(Some(waited_ns));
            }
            PlaybackState::Starting { .. } => self.counts.startup_ns = Some(waited_ns),
            _ => self.end_stall(waited_ns),
        }
        self.state = PlaybackState::Playing { since: now, from_ns: at_ns };
    }

    fn end_stall(&mut self, stalled_ns: u64) {
        self.counts.stalled_ns += stalled_ns;
        self.counts.longest_stall_ns = self.counts.longest_stall_ns.max(stalled_ns);
    }

    /// Media that is there and not seen yet.
    pub fn buffered_ns(&self, now: Instant) -> u64 {
        self.received_ns - self.position_ns(now)
    }

    /// When the viewer reads on: `None` if at once, the end of time if not before something else happens.
    pub fn reads_at(&self, now: Instant) -> Option<Instant> {
        let buffered_ns = self.buffered_ns(now);
        if buffered_ns < self.plan.goal_ns
            || matches!(self.state, PlaybackState::Stalled { .. } | PlaybackState::Starting { .. })
        {
            return None;
        }
        match self.state {
            PlaybackState::Playing { .. } => {
                let level_ns = self.plan.goal_ns - self.plan.step_ns;
                Some(now.plus_ns((buffered_ns - level_ns).max(1)))
            }
            _ => Some(Instant(u64::MAX)),
        }
    }

    /// When [`Self::has_ended`] may become true, if everything is there.
    pub fn ends_at(&self) -> Option<Instant> {
        match self.state {
            PlaybackState::Playing { since, from_ns } if self.is_complete => {
                Some(since.plus_ns(self.received_ns.saturating_sub(from_ns)))
            }
            _ => None,
        }
    }

    /// Whether everything has been seen.
    pub fn has_ended(&mut self, now: Instant) -> bool {
        self.advance(now);
        matches!(self.state, PlaybackState::Ended { .. })
    }

    /// Whether there was a picture yet.
    pub fn has_started(&self) -> bool {
        self.counts.startup_ns.is_some()
    }

    /// Whether all of the title is there.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The viewer stops the picture.
    pub fn pause(&mut self, now: Instant) {
        self.advance(now);
        match self.state {
            PlaybackState::Playing { .. } => {
                self.state = PlaybackState::Paused { at_ns: self.position_ns(now) }
            }
            PlaybackState::Stalled { since, at_ns } => {
                self.end_stall(now.ns_since(since));
                self.state = PlaybackState::Paused { at_ns };
            }
            // A title that has not begun, or is over, has no picture to stop.
            _ => {}
        }
    }

    /// The viewer lets the picture go on.
    pub fn resume(&mut self, now: Instant) {
        if let PlaybackState::Paused { at_ns } = self.state {
            self.state = PlaybackState::Playing { since: now, from_ns: at_ns };
            self.advance(now);
        }
    }

    /// The viewer goes elsewhere in the title, or to another title: the buffer is empty.
    pub fn seek(&mut self, now: Instant) {
        self.advance(now);
        if let PlaybackState::Stalled { since, .. } = self.state {
            self.end_stall(now.ns_since(since));
        }
        self.played_before_ns += self.position_ns(now);
        self.is_seek |= self.has_started();
        self.state = PlaybackState::Starting { since: now };
        (self.received_ns, self.is_complete) = (0, false);
    }

    /// Returns the viewer's experience up to `now`.
    pub fn counts(&mut self, now: Instant) -> BufferCounts {
        self.advance(now);
        let mut counts = self.counts;
        if let PlaybackState::Stalled { since, .. } = self.state {
            counts.stalled_ns += now.ns_since(since);
            counts.longest_stall_ns = counts.longest_stall_ns.max(now.ns_since(since));
        }
        counts.played_ns = self.played_before_ns + self.position_ns(now);
        counts
    }
}

#[cfg(test)]
#[path = "buffer_tests.rs"]
mod tests;
