//! `manifest.mrm`: the description of a title, the placement of its units, and the BLAKE3 of each
//! of its files. Written last; a title without a valid manifest does not exist.
//!
//! The body is JSON, so that a person can read it; the frame's checksum protects it like any other record.

use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_TITLE_PACKETS, TS_PACKET_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use serde::{Deserialize, Serialize};

use super::frame::{self, FileKind};
use super::superblock::Geometry;
use super::title_info::TitleInfo;
use super::{FormatError, Uuid, json};
use crate::limits::MAX_SOURCE_COPIES;
pub use crate::naming::is_slug;
use crate::naming::title_text;
use crate::stripes::StripeLayout;

const RECORD: &str = "manifest";

/// Name of a title's manifest.
pub const MANIFEST_FILE: &str = "manifest.mrm";
/// Name of a title's data file, if it lies on one member.
pub const DATA_FILE: &str = "data.ts";
/// Name of a member's data units of a title that lies on several members.
pub const DATA_UNITS_FILE: &str = "data.mru";
/// Name of a member's parity units.
pub const PARITY_UNITS_FILE: &str = "parity.mru";
/// Name of the sums and times of all parity packets of a title.
pub const PARITY_META_FILE: &str = "parity.mrp";
/// Name of a title's index.
pub const INDEX_FILE: &str = "index.mri";

/// Name of a title's range sums; titles of older versions have none.
pub const SUMS_FILE: &str = "sums.mrr";

/// Name of the CRCs of a title's packets of the default size; titles of older versions have none.
pub const CRC_FILE: &str = "crcs.mrc";
/// Name of the CRCs of its parity packets: a title with parity has both or none.
pub const PARITY_CRC_FILE: &str = "parity.mrc";

/// Prefix of the names of subtitle files. The track's label and a part of the text's hash follow
/// it.
pub const SUBTITLES_PREFIX: &str = "subtitles-";
/// Suffix of the names of subtitle files.
pub const SUBTITLES_SUFFIX: &str = ".vtt";

/// Name of the metadata file for packets of `packet_bytes`.
pub fn meta_file(packet_bytes: u16) -> String {
    format!("meta-{packet_bytes}.mrp")
}

/// A title's manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The properties of the title.
    pub title: TitleInfo,
    /// Where its units lie.
    pub placement: Placement,
    /// Every other file of the title that is the same on all its members, by name in ascending order.
    pub files: Vec<FileEntry>,
}

/// Where a title's units lie in its volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The volume.
    #[serde(with = "json::uuid")]
    pub volume: Uuid,
    /// Data units in a stripe.
    pub k: u16,
    /// Parity units in a stripe.
    pub m: u16,
    /// Media packets of the default size in a unit.
    pub unit_packets: u32,
    /// Stripes.
    #[serde(rename = "rows")]
    pub stripes: u64,
    /// Which members hold units of this title.
    pub members: Vec<MemberPlacement>,
}

/// A member's share of a title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberPlacement {
    /// Its place among the members of the volume.
    pub index: u16,
    /// The member.
    #[serde(with = "json::uuid")]
    pub member: Uuid,
    /// Data and parity units of this title on it.
    pub units: u64,
    /// The files of a title on several members that only this one has: `data.mru`, and `parity.mru` if there is parity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileEntry>,
}

/// A file of a title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name in the title's directory.
    pub name: String,
    /// Length.
    pub bytes: u64,
    /// BLAKE3 of the whole file, 64 hexadecimal digits.
    pub blake3: String,
}

