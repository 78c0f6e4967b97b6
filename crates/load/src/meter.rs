//! The counts of one viewer of RTP: half a kilobyte of bits, some numbers, no payload.
//!
//! It is not the receiver of the player (`crates/client/src/play/media.rs`), for a reason: that one hands payload to a sink
//! and records every PLAY, which thousands of viewers in one process cannot afford. Packets between two runs wait here for
//! the reply to PLAY, since replies of a busy load are read late. Sequence numbers, lateness, repair and
//! report blocks are those of `millrace-client`.

use hdrhistogram::Histogram;
use millrace_client::fec::{CodeShape, FecCounts, Window};
use millrace_client::lateness::LightLateness;
use millrace_client::receive::{SequenceCounts, SequenceTracker, SequenceVerdict};
use millrace_client::reception::ReceptionState;
use millrace_client::reorder::InOrder;
use millrace_client::rtsp::dialogue::PlayReply;
use millrace_client::sdp::Description;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtcp::{self, ReportBlock, RtcpPacket};
use millrace_core::wire::rtp::{PAYLOAD_TYPE_MP2T, RtpHeader};

use crate::between::{BYE_WAIT_NS, Between, HeldPacket, end_timestamp, is_as_announced, is_near_end};
use crate::options::MediaClock;
use crate::pcr_clock::PcrClock;
use crate::ts::light::{TsFindings, TsLight};

/// The meter of one player.
pub(super) struct Meter {
    tracker: SequenceTracker,
    lateness: LightLateness,
    payload_type: u8,
    ssrc: Option<u32>,
    /// Wall clock of the reply to PLAY.
    reply_ns: u64,
    /// The same of the last PLAY.
    run_reply_ns: u64,
    /// The announcement of the last PLAY.
    announced: Option<(Option<u16>, Option<u32>)>,
    /// Extended number and timestamp of the lowest packet of the run.
    lowest: Option<(u64, u32)>,
    /// Whether all earlier runs began as announced.
    previous_exact: Option<bool>,
    /// Packets received from the reply to PAUSE until the reply to PLAY.
    between: Option<Between>,
    /// Length of the title, if the server gives it.
    length: Option<MediaTicks>,
    /// RTP timestamp of the end of the run, and of the last packet.
    end: Option<u32>,
    last_timestamp: Option<u32>,
    /// Arrival of the last packet of the run.
    last_arrival_ns: Option<u64>,
    first_arrival_ns: Option<u64>,
    payload_bytes: u64,
    malformed: u64,
    has_bye: bool,
    /// Packets that the last sender report counts, if it came with a BYE.
    sent: Option<u32>,
    /// PLAYs answered.
    runs: u32,
    /// What lateness is counted against instead of timestamps.
    pcr: Option<Box<PcrClock>>,
    /// Looks into the transport stream, if it is to.
    ts: Option<Box<TsLight>>,
    /// Repairs, if FEC was granted.
    window: Option<Box<Window>>,
    /// First packet after a sequence jump, held until the next confirms it (RFC 3550 A.1).
    stray: Option<Box<(RtpHeader, Vec<u8>)>>,
    /// FEC was asked for and refused.
    is_fec_refused: bool,
}

/// Passes repaired media to the lightweight TS checker.
struct RepairedMediaSink<'a> {
    ts: Option<&'a mut TsLight>,
    arrival_ns: u64,
}

impl InOrder for RepairedMediaSink<'_> {
    fn payload(&mut self, _ext: u64, bytes: &[u8]) {
        let arrival_ns = self.arrival_ns;
        self.ts.iter_mut().for_each(|ts| ts.payload(arrival_ns, bytes));
    }

    fn gap(&mut self, _from: u64, _count: u64) {
        self.ts.iter_mut().for_each(|ts| ts.gap());
    }
}

