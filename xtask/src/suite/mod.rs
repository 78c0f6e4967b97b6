//! All tests of the workspace, several processes at a time: most of them wait for a film to play, a clock or another
//! program. `cargo test` runs one test program after another, which takes three times as long. Here each module of a program
//! of integration tests is a process of its own, because few programs are linked faster than many, and many processes are
//! better spread than few.

mod binaries;
mod order;
mod outcome;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use binaries::Part;
pub(crate) use binaries::{build, program};
use outcome::{Skip, TestCounts};

use crate::turns::take_turns;
use crate::workspace::{cargo, target_dir};

/// Test programs for each processor at a time. Their tests use a fifth of a processor on average.
const AT_ONCE_PER_PROCESSOR: usize = 2;

/// Nothing takes nearly as long; what does, hangs.
const LIMIT: Duration = Duration::from_secs(900);

/// How often a running program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The longest that are named at the end.
const NAMED: usize = 12;

/// Programs whose failed tests get a second try, alone, if [`order::is_real_time`], and checks of a phase with players. More
/// failures than this have another cause.
pub(crate) const SECOND_TRIES: usize = 3;

const HELP: &str = "\
usage: cargo xtask test [--at-once N] [TEXT...]

Builds all tests of the workspace and runs them, several at a time: the unit tests of a crate are one process, and
each module of its integration tests is one. Tests with real sockets and clocks that fail beside others run once
more, alone; those that pass then are named at the end.

  --at-once N   processes at a time [default: twice the processors]
  TEXT          only modules and programs with TEXT in their name, such as store/ or e2e_serve
";

/// A command that runs the tests of these names, or all if there are none.
type Start = Box<dyn Fn(&[String]) -> Command + Send + Sync>;

/// Something to run, and how a person runs it again.
struct SuiteJob {
    name: String,
    command: Start,
    /// The names for the first run.
    tests: Vec<String>,
    /// How many tests it has, if that is known.
    listed: usize,
    again: String,
}

/// How a job ended.
struct JobResult {
    name: String,
    again: String,
    took: Duration,
    /// Processor time of it and of the programs that it waited for.
    worked: Duration,
    counts: TestCounts,
    skips: Vec<Skip>,
    /// The fault, with the names of the tests that failed.
    fault: Option<String>,
    /// The tests that failed, by name; without a fault, they passed alone afterwards.
    failed: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct SuiteOptions {
    at_once: usize,
    texts: Vec<String>,
}

/// `cargo xtask test`
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    run_beside(args, &mut Vec::new(), || ())
}

/// The same, with `beside` on a thread of its own next to the tests that may have company, unless they could not be built.
/// Adds to `report` the skipped tests, a line for each reason, and the tests that passed only alone.
pub(crate) fn run_beside(
    args: &[String],
    report: &mut Vec<String>,
    beside: impl FnOnce() + Send,
) -> Result<(), String> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    let options = parse(args)?;
    let mut jobs = jobs(&build()?)?;
    jobs.retain(|job| options.texts.is_empty() || options.texts.iter().any(|text| job.name.contains(text)));
    if jobs.is_empty() {
        return Err("no test program has such a name".into());
    }
    let logs = target_dir()?.join("test-logs");
    std::fs::create_dir_all(&logs).map_err(|e| format!("{} cannot be made: {e}", logs.display()))?;
    let mut ended = run_all(&jobs, options.at_once, &logs, beside);
    second_tries(&jobs, &mut ended, &logs);
    let mut lines = skipped_lines(&ended);
    lines.extend(unsteady_line(&ended));
    print!("{}{}", summary(&ended), lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    report.extend(lines);
    verdict(&ended)
}

/// Every program that failed by name: whoever keeps only the last lines of a log learns what to run again.
fn verdict(ended: &[JobResult]) -> Result<(), String> {
    let faults: Vec<String> =
        ended.iter().filter_map(|one| Some(format!("{} ({})", one.name, one.fault.as_ref()?))).collect();
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("{} of {} test programs failed: {}", faults.len(), ended.len(), faults.join(", ")))
}

