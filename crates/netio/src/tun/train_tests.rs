use etherparse::{PacketBuilder, TcpHeaderSlice};
use proptest::prelude::*;

use super::*;

/// A segment as our stack gives it: headers, and the payload behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RawSegment {
    head: Vec<u8>,
    body: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct SegmentShape {
    is_v4: bool,
    port: u16,
    seq: u32,
    ack: u32,
    bytes: usize,
    is_pushed: bool,
    is_last: bool,
    is_stamped: bool,
}

const SHAPE: SegmentShape = SegmentShape {
    is_v4: true,
    port: 5000,
    seq: 1,
    ack: 77,
    bytes: 1448,
    is_pushed: false,
    is_last: false,
    is_stamped: true,
};

fn segment(shape: SegmentShape) -> RawSegment {
    let body: Vec<u8> = (0..shape.bytes).map(|at| (shape.seq as usize + at) as u8).collect();
    let v4 = || PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let v6 = || PacketBuilder::ipv6([1; 16], [2; 16], 64);
    let builder = if shape.is_v4 { v4() } else { v6() };
    let mut builder = builder.tcp(554, shape.port, shape.seq, 500).ack(shape.ack);
    if shape.is_pushed {
        builder = builder.psh();
    }
    if shape.is_last {
        builder = builder.fin();
    }
    if shape.is_stamped {
        let stamps = etherparse::TcpOptionElement::Timestamp(shape.seq / 3000, 9);
        let noop = etherparse::TcpOptionElement::Noop;
        builder = builder.options(&[noop.clone(), noop, stamps]).unwrap();
    }
    let mut packet = Vec::new();
    builder.write(&mut packet, &body).unwrap();
    let head = packet[..packet.len() - body.len()].to_vec();
    RawSegment { head, body }
}

/// Imitates the kernel's handling of the data written: cuts a train into segments again, each with
/// its own lengths and checksums.
fn cut(written: &[u8]) -> Vec<Vec<u8>> {
    let (front, packet) = written.split_at(VNET_BYTES);
    let field = |at: usize| usize::from(u16::from_ne_bytes([front[at], front[at + 1]]));
    if front[1] == 0 {
        assert_eq!(front, [0; VNET_BYTES]);
        return vec![packet.to_vec()];
    }
    let (head, size, ip) = (field(2), field(4), field(6));
    assert_eq!((front[0], field(8)), (NEEDS_CHECKSUM, CHECK));
    assert_eq!(front[1], if packet[0] >> 4 == 4 { CUT_V4 } else { CUT_V6 });
    assert_pseudo_sum(packet, ip);
    let count = (packet.len() - head).div_ceil(size);
    let cut = |(number, body): (usize, &[u8])| {
        let mut one = [&packet[..head], body].concat();
        let seq = seq(packet, ip).wrapping_add((number * size) as u32);
        one[ip + SEQ..ip + SEQ + 4].copy_from_slice(&seq.to_be_bytes());
        if number + 1 < count {
            one[ip + FLAGS] &= !(PSH | FIN);
        }
        let bytes = one.len();
        put_lengths(Layout { ip }, &mut one[..head], bytes);
        let sum = !sum16(&one[ip..]);
        one[ip + CHECK..ip + CHECK + 2].copy_from_slice(&sum.to_be_bytes());
        one
    };
    packet[head..].chunks(size).enumerate().map(cut).collect()
}

/// The sum that stands in a train is that of the pseudo-header: with the complement of the rest it makes a right checksum by another's account.
fn assert_pseudo_sum(packet: &[u8], ip: usize) {
    let mut whole = packet.to_vec();
    let sum = !sum16(&whole[ip..]);
    whole[ip + CHECK..ip + CHECK + 2].copy_from_slice(&sum.to_be_bytes());
    let tcp = TcpHeaderSlice::from_slice(&whole[ip..]).unwrap();
    let payload = &whole[ip + tcp.slice().len()..];
    let expected = if ip == IPV4_HEADER_BYTES {
        let header = etherparse::Ipv4HeaderSlice::from_slice(&whole).unwrap();
        assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
        tcp.calc_checksum_ipv4(&header, payload)
    } else {
        tcp.calc_checksum_ipv6(&etherparse::Ipv6HeaderSlice::from_slice(&whole).unwrap(), payload)
    };
    assert_eq!(sum, expected.unwrap());
}

