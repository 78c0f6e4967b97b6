//! The titles of a store as the control plane sees them.
//!
//! The library thread keeps the open titles in step with the store ([`OpenTitles::refresh`]); the control thread looks titles up and
//! opens them in the cache ([`Reader`]). A title that was opened stays open when its last viewer leaves, so that what
//! the cache holds of it is there for the next one; only the most recently used idle titles are kept.
//!
//! A title of which too many members are lost stays among the open titles: a request for it is answered with that, and not with 404.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::limits::control::MAX_IDLE_TITLES;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_OPEN_TITLES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_store::StoreError;
use millrace_store::blocking::Timeout;
use millrace_store::cache::{Cache, TitleSource};
use millrace_store::index::TitleIndex;
use millrace_store::stripes::StripeLayout;
use millrace_store::volume::{
    ListedAt, ListedTitle, Listing, TitleFiles, TitleInfo, UnreadableTitle, Volume,
};

use crate::admission::CacheFigures;
use crate::service::{
    AccessPoint, AccessPoints, Entry, FecMatrix, Library, OpenError, Presentation, TimeBase, Track,
};

/// The titles there are now.
#[derive(Default)]
pub struct OpenTitles {
    titles: Mutex<BTreeMap<String, Arc<ServedTitle>>>,
    /// The listing that they come from, and how many of its titles were lost.
    listed: Mutex<(Option<ListedAt>, usize)>,
}

/// One title among the open titles.
struct ServedTitle {
    /// As the volume had it at the last refresh.
    listed: ListedTitle,
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
    /// Titles of which too many members are missing now.
    pub lost: usize,
    /// What lies among the titles and cannot be read, and why.
    pub unreadable: Vec<String>,
}

impl OpenTitles {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ServedTitle>>> {
        // The map is replaced in one step: a panic elsewhere cannot leave it half changed.
        self.titles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the catalogue again.
    ///
    /// # Errors
    /// When the store cannot be read; the open titles stay as they were.
    pub fn refresh(&self, volume: &Arc<Volume>) -> Result<Changes, StoreError> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let (as_of, lost) = &mut *listed;
        let Some(listing) = volume.listing_since(as_of.as_ref())? else {
            return Ok(Changes { lost: *lost, ..Changes::default() });
        };
        let Listing { titles: found, unreadable, as_of: now } = listing;
        let mut titles = self.lock();
        let mut next = BTreeMap::new();
        let mut changes = Changes::default();
        for listed in found {
            changes.lost += usize::from(listed.lost(|slot| volume.members().is_usable(slot)).is_some());
            let info = &listed.info;
            let before = titles.get(&info.name).filter(|before| before.listed.info.id == info.id);
            if before.is_none() {
                changes.added.push(info.clone());
            }
            // One that has got packet sizes, or lost a member, is put among the open titles again, but is no news.
            let same = before.filter(|before| before.listed == listed).map(Arc::clone);
            let name = info.name.clone();
            next.insert(name, same.unwrap_or_else(|| Arc::new(ServedTitle::new(volume, listed))));
        }
        // What is there and cannot be read is the answer to requests for it.
        let broken: HashSet<TitleId> = unreadable.iter().map(|title| title.id).collect();
        for (name, shelved) in titles.iter().filter(|(_, shelved)| broken.contains(&shelved.listed.info.id)) {
            next.entry(name.clone()).or_insert_with(|| Arc::clone(shelved));
        }
        let told = |UnreadableTitle { id, error }: &UnreadableTitle| format!("title {id}: {error}");
        changes.unreadable = unreadable.iter().map(told).collect();
        changes.removed = titles.keys().filter(|&name| !next.contains_key(name)).cloned().collect();
        *titles = next;
        (*as_of, *lost) = (now, changes.lost);
        Ok(changes)
    }

    /// All titles, by name.
    pub fn titles(&self) -> Vec<TitleInfo> {
        self.lock().values().map(|shelved| shelved.listed.info.clone()).collect()
    }

    /// What a title is called.
    pub fn name_of(&self, id: TitleId) -> Option<String> {
        self.lock()
            .values()
            .find(|shelved| shelved.listed.info.id == id)
            .map(|shelved| shelved.listed.info.name.clone())
    }

    fn get(&self, name: &str) -> Option<Arc<ServedTitle>> {
        self.lock().get(name).cloned()
    }
}

impl ServedTitle {
    fn new(volume: &Arc<Volume>, listed: ListedTitle) -> Self {
        let access = Arc::new(LazyAccess::new(volume, listed.info.id, DEFAULT_PACKET_BYTES));
        Self { listed, access, sized: Mutex::default() }
    }

