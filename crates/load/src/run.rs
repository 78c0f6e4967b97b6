//! Runs a load: its threads, and the progress of all together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use millrace_client::clock::SystemClock;
use millrace_client::error::ClientError;
use millrace_client::limits::PROGRESS_NS;
use millrace_client::procfs::UdpErrors;
use millrace_core::seam::Clock;

use crate::error::LoadError;
use crate::options::LoadOptions;
use crate::plan::{LoadPlan, plan};
use crate::report::LoadReport;
use crate::shard::{Shard, Tally};
use crate::sums::Sums;

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

/// Runs many viewers until their time is over or `cancel` becomes true, ends their sessions properly and reports.
///
/// # Errors
/// Options that make no sense, a host without address, too few descriptors, a failing epoll. What happens to single
/// viewers is in the report.
pub fn load(
    options: &LoadOptions,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(&LoadProgress),
) -> Result<LoadReport, LoadError> {
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
                Err(RecvTimeoutError::Disconnected) => return Ok::<(), LoadError>(()),
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
