//! RTP and RTCP packets, whichever way they came: counted, timed, put in order, handed to the sink.
//!
//! A viewer of a load has a meter of its own (`crates/load/src/meter.rs`), for a reason: it keeps no payload, has no sink
//! and shares one histogram with thousands of others, while this receiver keeps a record of every PLAY and compares sender
//! reports. Both count sequence numbers, time, repair and report by the same modules of this crate.

use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MEDIA_HZ, MediaTicks};
use millrace_core::wire::rtcp::{self, ReportBlock, RtcpPacket};
use millrace_core::wire::rtp::{PAYLOAD_TYPE_MP2T, RtpHeader};

use crate::fec::{CodeShape, FecCounts, Window};
use crate::lateness::Lateness;
use crate::limits::MAX_PLAYS;
use crate::receive::{SequenceTracker, SequenceVerdict};
use crate::reception::ReceptionState;
use crate::reorder::Reorder;
use crate::report::{ByeReport, PlayRecord, SequenceReport, TimingReport};
use crate::rtsp::dialogue::PlayReply;
use crate::sender::{Received, SenderReports, SenderWatch};
use crate::sink::SinkWriter;
use crate::verdict::EndPlace;

/// First packet after a sequence jump, held until the next confirms it (RFC 3550 A.1).
#[derive(Default)]
struct ProbationPacket {
    arrival_ns: u64,
    header: Option<RtpHeader>,
    payload: Vec<u8>,
}

/// The PLAY that is running.
#[derive(Default)]
struct Current {
    reply_ns: Option<u64>,
    first_arrival_ns: Option<u64>,
    /// Extended number and timestamp of the lowest packet.
    lowest: Option<(u64, u32)>,
    packets_before: u64,
    /// Where in the title it begins, according to the server.
    range_start: Option<MediaTicks>,
    /// Where it ends, according to the server.
    range_end: Option<MediaTicks>,
    /// How fast it shows the title, according to the server.
    scale: Option<Scale>,
}

/// How payloads are put in order.
enum Order {
    /// Missing packets are waited for.
    Waiting(Reorder),
    /// Missing packets may be repaired.
    Repairing(Box<Window>),
}

impl Order {
    fn begin(&mut self, start: u64, out: &mut SinkWriter) {
        match self {
            Self::Waiting(reorder) => reorder.begin(start, out),
            Self::Repairing(window) => window.begin(start, out),
        }
    }

    /// `false` if its place was given up already.
    fn push(
        &mut self,
        now: Instant,
        ext: u64,
        header: &RtpHeader,
        payload: &[u8],
        out: &mut SinkWriter,
    ) -> bool {
        match self {
            Self::Waiting(reorder) => reorder.push(now, ext, payload, out),
            Self::Repairing(window) => window.media(now, ext, header, payload, out),
        }
    }

