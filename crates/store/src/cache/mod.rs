//! The one copy of the title in memory: read ahead, lent to many, evicted by next use.
//!
//! One manager thread owns all policy and all disk input. Each engine loop has a [`CacheHandle`]:
//! it leases whole extents in memory directly. For all others it sends the wants of its streams and
//! receives [`Grant`]s, through two rings, without ever blocking or allocating. The control side
//! holds the [`Cache`].
//!
//! ```text
//!   engine loop ── CacheHandle ── leases ◄────────────────── residents ◄── whole extents ────┐
//!        ▲              └────── ══ wants, taken, leaves ══►  manager ── policy: playheads, plan, extent table
//!        │                      ◄══ grants ═════      │   ▲
//!        │                        bell                │   └─ read: io_uring (O_DIRECT) or threads
//!        └── reads leased extents ◄── arena ◄── fill ─┘      staging memory
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `manager` | the thread's loop: read this first |
//! | `policy` | its decisions, as a state machine without I/O |
//! | `playheads`, `plan`, `extent_table`, `evict` | the viewers' positions; the reads to make; the content of the extents; eviction |
//! | `streams`, `titles` | the two tables of names |
//! | `source` | the parts needed of a title; the differences between the kinds of titles; the place of an extent's bytes |
//! | `open` | from a source to an open title of its kind |
//! | `volume_sources` | titles of a volume as sources |
//! | `plain` | titles that are whole in one file |
//! | `derived` | titles that are transformed when an extent is filled ([`crate::transform`]) |
//! | `live` | titles that are still being written: the way in for their media |
//! | `growing` | recordings, read while their files grow |
//! | `order` | the reads for an extent, and their results |
//! | `read` | reading many extents at once, each from one file or from files on many members |
//! | `health` | which members are asked |
//! | `member_files` | the files of a title on its members, opened when needed |
//! | `stripes` | titles on several members, parity: what to read, FEC datagrams |
//! | `decode` | stripes with missing or wrong data |
//! | `builder`, `fill` | scratch memory; from file bytes to wire layout, summed on the way |
//! | `crcs` | the CRCs of an extent's parts |
//! | `config`, `error` | the settings and the errors |
//! | `residents` | the extents that engines lease without the manager |
//! | `handle`, `stats` | the rings, the counters |
//!
//! An extent that does not match its stored checksums is read once more. Packets that still do not
//! match and cannot be restored are left out: they are marked as missing and no viewer is sent a
//! wrong byte ([`Cache::damage`]). Data that a disk cannot read as a whole is read packet by
//! packet, or block by block, and costs only the data in its bad sectors. Damaged records, where no
//! copy of them is good, cost only packets that nothing else proves. Where too much of a title is
//! damaged, the streams that want it get an error ([`ReadFailure::Checksum`]). All other extents go
//! on.
#![deny(unsafe_code)]

mod aligned;
mod builder;
mod config;
mod crcs;
mod decode;
mod derived;
mod error;
mod evict;
mod extent_table;
mod fill;
mod growing;
mod handle;
mod health;
mod live;
mod manager;
mod member_files;
#[cfg(test)]
mod naive;
mod open;
mod order;
mod plain;
mod plan;
mod playheads;
mod policy;
mod read;
mod residents;
#[cfg(test)]
pub(crate) mod sample;
mod source;
mod stats;
mod streams;
mod stripes;
mod titles;
mod volume_sources;

use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::limits::MAX_READS_IN_FLIGHT;
use millrace_core::pool::ExtentArena;
use millrace_core::seam::{Clock, Doorbell};

pub use self::config::{CacheConfig, ReadBackend};
pub use self::derived::DerivedTitle;
pub use self::error::CacheError;
pub use self::growing::GrowingTitle;
pub use self::handle::{CacheHandle, Grant, ReadFailure};
pub use self::health::MemberHealth;
pub use self::live::{FeedError, Feeder, Keep, LiveTitle};
#[cfg(feature = "sim")]
pub use self::manager::stepped::SteppedCache;
pub use self::member_files::{MemberFiles, TitleFile};
pub use self::source::{ParitySource, PlainSource, SourceKind, StripedSource, TitleSource, TrackId};
pub use self::stats::{CacheStats, Damage, MemberFigures, MemberReport, Positions, Trouble};

use self::health::Standing;
use self::manager::{Manager, ManagerCommand, ManagerParts};
use self::residents::ResidentExtents;
use self::source::OpenTitle;
use self::stats::CacheCounters;
use crate::bell::EventBell;
use crate::disk::ReadFaults;
use crate::members::Members;
#[cfg(test)]
use crate::meta::MetaError;
#[cfg(test)]
use crate::sums::DeriveError;
use crate::transform::Derivation;
use crate::volume::TitleFiles;

/// A title whose files are open, those for the cache's own reads too. Making one asks its disks, each for a bounded time; handing it over
/// ([`Cache::open_ready`]) asks none.
pub struct ReadyTitle {
    title: Box<OpenTitle>,
    /// Those of a volume with stripes, for [`Cache::watch`].
    members: Option<Arc<Members>>,
}

