//! The results: one line per check while it runs, JSON and a summary at the end.

use serde_json::json;

/// How a check ended, with its figures or the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CheckVerdict {
    Pass(String),
    Fail(String),
    Skip(String),
}

impl From<Result<String, String>> for CheckVerdict {
    fn from(outcome: Result<String, String>) -> Self {
        match outcome {
            Ok(figures) => Self::Pass(figures),
            Err(reason) => Self::Fail(reason),
        }
    }
}

impl CheckVerdict {
    /// The same with something more to say.
    pub(super) fn with_note(self, note: &str) -> Self {
        match self {
            Self::Pass(text) => Self::Pass(format!("{text} ({note})")),
            Self::Fail(text) => Self::Fail(format!("{text} ({note})")),
            Self::Skip(text) => Self::Skip(text),
        }
    }

    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Pass(text) => ("PASS", text),
            Self::Fail(text) => ("FAIL", text),
            Self::Skip(text) => ("SKIP", text),
        }
    }
}

/// All verdicts of a run.
#[derive(Default)]
pub(super) struct InteropReport {
    lines: Vec<(String, CheckVerdict, f64)>,
}

impl InteropReport {
    /// Notes a verdict and prints it.
    pub(super) fn add(&mut self, name: &str, verdict: CheckVerdict, seconds: f64) {
        let (word, text) = verdict.parts();
        println!("{word} {name:<32} {text}");
        self.lines.push((name.to_owned(), verdict, seconds));
    }

    fn count(&self, wanted: &str) -> usize {
        self.lines.iter().filter(|(_, verdict, _)| verdict.parts().0 == wanted).count()
    }

    pub(super) fn passed(&self) -> usize {
        self.count("PASS")
    }

    pub(super) fn failed(&self) -> usize {
        self.count("FAIL")
    }

    /// The closing line, in the form that test runners share.
    pub(super) fn summary(&self) -> String {
        format!("interop: {} passed, {} failed, {} skipped", self.passed(), self.failed(), self.count("SKIP"))
    }

    pub(super) fn json(&self) -> String {
        let checks: Vec<_> = self
            .lines
            .iter()
            .map(|(name, verdict, seconds)| {
                let (word, text) = verdict.parts();
                json!({"name": name, "verdict": word.to_lowercase(), "figures": text, "seconds": seconds})
            })
            .collect();
        json!({"passed": self.passed(), "failed": self.failed(), "skipped": self.count("SKIP"), "checks": checks})
            .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_counted_and_written() {
        let mut report = InteropReport::default();
        report.add("a", Ok("300 of 300 frames".to_owned()).into(), 1.5);
        report.add("b", Err("2 lost".to_owned()).into(), 2.0);
        report.add("c", CheckVerdict::Skip("no root".into()), 0.0);
        assert_eq!(report.summary(), "interop: 1 passed, 1 failed, 1 skipped");
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(
            json["checks"][1],
            json!({"name": "b", "verdict": "fail", "figures": "2 lost", "seconds": 2.0})
        );
        assert_eq!((&json["passed"], &json["skipped"]), (&json!(1), &json!(1)));
    }
}
