//! A real control plane on loopback sockets, with an engine that sends made-up packets, and a viewer.
#![allow(unreachable_pub)]

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Wall};

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::seam::Clock;
use millrace_core::wire::rtcp::{MAX_REPORT_BYTES, SenderReport, write_sender_report};
use millrace_core::wire::rtp::RtpHeader;
use millrace_offload::UdpPair;
use millrace_offload::bell::EventBell;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::command::{Command, Dest, Event, StopReason};
use millrace_server::admission::EngineFigures;
use millrace_server::limits::ADMISSION_LOOK_NS;
use millrace_web::Order;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use millrace_server::control::{ControlConfig, ControlHandle, ControlPlane, EnginePort, Snapshot, Sockets};

use crate::rtsp_support::{Answer, FakeEngine, SECOND, SharedTitles};

/// Longest that anything in these tests may take on a machine under load.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// Payload of a made-up packet.
const PAYLOAD: usize = 1316;

/// State shared by the engine thread and its handle.
pub struct EngineState {
    pub fake: FakeEngine,
    conns: HashMap<u32, TcpStream>,
    rtp: UdpSocket,
    rtcp: UdpSocket,
    /// Packets sent of each stream.
    sent: HashMap<millrace_core::ids::StreamId, u32>,
    /// The command ring has no room.
    pub full: bool,
    /// The load of its core, as reported to admission.
    pub core: Core,
    figures: EngineFigures,
    finished: bool,
}

/// The load of a made-up core in each of admission's looks.
#[derive(Clone, Copy, Default)]
pub struct Core {
    pub busy_percent: u64,
    pub packets_per_s: u64,
    /// All of them late.
    pub is_late: bool,
}

pub struct FakePort {
    pub state: Arc<Mutex<EngineState>>,
    bell: Arc<EventBell>,
}

impl EngineState {
    fn take(&mut self, command: Command) {
        let now = MonotonicClock.now();
        self.run(now); // what is due has left before any command is looked at
        match command {
            Command::ConnAdd { conn, socket } => {
                let stream = TcpStream::from(socket.into_fd().expect("it is the kernel's"));
                assert!(self.conns.insert(conn.0, stream).is_none(), "{conn:?} added twice");
                self.fake.conns.insert(conn.0);
            }
            Command::ConnWrite { conn, bytes } => {
                if let Some(stream) = self.conns.get_mut(&conn.0)
                    && write_all(stream, &bytes).is_err()
                {
                    self.fake.events.push_back(Event::ConnGone { conn, errno: 104 });
                }
                self.fake.events.push_back(Event::Recycle { bytes });
            }
            Command::ConnRemove { conn } => {
                self.conns.remove(&conn.0);
                self.fake.take(now, Command::ConnRemove { conn });
            }
            Command::ConnReturn { conn } => {
                self.conns.remove(&conn.0);
                self.fake.take(now, Command::ConnReturn { conn });
            }
            Command::Stop => {
                let streams: Vec<_> = self.fake.streams.keys().copied().collect();
                for stream in streams {
                    let dest = self.fake.streams[&stream].dest;
                    self.send_bye(dest);
                    self.fake.end_run(stream, StopReason::ShutDown);
                }
                self.conns.clear(); // its descriptors go with the thread
                self.finished = true;
            }
            Command::Play { stream, at, ahead_ms, run } => {
                self.sent.insert(stream, run.from);
                self.fake.take(now, Command::Play { stream, at, ahead_ms, run });
            }
            other => self.fake.take(now, other),
        }
    }

