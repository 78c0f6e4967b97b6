//! One connection's segments in flight: the scoreboard (RFC 6675 section 3, RFC 8985 section 5.2).

use millrace_core::prefetch::prefetch_all;

use crate::recover::records::{LOST, NONE, Record, RecordBlock, Records, SACKED};
use crate::sender::Full;
use crate::seq::Seq;

/// Which records of the slab are this connection's, and sums over those that are not acknowledged.
#[derive(Debug)]
pub(crate) struct Board {
    /// First block.
    pub(super) head: u32,
    /// First block with a record that is not acknowledged.
    pub(super) pending: u32,
    /// Last block.
    pub(super) tail: u32,
    /// No block before this one has a record in the hands of the device.
    pub(super) device: u32,
    /// Segments that are not acknowledged cumulatively.
    pub(crate) segments: u32,
    /// Of them: those that the receiver has.
    pub(crate) sacked_segments: u32,
    /// Bytes in the network.
    pub(crate) flying_bytes: u32,
    /// Bytes that the receiver has.
    pub(crate) sacked_bytes: u32,
    /// Bytes lost that were not sent again since.
    pub(crate) lost_bytes: u32,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self {
            head: NONE,
            pending: NONE,
            tail: NONE,
            device: NONE,
            segments: 0,
            sacked_segments: 0,
            flying_bytes: 0,
            sacked_bytes: 0,
            lost_bytes: 0,
        }
    }

    /// Returns the first byte that is still needed, if any is.
    pub(crate) fn first_kept(&self, slab: &Records) -> Option<Seq> {
        let block = slab.block(self.head)?;
        block.records[block.all()].first().map(|record| record.seq)
    }

    /// The first segment that is not acknowledged.
    pub(crate) fn first<'a>(&self, slab: &'a Records) -> Option<&'a Record> {
        let block = slab.block(self.pending)?;
        block.records[block.pending()].first()
    }

    /// The last segment, unless it is acknowledged.
    pub(crate) fn last<'a>(&self, slab: &'a Records) -> Option<&'a Record> {
        let block = slab.block(self.tail)?;
        block.records[block.pending()].last()
    }

    /// Asks for the header of the first block and the first record that is not acknowledged.
    #[inline]
    pub(crate) fn fetch(&self, slab: &Records) {
        if let Some(block) = slab.block(self.pending) {
            prefetch_all(block);
        }
    }

    /// The segment with byte `seq`, unless it is acknowledged.
    pub(crate) fn find<'a>(&self, slab: &'a Records, seq: Seq) -> Option<&'a Record> {
        let mut index = self.pending;
        while let Some(block) = slab.block(index) {
            if block.end_seq.after(seq) {
                let mut records = block.records[block.pending()].iter();
                return records.find(|record| seq.is_within(record.seq, u32::from(record.len)));
            }
            index = block.next;
        }
        None
    }

    /// Whether one more segment can be kept in mind.
    pub(crate) fn has_room(&self, slab: &Records) -> bool {
        slab.free_blocks() > 0 || slab.block(self.tail).is_some_and(|block| !block.is_full())
    }

    /// A new segment was sent.
    pub(crate) fn push(&mut self, slab: &mut Records, record: Record) -> Result<(), Full> {
        if slab.block(self.tail).is_none_or(RecordBlock::is_full) {
            let index = slab.take().ok_or(Full)?;
            match slab.block_mut(self.tail) {
                Some(tail) => tail.next = index,
                None => self.head = index,
            }
            self.tail = index;
        }
        let Some(block) = slab.block_mut(self.tail) else { return Err(Full) };
        block.records[usize::from(block.end)] = record;
        block.end += 1;
        block.flying += 1;
        block.device += u8::from(record.in_device > 0);
        block.end_seq = record.end();
        if self.pending == NONE {
            self.pending = self.tail;
        }
        if self.device == NONE && record.in_device > 0 {
            self.device = self.tail;
        }
        self.segments += 1;
        self.flying_bytes += u32::from(record.len);
        Ok(())
    }

    /// Everything before `ack` is acknowledged: shows each record on the way.
    pub(crate) fn advance(&mut self, slab: &mut Records, ack: Seq, mut each: impl FnMut(&Record)) {
        while let Some(block) = slab.block_mut(self.pending) {
            while block.open < block.end {
                let record = block.records[usize::from(block.open)];
                if record.end().after(ack) {
                    self.release(slab);
                    return;
                }
                block.open += 1;
                self.segments -= 1;
                let len = u32::from(record.len);
                if record.is(SACKED) {
                    self.sacked_segments -= 1;
                    self.sacked_bytes -= len;
                } else if record.is(LOST) {
                    block.lost -= 1;
                    self.lost_bytes -= len;
                } else {
                    block.flying -= 1;
                    self.flying_bytes -= len;
                }
                each(&record);
            }
            self.pending = block.next;
        }
        self.release(slab);
    }

    /// Gives back the blocks at the front that are not needed any more.
    pub(super) fn release(&mut self, slab: &mut Records) {
        while let Some(block) = slab.block_mut(self.head) {
            if block.device == 0 {
                block.start = block.open;
            }
            while block.start < block.open && block.records[usize::from(block.start)].in_device == 0 {
                block.start += 1;
            }
            if block.start < block.end {
                return;
            }
            let next = block.next;
            slab.give(self.head);
            if self.device == self.head {
                self.device = next;
            }
            if self.tail == self.head {
                self.tail = NONE;
            }
            self.head = next;
        }
    }

    /// The receiver has `left..right`: passes each record not known to be there to `each`. Records
    /// that are covered in part are passed over, as a receiver keeps whole segments.
    pub(crate) fn sack(&mut self, slab: &mut Records, left: Seq, right: Seq, mut each: impl FnMut(&Record)) {
        let mut index = self.pending;
        while let Some(block) = slab.block_mut(index) {
            index = block.next;
            if block.end_seq.up_to(left) {
                continue;
            }
            if !block.records[usize::from(block.open)].seq.before(right) {
                return;
            }
            if block.flying + block.lost == 0 {
                continue;
            }
            for at in block.pending() {
                let record = &mut block.records[at];
                if record.seq.before(left) || record.is(SACKED) {
                    continue;
                }
                if record.end().after(right) {
                    break;
                }
                let len = u32::from(record.len);
                if record.is(LOST) {
                    block.lost -= 1;
                    self.lost_bytes -= len;
                } else {
                    block.flying -= 1;
                    self.flying_bytes -= len;
                }
                each(record);
                record.flags = (record.flags | SACKED) & !LOST;
                self.sacked_segments += 1;
                self.sacked_bytes += len;
            }
        }
    }
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
