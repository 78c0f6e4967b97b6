//! Which of two sources of a live title is on the air. Without I/O; the time is an argument.
//!
//! ```text
//!            first is silent, not TS, failed; backup runs
//!   First ─────────────────────────────────────────────────► Backup
//!         ◄─────────────────────────────────────────────────
//!            first has run for 10 s; or it runs, and the backup does not
//! ```

use millrace_core::time::Instant;

use super::state::SourceState;
use crate::limits::live::{FIRST_STEADY_NS, LIVE_SILENT_NS};

/// A source of a title that has two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceRank {
    /// The one that viewers get if it runs.
    #[default]
    First,
    /// The one that stands in for it.
    Backup,
}

impl SourceRank {
    /// One word, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Backup => "backup",
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Backup,
            Self::Backup => Self::First,
        }
    }
}

/// Decides by the states of both sources.
#[derive(Debug)]
pub struct SourceChoice {
    on_air: SourceRank,
    /// When the title was opened: sources are given time for their first packet.
    opened: Instant,
    /// Since when the first source has been running.
    runs_since: Option<Instant>,
}

impl SourceChoice {
    /// The first source is on the air.
    pub fn new(now: Instant) -> Self {
        Self { on_air: SourceRank::First, opened: now, runs_since: None }
    }

    /// The source that viewers get.
    pub fn on_air(&self) -> SourceRank {
        self.on_air
    }

    /// The source that viewers should get. It is the caller that changes over ([`SourceChoice::take_over`]), at a point where
    /// decoders can begin.
    pub fn wanted(&mut self, now: Instant, first: SourceState, backup: SourceState) -> SourceRank {
        let since = self.runs_since.filter(|_| first.is_media());
        self.runs_since = since.or_else(|| first.is_media().then_some(now));
        match self.on_air {
            SourceRank::First if first.is_media() || !backup.is_media() => SourceRank::First,
            // It may still begin.
            SourceRank::First
                if first == SourceState::Waiting && now.ns_since(self.opened) < LIVE_SILENT_NS =>
            {
                SourceRank::First
            }
            SourceRank::First => SourceRank::Backup,
            SourceRank::Backup => {
                let is_steady = self.runs_since.is_some_and(|since| now.ns_since(since) >= FIRST_STEADY_NS);
                let is_needed = first.is_media() && !backup.is_media();
                if is_steady || is_needed { SourceRank::First } else { SourceRank::Backup }
            }
        }
    }

    /// Viewers get the other source from now on.
    pub fn take_over(&mut self) {
        self.on_air = self.on_air.other();
    }
}

#[cfg(test)]
mod tests {
    use super::SourceRank::{Backup, First};
    use super::SourceState::{Failed, OtherFormat, Running, Silent, TooFast, Waiting};
    use super::*;
    use millrace_make::live::NotTs;

    const S: u64 = 1_000_000_000;

    fn on_backup() -> SourceChoice {
        let mut choice = SourceChoice::new(Instant(0));
        choice.take_over();
        choice
    }

    #[test]
    fn backup_takes_over_from_a_source_that_gives_no_media() {
        for bad in [Silent(Instant(0)), OtherFormat(NotTs::Garbage), Failed] {
            let mut choice = SourceChoice::new(Instant(0));
            assert_eq!(choice.wanted(Instant(S), Running, Running), First);
            assert_eq!(choice.wanted(Instant(S), bad, Running), Backup, "{bad:?}");
            assert_eq!(choice.wanted(Instant(S), bad, TooFast), Backup, "{bad:?}");
            for none in [Waiting, Failed, Silent(Instant(0)), OtherFormat(NotTs::Rtp)] {
                assert_eq!(choice.wanted(Instant(S), bad, none), First, "{none:?} is no backup");
            }
        }
        assert_eq!(SourceChoice::new(Instant(0)).wanted(Instant(90 * S), TooFast, Running), First);
    }

    #[test]
    fn source_that_never_came_has_three_seconds() {
        let mut choice = SourceChoice::new(Instant(S));
        assert_eq!(choice.wanted(Instant(4 * S - 1), Waiting, Running), First);
        assert_eq!(choice.wanted(Instant(4 * S), Waiting, Running), Backup);
    }

    #[test]
    fn first_source_takes_over_again_when_it_has_run_for_ten_seconds() {
        let mut choice = on_backup();
        assert_eq!(choice.on_air(), Backup);
        assert_eq!(choice.wanted(Instant(S), Running, Running), Backup);
        assert_eq!(choice.wanted(Instant(11 * S - 1), Running, Running), Backup);
        assert_eq!(choice.wanted(Instant(11 * S), TooFast, Running), First);
        choice.take_over();
        assert_eq!(choice.on_air(), First);
    }

    #[test]
    fn ten_seconds_begin_again_with_each_failure() {
        let mut choice = on_backup();
        assert_eq!(choice.wanted(Instant(0), Running, Running), Backup);
        assert_eq!(choice.wanted(Instant(9 * S), Failed, Running), Backup);
        assert_eq!(choice.wanted(Instant(12 * S), Running, Running), Backup);
        assert_eq!(choice.wanted(Instant(21 * S), Running, Running), Backup);
        assert_eq!(choice.wanted(Instant(22 * S), Running, Running), First);
    }

    #[test]
    fn first_source_takes_over_at_once_from_a_backup_that_gives_no_media() {
        let mut choice = on_backup();
        assert_eq!(choice.wanted(Instant(S), Failed, Failed), Backup, "neither is better");
        assert_eq!(choice.wanted(Instant(2 * S), Running, Silent(Instant(0))), First);
    }
}
