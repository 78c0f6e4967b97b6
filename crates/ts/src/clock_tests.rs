//! Clock references: jumps, gaps, wraps, accuracy.

use super::*;

const STEP: u64 = 27_000_000 / 50;
/// Packets between two references at the rate of the tests.
const PACKETS: u64 = 27;

fn run(references: impl IntoIterator<Item = (u64, u64, bool)>) -> (Clock, Vec<FindingKind>, Vec<ClockStep>) {
    let (mut clock, mut whats, mut steps) = (Clock::default(), Vec::new(), Vec::new());
    for (packet, value, announced) in references {
        let reference = Reference { packet, byte: packet * 188, value, announced, epoch: 0, breaks: 0 };
        steps.push(clock.push(reference, &mut |what| whats.push(what)));
    }
    clock.accuracy.finish();
    (clock, whats, steps)
}

/// The references of a constant rate, each changed.
fn steady(count: u64, change: impl Fn(u64) -> i64) -> Vec<(u64, u64, bool)> {
    (0..count).map(|n| (n * PACKETS, (10 * STEP + n * STEP).wrapping_add_signed(change(n)), false)).collect()
}

#[test]
fn clock_wrap_is_not_reported_as_jump() {
    let start = (300u64 << 33) - 5 * STEP;
    let values = (0..40).map(|n| (n * PACKETS, (start + n * STEP) % (300 << 33), false));
    let (clock, whats, _) = run(values);
    assert!(whats.is_empty(), "{whats:?}");
    assert_eq!(clock.elapsed, 39 * STEP as i64);
    assert_eq!(stamp_difference(5, (1 << 33) - 5), 10);
    assert_eq!(pcr_difference((300 << 33) - 5, 5), -10);
}

#[test]
fn clock_gap_is_distinguished_from_jump_by_packet_count() {
    // One second without references, the packets went on.
    let (clock, whats, _) = run(steady(100, |_| 0)
        .into_iter()
        .filter(|(packet, ..)| !(50..100).contains(&(packet / PACKETS)))
        .chain([(100 * PACKETS, 110 * STEP, false)]));
    assert_eq!(whats, [FindingKind::PcrLate { ticks: 51 * STEP as i64 }]);
    assert_eq!(clock.longest_ticks, 51 * STEP as i64);
    // The same step without packets.
    let second = 27_000_000;
    let jumped = steady(100, |n| if n >= 50 { second } else { 0 });
    let (clock, whats, steps) = run(jumped);
    // The expected value follows from a rate, so it may be a tick off.
    assert!(
        matches!(whats[..], [FindingKind::PcrJump { ticks }] if ticks.abs_diff(second) <= 1),
        "{whats:?}"
    );
    assert!(steps[50].is_new_clock);
    assert_eq!(clock.elapsed, 99 * STEP as i64, "time goes on by the packets");
    // Back.
    let (_, whats, _) = run(steady(100, |n| if n >= 50 { -8 * STEP as i64 } else { 0 }));
    let back = -8 * STEP as i64;
    assert!(matches!(whats[..], [FindingKind::PcrJump { ticks }] if ticks.abs_diff(back) <= 1), "{whats:?}");
}

#[test]
fn clock_announced_jump_is_reported_as_announced() {
    let mut values = steady(100, |n| if n >= 50 { 27_000_000_000 } else { 0 });
    values[50].2 = true;
    let (clock, whats, steps) = run(values);
    let is_it = |ticks: i64| ticks.abs_diff(27_000_000_000) <= 1;
    assert!(matches!(whats[..], [FindingKind::ClockAnnounced { ticks }] if is_it(ticks)), "{whats:?}");
    assert!(steps[50].is_new_clock && !steps[51].is_new_clock);
    assert_eq!(clock.elapsed, 99 * STEP as i64);
    // A change that might be no jump at all is announced too: time stamps restart.
    let mut values = steady(100, |n| if n >= 50 { 270_000 } else { 0 });
    values[50].2 = true;
    let (clock, whats, steps) = run(values);
    assert!(matches!(whats[..], [FindingKind::ClockAnnounced { .. }]), "{whats:?}");
    assert!(steps[50].is_new_clock && !steps[51].is_new_clock);
    assert_eq!(clock.elapsed, 99 * STEP as i64 + 270_000, "and time goes on by the clock");
}

