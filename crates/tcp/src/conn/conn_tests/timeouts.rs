//! Section 3.10.8, keep-alive, and leases that go back.

use super::*;

#[test]
fn syn_without_answer_times_out_after_three_minutes() {
    let mut rig = ConnectionRig::new(ConnectionState::SynSent);
    let start = rig.now;
    let sent = rig.pass_ms(179_000);
    assert!(sent.len() >= 6 && sent.iter().all(|sent| sent.head.flags.has(Flags::SYN)), "{}", sent.len());
    //= RFC 9293 section 3.8.3
    //= type=test
    //# In particular, R2 for a SYN segment MUST
    //# be set large enough to provide retransmission of the segment for at
    //# least 3 minutes (MUST-23).
    assert_eq!(rig.state(), ConnectionState::SynSent);
    rig.pass_ms(120_000);
    assert_eq!((rig.state(), rig.connection.reason()), (ConnectionState::Closed, Reason::TimedOut));
    assert!(rig.now.ns_since(start) > 180_000 * MS);
}

#[test]
fn unacknowledged_data_ends_the_connection_after_the_user_time_out() {
    //= RFC 9293 section 3.10.8
    //= type=test
    //# For any state if the user timeout expires, flush all queues,
    //# signal the user "error: connection aborted due to user timeout" in
    //# general and for any outstanding calls, delete the TCB, enter the
    //# CLOSED state, and return.
    for state in [
        ConnectionState::Established,
        ConnectionState::CloseWait,
        ConnectionState::FinWait1,
        ConnectionState::Closing,
        ConnectionState::LastAck,
    ] {
        let mut rig = ConnectionRig::new(state);
        rig.write_or_not();
        let sent = rig.sent().len() + rig.pass_ms(119_000).len();
        assert!(sent >= 5, "{state:?}: sent {sent} times");
        assert_ne!(rig.state(), ConnectionState::Closed, "{state:?}");
        rig.pass_ms(2_000);
        assert_eq!(
            (rig.state(), rig.connection.reason()),
            (ConnectionState::Closed, Reason::TimedOut),
            "{state:?}"
        );
        assert_eq!(rig.store.used(), 0);
    }
}

impl ConnectionRig {
    fn write_or_not(&mut self) {
        if self.connection.may_send() {
            self.write(b"abc");
        }
    }
}

#[test]
fn idle_connection_stays_established() {
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    assert_eq!(rig.pass_ms(10 * 86_400_000), []);
    assert_eq!(rig.state(), ConnectionState::Established);
    // Data sent after a long rest has its own time.
    rig.write(b"abc");
    assert_eq!(rig.sent().len(), 1);
    rig.pass_ms(60_000);
    assert_eq!(rig.state(), ConnectionState::Established);
}

#[test]
fn orphan_in_fin_wait_2_closes_after_one_minute() {
    let mut rig = ConnectionRig::new(ConnectionState::FinWait2);
    rig.pass_ms(3_600_000);
    assert_eq!(rig.state(), ConnectionState::FinWait2, "its application may want to read");
    rig.connection.marks.insert(Marks::ORPHAN);
    rig.arrives(&rig.segment(Flags::ACK));
    rig.pass_ms(59_000);
    assert_eq!(rig.state(), ConnectionState::FinWait2);
    rig.pass_ms(2_000);
    assert_eq!(rig.state(), ConnectionState::Closed);
}

#[test]
fn orphan_with_zero_window_times_out() {
    let mut rig = ConnectionRig::established();
    rig.arrives(&Segment { window: 0, ..rig.segment(Flags::ACK) });
    rig.write(b"abc");
    // Each probe is answered: nothing more is taken.
    let probed = |rig: &mut ConnectionRig, seconds: u64, ack: Seq| {
        for _ in 0..seconds {
            if !rig.pass_ms(1000).is_empty() {
                rig.arrives(&Segment { window: 0, ..rig.segment(Flags::ACK).acks(ack) });
            }
        }
        rig.state()
    };
    let stays = probed(&mut rig, 3600, ISS + 1);
    assert_eq!(stays, ConnectionState::Established, "its application may wait as long as it likes");
    rig.arrives(&Segment { window: 0, ..rig.segment(Flags::ACK).acks(ISS + 2) });
    assert!(rig.call(Connection::close));
    rig.connection.marks.insert(Marks::ORPHAN);
    assert_eq!(probed(&mut rig, 110, ISS + 2), ConnectionState::FinWait1, "a byte was taken");
    assert_eq!(probed(&mut rig, 15, ISS + 2), ConnectionState::Closed);
    assert_eq!(rig.connection.reason(), Reason::TimedOut);
}

