//! One UDP socket that serves all viewers: bursts go out in as few calls as the kernel allows, and
//! one viewer's errors affect only that viewer.
//!
//! A call is planned from the entries that are not done, handed over with sendmmsg, and accounted
//! for message by message. After a failed message the rest is planned again, because the failure
//! may have changed the plan: its entry is finished, or goes without GSO, or takes its whole stream
//! along. Each failure is retried a bounded number of times, goes from GSO to single datagrams
//! once, or ends an entry; so a call ends however the network behaves.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

pub(crate) use crate::limits::SEND_BUFFER_BYTES;
pub use crate::limits::ZERO_COPY_MIN_BYTES;
use crate::limits::{
    CLOSE_ROUNDS, CLOSE_WAIT_MS, DEAF_BATCHES, DEAF_TRIES, DRAIN_BATCHES, GSO_STRIKES, MAX_FULL_QUEUES,
    MAX_GSO_BYTES, MAX_GSO_SEGMENTS, MAX_ICMP_ROUNDS, MAX_SEND_TRIES, MESSAGES_PER_CALL, PARTS_PER_CALL,
    PLAIN_BATCHES,
};
use millrace_core::ids::StreamId;
use millrace_core::limits::MAX_BATCH_BURSTS;
use millrace_core::pool::Lease;
use millrace_core::seam::SendOutcome;
use millrace_core::shape::DatagramShape;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::counters::TxCounters;
use super::held::{ZeroCopy, ZeroCopyLeases};
use super::icmp::{IcmpLog, hear_icmp, icmp_may_say, only_icmp_says, recverr};
use super::table::AddrTable;
use crate::error::NetError;
use crate::sys::mmsg::{MAX_PARTS, MessageList, SendArena};
use crate::sys::socket::{Buffer, get_int, raise_buffer, set_int};

const _: () = {
    assert!(2 * MAX_GSO_SEGMENTS <= MAX_PARTS && 2 * MAX_GSO_SEGMENTS <= PARTS_PER_CALL);
    assert!(MAX_BATCH_BURSTS <= u64::BITS as usize);
};

/// One entry of a batch that goes out of a UDP socket.
pub(super) struct UdpEntry<'d> {
    pub(super) stream: StreamId,
    pub(super) dest: SocketAddr,
    /// Source address; `None` if the route determines it.
    pub(super) source: Option<IpAddr>,
    pub(super) shape: DatagramShape<'d>,
    /// The extent that all its bytes lie in, if it may go without copying.
    pub(super) lease: Option<&'d Lease>,
}

/// The entries of a batch by their place in it.
pub(super) type Entries<'d> = [Option<UdpEntry<'d>>; MAX_BATCH_BURSTS];

/// One message of a plan: datagrams `first..first + count` of an entry.
#[derive(Clone, Copy, Default)]
struct PlannedMessage {
    entry: u8,
    first: u16,
    count: u16,
    /// Whether the kernel need not copy it.
    is_zero_copy: bool,
    /// Whether it is copied only because nothing more can be held.
    is_short_of_room: bool,
}

impl PlannedMessage {
    /// Whether the kernel has to cut it.
    fn is_gso(self) -> bool {
        self.count > 1
    }
}

/// State shared by the sockets of one sender: everything that is allocated.
pub(super) struct Kit {
    arena: SendArena,
    jobs: Box<[PlannedMessage]>,
    pub(super) memory: ViewerFacts,
}

/// Facts learned about viewers.
pub(super) struct ViewerFacts {
    pub(super) icmp: IcmpLog,
    /// Viewers whose path refused GSO.
    plain: AddrTable<()>,
    /// Batches sent until now: the clock of the tables.
    pub(super) batches: u64,
}

impl Kit {
    pub(super) fn new() -> Self {
        Self {
            arena: SendArena::new(MESSAGES_PER_CALL, PARTS_PER_CALL),
            jobs: vec![PlannedMessage::default(); MESSAGES_PER_CALL].into(),
            memory: ViewerFacts { icmp: IcmpLog::new(), plain: AddrTable::new(PLAIN_BATCHES), batches: 0 },
        }
    }
}

