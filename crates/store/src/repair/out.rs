//! A file of units being made: written stripe by stripe, hashed on the way, and good only if its BLAKE3 is the promised one.

use std::path::PathBuf;

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::wire::checksum::sum16;

use super::error::RepairError;
use super::reading::StripeSums;
use super::set::{TitleSet, Units};
use super::shared::Made;
use super::work::Work;
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::grid::Grid;

/// A file of units that is being rebuilt.
pub(crate) struct RebuiltFile {
    pub(crate) position: usize,
    pub(crate) units: Units,
    file: DiskFile,
    path: PathBuf,
    hasher: blake3::Hasher,
    written: u64,
    /// The next stripe that is written.
    next_stripe: u32,
    /// Why it cannot be made.
    lost: Option<String>,
    buffer: Vec<u8>,
}

impl RebuiltFile {
    /// Creates the file at `path`, or continues an existing one: keeps the stripes that match their
    /// sums.
    pub(crate) fn open(
        set: &TitleSet,
        position: usize,
        units: Units,
        disk: &Disk,
        path: PathBuf,
        sums: &StripeSums,
        work: &mut Work<'_>,
    ) -> Result<Self, RepairError> {
        let file = disk.open_or_create(&path).map_err(|e| StoreError::write("create", &path, 0, 0, e))?;
        let (hasher, buffer) = (blake3::Hasher::new(), Vec::new());
        let mut out =
            Self { position, units, file, path, hasher, written: 0, next_stripe: 0, lost: None, buffer };
        out.go_on(set, sums, work)?;
        let cut = |e| StoreError::write("cut", &out.path, out.written, 0, e);
        out.file.set_len(out.written).map_err(cut)?;
        Ok(out)
    }

    /// Takes over the stripes that are there and have their sums.
    fn go_on(&mut self, set: &TitleSet, sums: &StripeSums, work: &mut Work<'_>) -> Result<(), RepairError> {
        let path = &self.path;
        let len = self.file.file().metadata().map_err(StoreError::io("look at", path))?.len();
        let step = super::reading::Reading::stripes_at_once(set);
        while self.next_stripe < set.stripes.stripes() {
            let last = set.stripes.stripes().min(self.next_stripe.saturating_add(step));
            // An interrupted write leaves less than a whole batch: its data is taken stripe by
            // stripe.
            let there = |&end: &u32| set.range(self.position, self.units, self.next_stripe..end).end <= len;
            let Some(end) = (self.next_stripe + 1..=last).rev().find(there).filter(|_| len > 0) else {
                return Ok(());
            };
            let stripes = self.next_stripe..end;
            let range = set.range(self.position, self.units, stripes.clone());
            self.buffer.clear();
            self.buffer.resize((range.end - range.start) as usize, 0);
            if work.read(set.slot(self.position), self.file.file(), &mut self.buffer, range.start)?.is_err() {
                return Ok(());
            }
            let expected = sums.read(set, &stripes, work)?;
            for stripe in stripes.clone() {
                let end = set.range(self.position, self.units, stripe..stripe + 1).end;
                let bytes = &self.buffer[(self.written - range.start) as usize..(end - range.start) as usize];
                if !has_sums(set, (self.position, self.units), (stripe, stripes.start), bytes, &expected) {
                    return Ok(());
                }
                self.hasher.update(bytes);
                (self.written, self.next_stripe) = (end, stripe + 1);
            }
        }
        Ok(())
    }

    /// The first stripe that is still to be written; `None` if there is none or the file cannot be made.
    pub(crate) fn next_stripe(&self, set: &TitleSet) -> Option<u32> {
        (self.lost.is_none() && self.next_stripe < set.stripes.stripes()).then_some(self.next_stripe)
    }

    /// Writes what this file has of the stripes in `grid`.
    pub(crate) fn write(
        &mut self,
        set: &TitleSet,
        grid: &Grid,
        work: &mut Work<'_>,
    ) -> Result<(), RepairError> {
        self.buffer.clear();
        for stripe in grid.stripes() {
            if stripe < self.next_stripe || self.lost.is_some() {
                continue;
            }
            for unit in set.units_in(self.position, stripe, self.units) {
                let bytes = set.stored_bytes(stripe, unit);
                if bytes > 0 && !grid.is_whole(stripe, unit) {
                    let what = "too little of it is left on the members";
                    self.lost = Some(format!("stripe {stripe} of the title cannot be restored: {what}"));
                    return Ok(());
                }
                self.buffer.extend_from_slice(&grid.unit(stripe, unit)[..bytes]);
            }
            self.next_stripe = stripe + 1;
        }
        let needed = self.buffer.len() as u64;
        work.writes(needed)?;
        self.file
            .write_all_at(&self.buffer, self.written)
            .map_err(|e| StoreError::write("write", &self.path, self.written, needed, e))?;
        self.hasher.update(&self.buffer);
        self.written += needed;
        Ok(())
    }

    /// Makes the file durable if it matches the ingested data, otherwise returns why it does not.
    pub(crate) fn finish(self, blake3: &str) -> Result<Made, StoreError> {
        if let Some(lost) = self.lost {
            return Ok(Err(lost));
        }
        if self.hasher.finalize().to_hex().as_str() != blake3 {
            let what = "what the members have left does not give what was ingested: its BLAKE3 differs";
            return Ok(Err(what.to_owned()));
        }
        let failed = |e| StoreError::write("make durable", &self.path, self.written, 0, e);
        self.file.sync_all_or_remove().map_err(failed)?;
        Ok(Ok(()))
    }
}

/// Whether all packets of a stripe in a file of units have their sums; `expected` are those of the stripes from `stripes.1` on.
fn has_sums(
    set: &TitleSet,
    (position, units): (usize, Units),
    stripes: (u32, u32),
    mut bytes: &[u8],
    expected: &(Vec<u16>, Vec<u16>),
) -> bool {
    let (stripe, first_stripe) = stripes;
    let (k, m, in_unit) = (set.stripes.k(), set.stripes.m(), set.stripes.unit_packets() as usize);
    for unit in set.units_in(position, stripe, units) {
        let (now, later) = bytes.split_at(set.stored_bytes(stripe, unit).min(bytes.len()));
        let before = (stripe - first_stripe) as usize;
        let sums = match units {
            Units::Data => expected.0.get((before * k + unit) * in_unit..),
            Units::Parity => expected.1.get((before * m + unit - k) * in_unit..),
        };
        let mut packets = now.chunks(DEFAULT_PACKET_BYTES).zip(sums.unwrap_or_default());
        if !packets.all(|(packet, sum)| sum16(packet) == *sum) {
            return false;
        }
        bytes = later;
    }
    true
}
