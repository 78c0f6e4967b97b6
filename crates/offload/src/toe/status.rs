//! An engine's figures: counters, and per connection the data that `ss -ti` shows for those of the
//! kernel.
//!
//! Counters lie on sheets that anybody can read. Connections belong to the engine's thread: it is asked for a few of them at a time
//! (`engine/survey.rs`), and goes on with its work between two such questions.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_core::counters::Sheet;
use millrace_tcp::conn::{ConnectionState, TcpCounters};
use millrace_tcp::ip::IpCounters;
use millrace_tcp::ports::PortSet;

use super::counters::{GateCounters, ToeCounters};

/// The counters of an engine, as they were at most a turn ago; also when it has ended.
#[derive(Clone, Default)]
pub struct CounterSheets(Arc<Sheets>);

#[derive(Default)]
struct Sheets {
    engine: Sheet<ToeCounters>,
    stack: Sheet<TcpCounters>,
    ip: Sheet<IpCounters>,
    gate: Sheet<GateCounters>,
}

impl CounterSheets {
    /// Returns the engine's counters.
    pub fn engine(&self) -> ToeCounters {
        self.0.engine.read()
    }

    /// What its TCP has done.
    pub fn stack(&self) -> TcpCounters {
        self.0.stack.read()
    }

    /// What its IP layer has done.
    pub fn ip(&self) -> IpCounters {
        self.0.ip.read()
    }

    /// Returns the counters of the socket of [`Engine::serve`](super::Engine::serve).
    pub fn gate(&self) -> GateCounters {
        self.0.gate.read()
    }

    pub(super) fn publish_engine(&self, counters: &ToeCounters) {
        self.0.engine.publish(counters);
    }

    pub(super) fn publish_layers(&self, stack: &TcpCounters, ip: &IpCounters) {
        self.0.stack.publish(stack);
        self.0.ip.publish(ip);
    }

    pub(super) fn publish_gate(&self, counters: &GateCounters) {
        self.0.gate.publish(counters);
    }
}

impl std::fmt::Debug for CounterSheets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CounterSheets").field("engine", &self.engine()).finish_non_exhaustive()
    }
}

millrace_core::counters! {
    /// A connection, or a listener, in numbers.
    pub struct ConnectionFigures {
        /// Smoothed round-trip time; 0: none was measured yet.
        gauge rtt_ns,
        /// Mean deviation of the round-trip time.
        gauge rtt_deviation_ns,
        /// Least round-trip time of the last one to two minutes; 0: none was measured yet.
        gauge min_rtt_ns,
        /// Retransmission time-out.
        gauge rto_ns,
        /// Congestion window.
        gauge cwnd_bytes,
        /// Slow-start threshold; 0: the window was never reduced.
        gauge ssthresh_bytes,
        /// Most payload of a segment.
        gauge mss_bytes,
        /// Bytes estimated to be in the network.
        gauge in_flight_bytes,
        /// Bytes that the host has given and the stack has not taken yet.
        gauge waiting_bytes,
        /// Bytes in the stack that are not acknowledged.
        gauge unacked_bytes,
        /// Of these, bytes that were never sent.
        gauge unsent_bytes,
        /// Bytes that were received and are not in a buffer of the host yet.
        gauge unread_bytes,
        /// Receive buffers with bytes of this connection that the host holds.
        gauge host_buffers,
        /// Bytes that may be sent to the peer at once.
        gauge send_window_bytes,
        /// Bytes that the peer may send at once.
        gauge receive_window_bytes,
        /// Bytes that the host, or the loop, has given until now.
        sum given_bytes,
        /// Segments sent again.
        sum retransmitted,
        /// How long ago something acceptable came.
        gauge silent_ns,
        /// 1: losses are being repaired.
        gauge recovering,
        /// 1: SACK was agreed upon.
        gauge sack,
        /// 1: time stamps were agreed upon.
        gauge stamps,
        /// 1: ECN was agreed upon.
        gauge ecn,
        /// Of a listener: connections that wait to be accepted.
        gauge queued,
        /// Of a listener: how many may wait.
        gauge backlog,
    }
}

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Of the host with this queue pair.
    Pair(u16),
    /// It waits to be accepted.
    Queue,
    /// Its host has closed it, or is gone; it ends by itself.
    Nobody,
}

/// A connection of an engine, or a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// `None`: it is a listener.
    pub state: Option<ConnectionState>,
    /// Whose it is.
    pub owner: Owner,
    /// Here.
    pub local: SocketAddr,
    /// There; of a listener nothing.
    pub remote: SocketAddr,
    /// All else.
    pub figures: ConnectionFigures,
}

/// A thread of another program that has a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostStatus {
    /// Which pair.
    pub pair: u16,
    /// Its process, as it was when it connected.
    pub pid: u32,
    /// And that one's user.
    pub uid: u32,
}

/// An engine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// How long it has listened at its socket.
    pub uptime_ns: u64,
    /// Queue pairs for other programs.
    pub pairs: u32,
    /// Its addresses, and the lengths of their subnets' prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The TCP ports that it has of them; `None`: all, they are its own.
    pub ports: Option<PortSet>,
    /// Its counters.
    pub engine: ToeCounters,
    /// What its TCP has done.
    pub stack: TcpCounters,
    /// What its IP layer has done.
    pub ip: IpCounters,
    /// The counters of its socket.
    pub gate: GateCounters,
    /// The hosts that have a queue pair.
    pub hosts: Vec<HostStatus>,
}