    /// Index and packet times in another packet size; `None` if the title cannot be had in it, now.
    fn access(&self, size: u16) -> Option<Arc<LazyAccess>> {
        let mut sized = self.sized.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(access) = sized.get(&size) {
            return Some(Arc::clone(access));
        }
        // What cannot be had is asked for again the next time: range sums may come while the server runs.
        let access = Arc::new(LazyAccess::new(&self.access.volume, self.listed.info.id, usize::from(size)));
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
    files: Mutex<Option<Arc<TitleFiles>>>,
}

impl LazyAccess {
    fn new(volume: &Arc<Volume>, id: TitleId, packet_bytes: usize) -> Self {
        Self { volume: Arc::clone(volume), id, packet_bytes, files: Mutex::default() }
    }

    /// `None` if the files are damaged: then the title starts at its beginning, and opening it will say what is wrong.
    fn files(&self) -> Option<Arc<TitleFiles>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.is_none() {
            *files = self.volume.open_title(self.id, self.packet_bytes).ok().map(Arc::new);
        }
        files.clone()
    }

    /// Reads from the files; once more if that fails or is not answered, because another member may have what this one has
    /// no longer.
    fn read<T: Send + 'static>(
        &self,
        read: impl Fn(&TitleFiles) -> Result<T, StoreError> + Clone + Send + 'static,
    ) -> Option<T> {
        let ask = || {
            let (files, read) = (self.files()?, read.clone());
            let of = Arc::clone(&files);
            files.members.ask(files.home, Timeout::Call, move |_| read(&of)).ok()?.ok()
        };
        ask().or_else(|| {
            *self.files.lock().unwrap_or_else(PoisonError::into_inner) = None;
            ask()
        })
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
        let exact = self.read(move |files| files.packet_at(time));
        // Where records are damaged, the index alone is near enough.
        exact.or_else(|| Some(self.files()?.packet_by_index(time))).unwrap_or(0)
    }

    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        let exact = self.read(move |files| {
            let mut meta = [PacketMeta::default()];
            files.read_metas(packet, &mut meta).map(|()| meta[0].time())
        });
        exact.or_else(|| Some(self.files()?.time_by_index(packet)))
    }
}

/// What the index says of the title's time stamps.
fn presentation(index: &TitleIndex) -> Presentation {
    let bases = index.bases().iter().map(|base| TimeBase { time: base.time, first_pts: base.first_pts });
    Presentation::new(index.parts().end, bases.collect())
}

/// What can be sent as FEC of these rows; `None` without parity, or if a header of ST 2022-1 has no room for them.
fn matrix(stripes: &StripeLayout) -> Option<FecMatrix> {
    let small = |n: usize| u8::try_from(n).ok().filter(|&n| n > 0);
    Some(FecMatrix {
        data_units: small(stripes.k())?,
        parity_units: small(stripes.m())?,
        unit_packets: u8::try_from(stripes.unit_packets()).ok()?,
    })
}

/// The control thread's hand among the open titles.
pub struct Reader {
    open_titles: Arc<OpenTitles>,
    volume: Arc<Volume>,
    cache: Arc<Cache>,
    open: HashMap<Key, Open>,
    by_ref: HashMap<TitleRef, Key>,
    /// Open titles without viewers, the longest unused first.
    idle: VecDeque<Key>,
}

/// A title in one packet size, or one of its parity tracks: each is open, cached and closed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Media { id: TitleId, packet_bytes: usize, is_raw: bool },
    Parity { id: TitleId, track: u8 },
}

struct Open {
    /// A title as well as a parity track is packets in a layout.
    track: Track,
    viewers: usize,
}

impl Reader {
    /// A reader of `open_titles`.
    pub fn new(open_titles: Arc<OpenTitles>, volume: Arc<Volume>, cache: Arc<Cache>) -> Self {
        Self {
            open_titles,
            volume,
            cache,
            open: HashMap::new(),
            by_ref: HashMap::new(),
            idle: VecDeque::new(),
        }
    }

    fn shelved(&self, entry: &Entry) -> Result<Arc<ServedTitle>, OpenError> {
        self.open_titles.get(&entry.name).ok_or_else(|| OpenError::Broken("it was just removed".into()))
    }

    /// Opens it for one more viewer.
    fn open_key(&mut self, key: Key) -> Result<Track, OpenError> {
        if let Some(open) = self.open.get_mut(&key) {
            open.viewers += 1;
            self.idle.retain(|&idle| idle != key);
            return Ok(open.track);
        }
        if self.open.len() >= MAX_OPEN_TITLES {
            self.close_idle(0);
            if self.open.len() >= MAX_OPEN_TITLES {
                return Err(OpenError::Full);
            }
        }
        let (packets, layout, title) = match key {
            Key::Media { id, packet_bytes, is_raw } => {
                let files = self.volume.open_title(id, packet_bytes).map_err(not_opened)?;
                let files = if is_raw { files.raw() } else { Some(files) };
                let files = files.ok_or_else(|| OpenError::Broken("it cannot be had without RTP".into()))?;
                (files.packets(), files.layout, self.cache.open_title(files))
            }
            Key::Parity { id, track } => {
                let files = self.volume.open_parity(id, track).map_err(not_opened)?;
                (files.packets(), files.layout(), self.cache.open_source(Box::new(files)))
            }
        };
        let track =
            Track { title: title.map_err(|error| OpenError::Broken(error.to_string()))?, packets, layout };
        self.open.insert(key, Open { track, viewers: 1 });
        self.by_ref.insert(track.title, key);
        Ok(track)
    }

