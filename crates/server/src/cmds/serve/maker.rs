//! The thread that makes titles for speeds that viewers request, and removes those not watched for
//! a long time when their space is needed. `library/on_use` decides which one is made next and
//! which ones go; here is the thread, and its work on disks.
//!
//! It gives way to all others: lowest priority for processor and disk; no work while an engine is busy or the cache late; and while anybody
//! watches, it rests for as long as it has worked.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_core::counters::Sheet;
use millrace_core::ids::TitleId;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::units::{ByteLen, HumanDuration};
use millrace_make::trick::{self, TrickError};
use millrace_offload::clock::MonotonicClock;
use millrace_offload::load::LoadSnapshot;
use millrace_offload::thread_priority::yield_to_all;
use millrace_store::StoreError;
use millrace_store::cache::Cache;
use millrace_store::volume::{TitleInfo, Volume};

use super::worker::Worker;
use crate::library::on_use::pressure::{Pressure, WorkTotals};
use crate::library::on_use::space::{MadeTitle, NoSpace, to_evict};
use crate::library::on_use::wishes::Wish;
use crate::library::on_use::{OnUse, unix_now};
use crate::library::open_titles::OpenTitles;
use crate::library::reader::Closer;
use crate::limits::trick::{LATER_NS, MAKER_LOOK_EVERY, MAKER_REST, MAKER_TURN_NS, NOTE_USES_NS, REFUSED_NS};

millrace_core::counters! {
    /// The fate of the speeds that viewers requested.
    pub(crate) struct MadeOnUse {
        /// Speeds of titles that a viewer asked for, that were not there and were put on the list.
        sum wishes,
        /// Of these and others, those dropped because the list was full.
        sum wishes_dropped,
        /// Titles made.
        sum made,
        /// What these took on all members together.
        sum made_bytes,
        /// Titles that could not be made.
        sum failed,
        /// Titles removed because others needed their space.
        sum evicted,
        /// What these took.
        sum evicted_bytes,
        /// Speeds that wait to be made.
        gauge waiting,
        /// Titles made on use that there are now.
        gauge titles,
        /// Their size on all members together.
        gauge held_bytes,
    }
}

/// The parts that the thread works with.
pub(super) struct MakerParts {
    pub(super) volume: Arc<Volume>,
    pub(super) open_titles: Arc<OpenTitles>,
    pub(super) cache: Arc<Cache>,
    pub(super) closer: Closer,
    pub(super) on_use: Arc<OnUse>,
    /// How busy each engine is.
    pub(super) loops: Vec<Arc<Sheet<LoadSnapshot>>>,
    /// What titles made on use may take together.
    pub(super) space: ByteLen,
}

/// The thread and its private state.
pub(super) struct Maker {
    ledger: Ledger,
    loops: Vec<Arc<Sheet<LoadSnapshot>>>,
    pressure: Pressure,
    sheet: Arc<Sheet<MadeOnUse>>,
    /// The reported reason why the volume takes no titles.
    told: Option<String>,
    /// For each title that lacked space: the advice already reported.
    told_of_space: BTreeMap<TitleId, &'static str>,
    noted: Instant,
}

/// The titles that were made on use, and their sizes.
struct Ledger {
    volume: Arc<Volume>,
    open_titles: Arc<OpenTitles>,
    cache: Arc<Cache>,
    closer: Closer,
    on_use: Arc<OnUse>,
    space: u64,
    /// Of titles whose manifests have been read.
    bytes: HashMap<TitleId, u64>,
    counters: MadeOnUse,
}

/// Why something is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkipReason {
    /// No viewer can want it any more.
    Gone,
    /// The volume cannot take it now.
    Later,
    /// It cannot be made: at no speed, or not at this one; for good, or until it is tried again.
    Refused { all: bool, for_good: bool },
}

