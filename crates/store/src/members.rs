//! The members of a volume as a running process sees them: the directory of each slot, and whether
//! it is trusted.
//!
//! A member is trusted only if the superblock in its directory has the UUID that the newest
//! `members.mrm` records for its slot, and it is used for reading only if `members.mrm` records it
//! as `active`. So a disk that was out and came back with old titles, or another disk at the same
//! path, is never mistaken for a member that it is not.
//!
//! A member whose disk does not respond counts as missing until it does ([`crate::blocking`]):
//! it holds up no caller.

mod look;

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::look::{DirectoryFindings, TitlesDirState};
pub(crate) use self::look::{hint, read_record};
use crate::blocking::{BlockingCalls, BlockingCallsByDir, TimedOut, Timeout};
use crate::dirs::Dirs;
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::members::MembersRecord;
pub use crate::format::members::{MemberEntry, MemberState};
use crate::format::superblock::Geometry;

/// The members of a volume; shared by everything that works with it, and brought up to date by [`Members::refresh`].
#[derive(Debug)]
pub struct Members {
    now: RwLock<Now>,
    /// The blocking calls on each directory.
    blocking: BlockingCallsByDir,
}

#[derive(Clone, Debug)]
struct Now {
    /// Only these directories are looked at, whatever the hints say.
    explicit: Option<Vec<PathBuf>>,
    volume: Uuid,
    geometry: Geometry,
    /// `None` for a volume of one member without parity.
    record: Option<MembersRecord>,
    slots: Vec<MemberSlot>,
}

#[derive(Clone, Debug)]
struct MemberSlot {
    dir: PathBuf,
    member: Uuid,
    state: MemberState,
    /// Why it is absent or not trusted.
    absent: Option<String>,
    epoch: u32,
    disk: u32,
    /// The blocking calls on it.
    blocking: BlockingCalls,
}

/// One slot, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotReport {
    /// Its place in the volume.
    pub index: usize,
    /// Where it is, or was last.
    pub dir: PathBuf,
    /// The member that belongs there.
    pub member: Uuid,
    /// Whether the volume believes it.
    pub state: MemberState,
    /// Why it is not there; `None` if it is.
    pub absent: Option<String>,
}

impl Members {
    /// Finds the members from any member's directory, by the hints in `members.mrm`.
    ///
    /// # Errors
    /// If `dir` is no member, or members say different things in one generation.
    pub fn find(dir: &Path) -> Result<Self, StoreError> {
        let blocking = BlockingCallsByDir::default();
        let now = Self::look(&[dir.to_path_buf()], true, (&blocking, Timeout::Work))?;
        Ok(Self { now: RwLock::new(now), blocking })
    }

    /// Finds the members in exactly these directories.
    ///
    /// # Errors
    /// As [`Members::find`]; and if two directories are of different volumes.
    pub fn among(dirs: &[PathBuf]) -> Result<Self, StoreError> {
        let blocking = BlockingCallsByDir::default();
        let now = Self::look(dirs, false, (&blocking, Timeout::Work))?;
        Ok(Self { now: RwLock::new(Now { explicit: Some(dirs.to_vec()), ..now }), blocking })
    }

