//! What holds data back: Nagle, silly windows, closed windows; and what forces it out.

use super::*;

fn sizes(sent: &[Sent]) -> Vec<usize> {
    sent.iter().map(|sent| sent.payload.len()).collect()
}

#[test]
fn nagle_holds_small_segments_back_while_anything_is_unacknowledged() {
    //= RFC 9293 section 3.7.4
    //= type=test
    //# A TCP implementation SHOULD implement the Nagle algorithm to
    //# coalesce short segments (SHLD-7).  However, there MUST be a way for
    //# an application to disable the Nagle algorithm on an individual
    //# connection (MUST-17).
    let mut rig = ConnectionRig::established_with(Config { nagle: true, ..plain_config() });
    rig.write(b"a");
    assert_eq!(sizes(&rig.sent()), [1]);
    rig.write(b"b");
    rig.write(b"c");
    assert_eq!(sizes(&rig.sent()), []);
    rig.arrives(&rig.segment(Flags::ACK));
    assert_eq!(rig.sent()[0].payload, b"bc");
    rig.write(&[1; 1460 + 10]);
    assert_eq!(sizes(&rig.sent()), [1460]);
    rig.connection.marks.remove(Marks::NAGLE);
    assert_eq!(sizes(&rig.sent()), [10]);
}

#[test]
fn cork_delays_partial_segment_until_uncork_close_or_timeout() {
    let mut rig = ConnectionRig::established();
    rig.connection.marks.insert(Marks::CORKED);
    rig.write(b"head");
    assert_eq!(rig.sent(), [], "nothing is unacknowledged, and still it waits");
    rig.write(&[1; 1460]);
    assert_eq!(sizes(&rig.sent()), [1460], "what is full goes");
    rig.arrives(&rig.segment(Flags::ACK));
    assert_eq!(rig.sent(), []);
    rig.connection.marks.remove(Marks::CORKED);
    assert_eq!(sizes(&rig.sent()), [4]);
    rig.arrives(&rig.segment(Flags::ACK));
    // Whoever forgets it is not heard later than by a retransmission.
    rig.connection.marks.insert(Marks::CORKED);
    rig.write(b"forgotten");
    assert_eq!(rig.sent(), []);
    assert_eq!(rig.pass_ms(1_000)[0].payload, b"forgotten");
    rig.arrives(&rig.segment(Flags::ACK));
    // And the end is the end.
    rig.write(b"last");
    assert_eq!(rig.sent(), []);
    assert!(rig.call(Connection::close));
    assert_eq!(sizes(&rig.sent()), [4]);
}

