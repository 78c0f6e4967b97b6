use super::rig::{MSS, SenderRig, setup};
use super::*;

const KIB: u32 = MSS as u32;

#[test]
fn initial_window_is_ten_segments_or_one_after_lost_syn() {
    let mut rig = SenderRig::new(&setup());
    rig.limit = 100;
    assert_eq!(rig.pump().len(), 10);
    assert_eq!(rig.sender.in_flight(), 10 * KIB);
    let mut rig = SenderRig::new(&Setup { was_syn_repeated: true, ..setup() });
    rig.limit = 100;
    assert_eq!(rig.pump().len(), 1);
}

#[test]
fn slow_start_doubles_the_window_each_round_trip() {
    let mut rig = SenderRig::new(&setup());
    rig.limit = 1000;
    for (round, window) in [(0, 10), (1, 20), (2, 40)] {
        let sent = rig.pump();
        assert_eq!(sent.len(), window, "round {round}");
        rig.wait_ms(100);
        let first = rig.segment(rig.sender.una());
        for ack in (first..first + window as u32).skip(1).step_by(2) {
            rig.ack(ack + 1, &[]);
        }
    }
}

#[test]
fn dividing_acknowledgments_gains_nothing() {
    let windows = [1, 1000].map(|parts: u32| {
        let mut rig = SenderRig::in_flight(&setup(), 10);
        rig.set_cwnd(10, 1000);
        rig.limit = 100;
        rig.wait_ms(100);
        assert_eq!(rig.next(), Permit::Nothing, "the window is full");
        for part in 1..=parts {
            let ack = rig.seq(0) + KIB * part / parts;
            rig.ack_with(0, &[], |segment| segment.ack = ack);
        }
        rig.sender.cwnd()
    });
    assert_eq!(windows[0], windows[1]);
    assert_eq!(windows[0], 11 * KIB);
}

#[test]
fn ack_and_sack_beyond_sent_data_are_ignored() {
    let mut rig = SenderRig::in_flight(&setup(), 10);
    let acked = rig.ack(11, &[(3, 5)]);
    assert!(acked.is_beyond && acked.bytes == 0);
    assert_eq!((rig.sender.in_flight(), rig.sender.cwnd()), (10 * KIB, 10 * KIB));
    assert_eq!(rig.records.counts.beyond, 1);
    rig.ack(0, &[(9, 12), (40, 30), (20, 22)]);
    assert_eq!(rig.sender.in_flight(), 10 * KIB, "SACK blocks beyond are passed over");
    assert_eq!(rig.records.counts.ignored_sacks, 3);
}

#[test]
fn cwnd_of_application_limited_stream_does_not_grow() {
    let mut rig = SenderRig::new(&Setup { algorithm: Algorithm::Cubic, ..setup() });
    for second in 0..40 {
        rig.limit += 3;
        assert_eq!(rig.pump().len(), 3);
        rig.wait_ms(100);
        rig.ack(3 * (second + 1), &[]);
        rig.wait_ms(900);
    }
    assert_eq!(rig.sender.cwnd(), 10 * KIB);
    let Book::Open(validate) = &rig.sender.book else { panic!("nothing was lost") };
    assert_eq!((validate.pipe_ack(), validate.is_unvalidated()), (Some(3 * KIB), true));
}

#[test]
fn cwnd_of_idle_sender_halves_every_five_minutes_to_initial() {
    for (minutes, window) in [(4, 80), (6, 40), (11, 20), (240, 10)] {
        let mut rig = SenderRig::in_flight(&setup(), 80);
        rig.wait_ms(100);
        rig.ack(80, &[]);
        rig.set_cwnd(80, 80);
        rig.wait_ms(minutes * 60_000);
        rig.limit = 300;
        assert_eq!(rig.pump().len(), window, "after {minutes} minutes");
    }
}

