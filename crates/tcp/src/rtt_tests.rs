use super::*;

const MS: u64 = 1_000_000;

fn rtt() -> Rtt {
    Rtt::new(false, Instant(0))
}

//= RFC 6298 section 2
//= type=test
//# When the first RTT measurement R is made, the host MUST set
#[test]
fn rtt_first_sample_sets_srtt_and_rto() {
    let mut rtt = rtt();
    assert_eq!(rtt.rto_ns(), RTO_FIRST_NS);
    rtt.sample(ticks(400 * MS), 1);
    assert_eq!(rtt.srtt(), ticks(400 * MS));
    let rto_ms = rtt.rto_ns() / MS;
    assert!((1198..=1200).contains(&rto_ms), "SRTT + 4 * RTTVAR = 400 + 4 * 200: {rto_ms}");
}

//= RFC 6298 section 2
//= type=test
//# The value of SRTT used in the update to RTTVAR is its value
//# before updating SRTT itself using the second assignment.  That
//# is, updating RTTVAR and SRTT MUST be computed in the above
//# order.
#[test]
fn sample_moves_srtt_by_an_eighth_and_rttvar_by_a_quarter() {
    let mut rtt = rtt();
    rtt.sample(ticks(400 * MS), 1);
    rtt.sample(ticks(800 * MS), 1);
    let near = |is: u64, wanted: u64| is.abs_diff(wanted) < MS / 10;
    assert!(near(nanoseconds(rtt.srtt()), 450 * MS), "7/8 * 400 + 1/8 * 800");
    assert!(near(rtt.deviation_ns(), 250 * MS), "3/4 * 200 + 1/4 * 400");
    assert!(near(rtt.rto_ns(), 450 * MS + 4 * 250 * MS));
}

#[test]
fn sample_with_shorter_rtt_increases_variation() {
    let mut rtt = rtt();
    rtt.sample(ticks(800 * MS), 1);
    rtt.sample(ticks(200 * MS), 1);
    // 3/4 * 400 + 1/4 * 600 = 450; 7/8 * 800 + 1/8 * 200 = 725.
    assert!(rtt.rto_ns().abs_diff(725 * MS + 4 * 450 * MS) < MS, "{}", rtt.rto_ns());
}

#[test]
fn samples_in_one_window_weigh_as_much_as_single_sample() {
    let (mut one, mut many) = (rtt(), rtt());
    for rtt in [&mut one, &mut many] {
        rtt.sample(ticks(100 * MS), 1);
    }
    one.sample(ticks(200 * MS), 1);
    for _ in 0..10 {
        many.sample(ticks(200 * MS), 10);
    }
    let (one, many) = (nanoseconds(one.srtt()), nanoseconds(many.srtt()));
    assert!(one.abs_diff(many) < 2 * MS, "{one} {many}");
}

#[test]
fn rto_ns_is_clamped_to_minimum_and_maximum() {
    let mut rtt = rtt();
    for _ in 0..200 {
        rtt.sample(ticks(10 * MS), 1);
    }
    let rto_ms = rtt.rto_ns() / MS;
    assert!((208..=210).contains(&rto_ms), "{rto_ms}");
    rtt.backoff = 3;
    assert_eq!(rtt.rto_ns() / MS / 8, rto_ms);
    rtt.backoff = 200;
    assert_eq!(rtt.rto_ns(), RTO_MAX_NS);
    rtt.sample(ticks(10 * MS), 1);
    assert_eq!(rtt.rto_ns() / MS, rto_ms, "a new measurement ends the back-off");
    assert_eq!(Rtt::new(true, Instant(0)).rto_ns(), RTO_AFTER_SYN_NS);
}

#[test]
fn min_rtt_is_forgotten_after_two_spans() {
    let mut rtt = rtt();
    let at = |s: u64| Tick::at(Instant(s * 1_000 * MS));
    assert_eq!(rtt.min(), 0);
    rtt.sample_min(500, at(1));
    rtt.sample_min(900, at(2));
    assert_eq!(rtt.min(), 500);
    rtt.sample_min(900, at(62));
    assert_eq!(rtt.min(), 500, "of the span before");
    rtt.sample_min(900, at(123));
    assert_eq!(rtt.min(), 900);
}

#[test]
fn stamp_of_departure_tick_is_exact_across_wrap() {
    for now in [1 << 30, (1_u64 << 42) + 12_345_678, (9 << 42) + 5] {
        let sent = Instant(now - 300 * MS);
        assert_eq!(stamp_of(Tick::at(sent), Instant(now)), stamp(sent));
    }
    assert!(is_stamp_before(u32::MAX, 3) && !is_stamp_before(3, 3));
}
