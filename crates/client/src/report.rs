//! The findings of a reception, as a table for people and as JSON in one stable form.
//!
//! A load reports sums over thousands of sessions (`crates/load/src/report.rs`), which have other fields; figures are
//! printed by the same functions.

use std::fmt;

use millrace_core::units::BitRate;
use millrace_ts::Check;
use serde::Serialize;

use crate::fec::FecCounts;
use crate::lateness::LatenessSummary;
use crate::limits::{MAX_CLOCK_ERROR_US, MAX_REPORT_DIFFERENCE, MIN_BYE_US, MIN_FIRST_PACKET_US};
use crate::sender::SenderReports;
use crate::verdict::EndPlace;
use crate::verify::ByteCheck;

/// Why a reception ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The server sent an RTCP BYE: the end of the title.
    Bye,
    /// All of a title whose length was announced was played.
    Complete,
    /// The time asked for was over.
    Duration,
    /// No packet came for the time allowed.
    Silence,
    /// The server closed the RTSP connection.
    ServerClosed,
    /// The reader of standard output went away.
    OutputClosed,
    /// The user ended it.
    Cancelled,
}

impl EndReason {
    /// Whether the stream ended, rather than who received it.
    pub(crate) fn is_of_the_stream(self) -> bool {
        matches!(self, Self::Bye | Self::Complete | Self::Silence | Self::ServerClosed)
    }
}

/// Sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SequenceReport {
    /// Packets missing between the first and the last of a run; with FEC, those that were not repaired, wherever they were.
    pub lost: u64,
    /// Packets missing between the start that RTP-Info announced and the first that came; 0 with FEC, which counts them in `lost`.
    pub lost_at_start: u64,
    /// Packets that the last sender report counts beyond those received and lost; `None` without a final report.
    pub lost_at_end: Option<u64>,
    /// Packets that came after one with a higher number.
    pub reordered: u64,
    /// Of those, packets that came after the reordering window had given them up: missing in the output.
    pub late: u64,
    /// Packets that came again.
    pub duplicates: u64,
    /// Packets of an earlier run, or from nowhere.
    pub strays: u64,
    /// Runs that began without a PLAY.
    pub restarts: u64,
}

/// Time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimingReport {
    /// Arrival against media time.
    pub lateness: LatenessSummary,
    /// Interarrival jitter at the end (RFC 3550).
    pub jitter_us: u64,
    /// The largest it was.
    pub jitter_max_us: u64,
    /// Longest time between two packets while playing.
    pub longest_gap_us: u64,
    /// Whether the kernel stamped every arrival; otherwise this process did, on reading.
    pub kernel_stamps: bool,
}

/// One PLAY.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlayRecord {
    /// `Range` asked for.
    pub range_asked: Option<String>,
    /// `Range` answered.
    pub range_answered: Option<String>,
    /// `seq` of RTP-Info.
    pub announced_sequence: Option<u16>,
    /// `rtptime` of RTP-Info.
    pub announced_timestamp: Option<u32>,
    /// Lowest sequence number that came.
    pub first_sequence: Option<u16>,
    /// Its RTP timestamp.
    pub first_timestamp: Option<u32>,
    /// Whether announced and first are the same; `None` if nothing was announced or nothing came.
    pub rtp_info_exact: Option<bool>,
    /// From the reply to PLAY to the first packet; negative if it came before the reply.
    pub first_packet_us: Option<i64>,
    /// How much later the reply may have been read than it arrived, because this process waited for
    /// a processor: the time above is too short by at most this.
    pub reply_read_late_us: u64,
    /// Media time from the first PLAY's first packet to this one's by RTP timestamp, less the same by answered ranges:
    /// about 0 for a server with one timeline for the whole title. `None` without ranges.
    pub range_error_us: Option<i64>,
    /// Packets received.
    pub packets: u64,
}

/// The end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ByeReport {
    /// From the last packet to the BYE; `None` if there was no packet.
    pub after_last_packet_us: Option<i64>,
}

/// Forward error correction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FecReport {
    /// The request: `xor` or `all`.
    pub asked: String,
    /// The result: `off`, `xor` or `all`.
    pub granted: String,
    /// The reason for a refusal, if the server gives one.
    pub reason: Option<String>,
    /// Packets that did not come by themselves, between the start that was announced and the last that came.
    pub lost_on_the_way: u64,
    /// What FEC made of it.
    #[serde(flatten)]
    pub counts: FecCounts,
}

