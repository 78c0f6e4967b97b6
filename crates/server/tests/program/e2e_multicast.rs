//! RTSP multicast between network namespaces: receivers on two hosts behind a bridge, real players, and networks that fail.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use millrace_core::wire::rtcp::{self, RtcpPacket};
use millrace_core::wire::rtp::RtpHeader;
use millrace_testkit::hosts::Netns;
use rustix::net::{AddressFamily, SocketType, sockopt};
use serde_json::Value;

use crate::support::http::{frames, get};
use crate::support::{Server, add, fails, film, header, read_message};

const TIMEOUT: Duration = Duration::from_secs(30);
const SERVER: &str = "10.91.0.1";
const SERVER_V6: &str = "fd91::1";
/// Packets that each receiver collects: more than the film has, so that a seam of the channel lies among them.
const PACKETS: usize = 700;

/// A server's host with a bridge, and two hosts behind it. The addresses end with the number of the host, the server's with 1.
struct Hosts {
    server: Netns,
    receivers: [Netns; 2],
}

impl Hosts {
    /// `None`: this needs root.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return None;
        }
        let hosts = Self { server: Netns::new("s"), receivers: [Netns::new("a"), Netns::new("b")] };
        let Self { server, receivers } = &hosts;
        server.ip("link add br0 type bridge");
        for (receiver, number) in receivers.iter().zip(2..) {
            server.ip(&format!("link add v{number} type veth peer name eth0 netns {}", receiver.name));
            server.ip(&format!("link set v{number} master br0"));
            server.ip(&format!("link set v{number} up"));
            receiver.ip(&format!("addr add 10.91.0.{number}/24 dev eth0"));
            receiver.ip(&format!("addr add fd91::{number}/64 dev eth0 nodad"));
            receiver.ip("link set eth0 up");
            // Players join groups by the route.
            receiver.ip(&format!("route add default via {SERVER}"));
        }
        server.ip(&format!("addr add {SERVER}/24 dev br0"));
        server.ip(&format!("addr add {SERVER_V6}/64 dev br0 nodad"));
        server.ip("link set br0 up");
        server.wait_until_up("br0");
        receivers.iter().for_each(|receiver| receiver.wait_until_up("eth0"));
        Some(hosts)
    }

    /// A server with a channel of one film, and further arguments.
    fn serve(&self, dir: &Path, args: &[&str]) -> Server {
        let store = dir.join("store");
        add(&film(dir, "film.ts", 2), &store);
        let playlist = dir.join("lobby.m3u");
        std::fs::write(&playlist, "film\n").unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.server.name, env!("CARGO_BIN_EXE_millrace")]);
        command.env_remove("MILLRACE_STORE").env_remove("RUST_LOG");
        command.args([
            "serve",
            "--listen",
            "[::]:8554",
            "--http",
            "[::]:8080",
            "--cache",
            "32MiB",
            "--store",
        ]);
        command.arg(store).arg("--channel").arg(format!("lobby={}", playlist.display())).args(args);
        let server = Server::spawn(command);
        self.until("the channel runs", |state| state["state"] == "running");
        server
    }

    /// The channel in the API.
    fn state(&self) -> Value {
        self.server.inside(|| {
            let mut stream = TcpStream::connect(("127.0.0.1", 8080)).unwrap();
            let (_, body) = get(&mut stream, "/api/v1/live", "");
            serde_json::from_slice::<Value>(&body).unwrap()["live"][0].clone()
        })
    }

    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + TIMEOUT;
        loop {
            let state = self.state();
            if is_so(&state) {
                return state;
            }
            assert!(Instant::now() < end, "{what}: {state}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// One RTSP session of a receiver, with its sockets in the group.
struct Listener {
    stream: TcpStream,
    session: String,
    url: String,
    group: IpAddr,
    rtp: UdpSocket,
    rtcp: UdpSocket,
}

fn joined(group: IpAddr, port: u16) -> UdpSocket {
    let family = if group.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::DGRAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4 << 20).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(group, port)).unwrap();
    let socket = UdpSocket::from(socket);
    match group {
        IpAddr::V4(group) => {
            let own = if let IpAddr::V4(own) = own_address() { own } else { Ipv4Addr::UNSPECIFIED };
            socket.join_multicast_v4(&group, &own).unwrap();
        }
        IpAddr::V6(group) => {
            let index = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
            let line = index.lines().find(|line| line.ends_with("eth0")).unwrap().to_owned();
            let number = line.split_whitespace().nth(1).unwrap();
            socket.join_multicast_v6(&group, u32::from_str_radix(number, 16).unwrap()).unwrap();
        }
    }
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// The address of this namespace at the bridge.
fn own_address() -> IpAddr {
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    probe.connect((SERVER, 9)).unwrap();
    probe.local_addr().unwrap().ip()
}

impl Listener {
    /// Sets up and plays, in the calling thread's namespace.
    fn play(server: &str) -> Self {
        let host = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
        let url = format!("rtsp://{host}:8554/live/lobby");
        let stream = TcpStream::connect((server, 8554)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let any = UdpSocket::bind("0.0.0.0:0").unwrap();
        let rtcp = any.try_clone().unwrap();
        let mut listener = Self { stream, session: String::new(), url, group: own_address(), rtp: any, rtcp };
        let head = listener.ask("SETUP", "/track1", "Transport: RTP/AVP;multicast\r\n");
        let transport = header(&head, "transport").unwrap_or_else(|| panic!("{head}")).to_owned();
        let value = |name: &str| {
            let mut parts = transport.split(';').filter_map(|part| part.split_once('='));
            parts.find(|(key, _)| *key == name).unwrap_or_else(|| panic!("{name}: {transport}")).1
        };
        assert!(transport.starts_with("RTP/AVP;multicast;"), "{transport}");
        let (rtp, rtcp) = value("port").split_once('-').unwrap();
        listener.group = value("destination").parse().unwrap();
        listener.rtp = joined(listener.group, rtp.parse().unwrap());
        listener.rtcp = joined(listener.group, rtcp.parse().unwrap());
        let session = header(&head, "session").unwrap();
        listener.session = session.split(';').next().unwrap().to_owned();
        let head = listener.ask("PLAY", "/", "");
        assert!(head.starts_with("RTSP/1.0 200"), "{head}");
        listener
    }

    fn ask(&mut self, method: &str, path: &str, more: &str) -> String {
        let (url, session) = (&self.url, &self.session);
        let session = if session.is_empty() { String::new() } else { format!("Session: {session}\r\n") };
        write!(self.stream, "{method} {url}{path} RTSP/1.0\r\nCSeq: 1\r\n{session}{more}\r\n").unwrap();
        read_message(&mut self.stream).0
    }

    /// The next datagram; `None`: none comes within a fifth of a second.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; 2048];
        self.rtp.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())
    }

    /// The next packets, by their sequence numbers, which go on without a gap.
    fn collect(&self, count: usize) -> BTreeMap<u16, Vec<u8>> {
        let (mut packets, mut last) = (BTreeMap::new(), None::<u16>);
        let end = Instant::now() + TIMEOUT;
        while packets.len() < count {
            assert!(Instant::now() < end, "{} of {count} packets", packets.len());
            let Some(bytes) = self.receive() else { continue };
            let number = RtpHeader::parse(&bytes).expect("RTP").0.sequence;
            assert!(last.is_none_or(|last| last.wrapping_add(1) == number), "{number} behind {last:?}");
            last = Some(number);
            packets.insert(number, bytes);
        }
        packets
    }

    /// The source of the sender report in the group, and whether one came.
    fn sender_report(&self) -> u32 {
        let mut buffer = [0; 2048];
        let end = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < end, "no sender report");
            let Ok(length) = self.rtcp.recv(&mut buffer) else { continue };
            let mut packets = rtcp::parse(&buffer[..length]);
            if let Some(RtcpPacket::SenderReport(report)) = packets.next() {
                return report.ssrc;
            }
        }
    }
}

