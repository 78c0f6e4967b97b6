//! Transformations of a title's packets that keep their length, made when an extent is filled and
//! shared by all viewers of the transformed track.
//!
//! ```text
//!   --transform 'deu=select:audio=deu,subtitles=none'
//!        │ spec                                       tables: what the title's beginning says of its programmes
//!        ▼                                                 ▼
//!   Transforms ── NamedTransform ── bind(title) ──► Derivation ── apply(block) ──► the same packets, changed
//!                                                      └── report: blocks, failures, what is to be logged
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`spec`] | what operators write |
//! | [`tables`] | the programmes of a title, from its first bytes |
//! | [`select`] | streams left out: null packets, and program map tables without them |
//! | [`restamp`] | clock, time stamps and continuity counters moved |
//! | [`wasm`] | a module of the operator's |
//! | [`report`] | the outcome |
//!
//! A transformation sees one block at a time, an extent's packets, and keeps nothing from one to the next: extents are filled in any order
//! and more than once. It changes bytes within TS packets; how many there are, how long, and when they leave stays as it is.
//! `docs/design/0028-transformations.md`.

pub mod report;
pub mod restamp;
pub mod select;
pub mod spec;
pub mod tables;
#[cfg(feature = "wasm")]
pub mod wasm;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::limits::transform::MAX_TABLE_LOOK_BYTES;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::ExtentContent;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::rtp::Timeline;

pub use self::report::{Failure, TransformActivity, TransformCounters};
pub use self::select::NULL_PACKET;
pub use self::spec::{NamedTransform, SpecError, Transforms};
pub use self::tables::StreamTables;
use crate::blocking::Timeout;
use crate::error::StoreError;
use crate::limits::transform::{MIN_TABLE_LOOK_BYTES, TABLE_READ_BYTES};
use crate::volume::{MediaReader, Volume};

/// A TS packet.
pub type TsBytes = [u8; TS_PACKET_BYTES];

/// Packets of one extent, in place. Packets that could not be read are not shown.
pub struct PacketBlock<'a> {
    first_packet: u32,
    /// From one packet's header to the next; the last may be short.
    slots: &'a mut [u8],
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

/// Why a title of a volume cannot be transformed.
#[derive(Debug, thiserror::Error)]
pub enum DeriveTitleError {
    /// It cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is not fit for it.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// The beginning of a title: until all tables have come, within bounds.
fn read_head(reader: &mut MediaReader) -> Result<Vec<u8>, StoreError> {
    let bytes = usize::try_from(reader.files().info.bytes).unwrap_or(usize::MAX).min(MAX_TABLE_LOOK_BYTES);
    let mut head = Vec::new();
    while head.len() < bytes && (head.len() < MIN_TABLE_LOOK_BYTES || !StreamTables::are_complete(&head)) {
        let start = head.len();
        head.resize((start + TABLE_READ_BYTES).min(bytes), 0);
        reader.read_exact(start as u64, &mut head[start..])?;
    }
    Ok(head)
}

/// One after the other.
pub struct Chain(pub Vec<Box<dyn Transform>>);

impl Transform for Chain {
    fn apply(&self, block: &mut PacketBlock<'_>) -> Result<Applied, TransformError> {
        self.0.iter().try_fold(Applied::default(), |done, step| {
            let left_out = step.apply(block)?.left_out;
            Ok(Applied { left_out: done.left_out + left_out })
        })
    }
    fn may_fail(&self) -> bool {
        self.0.iter().any(|step| step.may_fail())
    }
    fn is_slow(&self) -> bool {
        self.0.iter().any(|step| step.is_slow())
    }
    fn stamp_offset(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, step| (sum + step.stamp_offset()) % millrace_media::ts_packet::PTS_MODULUS)
    }
}

/// A named transformation of one title.
pub struct Derivation {
    named: Arc<NamedTransform>,
    title: TitleId,
    transform: Chain,
}

impl std::fmt::Debug for Derivation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Derivation")
            .field("named", &self.named.name())
            .field("title", &self.title)
            .finish_non_exhaustive()
    }
}

