//! Sums over many players, and the report made of them.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use millrace_core::units::BitRate;
use serde::Serialize;

use super::Plan;
use super::target::Seat;
use super::viewer::{Outcome, SocketCounts};
use crate::lateness::{LatenessSummary, histogram_us, summarize};
use crate::play::TransportChoice;
use crate::procfs::UdpErrors;
use crate::report::{human_us, lateness_line, row};

/// Kinds of failures that are told apart.
const MAX_KINDS: usize = 64;
/// Players that are named because they fared worst.
const MAX_WORST: usize = 10;

/// A player that fared worse than others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorstSession {
    /// Its number.
    pub session: u32,
    /// Its film.
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
    /// Datagrams for which some receive buffer of this network namespace had no room.
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
}

/// Everything about many players.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// Players asked for.
    pub sessions: u64,
    /// Players whose PLAY was answered.
    pub played: u64,
    /// Players that failed, before or while playing.
    pub failed: u64,
    /// Why, and how often.
    pub failures: BTreeMap<String, u64>,
    /// `udp` or `tcp`.
    pub transport: &'static str,
    /// Films.
    pub films: u64,
    /// Time in which players arrived.
    pub ramp_ms: u64,
    /// Time for which all played.
    pub together_ms: u64,
    /// Different packets received.
    pub packets: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// Payload rate of all players while all played.
    pub rate_bits_per_s: u64,
    /// Packets missing between first and last of a player.
    pub lost: u64,
    /// Packets missing before the first that came.
    pub lost_at_start: u64,
    /// Packets missing at the end, of players that got a BYE with a sender report.
    pub lost_at_end: u64,
    /// Received, of received and lost.
    pub delivered_ratio: f64,
    /// Packets that came after one with a higher number.
    pub reordered: u64,
    /// Packets that came again.
    pub duplicates: u64,
    /// Packets that belong nowhere.
    pub strays: u64,
    /// Runs that began without a PLAY.
    pub restarts: u64,
    /// Players that lost at least one packet.
    pub sessions_with_loss: u64,
    /// Players that played without one packet.
    pub sessions_silent: u64,
    /// Players whose longest time without a packet was over [`super::LoadOptions::stall`].
    pub sessions_stalled: u64,
    /// Players whose film ended (BYE).
    pub sessions_ended: u64,
    /// Players whose RTP-Info was not that of their first packet.
    pub rtp_info_wrong: u64,
    /// Lateness of all packets of all players, each against the baseline of its own player.
    pub lateness: LatenessSummary,
    /// By how much that may be too low for some player: its baseline came late.
    pub lateness_understated_us: u64,
    /// The latest packet of each player.
    pub session_lateness_max: LatenessSummary,
    /// The longest time without a packet of each player, up to its end.
    pub session_longest_gap: LatenessSummary,
    /// From the start of connecting to the reply to PLAY.
    pub setup: LatenessSummary,
    /// From the reply to PLAY to the first packet. The reply is stamped on reading, so this is too short by up to
    /// [`super::LoadOptions::gather`] and a turn of the loop.
    pub first_packet: LatenessSummary,
    /// The shortest of these; negative if a packet came before the reply.
    pub first_packet_min_us: Option<i64>,
    /// Who fared worst.
    pub worst: Vec<WorstSession>,
    /// This process.
    pub receiver: LoadReceiver,
    /// What is wrong, in words; empty if nothing is.
    pub problems: Vec<String>,
}

