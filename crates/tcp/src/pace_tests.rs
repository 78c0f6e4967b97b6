use super::*;

const RATE: Rate = Rate { cwnd: 100_000, srtt_ns: 100_000_000, mss: 1000, is_slow_start: false };

/// Sends whenever it may for `ns`; the bytes that left.
fn sent_within(pace: &mut SegmentPacer, from: Instant, ns: u64, rate: &Rate) -> u64 {
    let (mut now, mut bytes) = (from, 0);
    while now.ns_since(from) < ns {
        match pace.wait(now) {
            Some(until) => now = until,
            None => {
                pace.sent(now, rate.mss, rate);
                bytes += u64::from(rate.mss);
            }
        }
    }
    bytes
}

#[test]
fn the_rate_is_a_fifth_more_than_the_window_in_a_round_trip() {
    let mut pace = SegmentPacer::new(Instant(0));
    sent_within(&mut pace, Instant(0), 1, &RATE);
    let bytes = sent_within(&mut pace, Instant(1_000_000), 1_000_000_000, &RATE);
    assert!((1_180_000..1_215_000).contains(&bytes), "{bytes}");
    let bytes =
        sent_within(&mut pace, Instant(2_000_000_000), 1_000_000_000, &Rate { is_slow_start: true, ..RATE });
    assert!((1_990_000..2_015_000).contains(&bytes), "{bytes}");
}

#[test]
fn a_burst_is_ten_segments_after_any_pause() {
    let mut pace = SegmentPacer::new(Instant(0));
    for pause_s in [0, 1, 3600] {
        let now = Instant(1_000_000_000 * (10 + pause_s));
        let mut burst = 0;
        while pace.wait(now).is_none() {
            pace.sent(now, RATE.mss, &RATE);
            burst += 1;
        }
        assert_eq!(burst, 10, "after {pause_s} s");
    }
}

#[test]
fn nothing_is_spread_where_the_round_trip_is_not_known() {
    let mut unknown = SegmentPacer::new(Instant(5));
    for _ in 0..100 {
        unknown.sent(Instant(5), 1000, &Rate { srtt_ns: 0, ..RATE });
    }
    assert_eq!(unknown.wait(Instant(5)), None);
    unknown.hold(Instant(7));
    assert_eq!(unknown.wait(Instant(6)), Some(Instant(7)));
}
