//! The control plane on real sockets: the order of writes, the connections that are cut off, and
//! their independence from each other.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::rtsp_support;
use crate::rtsp_support::live::{Core, Item, Live, TIMEOUT, Viewer, viewer_ports};
use crate::rtsp_support::{MS, receiver_report};
use millrace_core::wire::rtcp::{RtcpPacket, parse};
use millrace_core::wire::rtp::RtpHeader;
use millrace_offload::command::Event;
use millrace_server::admission::AdmissionConfig;
use millrace_web::{Delivery, Order, OrderSocket, OrderedMedia};

const OPTIONS: &str = "OPTIONS * RTSP/1.0\nCSeq: 1";

#[test]
fn udp_session_from_options_to_teardown_plays_and_releases_all() {
    let live = Live::start();
    let mut v = live.viewer();
    assert_eq!(v.ask("OPTIONS rtsp://h/film RTSP/1.0\nCSeq: 1").status, 200);
    assert_eq!(v.ask("DESCRIBE rtsp://h/film RTSP/1.0\nCSeq: 2").status, 200);
    let (rtp, rtcp) = viewer_ports();
    let setup = v.setup_udp(&rtp, &rtcp);
    let ports = format!("server_port={}-{}", live.rtp.port(), live.rtcp.port());
    assert!(setup.get("transport").contains(&ports), "{setup:?}");
    let id = setup.session();
    let play = v.ask_session("PLAY", &id, "Range: npt=10-");
    let mut packet = [0; 2048];
    let (len, from) = rtp.recv_from(&mut packet).unwrap();
    let (header, _) = RtpHeader::parse(&packet[..len]).unwrap();
    assert_eq!(
        play.get("rtp-info"),
        format!("url=rtsp://h/film/track1;seq={};rtptime=1900000", header.sequence)
    );
    assert_eq!(from, live.rtp);
    // Reports and punches are heard, nonsense is not minded.
    rtcp.send_to(&receiver_report(0x1234_abcd, false), live.rtcp).unwrap();
    rtp.send_to(b"\xce\xfa\xed\xfe", live.rtp).unwrap();
    rtcp.send_to(&[0xff; 1000], live.rtcp).unwrap();
    rtp.send_to(&[], live.rtp).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&receiver_report(1, true), live.rtcp).unwrap();
    let heard =
        live.wait_for("the report", |s| s.counters.rtcp_received == 2 && s.counters.rtcp_unknown == 1);
    assert_eq!(heard.sessions[0].report.unwrap().fraction_lost, 255);
    live.wait_for("the punches", |s| s.counters.punches == 2);
    assert_eq!(v.ask_session("PAUSE", &id, "").status, 200);
    assert_eq!(v.ask_session("PLAY", &id, "").status, 200);
    assert_eq!(v.ask_session("TEARDOWN", &id, "").status, 200);
    live.assert_empties();
}

