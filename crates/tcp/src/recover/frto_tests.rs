use crate::sender::Fired;
use crate::sender::rig::{SenderRig, setup};

/// Ten segments; the first of them goes again after a time-out.
fn timed_out() -> SenderRig {
    let mut rig = SenderRig::in_flight(&setup(), 10);
    rig.sender.tlp.has_sample = false;
    rig.fire();
    assert!(matches!(rig.fire().1, Fired::TimedOut { times: 1 }));
    assert_eq!(rig.pump(), [('R', 0)]);
    assert_eq!(rig.sender.cwnd(), 1000);
    rig.limit = 100;
    rig
}

//= RFC 5682 section 3.1
//= type=test
//# b) If the Cumulative Acknowledgment field or a SACK information in
//# the ACK does not cover more than "RecoveryPoint" AND it
//# acknowledges data that was not acknowledged earlier (either
//# with cumulative acknowledgment or using SACK information),
//# declare the timeout spurious and set SpuriousRecovery to
//# SPUR_TO.
#[test]
fn frto_with_delayed_flight_declares_timeout_spurious() {
    let mut rig = timed_out();
    rig.wait_ms(10);
    assert!(!rig.ack(1, &[]).is_spurious);
    assert_eq!(rig.pump(), [('N', 10), ('N', 11)], "two new segments");
    let acked = rig.ack(2, &[]);
    assert!(acked.is_spurious && acked.is_undone);
    assert_eq!(rig.sender.cwnd(), 10_000);
    assert!(!rig.sender.is_recovering());
    assert_eq!(rig.sender.board.lost_bytes, 0);
    assert_eq!(rig.records.counts.spurious_timeouts, 1);
    assert!(rig.pump().iter().all(|&(kind, _)| kind == 'N'));
}

#[test]
fn frto_with_lost_flight_retransmits() {
    let mut rig = timed_out();
    rig.wait_ms(100);
    rig.ack(1, &[]);
    assert_eq!(rig.pump(), [('N', 10), ('N', 11)]);
    rig.wait_ms(100);
    let acked = rig.ack(1, &[(10, 11)]);
    assert!(!acked.is_spurious);
    assert!(rig.sender.cwnd() <= 3000);
    assert_eq!(rig.pump()[0], ('R', 1));
}

//= RFC 5682 section 3.1
//= type=test
//# a) If the Cumulative Acknowledgment field covers "RecoveryPoint"
//# but not more than "RecoveryPoint", revert to the conventional
//# RTO recovery and set the congestion window to no more than 2 *
//# MSS, like a regular TCP would do.
#[test]
fn frto_with_ack_of_all_data_is_not_spurious() {
    let mut rig = timed_out();
    rig.wait_ms(100);
    let acked = rig.ack(10, &[]);
    assert!(!acked.is_spurious && !rig.sender.is_recovering());
    assert!(rig.sender.cwnd() <= 2000, "{}", rig.sender.cwnd());
}

//= RFC 5682 section 3.1
//= type=test
//# If the
//# TCP sender is not able to transmit any previously unsent data
//# -- either due to receiver window limitation or because it does
//# not have any new data to send -- the recommended action is to
//# refrain from entering step 3 of this algorithm.
#[test]
fn frto_without_new_data_falls_back_to_rto_recovery() {
    let mut rig = timed_out();
    rig.limit = 10;
    rig.wait_ms(100);
    rig.ack(1, &[]);
    assert_eq!(rig.pump()[0], ('R', 1));
    assert!(!rig.ack(2, &[]).is_spurious);
}

//= RFC 5682 section 3.1
//= type=test
//# This algorithm
//# SHOULD NOT be applied if the TCP sender is already in loss recovery
//# when a retransmission timeout occurs.
#[test]
fn frto_during_loss_recovery_is_not_used() {
    let mut rig = SenderRig::in_flight(&setup(), 10);
    rig.limit = 10;
    rig.wait_ms(100);
    rig.ack(0, &[(1, 5)]);
    assert_eq!(rig.pump()[0], ('R', 0));
    while !matches!(rig.fire().1, Fired::TimedOut { .. }) {}
    rig.limit = 20;
    assert_eq!(rig.pump()[0], ('R', 0));
    rig.wait_ms(100);
    rig.ack(1, &[(1, 5)]);
    assert!(rig.pump().iter().all(|&(kind, _)| kind == 'R'));
}
