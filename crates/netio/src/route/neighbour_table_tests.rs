use super::*;
use crate::route::wire::{NextHop, Prefix};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;
const TABLE: TableId = 0;
const GATEWAY: &str = "10.0.0.1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn id(slot: u32) -> HopId {
    HopId { slot, tenancy: 0 }
}

fn link(index: u32) -> LinkDevice {
    let mac = Some([2, 0, 0, 0, 0, index as u8]);
    LinkDevice { index, kind: LinkKind::Ethernet, is_running: true, mac, mtu: 1500, hop_limit_v6: Some(60) }
}

fn via(if_index: u32, gateway: Option<&str>) -> Route {
    let next_hops = vec![NextHop { if_index, gateway: gateway.map(ip) }];
    Route { next_hops, source: Some(ip("10.0.0.9")), mtu: None, hop_limit: None }
}

fn key(if_index: u32, address: &str) -> NeighbourKey {
    NeighbourKey { if_index, address: ip(address) }
}

fn neighbour(key: NeighbourKey, state: NeighbourState) -> Told {
    Told::Neighbour(Neighbour { key, state, is_foreign: false, is_managed: false })
}

fn valid(last: u8) -> NeighbourState {
    NeighbourState::Valid { mac: [9, 9, 9, 9, 9, last], is_stale: false }
}

fn neighbour_table() -> NeighbourTable {
    let mut neighbour_table = NeighbourTable::new(Defaults { hop_limit_v4: 61 });
    neighbour_table.resync(vec![link(2), link(3)], 0);
    assert_eq!(actions(&mut neighbour_table), []);
    neighbour_table
}

fn actions(neighbour_table: &mut NeighbourTable) -> Vec<Action> {
    std::iter::from_fn(|| neighbour_table.next_action()).collect()
}

/// Returns the actions of a turn at `now_ns`.
fn turn(neighbour_table: &mut NeighbourTable, now_ns: u64) -> Vec<Action> {
    neighbour_table.tick(now_ns);
    actions(neighbour_table)
}

/// Returns the hops reported; fails on any other action.
fn said(actions: Vec<Action>) -> Vec<(u32, Hop)> {
    let one = |action| match action {
        Action::Say { update: Update::Hop { id, hop }, .. } => (id.slot, hop),
        other => panic!("{other:?}"),
    };
    actions.into_iter().map(one).collect()
}

/// A neighbour table in which slot 0 sends to `to`, over the gateway.
fn settled(to: &str) -> NeighbourTable {
    let mut neighbour_table = neighbour_table();
    neighbour_table.ask(TABLE, id(0), ip(to), 0);
    assert_eq!(turn(&mut neighbour_table, 0), [Action::LookUp(ip(to))]);
    neighbour_table.route(ip(to), Some(via(2, Some(GATEWAY))), 0);
    assert_eq!(actions(&mut neighbour_table), [Action::Find(key(2, GATEWAY))]);
    neighbour_table.told(neighbour(key(2, GATEWAY), valid(1)), 0);
    assert_eq!(said(actions(&mut neighbour_table)).len(), 1);
    neighbour_table
}

