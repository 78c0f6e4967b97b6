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
            let same = titles.get(&info.name).filter(|before| before.info.id == info.id);
            if same.is_none() {
                changes.added.push(info.clone());
            }
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
        let access = LazyAccess { volume: Arc::clone(volume), id: info.id, files: OnceLock::new() };
        Self { info, access: Arc::new(access) }
    }
}

/// Index and packet times of a title, opened when they are first needed.
struct LazyAccess {
    volume: Arc<Volume>,
    id: TitleId,
    files: OnceLock<Option<TitleFiles>>,
}

impl LazyAccess {
    /// `None` if the files are damaged: then the title starts at its beginning, and opening it will say what is wrong.
    fn files(&self) -> Option<&TitleFiles> {
        self.files.get_or_init(|| self.volume.open_title(self.id, DEFAULT_PACKET_BYTES).ok()).as_ref()
    }
}

impl AccessPoints for LazyAccess {
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let Some(files) = self.files() else { return AccessPoint { packet: 0, time: MediaTicks(0) } };
        let point = files.index.access_at_or_before(time);
        AccessPoint { packet: point.packet, time: point.time }
    }

    fn packet_at(&self, time: MediaTicks) -> u32 {
        self.files().and_then(|files| files.packet_at(time).ok()).unwrap_or(0)
    }

    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        let mut meta = [PacketMeta::default()];
        self.files()?.meta.read(packet, &mut meta).ok()?;
        Some(meta[0].time())
    }
}

/// The control thread's hand on the shelf.
pub struct Reader {
    shelf: Arc<Shelf>,
    volume: Arc<Volume>,
    cache: Arc<Cache>,
    open: HashMap<TitleId, Open>,
    by_ref: HashMap<TitleRef, TitleId>,
    /// Open titles without viewers, the longest unused first.
    idle: VecDeque<TitleId>,
}

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
            let Some(id) = self.idle.pop_front() else { break };
            if let Some(open) = self.open.remove(&id) {
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
            access: shelved.access.clone(),
        })
    }

    fn open(&mut self, entry: &Entry) -> Result<TitleRef, OpenError> {
        let shelved =
            self.shelf.get(&entry.name).ok_or_else(|| OpenError::Broken("it was just removed".into()))?;
        let id = shelved.info.id;
        if let Some(open) = self.open.get_mut(&id) {
            open.viewers += 1;
            self.idle.retain(|&idle| idle != id);
            return Ok(open.title);
        }
        if self.open.len() >= MAX_OPEN_TITLES {
            self.close_idle(0);
            if self.open.len() >= MAX_OPEN_TITLES {
                return Err(OpenError::Full);
            }
        }
        let broken = |error: &dyn std::error::Error| OpenError::Broken(error.to_string());
        let files = self.volume.open_title(id, DEFAULT_PACKET_BYTES).map_err(|e| broken(&e))?;
        let title = self.cache.open_title(files).map_err(|e| broken(&e))?;
        self.open.insert(id, Open { title, viewers: 1 });
        self.by_ref.insert(title, id);
        Ok(title)
    }

    fn close(&mut self, title: TitleRef) {
        let Some(&id) = self.by_ref.get(&title) else { return };
        let Some(open) = self.open.get_mut(&id) else { return };
        open.viewers = open.viewers.saturating_sub(1);
        if open.viewers == 0 {
            self.idle.push_back(id);
            self.close_idle(MAX_IDLE_TITLES);
        }
    }
}
