//! A cache without a thread: its caller turns it, and its disks are simulated.

use std::sync::Arc;
use std::sync::mpsc::channel;

use millrace_core::ids::TitleRef;
use millrace_core::pool::ExtentArena;
use millrace_core::seam::{Clock, Doorbell};
use millrace_core::time::Instant;

use super::super::handle;
use super::super::read::simulated::Simulated;
use super::super::residents::ResidentExtents;
use super::super::stats::{CacheCounters, CacheStats};
use super::super::{CacheConfig, CacheError, CacheHandle, ReadyTitle};
use super::{Manager, ManagerParts, reader_size};
use crate::bell::EventBell;
use crate::disk::ReadFaults;

/// The cache's manager, turned by its caller in virtual time. It has the policy, the reads and the
/// repairs of [`Cache`](crate::cache::Cache), and no system call but reads of files.
pub struct SteppedCache {
    manager: Manager,
    arena: Arc<ExtentArena>,
    /// When it should have run again, if nothing came before.
    due: Option<Instant>,
}

impl SteppedCache {
    /// As [`Cache::start_with_faults`](crate::cache::Cache::start_with_faults); the time that reads
    /// take is drawn from `seed`.
    ///
    /// # Errors
    /// When memory or descriptors are refused.
    pub fn new(
        config: CacheConfig,
        arena: Arc<ExtentArena>,
        clock: Arc<dyn Clock + Send + Sync>,
        bells: Vec<Arc<dyn Doorbell>>,
        (faults, seed): (ReadFaults, u64),
    ) -> Result<(Self, Vec<CacheHandle>), CacheError> {
        let wake = Arc::new(EventBell::new().map_err(CacheError::Resources)?);
        let residents = ResidentExtents::new(Arc::clone(&arena));
        let pair = |bell| handle::pair(Arc::clone(&wake), bell, &residents);
        let (handles, ends) = bells.into_iter().map(pair).unzip();
        let reader = Simulated::new(reader_size(&config), faults.clone(), seed);
        let reader = reader.map_err(CacheError::Resources)?;
        let (_, control) = channel();
        let counters = Arc::new(CacheCounters::default());
        let parts = ManagerParts { config, residents, handles: ends, control, wake, clock, counters, faults };
        let manager = Manager::with_reader(parts, Box::new(reader));
        Ok((Self { manager, arena, due: None }, handles))
    }

    /// As [`Cache::open_ready`](crate::cache::Cache::open_ready).
    ///
    /// # Errors
    /// [`CacheError::TooManyTitles`]
    pub fn open_ready(&mut self, now: Instant, ready: ReadyTitle) -> Result<TitleRef, CacheError> {
        let ReadyTitle { title, members } = ready;
        if let Some(members) = members {
            self.manager.monitor.watch(now, members);
        }
        self.manager.policy.open_title(*title).ok_or(CacheError::TooManyTitles)
    }

    /// As [`Cache::close_title`](crate::cache::Cache::close_title).
    pub fn close_title(&mut self, now: Instant, title: TitleRef) {
        self.manager.policy.close_title(now, title);
        self.manager.forget_title(title);
    }

    /// Does what there is to do. Returns how much that was.
    pub fn turn(&mut self, now: Instant) -> usize {
        if self.due.take_if(|due| *due <= now).is_some() {
            self.manager.policy.retry_room();
        }
        let mut work = 0;
        loop {
            let done = self.manager.turn(now);
            if done == 0 {
                break;
            }
            work += done;
        }
        self.due = self.manager.poll_at(now);
        work
    }

    /// When it has to be turned although nothing has been asked of it.
    pub fn poll_at(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.manager.reader.next_answer()).min()
    }

    /// As [`Cache::stats`](crate::cache::Cache::stats).
    pub fn stats(&self) -> CacheStats {
        let leased = (0..self.arena.extents()).filter(|&extent| self.arena.leases(extent) > 0).count();
        CacheStats { leased: leased as u64, ..self.manager.counters.snapshot() }
    }
}
