//! How late packets arrive against their media time, without trusting any two clocks to agree.
//!
//! Of each packet `d = arrival - media time` is taken, both from the run's first packet. The smallest `d` of a run is
//! its baseline: the packet that came soonest for its media time. Lateness is `d - baseline`, so it is never negative,
//! holds network and sender delay alike, and needs no clock in common. A sender's clock that is slow by 20 ppm adds
//! 72 ms in an hour: over a network, runs of minutes are what this can judge.

use hdrhistogram::Histogram;
use millrace_core::time::MEDIA_HZ;
use serde::Serialize;

use crate::limits::{LATENESS_MARGIN_NS, MAX_LATENESS_US, MAX_RUN_TICKS};

/// Lateness of packets in microseconds; 0 everywhere when nothing came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatenessSummary {
    /// Half of the packets came within this.
    pub p50_us: u64,
    /// 99 %.
    pub p99_us: u64,
    /// 99.9 %.
    pub p999_us: u64,
    /// The latest packet.
    pub max_us: u64,
}

/// A histogram of microseconds with three significant digits, about 190 KB.
pub fn histogram_us() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENESS_US, 3).expect("constant bounds: 1 < 2 * high, 3 digits")
}

/// Percentiles of a histogram of microseconds.
pub fn summarize(histogram: &Histogram<u64>) -> LatenessSummary {
    if histogram.is_empty() {
        return LatenessSummary::default();
    }
    let at = |quantile| histogram.value_at_quantile(quantile).min(histogram.max());
    LatenessSummary { p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us: histogram.max() }
}

/// The clock arithmetic of one run: offsets, gaps and jitter. About 80 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunClock {
    first_arrival_ns: u64,
    last_arrival_ns: u64,
    last_timestamp: u32,
    ticks: i64,
    last_offset_ns: i64,
    started: bool,
    jitter_x16_ns: u64,
    /// Largest interarrival jitter observed.
    jitter_max_x16_ns: u64,
    /// Longest time between two arrivals.
    longest_gap_ns: u64,
    /// Ticks of the RTP clock in a second; 0 stands for 90,000, the clock of transport streams and video.
    hz: u32,
}

/// Ticks to nanoseconds, exact and signed.
fn ticks_ns(ticks: i64, hz: u32) -> i64 {
    let hz = if hz == 0 { i128::from(MEDIA_HZ) } else { i128::from(hz) };
    // Bounded, because a clock of 1 Hz makes a very long time of few ticks.
    (i128::from(ticks) * 1_000_000_000 / hz).clamp(-i128::from(i64::MAX / 4), i128::from(i64::MAX / 4)) as i64
}

impl RunClock {
    /// Takes one packet in order of arrival; returns `d` in nanoseconds.
    pub fn observe(&mut self, arrival_ns: u64, timestamp: u32) -> i64 {
        if !self.started {
            *self = Self { jitter_max_x16_ns: self.jitter_max_x16_ns, hz: self.hz, ..Self::default() };
            self.started = true;
            self.first_arrival_ns = arrival_ns;
            self.last_arrival_ns = arrival_ns;
            self.last_timestamp = timestamp;
            return 0;
        }
        let step = i64::from(timestamp.wrapping_sub(self.last_timestamp).cast_signed());
        self.ticks = (self.ticks + step).clamp(-MAX_RUN_TICKS, MAX_RUN_TICKS);
        self.last_timestamp = timestamp;
        // Kernel stamps of packets that went through different cores may run back by microseconds.
        self.longest_gap_ns = self.longest_gap_ns.max(arrival_ns.saturating_sub(self.last_arrival_ns));
        self.last_arrival_ns = self.last_arrival_ns.max(arrival_ns);
        let elapsed = arrival_ns.wrapping_sub(self.first_arrival_ns).cast_signed();
        let offset = elapsed.saturating_sub(ticks_ns(self.ticks, self.hz));
        // RFC 3550 section 6.4.1 and appendix A.8: J += (|D| - J) / 16, kept sixteenfold.
        let difference = offset.abs_diff(self.last_offset_ns);
        let fading = (self.jitter_x16_ns >> 4) + (self.jitter_x16_ns >> 3 & 1);
        self.jitter_x16_ns = self.jitter_x16_ns.saturating_add(difference).saturating_sub(fading);
        self.jitter_max_x16_ns = self.jitter_max_x16_ns.max(self.jitter_x16_ns);
        self.last_offset_ns = offset;
        offset
    }

    /// Takes one packet that has no media time.
    fn observe_untimed(&mut self, arrival_ns: u64) {
        if self.started {
            self.longest_gap_ns = self.longest_gap_ns.max(arrival_ns.saturating_sub(self.last_arrival_ns));
            self.last_arrival_ns = self.last_arrival_ns.max(arrival_ns);
        }
    }

    /// Interarrival jitter now (RFC 3550), in nanoseconds.
    pub fn jitter_ns(&self) -> u64 {
        self.jitter_x16_ns / 16
    }

