//! Answers to ARP requests, neighbour solicitations and echo requests; announcements of the own
//! addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_core::limits::ip::MAX_ADDRESSES;
use millrace_core::time::Instant;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};

use super::addresses::{key_of, key_v4};
use super::icmp::{ICMP_V4, ICMP_V6, put_echo_reply};
use super::input::FrameRejection;
use super::link::{BROADCAST, ETHERTYPE_ARP, LinkFrame, Mac};
use super::nd::{ALL_NODES, NdKind};
use super::neighbours::Claim;
use super::output::{ethertype, put_v4, put_v6};
use super::settings::is_station;
use super::v6::pseudo_sum;
use super::{Incoming, Interface, arp, nd, v4, v6};
use crate::limits::{ANNOUNCE_NS, ANNOUNCEMENTS, DEFEND_NS};

/// Announcements left to send, and when own addresses were defended.
#[derive(Debug)]
pub(super) struct Announcements {
    left: u8,
    at: Instant,
    defended: [Option<Instant>; MAX_ADDRESSES],
}

impl Announcements {
    pub(super) fn new(has_neighbours: bool, addresses: usize, now: Instant) -> Self {
        let left = if has_neighbours && addresses > 0 { ANNOUNCEMENTS } else { 0 };
        Self { left, at: now, defended: [None; MAX_ADDRESSES] }
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.left > 0).then_some(self.at)
    }
}

