//! The engine behind the connections of an egress path: one that its loop turns, or a queue pair of
//! one that has a thread of its own.

use std::os::fd::BorrowedFd;

use millrace_core::ids::ConnId;
use millrace_core::pool::Lease;
use millrace_core::time::Instant;
use millrace_tcp::send::ExtentRange;
use millrace_tcp::stack::WantedExtent;

use super::engine::{Given, LoopConnection, LoopConnectionEvent};
use super::queue_pair_access::QueuePairAccess;
use super::thread::Turning;
use crate::engine_socket::EngineSocket;

/// See the module. Few are made, and none is moved once it is there.
#[expect(clippy::large_enum_variant, reason = "a loop has one of them, in its place")]
pub(super) enum EngineAccess {
    /// One thread: calls.
    Inline(Turning),
    /// Two threads: requests and events.
    QueuePair(QueuePairAccess),
}

impl EngineAccess {
    /// Runs the first half of a turn: takes in packets and events.
    ///
    /// # Errors
    /// Why it is over.
    pub(super) fn arrive(&mut self, now: Instant) -> Result<(), String> {
        match self {
            Self::Inline(engine) if engine.home.is_stopping() => Err("it was stopped".into()),
            Self::Inline(engine) => {
                engine.turn_gate(now);
                engine
                    .core
                    .arrive(&mut *engine.device, now)
                    .map_err(|error| format!("its device failed: {error}"))
            }
            Self::QueuePair(pair) => pair.arrive(),
        }
    }

    /// Runs the second half: sends; returns the amount of work done.
    ///
    /// # Errors
    /// Why it is over.
    pub(super) fn depart(&mut self, now: Instant) -> Result<usize, String> {
        match self {
            Self::Inline(engine) => match engine.core.depart(&mut *engine.device, now) {
                Ok(()) => Ok(engine.publish() as usize),
                Err(error) => Err(format!("its device failed: {error}")),
            },
            Self::QueuePair(pair) => Ok(pair.depart()),
        }
    }

    /// Records the end and its reason, for later queries.
    pub(super) fn ended(&self, why: String) {
        if let Self::Inline(engine) = self {
            engine.home.ended(why);
        }
    }

    /// The loop ends.
    pub(super) fn shut_all(&mut self, now: Instant) {
        match self {
            Self::Inline(engine) => engine.core.shut_all(now),
            Self::QueuePair(pair) => pair.shut_all(),
        }
    }

    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Inline(engine) => {
                let is_blind = engine.device.readable().is_none();
                if is_blind || engine.core.has_news() { Some(now) } else { engine.next_due(now) }
            }
            Self::QueuePair(pair) => pair.has_news().then_some(now),
        }
    }

    /// Readable when something has come in.
    pub(super) fn readable(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Inline(engine) => engine.device.readable(),
            Self::QueuePair(pair) => Some(pair.readable()),
        }
    }

    pub(super) fn is_asked(&self) -> bool {
        match self {
            Self::Inline(engine) => {
                engine.core.has_requests() || engine.home.is_stopping() || engine.is_asked()
            }
            Self::QueuePair(pair) => pair.has_events(),
        }
    }

    pub(super) fn poll_news(&mut self) -> Option<LoopConnectionEvent> {
        match self {
            Self::Inline(engine) => engine.core.poll_news(),
            Self::QueuePair(pair) => pair.poll_news(),
        }
    }

    /// # Errors
    /// As an errno: there is no such connection, it is over, or it already has a writer.
    pub(super) fn lend(
        &mut self,
        name: EngineSocket,
        conn: ConnId,
        now: Instant,
    ) -> Result<LoopConnection, i32> {
        match self {
            Self::Inline(engine) => engine.core.lend(name, conn, now),
            Self::QueuePair(pair) => pair.lend(name, conn),
        }
    }

    pub(super) fn take_back(&mut self, way: LoopConnection) {
        match self {
            Self::Inline(engine) => engine.core.take_back(way),
            Self::QueuePair(pair) => pair.take_back(way),
        }
    }

    /// A frame: a head, and a range behind it.
    pub(super) fn give_framed(
        &mut self,
        way: LoopConnection,
        head: &[u8],
        lease: &Lease,
        range: ExtentRange,
        now: Instant,
    ) -> Given {
        match self {
            Self::Inline(engine) => engine.core.give_framed(way, head, lease, range, now),
            Self::QueuePair(pair) => pair.give_framed(way, head, lease, range),
        }
    }

    /// A range with nothing around it.
    pub(super) fn give_range(
        &mut self,
        way: LoopConnection,
        lease: &Lease,
        range: ExtentRange,
        now: Instant,
    ) -> Given {
        match self {
            Self::Inline(engine) => engine.core.give_range(way, lease, range, now),
            Self::QueuePair(pair) => pair.give_framed(way, &[], lease, range),
        }
    }

    /// Bytes that are copied, all of them or none.
    pub(super) fn give_copied(&mut self, way: LoopConnection, parts: &[&[u8]], now: Instant) -> Given {
        match self {
            Self::Inline(engine) => engine.core.give_copied(way, parts, now),
            Self::QueuePair(pair) => pair.give_copied(way, parts),
        }
    }

    /// # Errors
    /// As an errno: the line is over, or too many control bytes are not acknowledged.
    pub(super) fn give_control(
        &mut self,
        way: LoopConnection,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), i32> {
        match self {
            Self::Inline(engine) => engine.core.give_control(way, bytes, now),
            Self::QueuePair(pair) => pair.give_control(way, bytes),
        }
    }

    pub(super) fn backlog_bytes(&self, way: LoopConnection) -> Option<u64> {
        match self {
            Self::Inline(engine) => engine.core.backlog_bytes(way),
            Self::QueuePair(pair) => pair.backlog_bytes(way),
        }
    }

    /// An extent that a connection gave back, and needs again. A host's ranges stay leased until they are acknowledged.
    pub(super) fn poll_wanted(&mut self) -> Option<WantedExtent> {
        match self {
            Self::Inline(engine) => engine.core.poll_wanted(),
            Self::QueuePair(_) => None,
        }
    }

    pub(super) fn supply(&mut self, wanted: &WantedExtent, lease: Option<&Lease>, now: Instant) {
        if let Self::Inline(engine) = self {
            engine.core.supply(wanted, lease, now);
        }
    }
}
