//! Connections: RTP and RTCP interleaved (RFC 2326 section 10.12: `$`, channel, length, packet), or a title's bytes with nothing around
//! them ([`pieces`](super::pieces)).
//!
//! One call sends many packets, straight from their place in memory. A connection may take part of
//! a packet; the rest is copied aside and goes first next time, so that the byte stream never tears
//! and the packet need not be kept. Control bytes (RTSP replies) wait behind it: they always begin
//! at a packet boundary.
//!
//! Send buffer: left to the kernel's autotuning, so that a long fat path fills, but with
//! `TCP_NOTSENT_LOWAT` at 256 KiB for frames, two of the longest writes. A connection counts as
//! writable when less than half of this limit waits, so it then takes a whole write. This bounds
//! the data TCP has not sent yet, however large the buffer grew: at 8 Mb/s 0.26 s of media. So a
//! viewer that stops reading is noticed soon, a pause or seek leaves little stale media in the
//! kernel, and a path with a second of round trip still has its 1 MB in flight. A fixed `SO_SNDBUF`
//! counts in-flight and waiting bytes alike and can achieve only one of the three. Bytes taken from
//! us before a viewer with a receive buffer of 64 KiB that reads nothing is noticed (Linux 6.18,
//! loopback): default 3.9 MB, `SO_SNDBUF` of 1 MiB 2.1 MB, `TCP_NOTSENT_LOWAT` of 128 KiB 0.26 MB.
//!
//! A connection that carries bytes has eight times as much ([`BYTES_NOT_SENT`]): it never pauses or
//! seeks, and each time that it becomes writable costs a wake-up, which then sends four extents.
//!
//! A connection that is full is watched until it can be written again ([`watch`](super::watch)).

mod pages;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_core::ids::ConnId;
use millrace_core::limits::egress::TCP_NOT_SENT_BYTES;
use millrace_core::limits::{
    FRAME_PREFIX_BYTES, MAX_BURST_PACKETS, MAX_CONN_PENDING_BYTES, MAX_PACKET_BYTES, RTP_HEADER_BYTES,
};
use millrace_core::seam::{ByteRange, SendOutcome};
use millrace_core::shape::DatagramShape;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, sockopt};

use self::pages::PagePipe;
use super::counters::TxCounters;
use super::pieces::{Pieces, Prefix};
use super::watch::{Watched, WritabilityWatch};
use crate::error::{ConnError, NetError};
use crate::limits::{BYTES_NOT_SENT, MAX_INTERRUPTS, TCP_PARTS};
use crate::sys::socket::{set_int, unacknowledged_bytes};

/// Frames in one call: any burst.
const FRAMES_PER_CALL: usize = MAX_BURST_PACKETS;
const _: () = assert!(2 * FRAMES_PER_CALL <= TCP_PARTS, "a frame is a prefix and a body");
/// `$`, channel, length.
const PREFIX_BYTES: usize = FRAME_PREFIX_BYTES;
/// Longest packet in a frame.
const MAX_PACKET: usize = RTP_HEADER_BYTES + MAX_PACKET_BYTES;
/// Room of one connection: the rest of a frame and the control bytes behind it.
const ROOM: usize = PREFIX_BYTES + MAX_PACKET + MAX_CONN_PENDING_BYTES;

const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

const _: () = assert!(MAX_PACKET <= u16::MAX as usize, "the length field of a frame has 16 bits");

