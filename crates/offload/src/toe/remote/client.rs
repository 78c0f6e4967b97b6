//! The host's side: a queue pair of an engine that is another process.

use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, recvmsg, socket_with, sockopt,
};

use super::channel::{host_side, send};
use super::message::{GateMessage, Refusal, Welcome};
use crate::limits::{HANDSHAKE_NS, MAX_HANDSHAKE_BYTES, MAX_SHOWN_CONNECTIONS};
use crate::toe::host::{Home, Host, HostState};
use crate::toe::status::{ConnectionStatus, EngineStatus};

/// Returns a queue pair, for this thread, of the engine that listens at `path`
/// ([`Engine::serve`](crate::toe::Engine::serve)). Its sockets are the same as those of an engine
/// within this process. When the engine ends, however it ends, every call returns
/// [`ErrorKind::ConnectionAborted`]; when this process ends, the engine resets its open
/// connections.
///
/// # Errors
/// No engine listens there; this user may not connect; every pair is taken.
pub fn connect(path: impl AsRef<Path>) -> io::Result<Host> {
    let path = path.as_ref();
    let socket = dial(path)?;
    send(&socket, &GateMessage::Attach, &[]).map_err(|error| at(path, error))?;
    let (Welcome { number, pair, addresses, ports }, fds) =
        answer(&socket).map_err(|error| at(path, error))?;
    let (end, engine_bell) = host_side(&pair, fds).map_err(|error| at(path, error))?;
    let engine_bell = Arc::new(engine_bell);
    let state = HostState::new(number, end, Arc::clone(&engine_bell), &pair);
    let home = Home::elsewhere(engine_bell, addresses, socket).with_ports(ports);
    Ok(Host::new(state, Arc::new(home)))
}

/// Returns the counters of the engine that listens at `path`, and its users.
///
/// # Errors
/// No engine listens there; this user may not connect; its answer is invalid.
pub fn status(path: impl AsRef<Path>) -> io::Result<EngineStatus> {
    let path = path.as_ref();
    let socket = dial(path)?;
    match ask(&socket, &GateMessage::AskStatus).map_err(|error| at(path, error))? {
        GateMessage::Status(status) => Ok(*status),
        _ => Err(at(path, no_answer())),
    }
}

/// Its listeners, then its connections, as they are while they are looked at: some at a time, so that the engine goes on.
///
/// # Errors
/// As [`status`].
pub fn connections(path: impl AsRef<Path>) -> io::Result<Vec<ConnectionStatus>> {
    let path = path.as_ref();
    let socket = dial(path)?;
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        match ask(&socket, &GateMessage::AskConnections(from)).map_err(|error| at(path, error))? {
            GateMessage::Connections(page) => {
                all.extend(page.connections);
                match page.next {
                    None => return Ok(all),
                    // This ends, whichever program answers.
                    Some(next) if next > from && all.len() < MAX_SHOWN_CONNECTIONS => from = next,
                    Some(_) => return Err(at(path, no_answer())),
                }
            }
            _ => return Err(at(path, no_answer())),
        }
    }
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("offload engine at {}: {error}", path.display()))
}

fn no_answer() -> io::Error {
    let text = "its answer is none that this program understands: use the same version of both";
    io::Error::new(ErrorKind::InvalidData, text)
}

/// A connection to the engine's socket.
pub(super) fn dial(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let limit = Duration::from_nanos(HANDSHAKE_NS * 2);
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(limit))?;
    // While its queue of callers is full this would wait.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(limit))?;
    let connected = SocketAddrUnix::new(path).and_then(|to| rustix::net::connect(&socket, &to));
    connected.map_err(io::Error::from).map_err(|error| {
        let name = path.display();
        let text = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                format!("no offload engine listens at {name}: start one, or name the socket of one that runs")
            }
            ErrorKind::PermissionDenied => {
                format!("offload engine at {name}: its socket may not be opened by this user; have the engine allow it")
            }
            _ => format!("offload engine at {name}: {error}"),
        };
        io::Error::new(error.kind(), text)
    })?;
    Ok(socket)
}

/// Asks, without anything to be handed over.
pub(super) fn ask(socket: &OwnedFd, question: &GateMessage) -> io::Result<GateMessage> {
    // Descriptors that were not requested are closed.
    send(socket, question, &[]).and_then(|()| receive(socket)).map(|(answer, _)| answer)
}

/// The engine's answer to [`GateMessage::Attach`].
pub(super) fn answer(socket: &OwnedFd) -> io::Result<(Welcome, [OwnedFd; 2])> {
    let (answer, fds) = receive(socket)?;
    match (answer, <[OwnedFd; 2]>::try_from(fds)) {
        (GateMessage::Welcome(welcome), Ok(fds)) => Ok((welcome, fds)),
        _ => Err(no_answer()),
    }
}

/// The next message, if it is no refusal, and the descriptors that came with it.
fn receive(socket: &OwnedFd) -> io::Result<(GateMessage, Vec<OwnedFd>)> {
    let mut bytes = [0; MAX_HANDSHAKE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut with, RecvFlags::CMSG_CLOEXEC)
        .map_err(|errno| match io::Error::from(errno) {
            error if error.kind() == ErrorKind::WouldBlock => {
                io::Error::new(ErrorKind::TimedOut, "it does not answer")
            }
            error => error,
        })?;
    let mut fds = Vec::new();
    for message in with.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    match GateMessage::decode(&bytes[..got.bytes.min(MAX_HANDSHAKE_BYTES)]) {
        Some(GateMessage::Refused(why, text)) => {
            let kind = match why {
                Refusal::NotAllowed => ErrorKind::PermissionDenied,
                Refusal::Full => ErrorKind::ResourceBusy,
                Refusal::NoMemory => ErrorKind::OutOfMemory,
                Refusal::Unknown => ErrorKind::Unsupported,
            };
            Err(io::Error::new(kind, text))
        }
        Some(message) => Ok((message, fds)),
        None if got.bytes == 0 => {
            Err(io::Error::new(ErrorKind::ConnectionAborted, "it has hung up without an answer"))
        }
        None => Err(no_answer()),
    }
}
