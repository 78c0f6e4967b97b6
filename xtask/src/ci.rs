//! Everything that has to hold before a change is kept. All parts run even if one fails, so that one look shows
//! everything there is to repair.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::workspace::{cargo, has_program, root, target_dir};

/// How a part ended.
enum PartOutcome {
    Passed,
    /// With what to look at.
    Failed(String),
    /// With the reason.
    Skipped(String),
}

struct CiPart {
    word: &'static str,
    help: &'static str,
    /// Mostly compiles, with options of its own, so it runs beside a part that leaves processors unused ([`HOSTS`]).
    is_guest: bool,
    run: PartRun,
}

/// Adds to the list the items that it has skipped itself, line by line.
type PartRun = fn(&mut Vec<String>, Beside<'_>) -> PartOutcome;

/// The guests, which a host runs on a thread of its own after its build: cargo builds for one caller at a time.
/// The other parts do not run it.
type Beside<'a> = &'a mut (dyn FnMut() + Send);

impl CiPart {
    const fn new(word: &'static str, help: &'static str, run: PartRun) -> Self {
        Self { word, help, is_guest: false, run }
    }

    const fn guest(self) -> Self {
        Self { is_guest: true, ..self }
    }
}

/// A part that has ended.
struct PartReport {
    part: &'static CiPart,
    outcome: PartOutcome,
    took: Duration,
}

const TEST: &str = "test";
const INTEROP: &str = "interop";

/// The parts that guests may run beside; the first that is chosen takes them. Players use less than one processor, tests a
/// little more.
const HOSTS: [&str; 2] = [INTEROP, TEST];

/// In this order: quick parts that often fail come first.
const PARTS: &[CiPart] = &[
    CiPart::new("fmt", "cargo fmt --check", |_, _| fmt()),
    CiPart::new("house", "house rules, crate edges, quotes of RFCs", |_, _| house()),
    CiPart::new("scripts", "shell and Python helpers parse, units are restricted", |_, _| scripts()),
    CiPart::new("clippy", "clippy on all targets, no warnings", |_, _| clippy()).guest(),
    CiPart::new(TEST, "all tests of the workspace", tests),
    CiPart::new("loom", "what core shares without locks, in every order of threads", |_, _| loom()).guest(),
    CiPart::new(
        "miri",
        "unsafe code of core, every access to memory checked (needs nightly miri)",
        |_, _| miri(),
    ),
    CiPart::new("doc", "documentation builds, no broken links", |_, _| doc()).guest(),
    CiPart::new("deny", "licences and sources of dependencies (needs cargo-deny)", |_, _| deny()),
    CiPart::new(INTEROP, "real players against the built program", interop),
];

/// `cargo xtask ci [--list] [PART...]`
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if args.iter().any(|a| a == "--list" || a == "--help" || a == "-h") {
        for part in PARTS {
            println!("  {:<8} {}", part.word, part.help);
        }
        return Ok(());
    }
    let mut skips = Vec::new();
    let report = run_parts(&chosen(args)?, &mut skips);
    print!("\n{}", table(&report));
    skips.iter().for_each(|line| println!("{line}"));
    let count = |is: fn(&PartOutcome) -> bool| report.iter().filter(|one| is(&one.outcome)).count();
    let failed = count(|outcome| matches!(outcome, PartOutcome::Failed(_)));
    let skipped = count(|outcome| matches!(outcome, PartOutcome::Skipped(_)));
    println!("ci: {} passed, {failed} failed, {skipped} skipped", report.len() - failed - skipped);
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} parts failed", report.len())) }
}

