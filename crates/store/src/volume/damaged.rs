//! Titles in which serving found damage: a list for the next scrub, and for people to read.
//!
//! It is a hint and never the truth. The same small text file lies on every member; it is written
//! where possible, and unreadable parts of it do not count. Nothing ever fails because of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use millrace_core::ids::TitleId;
use millrace_core::limits::MAX_DAMAGED_TITLES;

use super::lock::StoreLock;
use super::members_io::replace;
use super::state::{Volume, VolumeInner};
use crate::blocking::Timeout;
use crate::dirs::Dirs;
use crate::error::StoreError;
use crate::limits::MAX_DAMAGED_LIST_BYTES;

/// The list, in a store's directory.
pub const DAMAGED_FILE: &str = "damaged.txt";

const HEADER: &str = "# Titles in which serving found damage; millrace scrub looks at them first.\n";

/// Titles, with their names for people.
type List = BTreeMap<TitleId, String>;

impl Volume {
    /// Titles in which serving found damage, and that no scrub has found whole or repaired since; at most [`MAX_DAMAGED_TITLES`].
    pub fn damaged_titles(&self) -> Vec<TitleId> {
        let members = self.members();
        let mut all = List::new();
        for slot in members.usable() {
            let dirs = self.inner.dirs(slot);
            all.extend(members.ask(slot, Timeout::Work, move |_| read(&dirs)).unwrap_or_default());
        }
        all.into_keys().take(MAX_DAMAGED_TITLES).collect()
    }

    /// Serving has found damage in a title. May wait for disks.
    pub fn note_damaged(&self, id: TitleId) {
        // One that was removed meanwhile is not listed.
        if let Ok(Some(info)) = self.find(&id.to_string()) {
            change(&self.inner, move |list| {
                if list.len() < MAX_DAMAGED_TITLES {
                    list.insert(id, info.name.clone());
                }
            });
        }
    }

    /// Titles were removed, or were looked at and are whole.
    pub(crate) fn forget_damaged(&self, ids: &[TitleId]) {
        let ids = ids.to_vec();
        change(&self.inner, move |list| list.retain(|id, _| !ids.contains(id)));
    }
}

/// Changes the list on every member that takes it.
fn change(volume: &VolumeInner, with: impl Fn(&mut List) + Clone + Send + 'static) {
    for slot in volume.members.usable() {
        let (dirs, with) = (volume.dirs(slot), with.clone());
        // A member that misses the change has one title too many or too few in its list.
        let _ = volume.members.ask(slot, Timeout::Work, move |_| change_on(&dirs, with));
    }
}

fn change_on(dirs: &Dirs, with: impl Fn(&mut List)) -> Result<(), StoreError> {
    let changed = || {
        let before = read(dirs);
        let mut list = before.clone();
        with(&mut list);
        (list != before).then_some(list)
    };
    // Nearly always there is nothing to change, and no lock to wait for.
    if changed().is_none() {
        return Ok(());
    }
    let _store = StoreLock::take(dirs)?;
    let Some(list) = changed() else { return Ok(()) };
    let path = dirs.root.join(DAMAGED_FILE);
    if list.is_empty() {
        return dirs.disk.remove_file(&path).map_err(StoreError::io("remove", &path));
    }
    replace(dirs, DAMAGED_FILE, write(&list).as_bytes()).inspect_err(|_| {
        // The part that a full disk accepted.
        let _ = dirs.disk.remove_file(&dirs.root.join(format!("{DAMAGED_FILE}.new")));
    })
}

/// The list of a member; empty if there is none.
fn read(dirs: &Dirs) -> List {
    let mut bytes = Vec::new();
    // The data before an error counts.
    let _ = File::open(dirs.root.join(DAMAGED_FILE))
        .and_then(|file| file.take(MAX_DAMAGED_LIST_BYTES).read_to_end(&mut bytes));
    parse(&bytes)
}

/// Whatever begins a line with a title's id; all else does not count.
fn parse(bytes: &[u8]) -> List {
    let text = String::from_utf8_lossy(bytes);
    let title = |line: &str| {
        let (id, name) = line.split_once(' ').unwrap_or((line, ""));
        Some((id.parse().ok()?, name.to_owned()))
    };
    text.lines().filter_map(title).take(MAX_DAMAGED_TITLES).collect()
}

fn write(list: &List) -> String {
    list.iter().fold(HEADER.to_owned(), |text, (id, name)| text + &format!("{id} {name}\n"))
}

#[cfg(test)]
#[path = "damaged_tests.rs"]
mod tests;
