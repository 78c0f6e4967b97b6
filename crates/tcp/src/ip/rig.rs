//! Interfaces and frames that the tests have in common. Frames are built by etherparse, which shares no code with this crate.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, Ethernet2Header, IpHeaders, IpNumber, Ipv4Header,
    Ipv6Header, PacketBuilder,
};
use millrace_core::time::{Instant, NS_PER_S};

use super::{Incoming, Interface, LinkLayer, Outgoing, Settings};
use crate::send::Payload;
use crate::stack::{Ecn, OutgoingSegment};
use crate::wire::FlowKey;

pub(super) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(super) const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(super) const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];
pub(super) const EVERYBODY: [u8; 6] = [0xff; 6];
pub(super) const OUR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const THEIR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
pub(super) const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
pub(super) const FAR_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
pub(super) const OUR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub(super) const OUR_LOCAL_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
pub(super) const THEIR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
pub(super) const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
pub(super) const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 7);
pub(super) const SCOPE: u32 = 5;
/// Ports of all segments here.
pub(super) const THEIR_PORT: u16 = 40_000;
pub(super) const OUR_PORT: u16 = 80;
pub(super) const START: Instant = Instant(1000 * NS_PER_S);

/// `s` seconds after the start.
pub(super) fn at_s(s: u64) -> Instant {
    START.plus_ns(s * NS_PER_S)
}

pub(super) fn settings(link: LinkLayer) -> Settings {
    let mut settings = Settings::new(link, [7, 8]).with(OUR_V4, 24).with(OUR_LOCAL_V6, 64).with(OUR_V6, 64);
    (settings.gateway_v4, settings.gateway_v6) = (Some(GATEWAY_V4), Some(GATEWAY_V6));
    settings.scope = SCOPE;
    settings
}

pub(super) const ETHERNET: LinkLayer = LinkLayer::Ethernet { mac: OUR_MAC, vlan: None };

/// An interface whose addresses have been announced.
pub(super) fn interface_of(settings: &Settings) -> Interface {
    let mut interface = Interface::new(settings, Instant(1)).unwrap();
    for now in [Instant(1), START] {
        interface.protocol(now);
    }
    let _ = sent(&mut interface);
    interface
}

pub(super) fn interface() -> Interface {
    interface_of(&settings(ETHERNET))
}

/// The own frames that wait for the device.
pub(super) fn sent(interface: &mut Interface) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    interface.output(&mut |frame| {
        frames.push(frame.to_vec());
        true
    });
    frames
}

/// An Ethernet header from the others to us.
pub(super) fn framed(ethertype: EtherType, packet: &[u8]) -> Vec<u8> {
    framed_from(THEIR_MAC, OUR_MAC, ethertype, packet)
}

pub(super) fn framed_from(
    source: [u8; 6],
    destination: [u8; 6],
    ether_type: EtherType,
    packet: &[u8],
) -> Vec<u8> {
    let mut frame = Ethernet2Header { source, destination, ether_type }.to_bytes().to_vec();
    frame.extend_from_slice(packet);
    frame
}

/// A TCP segment with its right checksum behind the IP header that is given.
pub(super) fn segment_behind(ip: IpHeaders, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(THEIR_MAC, OUR_MAC).ip(ip).tcp(THEIR_PORT, OUR_PORT, 1, 2);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    frame
}

pub(super) fn ipv4(source: Ipv4Addr, destination: Ipv4Addr) -> Ipv4Header {
    let mut header = Ipv4Header::new(0, 64, IpNumber::TCP, source.octets(), destination.octets()).unwrap();
    header.identification = 77;
    header
}

pub(super) fn ipv6(source: Ipv6Addr, destination: Ipv6Addr) -> Ipv6Header {
    Ipv6Header {
        source: source.octets(),
        destination: destination.octets(),
        hop_limit: 64,
        next_header: IpNumber::TCP,
        ..Ipv6Header::default()
    }
}

pub(super) fn segment_v4(source: Ipv4Addr, destination: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    segment_behind(IpHeaders::Ipv4(ipv4(source, destination), Default::default()), payload)
}

pub(super) fn segment_v6(source: Ipv6Addr, destination: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    segment_behind(IpHeaders::Ipv6(ipv6(source, destination), Default::default()), payload)
}

/// Changes an IPv4 packet and puts its checksum right again.
pub(super) fn changed(mut frame: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let ip = &mut frame[14..];
    change(ip);
    ip[10..12].fill(0);
    let header = usize::from(ip[0] & 15) * 4;
    let words = ip[..header.min(ip.len())].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame
}

pub(super) fn arp(
    operation: ArpOperation,
    sender: ([u8; 6], Ipv4Addr),
    target: ([u8; 6], Ipv4Addr),
    to: [u8; 6],
) -> Vec<u8> {
    let (sender_ip, target_ip) = (sender.1.octets(), target.1.octets());
    let packet = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        operation,
        &sender.0,
        &sender_ip,
        &target.0,
        &target_ip,
    )
    .unwrap();
    let mut frame = framed_from(sender.0, to, EtherType::ARP, &packet.to_bytes());
    frame.resize(60, 0);
    frame
}

