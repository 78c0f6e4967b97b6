//! The drop probe at the end of a veth pair between network namespaces. Needs root; skipped otherwise.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Instant;

use millrace_core::seam::SendOutcome;
use millrace_load::drop_probe::{DropProbe, ProbeAction, ProbeConfig, ProbeCounts, ProbeError, ProbeMedia};
use millrace_netio::GsoMode;
use millrace_netio::bpf::{Assembler, BpfError, BpfProgram, InterfaceLink, ProgramType, Reg};
use millrace_netio::tun::Tun;
use millrace_testkit::hosts::{TIMEOUT, Wire};
use millrace_testkit::packets::*;

/// Payload of the RTP packets here.
const PAYLOAD_BYTES: usize = 1316;

fn config(interface: &str, action: ProbeAction) -> ProbeConfig {
    ProbeConfig { interface: interface.to_owned(), max_streams: 8, action }
}

/// Two hosts, or `None` with the reason printed if nothing can be probed here.
fn network() -> Option<Wire> {
    let net = Wire::new()?;
    match net.viewers.inside(|| DropProbe::attach(&config("lo", ProbeAction::Pass))) {
        Err(ProbeError::Bpf(reason @ BpfError::NoTcx { .. })) => {
            eprintln!("skipped: {reason}");
            None
        }
        attached => attached.map(|_| Some(net)).expect("a probe"),
    }
}

/// A probe at the viewers' end.
fn attach(net: &Wire) -> DropProbe {
    net.viewers.inside(|| DropProbe::attach(&config("vb", ProbeAction::Drop))).expect("a probe")
}

/// RTP packets with numbers from `first` on, one behind the other.
fn rtp(first: u16, count: u16) -> Vec<u8> {
    let packet = |step: u16| {
        let mut bytes = vec![0x80, 33];
        bytes.extend(first.wrapping_add(step).to_be_bytes());
        bytes.extend((u32::from(step) * 90).to_be_bytes());
        bytes.extend([1, 2, 3, 4]);
        bytes.extend(pattern(u32::from(step), PAYLOAD_BYTES));
        bytes
    };
    (0..count).flat_map(packet).collect()
}

/// The counts of a slot, once `datagrams` are there: the kernel may deliver a little after the send.
fn counts(probe: &DropProbe, slot: u32, datagrams: u64) -> ProbeCounts {
    let begun = Instant::now();
    loop {
        let counts = probe.read(slot).expect("a slot");
        if counts.datagrams >= datagrams || begun.elapsed() > TIMEOUT {
            return counts;
        }
        std::thread::yield_now();
    }
}

fn offload(net: &Wire, on: bool) {
    let word = if on { "on" } else { "off" };
    net.server.must(&format!("ethtool -K va tx {word} tso {word} tx-udp-segmentation {word}"));
}

/// Sends through the kernel's segmentation, or without it, bursts of all lengths; counts must be exact.
fn counts_are_exact(net: &Wire, gso: GsoMode, is_offloaded: bool) {
    offload(net, is_offloaded);
    let probe = attach(net);
    let mut tx = net.server.inside(|| sender(gso, 0));
    for (slot, to) in ["10.77.0.2:5004", "[fd77::3]:5004"].into_iter().enumerate() {
        let (slot, to) = (slot as u32, to.parse::<SocketAddr>().expect("an address"));
        probe.watch(to, slot, ProbeMedia::rtp(33)).expect("watch");
        let (mut number, mut sent) = (65_000u16, 0u64);
        for count in (1..=92).chain([40; 10]) {
            let bytes = rtp(number, count);
            let batch = [wire(0, udp(to, to), &bytes, 12 + PAYLOAD_BYTES)];
            assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent]);
            // One number in each burst is left out, and its first packet comes again.
            let again = [wire(0, udp(to, to), &bytes[..12 + PAYLOAD_BYTES], 12 + PAYLOAD_BYTES)];
            assert_eq!(send(&mut tx, &again), [SendOutcome::Sent]);
            number = number.wrapping_add(count + 1);
            sent += u64::from(count);
        }
        let all = sent + 102;
        let found = counts(&probe, slot, all);
        let got = (found.datagrams, found.packets, found.duplicates, found.lost, found.strays);
        assert_eq!(got, (all, sent, 102, 101, 0), "{gso:?}, offload {is_offloaded}, {to}");
        assert_eq!((found.malformed, found.reordered, found.restarts), (0, 0, 0));
        assert_eq!(found.payload_bytes, sent * PAYLOAD_BYTES as u64);
        assert_eq!((found.first_sequence, found.ssrc), (Some(65_000), 0x0102_0304));
        assert!(found.first_arrival_ns > 0 && found.last_arrival_ns >= found.first_arrival_ns);
    }
    let totals = probe.totals().expect("totals");
    let datagrams = (0..2).map(|slot| probe.read(slot).expect("a slot").datagrams).sum::<u64>();
    assert_eq!(totals.dropped, totals.watched);
    assert_eq!(totals.passed, totals.seen - totals.dropped);
    // With offload whole trains arrive as one packet; this is the case under test.
    assert_eq!(totals.watched < datagrams, is_offloaded && gso == GsoMode::Auto, "{totals:?} of {datagrams}");
    let lateness: u64 = probe.lateness().expect("lateness").iter().map(|(_, count)| count).sum();
    assert_eq!(lateness, datagrams - 204);
}

