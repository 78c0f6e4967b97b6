use crate::recover::records::LOST;
use crate::sender::rig::{SenderRig, setup};
use crate::sender::{Fired, Setup};

/// Window of ten: each segment leaves a millisecond after the one before; 100 ms later `now` is
/// when the first one's acknowledgment comes.
fn spaced(segments: u32) -> SenderRig {
    let mut rig = SenderRig::new(&setup());
    rig.set_cwnd(segments, segments);
    for segment in 1..=segments {
        rig.limit = segment;
        assert_eq!(rig.pump(), [('N', segment - 1)]);
        rig.wait_ms(1);
    }
    rig.wait_ms(u64::from(100 - segments));
    rig
}

//= RFC 8985 section 3.3.2
//= type=test
//# The reordering window SHOULD be set to zero if no reordering has
//# been observed on the connection so far, and either (a) three
//# segments have been SACKed since the last recovery or (b) the
//# sender is already in fast or RTO recovery.
#[test]
fn rack_with_three_sacked_segments_marks_loss_at_once() {
    let mut rig = spaced(10);
    rig.wait_ms(1);
    assert_eq!(rig.ack(0, &[(1, 2)]).lost_bytes, 0);
    rig.wait_ms(1);
    assert_eq!(rig.ack(0, &[(1, 3)]).lost_bytes, 0);
    rig.wait_ms(1);
    let acked = rig.ack(0, &[(1, 4)]);
    assert_eq!(acked.lost_bytes, 1000);
    assert!(rig.sender.is_recovering());
    assert_eq!(rig.pump()[0], ('R', 0));
}

//= RFC 8985 section 6.2
//= type=test
//# In turn, that is equivalent to stating that a RACK sender should
//# declare a segment lost when:
//#
//# Segment.xmit_ts + RACK.rtt + RACK.reo_wnd - now <= 0
#[test]
fn rack_with_single_sacked_segment_waits_quarter_rtt() {
    let mut rig = spaced(10);
    rig.wait_ms(1);
    rig.ack(0, &[(1, 2)]);
    let (waited, fired) = rig.fire();
    // Sent at 0; round trip 100 ms, a quarter of it on top; 101 have passed.
    assert_eq!((waited, fired), (24, Fired::Reordering));
    assert_eq!(rig.pump()[0], ('R', 0));
    assert_eq!(rig.records.counts.timeouts, 0);
}

#[test]
fn rack_does_not_mark_segments_sent_after_delivered_one() {
    let mut rig = spaced(10);
    rig.wait_ms(3);
    rig.ack(0, &[(1, 4)]);
    assert_eq!(rig.pump()[0], ('R', 0));
    assert_eq!(rig.sender.board.lost_bytes, 0, "segments 4 to 9 were sent after 3");
}

#[test]
fn rack_with_equal_send_times_compares_sequence_numbers() {
    let mut rig = SenderRig::in_flight(&setup(), 10);
    rig.wait_ms(100);
    let acked = rig.ack(0, &[(4, 7)]);
    assert_eq!(acked.lost_bytes, 4000, "0 to 3, not 7 to 9");
}

//= RFC 8985 section 6.2
//= type=test
//# If a never-retransmitted segment
//# that's below RACK.fack is (selectively or cumulatively) acknowledged,
//# it has been delivered out of order.
#[test]
fn reordering_that_was_seen_is_waited_for() {
    let mut rig = spaced(10);
    rig.wait_ms(1);
    rig.ack(0, &[(1, 2)]);
    rig.wait_ms(1);
    rig.ack(3, &[]);
    rig.wait_ms(6);
    let acked = rig.ack(3, &[(4, 8)]);
    assert_eq!(acked.lost_bytes, 0, "three segments behind the hole, but segments overtake each other here");
    let (waited, fired) = rig.fire();
    assert_eq!((waited, fired), (21, Fired::Reordering));
    assert_eq!(rig.pump()[0], ('R', 3));
}

