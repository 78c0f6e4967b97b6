//! The Stream Engine experiment (Lemon et al., 2003) on this machine: the same blocks at the same times by a process per stream, by event
//! loops and by our engine, and how many streams each carries with 90 % of a core.
//!
//! | part | measures |
//! | --- | --- |
//! | `rows` | streams at 90 % of a core, for each rate, transport, interval and sender; with perf the busiest routines |
//! | `thread` | how often the engine's own thread waits, in its usual bursts |
//! | `files` | 100 titles from disk, with reads of several sizes |

mod judge;
mod parts;

use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use millrace_client::play::TransportChoice;
use millrace_core::units::BitRate;

use crate::capacity::Scratch;
use crate::capacity::site::BenchSite;
use crate::frame::{Bench, Need, NoiseMeter, Options, Report, Row, Turns};
use crate::streams::routines::{Routine, TOP};
use crate::streams::search::{Bound, LoadOptions, LoadSearch, LoadStep, SearchAnswer};
use crate::streams::trial::{Attempt, SenderTestbed, Tried, attempt};
use crate::streams::{Blocks, SendMethod, TitleFolder, Transport};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "streams",
    shows: "streams that 90 % of a core carries by a process per stream, by event loops and by our engine, with the same blocks every 20, 100 and 500 ms, and what each takes (Stream Engine, 2003)",
    not_for: "the speed of a network card: a veth pair hands each datagram over on the sender's core",
    options: &["rate", "transport", "only", "offload", "runs", "duration", "quick", "scratch"],
    targets: &[
        "streams-udp-ratio",
        "streams-event-loop-ratio",
        "streams-tcp-ratio",
        "streams-engine-switches",
        "streams-engine-ten",
    ],
    needs: &[Need::Root, Need::Program("ethtool", "apt-get install ethtool")],
    run,
};

/// The share of a core at which streams are counted (section 4.2: "at 90% of the system capacity").
const TARGET: f64 = 0.9;
/// The rates of the paper.
const RATES: [u64; 2] = [500_000, 300_000];
/// Times between blocks.
const INTERVALS_MS: [u64; 3] = [20, 100, 500];
/// Media time over which streams begin.
const SPREAD: Duration = Duration::from_secs(15);
/// Memory of the engine's cache where all titles fit.
const CACHE_BYTES: u64 = 64 << 20;
/// The parts.
const PARTS: [&str; 3] = ["rows", "thread", "files"];

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Effort {
    window: Duration,
    precision: f64,
    trials: usize,
    /// Never more streams.
    max: u32,
    /// Never more processes, which take memory and time to start.
    max_processes: u32,
    spread: Duration,
}

impl Effort {
    fn of(options: &Options) -> Self {
        let seconds = options.duration_s.map_or(options.pick(0.5, 2.0, 4.0), |s| s as f64);
        Self {
            window: Duration::from_secs_f64(seconds),
            precision: options.pick(0.5, 0.12, 0.06),
            trials: options.pick(1, 4, 7),
            max: options.pick(3, 40_000, 40_000),
            max_processes: options.pick(3, 3_000, 6_000),
            spread: options.pick(Duration::ZERO, SPREAD, SPREAD),
        }
    }

    /// Seconds of media: where streams begin, a trial with perf behind it, and something to spare.
    fn media_s(&self) -> u64 {
        (self.spread + self.window).as_secs() + if self.trials > 1 { 30 } else { 8 }
    }
}

/// Names in `--only`; of each family those that are named are measured, or all if none is.
struct Only<'a>(&'a [String]);

impl<'a> Only<'a> {
    fn of(options: &'a Options) -> anyhow::Result<Self> {
        let kinds = SendMethod::ALL.map(SendMethod::name);
        let known = |word: &String| {
            PARTS.contains(&word.as_str())
                || kinds.contains(&word.as_str())
                || INTERVALS_MS.iter().any(|ms| *word == interval_name(*ms))
        };
        if let Some(word) = options.only.iter().find(|word| !known(word)) {
            let intervals = INTERVALS_MS.map(interval_name);
            bail!(
                "--only: got \"{word}\", allowed {}, {} and {}",
                PARTS.join(", "),
                kinds.join(", "),
                intervals.join(", ")
            );
        }
        Ok(Self(&options.only))
    }

    fn wants(&self, family: &[&str], name: &str) -> bool {
        let mut named = self.0.iter().filter(|word| family.contains(&word.as_str())).peekable();
        named.peek().is_none() || named.any(|word| word == name)
    }

    fn part(&self, name: &str) -> bool {
        self.wants(&PARTS, name)
    }

    fn kind(&self, kind: SendMethod) -> bool {
        self.wants(&SendMethod::ALL.map(SendMethod::name), kind.name())
    }

