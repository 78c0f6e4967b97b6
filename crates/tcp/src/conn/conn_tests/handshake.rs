//! CLOSED, LISTEN, SYN-SENT and SYN-RECEIVED.

use super::*;
use crate::conn::arrive::{answer_closed, answer_listen};

#[test]
fn closed_answers_everything_but_a_reset_with_one() {
    //= RFC 9293 section 3.10.7.1
    //= type=test
    //# all data in the incoming segment is discarded.  An incoming
    //# segment containing a RST is discarded.  An incoming segment not
    //# containing a RST causes a RST to be sent in response.
    let rig = ConnectionRig::established();
    let ack = rig.segment(Flags::ACK).at(Seq(100)).acks(Seq(9));
    let reset = answer_closed(&ack).unwrap();
    assert_eq!((reset.seq, reset.ack, reset.flags), (Seq(9), Seq(0), Flags::RST));
    let data = with(rig.segment(Flags::SYN).at(Seq(100)), b"abc");
    let reset = answer_closed(&data).unwrap();
    assert_eq!((reset.seq, reset.ack, reset.flags), (Seq(0), Seq(104), Flags::RST.with(Flags::ACK)));
    assert_eq!(answer_closed(&rig.segment(Flags::RST.with(Flags::ACK))), None);
    let mut closed = ConnectionRig::established();
    closed.call(|connection, env| connection.abort(env, Reason::Aborted));
    assert!(closed.arrives(&ack).unwrap().flags.has(Flags::RST));
}

#[test]
fn answer_listen_resets_ack_and_ignores_rst() {
    //= RFC 9293 section 3.10.7.2
    //= type=test
    //# Any acknowledgment is bad if it arrives on a connection still
    //# in the LISTEN state.  An acceptable reset segment should be
    //# formed for any arriving ACK-bearing segment.
    let rig = ConnectionRig::established();
    let ack = rig.segment(Flags::ACK).acks(Seq(9));
    assert_eq!(answer_listen(&ack).map(|head| (head.seq, head.flags)), Some((Seq(9), Flags::RST)));
    let syn_ack = rig.segment(Flags::SYN.with(Flags::ACK)).acks(Seq(9));
    assert!(answer_listen(&syn_ack).is_some());
    assert_eq!(answer_listen(&rig.segment(Flags::RST.with(Flags::ACK))), None);
    assert_eq!(answer_listen(&rig.segment(Flags::FIN)), None);
}

#[test]
fn syn_carries_configured_options_and_unscaled_window() {
    //= RFC 9293 section 3.7.1
    //= type=test
    //# TCP endpoints MUST implement both sending and receiving the MSS
    //# Option (MUST-14).
    //= RFC 9293 section 3.7.1
    //= type=test
    //# The MSS value to be sent in an MSS Option must be less than or equal
    //# to:
    //#
    //# MMS_R - 20
    //#
    //# where MMS_R is the maximum size for a transport-layer message that
    //# can be received (and reassembled at the IP layer) (MUST-67).
    let mut rig = ConnectionRig::syn_sent(Config { receive_bytes: 1 << 20, ..Config::default() });
    rig.now = rig.now.plus_ns(1_000 * MS);
    rig.call(Connection::fired);
    let syn = rig.sent().remove(0).head;
    assert_eq!((syn.seq, syn.ack, syn.window), (ISS, Seq(0), 65_535));
    assert_eq!(syn.flags, Flags::SYN.with(Flags::ECE).with(Flags::CWR));
    assert_eq!((syn.options.mss, syn.options.is_sack_permitted), (Some(1460), true));
    assert!(syn.options.scale >= Some(4) && syn.options.stamps.is_some());
}

#[test]
fn syn_sent_resets_a_wrong_acknowledgment() {
    for flags in [Flags::ACK, Flags::SYN.with(Flags::ACK)] {
        for ack in [ISS, ISS - 5, ISS + 2] {
            //= RFC 9293 section 3.10.7.3
            //= type=test
            //# If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless
            //# the RST bit is set, if so drop the segment and return)
            let mut rig = ConnectionRig::new(ConnectionState::SynSent);
            let reset = rig.arrives(&rig.segment(flags).acks(ack)).unwrap();
            assert_eq!((reset.seq, reset.flags), (ack, Flags::RST));
            assert_eq!((rig.state(), rig.sent()), (ConnectionState::SynSent, vec![]));
            let reset = rig.segment(flags.with(Flags::RST)).acks(ack);
            rig.ignores_in_syn_sent(&reset);
        }
    }
}

impl ConnectionRig {
    fn ignores_in_syn_sent(&mut self, segment: &Segment<'_>) {
        assert_eq!(self.arrives(segment), None);
        assert_eq!((self.state(), self.sent()), (ConnectionState::SynSent, vec![]));
    }
}

