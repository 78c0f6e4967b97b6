//! What viewers over HTTP went through: of one, summed up, and for the report.

use std::fmt;

use hdrhistogram::Histogram;
use millrace_client::lateness::{LatenessSummary, histogram_us, summarize};
use millrace_client::report::{human_us, lateness_line, row};
use millrace_core::units::BitRate;
use serde::Serialize;

use super::buffer::BufferCounts;
use crate::ts::light::TsFindings;
use crate::ts::scan::ScanCounts;

/// One viewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WebFigures {
    pub(crate) buffer: BufferCounts,
    /// From the first request to the first byte of its reply.
    pub(crate) first_byte_us: Option<u64>,
    pub(crate) requests: u64,
    pub(crate) requests_failed: u64,
    pub(crate) connections: u64,
    pub(crate) connection_losses: u64,
    pub(crate) redirects: u64,
    pub(crate) playlists: u64,
    pub(crate) segments: u64,
    pub(crate) segments_skipped: u64,
    pub(crate) clock_jumps: u64,
    pub(crate) media_bytes: u64,
    /// From the first to the last byte of media.
    pub(crate) receiving_us: u64,
    pub(crate) ts: ScanCounts,
}

impl WebFigures {
    /// What its transport stream is like, in the words of other viewers; `None` if there was none.
    pub(crate) fn findings(&self) -> Option<TsFindings> {
        let findings = TsFindings {
            packets: self.ts.packets,
            sync_losses: self.ts.sync_losses,
            continuity_errors: self.ts.continuity_errors,
            marked_errors: self.ts.marked_errors,
            pcrs: self.ts.pcrs,
            pcr_jumps: self.clock_jumps,
            pcr_interval_max_us: self.ts.pcr_interval_max_ns / 1000,
            ..TsFindings::default()
        };
        (findings.packets > 0).then_some(findings)
    }
}

/// All viewers over HTTP.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WebReport {
    /// Viewers that a server agreed to serve.
    pub viewers: u64,
    /// Of these, viewers that saw a picture.
    pub started: u64,
    /// Of these, viewers whose picture stood still at least once.
    pub viewers_rebuffered: u64,
    /// From the wish to see the title to the first picture.
    pub startup: LatenessSummary,
    /// The slowest seek of each viewer that sought: from the wish to the picture.
    pub slowest_seek: LatenessSummary,
    /// From the first request to the first byte of its reply, without the time to connect.
    pub first_byte: LatenessSummary,
    /// Times that a picture stood still for want of media.
    pub rebuffers: u64,
    /// For how long, all together.
    pub rebuffering_us: u64,
    /// The longest.
    pub longest_rebuffer_us: u64,
    /// Media seen by all viewers together.
    pub played_us: u64,
    /// Time standing still, divided by this time plus the media seen.
    pub rebuffering_ratio: f64,
    /// Rate at which media came to a viewer from its first byte to its last, the mean of all.
    pub mean_rate_bits_per_s: u64,
    /// Requests made.
    pub requests: u64,
    /// Requests that were refused, or whose reply broke off.
    pub requests_failed: u64,
    /// Connections made.
    pub connections: u64,
    /// Connections that broke while a reply was due or under way.
    pub connection_losses: u64,
    /// Redirects followed.
    pub redirects: u64,
    /// HLS: playlists loaded.
    pub playlists: u64,
    /// HLS: segments fetched.
    pub segments: u64,
    /// HLS: segments that left a live playlist before they were fetched.
    pub segments_skipped: u64,
    /// Jumps of the clock in files.
    pub clock_jumps: u64,
    /// Transport streams looked into. Counters of HLS are followed within a segment.
    pub ts: ScanCounts,
}

/// Sums of one thread, or of all.
#[derive(Debug)]
pub(crate) struct WebSums {
    viewers: u64,
    started: u64,
    rebuffered: u64,
    all: WebFigures,
    /// Sums of what in `all` is a maximum or not a number of one viewer.
    rates_bits_per_s: u128,
    startup: Histogram<u64>,
    seek: Histogram<u64>,
    first_byte: Histogram<u64>,
}

