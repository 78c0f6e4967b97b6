//! The kernel's sockets as an egress path: UDP with GSO, RTP interleaved in TCP.
//!
//! | file | holds |
//! | --- | --- |
//! | `counters` | counts of this egress path |
//! | `udp` | pairs of ports, and several sockets on one pair |
//! | `udp_socket` | one UDP socket for all viewers: batches, GSO, whose fault an error is |
//! | `icmp` | ICMP messages about viewers |
//! | `held` | extents that the kernel reads after a send without copying |
//! | `tcp` | frames in RTSP connections, and bytes in others |
//! | `pieces` | the data sent on a connection, packet by packet |
//! | `watch` | which full connections can be written again |
//! | `table` | a small table of addresses |

mod counters;
mod held;
mod icmp;
mod pieces;
mod table;
mod tcp;
mod udp;
mod udp_socket;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_core::ids::{ConnId, MulticastId};
use millrace_core::limits::MAX_BATCH_BURSTS;
use millrace_core::pool::Lease;
use millrace_core::seam::{Dest, PacketTx, Payload, SendOutcome, Transmit, TransmitBatch};
use millrace_core::shape::{DatagramShape, Misshapen};
use millrace_core::source::SourceTable;

pub use self::counters::TxCounters;
pub use self::held::ZeroCopy;
pub use self::icmp::IcmpReader;
pub(crate) use self::icmp::icmp_may_say;
use self::tcp::Conns;
pub use self::udp::{UdpPair, UdpPorts, bind_pair, bind_ports};
pub(crate) use self::udp_socket::SEND_BUFFER_BYTES;
pub use self::udp_socket::ZERO_COPY_MIN_BYTES;
use self::udp_socket::{Call, Entries, Kit, UdpEntry, UdpSender};
use crate::errno::errno_of;
use crate::error::{ConnError, NetError};
use crate::limits::{MAX_MULTICAST_SOCKETS, UDP_SENDERS};
use crate::multicast::MulticastSocket;
use crate::probe;
use crate::sys::socket::canonical;

/// Whether bursts are handed to the kernel in one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GsoMode {
    /// If the kernel can, found out by trying; given up for a viewer or a socket where it does not work.
    #[default]
    Auto,
    /// Never: one message for each datagram.
    Off,
}

/// The configuration of a [`KernelTx`].
#[derive(Debug, Default)]
pub struct KernelTxConfig {
    /// Sockets for IPv4 viewers.
    pub v4: Option<UdpPair>,
    /// Sockets for IPv6 viewers.
    pub v6: Option<UdpPair>,
    /// GSO or not.
    pub gso: GsoMode,
    /// TCP connections: ids run from 0 to `conns - 1`.
    pub conns: usize,
}

/// Sends through the kernel's sockets: two UDP sockets per address family for all viewers, and TCP connections.
///
/// Allocates only in [`KernelTx::new`] and [`KernelTx::add_multicast`]. Errors of one destination
/// affect only that viewer; see [`SendOutcome`].
pub struct KernelTx {
    /// RTP and RTCP of IPv4, RTP and RTCP of IPv6.
    senders: [Option<UdpSender>; UDP_SENDERS],
    /// For multicast.
    multicast: Vec<UdpSender>,
    /// Whether sockets begin with GSO.
    gso: bool,
    kit: Kit,
    conns: Conns,
    /// Source addresses that destinations may refer to.
    sources: Arc<SourceTable>,
    counters: TxCounters,
}

impl KernelTx {
    /// Takes the sockets, asks the kernel for large send buffers and tries whether it can do GSO.
    ///
    /// # Errors
    /// If a pair is of the wrong address family or a socket refuses an option.
    pub fn new(config: KernelTxConfig) -> Result<Self, NetError> {
        let gso = config.gso == GsoMode::Auto && probe::udp_gso().is_ok();
        let [rtp4, rtcp4] = senders(config.v4, "IPv4", gso)?;
        let [rtp6, rtcp6] = senders(config.v6, "IPv6", gso)?;
        Ok(Self {
            senders: [rtp4, rtcp4, rtp6, rtcp6],
            multicast: Vec::with_capacity(MAX_MULTICAST_SOCKETS),
            gso,
            kit: Kit::new(),
            conns: Conns::new(config.conns)?,
            sources: Arc::default(),
            counters: TxCounters::default(),
        })
    }

    /// Sets the source addresses that destinations refer to ([`Dest::source`]).
    #[must_use]
    pub fn with_sources(mut self, sources: Arc<SourceTable>) -> Self {
        self.sources = sources;
        self
    }