impl SkipReason {
    fn of(error: &TrickError) -> Self {
        match error {
            TrickError::Cancelled | TrickError::Store(StoreError::NoTitle { .. }) => Self::Gone,
            TrickError::Store(error) if error.is_read_only() || error.is_no_space() => Self::Later,
            TrickError::Store(
                StoreError::MemberNeeded { .. }
                | StoreError::MembersLost { .. }
                | StoreError::TimedOut { .. },
            ) => Self::Later,
            TrickError::Store(_) => Self::Refused { all: true, for_good: false },
            TrickError::NoPictures
            | TrickError::Scrambled
            | TrickError::Codec { .. }
            | TrickError::TooManyPictures { .. }
            | TrickError::Derived => Self::Refused { all: true, for_good: true },
            TrickError::Normal
            | TrickError::NoKeyPictures { .. }
            | TrickError::NoStamps
            | TrickError::NoRoom { .. }
            | TrickError::NoSpace(_)
            | TrickError::Stream(_) => Self::Refused { all: false, for_good: true },
        }
    }
}

impl Maker {
    pub(super) fn new(parts: MakerParts) -> Self {
        let MakerParts { volume, open_titles, cache, closer, on_use, loops, space } = parts;
        let (bytes, counters) = (HashMap::new(), MadeOnUse::default());
        let ledger = Ledger { volume, open_titles, cache, closer, on_use, space: space.0, bytes, counters };
        Self {
            ledger,
            loops,
            pressure: Pressure::default(),
            sheet: Arc::default(),
            told: None,
            told_of_space: BTreeMap::new(),
            noted: Instant(0),
        }
    }

