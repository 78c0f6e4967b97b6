//! Media by a TCP of our own: an egress path around another one. Connections of the offload engine that the loop turns are served here, straight
//! from leased extents; everything else goes on to the path inside.
//!
//! ```text
//!   CoreLoop ──► EngineTx ──┬─► engine ─► stack ─► device        Dest::Interleaved, Dest::Bytes of the engine's connections
//!                           └─► KernelTx, BestTx                 everything else
//! ```
//!
//! A frame goes to the stack whole or not at all, so a viewer never gets a part of one: its head is kept in a descriptor, its payload in the extent.
//! A device that is gone takes the engine's connections with it and nothing else.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::limits::{FRAME_PREFIX_BYTES, MAX_BATCH_BURSTS, RTP_HEADER_BYTES};
use millrace_core::pool::Lease;
use millrace_core::seam::{
    ByteRange, Dest, PacketTx, Payload, PayloadSource, SendOutcome, Transmit, TransmitBatch,
};
use millrace_core::shape::{DatagramShape, Misshapen};
use millrace_core::time::Instant;
use millrace_netio::TxCounters;
use millrace_tcp::send::{ExtentRange, HEAD_BYTES, SlotPart};
use millrace_tcp::stack::WantedExtent;

use super::device::Device;
use super::engine::{Given, LoopConnection, LoopConnectionEvent};
use super::engine_access::EngineAccess;
use super::host::Sockets;
use super::queue_pair_access::QueuePairAccess;
use super::settings::EngineSettings;
use super::thread::{Engine, Turning};
use crate::bell::EventBell;
use crate::command::ConnSocket;
use crate::engine_socket::EngineSocket;
use crate::loop_tx::{LoopConnections, LoopEngine, LoopTx};

/// A connection of the engine that the loop writes to.
struct EgressConnection {
    name: EngineSocket,
    way: LoopConnection,
    /// The last batch in which it was full: later entries of the same batch must not overtake the
    /// data held back.
    blocked_in: u64,
    /// Why it is of no use any more.
    broken: Option<i32>,
}

/// See the module.
pub struct EngineTx<T> {
    inner: T,
    /// `None`: there has been none, its device is gone, or its handle has stopped it.
    engine: Option<EngineAccess>,
    /// The next one, which is taken when there is none.
    next: Option<rtrb::Consumer<EngineAccess>>,
    conns: Box<[Option<EgressConnection>]>,
    /// How many of them there are.
    used: usize,
    writable: VecDeque<ConnId>,
    returned: VecDeque<ConnId>,
    gone: VecDeque<(ConnId, i32)>,
    now: Instant,
    batch: u64,
    /// Of the engine's connections alone; and with those of the path inside.
    own: TxCounters,
    counters: TxCounters,
}

/// Where engines are put for a loop to turn ([`EngineTx::with_seat`]).
pub struct Seat {
    producer: rtrb::Producer<EngineAccess>,
    bell: Arc<EventBell>,
}

impl Seat {
    /// Starts an engine that the loop turns from its next turn on, or from when the one before has ended.
    ///
    /// # Errors
    /// A setting that cannot be, no descriptors for the bells; another engine waits already, or the loop has ended.
    pub fn start(&mut self, settings: &EngineSettings, device: Box<dyn Device>) -> io::Result<Engine> {
        self.is_there()?;
        let (engine, turning) = Engine::in_loop(settings, device, Arc::clone(&self.bell))?;
        self.put(EngineAccess::Inline(turning))?;
        Ok(engine)
    }

    /// Gives the loop a queue pair of an engine that has a thread of its own: it writes to the
    /// pair's connections from its next turn on, and nothing is read from them. Connections it has
    /// finished with are closed, all of them when it ends or another engine ends.
    ///
    /// # Errors
    /// The engine is another process, or the pair's area is small; another engine waits already, or the loop has ended.
    pub fn take(&mut self, sockets: Sockets) -> io::Result<()> {
        self.is_there()?;
        self.put(EngineAccess::QueuePair(QueuePairAccess::new(sockets)?))
    }