fn run_parts(parts: &[&'static CiPart], skips: &mut Vec<String>) -> Vec<PartReport> {
    let host = HOSTS.into_iter().find(|host| parts.iter().any(|part| part.word == *host));
    let (guests, in_turn): (Vec<_>, Vec<_>) =
        parts.iter().copied().partition(|part| host.is_some() && part.is_guest);
    let mut report = Vec::new();
    for part in in_turn {
        println!("\n== {}: {}", part.word, part.help);
        let start = Instant::now();
        let mut beside = Vec::new();
        let outcome = match host {
            Some(host) if host == part.word => with_guests(part, &guests, &mut beside, skips),
            _ => (part.run)(skips, &mut || ()),
        };
        report.push(PartReport { part, outcome, took: start.elapsed() });
        report.append(&mut beside);
    }
    report
}

/// Runs `part`, and beside it the guests, which go to `report`.
fn with_guests(
    part: &CiPart,
    guests: &[&'static CiPart],
    report: &mut Vec<PartReport>,
    skips: &mut Vec<String>,
) -> PartOutcome {
    if !guests.is_empty() {
        let words: Vec<_> = guests.iter().map(|part| part.word).collect();
        println!("beside it, when everything has been built: {}", words.join(", "));
    }
    let outcome = (part.run)(skips, &mut || report.extend(guests.iter().map(|part| quietly(part))));
    // Nothing ran beside a part that could not be built.
    report.extend(guests[report.len()..].iter().map(|part| quietly(part)));
    outcome
}

fn chosen(words: &[String]) -> Result<Vec<&'static CiPart>, String> {
    if words.is_empty() {
        return Ok(PARTS.iter().collect());
    }
    let find = |word: &String| PARTS.iter().find(|p| p.word == word);
    words
        .iter()
        .map(|w| find(w).ok_or_else(|| format!("there is no part '{w}'; --list names them")))
        .collect()
}

fn table(report: &[PartReport]) -> String {
    let mut text = String::new();
    for PartReport { part, outcome, took } in report {
        let (word, note) = match outcome {
            PartOutcome::Passed => ("passed", String::new()),
            PartOutcome::Failed(note) => ("FAILED", format!("  {note}")),
            PartOutcome::Skipped(note) => ("skipped", format!("  {note}")),
        };
        text += &format!("  {:<8} {word:<8} {:>6.1} s{note}\n", part.word, took.as_secs_f64());
    }
    text
}

/// Runs a command with its output going where ours goes.
fn step(command: &mut Command) -> PartOutcome {
    let shown = format!("{command:?}").replace('"', "");
    match command.status() {
        Ok(status) if status.success() => PartOutcome::Passed,
        Ok(status) => PartOutcome::Failed(format!("{status}: {shown}")),
        Err(e) => PartOutcome::Failed(format!("could not be started: {shown}: {e}")),
    }
}

fn fmt() -> PartOutcome {
    step(cargo().args(["fmt", "--all", "--check"]))
}

/// The same functions that `cargo test -p xtask` runs; here their findings come before minutes of compiling.
fn house() -> PartOutcome {
    let checks = [crate::edges::run(&[]), crate::tidy::run(&[]), crate::rfc::run(&[])];
    let faults: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
    if faults.is_empty() {
        return PartOutcome::Passed;
    }
    eprintln!("{}", faults.join("\n"));
    PartOutcome::Failed("cargo xtask edges; cargo xtask tidy; cargo xtask rfc".into())
}

fn clippy() -> PartOutcome {
    step(cargo().args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))
}

fn tests(skips: &mut Vec<String>, beside: Beside<'_>) -> PartOutcome {
    // It has named each failure with its command.
    crate::suite::run_beside(&[], skips, beside).map_or_else(PartOutcome::Failed, |()| PartOutcome::Passed)
}

