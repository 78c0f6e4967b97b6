//! Real players against the millrace program: FFmpeg, GStreamer, VLC and our own receiver play films made on the
//! spot, over UDP and TCP, on the loopback and between two network namespaces. A check passes on figures (frames
//! with the right content, bytes, lost packets, seconds), never on a player's exit code alone.

mod checks;
mod films;
mod frames;
mod network;
mod odd;
mod options;
mod process;
mod report;
mod server;
mod subtitles;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use checks::Check;
use films::TestMedia;
use options::InteropOptions;
use process::Stopwatch;
use report::{CheckVerdict, InteropReport};
use server::Server;

use crate::suite::SECOND_TRIES;
use crate::turns::take_turns;
use crate::workspace;

/// Data that every check needs.
pub(crate) struct Lab {
    /// Films, store, logs of this run.
    pub(crate) dir: PathBuf,
    pub(crate) millrace: PathBuf,
    pub(crate) films: Vec<TestMedia>,
    /// Where pictures of the page are wanted.
    pub(crate) pictures: Option<PathBuf>,
}

impl Lab {
    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// The film with this name.
    pub(crate) fn film(&self, name: &str) -> Result<&TestMedia, String> {
        self.films.iter().find(|f| f.name == name).ok_or_else(|| format!("the film '{name}' was not made"))
    }
}

/// `cargo xtask interop`
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let options = match InteropOptions::parse(args)? {
        Some(options) => options,
        None => {
            print!("{}", options::HELP);
            return Ok(());
        }
    };
    if options.list {
        for (phase, check) in
            checks::PHASES.iter().flat_map(|p| p.checks(true).into_iter().map(move |c| (p, c)))
        {
            let form = if check.long { "long" } else { "short and long" };
            println!("  {:<34} {form}; {}", check.name, phase.title);
        }
        let short = odd::names(false, &std::env::temp_dir())?;
        for film in odd::names(true, &std::env::temp_dir())? {
            let form = if short.contains(&film) { "short and long" } else { "long" };
            println!("  {:<34} {form}; odd films at every face", odd::check_name(&film));
        }
        return Ok(());
    }
    let millrace = match &options.millrace {
        Some(path) => path.clone(),
        None => workspace::target_dir()?.join("debug/millrace"),
    };
    if !millrace.is_file() {
        return Err(format!(
            "there is no {}; build it with `cargo build -p millrace-server` or name one with --millrace",
            millrace.display()
        ));
    }
    let dir = std::env::temp_dir().join(format!("millrace-interop-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| format!("{} cannot be made: {e}", dir.display()))?;
    let millrace = std::path::absolute(millrace).map_err(|e| format!("the program's path: {e}"))?;
    let mut lab = Lab { dir, millrace, films: Vec::new(), pictures: options.pictures.clone() };
    let mut report = InteropReport::default();
    let outcome = play(&mut lab, &options, &mut report);
    finish(&lab.dir, &options, &report, outcome)
}

/// Makes the films, then runs phase after phase, each with a server of its own on the same store.
fn play(lab: &mut Lab, options: &InteropOptions, report: &mut InteropReport) -> Result<(), String> {
    for program in ["ffmpeg", "ffprobe"] {
        if !workspace::has_program(program) {
            return Err(format!(
                "{program} is missing: without it no film can be made; `make deps` installs it"
            ));
        }
    }
    println!("making films in {}", lab.dir.display());
    let chosen = |phase: &checks::CheckPhase| {
        let mut checks = phase.checks(options.long);
        checks.retain(|check| options.wants(&check.name));
        checks
    };
    let all: Vec<_> = checks::PHASES.iter().flat_map(chosen).collect();
    // The name of a check ends in the film that it plays.
    lab.films = films::make(lab, |film| all.iter().any(|check| check.name.ends_with(film)))?;
    for phase in checks::PHASES {
        let checks = chosen(phase);
        if checks.is_empty() {
            continue;
        }
        if let Some(reason) = (phase.impossible)() {
            checks.iter().for_each(|c| report.add(&c.name, CheckVerdict::Skip(reason.clone()), 0.0));
            continue;
        }
        let ground = match (phase.ground)(lab) {
            Ok(ground) => ground,
            Err(e) => {
                report.add(&format!("{}/network", phase.word), CheckVerdict::Fail(e), 0.0);
                continue;
            }
        };
        match Server::start(lab, phase.word, &ground) {
            Ok(mut server) => {
                report.add(&format!("{}/ready", phase.word), CheckVerdict::Pass(server.readiness()), 0.0);
                match films::learn_stored(lab) {
                    Ok(figures) => {
                        report.add(&format!("{}/stored", phase.word), CheckVerdict::Pass(figures), 0.0)
                    }
                    Err(e) => report.add(&format!("{}/stored", phase.word), CheckVerdict::Fail(e), 0.0),
                }
                run_all(&checks, lab, &server, options.jobs, report);
                let ended = server.stop();
                report.add(&format!("{}/ends", phase.word), ended.into(), 0.0);
            }
            Err(e) => report.add(&format!("{}/ready", phase.word), CheckVerdict::Fail(e), 0.0),
        }
    }
    odd::play(lab, options, report)
}

/// A player that has to wait for a processor half of the time shows nothing about the server.
const BUSY: f64 = 0.5;

/// A check that failed beside others.
struct FailedCheck<'a> {
    check: &'a Check,
    reason: String,
    seconds: f64,
    pressure: Option<f64>,
}

