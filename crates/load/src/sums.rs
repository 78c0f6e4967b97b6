//! Sums over many sessions: of one thread, then of all.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use millrace_client::fec::FecChoice;
use millrace_client::lateness::{histogram_us, summarize};
use millrace_client::play::TransportChoice;
use millrace_client::procfs::UdpErrors;
use millrace_core::time::Instant;
use millrace_core::units::BitRate;

use crate::limits::{MAX_KINDS, MAX_STREAM_REPORTS, MAX_WORST};
use crate::outcome::{SocketCounts, ViewerOutcome};
use crate::plan::LoadPlan;
use crate::report::{LoadFec, LoadReceiver, LoadReport, ProbeReport, WorstSession};
use crate::series::LoadSample;
use crate::streams::StreamReport;
use crate::target::{LoadTarget, Seat};
use crate::ts::light::TsFindings;
use crate::web::WebSums;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Plain counts.
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct LoadCounts {
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        impl LoadCounts {
            fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    sessions, played, packets, payload_bytes, lost, lost_at_start, lost_at_end, reordered, duplicates, strays, restarts,
    with_loss, silent, stalled, ended, rtp_info_wrong, unstamped, socket_drops, malformed, foreign,
    /// What people did.
    zaps, pauses, seeks, tricks, switches, leaves, replaced,
    /// Actions they could not take: no length known, a reply outstanding.
    deeds_skipped,
    /// Times the loop did not look for more than 10 ms, and how long that was.
    own_stalls, own_stalled_us,
    /// Time the thread waited for a processor.
    waited_us,
    inspected, unreported,
    /// Payload while all played.
    together_bytes,
    unprobed, probed_packets, probed_bytes, probed_lost,
}

macro_rules! histograms {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Times in microseconds.
        #[derive(Debug)]
        pub(super) struct Histograms {
            $($(#[$doc])* pub(super) $name: Histogram<u64>,)*
        }

        impl Default for Histograms {
            fn default() -> Self {
                Self { $($name: histogram_us(),)* }
            }
        }

        impl Histograms {
            fn add(&mut self, other: &Self) {
                $(add_histogram(&mut self.$name, &other.$name);)*
            }
        }
    };
}

histograms! {
    lateness,
    /// Of packets that were stamped by this process while it had just not looked.
    own_lateness,
    read_delay, turns, lateness_max, gaps, setup, first_packet, zap, jitter, jitter_max,
}

/// Adds one histogram of microseconds to another.
pub(super) fn add_histogram(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    to.add(from).expect("both have the bounds of histogram_us");
}

/// Sums of one thread, or of all.
#[derive(Debug, Default)]
pub(super) struct Sums {
    failures: BTreeMap<String, u64>,
    pub(super) counts: LoadCounts,
    pub(super) times: Histograms,
    understated_us: u64,
    first_packet_min_us: Option<i64>,
    buffer_bytes: Option<u64>,
    /// How long all played.
    pub(super) together_ns: u64,
    ts: TsFindings,
    fec: LoadFec,
    web: WebSums,
    worst: Vec<WorstSession>,
    streams: Vec<StreamReport>,
}

/// A session that has ended.
pub(super) struct FinishedSession {
    pub(super) seat: Seat,
    /// The viewer's how many-th.
    pub(super) session: u32,
    pub(super) began: Instant,
    /// From the wish to zap to the first packet.
    pub(super) zap_us: Option<u64>,
    pub(super) outcome: ViewerOutcome,
}

/// How media comes: what all targets have in common.
fn transport(plan: &LoadPlan) -> &'static str {
    let has = |kind: fn(&LoadTarget) -> bool| plan.targets.iter().any(kind);
    let has_rtsp = has(|target| matches!(target, LoadTarget::Rtsp { .. }));
    let has_http = has(|target| matches!(target, LoadTarget::Web { .. }));
    let has_listeners = has(|target| matches!(target, LoadTarget::Listen(_)));
    let has_tcp = has_rtsp && plan.options.transport == TransportChoice::Tcp;
    match (has_rtsp || has_listeners, has_tcp, has_http) {
        (true, false, false) => "udp",
        (true, true, false) if !has_listeners => "tcp",
        (false, _, true) => "http",
        _ => "mixed",
    }
}

/// The smaller of two, where there are two.
fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    a.into_iter().chain(b).min()
}