/// Runs a part as a program of its own with a tenth of the processor time that a test has, and prints its output whole at
/// its end. At idle priority it would never end on a machine that another program keeps busy.
fn quietly(part: &'static CiPart) -> PartReport {
    let start = Instant::now();
    let output = std::env::current_exe().and_then(|xtask| {
        Command::new("nice")
            .args(["-n", "10"])
            .arg(xtask)
            .args(["ci", part.word])
            .current_dir(root())
            .output()
    });
    let outcome = match output {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            println!("{}", String::from_utf8_lossy(&text));
            match output.status.success() {
                true => PartOutcome::Passed,
                false => PartOutcome::Failed(format!("{}: cargo xtask ci {}", output.status, part.word)),
            }
        }
        Err(e) => PartOutcome::Failed(format!("could not be started: cargo xtask ci {}: {e}", part.word)),
    };
    PartReport { part, outcome, took: start.elapsed() }
}

fn loom() -> PartOutcome {
    crate::loom::run(&[]).map_or_else(PartOutcome::Failed, |()| PartOutcome::Passed)
}

fn miri() -> PartOutcome {
    if let Some(why) = crate::miri::missing() {
        return PartOutcome::Skipped(why.into());
    }
    crate::miri::run(&[]).map_or_else(PartOutcome::Failed, |()| PartOutcome::Passed)
}

