//! One trial: a number of viewers of one service, their quality and the cost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use millrace_client::error::ClientError;
use millrace_client::play::TransportChoice;
use millrace_core::limits::web::HLS_TARGET_TICKS;
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_core::units::BitRate;
use millrace_load::{
    Arrivals, Inspect, LoadError, LoadOptions, LoadProgress, LoadReport, LoadSample, MediaClock, load,
};

use super::limits::TrialFigures;
use super::meter::{Spent, Usage, syscalls_per_s};
use super::pushed;
use super::site::{BenchSite, CLIENT_INTERFACE, Group};

/// What serves, as the search sees it.
pub struct Service<'a> {
    /// Its name in reports.
    pub name: String,
    /// RTP over UDP or TCP; services over HTTP are TCP.
    pub transport: TransportChoice,
    /// How viewers and media come together.
    pub delivery: Delivery,
    /// Viewers that may arrive in a second; what sets up slowly needs time, or its setting up is all that is measured.
    pub arrivals_per_s: f64,
    /// Media time over which viewers begin, if it can seek.
    pub spread: Duration,
    /// Payload rate of one viewer; `None`: measured with a few viewers (for who sends something else than the file).
    pub nominal: Option<BitRate>,
    /// What its lateness is counted against.
    pub media_clock: MediaClock,
    /// Whether viewers may ask for a place where to begin.
    pub takes_range: bool,
    /// Time after which a viewer repeats its actions: a segment of HLS. Zero where media flow
    /// evenly.
    pub period: Duration,
    /// Never try more viewers than this.
    pub max_viewers: u32,
    /// First number of viewers to try.
    pub first: u32,
    /// Starts it for the given number of viewers.
    #[allow(clippy::type_complexity, reason = "a function and what it needs, named once")]
    pub start: Box<dyn Fn(u32) -> anyhow::Result<RunningService> + Sync + 'a>,
}

/// How viewers and media come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Viewers ask; the server runs on from trial to trial.
    Asked,
    /// The same, but a new server for each trial.
    AskedAfresh,
    /// Viewers listen at this port and every second one after it, then the senders are started.
    Pushed {
        /// The first port.
        base_port: u16,
    },
}

/// A service that runs; ends when dropped.
pub struct RunningService {
    /// Its processes.
    pub groups: Vec<Group>,
    /// What viewers ask for, in turn.
    pub targets: Vec<String>,
}

impl RunningService {
    pub(super) fn ids(&self) -> Vec<u32> {
        self.groups.iter().map(Group::id).collect()
    }
}

impl Service<'_> {
    /// Returns `window`, or somewhat more: a player of segments is either fetching or at rest, so a
    /// time shorter than a segment does not show at which rate it fetches.
    fn whole(&self, window: Duration) -> Duration {
        let period = self.period_in(window);
        if period.is_zero() {
            return window;
        }
        let periods = (window.as_secs_f64() / period.as_secs_f64()).ceil().max(1.0);
        // The first interval is thrown away, and the last may be cut short.
        period.mul_f64(periods) + 3 * INTERVAL
    }

    /// Time from the last viewer's arrival to the first look: everybody plays by then, and has filled its buffer.
    fn settle_s(&self, window: Duration) -> f64 {
        SETTLE_S + self.period_in(window).as_secs_f64()
    }

    /// The period, where trials of this length are to measure something.
    pub(super) fn period_in(&self, window: Duration) -> Duration {
        if window < SHORT { Duration::ZERO } else { self.period }
    }
}

/// How a trial is run.
#[derive(Clone, Copy, Debug)]
pub struct TrialPlan {
    /// Viewers.
    pub count: u32,
    /// How long all of them watch together.
    pub window: Duration,
    /// Whether system calls are counted, which costs the server something.
    pub profile: bool,
}

/// The result of a trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What viewers got.
    pub figures: TrialFigures,
    /// Usage while all watched.
    pub spent: Option<Spent>,
    /// System calls a second, if counted.
    pub syscalls_per_s: Option<f64>,
    /// Why viewers failed: the most frequent reason.
    pub why: Option<String>,
}