/// What FEC did for one viewer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Repaired {
    /// Whether it was granted.
    pub(super) is_granted: bool,
    /// Packets that did not come by themselves.
    pub(super) lost_on_the_way: u64,
    pub(super) counts: FecCounts,
}

/// Measurements of one viewer. A viewer fills in the values that it can determine; zero and `None`
/// stand for nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ViewerMeasurements {
    pub(super) counts: SequenceCounts,
    pub(super) lost_at_end: u64,
    pub(super) payload_bytes: u64,
    pub(super) malformed: u64,
    pub(super) lateness_max_us: u64,
    pub(super) understated_us: u64,
    pub(super) longest_gap_us: u64,
    pub(super) first_packet_us: Option<i64>,
    /// Whether each PLAY whose first packet came announced it rightly.
    pub(super) rtp_info_exact: Option<bool>,
    /// Whether the title came to its end: its BYE was heard, or, where it cannot be, its last seconds came.
    pub(super) has_ended: bool,
    /// Wall clock of the first packet.
    pub(super) first_arrival_ns: Option<u64>,
    /// Time from first to last packet, of all runs.
    pub(super) span_ns: u64,
    /// Interarrival jitter (RFC 3550) at the end, and its largest value.
    pub(super) jitter_us: u64,
    pub(super) jitter_max_us: u64,
    /// Runs: PLAYs answered.
    pub(super) runs: u32,
    /// Findings on the transport stream, if it was inspected.
    pub(super) ts: Option<TsFindings>,
    /// Results of FEC, if it was requested; the lost packets are then those missing after repair.
    pub(super) fec: Option<Repaired>,
}

/// How a viewer of RTP ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ending {
    /// While a viewer pauses nothing is due.
    pub(super) is_paused: bool,
    /// Whether it would have heard a BYE: not on a socket that others share.
    pub(super) hears_bye: bool,
}

impl Ending {
    /// Whether the title had come to its end, and nothing was due any more, `waited_ns` after the last packet.
    pub(super) fn is_end(self, has_bye: bool, is_at_end: impl FnOnce() -> bool, waited_ns: u64) -> bool {
        let may_come = !self.hears_bye || waited_ns <= BYE_WAIT_NS;
        has_bye || may_come && is_at_end()
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            tracker: SequenceTracker::default(),
            lateness: LightLateness::default(),
            payload_type: PAYLOAD_TYPE_MP2T,
            ssrc: None,
            reply_ns: 0,
            run_reply_ns: 0,
            announced: None,
            lowest: None,
            previous_exact: None,
            between: None,
            length: None,
            end: None,
            last_timestamp: None,
            last_arrival_ns: None,
            first_arrival_ns: None,
            payload_bytes: 0,
            malformed: 0,
            has_bye: false,
            sent: None,
            runs: 0,
            pcr: None,
            ts: None,
            window: None,
            stray: None,
            is_fec_refused: false,
        }
    }
}

impl Meter {
    /// The stream is this one; `inspect` looks into it if it is a transport stream.
    pub(super) fn describe(&mut self, description: &Description, inspect: bool, clock: MediaClock) {
        self.payload_type = description.payload_type;
        let is_pcr = description.is_transport_stream && clock == MediaClock::Pcr;
        self.pcr = is_pcr.then(Box::default);
        // Clock references come as ticks of 90 kHz.
        self.lateness.set_clock(if is_pcr { 90_000 } else { description.clock_hz });
        self.length = description.range.and_then(|range| range.end);
        self.ts = (inspect && description.is_transport_stream).then(Box::default);
    }

