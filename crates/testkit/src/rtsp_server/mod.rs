//! A small RTSP server that does exactly as configured: it follows a [`Behaviour`], so that a test
//! knows the exact contents of a report. It shares no code with the product.

mod behaviour;
pub mod fec;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use crate::steady::steady;
pub use behaviour::{Behaviour, PAYLOAD, RtpInfo, SSRC, TS, film};
use fec::{FecPacket, fec_packets};

/// The server's observations.
#[derive(Default)]
pub struct Seen {
    /// First lines of requests, with the headers that tests look at.
    pub requests: Mutex<Vec<String>>,
    /// RTCP packets that came from clients.
    pub rtcp: AtomicU32,
    /// Of those, compounds with a BYE.
    pub byes: AtomicU32,
    /// RTP packets that came from clients: hole punching.
    pub punches: AtomicU32,
}

impl Seen {
    pub fn methods(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    }

    pub fn count(&self, method: &str) -> usize {
        self.methods().iter().filter(|m| *m == method).count()
    }

    pub fn request(&self, method: &str) -> String {
        let requests = self.requests.lock().unwrap();
        requests.iter().find(|line| line.starts_with(method)).cloned().unwrap_or_default()
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Seen::default()));
        let behaviour = Arc::new(behaviour);
        let thread = {
            let (stop, seen) = (stop.clone(), seen.clone());
            std::thread::spawn(move || {
                let mut threads = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            let (stop, seen, behaviour) = (stop.clone(), seen.clone(), behaviour.clone());
                            threads.push(std::thread::spawn(move || {
                                ClientSession::new(stream, behaviour, seen).run(&stop);
                            }));
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            })
        };
        Self { address, seen, stop, thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("rtsp://{}/film", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            if !std::thread::panicking() {
                joined.unwrap();
            }
        }
    }
}

enum Way {
    None,
    Udp { rtp: UdpSocket, rtcp: UdpSocket, to: SocketAddr, to_rtcp: SocketAddr },
    Tcp,
}

struct Playing {
    started: Instant,
    from: u32,
    /// The packets left to send, in order of sending.
    order: Vec<u32>,
    next: usize,
    /// FEC that is left to send, in order.
    fec: std::vec::IntoIter<FecPacket>,
    last_sent: Instant,
    /// From the packet before the stall, so that the gap is as long as asked for however busy the machine is.
    stalled_until: Option<Instant>,
}