impl FailedCheck<'_> {
    fn was_busy(&self) -> bool {
        self.pressure.is_some_and(|pressure| pressure > BUSY)
    }

    /// Note in the second verdict.
    fn note(&self) -> String {
        let short = self.pressure.map(|p| format!("; processors short {:.0} % of the time", p * 100.0));
        format!("second try, first: {}{}", self.reason, short.unwrap_or_default())
    }
}

/// Runs the checks of a phase, `jobs` at a time: they wait for a film to play most of the time.
/// Those that must be alone (they read counters of the whole network) run last, one by one. Checks that failed while the
/// machine was short of processors, and a few others, are tried once more, alone, with a note in the report.
fn run_all(checks: &[Check], lab: &Lab, server: &Server, jobs: usize, report: &mut InteropReport) {
    let shared = Mutex::new((&mut *report, Vec::new()));
    let one = |check| {
        let (verdict, seconds, pressure) = attempt(check, lab, server);
        let (report, failed) = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
        match verdict {
            CheckVerdict::Fail(reason) => {
                println!("AGAIN {:<31} {reason}", check.name);
                failed.push(FailedCheck { check, reason, seconds, pressure });
            }
            verdict => report.add(&check.name, verdict, seconds),
        }
    };
    take_turns(checks, jobs, |check| check.alone, one, || ());
    let (report, failed) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (again, lost) = second_tries(failed);
    for one in lost {
        report.add(&one.check.name, CheckVerdict::Fail(one.reason), one.seconds);
    }
    for one in again {
        let (verdict, seconds, _) = attempt(one.check, lab, server);
        report.add(&one.check.name, verdict.with_note(&one.note()), seconds);
    }
}

/// Divides failed checks into those that are tried again and those that are not. A few are tried again though this machine
/// had processors: its hypervisor may have lacked them, which is seen nowhere.
fn second_tries(failed: Vec<FailedCheck<'_>>) -> (Vec<FailedCheck<'_>>, Vec<FailedCheck<'_>>) {
    let others = failed.iter().filter(|one| !one.was_busy()).count();
    failed.into_iter().partition(|one| one.was_busy() || others <= SECOND_TRIES)
}

/// Runs one check: verdict, seconds, and how short processors were meanwhile.
fn attempt(check: &Check, lab: &Lab, server: &Server) -> (CheckVerdict, f64, Option<f64>) {
    let missing: Vec<_> = check.needs.iter().filter(|p| !workspace::has_program(p)).copied().collect();
    if !missing.is_empty() {
        let reason = format!("{} not installed; `make deps` installs it", missing.join(", "));
        return (CheckVerdict::Skip(reason), 0.0, None);
    }
    if let Some(reason) = (check.impossible)() {
        return (CheckVerdict::Skip(reason), 0.0, None);
    }
    let watch = Stopwatch::start();
    let verdict = (check.run)(lab, server).into();
    (verdict, watch.seconds(), watch.pressure())
}

/// Writes the JSON report, prints where remaining files are, and turns the figures into one
/// verdict.
fn finish(
    dir: &Path,
    options: &InteropOptions,
    report: &InteropReport,
    outcome: Result<(), String>,
) -> Result<(), String> {
    if let Some(path) = &options.json {
        std::fs::write(path, report.json())
            .map_err(|e| format!("{} cannot be written: {e}", path.display()))?;
    }
    if options.keep || report.failed() > 0 || outcome.is_err() {
        println!("films, store and logs of every program: {}", dir.display());
    } else {
        std::fs::remove_dir_all(dir).map_err(|e| format!("{} cannot be removed: {e}", dir.display()))?;
    }
    println!("{}", report.summary());
    outcome?;
    match (report.failed(), report.passed()) {
        (0, 0) => Err("no check ran".into()),
        (0, _) => Ok(()),
        (failed, _) => Err(format!("{failed} checks failed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_tries_are_for_busy_machine_or_few_failures() {
        let checks = checks::PHASES[0].checks(true);
        let failed = |count: usize, pressure: Option<f64>| {
            let one = |check| FailedCheck { check, reason: "late".into(), seconds: 1.0, pressure };
            checks[..count].iter().map(one).collect::<Vec<_>>()
        };
        let counts = |failed| {
            let (again, lost) = second_tries(failed);
            (again.len(), lost.len())
        };
        assert_eq!(counts(failed(SECOND_TRIES, Some(0.1))), (SECOND_TRIES, 0));
        assert_eq!(counts(failed(SECOND_TRIES + 1, None)), (0, SECOND_TRIES + 1));
        let mut mixed = failed(SECOND_TRIES + 1, Some(0.1));
        mixed.extend(failed(2, Some(0.9)));
        assert_eq!(counts(mixed), (2, SECOND_TRIES + 1));
        let note = failed(1, Some(0.1)).remove(0).note();
        assert_eq!(note, "second try, first: late; processors short 10 % of the time");
    }
}
