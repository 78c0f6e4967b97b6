use super::*;
use crate::netlink::Messages;
use proptest::prelude::*;

/// A message as the kernel would send it.
fn message(request: NetlinkRequest) -> Vec<u8> {
    request.finish(1, 0)
}

fn told(bytes: &[u8]) -> Option<Told> {
    read(Messages::new(bytes).next().unwrap())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A device: link type, index 7, flags, the rest as attributes.
fn device(link_type: u16, flags: u32) -> NetlinkRequest {
    let mut fixed = [0; 16];
    fixed[2..4].copy_from_slice(&link_type.to_ne_bytes());
    fixed[4..8].copy_from_slice(&7u32.to_ne_bytes());
    fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
    NetlinkRequest::new(RTM_NEWLINK, 0, &fixed).with(1, &[2, 0, 0, 0, 0, 9]).with_u32(4, 1500)
}

fn kind_of(request: NetlinkRequest) -> LinkKind {
    match told(&message(request)) {
        Some(Told::Link(link)) => link.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn devices() {
    const UP: u32 = 0x1_0001;
    let v6 = |r: NetlinkRequest| r.with(2, &[0u32, 63, 1280].map(u32::to_ne_bytes).concat());
    let full = device(1, UP).with_nested(26, |r| r.with_nested(10, v6));
    let link = LinkDevice {
        index: 7,
        kind: LinkKind::Ethernet,
        is_running: true,
        mac: Some([2, 0, 0, 0, 0, 9]),
        mtu: 1500,
        hop_limit_v6: Some(63),
    };
    assert_eq!(told(&message(full)), Some(Told::Link(link)));
    for (flags, is_running) in [(UP, true), (1, false), (0x1_0000, false)] {
        let Some(Told::Link(link)) = told(&message(device(1, flags))) else { panic!() };
        assert_eq!(link.is_running, is_running);
    }
    assert_eq!(kind_of(device(772, UP)), LinkKind::Other);
    let info = |kind: &'static [u8]| device(1, UP).with_nested(18, |r| r.with(1, kind));
    assert_eq!(kind_of(info(b"veth\0")), LinkKind::Ethernet);
    assert_eq!(kind_of(info(b"bridge\0")), LinkKind::Other);
    let vlan = |protocol: u16| {
        let data = move |r: NetlinkRequest| r.with(1, &33u16.to_ne_bytes()).with(5, &protocol.to_be_bytes());
        device(1, UP).with_u32(5, 3).with_nested(18, move |r| r.with(1, b"vlan\0").with_nested(2, data))
    };
    assert_eq!(kind_of(vlan(0x8100)), LinkKind::Vlan { id: 33, lower: 3 });
    assert_eq!(kind_of(vlan(0x88a8)), LinkKind::Other);
    // The device below is in another namespace: its number means nothing here.
    assert_eq!(kind_of(vlan(0x8100).with_u32(37, 0)), LinkKind::Other);
    // A port of a bridge, reported by the bridge.
    let mut port = message(device(1, UP));
    port[16] = libc::AF_BRIDGE as u8;
    assert_eq!(told(&port), None);
}

fn neighbour_message(state: u16, flags: u8, mac: Option<&[u8]>, extended: u32) -> Option<Told> {
    let key = NeighbourKey { if_index: 4, address: ip("10.0.0.9") };
    let mut fixed = neighbour_head(key, flags);
    fixed[8..10].copy_from_slice(&state.to_ne_bytes());
    let mut request = NetlinkRequest::new(RTM_NEWNEIGH, 0, &fixed).with(NDA_DST, &[10, 0, 0, 9]);
    if let Some(mac) = mac {
        request = request.with(NDA_LLADDR, mac);
    }
    told(&message(request.with_u32(NDA_FLAGS_EXT, extended)))
}

#[test]
fn neighbours() {
    let key = NeighbourKey { if_index: 4, address: ip("10.0.0.9") };
    let mac = [2, 0, 0, 0, 0, 1];
    let valid = |is_stale| NeighbourState::Valid { mac, is_stale };
    let cases = [
        (1, 0, None, 0, NeighbourState::Incomplete, false, false),
        (2, 0, Some(&mac[..]), 0, valid(false), false, false),
        (4, 0, Some(&mac[..]), 1, valid(true), false, true),
        (32, 0, None, 0, NeighbourState::Failed, false, false),
        (32, 0, Some(&mac[..]), 0, NeighbourState::Failed, false, false),
        (128, 0, Some(&mac[..]), 0, valid(false), true, false),
        (2, NTF_EXT_LEARNED, Some(&mac[..]), 0, valid(false), true, false),
        // An address that is not Ethernet's.
        (2, 0, Some(&[1, 2, 3, 4][..]), 0, NeighbourState::Incomplete, false, false),
    ];
    for (state, flags, lladdr, extended, expected, is_foreign, is_managed) in cases {
        let neighbour = Neighbour { key, state: expected, is_foreign, is_managed };
        assert_eq!(neighbour_message(state, flags, lladdr, extended), Some(Told::Neighbour(neighbour)));
    }
}

fn route_message(route_type: u8, family: u8) -> NetlinkRequest {
    let mut fixed = [0; 12];
    (fixed[0], fixed[7]) = (family, route_type);
    NetlinkRequest::new(RTM_NEWROUTE, 0, &fixed)
}

fn route_of(request: NetlinkRequest) -> Route {
    read_route(Messages::new(&message(request)).next().unwrap()).unwrap()
}

#[test]
fn routes() {
    let metrics = |r: NetlinkRequest| r.with_u32(2, 1400).with_u32(10, 9);
    let request = route_message(RTN_UNICAST, AF_INET)
        .with_u32(4, 3)
        .with(5, &[10, 0, 0, 1])
        .with(7, &[10, 0, 0, 2])
        .with_nested(8, metrics);
    let expected = Route {
        next_hops: vec![NextHop { if_index: 3, gateway: Some(ip("10.0.0.1")) }],
        source: Some(ip("10.0.0.2")),
        mtu: Some(1400),
        hop_limit: Some(9),
    };
    assert_eq!(route_of(request), expected);
    // A gateway of the other family.
    let via = [&10u16.to_ne_bytes()[..], &octets(ip("fe80::1"))].concat();
    let route = route_of(route_message(RTN_UNICAST, AF_INET).with_u32(4, 3).with(18, &via));
    assert_eq!(route.next_hops, [NextHop { if_index: 3, gateway: Some(ip("fe80::1")) }]);
    // Own addresses, refusals, encapsulation.
    for local in [2, 3, 6, 7, 8] {
        assert_eq!(route_of(route_message(local, AF_INET).with_u32(4, 1)).next_hops, []);
    }
    let wrapped = route_message(RTN_UNICAST, AF_INET).with_u32(4, 3).with(22, &[0; 4]);
    assert_eq!(route_of(wrapped).next_hops, []);
}

#[test]
fn several_ways_are_taken_in_order_and_dead_ones_left_out() {
    let one = |flags: u8, if_index: u8, gateway: u8| {
        let mut bytes = vec![16, 0, flags, 0, if_index, 0, 0, 0, 8, 0, 5, 0, 10, 0, 0, gateway];
        bytes[..2].copy_from_slice(&16u16.to_ne_bytes());
        bytes[4..8].copy_from_slice(&u32::from(if_index).to_ne_bytes());
        bytes[8..10].copy_from_slice(&8u16.to_ne_bytes());
        bytes[10..12].copy_from_slice(&5u16.to_ne_bytes());
        bytes
    };
    let ways = [one(0, 3, 1), one(1, 4, 2), one(16, 5, 3), one(0, 6, 4)].concat();
    let route = route_of(route_message(RTN_UNICAST, AF_INET).with(9, &ways));
    let hop = |if_index, last: u8| NextHop { if_index, gateway: Some(IpAddr::from([10, 0, 0, last])) };
    assert_eq!(route.next_hops, [hop(3, 1), hop(6, 4)]);
    // Truncated anywhere: the complete next hops count.
    for end in 0..ways.len() {
        let route = route_of(route_message(RTN_UNICAST, AF_INET).with(9, &ways[..end]));
        assert!(route.next_hops.len() <= 1 + end / 48, "{end}");
    }
}

#[test]
fn prefixes_hold_what_begins_like_them() {
    let holds = |address: &str, bits, other: &str| Prefix { address: ip(address), bits }.holds(ip(other));
    assert!(holds("10.1.0.0", 16, "10.1.255.1") && !holds("10.1.0.0", 16, "10.2.0.1"));
    assert!(holds("10.1.2.3", 32, "10.1.2.3") && !holds("10.1.2.3", 32, "10.1.2.2"));
    assert!(holds("0.0.0.0", 0, "192.0.2.1") && !holds("0.0.0.0", 0, "::1"));
    assert!(holds("fd00::", 8, "fdff::1") && !holds("fd00::", 8, "fe80::1"));
    assert!(holds("fd00::1", 128, "fd00::1") && !holds("fd00::1", 128, "fd00::2"));
    // Lengths that no address has are no reason to panic.
    assert!(holds("10.0.0.1", 255, "10.0.0.1") && holds("::", 255, "::"));
}

#[test]
fn netlink_change_message_maps_to_affected_routes() {
    let mut fixed = [0; 12];
    (fixed[0], fixed[1]) = (AF_INET, 24);
    let route = message(NetlinkRequest::new(RTM_DELROUTE, 0, &fixed).with(RTA_DST, &[10, 1, 2, 0]));
    assert_eq!(told(&route), Some(Told::Routes(Prefix { address: ip("10.1.2.0"), bits: 24 })));
    let default = message(NetlinkRequest::new(RTM_NEWROUTE, 0, &[AF_INET6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(told(&default), Some(Told::Routes(Prefix { address: ip("::"), bits: 0 })));
    let address = message(NetlinkRequest::new(RTM_DELADDR, 0, &[AF_INET6, 64, 0, 0, 0, 0, 0, 0]));
    assert_eq!(told(&address), Some(Told::Addresses(true)));
    assert_eq!(told(&message(NetlinkRequest::new(RTM_NEWNEXTHOP, 0, &[0; 8]))), Some(Told::Anything));
    assert_eq!(told(&message(NetlinkRequest::new(RTM_NEWRULE, 0, &[0; 12]))), Some(Told::Anything));
}

proptest! {
    /// Bytes from outside, with a head that leads into each reader.
    #[test]
    fn read_of_any_message_never_panics(
        kind in prop_oneof![16u16..34, 100u16..110, any::<u16>()],
        family in prop_oneof![Just(0u8), Just(2), Just(10), any::<u8>()],
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut body = body;
        if let Some(first) = body.first_mut() {
            *first = family;
        }
        let message = NetlinkMessage { kind, sequence: 0, body: &body };
        let _ = read(message);
        let _ = read_route(NetlinkMessage { kind: RTM_NEWROUTE, ..message });
    }

    /// True messages with a few bytes changed or cut off.
    #[test]
    fn damaged_messages_are_read_or_left(seed in 0usize..4, edits in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..6), cut in 0usize..40) {
        let whole = match seed {
            0 => message(device(1, 1).with_u32(5, 3).with_nested(18, |r| {
                r.with(1, b"vlan\0").with_nested(2, |r| r.with(1, &33u16.to_ne_bytes()))
            })),
            1 => message(route_message(RTN_UNICAST, AF_INET).with_u32(4, 3).with(9, &[16, 0, 0, 0, 3, 0, 0, 0, 8, 0, 5, 0, 1, 2, 3, 4]).with_nested(8, |r| r.with_u32(2, 9))),
            2 => message(find_neighbour(NeighbourKey { if_index: 1, address: ip("fe80::1") })),
            _ => message(use_neighbour(NeighbourKey { if_index: 1, address: ip("10.0.0.1") }, true)),
        };
        let mut bytes = whole[..whole.len().saturating_sub(cut)].to_vec();
        for (at, value) in edits {
            let length = bytes.len();
            if length > 0 {
                bytes[at % length] = value;
            }
        }
        for message in Messages::new(&bytes) {
            let _ = (read(message), read_route(message));
        }
    }
}
