//! Marks on segments in flight: lost, sent again, given back by the device, cut in two.

use crate::limits::DEVICE_COPIES;
use crate::recover::board::Board;
use crate::recover::records::{LOST, MTU_PROBE, RETRANSMITTED, Record, Records, SACKED};
use crate::rtt::Tick;
use crate::seq::Seq;

/// Result of a search for losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    pub(crate) bytes: u32,
    /// Of them: sent more than once.
    pub(crate) retransmitted_bytes: u32,
    /// Of them: of a probe for a larger MTU.
    pub(crate) mtu_probe_bytes: u32,
    /// How long until the last of those that may be lost are.
    pub(crate) wait_ticks: u32,
}

impl Board {
    /// Marks each segment as lost if `is_lost` returns true; ends where it returns None. It is
    /// called only for segments in the network.
    pub(crate) fn mark_lost(
        &mut self,
        slab: &mut Records,
        mut is_lost: impl FnMut(&Record) -> Option<bool>,
    ) -> Losses {
        let mut found = Losses::default();
        let mut index = self.pending;
        'all: while let Some(block) = slab.blocks.get_mut(index as usize) {
            index = block.next;
            if block.flying == 0 {
                continue;
            }
            for at in block.pending() {
                let record = &mut block.records[at];
                if !record.is_flying() {
                    continue;
                }
                match is_lost(record) {
                    None => break 'all,
                    Some(false) => continue,
                    Some(true) => {}
                }
                let len = u32::from(record.len);
                found.bytes += len;
                found.retransmitted_bytes += if record.is(RETRANSMITTED) { len } else { 0 };
                found.mtu_probe_bytes += if record.is(MTU_PROBE) { len } else { 0 };
                record.flags |= LOST;
                block.flying -= 1;
                block.lost += 1;
                slab.counts.lost += 1;
            }
        }
        self.flying_bytes -= found.bytes;
        self.lost_bytes += found.bytes;
        found
    }

    /// Restores the segments marked as lost: they are in the network after all.
    pub(crate) fn unmark_lost(&mut self, slab: &mut Records) {
        let mut index = self.pending;
        while let Some(block) = slab.block_mut(index) {
            index = block.next;
            if block.lost == 0 {
                continue;
            }
            for at in block.pending() {
                block.records[at].flags &= !LOST;
            }
            block.flying += block.lost;
            block.lost = 0;
        }
        self.flying_bytes += self.lost_bytes;
        self.lost_bytes = 0;
    }

    /// The receiver has dropped data that it had reported: all of this data is lost (RFC 2018
    /// section 8).
    pub(crate) fn forget_sacked(&mut self, slab: &mut Records) {
        let mut index = self.pending;
        while let Some(block) = slab.block_mut(index) {
            index = block.next;
            for at in block.pending() {
                let record = &mut block.records[at];
                if record.is(SACKED) {
                    record.flags = (record.flags & !SACKED) | LOST;
                }
            }
            block.recount();
        }
        self.lost_bytes += self.sacked_bytes;
        (self.sacked_bytes, self.sacked_segments) = (0, 0);
    }

    /// Block and index of the first segment that is lost.
    pub(crate) fn find_lost(&self, slab: &Records) -> Option<(u32, usize)> {
        if self.lost_bytes == 0 {
            return None;
        }
        let mut index = self.pending;
        while let Some(block) = slab.block(index) {
            if block.lost > 0 {
                let at = block.pending().find(|&at| block.records[at].is(LOST))?;
                return Some((index, at));
            }
            index = block.next;
        }
        None
    }

    /// Records that `len` bytes from `seq` on were sent again: their records are in the network
    /// from `now` on. A record that they end in is cut there: its remainder was not sent.
    pub(crate) fn sent_again(&mut self, slab: &mut Records, seq: Seq, len: u16, now: Tick) {
        let end = seq + u32::from(len);
        self.split_at(slab, end);
        let mut index = self.pending;
        while let Some(block) = slab.blocks.get_mut(index as usize) {
            let this = index;
            index = block.next;
            if block.end_seq.up_to(seq) {
                continue;
            }
            if !block.records[usize::from(block.open)].seq.before(end) {
                return;
            }
            for at in block.pending() {
                let record = &mut block.records[at];
                if record.end().up_to(seq) {
                    continue;
                }
                if !record.seq.before(end) {
                    break;
                }
                if record.in_device == 0 {
                    block.device += 1;
                }
                record.in_device = record.in_device.saturating_add(1);
                record.last_sent = now;
                if record.is(LOST) {
                    block.lost -= 1;
                    block.flying += 1;
                    self.lost_bytes -= u32::from(record.len);
                    self.flying_bytes += u32::from(record.len);
                }
                record.flags = (record.flags | RETRANSMITTED) & !(LOST | MTU_PROBE);
                slab.counts.retransmitted += 1;
            }
            self.device_from(slab, this);
        }
    }

    /// The block has something in the hands of the device.
    fn device_from(&mut self, slab: &Records, index: u32) {
        let is_earlier = match (slab.block(index), slab.block(self.device)) {
            (Some(block), Some(first)) => block.end_seq.before(first.end_seq),
            _ => true,
        };
        if is_earlier {
            self.device = index;
        }
    }

    /// The device has given back one frame with each of these bytes.
    pub(crate) fn device_done(&mut self, slab: &mut Records, seq: Seq, len: u16) {
        let end = seq + u32::from(len);
        let mut index = self.device;
        while let Some(block) = slab.block_mut(index) {
            if !block.records[usize::from(block.start)].seq.before(end) {
                break;
            }
            let next = block.next;
            if block.end_seq.after(seq) {
                for at in block.all() {
                    let record = &mut block.records[at];
                    if record.in_device == 0 || record.end().up_to(seq) {
                        continue;
                    }
                    if !record.seq.before(end) {
                        break;
                    }
                    // A count that is at its bound is not known any more: such a record stays until the connection ends.
                    record.in_device -= u8::from(record.in_device < DEVICE_COPIES);
                    block.device -= u8::from(record.in_device == 0);
                }
            }
            index = next;
        }
        while let Some(block) = slab.block(self.device) {
            if block.device > 0 {
                break;
            }
            self.device = block.next;
        }
        self.release(slab);
    }

    /// Whether a record of this block can be cut in two.
    pub(crate) fn may_split(&self, slab: &Records, index: u32) -> bool {
        slab.free_blocks() > 0 || slab.block(index).is_some_and(|block| !block.is_full())
    }

    /// Cuts the record that `seq` lies within in two, if there is room.
    fn split_at(&mut self, slab: &mut Records, seq: Seq) {
        let mut index = self.pending;
        while let Some(block) = slab.block(index) {
            if !block.end_seq.after(seq) {
                index = block.next;
                continue;
            }
            let within = |at: &usize| block.records[*at].end().after(seq);
            let Some(at) = block.pending().find(within) else { return };
            let first = seq.since(block.records[at].seq);
            if first > 0 {
                self.split(slab, index, at, first as u16);
            }
            return;
        }
    }

    /// Cuts a record in two, the first of `len` bytes. False if there is no block for it.
    pub(crate) fn split(&mut self, slab: &mut Records, index: u32, at: usize, len: u16) -> bool {
        let Some(&block) = slab.block(index) else { return false };
        let mut second = block.records[at];
        second.seq += u32::from(len);
        second.len -= len;
        let is_sacked = second.is(SACKED);
        if !block.is_full() {
            let Some(block) = slab.block_mut(index) else { return false };
            block.records.copy_within(at + 1..usize::from(block.end), at + 2);
            block.end += 1;
            block.records[at + 1] = second;
        } else {
            // The records behind the cut go to a block of their own.
            let Some(new) = slab.take() else { return false };
            let rest = block.records.len() - (at + 1);
            if let Some(fresh) = slab.block_mut(new) {
                fresh.next = block.next;
                fresh.records[0] = second;
                fresh.records[1..=rest].copy_from_slice(&block.records[at + 1..]);
                fresh.end = 1 + rest as u8;
                fresh.recount();
            }
            if let Some(old) = slab.block_mut(index) {
                old.next = new;
                old.end = at as u8 + 1;
            }
            if self.tail == index {
                self.tail = new;
            }
        }
        if let Some(block) = slab.block_mut(index) {
            block.records[at].len = len;
            block.recount();
        }
        self.segments += 1;
        self.sacked_segments += u32::from(is_sacked);
        true
    }
}
