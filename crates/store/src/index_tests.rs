use proptest::prelude::*;

use super::*;

fn access(packet: u32, time: u64, byte: u64) -> RandomAccessPoint {
    RandomAccessPoint { packet, time: MediaTicks(time), byte }
}

fn piece(byte: u64, time: u64) -> ClockPiece {
    ClockPiece { byte, time: MediaTicks(time) }
}

/// The time of every default-size packet on the line through `pieces`, which begin at byte 0, and the index of it.
fn on_pieces(
    pieces: &[ClockPiece],
    data_bytes: u64,
    duration: u64,
    with_pieces: bool,
) -> (Vec<u64>, TitleIndex) {
    let end = piece(data_bytes, duration);
    let time = |byte: u64| {
        let i = pieces.partition_point(|p| p.byte <= byte) - 1;
        pieces[i].time_of(pieces.get(i + 1).unwrap_or(&end), byte)
    };
    let times: Vec<MediaTicks> = (0..data_bytes.div_ceil(1316)).map(|packet| time(packet * 1316)).collect();
    let index = TitleIndex::from_parts(IndexParts {
        pieces: if with_pieces { pieces.to_vec() } else { Vec::new() },
        times: times.iter().copied().step_by(TIME_STEP_PACKETS as usize).collect(),
        data_bytes,
        duration: MediaTicks(duration),
        ..IndexParts::default()
    })
    .unwrap();
    (times.into_iter().map(|t| t.0).collect(), index)
}

#[test]
fn access_before_at_and_between() {
    let index = TitleIndex::new(vec![access(3, 300, 4000), access(9, 900, 12_000)], vec![], vec![]).unwrap();
    assert_eq!(index.access_at_or_before(MediaTicks(0)), RandomAccessPoint::default());
    assert_eq!(index.access_at_or_before(MediaTicks(299)), RandomAccessPoint::default());
    assert_eq!(index.access_at_or_before(MediaTicks(300)).packet, 3);
    assert_eq!(index.access_at_or_before(MediaTicks(899)).packet, 3);
    assert_eq!(index.access_at_or_before(MediaTicks(u64::MAX)).packet, 9);
    assert_eq!(TitleIndex::default().access_at_or_before(MediaTicks(5)), RandomAccessPoint::default());
}

#[test]
fn packet_at_the_ends() {
    let (times, index) = on_pieces(&[piece(0, 0)], 1316 * 1000, 300_000, true);
    assert_eq!(index.packet_at(MediaTicks(0)), 0);
    assert_eq!(index.packet_at(MediaTicks(1)), 1);
    assert_eq!(index.packet_at(MediaTicks(times[999])), 999);
    assert_eq!(index.packet_at(MediaTicks(times[999] + 1)), 1000);
    assert_eq!(index.packet_at(MediaTicks(u64::MAX)), 1000);
    assert_eq!(TitleIndex::default().packet_at(MediaTicks(7)), 0);
}

#[test]
fn media_time_runs_on_straight_lines_between_clock_pieces() {
    let end = piece(10_000, 9_000);
    let pieces = [piece(1_000, 0), piece(3_000, 2_000), piece(6_000, 3_000)];
    for (byte, ticks) in [(0, 0), (1_000, 0), (2_000, 1_000), (3_000, 2_000), (4_500, 2_500), (8_000, 6_000)]
    {
        assert_eq!(interpolate(&pieces, end, byte), MediaTicks(ticks), "byte {byte}");
    }
    assert_eq!(interpolate(&pieces, end, 10_000), MediaTicks(9_000));
    assert_eq!(interpolate(&pieces, end, 99_000), MediaTicks(9_000), "never beyond the end");
    assert_eq!(interpolate(&[], end, 5_000), MediaTicks(4_500));
    assert_eq!(interpolate(&[], piece(0, 0), 5_000), MediaTicks(0));
    assert_eq!(
        interpolate(&[piece(u64::MAX - 1, 5)], piece(u64::MAX, u64::MAX), u64::MAX - 1),
        MediaTicks(5)
    );
}

