//! A named transformation of one title: bound to its tables, and applied to its extents.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::transform::MAX_TABLE_LOOK_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::pool::ExtentContent;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::rtp::Timeline;

use super::block::{Applied, BindError, PacketBlock, Transform, TransformError};
use super::spec::NamedTransform;
use super::tables::StreamTables;
use crate::blocking::Timeout;
use crate::error::StoreError;
use crate::limits::transform::{MIN_TABLE_LOOK_BYTES, TABLE_READ_BYTES};
use crate::volume::{MediaReader, Volume};

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
