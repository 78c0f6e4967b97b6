//! Whether a machine was fit to measure: whether it lets a thread run, whether another program or
//! guest takes its processors, and whether the same things take the same time. It is reported with
//! the figures and decides nothing: contenders that take turns suffer alike.

use std::fmt;

use super::stats::Spread;
use super::ticks;

/// A pause of a spinning thread longer than this was not its own.
const GAP_NS: f64 = 1e6;
/// Length of one look, while a benchmark runs.
const LOOK_NS: f64 = 10e6;
/// Length of the first.
const FIRST_LOOK_NS: f64 = 100e6;
/// Share of the looks that may be lost in gaps.
const MOST_LOST: f64 = 0.05;
/// Share of the processors' time that a hypervisor may take away.
const MOST_STOLEN: f64 = 0.02;
/// p90 / p10 of repeated measurements of one thing.
const MOST_SPREAD: f64 = 1.3;

/// Reasons that are shown.
const SHOWN: usize = 4;

/// The state of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noise {
    /// Whether figures that were measured meanwhile say little.
    pub is_noisy: bool,
    /// Why; empty when it is not.
    pub why: Vec<String>,
}

impl Noise {
    /// A quiet machine.
    pub fn quiet() -> Self {
        Self::default()
    }

    /// A noisy one.
    pub fn noisy(why: impl Into<String>) -> Self {
        Self { is_noisy: true, why: vec![why.into()] }
    }

    /// Both: noisy if one is.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.is_noisy |= other.is_noisy;
        self.why.extend(other.why.into_iter().filter(|why| !self.why.contains(why)).collect::<Vec<_>>());
        self
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_noisy {
            // The first few tell enough; all are in `why`.
            let more = self.why.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            write!(f, "noisy machine: {}{more}", self.why[..self.why.len().min(SHOWN)].join("; "))
        } else {
            write!(f, "quiet machine")
        }
    }
}

/// Looks at the machine before and during a benchmark.
///
/// ```no_run
/// use millrace_lab::frame::NoiseMeter;
/// let mut meter = NoiseMeter::start();
/// let mut seconds = Vec::new();
/// for _ in 0..9 {
///     meter.look();
///     seconds.push(1.0); // one measured run
/// }
/// meter.repeated("the run", &seconds);
/// let noise = meter.finish();
/// ```
#[derive(Debug)]
pub struct NoiseMeter {
    load: f64,
    cores: f64,
    stat: Option<CpuTime>,
    spun_ns: f64,
    lost_ns: f64,
    gaps: u64,
    longest_ns: f64,
    /// The worst spread of repetitions.
    spread: Option<(String, Spread)>,
    /// How many scattered too much.
    scattered: usize,
}

impl NoiseMeter {
    /// Takes a first look of a tenth of a second.
    pub fn start() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let mut meter = Self {
            load: read("/proc/loadavg").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
            cores: cores(&read("/proc/stat")),
            stat: CpuTime::parse(&read("/proc/stat")),
            spun_ns: 0.0,
            lost_ns: 0.0,
            gaps: 0,
            longest_ns: 0.0,
            spread: None,
            scattered: 0,
        };
        meter.spin(FIRST_LOOK_NS);
        meter
    }

    /// Takes another look, of a hundredth of a second: before a round, never inside the measured
    /// part.
    pub fn look(&mut self) {
        self.spin(LOOK_NS);
    }

    /// Values that would be the same if nothing disturbed: rounds of one contender, runs of one setting.
    pub fn repeated(&mut self, what: &str, values: &[f64]) {
        let spread = Spread::of(values);
        if values.len() >= 3 && spread.ratio() > MOST_SPREAD {
            self.scattered += 1;
            if self.spread.as_ref().is_none_or(|(_, worst)| worst.ratio() < spread.ratio()) {
                self.spread = Some((what.to_owned(), spread));
            }
        }
    }

    /// Returns the verdict.
    pub fn finish(self) -> Noise {
        let now = CpuTime::read();
        let mut why = self.reasons(now);
        why.extend(self.scatter());
        Noise { is_noisy: !why.is_empty(), why }
    }

    /// Returns the repetitions that did not take the same time.
    fn scatter(&self) -> Option<String> {
        let (what, spread) = self.spread.as_ref()?;
        let others = match self.scattered {
            0 | 1 => String::new(),
            all => format!(", {} more like it", all - 1),
        };
        Some(format!(
            "{what}: p10 and p90 of the rounds are {:.2} and {:.2} of the median{others}",
            spread.p10 / spread.p50,
            spread.p90 / spread.p50
        ))
    }

    /// Load, pauses and stolen time.
    fn reasons(&self, now: Option<CpuTime>) -> Vec<String> {
        let mut why = Vec::new();
        if self.load > self.cores {
            why.push(format!("load average {:.1} before it began, on {} cores", self.load, self.cores));
        }
        if self.lost_ns > self.spun_ns * MOST_LOST {
            why.push(format!(
                "a thread that only spins was kept from running {} times, {:.0} ms of {:.0}, {:.1} ms at a time",
                self.gaps,
                self.lost_ns / 1e6,
                self.spun_ns / 1e6,
                self.longest_ns / 1e6
            ));
        }
        if let (Some(before), Some(now)) = (self.stat, now) {
            let stolen = now.stolen_since(before);
            if stolen > MOST_STOLEN {
                why.push(format!("the hypervisor took {:.1} % of the processors' time", stolen * 100.0));
            }
        }
        why
    }

    fn spin(&mut self, length_ns: f64) {
        let clock = ticks::clock();
        let start = clock.now();
        let mut last = start;
        while clock.ns(start, last) < length_ns {
            let now = clock.now();
            self.gap(clock.ns(last, now));
            last = now;
        }
        self.spun_ns += clock.ns(start, last);
    }

    fn gap(&mut self, ns: f64) {
        if ns > GAP_NS {
            self.gaps += 1;
            self.lost_ns += ns;
            self.longest_ns = self.longest_ns.max(ns);
        }
    }
}

