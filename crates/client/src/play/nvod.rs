//! A player of near video on demand: it learns the plan from the group in the address, joins the groups of the channels only while it
//! needs them, and hands the packets in order to the receiver that all streams have.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::limits::{DEFAULT_PACKET_BYTES, RTP_HEADER_BYTES};
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::{PAYLOAD_TYPE_MP2T, RtpHeader, sequence_of};
use millrace_nvod::{Announcement, channel_group};
use rustix::event::{PollFd, PollFlags};

use super::connect::wait;
use super::media::MediaReceiver;
use super::progress::ProgressClock;
use super::summary::{SocketFacts, Summary};
use super::{PlayOptions, PlayProgress};
use crate::clock::SystemClock;
use crate::error::ClientError;
use crate::fec::FecGrant;
use crate::limits::{NVOD_SILENCE_NS, PLAY_WAIT_NS, READS_PER_TURN};
use crate::listen::{ListenUrl, socket};
use crate::net::{Batch, Inlet};
use crate::nvod::Viewing;
use crate::procfs::UdpErrors;
use crate::report::{EndReason, ReceiverReport, ReceptionReport};
use crate::rtsp::dialogue::PlayReply;
use crate::rtsp::headers::{NptRange, RtpInfo};
use crate::sink::{Output, SinkWriter};

/// The first packet of a title.
const FIRST_PACKET: u32 = 0;

pub(super) struct NvodPlayer<'a> {
    options: &'a PlayOptions,
    url: ListenUrl,
    cancel: &'a AtomicBool,
    progress: &'a mut dyn FnMut(&PlayProgress),
    clock: SystemClock,
    control: Inlet,
    /// Joined now.
    channels: Vec<(u8, Inlet)>,
    viewing: Option<Viewing>,
    media: MediaReceiver,
    /// When the viewer arrived, by the wall clock.
    arrived_ns: u64,
    arrived: Instant,
    /// Last announcement or packet, or the start.
    alive_at: Instant,
    clock_of_progress: ProgressClock,
    receiver: ReceiverReport,
    output_full_ns: u64,
    errors_before: UdpErrors,
    datagram: Vec<u8>,
}

impl<'a> NvodPlayer<'a> {
    /// Joins the group of the announcements.
    pub(super) fn start(
        options: &'a PlayOptions,
        url: ListenUrl,
        cancel: &'a AtomicBool,
        progress: &'a mut dyn FnMut(&PlayProgress),
    ) -> Result<Self, ClientError> {
        let place = SocketAddr::new(url.address, url.port);
        if channel_group(place, 0).is_none() {
            return Err(ClientError::Target { given: options.url.clone(), why: "it is no multicast group" });
        }
        let errors_before = UdpErrors::read();
        let control = open(&url, place, options, Batch::Reports)?;
        let sink = SinkWriter::start(&options.output, options.reference.as_deref())?;
        let now = SystemClock.now();
        Ok(Self {
            options,
            url,
            cancel,
            progress,
            clock: SystemClock,
            control,
            channels: Vec::new(),
            viewing: None,
            // Packets come in order: a gap is a loss at once.
            media: MediaReceiver::new(sink, 1, 0),
            arrived_ns: SystemClock.unix_ns(),
            arrived: now,
            alive_at: now,
            clock_of_progress: ProgressClock::new(now),
            receiver: ReceiverReport::default(),
            output_full_ns: 0,
            errors_before,
            datagram: Vec::with_capacity(RTP_HEADER_BYTES + DEFAULT_PACKET_BYTES),
        })
    }

    /// Receives until it is over.
    pub(super) fn run(mut self) -> Result<ReceptionReport, ClientError> {
        loop {
            let before = self.clock.now();
            let was_full = self.media.sink().is_full();
            self.wait_for_something(before)?;
            let now = self.clock.now();
            self.take_announcements(now)?;
            self.take_packets(now)?;
            if was_full {
                self.output_full_ns += now.ns_since(before);
            } else {
                self.play_packets(now)?;
            }
            self.media.turn(now);
            self.change_channels(now)?;
            self.tell_progress(now);
            self.receiver.longest_turn_us =
                self.receiver.longest_turn_us.max(self.clock.now().ns_since(now) / 1000);
            if let Some(end) = self.end(now) {
                return self.report(now, end);
            }
        }
    }

