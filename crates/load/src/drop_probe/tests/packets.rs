//! Which packets are counted, and as what.

use super::*;

/// Other kernels may need more steps than this one; the verifier gives up at a million.
#[test]
fn verifier_instruction_count_stays_below_limit() {
    let Some(ethernet) = probe(1, ProbeAction::Drop) else { return };
    let form = Form { action: ProbeAction::Pass, header_bytes: 0, arrival: ArrivalClock::Clock };
    let tun = DropProbe::load(1, form).unwrap();
    for probe in [ethernet, tun] {
        let insns = probe.program.verified_insns().unwrap();
        assert!(insns < 400_000, "{insns}");
    }
}

#[test]
fn watched_stream_is_counted_and_dropped() {
    let Some(probe) = watching() else { return };
    for sequence in 65_530..65_540u32 {
        let frame = Frame::new(LOCAL, rtp(sequence as u16, sequence * 1000, 1316));
        assert_eq!(probe.judge(&frame), DROP);
    }
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.datagrams, counts.packets, counts.payload_bytes), (10, 10, 13_160));
    assert_eq!((counts.lost, counts.reordered, counts.duplicates, counts.strays), (0, 0, 0, 0));
    assert_eq!((counts.first_sequence, counts.first_timestamp), (Some(65_530), Some(65_530_000)));
    assert_eq!(counts.highest_sequence_ext, (1 << 32) + 65_539);
    assert_eq!(counts.ssrc, 0x1122_3344);
    let totals = probe.totals().unwrap();
    assert_eq!(totals, ProbeTotals { seen: 10, watched: 10, dropped: 10, passed: 0, malformed: 0 });
}

#[test]
fn probe_action_pass_counts_without_dropping() {
    let Some(probe) = probe(1, ProbeAction::Pass) else { return };
    probe.watch(local(LOCAL), 0, ProbeMedia::rtp(33)).unwrap();
    assert_eq!(probe.judge(&Frame::new(LOCAL, rtp(1, 0, 188))), PASS);
    assert_eq!(probe.read(0).unwrap().packets, 1);
    let totals = probe.totals().unwrap();
    assert_eq!(totals, ProbeTotals { seen: 1, watched: 1, dropped: 0, passed: 1, malformed: 0 });
}

#[test]
fn unwatched_packets_pass_uncounted() {
    let Some(probe) = watching() else { return };
    let good = Frame::new(LOCAL, rtp(1, 0, 188));
    let frames = [
        ("another port", Frame::new("10.1.2.3:5005", rtp(1, 0, 188))),
        ("another address", Frame::new("10.1.2.4:5004", rtp(1, 0, 188))),
        ("another family", Frame::new("[fd00::1]:5004", rtp(1, 0, 188))),
        ("its bytes in the other family", Frame::new("[a01:203::]:5004", rtp(1, 0, 188))),
        ("a first fragment", Frame { fragment: 0x2000, ..good.clone() }),
        ("a later fragment", Frame { fragment: 0x0010, ..good.clone() }),
        ("TCP", Frame { protocol: 6, ..good.clone() }),
        ("a tagged frame", Frame { tags: vec![0x81, 0, 0, 5], ..good.clone() }),
        ("another host's", Frame { mac: [2, 0, 0, 0, 0, 9], ..good.clone() }),
        ("a version that is none", Frame { version: Some(5), ..good.clone() }),
    ];
    for (what, frame) in &frames {
        assert_eq!(probe.judge(frame), PASS, "{what}");
    }
    assert_eq!(probe.read(0).unwrap(), ProbeCounts::default());
    assert_eq!(probe.totals().unwrap().passed, frames.len() as u64);
    assert_eq!(probe.judge(&good), DROP);
}

#[test]
fn headers_cut_off_anywhere_pass_or_are_malformed() {
    let Some(probe) = watching() else { return };
    let whole = Frame::new(LOCAL, rtp(1, 0, 0));
    let length = whole.bytes().len();
    // The kernel tests with whole IP headers only.
    for cut in 1..=length - 34 {
        let verdict = probe.judge(&Frame { cut, ..whole.clone() });
        let has_udp = length - cut >= 14 + 20 + 8;
        assert_eq!(verdict, if has_udp { DROP } else { PASS }, "{cut} bytes cut off");
    }
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.datagrams, counts.malformed, counts.packets), (12, 12, 0));
    assert_eq!(probe.totals().unwrap().malformed, 12);
}

#[test]
fn options_and_padding_do_not_hide_a_datagram() {
    let Some(probe) = watching() else { return };
    for words in 0..=10 {
        let frame = Frame { options: vec![1; 4 * words], ..Frame::new(LOCAL, rtp(words as u16, 0, 100)) };
        assert_eq!(probe.judge(&frame), DROP);
    }
    let padded = Frame { padding: 30, ..Frame::new(LOCAL, rtp(11, 0, 100)) };
    assert_eq!(probe.judge(&padded), DROP);
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.packets, counts.payload_bytes, counts.malformed), (12, 1200, 0));
}