    /// Sends the packets that are due.
    fn run(&mut self, now: millrace_core::time::Instant) {
        self.fake.advance(now);
        let mut due = Vec::new();
        for (&id, stream) in &self.fake.streams {
            let Some(play) = stream.playing else { continue };
            let sent = self.sent.entry(id).or_insert(play.spec.from);
            while *sent < stream.next {
                due.push((stream.dest, *sent, play.sequence(*sent)));
                *sent += 1;
            }
        }
        for (dest, packet, sequence) in due {
            let header = RtpHeader {
                marker: false,
                payload_type: 33,
                sequence,
                timestamp: packet * 225,
                ssrc: 0x1234_abcd,
            };
            let mut datagram = header.emit().to_vec();
            datagram.resize(RTP_HEADER_BYTES + PAYLOAD, packet as u8);
            self.send(dest, false, &datagram);
        }
    }

    /// The thread ends without a word.
    pub fn die(&mut self) {
        self.conns.clear();
        self.finished = true;
        self.fake.streams.clear();
    }

    fn send_bye(&mut self, dest: Dest) {
        let report = SenderReport { ssrc: 0x1234_abcd, ntp: 0, rtp_timestamp: 0, packets: 0, octets: 0 };
        let mut bytes = [0; MAX_REPORT_BYTES];
        let len = write_sender_report(&mut bytes, &report, "test", true);
        self.send(dest, true, &bytes[..len]);
    }

    fn send(&mut self, dest: Dest, rtcp: bool, datagram: &[u8]) {
        match dest {
            Dest::Udp { .. } | Dest::Multicast { .. } => {
                let socket = if rtcp { &self.rtcp } else { &self.rtp };
                if let Some(to) = dest.address(rtcp) {
                    let _ = socket.send_to(datagram, to);
                }
            }
            Dest::Interleaved { conn, rtp_channel, rtcp_channel } => {
                let channel = if rtcp { rtcp_channel } else { rtp_channel };
                let mut frame = vec![b'$', channel];
                frame.extend((datagram.len() as u16).to_be_bytes());
                frame.extend(datagram);
                if let Some(stream) = self.conns.get_mut(&conn.0) {
                    let _ = write_all(stream, &frame);
                }
            }
            Dest::Bytes { conn } => {
                if let Some(stream) = self.conns.get_mut(&conn.0) {
                    let _ = write_all(stream, datagram.get(RTP_HEADER_BYTES..).unwrap_or_default());
                }
            }
        }
    }
}

/// The descriptor does not block, and this engine has nothing better to do.
fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    let start = Wall::now();
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error)
                if error.kind() == ErrorKind::WouldBlock && start.elapsed() < Duration::from_millis(200) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl EnginePort for FakePort {
    fn send(&mut self, command: Command) -> Result<(), Command> {
        let mut state = self.state.lock().unwrap();
        if state.full || state.finished {
            return Err(command);
        }
        state.take(command);
        drop(state);
        self.bell.ring();
        Ok(())
    }
    fn poll_event(&mut self) -> Option<Event> {
        let mut state = self.state.lock().unwrap();
        if state.fake.silent { None } else { state.fake.events.pop_front() }
    }
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }
    fn rearm(&mut self) {
        self.bell.clear();
        self.bell.announce_sleep();
    }
    fn figures(&self) -> Option<EngineFigures> {
        let mut state = self.state.lock().unwrap();
        let Core { busy_percent, packets_per_s, is_late } = state.core;
        let packets = packets_per_s * ADMISSION_LOOK_NS / SECOND;
        let figures = &mut state.figures;
        figures.seen_ns += ADMISSION_LOOK_NS;
        figures.busy_ns += ADMISSION_LOOK_NS * busy_percent / 100;
        figures.cpu_ns = figures.busy_ns;
        figures.packets += packets;
        figures.overdue += if is_late { packets } else { 0 };
        Some(*figures)
    }
    fn is_finished(&self) -> bool {
        self.state.lock().unwrap().finished
    }
}

