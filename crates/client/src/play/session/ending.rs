//! How a session ends: BYE to the server, then the report.

use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use rustix::event::{PollFd, PollFlags};

use super::{PLAY_WAIT_NS, Session, SessionTransport};
use crate::error::ClientError;
use crate::limits::PLAY_FAREWELL_NS;
use crate::net::ReadState;
use crate::play::connect::wait;
use crate::play::summary::{SocketFacts, Summary};
use crate::report::{EndReason, ReceptionReport};
use crate::rtsp::framing::{Item, next_item};

impl Session<'_> {
    /// Says BYE by RTCP and RTSP and waits a little for the answer; media that still comes is left alone.
    pub(super) fn farewell(&mut self) -> Result<(), ClientError> {
        let deadline = self.clock.now().plus_ns(PLAY_FAREWELL_NS);
        if self.agenda.playing_since.is_some() {
            self.send_report(true);
        }
        self.dialogue.teardown(self.clock.now());
        while self.dialogue.session().is_some() && self.dialogue.is_busy() && self.clock.now() < deadline {
            self.write_connection();
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !self.connection.output.is_empty());
            wait(&mut [PollFd::new(&self.connection, flags)], PLAY_WAIT_NS)?;
            self.drop_media_until_a_message();
            self.dialogue.handle_timeout(self.clock.now());
        }
        Ok(())
    }

    fn drop_media_until_a_message(&mut self) {
        let state = self.connection.read();
        loop {
            let (message, len) = match next_item(self.connection.pending()) {
                Ok(None) => break,
                Ok(Some((Item::Frame { .. }, len))) => (None, len),
                Ok(Some((Item::Message(message), len))) => (Some(message), len),
                Err(what) => return self.dialogue.handle_garbage(what),
            };
            self.connection.consume(len);
            if let Some(message) = message {
                self.dialogue.handle_message(self.clock.now(), *message);
            }
        }
        if state == ReadState::Closed {
            self.dialogue.handle_closed();
        }
    }

    pub(super) fn report(self, ended_at: Instant) -> Result<ReceptionReport, ClientError> {
        let (transport, socket) = match &self.path {
            SessionTransport::Udp(udp) => {
                ("udp", SocketFacts::of(&udp.rtp, [&udp.rtcp].into_iter().chain(&udp.fec)))
            }
            SessionTransport::Tcp { .. } => ("tcp", SocketFacts::default()),
            SessionTransport::None => ("udp", SocketFacts::default()),
        };
        Summary {
            url: self.url.to_string(),
            title: self.title,
            transport,
            fallback: self.way.fallback,
            end: self.end.unwrap_or(EndReason::Cancelled),
            lasted_ns: self.agenda.playing_since.map_or(0, |since| ended_at.ns_since(since)),
            asked: self.options.fec,
            analyse: self.options.analyse,
            granted: self.granted,
            renditions: self.renditions,
            media: self.media,
            receiver: self.receiver,
            socket,
            errors_before: self.errors_before,
            output_full_ns: self.output_full_ns,
        }
        .report()
    }
}
