//! A viewer of an RTSP title: its dialogue and its sockets.

use std::net::{SocketAddr, UdpSocket};

use millrace_client::clock::random_u64;
use millrace_client::error::{ClientError, RtspFailure};
use millrace_client::fec::FecChoice;
use millrace_client::limits::FEC_WAIT_NS;
use millrace_client::net::{Batch, Connection, Inlet, ReadState, bind_with_fec, start_connect};
use millrace_client::play::TransportChoice;
use millrace_client::rtsp::dialogue::{Dialogue, DialogueEvent, PlayReply};
use millrace_client::rtsp::framing::{Item, next_item};
use millrace_client::rtsp::headers::{NptRange, PlaybackPace};
use millrace_client::rtsp::transport::{TransportReply, TransportRequest};
use millrace_client::url::RtspUrl;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtcp::{MAX_REPORT_BYTES, write_receiver_report};

use crate::error::LoadError;
use crate::limits::{FAREWELL_NS, FEW_VIEWERS, GRACE_NS, MAX_DRAINS, MEDIA_CHUNK, REPLY_CHUNK};
use crate::meter::{Ending, Meter, ViewerMeasurements};
use crate::outcome::{Live, SocketCounts, ViewerOutcome};
use crate::plan::LoadPlan;
use crate::probe::ProbeMeter;
use crate::target::Seat;
use crate::viewer::{Interest, LoadViewer, SeekTarget, Status, ViewerCommand, ViewerContext, ViewerStage};

/// CNAME of receiver reports.
const CNAME: &str = "millrace-load";

/// Kinds of descriptors.
const CONNECTION: u8 = 0;
const RTP: u8 = 1;
const RTCP: u8 = 2;
/// And those behind it: FEC.
const FEC: u8 = 3;

/// UDP sockets of a viewer.
struct Udp {
    rtp: Inlet,
    /// `None` if the thread's shared socket is used.
    rtcp: Option<Inlet>,
    /// Where FEC comes.
    fec: Vec<Inlet>,
    server: Option<(SocketAddr, SocketAddr)>,
    source: SocketAddr,
}

/// Transport of the media, once agreed.
enum ViewerTransport {
    None,
    Udp(Box<Udp>),
    Tcp { rtp: u8, rtcp: u8 },
}

pub(super) struct RtspViewer {
    seat: Seat,
    stage: ViewerStage,
    is_connected: bool,
    connection: Connection,
    /// Counts in the kernel, if there is a probe. In front of the sockets, so that the port is ours until it ends.
    probed: Option<ProbeMeter>,
    path: ViewerTransport,
    /// Whether epoll watches the connection for writing.
    watches_write: bool,
    failure: Option<String>,
    /// From the start of connecting to the reply to PLAY.
    setup_us: Option<u64>,
    measured: Option<ViewerMeasurements>,
    foreign: u64,
    dialogue: Dialogue,
    meter: Meter,
    /// Packets that reached the socket although the probe drops them, and the probe's counts beside
    /// the socket.
    unprobed: u64,
    probed_beside: Option<Live>,
    /// Length of the title, if the server gives it.
    length: Option<MediaTicks>,
    /// PAUSE was answered, and no PLAY since.
    is_paused: bool,
    /// It is on its way elsewhere: PAUSE, and PLAY behind it.
    is_seeking: bool,
    began: Instant,
    /// When connecting or the farewell is given up.
    deadline: Option<Instant>,
    report_at: Option<Instant>,
    ssrc: u32,
}

fn shared_for<'a>(lent: &ViewerContext<'a>, server: SocketAddr) -> Option<&'a Inlet> {
    let same_family =
        |inlet: &&Inlet| inlet.socket().local_addr().is_ok_and(|l| l.is_ipv4() == server.is_ipv4());
    lent.shared_rtcp.iter().find(same_family)
}

