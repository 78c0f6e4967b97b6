//! The loop of one player: RTSP connection, RTP and RTCP in one `poll`; nothing in it ever blocks.

mod agenda;
mod ending;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::wire::rtcp::{MAX_REPORT_BYTES, write_receiver_report};
use rtsp_types::Message;
use rustix::event::{PollFd, PollFlags};

use agenda::Agenda;

use super::connect::{connect, wait};
use super::media::MediaReceiver;
use super::progress::ProgressClock;
use super::{PlayOptions, PlayProgress, TransportChoice};
use crate::clock::{SystemClock, random_u64};
use crate::error::{ClientError, RtspFailure, advice_for};
use crate::fec::{FecChoice, FecGrant};
use crate::limits::{PLAY_WAIT_NS, READ_CHUNK, READS_PER_TURN};
use crate::net::{Batch, COLUMN_PORT, Connection, FIRST_PORT, FURTHER_PORT, Inlet, ReadState, bind_with_fec};
use crate::procfs::{UdpErrors, run_delay_ns};
use crate::report::{EndReason, ReceiverReport, ReceptionReport};
use crate::rtsp::dialogue::{Dialogue, DialogueConfig, DialogueEvent, DialoguePhase, PlayReply};
use crate::rtsp::framing::{Item, next_item};
use crate::rtsp::headers::{NptRange, PlaybackPace};
use crate::rtsp::transport::{TransportReply, TransportRequest};
use crate::sdp::Take;
use crate::sink::SinkWriter;
use crate::url::RtspUrl;

/// Transport to try, and why it is not the first choice.
pub(super) struct TransportAttempt {
    pub(super) choice: TransportChoice,
    pub(super) fallback: Option<String>,
}

/// How a session ended.
pub(super) enum SessionOutcome {
    Done(Box<ReceptionReport>),
    /// Not one packet came over UDP; the sink was not used.
    NothingByUdp(SinkWriter),
}

/// UDP sockets of the session, and where to send.
struct Udp {
    rtp: Inlet,
    rtcp: Inlet,
    /// Where FEC comes.
    fec: Vec<Inlet>,
    rtp_port: u16,
    /// The server's RTP and RTCP addresses, if it named its ports.
    server: Option<(SocketAddr, SocketAddr)>,
    /// The server's address; its port means nothing here.
    source: SocketAddr,
}

/// Transport of the media, once agreed.
enum SessionTransport {
    None,
    Udp(Box<Udp>),
    Tcp { rtp: u8, rtcp: u8 },
}

