//! The sixth step, and urgent data that goes out.

use super::*;

#[test]
fn urgent_data_is_told_once_and_delivered_in_line() {
    //= RFC 9293 section 3.8.5
    //= type=test
    //# However, TCP implementations MUST still include support for the
    //# urgent mechanism (MUST-30).
    //= RFC 9293 section 3.8.5
    //= type=test
    //# A TCP implementation MUST support a sequence of urgent data of any
    //# length (MUST-31) [19].
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# If the URG bit is set, RCV.UP <- max(RCV.UP,SEG.UP), and
    //# signal the user that the remote side has urgent data if the
    //# urgent pointer (RCV.UP) is in advance of the data consumed.
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    rig.connection.take_happened();
    let urgent = Segment { urgent: 6, ..rig.segment(Flags::ACK.with(Flags::URG)) };
    rig.arrives(&with(urgent, b"abc"));
    assert!(rig.connection.take_happened().has(Happened::URGENT));
    //= RFC 9293 section 3.8.5
    //= type=test
    //# The TCP implementation MUST (MUST-33)
    //# provide a way for the application to learn how much urgent data
    //# remains to be read from the connection, or at least to determine
    //# whether more urgent data remains to be read [19].
    assert_eq!(rig.connection.urgent_bytes(), 6);
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# If the user has already been signaled (or is still in the
    //# "urgent mode") for this continuous sequence of urgent data,
    //# do not signal the user again.
    let same = Segment { urgent: 3, ..rig.segment(Flags::ACK.with(Flags::URG)) };
    rig.arrives(&with(same, b"de"));
    assert!(!rig.connection.take_happened().has(Happened::URGENT));
    //= RFC 9293 section 3.8.5
    //= type=test
    //# A TCP implementation MUST (MUST-32) inform the application layer
    //# asynchronously whenever it receives an urgent pointer and there was
    //# previously no pending urgent data, or whenever the urgent pointer
    //# advances in the data stream.
    let more = Segment { urgent: 3, ..rig.segment(Flags::ACK.with(Flags::URG)) };
    rig.arrives(&with(more, b"fgh"));
    assert!(rig.connection.take_happened().has(Happened::URGENT));
    assert_eq!(rig.connection.urgent_bytes(), 8);
    assert_eq!(rig.read(), b"abcdefgh");
    assert_eq!(rig.connection.urgent_bytes(), 0);
    let again = Segment { urgent: 1, ..rig.segment(Flags::ACK.with(Flags::URG)) };
    rig.arrives(&with(again, b"i"));
    assert!(rig.connection.take_happened().has(Happened::URGENT));
}

#[test]
fn urgent_pointers_after_a_fin_are_ignored() {
    for state in [ConnectionState::CloseWait, ConnectionState::Closing, ConnectionState::LastAck] {
        //= RFC 9293 section 3.10.7.4
        //= type=test
        //# This should not occur since a FIN has been received from the
        //# remote side.  Ignore the URG.
        let mut rig = ConnectionRig::new(state);
        rig.connection.take_happened();
        let una = rig.connection.snd_una();
        rig.arrives(&Segment { urgent: 9, ..rig.segment(Flags::ACK.with(Flags::URG)).acks(una) });
        assert_eq!((rig.connection.take_happened(), rig.connection.urgent_bytes()), (Happened::default(), 0));
    }
}

#[test]
fn urgent_data_that_goes_out_is_pointed_behind() {
    //= RFC 9293 section 3.8.5
    //= type=test
    //# The urgent pointer MUST point to the sequence number of the octet
    //# following the urgent data (MUST-62).
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    rig.write(&[1; 2000]);
    rig.connection.mark_urgent();
    rig.write(&[2; 1000]);
    let sent = rig.sent();
    let pointers: Vec<_> =
        sent.iter().map(|sent| (sent.head.flags.has(Flags::URG), sent.head.urgent)).collect();
    assert_eq!(pointers, [(true, 2000), (true, 540), (false, 0)]);
}