impl RtspViewer {
    /// Begins to connect.
    pub(super) fn new(
        plan: &LoadPlan,
        seat: Seat,
        url: &RtspUrl,
        server: SocketAddr,
        now: Instant,
        lent: &mut ViewerContext<'_>,
    ) -> Result<Self, String> {
        let error = |error: std::io::Error| format!("connect: {}", error.kind());
        let stream = start_connect(server, plan.local_of(seat.index)).map_err(error)?;
        let chunk = if plan.options.transport == TransportChoice::Tcp { MEDIA_CHUNK } else { REPLY_CHUNK };
        lent.watch(CONNECTION, &stream, Interest::ReadWrite).map_err(error)?;
        Ok(Self {
            seat,
            stage: ViewerStage::Starting,
            is_connected: false,
            connection: Connection::new(stream, chunk),
            path: ViewerTransport::None,
            watches_write: true,
            failure: None,
            setup_us: None,
            measured: None,
            foreign: 0,
            dialogue: Dialogue::new(plan.dialogue.clone(), url),
            meter: Meter::default(),
            probed: None,
            unprobed: 0,
            probed_beside: None,
            length: None,
            is_paused: false,
            is_seeking: false,
            began: now,
            deadline: Some(now + plan.options.reply_timeout),
            report_at: None,
            ssrc: random_u64() as u32,
        })
    }

    fn fail(&mut self, now: Instant, lent: &mut ViewerContext<'_>, kind: String) {
        match self.stage {
            ViewerStage::Done => {}
            // It has played and was measured; how the farewell went is not counted against it.
            ViewerStage::Leaving => self.stage = ViewerStage::Done,
            _ => {
                self.measure(now, lent);
                self.failure = Some(kind);
                self.stage = ViewerStage::Done;
            }
        }
    }

    fn measure(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        if self.setup_us.is_some() && self.measured.is_none() {
            let hears_bye = match &self.path {
                ViewerTransport::Udp(udp) => udp.rtcp.is_some(),
                ViewerTransport::Tcp { .. } | ViewerTransport::None => true,
            };
            let end = Ending { is_paused: self.is_paused, hears_bye };
            let bye = (self.meter.has_bye(), self.meter.sent());
            let probed = self.probed.as_mut().map(|probed| {
                (probed.replaces_socket(), probed.live(), probed.finish(now, lent.unix_ns, end, bye))
            });
            let from_socket = self.meter.finish(lent.lateness, lent.unix_ns, end);
            self.measured = Some(match probed {
                Some((true, _, measured)) => measured,
                _ => from_socket,
            });
            self.probed_beside = probed.filter(|(replaces, ..)| !replaces).map(|(_, live, _)| live);
        }
    }

    /// Ends the session: BYE by RTCP and RTSP.
    fn begin_leaving(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        match self.stage {
            ViewerStage::Leaving | ViewerStage::Done => return,
            ViewerStage::Playing => {
                self.measure(now, lent);
                self.send_report(lent, true);
            }
            // It has only just come.
            ViewerStage::Starting if now.ns_since(self.began) < GRACE_NS => {}
            ViewerStage::Starting => {
                self.failure.get_or_insert_with(|| "not playing when time was over".to_owned());
            }
        }
        self.report_at = None;
        self.deadline = Some(now.plus_ns(FAREWELL_NS));
        self.stage = if self.dialogue.teardown(now) { ViewerStage::Leaving } else { ViewerStage::Done };
    }

    fn handle_connection(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        if !self.is_connected {
            match self.connection.stream().take_error() {
                Ok(None) => {
                    (self.is_connected, self.deadline) = (true, None);
                    self.dialogue.start(now);
                }
                Ok(Some(error)) | Err(error) => self.fail(now, lent, format!("connect: {}", error.kind())),
            }
        } else {
            self.read(now, lent);
        }
        self.handle_events(now, lent);
    }

