//! Makes titles visible whose files are complete and durable.

use std::sync::Arc;

use millrace_core::ids::TitleId;

use super::catalogue::Catalogue;
use super::lock::StoreLock;
use super::name::slug;
use super::remove;
use super::state::{Volume, VolumeInner};
use super::workspace::Workspace;
use crate::dirs::{Dirs, remove_tree, rename, sync_dir, write_new};
use crate::error::StoreError;
use crate::format::manifest::{MANIFEST_FILE, Manifest};
use crate::format::title_info::TitleInfo;
use crate::naming::{title_text, with_folder as with_folder_title};

/// What needs all members, for errors.
pub(super) const INGEST: &str = "adding a film";

/// Names of a new title beside its URL name, the hash of its source, and the title that it
/// replaces.
#[derive(Clone, Debug, Default)]
pub struct Naming {
    /// Display name.
    pub title: Option<String>,
    /// A folder that goes before both names if another title has the name.
    pub folder: Option<String>,
    /// BLAKE3 of the source file, if that is not the data.
    pub source_blake3: Option<String>,
    /// The title to replace. The new title gets its name, and its display name unless a new one is
    /// given. If that title no longer exists, the title with the requested name and the same source
    /// path is replaced.
    pub replaces: Option<TitleId>,
}

/// A title whose files are all written except the manifest.
#[derive(Debug)]
pub(super) struct UnpublishedTitle {
    pub(super) volume: Arc<VolumeInner>,
    /// Members that hold the title, by position, and the generation of the member list they come
    /// from.
    pub(super) homes: Vec<Dirs>,
    pub(super) generation: u64,
    pub(super) workspace: Workspace,
    /// Without its name.
    pub(super) manifest: Manifest,
    pub(super) naming: Naming,
}

/// Name, manifest, renames, catalogue: under the locks of all members, so that no other process
/// takes the name meanwhile. With several titles, the others are derived from the first, which is
/// renamed last: once it is visible, all are there.
///
/// If the first title replaces another one, the old title is removed afterwards under the same
/// locks, preceded by all titles derived from it. After a crash, its remains are no longer listed,
/// and the next open removes them.
pub(super) fn publish(mut titles: Vec<UnpublishedTitle>) -> Result<Vec<TitleInfo>, StoreError> {
    let Some(first) = titles.first() else { return Ok(Vec::new()) };
    let volume = Arc::clone(&first.volume);
    let (lock, usable) = StoreLock::take_all(&volume.members, &|slot| volume.dirs(slot))?;
    for title in &titles {
        if title.generation != volume.members.generation() || usable.len() != title.homes.len() {
            volume.all_members(INGEST)?;
            let what = "the members of the volume changed meanwhile; add the file again".to_owned();
            return Err(StoreError::BadTitle { id: title.manifest.title.id, what });
        }
    }
    let replaced = name(&volume, &mut titles)?;
    for title in &titles {
        title.write_manifest(&lock)?;
    }
    let homes = titles[0].homes.clone();
    let sync = || {
        homes.iter().try_for_each(|home| {
            sync_dir(&home.disk, &home.titles)?;
            sync_dir(&home.disk, &home.tmp)
        })
    };
    let shown = show_all(&titles, &sync);
    let (mut infos, mut renamed) = (Vec::with_capacity(titles.len()), Vec::new());
    for title in titles {
        let UnpublishedTitle { homes, mut workspace, manifest, .. } = title;
        let info = manifest.title.clone();
        // Where it is visible the rest must not be removed: the next open completes it.
        if homes.iter().any(|home| home.title(info.id).exists()) {
            workspace.leave();
            renamed.push(workspace);
        }
        infos.push((info, manifest));
    }
    shown?;
    sync()?;
    // Only now: a power cut could undo the renames, and without its note a recording would be swept.
    renamed.iter().for_each(Workspace::remove_notes);
    // The new title is in place. If the old one cannot be removed now, the next open removes it.
    let hidden = replaced.map(|old| remove::hide_with_derived(&volume, &old, &lock).unwrap_or_default());
    drop(lock);
    for (dirs, id) in hidden.unwrap_or_default() {
        let _ = remove_tree(&dirs.disk, &dirs.removed(id));
    }
    // The titles are there whatever becomes of the catalogue, which is only a cache and finds them at its next refresh.
    let put = |(info, manifest): (TitleInfo, Manifest)| {
        let _ = volume.with_catalogue(move |catalogue| catalogue.put(&manifest));
        info
    };
    Ok(infos.into_iter().map(put).collect())
}

