//! Odd films: `scripts/interop/odd_films.py` makes them, plays them through every face of its own
//! server, and judges the decoded pictures and sound. This module adds its verdicts to those of the
//! players.

use std::path::Path;

use serde_json::Value;

use super::Lab;
use super::options::InteropOptions;
use super::process::{ProgramSpec, Stopwatch};
use super::report::{CheckVerdict, InteropReport};
use crate::workspace;

/// All films take about ten minutes on two cores, the short form about two.
const LIMIT_SECONDS: f64 = 3000.0;

const NEEDS: [&str; 2] = ["python3", "ffprobe"];

/// Plays the chosen films.
pub(super) fn play(lab: &Lab, options: &InteropOptions, report: &mut InteropReport) -> Result<(), String> {
    let names = names(options.long, &lab.dir)?;
    let chosen: Vec<&String> = names.iter().filter(|name| options.wants(&check_name(name))).collect();
    if chosen.is_empty() {
        return Ok(());
    }
    let missing: Vec<_> = NEEDS.iter().filter(|program| !workspace::has_program(program)).copied().collect();
    if !missing.is_empty() {
        let reason = format!("{} not installed; `make deps` installs it", missing.join(", "));
        chosen.iter().for_each(|name| report.add(&check_name(name), CheckVerdict::Skip(reason.clone()), 0.0));
        return Ok(());
    }
    let json = lab.dir.join("odd-films.json");
    let mut program = script(options.long)
        .arg("--millrace")
        .arg(&lab.millrace)
        .arg("--json")
        .arg(&json)
        .args(&format!("--jobs {}", options.jobs));
    if chosen.len() < names.len() {
        for name in &chosen {
            program = program.arg("--only").arg(name.as_str());
        }
    }
    let watch = Stopwatch::start();
    let ended = program.run(&lab.dir.join("odd-films"), LIMIT_SECONDS)?;
    let seconds = watch.seconds() / chosen.len() as f64;
    let text = std::fs::read(&json)
        .map_err(|error| format!("odd films: no verdicts ({error}): {}", ended.last_words()))?;
    let verdicts: Value = serde_json::from_slice(&text).map_err(|error| format!("odd films: {error}"))?;
    for name in chosen {
        report.add(&check_name(name), verdict(&verdicts[name]), seconds);
    }
    Ok(())
}

/// Names of all films of the long or short form.
pub(super) fn names(long: bool, logs: &Path) -> Result<Vec<String>, String> {
    if !workspace::has_program("python3") {
        return Ok(Vec::new());
    }
    let ended = script(long).arg("--list").run(&logs.join("odd-films-list"), 60.0)?;
    ended.ok("odd_films.py --list")?;
    Ok(ended.out.split_whitespace().map(str::to_owned).collect())
}

pub(super) fn check_name(film: &str) -> String {
    format!("odd/{film}")
}

fn script(long: bool) -> ProgramSpec {
    let path = workspace::root().join("scripts/interop/odd_films.py");
    ProgramSpec::new("python3").arg(path).args(if long { "" } else { "--short" })
}

/// The verdict of a film: an object with the problems of each face.
fn verdict(faces: &Value) -> CheckVerdict {
    let Some(faces) = faces.as_object().filter(|faces| !faces.is_empty()) else {
        return CheckVerdict::Fail("was not played".to_owned());
    };
    let problems: Vec<String> = faces
        .iter()
        .flat_map(|(face, problems)| {
            let list = problems.as_array().into_iter().flatten();
            list.map(move |problem| format!("{face}: {}", problem.as_str().unwrap_or("unreadable verdict")))
        })
        .collect();
    match problems.is_empty() {
        true => CheckVerdict::Pass(format!(
            "as the film itself: {}",
            faces.keys().cloned().collect::<Vec<_>>().join(", ")
        )),
        false => CheckVerdict::Fail(problems.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_of_faces_without_problems_passes() {
        let faces = serde_json::json!({"file": [], "cmaf": []});
        assert_eq!(verdict(&faces), CheckVerdict::Pass("as the film itself: cmaf, file".to_owned()));
    }

    #[test]
    fn verdict_with_a_problem_or_without_faces_fails() {
        let faces = serde_json::json!({"file": [], "cmaf": ["20.0 of 40.0 s of sound 1"]});
        assert_eq!(verdict(&faces), CheckVerdict::Fail("cmaf: 20.0 of 40.0 s of sound 1".to_owned()));
        assert!(matches!(verdict(&Value::Null), CheckVerdict::Fail(_)));
        assert!(matches!(verdict(&serde_json::json!({})), CheckVerdict::Fail(_)));
    }
}
