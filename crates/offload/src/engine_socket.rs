//! The name of a connection of an offload engine, for control side and loop.

/// A connection of an engine, named for the thread that turns it ([`TcpStream::engine_socket`](crate::toe::TcpStream::engine_socket)). The name of one that is over names nothing, in no
/// other engine of the program either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineSocket {
    /// Which of the program's engines.
    pub(crate) engine: u32,
    pub(crate) pair: u16,
    /// Sockets are used again: which of the connections that it has been.
    pub(crate) generation: u16,
    pub(crate) socket: u32,
}
