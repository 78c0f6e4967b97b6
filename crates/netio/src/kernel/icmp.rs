//! What ICMP says about viewers, kept apart from the sends of others.
//!
//! One socket serves all viewers. With `IP_RECVERR` the kernel puts every ICMP error into the socket's error queue,
//! with the address that the bad datagram had been sent to, and also lets the *next* send fail, whoever it is for
//! (ip(7)). So a send that fails with something that ICMP can say is tried again after the queue has been emptied, and
//! the address goes into a table: its own next send is answered `Unreachable`.
//!
//! Anybody can write an ICMP message about anybody else. What counts is what a viewer's own address says ("port
//! unreachable") and what this host says to itself ("host unreachable": nobody answers to that address on the link).
//! What others say is hearsay: it is counted, and changes nothing for the viewer it is about.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use super::TxCounters;
use super::held::Held;
use super::table::AddrTable;
use crate::sys::cmsg::{SO_EE_CODE_ZEROCOPY_COPIED, SO_EE_ORIGIN_ZEROCOPY};
use crate::sys::mmsg::RecvArena;

/// Errors taken from the kernel in one call.
const BATCH: usize = 32;
/// Calls before the drain gives up for this time: 128 errors.
const MAX_CALLS: usize = 4;
/// Errors that wait for [`super::KernelTx::poll_unreachable`]; the oldest make way.
const MAX_NEWS: usize = 64;
/// Batches after which an error that its viewer never met is forgotten: at 100 batches a second 40 s. A new viewer
/// behind the same address shall not pay for an old one.
const LIFETIME_BATCHES: u64 = 4096;

/// ICMP errors by the address they are about.
pub(super) struct IcmpLog {
    arena: RecvArena,
    pending: AddrTable<i32>,
    news: std::collections::VecDeque<(SocketAddr, i32)>,
}

impl IcmpLog {
    pub(super) fn new() -> Self {
        Self {
            arena: RecvArena::new(BATCH, 0),
            pending: AddrTable::new(LIFETIME_BATCHES),
            news: std::collections::VecDeque::with_capacity(MAX_NEWS),
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
        held: &mut Held,
    ) -> usize {
        let mut heard = 0;
        for _ in 0..MAX_CALLS {
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
    fn note(&mut self, index: usize, now: u64, counters: &mut TxCounters, held: &mut Held) -> bool {
        let message = self.arena.get(index);
        let Some(error) = message.info.error else { return false };
        if error.origin == SO_EE_ORIGIN_ZEROCOPY {
            let was_copied = error.code & SO_EE_CODE_ZEROCOPY_COPIED != 0;
            held.complete(error.info, error.data, was_copied);
            let sends = u64::from(error.data.wrapping_sub(error.info)) + 1;
            counters.zero_copy_copied += if was_copied { sends } else { 0 };
            return false;
        }
        if !matches!(error.origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6) {
            return false;
        }
        // "Fragmentation needed" means the kernel knows the path's MTU now and cuts the next datagrams itself.
        let Some(dest) = message.name.filter(|_| error.errno != libc::EMSGSIZE) else { return true };
        let by_itself = error.offender == Some(dest.ip());
        let by_us = error.offender.is_some() && error.offender == message.info.local;
        if !by_itself && !by_us {
            counters.icmp_hearsay += 1;
            return true;
        }
        self.pending.put(dest, error.errno, now);
        if self.news.len() == MAX_NEWS {
            self.news.pop_front();
        }
        self.news.push_back((dest, error.errno));
        true
    }

    /// The error about `dest` that its sender has not met yet; told once.
    pub(super) fn take(&mut self, dest: SocketAddr, now: u64) -> Option<i32> {
        self.pending.take(dest, now)
    }

    /// The next error in the order of arrival; told once, apart from [`IcmpLog::take`].
    pub(super) fn poll(&mut self) -> Option<(SocketAddr, i32)> {
        self.news.pop_front()
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