impl ReadyTitle {
    /// Media of a volume.
    pub fn of_title(files: TitleFiles) -> Self {
        let members = files.stripes.is_some().then(|| Arc::clone(&files.members));
        Self { members, ..Self::of_source(Box::new(files)) }
    }

    /// Media of a volume, transformed.
    pub fn of_derived(files: TitleFiles, derivation: Derivation) -> Self {
        let members = files.stripes.is_some().then(|| Arc::clone(&files.members));
        Self { members, ..Self::of_source(Box::new(DerivedTitle::new(Box::new(files), derivation))) }
    }

    /// Any other source.
    pub fn of_source(source: Box<dyn TitleSource>) -> Self {
        Self { title: Box::new(OpenTitle::new(source)), members: None }
    }
}

/// The control side's handle of the cache. Dropped or shut down, it ends the manager thread.
pub struct Cache {
    control: Sender<ManagerCommand>,
    wake: Arc<EventBell>,
    clock: Arc<dyn Clock + Send + Sync>,
    arena: Arc<ExtentArena>,
    counters: Arc<CacheCounters>,
    watched: Mutex<Option<Arc<Members>>>,
    backend: &'static str,
    thread: Option<JoinHandle<()>>,
}

impl Cache {
    /// Starts the manager thread on an arena that no other code fills. One handle per engine loop,
    /// each with the bell that is rung when there are grants for it. `clock` is the clock of the
    /// wants' deadlines.
    ///
    /// # Errors
    /// When a setting is out of range, or the system refuses a thread, memory, descriptors or the way of reading.
    pub fn start(
        config: CacheConfig,
        arena: Arc<ExtentArena>,
        clock: Arc<dyn Clock + Send + Sync>,
        bells: Vec<Arc<dyn Doorbell>>,
    ) -> Result<(Cache, Vec<CacheHandle>), CacheError> {
        Self::start_with_faults(config, arena, clock, bells, ReadFaults::default())
    }

