use super::*;

const MS: u64 = 1_000_000;

/// A packet every 10 ms of media (900 ticks), late by the given microseconds.
fn run(lateness: &mut Lateness, start_ns: u64, timestamp: u32, late_us: impl IntoIterator<Item = u64>) {
    for (number, late) in late_us.into_iter().enumerate() {
        let number = number as u64;
        lateness
            .observe(start_ns + number * 10 * MS + late * 1000, timestamp.wrapping_add(number as u32 * 900));
    }
}

fn near(value: u64, expected: u64) -> bool {
    value.abs_diff(expected) <= 1 + expected / 500
}

#[test]
fn percentiles_against_a_baseline_that_comes_late() {
    // The first 990 packets are 5 ms late, the last ten are on time: only then is it known that the others were late.
    let mut l = Lateness::default();
    run(&mut l, 10_000 * MS, 0, (0..990).map(|_| 5000).chain((0..10).map(|_| 0)));
    let s = l.summary();
    assert!(near(s.p50_us, 5000) && near(s.p99_us, 5000), "{s:?}");
    assert_eq!(s.max_us, 5000);
    assert_eq!(l.longest_gap_ns(), 10 * MS);
}

#[test]
fn lateness_of_uniform_spread_has_matching_percentiles() {
    let mut l = Lateness::default();
    run(&mut l, 0, u32::MAX - 50_000, (0..10_000).map(|n| n * 7919 % 10_000));
    let s = l.summary();
    assert!(near(s.p50_us, 5000) && near(s.p99_us, 9900) && near(s.p999_us, 9990), "{s:?}");
    assert_eq!(s.max_us, 9999);
}

#[test]
fn lateness_with_falling_baseline_keeps_distribution() {
    // A sender that is 100 ppm fast: every packet comes sooner than all before it. The first is the latest at the end.
    let mut l = Lateness::default();
    for number in 0..20_000u64 {
        l.observe(1_000 * MS + number * (10 * MS - 1000), (number * 900) as u32);
    }
    let s = l.summary();
    assert_eq!(s.max_us, 19_999);
    assert!(near(s.p50_us, 10_000) && near(s.p99_us, 19_800), "{s:?}");
}

#[test]
fn runs_have_their_own_baselines_and_no_gap_between_them() {
    let mut l = Lateness::default();
    run(&mut l, 0, 0, [0, 100, 200]);
    l.begin_run();
    run(&mut l, 60_000 * MS, 77, [3000, 0, 3000]);
    l.begin_run();
    assert_eq!(l.summary().max_us, 3000);
    assert!(near(l.summary().p50_us, 100) || near(l.summary().p50_us, 200), "{:?}", l.summary());
    assert_eq!(l.longest_gap_ns(), 13 * MS);
}

#[test]
fn jitter_is_that_of_rfc_3550() {
    let mut clock = RunClock::default();
    let mut jitter = 0.0f64;
    for number in 0..500u64 {
        let late = if number % 2 == 0 { 0 } else { 4 * MS };
        clock.observe(number * 10 * MS + late, (number * 900) as u32);
        if number > 0 {
            jitter += (4e6 - jitter) / 16.0;
        }
    }
    assert!((clock.jitter_ns() as f64 - jitter).abs() < 10.0, "{} {jitter}", clock.jitter_ns());
    assert_eq!(clock.jitter_max_ns(), clock.jitter_ns());
    let mut even = RunClock::default();
    (0..500u64).for_each(|number| {
        even.observe(number * 10 * MS, (number * 900) as u32);
    });
    assert_eq!((even.jitter_ns(), even.longest_gap_ns()), (0, 10 * MS));
}

#[test]
fn reordered_packets_and_wraps_of_the_timestamp() {
    let mut l = Lateness::default();
    let start = u32::MAX - 900;
    for (at_ms, tick) in [(0, 0), (30, 2700), (31, 900), (32, 1800), (40, 3600)] {
        l.observe(100_000 * MS + at_ms * MS, start.wrapping_add(tick));
    }
    assert_eq!(l.summary().max_us, 21_000);
    assert_eq!(l.clock().media_ns(), 40 * MS as i64);
    assert_eq!(l.clock().arrival_of(start), Some(100_000 * MS as i64));
}

