use super::super::rig::*;
use super::*;

fn key(text: &str) -> AddressKey {
    key_of(text.parse().unwrap())
}

fn addresses() -> Addresses {
    Addresses::new(&settings(ETHERNET))
}

#[test]
fn words_are_those_of_a_flow_key() {
    for remote in ["198.51.100.7", "2001:db8:ff::7"] {
        let flow = flow(remote.parse::<IpAddr>().unwrap());
        let words = flow.words();
        assert_eq!([words[2], words[3]], key(remote));
        assert_eq!(ip_of(key(remote)), remote.parse::<IpAddr>().unwrap());
        assert_eq!(is_v4(key(remote)), flow.is_v4());
    }
}

#[test]
fn next_hop_is_on_link_gateway_or_none() {
    let mut settings = settings(ETHERNET);
    let hop = |settings: &Settings, text: &str| Addresses::new(settings).next_hop(key(text));
    for near in ["192.0.2.2", "192.0.2.254", "192.0.2.0", "2001:db8::ffff", "fe80::77", "febf::1"] {
        assert_eq!(hop(&settings, near), NextHop::OnLink, "{near}");
    }
    for far in ["192.0.3.1", "192.0.1.255", "10.0.0.1", "2001:db8:0:1::1", "fec0::1"] {
        assert_eq!(hop(&settings, far), NextHop::Gateway, "{far}");
    }
    assert_eq!(hop(&settings, "192.0.2.255"), NextHop::None);
    settings.gateway_v4 = None;
    assert_eq!(hop(&settings, "192.0.3.1"), NextHop::None);
    assert_eq!(hop(&settings, "2001:db8:0:1::1"), NextHop::Gateway);
    settings.gateway_v6 = None;
    assert_eq!(hop(&settings, "2001:db8:0:1::1"), NextHop::None);
    // Prefixes at both ends of their range, and not at a byte's edge.
    settings.addresses.clear();
    let settings = settings.with(OUR_V4, 31);
    assert_eq!(hop(&settings, "192.0.2.0"), NextHop::OnLink);
    assert_eq!(hop(&settings, "192.0.2.2"), NextHop::None);
    assert_eq!(hop(&settings, "fe80::77"), NextHop::None, "without an address of IPv6");
    let all = Settings::new(ETHERNET, [1, 2]).with(OUR_V4, 0).with(OUR_V6, 61);
    assert_eq!(hop(&all, "8.8.8.8"), NextHop::OnLink);
    assert_eq!(hop(&all, "2001:db8:0:7::1"), NextHop::OnLink);
    assert_eq!(hop(&all, "2001:db8:0:8::1"), NextHop::None);
    let one = Settings::new(ETHERNET, [1, 2]).with(OUR_V4, 32).with(OUR_V6, 128);
    assert_eq!(hop(&one, "192.0.2.2"), NextHop::None);
    assert_eq!(hop(&one, "2001:db8::2"), NextHop::None);
}

#[test]
fn source_v4_and_v6_are_of_the_target_subnet() {
    let addresses = addresses();
    assert_eq!(addresses.source_v4(key("192.0.2.9")), Some(OUR_V4));
    assert_eq!(addresses.source_v6(key("fe80::9")), Some(OUR_LOCAL_V6));
    assert_eq!(addresses.source_v6(key("2001:db8::9")), Some(OUR_V6));
    assert_eq!(addresses.source_v6(key("2001:db8:9::9")), Some(OUR_LOCAL_V6));
    let v6_only = Addresses::new(&Settings::new(ETHERNET, [1, 2]).with(OUR_V6, 64));
    assert_eq!(v6_only.source_v4(key("192.0.2.9")), None);
}

#[test]
fn settings_that_cannot_be_are_refused_with_the_reason() {
    let refused = |settings: Settings| settings.check().unwrap_err().to_string();
    let base = || Settings::new(ETHERNET, [1, 2]);
    let mut many = base();
    for i in 0..9 {
        many = many.with([192, 0, 2, i], 24);
    }
    assert_eq!(refused(many), "9 addresses for one interface; it takes 8");
    for (ip, prefix) in
        [("224.0.0.1", 24), ("0.0.0.0", 0), ("192.0.2.1", 33), ("::1", 128), ("2001:db8::1", 129)]
    {
        let text = refused(base().with(ip.parse::<IpAddr>().unwrap(), prefix));
        assert!(text.starts_with(&format!("{ip}/{prefix} is no address of a host")), "{text}");
    }
    let mut own = base().with(OUR_V4, 24);
    own.gateway_v4 = Some(OUR_V4);
    assert!(refused(own).starts_with("192.0.2.1 is no gateway"));
    let group =
        Settings::new(super::super::LinkLayer::Ethernet { mac: [1, 0, 0, 0, 0, 255], vlan: None }, [1, 2]);
    assert!(refused(group).starts_with("01:00:00:00:00:ff is no Ethernet address"));
    let mut small = base().with(OUR_V6, 64);
    small.mtu = 1279;
    assert_eq!(refused(small), "an MTU of 1279 bytes; the addresses need 1280 at least");
    let mut small = base().with(OUR_V4, 24);
    small.mtu = 1279;
    assert_eq!(small.check(), Ok(()));
    small.neighbours = 7;
    assert_eq!(refused(small), "room for 7 neighbours; choose 8 to 8192");
}
