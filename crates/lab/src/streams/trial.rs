//! One trial: a number of streams of one sender, the data that their viewers got and the cost.
//!
//! Senders begin together when all of them are there; a second later all is looked at, and again when the window is over. By UDP packets
//! are counted and dropped at the viewers' interface, by TCP a thread on the viewers' core reads.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as StdInstant};

use anyhow::Context;
use millrace_load::drop_probe::{DropProbe, ProbeAction, ProbeConfig, ProbeMedia};

use super::receive::Viewers;
use super::routines::{self, Routine};
use super::search::StreamTrial;
use super::{READY, SendMethod, SendPlan, TitleFolder, Transport, destination, now_ns, process};
use crate::capacity::limits::TrialFigures;
use crate::capacity::meter::{Spent, Usage, syscalls_per_s};
use crate::capacity::pushed::{MP2T, percentile_ms, wait};
use crate::capacity::site::{BenchSite, CLIENT_INTERFACE, Group};
use crate::capacity::trial::Trial;
use crate::frame::CpuTime;
use crate::proc;

/// Where viewers connect to.
const PORT: u16 = 8554;
/// Port of the first viewer of each address.
const BASE_PORT: u16 = 10_000;
/// A process that starts thousands has to be given time.
const START_WITHIN: Duration = Duration::from_secs(90);
/// From the word that all begin to the first look.
const SETTLE: Duration = Duration::from_secs(1);
/// Time for viewers over TCP to read the data that came while all was looked at.
const CAUGHT_UP: Duration = Duration::from_millis(200);
/// For how long perf looks where the time goes.
const SAMPLED_S: u32 = 2;
/// Share of the data due that may be missing, of bytes and of packets.
const MISSING: f64 = 0.01;
const LOST: f64 = 0.001;
/// Threads of ours that send.
const ENGINE_THREAD: &str = "engine-";

/// Hosts, titles and settings of the trials of senders.
#[derive(Clone, Copy)]
pub struct SenderTestbed<'a> {
    /// The hosts.
    pub site: &'a BenchSite,
    /// The titles.
    pub media: &'a TitleFolder,
    /// The `millrace` program.
    pub program: &'a Path,
    /// Media time over which streams begin.
    pub spread: Duration,
    /// As in [`SendPlan::read_bytes`].
    pub read_bytes: usize,
    /// As in [`SendPlan::cache_bytes`].
    pub cache_bytes: u64,
    /// As in [`SendPlan::is_usual`].
    pub is_usual: bool,
}

/// The parameters of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The sender.
    pub kind: SendMethod,
    /// By what.
    pub transport: Transport,
    /// Streams.
    pub count: u32,
    /// How long all is watched.
    pub window: Duration,
    /// Whether system calls are counted and routines sampled behind the window.
    pub is_profiled: bool,
}

/// Activity of the engine's thread in the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadUse {
    /// Times that it waited, a second.
    pub voluntary_per_s: f64,
    /// Times that it was made to wait, a second.
    pub involuntary_per_s: f64,
    /// Its share of a core.
    pub share: f64,
}

/// The result of an attempt.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The viewers' results, and the cost.
    pub trial: Trial,
    /// Share of the senders' core that was not idle.
    pub busy: f64,
    /// The same of the viewers' core: near 1, they were the bottleneck.
    pub viewers_busy: f64,
    /// Of ours.
    pub engine: Option<ThreadUse>,
    /// The routines, or why there are none.
    pub routines: Option<Result<Vec<Routine>, String>>,
}

impl Tried {
    /// Returns whether every stream got the data due.
    pub fn is_kept(&self) -> bool {
        let f = &self.trial.figures;
        f.without == 0 && f.loss_ratio <= LOST && f.delivered_ratio >= 1.0 - MISSING
    }

    /// For the search.
    pub fn seen(&self) -> StreamTrial {
        StreamTrial { count: self.trial.figures.viewers, busy: self.busy, is_kept: self.is_kept() }
    }
}

