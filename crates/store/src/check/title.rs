//! The guarantees of one title: its files, its records, and their consistency with each other.

use std::path::{Path, PathBuf};

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::limits::subtitles::MAX_SUBTITLE_TRACK_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;

use super::{CheckReport, Depth, cause, content, crcs, is_one_of, list, parity, range_sums};
use crate::format::manifest::{INDEX_FILE, MANIFEST_FILE, Manifest, meta_file};
use crate::format::meta::META_BLOCK_BYTES;
use crate::format::superblock::Superblock;
use crate::index::{TIME_STEP_PACKETS, TitleIndex};
use crate::meta::{MetaFile, RECORDS_PER_BLOCK, Record, RecordsFile};
use crate::volume::dirs::{Dirs, read_whole};
use crate::volume::{open_index, open_meta};

const DEFAULT: u64 = DEFAULT_PACKET_BYTES as u64;

/// One title being checked.
pub(super) struct TitleCheck<'a, 'r> {
    pub(super) dir: PathBuf,
    pub(super) manifest: &'a Manifest,
    /// The member's place among those of the title.
    pub(super) position: usize,
    superblock: Option<&'a Superblock>,
    pub(super) report: &'a mut CheckReport<'r>,
    /// Files that are missing or have the wrong length: one finding each is enough.
    broken: Vec<&'a str>,
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

    pub(super) fn run(mut self, depth: Depth) {
        self.placement_is_supported();
        self.title_is_of_this_volume();
        if self.every_file_is_there().is_none() {
            return;
        }
        self.no_other_file_is_there();
        let index = self.index_agrees_with_manifest();
        let metas = self.meta_agrees_with_manifest();
        let whole: Vec<bool> = metas.iter().map(|meta| self.meta_blocks_are_whole(meta)).collect();
        let whole: Vec<&MetaFile> =
            metas.iter().zip(whole).filter_map(|(meta, whole)| whole.then_some(meta)).collect();
        if let Some(default) = whole.iter().find(|meta| u64::from(meta.packet_bytes()) == DEFAULT) {
            if let Some(index) = &index {
                self.time_index_agrees_with_meta(index, default);
                self.access_points_agree_with_meta(index, default);
            }
            for meta in &whole {
                self.packet_sizes_agree(meta, default);
            }
        }
        let default = whole.iter().find(|meta| u64::from(meta.packet_bytes()) == DEFAULT);
        let sums = range_sums::check(&mut self, default.copied());
        let crcs = crcs::check(&mut self);
        self.subtitles_are_whole();
        parity::check(&mut self, default.copied());
        if depth == Depth::Full {
            content::check(&mut self, &metas, sums.as_ref(), crcs.as_ref());
        }
    }

    /// Whether a file is there with its length.
    pub(super) fn has(&self, name: &str) -> bool {
        !self.broken.contains(&name)
    }

    fn placement_is_supported(&mut self) {
        if let Err(error) = self.manifest.placement.geometry().check_supported("manifest") {
            let path = self.dir.join(MANIFEST_FILE);
            self.report.error("placement_is_supported", &path, error, "use the version that made this title");
        }
    }

    fn title_is_of_this_volume(&mut self) {
        let placement = &self.manifest.placement;
        let Some(block) = self.superblock else { return };
        // A member of several may have taken the place of the one that the title was written to.
        let here = placement.members.len() > 1
            || placement.members.iter().any(|member| member.member == block.member);
        if placement.volume != block.volume || !here {
            let what = format!("is of volume {}, not of this one, {}", placement.volume, block.volume);
            let remedy = "nothing needs to be done: the title can be read here";
            self.report.warning("title_is_of_this_volume", &self.dir.join(MANIFEST_FILE), what, remedy);
        }
    }

    /// `None` if the whole title has been removed meanwhile.
    fn every_file_is_there(&mut self) -> Option<()> {
        for file in self.manifest.files_on(self.position) {
            let path = self.dir.join(&file.name);
            let what = match std::fs::metadata(&path) {
                Ok(meta) if meta.is_file() && meta.len() == file.bytes => continue,
                Ok(meta) => format!("is {} bytes long; the manifest promises {}", meta.len(), file.bytes),
                Err(_) if !self.dir.is_dir() => return None,
                Err(error) => format!("cannot be inspected: {error}"),
            };
            self.broken.push(&file.name);
            self.damaged("every_file_is_there", &path, what);
        }
        Some(())
    }

