//! Helpers of the AF_XDP tests: titles in arenas, entries that state their place, devices on one
//! end of a veth pair.
#![allow(unreachable_pub)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, Lease, Region};
use millrace_core::seam::{Payload, PayloadSource, SendOutcome, Transmit, TransmitBatch};
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::LinkHeader;
use millrace_netio::route::{Hop, HopTable};
use millrace_netio::xdp::{Strategy, XdpConfig, XdpError, XdpTx};

use super::{UNSET, Wire, pattern, stream, udp};

/// RTP header and seven TS packets.
pub const SEGMENT: usize = 1328;
/// Source ports of the devices.
pub const PORT: u16 = 6970;
/// Addresses of viewers behind the pair.
pub const FAMILIES: [&str; 2] = ["10.77.0.2", "fd77::2"];

/// An arena of `extents` extents for titles, each with `packets` packets in it, and eight aside; leases on all of them.
pub fn film(region: Box<dyn Region>, extents: u32, packets: u32) -> (Arc<ExtentArena>, Vec<Lease>) {
    film_of(region, extents, packets, WireLayout::new(1316).unwrap())
}

/// The same in another layout.
pub fn film_of(
    region: Box<dyn Region>,
    extents: u32,
    packets: u32,
    layout: WireLayout,
) -> (Arc<ExtentArena>, Vec<Lease>) {
    let arena = ExtentArena::with_aside(region, 8);
    assert_eq!(arena.extents(), extents, "the region has the wrong length");
    let leases = (0..extents).map(|extent| {
        let mut fill = arena.fill(extent).unwrap();
        let bytes = pattern(extent + 1, packets as usize * layout.slot_bytes());
        fill.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        for (place, packet) in bytes.chunks(layout.slot_bytes()).enumerate() {
            let meta = PacketMeta::new(sum16(&packet[layout.header_bytes()..]), 0, MediaTicks(0));
            let at = layout.meta_offset(place as u32, packets);
            fill.bytes_mut()[at..at + 8].copy_from_slice(&meta.to_bytes());
        }
        fill.publish();
        let content = ExtentContent {
            title: TitleRef(0),
            number: extent,
            first_packet: extent * packets,
            packets,
            last_packet_bytes: layout.packet_bytes() as u16,
            layout,
            spare: 0,
        };
        arena.lend(extent, content).unwrap()
    });
    let leases = leases.collect();
    (arena, leases)
}

/// Entries with the place that they come from.
pub struct Entries<'a>(pub Vec<(Transmit<'a>, Option<PayloadSource<'a>>)>);

impl TransmitBatch for Entries<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn get(&self, index: usize) -> Transmit<'_> {
        self.0[index].0
    }
    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        self.0[index].1
    }
}

/// `count` packets of an extent to a viewer.
pub fn packets(
    index: u32,
    to: SocketAddr,
    lease: &Lease,
    place: u32,
    count: u32,
) -> (Transmit<'_>, Option<PayloadSource<'_>>) {
    let payload =
        Payload::Wire { bytes: lease.wire(place, count), segment: lease.content().layout.slot_bytes() };
    (Transmit { stream: stream(index), dest: udp(to, to), payload }, Some(PayloadSource { lease, place }))
}

/// Sends one batch.
pub fn send_entries(
    tx: &mut XdpTx,
    entries: Vec<(Transmit<'_>, Option<PayloadSource<'_>>)>,
) -> Vec<SendOutcome> {
    use millrace_core::seam::PacketTx;
    let mut outcomes = vec![UNSET; entries.len()];
    tx.send(&Entries(entries), &mut outcomes);
    assert!(!outcomes.contains(&UNSET), "an entry has no outcome: {outcomes:?}");
    outcomes
}

/// Number of the server's end of the pair.
pub fn interface_index(net: &Wire) -> u32 {
    let text = net.server.must("ip -o link show dev va");
    text.split(':').next().unwrap().trim().parse().expect("the number of va")
}

/// How the viewers behind the pair are reached.
pub fn hops(net: &Wire) -> HopTable {
    hops_of(interface_index(net), 1500)
}

/// The same by an interface of any number.
pub fn fixed_hops(if_index: u32) -> HopTable {
    hops_of(if_index, 1500)
}

/// The same with another MTU.
pub fn hops_of(if_index: u32, mtu: u32) -> HopTable {
    let hop = |source: &str| Hop {
        if_index,
        link: LinkHeader { destination: [2, 0, 0, 0x77, 0, 2], source: [2, 0, 0, 0x77, 0, 1], vlan: None },
        source: source.parse().unwrap(),
        mtu,
        hop_limit: 64,
        usable: true,
        generation: 0,
    };
    let of = |viewer: &str, server: &str| (viewer.parse::<IpAddr>().unwrap(), hop(server));
    HopTable::fixed(vec![
        of("10.77.0.2", "10.77.0.1"),
        of("10.77.0.3", "10.77.0.1"),
        of("fd77::2", "fd77::1"),
        of("fd77::3", "fd77::1"),
    ])
}

pub fn config(arena: &Arc<ExtentArena>, strategy: Option<Strategy>) -> XdpConfig {
    XdpConfig {
        interface: "va".into(),
        queue: 0,
        arena: Arc::clone(arena),
        strategy,
        streams: 16,
        port: PORT,
        rtcp_port: PORT + 1,
        tx_budget: 64,
    }
}

/// Opens a device on the server's end; `None`, with the reason printed, where this kernel has no AF_XDP.
pub fn open(net: &Wire, config: XdpConfig) -> Option<XdpTx> {
    let table = hops(net);
    match net.server.inside(|| XdpTx::open(config, table)) {
        Ok(tx) => Some(tx),
        Err(XdpError::Call { source, .. }) if source.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            eprintln!("skipped: this kernel is built without AF_XDP");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// UDP datagrams with a wrong checksum that the viewers' side has seen.
pub fn checksum_errors(net: &Wire) -> u64 {
    net.viewers.counter("snmp", "Udp", "InCsumErrors") + net.viewers.counter("snmp6", "", "Udp6InCsumErrors")
}
