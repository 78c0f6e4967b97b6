//! `fsck`: verifies a store against every guarantee of its format. It only reads; an operator or
//! the next open repairs its findings.
//!
//! Each promise is one function, named like the promise; `docs/ref/store-format.md` lists them under the same names.

mod content;
mod crcs;
mod members;
mod parity;
mod range_sums;
mod report;
mod stripes;
mod title;
mod title_check;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use self::members::PresentMember;
pub use self::report::{CheckProgress, Depth, Finding, Severity};
use self::report::{CheckReport, cause, list};
use self::title_check::TitleCheck;
use crate::blocking::{Timeout, send_to};
use crate::dirs::{Dirs, PICTURES_DIR, id_of_name};
use crate::error::StoreError;
use crate::format::manifest::Manifest;
use crate::format::members::MEMBERS_FILE;
use crate::repair::set::{Home, TitleSet};
use crate::volume::lock::StoreLock;
use crate::volume::manifest_io::read_manifest;
use crate::volume::recover::{TmpEntry, look_at_tmp};
use crate::volume::{
    CATALOGUE_FILE, DAMAGED_FILE, TITLES_DIR, TMP_DIR, VOLUME_FILE, look_at_catalogue, read_superblock,
};

/// Prefix of the files that hold users and their rights: `rights.sqlite`, the temporary files of
/// SQLite beside it, and `rights.recorded`.
const RIGHTS: &str = "rights.";

/// The same for live sources that were added while the server ran: `live.json`, and what stays of one that was damaged.
const LIVE: &str = "live.json";

/// Checks the volume that the store in `dir` is a member of; `tell` hears how far it is. Findings come in the order of the
/// promises, those of members one after the other. `Err` only if `dir` cannot be looked at at all. Other processes may work
/// with the volume meanwhile.
pub fn check_store(
    dir: &Path,
    depth: Depth,
    tell: &mut dyn FnMut(&CheckProgress),
) -> Result<Vec<Finding>, StoreError> {
    check(dir, None, depth, tell)
}

/// Checks a volume whose members are in exactly these directories, whatever locations `members.mrm`
/// gives.
///
/// # Errors
/// As [`check_store`], of the first directory with a superblock; of the first, if none has one.
pub fn check_members(
    dirs: &[PathBuf],
    depth: Depth,
    tell: &mut dyn FnMut(&CheckProgress),
) -> Result<Vec<Finding>, StoreError> {
    // One of them may be gone, or an empty place where a disk was mounted.
    let readable = dirs.iter().find(|dir| read_superblock(&Dirs::new(dir)).is_ok());
    let first = readable.or(dirs.first());
    let first = first.ok_or_else(|| StoreError::BadVolume("no directory was named".to_owned()))?;
    check(first, Some(dirs), depth, tell)
}

fn check(
    dir: &Path,
    named: Option<&[PathBuf]>,
    depth: Depth,
    tell: &mut dyn FnMut(&CheckProgress),
) -> Result<Vec<Finding>, StoreError> {
    let list = |dir: &Path| fs::read_dir(dir).map(drop).map_err(StoreError::io("list", dir));
    send_to(dir, Timeout::Work, list)??;
    let mut report = CheckReport { findings: Vec::new(), progress: CheckProgress::default(), tell };
    let members = members::members(dir, named, &mut report);
    let titles = each_member(&members, &mut report)?;
    if members.iter().all(|member| !member.dirs.titles.is_dir()) {
        return Ok(report.findings);
    }
    let newest: Vec<(TitleId, Manifest)> = titles.iter().map(|(&id, copies)| (id, newest(copies))).collect();
    title_is_on_every_member(&members, &newest, &mut report);
    manifests_agree(&members, &titles, &newest, &mut report);
    if let Some(first) = members.first() {
        names_are_unique(&first.dirs, &newest, &mut report);
        derived_titles_have_a_parent(&members, &newest, &mut report);
        let kept = members.iter().find(|member| member.dirs.catalogue().exists()).unwrap_or(first);
        let looked_at: Vec<usize> = members.iter().map(|member| usize::from(member.slot)).collect();
        catalogue_agrees(&kept.dirs, &looked_at, &newest, &mut report);
    }
    each_title(&members, &titles, &newest, depth, &mut report);
    Ok(report.findings)
}

/// Checks each member alone, as far as that is possible; returns the manifests on them.
fn each_member(
    members: &[PresentMember],
    report: &mut CheckReport<'_>,
) -> Result<BTreeMap<TitleId, Vec<Copy>>, StoreError> {
    let mut titles: BTreeMap<TitleId, Vec<Copy>> = BTreeMap::new();
    for (place, member) in members.iter().enumerate() {
        let dirs = &member.dirs;
        store_holds_only_its_files(dirs, report)?;
        if member.superblock.is_some() && dirs.tmp.is_dir() {
            tmp_holds_only_living_work(dirs, report)?;
        }
        if dirs.titles.is_dir() {
            let ids = titles_holds_only_titles(dirs, report)?;
            for (id, manifest) in manifest_is_readable(dirs, &ids, report) {
                titles.entry(id).or_default().push(Copy { place, manifest });
            }
        }
    }
    Ok(titles)
}

