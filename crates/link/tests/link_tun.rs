//! Two TUN devices with a thread between them, as real senders and receivers meet it. Needs root; skipped otherwise.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use millrace_core::seam::SendOutcome;
use millrace_link::{LinkSpec, LinkStats, TunLink};
use millrace_netio::GsoMode;
use millrace_netio::tun::Tun;
use millrace_testkit::hosts::{Netns, TIMEOUT};
use millrace_testkit::packets::*;

/// Two hosts joined by an emulated link: 10.77.0.1 and 10.77.0.2, or fd77::1 and fd77::2 as well.
struct Hosts {
    link: TunLink,
    server: Netns,
    viewers: Netns,
}

fn end(ns: &Netns, name: &str, v4: &str, v6: Option<&str>) -> Tun {
    let tun = ns.inside(|| Tun::open(name)).expect("a TUN device");
    // The kernel sends a few packets of its own over IPv6, which would disturb tests that count
    // every packet.
    ns.must(&format!("sysctl -qw net.ipv6.conf.{name}.disable_ipv6={}", u8::from(v6.is_none())));
    ns.ip(&format!("link set {name} addrgenmode none txqueuelen 10000 up"));
    ns.ip(&format!("addr add {v4}/24 dev {name}"));
    if let Some(v6) = v6 {
        ns.ip(&format!("addr add {v6}/64 dev {name} nodad"));
    }
    tun
}

fn hosts(spec: &str, v6: [Option<&str>; 2]) -> Option<Hosts> {
    let (server, viewers) = namespaces()?;
    let spec: LinkSpec = spec.parse().expect("a link");
    let (a, b) = (end(&server, "ta", "10.77.0.1", v6[0]), end(&viewers, "tb", "10.77.0.2", v6[1]));
    let link = TunLink::start(a, b, &spec).expect("a link");
    Some(Hosts { link, server, viewers })
}

fn namespaces() -> Option<(Netns, Netns)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return None;
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: this kernel has no /dev/net/tun");
        return None;
    }
    Some((Netns::new("s"), Netns::new("v")))
}

/// The counts once `met` holds for them: the link counts a packet a moment after the receiver has it.
fn settled(link: &TunLink, met: impl Fn(&[LinkStats; 2]) -> bool) -> [LinkStats; 2] {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let stats = link.stats();
        if met(&stats) || Instant::now() > deadline {
            return stats;
        }
        std::thread::yield_now();
    }
}

/// Waits until the first datagram comes through: the kernel finishes a new IPv6 address when it finds the time.
fn warm_up(net: &Hosts, family: &str) {
    let viewer = net.viewers.inside(|| UdpSocket::bind((family, 0)).unwrap());
    let server = net
        .server
        .inside(|| UdpSocket::bind((if family.contains(':') { "::" } else { "0.0.0.0" }, 0)).unwrap());
    viewer.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    // Refused until then; what counts is that something arrives.
    while server.send_to(b"hello", viewer.local_addr().unwrap()).is_err() || viewer.recv(&mut [0; 8]).is_err()
    {
        assert!(Instant::now() < deadline, "nothing comes through to {family}");
    }
}

#[test]
fn trains_are_cut_and_summed_before_they_reach_the_link() {
    let Some(net) = hosts("none", [Some("fd77::1"), Some("fd77::2")]) else { return };
    let mut all = 0;
    for (gso, family) in
        [GsoMode::Auto, GsoMode::Off].into_iter().flat_map(|m| ["10.77.0.2", "fd77::2"].map(|f| (m, f)))
    {
        warm_up(&net, family);
        let mut tx = net.server.inside(|| sender(gso, 0));
        let (mut viewer, addr) = net.viewers.inside(|| receiver(family));
        for round in 0..40 {
            let count = 1 + (round as usize * 13) % 92;
            let bytes = pattern(round, 1328 * count - round as usize);
            let batch = [wire(0, udp(addr, addr), &bytes, 1328)];
            assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent]);
            let sent = datagrams(batch[0].payload);
            let got = receive(&mut viewer, sent.len());
            assert!(got == sent, "{gso:?} {family} round {round}: {} of {}", got.len(), sent.len());
            all += sent.len() as u64;
        }
        assert_eq!(tx.gso(), gso == GsoMode::Auto);
    }
    for (file, group, prefix) in [("snmp", "Udp", ""), ("snmp6", "", "Udp6")] {
        let count = |name: &str| net.viewers.counter(file, group, &format!("{prefix}{name}"));
        assert_eq!((count("InCsumErrors"), count("InErrors")), (0, 0));
        assert!(count("InDatagrams") > 1000);
    }
    let [there, _] = settled(&net.link, |[there, _]| there.all.forwarded >= all);
    assert!(there.all.is_conserved() && there.all.forwarded >= all, "{there}");
    assert_eq!((there.unplanned(), there.all.lost), (0, 0), "{there}");
    assert_eq!(net.link.failure(), None);
}

#[test]
fn link_directions_have_independent_impairments() {
    let Some(net) = hosts("none; loss 100%", [None; 2]) else { return };
    let (server, viewer) = (
        net.server.inside(|| UdpSocket::bind("10.77.0.1:7000").unwrap()),
        net.viewers.inside(|| UdpSocket::bind("10.77.0.2:7000").unwrap()),
    );
    for _ in 0..10 {
        viewer.send_to(b"lost", "10.77.0.1:7000").unwrap();
        server.send_to(b"heard", "10.77.0.2:7000").unwrap();
        let mut buffer = [0; 10];
        viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(viewer.recv(&mut buffer).unwrap(), 5);
    }
    let [there, back] = settled(&net.link, |[there, back]| there.all.forwarded >= 10 && back.all.lost >= 10);
    assert_eq!((there.all.forwarded, there.all.lost), (10, 0), "{there}");
    assert_eq!((back.all.forwarded, back.all.lost), (0, 10), "{back}");
    server.set_nonblocking(true).unwrap();
    assert!(server.recv(&mut [0; 10]).is_err());
}

#[test]
fn link_drop_removes_devices_immediately() {
    let Some(net) = hosts("delay 10s", [None; 2]) else { return };
    let socket = net.server.inside(|| UdpSocket::bind("10.77.0.1:7000").unwrap());
    socket.send_to(b"still under way", "10.77.0.2:7000").unwrap();
    let [there, _] = settled(&net.link, |[there, _]| there.all.waiting == 1);
    assert_eq!(there.all.waiting, 1);
    let Hosts { link, server, viewers } = net;
    let start = Instant::now();
    drop(link);
    assert!(start.elapsed() < Duration::from_secs(5), "nobody waits for the delay");
    for (ns, name) in [(&server, "ta"), (&viewers, "tb")] {
        // Children of the tests beside this one hold a copy of every descriptor until they become another program.
        let deadline = Instant::now() + TIMEOUT;
        while ns.command(&format!("ip link show {name}")).status.success() {
            assert!(Instant::now() < deadline, "{name} is still there");
            std::thread::yield_now();
        }
    }
}

#[test]
fn link_failure_reports_removed_device() {
    let Some(net) = hosts("none", [None; 2]) else { return };
    net.server.ip("link del ta");
    let deadline = Instant::now() + TIMEOUT;
    let failure = loop {
        match net.link.failure() {
            None if Instant::now() < deadline => std::thread::yield_now(),
            failure => break failure,
        }
    };
    assert!(failure.as_ref().is_some_and(|text| text.contains("ta")), "{failure:?}");
}
