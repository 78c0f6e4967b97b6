//! What a test program said of its tests.

/// The sums of the lines `test result: ...`; a program that runs doc tests prints several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) ignored: usize,
}

impl Counts {
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
        assert_eq!(Counts::of(SAID), Counts { passed: 17, failed: 1, ignored: 3 });
        assert_eq!(Counts::of("thread 'main' panicked"), Counts::default());
        let one = Counts { passed: 1, failed: 2, ignored: 3 };
        assert_eq!(one.plus(one), Counts { passed: 2, failed: 4, ignored: 6 });
    }

    #[test]
    fn failing_tests_are_named() {
        assert_eq!(failed(SAID), ["a::fails"]);
        assert!(failed("test result: ok. 0 passed").is_empty());
    }
}
