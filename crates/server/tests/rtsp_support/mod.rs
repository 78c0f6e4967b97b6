//! A small world around the session server: a library of made-up titles, an engine without packets, and a clock that
//! stands still until it is told to move.
#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use millrace_core::ids::TitleRef;
use millrace_core::packet::WireLayout;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::{Timeline, sequence_of};
use millrace_offload::command::{Command, Cut, Dest, Numbering, RunSpec};
use millrace_server::control::Counters;
use millrace_server::rtsp::{Framer, Incoming};
use millrace_server::service::{
    AccessPoint, AccessPoints, ConnKey, Entry, Event, FecMatrix, Library, OpenError, Presentation,
    ServiceConfig, TimeBase, Track,
};
use millrace_server::session::{Entropy, Output, Server, ServerConfig};

mod engine;

pub use engine::FakeEngine;

pub const SECOND: u64 = 1_000_000_000;
pub const MS: u64 = 1_000_000;
/// Packets a second of every made-up title; one packet lasts 225 ticks.
pub const PACKETS_PER_S: u64 = 400;
/// Rows of 4 data units and 2 parity units of 20 packets.
pub const MATRIX: FecMatrix = FecMatrix { data_units: 4, parity_units: 2, unit_packets: 20 };
const TORN: &str = "2 members lost (b, c), 1 may be";
/// An access point every two seconds.
pub const GOP_PACKETS: u32 = 800;

/// A title whose packet `n` has media time `225 n`.
pub struct Even {
    pub packets: u32,
    /// The file of times cannot be read.
    pub times_broken: bool,
}

/// The same title in packets `factor` times as large.
struct Larger {
    times: Arc<dyn AccessPoints>,
    packets: u32,
    factor: u32,
}

impl AccessPoints for Larger {
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let packet = self.times.access_at_or_before(time).packet / self.factor;
        AccessPoint { packet, time: MediaTicks(u64::from(packet * self.factor) * 225) }
    }
    fn packet_at(&self, time: MediaTicks) -> u32 {
        self.times.packet_at(time).div_ceil(self.factor).min(self.packets)
    }
    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        self.times.time_of(packet * self.factor)
    }
}

impl AccessPoints for Even {
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let packet = ((time.0 / 225) as u32).min(self.packets - 1) / GOP_PACKETS * GOP_PACKETS;
        AccessPoint { packet, time: MediaTicks(u64::from(packet) * 225) }
    }
    fn packet_at(&self, time: MediaTicks) -> u32 {
        (time.0.div_ceil(225) as u32).min(self.packets)
    }
    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        (!self.times_broken).then(|| MediaTicks(u64::from(packet) * 225))
    }
}

pub fn entry(name: &str, seconds: u64) -> Entry {
    let packets = (seconds * PACKETS_PER_S) as u32;
    Entry {
        name: name.to_owned(),
        duration: MediaTicks(seconds * 90_000),
        presentation: Presentation::default(),
        mean_rate: BitRate(4_000_000),
        peak_rate: BitRate(6_000_000),
        packets,
        timeline: Timeline { ssrc: 0x1234_abcd, timestamp_base: 1_000_000 },
        layout: WireLayout::new(1316).unwrap(),
        fec: None,
        access: Arc::new(Even { packets, times_broken: false }),
    }
}

/// A title whose time stamps begin at so many seconds from so many seconds of film on, and whose last picture is shown 0.7 s
/// after its last packet.
fn with_stamps(seconds: u64, bases: &[(u64, i64)]) -> Entry {
    let base = |&(time, first): &(u64, i64)| TimeBase {
        time: MediaTicks(time * 90_000),
        first_pts: (first * 90_000).rem_euclid(1 << 33).cast_unsigned(),
    };
    let end = MediaTicks(seconds * 90_000 + 63_000);
    Entry {
        presentation: Presentation::new(Some(end), bases.iter().map(base).collect()),
        ..entry("film", seconds)
    }
}

