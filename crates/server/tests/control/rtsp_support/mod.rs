//! A small world around the session server: a library of made-up titles, an engine without packets,
//! and a clock that stands still until the test moves it.
#![allow(unreachable_pub)]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use millrace_core::packet::WireLayout;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_offload::command::{self, Command, Dest, Numbering, RunCut, RunSpec};
use millrace_server::control::ServerCounters;
use millrace_server::rtsp::{Framer, Incoming};
use millrace_server::service::{self, ConnKey, NeededPart, OpenError, Service, ServiceConfig, ServiceEvent};
use millrace_server::session::{Entropy, Output, RtspFace, Server, ServerConfig};

mod engine;
pub mod live;
mod titles;

pub use engine::FakeEngine;
pub use titles::*;

pub const SECOND: u64 = 1_000_000_000;
pub const MS: u64 = 1_000_000;
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
    pub service: Service,
    pub server: Server,
    pub engine: FakeEngine,
    pub open_titles: SharedTitles,
    pub now: Instant,
    /// The output, in order: `reply 200`, `open`, `play 0..24000 seq 0 in 50ms`, `pause`, `close`,
    /// `attach`, `drop conn`.
    pub log: Vec<String>,
    pub answers: HashMap<ConnKey, VecDeque<Answer>>,
    pub attached: HashSet<ConnKey>,
    pub closed: HashSet<ConnKey>,
    /// The events that have a line in the log.
    pub notices: Vec<ServiceEvent>,
    counters: ServerCounters,
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
        let service = Service::new(config.service.clone(), Box::new(open_titles.clone()));
        let server = Server::new(config, Box::<Counting>::default());
        Self {
            service,
            server,
            engine: FakeEngine::new(),
            open_titles,
            now: Instant(100 * SECOND),
            log: Vec::new(),
            answers: HashMap::new(),
            attached: HashSet::new(),
            closed: HashSet::new(),
            notices: Vec::new(),
            counters: ServerCounters::default(),
            requests: HashMap::new(),
            replies: HashMap::new(),
            framers: HashMap::new(),
        }
    }

    /// RTSP, for one call.
    pub fn rtsp(&mut self) -> RtspFace<'_> {
        self.server.face(&mut self.service)
    }

    /// Does something with the service itself.
    pub fn on_service<R>(&mut self, act: impl FnOnce(&mut Service, Instant) -> R) -> R {
        let now = self.now;
        let done = act(&mut self.service, now);
        self.rtsp().drain_service(now);
        done
    }

    pub fn engine_event(&mut self, engine: usize, event: command::Event) {
        self.on_service(|service, now| service.engine_event(now, engine, event));
    }

    pub fn connect(&mut self) -> ConnKey {
        self.connect_from(VIEWER)
    }

    pub fn connect_from(&mut self, peer: &str) -> ConnKey {
        let peer: SocketAddr = peer.parse().unwrap();
        let local = if peer.is_ipv4() { "192.0.2.1:554" } else { "[2001:db8::1]:554" };
        self.server
            .face(&mut self.service)
            .conn_opened(self.now, peer, local.parse().unwrap())
            .expect("accepted")
    }

    /// Moves the clock; the engine and the server's timers run.
    pub fn wait(&mut self, ns: u64) {
        let end = self.now.plus_ns(ns);
        while self.now < end {
            self.now = end.min(self.now.plus_ns(SECOND / 2));
            self.engine.advance(self.now);
            self.settle();
            self.server.face(&mut self.service).tick(self.now);
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
                self.engine_event(0, event);
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
            Output::Service(output) => self.carry_out_service(output),
            Output::Close { conn } => {
                assert!(self.closed.insert(conn), "closed twice");
            }
            Output::Ask { conn, question } => {
                let gate = std::sync::Arc::clone(self.server.gate().unwrap());
                // Those of the tests answer at once, or never.
                gate.advised().unwrap().ask(question, Box::new(|| ()));
                self.server.face(&mut self.service).password_checked(self.now, conn);
            }
            Output::Check { conn, check } => {
                let now = millrace_rights::Now { mono: self.now, unix_s: 0 };
                self.server.gate().unwrap().carry_out(check, now);
                self.server.face(&mut self.service).password_checked(self.now, conn);
            }
        }
    }

    fn carry_out_service(&mut self, output: service::Output) {
        match output {
            service::Output::Attach { conn, engine, id } => {
                assert!(self.attached.insert(conn), "attached twice");
                assert!(engine == 0 && self.engine.conns.insert(id.0), "connection name in use");
                self.log.push("attach".into());
            }
            service::Output::Hold { .. } => panic!("there is one engine"),
            service::Output::Command { command, .. } => {
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
                        Dest::Multicast { group, port, .. } => format!("open cast {group} {port}"),
                        Dest::Bytes { .. } => panic!("not by RTSP: {dest:?}"),
                    },
                    Command::Play { at, run, .. } => {
                        let wait_ms = at.ns_since(self.now) / MS;
                        format!("play {} in {wait_ms}ms{}", packets_of(run), spare_of(run))
                    }
                    Command::Queue { cut: RunCut::At(cut), run, .. } => {
                        format!("queue {} at {cut}{}", packets_of(run), spare_of(run))
                    }
                    Command::Pause { .. } => "pause".into(),
                    Command::Measure { .. } => "measure".into(),
                    Command::Close { .. } => "close".into(),
                    Command::ConnRemove { .. } => "drop conn".into(),
                    other => panic!("the session layer does not send {other:?}"),
                });
                self.engine.take(self.now, command);
            }
            service::Output::Event(event) => {
                self.counters.count(&event);
                if event.is_logged() {
                    self.notices.push(event);
                }
            }
        }
    }

    /// Returns the current counters.
    pub fn counters(&mut self) -> ServerCounters {
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
                    self.server.face(&mut self.service).handle_request(self.now, conn, &request);
                }
                Ok(Some(Incoming::Interleaved { channel, bytes })) => {
                    self.server.face(&mut self.service).handle_interleaved(self.now, conn, channel, &bytes);
                }
                Ok(Some(Incoming::Response | Incoming::Tunnel(_))) => {}
                Ok(None) => break,
                Err(error) => self.server.face(&mut self.service).handle_bad_message(self.now, conn, &error),
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

    /// Completes the oldest opening under way, and informs the server; returns the completed need.
    pub fn opened(&mut self, result: Result<(), OpenError>) -> NeededPart {
        let need = self.open_titles.answer(result);
        self.server.face(&mut self.service).take_openings(self.now);
        self.settle();
        // Input held back meanwhile.
        let mut conns: Vec<_> = self.framers.keys().copied().collect();
        conns.sort_unstable();
        for conn in conns {
            self.push(conn, b"");
        }
        need
    }

    /// A request whose answer is not waited for.
    pub fn tell(&mut self, conn: ConnKey, request: &str) {
        let text = request.trim().replace('\n', "\r\n") + "\r\n\r\n";
        self.push(conn, text.as_bytes());
    }

    pub fn hang_up(&mut self, conn: ConnKey) {
        self.server.face(&mut self.service).conn_closed(self.now, conn);
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
        assert_eq!(self.service.streams().len(), 0, "sessions");
        assert_eq!(self.service.place_count(), 0, "streams");
        assert_eq!(self.service.reserved_rate(), 0, "rate");
        assert_eq!(self.engine.streams.len(), 0, "streams in the engine");
        assert_eq!(self.open_titles.open_count(), 0, "open titles");
    }
}

fn packets_of(run: &RunSpec) -> String {
    let first = match run.numbering {
        Numbering::Sequence(sequence) | Numbering::Own(sequence) => sequence,
        Numbering::Title => sequence_of(run.from),
        Numbering::Viewer | Numbering::Bytes { .. } => unreachable!("the session layer names the numbers"),
    };
    let speed =
        if run.scale_permille == 1000 { String::new() } else { format!(" speed {}", run.scale_permille) };
    format!("{}..{} seq {first}{speed}", run.from, run.until)
}

/// Returns how much of the media may be missing; FEC accepts any holes.
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
