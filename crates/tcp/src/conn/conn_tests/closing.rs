//! The eighth step, CLOSE, and the ways to TIME-WAIT and CLOSED.

use super::*;

#[test]
fn fin_from_peer_changes_state_and_is_acknowledged() {
    let ways = [
        (ConnectionState::Established, ConnectionState::CloseWait),
        (ConnectionState::FinWait1, ConnectionState::Closing),
        (ConnectionState::FinWait2, ConnectionState::TimeWait),
    ];
    for (from, to) in ways {
        //= RFC 9293 section 3.10.7.4
        //= type=test
        //# If the FIN bit is set, signal the user "connection closing" and
        //# return any pending RECEIVEs with same message, advance RCV.NXT
        //# over the FIN, and send an acknowledgment for the FIN.
        let mut rig = ConnectionRig::new(from);
        let una = rig.connection.snd_una();
        let fin = with(rig.segment(Flags::ACK.with(Flags::FIN)).acks(una), b"end");
        let next = rig.connection.rcv_nxt();
        assert_eq!(rig.arrives(&fin), None);
        assert_eq!((rig.state(), rig.connection.rcv_nxt()), (to, next + 4));
        assert!(rig.connection.take_happened().has(Happened::PEER_CLOSED));
        assert_eq!(rig.read(), b"end");
        if to != ConnectionState::TimeWait {
            assert_eq!(rig.sent().last().unwrap().head.ack, next + 4);
            // Again: it is outside the window now.
            rig.only_acks(&fin);
        }
    }
}

#[test]
fn fin_acknowledging_own_fin_enters_time_wait() {
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# If our FIN has been ACKed (perhaps in this segment), then
    //# enter TIME-WAIT, start the time-wait timer, turn off the
    //# other timers; otherwise, enter the CLOSING state.
    let mut rig = ConnectionRig::new(ConnectionState::FinWait1);
    assert_eq!(rig.arrives(&rig.segment(Flags::ACK.with(Flags::FIN))), None);
    assert_eq!(
        (rig.state(), rig.call(|connection, env| connection.due(env))),
        (ConnectionState::TimeWait, None)
    );
}

#[test]
fn fin_out_of_order_waits_for_missing_data() {
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    let first = rig.segment(Flags::ACK);
    let fin = with(Segment { flags: Flags::ACK.with(Flags::FIN), ..first }.at(IRS + 4), b"def");
    rig.arrives(&fin);
    assert_eq!(rig.state(), ConnectionState::Established);
    rig.arrives(&with(first, b"abc"));
    assert_eq!((rig.state(), rig.read()), (ConnectionState::CloseWait, b"abcdef".to_vec()));
}

#[test]
fn ack_of_own_fin_advances_closing_states() {
    let ways = [
        (ConnectionState::FinWait1, ConnectionState::FinWait2),
        (ConnectionState::Closing, ConnectionState::TimeWait),
        (ConnectionState::LastAck, ConnectionState::Closed),
    ];
    for (from, to) in ways {
        let mut rig = ConnectionRig::new(from);
        let nxt = rig.connection.snd_nxt();
        assert_eq!(rig.arrives(&rig.segment(Flags::ACK).acks(nxt - 1)), None);
        assert_eq!(rig.state(), from);
        assert_eq!(rig.arrives(&rig.segment(Flags::ACK).acks(nxt)), None);
        assert_eq!((rig.state(), rig.connection.reason()), (to, Reason::Finished));
        assert_eq!(rig.sent(), []);
    }
}

#[test]
fn close_with_queued_data_sends_fin_after_it() {
    for (state, before, after) in [
        (ConnectionState::Established, ConnectionState::FinWait1, ConnectionState::FinWait1),
        (ConnectionState::CloseWait, ConnectionState::CloseWait, ConnectionState::LastAck),
    ] {
        //= RFC 9293 section 3.10.4
        //= type=test
        //# Queue this until all preceding SENDs have been segmentized, then
        //# form a FIN segment and send it.  In any case, enter FIN-WAIT-1
        //# state.
        let mut rig = ConnectionRig::new(state);
        rig.write(&[1; 2000]);
        assert!(rig.call(Connection::close));
        assert_eq!(rig.state(), before);
        assert!(!rig.connection.may_send() && !rig.call(Connection::close));
        let sent = rig.sent();
        assert_eq!(sent.iter().map(|sent| sent.payload.len()).collect::<Vec<_>>(), [1460, 540]);
        assert!(!sent[0].head.flags.has(Flags::FIN) && sent[1].head.flags.has(Flags::FIN));
        assert_eq!((rig.state(), rig.connection.snd_nxt()), (after, ISS + 2002));
    }
}

