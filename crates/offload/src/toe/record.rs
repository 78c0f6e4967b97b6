//! What crosses between a host and the engine: records of seven words, which are written here and nowhere else.
//!
//! The first word has the kind in its lowest byte, an error or a flag in the next one, the generation of a new connection in the two behind
//! them, and the socket in its upper half; what follows depends on the kind. Nothing in a record is a pointer: sockets and buffers are numbers, ranges are offsets.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use millrace_core::shared::Record;
use millrace_tcp::conn::Reason;
use millrace_tcp::stack::CallError;

/// Buffers that one request gives back.
pub(super) const GIVEN_AT_ONCE: usize = 12;

/// The listeners that may share an address with this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// With listeners of the same user that share too, as with `SO_REUSEPORT`.
    pub is_shared: bool,
    /// With listeners that have the same key, whoever opens them; 0: there is none. Only a process that has inherited the listener knows it.
    pub key: u64,
}

impl Sharing {
    /// Whether there may be others.
    pub(super) fn has_others(self) -> bool {
        self.is_shared || self.key != 0
    }
}

/// From a host to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostRequest {
    /// Make `socket` a listener. Answered by [`HostEvent::Listening`].
    Listen {
        /// A free socket of the host.
        socket: u32,
        /// Connections that wait to be accepted, at most.
        backlog: u32,
        /// Which others may listen there.
        sharing: Sharing,
        /// Where; the address may be unspecified.
        local: SocketAddr,
    },
    /// Make `socket` the next connection of a listener. Answered by [`HostEvent::Accepted`] when there is
    /// one; one at a time for each listener.
    Accept {
        /// The listener.
        listener: u32,
        /// A free socket of the host.
        socket: u32,
    },
    /// Take a connection of a shared listener: until then the engine may give it to another listener.
    Take {
        /// The connection.
        socket: u32,
    },
    /// Make `socket` a connection. Answered by [`HostEvent::Connected`].
    Connect {
        /// A free socket of the host.
        socket: u32,
        /// From where; the address may be unspecified, the port 0.
        local: SocketAddr,
        /// To where.
        remote: SocketAddr,
    },
    /// Send bytes of the host's area. Nothing answers: the count of acknowledged bytes in the pair's memory does.
    Send {
        /// The connection.
        socket: u32,
        /// Where they begin in the area.
        offset: u32,
        /// How many.
        bytes: u32,
    },
    /// Send the next range of a leased extent in the ring beside this one, which only hosts of the engine's own program have. Nothing answers, as above.
    SendExtent {
        /// The connection.
        socket: u32,
    },
    /// Nothing more will be sent. Nothing answers.
    Shutdown {
        /// The connection.
        socket: u32,
    },
    /// The host has no more use for the socket. Answered by [`HostEvent::Closed`], when nothing that it has
    /// given is needed any more.
    Close {
        /// The socket.
        socket: u32,
        /// The peer is notified by a reset that data is lost.
        is_reset: bool,
    },
    /// Change an option. Answered by [`HostEvent::Done`].
    Set {
        /// The connection.
        socket: u32,
        /// Which.
        option: Choice,
        /// On or off.
        is_on: bool,
    },
    /// Answer with one [`HostEvent::Room`] when this many bytes have been acknowledged.
    Wake {
        /// The connection.
        socket: u32,
        /// The count.
        at: u64,
    },
    /// Receive buffers are the engine's again.
    Give {
        /// How many of them.
        count: u8,
        /// Their numbers.
        buffers: [u32; GIVEN_AT_ONCE],
    },
}

/// An option of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Send short segments at once, without Nagle's algorithm.
    NoDelay,
    /// Look now and then whether the peer is still there.
    KeepAlive,
    /// Short segments wait for more.
    Cork,
}