struct ClientSession {
    stream: TcpStream,
    behaviour: Arc<Behaviour>,
    seen: Arc<Seen>,
    input: Vec<u8>,
    way: Way,
    playing: Option<Playing>,
    was_asked_to_play: bool,
    /// Next packet after a pause.
    at: u32,
    sent_packets: u32,
    sent_octets: u32,
    said_bye: bool,
    /// What FEC SETUP asked for.
    wish: Option<String>,
    /// All packets from here on are sent.
    since: u32,
    open: bool,
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    request.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

impl ClientSession {
    fn new(stream: TcpStream, behaviour: Arc<Behaviour>, seen: Arc<Seen>) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_micros(500))).unwrap();
        Self {
            stream,
            behaviour,
            seen,
            input: Vec::new(),
            way: Way::None,
            playing: None,
            was_asked_to_play: false,
            at: 0,
            sent_packets: 0,
            sent_octets: 0,
            said_bye: false,
            wish: None,
            since: 0,
            open: true,
        }
    }

    fn run(mut self, stop: &AtomicBool) {
        let mut buffer = [0; 4096];
        while self.open && !stop.load(Ordering::Relaxed) {
            match self.stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(len) => self.input.extend_from_slice(&buffer[..len]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
            // RTCP first: a BYE is sent before its TEARDOWN, and must be counted before that is answered.
            self.take_rtcp();
            self.take_requests();
            self.send_due();
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let piece = self.behaviour.split.unwrap_or(usize::MAX);
        for part in bytes.chunks(piece.min(bytes.len().max(1))) {
            if self.stream.write_all(part).is_err() {
                self.open = false;
            }
        }
    }

    fn take_requests(&mut self) {
        loop {
            if self.input.first() == Some(&b'$') {
                let Some(header) = self.input.get(..4) else { return };
                let end = 4 + usize::from(u16::from_be_bytes([header[2], header[3]]));
                if self.input.len() < end {
                    return;
                }
                let frame: Vec<u8> = self.input.drain(..end).collect();
                assert_eq!(frame[1], 1, "only RTCP comes from a client");
                assert!(self.was_asked_to_play, "MediaMTX hangs up on a frame before PLAY");
                self.count_rtcp(&frame[4..]);
                continue;
            }
            let Some(end) = self.input.windows(4).position(|w| w == b"\r\n\r\n") else { return };
            let request: Vec<u8> = self.input.drain(..end + 4).collect();
            self.answer(&String::from_utf8(request).unwrap());
        }
    }

    fn count_rtcp(&self, compound: &[u8]) {
        self.seen.rtcp.fetch_add(1, Ordering::Relaxed);
        let mut rest = compound;
        while rest.len() >= 4 {
            if rest[1] == 203 {
                self.seen.byes.fetch_add(1, Ordering::Relaxed);
            }
            let len = 4 * (usize::from(u16::from_be_bytes([rest[2], rest[3]])) + 1);
            rest = &rest[len.min(rest.len())..];
        }
    }

    fn take_rtcp(&mut self) {
        let mut buffer = [0; 2048];
        if let Way::Udp { rtp, rtcp, .. } = &self.way {
            while rtp.recv_from(&mut buffer).is_ok() {
                self.seen.punches.fetch_add(1, Ordering::Relaxed);
            }
            while let Ok((len, _)) = rtcp.recv_from(&mut buffer) {
                self.count_rtcp(&buffer[..len]);
            }
        }
    }

    fn answer(&mut self, request: &str) {
        let method = request.split(' ').next().unwrap().to_owned();
        let kept: Vec<&str> = request
            .lines()
            .enumerate()
            .filter(|(n, line)| {
                *n == 0 || ["Range", "Transport", "X-"].iter().any(|name| line.starts_with(name))
            })
            .map(|(_, line)| line)
            .collect();
        self.seen.requests.lock().unwrap().push(kept.join(" | "));
        let cseq = header(request, "CSeq").unwrap().to_owned();
        if let Some(garbage) = self.behaviour.garbage {
            return self.write(garbage);
        }
        let session = "Session: 4711";
        let (status, extra, body) = match method.as_str() {
            "OPTIONS" => {
                ("200 OK", "Public: OPTIONS, DESCRIBE, SETUP, PLAY, PAUSE, GET_PARAMETER\r\n".to_owned(), "")
            }
            "DESCRIBE" if self.behaviour.describe_status.is_some() => {
                (self.behaviour.describe_status.unwrap(), String::new(), "")
            }
            "DESCRIBE" => ("200 OK", "Content-Type: application/sdp\r\n".to_owned(), SDP),
            "SETUP" => self.set_up(header(request, "Transport").unwrap(), header(request, "X-Millrace-FEC")),
            "PLAY" => {
                self.was_asked_to_play = true;
                self.play(header(request, "Range"))
            }
            "PAUSE" => {
                self.pause();
                ("200 OK", format!("{session}\r\n"), "")
            }
            "TEARDOWN" if self.behaviour.ignore_teardown => return,
            "TEARDOWN" => {
                self.playing = None;
                ("200 OK", String::new(), "")
            }
            _ => ("200 OK", format!("{session}\r\n"), ""),
        };
        let length =
            if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        self.write(format!("RTSP/1.0 {status}\r\nCSeq: {cseq}\r\n{extra}{length}\r\n{body}").as_bytes());
    }

    fn set_up(&mut self, transport: &str, fec: Option<&str>) -> (&'static str, String, &'static str) {
        let session = format!("Session: 4711;timeout={}\r\n", self.behaviour.session_timeout_s);
        if let Some(ports) = transport.split("client_port=").nth(1) {
            if self.behaviour.refuse_udp {
                return ("461 Unsupported Transport", String::new(), "");
            }
            let (first, second) = ports.split(';').next().unwrap().split_once('-').unwrap();
            let ip = self.stream.peer_addr().unwrap().ip();
            let bind = || {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                socket.set_nonblocking(true).unwrap();
                socket
            };
            let (rtp, rtcp) = (bind(), bind());
            let server =
                format!("{}-{}", rtp.local_addr().unwrap().port(), rtcp.local_addr().unwrap().port());
            let to = SocketAddr::new(ip, first.parse().unwrap());
            let to_rtcp = SocketAddr::new(ip, second.parse().unwrap());
            self.way = Way::Udp { rtp, rtcp, to, to_rtcp };
            let transport = format!("Transport: {transport};server_port={server};ssrc={SSRC:08X}\r\n");
            self.wish = fec.map(str::to_owned);
            let sending = self.behaviour.fec.as_ref().zip(fec);
            let grant = sending.map_or(String::new(), |(sending, wish)| sending.grant(wish, to.port()));
            ("200 OK", session + &transport + &grant, "")
        } else {
            self.way = Way::Tcp;
            ("200 OK", format!("{session}Transport: {transport}\r\n"), "")
        }
    }

    fn play(&mut self, range: Option<&str>) -> (&'static str, String, &'static str) {
        let b = self.behaviour.clone();
        if let Some(range) = range {
            let start: f64 = range.strip_prefix("npt=").unwrap().split('-').next().unwrap().parse().unwrap();
            self.at = (start / b.interval.as_secs_f64()).round() as u32;
            self.since = self.at;
            if self.at >= b.packets() {
                return ("457 Invalid Range", String::new(), "");
            }
        }
        let from = self.at;
        let end = b.stop_before.unwrap_or(b.packets());
        let mut order: Vec<u32> = (from..end).collect();
        for (moved, behind) in &b.delay {
            if let Some(at) = order.iter().position(|n| n == moved) {
                order.remove(at);
                let behind = order.iter().position(|n| n == behind).unwrap();
                order.insert(behind + 1, *moved);
            }
        }
        for double in &b.double {
            if let Some(at) = order.iter().position(|n| n == double) {
                order.insert(at + 1, *double);
            }
        }
        let started = Instant::now() + b.first_delay;
        self.playing = Some(Playing {
            started,
            from,
            order,
            next: 0,
            fec: self.fec_from(from),
            last_sent: started,
            stalled_until: None,
        });
        self.said_bye = false;
        let off = match b.rtp_info {
            RtpInfo::Exact => Some(0),
            RtpInfo::Off(off) => Some(off),
            RtpInfo::Absent => None,
        };
        let sequence = b.first_sequence.wrapping_add(from as u16);
        let timestamp = b.first_timestamp.wrapping_add(b.ticks(from));
        let info = off.map_or(String::new(), |off| {
            let (sequence, timestamp) =
                (sequence.wrapping_add(off), timestamp.wrapping_add(u32::from(off) * 1000));
            format!("RTP-Info: url=rtsp://x/film/track1;seq={sequence};rtptime={timestamp}\r\n")
        });
        let start = f64::from(from) * b.interval.as_secs_f64();
        let end = f64::from(b.packets()) * b.interval.as_secs_f64();
        ("200 OK", format!("Session: 4711\r\nRange: npt={start:.3}-{end:.3}\r\n{info}"), "")
    }

    /// Returns the FEC granted, of the rows that are sent whole, and due from here.
    fn fec_from(&self, from: u32) -> std::vec::IntoIter<FecPacket> {
        let sending = self.behaviour.fec.as_ref().filter(|sending| sending.refused.is_none());
        let Some((sending, wish)) = sending.zip(self.wish.as_ref()) else { return Vec::new().into_iter() };
        let mut packets = fec_packets(&self.behaviour, sending);
        packets.retain(|packet| packet.row >= self.since && packet.behind >= from);
        packets.retain(|packet| wish == "all" || !packet.is_further);
        packets.into_iter()
    }

    /// Sends the FEC that is due behind media packet `packet`.
    fn send_fec(&mut self, packet: u32) {
        let (Way::Udp { rtp, to, .. }, Some(playing)) = (&self.way, &mut self.playing) else { return };
        while let Some(fec) = playing.fec.as_slice().first().filter(|fec| fec.behind <= packet) {
            let port = to.port() + if fec.is_further { 6 } else { 2 };
            rtp.send_to(&fec.datagram, (to.ip(), port)).unwrap();
            playing.fec.next();
        }
    }

    fn pause(&mut self) {
        if let Some(playing) = self.playing.take() {
            self.at = playing.order.get(playing.next).copied().unwrap_or(self.at);
        }
    }

    fn due(&self, playing: &Playing, packet: u32) -> Instant {
        let b = &self.behaviour;
        let due = playing.started + b.interval * (packet - playing.from);
        match b.stall {
            Some((from, _)) if packet >= from => playing.stalled_until.map_or(due, |until| due.max(until)),
            _ => due,
        }
    }

    fn send_due(&mut self) {
        while let Some(playing) = &self.playing {
            let Some(packet) = playing.order.get(playing.next).copied() else { return self.bye_if_due() };
            // A packet that is sent late goes with those before it.
            let before = playing.next.checked_sub(1).map_or(packet, |at| playing.order[at]);
            let is_second = playing.next > 0 && before == packet;
            if Instant::now() < self.due(playing, packet.max(before)) {
                return;
            }
            if self.behaviour.close_before.is_some_and(|close| packet >= close) {
                self.open = false;
                return;
            }
            if self.sent_packets.is_multiple_of(self.behaviour.sr_every) {
                let report = self.sender_report(false);
                self.send_rtcp(&report);
            }
            let rtp = self.behaviour.rtp(packet);
            let is_hole = self.behaviour.holes.contains(&packet);
            let is_lost = is_hole || self.behaviour.drop.contains(&packet);
            match &self.way {
                _ if is_lost => {}
                Way::Udp { rtp: socket, to, .. } => {
                    if !self.behaviour.mute_udp {
                        socket.send_to(&rtp, to).unwrap();
                    }
                }
                Way::Tcp => self.write_frame(0, &rtp),
                Way::None => panic!("PLAY before SETUP"),
            }
            self.send_fec(packet);
            if !is_second && !is_hole {
                self.sent_packets += 1;
                self.sent_octets += rtp.len() as u32 - 12;
            }
            if let Some(playing) = &mut self.playing {
                playing.next += 1;
                playing.last_sent = Instant::now();
                if let Some((_, time)) = self.behaviour.stall.filter(|(from, _)| packet + 1 == *from) {
                    playing.stalled_until = Some(playing.last_sent + time);
                }
            }
        }
    }

    fn write_frame(&mut self, channel: u8, bytes: &[u8]) {
        let mut frame = vec![b'$', channel, (bytes.len() >> 8) as u8, bytes.len() as u8];
        frame.extend_from_slice(bytes);
        self.write(&frame);
    }

    fn bye_if_due(&mut self) {
        let Some((playing, bye)) = self.playing.as_ref().zip(self.behaviour.bye) else { return };
        if !self.said_bye && playing.last_sent.elapsed() >= bye {
            self.said_bye = true;
            let report = self.sender_report(true);
            self.send_rtcp(&report);
        }
    }

    fn sender_report(&self, bye: bool) -> Vec<u8> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let playing = self.playing.as_ref().unwrap();
        let played = Instant::now().saturating_duration_since(playing.started);
        let b = &self.behaviour;
        let ticks = b.ticks(playing.from).wrapping_add((played.as_micros() * 9 / 100) as u32);
        let mut bytes = vec![0x80, 200, 0, 6];
        bytes.extend(SSRC.to_be_bytes());
        bytes.extend(((now.as_secs() + 2_208_988_800) as u32).to_be_bytes());
        bytes.extend((((u64::from(now.subsec_nanos())) << 32) / 1_000_000_000).to_be_bytes()[4..].to_vec());
        bytes.extend(b.first_timestamp.wrapping_add(ticks).to_be_bytes());
        bytes.extend((self.sent_packets + b.sr_error).to_be_bytes());
        bytes.extend(self.sent_octets.to_be_bytes());
        if bye {
            bytes.extend([0x81, 203, 0, 1]);
            bytes.extend(SSRC.to_be_bytes());
        }
        bytes
    }

    fn send_rtcp(&mut self, bytes: &[u8]) {
        match &self.way {
            Way::Udp { rtcp, to_rtcp, .. } => {
                if !self.behaviour.mute_udp {
                    rtcp.send_to(bytes, to_rtcp).unwrap();
                }
            }
            Way::Tcp => self.write_frame(1, bytes),
            Way::None => {}
        }
    }
}

const SDP: &str = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=Test film\r\nt=0 0\r\na=control:*\r\na=range:npt=0-10\r\n\
                   m=video 0 RTP/AVP 33\r\na=control:track1\r\n";