    fn is_there(&self) -> io::Result<()> {
        if self.producer.is_abandoned() {
            let text = "the loop that would turn the offload engine has ended: start the server again";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        Ok(())
    }

    fn put(&mut self, engine: EngineAccess) -> io::Result<()> {
        self.producer.push(engine).map_err(|_| {
            let text = "another offload engine waits for the loop to turn it: stop that one before";
            io::Error::new(io::ErrorKind::ResourceBusy, text)
        })?;
        self.bell.ring();
        Ok(())
    }
}

/// How far an entry got.
enum Got {
    All,
    Some(usize),
    Over(i32),
    Impossible(i32),
}

impl<T: LoopTx> EngineTx<T> {
    /// Serves connections of `engine` beside what `inner` sends. Names of connections are below `conns`, whoever serves them.
    pub fn new(inner: T, engine: Turning, conns: usize) -> Self {
        Self { engine: Some(EngineAccess::Inline(engine)), ..Self::without(inner, conns) }
    }

    fn without(inner: T, conns: usize) -> Self {
        Self {
            counters: *inner.counters(),
            inner,
            engine: None,
            next: None,
            conns: (0..conns).map(|_| None).collect(),
            used: 0,
            writable: VecDeque::with_capacity(conns),
            returned: VecDeque::with_capacity(conns),
            gone: VecDeque::with_capacity(conns),
            now: Instant(0),
            batch: 0,
            own: TxCounters::default(),
        }
    }

    /// The same without an engine, for a loop that sleeps at this bell; and where engines are put, one after the other.
    pub fn with_seat(inner: T, conns: usize, bell: Arc<EventBell>) -> (Self, Seat) {
        let (producer, next) = rtrb::RingBuffer::new(1);
        let tx = Self { engine: None, next: Some(next), ..Self::without(inner, conns) };
        (tx, Seat { producer, bell })
    }

    /// The path inside.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn conn(&mut self, conn: ConnId) -> Option<&mut EgressConnection> {
        self.conns.get_mut(conn.0 as usize)?.as_mut()
    }

    /// The engine is over: notifies its hosts and its connections, and returns every extent that
    /// its stack held.
    #[cold]
    fn end(&mut self, why: String) {
        let Some(engine) = self.engine.take() else { return };
        engine.ended(why);
        for (number, conn) in self.conns.iter_mut().enumerate() {
            let Some(conn) = conn else { continue };
            if conn.broken.replace(libc::ENETDOWN).is_none() {
                self.gone.push_back((ConnId(number as u32), libc::ENETDOWN));
            }
        }
    }

    /// Takes the next engine, if there is one and none before it.
    fn take_next(&mut self) {
        if self.engine.is_none()
            && let Some(next) = &mut self.next
            && let Ok(engine) = next.pop()
        {
            self.engine = Some(engine);
        }
    }

    fn arrive(&mut self, now: Instant) {
        self.take_next();
        let Some(engine) = &mut self.engine else { return };
        if let Err(why) = engine.arrive(now) {
            self.end(why);
        }
    }

    /// Takes the engine's news about connections.
    fn hear(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        while let Some(news) = engine.poll_news() {
            let (LoopConnectionEvent::Writable(id) | LoopConnectionEvent::Gone(id, _)) = news;
            let Some(Some(conn)) = self.conns.get_mut(id.0 as usize) else { continue };
            match news {
                LoopConnectionEvent::Writable(id) => self.writable.push_back(id),
                LoopConnectionEvent::Gone(id, errno) => {
                    if conn.broken.replace(errno).is_none() {
                        self.gone.push_back((id, errno));
                    }
                }
            }
        }
    }

    /// An entry for a connection of the engine.
    fn send_entry(&mut self, id: ConnId, batch: &dyn TransmitBatch, index: usize) -> SendOutcome {
        let (now, number) = (self.now, self.batch);
        let Self { engine, conns, own, .. } = self;
        let Some(Some(conn)) = conns.get_mut(id.0 as usize) else { return SendOutcome::Closed { errno: 0 } };
        let (Some(engine), None) = (engine, conn.broken) else {
            return SendOutcome::Closed { errno: conn.broken.unwrap_or(libc::ENETDOWN) };
        };
        if conn.blocked_in == number {
            return SendOutcome::Blocked { taken: 0 };
        }
        let transmit = batch.get(index);
        let mut way = Sending { engine, way: conn.way, now, counters: own };
        let got = match (transmit.dest, transmit.payload) {
            (Dest::Bytes { .. }, Payload::Bytes(range)) => way.send_bytes(range),
            (Dest::Interleaved { rtp_channel, rtcp_channel, .. }, payload) => {
                match batch.shape(index, payload) {
                    Err(_) => Got::Impossible(libc::EINVAL),
                    Ok(shape) if matches!(payload, Payload::Rtcp(_)) => {
                        way.send_frames(rtcp_channel, &shape, None)
                    }
                    Ok(shape) => way.send_frames(rtp_channel, &shape, batch.source(index)),
                }
            }
            _ => Got::Impossible(libc::EINVAL),
        };
        match got {
            Got::All => SendOutcome::Sent,
            Got::Some(taken) => {
                conn.blocked_in = number;
                SendOutcome::Blocked { taken: taken as u16 }
            }
            Got::Over(errno) => SendOutcome::Closed { errno },
            Got::Impossible(errno) => SendOutcome::Unreachable { errno },
        }
    }

