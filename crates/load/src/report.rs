//! The report of a load: reception, the viewers' actions, the performance of this process, and the
//! problems.
//!
//! It is not the report of a single reception (`crates/client/src/report.rs`): that one lists every PLAY, byte check and
//! sender report of one session, this one has sums, percentiles over sessions and the worst of them.

use std::collections::BTreeMap;
use std::fmt;

use millrace_client::fec::FecCounts;
use millrace_client::lateness::LatenessSummary;
use millrace_client::report::{human_us, lateness_line, row};
use millrace_core::units::{BitRate, Count};
use serde::Serialize;

use crate::meter::Repaired;
use crate::series::LoadSample;
use crate::streams::StreamReport;
use crate::ts::light::TsFindings;
use crate::web::WebReport;

/// A session that fared worse than others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorstSession {
    /// Number of its viewer.
    pub session: u32,
    /// Its title.
    pub url: String,
    /// Packets missing, at start and end too.
    pub lost: u64,
    /// Its latest packet.
    pub lateness_max_us: u64,
    /// Its longest time without a packet.
    pub longest_gap_us: u64,
}

/// The receiving process itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoadReceiver {
    /// Threads.
    pub threads: u64,
    /// Whether the kernel stamped every arrival; over TCP this process does.
    pub kernel_stamps: bool,
    /// Smallest receive buffer of an RTP socket as the kernel counts it; 0 over TCP.
    pub receive_buffer_bytes: u64,
    /// Datagrams dropped at our own RTP sockets: no room, or a wrong checksum.
    pub socket_drops: u64,
    /// Datagrams with a wrong UDP checksum in this network namespace, from whomever.
    pub checksum_errors: u64,
    /// Datagrams dropped because some receive buffer of this network namespace was full.
    pub buffer_errors: u64,
    /// Packets that are not RTP, of another payload type, or too long.
    pub malformed: u64,
    /// Datagrams from another address than the server's.
    pub foreign: u64,
    /// How long turns of the loop took.
    pub turn: LatenessSummary,
    /// How long datagrams waited in their receive buffers until they were read: our own stalls, which the kernel's
    /// stamps keep out of the lateness.
    pub read_delay: LatenessSummary,
    /// Times a thread of this process did not look at its sockets for more than 10 ms.
    pub stalls: u64,
    /// How long these were, all threads together.
    pub stalled_us: u64,
    /// How long the threads were ready to run and had no processor.
    pub waited_for_processor_us: u64,
}

/// Forward error correction of all sessions together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoadFec {
    /// Sessions to which it was granted.
    pub granted: u64,
    /// Sessions to which it was not.
    pub refused: u64,
    /// Packets that did not come by themselves.
    pub lost_on_the_way: u64,
    /// What FEC made of it.
    #[serde(flatten)]
    pub counts: FecCounts,
}

impl LoadFec {
    pub(super) fn add(&mut self, one: &Repaired) {
        let (granted, refused) = (u64::from(one.is_granted), u64::from(!one.is_granted));
        let lost_on_the_way = one.lost_on_the_way;
        self.merge(&Self { granted, refused, lost_on_the_way, counts: one.counts });
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.granted += other.granted;
        self.refused += other.refused;
        self.lost_on_the_way += other.lost_on_the_way;
        self.counts = self.counts.plus(&other.counts);
    }
}

