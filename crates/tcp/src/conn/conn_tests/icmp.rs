//! Error messages of ICMP.

use super::*;
use crate::limits::MSS_MIN;
use crate::stack::{IcmpKind, Undelivered};

const PORT: IcmpKind = IcmpKind::Undelivered(Undelivered::Port);
const HOST: IcmpKind = IcmpKind::Undelivered(Undelivered::Host);
/// Headers of IPv4 and TCP.
const HEADERS: u32 = 40;

fn too_big(mtu: u32) -> IcmpKind {
    IcmpKind::TooBig { mtu }
}

impl ConnectionRig {
    /// Delivers a message about the segment that began with byte `bytes` of the stream; returns
    /// whether it was trusted.
    fn icmp(&mut self, bytes: u32, kind: IcmpKind) -> bool {
        let seq = ISS + 1 + bytes;
        self.call(|connection, env| connection.icmp(env, seq, kind))
    }

    /// Four segments in flight.
    fn busy() -> Self {
        let mut rig = Self::established();
        rig.write(&[7; 4 * 1460]);
        assert_eq!(rig.sent().len(), 4);
        rig
    }
}

//= RFC 9293 section 3.9.2.2
//= type=test
//# Since these Unreachable messages indicate soft error conditions, a
//# TCP implementation MUST NOT abort the connection (MUST-56), and it
//# SHOULD make the information available to the application (SHLD-25).
#[test]
fn icmp_soft_error_is_reported_without_closing() {
    for mut rig in [ConnectionRig::new(ConnectionState::SynSent), ConnectionRig::busy()] {
        let (state, at) = (rig.state(), rig.connection.snd_una().since(ISS + 1));
        rig.connection.take_happened();
        let seq = (ISS + 1) + at as u32;
        assert!(rig.call(|connection, env| connection.icmp(env, seq, HOST)), "{state:?}");
        assert_eq!((rig.state(), rig.connection.undelivered()), (state, Some(Undelivered::Host)));
        assert_eq!(rig.connection.take_happened(), Happened::UNDELIVERED);
    }
    let mut rig = ConnectionRig::busy();
    rig.icmp(0, HOST);
    let ack = rig.segment(Flags::ACK).acks(ISS + 1 + 1460);
    rig.arrives(&ack);
    assert_eq!(rig.connection.undelivered(), None, "something came through since");
}

//= RFC 9293 section 3.9.2.2
//= type=test
//# These are hard error conditions, so TCP implementations SHOULD
//# abort the connection (SHLD-26).  [35] notes that some
//# implementations do not abort connections when an ICMP hard error is
//# received for a connection that is in any of the synchronized
//# states.
#[test]
fn icmp_hard_error_closes_syn_sent_only() {
    let mut rig = ConnectionRig::new(ConnectionState::SynSent);
    assert_eq!(
        (rig.state(), rig.call(|c, env| c.icmp(env, ISS + 1, PORT))),
        (ConnectionState::SynSent, false)
    );
    assert_eq!(rig.state(), ConnectionState::SynSent, "it quotes another segment");
    assert!(rig.call(|c, env| c.icmp(env, ISS, PORT)));
    assert_eq!((rig.state(), rig.connection.reason()), (ConnectionState::Closed, Reason::Unreachable));
    assert_eq!(rig.connection.undelivered(), Some(Undelivered::Port));
    assert!(rig.connection.take_happened().has(Happened::CLOSED));

    let mut rig = ConnectionRig::busy();
    assert!(rig.icmp(0, PORT));
    assert_eq!(rig.state(), ConnectionState::Established);
    for state in SYNCHRONIZED {
        let mut rig = ConnectionRig::new(state);
        for bytes in [0, u32::MAX, 1 << 20] {
            rig.icmp(bytes, PORT);
            assert_eq!(rig.state(), state);
        }
    }
}

#[test]
fn icmp_error_about_data_not_in_flight_is_ignored() {
    let mut rig = ConnectionRig::busy();
    let ack = rig.segment(Flags::ACK).acks(ISS + 1 + 1460);
    rig.arrives(&ack);
    for bytes in [0, 1459, 4 * 1460, u32::MAX, 1 << 31] {
        assert!(!rig.icmp(bytes, HOST) && !rig.icmp(bytes, too_big(1000)), "{bytes}");
    }
    assert_eq!((rig.connection.undelivered(), rig.connection.sender().mss()), (None, 1460));
    assert!(rig.icmp(1460, HOST) && rig.icmp(4 * 1460 - 1, too_big(1000)));
    let mut idle = ConnectionRig::established();
    assert!(!idle.icmp(0, HOST) && !idle.icmp(0, too_big(1000)));
}

#[test]
fn icmp_too_big_is_accepted_if_quoted_segment_was_larger() {
    let mut rig = ConnectionRig::busy();
    for mtu in [1500, 1501, 9000, u32::MAX] {
        assert!(!rig.icmp(0, too_big(mtu)), "{mtu} bytes would have passed");
    }
    assert!(rig.icmp(0, too_big(1300)));
    assert_eq!((u32::from(rig.connection.sender().mss()), rig.counters.icmp_too_big), (1300 - HEADERS, 1));
    let again = rig.sent();
    assert_eq!(again.first().map(|sent| (sent.head.seq, sent.payload.len())), Some((ISS + 1, 1260)));
    assert!(again.iter().all(|sent| sent.payload.len() <= 1260), "{again:?}");
    assert_eq!(
        again.iter().map(|sent| sent.payload.len()).sum::<usize>(),
        4 * 1460,
        "nothing but what was in flight"
    );
    assert!(!rig.icmp(0, too_big(1300)), "the others of the same flight say the same");
    assert!(rig.icmp(0, too_big(60)));
    assert_eq!(rig.connection.sender().mss(), MSS_MIN, "not to be made to send crumbs");
}

#[test]
fn icmp_too_big_without_mtu_uses_next_smaller_plateau() {
    let mut rig = ConnectionRig::busy();
    for mss in [1492 - HEADERS, 1006 - HEADERS, u32::from(MSS_MIN)] {
        assert!(rig.icmp(0, too_big(0)));
        assert_eq!(u32::from(rig.connection.sender().mss()), mss);
        // Segments in flight have this size from now on.
        rig.sent();
    }
}

//= RFC 8201 section 4
//= type=test
//# If a node receives a Packet Too Big message reporting a next-hop MTU
//# that is less than the IPv6 minimum link MTU, it must discard it.
#[test]
fn ipv6_never_takes_less_than_1280_bytes() {
    let mut rig = ConnectionRig::busy();
    rig.connection.marks_mut().remove(Marks::IS_V4);
    for mtu in [0, 68, 1279] {
        assert!(!rig.icmp(0, too_big(mtu)), "{mtu}");
    }
    assert_eq!(rig.connection.sender().mss(), 1460);
    assert!(rig.icmp(0, too_big(1280)));
    assert_eq!(rig.connection.sender().mss(), 1280 - 60);
}
