//! Recordings at a time of day.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::tz::TimeZone;
use millrace_core::units::HumanDuration;
use millrace_web::{RecordingRefusal, RecordingWish};
use serde::Deserialize;

use super::address::{LiveSourceError, check_live_name};
use super::recordings::Recordings;
use crate::day_time::{DayTime, DayTimeError, time_zone, unix_ms, zoned};
use crate::limits::live::{LONGEST_PLAN, RECORD_PLAN_LOOK};

/// A recording that is made again and again, or once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingPlan {
    /// Name of the live title.
    live: String,
    begins: DayTime,
    zone: TimeZone,
    length_ms: u64,
    /// Display name, which gets the date.
    title: Option<String>,
}

/// Why a text is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingPlanError {
    /// It has another form.
    #[error(
        "got \"{0}\"; write LIVE=TIME/LENGTH as in news=20:00/30m, or a [[record]] table in the configuration file"
    )]
    Form(String),
    /// The table.
    #[error("the table: {0}; its keys are live, at, for, days or date, title and zone")]
    Table(String),
    /// The live title's name.
    #[error(transparent)]
    Name(#[from] LiveSourceError),
    /// The time.
    #[error("recording of {live}: {error}")]
    Time {
        /// The live title.
        live: String,
        /// The fault.
        error: DayTimeError,
    },
    /// The length.
    #[error("recording of {live}: for \"{length}\": write a time from 1s to 24h, for example 30m")]
    Length {
        /// The live title.
        live: String,
        /// As it was written.
        length: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanTable {
    live: String,
    at: String,
    #[serde(rename = "for")]
    length: String,
    #[serde(default)]
    days: Vec<String>,
    date: Option<String>,
    title: Option<String>,
    zone: Option<String>,
}

impl FromStr for RecordingPlan {
    type Err = RecordingPlanError;

    fn from_str(text: &str) -> Result<Self, RecordingPlanError> {
        let table = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| RecordingPlanError::Table(error.to_string()))?
        } else {
            let parts = text.split_once('=').and_then(|(live, rest)| Some((live, rest.split_once('/')?)));
            let (live, (at, length)) = parts.ok_or_else(|| RecordingPlanError::Form(text.to_owned()))?;
            let (live, at, length) = (live.to_owned(), at.to_owned(), length.to_owned());
            PlanTable { live, at, length, days: Vec::new(), date: None, title: None, zone: None }
        };
        let PlanTable { live, at, length, days, date, title, zone } = table;
        check_live_name(&live)?;
        let time = |error| RecordingPlanError::Time { live: live.clone(), error };
        let begins = DayTime::new(at, days, date).map_err(time)?;
        let zone = time_zone(zone).map_err(time)?;
        let is_fit = |length: &HumanDuration| length.0.as_secs() > 0 && length.0 <= LONGEST_PLAN;
        match length.parse().ok().filter(is_fit) {
            Some(HumanDuration(length)) => {
                Ok(Self { live, begins, zone, length_ms: length.as_secs() * 1000, title })
            }
            None => Err(RecordingPlanError::Length { live, length }),
        }
    }
}

/// A recording that should be going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlannedRecording {
    begins_unix_ms: u64,
    left_s: u64,
}

impl RecordingPlan {
    /// The recording that should be going on now: also one whose begin was missed, for the time that is left of it.
    fn now(&self, now_unix_ms: u64) -> Option<PlannedRecording> {
        let after = now_unix_ms.saturating_sub(self.length_ms);
        let begins_unix_ms = self.begins.next_after(after, &self.zone)?;
        let left_s = (begins_unix_ms + self.length_ms).saturating_sub(now_unix_ms) / 1000;
        (begins_unix_ms <= now_unix_ms && left_s > 0).then_some(PlannedRecording { begins_unix_ms, left_s })
    }

    fn wish(&self, planned: PlannedRecording) -> RecordingWish {
        let date = zoned(planned.begins_unix_ms, &self.zone).map(|begin| begin.date());
        let title = self.title.as_ref().zip(date).map(|(title, date)| format!("{title} {date}"));
        RecordingWish { title, for_s: Some(planned.left_s) }
    }
}

/// What became of a plan's recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// It was begun, and is not begun again.
    Made(u64),
    /// It could not be begun yet, which the log has.
    Refused(u64),
}

/// Begins recordings at their times.
#[derive(Debug)]
pub struct RecordingPlans {
    plans: Vec<(RecordingPlan, Option<Attempt>)>,
}

impl RecordingPlans {
    /// Nothing has begun.
    pub fn new(plans: &[RecordingPlan]) -> Self {
        Self { plans: plans.iter().map(|plan| (plan.clone(), None)).collect() }
    }

