//! Viewers whose packets are counted in the kernel, at the interface, and dropped there: [`crate::drop_probe`].
//!
//! A viewer keeps its RTP socket, so that no other process gets its port, and its RTCP; the socket
//! stays empty. The counts that it would have made are read from its slot in the probe. Transport
//! streams cannot be inspected there.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;
use millrace_client::receive::{MAX_STEP, SequenceCounts};
use millrace_client::reception::{ReceptionState, ReportInterval};
use millrace_client::rtsp::dialogue::PlayReply;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtcp::ReportBlock;

use crate::between::{end_timestamp, is_as_announced, is_near_end};
use crate::drop_probe::{DropProbe, ProbeAction, ProbeConfig, ProbeCounts, ProbeError, ProbeMedia};
use crate::error::LoadError;
use crate::meter::{Ending, ViewerMeasurements};
use crate::outcome::Live;
use crate::report::ProbeReport;

/// Counts a load's packets in the kernel, before they reach sockets.
#[derive(Debug)]
pub(super) struct LoadProbe {
    inner: DropProbe,
    interface: String,
    passes: bool,
    /// Lateness that was taken already, by bin.
    taken: Mutex<Vec<(u64, u64)>>,
}

fn error(interface: &str) -> impl Fn(ProbeError) -> LoadError {
    let interface = interface.to_owned();
    move |source| LoadError::Probe { interface: interface.clone(), source }
}

impl LoadProbe {
    /// At an interface of the calling thread's network namespace.
    pub(super) fn attach(interface: &str, streams: u32, passes: bool) -> Result<Self, LoadError> {
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

    /// Returns the probe's observations.
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
    probe: Arc<LoadProbe>,
    slot: u32,
    local: SocketAddr,
    /// Monotonic time of the reply to the first PLAY, and to the last.
    reply: Instant,
    run_reply: Instant,
    /// The announcement of the PLAY whose packets came first.
    announced: Option<(Option<u16>, Option<u32>)>,
    runs: u32,
    /// Whether a later run has numbers of its own: then nothing is known about the first packet.
    has_new_numbers: bool,
    /// Highest extended number when PAUSE was answered.
    paused_at: Option<u64>,
    clock_hz: u32,
    /// Length of the title, if the server gives it.
    length: Option<MediaTicks>,
    /// RTP timestamp of the end of the run.
    end: Option<u32>,
    interval: ReportInterval,
}

impl ProbeMeter {
    /// The packets to `local` are counted in `slot` from now on.
    pub(super) fn new(
        probe: &Arc<LoadProbe>,
        slot: u32,
        local: SocketAddr,
        (payload_type, clock_hz): (u8, u32),
        length: Option<MediaTicks>,
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
            has_new_numbers: false,
            paused_at: None,
            clock_hz,
            length,
            end: None,
            interval: ReportInterval::default(),
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

    /// Takes the reply to PAUSE. Packets that come now may be left over, or belong to the run that
    /// a reply not yet read announces.
    pub(super) fn pause(&mut self) {
        self.paused_at.get_or_insert(self.counts().highest_sequence_ext);
        // There is such a slot: it is watched.
        let _ = self.probe.inner.suspend_clock(self.slot);
    }

    /// PLAY was answered.
    pub(super) fn begin_play(&mut self, reply: &PlayReply, now: Instant) {
        self.runs += 1;
        self.run_reply = now;
        self.end = end_timestamp(reply, self.length, self.clock_hz);
        let announced = reply.rtp_info.as_ref().map(|info| (info.sequence, info.timestamp));
        let highest = self.paused_at.take().filter(|highest| *highest > 0);
        match highest {
            None if self.runs == 1 => {
                self.announced = announced;
                self.reply = now;
            }
            // No packets came of the earlier runs; the first ones to come may still belong to them,
            // and this cannot be determined.
            None => {
                self.announced = None;
                self.resume(true);
            }
            Some(highest) => {
                let sequence = announced.and_then(|(sequence, _)| sequence);
                self.resume(sequence.is_some_and(|sequence| follows(highest, sequence)));
            }
        }
    }

    fn resume(&mut self, numbers_go_on: bool) {
        let inner = &self.probe.inner;
        self.has_new_numbers |= !numbers_go_on;
        // There is such a slot: it is watched.
        let _ = if numbers_go_on { inner.resume_clock(self.slot) } else { inner.begin_run(self.slot) };
    }

    fn unwatch(&self) {
        // A call that the kernel refuses here would be refused again; the probe ends with the load.
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
        Some(
            ReceptionState {
                ssrc: counts.ssrc,
                fraction_lost: self.interval.fraction_lost(expected, counts.packets),
                lost: i64::try_from(counts.lost).unwrap_or(i64::MAX),
                highest_sequence: counts.highest_sequence_ext as u32,
                jitter_ns: counts.jitter_ns,
                clock_hz: hz,
            }
            .report_block(),
        )
    }

    /// Ends the counting. `sent` is the sender's own count of packets sent, if its BYE came;
    /// `unix_ns` is the wall clock at `now`.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        unix_ns: u64,
        end: Ending,
        (has_bye, sent): (bool, Option<u32>),
    ) -> ViewerMeasurements {
        let c = self.counts();
        self.unwatch();
        let is_first_run = self.runs <= 1;
        let announced = self.announced.filter(|_| !self.has_new_numbers);
        let first = c.first_sequence.zip(c.first_timestamp);
        let lost_at_start = announced.and_then(|(sequence, _)| sequence).zip(c.first_sequence);
        // A number that lies before by more than half of the circle was not announced for this.
        let lost_at_start = lost_at_start.map_or(0, |(from, to)| to.wrapping_sub(from).cast_signed().max(0));
        let lost_at_start = u64::from(lost_at_start.unsigned_abs());
        let seen = (c.packets + c.lost + lost_at_start) as u32;
        let at_end =
            sent.filter(|_| is_first_run).map_or(0, |sent| sent.wrapping_sub(seen).cast_signed().max(0));
        let since = c.last_arrival_ns.max(self.run_reply.0);
        let is_at_end = || {
            let times = c.last_timestamp.zip(self.end);
            times.is_some_and(|(last, at)| is_near_end(last, at, self.clock_hz))
        };
        let waited_ns = now.0.saturating_sub(since);
        let has_ended = end.is_end(has_bye, is_at_end, waited_ns);
        let tail_ns = if has_ended || end.is_paused { 0 } else { waited_ns };
        let unix_of = |monotonic_ns: u64| unix_ns.saturating_sub(now.0.saturating_sub(monotonic_ns));
        ViewerMeasurements {
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
            rtp_info_exact: is_as_announced(announced, first),
            has_ended,
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

/// Whether number `sequence` is one that may follow the extended number `highest`.
fn follows(highest: u64, sequence: u16) -> bool {
    (1..=MAX_STEP).contains(&sequence.wrapping_sub(highest as u16))
}