/// The entries of one call and how far they are.
pub(super) struct Call<'a, 'd> {
    entries: &'a Entries<'d>,
    outcomes: &'a mut [SendOutcome],
    counters: &'a mut TxCounters,
    /// Entries that are not done.
    rest: u64,
    /// Entries that go without GSO from now on.
    plain: u64,
    /// Those of them where it is not known yet whether that helps.
    suspect: u64,
    /// Entries that may go without copying.
    zero_copy: u64,
    /// Entries that were refused without copying, where it is not known yet whether copying helps.
    refused: u64,
    /// The errno of the last refusal.
    refused_errno: i32,
    /// Datagrams taken, by entry.
    taken: [u16; MAX_BATCH_BURSTS],
    /// Failed tries of the message at the front.
    tries: u32,
    /// Rounds of ICMP errors.
    icmp_rounds: u32,
    /// Entries that met a full device queue.
    full: u32,
}

impl<'a, 'd> Call<'a, 'd> {
    /// A call for the entries in `mask`.
    pub(super) fn new(
        entries: &'a Entries<'d>,
        mask: u64,
        outcomes: &'a mut [SendOutcome],
        counters: &'a mut TxCounters,
    ) -> Self {
        Self {
            entries,
            outcomes,
            counters,
            rest: mask,
            plain: 0,
            suspect: 0,
            zero_copy: 0,
            refused: 0,
            refused_errno: 0,
            taken: [0; MAX_BATCH_BURSTS],
            tries: 0,
            icmp_rounds: 0,
            full: 0,
        }
    }

    /// The same, and entries whose extents are known may go without copying.
    pub(super) fn without_copying(self) -> Self {
        let known = bits(self.rest).filter(|index| self.entry(*index).lease.is_some());
        let zero_copy = known.fold(0, |mask, index| mask | 1 << index);
        Self { zero_copy, ..self }
    }

    fn entry(&self, index: usize) -> &'a UdpEntry<'d> {
        self.entries[index].as_ref().expect("the mask names entries that are there")
    }

    /// Books a message that the kernel took.
    fn credit(&mut self, job: PlannedMessage) {
        self.tries = 0;
        let index = usize::from(job.entry);
        let shape = &self.entry(index).shape;
        let (first, count) = (usize::from(job.first), usize::from(job.count));
        self.counters.datagrams += count as u64;
        self.counters.bytes += shape.bytes_in(first, count) as u64;
        self.counters.gso_sends += u64::from(job.is_gso());
        self.counters.zero_copy_sends += u64::from(job.is_zero_copy);
        self.counters.zero_copy_full += u64::from(job.is_short_of_room);
        self.taken[index] = job.first + job.count;
        if first + count == shape.datagrams() {
            self.end(index, SendOutcome::Sent);
        }
    }

    fn end(&mut self, index: usize, outcome: SendOutcome) {
        self.rest &= !(1 << index);
        self.outcomes[index] = outcome;
    }

    /// Ends the entries of one stream, or of all, as blocked: later data of a stream must not
    /// overtake the data held back.
    fn block(&mut self, whose: Option<StreamId>) {
        for index in bits(self.rest) {
            if whose.is_none_or(|stream| self.entry(index).stream == stream) {
                self.end(index, SendOutcome::Blocked { taken: self.taken[index] });
            }
        }
    }
}

/// How to react to a failed message.
enum SendErrorAction {
    /// Try the same message again.
    Again,
    /// Send its entry with copying.
    Copied(i32),
    /// Send its entry without GSO.
    Plain,
    /// Its viewer cannot be reached.
    Unreachable(i32),
    /// The device queue has no room.
    DeviceFull,
    /// The socket has no room for anybody.
    SocketFull,
}

/// One UDP socket and the facts learned about it.
pub(super) struct UdpSender {
    socket: UdpSocket,
    /// (level, name) of RECVERR for the socket's family.
    recverr: (i32, i32),
    gso: bool,
    strikes: u32,
    /// Batch at which a deaf socket listens to ICMP again.
    deaf_until: Option<u64>,
    /// Batch at which the error queue is read again.
    drain_at: u64,
    /// Sends that the kernel has not copied.
    held: ZeroCopyLeases,
}

