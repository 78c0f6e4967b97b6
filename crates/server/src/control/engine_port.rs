//! The way to an engine: its rings and its bell. A trait, so that the control plane can be tested without one.

use std::os::fd::BorrowedFd;

use millrace_offload::command::{Command, Event};
use millrace_offload::handle::{CoreTime, EngineHandle};

use crate::admission::EngineFigures;

/// One engine, as the control thread reaches it.
pub trait EnginePort: Send {
    /// Hands over a command; the engine carries commands out in this order, when it wakes or is rung for.
    ///
    /// # Errors
    /// Gives the command back when there is no room for it now, or the engine has ended.
    #[allow(clippy::result_large_err)] // a command is one cache line by design
    fn send(&mut self, command: Command) -> Result<(), Command>;
    /// Wakes the engine for its new commands.
    fn ring(&self) {}
    /// The next event.
    fn poll_event(&mut self) -> Option<Event>;
    /// Readable when there may be events.
    fn event_fd(&self) -> BorrowedFd<'_>;
    /// Makes the descriptor quiet until the next event; called before the events are polled to the end.
    fn rearm(&mut self);
    /// Returns the totals of its work, for admission; `None` if it does not report them.
    fn figures(&self) -> Option<EngineFigures> {
        None
    }
    /// Whether the engine has ended: it takes no more commands.
    fn is_finished(&self) -> bool;
}

impl EnginePort for EngineHandle {
    fn send(&mut self, command: Command) -> Result<(), Command> {
        EngineHandle::push(self, command)
    }

    fn ring(&self) {
        EngineHandle::ring(self);
    }

    fn poll_event(&mut self) -> Option<Event> {
        EngineHandle::poll_event(self)
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        EngineHandle::event_fd(self)
    }

    fn rearm(&mut self) {
        EngineHandle::rearm(self);
    }

    fn figures(&self) -> Option<EngineFigures> {
        let sheets = self.sheets();
        let (load, engine) = (sheets.load.read(), sheets.engine.read());
        // If the kernel keeps no account, the loop's own figures have to do.
        let core = self.core_time().unwrap_or(CoreTime { running_ns: load.busy_ns, waited_ns: 0 });
        Some(EngineFigures {
            busy_ns: load.busy_ns,
            cpu_ns: core.running_ns,
            waited_ns: core.waited_ns,
            seen_ns: load.busy_ns + load.idle_ns,
            packets: engine.packets,
            ahead: engine.ahead,
            overdue: engine.overdue,
        })
    }

    fn is_finished(&self) -> bool {
        EngineHandle::is_finished(self)
    }
}
