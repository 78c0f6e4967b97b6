//! Live sources that the ffmpeg program fetches: one thread for each starts it, takes its output, and
//! starts it again when it ends.
//!
//! ```text
//!   ffmpeg ─ pipe ─► TsStream ─► LiveInput        ended ─► pause of 1 s, doubled up to 30 s ─► ffmpeg ...
//! ```
//!
//! Media ahead of its time is left in the pipe, which holds ffmpeg back: HLS comes in whole segments.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::units::HumanDuration;
use millrace_make::live::{LivePull, PullEvent, PullUrl, TsStream};
use millrace_offload::clock::MonotonicClock;

use super::address::LiveSource;
use super::choice::SourceRank;
use super::pair::TitleSources;
use crate::limits::live::{
    LIVE_AHEAD_NS, LIVE_BYTES_PER_PAUSE, LIVE_LOOK_EVERY, LIVE_PAUSE, MAX_PULL_PAUSE, MIN_PULL_PAUSE,
    PULL_STEADY,
};

/// One source that is fetched.
pub struct LivePuller {
    source: LiveSource,
    rank: SourceRank,
    url: PullUrl,
    program: LivePull,
    title: Arc<TitleSources>,
    /// Bytes since the last pause.
    bytes: usize,
}

impl LivePuller {
    /// Fetches the source of this rank for its title.
    pub fn new(
        source: LiveSource,
        rank: SourceRank,
        url: PullUrl,
        program: LivePull,
        title: &Arc<TitleSources>,
    ) -> Self {
        Self { source, rank, url, program, title: Arc::clone(title), bytes: 0 }
    }

    /// Fetches until `stop` is set.
    pub fn run(mut self, stop: &AtomicBool) {
        tracing::info!("live source {}: fetching {}", self.source.name, self.source.url);
        let mut pause = MIN_PULL_PAUSE;
        while !stop.load(Ordering::Relaxed) {
            let begun = MonotonicClock.now();
            let (program, url) = (self.program.clone(), self.url.clone());
            let mut stream = TsStream::default();
            let ended = program.run(&url, stop, &mut |event| self.take(&mut stream, event, stop));
            let Some(why) = ended else { return };
            let now = MonotonicClock.now();
            if now.ns_since(begun) >= PULL_STEADY.as_nanos() as u64 {
                pause = MIN_PULL_PAUSE;
            }
            self.fail(now, why, pause);
            self.wait(pause, stop);
            pause = (pause * 2).min(MAX_PULL_PAUSE);
        }
    }

    fn take(&mut self, stream: &mut TsStream, event: PullEvent<'_>, stop: &AtomicBool) {
        let (now, rank) = (MonotonicClock.now(), self.rank);
        let ahead = self.title.with(|title| {
            if let PullEvent::Bytes(bytes) = event {
                stream.push(bytes, &mut |run| title.datagram(rank, now, run));
                self.bytes += bytes.len();
            }
            title.look(now);
            title.ahead_ns(rank, now)
        });
        let too_early = Duration::from_nanos(ahead.unwrap_or(0).saturating_sub(LIVE_AHEAD_NS));
        if too_early > Duration::ZERO {
            self.wait(too_early, stop);
        } else if self.bytes >= LIVE_BYTES_PER_PAUSE {
            // The manager of the cache brings extents meanwhile.
            self.bytes = 0;
            std::thread::sleep(LIVE_PAUSE);
        }
    }

    /// Waits, looking after the title.
    fn wait(&self, pause: Duration, stop: &AtomicBool) {
        let end = MonotonicClock.now().plus_ns(pause.as_nanos() as u64);
        while !stop.load(Ordering::Relaxed) {
            let left = end.ns_since(MonotonicClock.now());
            if left == 0 {
                return;
            }
            std::thread::sleep(Duration::from_nanos(left).min(LIVE_LOOK_EVERY));
            self.look(MonotonicClock.now());
        }
    }

    fn look(&self, now: Instant) {
        self.title.with(|title| title.look(now));
    }

    /// Reports a failure once, and again when the reason changes.
    fn fail(&self, now: Instant, why: String, pause: Duration) {
        let pause = HumanDuration(pause);
        if self.title.with(|title| title.fail(self.rank, now, why.clone())) == Some(true) {
            let LiveSource { name, url, .. } = &self.source;
            tracing::warn!("live source {name} ({url}): {why}; trying again in {pause}");
        }
    }
}
