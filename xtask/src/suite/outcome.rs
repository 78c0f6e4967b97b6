//! The results of a test program's tests, from its output.

/// The sums of the lines `test result: ...`; a program that runs doc tests prints several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TestCounts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) ignored: usize,
}

impl TestCounts {
    pub(super) fn of(output: &str) -> Self {
        let mut sum = Self::default();
        for line in output.lines().filter(|line| line.starts_with("test result: ")) {
            let count = |word: &str| {
                let part = line.split([';', '.']).find_map(|part| part.trim().strip_suffix(word));
                part.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
            };
            sum.passed += count("passed");
            sum.failed += count("failed");
            sum.ignored += count("ignored");
        }
        sum
    }

    /// Tests that were run, or passed over as ignored.
    pub(super) fn ended(self) -> usize {
        self.passed + self.failed + self.ignored
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
        }
    }
}

/// The tests that failed, by name, in the order of their ends.
pub(super) fn failed(output: &str) -> Vec<&str> {
    output
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
        .map(|name| name.trim_end_matches(" - should panic"))
        .collect()
}

/// A test that was not run, or not all of it, because of the machine that it is on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Skip {
    pub(super) reason: String,
    pub(super) test: String,
}

/// The skipped tests with their reasons: those that print `skipped: REASON` or `skipped in part: REASON`, and those that are marked
/// as ignored. Needs the output of tests that pass (`--show-output`).
pub(super) fn skips(output: &str) -> Vec<Skip> {
    let mut found = Vec::new();
    let mut test = "";
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            test = name;
        } else if line.starts_with("skipped: ") || line.starts_with("skipped in part: ") {
            let reason = line.strip_prefix("skipped: ").unwrap_or(line);
            found.push(Skip { reason: reason.to_owned(), test: test.to_owned() });
        } else if let Some((name, reason)) = ignored(line) {
            found.push(Skip { reason, test: name.to_owned() });
        }
    }
    found.sort();
    found.dedup();
    found
}

/// `test NAME ... ignored, REASON`
fn ignored(line: &str) -> Option<(&str, String)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let reason = rest.strip_prefix(", ").map_or("ignored".to_owned(), |reason| format!("ignored, {reason}"));
    Some((name, reason))
}

/// Returns the output without the text printed by passing tests: it interests no reader, and text
/// that a test prints must not be taken for a verdict.
pub(super) fn without_captured(output: &str) -> String {
    let mut text = String::new();
    let (mut captured, mut lists) = (false, 0);
    for line in output.split_inclusive('\n') {
        let word = line.trim_end();
        // A list of names ends the captured output; the one of passing tests comes second.
        captured = match word {
            "successes:" => {
                lists += 1;
                true
            }
            "failures:" => false,
            _ => captured && !(lists == 2 && word.starts_with("test result: ")),
        };
        if !captured {
            lists = 0;
        }
        if !captured {
            text += line;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "
running 3 tests
test a::works ... ok
test a::fails ... FAILED
test slow ... ignored

test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 2 filtered out; finished in 0.01s
test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.20s
";

    #[test]
    fn results_are_added_up() {
        assert_eq!(TestCounts::of(SAID), TestCounts { passed: 17, failed: 1, ignored: 3 });
        assert_eq!(TestCounts::of("thread 'main' panicked"), TestCounts::default());
        let one = TestCounts { passed: 1, failed: 2, ignored: 3 };
        assert_eq!(one.plus(one), TestCounts { passed: 2, failed: 4, ignored: 6 });
    }

    const SHOWN: &str = "
test a::works ... ok
test root ... ok
test slow ... ignored, takes an hour

successes:

---- a::works stdout ----
test result: ok. 99 passed; 0 failed
skipped in part: no GFNI
skipped in part: no GFNI

---- root stdout ----
skipped: needs root

successes:
    a::works
    root

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    #[test]
    fn skipped_tests_are_found_with_their_reasons() {
        let skip = |reason: &str, test: &str| Skip { reason: reason.into(), test: test.into() };
        let expected = [
            skip("ignored, takes an hour", "slow"),
            skip("needs root", "root"),
            skip("skipped in part: no GFNI", "a::works"),
        ];
        assert_eq!(skips(SHOWN), expected);
        assert_eq!(skips("test a ... ignored\ntest b ... ok\n"), [skip("ignored", "a")]);
        assert_eq!(skips("who skipped: nobody"), []);
    }

    #[test]
    fn captured_output_of_passing_tests_is_ignored() {
        let text = without_captured(SHOWN);
        assert_eq!(TestCounts::of(&text), TestCounts { passed: 2, failed: 0, ignored: 1 });
        assert!(!text.contains("needs root") && !text.contains("successes") && text.contains("test root"));
        let failing = format!("successes:\nx\nfailures:\n\n---- b stdout ----\nwhy\n{text}");
        assert!(without_captured(&failing).contains("why"));
    }

    #[test]
    fn failing_tests_are_named() {
        assert_eq!(failed(SAID), ["a::fails"]);
        assert!(failed("test result: ok. 0 passed").is_empty());
    }
}
