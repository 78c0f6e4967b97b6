//! The stack's output, and its timing, against scripts: our own (`packetdrill/scripts`), one or
//! more for each rule about the wire, and those of others (`packetdrill/others.txt`).

mod drill;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use drill::{Dialect, Family, Start, parse, run};

/// Where others' scripts are.
const DIR: &str = "PACKETDRILL_DIR";
/// Runs a script by itself: a part of its name.
const ONLY: &str = "PACKETDRILL_ONLY";

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/virtual_time/packetdrill")
}

/// The scripts of a folder, in order.
fn scripts(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry of the folder").path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|ext| ext == "pkt")).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Runs a script in every way; returns the failures and the number of runs.
fn play(path: &Path, dialect: Dialect, starts: &[Start], faults: &mut Vec<String>) -> (usize, usize) {
    let name = name(path);
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let script = match parse(&text) {
        Ok(script) => script,
        Err(fault) => {
            faults.push(format!("{name}:{fault}"));
            return (0, 0);
        }
    };
    let (mut runs, mut assertions, mut passed_over) = (0, 0, BTreeSet::new());
    for &start in starts {
        match run(&script, start, dialect) {
            Ok(run) if run.is_skipped => {}
            Ok(run) => {
                runs += 1;
                assertions = run.assertions;
                passed_over = run.passed_over;
            }
            Err(fault) => {
                faults.push(format!("{name}:{fault} ({start:?})"));
                break;
            }
        }
    }
    if !passed_over.is_empty() {
        let commands: Vec<String> = passed_over.into_iter().collect();
        println!("{name}: means nothing here: {}", commands.join(", "));
    }
    (runs, assertions)
}

/// Either IP; from any sequence number and from just before it wraps; with ACKs processed at once and later in the turn.
fn all() -> Vec<Start> {
    let switches = (0..8).map(|bits| [bits & 1 > 0, bits & 2 > 0, bits & 4 > 0]);
    let start = |[is_v6, wraps, defers]: [bool; 3]| {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        Start { family, wraps, defers }
    };
    switches.map(start).collect()
}

#[test]
fn our_scripts_pass() {
    let only = std::env::var(ONLY).unwrap_or_default();
    let (mut faults, mut count, mut runs) = (Vec::new(), 0, 0);
    for path in scripts(&here().join("scripts")).iter().filter(|path| name(path).contains(&only)) {
        let (run, assertions) = play(path, Dialect::Ours, &all(), &mut faults);
        assert_eq!(assertions, 0, "{}: assertions in Python are not run", name(path));
        (count, runs) = (count + 1, runs + run);
    }
    println!("{count} scripts, {runs} runs");
    assert!(faults.is_empty(), "{} of {count} scripts failed\n{}", faults.len(), faults.join("\n"));
}

/// The lists: those that apply, and the reasons of those that do not.
fn lists() -> (BTreeSet<String>, BTreeMap<String, String>) {
    let path = here().join("others.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (mut apply, mut do_not) = (BTreeSet::new(), BTreeMap::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, said) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let is_new = match said.trim() {
            "applies" => apply.insert(name.to_owned()),
            reason => {
                assert!(!reason.is_empty(), "others.txt: {name}: neither 'applies' nor a reason");
                do_not.insert(name.to_owned(), reason.to_owned()).is_none()
            }
        };
        assert!(is_new && !(apply.contains(name) && do_not.contains_key(name)), "others.txt: {name} twice");
    }
    (apply, do_not)
}

#[test]
fn packetdrill_third_party_scripts_pass() {
    let (apply, do_not) = lists();
    let Some(folder) = std::env::var_os(DIR) else {
        println!("skipped: {} scripts of others that apply: {DIR} does not name their folder", apply.len());
        return;
    };
    let (mut faults, mut played, mut assertions) = (Vec::new(), BTreeSet::new(), 0);
    let mut count = 0;
    for path in scripts(Path::new(&folder)) {
        let name = name(&path);
        if apply.contains(&name) {
            assertions += play(&path, Dialect::Linux, &all(), &mut faults).1;
            played.insert(name);
        } else if let Some(reason) = do_not.get(&name) {
            println!("{name}: left out: {reason}");
            count += 1;
        } else {
            faults.push(format!("{name}: in neither list of others.txt"));
        }
    }
    let missing: Vec<_> = apply.difference(&played).map(String::as_str).collect();
    println!(
        "{} scripts of others, {assertions} assertions in Python passed over, {count} scripts left out",
        played.len()
    );
    if !missing.is_empty() {
        println!("not there: {}", missing.join(", "));
    }
    assert!(!played.is_empty(), "{}: none of the scripts that apply is there", Path::new(&folder).display());
    assert!(faults.is_empty(), "{} scripts failed\n{}", faults.len(), faults.join("\n"));
}

