//! The emulated link against real sockets: a receiver's counts equal the counts that the link
//! reports, to the packet.
//!
//! Needs root and TUN devices; skipped with a message otherwise.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_client::receive::{SequenceCounts, SequenceTracker};
use millrace_lab::link_host::LinkHost;
use millrace_lab::netns::{CLIENT_IP, SERVER_IP, TwoHosts};
use millrace_link::{Impairment, LinkSpec, LinkStats};
use millrace_netio::recv::{UdpRx, UdpRxConfig};

/// No test waits for this time unless it fails.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Payload of a datagram here: RTP header and number, filled up.
const DATAGRAM_BYTES: usize = 1000;
/// The same with UDP and IPv4 headers, as the link counts it.
const PACKET_BYTES: u64 = DATAGRAM_BYTES as u64 + 28;
const FIRST_SEQUENCE: u16 = 65_000;

fn possible() -> bool {
    let root = rustix::process::geteuid().is_root();
    let tun = Path::new("/dev/net/tun").exists();
    if !root || !tun {
        eprintln!("skipped: needs root ({root}) and /dev/net/tun ({tun})");
    }
    root && tun
}

fn hosts(spec: &str) -> Option<TwoHosts> {
    let spec: LinkSpec = spec.parse().unwrap();
    possible().then(|| TwoHosts::with_link(spec.there, spec.back).unwrap())
}

/// An RTP packet with its number in the payload.
fn packet(number: u32) -> Vec<u8> {
    let sequence = FIRST_SEQUENCE.wrapping_add(number as u16);
    let mut bytes = vec![0x80, 33];
    bytes.extend(sequence.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend(number.to_be_bytes());
    bytes.resize(DATAGRAM_BYTES, 0x47);
    bytes
}

fn receiver(address: (&str, u16)) -> (UdpRx, SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap();
    let local = socket.local_addr().unwrap();
    let config = UdpRxConfig { receive_buffer: Some(32 << 20), ..UdpRxConfig::default() };
    (UdpRx::new(socket, config).unwrap(), local)
}

/// The results of a run.
struct Run {
    stats: LinkStats,
    counts: SequenceCounts,
    /// Numbers missing after the last one that came.
    tail: u64,
    /// When each packet was about to be sent.
    sent: Vec<Instant>,
    /// Number and time of everything that came.
    came: Vec<(u32, Instant)>,
}

/// Sends `count` packets from server to client, `burst` at a time with `gap` between; receives
/// until the link is empty and no packet is missing that it reports as let through.
fn run(hosts: &TwoHosts, count: u32, burst: u32, gap: Duration) -> Run {
    let (mut rx, to) = hosts.on_client(|| receiver((CLIENT_IP, 0))).unwrap();
    let tx = hosts.inside_server(|| UdpSocket::bind((SERVER_IP, 0)).unwrap()).unwrap();
    let mut came = Vec::new();
    let mut tracker = SequenceTracker::default();
    tracker.begin_run(Some(FIRST_SEQUENCE));
    let (sent, stats) = std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let one = |number| {
                if number % burst == 0 && number > 0 {
                    std::thread::sleep(gap);
                }
                let now = Instant::now();
                tx.send_to(&packet(number), to).unwrap();
                now
            };
            (0..count).map(one).collect::<Vec<_>>()
        });
        let deadline = Instant::now() + TIMEOUT;
        let stats = loop {
            let got = rx.recv(Some(Duration::from_millis(20))).unwrap();
            let now = Instant::now();
            for datagram in got {
                let number = u32::from_be_bytes(datagram.bytes[12..16].try_into().unwrap());
                assert!(datagram.bytes == packet(number), "packet {number} was changed");
                tracker.observe(u16::from_be_bytes([datagram.bytes[2], datagram.bytes[3]]));
                came.push((number, now));
            }
            let [there, _] = hosts.link_stats().unwrap();
            let all_in = there.rtp.received == u64::from(count) && there.rtp.waiting == 0;
            if (all_in && there.rtp.forwarded <= came.len() as u64) || now > deadline {
                break there;
            }
        };
        (sender.join().unwrap(), stats)
    });
    assert_eq!((rx.dropped(), rx.truncated()), (0, 0), "the receiver's socket kept up");
    let counts = tracker.counts();
    let highest = came.iter().map(|(number, _)| *number).max().unwrap();
    Run { stats, counts, tail: u64::from(count - 1 - highest), sent, came }
}

