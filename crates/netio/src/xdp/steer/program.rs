//! The program: from the front of the frame to "to the socket" or "to the kernel".
//!
//! A key with port 0 stands for all ports, and with ICMP's protocol number also for the messages
//! that query and announce the link-layer address of an address. A key with ICMP's number and a
//! port stands for errors that quote a TCP segment sent from this port.
//!
//! `R6` is the context, `R7` where the IP header begins, `R8` where the packet ends, `R9` the protocol; `R0` to `R5` come
//! and go.

use std::net::IpAddr;

use millrace_core::wire::frame;

use crate::bpf::{Alu, Assembler, Cond, Helper, Label, Map, Reg, Reg::*, SocketMap, Width};

/// Address, port as it lies in the packet, protocol, family (4 or 6).
pub(super) const KEY_BYTES: usize = 20;
const KEY_PORT: usize = 16;
const KEY_PROTOCOL: usize = 18;
const KEY_FAMILY: usize = 19;

/// Where the key lies on the stack.
const KEY: i16 = -24;

/// Verdict "to the kernel".
pub(super) const XDP_PASS: i32 = 2;
/// Verdict "to the socket".
#[cfg(test)]
pub(super) const XDP_REDIRECT: i32 = 4;

/// Fields of `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE: i16 = 16;

const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_V6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERNET_BYTES: i16 = frame::ETHERNET_HEADER_BYTES as i16;
const VLAN_BYTES: i16 = frame::VLAN_TAG_BYTES as i16;
const V4_BYTES: i16 = frame::IPV4_HEADER_BYTES as i16;
const V6_BYTES: i16 = frame::IPV6_HEADER_BYTES as i16;
/// Version 4, five words: no options.
const V4_PLAIN: i32 = 0x45;
/// More fragments, or an offset; and each by itself.
const V4_FRAGMENT: u16 = 0x3fff;
const V4_OFFSET: u16 = 0x1fff;
const V4_MORE: u16 = 0x2000;
/// The fragment header of IPv6: its number, its length, and the offset in it, which is behind what follows.
const V6_FRAGMENT: i32 = 44;
const V6_FRAGMENT_BYTES: i16 = 8;
const V6_OFFSET_AT: i16 = 2;
const V6_OFFSET: u16 = 0xfff8;
/// Source and destination port.
const PORTS_BYTES: i16 = 4;
/// ARP for IPv4 on Ethernet: its length, and how it begins (hardware and protocol type; the lengths of their addresses).
const ARP_BYTES: i16 = 28;
const ARP_TYPES: [u16; 3] = [1, ETHERTYPE_V4, 0x0604];
/// Offset of the target address in ARP: the address requested, or in a reply that of the requester.
const ARP_TARGET: i16 = 24;
/// ICMP's protocol numbers.
pub(super) const ICMP_V4: u8 = 1;
pub(super) const ICMP_V6: u8 = 58;
const TCP: i32 = 6;
/// After these bytes of an ICMP message comes the packet that an error quotes; 8 bytes after its IP
/// header are enough.
const ICMP_BYTES: i16 = 8;
const QUOTED_BYTES: i16 = 8;
/// Errors of ICMPv4: unreachable (with "fragmentation needed"), time exceeded, parameter problem. Those of ICMPv6 are below 128 (RFC 4443 section 2.1).
const ICMP_V4_ERRORS: [i32; 3] = [3, 11, 12];
const ICMP_V6_ERRORS_END: i32 = 128;
/// First byte of a multicast address.
const V6_GROUP: i32 = 0xff;
/// Neighbour solicitation, and the advertisement is the next one: type, and where the target is (RFC 4861 sections 4.3 and 4.4).
const ND_SOLICITATION: i32 = 135;
const ND_ADVERTISEMENT: i32 = 136;
const ND_TARGET: i16 = 8;