impl Placement {
    /// Of a title of `bytes` on these members of a volume, without the members' own files.
    pub fn new(volume: Uuid, members: &[Uuid], geometry: Geometry, bytes: u64) -> Self {
        let packets = bytes.div_ceil(DEFAULT_PACKET_BYTES as u64);
        let units = |position| match StripeLayout::new(&geometry, bytes) {
            Some(stripes) if !geometry.is_single() => {
                let files = [stripes.data_file_bytes(position), stripes.parity_file_bytes(position)];
                files.iter().map(|bytes| bytes.div_ceil(stripes.unit_bytes() as u64)).sum()
            }
            _ => packets.div_ceil(u64::from(geometry.unit_packets.max(1))),
        };
        let member = |(position, member): (usize, &Uuid)| MemberPlacement {
            index: position as u16,
            member: *member,
            units: units(position),
            files: Vec::new(),
        };
        Self {
            volume,
            k: geometry.k,
            m: geometry.m,
            unit_packets: geometry.unit_packets,
            stripes: geometry.stripes(packets.min(MAX_TITLE_PACKETS) as u32),
            members: members.iter().enumerate().map(member).collect(),
        }
    }

    /// Layout of the stripes.
    pub fn geometry(&self) -> Geometry {
        let members = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        Geometry { k: self.k, m: self.m, unit_packets: self.unit_packets, members }
    }
}

impl MemberPlacement {
    /// The entry of a file that only this member has.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|f| f.name == name)
    }
}

