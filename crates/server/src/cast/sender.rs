//! The socket of a cast. Datagrams that are due together leave with one system call.

use std::array;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use millrace_core::limits::{DEFAULT_PACKET_BYTES, RTP_HEADER_BYTES};
use millrace_core::time::Instant;
use millrace_core::wire::rtp::{FIRST_SEQUENCE, PAYLOAD_TYPE_MP2T, RtpHeader};
use millrace_media::ts_packet::SYSTEM_TICKS_PER_MEDIA_TICK;
use millrace_nvod::packet::PLACED_HEADER_BYTES;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg, sockopt};

use super::pace::PacedSink;
use super::url::CastUrl;
use crate::limits::cast::CAST_BATCH_DATAGRAMS;
use crate::live::address::LiveTransport;

/// Position of the differentiated services code point in its byte (RFC 2474 section 3).
const DSCP_SHIFT: u8 = 2;

/// A datagram with the longest header.
const MOST_BYTES: usize = PLACED_HEADER_BYTES + DEFAULT_PACKET_BYTES;

/// Why a destination cannot be sent to.
#[derive(Debug, thiserror::Error)]
#[error("cast to {url}: {what}: {error}; {remedy}")]
pub struct OpenCastError {
    url: String,
    what: &'static str,
    error: io::Error,
    remedy: &'static str,
}

/// The numbers of RTP packets.
#[derive(Clone, Copy, Debug)]
struct RtpNumbers {
    sequence: u16,
    ssrc: u32,
    timestamp_base: u32,
}

/// Datagrams sent, and their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CastCounts {
    /// Sent.
    pub datagrams: u64,
    /// Their payload, RTP headers included.
    pub bytes: u64,
    /// Refused by the kernel.
    pub refused: u64,
}

/// A datagram that waits for the next system call.
struct QueuedDatagram {
    bytes: [u8; MOST_BYTES],
    length: usize,
}

/// See the module's text.
pub struct CastSender {
    url: CastUrl,
    socket: UdpSocket,
    to: SocketAddrAny,
    rtp: Option<RtpNumbers>,
    queue: Box<[QueuedDatagram; CAST_BATCH_DATAGRAMS]>,
    queued: usize,
    counts: CastCounts,
    error: Option<io::Error>,
    is_sending: bool,
}

impl CastSender {
    /// Opens the socket, in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the interface is not there, or the socket refuses an option.
    pub fn open(url: &CastUrl) -> Result<Self, OpenCastError> {
        let socket = open_socket(url)?;
        let random = RandomState::new();
        let numbers = RtpNumbers {
            sequence: FIRST_SEQUENCE,
            ssrc: random.hash_one(0) as u32,
            timestamp_base: random.hash_one(1) as u32,
        };
        let queued = || QueuedDatagram { bytes: [0; MOST_BYTES], length: 0 };
        Ok(Self {
            url: url.clone(),
            socket,
            to: url.to.into(),
            rtp: (url.transport == LiveTransport::Rtp).then_some(numbers),
            queue: Box::new(array::from_fn(|_| queued())),
            queued: 0,
            counts: CastCounts::default(),
            error: None,
            is_sending: false,
        })
    }

    /// Its destination.
    pub fn url(&self) -> &CastUrl {
        &self.url
    }

    /// The synchronisation source of its RTP packets.
    pub fn ssrc(&self) -> Option<u32> {
        self.rtp.map(|rtp| rtp.ssrc)
    }

    /// Datagrams sent up to now.
    pub fn counts(&self) -> CastCounts {
        self.counts
    }

    /// The last error, once.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Whether the last datagram left.
    pub fn is_sending(&self) -> bool {
        self.is_sending
    }

    fn enqueue(&mut self, time: u64, payload: &[u8]) {
        if self.queued == CAST_BATCH_DATAGRAMS {
            self.send();
        }
        let QueuedDatagram { bytes, length } = &mut self.queue[self.queued];
        let mut at = 0;
        if let Some(rtp) = &mut self.rtp {
            let ticks = (time / SYSTEM_TICKS_PER_MEDIA_TICK) as u32;
            let header = RtpHeader {
                marker: false,
                payload_type: PAYLOAD_TYPE_MP2T,
                sequence: rtp.sequence,
                timestamp: rtp.timestamp_base.wrapping_add(ticks),
                ssrc: rtp.ssrc,
            };
            bytes[..RTP_HEADER_BYTES].copy_from_slice(&header.emit());
            rtp.sequence = rtp.sequence.wrapping_add(1);
            at = RTP_HEADER_BYTES;
        }
        bytes[at..at + payload.len()].copy_from_slice(payload);
        *length = at + payload.len();
        self.queued += 1;
    }

    /// Queues a datagram whose header the caller made; [`PacedSink::flush`] sends it.
    ///
    /// # Panics
    /// If it is longer than a packet with the header of [`millrace_nvod::packet`].
    pub fn enqueue_parts(&mut self, header: &[u8], payload: &[u8]) {
        if self.queued == CAST_BATCH_DATAGRAMS {
            self.send();
        }
        let QueuedDatagram { bytes, length } = &mut self.queue[self.queued];
        *length = header.len() + payload.len();
        bytes[..header.len()].copy_from_slice(header);
        bytes[header.len()..*length].copy_from_slice(payload);
        self.queued += 1;
    }

