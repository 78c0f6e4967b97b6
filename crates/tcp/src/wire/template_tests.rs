use proptest::prelude::*;

use super::*;
use crate::wire::{Stamps, is_right, parse};

fn flow(is_v4: bool) -> FlowKey {
    let (local, remote) = if is_v4 {
        ("192.0.2.1:80", "198.51.100.7:4711")
    } else {
        ("[2001:db8::1]:80", "[2001:db8::2]:4711")
    };
    FlowKey::new(local.parse().unwrap(), remote.parse().unwrap()).unwrap()
}

fn body(pieces: &[Vec<u8>]) -> Body {
    let mut body = Body::EMPTY;
    pieces.iter().for_each(|piece| body.push(sum16(piece), piece.len() as u32));
    body
}

proptest! {
    //= RFC 9293 section 3.1
    //= type=test
    //# The sender MUST generate it
    //# (MUST-2)
    #[test]
    fn data_headers_are_those_that_the_general_writer_makes(
        seq: u32, ack: u32, flags: u8, window: u16, stamps: Option<(u32, u32)>, is_v4: bool,
        pieces in prop::collection::vec(prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..60), 0..5),
    ) {
        let (flow, body, payload) = (flow(is_v4), body(&pieces), pieces.concat());
        prop_assert_eq!((body.bytes() as usize, body.sum()), (payload.len(), sum16(&payload)));
        let stamps = stamps.map(|(value, echo)| Stamps { value, echo });
        let options = TcpOptions { stamps, ..TcpOptions::default() };
        let head = Head { seq: Seq(seq), ack: Seq(ack), flags: Flags(flags), window, urgent: 0, options };
        let (template, mut out) = (Template::new(&flow), [0xee; 64]);
        let bytes = template.write(&head, body, &mut out);
        prop_assert_eq!(bytes, if stamps.is_some() { 32 } else { 20 });
        prop_assert!(out[bytes..].iter().all(|&byte| byte == 0xee));
        let whole = [&out[..bytes], &payload].concat();
        prop_assert!(is_right(&flow, &whole));
        let found = parse(&whole).unwrap();
        prop_assert_eq!((found.seq, found.ack, found.flags, found.window), (head.seq, head.ack, head.flags, window));
        prop_assert_eq!((found.options.stamps, found.urgent, found.payload), (stamps, 0, &payload[..]));
        prop_assert_eq!((found.source, found.destination), (flow.local_port(), flow.remote_port()));

        let mut other = [0xee; 64];
        prop_assert_eq!(template.write_any(&head, body, &mut other), bytes);
        // The checksum may have the other zero nowhere: both come from the same sum.
        prop_assert_eq!(out, other);
    }
}

#[test]
fn template_write_without_space_or_oversized_writes_nothing() {
    let (template, stamps) = (Template::new(&flow(true)), Some(Stamps::default()));
    let plain = Head::default();
    let stamped = Head { options: TcpOptions { stamps, ..TcpOptions::default() }, ..plain };
    let general = Head { options: TcpOptions { mss: Some(9), ..TcpOptions::default() }, ..Head::default() };
    assert_eq!(template.write(&plain, Body::EMPTY, &mut [0; 19]), 0);
    assert_eq!(template.write(&stamped, Body::EMPTY, &mut [0; 31]), 0);
    assert_eq!(template.write(&general, Body::EMPTY, &mut [0; 23]), 0);
    let mut out = [0; 60];
    assert_eq!(template.write(&plain, Body::new(1, 65_515), &mut out), 20);
    assert_eq!(template.write(&plain, Body::new(1, 65_516), &mut out), 0);
    assert_eq!(template.write(&stamped, Body::new(1, 65_504), &mut out), 0);
    assert_eq!(template.write(&general, Body::new(1, 65_512), &mut out), 0);
    assert_eq!(template.write(&general, Body::new(1, u32::MAX), &mut out), 0);
}