pub(super) struct Session<'a> {
    options: &'a PlayOptions,
    way: TransportAttempt,
    cancel: &'a AtomicBool,
    progress: &'a mut dyn FnMut(&PlayProgress),
    clock: SystemClock,
    url: RtspUrl,
    title: String,
    connection: Connection,
    dialogue: Dialogue,
    path: SessionTransport,
    media: MediaReceiver,
    /// Ranges of the PLAYs whose replies are still to come.
    asked: VecDeque<Option<NptRange>>,
    /// How fast PLAY asks for it.
    pace: PlaybackPace,
    /// How long this thread had waited for a processor when PLAY was sent.
    run_delay_ns: u64,
    agenda: Agenda,
    receiver: ReceiverReport,
    /// What FEC was granted.
    granted: FecGrant,
    /// The server's answers to requests for another rendition.
    renditions: Vec<String>,
    output_full_ns: u64,
    errors_before: UdpErrors,
    ssrc: u32,
    end: Option<EndReason>,
    failure: Option<RtspFailure>,
    nothing_by_udp: bool,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl<'a> Session<'a> {
    /// Connects.
    pub(super) fn connect(
        options: &'a PlayOptions,
        url: &RtspUrl,
        way: TransportAttempt,
        sink: SinkWriter,
        cancel: &'a AtomicBool,
        progress: &'a mut dyn FnMut(&PlayProgress),
    ) -> Result<Self, ClientError> {
        let errors_before = UdpErrors::read();
        let stream = connect(url, options, cancel)?;
        let clock = SystemClock;
        let now = clock.now();
        let config = DialogueConfig {
            user_agent: options.user_agent.as_str().into(),
            reply_timeout_ns: nanos(options.reply_timeout),
            take: Take::TransportStream,
            fec: options.fec,
        };
        Ok(Self {
            options,
            way,
            cancel,
            progress,
            clock,
            url: url.clone(),
            title: String::new(),
            connection: Connection::new(stream, READ_CHUNK),
            dialogue: Dialogue::new(config, url),
            path: SessionTransport::None,
            media: MediaReceiver::new(sink, options.reorder_packets, nanos(options.reorder_wait)),
            asked: VecDeque::new(),
            pace: options.pace,
            run_delay_ns: 0,
            agenda: Agenda {
                playing_since: None,
                report_at: now,
                progress: ProgressClock::new(now),
                alive_at: now,
                bye_at: None,
                next_step: 0,
            },
            receiver: ReceiverReport::default(),
            granted: FecGrant::default(),
            renditions: Vec::new(),
            output_full_ns: 0,
            errors_before,
            ssrc: random_u64() as u32,
            end: None,
            failure: None,
            nothing_by_udp: false,
        })
    }

    /// Runs the session to its end.
    pub(super) fn run(mut self) -> Result<SessionOutcome, ClientError> {
        self.dialogue.start(self.clock.now());
        while self.end.is_none() && self.failure.is_none() && !self.nothing_by_udp {
            self.turn()?;
        }
        let ended_at = self.clock.now();
        self.farewell()?;
        if self.nothing_by_udp {
            return Ok(SessionOutcome::NothingByUdp(self.media.into_sink()));
        }
        match self.failure.take() {
            Some(failure) => Err(ClientError::Rtsp { url: self.url.to_string(), failure }),
            None if self.agenda.playing_since.is_none() => Err(ClientError::Cancelled),
            None => self.report(ended_at).map(|report| SessionOutcome::Done(Box::new(report))),
        }
    }

    /// One turn of the loop.
    fn turn(&mut self) -> Result<(), ClientError> {
        let was_full = self.media.sink().is_full();
        let before = self.clock.now();
        self.wait_for_something(before, was_full)?;
        let now = self.clock.now();
        if was_full {
            self.output_full_ns += now.ns_since(before);
            // While media is left in the kernel, replies may lie behind it.
            self.dialogue.postpone(now);
        }
        let reads_tcp = !(was_full && matches!(self.path, SessionTransport::Tcp { .. }));
        // RTSP first: packets that come right behind the reply to PLAY must find it handled.
        if reads_tcp {
            self.read_connection(now)?;
        }
        self.handle_events(now, self.clock.unix_ns())?;
        self.read_udp(now, was_full)?;
        self.media.turn(now);
        self.dialogue.handle_timeout(now);
        self.follow_script(now);
        self.send_report_if_due(now);
        self.tell_progress(now);
        self.write_connection();
        self.check_end(now);
        self.receiver.longest_turn_us =
            self.receiver.longest_turn_us.max(self.clock.now().ns_since(now) / 1000);
        Ok(())
    }

    fn poll_at(&self) -> Instant {
        let agenda = &self.agenda;
        let playing = self.dialogue.phase() == DialoguePhase::Playing;
        let step = self.options.script.0.get(agenda.next_step);
        let since = agenda.playing_since;
        [
            self.dialogue.poll_at(),
            self.media.poll_at(),
            agenda.bye_at,
            since.map(|_| agenda.report_at.min(agenda.progress.due())),
            since.zip(self.options.duration).map(|(since, duration)| since + duration),
            since.zip(step).map(|(since, step)| since.plus_ns(step.at_ns)),
            playing.then(|| agenda.alive_at + self.options.silence),
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(Instant(u64::MAX))
    }

    fn wait_for_something(&self, now: Instant, full: bool) -> Result<(), ClientError> {
        let timeout_ns = self.poll_at().ns_since(now).min(PLAY_WAIT_NS);
        let mut fds = Vec::with_capacity(5);
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !(full && matches!(self.path, SessionTransport::Tcp { .. })));
        flags.set(PollFlags::OUT, !self.connection.output.is_empty());
        // A descriptor that is watched for nothing would still wake the loop when the other side hangs up.
        if !flags.is_empty() {
            fds.push(PollFd::new(&self.connection, flags));
        }
        if let SessionTransport::Udp(udp) = &self.path {
            fds.push(PollFd::new(udp.rtcp.socket(), PollFlags::IN));
            if !full {
                fds.push(PollFd::new(udp.rtp.socket(), PollFlags::IN));
                fds.extend(udp.fec.iter().map(|inlet| PollFd::new(inlet.socket(), PollFlags::IN)));
            }
        }
        wait(&mut fds, timeout_ns)
    }

    /// Takes the available data of the RTSP connection: messages and interleaved frames.
    fn read_connection(&mut self, now: Instant) -> Result<(), ClientError> {
        for _ in 0..READS_PER_TURN {
            let state = self.connection.read();
            let arrival_ns = self.clock.unix_ns();
            while let Some(message) = self.next_message(now, arrival_ns) {
                self.dialogue.handle_message(now, *message);
                // At once: frames behind a reply to PLAY belong to the run that it begins.
                self.handle_events(now, arrival_ns)?;
            }
            match state {
                ReadState::More => {}
                ReadState::Drained => break,
                ReadState::Closed => {
                    self.dialogue.handle_closed();
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes frames up to the next message; `None` if more bytes are needed for one.
    fn next_message(&mut self, now: Instant, arrival_ns: u64) -> Option<Box<Message<Vec<u8>>>> {
        loop {
            let (message, len) = match next_item(self.connection.pending()) {
                Ok(found) => match found? {
                    (Item::Message(message), len) => (Some(message), len),
                    (Item::Frame { channel, bytes }, len) => {
                        match self.path {
                            SessionTransport::Tcp { rtp, .. } if channel == rtp => {
                                self.media.rtp(now, arrival_ns, bytes);
                                self.agenda.alive_at = now;
                            }
                            SessionTransport::Tcp { rtcp, .. } if channel == rtcp => {
                                self.media.rtcp(arrival_ns, bytes)
                            }
                            _ => self.receiver.foreign += 1,
                        }
                        (None, len)
                    }
                },
                Err(what) => {
                    self.dialogue.handle_garbage(what);
                    return None;
                }
            };
            self.connection.consume(len);
            if message.is_some() {
                return message;
            }
        }
    }

    fn read_udp(&mut self, now: Instant, full: bool) -> Result<(), ClientError> {
        let SessionTransport::Udp(udp) = &mut self.path else { return Ok(()) };
        let Udp { rtp, rtcp, fec, source, .. } = &mut **udp;
        let error = |source| ClientError::Socket { what: "UDP receive", source };
        let mut foreign = 0;
        if !full {
            for _ in 0..READS_PER_TURN {
                let count = rtp.drain(|datagram| {
                    if datagram.from.ip() == source.ip() {
                        self.media.rtp(now, datagram.arrival_ns, datagram.bytes);
                        self.agenda.alive_at = now;
                    } else {
                        foreign += 1;
                    }
                });
                if count.map_err(error)? == 0 {
                    break;
                }
            }
        }
        // After the media that it protects, which may have come in the same moment.
        for inlet in fec.iter_mut().filter(|_| !full) {
            let taken = inlet.drain(|datagram| {
                if datagram.from.ip() == source.ip() {
                    self.media.fec(now, datagram.bytes);
                } else {
                    foreign += 1;
                }
            });
            taken.map_err(error)?;
        }
        // After RTP, so that a BYE finds the packets before it counted.
        rtcp.drain(|datagram| {
            if datagram.from.ip() == source.ip() {
                self.media.rtcp(datagram.arrival_ns, datagram.bytes);
            } else {
                foreign += 1;
            }
        })
        .map_err(error)?;
        self.receiver.foreign += foreign;
        Ok(())
    }

    fn write_connection(&mut self) {
        self.dialogue.take_output(&mut self.connection.output);
        if !self.connection.write() {
            self.dialogue.handle_closed();
        }
    }

    // ---- the dialogue ----

    fn handle_events(&mut self, now: Instant, arrival_ns: u64) -> Result<(), ClientError> {
        while let Some(event) = self.dialogue.poll_event() {
            match event {
                DialogueEvent::Described(description) => {
                    self.media.set_payload_type(description.payload_type);
                    self.title = description.name;
                    self.ask_for_transport(now)?;
                }
                DialogueEvent::TransportRefused => self.transport_refused(now),
                DialogueEvent::Ready(reply) => self.agree(now, &reply),
                DialogueEvent::Playing(reply) => self.begin_play(now, &reply, arrival_ns),
                DialogueEvent::Paused => self.media.pause(),
                DialogueEvent::Rendition(told) => {
                    let told = told.unwrap_or_else(|(status, reason)| format!("{status} {reason}"));
                    self.renditions.push(told);
                }
                DialogueEvent::Down => {}
                DialogueEvent::Failed(failure) => self.failed(failure),
            }
        }
        Ok(())
    }

    fn failed(&mut self, failure: RtspFailure) {
        // While media flows, a server that hangs up is something to report, not a reason to report nothing.
        if self.agenda.playing_since.is_some() && matches!(failure, RtspFailure::Closed { .. }) {
            self.end.get_or_insert(EndReason::ServerClosed);
        } else {
            self.failure.get_or_insert(failure);
        }
    }

    fn ask_for_transport(&mut self, now: Instant) -> Result<(), ClientError> {
        let wanted = if self.way.choice == TransportChoice::Tcp {
            TransportRequest::Tcp { rtp: 0, rtcp: 1 }
        } else {
            let stream = self.connection.stream();
            let error = |source| ClientError::Socket { what: "RTSP connection", source };
            let local = stream.local_addr().map_err(error)?.ip();
            let source = stream.peer_addr().map_err(error)?;
            let mut next = FIRST_PORT + (random_u64() % 50_000) as u16;
            let (pair, fec) = bind_with_fec(local, &mut next, self.options.fec)?;
            let fec_inlet = |socket| Inlet::new(socket, Batch::Single, self.options.receive_buffer_bytes);
            let fec = fec.into_iter().map(fec_inlet).collect::<Result<_, _>>()?;
            let rtp = Inlet::new(pair.rtp, Batch::Single, self.options.receive_buffer_bytes)?;
            let rtcp = Inlet::new(pair.rtcp, Batch::Reports, self.options.receive_buffer_bytes)?;
            self.receiver.receive_buffer_bytes = rtp.buffer_bytes() as u64;
            let rtp_port = pair.rtp_port;
            self.path =
                SessionTransport::Udp(Box::new(Udp { rtp, rtcp, fec, rtp_port, server: None, source }));
            TransportRequest::Udp { rtp: pair.rtp_port, rtcp: pair.rtp_port + 1 }
        };
        self.dialogue.setup(now, wanted);
        Ok(())
    }

    fn transport_refused(&mut self, now: Instant) {
        if self.way.choice == TransportChoice::Auto && matches!(self.path, SessionTransport::Udp(_)) {
            self.way = TransportAttempt {
                choice: TransportChoice::Tcp,
                fallback: Some("the server refused UDP with 461".to_owned()),
            };
            self.path = SessionTransport::None;
            self.receiver.receive_buffer_bytes = 0;
            self.dialogue.setup(now, TransportRequest::Tcp { rtp: 0, rtcp: 1 });
        } else {
            let reason = "Unsupported Transport".to_owned();
            self.failed(RtspFailure::Status {
                method: "SETUP",
                status: 461,
                reason,
                advice: advice_for(461),
            });
        }
    }

    fn agree(&mut self, now: Instant, reply: &TransportReply) {
        match (&mut self.path, reply.agreed) {
            (SessionTransport::Udp(udp), TransportRequest::Udp { rtp, .. }) => {
                if rtp != udp.rtp_port {
                    let what = format!("Transport: requested port {}, got {rtp}", udp.rtp_port);
                    return self.failed(RtspFailure::Malformed { method: "SETUP", what });
                }
                (udp.source, udp.server) = reply.server_addresses(udp.source);
                let port = udp.rtp_port;
                if let Err(what) = self.agree_on_fec(reply, port) {
                    return self.failed(RtspFailure::Malformed { method: "SETUP", what });
                }
            }
            (path, TransportRequest::Tcp { rtp, rtcp }) => *path = SessionTransport::Tcp { rtp, rtcp },
            _ => {}
        }
        let start = Some(self.options.start.unwrap_or_default());
        self.play(now, Some(NptRange { start, end: self.options.end }));
    }

    /// Takes the FEC that is granted for the RTP port `port`.
    fn agree_on_fec(&mut self, reply: &TransportReply, port: u16) -> Result<(), String> {
        self.granted = reply.fec.clone().unwrap_or_default();
        if self.options.fec == FecChoice::Off || self.granted.choice == FecChoice::Off {
            self.granted.choice = FecChoice::Off;
            return Ok(());
        }
        let ports = [(self.granted.xor_port, COLUMN_PORT), (self.granted.further_port, FURTHER_PORT)];
        for (given, distance) in ports {
            if given.is_some_and(|given| given != port + distance) {
                return Err(format!("FEC to port {}, expected {}", given.unwrap_or(0), port + distance));
            }
        }
        self.media.repair(nanos(self.options.fec_wait), self.granted.shape);
        Ok(())
    }

    fn play(&mut self, now: Instant, range: Option<NptRange>) {
        self.punch();
        if self.asked.is_empty() {
            self.run_delay_ns = run_delay_ns();
        }
        if self.dialogue.play_at(now, range, self.pace) {
            self.asked.push_back(range);
        }
    }

    /// Opens the way through address translators and firewalls as ffmpeg does: an empty RTP packet and an empty RR.
    fn punch(&mut self) {
        let SessionTransport::Udp(udp) = &self.path else { return };
        let Some((rtp, rtcp)) = udp.server else { return };
        let mut report = [0; MAX_REPORT_BYTES];
        let len = write_receiver_report(&mut report, self.ssrc, None, &self.options.cname, false);
        // Either may be refused by the network; then there is nothing to open.
        let _ = udp.rtp.socket().send_to(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], rtp);
        let _ = udp.rtcp.socket().send_to(&report[..len], rtcp);
    }

    fn begin_play(&mut self, now: Instant, reply: &PlayReply, reply_ns: u64) {
        let asked = self.asked.pop_front().flatten().map(|range| range.to_string());
        let read_late_ns = run_delay_ns().saturating_sub(self.run_delay_ns);
        self.media.begin_play(asked, reply, reply_ns, read_late_ns);
        self.agenda.alive_at = now;
        self.agenda.bye_at = None;
        if self.agenda.playing_since.is_none() {
            self.agenda.playing_since = Some(now);
            self.agenda.progress.begin(now, &self.media);
            self.schedule_report(now);
        }
    }
}
