//! Segments that wait for a neighbour, and the questions that are asked meanwhile.

use std::net::{IpAddr, Ipv4Addr};

use millrace_core::time::Instant;

use super::addresses::{AddressKey, NO_KEY, NextHop, ip_of, is_v4};
use super::link::{BROADCAST, ETHERTYPE_ARP, Mac};
use super::neighbours::{Claim, Fired, Heard, Use};
use super::output::{Recent, ethertype, put_payload};
use super::{Interface, Outgoing, arp, nd};
use crate::stack::OutgoingSegment;

impl Interface {
    /// The neighbour that segments to `remote` go to; without a link header any number.
    pub(super) fn next_hop(&mut self, remote: AddressKey, now: Instant) -> Option<u32> {
        if self.addresses.is_own(remote) {
            self.counters.no_route += 1;
            return None;
        }
        match self.addresses.next_hop(remote) {
            _ if !self.link.has_neighbours() => Some(0),
            NextHop::OnLink => self.neighbour(remote, true, now),
            NextHop::Gateway => Some(self.neighbours.gateway(is_v4(remote))),
            NextHop::None => {
                self.counters.no_route += 1;
                None
            }
        }
    }

    /// The place of a neighbour, a new one if need be and there is room.
    pub(super) fn neighbour(&mut self, key: AddressKey, is_wanted: bool, now: Instant) -> Option<u32> {
        if let Some(index) = self.neighbours.find(key) {
            return Some(index);
        }
        let Some((index, evicted)) = self.neighbours.insert(key, is_wanted, now) else {
            self.counters.table_full += 1;
            return None;
        };
        if let Some(slot) = evicted {
            self.frames.release(slot);
            self.counters.segments_unresolved += 1;
        }
        // Its place may have been that of the neighbour of the last segment.
        self.recent = Recent::NONE;
        Some(index)
    }

    /// A segment whose neighbour is not known.
    #[cold]
    pub(super) fn put_off(
        &mut self,
        out: &OutgoingSegment<'_>,
        index: u32,
        use_: Use,
        now: Instant,
    ) -> Outgoing {
        if use_ == Use::Unreachable {
            self.counters.segments_unresolved += 1;
            return Outgoing::Dropped;
        }
        //= RFC 4861 section 7.2.2
        //# While waiting for address resolution to complete, the sender MUST,
        //# for each neighbor, retain a small queue of packets waiting for
        //# address resolution to complete.  The queue MUST hold at least one
        //# packet, and MAY contain more.
        let outcome = self.keep(out, index);
        if use_ == Use::Ask {
            self.ask(index, now);
        }
        outcome
    }

    /// Keeps a segment in the place of the one that has waited before.
    fn keep(&mut self, out: &OutgoingSegment<'_>, index: u32) -> Outgoing {
        let before = self.neighbours.waiting(index).take();
        self.counters.segments_unresolved += u64::from(before.is_some());
        let mut frame = [0; 128];
        let headers = self.put_headers(out, Mac::default(), &mut frame);
        let slot = before.or_else(|| self.frames.take_waiting());
        let Some(slot) = slot.filter(|_| headers > 0) else {
            if let Some(slot) = slot {
                self.frames.release(slot);
            }
            self.counters.own_dropped += u64::from(headers > 0);
            self.counters.too_long += u64::from(headers == 0);
            return Outgoing::Dropped;
        };
        self.frames.fill(slot, |buffer| {
            buffer[..headers].copy_from_slice(&frame[..headers]);
            put_payload(out, headers, buffer)
        });
        *self.neighbours.waiting(index) = Some(slot);
        self.counters.segments_waiting += 1;
        Outgoing::Waiting
    }

    /// Something was heard of a neighbour.
    pub(super) fn heard(&mut self, index: u32, mac: Option<Mac>, claim: Claim, now: Instant) {
        match self.neighbours.heard(index, mac, claim, now) {
            Heard::Nothing => {}
            Heard::Contradicted => self.counters.contradicted += 1,
            Heard::Found(mac) => {
                self.counters.resolved += 1;
                if let Some(slot) = self.neighbours.waiting(index).take() {
                    self.frames.go(slot, |frame| frame[..mac.len()].copy_from_slice(&mac));
                    self.counters.segments_out += 1;
                }
            }
        }
    }

    /// Does the timer actions due for neighbours.
    pub(super) fn fire_neighbours(&mut self, now: Instant) {
        while let Some(fired) = self.neighbours.pop_fired(now) {
            match fired {
                Fired::Ask(index) => self.ask(index, now),
                Fired::Probe(index, mac) => self.solicit(index, Some(mac)),
                Fired::Failed(index) => {
                    self.counters.unresolved += 1;
                    if let Some(slot) = self.neighbours.waiting(index).take() {
                        self.frames.release(slot);
                        self.counters.segments_unresolved += 1;
                    }
                }
            }
        }
    }

    /// Asks everybody for a neighbour.
    fn ask(&mut self, index: u32, now: Instant) {
        // Gateways are few, and everybody waits for them.
        if !self.neighbours.is_gateway(index) && !self.solicit_rate.take(now) {
            self.counters.solicits_limited += 1;
            return;
        }
        self.solicit(index, None);
    }

    /// Sends a solicitation to everybody, or to the Ethernet address that is known.
    fn solicit(&mut self, index: u32, mac: Option<Mac>) {
        let key = self.neighbours.key(index);
        let link = &self.link;
        let own = link.mac();
        let is_sent = match ip_of(key) {
            IpAddr::V4(target) => {
                let sender = self.addresses.source_v4(key).unwrap_or(Ipv4Addr::UNSPECIFIED).octets();
                let target = target.octets();
                let message =
                    arp::ArpMessage { is_request: true, sender_mac: own, sender, target_mac: [0; 6], target };
                self.frames.push_with(|frame| {
                    let at = link.put(frame, mac.unwrap_or(BROADCAST), ETHERTYPE_ARP);
                    at + message.put(&mut frame[at..])
                })
            }
            IpAddr::V6(target) => {
                let Some(source) = self.addresses.source_v6(key) else { return };
                let group = nd::solicited_group(target);
                let (to, ip) = mac.map_or_else(|| (nd::group_mac(group), group), |mac| (mac, target));
                self.frames.push_with(|frame| {
                    let at = link.put(frame, to, ethertype(false));
                    at + nd::put(&mut frame[at..], source, ip, nd::NdKind::Solicitation, target, own)
                })
            }
        };
        self.counters.solicits_out += u64::from(is_sent);
        self.counters.own_dropped += u64::from(!is_sent);
    }

    /// Returns whether a neighbour of this address may be remembered.
    pub(super) fn is_neighbour(&self, key: AddressKey) -> bool {
        key != NO_KEY && self.addresses.is_on_link(key) && !self.addresses.is_martian(key, ip_of(key))
            || self.addresses.gateways().contains(&key) && key != NO_KEY
    }
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
