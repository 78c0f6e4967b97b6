use proptest::prelude::*;

use super::*;

const MS: u64 = SYSTEM_HZ / 1000;

/// Anchors (byte, ticks) into points, with the data ending at `end`.
fn run(anchors: &[Anchor], end: u64) -> (Vec<Point>, MediaClock) {
    let (mut clock, mut out) = (MediaClock::new(false), Vec::new());
    for &anchor in anchors {
        clock.anchor(anchor, &mut out);
    }
    clock.finish(end, &mut out);
    (out, clock)
}

fn anchor(byte: u64, ticks: u64) -> Anchor {
    Anchor { byte, ticks: ticks % PCR_MODULUS, new_base: false, broken: false }
}

fn time_of(points: &[Point], byte: u64) -> u64 {
    let at = points.partition_point(|p| p.byte <= byte).min(points.len() - 1);
    let from = at.checked_sub(1).map_or(Point::default(), |i| points[i]);
    from.time_at(&points[at], byte)
}

#[test]
fn bytes_before_and_behind_take_the_rate_of_their_neighbours() {
    // 188 bytes a millisecond, an anchor every 20 ms, the first after 10 packets, 15 packets behind the last.
    let anchors: Vec<Anchor> =
        (0..100).map(|i| anchor((10 + 20 * i) * 188, 5_000_000 + 20 * i * MS)).collect();
    let (points, clock) = run(&anchors, (10 + 20 * 99 + 15) * 188);
    assert_eq!(points[0], Point { byte: 1880, ticks: 10 * MS, jump: false });
    for packet in 0..2005 {
        assert_eq!(time_of(&points, packet * 188), packet * MS);
    }
    assert_eq!(clock.now_ticks(), 2005 * MS);
    assert!(clock.is_constant() && clock.jumps() == 0);
}

#[test]
fn clock_across_pcr_wrap_counts_no_jump() {
    let start = PCR_MODULUS - 500 * MS;
    let anchors: Vec<Anchor> = (0..100).map(|i| anchor(20 * i * 188, start + 20 * i * MS)).collect();
    let (points, clock) = run(&anchors, 2000 * 188);
    assert_eq!((clock.jumps(), points[99].ticks), (0, 99 * 20 * MS));
}

#[test]
fn clock_points_follow_variable_rate_exactly() {
    let steps: Vec<(u64, u64)> = (1..200).map(|i| ((1 + i * 7919 % 997) * 188, 40 * MS)).collect();
    let (mut byte, mut ticks, mut anchors) = (0, 0, vec![anchor(0, 0)]);
    for (bytes, more) in &steps {
        byte += bytes;
        ticks += more;
        anchors.push(anchor(byte, ticks));
    }
    let (points, clock) = run(&anchors, byte);
    let (mut byte, mut ticks) = (0, 0);
    for (bytes, more) in steps {
        for part in [0, bytes / 3, bytes / 2] {
            assert_eq!(time_of(&points, byte + part), ticks + part * more / bytes);
        }
        byte += bytes;
        ticks += more;
    }
    assert_eq!(clock.now_ticks(), ticks, "the sum of the intervals is the difference of the clocks");
    assert!(!clock.is_constant());
}

#[test]
fn jumps_are_taken_out() {
    let second = 1000 * 188;
    let steady =
        |from: u64, ticks: u64| (0..50).map(move |i| anchor(from + 20 * i * 188, ticks + 20 * i * MS));
    for (name, ticks, new_base, broken) in [
        ("announced, to nearly the same value", 1_000_000 + 1003 * MS, true, false),
        ("backwards", 500 * MS, false, false),
        ("forwards with packets missing", 1_000_000 + 5000 * MS, false, true),
        ("forwards by an hour", 1_000_000 + 3_600_000 * MS, false, false),
    ] {
        let mut anchors: Vec<Anchor> = steady(0, 1_000_000).collect();
        anchors.extend(steady(second, ticks));
        (anchors[50].new_base, anchors[50].broken) = (new_base, broken);
        let (points, clock) = run(&anchors, 2 * second);
        assert_eq!((clock.jumps(), clock.first_jump()), (1, Some(second)), "{name}");
        assert_eq!(points[50], Point { byte: second, ticks: 1000 * MS, jump: true }, "{name}");
        assert_eq!(clock.now_ticks(), 2000 * MS, "{name}");
    }
}