/// The receiver's counts are the link's.
fn assert_agree(run: &Run) {
    let (link, seen) = (run.stats.rtp, run.counts);
    assert!(link.is_conserved(), "{link}");
    assert_eq!(run.stats.unplanned(), 0, "{}", run.stats);
    assert_eq!(run.sent.len() as u64, link.received, "{link}");
    assert_eq!(run.came.len() as u64, link.forwarded, "{link} {seen:?}");
    assert_eq!(seen.lost + seen.lost_at_start + run.tail, link.lost + link.queue_drops, "{link} {seen:?}");
    assert_eq!(seen.duplicates, link.duplicated, "{link} {seen:?}");
    assert_eq!(seen.reordered, link.reordered, "{link} {seen:?}");
    assert_eq!((seen.strays, seen.restarts), (0, 0), "{seen:?}");
}

#[test]
fn loss_bursts_duplicates_and_reordering_are_counted_alike_on_both_sides() {
    for spec in [
        "none",
        "loss 3%",
        "burst-loss 4% x6",
        "duplicate 5%",
        "reorder 3% by 4 within 1s",
        "loss 2%, burst-loss 2% x3, duplicate 2%, reorder 2% by 2, delay 5ms, jitter 3ms, seed 9",
    ] {
        let Some(hosts) = hosts(spec) else { return };
        let run = run(&hosts, 4000, 20, Duration::from_millis(1));
        assert_agree(&run);
        let rtp = run.stats.rtp;
        let happened = |word: &str, count: u64| assert_eq!(spec.contains(word), count > 0, "{spec}: {rtp}");
        happened("loss", rtp.lost);
        happened("duplicate", rtp.duplicated);
        happened("reorder", rtp.reordered);
    }
}

#[test]
fn link_delay_is_minimum_and_jitter_keeps_order() {
    let Some(hosts) = hosts("delay 20ms, jitter 5ms") else { return };
    let run = run(&hosts, 2000, 4, Duration::from_millis(1));
    assert_agree(&run);
    let (delay, jitter) = (Duration::from_millis(20), Duration::from_millis(5));
    let late = run.came.iter().map(|(number, at)| {
        let took = *at - run.sent[*number as usize];
        assert!(took >= delay, "packet {number} took {took:?}");
        took - delay
    });
    let mut late: Vec<Duration> = late.collect();
    late.sort_unstable();
    // On an idle machine the excess over delay and jitter is below a millisecond; this test only
    // shows that it works.
    assert!(late[late.len() / 2] < jitter + Duration::from_millis(50), "{:?}", late[late.len() / 2]);
    assert!(run.came.windows(2).all(|w| w[0].0 < w[1].0), "jitter keeps order");
}

#[test]
fn link_rate_delays_packets_by_transmission_time() {
    let Some(hosts) = hosts("rate 40Mb/s queue 32768") else { return };
    let run = run(&hosts, 3000, 3000, Duration::ZERO);
    assert_agree(&run);
    assert_eq!(run.stats.rtp.queue_drops, 0);
    for (place, (_, at)) in run.came.iter().enumerate() {
        let bits = PACKET_BYTES * 8 * (place as u64 + 1);
        let least = Duration::from_nanos(bits * 1_000_000_000 / 40_000_000);
        assert!(*at - run.sent[0] >= least, "packet {place} came too early");
    }
    assert_eq!(run.stats.rtp.forwarded_bytes, 3000 * PACKET_BYTES);
}

#[test]
fn link_full_queue_drops_match_receiver_loss() {
    let Some(hosts) = hosts("rate 10Mb/s queue 20") else { return };
    let run = run(&hosts, 1000, 100, Duration::from_millis(2));
    assert_agree(&run);
    assert!(run.stats.rtp.queue_drops > 100, "{}", run.stats.rtp);
}

#[test]
fn link_reorder_lets_exact_number_of_packets_overtake() {
    let Some(hosts) = hosts("reorder 2% by 7 within 5s") else { return };
    let run = run(&hosts, 3000, 20, Duration::from_millis(1));
    assert_agree(&run);
    let place: HashMap<u32, usize> = run.came.iter().enumerate().map(|(place, (n, _))| (*n, place)).collect();
    let mut overtaken = 0;
    for (number, at) in &place {
        let by = run.came[..*at].iter().filter(|(other, _)| other > number).count();
        // The last ones run out of followers.
        assert!([0, 7].contains(&by) || *number > 2980, "packet {number} was overtaken by {by}");
        overtaken += u64::from(by > 0);
    }
    assert_eq!(overtaken, run.stats.rtp.reordered);
}