impl Manifest {
    /// The whole file.
    pub fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_vec_pretty(self).expect("a manifest has only text keys and finite numbers");
        // What older programs can read is written so that they do.
        let version = match (self.has_crcs(), self.placement.geometry().is_single()) {
            _ if !self.title.subtitles.is_empty() => FileKind::Manifest.version(),
            (true, _) => 4,
            (false, true) => 2,
            (false, false) => 3,
        };
        [&frame::seal_as(FileKind::Manifest, version, &body)[..], &body].concat()
    }

    /// From the whole file, checked for contradictions. A placement this version cannot serve is decoded too:
    /// [`Geometry::check_supported`] decides.
    pub fn decode(file: &[u8]) -> Result<Self, FormatError> {
        let body = frame::open(FileKind::Manifest, file)?;
        let manifest: Self = serde_json::from_slice(body).map_err(|e| {
            FormatError::value(RECORD, "body", format!("not a manifest ({e})"), "the JSON of a manifest")
        })?;
        manifest.validate()?;
        Ok(manifest)
    }

    /// The entry of a file.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|f| f.name == name)
    }

    /// The stripes that the title lies in; `None` if it is one plain file, or if its placement makes no sense.
    pub fn stripes(&self) -> Option<StripeLayout> {
        let geometry = self.placement.geometry();
        if geometry.is_single() { None } else { StripeLayout::new(&geometry, self.title.bytes) }
    }

    /// All files beside the manifest that the member at `position` of the title must have, by name in ascending order.
    pub fn files_on(&self, position: usize) -> Vec<&FileEntry> {
        let own = self.placement.members.get(position).map_or(&[][..], |member| &member.files);
        let mut files: Vec<&FileEntry> = self.files.iter().chain(own).collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        files
    }

    /// Whether the title has range sums.
    pub fn has_sums(&self) -> bool {
        self.file(SUMS_FILE).is_some()
    }

    /// Whether there are CRCs of the title's packets, of media and parity.
    pub fn has_crcs(&self) -> bool {
        self.file(CRC_FILE).is_some()
    }

    /// Names of the files beside the manifest that every member with this title must have; it may have [`SUMS_FILE`] and
    /// [`Manifest::crc_files`] too.
    pub fn expected_files(title: &TitleInfo, geometry: &Geometry) -> Vec<String> {
        let mut names = vec![INDEX_FILE.to_owned()];
        names.extend(title.packet_sizes.iter().map(|&size| meta_file(size)));
        if geometry.members == 1 {
            names.push(DATA_FILE.to_owned());
            names.extend((geometry.m > 0).then(|| PARITY_UNITS_FILE.to_owned()));
        }
        names.extend((geometry.m > 0).then(|| PARITY_META_FILE.to_owned()));
        names.sort();
        names
    }

    /// Names of the files of CRCs of a title that has them.
    pub fn crc_files(geometry: &Geometry) -> impl Iterator<Item = &'static str> {
        [CRC_FILE].into_iter().chain((geometry.m > 0).then_some(PARITY_CRC_FILE))
    }

    /// Refuses a manifest that contradicts itself.
    pub fn validate(&self) -> Result<(), FormatError> {
        self.validate_title()?;
        self.validate_placement()?;
        self.validate_files()
    }

    fn validate_title(&self) -> Result<(), FormatError> {
        let t = &self.title;
        let bad = |field, found: &dyn std::fmt::Display, expected: &str| {
            Err(FormatError::value(RECORD, field, found, expected))
        };
        match &t.derived {
            Some(derived) if !derived.may_be_called(&t.name) => {
                let expected = format!("the parent's name and @{}", derived.kind);
                return bad("name", &format_args!("{:.100?}", t.name), &expected);
            }
            None if !is_slug(&t.name) => {
                return bad("name", &format_args!("{:.100?}", t.name), "a-z 0-9 - _ . and not a dot first");
            }
            _ => {}
        }
        if let (Some(_), Some(name)) = (t.derived, t.rendition) {
            return bad("rendition", &name, "none of its own in a derived title");
        }
        if t.title.as_ref().is_some_and(|title| title.is_empty() || title_text(title) != *title) {
            return bad("title", &format_args!("{:.100?}", t.title), "one line of text that can be seen");
        }
        if t.origin.blake3.as_ref().is_some_and(|blake3| !is_blake3(blake3)) {
            return bad(
                "source blake3",
                &format_args!("{:.100?}", t.origin.blake3),
                "64 hexadecimal digits in lower case",
            );
        }
        if t.origin.copies.len() > MAX_SOURCE_COPIES {
            return bad("copies", &t.origin.copies.len(), &format!("at most {MAX_SOURCE_COPIES}"));
        }
        if t.bytes == 0 || !t.bytes.is_multiple_of(TS_PACKET_BYTES as u64) {
            return bad("bytes", &t.bytes, "a multiple of 188 above 0");
        }
        let packets = t.bytes.div_ceil(DEFAULT_PACKET_BYTES as u64);
        if u64::from(t.packets) != packets || packets > MAX_TITLE_PACKETS {
            return bad("packets", &t.packets, &packets.to_string());
        }
        let ascending = t.packet_sizes.windows(2).all(|w| w[0] < w[1]);
        let valid = t.packet_sizes.iter().all(|&size| WireLayout::new(usize::from(size)).is_some());
        if !ascending || !valid || !t.packet_sizes.contains(&(DEFAULT_PACKET_BYTES as u16)) {
            return bad(
                "packet sizes",
                &format_args!("{:?}", t.packet_sizes),
                "ascending multiples of 188 with 1316",
            );
        }
        for size in &t.packet_sizes {
            if t.bytes.div_ceil(u64::from(*size)) > MAX_TITLE_PACKETS {
                return bad("packets", &t.bytes.div_ceil(u64::from(*size)), "fewer than 2^32");
            }
        }
        self.validate_subtitles()?;
        if t.duration.0 > PacketMeta::MAX_TICKS {
            return bad("duration", &t.duration.0, "less than 2^40 ticks");
        }
        if !is_blake3(&t.blake3) {
            return bad("blake3", &format_args!("{:.100?}", t.blake3), "64 hexadecimal digits in lower case");
        }
        Ok(())
    }

    /// Checks that labels ascend and that file names are plain names, so that no path leads out of
    /// the title's directory.
    fn validate_subtitles(&self) -> Result<(), FormatError> {
        let tracks = &self.title.subtitles;
        let bad = |field, found: &str, expected| {
            Err(FormatError::value(RECORD, field, format!("{found:.100?}"), expected))
        };
        if let Some(two) = tracks.windows(2).find(|two| two[0].label >= two[1].label) {
            return bad("subtitles", &two[1].label.to_string(), "labels in ascending order");
        }
        for track in tracks {
            let hash = track.file.strip_prefix(&format!("{SUBTITLES_PREFIX}{}-", track.label));
            let hash = hash.and_then(|rest| rest.strip_suffix(SUBTITLES_SUFFIX));
            let entry = self.file(&track.file);
            if !hash
                .zip(entry)
                .is_some_and(|(hash, entry)| hash.len() == 16 && entry.blake3.starts_with(hash))
            {
                return bad(
                    "file of subtitles",
                    &track.file,
                    "subtitles-LABEL-HASH.vtt, with a file of that hash",
                );
            }
        }
        Ok(())
    }

    fn validate_placement(&self) -> Result<(), FormatError> {
        let p = &self.placement;
        let geometry = p.geometry();
        geometry.validate(RECORD)?;
        let stripes = geometry.stripes(self.title.packets);
        if p.stripes != stripes {
            return Err(FormatError::value(RECORD, "rows", p.stripes, stripes));
        }
        for (place, member) in p.members.iter().enumerate() {
            if usize::from(member.index) != place {
                return Err(FormatError::value(RECORD, "member index", member.index, place));
            }
        }
        Ok(())
    }

    fn validate_files(&self) -> Result<(), FormatError> {
        let geometry = self.placement.geometry();
        let mut expected = Self::expected_files(&self.title, &geometry);
        if self.has_sums() {
            expected.push(SUMS_FILE.to_owned());
        }
        if self.has_crcs() {
            expected.extend(Self::crc_files(&geometry).map(str::to_owned));
        }
        expected.extend(self.title.subtitles.iter().map(|track| track.file.clone()));
        expected.sort();
        check_files(&self.files, &expected)?;
        if geometry.members == 1 {
            let data = self.file(DATA_FILE).expect("data.ts is among the expected files");
            if data.bytes != self.title.bytes {
                return Err(FormatError::value(RECORD, "bytes of data.ts", data.bytes, self.title.bytes));
            }
            if data.blake3 != self.title.blake3 {
                return Err(FormatError::value(
                    RECORD,
                    "blake3 of data.ts",
                    &data.blake3,
                    &self.title.blake3,
                ));
            }
        }
        let parity = (geometry.m > 0).then_some(PARITY_UNITS_FILE);
        for (position, member) in self.placement.members.iter().enumerate() {
            let own: Vec<String> = match geometry.members {
                1 => Vec::new(),
                _ => [DATA_UNITS_FILE].into_iter().chain(parity).map(str::to_owned).collect(),
            };
            check_files(&member.files, &own)?;
            self.validate_lengths(position)?;
        }
        Ok(())
    }

    /// The lengths of a member's units follow from the stripes.
    fn validate_lengths(&self, position: usize) -> Result<(), FormatError> {
        let Some(stripes) = self.stripes() else { return Ok(()) };
        for file in self.files_on(position) {
            let bytes = match file.name.as_str() {
                DATA_UNITS_FILE => stripes.data_file_bytes(position),
                PARITY_UNITS_FILE => stripes.parity_file_bytes(position),
                _ => continue,
            };
            if file.bytes != bytes {
                let found = format!("{} for {} of member {position}", file.bytes, file.name);
                return Err(FormatError::value(RECORD, "bytes", found, bytes));
            }
        }
        Ok(())
    }
}

/// Holds a list of files against the names that must be in it.
fn check_files(files: &[FileEntry], expected: &[String]) -> Result<(), FormatError> {
    let names: Vec<&str> = files.iter().map(|f| f.name.as_str()).collect();
    if names != expected {
        let found = format!("{names:.200?}");
        return Err(FormatError::value(RECORD, "files", found, format!("{expected:?}")));
    }
    if let Some(file) = files.iter().find(|f| !is_blake3(&f.blake3)) {
        let found = format!("{:.100?} of {}", file.blake3, file.name);
        let expected = "64 hexadecimal digits in lower case";
        return Err(FormatError::value(RECORD, "file blake3", found, expected));
    }
    Ok(())
}

fn is_blake3(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
