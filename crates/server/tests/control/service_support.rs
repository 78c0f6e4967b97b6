//! The service, an engine or two, and no protocol: outputs are carried out, events are kept.
#![allow(unreachable_pub)]

use std::collections::{HashMap, HashSet};

use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};
use millrace_offload::command::Command;
use millrace_server::control::ServerCounters;
use millrace_server::service::{
    Admitted, ConnKey, EndReason, FecWish, From, Output, PlayRequest, Played, Refusal, Service,
    ServiceConfig, ServiceEvent, Span, StreamKey, StreamPath, StreamRequest, Which,
};

use crate::rtsp_support::{FakeEngine, SECOND, SharedTitles};

pub const VIEWER: &str = "192.0.2.7:40000";

pub struct Desk {
    pub service: Service,
    pub engine: FakeEngine,
    /// Another one, for tests that set up two.
    pub second: FakeEngine,
    pub titles: SharedTitles,
    pub now: Instant,
    /// The engine that writes to each connection, and its name for the connection.
    writers: HashMap<ConnKey, (usize, u32)>,
    /// Connections that must not be written to now.
    pub held: HashSet<ConnKey>,
    /// Commands to the engine, in order; those to the second begin with `2: `.
    pub commands: Vec<String>,
    pub events: Vec<ServiceEvent>,
    /// How far ahead the last run may send, in milliseconds.
    pub led: Option<u16>,
    pub counters: ServerCounters,
}

impl Desk {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ServiceConfig)) -> Self {
        let mut config =
            ServiceConfig { streams_per_engine: 64, conns_per_engine: 64, ..ServiceConfig::default() };
        config.address_share_percent = 100;
        change(&mut config);
        let titles = SharedTitles::default();
        Self {
            service: Service::new(config, Box::new(titles.clone())),
            engine: FakeEngine::new(),
            second: FakeEngine::new(),
            titles,
            now: Instant(100 * SECOND),
            writers: HashMap::new(),
            held: HashSet::new(),
            commands: Vec::new(),
            events: Vec::new(),
            led: None,
            counters: ServerCounters::default(),
        }
    }

    pub fn conn(&mut self) -> ConnKey {
        self.conn_from(VIEWER)
    }

    pub fn conn_from(&mut self, peer: &str) -> ConnKey {
        self.service.conn_opened(peer.parse().unwrap()).expect("accepted")
    }

    /// Returns the request of a viewer on `conn`.
    pub fn request(&mut self, title: &str, conn: ConnKey, path: StreamPath) -> StreamRequest {
        StreamRequest {
            which: Which::New { label: title.to_owned(), agent: None },
            viewer: VIEWER.parse().unwrap(),
            conn: Some(conn),
            entry: self.service.find(title).expect("a title of this name"),
            path,
            fec: FecWish::Silent,
            rendition: None,
            quota: None,
            segment: None,
        }
    }

    pub fn admit(&mut self, request: StreamRequest) -> Result<Admitted, Refusal> {
        let admitted = self.service.admit(self.now, request);
        self.settle();
        admitted
    }

    /// A stream of `film` through `conn`.
    pub fn try_tcp(&mut self, conn: ConnKey) -> Result<StreamKey, Refusal> {
        let request = self.request("film", conn, tcp(conn));
        self.admit(request).map(|admitted| admitted.stream)
    }

    /// A stream of this title by UDP.
    pub fn udp(&mut self, title: &str, rtp_port: u16) -> StreamKey {
        let conn = self.conn();
        let request = self.request(title, conn, udp(rtp_port));
        self.admit(request).expect("admitted").stream
    }

    pub fn play(&mut self, key: StreamKey, span: Option<Span>) -> Result<Played, Refusal> {
        let played = self.service.play(self.now, key, &PlayRequest { span, ..PlayRequest::default() });
        self.settle();
        played
    }

    /// Plays at this speed, in hundredths of the normal one.
    pub fn play_at(&mut self, key: StreamKey, speed: i16, span: Option<Span>) -> Result<Played, Refusal> {
        let scale = Scale::from_hundredths(speed);
        assert!(scale.is_some(), "{speed}");
        let played = self.service.play(self.now, key, &PlayRequest { span, scale, ..PlayRequest::default() });
        self.settle();
        played
    }

    pub fn pause(&mut self, key: StreamKey) {
        self.service.pause(key).unwrap();
        self.settle();
    }

    pub fn close(&mut self, key: StreamKey) {
        self.service.close(self.now, key, EndReason::TornDown);
        self.settle();
    }

    /// The viewer closes a connection.
    pub fn hang_up(&mut self, conn: ConnKey) {
        self.service.conn_closed(self.now, conn);
        self.writers.remove(&conn);
        self.held.remove(&conn);
        self.settle();
    }

    /// Its engine has given it back: no one writes to it.
    pub fn writes_itself(&mut self, conn: ConnKey) {
        assert!(self.writers.remove(&conn).is_some());
    }

    /// Moves the clock; the engine and the service's timers run.
    pub fn wait(&mut self, ns: u64) {
        let end = self.now.plus_ns(ns);
        while self.now < end {
            self.now = end.min(self.now.plus_ns(SECOND / 2));
            self.engine.advance(self.now);
            self.second.advance(self.now);
            self.settle();
            self.service.tick(self.now);
            self.settle();
        }
    }

    /// Carries out outputs and hands in events until nothing moves.
    pub fn settle(&mut self) {
        loop {
            let mut moved = false;
            while let Some(output) = self.service.poll_output() {
                moved = true;
                match output {
                    Output::Event(event) => {
                        self.counters.count(&event);
                        self.events.push(event);
                    }
                    Output::Attach { conn, id, engine } => {
                        let engines = [&mut self.engine, &mut self.second];
                        let before = self.writers.insert(conn, (engine, id.0));
                        assert_eq!(self.held.remove(&conn), before.is_some());
                        if let Some((engine, id)) = before {
                            assert!(!engines[engine].conns.contains(&id), "two write to it");
                        }
                        assert!(engines[engine].conns.insert(id.0), "connection name in use");
                    }
                    Output::Hold { conn } => assert!(self.held.insert(conn), "held twice"),
                    Output::Command { engine, command } => {
                        if let Command::Play { ahead_ms, .. } = command {
                            self.led = Some(ahead_ms);
                        }
                        self.commands.push(["", "2: "][engine].to_owned() + &shown(&command));
                        [&mut self.engine, &mut self.second][engine].take(self.now, command);
                    }
                }
            }
            for (number, engine) in [&mut self.engine, &mut self.second].into_iter().enumerate() {
                while !engine.silent
                    && let Some(event) = engine.events.pop_front()
                {
                    moved = true;
                    self.service.engine_event(self.now, number, event);
                }
            }
            if !moved {
                return;
            }
        }
    }

    pub fn take_commands(&mut self) -> Vec<String> {
        std::mem::take(&mut self.commands)
    }

    /// Why streams have ended, in order.
    pub fn ends(&self) -> Vec<EndReason> {
        let reason = |event: &ServiceEvent| match event {
            ServiceEvent::Ended { reason, .. } => Some(*reason),
            _ => None,
        };
        self.events.iter().filter_map(reason).collect()
    }

    pub fn assert_empty(&self) {
        assert_eq!(self.service.streams().len(), 0, "streams");
        assert_eq!(self.service.place_count(), 0, "places");
        assert_eq!((self.service.reserved_streams(), self.service.reserved_rate()), (0, 0), "reserved");
        let streams = self.engine.streams.len() + self.second.streams.len();
        assert_eq!(streams, 0, "streams in the engines");
        assert_eq!(self.titles.open_count(), 0, "open titles");
    }
}