/// Sums of one thread, or of all.
#[derive(Debug)]
pub(super) struct Sums {
    failures: BTreeMap<String, u64>,
    played: u64,
    packets: u64,
    payload_bytes: u64,
    lost: u64,
    lost_at_start: u64,
    lost_at_end: u64,
    reordered: u64,
    duplicates: u64,
    strays: u64,
    restarts: u64,
    with_loss: u64,
    silent: u64,
    stalled: u64,
    ended: u64,
    rtp_info_wrong: u64,
    understated_us: u64,
    first_packet_min_us: Option<i64>,
    unstamped: u64,
    buffer_bytes: Option<u64>,
    socket_drops: u64,
    malformed: u64,
    foreign: u64,
    /// Payload while all played, and how long that was.
    pub(super) together_bytes: u64,
    pub(super) together_ns: u64,
    pub(super) lateness: Histogram<u64>,
    pub(super) read_delay: Histogram<u64>,
    pub(super) turns: Histogram<u64>,
    lateness_max: Histogram<u64>,
    gaps: Histogram<u64>,
    setup: Histogram<u64>,
    first_packet: Histogram<u64>,
    worst: Vec<WorstSession>,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            failures: BTreeMap::new(),
            played: 0,
            packets: 0,
            payload_bytes: 0,
            lost: 0,
            lost_at_start: 0,
            lost_at_end: 0,
            reordered: 0,
            duplicates: 0,
            strays: 0,
            restarts: 0,
            with_loss: 0,
            silent: 0,
            stalled: 0,
            ended: 0,
            rtp_info_wrong: 0,
            understated_us: 0,
            first_packet_min_us: None,
            unstamped: 0,
            buffer_bytes: None,
            socket_drops: 0,
            malformed: 0,
            foreign: 0,
            together_bytes: 0,
            together_ns: 0,
            lateness: histogram_us(),
            read_delay: histogram_us(),
            turns: histogram_us(),
            lateness_max: histogram_us(),
            gaps: histogram_us(),
            setup: histogram_us(),
            first_packet: histogram_us(),
            worst: Vec::new(),
        }
    }
}

/// The smaller of two, where there are two.
fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    a.into_iter().chain(b).min()
}

fn add_histogram(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    to.add(from).expect("both have the bounds of histogram_us");
}

impl Sums {
    /// Players failed for this reason.
    pub(super) fn add_failure(&mut self, kind: String, count: u64) {
        let known = self.failures.contains_key(&kind) || self.failures.len() < MAX_KINDS;
        *self.failures.entry(if known { kind } else { "other".to_owned() }).or_default() += count;
    }

    /// A socket was closed.
    fn add_socket(&mut self, socket: SocketCounts) {
        self.unstamped += u64::from(!socket.has_kernel_stamps);
        self.buffer_bytes = least(self.buffer_bytes, Some(socket.buffer_bytes));
        self.socket_drops += socket.dropped;
        self.malformed += socket.truncated;
    }

    /// Datagrams dropped that [`SocketCounts`] does not know of: behind the last that was read.
    pub(super) fn add_drops(&mut self, drops: u64) {
        self.socket_drops += drops;
    }

