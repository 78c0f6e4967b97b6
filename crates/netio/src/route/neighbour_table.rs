//! The known links, neighbours and routes, and which loops subscribe to them: kernel notifications
//! and requests of loops go in, queries and updates come out. No socket, no clock.
//!
//! A destination is looked up when it is first requested, when the kernel reports a change that may
//! concern it, and every [`HOP_REFRESH_NS`], since changes of a path's MTU are not reported. The
//! state it needs of its neighbour is shared by all destinations behind that neighbour. Only
//! neighbours that a destination needs are kept.

use std::collections::hash_map::Entry as Place;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use crate::limits::LOOK_UPS_PER_TURN;
pub(super) use crate::limits::{HOP_REFRESH_NS, NEIGHBOUR_RETRY_NS, NEIGHBOUR_TIMEOUT_NS};
use millrace_core::wire::frame::LinkHeader;

use super::hop::{Hop, HopId};
use super::table::Update;
use super::wire::{LinkDevice, LinkKind, Mac, Neighbour, NeighbourKey, NeighbourState, Route, Told};

/// Which table.
pub(super) type TableId = u32;

/// An action for the caller to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Ask for the route; the answer goes to [`NeighbourTable::route`].
    LookUp(IpAddr),
    /// Ask for the neighbour; the answer goes to [`NeighbourTable::told`], "no such" to [`NeighbourTable::no_neighbour`].
    Find(NeighbourKey),
    /// Have the kernel find the neighbour's address, and keep it fresh while it is kept.
    Use { key: NeighbourKey, is_kept: bool },
    /// Say this to a loop.
    Say { table: TableId, update: Update },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subscriber {
    table: TableId,
    id: HopId,
}

#[derive(Debug)]
struct Destination {
    route: Route,
    /// Neighbours that were counted for it.
    needs: Vec<NeighbourKey>,
    /// The last hop reported.
    hop: Hop,
    subscribers: Vec<Subscriber>,
    /// A loop waits for an answer.
    is_owed: bool,
    is_dirty: bool,
    looked_up_ns: u64,
    /// When it is looked at next; its place in `due`.
    due_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResolutionState {
    /// Asked for.
    Pending,
    Valid(Mac),
    Failed,
}

#[derive(Debug)]
struct NeighbourEntry {
    known: ResolutionState,
    /// Next hops of destinations that lead here.
    users: u32,
    used_ns: Option<u64>,
    /// It was us who asked the kernel to keep it.
    is_kept_by_us: bool,
    is_managed: bool,
}

/// Defaults of this host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    pub(super) hop_limit_v4: u8,
}

/// Hop limit of multicast unless the route specifies another, as for sockets: it stays on the link.
const MULTICAST_HOP_LIMIT: u8 = 1;
/// Of a host that does not say (RFC 1700).
pub(super) const HOP_LIMIT: u8 = 64;

/// How a destination is reached.
enum EgressPath {
    Hop(Hop),
    /// A neighbour was asked for.
    Pending,
    None,
}

/// The known links, neighbours and destinations.
#[derive(Debug, Default)]
pub(super) struct NeighbourTable {
    defaults: Defaults,
    links: HashMap<u32, LinkDevice>,
    neighbours: HashMap<NeighbourKey, NeighbourEntry>,
    destinations: HashMap<IpAddr, Destination>,
    places: HashMap<(TableId, u32), IpAddr>,
    due: BTreeSet<(u64, IpAddr)>,
    dirty: VecDeque<IpAddr>,
    actions: VecDeque<Action>,
}

impl NeighbourTable {
    pub(super) fn new(defaults: Defaults) -> Self {
        Self { defaults, ..Self::default() }
    }