#[test]
fn keep_alive_is_off_by_default_and_gives_up_after_several_probes() {
    //= RFC 9293 section 3.8.4
    //= type=test
    //# This interval MUST
    //# be configurable (MUST-27) and MUST default to no less than two hours
    //# (MUST-28).
    assert_eq!(Config::default().keep_alive_ns, 7_200_000 * MS);
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    rig.connection.marks.insert(Marks::KEEP_ALIVE);
    assert_eq!(rig.pass_ms(7_100_000), []);
    let probe = rig.pass_ms(150_000);
    assert!(!probe.is_empty());
    assert_eq!((probe[0].head.seq, probe[0].head.flags, probe[0].payload.len()), (ISS, Flags::ACK, 0));
    // One answer is enough.
    rig.arrives(&rig.segment(Flags::ACK));
    assert_eq!(rig.pass_ms(7_100_000), []);
    assert_eq!(rig.state(), ConnectionState::Established);
    //= RFC 9293 section 3.8.4
    //= type=test
    //# Consequently, if a
    //# keep-alive mechanism is implemented it MUST NOT interpret failure to
    //# respond to any specific probe as a dead connection (MUST-29).
    let probes = rig.pass_ms(3_600_000);
    assert_eq!(probes.len(), 9);
    assert_eq!((rig.state(), rig.connection.reason()), (ConnectionState::Closed, Reason::Silent));
}

#[test]
fn keep_alive_with_outstanding_data_is_not_sent() {
    //= RFC 9293 section 3.8.4
    //= type=test
    //# Keep-alive packets MUST only be sent when no sent data is
    //# outstanding, and no data or acknowledgment packets have been received
    //# for the connection within an interval (MUST-26).
    let mut rig = ConnectionRig::established_with(Config { keep_alive_ns: 10_000 * MS, ..plain_config() });
    rig.connection.marks.insert(Marks::KEEP_ALIVE);
    rig.write(b"abc");
    rig.sent();
    assert!(rig.pass_ms(60_000).iter().all(|sent| sent.payload == b"abc"));
    rig.arrives(&rig.segment(Flags::ACK));
    assert!(rig.pass_ms(11_000).iter().all(|sent| sent.payload.is_empty() && sent.head.seq == ISS + 3));
}

#[test]
fn user_timeout_option_of_peer_is_clamped_to_limits() {
    let mut rig = ConnectionRig::established_with(Config { takes_user_timeout: true, ..plain_config() });
    for (asked, expected_s) in [(5, 120), (200, 200), (0x8000 | 4, 240), (0x8000 | 20_000, 600)] {
        //= RFC 5482 section 3.1
        //= type=test
        //# USER_TIMEOUT = min(U_LIMIT, max(ADV_UTO, REMOTE_UTO, L_LIMIT))
        let mut segment = rig.segment(Flags::ACK);
        segment.options.user_timeout = Some(asked);
        rig.arrives(&segment);
        assert_eq!(rig.connection.user_timeout_s, expected_s);
    }
    let mut rig = ConnectionRig::established();
    let mut segment = rig.segment(Flags::ACK);
    segment.options.user_timeout = Some(500);
    rig.arrives(&segment);
    assert_eq!(rig.connection.user_timeout_s, 120);
}

#[test]
fn stalled_event_is_reported_once_after_several_retransmissions() {
    //= RFC 9293 section 3.8.3
    //= type=test
    //# The following
    //# procedure MUST be used to handle excessive retransmissions of data
    //# segments (MUST-20):
    //= RFC 9293 section 3.8.3
    //= type=test
    //# SYN retransmissions
    //# MUST be handled in the general way just described for data
    //# retransmissions, including notification of the application layer.
    //= RFC 9293 section 3.9.1.8
    //= type=test
    //# There MUST be a mechanism for reporting soft TCP error conditions to
    //# the application (MUST-47).
    for state in [
        ConnectionState::SynSent,
        ConnectionState::SynReceived,
        ConnectionState::Established,
        ConnectionState::LastAck,
    ] {
        let mut rig = ConnectionRig::new(state);
        rig.connection.take_happened();
        rig.write_or_not();
        rig.sent();
        let mut told = Vec::new();
        let mut retransmitted = 0;
        while rig.state() != ConnectionState::Closed {
            retransmitted += rig.pass_ms(100).len();
            if rig.connection.take_happened().has(Happened::STALLED) {
                told.push(retransmitted);
            }
        }
        assert!(matches!(told[..], [3 | 4]), "{state:?}: after {told:?} retransmissions");
        assert_eq!(rig.connection.reason(), Reason::TimedOut, "{state:?}");
    }
}

#[test]
fn set_user_timeout_closes_connection_at_that_time() {
    //= RFC 9293 section 3.8.3
    //= type=test
    //# An application MUST (MUST-21) be able to set the value for R2
    //# for a particular connection.
    for (timeout_s, lives_ms) in [(7, 6_900), (3_600, 3_599_000)] {
        let mut rig = ConnectionRig::established();
        rig.connection.set_user_timeout(timeout_s * 1_000 * MS);
        rig.write(b"abc");
        rig.sent();
        rig.pass_ms(lives_ms);
        assert_eq!(rig.state(), ConnectionState::Established);
        rig.pass_ms(1_100);
        assert_eq!((rig.state(), rig.connection.reason()), (ConnectionState::Closed, Reason::TimedOut));
    }
}
