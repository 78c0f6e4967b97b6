//! The link header: Ethernet with or without a VLAN tag, or none.

use millrace_core::wire::frame::layout::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, put_link};
use millrace_core::wire::frame::{ETHERNET_HEADER_BYTES, LinkHeader, VLAN_TAG_BYTES};

use super::settings::LinkLayer;

/// Ethernet addresses.
pub(super) type Mac = [u8; 6];

/// Everybody.
pub(super) const BROADCAST: Mac = [0xff; 6];
/// ARP in the type field.
pub(super) const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
/// Longest link header.
pub(super) const LINK_BYTES: usize = ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES;
/// The VLAN identifier in a tag; the bits above are the priority.
const VLAN_ID: u16 = 0x0fff;

/// Content of a link header.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkFrame<'f> {
    /// Sent to this station alone, or there is no link header that could say otherwise.
    pub(super) is_to_us: bool,
    pub(super) source: Mac,
    pub(super) ethertype: [u8; 2],
    pub(super) bytes: &'f [u8],
}

/// Why there is no frame for this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoFrame {
    /// It ends before its header does.
    Short,
    /// It belongs to another VLAN.
    Elsewhere,
}

/// Link headers, ready but for the destination.
#[derive(Debug)]
pub(super) struct LinkTemplate {
    bytes: usize,
    mac: Mac,
    vlan: Option<u16>,
    v4: [u8; LINK_BYTES],
    v6: [u8; LINK_BYTES],
}

impl LinkTemplate {
    pub(super) fn new(link: LinkLayer) -> Self {
        let LinkLayer::Ethernet { mac, vlan } = link else {
            return Self { bytes: 0, mac: [0; 6], vlan: None, v4: [0; LINK_BYTES], v6: [0; LINK_BYTES] };
        };
        let (mut v4, mut v6) = ([0; LINK_BYTES], [0; LINK_BYTES]);
        let header = LinkHeader { destination: [0; 6], source: mac, vlan };
        let bytes = put_link(&mut v4, &header, ETHERTYPE_IPV4);
        put_link(&mut v6, &header, ETHERTYPE_IPV6);
        Self { bytes, mac, vlan: vlan.map(|id| id & VLAN_ID), v4, v6 }
    }

    /// Length of a link header.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(super) fn has_neighbours(&self) -> bool {
        self.bytes > 0
    }

    /// The device's own address.
    pub(super) fn mac(&self) -> Mac {
        self.mac
    }

    /// The header of an IP packet.
    #[inline]
    pub(super) fn ip(&self, is_v4: bool) -> &[u8; LINK_BYTES] {
        if is_v4 { &self.v4 } else { &self.v6 }
    }

    /// Writes a header to `out`; its length.
    pub(super) fn put(&self, out: &mut [u8], destination: Mac, ethertype: [u8; 2]) -> usize {
        if !self.has_neighbours() {
            return 0;
        }
        put_link(out, &LinkHeader { destination, source: self.mac, vlan: self.vlan }, ethertype)
    }

    /// Takes a frame apart. What follows the packet in it (padding) is still behind it.
    #[inline]
    pub(super) fn parse<'f>(&self, frame: &'f [u8]) -> Result<LinkFrame<'f>, NoFrame> {
        if !self.has_neighbours() {
            let ethertype = match frame.first().ok_or(NoFrame::Short)? >> 4 {
                4 => ETHERTYPE_IPV4,
                6 => ETHERTYPE_IPV6,
                _ => return Err(NoFrame::Elsewhere),
            };
            return Ok(LinkFrame { is_to_us: true, source: [0; 6], ethertype, bytes: frame });
        }
        let (header, mut bytes) = frame.split_first_chunk::<ETHERNET_HEADER_BYTES>().ok_or(NoFrame::Short)?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, high, low] = *header;
        let mut ethertype = [high, low];
        let mut vlan = None;
        if ethertype == ETHERTYPE_VLAN {
            let (tag, rest) = bytes.split_first_chunk::<VLAN_TAG_BYTES>().ok_or(NoFrame::Short)?;
            // Identifier 0: a priority and no VLAN.
            vlan = Some(u16::from_be_bytes([tag[0], tag[1]]) & VLAN_ID);
            (ethertype, bytes) = ([tag[2], tag[3]], rest);
        }
        if vlan.unwrap_or(0) != self.vlan.unwrap_or(0) {
            return Err(NoFrame::Elsewhere);
        }
        let is_to_us = [d0, d1, d2, d3, d4, d5] == self.mac;
        Ok(LinkFrame { is_to_us, source: [s0, s1, s2, s3, s4, s5], ethertype, bytes })
    }
}
