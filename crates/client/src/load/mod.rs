//! Many viewers in one process: a few threads, a few hundred bytes of state each, nothing written, everything counted.
//!
//! Its purpose is to prove the capacity of a server, so it must not become the subject of the
//! measurement: the kernel stamps arrivals, the loop lets packets gather and takes them in trains,
//! and it reports its own lateness.

mod behaviour;
mod between;
mod choice;
pub mod listen;
mod meter;
mod options;
mod pcr_clock;
mod person;
mod probe;
mod report;
mod rng;
mod rtsp;
mod series;
mod shard;
mod streams;
mod sums;
mod target;
mod ts_light;
mod viewer;
pub mod web;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clock::SystemClock;
use crate::error::ClientError;
use crate::limits::PROGRESS_NS;
use crate::procfs::UdpErrors;
use crate::rtsp::dialogue::DialogueConfig;
use crate::sdp::Take;

pub use behaviour::{Behaviour, Habit, Wait};
use choice::TitlePicker;
pub use choice::{Arrivals, TitleChoice};
pub use options::{Inspect, LoadOptions, MAX_STREAMS, MediaClock};
use probe::LoadProbe;
pub use report::{LoadReceiver, LoadReport, ProbeReport, WorstSession};
use series::Series;
pub use series::{LoadSample, write_series};
use shard::{Shard, Tally};
pub use streams::{StreamReport, write_per_stream};
use sums::Sums;
use target::LoadTarget;
pub use ts_light::TsFindings;
pub use web::{WebOptions, WebReport};

/// With [`Inspect::Sample`] the transport streams of about this many viewers are inspected.
const SAMPLED: u32 = 500;

/// How far it is; given about four times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadProgress {
    /// Since the first viewer began.
    pub elapsed: Duration,
    /// Viewers that have begun.
    pub started: u64,
    /// Viewers that play.
    pub playing: u64,
    /// Viewers that failed.
    pub failed: u64,
    /// Packets received.
    pub packets: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// Packets missing to date.
    pub lost: u64,
}

/// Settings that all threads of a load share.
struct LoadPlan {
    options: LoadOptions,
    targets: Vec<LoadTarget>,
    dialogue: DialogueConfig,
    titles: TitlePicker,
    probe: Option<Arc<LoadProbe>>,
    series: Series,
    interval_ns: u64,
    began: Instant,
    /// When each viewer begins, after `began`.
    starts_ns: Vec<u64>,
    /// When all viewers have begun.
    ramp_end: Instant,
    /// When they end.
    end: Instant,
}

impl LoadPlan {
    /// When viewer `index` begins.
    fn start_of(&self, index: u32) -> Instant {
        self.began.plus_ns(self.starts_ns[index as usize])
    }

    /// Whether the transport stream of viewer `index` is looked into.
    fn inspects(&self, index: u32) -> bool {
        match self.options.inspect {
            Inspect::All => true,
            Inspect::None => false,
            Inspect::Sample => index.is_multiple_of(self.options.streams.div_ceil(SAMPLED)),
        }
    }

    /// Address of this machine for viewer `index`.
    fn local_of(&self, index: u32) -> Option<IpAddr> {
        let local = &self.options.local;
        (!local.is_empty()).then(|| local[index as usize % local.len()])
    }

    /// Where in the title viewer `index` begins.
    fn place_of(&self, index: u32) -> MediaTicks {
        let spread =
            u128::from(self.options.start_spread.0) * u128::from(index) / u128::from(self.options.streams);
        MediaTicks(self.options.start.0.saturating_add(spread as u64))
    }
}

/// Makes room for `needed` descriptors.
fn raise_descriptors(needed: u64) -> Result<(), ClientError> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = now.maximum.map(|maximum| maximum.max(needed));
    let allowed = now.maximum.unwrap_or(u64::MAX);
    // The second call is the one allowed to an ordinary user: up to the hard limit.
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })
        .or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: Some(needed.min(allowed)), ..now }))
        .map_err(|error| ClientError::Socket { what: "limit of descriptors", source: error.into() })?;
    let reached = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if reached < needed {
        return Err(ClientError::Limit {
            what: "file descriptors",
            wanted: needed,
            allowed: reached,
            advice: "ask for fewer viewers, share RTCP sockets, or raise the limit (ulimit -Hn)",
        });
    }
    Ok(())
}

