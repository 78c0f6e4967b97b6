//! Packets that wait, against a kernel that the test plays.

use std::net::Ipv4Addr;

use millrace_netio::route::HopFeed;
use millrace_tcp::keyed::HashKey;

use super::*;

const OURS: u32 = 7;
const BYTES: usize = 200;
const OWN: Mac = [4; 6];

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn hop(last: u8) -> Hop {
    let link = LinkHeader { destination: [2, 0, 0, 0, 0, last], source: OWN, vlan: None };
    Hop { if_index: OURS, link, source: ip(1), mtu: 1500, hop_limit: 64, usable: true, generation: 0 }
}

fn ways() -> (Ways, HopFeed) {
    let (table, feed) = HopTable::fed();
    let stations = Stations::new(HashKey::new([1, 2]));
    (Ways::new(table, None, (OURS, OWN), stations, BYTES), feed)
}

/// What leaves at that moment: the last byte of the Ethernet address, and the packet.
fn leaves(ways: &mut Ways, now: Instant) -> Vec<(u8, Vec<u8>)> {
    let mut sent = Vec::new();
    ways.look(now, &mut |link, packet| {
        sent.push((link.destination[5], packet.to_vec()));
        Ok(true)
    })
    .unwrap();
    sent
}

#[test]
fn waiting_packet_leaves_when_path_is_known_and_latest_wins() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    assert_eq!((ways.to(ip(2)), ways.due()), (Where::NotKnown, None));
    ways.put_off((ip(2), SteeredPacketKind::Other), b"first", &[], now);
    ways.put_off((ip(2), SteeredPacketKind::Other), b"se", &[b"co", b"nd"], now);
    ways.put_off((ip(3), SteeredPacketKind::Other), b"other", &[], now);
    assert_eq!(ways.to(ip(3)), Where::NotKnown);
    assert_eq!(ways.due(), Some(now.plus_ns(WAY_LOOK_NS)));
    let at = |ms: u64| now.plus_ns(ms * 1_000_000);
    assert_eq!((leaves(&mut ways, at(0)), leaves(&mut ways, at(1))), (vec![], vec![]));
    assert_eq!(feed.asked(), [ip(2), ip(3)], "each once");
    assert!(feed.say(ip(2), hop(2)));
    assert_eq!(leaves(&mut ways, at(2)), [(2, b"second".to_vec())]);
    assert_eq!(ways.to(ip(2)), Where::There(hop(2).link));
    assert_eq!(ways.due(), Some(at(3)), "one still waits");
    assert!(feed.say(ip(3), hop(3)));
    assert_eq!(leaves(&mut ways, at(3)), [(3, b"other".to_vec())]);
    assert_eq!((leaves(&mut ways, at(4)), ways.due()), (vec![], None));
}

#[test]
fn egress_path_follows_neighbour_and_is_queried_again_if_lost() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1);
    ways.to(ip(2));
    feed.asked();
    feed.say(ip(2), hop(2));
    leaves(&mut ways, now);
    assert_eq!(ways.to(ip(2)), Where::There(hop(2).link));
    feed.say(ip(2), hop(9));
    leaves(&mut ways, now);
    assert_eq!(ways.to(ip(2)), Where::There(hop(9).link));
    feed.say(ip(2), Hop::UNUSABLE);
    leaves(&mut ways, now);
    assert_eq!(ways.to(ip(2)), Where::NotKnown);
    assert_eq!(feed.asked(), [ip(2)]);
}

#[test]
fn egress_path_by_other_interface_or_vlan_is_elsewhere() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    let vlan = LinkHeader { vlan: Some(5), ..hop(3).link };
    for (last, hop) in [(2, Hop { if_index: OURS + 1, ..hop(2) }), (3, Hop { link: vlan, ..hop(3) })] {
        assert_eq!(ways.to(ip(last)), Where::NotKnown);
        ways.put_off((ip(last), SteeredPacketKind::Other), b"lost", &[], now);
        feed.asked();
        feed.say(ip(last), hop);
        assert_eq!(leaves(&mut ways, now.plus_ns(10 * WAY_LOOK_NS)), []);
        assert_eq!((ways.to(ip(last)), ways.due()), (Where::Elsewhere, None));
    }
}