impl Sums {
    /// Sessions failed for this reason.
    pub(super) fn add_failure(&mut self, kind: String, count: u64) {
        let known = self.failures.contains_key(&kind) || self.failures.len() < MAX_KINDS;
        *self.failures.entry(if known { kind } else { "other".to_owned() }).or_default() += count;
    }

    fn add_socket(&mut self, socket: SocketCounts) {
        self.counts.unstamped += u64::from(!socket.has_kernel_stamps);
        self.buffer_bytes = least(self.buffer_bytes, Some(socket.buffer_bytes));
        self.counts.socket_drops += socket.dropped;
        self.counts.malformed += socket.truncated;
    }

    /// A session is over.
    pub(super) fn add(&mut self, plan: &LoadPlan, done: FinishedSession) {
        self.counts.sessions += 1;
        let outcome = &done.outcome;
        outcome.socket.into_iter().for_each(|socket| self.add_socket(socket));
        outcome.web.iter().for_each(|web| self.web.add(web, outcome.setup_us.is_some()));
        if let Some(kind) = &outcome.failure {
            self.add_failure(kind.clone(), 1);
        }
        self.counts.foreign += outcome.foreign;
        self.counts.unprobed += outcome.unprobed;
        let probed = outcome.probed.unwrap_or_default();
        self.counts.probed_packets += probed.packets;
        self.counts.probed_bytes += probed.payload_bytes;
        self.counts.probed_lost += probed.lost;
        done.zap_us.into_iter().for_each(|us| self.times.zap.saturating_record(us));
        let title = plan.targets[done.seat.title].name();
        if outcome.measured.is_some() && outcome.setup_us.is_some() {
            self.add_measured(plan, &done, &title);
        }
        self.add_stream(plan, &done, title);
    }

    fn add_measured(&mut self, plan: &LoadPlan, done: &FinishedSession, title: &str) {
        let (Some(m), Some(setup_us)) = (done.outcome.measured, done.outcome.setup_us) else { return };
        let c = m.counts;
        let lost = c.lost + c.lost_at_start + m.lost_at_end;
        let is_stalled = u128::from(m.longest_gap_us) > plan.options.stall.as_micros();
        self.counts.add(&LoadCounts {
            played: 1,
            packets: c.received,
            payload_bytes: m.payload_bytes,
            lost: c.lost,
            lost_at_start: c.lost_at_start,
            lost_at_end: m.lost_at_end,
            reordered: c.reordered,
            duplicates: c.duplicates,
            strays: c.strays,
            restarts: c.restarts,
            malformed: m.malformed,
            with_loss: u64::from(lost > 0),
            // A viewer that zapped away, or was sent away, at once had nothing to expect.
            silent: u64::from(c.received == 0 && is_stalled),
            stalled: u64::from(is_stalled),
            ended: u64::from(m.has_ended),
            rtp_info_wrong: u64::from(m.rtp_info_exact == Some(false)),
            inspected: u64::from(m.ts.is_some()),
            ..LoadCounts::default()
        });
        m.fec.iter().for_each(|fec| self.fec.add(fec));
        self.understated_us = self.understated_us.max(m.understated_us);
        self.times.setup.saturating_record(setup_us);
        self.times.gaps.saturating_record(m.longest_gap_us);
        if c.received > 0 {
            self.times.lateness_max.saturating_record(m.lateness_max_us);
            self.times.jitter.saturating_record(m.jitter_us);
            self.times.jitter_max.saturating_record(m.jitter_max_us);
        }
        if let Some(us) = m.first_packet_us {
            self.times.first_packet.saturating_record(us.max(0).unsigned_abs());
            self.first_packet_min_us = least(self.first_packet_min_us, Some(us));
        }
        if let Some(ts) = &m.ts {
            self.ts = self.ts.plus(ts);
        }
        self.note_worst(WorstSession {
            session: done.seat.index,
            url: title.to_owned(),
            lost,
            lateness_max_us: m.lateness_max_us,
            longest_gap_us: m.longest_gap_us,
        });
    }