/// Counters of senders and viewers at one moment.
struct TrialSnapshot {
    at: StdInstant,
    senders: Usage,
    viewers: Usage,
    engine: Option<(u64, u64, u64)>,
    /// Of each stream.
    bytes: Vec<u64>,
    packets: u64,
    lost: u64,
    late: Vec<(u64, u64)>,
}

/// Carries it out.
///
/// # Errors
/// When a sender cannot be started, or ends; when there can be no probe, or no connection.
pub fn attempt(stage: &SenderTestbed<'_>, what: Attempt, cancel: &AtomicBool) -> anyhow::Result<Tried> {
    let before = CpuTime::read();
    let seen = stage.site.on_client(|| match what.transport {
        Transport::Udp => by_datagrams(stage, what, cancel),
        Transport::Tcp => by_connections(stage, what, cancel),
    })??;
    let stolen = before.zip(CpuTime::read()).map(|(before, now)| now.stolen_since(before));
    Ok(tried(stage, what, seen, stolen.unwrap_or(0.0)))
}

/// The observations: the two looks, and the data read after them.
struct Watched {
    first: TrialSnapshot,
    last: TrialSnapshot,
    late: Vec<(u64, u64)>,
    profile: Option<Profile>,
}

struct Profile {
    syscalls_per_s: Option<f64>,
    routines: Result<Vec<Routine>, String>,
}

fn profile(stage: &SenderTestbed<'_>) -> Profile {
    let cores = &stage.site.server_cores;
    let syscalls_per_s = syscalls_per_s(cores);
    let routines = routines::sample(cores, SAMPLED_S, &stage.site.dir).map_err(|error| format!("{error:#}"));
    Profile { syscalls_per_s, routines }
}

fn start(stage: &SenderTestbed<'_>, what: Attempt) -> anyhow::Result<Group> {
    let plan = SendPlan {
        kind: what.kind,
        dir: stage.media.dir.clone(),
        titles: stage.media.titles,
        transport: what.transport,
        blocks: stage.media.blocks,
        streams: what.count,
        to: stage.site.client_ips.clone(),
        base_port: BASE_PORT,
        listen: (what.transport == Transport::Tcp).then_some(listen(stage)?),
        spread: stage.spread,
        read_bytes: if matches!(what.kind, SendMethod::Engine | SendMethod::Call) {
            0
        } else {
            stage.read_bytes
        },
        cache_bytes: stage.cache_bytes,
        is_usual: stage.is_usual,
        only: None,
    };
    let mut command = stage.site.command(stage.program);
    command.args(process::arguments(&plan));
    let mut group = Group::start(stage.site, what.kind.name(), command)?;
    group.wait_for_word_within(READY, START_WITHIN)?;
    Ok(group)
}

fn listen(stage: &SenderTestbed<'_>) -> anyhow::Result<SocketAddr> {
    let ip: IpAddr = stage.site.server_ip().parse().context("the server's address")?;
    Ok(SocketAddr::new(ip, PORT))
}

impl TrialSnapshot {
    fn take(stage: &SenderTestbed<'_>, group: &Group) -> Self {
        let pid = group.id();
        let engine = || {
            let (voluntary, involuntary) = proc::switches(pid, ENGINE_THREAD).ok()?;
            Some((voluntary, involuntary, proc::cpu_ns(pid, ENGINE_THREAD).ok()?))
        };
        Self {
            at: StdInstant::now(),
            senders: Usage::look(&[pid], &stage.site.server_cores),
            viewers: Usage::look(&[], &stage.site.client_cores),
            engine: engine(),
            bytes: Vec::new(),
            packets: 0,
            lost: 0,
            late: Vec::new(),
        }
    }