/// Everything about a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// Viewers asked for.
    pub streams: u64,
    /// Sessions begun: one for each viewer that began, and one more for each zap and each replaced viewer.
    pub sessions: u64,
    /// Sessions whose PLAY was answered.
    pub played: u64,
    /// Sessions that failed, before or while playing, and viewers that had not begun when time was over.
    pub failed: u64,
    /// Why, and how often.
    pub failures: BTreeMap<String, u64>,
    /// `udp`, `tcp`, `http`, or `mixed`.
    pub transport: &'static str,
    /// Titles.
    pub films: u64,
    /// How titles were chosen.
    pub titles: String,
    /// How viewers arrived.
    pub arrivals: String,
    /// What viewers did.
    pub behaviour: String,
    /// What everything random was drawn from.
    pub seed: u64,
    /// Time in which viewers arrived.
    pub ramp_ms: u64,
    /// Time during which all viewers played.
    pub together_ms: u64,
    /// Different packets received.
    pub packets: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// Payload rate of all sessions while all played.
    pub rate_bits_per_s: u64,
    /// Packets missing between first and last of a session; of sessions with FEC those that were not repaired, wherever they were.
    pub lost: u64,
    /// Packets missing before the first that came, of sessions without FEC.
    pub lost_at_start: u64,
    /// Packets missing at the end, of sessions that got a BYE with a sender report.
    pub lost_at_end: u64,
    /// Forward error correction, if it was asked for.
    pub fec: Option<LoadFec>,
    /// Packets received or repaired, divided by the sum of these and the lost ones.
    pub delivered_ratio: f64,
    /// Packets that came after one with a higher number.
    pub reordered: u64,
    /// Packets that came again.
    pub duplicates: u64,
    /// Packets that belong nowhere.
    pub strays: u64,
    /// Runs that began without a PLAY.
    pub restarts: u64,
    /// Sessions that lost at least one packet.
    pub sessions_with_loss: u64,
    /// Sessions that played for longer than [`super::LoadOptions::stall`] without one packet.
    pub sessions_silent: u64,
    /// Sessions whose longest time without a packet was over [`super::LoadOptions::stall`].
    pub sessions_stalled: u64,
    /// Sessions whose title ended (BYE).
    pub sessions_ended: u64,
    /// Sessions whose RTP-Info was not that of their first packet.
    pub rtp_info_wrong: u64,
    /// Changes to another title.
    pub zaps: u64,
    /// PAUSEs that viewers asked for.
    pub pauses: u64,
    /// Seeks.
    pub seeks: u64,
    /// Changes of speed.
    pub tricks: u64,
    /// Changes of rendition.
    pub switches: u64,
    /// Viewers that went away of their own accord.
    pub leaves: u64,
    /// Viewers that came in the place of one that left.
    pub replaced: u64,
    /// What viewers wanted and could not do: seek in a title of unknown length, press a button while a reply was due.
    pub deeds_skipped: u64,
    /// Lateness of all packets of all sessions, each against the baseline of its own session.
    pub lateness: LatenessSummary,
    /// By how much that may be too low for some session: its baseline came late.
    pub lateness_understated_us: u64,
    /// The same for packets that are not in it: they were stamped by this process, right behind one of its own stalls.
    pub lateness_own: LatenessSummary,
    /// How many these are.
    pub packets_in_own_stalls: u64,
    /// The latest packet of each session.
    pub session_lateness_max: LatenessSummary,
    /// The longest time without a packet of each session, up to its end.
    pub session_longest_gap: LatenessSummary,
    /// Interarrival jitter (RFC 3550) of each session at its end.
    pub jitter: LatenessSummary,
    /// The largest jitter that each session had.
    pub jitter_max: LatenessSummary,
    /// From the start of connecting to the reply to PLAY.
    pub setup: LatenessSummary,
    /// From the reply to PLAY to the first packet. The reply is stamped on reading, so this is too short by up to
    /// [`super::LoadOptions::gather`] and a turn of the loop.
    pub first_packet: LatenessSummary,
    /// The shortest of these; negative if a packet came before the reply.
    pub first_packet_min_us: Option<i64>,
    /// From the wish to see another title to its first packet: BYE, connecting, asking, waiting.
    pub zap: LatenessSummary,
    /// Sessions whose transport stream was looked into.
    pub sessions_inspected: u64,
    /// What these streams were like together.
    pub ts: TsFindings,
    /// Viewers over HTTP, if there were any.
    pub web: Option<WebReport>,
    /// The sessions that fared worst.
    pub worst: Vec<WorstSession>,
    /// This process.
    pub receiver: LoadReceiver,
    /// The probe's observations, if there was a probe.
    pub probe: Option<ProbeReport>,
    /// The load over time.
    pub series: Vec<LoadSample>,
    /// Sessions that have no line of their own, for want of room.
    pub streams_unreported: u64,
    /// One line for each session.
    pub per_stream: Vec<StreamReport>,
    /// The problems, in words; empty if there are none.
    pub problems: Vec<String>,
}