/// All processors of the machine, whichever of them this thread may use.
fn cores(stat: &str) -> f64 {
    let is_core = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '));
    stat.lines().filter(is_core).count().max(1) as f64
}

/// First line of /proc/stat: all time of all processors and what of it was stolen, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuTime {
    all: u64,
    stolen: u64,
}

impl CpuTime {
    /// The machine's, now.
    pub(crate) fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal; guest time is in user already.
        let values: Vec<u64> = fields.split_whitespace().take(8).filter_map(|n| n.parse().ok()).collect();
        (values.len() == 8).then(|| Self { all: values.iter().sum(), stolen: values[7] })
    }

    /// Returns the share of all processors' time that a hypervisor has taken since `before`.
    pub(crate) fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        self.stolen.saturating_sub(before.stolen) as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter() -> NoiseMeter {
        let stat = CpuTime::parse("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1");
        let (load, cores, spread, scattered) = (0.5, 2.0, None, 0);
        NoiseMeter {
            load,
            cores,
            stat,
            spun_ns: 2e8,
            lost_ns: 0.0,
            gaps: 0,
            longest_ns: 0.0,
            spread,
            scattered,
        }
    }

    fn judged(meter: NoiseMeter, stat: &str) -> Vec<String> {
        let mut why = meter.reasons(CpuTime::parse(stat));
        why.extend(meter.scatter());
        why
    }

    const LATER: &str = "cpu  200 0 200 1600 0 0 0 0 0 0\n";

    #[test]
    fn noise_meter_of_idle_machine_reports_quiet() {
        let mut quiet = meter();
        quiet.gap(0.9e6);
        quiet.gap(1.5e6);
        quiet.repeated("copy", &[1.0, 1.1, 1.2]);
        quiet.repeated("two runs say nothing", &[1.0, 9.0]);
        assert_eq!(judged(quiet, LATER), [""; 0]);
    }

    #[test]
    fn noise_meter_names_each_kind_of_noise() {
        assert!(judged(NoiseMeter { load: 2.5, ..meter() }, LATER)[0].contains("load average 2.5"));
        let mut gaps = meter();
        (0..4).for_each(|_| gaps.gap(4e6));
        assert!(judged(gaps, LATER)[0].contains("4 times, 16 ms of 200, 4.0 ms"));
        let stolen = judged(meter(), "cpu  200 0 200 1500 0 0 0 100 0 0\n");
        assert!(stolen[0].contains("10.0 %"), "{stolen:?}");
        let mut rounds = meter();
        rounds.repeated("copy", &[1.0, 1.0, 2.0]);
        rounds.repeated("worse", &[1.0, 1.0, 3.0]);
        rounds.repeated("not so bad", &[1.0, 1.0, 2.0]);
        assert_eq!(
            judged(rounds, LATER),
            ["worse: p10 and p90 of the rounds are 1.00 and 3.00 of the median, 2 more like it"]
        );
    }

    #[test]
    fn noise_meter_look_lasts_and_bad_proc_text_is_ignored() {
        let mut looking = NoiseMeter { spun_ns: 0.0, ..meter() };
        looking.look();
        assert!(looking.spun_ns >= LOOK_NS);
        assert_eq!(cores("cpu  1 2\ncpu0 1\ncpu1 1\nintr 5"), 2.0);
        assert_eq!(cores(""), 1.0);
        assert_eq!(CpuTime::parse("cpu 1 2 x"), None);
        assert_eq!(CpuTime::parse(""), None);
    }

    #[test]
    fn noise_and_merges_duplicate_reasons() {
        let both = Noise::quiet().and(Noise::noisy("a")).and(Noise::noisy("a")).and(Noise::noisy("b"));
        assert_eq!(both.to_string(), "noisy machine: a; b");
        assert_eq!(Noise::quiet().and(Noise::quiet()).to_string(), "quiet machine");
    }
}
