//! The guarantees of one title: its files, its records, and their consistency with each other.

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::limits::subtitles::MAX_SUBTITLE_TRACK_BYTES;
use millrace_core::packet::PacketMeta;

use super::report::{Depth, cause, is_one_of, list};
use super::title_check::{Records, TitleCheck, at, remedy};
use super::{content, crcs, parity, range_sums};
use crate::dirs::read_whole;
use crate::format::manifest::{INDEX_FILE, MANIFEST_FILE, meta_file};
use crate::index::{TIME_STEP_PACKETS, TitleIndex};
use crate::meta::MetaFile;
use crate::volume::{open_index, open_meta};

const DEFAULT: u64 = DEFAULT_PACKET_BYTES as u64;

impl TitleCheck<'_, '_> {
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
}
