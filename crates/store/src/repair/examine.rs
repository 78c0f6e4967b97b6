//! The data that a member lacks of a title: at a glance, or with every byte read.

use std::io;
use std::path::Path;

use super::error::RepairError;
use super::set::TitleSet;
use super::title::MissingFiles;
use super::work::Work;
use crate::dirs::read_whole;
use crate::format::manifest::{FileEntry, MANIFEST_FILE};
use crate::limits::MAX_MANIFEST_BYTES;

/// Whether the directory, the manifest, and every file with its length are there. The member must be; of one that does not
/// answer nothing is known.
pub(crate) fn glance(
    set: &TitleSet,
    position: usize,
    work: &mut Work<'_>,
) -> Result<MissingFiles, RepairError> {
    let Some(dir) = set.dir(position) else {
        return Ok(MissingFiles { position, ..MissingFiles::default() });
    };
    let files = set.manifest.files_on(position).into_iter().cloned().collect();
    let manifest = set.manifest_bytes.clone();
    let looked = work.ask(set.slot(position), move || Ok(look(position, &dir, &manifest, files)))?;
    Ok(looked.unwrap_or_else(|_| MissingFiles { position, ..MissingFiles::default() }))
}

fn look(position: usize, dir: &Path, manifest: &[u8], files: Vec<FileEntry>) -> MissingFiles {
    let mut need = MissingFiles { position, ..MissingFiles::default() };
    if !dir.is_dir() {
        need.whole = true;
        return need;
    }
    let mut wrong = |name: &str, what: String| need.files.push((name.to_owned(), what));
    match read_whole(&dir.join(MANIFEST_FILE), MAX_MANIFEST_BYTES) {
        Ok(bytes) if bytes == manifest => {}
        Ok(_) => wrong(MANIFEST_FILE, "is not what the other members have".to_owned()),
        Err(error) => wrong(MANIFEST_FILE, error.to_string()),
    }
    for file in files {
        match dir.join(&file.name).metadata() {
            Ok(meta) if meta.is_file() && meta.len() == file.bytes => {}
            Ok(meta) => wrong(
                &file.name,
                format!("is {} bytes long; the manifest promises {}", meta.len(), file.bytes),
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                wrong(&file.name, "is missing".to_owned());
            }
            Err(error) => wrong(&file.name, format!("cannot be inspected: {error}")),
        }
    }
    need
}

/// The same, and the BLAKE3 of every file that `wanted` names.
pub(crate) fn read(
    set: &TitleSet,
    position: usize,
    wanted: impl Fn(&FileEntry) -> bool,
    work: &mut Work<'_>,
) -> Result<MissingFiles, RepairError> {
    let mut need = glance(set, position, work)?;
    let Some(dir) = set.dir(position).filter(|_| !need.whole) else { return Ok(need) };
    for file in set.manifest.files_on(position).into_iter().filter(|file| wanted(file)) {
        if need.files.iter().any(|(name, _)| *name == file.name) {
            continue;
        }
        let path = dir.join(&file.name);
        if let Some(what) = work.wrong_with(set.slot(position), &path, file.bytes, &file.blake3)? {
            need.files.push((file.name.clone(), what));
        }
        if work.has_given_up(set.slot(position)) {
            // The others would only say the same.
            break;
        }
    }
    Ok(need)
}
