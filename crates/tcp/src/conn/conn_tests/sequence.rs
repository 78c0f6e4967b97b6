//! The first step: sequence numbers and time stamps; and the seventh, which takes the text in.

use super::*;

#[test]
fn segment_outside_window_is_acknowledged_and_dropped() {
    for state in SYNCHRONIZED.into_iter().chain([ConnectionState::SynReceived]) {
        //= RFC 9293 section 3.10.7.4
        //= type=test
        //# If an incoming segment is not acceptable, an acknowledgment
        //# should be sent in reply (unless the RST bit is set, if so
        //# drop the segment and return):
        let mut rig = ConnectionRig::new(state);
        let next = rig.connection.rcv_nxt();
        for seq in [next - 3, next + (1 << 17), next - (1 << 20)] {
            if state == ConnectionState::SynReceived {
                // Its ACKs do not go on their own before the SYN,ACK is acknowledged.
                continue;
            }
            rig.only_acks(&with(rig.segment(Flags::ACK).at(seq), b"abc"));
            rig.only_acks(&rig.segment(Flags::ACK).at(seq));
            rig.only_acks(&rig.segment(Flags::ACK.with(Flags::FIN)).at(seq));
        }
        assert_eq!(rig.read(), b"");
    }
}

#[test]
fn text_is_taken_where_the_peer_may_send_and_ignored_elsewhere() {
    for state in SYNCHRONIZED {
        let mut rig = ConnectionRig::new(state);
        let una = rig.connection.snd_una();
        let data = with(rig.segment(Flags::ACK.with(Flags::PSH)).acks(una), b"abc");
        assert_eq!(rig.arrives(&data), None);
        //= RFC 9293 section 3.10.7.4
        //= type=test
        //# This should not occur since a FIN has been received from the
        //# remote side.  Ignore the segment text.
        let takes = matches!(
            state,
            ConnectionState::Established | ConnectionState::FinWait1 | ConnectionState::FinWait2
        );
        let expected: &[u8] = if takes { b"abc" } else { b"" };
        assert_eq!((rig.read(), rig.state()), (expected.to_vec(), state));
    }
}

#[test]
fn segment_starting_with_old_bytes_delivers_only_new_ones() {
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# If a segment's
    //# contents straddle the boundary between old and new, only the
    //# new parts are processed.
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    let first = rig.segment(Flags::ACK);
    rig.arrives(&with(first, b"abc"));
    rig.arrives(&with(first, b"xxxdef"));
    assert_eq!(rig.read(), b"abcdef");
}

#[test]
fn early_text_waits_and_is_told_by_sack() {
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# Segments with higher
    //# beginning sequence numbers SHOULD be held for later
    //# processing (SHLD-31).
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    let first = rig.segment(Flags::ACK);
    rig.arrives(&with(first.at(IRS + 4), b"def"));
    let sent = rig.sent();
    assert_eq!((sent.len(), sent[0].head.ack), (1, IRS + 1));
    assert_eq!(sent[0].head.options.sacks.blocks(), [(IRS + 4, IRS + 7)]);
    rig.arrives(&with(first, b"abc"));
    assert_eq!((rig.sent()[0].head.ack, rig.read()), (IRS + 7, b"abcdef".to_vec()));
}

#[test]
fn zero_receive_window_still_accepts_ack_and_rst() {
    let mut rig = ConnectionRig::established_with(Config { receive_bytes: 1000, ..plain_config() });
    rig.write(b"abc");
    rig.sent();
    let segment = rig.segment(Flags::ACK).acks(ISS + 1);
    rig.arrives(&with(segment, &[5; 1000]));
    rig.sent();
    assert_eq!(rig.connection.rcv_wnd(), 0);
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# If the RCV.WND is zero, no segments will be acceptable, but
    //# special allowance should be made to accept valid ACKs, URGs,
    //# and RSTs.
    let next = rig.connection.rcv_nxt();
    let probe = with(rig.segment(Flags::ACK).acks(ISS + 4), b"x");
    assert_eq!(rig.arrives(&probe), None);
    let sent = rig.sent();
    assert_eq!((sent.len(), sent[0].head.ack, sent[0].head.window), (1, next, 0));
    assert_eq!(rig.connection.snd_una(), ISS + 4);
    assert_eq!(rig.read(), vec![5; 1000]);
    //= RFC 9293 section 3.8.6
    //= type=test
    //# A TCP receiver SHOULD NOT shrink the window, i.e., move the right
    //# window edge to the left (SHLD-14).
    assert_eq!(rig.sent()[0].head.window, 1000);
    rig.arrives(&with(rig.segment(Flags::ACK), &[5; 1000]));
    //= RFC 9293 section 3.4
    //= type=test
    //# A TCP receiver MUST process the RST and URG
    //# fields of all incoming segments, even when the receive window is zero
    //# (MUST-66).
    assert_eq!(rig.arrives(&rig.segment(Flags::RST)), None);
    assert_eq!(rig.state(), ConnectionState::Closed);
}