#[test]
fn ecn_echoes_of_one_window_reduce_cwnd_once() {
    let mut rig = SenderRig::in_flight(&setup(), 20);
    rig.limit = 100;
    rig.wait_ms(100);
    let reduced: Vec<bool> = (1..=20)
        .map(|ack| {
            let acked = rig.ack_with(ack, &[], |segment| segment.is_ece = true);
            rig.pump();
            acked.is_ecn_reduced
        })
        .collect();
    assert_eq!(reduced.iter().filter(|&&is| is).count(), 1);
    assert!(reduced[0]);
    assert_eq!(rig.sender.cwnd(), 10 * KIB);
    rig.wait_ms(100);
    assert!(rig.segment(rig.sender.nxt()) > 21);
    rig.ack(21, &[]);
    assert!(rig.ack_with(22, &[], |segment| segment.is_ece = true).is_ecn_reduced, "the next window");
}

#[test]
fn cwr_goes_with_the_first_new_segment() {
    let mut rig = SenderRig::in_flight(&setup(), 4);
    rig.wait_ms(100);
    rig.ack_with(2, &[], |segment| segment.is_ece = true);
    assert!(rig.sender.wants_cwr());
    rig.limit = 5;
    while rig.pump().is_empty() {
        let ack = rig.segment(rig.sender.una()) + 1;
        rig.ack(ack, &[]);
    }
    assert!(!rig.sender.wants_cwr());
}

#[test]
fn marks_mean_nothing_without_ecn() {
    let mut rig = SenderRig::in_flight(&Setup { has_ecn: false, ..setup() }, 20);
    rig.wait_ms(100);
    assert!(!rig.ack_with(1, &[], |segment| segment.is_ece = true).is_ecn_reduced);
}

//= RFC 3168 section 6.1.2
//= type=test
//# Therefore, the sending TCP MUST reset the
//# retransmit timer on receiving the ECN-Echo packet when the congestion
//# window is one.
#[test]
fn ecn_echo_at_minimum_window_waits_one_rto() {
    let mut rig = SenderRig::in_flight(&setup(), 2);
    rig.set_cwnd(1, 1);
    rig.limit = 10;
    rig.wait_ms(100);
    rig.ack_with(1, &[], |segment| segment.is_ece = true);
    rig.ack(2, &[]);
    let until = rig.now.plus_ns(rig.sender.rto_ns());
    let Permit::Wait(wait) = rig.next() else { panic!("{:?}", rig.next()) };
    assert!(wait.0.abs_diff(until.0) < 50_000_000, "about a time-out from now");
}

#[test]
fn new_data_without_free_record_is_not_permitted() {
    let mut rig = SenderRig::new(&setup());
    rig.records = Records::new(0);
    rig.limit = 5;
    assert_eq!(rig.next(), Permit::Nothing);
}

#[test]
fn bytes_are_free_when_acknowledged_and_given_back() {
    let mut rig = SenderRig::new(&setup());
    let start = rig.seq(0);
    for segment in 0..4 {
        let seq = rig.seq(segment);
        rig.sender.sent(&mut rig.records, rig.now, seq, MSS, false).expect("room");
    }
    rig.wait_ms(100);
    rig.ack(3, &[]);
    assert_eq!(rig.sender.free_until(&rig.records), start);
    let (second, first) = (rig.seq(1), rig.seq(0));
    rig.sender.device_done(&mut rig.records, second, MSS);
    assert_eq!(rig.sender.free_until(&rig.records), start);
    rig.sender.device_done(&mut rig.records, first, MSS);
    assert_eq!(rig.sender.free_until(&rig.records), rig.seq(2));
    let rest = rig.seq(2);
    rig.sender.device_done(&mut rig.records, rest, 2 * MSS);
    assert_eq!(rig.sender.free_until(&rig.records), rig.seq(3), "the last is not acknowledged");
    rig.sender.abandon(&mut rig.records);
    assert_eq!((rig.records.free_blocks(), rig.sender.due()), (64, None));
}