    /// Takes the next action.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Self::tick`] has something to do; now, if look-ups wait.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        if self.dirty.is_empty() { self.due.first().map(|(ns, _)| *ns) } else { Some(0) }
    }

    /// A loop asks for a destination.
    pub(super) fn ask(&mut self, table: TableId, id: HopId, destination: IpAddr, now_ns: u64) {
        let subscriber = Subscriber { table, id };
        // A loop that asks again keeps the known state; the slot of another destination is given
        // up.
        if self.places.get(&(table, id.slot)) != Some(&destination) {
            self.forget_place(table, id.slot);
            self.places.insert((table, id.slot), destination);
        }
        match self.destinations.entry(destination) {
            Place::Vacant(place) => {
                place.insert(Destination {
                    route: no_route(),
                    needs: Vec::new(),
                    hop: Hop::UNUSABLE,
                    subscribers: vec![subscriber],
                    is_owed: true,
                    is_dirty: false,
                    looked_up_ns: now_ns,
                    due_ns: now_ns,
                });
                self.soil(destination);
                self.schedule(destination, now_ns + NEIGHBOUR_TIMEOUT_NS);
            }
            Place::Occupied(place) => {
                let entry = place.into_mut();
                entry.subscribers.retain(|s| (s.table, s.id.slot) != (table, id.slot));
                entry.subscribers.push(subscriber);
                if entry.hop.usable {
                    let update = Update::Hop { id, hop: entry.hop };
                    self.actions.push_back(Action::Say { table, update });
                } else if !entry.is_owed {
                    entry.is_owed = true;
                    let at = (entry.looked_up_ns + NEIGHBOUR_RETRY_NS).max(now_ns);
                    self.schedule(destination, at);
                }
            }
        }
    }

    /// A loop does not use a place any more.
    pub(super) fn forget(&mut self, table: TableId, id: HopId) {
        let place = self.places.get(&(table, id.slot)).and_then(|d| self.destinations.get(d));
        if place.is_some_and(|d| d.subscribers.contains(&Subscriber { table, id })) {
            self.forget_place(table, id.slot);
        }
    }

    /// A loop is gone.
    pub(super) fn forget_table(&mut self, table: TableId) {
        let slots: Vec<u32> =
            self.places.keys().filter(|(t, _)| *t == table).map(|(_, slot)| *slot).collect();
        for slot in slots {
            self.forget_place(table, slot);
        }
    }

    fn forget_place(&mut self, table: TableId, slot: u32) {
        let Some(destination) = self.places.remove(&(table, slot)) else { return };
        let Some(entry) = self.destinations.get_mut(&destination) else { return };
        entry.subscribers.retain(|s| (s.table, s.id.slot) != (table, slot));
        if entry.subscribers.is_empty() {
            self.due.remove(&(entry.due_ns, destination));
            if let Some(entry) = self.destinations.remove(&destination) {
                self.release(entry.needs);
            }
        }
    }

    /// Handles a notification of the kernel.
    pub(super) fn told(&mut self, told: Told, now_ns: u64) {
        match told {
            Told::Link(link) => {
                if self.links.get(&link.index) != Some(&link) {
                    let index = link.index;
                    self.links.insert(index, link);
                    self.link_changed(index, now_ns);
                }
            }
            Told::LinkGone(index) => {
                if self.links.remove(&index).is_some() {
                    self.link_changed(index, now_ns);
                }
            }
            Told::Neighbour(neighbour) => self.neighbour(neighbour, now_ns),
            Told::NeighbourGone(key) => self.no_neighbour(key, now_ns),
            Told::Routes(prefix) => self.soil_where(|destination, _| prefix.holds(destination)),
            Told::Addresses(is_v6) => self.soil_where(|destination, _| destination.is_ipv6() == is_v6),
            Told::Anything => self.soil_where(|_, _| true),
        }
    }

    /// Something may have been missed: these are all links there are; neighbours and routes are asked for again.
    pub(super) fn resync(&mut self, links: Vec<LinkDevice>, now_ns: u64) {
        let gone: Vec<u32> =
            self.links.keys().copied().filter(|index| links.iter().all(|l| l.index != *index)).collect();
        gone.into_iter().for_each(|index| self.told(Told::LinkGone(index), now_ns));
        links.into_iter().for_each(|link| self.told(Told::Link(link), now_ns));
        self.actions.extend(self.neighbours.keys().map(|key| Action::Find(*key)));
        self.told(Told::Anything, now_ns);
    }

    /// The answer to a look-up; an error is one of the kernel's ways to say that there is no route.
    pub(super) fn route(&mut self, destination: IpAddr, route: Option<Route>, now_ns: u64) {
        let route = route.unwrap_or_else(no_route);
        let needs = self.neighbours_of(destination, &route);
        let Some(entry) = self.destinations.get_mut(&destination) else { return };
        (entry.looked_up_ns, entry.is_dirty, entry.route) = (now_ns, false, route);
        let old = std::mem::replace(&mut entry.needs, needs.clone());
        // First the new, then the old: a neighbour of both stays known.
        for key in &needs {
            let Place::Vacant(place) = self.neighbours.entry(*key) else {
                self.neighbours.entry(*key).and_modify(|n| n.users += 1);
                continue;
            };
            place.insert(NeighbourEntry {
                known: ResolutionState::Pending,
                users: 1,
                used_ns: None,
                is_kept_by_us: false,
                is_managed: false,
            });
            self.actions.push_back(Action::Find(*key));
        }
        self.release(old);
        self.retry_failed(&needs, now_ns);
        self.settle(destination, now_ns);
        self.reschedule(destination, now_ns);
    }

    /// The kernel knows no such neighbour (any more).
    pub(super) fn no_neighbour(&mut self, key: NeighbourKey, now_ns: u64) {
        let Some(entry) = self.neighbours.get_mut(&key) else { return };
        let is_recent = entry.used_ns.is_some_and(|ns| now_ns < ns + NEIGHBOUR_RETRY_NS);
        let known = if is_recent { ResolutionState::Failed } else { ResolutionState::Pending };
        entry.is_managed = false;
        if !is_recent {
            self.use_neighbour(key, now_ns);
        }
        self.neighbour_is(key, known, now_ns);
    }

    /// Does the work that is due.
    pub(super) fn tick(&mut self, now_ns: u64) {
        while let Some(&(due_ns, destination)) = self.due.first().filter(|(ns, _)| *ns <= now_ns) {
            self.due.remove(&(due_ns, destination));
            let Some(entry) = self.destinations.get_mut(&destination) else { continue };
            let waited_ns = now_ns.saturating_sub(entry.looked_up_ns);
            if entry.is_owed && waited_ns >= NEIGHBOUR_TIMEOUT_NS {
                let hop = entry.hop;
                self.say(destination, hop);
            }
            if waited_ns >= HOP_REFRESH_NS {
                let ask =
                    |s: &Subscriber| Action::Say { table: s.table, update: Update::IsUsed { id: s.id } };
                let entry = &self.destinations[&destination];
                self.actions.extend(entry.subscribers.iter().map(ask));
            }
            if waited_ns >= NEIGHBOUR_RETRY_NS {
                self.soil(destination);
            }
            self.schedule(destination, now_ns + NEIGHBOUR_TIMEOUT_NS);
        }
        for _ in 0..LOOK_UPS_PER_TURN {
            let Some(destination) = self.dirty.pop_front() else { break };
            if self.destinations.get(&destination).is_some_and(|d| d.is_dirty) {
                self.actions.push_back(Action::LookUp(destination));
            }
        }
    }

    /// Releases the neighbours that the kernel was asked to keep, at the end.
    pub(super) fn end(&mut self) {
        let kept = self.neighbours.iter().filter(|(_, n)| n.is_kept_by_us);
        self.actions.extend(kept.map(|(key, _)| Action::Use { key: *key, is_kept: false }));
        self.neighbours.clear();
    }

    fn soil(&mut self, destination: IpAddr) {
        if let Some(entry) = self.destinations.get_mut(&destination).filter(|d| !d.is_dirty) {
            entry.is_dirty = true;
            self.dirty.push_back(destination);
        }
    }

    fn soil_where(&mut self, is_meant: impl Fn(IpAddr, &Destination) -> bool) {
        let all: Vec<IpAddr> =
            self.destinations.iter().filter(|(to, d)| is_meant(**to, d)).map(|(to, _)| *to).collect();
        all.into_iter().for_each(|destination| self.soil(destination));
    }

    fn schedule(&mut self, destination: IpAddr, at_ns: u64) {
        if let Some(entry) = self.destinations.get_mut(&destination) {
            self.due.remove(&(entry.due_ns, destination));
            entry.due_ns = at_ns;
            self.due.insert((at_ns, destination));
        }
    }

    /// After a look-up: what waits for a neighbour is looked at when timeout ends, all else at the next refresh.
    fn reschedule(&mut self, destination: IpAddr, now_ns: u64) {
        let is_owed = self.destinations.get(&destination).is_some_and(|d| d.is_owed);
        self.schedule(destination, now_ns + if is_owed { NEIGHBOUR_TIMEOUT_NS } else { HOP_REFRESH_NS });
    }

    /// Links have an effect at once, on routes as they are known; and routes may change with them.
    fn link_changed(&mut self, index: u32, now_ns: u64) {
        let is_over = |links: &HashMap<u32, LinkDevice>, upper: u32| {
            links
                .get(&upper)
                .is_some_and(|l| matches!(l.kind, LinkKind::Vlan { lower, .. } if lower == index))
        };
        let leads_here = |d: &Destination| {
            d.route.next_hops.iter().any(|h| h.if_index == index || is_over(&self.links, h.if_index))
        };
        let touched: Vec<IpAddr> =
            self.destinations.iter().filter(|(_, d)| leads_here(d)).map(|(to, _)| *to).collect();
        for destination in touched {
            self.settle(destination, now_ns);
            self.soil(destination);
        }
        self.soil_where(|_, d| !d.hop.usable);
    }

    fn neighbour(&mut self, told: Neighbour, now_ns: u64) {
        let Some(entry) = self.neighbours.get_mut(&told.key) else { return };
        entry.is_managed = told.is_managed;
        let (known, is_stale) = match told.state {
            NeighbourState::Incomplete => (ResolutionState::Pending, false),
            NeighbourState::Valid { mac, is_stale } => (ResolutionState::Valid(mac), is_stale),
            NeighbourState::Failed => (ResolutionState::Failed, false),
        };
        // Packets that we send confirm nothing to the kernel, so it must be notified that the
        // neighbour is in use.
        if is_stale && !told.is_foreign {
            self.use_neighbour(told.key, now_ns);
        }
        // Found as failed, or never requested: no attempt has been made for us yet.
        let is_untried = self.neighbours[&told.key].used_ns.is_none();
        if is_untried && !told.is_foreign && !matches!(known, ResolutionState::Valid(_)) {
            self.use_neighbour(told.key, now_ns);
            self.neighbour_is(told.key, ResolutionState::Pending, now_ns);
            return;
        }
        self.neighbour_is(told.key, known, now_ns);
    }

    fn use_neighbour(&mut self, key: NeighbourKey, now_ns: u64) {
        let Some(entry) = self.neighbours.get_mut(&key) else { return };
        entry.used_ns = Some(now_ns);
        // Another program's request to keep the neighbour is repeated, or it would be revoked; but
        // it is not ours to end.
        entry.is_kept_by_us |= !entry.is_managed;
        self.actions.push_back(Action::Use { key, is_kept: true });
    }

    fn neighbour_is(&mut self, key: NeighbourKey, known: ResolutionState, now_ns: u64) {
        let Some(entry) = self.neighbours.get_mut(&key) else { return };
        if std::mem::replace(&mut entry.known, known) == known {
            return;
        }
        let touched: Vec<IpAddr> =
            self.destinations.iter().filter(|(_, d)| d.needs.contains(&key)).map(|(to, _)| *to).collect();
        for destination in touched {
            self.settle(destination, now_ns);
        }
    }

    /// Neighbours that have failed are tried again with every look-up, but not too often.
    fn retry_failed(&mut self, needs: &[NeighbourKey], now_ns: u64) {
        for &key in needs {
            let Some(entry) = self.neighbours.get_mut(&key) else { continue };
            let rest_ns = match entry.known {
                ResolutionState::Valid(_) => continue,
                ResolutionState::Pending => NEIGHBOUR_TIMEOUT_NS,
                ResolutionState::Failed => NEIGHBOUR_RETRY_NS,
            };
            if entry.used_ns.is_some_and(|ns| now_ns >= ns + rest_ns) {
                entry.known = ResolutionState::Pending;
                self.use_neighbour(key, now_ns);
            }
        }
    }

    fn release(&mut self, needs: Vec<NeighbourKey>) {
        for key in needs {
            let Place::Occupied(mut place) = self.neighbours.entry(key) else { continue };
            place.get_mut().users -= 1;
            if place.get().users == 0 {
                let entry = place.remove();
                if entry.is_kept_by_us {
                    self.actions.push_back(Action::Use { key, is_kept: false });
                }
            }
        }
    }

    /// Reports how the destination is reached, if that has changed or a loop waits for it.
    fn settle(&mut self, destination: IpAddr, now_ns: u64) {
        let Some(entry) = self.destinations.get(&destination) else { return };
        let hop = match self.way(destination, &entry.route) {
            EgressPath::Hop(hop) => hop,
            // A loop that waits goes on waiting; one that sends must stop.
            EgressPath::Pending if entry.is_owed && !entry.hop.usable => return,
            EgressPath::Pending | EgressPath::None => Hop::UNUSABLE,
        };
        if entry.is_owed || entry.hop != hop {
            self.say(destination, hop);
            self.reschedule(destination, now_ns);
        }
    }

    fn say(&mut self, destination: IpAddr, hop: Hop) {
        if let Some(entry) = self.destinations.get_mut(&destination) {
            (entry.hop, entry.is_owed) = (hop, false);
            let say = |s: &Subscriber| Action::Say { table: s.table, update: Update::Hop { id: s.id, hop } };
            self.actions.extend(entry.subscribers.iter().map(say));
        }
    }

    fn way(&self, destination: IpAddr, route: &Route) -> EgressPath {
        let mut is_pending = false;
        for next in &route.next_hops {
            let Some((upper, lower, vlan)) = self.devices(next.if_index) else { continue };
            let Some(source_mac) = upper.mac.filter(|_| upper.is_running && lower.is_running) else {
                continue;
            };
            let mac = match multicast_mac(destination) {
                Some(mac) => mac,
                None => {
                    let key = next.neighbour(destination);
                    match self.neighbours.get(&key).map(|n| n.known) {
                        Some(ResolutionState::Valid(mac)) => mac,
                        Some(ResolutionState::Pending) => {
                            is_pending = true;
                            continue;
                        }
                        Some(ResolutionState::Failed) | None => continue,
                    }
                }
            };
            let Some(source) = route.source.filter(|s| s.is_ipv4() == destination.is_ipv4()) else {
                continue;
            };
            let mtu = upper.mtu.min(lower.mtu);
            return EgressPath::Hop(Hop {
                if_index: lower.index,
                link: LinkHeader { destination: mac, source: source_mac, vlan },
                source,
                mtu: route.mtu.map_or(mtu, |of_route| mtu.min(of_route)),
                hop_limit: self.hop_limit(destination, route, upper),
                usable: true,
                generation: 0,
            });
        }
        if is_pending { EgressPath::Pending } else { EgressPath::None }
    }

    /// The neighbours that a route needs: those that frames of ours can be sent to.
    fn neighbours_of(&self, destination: IpAddr, route: &Route) -> Vec<NeighbourKey> {
        if destination.is_multicast() {
            return Vec::new();
        }
        let usable = route.next_hops.iter().filter(|hop| self.devices(hop.if_index).is_some());
        usable.map(|hop| hop.neighbour(destination)).collect()
    }

    /// The device that a route names, and the one that frames leave by.
    fn devices(&self, if_index: u32) -> Option<(&LinkDevice, &LinkDevice, Option<u16>)> {
        let upper = self.links.get(&if_index)?;
        match upper.kind {
            LinkKind::Ethernet => Some((upper, upper, None)),
            LinkKind::Vlan { id, lower } => {
                let lower = self.links.get(&lower).filter(|l| l.kind == LinkKind::Ethernet)?;
                Some((upper, lower, Some(id)))
            }
            LinkKind::Other => None,
        }
    }

    fn hop_limit(&self, destination: IpAddr, route: &Route, device: &LinkDevice) -> u8 {
        let default = match destination {
            to if to.is_multicast() => MULTICAST_HOP_LIMIT,
            IpAddr::V4(_) => self.defaults.hop_limit_v4,
            IpAddr::V6(_) => device.hop_limit_v6.unwrap_or(HOP_LIMIT),
        };
        // The hop limit that the kernel reports for multicast is the one of the route to other
        // hosts.
        route.hop_limit.filter(|_| !destination.is_multicast()).unwrap_or(default)
    }
}

fn no_route() -> Route {
    Route { next_hops: Vec::new(), source: None, mtu: None, hop_limit: None }
}

/// The Ethernet address that a multicast address is mapped to (RFC 1112 section 6.4, RFC 2464 section 7).
pub(crate) fn multicast_mac(destination: IpAddr) -> Option<Mac> {
    match destination {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let o = v6.octets();
            Some([0x33, 0x33, o[12], o[13], o[14], o[15]])
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "neighbour_table_tests.rs"]
mod tests;
