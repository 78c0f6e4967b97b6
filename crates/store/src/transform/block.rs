//! The packets of an extent, and a change of them.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::packet::{PacketMeta, WireLayout};

/// A TS packet.
pub type TsBytes = [u8; TS_PACKET_BYTES];

/// Packets of one extent, in place. Packets that could not be read are not shown.
pub struct PacketBlock<'a> {
    first_packet: u32,
    /// From one packet's header to the next; the last may be short.
    pub(super) slots: &'a mut [u8],
    /// A record for each packet, or nothing: then all are there.
    records: &'a [u8],
    header_bytes: usize,
    slot_bytes: usize,
}

impl<'a> PacketBlock<'a> {
    /// Packets as they lie in an extent: `slots` with headers, the last one cut off behind its payload, and their records.
    pub fn new(layout: WireLayout, first_packet: u32, slots: &'a mut [u8], records: &'a [u8]) -> Self {
        let (header_bytes, slot_bytes) = (layout.header_bytes(), layout.slot_bytes());
        Self { first_packet, slots, records, header_bytes, slot_bytes }
    }

    /// TS packets one behind the other, in packets of `packet_bytes`, which is a multiple of 188.
    pub fn of_bytes(first_packet: u32, packet_bytes: usize, bytes: &'a mut [u8]) -> Self {
        Self { first_packet, slots: bytes, records: &[], header_bytes: 0, slot_bytes: packet_bytes }
    }

    /// Number of the first TS packet, counted from the title's start.
    pub fn first_ts(&self) -> u64 {
        u64::from(self.first_packet) * ((self.slot_bytes - self.header_bytes) / TS_PACKET_BYTES) as u64
    }

    /// Bytes of all payloads.
    pub fn payload_bytes(&self) -> usize {
        let (whole, rest) = (self.slots.len() / self.slot_bytes, self.slots.len() % self.slot_bytes);
        whole * (self.slot_bytes - self.header_bytes) + rest.saturating_sub(self.header_bytes)
    }

    /// Payload of each packet that is there, in order, with its place.
    fn payloads(&mut self, mut each: impl FnMut(usize, &mut [u8])) {
        let Self { slots, records, header_bytes, slot_bytes, .. } = self;
        let mut records = records.as_chunks::<{ PacketMeta::BYTES }>().0.iter();
        for (place, slot) in slots.chunks_mut(*slot_bytes).enumerate() {
            if records.next().is_some_and(|record| PacketMeta::from_bytes(*record).is_missing()) {
                continue;
            }
            if let Some(payload) = slot.get_mut(*header_bytes..) {
                each(place, payload);
            }
        }
    }

    /// Each TS packet, in order.
    #[inline]
    pub fn for_each(&mut self, mut each: impl FnMut(&mut TsBytes)) {
        self.payloads(|_, payload| {
            payload.as_chunks_mut::<TS_PACKET_BYTES>().0.iter_mut().for_each(&mut each)
        });
    }

    /// Copies all payloads to `out`, one behind the other: zeros where a packet is not there.
    pub fn copy_to(&mut self, out: &mut [u8]) {
        let bytes = self.slot_bytes - self.header_bytes;
        out.fill(0);
        self.payloads(|place, payload| {
            out[place * bytes..place * bytes + payload.len()].copy_from_slice(payload);
        });
    }

    /// Copies such bytes back, but for packets that are not there.
    pub fn copy_from(&mut self, bytes: &[u8]) {
        let size = self.slot_bytes - self.header_bytes;
        self.payloads(|place, payload| {
            payload.copy_from_slice(&bytes[place * size..place * size + payload.len()]);
        });
    }
}

/// The outcome for a block, beside its change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// TS packets that could not be changed as they should and were made null packets.
    pub left_out: u32,
}

/// A change of the packets of a block. It depends on the block and on nothing else: neither on blocks before it nor on time.
pub trait Transform: Send + Sync {
    /// Changes the packets in place.
    ///
    /// # Errors
    /// [`TransformError`]; the block may be half changed then.
    fn apply(&self, block: &mut PacketBlock<'_>) -> Result<Applied, TransformError>;

    /// Whether [`Transform::apply`] can fail.
    fn may_fail(&self) -> bool {
        false
    }

    /// Whether it may take longer than copying the block a few times: then it does not run where extents of other titles wait for it.
    fn is_slow(&self) -> bool {
        false
    }

    /// By how much it moves presentation time stamps, modulo 2^33, in 90 kHz ticks.
    fn stamp_offset(&self) -> u64 {
        0
    }
}

/// Why a block stays as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// The module has stopped.
    #[error("the module has stopped: {0}")]
    Trap(String),
    /// The module has reached its limit.
    #[error("the module exceeded the work limit of a block ({0} units of work)")]
    OutOfFuel(u64),
    /// The module has given something else than the block's length.
    #[error("the module returned {got} instead of the block's length, {want}")]
    WrongLength {
        /// The value it returned.
        got: i64,
        /// The value it should have returned.
        want: usize,
    },
    /// The module passed memory that is out of bounds.
    #[error("the module passed memory that is out of bounds: {0} bytes at {1}")]
    OutOfBounds(usize, i64),
    /// Something in here is wrong.
    #[error("the transformation has failed: {0}")]
    Internal(String),
}

/// Why a transformation is unavailable for a title. For the viewer who requests it, so it names
/// nothing of the server's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The title's beginning has no tables.
    #[error("the title has no program tables in its first {0} bytes")]
    NoTables(usize),
    /// It has sound, but none in such a language.
    #[error("the title has no audio in {wanted}; it has: {has}")]
    NoSuchAudio {
        /// Languages that were asked for.
        wanted: String,
        /// Languages that there are.
        has: String,
    },
    /// A table of the remaining streams does not fit in its place.
    #[error(
        "the map table of program {program} has {bytes} bytes without the streams that are left out; more than 183 cannot be replaced"
    )]
    TableTooLong {
        /// Its program.
        program: u16,
        /// Bytes of the table.
        bytes: usize,
    },
    /// A time stamp is not in the TS packet in which its PES packet begins.
    #[error("time stamps of PID {pid} lie across TS packets, which cannot be re-stamped")]
    SplitHeader {
        /// The PID.
        pid: u16,
    },
    /// Scrambled data cannot be read.
    #[error("PID {pid} is scrambled: its time stamps cannot be changed")]
    Scrambled {
        /// The PID.
        pid: u16,
    },
}
