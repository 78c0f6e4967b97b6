//! The sum of a range of bytes from the prefix sums at the borders of grains and the bytes at its ends.

use std::ops::Range;

use millrace_core::wire::checksum::{add, sum16};

use crate::format::sums::{SUMS_BLOCK_BYTES, SUMS_PER_BLOCK, SumsBlock, SumsError, SumsHeader};

/// Grains as ingest writes them: one TS packet, since every packet size is a multiple of it. Larger grains take less room
/// and leave more bytes at the edges of a range; one of a packet's length is the 2 bytes a packet of NLF.
pub const GRAIN_BYTES: u16 = millrace_core::limits::TS_PACKET_BYTES as u16;

/// Whether two sums stand for the same value: equal, or both a zero.
pub fn congruent(a: u16, b: u16) -> bool {
    a == b || (a == 0 || a == 0xffff) && (b == 0 || b == 0xffff)
}

/// Returns the sum of the data between two prefix sums, not empty: `before` is that of all data
/// before it, `through` that of all data through its end. [`sums`](crate::sums) defines its zeros.
pub fn difference(through: u16, before: u16) -> u16 {
    if through == 0 { 0 } else { add(through, !before) }
}

/// Sum of two pieces one behind the other: `a`, of `a_bytes` bytes, and `b`, summed as if from an even offset.
pub fn join(a: u16, a_bytes: u64, b: u16) -> u16 {
    // Behind an odd number of bytes each byte is in the other half of its word (RFC 1071 section 2 (B)).
    add(a, if a_bytes % 2 == 1 { b.swap_bytes() } else { b })
}

/// The composition of a range of bytes: bytes before the first border of a grain, whole grains,
/// bytes behind the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrainSplit {
    /// Bytes before the first border in the range; all of it, if it has none.
    pub head: Range<u64>,
    /// Whole grains.
    pub grains: Range<u64>,
    /// Bytes behind the last border.
    pub tail: Range<u64>,
}

impl SumsHeader {
    /// Cuts a range of bytes at the borders of grains. The end of the data is a border. `None` if the range runs
    /// backwards or beyond the data.
    pub fn cut(&self, range: &Range<u64>) -> Option<GrainSplit> {
        let (start, end, grain) = (range.start, range.end, u64::from(self.grain_bytes));
        if start > end || end > self.data_bytes {
            return None;
        }
        let first = start.div_ceil(grain);
        let last = if end == self.data_bytes { self.grains() } else { end / grain };
        let at = |grains: u64| (grains * grain).min(self.data_bytes);
        if first > last || start == end {
            return Some(GrainSplit { head: start..end, grains: 0..0, tail: end..end });
        }
        Some(GrainSplit { head: start..at(first), grains: first..last, tail: at(last)..end })
    }

    /// Bytes of the file that hold what [`SumsBlocks::between`] needs for these grains: whole blocks.
    pub fn block_range(&self, grains: &Range<u64>) -> Range<u64> {
        let (block, per_block) = (SUMS_BLOCK_BYTES as u64, SUMS_PER_BLOCK as u64);
        let start = 1 + grains.start / per_block;
        let end = if grains.is_empty() { start } else { 2 + (grains.end - 1) / per_block };
        start * block..end * block
    }
}

impl GrainSplit {
    /// The sum of the range: `grains` is that of its whole grains, `head` and `tail` are the bytes at its edges.
    ///
    /// # Errors
    /// If the edges do not have the lengths given by the cut.
    pub fn sum(&self, head: &[u8], grains: u16, tail: &[u8]) -> Result<u16, SumsError> {
        let odd = |given: &[u8], range: &Range<u64>| {
            let (given, needed) = (given.len() as u64, range.end - range.start);
            (given != needed).then_some(SumsError::Edge { given, needed })
        };
        if let Some(error) = odd(head, &self.head).or_else(|| odd(tail, &self.tail)) {
            return Err(error);
        }
        // Grains are even, and a short one is the last: the bytes behind them are at an even offset
        // from their start.
        let rest = add(grains, sum16(tail));
        Ok(join(sum16(head), head.len() as u64, rest))
    }
}

/// Verified blocks in a row.
#[derive(Clone, Copy, Debug)]
pub struct SumsBlocks<'a> {
    blocks: &'a [[u8; SUMS_BLOCK_BYTES]],
    first_block: u32,
}

impl<'a> SumsBlocks<'a> {
    /// Verifies whole blocks, starting with block number `first_block`. Nothing is allocated.
    ///
    /// # Errors
    /// If one of them is damaged.
    pub fn open(bytes: &'a [u8], first_block: u32) -> Result<Self, SumsError> {
        let (blocks, _) = bytes.as_chunks::<SUMS_BLOCK_BYTES>();
        for (block, number) in blocks.iter().zip(first_block..) {
            SumsBlock::open(block, number)?;
        }
        Ok(Self { blocks, first_block })
    }

    /// Sum of all data before grain `grain`. At the border of two blocks either will do.
    fn before(&self, grain: u64) -> Option<u16> {
        let (block, place) = (grain / SUMS_PER_BLOCK as u64, (grain % SUMS_PER_BLOCK as u64) as usize);
        let index = usize::try_from(block.checked_sub(u64::from(self.first_block))?).ok()?;
        match self.blocks.get(index) {
            Some(block) => Some(SumsBlock::verified(block).before(place)),
            None if place == 0 => {
                let block = self.blocks.get(index.checked_sub(1)?)?;
                Some(SumsBlock::verified(block).before(SUMS_PER_BLOCK))
            }
            None => None,
        }
    }

    /// Sum of grains `from..to`, by the rule of zeros of [`sums`](crate::sums).
    ///
    /// # Errors
    /// If the blocks do not hold both ends.
    pub fn between(&self, from: u64, to: u64) -> Result<u16, SumsError> {
        if from == to {
            return Ok(0);
        }
        let ends = self.before(from).zip(self.before(to)).filter(|_| from < to);
        let (before, through) = ends.ok_or(SumsError::OutOfRange { from, to })?;
        Ok(difference(through, before))
    }
}

#[cfg(test)]
#[path = "sums_tests.rs"]
mod tests;