/// Both receivers have the same packets between the first and the last number that both have.
fn assert_equal(a: &BTreeMap<u16, Vec<u8>>, b: &BTreeMap<u16, Vec<u8>>) {
    let common: Vec<_> = a.keys().filter(|number| b.contains_key(number)).collect();
    assert!(common.len() >= PACKETS / 2, "{} in common", common.len());
    let (first, last) = (**common.first().unwrap(), **common.last().unwrap());
    assert_eq!(common.len(), usize::from(last - first) + 1, "the same ones of both, without a gap");
    assert!(common.iter().all(|number| a[number] == b[number]), "the same bytes");
}

const GROUPS: &str = "239.192.0.0/16,ff18::4d52:0/112,interface=br0";

#[test]
fn receivers_on_two_hosts_share_cast_and_get_every_packet() {
    let Some(hosts) = Hosts::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut server = hosts.serve(dir.path(), &["--multicast", GROUPS]);
    for (address, is_v4) in [(SERVER, true), (SERVER_V6, false)] {
        let [mut a, mut b] = [0, 1].map(|at| hosts.receivers[at].inside(|| Listener::play(address)));
        assert!(a.group == b.group && a.group.is_ipv4() == is_v4 && a.group.is_multicast());
        let [from_a, from_b] = std::thread::scope(|scope| {
            [&a, &b]
                .map(|listener| scope.spawn(|| listener.collect(PACKETS)))
                .map(|thread| thread.join().unwrap())
        });
        assert_equal(&from_a, &from_b);
        let ssrc = RtpHeader::parse(from_a.values().next().unwrap()).unwrap().0.ssrc;
        assert_eq!(a.sender_report(), ssrc);
        let state = hosts.until("two listeners", |state| state["multicast"][0]["listeners"] == 2);
        assert_eq!(state["viewers"], 2, "{state}");
        assert_eq!(state["multicast"][0]["is_sending"], true, "{state}");
        // One pauses, the other one goes on.
        assert!(a.ask("PAUSE", "/", "").starts_with("RTSP/1.0 200"));
        b.collect(50);
        assert!(a.ask("TEARDOWN", "/", "").starts_with("RTSP/1.0 200"));
        b.collect(50);
        assert!(b.ask("TEARDOWN", "/", "").starts_with("RTSP/1.0 200"));
        hosts.until("no cast", |state| state["multicast"].is_null());
        while b.receive().is_some() {}
    }
    assert_eq!(
        server.said("cast of live/lobby to ").iter().filter(|line| line.contains(" begins")).count(),
        2
    );
    assert!(server.interrupt());
}