#[test]
fn waiting_packet_after_timeout_or_without_slot_is_dropped() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    let far = |n: usize| IpAddr::from([10, 0, (n / 250) as u8 + 1, (n % 250) as u8]);
    for n in 0..=WAITING_PACKETS {
        ways.to(far(n));
        ways.put_off((far(n), SteeredPacketKind::Other), &[n as u8], &[], now);
    }
    // One that does not fit a place, and one that takes the place of another.
    ways.put_off((far(0), SteeredPacketKind::Other), &[0; BYTES], &[&[0]], now);
    ways.put_off((far(1), SteeredPacketKind::Other), b"again", &[], now.plus_ns(WAITING_NS / 2));
    feed.asked();
    (0..=WAITING_PACKETS).for_each(|n| assert!(feed.say(far(n), Hop::UNUSABLE)));
    assert_eq!(leaves(&mut ways, now.plus_ns(WAITING_NS)), []);
    feed.asked();
    (0..=WAITING_PACKETS).for_each(|n| assert!(feed.say(far(n), hop(n as u8))));
    assert_eq!(leaves(&mut ways, now.plus_ns(WAITING_NS + WAY_LOOK_NS)), [(1, b"again".to_vec())]);
    assert_eq!(ways.due(), None);
}

#[test]
fn waiting_packet_refused_by_device_is_retried() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    ways.to(ip(2));
    ways.put_off((ip(2), SteeredPacketKind::Other), b"packet", &[], now);
    feed.asked();
    feed.say(ip(2), hop(2));
    let soon = now.plus_ns(WAY_LOOK_NS);
    ways.look(soon, &mut |_, _| Ok(false)).unwrap();
    assert_eq!(ways.due(), Some(soon.plus_ns(WAY_LOOK_NS)));
    assert!(ways.look(soon.plus_ns(WAY_LOOK_NS), &mut |_, _| Err(io::Error::other("gone"))).is_err());
    assert_eq!(leaves(&mut ways, soon.plus_ns(2 * WAY_LOOK_NS)), [(2, b"packet".to_vec())]);
}

fn station(mac: Mac) -> Where {
    Where::There(LinkHeader { destination: mac, source: OWN, vlan: None })
}

/// Callers with spoofed addresses are answered, and take nothing from real callers, however long
/// the flood lasts.
#[test]
fn egress_path_table_under_syn_flood_uses_few_entries() {
    const CALLERS: u32 = 10_000;
    let (mut ways, mut feed) = ways();
    let begun = Instant(1_000_000_000);
    let gateway = [2, 9, 9, 9, 9, 9];
    for second in 0..100_u32 {
        let now = begun.plus_ns(u64::from(second) * STRANGER_NS);
        let mut answered = 0;
        for number in 0..CALLERS {
            let caller = Ipv4Addr::from_bits(0xc612_0000 + second * CALLERS + number).into();
            ways.heard(caller, gateway);
            // What belongs to no connection is answered as well.
            let kind = if number % 2 == 0 { SteeredPacketKind::Handshake } else { SteeredPacketKind::Reset };
            match ways.way(caller, kind, now) {
                Where::NotKnown => ways.put_off((caller, kind), b"answer", &[], now),
                way => {
                    assert_eq!(way, station(gateway), "{caller}");
                    answered += 1;
                }
            }
        }
        assert!(answered >= CALLERS - STRANGERS as u32, "{answered}");
        assert!(feed.asked().len() <= STRANGERS, "second {second}");
        leaves(&mut ways, now);
    }
    // A real client while all entries for strangers are taken: it is answered like the others, and
    // has a path once it has answered in turn.
    let (client, now) = (ip(2), begun.plus_ns(200 * STRANGER_NS));
    leaves(&mut ways, now);
    for number in 0..WAITING_ANSWERS {
        let caller = Ipv4Addr::from_bits(0xc6f0_0000 + number as u32).into();
        assert_eq!(ways.way(caller, SteeredPacketKind::Handshake, now), Where::NotKnown);
        ways.put_off((caller, SteeredPacketKind::Handshake), b"answer", &[], now);
    }
    assert_eq!(feed.asked().len(), WAITING_ANSWERS);
    ways.heard(client, [2; 6]);
    assert_eq!(ways.way(client, SteeredPacketKind::Handshake, now), station([2; 6]));
    assert_eq!(ways.way(client, SteeredPacketKind::Other, now), Where::NotKnown);
    ways.put_off((client, SteeredPacketKind::Other), b"hello", &[], now);
    assert_eq!(feed.asked(), [client]);
    assert!(feed.say(client, hop(2)));
    assert_eq!(leaves(&mut ways, now.plus_ns(WAY_LOOK_NS)), [(2, b"hello".to_vec())]);
    assert_eq!(ways.way(client, SteeredPacketKind::Other, now), Where::There(hop(2).link));
}