    /// Takes a socket for multicast; returns what destinations call it ([`Dest::Multicast`]). Before anything is sent.
    ///
    /// # Errors
    /// If there are [`MAX_MULTICAST_SOCKETS`] of them, or the socket refuses an option.
    pub fn add_multicast(&mut self, socket: MulticastSocket) -> Result<MulticastId, NetError> {
        let id = self.multicast.len();
        if id >= MAX_MULTICAST_SOCKETS {
            return Err(NetError::TooManyMulticast { limit: MAX_MULTICAST_SOCKETS });
        }
        self.multicast.push(UdpSender::new(socket.socket, self.gso)?);
        Ok(MulticastId(id as u8))
    }

    /// Takes the writing side of a connected TCP socket, and sets its `TCP_NODELAY` and
    /// `TCP_NOTSENT_LOWAT` (256 KiB), or the writing side of a Unix stream.
    ///
    /// # Errors
    /// If the id is beyond the table or in use, or it is another kind of socket; the descriptor is closed then.
    pub fn add_conn(&mut self, conn: ConnId, fd: OwnedFd) -> Result<(), NetError> {
        self.conns.add(conn, fd)
    }

    /// Sends `bytes` behind the frame that is being sent, never inside it: at once if the connection takes them, else
    /// they wait for [`KernelTx::flush_conns`] or the next burst. RTCP must already be framed here.
    ///
    /// # Errors
    /// If the connection is unknown or closed, or more than [`millrace_core::limits::MAX_CONN_PENDING_BYTES`] would wait
    /// (then nothing of `bytes` is sent).
    pub fn write_control(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), ConnError> {
        self.conns.write_control(conn, bytes, &mut self.counters)
    }

    /// Returns a connection ([`KernelTx::poll_conn_returned`]) when the kernel has taken all the
    /// data queued on it; nothing more may be sent there. If it breaks first,
    /// [`KernelTx::poll_conn_gone`] reports it instead. `false`: there is no such connection.
    pub fn return_conn(&mut self, conn: ConnId) -> bool {
        self.conns.give_back(conn, &mut self.counters)
    }

    /// A connection that is given back: alive, and with every byte that it was given in the kernel's hands.
    pub fn poll_conn_returned(&mut self) -> Option<(ConnId, OwnedFd)> {
        self.conns.poll_returned()
    }

    /// Forgets a connection with what waited for it; returns its descriptor.
    pub fn remove_conn(&mut self, conn: ConnId) -> Option<OwnedFd> {
        self.conns.remove(conn)
    }

    /// Looks, without waiting, which full connections can be written again, and sends what waits for them; whether any has to be tried
    /// again by time. Costs nothing while none is full. Then [`KernelTx::poll_conn_writable`] and [`KernelTx::poll_conn_gone`].
    pub fn flush_conns(&mut self) -> bool {
        self.conns.flush_all(&mut self.counters)
    }

    /// Returns a connection that held back data ([`SendOutcome::Blocked`]) and can be written
    /// again, once for each time.
    pub fn poll_conn_writable(&mut self) -> Option<ConnId> {
        self.conns.poll_writable()
    }

    /// Bytes that a connection was given, frames and control bytes, and that its peer has not acknowledged: one system call. `None`: there
    /// is no such connection.
    pub fn backlog_bytes(&self, conn: ConnId) -> Option<u64> {
        self.conns.backlog_bytes(conn)
    }

