//! The titles of a volume, open in a cache that the simulation turns.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::ids::TitleRef;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::random::SplitMix;
use millrace_core::scale::Scale;
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks};
use millrace_server::service::{
    AccessPoint, AccessPoints, CachedParity, FecMatrix, Library, NeededPart, OpenError, Presentation,
    TitleEntry,
};
use millrace_store::cache::{ReadyTitle, SteppedCache, TitleSource};
use millrace_store::stripes::StripeLayout;
use millrace_store::volume::{TitleFiles, TitleInfo, Volume};

use crate::network::SimClock;

/// Opening something takes up to this long.
const OPENING_SPREAD_NS: u64 = 40_000_000;

/// Index and times of a title.
struct TitleTimes(TitleFiles);

impl AccessPoints for TitleTimes {
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let point = self.0.index.access_at_or_before(time);
        AccessPoint { packet: point.packet, time: point.time }
    }

    fn access_at_or_after(&self, time: MediaTicks) -> Option<AccessPoint> {
        let point = *self.0.index.access_points().iter().find(|point| point.time >= time)?;
        Some(AccessPoint { packet: point.packet, time: point.time })
    }

    fn packet_at(&self, time: MediaTicks) -> u32 {
        self.0.packet_at(time).unwrap_or_else(|_| self.0.packet_by_index(time))
    }

    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        let mut meta = [PacketMeta::default()];
        self.0.read_metas(packet, &mut meta).ok().map(|()| meta[0].time())
    }
}

fn matrix(stripes: &StripeLayout) -> Option<FecMatrix> {
    let small = |n: usize| u8::try_from(n).ok().filter(|&n| n > 0);
    Some(FecMatrix {
        data_units: small(stripes.k())?,
        parity_units: small(stripes.m())?,
        unit_packets: u8::try_from(stripes.unit_packets()).ok()?,
    })
}

struct LibraryState {
    clock: SimClock,
    volume: Arc<Volume>,
    cache: SteppedCache,
    titles: BTreeMap<String, (TitleInfo, Arc<TitleTimes>)>,
    /// Media in the cache, with their viewers.
    open: BTreeMap<TitleRef, (NeededPart, u32)>,
    /// Needs that are met.
    met: HashSet<NeededPart>,
    /// Needs that are being met.
    begun: VecDeque<(Instant, NeededPart)>,
    random: SplitMix,
}

/// The library; the service and the simulation share it.
#[derive(Clone)]
pub struct SimLibrary(Arc<Mutex<LibraryState>>);

impl SimLibrary {
    /// Reads the titles of the volume.
    ///
    /// # Errors
    /// When that cannot be read; nothing that is simulated does this.
    pub fn new(clock: SimClock, volume: Volume, cache: SteppedCache, seed: u64) -> Result<Self, String> {
        let listed = volume.titles().map_err(|error| error.to_string())?;
        let mut titles = BTreeMap::new();
        for info in listed {
            let files =
                volume.open_title(info.id, DEFAULT_PACKET_BYTES).map_err(|error| error.to_string())?;
            titles.insert(info.name.clone(), (info, Arc::new(TitleTimes(files))));
        }
        Ok(Self(Arc::new(Mutex::new(LibraryState {
            clock,
            volume: Arc::new(volume),
            cache,
            titles,
            open: BTreeMap::new(),
            met: HashSet::new(),
            begun: VecDeque::new(),
            random: SplitMix::numbered(seed, 2),
        }))))
    }

    fn lock(&self) -> MutexGuard<'_, LibraryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volume, and its titles.
    pub fn stored(&self) -> (Arc<Volume>, Vec<TitleInfo>) {
        let state = self.lock();
        (Arc::clone(&state.volume), state.titles.values().map(|(info, _)| info.clone()).collect())
    }

    /// The names of the titles.
    pub fn names(&self) -> Vec<String> {
        self.lock().titles.keys().cloned().collect()
    }

    /// Turns the cache; returns how much it had to do.
    pub fn turn_cache(&self, now: Instant) -> usize {
        self.lock().cache.turn(now)
    }

    /// When cache or openings have something to do.
    pub fn poll_at(&self) -> Option<Instant> {
        let state = self.lock();
        state.cache.poll_at().into_iter().chain(state.begun.front().map(|(at, _)| *at)).min()
    }

    /// Whether an opening has ended.
    pub fn has_answer(&self, now: Instant) -> bool {
        self.lock().begun.front().is_some_and(|(at, _)| *at <= now)
    }