/// `bytes` that show where something is missing.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn tcp_gets_everything_through_both_ways() {
    let bad = "loss 1%, delay 5ms, duplicate 1%, reorder 1% by 3";
    let Some(hosts) = hosts(&format!("{bad}; {bad}, seed 3")) else { return };
    let listener = hosts.inside_server(|| TcpListener::bind((SERVER_IP, 0)).unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut client = hosts.on_client(|| TcpStream::connect_timeout(&addr, TIMEOUT).unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    let data = pattern(2 << 20);
    let mut got = vec![0; data.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| server.write_all(&data).unwrap());
        client.read_exact(&mut got).unwrap();
    });
    assert!(got == data);
    client.write_all(&data[..100_000]).unwrap();
    server.read_exact(&mut got[..100_000]).unwrap();
    assert!(got[..100_000] == data[..100_000]);
    let [there, back] = hosts.link_stats().unwrap();
    assert!(there.all.lost > 0 && there.all.is_conserved() && back.all.is_conserved(), "{there}; {back}");
    assert_eq!((there.unplanned(), back.unplanned()), (0, 0));
}

#[test]
fn link_host_reaches_outside_through_impaired_link() {
    if !possible() {
        return;
    }
    let spec = LinkSpec::from("loss 20%".parse::<Impairment>().unwrap());
    // Two at once take different networks.
    let (host, other) = (LinkHost::new(&spec).unwrap(), LinkHost::new(&spec).unwrap());
    assert_ne!(host.outside_ip(), other.outside_ip());
    drop(other);
    let (mut rx, local) = host.run_inside(|| receiver(("0.0.0.0", 0))).unwrap();
    let tx = UdpSocket::bind("0.0.0.0:0").unwrap();
    for number in 0..500 {
        tx.send_to(&packet(number), (host.inside_ip(), local.port())).unwrap();
    }
    let deadline = Instant::now() + TIMEOUT;
    let mut got = 0;
    let settled = |got: u64, there: LinkStats| there.rtp.received == 500 && there.rtp.forwarded <= got;
    while !settled(got, host.stats()[0]) && Instant::now() < deadline {
        got += rx.recv(Some(Duration::from_millis(20))).unwrap().count() as u64;
    }
    let [there, _] = host.stats();
    assert_eq!((there.rtp.forwarded, there.unplanned()), (got, 0), "{there}");
    assert!(there.rtp.lost > 20, "{there}");
    assert_eq!(host.report_json()["to_viewers"]["rtp"]["lost"], there.rtp.lost);
    let text = host.report();
    assert!(
        text.starts_with("link: loss 20%\n") && text.contains(&format!("{} lost", there.rtp.lost)),
        "{text}"
    );
    // A server of this machine, asked from inside, sees the host's own address.
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let url = format!("rtsp://127.0.0.1:{}/title", listener.local_addr().unwrap().port());
    let url = host.target_inside(&url).unwrap();
    let addr: SocketAddr = url["rtsp://".len()..].trim_end_matches("/title").parse().unwrap();
    assert_eq!(addr.ip(), host.outside_ip());
    // The first segment may get lost as anything else: the kernel sends it again.
    let _client = host.run_inside(|| TcpStream::connect_timeout(&addr, TIMEOUT).unwrap()).unwrap();
    assert_eq!(listener.accept().unwrap().1.ip(), host.inside_ip());
    // Other programs can be started inside as well.
    let mut enter = std::process::Command::new("nsenter");
    let shown = enter
        .arg(format!("--net={}", host.namespace_path().display()))
        .args(["ip", "addr"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains(&host.inside_ip().to_string()), "{shown:?}");
    // Another process may take the name at once, but not the number.
    let device = format!("/sys/class/net/mill-link{}/ifindex", host.outside_ip().octets()[2]);
    let index = std::fs::read_to_string(&device).unwrap();
    drop(host);
    assert_ne!(std::fs::read_to_string(&device).unwrap_or_default(), index);
}

#[test]
fn targets_elsewhere_are_refused_with_what_it_would_take() {
    if !possible() {
        return;
    }
    let host = LinkHost::new(&LinkSpec::default()).unwrap();
    let outside = host.outside_ip();
    for (target, wanted) in [
        ("rtsp://localhost:8554/title", format!("rtsp://{outside}:8554/title")),
        ("http://[::1]/x.m3u8", format!("http://{outside}/x.m3u8")),
        ("http://0.0.0.0:80", format!("http://{outside}:80")),
        ("udp://0.0.0.0:5004", "udp://0.0.0.0:5004".to_owned()),
    ] {
        assert_eq!(host.target_inside(target).unwrap(), wanted);
    }
    assert!(host.target_inside("title").unwrap_err().to_string().contains("write a URL"));
    let forwards = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap().trim() == "1";
    match host.target_inside("rtsp://192.0.2.1/title") {
        Ok(url) => assert!(forwards && url == "rtsp://192.0.2.1/title"),
        Err(error) => assert!(!forwards && error.to_string().contains("net.ipv4.ip_forward=1"), "{error}"),
    }
}