    fn wait_for_something(&self, now: Instant) -> Result<(), ClientError> {
        let viewing = self.viewing.as_ref().filter(|_| !self.media.sink().is_full());
        let due =
            viewing.and_then(|viewing| viewing.poll_at(now)).into_iter().chain(self.media.poll_at()).min();
        let due = due.map_or(PLAY_WAIT_NS, |at| at.ns_since(now));
        let inlets = self.channels.iter().map(|(_, inlet)| inlet).chain([&self.control]);
        let mut fds: Vec<_> = inlets.map(|inlet| PollFd::new(inlet.socket(), PollFlags::IN)).collect();
        wait(&mut fds, due.min(PLAY_WAIT_NS))
    }

    fn take_announcements(&mut self, now: Instant) -> Result<(), ClientError> {
        let known = self.viewing.as_ref().map(|viewing| viewing.announced().session);
        // A plan takes time to make, so only the last of those that come together is read.
        let (mut last, mut malformed) = (Vec::new(), 0);
        let taken = self.control.drain(|datagram| match Announcement::session_in(datagram.bytes) {
            Some(session) if known.is_none_or(|known| known == session) => {
                last.clear();
                last.extend_from_slice(datagram.bytes);
            }
            Some(_) => {}
            None => malformed += 1,
        });
        taken.map_err(receive_failed)?;
        self.receiver.malformed += malformed;
        if last.is_empty() {
            return Ok(());
        }
        let Ok(announcement) = Announcement::parse(&last) else {
            self.receiver.malformed += 1;
            return Ok(());
        };
        match &mut self.viewing {
            Some(viewing) => {
                if announcement.session == viewing.announced().session {
                    self.alive_at = now;
                }
                viewing.announce(now, &announcement);
            }
            None => self.begin(now, announcement)?,
        }
        Ok(())
    }

    fn begin(&mut self, now: Instant, announcement: Announcement) -> Result<(), ClientError> {
        let is_eager = matches!(self.options.output, Output::File(_));
        let reply = PlayReply {
            range: Some(NptRange {
                start: Some(MediaTicks(0)),
                end: Some(MediaTicks::from_ns(announcement.plan.request().film_ns)),
            }),
            rtp_info: Some(RtpInfo {
                url: self.url.to_string(),
                sequence: Some(sequence_of(FIRST_PACKET)),
                timestamp: None,
            }),
            scale: None,
        };
        self.media.begin_play(Some("npt=0.000-".to_owned()), &reply, self.arrived_ns, 0);
        self.media.expect_packets(announcement.packets.into());
        let viewing = Viewing::new(now, announcement, is_eager, &std::env::temp_dir());
        self.viewing = Some(viewing.map_err(hold_failed)?);
        self.alive_at = now;
        self.change_channels(now)
    }

    fn take_packets(&mut self, now: Instant) -> Result<(), ClientError> {
        let Some(viewing) = &mut self.viewing else { return Ok(()) };
        for (_, inlet) in &mut self.channels {
            for _ in 0..READS_PER_TURN {
                let mut failure = Ok(());
                let taken = inlet.drain(|datagram| {
                    if failure.is_ok() {
                        failure = viewing.receive(datagram.bytes);
                    }
                });
                failure.map_err(hold_failed)?;
                if taken.map_err(receive_failed)? == 0 {
                    break;
                }
                self.alive_at = now;
            }
        }
        Ok(())
    }

    /// Hands over packets whose time has come, as RTP of the title's timeline.
    fn play_packets(&mut self, now: Instant) -> Result<(), ClientError> {
        let Some(viewing) = &mut self.viewing else { return Ok(()) };
        let ssrc = viewing.announced().session;
        let unix_ns = self.clock.unix_ns();
        while !self.media.sink().is_full() {
            self.datagram.clear();
            self.datagram.resize(RTP_HEADER_BYTES, 0);
            let played = viewing.play(now, &mut self.datagram).map_err(hold_failed)?;
            let Some(played) = played else { break };
            let header = RtpHeader {
                marker: false,
                payload_type: PAYLOAD_TYPE_MP2T,
                sequence: sequence_of(played.number),
                timestamp: played.time.0 as u32,
                ssrc,
            };
            self.datagram[..RTP_HEADER_BYTES].copy_from_slice(&header.emit());
            self.media.rtp(now, unix_ns, &self.datagram);
        }
        Ok(())
    }