fn parse(args: &[String]) -> Result<SuiteOptions, String> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = SuiteOptions { at_once: processors * AT_ONCE_PER_PROCESSOR, texts: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--at-once" {
            let value = args.next().and_then(|v| v.parse().ok()).filter(|n| (1..=256).contains(n));
            options.at_once = value.ok_or("--at-once needs a whole number from 1 to 256")?;
        } else if arg.starts_with('-') {
            return Err(format!("unknown option '{arg}'\n\n{HELP}"));
        } else {
            options.texts.push(arg.clone());
        }
    }
    Ok(options)
}

/// Returns the jobs in the order in which they should begin. The doc tests are one job: cargo compiles and runs them itself.
fn jobs(messages: &[serde_json::Value]) -> Result<Vec<SuiteJob>, String> {
    let mut jobs = Vec::new();
    for binary in binaries::binaries(messages) {
        for Part { name, again, tests, listed } in binary.parts(&binary.tests()?) {
            let binary = binary.clone();
            jobs.push(SuiteJob {
                name,
                command: Box::new(move |tests| binary.command(tests)),
                tests,
                listed,
                again,
            });
        }
    }
    jobs.sort_by_key(|job| order::rank(&job.name));
    // Last, because cargo compiles nothing for two callers at once.
    jobs.push(SuiteJob {
        name: "doc tests".into(),
        command: Box::new(|_| {
            let mut command = cargo();
            command.args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
            command
        }),
        tests: Vec::new(),
        listed: 0,
        again: "cargo test --workspace --doc".into(),
    });
    let mut names = BTreeSet::new();
    match jobs.iter().find(|job| !names.insert(&job.name)) {
        Some(twice) => Err(format!(
            "two test programs have a part {}: rename one, its log and its failures have that name",
            twice.name
        )),
        None => Ok(jobs),
    }
}

/// Runs them; the output of each is printed whole when it has ended.
fn run_all(jobs: &[SuiteJob], at_once: usize, logs: &Path, beside: impl FnOnce() + Send) -> Vec<JobResult> {
    let ended = Mutex::new(Vec::new());
    take_turns(
        jobs,
        at_once,
        |job| order::alone(&job.name).is_some(),
        |job| {
            let log = log_of(job, logs, "");
            let start = Instant::now();
            let (output, worked, result) = run_one((job.command)(&job.tests), &log, LIMIT);
            let one = judge(job, job.listed, &output, result, (start.elapsed(), worked));
            let mut ended = ended.lock().expect("printing does not panic");
            print!("\n-- {}\n{}\n", heading(&one), outcome::without_captured(&output).trim());
            ended.push(one);
        },
        beside,
    );
    ended.into_inner().expect("printing does not panic")
}

/// Gives a few failed programs a second try.
fn second_tries(jobs: &[SuiteJob], ended: &mut [JobResult], logs: &Path) {
    let failed: Vec<&mut JobResult> = ended.iter_mut().filter(|one| one.fault.is_some()).collect();
    if failed.len() > SECOND_TRIES {
        return;
    }
    for one in failed.into_iter().filter(|one| order::is_real_time(&one.name)) {
        let job = jobs.iter().find(|job| job.name == one.name).expect("a job for each end");
        second_try(job, one, logs);
    }
}

fn log_of(job: &SuiteJob, logs: &Path, end: &str) -> PathBuf {
    logs.join(job.name.replace(['/', ' '], "-") + end + ".log")
}

/// Runs the tests of a program that failed once more; a program that named none, such as one that crashed, stays failed.
fn second_try(job: &SuiteJob, ended: &mut JobResult, logs: &Path) {
    if ended.failed.is_empty() {
        return;
    }
    let command = (job.command)(&ended.failed);
    let log = log_of(job, logs, "-alone");
    let start = Instant::now();
    let (output, worked, result) = run_one(command, &log, LIMIT);
    let again = judge(job, ended.failed.len(), &output, result, (start.elapsed(), worked));
    print!("\n-- alone: {}\n{}\n", heading(&again), outcome::without_captured(&output).trim());
    if again.fault.is_none() && again.counts.passed == ended.failed.len() {
        ended.fault = None;
        ended.counts.failed -= again.counts.passed;
        ended.counts.passed += again.counts.passed;
    }
}

