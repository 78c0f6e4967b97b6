//! Flows, links and payloads that the tests of the template and those of the framing versions (in the lab) have in common.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::{Flow, LinkHeader};

pub(super) const LINK: LinkHeader =
    LinkHeader { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], vlan: None };
pub(super) const TAGGED: LinkHeader =
    LinkHeader { destination: [6, 5, 4, 3, 2, 1], source: [2, 9, 8, 7, 6, 5], vlan: Some(0x123) };

pub(super) fn flow(source: &str, destination: &str) -> Flow {
    let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
    Flow { source: address(source), destination: address(destination), hop_limit: 61, traffic_class: 0xb8 }
}

pub(super) fn flows() -> [Flow; 2] {
    [flow("192.0.2.1:5004", "198.51.100.7:40000"), flow("[2001:db8::1]:5004", "[2001:db8:ff::2]:65535")]
}

pub(super) const RTP: [u8; 12] = [0x80, 33, 0xab, 0xcd, 0, 1, 2, 3, 0xde, 0xad, 0xbe, 0xef];

pub(super) fn any_flow() -> impl Strategy<Value = Flow> {
    let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(a, b)| (a.into(), b.into()));
    // Addresses that stand for IPv4 ones would not be IPv6 on the wire.
    let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(|(mut a, mut b)| {
        (a[0], b[0]) = (a[0] | 0x20, b[0] | 0x20);
        (a.into(), b.into())
    });
    let ips = prop_oneof![v4, v6];
    (ips, any::<[u16; 2]>(), any::<[u8; 2]>()).prop_map(
        |((a, b), [from, to], [hop_limit, traffic_class]): ((IpAddr, IpAddr), _, _)| Flow {
            source: (a, from).into(),
            destination: (b, to).into(),
            hop_limit,
            traffic_class,
        },
    )
}

pub(super) fn any_link() -> impl Strategy<Value = LinkHeader> {
    (any::<[u8; 6]>(), any::<[u8; 6]>(), proptest::option::of(0u16..4096))
        .prop_map(|(destination, source, vlan)| LinkHeader { destination, source, vlan })
}

pub(super) fn any_payload() -> impl Strategy<Value = Vec<u8>> {
    let extreme = proptest::collection::vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 1..9000);
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..9000),
        extreme,
        (1usize..9000).prop_map(|n| vec![0; n])
    ]
}
