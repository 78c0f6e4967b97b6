//! Commands, connections and events that the service hands to its caller.

use std::collections::VecDeque;

use millrace_core::ids::ConnId;
use millrace_offload::command::Command;

use super::event::ServiceEvent;
use super::keys::ConnKey;

/// The actions to carry out, in this order.
#[derive(Debug)]
pub enum Output {
    /// Send this command to an engine.
    Command {
        /// To whom.
        engine: usize,
        /// What.
        command: Command,
    },
    /// Hand a duplicate of the connection's descriptor to this engine, under this name ([`Command::ConnAdd`]). If that fails, say
    /// [`super::Service::conn_closed`].
    Attach {
        /// The connection.
        conn: ConnKey,
        /// The engine.
        engine: usize,
        /// Its name there.
        id: ConnId,
    },
    /// No engine writes to this connection for a while: keep its output until the next
    /// [`Output::Attach`].
    Hold {
        /// The connection.
        conn: ConnKey,
    },
    /// This has happened.
    Event(ServiceEvent),
}

/// Outputs that wait to be carried out, in their order.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<Output>);

impl Outbox {
    /// The oldest one.
    pub(super) fn pop(&mut self) -> Option<Output> {
        self.0.pop_front()
    }

    pub(super) fn push(&mut self, output: Output) {
        self.0.push_back(output);
    }

    pub(super) fn command(&mut self, engine: usize, command: Command) {
        self.push(Output::Command { engine, command });
    }

    pub(super) fn tell(&mut self, event: ServiceEvent) {
        self.push(Output::Event(event));
    }
}
