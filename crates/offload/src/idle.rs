//! The behavior of a loop when there is nothing to do.

use std::time::Duration;

use millrace_core::time::Instant;

use crate::limits::{GATHER_NS, MAX_SLEEP_NS, MIN_SLEEP_NS};

/// How a loop waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IdlePolicy {
    /// Never sleeps: lowest lateness, one core at 100 %.
    Busy,
    /// Sleeps to the next departure, and long enough to gather a few.
    #[default]
    Adaptive,
    /// Sleeps whenever there is nothing to do: for machines shared with others.
    Sleeping,
}

impl std::str::FromStr for IdlePolicy {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "busy" => Ok(Self::Busy),
            "adaptive" => Ok(Self::Adaptive),
            "sleeping" => Ok(Self::Sleeping),
            other => Err(format!("idle policy: got \"{other}\", allowed busy, adaptive, sleeping")),
        }
    }
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Go round again.
    Spin,
    /// Sleep at most this long, unless the bell rings.
    Sleep(Duration),
}

impl IdlePolicy {
    /// Decides at `now`, given the next departure (none: nothing is playing).
    pub fn wait(self, now: Instant, next: Option<Instant>) -> Wait {
        let until = next.map_or(MAX_SLEEP_NS, |next| next.ns_since(now).min(MAX_SLEEP_NS));
        match self {
            Self::Busy => Wait::Spin,
            Self::Adaptive => Wait::Sleep(Duration::from_nanos(until.max(GATHER_NS))),
            Self::Sleeping => Wait::Sleep(Duration::from_nanos(until.max(MIN_SLEEP_NS))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_differ_as_described() {
        let now = Instant(1_000_000);
        assert_eq!(IdlePolicy::Busy.wait(now, None), Wait::Spin);
        let gather = Wait::Sleep(Duration::from_nanos(GATHER_NS));
        assert_eq!(IdlePolicy::Adaptive.wait(now, Some(now.plus_ns(10_000))), gather);
        assert_eq!(IdlePolicy::Adaptive.wait(now, Some(now)), gather);
        let far = now.plus_ns(5_000_000);
        assert_eq!(IdlePolicy::Adaptive.wait(now, Some(far)), Wait::Sleep(Duration::from_millis(5)));
        assert_eq!(
            IdlePolicy::Sleeping.wait(now, Some(now)),
            Wait::Sleep(Duration::from_nanos(MIN_SLEEP_NS))
        );
        assert_eq!(IdlePolicy::Sleeping.wait(now, None), Wait::Sleep(Duration::from_nanos(MAX_SLEEP_NS)));
    }
}
