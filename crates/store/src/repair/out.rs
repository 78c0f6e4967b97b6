//! A file of units being made: written row by row, hashed on the way, and good only if its BLAKE3 is the promised one.

use std::path::PathBuf;

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::wire::checksum::sum16;

use super::RepairError;
use super::grid::Grid;
use super::reading::RowSums;
use super::set::{TitleSet, Units};
use super::work::Work;
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;

/// The file.
pub(crate) struct Out {
    pub(crate) position: usize,
    pub(crate) units: Units,
    file: DiskFile,
    path: PathBuf,
    hasher: blake3::Hasher,
    written: u64,
    /// The next row that is written.
    next_row: u32,
    /// Why it cannot be made.
    lost: Option<String>,
    buffer: Vec<u8>,
}

impl Out {
    /// Makes the file at `path`, or goes on with what is there: as many rows of it as have their sums.
    pub(crate) fn open(
        set: &TitleSet,
        position: usize,
        units: Units,
        disk: &Disk,
        path: PathBuf,
        sums: &RowSums,
        work: &mut Work<'_>,
    ) -> Result<Self, RepairError> {
        let file = disk.open_or_create(&path).map_err(|e| StoreError::write("create", &path, 0, 0, e))?;
        let (hasher, buffer) = (blake3::Hasher::new(), Vec::new());
        let mut out =
            Self { position, units, file, path, hasher, written: 0, next_row: 0, lost: None, buffer };
        out.go_on(set, sums, work)?;
        let cut = |e| StoreError::write("cut", &out.path, out.written, 0, e);
        out.file.set_len(out.written).map_err(cut)?;
        Ok(out)
    }

    /// Takes over the rows that are there and have their sums.
    fn go_on(&mut self, set: &TitleSet, sums: &RowSums, work: &mut Work<'_>) -> Result<(), RepairError> {
        let path = &self.path;
        let len = self.file.file().metadata().map_err(StoreError::io("look at", path))?.len();
        let step = super::reading::Reading::rows_at_once(set);
        while self.next_row < set.rows.rows() {
            let rows = self.next_row..set.rows.rows().min(self.next_row.saturating_add(step));
            let range = set.range(self.position, self.units, rows.clone());
            if range.end > len || len == 0 {
                return Ok(());
            }
            self.buffer.clear();
            self.buffer.resize((range.end - range.start) as usize, 0);
            if work.read(set.slot(self.position), self.file.file(), &mut self.buffer, range.start)?.is_err() {
                return Ok(());
            }
            let expected = sums.read(set, &rows, work)?;
            for row in rows.clone() {
                let end = set.range(self.position, self.units, row..row + 1).end;
                let bytes = &self.buffer[(self.written - range.start) as usize..(end - range.start) as usize];
                if !has_sums(set, (self.position, self.units), (row, rows.start), bytes, &expected) {
                    return Ok(());
                }
                self.hasher.update(bytes);
                (self.written, self.next_row) = (end, row + 1);
            }
        }
        Ok(())
    }

    /// The first row that is still to be written; `None` if there is none or the file cannot be made.
    pub(crate) fn next_row(&self, set: &TitleSet) -> Option<u32> {
        (self.lost.is_none() && self.next_row < set.rows.rows()).then_some(self.next_row)
    }

    /// Writes what this file has of the rows in `grid`.
    pub(crate) fn write(
        &mut self,
        set: &TitleSet,
        grid: &Grid,
        work: &mut Work<'_>,
    ) -> Result<(), RepairError> {
        self.buffer.clear();
        for row in grid.rows() {
            if row < self.next_row || self.lost.is_some() {
                continue;
            }
            for unit in set.units_in(self.position, row, self.units) {
                let bytes = set.stored_bytes(row, unit);
                if bytes > 0 && !grid.is_whole(row, unit) {
                    let what = "too little of it is left on the members";
                    self.lost = Some(format!("row {row} of the title cannot be restored: {what}"));
                    return Ok(());
                }
                self.buffer.extend_from_slice(&grid.unit(row, unit)[..bytes]);
            }
            self.next_row = row + 1;
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

    /// Makes the file durable if it is what was ingested, else says why not.
    pub(crate) fn finish(self, blake3: &str) -> Result<Result<(), String>, StoreError> {
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

/// Whether all packets of a row in a file of units have their sums; `expected` are those of the rows from `rows.1` on.
fn has_sums(
    set: &TitleSet,
    (position, units): (usize, Units),
    rows: (u32, u32),
    mut bytes: &[u8],
    expected: &(Vec<u16>, Vec<u16>),
) -> bool {
    let (row, first_row) = rows;
    let (k, m, in_unit) = (set.rows.k(), set.rows.m(), set.rows.unit_packets() as usize);
    for unit in set.units_in(position, row, units) {
        let (now, later) = bytes.split_at(set.stored_bytes(row, unit).min(bytes.len()));
        let before = (row - first_row) as usize;
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
