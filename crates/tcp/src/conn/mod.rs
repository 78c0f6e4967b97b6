//! One connection: the state machine of RFC 9293 sections 3.3 to 3.10, without I/O and without a clock.
//!
//! | file | holds |
//! | --- | --- |
//! | `open` | OPEN, active and passive; the agreement of a handshake |
//! | `arrive/` | SEGMENT ARRIVES: a file for each step of section 3.10.7.4 |
//! | `calls` | SEND, RECEIVE |
//! | `info` | STATUS |
//! | `close` | CLOSE and ABORT |
//! | `icmp` | error messages of ICMP |
//! | `emit` | which segment goes next: lost data, new data, probes, acknowledgments |
//! | `timers` | time-outs: SYN, window probe, keep-alive, user time-out, release of extents |
//! | `stamps` | RFC 7323: time stamps, PAWS |
//!
//! LISTEN is not a state of a connection here but of a listener. SYN-RECEIVED of a listener and
//! TIME-WAIT have records of their own ([`crate::stack`]): a great number of them may exist, so
//! they must be small.

pub(crate) mod arrive;
mod calls;
mod close;
mod emit;
mod icmp;
mod info;
mod marks;
mod open;
mod stamps;
mod timers;

use millrace_core::time::Instant;

use crate::cc::Algorithm;
use crate::limits::{KEEP_ALIVE_NS, USER_TIMEOUT_NS};
use crate::recover::records::Records;
use crate::recv::{Pages, Receiver};
use crate::send::{Queue, Store};
use crate::sender::Sender;
use crate::seq::Seq;
use crate::stack::{OutgoingSegment, Undelivered};

pub(crate) use self::emit::{Planned, SegmentPlan};
pub use self::info::Info;
pub(crate) use self::marks::Marks;
pub use self::open::Agreed;

/// Where a connection is (RFC 9293 section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionState {
    /// There is none, or none any more.
    Closed,
    /// SYN-SENT.
    SynSent,
    /// SYN-RECEIVED.
    SynReceived,
    /// ESTABLISHED.
    Established,
    /// FIN-WAIT-1.
    FinWait1,
    /// FIN-WAIT-2.
    FinWait2,
    /// CLOSE-WAIT.
    CloseWait,
    /// CLOSING.
    Closing,
    /// LAST-ACK.
    LastAck,
    /// TIME-WAIT.
    TimeWait,
}

//= RFC 9293 section 3.6
//# If the local TCP connection is closed by the
//# remote side due to a FIN or RST received from the remote side, then
//# the local application MUST be informed whether it closed normally or
//# was aborted (MUST-12).
/// Why a connection is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// It is not, or both sides had sent everything.
    #[default]
    Finished,
    /// The peer refused it: RST in answer to the SYN.
    Refused,
    /// The SYN cannot reach the peer's TCP, according to an ICMP message.
    Unreachable,
    /// The peer reset it.
    Reset,
    /// The application aborted it.
    Aborted,
    /// Data (or the SYN) was not acknowledged within the user time-out.
    TimedOut,
    /// No keep-alive probe was answered.
    Silent,
    /// Not more than a request for a connection: back to LISTEN, without a report.
    Forgotten,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Finished => "closed by both sides",
            Self::Refused => "connection refused",
            Self::Unreachable => "connection refused: the peer's port, or its TCP, cannot be reached",
            Self::Reset => "connection reset",
            Self::Aborted => "connection aborted",
            Self::TimedOut => "connection aborted due to user timeout",
            Self::Silent => "the peer answers no keep-alive probe",
            Self::Forgotten => "the request for a connection was taken back",
        })
    }
}

/// How connections are made; what one of them agrees upon with its peer may be less.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Largest packet that the device takes, IP header included, in bytes.
    pub mtu: u16,
    /// Receive buffer of a connection, in bytes.
    pub receive_bytes: u32,
    /// Offer time stamps (RFC 7323).
    pub stamps: bool,
    /// Offer SACK (RFC 2018).
    pub sack: bool,
    /// Offer window scaling (RFC 7323).
    pub scaling: bool,
    /// Offer ECN (RFC 3168).
    pub ecn: bool,
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Spread departures over the round trip.
    pub paced: bool,
    //= RFC 9293 section 3.7.4
    //# A TCP implementation SHOULD implement the Nagle algorithm to
    //# coalesce short segments (SHLD-7).  However, there MUST be a way for
    //# an application to disable the Nagle algorithm on an individual
    //# connection (MUST-17).
    /// Nagle's algorithm, unless a connection turns it off.
    pub nagle: bool,
    /// How long data may stay unacknowledged, in nanoseconds.
    pub user_timeout_ns: u64,
    /// Take the user time-out that a peer asks for (RFC 5482), within bounds.
    pub takes_user_timeout: bool,
    //= RFC 9293 section 3.8.4
    //# This interval MUST
    //# be configurable (MUST-27) and MUST default to no less than two hours
    //# (MUST-28).
    /// Silence after which a connection with keep-alive turned on is probed, in nanoseconds.
    pub keep_alive_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mtu: 1500,
            receive_bytes: 64 << 10,
            stamps: true,
            sack: true,
            scaling: true,
            ecn: true,
            algorithm: Algorithm::default(),
            paced: true,
            nagle: true,
            user_timeout_ns: USER_TIMEOUT_NS,
            takes_user_timeout: false,
            keep_alive_ns: KEEP_ALIVE_NS,
        }
    }
}

