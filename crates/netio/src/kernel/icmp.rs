//! ICMP messages about viewers, separated from messages about sends by others.
//!
//! One socket serves all viewers. With `IP_RECVERR` the kernel puts every ICMP error into the socket's error queue,
//! with the address that the bad datagram had been sent to, and also lets the *next* send fail, whoever it is for
//! (ip(7)). So a send that fails with something that ICMP can say is tried again after the queue has been emptied, and
//! the address goes into a table: its own next send is answered `Unreachable`.
//!
//! Any host can send an ICMP message about any other. Only two sources count: the viewer's own
//! address ("port unreachable") and this host ("host unreachable": no station on the link answers
//! to that address). Messages from all other sources are hearsay: they are counted and change
//! nothing for the viewer concerned.
//!
//! Where several senders share one port, ICMP messages arrive at its receiver
//! ([`super::UdpPorts`]), which reads them with [`IcmpReader`]. The code that knows which sender
//! serves the viewer reports them to it ([`super::KernelTx::note_unreachable`]).

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use super::counters::TxCounters;
use super::held::ZeroCopyLeases;
use super::table::AddrTable;
use crate::limits::{ICMP_BATCH, ICMP_LIFETIME_BATCHES, MAX_ICMP_CALLS, MAX_ICMP_NEWS};
use crate::sys::cmsg::{SO_EE_CODE_ZEROCOPY_COPIED, SO_EE_ORIGIN_ZEROCOPY};
use crate::sys::mmsg::{ReceivedMessage, RecvArena};
use crate::sys::socket::{set_int, tell_local_address};

/// ICMP errors by the address they are about.
pub(super) struct IcmpLog {
    arena: RecvArena,
    pending: AddrTable<i32>,
    news: std::collections::VecDeque<(SocketAddr, i32)>,
}

impl IcmpLog {
    pub(super) fn new() -> Self {
        Self {
            arena: RecvArena::new(ICMP_BATCH, 0),
            pending: AddrTable::new(ICMP_LIFETIME_BATCHES),
            news: std::collections::VecDeque::with_capacity(MAX_ICMP_NEWS),
        }
    }

    /// Takes the errors out of the socket's queue, a bounded number; returns how many ICMP errors there were. When it
    /// has emptied the queue, the kernel has also forgotten the error it kept for the next send. Completions of sends
    /// without copying lie between them, and give their leases back.
    pub(super) fn drain(
        &mut self,
        socket: &UdpSocket,
        now: u64,
        counters: &mut TxCounters,
        held: &mut ZeroCopyLeases,
    ) -> usize {
        let mut heard = 0;
        for _ in 0..MAX_ICMP_CALLS {
            let got = match self.arena.receive(socket.as_fd(), libc::MSG_ERRQUEUE) {
                Ok(got) => got,
                Err(libc::EAGAIN) => 0,
                Err(_) => break,
            };
            for index in 0..got {
                heard += usize::from(self.note(index, now, counters, held));
            }
            if got < self.arena.capacity() {
                held.read_to_end();
                break;
            }
        }
        counters.icmp_errors += heard as u64;
        heard
    }

    /// Files one message of the error queue; whether ICMP sent it.
    fn note(&mut self, index: usize, now: u64, counters: &mut TxCounters, held: &mut ZeroCopyLeases) -> bool {
        match ErrorReport::of(&self.arena.get(index)) {
            ErrorReport::Complete { first, last, was_copied } => {
                held.complete(first, last, was_copied);
                let sends = u64::from(last.wrapping_sub(first)) + 1;
                counters.zero_copy_copied += if was_copied { sends } else { 0 };
                return false;
            }
            ErrorReport::Unreachable(dest, errno) => self.put(dest, errno, now),
            ErrorReport::Hearsay => counters.icmp_hearsay += 1,
            ErrorReport::Noted => {}
            ErrorReport::Other => return false,
        }
        true
    }

    /// Remembers that `dest` cannot be reached.
    pub(super) fn put(&mut self, dest: SocketAddr, errno: i32, now: u64) {
        self.pending.put(dest, errno, now);
        if self.news.len() == MAX_ICMP_NEWS {
            self.news.pop_front();
        }
        self.news.push_back((dest, errno));
    }

    /// Takes the error about `dest` that its sender has not met yet; each is returned once.
    pub(super) fn take(&mut self, dest: SocketAddr, now: u64) -> Option<i32> {
        self.pending.take(dest, now)
    }

