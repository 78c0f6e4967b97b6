//! `fsck`: holds a store against every promise of its format. Reads only; what it finds, a person or the next open mends.
//!
//! Each promise is one function, named like the promise; `docs/ref/store-format.md` lists them under the same names.

mod content;
mod range_sums;
mod title;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use self::title::TitleCheck;
use crate::error::StoreError;
use crate::format::manifest::Manifest;
use crate::format::superblock::Superblock;
use crate::volume::dirs::{Dirs, id_of_name};
use crate::volume::lock::StoreLock;
use crate::volume::manifest_io::read_manifest;
use crate::volume::recover::{TmpEntry, look_at_tmp};
use crate::volume::{CATALOGUE_FILE, TITLES_DIR, TMP_DIR, VOLUME_FILE, look_at_catalogue, read_superblock};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is lost: rubbish, or something that mends itself.
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
    /// What is wrong.
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

/// Every promise by its name, in the order in which they are checked.
pub const PROMISES: [&str; 26] = [
    "superblock_is_readable",
    "geometry_is_supported",
    "store_holds_only_its_files",
    "tmp_holds_only_living_work",
    "titles_holds_only_titles",
    "manifest_is_readable",
    "names_are_unique",
    "catalogue_agrees",
    "placement_is_supported",
    "title_is_of_this_volume",
    "every_file_is_there",
    "no_other_file_is_there",
    "index_agrees_with_manifest",
    "meta_agrees_with_manifest",
    "meta_blocks_are_whole",
    "time_index_agrees_with_meta",
    "access_points_agree_with_meta",
    "packet_sizes_agree",
    "range_sums_agree_with_manifest",
    "range_sum_blocks_are_whole",
    "range_sums_agree_with_meta",
    "data_is_as_ingested",
    "sums_are_of_the_data",
    "range_sums_are_of_the_data",
    "data_is_a_transport_stream",
    "index_and_meta_are_as_ingested",
];

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Structure: every record, every length, every block of meta-data. Seconds for a large store.
    Quick,
    /// Every byte too: the BLAKE3 of every file and every packet's sum against its meta-data. As long as the disks take.
    Full,
}

/// How far a check is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckProgress {
    /// Name of the title being checked.
    pub title: String,
    /// Titles checked.
    pub titles_done: usize,
    /// Titles there are.
    pub titles_total: usize,
    /// Bytes of data files checked; stays 0 in a quick check.
    pub bytes_done: u64,
    /// Bytes of data files there are to check.
    pub bytes_total: u64,
}

/// What was found so far, and who is told how far it is.
struct Report<'a> {
    findings: Vec<Finding>,
    progress: CheckProgress,
    tell: &'a mut dyn FnMut(&CheckProgress),
}

impl Report<'_> {
    fn add(
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

    fn warning(
        &mut self,
        promise: &'static str,
        path: &Path,
        what: impl fmt::Display,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Warning, promise, path, what, remedy);
    }

    fn error(
        &mut self,
        promise: &'static str,
        path: &Path,
        what: impl fmt::Display,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Error, promise, path, what, remedy);
    }
}

/// Checks the store in `dir`; `tell` hears how far it is. Findings come in the order of the promises. `Err` only if
/// `dir` cannot be looked at at all. Other processes may work with the store meanwhile.
pub fn check_store(
    dir: &Path,
    depth: Depth,
    tell: &mut dyn FnMut(&CheckProgress),
) -> Result<Vec<Finding>, StoreError> {
    let dirs = Dirs::new(dir);
    fs::read_dir(dir).map_err(StoreError::io("list", dir))?;
    let mut report = Report { findings: Vec::new(), progress: CheckProgress::default(), tell };
    let superblock = superblock_is_readable(&dirs, &mut report);
    if let Some(block) = &superblock {
        geometry_is_supported(&dirs, block, &mut report);
    }
    store_holds_only_its_files(&dirs, &mut report)?;
    if superblock.is_some() && dirs.tmp.is_dir() {
        tmp_holds_only_living_work(&dirs, &mut report)?;
    }
    if dirs.titles.is_dir() {
        let ids = titles_holds_only_titles(&dirs, &mut report)?;
        let manifests = manifest_is_readable(&dirs, &ids, &mut report);
        names_are_unique(&dirs, &manifests, &mut report);
        catalogue_agrees(&dirs, &manifests, &mut report);
        report.progress.titles_total = manifests.len();
        if depth == Depth::Full {
            report.progress.bytes_total = manifests.iter().map(|(_, m)| m.title.bytes).sum();
        }
        for (_, manifest) in &manifests {
            report.progress.title.clone_from(&manifest.title.name);
            (report.tell)(&report.progress);
            TitleCheck::new(&dirs, superblock.as_ref(), manifest, &mut report).run(depth);
            report.progress.titles_done += 1;
        }
        (report.tell)(&report.progress);
    }
    Ok(report.findings)
}

fn superblock_is_readable(dirs: &Dirs, report: &mut Report<'_>) -> Option<Superblock> {
    match read_superblock(dirs) {
        Ok(block) => Some(block),
        Err(error) => {
            let remedy = "restore volume.mrv from a backup; the titles themselves are not affected";
            report.error("superblock_is_readable", &dirs.superblock(), cause(&error), remedy);
            None
        }
    }
}

