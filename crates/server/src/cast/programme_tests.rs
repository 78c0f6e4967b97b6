//! Times of shows, with the rules of time zones.

use std::path::PathBuf;

use jiff::Timestamp;

use super::*;

const DAY_MS: u64 = 86_400_000;

fn table(at: &str, days: &[&str], date: Option<&str>) -> ShowTable {
    ShowTable {
        at: at.to_owned(),
        days: days.iter().map(|&day| day.to_owned()).collect(),
        date: date.map(str::to_owned),
        items: vec!["film".to_owned()],
        playlist: None,
    }
}

fn programme(zone: &str, shows: Vec<ShowTable>) -> ChannelProgramme {
    let round = ItemList::Playlist(PathBuf::from("round.m3u"));
    ChannelProgramme::new(round, shows, TimeZone::get(zone).unwrap()).unwrap()
}

fn ms(time: &str) -> u64 {
    u64::try_from(time.parse::<Timestamp>().unwrap().as_millisecond()).unwrap()
}

/// The next starts after a time, as the shows' places and times in UTC.
fn starts(programme: &ChannelProgramme, from: &str, count: usize) -> Vec<(usize, String)> {
    let mut at = ms(from);
    let next = || {
        let start = programme.next_after(at)?;
        at = start.unix_ms;
        let time = Timestamp::from_millisecond(start.unix_ms.cast_signed()).unwrap();
        Some((start.show, time.to_string()))
    };
    std::iter::from_fn(next).take(count).collect()
}

fn expected(all: &[(usize, &str)]) -> Vec<(usize, String)> {
    all.iter().map(|&(show, time)| (show, time.to_owned())).collect()
}

#[test]
fn shows_begin_at_local_time_on_their_days() {
    // 2026-12-01 is a Tuesday; Berlin is an hour before UTC.
    let shows = vec![table("20:15", &[], None), table("09:00:30", &["tue", "Saturday"], None)];
    let found = starts(&programme("Europe/Berlin", shows), "2026-12-01T08:00:30Z", 6);
    assert_eq!(
        found,
        expected(&[
            (0, "2026-12-01T19:15:00Z"),
            (0, "2026-12-02T19:15:00Z"),
            (0, "2026-12-03T19:15:00Z"),
            (0, "2026-12-04T19:15:00Z"),
            (1, "2026-12-05T08:00:30Z"),
            (0, "2026-12-05T19:15:00Z"),
        ])
    );
}

#[test]
fn show_of_a_day_of_the_week_comes_again_after_a_week() {
    let found = starts(&programme("UTC", vec![table("12:00", &["tue"], None)]), "2026-12-01T12:00:00Z", 2);
    assert_eq!(found, expected(&[(0, "2026-12-08T12:00:00Z"), (0, "2026-12-15T12:00:00Z")]));
}

#[test]
fn show_with_a_date_comes_once() {
    let programme = programme("UTC", vec![table("18:00", &[], Some("2026-12-24"))]);
    assert_eq!(starts(&programme, "2026-12-01T00:00:00Z", 9), expected(&[(0, "2026-12-24T18:00:00Z")]));
}

#[test]
fn show_in_an_hour_that_clocks_leave_out_or_repeat_comes_once() {
    let programme = programme("Europe/Berlin", vec![table("02:30", &[], None)]);
    // 2027-03-28 has no 02:30; on 2026-10-25 it comes twice.
    let spring = starts(&programme, "2027-03-27T12:00:00Z", 2);
    assert_eq!(spring, expected(&[(0, "2027-03-28T01:30:00Z"), (0, "2027-03-29T00:30:00Z")]));
    let autumn = starts(&programme, "2026-10-24T12:00:00Z", 2);
    assert_eq!(autumn, expected(&[(0, "2026-10-25T00:30:00Z"), (0, "2026-10-26T01:30:00Z")]));
}

#[test]
fn faulty_show_is_refused_with_its_number() {
    let refused =
        |shows: Vec<ShowTable>| ChannelProgramme::new(ItemList::default(), shows, TimeZone::UTC).unwrap_err();
    let good = || table("20:15", &["fri"], None);
    let without_items = ShowTable { items: Vec::new(), ..good() };
    let with_both = ShowTable { playlist: Some("x.m3u".into()), ..good() };
    for (number, (show, error)) in [
        (table("2015", &[], None), ShowError::Time(DayTimeError::At("2015".to_owned()))),
        (table("24:00", &[], None), ShowError::Time(DayTimeError::At("24:00".to_owned()))),
        (table("20:15", &["f"], None), ShowError::Time(DayTimeError::Day("f".to_owned()))),
        (table("20:15", &["ferr\u{e9}"], None), ShowError::Time(DayTimeError::Day("ferr\u{e9}".to_owned()))),
        (
            table("20:15", &[], Some("24.12.2026")),
            ShowError::Time(DayTimeError::Date("24.12.2026".to_owned())),
        ),
        (table("20:15", &["mon"], Some("2026-12-24")), ShowError::Time(DayTimeError::DaysAndDate)),
        (without_items, ShowError::Items),
        (with_both, ShowError::Items),
        (table("20:15:00", &[], None), ShowError::SameTime(1)),
        (table("20:15", &[], Some("2026-12-04")), ShowError::SameTime(1)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(refused(vec![good(), show]), (2, error), "case {number}");
    }
    let minutes = (0..=MAX_CHANNEL_SHOWS).map(|minute| format!("{:02}:{:02}", minute / 60, minute % 60));
    let many = minutes.map(|at| table(&at, &[], None)).collect();
    assert_eq!(refused(many), (MAX_CHANNEL_SHOWS + 1, ShowError::TooMany));
    // Another day of the week, or a date that is one, is another time.
    let saturday = table("20:15", &["sat"], None);
    let sunday = table("20:15", &[], Some("2026-12-06"));
    ChannelProgramme::new(ItemList::default(), vec![good(), saturday, sunday], TimeZone::UTC).unwrap();
}

#[test]
fn watch_takes_each_show_once_and_the_last_of_several() {
    let programme = programme("UTC", vec![table("12:00", &[], None), table("12:01", &[], None)]);
    let noon = ms("2026-12-01T12:00:00Z");
    let mut watch = ShowWatch::new(&programme, noon);
    assert_eq!(watch.take_due(noon + 30_000), None, "the one that began before");
    assert_eq!(watch.due(noon + 60_000).map(|start| start.show), Some(1), "a look takes nothing");
    assert_eq!((watch.take_due(noon + 60_000), watch.take_due(noon + 60_001)), (Some(1), None));
    assert_eq!(watch.take_due(noon + DAY_MS - 1), None);
    assert_eq!(watch.take_due(noon + DAY_MS + 70_000), Some(1));
}

#[test]
fn watch_after_a_step_of_the_clock_begins_no_show_of_long_ago() {
    let programme = programme("UTC", vec![table("12:00", &[], None)]);
    let noon = ms("2026-12-01T12:00:00Z");
    let mut watch = ShowWatch::new(&programme, noon - 1);
    // Forward, over years of shows.
    let late = noon + 4000 * DAY_MS + SHOW_LATE_MS + 1;
    assert_eq!(watch.due(late), None, "it cuts nothing off");
    assert_eq!(watch.take_due(late), None);
    assert_eq!(watch.next().unwrap().unix_ms, noon + 4001 * DAY_MS);
    // Back: they come again.
    assert_eq!((watch.take_due(noon - 1), watch.take_due(noon)), (None, Some(0)));
    // Back by little: it has begun.
    assert_eq!((watch.take_due(noon - 1000), watch.take_due(noon)), (None, None));
}
