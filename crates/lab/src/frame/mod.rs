//! One way to write a benchmark, so that all are read the same way.
//!
//! A benchmark is a [`Bench`]: a name, the result that it shows, the uses that it does not suit,
//! and a function from [`Options`] to a [`Report`]. Comparisons use a [`Contest`]: contenders take
//! turns in short slots, each batch is timed, and the answer is the median of the ratios within a
//! round, with its 95 % interval: a target is met or missed when the interval lies on one side of
//! its bound, and rounds go on until it does or [`Rounds`] have no more time. [`Turns`] do the same
//! where a turn is longer than a timed batch: a transfer, or a server with its viewers. A
//! [`Noise`] shows whether the machine was fit to measure; a [`Plot`] holds figures that are worth
//! a picture.
//!
//! ```
//! use millrace_lab::frame::*;
//!
//! const BENCH: Bench = Bench {
//!     name: "sum",
//!     shows: "adding up numbers front to back beside back to front",
//!     not_for: "anything: it is an example",
//!     options: &["runs"],
//!     targets: &["sum-backwards"],
//!     needs: &[],
//!     run,
//! };
//!
//! fn run(options: &Options) -> anyhow::Result<Report> {
//!     let numbers: Vec<u64> = (0..1000).collect();
//!     let mut contest = Contest::new("sum");
//!     contest.contender("forwards", |slot| {
//!         while slot.goes_on() {
//!             let sum = slot.batch(1000, || numbers.iter().sum::<u64>());
//!             slot.produced(sum);
//!         }
//!         Ok(())
//!     });
//!     contest.contender("backwards", |slot| {
//!         while slot.goes_on() {
//!             let sum = slot.batch(1000, || numbers.iter().rev().sum::<u64>());
//!             slot.produced(sum);
//!         }
//!         Ok(())
//!     });
//!     contest.goal("backwards", "forwards", TargetBound::AtMost(3.0));
//!     let result = contest.run(&ContestOptions::from_options(options))?;
//!     let mut report = Report::new("sum");
//!     report.rows = result.rows("number");
//!     let backwards = &result.contenders[1];
//!     report.promises.push(Promise::at_most("sum-backwards", backwards.ratio, 3.0, ""));
//!     report.noise = Some(result.noise);
//!     Ok(report)
//! }
//!
//! let report = BENCH.measure(&Options::tiny("millrace")).unwrap();
//! assert_eq!(report.rows.len(), 2);
//! ```

mod contest;
mod noise;
mod options;
mod plot;
mod report;
mod rounds;
pub mod stats;
pub mod ticks;
mod turns;

pub use contest::{ContenderResult, ContenderSlot, Contest, ContestOptions, ContestResult};
pub(crate) use noise::CpuTime;
pub use noise::{Noise, NoiseMeter};
pub use options::{Cancelled, Options, ProgressSink};
pub use plot::{Axis, Plot, PlotKind, Point, Series};
pub use report::{Figure, Promise, Report, ReportVerdict, Row, TargetState, number};
pub use rounds::{LEAST_ROUNDS, Rounds};
pub use stats::{Interval, TargetBound, percentile};
pub use turns::Turns;

pub(crate) use contest::Pinned;
pub(crate) use report::{groups, tree_commit};

/// A benchmark.
#[derive(Debug)]
pub struct Bench {
    /// Its name on the command line.
    pub name: &'static str,
    /// The result that it shows, in one line.
    pub shows: &'static str,
    /// The uses that it does not suit.
    pub not_for: &'static str,
    /// Options of the command line that it looks at, without dashes, beside those that all have.
    pub options: &'static [&'static str],
    /// Its targets. One that is missing in the report was not measured.
    pub targets: &'static [&'static str],
    /// Its requirements.
    pub needs: &'static [Need],
    /// Runs it.
    pub run: fn(&Options) -> anyhow::Result<Report>,
}

/// Something that a machine may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Network namespaces, raw devices, BPF.
    Root,
    /// A program on the PATH, and how to get it: ("ffmpeg", "apt-get install ffmpeg").
    Program(&'static str, &'static str),
}

impl Bench {
    /// Runs it. Targets that it could not measure are in the report, as not measured.
    ///
    /// # Errors
    /// What stopped it.
    pub fn measure(&self, options: &Options) -> anyhow::Result<Report> {
        let mut report = (self.run)(options)?;
        report.declare(self.targets);
        Ok(report)
    }

    /// What this machine lacks to run it, in words; empty when it can run.
    pub fn missing(&self) -> Vec<String> {
        self.needs.iter().filter_map(|need| need.missing()).collect()
    }
}

impl Need {
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::Root => (!rustix::process::geteuid().is_root())
                .then(|| "root (it makes network namespaces): run it with sudo".to_owned()),
            Self::Program(name, how) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                let found = std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
                (!found).then(|| format!("the program {name}: {how}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_listed_with_install_hint() {
        const ABSENT: Bench = Bench {
            name: "absent",
            shows: "",
            not_for: "",
            options: &[],
            targets: &[],
            needs: &[
                Need::Program("sh", "comes with every system"),
                Need::Program("no-such-program", "write it"),
            ],
            run: |_| anyhow::bail!("never run"),
        };
        assert_eq!(ABSENT.missing(), ["the program no-such-program: write it"]);
    }
}
