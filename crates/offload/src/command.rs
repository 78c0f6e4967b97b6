//! What crosses between the control side and a loop: records of 64 bytes in rings, nothing else.
//!
//! The control side decides, the loop executes: only numbers, descriptors and ready bytes cross. A record that owns
//! memory (`bytes`) is handed back by [`Event::Recycle`], so that the loop neither allocates nor frees.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

pub use millrace_core::dest::Dest;
use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::time::Instant;
pub use millrace_engine::{
    FailReason, LeaseFailure, Numbering, Refusal, RunCut, RunEnd, RunMedia, RunSpec, StopReason, StreamEvent,
};

pub use crate::engine_socket::EngineSocket;

/// A connection's socket, as it goes from the control side to a loop and back.
#[derive(Debug)]
pub enum ConnSocket {
    /// A duplicate of the descriptor of a connection of the kernel's, non-blocking.
    Kernel(OwnedFd),
    /// A connection of the offload engine that this loop turns. Its host still reads it and closes it.
    Engine(EngineSocket),
}

impl ConnSocket {
    /// The descriptor, if the connection is the kernel's.
    pub fn into_fd(self) -> Option<OwnedFd> {
        match self {
            Self::Kernel(fd) => Some(fd),
            Self::Engine(_) => None,
        }
    }
}

impl From<OwnedFd> for ConnSocket {
    fn from(fd: OwnedFd) -> Self {
        Self::Kernel(fd)
    }
}

impl From<EngineSocket> for ConnSocket {
    fn from(socket: EngineSocket) -> Self {
        Self::Engine(socket)
    }
}

/// From the control side to a loop.
#[derive(Debug)]
#[repr(align(64))]
pub enum Command {
    /// A way to a viewer. Nothing is sent before [`Command::Play`].
    Open {
        /// Chosen by the control side; not available to another stream until [`Event::Stream`]
        /// reports `Closed`.
        stream: StreamId,
        /// Where its packets go.
        dest: Dest,
        /// No RTCP and no BYE ([`millrace_engine::StreamSpec::quiet`]).
        quiet: bool,
        /// It has one run. When that has been sent whole, the loop does by itself what [`Command::Close`] and
        /// [`Command::ConnReturn`] do, and answers as to these, but without [`Event::Backlog`].
        once: bool,
    },
    /// Play (RFC 2326 section 10.5). A run that lasts ends at once.
    Play {
        /// The stream.
        stream: StreamId,
        /// When the first packet leaves, if it has been read by then.
        at: Instant,
        /// Media that it may send ahead of its pace at its beginning, in milliseconds ([`millrace_engine::Start::ahead_ms`]).
        ahead_ms: u16,
        /// The run to send. Its title, open in the cache, must stay open until the run's end, or
        /// its refusal, has been reported.
        run: RunSpec,
    },
    /// What follows the run that lasts, without a break. A run that was queued before ends at once.
    Queue {
        /// The stream.
        stream: StreamId,
        /// Where it follows.
        cut: RunCut,
        /// The run to send, as in [`Command::Play`].
        run: RunSpec,
    },
    /// End the run; answered by its end, or by nothing if it has ended meanwhile.
    Pause {
        /// The stream.
        stream: StreamId,
    },
    /// How much of it its viewer has not got; answered by [`Event::Backlog`] if it goes through a connection, by [`Event::GroupState`] if
    /// it goes to a group, else by nothing.
    Measure {
        /// The stream.
        stream: StreamId,
    },
    /// Forget the stream; answered as [`Command::Measure`] is, and by `Closed`.
    Close {
        /// The stream.
        stream: StreamId,
    },
    /// From now on the loop owns the writes of this connection.
    ConnAdd {
        /// Its name.
        conn: ConnId,
        /// Where its bytes go.
        socket: ConnSocket,
    },
    /// Control bytes: an RTSP reply, which goes out between RTP frames, or the head of a response
    /// before its bytes. Commands are carried out in order: bytes written before [`Command::Play`]
    /// are on their way before the first byte of the run. While a run of bytes lasts, they would
    /// stand in its middle.
    ConnWrite {
        /// The connection.
        conn: ConnId,
        /// The bytes; handed back by [`Event::Recycle`].
        bytes: Vec<u8>,
    },
    /// The loop gives up the connection, with what waits for it.
    ConnRemove {
        /// The connection.
        conn: ConnId,
    },
    /// The loop gives the connection back, alive, once the kernel has taken every byte that it was given: [`Event::ConnReturned`] then, or
    /// [`Event::ConnGone`] if it breaks before. Streams that still go through it fail at once. A viewer that reads nothing is waited
    /// for without end: [`Command::ConnRemove`] ends that.
    ConnReturn {
        /// The connection.
        conn: ConnId,
    },
    /// ICMP reports a destination of one of this loop's streams as unreachable. Nothing answers.
    Unreachable {
        /// The address.
        dest: SocketAddr,
        /// Why, as an errno.
        errno: i32,
    },
    /// Finish: say BYE to all viewers, wait shortly for the streams to be closed, then end the thread.
    Stop,
}

/// From a loop to the control side.
#[derive(Debug)]
#[repr(align(64))]
pub enum Event {
    /// Something happened to a stream.
    Stream(millrace_engine::StreamEvent),
    /// A command could not be carried out: the stream is unknown, or the tables are full.
    Refused {
        /// The stream of the command.
        stream: StreamId,
        /// The run, if the command should have begun one. No other event reports it.
        run: Option<RunSerial>,
        /// Why.
        refusal: millrace_engine::Refusal,
    },
    /// The data given to a stream's connection that its peer has not acknowledged, and the data not
    /// given to it yet.
    Backlog {
        /// The stream.
        stream: StreamId,
        /// Bytes, with those of replies and of other streams through this connection.
        backlog_bytes: u64,
        /// For how long the stream's next packet has been due and has not left ([`millrace_engine::Engine::behind_ns`]).
        behind_ns: u64,
    },
    /// Whether the packets of a stream to a group leave.
    GroupState {
        /// The stream.
        stream: StreamId,
        /// Why the last ones were refused; 0: they left.
        errno: i32,
    },
    /// A connection broke while the loop owned its writes.
    ConnGone {
        /// The connection.
        conn: ConnId,
        /// `errno`, 0 for an orderly close.
        errno: i32,
    },
    /// Memory of a [`Command::ConnWrite`] that the loop is done with.
    Recycle {
        /// Its buffer.
        bytes: Vec<u8>,
    },
    /// The loop knows the connection no more ([`Command::ConnRemove`]).
    ConnRemoved {
        /// The connection.
        conn: ConnId,
        /// Its socket, if the loop still had it; dropping a descriptor here closes it.
        socket: Option<ConnSocket>,
    },
    /// The loop returns the connection ([`Command::ConnReturn`]). If [`Command::ConnRemove`] was
    /// sent meanwhile, [`Event::ConnRemoved`] follows too.
    ConnReturned {
        /// The connection.
        conn: ConnId,
        /// Its socket; `None`: the loop did not have it.
        socket: Option<ConnSocket>,
    },
}

const _: () = {
    assert!(size_of::<Command>() == 64);
    assert!(size_of::<Event>() == 64);
};
