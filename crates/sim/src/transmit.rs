//! The egress path of a loop into the simulated network.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use millrace_core::dest::Dest;
use millrace_core::ids::{ConnId, StreamId};
use millrace_core::limits::MAX_CONN_PENDING_BYTES;
use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::seam::{PacketTx, Payload, SendOutcome, Transmit, TransmitBatch};
use millrace_core::time::Instant;
use millrace_offload::TxCounters;
use millrace_offload::command::ConnSocket;
use millrace_offload::loop_tx::{ERRNO_NO_BUFFERS, LoopConnections, LoopTx, WithoutEngine};

use crate::network::{MediaAddress, SharedNetwork, SimConnection};

/// A connection that the loop writes to.
struct WrittenConnection {
    number: u32,
    socket: OwnedFd,
    /// It refused an entry, and has not been reported writable since.
    has_refused: bool,
    /// Its end was reported.
    is_gone: bool,
}

/// The path. Accepted packets are on their way at once.
pub struct SimTx {
    network: SharedNetwork,
    conns: BTreeMap<u32, WrittenConnection>,
    returned: VecDeque<(ConnId, ConnSocket)>,
    counters: TxCounters,
}

impl WithoutEngine for SimTx {}

impl SimTx {
    /// A path into `network`.
    pub fn new(network: SharedNetwork) -> Self {
        Self { network, conns: BTreeMap::new(), returned: VecDeque::new(), counters: TxCounters::default() }
    }

    fn send_one(&mut self, transmit: &Transmit<'_>) -> SendOutcome {
        let network = self.network.clone();
        match transmit.dest {
            Dest::Udp { ip, port, rtcp_port, .. } => {
                let mut network = network.lock();
                if let Payload::Rtcp(bytes) = transmit.payload {
                    if let Some(rtcp_port) = rtcp_port {
                        network.send_datagram(SocketAddr::new(ip, rtcp_port), bytes.to_vec());
                    }
                    return SendOutcome::Sent;
                }
                for index in 0..transmit.datagrams() {
                    let datagram = datagram_of(&transmit.payload, index);
                    let sent = network.sent.entry(MediaAddress::Udp(ip, port)).or_default();
                    (sent.packets, sent.bytes) = (sent.packets + 1, sent.bytes + datagram.len() as u64);
                    network.send_datagram(SocketAddr::new(ip, port), datagram);
                }
                SendOutcome::Sent
            }
            Dest::Interleaved { conn, rtp_channel, rtcp_channel } => {
                self.send_frames(conn, transmit, (rtp_channel, rtcp_channel))
            }
            Dest::Bytes { conn } => self.send_bytes(conn, transmit),
            // The simulated viewers do not ask for it.
            Dest::Multicast { .. } => SendOutcome::Unreachable { errno: libc::EINVAL },
        }
    }

    fn send_bytes(&mut self, conn: ConnId, transmit: &Transmit<'_>) -> SendOutcome {
        let Some(written) = self.conns.get_mut(&conn.0) else {
            return SendOutcome::Closed { errno: libc::EBADF };
        };
        let mut network = self.network.lock();
        if network.conns.get(&written.number).is_none_or(SimConnection::is_broken) {
            return SendOutcome::Closed { errno: libc::ECONNRESET };
        }
        let Payload::Bytes(range) = &transmit.payload else {
            return SendOutcome::Unreachable { errno: libc::EINVAL };
        };
        for index in 0..range.count {
            if !network.has_room(written.number) {
                written.has_refused = true;
                return SendOutcome::Blocked { taken: index as u16 };
            }
            let piece = range.piece(index);
            let sent = network.sent.entry(MediaAddress::Bytes(written.number)).or_default();
            (sent.packets, sent.bytes) = (sent.packets + 1, sent.bytes + piece.len() as u64);
            network.write_down(written.number, piece.to_vec());
        }
        SendOutcome::Sent
    }

    fn send_frames(&mut self, conn: ConnId, transmit: &Transmit<'_>, (rtp, rtcp): (u8, u8)) -> SendOutcome {
        let Some(written) = self.conns.get_mut(&conn.0) else {
            return SendOutcome::Closed { errno: libc::EBADF };
        };
        let mut network = self.network.lock();
        if network.conns.get(&written.number).is_none_or(SimConnection::is_broken) {
            return SendOutcome::Closed { errno: libc::ECONNRESET };
        }
        let is_media = !matches!(transmit.payload, Payload::Rtcp(_));
        let channel = if is_media { rtp } else { rtcp };
        for index in 0..transmit.datagrams() {
            if !network.has_room(written.number) {
                written.has_refused = true;
                return SendOutcome::Blocked { taken: index as u16 };
            }
            let packet = datagram_of(&transmit.payload, index);
            if is_media {
                let sent = network.sent.entry(MediaAddress::Channel(written.number, rtp)).or_default();
                (sent.packets, sent.bytes) = (sent.packets + 1, sent.bytes + packet.len() as u64);
            }
            let mut frame = vec![b'$', channel];
            frame.extend_from_slice(&(packet.len() as u16).to_be_bytes());
            frame.extend_from_slice(&packet);
            network.write_down(written.number, frame);
        }
        SendOutcome::Sent
    }
}