#[test]
fn probe_counts_all_datagrams_with_any_offload() {
    let Some(net) = network() else { return };
    for is_offloaded in [false, true] {
        for gso in [GsoMode::Auto, GsoMode::Off] {
            counts_are_exact(&net, gso, is_offloaded);
        }
    }
}

#[test]
fn watched_datagrams_are_dropped_and_others_pass() {
    let Some(net) = network() else { return };
    let (mut watched, to_watched) = net.viewers.inside(|| receiver("10.77.0.2"));
    let (mut free, to_free) = net.viewers.inside(|| receiver("10.77.0.2"));
    let socket = net.server.inside(|| UdpSocket::bind("10.77.0.1:0")).expect("a socket");
    let probe = attach(&net);
    probe.watch(to_watched, 5, ProbeMedia::rtp(33)).expect("watch");
    let round = |number: u16| {
        for to in [to_watched, to_free] {
            socket.send_to(&rtp(number, 1), to).expect("send");
        }
    };
    (0..20).for_each(round);
    assert_eq!(receive(&mut free, 20).len(), 20);
    assert_eq!(counts(&probe, 5, 20).packets, 20);
    assert_eq!(receive_now(&mut watched), [] as [Vec<u8>; 0]);
    probe.unwatch(to_watched).expect("unwatch");
    (20..30).for_each(round);
    assert_eq!((receive(&mut watched, 10).len(), receive(&mut free, 10).len()), (10, 10));
    probe.watch(to_watched, 5, ProbeMedia::rtp(33)).expect("watch");
    drop(probe);
    (30..40).for_each(round);
    assert_eq!((receive(&mut watched, 10).len(), receive(&mut free, 10).len()), (10, 10));
}

#[test]
fn probe_action_pass_delivers_all_datagrams() {
    let Some(net) = network() else { return };
    let (mut viewer, to) = net.viewers.inside(|| receiver("fd77::2"));
    let probe = net.viewers.inside(|| DropProbe::attach(&config("vb", ProbeAction::Pass))).expect("a probe");
    probe.watch(to, 0, ProbeMedia::rtp(33)).expect("watch");
    let socket = net.server.inside(|| UdpSocket::bind("[fd77::1]:0")).expect("a socket");
    for number in 0..20 {
        socket.send_to(&rtp(number, 1), to).expect("send");
    }
    assert_eq!(receive(&mut viewer, 20).len(), 20);
    assert_eq!(counts(&probe, 0, 20).packets, 20);
    assert_eq!(probe.totals().expect("totals").dropped, 0);
}

#[test]
fn probes_on_same_interface_work_in_attach_order() {
    let Some(net) = network() else { return };
    let (first, second) = (attach(&net), attach(&net));
    let both: SocketAddr = "10.77.0.2:6000".parse().expect("an address");
    let one: SocketAddr = "10.77.0.2:6002".parse().expect("an address");
    first.watch(both, 0, ProbeMedia::rtp(33)).expect("watch");
    second.watch(both, 0, ProbeMedia::rtp(33)).expect("watch");
    second.watch(one, 1, ProbeMedia::rtp(33)).expect("watch");
    let socket = net.server.inside(|| UdpSocket::bind("10.77.0.1:0")).expect("a socket");
    for number in 0..20 {
        socket.send_to(&rtp(number, 1), both).expect("send");
        socket.send_to(&rtp(number, 1), one).expect("send");
    }
    assert_eq!((counts(&first, 0, 20).packets, counts(&second, 1, 20).packets), (20, 20));
    // The one that came first took them.
    assert_eq!(second.read(0).expect("a slot").datagrams, 0);
    drop(first);
    socket.send_to(&rtp(20, 1), both).expect("send");
    assert_eq!(counts(&second, 0, 1).packets, 1);
}

#[test]
fn interfaces_are_those_of_the_threads_namespace() {
    let Some(net) = network() else { return };
    let fault = |name: &str| DropProbe::attach(&config(name, ProbeAction::Drop)).unwrap_err().to_string();
    let text = fault("vb");
    assert!(text.contains("vb") && text.contains("ip link"), "{text}");
    net.viewers.inside(|| {
        assert!(fault("va").contains("va"));
        assert!(fault("").contains("interface"));
        assert!(fault("a-name-that-is-too-long").contains("a-name-that-is-too-long"));
        assert!(DropProbe::attach(&config("lo", ProbeAction::Pass)).is_ok());
    });
}

