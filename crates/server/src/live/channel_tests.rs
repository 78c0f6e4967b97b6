use millrace_core::time::MEDIA_HZ;

use super::*;

fn channel(window: u32) -> Arc<LiveChannel> {
    let timeline = Timeline { ssrc: 1, timestamp_base: 2 };
    let layout = WireLayout::new(1316).unwrap();
    Arc::new(LiveChannel::new("news", TitleRef(0), TitleId([7; 16]), timeline, layout, window))
}

fn point(packet: u32) -> AccessPoint {
    AccessPoint { packet, time: MediaTicks(u64::from(packet) * 10) }
}

#[test]
fn break_before_a_segment_that_has_left_the_window_is_counted() {
    let channel = channel(100);
    let point = |packet, second| AccessPoint { packet, time: MediaTicks(second * MEDIA_HZ) };
    channel.add_point(point(0, 0), None);
    channel.add_point(point(20, 2), None);
    channel.add_break(30, MediaTicks(3 * MEDIA_HZ));
    channel.add_point(point(30, 10), None);
    channel.add_point(point(50, 12), None);
    let numbers =
        |held: &HeldSegments| held.segments.iter().map(|segment| segment.number).collect::<Vec<_>>();
    channel.publish_edge(130, MediaTicks(20 * MEDIA_HZ));
    let (held, _) = channel.segments();
    assert_eq!((numbers(&held), held.breaks_before), (vec![2], 0));
    channel.publish_edge(131, MediaTicks(20 * MEDIA_HZ));
    let (held, _) = channel.segments();
    assert_eq!((numbers(&held), held.breaks_before), (vec![], 1));
}

#[test]
fn segments_in_the_newer_half_of_the_window_are_listed() {
    let channel = channel(100);
    for n in 0..10 {
        channel
            .add_point(AccessPoint { packet: 10 * n, time: MediaTicks(u64::from(n) * 2 * MEDIA_HZ) }, None);
    }
    let listed = |edge| {
        channel.publish_edge(edge, MediaTicks(20 * MEDIA_HZ));
        let (held, listed) = channel.segments();
        (held.segments.len(), listed)
    };
    // The last point has begun a segment that is not there yet.
    assert_eq!(listed(50), (9, 9), "nothing is about to go");
    assert_eq!(listed(100), (9, 4));
    assert_eq!(listed(101), (8, 3), "one has gone, and one more will soon");
}

#[test]
fn viewers_join_at_the_last_access_point_that_is_held() {
    let channel = channel(100);
    let join = || channel.entry().access.join();
    assert_eq!(join().packet, 0, "with the first packet that comes");
    for packet in [10, 60] {
        channel.add_point(point(packet), None);
    }
    channel.publish_edge(70, MediaTicks(700));
    assert_eq!(join(), point(60));
    channel.publish_edge(161, MediaTicks(1_610));
    assert_eq!(join(), AccessPoint { packet: 161, time: MediaTicks(1_610) });
}

#[test]
fn times_of_packets_in_the_window_are_known() {
    let channel = channel(100);
    for packet in 7..300 {
        channel.add_packet(packet, MediaTicks(u64::from(packet) * 10), None, false);
    }
    assert_eq!(channel.time_of(199), None);
    assert_eq!(
        (channel.time_of(200), channel.time_of(299)),
        (Some(MediaTicks(2_000)), Some(MediaTicks(2_990)))
    );
    assert_eq!(channel.time_of(300), None);
}

#[test]
fn viewers_begin_at_the_access_points_of_the_window_less_its_reserve() {
    let channel = channel(160);
    let at = |time| channel.access_at_or_before(MediaTicks(time)).packet;
    [0, 50, 100, 150].iter().for_each(|&packet| channel.add_point(point(packet), None));
    channel.publish_edge(120, MediaTicks(1_200));
    // All is held; the edge has not come to the last point.
    assert_eq!((at(0), at(499), at(500), at(u64::MAX)), (0, 0, 50, 150));
    [200, 250].iter().for_each(|&packet| channel.add_point(point(packet), None));
    channel.publish_edge(290, MediaTicks(2_900));
    // Packet 130 is held, and 150 is the oldest that is not in the reserve.
    assert_eq!((at(0), at(1_999), at(2_000), at(u64::MAX)), (150, 150, 200, 250));
    assert_eq!(channel.window(), Some(MediaTicks(1_500)..MediaTicks(2_900)));
    assert_eq!((channel.is_held(130), channel.is_held(131), channel.is_held(290)), (false, true, true));
    channel.publish_edge(291, MediaTicks(2_910));
    assert_eq!(at(0), 200);
    // The last access point is good while it is held at all.
    channel.publish_edge(409, MediaTicks(4_090));
    assert_eq!((at(0), at(u64::MAX)), (250, 250));
    channel.publish_edge(410, MediaTicks(4_100));
    assert_eq!((at(0), channel.window()), (410, Some(MediaTicks(4_100)..MediaTicks(4_100))));
}

#[test]
fn stamps_count_from_newest_access_point_before_them() {
    let channel = channel(1000);
    let of = |stamp| channel.time_of_stamp(stamp);
    assert_eq!(of(5), None);
    channel.add_point(point(10), Some(STAMP_MODULUS.cast_unsigned() - 50));
    channel.add_point(point(20), None);
    // 33 bits wrap between the two.
    channel.add_point(point(30), Some(150));
    assert_eq!((of(150), of(170), of(149), of(-20)), (Some(300), Some(320), Some(299), Some(130)));
    assert_eq!(of(STAMP_MODULUS - 60), Some(90), "before all that is known");
    // The source's clock jumps back by 100.
    channel.add_point(point(40), Some(100));
    assert_eq!((of(100), of(160), of(99)), (Some(400), Some(460), Some(249)));
}

#[test]
fn time_of_day_of_title_is_that_of_its_origin() {
    let channel = channel(100);
    assert_eq!(channel.entry().began_unix_ms, None);
    let (before, now) = (unix_ms(), MonotonicClock.now());
    channel.begin_at(Instant(now.0 - 5 * NS_PER_S));
    let began = channel.entry().began_unix_ms.unwrap();
    assert!((before - 5_001..=unix_ms() - 5_000).contains(&began), "{began} {before}");
}

#[test]
fn points_behind_the_window_are_forgotten() {
    let channel = channel(100);
    for packet in (0..100_000).step_by(30) {
        channel.add_point(point(packet), None);
    }
    assert!(lock(&channel.points).access.len() <= 4);
}

#[test]
fn entry_has_no_end_and_a_rate_from_the_start() {
    let channel = channel(100);
    let entry = channel.entry();
    assert!(entry.is_live() && entry.raw().is_none());
    assert_eq!((entry.name.as_str(), entry.mean_rate), ("live/news", BitRate(LIVE_RATE_UNKNOWN)));
    channel.publish_rates(4_000_000, 5_000_000);
    assert_eq!(channel.entry().peak_rate, BitRate(5_000_000));
}
