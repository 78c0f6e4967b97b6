//! What players that buffer would have shown: for viewers over HTTP.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::lateness::{LatenessSummary, histogram_us, summarize};

/// One viewer's playback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Playback {
    /// From the start to the first picture; `None` if there was none.
    pub(super) startup_us: Option<u64>,
    /// Times the buffer ran empty.
    pub(super) rebuffers: u64,
    /// How long the picture stood still, all in all.
    pub(super) rebuffering_us: u64,
    /// Requests made.
    pub(super) requests: u64,
    /// Requests that were refused or broke off.
    pub(super) requests_failed: u64,
}

/// The playback of all viewers over HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlaybackReport {
    /// Sessions over HTTP.
    pub sessions: u64,
    /// From the start to the first picture.
    pub startup: LatenessSummary,
    /// Times a buffer ran empty.
    pub rebuffers: u64,
    /// Sessions whose buffer did.
    pub sessions_rebuffered: u64,
    /// How long pictures stood still, all in all.
    pub rebuffering_us: u64,
    /// Requests made.
    pub requests: u64,
    /// Requests that were refused or broke off.
    pub requests_failed: u64,
}

/// Sums over viewers.
#[derive(Debug)]
pub(super) struct PlaybackSums {
    counts: PlaybackReport,
    startup: Histogram<u64>,
}

impl Default for PlaybackSums {
    fn default() -> Self {
        Self { counts: PlaybackReport::default(), startup: histogram_us() }
    }
}

impl PlaybackSums {
    /// One viewer more.
    pub(super) fn add(&mut self, one: &Playback) {
        self.counts.sessions += 1;
        self.counts.rebuffers += one.rebuffers;
        self.counts.sessions_rebuffered += u64::from(one.rebuffers > 0);
        self.counts.rebuffering_us += one.rebuffering_us;
        self.counts.requests += one.requests;
        self.counts.requests_failed += one.requests_failed;
        one.startup_us.into_iter().for_each(|us| self.startup.saturating_record(us));
    }

    /// The viewers of another thread as well.
    pub(super) fn merge(&mut self, other: &Self) {
        self.counts.sessions += other.counts.sessions;
        self.counts.rebuffers += other.counts.rebuffers;
        self.counts.sessions_rebuffered += other.counts.sessions_rebuffered;
        self.counts.rebuffering_us += other.counts.rebuffering_us;
        self.counts.requests += other.counts.requests;
        self.counts.requests_failed += other.counts.requests_failed;
        self.startup.add(&other.startup).expect("both have the bounds of histogram_us");
    }

    /// `None` if nobody used HTTP.
    pub(super) fn report(&self) -> Option<PlaybackReport> {
        (self.counts.sessions > 0)
            .then(|| PlaybackReport { startup: summarize(&self.startup), ..self.counts })
    }
}
