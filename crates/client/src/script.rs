//! Scripts of pauses, seeks, speeds and renditions: `pause@5,play@8,seek@10=30,scale@12=-4,rendition@15=480p`. Seconds count from the reply to the first PLAY.

use std::str::FromStr;

use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::time::{MediaTicks, NS_PER_S};

use crate::error::ClientError;
use crate::limits::MAX_SCRIPT_STEPS;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// PAUSE.
    Pause,
    /// PLAY from where it stopped.
    Resume,
    /// PAUSE if it plays, and PLAY from there.
    Seek(MediaTicks),
    /// PAUSE if it plays, and PLAY on at this speed.
    Scale(Scale),
    /// SET_PARAMETER: another rendition, or `auto`.
    Rendition(RenditionName),
}

/// One step of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptStep {
    /// When, in nanoseconds after the reply to the first PLAY.
    pub at_ns: u64,
    /// What.
    pub action: Action,
}

/// Steps in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script(pub Vec<ScriptStep>);

impl FromStr for Script {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let mut steps: Vec<ScriptStep> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let error = |why| ClientError::Script { given: part.chars().take(60).collect(), why };
            let seconds = |text: &str| MediaTicks::from_secs_f64(text.trim().parse().ok()?);
            let (verb, rest) = part.split_once('@').ok_or_else(|| error("no \"@\" before the time"))?;
            let (at, target) = match rest.split_once('=') {
                Some((at, target)) => (at, Some(target)),
                None => (rest, None),
            };
            let at_ns = seconds(at).ok_or_else(|| error("the time is not a number of seconds"))?.to_ns();
            let action =
                match (verb.trim(), target) {
                    ("pause", None) => Action::Pause,
                    ("play", None) => Action::Resume,
                    ("seek", Some(target)) => Action::Seek(
                        seconds(target).ok_or_else(|| error("the place is not a number of seconds"))?,
                    ),
                    ("scale", Some(target)) => {
                        let scale = target.trim().parse();
                        Action::Scale(scale.map_err(|_| {
                            error("the speed is not a number from 0.25 to 32, or its negative")
                        })?)
                    }
                    ("rendition", Some(target)) => {
                        let name = target.trim().parse();
                        Action::Rendition(name.map_err(|_| error("the rendition is no name, nor auto"))?)
                    }
                    ("rendition", None) => return Err(error("a rendition needs \"=\" and a name")),
                    ("scale", None) => return Err(error("a scale needs \"=\" and a speed")),
                    ("seek", None) => return Err(error("a seek needs \"=\" and a position")),
                    ("pause" | "play", Some(_)) => {
                        return Err(error("only a seek has a place, a scale a speed and a rendition a name"));
                    }
                    _ => return Err(error("the verbs are pause, play, seek, scale and rendition")),
                };
            if steps.last().is_some_and(|last| last.at_ns > at_ns) {
                return Err(error("it lies before the step in front of it"));
            }
            if steps.len() == MAX_SCRIPT_STEPS {
                return Err(error("more than 1000 steps"));
            }
            steps.push(ScriptStep { at_ns, action });
        }
        Ok(Self(steps))
    }
}

impl ScriptStep {
    /// When, in seconds, for people.
    pub fn at_secs(&self) -> f64 {
        self.at_ns as f64 / NS_PER_S as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_parse() {
        let script: Script = "pause@5, play@8,seek@10.5=30,scale@11=-0.5,rendition@12=480p".parse().unwrap();
        let place = MediaTicks::from_secs_f64(30.0).unwrap();
        assert_eq!(
            script.0.iter().map(|step| (step.at_secs(), step.action)).collect::<Vec<_>>(),
            [
                (5.0, Action::Pause),
                (8.0, Action::Resume),
                (10.5, Action::Seek(place)),
                (11.0, Action::Scale("-0.5".parse().unwrap())),
                (12.0, Action::Rendition("480p".parse().unwrap()))
            ]
        );
        assert_eq!("".parse::<Script>().unwrap(), Script::default());
    }

    #[test]
    fn bad_scripts_say_which_step_and_why() {
        for (text, part, why) in [
            ("pause@1,stop@5", "stop@5", "verbs"),
            ("pause", "pause", "no \"@\""),
            ("pause@-1", "pause@-1", "not a number"),
            ("seek@5", "seek@5", "needs \"=\""),
            ("seek@5=x", "seek@5=x", "place is not"),
            ("play@5=7", "play@5=7", "only a seek"),
            ("scale@5", "scale@5", "needs \"=\""),
            ("scale@5=0", "scale@5=0", "speed is not"),
            ("rendition@5=A", "rendition@5=A", "no name"),
            ("rendition@5", "rendition@5", "needs \"=\""),
            ("pause@5,play@4", "play@4", "before"),
        ] {
            let error = text.parse::<Script>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(why), "{error}");
        }
    }
}