/// The promises of each title, on each member and of all together.
fn each_title(
    members: &[PresentMember],
    titles: &BTreeMap<TitleId, Vec<Copy>>,
    newest: &[(TitleId, Manifest)],
    depth: Depth,
    report: &mut CheckReport<'_>,
) {
    report.progress.titles_total = newest.len();
    if depth == Depth::Full {
        report.progress.bytes_total = newest.iter().map(|(_, m)| m.title.bytes).sum();
    }
    for (id, manifest) in newest {
        report.progress.title.clone_from(&manifest.title.name);
        (report.tell)(&report.progress);
        for copy in titles[id].iter().filter(|copy| copy.manifest == *manifest) {
            let member = &members[copy.place];
            let placed = manifest.placement.members.iter().position(|m| m.index == member.slot);
            let (superblock, position) = (member.superblock.as_ref(), placed.unwrap_or(0));
            TitleCheck::new(&member.dirs, superblock, manifest, position, report).run(depth);
        }
        if depth == Depth::Full && manifest.stripes().is_some() {
            check_stripes(members, manifest, report);
        }
        report.progress.titles_done += 1;
    }
    (report.tell)(&report.progress);
}

/// A member's copy of a title's manifest.
struct Copy {
    /// Its place among the members that are checked.
    place: usize,
    manifest: Manifest,
}

/// The manifest with the most files: packet sizes are only ever added.
fn newest(copies: &[Copy]) -> Manifest {
    let newest = copies.iter().max_by_key(|copy| copy.manifest.files.len());
    newest.map(|copy| copy.manifest.clone()).expect("a title is listed with its first copy")
}

/// Every member that a title lies on, and that is there, has it.
fn title_is_on_every_member(
    members: &[PresentMember],
    titles: &[(TitleId, Manifest)],
    report: &mut CheckReport<'_>,
) {
    // Some may have been removed since they were listed.
    let is_there = |id: &TitleId| members.iter().any(|member| member.dirs.title(*id).is_dir());
    for (id, manifest) in titles.iter().filter(|(id, _)| is_there(id)) {
        for placed in &manifest.placement.members {
            let Some(member) = members.iter().find(|member| member.slot == placed.index) else { continue };
            let dir = member.dirs.title(*id);
            if members.len() > 1 && !dir.is_dir() {
                let what = format!("title {} is not on member {}", manifest.title.name, placed.index);
                report.error("title_is_on_every_member", &dir, what, "run millrace repair");
            }
        }
    }
}

/// The manifest of a title is the same on all its members.
fn manifests_agree(
    members: &[PresentMember],
    titles: &BTreeMap<TitleId, Vec<Copy>>,
    newest: &[(TitleId, Manifest)],
    report: &mut CheckReport<'_>,
) {
    for (id, manifest) in newest {
        for copy in titles[id].iter().filter(|copy| copy.manifest != *manifest) {
            let path = members[copy.place].dirs.manifest(*id);
            let what = "is not what another member has";
            report.error("manifests_agree", &path, what, "run millrace repair");
        }
    }
}

/// The promises of all members' units together.
fn check_stripes(members: &[PresentMember], manifest: &Manifest, report: &mut CheckReport<'_>) {
    let home = |slot: u16| {
        let member = members.iter().find(|member| member.slot == slot)?;
        Some(Home { dirs: member.dirs.clone(), active: true })
    };
    if let Some(set) = TitleSet::new(manifest.clone(), manifest.encode(), home) {
        stripes::check(&set, report);
    }
}

fn store_holds_only_its_files(dirs: &Dirs, report: &mut CheckReport<'_>) -> Result<(), StoreError> {
    let promise = "store_holds_only_its_files";
    for sub in [&dirs.tmp, &dirs.titles] {
        if !sub.is_dir() {
            let remedy = "it is rebuilt, empty, at the next open; if titles are missing, restore it first";
            report.error(promise, sub, "the directory is missing", remedy);
        }
    }
    for (name, path) in list(&dirs.root)? {
        let name = name.to_string_lossy();
        let catalogue = name.strip_prefix(CATALOGUE_FILE);
        if catalogue.is_some_and(|rest| rest.starts_with(".damaged")) {
            let remedy = "delete it after inspection; the catalogue was rebuilt";
            report.warning(promise, &path, "a damaged catalogue was set aside", remedy);
        } else if !matches!(
            &*name,
            VOLUME_FILE | MEMBERS_FILE | DAMAGED_FILE | TMP_DIR | TITLES_DIR | PICTURES_DIR
        ) && !name.starts_with(RIGHTS)
            && !name.starts_with(LIVE)
            && !matches!(catalogue, Some("" | "-journal" | "-wal" | "-shm"))
        {
            report.warning(promise, &path, "is not part of a store", "move it elsewhere");
        }
    }
    Ok(())
}