#[test]
fn cast_goes_on_by_itself_when_interface_is_back() {
    let Some(hosts) = Hosts::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut server = hosts.serve(dir.path(), &["--multicast", GROUPS]);
    let listener = hosts.receivers[0].inside(|| Listener::play(SERVER));
    listener.collect(100);
    hosts.server.ip("link set br0 down");
    let state = hosts.until("the reason", |state| state["multicast"][0]["trouble"].is_string());
    assert_eq!(state["multicast"][0]["is_sending"], false, "{state}");
    hosts.server.ip("link set br0 up");
    hosts.server.wait_until_up("br0");
    let end = Instant::now() + TIMEOUT;
    while listener.receive().is_none() {
        assert!(Instant::now() < end, "nothing comes: {}", hosts.state());
    }
    hosts.until("it is well", |state| {
        state["multicast"][0]["is_sending"] == true && state["multicast"][0]["trouble"].is_null()
    });
    assert_eq!(server.said("sends again").len(), 1);
    assert!(server.interrupt());
}

#[test]
fn cast_without_route_reports_it_and_begins_when_there_is_one() {
    let Some(hosts) = Hosts::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut server = hosts.serve(dir.path(), &["--multicast", "239.192.0.0/16", "--session-timeout", "5s"]);
    let listener = hosts.receivers[0].inside(|| Listener::play(SERVER));
    let state = hosts.until("the reason", |state| state["multicast"][0]["trouble"].is_string());
    assert!(state["multicast"][0]["trouble"].as_str().unwrap().contains("unreachable"), "{state}");
    hosts.server.ip("route add 239.0.0.0/8 dev br0");
    let end = Instant::now() + TIMEOUT;
    while listener.receive().is_none() {
        assert!(Instant::now() < end, "nothing comes: {}", hosts.state());
    }
    // It vanishes: nothing is heard of it.
    drop(listener);
    hosts.until("the silent listener is gone", |state| state["multicast"].is_null());
    assert!(server.interrupt());
}

/// The sums of the pictures that ffmpeg prints.
fn sums_of(text: &str) -> Vec<String> {
    let sums = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit(',').next());
    sums.map(|sum| sum.trim().to_owned()).collect()
}

/// Whether each picture is one of the film's.
fn is_of_film(film: &[String], shown: &[String]) -> bool {
    shown.iter().all(|sum| film.contains(sum))
}

