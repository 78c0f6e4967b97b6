use super::*;
use crate::cmds::bench::tests::parse;
use crate::frame::{Interval, Report};

static FAST: Bench = Bench {
    name: "fast",
    shows: "a < b",
    not_for: "",
    options: &[],
    targets: &["fast-ratio"],
    needs: &[],
    run: |options| {
        options.go_on()?;
        let mut report = Report { commit: "abc".into(), ..Report::new("fast") };
        let ratio = Interval { low: 0.9, mid: 1.0, high: 1.1, confidence: 0.96 };
        report.promises.push(Promise::at_most("fast-ratio", ratio, 1.25, "of theirs"));
        Ok(report)
    },
};

static BROKEN: Bench =
    Bench { name: "broken", targets: &["broken-ratio"], run: |_| anyhow::bail!("no socket"), ..FAST };

#[test]
fn tree_with_changes_is_refused_unless_allowed() {
    let error = |commit: &str| check_tree(commit, false).unwrap_err().to_string();
    assert_eq!(
        error("abc-dirty"),
        "bench all: the tree at abc-dirty has changes that are not committed; commit them, \
         or give --allow-dirty, which marks the report"
    );
    assert!(error("unknown").contains("no git tree here"));
    check_tree("abc", false).unwrap();
    check_tree("abc-dirty", true).unwrap();
}

#[test]
fn finished_bench_is_read_and_not_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let (args, options) = (parse(&["all"]), Options::tiny("x"));
    let run = |commit| one(&args, &FAST, &options, (dir.path(), commit)).unwrap();
    let first = run("abc").unwrap();
    assert_eq!(first.promises[0].verdict, TargetState::Met);
    // It would stop here if it ran.
    options.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    let again = run("abc").unwrap();
    assert_eq!(again.promises[0].line(), first.promises[0].line());
    assert!(run("abc-dirty").is_none(), "a changed tree is measured again");
    let page = std::fs::read_to_string(dir.path().join("fast/index.html")).unwrap();
    assert!(page.contains("millrace bench fast</code>"), "{page}");
}

#[test]
fn tree_that_changes_meanwhile_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let error = one(&parse(&["all"]), &FAST, &Options::tiny("x"), (dir.path(), "other")).unwrap_err();
    assert!(error.to_string().contains("was at other and is at abc"), "{error}");
}

#[test]
fn exit_code_ranks_failure_and_miss_before_undecided() {
    let outcome = |value: f64, confidence| {
        let interval = Interval { low: value, mid: value, high: value, confidence };
        let promises = vec![Promise::at_most("fast-ratio", interval, 1.25, "")];
        BenchOutcome { bench: &FAST, promises, state: OutcomeState::Measured }
    };
    let (met, missed, undecided) = (outcome(1.0, 0.96), outcome(2.0, 0.96), outcome(1.0, 0.5));
    let failed = BenchOutcome::without_result(&BROKEN, OutcomeState::Failed("no socket".into()));
    let code = |outcomes: &[&BenchOutcome], checks| {
        exit_code(&outcomes.iter().copied().cloned().collect::<Vec<_>>(), checks)
    };
    assert_eq!(code(&[&met], true), 0);
    assert_eq!(code(&[&met, &undecided], true), 3);
    assert_eq!(code(&[&undecided, &missed, &met], true), 1);
    assert_eq!(code(&[&undecided, &missed], false), 0);
    assert_eq!(code(&[&met, &failed], false), 1);
}

#[test]
fn failed_bench_does_not_end_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = one(&parse(&["all"]), &BROKEN, &Options::tiny("x"), (dir.path(), "abc")).unwrap().unwrap();
    assert_eq!(outcome.state, OutcomeState::Failed("no socket".into()));
    assert!(text(&[outcome]).contains("1 not measured (failed: no socket)"));
    assert!(!dir.path().join("broken").exists(), "it is tried again the next time");
}

#[test]
fn other_ways_of_measuring_have_directories_of_their_own() {
    let of = |line: &[&str]| key(&parse(line), "abc");
    assert_eq!(of(&["all"]), "abc");
    assert_eq!(of(&["all", "--quick", "--limit", "5s", "--runs", "9"]), "abc-quick-limit-5s-runs-9");
    let error = |line: &[&str]| chosen(&parse(line)).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error(&["all", "--only", "nonsense"]).contains("no such benchmark; there are: ingest"));
    assert!(error(&["all", "--json"]).contains("--json means nothing to it"));
    assert!(error(&["all", "--streams", "3"]).contains("its own options are: --only --runs"));
    assert_eq!(chosen(&parse(&["all", "--only", "tx,steer"])).unwrap().len(), 2);
}