/// One datagram of a payload.
fn datagram_of(payload: &Payload<'_>, index: usize) -> Vec<u8> {
    let part = |bytes: &[u8], segment: usize| {
        let start = index * segment;
        bytes[start..(start + segment).min(bytes.len())].to_vec()
    };
    match *payload {
        Payload::Wire { bytes, segment } => part(bytes, segment),
        Payload::Patched { headers, bytes, segment } => {
            let mut datagram = part(bytes, segment);
            datagram[..RTP_HEADER_BYTES]
                .copy_from_slice(&headers[index * RTP_HEADER_BYTES..][..RTP_HEADER_BYTES]);
            datagram
        }
        Payload::Rtcp(bytes) => bytes.to_vec(),
        Payload::Bytes(_) => Vec::new(),
    }
}

impl PacketTx for SimTx {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        for (index, outcome) in outcomes.iter_mut().enumerate().take(batch.len()) {
            *outcome = self.send_one(&batch.get(index));
        }
    }
}

impl LoopConnections for SimTx {
    fn add_conn(&mut self, conn: ConnId, socket: ConnSocket) -> Result<(), i32> {
        let socket = socket.into_fd().ok_or(libc::EOPNOTSUPP)?;
        // A connection from before the server was killed is known no more.
        let number = self.network.lock().sockets.remove(&socket.as_raw_fd()).ok_or(libc::EBADF)?;
        let written = WrittenConnection { number, socket, has_refused: false, is_gone: false };
        let before = self.conns.insert(conn.0, written);
        assert!(before.is_none(), "the loop adds {conn:?} twice");
        Ok(())
    }

    fn write_control(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), i32> {
        let written = self.conns.get(&conn.0).ok_or(libc::EBADF)?;
        let mut network = self.network.lock();
        if network.conns.get(&written.number).is_none_or(SimConnection::is_broken) {
            return Err(libc::ECONNRESET);
        }
        if network.unread_bytes(written.number) > network.capacity_bytes + MAX_CONN_PENDING_BYTES {
            return Err(ERRNO_NO_BUFFERS);
        }
        network.write_down(written.number, bytes.to_vec());
        Ok(())
    }

    fn return_conn(&mut self, conn: ConnId) -> bool {
        let Some(written) = self.conns.remove(&conn.0) else { return false };
        self.network.lock().close_server_end(written.number);
        self.returned.push_back((conn, written.socket.into()));
        true
    }

    fn poll_conn_returned(&mut self) -> Option<(ConnId, ConnSocket)> {
        self.returned.pop_front()
    }

    fn remove_conn(&mut self, conn: ConnId) -> Option<ConnSocket> {
        let written = self.conns.remove(&conn.0)?;
        self.network.lock().close_server_end(written.number);
        Some(written.socket.into())
    }

    fn flush_conns(&mut self) -> bool {
        false
    }

    fn poll_conn_writable(&mut self) -> Option<ConnId> {
        let network = self.network.lock();
        let ready = |conn: &WrittenConnection| conn.has_refused && network.is_writable(conn.number);
        let (id, conn) = self.conns.iter_mut().find(|(_, conn)| ready(conn))?;
        conn.has_refused = false;
        Some(ConnId(*id))
    }

    fn full_conns_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_conn_gone(&mut self) -> Option<(ConnId, i32)> {
        let network = self.network.lock();
        let is_closed = |conn: &WrittenConnection| {
            conn.has_refused && !conn.is_gone && network.conns[&conn.number].is_broken()
        };
        let (id, conn) = self.conns.iter_mut().find(|(_, conn)| is_closed(conn))?;
        conn.is_gone = true;
        Some((ConnId(*id), libc::ECONNRESET))
    }

    fn backlog_bytes(&self, conn: ConnId) -> Option<u64> {
        let written = self.conns.get(&conn.0)?;
        Some(self.network.lock().unread_bytes(written.number) as u64)
    }
}

impl LoopTx for SimTx {
    fn note_unreachable(&mut self, _: SocketAddr, _: i32) {}

    fn is_zero_copy(&self, _: &Dest) -> bool {
        false
    }

    fn poll_done(&mut self) -> Option<(StreamId, u64)> {
        None
    }

    fn counters(&self) -> &TxCounters {
        &self.counters
    }

    fn tend(&mut self, _: Instant) -> bool {
        false
    }
}
