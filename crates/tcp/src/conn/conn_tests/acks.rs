//! The fifth step in every state: SND.UNA, windows, RFC 5961's range; and ECN's echo.

use super::*;

#[test]
fn ack_outside_acceptable_range_is_discarded_and_answered() {
    for state in SYNCHRONIZED {
        //= RFC 9293 section 3.10.7.4
        //= type=test
        //# TCP stacks that implement RFC
        //# 5961 MUST add an input check that the ACK value is
        //# acceptable only if it is in the range of ((SND.UNA -
        //# MAX.SND.WND) =< SEG.ACK =< SND.NXT).  All incoming segments
        //# whose ACK value doesn't satisfy the above condition MUST be
        //# discarded and an ACK sent back.
        let mut rig = ConnectionRig::new(state);
        let (una, nxt) = (rig.connection.snd_una(), rig.connection.snd_nxt());
        let max = rig.connection.max_snd_wnd;
        for ack in [nxt + 1, nxt + 100_000, una - (max + 1), una - (1 << 24)] {
            rig.only_acks(&with(rig.segment(Flags::ACK).acks(ack), b"abc"));
            assert_eq!(rig.connection.snd_una(), una);
        }
        assert_eq!(rig.read(), b"");
        // An old ACK within the range is a duplicate; its text counts.
        rig.arrives(&with(rig.segment(Flags::ACK).acks(una - max), b"abc"));
        assert_eq!((rig.connection.snd_una(), rig.state()), (una, state));
    }
}

#[test]
fn ack_of_sent_data_releases_it_and_is_reported() {
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# If SND.UNA < SEG.ACK =< SND.NXT, then set SND.UNA <-
    //# SEG.ACK.  Any segments on the retransmission queue that
    //# are thereby entirely acknowledged are removed.
    for state in [ConnectionState::Established, ConnectionState::CloseWait] {
        let mut rig = ConnectionRig::new(state);
        rig.connection.take_happened();
        rig.write(b"abcdef");
        assert_eq!(rig.sent()[0].payload, b"abcdef");
        rig.arrives(&rig.segment(Flags::ACK).acks(ISS + 4));
        assert_eq!((rig.connection.snd_una(), rig.store.used()), (ISS + 4, 1));
        assert!(rig.connection.take_happened().has(Happened::ACKED));
        rig.arrives(&rig.segment(Flags::ACK).acks(ISS + 7));
        assert_eq!(
            (rig.connection.snd_una(), rig.store.used(), rig.connection.unacked_bytes()),
            (ISS + 7, 0, 0)
        );
    }
}

#[test]
fn old_segments_do_not_set_the_window() {
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# If SND.UNA =< SEG.ACK =< SND.NXT, the send window should
    //# be updated.  If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ
    //# and SND.WL2 =< SEG.ACK)), set SND.WND <- SEG.WND, set
    //# SND.WL1 <- SEG.SEQ, and set SND.WL2 <- SEG.ACK.
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    let first = Segment { window: 100, ..rig.segment(Flags::ACK) };
    rig.arrives(&with(first, b"abc"));
    assert_eq!(rig.connection.snd_wnd, 100);
    rig.write(b"xyz");
    rig.sent();
    let newer = Segment { window: 50, ..rig.segment(Flags::ACK) };
    rig.arrives(&newer);
    assert_eq!(rig.connection.snd_wnd, 50);
    let older = Segment { window: 9_000, ..rig.segment(Flags::ACK) };
    rig.arrives(&older.acks(ISS + 2));
    assert_eq!(rig.connection.snd_wnd, 50, "it acknowledges less");
    rig.arrives(&with(older.at(IRS + 2), b"b"));
    assert_eq!(rig.connection.snd_wnd, 50, "it was sent before");
    assert_eq!(rig.connection.max_snd_wnd, 65_535);
}