    fn poll_at(&self) -> Option<Instant> {
        match self {
            Self::Waiting(reorder) => reorder.poll_at(),
            Self::Repairing(window) => window.poll_at(),
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut SinkWriter) {
        match self {
            Self::Waiting(reorder) => reorder.handle_timeout(now, out),
            Self::Repairing(window) => window.handle_timeout(now, out),
        }
    }

    /// The viewer asked to go on, here or elsewhere (`is_jump`).
    fn between_runs(&mut self, is_jump: bool, out: &mut SinkWriter) {
        match self {
            Self::Waiting(reorder) => reorder.flush(out),
            // Where the title goes on, missing packets may still be repaired.
            Self::Repairing(window) => {
                window.pause();
                if is_jump {
                    window.jump();
                }
            }
        }
    }

    /// Gives out everything: the viewer wants no more.
    fn cut(&mut self, out: &mut SinkWriter) {
        match self {
            Self::Waiting(reorder) => reorder.flush(out),
            Self::Repairing(window) => window.cut(out),
        }
    }

    /// Gives out everything: no more will come.
    fn flush(&mut self, out: &mut SinkWriter) {
        match self {
            Self::Waiting(reorder) => reorder.flush(out),
            Self::Repairing(window) => window.flush(out),
        }
    }

    fn window(&self) -> Option<&Window> {
        match self {
            Self::Waiting(_) => None,
            Self::Repairing(window) => Some(window),
        }
    }
}

/// Receiver of one media stream.
pub(crate) struct MediaReceiver {
    tracker: SequenceTracker,
    order: Order,
    lateness: Lateness,
    watch: SenderWatch,
    sink: SinkWriter,
    payload_type: u8,
    ssrc: Option<u32>,
    next_ssrc: Option<u32>,
    held: ProbationPacket,
    plays: Vec<PlayRecord>,
    current: Current,
    /// Place in the title and timestamp of the first PLAY that had both.
    origin: Option<(MediaTicks, u32)>,
    /// The title has been shown at another speed than the normal one.
    has_been_scaled: bool,
    payload_bytes: u64,
    late: u64,
    malformed: u64,
    /// Time in which packets came, of the runs that are over.
    active_ns: u64,
    span: Option<(u64, u64)>,
    bye_ns: Option<u64>,
    report_at_bye: bool,
    /// Packets of a title whose length was announced.
    announced_packets: Option<u64>,
}

impl MediaReceiver {
    /// `window` packets and `wait_ns` bound the reordering. The payload type is that of MPEG transport streams.
    pub(crate) fn new(sink: SinkWriter, window: usize, wait_ns: u64) -> Self {
        Self {
            tracker: SequenceTracker::default(),
            order: Order::Waiting(Reorder::new(window, wait_ns)),
            lateness: Lateness::default(),
            watch: SenderWatch::default(),
            sink,
            payload_type: PAYLOAD_TYPE_MP2T,
            ssrc: None,
            next_ssrc: None,
            held: ProbationPacket::default(),
            plays: Vec::new(),
            current: Current::default(),
            origin: None,
            has_been_scaled: false,
            payload_bytes: 0,
            late: 0,
            malformed: 0,
            active_ns: 0,
            span: None,
            bye_ns: None,
            report_at_bye: false,
            announced_packets: None,
        }
    }

    /// The whole title was to come, and has this many packets.
    pub(crate) fn expect_packets(&mut self, packets: u64) {
        self.announced_packets = Some(packets);
    }

    /// The description names another payload type.
    pub(crate) fn set_payload_type(&mut self, payload_type: u8) {
        self.payload_type = payload_type;
    }

    /// Prepares for FEC: lost packets are repaired, by XOR and by the code of this shape if there
    /// is one. Missing packets are given up when nothing has come for `wait_ns`. Must be called
    /// before any media.
    pub(crate) fn repair(&mut self, wait_ns: u64, shape: Option<CodeShape>) {
        self.order = Order::Repairing(Box::new(Window::new(wait_ns, shape)));
    }

    /// PAUSE was answered.
    pub(crate) fn pause(&mut self) {
        if let Order::Repairing(window) = &mut self.order {
            window.pause();
        }
    }

    /// Takes a datagram of an FEC port.
    pub(crate) fn fec(&mut self, now: Instant, datagram: &[u8]) {
        if let Order::Repairing(window) = &mut self.order {
            window.fec(now, datagram, &mut self.sink);
        }
    }

    /// PLAY was answered; its reply was read at wall-clock time `reply_ns`, at most `read_late_ns` after it came.
    pub(crate) fn begin_play(
        &mut self,
        range_asked: Option<String>,
        reply: &PlayReply,
        reply_ns: u64,
        read_late_ns: u64,
    ) {
        let info = reply.rtp_info.as_ref();
        let sequence = info.and_then(|info| info.sequence);
        let is_jump = range_asked.is_some();
        let record = PlayRecord {
            range_asked,
            range_answered: reply.range.map(|range| range.to_string()),
            announced_sequence: sequence,
            announced_timestamp: info.and_then(|info| info.timestamp),
            reply_read_late_us: read_late_ns / 1000,
            ..PlayRecord::default()
        };
        let before_the_reply = self.plays.is_empty() && self.tracker.has_run();
        if before_the_reply {
            if let Some(sequence) = sequence {
                self.tracker.announce(sequence);
            }
        } else {
            self.close_play();
            self.order.between_runs(is_jump, &mut self.sink);
            self.tracker.begin_run(sequence);
            self.current.packets_before = self.tracker.counts().received;
        }
        self.current.reply_ns = Some(reply_ns);
        self.current.range_start = reply.range.and_then(|range| range.start);
        self.current.range_end = reply.range.and_then(|range| range.end);
        self.current.scale = Some(reply.scale());
        self.has_been_scaled |= !reply.scale().is_normal();
        self.bye_ns = None;
        if self.plays.len() < MAX_PLAYS {
            self.plays.push(record);
        }
    }

