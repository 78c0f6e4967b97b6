//! Viewers whose packets are counted in the kernel, at the interface, and dropped there: [`millrace_netio::drop_probe`].
//!
//! A viewer keeps its RTP socket, so that nobody else gets its port, and its RTCP; the socket stays empty. What it would
//! have counted is read from its slot in the probe. Transport streams cannot be looked into there.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;
use millrace_core::time::Instant;
use millrace_core::wire::rtcp::ReportBlock;
use millrace_netio::drop_probe::{DropProbe, ProbeAction, ProbeConfig, ProbeCounts, ProbeError, ProbeMedia};

use super::meter::Measured;
use super::report::ProbeReport;
use super::viewer::Live;
use crate::error::ClientError;
use crate::receive::SequenceCounts;
use crate::rtsp::dialogue::PlayReply;

/// The probe of a load.
#[derive(Debug)]
pub(super) struct Probe {
    inner: DropProbe,
    interface: String,
    passes: bool,
    /// Lateness that was taken already, by bin.
    taken: Mutex<Vec<(u64, u64)>>,
}

fn error(interface: &str) -> impl Fn(ProbeError) -> ClientError {
    let interface = interface.to_owned();
    move |source| ClientError::Probe { interface: interface.clone(), source }
}

impl Probe {
    /// At an interface of the calling thread's network namespace.
    pub(super) fn attach(interface: &str, streams: u32, passes: bool) -> Result<Self, ClientError> {
        let action = if passes { ProbeAction::Pass } else { ProbeAction::Drop };
        let config = ProbeConfig { interface: interface.to_owned(), max_streams: streams, action };
        let inner = DropProbe::attach(&config).map_err(error(interface))?;
        Ok(Self { inner, interface: interface.to_owned(), passes, taken: Mutex::default() })
    }

    /// Whether packets go on to the sockets, which count as well.
    pub(super) fn passes(&self) -> bool {
        self.passes
    }

    /// Lateness since the last call goes into `into`. A stream's baseline may still move a few packets from one bin to
    /// another; the whole is exact.
    pub(super) fn take_lateness(&self, into: &mut Histogram<u64>) {
        let Ok(now) = self.inner.lateness() else { return };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for (edge_us, count) in &now {
            let before = taken.binary_search_by_key(edge_us, |(edge, _)| *edge).map_or(0, |at| taken[at].1);
            into.saturating_record_n(*edge_us, count.saturating_sub(before));
        }
        *taken = now;
    }

    /// All lateness since the probe is there.
    pub(super) fn whole_lateness(&self, into: &mut Histogram<u64>) {
        into.reset();
        for (edge_us, count) in self.inner.lateness().unwrap_or_default() {
            into.saturating_record_n(edge_us, count);
        }
    }

    /// What it saw.
    pub(super) fn report(&self, sums: ProbeReport) -> ProbeReport {
        let totals = self.inner.totals().unwrap_or_default();
        ProbeReport {
            interface: self.interface.clone(),
            seen_packets: totals.watched,
            dropped_packets: totals.dropped,
            ..sums
        }
    }
}

/// One viewer's slot.
#[derive(Debug)]
pub(super) struct ProbeMeter {
    probe: Arc<Probe>,
    slot: u32,
    local: SocketAddr,
    /// Monotonic time of the reply to the first PLAY, and to the last.
    reply: Instant,
    run_reply: Instant,
    announced: Option<(Option<u16>, Option<u32>)>,
    runs: u32,
    reported: (u64, u64),
}

impl ProbeMeter {
    /// The packets to `local` are counted in `slot` from now on.
    pub(super) fn new(
        probe: &Arc<Probe>,
        slot: u32,
        local: SocketAddr,
        (payload_type, clock_hz): (u8, u32),
    ) -> Result<Self, ProbeError> {
        probe.inner.watch(local, slot, ProbeMedia::Rtp { payload_type, clock_hz })?;
        let start = Instant::default();
        let probe = Arc::clone(probe);
        Ok(Self {
            probe,
            slot,
            local,
            reply: start,
            run_reply: start,
            announced: None,
            runs: 0,
            reported: (0, 0),
        })
    }

    /// Whether the socket stays empty.
    pub(super) fn replaces_socket(&self) -> bool {
        !self.probe.passes
    }

    fn counts(&self) -> ProbeCounts {
        // There is such a slot: it is watched.
        self.probe.inner.read(self.slot).unwrap_or_default()
    }

    /// The next packet begins a run: PLAY is about to be sent again.
    pub(super) fn begin_run(&self) {
        // As above.
        let _ = self.probe.inner.begin_run(self.slot);
    }

