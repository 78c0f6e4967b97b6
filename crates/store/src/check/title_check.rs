//! One title being checked, and helpers for the checks of its files.

use std::path::{Path, PathBuf};

use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;

use super::report::{CheckReport, cause};
use crate::dirs::Dirs;
use crate::format::manifest::Manifest;
use crate::format::meta::META_BLOCK_BYTES;
use crate::format::superblock::Superblock;
use crate::meta::{MetaFile, RECORDS_PER_BLOCK, Record, RecordsFile};

/// One title being checked.
pub(super) struct TitleCheck<'a, 'r> {
    pub(super) dir: PathBuf,
    pub(super) manifest: &'a Manifest,
    /// The member's place among those of the title.
    pub(super) position: usize,
    pub(super) superblock: Option<&'a Superblock>,
    pub(super) report: &'a mut CheckReport<'r>,
    /// Files that are missing or have the wrong length: one finding each is enough.
    pub(super) broken: Vec<&'a str>,
}

impl<'a, 'r> TitleCheck<'a, 'r> {
    pub(super) fn new(
        dirs: &Dirs,
        superblock: Option<&'a Superblock>,
        manifest: &'a Manifest,
        position: usize,
        report: &'a mut CheckReport<'r>,
    ) -> Self {
        let dir = dirs.title(manifest.title.id);
        Self { dir, manifest, position, superblock, report, broken: Vec::new() }
    }

    /// Whether a file is there with its length.
    pub(super) fn has(&self, name: &str) -> bool {
        !self.broken.contains(&name)
    }

    /// Every block's checksum and number, zeros behind the last record, media times that never run back nor beyond the
    /// duration. Whether all blocks can be read.
    pub(super) fn meta_blocks_are_whole(&mut self, meta: &MetaFile) -> bool {
        let promise = "meta_blocks_are_whole";
        let mut records = vec![PacketMeta::default(); RECORDS_PER_BLOCK as usize];
        let (mut bad_blocks, mut first_bad) = (0u32, None);
        let (mut last, mut runs_back) = (MediaTicks(0), None);
        for first in (0..meta.packets()).step_by(RECORDS_PER_BLOCK as usize) {
            let records = &mut records[..(meta.packets() - first).min(RECORDS_PER_BLOCK) as usize];
            if let Err(error) = meta.read(first, records) {
                bad_blocks += 1;
                first_bad.get_or_insert(cause(&error));
                continue;
            }
            for (record, packet) in records.iter().zip(first..) {
                if record.time() < last {
                    runs_back.get_or_insert(packet);
                }
                last = record.time();
            }
        }
        if let Some(first) = first_bad {
            self.damaged(promise, meta.path(), format!("{bad_blocks} damaged blocks, the first: {first}"));
            return false;
        }
        if let Some(what) = unused_records(meta) {
            self.damaged(promise, meta.path(), what);
        }
        if let Some(packet) = runs_back {
            self.damaged(promise, meta.path(), format!("media time runs back at packet {packet}"));
        }
        if last > self.manifest.title.duration {
            self.damaged(
                promise,
                meta.path(),
                format!("the last packet is at {last}, beyond the title's end"),
            );
        }
        true
    }

    pub(super) fn damaged(&mut self, promise: &'static str, path: &Path, what: impl std::fmt::Display) {
        let remedy = remedy(self.manifest);
        self.report.error(promise, path, what, remedy);
    }
}

/// What to do about a damaged title.
pub(super) fn remedy(manifest: &Manifest) -> String {
    if manifest.placement.m > 0 {
        return "millrace scrub repairs it, if enough is left on the members".to_owned();
    }
    format!("remove title {} and add {} again", manifest.title.name, manifest.title.source.path.display())
}

/// A time for people.
pub(super) fn at(time: Option<MediaTicks>) -> String {
    time.map_or("no place".to_owned(), |time| time.to_string())
}

/// Records one by one, read some blocks at a time: for walks that go mostly forward.
pub(super) struct Records<'a> {
    meta: &'a MetaFile,
    first: u64,
    records: Vec<PacketMeta>,
}

impl<'a> Records<'a> {
    /// Records read at a time.
    const STEP: u64 = 16 * RECORDS_PER_BLOCK as u64;

    pub(super) fn new(meta: &'a MetaFile) -> Self {
        Self { meta, first: 0, records: Vec::new() }
    }

    /// `None` beyond the end, or if it cannot be read any more.
    pub(super) fn get(&mut self, packet: u64) -> Option<PacketMeta> {
        let packets = u64::from(self.meta.packets());
        if packet >= packets {
            return None;
        }
        if packet < self.first || packet >= self.first + self.records.len() as u64 {
            self.first = packet - packet % Self::STEP;
            self.records.resize((packets - self.first).min(Self::STEP) as usize, PacketMeta::default());
            if self.meta.read(self.first as u32, &mut self.records).is_err() {
                self.records.clear();
                return None;
            }
        }
        self.records.get((packet - self.first) as usize).copied()
    }

    pub(super) fn time(&mut self, packet: u64) -> Option<MediaTicks> {
        self.get(packet).map(PacketMeta::time)
    }
}

/// Whether the last block has anything behind the last record.
pub(super) fn unused_records<R: Record>(meta: &RecordsFile<R>) -> Option<String> {
    use std::os::unix::fs::FileExt;
    let used = (meta.packets() % R::PER_BLOCK) as usize;
    if used == 0 {
        return None;
    }
    let mut block = [0; META_BLOCK_BYTES];
    let start = meta.header().file_bytes() - META_BLOCK_BYTES as u64;
    if let Err(error) = meta.file().read_exact_at(&mut block, start) {
        return Some(format!("cannot be read: {error}"));
    }
    let unused = &block[used * R::LENGTH..R::PER_BLOCK as usize * R::LENGTH];
    unused.iter().any(|&byte| byte != 0).then(|| "has records behind the last packet's".to_owned())
}