#[test]
fn ask_resolves_route_neighbour_and_hop() {
    let mut neighbour_table = neighbour_table();
    neighbour_table.ask(TABLE, id(7), ip("10.1.0.1"), 0);
    assert_eq!(neighbour_table.deadline_ns(), Some(0));
    assert_eq!(turn(&mut neighbour_table, 0), [Action::LookUp(ip("10.1.0.1"))]);
    neighbour_table.route(ip("10.1.0.1"), Some(via(2, Some(GATEWAY))), 0);
    assert_eq!(actions(&mut neighbour_table), [Action::Find(key(2, GATEWAY))]);
    neighbour_table.no_neighbour(key(2, GATEWAY), 0);
    assert_eq!(actions(&mut neighbour_table), [Action::Use { key: key(2, GATEWAY), is_kept: true }]);
    neighbour_table.told(neighbour(key(2, GATEWAY), NeighbourState::Incomplete), 1);
    assert_eq!(actions(&mut neighbour_table), []);
    neighbour_table.told(neighbour(key(2, GATEWAY), valid(1)), 2);
    let all = said(actions(&mut neighbour_table));
    let link = LinkHeader { destination: [9, 9, 9, 9, 9, 1], source: [2, 0, 0, 0, 0, 2], vlan: None };
    let source = ip("10.0.0.9");
    let hop = Hop { if_index: 2, link, source, mtu: 1500, hop_limit: 61, usable: true, generation: 0 };
    assert_eq!(all, [(7, hop)]);
    // The next one behind the gateway has its answer with its route.
    neighbour_table.ask(TABLE, id(8), ip("10.1.0.2"), 3);
    assert_eq!(turn(&mut neighbour_table, 3), [Action::LookUp(ip("10.1.0.2"))]);
    let route =
        Route { source: Some(ip("10.0.0.8")), mtu: Some(1300), hop_limit: Some(5), ..via(2, Some(GATEWAY)) };
    neighbour_table.route(ip("10.1.0.2"), Some(route), 3);
    let other = Hop { source: ip("10.0.0.8"), mtu: 1300, hop_limit: 5, ..hop };
    assert_eq!(said(actions(&mut neighbour_table)), [(8, other)]);
    // A loop that asks for a known destination is answered at once.
    neighbour_table.ask(1, id(0), ip("10.1.0.1"), 4);
    assert_eq!(said(turn(&mut neighbour_table, 4)), [(0, hop)]);
}

#[test]
fn neighbours_change_fail_and_come_back() {
    let mut neighbour_table = settled("10.1.0.1");
    let gateway = key(2, GATEWAY);
    neighbour_table.told(neighbour(gateway, valid(2)), S);
    assert_eq!(said(actions(&mut neighbour_table))[0].1.link.destination[5], 2);
    neighbour_table.told(neighbour(gateway, valid(2)), S);
    assert_eq!(actions(&mut neighbour_table), []);
    // Other neighbours interest no loop.
    neighbour_table.told(neighbour(key(2, "10.0.0.77"), valid(3)), S);
    neighbour_table.told(Told::NeighbourGone(key(3, GATEWAY)), S);
    assert_eq!(actions(&mut neighbour_table), []);
    // Unconfirmed, it is used in the kernel's eyes, and goes on being used in ours.
    let stale = NeighbourState::Valid { mac: [9, 9, 9, 9, 9, 2], is_stale: true };
    neighbour_table.told(neighbour(gateway, stale), S);
    assert_eq!(actions(&mut neighbour_table), [Action::Use { key: gateway, is_kept: true }]);
    neighbour_table.told(neighbour(gateway, NeighbourState::Failed), 2 * S);
    assert_eq!(said(actions(&mut neighbour_table)), [(0, Hop::UNUSABLE)]);
    // The loop asks again: a second after the last look-up, not before.
    neighbour_table.ask(TABLE, id(0), ip("10.1.0.1"), 2 * S);
    assert_eq!(turn(&mut neighbour_table, 2 * S), [Action::LookUp(ip("10.1.0.1"))]);
    neighbour_table.route(ip("10.1.0.1"), Some(via(2, Some(GATEWAY))), 2 * S);
    assert_eq!(actions(&mut neighbour_table), [Action::Use { key: gateway, is_kept: true }]);
    neighbour_table.told(neighbour(gateway, NeighbourState::Failed), 2 * S + 1);
    assert_eq!(said(actions(&mut neighbour_table)), [(0, Hop::UNUSABLE)]);
    neighbour_table.ask(TABLE, id(0), ip("10.1.0.1"), 2 * S + 2);
    assert_eq!(turn(&mut neighbour_table, 3 * S - 1), []);
    assert_eq!(turn(&mut neighbour_table, 3 * S), [Action::LookUp(ip("10.1.0.1"))]);
    neighbour_table.told(neighbour(gateway, valid(4)), 3 * S);
    assert_eq!(said(actions(&mut neighbour_table))[0].1.link.destination[5], 4);
}