    fn read(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        let state = self.connection.read();
        loop {
            let (message, len) = match next_item(self.connection.pending()) {
                Ok(None) => break,
                Ok(Some((Item::Message(message), len))) => (Some(message), len),
                Ok(Some((Item::Frame { channel, bytes }, len))) => {
                    match self.path {
                        _ if self.stage == ViewerStage::Leaving => {}
                        ViewerTransport::Tcp { rtp, .. } if channel == rtp => {
                            let unix_ns = lent.unix_ns;
                            self.meter.rtp(lent.lateness_of_read(), now, unix_ns, bytes);
                        }
                        ViewerTransport::Tcp { rtcp, .. } if channel == rtcp => self.meter.rtcp(bytes),
                        _ => self.foreign += 1,
                    }
                    (None, len)
                }
                Err(what) => {
                    self.dialogue.handle_garbage(what);
                    break;
                }
            };
            self.connection.consume(len);
            if let Some(message) = message {
                self.dialogue.handle_message(now, *message);
                // At once: frames behind the reply to PLAY must find it handled.
                self.handle_events(now, lent);
            }
        }
        if state == ReadState::Closed {
            self.dialogue.handle_closed();
        }
    }

    /// RTP has come. Takes one batch; returns the number of datagrams.
    fn handle_rtp(&mut self, now: Instant, lent: &mut ViewerContext<'_>) -> usize {
        let ViewerTransport::Udp(udp) = &mut self.path else { return 0 };
        let (meter, foreign, source) = (&mut self.meter, &mut self.foreign, udp.source.ip());
        let playing = matches!(self.stage, ViewerStage::Starting | ViewerStage::Playing);
        let is_probed = self.probed.as_ref().is_some_and(ProbeMeter::replaces_socket);
        let unprobed = &mut self.unprobed;
        let drained = udp.rtp.drain(|datagram| {
            if datagram.from.ip() != source {
                *foreign += 1;
            } else if is_probed {
                *unprobed += 1;
            } else if playing {
                let delay_ns = lent.unix_ns.saturating_sub(datagram.arrival_ns);
                lent.read_delay.saturating_record(delay_ns / 1000);
                meter.rtp(lent.lateness, now, datagram.arrival_ns, datagram.bytes);
            }
        });
        drained.unwrap_or_else(|error| {
            self.fail(now, lent, format!("RTP socket: {}", error.kind()));
            0
        })
    }

    /// Takes all RTP that has come, within a bound.
    fn drain_rtp(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        for _ in 0..MAX_DRAINS {
            if self.handle_rtp(now, lent) == 0 {
                return;
            }
        }
    }

    /// FEC has come.
    fn handle_fec(&mut self, now: Instant, kind: u8, lent: &mut ViewerContext<'_>) {
        // The media that it protects may have come in the same moment.
        self.handle_rtp(now, lent);
        let ViewerTransport::Udp(udp) = &mut self.path else { return };
        let Some(inlet) = udp.fec.get_mut(usize::from(kind - FEC)) else { return };
        let (meter, foreign, source) = (&mut self.meter, &mut self.foreign, udp.source.ip());
        let playing = matches!(self.stage, ViewerStage::Starting | ViewerStage::Playing);
        let drained = inlet.drain(|datagram| {
            if datagram.from.ip() != source {
                *foreign += 1;
            } else if playing {
                meter.fec(now, datagram.arrival_ns, datagram.bytes);
            }
        });
        if let Err(error) = drained {
            self.fail(now, lent, format!("FEC socket: {}", error.kind()));
        }
    }

    /// RTCP has come to the player's own socket.
    fn handle_rtcp(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        // Packets before a BYE are counted before it.
        self.drain_rtp(now, lent);
        let ViewerTransport::Udp(udp) = &mut self.path else { return };
        let (meter, foreign, source) = (&mut self.meter, &mut self.foreign, udp.source.ip());
        let Some(rtcp) = &mut udp.rtcp else { return };
        let drained =
            rtcp.drain(
                |datagram| {
                    if datagram.from.ip() == source { meter.rtcp(datagram.bytes) } else { *foreign += 1 }
                },
            );
        if let Err(error) = drained {
            self.fail(now, lent, format!("RTCP socket: {}", error.kind()));
        }
    }