#[test]
fn attach_without_privileges_names_capabilities() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give privileges away");
        return;
    }
    let text = std::thread::spawn(|| {
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).expect("fewer capabilities");
        DropProbe::attach(&config("lo", ProbeAction::Pass)).unwrap_err().to_string()
    });
    let text = text.join().expect("a thread");
    assert!(text.contains("CAP_BPF") && text.contains("CAP_NET_ADMIN"), "{text}");
}

/// A TUN device has no link header: the IP header comes first.
#[test]
fn tun_devices_are_probed_too() {
    let Some(net) = network() else { return };
    net.viewers.inside(|| {
        let tun = Tun::open("tp0").expect("a device");
        net.viewers.ip("addr add 10.78.0.1/24 dev tp0");
        net.viewers.ip("link set tp0 up");
        let probe = DropProbe::attach(&config("tp0", ProbeAction::Drop)).expect("a probe");
        let to: SocketAddr = "10.78.0.1:5004".parse().expect("an address");
        probe.watch(to, 2, ProbeMedia::rtp(33)).expect("watch");
        for number in 0..10 {
            let payload = rtp(number * 2, 1);
            let mut packet = vec![0x45, 0];
            packet.extend((28 + payload.len() as u16).to_be_bytes());
            packet.extend([0, 1, 0x40, 0, 64, 17, 0, 0, 10, 78, 0, 2, 10, 78, 0, 1, 7, 7]);
            packet.extend(to.port().to_be_bytes());
            packet.extend((8 + payload.len() as u16).to_be_bytes());
            packet.extend([0, 0]);
            packet.extend(payload);
            tun.write(&packet).expect("write");
        }
        let found = counts(&probe, 2, 10);
        assert_eq!((found.packets, found.lost, found.payload_bytes), (10, 9, 10 * PAYLOAD_BYTES as u64));
    });
}

/// The part of the BPF module that the probe does not use: XDP.
#[test]
fn xdp_programs_are_attached_and_vanish() {
    let Some(net) = network() else { return };
    let (mut viewer, to) = net.viewers.inside(|| receiver("10.77.0.2"));
    let socket = net.server.inside(|| UdpSocket::bind("10.77.0.1:0")).expect("a socket");
    let verdict = |value: i32| {
        let mut code = Assembler::default();
        code.mov(Reg::R0, value);
        code.exit();
        BpfProgram::load("verdict", ProgramType::Xdp, code).expect("a program")
    };
    const XDP_DROP: i32 = 1;
    const XDP_PASS: i32 = 2;
    net.viewers.inside(|| {
        let link = InterfaceLink::attach(&verdict(XDP_DROP), "vb").expect("a link");
        socket.send_to(b"dropped", to).expect("send");
        let busy = InterfaceLink::attach(&verdict(XDP_PASS), "vb").unwrap_err().to_string();
        assert!(busy.contains("vb") && busy.contains("another program"), "{busy}");
        drop(link);
        let _link = InterfaceLink::attach(&verdict(XDP_PASS), "vb").expect("a link");
        socket.send_to(b"passed", to).expect("send");
        assert_eq!(receive(&mut viewer, 1), [b"passed"]);
    });
}

/// Not a test of its own: the process that [`probe_detaches_when_its_process_dies`] ends.
#[test]
#[ignore = "waits to be killed"]
fn holds_a_probe() {
    let probe = DropProbe::attach(&config("vb", ProbeAction::Drop)).expect("a probe");
    let to = std::env::var("PROBED").expect("an address").parse().expect("an address");
    probe.watch(to, 0, ProbeMedia::rtp(33)).expect("watch");
    println!("attached");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn probe_detaches_when_its_process_dies() {
    let Some(net) = network() else { return };
    let (mut viewer, to) = net.viewers.inside(|| receiver("10.77.0.2"));
    let mut holder = Command::new("ip")
        .args(["netns", "exec", &net.viewers.name])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "drop_probe::holds_a_probe", "--ignored", "--nocapture"])
        .env("PROBED", to.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let said = BufReader::new(holder.stdout.take().expect("its output"));
    assert!(said.lines().map_while(Result::ok).any(|line| line.ends_with("attached")));
    let socket = net.server.inside(|| UdpSocket::bind("10.77.0.1:0")).expect("a socket");
    let (mut second, to_second) = net.viewers.inside(|| receiver("10.77.0.2"));
    socket.send_to(&rtp(1, 1), to).expect("send");
    socket.send_to(&rtp(1, 1), to_second).expect("send");
    assert_eq!(receive(&mut second, 1).len(), 1);
    assert_eq!(receive_now(&mut viewer), [] as [Vec<u8>; 0]);
    holder.kill().expect("kill");
    holder.wait().expect("wait");
    socket.send_to(&rtp(2, 1), to).expect("send");
    assert_eq!(receive(&mut viewer, 1).len(), 1);
}
