//! A load over time: one [`LoadSample`] for each interval, made of what all threads counted in it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use hdrhistogram::Histogram;
use millrace_client::lateness::{histogram_us, summarize};
use millrace_core::units::BitRate;
use serde::Serialize;

use crate::limits::MAX_SAMPLES;

/// Counts of one interval of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoadSample {
    /// End of the interval, since the first viewer could begin.
    pub at_ms: u64,
    /// Viewers that had begun by then.
    pub started: u64,
    /// Viewers that were playing then.
    pub playing: u64,
    /// Sessions that had failed by then.
    pub failed: u64,
    /// Packets received in the interval.
    pub packets: u64,
    /// Payload received in the interval, per second.
    pub rate_bits_per_s: u64,
    /// Packets that turned out to be missing in the interval. A packet that comes late after all is taken back in the
    /// interval in which it comes, at the latest when the sum is 0.
    pub lost: u64,
    /// Lateness of the interval's packets.
    pub lateness_p50_us: u64,
    /// 99 % of them.
    pub lateness_p99_us: u64,
    /// The latest of them.
    pub lateness_max_us: u64,
    /// Times a thread of this process did not look for more than 10 ms.
    pub own_stalls: u64,
}

/// What one thread counted: sums since its start, and the lateness of the interval alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadCounts {
    pub(super) started: u64,
    pub(super) playing: u64,
    pub(super) failed: u64,
    pub(super) packets: u64,
    pub(super) payload_bytes: u64,
    pub(super) lost: u64,
    pub(super) own_stalls: u64,
}

#[derive(Debug)]
struct Collecting {
    sum: ThreadCounts,
    lateness: Histogram<u64>,
    threads: usize,
}

#[derive(Debug, Default)]
struct SeriesState {
    open: BTreeMap<u64, Collecting>,
    /// Threads that have ended: their first interval after that, and their final sums.
    left: Vec<(u64, ThreadCounts)>,
    last: ThreadCounts,
    samples: Vec<LoadSample>,
}

/// Collects intervals from all threads.
#[derive(Debug)]
pub(super) struct Series {
    threads: usize,
    interval_ns: u64,
    inner: Mutex<SeriesState>,
}

impl Series {
    pub(super) fn new(threads: usize, interval_ns: u64) -> Self {
        Self { threads, interval_ns, inner: Mutex::default() }
    }

    /// Takes what one thread has for the interval `number`, from 1. Called about once a second, never for each packet.
    pub(super) fn add(&self, number: u64, part: &ThreadCounts, lateness: &Histogram<u64>) {
        // A thread that panicked while it held the lock leaves numbers that are only incomplete.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Collecting { sum: ThreadCounts::default(), lateness: histogram_us(), threads: 0 };
        let open = inner.open.entry(number).or_insert_with(fresh);
        open.sum.add(part);
        open.lateness.add(lateness).expect("both have the bounds of histogram_us");
        open.threads += 1;
        inner.close_full(self.threads, self.interval_ns);
    }

    /// Ends a thread: from the interval `number` on its sums stay unchanged.
    pub(super) fn leave(&self, number: u64, part: &ThreadCounts) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.left.push((number, *part));
        inner.close_full(self.threads, self.interval_ns);
    }

    /// All whole intervals.
    pub(super) fn take(&self) -> Vec<LoadSample> {
        std::mem::take(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner).samples)
    }
}

impl ThreadCounts {
    fn add(&mut self, other: &Self) {
        self.started += other.started;
        self.playing += other.playing;
        self.failed += other.failed;
        self.packets += other.packets;
        self.payload_bytes += other.payload_bytes;
        self.lost += other.lost;
        self.own_stalls += other.own_stalls;
    }
}

impl SeriesState {
    /// Closes intervals, oldest first, once every thread has contributed its part or has ended.
    fn close_full(&mut self, threads: usize, interval_ns: u64) {
        while let Some(entry) = self.open.first_entry() {
            let left = self.left.iter().filter(|(from, _)| from <= entry.key());
            if entry.get().threads + left.count() < threads {
                return;
            }
            let (number, mut done) = entry.remove_entry();
            self.left.iter().filter(|(from, _)| *from <= number).for_each(|(_, part)| done.sum.add(part));
            self.close(number, &done, interval_ns);
        }
    }

    fn close(&mut self, number: u64, done: &Collecting, interval_ns: u64) {
        let (now, last) = (done.sum, std::mem::replace(&mut self.last, done.sum));
        let bytes = now.payload_bytes.saturating_sub(last.payload_bytes);
        let lateness = summarize(&done.lateness);
        let sample = LoadSample {
            at_ms: number * interval_ns / 1_000_000,
            started: now.started,
            playing: now.playing,
            failed: now.failed,
            packets: now.packets.saturating_sub(last.packets),
            rate_bits_per_s: BitRate::of(bytes, interval_ns).0,
            lost: now.lost.saturating_sub(last.lost),
            lateness_p50_us: lateness.p50_us,
            lateness_p99_us: lateness.p99_us,
            lateness_max_us: lateness.max_us,
            own_stalls: now.own_stalls.saturating_sub(last.own_stalls),
        };
        if self.samples.len() < MAX_SAMPLES {
            self.samples.push(sample);
        }
    }
}

/// Writes samples as CSV with a header line.
///
/// # Errors
/// What writing gives.
pub fn write_series(samples: &[LoadSample], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "at_ms,started,playing,failed,packets,rate_bits_per_s,lost,lateness_p50_us,lateness_p99_us,lateness_max_us,own_stalls"
    )?;
    for s in samples {
        writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{}",
            s.at_ms,
            s.started,
            s.playing,
            s.failed,
            s.packets,
            s.rate_bits_per_s,
            s.lost,
            s.lateness_p50_us,
            s.lateness_p99_us,
            s.lateness_max_us,
            s.own_stalls
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_interval_closes_when_all_threads_have_reported() {
        let series = Series::new(2, 1_000_000_000);
        let mut lateness = histogram_us();
        lateness.saturating_record(100);
        let part = |n: u64| ThreadCounts {
            playing: 1,
            packets: 10 * n,
            payload_bytes: 1000 * n,
            lost: n,
            ..ThreadCounts::default()
        };
        series.add(1, &part(1), &lateness);
        series.add(2, &part(3), &lateness); // this thread is ahead
        lateness.saturating_record(900);
        series.add(1, &part(1), &lateness);
        series.add(2, &part(2), &histogram_us());
        series.add(3, &part(9), &lateness);
        series.leave(3, &part(2)); // the other one has ended
        series.leave(4, &part(9));
        let samples = series.take();
        assert_eq!(samples.len(), 3);
        let expected = LoadSample {
            at_ms: 1000,
            playing: 2,
            packets: 20,
            rate_bits_per_s: 16_000,
            lost: 2,
            lateness_p50_us: 100,
            lateness_p99_us: 900,
            lateness_max_us: 900,
            ..LoadSample::default()
        };
        assert_eq!(samples[0], expected);
        assert_eq!((samples[1].at_ms, samples[1].packets, samples[1].lost), (2000, 30, 3));
        assert_eq!((samples[2].packets, samples[2].playing), (60, 2));
        let mut csv = Vec::new();
        write_series(&samples, &mut csv).unwrap();
        let lines: Vec<_> = std::str::from_utf8(&csv).unwrap().lines().collect();
        assert_eq!((lines.len(), lines[1]), (4, "1000,0,2,0,20,16000,2,100,900,900,0"));
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
    }
}