#[test]
fn ask_without_neighbour_reply_times_out_as_unusable() {
    let mut neighbour_table = neighbour_table();
    neighbour_table.ask(TABLE, id(0), ip("10.0.0.5"), 0);
    turn(&mut neighbour_table, 0);
    neighbour_table.route(ip("10.0.0.5"), Some(via(2, None)), 0);
    neighbour_table.no_neighbour(key(2, "10.0.0.5"), 0);
    actions(&mut neighbour_table);
    assert_eq!(turn(&mut neighbour_table, NEIGHBOUR_TIMEOUT_NS - 1), []);
    let all = turn(&mut neighbour_table, NEIGHBOUR_TIMEOUT_NS);
    assert_eq!(said(all[..1].to_vec()), [(0, Hop::UNUSABLE)]);
    assert_eq!(all[1..], [Action::LookUp(ip("10.0.0.5"))]);
}

#[test]
fn deleted_neighbour_is_requested_again_once() {
    let mut neighbour_table = settled("10.1.0.1");
    let gateway = key(2, GATEWAY);
    neighbour_table.told(Told::NeighbourGone(gateway), 9 * S);
    let all = actions(&mut neighbour_table);
    assert_eq!(all[0], Action::Use { key: gateway, is_kept: true });
    assert_eq!(said(all[1..].to_vec()), [(0, Hop::UNUSABLE)]);
    neighbour_table.told(Told::NeighbourGone(gateway), 9 * S + 1);
    assert_eq!(actions(&mut neighbour_table), []);
}

#[test]
fn neighbours_of_others_are_left_alone() {
    let mut neighbour_table = settled("10.1.0.1");
    let told = |is_foreign, is_managed, is_stale| {
        let state = NeighbourState::Valid { mac: [1; 6], is_stale };
        Told::Neighbour(Neighbour { key: key(2, GATEWAY), state, is_foreign, is_managed })
    };
    neighbour_table.told(told(true, false, true), S);
    assert_eq!(said(actions(&mut neighbour_table)).len(), 1);
    // A neighbour that the kernel keeps for another program stays kept.
    neighbour_table.told(told(false, true, true), S);
    assert_eq!(actions(&mut neighbour_table), [Action::Use { key: key(2, GATEWAY), is_kept: true }]);
    neighbour_table.end();
    assert_eq!(actions(&mut neighbour_table), []);
}

#[test]
fn neighbour_no_longer_needed_is_released() {
    let mut neighbour_table = settled("10.1.0.1");
    let stale = NeighbourState::Valid { mac: [1; 6], is_stale: true };
    neighbour_table.told(neighbour(key(2, GATEWAY), stale), S);
    actions(&mut neighbour_table);
    // The route moves to another gateway: the first one is no longer needed.
    neighbour_table.route(ip("10.1.0.1"), Some(via(3, Some("10.0.1.1"))), S);
    let all = actions(&mut neighbour_table);
    assert_eq!(all[0], Action::Find(key(3, "10.0.1.1")));
    assert_eq!(all[1], Action::Use { key: key(2, GATEWAY), is_kept: false });
    assert_eq!(said(all[2..].to_vec()), [(0, Hop::UNUSABLE)]);
    neighbour_table.no_neighbour(key(3, "10.0.1.1"), S);
    actions(&mut neighbour_table);
    neighbour_table.end();
    assert_eq!(actions(&mut neighbour_table), [Action::Use { key: key(3, "10.0.1.1"), is_kept: false }]);
}