#[test]
fn rack_detects_lost_retransmission_by_later_segments() {
    let mut rig = spaced(10);
    rig.wait_ms(5);
    rig.ack(0, &[(2, 5)]);
    assert_eq!(rig.pump()[..1], [('R', 0)]);
    rig.wait_ms(1);
    rig.ack(0, &[(2, 6)]);
    rig.wait_ms(1);
    rig.ack(0, &[(2, 8)]);
    assert_eq!(rig.pump(), [('R', 1)]);
    rig.wait_ms(102);
    let acked = rig.ack(0, &[(1, 8)]);
    assert_eq!(acked.lost_bytes, 3000, "0 again, and 8 and 9, which were sent before");
    assert_eq!(rig.pump()[0], ('R', 0));
    assert_eq!(rig.records.counts.timeouts, 0);
}

//= RFC 8985 section 6.2
//= type=test
//# To avoid spurious inferences, ignore a segment as invalid if any of
//# its sequence range has been retransmitted before and if either of two
//# conditions is true:
#[test]
fn rack_ignores_late_ack_of_original_after_retransmission() {
    for has_stamps in [false, true] {
        let mut rig = spaced(10);
        rig.has_stamps = has_stamps;
        rig.wait_ms(3);
        rig.ack(0, &[(1, 4)]);
        assert_eq!(rig.pump()[0], ('R', 0));
        rig.wait_ms(3);
        // The original was late by 6 ms only.
        rig.ack(4, &[]);
        assert!(rig.sender.min_rtt_ns() > Some(90_000_000));
        assert_eq!(rig.sender.board.lost_bytes, 0, "4 to 9 were sent before the retransmission");
    }
}

//= RFC 8985 section 3.3.2
//= type=test
//# The RACK reordering window MUST be bounded, and this bound SHOULD
//# be SRTT.
#[test]
fn duplicates_widen_the_window_once_a_round_trip_up_to_the_round_trip() {
    let mut rig = SenderRig::new(&setup());
    rig.set_cwnd(4, 4);
    let mut waits = Vec::new();
    for round in 0..6 {
        let first = round * 4;
        rig.limit = first + 4;
        assert_eq!(rig.pump().len(), 4);
        rig.wait_ms(100);
        // Two reports in one round trip count as one.
        rig.ack(first + 1, &[(first, first + 1)]);
        rig.ack(first + 2, &[(first, first + 1)]);
        rig.ack(first + 2, &[(first + 3, first + 4)]);
        waits.push(rig.sender.due().expect("a timer").ns_since(rig.now) / 1_000_000);
        rig.ack(first + 4, &[]);
    }
    let near = |is: &u64, wanted: u64| is.abs_diff(wanted) <= 2;
    let wanted = [50, 75, 100, 100, 100, 100];
    assert!(waits.iter().zip(wanted).all(|(is, wanted)| near(is, wanted)), "{waits:?}");
}

#[test]
fn reordering_window_is_reset_after_sixteen_recoveries() {
    let mut rig = SenderRig::new(&setup());
    let rack = &mut rig.sender.rack;
    rack.mult = 5;
    for _ in 0..15 {
        rack.recovery_ended();
    }
    assert_eq!(rack.mult, 5);
    rack.recovery_ended();
    assert_eq!(rack.mult, 1);
}

//= RFC 8985 section 6.3
//= type=test
//# Upon RTO timer expiration, RACK marks the first outstanding segment
//# as lost (since it was sent an RTO ago); for all the other segments,
//# RACK only marks the segment as lost if the time elapsed since the
//# segment was transmitted is at least the sum of the recent RTT and the
//# reordering window.
#[test]
fn timeout_marks_first_and_old_enough_segments_lost() {
    let mut rig = SenderRig::new(&Setup { has_sack: false, ..setup() });
    rig.set_cwnd(10, 10);
    rig.limit = 3;
    rig.pump();
    let due = rig.sender.due().expect("a timer");
    rig.now = millrace_core::time::Instant(due.0 - 10_000_000);
    rig.limit = 6;
    rig.pump();
    assert_eq!(rig.fire(), (10, Fired::TimedOut { times: 1 }));
    let board = &rig.sender.board;
    assert_eq!((board.lost_bytes, board.flying_bytes), (3000, 3000));
    assert!(board.first(&rig.records).expect("the first").is(LOST));
    assert_eq!(rig.pump(), [('R', 0)]);
}
