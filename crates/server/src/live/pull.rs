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

use super::address::{LiveSource, LiveTransport};
use super::input::LiveInput;
use super::receive::{StartLiveError, input, report};
use super::titles::LiveTitles;
use crate::limits::live::{
    LIVE_AHEAD_NS, LIVE_BYTES_PER_PAUSE, LIVE_LOOK_EVERY, LIVE_PAUSE, MAX_PULL_PAUSE, MIN_PULL_PAUSE,
    PULL_STEADY,
};

/// One source that is fetched.
pub struct LivePuller {
    source: LiveSource,
    url: PullUrl,
    program: LivePull,
    titles: Arc<LiveTitles>,
    input: LiveInput,
    /// Bytes since the last pause.
    bytes: usize,
}

impl LivePuller {
    /// Opens the source's title.
    ///
    /// # Errors
    /// [`StartLiveError::Title`].
    pub fn open(
        source: LiveSource,
        url: PullUrl,
        program: LivePull,
        titles: &Arc<LiveTitles>,
    ) -> Result<Self, StartLiveError> {
        let input = input(&source.name, LiveTransport::Udp, titles)
            .map_err(|cause| StartLiveError::Title { name: source.name.clone(), cause })?;
        Ok(Self { source, url, program, titles: Arc::clone(titles), input, bytes: 0 })
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
        let now = MonotonicClock.now();
        if let PullEvent::Bytes(bytes) = event {
            stream.push(bytes, &mut |run| self.input.datagram(now, run));
            self.bytes += bytes.len();
        }
        self.look(now);
        let too_early = Duration::from_nanos(self.input.ahead_ns(now).saturating_sub(LIVE_AHEAD_NS));
        if too_early > Duration::ZERO {
            self.wait(too_early, stop);
        } else if self.bytes >= LIVE_BYTES_PER_PAUSE {
            // The manager of the cache brings extents meanwhile.
            self.bytes = 0;
            std::thread::sleep(LIVE_PAUSE);
        }
    }

    /// Waits, looking after the title.
    fn wait(&mut self, pause: Duration, stop: &AtomicBool) {
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

    fn look(&mut self, now: Instant) {
        if let Some(state) = self.input.look(now, 0) {
            report(&self.source.name, &self.source.url, state);
        }
        self.input.publish();
        if self.input.is_full() {
            let LiveSource { name, .. } = &self.source;
            let open = || input(name, LiveTransport::Udp, &self.titles);
            self.input.renew(&self.titles, &format!("live source {name}"), open);
        }
    }

    /// Reports a failure once, and again when the reason changes.
    fn fail(&mut self, now: Instant, why: String, pause: Duration) {
        let pause = HumanDuration(pause);
        if self.input.fail(now, why.clone()) {
            let LiveSource { name, url, .. } = &self.source;
            tracing::warn!("live source {name} ({url}): {why}; trying again in {pause}");
        }
    }
}