/// Titles with stamps of their own (`recording`, `wrapping`, `feature`, `joined`), `film` (60 s), `other` (20 s), `long` (1000 s: sequence numbers wrap), `broken` (cannot be opened), `crowded`
/// (the cache is full), `blind` (packet times cannot be read), `safe` (60 s, with parity), `frail` (the same, its second
/// parity track cannot be opened), `torn` (too many members are lost).
#[derive(Default)]
pub struct OpenTitles {
    pub open: HashMap<TitleRef, u32>,
    /// Members are lost, so many that no title can be played.
    pub members_lost: bool,
    next: u32,
}

#[derive(Clone, Default)]
pub struct SharedTitles(pub Arc<Mutex<OpenTitles>>);

impl Library for SharedTitles {
    fn find(&mut self, name: &str) -> Option<Entry> {
        match name {
            "film" => Some(entry(name, 60)),
            "other" | "broken" | "crowded" | "torn" => {
                Some(Entry { timeline: Timeline { ssrc: 7, timestamp_base: 0 }, ..entry(name, 20) })
            }
            "long" => Some(entry(name, 1000)),
            "recording" => Some(with_stamps(60, &[(0, 5000)])),
            "wrapping" => Some(with_stamps(60, &[(0, -26)])),
            "feature" => Some(with_stamps(7200, &[(0, 1800)])),
            "joined" => Some(with_stamps(60, &[(0, 5000), (30, 100)])),
            "safe" | "frail" => Some(Entry { fec: Some(MATRIX), ..entry(name, 60) }),
            "blind" => {
                let mut entry = entry(name, 60);
                entry.access = Arc::new(Even { packets: entry.packets, times_broken: true });
                Some(entry)
            }
            _ => None,
        }
    }
    fn sized(&mut self, entry: &Entry, packet_bytes: usize) -> Option<Entry> {
        let factor = u32::try_from(packet_bytes / 1316).ok().filter(|factor| *factor > 0)?;
        let packets = entry.packets.div_ceil(factor);
        let access = Arc::new(Larger { times: Arc::clone(&entry.access), packets, factor });
        let timeline = Timeline { ssrc: entry.timeline.ssrc + factor - 1, ..entry.timeline };
        Some(Entry {
            packets,
            timeline,
            layout: WireLayout::new(packet_bytes)?,
            fec: None,
            access,
            ..entry.clone()
        })
    }
    fn open(&mut self, entry: &Entry) -> Result<TitleRef, OpenError> {
        match entry.name.as_str() {
            "broken" => return Err(OpenError::Broken("meta-1316.mrp: checksum mismatch".into())),
            "crowded" => return Err(OpenError::Full),
            "torn" => return Err(OpenError::MembersLost(TORN.into())),
            _ => {}
        }
        let mut open_titles = self.0.lock().unwrap();
        if open_titles.members_lost {
            return Err(OpenError::MembersLost(TORN.into()));
        }
        open_titles.next += 1;
        let title = TitleRef(open_titles.next);
        *open_titles.open.entry(title).or_default() += 1;
        Ok(title)
    }
    fn lost(&mut self, entry: &Entry) -> Option<String> {
        (entry.name == "torn" || self.0.lock().unwrap().members_lost).then(|| TORN.to_owned())
    }
    fn open_track(&mut self, entry: &Entry, track: u8) -> Result<Track, OpenError> {
        if entry.name == "frail" && track == 2 {
            return Err(OpenError::Broken("parity.mrp: checksum mismatch".into()));
        }
        let each = MATRIX.column_packets(track);
        let layout = WireLayout::fec().with_row(u32::from(MATRIX.unit_packets) * each);
        Ok(Track { title: self.open(entry)?, packets: MATRIX.columns(entry.packets) * each, layout })
    }
    fn close(&mut self, title: TitleRef) {
        let mut open_titles = self.0.lock().unwrap();
        let count = open_titles.open.get_mut(&title).expect("closed once for each open");
        *count -= 1;
        if *count == 0 {
            open_titles.open.remove(&title);
        }
    }
}

