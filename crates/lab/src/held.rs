//! Resources that a running server holds for its viewers, from the file of `serve --stats` and from
//! /proc: shows whether all are released when the viewers are gone.

use std::path::Path;
use std::time::{Duration, Instant as StdInstant};

use anyhow::Context;
use serde_json::Value;

/// Time between two looks: the file is written once a second.
const LOOK: Duration = Duration::from_millis(100);

/// Resources that a server holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldResources {
    /// Connections.
    pub connections: u64,
    /// Connections lent for bytes of titles.
    pub deliveries: u64,
    /// Sessions, playing or not.
    pub sessions: u64,
    /// Places for streams in its engines.
    pub streams: u64,
    /// Bits a second that admission has given away.
    pub reserved_bits_per_s: u64,
    /// File descriptors of the process.
    pub descriptors: u64,
}

/// All counters as the file has them.
///
/// # Errors
/// When it is not there or no such document.
pub fn counters(stats: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(stats).with_context(|| stats.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| stats.display().to_string())
}

impl HeldResources {
    /// That of process `pid`, which writes `stats`.
    ///
    /// # Errors
    /// When one of the two cannot be read.
    pub fn read(pid: u32, stats: &Path) -> anyhow::Result<Self> {
        Self::of(pid, &counters(stats)?)
    }

    fn of(pid: u32, counters: &Value) -> anyhow::Result<Self> {
        let now = |name: &str| {
            counters["now"][name].as_u64().with_context(|| format!("the server's counters have no {name}"))
        };
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).context("the server's descriptors")?;
        Ok(Self {
            connections: now("connections")?,
            deliveries: now("deliveries")?,
            sessions: now("sessions")?,
            streams: now("streams")?,
            reserved_bits_per_s: now("reserved_bits_per_s")?,
            descriptors: descriptors.count() as u64,
        })
    }

    /// Nothing but these descriptors.
    pub fn nothing_but(descriptors: u64) -> Self {
        Self { descriptors, ..Self::default() }
    }

    /// Waits until the server holds no more than `expected`, for at most `within`; returns the
    /// resources held then. Ignores counters that the server wrote before the call.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn settle(pid: u32, stats: &Path, expected: Self, within: Duration) -> anyhow::Result<Self> {
        let end = StdInstant::now() + within;
        let old = counters(stats)?["uptime_ms"].clone();
        loop {
            let counters = counters(stats)?;
            let held = Self::of(pid, &counters)?;
            let is_settled = counters["uptime_ms"] != old && held.beyond(expected) == 0;
            if is_settled || StdInstant::now() > end {
                return Ok(held);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// How many things it holds that are not `expected`; a bit rate counts as one.
    pub fn beyond(self, expected: Self) -> u64 {
        let over = |held: u64, expected: u64| held.saturating_sub(expected);
        over(self.connections, expected.connections)
            + over(self.deliveries, expected.deliveries)
            + over(self.sessions, expected.sessions)
            + over(self.streams, expected.streams)
            + over(self.reserved_bits_per_s, expected.reserved_bits_per_s).min(1)
            + over(self.descriptors, expected.descriptors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_left_counts() {
        let dir = tempfile::tempdir().unwrap();
        let stats = dir.path().join("stats.json");
        let write = |connections, sessions, streams, rate| {
            let now = format!(
                r#"{{"now":{{"connections":{connections},"deliveries":0,"sessions":{sessions},"streams":{streams},"reserved_bits_per_s":{rate}}}}}"#
            );
            std::fs::write(&stats, now).unwrap();
            HeldResources::read(std::process::id(), &stats).unwrap()
        };
        let empty = write(0, 0, 0, 0);
        assert!(empty.descriptors > 2);
        let expected = HeldResources::nothing_but(empty.descriptors);
        assert_eq!(empty.beyond(expected), 0);
        for (held, count) in [
            (write(2, 0, 0, 0), 2),
            (write(0, 3, 0, 0), 3),
            (write(0, 0, 4, 0), 4),
            (write(0, 0, 0, 8_000_000), 1),
        ] {
            // Tests that run beside this one have descriptors of their own.
            let held = HeldResources { descriptors: empty.descriptors, ..held };
            assert_eq!(held.beyond(expected), count, "{held:?}");
        }
        assert_eq!(HeldResources { deliveries: 5, ..expected }.beyond(expected), 5);
        assert_eq!(HeldResources::nothing_but(7).beyond(HeldResources::nothing_but(5)), 2);
        std::fs::write(&stats, "{}").unwrap();
        assert!(HeldResources::read(std::process::id(), &stats).is_err());
    }
}