millrace_core::counters! {
    /// What happened in connections, and to segments for them.
    pub struct TcpCounters {
        /// Segments that came in.
        sum segments_in,
        /// Segments that went out.
        sum segments_out,
        /// Segments with a header that cannot be.
        sum malformed,
        /// Segments with a wrong checksum.
        sum bad_checksums,
        /// Segments whose data found no room.
        sum refused,
        /// Segments outside the window.
        sum unacceptable,
        /// Segments with an old time stamp (RFC 7323 section 5, PAWS).
        sum old_stamps,
        /// Segments without the time stamp that was agreed upon.
        sum stampless,
        /// Acknowledgments of data that was never sent, or that was acknowledged too long ago (RFC
        /// 5961 section 5).
        sum bad_acks,
        /// Challenge ACKs sent (RFC 5961).
        sum challenges,
        /// Challenge ACKs not sent because of their limit.
        sum challenges_spared,
        /// Resets sent.
        sum resets_out,
        /// Connections that a peer reset.
        sum resets_in,
        /// Segments of no connection that were not sent, because too many wait already.
        sum replies_dropped,
        /// Connections opened by this side.
        sum opened,
        /// Connections accepted.
        sum accepted,
        /// SYNs dropped because the listener's backlog, or a table, was full.
        sum syns_dropped,
        /// SYNs answered with a cookie.
        sum cookies_sent,
        /// Connections made from a cookie.
        sum cookies_taken,
        /// Handshakes whose last ACK found no room for the connection.
        sum overflows,
        /// Retransmission time-outs.
        sum timeouts,
        /// Segments sent again.
        sum retransmitted,
        /// Window probes sent.
        sum window_probes,
        /// Keep-alive probes sent.
        sum keep_alives,
        /// Connections ended by a time-out.
        sum timed_out,
        /// Times that leases went back because a connection made no progress.
        sum unpinned,
        /// ICMP messages that came in.
        sum icmp_in,
        /// ICMP messages that concern no connection, or nothing in flight, or are unlikely.
        sum icmp_ignored,
        /// ICMP messages that made segments smaller, or ended the search for larger ones.
        sum icmp_too_big,
        /// Noted acknowledgments processed after the output stage.
        sum acks_deferred,
        /// Acknowledgments merged into a later one.
        sum acks_merged,
    }
}

/// What all connections share, and the time: handed to a connection with each call.
pub(crate) struct Env<'a> {
    pub(crate) now: Instant,
    pub(crate) records: &'a mut Records,
    pub(crate) store: &'a mut Store,
    pub(crate) pages: &'a mut Pages,
    pub(crate) config: &'a Config,
    pub(crate) counters: &'a mut TcpCounters,
}

/// Events reported to the application; several events of one kind are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened(pub u8);

impl Happened {
    /// The connection is established.
    pub const ESTABLISHED: Self = Self(1);
    /// There is something to read.
    pub const READABLE: Self = Self(2);
    /// Bytes were acknowledged: the send queue has room.
    pub const ACKED: Self = Self(4);
    /// The peer has sent everything.
    pub const PEER_CLOSED: Self = Self(8);
    /// Urgent data is on its way (RFC 9293 section 3.8.5).
    pub const URGENT: Self = Self(16);
    /// Closed; the reason is with it, and the connection's number means nothing from now on.
    pub const CLOSED: Self = Self(32);
    //= RFC 9293 section 3.9.1.8
    //# There MUST be a mechanism for reporting soft TCP error conditions to
    //# the application (MUST-47).
    /// The same segment was sent again and again without an answer. The owner of the IP layer may
    /// look for another gateway; the connection goes on until its user time-out.
    pub const STALLED: Self = Self(128);

    /// A segment did not arrive, according to an ICMP message
    /// ([`crate::stack::Stack::undelivered`]); it is sent again all the same.
    pub const UNDELIVERED: Self = Self(64);

