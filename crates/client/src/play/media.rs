//! What becomes of RTP and RTCP packets, whichever way they came: counted, timed, put in order, handed to the sink.

use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtcp::{self, ReportBlock, RtcpPacket};
use millrace_core::wire::rtp::{PAYLOAD_TYPE_MP2T, RtpHeader};

use crate::lateness::Lateness;
use crate::receive::{SequenceTracker, Verdict};
use crate::reorder::Reorder;
use crate::report::{ByeReport, PlayRecord, SequenceReport, TimingReport};
use crate::rtsp::dialogue::PlayReply;
use crate::sender::{Received, SenderReports, SenderWatch};
use crate::sink::SinkWriter;

/// PLAYs that are kept one by one in the report.
const MAX_PLAYS: usize = 10_000;

/// A packet that may turn out to belong to the stream when its follower comes.
#[derive(Default)]
struct Held {
    arrival_ns: u64,
    timestamp: u32,
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
    /// Where in the film it begins, says the server.
    range_start: Option<MediaTicks>,
}

/// One stream of media.
pub(crate) struct Media {
    tracker: SequenceTracker,
    reorder: Reorder,
    lateness: Lateness,
    watch: SenderWatch,
    sink: SinkWriter,
    payload_type: u8,
    ssrc: Option<u32>,
    next_ssrc: Option<u32>,
    held: Held,
    plays: Vec<PlayRecord>,
    current: Current,
    /// Place in the film and timestamp of the first PLAY that had both.
    origin: Option<(MediaTicks, u32)>,
    payload_bytes: u64,
    late: u64,
    malformed: u64,
    /// Time in which packets came, of the runs that are over.
    active_ns: u64,
    span: Option<(u64, u64)>,
    bye_ns: Option<u64>,
    report_at_bye: bool,
}

impl Media {
    /// `window` packets and `wait_ns` bound the reordering. The payload type is that of MPEG transport streams.
    pub(crate) fn new(sink: SinkWriter, window: usize, wait_ns: u64) -> Self {
        Self {
            tracker: SequenceTracker::default(),
            reorder: Reorder::new(window, wait_ns),
            lateness: Lateness::default(),
            watch: SenderWatch::default(),
            sink,
            payload_type: PAYLOAD_TYPE_MP2T,
            ssrc: None,
            next_ssrc: None,
            held: Held::default(),
            plays: Vec::new(),
            current: Current::default(),
            origin: None,
            payload_bytes: 0,
            late: 0,
            malformed: 0,
            active_ns: 0,
            span: None,
            bye_ns: None,
            report_at_bye: false,
        }
    }