    fn handle_events(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        while let Some(event) = self.dialogue.poll_event() {
            match event {
                DialogueEvent::Described(description) => {
                    let inspect = lent.plan.inspects(self.seat.index);
                    self.meter.describe(&description, inspect, lent.plan.options.media_clock);
                    self.length = description.range.and_then(|range| range.end);
                    match self.ask_for_transport(lent) {
                        Ok(wanted) => drop(self.dialogue.setup(now, wanted)),
                        Err(error) => self.fail(now, lent, error.to_string()),
                    }
                }
                DialogueEvent::TransportRefused => self.fail(now, lent, "SETUP refused: 461".to_owned()),
                DialogueEvent::Ready(reply) => {
                    self.agree(lent.plan.options.fec, &reply);
                    self.punch(lent);
                    let start = Some(lent.plan.place_of(self.seat.index));
                    let range = NptRange { start, end: None };
                    self.dialogue.play(now, lent.plan.options.sends_range.then_some(range));
                }
                DialogueEvent::Playing(reply) => self.handle_playing(now, &reply, lent),
                DialogueEvent::Paused => {
                    self.is_paused = !self.is_seeking;
                    self.meter.pause();
                    self.probed.iter_mut().for_each(ProbeMeter::pause);
                }
                DialogueEvent::Rendition(_) => {}
                DialogueEvent::Down => self.stage = ViewerStage::Done,
                DialogueEvent::Failed(RtspFailure::Closed { .. }) if self.stage == ViewerStage::Playing => {
                    self.fail(now, lent, "the server closed the connection while playing".to_owned());
                }
                DialogueEvent::Failed(failure) => self.fail(now, lent, failure.kind()),
            }
        }
    }

    fn handle_playing(&mut self, now: Instant, reply: &PlayReply, lent: &mut ViewerContext<'_>) {
        if self.is_seeking {
            self.meter.jump();
        }
        self.meter.begin_play(reply, lent.unix_ns, lent.lateness);
        if let Some(probed) = &mut self.probed {
            probed.begin_play(reply, now);
        }
        (self.is_paused, self.is_seeking) = (false, false);
        if self.stage == ViewerStage::Starting {
            self.setup_us = Some(now.ns_since(self.began) / 1000);
            self.stage = ViewerStage::Playing;
            self.schedule_report(now);
        }
    }

    /// A place that exists: none if the server does not say how long the title is.
    fn place(&self, place: SeekTarget) -> Option<MediaTicks> {
        match place {
            SeekTarget::At(at) => Some(at),
            // Not so near to the end that nothing is left to play.
            SeekTarget::Part(part) => {
                self.length.map(|length| MediaTicks((length.0 as f64 * 0.95 * part) as u64))
            }
        }
    }

    fn ask_for_transport(&mut self, lent: &mut ViewerContext<'_>) -> Result<TransportRequest, LoadError> {
        let options = &lent.plan.options;
        if options.transport == TransportChoice::Tcp {
            return Ok(TransportRequest::Tcp { rtp: 0, rtcp: 1 });
        }
        let error = |source| ClientError::Socket { what: "UDP port", source };
        let stream = self.connection.stream();
        let local = stream.local_addr().map_err(error)?.ip();
        let source = stream.peer_addr().map_err(error)?;
        let trains = Batch::Trains(if options.streams > FEW_VIEWERS { 2 } else { 4 });
        let bytes = options.receive_buffer_bytes;
        let shared =
            shared_for(lent, source).map(|shared| shared.socket().local_addr()).transpose().map_err(error)?;
        let (rtp, rtcp, rtcp_port, fec) = match shared {
            Some(shared) if options.fec == FecChoice::Off => {
                (UdpSocket::bind((local, 0)).map_err(error)?, None, shared.port(), Vec::new())
            }
            shared => {
                let (pair, fec) = bind_with_fec(local, lent.next_port, options.fec)?;
                let port = shared.map_or(pair.rtp_port + 1, |shared| shared.port());
                let own = shared.is_none().then(|| Inlet::new(pair.rtcp, Batch::Reports, bytes));
                (pair.rtp, own.transpose()?, port, fec)
            }
        };
        let fec = fec.into_iter().map(|socket| Inlet::new(socket, trains, bytes));
        let fec = fec.collect::<Result<Vec<_>, _>>()?;
        for (kind, inlet) in (FEC..).zip(&fec) {
            lent.watch(kind, inlet.socket(), Interest::Read).map_err(error)?;
        }
        let rtp_port = rtp.local_addr().map_err(error)?.port();
        let rtp = Inlet::new(rtp, trains, bytes)?;
        lent.watch(RTP, rtp.socket(), Interest::Read).map_err(error)?;
        if let Some(rtcp) = &rtcp {
            lent.watch(RTCP, rtcp.socket(), Interest::Read).map_err(error)?;
        }
        if let Some(probe) = &lent.plan.probe {
            let media = (self.meter.payload_type(), self.meter.clock_hz());
            let address = rtp.socket().local_addr().map_err(error)?;
            let probed = ProbeMeter::new(probe, self.seat.index, address, media, self.length);
            let refused = |source| LoadError::Probe { interface: "probe".to_owned(), source };
            self.probed = Some(probed.map_err(refused)?);
        }
        self.path = ViewerTransport::Udp(Box::new(Udp { rtp, rtcp, fec, server: None, source }));
        Ok(TransportRequest::Udp { rtp: rtp_port, rtcp: rtcp_port })
    }