/// The running server.
pub struct Live {
    pub control: Option<ControlHandle>,
    pub address: SocketAddr,
    pub engine: Arc<Mutex<EngineState>>,
    /// Another one, if there are two.
    pub second: Option<Arc<Mutex<EngineState>>>,
    pub bell: Arc<EventBell>,
    pub open_titles: SharedTitles,
    /// Takes orders of a web side.
    pub orders: UnboundedSender<Order>,
    pub rtcp: SocketAddr,
    pub rtp: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The state shared by an engine and its thread, its port, and the thread.
type Started = (Arc<Mutex<EngineState>>, FakePort, JoinHandle<()>);

/// Starts an engine that sends from these sockets until it is stopped.
fn start_engine(rtp: &UdpSocket, rtcp: &UdpSocket, stop: &Arc<AtomicBool>) -> Started {
    let bell = Arc::new(EventBell::new().unwrap());
    bell.announce_sleep();
    let state = EngineState {
        fake: FakeEngine::new(),
        conns: HashMap::new(),
        rtp: rtp.try_clone().unwrap(),
        rtcp: rtcp.try_clone().unwrap(),
        sent: HashMap::new(),
        full: false,
        core: Core::default(),
        figures: EngineFigures::default(),
        finished: false,
    };
    let engine = Arc::new(Mutex::new(state));
    let (state, ringing, stopping) = (Arc::clone(&engine), Arc::clone(&bell), Arc::clone(stop));
    let thread = std::thread::spawn(move || {
        while !stopping.load(Ordering::Relaxed) {
            let mut state = state.lock().unwrap();
            state.run(MonotonicClock.now());
            if !state.fake.silent && !state.fake.events.is_empty() {
                ringing.ring();
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let port = FakePort { state: Arc::clone(&engine), bell };
    (engine, port, thread)
}

impl Live {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ControlConfig)) -> Self {
        let local = (Ipv4Addr::LOCALHOST, 0);
        let listener = TcpListener::bind(local).unwrap();
        let (rtp, rtcp) = (UdpSocket::bind(local).unwrap(), UdpSocket::bind(local).unwrap());
        let (rtp_address, rtcp_address) = (rtp.local_addr().unwrap(), rtcp.local_addr().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let mut config = ControlConfig::default();
        change(&mut config);
        let (engine, port, thread) = start_engine(&rtp, &rtcp, &stop);
        let bell = Arc::clone(&port.bell);
        let mut ports: Vec<Box<dyn EnginePort>> = vec![Box::new(port)];
        let (mut second, mut threads) = (None, vec![thread]);
        if config.session.service.engines == 2 {
            let (engine, port, thread) = start_engine(&rtp, &rtcp, &stop);
            second = Some(engine);
            ports.push(Box::new(port));
            threads.push(thread);
        }
        let open_titles = SharedTitles::default();
        let (orders, ordered) = unbounded_channel();
        let sockets = Sockets {
            listeners: vec![listener],
            secure: None,
            udp: vec![UdpPair { rtp, rtcp }],
            offload: None,
            orders: Some(ordered),
        };
        let control = ControlPlane::start(config, Box::new(open_titles.clone()), ports, sockets).unwrap();
        let address = control.addresses()[0];
        Self {
            control: Some(control),
            address,
            engine,
            second,
            bell,
            open_titles,
            orders,
            rtcp: rtcp_address,
            rtp: rtp_address,
            stop,
            threads,
        }
    }

    /// Signals that the engine has events.
    pub fn bell_rings(&self) {
        self.bell.ring();
    }

    pub fn viewer(&self) -> Viewer {
        Viewer::connect(self.address)
    }

    pub fn snapshot(&self) -> Snapshot {
        self.control.as_ref().unwrap().snapshot().expect("the control thread answers")
    }

    /// Waits until the control plane stands as described.
    pub fn wait_for(&self, what: &str, is: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let start = Wall::now();
        loop {
            let snapshot = self.snapshot();
            if is(&snapshot) {
                return snapshot;
            }
            assert!(start.elapsed() < TIMEOUT, "{what} did not come: {snapshot:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn assert_empties(&self) {
        self.wait_for("an empty server", |s| s.sessions.is_empty() && s.streams == 0 && s.reserved_rate == 0);
        assert_eq!(self.open_titles.open_count(), 0);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        drop(self.control.take());
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the engine thread panicked");
        }
    }
}

/// An item received over the RTSP connection.
#[derive(Debug, PartialEq)]
pub enum Item {
    Answer(Answer),
    Frame { channel: u8, bytes: Vec<u8> },
    End,
}

/// A player's side of an RTSP connection.
pub struct Viewer {
    pub stream: TcpStream,
    buf: Vec<u8>,
    /// Frames that came before an answer that was waited for.
    pub frames: Vec<(u8, Vec<u8>)>,
}

impl Viewer {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buf: Vec::new(), frames: Vec::new() }
    }

    /// Sends a request whose lines are written with `\n`.
    pub fn send(&mut self, request: &str) {
        let text = request.trim().replace('\n', "\r\n") + "\r\n\r\n";
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    pub fn ask(&mut self, request: &str) -> Answer {
        self.send(request);
        self.answer()
    }

    pub fn answer(&mut self) -> Answer {
        loop {
            match self.next() {
                Item::Answer(answer) => return answer,
                Item::Frame { channel, bytes } => self.frames.push((channel, bytes)),
                Item::End => panic!("the connection ended before an answer"),
            }
        }
    }

    pub fn next(&mut self) -> Item {
        loop {
            if let Some(item) = self.take() {
                return item;
            }
            let mut bytes = [0; 65_536];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Item::End,
                Ok(n) => self.buf.extend(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Item::End,
                Err(error) => panic!("{error}: nothing came"),
            }
        }
    }

    /// Whether the server closes the connection without another word.
    pub fn is_closed(&mut self) -> bool {
        loop {
            match self.next() {
                Item::End => return true,
                Item::Frame { .. } => {}
                Item::Answer(_) => return false,
            }
        }
    }

    fn take(&mut self) -> Option<Item> {
        if self.buf.first() == Some(&b'$') {
            let header = self.buf.get(..4)?;
            let (channel, len) = (header[1], usize::from(u16::from_be_bytes([header[2], header[3]])));
            let bytes = self.buf.get(4..4 + len)?.to_vec();
            self.buf.drain(..4 + len);
            return Some(Item::Frame { channel, bytes });
        }
        let head = self.buf.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
        let text = std::str::from_utf8(&self.buf[..head]).expect("a reply is text: a frame was split");
        assert!(text.starts_with("RTSP/1.0 "), "neither reply nor frame: {text:?}");
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let total = head + length.map_or(0, |length| length.parse::<usize>().unwrap());
        let bytes = self.buf.get(..total)?.to_vec();
        self.buf.drain(..total);
        Some(Item::Answer(Answer::parse(&bytes)))
    }

    /// SETUP interleaved on `film`.
    pub fn setup_tcp(&mut self) -> String {
        let answer =
            self.ask("SETUP rtsp://h/film/track1 RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP/TCP;interleaved=0-1");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.session()
    }

    /// SETUP by UDP on `film`, to these sockets.
    pub fn setup_udp(&mut self, rtp: &UdpSocket, rtcp: &UdpSocket) -> Answer {
        let (rtp, rtcp) = (rtp.local_addr().unwrap().port(), rtcp.local_addr().unwrap().port());
        let answer = self.ask(&format!(
            "SETUP rtsp://h/film/track1 RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP;unicast;client_port={rtp}-{rtcp}"
        ));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }

    pub fn ask_session(&mut self, method: &str, session: &str, more: &str) -> Answer {
        self.ask(&format!("{method} rtsp://h/film/ RTSP/1.0\nCSeq: 5\nSession: {session}\n{more}"))
    }
}

/// Two UDP sockets of a viewer.
pub fn viewer_ports() -> (UdpSocket, UdpSocket) {
    let socket = || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    };
    (socket(), socket())
}
