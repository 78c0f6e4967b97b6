//! Whether a stream should get a lower or a higher bit rate: a state machine without I/O. Reports
//! on its viewer come in with the time, a verdict comes out.
//!
//! ```text
//!            a slow reader · sustained loss · an engine that is overloaded
//!    good ─────────────────────────────────────────────────────────────────► down, never within 10 s of a change
//!      ▲ │ nothing of that for `up_after`                                       │
//!      │ └──────────────────────────────► up ── nothing for 60 s ──► proven     │
//!      │                                   └── any of that ──► `up_after` × 2   │
//!      └───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A viewer by TCP is judged by how far the media it has taken is behind the media due. How fast it
//! falls behind shows the capacity of its path: it has taken everything except the amount it fell
//! behind by. A viewer by UDP is judged by its receiver reports, never by one alone.

use std::fmt;

use millrace_core::time::Instant;

use crate::limits::adapt::{
    GOOD_READER_NS, LOSS_HIGH_256, LOSS_LOW_256, LOSS_REPORTS, LOSS_STALE_NS, LOSS_SUSTAINED_NS,
    RENDITION_GAP_NS, RENDITION_PROVEN_NS, RENDITION_UP_MAX_NS, RENDITION_UP_NS, SLOW_READER_NS,
};

/// Why less should be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The viewer does not read its connection fast enough.
    SlowReader,
    /// It reports that packets are lost, again and again.
    Loss,
    /// The engine no longer serves all.
    Overload,
}

/// Why a stream changes its rendition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its viewer wants it.
    Viewer,
    /// The server sends less.
    Trouble(Trouble),
    /// The server tries more.
    Recovered,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Viewer => "as its viewer wishes",
            Self::Trouble(Trouble::SlowReader) => "because its viewer reads too slowly",
            Self::Trouble(Trouble::Loss) => "because its viewer reports loss",
            Self::Trouble(Trouble::Overload) => "because the engine is overloaded",
            Self::Recovered => "because all has been well for a while",
        })
    }
}

/// The change of bit rate that the measurements call for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdaptDecision {
    /// Send less.
    Down {
        /// Share of the data sent that gets through, in thousandths, if it is known.
        through_permille: u64,
        /// Why.
        trouble: Trouble,
    },
    /// Try more.
    Up,
}

/// The known state of one stream.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// When its rendition was changed last.
    changed: Option<Instant>,
    /// When it was raised last, if that may still prove to have been too much.
    raised: Option<Instant>,
    /// How long all must have been well before more is tried.
    up_after_ns: u64,
    /// Since when all has been well.
    good_since: Option<Instant>,
    /// How far its viewer was behind when that was measured last, and where it began to fall behind.
    behind: Option<u64>,
    fell_from: Option<(Instant, u64)>,
    /// Reports in a row of high loss: the first one's and the last one's time, how many, the sum of their fractions.
    loss: Option<(Instant, Instant, u32, u32)>,
    /// Its last report showed loss: until another one does not, time without reports proves
    /// nothing.
    is_lossy: bool,
    /// A reason to send less that has not been acted upon.
    trouble: Option<(Trouble, u64)>,
}

impl Default for Adapter {
    fn default() -> Self {
        Self {
            changed: None,
            raised: None,
            up_after_ns: RENDITION_UP_NS,
            good_since: None,
            behind: None,
            fell_from: None,
            loss: None,
            is_lossy: false,
            trouble: None,
        }
    }
}

impl Adapter {
    /// Records how much of the media due the viewer's end of its connection has not taken.
    pub fn behind(&mut self, now: Instant, behind_ns: u64) {
        let earlier_ns = self.behind.replace(behind_ns);
        if behind_ns <= GOOD_READER_NS {
            self.fell_from = Some((now, behind_ns));
            return self.forget(Trouble::SlowReader);
        }
        self.good_since = None;
        let (since, from_ns) = *self.fell_from.get_or_insert((now, behind_ns));
        let passed_ns = now.ns_since(since);
        let is_falling = passed_ns > 0 && earlier_ns.is_some_and(|earlier_ns| behind_ns >= earlier_ns);
        if behind_ns < SLOW_READER_NS || !is_falling {
            return self.forget(Trouble::SlowReader);
        }
        // Of the media due in this time, it has not taken the amount that it has fallen behind by.
        let lost_permille = behind_ns.saturating_sub(from_ns).saturating_mul(1_000) / passed_ns;
        self.note(Trouble::SlowReader, 1_000 - lost_permille.min(1_000));
    }

