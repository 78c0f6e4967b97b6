//! The report of a reception, the same for all that can be played.

use millrace_core::units::BitRate;

use super::media::{MediaReceiver, RepairCounts};
use crate::error::ClientError;
use crate::fec::{FecChoice, FecGrant};
use crate::limits::OUTPUT_TIMEOUT;
use crate::net::Inlet;
use crate::procfs::{UdpErrors, socket_drops};
use crate::report::{EndReason, FecReport, ReceiverReport, ReceptionReport, TsCounts};

/// The facts known when nothing more is received.
pub(super) struct Summary {
    pub(super) url: String,
    /// Its name in the description; empty without one.
    pub(super) title: String,
    /// `udp` or `tcp`.
    pub(super) transport: &'static str,
    /// Why it is not the first choice.
    pub(super) fallback: Option<String>,
    pub(super) end: EndReason,
    /// From the beginning to the end.
    pub(super) lasted_ns: u64,
    pub(super) asked: FecChoice,
    /// Whether the transport stream's own faults are reported.
    pub(super) analyse: bool,
    pub(super) granted: FecGrant,
    pub(super) media: MediaReceiver,
    /// The server's answers to requests for another rendition.
    pub(super) renditions: Vec<String>,
    /// Counts made during the reception.
    pub(super) receiver: ReceiverReport,
    /// Facts about the media's socket; nothing over TCP.
    pub(super) socket: SocketFacts,
    /// The kernel's errors at the beginning.
    pub(super) errors_before: UdpErrors,
    /// Time in which the output was full.
    pub(super) output_full_ns: u64,
}

/// What sockets say before they are closed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SocketFacts {
    kernel_stamps: bool,
    truncated: u64,
    drops: u64,
}

impl SocketFacts {
    /// Reads the facts of the media's socket, and the drops at it and at the others.
    pub(super) fn of<'a>(rtp: &'a Inlet, others: impl Iterator<Item = &'a Inlet>) -> Self {
        Self {
            kernel_stamps: rtp.has_kernel_stamps(),
            truncated: rtp.truncated(),
            drops: socket_drops([rtp].into_iter().chain(others).map(Inlet::socket)).iter().sum(),
        }
    }
}

impl Summary {
    /// Ends the output and reports on the reception.
    ///
    /// # Errors
    /// If the output does not take the remaining data.
    pub(super) fn report(self) -> Result<ReceptionReport, ClientError> {
        let Self { media, socket, end, mut receiver, .. } = self;
        let errors = UdpErrors::read().since(self.errors_before);
        let (media, sink) = media.finish(end.is_of_the_stream());
        let sink = sink.finish(OUTPUT_TIMEOUT)?;
        receiver.socket_drops = socket.drops;
        receiver.malformed += socket.truncated + media.malformed;
        receiver.checksum_errors = errors.checksum;
        receiver.buffer_errors = errors.buffer;
        receiver.output_full_ms = self.output_full_ns / 1_000_000;
        receiver.written_bytes = sink.written;
        let mut report = ReceptionReport {
            url: self.url,
            title: self.title,
            transport: self.transport,
            fallback: self.fallback,
            end: if sink.reader_gone { EndReason::OutputClosed } else { end },
            place: media.place,
            duration_ms: self.lasted_ns / 1_000_000,
            packets: media.packets,
            payload_bytes: media.payload_bytes,
            mean_rate_bits_per_s: BitRate::of(media.payload_bytes, media.active_ns).0,
            sequence: media.sequence,
            fec: fec_report(self.asked, &self.granted, media.repair),
            timing: media.timing,
            rtp_info_exact: media.rtp_info_exact,
            plays: media.plays,
            renditions: self.renditions,
            bye: media.bye,
            sender_reports: media.senders,
            ts: TsCounts::of(&sink.analysis, sink.odd_payloads),
            analysis: self.analyse.then_some(sink.analysis),
            byte_check: sink.byte_check,
            receiver,
            problems: Vec::new(),
        };
        report.timing.kernel_stamps = socket.kernel_stamps;
        report.judge();
        Ok(report)
    }
}

/// What FEC did, if it was asked for.
fn fec_report(asked: FecChoice, granted: &FecGrant, repair: Option<RepairCounts>) -> Option<FecReport> {
    (asked != FecChoice::Off).then(|| FecReport {
        asked: asked.to_string(),
        granted: granted.choice.to_string(),
        reason: granted.reason.clone(),
        lost_on_the_way: repair.map_or(0, |repair| repair.lost_on_the_way),
        counts: repair.map(|repair| repair.fec).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use millrace_core::time::Instant;

    use super::*;
    use crate::sink::{Output, SinkWriter};

    fn summary(end: EndReason, asked: FecChoice) -> Summary {
        let sink = SinkWriter::start(&Output::Null, None).unwrap();
        Summary {
            url: "rtp://@:5004".to_owned(),
            title: String::new(),
            transport: "udp",
            fallback: None,
            end,
            lasted_ns: 2_500_000_000,
            asked,
            analyse: false,
            granted: FecGrant {
                choice: FecChoice::Off,
                reason: Some("no parity".to_owned()),
                ..FecGrant::default()
            },
            renditions: Vec::new(),
            media: MediaReceiver::new(sink, 64, 1000),
            receiver: ReceiverReport { malformed: 2, foreign: 3, ..ReceiverReport::default() },
            socket: SocketFacts { kernel_stamps: true, truncated: 5, drops: 7 },
            errors_before: UdpErrors::read(),
            output_full_ns: 30_000_000,
        }
    }

    #[test]
    fn summary_report_includes_all_counters() {
        let mut summary = summary(EndReason::Bye, FecChoice::All);
        summary.media.rtp(Instant(0), 1, b"not RTP");
        let report = summary.report().unwrap();
        let r = &report.receiver;
        assert_eq!((r.malformed, r.socket_drops, r.foreign, r.output_full_ms), (8, 7, 3, 30));
        assert_eq!((report.duration_ms, report.timing.kernel_stamps), (2500, true));
        let fec = report.fec.as_ref().unwrap();
        assert_eq!((&*fec.asked, &*fec.granted, fec.reason.as_deref()), ("all", "off", Some("no parity")));
        for problem in ["no packet came", "no FEC: no parity", "this receiver dropped 7 datagrams"] {
            assert!(report.problems.iter().any(|said| said == problem), "{problem}: {:?}", report.problems);
        }
    }

    #[test]
    fn summary_without_fec_omits_fec_report() {
        assert_eq!(summary(EndReason::Duration, FecChoice::Off).report().unwrap().fec, None);
    }
}
