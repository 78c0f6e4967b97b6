//! The second and the fourth step: RST and SYN (RFC 5961), and ABORT.

use super::*;

#[test]
fn rst_at_rcv_nxt_closes_all_states() {
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# 2)  If the RST bit is set and the sequence number exactly
    //# matches the next expected sequence number (RCV.NXT), then
    //# TCP endpoints MUST reset the connection in the manner
    //# prescribed below according to the connection state.
    let reasons = [
        (ConnectionState::SynReceived, Reason::Refused),
        (ConnectionState::Established, Reason::Reset),
        (ConnectionState::FinWait1, Reason::Reset),
        (ConnectionState::FinWait2, Reason::Reset),
        (ConnectionState::CloseWait, Reason::Reset),
        (ConnectionState::Closing, Reason::Finished),
        (ConnectionState::LastAck, Reason::Finished),
    ];
    for (state, reason) in reasons {
        //= RFC 9293 section 3.6
        //= type=test
        //# If the local TCP connection is closed by the
        //# remote side due to a FIN or RST received from the remote side, then
        //# the local application MUST be informed whether it closed normally or
        //# was aborted (MUST-12).
        let mut rig = ConnectionRig::new(state);
        rig.write_if_possible();
        assert_eq!(rig.arrives(&rig.segment(Flags::RST)), None);
        assert_eq!((rig.state(), rig.connection.reason()), (ConnectionState::Closed, reason), "{state:?}");
        assert_eq!((rig.sent(), rig.store.used()), (vec![], 0), "{state:?}: the queues are flushed");
        assert!(rig.connection.take_happened().has(Happened::CLOSED));
    }
}

impl ConnectionRig {
    fn write_if_possible(&mut self) {
        if self.connection.may_send() {
            self.write(b"abc");
        }
    }
}

#[test]
fn rst_in_window_is_challenged_and_outside_is_dropped() {
    for state in SYNCHRONIZED.into_iter().chain([ConnectionState::SynReceived]) {
        //= RFC 9293 section 3.10.7.4
        //= type=test
        //# 3)  If the RST bit is set and the sequence number does not
        //# exactly match the next expected sequence value, yet is
        //# within the current receive window, TCP endpoints MUST send
        //# an acknowledgment (challenge ACK):
        let mut rig = ConnectionRig::new(state);
        let next = rig.connection.rcv_nxt();
        rig.only_acks(&rig.segment(Flags::RST).at(next + 1));
        let window = rig.connection.rcv_wnd();
        rig.only_acks(&rig.segment(Flags::RST.with(Flags::ACK)).at(next + (window - 1)));
        //= RFC 9293 section 3.10.7.4
        //= type=test
        //# 1)  If the RST bit is set and the sequence number is outside
        //# the current receive window, silently drop the segment.
        rig.ignores(&rig.segment(Flags::RST).at(next - 1));
        let window = rig.connection.rcv_wnd();
        rig.ignores(&rig.segment(Flags::RST).at(next + window));
    }
}

#[test]
fn syn_in_synchronized_state_is_answered_by_challenge_ack() {
    for state in SYNCHRONIZED {
        //= RFC 9293 section 3.10.7.4
        //= type=test
        //# RFC 5961 recommends that in
        //# these synchronized states, if the SYN bit is set,
        //# irrespective of the sequence number, TCP endpoints MUST send
        //# a "challenge ACK" to the remote peer:
        let mut rig = ConnectionRig::new(state);
        let next = rig.connection.rcv_nxt();
        for seq in [IRS, next, next + 5, next + (1 << 20)] {
            rig.only_acks(&rig.segment(Flags::SYN).at(seq));
            rig.only_acks(&with(rig.segment(Flags::SYN.with(Flags::ACK)).at(seq), b"data"));
        }
        assert_eq!(rig.read(), b"");
    }
}

#[test]
fn challenges_are_limited() {
    //= RFC 5961 section 7
    //= type=test
    //# An
    //# implementation SHOULD include an ACK throttling mechanism to be
    //# conservative.
    let mut rig = ConnectionRig::new(ConnectionState::Established);
    let syn = rig.segment(Flags::SYN);
    let answers = |rig: &mut ConnectionRig| {
        (0..100).filter(|_| rig.arrives(&syn).is_none() && !rig.sent().is_empty()).count()
    };
    assert_eq!(answers(&mut rig), 10);
    rig.now = rig.now.plus_ns(1_000 * MS);
    assert_eq!(answers(&mut rig), 10);
    assert_eq!((rig.counters.challenges, rig.counters.challenges_spared), (20, 180));
}

#[test]
fn abort_resets_where_the_peer_has_something_to_forget() {
    let resets = |state| {
        matches!(
            state,
            ConnectionState::SynReceived
                | ConnectionState::Established
                | ConnectionState::FinWait1
                | ConnectionState::FinWait2
                | ConnectionState::CloseWait
        )
    };
    for state in SYNCHRONIZED.into_iter().chain([ConnectionState::SynSent, ConnectionState::SynReceived]) {
        //= RFC 9293 section 3.10.5
        //= type=test
        //# Send a reset segment:
        //#
        //# <SEQ=SND.NXT><CTL=RST>
        let mut rig = ConnectionRig::new(state);
        let next = rig.connection.snd_nxt();
        rig.write_if_possible();
        let reset = rig.call(|connection, env| connection.abort(env, Reason::Aborted));
        assert_eq!(reset.map(|head| head.seq), resets(state).then_some(next), "{state:?}");
        assert_eq!(
            (rig.state(), rig.store.used(), rig.sent()),
            (ConnectionState::Closed, 0, vec![]),
            "{state:?}"
        );
    }
}

#[test]
fn abort_returns_reset_with_snd_nxt_and_rcv_nxt() {
    //= RFC 9293 section 3.10.5
    //= type=test
    //# Send a reset segment:
    //#
    //# <SEQ=SND.NXT><CTL=RST>
    let states = [
        ConnectionState::SynReceived,
        ConnectionState::Established,
        ConnectionState::FinWait1,
        ConnectionState::FinWait2,
        ConnectionState::CloseWait,
    ];
    for state in states {
        let mut rig = ConnectionRig::new(state);
        let (next, received) = (rig.connection.snd_nxt(), rig.connection.rcv_nxt());
        let reset = rig.call(|connection, env| connection.abort(env, Reason::Aborted)).unwrap();
        let flags = Flags::RST.with(Flags::ACK);
        assert_eq!((reset.seq, reset.ack, reset.flags), (next, received, flags), "{state:?}");
    }
    for state in [ConnectionState::SynSent, ConnectionState::Closing, ConnectionState::LastAck] {
        let mut rig = ConnectionRig::new(state);
        assert_eq!(rig.call(|connection, env| connection.abort(env, Reason::Aborted)), None, "{state:?}");
    }
}