struct KernelConnection {
    socket: OwnedFd,
    /// Its limit of bytes that TCP has not sent; `None`: not set yet.
    not_sent_bytes: Option<i32>,
    is_tcp: bool,
    /// It accepts references to pages, and never blocks.
    takes_pages: bool,
    /// Bytes of the packet that comes next that were sent already, as the last ones that there was room for.
    skip: usize,
    /// Bytes that wait, from `start` of the connection's room.
    start: usize,
    waiting: usize,
    /// How many of them, at the end, are control bytes.
    control: usize,
    /// Why it is of no use any more.
    broken: Option<i32>,
    /// How the connection is watched for becoming writable again.
    watched: Watched,
    /// It is in the list of connections that are tried again by time.
    is_retried: bool,
    /// It was reported writable, and has taken nothing since.
    is_ready: bool,
    /// The connection must be returned once nothing waits any more.
    is_leaving: bool,
    /// An entry got `Blocked`, so the caller must be notified when there is room; `is_told`: the
    /// notification is already queued.
    has_refused: bool,
    is_told: bool,
    /// The last batch in which it blocked: later entries of the same batch must not overtake the
    /// data held back.
    blocked_in: Option<u64>,
}

/// The connections of one sender.
pub(super) struct Conns {
    conns: Box<[Option<KernelConnection>]>,
    /// [`ROOM`] bytes for each; untouched rooms take no memory, because the kernel hands out zeroed pages on first use.
    rooms: Box<[u8]>,
    watch: WritabilityWatch,
    /// Connections that were reported writable and were not (the kernel is short of memory):
    /// watching them would be a busy loop. Each is in here at most once.
    retried: VecDeque<u32>,
    /// Connections that refused an entry and can be written again; each is in here at most once.
    writable: VecDeque<ConnId>,
    /// Connections whose return was requested and is now possible; each is in here at most once.
    returned: VecDeque<ConnId>,
    /// Broken connections that have not been reported yet; each is in here at most once.
    gone: VecDeque<ConnId>,
    prefixes: Box<[Prefix; FRAMES_PER_CALL]>,
    /// For bytes that need not be copied; `None` if the pipe could not be created.
    pages: Option<PagePipe>,
}

/// The result of a write.
enum Write {
    Took(usize),
    Full,
    Broken(i32),
}

impl Conns {
    pub(super) fn new(conns: usize) -> Result<Self, NetError> {
        Ok(Self {
            conns: (0..conns).map(|_| None).collect(),
            rooms: vec![0; conns * ROOM].into(),
            watch: WritabilityWatch::new()?,
            retried: VecDeque::with_capacity(conns),
            writable: VecDeque::with_capacity(conns),
            returned: VecDeque::with_capacity(conns),
            gone: VecDeque::with_capacity(conns),
            prefixes: Box::new([[0; PREFIX_BYTES + RTP_HEADER_BYTES]; FRAMES_PER_CALL]),
            pages: PagePipe::new().ok(),
        })
    }