/// From the engine to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostEvent {
    /// Of [`HostRequest::Listen`].
    Listening {
        /// The socket.
        socket: u32,
        /// Why it is none.
        error: Option<Fault>,
        /// Where it listens.
        local: SocketAddr,
    },
    /// Of [`HostRequest::Accept`].
    Accepted {
        /// The socket that is a connection now.
        socket: u32,
        /// Why there will be none.
        error: Option<Fault>,
        /// How many connections the socket has been before.
        generation: u16,
        /// This end.
        local: SocketAddr,
        /// The other one.
        remote: SocketAddr,
    },
    /// Of [`HostRequest::Connect`].
    Connected {
        /// The socket.
        socket: u32,
        /// Why it is no connection.
        error: Option<Fault>,
        /// How many connections the socket has been before.
        generation: u16,
        /// This end.
        local: SocketAddr,
        /// The other one.
        remote: SocketAddr,
    },
    /// Bytes have come. The buffer is the host's until it gives it back.
    Data {
        /// The connection.
        socket: u32,
        /// Number of the buffer.
        buffer: u32,
        /// Bytes in it, from its beginning on.
        bytes: u32,
    },
    /// Nothing more will come.
    End {
        /// The connection.
        socket: u32,
        /// Why it is over; `None`: the peer has sent everything.
        error: Option<Fault>,
    },
    /// Of [`HostRequest::Wake`].
    Room {
        /// The connection.
        socket: u32,
    },
    /// The socket and its buffers are the host's again.
    Closed {
        /// The socket.
        socket: u32,
    },
    /// An accepted connection that was not taken in time is another listener's now, and the socket is none.
    Recalled {
        /// The socket.
        socket: u32,
    },
    /// Of [`HostRequest::Set`].
    Done {
        /// The connection.
        socket: u32,
        /// Why not.
        error: Option<Fault>,
    },
}

/// The possible faults of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// There is no listener.
    Refused = 1,
    /// The peer reset the connection.
    Reset,
    /// The peer does not answer.
    TimedOut,
    /// The connection was aborted on this side.
    Aborted,
    /// There already is a listener, or such a connection exists.
    InUse,
    /// The engine has no place left.
    NoRoom,
    /// The address is not of this engine, or not of the family of the other end.
    NoAddress,
    /// There is no connection.
    NotConnected,
    /// Nothing can be sent after a shutdown.
    Shut,
    /// The network reports that the destination is unreachable.
    Unreachable,
    /// The address is the kernel's, and the port none of those of it that the engine has.
    NotOwnPort,
    /// No port is left for a connection to there.
    NoPort,
}

impl Fault {
    const ALL: [Self; 12] = [
        Self::Refused,
        Self::Reset,
        Self::TimedOut,
        Self::Aborted,
        Self::InUse,
        Self::NoRoom,
        Self::NoAddress,
        Self::NotConnected,
        Self::Shut,
        Self::Unreachable,
        Self::NotOwnPort,
        Self::NoPort,
    ];

    pub(super) fn of_call(error: CallError) -> Self {
        match error {
            CallError::NoConnection | CallError::Unfit => Self::NotConnected,
            CallError::Closing => Self::Shut,
            CallError::NoRoom => Self::NoRoom,
            CallError::NoPort => Self::NoPort,
            CallError::Exists => Self::InUse,
            CallError::Families | CallError::Address => Self::NoAddress,
        }
    }

    /// `None`: both sides had sent everything.
    pub(super) fn of_reason(reason: Reason) -> Option<Self> {
        match reason {
            Reason::Finished => None,
            Reason::Refused => Some(Self::Refused),
            Reason::Reset => Some(Self::Reset),
            Reason::Unreachable => Some(Self::Unreachable),
            Reason::TimedOut | Reason::Silent => Some(Self::TimedOut),
            Reason::Aborted | Reason::Forgotten => Some(Self::Aborted),
        }
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        use io::ErrorKind as Kind;
        let (kind, text) = match fault {
            Fault::Refused => (Kind::ConnectionRefused, "connection refused: nothing listens there"),
            Fault::Reset => (Kind::ConnectionReset, "connection reset by the peer"),
            Fault::TimedOut => (Kind::TimedOut, "connection timed out: the peer does not answer"),
            Fault::Aborted => (Kind::ConnectionAborted, "connection aborted"),
            Fault::InUse => (Kind::AddrInUse, "address in use: choose another port"),
            Fault::NoRoom => {
                let text =
                    "the offload engine has no place left: close connections, or give it larger tables";
                (Kind::OutOfMemory, text)
            }
            Fault::NoAddress => {
                let text = "address not available: the offload engine has none of this kind";
                (Kind::AddrNotAvailable, text)
            }
            Fault::NotOwnPort => {
                let text = "address not available: this port of the address is the kernel's; choose one of those that the offload engine \
                            has (millrace engine status), or start it with more (--ports)";
                (Kind::AddrNotAvailable, text)
            }
            Fault::NoPort => {
                let text = "no local port is left for a connection to there: close connections, or start the offload engine with more \
                            ports (--ports); those that somebody listens at are not taken";
                (Kind::AddrNotAvailable, text)
            }
            Fault::NotConnected => (Kind::NotConnected, "not connected"),
            Fault::Unreachable => (Kind::HostUnreachable, "unreachable: a router or the host itself said so"),
            Fault::Shut => (Kind::BrokenPipe, "nothing can be sent after a shutdown"),
        };
        Self::new(kind, text)
    }
}