/// Time from the last viewer's arrival to the first look: everybody plays by then.
pub(super) const SETTLE_S: f64 = 1.0;
/// Time from one sample of the receiver to the next.
const INTERVAL: Duration = Duration::from_millis(500);
/// Trials that are shorter are for show.
const SHORT: Duration = Duration::from_secs(2);
/// Media that players over HTTP read ahead, not counting the rest of the segment that they fetch.
const READ_AHEAD: Duration = Duration::from_secs(4);
/// Length of HLS segments: ours, and what others are asked to cut.
pub const SEGMENT_S: u64 = HLS_TARGET_TICKS / MEDIA_HZ;
/// Players over HTTP read in bursts, so their rate within a trial is uncertain by this share;
/// pictures that stand still show whether it is enough.
const HTTP_SLACK: f64 = 0.03;
/// Turns of the receiver's loop that take longer than this spoil the times that it stamps itself.
const SLOW_TURN_US: u64 = 10_000;

/// Runs one trial. `running` holds the server from trial to trial.
///
/// # Errors
/// When the service does not start or the receiver cannot be set up. Viewers that fail are in the figures.
pub fn trial(
    site: &BenchSite,
    service: &Service<'_>,
    running: &mut Option<RunningService>,
    nominal: Option<BitRate>,
    plan: TrialPlan,
    cancel: &AtomicBool,
) -> anyhow::Result<Trial> {
    if let Delivery::Pushed { base_port } = service.delivery
        && site.has_probe.load(Ordering::Relaxed)
    {
        if let Some(trial) = pushed::trial(site, service, base_port, nominal, plan, cancel)? {
            return Ok(trial);
        }
        site.has_probe.store(false, Ordering::Relaxed);
    }
    let plan = TrialPlan { window: service.whole(plan.window), ..plan };
    let (mut options, settle_s) = load_options(site, service, nominal, plan);
    match service.delivery {
        Delivery::Pushed { base_port } => {
            *running = None;
            let ip = site.client_ips[0];
            let port = |n: u32| u32::from(base_port) + 2 * n;
            options.targets = (0..plan.count).map(|n| format!("rtp://{ip}:{}", port(n))).collect();
        }
        Delivery::Asked | Delivery::AskedAfresh => {
            if service.delivery == Delivery::AskedAfresh {
                *running = None;
            }
            let started = match running.take() {
                Some(running) => running,
                None => (service.start)(plan.count).with_context(|| format!("start {}", service.name))?,
            };
            options.targets.clone_from(&started.targets);
            *running = Some(started);
        }
    }
    let mut watch = TrialWatch::new(site, service, plan, settle_s, running.take());
    let report = run_load(site, &mut options, cancel, &mut |progress| watch.look(progress))?;
    if let Some(error) = watch.error.take() {
        return Err(error);
    }
    let figures = figures(&report, &watch, nominal);
    let (spent, syscalls) = (watch.spent(), watch.syscalls.take().and_then(|counted| counted.join().ok()?));
    *running = watch.running.take();
    if service.delivery != Delivery::Asked {
        *running = None;
    }
    let why = report.failures.iter().max_by_key(|(_, count)| **count).map(|(why, _)| why.clone());
    Ok(Trial { figures, spent, syscalls_per_s: syscalls, why })
}