    fn add_stream(&mut self, plan: &LoadPlan, done: &FinishedSession, title: String) {
        if self.streams.len() >= MAX_STREAM_REPORTS / plan.options.threads {
            self.counts.unreported += 1;
            return;
        }
        let m = done.outcome.measured.unwrap_or_default();
        let web = done.outcome.web.as_ref();
        self.streams.push(StreamReport {
            viewer: done.seat.index,
            session: done.session,
            title,
            began_ms: done.began.ns_since(plan.began) / 1_000_000,
            failure: done.outcome.failure.clone(),
            setup_us: done.outcome.setup_us,
            first_packet_us: m.first_packet_us,
            zap_us: done.zap_us,
            packets: m.counts.received,
            payload_bytes: m.payload_bytes,
            rate_bits_per_s: BitRate::of(m.payload_bytes, m.span_ns).0,
            lost: m.counts.lost + m.counts.lost_at_start + m.lost_at_end,
            repaired: m.fec.map(|fec| fec.counts.repaired),
            reordered: m.counts.reordered,
            duplicates: m.counts.duplicates,
            lateness_max_us: m.lateness_max_us,
            jitter_us: m.jitter_us,
            jitter_max_us: m.jitter_max_us,
            longest_gap_us: m.longest_gap_us,
            runs: m.runs,
            has_ended: m.has_ended,
            startup_us: web.and_then(|web| web.buffer.startup_ns).map(|ns| ns / 1000),
            rebuffers: web.map(|web| web.buffer.stalls),
            rebuffering_us: web.map(|web| web.buffer.stalled_ns / 1000),
            ts: m.ts,
        });
    }

    fn note_worst(&mut self, session: WorstSession) {
        let badness = |s: &WorstSession| (s.lost, s.lateness_max_us.max(s.longest_gap_us));
        let at = self.worst.partition_point(|other| badness(other) >= badness(&session));
        if at < MAX_WORST {
            self.worst.insert(at, session);
            self.worst.truncate(MAX_WORST);
        }
    }

    /// The sums of all threads.
    pub(super) fn merge(parts: Vec<Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or_default();
        for part in parts {
            all.merge_one(part);
        }
        all
    }

    fn merge_one(&mut self, part: Self) {
        for (kind, count) in part.failures {
            self.add_failure(kind, count);
        }
        self.counts.add(&part.counts);
        self.times.add(&part.times);
        self.understated_us = self.understated_us.max(part.understated_us);
        self.first_packet_min_us = least(self.first_packet_min_us, part.first_packet_min_us);
        self.buffer_bytes = least(self.buffer_bytes, part.buffer_bytes);
        self.together_ns = self.together_ns.max(part.together_ns);
        self.ts = self.ts.plus(&part.ts);
        self.fec.merge(&part.fec);
        self.web.merge(&part.web);
        self.streams.extend(part.streams);
        part.worst.into_iter().for_each(|session| self.note_worst(session));
    }

    fn receiver(&self, plan: &LoadPlan, errors: UdpErrors) -> LoadReceiver {
        let (c, t) = (&self.counts, &self.times);
        LoadReceiver {
            threads: plan.options.threads as u64,
            // The probe's clock is the kernel's too.
            kernel_stamps: transport(plan) == "udp" && c.unstamped == 0,
            receive_buffer_bytes: self.buffer_bytes.unwrap_or(0),
            socket_drops: c.socket_drops,
            checksum_errors: errors.checksum,
            buffer_errors: errors.buffer,
            malformed: c.malformed,
            foreign: c.foreign,
            turn: summarize(&t.turns),
            read_delay: summarize(&t.read_delay),
            stalls: c.own_stalls,
            stalled_us: c.own_stalled_us,
            waited_for_processor_us: c.waited_us,
        }
    }

