//! Number of viewers that a service carries: trials with more and more viewers until their quality
//! is no longer good enough.
//!
//! | module | holds |
//! | --- | --- |
//! | [`search`] | the search, independent of the things counted |
//! | [`limits`] | the measurements of a trial and whether they are good enough |
//! | [`mod@trial`] | one trial: a service, its viewers, its cost |
//! | [`crowd`] | more viewers than a server admits: the admitted viewers and their quality |
//! | [`site`] | two hosts, processes pinned to cores |
//! | [`meter`] | what processes and cores used |
//! | [`media_files`] | the media watched |

pub mod crowd;
pub mod limits;
pub mod media_files;
pub mod meter;
pub(crate) mod pushed;
pub mod search;
pub mod site;
pub mod trial;

use std::time::{Duration, Instant as StdInstant};

use millrace_core::units::BitRate;

use crate::frame::{CpuTime, Options, Row};

use limits::Limits;
use media_files::MediaFiles;
use search::{Search, SearchOptions, SearchResult, SearchStep, TrialVerdict};
use site::BenchSite;
use trial::{RunningService, Service, Trial, TrialPlan, trial};

/// Viewers of the trial that determines the rate of one viewer.
const FEW_VIEWERS: u32 = 3;

/// Trials with one number of viewers; the hypervisor may spoil all but the last, whose result is
/// accepted as it is.
const MAX_DISTURBED: u32 = 4;

/// Part of the time that a search takes which begins where another one ended.
const NEAR_BUDGET: f64 = 0.4;
/// Segments that a search by HLS may wait for: two in each trial.
const PERIODS: u32 = 16;

/// How much is done to find a capacity.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Length of a trial.
    pub window: Duration,
    /// Length of a rough one.
    pub rough_window: Duration,
    /// How narrow the answer shall be.
    pub precision: f64,
    /// No new trial begins after this time.
    pub budget: Duration,
    /// Never more viewers.
    pub max_viewers: u32,
}

impl Effort {
    /// For one search, as the options say.
    pub fn of(options: &Options) -> Self {
        let seconds = |s: f64| Duration::from_secs_f64(s);
        Self {
            window: seconds(options.duration_s.map_or(options.pick(1.0, 5.0, 8.0), |s| s as f64)),
            rough_window: seconds(options.pick(1.0, 2.0, 3.0)),
            precision: options.pick(0.5, 0.05, 0.03),
            budget: seconds(options.pick(4.0, 50.0, 90.0)),
            max_viewers: options.pick(3, 12_000, 12_000),
        }
    }

    /// Seconds of media that a trial needs: where viewers begin, the time in which they arrive, the trial, and something to spare.
    pub fn media_s(&self, spread: Duration) -> u64 {
        (spread + self.window).as_secs() + if self.window > Duration::from_secs(2) { 40 } else { 6 }
    }
}

/// The result.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// How many viewers.
    pub found: SearchResult,
    /// The last trial with this number.
    pub at: Option<Trial>,
}

/// Measures again, up to four times in all, while the hypervisor may be to blame for the result.
///
/// # Errors
/// When it could not be measured.
pub fn in_peace<T>(
    mut measure: impl FnMut() -> anyhow::Result<T>,
    is_disturbed: impl Fn(&T) -> bool,
) -> anyhow::Result<T> {
    let mut measured = measure()?;
    for _ in 1..MAX_DISTURBED {
        if !is_disturbed(&measured) {
            break;
        }
        measured = measure()?;
    }
    Ok(measured)
}

/// Everything that is tried with one service.
pub struct Hunt<'a> {
    options: &'a Options,
    site: &'a BenchSite,
    service: &'a Service<'a>,
    effort: Effort,
    running: Option<RunningService>,
    nominal: Option<BitRate>,
    seen: Vec<Trial>,
    /// Trials before this one belong to another search.
    search_began: usize,
    /// Factor for the first count of a search.
    stagger: f64,
}

/// Returns the factor for a search's first count: spread over an octave, so that searches that
/// double and halve do not meet the same counts and find the same answer only because they tried
/// the same counts.
fn stagger_of(run: usize) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    (run as f64 * GOLDEN).fract().exp2()
}

impl<'a> Hunt<'a> {
    /// Finds out what one viewer gets, if that is not known.
    ///
    /// # Errors
    /// When the service does not start or serves no viewer.
    pub fn new(
        options: &'a Options,
        site: &'a BenchSite,
        service: &'a Service<'a>,
        effort: Effort,
    ) -> anyhow::Result<Self> {
        let nominal = service.nominal;
        let (running, seen) = (None, Vec::new());
        let (search_began, stagger) = (0, stagger_of(0));
        let mut hunt = Self { options, site, service, effort, running, nominal, seen, search_began, stagger };
        if nominal.is_none() {
            let few = FEW_VIEWERS.min(effort.max_viewers);
            let trial = hunt.attempt(few, hunt.effort.rough_window.max(Duration::from_secs(2)), false)?;
            let each = trial.figures.bits_per_s / f64::from(few);
            anyhow::ensure!(each > 0.0, "{}: {few} viewers got nothing", service.name);
            hunt.nominal = Some(BitRate(each as u64));
        }
        Ok(hunt)
    }

