//! How a session ends: goodbye to the server, then the report.

use std::time::Duration;

use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::units::BitRate;
use rustix::event::{PollFd, PollFlags};

use super::{MAX_WAIT_NS, Path, Session};
use crate::error::ClientError;
use crate::fec::{FecChoice, FecGrant};
use crate::net::{Inlet, ReadState};
use crate::play::connect::wait;
use crate::play::media::RepairCounts;
use crate::procfs::{UdpErrors, socket_drops};
use crate::report::{EndReason, FecReport, Report};
use crate::rtsp::framing::{Item, next_item};

/// How long the farewell may take.
const FAREWELL_NS: u64 = 2_000_000_000;
/// How long the output may take for what is left.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(30);

impl Session<'_> {
    /// Says goodbye by RTCP and RTSP and waits a little for the answer; media that still comes is left alone.
    pub(super) fn farewell(&mut self) -> Result<(), ClientError> {
        let deadline = self.clock.now().plus_ns(FAREWELL_NS);
        if self.agenda.playing_since.is_some() {
            self.send_report(true);
        }
        self.dialogue.teardown(self.clock.now());
        while self.dialogue.session().is_some() && self.dialogue.is_busy() && self.clock.now() < deadline {
            self.write_connection();
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !self.connection.output.is_empty());
            wait(&mut [PollFd::new(&self.connection, flags)], MAX_WAIT_NS)?;
            self.drop_media_until_a_message();
            self.dialogue.handle_timeout(self.clock.now());
        }
        Ok(())
    }

    fn drop_media_until_a_message(&mut self) {
        let state = self.connection.read();
        loop {
            let (message, len) = match next_item(self.connection.pending()) {
                Ok(None) => break,
                Ok(Some((Item::Frame { .. }, len))) => (None, len),
                Ok(Some((Item::Message(message), len))) => (Some(message), len),
                Err(what) => return self.dialogue.handle_garbage(what),
            };
            self.connection.consume(len);
            if let Some(message) = message {
                self.dialogue.handle_message(self.clock.now(), *message);
            }
        }
        if state == ReadState::Closed {
            self.dialogue.handle_closed();
        }
    }

    pub(super) fn report(mut self, ended_at: Instant) -> Result<Report, ClientError> {
        let mut kernel_stamps = false;
        if let Path::Udp(udp) = &self.path {
            kernel_stamps = udp.rtp.has_kernel_stamps();
            let sockets = [&udp.rtp, &udp.rtcp].into_iter().chain(&udp.fec);
            self.receiver.socket_drops = socket_drops(sockets.map(Inlet::socket)).iter().sum();
            self.receiver.malformed = udp.rtp.truncated();
        }
        let errors = UdpErrors::read().since(self.errors_before);
        let transport = if matches!(self.path, Path::Tcp { .. }) { "tcp" } else { "udp" };
        let end = self.end.unwrap_or(EndReason::Cancelled);
        let (media, sink) = self.media.finish(end.is_of_the_stream());
        let sink = sink.finish(OUTPUT_PATIENCE)?;
        self.receiver.checksum_errors = errors.checksum;
        self.receiver.buffer_errors = errors.buffer;
        self.receiver.malformed += media.malformed;
        self.receiver.output_full_ms = self.output_full_ns / 1_000_000;
        self.receiver.written_bytes = sink.written;
        let mut report = Report {
            url: self.url.to_string(),
            title: self.title,
            transport,
            fallback: self.way.fallback,
            end: if sink.reader_gone { EndReason::OutputClosed } else { end },
            duration_ms: self.agenda.playing_since.map_or(0, |since| ended_at.ns_since(since) / 1_000_000),
            packets: media.packets,
            payload_bytes: media.payload_bytes,
            mean_rate_bits_per_s: BitRate::of(media.payload_bytes, media.active_ns).0,
            sequence: media.sequence,
            fec: fec_report(self.options.fec, &self.granted, media.repair),
            timing: media.timing,
            rtp_info_exact: media.rtp_info_exact,
            plays: media.plays,
            bye: media.bye,
            sender_reports: media.senders,
            ts: sink.ts,
            byte_check: sink.byte_check,
            receiver: self.receiver,
            problems: Vec::new(),
        };
        report.timing.kernel_stamps = kernel_stamps;
        report.judge();
        Ok(report)
    }
}

/// What FEC did, if it was asked for.
pub(crate) fn fec_report(
    asked: FecChoice,
    granted: &FecGrant,
    repair: Option<RepairCounts>,
) -> Option<FecReport> {
    (asked != FecChoice::Off).then(|| FecReport {
        asked: asked.to_string(),
        granted: granted.choice.to_string(),
        reason: granted.reason.clone(),
        lost_on_the_way: repair.map_or(0, |repair| repair.lost_on_the_way),
        counts: repair.map(|repair| repair.fec).unwrap_or_default(),
    })
}