const LISTEN: u8 = 1;
const ACCEPT: u8 = 2;
const CONNECT: u8 = 3;
const SEND: u8 = 4;
const SHUTDOWN: u8 = 5;
const CLOSE: u8 = 6;
const SET: u8 = 7;
const WAKE: u8 = 8;
const GIVE: u8 = 9;
const SEND_EXTENT: u8 = 10;
const TAKE: u8 = 11;

const LISTENING: u8 = 1;
const ACCEPTED: u8 = 2;
const CONNECTED: u8 = 3;
const DATA: u8 = 4;
const END: u8 = 5;
const ROOM: u8 = 6;
const CLOSED: u8 = 7;
const DONE: u8 = 8;
const RECALLED: u8 = 9;

/// Where in the first word of a new connection its generation is.
const GENERATION_SHIFT: u32 = 16;

fn first(kind: u8, flag: u8, socket: u32) -> u64 {
    u64::from(kind) | u64::from(flag) << 8 | u64::from(socket) << 32
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Mark of an IPv4 address in the third word of an end.
const IS_V4: u64 = 1 << 16;

/// An end in three words: the address (of IPv4 mapped to IPv6) as its bytes lie, then port, family and scope.
fn end(of: SocketAddr) -> [u64; 3] {
    let (bytes, family, scope) = match of {
        SocketAddr::V4(end) => (end.ip().to_ipv6_mapped().octets(), IS_V4, 0),
        SocketAddr::V6(end) => (end.ip().octets(), 0, end.scope_id()),
    };
    let [begin, rest] = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i])));
    [begin, rest, u64::from(of.port()) | family | u64::from(scope) << 32]
}

fn end_of(words: &[u64]) -> Option<SocketAddr> {
    let &[begin, rest, third] = words else { return None };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&begin.to_ne_bytes());
    bytes[8..].copy_from_slice(&rest.to_ne_bytes());
    let (address, port) = (Ipv6Addr::from(bytes), third as u16);
    if third & IS_V4 == 0 {
        return Some(SocketAddrV6::new(address, port, 0, high(third)).into());
    }
    match address.to_canonical() {
        IpAddr::V4(address) => Some((address, port).into()),
        IpAddr::V6(_) => None,
    }
}

impl HostRequest {
    /// As it crosses.
    pub(super) fn encode(&self) -> Record {
        let mut record = [0; 7];
        match *self {
            Self::Listen { socket, backlog, sharing, local } => {
                record[0] = first(LISTEN, u8::from(sharing.is_shared), socket);
                record[1..4].copy_from_slice(&end(local));
                (record[4], record[5]) = (u64::from(backlog), sharing.key);
            }
            Self::Take { socket } => record[0] = first(TAKE, 0, socket),
            Self::Accept { listener, socket } => {
                (record[0], record[1]) = (first(ACCEPT, 0, socket), u64::from(listener));
            }
            Self::Connect { socket, local, remote } => {
                record[0] = first(CONNECT, 0, socket);
                record[1..4].copy_from_slice(&end(local));
                record[4..7].copy_from_slice(&end(remote));
            }
            Self::Send { socket, offset, bytes } => {
                (record[0], record[1]) = (first(SEND, 0, socket), two(offset, bytes));
            }
            Self::SendExtent { socket } => record[0] = first(SEND_EXTENT, 0, socket),
            Self::Shutdown { socket } => record[0] = first(SHUTDOWN, 0, socket),
            Self::Close { socket, is_reset } => record[0] = first(CLOSE, u8::from(is_reset), socket),
            Self::Set { socket, option, is_on } => {
                record[0] = first(SET, 0, socket);
                record[1] = two(option as u32, u32::from(is_on));
            }
            Self::Wake { socket, at } => (record[0], record[1]) = (first(WAKE, 0, socket), at),
            Self::Give { count, buffers } => {
                record[0] = first(GIVE, count, 0);
                for (word, pair) in record[1..].iter_mut().zip(buffers.as_chunks::<2>().0) {
                    *word = two(pair[0], pair[1]);
                }
            }
        }
        record
    }

