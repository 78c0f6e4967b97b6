//! A look at the connections, some at a time: each request continues where the last look has ended.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_core::time::Instant;

use super::{Core, Listening, SocketConnection, SocketUse};
use crate::limits::{SURVEY_CONNECTIONS, SURVEY_PLACES};
use crate::toe::status::{ConnectionFigures, ConnectionStatus, Owner};

/// A question for connections, and the answer. Made before it is asked: the engine allocates nothing.
pub(in crate::toe) struct Survey {
    /// Where to begin: 0, or the position from the last answer.
    pub(in crate::toe) from: u32,
    /// Where to go on; `None`: that was all.
    pub(in crate::toe) next: Option<u32>,
    pub(in crate::toe) found: Vec<ConnectionStatus>,
}

impl Survey {
    pub(in crate::toe) fn new() -> Self {
        Self { from: 0, next: None, found: Vec::with_capacity(SURVEY_CONNECTIONS) }
    }
}

impl Core {
    /// Looks at the listeners and connections from `survey.from` on, as many as fit a turn.
    pub(in crate::toe) fn survey(&self, survey: &mut Survey, now: Instant) {
        let listeners = self.listeners.len() as u32;
        let all = listeners.saturating_add(self.stack.capacity());
        let end = survey.from.saturating_add(SURVEY_PLACES).min(all);
        let mut at = survey.from;
        survey.found.clear();
        while at < end && survey.found.len() < SURVEY_CONNECTIONS {
            survey.found.extend(match at.checked_sub(listeners) {
                None => self.listeners[at as usize].as_ref().map(Listening::status),
                Some(number) => self.connection_status(number, now),
            });
            at += 1;
        }
        survey.next = (at < all).then_some(at);
    }

    fn connection_status(&self, number: u32, now: Instant) -> Option<ConnectionStatus> {
        let (id, info) = self.stack.info(number, now)?;
        let (local, remote) = self.stack.ends(id)?;
        let mut figures = ConnectionFigures {
            rtt_ns: info.rtt_ns.unwrap_or(0),
            rtt_deviation_ns: info.rtt_deviation_ns,
            min_rtt_ns: info.min_rtt_ns.unwrap_or(0),
            rto_ns: info.rto_ns,
            cwnd_bytes: info.cwnd_bytes.into(),
            ssthresh_bytes: info.ssthresh_bytes.unwrap_or(0).into(),
            mss_bytes: info.mss_bytes.into(),
            in_flight_bytes: info.in_flight_bytes.into(),
            unacked_bytes: info.unacked_bytes.into(),
            unsent_bytes: info.unsent_bytes.into(),
            unread_bytes: info.unread_bytes.into(),
            send_window_bytes: info.send_window_bytes.into(),
            receive_window_bytes: info.receive_window_bytes.into(),
            retransmitted: info.retransmitted.into(),
            silent_ns: info.silent_ns,
            recovering: info.is_recovering.into(),
            sack: info.has_sack.into(),
            stamps: info.has_stamps.into(),
            ecn: info.has_ecn.into(),
            ..ConnectionFigures::default()
        };
        let owner = match self.owners[number as usize] {
            super::Owner::Line(of, (pair, socket)) if of == id => {
                let what = &self.pairs[usize::from(pair)].places[socket as usize].what;
                match what {
                    SocketUse::Line(line) => {
                        line.add_to(&mut figures);
                        if line.closing.is_some() { Owner::Nobody } else { Owner::Pair(pair) }
                    }
                    _ => Owner::Nobody,
                }
            }
            super::Owner::Queued { id: of, .. } if of == id => Owner::Queue,
            _ => Owner::Nobody,
        };
        Some(ConnectionStatus { state: Some(info.state), owner, local, remote, figures })
    }
}

impl SocketConnection {
    fn add_to(&self, figures: &mut ConnectionFigures) {
        figures.waiting_bytes = self.given.saturating_sub(self.taken);
        figures.given_bytes = self.given.saturating_add(self.foreign);
        figures.host_buffers = self.held.into();
    }
}

impl Listening {
    fn status(&self) -> ConnectionStatus {
        let any: IpAddr = match self.local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let (queued, backlog) = (self.count.into(), self.backlog.into());
        ConnectionStatus {
            state: None,
            owner: Owner::Pair(self.socket.0),
            local: self.local,
            remote: (any, 0).into(),
            figures: ConnectionFigures { queued, backlog, ..ConnectionFigures::default() },
        }
    }
}