#[test]
fn psh_is_set_on_last_queued_segment_only() {
    //= RFC 9293 section 3.9.1.2
    //= type=test
    //# If
    //# PUSH flags are not implemented, then the sending TCP peer: (1) MUST
    //# NOT buffer data indefinitely (MUST-60), and (2) MUST set the PSH bit
    //# in the last buffered segment (i.e., when there is no more queued data
    //# to be sent) (MUST-61).
    let mut rig = ConnectionRig::established();
    rig.write(&[1; 2000]);
    let sent = rig.sent();
    assert_eq!(sent.iter().map(|sent| sent.head.flags.has(Flags::PSH)).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn silly_window_is_not_used_until_override_timeout() {
    let mut rig = ConnectionRig::established();
    rig.write(&[1; 20_000]);
    let sent = sizes(&rig.sent()).iter().sum::<usize>() as u32;
    //= RFC 9293 section 3.8.6.2.1
    //= type=test
    //# A TCP implementation MUST include a SWS avoidance algorithm in the
    //# sender (MUST-38).
    rig.arrives(&Segment { window: 0, ..rig.segment(Flags::ACK) });
    assert_eq!(rig.sent(), []);
    rig.arrives(&Segment { window: 100, ..rig.segment(Flags::ACK) });
    assert_eq!(rig.sent(), [], "100 bytes are not worth a segment");
    assert_eq!(rig.connection.snd_una(), ISS + 1 + sent);
    let forced = rig.pass_ms(1_000);
    assert_eq!(forced[0].payload.len(), 100, "the override time-out sends them");
    rig.arrives(&Segment { window: 1460, ..rig.segment(Flags::ACK) });
    assert_eq!(sizes(&rig.sent()), [1460]);
}

#[test]
fn half_of_the_largest_window_is_worth_a_segment() {
    let mut rig = ConnectionRig::established();
    rig.connection.max_snd_wnd = 0;
    rig.arrives(&Segment { window: 1000, ..rig.segment(Flags::ACK) });
    rig.write(&[1; 3000]);
    assert_eq!(sizes(&rig.sent()), [1000]);
    rig.arrives(&Segment { window: 499, ..rig.segment(Flags::ACK) });
    assert_eq!(rig.sent(), []);
    rig.arrives(&Segment { window: 500, ..rig.segment(Flags::ACK) });
    assert_eq!(sizes(&rig.sent()), [500]);
}

#[test]
fn loss_probe_is_no_part_of_segment_that_window_clips() {
    let mut rig = ConnectionRig::established();
    rig.arrives(&Segment { window: 3 * 1460 + 600, ..rig.segment(Flags::ACK) });
    rig.write(&[1; 8000]);
    assert_eq!(sizes(&rig.sent()), [1460; 3]);
    let sent = rig.pass_ms(100);
    assert_eq!((sent.len(), sent[0].head.seq), (1, ISS + 1 + 2 * 1460), "the last segment again");
    assert_eq!(sizes(&sent), [1460]);
}

#[test]
fn zero_window_is_probed_with_backoff_while_peer_answers() {
    //= RFC 9293 section 3.8.6
    //= type=test
    //# If the window shrinks to zero, the TCP
    //# implementation MUST probe it in the standard way (described below)
    //# (MUST-35).
    //= RFC 9293 section 3.8.6.1
    //= type=test
    //# Probing of zero (offered) windows MUST be supported (MUST-36).
    let mut rig = ConnectionRig::established();
    rig.arrives(&Segment { window: 0, ..rig.segment(Flags::ACK) });
    rig.write(b"abcdef");
    assert_eq!(rig.sent(), []);
    let (mut waits, mut last) = (vec![], rig.now);
    for _ in 0..12 {
        let due = rig.call(|connection, env| connection.due(env)).unwrap();
        rig.now = due;
        rig.call(Connection::fired);
        let sent = rig.sent();
        if sent.is_empty() {
            continue;
        }
        //= RFC 9293 section 3.8.6.1
        //= type=test
        //# The sending TCP peer must regularly transmit at least one octet of
        //# new data (if available), or retransmit to the receiving TCP peer even
        //# if the send window is zero, in order to "probe" the window.
        assert_eq!((sent.len(), sent[0].payload.as_slice(), sent[0].head.seq), (1, &b"a"[..], ISS + 1));
        waits.push(rig.now.ns_since(last));
        last = rig.now;
        //= RFC 9293 section 3.8.6.1
        //= type=test
        //# As long as the receiving TCP peer continues to
        //# send acknowledgments in response to the probe segments, the sending
        //# TCP peer MUST allow the connection to stay open (MUST-37).
        rig.arrives(&Segment { window: 0, ..rig.segment(Flags::ACK).acks(ISS + 1) });
        assert_eq!(rig.sent(), []);
    }
    assert!(rig.now.ns_since(Instant(1_000_000 * MS)) > 120_000 * MS, "beyond the user time-out");
    assert!(waits.windows(2).all(|pair| pair[1] == (2 * pair[0]).min(60_000 * MS)), "{waits:?}");
    assert_eq!(rig.state(), ConnectionState::Established);
    rig.arrives(&rig.segment(Flags::ACK).acks(ISS + 1));
    assert_eq!(rig.sent()[0].payload, b"abcdef");
}

#[test]
fn window_probe_acknowledged_advances_snd_una() {
    let mut rig = ConnectionRig::established();
    rig.arrives(&Segment { window: 0, ..rig.segment(Flags::ACK) });
    rig.write(b"abcdef");
    rig.sent();
    rig.pass_ms(400);
    assert_eq!((rig.connection.snd_nxt(), rig.counters.window_probes), (ISS + 1, 1));
    rig.arrives(&rig.segment(Flags::ACK).acks(ISS + 2));
    assert_eq!((rig.connection.snd_una(), rig.sent()[0].payload.as_slice()), (ISS + 2, &b"bcdef"[..]));
    // The FIN too.
    let mut rig = ConnectionRig::established();
    rig.arrives(&Segment { window: 0, ..rig.segment(Flags::ACK) });
    assert!(rig.call(Connection::close));
    assert_eq!(rig.sent(), []);
    let probe = rig.pass_ms(400).remove(0);
    assert!(probe.head.flags.has(Flags::FIN) && probe.payload.is_empty());
    rig.arrives(&rig.segment(Flags::ACK).acks(ISS + 2));
    assert_eq!(rig.state(), ConnectionState::FinWait2);
}

#[test]
fn send_window_shrinking_below_sent_data_stops_new_data_only() {
    //= RFC 9293 section 3.8.6
    //= type=test
    //# However, a sending TCP peer MUST
    //# be robust against window shrinking, which may cause the "usable
    //# window" (see Section 3.8.6.2.1) to become negative (MUST-34).
    let mut rig = ConnectionRig::established();
    rig.write(&[1; 5000]);
    assert_eq!(rig.sent().len(), 4);
    rig.arrives(&Segment { window: 10, ..rig.segment(Flags::ACK).acks(ISS + 1) });
    rig.write(&[2; 5000]);
    assert_eq!(rig.sent(), [], "no new data");
    let again = rig.pass_ms(5_000);
    assert!(!again.is_empty() && again.iter().all(|sent| !sent.head.seq.after(ISS + 5001)));
    rig.arrives(&rig.segment(Flags::ACK));
    assert!(!rig.sent().is_empty());
}