#[test]
fn too_big_retransmits_in_smaller_segments_without_reduction() {
    let mut rig = SenderRig::in_flight(&setup(), 4);
    let cwnd = rig.sender.cwnd();
    rig.sender.too_big(&mut rig.records, rig.now, 600);
    rig.sender.board.verify(&rig.records);
    let mut again = Vec::new();
    while let Permit::Retransmit { seq, len } = rig.next() {
        again.push((seq.since(rig::FIRST), len));
        rig.send(seq, len, true);
    }
    let pieces =
        [(0, 600), (600, 400), (1000, 600), (1600, 400), (2000, 600), (2600, 400), (3000, 600), (3600, 400)];
    assert_eq!(again, pieces);
    assert_eq!((rig.sender.cwnd(), rig.sender.mss()), (cwnd, 600), "no congestion");
    rig.wait_ms(100);
    rig.ack(4, &[]);
    assert_eq!(rig.records.free_blocks(), 64);
}

//= RFC 3042 section 2
//= type=test
//# The congestion window (cwnd) MUST NOT be changed when these new
//# segments are transmitted.
#[test]
fn limited_transmit_without_sack_precedes_fast_retransmit() {
    let mut rig = SenderRig::in_flight(&Setup { has_sack: false, ..setup() }, 10);
    rig.limit = 30;
    rig.wait_ms(100);
    assert!(!rig.ack(1, &[]).is_duplicate);
    assert_eq!(rig.pump(), [('N', 10)]);
    let cwnd = rig.sender.cwnd();
    for new in [11, 12] {
        assert!(rig.ack(1, &[]).is_duplicate);
        assert_eq!(rig.pump(), [('N', new)]);
        assert_eq!(rig.sender.cwnd(), cwnd);
    }
    rig.ack(1, &[]);
    assert_eq!(rig.pump()[0], ('R', 1));
    assert!(rig.sender.is_recovering() && rig.sender.cwnd() < cwnd);
    rig.ack_with(1, &[], |segment| segment.has_data = true);
    // A partial acknowledgment: the next hole (RFC 6582).
    rig.wait_ms(100);
    rig.ack(4, &[]);
    assert_eq!(rig.pump()[0], ('R', 4));
    rig.ack(13, &[]);
    assert!(!rig.sender.is_recovering());
}

#[test]
fn duplicate_acks_in_recovery_without_sack_permit_new_data() {
    let mut rig = SenderRig::in_flight(&Setup { has_sack: false, ..setup() }, 10);
    rig.limit = 40;
    rig.wait_ms(100);
    for _ in 0..4 {
        rig.ack(1, &[]);
        rig.pump();
    }
    assert!(rig.sender.is_recovering());
    let mut more = || {
        rig.ack(1, &[]);
        rig.pump().len()
    };
    let sent: usize = (0..6).map(|_| more()).sum();
    assert!((2..=4).contains(&sent), "{sent} for six that have left: half as many");
}

#[test]
fn duplicate_ack_count_without_sack_restarts_after_progress() {
    let mut rig = SenderRig::in_flight(&Setup { has_sack: false, ..setup() }, 10);
    rig.wait_ms(100);
    // Two of each: segments that arrived in another order.
    for ack in 1..5 {
        for _ in 0..3 {
            rig.ack(ack, &[]);
            assert_eq!(rig.pump(), []);
        }
    }
    assert!(!rig.sender.is_recovering());
}

#[test]
fn segment_with_data_or_new_window_is_not_a_duplicate_ack() {
    let mut rig = SenderRig::in_flight(&setup(), 10);
    rig.wait_ms(100);
    rig.ack(1, &[]);
    assert!(!rig.ack_with(1, &[], |segment| segment.has_data = true).is_duplicate);
    assert!(!rig.ack_with(1, &[], |segment| segment.window += 1000).is_duplicate);
    assert!(!rig.ack(2, &[]).is_duplicate);
    assert!(rig.ack(2, &[]).is_duplicate);
    rig.ack(10, &[]);
    assert!(!rig.ack(10, &[]).is_duplicate, "nothing is outstanding");
}