    fn close_idle(&mut self, keep: usize) {
        while self.idle.len() > keep {
            let Some(key) = self.idle.pop_front() else { break };
            if let Some(open) = self.open.remove(&key) {
                self.by_ref.remove(&open.track.title);
                self.cache.close_title(open.track.title);
            }
        }
    }
}

/// Members may have gone since the open titles was brought up to date. Viewers are not told where the operator's disks are.
fn not_opened(error: StoreError) -> OpenError {
    match error {
        StoreError::MembersLost { lost, may, .. } => OpenError::MembersLost(format!(
            "{lost} of the title's members are lost; it tolerates the loss of {may}"
        )),
        other => OpenError::Broken(other.to_string()),
    }
}

impl Library for Reader {
    fn cache_figures(&self) -> Option<CacheFigures> {
        let stats = self.cache.stats();
        Some(CacheFigures {
            grants: stats.hits + stats.joins + stats.misses,
            late_grants: stats.late_grants,
            positions: stats.positions,
            positions_max: stats.positions_max,
        })
    }

    fn find(&mut self, name: &str) -> Option<Entry> {
        let shelved = self.open_titles.get(name)?;
        let info = &shelved.listed.info;
        let files = shelved.access.files();
        let layout = files.as_ref().map(|files| files.layout);
        Some(Entry {
            name: info.name.clone(),
            duration: info.duration,
            presentation: files.as_ref().map(|files| presentation(&files.index)).unwrap_or_default(),
            mean_rate: info.mean_rate,
            peak_rate: info.peak_rate,
            packets: info.packets,
            timeline: info.timeline,
            layout: layout.or_else(|| WireLayout::new(DEFAULT_PACKET_BYTES))?,
            fec: files.and_then(|files| files.stripes).as_ref().and_then(matrix),
            access: shelved.access.clone(),
        })
    }

    fn sized(&mut self, entry: &Entry, packet_bytes: usize) -> Option<Entry> {
        if entry.layout.packet_bytes() == packet_bytes {
            return Some(entry.clone());
        }
        let shelved = self.open_titles.get(&entry.name)?;
        let access = shelved.access(u16::try_from(packet_bytes).ok()?)?;
        let files = access.files()?;
        Some(Entry {
            packets: files.packets(),
            timeline: shelved.listed.info.timeline_of(packet_bytes),
            layout: files.layout,
            fec: None,
            access,
            ..entry.clone()
        })
    }

    fn open(&mut self, entry: &Entry) -> Result<TitleRef, OpenError> {
        let shelved = self.shelved(entry)?;
        if let Some(lost) = self.lost(entry) {
            return Err(OpenError::MembersLost(lost));
        }
        let (packet_bytes, is_raw) = (entry.layout.packet_bytes(), entry.layout.is_raw());
        let key = Key::Media { id: shelved.listed.info.id, packet_bytes, is_raw };
        Ok(self.open_key(key)?.title)
    }

    fn open_track(&mut self, entry: &Entry, track: u8) -> Result<Track, OpenError> {
        let id = self.shelved(entry)?.listed.info.id;
        self.open_key(Key::Parity { id, track })
    }

    /// Members that the volume misses. How well the others are read says nothing of whether a title can be had: each packet of it is
    /// asked of all of them.
    fn lost(&mut self, entry: &Entry) -> Option<String> {
        let shelved = self.open_titles.get(&entry.name)?;
        let members = self.volume.members();
        // Nothing can be lost of a store with one directory but all of it, and that is told as it is.
        if members.len() < 2 {
            return None;
        }
        let lost = shelved.listed.lost(|slot| members.is_usable(slot))?;
        Some(lost.to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_went_unnoticed_are_a_reason_to_ask_again() {
        let gone = StoreError::MembersLost { what: "title".into(), lost: 2, may: 1, names: "/disk1".into() };
        let OpenError::MembersLost(said) = not_opened(gone) else { panic!("it is not broken") };
        assert_eq!(said, "2 of the title's members are lost; it tolerates the loss of 1");
        let removed = StoreError::NoTitle { id: TitleId([7; 16]) };
        assert!(matches!(not_opened(removed), OpenError::Broken(said) if said.contains("not in this store")));
    }
}