/// The key of an address, port and protocol.
pub(super) fn key(address: IpAddr, port: u16, protocol: u8) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[KEY_FAMILY] = match address {
        IpAddr::V4(v4) => {
            key[..4].copy_from_slice(&v4.octets());
            4
        }
        IpAddr::V6(v6) => {
            key[..16].copy_from_slice(&v6.octets());
            6
        }
    };
    key[KEY_PORT..KEY_PORT + 2].copy_from_slice(&port.to_be_bytes());
    key[KEY_PROTOCOL] = protocol;
    key
}

/// A number of the packet as this machine loads it.
fn as_loaded(value: u16) -> i32 {
    i32::from(u16::from_ne_bytes(value.to_be_bytes()))
}

/// Goes to `short` unless the packet has `bytes` from `from` on.
fn need(a: &mut Assembler, from: Reg, bytes: i16, short: Label) {
    a.mov(R4, from);
    a.alu(Alu::Add, R4, i32::from(bytes));
    a.jump_if(Cond::Gt, R4, R8, short);
}

/// A part of the key = a part of the packet.
fn copy(a: &mut Assembler, width: Width, from: Reg, at: i16, to: usize) {
    a.load(width, R5, from, at);
    a.store(width, R10, KEY + to as i16, R5);
}

/// Copies an IPv6 address to the key.
fn copy_v6(a: &mut Assembler, from: Reg, at: i16) {
    for word in 0..4i16 {
        copy(a, Width::Word, from, at + 4 * word, 4 * word as usize);
    }
}

/// Sets `R0` to the table's value at the key.
fn look_up(a: &mut Assembler, table: &Map) {
    a.load_map(R1, table);
    a.mov(R2, R10);
    a.alu(Alu::Add, R2, i32::from(KEY));
    a.call(Helper::MapLookup);
}

/// Where the parts of the program begin.
#[derive(Clone, Copy)]
struct Places {
    pass: Label,
    v4: Label,
    v6: Label,
    /// The key has an address; ports follow in the packet.
    transport: Label,
    /// The key is whole, for any port.
    any_port: Label,
    /// The key has an address; an ICMP message to it follows.
    icmp_v4: Label,
    icmp_v6: Label,
    /// The key has an address, and the source port of the segment that an ICMP error quotes.
    quoted: Label,
}

/// Builds the program.
pub(super) fn build(table: &Map, sockets: &SocketMap) -> Assembler {
    let mut a = Assembler::default();
    let [pass, v4, v6, transport, any_port, icmp_v4, icmp_v6, quoted, redirect] =
        std::array::from_fn(|_| a.label());
    let places = Places { pass, v4, v6, transport, any_port, icmp_v4, icmp_v6, quoted };
    a.mov(R6, R1);
    a.load(Width::Word, R7, R6, MD_DATA);
    a.load(Width::Word, R8, R6, MD_DATA_END);
    link(&mut a, places);
    arp(&mut a, places);
    ipv4(&mut a, places);
    ipv6(&mut a, places);
    quote_v4(&mut a, places);
    quote_v6(&mut a, places);
    a.place(quoted);
    a.store(Width::Byte, R10, KEY + KEY_PROTOCOL as i16, R9);
    look_up(&mut a, table);
    a.jump_if(Cond::Ne, R0, 0, redirect);
    a.store(Width::Half, R10, KEY + KEY_PORT as i16, 0);
    a.jump(any_port);
    // Ports are in the same place; where a protocol has something else there, no key has it.
    a.place(transport);
    need(&mut a, R7, PORTS_BYTES, pass);
    copy(&mut a, Width::Half, R7, 2, KEY_PORT);
    a.store(Width::Byte, R10, KEY + KEY_PROTOCOL as i16, R9);
    look_up(&mut a, table);
    a.jump_if(Cond::Ne, R0, 0, redirect);
    a.store(Width::Half, R10, KEY + KEY_PORT as i16, 0);
    a.place(any_port);
    a.store(Width::Byte, R10, KEY + KEY_PROTOCOL as i16, R9);
    look_up(&mut a, table);
    a.jump_if(Cond::Eq, R0, 0, pass);
    // To the socket of the packet's queue; if there is none, the last argument is the verdict.
    a.place(redirect);
    a.load_map(R1, sockets);
    a.load(Width::Word, R2, R6, MD_RX_QUEUE);
    a.mov(R3, XDP_PASS);
    a.call(Helper::RedirectMap);
    a.exit();
    a.place(pass);
    a.mov(R0, XDP_PASS);
    a.exit();
    a
}