impl Interface {
    /// An ARP message (RFC 826 "Packet Reception").
    pub(super) fn take_arp<'f>(
        &mut self,
        frame: &LinkFrame<'f>,
        now: Instant,
    ) -> Result<Incoming<'f>, FrameRejection> {
        let message = arp::ArpMessage::parse(frame.bytes).map_err(|reason| match reason {
            arp::NoMessage::Short => FrameRejection::Malformed,
            arp::NoMessage::Other => FrameRejection::ForKernel,
        })?;
        let (sender, target) = (key_v4(message.sender), key_v4(message.target));
        let is_for_us = self.addresses.is_own(target);
        if message.sender_mac == self.link.mac() {
            // The device has returned a frame sent from here.
            return Err(FrameRejection::ForKernel);
        }
        if !is_station(message.sender_mac) {
            return if is_for_us { Err(FrameRejection::Martian) } else { Err(FrameRejection::ForKernel) };
        }
        if self.addresses.is_own(sender) {
            self.conflict(IpAddr::from(message.sender), now);
            return Ok(Incoming::Done);
        }
        // Only requested answers and requests for an own address are remembered; of others only
        // contradictions are of interest.
        if self.is_neighbour(sender) {
            let is_answer = !message.is_request && is_for_us && message.target_mac == self.link.mac();
            let claim = if is_answer { Claim::Answer } else { Claim::Told };
            self.learn(sender, Some(message.sender_mac), claim, message.is_request && is_for_us, now);
        }
        if !is_for_us {
            return Err(FrameRejection::ForKernel);
        }
        if message.is_request {
            let (link, own) = (&self.link, self.link.mac());
            let reply = arp::ArpMessage {
                is_request: false,
                sender_mac: own,
                sender: message.target,
                target_mac: message.sender_mac,
                target: message.sender,
            };
            let is_sent = self.frames.push_with(|out| {
                let at = link.put(out, message.sender_mac, ETHERTYPE_ARP);
                at + reply.put(&mut out[at..])
            });
            self.counters.solicited += u64::from(is_sent);
            self.counters.own_dropped += u64::from(!is_sent);
        }
        Ok(Incoming::Done)
    }

    /// Takes in information about a neighbour. `may_begin`: it will probably be sent to, so it is
    /// worth an unused place.
    fn learn(
        &mut self,
        key: super::addresses::AddressKey,
        mac: Option<Mac>,
        claim: Claim,
        may_begin: bool,
        now: Instant,
    ) {
        let index = match self.neighbours.find(key) {
            None if may_begin && mac.is_some() => self.neighbour(key, false, now),
            found => found,
        };
        if let Some(index) = index {
            self.heard(index, mac, claim, now);
        }
    }

    /// A message of neighbour discovery whose checksum is right.
    pub(super) fn take_discovery<'f>(
        &mut self,
        frame: &LinkFrame<'f>,
        packet: &v6::Ipv6Packet<'f>,
        upper: &v6::Upper<'f>,
        now: Instant,
    ) -> Result<Incoming<'f>, FrameRejection> {
        if !self.link.has_neighbours() {
            return Err(FrameRejection::ForKernel);
        }
        let message = nd::parse(packet, upper).ok_or(FrameRejection::Discovery)?;
        if frame.source == self.link.mac() {
            return Err(FrameRejection::ForKernel);
        }
        if message.mac.is_some_and(|mac| !is_station(mac)) {
            return Err(FrameRejection::Martian);
        }
        let is_for_us = self.addresses.is_own(key_of(message.target.into()));
        match message.kind {
            NdKind::Solicitation if is_for_us => self.answer_solicitation(frame, packet, &message, now),
            NdKind::Solicitation => Err(FrameRejection::ForKernel),
            NdKind::Advertisement { is_solicited, .. } => {
                if is_for_us {
                    self.conflict(message.target.into(), now);
                    return Ok(Incoming::Done);
                }
                let key = key_of(message.target.into());
                let is_to_us = self.addresses.is_own(packet.destination_key());
                let claim = if is_solicited && is_to_us { Claim::Answer } else { Claim::Told };
                if self.is_neighbour(key) {
                    self.learn(key, message.mac, claim, false, now);
                }
                // The kernel may have asked, from the same address; and it has its own table.
                if is_solicited && is_to_us { Ok(Incoming::Done) } else { Err(FrameRejection::ForKernel) }
            }
        }
    }

    fn answer_solicitation<'f>(
        &mut self,
        frame: &LinkFrame<'f>,
        packet: &v6::Ipv6Packet<'f>,
        message: &nd::NdMessage,
        now: Instant,
    ) -> Result<Incoming<'f>, FrameRejection> {
        let source = Ipv6Addr::from(*packet.source());
        let key = packet.source_key();
        if self.addresses.is_own(key) || !source.is_unspecified() && !super::settings::is_host(source.into())
        {
            return Err(FrameRejection::Martian);
        }
        if self.is_neighbour(key) {
            self.learn(key, message.mac, Claim::Told, true, now);
        }
        //= RFC 4861 section 7.2.4
        //# If the source of the solicitation is the unspecified address, the
        //# node MUST set the Solicited flag to zero and multicast the
        //# advertisement to the all-nodes address.
        let (ip, mac, is_solicited) = if source.is_unspecified() {
            (ALL_NODES, nd::group_mac(ALL_NODES), false)
        } else {
            (source, message.mac.unwrap_or(frame.source), true)
        };
        let is_sent = self.advertise(message.target, ip, mac, is_solicited);
        self.counters.solicited += u64::from(is_sent);
        Ok(Incoming::Done)
    }

    /// Sends an advertisement of an own address.
    fn advertise(&mut self, target: Ipv6Addr, ip: Ipv6Addr, mac: Mac, is_solicited: bool) -> bool {
        let (link, own) = (&self.link, self.link.mac());
        let kind = NdKind::Advertisement { is_solicited, overrides: true };
        let is_sent = self.frames.push_with(|out| {
            let at = link.put(out, mac, ethertype(false));
            at + nd::put(&mut out[at..], target, ip, kind, target, own)
        });
        self.counters.own_dropped += u64::from(!is_sent);
        is_sent
    }

    /// Another host uses an own address. It is notified, but not endlessly (RFC 5227 section 2.4
    /// (c)).
    fn conflict(&mut self, ip: IpAddr, now: Instant) {
        self.counters.conflicts += 1;
        if self.may_defend(ip, now) {
            self.announce_one(ip);
        }
    }

    fn may_defend(&mut self, ip: IpAddr, now: Instant) -> bool {
        let key = key_of(ip);
        let Some(at) = self.addresses.own().iter().position(|&own| own == key) else { return false };
        let defended = &mut self.announcements.defended[at];
        if defended.is_some_and(|defended| now.ns_since(defended) < DEFEND_NS) {
            return false;
        }
        *defended = Some(now);
        true
    }

    /// Announces own addresses a few times at the start, so that no host keeps the Ethernet address
    /// of their previous owner.
    pub(super) fn announce(&mut self, now: Instant) {
        if self.announcements.due().is_none_or(|due| due > now) {
            return;
        }
        self.announcements.left -= 1;
        self.announcements.at = now.plus_ns(ANNOUNCE_NS);
        for at in 0..self.addresses.count() {
            let ip = super::addresses::ip_of(self.addresses.own()[at]);
            self.announce_one(ip);
        }
    }

    fn announce_one(&mut self, ip: IpAddr) {
        let ip = match ip {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(ip) => {
                self.advertise(ip, ALL_NODES, nd::group_mac(ALL_NODES), false);
                return;
            }
        };
        let (link, own) = (&self.link, self.link.mac());
        let (sender, target) = (ip.octets(), ip.octets());
        let message =
            arp::ArpMessage { is_request: true, sender_mac: own, sender, target_mac: [0; 6], target };
        let is_sent = self.frames.push_with(|out| {
            let at = link.put(out, BROADCAST, ETHERTYPE_ARP);
            at + message.put(&mut out[at..])
        });
        self.counters.own_dropped += u64::from(!is_sent);
    }

    /// Whether an echo request is answered now.
    fn may_reply(&mut self, bytes: usize, now: Instant) -> bool {
        let is_free = bytes <= usize::from(self.mtu) && self.echo_rate.take(now);
        self.counters.echo_limited += u64::from(!is_free);
        is_free
    }

    /// Answers an ICMPv4 echo request whose checksum is right, by the way that it came.
    pub(super) fn echo_v4(&mut self, frame: &LinkFrame<'_>, packet: &v4::Ipv4Packet<'_>, now: Instant) {
        let request = packet.payload;
        if !self.may_reply(IPV4_HEADER_BYTES + request.len(), now) {
            return;
        }
        let (link, hop_limit) = (&self.link, self.hop_limit);
        let [from, to] = [packet.destination(), packet.source()].map(Ipv4Addr::from);
        let is_sent = self.frames.push_with(|out| {
            let at = link.put(out, frame.source, ethertype(true));
            let at = at + put_v4(&mut out[at..], from, to, ICMP_V4, request.len() as u16, hop_limit);
            let end = at + request.len();
            put_echo_reply(&mut out[at..end], request, true, 0);
            end
        });
        self.counters.echo_replies += u64::from(is_sent);
        self.counters.own_dropped += u64::from(!is_sent);
    }

    /// The same of ICMPv6.
    pub(super) fn echo_v6(
        &mut self,
        frame: &LinkFrame<'_>,
        packet: &v6::Ipv6Packet<'_>,
        request: &[u8],
        now: Instant,
    ) {
        if !self.may_reply(IPV6_HEADER_BYTES + request.len(), now) {
            return;
        }
        let (link, hop_limit) = (&self.link, self.hop_limit);
        let [from, to] = [packet.destination(), packet.source()].map(|ip| Ipv6Addr::from(*ip));
        let is_sent = self.frames.push_with(|out| {
            let at = link.put(out, frame.source, ethertype(false));
            let header = at;
            let at = at + put_v6(&mut out[at..], from, to, ICMP_V6, request.len() as u16, hop_limit);
            let end = at + request.len();
            let addresses = sum16(&out[header + 8..at]);
            put_echo_reply(
                &mut out[at..end],
                request,
                false,
                pseudo_sum(addresses, request.len(), ICMP_V6, 0),
            );
            end
        });
        self.counters.echo_replies += u64::from(is_sent);
        self.counters.own_dropped += u64::from(!is_sent);
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