fn doc() -> PartOutcome {
    step(cargo().args(["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Without the advisories: they change from day to day, so they say nothing about a change of ours (`make deny`
/// asks for them too).
fn deny() -> PartOutcome {
    if !has_program("cargo-deny") {
        return PartOutcome::Skipped("cargo-deny is not installed (cargo install cargo-deny)".into());
    }
    step(cargo().args(["deny", "--workspace", "check", "bans", "licenses", "sources"]))
}

/// Exposure of a systemd unit to attacks, of 100.
const MOST_EXPOSED: &str = "--threshold=30";

/// Shell scripts are parsed by their shell (and read by shellcheck if it is there), Python scripts compiled in memory,
/// and systemd rates its units.
fn scripts() -> PartOutcome {
    let mut faults = Vec::new();
    let tree = match crate::tidy::Tree::of_workspace() {
        Ok(tree) => tree,
        Err(e) => return PartOutcome::Failed(e),
    };
    for file in &tree.files {
        let first = file.text.lines().next().unwrap_or_default();
        let mut checks: Vec<Command> = Vec::new();
        let shell = first.strip_prefix("#!").and_then(|path| path.rsplit(['/', ' ']).next());
        if let Some(shell @ ("bash" | "sh")) = shell {
            checks.push(command(shell, &["-n", &file.path]));
            if has_program("shellcheck") {
                checks.push(command("shellcheck", &["-x", &file.path]));
            }
        } else if file.path.ends_with(".py") {
            let compile = "import sys; compile(open(sys.argv[1]).read(), sys.argv[1], 'exec')";
            checks.push(command("python3", &["-c", compile, &file.path]));
        }
        if file.path.ends_with(".service") && has_program("systemd-analyze") {
            let mut rating =
                command("systemd-analyze", &["security", "--offline=true", MOST_EXPOSED, &file.path]);
            // The score of each line would hide the output of the others.
            rating.stdout(Stdio::null());
            checks.push(rating);
        }
        for mut check in checks {
            println!("{} {}", check.get_program().display(), file.path);
            if !matches!(step(&mut check), PartOutcome::Passed) {
                faults.push(file.path.clone());
            }
        }
    }
    if faults.is_empty() { PartOutcome::Passed } else { PartOutcome::Failed(faults.join(", ")) }
}

fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// As a program of its own, so that it ends by itself whatever happens in it.
fn interop(skips: &mut Vec<String>, beside: Beside<'_>) -> PartOutcome {
    let millrace = match crate::suite::built_program("millrace") {
        Ok(path) => path,
        Err(e) => return PartOutcome::Failed(e),
    };
    let (program, report) = match (std::env::current_exe(), target_dir()) {
        (Ok(program), Ok(target)) => (program, target.join("interop.json")),
        (Err(e), _) => return PartOutcome::Failed(format!("xtask does not know its own path: {e}")),
        (_, Err(e)) => return PartOutcome::Failed(e),
    };
    let mut command = Command::new(program);
    command.arg("interop").arg("--millrace").arg(millrace).arg("--json").arg(&report).current_dir(root());
    let outcome = std::thread::scope(|scope| {
        scope.spawn(beside);
        step(&mut command)
    });
    match std::fs::read(&report).map_err(|e| e.to_string()).and_then(|text| skipped_checks(&text)) {
        Ok(lines) => skips.extend(lines),
        // Without a report it has failed, and has reported why.
        Err(_) if matches!(outcome, PartOutcome::Failed(_)) => {}
        Err(e) => return PartOutcome::Failed(format!("{}: {e}", report.display())),
    }
    outcome
}

/// Returns the checks that the players' report lists as skipped: their number, then each with its
/// reason.
fn skipped_checks(report: &[u8]) -> Result<Vec<String>, String> {
    let report: serde_json::Value = serde_json::from_slice(report).map_err(|e| e.to_string())?;
    let checks = report["checks"].as_array().ok_or("it lists no checks")?;
    let skipped = checks.iter().filter(|check| check["verdict"] == "skip");
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let lines: Vec<_> =
        skipped.map(|check| format!("  {}: {}", word(&check["figures"]), word(&check["name"]))).collect();
    let first = (!lines.is_empty()).then(|| format!("skipped checks with players: {}", lines.len()));
    Ok(first.into_iter().chain(lines).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_word() {
        let words = |parts: Vec<&CiPart>| parts.iter().map(|p| p.word).collect::<Vec<_>>();
        assert_eq!(words(chosen(&["doc".into(), "fmt".into()]).unwrap()), ["doc", "fmt"]);
        assert_eq!(words(chosen(&[]).unwrap()).len(), PARTS.len());
        let hosts: Vec<String> = HOSTS.map(String::from).into();
        assert!(chosen(&hosts).unwrap().iter().all(|part| !part.is_guest));
        assert_eq!(chosen(&["docs".into()]).err().unwrap(), "there is no part 'docs'; --list names them");
    }

    #[test]
    fn step_with_failing_command_reports_status() {
        assert!(matches!(step(&mut command("true", &[])), PartOutcome::Passed));
        let PartOutcome::Failed(note) = step(&mut command("false", &["a"])) else { panic!("false passed") };
        assert!(note.contains("exit status: 1") && note.contains("false a"), "{note}");
        let PartOutcome::Failed(note) = step(&mut command("no-such-program", &[])) else {
            panic!("it passed")
        };
        assert!(note.starts_with("could not be started: "), "{note}");
    }

    #[test]
    fn skipped_checks_are_read_from_the_report() {
        let report =
            br#"{"checks": [{"name": "loop/vlc", "verdict": "skip", "figures": "cvlc not installed"},
                                     {"name": "loop/own", "verdict": "pass", "figures": "fine"}]}"#;
        let lines = ["skipped checks with players: 1", "  cvlc not installed: loop/vlc"];
        assert_eq!(skipped_checks(report).unwrap(), lines);
        assert_eq!(skipped_checks(br#"{"checks": []}"#).unwrap(), [""; 0]);
        assert!(skipped_checks(b"{}").is_err() && skipped_checks(b"").is_err());
    }

    #[test]
    fn table_lists_all_parts_with_outcome() {
        let part = |word| PARTS.iter().find(|part| part.word == word).unwrap();
        let report = [
            ("fmt", PartOutcome::Passed, Duration::from_millis(1500)),
            ("deny", PartOutcome::Skipped("not installed".into()), Duration::ZERO),
            ("test", PartOutcome::Failed("exit status: 101".into()), Duration::from_secs(60)),
        ]
        .map(|(word, outcome, took)| PartReport { part: part(word), outcome, took });
        assert_eq!(
            table(&report),
            "  fmt      passed      1.5 s\n  deny     skipped     0.0 s  not installed\n  \
             test     FAILED     60.0 s  exit status: 101\n"
        );
    }
}