    fn interval(&self, ms: u64) -> bool {
        let names = INTERVALS_MS.map(interval_name);
        self.wants(&names.each_ref().map(String::as_str), &interval_name(ms))
    }
}

fn interval_name(ms: u64) -> String {
    format!("{ms}ms")
}

/// The result of a search: the answer, the trial nearest to it, and streams and busy share of all
/// trials.
type SearchSummary = (SearchAnswer, Option<Tried>, Vec<(f64, f64)>);

/// What one line of the rows is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    transport: Transport,
    rate: BitRate,
    interval_ms: u64,
}

impl Cell {
    fn label(&self) -> String {
        let transport = if self.transport == Transport::Udp { "UDP" } else { "TCP" };
        format!("{transport}, {}, every {} ms", self.rate, self.interval_ms)
    }
}

/// The number of streams that a sender carries.
#[derive(Clone, Debug)]
struct Standing {
    cell: Cell,
    kind: SendMethod,
    /// The result of the search, or of each round where rounds were run.
    streams: Vec<f64>,
    /// Of the intervals of the ratios.
    confidence: f64,
    bound: Bound,
    /// The trial nearest to the target.
    at: Option<Tried>,
    /// Streams and busy share of all trials.
    seen: Vec<(f64, f64)>,
}

impl Standing {
    fn label(&self) -> String {
        format!("{}: {}", self.cell.label(), self.kind.name())
    }
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let only = Only::of(options)?;
    let mut report = Report::new("streams");
    let mut noise = NoiseMeter::start();
    let scratch = Scratch::new(options, "streams")?;
    let effort = Effort::of(options);
    let site = BenchSite::new(options.offload.unwrap_or(false), 1, scratch.0.join("site"))?;
    let bench = StreamsRun { options, only, effort, site: &site, program: &options.program, dir: &scratch.0 };
    let cells = bench.cells()?;
    let mut standings = Vec::new();
    let by = |wanted: Transport| cells.iter().filter(move |cell| cell.transport == wanted).copied();
    if bench.only.part("rows") {
        bench.rows(by(Transport::Udp).collect(), &mut standings, &mut report, &mut noise)?;
    }
    let rate = cells.first().map_or(BitRate(RATES[0]), |cell| cell.rate);
    if bench.only.part("thread") && bench.only.kind(SendMethod::Engine) {
        noise.look();
        parts::thread(&bench, rate, &mut report, &mut noise)?;
    }
    if bench.only.part("files") {
        noise.look();
        parts::files(&bench, rate, &mut report)?;
    }
    if bench.only.part("rows") {
        site.steer(TransportChoice::Tcp)?;
        bench.rows(by(Transport::Tcp).collect(), &mut standings, &mut report, &mut noise)?;
    }
    judge::all(&standings, &mut report, &mut noise);
    report.noise = Some(noise.finish());
    Ok(report)
}

/// A run of the benchmark.
struct StreamsRun<'a> {
    options: &'a Options,
    only: Only<'a>,
    effort: Effort,
    site: &'a BenchSite,
    program: &'a Path,
    dir: &'a Path,
}

