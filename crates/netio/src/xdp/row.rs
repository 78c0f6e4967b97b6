//! The state of each stream: its destination, its next hop, and its prebuilt headers.

use std::net::{IpAddr, SocketAddr};

use millrace_core::prefetch::prefetch_all;
use millrace_core::wire::frame::{
    Flow, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, LinkHeader, Template, UDP_HEADER_BYTES,
};

use crate::multicast::MulticastSettings;
use crate::route::{Hop, HopId, HopTable, multicast_mac};

/// One stream. Two cache lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct XdpStreamRow {
    pub(super) template: Template,
    destination: [u8; 16],
    source: [u8; 16],
    hop: HopId,
    generation: u32,
    port: u16,
    hop_limit: u8,
}

const _: () = assert!(size_of::<Option<XdpStreamRow>>() == 128, "a stream's state is two cache lines");

/// The device's own end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnLink {
    /// Its Ethernet address, if it has one.
    pub(super) mac: Option<[u8; 6]>,
    /// Longest IP packet.
    pub(super) mtu: u32,
}

/// The limits of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Longest UDP payload.
    pub(super) datagram_bytes: usize,
}

/// How rows were made and changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowCounts {
    pub(super) built: u64,
    pub(super) patched: u64,
}

/// Rows of all streams of a device, and where their next hops come from.
pub(super) struct Rows {
    rows: Box<[Option<XdpStreamRow>]>,
    hops: HopTable,
    /// Only this interface's frames go out here; `None` for rings in memory.
    if_index: Option<u32>,
    /// Source port of RTP.
    port: u16,
    pub(super) counts: RowCounts,
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Addresses whose next hop depends on more than the address.
fn needs_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

impl Rows {
    pub(super) fn new(streams: usize, hops: HopTable, if_index: Option<u32>, port: u16) -> Self {
        Self { rows: vec![None; streams].into(), hops, if_index, port, counts: RowCounts::default() }
    }

    /// Applies the changes of next hops.
    pub(super) fn poll(&mut self) {
        self.hops.poll();
    }

    fn limit(hop: &Hop, is_v4: bool) -> Limit {
        let ip = if is_v4 { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
        Limit { datagram_bytes: (hop.mtu as usize).saturating_sub(ip + UDP_HEADER_BYTES) }
    }

    fn is_ours(&self, hop: &Hop) -> bool {
        hop.usable && self.if_index.is_none_or(|ours| ours == hop.if_index)
    }

    /// The next hop of an address, if it is reached by this interface.
    fn find(&mut self, ip: IpAddr) -> Option<(HopId, Hop)> {
        if needs_scope(ip) {
            return None;
        }
        let id = self.hops.hop(ip)?;
        let hop = *self.hops.get(id);
        self.is_ours(&hop).then_some((id, hop))
    }

    fn template(hop: &Hop, port: u16, to: SocketAddr) -> Option<Template> {
        let source = SocketAddr::new(hop.source.to_canonical(), port);
        let flow = Flow { source, destination: to, hop_limit: hop.hop_limit, traffic_class: 0 };
        Template::new(&hop.link, &flow)
    }

    /// Brings the row of stream `index` up to date for datagrams to `to`; `None` if there is no way by this interface now.
    pub(super) fn refresh(&mut self, index: usize, to: SocketAddr) -> Option<Limit> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let destination = octets(to.ip());
        let row = self.rows.get(index)?.as_ref();
        let row = row.filter(|row| row.destination == destination && row.port == to.port());
        let known = row.map(|row| (row, *self.hops.get(row.hop))).filter(|(_, hop)| self.is_ours(hop));
        let (id, hop) = match known {
            Some((row, hop)) if hop.generation == row.generation => {
                return Some(Self::limit(&hop, to.is_ipv4()));
            }
            Some((row, hop)) => (row.hop, hop),
            None => self.find(to.ip())?,
        };
        self.renew(index, to, id, &hop)?;
        Some(Self::limit(&hop, to.is_ipv4()))
    }

    /// The same for datagrams to a group, which needs no next hop: by the socket of number `via`, set so, on a link like `link`.
    pub(super) fn refresh_multicast(
        &mut self,
        index: usize,
        to: SocketAddr,
        (via, settings): (u8, &MulticastSettings),
        link: OwnLink,
    ) -> Option<Limit> {
        let (id, destination) = (HopId::of_multicast(via), octets(to.ip()));
        let header = LinkHeader { destination: multicast_mac(to.ip())?, source: link.mac?, vlan: None };
        let MulticastSettings { if_index, source, ttl, .. } = *settings;
        let hop = Hop {
            if_index,
            link: header,
            source: source.ip(),
            mtu: link.mtu,
            hop_limit: ttl,
            usable: true,
            generation: 0,
        };
        let row = self.rows.get_mut(index)?;
        let is_same =
            |row: &XdpStreamRow| row.hop == id && row.destination == destination && row.port == to.port();
        if !row.as_ref().is_some_and(is_same) {
            let template = Self::template(&hop, source.port(), to)?;
            let source = octets(hop.source);
            let (generation, port) = (0, to.port());
            *row = Some(XdpStreamRow {
                template,
                destination,
                source,
                hop: id,
                generation,
                port,
                hop_limit: ttl,
            });
            self.counts.built += 1;
        }
        Some(Self::limit(&hop, to.is_ipv4()))
    }

    /// Returns whether datagrams of such a socket can leave here: by this interface, and for no
    /// receiver on this host.
    pub(super) fn takes(&self, settings: &MulticastSettings) -> bool {
        !settings.is_looped && self.if_index.is_none_or(|ours| ours == settings.if_index)
    }

    /// Writes the row for a next hop that is new or has changed.
    fn renew(&mut self, index: usize, to: SocketAddr, id: HopId, hop: &Hop) -> Option<()> {
        let (destination, source) = (octets(to.ip()), octets(hop.source));
        let row = self.rows.get_mut(index)?;
        if let Some(row) = row {
            let same = row.destination == destination && row.port == to.port() && row.source == source;
            if same && row.hop_limit == hop.hop_limit {
                row.template.set_link(&hop.link);
                (row.hop, row.generation) = (id, hop.generation);
                self.counts.patched += 1;
                return Some(());
            }
        }
        let template = Self::template(hop, self.port, to)?;
        let (generation, hop_limit) = (hop.generation, hop.hop_limit);
        *row = Some(XdpStreamRow {
            template,
            destination,
            source,
            hop: id,
            generation,
            port: to.port(),
            hop_limit,
        });
        self.counts.built += 1;
        Some(())
    }

    /// Asks for the memory of a row that will be looked at soon.
    pub(super) fn prefetch(&self, index: usize) {
        if let Some(row) = self.rows.get(index) {
            prefetch_all(row);
        }
    }

    /// The template of a row that was brought up to date.
    pub(super) fn get(&self, index: usize) -> Option<&Template> {
        self.rows.get(index)?.as_ref().map(|row| &row.template)
    }

    /// A template that is not kept: for the rare datagram from another port.
    pub(super) fn single(&mut self, port: u16, to: SocketAddr) -> Option<(Template, Limit)> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let (_, hop) = self.find(to.ip())?;
        Some((Self::template(&hop, port, to)?, Self::limit(&hop, to.is_ipv4())))
    }
}

#[cfg(test)]
#[path = "row_tests.rs"]
mod tests;