/// Returns the receiver's options, and the time when all viewers watch.
pub(super) fn load_options(
    site: &BenchSite,
    service: &Service<'_>,
    nominal: Option<BitRate>,
    plan: TrialPlan,
) -> (LoadOptions, f64) {
    let arriving_s = f64::from(plan.count) / service.arrivals_per_s;
    let mut options = LoadOptions::new(Vec::new(), plan.count);
    options.transport = service.transport;
    options.local = site.client_ips.clone();
    options.inspect = Inspect::None;
    options.interval = INTERVAL;
    // A player that reads far ahead would not notice for the whole trial that its server is too slow.
    options.web.buffer = Some(READ_AHEAD);
    options.web.start_buffer = READ_AHEAD / 4;
    options.nominal_rate = nominal;
    options.start_spread = MediaTicks(service.spread.as_millis() as u64 * 90);
    (options.media_clock, options.sends_range) = (service.media_clock, service.takes_range);
    // The probe does not look into transport streams.
    let is_udp = service.transport != TransportChoice::Tcp && service.media_clock == MediaClock::Rtp;
    options.probe = (is_udp && site.has_probe.load(Ordering::Relaxed)).then(|| CLIENT_INTERFACE.to_owned());
    if let Delivery::Pushed { .. } = service.delivery {
        let settle_s = SETTLE_S + arriving_s;
        options.local = vec![site.client_ips[0]];
        options.arrivals = Arrivals::AllAtOnce;
        options.duration = Duration::from_secs_f64(settle_s) + plan.window;
        return (options, settle_s);
    }
    options.arrivals = Arrivals::Ramp(Duration::from_secs_f64(arriving_s));
    options.duration = Duration::from_secs_f64(service.settle_s(plan.window)) + plan.window;
    (options, arriving_s + service.settle_s(plan.window))
}

/// Runs a load on the client host, without the probe where the kernel refuses it.
pub(super) fn run_load(
    site: &BenchSite,
    options: &mut LoadOptions,
    cancel: &AtomicBool,
    look: &mut (dyn FnMut(&LoadProgress) + Send),
) -> anyhow::Result<LoadReport> {
    loop {
        let (asked, look) = (&*options, &mut *look);
        let report = site.on_client(move || load(asked, cancel, &mut |progress| look(progress)))?;
        match report {
            Err(error) if options.probe.is_some() && is_about_the_probe(&error) => {
                site.has_probe.store(false, Ordering::Relaxed);
                options.probe = None;
            }
            report => return report.context("the receiver"),
        }
    }
}

fn is_about_the_probe(error: &LoadError) -> bool {
    let is_option = matches!(error, LoadError::Client(ClientError::Option { option: "probe", .. }));
    is_option || error.to_string().contains("probe")
}

/// Actions and records while a trial runs.
struct TrialWatch<'a> {
    cores: &'a [usize],
    service: &'a Service<'a>,
    plan: TrialPlan,
    /// From here on everybody watches, seconds after the first viewer began.
    from_s: f64,
    /// Until here.
    until_s: f64,
    running: Option<RunningService>,
    first: Option<Usage>,
    last: Option<Usage>,
    syscalls: Option<std::thread::JoinHandle<Option<f64>>>,
    error: Option<anyhow::Error>,
}

impl<'a> TrialWatch<'a> {
    fn new(
        site: &'a BenchSite,
        service: &'a Service<'a>,
        plan: TrialPlan,
        from_s: f64,
        running: Option<RunningService>,
    ) -> Self {
        let until_s = from_s + (plan.window.as_secs_f64() - 0.6).max(0.5);
        let cores = &site.server_cores;
        let (first, last, syscalls, error) = (None, None, None, None);
        Self { cores, service, plan, from_s, until_s, running, first, last, syscalls, error }
    }

    fn look(&mut self, progress: &LoadProgress) {
        let is_pushed = matches!(self.service.delivery, Delivery::Pushed { .. });
        if is_pushed && self.running.is_none() && progress.started >= u64::from(self.plan.count) {
            match (self.service.start)(self.plan.count) {
                Ok(running) => self.running = Some(running),
                Err(error) if self.error.is_none() => self.error = Some(error),
                Err(_) => {}
            }
        }
        let now_s = progress.elapsed.as_secs_f64();
        let Some(running) = &self.running else { return };
        if self.first.is_none() && now_s >= self.from_s {
            self.first = Some(Usage::look(&running.ids(), self.cores));
            if self.plan.profile {
                let cores = self.cores.to_vec();
                self.syscalls = Some(std::thread::spawn(move || syscalls_per_s(&cores)));
            }
        } else if self.first.is_some() && self.last.is_none() && now_s >= self.until_s {
            self.last = Some(Usage::look(&running.ids(), self.cores));
        }
    }

    fn spent(&self) -> Option<Spent> {
        Some(self.last.as_ref()?.since(self.first.as_ref()?))
    }
}