/// This receiver itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReceiverReport {
    /// Receive buffer of the RTP socket as the kernel counts it; 0 over TCP.
    pub receive_buffer_bytes: u64,
    /// Datagrams dropped at our own sockets: no room, or a wrong checksum.
    pub socket_drops: u64,
    /// Datagrams with a wrong UDP checksum in this network namespace, from whomever.
    pub checksum_errors: u64,
    /// Datagrams dropped because some receive buffer of this network namespace was full.
    pub buffer_errors: u64,
    /// Packets that are not RTP or RTCP, or of another payload type.
    pub malformed: u64,
    /// Datagrams from another address than the server's; not counted anywhere else.
    pub foreign: u64,
    /// RTCP receiver reports sent.
    pub receiver_reports: u64,
    /// The longest turn of the receiving loop: how late this process may have been.
    pub longest_turn_us: u64,
    /// Time in which the output was full and media was left in the kernel.
    pub output_full_ms: u64,
    /// Bytes written to the output.
    pub written_bytes: u64,
}

/// Whether the transport stream is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TsCounts {
    /// TS packets looked at.
    pub packets: u64,
    /// Packets without the sync byte 0x47.
    pub sync_losses: u64,
    /// Payloads whose length is not a multiple of 188.
    pub odd_payloads: u64,
    /// Continuity counters that do not follow although no RTP packet is missing: the sender's data is at fault.
    pub continuity_errors: u64,
    /// Continuity counters that do not follow across missing RTP packets or a seek.
    pub continuity_breaks_at_gaps: u64,
    /// Packets with transport_error_indicator.
    pub marked_errors: u64,
    /// Different PIDs, stuffing not counted.
    pub pids: u32,
}

impl TsCounts {
    /// Takes the counts from an analysis.
    pub(crate) fn of(analysis: &millrace_ts::AnalysisReport, odd_payloads: u64) -> Self {
        Self {
            packets: analysis.packets,
            sync_losses: analysis.count(Check::SyncByte),
            odd_payloads,
            continuity_errors: analysis.count(Check::Continuity),
            continuity_breaks_at_gaps: analysis.breaks_at_gaps,
            marked_errors: analysis.count(Check::TransportError),
            pids: analysis.pids.iter().filter(|pid| pid.packets > 0).count() as u32,
        }
    }
}

/// Everything about one reception.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReceptionReport {
    /// The title.
    pub url: String,
    /// Its name in the description.
    pub title: String,
    /// `udp` or `tcp`.
    pub transport: &'static str,
    /// Why it is not the first choice.
    pub fallback: Option<String>,
    /// Why it ended.
    pub end: EndReason,
    /// Where in the title that was.
    pub place: EndPlace,
    /// From the reply to the first PLAY to the end.
    pub duration_ms: u64,
    /// Different RTP packets received.
    pub packets: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// Payload over the time in which packets came, pauses taken out.
    pub mean_rate_bits_per_s: u64,
    /// Sequence numbers.
    pub sequence: SequenceReport,
    /// Forward error correction, if it was asked for.
    pub fec: Option<FecReport>,
    /// Time.
    pub timing: TimingReport,
    /// Whether RTP-Info was exact at every PLAY that had one; `None` if none had.
    pub rtp_info_exact: Option<bool>,
    /// Each PLAY.
    pub plays: Vec<PlayRecord>,
    /// The server's answer to each request for another rendition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub renditions: Vec<String>,
    /// The BYE, if one came.
    pub bye: Option<ByeReport>,
    /// Sender reports.
    pub sender_reports: SenderReports,
    /// The transport stream.
    pub ts: TsCounts,
    /// Errors within the transport stream itself, if this check was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<millrace_ts::AnalysisReport>,
    /// Comparison with the reference.
    pub byte_check: Option<ByteCheck>,
    /// This receiver.
    pub receiver: ReceiverReport,
    /// The problems, in words; empty if there are none.
    pub problems: Vec<String>,
}