/// Returns its output, its processor time, and the fault at its end.
fn run_one(mut command: Command, log: &Path, limit: Duration) -> (String, Duration, Result<(), String>) {
    let mut worked = Duration::ZERO;
    let result = start(&mut command, log).and_then(|mut child| wait(&mut child, limit, &mut worked));
    // A file instead of a pipe: processes that a test has left running cannot keep it open.
    let output = std::fs::read(log).unwrap_or_default();
    (String::from_utf8_lossy(&output).into_owned(), worked, result)
}

fn start(command: &mut Command, log: &Path) -> Result<Child, String> {
    let at_log = |e: std::io::Error| format!("{}: {e}", log.display());
    let out = File::create(log).map_err(at_log)?;
    let err = out.try_clone().map_err(at_log)?;
    let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
    child.map_err(|e| format!("{} could not be started: {e}", command.get_program().display()))
}

fn wait(child: &mut Child, limit: Duration, worked: &mut Duration) -> Result<(), String> {
    let start = Instant::now();
    let stat = format!("/proc/{}/stat", child.id());
    loop {
        // Read for the last time a moment before its end: afterwards there is no process to read
        // from.
        if let Some(now) = std::fs::read_to_string(&stat).ok().and_then(|text| processor_time(&text)) {
            *worked = now;
        }
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if start.elapsed() < limit => std::thread::sleep(LOOK_EVERY),
            Ok(None) => {
                // Both fail only if it has ended by itself meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("did not end within {} s and was killed", limit.as_secs_f64()));
            }
            Err(e) => return Err(format!("waiting for it: {e}")),
        }
    }
}

/// The sum of `utime`, `stime`, `cutime` and `cstime` of proc_pid_stat(5), in hundredths of a second to programs.
fn processor_time(stat: &str) -> Option<Duration> {
    // The second field is a file name in parentheses, which may contain anything.
    let (_, behind) = stat.rsplit_once(')')?;
    let fields = behind.split_whitespace().skip(11).take(4);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    (ticks.len() == 4).then(|| Duration::from_millis(ticks.iter().sum::<u64>() * 10))
}

fn judge(
    job: &SuiteJob,
    listed: usize,
    output: &str,
    result: Result<(), String>,
    (took, worked): (Duration, Duration),
) -> JobResult {
    let said = outcome::without_captured(output);
    let (counts, failed) = (TestCounts::of(&said), outcome::failed(&said));
    let fault = match result {
        Err(reason) if failed.is_empty() => Some(reason),
        Err(_) => Some(failed.join(" ")),
        // Whoever makes a test program end with 0 early must not make its tests disappear.
        Ok(()) if !said.contains("test result: ") => Some("it ended well but ran no test to its end".into()),
        Ok(()) if counts.ended() < listed => {
            Some(format!("it ended well but ran only {} of its {listed} tests", counts.ended()))
        }
        Ok(()) => None,
    };
    let skips = outcome::skips(output);
    let failed = failed.into_iter().map(str::to_owned).collect();
    let (name, again) = (job.name.clone(), job.again.clone());
    JobResult { name, again, took, worked, counts, skips, fault, failed }
}

fn heading(ended: &JobResult) -> String {
    let JobResult { name, took, counts, fault, .. } = ended;
    let seconds = took.as_secs_f64();
    match fault {
        Some(fault) => format!("{name}: FAILED after {seconds:.1} s: {fault}"),
        None => format!("{name}: {} passed in {seconds:.1} s", counts.passed),
    }
}

/// Returns the skipped tests: first their number, then a line for each reason with its tests.
/// Nothing if there are none.
fn skipped_lines(ended: &[JobResult]) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for one in ended {
        for skip in &one.skips {
            by_reason.entry(&skip.reason).or_default().push(format!("{} {}", one.name, skip.test));
        }
    }
    let tests: BTreeSet<&String> = by_reason.values().flatten().collect();
    if tests.is_empty() {
        return Vec::new();
    }
    let first = format!("skipped tests, whole or in part: {}", tests.len());
    let reasons = by_reason.iter().map(|(reason, tests)| format!("  {reason}: {}", tests.join(", ")));
    std::iter::once(first).chain(reasons).collect()
}