    /// Readable when [`KernelTx::flush_conns`] has something to do; `None` while no connection is full.
    pub fn full_conns_fd(&self) -> Option<BorrowedFd<'_>> {
        self.conns.writable_fd()
    }

    /// A connection that broke (and why, as an errno), once for each.
    pub fn poll_conn_gone(&mut self) -> Option<(ConnId, i32)> {
        self.conns.poll_gone()
    }

    /// Returns an address that was reported as unreachable over ICMP by itself or by this host
    /// (with the reason, as an errno), once for each message; the last 64 are kept. Independently
    /// of this, the next entry sent to that address gets the outcome `Unreachable`.
    pub fn poll_unreachable(&mut self) -> Option<(SocketAddr, i32)> {
        self.kit.memory.icmp.poll()
    }

    /// Records that another reader has learned from ICMP that `dest` is unreachable, as
    /// [`IcmpReader`] does where several senders share one port. The effect is the same as if it
    /// had been read here.
    pub fn note_unreachable(&mut self, dest: SocketAddr, errno: i32) {
        self.counters.icmp_errors += 1;
        let memory = &mut self.kit.memory;
        memory.icmp.put(canonical(dest), errno, memory.batches);
    }

    /// Returns the counters of the work done.
    pub fn counters(&self) -> &TxCounters {
        &self.counters
    }

    /// Whether any socket hands bursts to the kernel in one piece.
    pub fn gso(&self) -> bool {
        self.senders.iter().flatten().any(UdpSender::gso)
    }

    /// Sends like [`PacketTx::send`], but without copying payloads that are long enough
    /// ([`ZERO_COPY_MIN_BYTES`]), go by GSO and lie in an extent ([`TransmitBatch::source`],
    /// [`Payload::Wire`]). The extent's lease is held until the kernel is done with the bytes.
    /// Where this does not work, or while too many sends are outstanding, the bytes are copied as
    /// usual; [`KernelTx::zero_copy`] reports whether it is used at all.
    ///
    /// # Panics
    /// If `outcomes` is shorter than the batch.
    pub fn send_zero_copy(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.send_all(batch, outcomes, true);
    }

    /// Whether sends without copying work for the RTP sockets: the better answer if there are two.
    pub fn zero_copy(&self) -> ZeroCopy {
        let mut states = self.senders.iter().step_by(2).flatten().map(UdpSender::zero_copy);
        let first = states.next().unwrap_or(ZeroCopy::NotOffered { errno: libc::EAFNOSUPPORT });
        states.find(|state| *state == ZeroCopy::Ready).unwrap_or(first)
    }

    /// Takes back the leases of sends that the kernel is done with; returns how many are still out. Every send does
    /// that now and then by itself: this is for when there is nothing to send.
    pub fn reap(&mut self) -> u32 {
        let Self { senders, multicast, kit, counters, .. } = self;
        let all = senders.iter_mut().flatten().chain(multicast);
        all.map(|sender| sender.reap(&mut kit.memory, counters)).sum()
    }

    /// Requests another send buffer size for each UDP socket (the initial request is 4 MiB).
    /// Returns the smallest that the kernel granted, which includes its own overhead and so is
    /// about twice the size requested.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_send_buffer(&mut self, bytes: usize) -> io::Result<usize> {
        let mut all = self.senders.iter().flatten().chain(&self.multicast);
        all.try_fold(usize::MAX, |least, sender| Ok(least.min(sender.set_send_buffer(bytes)?)))
    }

    /// Sends at most [`MAX_BATCH_BURSTS`] entries from `first` on.
    fn send_some(
        &mut self,
        batch: &dyn TransmitBatch,
        first: usize,
        outcomes: &mut [SendOutcome],
        zero_copy: bool,
    ) {
        let mut entries: Entries<'_> = [const { None }; MAX_BATCH_BURSTS];
        let mut masks = [0u64; UDP_SENDERS + MAX_MULTICAST_SOCKETS];
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            let transmit = batch.get(first + index);
            match self.accept(&transmit, batch.shape(first + index, transmit.payload)) {
                Ok((sender, mut entry)) => {
                    if zero_copy {
                        let source = batch.source(first + index);
                        entry.lease = source.map(|s| s.lease).filter(|lease| holds(lease, &entry.shape));
                    }
                    masks[sender] |= 1 << index;
                    entries[index] = Some(entry);
                }
                Err(done) => *outcome = done,
            }
        }
        let multicast = self.multicast.iter_mut().map(Some);
        for (sender, mask) in self.senders.iter_mut().map(Option::as_mut).chain(multicast).zip(masks) {
            if let (Some(sender), 1..) = (sender, mask) {
                let call = Call::new(&entries, mask, outcomes, &mut self.counters);
                sender.send(&mut self.kit, if zero_copy { call.without_copying() } else { call });
            }
        }
    }

    /// Which socket an entry goes out of; or its outcome, if it needs no UDP socket.
    fn accept<'d>(
        &mut self,
        transmit: &Transmit<'d>,
        shape: Result<DatagramShape<'d>, Misshapen>,
    ) -> Result<(usize, UdpEntry<'d>), SendOutcome> {
        if let (Dest::Bytes { conn }, Payload::Bytes(range)) = (transmit.dest, transmit.payload) {
            let batch = self.kit.memory.batches;
            return Err(self.conns.send_bytes(conn, range, batch, &mut self.counters));
        }
        let shape = shape.map_err(|why| SendOutcome::Unreachable { errno: errno_of(why) })?;
        let is_rtcp = matches!(transmit.payload, Payload::Rtcp(_));
        if let Dest::Interleaved { conn, rtp_channel, rtcp_channel } = transmit.dest {
            let channel = if is_rtcp { rtcp_channel } else { rtp_channel };
            let batch = self.kit.memory.batches;
            return Err(self.conns.send(conn, channel, &shape, batch, &mut self.counters));
        }
        let Some(dest) = transmit.dest.address(is_rtcp).map(canonical) else {
            return Err(SendOutcome::Unreachable { errno: libc::EDESTADDRREQ });
        };
        if shape.datagrams() == 0 {
            return Err(SendOutcome::Sent);
        }
        if let Dest::Multicast { via, .. } = transmit.dest {
            // ICMP never reports a group as unreachable.
            return match self.multicast.get(usize::from(via.0)) {
                Some(_) => {
                    let entry = UdpEntry { stream: transmit.stream, dest, source: None, shape, lease: None };
                    Ok((UDP_SENDERS + usize::from(via.0), entry))
                }
                None => Err(SendOutcome::Unreachable { errno: libc::ENODEV }),
            };
        }
        let sender = 2 * usize::from(dest.is_ipv6()) + usize::from(is_rtcp);
        if self.senders[sender].is_none() {
            return Err(SendOutcome::Unreachable { errno: libc::EAFNOSUPPORT });
        }
        let memory = &mut self.kit.memory;
        match memory.icmp.take(dest, memory.batches) {
            Some(errno) => Err(SendOutcome::Unreachable { errno }),
            None => {
                let source = self.sources.get(transmit.dest.source());
                let source = source.filter(|source| source.is_ipv4() == dest.is_ipv4());
                Ok((sender, UdpEntry { stream: transmit.stream, dest, source, shape, lease: None }))
            }
        }
    }

    fn count(&mut self, outcomes: &[SendOutcome]) {
        self.counters.entries += outcomes.len() as u64;
        for outcome in outcomes {
            match outcome {
                SendOutcome::Sent => {}
                SendOutcome::Blocked { .. } => self.counters.blocked += 1,
                SendOutcome::Unreachable { .. } => self.counters.unreachable += 1,
                SendOutcome::Closed { .. } => self.counters.closed += 1,
            }
        }
    }
}