/// SND.WND counts from SND.UNA: a segment that moves it must give the size of the window from there
/// on, or the bytes acknowledged would make room.
#[test]
fn send_window_is_set_by_new_ack_with_old_data() {
    let mut rig = ConnectionRig::established();
    let behind_a_hole = Segment { window: 2_920, ..rig.segment(Flags::ACK) }.at(IRS + 101);
    rig.arrives(&with(behind_a_hole, b"later"));
    rig.sent();
    rig.write(&[7; 5_840]);
    assert_eq!(rig.sent().iter().map(|sent| sent.payload.len()).collect::<Vec<_>>(), [1_460, 1_460]);
    // The hole is filled by a retransmission; the peer has not read.
    let old = Segment { window: 1_460, ..rig.segment(Flags::ACK) }.acks(ISS + 1 + 1_460);
    rig.arrives(&with(old, &[0; 100]));
    assert_eq!((rig.connection.snd_una(), rig.connection.snd_wnd), (ISS + 1_461, 1_460));
    assert!(rig.sent().iter().all(|sent| sent.payload.is_empty()), "it sends beyond the window");
    // So does one behind it, and what acknowledges as much and was sent before does not.
    rig.arrives(&Segment { window: 1_000, ..rig.segment(Flags::ACK) });
    rig.arrives(&with(Segment { window: 9_000, ..rig.segment(Flags::ACK) }.at(IRS + 105), b"xyz"));
    assert_eq!((rig.connection.rcv_nxt(), rig.connection.snd_wnd), (IRS + 108, 1_000));
}

#[test]
fn window_of_syn_is_not_scaled_and_later_ones_are() {
    //= RFC 7323 section 2.2
    //= type=test
    //# The window field in a segment where the SYN bit is set (i.e., a <SYN>
    //# or <SYN,ACK>) MUST NOT be scaled.
    let mut rig = ConnectionRig::established_with(Config { scaling: true, ..plain_config() });
    assert_eq!(rig.connection.snd_wnd, 65_535);
    rig.arrives(&Segment { window: 100, ..rig.segment(Flags::ACK) });
    assert_eq!(rig.connection.snd_wnd, 400);
}

#[test]
fn marks_of_the_network_are_echoed_until_they_were_heard() {
    let mut rig = ConnectionRig::established();
    rig.connection.marks.insert(Marks::HAS_ECN);
    let take = |rig: &mut ConnectionRig, flags, is_marked| {
        let segment = with(rig.segment(flags), b"abc");
        let arrival = SegmentArrival { at: rig.now, is_marked, expected_sum: None };
        rig.call(|connection, env| connection.arrive(env, &segment, arrival));
        let mut sent = rig.sent();
        sent.extend(rig.pass_ms(100));
        sent.last().unwrap().head.flags.has(Flags::ECE)
    };
    assert!(!take(&mut rig, Flags::ACK, false));
    //= RFC 3168 section 6.1.3
    //= type=test
    //# When TCP receives a CE data packet at the destination end-system, the
    //# TCP data receiver sets the ECN-Echo flag in the TCP header of the
    //# subsequent ACK packet.
    assert!(take(&mut rig, Flags::ACK, true));
    assert!(take(&mut rig, Flags::ACK, false));
    assert!(!take(&mut rig, Flags::ACK.with(Flags::CWR), false));
    assert!(take(&mut rig, Flags::ACK.with(Flags::CWR), true));
}

