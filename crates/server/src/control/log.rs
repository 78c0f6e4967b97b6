//! Log lines that clients can cause, all through one limiter: whoever opens and ends sessions as fast as it can fills no disk
//! and hides nothing.
//!
//! At most [`MAX_CLIENT_LINES_PER_S`] are written in any second, and some of these only for
//! problems that need an operator's attention. The number of lines left out is logged about once a
//! second. Left-out lines are written at level `debug`, for operators that want them.

use std::collections::VecDeque;
use std::fmt;

use millrace_core::time::{Instant, NS_PER_S};

use crate::limits::MAX_CLIENT_LINES_PER_S;
use crate::limits::control::{FAILURE_LINES, NO_FILES_EVERY_NS};
use crate::service::ServiceEvent;

/// Where lines about single requests can be asked for: `MILLRACE_LOG=info,millrace::requests=debug`. The web side's have the same.
const REQUESTS: &str = "millrace::requests";

/// Writes lines, or counts them.
#[derive(Debug, Default)]
pub(super) struct ClientLog {
    limiter: Limiter,
    no_files: Repeated,
}

impl ClientLog {
    /// Writes the line of an event that has one.
    pub(super) fn write(&mut self, now: Instant, event: &ServiceEvent) {
        if !event.is_logged() {
            if event.is_traced() {
                tracing::debug!(target: REQUESTS, id = event.id(), "{event}");
            }
            return;
        }
        self.tell_left_out(now);
        match (self.limiter.admit(now, event.is_failure()), event.is_warning()) {
            (true, true) => tracing::warn!(id = event.id(), "{event}"),
            (true, false) => tracing::info!(id = event.id(), "{event}"),
            (false, is_warning) => {
                self.limiter.leave_out(now, is_warning);
                tracing::debug!(id = event.id(), "{event}");
            }
        }
    }

    /// Logs how many lines were left out between two lines: call it now and then.
    pub(super) fn tell_left_out(&mut self, now: Instant) {
        if let Some(left_out) = self.limiter.left_out(now) {
            tracing::warn!("{left_out}");
        }
    }

    /// No more lines will come.
    pub(super) fn finish(&mut self) {
        if self.limiter.left_out.lines > 0 {
            tracing::warn!("{}", std::mem::take(&mut self.limiter.left_out));
        }
    }

    /// No descriptor was left for what clients want.
    pub(super) fn no_files(&mut self, now: Instant, what: &str, error: &std::io::Error) {
        if let Some(times) = self.no_files.admit(now, NO_FILES_EVERY_NS) {
            let since = if times > 1 {
                format!(" ({times} times since this was logged last)")
            } else {
                String::new()
            };
            tracing::warn!("{what}: {error}; raise the limit of open files{since}");
        }
    }
}

/// The lines not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeftOut {
    lines: u64,
    warnings: u64,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, warnings } = self;
        write!(f, "{lines} log lines about clients were left out, {warnings} of them warnings: more than ")?;
        write!(f, "{MAX_CLIENT_LINES_PER_S} a second; MILLRACE_LOG=debug writes all")
    }
}

/// A limit on the lines in any second.
#[derive(Debug, Default)]
struct Limiter {
    /// When the lines of the last second were written.
    written: VecDeque<Instant>,
    left_out: LeftOut,
    /// When the first of these was left out.
    since: Option<Instant>,
}

impl Limiter {
    /// Whether a line may be written now.
    fn admit(&mut self, now: Instant, is_failure: bool) -> bool {
        while self.written.front().is_some_and(|&line| now.ns_since(line) >= NS_PER_S) {
            self.written.pop_front();
        }
        let room = if is_failure { MAX_CLIENT_LINES_PER_S } else { MAX_CLIENT_LINES_PER_S - FAILURE_LINES };
        let admitted = self.written.len() < room;
        if admitted {
            self.written.push_back(now);
        }
        admitted
    }

    fn leave_out(&mut self, now: Instant, is_warning: bool) {
        self.since.get_or_insert(now);
        self.left_out.lines += 1;
        self.left_out.warnings += u64::from(is_warning);
    }

    /// Returns the number of lines left out, if it is time to log it.
    fn left_out(&mut self, now: Instant) -> Option<LeftOut> {
        if now.ns_since(self.since?) < NS_PER_S || !self.admit(now, true) {
            return None;
        }
        self.since = None;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// One line that would be repeated.
#[derive(Debug, Default)]
struct Repeated {
    last: Option<Instant>,
    times: u64,
}

impl Repeated {
    /// How often it has happened since it was last logged, if it may be logged now.
    fn admit(&mut self, now: Instant, every_ns: u64) -> Option<u64> {
        self.times += 1;
        if self.last.is_some_and(|last| now.ns_since(last) < every_ns) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a flood of `lines` per second for `seconds`; returns when lines were written (including
    /// those that count left-out lines), and how many lines are accounted for.
    fn flood(lines: u64, seconds: u64) -> (Vec<Instant>, u64) {
        let mut limiter = Limiter::default();
        let (mut written, mut known) = (Vec::new(), 0);
        for line in 0..lines * seconds {
            let now = Instant(500 * NS_PER_S + line * NS_PER_S / lines);
            if let Some(left_out) = limiter.left_out(now) {
                written.push(now);
                known += left_out.lines;
            }
            if limiter.admit(now, false) {
                written.push(now);
                known += 1;
            } else {
                limiter.leave_out(now, false);
            }
        }
        (written, known + limiter.left_out.lines)
    }

    #[test]
    fn limiter_under_flood_admits_at_most_ten_lines_per_second() {
        for lines in [3, 7, 8, 11, 50, 6337] {
            let (written, known) = flood(lines, 20);
            for window in written.windows(MAX_CLIENT_LINES_PER_S + 1) {
                let spread = window[MAX_CLIENT_LINES_PER_S].ns_since(window[0]);
                assert!(spread >= NS_PER_S, "{lines} lines a second: eleven in {spread} ns");
            }
            assert_eq!(known, lines * 20);
            let expected = lines.min(7) * 19;
            assert!(written.len() as u64 >= expected, "{lines} lines a second: {}", written.len());
        }
    }

    #[test]
    fn limiter_under_flood_still_admits_warnings() {
        let mut limiter = Limiter::default();
        let now = Instant(7 * NS_PER_S);
        assert_eq!((0..1000).filter(|_| limiter.admit(now, false)).count(), 7);
        assert_eq!((0..1000).filter(|_| limiter.admit(now, true)).count(), 3);
        limiter.leave_out(now, true);
        limiter.leave_out(now, false);
        assert_eq!(limiter.left_out(now.plus_ns(NS_PER_S - 1)), None, "that would be the eleventh line");
        let later = now.plus_ns(NS_PER_S);
        let left_out = limiter.left_out(later).unwrap();
        assert_eq!(left_out, LeftOut { lines: 2, warnings: 1 });
        assert!(
            left_out.to_string().starts_with("2 log lines about clients were left out, 1 of them warnings")
        );
        assert_eq!(limiter.left_out(later.plus_ns(5 * NS_PER_S)), None, "once");
    }

    #[test]
    fn repeated_admit_of_lasting_condition_logs_once_per_minute() {
        let mut repeated = Repeated::default();
        let at = |tenths: u64| Instant(9 * NS_PER_S + tenths * NS_PER_S / 10);
        let logged: Vec<_> = (0..1201).filter_map(|t| repeated.admit(at(t), NO_FILES_EVERY_NS)).collect();
        assert_eq!(logged, [1, 600, 600]);
    }
}