    /// A player is done.
    pub(super) fn add(&mut self, plan: &Plan, seat: Seat, one: &Outcome) {
        one.socket.into_iter().for_each(|socket| self.add_socket(socket));
        if let Some(kind) = &one.failure {
            self.add_failure(kind.clone(), 1);
        }
        self.foreign += one.foreign;
        let (Some(m), Some(setup_us)) = (one.measured, one.setup_us) else { return };
        let c = m.counts;
        let lost = c.lost + c.lost_at_start + m.lost_at_end;
        self.played += 1;
        self.packets += c.received;
        self.payload_bytes += m.payload_bytes;
        self.lost += c.lost;
        self.lost_at_start += c.lost_at_start;
        self.lost_at_end += m.lost_at_end;
        self.reordered += c.reordered;
        self.duplicates += c.duplicates;
        self.strays += c.strays;
        self.restarts += c.restarts;
        self.malformed += m.malformed;
        self.with_loss += u64::from(lost > 0);
        self.silent += u64::from(c.received == 0);
        self.stalled += u64::from(u128::from(m.longest_gap_us) > plan.options.stall.as_micros());
        self.ended += u64::from(m.has_bye);
        self.rtp_info_wrong += u64::from(m.rtp_info_exact == Some(false));
        self.understated_us = self.understated_us.max(m.understated_us);
        self.setup.saturating_record(setup_us);
        self.gaps.saturating_record(m.longest_gap_us);
        if c.received > 0 {
            self.lateness_max.saturating_record(m.lateness_max_us);
        }
        if let Some(us) = m.first_packet_us {
            self.first_packet.saturating_record(us.max(0).unsigned_abs());
            self.first_packet_min_us = least(self.first_packet_min_us, Some(us));
        }
        self.note_worst(WorstSession {
            session: seat.index,
            url: plan.targets[seat.title].name(),
            lost,
            lateness_max_us: m.lateness_max_us,
            longest_gap_us: m.longest_gap_us,
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
        self.played += part.played;
        self.packets += part.packets;
        self.payload_bytes += part.payload_bytes;
        self.lost += part.lost;
        self.lost_at_start += part.lost_at_start;
        self.lost_at_end += part.lost_at_end;
        self.reordered += part.reordered;
        self.duplicates += part.duplicates;
        self.strays += part.strays;
        self.restarts += part.restarts;
        self.with_loss += part.with_loss;
        self.silent += part.silent;
        self.stalled += part.stalled;
        self.ended += part.ended;
        self.rtp_info_wrong += part.rtp_info_wrong;
        self.understated_us = self.understated_us.max(part.understated_us);
        self.first_packet_min_us = least(self.first_packet_min_us, part.first_packet_min_us);
        self.unstamped += part.unstamped;
        self.buffer_bytes = least(self.buffer_bytes, part.buffer_bytes);
        self.socket_drops += part.socket_drops;
        self.malformed += part.malformed;
        self.foreign += part.foreign;
        self.together_bytes += part.together_bytes;
        self.together_ns = self.together_ns.max(part.together_ns);
        add_histogram(&mut self.lateness, &part.lateness);
        add_histogram(&mut self.read_delay, &part.read_delay);
        add_histogram(&mut self.turns, &part.turns);
        add_histogram(&mut self.lateness_max, &part.lateness_max);
        add_histogram(&mut self.gaps, &part.gaps);
        add_histogram(&mut self.setup, &part.setup);
        add_histogram(&mut self.first_packet, &part.first_packet);
        part.worst.into_iter().for_each(|session| self.note_worst(session));
    }

    /// The report.
    pub(super) fn report(self, plan: &Plan, errors: UdpErrors) -> LoadReport {
        let is_tcp = plan.options.transport == TransportChoice::Tcp;
        let lost = self.lost + self.lost_at_start + self.lost_at_end;
        let expected = self.packets + lost;
        let ratio = if expected == 0 { 0.0 } else { self.packets as f64 / expected as f64 };
        let mut report = LoadReport {
            sessions: u64::from(plan.options.streams),
            played: self.played,
            failed: self.failures.values().sum(),
            failures: self.failures,
            transport: if is_tcp { "tcp" } else { "udp" },
            films: plan.targets.len() as u64,
            ramp_ms: (plan.ramp_end - plan.began).as_millis() as u64,
            together_ms: self.together_ns / 1_000_000,
            packets: self.packets,
            payload_bytes: self.payload_bytes,
            rate_bits_per_s: BitRate::of(self.together_bytes, self.together_ns).0,
            lost: self.lost,
            lost_at_start: self.lost_at_start,
            lost_at_end: self.lost_at_end,
            delivered_ratio: ratio,
            reordered: self.reordered,
            duplicates: self.duplicates,
            strays: self.strays,
            restarts: self.restarts,
            sessions_with_loss: self.with_loss,
            sessions_silent: self.silent,
            sessions_stalled: self.stalled,
            sessions_ended: self.ended,
            rtp_info_wrong: self.rtp_info_wrong,
            lateness: summarize(&self.lateness),
            lateness_understated_us: self.understated_us,
            session_lateness_max: summarize(&self.lateness_max),
            session_longest_gap: summarize(&self.gaps),
            setup: summarize(&self.setup),
            first_packet: summarize(&self.first_packet),
            first_packet_min_us: self.first_packet_min_us,
            worst: self.worst,
            receiver: LoadReceiver {
                threads: plan.options.threads as u64,
                kernel_stamps: !is_tcp && self.unstamped == 0,
                receive_buffer_bytes: self.buffer_bytes.unwrap_or(0),
                socket_drops: self.socket_drops,
                checksum_errors: errors.checksum,
                buffer_errors: errors.buffer,
                malformed: self.malformed,
                foreign: self.foreign,
                turn: summarize(&self.turns),
                read_delay: summarize(&self.read_delay),
            },
            problems: Vec::new(),
        };
        report.judge();
        report
    }
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

    /// Fills [`Self::problems`] from the rest.
    fn judge(&mut self) {
        let lost = self.lost + self.lost_at_start + self.lost_at_end;
        let checks = [
            (self.failed, "sessions failed"),
            (self.sessions_silent, "sessions got no packet"),
            (lost, "packets lost"),
            (self.sessions_stalled, "sessions stalled"),
            (self.rtp_info_wrong, "sessions whose RTP-Info is not that of the first packet"),
            (self.restarts, "jumps of sequence numbers"),
            (self.receiver.socket_drops, "datagrams dropped by this receiver: its fault, not the server's"),
            (self.receiver.malformed, "packets that are not what was agreed"),
        ];
        let wrong = checks.iter().filter(|(count, _)| *count > 0);
        self.problems = wrong.map(|(count, what)| format!("{count} {what}")).collect();
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = format!(
            "{} of {} played {} films over {}",
            self.played, self.sessions, self.films, self.transport
        );
        row(f, "sessions", &format!("{s}, {} failed, {} ended by BYE", self.failed, self.sessions_ended))?;
        for (kind, count) in &self.failures {
            row(f, "failure", &format!("{count} x {kind}"))?;
        }
        let ramp = format!(
            "ramp {:.3} s, together {:.3} s",
            self.ramp_ms as f64 / 1e3,
            self.together_ms as f64 / 1e3
        );
        row(f, "time", &format!("{ramp} at {}", BitRate(self.rate_bits_per_s)))?;
        let ratio = format!("delivered {:.6} %", self.delivered_ratio * 100.0);
        row(f, "received", &format!("{} packets, {} bytes, {ratio}", self.packets, self.payload_bytes))?;
        let ends = format!("at start {}, at end {}", self.lost_at_start, self.lost_at_end);
        row(f, "lost", &format!("{} ({ends}) in {} sessions", self.lost, self.sessions_with_loss))?;
        let order =
            format!("{} reordered, {} duplicate, {} stray", self.reordered, self.duplicates, self.strays);
        row(f, "order", &format!("{order}, {} restarts", self.restarts))?;
        let understated = format!("(may be {} more)", human_us(self.lateness_understated_us));
        row(f, "lateness", &format!("{} {understated}", lateness_line(&self.lateness)))?;
        row(f, "  worst each", &lateness_line(&self.session_lateness_max))?;
        row(f, "  longest gap", &lateness_line(&self.session_longest_gap))?;
        row(f, "setup", &lateness_line(&self.setup))?;
        row(f, "first packet", &lateness_line(&self.first_packet))?;
        for w in self.worst.iter().take(3).filter(|w| w.lost > 0 || self.sessions_stalled > 0) {
            let what = format!("{} lost, latest {}", w.lost, human_us(w.lateness_max_us));
            row(
                f,
                "worst session",
                &format!("#{} {}: {what}, gap {}", w.session, w.url, human_us(w.longest_gap_us)),
            )?;
        }
        let r = &self.receiver;
        let drops = format!("{} dropped, {} checksum errors", r.socket_drops, r.checksum_errors);
        row(f, "this receiver", &format!("{} threads, {drops}", r.threads))?;
        row(f, "  turn", &lateness_line(&r.turn))?;
        let stamps =
            if r.kernel_stamps { "kept out of the lateness" } else { "NOT kept out of the lateness" };
        row(f, "  read delay", &format!("{} ({stamps})", lateness_line(&r.read_delay)))?;
        row(
            f,
            "verdict",
            &if self.problems.is_empty() { "clean".to_owned() } else { self.problems.join("; ") },
        )
    }
}
