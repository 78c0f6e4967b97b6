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
    let numbers = |held: &[LiveSegment]| held.iter().map(|segment| segment.number).collect::<Vec<_>>();
    channel.publish_edge(130, MediaTicks(20 * MEDIA_HZ));
    let (held, breaks, _) = channel.segments();
    assert_eq!((numbers(&held), breaks), (vec![2], 0));
    channel.publish_edge(131, MediaTicks(20 * MEDIA_HZ));
    let (held, breaks, _) = channel.segments();
    assert_eq!((numbers(&held), breaks), (vec![], 1));
}

#[test]
fn segments_in_the_newer_half_of_the_window_are_listed() {
    let channel = channel(100);
    for n in 0..10 {
        channel.add_point(AccessPoint { packet: 10 * n, time: MediaTicks(u64::from(n) * 2 * MEDIA_HZ) }, None);
    }
    let listed = |edge| {
        channel.publish_edge(edge, MediaTicks(20 * MEDIA_HZ));
        let (held, _, listed) = channel.segments();
        (held.len(), listed)
    };
    // The last point has begun a segment that is not there yet.
    assert_eq!(listed(50), (9, 9), "nothing is about to go");
    assert_eq!(listed(100), (9, 4));
    assert_eq!(listed(101), (8, 3), "one has gone, and one more will soon");
}

#[test]
fn viewers_join_at_the_last_access_point_that_is_held() {
    let channel = channel(100);
    let join = || channel.entry().access.access_at_or_before(MediaTicks(0));
    assert_eq!(join().packet, 0, "with the first packet that comes");
    for packet in [10, 60] {
        channel.add_point(point(packet), None);
    }
    channel.publish_edge(70, MediaTicks(700));
    assert_eq!(join(), point(60));
    channel.publish_edge(161, MediaTicks(1_610));
    assert_eq!(join(), AccessPoint { packet: 161, time: MediaTicks(1_610) });
    assert_eq!(channel.time_of(60), Some(MediaTicks(600)));
    assert_eq!(channel.time_of(161), None);
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