/// Gives each title its name; returns the title that the first one replaces.
fn name(volume: &VolumeInner, titles: &mut [UnpublishedTitle]) -> Result<Option<TitleInfo>, StoreError> {
    let mut parent = None::<String>;
    let mut replaced = None;
    for title in titles {
        let UnpublishedTitle { manifest, naming, .. } = title;
        let (id, derived, of) = (manifest.title.id, manifest.title.derived, parent.clone());
        match derived {
            None => replaced = name_of_own(volume, &mut manifest.title, naming)?,
            Some(derived) => {
                manifest.title.name = volume.with_catalogue(move |catalogue: &mut Catalogue| match of {
                    Some(parent) => catalogue.free_derived_name(id, derived, &parent),
                    None => catalogue.name_of_derived(id, derived),
                })?;
            }
        }
        parent.get_or_insert_with(|| manifest.title.name.clone());
        manifest.validate().map_err(|e| StoreError::BadTitle { id, what: e.to_string() })?;
    }
    Ok(replaced)
}

/// Names a title that is not derived from another: it gets the name of the title that it replaces,
/// which is returned, or a free name.
fn name_of_own(
    volume: &VolumeInner,
    info: &mut TitleInfo,
    naming: &Naming,
) -> Result<Option<TitleInfo>, StoreError> {
    let wanted = info.name.clone();
    if let Some(id) = naming.replaces {
        let (slug, path) = (slug(&wanted), info.source.path.clone());
        let old = volume.with_catalogue(move |catalogue| match catalogue.by_id(id)? {
            Some(old) => Ok(Some(old)),
            None => Ok(catalogue.by_name(&slug)?.filter(|other| other.source.path == path)),
        })?;
        if let Some(old) = old.filter(|old| old.derived.is_none()) {
            info.name.clone_from(&old.name);
            info.title = info.title.take().or_else(|| old.title.clone());
            info.origin.replaces = Some(old.id);
            return Ok(Some(old));
        }
    }
    let folder = naming.folder.clone();
    let with_folder = folder.as_ref().map(|folder| format!("{folder} {wanted}"));
    let wishes: Vec<String> = std::iter::once(wanted).chain(with_folder).collect();
    let free = volume.with_catalogue(move |catalogue| catalogue.free_name(&wishes))?;
    if let (Some(title), Some(folder)) = (&info.title, folder.filter(|_| free.wish > 0)) {
        info.title = Some(with_folder_title(&folder, title));
    }
    if let (Some(title), Some(number)) = (&info.title, free.number) {
        info.title = Some(title_text(&format!("{title} ({number})")));
    }
    info.name = free.name;
    Ok(None)
}

impl Volume {
    /// Name and display name that a title with these wishes gets, as long as no other title takes them before.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub fn free_names(&self, wish: &str, title: &str) -> Result<(String, String), StoreError> {
        let wishes = [wish.to_owned()];
        let free = self.inner.with_catalogue(move |catalogue| catalogue.free_name(&wishes))?;
        let title = free.number.map_or_else(|| title.to_owned(), |n| title_text(&format!("{title} ({n})")));
        Ok((free.name, title))
    }
}

/// The renames of all titles, the first one's last. If one fails, those before it are taken back.
fn show_all(
    titles: &[UnpublishedTitle],
    sync: &dyn Fn() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let in_order = || titles.iter().skip(1).chain(titles.first());
    for (done, title) in in_order().enumerate() {
        let is_last = done + 1 == titles.len();
        // The others must be there after a power cut if the first is.
        let before = if is_last && done > 0 { sync() } else { Ok(()) };
        if let Err(error) = before.and_then(|()| title.show()) {
            in_order().take(done).try_for_each(UnpublishedTitle::hide)?;
            return Err(error);
        }
    }
    Ok(())
}

impl UnpublishedTitle {
    fn write_manifest(&self, lock: &StoreLock) -> Result<(), StoreError> {
        let bytes = self.manifest.encode();
        for (home, path) in self.homes.iter().zip(self.workspace.paths()) {
            write_new(&home.disk, &path.join(MANIFEST_FILE), &bytes)?;
        }
        self.workspace.unmark(lock)?;
        for (home, path) in self.homes.iter().zip(self.workspace.paths()) {
            sync_dir(&home.disk, path)?;
            // If recovery finds the title visible on one member, it must find it on all: it then
            // performs the renames still missing.
            sync_dir(&home.disk, &home.tmp)?;
        }
        Ok(())
    }

    /// The renames. If one fails, those before it are taken back: the title was not acknowledged.
    fn show(&self) -> Result<(), StoreError> {
        for (done, (home, path)) in self.homes.iter().zip(self.workspace.paths()).enumerate() {
            if let Err(error) = rename(&home.disk, path, &home.title(self.workspace.id())) {
                self.hide_on(done)?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn hide(&self) -> Result<(), StoreError> {
        self.hide_on(self.homes.len())
    }

    fn hide_on(&self, members: usize) -> Result<(), StoreError> {
        for (home, path) in self.homes.iter().zip(self.workspace.paths()).take(members) {
            rename(&home.disk, &home.title(self.workspace.id()), path)?;
        }
        Ok(())
    }
}