/// Where there is no flood a caller is answered by the kernel's way, which may be another one than that of its call. It keeps its place when it is there.
#[test]
fn handshake_reply_uses_kernel_path_and_confirmed_peer_keeps_it() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    for (last, is_there) in [(2, true), (3, false)] {
        let caller = ip(last);
        ways.heard(caller, [2; 6]);
        for _ in 0..2 {
            assert_eq!(ways.way(caller, SteeredPacketKind::Handshake, now), Where::NotKnown);
            ways.put_off((caller, SteeredPacketKind::Handshake), b"welcome", &[], now);
        }
        assert_eq!(feed.asked(), [caller]);
        feed.say(caller, hop(last));
        let soon = now.plus_ns(WAY_LOOK_NS);
        assert_eq!(leaves(&mut ways, soon), [(last, b"welcome".to_vec())]);
        let kind = if is_there { SteeredPacketKind::Other } else { SteeredPacketKind::Handshake };
        assert_eq!(ways.way(caller, kind, soon), Where::There(hop(last).link));
    }
    // A second later, the next call gets the entry of a caller that was not heard from again.
    let later = now.plus_ns(STRANGER_NS + 1);
    assert_eq!(ways.way(ip(4), SteeredPacketKind::Handshake, later), Where::NotKnown);
    assert_eq!(feed.asked(), [ip(4)]);
    assert_eq!(ways.way(ip(2), SteeredPacketKind::Reset, later), Where::There(hop(2).link));
    assert!(!feed.say(ip(3), hop(3)), "it is forgotten");
    assert_eq!(ways.way(ip(3), SteeredPacketKind::Handshake, later), Where::NotKnown);
}

/// A caller without an entry whose station is not remembered gets no answer, unless a connection
/// with it ends.
#[test]
fn handshake_reply_during_flood_without_station_is_dropped() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    for number in 0..WAITING_ANSWERS {
        let caller = Ipv4Addr::from_bits(0xc612_0000 + number as u32).into();
        assert_eq!(ways.way(caller, SteeredPacketKind::Handshake, now), Where::NotKnown);
        ways.put_off((caller, SteeredPacketKind::Handshake), b"answer", &[], now);
    }
    assert_eq!(feed.asked().len(), WAITING_ANSWERS);
    assert_eq!(ways.way(ip(3), SteeredPacketKind::Handshake, now), Where::Elsewhere);
    assert!(feed.asked().is_empty());
    assert_eq!(ways.way(ip(3), SteeredPacketKind::Reset, now), Where::NotKnown);
    assert_eq!(feed.asked(), [ip(3)]);
}