/// Ethernet, with a tag or without; then by type: ARP is next.
fn link(a: &mut Assembler, to: Places) {
    let untagged = a.label();
    need(a, R7, ETHERNET_BYTES, to.pass);
    a.load(Width::Half, R3, R7, ETHERNET_BYTES - 2);
    a.alu(Alu::Add, R7, i32::from(ETHERNET_BYTES));
    a.jump_if(Cond::Ne, R3, as_loaded(ETHERTYPE_VLAN), untagged);
    need(a, R7, VLAN_BYTES, to.pass);
    a.load(Width::Half, R3, R7, VLAN_BYTES - 2);
    a.alu(Alu::Add, R7, i32::from(VLAN_BYTES));
    a.place(untagged);
    for at in [0, 8, 16] {
        a.store(Width::Double, R10, KEY + at, 0);
    }
    a.jump_if(Cond::Eq, R3, as_loaded(ETHERTYPE_V6), to.v6);
    a.jump_if(Cond::Eq, R3, as_loaded(ETHERTYPE_V4), to.v4);
    a.jump_if(Cond::Ne, R3, as_loaded(ETHERTYPE_ARP), to.pass);
}

/// Handles ARP: requests for an address and replies to it.
fn arp(a: &mut Assembler, to: Places) {
    need(a, R7, ARP_BYTES, to.pass);
    for (at, word) in (0..).step_by(2).zip(ARP_TYPES) {
        a.load(Width::Half, R3, R7, at);
        a.jump_if(Cond::Ne, R3, as_loaded(word), to.pass);
    }
    copy(a, Width::Word, R7, ARP_TARGET, 0);
    a.store(Width::Byte, R10, KEY + KEY_FAMILY as i16, 4);
    a.mov(R9, i32::from(ICMP_V4));
    a.jump(to.any_port);
}

/// No options, no fragment. But the first one of a segment goes as the whole would: see [`super`].
fn ipv4(a: &mut Assembler, to: Places) {
    let [is_first, is_whole] = std::array::from_fn(|_| a.label());
    a.place(to.v4);
    need(a, R7, V4_BYTES, to.pass);
    a.load(Width::Byte, R3, R7, 0);
    a.jump_if(Cond::Ne, R3, V4_PLAIN, to.pass);
    a.load(Width::Half, R3, R7, 6);
    a.load(Width::Byte, R9, R7, 9);
    a.jump_if(Cond::Set, R3, as_loaded(V4_OFFSET), to.pass);
    a.jump_if(Cond::Set, R3, as_loaded(V4_MORE), is_first);
    a.jump(is_whole);
    a.place(is_first);
    a.jump_if(Cond::Ne, R9, TCP, to.pass);
    a.place(is_whole);
    copy(a, Width::Word, R7, 16, 0);
    a.store(Width::Byte, R10, KEY + KEY_FAMILY as i16, 4);
    a.alu(Alu::Add, R7, i32::from(V4_BYTES));
    a.jump_if(Cond::Eq, R9, i32::from(ICMP_V4), to.icmp_v4);
    a.jump(to.transport);
}