// RFC 2018 section 8: the receiver may drop data that it has reported.
#[test]
fn sack_reneging_causes_retransmission_after_timeout() {
    let mut rig = SenderRig::in_flight(&setup(), 4);
    rig.wait_ms(100);
    rig.ack(0, &[(1, 4)]);
    assert_eq!(rig.pump(), [('R', 0)]);
    rig.wait_ms(100);
    // Segment 0 has arrived, and the next one is expected, though it was reported.
    rig.ack(1, &[]);
    assert!(rig.pump().is_empty());
    let (_, fired) = rig.fire();
    assert_eq!(fired, Fired::TimedOut { times: 1 });
    assert_eq!(rig.records.counts.reneged, 1);
    assert_eq!(rig.pump()[0], ('R', 1));
}

//= RFC 6298 section 5
//= type=test
//# The host MUST set RTO <- RTO * 2 ("back off the timer").
//= RFC 9293 section 3.8.1
//= type=test
//# The RTO MUST be computed according to the algorithm in [10],
//# including Karn's algorithm for taking RTT samples (MUST-18).
#[test]
fn rto_doubles_per_timeout_until_new_rtt_sample() {
    let mut rig = SenderRig::in_flight(&Setup { has_sack: false, ..setup() }, 1);
    let mut waits = Vec::new();
    for times in 1..=5 {
        let (waited, fired) = rig.fire();
        assert_eq!(fired, Fired::TimedOut { times });
        assert_eq!(rig.pump(), [('R', 0)]);
        waits.push(waited);
    }
    assert!(waits.windows(2).all(|two| two[1].abs_diff(2 * two[0]) <= 2), "{waits:?}");
    rig.wait_ms(100);
    rig.ack(1, &[]);
    assert!(rig.sender.rto_ns() > 5_000_000_000, "a retransmission measures nothing");
    rig.limit = 2;
    rig.pump();
    rig.wait_ms(100);
    rig.ack(2, &[]);
    assert!(rig.sender.rto_ns() < 1_000_000_000);
}

//= RFC 6298 section 3
//= type=test
//# The
//# only case when TCP can safely take RTT samples from retransmitted
//# segments is when the TCP timestamp option [JBB92] is employed, since
//# the timestamp option removes the ambiguity regarding which instance
//# of the data segment triggered the acknowledgment.
#[test]
fn timestamp_echo_of_retransmission_gives_rtt_sample() {
    let mut rig = SenderRig::in_flight(&Setup { has_sack: false, ..setup() }, 1);
    rig.has_stamps = true;
    rig.fire();
    rig.pump();
    rig.fire();
    rig.pump();
    rig.wait_ms(180);
    rig.echo = Some(crate::rtt::stamp(Instant(rig.now.0 - 180_000_000)));
    rig.ack(1, &[]);
    let srtt_ms = rig.sender.srtt_ns().expect("measured") / 1_000_000;
    assert!((108..=112).contains(&srtt_ms), "7/8 of 100 and 1/8 of 180: {srtt_ms}");
    assert!(rig.sender.rto_ns() < 1_000_000_000);
}

#[test]
fn timestamp_echo_of_zero_gives_no_rtt_sample() {
    let mut rig = SenderRig::in_flight(&Setup { has_sack: false, ..setup() }, 1);
    rig.has_stamps = true;
    rig.fire();
    rig.pump();
    let before = rig.sender.srtt_ns();
    rig.wait_ms(180);
    rig.echo = Some(0);
    rig.ack(1, &[]);
    assert_eq!(rig.sender.srtt_ns(), before);
}

//= RFC 7323 section 4.1
//= type=test
//# RTTM Rule: A TSecr value received in a segment MAY be used to update
//# the averaged RTT measurement only if the segment advances
//# the left edge of the send window, i.e., SND.UNA is
//# increased.
#[test]
fn sacked_retransmission_gives_no_rtt_sample() {
    let mut rig = SenderRig::in_flight(&setup(), 10);
    rig.has_stamps = true;
    rig.wait_ms(100);
    rig.ack(0, &[(2, 8)]);
    assert_eq!(rig.pump()[..2], [('R', 0), ('R', 1)]);
    let before = (rig.sender.srtt_ns(), rig.sender.rto_ns());
    rig.echo = Some(crate::rtt::stamp(rig.now));
    rig.wait_ms(180);
    rig.ack(0, &[(1, 8)]);
    assert_eq!((rig.sender.srtt_ns(), rig.sender.rto_ns()), before);
    rig.ack(8, &[]);
    assert!(rig.sender.srtt_ns() > before.0, "now it does");
}

