//! Two engines behind one pair of UDP ports: viewers on every path at once, incoming packets at the
//! ports, and a second server.

use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::viewers::Viewers::Steady;
use crate::support::viewers::{Load, packets_of};
use crate::support::{Server, add, film, read_head, volume};
use serde_json::Value;

/// For things that must happen on their own within seconds, on a machine that has other things to
/// do.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Reads the counters until `is` holds; they are written once a second.
fn wait_for_counters(path: &Path, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + TIMEOUT;
    loop {
        let counters = serde_json::from_slice(&std::fs::read(path).unwrap()).expect("a whole document");
        if is(&counters) {
            return counters;
        }
        assert!(Instant::now() < end, "{what} never came: {counters}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A counter of each engine.
fn each(counters: &Value, part: &str, counter: &str) -> [u64; 2] {
    let of = |engine: usize| counters[part][engine][counter].as_u64().expect("a counter of this engine");
    [of(0), of(1)]
}

#[test]
fn viewers_on_every_path_get_everything_from_both_though_a_disk_fails() {
    let dir = tempfile::tempdir().unwrap();
    let members: Vec<PathBuf> = (0..4).map(|number| dir.path().join(format!("disk{number}"))).collect();
    volume(&members, 1);
    let source = film(dir.path(), "film.ts", 8);
    add(&source, &members[0]);
    let (orders, stats) = (dir.path().join("orders"), dir.path().join("stats.json"));
    std::fs::write(&orders, "").unwrap();
    let args = ["--inject", orders.to_str().unwrap(), "--stats", stats.to_str().unwrap()];
    let mut server = Server::start(&members[0], &args);
    let load = |more: &[&str]| Load::start(&server, &["film"], (10, 16), Steady, more);
    let loads = [load(&[]), load(&["--transport", "tcp"]), load(&["--fec", "all"])];
    (0..30).for_each(|_| drop(server.wait_for("plays", TIMEOUT)));
    std::fs::write(&orders, "member 1 eio\n").unwrap();
    server.wait_for("fault injection", TIMEOUT);
    for load in loads {
        load.assert_all_of(packets_of(&source));
    }
    assert!(server.interrupt());
    let counters = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
    // Ten viewers by each path, FEC beside: both have sent about half, by both paths.
    let packets = each(&counters, "engine", "packets");
    assert!(packets.iter().all(|sent| sent * 3 > packets.iter().sum()), "{packets:?}");
    for path in ["datagrams", "frames"] {
        assert!(each(&counters, "sockets", path).iter().all(|sent| *sent > 0), "{path}: {counters}");
    }
}

/// A viewer that speaks RTSP by hand.
struct Viewer {
    stream: TcpStream,
    url: String,
    ports: [UdpSocket; 2],
    /// Ports that the server has announced.
    server_ports: [SocketAddr; 2],
    session: String,
}

impl Viewer {
    /// One that has set up its session and plays.
    fn playing(server: &Server) -> Self {
        let stream = TcpStream::connect(server.addr).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let ports = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        ports.iter().for_each(|port| port.set_read_timeout(Some(TIMEOUT)).unwrap());
        let (url, session) = (server.title("film"), String::new());
        let mut viewer = Self { stream, url, ports, server_ports: [server.addr; 2], session };
        let [rtp, rtcp] = viewer.ports.each_ref().map(|port| port.local_addr().unwrap().port());
        let set_up = viewer.ask("SETUP", &format!("Transport: RTP/AVP;unicast;client_port={rtp}-{rtcp}\r\n"));
        let after = |name: &str| set_up.split(name).nth(1).unwrap_or_else(|| panic!("no {name}: {set_up}"));
        let (first, second) = after("server_port=").split_once('-').unwrap();
        let port = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
        viewer.server_ports = [port(first), port(second)].map(|port| SocketAddr::new(server.addr.ip(), port));
        viewer.session = after("Session: ").split([';', '\r']).next().unwrap().to_owned();
        let session = format!("Session: {}\r\n", viewer.session);
        viewer.ask("PLAY", &session);
        viewer
    }

    /// Asks, and expects 200; the header.
    fn ask(&mut self, method: &str, more: &str) -> String {
        let Self { stream, url, .. } = self;
        write!(stream, "{method} {url} RTSP/1.0\r\nCSeq: 1\r\n{more}\r\n").unwrap();
        let head = read_head(stream);
        assert!(head.starts_with("RTSP/1.0 200 "), "{head}");
        head
    }

    /// Where its next RTP packet comes from.
    fn source(&self) -> SocketAddr {
        self.ports[0].recv_from(&mut [0; 2048]).expect("a packet").1
    }
}

/// A receiver report without blocks (RFC 3550 section 6.4.2).
const REPORT: [u8; 8] = [0x80, 201, 0, 1, 0, 0, 0, 7];

#[test]
fn engines_share_one_port_and_route_feedback_to_its_viewer() {
    let dir = tempfile::tempdir().unwrap();
    let (store, stats) = (dir.path().join("store"), dir.path().join("stats.json"));
    add(&film(dir.path(), "film.ts", 60), &store);
    let server = Server::start(&store, &["--stats", stats.to_str().unwrap()]);
    // Successive viewers alternate between the two engines.
    let viewers: Vec<_> = (0..4).map(|_| Viewer::playing(&server)).collect();
    let [rtp, rtcp] = viewers[0].server_ports;
    for viewer in &viewers {
        assert_eq!((viewer.server_ports, viewer.source()), ([rtp, rtcp], rtp));
        viewer.ports[0].send_to(b"open up", rtp).unwrap();
        viewer.ports[1].send_to(&REPORT, rtcp).unwrap();
    }
    let counters = wait_for_counters(&stats, "every report and punch", |counters| {
        let sessions = &counters["sessions"];
        sessions["rtcp_received"] == 4 && sessions["punches"] == 4
    });
    assert_eq!(each(&counters, "engine", "open"), [2, 2], "{counters}");
    assert_eq!(each(&counters, "sockets", "icmp_errors"), [0, 0], "{counters}");

    // A viewer of the second engine closes its ports: that engine hears of it, and no other.
    let mut viewers = viewers.into_iter();
    let (stay, go) = (viewers.next().unwrap(), viewers.next().unwrap());
    drop(go.ports);
    let counters = wait_for_counters(&stats, "the ICMP error", |counters| {
        each(counters, "sockets", "unreachable").iter().any(|count| *count > 0)
    });
    let unreachable = each(&counters, "sockets", "unreachable");
    assert!(unreachable[0] == 0 && unreachable[1] > 0, "{counters}");
    assert_eq!(each(&counters, "sockets", "icmp_errors")[0], 0, "{counters}");
    stay.source();
}

#[test]
fn udp_ports_of_second_server_differ_from_first() {
    let dir = tempfile::tempdir().unwrap();
    let store = |name: &str| dir.path().join(name);
    for name in ["one", "two"] {
        add(&film(dir.path(), "film.ts", 20), &store(name));
    }
    let ports = ["--udp-ports", "21000-21099"];
    let servers = ["one", "two"].map(|name| Server::start(&store(name), &ports));
    let [one, two] = servers.each_ref().map(Viewer::playing);
    assert_ne!(one.server_ports, two.server_ports);
    assert_eq!((one.source(), two.source()), (one.server_ports[0], two.server_ports[0]));
}
