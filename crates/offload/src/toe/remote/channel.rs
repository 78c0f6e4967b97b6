//! Between the processes of a pair: its ends over shared memory, and messages with descriptors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use millrace_core::sleep::SleepFlag;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{memory, message};
use crate::bell::EventBell;
use crate::toe::pair::{ENGINE_SLEEPS, EngineEnd, HOST_SLEEPS, HostEnd, Layout, PairSettings};

/// Creates the engine's end of a new pair, and the host's part: its memory and its end of the
/// sockets.
pub(super) fn engine_side(settings: &PairSettings) -> io::Result<(EngineEnd, [OwnedFd; 2])> {
    let (fd, words) = memory::create(Layout::new(settings)?.words)?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let [bell, doorbell] = bells(ours, |at| SleepFlag::new(&words, at), [HOST_SLEEPS, ENGINE_SLEEPS])?;
    Ok((EngineEnd::new(settings, words, Arc::new(bell), Some(doorbell))?, [fd, theirs]))
}

/// The host's end of a pair, and the bell of the engine.
pub(super) fn host_side(
    settings: &PairSettings,
    [fd, socket]: [OwnedFd; 2],
) -> io::Result<(HostEnd, EventBell)> {
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
pub(super) fn send(
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