    /// Adds the probe's counts.
    fn with_probe(mut self, probe: &DropProbe, count: u32) -> anyhow::Result<Self> {
        self.at = StdInstant::now();
        for n in 0..count {
            let counts = probe.read(n)?;
            self.bytes.push(counts.payload_bytes);
            self.packets += counts.packets;
            self.lost += counts.lost + counts.restarts;
        }
        self.late = probe.lateness()?;
        Ok(self)
    }

    /// Takes a look with the bytes that viewers have read. No viewer reads while the rest is looked
    /// at, so the viewers come first.
    fn take_after(viewers: &Viewers, stage: &SenderTestbed<'_>, group: &Group) -> Self {
        let at = StdInstant::now();
        let (bytes, gone) = viewers.bytes();
        Self { at, lost: gone as u64, bytes, ..Self::take(stage, group) }
    }
}

fn by_datagrams(stage: &SenderTestbed<'_>, what: Attempt, cancel: &AtomicBool) -> anyhow::Result<Watched> {
    let config = ProbeConfig {
        interface: CLIENT_INTERFACE.to_owned(),
        max_streams: what.count,
        action: ProbeAction::Drop,
    };
    let probe = DropProbe::attach(&config)?;
    for n in 0..what.count {
        probe.watch(destination(&stage.site.client_ips, BASE_PORT, n)?, n, ProbeMedia::rtp(MP2T))?;
    }
    let group = start(stage, what)?;
    let interval = Duration::from_nanos(stage.media.blocks.interval_ns);
    wait(SETTLE + interval, cancel);
    let first = TrialSnapshot::take(stage, &group).with_probe(&probe, what.count)?;
    wait(what.window, cancel);
    let last = TrialSnapshot::take(stage, &group).with_probe(&probe, what.count)?;
    let late = since(&first.late, &last.late);
    let profile = (what.is_profiled && !cancel.load(Ordering::Relaxed)).then(|| profile(stage));
    Ok(Watched { first, last, late, profile })
}

fn by_connections(stage: &SenderTestbed<'_>, what: Attempt, cancel: &AtomicBool) -> anyhow::Result<Watched> {
    super::raise_open_files();
    let group = start(stage, what)?;
    let mut viewers = Viewers::connect(listen(stage)?, what.count, stage.media.blocks)?;
    viewers.go()?;
    let ns = |time: Duration| time.as_nanos() as u64;
    let interval = stage.media.blocks.interval_ns;
    // The last process may still be on its way when all are connected.
    let started_by = now_ns() + ns(START_WITHIN);
    let all_play = |viewers: &Viewers| viewers.bytes().0.iter().all(|bytes| *bytes > 0);
    while !all_play(&viewers) && now_ns() < started_by && !cancel.load(Ordering::Relaxed) {
        viewers.read(now_ns() + interval.max(100_000_000), cancel, || false)?;
    }
    viewers.read(now_ns() + ns(SETTLE) + interval, cancel, || false)?;
    let first = TrialSnapshot::take_after(&viewers, stage, &group);
    // Data that came while no viewer read was not late.
    viewers.read(now_ns() + ns(CAUGHT_UP), cancel, || false)?;
    viewers.begin_counting();
    viewers.read(now_ns() + ns(what.window), cancel, || false)?;
    let late = viewers.end_counting();
    let last = TrialSnapshot::take_after(&viewers, stage, &group);
    let late = late.iter().flat_map(|late| late.iter_recorded());
    let late = late.map(|bin| (bin.value_iterated_to(), bin.count_at_value())).collect();
    let profile = match what.is_profiled && !cancel.load(Ordering::Relaxed) {
        false => None,
        true => std::thread::scope(|scope| -> anyhow::Result<_> {
            let profiling = scope.spawn(|| profile(stage));
            viewers.read(u64::MAX, cancel, || profiling.is_finished())?;
            Ok(profiling.join().ok())
        })?,
    };
    Ok(Watched { first, last, late, profile })
}

