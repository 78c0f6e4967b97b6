//! The titles of a store as the control plane sees them.
//!
//! The library thread keeps them in step with the store ([`OpenTitles::refresh`]); the control thread looks titles up and has them
//! opened ([`TitleReader`](super::reader::TitleReader)).
//!
//! A title that has lost too many members stays among the open titles: the answer to a request for
//! it is this, and not 404.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::scale::Scale;
use millrace_store::StoreError;
use millrace_store::volume::{ListedAt, ListedTitle, Listing, Rendition, TitleInfo, UnreadableTitle, Volume};

use super::access::Access;
use super::growing::GrowingTitle;

/// The titles there are now.
#[derive(Default)]
pub struct OpenTitles {
    titles: Mutex<BTreeMap<String, Arc<ServedTitle>>>,
    /// Recordings that are still being made, by name. A stored title of the same name comes first: the recording has become it.
    growing: Mutex<BTreeMap<String, Arc<GrowingTitle>>>,
    listed: Mutex<Listed>,
    version: AtomicU64,
}

/// The origin of the open titles.
#[derive(Default)]
struct Listed {
    as_of: Option<ListedAt>,
    /// Changes since the last report.
    news: Changes,
}

/// One title among the open titles.
pub(super) struct ServedTitle {
    /// As the volume had it at the last refresh.
    pub(super) listed: ListedTitle,
    /// Index and packet times in the default size.
    pub(super) access: Arc<Access>,
    /// The same for other packet sizes that were requested and are available.
    sized: Mutex<BTreeMap<u16, Arc<Access>>>,
}

/// What changed at a refresh.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Titles that were not there before; as everywhere here without derived ones.
    pub added: Vec<TitleInfo>,
    /// Names of titles that are gone.
    pub removed: Vec<String>,
    /// Titles with too many missing members now.
    pub lost: usize,
    /// Unreadable entries among the titles, and why.
    pub unreadable: Vec<String>,
}

impl OpenTitles {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ServedTitle>>> {
        // The map is replaced in one step: a panic elsewhere cannot leave it half changed.
        self.titles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the catalogue again; returns the changes since the last report.
    ///
    /// # Errors
    /// When the store cannot be read; the open titles stay as they were.
    pub fn refresh(&self, volume: &Volume) -> Result<Changes, StoreError> {
        self.look(volume)?;
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let untold = Changes { lost: listed.news.lost, ..Changes::default() };
        Ok(std::mem::replace(&mut listed.news, untold))
    }

    /// Reads the catalogue again, and leaves the report of changes to [`OpenTitles::refresh`].
    ///
    /// # Errors
    /// As [`OpenTitles::refresh`].
    pub fn look(&self, volume: &Volume) -> Result<(), StoreError> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let Listed { as_of, news: changes } = &mut *listed;
        let Some(listing) = volume.listing_since(as_of.as_ref())? else { return Ok(()) };
        let Listing { titles: found, unreadable, as_of: now } = listing;
        let mut titles = self.lock();
        let mut next = BTreeMap::new();
        changes.lost = 0;
        for listed in found {
            changes.lost += usize::from(listed.lost(|slot| volume.members().is_usable(slot)).is_some());
            let info = &listed.info;
            let before = titles.get(&info.name).filter(|before| before.listed.info.id == info.id);
            if before.is_none() && info.derived.is_none() {
                changes.added.push(info.clone());
            }
            // One that has got packet sizes, or lost a member, is put among the open titles again, but is no news.
            let same = before.filter(|before| before.listed == listed).map(Arc::clone);
            let name = info.name.clone();
            next.insert(name, same.unwrap_or_else(|| Arc::new(ServedTitle::new(listed))));
        }
        // A title that is there and cannot be read stays, so that this is the answer to requests
        // for it.
        let broken: HashSet<TitleId> = unreadable.iter().map(|title| title.id).collect();
        for (name, shelved) in titles.iter().filter(|(_, shelved)| broken.contains(&shelved.listed.info.id)) {
            next.entry(name.clone()).or_insert_with(|| Arc::clone(shelved));
        }
        let told = |UnreadableTitle { id, error }: &UnreadableTitle| format!("title {id}: {error}");
        changes.unreadable = unreadable.iter().map(told).collect();
        let is_gone = |(name, served): &(&String, &Arc<ServedTitle>)| {
            !next.contains_key(*name) && served.listed.info.derived.is_none()
        };
        changes.removed.extend(titles.iter().filter(is_gone).map(|(name, _)| name.clone()));
        let before = std::mem::replace(&mut *titles, next);
        drop(titles);
        self.version.fetch_add(1, Ordering::Relaxed);
        // Closes the files of titles that are gone, which may wait for a disk: the control thread
        // looks titles up meanwhile.
        drop(before);
        *as_of = now;
        Ok(())
    }

