//! The link between the gate and the engine's thread: a ring of commands, a ring of returned items,
//! and the bell of the gate.

use std::io;
use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::bell::EventBell;
use crate::toe::engine::Survey;
use crate::toe::pair::EngineEnd;

/// From the gate to the engine's thread.
pub(in crate::toe) enum GateCommand {
    /// A host has this pair from now on.
    Join(u16, EngineEnd),
    /// It is gone. What takes its place until there is another one.
    Leave(u16, EngineEnd),
    /// A program requests connections.
    Survey(Box<Survey>),
}

/// An item that the engine's thread returns.
#[expect(
    clippy::large_enum_variant,
    reason = "the engine's thread allocates nothing, not even for the end of a pair"
)]
pub(super) enum Returned {
    /// The memory of a pair that the engine no longer uses.
    Pair(u16, EngineEnd),
    /// The connections that were asked for.
    Survey(Box<Survey>),
}

/// The engine thread's side of the gate.
pub(in crate::toe) struct RemotePort {
    commands: Consumer<GateCommand>,
    returned: Producer<Returned>,
    bell: Arc<EventBell>,
}

impl RemotePort {
    /// Takes the gate's next command.
    pub(in crate::toe) fn next(&mut self) -> Option<GateCommand> {
        self.commands.pop().ok()
    }

    pub(in crate::toe) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Whether the next pair can be given back.
    pub(in crate::toe) fn has_room(&self) -> bool {
        !self.returned.is_full()
    }

    /// The engine has no more use for the memory of a pair.
    pub(in crate::toe) fn give_back(&mut self, pair: u16, end: EngineEnd) {
        // There is an entry for every pair, and one for the survey.
        let _ = self.returned.push(Returned::Pair(pair, end));
        self.bell.ring();
    }

    /// The connections that were asked for.
    pub(in crate::toe) fn answer(&mut self, survey: Box<Survey>) {
        let _ = self.returned.push(Returned::Survey(survey));
        self.bell.ring();
    }
}

impl Drop for RemotePort {
    fn drop(&mut self) {
        // The engine's thread has ended: so does the gate.
        self.bell.ring();
    }
}

/// The gate's side, before its thread is started.
pub(in crate::toe) struct GatePort {
    pub(super) commands: Producer<GateCommand>,
    pub(super) returned: Consumer<Returned>,
    pub(super) bell: Arc<EventBell>,
    pub(super) first_pair: u16,
    pub(super) pairs: u16,
}

/// Creates the link between the gate and the engine's thread, for `pairs` pairs from number `first`
/// on.
///
/// # Errors
/// No descriptor for the bell.
pub(in crate::toe) fn ports(first: u16, pairs: u16) -> io::Result<(GatePort, RemotePort)> {
    let bell = Arc::new(EventBell::new()?);
    // Of each pair at most a Join and a Leave are under way; and one survey.
    let (to_engine, commands) = RingBuffer::new(usize::from(pairs) * 2 + 1);
    let (given_back, returned) = RingBuffer::new(usize::from(pairs) + 1);
    let port = GatePort { commands: to_engine, returned, bell: Arc::clone(&bell), first_pair: first, pairs };
    Ok((port, RemotePort { commands, returned: given_back, bell }))
}
