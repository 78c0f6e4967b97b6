//! Error messages of ICMP and ICMPv6 (RFC 9293 section 3.9.2.2), as the IP layer has read them.
//!
//! An attacker that guesses the two ends of a connection can forge such a message. So a message is
//! not trusted unless it quotes a sequence number that is in flight (RFC 5927 section 4.1), none
//! ends a connection that is established (section 5.2), and "too big" only counts for a segment in
//! flight that is larger than the size it reports.

use std::fmt;
use std::net::SocketAddr;

use millrace_core::time::Instant;

use super::{ConnectionId, Stack};
use crate::conn::Connection;
use crate::seq::Seq;
use crate::wire::FlowKey;

/// An error message, and the segment of this host that it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Where the quoted segment came from: the end that is here.
    pub local: SocketAddr,
    /// Where it went.
    pub remote: SocketAddr,
    /// Its sequence number.
    pub seq: Seq,
    /// The error reported for it.
    pub kind: IcmpKind,
}

/// Content of an error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpKind {
    /// Fragmentation needed and DF set (IPv4), packet too big (IPv6).
    TooBig {
        /// Largest packet that passes, IP header included, in bytes; 0: the router did not say (RFC 1191 section 5).
        mtu: u32,
    },
    /// It did not arrive.
    Undelivered(Undelivered),
}

/// Why a segment did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// No way to the network.
    Net,
    /// No way to the host.
    Host,
    /// The host has no TCP.
    Protocol,
    /// No socket listens at the port.
    Port,
    /// It is administratively prohibited.
    Prohibited,
    /// The source route failed.
    SourceRoute,
    /// Too many hops, or not all of its fragments.
    TimeExceeded,
    /// Something in its IP header.
    Parameter,
}

impl Undelivered {
    //= RFC 9293 section 3.9.2.2
    //# Hard Errors
    //# For ICMP these include Destination Unreachable -- codes 2-4.
    /// Waiting will not help.
    pub const fn is_hard(self) -> bool {
        matches!(self, Self::Protocol | Self::Port | Self::Prohibited)
    }
}

impl fmt::Display for Undelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Net => "network unreachable",
            Self::Host => "host unreachable",
            Self::Protocol => "the host has no TCP",
            Self::Port => "port unreachable",
            Self::Prohibited => "prohibited by a filter on the way",
            Self::SourceRoute => "source route failed",
            Self::TimeExceeded => "time exceeded on the way",
            Self::Parameter => "parameter problem in the IP header",
        })
    }
}

impl IcmpKind {
    /// Decodes an ICMP message for IPv4 from its type, its code and bytes 4 to 7 of its header.
    /// Returns `None` if it is no error, or none that concerns TCP.
    pub const fn v4(kind: u8, code: u8, rest: [u8; 4]) -> Option<Self> {
        use Undelivered as U;
        Some(Self::Undelivered(match (kind, code) {
            (3, 0 | 6 | 11) => U::Net,
            (3, 1 | 7 | 8 | 12) => U::Host,
            (3, 2) => U::Protocol,
            (3, 3) => U::Port,
            (3, 4) => return Some(Self::TooBig { mtu: u16::from_be_bytes([rest[2], rest[3]]) as u32 }),
            (3, 5) => U::SourceRoute,
            (3, 9 | 10 | 13 | 14 | 15) => U::Prohibited,
            (11, 0 | 1) => U::TimeExceeded,
            (12, _) => U::Parameter,
            //= RFC 9293 section 3.9.2.2
            //# TCP implementations MUST silently discard any received ICMP Source
            //# Quench messages (MUST-55).
            _ => return None,
        }))
    }

    /// The same of an ICMPv6 message.
    pub const fn v6(kind: u8, code: u8, rest: [u8; 4]) -> Option<Self> {
        use Undelivered as U;
        Some(Self::Undelivered(match (kind, code) {
            (1, 0 | 2) => U::Net,
            (1, 3) => U::Host,
            (1, 4) => U::Port,
            (1, 1 | 5 | 6) => U::Prohibited,
            (2, _) => return Some(Self::TooBig { mtu: u32::from_be_bytes(rest) }),
            (3, 0 | 1) => U::TimeExceeded,
            (4, _) => U::Parameter,
            _ => return None,
        }))
    }
}

impl Stack {
    //= RFC 9293 section 3.9.2.2
    //# TCP implementations MUST act on an ICMP error message passed up from
    //# the IP layer, directing it to the connection that created the error
    //# (MUST-54).
    /// Takes in an error message about a segment of this stack.
    pub fn icmp(&mut self, error: &IcmpError, now: Instant) {
        self.shared.counters.icmp_in += 1;
        let Some(flow) = FlowKey::new(error.local, error.remote) else {
            self.shared.counters.icmp_ignored += 1;
            return;
        };
        let is_used = match self.table.find(&flow) {
            Some(number) => self.icmp_for(number, error, now),
            None => self.icmp_for_request(&flow, error),
        };
        self.shared.counters.icmp_ignored += u64::from(!is_used);
    }

    fn icmp_for(&mut self, number: u32, error: &IcmpError, now: Instant) -> bool {
        // Data acknowledged before the message came is no longer in flight.
        self.note_new(now);
        self.process_note(number, now);
        let is_used = self
            .with(number, now, |connection, env| connection.icmp(env, error.seq, error.kind))
            .unwrap_or(false);
        if is_used {
            self.make_ready(number);
            self.settle(number, now, None);
        }
        is_used
    }

    /// A SYN,ACK of a listener: the request is forgotten where there is no peer to answer.
    fn icmp_for_request(&mut self, flow: &FlowKey, error: &IcmpError) -> bool {
        let IcmpKind::Undelivered(why) = error.kind else { return false };
        let Some(request) = self.requests.find(flow) else { return false };
        let is_used = why.is_hard() && self.requests.iss(request) == Some(error.seq);
        if is_used {
            self.drop_request(request);
        }
        is_used
    }

    //= RFC 9293 section 3.9.2.2
    //# Since these Unreachable messages indicate soft error conditions, a
    //# TCP implementation MUST NOT abort the connection (MUST-56), and it
    //# SHOULD make the information available to the application (SHLD-25).
    /// Returns the last error reported for a connection, if nothing was acknowledged since.
    pub fn undelivered(&self, id: ConnectionId) -> Option<Undelivered> {
        self.connection(id).and_then(Connection::undelivered)
    }
}

#[cfg(test)]
#[path = "icmp_tests.rs"]
mod tests;
