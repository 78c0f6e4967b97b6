//! Packets without RTP headers by AF_XDP, over rings in memory: each frame equals the frame that
//! independent code builds from the stored bytes.

use std::net::SocketAddr;

use crate::support::xdp::*;
use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::pool::HeapRegion;
use millrace_core::seam::SendOutcome;
use millrace_netio::xdp::{Strategy, XdpTx};

#[test]
fn raw_packets_go_out_as_they_lie_with_right_checksums() {
    const PACKETS: u32 = 20;
    let raw = WireLayout::new(1316).unwrap().raw().unwrap();
    assert!(PACKETS as usize * raw.slot_bytes() <= EXTENT_BYTES);
    for (strategy, family) in Strategy::ALL.into_iter().flat_map(|s| FAMILIES.map(|family| (s, family))) {
        let (arena, leases) = film_of(Box::new(HeapRegion::new(9)), 1, PACKETS, raw);
        let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, Some(strategy)), fixed_hops(7)).unwrap();
        let to = SocketAddr::new(family.parse().unwrap(), 5004);
        let outcomes = send_entries(&mut tx, vec![packets(0, to, &leases[0], 3, 9)]);
        assert_eq!(outcomes, [SendOutcome::Sent], "{strategy}");
        let frames = nic.run();
        assert_eq!(frames.len(), 9, "{strategy}");
        for (frame, stored) in frames.iter().zip(leases[0].wire(3, 9).chunks(1316)) {
            let parsed = PacketHeaders::from_ethernet_slice(frame).unwrap();
            assert_eq!(parsed.payload.slice(), stored, "{strategy}");
            let Some(TransportHeader::Udp(udp)) = parsed.transport else { panic!("not UDP") };
            let sum = match parsed.net {
                Some(NetHeaders::Ipv4(ip, _)) => udp.calc_checksum_ipv4(&ip, stored),
                Some(NetHeaders::Ipv6(ip, _)) => udp.calc_checksum_ipv6(&ip, stored),
                other => panic!("{other:?}"),
            };
            assert_eq!((udp.destination_port, sum), (5004, Ok(udp.checksum)), "{strategy}");
        }
    }
}