    /// Writes the facts known about the running PLAY into its record.
    fn close_play(&mut self) {
        self.close_span();
        let current = std::mem::take(&mut self.current);
        let received = self.tracker.counts().received;
        let Some(play) = self.plays.last_mut() else { return };
        play.packets = received - current.packets_before;
        play.first_sequence = current.lowest.map(|(ext, _)| ext as u16);
        play.first_timestamp = current.lowest.map(|(_, timestamp)| timestamp);
        let same = |announced: Option<u32>, first: Option<u32>| announced.is_none() || announced == first;
        let announced = play.announced_sequence.is_some() || play.announced_timestamp.is_some();
        play.rtp_info_exact = (announced && current.lowest.is_some()).then(|| {
            same(play.announced_sequence.map(u32::from), play.first_sequence.map(u32::from))
                && same(play.announced_timestamp, play.first_timestamp)
        });
        let delay = |(first, reply): (u64, u64)| (i128::from(first) - i128::from(reply)) / 1000;
        // Behind another speed timestamps and places in the title have parted.
        if let Some((start, (_, timestamp))) =
            current.range_start.zip(current.lowest).filter(|_| !self.has_been_scaled)
        {
            let (start_0, timestamp_0) = *self.origin.get_or_insert((start, timestamp));
            let by_timestamps = i64::from(timestamp.wrapping_sub(timestamp_0).cast_signed());
            let by_ranges = start.0.cast_signed() - start_0.0.cast_signed();
            play.range_error_us = Some((by_timestamps - by_ranges) * 100 / 9);
        }
        play.first_packet_us = current.first_arrival_ns.zip(current.reply_ns).map(delay).map(|us| us as i64);
    }

    fn close_span(&mut self) {
        if let Some((first, last)) = self.span.take() {
            self.active_ns += last.saturating_sub(first);
        }
    }

    /// Takes a datagram of the RTP port or channel. `now` is for the reordering wait only.
    pub(crate) fn rtp(&mut self, now: Instant, arrival_ns: u64, datagram: &[u8]) {
        let Some((header, payload)) =
            RtpHeader::parse(datagram).filter(|(h, _)| h.payload_type == self.payload_type)
        else {
            self.malformed += 1;
            return;
        };
        if !self.is_ours(header.ssrc) {
            return;
        }
        match self.tracker.observe(header.sequence) {
            SequenceVerdict::Duplicate => {}
            SequenceVerdict::Stray => {
                self.held.arrival_ns = arrival_ns;
                self.held.header = Some(header);
                self.held.payload.clear();
                self.held.payload.extend_from_slice(payload);
            }
            SequenceVerdict::Next { ext, starts_run, .. } => {
                self.begin_run_if(starts_run);
                self.accept(now, ext, arrival_ns, &header, payload);
            }
            SequenceVerdict::Reordered { ext } => self.accept(now, ext, arrival_ns, &header, payload),
            SequenceVerdict::Confirmed { ext, starts_run, .. } => {
                self.begin_run_if(starts_run);
                let held = std::mem::take(&mut self.held);
                if let Some(header) = &held.header {
                    self.accept(now, ext - 1, held.arrival_ns, header, &held.payload);
                }
                self.held = held;
                self.accept(now, ext, arrival_ns, &header, payload);
            }
        }
    }

    /// Whether this source is the stream's. Another one takes its place at a PLAY, or with two packets in a row.
    fn is_ours(&mut self, ssrc: u32) -> bool {
        if self.ssrc == Some(ssrc) || !self.tracker.has_run() {
            (self.ssrc, self.next_ssrc) = (Some(ssrc), None);
            return true;
        }
        let is_second = self.next_ssrc.replace(ssrc) == Some(ssrc);
        if is_second {
            (self.ssrc, self.next_ssrc) = (Some(ssrc), None);
            self.tracker.begin_run(None);
        } else {
            self.malformed += 1;
        }
        is_second
    }

    fn begin_run_if(&mut self, starts_run: bool) {
        if starts_run {
            self.close_span();
            self.lateness.begin_run();
            self.watch.begin_run();
            let start = self.tracker.run_start().unwrap_or_default();
            self.order.begin(start, &mut self.sink);
            self.sink.begin_run();
        }
    }

