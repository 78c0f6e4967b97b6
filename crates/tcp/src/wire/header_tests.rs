use millrace_core::random::SplitMix;
use proptest::prelude::*;

use super::*;
use crate::wire::{Body, Head, Sacks, Stamps, TcpOptions, Template};

fn flow(is_v4: bool) -> FlowKey {
    let (local, remote) = if is_v4 {
        ("192.0.2.1:80", "198.51.100.7:4711")
    } else {
        ("[2001:db8::1]:80", "[2001:db8::2]:4711")
    };
    FlowKey::new(local.parse().unwrap(), remote.parse().unwrap()).unwrap()
}

/// A segment with a right checksum from the local to the remote end.
fn segment(flow: &FlowKey, head: &Head, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 60];
    let body = Body::new(sum16(payload), payload.len() as u32);
    let bytes = Template::new(flow).write(head, body, &mut out);
    out.truncate(bytes);
    out.extend(payload);
    out
}

//= RFC 9293 section 3.1
//= type=test
//# The number of 32-bit words in the TCP header.
#[test]
fn parse_header_with_bad_length_or_offset_returns_error() {
    let whole = segment(
        &flow(true),
        &Head { options: TcpOptions { mss: Some(9), ..TcpOptions::default() }, ..Head::default() },
        b"ab",
    );
    assert_eq!(parse(&whole).unwrap().payload, b"ab");
    for bytes in 0..24 {
        assert_eq!(parse(&whole[..bytes]), Err(Unfit::Length), "{bytes}");
        assert_eq!(payload_sum(&flow(true), &whole[..bytes]), Err(Unfit::Length), "{bytes}");
    }
    for words in 0..5 {
        let mut short = whole.clone();
        short[12] = words << 4;
        assert_eq!(parse(&short), Err(Unfit::Offset));
        assert_eq!(payload_sum(&flow(true), &short), Err(Unfit::Offset));
    }
    assert_eq!(parse(&[0x50; 65_536]), Err(Unfit::Length));
    assert_eq!(ports(&whole), Some((80, 4711)));
    assert_eq!(ports(&whole[..3]), None);
}

//= RFC 9293 section 3.1
//= type=test
//# Must be zero in
//# generated segments and must be ignored in received segments if the
//# corresponding future features are not implemented by the sending or
//# receiving host.
#[test]
fn reserved_bits_are_ignored_and_written_as_zero() {
    let plain = segment(&flow(true), &Head { flags: Flags::ACK, ..Head::default() }, b"");
    assert_eq!(plain[12], 0x50);
    let mut reserved = plain.clone();
    reserved[12] |= 0xf;
    assert_eq!(parse(&reserved), parse(&plain));
}

//= RFC 9293 section 3.1
//= type=test
//# The window size MUST be treated as an unsigned number, or else
//# large window sizes will appear like negative windows and TCP will
//# not work (MUST-1).
//= RFC 9293 section 3.1
//= type=test
//# A TCP implementation MUST be able to receive a TCP Option in any
//# segment (MUST-5).
#[test]
fn fields_are_where_they_belong() {
    let stamps = Some(Stamps { value: 0x0102_0304, echo: 0xfffe_fdfc });
    let head = Head {
        seq: Seq(0xdead_beef),
        ack: Seq(0x8000_0001),
        flags: Flags(0xd3),
        window: 0xffff,
        urgent: 0x7001,
        options: TcpOptions { stamps, ..TcpOptions::default() },
    };
    let bytes = segment(&flow(false), &head, b"payload");
    let found = parse(&bytes).unwrap();
    assert_eq!((found.source, found.destination), (80, 4711));
    assert_eq!((found.seq, found.ack, found.flags), (head.seq, head.ack, head.flags));
    assert_eq!((found.window, found.urgent, found.options), (0xffff, 0x7001, head.options));
    assert_eq!((found.payload, found.seq_len()), (&b"payload"[..], 9));
}

//= RFC 9293 section 3.1
//= type=test
//# The sender MUST generate it
//# (MUST-2) and the receiver MUST check it (MUST-3).
#[test]
fn checksum_detects_all_single_bit_errors() {
    for is_v4 in [true, false] {
        let flow = flow(is_v4);
        let whole =
            segment(&flow, &Head { seq: Seq(7), flags: Flags::ACK, window: 9, ..Head::default() }, b"odd");
        assert!(is_right(&flow, &whole) && is_right(&flow.reversed(), &whole));
        for bit in 0..whole.len() * 8 {
            let mut wrong = whole.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_right(&flow, &wrong), "bit {bit}");
        }
    }
    assert!(!is_right(&flow(true), &[]) && !is_right(&flow(true), &vec![0; 70_000]));
    assert!(!is_right(&flow(true), &segment(&flow(false), &Head::default(), b"")));
}

proptest! {
    #[test]
    fn payload_sum_from_header_equals_sum_of_payload(payload in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200), seq: u32, is_v4: bool, sacks in 0usize..4) {
        let flow = flow(is_v4);
        let mut options = TcpOptions::default();
        let mut blocks = Sacks::default();
        (0..sacks).for_each(|i| assert!(blocks.push(Seq(i as u32), Seq(seq))));
        options.sacks = blocks;
        let whole = segment(&flow, &Head { seq: Seq(seq), options, ..Head::default() }, &payload);
        prop_assert!(is_right(&flow, &whole));
        let expected = payload_sum(&flow, &whole).unwrap();
        prop_assert!(is_same_sum(expected, sum16(&payload)), "{:x} {:x}", expected, sum16(&payload));
        // A payload with one wrong bit does not match it.
        let mut random = SplitMix(u64::from(seq));
        let mut wrong = payload.clone();
        if !wrong.is_empty() {
            let at = random.below(wrong.len() as u64) as usize;
            wrong[at] ^= 1 << random.below(8);
            prop_assert!(!is_same_sum(expected, sum16(&wrong)));
        }
    }
}

#[test]
fn is_same_sum_equates_only_both_zeros() {
    assert!(is_same_sum(0, 0xffff) && is_same_sum(0xffff, 0) && is_same_sum(5, 5) && is_same_sum(0, 0));
    assert!(!is_same_sum(0, 1) && !is_same_sum(0xfffe, 1) && !is_same_sum(0x5555, 0xaaaa));
}