/// Names the tests that passed only alone.
fn unsteady_line(ended: &[JobResult]) -> Option<String> {
    let unsteady = ended.iter().filter(|one| one.fault.is_none() && !one.failed.is_empty());
    let names: Vec<String> = unsteady.map(|one| format!("{} {}", one.name, one.failed.join(" "))).collect();
    (!names.is_empty())
        .then(|| format!("UNSTEADY, failed beside other tests and passed alone: {}", names.join(", ")))
}

/// The longest, the sums, and every failure with the command that repeats it.
fn summary(ended: &[JobResult]) -> String {
    let mut by_time: Vec<&JobResult> = ended.iter().collect();
    by_time.sort_by_key(|one| std::cmp::Reverse(one.took));
    let mut text = String::from("\nlongest:  took    worked\n");
    for one in by_time.iter().take(NAMED) {
        let (took, worked) = (one.took.as_secs_f64(), one.worked.as_secs_f64());
        text += &format!("  {took:>10.1} s {worked:>7.1} s  {}\n", one.name);
    }
    let sum = ended.iter().fold(TestCounts::default(), |sum, one| sum.plus(one.counts));
    let worked: Duration = ended.iter().map(|one| one.worked).sum();
    text += &format!(
        "tests: {} passed, {} failed, {} ignored, in {} programs that worked for {:.0} s\n",
        sum.passed,
        sum.failed,
        sum.ignored,
        ended.len(),
        worked.as_secs_f64()
    );
    for one in ended {
        if let Some(fault) = &one.fault {
            text += &format!("FAILED {}: {fault}\n  again: {}\n", one.name, one.again);
        }
    }
    text
}