    /// The largest value that [`Self::jitter_ns`] had.
    pub fn jitter_max_ns(&self) -> u64 {
        self.jitter_max_x16_ns / 16
    }

    /// Ticks of the RTP clock in a second.
    pub fn hz(&self) -> u32 {
        if self.hz == 0 { MEDIA_HZ as u32 } else { self.hz }
    }

    /// Time from the first to the last arrival of the run, in nanoseconds.
    pub fn span_ns(&self) -> u64 {
        self.last_arrival_ns - self.first_arrival_ns
    }

    /// Longest time between two arrivals of the run, in nanoseconds.
    pub fn longest_gap_ns(&self) -> u64 {
        self.longest_gap_ns
    }

    /// Arrival of the last packet; `None` before the first.
    pub fn last_arrival_ns(&self) -> Option<u64> {
        self.started.then_some(self.last_arrival_ns)
    }

    /// Media time since the run's first packet, of the packet that arrived last.
    pub fn media_ns(&self) -> i64 {
        ticks_ns(self.ticks, self.hz)
    }

    /// When the moment with this RTP timestamp would arrive if it were as late as the run's first packet, in wall-clock
    /// nanoseconds; `None` before the first packet.
    pub fn arrival_of(&self, timestamp: u32) -> Option<i64> {
        let ticks = self.ticks + i64::from(timestamp.wrapping_sub(self.last_timestamp).cast_signed());
        self.started.then(|| self.first_arrival_ns.cast_signed().saturating_add(ticks_ns(ticks, self.hz)))
    }
}

/// Lateness of one stream over all its runs, exact to three digits however late the baseline is found.
///
/// Values are recorded above a provisional base. If a packet arrives earlier than that base, the
/// run's histogram is shifted up; when the run ends, it is shifted down by the distance of the true
/// baseline above the base.
#[derive(Debug)]
pub struct Lateness {
    closed: Histogram<u64>,
    run: Histogram<u64>,
    clock: RunClock,
    base_ns: i64,
    min_ns: i64,
    max_ns: i64,
    worst_ns: u64,
    longest_gap_ns: u64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            closed: histogram_us(),
            run: histogram_us(),
            clock: RunClock::default(),
            base_ns: 0,
            min_ns: 0,
            max_ns: 0,
            worst_ns: 0,
            longest_gap_ns: 0,
        }
    }
}

/// Adds every value of `from`, moved by `shift_us`, to `to`.
fn add_moved(to: &mut Histogram<u64>, from: &Histogram<u64>, shift_us: i64) {
    for step in from.iter_recorded() {
        let value = from.median_equivalent(step.value_iterated_to());
        to.saturating_record_n(value.saturating_add_signed(shift_us), step.count_at_value());
    }
}

impl Lateness {
    /// The next packet begins a run: another baseline, and no gap to the run before.
    pub fn begin_run(&mut self) {
        let below_us = self.min_ns.saturating_sub(self.base_ns) / 1000;
        add_moved(&mut self.closed, &self.run, -below_us);
        self.run.reset();
        self.worst_ns = self.worst_ns();
        self.longest_gap_ns = self.longest_gap_ns();
        (self.min_ns, self.max_ns) = (0, 0);
        self.clock.started = false;
    }

    /// Takes one packet in order of arrival.
    pub fn observe(&mut self, arrival_ns: u64, timestamp: u32) {
        let is_first = !self.clock.started;
        let offset = self.clock.observe(arrival_ns, timestamp);
        if is_first {
            self.base_ns = offset.saturating_sub(LATENESS_MARGIN_NS);
            (self.min_ns, self.max_ns) = (offset, offset);
        }
        if offset < self.base_ns {
            self.move_base(offset.saturating_sub(LATENESS_MARGIN_NS));
        }
        self.min_ns = self.min_ns.min(offset);
        self.max_ns = self.max_ns.max(offset);
        self.run.saturating_record(offset.abs_diff(self.base_ns) / 1000);
    }

    fn move_base(&mut self, base_ns: i64) {
        let mut moved = histogram_us();
        add_moved(&mut moved, &self.run, self.base_ns.saturating_sub(base_ns) / 1000);
        self.run = moved;
        self.base_ns = base_ns;
    }

    /// The clock of the current run.
    pub fn clock(&self) -> &RunClock {
        &self.clock
    }

    /// The run's baseline: the smallest `d`.
    pub fn baseline_ns(&self) -> i64 {
        self.min_ns
    }

    /// Longest time between two arrivals within a run.
    pub fn longest_gap_ns(&self) -> u64 {
        let running = if self.clock.started { self.clock.longest_gap_ns } else { 0 };
        self.longest_gap_ns.max(running)
    }

    fn worst_ns(&self) -> u64 {
        self.worst_ns.max(self.max_ns.abs_diff(self.min_ns))
    }