#[test]
fn fin_lost_is_retransmitted_with_its_data() {
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    rig.write(b"end");
    rig.close();
    let sent = rig.pass_ms(30_000);
    assert!(sent.len() >= 2);
    for sent in sent {
        assert_eq!((sent.payload.as_slice(), sent.head.seq), (&b"end"[..], ISS + 1));
        assert!(sent.head.flags.has(Flags::FIN));
    }
    let mut rig = ConnectionRig::new(ConnectionState::LastAck);
    let sent = rig.pass_ms(30_000);
    assert!(
        sent.len() >= 2 && sent.iter().all(|sent| sent.head.flags.has(Flags::FIN) && sent.payload.is_empty())
    );
}

#[test]
fn half_closed_connections_still_take_and_send() {
    let mut rig = ConnectionRig::new(ConnectionState::FinWait2);
    rig.arrives(&with(rig.segment(Flags::ACK), b"late"));
    assert_eq!(rig.read(), b"late");
    let mut rig = ConnectionRig::new(ConnectionState::CloseWait);
    rig.write(b"answer");
    assert_eq!(rig.sent()[0].payload, b"answer");
}

#[test]
fn simultaneous_close_passes_through_closing() {
    // RFC 9293 figure 13.
    let mut rig = ConnectionRig::new(ConnectionState::FinWait1);
    let fin = rig.segment(Flags::ACK.with(Flags::FIN)).acks(ISS + 1);
    assert_eq!(rig.arrives(&fin), None);
    assert_eq!(rig.state(), ConnectionState::Closing);
    let sent = rig.sent();
    assert_eq!((sent.len(), sent[0].head.flags, sent[0].head.ack), (1, Flags::ACK, IRS + 2));
    assert_eq!(rig.arrives(&rig.segment(Flags::ACK)), None);
    assert_eq!(rig.state(), ConnectionState::TimeWait);
}

#[test]
fn data_for_an_application_that_has_let_go_is_reset() {
    //= RFC 9293 section 3.6.1
    //= type=test
    //# If such a host issues a CLOSE call while
    //# received data is still pending in the TCP connection, or if new data
    //# is received after CLOSE is called, its TCP implementation SHOULD send
    //# a RST to show that data was lost (SHLD-3).
    for expected_sum in [None, Some(millrace_core::wire::checksum::sum16(b"abc"))] {
        let mut rig = ConnectionRig::new(ConnectionState::FinWait2);
        rig.connection.marks.insert(Marks::ORPHAN);
        let data = with(rig.segment(Flags::ACK), b"abc");
        let arrival = SegmentArrival { at: rig.now, is_marked: false, expected_sum };
        let reset = rig.call(|connection, env| connection.arrive(env, &data, arrival)).unwrap();
        assert!(reset.flags.has(Flags::RST) && reset.seq == rig.connection.snd_nxt());
        assert_eq!(rig.state(), ConnectionState::Closed);
    }
}

#[test]
fn data_that_nobody_will_read_is_refused_and_a_fin_is_taken() {
    for payload in [&b""[..], b"abc"] {
        let mut rig = ConnectionRig::new(ConnectionState::FinWait2);
        rig.connection.marks.insert(Marks::ORPHAN);
        let reset = rig.arrives(&with(rig.segment(Flags::FIN.with(Flags::ACK)), payload));
        let is_refused = !payload.is_empty();
        assert_eq!(reset.is_some_and(|head| head.flags.has(Flags::RST)), is_refused);
        assert_eq!(rig.state(), if is_refused { ConnectionState::Closed } else { ConnectionState::TimeWait });
    }
}