    /// Takes the next error in order of arrival; each is returned once, independently of
    /// [`IcmpLog::take`].
    pub(super) fn poll(&mut self) -> Option<(SocketAddr, i32)> {
        self.news.pop_front()
    }
}

/// The content of one error queue message.
enum ErrorReport {
    /// These sends without copying are complete.
    Complete { first: u32, last: u32, was_copied: bool },
    /// A viewer cannot be reached, and why: ICMP from its own address or from this host.
    Unreachable(SocketAddr, i32),
    /// ICMP about a viewer from any other host.
    Hearsay,
    /// ICMP that the kernel has acted on.
    Noted,
    /// Something else.
    Other,
}

impl ErrorReport {
    fn of(message: &ReceivedMessage<'_>) -> Self {
        let Some(error) = message.info.error else { return Self::Other };
        if error.origin == SO_EE_ORIGIN_ZEROCOPY {
            let was_copied = error.code & SO_EE_CODE_ZEROCOPY_COPIED != 0;
            return Self::Complete { first: error.info, last: error.data, was_copied };
        }
        if !matches!(error.origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6) {
            return Self::Other;
        }
        // "Fragmentation needed" means the kernel knows the path's MTU now and cuts the next datagrams itself.
        let Some(dest) = message.name.filter(|_| error.errno != libc::EMSGSIZE) else { return Self::Noted };
        let by_itself = error.offender == Some(dest.ip());
        let by_us = error.offender.is_some() && error.offender == message.info.local;
        if by_itself || by_us { Self::Unreachable(dest, error.errno) } else { Self::Hearsay }
    }
}

/// Reads the ICMP messages of a socket that receives and sends nothing.
pub struct IcmpReader {
    arena: RecvArena,
    hearsay: u64,
}

impl Default for IcmpReader {
    fn default() -> Self {
        Self { arena: RecvArena::new(ICMP_BATCH, 0), hearsay: 0 }
    }
}

impl IcmpReader {
    /// Reads the pending messages, at most 128, and reports each address that is unreachable
    /// according to itself or to this host, with the reason (an errno). Returns whether there may
    /// be more.
    pub fn read(&mut self, socket: &UdpSocket, mut tell: impl FnMut(SocketAddr, i32)) -> bool {
        for _ in 0..MAX_ICMP_CALLS {
            // Nothing there, or the socket is of no use: that shows where datagrams are received.
            let got = self.arena.receive(socket.as_fd(), libc::MSG_ERRQUEUE).unwrap_or(0);
            for index in 0..got {
                match ErrorReport::of(&self.arena.get(index)) {
                    ErrorReport::Unreachable(dest, errno) => tell(dest, errno),
                    ErrorReport::Hearsay => self.hearsay += 1,
                    ErrorReport::Complete { .. } | ErrorReport::Noted | ErrorReport::Other => {}
                }
            }
            if got < self.arena.capacity() {
                return false;
            }
        }
        true
    }

    /// Returns the number of messages that came from neither the viewer they were about nor this
    /// host.
    pub fn hearsay(&self) -> u64 {
        self.hearsay
    }
}

/// Makes the kernel put ICMP errors into the socket's error queue, each with the local address that
/// it arrived at. Returns the option that the kernel refused.
pub(super) fn hear_icmp(socket: &UdpSocket, is_v4: bool) -> Result<(), (&'static str, io::Error)> {
    let (level, name) = recverr(is_v4);
    set_int(socket.as_fd(), level, name, 1).map_err(|error| ("turn on RECVERR", error))?;
    tell_local_address(socket.as_fd(), is_v4).map_err(|error| ("turn on PKTINFO", error))
}

/// (level, name) of RECVERR for a family.
pub(super) fn recverr(is_v4: bool) -> (i32, i32) {
    match is_v4 {
        true => (libc::SOL_IP, libc::IP_RECVERR),
        false => (libc::SOL_IPV6, libc::IPV6_RECVERR),
    }
}

/// Whether a send fails with this errno only because of an ICMP message, about whomever.
pub(super) fn only_icmp_says(errno: i32) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP
            | libc::EPROTO
    )
}

/// Whether an ICMP message can make a send fail with this errno (icmp_err_convert in net/ipv4/icmp.c, tab_unreach in
/// net/ipv6/icmp.c). The same errno may also be the send's own.
pub(crate) fn icmp_may_say(errno: i32) -> bool {
    only_icmp_says(errno)
        || matches!(errno, libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EMSGSIZE | libc::EACCES)
}
