use proptest::prelude::*;

use super::*;
use millrace_core::limits::MAX_BURST_NS;

const MS: u64 = 1_000_000;
const RULES: BurstRules = BurstRules { burst_ns: 10 * MS, gather_ns: MAX_BURST_NS, smooth: false };

fn pace(scale_permille: u32) -> RunPacing {
    RunPacing { at: START, anchor: MediaTicks(90_000), scale_permille }
}

/// When the anchor departs.
const START: Instant = Instant(7_000_000_000);

/// `count` packets `gap` ticks apart from the anchor on.
fn every(gap: u64, count: u64) -> impl Iterator<Item = MediaTicks> {
    (0..count).map(move |i| MediaTicks(90_000 + i * gap))
}

#[test]
fn departures_follow_the_film_at_its_speed() {
    assert_eq!(pace(1000).departure(MediaTicks(90_000 + 45_000)), Instant(7_500_000_000));
    assert_eq!(pace(2000).departure(MediaTicks(90_000 + 45_000)), Instant(7_250_000_000));
    assert_eq!(pace(500).departure(MediaTicks(90_000 + 45_000)), Instant(8_000_000_000));
    assert_eq!(pace(1000).departure(MediaTicks(5)), Instant(7_000_000_000), "before the anchor: with it");
}

#[test]
fn departure_after_a_day_of_media_has_no_drift() {
    let day = MediaTicks(90_000 + 90_000 * 86_400);
    assert_eq!(pace(1000).departure(day).0 - 7_000_000_000, 86_400_000_000_000);
    assert_eq!(pace(3000).departure(day).0 - 7_000_000_000, 28_800_000_000_000);
}

#[test]
fn count_includes_packets_within_burst_length() {
    // 1 ms apart: packets at 0..9 ms are within 10 ms, the one at 10 ms is not.
    assert_eq!(RULES.count(&pace(1000), every(90, 50)), 10);
    assert_eq!(RULES.count(&pace(2000), every(90, 50)), 20);
    assert_eq!(RULES.count(&pace(1000), every(90, 3)), 3);
    assert_eq!(RULES.count(&pace(1000), every(90, 0)), 0);
}

#[test]
fn count_for_slow_stream_gathers_up_to_four_packets() {
    assert_eq!(RULES.count(&pace(1000), every(90 * 4, 50)), 4, "4 ms apart: 3 in 10 ms, 4 within 20 ms");
    assert_eq!(RULES.count(&pace(1000), every(90 * 9, 50)), 3, "9 ms apart: 0, 9, 18 ms");
    assert_eq!(RULES.count(&pace(1000), every(90 * 20, 50)), 1, "20 ms apart: the next is too far off");
}

#[test]
fn count_is_limited_to_max_burst_and_to_one_if_smooth() {
    assert_eq!(RULES.count(&pace(1000), every(0, 1000)), MAX_BURST_PACKETS as u32);
    assert_eq!(BurstRules { smooth: true, ..RULES }.count(&pace(1000), every(0, 1000)), 1);
}

/// A burst of ten packets that left at `left_ms`, due then, of media that departs at 100 ms.
fn ten_at(left_ms: u64) -> LastBurst {
    LastBurst::NONE.followed_by(Instant(left_ms * MS), Instant(left_ms * MS), Instant(100 * MS), 10)
}

#[test]
fn next_leaves_is_on_time_or_at_five_quarters_of_rate() {
    assert_eq!(ten_at(100).next_leaves(Instant(110 * MS)), Instant(110 * MS), "on time");
    assert_eq!(ten_at(101).next_leaves(Instant(110 * MS)), Instant(110 * MS), "a little late");
    assert_eq!(ten_at(500).next_leaves(Instant(110 * MS)), Instant(508 * MS), "behind");
    let timeless = LastBurst::NONE.followed_by(Instant(500 * MS), Instant(300 * MS), Instant(100 * MS), 92);
    assert_eq!(timeless.next_leaves(Instant(100 * MS)), Instant(500 * MS + 920_000), "1 Gb/s at most");
    assert_eq!(LastBurst::NONE.next_leaves(Instant(5)), Instant(5));
}