fn shown(command: &Command) -> String {
    match command {
        Command::Open { quiet, .. } => if *quiet { "open fec" } else { "open" }.to_owned(),
        Command::Play { run, .. } => format!("play {}..{}", run.from, run.until),
        Command::Queue { run, .. } => format!("queue {}..{}", run.from, run.until),
        Command::Pause { .. } => "pause".to_owned(),
        Command::Measure { .. } => "measure".to_owned(),
        Command::Close { .. } => "close".to_owned(),
        Command::ConnRemove { .. } => "drop conn".to_owned(),
        Command::ConnReturn { .. } => "return conn".to_owned(),
        Command::Unreachable { dest, .. } => format!("unreachable {dest}"),
        other => panic!("the service does not send {other:?}"),
    }
}

pub fn udp(rtp_port: u16) -> StreamPath {
    let mut viewer: std::net::SocketAddr = VIEWER.parse().unwrap();
    viewer.set_port(rtp_port);
    StreamPath::udp(viewer, Some(rtp_port + 1))
}

pub fn tcp(conn: ConnKey) -> StreamPath {
    StreamPath::Interleaved { conn, rtp_channel: 0, rtcp_channel: 1 }
}

/// From this second on, to that one or to the end.
pub fn span(from_s: u64, to_s: Option<u64>) -> Option<Span> {
    let to = to_s.map(|s| MediaTicks(s * 90_000));
    Some(Span { from: From::At((from_s * 90_000).cast_signed()), to, is_clock: false })
}

pub fn from_here(to_s: Option<u64>) -> Option<Span> {
    Some(Span { from: From::Here, to: to_s.map(|s| MediaTicks(s * 90_000)), is_clock: false })
}
