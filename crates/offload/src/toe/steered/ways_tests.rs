//! Packets that wait, against a kernel that the test plays.

use millrace_netio::route::{Hop, HopFeed};

use super::*;

const OURS: u32 = 7;
const BYTES: usize = 200;

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn hop(last: u8) -> Hop {
    let link = LinkHeader { destination: [2, 0, 0, 0, 0, last], source: [4; 6], vlan: None };
    Hop { if_index: OURS, link, source: ip(1), mtu: 1500, hop_limit: 64, usable: true, generation: 0 }
}

fn ways() -> (Ways, HopFeed) {
    let (table, feed) = HopTable::fed();
    (Ways::new(table, None, OURS, BYTES), feed)
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
fn a_packet_waits_until_the_kernel_knows_the_way_and_the_latest_one_goes() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    assert_eq!((ways.to(ip(2)), ways.due()), (Where::NotKnown, None));
    ways.put_off(ip(2), b"first", &[], now);
    ways.put_off(ip(2), b"se", &[b"co", b"nd"], now);
    ways.put_off(ip(3), b"other", &[], now);
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
fn a_neighbour_that_moves_is_followed_and_one_that_is_gone_is_asked_for_again() {
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
fn a_way_by_another_interface_or_a_vlan_is_none() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    let vlan = LinkHeader { vlan: Some(5), ..hop(3).link };
    for (last, hop) in [(2, Hop { if_index: OURS + 1, ..hop(2) }), (3, Hop { link: vlan, ..hop(3) })] {
        assert_eq!(ways.to(ip(last)), Where::NotKnown);
        ways.put_off(ip(last), b"lost", &[], now);
        feed.asked();
        feed.say(ip(last), hop);
        assert_eq!(leaves(&mut ways, now.plus_ns(10 * WAY_LOOK_NS)), []);
        assert_eq!((ways.to(ip(last)), ways.due()), (Where::Elsewhere, None));
    }
}

#[test]
fn what_waits_too_long_or_finds_no_room_is_lost() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    let far = |n: usize| IpAddr::from([10, 0, (n / 250) as u8 + 1, (n % 250) as u8]);
    for n in 0..=WAITING_PACKETS {
        ways.to(far(n));
        ways.put_off(far(n), &[n as u8], &[], now);
    }
    // One that does not fit a place, and one that takes the place of another.
    ways.put_off(far(0), &[0; BYTES], &[&[0]], now);
    ways.put_off(far(1), b"again", &[], now.plus_ns(WAITING_NS / 2));
    feed.asked();
    (0..=WAITING_PACKETS).for_each(|n| assert!(feed.say(far(n), Hop::UNUSABLE)));
    assert_eq!(leaves(&mut ways, now.plus_ns(WAITING_NS)), []);
    feed.asked();
    (0..=WAITING_PACKETS).for_each(|n| assert!(feed.say(far(n), hop(n as u8))));
    assert_eq!(leaves(&mut ways, now.plus_ns(WAITING_NS + WAY_LOOK_NS)), [(1, b"again".to_vec())]);
    assert_eq!(ways.due(), None);
}

#[test]
fn what_the_device_has_no_room_for_waits_on() {
    let (mut ways, mut feed) = ways();
    let now = Instant(1_000_000_000);
    ways.to(ip(2));
    ways.put_off(ip(2), b"packet", &[], now);
    feed.asked();
    feed.say(ip(2), hop(2));
    let soon = now.plus_ns(WAY_LOOK_NS);
    ways.look(soon, &mut |_, _| Ok(false)).unwrap();
    assert_eq!(ways.due(), Some(soon.plus_ns(WAY_LOOK_NS)));
    assert!(ways.look(soon.plus_ns(WAY_LOOK_NS), &mut |_, _| Err(io::Error::other("gone"))).is_err());
    assert_eq!(leaves(&mut ways, soon.plus_ns(2 * WAY_LOOK_NS)), [(2, b"packet".to_vec())]);
}