    /// The viewer reports that this share of the packets since its last report is lost, in 1/256.
    pub fn report(&mut self, now: Instant, fraction_256: u8) {
        self.is_lossy = fraction_256 >= LOSS_LOW_256;
        if self.is_lossy {
            self.good_since = None;
        }
        if fraction_256 < LOSS_HIGH_256 {
            self.loss = None;
            self.forget(Trouble::Loss);
            return;
        }
        let lost = u32::from(fraction_256);
        let (first, _, count, sum) = match self.loss {
            Some(row) if now.ns_since(row.1) < LOSS_STALE_NS => row,
            _ => (now, now, 0, 0),
        };
        let (count, sum) = (count + 1, sum + lost);
        self.loss = Some((first, now, count, sum));
        if count >= LOSS_REPORTS && now.ns_since(first) >= LOSS_SUSTAINED_NS {
            let mean = u64::from(sum / count);
            self.note(Trouble::Loss, 1_000 - mean * 1_000 / 256);
        }
    }

    /// The engine serves less than it has promised: this is no time to try more.
    pub fn pressure(&mut self) {
        self.good_since = None;
    }

    /// Records that more was not available.
    pub fn refused(&mut self, now: Instant) {
        self.good_since = Some(now);
    }

    /// Records that the rendition has been changed, or is about to change: reports on the one
    /// before mean nothing any more.
    pub fn changed(&mut self, now: Instant, is_up: bool) {
        self.changed = Some(now);
        self.raised = if is_up { Some(now) } else { self.raised };
        self.interrupted();
    }

    /// Records that the media sent is no longer the same, or that none is sent: earlier reports
    /// mean nothing for later media.
    pub fn interrupted(&mut self) {
        (self.good_since, self.loss, self.trouble) = (None, None, None);
        (self.behind, self.fell_from, self.is_lossy) = (None, None, false);
    }

    /// Whether its rendition may be changed by now.
    pub fn may_change(&self, now: Instant) -> bool {
        self.changed.is_none_or(|changed| now.ns_since(changed) >= RENDITION_GAP_NS)
    }

    /// What should be done now, if it can be: ask about once a second.
    pub fn verdict(&mut self, now: Instant) -> Option<AdaptDecision> {
        if self.raised.is_some_and(|raised| now.ns_since(raised) >= RENDITION_PROVEN_NS) {
            (self.raised, self.up_after_ns) = (None, RENDITION_UP_NS);
        }
        if let Some((trouble, through_permille)) = self.trouble {
            return self.may_change(now).then_some(AdaptDecision::Down { through_permille, trouble });
        }
        if self.is_lossy {
            return None;
        }
        // All has been well since the last change at most.
        const { assert!(RENDITION_UP_NS >= RENDITION_GAP_NS) }
        let since = *self.good_since.get_or_insert(now);
        (now.ns_since(since) >= self.up_after_ns).then_some(AdaptDecision::Up)
    }

    fn note(&mut self, trouble: Trouble, through_permille: u64) {
        self.good_since = None;
        self.trouble = Some((trouble, through_permille));
        if self.raised.take().is_some() {
            self.up_after_ns = (self.up_after_ns * 2).min(RENDITION_UP_MAX_NS);
        }
    }

    fn forget(&mut self, trouble: Trouble) {
        self.trouble.take_if(|(noted, _)| *noted == trouble);
    }
}

#[cfg(test)]
#[path = "adapt_tests.rs"]
mod tests;