impl UdpSender {
    /// Takes a bound socket: non-blocking, listening to ICMP, with a large send buffer.
    pub(super) fn new(socket: UdpSocket, gso: bool) -> Result<Self, NetError> {
        let name =
            socket.local_addr().map_or_else(|_| "UDP socket".to_owned(), |a| format!("UDP socket on {a}"));
        let refused = |what, remedy| {
            let socket = name.clone();
            move |source| NetError::Socket { socket, what, source, remedy }
        };
        socket
            .set_nonblocking(true)
            .map_err(refused("make it non-blocking", "check that the descriptor is open"))?;
        let v4 = socket.local_addr().map_err(refused("read its address", "bind it first"))?.is_ipv4();
        hear_icmp(&socket, v4).map_err(|(what, source)| refused(what, "use a kernel that has it")(source))?;
        raise_buffer(socket.as_fd(), Buffer::Send, SEND_BUFFER_BYTES)
            .map_err(refused("raise SO_SNDBUF", "raise the sysctl net.core.wmem_max"))?;
        let zero_copy = match set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1) {
            Ok(()) => ZeroCopy::Ready,
            Err(error) => ZeroCopy::NotOffered { errno: error.raw_os_error().unwrap_or(libc::EIO) },
        };
        Ok(Self {
            socket,
            recverr: recverr(v4),
            gso,
            strikes: 0,
            deaf_until: None,
            drain_at: DRAIN_BATCHES,
            held: ZeroCopyLeases::new(zero_copy),
        })
    }

    /// Whether sends without copying work.
    pub(super) fn zero_copy(&self) -> ZeroCopy {
        self.held.state()
    }

    /// Takes back the leases of sends that are complete; how many are still out.
    pub(super) fn reap(&mut self, memory: &mut ViewerFacts, counters: &mut TxCounters) -> u32 {
        if self.held.outstanding() > 0 {
            memory.icmp.drain(&self.socket, memory.batches, counters, &mut self.held);
        }
        self.held.outstanding()
    }

    /// Waits a moment for the kernel to finish its sends: a device may still be reading.
    pub(super) fn close(mut self, memory: &mut ViewerFacts, counters: &mut TxCounters) {
        for _ in 0..CLOSE_ROUNDS {
            if self.reap(memory, counters) == 0 {
                return;
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::ERR)];
            // Interrupted or not: the queue is read again.
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: CLOSE_WAIT_MS * 1_000_000 }));
        }
    }

    /// Whether the kernel still cuts bursts for this socket.
    pub(super) fn gso(&self) -> bool {
        self.gso
    }

    /// Requests a send buffer of `bytes`; returns the size that the kernel granted.
    pub(super) fn set_send_buffer(&self, bytes: usize) -> io::Result<usize> {
        raise_buffer(self.socket.as_fd(), Buffer::Send, bytes)
    }

    /// Sends the entries of the call, in order, and writes the outcome of each.
    pub(super) fn send(&mut self, kit: &mut Kit, mut call: Call<'_, '_>) {
        self.housekeeping(&mut kit.memory, call.counters);
        while call.rest != 0 {
            let mut plan = kit.arena.plan();
            self.fill(&mut plan, &mut kit.jobs, &mut kit.memory, &call);
            let mut at = 0;
            while at < plan.len() {
                let run = run_of_one_kind(&kit.jobs[..plan.len()], at);
                let until = run.end;
                let is_zero_copy = kit.jobs[at].is_zero_copy;
                // Which number the next send gets has to be certain; if it is not, a new plan goes without.
                if is_zero_copy && self.held.is_unsure() {
                    break;
                }
                call.counters.udp_calls += 1;
                let sent = match is_zero_copy {
                    true => plan.send_zero_copy(self.socket.as_fd(), run),
                    false => plan.send(self.socket.as_fd(), run),
                };
                if let Ok(count @ 1..) = sent {
                    for job in &kit.jobs[at..at + count] {
                        self.took(*job, &mut kit.memory, &mut call);
                    }
                    at += count;
                    // Stopped in the middle: the kernel then forgets the errno, but not the ICMP
                    // messages.
                    if at < until {
                        self.failed(is_zero_copy);
                        self.listen(&mut kit.memory, &mut call);
                    }
                    continue;
                }
                self.failed(is_zero_copy);
                // No message and no error is not in sendmmsg(2); it is not tried for ever either.
                let errno = sent.err().unwrap_or(libc::EAGAIN);
                let job = kit.jobs[at];
                match self.verdict(errno, job, &mut kit.memory, &mut call) {
                    SendErrorAction::Again => {}
                    verdict => {
                        Self::settle(verdict, job, &mut call);
                        break;
                    }
                }
            }
        }
    }

    /// Ends a deaf spell, and reads the error queue now and then, so that no old error waits for an innocent send.
    fn housekeeping(&mut self, memory: &mut ViewerFacts, counters: &mut TxCounters) {
        if self.deaf_until.is_some_and(|until| memory.batches >= until) {
            // If this is refused the socket stays deaf until the next batch.
            if set_int(self.socket.as_fd(), self.recverr.0, self.recverr.1, 1).is_ok() {
                self.deaf_until = None;
            }
        }
        let completions_due = self.held.begins(memory.batches);
        if memory.batches >= self.drain_at || completions_due {
            self.drain_at = memory.batches + DRAIN_BATCHES;
            memory.icmp.drain(&self.socket, memory.batches, counters, &mut self.held);
        }
    }

    /// Writes the entries that are not done into the plan, as far as there is room.
    fn fill<'d>(
        &self,
        plan: &mut MessageList<'_, 'd>,
        jobs: &mut [PlannedMessage],
        memory: &mut ViewerFacts,
        call: &Call<'_, 'd>,
    ) {
        let mut room = self.held.room();
        for index in bits(call.rest) {
            let UdpEntry { dest, source, shape, .. } = *call.entry(index);
            let may_hold = call.zero_copy & 1 << index != 0 && self.held.state() == ZeroCopy::Ready;
            let single = call.plain & 1 << index != 0 || memory.plain.get(dest, memory.batches).is_some();
            let most = if self.gso && !single { gso_segments(&shape) } else { 1 };
            plan.to(dest, source);
            let mut first = usize::from(call.taken[index]);
            while first < shape.datagrams() {
                let count = most.min(shape.datagrams() - first);
                if !plan.has_room(shape.part_count(count)) {
                    return;
                }
                let holds = may_hold && count > 1 && shape.bytes_in(first, count) >= ZERO_COPY_MIN_BYTES;
                let is_zero_copy = holds && room > 0;
                room -= u32::from(is_zero_copy);
                jobs[plan.len()] = PlannedMessage {
                    entry: index as u8,
                    first: first as u16,
                    count: count as u16,
                    is_zero_copy,
                    is_short_of_room: holds && !is_zero_copy,
                };
                plan.push((count > 1).then_some(shape.segment() as u16), shape.parts(first, count));
                first += count;
            }
        }
    }

    /// Determines the meaning of a failed message.
    fn verdict(
        &mut self,
        errno: i32,
        job: PlannedMessage,
        memory: &mut ViewerFacts,
        call: &mut Call<'_, '_>,
    ) -> SendErrorAction {
        call.tries += 1;
        match errno {
            libc::EAGAIN => return SendErrorAction::SocketFull,
            libc::EINTR if call.tries < MAX_SEND_TRIES => return SendErrorAction::Again,
            // Whatever it is: with copying it is as it always was.
            _ if job.is_zero_copy => {
                self.listen(memory, call);
                return SendErrorAction::Copied(errno);
            }
            libc::ENOBUFS | libc::ENOMEM | libc::EINTR => return SendErrorAction::DeviceFull,
            _ => {}
        }
        if icmp_may_say(errno) {
            let heard = self.listen(memory, call);
            // The kernel sets the error after it has filed the message: it may come a second time, with nothing filed.
            let doubtful = heard || call.icmp_rounds > 0 || only_icmp_says(errno);
            if call.tries == MAX_SEND_TRIES && doubtful && self.deaf_until.is_none() {
                self.go_deaf(memory.batches);
            }
            if call.tries == 1 || doubtful && call.tries < MAX_SEND_TRIES + DEAF_TRIES {
                return SendErrorAction::Again;
            }
        }
        match errno {
            libc::EIO | libc::EINVAL | libc::EMSGSIZE if job.is_gso() => SendErrorAction::Plain,
            _ => SendErrorAction::Unreachable(errno),
        }
    }

    /// Empties the error queue; returns whether it held ICMP messages. Under a storm of ICMP errors
    /// the socket stops listening to them for a while: they must not delay the sends of any viewer.
    fn listen(&mut self, memory: &mut ViewerFacts, call: &mut Call<'_, '_>) -> bool {
        let heard = memory.icmp.drain(&self.socket, memory.batches, call.counters, &mut self.held) > 0;
        call.icmp_rounds += u32::from(heard);
        if heard && call.icmp_rounds >= MAX_ICMP_ROUNDS {
            call.counters.icmp_storms += 1;
            self.go_deaf(memory.batches + DEAF_BATCHES);
        }
        heard
    }

    /// Stops listening to ICMP up to batch `until`. Turning RECVERR off empties the error queue, reading SO_ERROR takes
    /// the error that waits for the next send; what fails after that is its own fault.
    fn go_deaf(&mut self, until: u64) {
        // Neither call fails on an open socket; if one did, the message would end as unreachable and the batch go on.
        let _ = set_int(self.socket.as_fd(), self.recverr.0, self.recverr.1, 0);
        let _ = get_int(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
        self.deaf_until = Some(until);
    }

    /// Books a message that the kernel took.
    fn took(&mut self, job: PlannedMessage, memory: &mut ViewerFacts, call: &mut Call<'_, '_>) {
        let index = usize::from(job.entry);
        let bit = 1 << index;
        if let (true, Some(lease)) = (job.is_zero_copy, call.entry(index).lease) {
            self.held.hold(lease.clone());
        } else if call.refused & bit != 0 {
            call.refused &= !bit;
            self.held.refused(call.refused_errno);
        }
        call.credit(job);
        self.judge_gso(job, memory, call);
    }

    /// Notes that a message failed.
    fn failed(&mut self, was_zero_copy: bool) {
        if was_zero_copy {
            self.held.doubt();
        }
    }

    /// Learns from a message that the kernel took.
    ///
    /// GSO can be refused for one viewer (EMSGSIZE or, in older kernels, EINVAL where the path's MTU is below the
    /// segment; EIO under IPsec) or by the device behind the socket (EIO without checksum offload before Linux 6.11;
    /// EINVAL on some virtual ones). In both cases the same datagrams may well go one by one; if they do, that viewer
    /// is remembered. Only when viewer after viewer is refused and no GSO send works, the socket does without.
    fn judge_gso(&mut self, job: PlannedMessage, memory: &mut ViewerFacts, call: &mut Call<'_, '_>) {
        let bit = 1 << job.entry;
        if job.is_gso() {
            self.strikes = 0;
        } else if call.suspect & bit != 0 {
            call.suspect &= !bit;
            call.counters.gso_refused += 1;
            memory.plain.put(call.entry(usize::from(job.entry)).dest, (), memory.batches);
            self.strikes += 1;
            self.gso &= self.strikes < GSO_STRIKES;
        }
    }

    /// Acts on a verdict that ends a message.
    fn settle(verdict: SendErrorAction, job: PlannedMessage, call: &mut Call<'_, '_>) {
        call.tries = 0;
        let index = usize::from(job.entry);
        let entry = call.entry(index);
        match verdict {
            SendErrorAction::Again => {}
            SendErrorAction::Copied(errno) => {
                call.zero_copy &= !(1 << index);
                call.refused |= 1 << index;
                call.refused_errno = errno;
            }
            SendErrorAction::Plain => {
                call.plain |= 1 << index;
                call.suspect |= 1 << index;
            }
            SendErrorAction::Unreachable(errno) => call.end(index, SendOutcome::Unreachable { errno }),
            SendErrorAction::DeviceFull => {
                call.full += 1;
                call.block((call.full < MAX_FULL_QUEUES).then_some(entry.stream));
            }
            SendErrorAction::SocketFull => call.block(None),
        }
    }
}

/// The messages from `at` on that all go without copying, or all with.
fn run_of_one_kind(jobs: &[PlannedMessage], at: usize) -> std::ops::Range<usize> {
    let same = jobs[at..].iter().take_while(|job| job.is_zero_copy == jobs[at].is_zero_copy);
    at..at + same.count()
}

/// Datagrams that one GSO send may carry: at most 64 of them, within the length of an IP packet.
fn gso_segments(shape: &DatagramShape<'_>) -> usize {
    (MAX_GSO_BYTES / shape.segment()).clamp(1, MAX_GSO_SEGMENTS)
}

/// Places of the bits that are set, from the lowest.
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(index)
    })
}