#[test]
fn clock_standstill_without_missing_bytes_is_kept() {
    let mut anchors: Vec<Anchor> = (0..100).map(|i| anchor(20 * i * 188, 20 * i * MS)).collect();
    anchors.push(anchor(100 * 20 * 188, 99 * 20 * MS + 3000 * MS));
    assert_eq!(run(&anchors, 100 * 20 * 188).1.now_ticks(), 99 * 20 * MS + 3000 * MS);
    // A trusted clock may stand still for longer.
    anchors[100].ticks += 60_000 * MS;
    let (mut clock, mut out) = (MediaClock::new(true), Vec::new());
    anchors.iter().for_each(|&a| clock.anchor(a, &mut out));
    assert_eq!((clock.jumps(), clock.now_ticks()), (0, 99 * 20 * MS + 63_000 * MS));
}

#[test]
fn sparse_anchors_at_a_steady_rate_are_no_jumps() {
    let mut anchors: Vec<Anchor> = (0..20).map(|i| anchor(3000 * i * 188, 3000 * i * MS)).collect();
    anchors.iter_mut().skip(2).for_each(|a| a.broken = true);
    let (_, clock) = run(&anchors, 60_000 * 188);
    assert_eq!((clock.jumps(), clock.now_ticks()), (0, 60_000 * MS));
}

#[test]
fn clock_tail_at_variable_rate_is_not_stretched() {
    // Pictures of 40 ms; one in ten is large. Behind the last anchor lies a large one.
    let (mut byte, mut anchors) = (0, Vec::new());
    for i in 0..50 {
        anchors.push(anchor(byte, 40 * i * MS));
        byte += if i % 10 == 0 { 200 * 188 } else { 5 * 188 };
    }
    let last = anchors[49].byte;
    let (_, clock) = run(&anchors, last + 200 * 188);
    assert_eq!(clock.now_ticks(), 49 * 40 * MS + 40 * MS);
    // And one that is larger than any before takes the highest rate seen.
    let (_, clock) = run(&anchors, last + 400 * 188);
    assert_eq!(clock.now_ticks(), 49 * 40 * MS + 80 * MS);
}

#[test]
fn clock_without_further_anchors_coasts() {
    let (mut clock, mut out) = (MediaClock::new(false), Vec::new());
    for i in 0..100 {
        clock.anchor(anchor(20 * i * 188, 20 * i * MS), &mut out);
    }
    let last = 99 * 20 * 188;
    clock.reached(last + MAX_BYTES_BETWEEN_ANCHORS, &mut out);
    assert_eq!(clock.coasted(), 0);
    let there = (last / 188 + MAX_BYTES_BETWEEN_ANCHORS / 188 + 1) * 188;
    clock.reached(there, &mut out);
    assert_eq!(clock.coasted(), 1);
    assert_eq!(out.last().map(|p| (p.byte, p.ticks)), Some((there, there / 188 * MS)));
    // It comes back behind the time that was guessed: a jump; ahead of it: followed.
    let mut ahead = (MediaClock::new(false), Vec::new());
    std::mem::swap(&mut ahead.0, &mut clock);
    ahead.0.anchor(anchor(there + 188, there / 188 * MS + 500 * MS), &mut ahead.1);
    assert_eq!((ahead.0.jumps(), ahead.0.now_ticks()), (0, there / 188 * MS + 500 * MS));
}

proptest! {
    #[test]
    fn points_ascend_whatever_the_anchors(
        steps in proptest::collection::vec((0u64..60_000_000, any::<u64>(), any::<bool>(), any::<bool>()), 0..100),
        trusted: bool,
        tail in 0u64..60_000_000,
    ) {
        let (mut clock, mut out, mut byte) = (MediaClock::new(trusted), Vec::new(), 0);
        for (bytes, ticks, new_base, broken) in steps {
            byte += bytes;
            clock.anchor(Anchor { byte, ticks: ticks % PCR_MODULUS, new_base, broken }, &mut out);
            clock.reached(byte, &mut out);
        }
        clock.finish(byte + tail, &mut out);
        for pair in out.windows(2) {
            prop_assert!(pair[0].byte < pair[1].byte && pair[0].ticks <= pair[1].ticks, "{pair:?}");
            let middle = pair[0].byte + (pair[1].byte - pair[0].byte) / 2;
            let time = pair[0].time_at(&pair[1], middle);
            prop_assert!((pair[0].ticks..=pair[1].ticks).contains(&time));
        }
        if let Some(last) = out.last() {
            prop_assert_eq!(last.ticks, clock.now_ticks());
        }
    }
}
