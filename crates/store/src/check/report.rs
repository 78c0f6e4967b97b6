//! The findings of a check, and how far it is.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is lost: rubbish, or something that repairs itself.
    Warning,
    /// A title or the store is damaged.
    Error,
}

/// A promise of the format that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Which promise, by its name in `docs/ref/store-format.md`.
    pub promise: &'static str,
    /// Where.
    pub path: PathBuf,
    /// The fault.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}: {} [{}]; {}", self.path.display(), self.what, self.promise, self.remedy)
    }
}

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Structure: every record, every length, every block of metadata. Seconds for a large store.
    Quick,
    /// Every byte too: the BLAKE3 of every file and every packet's sum against its metadata. As long as the disks take.
    Full,
}

/// How far a check is; the bytes stay 0 in a quick check.
pub use crate::repair::RepairProgress as CheckProgress;

/// The findings up to now, and the callback for progress.
pub(super) struct CheckReport<'a> {
    pub(super) findings: Vec<Finding>,
    pub(super) progress: CheckProgress,
    pub(super) tell: &'a mut dyn FnMut(&CheckProgress),
}

impl CheckReport<'_> {
    pub(super) fn add(
        &mut self,
        severity: Severity,
        promise: &'static str,
        path: &Path,
        what: impl fmt::Display,
        remedy: impl Into<String>,
    ) {
        let path = path.to_path_buf();
        self.findings.push(Finding {
            severity,
            promise,
            path,
            what: what.to_string(),
            remedy: remedy.into(),
        });
    }

    pub(super) fn warning(
        &mut self,
        promise: &'static str,
        path: &Path,
        what: impl fmt::Display,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Warning, promise, path, what, remedy);
    }

    pub(super) fn error(
        &mut self,
        promise: &'static str,
        path: &Path,
        what: impl fmt::Display,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Error, promise, path, what, remedy);
    }
}

/// Names and paths in a directory, in order.
pub(super) fn list(dir: &Path) -> Result<Vec<(std::ffi::OsString, PathBuf)>, StoreError> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
        let entry = entry.map_err(StoreError::io("list", dir))?;
        entries.push((entry.file_name(), entry.path()));
    }
    entries.sort();
    Ok(entries)
}

/// The error without the path that the finding has already.
pub(super) fn cause(error: &StoreError) -> String {
    match error {
        StoreError::Format { error, .. } => error.to_string(),
        StoreError::Meta { error, .. } => error.to_string(),
        StoreError::Sums { error, .. } => error.to_string(),
        StoreError::Damaged { what, .. } => what.clone(),
        StoreError::NotAStore { .. } => "is missing".to_owned(),
        StoreError::Io { action, error, .. } => format!("cannot {action} it: {error}"),
        other => other.to_string(),
    }
}

/// Whether a name in a title's directory is one of `names`.
pub(super) fn is_one_of(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|n| OsStr::new(n) == name)
}