/// No extension header, and so no fragment, but the first one of a segment. Neighbour discovery that goes to a group is by its target.
fn ipv6(a: &mut Assembler, to: Places) {
    let [is_discovery, is_fragment] = std::array::from_fn(|_| a.label());
    a.place(to.v6);
    need(a, R7, V6_BYTES, to.pass);
    a.load(Width::Byte, R3, R7, 0);
    a.alu(Alu::Rsh, R3, 4);
    a.jump_if(Cond::Ne, R3, 6, to.pass);
    a.load(Width::Byte, R9, R7, 6);
    copy_v6(a, R7, 24);
    a.store(Width::Byte, R10, KEY + KEY_FAMILY as i16, 6);
    a.load(Width::Byte, R3, R7, 24);
    a.alu(Alu::Add, R7, i32::from(V6_BYTES));
    a.jump_if(Cond::Eq, R9, V6_FRAGMENT, is_fragment);
    a.jump_if(Cond::Ne, R9, i32::from(ICMP_V6), to.transport);
    a.jump_if(Cond::Ne, R3, V6_GROUP, to.icmp_v6);
    need(a, R7, ND_TARGET + 16, to.pass);
    a.load(Width::Byte, R3, R7, 0);
    a.jump_if(Cond::Eq, R3, ND_SOLICITATION, is_discovery);
    a.jump_if(Cond::Ne, R3, ND_ADVERTISEMENT, to.pass);
    a.place(is_discovery);
    copy_v6(a, R7, ND_TARGET);
    a.jump(to.any_port);
    a.place(is_fragment);
    need(a, R7, V6_FRAGMENT_BYTES, to.pass);
    a.load(Width::Byte, R9, R7, 0);
    a.jump_if(Cond::Ne, R9, TCP, to.pass);
    a.load(Width::Half, R3, R7, V6_OFFSET_AT);
    a.jump_if(Cond::Set, R3, as_loaded(V6_OFFSET), to.pass);
    a.alu(Alu::Add, R7, i32::from(V6_FRAGMENT_BYTES));
    a.jump(to.transport);
}

/// An ICMPv4 message to the address of the key. An error about a segment from there goes by the segment's port.
fn quote_v4(a: &mut Assembler, to: Places) {
    let is_error = a.label();
    let ip = ICMP_BYTES;
    a.place(to.icmp_v4);
    need(a, R7, PORTS_BYTES, to.pass);
    need(a, R7, ip + V4_BYTES + QUOTED_BYTES, to.any_port);
    a.load(Width::Byte, R3, R7, 0);
    for kind in ICMP_V4_ERRORS {
        a.jump_if(Cond::Eq, R3, kind, is_error);
    }
    a.jump(to.any_port);
    a.place(is_error);
    a.load(Width::Byte, R3, R7, ip);
    a.jump_if(Cond::Ne, R3, V4_PLAIN, to.any_port);
    a.load(Width::Half, R3, R7, ip + 6);
    a.jump_if(Cond::Set, R3, as_loaded(V4_FRAGMENT), to.any_port);
    a.load(Width::Byte, R3, R7, ip + 9);
    a.jump_if(Cond::Ne, R3, TCP, to.any_port);
    same(a, ip + 12, 1, to.any_port);
    copy(a, Width::Half, R7, ip + V4_BYTES, KEY_PORT);
    a.jump(to.quoted);
}

/// The same of ICMPv6.
fn quote_v6(a: &mut Assembler, to: Places) {
    let ip = ICMP_BYTES;
    a.place(to.icmp_v6);
    need(a, R7, PORTS_BYTES, to.pass);
    need(a, R7, ip + V6_BYTES + QUOTED_BYTES, to.any_port);
    a.load(Width::Byte, R3, R7, 0);
    a.jump_if(Cond::Ge, R3, ICMP_V6_ERRORS_END, to.any_port);
    a.load(Width::Byte, R3, R7, ip);
    a.alu(Alu::Rsh, R3, 4);
    a.jump_if(Cond::Ne, R3, 6, to.any_port);
    a.load(Width::Byte, R3, R7, ip + 6);
    a.jump_if(Cond::Ne, R3, TCP, to.any_port);
    same(a, ip + 8, 4, to.any_port);
    copy(a, Width::Half, R7, ip + V6_BYTES, KEY_PORT);
    a.jump(to.quoted);
}

/// Goes to `other` unless these words of the packet equal the beginning of the key: the error must
/// go to the sender of the quoted segment.
fn same(a: &mut Assembler, at: i16, words: i16, other: Label) {
    for word in 0..words {
        a.load(Width::Word, R3, R7, at + 4 * word);
        a.load(Width::Word, R5, R10, KEY + 4 * word);
        a.jump_if(Cond::Ne, R3, R5, other);
    }
}