    /// One trial.
    ///
    /// # Errors
    /// When it could not be carried out.
    pub fn attempt(&mut self, count: u32, window: Duration, profile: bool) -> anyhow::Result<Trial> {
        self.options.go_on()?;
        self.site.steer(self.service.transport)?;
        let plan = TrialPlan { count, window, profile };
        let cancel = &self.options.cancel;
        let before = CpuTime::read();
        let mut trial = trial(self.site, self.service, &mut self.running, self.nominal, plan, cancel)?;
        let stolen = before.zip(CpuTime::read()).map(|(before, now)| now.stolen_since(before));
        trial.figures.stolen_ratio = stolen.unwrap_or(0.0);
        self.options.go_on()?;
        let why = trial.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        self.options.say(&format!("{}: {}{why}", self.service.name, trial.figures));
        self.seen.push(trial.clone());
        Ok(trial)
    }

    /// A trial under `limits`, made again while the hypervisor may be to blame for its failing.
    ///
    /// # Errors
    /// When it could not be carried out.
    pub fn attempt_in_peace(
        &mut self,
        count: u32,
        window: Duration,
        limits: &Limits,
    ) -> anyhow::Result<Trial> {
        in_peace(|| self.attempt(count, window, false), |trial| trial.figures.is_disturbed(limits))
    }

    /// The trial with the fewest viewers.
    pub fn smallest(&self) -> Option<Trial> {
        self.seen.iter().min_by_key(|trial| trial.figures.viewers).cloned()
    }

    /// Ends the server; the next trial starts another one.
    pub fn stop(&mut self) {
        self.running = None;
    }

    /// The next search, number `run` from 0, knows nothing of those before: it has a server of its own, other counts and no trial
    /// that was made for another.
    pub fn begin_search(&mut self, run: usize) {
        self.stop();
        self.search_began = self.seen.len();
        self.stagger = stagger_of(run);
    }

    /// Returns the number of trials until now.
    pub fn trials(&self) -> usize {
        self.seen.len()
    }

    /// Searches the largest number of viewers within `limits`; `near` is where it was found before.
    ///
    /// # Errors
    /// When a trial could not be carried out.
    pub fn find(&mut self, limits: &Limits, near: Option<u32>) -> anyhow::Result<Capacity> {
        let (first, growth) = near.map_or((self.service.first, 2.0), |near| (near.max(1), 1.06));
        let first = (f64::from(first) * if near.is_none() { self.stagger } else { 1.0 }) as u32;
        let max = self.service.max_viewers.min(self.effort.max_viewers);
        let precision = self.effort.precision;
        let mut search = Search::new(SearchOptions { first, max, growth, precision });
        if near.is_none() {
            // Other limits, same trials: a clear verdict of theirs need not be measured again.
            for trial in &self.seen[self.search_began..] {
                let verdict = trial.figures.judge(limits);
                let is_clear = matches!(verdict, TrialVerdict::ClearPass | TrialVerdict::ClearFail);
                if is_clear && !trial.figures.is_disturbed(limits) {
                    search.tell(trial.figures.viewers, verdict);
                }
            }
        }
        let start = StdInstant::now();
        // Who knows the neighbourhood needs less time; trials of whole segments take more.
        let known = if near.is_some() { NEAR_BUDGET } else { 1.0 };
        let budget = self.effort.budget.mul_f64(known) + self.service.period_in(self.effort.window) * PERIODS;
        let found = loop {
            match search.step() {
                SearchStep::Done(found) => break found,
                SearchStep::Try { .. } if start.elapsed() > budget => break search.stop(),
                SearchStep::Try { count, rough } => {
                    let window = if rough { self.effort.rough_window } else { self.effort.window };
                    let trial = self.attempt_in_peace(count, window, limits)?;
                    search.tell(count, trial.figures.judge(limits));
                }
            }
        };
        let passed = |trial: &&Trial| {
            let verdict = trial.figures.judge(limits);
            trial.figures.viewers == found.passed
                && matches!(verdict, TrialVerdict::ClearPass | TrialVerdict::NarrowPass)
        };
        Ok(Capacity { found, at: self.seen[self.search_began..].iter().rev().find(passed).cloned() })
    }
}