    fn count(&mut self, outcome: SendOutcome) {
        self.own.entries += 1;
        match outcome {
            SendOutcome::Sent => {}
            SendOutcome::Blocked { .. } => self.own.blocked += 1,
            SendOutcome::Unreachable { .. } => self.own.unreachable += 1,
            SendOutcome::Closed { .. } => self.own.closed += 1,
        }
    }

    /// The counters of both.
    fn add_up(&mut self) {
        let own = &self.own;
        let mut sum = *self.inner.counters();
        sum.entries += own.entries;
        sum.bytes += own.bytes;
        sum.frames += own.frames;
        sum.control_bytes += own.control_bytes;
        sum.blocked += own.blocked;
        sum.unreachable += own.unreachable;
        sum.closed += own.closed;
        self.counters = sum;
    }
}

/// One entry on its way to the stack.
struct Sending<'a> {
    engine: &'a mut EngineAccess,
    way: LoopConnection,
    now: Instant,
    counters: &'a mut TxCounters,
}

impl Sending<'_> {
    fn send_frames(
        &mut self,
        channel: u8,
        shape: &DatagramShape<'_>,
        source: Option<PayloadSource<'_>>,
    ) -> Got {
        for index in 0..shape.datagrams() {
            let (header, body) = shape.datagram(index);
            let mut head = [0; HEAD_BYTES];
            let length = shape.datagram_bytes(index) as u16;
            (head[0], head[1]) = (b'$', channel);
            head[2..FRAME_PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
            let (head, part) = match header {
                None => (&head[..FRAME_PREFIX_BYTES], SlotPart::Frames),
                Some(header) => {
                    head[FRAME_PREFIX_BYTES..].copy_from_slice(header);
                    (&head[..], SlotPart::Payloads)
                }
            };
            let range = |place| ExtentRange { place, skip: 0, bytes: body.len() as u32, part };
            let mut given = match source {
                Some(PayloadSource { lease, place }) if fits(lease, part) => {
                    self.engine.give_framed(self.way, head, lease, range(place + index as u32), self.now)
                }
                _ => Given::Unfit,
            };
            if given == Given::Unfit {
                given = self.engine.give_copied(self.way, &[head, body], self.now);
            }
            match given {
                Given::Taken => {
                    self.counters.frames += 1;
                    self.counters.bytes += u64::from(length);
                }
                other => return refused(other, index),
            }
        }
        Got::All
    }

    fn send_bytes(&mut self, range: ByteRange<'_>) -> Got {
        let mut index = 0;
        while index < range.count {
            let (given, count, bytes) = self.send_run(&range, index);
            if given != Given::Taken {
                return refused(given, index as usize);
            }
            self.counters.bytes += bytes as u64;
            index += count;
        }
        Got::All
    }

    /// Packets from `index` on that lie there, in one piece; or one that is missing. What became of them, how many, and their bytes.
    fn send_run(&mut self, range: &ByteRange<'_>, index: u32) -> (Given, u32, usize) {
        let ByteRange { lease, place, count, .. } = *range;
        let is_damaged = lease.content().spare != 0;
        let is_missing = |index| is_damaged && lease.meta(place + index).is_missing();
        let is_copied = is_missing(index);
        let end = match is_damaged {
            false => count,
            true if is_copied => index + 1,
            true => (index + 1..count).find(|&next| is_missing(next)).unwrap_or(count),
        };
        let bytes = range.bytes_in(index, end - index);
        let skip = if index == 0 { u32::from(range.head) } else { 0 };
        let mut given = Given::Unfit;
        if bytes == 0 {
            return (Given::Taken, end - index, 0);
        }
        if !is_copied {
            let part = SlotPart::Payloads;
            let of = ExtentRange { place: place + index, skip, bytes: bytes as u32, part };
            given = self.engine.give_range(self.way, lease, of, self.now);
        }
        match given {
            Given::Unfit => {
                let piece = range.piece(index);
                (self.engine.give_copied(self.way, &[piece], self.now), 1, piece.len())
            }
            other => (other, end - index, bytes),
        }
    }
}

