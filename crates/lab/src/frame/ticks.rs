//! A clock that costs a few nanoseconds to read: the time stamp counter where it runs evenly, else the monotonic clock.
//!
//! ```
//! let clock = millrace_lab::frame::ticks::clock();
//! let (from, to) = (clock.now(), clock.now());
//! assert!(clock.ns(from, to) >= 0.0);
//! ```
#![allow(
    unsafe_code,
    reason = "reading the time stamp counter is an unsafe call in some versions of the library"
)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the counter is compared with the monotonic clock.
const CALIBRATION: Duration = Duration::from_millis(20);

/// The clock; read it with [`TickClock::now`].
#[derive(Debug)]
pub struct TickClock {
    /// Where the monotonic clock counts from, when it stands in.
    base: Instant,
    uses_counter: bool,
    ns_per_tick: f64,
}

/// The clock of this machine, calibrated on first use.
pub fn clock() -> &'static TickClock {
    static CLOCK: OnceLock<TickClock> = OnceLock::new();
    CLOCK.get_or_init(TickClock::calibrated)
}

impl TickClock {
    fn calibrated() -> Self {
        let monotonic = Self { base: Instant::now(), uses_counter: false, ns_per_tick: 1.0 };
        if !counter_is_even() {
            return monotonic;
        }
        let (from, from_ticks) = both();
        while from.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let (to, to_ticks) = both();
        let ns_per_tick = (to - from).as_nanos() as f64 / to_ticks.wrapping_sub(from_ticks) as f64;
        // A counter that stands still or jumps is no clock.
        if !(0.01..100.0).contains(&ns_per_tick) {
            return monotonic;
        }
        Self { uses_counter: true, ns_per_tick, ..monotonic }
    }

    /// Ticks since some moment in the past.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.uses_counter { counter() } else { self.base.elapsed().as_nanos() as u64 }
    }

    /// Nanoseconds from one reading to a later one; 0 when they are the other way round.
    pub fn ns(&self, from: u64, to: u64) -> f64 {
        to.saturating_sub(from) as f64 * self.ns_per_tick
    }

    /// Ticks in so many nanoseconds.
    pub fn ticks(&self, ns: f64) -> u64 {
        (ns / self.ns_per_tick) as u64
    }
}

/// Both clocks at the same moment: the closest pair of a few, since anything can come in between.
fn both() -> (Instant, u64) {
    let pairs = (0..16).map(|_| {
        let before = counter();
        let now = Instant::now();
        let after = counter();
        (after.wrapping_sub(before), now, before + after.wrapping_sub(before) / 2)
    });
    let (_, now, ticks) = pairs.min_by_key(|pair| pair.0).unwrap_or_else(|| (0, Instant::now(), counter()));
    (now, ticks)
}

/// Whether the counter runs at one speed, in sleep states too.
fn counter_is_even() -> bool {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |name| flags.split_whitespace().any(|flag| flag == name);
    cfg!(target_arch = "x86_64") && has("constant_tsc") && has("nonstop_tsc")
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; it reads a register and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_agrees_with_the_monotonic_one() {
        let clock = clock();
        let (start, from) = (Instant::now(), clock.now());
        while start.elapsed() < Duration::from_millis(20) {}
        let (inside, to) = (start.elapsed(), clock.now());
        let outside = start.elapsed();
        let ns = clock.ns(from, to);
        // What the clock says lies between the two readings around it, give or take a hundredth for the calibration.
        assert!(ns >= inside.as_nanos() as f64 * 0.99 - 1e5, "{ns} {inside:?}");
        assert!(ns <= outside.as_nanos() as f64 * 1.01, "{ns} {outside:?}");
        assert_eq!(clock.ns(to, from), 0.0);
        assert!(clock.ns(0, clock.ticks(1e6)) > 0.9e6);
    }

    #[test]
    fn the_counter_never_runs_backwards() {
        let clock = clock();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