#[test]
fn links_have_an_effect_at_once() {
    let mut neighbour_table = settled("10.1.0.1");
    neighbour_table.told(Told::Link(link(2)), S);
    assert_eq!(turn(&mut neighbour_table, S), []);
    neighbour_table.told(Told::Link(LinkDevice { mtu: 1400, ..link(2) }), S);
    let all = turn(&mut neighbour_table, S);
    assert_eq!(said(all[..1].to_vec())[0].1.mtu, 1400);
    assert_eq!(all[1..], [Action::LookUp(ip("10.1.0.1"))]);
    neighbour_table.told(Told::Link(LinkDevice { is_running: false, ..link(2) }), S);
    assert_eq!(said(actions(&mut neighbour_table)), [(0, Hop::UNUSABLE)]);
    neighbour_table.told(Told::Link(link(2)), S);
    assert!(said(actions(&mut neighbour_table))[0].1.usable);
    neighbour_table.told(Told::LinkGone(2), S);
    assert_eq!(said(actions(&mut neighbour_table)), [(0, Hop::UNUSABLE)]);
    neighbour_table.told(Told::Link(LinkDevice { kind: LinkKind::Other, ..link(2) }), S);
    assert_eq!(actions(&mut neighbour_table), []);
}

#[test]
fn vlan_hop_uses_lower_device_with_tag() {
    let mut neighbour_table = settled("10.1.0.1");
    let vlan = |lower| LinkDevice { kind: LinkKind::Vlan { id: 42, lower }, mtu: 1480, ..link(2) };
    neighbour_table.told(Told::Link(vlan(3)), S);
    let hop = said(actions(&mut neighbour_table))[0].1;
    assert_eq!((hop.if_index, hop.link.vlan, hop.mtu, hop.link.source[5]), (3, Some(42), 1480, 2));
    neighbour_table.told(Told::Link(LinkDevice { is_running: false, ..link(3) }), S);
    assert_eq!(said(actions(&mut neighbour_table)), [(0, Hop::UNUSABLE)]);
    neighbour_table.told(Told::Link(LinkDevice { mtu: 1200, ..link(3) }), S);
    assert_eq!(said(actions(&mut neighbour_table))[0].1.mtu, 1200);
    // A tag within a tag, a device that is not there, one that leads to itself.
    for lower in [2, 77] {
        neighbour_table.told(Told::Link(vlan(3)), S);
        actions(&mut neighbour_table);
        neighbour_table.told(Told::Link(vlan(lower)), S);
        assert_eq!(said(actions(&mut neighbour_table)), [(0, Hop::UNUSABLE)], "{lower}");
    }
}

#[test]
fn changes_concern_those_they_can_concern() {
    let mut neighbour_table = settled("10.1.0.1");
    let look_up = [Action::LookUp(ip("10.1.0.1"))];
    let prefix = |address, bits| Told::Routes(Prefix { address: ip(address), bits });
    let cases = [
        (prefix("10.1.0.0", 16), true),
        (prefix("0.0.0.0", 0), true),
        (prefix("10.2.0.0", 16), false),
        (prefix("::", 0), false),
        (Told::Addresses(false), true),
        (Told::Addresses(true), false),
        (Told::Anything, true),
    ];
    for (told, is_meant) in cases {
        // However often it is reported, there is one look-up.
        neighbour_table.told(told.clone(), S);
        neighbour_table.told(told.clone(), S);
        let found = turn(&mut neighbour_table, S);
        assert_eq!(found == look_up, is_meant, "{told:?}: {found:?}");
        if is_meant {
            neighbour_table.route(ip("10.1.0.1"), Some(via(2, Some(GATEWAY))), S);
            assert_eq!(actions(&mut neighbour_table), [], "nothing new, nothing said");
        }
    }
    neighbour_table.told(Told::Anything, S);
    turn(&mut neighbour_table, S);
    neighbour_table.route(ip("10.1.0.1"), None, S);
    assert_eq!(said(actions(&mut neighbour_table)), [(0, Hop::UNUSABLE)]);
}