fn tmp_holds_only_living_work(dirs: &Dirs, report: &mut CheckReport<'_>) -> Result<(), StoreError> {
    let promise = "tmp_holds_only_living_work";
    // While the lock is held, no process is between making a directory and locking it, or between
    // unlocking and renaming it.
    let lock = StoreLock::take(dirs)?;
    let entries = look_at_tmp(dirs)?;
    drop(lock);
    for entry in entries {
        match entry {
            TmpEntry::Live(_) | TmpEntry::Kept(_) | TmpEntry::Recording(_) | TmpEntry::Import(_) => {}
            TmpEntry::Stale(path) => {
                let remedy = "it is removed when the store is next opened, or resumed by a repair";
                let what = "left by an ingest, a removal or a repair that did not end";
                report.warning(promise, &path, what, remedy);
            }
            TmpEntry::Foreign(path) => {
                report.warning(promise, &path, "is not part of a store", "move it elsewhere")
            }
        }
    }
    Ok(())
}

fn titles_holds_only_titles(dirs: &Dirs, report: &mut CheckReport<'_>) -> Result<Vec<TitleId>, StoreError> {
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

fn manifest_is_readable(
    dirs: &Dirs,
    ids: &[TitleId],
    report: &mut CheckReport<'_>,
) -> Vec<(TitleId, Manifest)> {
    let mut manifests = Vec::new();
    for &id in ids {
        match read_manifest(dirs, id) {
            Ok(manifest) => manifests.push((id, manifest)),
            Err(StoreError::NoTitle { .. }) => {} // removed while we looked
            Err(error) => {
                let remedy = format!(
                    "remove title {id} and add its source file again; its data.ts can still be played"
                );
                report.error("manifest_is_readable", &dirs.manifest(id), cause(&error), remedy);
            }
        }
    }
    manifests
}

fn names_are_unique(dirs: &Dirs, manifests: &[(TitleId, Manifest)], report: &mut CheckReport<'_>) {
    let mut first: HashMap<&str, TitleId> = HashMap::new();
    for (id, manifest) in manifests {
        if let Some(other) = first.insert(&manifest.title.name, *id) {
            let what = format!("has the name \"{}\", as title {other} has", manifest.title.name);
            report.warning("names_are_unique", &dirs.manifest(*id), what, "remove one of them by its id");
        }
    }
}

/// One whose members are not all there may have it on another.
fn derived_titles_have_a_parent(
    members: &[PresentMember],
    manifests: &[(TitleId, Manifest)],
    report: &mut CheckReport<'_>,
) {
    for (id, manifest) in manifests {
        let Some(derived) = manifest.title.derived else { continue };
        let is_there = |member: &PresentMember| member.dirs.title(derived.parent).is_dir();
        if let Some(home) = members.iter().find(|member| member.dirs.title(*id).is_dir())
            && !members.iter().any(is_there)
        {
            let what = format!("is derived from title {}, which is not there", derived.parent);
            let remedy = "it is removed when the store is next opened with all its members";
            report.warning("derived_titles_have_a_parent", &home.dirs.manifest(*id), what, remedy);
        }
    }
}

fn catalogue_agrees(
    dirs: &Dirs,
    looked_at: &[usize],
    manifests: &[(TitleId, Manifest)],
    report: &mut CheckReport<'_>,
) {
    let promise = "catalogue_agrees";
    let remedy = "it is brought up to date when the store is next opened";
    let path = dirs.catalogue();
    if !path.exists() {
        return report.warning(promise, &path, "is missing", remedy);
    }
    let stripes = match look_at_catalogue(&path) {
        Ok(stripes) => stripes,
        Err(error) => {
            return report.warning(promise, &path, error, "it is rebuilt when the store is next opened");
        }
    };
    let mut stripes: HashMap<TitleId, _> = stripes.into_iter().map(|stripe| (stripe.0.id, stripe)).collect();
    for (id, manifest) in manifests {
        match stripes.remove(id) {
            Some((info, _)) if info == manifest.title => {}
            Some(_) => {
                let remedy = "it is brought up to date when the titles are next listed: millrace ls";
                report.warning(promise, &path, format!("title {id} is not as in its manifest"), remedy);
            }
            None => report.warning(promise, &path, format!("title {id} is not in it"), remedy),
        }
    }
    for (id, (_, placed)) in stripes.into_iter().filter(|&(id, _)| !dirs.title(id).is_dir()) {
        if looked_at.iter().all(|&slot| slot >= placed.members) {
            continue; // it is on members that are missing
        }
        report.warning(promise, &path, format!("title {id} is in it and not in the store"), remedy);
    }
}