    /// Sends the queue. A datagram that the kernel refuses is counted; the next one may leave again.
    fn send(&mut self) {
        let mut from = 0;
        while from < self.queued {
            match self.send_from(from) {
                Ok(sent) if sent > 0 => {
                    let bytes = self.queue[from..from + sent].iter().map(|datagram| datagram.length as u64);
                    self.counts.bytes += bytes.sum::<u64>();
                    self.counts.datagrams += sent as u64;
                    (from, self.is_sending) = (from + sent, true);
                }
                Err(rustix::io::Errno::INTR) => {}
                failed => {
                    self.counts.refused += 1;
                    (from, self.is_sending) = (from + 1, false);
                    self.error = failed.err().map(io::Error::from);
                }
            }
        }
        self.queued = 0;
    }

    fn send_from(&self, from: usize) -> rustix::io::Result<usize> {
        let slices: [[IoSlice<'_>; 1]; CAST_BATCH_DATAGRAMS] = array::from_fn(|at| {
            let QueuedDatagram { bytes, length } = &self.queue[at];
            [IoSlice::new(&bytes[..*length])]
        });
        let mut controls: [SendAncillaryBuffer<'_, '_, '_>; CAST_BATCH_DATAGRAMS] =
            array::from_fn(|_| SendAncillaryBuffer::default());
        let mut slices = slices.iter();
        let mut messages = controls.each_mut().map(|control| {
            let slice = slices.next().map_or(&[][..], |slice| &slice[..]);
            MMsgHdr::new_with_addr(&self.to, slice, control)
        });
        sendmmsg(&self.socket, &mut messages[from..self.queued], SendFlags::empty())
    }
}

impl PacedSink for CastSender {
    fn datagram(&mut self, _due: Instant, time: u64, bytes: &[u8]) {
        for payload in bytes.chunks(self.url.payload_bytes) {
            self.enqueue(time, payload);
        }
    }

    fn flush(&mut self, _now: Instant) {
        self.send();
    }
}

fn open_socket(url: &CastUrl) -> Result<UdpSocket, OpenCastError> {
    let refused =
        |what, remedy| move |error: io::Error| OpenCastError { url: url.text.clone(), what, error, remedy };
    let any = if url.to.is_ipv4() { IpAddr::from([0u8; 4]) } else { IpAddr::from([0u16; 8]) };
    let own = url.interface.as_deref().and_then(|interface| interface.parse::<IpAddr>().ok());
    let is_unicast = !url.is_multicast();
    let bound = own.filter(|_| is_unicast).unwrap_or(any);
    let socket = UdpSocket::bind(SocketAddr::new(bound, 0)).map_err(refused(
        "cannot bind the socket",
        "give iface= an address of this machine, of the same family",
    ))?;
    if let Some(dscp) = url.dscp {
        let byte = dscp << DSCP_SHIFT;
        let set = match url.to.is_ipv4() {
            true => sockopt::set_ip_tos(&socket, byte),
            false => sockopt::set_ipv6_tclass(&socket, byte.into()),
        };
        set.map_err(|error| refused("cannot set dscp", "leave out dscp=")(error.into()))?;
    }
    let ttl_failed = |error: rustix::io::Errno| refused("cannot set ttl", "leave out ttl=")(error.into());
    let lost = "give iface= the name of an interface or one of its addresses (ip address)";
    let interface_failed = |error: io::Error| refused("cannot choose the interface", lost)(error);
    match (url.to.ip(), url.ttl) {
        (IpAddr::V4(group), Some(ttl)) if group.is_multicast() => {
            sockopt::set_ip_multicast_ttl(&socket, ttl.into()).map_err(ttl_failed)?;
        }
        (IpAddr::V6(group), Some(ttl)) if group.is_multicast() => {
            sockopt::set_ipv6_multicast_hops(&socket, ttl.into()).map_err(ttl_failed)?;
        }
        (IpAddr::V4(_), Some(ttl)) => sockopt::set_ip_ttl(&socket, ttl.into()).map_err(ttl_failed)?,
        (IpAddr::V6(_), Some(ttl)) => {
            sockopt::set_ipv6_unicast_hops(&socket, Some(ttl)).map_err(ttl_failed)?
        }
        (_, None) => {}
    }
    match (url.interface.as_deref(), url.to.ip()) {
        (Some(_), _) if is_unicast && own.is_none() => {
            return Err(interface_failed(io::ErrorKind::InvalidInput.into()));
        }
        (Some(interface), IpAddr::V4(group)) if !is_unicast => {
            set_v4_interface(&socket, group, own, interface).map_err(interface_failed)?;
        }
        (Some(interface), IpAddr::V6(_)) if !is_unicast => {
            let index = interface_index(interface).map_err(interface_failed)?;
            sockopt::set_ipv6_multicast_if(&socket, index).map_err(|error| interface_failed(error.into()))?;
        }
        _ => {}
    }
    Ok(socket)
}

fn set_v4_interface(
    socket: &UdpSocket,
    group: Ipv4Addr,
    own: Option<IpAddr>,
    interface: &str,
) -> io::Result<()> {
    if let Some(IpAddr::V4(own)) = own {
        return Ok(sockopt::set_ip_multicast_if(socket, &own)?);
    }
    let index = interface_index(interface)?;
    Ok(sockopt::set_ip_multicast_if_with_ifindex(socket, &group, &Ipv4Addr::UNSPECIFIED, index)?)
}

/// The source address of datagrams to this destination.
pub(crate) fn source_of(url: &CastUrl) -> io::Result<IpAddr> {
    let socket = open_socket(url).map_err(io::Error::other)?;
    socket.connect(url.to)?;
    Ok(socket.local_addr()?.ip())
}

/// The number of an interface in this network namespace.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
}