/// The program `name` of the workspace, built as for the tests (and so already there behind them).
pub(crate) fn built_program(name: &str) -> Result<PathBuf, String> {
    program(&build()?, name).ok_or_else(|| format!("cargo built no program '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> SuiteJob {
        let script = script.to_owned();
        let command = move |tests: &[String]| {
            let mut command = Command::new("sh");
            command.args(["-c", &script, "sh"]).args(tests);
            command
        };
        let (tests, listed, again) = (Vec::new(), 1, "cargo test one".into());
        SuiteJob { name: name.into(), command: Box::new(command), tests, listed, again }
    }

    fn ended(script: &'static str, limit: Duration) -> JobResult {
        let name = format!("millrace-xtask-suite-{}-{:?}", std::process::id(), std::thread::current().id());
        let log = std::env::temp_dir().join(name);
        let job = shell("crate/one", script);
        let (output, worked, result) = run_one((job.command)(&job.tests), &log, limit);
        std::fs::remove_file(&log).unwrap();
        judge(&job, job.listed, &output, result, (Duration::from_millis(1500), worked))
    }

    #[test]
    fn program_result_follows_exit_status_and_output() {
        let said = "echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured'";
        let passed = ended(said, LIMIT);
        assert_eq!((passed.fault.as_deref(), passed.counts.passed), (None, 2));
        assert_eq!(heading(&passed), "crate/one: 2 passed in 1.5 s");

        let failed = ended("echo 'test a::b ... FAILED'; echo 'test c ... FAILED' >&2; exit 101", LIMIT);
        assert_eq!(failed.fault.as_deref(), Some("a::b c"));
        assert_eq!(heading(&failed), "crate/one: FAILED after 1.5 s: a::b c");
        assert_eq!(ended("exit 3", LIMIT).fault.as_deref(), Some("exit status: 3"));
        let silent = ended("exit 0", LIMIT);
        assert_eq!(silent.fault.as_deref(), Some("it ended well but ran no test to its end"));
        let fewer = ended("echo 'test result: ok. 0 passed; 0 failed; 0 ignored'", LIMIT);
        assert_eq!(fewer.fault.as_deref(), Some("it ended well but ran only 0 of its 1 tests"));
        let hangs = ended("exec sleep 60", Duration::from_millis(100));
        assert_eq!(hangs.fault.as_deref(), Some("did not end within 0.1 s and was killed"));

        assert_eq!(verdict(std::slice::from_ref(&passed)), Ok(()));
        let ended = [passed, failed];
        let said = "1 of 2 test programs failed: crate/one (a::b c)";
        assert_eq!(verdict(&ended), Err(said.to_owned()));
        let text = summary(&ended);
        let end = "tests: 2 passed, 0 failed, 1 ignored, in 2 programs that worked for 0 s\n\
                   FAILED crate/one: a::b c\n  again: cargo test one\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn second_try_clears_only_tests_that_pass_alone() {
        let logs = tempfile::tempdir().unwrap();
        // The second try names the test.
        let first = "echo 'test a ... FAILED'; echo 'test result: FAILED. 4 passed; 1 failed'; exit 101";
        let after = |name: &str, second: &str| {
            let jobs = [shell(name, &format!("[ $# -eq 0 ] || {{ {second}; }}; {first}"))];
            let mut all = run_all(&jobs, 1, logs.path(), || ());
            second_tries(&jobs, &mut all, logs.path());
            all.remove(0)
        };
        let passes = "[ \"$1\" = a ] || exit 9; echo 'test result: ok. 1 passed; 0 failed'; exit 0";
        let unsteady = after("server/e2e_one", passes);
        assert_eq!((unsteady.fault.as_deref(), unsteady.counts.passed, unsteady.counts.failed), (None, 5, 0));
        let line = "UNSTEADY, failed beside other tests and passed alone: server/e2e_one a";
        assert_eq!(unsteady_line(&[unsteady]).as_deref(), Some(line));
        // The second try fails again, runs nothing, or crashes.
        for second in ["true", "echo 'test result: ok. 0 passed; 0 failed'; exit 0", "kill -9 $$"] {
            let failed = after("server/e2e_one", second);
            assert_eq!((failed.fault.as_deref(), failed.counts.failed), (Some("a"), 1), "{second}");
            assert_eq!(unsteady_line(&[failed]), None);
        }
        // A test without real time has no excuse.
        assert_eq!(after("server/lib", passes).fault.as_deref(), Some("a"));
    }

    #[test]
    fn skipped_tests_are_counted_once_and_named_by_reason() {
        let shown = "echo 'successes:'; echo '---- a stdout ----'; echo 'skipped: needs root'; \
                     echo 'skipped: no tun'; echo '---- b stdout ----'; echo 'skipped: needs root'; \
                     echo 'successes:'; echo 'test result: ok. 2 passed; 0 failed'";
        let one = ended(shown, LIMIT);
        assert_eq!((one.counts.passed, one.fault.as_deref()), (2, None));
        let lines = skipped_lines(&[one, ended("echo 'test result: ok. 1 passed'", LIMIT)]);
        let expected = [
            "skipped tests, whole or in part: 2",
            "  needs root: crate/one a, crate/one b",
            "  no tun: crate/one a",
        ];
        assert_eq!(lines, expected);
        assert!(skipped_lines(&[ended("echo 'test result: ok. 1 passed'", LIMIT)]).is_empty());
    }

    #[test]
    fn processor_time_is_parsed_from_proc_stat() {
        let stat = "17 (a ) b) S 1 17 17 0 -1 4194304 1 2 3 4 100 20 3 400 20 0 1 0 99";
        assert_eq!(processor_time(stat), Some(Duration::from_millis(5230)));
        assert_eq!(processor_time("17 (a) S 1"), None);
        assert_eq!(processor_time("17 (a) S 1 17 17 0 -1 4194304 1 2 3 4 x 20 3 400"), None);
        let busy = ended("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 0.1", LIMIT);
        assert!(busy.worked > Duration::ZERO);
    }

    #[test]
    fn run_one_of_missing_program_returns_error() {
        let (output, _, result) =
            run_one(Command::new("no-such-program"), Path::new("/dev/null"), Duration::ZERO);
        assert_eq!(output, "");
        assert!(result.unwrap_err().starts_with("no-such-program could not be started: "));
    }

    #[test]
    fn arguments_are_checked() {
        let args = |list: &[&str]| parse(&list.iter().map(|&a| a.to_owned()).collect::<Vec<_>>());
        let options = args(&["store/", "--at-once", "3"]).unwrap();
        assert_eq!(options, SuiteOptions { at_once: 3, texts: vec!["store/".to_owned()] });
        assert!(args(&[]).unwrap().at_once >= AT_ONCE_PER_PROCESSOR);
        assert!(
            args(&["--at-once"]).is_err() && args(&["--at-once", "0"]).is_err() && args(&["--all"]).is_err()
        );
    }
}
