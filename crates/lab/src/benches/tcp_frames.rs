//! Cost of the IP layer per segment, in nanoseconds: writing the headers of an outgoing segment,
//! finding an incoming one, and assembling one. Nothing is sent.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant as Clock;

use anyhow::{bail, ensure};
use millrace_core::time::{Instant, NS_PER_S};
use millrace_netio::xdp::{XdpRaw, XdpRawConfig};
use millrace_tcp::ip::{Incoming, Interface, Link, Outgoing, Settings};
use millrace_tcp::stack::{Ecn, Out};
use millrace_tcp::wire::FlowKey;

use crate::frame::stats::median;
use crate::frame::ticks::clock;
use crate::frame::{Bench, Noise, Options, Report, Row};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "tcp-frames",
    shows: "ns for the headers of a segment that goes out and for one that is found in a frame, by link, family and number of neighbours; ns to put a payload into a frame",
    not_for: "what a device or a state machine costs: nothing is sent, and the segments are always the same",
    options: &["runs", "quick"],
    targets: &[],
    needs: &[],
    run,
};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const NOW: Instant = Instant(NS_PER_S);

fn interface(link: Link) -> Interface {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let mut settings = Settings::new(link, [1, 2]).with(ip("10.0.0.1"), 16).with(ip("2001:db8::1"), 64);
    settings.gateway_v4 = Some("10.0.255.254".parse().expect("an address"));
    settings.gateway_v6 = Some("fe80::fe".parse().expect("an address"));
    settings.neighbours = 8192;
    Interface::new(&settings, NOW).expect("an interface")
}

fn flow(is_v4: bool, number: u16, is_far: bool) -> FlowKey {
    let [a, b] = number.to_be_bytes();
    let (local, remote): (IpAddr, IpAddr) = match (is_v4, is_far) {
        (true, false) => ([10, 0, 0, 1].into(), [10, 0, 1 + a, b].into()),
        (true, true) => ([10, 0, 0, 1].into(), [198, 18, a, b].into()),
        (false, false) => {
            ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 1, number].into())
        }
        (false, true) => {
            ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(), [0x2001, 0xdb8, 9, 0, 0, 0, 1, number].into())
        }
    };
    FlowKey::new((local, 80).into(), (remote, 40_000).into()).expect("one family")
}

/// Answers the interface's address queries as if every address were at one station.
fn resolve(interface: &mut Interface, flow: &FlowKey, now: Instant) {
    let mut buffer = [0; 2000];
    let out = out(flow);
    if interface.frame(&out, now, &mut buffer) != Outgoing::Waiting {
        return;
    }
    let mut questions = Vec::new();
    interface.output(&mut |frame| {
        questions.push(frame.to_vec());
        true
    });
    for question in questions.iter().filter(|frame| frame[0] & 1 == 1) {
        let mut whole = question.clone();
        let station = [2, 0, 0, 0, 0, 2];
        whole[..6].copy_from_slice(&MAC);
        whole[6..12].copy_from_slice(&station);
        // What follows a VLAN tag is as it is without one.
        let tag = if question[12..14] == [0x81, 0] { 4 } else { 0 };
        let (question, answer) = (&question[tag..], &mut whole[tag..]);
        if question[12..14] == [8, 6] {
            // A reply, sender and target exchanged.
            answer[21] = 2;
            answer[22..28].copy_from_slice(&station);
            answer[28..32].copy_from_slice(&question[38..42]);
            answer[32..38].copy_from_slice(&MAC);
            answer[38..42].copy_from_slice(&question[28..32]);
        } else {
            // A solicited advertisement with the target's address.
            answer[22..38].copy_from_slice(&question[62..78]);
            answer[38..54].copy_from_slice(&question[22..38]);
            (answer[54], answer[58], answer[78]) = (136, 0x60, 2);
            answer[80..86].copy_from_slice(&station);
            answer[56..58].fill(0);
            let pseudo = [&answer[22..54], &[0, 0, 0, 32, 0, 0, 0, 58]].concat();
            let sums = [&pseudo[..], &answer[54..]].concat();
            let check = !millrace_core::wire::checksum::sum16(&sums);
            answer[56..58].copy_from_slice(&check.to_be_bytes());
        }
        let _ = interface.input(&whole, now);
    }
    interface.output(&mut |_| true);
}

fn out(flow: &FlowKey) -> Out<'_> {
    static HEADER: [u8; 32] = [0x80; 32];
    Out {
        flow,
        ecn: Ecn::Capable,
        header: &HEADER,
        payload: Default::default(),
        moved_ns: Out::NEVER,
        frame: None,
    }
}

