use proptest::prelude::*;

use super::*;

fn proxies(networks: &[&str]) -> TrustedProxies {
    TrustedProxies::new(networks.iter().map(|text| text.parse().unwrap()).collect())
}

/// The client of a request from `peer` with these header lines.
fn client(trusted: &TrustedProxies, peer: &str, lines: &[(&str, &str)]) -> String {
    let mut fields = Fields::default();
    lines.iter().for_each(|(name, value)| fields.note(name, value.as_bytes()));
    trusted.client_of(SocketAddr::new(peer.parse().unwrap(), 5000), &fields).ip().to_string()
}

#[test]
fn network_parse_accepts_addresses_and_prefixes() {
    for (text, inside, outside) in [
        ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
        ("192.0.2.6/31", "::ffff:192.0.2.7", "192.0.2.8"),
        ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
        ("::1", "::1", "127.0.0.1"),
        ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
        ("::/0", "2001:db8::1", "203.0.113.9"),
    ] {
        let network: Network = text.parse().unwrap();
        assert!(network.contains(inside.parse().unwrap()), "{text} {inside}");
        assert!(!network.contains(outside.parse().unwrap()), "{text} {outside}");
        assert_eq!(network.to_string().parse(), Ok(network));
    }
    for text in
        ["", "proxy", "10.0.0.0/33", "::/129", "10.0.0.1/8", "10.0.0.0/", "10.0.0.0/-1", "10.0.0/8", "[::1]"]
    {
        let error = text.parse::<Network>().unwrap_err().to_string();
        assert!(error.contains(text) && error.contains("10.0.0.0/8"), "{error}");
    }
}

#[test]
fn client_of_untrusted_peer_is_the_peer() {
    let lies = [("X-Forwarded-For", "203.0.113.9"), ("Forwarded", "for=203.0.113.9")];
    assert_eq!(client(&proxies(&[]), "10.0.0.1", &lies), "10.0.0.1");
    assert_eq!(client(&proxies(&["10.0.0.0/8"]), "192.0.2.1", &lies), "192.0.2.1");
}