    /// Takes the reply to PLAY. The first time, packets may have come already; later, the reply
    /// decides to which run the packets since the reply to PAUSE belong.
    pub(super) fn begin_play(&mut self, reply: &PlayReply, reply_ns: u64, shared: &mut Histogram<u64>) {
        self.runs += 1;
        self.run_reply_ns = reply_ns;
        let announced = reply.rtp_info.as_ref().map(|info| (info.sequence, info.timestamp));
        let sequence = announced.and_then(|(sequence, _)| sequence);
        self.end = end_timestamp(reply, self.length, self.clock_hz());
        if self.runs > 1 {
            let parted = self.between.take().unwrap_or_default().split(sequence);
            self.take_held(shared, parted.before);
            self.pause_window();
            self.judge_announcement();
            self.announced = announced;
            (self.last_timestamp, self.last_arrival_ns) = (None, None);
            self.tracker.begin_run(parted.start);
            self.begin_run(shared);
            self.take_held(shared, parted.behind);
            return;
        }
        (self.reply_ns, self.announced) = (reply_ns, announced);
        if let Some(sequence) = sequence {
            self.tracker.announce(sequence);
        }
    }

    fn take_held(&mut self, shared: &mut Histogram<u64>, held: Vec<HeldPacket>) {
        for packet in held {
            self.take(shared, packet.now, packet.arrival_ns, &packet.datagram);
        }
    }

    /// The run is over: was its announcement right?
    fn judge_announcement(&mut self) {
        let first = self.lowest.take().map(|(ext, timestamp)| (ext as u16, timestamp));
        let exact = is_as_announced(self.announced.take(), first);
        self.previous_exact = match (self.previous_exact, exact) {
            (before, None) => before,
            (before, Some(exact)) => Some(before.unwrap_or(true) && exact),
        };
    }

    /// Takes the server's answer about FEC: if it was granted, it repairs with the code of this
    /// shape. Missing packets are given up when nothing has come for `wait_ns`.
    pub(super) fn repair(&mut self, is_granted: bool, shape: Option<CodeShape>, wait_ns: u64) {
        self.is_fec_refused = !is_granted;
        self.window = is_granted.then(|| Box::new(Window::new(wait_ns, shape)));
    }

