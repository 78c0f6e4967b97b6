use super::*;

const MS: u64 = 1_000_000;

/// One round of `samples` measurements.
fn round(hystart: &mut HyStart, number: u32, samples: u32, rtt_ms: u64) -> SlowStartPace {
    let (start, end) = (Seq(number * 1000), Seq((number + 1) * 1000));
    let mut pace = SlowStartPace::Slow;
    for sample in 1..=samples {
        let una = start + 1000 * sample / samples;
        pace = hystart.acked(una, end + 1000, Some(ticks(rtt_ms * MS)));
    }
    pace
}

fn begin() -> HyStart {
    HyStart::new(Seq(1000))
}

#[test]
fn hystart_with_steady_rtt_stays_in_slow_start() {
    let mut hystart = begin();
    for number in 0..20 {
        assert_eq!(round(&mut hystart, number, 20, 40 + u64::from(number % 2)), SlowStartPace::Slow);
    }
}

#[test]
fn hystart_with_growing_rtt_ends_slow_start_after_five_rounds() {
    let mut hystart = begin();
    round(&mut hystart, 0, 20, 40);
    round(&mut hystart, 1, 20, 44);
    let mut paces = Vec::new();
    for number in 2..8 {
        paces.push(round(&mut hystart, number, 20, 50));
    }
    // An eighth of 44 ms is 5.5: 50 is more.
    assert_eq!(paces[..4], [SlowStartPace::Conservative; 4]);
    assert!(paces[4..].contains(&SlowStartPace::Over), "{paces:?}");
}

#[test]
fn hystart_with_rtt_shrinking_again_resumes_slow_start() {
    let mut hystart = begin();
    round(&mut hystart, 0, 20, 40);
    assert_eq!(round(&mut hystart, 1, 20, 50), SlowStartPace::Conservative);
    assert_eq!(round(&mut hystart, 2, 20, 41), SlowStartPace::Slow);
}

#[test]
fn fewer_than_eight_measurements_decide_nothing() {
    let mut hystart = begin();
    round(&mut hystart, 0, 20, 40);
    assert_eq!(round(&mut hystart, 1, 7, 90), SlowStartPace::Slow);
}
