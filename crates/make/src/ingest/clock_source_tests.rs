use millrace_media::ts_packet::SYSTEM_HZ;

use super::*;

const MS: u64 = SYSTEM_HZ / 1000;

fn found(pid: u16, packet: u64, value: u64) -> ClockSample {
    ClockSample { pid, byte: packet * 188, value, new_base: false, losses: 0 }
}

#[test]
fn clock_values_before_the_program_map_count() {
    let (mut source, mut out) = (ClockSource::new(false), Vec::new());
    for i in 0..10 {
        source.pcr(found(0x100, 40 * i, 40 * i * MS), &mut out);
        source.pcr(found(0x200, 40 * i + 1, 7 * i * MS), &mut out);
    }
    assert_eq!((source.origin(), source.early_pcrs()), (None, 20));
    source.announce(0x100, &mut out);
    assert_eq!(source.origin(), Some(ClockOrigin::Announced(0x100)));
    assert!(source.wants_pcr(0x100) && !source.wants_pcr(0x200));
    source.finish(400 * 188, &mut out);
    assert_eq!((out.len(), source.clock().now_ticks()), (11, 400 * MS));
}

#[test]
fn choose_now_without_announced_pcr_takes_pid_with_most_values() {
    let (mut source, mut out) = (ClockSource::new(false), Vec::new());
    source.announce(0x50, &mut out);
    source.pcr(found(0x200, 0, 0), &mut out);
    source.pcr(found(0x200, 1, 100), &mut out);
    for i in 0..10 {
        source.pcr(found(0x100, 40 * i, 40 * i * MS), &mut out);
    }
    assert!(source.choose_now(&[], &mut out));
    assert_eq!(source.origin(), Some(ClockOrigin::Unannounced(0x100)));
    source.pcr(found(0x200, 500, 9), &mut out);
    source.pcr(found(0x100, 400, 400 * MS), &mut out);
    assert_eq!(source.clock().now_ticks(), 400 * MS);
}

#[test]
fn time_stamps_serve_where_there_is_no_clock() {
    let (mut source, mut out) = (ClockSource::new(false), Vec::new());
    source.announce(0x100, &mut out);
    for i in 0..10 {
        source.stamp(found(0x101, 40 * i + 1, 90_000), &mut out);
        source.stamp(found(0x100, 40 * i, 3600 * i), &mut out);
    }
    assert!(!source.choose_now(&[], &mut out));
    assert!(source.choose_now(&[0x101, 0x100], &mut out), "stamps that stand still give no rate");
    assert_eq!(source.origin(), Some(ClockOrigin::Stamps(0x100)));
    assert!(!source.wants_pcr(0x100));
    source.stamp(found(0x101, 390, 90_000_000), &mut out);
    source.stamp(found(0x100, 400, 36_000), &mut out);
    assert_eq!(source.clock().now_ticks(), 400 * MS);
}

#[test]
fn choose_now_with_too_few_pcrs_returns_false() {
    let (mut source, mut out) = (ClockSource::new(false), Vec::new());
    source.announce(0x100, &mut out);
    source.pcr(found(0x100, 0, 5), &mut out);
    assert!(!source.choose_now(&[0x100], &mut out));
    assert_eq!((source.early_pcrs(), out.len()), (1, 0));
}

#[test]
fn clock_source_announced_on_other_pid_starts_new_base() {
    let (mut source, mut out) = (ClockSource::new(false), Vec::new());
    source.announce(0x100, &mut out);
    for i in 0..50 {
        source.pcr(found(0x100, 40 * i, 40 * i * MS), &mut out);
    }
    source.announce(0x300, &mut out);
    for i in 50..100 {
        source.pcr(found(0x100, 40 * i - 1, 1), &mut out);
        source.pcr(found(0x300, 40 * i, 777_000 * MS + 40 * i * MS), &mut out);
    }
    assert_eq!((source.clock().jumps(), source.clock().now_ticks()), (1, 99 * 40 * MS));
}

#[test]
fn missing_packets_since_the_last_value_are_told() {
    let (mut source, mut out) = (ClockSource::new(false), Vec::new());
    source.announce(0x100, &mut out);
    for i in 0..50 {
        source.pcr(found(0x100, 40 * i, 40 * i * MS), &mut out);
    }
    // 5 s further than the bytes explain: real if nothing is missing, a jump if something is.
    let far = |losses| ClockSample { losses, ..found(0x100, 2000, 7000 * MS) };
    source.pcr(far(0), &mut out);
    assert_eq!(source.clock().jumps(), 0);
    source.pcr(ClockSample { losses: 3, ..found(0x100, 2040, 12_040 * MS) }, &mut out);
    assert_eq!(source.clock().jumps(), 1);
}

/// 2 s of PCRs with audio, then 20 s of audio alone, a PES packet every 300 ms.
fn silent_clock(source: &mut ClockSource, out: &mut Vec<Point>) -> u64 {
    source.announce(0x100, out);
    let mut packet = 0;
    for i in 0..50 {
        source.pcr(found(0x100, packet, 40 * i * MS), out);
        source.stamp(found(0x101, packet + 1, (700 + 40 * i) * 90), out);
        packet += 40;
    }
    for i in 0..67 {
        source.stamp(found(0x101, packet, (700 + 1960 + 300 * (i + 1)) * 90), out);
        packet += 13;
    }
    packet
}

#[test]
fn pcr_that_stays_away_is_replaced_by_time_stamps() {
    let (mut source, mut out) = (ClockSource::new(false), Vec::new());
    silent_clock(&mut source, &mut out);
    let now = source.clock().now_ticks() / MS;
    assert!((21_500..=22_100).contains(&now), "{now}");
    assert_eq!(source.clock().jumps(), 0);
}

#[test]
fn pcr_that_comes_again_is_no_jump() {
    for late_ms in [0, 900] {
        let (mut source, mut out) = (ClockSource::new(false), Vec::new());
        let packet = silent_clock(&mut source, &mut out);
        // The stamps may have been ahead of the clock.
        for i in 0..50 {
            source.pcr(found(0x100, packet + 40 * i, (22_060 + 40 * i - late_ms) * MS), &mut out);
        }
        assert_eq!(source.clock().jumps(), 0);
        assert_eq!(source.clock().now_ticks() / MS, 22_060 + 40 * 49 - late_ms);
        assert!(out.windows(2).all(|two| two[0].byte < two[1].byte && two[0].ticks <= two[1].ticks));
    }
}

#[test]
fn stamps_of_another_time_base_do_not_move_the_clock() {
    let (mut source, mut out) = (ClockSource::new(false), Vec::new());
    source.announce(0x100, &mut out);
    for i in 0..100 {
        source.pcr(found(0x100, 40 * i, 40 * i * MS), &mut out);
        source.stamp(found(0x101, 40 * i + 1, i % 2 * 5_000_000 + i * 3600), &mut out);
    }
    assert_eq!(source.clock().now_ticks(), 99 * 40 * MS);
}
