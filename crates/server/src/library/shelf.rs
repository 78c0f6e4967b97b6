//! The titles of a store as the control plane sees them.
//!
//! The library thread keeps the shelf in step with the store ([`Shelf::refresh`]); the control thread looks titles up and
//! opens them in the cache ([`Reader`]). A title that was opened stays open when its last viewer leaves, so that what
//! the cache holds of it is there for the next one; only the most recently used idle titles are kept.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_OPEN_TITLES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_store::StoreError;
use millrace_store::cache::Cache;
use millrace_store::volume::{TitleFiles, TitleInfo, Volume};

use crate::session::{AccessPoint, AccessPoints, Entry, Library, OpenError};

/// Titles without viewers that stay open: each costs a few descriptors and its index.
const MAX_IDLE_TITLES: usize = 256;

/// The titles there are now.
#[derive(Default)]
pub struct Shelf {
    titles: Mutex<BTreeMap<String, Arc<Shelved>>>,
}

/// One title on the shelf.
struct Shelved {
    info: TitleInfo,
    access: Arc<LazyAccess>,
    /// The same for other packet sizes that were asked for and can be had.
    sized: Mutex<BTreeMap<u16, Arc<LazyAccess>>>,
}

/// What changed at a refresh.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Titles that were not there before.
    pub added: Vec<TitleInfo>,
    /// Names of titles that are gone.
    pub removed: Vec<String>,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Shelved>>> {
        // The map is replaced in one step: a panic elsewhere cannot leave it half changed.
        self.titles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the catalogue again.
    ///
    /// # Errors
    /// When the store cannot be read; the shelf stays as it was.
    pub fn refresh(&self, volume: &Arc<Volume>) -> Result<Changes, StoreError> {
        let found = volume.titles()?;
        let mut titles = self.lock();
        let mut next = BTreeMap::new();
        let mut changes = Changes::default();
        for info in found {
            let before = titles.get(&info.name).filter(|before| before.info.id == info.id);
            if before.is_none() {
                changes.added.push(info.clone());
            }
            // One that has got packet sizes is put on the shelf anew, but is no news.
            let same = before.filter(|before| before.info == info);
            let shelved = same.map_or_else(|| Arc::new(Shelved::new(volume, info.clone())), Arc::clone);
            next.insert(info.name, shelved);
        }
        changes.removed = titles.keys().filter(|&name| !next.contains_key(name)).cloned().collect();
        *titles = next;
        Ok(changes)
    }

    /// All titles, by name.
    pub fn titles(&self) -> Vec<TitleInfo> {
        self.lock().values().map(|shelved| shelved.info.clone()).collect()
    }

    fn get(&self, name: &str) -> Option<Arc<Shelved>> {
        self.lock().get(name).cloned()
    }
}

impl Shelved {
    fn new(volume: &Arc<Volume>, info: TitleInfo) -> Self {
        let access = Arc::new(LazyAccess::new(volume, info.id, DEFAULT_PACKET_BYTES));
        Self { info, access, sized: Mutex::default() }
    }

    /// Index and packet times in another packet size; `None` if the title cannot be had in it, now.
    fn access(&self, size: u16) -> Option<Arc<LazyAccess>> {
        let mut sized = self.sized.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(access) = sized.get(&size) {
            return Some(Arc::clone(access));
        }
        // What cannot be had is asked for again the next time: range sums may come while the server runs.
        let access = Arc::new(LazyAccess::new(&self.access.volume, self.info.id, usize::from(size)));
        access.files()?;
        sized.insert(size, Arc::clone(&access));
        Some(access)
    }
}

/// Index and packet times of a title in one packet size, opened when they are first needed.
struct LazyAccess {
    volume: Arc<Volume>,
    id: TitleId,
    packet_bytes: usize,
    files: OnceLock<Option<TitleFiles>>,
}

impl LazyAccess {
    fn new(volume: &Arc<Volume>, id: TitleId, packet_bytes: usize) -> Self {
        Self { volume: Arc::clone(volume), id, packet_bytes, files: OnceLock::new() }
    }

    /// `None` if the files are damaged: then the title starts at its beginning, and opening it will say what is wrong.
    fn files(&self) -> Option<&TitleFiles> {
        self.files.get_or_init(|| self.volume.open_title(self.id, self.packet_bytes).ok()).as_ref()
    }
}

