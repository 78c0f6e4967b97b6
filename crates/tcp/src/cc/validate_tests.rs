use super::*;
use crate::cc::Algorithm;

const SRTT: u32 = ticks(100_000_000);

fn at_ms(ms: u64) -> Tick {
    Tick(ticks(ms * 1_000_000))
}

/// Acknowledges `bytes` each round trip.
fn rounds(validate: &mut Validate, from: u64, count: u64, bytes: u32, cwnd: u32) -> u64 {
    for round in from..from + count {
        let before = validate.sample_from;
        validate.acked(before, before + bytes, cwnd, SRTT, at_ms((round + 1) * 101));
    }
    from + count
}

//= RFC 7661 section 4.4
//= type=test
//# A TCP sender implementing this specification MUST enter the non-
//# validated phase when the pipeACK is less than (1/2)*cwnd.
#[test]
fn less_than_half_of_the_window_does_not_validate_it() {
    let mut validate = Validate::new(Seq(0), at_ms(0));
    assert_eq!((validate.pipe_ack(), validate.is_unvalidated()), (None, false));
    rounds(&mut validate, 0, 1, 49_000, 100_000);
    assert!(validate.is_unvalidated());
    rounds(&mut validate, 1, 1, 51_000, 100_000);
    assert!(!validate.is_unvalidated());
}

//= RFC 7661 section 4.2
//= type=test
//# The value of the pipeACK variable MUST NOT
//# exceed the maximum (highest value) within the pipeACK Sampling
//# Period.
#[test]
fn pipe_ack_forgets_large_sample_after_sampling_period() {
    let mut validate = Validate::new(Seq(0), at_ms(0));
    let round = rounds(&mut validate, 0, 1, 80_000, 100_000);
    let round = rounds(&mut validate, round, 4, 1000, 100_000);
    assert_eq!(validate.pipe_ack(), Some(80_000));
    rounds(&mut validate, round, 6, 1000, 100_000);
    assert_eq!(validate.pipe_ack(), Some(1000));
}

#[test]
fn pipe_ack_after_pause_does_not_sum_two_samples() {
    let mut validate = Validate::new(Seq(0), at_ms(0));
    validate.acked(Seq(0), Seq(3000), 10_000, SRTT, at_ms(50));
    validate.acked(Seq(3000), Seq(6000), 10_000, SRTT, at_ms(900));
    assert_eq!(validate.pipe_ack(), Some(3000));
}

//= RFC 7661 section 4.4.3
//= type=test
//# cwnd = max((1/2)*cwnd, IW).
#[test]
fn unused_window_is_halved_every_five_minutes() {
    let mut control = Controller::new(Algorithm::Reno, 1000, false, Seq(0));
    control.set(80_000, 20_000);
    let mut validate = Validate::new(Seq(0), at_ms(0));
    rounds(&mut validate, 0, 1, 1000, 80_000);
    validate.before_send(&mut control, 1000, at_ms(299_000));
    assert_eq!(control.cwnd(), 80_000);
    let mut windows = Vec::new();
    for minutes in [6, 7, 12, 18, 24] {
        validate.before_send(&mut control, 1000, at_ms(minutes * 60_000));
        windows.push(control.cwnd());
    }
    assert_eq!(windows, [40_000, 40_000, 20_000, 10_000, 10_000]);
    assert_eq!(control.ssthresh(), 60_000, "slow start up to what was good once");
}

#[test]
fn pipe_ack_sample_spans_one_round_trip() {
    let mut validate = Validate::new(Seq(0), at_ms(0));
    validate.acked(Seq(0), Seq(1000), 10_000, SRTT, Tick(at_ms(0).0 + SRTT - 1));
    assert_eq!(validate.pipe_ack(), None);
    validate.acked(Seq(1000), Seq(3000), 10_000, SRTT, Tick(at_ms(0).0 + SRTT));
    assert_eq!(validate.pipe_ack(), Some(3000));
}
