//! The ports through which time and packets come in and go out. Whatever is behind a port can be swapped: the real
//! thing in the server, a virtual one in a test.

pub use crate::byte_range::ByteRange;
pub use crate::dest::Dest;
use crate::ids::StreamId;
use crate::pool::Lease;
use crate::shape::{DatagramShape, Misshapen};
use crate::time::Instant;
use crate::wire::frame::layout;

/// The monotonic clock. Read once a turn of the loop and passed down.
pub trait Clock {
    /// Now.
    fn now(&self) -> Instant;
}

/// Wakes the other side of a ring when it may be asleep. Must be cheap when it is not.
pub trait Doorbell: Send + Sync {
    /// Rings.
    fn ring(&self);
}

/// The data to send for one stream: datagrams of one length, the last possibly shorter.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// RTP packets that lie ready: `segment` bytes each (RTP header + payload), back to back.
    Wire {
        /// The datagrams, contiguous.
        bytes: &'a [u8],
        /// Length of each but the last.
        segment: usize,
    },
    /// The same, but the RTP header of datagram `i` (its first 12 bytes in `bytes`) is replaced by
    /// `headers[12 * i..12 * (i + 1)]`: a viewer with a timeline of its own.
    Patched {
        /// 12 bytes for each datagram.
        headers: &'a [u8],
        /// The datagrams with the shared headers, contiguous.
        bytes: &'a [u8],
        /// Length of each datagram but the last.
        segment: usize,
    },
    /// One compound RTCP packet.
    Rtcp(&'a [u8]),
    /// Bytes of a title, for [`Dest::Bytes`]; what counts as a datagram is the part of one packet.
    Bytes(ByteRange<'a>),
}

/// One entry of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Whose it is.
    pub stream: StreamId,
    /// Where it goes.
    pub dest: Dest,
    /// The data to send.
    pub payload: Payload<'a>,
}

impl Transmit<'_> {
    /// Number of datagrams.
    pub fn datagrams(&self) -> usize {
        match self.payload {
            Payload::Wire { bytes, segment } | Payload::Patched { bytes, segment, .. } => {
                bytes.len().div_ceil(segment)
            }
            Payload::Rtcp(_) => 1,
            Payload::Bytes(range) => range.count as usize,
        }
    }
}

/// Where the datagrams of an entry lie: packets `place..` of an extent under lease.
///
/// A device that needs the bytes after [`PacketTx::send`] has returned (because it does not copy
/// them) keeps a clone of the lease until it is done with them; the extent is not written while it
/// does.
#[derive(Clone, Copy, Debug)]
pub struct PayloadSource<'a> {
    /// The extent. Its metadata has the payload sums ([`Lease::metas`]).
    pub lease: &'a Lease,
    /// First packet in it.
    pub place: u32,
}

/// A batch of things to send, read by the packet I/O within one call: nothing is kept beyond it but leases
/// ([`PayloadSource`]).
pub trait TransmitBatch {
    /// Entries; at most [`crate::limits::MAX_BATCH_BURSTS`].
    fn len(&self) -> usize;
    /// Whether there is nothing to send.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Entry `index < len()`.
    fn get(&self, index: usize) -> Transmit<'_>;
    /// Returns `payload`, which is that of entry `index < len()`, checked. A batch that passes
    /// through several layers keeps the result of the first check.
    ///
    /// # Errors
    /// Why it is no datagrams.
    fn shape<'a>(&'a self, index: usize, payload: Payload<'a>) -> Result<DatagramShape<'a>, Misshapen> {
        let _ = index;
        DatagramShape::of(payload)
    }
    /// Returns where the datagrams of entry `index < len()` lie. `None`: in unknown memory, so that
    /// a device has to copy and to sum them itself.
    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        let _ = index;
        None
    }
}

/// What became of one entry of a batch. Counts are datagrams taken by the device, not datagrams delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// All datagrams were taken.
    Sent,
    /// The device or connection is full; the first `taken` datagrams were taken. Try again later.
    Blocked {
        /// Datagrams taken.
        taken: u16,
    },
    /// This destination cannot be reached now; no other one is affected. The datagrams are gone, as
    /// on a lossy link.
    Unreachable {
        /// `errno` of the refusal (EPERM, ENETUNREACH, ECONNREFUSED after an ICMP message ...).
        errno: i32,
    },
    /// The connection is closed or broken: there will never be a way.
    Closed {
        /// `errno`, or 0 for an orderly close.
        errno: i32,
    },
}

/// The egress path. Implementations may not block and may not allocate once they run.
pub trait PacketTx {
    /// Sends every entry of `batch`, in order, and writes one outcome for each into `outcomes[..batch.len()]`.
    ///
    /// # Panics
    /// If `outcomes` is shorter than the batch.
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]);
}

/// The protocol of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// A TCP segment.
    Tcp,
    /// A UDP datagram.
    Udp,
}

impl Protocol {
    /// Number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => layout::TCP,
            Self::Udp => layout::UDP,
        }
    }
}

/// The next need of a stream: one extent, by a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The stream.
    pub stream: StreamId,
    /// For which of its runs: the answer names it, and wants of different runs are different wants.
    pub run: crate::ids::RunSerial,
    /// The title.
    pub title: crate::ids::TitleRef,
    /// Number of the extent in the title.
    pub extent: u32,
    /// Place in the extent of the first packet that is needed: an extent that still grows is lent when that can be read.
    pub place: u16,
    /// When its first packet is due.
    pub by: Instant,
    /// How many packets of one codeword the viewer can repair itself: this many may be missing in
    /// the extent it is lent ([`crate::packet::PacketMeta::MISSING`]). 0: none; 255: missing
    /// packets are simply not sent.
    pub spare: u8,
}