    /// Whether all of `other` happened.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether nothing happened.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// No moment: the timer is not set.
const NEVER: Instant = Instant(u64::MAX);

/// A connection's state. Data of variable size is in the pools that connections share.
pub(crate) struct Connection {
    sender: Sender,
    receiver: Receiver,
    queue: Queue,
    /// SYN retransmission before the connection is established, window probe after that.
    timer: Instant,
    /// When data was last acknowledged, or began to wait.
    progress: Instant,
    snd_wnd: u32,
    snd_wl1: Seq,
    snd_wl2: Seq,
    max_snd_wnd: u32,
    snd_up: Seq,
    rcv_up: Seq,
    /// TS.Recent, and when it came, in milliseconds.
    ts_recent: u32,
    ts_recent_ms: u32,
    ts_offset: u32,
    /// When something acceptable last came, in milliseconds.
    heard_ms: u32,
    marks: Marks,
    user_timeout_s: u16,
    /// The listener that it came from.
    listener: u8,
    /// Second of the last challenge.
    challenge_s: u8,
    state: ConnectionState,
    reason: Reason,
    happened: Happened,
    /// The last ICMP report, if nothing was acknowledged since.
    undelivered: Option<Undelivered>,
    snd_scale: u8,
    rcv_scale: u8,
    /// Tries of the timer above.
    tries: u8,
    challenges: u8,
}

// Memory of each connection in a stack, idle or not: [`crate::stack::IDLE_CONNECTION_BYTES`] counts
// it.
const _: () = assert!(size_of::<Connection>() <= 416);

impl Connection {
    /// How long ago data moved, either way, if nothing else was heard since
    /// ([`crate::stack::OutgoingSegment::moved_ns`]).
    pub(crate) fn moved_ns(&self, now: Instant) -> u64 {
        let heard_ms = stamps::ms(now).wrapping_sub(self.heard_ms);
        if self.marks.has(Marks::MOVED) { u64::from(heard_ms) * 1_000_000 } else { OutgoingSegment::NEVER }
    }

    pub(crate) fn state(&self) -> ConnectionState {
        self.state
    }

    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }

    pub(crate) fn sender(&self) -> &Sender {
        &self.sender
    }

    pub(crate) fn sender_mut(&mut self) -> &mut Sender {
        &mut self.sender
    }

    pub(crate) fn marks(&self) -> Marks {
        self.marks
    }

    pub(crate) fn marks_mut(&mut self) -> &mut Marks {
        &mut self.marks
    }

    pub(crate) fn take_happened(&mut self) -> Happened {
        std::mem::take(&mut self.happened)
    }

    pub(crate) fn happened(&self) -> Happened {
        self.happened
    }

    /// SND.UNA.
    pub(crate) fn snd_una(&self) -> Seq {
        if self.is_synchronized() { self.sender.una() } else { self.iss() }
    }

    /// ISS, until the connection is established.
    fn iss(&self) -> Seq {
        self.sender.una() - 1
    }

    /// SND.NXT.
    pub(crate) fn snd_nxt(&self) -> Seq {
        self.sender.nxt()
    }

    /// RCV.NXT.
    pub(crate) fn rcv_nxt(&self) -> Seq {
        self.receiver.next()
    }

    /// Returns RCV.WND: the bytes that the peer may send, as it knows it.
    pub(crate) fn rcv_wnd(&self) -> u32 {
        self.receiver.open_bytes()
    }

    /// One behind the last sequence number that there is to send, the FIN's if there is one.
    fn snd_end(&self) -> Seq {
        self.queue.end() + u32::from(self.marks.has(Marks::FIN_QUEUED))
    }

    /// ESTABLISHED or later: both SYNs are acknowledged.
    pub(crate) fn is_synchronized(&self) -> bool {
        self.state >= ConnectionState::Established
    }

    /// Whether the application may send more.
    pub(crate) fn may_send(&self) -> bool {
        !self.marks.has(Marks::FIN_QUEUED)
            && matches!(
                self.state,
                ConnectionState::SynSent
                    | ConnectionState::SynReceived
                    | ConnectionState::Established
                    | ConnectionState::CloseWait
            )
    }

    /// Whether the peer may still send data.
    fn may_receive(&self) -> bool {
        matches!(
            self.state,
            ConnectionState::Established | ConnectionState::FinWait1 | ConnectionState::FinWait2
        )
    }

    /// Whether our FIN is acknowledged.
    fn is_fin_acked(&self) -> bool {
        self.marks.has(Marks::FIN_SENT) && self.sender.una() == self.snd_end()
    }

    /// Prefetches the data that an acknowledgment reads in the pools.
    pub(crate) fn fetch(&self, records: &Records, store: &Store) {
        self.sender.fetch(records);
        store.fetch(&self.queue);
    }

    /// Leaves for CLOSED. The queues are flushed; the device may still hold frames.
    fn shut(&mut self, env: &mut Env<'_>, reason: Reason) {
        (self.state, self.reason, self.timer) = (ConnectionState::Closed, reason, NEVER);
        self.happened.insert(Happened::CLOSED);
        self.release_all(env);
    }

    /// Gives back everything in the pools except the data that the application has not read yet.
    fn release_all(&mut self, env: &mut Env<'_>) {
        env.store.clear(&mut self.queue);
        self.sender.abandon(env.records);
    }

    /// An ACK has to go, alone if nothing else does.
    fn want_ack(&mut self) {
        self.marks.insert(Marks::ACK_NOW);
    }
}

#[cfg(test)]
#[path = "conn_tests/mod.rs"]
mod tests;