impl SharedTitles {
    pub fn open_count(&self) -> usize {
        self.0.lock().unwrap().open.len()
    }
}

/// Counts: predictable, never twice.
#[derive(Default)]
pub struct Counting(u128);

impl Entropy for Counting {
    fn bytes16(&mut self) -> Option<[u8; 16]> {
        self.0 += 1;
        Some((self.0 << 64 | self.0).to_be_bytes())
    }
}

/// A reply, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub reason: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Self {
        let (message, used) = rtsp_types::Message::<Vec<u8>>::parse(bytes).expect("a reply that parses");
        assert_eq!(used, bytes.len(), "one reply and nothing behind it");
        let rtsp_types::Message::Response(response) = message else { panic!("not a response") };
        assert!(bytes.starts_with(b"RTSP/1.0 "));
        let headers = response
            .headers()
            .map(|(name, value)| (name.as_str().to_ascii_lowercase(), value.as_str().to_owned()))
            .collect();
        Self {
            status: response.status().into(),
            reason: response.reason_phrase().to_owned(),
            headers,
            body: String::from_utf8(response.into_body()).unwrap(),
        }
    }

    /// A header's value, empty if it is absent.
    pub fn get(&self, name: &str) -> &str {
        self.headers.get(&name.to_ascii_lowercase()).map_or("", String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.headers.contains_key(&name.to_ascii_lowercase())
    }

    /// The session's name without its parameters.
    pub fn session(&self) -> String {
        self.get("session").split(';').next().unwrap().to_owned()
    }
}

/// The server, one engine, and everything that has come out.
pub struct World {
    pub server: Server,
    pub engine: FakeEngine,
    pub open_titles: SharedTitles,
    pub now: Instant,
    /// What came out, in order: `reply 200`, `open`, `play 0..24000 seq 0 in 50ms`, `pause`, `close`, `attach`, `drop conn`.
    pub log: Vec<String>,
    pub answers: HashMap<ConnKey, VecDeque<Answer>>,
    pub attached: HashSet<ConnKey>,
    pub closed: HashSet<ConnKey>,
    /// What has happened, as far as it has a line in the log.
    pub notices: Vec<Event>,
    counters: Counters,
    /// Requests handed in and replies that came out, by connection.
    pub requests: HashMap<ConnKey, usize>,
    pub replies: HashMap<ConnKey, usize>,
    framers: HashMap<ConnKey, Framer>,
}