impl StreamsRun<'_> {
    /// Returns the requested cells.
    fn cells(&self) -> anyhow::Result<Vec<Cell>> {
        let rates = match self.options.rates.as_slice() {
            [] => RATES[..self.options.pick(1, 1, 2)].iter().map(|rate| BitRate(*rate)).collect(),
            given => given.to_vec(),
        };
        let transports = match self.options.transports.as_slice() {
            [] => vec![Transport::Udp, Transport::Tcp],
            given => given
                .iter()
                .map(|name| name.parse())
                .collect::<Result<_, String>>()
                .map_err(anyhow::Error::msg)?,
        };
        let intervals = &INTERVALS_MS[..self.options.pick(1, 2, 3)];
        let mut cells = Vec::new();
        for transport in transports {
            for rate in &rates {
                let wanted =
                    INTERVALS_MS.iter().filter(|ms| match self.options.only.contains(&interval_name(**ms)) {
                        true => true,
                        false => intervals.contains(ms) && self.only.interval(**ms),
                    });
                cells.extend(wanted.map(|ms| Cell { transport, rate: *rate, interval_ms: *ms }));
            }
        }
        ensure!(!cells.is_empty(), "there is nothing to measure; name less in --only");
        Ok(cells)
    }

    /// The titles of a cell, made once.
    fn media(&self, name: &str, blocks: Blocks, titles: u32) -> anyhow::Result<TitleFolder> {
        let (dir, seconds) = (self.dir.join(name), self.effort.media_s());
        if dir.exists() {
            return Ok(TitleFolder { dir, titles, blocks, seconds });
        }
        self.options.say(&format!("making {titles} titles of {}", blocks.rate()));
        TitleFolder::make(&dir, blocks, seconds, titles)
    }

    fn stage<'a>(&'a self, media: &'a TitleFolder) -> SenderTestbed<'a> {
        SenderTestbed {
            site: self.site,
            media,
            program: self.program,
            spread: self.effort.spread,
            read_bytes: 0,
            cache_bytes: CACHE_BYTES,
            is_usual: false,
        }
    }

    fn rows(
        &self,
        cells: Vec<Cell>,
        standings: &mut Vec<Standing>,
        report: &mut Report,
        noise: &mut NoiseMeter,
    ) -> anyhow::Result<()> {
        let tiny = [SendMethod::Process, SendMethod::Events, SendMethod::Engine];
        for cell in &cells {
            for kind in SendMethod::ALL {
                let is_wanted = self.only.kind(kind) && kind.can(cell.transport);
                if is_wanted && (!self.options.tiny || tiny.contains(&kind)) {
                    noise.look();
                    self.one(*cell, kind, standings, report)?;
                }
            }
            self.rounds(*cell, standings, noise)?;
        }
        let mine = |standing: &&Standing| cells.contains(&standing.cell);
        let rows: Vec<Row> = standings.iter().filter(mine).flat_map(|s| judge::rows(s, standings)).collect();
        report.rows.extend(rows);
        Ok(())
    }

    /// A search for one sender; one that does not work here is a line, not an end.
    fn one(
        &self,
        cell: Cell,
        kind: SendMethod,
        standings: &mut Vec<Standing>,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let media = self.cell_media(cell)?;
        let stage = self.stage(&media);
        match self.find(&stage, kind, cell.transport) {
            Ok((answer, at, seen)) => {
                let at = self.profiled(&stage, cell, kind, at, report)?;
                let streams = vec![answer.streams];
                standings.push(Standing {
                    cell,
                    kind,
                    streams,
                    confidence: 0.0,
                    bound: answer.bound,
                    at,
                    seen,
                });
            }
            Err(error) => {
                self.options.go_on()?;
                let label = format!("{}: {}", cell.label(), kind.name());
                report.rows.push(Row::new(format!("{label}: does not work here: {error:#}")));
            }
        }
        Ok(())
    }

    fn cell_media(&self, cell: Cell) -> anyhow::Result<TitleFolder> {
        let blocks = Blocks::of(cell.rate, Duration::from_millis(cell.interval_ms))?;
        self.media(&format!("{}-{}", cell.rate.0, cell.interval_ms), blocks, 1)
    }

    /// The senders that targets compare take turns, each with the number of streams of its search: the number at the target
    /// lies on a line from zero through each trial.
    fn rounds(&self, cell: Cell, standings: &mut [Standing], noise: &mut NoiseMeter) -> anyhow::Result<()> {
        let media = self.cell_media(cell)?;
        let stage = self.stage(&media);
        let compared = judge::compared(standings, cell);
        if compared.len() < 2 {
            return Ok(());
        }
        let names: Vec<String> = compared.iter().map(|at| standings[*at].label()).collect();
        let with_rounds = |seen: &Turns<f64>, standings: &mut [Standing]| {
            for (contender, at) in compared.iter().enumerate() {
                standings[*at].streams = seen.values(contender, |streams| *streams);
                standings[*at].confidence = seen.confidence();
            }
        };
        let searched = standings.to_vec();
        let turn = |contender: usize, _| -> anyhow::Result<f64> {
            let standing = &searched[compared[contender]];
            let (kind, transport, window) = (standing.kind, cell.transport, self.effort.window);
            let count =
                standing.at.as_ref().map_or(standing.streams[0] as u32, |at| at.trial.figures.viewers);
            let count = count.clamp(1, most(&self.effort, kind, transport));
            let what = Attempt { kind, transport, count, window, is_profiled: false };
            Ok(f64::from(count) * TARGET / self.try_once(&stage, what)?.busy)
        };
        let targets = |seen: &Turns<f64>| {
            let mut judged = searched.clone();
            with_rounds(seen, &mut judged);
            judged.retain(|standing| standing.cell == cell);
            judge::promises(&judged)
        };
        let seen = Turns::take(self.options, noise, &names, turn, targets)?;
        with_rounds(&seen, standings);
        Ok(())
    }

    /// Searches the number of streams at the target; with the trial nearest to it and all that were seen.
    fn find(
        &self,
        stage: &SenderTestbed<'_>,
        kind: SendMethod,
        transport: Transport,
    ) -> anyhow::Result<SearchSummary> {
        let Effort { precision, trials, window, .. } = self.effort;
        let max = most(&self.effort, kind, transport);
        let first = first_guess(kind, transport, &stage.media.blocks);
        let mut search = LoadSearch::new(LoadOptions { target: TARGET, first, max, precision, trials });
        let (mut tried, mut seen): (Vec<Tried>, _) = (Vec::new(), Vec::new());
        loop {
            match search.step() {
                LoadStep::Done(answer) => {
                    let distance = |tried: &Tried| (tried.busy - TARGET).abs();
                    let kept = tried.into_iter().filter(Tried::is_kept);
                    let at = kept.min_by(|a, b| distance(a).total_cmp(&distance(b)));
                    return Ok((answer, at, seen));
                }
                LoadStep::Try(count) => {
                    let one =
                        self.try_once(stage, Attempt { kind, transport, count, window, is_profiled: false })?;
                    search.tell(one.seen());
                    seen.push((f64::from(count), one.busy));
                    tried.push(one);
                }
            }
        }
    }

    /// Runs one trial and reports it as progress.
    fn try_once(&self, stage: &SenderTestbed<'_>, what: Attempt) -> anyhow::Result<Tried> {
        self.options.go_on()?;
        let tried = attempt(stage, what, &self.options.cancel)?;
        self.options.go_on()?;
        let interval = stage.media.blocks.interval_ns as f64 / 1e6;
        let (name, transport) = (what.kind.name(), what.transport.name());
        let (busy, figures) = (tried.busy * 100.0, &tried.trial.figures);
        self.options.say(&format!(
            "{name}, {transport}, a block every {interval:.1} ms: busy {busy:.1} %, {figures}"
        ));
        Ok(tried)
    }

    /// The same trial again with system calls counted and routines sampled, which slows it: only these are taken from it. For a first look
    /// at the shortest interval only.
    fn profiled(
        &self,
        stage: &SenderTestbed<'_>,
        cell: Cell,
        kind: SendMethod,
        at: Option<Tried>,
        report: &mut Report,
    ) -> anyhow::Result<Option<Tried>> {
        let is_wanted = !self.options.tiny && (!self.options.quick || cell.interval_ms == INTERVALS_MS[0]);
        let mut at = match at {
            Some(at) if is_wanted => at,
            at => return Ok(at),
        };
        let count = at.trial.figures.viewers;
        let window = self.effort.window.min(Duration::from_secs(1));
        let what = Attempt { kind, transport: cell.transport, count, window, is_profiled: true };
        let label = format!("{}: {}", cell.label(), kind.name());
        match self.try_once(stage, what) {
            Ok(profiled) => {
                at.trial.syscalls_per_s = profiled.trial.syscalls_per_s;
                at.routines = profiled.routines;
            }
            Err(error) => {
                self.options.go_on()?;
                report.rows.push(Row::new(format!("{label}: could not be profiled: {error:#}")));
            }
        }
        match &at.routines {
            Some(Ok(routines)) => report.rows.extend(top(&label, routines)),
            Some(Err(why)) => report.rows.push(Row::new(format!("{label}: no routines: {why}"))),
            None => {}
        }
        Ok(Some(at))
    }
}

