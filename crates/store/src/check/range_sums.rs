//! The promises of a title's range sums.

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::wire::checksum::{add, sum16};

use super::report::cause;
use super::title_check::{Records, TitleCheck};
use crate::error::StoreError;
use crate::format::manifest::SUMS_FILE;
use crate::meta::MetaFile;
use crate::sums::{SUMS_PER_BLOCK, SumsBlock, SumsFile, congruent};
use crate::volume::open_sums;

/// Checks what needs no data. Returns the file if its blocks can be used.
pub(super) fn check(title: &mut TitleCheck<'_, '_>, default: Option<&MetaFile>) -> Option<SumsFile> {
    let sums = range_sums_agree_with_manifest(title)?;
    if !range_sum_blocks_are_whole(title, &sums) {
        return None;
    }
    if let Some(default) = default {
        range_sums_agree_with_meta(title, &sums, default);
    }
    Some(sums)
}

fn range_sums_agree_with_manifest(title: &mut TitleCheck<'_, '_>) -> Option<SumsFile> {
    if !title.manifest.has_sums() || !title.has(SUMS_FILE) {
        return None;
    }
    let path = title.dir.join(SUMS_FILE);
    let result = open_sums(&path, &title.manifest.title);
    result.map_err(|error| title.damaged("range_sums_agree_with_manifest", &path, cause(&error))).ok()
}

/// Every block's checksum and number, zeros behind the last sum, and each base the end of the block before. Whether all
/// blocks can be used.
fn range_sum_blocks_are_whole(title: &mut TitleCheck<'_, '_>, sums: &SumsFile) -> bool {
    let promise = "range_sum_blocks_are_whole";
    let (mut bad, mut first_bad) = (0u32, None);
    let mut before = Some(0);
    let (mut broken, mut rest) = (None, sums.header().grains());
    sums.each_block(|number, block| {
        let used = rest.min(SUMS_PER_BLOCK as u64) as usize;
        rest -= used as u64;
        match block {
            Err(error) => {
                bad += 1;
                first_bad.get_or_insert(cause(&error));
                before = None; // what the next block begins with is not known
            }
            Ok(block) => {
                if let Some(what) = contradiction(block, used, before) {
                    broken.get_or_insert(format!("block {number} {what}"));
                }
                before = Some(block.before(used));
            }
        }
    });
    if let Some(first) = &first_bad {
        title.damaged(promise, sums.path(), format!("{bad} damaged blocks, the first: {first}"));
    }
    if let Some(what) = &broken {
        title.damaged(promise, sums.path(), what);
    }
    first_bad.is_none() && broken.is_none()
}

/// Returns the error in a block with `used` sums in use, where the data before it has the sum
/// `before`.
fn contradiction(block: SumsBlock<'_>, used: usize, before: Option<u16>) -> Option<String> {
    if let Some(before) = before.filter(|&before| before != block.base()) {
        return Some(format!("begins at {:04x}; the block before it ends at {before:04x}", block.base()));
    }
    let unused = (used + 1..=SUMS_PER_BLOCK).any(|grains| block.prefix(grains) != 0);
    unused.then(|| "has sums behind the last grain".to_owned())
}

/// The sum of every default-size packet is that of its range.
fn range_sums_agree_with_meta(title: &mut TitleCheck<'_, '_>, sums: &SumsFile, default: &MetaFile) {
    let grain = usize::from(sums.header().grain_bytes);
    if !DEFAULT_PACKET_BYTES.is_multiple_of(grain) {
        return; // then packets have edges inside of grains, which only the data knows
    }
    let (per_packet, mut in_packet, mut packet) = ((DEFAULT_PACKET_BYTES / grain) as u64, 0u64, 0u64);
    let mut records = Records::new(default);
    let (mut sum, mut rest, mut wrong) = (0, sums.header().grains(), None);
    each_grain(sums, |_, grain_sum| {
        (sum, in_packet, rest) = (add(sum, grain_sum), in_packet + 1, rest - 1);
        if in_packet == per_packet || rest == 0 {
            if wrong.is_none() && records.get(packet).is_some_and(|meta| !congruent(meta.sum(), sum)) {
                wrong = Some(packet);
            }
            (sum, in_packet, packet) = (0, 0, packet + 1);
        }
    });
    if let Some(packet) = wrong {
        let what = format!("packet {packet} of 1316 bytes does not match the checksum in the metadata");
        title.damaged("range_sums_agree_with_meta", sums.path(), what);
    }
}