/// Everything that is written for these segments, in order.
fn written(segments: &[RawSegment]) -> Vec<Vec<u8>> {
    let (mut train, mut all) = (Train::new(), Vec::new());
    let leave = |train: &mut Train, all: &mut Vec<Vec<u8>>| {
        if !train.is_empty() {
            all.push(train.seal().to_vec());
            train.clear();
        }
    };
    for RawSegment { head, body } in segments {
        let (one, other) = body.split_at(body.len() / 3);
        match train.join(head, &[one, other]) {
            Joined::Yes => continue,
            Joined::Behind => {
                leave(&mut train, &mut all);
                assert_eq!(train.join(head, &[one, other]), Joined::Yes);
            }
            Joined::Alone => {
                leave(&mut train, &mut all);
                all.push([&[0; VNET_BYTES][..], head, body].concat());
            }
        }
    }
    leave(&mut train, &mut all);
    all
}

/// Removes the one permitted difference: PSH within a train.
fn without_push(mut packet: Vec<u8>) -> Vec<u8> {
    let ip = if packet[0] >> 4 == 4 { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
    if packet[ip + FLAGS] & PSH != 0 {
        packet[ip + FLAGS] &= !PSH;
        let sum = u16::from_be_bytes([packet[ip + CHECK], packet[ip + CHECK + 1]]);
        let sum = !fold(u64::from(!sum) + u64::from(!u16::from(PSH)));
        packet[ip + CHECK..ip + CHECK + 2].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

fn following(shape: SegmentShape, sizes: &[usize]) -> Vec<RawSegment> {
    let mut shape = shape;
    let next = |bytes: &usize| {
        let one = segment(SegmentShape { bytes: *bytes, ..shape });
        shape.seq = shape.seq.wrapping_add(*bytes as u32);
        one
    };
    sizes.iter().map(next).collect()
}

#[test]
fn segments_that_follow_each_other_are_one_write() {
    for is_v4 in [true, false] {
        let shape = SegmentShape { is_v4, is_stamped: false, ..SHAPE };
        let segments = following(shape, &[1460, 1460, 1460, 100]);
        let written = written(&segments);
        assert_eq!(written.len(), 1);
        let whole: Vec<_> = segments.iter().map(|one| [&one.head[..], &one.body].concat()).collect();
        assert_eq!(cut(&written[0]), whole);
    }
}

#[test]
fn train_ends_at_segment_that_does_not_follow() {
    let first = segment(SegmentShape { is_stamped: false, ..SHAPE });
    let next = SegmentShape { seq: 1449, is_stamped: false, ..SHAPE };
    let count = |second: SegmentShape| written(&[first.clone(), segment(second)]).len();
    assert_eq!(count(next), 1);
    for other in [
        SegmentShape { seq: 1450, ..next },
        SegmentShape { seq: 1, ..next },
        SegmentShape { port: 5001, ..next },
        SegmentShape { ack: 78, ..next },
        SegmentShape { bytes: 1449, ..next },
        SegmentShape { is_v4: false, ..next },
        SegmentShape { is_stamped: true, ..next },
    ] {
        assert_eq!(count(other), 2, "{other:?}");
    }
    // Behind a short one, and behind the last of all.
    let short = following(SegmentShape { is_stamped: false, ..SHAPE }, &[1448, 10, 10]);
    assert_eq!(written(&short).len(), 2);
    let last = segment(SegmentShape { is_last: true, is_stamped: false, ..SHAPE });
    assert_eq!(written(&[last, segment(next)]).len(), 2);
}

#[test]
fn train_join_rejects_packets_without_plain_data_segment() {
    let alone = |segment: &RawSegment| Train::new().join(&segment.head, &[&segment.body]) == Joined::Alone;
    let good = segment(SHAPE);
    assert!(!alone(&good));
    assert!(alone(&segment(SegmentShape { bytes: 0, ..SHAPE })));
    let changed = |at: usize, to: u8| {
        let mut other = good.clone();
        other.head[at] = to;
        alone(&other)
    };
    let ip = IPV4_HEADER_BYTES;
    for (at, to, what) in [
        (0, 0x46, "options of IPv4"),
        (0, 0x55, "another version"),
        (6, 0x20, "a fragment"),
        (7, 1, "the end of a fragment"),
        (IPV4_PROTOCOL, 17, "UDP"),
        (IPV4_LENGTH + 1, 0, "a length that is wrong"),
        (ip + FLAGS, ACK | 2, "SYN"),
        (ip + FLAGS, ACK | 4, "RST"),
        (ip + FLAGS, ACK | 0x20, "URG"),
        (ip + FLAGS, ACK | 0x80, "CWR"),
        (ip + FLAGS, 0, "no ACK"),
        (ip + OFFSET, 0x50, "options that its header does not tell of"),
    ] {
        assert!(changed(at, to), "{what}");
    }
    // The longest that IPv6 has a length for is longer than one of IPv4.
    let longest = segment(SegmentShape { is_v4: false, is_stamped: false, bytes: 65_475, ..SHAPE });
    assert!(!alone(&longest));
    assert!(alone(&segment(SegmentShape { is_v4: false, is_stamped: false, bytes: 65_476, ..SHAPE })));
    for bytes in 0..good.head.len() {
        assert!(alone(&RawSegment { head: good.head[..bytes].to_vec(), body: good.body.clone() }), "{bytes}");
    }
}

#[test]
fn train_length_is_limited_by_ip_packet_size() {
    let segments = following(SegmentShape { is_stamped: false, ..SHAPE }, &[1460; 50]);
    let written = written(&segments);
    assert_eq!(written.iter().map(|one| cut(one).len()).collect::<Vec<_>>(), [44, 6]);
}

#[test]
fn vnet_header_flags_tell_checksum_state() {
    let packet = |flags: u8| [&[flags, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], b"packet"].concat();
    for (flags, is_checked) in [(0, false), (NEEDS_CHECKSUM, true), (IS_VALID, true)] {
        assert_eq!(said(&packet(flags)), Some((&b"packet"[..], is_checked)));
    }
    assert_eq!(said(&[0; VNET_BYTES - 1]), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn train_preserves_all_segments_in_order(
        shapes in prop::collection::vec(
            (0..4u8, 0..2usize, any::<bool>(), 0..20u8, prop::sample::select(vec![1448, 1448, 1448, 9, 1])),
            1..60,
        ),
    ) {
        let mut flows = [1u32, u32::MAX - 5000];
        let segments: Vec<RawSegment> = shapes
            .into_iter()
            .map(|(jump, flow, is_pushed, rare, bytes)| {
                let bytes = if rare == 1 { 0 } else { bytes };
                let seq = flows[flow].wrapping_add(u32::from(jump == 3));
                flows[flow] = seq.wrapping_add(bytes as u32);
                let (is_v4, port) = (flow == 0, 5000 + flow as u16);
                segment(SegmentShape { is_v4, port, seq, bytes, is_pushed, is_last: rare == 2, ..SHAPE })
            })
            .collect();
        let given: Vec<_> =
            segments.iter().map(|one| without_push([&one.head[..], &one.body].concat())).collect();
        let left: Vec<_> =
            written(&segments).iter().flat_map(|one| cut(one)).map(without_push).collect();
        prop_assert_eq!(left, given);
    }
}
