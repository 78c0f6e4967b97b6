//! What viewers over HTTP are like.

use std::time::Duration;

use millrace_client::error::ClientError;

use super::buffer::BufferPlan;
use super::playlist::VariantChoice;
use crate::limits::{DEFAULT_BUFFER, MIN_SEGMENTS};

/// What viewers over HTTP are like. The default is what common players do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebOptions {
    /// Media that a viewer reads ahead; `None`: 10 s, and of HLS at least three segments.
    pub buffer: Option<Duration>,
    /// Media needed for the picture to start, and to go on after it stood still.
    pub start_buffer: Duration,
    /// Which variant of an HLS title.
    pub variant: VariantChoice,
    /// Length of the title, for files over HTTP that carry no clock when no rate is given either.
    pub film_length: Option<Duration>,
}

impl Default for WebOptions {
    fn default() -> Self {
        Self {
            buffer: None,
            start_buffer: Duration::from_secs(2),
            variant: VariantChoice::default(),
            film_length: None,
        }
    }
}

/// Nanoseconds as far as they can be counted.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl WebOptions {
    /// Whether they make sense.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        for (option, time) in [("buffer", self.buffer), ("film length", self.film_length)] {
            if time.is_some_and(|time| time.is_zero()) {
                return Err(ClientError::Option { option, got: "0".to_owned(), allowed: "more than 0" });
            }
        }
        Ok(())
    }

    /// The buffer of a viewer; `target_ns` is the longest segment of HLS, or 0.
    pub(crate) fn plan(&self, target_ns: u64) -> BufferPlan {
        let goal_ns = match self.buffer {
            Some(buffer) => ns(buffer),
            None => ns(DEFAULT_BUFFER).max(target_ns.saturating_mul(MIN_SEGMENTS)),
        };
        BufferPlan::new(goal_ns, ns(self.start_buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_seconds_or_segments() {
        let options = WebOptions::default();
        assert_eq!((options.plan(0).goal_ns, options.plan(0).start_ns), (10_000_000_000, 2_000_000_000));
        assert_eq!(options.plan(6_000_000_000).goal_ns, 18_000_000_000);
        let small = WebOptions { buffer: Some(Duration::from_secs(1)), ..options };
        assert_eq!(
            (small.plan(6_000_000_000).goal_ns, small.plan(0).start_ns),
            (1_000_000_000, 1_000_000_000)
        );
    }

    #[test]
    fn web_options_check_rejects_zero_durations() {
        assert!(WebOptions::default().check().is_ok());
        for (options, what) in [
            (WebOptions { buffer: Some(Duration::ZERO), ..WebOptions::default() }, "buffer"),
            (WebOptions { film_length: Some(Duration::ZERO), ..WebOptions::default() }, "film length"),
        ] {
            assert!(options.check().unwrap_err().to_string().starts_with(what));
        }
    }
}
