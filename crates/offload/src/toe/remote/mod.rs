//! The engine as a process of its own: other programs connect to its Unix socket and get a queue pair.
//!
//! ```text
//!   host process                     socket (SOCK_SEQPACKET)              engine process
//!   connect() ─ Attach ─────────────────────────────────────► gate thread: who is it? a pair, please
//!             ◄ Welcome, memfd, an end of the bells' sockets ─            │ Join   ▲ departed
//!   Host, TcpStream, TcpListener ◄══ memory of the pair ══► engine thread ┘ Leave ─┘
//! ```
//!
//! The socket stays open. Its end of file shows the gate that the host is gone; the end of file of
//! the bells' sockets shows the host that the engine is.
//!
//! | file | holds |
//! | --- | --- |
//! | `memory` | the memory of a pair as a sealed memfd |
//! | `channel` | the ends of a pair over that memory; messages with descriptors |
//! | `message` | what crosses the socket |
//! | `gate` | the thread that owns the socket |
//! | `ports` | the link between it and the engine's thread |
//! | `report` | the status of an engine, as it crosses the socket |
//! | `client` | [`connect`], [`status`] and [`connections`] |

mod channel;
mod client;
mod gate;
mod memory;
mod message;
mod ports;
mod report;

use std::path::PathBuf;

pub use self::client::{connect, connections, status};
pub use self::gate::Access;
pub(super) use self::gate::{Gate, GateSettings};
pub(super) use self::ports::{GateCommand, GatePort, RemotePort, ports};

/// Where an engine of this user listens, and where programs look for one: of root below `/run`, of others below `$XDG_RUNTIME_DIR`.
pub fn default_socket() -> PathBuf {
    let root = PathBuf::from("/run");
    let own = || std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = if rustix::process::geteuid().is_root() { root } else { own().unwrap_or(root) };
    dir.join("millrace/engine.sock")
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
