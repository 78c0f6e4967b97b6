//! Packets that viewers send beside requests: RTCP by UDP or interleaved, and hole punches. They
//! are signs of life; the service judges their reports.

use std::net::SocketAddr;

use millrace_core::time::Instant;
use millrace_core::wire::rtcp::{self, ReportBlock, RtcpPacket};

use super::server::{RtspFace, canonical};
use crate::service::{ConnKey, EndReason, PlaybackStream, ServiceEvent, StreamKey, StreamPath};

/// On which of the server's two UDP ports a datagram came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpPort {
    /// Hole punches: anything, read and thrown away.
    Rtp,
    /// Receiver reports.
    Rtcp,
}

/// The relevant content of a compound RTCP packet.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// It begins with RTCP at all.
    is_rtcp: bool,
    block: Option<ReportBlock>,
    bye: bool,
}

fn read(bytes: &[u8]) -> Heard {
    let mut heard = Heard::default();
    for packet in rtcp::parse(bytes) {
        heard.is_rtcp = true;
        match packet {
            RtcpPacket::ReceiverReport { block, .. } => heard.block = block.or(heard.block),
            RtcpPacket::Bye { .. } => heard.bye = true,
            RtcpPacket::SenderReport(_) | RtcpPacket::Other(_) => {}
        }
    }
    heard
}

impl RtspFace<'_> {
    /// A datagram from somewhere. It keeps the sessions alive whose viewer has this address.
    pub fn handle_datagram(&mut self, now: Instant, port: UdpPort, from: SocketAddr, bytes: &[u8]) {
        let from = canonical(from);
        let heard = if port == UdpPort::Rtcp { read(bytes) } else { Heard::default() };
        let mut keys = self.service.at_port(from.ip(), from.port()).to_vec();
        if keys.is_empty() {
            keys.extend(self.only_session_of(from, &heard));
        }
        self.tell(ServiceEvent::Heard { is_report: port == UdpPort::Rtcp, is_known: !keys.is_empty() });
        for key in keys {
            self.heard_from(now, key, &heard);
        }
    }

    /// Finds the session for a report from an unannounced port (some players send from another
    /// one): it counts if the address has exactly one session with this source.
    fn only_session_of(&self, from: SocketAddr, heard: &Heard) -> Option<StreamKey> {
        let ssrc = heard.block?.ssrc;
        let stream = self.service.only_stream_of(from.ip(), ssrc);
        stream.or_else(|| self.service.only_listener_of(from.ip(), ssrc))
    }

    /// An interleaved frame from a viewer.
    pub fn handle_interleaved(&mut self, now: Instant, conn: ConnKey, channel: u8, bytes: &[u8]) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        state.last_message = Some(now);
        let takes = |stream: &&PlaybackStream| {
            matches!(stream.path(), StreamPath::Interleaved { conn: on, rtp_channel, rtcp_channel }
                if on == conn && (channel == rtp_channel || channel == rtcp_channel))
        };
        let streams = self.service.streams_of(conn).iter().filter_map(|key| self.service.stream(*key));
        let mine = { streams }.find(takes).map(PlaybackStream::key);
        self.tell(ServiceEvent::Heard { is_report: true, is_known: mine.is_some() });
        if let Some(key) = mine {
            self.heard_from(now, key, &read(bytes));
        }
    }

    fn heard_from(&mut self, now: Instant, key: StreamKey, heard: &Heard) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if let Some(report) = heard.block {
            self.service.note_report(now, key, report);
        }
        if !heard.bye {
            session.said_bye = false;
            return self.service.note_alive(now, key);
        }
        // BYE is no sign of life. Anybody can send it in another's name, so alone it ends nothing.
        session.said_bye = true;
        if self.service.stream(key).is_some_and(|stream| stream.owner().is_none()) {
            self.end_session(now, key, EndReason::Disconnected);
        }
    }
}