    fn probe_sums(&self) -> ProbeReport {
        ProbeReport {
            missed_packets: self.counts.unprobed,
            packets: self.counts.probed_packets,
            payload_bytes: self.counts.probed_bytes,
            lost: self.counts.probed_lost,
            ..ProbeReport::default()
        }
    }

    /// Returns the packets received or repaired, as a share of all that should have come.
    fn delivered_ratio(&self) -> f64 {
        let c = &self.counts;
        let delivered = c.packets + self.fec.counts.repaired;
        let expected = delivered + c.lost + c.lost_at_start + c.lost_at_end;
        if expected == 0 { 0.0 } else { delivered as f64 / expected as f64 }
    }

    fn take_streams(&mut self) -> Vec<StreamReport> {
        self.streams.sort_by_key(|stream| (stream.viewer, stream.session));
        std::mem::take(&mut self.streams)
    }

    /// Returns the report, except for the judgements.
    pub(super) fn report(mut self, plan: &LoadPlan, udp: UdpErrors, series: Vec<LoadSample>) -> LoadReport {
        if let Some(probe) = plan.probe.as_ref().filter(|probe| !probe.passes()) {
            probe.whole_lateness(&mut self.times.lateness);
        }
        let (failures, worst) = (std::mem::take(&mut self.failures), std::mem::take(&mut self.worst));
        let per_stream = self.take_streams();
        let (c, t) = (&self.counts, &self.times);
        LoadReport {
            streams: u64::from(plan.options.streams),
            sessions: c.sessions,
            played: c.played,
            failed: failures.values().sum(),
            failures,
            transport: transport(plan),
            films: plan.targets.len() as u64,
            titles: plan.options.titles.to_string(),
            arrivals: plan.options.arrivals.to_string(),
            behaviour: plan.options.behaviour.to_string(),
            seed: plan.options.seed,
            ramp_ms: (plan.ramp_end - plan.began).as_millis() as u64,
            together_ms: self.together_ns / 1_000_000,
            packets: c.packets,
            payload_bytes: c.payload_bytes,
            rate_bits_per_s: BitRate::of(c.together_bytes, self.together_ns).0,
            lost: c.lost,
            lost_at_start: c.lost_at_start,
            lost_at_end: c.lost_at_end,
            fec: (plan.options.fec != FecChoice::Off).then(|| self.fec.clone()),
            delivered_ratio: self.delivered_ratio(),
            reordered: c.reordered,
            duplicates: c.duplicates,
            strays: c.strays,
            restarts: c.restarts,
            sessions_with_loss: c.with_loss,
            sessions_silent: c.silent,
            sessions_stalled: c.stalled,
            sessions_ended: c.ended,
            rtp_info_wrong: c.rtp_info_wrong,
            zaps: c.zaps,
            pauses: c.pauses,
            seeks: c.seeks,
            tricks: c.tricks,
            switches: c.switches,
            leaves: c.leaves,
            replaced: c.replaced,
            deeds_skipped: c.deeds_skipped,
            lateness: summarize(&t.lateness),
            lateness_understated_us: self.understated_us,
            lateness_own: summarize(&t.own_lateness),
            packets_in_own_stalls: t.own_lateness.len(),
            session_lateness_max: summarize(&t.lateness_max),
            session_longest_gap: summarize(&t.gaps),
            jitter: summarize(&t.jitter),
            jitter_max: summarize(&t.jitter_max),
            setup: summarize(&t.setup),
            first_packet: summarize(&t.first_packet),
            first_packet_min_us: self.first_packet_min_us,
            zap: summarize(&t.zap),
            sessions_inspected: c.inspected,
            ts: self.ts,
            web: self.web.report(),
            worst,
            receiver: self.receiver(plan, udp),
            probe: plan.probe.as_ref().map(|probe| probe.report(self.probe_sums())),
            series,
            streams_unreported: c.unreported,
            per_stream,
            problems: Vec::new(),
        }
    }
}
