//! The engine behind the connections of an egress path: one that its loop turns, or a queue pair of
//! one that has a thread of its own.

use std::os::fd::BorrowedFd;

use millrace_core::ids::ConnId;
use millrace_core::pool::Lease;
use millrace_core::time::Instant;
use millrace_tcp::send::ExtentRange;

use super::EngineSocket;
use super::apart::Apart;
use super::engine::{Given, LoopConnection, LoopConnectionEvent};
use super::thread::Turning;
use crate::again::WantedExtent;

/// See the module. Few are made, and none is moved once it is there.
#[expect(clippy::large_enum_variant, reason = "a loop has one of them, in its place")]
pub(super) enum Behind {
    /// One thread: calls.
    Turned(Turning),
    /// Two threads: requests and events.
    Apart(Apart),
}

impl Behind {
    /// Runs the first half of a turn: takes in packets and events.
    ///
    /// # Errors
    /// Why it is over.
    pub(super) fn arrive(&mut self, now: Instant) -> Result<(), String> {
        match self {
            Self::Turned(engine) if engine.home.is_stopping() => Err("it was stopped".into()),
            Self::Turned(engine) => {
                engine.turn_gate(now);
                engine
                    .core
                    .arrive(&mut *engine.device, now)
                    .map_err(|error| format!("its device failed: {error}"))
            }
            Self::Apart(apart) => apart.arrive(),
        }
    }

    /// Runs the second half: sends; returns the amount of work done.
    ///
    /// # Errors
    /// Why it is over.
    pub(super) fn depart(&mut self, now: Instant) -> Result<usize, String> {
        match self {
            Self::Turned(engine) => match engine.core.depart(&mut *engine.device, now) {
                Ok(()) => Ok(engine.publish() as usize),
                Err(error) => Err(format!("its device failed: {error}")),
            },
            Self::Apart(apart) => Ok(apart.depart()),
        }
    }

    /// Records the end and its reason, for later queries.
    pub(super) fn ended(&self, why: String) {
        if let Self::Turned(engine) = self {
            engine.home.ended(why);
        }
    }

    /// The loop ends.
    pub(super) fn shut_all(&mut self, now: Instant) {
        match self {
            Self::Turned(engine) => engine.core.shut_all(now),
            Self::Apart(apart) => apart.shut_all(),
        }
    }

    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Turned(engine) => {
                let is_blind = engine.device.readable().is_none();
                if is_blind || engine.core.has_news() { Some(now) } else { engine.next_due(now) }
            }
            Self::Apart(apart) => apart.has_news().then_some(now),
        }
    }

    /// Readable when something has come in.
    pub(super) fn readable(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Turned(engine) => engine.device.readable(),
            Self::Apart(apart) => Some(apart.readable()),
        }
    }

    pub(super) fn is_asked(&self) -> bool {
        match self {
            Self::Turned(engine) => {
                engine.core.has_requests() || engine.home.is_stopping() || engine.is_asked()
            }
            Self::Apart(apart) => apart.has_events(),
        }
    }

    pub(super) fn poll_news(&mut self) -> Option<LoopConnectionEvent> {
        match self {
            Self::Turned(engine) => engine.core.poll_news(),
            Self::Apart(apart) => apart.poll_news(),
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
            Self::Turned(engine) => engine.core.lend(name, conn, now),
            Self::Apart(apart) => apart.lend(name, conn),
        }
    }

    pub(super) fn take_back(&mut self, way: LoopConnection) {
        match self {
            Self::Turned(engine) => engine.core.take_back(way),
            Self::Apart(apart) => apart.take_back(way),
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
            Self::Turned(engine) => engine.core.give_framed(way, head, lease, range, now),
            Self::Apart(apart) => apart.give_framed(way, head, lease, range),
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
            Self::Turned(engine) => engine.core.give_range(way, lease, range, now),
            Self::Apart(apart) => apart.give_framed(way, &[], lease, range),
        }
    }

    /// Bytes that are copied, all of them or none.
    pub(super) fn give_copied(&mut self, way: LoopConnection, parts: &[&[u8]], now: Instant) -> Given {
        match self {
            Self::Turned(engine) => engine.core.give_copied(way, parts, now),
            Self::Apart(apart) => apart.give_copied(way, parts),
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
            Self::Turned(engine) => engine.core.give_control(way, bytes, now),
            Self::Apart(apart) => apart.give_control(way, bytes),
        }
    }

    pub(super) fn backlog_bytes(&self, way: LoopConnection) -> Option<u64> {
        match self {
            Self::Turned(engine) => engine.core.backlog_bytes(way),
            Self::Apart(apart) => apart.backlog_bytes(way),
        }
    }

    /// An extent that a connection gave back, and needs again. A host's ranges stay leased until they are acknowledged.
    pub(super) fn poll_wanted(&mut self) -> Option<WantedExtent> {
        match self {
            Self::Turned(engine) => engine.core.poll_wanted(),
            Self::Apart(_) => None,
        }
    }

    pub(super) fn supply(&mut self, wanted: &WantedExtent, lease: Option<&Lease>, now: Instant) {
        if let Self::Turned(engine) = self {
            engine.core.supply(wanted, lease, now);
        }
    }
}