/// Number and sum of each grain in order; grains of damaged blocks are left out.
fn each_grain(sums: &SumsFile, mut with: impl FnMut(u64, u16)) {
    let grains = sums.header().grains();
    sums.each_block(|number, block: Result<SumsBlock<'_>, StoreError>| {
        let Ok(block) = block else { return };
        let first = u64::from(number) * SUMS_PER_BLOCK as u64;
        for place in 0..(grains - first).min(SUMS_PER_BLOCK as u64) as usize {
            let sum = crate::sums::difference(block.prefix(place + 1), block.prefix(place));
            with(first + place as u64, sum);
        }
    });
}

/// Holds the grains of the data, as it goes by, against their sums.
pub(super) struct GrainCheck<'a> {
    sums: &'a SumsFile,
    grain_bytes: usize,
    /// The grain that is not whole yet, and the number of whole ones.
    rest: Vec<u8>,
    grain: u64,
    /// The block's own sum of each of its grains; empty if it cannot be read, which is another promise's finding.
    known: Vec<u16>,
    pub(super) wrong: u64,
    pub(super) first_wrong: u64,
}

impl<'a> GrainCheck<'a> {
    pub(super) fn new(sums: &'a SumsFile) -> Self {
        let grain_bytes = usize::from(sums.header().grain_bytes);
        let rest = Vec::with_capacity(grain_bytes);
        Self { sums, grain_bytes, rest, grain: 0, known: Vec::new(), wrong: 0, first_wrong: 0 }
    }

    pub(super) fn path(&self) -> &std::path::Path {
        self.sums.path()
    }

    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.grain_bytes - self.rest.len()));
            bytes = later;
            if self.rest.is_empty() && now.len() == self.grain_bytes {
                self.close_grain(sum16(now));
                continue;
            }
            self.rest.extend_from_slice(now);
            if self.rest.len() == self.grain_bytes {
                self.end();
            }
        }
    }

    /// Ends the data: a grain that is not whole is the short last one.
    pub(super) fn end(&mut self) {
        if !self.rest.is_empty() {
            let sum = sum16(&self.rest);
            self.rest.clear();
            self.close_grain(sum);
        }
    }

    fn close_grain(&mut self, sum: u16) {
        let place = (self.grain % SUMS_PER_BLOCK as u64) as usize;
        if place == 0 {
            self.known = self.block((self.grain / SUMS_PER_BLOCK as u64) as u32).unwrap_or_default();
        }
        if self.known.get(place).is_some_and(|&known| !congruent(known, sum)) {
            if self.wrong == 0 {
                self.first_wrong = self.grain;
            }
            self.wrong += 1;
        }
        self.grain += 1;
    }

    fn block(&self, number: u32) -> Option<Vec<u16>> {
        let mut block = [0; crate::sums::SUMS_BLOCK_BYTES];
        if number >= self.sums.header().blocks() || self.sums.read_blocks(number, &mut block).is_err() {
            return None;
        }
        let block = SumsBlock::open(&block, number).ok()?;
        let left = self.sums.header().grains() - u64::from(number) * SUMS_PER_BLOCK as u64;
        let places = 0..left.min(SUMS_PER_BLOCK as u64) as usize;
        Some(
            places
                .map(|place| crate::sums::difference(block.prefix(place + 1), block.prefix(place)))
                .collect(),
        )
    }
}
