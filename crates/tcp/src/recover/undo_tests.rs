use crate::rtt::stamp;
use crate::sender::Setup;
use crate::sender::rig::{SenderRig, setup};

/// Segment 0 was overtaken by three others, and sent again; so was segment 1, unless there is only one.
fn overtaken(has_stamps: bool) -> SenderRig {
    let mut rig = SenderRig::in_flight(&setup(), 10);
    rig.limit = 12;
    rig.has_stamps = has_stamps;
    rig.wait_ms(100);
    rig.ack(0, &[(1, 5)]);
    assert_eq!(rig.pump(), [('R', 0)]);
    assert_eq!(rig.sender.cwnd(), 5000);
    rig
}

//= RFC 3522 section 3.2
//= type=test
//# (4)     If the value of the Timestamp Echo Reply field of the
//# acceptable ACK's Timestamps option is smaller than the
//# value of RetransmitTS, then proceed to step (5),
//# else proceed to step (DONE).
#[test]
fn timestamp_echo_of_original_undoes_reduction() {
    let mut rig = overtaken(true);
    rig.wait_ms(5);
    let acked = rig.ack(5, &[]);
    assert!(acked.is_undone && !acked.is_spurious);
    assert_eq!(rig.sender.cwnd(), 10_000);
    assert!(!rig.sender.is_recovering());
}

#[test]
fn timestamp_echo_of_retransmission_keeps_reduction() {
    let mut rig = overtaken(true);
    rig.echo = Some(stamp(rig.now));
    rig.wait_ms(100);
    let acked = rig.ack(5, &[]);
    assert!(!acked.is_undone);
    assert_eq!(rig.sender.cwnd(), 5000);
}

//= RFC 3522 section 3.2
//= type=test
//# (5)     If the acceptable ACK carries a DSACK option [RFC2883],
//# then proceed to step (DONE),
#[test]
fn timestamp_echo_with_partial_dsack_keeps_reduction() {
    let mut rig = overtaken(true);
    rig.wait_ms(5);
    rig.sender.undo.sent(0);
    let acked = rig.ack(5, &[(0, 1)]);
    assert!(!acked.is_undone, "one of two was reported");
}

#[test]
fn reports_of_all_retransmissions_as_duplicates_take_the_reduction_back() {
    let mut rig = overtaken(false);
    rig.wait_ms(5);
    assert!(!rig.ack(5, &[]).is_undone);
    rig.wait_ms(95);
    let acked = rig.ack(5, &[(0, 1)]);
    assert!(acked.is_dsack && acked.is_undone);
    assert_eq!(rig.sender.cwnd(), 10_000);
}

#[test]
fn dsack_arriving_too_late_undoes_nothing() {
    let mut rig = overtaken(false);
    rig.wait_ms(5);
    rig.ack(10, &[]);
    rig.limit = 14;
    rig.pump();
    rig.wait_ms(100);
    rig.ack(14, &[]);
    rig.limit = 16;
    rig.pump();
    rig.wait_ms(100);
    rig.ack(16, &[]);
    let acked = rig.ack(16, &[(0, 1)]);
    assert!(acked.is_dsack && !acked.is_undone);
}

#[test]
fn timeout_of_delayed_segment_is_spurious_by_timestamp_echo() {
    let mut rig = SenderRig::in_flight(&Setup { has_sack: false, ..setup() }, 10);
    rig.has_stamps = true;
    rig.echo = Some(stamp(rig.now));
    rig.fire();
    assert_eq!(rig.pump(), [('R', 0)]);
    rig.wait_ms(10);
    let acked = rig.ack(1, &[]);
    assert!(acked.is_undone && acked.is_spurious);
    assert_eq!(rig.sender.cwnd(), 10_000);
    assert_eq!(rig.sender.board.lost_bytes, 0);
}