#[test]
fn ipv6_is_counted_and_its_extension_headers_pass() {
    let Some(probe) = probe(4, ProbeAction::Drop) else { return };
    let to = "[2001:db8::7]:6000";
    probe.watch(local(to), 3, ProbeMedia::rtp(33)).unwrap();
    let frame = Frame::new(to, rtp(1, 0, 1316));
    assert_eq!(probe.judge(&frame), DROP);
    for protocol in [0, 43, 44, 50, 60] {
        assert_eq!(probe.judge(&Frame { protocol, ..frame.clone() }), PASS, "next header {protocol}");
    }
    assert_eq!(probe.judge(&Frame { version: Some(4), ..frame.clone() }), PASS);
    assert_eq!(probe.judge(&Frame { cut: 1328 + 1, ..frame.clone() }), PASS);
    let counts = probe.read(3).unwrap();
    assert_eq!((counts.packets, counts.payload_bytes), (1, 1316));
}

#[test]
fn wildcard_watch_counts_addresses_without_own_watch() {
    let Some(probe) = probe(4, ProbeAction::Drop) else { return };
    probe.watch(local("0.0.0.0:7000"), 0, ProbeMedia::rtp(33)).unwrap();
    probe.watch(local("[::]:7000"), 1, ProbeMedia::rtp(33)).unwrap();
    probe.watch(local("[::ffff:10.0.0.9]:7000"), 2, ProbeMedia::rtp(33)).unwrap();
    for to in ["10.0.0.1:7000", "192.0.2.1:7000", "10.0.0.9:7000", "[fd00::1]:7000"] {
        assert_eq!(probe.judge(&Frame::new(to, rtp(9, 0, 10))), DROP, "{to}");
    }
    let packets = |slot| probe.read(slot).unwrap().datagrams;
    assert_eq!([packets(0), packets(1), packets(2)], [2, 1, 1]);
    probe.unwatch(local("10.0.0.9:7000")).unwrap();
    probe.judge(&Frame::new("10.0.0.9:7000", rtp(10, 0, 10)));
    assert_eq!([packets(0), packets(2)], [3, 1]);
}

#[test]
fn groups_are_addresses_too() {
    let Some(probe) = probe(1, ProbeAction::Drop) else { return };
    probe.watch(local("239.1.2.3:5004"), 0, ProbeMedia::rtp(33)).unwrap();
    let mac = [1, 0, 0x5e, 1, 2, 3];
    assert_eq!(probe.judge(&Frame { mac, ..Frame::new("239.1.2.3:5004", rtp(1, 0, 188)) }), DROP);
    assert_eq!(probe.judge(&Frame { mac, ..Frame::new("239.1.2.4:5004", rtp(1, 0, 188)) }), PASS);
    assert_eq!(probe.read(0).unwrap().packets, 1);
}

/// One address on a port is found without a hash, several with: an address must be found as they come and go.
#[test]
fn addresses_of_a_port_come_and_go() {
    let Some(probe) = probe(3, ProbeAction::Drop) else { return };
    let addresses = ["10.0.0.1:7000", "10.0.0.2:7000", "[fd00::1]:7000"];
    let verdicts = || addresses.map(|to| probe.judge(&Frame::new(to, rtp(1, 0, 10))) == DROP);
    let watch = |at: usize| probe.watch(local(addresses[at]), at as u32, ProbeMedia::rtp(33)).unwrap();
    let unwatch = |at: usize| probe.unwatch(local(addresses[at])).unwrap();
    assert_eq!(verdicts(), [false, false, false]);
    watch(0);
    assert_eq!(verdicts(), [true, false, false]);
    watch(2);
    assert_eq!(verdicts(), [true, false, true]);
    watch(1);
    watch(1);
    assert_eq!(verdicts(), [true, true, true]);
    unwatch(0);
    unwatch(1);
    assert_eq!(verdicts(), [false, false, true]);
    watch(2);
    assert_eq!(verdicts(), [false, false, true]);
    unwatch(2);
    unwatch(2);
    assert_eq!(verdicts(), [false, false, false]);
    assert_eq!(probe.read(2).unwrap().datagrams, 1);
}

#[test]
fn non_rtp_payload_counts_as_malformed() {
    let Some(probe) = watching() else { return };
    let good = rtp(1, 0, 188);
    let mut other_type = good.clone();
    other_type[1] = 34;
    let mut other_version = good.clone();
    other_version[0] = 0x40;
    let mut marked = rtp(2, 0, 188);
    marked[1] |= 0x80;
    let short = good[..11].to_vec();
    for payload in [other_type, other_version, short, Vec::new()] {
        assert_eq!(probe.judge(&Frame::new(LOCAL, payload)), DROP);
    }
    for (udp_length, ip_length) in [(Some(7), None), (Some(0), None), (Some(500), None), (None, Some(100))] {
        let lying = Frame { udp_length, ip_length, ..Frame::new(LOCAL, good.clone()) };
        assert_eq!(probe.judge(&lying), DROP);
    }
    probe.judge(&Frame::new(LOCAL, marked));
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.datagrams, counts.malformed, counts.packets), (9, 8, 1));
    assert_eq!(probe.totals().unwrap().malformed, 8);
}