    /// Where it shows its counters.
    pub(super) fn sheet(&self) -> Arc<Sheet<MadeOnUse>> {
        Arc::clone(&self.sheet)
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(self) -> std::io::Result<Worker> {
        Worker::start("maker", move |stop| self.run(stop))
    }

    fn run(mut self, stop: &AtomicBool) {
        yield_to_all();
        self.ledger.on_use.work_here();
        // The space may have been larger when they were made.
        self.ledger.trim();
        while !stop.load(Ordering::Relaxed) {
            self.note_uses(NOTE_USES_NS);
            self.publish();
            let now = MonotonicClock.now();
            let is_pressed = self.pressure.look(now, || figures(&self.loops, &self.ledger.cache));
            let wish = if is_pressed { None } else { self.ledger.on_use.lock().wishes.next(now) };
            match wish {
                Some(wish) => self.make(wish, stop),
                // Woken by a wish or the end.
                None => std::thread::park_timeout(MAKER_LOOK_EVERY),
            }
        }
        self.note_uses(0);
        self.publish();
    }

    /// Stores the last uses, if this was last done at least `every_ns` ago.
    fn note_uses(&mut self, every_ns: u64) {
        let now = unix_now();
        if now.ns_since(self.noted) < every_ns {
            return;
        }
        self.noted = now;
        let there: Vec<TitleId> =
            self.ledger.open_titles.made_on_use().into_iter().map(|(id, _)| id).collect();
        let news = {
            let mut state = self.ledger.on_use.lock();
            state.uses.keep_only(|id| there.contains(&id));
            state.uses.take_news(now)
        };
        self.ledger.bytes.retain(|id, _| there.contains(id));
        self.told_of_space.retain(|id, _| self.ledger.open_titles.info(*id).is_some());
        for (id, at) in news {
            self.ledger.volume.note_use(id, UNIX_EPOCH + Duration::from_nanos(at.0));
        }
    }

    fn publish(&mut self) {
        let kept = self.ledger.sizes();
        let counters = &mut self.ledger.counters;
        (counters.titles, counters.held_bytes) =
            (kept.len() as u64, kept.iter().map(|(_, bytes)| bytes).sum());
        let state = self.ledger.on_use.lock();
        (counters.wishes, counters.wishes_dropped) = (state.heard, state.dropped);
        counters.waiting = state.wishes.waiting() as u64;
        drop(state);
        self.sheet.publish(counters);
    }

    /// Makes one title and reports the result.
    fn make(&mut self, wish: Wish, stop: &AtomicBool) {
        let Wish { parent, scale } = wish;
        let is_parent = |info: &TitleInfo| info.derived.is_none();
        let Some(parent) = self.ledger.open_titles.info(parent).filter(is_parent) else {
            return self.ledger.on_use.lock().wishes.done();
        };
        if let Err(error) = self.ledger.volume.can_take_titles() {
            return self.wait_for_volume(&error);
        }
        let name = format!("{} at speed {scale}", parent.name);
        tracing::info!("{name}: being made, a viewer has asked for it");
        let started = MonotonicClock.now();
        let mut no_space = None;
        let result = {
            let Self { ledger, loops, pressure, .. } = self;
            let cancel = AtomicBool::new(false);
            let (cache, open_titles) = (Arc::clone(&ledger.cache), Arc::clone(&ledger.open_titles));
            let mut turn = MakerPauses {
                stop,
                cancel: &cancel,
                parent: parent.id,
                began: started,
                looked: started,
                open_titles: &open_titles,
                pressed: &mut |now| pressure.look(now, || figures(loops, &cache)),
                is_watched: &|| cache.stats().positions > 0,
            };
            let volume = Arc::clone(&ledger.volume);
            let mut room = |bytes| {
                no_space = ledger.make_room(bytes).err();
                no_space.is_none()
            };
            trick::make_on_use(&volume, &parent, scale, &cancel, &mut |_| turn.take(), &mut room)
        };
        match result {
            Ok(made) => self.made(&name, made.as_ref(), MonotonicClock.now().ns_since(started)),
            Err(TrickError::NoSpace(bytes)) => self.has_no_space(&parent, &name, bytes, no_space),
            Err(_) if self.is_there(&parent, wish) => self.made(&name, None, 0),
            Err(error) => self.failed(&name, &error),
        }
    }

    /// Another program may have made it meanwhile.
    fn is_there(&self, parent: &TitleInfo, wish: Wish) -> bool {
        let there = self.ledger.volume.speeds_of(parent.id);
        there.is_ok_and(|there| there.iter().any(|(scale, _)| *scale == wish.scale))
    }

    fn made(&mut self, name: &str, made: Option<&TitleInfo>, took_ns: u64) {
        self.told = None;
        self.ledger.look();
        if let Some(info) = made {
            let bytes = self.ledger.bytes_of(info.id, info.bytes);
            self.ledger.counters.made += 1;
            self.ledger.counters.made_bytes += bytes;
            // It may have become larger than was thought.
            self.ledger.trim();
        }
        self.publish();
        self.ledger.on_use.lock().wishes.done();
        if let Some(info) = made {
            let took = HumanDuration(Duration::from_millis(took_ns / 1_000_000));
            tracing::info!("{name}: made in {took}, {}, {}", ByteLen(info.bytes), info.notes.join("; "));
        }
    }

    fn failed(&mut self, name: &str, error: &TrickError) {
        let now = MonotonicClock.now();
        match (SkipReason::of(error), error) {
            (SkipReason::Gone, _) => {
                tracing::info!("{name}: given up: {error}");
                self.ledger.on_use.lock().wishes.done();
            }
            (SkipReason::Later, TrickError::Store(error)) => self.wait_for_volume(error),
            (SkipReason::Later, _) => self.ledger.on_use.lock().wishes.later(now, LATER_NS),
            (SkipReason::Refused { all, for_good }, _) => {
                self.ledger.counters.failed += 1;
                let until = (!for_good).then(|| now.plus_ns(REFUSED_NS));
                self.ledger.on_use.lock().wishes.refuse(all, until);
                tracing::warn!("{name}: cannot be made: {error}");
            }
        }
    }

    /// Waits while nothing can be made, whatever it is. This is reported once, until something was
    /// made again or there is another reason.
    fn wait_for_volume(&mut self, error: &StoreError) {
        let why = error.to_string();
        if self.told.as_ref() != Some(&why) {
            tracing::warn!("no titles are built for requested speeds while this lasts: {why}");
            self.told = Some(why);
        }
        self.ledger.on_use.lock().wishes.later(MonotonicClock.now(), LATER_NS);
    }

    fn has_no_space(&mut self, parent: &TitleInfo, name: &str, bytes: ByteLen, why: Option<Lack>) {
        let (advice, for_good) = match why {
            Some(Lack::TooLarge) | None => ("raise --trick-space, or build it with millrace trick", true),
            Some(Lack::InUse) => ("all that could be removed for it is being watched", false),
            Some(Lack::Disk) => ("the disks of the store are nearly full; free some space there", false),
        };
        if self.told_of_space.insert(parent.id, advice) != Some(advice) {
            tracing::warn!("{name}: cannot be made: it may take {bytes}: {advice}");
        }
        let mut state = self.ledger.on_use.lock();
        if for_good {
            self.ledger.counters.failed += 1;
            state.wishes.refuse(false, None);
        } else {
            state.wishes.later(MonotonicClock.now(), LATER_NS);
        }
    }
}

/// Returns the totals of the server's work.
pub(super) fn figures(loops: &[Arc<Sheet<LoadSnapshot>>], cache: &Cache) -> WorkTotals {
    let engine = |sheet: &Arc<Sheet<LoadSnapshot>>| {
        let LoadSnapshot { busy_ns, idle_ns, .. } = sheet.read();
        (busy_ns, idle_ns)
    };
    WorkTotals { engines: loops.iter().map(engine).collect(), late_grants: cache.stats().late_grants }
}

/// Rests between two steps of the work.
struct MakerPauses<'a> {
    stop: &'a AtomicBool,
    cancel: &'a AtomicBool,
    parent: TitleId,
    /// Since when it has worked without a rest.
    began: Instant,
    /// When it was looked whether the parent is still there.
    looked: Instant,
    open_titles: &'a OpenTitles,
    pressed: &'a mut dyn FnMut(Instant) -> bool,
    is_watched: &'a dyn Fn() -> bool,
}

