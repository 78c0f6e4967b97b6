//! The findings, as a table for people and as JSON in one stable form.

use std::fmt;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::MediaTicks;
use millrace_core::units::{BitRate, ByteLen};
use serde::Serialize;

use crate::analyser::{Analyser, Pid};
use crate::check::{Check, Finding, Severity};
use crate::clock::system_ns;
use crate::section::ElementaryKind;

/// Overall result for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnalysisVerdict {
    /// Nothing is wrong with it.
    Clean,
    /// No fault in the data received, but data was lost on the way.
    Incomplete,
    /// It breaks rules.
    Faulty,
    /// There is no packet in it.
    NoStream,
}

/// How often a check found something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CheckCount {
    /// Its name.
    pub check: &'static str,
    /// A number of TR 101 290, or where else its rule stands.
    pub clause: &'static str,
    /// Severity of its findings.
    pub severity: Severity,
    /// Findings.
    pub count: u64,
    /// Why the check allows no statement, if so.
    pub not_applicable: Option<&'static str>,
}

/// Whether the stream has a constant rate by its own clock references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// It is constant; a clock reference is off by at most this much.
    Constant {
        /// In nanoseconds.
        worst_ns: i64,
    },
    /// It has not.
    Variable,
    /// There are too few clock references to say.
    Unknown,
}

/// A programme.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramSummary {
    /// Its number in the PAT.
    pub program: u16,
    /// PID of its PMT.
    pub pmt_pid: u16,
    /// PID of its clock references, if a PMT came.
    pub pcr_pid: Option<u16>,
}

/// How full the buffers of the decoder model got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BufferSummary {
    /// Most in the transport buffer of 512 bytes, with a whole packet that may be half outside.
    pub transport_bytes: u64,
    /// Most in the main buffers.
    pub main_bytes: u64,
    /// Their size.
    pub main_size_bytes: u64,
}

/// A PID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PidSummary {
    /// Its number.
    pub pid: u16,
    /// Description of its content.
    pub what: &'static str,
    /// The programme that it belongs to, if it is a stream of one.
    pub program: Option<u16>,
    /// What kind of stream it is.
    pub kind: Option<ElementaryKind>,
    /// Packets, duplicates included.
    pub packets: u64,
    /// Bit rate over the whole stream, headers included.
    pub bits_per_s: Option<u64>,
    /// Scrambled packets.
    pub scrambled: u64,
    /// Clock references.
    pub pcrs: u64,
    /// Longest time between two of them.
    pub longest_pcr_gap_ns: Option<u64>,
    /// PES packets.
    pub pes_packets: u64,
    /// Those with a PTS.
    pub pes_with_pts: u64,
    /// First and last PTS and DTS in the order of the stream, in ticks of 90 kHz.
    pub first_pts: Option<u64>,
    /// See `first_pts`.
    pub first_dts: Option<u64>,
    /// See `first_pts`.
    pub last_pts: Option<u64>,
    /// See `first_pts`.
    pub last_dts: Option<u64>,
    /// Longest distance of presentation times.
    pub longest_pts_gap_ns: Option<u64>,
    /// How full its buffers got, if that was asked for and their size is known.
    pub buffers: Option<BufferSummary>,
}

/// Everything about one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AnalysisReport {
    /// The overall result.
    pub verdict: AnalysisVerdict,
    /// Bytes taken.
    pub bytes: u64,
    /// Packets, stuffing included.
    pub packets: u64,
    /// Packets of stuffing.
    pub null_packets: u64,
    /// Media time by the clock references.
    pub duration_ns: Option<u64>,
    /// Mean rate by them.
    pub bits_per_s: Option<u64>,
    /// Whether it is constant.
    pub rate: Rate,
    /// Each check.
    pub checks: Vec<CheckCount>,
    /// Programmes.
    pub programs: Vec<ProgramSummary>,
    /// PIDs that were there or are named.
    pub pids: Vec<PidSummary>,
    /// The first findings of each check, in the order of the stream.
    pub findings: Vec<Finding>,
    /// Continuity counters that do not follow where data were lost or the place changed, which is no fault.
    pub breaks_at_gaps: u64,
}

const NO_CLOCK: &str = "no clock references, so no time";