/// Whether the stack finds a packet's payload where the batch does: behind an RTP header if that is replaced.
fn fits(lease: &Lease, part: SlotPart) -> bool {
    part == SlotPart::Frames || lease.content().layout.header_bytes() == RTP_HEADER_BYTES
}

fn refused(given: Given, taken: usize) -> Got {
    match given {
        Given::Gone(errno) => Got::Over(errno),
        Given::Taken | Given::Full | Given::Unfit => Got::Some(taken),
    }
}

/// Entries of a batch that are not the engine's.
struct Rest<'a> {
    batch: &'a dyn TransmitBatch,
    places: [u8; MAX_BATCH_BURSTS],
    count: usize,
}

impl TransmitBatch for Rest<'_> {
    fn len(&self) -> usize {
        self.count
    }
    fn get(&self, index: usize) -> Transmit<'_> {
        self.batch.get(usize::from(self.places[index]))
    }
    fn shape<'a>(&'a self, index: usize, payload: Payload<'a>) -> Result<DatagramShape<'a>, Misshapen> {
        self.batch.shape(usize::from(self.places[index]), payload)
    }
    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        self.batch.source(usize::from(self.places[index]))
    }
}

impl<T: LoopTx> PacketTx for EngineTx<T> {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        let length = batch.len();
        // A longer one than a loop makes has no place in the table below.
        if self.used == 0 || length > MAX_BATCH_BURSTS {
            return self.inner.send(batch, outcomes);
        }
        self.batch += 1;
        let mut rest = Rest { batch, places: [0; MAX_BATCH_BURSTS], count: 0 };
        for (index, outcome) in outcomes[..length].iter_mut().enumerate() {
            let conn = batch.get(index).dest.conn().filter(|&conn| self.conn(conn).is_some());
            let Some(conn) = conn else {
                rest.places[rest.count] = index as u8;
                rest.count += 1;
                continue;
            };
            *outcome = self.send_entry(conn, batch, index);
            self.count(*outcome);
        }
        if rest.count > 0 {
            let mut part = [SendOutcome::Sent; MAX_BATCH_BURSTS];
            self.inner.send(&rest, &mut part[..rest.count]);
            for (&place, &outcome) in rest.places.iter().zip(&part[..rest.count]) {
                outcomes[usize::from(place)] = outcome;
            }
        }
    }
}

impl<T: LoopTx> LoopConnections for EngineTx<T> {
    fn add_conn(&mut self, conn: ConnId, socket: ConnSocket) -> Result<(), i32> {
        let name = match socket {
            ConnSocket::Engine(name) => name,
            kernel => return self.inner.add_conn(conn, kernel),
        };
        // It was put there before anybody could have a name of its connections, but the loop may not have turned since.
        self.take_next();
        let engine = self.engine.as_mut().ok_or(libc::ENETDOWN)?;
        let place = self.conns.get_mut(conn.0 as usize).ok_or(libc::ENOBUFS)?;
        if place.is_some() {
            return Err(libc::EBUSY);
        }
        let way = engine.lend(name, conn, self.now)?;
        *place = Some(EgressConnection { name, way, blocked_in: 0, broken: None });
        self.used += 1;
        Ok(())
    }

    fn write_control(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), i32> {
        let now = self.now;
        let Some(Some(of)) = self.conns.get(conn.0 as usize) else {
            return self.inner.write_control(conn, bytes);
        };
        if let Some(errno) = of.broken {
            return Err(errno);
        }
        let engine = self.engine.as_mut().ok_or(libc::ENETDOWN)?;
        engine.give_control(of.way, bytes, now)?;
        self.own.control_bytes += bytes.len() as u64;
        Ok(())
    }

    fn return_conn(&mut self, conn: ConnId) -> bool {
        let Some(of) = self.conn(conn) else { return self.inner.return_conn(conn) };
        // The stack has all that was given.
        if of.broken.is_none() && !self.returned.contains(&conn) {
            self.returned.push_back(conn);
        }
        true
    }

