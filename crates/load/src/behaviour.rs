//! What viewers do while they watch: the language it is written in.
//!
//! ```text
//! behaviour = script | habit ["," habit]…
//! habit     = what [":" weight]
//! what      = "watch"
//!           | "zap" time                 after each time: away, and another title
//!           | "pause" time "for" time    after each time a pause
//!           | "seek" time                after each time somewhere else in the title
//!           | "trick" time "at" speed    after each time fast forward or whatever it is, or normal speed again
//!           | "switch" time "between" name name   after each time the other one of two renditions
//!           | "leave" time ["replaced"]  after this time away for good; replaced: another viewer comes
//! time      = duration ["fixed"]         the mean of an exponential, or just that
//! speed     = 0.25 to 32, or -0.25 to -32
//! script    = pause@S,play@S,seek@S=S,scale@S=speed,rendition@S=name    the same steps for all, in seconds after the first PLAY
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use millrace_client::script::{Action, Script};
use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::units::HumanDuration;

use crate::error::LoadError;
use crate::limits::{MAX_HABITS, MIN_HABIT_WAIT};
use crate::rng::Rng;

/// A time to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Its mean, or its fixed value.
    pub mean: Duration,
    /// Always the same.
    pub is_fixed: bool,
}

impl Wait {
    pub(super) fn draw(self, rng: &mut Rng) -> Duration {
        if self.is_fixed { self.mean } else { rng.exponential(self.mean) }
    }
}

/// The repeated behaviour of a viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Nothing but watching.
    Watch,
    /// Another title each time.
    Zap {
        /// How long a title is watched.
        after: Wait,
    },
    /// Pauses.
    Pause {
        /// How long it plays.
        after: Wait,
        /// How long it stands still.
        lasts: Wait,
    },
    /// Another place in the title each time.
    Seek {
        /// How long it plays from a place.
        after: Wait,
    },
    /// Another speed, and the normal one again.
    Trick {
        /// How long each lasts.
        after: Wait,
        /// The other speed.
        scale: Scale,
    },
    /// The other one of two renditions.
    Switch {
        /// How long each lasts.
        after: Wait,
        /// The first that is asked for, and the second.
        names: [RenditionName; 2],
    },
    /// Goes away.
    Leave {
        /// How long it stays.
        after: Wait,
        /// Another viewer comes in its place, with a habit of its own.
        is_replaced: bool,
    },
}

/// What viewers do while they watch. The default is to watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Behaviour {
    /// Each viewer has one of these, drawn by weight.
    habits: Vec<(Habit, f64)>,
    /// Steps that all do; there are no habits then.
    script: Script,
}

fn error(part: &str, why: &'static str) -> LoadError {
    LoadError::Behaviour { given: part.trim().chars().take(60).collect(), why }
}

impl Behaviour {
    /// Steps that every viewer does.
    pub(super) fn script(&self) -> &Script {
        &self.script
    }

    /// Draws a habit.
    pub(super) fn draw(&self, rng: &mut Rng) -> Habit {
        let all: f64 = self.habits.iter().map(|(_, weight)| weight).sum();
        let mut left = rng.unit() * all;
        for (habit, weight) in &self.habits {
            left -= weight;
            if left < 0.0 {
                return *habit;
            }
        }
        self.habits.last().map_or(Habit::Watch, |(habit, _)| *habit)
    }
}

/// Takes a duration and perhaps `fixed` from the words.
fn wait<'a>(
    part: &str,
    words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>,
) -> Result<Wait, LoadError> {
    let text = words.next().ok_or_else(|| error(part, "a time is missing"))?;
    let time: HumanDuration = text.parse().map_err(|_| error(part, "a time has a unit: 500ms, 8s, 2m"))?;
    if time.0 < MIN_HABIT_WAIT {
        return Err(error(part, "a time is at least 100ms"));
    }
    Ok(Wait { mean: time.0, is_fixed: words.next_if_eq(&"fixed").is_some() })
}

