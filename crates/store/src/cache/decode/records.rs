//! Records and CRCs of packets from the copies received: from the first good copy, from several
//! copies with different damaged blocks, and without the blocks that have no good copy.

use std::ops::Range;

use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;

use super::results::Results;
use crate::cache::crcs::Crcs;
use crate::cache::order::Role;
use crate::meta::{META_BLOCK_BYTES, MetaFile, RECORDS_PER_BLOCK};
use crate::sums::congruent;

/// Records that follow one another.
#[derive(Default)]
pub(in crate::cache) struct Records {
    metas: Vec<PacketMeta>,
    /// Whether each could be read; empty: they all could.
    recorded: Vec<bool>,
}

impl Records {
    /// Takes `count` records starting at `first` from the data received. Returns whether all of
    /// them are there.
    pub(in crate::cache) fn read(
        &mut self,
        (first, count): (u32, u32),
        results: Results<'_>,
        role: Role,
    ) -> bool {
        let Self { metas, recorded } = self;
        recorded.clear();
        metas.clear();
        metas.resize(count as usize, PacketMeta::default());
        let block = MetaFile::block_of(first);
        count == 0
            || results.of(role).any(|(_, bytes)| MetaFile::decode(bytes, block, first, metas).is_ok())
            || self.read_blocks(first, results, role)
    }

    /// The same, each block of them from the first copy in which it is good.
    fn read_blocks(&mut self, first: u32, results: Results<'_>, role: Role) -> bool {
        let (mut next, mut rest) = (first, &mut self.metas[..]);
        while !rest.is_empty() {
            let in_block = (RECORDS_PER_BLOCK - next % RECORDS_PER_BLOCK) as usize;
            let (now, later) = rest.split_at_mut(in_block.min(rest.len()));
            let block = MetaFile::block_of(next);
            let at = (block - MetaFile::block_of(first)) as usize * META_BLOCK_BYTES;
            let mut copies = results.of(role).filter_map(|(_, bytes)| bytes.get(at..at + META_BLOCK_BYTES));
            let is_good = copies.any(|bytes| MetaFile::decode(bytes, block, next, now).is_ok());
            self.recorded.resize(self.recorded.len() + now.len(), is_good);
            next += now.len() as u32;
            rest = later;
        }
        self.recorded.iter().all(|recorded| *recorded)
    }

    /// Record number `at` of these.
    pub(in crate::cache) fn get(&self, at: usize) -> Option<PacketMeta> {
        self.metas.get(at).filter(|_| self.recorded.get(at).is_none_or(|recorded| *recorded)).copied()
    }

    /// From now on all count as read, also those that could not be: they have the time of the packet, but neither sum nor flags.
    pub(in crate::cache) fn make_up(&mut self, first: u32, time_of: impl Fn(u32) -> MediaTicks) {
        make_up(time_of, first, &mut self.metas, &self.recorded);
        self.recorded.clear();
    }

    /// Whether bytes are those of a packet: record number `at` of these, CRC number `packet`. They have their sum and their CRC, as far
    /// as these are known. `None`: neither is known.
    pub(in crate::cache) fn prove(
        &self,
        at: usize,
        crcs: &Crcs,
        packet: u32,
        sum: u16,
        bytes: &[u8],
    ) -> Option<bool> {
        let by_sum = self.get(at).map(|meta| congruent(sum, meta.sum()));
        let by_crc = crcs.prove(packet, bytes);
        by_sum.or(by_crc).map(|_| by_sum != Some(false) && by_crc != Some(false))
    }
}

/// The blocks that lie at `range` of a file, each from the first copy in which it is good by its number; zeros where it is in none.
pub(in crate::cache) fn best_blocks(
    results: Results<'_>,
    role: Role,
    range: &Range<u64>,
    is_good: impl Fn(&[u8], u32) -> bool,
) -> Vec<u8> {
    let mut best = vec![0; (range.end - range.start) as usize];
    // The file begins with its header.
    let first = (range.start / META_BLOCK_BYTES as u64).saturating_sub(1) as u32;
    for (index, (block, number)) in best.chunks_exact_mut(META_BLOCK_BYTES).zip(first..).enumerate() {
        let at = index * META_BLOCK_BYTES;
        let mut copies = results.of(role).filter_map(|(_, bytes)| bytes.get(at..at + META_BLOCK_BYTES));
        if let Some(good) = copies.find(|bytes| is_good(bytes, number)) {
            block.copy_from_slice(good);
        }
    }
    best
}

/// CRCs from the first copy that is good; whether there is one.
pub(in crate::cache) fn load_crcs(
    crcs: &mut Crcs,
    (first, count): (u32, u32),
    results: Results<'_>,
    role: Role,
) -> bool {
    crcs.load(&(first..first + count), results.of(role).map(|(_, bytes)| bytes))
}

/// Makes up the records that are not there: no sum, no flags, and the time that the index gives, between the times around them.
pub(in crate::cache) fn make_up(
    time_of: impl Fn(u32) -> MediaTicks,
    first: u32,
    metas: &mut [PacketMeta],
    recorded: &[bool],
) {
    let mut before = MediaTicks(0);
    for ((packet, meta), recorded) in (first..).zip(&mut *metas).zip(recorded) {
        if !recorded {
            *meta = PacketMeta::new(0, 0, time_of(packet).max(before));
        }
        before = meta.time();
    }
    let mut after = MediaTicks(PacketMeta::MAX_TICKS);
    for (meta, recorded) in metas.iter_mut().zip(recorded).rev() {
        if !recorded {
            *meta = PacketMeta::new(0, 0, meta.time().min(after));
        }
        after = meta.time();
    }
}
