//! The next hop of a destination.

use std::net::{IpAddr, Ipv4Addr};

use millrace_core::wire::frame::LinkHeader;

/// How packets to one destination leave. Several destinations behind one gateway have the same link header, each its own
/// source address and MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The interface that the frame is put on: the lower one of a VLAN.
    pub if_index: u32,
    /// The Ethernet header.
    pub link: LinkHeader,
    /// Source address that the kernel would choose.
    pub source: IpAddr,
    /// Longest IP packet, header included: of the interface, or of the route if that is smaller.
    pub mtu: u32,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// Whether frames may be sent so now. All else means nothing if not.
    pub usable: bool,
    /// Another one with every change of any other field.
    pub generation: u32,
}

impl Hop {
    /// No way.
    pub const UNUSABLE: Self = Self {
        if_index: 0,
        link: LinkHeader { destination: [0; 6], source: [0; 6], vlan: None },
        source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        mtu: 0,
        hop_limit: 0,
        usable: false,
        generation: 0,
    };

    /// Whether both say the same, whatever their generations.
    pub(super) fn says_as(&self, other: &Self) -> bool {
        Self { generation: other.generation, ..*self } == *other
    }
}

/// A destination's place in a [`HopTable`](super::HopTable). It may be kept: once its place was given to another
/// destination, it leads to a hop that is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopId {
    pub(super) slot: u32,
    /// How often the place was given away.
    pub(super) tenancy: u32,
}

impl HopId {
    /// Returns an id that never leads to a next hop: for packets sent to groups by the socket with
    /// this number.
    pub(crate) fn of_multicast(via: u8) -> Self {
        Self { slot: u32::MAX, tenancy: via.into() }
    }
}
