//! The state that all clones of a volume share, and the checks before every change.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::catalogue::Catalogue;
use super::lock::StoreLock;
use super::members_io::{enough, heal};
use super::recover::recover;
use crate::blocking::{BlockingCalls, TimedOut, Timeout};
use crate::dirs::{Dirs, make_subdirectories};
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::superblock::Superblock;
use crate::members::{MemberState, Members};

/// A volume of one or several store directories, its members. Cheap to clone; all clones share one connection to the
/// catalogue.
#[derive(Clone, Debug)]
pub struct Volume {
    pub(super) inner: Arc<VolumeInner>,
}

#[derive(Debug)]
pub(super) struct VolumeInner {
    /// The directory that it was opened by.
    pub(super) dir: PathBuf,
    pub(super) disk: Disk,
    pub(super) members: Arc<Members>,
    pub(super) superblock: Superblock,
    pub(super) catalogue: Mutex<CatalogueService>,
    /// Whether it has been put in order: that takes enough members.
    pub(super) in_order: AtomicBool,
}

/// The catalogue, and the thread that works with it.
#[derive(Debug)]
pub(super) struct CatalogueService {
    /// `None`: it is opened when it is needed next.
    pub(super) catalogue: Option<Catalogue>,
    pub(super) blocking: BlockingCalls,
}

impl VolumeInner {
    /// Runs `work` on the catalogue, which examines all members. If a member does not answer, the
    /// thread that waits for it keeps the catalogue, and the next caller gets another one, which
    /// leaves that member out: no more threads are lost than there are members. A thread that
    /// panicked left at worst a stale cache.
    pub(super) fn with_catalogue<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Catalogue) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let mut service = self.catalogue.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, members) = (service.catalogue.take(), Arc::clone(&self.members));
        let job = move || {
            let mut catalogue = kept.map_or_else(|| Catalogue::open(&members), Ok)?;
            let result = work(&mut catalogue);
            Ok::<_, StoreError>((catalogue, result))
        };
        let timed_out = |TimedOut| StoreError::TimedOut { path: self.dir.clone() };
        let pending = service.blocking.begin(Timeout::Work, job).map_err(timed_out)?;
        loop {
            if let Some(answer) = pending.look(Timeout::Work).map_err(timed_out)? {
                let (catalogue, result) = answer?;
                service.catalogue = Some(catalogue);
                return result;
            }
            // It may only be slow: the disk has much to do, another process has the catalogue.
            self.members.refresh();
            let hangs = |&slot: &usize| self.members.blocking(slot).hangs();
            if let Some(slot) = (0..self.members.len()).find(hangs) {
                service.blocking = BlockingCalls::default();
                return Err(StoreError::TimedOut { path: self.members.dir(slot) });
            }
        }
    }

    /// The paths of a slot.
    pub(super) fn dirs(&self, slot: usize) -> Dirs {
        Dirs::on(&self.members.dir(slot), self.disk.clone())
    }

    /// Those of all members that are there and complete.
    pub(super) fn usable(&self) -> Vec<Dirs> {
        self.members.usable().into_iter().map(|slot| self.dirs(slot)).collect()
    }

    /// Refuses a change that a present member could not accept, because the others would be left
    /// with half of it.
    pub(super) fn writable(&self, action: &'static str) -> Result<(), StoreError> {
        for slot in self.members.usable() {
            let may = |dir: &Path| rustix::fs::access(dir, rustix::fs::Access::WRITE_OK);
            // One that does not answer counts as missing from now on.
            if let Ok(Err(rustix::io::Errno::ROFS)) = self.members.ask(slot, Timeout::Work, may) {
                return Err(StoreError::ReadOnly { dir: self.members.dir(slot), action });
            }
        }
        Ok(())
    }

    /// Puts the volume in order if that could not be done when it was opened, and can be now.
    pub(super) fn tidy(&self) -> Result<(), StoreError> {
        if self.in_order.load(Ordering::Acquire) || enough(&self.dir, &self.members).is_err() {
            return Ok(());
        }
        let (lock, usable) = StoreLock::take_all(&self.members, &|slot| self.dirs(slot))?;
        enough(&self.dir, &self.members)?;
        put_in_order(&self.members, &usable, &self.disk, &lock)?;
        self.in_order.store(true, Ordering::Release);
        Ok(())
    }

    /// Those of the members that have to be there for something that changes all of them.
    pub(super) fn all_members(&self, action: &'static str) -> Result<Vec<Dirs>, StoreError> {
        self.members.refresh();
        let report = self.members.report();
        for slot in &report {
            let why = match (slot.state, &slot.absent) {
                (_, Some(absent)) => format!("cannot be used: {absent}"),
                (MemberState::Active, None) => continue,
                (MemberState::Rebuilding, None) => "is not complete yet".to_owned(),
                (MemberState::Stale, None) => "missed a change".to_owned(),
            };
            return Err(StoreError::MemberNeeded { dir: slot.dir.clone(), why, action });
        }
        self.writable(action)?;
        self.tidy()?;
        Ok((0..report.len()).map(|slot| self.dirs(slot)).collect())
    }
}

/// Finishes changes begun on some of the members, and sweeps the remains of dead processes.
pub(super) fn put_in_order(
    members: &Members,
    usable: &[Dirs],
    disk: &Disk,
    lock: &StoreLock,
) -> Result<(), StoreError> {
    for dirs in usable {
        make_subdirectories(dirs)?;
    }
    heal(members, disk, lock)?;
    recover(members, usable, disk, lock)
}