#[test]
fn syn_sent_is_refused_by_a_reset_that_acknowledges_the_syn() {
    //= RFC 9293 section 3.10.7.3
    //= type=test
    //# If the ACK was acceptable, then signal to the user "error:
    //# connection reset", drop the segment, enter CLOSED state,
    //# delete TCB, and return.  Otherwise (no ACK), drop the
    //# segment and return.
    let mut rig = ConnectionRig::new(ConnectionState::SynSent);
    rig.ignores_in_syn_sent(&rig.segment(Flags::RST));
    assert_eq!(rig.arrives(&rig.segment(Flags::RST.with(Flags::ACK)).acks(ISS + 1)), None);
    assert_eq!((rig.state(), rig.connection.reason()), (ConnectionState::Closed, Reason::Refused));
    assert!(rig.connection.take_happened().has(Happened::CLOSED));
}

#[test]
fn syn_sent_drops_what_is_neither_syn_nor_reset() {
    //= RFC 9293 section 3.10.7.3
    //= type=test
    //# Fifth, if neither of the SYN or RST bits is set, then drop the
    //# segment and return.
    let mut rig = ConnectionRig::new(ConnectionState::SynSent);
    rig.ignores_in_syn_sent(&rig.segment(Flags::ACK).acks(ISS + 1));
    rig.ignores_in_syn_sent(&with(rig.segment(Flags::FIN), b"x"));
}

#[test]
fn syn_ack_with_data_establishes_and_delivers_data() {
    let mut rig = ConnectionRig::new(ConnectionState::SynSent);
    let syn_ack = rig.segment(Flags::SYN.with(Flags::ACK)).acks(ISS + 1);
    assert_eq!(rig.arrives(&with(syn_ack, b"hello")), None);
    assert_eq!(rig.state(), ConnectionState::Established);
    assert_eq!(rig.connection.rcv_nxt(), IRS + 6);
    let sent = rig.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].head.seq, sent[0].head.ack, sent[0].head.flags), (ISS + 1, IRS + 6, Flags::ACK));
    assert_eq!(rig.read(), b"hello");
    assert!(rig.connection.take_happened().has(Happened::ESTABLISHED));
}

#[test]
fn simultaneous_open_ends_in_established() {
    //= RFC 9293 section 3.5
    //= type=test
    //# A TCP implementation MUST support simultaneous open attempts (MUST-
    //# 10).
    // Figure 7: both SYNs cross, then both SYN,ACKs.
    let mut rig = ConnectionRig::new(ConnectionState::SynSent);
    assert_eq!(rig.arrives(&rig.segment(Flags::SYN)), None);
    assert_eq!(rig.state(), ConnectionState::SynReceived);
    //= RFC 9293 section 3.10.7.3
    //= type=test
    //# Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment
    //#
    //# <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>
    let sent = rig.sent();
    assert_eq!((sent.len(), sent[0].head.seq, sent[0].head.ack), (1, ISS, IRS + 1));
    assert!(sent[0].is(Flags::SYN.with(Flags::ACK)));
    let syn_ack = rig.segment(Flags::SYN.with(Flags::ACK)).at(IRS).acks(ISS + 1);
    assert_eq!(rig.arrives(&syn_ack), None);
    assert_eq!(rig.state(), ConnectionState::Established);
    rig.write(b"x");
    assert_eq!(rig.sent()[0].payload, b"x");
}

#[test]
fn syn_received_resets_a_wrong_acknowledgment_and_drops_what_has_none() {
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# If the segment acknowledgment is not acceptable, form a
    //# reset segment
    //#
    //# <SEQ=SEG.ACK><CTL=RST>
    for ack in [ISS, ISS + 2] {
        let mut rig = ConnectionRig::new(ConnectionState::SynReceived);
        let reset = rig.arrives(&rig.segment(Flags::ACK).acks(ack)).unwrap();
        assert_eq!((reset.seq, reset.flags, rig.state()), (ack, Flags::RST, ConnectionState::SynReceived));
    }
    let mut rig = ConnectionRig::new(ConnectionState::SynReceived);
    rig.ignores(&with(rig.segment(Flags::PSH), b"abc"));
}

#[test]
fn syn_received_becomes_established_with_the_data_of_the_segment_and_close_wait_with_its_fin() {
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED
    //# state and continue processing with the variables below
    //# set to:
    let mut rig = ConnectionRig::new(ConnectionState::SynReceived);
    let data = with(rig.segment(Flags::ACK).acks(ISS + 1), b"abc");
    assert_eq!(rig.arrives(&data), None);
    assert_eq!((rig.state(), rig.read()), (ConnectionState::Established, b"abc".to_vec()));
    let mut rig = ConnectionRig::new(ConnectionState::SynReceived);
    let fin = rig.segment(Flags::ACK.with(Flags::FIN)).acks(ISS + 1);
    assert_eq!(rig.arrives(&fin), None);
    assert_eq!(rig.state(), ConnectionState::CloseWait);
}

#[test]
fn close_before_established_takes_effect_on_establishment() {
    let mut rig = ConnectionRig::new(ConnectionState::SynReceived);
    assert!(rig.call(Connection::close) && !rig.call(Connection::close));
    assert_eq!((rig.state(), rig.sent()), (ConnectionState::SynReceived, vec![]));
    assert_eq!(rig.arrives(&rig.segment(Flags::ACK).acks(ISS + 1)), None);
    assert_eq!(rig.state(), ConnectionState::FinWait1);
    assert!(rig.sent()[0].head.flags.has(Flags::FIN));
    let mut rig = ConnectionRig::new(ConnectionState::SynSent);
    assert!(rig.call(Connection::close));
    assert_eq!(rig.state(), ConnectionState::Closed);
}