#[test]
fn client_behind_trusted_proxies_is_last_untrusted_hop() {
    let trusted = proxies(&["10.0.0.0/8", "2001:db8:1::/48"]);
    for (value, expected) in [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:4711", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        // The client wrote the first ones itself.
        ("203.0.113.9, 192.0.2.1", "192.0.2.1"),
        ("10.0.0.9, 192.0.2.1 ,10.0.0.2", "192.0.2.1"),
        ("unknown, 192.0.2.1, 2001:db8:1::5", "192.0.2.1"),
        // A client among the proxies.
        ("10.0.0.3", "10.0.0.3"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
        // No address: the proxy that received it is as far as is known.
        ("unknown", "10.0.0.1"),
        ("", "10.0.0.1"),
        ("203.0.113.9, unknown, 10.0.0.2", "10.0.0.2"),
        ("192.0.2.1,", "10.0.0.1"),
        ("192.0.2.1 203.0.113.9", "10.0.0.1"),
    ] {
        assert_eq!(client(&trusted, "10.0.0.1", &[("X-Forwarded-For", value)]), expected, "{value}");
        assert_eq!(client(&trusted, "::ffff:10.0.0.1", &[("x-forwarded-for", "192.0.2.1")]), "192.0.2.1");
    }
    // Two lines are one list.
    let lines = [("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-For", "192.0.2.1")];
    assert_eq!(client(&trusted, "10.0.0.1", &lines), "192.0.2.1");
    assert_eq!(client(&trusted, "10.0.0.1", &[]), "10.0.0.1");
}

#[test]
fn forwarded_header_names_client_as_rfc_7239_does() {
    let trusted = proxies(&["10.0.0.0/8"]);
    for (value, expected) in [
        ("for=192.0.2.1", "192.0.2.1"),
        ("For=\"192.0.2.1:4711\";proto=https;by=10.0.0.1", "192.0.2.1"),
        ("proto=http; For=\"[2001:db8::1]:4711\"", "2001:db8::1"),
        ("for=203.0.113.9, for=192.0.2.1, for=10.0.0.2", "192.0.2.1"),
        ("for=203.0.113.9;host=\"a,for=198.51.100.1\", for=192.0.2.1", "192.0.2.1"),
        // Within a string that the client wrote.
        ("for=\"203.0.113.9, for=198.51.100.1\"", "10.0.0.1"),
        ("for=192.0.2.1;host=\"a\\\", for=203.0.113.9\"", "192.0.2.1"),
        ("for=_hidden", "10.0.0.1"),
        ("for=unknown", "10.0.0.1"),
        ("proto=https", "10.0.0.1"),
        ("for=192.0.2.1;for=203.0.113.9", "10.0.0.1"),
        // A string that the client has left open does not hide the element of the proxy.
        ("for=203.0.113.9;x=\", for=192.0.2.1", "10.0.0.1"),
        ("for=203.0.113.9;x=\", for=\"[2001:db8::1]\"", "10.0.0.1"),
        ("for=203.0.113.9;x=\"\\, for=\"[2001:db8::1]:80\"", "10.0.0.1"),
    ] {
        assert_eq!(client(&trusted, "10.0.0.1", &[("Forwarded", value)]), expected, "{value}");
    }
}

#[test]
fn two_headers_that_differ_leave_the_proxy() {
    let trusted = proxies(&["10.0.0.0/8"]);
    for (list, rfc, expected) in [
        ("192.0.2.1", "for=192.0.2.1", "192.0.2.1"),
        ("203.0.113.9, 192.0.2.1", "for=\"192.0.2.1:99\"", "192.0.2.1"),
        ("192.0.2.1", "for=203.0.113.9", "10.0.0.1"),
        ("203.0.113.9", "for=192.0.2.1", "10.0.0.1"),
    ] {
        let lines = [("X-Forwarded-For", list), ("Forwarded", rfc)];
        assert_eq!(client(&trusted, "10.0.0.1", &lines), expected, "{list} {rfc}");
    }
}

/// Any header, of any kind: no panic; a peer that is not trusted is the client, and no entry before an untrusted address counts.
#[test]
fn anything_at_all() {
    let trusted = proxies(&["10.0.0.0/8", "fd00::/8"]);
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut fields = Fields::default();
        let half = bytes.len() / 2;
        fields.note("Forwarded", &bytes[..half]);
        fields.note("X-Forwarded-For", &bytes[half..]);
        let stranger = SocketAddr::from(([192, 0, 2, 1], 1));
        assert_eq!(trusted.client_of(stranger, &fields), stranger);
        let proxy = SocketAddr::from(([10, 0, 0, 1], 1));
        let _ = trusted.client_of(proxy, &fields);
        // A proxy adds its entry behind those of the client.
        for (name, before) in [("Forwarded", "for="), ("X-Forwarded-For", "")] {
            let mut fields = Fields::default();
            fields.note(name, bytes);
            fields.note(name, format!("{before}192.0.2.1").as_bytes());
            let client = trusted.client_of(proxy, &fields).ip();
            // Behind a mistake of the client no hop is known.
            assert!(
                client == stranger.ip() || name == "Forwarded" && client == proxy.ip(),
                "{fields:?}: {client}"
            );
        }
        let _ = String::from_utf8_lossy(bytes).parse::<Network>();
    });
}

proptest! {
    /// With any entries of its own in front of those of the proxies, a client stays the client.
    #[test]
    fn client_cannot_lie_through_proxies(
        lies in proptest::collection::vec(any::<IpAddr>(), 0..5),
        proxies_between in proptest::collection::vec(any::<[u8; 3]>(), 0..4),
        is_rfc in any::<bool>(),
    ) {
        let trusted = proxies(&["10.0.0.0/8"]);
        let own: IpAddr = [192, 0, 2, 1].into();
        let hops = lies.into_iter().chain([own]);
        let hops = hops.chain(proxies_between.into_iter().map(|[a, b, c]| IpAddr::from([10, a, b, c])));
        let list: Vec<String> = hops.map(|hop| match (is_rfc, hop) {
            (true, IpAddr::V6(v6)) => format!("for=\"[{v6}]\""),
            (true, v4) => format!("for={v4}"),
            (false, hop) => hop.to_string(),
        }).collect();
        let name = if is_rfc { "Forwarded" } else { "X-Forwarded-For" };
        prop_assert_eq!(client(&trusted, "10.0.0.1", &[(name, &list.join(", "))]), own.to_string());
    }
}
