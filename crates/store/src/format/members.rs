//! `members.mrm`: the directories that make up a volume, and which of them are trusted. Every
//! member has a copy; the one with the highest generation counts. A volume of one member without
//! parity has none.
//!
//! The body is JSON, so that a person can read it; the frame's checksum protects it like any other record.

use std::path::PathBuf;

use crate::limits::MAX_MEMBERS;
pub use crate::limits::volume::MAX_MEMBERS_FILE_BYTES;
use serde::{Deserialize, Serialize};

use super::frame::{self, FileKind};
use super::superblock::Geometry;
use super::{FormatError, Uuid, json};

const RECORD: &str = "list of members";

/// Name of the file.
pub const MEMBERS_FILE: &str = "members.mrm";

/// Whether a member is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It has everything; reads and writes go to it.
    Active,
    /// It is being filled: nothing is read from it until it is complete.
    Rebuilding,
    /// It missed a change: its contents are out of date.
    Stale,
}

impl std::fmt::Display for MemberState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Active => "active",
            Self::Rebuilding => "rebuilding",
            Self::Stale => "stale",
        })
    }
}

/// A member as the volume knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberEntry {
    /// Its place in the volume, from 0.
    pub index: u16,
    /// The UUID that its superblock must have.
    #[serde(with = "json::uuid")]
    pub member: Uuid,
    /// Where it was last: absolute.
    #[serde(with = "json::path")]
    pub path: PathBuf,
    /// Whether it is trusted.
    pub state: MemberState,
}

/// The members of a volume, in one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersRecord {
    /// The volume.
    #[serde(with = "json::uuid")]
    pub volume: Uuid,
    /// Grows by one with every change; from 1.
    pub generation: u64,
    /// Data units in a stripe of new titles.
    pub k: u16,
    /// Parity units in a stripe of new titles.
    pub m: u16,
    /// Media packets in a unit of new titles.
    pub unit_packets: u32,
    /// By place, without gaps.
    pub members: Vec<MemberEntry>,
}

impl MembersRecord {
    /// How the stripes of new titles are laid out.
    pub fn geometry(&self) -> Geometry {
        let members = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        Geometry { k: self.k, m: self.m, unit_packets: self.unit_packets, members }
    }

    /// The whole file.
    pub fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_vec_pretty(self).expect("a list of members has only text keys and numbers");
        frame::seal_file(FileKind::Members, &body)
    }

    /// From the whole file, checked for contradictions.
    pub fn decode(file: &[u8]) -> Result<Self, FormatError> {
        let body = frame::open(FileKind::Members, file)?;
        let record: Self = serde_json::from_slice(body).map_err(|e| {
            let found = format!("not a list of members ({e})");
            FormatError::value(RECORD, "body", found, "the JSON of a list of members")
        })?;
        record.validate()?;
        Ok(record)
    }

    /// Refuses what contradicts itself.
    pub fn validate(&self) -> Result<(), FormatError> {
        if self.generation == 0 {
            return Err(FormatError::value(RECORD, "generation", 0, "at least 1"));
        }
        if self.members.is_empty() || self.members.len() > MAX_MEMBERS {
            let expected = format!("1 to {MAX_MEMBERS}");
            return Err(FormatError::value(RECORD, "members", self.members.len(), expected));
        }
        for (place, entry) in self.members.iter().enumerate() {
            if usize::from(entry.index) != place {
                return Err(FormatError::value(RECORD, "member index", entry.index, place));
            }
            if !entry.path.is_absolute() {
                let found = format!("{:.200?}", entry.path);
                return Err(FormatError::value(RECORD, "member path", found, "an absolute path"));
            }
            if self.members[..place].iter().any(|other| other.member == entry.member) {
                return Err(FormatError::value(
                    RECORD,
                    "member uuid",
                    entry.member,
                    "a different one for each",
                ));
            }
        }
        self.geometry().validate(RECORD)?;
        self.geometry().check_supported(RECORD)
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
