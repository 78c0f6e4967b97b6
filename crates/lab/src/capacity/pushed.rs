//! A trial with senders that send to us unasked: counted at the interface, where listeners at sockets would be slower than
//! the senders.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as StdInstant};

use anyhow::Context;
use millrace_core::units::BitRate;
use millrace_load::drop_probe::{DropProbe, ProbeAction, ProbeConfig, ProbeCounts, ProbeMedia};

use super::limits::TrialFigures;
use super::meter::{Usage, syscalls_per_s};
use super::site::{BenchSite, CLIENT_INTERFACE};
use super::trial::{RunningService, SETTLE_S, Service, Trial, TrialPlan};

/// Payload type of transport streams (RFC 3551).
pub(crate) const MP2T: u8 = 33;

/// Runs one trial on the client's host; `None` when there can be no probe.
///
/// # Errors
/// When the senders cannot be started or the probe fails under way.
pub(super) fn trial(
    site: &BenchSite,
    service: &Service<'_>,
    base_port: u16,
    nominal: Option<BitRate>,
    plan: TrialPlan,
    cancel: &AtomicBool,
) -> anyhow::Result<Option<Trial>> {
    let (cores, ip) = (site.server_cores.clone(), site.client_ips[0]);
    site.on_client(move || {
        let config = ProbeConfig {
            interface: CLIENT_INTERFACE.to_owned(),
            max_streams: plan.count,
            action: ProbeAction::Drop,
        };
        let Ok(probe) = DropProbe::attach(&config) else { return Ok(None) };
        for n in 0..plan.count {
            let port = u16::try_from(u32::from(base_port) + 2 * n).context("too many viewers for ports")?;
            probe.watch(SocketAddr::new(ip, port), n, ProbeMedia::rtp(MP2T))?;
        }
        let running = (service.start)(plan.count).with_context(|| format!("start {}", service.name))?;
        let arriving = Duration::from_secs_f64(SETTLE_S + f64::from(plan.count) / service.arrivals_per_s);
        wait(arriving, cancel);
        let first = StreamSnapshot::take(&probe, plan.count, &running, &cores)?;
        let counting = plan.profile.then(|| {
            let cores = cores.clone();
            std::thread::spawn(move || syscalls_per_s(&cores))
        });
        wait(plan.window, cancel);
        let last = StreamSnapshot::take(&probe, plan.count, &running, &cores)?;
        let late = probe.lateness()?;
        drop(running);
        let figures = figures(&first, &last, &late, nominal, plan.count);
        let syscalls_per_s = counting.and_then(|counting| counting.join().ok()?);
        let spent = Some(last.usage.since(&first.usage));
        Ok(Some(Trial { figures, spent, syscalls_per_s, why: None }))
    })?
}

/// Waits, or until the user wants to stop.
pub(crate) fn wait(time: Duration, cancel: &AtomicBool) {
    let end = StdInstant::now() + time;
    while !cancel.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(StdInstant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(200)));
    }
}

/// All streams at one moment.
struct StreamSnapshot {
    at: StdInstant,
    usage: Usage,
    streams: Vec<ProbeCounts>,
}

impl StreamSnapshot {
    fn take(
        probe: &DropProbe,
        count: u32,
        running: &RunningService,
        cores: &[usize],
    ) -> anyhow::Result<Self> {
        let at = StdInstant::now();
        let streams = (0..count).map(|n| Ok(probe.read(n)?)).collect::<anyhow::Result<_>>()?;
        Ok(Self { at, usage: Usage::look(&running.ids(), cores), streams })
    }

    fn sum(&self, what: fn(&ProbeCounts) -> u64) -> u64 {
        self.streams.iter().map(what).sum()
    }
}

fn figures(
    first: &StreamSnapshot,
    last: &StreamSnapshot,
    late: &[(u64, u64)],
    nominal: Option<BitRate>,
    count: u32,
) -> TrialFigures {
    let seconds = (last.at - first.at).as_secs_f64().max(1e-3);
    let grown = |what: fn(&ProbeCounts) -> u64| last.sum(what).saturating_sub(first.sum(what)) as f64;
    let bits_per_s = grown(|s| s.payload_bytes) * 8.0 / seconds;
    let wanted = nominal.map_or(0.0, |rate| rate.0 as f64) * f64::from(count);
    let (packets, lost) = (last.sum(|s| s.packets), last.sum(|s| s.lost));
    let silent = first.streams.iter().zip(&last.streams).filter(|(a, b)| a.packets == b.packets).count();
    TrialFigures {
        viewers: count,
        without: silent as u64 + last.sum(|s| s.restarts),
        packets,
        packets_per_s: grown(|s| s.packets) / seconds,
        loss_ratio: lost as f64 / (packets + lost).max(1) as f64,
        delivered_ratio: if wanted > 0.0 { bits_per_s / wanted } else { 1.0 },
        bits_per_s,
        p50_ms: percentile_ms(late, 0.5),
        p99_ms: percentile_ms(late, 0.99),
        p999_ms: percentile_ms(late, 0.999),
        spoiled: false,
        stolen_ratio: 0.0,
    }
}

/// Percentile of bins (lower edge in microseconds, count).
pub(crate) fn percentile_ms(bins: &[(u64, u64)], part: f64) -> f64 {
    let all: u64 = bins.iter().map(|(_, count)| count).sum();
    let rank = (part * all as f64).ceil() as u64;
    let mut below = 0;
    for (edge_us, count) in bins {
        below += count;
        if below >= rank.max(1) {
            return *edge_us as f64 / 1e3;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_bins() {
        let bins = [(0, 50), (1000, 49), (20_000, 1)];
        assert_eq!([0.5, 0.99, 0.999].map(|part| percentile_ms(&bins, part)), [0.0, 1.0, 20.0]);
        assert_eq!(percentile_ms(&[], 0.5), 0.0);
    }

    #[test]
    fn streams_that_stopped_are_told_from_those_that_play() {
        let look = |at, packets: [u64; 2]| {
            let stream =
                |packets| ProbeCounts { packets, payload_bytes: packets * 1000, ..ProbeCounts::default() };
            StreamSnapshot { at, usage: Usage::look(&[], &[]), streams: packets.map(stream).to_vec() }
        };
        let now = StdInstant::now();
        let (first, last) = (look(now, [10, 10]), look(now + Duration::from_secs(2), [210, 10]));
        let figures = figures(&first, &last, &[(3000, 220)], Some(BitRate(400_000)), 2);
        assert_eq!((figures.without, figures.packets_per_s, figures.bits_per_s), (1, 100.0, 800_000.0));
        assert_eq!((figures.delivered_ratio, figures.p99_ms), (1.0, 3.0));
    }
}
