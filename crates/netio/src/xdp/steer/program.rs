//! The program: from the front of the frame to "to the socket" or "to the kernel".
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
const ETHERTYPE_V6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERNET_BYTES: i16 = frame::ETHERNET_HEADER_BYTES as i16;
const VLAN_BYTES: i16 = frame::VLAN_TAG_BYTES as i16;
const V4_BYTES: i16 = frame::IPV4_HEADER_BYTES as i16;
const V6_BYTES: i16 = frame::IPV6_HEADER_BYTES as i16;
/// Version 4, five words: no options.
const V4_PLAIN: i32 = 0x45;
/// More fragments, or an offset.
const V4_FRAGMENT: u16 = 0x3fff;
/// Source and destination port.
const PORTS_BYTES: i16 = 4;

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

/// Builds the program.
pub(super) fn build(ports: &Map, sockets: &SocketMap) -> Assembler {
    let mut a = Assembler::default();
    let [pass, ip, v6, transport] = std::array::from_fn(|_| a.label());
    a.mov(R6, R1);
    a.load(Width::Word, R7, R6, MD_DATA);
    a.load(Width::Word, R8, R6, MD_DATA_END);
    // Ethernet, with a tag or without.
    need(&mut a, R7, ETHERNET_BYTES, pass);
    a.load(Width::Half, R3, R7, ETHERNET_BYTES - 2);
    a.alu(Alu::Add, R7, i32::from(ETHERNET_BYTES));
    a.jump_if(Cond::Ne, R3, as_loaded(ETHERTYPE_VLAN), ip);
    need(&mut a, R7, VLAN_BYTES, pass);
    a.load(Width::Half, R3, R7, VLAN_BYTES - 2);
    a.alu(Alu::Add, R7, i32::from(VLAN_BYTES));
    a.place(ip);
    for at in [0, 8] {
        a.store(Width::Double, R10, KEY + at, 0);
    }
    a.jump_if(Cond::Eq, R3, as_loaded(ETHERTYPE_V6), v6);
    a.jump_if(Cond::Ne, R3, as_loaded(ETHERTYPE_V4), pass);
    // IPv4: no options, no fragment.
    need(&mut a, R7, V4_BYTES, pass);
    a.load(Width::Byte, R3, R7, 0);
    a.jump_if(Cond::Ne, R3, V4_PLAIN, pass);
    a.load(Width::Half, R3, R7, 6);
    a.jump_if(Cond::Set, R3, as_loaded(V4_FRAGMENT), pass);
    a.load(Width::Byte, R9, R7, 9);
    copy(&mut a, Width::Word, R7, 16, 0);
    a.store(Width::Byte, R10, KEY + KEY_FAMILY as i16, 4);
    a.alu(Alu::Add, R7, i32::from(V4_BYTES));
    a.jump(transport);
    // IPv6: no extension header, and so no fragment.
    a.place(v6);
    need(&mut a, R7, V6_BYTES, pass);
    a.load(Width::Byte, R3, R7, 0);
    a.alu(Alu::Rsh, R3, 4);
    a.jump_if(Cond::Ne, R3, 6, pass);
    a.load(Width::Byte, R9, R7, 6);
    for word in 0..4i16 {
        copy(&mut a, Width::Word, R7, 24 + 4 * word, 4 * word as usize);
    }
    a.store(Width::Byte, R10, KEY + KEY_FAMILY as i16, 6);
    a.alu(Alu::Add, R7, i32::from(V6_BYTES));
    // Ports are in the same place; other protocols are in no key, whatever stands there.
    a.place(transport);
    need(&mut a, R7, PORTS_BYTES, pass);
    copy(&mut a, Width::Half, R7, 2, KEY_PORT);
    a.store(Width::Byte, R10, KEY + KEY_PROTOCOL as i16, R9);
    a.load_map(R1, ports);
    a.mov(R2, R10);
    a.alu(Alu::Add, R2, i32::from(KEY));
    a.call(Helper::MapLookup);
    a.jump_if(Cond::Eq, R0, 0, pass);
    // To the socket of the packet's queue; if there is none, the last argument is the verdict.
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