#[test]
fn next_leaves_forgives_late_wakeup_but_not_long_gap() {
    // Media of 10 ms in each burst, far behind its time: the next is due 8 ms after this one counts as having left.
    let next = |due_ms: u64, left_ms: u64, packets| {
        let last =
            LastBurst::NONE.followed_by(Instant(left_ms * MS), Instant(due_ms * MS), Instant(0), packets);
        last.next_leaves(Instant(10 * MS)).0 / MS
    };
    assert_eq!(next(100, 100, 10), 108);
    assert_eq!(next(100, 115, 10), 108, "within the credit: as if it had left when it was due");
    assert_eq!(next(100, 130, 10), 118, "beyond it: 20 ms are forgiven");
    assert_eq!(next(100, 3000, 10), 2988, "a hole");
    assert_eq!(next(100, 130, 80), 138, "a fast film: what leaves at once is enough");
    assert_eq!(next(100, 99, 10), 107, "early is not late");
}

/// However late the loop is, the packets of one stream that leave at one moment fit a player's
/// buffer.
#[test]
fn last_burst_room_limits_packets_at_one_instant() {
    for packets in 1..=MAX_BURST_PACKETS as u32 {
        for media_us in [100, 1_000, 10_000, 20_000] {
            let (now, mut due, mut departure) = (Instant(900 * MS), Instant(500 * MS), Instant(100 * MS));
            let (mut last, mut sent, mut bursts) = (LastBurst::NONE, 0, 0);
            while due <= now {
                // Every other burst is a full one: media whose rate changes.
                let count =
                    if bursts % 2 == 1 { MAX_BURST_PACKETS as u32 } else { packets }.min(last.room(now));
                last = last.followed_by(now, due, departure, count);
                (sent, bursts) = (sent + count, bursts + 1);
                departure = departure.plus_ns(media_us * 1_000);
                due = last.next_leaves(departure);
            }
            assert!(
                sent <= MAX_BURST_PACKETS as u32,
                "{sent} at once in bursts of {packets}, {media_us} us each"
            );
            assert_eq!(last.room(now), (MAX_BURST_PACKETS as u32 - sent).max(1));
            assert_eq!(
                last.room(now.plus_ns(MS)),
                MAX_BURST_PACKETS as u32,
                "a millisecond later all is forgotten"
            );
        }
    }
}

proptest! {
    #[test]
    fn film_at_is_the_inverse_of_departure(ticks in 0u64..1 << 40, ns in 0u64..1 << 50, scale in 1u32..16_001) {
        let pace = RunPacing { at: Instant(1 << 50), anchor: MediaTicks(77), scale_permille: scale };
        let departs = pace.departure(MediaTicks(77 + ticks));
        prop_assert!(pace.media_at(departs) <= MediaTicks(77 + ticks));
        prop_assert!(pace.departure(pace.media_at(departs)) >= departs);
        // The earliest media time that departs at the moment or later.
        let moment = Instant((1 << 50) + ns);
        let media = pace.media_at(moment);
        prop_assert!(pace.departure(media) >= moment);
        prop_assert!(media.0 == 77 || pace.departure(MediaTicks(media.0 - 1)) < moment);
    }

    #[test]
    fn ns_of_and_ticks_reaching_equal_128_bit_arithmetic(ticks in 0u64..1 << 40) {
        let wide = u64::try_from(u128::from(ticks) * 100_000_000 / 9000).unwrap();
        prop_assert_eq!(ns_of(ticks, 1000), wide);
        let ns = ns_of(ticks, 1000);
        let wide = u64::try_from((9 * u128::from(ns) * 1000).div_ceil(100_000_000)).unwrap();
        prop_assert_eq!(ticks_reaching(ns, 1000), wide);
    }

    /// From any burst to any later one no more than 5/4 of the title's rate, however late the loop is called.
    #[test]
    fn next_leaves_keeps_any_window_within_five_quarters_of_rate(gaps in proptest::collection::vec((1u64..40_000_000, 0u64..60_000_000), 3..60)) {
        let mut last = LastBurst::NONE;
        let mut departure = Instant(1_000_000_000);
        let mut bursts = Vec::new();
        for (media_ns, delay_ns) in gaps {
            let left = last.next_leaves(departure).plus_ns(if delay_ns > 50_000_000 { delay_ns * 20 } else { 0 });
            bursts.push((left, departure));
            last = last.followed_by(left, left, departure, 1);
            departure = departure.plus_ns(media_ns);
        }
        for (i, a) in bursts.iter().enumerate() {
            for b in &bursts[i + 1..] {
                prop_assert!((b.1.0 - a.1.0) * 4 <= (b.0.0 - a.0.0).max(MIN_PACKET_GAP_NS) * 5);
            }
        }
    }
}
