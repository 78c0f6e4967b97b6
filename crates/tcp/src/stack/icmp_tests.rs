use super::*;

fn undelivered(why: Undelivered) -> Option<IcmpKind> {
    Some(IcmpKind::Undelivered(why))
}

//= RFC 9293 section 3.9.2.2
//= type=test
//# TCP implementations MUST silently discard any received ICMP Source
//# Quench messages (MUST-55).
#[test]
fn source_quench_and_what_is_no_error_says_nothing() {
    assert_eq!(IcmpKind::v4(4, 0, [0; 4]), None);
    for kind in [0, 5, 8, 9, 10, 13, 14, 17, 18] {
        assert_eq!(IcmpKind::v4(kind, 0, [0; 4]), None, "{kind}");
    }
    for kind in [0, 5, 128, 129, 133, 134, 135, 136, 137, 255] {
        assert_eq!(IcmpKind::v6(kind, 0, [0; 4]), None, "{kind}");
    }
}

#[test]
fn messages_are_soft_or_hard_as_rfc_9293_has_it() {
    let is_hard = |kind: Option<IcmpKind>| match kind {
        Some(IcmpKind::Undelivered(why)) => why.is_hard(),
        other => panic!("{other:?}"),
    };
    for (kind, code) in [(3, 0), (3, 1), (3, 5), (11, 0), (11, 1), (12, 0)] {
        assert!(!is_hard(IcmpKind::v4(kind, code, [0; 4])), "{kind}, {code}");
    }
    for (kind, code) in [(1, 0), (1, 3), (3, 0), (3, 1), (4, 0), (4, 1), (4, 2)] {
        assert!(!is_hard(IcmpKind::v6(kind, code, [0; 4])), "{kind}, {code}");
    }
    assert!(is_hard(IcmpKind::v4(3, 2, [0; 4])) && is_hard(IcmpKind::v4(3, 3, [0; 4])));
    assert_eq!(IcmpKind::v4(3, 3, [0; 4]), undelivered(Undelivered::Port));
    assert_eq!(IcmpKind::v6(1, 4, [0; 4]), undelivered(Undelivered::Port));
}

#[test]
fn sizes_stand_where_each_protocol_has_them() {
    assert_eq!(IcmpKind::v4(3, 4, [9, 9, 5, 0xdc]), Some(IcmpKind::TooBig { mtu: 1500 }));
    assert_eq!(IcmpKind::v6(2, 0, [0, 0, 5, 0]), Some(IcmpKind::TooBig { mtu: 1280 }));
    assert_eq!(IcmpKind::v6(2, 7, [0, 1, 0, 0]), Some(IcmpKind::TooBig { mtu: 65_536 }), "whatever the code");
}