/// The figures of a trial as lines of a report.
pub fn rows(label: &str, trial: &Trial) -> Vec<Row> {
    let f = &trial.figures;
    let mut rows = vec![
        Row::new(label)
            .with("viewers", f64::from(f.viewers), "")
            .with("rate", f.bits_per_s / 1e6, "Mb/s")
            .with("packets", f.packets_per_s, "1/s")
            .with("loss", f.loss_ratio * 100.0, "%")
            .with("lateness p50", f.p50_ms, "ms")
            .with("p99", f.p99_ms, "ms")
            .with("p99.9", f.p999_ms, "ms")
            .with("stolen", f.stolen_ratio * 100.0, "%"),
    ];
    if let Some(spent) = &trial.spent {
        let gigabits = (f.bits_per_s * spent.wall_s / 1e9).max(1e-9);
        let packets = (f.packets_per_s * spent.wall_s).max(1.0);
        let mut row = Row::new(label)
            .with("cores busy", spent.cores_s / spent.wall_s * 100.0, "%")
            .with("in soft interrupts", spent.softirq_s / spent.wall_s * 100.0, "%")
            .with("processes", spent.processes_s / spent.wall_s * 100.0, "%")
            .with("cores' time", spent.cores_s / gigabits, "s/Gb")
            .with("processes' time", spent.processes_s / gigabits, "s/Gb")
            .with("per packet", spent.processes_s * 1e9 / packets, "ns")
            .with("voluntary switches", spent.voluntary_switches as f64 / spent.wall_s, "1/s")
            .with("involuntary", spent.involuntary_switches as f64 / spent.wall_s, "1/s")
            .with("number of processes", spent.processes as f64, "")
            .with("memory", spent.memory_bytes as f64 / 1e6, "MB");
        if let Some(calls) = trial.syscalls_per_s {
            row = row.with("system calls per packet", calls / f.packets_per_s.max(1.0), "");
        }
        rows.push(row);
    }
    rows
}

/// A folder for one run of a benchmark, removed at its end.
pub struct Scratch(pub std::path::PathBuf);

impl Scratch {
    /// Makes it below the folder that the options name.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(options: &Options, name: &str) -> anyhow::Result<Self> {
        let base = options.scratch.canonicalize().unwrap_or_else(|_| options.scratch.clone());
        let dir = base.join(format!("millrace-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir)
            .map_err(|error| anyhow::anyhow!("{}: cannot be made: {error}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed is not worth losing the result for.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The environment that a service is started in.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// Where.
    pub site: &'a BenchSite,
    /// The media watched.
    pub files: &'a MediaFiles,
    /// Media time over which viewers begin.
    pub spread: Duration,
    /// The `millrace` program.
    pub program: &'a std::path::Path,
    /// How our server is to send UDP packets, as in `serve --backend`.
    pub backend: Option<&'a str>,
    /// How much of the titles our server's cache holds, if there are several; `None`: a third.
    pub cache_bytes: Option<u64>,
    /// Whether our server admits viewers by its observed capacity, and ends the newest when it
    /// admitted too many. A search goes beyond the number that it would admit.
    pub has_admission: bool,
    /// Certificate and key that let our server offer TLS as well.
    pub tls: Option<[&'a std::path::Path; 2]>,
}

impl<'a> Scene<'a> {
    /// With our server as a search has it: its own choices, and no admission.
    pub fn new(options: &'a Options, site: &'a BenchSite, files: &'a MediaFiles, spread: Duration) -> Self {
        let program = options.program.as_path();
        Self {
            site,
            files,
            spread,
            program,
            backend: None,
            cache_bytes: None,
            has_admission: false,
            tls: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What searches find whose service carries these numbers of viewers, one number for each search.
    fn searches(limits: &[u32]) -> (Vec<u32>, Vec<Vec<u32>>) {
        let one = |(run, limit): (usize, &u32)| {
            let first = (64.0 * stagger_of(run)) as u32;
            let mut search = Search::new(SearchOptions { first, max: 12_000, growth: 2.0, precision: 0.03 });
            let mut asked = Vec::new();
            loop {
                match search.step() {
                    SearchStep::Done(found) => return (found.passed, asked),
                    SearchStep::Try { count, .. } => {
                        asked.push(count);
                        let passes = count <= *limit;
                        search.tell(
                            count,
                            if passes { TrialVerdict::ClearPass } else { TrialVerdict::ClearFail },
                        );
                    }
                }
            }
        };
        limits.iter().enumerate().map(one).unzip()
    }

    #[test]
    fn searches_are_independent_and_a_capacity_that_drifts_shows() {
        let (found, asked) = searches(&[1000, 1000, 1000]);
        assert!(found.iter().all(|found| (970..=1000).contains(found)), "{found:?}");
        // Each search confirms its own failure, and repeats no count of another.
        let own = asked.iter().map(|counts| counts.iter().copied().collect::<BTreeSet<u32>>());
        let all: BTreeSet<u32> = asked.iter().flatten().copied().collect();
        assert_eq!(all.len(), own.map(|counts| counts.len()).sum::<usize>(), "{asked:?}");
        let (found, _) = searches(&[1000, 1300, 1000]);
        assert!(found[1] >= 1261 && found[2] <= 1000, "{found:?}");
    }
}