pub const VIEWER: &str = "192.0.2.7:40000";

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let mut config = ServerConfig {
            ports_v4: Some((50_000, 50_001)),
            ports_v6: Some((50_002, 50_003)),
            service: ServiceConfig {
                streams_per_engine: 64,
                conns_per_engine: 64,
                ..ServiceConfig::default()
            },
            ..ServerConfig::default()
        };
        change(&mut config);
        let open_titles = SharedTitles::default();
        let server = Server::new(config, Box::new(open_titles.clone()), Box::<Counting>::default());
        Self {
            server,
            engine: FakeEngine::new(),
            open_titles,
            now: Instant(100 * SECOND),
            log: Vec::new(),
            answers: HashMap::new(),
            attached: HashSet::new(),
            closed: HashSet::new(),
            notices: Vec::new(),
            counters: Counters::default(),
            requests: HashMap::new(),
            replies: HashMap::new(),
            framers: HashMap::new(),
        }
    }

    pub fn connect(&mut self) -> ConnKey {
        self.connect_from(VIEWER)
    }

    pub fn connect_from(&mut self, peer: &str) -> ConnKey {
        let peer: SocketAddr = peer.parse().unwrap();
        let local = if peer.is_ipv4() { "192.0.2.1:554" } else { "[2001:db8::1]:554" };
        self.server.conn_opened(self.now, peer, local.parse().unwrap()).expect("accepted")
    }

    /// Moves the clock; the engine and the server's timers run.
    pub fn wait(&mut self, ns: u64) {
        let end = self.now.plus_ns(ns);
        while self.now < end {
            self.now = end.min(self.now.plus_ns(SECOND / 2));
            self.engine.advance(self.now);
            self.settle();
            self.server.tick(self.now);
            self.settle();
        }
    }

    /// Carries out outputs and hands in events until nothing moves.
    pub fn settle(&mut self) {
        loop {
            let mut moved = false;
            while let Some(output) = self.server.poll_output() {
                moved = true;
                self.carry_out(output);
            }
            while !self.engine.silent
                && let Some(event) = self.engine.events.pop_front()
            {
                moved = true;
                self.server.handle_engine_event(self.now, 0, event);
            }
            if !moved {
                return;
            }
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Reply { conn, bytes } => {
                let answer = Answer::parse(&bytes);
                self.log.push(format!("reply {}", answer.status));
                *self.replies.entry(conn).or_default() += 1;
                self.answers.entry(conn).or_default().push_back(answer);
            }
            Output::Attach { conn, engine, id } => {
                assert!(self.attached.insert(conn), "attached twice");
                assert!(engine == 0 && self.engine.conns.insert(id.0), "connection name in use");
                self.log.push("attach".into());
            }
            Output::Command { command, .. } => {
                self.log.push(match &command {
                    Command::Open { dest: Dest::Udp { port, .. }, quiet: true, .. } => {
                        format!("open fec {port}")
                    }
                    Command::Open { dest, .. } => match dest {
                        Dest::Udp { ip, port, rtcp_port: Some(rtcp_port), .. } => {
                            format!("open udp {ip} {port} {rtcp_port}")
                        }
                        Dest::Udp { ip, port, rtcp_port: None, .. } => format!("open raw {ip} {port}"),
                        Dest::Interleaved { rtp_channel, rtcp_channel, .. } => {
                            format!("open tcp {rtp_channel} {rtcp_channel}")
                        }
                        Dest::Bytes { .. } | Dest::Multicast { .. } => panic!("not by RTSP: {dest:?}"),
                    },
                    Command::Play { at, run, .. } => {
                        let wait_ms = at.ns_since(self.now) / MS;
                        format!("play {} in {wait_ms}ms{}", packets_of(run), spare_of(run))
                    }
                    Command::Queue { cut: Cut::At(cut), run, .. } => {
                        format!("queue {} at {cut}{}", packets_of(run), spare_of(run))
                    }
                    Command::Pause { .. } => "pause".into(),
                    Command::Close { .. } => "close".into(),
                    Command::ConnRemove { .. } => "drop conn".into(),
                    other => panic!("the session layer does not send {other:?}"),
                });
                self.engine.take(self.now, command);
            }
            Output::Close { conn } => {
                assert!(self.closed.insert(conn), "closed twice");
            }
            Output::Event(event) => {
                self.counters.count(&event);
                if event.is_logged() {
                    self.notices.push(event);
                }
            }
        }
    }

    /// What has been counted by now.
    pub fn counters(&mut self) -> Counters {
        self.settle();
        self.counters
    }

    /// Bytes from a viewer. A connection that waits, or is being closed, is not read.
    pub fn push(&mut self, conn: ConnKey, bytes: &[u8]) {
        let framer = self.framers.entry(conn).or_default();
        framer.push(bytes);
        loop {
            if self.server.is_waiting(conn) || self.closed.contains(&conn) {
                return;
            }
            match self.framers.get_mut(&conn).unwrap().next_incoming() {
                Ok(Some(Incoming::Request(request))) => {
                    *self.requests.entry(conn).or_default() += 1;
                    self.server.handle_request(self.now, conn, &request);
                }
                Ok(Some(Incoming::Interleaved { channel, bytes })) => {
                    self.server.handle_interleaved(self.now, conn, channel, &bytes);
                }
                Ok(Some(Incoming::Response)) => {}
                Ok(None) => break,
                Err(error) => self.server.handle_bad_message(self.now, conn, &error),
            }
            self.settle();
        }
        let mid = self.framers[&conn].is_mid_message();
        self.server.conn_progress(self.now, conn, mid);
        self.settle();
    }

    /// A request, its lines written with `\n`; returns the answer.
    pub fn ask(&mut self, conn: ConnKey, request: &str) -> Answer {
        self.tell(conn, request);
        let answers = self.answers.get_mut(&conn).unwrap_or_else(|| panic!("no answer to {request}"));
        let answer = answers.pop_front().unwrap_or_else(|| panic!("no answer to {request}"));
        assert!(answers.is_empty(), "more than one answer to {request}");
        for header in ["server", "date"] {
            assert!(answer.has(header), "{header} missing in {answer:?}");
        }
        answer
    }

    /// A request whose answer is not waited for.
    pub fn tell(&mut self, conn: ConnKey, request: &str) {
        let text = request.trim().replace('\n', "\r\n") + "\r\n\r\n";
        self.push(conn, text.as_bytes());
    }

    pub fn hang_up(&mut self, conn: ConnKey) {
        self.server.conn_closed(self.now, conn);
        self.settle();
    }

    pub fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    /// SETUP by UDP on `film`; returns the session's name.
    pub fn setup_udp(&mut self, conn: ConnKey) -> String {
        let answer = self.ask(
            conn,
            "SETUP rtsp://192.0.2.1/film/track1 RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP;unicast;client_port=5000-5001",
        );
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.session()
    }

    /// SETUP interleaved on `film`; returns the session's name.
    pub fn setup_tcp(&mut self, conn: ConnKey) -> String {
        let answer = self.ask(
            conn,
            "SETUP rtsp://192.0.2.1/film/track1 RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1",
        );
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.session()
    }

    /// A request with a session and further header lines.
    pub fn ask_session(&mut self, conn: ConnKey, method: &str, session: &str, more: &str) -> Answer {
        self.ask(
            conn,
            &format!("{method} rtsp://192.0.2.1/film/ RTSP/1.0\nCSeq: 5\nSession: {session}\n{more}"),
        )
    }

    /// Nothing is left: no sessions, streams, titles, reserved rate.
    pub fn assert_empty(&self) {
        assert_eq!(self.server.service().stream_count(), 0, "sessions");
        assert_eq!(self.server.service().place_count(), 0, "streams");
        assert_eq!(self.server.service().reserved_rate(), 0, "rate");
        assert_eq!(self.engine.streams.len(), 0, "streams in the engine");
        assert_eq!(self.open_titles.open_count(), 0, "open titles");
    }
}

