//! The person in front of a viewer: decides on the next action and its time.

use std::time::Duration;

use millrace_client::script::Action;
use millrace_core::scale::Scale;
use millrace_core::time::Instant;

use crate::behaviour::{Behaviour, Habit};
use crate::rng::Rng;
use crate::viewer::{SeekTarget, ViewerCommand};

/// A person's decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Deed {
    /// Something that the viewer does.
    Command(ViewerCommand),
    /// Away, and on with another title.
    Zap,
    /// Away for good.
    Leave {
        /// Another person comes.
        is_replaced: bool,
    },
}

/// One person, through all the titles it zaps to.
#[derive(Clone, Debug)]
pub(super) struct Person {
    pub(super) rng: Rng,
    habit: Habit,
    /// When it decides next; `None` while nothing plays.
    at: Option<Instant>,
    is_paused: bool,
    /// The other speed or rendition of the two.
    is_scaled: bool,
    /// When the first title began to play.
    since: Option<Instant>,
    /// Steps of the script done.
    steps: usize,
}

impl Person {
    /// A person with a habit of its own, drawn from `rng`.
    pub(super) fn new(behaviour: &Behaviour, mut rng: Rng) -> Self {
        let habit = behaviour.draw(&mut rng);
        Self { rng, habit, at: None, is_paused: false, is_scaled: false, since: None, steps: 0 }
    }

    /// A title begins to play.
    pub(super) fn begin(&mut self, now: Instant, behaviour: &Behaviour) {
        self.since.get_or_insert(now);
        (self.is_paused, self.is_scaled) = (false, false);
        self.plan(now, behaviour);
    }

    /// Nothing plays any more.
    pub(super) fn stop(&mut self) {
        self.at = None;
    }

    /// When [`Self::decide`] is due.
    pub(super) fn poll_at(&self) -> Option<Instant> {
        self.at
    }

    fn plan(&mut self, now: Instant, behaviour: &Behaviour) {
        if let (Some(step), Some(since)) = (behaviour.script().0.get(self.steps), self.since) {
            self.at = Some(since.plus_ns(step.at_ns));
            return;
        }
        let wait = match self.habit {
            Habit::Watch => None,
            Habit::Pause { lasts, .. } if self.is_paused => Some(lasts),
            Habit::Zap { after }
            | Habit::Pause { after, .. }
            | Habit::Seek { after }
            | Habit::Trick { after, .. }
            | Habit::Switch { after, .. }
            | Habit::Leave { after, .. } => Some(after),
        };
        self.at = wait.map(|wait| now + wait.draw(&mut self.rng).min(Duration::from_secs(1_000_000)));
    }