    /// PLAY was answered.
    pub(super) fn begin_play(&mut self, reply: &PlayReply, now: Instant) {
        self.runs += 1;
        self.run_reply = now;
        if self.runs == 1 {
            self.reply = now;
            self.announced = reply.rtp_info.as_ref().map(|info| (info.sequence, info.timestamp));
        }
    }

    fn unwatch(&self) {
        // What the kernel refuses here it refuses again; the probe ends with the load.
        let _ = self.probe.inner.unwatch(self.local);
    }

    /// For progress and time series.
    pub(super) fn live(&self) -> Live {
        let counts = self.counts();
        Live { packets: counts.packets, payload_bytes: counts.payload_bytes, lost: counts.lost }
    }

    /// Block of a receiver report for now; `hz` is the RTP clock.
    pub(super) fn report_block(&mut self, hz: u32) -> Option<ReportBlock> {
        let counts = self.counts();
        if counts.packets == 0 {
            return None;
        }
        let expected = counts.packets + counts.lost;
        let new = expected.saturating_sub(self.reported.0);
        let lost = new.saturating_sub(counts.packets.saturating_sub(self.reported.1));
        self.reported = (expected, counts.packets);
        let jitter = u128::from(counts.jitter_ns) * u128::from(hz) / 1_000_000_000;
        Some(ReportBlock {
            ssrc: counts.ssrc,
            fraction_lost: (lost * 256).checked_div(new).unwrap_or(0).min(255) as u8,
            cumulative_lost: counts.lost.min(0x7f_ffff) as i32,
            highest_sequence: counts.highest_sequence_ext as u32,
            jitter: u32::try_from(jitter).unwrap_or(u32::MAX),
        })
    }

    /// Ends the counting. `sent` is what the sender says it sent, if it said goodbye; `unix_ns` is the wall clock at `now`.
    pub(super) fn finish(&mut self, now: Instant, unix_ns: u64, end: ProbeEnd) -> Measured {
        let c = self.counts();
        self.unwatch();
        let is_first_run = self.runs <= 1;
        let announced = self.announced.filter(|_| is_first_run);
        let first = c.first_sequence.zip(c.first_timestamp);
        let lost_at_start = announced.and_then(|(sequence, _)| sequence).zip(c.first_sequence);
        // What lies before by more than half of the circle was not announced for this.
        let lost_at_start = lost_at_start.map_or(0, |(from, to)| to.wrapping_sub(from).cast_signed().max(0));
        let lost_at_start = u64::from(lost_at_start.unsigned_abs());
        let seen = (c.packets + c.lost + lost_at_start) as u32;
        let at_end =
            end.sent.filter(|_| is_first_run).map_or(0, |sent| sent.wrapping_sub(seen).cast_signed().max(0));
        let since = c.last_arrival_ns.max(self.run_reply.0);
        let tail_ns = if end.has_bye || end.is_paused { 0 } else { now.0.saturating_sub(since) };
        let unix_of = |monotonic_ns: u64| unix_ns.saturating_sub(now.0.saturating_sub(monotonic_ns));
        Measured {
            counts: SequenceCounts {
                received: c.packets,
                lost: c.lost,
                lost_at_start,
                reordered: c.reordered,
                duplicates: c.duplicates,
                strays: c.strays,
                restarts: c.restarts,
            },
            lost_at_end: u64::from(at_end.unsigned_abs()),
            payload_bytes: c.payload_bytes,
            malformed: c.malformed,
            lateness_max_us: c.lateness_max_ns / 1000,
            understated_us: c.understated_ns / 1000,
            longest_gap_us: c.longest_gap_ns.max(tail_ns) / 1000,
            first_packet_us: (c.packets > 0)
                .then(|| (c.first_arrival_ns.cast_signed() - self.reply.0.cast_signed()) / 1000),
            rtp_info_exact: announced.zip(first).map(|((sequence, timestamp), first)| {
                sequence.is_none_or(|s| s == first.0) && timestamp.is_none_or(|t| t == first.1)
            }),
            has_bye: end.has_bye,
            first_arrival_ns: (c.packets > 0).then(|| unix_of(c.first_arrival_ns)),
            span_ns: c.last_arrival_ns.saturating_sub(c.first_arrival_ns),
            jitter_us: c.jitter_ns / 1000,
            jitter_max_us: c.jitter_ns / 1000,
            runs: self.runs,
            ts: None,
            fec: None,
        }
    }
}

impl Drop for ProbeMeter {
    fn drop(&mut self) {
        self.unwatch();
    }
}

/// How a viewer of the probe ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeEnd {
    pub(super) sent: Option<u32>,
    pub(super) has_bye: bool,
    pub(super) is_paused: bool,
}