impl LoadReport {
    /// The JSON form: keys in the order of the fields, units in the names.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Packets missing anywhere: in between, at the start and at the end.
    pub fn lost_in_all(&self) -> u64 {
        self.lost + self.lost_at_start + self.lost_at_end
    }

    /// Fills [`Self::problems`] from the rest.
    pub(super) fn judge(&mut self) {
        let stream_errors = self.ts.sync_losses + self.ts.continuity_errors + self.ts.marked_errors;
        let checks = [
            (self.failed, "sessions failed"),
            (self.sessions_silent, "sessions got no packet"),
            (self.lost_in_all(), "packets lost"),
            (self.sessions_stalled, "sessions stalled"),
            (
                self.fec.as_ref().map_or(0, |fec| fec.refused),
                "sessions were refused the FEC that they requested",
            ),
            (self.rtp_info_wrong, "sessions whose RTP-Info is not that of the first packet"),
            (self.restarts, "jumps of sequence numbers"),
            (stream_errors, "errors in transport streams that loss does not explain"),
            (self.ts.pcr_jumps, "jumps of the program clock"),
            (self.receiver.socket_drops, "datagrams dropped by this receiver: its fault, not the server's"),
            (self.receiver.malformed, "packets that are not what was agreed"),
        ];
        let wrong = checks.iter().filter(|(count, _)| *count > 0);
        self.problems = wrong.map(|(count, what)| format!("{count} {what}")).collect();
        self.problems.extend(self.web.iter().flat_map(WebReport::problems));
        let Some(probe) = self.probe.as_ref().filter(|_| self.played > 0) else { return };
        if probe.seen_packets == 0 {
            self.problems.push(format!("the probe saw no packet on {}: wrong interface?", probe.interface));
        } else if probe.missed_packets > 0 {
            let missed =
                format!("{} packets came past the probe on {}", probe.missed_packets, probe.interface);
            self.problems.push(format!("{missed}: by another interface?"));
        }
    }
}

/// Observations of the probe in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProbeReport {
    /// Where it was.
    pub interface: String,
    /// Packets of viewers that it saw; a train of datagrams that segmentation offload kept together is one.
    pub seen_packets: u64,
    /// Of those dropped, as they should be.
    pub dropped_packets: u64,
    /// Packets that came past it to a viewer's socket.
    pub missed_packets: u64,
    /// If it let packets through: its counts for the same sessions that the sockets counted.
    /// Different packets,
    pub packets: u64,
    /// their payload,
    pub payload_bytes: u64,
    /// and packets missing in between.
    pub lost: u64,
}

fn count_line(counts: &[(u64, &str)]) -> String {
    let done: Vec<_> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    done.join(", ")
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_sessions(f)?;
        self.fmt_received(f)?;
        self.fmt_times(f)?;
        for w in self.worst.iter().take(3).filter(|w| w.lost > 0 || self.sessions_stalled > 0) {
            let what = format!("{} lost, latest {}", w.lost, human_us(w.lateness_max_us));
            let gap = human_us(w.longest_gap_us);
            row(f, "worst session", &format!("#{} {}: {what}, gap {gap}", w.session, w.url))?;
        }
        self.fmt_receiver(f)?;
        let verdict = if self.problems.is_empty() { "clean".to_owned() } else { self.problems.join("; ") };
        row(f, "verdict", &verdict)
    }
}

