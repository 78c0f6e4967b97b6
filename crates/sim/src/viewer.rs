//! A viewer: the client's dialogue without its sockets, and its planned actions.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_client::FecChoice;
use millrace_client::error::RtspFailure;
use millrace_client::rtsp::dialogue::{Dialogue, DialogueConfig, DialogueEvent, DialoguePhase, PlayReply};
use millrace_client::rtsp::framing::{Item, next_item};
use millrace_client::rtsp::headers::{NptRange, PlaybackPace};
use millrace_client::rtsp::transport::TransportRequest;
use millrace_client::sdp::Take;
use millrace_client::url::RtspUrl;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtcp::{RtcpPacket, parse};

use crate::fec::{FEC_PORT_OFFSET, FecReception};
use crate::network::{MediaAddress, SharedNetwork};
use crate::reception::{Excuses, PlayAnswer, Reception};
use crate::scenario::{ViewerAction, ViewerPlan, ViewerStep};
use crate::titles::StoredTitle;
use crate::users::ViewerAccess;

/// Where each viewer takes media by UDP.
const PORTS: (u16, u16) = (5_000, 5_001);
/// Its end of its RTSP connection.
const RTSP_PORT: u16 = 40_000;
/// And FEC.
pub const FEC_PORT: u16 = PORTS.0 + FEC_PORT_OFFSET;
/// A reply takes no longer, even if disks do.
const REPLY_TIMEOUT_NS: u64 = 20_000_000_000;
/// The kernel gives a connection up whose other end is gone.
const DEAD_PEER_NS: u64 = 20_000_000_000;
/// A viewer with nothing left to do looks this often whether media still comes; one that has paused
/// is kept alive until then.
const STAY_NS: u64 = 7_000_000_000;
/// From the end of the title to TEARDOWN.
const LEAVE_NS: u64 = 200_000_000;

/// How a viewer's time ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewerEnd {
    /// As it wanted.
    Left,
    /// It was refused, or ended by the server, for a reason.
    Ended(String),
}

/// State of a viewer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ViewerPhase {
    /// It reads and speaks.
    Active,
    /// It does nothing until then.
    Stalled(Instant),
    /// It is gone; its connection is given up at this time.
    Vanished(Instant),
    /// It is over.
    Over(ViewerEnd),
}

/// One viewer with one connection.
pub struct SimViewer {
    /// Its plan.
    pub plan: ViewerPlan,
    /// The number of its connection.
    pub number: u32,
    /// Its address.
    pub ip: IpAddr,
    access: ViewerAccess,
    dialogue: Dialogue,
    unparsed: Vec<u8>,
    /// The media.
    pub reception: Reception,
    /// The FEC beside it.
    pub fec: FecReception,
    phase: ViewerPhase,
    next_step: usize,
    next_step_at: Option<Instant>,
    /// Place and speed of each PLAY that has not been answered, oldest first.
    asked: std::collections::VecDeque<(Option<u64>, u16)>,
    /// Reasons of its own for its end.
    pub faults_of_its_own: Vec<&'static str>,
    /// Its session, once it has one.
    pub session: Option<String>,
    has_left_server: bool,
}

/// The surroundings of a viewer.
pub struct ViewerWorld<'a> {
    /// Now.
    pub now: Instant,
    /// The network.
    pub network: &'a SharedNetwork,
    /// The title that it watches.
    pub title: &'a StoredTitle,
    /// Packets of a row of stripes.
    pub row_packets: usize,
    /// What excuses the server now.
    pub excuses: Excuses,
}

fn is_bye(bytes: &[u8]) -> bool {
    parse(bytes).any(|packet| matches!(packet, RtcpPacket::Bye { .. }))
}

fn dialogue_config(fec: bool) -> DialogueConfig {
    DialogueConfig {
        user_agent: Arc::from("simulated viewer"),
        reply_timeout_ns: REPLY_TIMEOUT_NS,
        take: Take::TransportStream,
        fec: if fec { FecChoice::Xor } else { FecChoice::Off },
    }
}

impl SimViewer {
    /// A viewer that has just connected.
    pub fn new(plan: ViewerPlan, number: u32, title: &StoredTitle, access: ViewerAccess) -> Self {
        let url = format!("rtsp://192.0.2.1/{}", title.name);
        let url = RtspUrl::parse(&url).expect("names of titles fit into URLs");
        let [high, low] = (number as u16).to_be_bytes();
        Self {
            number,
            access,
            ip: IpAddr::from([10, 0, high, low]),
            dialogue: Dialogue::new(dialogue_config(plan.fec), &url),
            fec: FecReception::default(),
            unparsed: Vec::new(),
            reception: Reception::new(plan.fec),
            phase: ViewerPhase::Active,
            next_step: 0,
            next_step_at: None,
            asked: std::collections::VecDeque::new(),
            faults_of_its_own: Vec::new(),
            session: None,
            has_left_server: false,
            plan,
        }
    }

