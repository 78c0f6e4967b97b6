//! The text files of the workspace, read once.

use std::collections::BTreeSet;
use std::path::Path;

use crate::rust_text::RustText;
use crate::workspace;

/// Folders that hold nothing written by hand.
const SKIPPED: &[&str] = &["target", "demo", ".git"];

/// A text file.
pub(crate) struct File {
    /// From the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Taken apart, if it is Rust.
    pub(crate) rust: Option<RustText>,
}

impl File {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let rust = path.ends_with(".rs").then(|| RustText::new(text));
        Self { path: path.to_owned(), text: text.to_owned(), rust }
    }

    /// Whether the whole file is compiled for tests only.
    pub(crate) fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name == "tests.rs"
            || name.ends_with("_tests.rs")
            || self.path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples"))
    }
}

/// All files, and the folders that hold them.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
    paths: BTreeSet<String>,
}

impl Tree {
    pub(crate) fn of_workspace() -> Result<Self, String> {
        Self::of_checkout(&workspace::root())
    }

    pub(crate) fn of_checkout(root: &Path) -> Result<Self, String> {
        let mut tree = Self { files: Vec::new(), paths: BTreeSet::new() };
        tree.walk(root, "")?;
        Ok(tree)
    }

    /// A tree of samples.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self { files: Vec::new(), paths: BTreeSet::new() };
        for (path, text) in files {
            let folders = path.match_indices('/').map(|(at, _)| path[..at].to_owned());
            tree.paths.extend(folders.chain([(*path).to_owned()]));
            tree.files.push(File::new(path, text));
        }
        tree
    }

    fn walk(&mut self, folder: &Path, prefix: &str) -> Result<(), String> {
        let fault = |e: std::io::Error| format!("{} cannot be read: {e}", folder.display());
        let mut entries: Vec<_> =
            std::fs::read_dir(folder).map_err(fault)?.collect::<Result<_, _>>().map_err(fault)?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if SKIPPED.contains(&name) {
                continue;
            }
            let path = format!("{prefix}{name}");
            self.paths.insert(path.clone());
            // A file that vanishes while we look (an editor's, another build's) is no fault of the tree.
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                self.walk(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file()
                && let Ok(text) = std::fs::read_to_string(entry.path())
            {
                self.files.push(File::new(&path, &text));
            }
        }
        Ok(())
    }

    /// Returns the names of the entries in the root.
    pub(crate) fn root(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str).filter(|path| !path.contains('/'))
    }

    /// Rust files with their parts.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&File, &RustText)> {
        self.files.iter().filter_map(|file| file.rust.as_ref().map(|rust| (file, rust)))
    }

    /// Whether a file or folder exists.
    pub(crate) fn exists(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path.trim_end_matches('/'))
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|f| f.path == path)
    }
}
