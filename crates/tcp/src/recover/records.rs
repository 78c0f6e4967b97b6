//! Records of segments in flight, of all connections of a loop, in one slab of blocks.
//!
//! A connection's records are in a chain of blocks, [`RECORDS_IN_BLOCK`] to a block, in sequence
//! order: an acknowledgment walks through neighbours in memory, and a block's header, which counts
//! its records by state, lets a walk pass over it without a look at the records. (A linked node per
//! segment would cost a cache miss for each; a ring per connection would have to be as large as the
//! largest window, or move when it grows.) A connection without anything in flight has no block.

use crate::limits::RECORDS_IN_BLOCK;
use crate::rtt::Tick;
use crate::seq::Seq;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// The receiver has reported that it has the segment (RFC 2018).
pub(crate) const SACKED: u8 = 1;
/// The last transmission of the segment is taken for lost, and it was not sent again since.
pub(crate) const LOST: u8 = 2;
/// The segment was sent more than once.
pub(crate) const RETRANSMITTED: u8 = 4;
/// The segment is longer than usual to find out whether the path takes it.
pub(crate) const MTU_PROBE: u8 = 8;

/// A segment in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    pub(crate) seq: Seq,
    pub(crate) len: u16,
    pub(crate) flags: u8,
    /// Frames with it in the hands of the device.
    pub(crate) in_device: u8,
    pub(crate) first_sent: Tick,
    pub(crate) last_sent: Tick,
}

impl Record {
    pub(crate) fn end(&self) -> Seq {
        self.seq + u32::from(self.len)
    }

    pub(crate) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// In the network, as far as is known.
    pub(crate) fn is_flying(&self) -> bool {
        self.flags & (SACKED | LOST) == 0
    }
}

/// A block of records: `start..open` are acknowledged but in the hands of the device, `open..end` are not acknowledged.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct RecordBlock {
    pub(crate) next: u32,
    /// Where the last record ends.
    pub(crate) end_seq: Seq,
    pub(crate) start: u8,
    pub(crate) open: u8,
    pub(crate) end: u8,
    /// Of `open..end`: how many are in the network.
    pub(crate) flying: u8,
    /// Of `open..end`: how many are lost.
    pub(crate) lost: u8,
    /// Of `start..end`: how many are in the hands of the device.
    pub(crate) device: u8,
    pub(crate) records: [Record; RECORDS_IN_BLOCK],
}

const _: () = assert!(size_of::<Record>() == 16 && size_of::<RecordBlock>() == 256);

impl RecordBlock {
    const EMPTY: Self = Self {
        next: NONE,
        end_seq: Seq(0),
        start: 0,
        open: 0,
        end: 0,
        flying: 0,
        lost: 0,
        device: 0,
        records: [Record {
            seq: Seq(0),
            len: 0,
            flags: 0,
            in_device: 0,
            first_sent: Tick(0),
            last_sent: Tick(0),
        }; RECORDS_IN_BLOCK],
    };

    /// Returns the indices of the records that are not acknowledged.
    pub(crate) fn pending(&self) -> std::ops::Range<usize> {
        usize::from(self.open)..usize::from(self.end)
    }

    /// Indices of all.
    pub(crate) fn all(&self) -> std::ops::Range<usize> {
        usize::from(self.start)..usize::from(self.end)
    }

    pub(crate) fn is_full(&self) -> bool {
        usize::from(self.end) == RECORDS_IN_BLOCK
    }

    /// Recomputes the counts in the header.
    pub(crate) fn recount(&mut self) {
        let pending = &self.records[self.pending()];
        self.flying = pending.iter().filter(|record| record.is_flying()).count() as u8;
        self.lost = pending.iter().filter(|record| record.is(LOST)).count() as u8;
        let all = &self.records[self.all()];
        self.device = all.iter().filter(|record| record.in_device > 0).count() as u8;
        if let Some(last) = all.last() {
            self.end_seq = last.end();
        }
    }
}

/// What happened on all connections of a slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryCounts {
    /// SACK blocks outside of the data in flight: passed over.
    pub ignored_sacks: u64,
    /// Reports of bytes that arrived twice (RFC 2883).
    pub dsacks: u64,
    /// Time-outs at which the receiver had dropped data that it had reported (RFC 2018 section 8).
    pub reneged: u64,
    /// Acknowledgments of bytes that were never sent.
    pub beyond: u64,
    /// Segments found lost.
    pub lost: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Fast recoveries begun.
    pub recoveries: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Retransmission time-outs found spurious.
    pub spurious_timeouts: u64,
    /// Reductions taken back.
    pub undone: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Reductions because of marks by the network.
    pub ecn: u64,
    /// Times that there was no block.
    pub full: u64,
    /// Probes for a larger MTU.
    pub mtu_probes: u64,
    /// Paths that swallowed large segments.
    pub black_holes: u64,
}

/// The slab; shared by all connections of a loop.
#[derive(Debug)]
pub struct Records {
    pub(crate) blocks: Box<[RecordBlock]>,
    free: u32,
    free_blocks: u32,
    /// What happened.
    pub counts: RecoveryCounts,
}

impl Records {
    /// Room for `blocks` blocks of [`RECORDS_IN_BLOCK`] records, 256 bytes each. Allocates here and never again.
    pub fn new(blocks: u32) -> Self {
        let mut all = vec![RecordBlock::EMPTY; blocks as usize].into_boxed_slice();
        for (block, next) in all.iter_mut().zip(1..) {
            block.next = if next < blocks { next } else { NONE };
        }
        let free = if blocks > 0 { 0 } else { NONE };
        Self { blocks: all, free, free_blocks: blocks, counts: RecoveryCounts::default() }
    }

    /// Returns the bytes of `blocks` blocks.
    pub const fn bytes(blocks: u32) -> usize {
        blocks as usize * size_of::<RecordBlock>()
    }

    /// Returns the number of unused blocks.
    pub fn free_blocks(&self) -> u32 {
        self.free_blocks
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        let index = self.free;
        let Some(block) = self.blocks.get_mut(index as usize) else {
            self.counts.full += 1;
            return None;
        };
        self.free = block.next;
        (block.next, block.start, block.open, block.end) = (NONE, 0, 0, 0);
        (block.flying, block.lost, block.device) = (0, 0, 0);
        self.free_blocks -= 1;
        Some(index)
    }

    pub(crate) fn give(&mut self, index: u32) {
        self.blocks[index as usize].next = self.free;
        self.free = index;
        self.free_blocks += 1;
    }

    pub(crate) fn block(&self, index: u32) -> Option<&RecordBlock> {
        self.blocks.get(index as usize)
    }

    pub(crate) fn block_mut(&mut self, index: u32) -> Option<&mut RecordBlock> {
        self.blocks.get_mut(index as usize)
    }
}