impl Default for WebSums {
    fn default() -> Self {
        Self {
            viewers: 0,
            started: 0,
            rebuffered: 0,
            all: WebFigures::default(),
            rates_bits_per_s: 0,
            startup: histogram_us(),
            seek: histogram_us(),
            first_byte: histogram_us(),
        }
    }
}

fn add_histogram(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    to.add(from).expect("both have the bounds of histogram_us");
}

impl WebSums {
    /// One viewer is done; `has_played` if a server agreed to serve it.
    pub(crate) fn add(&mut self, one: &WebFigures, has_played: bool) {
        self.viewers += u64::from(has_played);
        self.started += u64::from(one.buffer.startup_ns.is_some());
        self.rebuffered += u64::from(one.buffer.stalls > 0);
        self.rates_bits_per_s += u128::from(BitRate::of(one.media_bytes, one.receiving_us * 1000).0);
        let record = |to: &mut Histogram<u64>, ns: Option<u64>| {
            ns.into_iter().for_each(|ns| to.saturating_record(ns / 1000));
        };
        record(&mut self.startup, one.buffer.startup_ns);
        record(&mut self.seek, one.buffer.slowest_seek_ns);
        record(&mut self.first_byte, one.first_byte_us.map(|us| us * 1000));
        self.add_figures(one);
    }

    fn add_figures(&mut self, one: &WebFigures) {
        let all = &mut self.all;
        let buffer = &mut all.buffer;
        buffer.stalls += one.buffer.stalls;
        buffer.stalled_ns += one.buffer.stalled_ns;
        buffer.longest_stall_ns = buffer.longest_stall_ns.max(one.buffer.longest_stall_ns);
        buffer.played_ns += one.buffer.played_ns;
        all.requests += one.requests;
        all.requests_failed += one.requests_failed;
        all.connections += one.connections;
        all.connection_losses += one.connection_losses;
        all.redirects += one.redirects;
        all.playlists += one.playlists;
        all.segments += one.segments;
        all.segments_skipped += one.segments_skipped;
        all.clock_jumps += one.clock_jumps;
        all.media_bytes += one.media_bytes;
        all.ts.add(&one.ts);
    }

    /// Adds those of another thread.
    pub(crate) fn merge(&mut self, part: &Self) {
        self.viewers += part.viewers;
        self.started += part.started;
        self.rebuffered += part.rebuffered;
        self.rates_bits_per_s += part.rates_bits_per_s;
        add_histogram(&mut self.startup, &part.startup);
        add_histogram(&mut self.seek, &part.seek);
        add_histogram(&mut self.first_byte, &part.first_byte);
        self.add_figures(&part.all);
    }

    /// The report; `None` if no request was made.
    pub(crate) fn report(&self) -> Option<WebReport> {
        let (all, buffer) = (&self.all, &self.all.buffer);
        let time_ns = buffer.stalled_ns + buffer.played_ns;
        let ratio = if time_ns == 0 { 0.0 } else { buffer.stalled_ns as f64 / time_ns as f64 };
        let mean = self.rates_bits_per_s.checked_div(u128::from(self.viewers)).unwrap_or(0);
        (all.requests > 0).then(|| WebReport {
            viewers: self.viewers,
            started: self.started,
            viewers_rebuffered: self.rebuffered,
            startup: summarize(&self.startup),
            slowest_seek: summarize(&self.seek),
            first_byte: summarize(&self.first_byte),
            rebuffers: buffer.stalls,
            rebuffering_us: buffer.stalled_ns / 1000,
            longest_rebuffer_us: buffer.longest_stall_ns / 1000,
            played_us: buffer.played_ns / 1000,
            rebuffering_ratio: ratio,
            mean_rate_bits_per_s: u64::try_from(mean).unwrap_or(u64::MAX),
            requests: all.requests,
            requests_failed: all.requests_failed,
            connections: all.connections,
            connection_losses: all.connection_losses,
            redirects: all.redirects,
            playlists: all.playlists,
            segments: all.segments,
            segments_skipped: all.segments_skipped,
            clock_jumps: all.clock_jumps,
            ts: all.ts,
        })
    }
}

