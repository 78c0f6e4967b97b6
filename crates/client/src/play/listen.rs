//! A player that listens at an `rtp://` address: it sends no request and takes the packets that
//! come, with the FEC of ST 2022-1 if it is wanted.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::RtpHeader;
use rustix::event::{PollFd, PollFlags};

use super::connect::wait;
use super::media::MediaReceiver;
use super::progress::ProgressClock;
use super::summary::{SocketFacts, Summary};
use super::{PlayOptions, PlayProgress};
use crate::clock::SystemClock;
use crate::error::ClientError;
use crate::fec::{FecChoice, FecGrant};
use crate::limits::{BYE_LINGER_NS, PLAY_WAIT_NS, READS_PER_TURN};
use crate::listen::{ListenUrl, socket};
use crate::net::{Batch, COLUMN_PORT, Inlet, ROW_PORT};
use crate::procfs::UdpErrors;
use crate::report::{EndReason, ReceiverReport, ReceptionReport};
use crate::sink::SinkWriter;

pub(super) struct Listening<'a> {
    options: &'a PlayOptions,
    url: String,
    cancel: &'a AtomicBool,
    progress: &'a mut dyn FnMut(&PlayProgress),
    clock: SystemClock,
    rtp: Inlet,
    /// Absent if another process has the port.
    rtcp: Option<Inlet>,
    fec: Vec<Inlet>,
    media: MediaReceiver,
    /// The payload type is that of the first packet.
    is_described: bool,
    /// First packet.
    since: Option<Instant>,
    /// Last packet, or the start.
    alive_at: Instant,
    bye_at: Option<Instant>,
    clock_of_progress: ProgressClock,
    receiver: ReceiverReport,
    output_full_ns: u64,
    errors_before: UdpErrors,
}

impl<'a> Listening<'a> {
    /// Opens the ports.
    pub(super) fn start(
        options: &'a PlayOptions,
        url: &ListenUrl,
        cancel: &'a AtomicBool,
        progress: &'a mut dyn FnMut(&PlayProgress),
    ) -> Result<Self, ClientError> {
        let errors_before = UdpErrors::read();
        let rtp = open(url, 0, options, Batch::Single)?;
        let rtcp = open(url, 1, options, Batch::Reports).ok();
        let distances: &[u16] = if options.fec == FecChoice::Off { &[] } else { &[COLUMN_PORT, ROW_PORT] };
        let fec = distances.iter().map(|distance| open(url, *distance, options, Batch::Single));
        let fec = fec.collect::<Result<_, _>>()?;
        let sink = SinkWriter::start(&options.output, options.reference.as_deref())?;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut media = MediaReceiver::new(sink, options.reorder_packets, nanos(options.reorder_wait));
        if options.fec != FecChoice::Off {
            media.repair(nanos(options.fec_wait), None);
        }
        let now = SystemClock.now();
        Ok(Self {
            options,
            url: url.to_string(),
            cancel,
            progress,
            clock: SystemClock,
            receiver: ReceiverReport {
                receive_buffer_bytes: rtp.buffer_bytes() as u64,
                ..ReceiverReport::default()
            },
            rtp,
            rtcp,
            fec,
            media,
            is_described: false,
            since: None,
            alive_at: now,
            bye_at: None,
            clock_of_progress: ProgressClock::new(now),
            output_full_ns: 0,
            errors_before,
        })
    }

    /// Receives until it is over.
    pub(super) fn run(mut self) -> Result<ReceptionReport, ClientError> {
        loop {
            let was_full = self.media.sink().is_full();
            let before = self.clock.now();
            self.wait_for_something(before, was_full)?;
            let now = self.clock.now();
            if was_full {
                self.output_full_ns += now.ns_since(before);
            } else {
                self.take_media(now)?;
            }
            self.take_reports(now)?;
            self.media.turn(now);
            self.tell_progress(now);
            self.receiver.longest_turn_us =
                self.receiver.longest_turn_us.max(self.clock.now().ns_since(now) / 1000);
            if let Some(end) = self.end(now) {
                return self.report(now, end);
            }
        }
    }

