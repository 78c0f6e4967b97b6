use super::*;
use crate::cc::tests::growth;
use crate::rtt::ticks;

const MSS: u32 = 1000;
const SRTT_NS: u64 = 100_000_000;

fn cubic(cwnd: u32, ssthresh: u32) -> Cubic {
    Cubic::new(Windows { cwnd, ssthresh }, Seq(0))
}

/// Acknowledges a window's worth each round trip for `seconds`, two segments at a time.
fn run(control: &mut Cubic, from_ns: u64, seconds: f64, srtt_ns: u64) -> u64 {
    let mut now = from_ns as f64;
    let end = now + seconds * 1e9;
    while now < end {
        let acks = f64::from(control.cwnd()) / 2000.0;
        now += srtt_ns as f64 / acks;
        let tick = Tick((now as u64 >> 10) as u32);
        control.on_ack(&Growth { srtt: ticks(srtt_ns), ..growth(tick, 2 * MSS) });
    }
    now as u64
}

// RFC 9438 figures 1 and 2: W_cubic(t) = C (t - K)^3 + W_max.
#[test]
fn cubic_window_follows_closed_form() {
    let mut control = cubic(1_000_000, 1_000_000);
    control.on_loss(&WindowReduction { used: 1_000_000, mss: MSS });
    assert_eq!(control.cwnd(), 700_000);
    let k_s = (300.0_f64 / 0.4).cbrt();
    let mut now = 0;
    for seconds in [2.0, 5.0, k_s, 12.0, 15.0] {
        now = run(&mut control, now, seconds - now as f64 * 1e-9, SRTT_NS);
        let t_s = now as f64 * 1e-9;
        let wanted = (0.4 * (t_s - k_s).powi(3) + 1000.0) * 1000.0;
        let is = f64::from(control.cwnd());
        assert!((is / wanted - 1.0).abs() < 0.02, "at {t_s} s: {is}, wanted {wanted}");
    }
}

// RFC 9438 section 4.3: where Reno would be faster, as fast as Reno with the same beta.
#[test]
fn cubic_at_short_round_trips_grows_as_fast_as_reno() {
    let srtt_ns = 5_000_000;
    let mut control = cubic(40_000, 40_000);
    control.on_loss(&WindowReduction { used: 40_000, mss: MSS });
    assert_eq!(control.cwnd(), 28_000);
    let round_trips = 40.0;
    run(&mut control, 0, round_trips * srtt_ns as f64 * 1e-9, srtt_ns);
    // 0.53 segments a round trip up to 40, one afterwards.
    let wanted = 28.0 + 12.0 + (round_trips - 12.0 / 0.529);
    let is = f64::from(control.cwnd()) / 1000.0;
    assert!((is - wanted).abs() < 3.0, "{is}, wanted {wanted}");
}

//= RFC 8312 section 4.6
//= type=test
//# With fast convergence, when a congestion event occurs, before the
//# window reduction of the congestion window, a flow remembers the last
//# value of W_max before it updates W_max for the current congestion
//# event.
#[test]
fn fast_convergence_lowers_w_max_of_shrinking_window() {
    let mut control = cubic(100_000, 100_000);
    control.on_loss(&WindowReduction { used: 100_000, mss: MSS });
    assert_eq!(control.w_max, 100_000);
    control.on_loss(&WindowReduction { used: 70_000, mss: MSS });
    assert_eq!(control.w_max, 59_500);
    assert_eq!(control.cwnd(), 49_000);
}

#[test]
fn cubic_on_undo_restores_state_before_loss() {
    let mut control = cubic(100_000, 100_000);
    control.on_loss(&WindowReduction { used: 100_000, mss: MSS });
    let now = run(&mut control, 0, 1.0, SRTT_NS);
    assert!(control.cwnd() < control.w_max);
    let before = (control.cwnd(), control.ssthresh(), control.w_max, control.k_s, control.epoch);
    control.on_loss(&WindowReduction { used: control.cwnd(), mss: MSS });
    assert_ne!(control.w_max, before.2, "fast convergence");
    control.on_undo();
    let after = (control.cwnd(), control.ssthresh(), control.w_max, control.k_s, control.epoch);
    assert_eq!(before, after);
    run(&mut control, now, 1.0, SRTT_NS);
    assert!(control.cwnd() > before.0);
}

//= RFC 8312 section 4.7
//= type=test
//# During the first congestion avoidance after a timeout, CUBIC
//# increases its congestion window size using Eq. 1, where t is the
//# elapsed time since the beginning of the current congestion avoidance,
//# K is set to 0, and W_max is set to the congestion window size at the
//# beginning of the current congestion avoidance.
#[test]
fn cubic_on_rto_sets_k_to_zero_and_w_max_to_cwnd() {
    let mut control = cubic(100_000, 100_000);
    control.on_rto(&WindowReduction { used: 100_000, mss: MSS }, false);
    assert_eq!((control.cwnd(), control.ssthresh()), (1000, 70_000));
    control.set(70_000, 70_000);
    control.on_ack(&growth(Tick(5), 1000));
    assert_eq!((control.k_s, control.w_max), (0.0, 70_000));
}

#[test]
fn time_without_data_is_no_time_of_the_epoch() {
    let mut control = cubic(100_000, 100_000);
    control.on_loss(&WindowReduction { used: 100_000, mss: MSS });
    let now = run(&mut control, 0, 1.0, SRTT_NS);
    let before = control.cwnd();
    control.on_idle(ticks(60_000_000_000));
    run(&mut control, now + 60_000_000_000, 0.2, SRTT_NS);
    assert!(control.cwnd() < before + 10_000, "{before} to {}", control.cwnd());
}

#[test]
fn cubic_window_never_shrinks_when_tick_clock_wraps() {
    let mut control = cubic(100_000, 100_000);
    control.on_loss(&WindowReduction { used: 100_000, mss: MSS });
    let mut last = 0;
    for minute in 0..200_u64 {
        let tick = Tick(((minute * 60_000_000_000) >> 10) as u32);
        for _ in 0..1000 {
            control.on_ack(&growth(tick, 2 * MSS));
        }
        assert!(control.cwnd() >= last);
        last = control.cwnd();
    }
    assert!(control.cwnd() <= crate::limits::CWND_MAX);
}

// The remainder of an acknowledgment counts towards the next segment: otherwise stretch ACKs would
// make the window grow more slowly.
#[test]
fn grow_estimate_counts_all_acknowledged_bytes() {
    let mut control = cubic(100_000, 100_000);
    for _ in 0..8 {
        control.grow_estimate(&growth(Tick(0), 75_000));
    }
    assert_eq!(control.w_est, 6 * MSS, "a segment for each window: 8 * 75,000 / 100,000");
}

#[test]
fn cubic_growth_is_independent_of_acknowledgment_size() {
    let grown = |bytes: u32| {
        let mut control = cubic(1_000_000, 1_000_000);
        control.on_loss(&WindowReduction { used: 1_000_000, mss: MSS });
        control.on_ack(&growth(Tick(0), bytes));
        let later = Tick(ticks(5_000_000_000));
        for _ in 0..200_000 / bytes {
            control.on_ack(&growth(later, bytes));
        }
        control.cwnd() - 700_000
    };
    let (large, small) = (grown(2000), grown(100));
    assert!(small > 30 * MSS && large.abs_diff(small) <= 2 * MSS, "{large} and {small}");
}