    /// Returns the action for now, if one is due.
    pub(super) fn decide(&mut self, now: Instant, behaviour: &Behaviour) -> Option<Deed> {
        self.at.filter(|at| now >= *at)?;
        if let Some(step) = behaviour.script().0.get(self.steps) {
            self.steps += 1;
            self.plan(now, behaviour);
            return Some(Deed::Command(match step.action {
                Action::Pause => ViewerCommand::Pause,
                Action::Resume => ViewerCommand::Resume,
                Action::Seek(to) => ViewerCommand::Seek(SeekTarget::At(to)),
                Action::Scale(scale) => ViewerCommand::Scale(scale),
                Action::Rendition(name) => ViewerCommand::Rendition(name),
            }));
        }
        let deed = match self.habit {
            Habit::Watch => None,
            Habit::Zap { .. } => Some(Deed::Zap),
            Habit::Leave { is_replaced, .. } => Some(Deed::Leave { is_replaced }),
            Habit::Seek { .. } => Some(Deed::Command(ViewerCommand::Seek(SeekTarget::Part(self.rng.unit())))),
            Habit::Trick { scale, .. } => {
                self.is_scaled = !self.is_scaled;
                Some(Deed::Command(ViewerCommand::Scale(if self.is_scaled { scale } else { Scale::NORMAL })))
            }
            Habit::Switch { names: [one, other], .. } => {
                self.is_scaled = !self.is_scaled;
                Some(Deed::Command(ViewerCommand::Rendition(if self.is_scaled { one } else { other })))
            }
            Habit::Pause { .. } => {
                self.is_paused = !self.is_paused;
                Some(Deed::Command(if self.is_paused { ViewerCommand::Pause } else { ViewerCommand::Resume }))
            }
        };
        match deed {
            Some(Deed::Command(_)) => self.plan(now, behaviour),
            _ => self.at = None,
        }
        deed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_core::time::{MediaTicks, NS_PER_S};

    fn at(seconds: u64) -> Instant {
        Instant(seconds * NS_PER_S)
    }

    /// Everything a person does until `end`, in whole seconds.
    fn deeds(text: &str, end: u64) -> Vec<(u64, Deed)> {
        let behaviour: Behaviour = text.parse().unwrap();
        let mut person = Person::new(&behaviour, Rng::new(1, 1));
        assert_eq!(person.poll_at(), None);
        person.begin(at(10), &behaviour);
        let mut done = Vec::new();
        while let Some(now) = person.poll_at().filter(|now| *now <= at(end)) {
            assert_eq!(person.decide(Instant(now.0 - 1), &behaviour), None);
            done.push((now.0 / NS_PER_S, person.decide(now, &behaviour).unwrap()));
        }
        done
    }

    #[test]
    fn habits_go_on_and_on() {
        let pause = Deed::Command(ViewerCommand::Pause);
        let resume = Deed::Command(ViewerCommand::Resume);
        assert_eq!(deeds("watch", 1000), []);
        assert_eq!(
            deeds("pause 5s fixed for 3s fixed", 30),
            [(15, pause), (18, resume), (23, pause), (26, resume)]
        );
        let [fast, normal] =
            ["8", "1"].map(|scale| Deed::Command(ViewerCommand::Scale(scale.parse().unwrap())));
        assert_eq!(deeds("trick 5s fixed at 8", 26), [(15, fast), (20, normal), (25, fast)]);
        assert_eq!(deeds("zap 5s fixed", 1000), [(15, Deed::Zap)]);
        assert_eq!(deeds("leave 5s fixed replaced", 1000), [(15, Deed::Leave { is_replaced: true })]);
        let seeks = deeds("seek 5s fixed", 26);
        assert_eq!(seeks.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [15, 20, 25]);
        assert!(seeks.iter().all(
            |(_, deed)| matches!(deed, Deed::Command(ViewerCommand::Seek(SeekTarget::Part(part))) if (0.0..1.0).contains(part))
        ));
        assert_ne!(seeks[0].1, seeks[1].1);
    }

    #[test]
    fn person_script_times_count_from_first_play() {
        let to = MediaTicks::from_secs_f64(30.0).unwrap();
        assert_eq!(
            deeds("pause@5,play@8,seek@10=30", 1000),
            [
                (15, Deed::Command(ViewerCommand::Pause)),
                (18, Deed::Command(ViewerCommand::Resume)),
                (20, Deed::Command(ViewerCommand::Seek(SeekTarget::At(to)))),
            ]
        );
    }

    #[test]
    fn person_zap_waits_for_next_title_to_begin() {
        let behaviour: Behaviour = "zap 5s fixed".parse().unwrap();
        let mut person = Person::new(&behaviour, Rng::new(1, 1));
        person.begin(at(0), &behaviour);
        assert_eq!(person.decide(at(5), &behaviour), Some(Deed::Zap));
        assert_eq!(person.poll_at(), None);
        person.begin(at(6), &behaviour);
        assert_eq!(person.poll_at(), Some(at(11)));
        person.stop();
        assert_eq!(person.decide(at(20), &behaviour), None);
    }
}