impl AccessPoints for LazyAccess {
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let start = AccessPoint { packet: 0, time: MediaTicks(0) };
        let Some(files) = self.files() else { return start };
        let point = files.index.access_at_or_before(time);
        if self.packet_bytes == DEFAULT_PACKET_BYTES {
            return AccessPoint { packet: point.packet, time: point.time };
        }
        // The packet with that byte begins before it, and earlier: what is announced must be its own time.
        let packet = files.packet_of_default(point.packet);
        self.time_of(packet).map_or(start, |time| AccessPoint { packet, time })
    }

    fn packet_at(&self, time: MediaTicks) -> u32 {
        self.files().and_then(|files| files.packet_at(time).ok()).unwrap_or(0)
    }

    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        let mut meta = [PacketMeta::default()];
        self.files()?.read_metas(packet, &mut meta).ok()?;
        Some(meta[0].time())
    }
}

/// The control thread's hand on the shelf.
pub struct Reader {
    shelf: Arc<Shelf>,
    volume: Arc<Volume>,
    cache: Arc<Cache>,
    open: HashMap<Key, Open>,
    by_ref: HashMap<TitleRef, Key>,
    /// Open titles without viewers, the longest unused first.
    idle: VecDeque<Key>,
}

/// A title in one packet size: each is open, cached and closed by itself.
type Key = (TitleId, usize);

struct Open {
    title: TitleRef,
    viewers: usize,
}

impl Reader {
    /// A reader of `shelf`.
    pub fn new(shelf: Arc<Shelf>, volume: Arc<Volume>, cache: Arc<Cache>) -> Self {
        Self { shelf, volume, cache, open: HashMap::new(), by_ref: HashMap::new(), idle: VecDeque::new() }
    }

    fn close_idle(&mut self, keep: usize) {
        while self.idle.len() > keep {
            let Some(key) = self.idle.pop_front() else { break };
            if let Some(open) = self.open.remove(&key) {
                self.by_ref.remove(&open.title);
                self.cache.close_title(open.title);
            }
        }
    }
}

impl Library for Reader {
    fn find(&mut self, name: &str) -> Option<Entry> {
        let shelved = self.shelf.get(name)?;
        let info = &shelved.info;
        Some(Entry {
            name: info.name.clone(),
            duration: info.duration,
            mean_rate: info.mean_rate,
            peak_rate: info.peak_rate,
            packets: info.packets,
            timeline: info.timeline,
            layout: WireLayout::new(DEFAULT_PACKET_BYTES)?,
            fec: None,
            access: shelved.access.clone(),
        })
    }

    fn sized(&mut self, entry: &Entry, packet_bytes: usize) -> Option<Entry> {
        if entry.layout.packet_bytes() == packet_bytes {
            return Some(entry.clone());
        }
        let layout = WireLayout::new(packet_bytes)?;
        let shelved = self.shelf.get(&entry.name)?;
        let access = shelved.access(u16::try_from(packet_bytes).ok()?)?;
        Some(Entry {
            packets: access.files()?.packets(),
            timeline: shelved.info.timeline_of(packet_bytes),
            layout,
            fec: None,
            access,
            ..entry.clone()
        })
    }

    fn open(&mut self, entry: &Entry) -> Result<TitleRef, OpenError> {
        let shelved =
            self.shelf.get(&entry.name).ok_or_else(|| OpenError::Broken("it was just removed".into()))?;
        let key = (shelved.info.id, entry.layout.packet_bytes());
        if let Some(open) = self.open.get_mut(&key) {
            open.viewers += 1;
            self.idle.retain(|&idle| idle != key);
            return Ok(open.title);
        }
        if self.open.len() >= MAX_OPEN_TITLES {
            self.close_idle(0);
            if self.open.len() >= MAX_OPEN_TITLES {
                return Err(OpenError::Full);
            }
        }
        let broken = |error: &dyn std::error::Error| OpenError::Broken(error.to_string());
        let files = self.volume.open_title(key.0, key.1).map_err(|e| broken(&e))?;
        let title = self.cache.open_title(files).map_err(|e| broken(&e))?;
        self.open.insert(key, Open { title, viewers: 1 });
        self.by_ref.insert(title, key);
        Ok(title)
    }

    fn close(&mut self, title: TitleRef) {
        let Some(&key) = self.by_ref.get(&title) else { return };
        let Some(open) = self.open.get_mut(&key) else { return };
        open.viewers = open.viewers.saturating_sub(1);
        if open.viewers == 0 {
            self.idle.push_back(key);
            self.close_idle(MAX_IDLE_TITLES);
        }
    }
}
