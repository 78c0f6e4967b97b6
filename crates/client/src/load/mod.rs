//! Load players in one process: a few threads, a few hundred bytes of state each, nothing written, everything counted.
//!
//! It is there to prove what a server can carry, so it must not become what is measured: arrivals are stamped by the
//! kernel, the loop lets packets gather and takes them in trains, and it reports how late it was itself.

mod behaviour;
mod choice;
mod meter;
mod options;
mod playback;
mod report;
mod rtsp;
mod shard;
mod target;
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
use crate::procfs::UdpErrors;
use crate::rtsp::dialogue::DialogueConfig;

pub use behaviour::Behaviour;
pub use choice::{Arrivals, TitleChoice};
pub use options::{Inspect, LoadOptions, MAX_STREAMS};
use report::Sums;
pub use report::{LoadReceiver, LoadReport, WorstSession};
use shard::{Shard, Tally};
use target::Target;

/// How far it is; given about four times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadProgress {
    /// Since the first player began.
    pub elapsed: Duration,
    /// Players that have begun.
    pub started: u64,
    /// Players that play.
    pub playing: u64,
    /// Players that failed.
    pub failed: u64,
    /// Packets received.
    pub packets: u64,
    /// Packets lost, of players that have ended.
    pub lost: u64,
}

/// What all threads need to know.
struct Plan {
    options: LoadOptions,
    targets: Vec<Target>,
    dialogue: DialogueConfig,
    began: Instant,
    /// When all players have begun.
    ramp_end: Instant,
    /// When they end.
    end: Instant,
}

impl Plan {
    /// When player `index` begins.
    fn start_of(&self, index: u32) -> Instant {
        let ramp_ns = match self.options.arrivals {
            Arrivals::Ramp(ramp) => ramp.as_nanos() as u64,
            _ => 0,
        };
        let offset = u128::from(ramp_ns) * u128::from(index) / u128::from(self.options.streams);
        self.began.plus_ns(offset as u64)
    }

    /// Address of this machine for player `index`.
    fn local_of(&self, index: u32) -> Option<IpAddr> {
        let local = &self.options.local;
        (!local.is_empty()).then(|| local[index as usize % local.len()])
    }

    /// Where in the film player `index` begins.
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
    // The second is what an ordinary user may do: up to the hard limit.
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

fn plan(options: &LoadOptions) -> Result<Plan, ClientError> {
    options.check()?;
    let local = options.local.first().copied();
    let targets = options.targets.iter().map(|text| Target::parse(text, local)).collect::<Result<_, _>>()?;
    raise_descriptors(options.descriptors())?;
    let began = SystemClock.now();
    let ramp_end = match options.arrivals {
        Arrivals::Ramp(ramp) => began + ramp,
        _ => began,
    };
    let reply_timeout_ns = u64::try_from(options.reply_timeout.as_nanos()).unwrap_or(u64::MAX);
    Ok(Plan {
        targets,
        dialogue: DialogueConfig { user_agent: options.user_agent.as_str().into(), reply_timeout_ns },
        began,
        ramp_end,
        end: ramp_end + options.duration,
        options: options.clone(),
    })
}

/// Runs many players until their time is over or `cancel` becomes true, ends their sessions properly and reports.
///
/// # Errors
/// Options that make no sense, a host without address, too few descriptors, a failing epoll. What happens to single
/// players is in the report.
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
            match results.recv_timeout(Duration::from_millis(250)) {
                Ok(result) => parts.push(result?),
                Err(RecvTimeoutError::Timeout) => progress(&sum_up(&plan, &tallies)),
                Err(RecvTimeoutError::Disconnected) => return Ok::<(), ClientError>(()),
            }
        }
    })?;
    progress(&sum_up(&plan, &tallies));
    let errors = UdpErrors::read().since(errors_before);
    Ok(Sums::merge(parts).report(&plan, errors))
}

fn sum_up(plan: &Plan, tallies: &[Arc<Tally>]) -> LoadProgress {
    let mut sum = LoadProgress { elapsed: SystemClock.now() - plan.began, ..LoadProgress::default() };
    for tally in tallies {
        sum.started += tally.started.load(Ordering::Relaxed);
        sum.playing += tally.playing.load(Ordering::Relaxed);
        sum.failed += tally.failed.load(Ordering::Relaxed);
        sum.packets += tally.packets.load(Ordering::Relaxed);
        sum.lost += tally.lost.load(Ordering::Relaxed);
    }
    sum
}
