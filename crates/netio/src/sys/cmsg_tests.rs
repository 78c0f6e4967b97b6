use super::*;
use proptest::prelude::*;

/// One control message as bytes, padded.
fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut out = (HEADER + data.len()).to_ne_bytes().to_vec();
    out.extend_from_slice(&level.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
    out
}

#[test]
fn write_of_send_control_is_what_the_parser_reads() {
    let mut control = SendControl::EMPTY;
    let used = control.write(Some(1328), None);
    let all: Vec<_> = messages(&control.bytes[..used]).collect();
    let segment = (libc::SOL_UDP, libc::UDP_SEGMENT, &1328u16.to_ne_bytes()[..]);
    assert_eq!(all, [segment]);
    assert_eq!(control.write(None, None), 0);
    for source in ["192.0.2.1", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap()) {
        let used = control.write(Some(1328), Some(source));
        let all: Vec<_> = messages(&control.bytes[..used]).collect();
        assert_eq!((all.len(), all[0]), (2, segment));
        let data = all[1].2;
        match source {
            IpAddr::V4(ip) => assert_eq!((data.len(), &data[4..8]), (12, &ip.octets()[..])),
            IpAddr::V6(ip) => assert_eq!((data.len(), &data[..16]), (20, &ip.octets()[..])),
        }
        let used = control.write(None, Some(source));
        assert_eq!(messages(&control.bytes[..used]).count(), 1);
    }
}

#[test]
fn received_parse_reads_all_control_message_kinds() {
    let mut control = Vec::new();
    let time = [7i64.to_ne_bytes(), 9i64.to_ne_bytes()].concat();
    control.extend(message(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &time));
    control.extend(message(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &5u32.to_ne_bytes()));
    control.extend(message(libc::SOL_UDP, libc::UDP_GRO, &1400i32.to_ne_bytes()));
    assert_eq!(control.len(), Received::SPACE);
    let mut error = [0u8; EXTENDED_ERROR + 16];
    error[..4].copy_from_slice(&(libc::ECONNREFUSED as u32).to_ne_bytes());
    error[4] = libc::SO_EE_ORIGIN_ICMP;
    error[16..24].copy_from_slice(&[libc::AF_INET as u8, 0, 0, 0, 192, 0, 2, 7]);
    control.extend(message(libc::SOL_IP, libc::IP_RECVERR, &error));
    control.extend(message(libc::SOL_IP, libc::IP_PKTINFO, &[1, 0, 0, 0, 9, 9, 9, 9, 192, 0, 2, 1]));
    let got = Received::parse(&control);
    assert_eq!(got.arrival_unix_ns, Some(7_000_000_009));
    assert_eq!(got.dropped, Some(5));
    assert_eq!(got.segment, Some(1400));
    let offender = Some("192.0.2.7".parse().unwrap());
    let wanted = ExtendedError {
        errno: libc::ECONNREFUSED,
        origin: libc::SO_EE_ORIGIN_ICMP,
        offender,
        ..ExtendedError::default()
    };
    assert_eq!(got.error, Some(wanted));
    assert_eq!(got.local, Some("192.0.2.1".parse().unwrap()));
    let mut info = [0; 20];
    info[15] = 1;
    let control = message(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
    assert_eq!(Received::parse(&control).local, Some("::1".parse().unwrap()));
}

#[test]
fn zero_copy_completion_has_origin_and_range() {
    let mut error = [0u8; EXTENDED_ERROR + 16];
    error[4] = SO_EE_ORIGIN_ZEROCOPY;
    error[6] = SO_EE_CODE_ZEROCOPY_COPIED;
    error[8..12].copy_from_slice(&7u32.to_ne_bytes());
    error[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
    for (level, kind) in [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)] {
        let got = Received::parse(&message(level, kind, &error)).error.unwrap();
        assert_eq!((got.errno, got.origin, got.code), (0, SO_EE_ORIGIN_ZEROCOPY, 1));
        assert_eq!((got.info, got.data, got.offender), (7, u32::MAX, None));
    }
}

#[test]
fn received_parse_ignores_negative_time_and_segment() {
    let time = [(-1i64).to_ne_bytes(), 0i64.to_ne_bytes()].concat();
    let mut control = message(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &time);
    control.extend(message(libc::SOL_UDP, libc::UDP_GRO, &(-5i32).to_ne_bytes()));
    assert_eq!(Received::parse(&control), Received::default());
}

proptest! {
    /// Whatever bytes come, parsing ends and stays inside them.
    #[test]
    fn messages_of_any_bytes_stay_within_buffer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER);
        let _ = Received::parse(&bytes);
    }

    #[test]
    fn messages_round_trip_any_sequence(
        wanted in proptest::collection::vec((any::<i32>(), any::<i32>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..6)
    ) {
        let bytes: Vec<u8> = wanted.iter().flat_map(|(l, k, d)| message(*l, *k, d)).collect();
        let got: Vec<_> = messages(&bytes).map(|(l, k, d)| (l, k, d.to_vec())).collect();
        prop_assert_eq!(got, wanted);
    }
}