#[test]
fn data_queued_before_established_goes_then() {
    //= RFC 9293 section 3.10.2
    //= type=test
    //# Queue the data for transmission after entering ESTABLISHED state.
    let mut rig = ConnectionRig::new(ConnectionState::SynSent);
    rig.write(b"early");
    assert_eq!(rig.sent(), []);
    assert_eq!(rig.arrives(&rig.segment(Flags::SYN.with(Flags::ACK)).acks(ISS + 1)), None);
    let sent = rig.sent();
    assert_eq!((sent.len(), sent[0].payload.as_slice(), sent[0].head.seq), (1, &b"early"[..], ISS + 1));
}

#[test]
fn send_mss_is_smaller_of_both_or_default_without_option() {
    //= RFC 9293 section 3.7.1
    //= type=test
    //# If an MSS Option is not received at connection setup, TCP
    //# implementations MUST assume a default send MSS of 536 (576 - 40) for
    //# IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
    //= RFC 9293 section 3.7.1
    //= type=test
    //# The maximum size of a segment that a TCP endpoint really sends, the
    //# "effective send MSS", MUST be the smaller (MUST-16) of the send MSS
    //# (that reflects the available reassembly buffer size at the remote
    //# host, the EMTU_R [19]) and the largest transmission size permitted by
    //# the IP layer (EMTU_S [19]):
    for (announced, expected) in [(None, 536), (Some(900), 900), (Some(9000), 1460), (Some(1), 88)] {
        let mut rig = ConnectionRig::new(ConnectionState::SynSent);
        let mut syn_ack = rig.segment(Flags::SYN.with(Flags::ACK)).acks(ISS + 1);
        syn_ack.options.mss = announced;
        rig.arrives(&syn_ack);
        rig.write(&[7; 2000]);
        assert_eq!(rig.sent()[0].payload.len(), expected, "{announced:?}");
    }
}

#[test]
fn passive_syn_received_on_syn_or_rst_closes_silently() {
    //= RFC 9293 section 3.5
    //= type=test
    //# Note that a TCP implementation MUST keep track of whether a
    //# connection has reached SYN-RECEIVED state as the result of a passive
    //# OPEN or an active OPEN (MUST-11).
    let mut rig = ConnectionRig::new(ConnectionState::SynReceived);
    rig.connection.marks.insert(Marks::PASSIVE);
    assert_eq!(rig.arrives(&rig.segment(Flags::SYN)), None);
    assert_eq!((rig.state(), rig.connection.reason()), (ConnectionState::Closed, Reason::Forgotten));
    let mut rig = ConnectionRig::new(ConnectionState::SynReceived);
    rig.connection.marks.insert(Marks::PASSIVE);
    assert_eq!(rig.arrives(&rig.segment(Flags::RST)), None);
    assert_eq!((rig.state(), rig.connection.reason()), (ConnectionState::Closed, Reason::Forgotten));
}

#[test]
fn simultaneous_open_negotiates_options_offered_by_both() {
    let config = Config { receive_bytes: 1 << 20, stamps: true, scaling: true, ..plain_config() };
    let everything = TcpOptions {
        mss: Some(1200),
        scale: Some(3),
        is_sack_permitted: true,
        stamps: Some(Stamps { value: 7_000, echo: 0 }),
        ..TcpOptions::default()
    };
    for offered in [everything, TcpOptions::default()] {
        let mut rig = ConnectionRig::syn_sent(config);
        let syn = Segment { options: offered, ..rig.segment(Flags::SYN) };
        assert_eq!(rig.arrives(&syn), None);
        let sent = rig.sent().remove(0);
        assert!(sent.is(Flags::SYN.with(Flags::ACK)));
        let answer = sent.head.options;
        assert_eq!((answer.mss, answer.is_sack_permitted), (Some(1460), offered.is_sack_permitted));
        assert_eq!(answer.scale, offered.scale.map(|_| rig.config.scale()));
        assert_eq!(answer.stamps.map(|stamps| stamps.echo), offered.stamps.map(|stamps| stamps.value));
        assert!(rig.config.scale() > 0);
    }
}

#[test]
fn simultaneous_open_negotiates_ecn_if_both_offer_it() {
    let setup = Flags::SYN.with(Flags::ECE).with(Flags::CWR);
    for (ecn, flags) in [(true, setup), (true, Flags::SYN), (false, setup)] {
        let mut rig = ConnectionRig::syn_sent(Config { ecn, ..plain_config() });
        assert_eq!(rig.arrives(&rig.segment(flags)), None);
        let answer = Flags::SYN.with(Flags::ACK);
        let answer = if ecn && flags == setup { answer.with(Flags::ECE) } else { answer };
        assert!(rig.sent()[0].is(answer), "{ecn} {flags:?}");
    }
}
