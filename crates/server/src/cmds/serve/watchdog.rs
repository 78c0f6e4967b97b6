//! The watchdog of the service manager (sd_watchdog_enabled(3)): it is fed as long as every part of the server makes progress, which
//! counters show, not threads that merely exist. A server that hangs is then started again by its manager.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::counters::Sheet;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::load::LoadSnapshot;
use millrace_web::WebBeat;

use super::notify;
use crate::limits::control::{WATCHDOG_LOOK_NS, WATCHDOG_MIN_STALL_NS};

/// The parts that a watchdog looks at, and its state.
pub(super) struct Watchdog {
    parts: Vec<WatchedPart>,
    core: WatchdogCore,
}

/// A part of the server that must make progress.
struct WatchedPart {
    name: String,
    progress: Box<dyn Fn() -> u64>,
}

impl Watchdog {
    /// The watchdog that the environment asks for; `None`: it asks for none, or another process is meant.
    pub(super) fn of_environment(
        engines: &[Arc<Sheet<LoadSnapshot>>],
        control: Arc<AtomicU64>,
        web: Vec<WebBeat>,
    ) -> Option<Self> {
        let variable = |name| std::env::var_os(name);
        let (usec, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
        let interval_ns = match interval_ns(usec.as_deref(), pid.as_deref(), std::process::id()) {
            Ok(interval) => interval?,
            Err(error) => {
                tracing::warn!("{error}");
                return None;
            }
        };
        if interval_ns < WATCHDOG_MIN_STALL_NS {
            tracing::warn!(
                "WATCHDOG_USEC: {} ms is less than a stuck part takes to show; set WatchdogSec= to 10s or more",
                interval_ns / 1_000_000
            );
        }
        let engines = engines.iter().enumerate().map(|(number, load)| {
            let load = Arc::clone(load);
            // All time of a loop is one or the other, and is published every few milliseconds.
            let progress = move || {
                let LoadSnapshot { busy_ns, idle_ns, .. } = load.read();
                busy_ns.wrapping_add(idle_ns)
            };
            WatchedPart { name: format!("engine {number}"), progress: Box::new(progress) }
        });
        let control = WatchedPart {
            name: "the control thread".to_owned(),
            progress: Box::new(move || control.load(Ordering::Relaxed)),
        };
        let web = web.into_iter().map(|beat| WatchedPart {
            name: format!("the thread {} of HTTP", beat.name()),
            progress: Box::new(move || beat.count()),
        });
        let parts: Vec<_> = engines.chain([control]).chain(web).collect();
        tracing::info!("watchdog: fed every {} ms while all parts make progress", interval_ns / 2_000_000);
        Some(Self { core: WatchdogCore::new(interval_ns, parts.len(), MonotonicClock.now()), parts })
    }

    /// To be called often: feeds the watchdog when that is due, and reports parts that are stuck.
    pub(super) fn look(&mut self) {
        let now = MonotonicClock.now();
        if !self.core.is_due(now) {
            return;
        }
        let counts: Vec<_> = self.parts.iter().map(|part| (part.progress)()).collect();
        let WatchdogLook { feeds, stuck, moving } = self.core.look(now, &counts);
        for part in stuck {
            tracing::error!(
                "watchdog: {} makes no progress; the service manager restarts the server if that lasts",
                self.parts[part].name
            );
        }
        for part in moving {
            tracing::warn!("watchdog: {} makes progress again", self.parts[part].name);
        }
        if feeds {
            notify::watchdog();
        }
    }
}

/// The time in which the manager wants to be notified once, in nanoseconds; `None`: it wants no notice from this process.
fn interval_ns(usec: Option<&OsStr>, pid: Option<&OsStr>, own: u32) -> Result<Option<u64>, String> {
    let number = |text: &OsStr| text.to_str().and_then(|text| text.parse::<u64>().ok());
    if pid.is_some_and(|pid| number(pid) != Some(own.into())) {
        return Ok(None);
    }
    let Some(usec) = usec else { return Ok(None) };
    match number(usec).and_then(|usec| usec.checked_mul(1000)) {
        // A manager that wants none of it may set 0.
        Some(0) => Ok(None),
        Some(ns) => Ok(Some(ns)),
        None => Err(format!(
            "WATCHDOG_USEC: got \"{}\", not a number of microseconds; set WatchdogSec= in the unit",
            usec.display()
        )),
    }
}

/// Decides from counters and the time alone.
#[derive(Debug)]
struct WatchdogCore {
    /// Half of the manager's interval.
    feed_ns: u64,
    /// A part without progress for this long is stuck.
    stall_ns: u64,
    look_ns: u64,
    looked: Instant,
    fed: Option<Instant>,
    parts: Vec<PartProgress>,
}

/// The progress of a part, as it was last seen.
#[derive(Clone, Copy, Debug)]
struct PartProgress {
    /// `None`: it was not looked at yet.
    count: Option<u64>,
    since: Instant,
    is_stuck: bool,
}

/// The outcome of a look; parts by their number.
#[derive(Debug, Default, PartialEq, Eq)]
struct WatchdogLook {
    feeds: bool,
    /// Stuck from now on.
    stuck: Vec<usize>,
    /// Stuck no more.
    moving: Vec<usize>,
}

impl WatchdogCore {
    fn new(interval_ns: u64, parts: usize, now: Instant) -> Self {
        let feed_ns = interval_ns / 2;
        let stall_ns = feed_ns.max(WATCHDOG_MIN_STALL_NS);
        let look_ns = WATCHDOG_LOOK_NS.min(feed_ns);
        let part = PartProgress { count: None, since: now, is_stuck: false };
        Self { feed_ns, stall_ns, look_ns, looked: now, fed: None, parts: vec![part; parts] }
    }