/// Nanoseconds a call, the least of several rounds.
fn measure(options: &Options, mut call: impl FnMut(u32)) -> f64 {
    let calls: u32 = options.pick(1000, 100_000, 1_000_000);
    let round = |call: &mut dyn FnMut(u32)| {
        let begin = Clock::now();
        (0..calls).for_each(call);
        begin.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    let rounds = options.runs.unwrap_or(options.pick(1, 5, 7));
    (0..rounds).map(|_| round(&mut call)).fold(f64::INFINITY, f64::min)
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("tcp-frames");
    let ethernet = Link::Ethernet { mac: MAC, vlan: None };
    let vlan = Link::Ethernet { mac: MAC, vlan: Some(7) };
    for (name, link) in [("Ethernet", ethernet), ("VLAN", vlan), ("bare IP", Link::Ip)] {
        for is_v4 in [true, false] {
            options.go_on()?;
            let mut row = Row::new(format!("{name}, IPv{}", if is_v4 { 4 } else { 6 }));
            for (ends, is_far, what) in [
                (1, false, "one neighbour"),
                (1000, true, "1000 ends, a gateway"),
                (1000, false, "1000 neighbours"),
            ] {
                row = row.with(what, headers(options, link, is_v4, (ends, is_far)), "ns");
            }
            report.rows.push(row.with("a segment found", found(options, link, is_v4)?, "ns"));
        }
    }
    report.rows.push(gathered(options)?);
    report.noise = Some(Noise::quiet());
    Ok(report)
}

/// Copies payloads of a walk that no cache holds into frames of AF_XDP's rings in memory: first
/// assembled elsewhere and then copied there, and assembled there.
fn gathered(options: &Options) -> anyhow::Result<Row> {
    const PAYLOAD: usize = 1448;
    const FRAMES: usize = 64;
    let mut walk = vec![7_u8; options.pick(1 << 20, 64 << 20, 64 << 20)];
    walk.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let (mut device, mut nic, _rx, _fill) = XdpRaw::over_memory(&XdpRawConfig::new("memory"))?;
    let head = [0x45; 14 + 20 + 32];
    let mut room = [0; 2048];
    let [mut first, mut there, mut ratios] = [const { Vec::new() }; 3];
    let mut batches = walk.chunks_exact(PAYLOAD * FRAMES);
    while let (Some(one), Some(other)) = (batches.next(), batches.next()) {
        options.go_on()?;
        let mut put = |payloads: &[u8], put: &mut dyn FnMut(&mut XdpRaw, &[u8]) -> bool| {
            let begun = clock().now();
            let all = payloads.chunks_exact(PAYLOAD).all(|payload| put(&mut device, payload));
            let ns = clock().ns(begun, clock().now()) / FRAMES as f64;
            // The card takes them, and the frames are free again.
            device.flush(NOW)?;
            ensure!(nic.run().len() == FRAMES && all, "frames are missing");
            device.flush(NOW)?;
            anyhow::Ok(ns)
        };
        let a = put(one, &mut |device, payload| {
            let bytes = head.len() + payload.len();
            room[..head.len()].copy_from_slice(&head);
            room[head.len()..bytes].copy_from_slice(payload);
            device.send(black_box(&room[..bytes])).unwrap_or(false)
        })?;
        let b = put(other, &mut |device, payload| device.gather(&head, &[payload]).unwrap_or(false))?;
        first.push(a);
        there.push(b);
        ratios.push(a / b);
    }
    Ok(Row::new(format!("{PAYLOAD} bytes of a walk of 64 MB into a frame"))
        .with("put together before", median(&first), "ns")
        .with("where it goes", median(&there), "ns")
        .with("ratio", median(&ratios), ""))
}

/// Headers of a segment with time stamps.
fn headers(options: &Options, link: Link, is_v4: bool, (ends, is_far): (u16, bool)) -> f64 {
    let mut interface = interface(link);
    let flows: Vec<FlowKey> = (0..ends).map(|number| flow(is_v4, number, is_far)).collect();
    // As fast as solicitations are allowed, and before the first neighbour has to be asked again.
    let at = |number: usize| NOW.plus_ns(number as u64 * 10_000_000);
    flows.iter().enumerate().for_each(|(number, flow)| resolve(&mut interface, flow, at(number)));
    let now = at(flows.len());
    let mut buffer = [0; 128];
    measure(options, |number| {
        let flow = &flows[number as usize % flows.len()];
        let outgoing = interface.headers(&out(black_box(flow)), now, black_box(&mut buffer));
        assert!(matches!(outgoing, Outgoing::Written(_)));
    })
}

/// A segment found in a frame.
fn found(options: &Options, link: Link, is_v4: bool) -> anyhow::Result<f64> {
    let mut interface = interface(link);
    let ours = flow(is_v4, 1, true);
    resolve(&mut interface, &ours, NOW);
    let mut frame = vec![0; 2000];
    let Outgoing::Written(bytes) = interface.frame(&out(&ours), NOW, &mut frame) else {
        bail!("the gateway is not known");
    };
    // Both ends and both stations exchanged, it is one that comes in.
    exchange(&mut frame[..bytes], link, is_v4);
    Ok(measure(options, |_| {
        assert!(matches!(interface.input(black_box(&frame[..bytes]), NOW), Incoming::Segment(_)));
    }))
}

/// Exchanges source and destination of a frame; no checksum changes.
fn exchange(frame: &mut [u8], link: Link, is_v4: bool) {
    let at = match link {
        Link::Ip => 0,
        Link::Ethernet { vlan, .. } => {
            let (to, from) = frame[..12].split_at_mut(6);
            to.swap_with_slice(from);
            if vlan.is_some() { 18 } else { 14 }
        }
    };
    let (at, length) = if is_v4 { (at + 12, 4) } else { (at + 8, 16) };
    let (source, destination) = frame[at..at + 2 * length].split_at_mut(length);
    source.swap_with_slice(destination);
}