#[test]
fn clock_piece_byte_at_is_inverse_of_time_of() {
    let (a, b) = (piece(100, 10), piece(200, 13));
    assert_eq!(a.time_of(&b, 0), MediaTicks(10));
    assert_eq!(a.time_of(&b, 133), MediaTicks(10));
    assert_eq!(a.time_of(&b, 134), MediaTicks(11));
    assert_eq!(a.time_of(&b, 999), MediaTicks(13));
    assert_eq!(a.byte_at(&b, MediaTicks(11)), Some(134));
    assert_eq!(a.byte_at(&b, MediaTicks(14)), None);
    assert_eq!(a.time_of(&a, 150), MediaTicks(10));
    let (start, end) = (piece(0, 0), piece(u64::MAX, u64::MAX));
    assert_eq!(start.time_of(&end, u64::MAX - 1), MediaTicks(u64::MAX - 1));
}

#[test]
fn contradictions_are_refused() {
    let error = TitleIndex::new(vec![access(1, 0, 1315)], vec![], vec![]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "access points number 0: must start sending at or before the packet with its byte"
    );
    assert!(TitleIndex::new(vec![access(1, 5, 1316), access(1, 5, 1316)], vec![], vec![]).is_err());
    assert!(TitleIndex::new(vec![access(1, 5, 1316), access(1, 4, 1504)], vec![], vec![]).is_err());
    assert!(TitleIndex::new(vec![], vec![piece(5, 5), piece(5, 6)], vec![]).is_err());
    assert!(TitleIndex::new(vec![], vec![piece(5, 5), piece(6, 4)], vec![]).is_err());
    let index = || TitleIndex::new(vec![access(1, 5, 1316)], vec![piece(188, 5)], vec![]).unwrap();
    let times = |n: usize| vec![MediaTicks(0); n];
    assert!(index().complete(times(1), 1504, MediaTicks(5)).is_ok());
    assert!(index().complete(times(2), 1504, MediaTicks(5)).is_err(), "too many times");
    assert!(index().complete(times(1), 1316, MediaTicks(5)).is_err(), "access point at the end");
    assert!(index().complete(times(1), 1504, MediaTicks(4)).is_err(), "access point after the duration");
    let back = vec![MediaTicks(2), MediaTicks(1)];
    assert!(index().complete(back, 1316 * 300, MediaTicks(5)).is_err(), "time runs back");
}

proptest! {
    #[test]
    fn packet_at_is_exact_on_clock_pieces(
        steps in proptest::collection::vec((1u64..900, 0u64..500_000), 1..20),
        probes in proptest::collection::vec(0f64..1.05, 50),
    ) {
        let (mut byte, mut time, mut pieces) = (0, 0, Vec::new());
        for (ts_packets, ticks) in steps {
            pieces.push(piece(byte, time));
            byte += ts_packets * 188;
            time += ticks;
        }
        let (times, index) = on_pieces(&pieces, byte, time, true);
        let (_, without) = on_pieces(&pieces, byte, time, false);
        for probe in probes {
            let t = (probe * (time + 3) as f64) as u64;
            let expected = times.partition_point(|&packet| packet < t) as u32;
            prop_assert_eq!(index.packet_at(MediaTicks(t)), expected, "time {}", t);
            let window = index.window_of(MediaTicks(t));
            prop_assert!((window.start..=window.end).contains(&expected), "{:?} {}", window, expected);
            prop_assert!(without.packet_at(MediaTicks(t)).abs_diff(expected) <= TIME_STEP_PACKETS);
        }
        for (packet, &expected) in (0u64..).zip(&times) {
            prop_assert_eq!(index.time_of(packet * 1316), MediaTicks(expected), "packet {}", packet);
            let at = packet as usize / TIME_STEP_PACKETS as usize;
            let (least, most) = (times[at * TIME_STEP_PACKETS as usize], times.get((at + 1) * TIME_STEP_PACKETS as usize));
            let found = without.time_of(packet * 1316).0;
            prop_assert!((least..=*most.unwrap_or(&time)).contains(&found), "packet {}: {}", packet, found);
        }
    }
}