    fn poll_conn_returned(&mut self) -> Option<(ConnId, ConnSocket)> {
        while let Some(conn) = self.returned.pop_front() {
            if let Some(socket) = LoopConnections::remove_conn(self, conn) {
                return Some((conn, socket));
            }
        }
        self.inner.poll_conn_returned()
    }

    fn remove_conn(&mut self, conn: ConnId) -> Option<ConnSocket> {
        let Some(of) = self.conns.get_mut(conn.0 as usize).and_then(Option::take) else {
            return self.inner.remove_conn(conn);
        };
        self.used -= 1;
        self.writable.retain(|told| *told != conn);
        self.returned.retain(|returned| *returned != conn);
        self.gone.retain(|(gone, _)| *gone != conn);
        if let Some(engine) = &mut self.engine {
            engine.take_back(of.way);
        }
        Some(ConnSocket::Engine(of.name))
    }

    fn flush_conns(&mut self) -> bool {
        self.hear();
        self.inner.flush_conns()
    }

    fn poll_conn_writable(&mut self) -> Option<ConnId> {
        self.writable.pop_front().or_else(|| self.inner.poll_conn_writable())
    }

    fn full_conns_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.full_conns_fd()
    }

    fn poll_conn_gone(&mut self) -> Option<(ConnId, i32)> {
        self.gone.pop_front().or_else(|| self.inner.poll_conn_gone())
    }

    fn backlog_bytes(&self, conn: ConnId) -> Option<u64> {
        match self.conns.get(conn.0 as usize) {
            Some(Some(of)) => self.engine.as_ref()?.backlog_bytes(of.way),
            _ => self.inner.backlog_bytes(conn),
        }
    }
}

impl<T: LoopTx> LoopEngine for EngineTx<T> {
    fn depart(&mut self, now: Instant) -> usize {
        let mut work = self.inner.depart(now);
        if let Some(engine) = &mut self.engine {
            match engine.depart(now) {
                Ok(done) => work += done,
                Err(why) => self.end(why),
            }
        }
        self.add_up();
        work
    }

    fn shut_down(&mut self, now: Instant) {
        self.inner.shut_down(now);
        if let Some(engine) = &mut self.engine {
            engine.shut_all(now);
        }
        self.depart(now);
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let own = self.engine.as_ref().and_then(|engine| engine.next_due(now));
        let told = (!self.gone.is_empty() || !self.returned.is_empty()).then_some(now);
        [own, told, self.inner.next_due(now)].into_iter().flatten().min()
    }

    fn incoming_fd(&self) -> Option<BorrowedFd<'_>> {
        self.engine.as_ref().and_then(EngineAccess::readable)
    }

    fn is_asked(&self) -> bool {
        let own = self.engine.as_ref().is_some_and(EngineAccess::is_asked);
        let has_next = self.engine.is_none() && self.next.as_ref().is_some_and(|next| !next.is_empty());
        own || has_next || self.inner.is_asked()
    }

    fn poll_wanted(&mut self) -> Option<WantedExtent> {
        self.engine.as_mut()?.poll_wanted()
    }

    fn supply(&mut self, now: Instant, wanted: &WantedExtent, lease: Option<Lease>) {
        if let Some(engine) = &mut self.engine {
            engine.supply(wanted, lease.as_ref(), now);
        }
    }
}

impl<T: LoopTx> LoopTx for EngineTx<T> {
    fn note_unreachable(&mut self, dest: SocketAddr, errno: i32) {
        self.inner.note_unreachable(dest, errno);
    }

    fn is_zero_copy(&self, dest: &Dest) -> bool {
        // The stack has leases of its own.
        let is_own = dest.conn().is_some_and(|conn| matches!(self.conns.get(conn.0 as usize), Some(Some(_))));
        !is_own && self.inner.is_zero_copy(dest)
    }

    fn poll_done(&mut self) -> Option<(StreamId, u64)> {
        self.inner.poll_done()
    }

    fn counters(&self) -> &TxCounters {
        &self.counters
    }

    fn tend(&mut self, now: Instant) -> bool {
        self.now = now;
        self.arrive(now);
        self.inner.tend(now)
    }
}

#[cfg(test)]
#[path = "egress_tests.rs"]
mod tests;