    fn wait_for_something(&self, now: Instant, full: bool) -> Result<(), ClientError> {
        let due = self.media.poll_at().map_or(PLAY_WAIT_NS, |at| at.ns_since(now));
        let media = [&self.rtp].into_iter().chain(&self.fec).filter(|_| !full);
        let inlets = media.chain(&self.rtcp);
        let mut fds: Vec<_> = inlets.map(|inlet| PollFd::new(inlet.socket(), PollFlags::IN)).collect();
        wait(&mut fds, due.min(PLAY_WAIT_NS))
    }

    fn take_media(&mut self, now: Instant) -> Result<(), ClientError> {
        let error = |source| ClientError::Socket { what: "UDP receive", source };
        let (media, is_described, alive_at) = (&mut self.media, &mut self.is_described, &mut self.alive_at);
        for _ in 0..READS_PER_TURN {
            let taken = self.rtp.drain(|datagram| {
                if !*is_described && let Some((header, payload)) = RtpHeader::parse(datagram.bytes) {
                    let is_film = !payload.is_empty() && payload.len().is_multiple_of(TS_PACKET_BYTES);
                    media.set_payload_type(header.payload_type);
                    *is_described = is_film;
                }
                media.rtp(now, datagram.arrival_ns, datagram.bytes);
                *alive_at = now;
            });
            if taken.map_err(error)? == 0 {
                break;
            }
        }
        if self.since.is_none() && self.media.packets() > 0 {
            self.since = Some(now);
            self.clock_of_progress.begin(now, &self.media);
        }
        // After the media that it protects, which may have come in the same moment.
        for inlet in &mut self.fec {
            inlet.drain(|datagram| self.media.fec(now, datagram.bytes)).map_err(error)?;
        }
        Ok(())
    }

    fn take_reports(&mut self, now: Instant) -> Result<(), ClientError> {
        let Some(rtcp) = &mut self.rtcp else { return Ok(()) };
        let taken = rtcp.drain(|datagram| self.media.rtcp(datagram.arrival_ns, datagram.bytes));
        taken.map_err(|source| ClientError::Socket { what: "UDP receive", source })?;
        if self.media.has_bye() {
            self.bye_at.get_or_insert(now.plus_ns(BYE_LINGER_NS));
        }
        Ok(())
    }

    fn tell_progress(&mut self, now: Instant) {
        let Some(since) = self.since else { return };
        if let Some(progress) = self.clock_of_progress.look(now, since, &self.media, false) {
            (self.progress)(&progress);
        }
    }

    fn end(&self, now: Instant) -> Option<EndReason> {
        let over = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if self.cancel.load(Ordering::Relaxed) {
            Some(EndReason::Cancelled)
        } else if self.media.sink().is_gone() {
            Some(EndReason::OutputClosed)
        } else if over(self.bye_at) {
            Some(EndReason::Bye)
        } else if over(self.since.zip(self.options.duration).map(|(since, duration)| since + duration)) {
            Some(EndReason::Duration)
        } else {
            over(Some(self.alive_at + self.options.silence)).then_some(EndReason::Silence)
        }
    }

    fn report(self, now: Instant, end: EndReason) -> Result<ReceptionReport, ClientError> {
        let socket = SocketFacts::of(&self.rtp, self.rtcp.iter().chain(&self.fec));
        Summary {
            url: self.url,
            title: String::new(),
            transport: "udp",
            fallback: None,
            end,
            lasted_ns: self.since.map_or(0, |since| now.ns_since(since)),
            asked: self.options.fec,
            analyse: self.options.analyse,
            granted: FecGrant { choice: self.options.fec, ..FecGrant::default() },
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

/// The socket that listens `distance` ports behind that of the media.
fn open(url: &ListenUrl, distance: u16, options: &PlayOptions, batch: Batch) -> Result<Inlet, ClientError> {
    let failed = |why| ClientError::Listen { address: url.to_string(), distance, why };
    let port = url.port.checked_add(distance).ok_or_else(|| failed("there is no such port".to_owned()))?;
    let place = SocketAddr::new(url.address, port);
    let socket: UdpSocket = socket::open(url, place, options.local).map_err(failed)?;
    Inlet::new(socket, batch, options.receive_buffer_bytes)
}
