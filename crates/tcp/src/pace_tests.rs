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
fn pacing_rate_is_120_percent_of_cwnd_or_200_in_slow_start() {
    let mut pace = SegmentPacer::new(Instant(0));
    sent_within(&mut pace, Instant(0), 1, &RATE);
    let bytes = sent_within(&mut pace, Instant(1_000_000), 1_000_000_000, &RATE);
    assert!((1_180_000..1_215_000).contains(&bytes), "{bytes}");
    let bytes =
        sent_within(&mut pace, Instant(2_000_000_000), 1_000_000_000, &Rate { is_slow_start: true, ..RATE });
    assert!((1_990_000..2_015_000).contains(&bytes), "{bytes}");
}

#[test]
fn pacing_burst_after_any_pause_is_ten_segments() {
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
fn pacing_with_unknown_rtt_does_not_delay() {
    let mut unknown = SegmentPacer::new(Instant(5));
    for _ in 0..100 {
        unknown.sent(Instant(5), 1000, &Rate { srtt_ns: 0, ..RATE });
    }
    assert_eq!(unknown.wait(Instant(5)), None);
    unknown.hold(Instant(7));
    assert_eq!(unknown.wait(Instant(6)), Some(Instant(7)));
}