impl WebReport {
    /// Returns the problems, in words.
    pub(crate) fn problems(&self) -> Vec<String> {
        let checks = [
            (self.viewers - self.started.min(self.viewers), "viewers over HTTP saw no picture"),
            (self.viewers_rebuffered, "viewers whose picture stood still"),
            (self.connection_losses, "connections broke"),
            (self.segments_skipped, "live segments expired before they were fetched"),
        ];
        let wrong = checks.iter().filter(|(count, _)| *count > 0);
        wrong.map(|(count, what)| format!("{count} {what}")).collect()
    }
}

impl fmt::Display for WebReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = format!("{} of {} saw a picture", self.started, self.viewers);
        let media = human_us(self.played_us);
        let rate = BitRate(self.mean_rate_bits_per_s);
        row(f, "over HTTP", &format!("{seen}, {media} of media, each at {rate} in the mean"))?;
        row(f, "  start-up", &lateness_line(&self.startup))?;
        if self.slowest_seek.max_us > 0 {
            row(f, "  seek", &lateness_line(&self.slowest_seek))?;
        }
        row(f, "  first byte", &lateness_line(&self.first_byte))?;
        let stood = format!("{} times in {} viewers", self.rebuffers, self.viewers_rebuffered);
        let time = format!("{} all together", human_us(self.rebuffering_us));
        let longest = human_us(self.longest_rebuffer_us);
        let share = self.rebuffering_ratio * 100.0;
        row(f, "  stood still", &format!("{stood}, {time} ({share:.3} %), longest {longest}"))?;
        let failed = format!("{} requests, {} failed", self.requests, self.requests_failed);
        let lost = format!("{} connections, {} broke", self.connections, self.connection_losses);
        row(f, "  requests", &format!("{failed}, {} redirects; {lost}", self.redirects))?;
        if self.playlists > 0 {
            let skipped = format!("{} expired before they were fetched", self.segments_skipped);
            row(f, "  HLS", &format!("{} playlists, {} segments, {skipped}", self.playlists, self.segments))?;
        }
        let t = &self.ts;
        let wrong = format!("{} sync losses, {} continuity errors", t.sync_losses, t.continuity_errors);
        row(f, "  streams", &format!("{} TS packets, {wrong}, {} clock jumps", t.packets, self.clock_jumps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_threads_are_those_of_all() {
        let mut one =
            WebFigures { requests: 3, media_bytes: 1000, receiving_us: 1000, ..WebFigures::default() };
        one.buffer.startup_ns = Some(5_000_000);
        one.buffer.played_ns = 9_000_000;
        let mut stalled = WebFigures { requests: 1, connection_losses: 1, ..one };
        (stalled.buffer.stalls, stalled.buffer.stalled_ns, stalled.buffer.longest_stall_ns) =
            (2, 2_000_000, 1_500_000);
        let (mut a, mut b) = (WebSums::default(), WebSums::default());
        assert_eq!(a.report(), None);
        a.add(&one, true);
        b.add(&stalled, true);
        b.add(&WebFigures { requests: 1, requests_failed: 1, ..WebFigures::default() }, false);
        a.merge(&b);
        let report = a.report().unwrap();
        assert_eq!((report.viewers, report.started, report.viewers_rebuffered), (2, 2, 1));
        assert_eq!((report.requests, report.requests_failed, report.rebuffers), (5, 1, 2));
        assert_eq!(
            (report.rebuffering_us, report.longest_rebuffer_us, report.played_us),
            (2000, 1500, 18_000)
        );
        assert_eq!((report.rebuffering_ratio, report.mean_rate_bits_per_s), (0.1, 8_000_000));
        assert_eq!(report.problems(), ["1 viewers whose picture stood still", "1 connections broke"]);
        let text = report.to_string();
        assert!(text.contains("2 times in 1 viewers") && text.contains("2 of 2 saw a picture"), "{text}");
    }
}