impl AnalysisReport {
    pub(crate) fn new(all: &Analyser, end: Option<i64>) -> Self {
        let duration_ns = end.map(system_ns).filter(|ns| *ns > 0);
        let rate = rate(all);
        let counts = &all.timed.findings.counts;
        let checks = Check::ALL.iter().zip(counts).map(|(check, count)| CheckCount {
            check: check.id(),
            clause: check.clause(),
            severity: check.severity(),
            count: *count,
            not_applicable: not_applicable(*check, *count, all, duration_ns, rate),
        });
        let checks: Vec<_> = checks.collect();
        let has = |severity| checks.iter().any(|check| check.severity == severity && check.count > 0);
        let verdict = if all.packets == 0 {
            AnalysisVerdict::NoStream
        } else if has(Severity::Fault) {
            AnalysisVerdict::Faulty
        } else if has(Severity::Loss) {
            AnalysisVerdict::Incomplete
        } else {
            AnalysisVerdict::Clean
        };
        let mut findings = all.timed.findings.kept.clone();
        findings.sort_by_key(|finding| finding.packet);
        let programs = all.psi.programs.values().map(|program| ProgramSummary {
            program: program.number,
            pmt_pid: program.pmt,
            pcr_pid: program.clock,
        });
        let pids = all.pids.iter().enumerate().filter_map(|(number, pid)| {
            let pid = pid.as_ref().filter(|pid| pid.packets > 0 || pid.role.is_some())?;
            Some(pid_summary(all, number as u16, pid, duration_ns))
        });
        Self {
            verdict,
            bytes: all.bytes,
            packets: all.packets,
            null_packets: all.null_packets,
            duration_ns,
            bits_per_s: duration_ns.map(|ns| BitRate::of(all.packets * TS_PACKET_BYTES as u64, ns).0),
            rate,
            programs: programs.collect(),
            pids: pids.collect(),
            checks,
            findings,
            breaks_at_gaps: all.breaks_at_gaps,
        }
    }

    /// How often a check found something.
    pub fn count(&self, check: Check) -> u64 {
        self.checks.iter().find(|count| count.check == check.id()).map_or(0, |count| count.count)
    }

    /// Checks that found faults, as one line; empty if none did.
    pub fn faults(&self) -> String {
        let said = self.checks.iter().filter(|check| check.severity == Severity::Fault && check.count > 0);
        said.map(|c| format!("{} {} ({})", c.count, c.check, c.clause)).collect::<Vec<_>>().join(", ")
    }
}

fn rate(all: &Analyser) -> Rate {
    let clocks = all.pids.iter().flatten().filter_map(|pid| pid.clock.as_ref());
    let mut rate = Rate::Unknown;
    for accuracy in clocks.map(|clock| &clock.accuracy) {
        rate = match (rate, accuracy.is_constant()) {
            (_, None) => rate,
            (Rate::Variable, _) | (_, Some(false)) => Rate::Variable,
            (Rate::Constant { worst_ns }, _) if worst_ns.abs() >= accuracy.worst_ns.abs() => rate,
            _ => Rate::Constant { worst_ns: accuracy.worst_ns },
        };
    }
    rate
}

fn not_applicable(
    check: Check,
    count: u64,
    all: &Analyser,
    duration_ns: Option<u64>,
    rate: Rate,
) -> Option<&'static str> {
    if count > 0 {
        return None;
    }
    let is_timed = matches!(check, Check::Pat | Check::Pmt | Check::Pid | Check::DecodeTime);
    match check {
        Check::PcrAccuracy if rate == Rate::Variable => Some("the rate is not constant"),
        Check::PcrAccuracy if rate == Rate::Unknown => Some("too few clock references"),
        Check::Cat if all.pids.iter().flatten().all(|pid| pid.scrambled == 0) => Some("nothing is scrambled"),
        Check::TransportBuffer | Check::MainBuffer | Check::Underflow => match &all.timed.model {
            None => Some("not asked for"),
            Some(model) if model.pids.is_empty() => Some("no stream whose buffers are known"),
            Some(_) => None,
        },
        _ if is_timed && duration_ns.is_none() => Some(NO_CLOCK),
        _ => None,
    }
}

fn pid_summary(all: &Analyser, number: u16, pid: &Pid, duration_ns: Option<u64>) -> PidSummary {
    let stamped = all.timed.stamped.get(&number);
    let (first, last) = (stamped.and_then(|s| s.first), stamped.and_then(|s| s.last));
    let clock = pid.clock.as_ref();
    let buffers = all.timed.model.as_ref().and_then(|model| {
        let buffers = model.pids.get(&number)?;
        Some(BufferSummary {
            transport_bytes: buffers.most_transport as u64,
            main_bytes: buffers.most_main as u64,
            main_size_bytes: buffers.main_size()? as u64,
        })
    });
    PidSummary {
        pid: number,
        what: match (number, pid.role) {
            (_, Some(role)) => role.stream.name,
            (0, _) => "PAT",
            (1, _) => "CAT",
            (0x10..=0x14, _) => "service information",
            _ if pid.is_pmt => "PMT",
            _ if clock.is_some() => "clock references",
            _ => "not in any PMT",
        },
        program: pid.role.map(|role| role.program),
        kind: pid.role.map(|role| role.stream.kind),
        packets: pid.packets,
        bits_per_s: duration_ns.map(|ns| BitRate::of(pid.packets * TS_PACKET_BYTES as u64, ns).0),
        scrambled: pid.scrambled,
        pcrs: clock.map_or(0, |clock| clock.references),
        longest_pcr_gap_ns: clock.map(|clock| system_ns(clock.longest_ticks)),
        pes_packets: pid.pes.as_ref().map_or(0, |pes| pes.packets),
        pes_with_pts: pid.pes.as_ref().map_or(0, |pes| pes.stamped),
        first_pts: first.map(|stamps| stamps.pts),
        first_dts: first.map(|stamps| stamps.dts),
        last_pts: last.map(|stamps| stamps.pts),
        last_dts: last.map(|stamps| stamps.dts),
        longest_pts_gap_ns: stamped.map(|s| MediaTicks(s.longest_ticks.max(0) as u64).to_ns()),
        buffers,
    }
}