impl ReceptionReport {
    /// The JSON form: keys in the order of the fields, units in the names.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Fills [`Self::problems`] from the rest.
    pub(crate) fn judge(&mut self) {
        let mut problems = Vec::new();
        let mut check = |wrong: bool, text: String| {
            if wrong {
                problems.push(text);
            }
        };
        let s = &self.sequence;
        check(self.packets == 0, "no packet came".to_owned());
        check(s.lost > 0, format!("{} packets lost", s.lost));
        check(s.lost_at_start > 0, format!("{} packets missing before the first", s.lost_at_start));
        check(
            s.lost_at_end.is_some_and(|n| n > 0),
            format!("{} packets lost at the end", s.lost_at_end.unwrap_or(0)),
        );
        check(s.restarts > 0, format!("sequence numbers jumped {} times", s.restarts));
        check(self.rtp_info_exact == Some(false), "RTP-Info is not that of the first packet".to_owned());
        let latest = |play: &PlayRecord| {
            play.first_packet_us.map(|us| us.saturating_add_unsigned(play.reply_read_late_us))
        };
        let early = self.plays.iter().filter_map(latest).min().unwrap_or(i64::MAX);
        let too_early = self.transport == "tcp" && early < MIN_FIRST_PACKET_US;
        check(too_early, format!("first packet {early} us after the PLAY reply; interleaved needs 20 ms"));
        let bye_us = self.bye.and_then(|bye| bye.after_last_packet_us);
        let soon = bye_us.is_some_and(|us| us < MIN_BYE_US);
        check(
            soon,
            format!("BYE {} ms after the last packet; players need 2.5 s", bye_us.unwrap_or(0) / 1000),
        );
        let silent = self.end == EndReason::Silence && self.packets > 0 && !self.place.is_reverse();
        check(silent, "packets stopped without a BYE".to_owned());
        check(self.end == EndReason::ServerClosed, "the server closed the connection".to_owned());
        self.problems_of_the_end().into_iter().for_each(|problem| check(true, problem));
        let sr = &self.sender_reports;
        let sr_text =
            format!("sender reports differ from reception by up to {} packets", sr.worst_difference);
        check(sr.worst_difference > MAX_REPORT_DIFFERENCE, sr_text);
        let clocks = sr.clock_error_us > MAX_CLOCK_ERROR_US;
        check(clocks, format!("sender reports: NTP and RTP clocks {} us apart", sr.clock_error_us));
        let ts = &self.ts;
        check(ts.sync_losses > 0, format!("{} TS packets without sync byte", ts.sync_losses));
        check(ts.odd_payloads > 0, format!("{} payloads that are no multiple of 188 bytes", ts.odd_payloads));
        check(ts.continuity_errors > 0, format!("{} TS continuity errors", ts.continuity_errors));
        if let Some(faults) = self.analysis.as_ref().map(millrace_ts::AnalysisReport::faults) {
            check(!faults.is_empty(), format!("faults of the transport stream: {faults}"));
        }
        if let Some(bytes) = &self.byte_check {
            check(
                bytes.different_bytes > 0,
                format!("{} bytes differ from the reference", bytes.different_bytes),
            );
            check(
                bytes.unaligned_bytes > 0,
                format!("{} bytes not found in the reference", bytes.unaligned_bytes),
            );
        }
        if let Some(fec) = &self.fec {
            let reason = fec.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
            check(fec.granted == "off", format!("no FEC{reason}"));
            let silent = fec.granted != "off" && fec.counts.fec_packets == 0;
            check(silent && fec.lost_on_the_way > 0, "not one FEC packet came".to_owned());
        }
        let r = &self.receiver;
        check(r.socket_drops > 0, format!("this receiver dropped {} datagrams", r.socket_drops));
        check(r.malformed > 0, format!("{} packets that are not what was agreed", r.malformed));
        self.problems = problems;
    }
}

/// Microseconds for people.
pub fn human_us(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.3} ms", us as f64 / 1e3),
        _ => format!("{:.3} s", us as f64 / 1e6),
    }
}

fn signed_us(us: i64) -> String {
    let sign = if us < 0 { "-" } else { "" };
    format!("{sign}{}", human_us(us.unsigned_abs()))
}

/// One line of a table.
pub fn row(f: &mut fmt::Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    writeln!(f, "{name:<18}{value}")
}

/// Lateness as one line.
pub fn lateness_line(l: &LatenessSummary) -> String {
    let parts = [("p50", l.p50_us), ("p99", l.p99_us), ("p99.9", l.p999_us), ("max", l.max_us)];
    parts.map(|(name, us)| format!("{name} {}", human_us(us))).join(", ")
}

