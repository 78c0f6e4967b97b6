//! Files and folders that were left out: each is named once, not at every look.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::watch::ScanError;

/// The reports made about them.
#[derive(Debug, Default)]
pub struct Skipped {
    /// Why each file was left out the last time.
    files: HashMap<PathBuf, String>,
    /// Folders that could not be read at the last look, and why.
    folders: BTreeSet<String>,
}

impl Skipped {
    /// Whether `why` is something new to say of a file. One that is still arriving is tried again and again, and fails at another
    /// byte each time: numbers are no news.
    pub fn is_new(&mut self, file: &Path, why: &str) -> bool {
        let why: String = why.chars().filter(|c| !c.is_ascii_digit()).collect();
        self.files.insert(file.to_owned(), why.clone()).is_none_or(|before| before != why)
    }

    /// Those of all folders that could not be read which could be at the last look, or failed otherwise then.
    pub fn new_folders(&mut self, errors: Vec<ScanError>) -> Vec<String> {
        let now: BTreeSet<String> = errors.iter().map(ToString::to_string).collect();
        let new = now.difference(&self.folders).cloned().collect();
        self.folders = now;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_file_is_new_once_per_reason() {
        let mut skipped = Skipped::default();
        let (a, b) = (Path::new("a.ts"), Path::new("b.ts"));
        assert!(skipped.is_new(a, "no clock") && skipped.is_new(b, "no clock"));
        assert!(!skipped.is_new(a, "no clock"));
        assert!(skipped.is_new(a, "no clock in 12 bytes") && !skipped.is_new(a, "no clock in 3456 bytes"));
    }

    #[test]
    fn skipped_folder_that_came_back_is_reported_again() {
        let error = |path: &str| ScanError { path: path.into(), error: std::io::ErrorKind::NotFound.into() };
        let mut skipped = Skipped::default();
        assert_eq!(skipped.new_folders(vec![error("/a")]).len(), 1);
        assert_eq!(skipped.new_folders(vec![error("/a"), error("/b")]).len(), 1);
        assert!(skipped.new_folders(vec![error("/b")]).is_empty());
        assert_eq!(skipped.new_folders(vec![error("/a")]).len(), 1);
    }
}
