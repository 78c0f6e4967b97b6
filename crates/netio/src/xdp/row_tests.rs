//! Rows of streams: built once, patched when their next hop changes, never sent by the wrong way.

use std::net::Ipv4Addr;

use millrace_core::wire::frame::LinkHeader;

use super::*;

const VIEWER: &str = "10.9.8.7:5004";

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn hop(last: u8) -> Hop {
    Hop {
        if_index: 7,
        link: LinkHeader { destination: [2, 0, 0, 0, 0, last], source: [2; 6], vlan: None },
        source: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        mtu: 1500,
        hop_limit: 64,
        usable: true,
        generation: 0,
    }
}

fn header(rows: &Rows, index: usize) -> Vec<u8> {
    let mut out = [0; 100];
    let length = rows.get(index).unwrap().emit_raw(&mut out, 0, 0, 0);
    out[..length].to_vec()
}

#[test]
fn rows_refresh_follows_next_hop_changes() {
    let (table, mut feed) = HopTable::fed();
    let mut rows = Rows::new(2, table, Some(7), 6970);
    let to = addr(VIEWER);
    let mut say = |rows: &mut Rows, hop: Hop| {
        let _ = feed.asked();
        assert!(feed.say(to.ip(), hop));
        rows.poll();
    };
    assert_eq!(rows.refresh(0, to), None, "asked for");
    say(&mut rows, hop(1));
    assert_eq!(rows.refresh(0, to), Some(Limit { datagram_bytes: 1472 }));
    assert_eq!(header(&rows, 0)[..6], [2, 0, 0, 0, 0, 1]);
    rows.refresh(0, to).unwrap();
    assert_eq!(rows.counts, RowCounts { built: 1, patched: 0 });
    // Another neighbour, then a VLAN and a shorter path: in place.
    say(&mut rows, hop(9));
    rows.refresh(0, to).unwrap();
    assert_eq!(header(&rows, 0)[..6], [2, 0, 0, 0, 0, 9]);
    say(&mut rows, Hop { mtu: 1400, link: LinkHeader { vlan: Some(5), ..hop(9).link }, ..hop(9) });
    assert_eq!(rows.refresh(0, to), Some(Limit { datagram_bytes: 1372 }));
    assert_eq!(header(&rows, 0)[12..16], [0x81, 0, 0, 5]);
    assert_eq!(rows.counts, RowCounts { built: 1, patched: 2 });
    // Another source address or hop limit changes sums: built again.
    say(&mut rows, Hop { source: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), ..hop(9) });
    rows.refresh(0, to).unwrap();
    assert_eq!(header(&rows, 0)[26..30], [10, 0, 0, 2]);
    say(&mut rows, Hop { hop_limit: 3, ..hop(9) });
    rows.refresh(0, to).unwrap();
    assert_eq!((header(&rows, 0)[22], rows.counts.built), (3, 3));
    // Behind another interface, or not at all: not by this device.
    say(&mut rows, Hop { if_index: 8, ..hop(9) });
    assert_eq!(rows.refresh(0, to), None);
    say(&mut rows, Hop::UNUSABLE);
    assert_eq!(rows.refresh(0, to), None);
    say(&mut rows, hop(4));
    rows.refresh(0, to).unwrap();
    assert_eq!(header(&rows, 0)[..6], [2, 0, 0, 0, 0, 4]);
}

#[test]
fn rows_refresh_rebuilds_for_new_destination() {
    let ips = [IpAddr::V4(Ipv4Addr::new(10, 9, 8, 7)), IpAddr::V4(Ipv4Addr::new(10, 9, 8, 6))];
    let mut rows = Rows::new(1, HopTable::fixed(ips.map(|ip| (ip, hop(1))).into()), None, 6970);
    for (to, port) in
        [(VIEWER, 5004), ("10.9.8.6:5004", 5004), ("10.9.8.6:7000", 7000), ("[::ffff:10.9.8.6]:7000", 7000)]
    {
        rows.refresh(0, addr(to)).unwrap();
        let header = header(&rows, 0);
        assert_eq!(header[33], if to == VIEWER { 7 } else { 6 });
        assert_eq!(header[36..38], u16::to_be_bytes(port));
    }
    assert_eq!(rows.counts.built, 3, "an IPv4 address written as an IPv6 one is the same");
    assert_eq!(rows.refresh(1, addr(VIEWER)), None, "no such stream");
    assert_eq!(rows.refresh(0, addr("10.9.8.5:5004")), None);
    let (template, limit) = rows.single(6971, addr(VIEWER)).unwrap();
    assert_eq!((template.header_bytes(), limit.datagram_bytes), (42, 1472));
    assert!(rows.single(6971, addr("10.1.1.1:5")).is_none());
}