fn geometry_is_supported(dirs: &Dirs, block: &Superblock, report: &mut Report<'_>) {
    if let Err(error) = block.geometry.check_supported("superblock") {
        report.error(
            "geometry_is_supported",
            &dirs.superblock(),
            error,
            "use the version that made this volume",
        );
    }
}

fn store_holds_only_its_files(dirs: &Dirs, report: &mut Report<'_>) -> Result<(), StoreError> {
    let promise = "store_holds_only_its_files";
    for sub in [&dirs.tmp, &dirs.titles] {
        if !sub.is_dir() {
            let remedy = "it is made anew, empty, at the next open; if titles are missing, restore it first";
            report.error(promise, sub, "the directory is missing", remedy);
        }
    }
    for (name, path) in list(&dirs.root)? {
        let name = name.to_string_lossy();
        let catalogue = name.strip_prefix(CATALOGUE_FILE);
        if catalogue.is_some_and(|rest| rest.starts_with(".damaged")) {
            let remedy = "delete it when you have looked at it; the catalogue was rebuilt";
            report.warning(promise, &path, "a damaged catalogue was set aside", remedy);
        } else if !matches!(&*name, VOLUME_FILE | TMP_DIR | TITLES_DIR)
            && !matches!(catalogue, Some("" | "-wal" | "-shm"))
        {
            report.warning(promise, &path, "is not part of a store", "move it elsewhere");
        }
    }
    Ok(())
}

fn tmp_holds_only_living_work(dirs: &Dirs, report: &mut Report<'_>) -> Result<(), StoreError> {
    let promise = "tmp_holds_only_living_work";
    // Under the lock nobody is between making a directory and locking it, or between unlocking and renaming it.
    let lock = StoreLock::take(dirs)?;
    let entries = look_at_tmp(dirs)?;
    drop(lock);
    for entry in entries {
        match entry {
            TmpEntry::Live(_) => {}
            TmpEntry::Stale(path) => {
                let remedy = "it is removed when the store is opened next";
                report.warning(promise, &path, "left by an ingest or a removal that did not end", remedy);
            }
            TmpEntry::Foreign(path) => {
                report.warning(promise, &path, "is not part of a store", "move it elsewhere")
            }
        }
    }
    Ok(())
}

fn titles_holds_only_titles(dirs: &Dirs, report: &mut Report<'_>) -> Result<Vec<TitleId>, StoreError> {
    let mut ids = Vec::new();
    for (name, path) in list(&dirs.titles)? {
        match id_of_name(&name) {
            Some(id) if path.is_dir() => ids.push(id),
            _ => report.warning(
                "titles_holds_only_titles",
                &path,
                "is not a title's directory",
                "move it elsewhere",
            ),
        }
    }
    Ok(ids)
}

fn manifest_is_readable(dirs: &Dirs, ids: &[TitleId], report: &mut Report<'_>) -> Vec<(TitleId, Manifest)> {
    let mut manifests = Vec::new();
    for &id in ids {
        match read_manifest(dirs, id) {
            Ok(manifest) => manifests.push((id, manifest)),
            Err(StoreError::NoTitle { .. }) => {} // removed while we looked
            Err(error) => {
                let remedy =
                    format!("remove title {id} and add its film again; data.ts in there can still be played");
                report.error("manifest_is_readable", &dirs.manifest(id), cause(&error), remedy);
            }
        }
    }
    manifests
}

fn names_are_unique(dirs: &Dirs, manifests: &[(TitleId, Manifest)], report: &mut Report<'_>) {
    let mut first: HashMap<&str, TitleId> = HashMap::new();
    for (id, manifest) in manifests {
        if let Some(other) = first.insert(&manifest.title.name, *id) {
            let what = format!("has the name \"{}\", as title {other} has", manifest.title.name);
            report.warning("names_are_unique", &dirs.manifest(*id), what, "remove one of them by its id");
        }
    }
}

fn catalogue_agrees(dirs: &Dirs, manifests: &[(TitleId, Manifest)], report: &mut Report<'_>) {
    let promise = "catalogue_agrees";
    let remedy = "it is brought up to date when the store is opened next";
    let path = dirs.catalogue();
    if !path.exists() {
        return report.warning(promise, &path, "is missing", remedy);
    }
    let rows = match look_at_catalogue(&path) {
        Ok(rows) => rows,
        Err(error) => {
            return report.warning(promise, &path, error, "it is rebuilt when the store is opened next");
        }
    };
    let mut rows: HashMap<TitleId, _> = rows.into_iter().map(|info| (info.id, info)).collect();
    for (id, manifest) in manifests {
        match rows.remove(id) {
            Some(info) if info == manifest.title => {}
            Some(_) => {
                report.warning(promise, &path, format!("title {id} is not as in its manifest"), remedy)
            }
            None => report.warning(promise, &path, format!("title {id} is not in it"), remedy),
        }
    }
    for id in rows.into_keys().filter(|&id| !dirs.title(id).is_dir()) {
        report.warning(promise, &path, format!("title {id} is in it and not in the store"), remedy);
    }
}

/// Names and paths in a directory, in order.
fn list(dir: &Path) -> Result<Vec<(std::ffi::OsString, PathBuf)>, StoreError> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
        let entry = entry.map_err(StoreError::io("list", dir))?;
        entries.push((entry.file_name(), entry.path()));
    }
    entries.sort();
    Ok(entries)
}

/// The error without the path that the finding has already.
fn cause(error: &StoreError) -> String {
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
fn is_one_of(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|n| OsStr::new(n) == name)
}
