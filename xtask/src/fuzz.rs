//! Property tests and fuzz targets are ordinary tests that `cargo test` runs briefly. This finds them in the source
//! and runs them, and nothing else, for as long as is asked.

use std::collections::BTreeMap;

use crate::rust_text::RustText;
use crate::tidy::Tree;
use crate::workspace::cargo;

/// Markers of a test that feeds itself random input.
const MARKS: &[&str] = &["bolero::check!", "check!", "proptest!", "TestRunner"];

/// Cases of one proptest in a second, roughly: it counts cases where bolero counts time.
const PROPTEST_CASES_PER_SECOND: u64 = 5_000;

/// `cargo xtask fuzz [--seconds N] [NAME...]`
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let (seconds, names) = parse(args)?;
    let tree = Tree::of_workspace()?;
    let mut tests: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (file, rust) in tree.rust() {
        let Some(folder) = file.path.strip_prefix("crates/").and_then(|p| p.split('/').next()) else {
            continue;
        };
        let found =
            fuzzed(rust).into_iter().filter(|t| names.is_empty() || names.iter().any(|n| t.contains(n)));
        tests.entry(folder).or_default().extend(found.map(|name| filter(&file.path, &name)));
    }
    tests.retain(|_, found| !found.is_empty());
    if tests.is_empty() {
        return Err("no property test has such a name".into());
    }
    let mut failed = Vec::new();
    for (folder, found) in &tests {
        let shown: Vec<_> = found.iter().map(|filter| filter.trim_start_matches("::")).collect();
        println!("\n== {folder}: {} for {seconds} s each", shown.join(", "));
        let status = cargo()
            .args(["test", "--release", "--locked", "--package", &format!("millrace-{folder}"), "--"])
            .args(["--nocapture", "--test-threads=1"])
            .args(found)
            .env("BOLERO_RANDOM_TEST_TIME_MS", (seconds * 1000).to_string())
            .env("BOLERO_RANDOM_ITERATIONS", u64::MAX.to_string())
            .env("PROPTEST_CASES", (seconds * PROPTEST_CASES_PER_SECOND).to_string())
            .status()
            .map_err(|e| format!("cargo test could not be started: {e}"))?;
        if !status.success() {
            failed.push(*folder);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("found something in: {}", failed.join(", "))) }
}

fn parse(args: &[String]) -> Result<(u64, Vec<String>), String> {
    let (mut seconds, mut names) = (60, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            let value = args.next().and_then(|v| v.parse().ok()).filter(|&v| v > 0);
            seconds = value.ok_or("--seconds needs a whole number from 1")?;
        } else if arg.starts_with('-') {
            return Err(format!("unknown option '{arg}'; usage: fuzz [--seconds N] [NAME...]"));
        } else {
            names.push(arg.clone());
        }
    }
    Ok((seconds, names))
}

/// What libtest takes for the test `name` of a file. A module whose name contains it, such as `add_server` for `server`, is not
/// meant.
fn filter(path: &str, name: &str) -> String {
    let is_root = path.ends_with("/main.rs") || path.rsplit('/').nth(1) == Some("tests");
    if is_root && !path.contains("/src/") { name.to_owned() } else { format!("::{name}") }
}

/// Names of the test functions that feed themselves random input.
fn fuzzed(rust: &RustText) -> Vec<String> {
    let proptests: Vec<_> = rust
        .words("proptest!")
        .filter_map(|at| {
            let open = at + rust.code[at..].find('{')?;
            Some(at..crate::rust_text::matching_brace(&rust.code, open)?)
        })
        .collect();
    let functions = rust.functions().into_iter();
    functions
        .filter(|f| {
            // The attribute stands between the end of the preceding item and the function.
            let before = &rust.code[..f.span.start];
            let attributes = &before[before.rfind([';', '}', '{']).map_or(0, |at| at + 1)..];
            let body = &rust.code[f.span.clone()];
            let feeds = MARKS.iter().any(|mark| crate::rust_text::words(body, mark).next().is_some());
            attributes.contains("#[test]") && (feeds || proptests.iter().any(|p| p.contains(&f.span.start)))
        })
        .map(|f| f.name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_with_random_input_are_found() {
        let source = "
            fn check() {}
            #[test]
            fn plain() { check(); }
            #[test]
            fn parser_never_panics() { bolero::check!().for_each(|input: &[u8]| parse(input)); }
            proptest! {
                #![proptest_config(ProptestConfig::with_cases(64))]
                /// Both ways.
                #[test]
                fn round_trip(x in any::<u8>()) { prop_assert_eq!(f(x), x); }
            }
            fn helper() { bolero::check!(); }
        ";
        assert_eq!(fuzzed(&RustText::new(source)), ["parser_never_panics", "round_trip"]);
    }

    #[test]
    fn tests_in_modules_are_not_taken_for_their_modules() {
        assert_eq!(filter("crates/a/tests/control/fuzz_rtsp.rs", "server"), "::server");
        assert_eq!(filter("crates/a/src/tests/x.rs", "server"), "::server");
        assert_eq!(filter("crates/a/src/lib.rs", "server"), "::server");
        assert_eq!(filter("crates/a/tests/alone.rs", "server"), "server");
        assert_eq!(filter("crates/a/tests/control/main.rs", "server"), "server");
    }

    #[test]
    fn arguments_are_checked() {
        let args = |list: &[&str]| parse(&list.iter().map(|&a| a.to_owned()).collect::<Vec<_>>());
        assert_eq!(args(&[]), Ok((60, vec![])));
        assert_eq!(args(&["rtsp", "--seconds", "5"]), Ok((5, vec!["rtsp".to_owned()])));
        assert!(
            args(&["--seconds"]).is_err() && args(&["--seconds", "0"]).is_err() && args(&["--all"]).is_err()
        );
    }
}
