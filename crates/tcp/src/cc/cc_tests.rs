use super::*;

const MSS: u32 = 1000;

pub(crate) fn growth(now: Tick, bytes: u32) -> Growth {
    Growth {
        now,
        bytes,
        mss: MSS,
        srtt: crate::rtt::ticks(100_000_000),
        rtt: None,
        una: Seq(0),
        nxt: Seq(0),
        is_recovering: false,
        is_paced: true,
        is_used: true,
    }
}

fn reno() -> Controller {
    Controller::new(Algorithm::Reno, MSS, false, Seq(0))
}

//= RFC 6928 section 2
//= type=test
//# min (10*MSS, max (2*MSS, 14600))
#[test]
fn initial_window_is_ten_segments_or_less_for_large_mss() {
    assert_eq!([536, 1460, 4000, 8960].map(initial), [5360, 14_600, 14_600, 17_920]);
}

//= RFC 9293 section 3.8.2
//= type=test
//# A TCP endpoint MUST implement the basic congestion control algorithms
//# slow start, congestion avoidance, and exponential backoff of RTO to
//# avoid creating congestion collapse conditions (MUST-19).
#[test]
fn slow_start_counts_bytes_up_to_two_segments_and_one_after_a_time_out() {
    let mut control = reno();
    control.on_ack(&growth(Tick(0), 300));
    assert_eq!(control.cwnd(), 10_300);
    control.on_ack(&growth(Tick(0), 9000));
    assert_eq!(control.cwnd(), 12_300);
    control.on_ack(&Growth { is_recovering: true, ..growth(Tick(0), 9000) });
    assert_eq!(control.cwnd(), 13_300);
    control.on_ack(&Growth { is_used: false, ..growth(Tick(0), 9000) });
    assert_eq!(control.cwnd(), 13_300, "not used, not wider");
}

#[test]
fn slow_start_ends_at_the_threshold() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
        let mut control = Controller::new(algorithm, MSS, false, Seq(0));
        control.set(10_000, 10_500);
        control.on_ack(&growth(Tick(0), 1000));
        assert_eq!(control.cwnd(), 10_500);
    }
}

#[test]
fn congestion_avoidance_grows_by_a_segment_a_window_however_it_is_acknowledged() {
    for part in [100, 1000, 2000, 20_000] {
        let mut control = reno();
        control.set(20_000, 20_000);
        for _ in 0..20_000 / part {
            control.on_ack(&growth(Tick(0), part));
        }
        assert_eq!(control.cwnd(), 21_000, "{part} bytes at a time");
    }
}

//= RFC 5681 section 3.1
//= type=test
//# ssthresh = max (FlightSize / 2, 2*SMSS)
#[test]
fn reno_loss_halves_window_and_timeout_leaves_one_segment() {
    let mut control = reno();
    control.set(40_000, 80_000);
    control.on_loss(&WindowReduction { used: 30_000, mss: MSS });
    assert_eq!((control.cwnd(), control.ssthresh()), (15_000, 15_000));
    control.on_undo();
    assert_eq!((control.cwnd(), control.ssthresh()), (40_000, 80_000));
    control.on_rto(&WindowReduction { used: 30_000, mss: MSS }, false);
    assert_eq!((control.cwnd(), control.ssthresh()), (1000, 15_000));
    control.on_rto(&WindowReduction { used: 3000, mss: MSS }, true);
    assert_eq!((control.cwnd(), control.ssthresh()), (1000, 15_000), "of the same segment: as it was");
    control.on_undo();
    assert_eq!((control.cwnd(), control.ssthresh()), (40_000, 80_000));
    control.on_loss(&WindowReduction { used: 1000, mss: MSS });
    assert_eq!(control.ssthresh(), 2000);
}