    fn look(
        dirs: &[PathBuf],
        hints: bool,
        (blocking, timeout): (&BlockingCallsByDir, Timeout),
    ) -> Result<Now, StoreError> {
        let mut looks: Vec<DirectoryFindings> = Vec::new();
        let mut next: Vec<PathBuf> = dirs.to_vec();
        let volume = loop {
            looks.extend(DirectoryFindings::at_all(next.drain(..), blocking, timeout));
            let volume = volume_of(&mut looks, hints)?;
            let known = newest(&looks, volume)?;
            let new = |path: &PathBuf| hints && looks.iter().all(|look| look.dir != *path);
            next.extend(known.iter().flat_map(|r| &r.members).map(|m| m.path.clone()).filter(new));
            if next.is_empty() {
                break volume;
            }
        };
        match newest(&looks, volume)? {
            Some(record) => Ok(Now::of(record.clone(), &looks)),
            None => Now::alone(&looks),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Now> {
        self.now.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slots, from 0; grows when a member is added.
    pub fn len(&self) -> usize {
        self.read().slots.len()
    }

    /// Never: a volume has at least one member.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The volume.
    pub fn volume(&self) -> Uuid {
        self.read().volume
    }

    /// How the stripes of new titles are laid out.
    pub fn geometry(&self) -> Geometry {
        self.read().geometry
    }

    /// Generation of the list of members; 0 if the volume has none.
    pub fn generation(&self) -> u64 {
        self.read().record.as_ref().map_or(0, |record| record.generation)
    }

    /// The list of members; `None` for a volume of one member without parity.
    pub fn record(&self) -> Option<MembersRecord> {
        self.read().record.clone()
    }

    /// The directory of slot `i`: where it is, or was last. Empty beyond the slots.
    pub fn dir(&self, i: usize) -> PathBuf {
        self.read().slots.get(i).map(|slot| slot.dir.clone()).unwrap_or_default()
    }

    /// The UUID of the member that belongs to slot `i`.
    pub fn member(&self, i: usize) -> Option<Uuid> {
        self.read().slots.get(i).map(|slot| slot.member)
    }

    /// Returns whether slot `i` is there (the right member is in its directory) and active: its
    /// content may be read and trusted.
    pub fn is_usable(&self, i: usize) -> bool {
        self.read().slots.get(i).is_some_and(MemberSlot::is_usable)
    }

    /// Whether the right member is in the directory of slot `i`, whatever its state.
    pub fn is_present(&self, i: usize) -> bool {
        self.read().slots.get(i).is_some_and(MemberSlot::is_present)
    }

    /// Returns the state of slot `i` in the volume; [`MemberState::Stale`] beyond the slots.
    pub fn state(&self, i: usize) -> MemberState {
        self.read().slots.get(i).map_or(MemberState::Stale, |slot| slot.state)
    }

    /// Changes when the files of slot `i` must be opened again: another directory, another member, one that had gone, or a new
    /// generation, which a repair or a scrub makes when it has put other files in place.
    pub fn epoch(&self, i: usize) -> u32 {
        self.read().slots.get(i).map_or(0, |slot| slot.epoch)
    }

    /// Returns a number that changes when slot `i` is on another disk, or on one that had gone:
    /// earlier read statistics are meaningless then.
    pub fn disk(&self, i: usize) -> u32 {
        self.read().slots.get(i).map_or(0, |slot| slot.disk)
    }

    /// The slots that can be used, ascending.
    pub fn usable(&self) -> Vec<usize> {
        let now = self.read();
        (0..now.slots.len()).filter(|&i| now.slots[i].is_usable()).collect()
    }

    /// Returns the slots that should be trusted but are not there.
    pub fn missing(&self) -> Vec<usize> {
        let now = self.read();
        let missing = |slot: &MemberSlot| slot.state == MemberState::Active && !slot.is_present();
        (0..now.slots.len()).filter(|&i| missing(&now.slots[i])).collect()
    }

    /// All slots, for people.
    pub fn report(&self) -> Vec<SlotReport> {
        let slots = self.read().slots.clone();
        let report = |(index, slot): (usize, MemberSlot)| {
            let MemberSlot { dir, member, state, absent, blocking, .. } = slot;
            let absent = absent.or_else(|| blocking.hangs().then(|| TimedOut.to_string()));
            SlotReport { index, dir, member, state, absent }
        };
        slots.into_iter().enumerate().map(report).collect()
    }

    /// The blocking calls on the directory of slot `i`; none if there is no such slot.
    pub fn blocking(&self, i: usize) -> BlockingCalls {
        self.read().slots.get(i).map(|slot| slot.blocking.clone()).unwrap_or_default()
    }

    /// Has something done in the directory of slot `i`, by a thread of its own that is given up if the disk does not answer:
    /// the member counts as missing then until it does.
    ///
    /// # Errors
    /// [`StoreError::TimedOut`]
    pub fn ask<T: Send + 'static>(
        &self,
        i: usize,
        timeout: Timeout,
        work: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (dir, blocking) = (self.dir(i), self.blocking(i));
        let path = dir.clone();
        blocking.send(timeout, move || work(&dir)).map_err(|TimedOut| StoreError::TimedOut { path })
    }

    /// Looks again for the members that are there, and for the newest list of members. A few small
    /// reads for each member; a member that cannot be read, or does not respond, counts as missing.
    /// Returns whether anything changed.
    pub fn refresh(&self) -> bool {
        let before = self.read().clone();
        let Some(seen) = &before.record else { return self.refresh_single(&before) };
        let dirs: Vec<PathBuf> = match &before.explicit {
            Some(dirs) => dirs.clone(),
            None => before.slots.iter().map(|slot| slot.dir.clone()).collect(),
        };
        let mut looks = self.look_at(dirs);
        let is_there =
            |slot: &MemberSlot| looks.iter().any(|look| look.is_member(before.volume, slot.member));
        if before.explicit.is_none() && !before.slots.iter().all(is_there) {
            self.look_further(&mut looks, seen);
        }
        // A list that differs in the same generation, or that has gone on alone, was used apart
        // from the others: it is ignored.
        let heard = !went_on_alone(&looks, before.volume, seen);
        let newer = looks.iter().filter_map(|look| look.record_of(before.volume)).filter(|_| heard);
        let newest = newer.filter(|r| r.generation > seen.generation).max_by_key(|r| r.generation).cloned();
        if let (Some(record), None) = (&newest, &before.explicit) {
            self.look_further(&mut looks, record);
        }
        let after = Now::of(newest.unwrap_or_else(|| seen.clone()), &looks).after(&before);
        self.adopt(&before, after)
    }

    fn refresh_single(&self, before: &Now) -> bool {
        let Some(slot) = before.slots.first() else { return false };
        let Some(look) = self.look_at([slot.dir.clone()]).pop() else { return false };
        if look.record.is_some() {
            // It has become a volume of several members, or with parity.
            let by = (&self.blocking, Timeout::Call);
            return match Self::look(std::slice::from_ref(&slot.dir), true, by) {
                Ok(after) => self.adopt(before, after.after(before)),
                Err(_) => false,
            };
        }
        let mut after = before.clone();
        let there = look.is_member(before.volume, slot.member);
        after.slots[0].absent = (!there).then(|| look.why_not());
        self.adopt(before, after.after(before))
    }

    /// Adopts the findings, unless another thread has found something newer meanwhile.
    fn adopt(&self, before: &Now, after: Now) -> bool {
        let generation = |now: &Now| now.record.as_ref().map_or(0, |r| r.generation);
        let mut now = self.write();
        if generation(&now) != generation(before) {
            return true;
        }
        let changed = generation(&after) != generation(before)
            || after.slots.len() != before.slots.len()
            || after.slots.iter().zip(&before.slots).any(|(a, b)| a.differs(b));
        if changed {
            *now = after;
        }
        changed
    }

    /// Returns the members according to a list that this process is about to write; it may name a
    /// member in a new directory. Nothing is adopted yet.
    pub(crate) fn with_list(&self, record: MembersRecord) -> Planned {
        let now = self.read().clone();
        let mut explicit = now.explicit.clone();
        let looks = match &mut explicit {
            None => {
                let mut looks = self.look_at(now.slots.iter().map(|slot| slot.dir.clone()));
                self.look_further(&mut looks, &record);
                looks
            }
            Some(dirs) => {
                // The list itself names the directory of an added member.
                let is_new = |entry: &&MemberEntry| now.slots.iter().all(|slot| slot.member != entry.member);
                dirs.extend(record.members.iter().filter(is_new).map(|entry| entry.path.clone()));
                self.look_at(dirs.iter().cloned())
            }
        };
        Planned { now: Now { explicit, ..Now::of(record, &looks) } }
    }

    /// Takes a list of members that this process has just written.
    pub(crate) fn install(&self, planned: Planned) {
        let mut now = self.write();
        let explicit = planned.now.explicit.clone();
        *now = Now { explicit, ..planned.now.after(&now) };
    }

    fn look_at(&self, dirs: impl IntoIterator<Item = PathBuf>) -> Vec<DirectoryFindings> {
        DirectoryFindings::at_all(dirs, &self.blocking, Timeout::Call)
    }

    /// Looks also in the directories that the list names.
    fn look_further(&self, looks: &mut Vec<DirectoryFindings>, record: &MembersRecord) {
        let paths = record.members.iter().map(|entry| &entry.path);
        let new: Vec<_> = paths.filter(|path| looks.iter().all(|look| look.dir != **path)).cloned().collect();
        looks.extend(self.look_at(new));
    }
}

/// The members according to a list that is not published yet.
#[derive(Debug)]
pub(crate) struct Planned {
    now: Now,
}

impl Planned {
    /// The directories of the members that are there, with whether each is active.
    pub(crate) fn there(&self) -> impl Iterator<Item = (&Path, Uuid, MemberState)> {
        let there = self.now.slots.iter().filter(|slot| slot.absent.is_none());
        there.map(|slot| (slot.dir.as_path(), slot.member, slot.state))
    }
}

impl MemberSlot {
    fn is_usable(&self) -> bool {
        self.state == MemberState::Active && self.is_present()
    }

    fn is_present(&self) -> bool {
        self.absent.is_none() && !self.blocking.hangs()
    }

    /// Returns whether it was readable when it was last looked at.
    fn was_usable(&self) -> bool {
        self.state == MemberState::Active && self.absent.is_none()
    }

    fn differs(&self, other: &Self) -> bool {
        (&self.dir, self.member, self.state, &self.absent)
            != (&other.dir, other.member, other.state, &other.absent)
    }
}

impl Now {
    /// Several members, or one with parity: the newest list, compared with the members that are
    /// there.
    fn of(record: MembersRecord, looks: &[DirectoryFindings]) -> Self {
        let any = looks.iter().any(|look| {
            look.block.as_ref().is_ok_and(|block| block.volume == record.volume)
                && matches!(look.titles, TitlesDirState::Listed { any: true })
        });
        let slot = |entry: &MemberEntry| {
            let found = looks.iter().find(|look| look.is_member(record.volume, entry.member));
            // A directory may have been named in another way than the list has it.
            let is_there = |look: &&DirectoryFindings| look.dir == entry.path || look.hint == entry.path;
            let there = looks.iter().find(is_there);
            let blocking = found.or(there).map(|look| look.blocking.clone()).unwrap_or_default();
            let not_looked_at = "it is not among the directories that were named".to_owned();
            MemberSlot {
                dir: found.or(there).map_or_else(|| entry.path.clone(), |look| look.dir.clone()),
                member: entry.member,
                state: entry.state,
                absent: match (found, there) {
                    (Some(look), _) => look.why_unlisted(entry.state, any),
                    (None, Some(look)) => Some(look.why_not()),
                    (None, None) => Some(not_looked_at),
                },
                epoch: 0,
                disk: 0,
                blocking,
            }
        };
        let slots = record.members.iter().map(slot).collect();
        Self {
            explicit: None,
            volume: record.volume,
            geometry: record.geometry(),
            slots,
            record: Some(record),
        }
    }

    /// One member that has no list of members.
    fn alone(looks: &[DirectoryFindings]) -> Result<Self, StoreError> {
        let incomplete = |look: &DirectoryFindings| {
            let reason = "it is one of several members, or has parity, and its members.mrm is missing or damaged; open the \
                          volume by another of its members";
            Err(StoreError::NotAStore { path: look.dir.clone(), reason })
        };
        match looks {
            [look] => {
                let DirectoryFindings { dir, block: Ok(block), record, blocking, .. } = look else {
                    return incomplete(look);
                };
                let unsupported = |e| StoreError::Format { path: Dirs::new(dir).superblock(), error: e };
                block.geometry.check_supported("superblock").map_err(unsupported)?;
                if record.is_some() || !block.geometry.is_single() {
                    // A damaged list is not ignored: the volume may have other members.
                    return incomplete(look);
                }
                let member = block.member;
                let (dir, blocking) = (dir.clone(), blocking.clone());
                let state = MemberState::Active;
                let slot = MemberSlot { dir, member, state, absent: None, epoch: 0, disk: 0, blocking };
                let (volume, geometry) = (block.volume, block.geometry);
                Ok(Self { explicit: None, volume, geometry, record: None, slots: vec![slot] })
            }
            [first, ..] => incomplete(first),
            [] => Err(StoreError::BadVolume("no directory was named".to_owned())),
        }
    }

    /// Counts disks and epochs on, of slots that have another member or directory now, or are back; in a new generation the epochs of
    /// all, since files may have been repaired.
    fn after(mut self, before: &Self) -> Self {
        self.explicit.clone_from(&before.explicit);
        let generation = |now: &Self| now.record.as_ref().map(|record| record.generation);
        let newer = generation(&self) != generation(before);
        for (slot, old) in self.slots.iter_mut().zip(&before.slots) {
            let moved = (&slot.dir, slot.member) != (&old.dir, old.member);
            let back = slot.was_usable() && !old.was_usable();
            slot.disk = old.disk.wrapping_add(u32::from(moved || back));
            slot.epoch = old.epoch.wrapping_add(u32::from(moved || back || newer));
        }
        self
    }
}

/// The volume that the directories belong to: that of the first member among them. A hint that leads to another volume is
/// not followed; a directory that was named and belongs to another is an error.
fn volume_of(looks: &mut [DirectoryFindings], hints: bool) -> Result<Uuid, StoreError> {
    let mut members = looks.iter().filter_map(|look| Some((&look.dir, look.block.as_ref().ok()?.volume)));
    if let Some((first, volume)) = members.next() {
        return match members.find(|&(_, other)| other != volume) {
            Some((dir, other)) if !hints => Err(StoreError::BadVolume(format!(
                "{} belongs to volume {volume}, {} to volume {other}; name the members of one volume",
                first.display(),
                dir.display()
            ))),
            _ => Ok(volume),
        };
    }
    // The first directory's own error is the most specific.
    let reason = "no member of a volume was found";
    let none = |look: &DirectoryFindings| StoreError::NotAStore { path: look.dir.clone(), reason };
    match looks.first_mut() {
        None => Err(StoreError::BadVolume("no directory was named".to_owned())),
        Some(look) => {
            let placeholder = Err(none(look));
            Err(std::mem::replace(&mut look.block, placeholder).err().unwrap_or_else(|| none(look)))
        }
    }
}

/// The newest list of members of this volume.
fn newest(looks: &[DirectoryFindings], volume: Uuid) -> Result<Option<&MembersRecord>, StoreError> {
    let lists = || looks.iter().filter_map(|look| Some((look.record_of(volume)?, look.dir.as_path())));
    let Some((best, at)) = lists().rev().max_by_key(|(record, _)| record.generation) else { return Ok(None) };
    for (record, dir) in lists() {
        let differs =
            |&(other, _): &(&MembersRecord, _)| other.generation == record.generation && other != record;
        let apart = match went_on_alone(looks, volume, record) {
            true => Some((best, at)),
            false => lists().find(differs),
        };
        if let Some((_, other)) = apart {
            let (one, other) = (dir.to_path_buf(), other.to_path_buf());
            return Err(StoreError::Apart { one, other, generation: record.generation });
        }
    }
    Ok(Some(best))
}

/// Whether newer lists than `known` were made without its members: none of those that have one is active by `known`. All that
/// are must be there and have nothing newer, for only they can have made others active.
fn went_on_alone(looks: &[DirectoryFindings], volume: Uuid, known: &MembersRecord) -> bool {
    let newest = |look: &DirectoryFindings| look.record_of(volume).map(|record| record.generation);
    let mut active = known.members.iter().filter(|entry| entry.state == MemberState::Active);
    let stayed = |entry: &MemberEntry| {
        let mut here = looks.iter().filter(|look| look.is_member(volume, entry.member)).peekable();
        here.peek().is_some() && here.all(|look| newest(look).is_some_and(|seen| seen <= known.generation))
    };
    looks.iter().filter_map(newest).any(|seen| seen > known.generation) && active.all(stayed)
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