    /// Begins.
    pub fn start(&mut self, world: &ViewerWorld<'_>) {
        self.dialogue.start(world.now);
        self.send(world);
    }

    /// Where its media goes.
    pub fn media_address(&self) -> MediaAddress {
        match self.plan.by_tcp {
            true => MediaAddress::Channel(self.number, 0),
            false => MediaAddress::Udp(self.ip, PORTS.0),
        }
    }

    /// Whether the server must still have something for it.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, ViewerPhase::Over(_))
    }

    /// Whether it reads its connection.
    pub fn reads(&self) -> bool {
        self.phase == ViewerPhase::Active
    }

    /// Whether media was promised to it.
    pub fn plays(&self) -> bool {
        self.dialogue.phase() == DialoguePhase::Playing
    }

    /// Where the server sees it.
    pub fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.ip, RTSP_PORT)
    }

    /// Whether the server must hold a stream for it: media comes, or is about to.
    pub fn receives(&self) -> bool {
        let is_well = self.reads() && self.faults_of_its_own.is_empty() && !self.has_left_server;
        is_well && self.plays() && !self.dialogue.is_busy() && !self.reception.is_at_end()
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<&ViewerEnd> {
        match &self.phase {
            ViewerPhase::Over(end) => Some(end),
            _ => None,
        }
    }

    /// When it does something although nothing arrives.
    pub fn poll_at(&self) -> Option<Instant> {
        match self.phase {
            ViewerPhase::Active => self.dialogue.poll_at().into_iter().chain(self.next_step_at).min(),
            ViewerPhase::Stalled(until) | ViewerPhase::Vanished(until) => Some(until),
            ViewerPhase::Over(_) => None,
        }
    }

    /// Reads arrived bytes and carries out due actions.
    ///
    /// # Errors
    /// If the server broke an invariant.
    pub fn run(&mut self, world: &ViewerWorld<'_>) -> Result<(), String> {
        match self.phase {
            ViewerPhase::Stalled(until) if until <= world.now => {
                self.phase = ViewerPhase::Active;
                self.dialogue.postpone(world.now);
                self.reception.restart_time(world.now);
            }
            ViewerPhase::Vanished(until) if until <= world.now => {
                self.close(world, ViewerEnd::Left);
            }
            _ => {}
        }
        if self.phase != ViewerPhase::Active {
            return Ok(());
        }
        self.read(world)?;
        if self.dialogue.poll_at().is_some_and(|at| at <= world.now) {
            self.dialogue.handle_timeout(world.now);
        }
        self.take_events(world)?;
        while self.phase == ViewerPhase::Active && self.next_step_at.is_some_and(|at| at <= world.now) {
            self.act(world);
        }
        self.send(world);
        Ok(())
    }

    fn read(&mut self, world: &ViewerWorld<'_>) -> Result<(), String> {
        let is_over = {
            let mut network = world.network.lock();
            network.read_down(self.number, &mut self.unparsed);
            network.conns.get(&self.number).is_none_or(|conn| conn.is_over())
        };
        let bytes = std::mem::take(&mut self.unparsed);
        let mut at = 0;
        loop {
            match next_item(&bytes[at..]) {
                Ok(Some((item, len))) => {
                    at += len;
                    match item {
                        Item::Frame { channel: 0, bytes } => {
                            self.reception.take((world.now, world.title), bytes, world.excuses)?;
                        }
                        Item::Frame { bytes, .. } => self.take_rtcp(world, bytes)?,
                        Item::Message(message) => {
                            self.dialogue.handle_message(world.now, *message);
                            self.take_events(world)?;
                        }
                    }
                }
                Ok(None) => break,
                Err(error) => return Err(format!("the server's bytes are not RTSP: {error}")),
            }
        }
        self.unparsed = bytes[at..].to_vec();
        if is_over && !self.has_left_server {
            self.has_left_server = true;
            self.dialogue.handle_closed();
        }
        Ok(())
    }

    /// A datagram arrives. The account of the media has those too that were lost on the way.
    ///
    /// # Errors
    /// If the packet is not one that may come now.
    pub fn receive(
        &mut self,
        world: &ViewerWorld<'_>,
        (port, bytes, is_lost): (u16, &[u8], bool),
    ) -> Result<(), String> {
        if self.is_over() || matches!(self.phase, ViewerPhase::Vanished(_)) {
            return Ok(());
        }
        if port == FEC_PORT {
            self.fec.take(world.now, bytes);
            return Ok(());
        }
        match port == PORTS.0 {
            true => self.reception.take((world.now, world.title), bytes, world.excuses),
            false => {
                if is_lost && is_bye(bytes) {
                    self.reception.take_bye();
                } else if !is_lost {
                    self.take_rtcp(world, bytes)?;
                }
                Ok(())
            }
        }
    }

    fn take_rtcp(&mut self, world: &ViewerWorld<'_>, bytes: &[u8]) -> Result<(), String> {
        if is_bye(bytes) {
            self.reception.take_bye();
            if self.next_step >= self.plan.steps.len() {
                self.next_step_at = Some(world.now.plus_ns(LEAVE_NS));
            }
            self.check_fec(world)?;
        }
        Ok(())
    }

    /// At the end of the title all FEC of its last stretch has come, if nothing has changed that.
    fn check_fec(&mut self, world: &ViewerWorld<'_>) -> Result<(), String> {
        let changes =
            |step: &ViewerStep| matches!(step.action, ViewerAction::Pause | ViewerAction::Speed { .. });
        if world.excuses.may_lack_fec
            || self.plan.steps.iter().any(changes)
            || self.reception.next_packet() != Some(world.title.packets())
        {
            return Ok(());
        }
        self.fec.check(world.now, world.title, self.reception.shifts())?;
        self.fec.check_whole(world.title, self.reception.start(), world.row_packets)
    }

    fn take_events(&mut self, world: &ViewerWorld<'_>) -> Result<(), String> {
        while let Some(event) = self.dialogue.poll_event() {
            match event {
                DialogueEvent::Described(_) => {
                    if let Some(status) = self.access.denial {
                        return Err(format!("it may watch the title, and should have got {status}"));
                    }
                    let wanted = match self.plan.by_tcp {
                        true => TransportRequest::Tcp { rtp: 0, rtcp: 1 },
                        false => TransportRequest::Udp { rtp: PORTS.0, rtcp: PORTS.1 },
                    };
                    self.dialogue.setup(world.now, wanted);
                }
                DialogueEvent::Ready(_) => {
                    self.session = self.dialogue.session().map(|session| session.id.clone());
                    self.play(world.now, self.plan.from_ms.or(Some(0)), 1_000);
                }
                DialogueEvent::Playing(reply) => self.playing(world, &reply),
                DialogueEvent::Paused => self.reception.excuse_time(),
                DialogueEvent::Down => self.close(world, ViewerEnd::Left),
                DialogueEvent::Failed(failure) => {
                    let why = failure.to_string();
                    let is_explained = self.explains(world, &failure);
                    self.close(world, ViewerEnd::Ended(why.clone()));
                    if !is_explained {
                        return Err(format!("ended without a reason: {why}"));
                    }
                }
                DialogueEvent::TransportRefused => return Err("the transport was refused".to_owned()),
                DialogueEvent::Rendition(_) => {}
            }
        }
        Ok(())
    }

    /// Whether a failure has a reason that is not the server's.
    fn explains(&self, world: &ViewerWorld<'_>, failure: &RtspFailure) -> bool {
        let is_full = matches!(failure, RtspFailure::Status { status: 453, .. });
        // A time behind the end of the title.
        let is_range = matches!(failure, RtspFailure::Status { status: 457, .. });
        let is_denied = match failure {
            RtspFailure::Status { status, .. } => self.access.denial == Some(*status),
            _ => false,
        };
        is_full || is_range || is_denied || world.excuses.is_lost || !self.faults_of_its_own.is_empty()
    }

    fn play(&mut self, now: Instant, from_ms: Option<u64>, permille: u16) {
        let start = from_ms.filter(|&ms| ms > 0 || self.reception.packets > 0);
        let range = start.map(|ms| NptRange { start: Some(MediaTicks(ms * 90)), end: None });
        let speed_permille = (permille != 1_000).then_some(permille);
        if self.dialogue.play_at(now, range, PlaybackPace { scale: None, speed_permille }) {
            self.asked.push_back((from_ms, permille));
            self.reception.ask_speed(permille);
        }
    }

    fn playing(&mut self, world: &ViewerWorld<'_>, reply: &PlayReply) {
        let (from_ms, permille) = self.asked.pop_front().unwrap_or((None, 1_000));
        let from = from_ms.map(|ms| world.title.access_at_or_before(MediaTicks(ms * 90)));
        let answer = PlayAnswer {
            at: world.now,
            sequence: reply.rtp_info.as_ref().and_then(|info| info.sequence),
            from,
            speed_permille: permille.min(1_000),
        };
        self.reception.take_answer(world.title, answer);
        if self.next_step == 0 && self.next_step_at.is_none() {
            self.schedule(world.now);
        }
    }

    /// The time of the next action; without one it stays as long as media comes.
    fn schedule(&mut self, now: Instant) {
        let after_ns = self.plan.steps.get(self.next_step).map_or(STAY_NS, |step| step.after_ns);
        self.next_step_at = Some(now.plus_ns(after_ns));
    }

    fn act(&mut self, world: &ViewerWorld<'_>) {
        let now = world.now;
        let Some(step) = self.plan.steps.get(self.next_step).copied() else {
            let plays = self.dialogue.phase() == DialoguePhase::Playing || self.dialogue.is_busy();
            if plays && !self.reception.is_finished() {
                self.next_step_at = Some(now.plus_ns(STAY_NS));
                return;
            }
            self.next_step_at = None;
            if !self.dialogue.teardown(now) {
                self.close(world, ViewerEnd::Left);
            }
            return;
        };
        self.next_step += 1;
        self.schedule(now);
        match step.action {
            ViewerAction::Pause => {
                self.reception.excuse_time();
                self.dialogue.pause(now);
            }
            ViewerAction::Resume => self.play(now, None, 1_000),
            ViewerAction::Seek { to_ms } => self.play(now, Some(to_ms), 1_000),
            ViewerAction::Speed { to_ms, permille } => self.play(now, Some(to_ms), permille),
            ViewerAction::TearDown => {
                if !self.dialogue.teardown(now) {
                    self.close(world, ViewerEnd::Left);
                }
            }
            ViewerAction::Close => {
                self.faults_of_its_own.push("closed its connection");
                self.close(world, ViewerEnd::Left);
            }
            ViewerAction::Vanish => {
                self.faults_of_its_own.push("vanished");
                self.phase = ViewerPhase::Vanished(now.plus_ns(DEAD_PEER_NS));
            }
            ViewerAction::Stall { for_ns } => {
                self.faults_of_its_own.push("stalled");
                self.phase = ViewerPhase::Stalled(now.plus_ns(for_ns));
            }
            ViewerAction::Garbage => {
                self.faults_of_its_own.push("sent garbage");
                world.network.lock().write_up(self.number, b"\x00\xff not RTSP\r\n\r\n".to_vec());
            }
            ViewerAction::BadReport => {
                let report = (SocketAddr::new(self.ip, PORTS.1), b"\x81\xc9\x00\x07 not RTCP".to_vec());
                world.network.lock().reports.push(report);
            }
        }
    }

    fn close(&mut self, world: &ViewerWorld<'_>, end: ViewerEnd) {
        self.send(world);
        world.network.lock().close_viewer_end(self.number);
        self.phase = ViewerPhase::Over(end);
    }

    fn send(&mut self, world: &ViewerWorld<'_>) {
        let mut bytes = Vec::new();
        self.dialogue.take_output(&mut bytes);
        if !bytes.is_empty() {
            let requests = String::from_utf8_lossy(&bytes);
            let bytes = self.access.sign(&requests, " RTSP/1.0\r\n").into_bytes();
            world.network.lock().write_up(self.number, bytes);
        }
    }

    /// Looks whether media is overdue.
    ///
    /// # Errors
    /// If media or BYE is overdue.
    pub fn look(&mut self, world: &ViewerWorld<'_>) -> Result<(), String> {
        if world.excuses.is_lost || world.excuses.was_lost {
            self.fec.forget();
        }
        self.fec.check(world.now, world.title, self.reception.shifts())?;
        let plays = self.plays() && !self.dialogue.is_busy();
        match self.phase == ViewerPhase::Active && plays && !self.has_left_server {
            true => self.reception.look(world.now, world.excuses),
            false => Ok(()),
        }
    }

    /// The server was killed: nothing that it owed is due any more.
    pub fn server_killed(&mut self) {
        self.faults_of_its_own.push("the server was killed");
    }
}