/// A script with one wrong line, and the report about it.
#[test]
fn script_with_wrong_line_reports_fault_and_line_number() {
    let open = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 bind(3, ..., ...) = 0\n+0 listen(3, 1) = 0\n\
                +0 < S 0:0(0) win 9000 <mss 1000>\n+0 > S. 0:0(0) ack 1 <mss 1460>\n+.1 < . 1:1(0) ack 1 win 9000\n\
                +0 accept(3, ..., ...) = 4\n+0 write(4, ..., 500) = 500\n";
    for (line, said) in [
        ("", "nothing expects it"),
        (
            "+0 > P. 1:502(501) ack 1",
            "came nothing until 0.101000 s behind > [noecn] P. 1:501(500) ack 1 win 60000",
        ),
        ("+0 > . 1:501(500) ack 1", "expected > . 1:501(500)"),
        ("+0 > P. 1:501(500) ack 2", "expected > P. 1:501(500) ack 2"),
        ("+0 > P. 1:501(500) ack 1 win 59999", "expected > P. 1:501(500) ack 1 win 59999"),
        ("+0 > P. 1:501(500) ack 1 urg 1", "expected > P. 1:501(500) ack 1 urg 1"),
        ("+0 > P. 1:501(500) ack 1 <nop,nop,TS val 1 ecr 2>", "expected > P. 1:501(500) ack 1 <nop,nop,TS"),
        ("+0 > [ect0] P. 1:501(500) ack 1", "expected > [ect0] P."),
        ("+.1 > P. 1:501(500) ack 1", "went out at 0.100000 s, not between 0.200000 s"),
        ("+.1~+.2 > P. 1:501(500) ack 1", "not between 0.200000 s and 0.300000 s"),
        ("+0 > (8080 > 9) P. 1:501(500) ack 1", "between other ports"),
        ("+0 > P. 1:501(500) ack 1\n+.1 > P. 1:501(500) ack 1", "came nothing until 0.201000 s"),
        ("+0 > P. 1:501(500)", "go together"),
        ("+0 > P. 1:501(501) ack 1", "1:501 are not 501 bytes"),
        ("+0 > X. 1:501(500) ack 1", "no TCP flags"),
        ("+0 < P. 1:2(1) ack 1", "has a window"),
        ("+0 > P. 1:501(500) ack 1 <mss 70000>", "does not fit its field"),
        ("+0 > P. 1:501(500) ack 1 <mss 7, bla>", "option 'bla' is not known"),
        ("+0 < . 1:1(0) ack 1 win 9 <sack 1:2 3:4 5:6 7:8 9:10>", "40 bytes at the most"),
        ("+0 ? P.", "neither a segment"),
        ("+x > P.", "a time is missing"),
        ("+0...1 > P. 1:501(500) ack 1", "only a system call can block"),
        ("+0 read(4, ..., 5) = 5", "read() blocks"),
        (
            "+0...0.5 read(4, ..., 5) = 5\n+0 > P. 1:501(500) ack 1\n+.6 %{}%",
            "has not returned until 0.600000 s",
        ),
        ("+0 write(4, ..., 5) = 4", "was to return 4, and returned 5"),
        ("+0 write(9, ..., 5) = 5", "returned -1 EBADF"),
        ("+0 splice(4) = 5", "splice is not known"),
        ("+0 setsockopt(4, SOL_TCP, TCP_MD5SIG, [1], 4) = 0", "TCP_MD5SIG has no counterpart"),
        ("/* without end", "a comment without an end"),
    ] {
        let script = format!("{open}{line}");
        let start = Start { family: Family::V4, wraps: false, defers: false };
        let fault = parse(&script).and_then(|script| run(&script, start, Dialect::Ours)).expect_err(line);
        assert!(fault.what.contains(said), "{line}: {fault}");
        let last = script.lines().count();
        assert!(fault.line >= 8 && fault.line <= last + 1, "{line}: {fault}");
    }
}

/// Whatever is missing in a script, or behind it: an error, or another script.
#[test]
fn parse_truncated_script_succeeds_or_returns_fault() {
    for path in scripts(&here().join("scripts")) {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for at in (0..text.len()).step_by(13).filter(|&at| text.is_char_boundary(at)) {
            let (before, behind) = text.split_at(at);
            let mut rest = behind.chars();
            rest.next();
            for cut in [before.to_owned(), behind.to_owned(), format!("{before}{}", rest.as_str())] {
                if let Err(fault) = parse(&cut) {
                    assert!(fault.line <= cut.lines().count() + 1 && !fault.what.is_empty(), "{fault}");
                }
            }
        }
    }
}
