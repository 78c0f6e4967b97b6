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
//! | `message` | what crosses the socket |
//! | `gate` | the thread that owns the socket |
//! | `ports` | the link between it and the engine's thread |
//! | `report` | the status of an engine, as it crosses the socket |
//! | `client` | [`connect`], [`status`] and [`connections`] |

mod client;
mod gate;
mod memory;
mod message;
mod ports;
mod report;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use millrace_core::sleep::SleepFlag;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub use self::client::{connect, connections, status};
pub use self::gate::{Access, GateCounters};
pub(super) use self::gate::{Gate, GateSettings};
pub(super) use self::ports::{GateCommand, GatePort, RemotePort, ports};

use super::pair::{ENGINE_SLEEPS, EngineEnd, HOST_SLEEPS, HostEnd, Layout, PairSettings};
use crate::bell::EventBell;

/// Where an engine of this user listens, and where programs look for one: of root below `/run`, of others below `$XDG_RUNTIME_DIR`.
pub fn default_socket() -> PathBuf {
    let root = PathBuf::from("/run");
    let own = || std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = if rustix::process::geteuid().is_root() { root } else { own().unwrap_or(root) };
    dir.join("millrace/engine.sock")
}

/// Creates the engine's end of a new pair, and the host's part: its memory and its end of the
/// sockets.
fn engine_side(settings: &PairSettings) -> io::Result<(EngineEnd, [OwnedFd; 2])> {
    let (fd, words) = memory::create(Layout::new(settings)?.words)?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let [bell, doorbell] = bells(ours, |at| SleepFlag::new(&words, at), [HOST_SLEEPS, ENGINE_SLEEPS])?;
    Ok((EngineEnd::new(settings, words, Arc::new(bell), Some(doorbell))?, [fd, theirs]))
}

/// The host's end of a pair, and the bell of the engine.
fn host_side(settings: &PairSettings, [fd, socket]: [OwnedFd; 2]) -> io::Result<(HostEnd, EventBell)> {
    let words = memory::open(&fd, Layout::new(settings)?.words)?;
    let [bell, engine] = bells(socket, |at| SleepFlag::new(&words, at), [HOST_SLEEPS, ENGINE_SLEEPS])?;
    Ok((HostEnd::new(settings, words, Arc::new(bell))?, engine))
}

fn bells(
    fd: OwnedFd,
    flag: impl Fn(usize) -> Option<SleepFlag>,
    at: [usize; 2],
) -> io::Result<[EventBell; 2]> {
    let fd = Arc::new(fd);
    let bell = |at| flag(at).map(|flag| EventBell::over_socket(Arc::clone(&fd), flag));
    match at.map(bell) {
        [Some(one), Some(other)] => Ok([one, other]),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the memory of a queue pair is too small")),
    }
}

/// Sends a message, and descriptors with it.
fn send(
    socket: impl AsFd,
    message: &message::GateMessage,
    fds: &[std::os::fd::BorrowedFd<'_>],
) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !with.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("more descriptors than a message carries"));
    }
    let bytes = message.encode();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[io::IoSlice::new(&bytes)], &mut with, flags)?;
    Ok(())
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