impl MakerPauses<'_> {
    /// Called between two steps: returns when the next step may run, or when no further step must
    /// run.
    fn take(&mut self) {
        loop {
            let now = MonotonicClock.now();
            if self.stop.load(Ordering::Relaxed) {
                return self.cancel.store(true, Ordering::Relaxed);
            }
            if now.ns_since(self.looked) >= MAKER_LOOK_EVERY.as_nanos() as u64 {
                self.looked = now;
                if self.open_titles.info(self.parent).is_none() {
                    return self.cancel.store(true, Ordering::Relaxed);
                }
            }
            if (self.pressed)(now) {
                std::thread::park_timeout(MAKER_REST);
                self.began = MonotonicClock.now();
                continue;
            }
            let worked_ns = now.ns_since(self.began);
            if worked_ns < MAKER_TURN_NS {
                return;
            }
            if (self.is_watched)() {
                std::thread::park_timeout(Duration::from_nanos(worked_ns).min(MAKER_REST));
            }
            self.began = MonotonicClock.now();
        }
    }
}

/// Why there is no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// It is larger than all titles made on use may be together.
    TooLarge,
    /// What could go is being watched.
    InUse,
    /// A member is nearly full.
    Disk,
}

impl From<NoSpace> for Lack {
    fn from(why: NoSpace) -> Self {
        match why {
            NoSpace::TooLarge => Self::TooLarge,
            NoSpace::InUse => Self::InUse,
        }
    }
}

impl Ledger {
    /// Brings the open titles in step with the store.
    fn look(&self) {
        if let Err(error) = self.open_titles.look(&self.volume) {
            tracing::warn!("cannot read the store: {error}; keeping the previous list of titles");
        }
    }

    /// Returns the size of a title; if its manifest cannot be read, `media` bytes.
    fn bytes_of(&mut self, id: TitleId, media: u64) -> u64 {
        let Self { volume, bytes, .. } = self;
        *bytes.entry(id).or_insert_with(|| volume.stored_bytes(id).unwrap_or(media))
    }

    /// Returns all titles made on use and their sizes.
    fn sizes(&mut self) -> Vec<(TitleId, u64)> {
        let made = self.open_titles.made_on_use();
        made.into_iter().map(|(id, _)| (id, self.bytes_of(id, 0))).collect()
    }

    fn kept(&mut self) -> Vec<MadeTitle> {
        let unix = |at: SystemTime| at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let mut kept = Vec::new();
        for (id, bytes) in self.sizes() {
            // Another server at the same volume may have written a later one.
            let written = self.volume.last_use(id).map_or(Instant(0), |at| Instant(unix(at)));
            let state = self.on_use.lock();
            let last_use = state.uses.last(id).unwrap_or_default().max(written);
            kept.push(MadeTitle { id, bytes, last_use, is_in_use: state.uses.has_viewers(id) });
        }
        kept
    }

    /// Removes titles until `needed` more bytes fit, in the space and on the members.
    fn make_room(&mut self, needed: u64) -> Result<(), Lack> {
        for id in to_evict(&self.kept(), self.space, needed)? {
            if !self.evict(id) {
                return Err(Lack::InUse);
            }
        }
        loop {
            let room = self.volume.room().unwrap_or_default();
            let each = needed.div_ceil(room.len().max(1) as u64);
            if room.iter().all(|room| *room >= each) {
                return Ok(());
            }
            let idle = self.kept().into_iter().filter(|title| !title.is_in_use);
            let oldest = idle.min_by_key(|title| title.last_use).ok_or(Lack::Disk)?;
            if !self.evict(oldest.id) {
                return Err(Lack::Disk);
            }
        }
    }