#[test]
fn multipath_route_uses_first_usable_next_hop() {
    let mut neighbour_table = neighbour_table();
    let to = ip("10.1.0.1");
    neighbour_table.ask(TABLE, id(0), to, 0);
    turn(&mut neighbour_table, 0);
    let ways = [(9, "10.0.9.1"), (2, "10.0.0.1"), (3, "10.0.1.1")];
    let next_hops = ways.map(|(if_index, gateway)| NextHop { if_index, gateway: Some(ip(gateway)) }).to_vec();
    neighbour_table.route(to, Some(Route { next_hops, ..via(2, None) }), 0);
    actions(&mut neighbour_table);
    neighbour_table.told(neighbour(key(3, "10.0.1.1"), valid(3)), 0);
    assert_eq!(said(actions(&mut neighbour_table))[0].1.if_index, 3);
    neighbour_table.told(neighbour(key(2, "10.0.0.1"), valid(2)), 0);
    assert_eq!(said(actions(&mut neighbour_table))[0].1.if_index, 2);
    neighbour_table.told(neighbour(key(2, "10.0.0.1"), NeighbourState::Failed), 0);
    let all = actions(&mut neighbour_table);
    assert!(
        all.iter()
            .any(|a| matches!(a, Action::Say { update: Update::Hop { hop, .. }, .. } if hop.if_index == 3))
    );
}

#[test]
fn neighbours_beyond_other_links_are_none_of_our_business() {
    let mut neighbour_table = neighbour_table();
    neighbour_table.told(Told::Link(LinkDevice { kind: LinkKind::Other, ..link(4) }), 0);
    neighbour_table.ask(TABLE, id(0), ip("10.1.0.1"), 0);
    turn(&mut neighbour_table, 0);
    neighbour_table.route(ip("10.1.0.1"), Some(via(4, Some(GATEWAY))), 0);
    assert_eq!(said(actions(&mut neighbour_table)), [(0, Hop::UNUSABLE)]);
    // Should the link become one that can be used, its routes are looked up again.
    neighbour_table.told(Told::Link(link(4)), S);
    assert_eq!(turn(&mut neighbour_table, S), [Action::LookUp(ip("10.1.0.1"))]);
    neighbour_table.route(ip("10.1.0.1"), Some(via(4, Some(GATEWAY))), S);
    assert_eq!(actions(&mut neighbour_table), [Action::Find(key(4, GATEWAY))]);
}

#[test]
fn multicast_addresses_are_mapped() {
    let mut neighbour_table = neighbour_table();
    for (to, mac) in
        [("239.129.2.3", [1, 0, 0x5e, 1, 2, 3]), ("ff3e::8765:4321", [0x33, 0x33, 0x87, 0x65, 0x43, 0x21])]
    {
        neighbour_table.ask(TABLE, id(0), ip(to), 0);
        turn(&mut neighbour_table, 0);
        let source = Some(if ip(to).is_ipv4() { ip("10.0.0.9") } else { ip("fd00::9") });
        neighbour_table.route(ip(to), Some(Route { source, hop_limit: Some(64), ..via(2, None) }), 0);
        let hop = said(actions(&mut neighbour_table))[0].1;
        assert_eq!((hop.link.destination, hop.hop_limit, hop.usable), (mac, 1, true));
    }
}

#[test]
fn destinations_are_refreshed_and_forgotten() {
    let mut neighbour_table = settled("10.1.0.1");
    assert_eq!(neighbour_table.deadline_ns(), Some(HOP_REFRESH_NS));
    assert_eq!(turn(&mut neighbour_table, HOP_REFRESH_NS - 1), []);
    let is_used = Action::Say { table: TABLE, update: Update::IsUsed { id: id(0) } };
    assert_eq!(turn(&mut neighbour_table, HOP_REFRESH_NS), [is_used, Action::LookUp(ip("10.1.0.1"))]);
    // A smaller MTU on the way is seen then.
    neighbour_table.route(
        ip("10.1.0.1"),
        Some(Route { mtu: Some(1280), ..via(2, Some(GATEWAY)) }),
        HOP_REFRESH_NS,
    );
    assert_eq!(said(actions(&mut neighbour_table))[0].1.mtu, 1280);
    neighbour_table.forget(TABLE, HopId { slot: 0, tenancy: 5 });
    assert!(!neighbour_table.destinations.is_empty(), "that was somebody else's place");
    neighbour_table.forget(TABLE, id(0));
    assert!(
        neighbour_table.destinations.is_empty()
            && neighbour_table.neighbours.is_empty()
            && neighbour_table.due.is_empty()
    );
    assert_eq!((neighbour_table.deadline_ns(), turn(&mut neighbour_table, 1000 * S)), (None, vec![]));
}

