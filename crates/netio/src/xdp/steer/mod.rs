//! Divides packets between AF_XDP sockets and the kernel: a BPF program at the interface selects
//! the requested packets by protocol, own address and port, or by address alone, and hands
//! everything else to the kernel untouched.
//!
//! A TCP port with the ICMP errors about segments sent from it ([`Steering::steer_tcp`]) is for a
//! separate network stack that has this port of an address, while the kernel keeps everything else:
//! ARP, neighbour discovery, echo requests, other ports.
//!
//! An address alone ([`Steering::steer_address`]) is for a network stack of one's own that has it: all of TCP and ICMP to it, and whoever
//! asks for it or answers to it by ARP or neighbour discovery. A neighbour's announcement to everybody is the kernel's.
//!
//! A packet goes to the socket that [`Steering::set_socket`] has set for the queue it arrived on;
//! while none is set, it goes to the kernel. The kernel also gets, whatever their port: fragments
//! (the first one too, so that it can reassemble the whole), IPv4 packets with options, IPv6
//! packets with extension headers, frames with two VLAN tags. The program does not check lengths
//! and checksums: the socket's owner must.
//!
//! Of a TCP segment that was cut the socket gets the first fragment, which has the port, and can count it; those behind it have none and are the kernel's.
//! So the kernel never has the whole, and answers nothing: it knows no connection there, and would reset the peer's. A peer sees loss instead.
//!
//! The program is attached by a link and dies with the process, however that ends; from then on the kernel gets
//! everything. It knows nothing of our connections, so it will answer segments for them with resets.

mod program;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use millrace_core::limits::MAX_STEERED_PORTS;
pub use millrace_core::seam::Protocol;

use crate::bpf::{BpfError, BpfProgram, InterfaceLink, Map, ProgramType, SocketMap};
use crate::limits::MAX_XDP_QUEUES;

/// Packets cannot be steered.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// The kernel refused something.
    #[error("steering: {0}")]
    Bpf(#[from] BpfError),
    /// Packets for other hosts would be taken as well.
    #[error(
        "steering: {address} is not an address of one host; say which of this machine's addresses is meant"
    )]
    Address {
        /// The address given.
        address: IpAddr,
    },
}

/// A steering program at an interface. It is gone when this is dropped.
#[derive(Debug)]
pub struct Steering {
    /// Where it is; none while it is being made. First, so that no packet meets a program whose maps are gone.
    link: Option<InterfaceLink>,
    program: BpfProgram,
    /// The steered ports and addresses.
    table: Map,
    sockets: SocketMap,
}

impl Steering {
    /// Puts the program at an interface of the calling thread's network namespace. All packets go to the kernel until
    /// both a port and a socket are set.
    ///
    /// # Errors
    /// When there is no such interface, another XDP program is there, or the privileges are missing.
    pub fn attach(interface: &str) -> Result<Self, SteerError> {
        Self::attach_with_room(interface, MAX_STEERED_PORTS)
    }

    /// The same with room for another number of entries than [`MAX_STEERED_PORTS`].
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_with_room(interface: &str, entries: u32) -> Result<Self, SteerError> {
        let mut steering = Self::load(entries)?;
        steering.link = Some(InterfaceLink::attach(&steering.program, interface)?);
        Ok(steering)
    }

    /// Whether the kernel takes the program and its maps from this process. They are gone again when this returns, and no interface has seen them.
    ///
    /// # Errors
    /// Rights or abilities that are missing.
    pub fn try_out() -> Result<(), SteerError> {
        Ok(Self::load(1).map(drop)?)
    }

    /// Program and maps that are at no interface yet.
    fn load(entries: u32) -> Result<Self, BpfError> {
        let table = Map::hash("steer_ports", program::KEY_BYTES as u32, 1, entries)?;
        let sockets = SocketMap::new("steer_sockets", MAX_XDP_QUEUES)?;
        let program = BpfProgram::load("steer", ProgramType::XdpFrags, program::build(&table, &sockets))?;
        Ok(Self { link: None, program, table, sockets })
    }

    /// Packets of `protocol` to `local`, an address of this host, go to the sockets from now on.
    ///
    /// # Errors
    /// When the address is a wildcard, or all entries are taken.
    pub fn steer(&self, protocol: Protocol, local: SocketAddr) -> Result<(), SteerError> {
        Ok(self.table.update(&key(protocol, local)?, &[1])?)
    }

    /// TCP segments to `local`, a port of this host, go to the sockets from now on, and so do ICMP errors that quote a segment from there.
    ///
    /// # Errors
    /// When the address is a wildcard, or all entries are taken; a port counts as two.
    pub fn steer_tcp(&self, local: SocketAddr) -> Result<(), SteerError> {
        let address = one_host(local.ip())?;
        for protocol in [Protocol::Tcp.number(), icmp_of(address)] {
            self.table.update(&program::key(address, local.port(), protocol), &[1])?;
        }
        Ok(())
    }

    /// Returns the packets to the kernel; reports whether they were steered.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn unsteer(&self, protocol: Protocol, local: SocketAddr) -> Result<bool, SteerError> {
        Ok(self.table.delete(&key(protocol, local)?)?)
    }

    /// All of TCP and ICMP to `address`, and ARP and neighbour discovery about it, go to the sockets from now on. The kernel should not
    /// have this address: it would answer, too.
    ///
    /// # Errors
    /// When it is a wildcard, or all entries are taken; an address counts as two.
    pub fn steer_address(&self, address: IpAddr) -> Result<(), SteerError> {
        for key in keys_of(address)? {
            self.table.update(&key, &[1])?;
        }
        Ok(())
    }

    /// Returns the packets to the kernel; reports whether they were steered.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn unsteer_address(&self, address: IpAddr) -> Result<bool, SteerError> {
        let mut is_found = false;
        for key in keys_of(address)? {
            is_found |= self.table.delete(&key)?;
        }
        Ok(is_found)
    }

    /// Sets the AF_XDP socket that gets the packets of `queue`. It must be bound to this queue of
    /// the same interface, or the kernel drops the packets passed to it. A socket that is closed
    /// leaves its place.
    ///
    /// # Errors
    /// When there is no such queue, or it is no AF_XDP socket.
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), SteerError> {
        Ok(self.sockets.set(queue, socket)?)
    }

    /// Sends the packets of `queue` to the kernel.
    ///
    /// # Errors
    /// When there is no such queue.
    pub fn clear_socket(&self, queue: u32) -> Result<(), SteerError> {
        Ok(self.sockets.clear(queue)?)
    }
}

/// The keys of an address: TCP and ICMP at any port.
fn keys_of(address: IpAddr) -> Result<[[u8; program::KEY_BYTES]; 2], SteerError> {
    let address = one_host(address)?;
    Ok([Protocol::Tcp.number(), icmp_of(address)].map(|protocol| program::key(address, 0, protocol)))
}

/// The protocol number of its family's ICMP.
fn icmp_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { program::ICMP_V4 } else { program::ICMP_V6 }
}

/// The key of the program's table.
fn key(protocol: Protocol, local: SocketAddr) -> Result<[u8; program::KEY_BYTES], SteerError> {
    Ok(program::key(one_host(local.ip())?, local.port(), protocol.number()))
}

/// The address, if it can be that of one host.
fn one_host(address: IpAddr) -> Result<IpAddr, SteerError> {
    let address = address.to_canonical();
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || is_broadcast {
        return Err(SteerError::Address { address });
    }
    Ok(address)
}

#[cfg(test)]
#[path = "steer_tests.rs"]
mod tests;