    /// Viewers of titles that are open.
    pub fn viewers(&self) -> u32 {
        self.lock().open.values().map(|(_, viewers)| viewers).sum()
    }

    /// Extents that are leased.
    pub fn leased(&self) -> u64 {
        self.lock().cache.stats().leased
    }
}

impl Library for SimLibrary {
    fn has(&mut self, need: &NeededPart) -> bool {
        let state = self.lock();
        !state.titles.contains_key(&need.title) || state.met.contains(need)
    }

    fn begin(&mut self, need: &NeededPart) {
        let mut state = self.lock();
        assert!(!state.begun.iter().any(|(_, begun)| begun == need), "begun twice: {need:?}");
        let takes = state.random.below(OPENING_SPREAD_NS);
        let last = state.begun.back().map_or(Instant(0), |(at, _)| *at);
        let at = state.clock.now().plus_ns(takes).max(last);
        state.begun.push_back((at, need.clone()));
    }

    fn poll_answer(&mut self) -> Option<(NeededPart, Result<(), OpenError>)> {
        let mut state = self.lock();
        let now = state.clock.now();
        state.begun.front().filter(|(at, _)| *at <= now)?;
        let (_, need) = state.begun.pop_front()?;
        state.met.insert(need.clone());
        Some((need, Ok(())))
    }

    fn find(&mut self, name: &str) -> Option<TitleEntry> {
        let state = self.lock();
        let (info, times) = state.titles.get(name)?;
        Some(TitleEntry {
            id: info.id,
            name: info.name.clone(),
            title: info.display_name(),
            is_made: false,
            scale: Scale::NORMAL,
            duration: info.duration,
            presentation: Presentation::default(),
            mean_rate: info.mean_rate,
            peak_rate: info.peak_rate,
            packets: info.packets,
            timeline: info.timeline,
            layout: times.0.layout,
            fec: times.0.stripes.as_ref().and_then(matrix),
            access: Arc::clone(times) as Arc<dyn AccessPoints>,
            transform: None,
            began_unix_ms: info.began_unix_ms,
        })
    }

    fn is_cached(&self, entry: &TitleEntry) -> bool {
        let need = NeededPart::media(entry);
        self.lock().open.values().any(|(part, _)| *part == need)
    }

    fn open(&mut self, entry: &TitleEntry) -> Result<TitleRef, OpenError> {
        let need = NeededPart::media(entry);
        let mut state = self.lock();
        if let Some((title, (_, viewers))) = state.open.iter_mut().find(|(_, (part, _))| *part == need) {
            *viewers += 1;
            return Ok(*title);
        }
        let broken = |error: &dyn std::fmt::Display| OpenError::Broken(error.to_string());
        let files =
            state.volume.open_title(entry.id, DEFAULT_PACKET_BYTES).map_err(|error| broken(&error))?;
        let files = if entry.layout.is_raw() { files.raw() } else { Some(files) };
        let files = files.ok_or_else(|| OpenError::Broken("it has no such form".to_owned()))?;
        let now = state.clock.now();
        let opened = state.cache.open_ready(now, ReadyTitle::of_title(files));
        let title = opened.map_err(|error| broken(&error))?;
        state.open.insert(title, (need, 1));
        Ok(title)
    }

    fn open_track(&mut self, entry: &TitleEntry, track: u8) -> Result<CachedParity, OpenError> {
        let need = NeededPart::parity(entry, track);
        let mut state = self.lock();
        let broken = |error: &dyn std::fmt::Display| OpenError::Broken(error.to_string());
        let files = state.volume.open_parity(entry.id, track).map_err(|error| broken(&error))?;
        let (packets, layout) = (files.packets(), files.layout());
        if let Some((&title, (_, viewers))) = state.open.iter_mut().find(|(_, (part, _))| *part == need) {
            *viewers += 1;
            return Ok(CachedParity { title, packets, layout });
        }
        let now = state.clock.now();
        let opened = state.cache.open_ready(now, ReadyTitle::of_source(Box::new(files)));
        let title = opened.map_err(|error| broken(&error))?;
        state.open.insert(title, (need, 1));
        Ok(CachedParity { title, packets, layout })
    }

    fn close(&mut self, title: TitleRef) {
        let mut state = self.lock();
        let now = state.clock.now();
        let (_, viewers) = state.open.get_mut(&title).expect("the service closes what it has opened");
        *viewers -= 1;
        if *viewers > 0 {
            return;
        }
        // The next viewer opens it again.
        if let Some((need, _)) = state.open.remove(&title) {
            state.met.remove(&need);
        }
        state.cache.close_title(now, title);
    }
}