#[test]
fn resync_after_overrun_repeats_all_queries() {
    let mut neighbour_table = settled("10.1.0.1");
    neighbour_table.resync(vec![link(2)], S);
    let all = turn(&mut neighbour_table, S);
    assert_eq!(all, [Action::Find(key(2, GATEWAY)), Action::LookUp(ip("10.1.0.1"))]);
    neighbour_table.resync(vec![], 2 * S);
    let all = turn(&mut neighbour_table, 2 * S);
    assert!(said(all[..1].to_vec()) == [(0, Hop::UNUSABLE)] && neighbour_table.links.is_empty());
}

#[test]
fn look_ups_come_in_portions() {
    let mut neighbour_table = neighbour_table();
    let count = LOOK_UPS_PER_TURN as u32 + 9;
    for n in 0..count {
        neighbour_table.ask(TABLE, id(n), IpAddr::from((0x0a01_0000 + n).to_be_bytes()), 0);
    }
    assert_eq!(turn(&mut neighbour_table, 0).len(), LOOK_UPS_PER_TURN);
    assert_eq!((neighbour_table.deadline_ns(), turn(&mut neighbour_table, 0).len()), (Some(0), 9));
}

/// Possible events, with small numbers so that they collide.
#[derive(Clone, Debug)]
enum NeighbourStep {
    Ask(u32, u8),
    Forget(u32),
    ForgetTable,
    Told(Told),
    NoNeighbour(NeighbourKey),
    Route(u8, Option<Route>),
    Resync(Vec<LinkDevice>),
    Pass(u64),
}

fn step() -> impl Strategy<Value = NeighbourStep> {
    let to = |n: u8| IpAddr::from([10, 1, 0, n]);
    let of = (1u32..4, 0u8..4).prop_map(move |(if_index, n)| NeighbourKey { if_index, address: to(n) });
    let a_link = (1u32..4, any::<bool>(), 0u8..4).prop_map(|(index, is_running, kind)| {
        let kind = match kind {
            0 => LinkKind::Other,
            1 => LinkKind::Vlan { id: 5, lower: 1 + index % 3 },
            _ => LinkKind::Ethernet,
        };
        LinkDevice { is_running, kind, ..link(index) }
    });
    let state = prop_oneof![
        Just(NeighbourState::Incomplete),
        Just(NeighbourState::Failed),
        (0u8..3, any::<bool>()).prop_map(|(n, is_stale)| NeighbourState::Valid { mac: [n; 6], is_stale }),
    ];
    let told =
        (of.clone(), state, any::<bool>(), any::<bool>()).prop_map(|(key, state, is_foreign, is_managed)| {
            Told::Neighbour(Neighbour { key, state, is_foreign, is_managed })
        });
    let hops = proptest::collection::vec((1u32..4, proptest::option::of(0u8..4)), 0..3);
    let a_route = hops.prop_map(move |hops| Route {
        next_hops: hops.iter().map(|(i, g)| NextHop { if_index: *i, gateway: g.map(to) }).collect(),
        ..via(1, None)
    });
    prop_oneof![
        (0u32..4, 0u8..4).prop_map(|(slot, n)| NeighbourStep::Ask(slot, n)),
        (0u32..4).prop_map(NeighbourStep::Forget),
        Just(NeighbourStep::ForgetTable),
        a_link.clone().prop_map(|l| NeighbourStep::Told(Told::Link(l))),
        (1u32..4).prop_map(|n| NeighbourStep::Told(Told::LinkGone(n))),
        told.prop_map(NeighbourStep::Told),
        of.clone().prop_map(|key| NeighbourStep::Told(Told::NeighbourGone(key))),
        Just(NeighbourStep::Told(Told::Anything)),
        of.prop_map(NeighbourStep::NoNeighbour),
        (0u8..4, proptest::option::of(a_route)).prop_map(|(n, route)| NeighbourStep::Route(n, route)),
        proptest::collection::vec(a_link, 0..3).prop_map(NeighbourStep::Resync),
        (0u64..20).prop_map(|half_seconds| NeighbourStep::Pass(half_seconds * S / 2)),
    ]
}