/// The table of the paper: samples, share, and the kernel's cumulative share; USER has no part in that.
fn top(label: &str, routines: &[Routine]) -> Vec<Row> {
    let mut cumulative = 0.0;
    let row = |routine: &Routine| {
        if routine.is_kernel {
            cumulative += routine.share;
        }
        Row::new(format!("{label}: {}", routine.name))
            .with("samples", routine.samples as f64, "")
            .with("share", routine.share * 100.0, "%")
            .with("kernel, cumulative", cumulative * 100.0, "%")
    };
    routines.iter().take(TOP).map(row).collect()
}

/// The most streams that are tried: processes take memory and time to start, connections have places in an engine.
fn most(effort: &Effort, kind: SendMethod, transport: Transport) -> u32 {
    let places = match transport {
        Transport::Udp => effort.max,
        Transport::Tcp => effort.max.min(millrace_core::limits::MAX_CONNS_PER_ENGINE as u32),
    };
    if kind.is_process_each() { places.min(effort.max_processes) } else { places }
}

/// Returns where a search begins: from the approximate cost of a block in microseconds, on a
/// machine like this one. A search that begins too low takes one trial more.
fn first_guess(kind: SendMethod, transport: Transport, blocks: &Blocks) -> u32 {
    let each = match kind {
        SendMethod::Process | SendMethod::Sendfile => 14.0,
        SendMethod::Events
        | SendMethod::EventsMemory
        | SendMethod::EventsSendfile
        | SendMethod::Engine
        | SendMethod::Call => 4.0,
    };
    let connection = if transport == Transport::Tcp { 4.0 } else { 0.0 };
    let block_us = each + connection + 0.8 * f64::from(blocks.datagrams);
    (0.7 * blocks.interval_ns as f64 / 1e3 / block_us).max(8.0) as u32
}

#[cfg(test)]
mod tests;
