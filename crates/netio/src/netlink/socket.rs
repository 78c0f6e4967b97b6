//! A netlink socket. The kernel works off a question within the call that sends it, so an answer is never waited for long.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::message::{Messages, NetlinkMessage, NetlinkRequest, bytes_of};
use crate::limits::{EVENTS_PER_CALL, NETLINK_BUFFER_BYTES, NETLINK_EVENT_BUFFER_BYTES, NETLINK_TIMEOUT};
use crate::sys::socket::{Buffer, raise_buffer, set_int};

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// First kind that a family defines.
const NLMSG_MIN_TYPE: u16 = 16;
const NETLINK_ADD_MEMBERSHIP: c_int = 1;

/// Whom one speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Interfaces, addresses, routes, neighbours.
    Route,
    /// Everything that has no family of its own.
    Generic,
}

/// A socket that belongs to the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn open(family: Family) -> io::Result<Self> {
        let protocol = match family {
            Family::Route => None,
            Family::Generic => Some(netlink::GENERIC),
        };
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&fd, Timeout::Recv, Some(NETLINK_TIMEOUT))?;
        Ok(Self { fd, buffer: vec![0; NETLINK_BUFFER_BYTES], sequence: 0 })
    }

    /// Opens a socket that is notified of changes.
    pub(crate) fn listen(family: Family, groups: &[u32]) -> io::Result<Self> {
        let socket = Self::open(family)?;
        // More room means fewer overruns; without the privilege the system's limit is what there is.
        let _ = raise_buffer(socket.fd.as_fd(), Buffer::Receive, NETLINK_EVENT_BUFFER_BYTES);
        for &group in groups {
            set_int(socket.fd.as_fd(), libc::SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group.cast_signed())?;
        }
        Ok(socket)
    }

    /// Sends a question; `each` gets the messages of the answer.
    ///
    /// # Errors
    /// The error that the kernel returns instead of an answer, as an errno.
    pub(crate) fn ask(
        &mut self,
        request: NetlinkRequest,
        each: impl FnMut(NetlinkMessage<'_>),
    ) -> io::Result<()> {
        self.exchange(request, NLM_F_ACK, each)
    }

    /// The same for a question whose answer is a list.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) fn dump(
        &mut self,
        request: NetlinkRequest,
        each: impl FnMut(NetlinkMessage<'_>),
    ) -> io::Result<()> {
        self.exchange(request, NLM_F_DUMP, each)
    }

    fn exchange(
        &mut self,
        request: NetlinkRequest,
        flags: u16,
        mut each: impl FnMut(NetlinkMessage<'_>),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request.finish(self.sequence, flags | NLM_F_REQUEST);
        send(&self.fd, &request, SendFlags::empty())?;
        loop {
            let length = self.receive(RecvFlags::empty())?;
            for message in Messages::new(&self.buffer[..length]) {
                // The rest of an answer that was abandoned.
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    NLMSG_ERROR | NLMSG_DONE => return verdict(message.body),
                    NLMSG_MIN_TYPE.. => each(message),
                    _ => {}
                }
            }
        }
    }

    /// Takes the notifications received, without waiting; returns whether there may be more.
    ///
    /// # Errors
    /// `ENOBUFS` when there were more notifications than fit: some are missing then.
    pub(crate) fn take(&mut self, mut each: impl FnMut(NetlinkMessage<'_>)) -> io::Result<bool> {
        for _ in 0..EVENTS_PER_CALL {
            match self.receive(RecvFlags::DONTWAIT) {
                Ok(length) => Messages::new(&self.buffer[..length]).for_each(&mut each),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Length of the next datagram in the buffer.
    fn receive(&mut self, flags: RecvFlags) -> io::Result<usize> {
        loop {
            match recv(&self.fd, &mut self.buffer[..], flags | RecvFlags::TRUNC) {
                Ok((length, whole)) if whole > length => {
                    return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
                }
                Ok((length, _)) => return Ok(length),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The negative errno at the front of an acknowledgement or of the end of a list.
fn verdict(body: &[u8]) -> io::Result<()> {
    match bytes_of(body, 0).map(i32::from_ne_bytes) {
        Some(0) | None => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTM_GETLINK: u16 = 18;

    #[test]
    fn questions_lists_and_refusals() {
        let mut socket = Netlink::open(Family::Route).unwrap();
        let mut links = 0;
        socket.dump(NetlinkRequest::new(RTM_GETLINK, 0, &[0; 16]), |_| links += 1).unwrap();
        assert!(links >= 1);
        let mut fixed = [0; 16];
        fixed[4..8].copy_from_slice(&1u32.to_ne_bytes());
        let mut answers = 0;
        socket
            .ask(NetlinkRequest::new(RTM_GETLINK, 0, &fixed), |m| answers += usize::from(m.kind == 16))
            .unwrap();
        assert_eq!(answers, 1);
        fixed[4..8].copy_from_slice(&0x7fff_ffffu32.to_ne_bytes());
        let refusal = socket.ask(NetlinkRequest::new(RTM_GETLINK, 0, &fixed), |_| ()).unwrap_err();
        assert_eq!(refusal.raw_os_error(), Some(libc::ENODEV));
        // Nothing of one answer is left for the next.
        assert!(!socket.take(|m| panic!("{m:?}")).unwrap());
    }

    #[test]
    fn groups_are_joined_or_refused() {
        assert!(Netlink::listen(Family::Route, &[1, 3, 32]).is_ok());
        assert!(Netlink::listen(Family::Route, &[1 << 20]).is_err());
    }

    #[test]
    fn verdicts_are_negative_errnos() {
        assert!(verdict(&[]).is_ok() && verdict(&0i32.to_ne_bytes()).is_ok());
        assert_eq!(verdict(&(-19i32).to_ne_bytes()).unwrap_err().raw_os_error(), Some(19));
        assert!(verdict(&i32::MIN.to_ne_bytes()).is_err());
    }
}