    /// Joins groups that are needed from now on, and leaves the others.
    fn change_channels(&mut self, now: Instant) -> Result<(), ClientError> {
        let Some(viewing) = &self.viewing else { return Ok(()) };
        let is_over = viewing.is_over(now);
        let wanted: Vec<u8> = viewing.channels(now).filter(|_| !is_over).collect();
        let receiver = &mut self.receiver;
        self.channels.retain(|(channel, inlet)| {
            let stays = wanted.contains(channel);
            if !stays {
                receiver.socket_drops += inlet.dropped();
            }
            stays
        });
        let control = SocketAddr::new(self.url.address, self.url.port);
        for channel in wanted {
            if self.channels.iter().all(|(joined, _)| *joined != channel) {
                let group = channel_group(control, channel).ok_or_else(|| ClientError::Target {
                    given: self.options.url.clone(),
                    why: "there are not enough groups behind it",
                })?;
                self.channels.push((channel, open(&self.url, group, self.options, Batch::Single)?));
            }
        }
        Ok(())
    }

    fn tell_progress(&mut self, now: Instant) {
        if let Some(progress) = self.clock_of_progress.look(now, self.arrived, &self.media, false) {
            (self.progress)(&progress);
        }
    }

    fn end(&self, now: Instant) -> Option<EndReason> {
        if self.cancel.load(Ordering::Relaxed) {
            Some(EndReason::Cancelled)
        } else if self.media.sink().is_gone() {
            Some(EndReason::OutputClosed)
        } else if let Some(viewing) = self.viewing.as_ref().filter(|viewing| viewing.is_over(now)) {
            // A cast that ended before is not that of a whole title.
            let is_sent = viewing.is_whole() || now < self.alive_at.plus_ns(NVOD_SILENCE_NS);
            Some(if is_sent { EndReason::Complete } else { EndReason::Silence })
        } else if self.options.duration.is_some_and(|duration| now >= self.arrived + duration) {
            Some(EndReason::Duration)
        } else {
            (now >= self.alive_at + self.options.silence).then_some(EndReason::Silence)
        }
    }

    fn report(mut self, now: Instant, end: EndReason) -> Result<ReceptionReport, ClientError> {
        let title = self.viewing.as_ref().map(|viewing| viewing.announced().name.clone());
        self.receiver.foreign += self.viewing.as_ref().map_or(0, |viewing| viewing.useless().foreign);
        let joined = self.channels.iter().map(|(_, inlet)| inlet);
        let socket = SocketFacts::of(&self.control, joined);
        Summary {
            url: self.url.to_string(),
            title: title.unwrap_or_default(),
            transport: "udp",
            fallback: None,
            end,
            lasted_ns: now.ns_since(self.arrived),
            asked: self.options.fec,
            analyse: self.options.analyse,
            granted: FecGrant::default(),
            renditions: Vec::new(),
            media: self.media,
            receiver: self.receiver,
            socket,
            errors_before: self.errors_before,
            output_full_ns: self.output_full_ns,
        }
        .report()
    }
}

fn receive_failed(source: std::io::Error) -> ClientError {
    ClientError::Socket { what: "UDP receive", source }
}

fn hold_failed(source: std::io::Error) -> ClientError {
    ClientError::Socket { what: "packets held until they are played (TMPDIR)", source }
}

fn open(
    url: &ListenUrl,
    place: SocketAddr,
    options: &PlayOptions,
    batch: Batch,
) -> Result<Inlet, ClientError> {
    let failed = |why| ClientError::Listen { address: url.to_string(), distance: 0, why };
    let socket = socket::open(url, place, options.local).map_err(failed)?;
    Inlet::new(socket, batch, options.receive_buffer_bytes)
}