/// Returns packets and payload bits a second, from the intervals that lie entirely behind `from_s`,
/// limited to whole `period`s.
pub(super) fn rates(series: &[LoadSample], from_s: f64, period: Duration) -> (f64, f64) {
    let from_ms = (from_s * 1e3) as u64 + INTERVAL.as_millis() as u64;
    let mut steady: Vec<&LoadSample> = series.iter().filter(|sample| sample.at_ms >= from_ms).collect();
    let whole = (period.as_millis() / INTERVAL.as_millis()) as usize;
    if whole > 0 && steady.len() > whole {
        steady.truncate(steady.len() / whole * whole);
    }
    let n = steady.len().max(1) as f64;
    let packets: u64 = steady.iter().map(|sample| sample.packets).sum();
    let bits: u64 = steady.iter().map(|sample| sample.rate_bits_per_s).sum();
    (packets as f64 / (n * INTERVAL.as_secs_f64()), bits as f64 / n)
}

/// Whether the receiver itself dropped packets, or stamped them late.
pub(super) fn is_spoiled(r: &LoadReport, transport: TransportChoice) -> bool {
    let drops = r.receiver.socket_drops + r.receiver.buffer_errors;
    drops > 0 || (transport == TransportChoice::Tcp && r.receiver.turn.p99_us > SLOW_TURN_US)
}

fn figures(r: &LoadReport, watch: &TrialWatch<'_>, nominal: Option<BitRate>) -> TrialFigures {
    let (plan, service) = (watch.plan, watch.service);
    let asked = u64::from(plan.count);
    let never = asked.saturating_sub(r.played + r.failed);
    let (packets_per_s, bits_per_s) = rates(&r.series, watch.from_s, service.period);
    let wanted = nominal.map_or(0.0, |rate| rate.0 as f64) * f64::from(plan.count);
    let sent = (r.packets + r.lost).max(1) as f64;
    let ms = |us: u64| us as f64 / 1e3;
    let delivered = if wanted > 0.0 { bits_per_s / wanted } else { 1.0 };
    let slack = if r.web.is_some() && (1.0 - HTTP_SLACK..1.0).contains(&delivered) { 1.0 } else { delivered };
    let stood_still =
        r.web.as_ref().map_or(0, |web| web.viewers_rebuffered + web.viewers.saturating_sub(web.started));
    TrialFigures {
        viewers: plan.count,
        without: r.failed + r.sessions_silent + never + r.restarts + stood_still,
        packets: r.packets,
        packets_per_s,
        loss_ratio: r.lost as f64 / sent,
        delivered_ratio: slack,
        bits_per_s,
        p50_ms: ms(r.lateness.p50_us),
        p99_ms: ms(r.lateness.p99_us),
        p999_ms: ms(r.lateness.p999_us),
        spoiled: is_spoiled(r, service.transport),
        stolen_ratio: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_whole_intervals_in_which_all_watch() {
        let sample = |at_ms, packets| LoadSample {
            at_ms,
            packets,
            rate_bits_per_s: packets * 20_000,
            ..LoadSample::default()
        };
        let series = [sample(500, 1), sample(1000, 50), sample(1500, 100), sample(2000, 102)];
        assert_eq!(rates(&series, 0.9, Duration::ZERO), (202.0, 2_020_000.0));
        assert_eq!(rates(&series, 9.0, Duration::ZERO), (0.0, 0.0));
        // Whoever fetches for half a second of each second is looked at for whole seconds.
        let series: Vec<LoadSample> = (1..=7).map(|n| sample(n * 500, n % 2 * 100)).collect();
        assert_eq!(rates(&series, 0.0, Duration::from_secs(1)), (100.0, 1_000_000.0));
        assert_eq!(rates(&series, 0.4, Duration::from_secs(1)), (100.0, 1_000_000.0));
        assert_eq!(rates(&series, 0.9, Duration::from_secs(1)), (100.0, 1_000_000.0));
        assert!(rates(&series, 0.9, Duration::ZERO).0 > 110.0);
    }
}