impl KernelTx {
    fn send_all(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome], zero_copy: bool) {
        let length = batch.len();
        assert!(outcomes.len() >= length, "{length} entries, room for {} outcomes", outcomes.len());
        if length == 0 {
            return;
        }
        self.counters.batches += 1;
        self.kit.memory.batches += 1;
        let outcomes = &mut outcomes[..length];
        let mut blocked = false;
        for (chunk, outcomes) in outcomes.chunks_mut(MAX_BATCH_BURSTS).enumerate() {
            // Nothing may overtake an earlier entry of its stream that was held back.
            if blocked {
                outcomes.fill(SendOutcome::Blocked { taken: 0 });
                continue;
            }
            self.send_some(batch, chunk * MAX_BATCH_BURSTS, outcomes, zero_copy);
            blocked = outcomes.iter().any(|outcome| matches!(outcome, SendOutcome::Blocked { .. }));
        }
        self.count(outcomes);
    }
}

impl PacketTx for KernelTx {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.send_all(batch, outcomes, false);
    }
}

impl Drop for KernelTx {
    /// Returns all leases. Waits, a tenth of a second at most, for the kernel to finish its
    /// zero-copy sends; data that is still queued after this is sent with the bytes that the extent
    /// then contains.
    fn drop(&mut self) {
        for sender in self.senders.iter_mut().filter_map(Option::take).chain(self.multicast.drain(..)) {
            sender.close(&mut self.kit.memory, &mut self.counters);
        }
    }
}

/// Returns whether all bytes of a payload lie in the extent, as they must for its lease to keep
/// them.
fn holds(lease: &Lease, shape: &DatagramShape<'_>) -> bool {
    let (extent, bytes) = (lease.bytes().as_ptr_range(), shape.wire_bytes().map(<[u8]>::as_ptr_range));
    bytes.is_some_and(|bytes| extent.start <= bytes.start && bytes.end <= extent.end)
}

fn senders(
    pair: Option<UdpPair>,
    wanted: &'static str,
    gso: bool,
) -> Result<[Option<UdpSender>; 2], NetError> {
    let Some(UdpPair { rtp, rtcp }) = pair else { return Ok([None, None]) };
    if let (Ok(a), Ok(b)) = (rtp.local_addr(), rtcp.local_addr())
        && (a.is_ipv4() != (wanted == "IPv4") || b.is_ipv4() != a.is_ipv4())
    {
        return Err(NetError::Family { wanted, rtp: a, rtcp: b });
    }
    Ok([Some(UdpSender::new(rtp, gso)?), Some(UdpSender::new(rtcp, gso)?)])
}
