//! Errors of sockets, with the place and the remedy.

use std::io;
use std::net::{IpAddr, SocketAddr};

use millrace_core::ids::ConnId;
use millrace_core::limits::MAX_CONN_PENDING_BYTES;

/// A socket or device could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The range holds no even port followed by another port of the range.
    #[error(
        "UDP ports {first}-{last}: the range holds no even port and the next; give at least two ports, e.g. 50000-59999"
    )]
    PortRange {
        /// First port of the range.
        first: u16,
        /// Last port of the range.
        last: u16,
    },
    /// Every pair of the range was tried.
    #[error(
        "UDP ports {first}-{last} of {addr}: none of the {tried} pairs of an even port and the next is free ({source}); \
         stop what uses them (ss -ulpn) or set a wider range"
    )]
    NoFreePair {
        /// Address intended for the sockets.
        addr: IpAddr,
        /// First port of the range.
        first: u16,
        /// Last port of the range.
        last: u16,
        /// Pairs tried.
        tried: usize,
        /// Error of the last bind.
        source: io::Error,
    },
    /// One address or port is unavailable for a reason that other ports share.
    #[error("UDP {local}: cannot bind: {source}; {remedy}")]
    Bind {
        /// Address and port.
        local: SocketAddr,
        /// Error of bind.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// A socket refused a call.
    #[error("{socket}: cannot {what}: {source}; {remedy}")]
    Socket {
        /// Which socket.
        socket: String,
        /// The attempted operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The pair given for one address family is of the other, or its two sockets differ.
    #[error(
        "UDP pair for {wanted}: the sockets are bound to {rtp} and {rtcp}; give a pair made by bind_pair for an {wanted} address"
    )]
    Family {
        /// "IPv4" or "IPv6".
        wanted: &'static str,
        /// Where the RTP socket is bound.
        rtp: SocketAddr,
        /// Where the RTCP socket is bound.
        rtcp: SocketAddr,
    },
    /// A sender has as many sockets for multicast as it may have.
    #[error(
        "multicast: {limit} sockets are open; let groups share interface, source address and time to live"
    )]
    TooManyMulticast {
        /// How many it may have.
        limit: usize,
    },
    /// The connection's id lies beyond the table.
    #[error("connection {}: ids run from 0 to {}; raise the number of connections of this sender", .conn.0, .limit.saturating_sub(1))]
    ConnId {
        /// The id.
        conn: ConnId,
        /// Size of the table.
        limit: usize,
    },
    /// The connection's id is in use.
    #[error("connection {}: the id is in use; remove that connection first", .conn.0)]
    ConnInUse {
        /// The id.
        conn: ConnId,
    },
    /// A capture file could not be written.
    #[error(
        "packet capture: cannot write record {record}: {source}; the capture ends before it, sending went on"
    )]
    Capture {
        /// Number of the record, from 0.
        record: u64,
        /// The writer's error.
        source: io::Error,
    },
}

/// Control bytes could not be put into a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnError {
    /// It was never added, or it has been removed.
    #[error("connection {}: not known to this sender", .conn.0)]
    Unknown {
        /// The connection.
        conn: ConnId,
    },
    /// It is closed or broken.
    #[error("connection {}: closed (errno {errno})", .conn.0)]
    Gone {
        /// The connection.
        conn: ConnId,
        /// Why.
        errno: i32,
    },
    /// The viewer does not read; nothing of the message was taken.
    #[error(
        "connection {}: {pending} control bytes are already queued, {asked} more would exceed the limit of {MAX_CONN_PENDING_BYTES}; \
         the viewer does not read, close the connection", .conn.0
    )]
    TooMuchPending {
        /// The connection.
        conn: ConnId,
        /// Control bytes that wait.
        pending: usize,
        /// Control bytes requested.
        asked: usize,
    },
}