//= RFC 6298 section 5
//= type=test
//# An implementation MUST manage the retransmission timer(s) in such a
//# way that a segment is never retransmitted too early, i.e., less than
//# one RTO after the previous transmission of that segment.
#[test]
fn fast_retransmission_restarts_full_rto() {
    let mut rig = SenderRig::in_flight(&setup(), 10);
    rig.wait_ms(150);
    rig.ack(0, &[(1, 5)]);
    assert_eq!(rig.pump()[0], ('R', 0));
    let rto_ns = rig.sender.rto_ns();
    let due = rig.sender.due().expect("a timer");
    assert!(due.ns_since(rig.now) + 1_000_000 >= rto_ns, "{} of {rto_ns}", due.ns_since(rig.now));
}

#[test]
fn waiting_ns_counts_from_first_transmission() {
    let mut rig = SenderRig::in_flight(&setup(), 3);
    assert_eq!(rig.sender.waiting_ns(&rig.records, rig.now), Some(0));
    let start = rig.now;
    while !matches!(rig.fire().1, Fired::TimedOut { .. }) {}
    rig.pump();
    let waited = rig.sender.waiting_ns(&rig.records, rig.now).expect("in flight");
    assert!(waited.abs_diff(rig.now.ns_since(start)) < 10_000);
    rig.ack(3, &[]);
    assert_eq!(rig.sender.waiting_ns(&rig.records, rig.now), None);
}

#[test]
fn acknowledgments_may_be_merged_while_nothing_is_amiss() {
    let mut rig = SenderRig::in_flight(&setup(), 10);
    rig.wait_ms(100);
    rig.ack(1, &[]);
    assert!(rig.sender.may_merge_acks());
    rig.ack(1, &[(2, 6)]);
    assert!(!rig.sender.may_merge_acks());
}

#[test]
fn loss_with_unvalidated_window_halves_used_window() {
    let mut rig = SenderRig::new(&setup());
    rig.set_cwnd(100, 100);
    for round in 0..4 {
        rig.limit += 10;
        assert_eq!(rig.pump().len(), 10);
        rig.wait_ms(110);
        rig.ack(10 * (round + 1), &[]);
    }
    rig.limit += 10;
    rig.pump();
    rig.wait_ms(110);
    rig.ack(40, &[(42, 50)]);
    assert_eq!(rig.sender.ssthresh(), 5000, "half of ten, not of a hundred");
    assert_eq!(rig.pump()[..2], [('R', 40), ('R', 41)]);
    rig.wait_ms(110);
    rig.ack(50, &[]);
    assert_eq!(rig.sender.cwnd(), 4000, "less half of what was sent again");
}

//= RFC 5682 section 3.1
//= type=test
//# If the
//# TCP sender is not able to transmit any previously unsent data
//# -- either due to receiver window limitation or because it does
//# not have any new data to send -- the recommended action is to
//# refrain from entering step 3 of this algorithm.
#[test]
fn timeout_without_new_data_retransmits_at_once() {
    let timed_out = |limit| {
        let mut rig = SenderRig::in_flight(&setup(), 10);
        while !matches!(rig.fire().1, Fired::TimedOut { .. }) {
            rig.pump();
        }
        assert_eq!(rig.pump(), [('R', 0)]);
        rig.wait_ms(50);
        rig.limit = limit;
        rig.ack(1, &[]);
        rig
    };
    let mut rig = timed_out(10);
    assert_eq!(rig.pump()[0], ('R', 1));
    // One new segment decides as well as two.
    let mut rig = timed_out(11);
    assert_eq!(rig.pump(), [('N', 10)]);
    rig.wait_ms(50);
    assert!(rig.ack(2, &[]).is_spurious);
}