    /// The description names another payload type.
    pub(crate) fn set_payload_type(&mut self, payload_type: u8) {
        self.payload_type = payload_type;
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
            self.reorder.flush(&mut self.sink);
            self.tracker.begin_run(sequence);
            self.current.packets_before = self.tracker.counts().received;
        }
        self.current.reply_ns = Some(reply_ns);
        self.current.range_start = reply.range.and_then(|range| range.start);
        self.bye_ns = None;
        if self.plays.len() < MAX_PLAYS {
            self.plays.push(record);
        }
    }

    /// Writes what is known of the running PLAY into its record.
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
        if let Some((start, (_, timestamp))) = current.range_start.zip(current.lowest) {
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
            Verdict::Duplicate => {}
            Verdict::Stray => {
                self.held.arrival_ns = arrival_ns;
                self.held.timestamp = header.timestamp;
                self.held.payload.clear();
                self.held.payload.extend_from_slice(payload);
            }
            Verdict::Next { ext, starts_run, .. } => {
                self.begin_run_if(starts_run);
                self.accept(now, ext, arrival_ns, header.timestamp, payload);
            }
            Verdict::Reordered { ext } => self.accept(now, ext, arrival_ns, header.timestamp, payload),
            Verdict::Confirmed { ext, starts_run, .. } => {
                self.begin_run_if(starts_run);
                let held = std::mem::take(&mut self.held);
                self.accept(now, ext - 1, held.arrival_ns, held.timestamp, &held.payload);
                self.held = held;
                self.accept(now, ext, arrival_ns, header.timestamp, payload);
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
            self.reorder.begin(start, &mut self.sink);
            self.sink.begin_run();
        }
    }

    fn accept(&mut self, now: Instant, ext: u64, arrival_ns: u64, timestamp: u32, payload: &[u8]) {
        self.payload_bytes += payload.len() as u64;
        self.lateness.observe(arrival_ns, timestamp);
        let span = self.span.get_or_insert((arrival_ns, arrival_ns));
        span.1 = span.1.max(arrival_ns);
        let current = &mut self.current;
        current.first_arrival_ns.get_or_insert(arrival_ns);
        if current.lowest.is_none_or(|(lowest, _)| ext < lowest) {
            current.lowest = Some((ext, timestamp));
        }
        if !self.reorder.push(now, ext, payload, &mut self.sink) {
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
                    let received = Received {
                        packets: counts.received,
                        lost: counts.lost + counts.lost_at_start,
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
        [self.reorder.poll_at(), self.sink.poll_at()].into_iter().flatten().min()
    }

    /// To be called once a turn of the loop.
    pub(crate) fn turn(&mut self, now: Instant) {
        self.reorder.handle_timeout(now, &mut self.sink);
        self.sink.turn(now);
    }

    /// Block of a receiver report for now.
    pub(crate) fn report_block(&mut self) -> Option<ReportBlock> {
        let ssrc = self.ssrc?;
        let counts = self.tracker.counts();
        // RFC 3550 section 6.4.1: duplicates count as received, so the number may be negative.
        let lost = i64::try_from(counts.lost).unwrap_or(i64::MAX);
        let duplicates = i64::try_from(counts.duplicates).unwrap_or(i64::MAX);
        let jitter_ticks = self.lateness.clock().jitter_ns() * 9 / 100_000;
        Some(ReportBlock {
            ssrc,
            fraction_lost: self.tracker.fraction_lost(),
            cumulative_lost: lost.saturating_sub(duplicates).clamp(-0x80_0000, 0x7f_ffff) as i32,
            highest_sequence: self.tracker.highest_for_report(),
            jitter: u32::try_from(jitter_ticks).unwrap_or(u32::MAX),
        })
    }

    /// Different packets received.
    pub(crate) fn packets(&self) -> u64 {
        self.tracker.counts().received
    }

    /// Packets lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.tracker.counts().lost
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

    /// Whether the source said goodbye since the last PLAY.
    pub(crate) fn has_bye(&self) -> bool {
        self.bye_ns.is_some()
    }

    /// The sink.
    pub(crate) fn sink(&self) -> &SinkWriter {
        &self.sink
    }

    /// Ends the reception: everything that waits goes to the sink.
    pub(crate) fn finish(mut self) -> (MediaReport, SinkWriter) {
        self.reorder.flush(&mut self.sink);
        let last_ns = self.lateness.clock().last_arrival_ns();
        let after =
            |bye: u64| last_ns.map(|last| (bye.cast_signed().wrapping_sub(last.cast_signed())) / 1000);
        let bye = self.bye_ns.map(|bye| ByeReport { after_last_packet_us: after(bye) });
        self.close_play();
        let counts = self.tracker.counts();
        let senders = self.watch.reports();
        let sequence = SequenceReport {
            lost: counts.lost,
            lost_at_start: counts.lost_at_start,
            lost_at_end: self.report_at_bye.then_some(senders.last_difference),
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
            bye,
            senders,
            malformed: self.malformed,
        };
        (report, self.sink)
    }
}

/// What [`Media`] found.
pub(crate) struct MediaReport {
    pub(crate) packets: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) active_ns: u64,
    pub(crate) sequence: SequenceReport,
    pub(crate) timing: TimingReport,
    pub(crate) rtp_info_exact: Option<bool>,
    pub(crate) plays: Vec<PlayRecord>,
    pub(crate) bye: Option<ByeReport>,
    pub(crate) senders: SenderReports,
    pub(crate) malformed: u64,
}

#[cfg(test)]
#[path = "media_tests.rs"]
mod tests;
