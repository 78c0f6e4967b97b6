//! Makes titles visible whose files are complete and durable.

use std::sync::Arc;

use super::Inner;
use super::catalogue::Catalogue;
use super::dirs::{Dirs, rename, sync_dir, write_new};
use super::lock::StoreLock;
use super::workspace::Workspace;
use super::writer::INGEST;
use crate::error::StoreError;
use crate::format::manifest::{MANIFEST_FILE, Manifest};
use crate::volume::TitleInfo;

/// A title of which all but the manifest is written.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) volume: Arc<Inner>,
    /// The members it is on, by position, and the list of members that says so.
    pub(super) homes: Vec<Dirs>,
    pub(super) generation: u64,
    pub(super) workspace: Workspace,
    /// Without its name.
    pub(super) manifest: Manifest,
}

/// Name, manifest, renames, catalogue: under the locks of all members, so that no other process takes the name meanwhile. Of several titles the
/// others are derived from the first, which is renamed last: with that all are there.
pub(super) fn publish(mut titles: Vec<Ready>) -> Result<Vec<TitleInfo>, StoreError> {
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
    name(&volume, &mut titles)?;
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
    let mut infos = Vec::with_capacity(titles.len());
    for title in titles {
        let Ready { homes, workspace, manifest, .. } = title;
        let info = manifest.title.clone();
        // Where it is visible the rest must not be removed: the next open completes it.
        if homes.iter().any(|home| home.title(info.id).exists()) {
            workspace.forget();
        }
        infos.push((info, manifest));
    }
    shown?;
    sync()?;
    // The titles are there whatever becomes of the catalogue, which is only a cache and finds them at its next refresh.
    let put = |(info, manifest): (TitleInfo, Manifest)| {
        let _ = volume.with_catalogue(move |catalogue| catalogue.put(&manifest));
        info
    };
    Ok(infos.into_iter().map(put).collect())
}

/// Gives each title its name.
fn name(volume: &Inner, titles: &mut [Ready]) -> Result<(), StoreError> {
    let mut parent = None::<String>;
    for title in titles {
        let (id, wanted, derived) =
            (title.manifest.title.id, title.manifest.title.name.clone(), title.manifest.title.derived);
        let of = parent.clone();
        let named = volume.with_catalogue(move |catalogue: &mut Catalogue| match (derived, of) {
            (Some(derived), Some(parent)) => catalogue.free_derived_name(id, derived, &parent),
            (Some(derived), None) => catalogue.name_of_derived(id, derived),
            (None, _) => catalogue.free_name(&wanted),
        })?;
        parent.get_or_insert_with(|| named.clone());
        title.manifest.title.name = named;
        title.manifest.validate().map_err(|e| StoreError::BadTitle { id, what: e.to_string() })?;
    }
    Ok(())
}

/// The renames of all titles, the first one's last. If one fails, those before it are taken back.
fn show_all(titles: &[Ready], sync: &dyn Fn() -> Result<(), StoreError>) -> Result<(), StoreError> {
    let in_order = || titles.iter().skip(1).chain(titles.first());
    for (done, title) in in_order().enumerate() {
        let is_last = done + 1 == titles.len();
        // The others must be there after a power cut if the first is.
        let before = if is_last && done > 0 { sync() } else { Ok(()) };
        if let Err(error) = before.and_then(|()| title.show()) {
            in_order().take(done).try_for_each(Ready::hide)?;
            return Err(error);
        }
    }
    Ok(())
}

impl Ready {
    fn write_manifest(&self, lock: &StoreLock) -> Result<(), StoreError> {
        let bytes = self.manifest.encode();
        for (home, path) in self.homes.iter().zip(self.workspace.paths()) {
            write_new(&home.disk, &path.join(MANIFEST_FILE), &bytes)?;
        }
        self.workspace.unmark(lock)?;
        for (home, path) in self.homes.iter().zip(self.workspace.paths()) {
            sync_dir(&home.disk, path)?;
            // Whoever finds it visible on one member must find it on all: what is not renamed there yet is renamed then.
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