    fn agree(&mut self, fec: FecChoice, reply: &TransportReply) {
        if fec != FecChoice::Off {
            let grant = reply.fec.clone().unwrap_or_default();
            self.meter.repair(grant.choice != FecChoice::Off, grant.shape, FEC_WAIT_NS);
        }
        match (&mut self.path, reply.agreed) {
            (ViewerTransport::Udp(udp), _) => {
                (udp.source, udp.server) = reply.server_addresses(udp.source);
            }
            (path, TransportRequest::Tcp { rtp, rtcp }) => *path = ViewerTransport::Tcp { rtp, rtcp },
            _ => {}
        }
    }

    /// Opens the way through address translators and firewalls: an empty RTP packet and an empty RR. Inside the
    /// connection nothing has to be opened, and servers (MediaMTX) hang up on a frame that comes before PLAY.
    fn punch(&mut self, lent: &ViewerContext<'_>) {
        let ViewerTransport::Udp(udp) = &self.path else { return };
        if let Some((rtp, _)) = udp.server {
            // If the network refuses it there is nothing to open.
            let _ = udp.rtp.socket().send_to(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], rtp);
        }
        self.send_report(lent, false);
    }

    /// The next receiver report in 2.5 to 5 s.
    fn schedule_report(&mut self, now: Instant) {
        self.report_at = Some(now.plus_ns(2_500_000_000 + random_u64() % 2_500_000_000));
    }

    fn send_report(&mut self, lent: &ViewerContext<'_>, bye: bool) {
        let hz = self.meter.clock_hz();
        let block = match self.probed.as_mut().filter(|probed| probed.replaces_socket()) {
            Some(probed) => probed.report_block(hz),
            None => self.meter.report_block(),
        };
        let mut report = [0; MAX_REPORT_BYTES];
        let len = write_receiver_report(&mut report, self.ssrc, block.as_ref(), CNAME, bye);
        match &self.path {
            ViewerTransport::None => {}
            ViewerTransport::Tcp { rtcp, .. } => self.connection.push_frame(*rtcp, &report[..len]),
            ViewerTransport::Udp(udp) => {
                let inlet = udp.rtcp.as_ref().or_else(|| shared_for(lent, udp.source));
                if let (Some(inlet), Some((_, to))) = (inlet, udp.server) {
                    // A report that is lost is followed by another.
                    let _ = inlet.socket().send_to(&report[..len], to);
                }
            }
        }
    }

    /// After every call: a farewell when BYE has come, bytes to the connection, and what epoll watches it for.
    fn settle(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        if self.stage == ViewerStage::Playing && self.meter.has_bye() {
            self.begin_leaving(now, lent);
        }
        if self.is_connected {
            self.dialogue.take_output(&mut self.connection.output);
            if !self.connection.write() {
                self.dialogue.handle_closed();
            }
        }
        let wants_write = !self.is_connected || !self.connection.output.is_empty();
        if wants_write != self.watches_write && self.stage != ViewerStage::Done {
            self.watches_write = wants_write;
            let interest = if wants_write { Interest::ReadWrite } else { Interest::Read };
            if let Err(error) = lent.rewatch(CONNECTION, &self.connection, interest) {
                self.fail(now, lent, format!("connection: {}", error.kind()));
            }
        }
    }
}

