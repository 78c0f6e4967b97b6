//! What viewers send beside requests: RTCP by UDP or interleaved, and hole punches. Signs of life, nothing more.

use std::net::SocketAddr;

use millrace_core::time::Instant;
use millrace_core::wire::rtcp::{self, ReportBlock, RtcpPacket};

use super::server::{ConnKey, Server, SessionKey, canonical};
use super::state::{EndReason, Path};

/// On which of the server's two UDP ports a datagram came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpPort {
    /// Hole punches: anything, read and thrown away.
    Rtp,
    /// Receiver reports.
    Rtcp,
}

/// What a compound RTCP packet says that matters here.
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

impl Server {
    /// A datagram from somewhere. It keeps the sessions alive whose viewer has this address.
    pub fn handle_datagram(&mut self, now: Instant, port: UdpPort, from: SocketAddr, bytes: &[u8]) {
        let from = canonical(from);
        let heard = if port == UdpPort::Rtcp { read(bytes) } else { Heard::default() };
        let keys = match self.by_udp.get(&(from.ip(), from.port())) {
            Some(keys) => keys.clone(),
            None => self.only_session_of(from, &heard).into_iter().collect(),
        };
        if keys.is_empty() {
            self.counters.rtcp_unknown += u64::from(port == UdpPort::Rtcp);
            return;
        }
        match port {
            UdpPort::Rtp => self.counters.punches += 1,
            UdpPort::Rtcp => self.counters.rtcp_received += 1,
        }
        for key in keys {
            self.heard_from(now, key, &heard);
        }
    }

    /// A report from a port that nobody named (some players send from another one): counts if the address has exactly
    /// one session with this source.
    fn only_session_of(&self, from: SocketAddr, heard: &Heard) -> Option<SessionKey> {
        let ssrc = heard.block?.ssrc;
        let mut fitting = self.sessions.values().filter(|session| {
            matches!(session.path, Path::Udp { .. })
                && session.peer.ip() == from.ip()
                && session.entry.timeline.ssrc == ssrc
        });
        match (fitting.next(), fitting.next()) {
            (Some(session), None) => Some(session.key),
            _ => None,
        }
    }

    /// An interleaved frame from a viewer.
    pub fn handle_interleaved(&mut self, now: Instant, conn: ConnKey, channel: u8, bytes: &[u8]) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        state.last_message = Some(now);
        let mine = state.sessions.iter().filter_map(|key| self.sessions.get(key)).find(|session| {
            matches!(session.path, Path::Tcp { conn: on, rtp_channel, rtcp_channel }
                if on == conn && (channel == rtp_channel || channel == rtcp_channel))
        });
        match mine.map(|session| session.key) {
            Some(key) => {
                self.counters.rtcp_received += 1;
                self.heard_from(now, key, &read(bytes));
            }
            None => self.counters.rtcp_unknown += 1,
        }
    }

    fn heard_from(&mut self, now: Instant, key: SessionKey, heard: &Heard) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if heard.block.is_some() {
            session.report = heard.block;
        }
        if !heard.bye {
            (session.last_heard, session.said_bye) = (now, false);
            return;
        }
        // BYE is no sign of life. Anybody can send it in another's name, so alone it ends nothing.
        session.said_bye = true;
        if session.owner.is_none() {
            self.end_session(now, key, EndReason::Disconnected);
        }
    }
}
