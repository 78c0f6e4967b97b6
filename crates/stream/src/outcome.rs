//! Results of runs, and the reasons for not beginning one.

use std::io;

use millrace_core::time::Instant;
use millrace_core::units::BitRate;
use millrace_engine::{FailReason, LeaseFailure, Refusal, StopReason};
use millrace_store::cache::CacheError;

/// Why a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Everything up to its end has been sent: the stopping offset, the end of the file, or that of a buffer whose writer has finished.
    Finished,
    /// Something came on the control descriptor, or it was closed at the other end. It is left there to be read.
    Control,
    /// The future of the run was dropped, and the run has been ended. Told by the next one only if that has to wait for it.
    Stopped,
    /// The writer of a circular buffer has overwritten the data that comes next. Choose another
    /// place ([`MediaSource::newest`](crate::MediaSource::newest)).
    Lapped,
    /// The writer of a buffer was dropped before it had finished. The data that it had written has
    /// been sent.
    SourceLost,
    /// The data that comes next cannot be read.
    Read(LeaseFailure),
    /// The peer closed the connection (`errno` 0) or it broke.
    PeerGone {
        /// An `errno`, or 0.
        errno: i32,
    },
    /// The peer reads its connection slower than the source plays, and is ten seconds behind.
    SlowReader,
    /// Nothing has got through to a UDP destination for half a minute.
    Unreachable {
        /// The last `errno`.
        errno: i32,
    },
    /// The engine was shut down.
    ShutDown,
}

impl Reason {
    /// Returns the reason for the end of a run whose end was requested for `asked`, if it was.
    pub(crate) fn of(reason: StopReason, asked: Option<Reason>) -> Self {
        match reason {
            StopReason::Finished => Self::Finished,
            StopReason::Paused | StopReason::Replaced | StopReason::Closed => asked.unwrap_or(Self::Stopped),
            StopReason::ShutDown => Self::ShutDown,
            StopReason::Failed(FailReason::ReadError(LeaseFailure::Passed)) => Self::Lapped,
            StopReason::Failed(FailReason::ReadError(LeaseFailure::SourceLost)) => Self::SourceLost,
            StopReason::Failed(FailReason::ReadError(failure)) => Self::Read(failure),
            StopReason::Failed(FailReason::SlowReader) => Self::SlowReader,
            StopReason::Failed(FailReason::ConnectionClosed(errno)) => Self::PeerGone { errno },
            StopReason::Failed(FailReason::Unreachable(errno)) => Self::Unreachable { errno },
        }
    }
}

/// A place in a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Its packet.
    pub packet: u32,
    /// Its byte, from the source's beginning.
    pub byte: u64,
}

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// Why.
    pub reason: Reason,
    /// Blocks that were sent: pieces that left at one time, up to 10 ms of media each (40 ms in a connection).
    pub blocks: u32,
    /// Packets in them.
    pub packets: u32,
    /// Their bytes, with RTP headers where there are any; for bytes in a connection those of the source alone.
    pub bytes: u64,
    /// Packets that could not be read and were left out; in a connection, null packets stand in their place.
    pub missing: u32,
    /// The data that comes next: the next run begins here, unless set otherwise.
    pub next: Position,
    /// When that would have been due, on the monotonic clock; the next run keeps to it.
    pub next_due: Instant,
}

/// Why a run was not accepted: nothing has been sent, and the context is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunRefusal {
    /// All places in the engines' tables are taken.
    #[error("stream engine: all {most} streams are in use; end one, or start it with more `streams`")]
    Streams {
        /// Places.
        most: usize,
    },
    /// All places for connections are taken.
    #[error("stream engine: all {most} connections are in use; end one, or start it with more `streams`")]
    Connections {
        /// Places.
        most: usize,
    },
    /// All runs together would send more than was allowed.
    #[error(
        "stream engine: {asked} more than the {used} that are sent; allowed are {most}; wait, or raise `max_rate`"
    )]
    Rate {
        /// Of this run.
        asked: BitRate,
        /// Of those that last.
        used: BitRate,
        /// Bound.
        most: BitRate,
    },
    /// The core of the engine is as busy as it may be.
    #[error("stream engine: its core is {permille} per mille busy, allowed are {most}; add an engine")]
    Busy {
        /// Share of the last second or so.
        permille: u64,
        /// Bound.
        most: u64,
    },
    /// Viewers are at as many places of sources as the memory carries.
    #[error(
        "stream engine: its viewers are at {used} places and its memory carries {max}; give it a larger cache"
    )]
    Memory {
        /// Places that are in use.
        used: u64,
        /// Places that the memory carries.
        max: u64,
    },
    /// There is no socket of the destination's address family.
    #[error(
        "stream engine: it has no UDP ports of the destination's address family; start it with an address of that family"
    )]
    AddressFamily,
    /// The source cannot be sent so.
    #[error("stream engine: {0}")]
    Unsuitable(&'static str),
    /// The place is not in the source.
    #[error("stream engine: {0}; the source ends before")]
    OutOfRange(&'static str),
}

/// Why a run is not possible.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was not accepted.
    #[error(transparent)]
    Refused(#[from] RunRefusal),
    /// The connection is gone: make a new context for another one.
    #[error("stream engine: the connection is gone (errno {errno})")]
    ConnectionGone {
        /// An `errno`, 0 for an orderly close.
        errno: i32,
    },
    /// The control descriptor cannot be watched.
    #[error(
        "stream engine: the control descriptor cannot be watched: {0}; give a socket, a pipe or an eventfd"
    )]
    Control(#[source] io::Error),
    /// The engine was shut down.
    #[error("stream engine: it was shut down")]
    ShutDown,
    /// The context has been used with another engine.
    #[error("stream engine: the context or its source belongs to another engine")]
    OtherEngine,
    /// The engine refused a command that this library should not have sent.
    #[error("stream engine: {0}")]
    Engine(Refusal),
}

/// Why an engine or a source is not available.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting is out of range.
    #[error("stream engine: {0}")]
    Config(String),
    /// Memory, threads or descriptors were refused.
    #[error("stream engine: {what}: {source}")]
    System {
        /// The resource that was requested.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// UDP ports.
    #[error(transparent)]
    Net(#[from] millrace_offload::NetError),
    /// The cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A volume or one of its titles.
    #[error(transparent)]
    Store(#[from] millrace_store::StoreError),
    /// A title cannot be read, or lacks something that the transformation needs.
    #[error(transparent)]
    Transform(#[from] millrace_store::transform::DeriveTitleError),
    /// A file cannot be opened or read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// A file is not of the kind that was declared.
    #[error("{path}: {what}")]
    NotSo {
        /// The file.
        path: String,
        /// The fault and the remedy.
        what: String,
    },
}