/// One line of a table.
fn row(f: &mut fmt::Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    writeln!(f, "{name:<18}{value}")
}

fn ms(ns: Option<u64>) -> String {
    ns.map_or("-".to_owned(), |ns| format!("{:.1} ms", ns as f64 / 1e6))
}

/// Findings shown of each check; JSON has more.
const SHOWN: usize = 5;

impl fmt::Display for AnalysisReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let null = format!("{} packets, {} of them stuffing", self.packets, self.null_packets);
        row(f, "stream", &format!("{}, {null}", ByteLen(self.bytes)))?;
        let rate = match (self.duration_ns, self.bits_per_s) {
            (Some(ns), Some(rate)) => format!("{:.3} s, {}", ns as f64 / 1e9, BitRate(rate)),
            _ => NO_CLOCK.to_owned(),
        };
        let constant = match self.rate {
            Rate::Constant { worst_ns } => {
                format!("constant rate, clock references within {} ns", worst_ns.abs())
            }
            Rate::Variable => "variable rate".to_owned(),
            Rate::Unknown => "rate constant or not: unknown".to_owned(),
        };
        row(f, "time", &format!("{rate}, {constant}"))?;
        for program in &self.programs {
            let clock = program.pcr_pid.map_or("none yet".to_owned(), |pid| pid.to_string());
            let pids = format!("PMT on PID {}, clock on PID {clock}", program.pmt_pid);
            row(f, "programme", &format!("{}: {pids}", program.program))?;
        }
        self.pids.iter().try_for_each(|pid| pid.fmt_row(f))?;
        for check in self.checks.iter().filter(|check| check.not_applicable.is_some()) {
            let why = check.not_applicable.unwrap_or_default();
            row(f, "not checked", &format!("{} ({}): {why}", check.check, check.clause))?;
        }
        for check in self.checks.iter().filter(|check| check.count > 0) {
            let kind = match check.severity {
                Severity::Fault => "fault",
                Severity::Loss => "loss",
                Severity::Note => "note",
            };
            row(f, kind, &format!("{} ({}): {}", check.check, check.clause, check.count))?;
            let these = self.findings.iter().filter(|finding| finding.what.check().id() == check.check);
            for finding in these.take(SHOWN) {
                row(f, "", &finding.to_string())?;
            }
        }
        let verdict = match self.verdict {
            AnalysisVerdict::Clean => "clean".to_owned(),
            AnalysisVerdict::Incomplete => "incomplete: data were lost on the way".to_owned(),
            AnalysisVerdict::Faulty => format!("faulty: {}", self.faults()),
            AnalysisVerdict::NoStream => "no transport stream of 188-byte packets".to_owned(),
        };
        row(f, "verdict", &verdict)
    }
}

impl PidSummary {
    fn fmt_row(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.bits_per_s.map_or("?".to_owned(), |rate| BitRate(rate).to_string());
        let mut text = format!("{}: {}, {} packets, {rate}", self.pid, self.what, self.packets);
        if self.pcrs > 0 {
            text += &format!(", {} PCRs up to {} apart", self.pcrs, ms(self.longest_pcr_gap_ns));
        }
        if self.pes_packets > 0 {
            text += &format!(
                ", {} PES packets, PTS up to {} apart",
                self.pes_packets,
                ms(self.longest_pts_gap_ns)
            );
        }
        if self.scrambled > 0 {
            text += &format!(", {} scrambled", self.scrambled);
        }
        if let Some(b) = self.buffers {
            text += &format!(
                ", buffers up to {} of 512 and {} of {} bytes",
                b.transport_bytes, b.main_bytes, b.main_size_bytes
            );
        }
        row(f, "PID", &text)
    }
}