    fn accept(&mut self, now: Instant, ext: u64, arrival_ns: u64, header: &RtpHeader, payload: &[u8]) {
        let timestamp = header.timestamp;
        self.payload_bytes += payload.len() as u64;
        self.lateness.observe(arrival_ns, timestamp);
        let span = self.span.get_or_insert((arrival_ns, arrival_ns));
        span.1 = span.1.max(arrival_ns);
        let current = &mut self.current;
        current.first_arrival_ns.get_or_insert(arrival_ns);
        if current.lowest.is_none_or(|(lowest, _)| ext < lowest) {
            current.lowest = Some((ext, timestamp));
        }
        if !self.order.push(now, ext, header, payload, &mut self.sink) {
            self.late += 1;
        }
    }

    /// Takes a datagram of the RTCP port or channel.
    pub(crate) fn rtcp(&mut self, arrival_ns: u64, datagram: &[u8]) {
        let mut packets = 0;
        let mut reported = false;
        for packet in rtcp::parse(datagram) {
            packets += 1;
            match packet {
                RtcpPacket::SenderReport(report) if self.ssrc.is_none_or(|ssrc| ssrc == report.ssrc) => {
                    reported = true;
                    let counts = self.tracker.counts();
                    let missing = counts.lost + counts.lost_at_start;
                    // A viewer that repairs may not have been sent all that is missing.
                    let unsent = report.packets.wrapping_sub(counts.received as u32).cast_signed().max(0);
                    let sent = self
                        .order
                        .window()
                        .map_or(missing, |_| missing.min(u64::from(unsent.unsigned_abs())));
                    let received = Received {
                        packets: counts.received,
                        lost: sent,
                        payload_bytes: self.payload_bytes,
                        clock: self.lateness.clock(),
                        baseline_ns: self.lateness.baseline_ns(),
                    };
                    self.watch.handle(&report, received);
                }
                RtcpPacket::Bye { ssrc } if ssrc.is_none() || self.ssrc.is_none() || ssrc == self.ssrc => {
                    self.bye_ns.get_or_insert(arrival_ns);
                    self.report_at_bye = reported;
                }
                _ => {}
            }
        }
        if packets == 0 {
            self.malformed += 1;
        }
    }

    /// When [`Self::turn`] has something to do.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        [self.order.poll_at(), self.sink.poll_at()].into_iter().flatten().min()
    }

    /// To be called once a turn of the loop.
    pub(crate) fn turn(&mut self, now: Instant) {
        self.order.handle_timeout(now, &mut self.sink);
        self.sink.turn(now);
    }

    /// Block of a receiver report for now.
    pub(crate) fn report_block(&mut self) -> Option<ReportBlock> {
        let ssrc = self.ssrc?;
        let counts = self.tracker.counts();
        // RFC 3550 section 6.4.1: duplicates count as received, so the number may be negative.
        let lost = i64::try_from(counts.lost).unwrap_or(i64::MAX);
        let duplicates = i64::try_from(counts.duplicates).unwrap_or(i64::MAX);
        Some(
            ReceptionState {
                ssrc,
                fraction_lost: self.tracker.fraction_lost(),
                lost: lost.saturating_sub(duplicates),
                highest_sequence: self.tracker.highest_for_report(),
                jitter_ns: self.lateness.clock().jitter_ns(),
                clock_hz: MEDIA_HZ as u32,
            }
            .report_block(),
        )
    }

    /// Different packets received.
    pub(crate) fn packets(&self) -> u64 {
        self.tracker.counts().received
    }

    /// Returns the packets lost to date; with FEC, those that were given up.
    pub(crate) fn lost(&self) -> u64 {
        self.order.window().map_or_else(|| self.tracker.counts().lost, |window| window.counts().lost)
    }

    /// Payload of the packets received.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// The sink, unused, if nothing was ever received.
    pub(crate) fn into_sink(self) -> SinkWriter {
        self.sink
    }

    /// Media time since the start of the run.
    pub(crate) fn media_ns(&self) -> i64 {
        self.lateness.clock().media_ns()
    }

    /// Whether the source has sent BYE since the last PLAY.
    pub(crate) fn has_bye(&self) -> bool {
        self.bye_ns.is_some()
    }

    /// The sink.
    pub(crate) fn sink(&self) -> &SinkWriter {
        &self.sink
    }