impl LoadReport {
    fn fmt_sessions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = format!(
            "{} of {} played {} over {}",
            self.played,
            self.sessions,
            Count(self.films, "title"),
            self.transport
        );
        row(f, "sessions", &format!("{s}, {} failed, {} ended by BYE", self.failed, self.sessions_ended))?;
        for (kind, count) in &self.failures {
            row(f, "failure", &format!("{count} x {kind}"))?;
        }
        let deeds = count_line(&[
            (self.zaps, "zaps"),
            (self.pauses, "pauses"),
            (self.seeks, "seeks"),
            (self.tricks, "changes of speed"),
            (self.switches, "changes of rendition"),
            (self.leaves, "left"),
            (self.replaced, "replaced"),
            (self.deeds_skipped, "not possible"),
        ]);
        if !deeds.is_empty() {
            row(f, "viewers did", &deeds)?;
        }
        let ramp = format!(
            "ramp {:.3} s, together {:.3} s",
            self.ramp_ms as f64 / 1e3,
            self.together_ms as f64 / 1e3
        );
        row(f, "time", &format!("{ramp} at {}", BitRate(self.rate_bits_per_s)))
    }

    fn fmt_received(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = format!("delivered {:.6} %", self.delivered_ratio * 100.0);
        row(f, "received", &format!("{} packets, {} bytes, {ratio}", self.packets, self.payload_bytes))?;
        let ends = format!("at start {}, at end {}", self.lost_at_start, self.lost_at_end);
        row(f, "lost", &format!("{} ({ends}) in {} sessions", self.lost, self.sessions_with_loss))?;
        if let Some(fec) = &self.fec {
            let c = &fec.counts;
            let what = format!("{} lost in transit, {} repaired", fec.lost_on_the_way, c.repaired);
            let not = format!("{} lost, {} unsettled, {} too late", c.lost, c.unsettled, c.late);
            row(f, "fec", &format!("{} sessions: {what}, {not}", fec.granted))?;
            let packets =
                format!("{} came, {} not needed, {} did not fit", c.fec_packets, c.useless, c.unfit);
            row(f, "fec packets", &packets)?;
        }
        let order =
            format!("{} reordered, {} duplicate, {} stray", self.reordered, self.duplicates, self.strays);
        row(f, "order", &format!("{order}, {} restarts", self.restarts))?;
        if self.sessions_inspected > 0 {
            let ts = &self.ts;
            let errors = format!("{} continuity, {} sync errors", ts.continuity_errors, ts.sync_losses);
            let pcr = format!(
                "PCR every {} at most, jitter {}, {} jumps",
                human_us(ts.pcr_interval_max_us),
                human_us(ts.pcr_jitter_us),
                ts.pcr_jumps
            );
            row(f, "stream", &format!("{errors}; {pcr}; of {} sessions", self.sessions_inspected))?;
        }
        self.web.as_ref().map_or(Ok(()), |web| write!(f, "{web}"))
    }

    fn fmt_times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let understated = format!("(may be {} more)", human_us(self.lateness_understated_us));
        row(f, "lateness", &format!("{} {understated}", lateness_line(&self.lateness)))?;
        if self.packets_in_own_stalls > 0 {
            let own =
                format!("{} packets behind our own stalls, not counted above", self.packets_in_own_stalls);
            row(f, "  ours", &format!("{} ({own})", lateness_line(&self.lateness_own)))?;
        }
        row(f, "  worst each", &lateness_line(&self.session_lateness_max))?;
        row(f, "  longest gap", &lateness_line(&self.session_longest_gap))?;
        row(f, "  jitter each", &lateness_line(&self.jitter))?;
        row(f, "setup", &lateness_line(&self.setup))?;
        row(f, "first packet", &lateness_line(&self.first_packet))?;
        if self.zap.max_us > 0 {
            row(f, "zap", &lateness_line(&self.zap))?;
        }
        Ok(())
    }

    fn fmt_receiver(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = &self.receiver;
        let drops = format!("{} dropped, {} checksum errors", r.socket_drops, r.checksum_errors);
        let stalls = format!("{} stalls over 10 ms, {} in all", r.stalls, human_us(r.stalled_us));
        row(f, "this receiver", &format!("{} threads, {drops}, {stalls}", r.threads))?;
        if let Some(p) = &self.probe {
            let seen = format!("{} packets seen, {} dropped there", p.seen_packets, p.dropped_packets);
            return row(f, "  probe", &format!("{} on {}", seen, p.interface));
        }
        row(f, "  turn", &lateness_line(&r.turn))?;
        let stamps =
            if r.kernel_stamps { "kept out of the lateness" } else { "NOT kept out of the lateness" };
        row(f, "  read delay", &format!("{} ({stamps})", lateness_line(&r.read_delay)))
    }
}