    /// Removes titles beyond the space.
    fn trim(&mut self) {
        let kept = self.kept();
        // Titles being watched may keep it above.
        for id in to_evict(&kept, self.space, 0).unwrap_or_default() {
            self.evict(id);
        }
    }

    /// Removes a title, unless it is being watched by now or must stay; returns whether it is gone.
    fn evict(&mut self, id: TitleId) -> bool {
        let name = self.open_titles.name_of(id).unwrap_or_default();
        if !self.on_use.lock().uses.claim(id) {
            return false;
        }
        let bytes = self.bytes_of(id, 0);
        let removed = self.volume.remove_made_on_use(id);
        let is_gone = matches!(removed, Ok(true) | Err(StoreError::NoTitle { .. }));
        if matches!(removed, Ok(true)) {
            self.counters.evicted += 1;
            self.counters.evicted_bytes += bytes;
            tracing::info!("{name}: removed, its {} are needed for others", ByteLen(bytes));
        }
        if let Err(error) = removed.as_ref()
            && !is_gone
        {
            tracing::warn!("{name}: cannot be removed to make room: {error}");
        }
        self.look();
        if is_gone {
            self.bytes.remove(&id);
            self.closer.removed(id);
        } else {
            self.on_use.lock().uses.release(id);
        }
        is_gone
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::units::BitRate;

    use super::*;

    /// Work ends between two steps when the server does, and when the title is gone, which is
    /// checked once a second.
    #[test]
    fn making_is_given_up_when_nobody_wants_it_any_more() {
        let now = MonotonicClock.now();
        let long_ago = Instant(now.0.saturating_sub(2 * MAKER_LOOK_EVERY.as_nanos() as u64));
        for (stops, looked, is_given_up) in
            [(true, now, true), (false, long_ago, true), (false, now.plus_ns(60_000_000_000), false)]
        {
            let (stop, cancel) = (AtomicBool::new(stops), AtomicBool::new(false));
            let mut turn = MakerPauses {
                stop: &stop,
                cancel: &cancel,
                parent: TitleId([1; 16]),
                began: now.plus_ns(60_000_000_000),
                looked,
                // Without any title.
                open_titles: &OpenTitles::default(),
                pressed: &mut |_| false,
                is_watched: &|| false,
            };
            turn.take();
            assert_eq!(cancel.into_inner(), is_given_up, "{stops} {looked:?}");
        }
    }

    #[test]
    fn verdict_of_build_error_permits_retry_of_transient_failures() {
        let scale = "4".parse().unwrap();
        let io = |kind: std::io::ErrorKind| {
            TrickError::Store(StoreError::Io { action: "write", path: "/d".into(), error: kind.into() })
        };
        let damaged = StoreError::Damaged { path: "/d".into(), what: "is short".into() };
        let needed = StoreError::MemberNeeded { dir: "/d".into(), why: "is gone".into(), action: "it" };
        let refused = |all, for_good| SkipReason::Refused { all, for_good };
        for (error, verdict) in [
            (TrickError::NoPictures, refused(true, true)),
            (TrickError::Codec { codec: "VC-1".into() }, refused(true, true)),
            (TrickError::NoKeyPictures { pictures: 1, scale }, refused(false, true)),
            (TrickError::NoRoom { peak: BitRate(1), scale }, refused(false, true)),
            (TrickError::Store(damaged), refused(true, false)),
            (io(std::io::ErrorKind::Other), refused(true, false)),
            (TrickError::Store(needed), SkipReason::Later),
            (io(std::io::ErrorKind::StorageFull), SkipReason::Later),
            (io(std::io::ErrorKind::ReadOnlyFilesystem), SkipReason::Later),
            (TrickError::Store(StoreError::NoTitle { id: TitleId([1; 16]) }), SkipReason::Gone),
            (TrickError::Cancelled, SkipReason::Gone),
        ] {
            assert_eq!(SkipReason::of(&error), verdict, "{error}");
        }
    }
}