#[test]
fn light_lateness_agrees_with_full_meter_and_reports_its_error() {
    let mut shared = histogram_us();
    let mut light = LightLateness::default();
    let mut full = Lateness::default();
    let late = |n: u64| if n < 500 { 2000 + n % 7 * 100 } else { n % 7 * 100 };
    for n in 0..2000 {
        let (arrival, timestamp) = (n * 10 * MS + late(n) * 1000, (n * 900) as u32);
        light.observe(arrival, timestamp, &mut shared);
        full.observe(arrival, timestamp);
    }
    light.finish(&mut shared);
    assert_eq!((light.max_us(), full.summary().max_us), (2600, 2600));
    assert_eq!(light.understated_us(), 2000);
    assert_eq!(shared.len(), 2000);

    let (mut shared, mut short) = (histogram_us(), LightLateness::default());
    short.observe(5 * MS, 0, &mut shared);
    short.observe(6 * MS, 0, &mut shared);
    short.finish(&mut shared);
    short.finish(&mut shared);
    assert_eq!((shared.len(), shared.max(), short.understated_us()), (2, 1000, 0));
}

/// Any arrivals and timestamps: no panic, and the maximum is that of the exact arithmetic.
#[test]
fn lateness_of_arbitrary_arrivals_matches_exact_arithmetic() {
    bolero::check!().with_type::<Vec<(u32, i16)>>().with_iterations(500).for_each(|packets| {
        let mut l = Lateness::default();
        let (mut arrival, mut ticks, mut offsets) = (1u64 << 40, 0i64, Vec::new());
        let first = arrival;
        for (number, (wait_ns, step)) in packets.iter().enumerate() {
            if number > 0 {
                arrival += u64::from(*wait_ns);
                ticks += i64::from(*step);
            }
            l.observe(arrival, ticks as u32);
            offsets.push((arrival - first) as i64 - ticks_ns(ticks, 0));
        }
        let spread =
            offsets.iter().max().zip(offsets.iter().min()).map_or(0, |(max, min)| (max - min) as u64);
        let s = l.summary();
        assert_eq!(s.max_us, spread / 1000);
        assert!(s.p50_us <= s.p99_us && s.p99_us <= s.p999_us && s.p999_us <= s.max_us);
    });
}

/// Clocks that make no sense at all, for hours: no overflow, and percentiles still in order.
#[test]
fn senseless_clocks_are_survived() {
    bolero::check!().with_type::<Vec<(u64, u32, u8)>>().with_iterations(200).for_each(|steps| {
        let (mut full, mut light, mut shared) =
            (Lateness::default(), LightLateness::default(), histogram_us());
        let (mut arrival, mut timestamp) = (0u64, 0u32);
        for (wait, step, times) in steps {
            for _ in 0..*times {
                arrival = arrival.wrapping_add(*wait);
                timestamp = timestamp.wrapping_add(*step);
                full.observe(arrival, timestamp);
                light.observe(arrival, timestamp, &mut shared);
            }
            if *times == 77 {
                full.begin_run();
            }
            full.clock().arrival_of(*step);
        }
        light.finish(&mut shared);
        let s = full.summary();
        assert!(s.p50_us <= s.p99_us && s.p99_us <= s.p999_us && s.p999_us <= s.max_us, "{s:?}");
        assert!(full.clock().jitter_max_ns() >= full.clock().jitter_ns());
    });
    let mut clock = RunClock::default();
    for number in 0..1_000_000u32 {
        clock.observe(u64::from(number), number.wrapping_mul(0x7fff_ffff));
    }
    assert_eq!(clock.media_ns(), ticks_ns(MAX_RUN_TICKS, 0));
}

#[test]
fn light_lateness_begin_run_starts_new_baseline() {
    let (mut light, mut shared) = (LightLateness::default(), histogram_us());
    light.set_clock(48_000);
    // 10 ms of media each 10 ms, the third packet 5 ms late.
    for (n, late_ms) in [(0u64, 0u64), (1, 0), (2, 5)] {
        light.observe(1_000_000_000 + n * 10_000_000 + late_ms * 1_000_000, 480 * n as u32, &mut shared);
    }
    light.begin_run(&mut shared);
    // 3 s of pause and another place of the title: neither a gap nor lateness.
    for n in 0..3u64 {
        light.observe(4_000_000_000 + n * 10_000_000, 7_000_000 + 480 * n as u32, &mut shared);
    }
    light.finish(&mut shared);
    assert_eq!((light.max_us(), light.longest_gap_ns(), light.span_ns()), (5000, 15_000_000, 45_000_000));
    assert_eq!((shared.len(), shared.count_between(0, 1)), (6, 5));
    assert_eq!(light.clock().arrival_of(7_000_000), Some(4_000_000_000));
}