    /// The same with disks that fail on order, to see what becomes of it: a fault of a member is set by its place in the
    /// volume; a title on one member is read from member 0.
    ///
    /// # Errors
    /// As [`Cache::start`].
    pub fn start_with_faults(
        config: CacheConfig,
        arena: Arc<ExtentArena>,
        clock: Arc<dyn Clock + Send + Sync>,
        bells: Vec<Arc<dyn Doorbell>>,
        faults: ReadFaults,
    ) -> Result<(Cache, Vec<CacheHandle>), CacheError> {
        if !(1..=MAX_READS_IN_FLIGHT).contains(&config.reads_in_flight) {
            return Err(CacheError::ReadsInFlight(config.reads_in_flight));
        }
        if arena.extents() == 0 {
            return Err(CacheError::NoMemory);
        }
        let wake = Arc::new(EventBell::new().map_err(CacheError::Resources)?);
        let residents = ResidentExtents::new(Arc::clone(&arena));
        let pair = |bell| handle::pair(Arc::clone(&wake), bell, &residents);
        let (handles, ends) = bells.into_iter().map(pair).unzip();
        let counters = Arc::new(CacheCounters::default());
        let (control, commands) = channel();
        let parts = ManagerParts {
            config,
            residents,
            handles: ends,
            control: commands,
            wake: Arc::clone(&wake),
            clock: Arc::clone(&clock),
            counters: Arc::clone(&counters),
            faults,
        };
        let (started, start) = sync_channel(1);
        let run = move || match Manager::new(parts) {
            Ok(manager) => {
                let _ = started.send(Ok(manager.backend()));
                manager.run();
            }
            Err(error) => drop(started.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("mr-cache".into()).spawn(run);
        let thread = thread.map_err(CacheError::Resources)?;
        let backend = start.recv().map_err(|_| CacheError::Stopped)??;
        let thread = Some(thread);
        let watched = Mutex::default();
        Ok((Self { control, wake, clock, arena, counters, watched, backend, thread }, handles))
    }

    /// Opens a title for the engines. The same title in the same layout, opened again, has the same reference and is
    /// in memory once; it is closed when it has been closed as often as it was opened. A reference is never given to
    /// another title.
    ///
    /// # Errors
    /// [`CacheError::TooManyTitles`], [`CacheError::Stopped`].
    pub fn open_title(&self, files: TitleFiles) -> Result<TitleRef, CacheError> {
        self.open_ready(ReadyTitle::of_title(files))
    }

    /// The same for a title whose files are open already: nothing is asked of a disk.
    ///
    /// # Errors
    /// As [`Cache::open_title`].
    pub fn open_ready(&self, ready: ReadyTitle) -> Result<TitleRef, CacheError> {
        let ReadyTitle { title, members } = ready;
        if let Some(members) = members {
            self.watch(members)?;
        }
        if let Some(growth) = title.kind().growth() {
            growth.attach(&self.wake);
        }
        let (reply, answer) = sync_channel(1);
        self.tell(ManagerCommand::Open(title, reply))?;
        answer.recv().map_err(|_| CacheError::Stopped)?.ok_or(CacheError::TooManyTitles)
    }

    /// Uses this volume's view of its members from now on: missing and stale ones are asked for
    /// nothing. Opening a title of a volume does this by itself. The owner of the volume calls
    /// [`Members::refresh`].
    ///
    /// # Errors
    /// [`CacheError::Stopped`].
    pub fn watch(&self, members: Arc<Members>) -> Result<(), CacheError> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.as_ref().is_some_and(|watched| Arc::ptr_eq(watched, &members)) {
            return Ok(());
        }
        *watched = Some(Arc::clone(&members));
        self.tell(ManagerCommand::Watch(members))
    }

    /// Opens a title that is not in a store.
    ///
    /// # Errors
    /// As [`Cache::open_title`].
    pub fn open_source(&self, source: Box<dyn TitleSource>) -> Result<TitleRef, CacheError> {
        self.open_ready(ReadyTitle::of_source(source))
    }

    /// Opens a title that is still being written. `bell` is rung when the feeder can go on after [`FeedError::NoRoom`], and when the title is
    /// closed.
    ///
    /// # Errors
    /// [`CacheError`]: a window out of range, no memory, a title that has a feeder already, too many titles.
    pub fn open_live(
        &self,
        title: LiveTitle,
        bell: Arc<dyn Doorbell>,
    ) -> Result<(TitleRef, Feeder), CacheError> {
        let (feeder, feed) = live::pair(title, Arc::clone(&self.arena), Arc::clone(&self.wake), bell);
        let (reply, answer) = sync_channel(1);
        self.tell(ManagerCommand::OpenLive(Box::new((OpenTitle::new(Box::new(title)), feed)), reply))?;
        let title = answer.recv().map_err(|_| CacheError::Stopped)??;
        Ok((title, feeder))
    }

    /// Closes a title. When this returns, no want for it is granted any more
    /// ([`ReadFailure::NoTitle`]); its memory is freed as the leases on it come back. For a title
    /// that is not open, nothing happens. While a connection may need extents of it again
    /// ([`millrace_core::pool::Recall`]), it stays open for this connection, unless it is a live
    /// one.
    pub fn close_title(&self, title: TitleRef) {
        let (reply, done) = sync_channel(1);
        if self.tell(ManagerCommand::Close(title, reply)).is_ok() {
            // An error means that the manager has ended: then nothing is granted either.
            let _ = done.recv();
        }
    }

    /// Returns its counters and its current use.
    pub fn stats(&self) -> CacheStats {
        let leased = (0..self.arena.extents()).filter(|&extent| self.arena.leases(extent) > 0).count();
        CacheStats { leased: leased as u64, ..self.counters.snapshot() }
    }

    /// Returns whether there is room for viewers at further places. Reads two counters and never
    /// blocks, so viewers admitted within the last few milliseconds may not be counted yet.
    pub fn positions(&self) -> Positions {
        self.counters.positions()
    }

    /// How the members of the volume are, by their place in it; empty for a volume of one without parity.
    pub fn members(&self) -> Vec<MemberReport> {
        let mut reports = self.counters.member_reports();
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(members) = &*watched {
            let known = reports.len();
            let unread = (known..members.len())
                .map(|index| MemberReport { index: index as u16, ..Default::default() });
            reports.extend(unread);
            // The manager looks at them when it has something to read; here they are as they are now.
            for report in &mut reports {
                report.health = Standing::of(members, report.index).health_of(report.health);
            }
        }
        reports
    }

    /// A title in which reads have found damage, of packets, records or CRCs, whether it was made up for or not: for the list of
    /// titles to scrub. It may come again.
    pub fn damaged_title(&self) -> Option<TitleId> {
        self.counters.take_damaged_title()
    }

    /// Damage of a title that was found for the first time, if it has not been taken yet: for the log.
    pub fn damage(&self) -> Option<Damage> {
        self.counters.take_damage()
    }

    /// The last extent that could not be served, if it has not been reported yet: for the log, at most one a second.
    pub fn trouble(&self) -> Option<Trouble> {
        self.counters.take_trouble(self.clock.now())
    }

    /// How it reads: "io_uring" or "threads".
    pub fn backend(&self) -> &'static str {
        self.backend
    }

    /// Ends the manager thread, after the reads in flight. Leases that are out stay good.
    pub fn shutdown(self) {
        drop(self);
    }

    fn tell(&self, control: ManagerCommand) -> Result<(), CacheError> {
        self.control.send(control).map_err(|_| CacheError::Stopped)?;
        self.wake.ring();
        Ok(())
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.tell(ManagerCommand::Stop);
        if let Some(thread) = self.thread.take() {
            // A manager that panicked has ended too.
            let _ = thread.join();
        }
    }
}