impl LoadViewer for RtspViewer {
    fn handle_ready(&mut self, now: Instant, kind: u8, lent: &mut ViewerContext<'_>) {
        match kind {
            // The remaining packets raise the next event.
            RTP => drop(self.handle_rtp(now, lent)),
            RTCP => self.handle_rtcp(now, lent),
            FEC.. => self.handle_fec(now, kind, lent),
            _ => self.handle_connection(now, lent),
        }
        self.settle(now, lent);
    }

    fn handle_timeout(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.deadline = None;
            self.fail(now, lent, "connect: timed out".to_owned());
        }
        if self.report_at.is_some_and(|at| now >= at) {
            self.schedule_report(now);
            self.send_report(lent, false);
        }
        self.meter.handle_timeout(now, lent.unix_ns);
        self.dialogue.handle_timeout(now);
        self.handle_events(now, lent);
        self.settle(now, lent);
    }

    fn command(&mut self, now: Instant, command: ViewerCommand, lent: &mut ViewerContext<'_>) -> bool {
        // One thing at a time: a viewer that is still waiting for a reply does not press the next button.
        if self.stage != ViewerStage::Playing || self.dialogue.is_busy() {
            return false;
        }
        let range = |start| Some(NptRange { start: Some(start), end: None });
        let done = match command {
            ViewerCommand::Pause if self.is_paused => false,
            ViewerCommand::Pause => self.dialogue.pause(now),
            ViewerCommand::Resume if !self.is_paused => false,
            ViewerCommand::Resume => self.dialogue.play(now, None),
            ViewerCommand::Seek(place) => match self.place(place) {
                None => false,
                Some(to) => {
                    self.is_seeking = true;
                    (self.is_paused || self.dialogue.pause(now)) && self.dialogue.play(now, range(to))
                }
            },
            ViewerCommand::Rendition(name) => self.dialogue.set_rendition(now, name),
            ViewerCommand::Scale(scale) => {
                self.is_seeking = true;
                let pace = PlaybackPace { scale: Some(scale), ..PlaybackPace::default() };
                (self.is_paused || self.dialogue.pause(now)) && self.dialogue.play_at(now, None, pace)
            }
        };
        self.settle(now, lent);
        done
    }

    fn drain(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        self.drain_rtp(now, lent);
        self.settle(now, lent);
    }

    fn leave(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        self.begin_leaving(now, lent);
        self.settle(now, lent);
    }

    fn status(&self) -> Status {
        let times = [self.deadline, self.dialogue.poll_at(), self.report_at, self.meter.poll_at()];
        Status { stage: self.stage, poll_at: times.into_iter().flatten().min() }
    }

    fn live(&self) -> Live {
        match (self.probed.as_ref().filter(|probed| probed.replaces_socket()), &self.measured) {
            // Packets that come later do not count.
            (Some(_), Some(m)) => {
                Live { packets: m.counts.received, payload_bytes: m.payload_bytes, lost: m.counts.lost }
            }
            (Some(probed), None) => probed.live(),
            (None, _) => Live {
                packets: self.meter.packets(),
                payload_bytes: self.meter.payload_bytes(),
                lost: self.meter.lost(),
            },
        }
    }

    fn media_inlet(&self) -> Option<&Inlet> {
        match &self.path {
            ViewerTransport::Udp(udp) => Some(&udp.rtp),
            _ => None,
        }
    }

    fn end(&mut self, _lent: &mut ViewerContext<'_>) -> ViewerOutcome {
        ViewerOutcome {
            failure: self.failure.take(),
            setup_us: self.setup_us,
            measured: self.measured,
            web: None,
            foreign: self.foreign,
            probed: self.probed_beside,
            unprobed: self.unprobed,
            socket: self.media_inlet().map(SocketCounts::of),
        }
    }
}
