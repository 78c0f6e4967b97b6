use millrace_core::wire::checksum::sum16;
use proptest::prelude::*;

use super::*;

fn flow(local: &str, remote: &str) -> FlowKey {
    FlowKey::new(local.parse().unwrap(), remote.parse().unwrap()).unwrap()
}

#[test]
fn ends_come_back_as_they_went_in() {
    for (local, remote) in [
        ("192.0.2.1:80", "198.51.100.7:40000"),
        ("[2001:db8::1]:443", "[2001:db8::2]:1"),
        ("[fe80::1%7]:80", "[fe80::2%7]:65535"),
        ("[::1]:80", "[::1]:81"),
    ] {
        let flow = flow(local, remote);
        assert_eq!((flow.local().to_string(), flow.remote().to_string()), (local.into(), remote.into()));
        assert_eq!((flow.local(), flow.remote()), (flow.reversed().remote(), flow.reversed().local()));
        assert_eq!(flow.is_v4(), local.starts_with("192"));
        assert_eq!((flow.local_port(), flow.remote_port()), (flow.local().port(), flow.remote().port()));
        assert_eq!(flow.with_local_port(9).local().port(), 9);
        assert_eq!(flow.with_local_port(9).remote(), flow.remote());
        assert_eq!(flow.reversed().reversed(), flow);
    }
    assert_eq!(format!("{:?}", flow("1.2.3.4:5", "6.7.8.9:10")), "1.2.3.4:5 - 6.7.8.9:10");
}

#[test]
fn flow_key_of_mapped_address_equals_ipv4_and_mixed_is_none() {
    assert_eq!(flow("[::ffff:192.0.2.1]:80", "192.0.2.2:81"), flow("192.0.2.1:80", "192.0.2.2:81"));
    assert_eq!(FlowKey::new("192.0.2.1:80".parse().unwrap(), "[2001:db8::2]:1".parse().unwrap()), None);
}

#[test]
fn flow_key_includes_scope_of_link_local_addresses_only() {
    assert_ne!(flow("[fe80::1%7]:80", "[fe80::2%7]:1"), flow("[fe80::1%8]:80", "[fe80::2%8]:1"));
    assert_eq!(flow("[fe80::1%7]:80", "[fe80::2]:1"), flow("[fe80::1]:80", "[fe80::2%7]:1"));
    let mut other: SocketAddrV6 = "[2001:db8::1]:80".parse().unwrap();
    other.set_scope_id(7);
    let remote = "[2001:db8::2]:1".parse().unwrap();
    assert_eq!(FlowKey::new(other.into(), remote), Some(flow("[2001:db8::1]:80", "[2001:db8::2]:1")));
}

proptest! {
    //= RFC 9293 section 3.1
    //= type=test
    //# The pseudo-header is 96 bits for IPv4
    //# and 320 bits for IPv6.
    #[test]
    fn pseudo_sum_equals_checksum_of_pseudo_header(a: [u8; 16], b: [u8; 16], ports: (u16, u16), is_v4: bool) {
        let end = |bytes: [u8; 16], port| {
            let [w, x, y, z, ..] = bytes;
            let ip: IpAddr = if is_v4 { [w, x, y, z].into() } else { bytes.into() };
            SocketAddr::new(ip, port)
        };
        let (local, remote) = (end(a, ports.0), end(b, ports.1));
        prop_assume!(is_v4 || local.ip().to_canonical() == local.ip() && remote.ip().to_canonical() == remote.ip());
        let length = if is_v4 { 4 } else { 16 };
        let pseudo = [&a[..length], &b[..length], &[0, 6]].concat();
        let flow = FlowKey::new(local, remote).unwrap();
        prop_assert_eq!(flow.pseudo_sum(), sum16(&pseudo));
        prop_assert_eq!(flow.reversed().pseudo_sum(), flow.pseudo_sum());
    }
}

#[test]
fn is_unicast_excludes_group_broadcast_and_unspecified() {
    for (local, remote, expected) in [
        ("192.0.2.1:1", "198.51.100.7:1", true),
        ("127.0.0.1:1", "127.0.0.2:1", true),
        ("192.0.2.1:1", "224.0.0.1:1", false),
        ("239.1.2.3:1", "192.0.2.1:1", false),
        ("192.0.2.1:1", "255.255.255.255:1", false),
        ("255.255.255.255:1", "192.0.2.1:1", false),
        ("0.0.0.0:1", "192.0.2.1:1", false),
        ("192.0.2.1:1", "0.0.0.0:1", false),
        ("[fe80::1%7]:1", "[2001:db8::2]:1", true),
        ("[2001:db8::1]:1", "[ff02::1]:1", false),
        ("[ff02::1]:1", "[2001:db8::1]:1", false),
        ("[::]:1", "[2001:db8::1]:1", false),
        ("[2001:db8::1]:1", "[::]:1", false),
    ] {
        assert_eq!(flow(local, remote).is_unicast(), expected, "{local} {remote}");
    }
}