fn packets_of(run: &RunSpec) -> String {
    let first = match run.numbering {
        Numbering::Sequence(sequence) => sequence,
        Numbering::Title => sequence_of(run.from),
        Numbering::Viewer | Numbering::Bytes { .. } => unreachable!("the session layer names the numbers"),
    };
    format!("{}..{} seq {first}", run.from, run.until)
}

/// What may be missing of media; FEC goes with whatever there is.
fn spare_of(run: &RunSpec) -> String {
    match run.media.spare {
        0 => String::new(),
        u8::MAX => {
            let layout = WireLayout::fec().with_row(u32::from(MATRIX.unit_packets));
            assert_eq!(run.media.layout, layout, "with two parities both tracks lie alike");
            String::new()
        }
        spare => format!(" spare {spare}"),
    }
}

/// A compound RTCP receiver report as live555 sends its first one: 99 % lost, cumulative -1.
pub fn receiver_report(media_ssrc: u32, bye: bool) -> Vec<u8> {
    use millrace_core::wire::rtcp::{MAX_REPORT_BYTES, ReportBlock, write_receiver_report};
    let block = ReportBlock {
        ssrc: media_ssrc,
        fraction_lost: 255,
        cumulative_lost: -1,
        highest_sequence: 65_536,
        jitter: 3,
    };
    let mut out = [0; MAX_REPORT_BYTES];
    let len = write_receiver_report(&mut out, 99, Some(&block), "user@host", bye);
    out[..len].to_vec()
}