    pub(super) fn add(&mut self, id: ConnId, socket: OwnedFd) -> Result<(), NetError> {
        let limit = self.conns.len();
        let slot = self.conns.get_mut(id.0 as usize).ok_or(NetError::ConnId { conn: id, limit })?;
        if slot.is_some() {
            return Err(NetError::ConnInUse { conn: id });
        }
        let refused = |what| {
            move |source| NetError::Socket {
                socket: format!("connection {}", id.0),
                what,
                source,
                remedy: "give a connected TCP or Unix stream socket",
            }
        };
        let family = sockopt::socket_domain(&socket).map_err(|e| refused("look at its family")(e.into()))?;
        // A Unix socket hands over its data at once, and holds little.
        let is_tcp = family != AddressFamily::UNIX;
        if is_tcp {
            // Frames leave in bursts already; waiting for more would only add delay (RFC 1122 section 4.2.3.4).
            sockopt::set_tcp_nodelay(&socket, true).map_err(|e| refused("set TCP_NODELAY")(e.into()))?;
        }
        *slot = Some(KernelConnection {
            takes_pages: is_tcp && fcntl_getfl(&socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK)),
            socket,
            not_sent_bytes: None,
            is_tcp,
            start: 0,
            skip: 0,
            waiting: 0,
            control: 0,
            broken: None,
            watched: Watched::Never,
            is_retried: false,
            is_ready: false,
            is_leaving: false,
            has_refused: false,
            is_told: false,
            blocked_in: None,
        });
        Ok(())
    }

    pub(super) fn remove(&mut self, id: ConnId) -> Option<OwnedFd> {
        let conn = self.conns.get_mut(id.0 as usize)?.take()?;
        self.watch.forget(conn.socket.as_fd(), conn.watched);
        if conn.is_retried {
            self.retried.retain(|index| *index != id.0);
        }
        if conn.is_told {
            self.writable.retain(|told| *told != id);
        }
        if conn.is_leaving {
            self.returned.retain(|returned| *returned != id);
        }
        if conn.broken.is_some() {
            self.gone.retain(|gone| *gone != id);
        }
        Some(conn.socket)
    }

    /// Returns the connection, alive, once the kernel has taken all the data queued on it. `false`:
    /// there is none.
    pub(super) fn give_back(&mut self, id: ConnId, counters: &mut TxCounters) -> bool {
        let Some(Some(conn)) = self.conns.get_mut(id.0 as usize) else { return false };
        if !std::mem::replace(&mut conn.is_leaving, true) && self.flush(id, counters) == Ok(true) {
            self.returned.push_back(id);
        }
        true
    }

    /// A connection that is given back, with its descriptor.
    pub(super) fn poll_returned(&mut self) -> Option<(ConnId, OwnedFd)> {
        let id = self.returned.pop_front()?;
        Some((id, self.remove(id)?))
    }

    /// Tells once of each connection that broke.
    pub(super) fn poll_gone(&mut self) -> Option<(ConnId, i32)> {
        let id = self.gone.pop_front()?;
        let errno = self.conns[id.0 as usize].as_ref().and_then(|conn| conn.broken);
        Some((id, errno.unwrap_or(0)))
    }

    /// Sends the packets of `shape` as frames of `channel`, as an entry of batch number `batch`.
    pub(super) fn send(
        &mut self,
        id: ConnId,
        channel: u8,
        shape: &DatagramShape<'_>,
        batch: u64,
        counters: &mut TxCounters,
    ) -> SendOutcome {
        self.tune(id, TCP_NOT_SENT_BYTES);
        self.send_pieces(id, &Pieces::Frames { channel, shape }, batch, counters)
    }

    /// Sends bytes as they are, as an entry of batch number `batch`.
    pub(super) fn send_bytes(
        &mut self,
        id: ConnId,
        range: ByteRange<'_>,
        batch: u64,
        counters: &mut TxCounters,
    ) -> SendOutcome {
        self.tune(id, BYTES_NOT_SENT);
        self.send_pieces(id, &Pieces::Bytes(range), batch, counters)
    }

    /// Limits the bytes that TCP holds beside those in flight.
    fn tune(&mut self, id: ConnId, not_sent_bytes: i32) {
        if let Some(Some(conn)) = self.conns.get_mut(id.0 as usize)
            && conn.is_tcp
            && conn.not_sent_bytes.replace(not_sent_bytes) != Some(not_sent_bytes)
        {
            // Without it the same is sent, in other pieces.
            let _ = set_int(conn.socket.as_fd(), libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT, not_sent_bytes);
        }
    }

    fn send_pieces(
        &mut self,
        id: ConnId,
        pieces: &Pieces<'_>,
        batch: u64,
        counters: &mut TxCounters,
    ) -> SendOutcome {
        if pieces.longest() > MAX_PACKET {
            return SendOutcome::Unreachable { errno: libc::EMSGSIZE };
        }
        let held_back =
            self.conns.get(id.0 as usize).and_then(Option::as_ref).and_then(|conn| conn.blocked_in);
        let result = match self.flush(id, counters) {
            Ok(true) if held_back != Some(batch) => self.send_all(id, pieces, counters),
            Ok(_) => Ok(0),
            Err(errno) => Err(errno),
        };
        match result {
            Ok(taken) if taken == pieces.count() => SendOutcome::Sent,
            Ok(taken) => {
                if let Some(Some(conn)) = self.conns.get_mut(id.0 as usize) {
                    conn.blocked_in = Some(batch);
                    conn.has_refused = true;
                }
                self.await_room(id, counters);
                SendOutcome::Blocked { taken: taken as u16 }
            }
            Err(errno) => SendOutcome::Closed { errno },
        }
    }

    /// Sends packets until the connection is full; returns how many it took.
    fn send_all(&mut self, id: ConnId, pieces: &Pieces<'_>, counters: &mut TxCounters) -> Result<usize, i32> {
        if let Pieces::Bytes(range) = pieces
            && let Some(bytes) = range.contiguous()
        {
            return self.send_contiguous(id, range, bytes, counters);
        }
        let mut done = self.finish_packet(id, pieces, counters)?;
        while done < pieces.count() && !self.is_waiting(id) {
            let count = pieces.most_per_call().min(pieces.count() - done);
            let taken = self.write_pieces(id, pieces, done, count, counters)?;
            counters.frames += if matches!(pieces, Pieces::Frames { .. }) { taken as u64 } else { 0 };
            counters.bytes += pieces.bytes_in(done, taken) as u64;
            done += taken;
            // One that was taken in part waits, and would be in the way of the next.
            if taken < count {
                break;
            }
        }
        Ok(done)
    }

    /// Sends the rest of a packet that began in an extent without gaps, if the same extent has been read again since and has some.
    /// Returns the number of packets that this finishes.
    fn finish_packet(
        &mut self,
        id: ConnId,
        pieces: &Pieces<'_>,
        counters: &mut TxCounters,
    ) -> Result<usize, i32> {
        let skip = match &mut self.conns[id.0 as usize] {
            Some(conn) => std::mem::take(&mut conn.skip),
            None => 0,
        };
        if skip == 0 {
            return Ok(0);
        }
        let rest = pieces.body(0).get(skip..).unwrap_or_default();
        self.rooms[id.0 as usize * ROOM..][..rest.len()].copy_from_slice(rest);
        counters.bytes += rest.len() as u64;
        self.wait(id, rest.len(), 0, counters);
        self.flush(id, counters).map(|_| 1)
    }

    /// Writes packets `first..first + count` in one call; returns how many are taken, the last of them perhaps with
    /// its rest waiting.
    fn write_pieces(
        &mut self,
        id: ConnId,
        pieces: &Pieces<'_>,
        first: usize,
        count: usize,
        counters: &mut TxCounters,
    ) -> Result<usize, i32> {
        let mut parts = [IoSlice::new(&[]); TCP_PARTS];
        let (mut used, mut bytes) = (0, 0);
        let mut prefix_bytes = 0;
        if pieces.have_prefixes() {
            for (place, prefix) in self.prefixes[..count].iter_mut().enumerate() {
                prefix_bytes = pieces.write_prefix(first + place, prefix);
            }
        }
        for place in 0..count {
            if prefix_bytes > 0 {
                parts[used] = IoSlice::new(&self.prefixes[place][..prefix_bytes]);
                used += 1;
            }
            let body = pieces.body(first + place);
            bytes += prefix_bytes + body.len();
            parts[used] = IoSlice::new(body);
            used += 1;
        }
        let conn = self.conns[id.0 as usize].as_mut().expect("flush found the connection");
        let written = match write(conn, &parts[..used], counters) {
            Write::Took(written) if written == bytes => return Ok(count),
            Write::Took(written) => written,
            Write::Full => 0,
            Write::Broken(errno) => return Err(self.breaks(id, errno)),
        };
        let mut left = written;
        for place in 0..count {
            let prefix = if prefix_bytes > 0 { &self.prefixes[place][..prefix_bytes] } else { &[] };
            let body = pieces.body(first + place);
            let piece = prefix.len() + body.len();
            if left < piece {
                if left == 0 {
                    return Ok(place);
                }
                let (prefix_left, body_left) =
                    (&prefix[left.min(prefix.len())..], &body[left.saturating_sub(prefix.len())..]);
                let room = &mut self.rooms[id.0 as usize * ROOM..][..ROOM];
                room[..prefix_left.len()].copy_from_slice(prefix_left);
                room[prefix_left.len()..][..body_left.len()].copy_from_slice(body_left);
                self.wait(id, piece - left, 0, counters);
                counters.split_frames += 1;
                return Ok(place + 1);
            }
            left -= piece;
        }
        Ok(count)
    }

    /// Appends control bytes to the data sent: at once if there is room, else to the connection's
    /// buffer.
    pub(super) fn write_control(
        &mut self,
        id: ConnId,
        bytes: &[u8],
        counters: &mut TxCounters,
    ) -> Result<(), ConnError> {
        if self.conns.get(id.0 as usize).is_none_or(Option::is_none) {
            return Err(ConnError::Unknown { conn: id });
        }
        let gone = |errno| ConnError::Gone { conn: id, errno };
        let empty = self.flush(id, counters).map_err(gone)?;
        let conn = self.conns[id.0 as usize].as_mut().expect("looked up above");
        if conn.control + bytes.len() > MAX_CONN_PENDING_BYTES {
            return Err(ConnError::TooMuchPending { conn: id, pending: conn.control, asked: bytes.len() });
        }
        let mut written = 0;
        if empty && !bytes.is_empty() {
            match write(conn, &[IoSlice::new(bytes)], counters) {
                Write::Took(count) => written = count,
                Write::Full => {}
                Write::Broken(errno) => return Err(gone(self.breaks(id, errno))),
            }
        }
        counters.control_bytes += bytes.len() as u64;
        let rest = &bytes[written..];
        if !rest.is_empty() {
            let (start, waiting) = (conn.start, conn.waiting);
            let room = &mut self.rooms[id.0 as usize * ROOM..][..ROOM];
            // What waits is moved to the front only when the end of the room is reached.
            let at = if start + waiting + rest.len() > ROOM {
                room.copy_within(start..start + waiting, 0);
                0
            } else {
                start
            };
            room[at + waiting..][..rest.len()].copy_from_slice(rest);
            if let Some(conn) = &mut self.conns[id.0 as usize] {
                conn.start = at;
            }
            self.wait(id, rest.len(), rest.len(), counters);
        }
        Ok(())
    }

    /// Looks, without waiting, which full connections can be written again, and sends what waits for them; whether any has to be
    /// tried again by time. Costs nothing while none is full.
    pub(super) fn flush_all(&mut self, counters: &mut TxCounters) -> bool {
        for _ in 0..self.retried.len() {
            let Some(index) = self.retried.pop_front() else { break };
            if let Some(conn) = &mut self.conns[index as usize] {
                conn.is_retried = false;
            }
            self.has_room(ConnId(index), counters);
        }
        self.watch.ask();
        while let Some((index, is_broken)) = self.watch.report() {
            let Some(Some(conn)) = self.conns.get_mut(index as usize) else { continue };
            conn.watched = Watched::NotNow;
            if is_broken {
                // Nothing needs to be read for it before that is noticed.
                let errno = sockopt::socket_error(&conn.socket).map(|said| said.err());
                self.breaks(ConnId(index), errno.ok().flatten().map_or(libc::EPIPE, |e| e.raw_os_error()));
            } else {
                conn.is_ready = true;
                self.has_room(ConnId(index), counters);
            }
        }
        !self.retried.is_empty()
    }

    /// A connection may be writable again: waiting data goes first, then a connection that refused
    /// an entry is reported.
    fn has_room(&mut self, id: ConnId, counters: &mut TxCounters) {
        if self.flush(id, counters) != Ok(true) {
            return;
        }
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        if conn.is_leaving {
            return self.returned.push_back(id);
        }
        if std::mem::take(&mut conn.has_refused) && !std::mem::replace(&mut conn.is_told, true) {
            self.writable.push_back(id);
        }
    }

    /// A connection that refused an entry and can be written again, once for each time.
    pub(super) fn poll_writable(&mut self) -> Option<ConnId> {
        let id = self.writable.pop_front()?;
        if let Some(conn) = &mut self.conns[id.0 as usize] {
            conn.is_told = false;
        }
        Some(id)
    }

    /// Readable when a full connection can be written again; `None` while none is full.
    pub(super) fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.fd()
    }

    /// A connection is full: it is watched from here on.
    fn await_room(&mut self, id: ConnId, counters: &mut TxCounters) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        if conn.watched == Watched::Now || conn.is_retried || conn.broken.is_some() {
            return;
        }
        let is_ready = std::mem::take(&mut conn.is_ready);
        if is_ready || !self.watch.watch(conn.socket.as_fd(), &mut conn.watched, id.0) {
            conn.is_retried = true;
            self.retried.push_back(id.0);
        } else {
            counters.tcp_waits += 1;
        }
    }

    /// Writes the waiting data. Returns `Ok(true)` if nothing waits any more, the errno if the
    /// connection is unusable. A connection with data left is then watched.
    fn flush(&mut self, id: ConnId, counters: &mut TxCounters) -> Result<bool, i32> {
        let Some(Some(conn)) = self.conns.get_mut(id.0 as usize) else { return Err(libc::ENOTCONN) };
        if let Some(errno) = conn.broken {
            return Err(errno);
        }
        if conn.waiting == 0 {
            return Ok(true);
        }
        let bytes = &self.rooms[id.0 as usize * ROOM..][conn.start..conn.start + conn.waiting];
        match write(conn, &[IoSlice::new(bytes)], counters) {
            Write::Took(count) => {
                conn.start += count;
                conn.waiting -= count;
                conn.control = conn.control.min(conn.waiting);
                if conn.waiting == 0 {
                    conn.start = 0;
                    return Ok(true);
                }
            }
            Write::Full => {}
            Write::Broken(errno) => return Err(self.breaks(id, errno)),
        }
        self.await_room(id, counters);
        Ok(false)
    }

    /// Bytes that a connection was given, control bytes too, and that its peer has not acknowledged.
    pub(super) fn backlog_bytes(&self, id: ConnId) -> Option<u64> {
        let conn = self.conns.get(id.0 as usize)?.as_ref()?;
        Some(conn.waiting as u64 + unacknowledged_bytes(conn.socket.as_fd()).ok()?)
    }

    fn is_waiting(&self, id: ConnId) -> bool {
        self.conns[id.0 as usize].as_ref().is_some_and(|conn| conn.waiting > 0)
    }

    /// Notes that `bytes` more bytes wait, `control` of them control bytes.
    fn wait(&mut self, id: ConnId, bytes: usize, control: usize, counters: &mut TxCounters) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        conn.waiting += bytes;
        conn.control += control;
        self.await_room(id, counters);
    }

    /// Notes that a connection broke, once.
    fn breaks(&mut self, id: ConnId, errno: i32) -> i32 {
        if let Some(conn) = &mut self.conns[id.0 as usize]
            && conn.broken.is_none()
        {
            conn.broken = Some(errno);
            conn.waiting = 0;
            conn.control = 0;
            self.gone.push_back(id);
        }
        errno
    }
}

/// One sendmsg that neither waits nor raises SIGPIPE.
fn write(conn: &mut KernelConnection, parts: &[IoSlice<'_>], counters: &mut TxCounters) -> Write {
    for _ in 0..MAX_INTERRUPTS {
        counters.tcp_calls += 1;
        match rustix::net::sendmsg(&conn.socket, parts, &mut SendAncillaryBuffer::default(), FLAGS) {
            Ok(count) => {
                conn.is_ready &= count == 0;
                return Write::Took(count);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS | rustix::io::Errno::NOMEM) => {
                return Write::Full;
            }
            Err(errno) => return Write::Broken(errno.raw_os_error()),
        }
    }
    Write::Full
}

#[cfg(test)]
#[path = "tcp_tests.rs"]
mod tests;