impl Derivation {
    /// Of the title whose first bytes `head` are, whole TS packets.
    ///
    /// # Errors
    /// [`BindError`]: the title lacks something that the transformation needs.
    pub fn bind(named: &Arc<NamedTransform>, title: TitleId, head: &[u8]) -> Result<Self, BindError> {
        let steps = named.bind(&StreamTables::of(head), head)?;
        Ok(Self::new(named, title, Chain(steps)))
    }

    /// By these steps, in place of those that `named` has.
    pub fn new(named: &Arc<NamedTransform>, title: TitleId, steps: Chain) -> Self {
        Self { named: Arc::clone(named), title, transform: steps }
    }

    /// Of a title of a volume. Reads its beginning.
    ///
    /// # Errors
    /// [`DeriveTitleError`]: the beginning cannot be read, or the title lacks something that the
    /// transformation needs.
    pub fn of_title(
        named: &Arc<NamedTransform>,
        volume: &Volume,
        title: TitleId,
    ) -> Result<Self, DeriveTitleError> {
        let mut reader = MediaReader::open(volume, title)?;
        let (members, home) = (Arc::clone(&reader.files().members), reader.files().home);
        let head = members.ask(home, Timeout::Call, move |_| read_head(&mut reader))??;
        Ok(Self::bind(named, title, &head)?)
    }

    /// Number of the transformation: that of the track.
    pub fn number(&self) -> u8 {
        self.named.number()
    }

    /// [`Transform::is_slow`]
    pub fn is_slow(&self) -> bool {
        self.transform.is_slow()
    }

    /// Changes a block. If that fails it is as it was before, and the failure is reported. `scratch` is kept for its memory. Whether it
    /// has been changed.
    pub fn apply(&self, block: &mut PacketBlock<'_>, scratch: &mut Vec<u8>) -> bool {
        let may_fail = self.transform.may_fail();
        if may_fail {
            scratch.clear();
            scratch.extend_from_slice(block.slots);
        }
        let applied = if may_fail {
            // A block that a panic has left half changed is put back.
            catch_unwind(AssertUnwindSafe(|| self.transform.apply(block))).unwrap_or_else(|_| Err(panicked()))
        } else {
            self.transform.apply(block)
        };
        match applied {
            Ok(applied) => {
                self.named.report.count(applied);
                true
            }
            Err(error) => {
                if may_fail {
                    block.slots.copy_from_slice(scratch);
                }
                self.named.report.failed(self.title, block.first_ts(), error);
                false
            }
        }
    }

    /// The same for an extent's memory: `content` describes it. The records get the sums of the
    /// packets as they are now.
    pub fn apply_to_extent(&self, content: &ExtentContent, extent: &mut [u8], scratch: &mut Vec<u8>) {
        let ExtentContent { layout, first_packet, packets, last_packet_bytes, .. } = *content;
        let (slots, records) = extent.split_at_mut(layout.meta_offset(0, packets));
        let before_last = packets.saturating_sub(1) as usize * layout.slot_bytes();
        let end = before_last + layout.header_bytes() + usize::from(last_packet_bytes);
        let Some(slots) = slots.get_mut(..end) else { return };
        if !self.apply(&mut PacketBlock::new(layout, first_packet, slots, records), scratch) {
            return;
        }
        let records = records.as_chunks_mut::<{ PacketMeta::BYTES }>().0;
        for (slot, record) in slots.chunks(layout.slot_bytes()).zip(records) {
            let meta = PacketMeta::from_bytes(*record);
            if !meta.is_missing() {
                let sum = sum16(&slot[layout.header_bytes()..]);
                *record = PacketMeta::new(sum, meta.flags(), meta.time()).to_bytes();
            }
        }
    }
}

fn panicked() -> TransformError {
    TransformError::Internal("it has panicked".into())
}

/// The RTP timeline of a transformed track: that of the title under another synchronisation source, because other packets with the same
/// numbers come from it (RFC 3550 section 8).
pub fn timeline_of(timeline: Timeline, number: u8) -> Timeline {
    // A multiple of an odd number: different for all of them.
    let distance = (u32::from(number) + 1).wrapping_mul(0x85eb_ca6b);
    Timeline { ssrc: timeline.ssrc.wrapping_add(distance), ..timeline }
}

#[cfg(test)]
#[path = "transform_tests.rs"]
mod tests;