    /// Makes the next look read all titles again, after a change that it would not notice
    /// otherwise.
    pub fn forget_look(&self) {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner).as_of = None;
    }

    /// Reads all titles after a change that this program made to one that was there.
    ///
    /// # Errors
    /// As [`OpenTitles::refresh`]; a later look finds the change then.
    pub fn look_again(&self, volume: &Volume) -> Result<(), StoreError> {
        self.forget_look();
        self.look(volume)
    }

    /// Counts the times that the list of titles was replaced.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// All stored titles, by name, without those that are derived from them.
    pub fn titles(&self) -> Vec<TitleInfo> {
        let titles = self.lock();
        let infos = titles.values().map(|shelved| &shelved.listed.info);
        infos.filter(|info| info.derived.is_none()).cloned().collect()
    }

    fn lock_growing(&self) -> MutexGuard<'_, BTreeMap<String, Arc<GrowingTitle>>> {
        // Each change is one insertion or removal.
        self.growing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The recordings that are being made and can be watched, beside the stored titles.
    pub fn growing_titles(&self) -> Vec<TitleInfo> {
        let growing: Vec<_> = self.lock_growing().values().map(|title| title.info()).collect();
        let titles = self.lock();
        let is_beside = |info: &&Arc<TitleInfo>| !titles.contains_key(&info.name);
        growing.iter().filter(is_beside).map(|info| TitleInfo::clone(info)).collect()
    }

    /// The recording of this name that is being made.
    pub fn growing(&self, name: &str) -> Option<Arc<GrowingTitle>> {
        self.lock_growing().get(name).filter(|_| !self.lock().contains_key(name)).cloned()
    }

    /// A recording can be watched from now on.
    pub fn add_growing(&self, title: Arc<GrowingTitle>) {
        let name = title.info().name.clone();
        self.lock_growing().insert(name, title);
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// The list of titles has to be made again: a recording has become much longer.
    pub fn note_growth(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// A recording is a stored title, or there will be none of it.
    pub fn remove_growing(&self, name: &str) {
        if self.lock_growing().remove(name).is_some() {
            self.version.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the titles that show the one of this name at other speeds, from memory.
    pub(super) fn speeds_of(&self, name: &str) -> Vec<(Scale, String)> {
        let speed = |info: &TitleInfo| Some((info.derived?.speed()?, info.name.clone()));
        self.with_derived(name, |_, derived| derived.filter_map(speed).collect())
    }

    /// Returns the renditions of the title of this name, itself included, from memory.
    pub fn renditions_of(&self, name: &str) -> Vec<Rendition> {
        self.with_derived(name, |title, derived| Rendition::of(title, derived))
    }

    /// Looks at a title and those that are derived from it; nothing comes of it if there is no such title.
    fn with_derived<R: Default>(
        &self,
        name: &str,
        look: impl for<'a> FnOnce(&'a TitleInfo, &mut dyn Iterator<Item = &'a TitleInfo>) -> R,
    ) -> R {
        let titles = self.lock();
        let Some(title) = titles.get(name).map(|served| &served.listed.info) else { return R::default() };
        // Their names are that of their parent with a mark and more behind it.
        let prefix = format!("{name}@");
        let named = titles.range(prefix.clone()..).take_while(|(other, _)| other.starts_with(&prefix));
        let infos = named.map(|(_, served)| &served.listed.info);
        let mut derived = infos.filter(|info| info.derived.is_some_and(|derived| derived.parent == title.id));
        look(title, &mut derived)
    }

    /// Returns the name of a title.
    pub fn name_of(&self, id: TitleId) -> Option<String> {
        self.info(id).map(|info| info.name)
    }

    /// Returns the description of a title.
    pub fn info(&self, id: TitleId) -> Option<TitleInfo> {
        let titles = self.lock();
        let mut infos = titles.values().map(|served| &served.listed.info);
        infos.find(|info| info.id == id).cloned()
    }

    /// Returns the description of the title of this name.
    pub fn info_named(&self, name: &str) -> Option<TitleInfo> {
        let stored = self.lock().get(name).map(|served| served.listed.info.clone());
        stored.or_else(|| Some(TitleInfo::clone(&*self.growing(name)?.info())))
    }

    /// All titles, also derived ones.
    pub fn ids(&self) -> HashSet<TitleId> {
        self.lock().values().map(|served| served.listed.info.id).collect()
    }

    /// A title and those derived from it, with their names.
    pub fn family_of(&self, id: TitleId) -> Vec<(TitleId, String)> {
        let titles = self.lock();
        let infos = titles.values().map(|served| &served.listed.info);
        let family = infos.filter(|info| info.id == id || info.derived.is_some_and(|of| of.parent == id));
        family.map(|info| (info.id, info.name.clone())).collect()
    }

    /// Copies of titles of a library, without derived ones.
    pub fn cached(&self) -> Vec<TitleInfo> {
        let titles = self.lock();
        let infos = titles.values().map(|served| &served.listed.info);
        infos.filter(|info| info.origin.cached.is_some() && info.derived.is_none()).cloned().collect()
    }

    /// Titles that were made because viewers asked for them, and their names.
    pub fn made_on_use(&self) -> Vec<(TitleId, String)> {
        let titles = self.lock();
        let infos = titles.values().map(|served| &served.listed.info);
        let made = infos.filter(|info| info.derived.is_some_and(|derived| derived.on_use));
        made.map(|info| (info.id, info.name.clone())).collect()
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<ServedTitle>> {
        self.lock().get(name).cloned()
    }
}

impl ServedTitle {
    fn new(listed: ListedTitle) -> Self {
        Self { listed, access: Arc::new(Access::new(DEFAULT_PACKET_BYTES)), sized: Mutex::default() }
    }

    pub(super) fn id(&self) -> TitleId {
        self.listed.info.id
    }

    /// Index and packet times in a packet size; `None` if they have not been opened yet, or cannot be.
    pub(super) fn access(&self, packet_bytes: usize) -> Option<Arc<Access>> {
        if packet_bytes == DEFAULT_PACKET_BYTES {
            return Some(Arc::clone(&self.access));
        }
        let size = u16::try_from(packet_bytes).ok()?;
        self.sized.lock().unwrap_or_else(PoisonError::into_inner).get(&size).cloned()
    }

    /// That of this size from now on, unless there is one.
    pub(super) fn add_access(&self, packet_bytes: usize) -> Option<Arc<Access>> {
        let size = u16::try_from(packet_bytes).ok()?;
        let mut sized = self.sized.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(sized.entry(size).or_insert_with(|| Arc::new(Access::new(packet_bytes)))))
    }
}