fn plan(options: &LoadOptions) -> Result<LoadPlan, ClientError> {
    options.check()?;
    let local = options.local.first().copied();
    let targets =
        options.targets.iter().map(|text| LoadTarget::parse(text, local)).collect::<Result<_, _>>()?;
    raise_descriptors(options.descriptors())?;
    let attach = |interface: &String| LoadProbe::attach(interface, options.streams, options.probe_passes);
    let probe = options.probe.as_ref().map(attach).transpose()?.map(Arc::new);
    let began = SystemClock.now();
    let (starts_ns, arrivals_ns) = options.arrivals.times_ns(options.streams, options.seed);
    let ramp_end = began.plus_ns(arrivals_ns);
    let interval_ns = options.interval.as_nanos() as u64;
    let reply_timeout_ns = u64::try_from(options.reply_timeout.as_nanos()).unwrap_or(u64::MAX);
    Ok(LoadPlan {
        targets,
        dialogue: DialogueConfig {
            user_agent: options.user_agent.as_str().into(),
            reply_timeout_ns,
            take: Take::Any,
            fec: options.fec,
        },
        probe,
        titles: TitlePicker::new(options.titles, options.targets.len()),
        series: Series::new(options.threads, interval_ns),
        interval_ns,
        began,
        starts_ns,
        ramp_end,
        end: ramp_end + options.duration,
        options: options.clone(),
    })
}

/// Runs many viewers until their time is over or `cancel` becomes true, ends their sessions properly and reports.
///
/// # Errors
/// Options that make no sense, a host without address, too few descriptors, a failing epoll. What happens to single
/// viewers is in the report.
pub fn load(
    options: &LoadOptions,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(&LoadProgress),
) -> Result<LoadReport, ClientError> {
    let plan = plan(options)?;
    let errors_before = UdpErrors::read();
    let tallies: Vec<Arc<Tally>> = (0..options.threads).map(|_| Arc::default()).collect();
    let (done, results) = channel();
    let mut parts = Vec::new();
    std::thread::scope(|scope| {
        for (number, tally) in tallies.iter().enumerate() {
            let (plan, done) = (&plan, done.clone());
            std::thread::Builder::new()
                .name(format!("load-{number}"))
                .spawn_scoped(scope, move || {
                    let result = Shard::new(plan, number, tally).and_then(|shard| shard.run(cancel));
                    // The other end waits for every thread.
                    let _ = done.send(result);
                })
                .map_err(|source| ClientError::Socket { what: "thread", source })?;
        }
        drop(done);
        loop {
            match results.recv_timeout(Duration::from_nanos(PROGRESS_NS)) {
                Ok(result) => parts.push(result?),
                Err(RecvTimeoutError::Timeout) => progress(&sum_up(&plan, &tallies)),
                Err(RecvTimeoutError::Disconnected) => return Ok::<(), ClientError>(()),
            }
        }
    })?;
    progress(&sum_up(&plan, &tallies));
    let errors = UdpErrors::read().since(errors_before);
    let series = plan.series.take();
    let mut report = Sums::merge(parts).report(&plan, errors, series);
    report.judge();
    Ok(report)
}

fn sum_up(plan: &LoadPlan, tallies: &[Arc<Tally>]) -> LoadProgress {
    let mut sum = LoadProgress { elapsed: SystemClock.now() - plan.began, ..LoadProgress::default() };
    for tally in tallies {
        sum.started += tally.started.load(Ordering::Relaxed);
        sum.playing += tally.playing.load(Ordering::Relaxed);
        sum.failed += tally.failed.load(Ordering::Relaxed);
        sum.payload_bytes += tally.payload_bytes.load(Ordering::Relaxed);
        sum.packets += tally.packets.load(Ordering::Relaxed);
        sum.lost += tally.lost.load(Ordering::Relaxed);
    }
    sum
}