    fn no_other_file_is_there(&mut self) {
        let files = self.manifest.files_on(self.position);
        let mut known: Vec<&str> = files.into_iter().map(|f| f.name.as_str()).collect();
        known.push(MANIFEST_FILE);
        for (name, path) in list(&self.dir).unwrap_or_default() {
            if !is_one_of(&name, &known) {
                let remedy = "delete it: the manifest does not name it, so nothing reads it";
                self.report.warning("no_other_file_is_there", &path, "is not part of the title", remedy);
            }
        }
    }

    fn index_agrees_with_manifest(&mut self) -> Option<TitleIndex> {
        if !self.has(INDEX_FILE) {
            return None;
        }
        let path = self.dir.join(INDEX_FILE);
        let result = open_index(&path, &self.manifest.title);
        result.map_err(|error| self.damaged("index_agrees_with_manifest", &path, cause(&error))).ok()
    }

    fn meta_agrees_with_manifest(&mut self) -> Vec<MetaFile> {
        let title = &self.manifest.title;
        let mut metas = Vec::new();
        for &size in &title.packet_sizes {
            let name = meta_file(size);
            if !self.has(&name) {
                continue;
            }
            let path = self.dir.join(name);
            match open_meta(&path, title, size) {
                Ok(meta) => metas.push(meta),
                Err(error) => self.damaged("meta_agrees_with_manifest", &path, cause(&error)),
            }
        }
        metas
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

    fn time_index_agrees_with_meta(&mut self, index: &TitleIndex, meta: &MetaFile) {
        let mut records = Records::new(meta);
        for (&found, packet) in index.times().iter().zip((0..).step_by(TIME_STEP_PACKETS as usize)) {
            let expected = records.time(packet);
            if expected != Some(found) {
                let what = format!("has packet {packet} at {found}; the metadata has it at {}", at(expected));
                return self.damaged("time_index_agrees_with_meta", &self.dir.join(INDEX_FILE), what);
            }
        }
    }

    fn access_points_agree_with_meta(&mut self, index: &TitleIndex, meta: &MetaFile) {
        let mut records = Records::new(meta);
        for (i, point) in index.access_points().iter().enumerate() {
            let start = records.time(u64::from(point.packet));
            let holder = records.get(point.byte / DEFAULT);
            let what = if start != Some(point.time) {
                format!(
                    "access point {i} starts at {}; the metadata has its packet at {}",
                    point.time,
                    at(start)
                )
            } else if !holder.is_some_and(PacketMeta::is_random_access) {
                format!(
                    "access point {i} at byte {} lies in a packet without the random access flag",
                    point.byte
                )
            } else {
                continue;
            };
            return self.damaged("access_points_agree_with_meta", &self.dir.join(INDEX_FILE), what);
        }
    }

    /// A packet of another size is sent between the default-size packets around its first byte.
    fn packet_sizes_agree(&mut self, meta: &MetaFile, default: &MetaFile) {
        let duration = self.manifest.title.duration;
        let (mut records, mut default) = (Records::new(meta), Records::new(default));
        for packet in 0..u64::from(meta.packets()) {
            let byte = packet * u64::from(meta.packet_bytes());
            let found = records.time(packet).unwrap_or_default();
            let before = default.time(byte / DEFAULT).unwrap_or(duration);
            let after = default.time(byte.div_ceil(DEFAULT)).unwrap_or(duration);
            if !(before..=after).contains(&found) {
                let what = format!(
                    "packet {packet} is at {found}; packets of 1316 bytes around it: {before} and {after}"
                );
                return self.damaged("packet_sizes_agree", meta.path(), what);
            }
        }
    }

    /// They are small, so a quick check reads them too.
    fn subtitles_are_whole(&mut self) {
        for track in &self.manifest.title.subtitles {
            let Some(entry) = self.manifest.file(&track.file).filter(|entry| self.has(&entry.name)) else {
                continue;
            };
            let path = self.dir.join(&track.file);
            let what = match read_whole(&path, MAX_SUBTITLE_TRACK_BYTES as u64 * 2) {
                Ok(bytes) if blake3::hash(&bytes).to_hex().as_str() == entry.blake3 => continue,
                Ok(_) => "is not what it was when it came: its BLAKE3 differs".to_owned(),
                Err(error) => cause(&error),
            };
            let remedy = match self.manifest.placement.m {
                0 => format!(
                    "add them again: millrace add --subtitles {} {}=FILE",
                    self.manifest.title.name, track.label
                ),
                _ => remedy(self.manifest),
            };
            self.report.error("subtitles_are_whole", &path, what, remedy);
        }
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
