//! A clock that costs a few nanoseconds to read: the time stamp counter where it runs evenly, else the monotonic clock.
//!
//! ```
//! let clock = millrace_lab::frame::ticks::clock();
//! let (from, to) = (clock.now(), clock.now());
//! assert!(clock.ns(from, to) >= 0.0);
//! ```
#![allow(
    unsafe_code,
    reason = "reading the time stamp counter is an unsafe call in some versions of the library, getrusage in all"
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

    /// Converts `ns` nanoseconds to ticks.
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

/// Readings of an empty probe.
const PROBE_READINGS: usize = 20_001;

/// Times single pieces of work of a few dozen ticks: the counter is read between fences, so that no
/// part of the work happens before the first or after the second reading, and the cost of the
/// readings is known and subtracted.
#[derive(Clone, Copy, Debug)]
pub struct TickProbe {
    /// Ticks between the two readings when there is no work.
    pub cost: f64,
    /// Smallest step of the counter: a shorter time reads as nothing or as one step. Sums over many
    /// probes are right all the same, since each reading is early as often as late.
    pub step: u64,
}

impl TickProbe {
    /// Measures the cost: the mean of the empty readings without those in which something came in between.
    pub fn calibrated() -> Self {
        let mut readings: Vec<u64> = (0..PROBE_READINGS).map(|_| Self::raw(|| ()).0).collect();
        readings.sort_unstable();
        let usual = readings[PROBE_READINGS / 2].max(1);
        let kept: Vec<u64> = readings.into_iter().filter(|&ticks| ticks <= 3 * usual).collect();
        let step = kept.iter().copied().filter(|&ticks| ticks > 0).fold(0, greatest_common_divisor);
        Self { cost: kept.iter().sum::<u64>() as f64 / kept.len() as f64, step: step.max(1) }
    }

    /// Returns the ticks that `work` took, and its result. The ticks may be below zero, depending
    /// on the readings.
    #[inline]
    pub fn time<R>(&self, work: impl FnOnce() -> R) -> (f64, R) {
        let (ticks, result) = Self::raw(work);
        (ticks as f64 - self.cost, result)
    }

    #[inline]
    fn raw<R>(work: impl FnOnce() -> R) -> (u64, R) {
        let from = counter_fenced();
        let result = work();
        let to = counter_fenced();
        (to.saturating_sub(from), result)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The counter after everything before it and before everything behind it.
#[cfg(target_arch = "x86_64")]
#[inline]
fn counter_fenced() -> u64 {
    use core::arch::x86_64::{__rdtscp, _mm_lfence};
    let mut processor = 0;
    // SAFETY: fences are in every x86-64 processor, RDTSCP in all of this century; the one writes a register, the other `processor`.
    unsafe {
        _mm_lfence();
        let ticks = __rdtscp(&mut processor);
        _mm_lfence();
        ticks
    }
}

/// Waits until all loads before it have completed, where the processor can: the next timed work
/// then pays only for its own loads.
#[inline]
pub fn settle() {
    std::hint::black_box(counter_fenced());
}

/// Elsewhere the monotonic clock stands in, in nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
fn counter_fenced() -> u64 {
    clock().now()
}

/// Processor time of the calling thread, in user and kernel mode, by `getrusage`.
pub fn thread_cpu_time() -> Duration {
    // SAFETY: an all-zero rusage is a valid one: it holds integers only.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one rusage, and `usage` is one that lives longer. It cannot fail with these arguments.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    let duration = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_ns_agrees_with_monotonic_clock() {
        let clock = clock();
        let (start, from) = (Instant::now(), clock.now());
        while start.elapsed() < Duration::from_millis(20) {}
        let (inside, to) = (start.elapsed(), clock.now());
        let outside = start.elapsed();
        let ns = clock.ns(from, to);
        // The clock's value lies between the two readings around it, give or take a hundredth for
        // the calibration.
        assert!(ns >= inside.as_nanos() as f64 * 0.99 - 1e5, "{ns} {inside:?}");
        assert!(ns <= outside.as_nanos() as f64 * 1.01, "{ns} {outside:?}");
        assert_eq!(clock.ns(to, from), 0.0);
        assert!(clock.ns(0, clock.ticks(1e6)) > 0.9e6);
    }

    #[test]
    fn clock_now_never_decreases() {
        let clock = clock();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn probe_measures_work_and_its_own_cost() {
        let probe = TickProbe::calibrated();
        assert!(probe.cost >= 0.0 && probe.step >= 1, "{probe:?}");
        let mean = |work: fn() -> u64| {
            let mut ticks: Vec<f64> =
                (0..1001).map(|_| probe.time(|| std::hint::black_box(work())).0).collect();
            super::super::percentile(&mut ticks, 50.0)
        };
        let (nothing, much) = (mean(|| 1), mean(|| (0..10_000).fold(1, |a, b| std::hint::black_box(a ^ b))));
        assert!(much > nothing, "{nothing} {much}");
    }

    #[test]
    fn steps_are_found() {
        assert_eq!([52, 26, 78].into_iter().fold(0, greatest_common_divisor), 26);
    }

    #[test]
    fn thread_cpu_time_increases_with_work() {
        let before = thread_cpu_time();
        let mut x = 1u64;
        while thread_cpu_time() == before {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(thread_cpu_time() > before);
    }
}