fn habit(part: &str) -> Result<(Habit, f64), LoadError> {
    let (text, weight) = match part.rsplit_once(':') {
        None => (part, 1.0),
        Some((text, weight)) => {
            let weight: f64 =
                weight.trim().parse().map_err(|_| error(part, "the weight behind \":\" is not a number"))?;
            if !(weight > 0.0 && weight <= 1e9) {
                return Err(error(part, "the weight behind \":\" is not above 0"));
            }
            (text, weight)
        }
    };
    let mut words = text.split_ascii_whitespace().peekable();
    let habit = match words.next() {
        Some("watch") => Habit::Watch,
        Some("zap") => Habit::Zap { after: wait(part, &mut words)? },
        Some("seek") => Habit::Seek { after: wait(part, &mut words)? },
        Some("pause") => {
            let after = wait(part, &mut words)?;
            if words.next() != Some("for") {
                return Err(error(part, "a pause lasts: pause 5s for 3s"));
            }
            Habit::Pause { after, lasts: wait(part, &mut words)? }
        }
        Some("trick") => {
            let after = wait(part, &mut words)?;
            let scale = words.next().filter(|word| *word == "at").and_then(|_| words.next()?.parse().ok());
            Habit::Trick {
                after,
                scale: scale.ok_or_else(|| error(part, "a trick has a speed: trick 12s at -4"))?,
            }
        }
        Some("switch") => {
            let after = wait(part, &mut words)?;
            let is_between = words.next() == Some("between");
            let mut name = || words.next().filter(|_| is_between)?.parse().ok();
            let names = name().zip(name()).map(|(one, other)| [one, other]);
            let names =
                names.ok_or_else(|| error(part, "renditions have names: switch 12s between 480p 1080p"))?;
            Habit::Switch { after, names }
        }
        Some("leave") => {
            let after = wait(part, &mut words)?;
            Habit::Leave { after, is_replaced: words.next_if_eq(&"replaced").is_some() }
        }
        _ => return Err(error(part, "the verbs are watch, zap, pause, seek, trick, switch and leave")),
    };
    if words.next().is_some() {
        return Err(error(part, "there is a word too many"));
    }
    Ok((habit, weight))
}

impl FromStr for Behaviour {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        if text.contains('@') {
            return Ok(Self { habits: Vec::new(), script: text.parse()? });
        }
        let habits: Vec<_> = text.split(',').take(MAX_HABITS + 1).map(habit).collect::<Result<_, _>>()?;
        if habits.len() > MAX_HABITS {
            return Err(error(text, "more than 32 habits"));
        }
        Ok(Self { habits, script: Script::default() })
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every unit of the printed form can be read back.
        write!(f, "{}ms", self.mean.as_secs_f64() * 1e3)?;
        f.write_str(if self.is_fixed { " fixed" } else { "" })
    }
}

impl fmt::Display for Habit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Watch => f.write_str("watch"),
            Self::Zap { after } => write!(f, "zap {after}"),
            Self::Pause { after, lasts } => write!(f, "pause {after} for {lasts}"),
            Self::Seek { after } => write!(f, "seek {after}"),
            Self::Trick { after, scale } => write!(f, "trick {after} at {scale}"),
            Self::Switch { after, names: [one, other] } => write!(f, "switch {after} between {one} {other}"),
            Self::Leave { after, is_replaced } => {
                write!(f, "leave {after}{}", if *is_replaced { " replaced" } else { "" })
            }
        }
    }
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> =
            self.habits.iter().map(|(habit, weight)| format!("{habit}:{weight}")).collect();
        for step in &self.script.0 {
            let at = step.at_secs();
            parts.push(match step.action {
                Action::Pause => format!("pause@{at}"),
                Action::Resume => format!("play@{at}"),
                Action::Seek(to) => format!("seek@{at}={}", to.as_secs_f64()),
                Action::Scale(scale) => format!("scale@{at}={scale}"),
                Action::Rendition(name) => format!("rendition@{at}={name}"),
            });
        }
        f.write_str(&if parts.is_empty() { "watch".to_owned() } else { parts.join(",") })
    }
}

#[cfg(test)]
#[path = "behaviour_tests.rs"]
mod tests;