impl fmt::Display for ReceptionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "title", &format!("{} ({})", self.url, self.title))?;
        let fallback = self.fallback.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
        row(f, "transport", &format!("{}{fallback}", self.transport))?;
        row(
            f,
            "end",
            &format!("{:?} after {:.3} s", self.end, self.duration_ms as f64 / 1e3).to_lowercase(),
        )?;
        let rate = BitRate(self.mean_rate_bits_per_s);
        row(f, "received", &format!("{} packets, {} bytes, {rate}", self.packets, self.payload_bytes))?;
        let s = &self.sequence;
        let at_end = s.lost_at_end.map_or("?".to_owned(), |lost| lost.to_string());
        row(f, "lost", &format!("{} (at start {}, at end {at_end})", s.lost, s.lost_at_start))?;
        let order = format!("{} reordered ({} too late), {} duplicate", s.reordered, s.late, s.duplicates);
        row(f, "order", &format!("{order}, {} stray, {} restarts", s.strays, s.restarts))?;
        self.fmt_fec(f)?;
        let t = &self.timing;
        let stamps = if t.kernel_stamps { "kernel stamps" } else { "stamped on reading" };
        row(f, "lateness", &format!("{} ({stamps})", lateness_line(&t.lateness)))?;
        row(f, "jitter", &format!("{} (max {})", human_us(t.jitter_us), human_us(t.jitter_max_us)))?;
        row(f, "longest gap", &human_us(t.longest_gap_us))?;
        self.fmt_plays(f)?;
        let bye = match self.bye {
            None => "none".to_owned(),
            Some(ByeReport { after_last_packet_us: None }) => "without a packet before".to_owned(),
            Some(ByeReport { after_last_packet_us: Some(us) }) => {
                format!("{} after the last packet", signed_us(us))
            }
        };
        row(f, "bye", &bye)?;
        let sr = &self.sender_reports;
        let clocks = format!("clocks within {}", human_us(sr.clock_error_us));
        row(
            f,
            "sender reports",
            &format!("{}, last off by {} packets, {clocks}", sr.count, sr.last_difference),
        )?;
        let ts = &self.ts;
        let errors = format!("{} continuity errors, {} sync losses", ts.continuity_errors, ts.sync_losses);
        row(f, "ts", &format!("{} packets, {} pids, {errors}", ts.packets, ts.pids))?;
        if let Some(analysis) = &self.analysis {
            writeln!(f, "analysis")?;
            analysis.to_string().lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        self.fmt_byte_check(f)?;
        let r = &self.receiver;
        let drops = format!("{} dropped, {} checksum errors", r.socket_drops, r.checksum_errors);
        let full = if r.output_full_ms == 0 {
            String::new()
        } else {
            format!(", output full for {} ms", r.output_full_ms)
        };
        row(f, "this receiver", &format!("{drops}, longest turn {}{full}", human_us(r.longest_turn_us)))?;
        if r.written_bytes > 0 {
            row(f, "written", &format!("{} bytes", r.written_bytes))?;
        }
        let verdict = if self.problems.is_empty() { "clean".to_owned() } else { self.problems.join("; ") };
        row(f, "verdict", &verdict)
    }
}

impl ReceptionReport {
    fn fmt_fec(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(fec) = self.fec.as_ref() else { return Ok(()) };
        if fec.granted == "off" {
            return row(f, "fec", &format!("{} requested, none granted", fec.asked));
        }
        let c = &fec.counts;
        let what =
            format!("{} lost in transit, {} repaired, {} lost", fec.lost_on_the_way, c.repaired, c.lost);
        row(f, "fec", &format!("{}: {what}, {} unsettled, {} too late", fec.granted, c.unsettled, c.late))?;
        row(
            f,
            "fec packets",
            &format!("{} came, {} not needed, {} did not fit", c.fec_packets, c.useless, c.unfit),
        )
    }

    fn fmt_plays(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for play in self.plays.iter().take(20) {
            let first = play
                .first_packet_us
                .map_or("no packet".to_owned(), |us| format!("first packet {}", signed_us(us)));
            let exact = match play.rtp_info_exact {
                Some(true) => "RTP-Info exact",
                Some(false) => "RTP-Info WRONG",
                None => "no RTP-Info",
            };
            let asked = play.range_asked.as_deref().unwrap_or("go on");
            let answered = play.range_answered.as_deref().unwrap_or("no Range");
            row(f, "play", &format!("{asked} -> {answered}, {first}, {exact}, {} packets", play.packets))?;
        }
        if self.plays.len() > 20 {
            row(f, "play", &format!("... and {} more", self.plays.len() - 20))?;
        }
        Ok(())
    }

    fn fmt_byte_check(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(check) = &self.byte_check else { return Ok(()) };
        let what = match check.first_difference {
            None => "all equal".to_owned(),
            Some(d) => {
                let expected = d.expected.map_or("the end".to_owned(), |byte| format!("{byte:#04x}"));
                let place = format!("first at {} (packet {})", d.position, d.sequence);
                format!("{} differ, {place}: expected {expected}, got {:#04x}", check.different_bytes, d.got)
            }
        };
        let unaligned = match check.unaligned_bytes {
            0 => String::new(),
            bytes => format!("; {bytes} bytes not found in the reference"),
        };
        row(f, "byte check", &format!("{} bytes: {what}{unaligned}", check.checked_bytes))
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
pub(crate) mod tests;
