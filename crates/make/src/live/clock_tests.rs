use super::*;

const MS: u64 = SYSTEM_HZ / 1000;

/// A reference every 40 ms from a source whose clock is `ppm` fast, with jitter; returns the clock and the largest offset in ms.
fn run(hours: u64, ppm: i64, jitter_ms: u64) -> (LiveClock, u64) {
    let (mut clock, mut worst, mut last) = (LiveClock::default(), 0, 0);
    for n in 0..hours * 90_000 {
        let sent = n * 40 * MS;
        let arrival = sent + (n * 7919 % (jitter_ms + 1)) * MS;
        let pcr = (sent as i128 + sent as i128 * i128::from(ppm) / 1_000_000) as u64;
        let pcr = (pcr + PCR_MODULUS - 10 * SYSTEM_HZ) % PCR_MODULUS;
        assert!(!clock.reference(pcr, arrival, false), "{n}");
        clock.count(1316);
        let time = clock.time(arrival).0 * 300;
        assert!(time >= last, "{n}: {time} after {last}");
        last = time;
        worst = worst.max(time.abs_diff(arrival) / MS);
    }
    (clock, worst)
}

#[test]
fn drift_of_a_source_is_followed() {
    for ppm in [-100, 0, 100] {
        let (_, worst) = run(30, ppm, 0);
        assert!(worst <= 60, "{ppm} ppm: {worst} ms");
    }
}

#[test]
fn jitter_does_not_move_the_clock() {
    let (mut clock, _) = run(1, 0, 80);
    let arrival = 3_600_000 * MS;
    let first = clock.time(arrival).0;
    clock.reference((arrival + PCR_MODULUS - 10 * SYSTEM_HZ) % PCR_MODULUS, arrival + 80 * MS, false);
    // 40 ms of media passed, within a millisecond, although the reference came 80 ms late.
    assert!((clock.time(arrival + 80 * MS).0 - first).abs_diff(40 * 90) < 45 * 90);
}

#[test]
fn jump_in_either_direction_is_anchored_at_arrival() {
    for pcr in [5_000_000 * MS, 3 * MS, PCR_MODULUS - 1] {
        let mut clock = LiveClock::default();
        clock.reference(1_000_000 * MS, 0, false);
        clock.count(1316);
        clock.time(0);
        clock.reference(1_000_040 * MS, 40 * MS, false);
        assert_eq!(clock.time(40 * MS), MediaTicks(40 * 90));
        assert!(clock.reference(pcr, 80 * MS, false), "{pcr}");
        assert_eq!(clock.time(80 * MS), MediaTicks(80 * 90), "{pcr}");
        assert!(!clock.reference((pcr + 40 * MS) % PCR_MODULUS, 120 * MS, false), "{pcr}");
        assert_eq!(clock.time(120 * MS), MediaTicks(120 * 90), "{pcr}");
    }
}

#[test]
fn marked_discontinuity_is_a_jump() {
    let mut clock = LiveClock::default();
    clock.reference(0, 0, false);
    assert!(clock.reference(100 * MS, 40 * MS, true));
    assert_eq!(clock.time(40 * MS), MediaTicks(40 * 90));
}

#[test]
fn time_between_references_follows_the_bytes() {
    let mut clock = LiveClock::default();
    clock.reference(0, 0, false);
    clock.count(4000);
    clock.reference(40 * MS, 40 * MS, false);
    let at = |clock: &mut LiveClock| clock.time(41 * MS).0;
    assert_eq!(at(&mut clock), 40 * 90);
    clock.count(1000);
    assert_eq!(at(&mut clock), 50 * 90);
    clock.count(99_000);
    assert_eq!(at(&mut clock), 80 * 90, "not beyond the next reference");
}

#[test]
fn source_without_references_goes_by_arrival() {
    let mut clock = LiveClock::default();
    assert_eq!(clock.time(40 * MS), MediaTicks(40 * 90));
    clock.reference(0, 80 * MS, false);
    assert_eq!(clock.time(90 * MS), MediaTicks(80 * 90));
    assert_eq!(clock.time(2_000 * MS), MediaTicks(2_000 * 90), "the reference is too old");
    assert_eq!(clock.time(1_900 * MS), MediaTicks(2_000 * 90), "time does not descend");
}

#[test]
fn source_faster_than_time_stays_within_a_second_of_arrival() {
    let mut clock = LiveClock::default();
    let mut last = 0;
    for n in 0..10_000u64 {
        let arrival = n * 4 * MS;
        clock.reference(n * 40 * MS, arrival, false);
        let time = clock.time(arrival).0 * 300;
        assert!(time >= last && clock.ahead(arrival) <= SYSTEM_HZ + 40 * MS, "{n}");
        last = time;
    }
    assert!((300..=400).contains(&clock.hurries()), "{}: 400 s of media in 40 s", clock.hurries());
}