#[test]
fn window_probe_after_congestion_has_no_ect_and_no_cwr() {
    let mut rig = ConnectionRig::syn_sent(Config { ecn: true, ..plain_config() });
    let syn_ack = rig.segment(Flags::SYN.with(Flags::ACK).with(Flags::ECE)).at(IRS).acks(ISS + 1);
    assert_eq!(rig.arrives(&syn_ack), None);
    rig.sent();
    rig.write(&[1; 5000]);
    rig.sent();
    // The network was congested, and the window is closed.
    rig.arrives(&rig.segment(Flags::ACK.with(Flags::ECE)).acks(ISS + 1461));
    rig.arrives(&Segment { window: 0, ..rig.segment(Flags::ACK) });
    rig.write(b"abc");
    assert_eq!(rig.sent(), []);
    let due = rig.call(|connection, env| connection.due(env)).expect("a timer");
    rig.now = due;
    rig.call(Connection::fired);
    let Planned::Segment(probe) = rig.call(Connection::plan) else { panic!("no probe") };
    //= RFC 3168 section 6.1.6
    //= type=test
    //# Therefore, the TCP data sender MUST NOT set either an ECT codepoint
    //# or the CWR bit on window probe packets.
    assert!(!probe.is_ect && !probe.head.flags.has(Flags::CWR), "{:?}", probe.head.flags);
    rig.call(|connection, env| connection.commit(env, &probe));
    assert_eq!(rig.counters.window_probes, 1);
    rig.arrives(&rig.segment(Flags::ACK).acks(rig.connection.snd_nxt()));
    let Planned::Segment(data) = rig.call(Connection::plan) else { panic!("no data") };
    assert!(data.is_ect && data.head.flags.has(Flags::CWR), "{:?}", data.head.flags);
}

#[test]
fn stamps_in_subtracts_own_offset_from_echo() {
    let mut rig = ConnectionRig::established_with(Config { stamps: true, ..plain_config() });
    rig.connection.ts_offset = 1_000_000;
    let stamps = Stamps { value: 7_001, echo: 1_000_042 };
    let segment = Segment {
        options: TcpOptions { stamps: Some(stamps), ..TcpOptions::default() },
        ..rig.segment(Flags::ACK)
    };
    let read = rig.connection.stamps_in(&segment).expect("there are some");
    assert_eq!((read.value, read.echo), (7_001, 42));
}

#[test]
fn that_data_moves_is_known_until_something_else_is_heard() {
    let mut rig = ConnectionRig::established();
    rig.write(b"abc");
    rig.sent();
    rig.arrives(&rig.segment(Flags::ACK));
    let later = rig.now.plus_ns(30 * MS);
    let moved_ns = rig.connection.moved_ns(later);
    assert!((29 * MS..=31 * MS).contains(&moved_ns), "{moved_ns}");
    // The same once more: whatever it was, it acknowledges nothing new.
    rig.arrives(&rig.segment(Flags::ACK));
    assert_eq!(rig.connection.moved_ns(later), OutgoingSegment::NEVER);
}

#[test]
fn unacked_bytes_after_close_by_reset_is_zero() {
    let mut rig = ConnectionRig::established();
    rig.write(b"abcdef");
    rig.sent();
    rig.write(b"ghi");
    assert_eq!(rig.connection.unacked_bytes(), 9);
    rig.arrives(&rig.segment(Flags::RST));
    assert_eq!((rig.state(), rig.connection.unacked_bytes()), (ConnectionState::Closed, 0));
}

#[test]
fn blocks_of_sack_go_with_data_that_leaves_room_for_them() {
    // Two blocks take 20 bytes of options.
    for (bytes, blocks) in [(1440, 2), (1441, 0), (1460, 0)] {
        let mut rig = ConnectionRig::established();
        for gap in [10, 30] {
            rig.arrives(&with(rig.segment(Flags::ACK).at(IRS + 1 + gap), b"abc"));
        }
        rig.sent();
        rig.write(&vec![1; bytes]);
        let sent = rig.sent();
        assert_eq!((sent[0].payload.len(), sent[0].head.options.sacks.blocks().len()), (bytes, blocks));
    }
}

#[test]
fn data_that_acknowledges_nothing_new_is_no_duplicate_acknowledgment() {
    // Without SACK three of those would mean a loss (RFC 5681 section 2 (b)).
    let mut rig = ConnectionRig::established_with(Config { sack: false, ..plain_config() });
    rig.write(&[1; 5 * 1460]);
    rig.sent();
    for _ in 0..5 {
        rig.arrives(&with(rig.segment(Flags::ACK).acks(ISS + 1), b"abc"));
        assert!(rig.sent().iter().all(|sent| sent.payload.is_empty()));
    }
    assert!(!rig.connection.sender().is_recovering());
}