/// Every neighbour is counted as often as it is needed, and nothing is left over.
fn is_in_order(neighbour_table: &NeighbourTable) {
    let mut users: HashMap<NeighbourKey, u32> = HashMap::new();
    for (to, destination) in &neighbour_table.destinations {
        destination.needs.iter().for_each(|key| *users.entry(*key).or_default() += 1);
        assert!(!destination.subscribers.is_empty());
        assert!(neighbour_table.due.contains(&(destination.due_ns, *to)));
    }
    let known: HashMap<NeighbourKey, u32> =
        neighbour_table.neighbours.iter().map(|(key, n)| (*key, n.users)).collect();
    assert_eq!(users, known);
    assert_eq!(neighbour_table.due.len(), neighbour_table.destinations.len());
    let subscribers: usize = neighbour_table.destinations.values().map(|d| d.subscribers.len()).sum();
    assert_eq!(subscribers, neighbour_table.places.len());
}

proptest! {
    #[test]
    fn neighbour_table_stays_consistent_for_any_steps(steps in proptest::collection::vec(step(), 1..60)) {
        let (mut neighbour_table, mut now_ns) = (neighbour_table(), 0);
        let to = |n: u8| IpAddr::from([10, 1, 0, n]);
        // The last hop reported to each slot.
        let mut heard: HashMap<u32, Hop> = HashMap::new();
        for step in steps {
            match step {
                NeighbourStep::Ask(slot, n) => {
                    if neighbour_table.places.get(&(TABLE, slot)) != Some(&to(n)) {
                        heard.remove(&slot);
                    }
                    neighbour_table.ask(TABLE, id(slot), to(n), now_ns);
                }
                NeighbourStep::Forget(slot) => neighbour_table.forget(TABLE, id(slot)),
                NeighbourStep::ForgetTable => neighbour_table.forget_table(TABLE),
                NeighbourStep::Told(told) => neighbour_table.told(told, now_ns),
                NeighbourStep::NoNeighbour(key) => neighbour_table.no_neighbour(key, now_ns),
                NeighbourStep::Route(n, route) => neighbour_table.route(to(n), route, now_ns),
                NeighbourStep::Resync(links) => neighbour_table.resync(links, now_ns),
                NeighbourStep::Pass(ns) => now_ns += ns,
            }
            neighbour_table.tick(now_ns);
            for action in actions(&mut neighbour_table) {
                if let Action::Say { update: Update::Hop { id, hop }, .. } = action {
                    heard.insert(id.slot, hop);
                }
            }
            is_in_order(&neighbour_table);
            for (to, destination) in &neighbour_table.destinations {
                // Every loop that may send has received the current hop, and the path really
                // exists.
                let way = neighbour_table.way(*to, &destination.route);
                for s in &destination.subscribers {
                    let last = heard.get(&s.id.slot).copied().unwrap_or(Hop::UNUSABLE);
                    prop_assert_eq!(last, destination.hop);
                    match &way {
                        EgressPath::Hop(hop) => prop_assert_eq!(last, *hop),
                        EgressPath::Pending | EgressPath::None => prop_assert!(!last.usable),
                    }
                }
            }
        }
    }
}