/// Returns the growth of the bins since `before`.
fn since(before: &[(u64, u64)], now: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let old = |edge| before.binary_search_by_key(&edge, |bin| bin.0).map_or(0, |at| before[at].1);
    let grown = now.iter().map(|&(edge, count)| (edge, count.saturating_sub(old(edge))));
    grown.filter(|bin| bin.1 > 0).collect()
}

fn tried(stage: &SenderTestbed<'_>, what: Attempt, watched: Watched, stolen_ratio: f64) -> Tried {
    let Watched { first, last, late, profile } = watched;
    let seconds = (last.at - first.at).as_secs_f64().max(1e-3);
    let bytes: Vec<u64> =
        last.bytes.iter().zip(&first.bytes).map(|(now, then)| now.saturating_sub(*then)).collect();
    let payload_bytes = bytes.iter().sum::<u64>() as f64;
    let blocks = &stage.media.blocks;
    let wanted = blocks.rate().0 as f64 * f64::from(what.count);
    let packets = match what.transport {
        Transport::Udp => (last.packets - first.packets.min(last.packets)) as f64,
        Transport::Tcp => payload_bytes / f64::from(blocks.datagram_bytes),
    };
    let lost = last.lost.saturating_sub(first.lost);
    // A slow stream has a block now and then only; who got none in a window that has room for two got nothing.
    let is_long = what.window.as_nanos() as u64 > 2 * blocks.interval_ns;
    let silent = bytes.iter().filter(|bytes| **bytes == 0 && is_long).count() as u64;
    let gone = if what.transport == Transport::Tcp { last.lost } else { 0 };
    let figures = TrialFigures {
        viewers: what.count,
        without: silent + gone,
        packets: packets as u64,
        packets_per_s: packets / seconds,
        loss_ratio: if what.transport == Transport::Udp {
            lost as f64 / (packets + lost as f64).max(1.0)
        } else {
            0.0
        },
        // At its edges the window may cut off, or let in, a block of each.
        delivered_ratio: payload_bytes * 8.0 / seconds / wanted.max(1.0),
        bits_per_s: payload_bytes * 8.0 / seconds,
        p50_ms: percentile_ms(&late, 0.5),
        p99_ms: percentile_ms(&late, 0.99),
        p999_ms: percentile_ms(&late, 0.999),
        spoiled: false,
        stolen_ratio,
    };
    let spent = last.senders.since(&first.senders);
    let busy = |spent: &Spent, cores: usize| {
        (1.0 - spent.idle_s / (spent.wall_s * cores.max(1) as f64)).clamp(0.0, 1.0)
    };
    let engine = match (what.kind, first.engine, last.engine) {
        (SendMethod::Engine | SendMethod::Call, Some(then), Some(now)) => Some(ThreadUse {
            voluntary_per_s: now.0.saturating_sub(then.0) as f64 / spent.wall_s,
            involuntary_per_s: now.1.saturating_sub(then.1) as f64 / spent.wall_s,
            share: now.2.saturating_sub(then.2) as f64 / 1e9 / spent.wall_s,
        }),
        _ => None,
    };
    let viewers = last.viewers.since(&first.viewers);
    let syscalls_per_s = profile.as_ref().and_then(|profile| profile.syscalls_per_s);
    Tried {
        busy: busy(&spent, stage.site.server_cores.len()),
        viewers_busy: busy(&viewers, stage.site.client_cores.len()),
        trial: Trial { figures, spent: Some(spent), syscalls_per_s, why: None },
        engine,
        routines: profile.map(|profile| profile.routines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_of_a_window_is_what_came_since() {
        let before = [(0, 5), (10, 2), (30, 1)];
        let now = [(0, 9), (10, 2), (20, 4), (30, 2)];
        assert_eq!(since(&before, &now), [(0, 4), (20, 4), (30, 1)]);
        assert_eq!(since(&[], &now), now);
    }
}