#[test]
fn accuracy_is_judged_where_the_rate_is_constant() {
    let off = |change: fn(u64) -> i64| {
        let (clock, ..) = run(steady(300, change));
        // A reference that is slightly off is among the points that the line is fitted to: compare
        // to 10 ns.
        let worst_ns = (clock.accuracy.worst_ns as f64 / 10.0).round() as i64 * 10;
        (clock.accuracy.is_constant(), clock.accuracy.off_count, worst_ns)
    };
    assert_eq!(off(|_| 0), (Some(true), 0, 0));
    // 13 ticks are 481 ns, 16 are 593.
    assert_eq!(off(|n| if n == 77 { 13 } else { 0 }), (Some(true), 0, 480));
    assert_eq!(off(|n| if n == 77 { 16 } else { 0 }), (Some(true), 1, 590));
    assert_eq!(off(|n| if n % 50 == 7 { -16 } else { 0 }), (Some(true), 6, -590));
    // A step of 50 ms, within the permitted distance of references, is one finding, however much
    // follows.
    let (constant, count, worst) = off(|n| if n >= 60 { 27_000 * 50 } else { 0 });
    assert_eq!((constant, count, worst), (Some(true), 1, 50_000_000));
    // A frequency that is off a little is none.
    assert_eq!(off(|n| (n * STEP * 30 / 1_000_000) as i64).1, 0);
    // A variable rate is not judged.
    let rough = |n: u64| (n * 2_654_435_761 % 1000) as i64 * 100;
    let (constant, count, _) = off(rough);
    assert_eq!((constant, count), (Some(false), 0));
    // Too few references allow no verdict.
    assert_eq!(run(steady(20, |_| 0)).0.accuracy.is_constant(), None);
}

/// References every 20 ms with the given numbers of packets between them, each changed by `change`.
fn beat(packets: impl IntoIterator<Item = u64>, change: impl Fn(usize) -> i64) -> Accuracy {
    let mut packet = 0;
    let references = packets.into_iter().enumerate().map(|(n, packets)| {
        packet += packets;
        (packet, (10 * STEP + n as u64 * STEP).wrapping_add_signed(change(n)), false)
    });
    run(references).0.accuracy
}

#[test]
fn more_packets_in_the_same_time_are_another_rate_and_no_fault() {
    // At least seven packets in each interval, plus those that a picture needs: every two seconds,
    // in several intervals or, occasionally, in one.
    for (every, intervals) in [(100, 4), (100, 1), (60, 1), (50, 3)] {
        let packets = (0..1000).map(|n| if n % every < intervals && n > 0 { 21 } else { 7 });
        let accuracy = beat(packets, |_| 0);
        assert_eq!((accuracy.off_count, accuracy.worst_ns), (0, 0), "{every}: {:?}", accuracy.off);
        let is_told_apart = intervals > 1 || every < 64;
        assert!(!is_told_apart || accuracy.is_constant() == Some(false), "{every}");
    }
    // A busy one is as often below its peak.
    let accuracy = beat((0..1000).map(|n| if n % 40 < 2 { 7 } else { 21 }), |_| 0);
    assert_eq!((accuracy.is_constant(), accuracy.off_count), (Some(false), 0));
}

#[test]
fn references_that_jitter_now_and_then_are_found_at_a_constant_rate() {
    // By more than half a packet, so that both intervals beside it fit no rate: one finding each, wherever a batch ends.
    for every in [40, 63, 64, 127] {
        let moved = |n: usize| n % every == 33;
        let count = (0..1000).filter(|n| moved(*n)).count() as u64;
        let accuracy = beat((0..1000).map(|_| PACKETS), |n| if moved(n) { 27_000 * 3 } else { 0 });
        assert_eq!((accuracy.is_constant(), accuracy.off_count), (Some(true), count), "{every}");
        assert_eq!(accuracy.worst_ns, 3_000_000);
        // The packet was put three packets later and kept its value.
        let late = |n: usize| PACKETS + 3 * u64::from(moved(n)) - 3 * u64::from(n > 0 && moved(n - 1));
        let accuracy = beat((0..1000).map(late), |_| 0);
        assert_eq!((accuracy.is_constant(), accuracy.off_count), (Some(true), count), "{every}");
    }
    // Two in a row, each in its way.
    let accuracy = beat((0..300).map(|_| PACKETS), |n| match n % 50 {
        20 => 80_000,
        21 => -50_000,
        _ => 0,
    });
    assert_eq!((accuracy.is_constant(), accuracy.off_count), (Some(true), 12));
    // A clock that jumps again and again is no rate: one finding each.
    let accuracy = beat((0..1000).map(|_| PACKETS), |n| (n / 60) as i64 * 27_000 * 40);
    assert_eq!((accuracy.is_constant(), accuracy.off_count), (Some(true), 16));
}