    /// Works on the window and inspects its output.
    fn look(&mut self, arrival_ns: u64, work: impl FnOnce(&mut Window, &mut RepairedMediaSink<'_>)) {
        if let Some(window) = &mut self.window {
            work(window, &mut RepairedMediaSink { ts: self.ts.as_deref_mut(), arrival_ns });
        }
    }

    /// Takes the reply to PAUSE. Packets that come now may be left over, or belong to the run that
    /// a reply not yet read announces.
    pub(super) fn pause(&mut self) {
        self.pause_window();
        self.between.get_or_insert_default();
    }

    /// The next run begins elsewhere: its viewer seeks.
    pub(super) fn jump(&mut self) {
        self.window.iter_mut().for_each(|window| window.jump());
    }

    /// Nothing is given up until the title goes on.
    fn pause_window(&mut self) {
        self.window.iter_mut().for_each(|window| window.pause());
    }

    /// Takes a datagram of an FEC port.
    pub(super) fn fec(&mut self, now: Instant, arrival_ns: u64, datagram: &[u8]) {
        self.look(arrival_ns, |window, look| window.fec(now, datagram, look));
    }

    /// Gives up packets that have been waited for long enough.
    pub(super) fn handle_timeout(&mut self, now: Instant, unix_ns: u64) {
        self.look(unix_ns, |window, look| window.handle_timeout(now, look));
    }

    /// When [`Self::handle_timeout`] is due.
    pub(super) fn poll_at(&self) -> Option<Instant> {
        self.window.as_ref().and_then(|window| window.poll_at())
    }

    /// Packet `ext` goes into the window, behind the stray that it confirms.
    fn put_in_window(
        &mut self,
        now: Instant,
        arrival_ns: u64,
        ext: u64,
        verdict: SequenceVerdict,
        packet: (&RtpHeader, &[u8]),
    ) {
        let stray = self.stray.take().filter(|_| matches!(verdict, SequenceVerdict::Confirmed { .. }));
        let starts_run = matches!(
            verdict,
            SequenceVerdict::Next { starts_run: true, .. }
                | SequenceVerdict::Confirmed { starts_run: true, .. }
        );
        let start = self.tracker.run_start().unwrap_or(ext);
        self.look(arrival_ns, |window, look| {
            if starts_run {
                window.begin(start, look);
                look.ts.iter_mut().for_each(|ts| ts.begin_run());
            }
            if let Some((header, payload)) = stray.as_deref() {
                window.media(now, ext - 1, header, payload, look);
            }
            window.media(now, ext, packet.0, packet.1, look);
        });
    }

    /// Begins a run: packets from here on have another baseline and follow nothing.
    fn begin_run(&mut self, shared: &mut Histogram<u64>) {
        self.lateness.begin_run(shared);
        if let Some(ts) = &mut self.ts {
            ts.begin_run();
        }
    }

    /// Takes a datagram of the RTP port or channel. Lateness goes into `shared`.
    pub(super) fn rtp(
        &mut self,
        shared: &mut Histogram<u64>,
        now: Instant,
        arrival_ns: u64,
        datagram: &[u8],
    ) {
        let Some(between) = &mut self.between else {
            return self.take(shared, now, arrival_ns, datagram);
        };
        let packet = HeldPacket { now, arrival_ns, datagram: datagram.to_vec() };
        match between.push(packet) {
            None => {}
            // A packet left out of the window would be missing there.
            Some(packet) if self.window.is_some() => {
                self.take(shared, packet.now, packet.arrival_ns, &packet.datagram);
            }
            Some(packet) => self.count(shared, packet.arrival_ns, &packet.datagram),
        }
    }

    /// Counts a packet whose run is unknown: its arrival time means nothing.
    fn count(&mut self, shared: &mut Histogram<u64>, arrival_ns: u64, datagram: &[u8]) {
        self.ts.iter_mut().for_each(|ts| ts.gap());
        // Nor is the time until the next one a gap.
        self.lateness.begin_run(shared);
        match RtpHeader::parse(datagram).filter(|(h, _)| h.payload_type == self.payload_type) {
            None => self.malformed += 1,
            Some((header, payload)) => match self.tracker.observe(header.sequence) {
                SequenceVerdict::Duplicate | SequenceVerdict::Stray => {}
                _ => {
                    self.payload_bytes += payload.len() as u64;
                    self.last_arrival_ns = Some(arrival_ns);
                }
            },
        }
    }

    /// Whether a packet comes before the one that PLAY announced, by its number and by its time, and that one has not come yet.
    /// Replies come by another way than packets: on a busy machine the last ones of a run come behind the reply that begins the
    /// next.
    fn precedes_run(&self, header: &RtpHeader) -> bool {
        let Some((Some(sequence), Some(timestamp))) = self.announced else { return false };
        let is_first = self.runs > 1 && self.lowest.is_none() && self.window.is_none();
        is_first
            && sequence.wrapping_sub(header.sequence).cast_signed() > 0
            && timestamp.wrapping_sub(header.timestamp).cast_signed() > 0
    }

    /// Counts a packet that the tracker found to be left over from the previous run. Its arrival
    /// time means nothing.
    fn count_left_over(&mut self, arrival_ns: u64, payload: &[u8]) {
        self.payload_bytes += payload.len() as u64;
        if let Some(ts) = &mut self.ts {
            ts.payload(arrival_ns, payload);
            ts.begin_run();
        }
    }

    /// Takes a datagram of the run.
    fn take(&mut self, shared: &mut Histogram<u64>, now: Instant, arrival_ns: u64, datagram: &[u8]) {
        let Some((header, payload)) =
            RtpHeader::parse(datagram).filter(|(h, _)| h.payload_type == self.payload_type)
        else {
            self.malformed += 1;
            return;
        };
        if self.precedes_run(&header) && self.tracker.left_over(header.sequence) {
            return self.count_left_over(arrival_ns, payload);
        }
        let verdict = self.tracker.observe(header.sequence);
        let (ext, follows) = match verdict {
            SequenceVerdict::Stray if self.window.is_some() => {
                self.stray = Some(Box::new((header, payload.to_vec())));
                return;
            }
            SequenceVerdict::Duplicate | SequenceVerdict::Stray => return,
            SequenceVerdict::Next { ext, gap, .. } => (ext, gap == 0),
            SequenceVerdict::Reordered { ext } => (ext, false),
            SequenceVerdict::Confirmed { ext, starts_run, .. } => {
                self.payload_bytes += payload.len() as u64; // of the packet before, which had the same length
                if starts_run && self.lateness.clock().last_arrival_ns().is_some() {
                    self.begin_run(shared);
                }
                (ext, false)
            }
        };
        if self.window.is_some() {
            self.put_in_window(now, arrival_ns, ext, verdict, (&header, payload));
        } else if let Some(ts) = &mut self.ts {
            if !follows {
                ts.gap();
            }
            ts.payload(arrival_ns, payload);
        }
        self.ssrc = Some(header.ssrc);
        self.payload_bytes += payload.len() as u64;
        self.time(shared, arrival_ns, &header, payload);
        self.first_arrival_ns.get_or_insert(arrival_ns);
        self.last_timestamp = Some(header.timestamp);
        self.last_arrival_ns = Some(self.last_arrival_ns.map_or(arrival_ns, |last| last.max(arrival_ns)));
        if self.lowest.is_none_or(|(lowest, _)| ext < lowest) {
            self.lowest = Some((ext, header.timestamp));
        }
    }

    /// How late is this packet?
    fn time(&mut self, shared: &mut Histogram<u64>, arrival_ns: u64, header: &RtpHeader, payload: &[u8]) {
        let Some(pcr) = &mut self.pcr else {
            return self.lateness.observe(arrival_ns, header.timestamp, shared);
        };
        match pcr.payload(payload) {
            Some(moment) => {
                if moment.is_jump {
                    self.lateness.begin_run(shared);
                }
                self.lateness.observe(arrival_ns, moment.timestamp, shared);
            }
            None => self.lateness.observe_untimed(arrival_ns),
        }
    }

    /// Takes a datagram of the RTCP port or channel.
    pub(super) fn rtcp(&mut self, datagram: &[u8]) {
        let mut sent = None;
        for packet in rtcp::parse(datagram) {
            match packet {
                RtcpPacket::SenderReport(report) => sent = Some(report.packets),
                RtcpPacket::Bye { ssrc } if ssrc.is_none() || self.ssrc.is_none() || ssrc == self.ssrc => {
                    self.has_bye = true;
                    self.sent = sent;
                }
                _ => {}
            }
        }
    }

    /// Different packets received.
    pub(super) fn packets(&self) -> u64 {
        self.tracker.counts().received
    }

    /// Returns the number of packets missing to date.
    pub(super) fn lost(&self) -> u64 {
        if let Some(window) = &self.window {
            return window.counts().lost;
        }
        let counts = self.tracker.counts();
        counts.lost + counts.lost_at_start
    }

    /// Payload of the packets received.
    pub(super) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Returns the number of packets sent, according to the report that came with the sender's BYE.
    pub(super) fn sent(&self) -> Option<u32> {
        self.sent
    }

    /// Ticks of the RTP clock in a second.
    pub(super) fn clock_hz(&self) -> u32 {
        self.lateness.clock().hz()
    }

    /// Payload type of the stream.
    pub(super) fn payload_type(&self) -> u8 {
        self.payload_type
    }

    /// Whether the title is over.
    pub(super) fn has_bye(&self) -> bool {
        self.has_bye
    }

    /// Block of a receiver report for now.
    pub(super) fn report_block(&mut self) -> Option<ReportBlock> {
        let ssrc = self.ssrc?;
        let clock = self.lateness.clock();
        let (jitter_ns, clock_hz) = (clock.jitter_ns(), clock.hz());
        Some(
            ReceptionState {
                ssrc,
                fraction_lost: self.tracker.fraction_lost(),
                lost: i64::try_from(self.tracker.counts().lost).unwrap_or(i64::MAX),
                highest_sequence: self.tracker.highest_for_report(),
                jitter_ns,
                clock_hz,
            }
            .report_block(),
        )
    }

    /// From the reply to PLAY to the first packet; negative if that came before, as some servers have it.
    fn first_packet_us(&self) -> Option<i64> {
        let first = self.first_arrival_ns.filter(|_| self.reply_ns > 0)?;
        Some(((i128::from(first) - i128::from(self.reply_ns)) / 1000) as i64)
    }

    /// Whether the run has come to the end that was announced.
    fn is_at_end(&self) -> bool {
        let times = self.last_timestamp.zip(self.end);
        times.is_some_and(|(last, end)| is_near_end(last, end, self.clock_hz()))
    }

    /// Ends the measurement at wall-clock time `end_ns`.
    pub(super) fn finish(
        &mut self,
        shared: &mut Histogram<u64>,
        end_ns: u64,
        end: Ending,
    ) -> ViewerMeasurements {
        for packet in self.between.take().into_iter().flat_map(Between::into_all) {
            self.count(shared, packet.arrival_ns, &packet.datagram);
        }
        self.judge_announcement();
        self.lateness.finish(shared);
        let has_bye = self.has_bye;
        self.look(end_ns, |window, look| if has_bye { window.flush(look) } else { window.cut(look) });
        let mut counts = self.tracker.counts();
        let fec = self.fec_result(counts);
        let clock = self.lateness.clock();
        // A stream that stopped and never went on has its longest gap at the end; before the first packet as well.
        let from = self.last_arrival_ns.unwrap_or(0).max(self.run_reply_ns);
        let waited_ns = end_ns.saturating_sub(from);
        let has_ended = end.is_end(has_bye, || self.is_at_end(), waited_ns);
        let tail_ns = if has_ended || end.is_paused || from == 0 { 0 } else { waited_ns };
        let seen = (counts.received + counts.lost + counts.lost_at_start) as u32;
        // After a pause or a seek, packets in flight count as sent but are never counted here.
        let sent = self.sent.filter(|_| self.runs <= 1);
        let at_end = sent.map_or(0, |sent| sent.wrapping_sub(seen).cast_signed().max(0));
        let mut lost_at_end = u64::from(at_end.unsigned_abs());
        if let Some((fec, window)) = fec.as_ref().zip(self.window.as_ref()) {
            (counts.lost, counts.lost_at_start) = (fec.counts.lost, 0);
            lost_at_end = lost_at_end.saturating_sub(window.behind_last());
        }
        ViewerMeasurements {
            counts,
            lost_at_end,
            payload_bytes: self.payload_bytes,
            malformed: self.malformed,
            lateness_max_us: self.lateness.max_us(),
            understated_us: self.lateness.understated_us(),
            longest_gap_us: self.lateness.longest_gap_ns().max(tail_ns) / 1000,
            first_packet_us: self.first_packet_us(),
            rtp_info_exact: self.previous_exact,
            has_ended,
            first_arrival_ns: self.first_arrival_ns,
            span_ns: self.lateness.span_ns(),
            jitter_us: clock.jitter_ns() / 1000,
            jitter_max_us: clock.jitter_max_ns() / 1000,
            runs: self.runs,
            ts: self.ts.as_ref().map(|ts| ts.findings()),
            fec,
        }
    }

    fn fec_result(&self, counts: SequenceCounts) -> Option<Repaired> {
        match &self.window {
            None => self.is_fec_refused.then(Repaired::default),
            Some(window) => Some(Repaired {
                is_granted: true,
                lost_on_the_way: counts.lost + counts.lost_at_start,
                counts: window.counts(),
            }),
        }
    }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
