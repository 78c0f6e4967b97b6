//! The findings of a repair or a scrub, and their outcome.

use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;
use serde::Serialize;

/// Outcome for something that was missing or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// It is as it was ingested again.
    Repaired,
    /// It can be repaired; nothing was changed, because only a look was wanted.
    Repairable,
    /// The remaining data does not suffice. Nothing was touched.
    Lost,
}

/// Something that was missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairFinding {
    /// The title.
    #[serde(with = "crate::format::json::title_id")]
    pub title: TitleId,
    /// Its name.
    pub name: String,
    /// The place of the member in the volume.
    pub member: u16,
    /// The file or directory.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The fault found.
    pub what: String,
    /// What became of it.
    pub fate: RepairOutcome,
}

/// A path as people read it; bytes that are no text are shown as such.
fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// Progress of a repair, a scrub or a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairProgress {
    /// Name of the title being worked on.
    pub title: String,
    /// Titles done.
    pub titles_done: usize,
    /// Titles there are.
    pub titles_total: usize,
    /// Bytes of media done.
    pub bytes_done: u64,
    /// Bytes of media there are.
    pub bytes_total: u64,
}

/// Overall result of a repair or a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairVerdict {
    /// Nothing was missing or wrong.
    Healthy,
    /// All that was missing or wrong has been repaired, or could be; or a member is not there.
    Repaired,
    /// Some title is lost.
    Lost,
}

/// Findings of a repair or a scrub, and the work done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// Titles looked at.
    pub titles: usize,
    /// All that was missing or wrong.
    pub found: Vec<RepairFinding>,
    /// Members that this repair has made active again, by their places in the volume.
    pub activated: Vec<u16>,
    /// Members that are not present, are not those of this volume, or are not active: their
    /// contents were not examined.
    pub absent: Vec<u16>,
    /// Members that did not answer in time: from then on nothing was asked of them. They count as absent too.
    pub silent: Vec<u16>,
    /// Bytes read from all members.
    pub bytes_read: u64,
    /// Bytes written to all members.
    pub bytes_written: u64,
}

impl RepairReport {
    /// The result in a word.
    pub fn verdict(&self) -> RepairVerdict {
        let lost = self.found.iter().any(|found| found.fate == RepairOutcome::Lost);
        if lost {
            RepairVerdict::Lost
        } else if self.found.is_empty() && self.activated.is_empty() && self.absent.is_empty() {
            RepairVerdict::Healthy
        } else {
            RepairVerdict::Repaired
        }
    }

    /// Returns the number of findings that met this fate.
    pub fn count(&self, fate: RepairOutcome) -> usize {
        self.found.iter().filter(|found| found.fate == fate).count()
    }
}