#[test]
fn replies_never_split_frames() {
    let live = Live::start();
    let mut v = live.viewer();
    let id = v.setup_tcp();
    let start = Instant::now();
    assert_eq!(v.ask_session("PLAY", &id, "").status, 200);
    assert!(matches!(v.next(), Item::Frame { .. }));
    // Between the two lie 50 ms: players lose frames that come right behind the reply.
    assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
    let mut asked = 0;
    // Requests in bursts, among frames, until both have been many. The parser panics on anything split.
    while v.frames.len() < 200 || asked < 200 {
        assert!(start.elapsed() < TIMEOUT, "{} frames", v.frames.len());
        for _ in 0..10 {
            v.send(&format!("GET_PARAMETER rtsp://h/film RTSP/1.0\nCSeq: {asked}\nSession: {id}"));
            asked += 1;
        }
        for cseq in asked - 10..asked {
            assert_eq!(v.answer().get("cseq"), cseq.to_string());
        }
    }
    let sequences: Vec<_> = v
        .frames
        .iter()
        .map(|(channel, bytes)| {
            assert_eq!((*channel, bytes.len()), (0, 1328));
            RtpHeader::parse(bytes).unwrap().0.sequence
        })
        .collect();
    assert!(sequences.windows(2).all(|w| w[1] == w[0] + 1), "{sequences:?}");
    // A seek: no jump in the sequence.
    let seek = v.ask_session("PLAY", &id, "Range: npt=30-");
    let next: u16 =
        seek.get("rtp-info").split("seq=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    let Item::Frame { bytes, .. } = v.next() else { panic!("a frame") };
    assert_eq!(RtpHeader::parse(&bytes).unwrap().0.sequence, next);
    let last = RtpHeader::parse(&v.frames.last().unwrap().1).unwrap().0.sequence;
    assert_eq!(next, last.wrapping_add(1));
    v.stream.shutdown(Shutdown::Both).unwrap();
    live.assert_empties();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let live = Live::start();
    let mut v = live.viewer();
    let id = v.setup_tcp();
    assert_eq!(v.ask_session("PLAY", &id, "").status, 200);
    // The second waits for the engine; the third must wait for the second.
    live.engine.lock().unwrap().fake.silent = true;
    for (cseq, method, more) in
        [(11, "GET_PARAMETER", ""), (12, "PLAY", "Range: npt=20-"), (13, "PAUSE", ""), (14, "TEARDOWN", "")]
    {
        v.send(&format!("{method} rtsp://h/film RTSP/1.0\nCSeq: {cseq}\nSession: {id}\n{more}"));
    }
    assert_eq!(v.answer().get("cseq"), "11");
    live.engine.lock().unwrap().fake.silent = false;
    live.bell_rings();
    for cseq in ["12", "13", "14"] {
        let answer = v.answer();
        assert_eq!((answer.get("cseq"), answer.status), (cseq, 200));
    }
    live.assert_empties();
}

#[test]
fn teardown_followed_at_once_by_fin_or_reset() {
    let live = Live::start();
    for reset in [false, true] {
        let mut v = live.viewer();
        let (rtp, rtcp) = viewer_ports();
        let id = v.setup_udp(&rtp, &rtcp).session();
        assert_eq!(v.ask_session("PLAY", &id, "").status, 200);
        v.send(&format!("TEARDOWN rtsp://h/film RTSP/1.0\nCSeq: 6\nSession: {id}"));
        if reset {
            // Unread input makes close() reset the connection when the answer comes.
            drop(v.stream);
        } else {
            v.stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(v.answer().status, 200, "a half-closed connection still gets its answer");
            assert!(v.is_closed());
        }
        live.assert_empties();
    }
    live.wait_for("no connections", |s| s.connections == 0);
}

#[test]
fn garbage_is_answered_once_and_closed() {
    let live = Live::start();
    for (bytes, status) in [
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), 400),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03".to_vec(), 400),
        (b"OPTIONS * RTSP/9.9\r\nCSeq: 1\r\n\r\n".to_vec(), 505),
        ([b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\nX: ".to_vec(), vec![b'x'; 1_000_000]].concat(), 413),
        (vec![b'x'; 1_000_000], 414),
    ] {
        let mut v = live.viewer();
        // The server stops reading in the middle: writing may fail, what counts is the answer.
        let _ = v.stream.write_all(&bytes);
        match v.next() {
            Item::Answer(answer) => assert_eq!((answer.status, answer.get("connection")), (status, "close")),
            // A peer that never stops writing into a closed connection may be reset before it has read.
            Item::End => assert!(bytes.len() > 100_000, "no answer to {status}"),
            Item::Frame { .. } => panic!("a frame"),
        }
        assert!(v.is_closed());
    }
    live.wait_for("no connections", |s| s.connections == 0 && s.counters.bad_messages == 5);
    assert_eq!(live.viewer().ask(OPTIONS).status, 200);
}

#[test]
fn connection_not_reading_replies_is_cut_off_without_delaying_others() {
    let live = Live::with(|config| config.write_timeout_ns = 300 * MS);
    let mut deaf = live.viewer();
    deaf.stream.set_nonblocking(true).unwrap();
    let request = "DESCRIBE rtsp://h/film RTSP/1.0\r\nCSeq: 1\r\n\r\n".repeat(100);
    let start = Instant::now();
    let mut other = live.viewer();
    // Fill both directions, then wait for the axe; another client is served meanwhile.
    while live.snapshot().counters.connections_not_reading == 0 {
        assert!(start.elapsed() < TIMEOUT, "it was not cut off");
        while matches!(deaf.stream.write(request.as_bytes()), Ok(n) if n > 0) {}
        let asked = Instant::now();
        assert_eq!(other.ask(OPTIONS).status, 200);
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    }
    live.wait_for("one connection", |s| s.connections == 1);
}

/// Connections of the crowd: as many as a viewer limit of the same size admits.
const CROWD: usize = 5000;
/// Connections per program of the crowd: far below the number of open files that a program may have
/// anywhere.
const OF_ONE_PROGRAM: usize = 500;

/// Programs that hold connections on which every other request is begun and none is finished.
struct Crowd(Vec<std::process::Child>);

impl Crowd {
    fn start(address: std::net::SocketAddr) -> Self {
        let script = "for ((i = 0; i < $3; i++)); do exec {f}<>/dev/tcp/$1/$2 || exit 1; \
                      ((i % 2)) || printf 'OPTIONS rtsp://h/film RTSP/1.0\\r\\nCS' >&$f; done; read";
        let program = |_| {
            Command::new("bash")
                .args(["-c", script, "crowd", &address.ip().to_string(), &address.port().to_string()])
                .arg(OF_ONE_PROGRAM.to_string())
                .stdin(Stdio::piped())
                .spawn()
                .unwrap()
        };
        Self((0..CROWD / OF_ONE_PROGRAM).map(program).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for program in &mut self.0 {
            // Its connections are closed by the kernel.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

#[test]
fn five_thousand_half_open_connections_disturb_nobody() {
    let files = raise_descriptor_limit();
    if files < CROWD + 500 {
        return eprintln!("skipped: the server needs {CROWD} open files and may have {files} (ulimit -Hn)");
    }
    let live = Live::with(|config| {
        config.session.service.max_connections_per_address = 10_000;
        config.session.header_timeout_ns = 3_600_000 * MS; // they stay until the test is over
    });
    let crowd = Crowd::start(live.address);
    // Newcomers are served while the crowd arrives,
    let start = Instant::now();
    while live.snapshot().connections < CROWD {
        assert!(start.elapsed() < 4 * TIMEOUT, "{} came", live.snapshot().connections);
        assert_eq!(live.viewer().ask(OPTIONS).status, 200);
    }
    live.wait_for("the crowd alone", |s| s.connections == CROWD);
    // and when all of it is there.
    let mut v = live.viewer();
    let id = v.setup_tcp();
    assert_eq!(v.ask_session("PLAY", &id, "").status, 200);
    for _ in 0..50 {
        assert_eq!(v.ask_session("GET_PARAMETER", &id, "").status, 200);
    }
    assert_eq!(live.snapshot().connections, CROWD + 1, "nobody was put out for it");
    assert_eq!(v.ask_session("TEARDOWN", &id, "").status, 200);
    drop(crowd);
    live.wait_for("the crowd to be gone", |s| s.connections == 1);
}

#[test]
fn max_connections_per_address_refuses_further_connections() {
    let live = Live::with(|config| config.session.service.max_connections_per_address = 3);
    let mut held: Vec<_> = (0..3).map(|_| live.viewer()).collect();
    for v in &mut held {
        assert_eq!(v.ask(OPTIONS).status, 200);
    }
    for _ in 0..5 {
        assert!(live.viewer().is_closed());
    }
    live.wait_for("the count", |s| s.counters.connections_refused_address == 5 && s.connections == 3);
    drop(held.pop());
    live.wait_for("room", |s| s.connections == 2);
    assert_eq!(live.viewer().ask(OPTIONS).status, 200);
}

#[test]
fn slow_and_silent_connections_are_closed_in_time() {
    let live = Live::with(|config| config.session.header_timeout_ns = 200 * MS);
    let mut silent = live.viewer();
    let mut slow = live.viewer();
    slow.stream.write_all(b"OPTIONS * RT").unwrap();
    assert!(silent.is_closed());
    assert_eq!(slow.answer().status, 408);
    assert!(slow.is_closed());
    live.wait_for("no connections", |s| s.connections == 0 && s.counters.connections_too_slow == 2);
}

#[test]
fn engine_ring_when_full_delays_replies_without_loss() {
    let live = Live::start();
    let mut v = live.viewer();
    let id = v.setup_tcp();
    live.engine.lock().unwrap().full = true;
    for cseq in 2..40 {
        v.send(&format!("GET_PARAMETER rtsp://h/film RTSP/1.0\nCSeq: {cseq}\nSession: {id}"));
    }
    // Others are served: their replies need no engine.
    assert_eq!(live.viewer().ask(OPTIONS).status, 200);
    live.wait_for("the requests", |s| s.counters.requests >= 40);
    live.engine.lock().unwrap().full = false;
    for cseq in 2..40 {
        assert_eq!(v.answer().get("cseq"), cseq.to_string());
    }
    assert_eq!(v.ask_session("TEARDOWN", &id, "").status, 200);
    live.assert_empties();
}

#[test]
fn connection_lost_in_engine_is_closed() {
    let live = Live::start();
    let mut v = live.viewer();
    v.setup_tcp();
    {
        let mut engine = live.engine.lock().unwrap();
        let conn = millrace_core::ids::ConnId(0);
        engine.fake.events.push_back(millrace_offload::command::Event::ConnGone { conn, errno: 32 });
    }
    assert!(v.is_closed());
    live.assert_empties();
    live.wait_for("no connections", |s| s.connections == 0);
}

#[test]
fn shutdown_says_bye_and_closes_everything() {
    let mut live = Live::start();
    let (rtp, rtcp) = viewer_ports();
    let mut by_udp = live.viewer();
    let id = by_udp.setup_udp(&rtp, &rtcp).session();
    assert_eq!(by_udp.ask_session("PLAY", &id, "").status, 200);
    let mut by_tcp = live.viewer();
    let id = by_tcp.setup_tcp();
    assert_eq!(by_tcp.ask_session("PLAY", &id, "").status, 200);
    let mut idle = live.viewer();
    assert_eq!(idle.ask(OPTIONS).status, 200);
    let start = Instant::now();
    let farewell = live.control.take().unwrap().shut_down(Duration::from_secs(5)).unwrap();
    assert_eq!((farewell.streams_left, farewell.connections_left), (0, 0));
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    let mut bytes = [0; 2048];
    let len = rtcp.recv(&mut bytes).unwrap();
    assert!(parse(&bytes[..len]).any(|packet| matches!(packet, RtcpPacket::Bye { .. })));
    let mut said_bye = false;
    loop {
        match by_tcp.next() {
            Item::Frame { channel: 1, bytes } => {
                said_bye |= parse(&bytes).any(|p| matches!(p, RtcpPacket::Bye { .. }))
            }
            Item::Frame { .. } => {}
            Item::Answer(answer) => panic!("{answer:?}"),
            Item::End => break,
        }
    }
    assert!(said_bye && idle.is_closed() && by_udp.is_closed());
    assert!(TcpStream::connect(live.address).is_err(), "nobody listens any more");
    assert_eq!(live.open_titles.open_count(), 0);
}

#[test]
fn engine_death_ends_its_sessions_but_not_the_server() {
    let live = Live::start();
    let mut v = live.viewer();
    let (rtp, rtcp) = viewer_ports();
    let id = v.setup_udp(&rtp, &rtcp).session();
    live.engine.lock().unwrap().die();
    live.wait_for("the sessions to end", |s| s.sessions.is_empty() && s.streams == 0);
    assert_eq!(v.ask_session("PLAY", &id, "").status, 454);
}

/// Raises the soft limit of open files to the hard one, and that if we may; returns how many there may be.
fn raise_descriptor_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map(|hard| hard.max(2 * CROWD as u64));
    for most in [most, limit.maximum] {
        if setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_ok() {
            break;
        }
    }
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |now| now as usize)
}

#[test]
fn control_start_without_engine_reports_reason() {
    use millrace_server::control::{ControlConfig, ControlPlane, Sockets};
    let sockets =
        Sockets { listeners: Vec::new(), secure: None, udp: Vec::new(), offload: None, orders: None };
    let error = ControlPlane::start(
        ControlConfig::default(),
        Box::new(rtsp_support::SharedTitles::default()),
        Vec::new(),
        sockets,
    );
    assert_eq!(error.unwrap_err().to_string(), "control: no engine; give at least one");
    let _ = Viewer::connect;
}

#[test]
fn connection_moved_between_engines_continues_without_gap() {
    let live = Live::with(|config| {
        config.session.service.engines = 2;
        config.session.service.admission = AdmissionConfig { is_on: true, ..AdmissionConfig::off() };
    });
    let (first, second) = (Arc::clone(&live.engine), Arc::clone(live.second.as_ref().unwrap()));
    // One by each engine, and a third by the first again.
    let [mut v, _others, mut leaver] = [(); 3].map(|()| live.viewer()).map(|mut v| {
        let id = v.setup_tcp();
        assert_eq!(v.ask_session("PLAY", &id, "").status, 200);
        assert!(matches!(v.next(), Item::Frame { .. }));
        (v, id)
    });
    let (v, id) = (&mut v.0, &v.1);
    assert_eq!(first.lock().unwrap().fake.conns.len(), 2);
    // The first core does less than it should, and late; the other has time. The viewer is slow to take the rest of a frame.
    first.lock().unwrap().fake.keeps_conns = true;
    first.lock().unwrap().core = Core { busy_percent: 100, packets_per_s: 100, is_late: true };
    second.lock().unwrap().core = Core { busy_percent: 10, packets_per_s: 1000, is_late: false };
    let start = Instant::now();
    while first.lock().unwrap().fake.streams.values().any(|stream| stream.dest.conn().is_some()) {
        assert!(start.elapsed() < TIMEOUT, "nothing goes over");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Requests sent now are answered once an engine writes again, in order, and between frames;
    // there are more than could be kept for the connection.
    let asked = 20..1520;
    for cseq in asked.clone() {
        v.send(&format!("GET_PARAMETER rtsp://h/film RTSP/1.0\nCSeq: {cseq}\nSession: {id}"));
    }
    leaver
        .0
        .send(&format!("TEARDOWN rtsp://h/film RTSP/1.0\nCSeq: 9\nSession: {}\nConnection: close", leaver.1));
    live.wait_for("their places", |_| second.lock().unwrap().fake.streams.len() == 3);
    assert_eq!(second.lock().unwrap().fake.conns.len(), 1, "two write to it");
    first.lock().unwrap().core = Core::default();
    first.lock().unwrap().fake.give_all_back();
    for cseq in asked {
        assert_eq!(v.answer().get("cseq"), cseq.to_string());
    }
    let bye = leaver.0.answer();
    assert_eq!((bye.status, bye.get("cseq")), (200, "9"));
    let before = v.frames.len();
    while v.frames.len() < before + 200 {
        assert!(start.elapsed() < TIMEOUT, "{} frames", v.frames.len());
        let Item::Frame { channel, bytes } = v.next() else { panic!("neither asked for") };
        v.frames.push((channel, bytes));
    }
    let media = v.frames.iter().filter(|(channel, _)| *channel == 0);
    let sequences: Vec<_> = media.map(|(_, bytes)| RtpHeader::parse(bytes).unwrap().0.sequence).collect();
    assert!(sequences.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{sequences:?}");
    assert_eq!((first.lock().unwrap().fake.conns.len(), second.lock().unwrap().fake.conns.len()), (0, 2));
    // The opposite direction: a viewer that wants another stream, on the same connection, from an
    // engine that has become full. The answer waits too.
    second.lock().unwrap().core = Core { busy_percent: 95, packets_per_s: 400, is_late: false };
    let mut session = Some(id.clone());
    while first.lock().unwrap().fake.conns.is_empty() {
        assert!(start.elapsed() < 2 * TIMEOUT, "the engine is never full, or the other never idle");
        if let Some(id) = session.take() {
            assert_eq!(v.ask_session("TEARDOWN", &id, "").status, 200);
        }
        let setup = "SETUP rtsp://h/film/track1 RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP/TCP;interleaved=0-1";
        let answer = v.ask(setup);
        assert!(matches!(answer.status, 200 | 453), "{answer:?}");
        session = (answer.status == 200).then(|| answer.session());
    }
    assert_eq!(v.ask_session("PLAY", &session.unwrap(), "").status, 200);
}

/// A connection's engine has sent all of an order and is about to return the connection, and the
/// connection breaks: the order is over then, not after the two minutes that a viewer may take to
/// read the rest.
#[test]
fn order_ends_when_connection_breaks_during_handback() {
    let live = Live::start();
    live.engine.lock().unwrap().fake.keeps_conns = true;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut viewer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, peer) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    let (done, mut outcome) = millrace_web::order_outcome();
    let mut outcome = || pin!(outcome.arrive()).poll(&mut Context::from_waker(Waker::noop()));
    let (title, label) = ("film".to_owned(), "http-0.1".to_owned());
    let (socket, before) = (OrderSocket::Viewer(socket), b"head".to_vec());
    let media = OrderedMedia { title, bytes: 0..13_160, before, ahead_ms: 0, quota: None, segment: None };
    let order = Order { socket, peer, media, label, agent: None, done };
    live.orders.send(order).unwrap();
    viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut got = [0; 4 + 1316];
    viewer.read_exact(&mut got).unwrap();
    assert_eq!(&got[..4], b"head");

    let begun = Instant::now();
    let conn = loop {
        if let Some(&conn) = live.engine.lock().unwrap().fake.kept.first() {
            break conn;
        }
        assert!(begun.elapsed() < TIMEOUT, "the connection is not asked for");
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(outcome().is_pending(), "not over while an engine has it");
    // The engine keeps the connection before the control side has counted it.
    let snapshot = loop {
        let snapshot = live.snapshot();
        if snapshot.counters.deliveries > 0 {
            break snapshot;
        }
        assert!(begun.elapsed() < TIMEOUT, "the delivery is not counted");
    };
    assert_eq!((snapshot.counters.deliveries, snapshot.deliveries, snapshot.connections), (1, 1, 0));
    assert_eq!(snapshot.counters.connections_accepted, 0, "it was counted where it came in");
    live.engine.lock().unwrap().fake.events.push_back(Event::ConnGone { conn, errno: 104 });
    live.bell_rings();
    let delivery = loop {
        match outcome() {
            Poll::Ready(delivery) => break delivery,
            Poll::Pending => assert!(begun.elapsed() < TIMEOUT, "the order is not over"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert_eq!(delivery, Delivery::Broken);
    live.wait_for("the place of its connection", |s| s.deliveries == 0);
    live.assert_empties();
}

/// Opens half of a tunnel (RTSP in HTTP) and sends its head.
fn tunnel_half(live: &Live, method: &str, cookie: &str) -> Viewer {
    let mut half = live.viewer();
    half.send(&format!(
        "{method} /film HTTP/1.1\nHost: h\nx-sessioncookie: {cookie}\nAccept: application/x-rtsp-tunnelled\nContent-Length: 32767"
    ));
    half
}

/// Reads the head of an HTTP response and returns the status. It reads byte by byte because RTSP
/// follows.
fn http_status(half: &mut Viewer) -> u16 {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        half.stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.0 "), "{head}");
    head[9..12].parse().unwrap()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// Sends a request on the POST of a tunnel, in pieces that split base64 groups.
fn post(half: &mut Viewer, request: &str) {
    let text = base64((request.trim().replace('\n', "\r\n") + "\r\n\r\n").as_bytes());
    for piece in text.as_bytes().chunks(31) {
        half.stream.write_all(piece).unwrap();
    }
}

#[test]
fn tunnel_in_http_plays_by_its_get_what_its_post_asks_for() {
    let live = Live::start();
    let mut get = tunnel_half(&live, "GET", "c0ffee");
    assert_eq!(http_status(&mut get), 200);
    let mut fed = tunnel_half(&live, "POST", "c0ffee");
    post(&mut fed, "OPTIONS rtsp://h/film RTSP/1.0\nCSeq: 1");
    assert_eq!(get.answer().get("cseq"), "1");
    post(&mut fed, "SETUP rtsp://h/film/track1 RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP/TCP;interleaved=0-1");
    let id = get.answer().session();
    post(&mut fed, &format!("PLAY rtsp://h/film RTSP/1.0\nCSeq: 3\nSession: {id}"));
    assert_eq!(get.answer().status, 200);
    assert!(matches!(get.next(), Item::Frame { channel: 0, .. }));
    // The viewer may close its POST and open another.
    drop(fed);
    live.wait_for("the end of the POST", |s| s.connections == 1);
    let mut fed = tunnel_half(&live, "POST", "c0ffee");
    post(&mut fed, &format!("PAUSE rtsp://h/film RTSP/1.0\nCSeq: 4\nSession: {id}"));
    assert_eq!(get.answer().get("cseq"), "4");
    // The tunnel and its session end with the GET.
    drop(get);
    assert!(fed.is_closed());
    live.assert_empties();
}

#[test]
fn tunnel_in_http_with_halves_that_do_not_fit_is_refused() {
    let live = Live::start();
    // A POST without a GET.
    let mut alone = tunnel_half(&live, "POST", "1");
    assert_eq!(http_status(&mut alone), 404);
    assert!(alone.is_closed());
    // A second GET and a second POST with the same cookie are refused; the first ones continue.
    let mut get = tunnel_half(&live, "GET", "1");
    assert_eq!(http_status(&mut get), 200);
    let mut second = tunnel_half(&live, "GET", "1");
    assert_eq!(http_status(&mut second), 409);
    let mut fed = tunnel_half(&live, "POST", "1");
    post(&mut fed, "OPTIONS * RTSP/1.0\nCSeq: 1");
    assert_eq!(get.answer().status, 200);
    let mut second = tunnel_half(&live, "POST", "1");
    assert_eq!(http_status(&mut second), 409);
    post(&mut fed, "OPTIONS * RTSP/1.0\nCSeq: 2");
    assert_eq!(get.answer().get("cseq"), "2");
    // A tunnel within a tunnel, and one after another message.
    post(&mut fed, "GET / HTTP/1.1\nx-sessioncookie: 2");
    assert_eq!(http_status(&mut get), 400);
    assert!(get.is_closed() && fed.is_closed());
    let mut spoken = live.viewer();
    assert_eq!(spoken.ask(OPTIONS).status, 200);
    spoken.send("GET / HTTP/1.1\nx-sessioncookie: 3");
    assert_eq!(http_status(&mut spoken), 400);
    // A body that is not base64, and an HTTP request without a cookie.
    let mut get = tunnel_half(&live, "GET", "4");
    assert_eq!(http_status(&mut get), 200);
    let mut fed = tunnel_half(&live, "POST", "4");
    fed.stream.write_all(b"T1BU!!").unwrap();
    assert_eq!(get.answer().status, 400);
    assert!(get.is_closed());
    let mut plain = live.viewer();
    plain.send("GET / HTTP/1.1\nHost: h");
    assert_eq!(plain.answer().status, 400);
    drop((alone, second, fed, spoken, plain));
    live.assert_empties();
}