/// Builds an ARP request for `target`.
pub(super) fn arp_request(sender: ([u8; 6], Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    arp(ArpOperation::REQUEST, sender, ([0; 6], target), EVERYBODY)
}

/// The answer to us.
pub(super) fn arp_reply(sender: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    arp(ArpOperation::REPLY, sender, (OUR_MAC, OUR_V4), OUR_MAC)
}

/// A message of neighbour discovery in a frame: `header` type, code and flags, and options.
pub(super) fn discovery(
    ends: (Ipv6Addr, Ipv6Addr),
    macs: ([u8; 6], [u8; 6]),
    head: [u8; 3],
    target: Ipv6Addr,
    options: &[u8],
) -> Vec<u8> {
    let mut body = vec![head[2], 0, 0, 0];
    body.extend_from_slice(&target.octets());
    body.extend_from_slice(options);
    let (rest, payload) = body.split_at(4);
    let builder = PacketBuilder::ethernet2(macs.0, macs.1)
        .ip(IpHeaders::Ipv6(Ipv6Header { hop_limit: 255, ..ipv6(ends.0, ends.1) }, Default::default()))
        .icmpv6_raw(head[0], head[1], rest.try_into().unwrap());
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// The option with an Ethernet address: of the source (1) or of the target (2).
pub(super) fn link_option(kind: u8, mac: [u8; 6]) -> Vec<u8> {
    let mut option = vec![kind, 1];
    option.extend_from_slice(&mac);
    option
}

/// Builds a neighbour solicitation for `target`.
pub(super) fn solicitation(source: ([u8; 6], Ipv6Addr), target: Ipv6Addr) -> Vec<u8> {
    let group = super::nd::solicited_group(target);
    let macs = (source.0, super::nd::group_mac(group));
    discovery((source.1, group), macs, [135, 0, 0], target, &link_option(1, source.0))
}

/// `target` is at `mac`; `flags` of the advertisement.
pub(super) fn advertisement(mac: [u8; 6], target: Ipv6Addr, to: Ipv6Addr, flags: u8) -> Vec<u8> {
    discovery((target, to), (mac, OUR_MAC), [136, 0, flags], target, &link_option(2, mac))
}

/// Flags of an advertisement.
pub(super) const SOLICITED: u8 = 0x40;
pub(super) const OVERRIDE: u8 = 0x20;

pub(super) fn flow(remote: impl Into<std::net::IpAddr>) -> FlowKey {
    let remote = remote.into();
    let local = if remote.is_ipv4() { OUR_V4.into() } else { OUR_V6.into() };
    FlowKey::new(SocketAddr::new(local, OUR_PORT), SocketAddr::new(remote, THEIR_PORT)).unwrap()
}

/// A segment without payload.
pub(super) fn out<'a>(flow: &'a FlowKey, header: &'a [u8]) -> OutgoingSegment<'a> {
    OutgoingSegment {
        flow,
        ecn: Ecn::Capable,
        header,
        payload: Payload::default(),
        moved_ns: OutgoingSegment::NEVER,
        frame: None,
    }
}

/// Sends a header of 20 bytes that begins with `mark`.
pub(super) fn send(interface: &mut Interface, flow: &FlowKey, mark: u8, now: Instant) -> (Outgoing, Vec<u8>) {
    let mut header = [0; 20];
    (header[0], header[12]) = (mark, 0x50);
    let mut frame = vec![0; 2000];
    let outgoing = interface.frame(&out(flow, &header), now, &mut frame);
    let written = if let Outgoing::Written(bytes) = outgoing { bytes } else { 0 };
    frame.truncate(written);
    (outgoing, frame)
}

/// A segment of a connection whose data moved `moved_s` ago.
pub(super) fn send_moved(interface: &mut Interface, flow: &FlowKey, now: Instant, moved_s: u64) {
    let out = OutgoingSegment { moved_ns: moved_s * NS_PER_S, ..out(flow, &[0x50; 20]) };
    interface.frame(&out, now, &mut [0; 2000]);
}

/// To whom a frame is sent.
pub(super) fn to(frame: &[u8]) -> [u8; 6] {
    frame[..6].try_into().unwrap()
}

pub(super) fn is_dropped(incoming: &Incoming<'_>) -> bool {
    matches!(incoming, Incoming::Dropped)
}

pub(super) fn is_for_kernel(incoming: &Incoming<'_>) -> bool {
    matches!(incoming, Incoming::ForKernel)
}

/// Puts extension headers, each a kind and its bytes from the third one on, between the IPv6 header and what follows it.
pub(super) fn extended(mut frame: Vec<u8>, extensions: &[(u8, &[u8])]) -> Vec<u8> {
    let ip = 14;
    let mut next = frame[ip + 6];
    for (kind, body) in extensions.iter().rev() {
        assert_eq!(body.len() % 8, 6, "whole units of eight bytes");
        let mut header = vec![next, ((body.len() + 2) / 8 - 1) as u8];
        header.extend_from_slice(body);
        frame.splice(ip + 40..ip + 40, header);
        next = *kind;
    }
    frame[ip + 6] = next;
    let length = (frame.len() - ip - 40) as u16;
    frame[ip + 4..ip + 6].copy_from_slice(&length.to_be_bytes());
    frame
}
