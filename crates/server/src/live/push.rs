//! A live title whose media a client brings by a connection.

use std::sync::Arc;
use std::time::Duration;

use millrace_core::seam::Clock;
use millrace_make::live::TsStream;
use millrace_offload::clock::MonotonicClock;
use millrace_web::{LiveFeed, LiveRefusal, NotTaken};

use super::address::check_live_name;
use super::input::LiveInput;
use super::state::{BY_HTTP, report};
use super::titles::{LiveTitles, OpenLiveError};
use crate::limits::live::{LIVE_AHEAD_NS, LIVE_BYTES_PER_PAUSE, LIVE_PAUSE};

/// The media that one client brings.
pub struct LivePush {
    titles: Arc<LiveTitles>,
    /// `None`: it was given away.
    input: Option<LiveInput>,
    stream: TsStream,
    /// Bytes since the last pause.
    bytes: usize,
}

impl LivePush {
    /// Begins to feed a title of this name, or goes on with it if its connection broke a moment ago.
    ///
    /// # Errors
    /// [`LiveRefusal`].
    pub fn begin(titles: &Arc<LiveTitles>, name: &str) -> Result<Self, LiveRefusal> {
        check_live_name(name).map_err(|error| LiveRefusal::Name(error.to_string()))?;
        let input = titles.claim(name, MonotonicClock.now()).map_err(|error| match error {
            OpenLiveError::InUse => LiveRefusal::InUse,
            OpenLiveError::TooMany | OpenLiveError::Cache(_) => LiveRefusal::Full(error.to_string()),
        })?;
        let titles = Arc::clone(titles);
        Ok(Self { titles, input: Some(input), stream: TsStream::default(), bytes: 0 })
    }
}

impl LiveFeed for LivePush {
    fn take(&mut self, bytes: &[u8]) -> Result<Duration, NotTaken> {
        let now = MonotonicClock.now();
        let Some(input) = &mut self.input else { return Ok(Duration::ZERO) };
        self.stream.push(bytes, &mut |run| input.datagram(now, run));
        if self.stream.is_other_format() {
            let what = "the body is not MPEG-TS; send MPEG-TS (ffmpeg -f mpegts)";
            return Err(NotTaken::OtherKind(what.to_owned()));
        }
        let too_early = Duration::from_nanos(input.ahead_ns(now).saturating_sub(LIVE_AHEAD_NS));
        self.look();
        self.bytes += bytes.len();
        if self.bytes < LIVE_BYTES_PER_PAUSE {
            return Ok(too_early);
        }
        // The manager of the cache brings extents meanwhile.
        self.bytes = 0;
        Ok(too_early.max(LIVE_PAUSE))
    }

    fn look(&mut self) {
        let Some(input) = &mut self.input else { return };
        if let Some(state) = input.look(MonotonicClock.now(), 0) {
            report(input.channel().name(), BY_HTTP, state);
        }
        input.publish();
    }

    fn finish(mut self: Box<Self>) {
        if let Some(input) = self.input.take() {
            tracing::info!("live source {} ({BY_HTTP}): ended by its sender", input.channel().name());
            self.titles.end(input);
        }
    }
}

impl Drop for LivePush {
    fn drop(&mut self) {
        if let Some(input) = self.input.take() {
            self.titles.park(input, MonotonicClock.now());
        }
    }
}