#[test]
fn gso_train_counts_each_datagram() {
    let Some(probe) = watching() else { return };
    let (mut sequence, mut datagrams, mut bytes) = (65_500u16, 0, 0);
    // Trains of whole datagrams, and with a shorter last one.
    for (count, last) in [(1, 8), (2, 8), (44, 8), (64, 8), (128, 8), (3, 1), (64, 0), (128, 7)] {
        let mut payload = Vec::new();
        for at in 1..=count {
            payload.extend(rtp(sequence, 0, if at == count { last } else { 8 }));
            sequence = sequence.wrapping_add(1);
        }
        datagrams += count;
        bytes += (count - 1) * 8 + last as u64;
        assert_eq!(probe.judge(&Frame { gso_size: 20, ..Frame::new(LOCAL, payload) }), DROP);
    }
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.datagrams, counts.packets, counts.payload_bytes), (datagrams, datagrams, bytes));
    assert_eq!((counts.lost, counts.malformed), (0, 0));
    assert_eq!(probe.totals().unwrap().seen, 8);
}

#[test]
fn gso_train_with_bad_datagram_counts_one_malformed() {
    let Some(probe) = watching() else { return };
    let mut payload: Vec<u8> = (1..=10).flat_map(|sequence| rtp(sequence, 0, 88)).collect();
    payload[300] = 0;
    payload.extend([0x80; 5]);
    probe.judge(&Frame { gso_size: 100, ..Frame::new(LOCAL, payload) });
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.datagrams, counts.packets, counts.malformed, counts.lost), (11, 9, 2, 1));
}

#[test]
fn raw_streams_have_packets_and_bytes() {
    let Some(probe) = probe(1, ProbeAction::Drop) else { return };
    probe.watch(local(LOCAL), 0, ProbeMedia::Raw { bytes_per_s: 1_000_000 }).unwrap();
    for payload in [vec![1; 1316], Vec::new(), vec![2; 7]] {
        assert_eq!(probe.judge(&Frame::new(LOCAL, payload)), DROP);
    }
    probe.judge(&Frame { gso_size: 131, ..Frame::new(LOCAL, vec![3; 10 * 131]) });
    let counts = probe.read(0).unwrap();
    assert_eq!((counts.datagrams, counts.packets, counts.payload_bytes), (13, 13, 1316 + 7 + 10 * 131));
    assert_eq!((counts.first_sequence, counts.lost, counts.malformed), (None, 0, 0));
}

#[test]
fn watch_of_used_slot_resets_counts() {
    let Some(probe) = watching() else { return };
    probe.judge(&Frame::new(LOCAL, rtp(7, 0, 188)));
    probe.judge(&Frame::new(LOCAL, rtp(9, 0, 188)));
    assert_eq!(probe.read(0).unwrap().lost, 1);
    probe.watch(local("10.1.2.3:5006"), 0, ProbeMedia::rtp(33)).unwrap();
    assert_eq!(probe.read(0).unwrap(), ProbeCounts::default());
    probe.watch(local(LOCAL), 1, ProbeMedia::rtp(33)).unwrap();
    probe.judge(&Frame::new(LOCAL, rtp(1000, 0, 188)));
    assert_eq!((probe.read(0).unwrap().packets, probe.read(1).unwrap().packets), (0, 1));
}

#[test]
fn watch_with_invalid_arguments_returns_error() {
    let Some(probe) = probe(2, ProbeAction::Drop) else { return };
    let fault = |slot, media| probe.watch(local(LOCAL), slot, media).unwrap_err().to_string();
    assert!(fault(2, ProbeMedia::rtp(33)).contains("max_streams"));
    assert!(fault(0, ProbeMedia::rtp(128)).contains("128"));
    assert!(fault(0, ProbeMedia::Rtp { payload_type: 0, clock_hz: 0 }).contains("0 Hz"));
    assert!(fault(0, ProbeMedia::Raw { bytes_per_s: 0 }).contains("rate"));
    assert!(probe.read(2).is_err() && probe.begin_run(u32::MAX).is_err());
    for port in 1..=2 {
        probe.watch(SocketAddr::from(([10, 0, 0, 1], port)), 0, ProbeMedia::rtp(33)).unwrap();
    }
    let full = probe.watch(local(LOCAL), 0, ProbeMedia::rtp(33)).unwrap_err().to_string();
    assert!(full.contains("probe_streams"), "{full}");
    probe.unwatch(local("192.0.2.1:1")).unwrap();
}