#[test]
fn segment_without_ack_is_dropped_in_all_states() {
    for state in SYNCHRONIZED {
        //= RFC 9293 section 3.10.7.4
        //= type=test
        //# if the ACK bit is off, drop the segment and return
        let mut rig = ConnectionRig::new(state);
        rig.ignores(&with(rig.segment(Flags::PSH), b"abc"));
        rig.ignores(&rig.segment(Flags::FIN));
    }
}

#[test]
fn segment_with_bad_checksum_is_ignored_and_counted() {
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    rig.write(b"abc");
    rig.sent();
    for (flags, seq) in [(Flags::ACK, IRS + 1), (Flags::ACK, IRS + 5), (Flags::ACK.with(Flags::FIN), IRS + 1)]
    {
        let segment = with(rig.segment(flags).at(seq), b"data");
        let arrival = SegmentArrival { at: rig.now, is_marked: false, expected_sum: Some(0x1234) };
        assert_eq!(rig.call(|connection, env| connection.arrive(env, &segment, arrival)), None);
        assert_eq!((rig.connection.rcv_nxt(), rig.connection.snd_una()), (IRS + 1, ISS + 1));
        assert_eq!((rig.sent(), rig.read()), (vec![], vec![]));
    }
    assert_eq!(rig.counters.bad_checksums, 3);
    let segment = with(rig.segment(Flags::ACK), b"data");
    let expected_sum = Some(millrace_core::wire::checksum::sum16(b"data"));
    let arrival = SegmentArrival { at: rig.now, is_marked: false, expected_sum };
    rig.call(|connection, env| connection.arrive(env, &segment, arrival));
    assert_eq!((rig.connection.snd_una(), rig.read()), (ISS + 4, b"data".to_vec()));
}

#[test]
fn old_stamps_are_answered_and_dropped_and_missing_ones_dropped() {
    let mut rig = ConnectionRig::established_with(Config { stamps: true, ..plain_config() });
    let stamped = |rig: &ConnectionRig, value| {
        let mut segment = rig.segment(Flags::ACK);
        segment.options.stamps = Some(Stamps { value, echo: 0 });
        segment
    };
    //= RFC 7323 section 5.3
    //= type=test
    //# Send an acknowledgment in reply as specified in Section 3.9
    //# of [RFC0793], page 69, and drop the segment.
    rig.only_acks(&with(stamped(&rig, 6_999), b"abc"));
    //= RFC 7323 section 3.2
    //= type=test
    //# non-<RST> segment is received without a TSopt, a TCP SHOULD silently
    //# drop the segment.
    let mut bare = rig.segment(Flags::ACK);
    bare.options.stamps = None;
    rig.ignores(&with(bare, b"abc"));
    rig.arrives(&with(stamped(&rig, 7_005), b"abc"));
    assert_eq!(rig.connection.ts_recent, 7_005);
    //= RFC 7323 section 5.3
    //= type=test
    //# R3)  If an arriving segment satisfies SEG.TSval >= TS.Recent and
    //# SEG.SEQ <= Last.ACK.sent (see Section 4.3), then record its
    //# timestamp in TS.Recent.
    rig.arrives(&with(stamped(&rig, 7_009), b"def"));
    assert_eq!(rig.connection.ts_recent, 7_005, "what was delayed is not echoed before it");
    assert_eq!(rig.pass_ms(100)[0].head.options.stamps.unwrap().echo, 7_005);
    assert_eq!(rig.read(), b"abcdef");
    //= RFC 7323 section 5.5
    //= type=test
    //# If
    //# TS.Recent is found to be invalid, then the segment is accepted,
    //# regardless of the failure of the timestamp check, and rule R3 updates
    //# TS.Recent with the TSval from the new segment.
    rig.now = rig.now.plus_ns(25 * 86_400 * 1_000 * MS);
    rig.arrives(&with(stamped(&rig, 5), b"ghi"));
    assert_eq!((rig.read(), rig.connection.ts_recent), (b"ghi".to_vec(), 5));
    let mut reset = rig.segment(Flags::RST);
    reset.options.stamps = None;
    rig.arrives(&reset);
    assert_eq!(rig.state(), ConnectionState::Closed);
}

#[test]
fn data_that_finds_no_page_is_counted_and_comes_again() {
    let mut rig = ConnectionRig::established();
    let page = ClusterSize { bytes: 1 << 10, page_bytes: 512 };
    rig.pages = Pages::new(&[page, page]);
    let first = rig.connection.rcv_nxt();
    let mut refused = 0;
    for _ in 0..8 {
        let next = rig.connection.rcv_nxt();
        rig.arrives(&with(rig.segment(Flags::ACK), &[7; 512]));
        refused += u64::from(rig.connection.rcv_nxt() == next);
        rig.sent();
    }
    assert!((4..8).contains(&refused), "{refused}");
    assert_eq!(rig.counters.refused, refused);
    let taken = rig.connection.rcv_nxt().since(first);
    assert_eq!(rig.read().len() as i32, taken);
    rig.arrives(&with(rig.segment(Flags::ACK), &[8; 512]));
    assert_eq!((rig.read().as_slice(), rig.counters.refused), (&[8; 512][..], refused));
}
