//! Any damage to a frame: the program against a parser written from the RFCs with slices.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

/// What should become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Malformed,
    Rtp,
}

const V6: &str = "[2001:db8::7]:5004";

fn be16(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])))
}

/// Returns where the IP header ends and how many bytes follow according to it, if it leads to UDP
/// at a watched address.
fn parse_ip(frame: &[u8]) -> Option<(usize, i64)> {
    let (ip, watched) = (&frame[14..], |text| local(text).ip());
    match be16(frame, 12)? {
        0x0800 => {
            let header = 4 * usize::from(ip[0] & 15);
            let whole = be16(frame, 20)? & 0x3fff == 0;
            let to: [u8; 4] = ip[16..20].try_into().unwrap();
            let good = ip[0] >> 4 == 4 && header >= 20 && ip[9] == 17 && whole;
            let length = be16(ip, 2)? as i64 - header as i64;
            (good && IpAddr::from(to) == watched(LOCAL)).then_some((14 + header, length))
        }
        0x86dd => {
            let to: [u8; 16] = ip[24..40].try_into().unwrap();
            let good = ip[0] >> 4 == 6 && ip[6] == 17;
            (good && IpAddr::from(to) == watched(V6)).then_some((54, be16(ip, 4)? as i64))
        }
        _ => None,
    }
}

fn fate(frame: &[u8]) -> Fate {
    // A group address does not belong to another host alone.
    if frame[..6] != [0; 6] && frame[0] & 1 == 0 {
        return Fate::Pass;
    }
    let Some((start, length)) = parse_ip(frame) else { return Fate::Pass };
    let Some(udp) = frame.get(start..start + 8) else { return Fate::Pass };
    if be16(udp, 2) != Some(5004) {
        return Fate::Pass;
    }
    let udp_length = be16(udp, 4).unwrap();
    if udp_length < 8 || udp_length as i64 > length {
        return Fate::Malformed;
    }
    match frame.get(start + 8..start + udp_length) {
        Some(payload) if payload.len() >= 12 && payload[0] >> 6 == 2 && payload[1] & 0x7f == 33 => Fate::Rtp,
        _ => Fate::Malformed,
    }
}

#[test]
fn probe_verdict_matches_parser_for_any_frame() {
    let Some(probe) = probe(2, ProbeAction::Drop) else { return };
    // Most changes hit the headers, and many of them a value that means something.
    let value = prop_oneof![any::<u8>(), Just(0), Just(0x45), Just(0x60), Just(17), Just(8), Just(20)];
    let changes = prop::collection::vec((0..90usize, value), 0..4);
    proptest!(|(changes in changes, is_v6 in any::<bool>(), options in 0..4usize, cut in 0..30usize)| {
        for (slot, to) in [LOCAL, V6].into_iter().enumerate() {
            probe.watch(local(to), slot as u32, ProbeMedia::rtp(33)).unwrap();
        }
        let to = if is_v6 { V6 } else { LOCAL };
        let mut frame = Frame { options: vec![1; 4 * options], ..Frame::new(to, rtp(1, 0, 20)) }.bytes();
        frame.truncate(frame.len() - cut);
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        let expected = fate(&frame);
        let run = TestRun { packet: &frame, context: &[], repeat: 1 };
        let verdict = probe.program.test_run(&run).unwrap().result;
        let both = [probe.read(0).unwrap(), probe.read(1).unwrap()];
        let sum = |of: fn(&ProbeCounts) -> u64| both.iter().map(of).sum::<u64>();
        prop_assert_eq!(verdict, if expected == Fate::Pass { PASS } else { DROP });
        let found = (sum(|c| c.packets), sum(|c| c.malformed), sum(|c| c.datagrams));
        prop_assert_eq!(found, match expected {
            Fate::Pass => (0, 0, 0),
            Fate::Malformed => (0, 1, 1),
            Fate::Rtp => (1, 0, 1),
        });
    });
}