#[test]
fn ffmpeg_and_gstreamer_play_cast_with_the_pictures_of_the_film() {
    let Some(hosts) = Hosts::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut server = hosts.serve(dir.path(), &["--multicast", GROUPS]);
    let film = frames(dir.path().join("film.ts").to_str().unwrap());
    for (receiver, host) in hosts.receivers.iter().zip([SERVER.to_owned(), format!("[{SERVER_V6}]")]) {
        let url = format!("rtsp://{host}:8554/live/lobby");
        let ffmpeg = "ffmpeg -hide_banner -nostdin -v error -rtsp_transport udp_multicast -i";
        let out = receiver.command(&format!("{ffmpeg} {url} -map 0:v -frames:v 120 -f framemd5 -"));
        let shown = sums_of(&String::from_utf8_lossy(&out.stdout));
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(
            shown.len() == 120 && is_of_film(&film, &shown),
            "{host}: {} pictures, {errors}",
            shown.len()
        );
    }
    let url = format!("rtsp://{SERVER}:8554/live/lobby");
    let sink = "fakesink num-buffers=120 silent=false";
    let out = hosts.receivers[1].command(&format!(
        "timeout 60 gst-launch-1.0 -v rtspsrc location={url} protocols=udp-mcast ! rtpmp2tdepay ! tsdemux ! h264parse ! avdec_h264 ! {sink}"
    ));
    let said = String::from_utf8_lossy(&out.stdout);
    let pictures = said.matches("chain").count();
    assert!(out.status.success() && pictures >= 120, "{pictures} pictures: {said} {out:?}");
    hosts.until("no cast", |state| state["multicast"].is_null());
    assert!(server.interrupt());
}

#[test]
fn announced_cast_is_found_and_played_by_ffmpeg_and_deleted_at_its_end() {
    let Some(hosts) = Hosts::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut server = hosts.serve(dir.path(), &["--multicast", GROUPS, "--sap"]);
    let film = frames(dir.path().join("film.ts").to_str().unwrap());
    let sap = hosts.receivers[0].inside(|| joined("239.195.255.255".parse().unwrap(), 9875));
    sap.set_read_timeout(Some(TIMEOUT)).unwrap();
    // ffmpeg reads the announcement with a parser of its own, and joins the group that it finds there.
    let mut ffmpeg = Command::new("ip");
    ffmpeg.args([
        "netns",
        "exec",
        &hosts.receivers[1].name,
        "timeout",
        "60",
        "ffmpeg",
        "-nostdin",
        "-v",
        "error",
    ]);
    ffmpeg.args([
        "-i",
        "sap://239.195.255.255:9875",
        "-map",
        "0:v",
        "-frames:v",
        "60",
        "-f",
        "framemd5",
        "-",
    ]);
    let ffmpeg = ffmpeg.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + TIMEOUT;
    while !hosts.receivers[1].must("ip maddr show dev eth0").contains("239.195.255.255") {
        assert!(Instant::now() < end, "ffmpeg does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut listener = hosts.receivers[0].inside(|| Listener::play(SERVER));
    let mut buffer = [0; 2048];
    let length = sap.recv(&mut buffer).expect("an announcement");
    let announced = buffer[..length].to_vec();
    assert_eq!((announced[0], &announced[4..8]), (0x20, &[10, 91, 0, 1][..]));
    let ended = ffmpeg.wait_with_output().unwrap();
    let shown = sums_of(&String::from_utf8_lossy(&ended.stdout));
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(shown.len() == 60 && is_of_film(&film, &shown), "{} pictures: {errors}", shown.len());
    assert!(listener.ask("TEARDOWN", "/", "").starts_with("RTSP/1.0 200"));
    let length = sap.recv(&mut buffer).expect("a deletion");
    assert_eq!((buffer[0], &buffer[1..length]), (0x24, &announced[1..]), "the same session");
    assert!(server.interrupt());
}

#[test]
fn multicast_setting_with_fault_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let store = store.to_str().unwrap();
    for (groups, part) in [
        ("239.192.0.0/16,ttl=0", "ttl=1 to ttl=255"),
        ("239.192.0.0/16,ttl=256", "ttl=1 to ttl=255"),
        ("10.0.0.0/8", "no multicast group"),
        ("239.192.0.0/16,interface=nothere0", "interface nothere0"),
    ] {
        let errors = fails(&["serve", "--store", store, "--listen", "127.0.0.1:0", "--multicast", groups]);
        assert!(errors.contains("--multicast") && errors.contains(part), "{groups}: {errors}");
    }
}
