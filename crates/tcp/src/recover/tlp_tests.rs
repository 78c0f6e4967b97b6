use crate::sender::rig::{SenderRig, setup};
use crate::sender::{Fired, Permit};

/// Four segments; the first of them is acknowledged after 100 ms.
fn tail() -> SenderRig {
    let mut rig = SenderRig::in_flight(&setup(), 4);
    rig.wait_ms(100);
    rig.ack(1, &[]);
    rig
}

// The example of RFC 8985 section 3.4, with one retransmission lost as well.
#[test]
fn tail_loss_is_repaired_by_probe_without_timeout() {
    let mut rig = tail();
    let (waited, fired) = rig.fire();
    assert_eq!(fired, Fired::Probe);
    assert!((198..=202).contains(&waited), "two round trips: {waited}");
    assert_eq!(rig.pump(), [('P', 3)]);
    rig.wait_ms(100);
    rig.ack(1, &[(3, 4)]);
    let mut sent = rig.pump();
    if sent.len() < 2 {
        rig.wait_ms(1);
        sent.extend(rig.pump());
    }
    assert_eq!(sent[0], ('R', 1));
    rig.wait_ms(100);
    if sent.len() == 2 {
        rig.ack(1, &[(2, 4)]);
        assert_eq!(rig.pump(), [('R', 1)]);
        rig.wait_ms(100);
    }
    rig.ack(4, &[]);
    assert_eq!(rig.records.counts.timeouts, 0);
    assert_eq!(rig.sender.due(), None);
}

//= RFC 8985 section 7.3
//= type=test
//# If both conditions are met, then the sender SHOULD transmit a
//# previously unsent data segment, if one exists and the receive window
//# allows, and increment the FlightSize accordingly.
#[test]
fn loss_probe_sends_new_data_regardless_of_cwnd() {
    let mut rig = tail();
    rig.set_cwnd(3, 3);
    rig.limit = 5;
    assert_eq!(rig.next(), Permit::Nothing);
    assert_eq!(rig.fire().1, Fired::Probe);
    assert_eq!(rig.pump(), [('P', 4)]);
    assert_eq!(rig.sender.in_flight(), 4000);
}

#[test]
fn loss_probe_with_window_for_part_of_segment_sends_last_one_again() {
    let mut rig = tail();
    assert_eq!(rig.fire().1, Fired::Probe);
    let limit = rig.seq(4) + 600;
    let clipped = rig.sender.next(&mut rig.records, rig.now, limit, true);
    assert_eq!(clipped, Permit::Probe { seq: rig.seq(3), len: 1000, is_new: false });
    let last = rig.sender.next(&mut rig.records, rig.now, limit, false);
    assert_eq!(last, Permit::Probe { seq: rig.seq(4), len: 600, is_new: true }, "there is no more");
}

//= RFC 8985 section 7.3
//= type=test
//# After attempting to send a loss probe, regardless of whether a loss
//# probe was sent, the sender MUST re-arm the RTO timer, not the PTO
//# timer, if the FlightSize is not zero.
#[test]
fn loss_probe_rearms_retransmission_timer() {
    let mut rig = tail();
    rig.fire();
    rig.pump();
    let rto_ms = rig.sender.rto_ns() / 1_000_000;
    let (waited, fired) = rig.fire();
    assert_eq!(fired, Fired::TimedOut { times: 1 });
    assert!(waited.abs_diff(rto_ms) <= 1, "{waited}");
}

//= RFC 8985 section 7.3
//= type=test
//# When the PTO timer expires, the sender MUST check whether both of the
//# following conditions are met before sending a loss probe:
#[test]
fn loss_probe_is_not_repeated_before_new_rtt_sample() {
    let mut rig = tail();
    rig.sender.tlp.has_sample = false;
    assert_eq!(rig.fire().1, Fired::Nothing);
    assert!(rig.pump().is_empty());
    assert!(matches!(rig.fire().1, Fired::TimedOut { .. }));
}

#[test]
fn loss_probe_of_single_segment_waits_for_delayed_ack() {
    let mut rig = SenderRig::in_flight(&setup(), 1);
    let (waited, fired) = rig.fire();
    // The time-out (100 ms + 4 * 50 ms) comes before 2 * 100 + 200 ms.
    assert_eq!((waited, fired), (300, Fired::Probe));
}

//= RFC 8985 section 7.4.2
//= type=test
//# If the TLP
//# sender does not receive such an indication, then it MUST assume that
//# the original data segment, the TLP retransmission, or a corresponding
//# ACK was lost for congestion control purposes.
#[test]
fn loss_probe_that_repaired_a_loss_reduces_window() {
    let probed = || {
        let mut rig = tail();
        rig.set_cwnd(10, 10);
        rig.fire();
        assert_eq!(rig.pump(), [('P', 3)]);
        rig.wait_ms(100);
        rig
    };
    // One acknowledgment of all, and no report that the probe came twice; new data confirms it.
    let mut rig = probed();
    rig.ack(4, &[]);
    assert_eq!(rig.sender.cwnd(), 10_000);
    rig.limit = 5;
    rig.pump();
    rig.wait_ms(100);
    rig.ack(5, &[]);
    assert!(rig.sender.cwnd() < 10_000, "{}", rig.sender.cwnd());
    // Case 1: reported as a duplicate.
    let mut rig = probed();
    rig.ack(4, &[(3, 4)]);
    rig.limit = 5;
    rig.pump();
    rig.wait_ms(100);
    rig.ack(5, &[]);
    assert_eq!(rig.sender.cwnd(), 10_000);
    // Case 2: a duplicate acknowledgment without SACK.
    let mut rig = probed();
    rig.ack(4, &[]);
    rig.ack(4, &[]);
    rig.limit = 5;
    rig.pump();
    rig.wait_ms(100);
    rig.ack(5, &[]);
    assert_eq!(rig.sender.cwnd(), 10_000);
}
