//! Admission by the measured capacity of the engines, and the choice of viewers to end when they
//! become slower.

use crate::rtsp_support::*;
use millrace_server::admission::{AdmissionConfig, AdmissionNotice, EngineFigures, OverloadPolicy};
use millrace_server::limits::ADMISSION_LOOK_NS;
use millrace_server::service::{ConnKey, EndReason, ServiceEvent};

/// 4 Mb/s in packets of 1316 bytes.
const VIEWER_PACKETS_PER_S: u64 = 380;

/// A world with a core that carries `carries` packets a second.
struct Hotel {
    w: World,
    carries: u64,
    figures: EngineFigures,
    behind: u64,
    /// Streams that played in the step before.
    played: u64,
    /// Who plays, in the order in which they came.
    playing: Vec<(ConnKey, String)>,
    next_port: u16,
}

impl Hotel {
    fn new(viewers_carried: u64, overload: OverloadPolicy) -> Self {
        let w = World::with(|config| {
            config.service.streams_per_engine = 4096;
            config.service.max_streams = 1000;
            config.service.address_share_percent = 100;
            config.service.max_sessions_per_address = 1000;
            config.service.max_connections_per_address = 1000;
            config.service.conns_per_engine = 1000;
            config.service.admission = AdmissionConfig { is_on: true, overload, ..AdmissionConfig::off() };
        });
        let carries = viewers_carried * VIEWER_PACKETS_PER_S;
        let figures = EngineFigures::default();
        Self { w, carries, figures, behind: 0, played: 0, playing: Vec::new(), next_port: 5000 }
    }

    /// A tenth of a second: the core sends as much as it can, and late if that is not enough.
    fn step(&mut self) {
        self.w.wait(ADMISSION_LOOK_NS);
        // Streams that have ended no longer wait for packets.
        let playing = self.streams_playing();
        self.behind = (self.behind * playing.min(self.played)).checked_div(self.played).unwrap_or(0);
        self.played = playing;
        let due = playing * VIEWER_PACKETS_PER_S / 10;
        let wanted = if self.behind > 0 { (due * 5 / 4).min(due + self.behind) } else { due };
        let sent = wanted.min(self.carries / 10);
        self.behind = self.behind + due - sent;
        self.figures.packets += sent;
        self.figures.overdue += if self.behind > due / 2 { sent } else { 0 };
        self.figures.seen_ns += ADMISSION_LOOK_NS;
        let worked_ns = ADMISSION_LOOK_NS * sent / (self.carries / 10);
        self.figures.busy_ns += worked_ns;
        self.figures.cpu_ns += worked_ns;
        let figures = self.figures;
        self.w.on_service(|service, now| service.look_at_load(now, 0, figures));
        self.w.settle();
    }

    fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }

    fn streams_playing(&self) -> u64 {
        let streams = self.w.engine.streams.values();
        // A run without packets is a viewer that waits for its BYE.
        let sends = streams
            .filter(|stream| stream.playing.as_ref().is_some_and(|run| run.spec.from < run.spec.until));
        sends.count() as u64
    }

    /// A viewer by TCP or by UDP; the status that it got in the end.
    fn comes(&mut self, is_tcp: bool) -> u16 {
        let conn = self.w.connect();
        self.next_port += 2;
        let transport = if is_tcp {
            "RTP/AVP/TCP".to_owned()
        } else {
            format!("RTP/AVP;unicast;client_port={}-{}", self.next_port, self.next_port + 1)
        };
        let setup = format!("SETUP rtsp://192.0.2.1/long/track1 RTSP/1.0\nCSeq: 1\nTransport: {transport}");
        let setup = self.w.ask(conn, &setup);
        if setup.status != 200 {
            return setup.status;
        }
        let play = self.w.ask_session(conn, "PLAY", &setup.session(), "");
        if play.status == 200 {
            self.playing.push((conn, setup.session()));
        }
        play.status
    }

    /// Viewers come, five in a second, until one is refused that comes a good second after the one
    /// before.
    fn fill(&mut self) {
        let mut is_calm = false;
        while self.comes(self.playing.len() % 2 == 1) == 200 || !is_calm {
            is_calm = self.w.counters().refused_measured > 0;
            self.run(if is_calm { 15 } else { 2 });
            assert!(self.playing.len() < 1000);
        }
    }

    fn news(&self) -> Vec<AdmissionNotice> {
        let news = |event: &ServiceEvent| match event {
            ServiceEvent::Admission(news) => Some(*news),
            _ => None,
        };
        self.w.notices.iter().filter_map(news).collect()
    }
}

