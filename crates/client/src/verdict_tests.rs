use super::*;
use crate::report::tests::clean;

fn verdict(change: impl FnOnce(&mut ReceptionReport)) -> ReceptionVerdict {
    let mut report = clean();
    change(&mut report);
    report.verdict()
}

#[test]
fn verdict_with_missing_or_wrong_data_is_not_right() {
    assert_eq!(verdict(|_| {}), ReceptionVerdict::Right);
    type Change = fn(&mut ReceptionReport);
    let damaged: [Change; 7] = [
        |r| r.packets = 0,
        |r| r.sequence.lost = 1,
        |r| r.sequence.lost_at_start = 1,
        |r| r.sequence.lost_at_end = Some(1),
        |r| r.sequence.restarts = 1,
        |r| r.byte_check.as_mut().unwrap().different_bytes = 1,
        |r| r.byte_check.as_mut().unwrap().unaligned_bytes = 1,
    ];
    for (number, change) in damaged.into_iter().enumerate() {
        assert_eq!(verdict(change), ReceptionVerdict::Damaged, "{number}");
    }
    let foreign: [Change; 3] =
        [|r| r.ts.sync_losses = 1, |r| r.ts.odd_payloads = 1, |r| (r.receiver.malformed, r.packets) = (1, 0)];
    for (number, change) in foreign.into_iter().enumerate() {
        assert_eq!(verdict(change), ReceptionVerdict::Foreign, "{number}");
    }
    // Reported, but nothing is missing.
    assert_eq!(
        verdict(|r| (r.ts.continuity_errors, r.rtp_info_exact) = (9, Some(false))),
        ReceptionVerdict::Right
    );
}

/// A run from `start` that reached `reached` of `announced`, all in milliseconds.
fn ends(end: EndReason, start: u64, reached: u64, announced: u64) -> ReceptionVerdict {
    ends_at(100, end, start, reached, announced)
}

/// The same at this speed in hundredths.
fn ends_at(scale: i16, end: EndReason, start: u64, reached: u64, announced: u64) -> ReceptionVerdict {
    let us = |ms: u64| Some(ms * 1000);
    let place = EndPlace {
        start_us: us(start),
        reached_us: us(reached),
        announced_us: us(announced),
        scale_hundredths: Some(scale),
    };
    verdict(|r| (r.end, r.place) = (end, place))
}

#[test]
fn verdict_of_stream_ending_early_is_cut_off() {
    use EndReason::{Bye, Cancelled, Duration, OutputClosed, ServerClosed, Silence};
    for (end, start, reached, announced, expected) in [
        (Bye, 0, 60_000, 60_000, ReceptionVerdict::Right),
        (Bye, 0, 60_040, 60_000, ReceptionVerdict::Right),
        (Bye, 0, 54_000, 60_000, ReceptionVerdict::Right),
        (Bye, 0, 53_999, 60_000, ReceptionVerdict::CutOff),
        (Bye, 0, 0, 500, ReceptionVerdict::Right),
        (Bye, 0, 1_999, 4_000, ReceptionVerdict::CutOff),
        (Bye, 56_000, 57_999, 60_000, ReceptionVerdict::CutOff),
        (Bye, 56_000, 58_000, 60_000, ReceptionVerdict::Right),
        (ServerClosed, 0, 59_800, 60_000, ReceptionVerdict::Right),
        (ServerClosed, 0, 59_799, 60_000, ReceptionVerdict::CutOff),
        (Silence, 0, 59_799, 60_000, ReceptionVerdict::CutOff),
        (Duration, 0, 1_000, 60_000, ReceptionVerdict::Right),
        (Cancelled, 0, 1_000, 60_000, ReceptionVerdict::Right),
        (OutputClosed, 0, 1_000, 60_000, ReceptionVerdict::Right),
    ] {
        assert_eq!(ends(end, start, reached, announced), expected, "{end:?} {start} {reached} {announced}");
    }
    // What counts is how long it would have taken to send the rest.
    for (scale, end, start, reached, announced, expected) in [
        (400, Silence, 0, 59_200, 60_000, ReceptionVerdict::Right),
        (400, Silence, 0, 59_199, 60_000, ReceptionVerdict::CutOff),
        (400, Bye, 0, 36_000, 60_000, ReceptionVerdict::Right),
        (400, Bye, 0, 35_999, 60_000, ReceptionVerdict::CutOff),
        (50, Silence, 0, 59_900, 60_000, ReceptionVerdict::Right),
        (50, Silence, 0, 59_899, 60_000, ReceptionVerdict::CutOff),
        (-400, Silence, 60_000, 800, 0, ReceptionVerdict::Right),
        (-400, Silence, 60_000, 801, 0, ReceptionVerdict::CutOff),
        (-400, Silence, 60_000, 30_000, 30_000, ReceptionVerdict::Right),
    ] {
        assert_eq!(ends_at(scale, end, start, reached, announced), expected, "{scale} {end:?} {reached}");
    }
    let mut report = clean();
    (report.end, report.place.reached_us) = (Silence, Some(2_000_000));
    report.place.announced_us = Some(4_500_000);
    assert!(report.problems_of_the_end()[0].contains("cut off 2.500 s before"));
}

#[test]
fn verdict_without_announced_end_requires_bye() {
    let (silence, bye) = (EndReason::Silence, EndReason::Bye);
    assert_eq!(verdict(|r| (r.end, r.place) = (bye, EndPlace::default())), ReceptionVerdict::Right);
    assert_eq!(verdict(|r| (r.end, r.place) = (silence, EndPlace::default())), ReceptionVerdict::CutOff);
    // A listener has sent no request to any server.
    let listened = |r: &mut ReceptionReport| {
        (r.end, r.place) = (silence, EndPlace::default());
        r.plays.clear();
    };
    assert_eq!(verdict(listened), ReceptionVerdict::Right);
}

#[test]
fn verdict_of_whole_title_requires_all_reference_bytes() {
    let compared = |asked: Option<&str>, end, longer: u64| {
        verdict(|r| {
            r.end = end;
            r.plays[0].range_asked = asked.map(str::to_owned);
            let check = r.byte_check.as_mut().unwrap();
            check.reference_bytes = check.checked_bytes + longer;
        })
    };
    let (whole, part) = (Some("npt=0.000-"), Some("npt=1.000-"));
    assert_eq!(compared(whole, EndReason::Bye, 187), ReceptionVerdict::Right);
    assert_eq!(compared(whole, EndReason::Bye, 188), ReceptionVerdict::Damaged);
    for (asked, end) in [(part, EndReason::Bye), (None, EndReason::Bye), (whole, EndReason::Duration)] {
        assert_eq!(compared(asked, end, 188), ReceptionVerdict::Right, "{asked:?} {end:?}");
    }
}