    /// Where the running PLAY is.
    fn place(&self) -> EndPlace {
        let us = |at: MediaTicks| at.to_ns() / 1000;
        let run_us = u64::try_from(self.lateness.clock().media_ns() / 1000).unwrap_or(0);
        let scale = self.current.scale.unwrap_or(Scale::NORMAL);
        let shown_us = run_us.saturating_mul(scale.speed_hundredths().into()) / 100;
        let start_us = self.current.range_start.map(us);
        let has_media = self.current.lowest.is_some();
        let reached = |start: u64| {
            if scale.is_reverse() { start.saturating_sub(shown_us) } else { start.saturating_add(shown_us) }
        };
        EndPlace {
            start_us,
            reached_us: start_us.filter(|_| has_media).map(reached),
            announced_us: self.current.range_end.map(us),
            scale_hundredths: self.current.scale.map(Scale::hundredths),
        }
    }

    /// Ends the reception: everything that waits goes to the sink. `is_over`: nothing more would have come.
    pub(crate) fn finish(mut self, is_over: bool) -> (MediaReport, SinkWriter) {
        if is_over {
            self.order.flush(&mut self.sink);
        } else {
            self.order.cut(&mut self.sink);
        }
        let last_ns = self.lateness.clock().last_arrival_ns();
        let after =
            |bye: u64| last_ns.map(|last| (bye.cast_signed().wrapping_sub(last.cast_signed())) / 1000);
        let bye = self.bye_ns.map(|bye| ByeReport { after_last_packet_us: after(bye) });
        let place = self.place();
        self.close_play();
        let counts = self.tracker.counts();
        let senders = self.watch.reports();
        let repair = self.order.window().map(|window| RepairCounts {
            lost_on_the_way: counts.lost + counts.lost_at_start,
            fec: window.counts(),
        });
        // Negative: the report was made before packets that came before it.
        let uncounted = senders.last_difference.max(0).unsigned_abs();
        let at_end = uncounted.saturating_sub(self.order.window().map_or(0, Window::behind_last));
        let sequence = SequenceReport {
            lost: repair.map_or(counts.lost, |repair| repair.fec.lost),
            lost_at_start: if repair.is_some() { 0 } else { counts.lost_at_start },
            lost_at_end: self
                .announced_packets
                .map(|packets| packets.saturating_sub(counts.received + counts.lost + counts.lost_at_start))
                .or_else(|| self.report_at_bye.then_some(at_end)),
            reordered: counts.reordered,
            late: self.late,
            duplicates: counts.duplicates,
            strays: counts.strays,
            restarts: counts.restarts,
        };
        let clock = self.lateness.clock();
        let timing = TimingReport {
            lateness: self.lateness.summary(),
            jitter_us: clock.jitter_ns() / 1000,
            jitter_max_us: clock.jitter_max_ns() / 1000,
            longest_gap_us: self.lateness.longest_gap_ns() / 1000,
            kernel_stamps: false,
        };
        let exact: Vec<bool> = self.plays.iter().filter_map(|play| play.rtp_info_exact).collect();
        let report = MediaReport {
            packets: counts.received,
            payload_bytes: self.payload_bytes,
            active_ns: self.active_ns,
            sequence,
            timing,
            rtp_info_exact: (!exact.is_empty()).then(|| exact.iter().all(|exact| *exact)),
            plays: self.plays,
            place,
            bye,
            senders,
            malformed: self.malformed,
            repair,
        };
        (report, self.sink)
    }
}

/// What FEC did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepairCounts {
    /// Packets that did not come, or were never sent.
    pub(crate) lost_on_the_way: u64,
    pub(crate) fec: FecCounts,
}

/// What [`MediaReceiver`] found.
pub(crate) struct MediaReport {
    pub(crate) packets: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) active_ns: u64,
    pub(crate) sequence: SequenceReport,
    pub(crate) timing: TimingReport,
    pub(crate) rtp_info_exact: Option<bool>,
    pub(crate) plays: Vec<PlayRecord>,
    pub(crate) place: EndPlace,
    pub(crate) bye: Option<ByeReport>,
    pub(crate) senders: SenderReports,
    pub(crate) malformed: u64,
    pub(crate) repair: Option<RepairCounts>,
}

#[cfg(test)]
#[path = "media_tests.rs"]
mod tests;
