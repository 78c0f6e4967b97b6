//! Next hops of a host with a veth link to another, as the kernel changes them. Needs root; skipped otherwise.

use std::net::IpAddr;
use std::time::Instant;

use crate::support::*;
use millrace_netio::route::{Hop, HopTable, RouteWatch};

const OWN_MAC: [u8; 6] = [2, 0, 0, 0x77, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0x77, 0, 2];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0x77, 0, 4];

/// Two hosts; nothing is known of the neighbours.
struct Net {
    host: Netns,
    peer: Netns,
}

impl Net {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return None;
        }
        let net = Self { host: Netns::new("rh"), peer: Netns::new("rp") };
        net.host.ip(&format!("link add va type veth peer name vb netns {}", net.peer.name));
        net.host.ip("link set va address 02:00:00:77:00:01");
        net.peer.ip("link set vb address 02:00:00:77:00:02");
        for (ns, device, last) in [(&net.host, "va", 1), (&net.peer, "vb", 2)] {
            ns.ip(&format!("addr add 10.9.1.{last}/24 dev {device}"));
            ns.ip(&format!("addr add fd09::{last}/64 dev {device} nodad"));
            ns.ip(&format!("link set {device} up"));
        }
        net.host.wait_until_up("va");
        net.peer.wait_until_up("vb");
        net.host.ip("neigh add 10.9.1.4 lladdr 02:00:00:77:00:04 dev va nud permanent");
        net.host.ip("neigh add fd09::4 lladdr 02:00:00:77:00:04 dev va nud permanent");
        Some(net)
    }

    fn watch(&self) -> (RouteWatch, HopTable) {
        let watch = self.host.inside(RouteWatch::start).expect("a watch");
        let table = watch.table();
        (watch, table)
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The hop of a destination, once it is as wanted: the kernel and the thread take a moment.
fn wait_for(table: &mut HopTable, to: &str, is_wanted: impl Fn(Option<&Hop>) -> bool) -> Option<Hop> {
    let begun = Instant::now();
    loop {
        table.poll();
        let hop = table.hop(ip(to)).map(|id| *table.get(id));
        if is_wanted(hop.as_ref()) {
            return hop;
        }
        assert!(begun.elapsed() < TIMEOUT, "{to}: not as wanted: {hop:?}");
        std::thread::yield_now();
    }
}

fn usable(table: &mut HopTable, to: &str) -> Hop {
    wait_for(table, to, |hop| hop.is_some()).expect("a hop")
}

fn mac_is(mac: [u8; 6]) -> impl Fn(Option<&Hop>) -> bool {
    move |hop| hop.is_some_and(|hop| hop.link.destination == mac)
}

#[test]
fn neighbours_on_the_link_are_found() {
    let Some(net) = Net::new() else { return };
    let (_watch, mut table) = net.watch();
    for (to, source) in [("10.9.1.2", "10.9.1.1"), ("fd09::2", "fd09::1")] {
        let hop = usable(&mut table, to);
        assert_eq!((hop.link.destination, hop.link.source, hop.link.vlan), (PEER_MAC, OWN_MAC, None));
        assert_eq!((hop.source, hop.mtu, hop.hop_limit), (ip(source), 1500, 64));
    }
    let index = net.host.must("cat /sys/class/net/va/ifindex").trim().parse::<u32>().expect("a number");
    assert_eq!(usable(&mut table, "10.9.1.2").if_index, index);
}

#[test]
fn neighbour_address_change_reaches_existing_hops() {
    let Some(net) = Net::new() else { return };
    let (_watch, mut table) = net.watch();
    for (to, via) in [("10.9.1.2", "10.9.1.2"), ("fd09::2", "fd09::2")] {
        let before = usable(&mut table, to);
        let id = table.hop(ip(to)).expect("a hop");
        net.host.ip(&format!("neigh replace {via} lladdr 02:00:00:77:00:04 dev va nud reachable"));
        let after = wait_for(&mut table, to, mac_is(OTHER_MAC)).expect("a hop");
        assert_ne!(before.generation, after.generation);
        assert_eq!(*table.get(id), after);
    }
}

#[test]
fn destinations_behind_a_gateway_share_its_header() {
    let Some(net) = Net::new() else { return };
    let (watch, mut table) = net.watch();
    net.host.ip("addr add 10.9.1.10/24 dev va");
    net.host.ip("route add 10.99.0.0/24 via 10.9.1.2");
    net.host.ip("route add 10.99.1.0/24 via 10.9.1.2 src 10.9.1.10");
    net.host.ip("route add fd99::/64 via fd09::2");
    for (to, source) in [("10.99.0.1", "10.9.1.1"), ("10.99.1.1", "10.9.1.10"), ("fd99::1", "fd09::1")] {
        let hop = usable(&mut table, to);
        assert_eq!((hop.link.destination, hop.source), (PEER_MAC, ip(source)));
    }
    // Another gateway, in every way that there is to say so.
    net.host.ip("route replace 10.99.0.0/24 via 10.9.1.4");
    net.host.ip("route replace fd99::/64 via fd09::4");
    net.host.ip("route add 10.99.1.1/32 via 10.9.1.4");
    for to in ["10.99.0.1", "fd99::1", "10.99.1.1"] {
        wait_for(&mut table, to, mac_is(OTHER_MAC));
    }
    assert!(watch.look_ups() >= 6 && watch.overruns() == 0);
}

#[test]
fn shared_next_hops_and_several_ways() {
    let Some(net) = Net::new() else { return };
    let (_watch, mut table) = net.watch();
    if !net.host.command("ip nexthop add id 5 via 10.9.1.2 dev va").status.success() {
        eprintln!("skipped: this kernel or ip program has no next-hop objects");
        return;
    }
    net.host.ip("route add 10.98.0.0/16 nhid 5");
    wait_for(&mut table, "10.98.0.1", mac_is(PEER_MAC));
    net.host.ip("nexthop replace id 5 via 10.9.1.4 dev va");
    wait_for(&mut table, "10.98.0.1", mac_is(OTHER_MAC));
    net.host.ip("route add 10.97.0.0/16 nexthop via 10.9.1.2 dev va nexthop via 10.9.1.4 dev va");
    for last in 1..20 {
        let hop = usable(&mut table, &format!("10.97.0.{last}"));
        assert!([PEER_MAC, OTHER_MAC].contains(&hop.link.destination));
    }
}

#[test]
fn link_down_disables_hops_until_link_is_up_again() {
    let Some(net) = Net::new() else { return };
    let (_watch, mut table) = net.watch();
    net.host.ip("route add 10.99.0.0/24 via 10.9.1.2");
    usable(&mut table, "10.99.0.1");
    usable(&mut table, "10.9.1.2");
    // The other end: the carrier goes, the routes stay.
    net.peer.ip("link set vb down");
    wait_for(&mut table, "10.9.1.2", |hop| hop.is_none());
    wait_for(&mut table, "10.99.0.1", |hop| hop.is_none());
    net.peer.ip("link set vb up");
    usable(&mut table, "10.9.1.2");
    usable(&mut table, "10.99.0.1");
    // This end: the routes go with it.
    net.host.ip("link set va down");
    wait_for(&mut table, "10.9.1.2", |hop| hop.is_none());
    net.host.ip("link set va up");
    usable(&mut table, "10.9.1.2");
    wait_for(&mut table, "10.99.0.1", |hop| hop.is_none());
    net.host.ip("link del va");
    wait_for(&mut table, "10.9.1.2", |hop| hop.is_none());
}

#[test]
fn hop_mtu_is_minimum_of_link_and_route() {
    let Some(net) = Net::new() else { return };
    let (_watch, mut table) = net.watch();
    net.host.ip("route add 10.99.0.0/24 via 10.9.1.2");
    assert_eq!(usable(&mut table, "10.99.0.1").mtu, 1500);
    net.host.ip("link set va mtu 1400");
    wait_for(&mut table, "10.99.0.1", |hop| hop.is_some_and(|hop| hop.mtu == 1400));
    net.host.ip("route replace 10.99.0.0/24 via 10.9.1.2 mtu 1300 hoplimit 9");
    let hop = wait_for(&mut table, "10.99.0.1", |hop| hop.is_some_and(|hop| hop.mtu == 1300));
    assert_eq!(hop.expect("a hop").hop_limit, 9);
    assert_eq!(usable(&mut table, "10.9.1.2").mtu, 1400);
}

#[test]
fn unreachable_destinations_are_retried_at_limited_rate() {
    let Some(net) = Net::new() else { return };
    let (watch, mut table) = net.watch();
    net.host.ip("route add unreachable 10.50.0.0/16");
    net.host.ip("route add blackhole 10.51.0.0/16");
    let nowhere = ["10.50.0.1", "10.51.0.1", "10.60.0.1", "127.0.0.1", "10.9.1.1", "10.9.1.255", "::1"];
    for to in nowhere.into_iter().chain(["10.9.1.77", "fd09::77"]) {
        assert_eq!(table.hop(ip(to)), None);
    }
    // Known neighbours come after: by then all others have been answered too.
    usable(&mut table, "10.9.1.2");
    for to in nowhere {
        assert_eq!(table.hop(ip(to)), None, "{to}");
    }
    // No host is there yet: the kernel gives up, each in its own time. Nothing is requested
    // meanwhile, or the kernel would try again at once.
    let mut not_failed = vec!["10.9.1.77", "fd09::77"];
    let begun = Instant::now();
    while !not_failed.is_empty() {
        not_failed.retain(|to| !net.host.must(&format!("ip neigh show to {to}")).contains("FAILED"));
        assert!(not_failed.is_empty() || begun.elapsed() < TIMEOUT, "still asked for: {not_failed:?}");
    }
    table.poll();
    assert_eq!((table.hop(ip("10.9.1.77")), table.hop(ip("fd09::77"))), (None, None));
    net.peer.ip("addr add 10.9.1.77/24 dev vb");
    net.peer.ip("addr add fd09::77/64 dev vb nodad");
    assert_eq!(usable(&mut table, "10.9.1.77").link.destination, PEER_MAC);
    assert_eq!(usable(&mut table, "fd09::77").link.destination, PEER_MAC);
    net.host.ip("route replace 10.50.0.0/16 via 10.9.1.2");
    usable(&mut table, "10.50.0.1");
    // However often a loop asks: a destination is looked up about once a second.
    let look_ups = watch.look_ups();
    let begun = Instant::now();
    while begun.elapsed().as_millis() < 300 {
        table.poll();
        assert_eq!(table.hop(ip("10.60.0.1")), None);
    }
    assert!(watch.look_ups() - look_ups < 50, "{} look-ups", watch.look_ups() - look_ups);
}

#[test]
fn multicast_needs_no_neighbour() {
    let Some(net) = Net::new() else { return };
    let (_watch, mut table) = net.watch();
    net.host.ip("route add 224.0.0.0/4 dev va");
    net.host.ip("route add ff3e::/16 dev va table local");
    let hop = usable(&mut table, "239.129.2.3");
    assert_eq!((hop.link.destination, hop.hop_limit), ([1, 0, 0x5e, 1, 2, 3], 1));
    assert_eq!(hop.source, ip("10.9.1.1"));
    let hop = usable(&mut table, "ff3e::8000:1234");
    assert_eq!((hop.link.destination, hop.hop_limit), ([0x33, 0x33, 0x80, 0, 0x12, 0x34], 1));
}

#[test]
fn vlan_hop_leaves_by_lower_device() {
    let Some(net) = Net::new() else { return };
    if !net.host.command("ip link add link va name va5 type vlan id 5").status.success() {
        eprintln!("skipped: this kernel has no VLAN devices (CONFIG_VLAN_8021Q)");
        return;
    }
    net.host.ip("addr add 10.5.0.1/24 dev va5");
    net.host.ip("link set va5 up");
    net.host.ip("link set va5 mtu 1450");
    net.host.ip("neigh add 10.5.0.2 lladdr 02:00:00:77:00:04 dev va5 nud permanent");
    let (_watch, mut table) = net.watch();
    let lower = usable(&mut table, "10.9.1.2").if_index;
    let hop = usable(&mut table, "10.5.0.2");
    assert_eq!((hop.if_index, hop.link.vlan, hop.mtu), (lower, Some(5), 1450));
    assert_eq!(hop.link.destination, OTHER_MAC);
}

#[test]
fn neighbours_are_kept_fresh_and_given_back() {
    let Some(net) = Net::new() else { return };
    let (watch, mut table) = net.watch();
    usable(&mut table, "10.9.1.2");
    let about = || net.host.must("ip -d neigh show to 10.9.1.2");
    let is_managed = || about().contains("managed");
    if !is_managed() {
        eprintln!("skipped: this kernel or ip program knows no managed neighbours: {}", about());
        return;
    }
    // When stale, it is resolved again although nothing is sent through the kernel.
    net.host.ip("neigh replace 10.9.1.2 lladdr 02:00:00:77:00:02 dev va nud stale");
    let begun = Instant::now();
    while about().contains("STALE") {
        assert!(begun.elapsed() < TIMEOUT, "{}", about());
    }
    // Deleted, it is found again.
    net.host.ip("neigh del 10.9.1.2 dev va");
    wait_for(&mut table, "10.9.1.2", mac_is(PEER_MAC));
    // Those of an administrator are left alone.
    usable(&mut table, "10.9.1.4");
    assert!(net.host.must("ip neigh show to 10.9.1.4").contains("PERMANENT"));
    drop(watch);
    assert!(!is_managed(), "{}", about());
    table.poll();
    assert_eq!(table.hop(ip("10.9.1.2")), None);
}

#[test]
fn several_tables_hear_the_same() {
    let Some(net) = Net::new() else { return };
    let (watch, mut first) = net.watch();
    let mut second = watch.table();
    usable(&mut first, "10.9.1.2");
    usable(&mut second, "10.9.1.2");
    drop(first);
    net.host.ip("link set va mtu 1300");
    wait_for(&mut second, "10.9.1.2", |hop| hop.is_some_and(|hop| hop.mtu == 1300));
}