#[test]
fn admission_on_full_core_refuses_next_viewer_with_453() {
    let mut hotel = Hotel::new(200, OverloadPolicy::EndNewest);
    hotel.fill();
    assert!((186..=192).contains(&hotel.playing.len()), "{} of 200", hotel.playing.len());
    let before = hotel.w.counters().refused_measured;
    for _ in 0..20 {
        assert_eq!(hotel.comes(false), 453);
        hotel.step();
    }
    let [AdmissionNotice::Full { refused: 1, .. }] = hotel.news()[..] else { panic!("{:?}", hotel.news()) };
    assert_eq!(hotel.w.counters().refused_measured, before + 20);
    assert!(!hotel.w.notices.iter().any(|notice| matches!(notice, ServiceEvent::Refused { .. })));
    // An admitted viewer may seek, and pause, and play again.
    let (conn, session) = hotel.playing[3].clone();
    assert_eq!(hotel.w.ask_session(conn, "PLAY", &session, "Range: npt=100-").status, 200);
    assert_eq!(hotel.w.ask_session(conn, "PAUSE", &session, "").status, 200);
    hotel.run(20);
    assert_eq!(hotel.comes(true), 453, "the place of who has paused is kept");
    assert_eq!(hotel.w.ask_session(conn, "PLAY", &session, "").status, 200);
    // One goes, one may come.
    let (conn, session) = hotel.playing.remove(0);
    hotel.w.ask_session(conn, "TEARDOWN", &session, "");
    hotel.run(12);
    assert_eq!(hotel.comes(true), 200);
}

#[test]
fn overload_with_end_newest_policy_ends_newest_viewers() {
    let mut hotel = Hotel::new(200, OverloadPolicy::EndNewest);
    hotel.fill();
    let before = hotel.playing.len() as u64;
    hotel.carries /= 2;
    hotel.run(50);
    assert!(hotel.behind * 10 <= hotel.streams_playing() * VIEWER_PACKETS_PER_S, "still behind");
    hotel.run(30);
    let left = hotel.streams_playing();
    assert!((70..=100).contains(&left), "{left}");
    // The oldest are those who are left, and the others know that it is over.
    let ended: Vec<_> = hotel
        .w
        .notices
        .iter()
        .filter(|notice| matches!(notice, ServiceEvent::Closed { reason: EndReason::Overloaded, .. }))
        .collect();
    assert_eq!(ended.len() as u64, before - left);
    assert_eq!(hotel.w.counters().sessions_overload, before - left);
    for (n, (conn, session)) in hotel.playing.clone().into_iter().enumerate() {
        let is_left = (n as u64) < left;
        if hotel.w.closed.contains(&conn) {
            assert!(!is_left, "{n} of {left}");
            continue; // the connection of an interleaved viewer, closed behind its BYE
        }
        let alive = hotel.w.ask_session(conn, "GET_PARAMETER", &session, "").status == 200;
        assert_eq!(alive, is_left, "{n} of {left}");
    }
    assert_eq!(hotel.w.service.reserved_streams() as u64, left);
    assert!(
        matches!(hotel.news()[..], [.., AdmissionNotice::Shedding { .. }, AdmissionNotice::Recovered { .. }]),
        "{:?}",
        hotel.news()
    );
}

#[test]
fn overload_with_share_policy_ends_no_viewer() {
    let mut hotel = Hotel::new(100, OverloadPolicy::Share);
    hotel.fill();
    let before = hotel.streams_playing();
    hotel.carries /= 2;
    hotel.run(50);
    assert_eq!(hotel.streams_playing(), before);
    assert_eq!(hotel.comes(true), 453);
}