    /// Whether it is time for a look.
    fn is_due(&self, now: Instant) -> bool {
        self.fed.is_none() || now.ns_since(self.looked) >= self.look_ns
    }

    /// Takes the counters of all parts. Any other value than before is progress.
    fn look(&mut self, now: Instant, counts: &[u64]) -> WatchdogLook {
        let mut found = WatchdogLook::default();
        // The whole process stood still, or this thread had no processor: the parts get their time again.
        let was_paused = now.ns_since(self.looked) >= self.stall_ns / 2;
        self.looked = now;
        for (number, (part, &count)) in self.parts.iter_mut().zip(counts).enumerate() {
            if part.count != Some(count) {
                (part.count, part.since) = (Some(count), now);
                if std::mem::take(&mut part.is_stuck) {
                    found.moving.push(number);
                }
            } else if was_paused && !part.is_stuck {
                part.since = now;
            } else if !part.is_stuck && now.ns_since(part.since) >= self.stall_ns {
                part.is_stuck = true;
                found.stuck.push(number);
            }
        }
        let is_time =
            self.fed.is_none_or(|fed| now.ns_since(fed) >= self.feed_ns.saturating_sub(self.look_ns));
        found.feeds = is_time && !self.parts.iter().any(|part| part.is_stuck);
        if found.feeds {
            self.fed = Some(now);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    /// Looks every 100 ms from `from` to `until`; parts without a new value in `counts` are stuck.
    fn looks(
        core: &mut WatchdogCore,
        from: u64,
        until: u64,
        counts: impl Fn(u64) -> Vec<u64>,
    ) -> Vec<(u64, WatchdogLook)> {
        let mut found = Vec::new();
        for ms in (from..until).step_by(100) {
            if core.is_due(at(ms)) {
                found.push((ms, core.look(at(ms), &counts(ms))));
            }
        }
        found.retain(|(_, look)| *look != WatchdogLook::default());
        found
    }

    #[test]
    fn watchdog_is_fed_in_half_of_the_interval_while_all_parts_make_progress() {
        let mut core = WatchdogCore::new(10 * SECOND, 3, at(0));
        let looks = looks(&mut core, 0, 60_000, |ms| vec![ms, ms / 500, u64::MAX - ms / 1000]);
        let fed: Vec<_> = looks.iter().filter(|(_, look)| look.feeds).map(|(ms, _)| *ms).collect();
        assert_eq!(fed[0], 0, "at once");
        assert!(fed.windows(2).all(|pair| pair[1] - pair[0] <= 5_000), "{fed:?}");
        assert!(fed.len() <= 16, "not more often than needed: {fed:?}");
        assert!(looks.iter().all(|(_, look)| look.stuck.is_empty() && look.moving.is_empty()), "{looks:?}");
    }

    #[test]
    fn stuck_part_ends_the_feeding_and_is_named_once_until_it_moves() {
        let mut core = WatchdogCore::new(10 * SECOND, 2, at(0));
        // Part 1 stands still from the 20th to the 40th second.
        let looks =
            looks(&mut core, 0, 60_000, |ms| vec![ms, if (20_000..40_000).contains(&ms) { 0 } else { ms }]);
        let stuck: Vec<_> = looks.iter().filter(|(_, look)| !look.stuck.is_empty()).collect();
        let [(stuck_at, stuck)] = stuck[..] else { panic!("{stuck:?}") };
        assert!((24_000..=26_500).contains(stuck_at) && stuck.stuck == [1], "{stuck_at} {stuck:?}");
        let moving: Vec<_> = looks.iter().filter(|(_, look)| !look.moving.is_empty()).collect();
        let [(moving_at, moving)] = moving[..] else { panic!("{moving:?}") };
        assert!((40_000..=41_000).contains(moving_at) && moving.moving == [1] && moving.feeds, "{moving:?}");
        let fed_while_stuck =
            looks.iter().any(|(ms, look)| look.feeds && (stuck_at..moving_at).contains(&ms));
        assert!(!fed_while_stuck, "{looks:?}");
    }

    #[test]
    fn short_interval_gives_slow_parts_their_time_and_is_fed_often_enough() {
        let mut core = WatchdogCore::new(SECOND, 1, at(0));
        // The control thread counts twice a second.
        let looks = looks(&mut core, 0, 20_000, |ms| vec![ms / 500]);
        assert!(looks.iter().all(|(_, look)| look.stuck.is_empty()), "{looks:?}");
        let fed: Vec<_> = looks.iter().filter(|(_, look)| look.feeds).map(|(ms, _)| *ms).collect();
        assert!(fed.windows(2).all(|pair| pair[1] - pair[0] <= 500), "{fed:?}");
    }

    #[test]
    fn process_that_stood_still_as_a_whole_is_not_stuck() {
        let mut core = WatchdogCore::new(10 * SECOND, 1, at(0));
        looks(&mut core, 0, 1_000, |_| vec![900]);
        // Stopped for a minute, then this thread looks before the part has had its turn.
        let look = core.look(at(61_000), &[900]);
        assert_eq!(look, WatchdogLook { feeds: true, ..WatchdogLook::default() });
        let looks = looks(&mut core, 61_100, 80_000, |_| vec![900]);
        assert_eq!(looks.iter().filter(|(_, look)| look.stuck == [0]).count(), 1, "{looks:?}");
    }

    #[test]
    fn interval_is_of_this_process_and_a_number() {
        let of =
            |usec: Option<&str>, pid: Option<&str>| interval_ns(usec.map(OsStr::new), pid.map(OsStr::new), 7);
        assert_eq!(of(Some("30000000"), Some("7")), Ok(Some(30 * SECOND)));
        assert_eq!(of(Some("30000000"), None), Ok(Some(30 * SECOND)));
        for (usec, pid) in
            [(Some("30000000"), Some("8")), (Some("30000000"), Some("x")), (Some("0"), None), (None, None)]
        {
            assert_eq!(of(usec, pid), Ok(None), "{usec:?} {pid:?}");
        }
        for usec in ["", "-1", "soon", "99999999999999999999", "18446744073709551615"] {
            assert!(of(Some(usec), None).unwrap_err().contains("WatchdogSec="), "{usec}");
        }
    }
}