    /// Begins recordings until `stop` is set and the thread is unparked.
    pub fn run(mut self, recordings: &Recordings, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.look(unix_ms(), &mut |live, wish| recordings.start(live, wish).map(|_| ()));
            std::thread::park_timeout(RECORD_PLAN_LOOK);
        }
    }

    /// Begins the recordings that should be going on. A refused one is tried again at the next look, until its time is over.
    fn look(
        &mut self,
        now_unix_ms: u64,
        start: &mut dyn FnMut(&str, RecordingWish) -> Result<(), RecordingRefusal>,
    ) {
        for (plan, attempt) in &mut self.plans {
            let Some(planned) = plan.now(now_unix_ms) else { continue };
            let begins = planned.begins_unix_ms;
            if *attempt == Some(Attempt::Made(begins)) {
                continue;
            }
            match start(&plan.live, plan.wish(planned)) {
                Ok(()) => *attempt = Some(Attempt::Made(begins)),
                Err(_) if *attempt == Some(Attempt::Refused(begins)) => {}
                Err(error) => {
                    *attempt = Some(Attempt::Refused(begins));
                    tracing::warn!(
                        "live source {}: the planned recording cannot begin: {error}; trying again for {}",
                        plan.live,
                        HumanDuration(std::time::Duration::from_secs(planned.left_s))
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: u64 = 60_000;
    /// 2026-12-01, a Tuesday, 20:00 in Berlin.
    const EIGHT: u64 = 1_796_151_600_000;

    fn plan(text: &str) -> RecordingPlan {
        text.parse().unwrap()
    }

    fn in_berlin(more: &str) -> RecordingPlan {
        plan(&format!(r#"{{"live":"news","at":"20:00","for":"30m","zone":"Europe/Berlin"{more}}}"#))
    }

    #[test]
    fn recording_goes_on_from_its_begin_to_its_end() {
        let plan = in_berlin("");
        let left = |after_ms: i64| {
            plan.now(EIGHT.saturating_add_signed(after_ms)).map(|planned| {
                assert_eq!(planned.begins_unix_ms, EIGHT);
                planned.left_s
            })
        };
        assert_eq!((left(-1), left(0)), (None, Some(1800)));
        assert_eq!(left(20 * MINUTE_MS.cast_signed() + 500), Some(599));
        assert_eq!(
            (left(30 * MINUTE_MS.cast_signed() - 1000), left(30 * MINUTE_MS.cast_signed())),
            (Some(1), None)
        );
        assert_eq!(in_berlin(r#","days":["wed"]"#).now(EIGHT), None);
    }

    #[test]
    fn recording_over_midnight_goes_on_in_the_next_day() {
        let plan = plan(r#"{"live":"a","at":"23:30","for":"2h","days":["tue"],"zone":"Europe/Berlin"}"#);
        let half_past_eleven = EIGHT + 210 * MINUTE_MS;
        let planned = plan.now(half_past_eleven + 90 * MINUTE_MS).unwrap();
        assert_eq!((planned.begins_unix_ms, planned.left_s), (half_past_eleven, 1800));
    }

    #[test]
    fn title_of_planned_recording_has_the_local_date() {
        let plan = in_berlin(r#","title":"Evening""#);
        let wish = plan.wish(plan.now(EIGHT + 1).unwrap());
        assert_eq!((wish.title.as_deref(), wish.for_s), (Some("Evening 2026-12-01"), Some(1799)));
        assert_eq!(in_berlin("").wish(plan.now(EIGHT).unwrap()).title, None);
    }

    #[test]
    fn refused_recording_is_tried_again_and_a_made_one_is_not() {
        let mut plans = RecordingPlans::new(&[in_berlin("")]);
        let mut asked = Vec::new();
        let mut is_there = false;
        for (at, comes) in [(0, false), (1, false), (2, true), (3, true), (29, true), (30, true)] {
            is_there |= comes;
            plans.look(EIGHT + at * MINUTE_MS, &mut |live, wish| {
                asked.push((live.to_owned(), at, wish.for_s));
                if is_there { Ok(()) } else { Err(RecordingRefusal::NoSource) }
            });
        }
        let expected = [(0, 1800), (1, 1740), (2, 1680)];
        assert_eq!(asked, expected.map(|(at, left)| ("news".to_owned(), at, Some(left))));
        // The next day is another one.
        let mut again = 0;
        plans.look(EIGHT + 1440 * MINUTE_MS, &mut |_, _| {
            again += 1;
            Ok(())
        });
        assert_eq!(again, 1);
    }

    #[test]
    fn faulty_plan_is_refused_with_its_part() {
        assert_eq!(plan("news=20:00/30m").length_ms, 30 * MINUTE_MS);
        for (text, part) in [
            ("news", "LIVE=TIME/LENGTH"),
            ("news=20:00", "LIVE=TIME/LENGTH"),
            ("a/b=20:00/30m", "name \"a/b\""),
            ("news=8pm/30m", "recording of news: at \"8pm\""),
            ("news=20:00/0s", "for \"0s\""),
            ("news=20:00/25h", "for \"25h\""),
            ("news=20:00/long", "for \"long\""),
            (r#"{"live":"news","at":"20:00"}"#, "missing field `for`"),
            (r#"{"live":"news","at":"20:00","for":"30m","zone":"Here"}"#, "zone \"Here\""),
        ] {
            let error = text.parse::<RecordingPlan>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