    /// Percentiles over all runs. The maximum is exact.
    pub fn summary(&self) -> LatenessSummary {
        let mut all = self.closed.clone();
        add_moved(&mut all, &self.run, -(self.min_ns.saturating_sub(self.base_ns) / 1000));
        let max_us = self.worst_ns() / 1000;
        let s = summarize(&all);
        let cap = |value: u64| value.min(max_us);
        LatenessSummary { p50_us: cap(s.p50_us), p99_us: cap(s.p99_us), p999_us: cap(s.p999_us), max_us }
    }
}

/// Lateness of one of very many streams: the percentiles go into a histogram that all share.
///
/// The baseline is the smallest `d` of the first [`LEARNED`] packets and of all that follow; a packet recorded before
/// a lower baseline was found is understated by the difference, whose sum is [`LightLateness::understated_us`].
/// Nothing is due before its run begins: lateness is at most the time from the run's first packet to its last.
#[derive(Debug, Default)]
pub struct LightLateness {
    clock: RunClock,
    min_ns: i64,
    max_ns: i64,
    learned_min_ns: i64,
    learning: Vec<i64>,
    closed: ClosedRuns,
}

/// Maxima of the runs before the current one.
#[derive(Clone, Copy, Debug, Default)]
struct ClosedRuns {
    worst_ns: u64,
    understated_ns: u64,
    longest_gap_ns: u64,
    span_ns: u64,
}

/// Packets that are held back until the baseline is known: a third of a second at 2 Mb/s.
pub const LEARNED: usize = 64;

impl LightLateness {
    /// The RTP clock runs at `hz`. To be called before the first packet.
    pub fn set_clock(&mut self, hz: u32) {
        self.clock.hz = hz;
    }

    /// The next packet begins a run: another baseline, and no gap to the run before.
    pub fn begin_run(&mut self, shared: &mut Histogram<u64>) {
        self.finish(shared);
        self.closed = ClosedRuns {
            worst_ns: self.worst_ns(),
            understated_ns: self.understated_ns(),
            longest_gap_ns: self.longest_gap_ns(),
            span_ns: self.span_ns(),
        };
        (self.min_ns, self.max_ns, self.learned_min_ns) = (0, 0, 0);
        self.clock.started = false;
    }

    /// Takes one packet in order of arrival.
    pub fn observe(&mut self, arrival_ns: u64, timestamp: u32, shared: &mut Histogram<u64>) {
        let is_first = !self.clock.started;
        let offset = self.clock.observe(arrival_ns, timestamp);
        if is_first {
            (self.min_ns, self.max_ns) = (offset, offset);
            self.learning.reserve_exact(LEARNED);
        }
        self.min_ns = self.min_ns.min(offset);
        self.max_ns = self.max_ns.max(offset);
        if self.learning.capacity() == 0 {
            shared.saturating_record(offset.abs_diff(self.min_ns).min(self.clock.span_ns()) / 1000);
        } else {
            self.learning.push(offset);
            if self.learning.len() == LEARNED {
                self.finish(shared);
            }
        }
    }

    /// Takes one packet that has no media time: it ends a gap, and its lateness is unknown.
    pub fn observe_untimed(&mut self, arrival_ns: u64) {
        self.clock.observe_untimed(arrival_ns);
    }

    /// Records the packets held back in the histogram; also called at the end of a short run.
    pub fn finish(&mut self, shared: &mut Histogram<u64>) {
        self.learned_min_ns = if self.learning.capacity() == 0 { self.learned_min_ns } else { self.min_ns };
        for offset in std::mem::take(&mut self.learning) {
            shared.saturating_record(offset.abs_diff(self.min_ns).min(self.clock.span_ns()) / 1000);
        }
    }

    /// The clock of the run.
    pub fn clock(&self) -> &RunClock {
        &self.clock
    }

    fn worst_ns(&self) -> u64 {
        // Between runs nothing has begun, and offsets are 0.
        self.closed.worst_ns.max(self.max_ns.abs_diff(self.min_ns).min(self.clock.span_ns()))
    }

    fn understated_ns(&self) -> u64 {
        let now = if self.learning.capacity() == 0 { self.learned_min_ns.abs_diff(self.min_ns) } else { 0 };
        self.closed.understated_ns.max(now)
    }

    /// The latest packet of all runs, exact.
    pub fn max_us(&self) -> u64 {
        self.worst_ns() / 1000
    }

    /// By how much the shared histogram may understate this stream's lateness.
    pub fn understated_us(&self) -> u64 {
        self.understated_ns() / 1000
    }

    /// Longest time between two arrivals within a run.
    pub fn longest_gap_ns(&self) -> u64 {
        let running = if self.clock.started { self.clock.longest_gap_ns } else { 0 };
        self.closed.longest_gap_ns.max(running)
    }

    /// Time from the first to the last arrival, of all runs together.
    pub fn span_ns(&self) -> u64 {
        self.closed.span_ns + if self.clock.started { self.clock.span_ns() } else { 0 }
    }
}

#[cfg(test)]
#[path = "lateness_tests.rs"]
mod tests;