    /// `None`: it is none.
    pub(super) fn decode(record: &Record) -> Option<Self> {
        let (kind, flag, socket) = (record[0] as u8, (record[0] >> 8) as u8, high(record[0]));
        Some(match kind {
            LISTEN => {
                let (local, backlog) = (end_of(&record[1..4])?, low(record[4]));
                let sharing = Sharing { is_shared: flag != 0, key: record[5] };
                Self::Listen { socket, backlog, sharing, local }
            }
            TAKE => Self::Take { socket },
            ACCEPT => Self::Accept { listener: low(record[1]), socket },
            CONNECT => {
                Self::Connect { socket, local: end_of(&record[1..4])?, remote: end_of(&record[4..7])? }
            }
            SEND => Self::Send { socket, offset: low(record[1]), bytes: high(record[1]) },
            SEND_EXTENT => Self::SendExtent { socket },
            SHUTDOWN => Self::Shutdown { socket },
            CLOSE => Self::Close { socket, is_reset: flag != 0 },
            SET => {
                let option = match low(record[1]) {
                    0 => Choice::NoDelay,
                    1 => Choice::KeepAlive,
                    2 => Choice::Cork,
                    _ => return None,
                };
                Self::Set { socket, option, is_on: high(record[1]) != 0 }
            }
            WAKE => Self::Wake { socket, at: record[1] },
            GIVE if usize::from(flag) <= GIVEN_AT_ONCE => {
                let buffer = |index: usize| (record[1 + index / 2] >> (index % 2 * 32)) as u32;
                Self::Give { count: flag, buffers: std::array::from_fn(buffer) }
            }
            _ => return None,
        })
    }
}

impl HostEvent {
    /// As it crosses.
    pub(super) fn encode(&self) -> Record {
        let mut record = [0; 7];
        let code = |error: Option<Fault>| error.map_or(0, |fault| fault as u8);
        let mut ends = |kind, socket, error, local, remote: Option<SocketAddr>| {
            record[0] = first(kind, code(error), socket);
            record[1..4].copy_from_slice(&end(local));
            if let Some(remote) = remote {
                record[4..7].copy_from_slice(&end(remote));
            }
        };
        match *self {
            Self::Listening { socket, error, local } => ends(LISTENING, socket, error, local, None),
            Self::Accepted { socket, error, generation, local, remote } => {
                ends(ACCEPTED, socket, error, local, Some(remote));
                record[0] |= u64::from(generation) << GENERATION_SHIFT;
            }
            Self::Connected { socket, error, generation, local, remote } => {
                ends(CONNECTED, socket, error, local, Some(remote));
                record[0] |= u64::from(generation) << GENERATION_SHIFT;
            }
            Self::Data { socket, buffer, bytes } => {
                (record[0], record[1]) = (first(DATA, 0, socket), two(buffer, bytes));
            }
            Self::End { socket, error } => record[0] = first(END, code(error), socket),
            Self::Room { socket } => record[0] = first(ROOM, 0, socket),
            Self::Closed { socket } => record[0] = first(CLOSED, 0, socket),
            Self::Recalled { socket } => record[0] = first(RECALLED, 0, socket),
            Self::Done { socket, error } => record[0] = first(DONE, code(error), socket),
        }
        record
    }

    /// `None`: it is none.
    pub(super) fn decode(record: &Record) -> Option<Self> {
        let (kind, code, socket) = (record[0] as u8, (record[0] >> 8) as u8, high(record[0]));
        let error = match code {
            0 => None,
            code => Some(*Fault::ALL.get(usize::from(code) - 1)?),
        };
        Some(match kind {
            LISTENING => Self::Listening { socket, error, local: end_of(&record[1..4])? },
            ACCEPTED | CONNECTED => {
                let (local, remote) = (end_of(&record[1..4])?, end_of(&record[4..7])?);
                let generation = (record[0] >> GENERATION_SHIFT) as u16;
                match kind {
                    ACCEPTED => Self::Accepted { socket, error, generation, local, remote },
                    _ => Self::Connected { socket, error, generation, local, remote },
                }
            }
            DATA => Self::Data { socket, buffer: low(record[1]), bytes: high(record[1]) },
            END => Self::End { socket, error },
            ROOM => Self::Room { socket },
            CLOSED => Self::Closed { socket },
            RECALLED => Self::Recalled { socket },
            DONE => Self::Done { socket, error },
            _ => return None,
        })
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
