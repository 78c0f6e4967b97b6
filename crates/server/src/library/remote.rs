//! Titles that only the library of `serve --library` has: which of them are being fetched, and which copies of them are in use.
//!
//! ```text
//!   control thread, web ── find, request ──► RemoteTitles ◄── next_fetch, progress, fetched, failed ── threads that fetch
//!   control thread ── begin_use, end_use ──►      ▲
//!                                                 └── set_titles ── thread that lists the library
//! ```

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};
use millrace_objects::{LibraryIndex, PublishedTitle, TransferProgress};
use millrace_store::volume::TitleInfo;
use millrace_web::LibraryCopy;

use super::on_use::unix_now;
use super::on_use::uses::Uses;
use super::open_titles::OpenTitles;
use super::retry_timer::RetryTimer;
use crate::limits::remote::MAX_FETCHES_WAITING;
use crate::service::{AccessPoint, AccessPoints, Presentation, TitleEntry};

/// The titles of a library that this server does not hold.
pub struct RemoteTitles {
    open_titles: Arc<OpenTitles>,
    state: Mutex<RemoteState>,
    /// Titles of the store, as of the version of the open titles that is kept beside them.
    local: Mutex<(u64, Arc<HashSet<TitleId>>)>,
    /// Threads that fetch wait here.
    wake: Condvar,
    version: AtomicU64,
}

#[derive(Default)]
struct RemoteState {
    titles: BTreeMap<String, Arc<RemoteTitle>>,
    fetches: HashMap<TitleId, FetchState>,
    queue: VecDeque<TitleId>,
    /// Of titles that could not be fetched since they were last here.
    retries: HashMap<TitleId, RetryTimer<Instant>>,
    uses: Uses,
    cold_hits: u64,
}

/// A title of the library, and behind it those that are derived from it.
pub struct RemoteTitle {
    /// At least one.
    family: Vec<Arc<PublishedTitle>>,
}

/// How far the fetch of a title is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FetchState {
    Waiting,
    Running {
        percent: u8,
    },
    /// `is_repeated`: it is tried again when its time has come, else when a viewer asks for it then.
    Failed {
        why: String,
        is_repeated: bool,
    },
}

/// A fetch, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchReport {
    /// The title's name.
    pub title: String,
    /// Share of its bytes that are here.
    pub percent: u8,
    /// Why it failed; it is tried again.
    pub trouble: Option<String>,
}

impl RemoteTitle {
    /// Its description.
    pub fn info(&self) -> &TitleInfo {
        &self.family[0].manifest.title
    }

    /// It, and the titles derived from it.
    pub fn family(&self) -> &[Arc<PublishedTitle>] {
        &self.family
    }
}

impl RemoteTitles {
    /// None yet. What `open_titles` has is not remote.
    pub fn new(open_titles: Arc<OpenTitles>) -> Self {
        let local = Mutex::new((u64::MAX, Arc::default()));
        Self { open_titles, state: Mutex::default(), local, wake: Condvar::new(), version: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, RemoteState> {
        // Tables without relations that a panic could leave half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_changed(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Another number whenever the titles or the states of their fetches may have changed.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn local_ids(&self) -> Arc<HashSet<TitleId>> {
        let version = self.open_titles.version();
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        if local.0 != version {
            *local = (version, Arc::new(self.open_titles.ids()));
        }
        Arc::clone(&local.1)
    }

    /// Replaces the list by the titles of the library. Returns those left out because another of the library has their name.
    pub fn set_titles(&self, index: &LibraryIndex) -> Vec<(TitleId, String)> {
        let mut derived: HashMap<TitleId, Vec<&Arc<PublishedTitle>>> = HashMap::new();
        let mut own = Vec::new();
        for title in index.titles() {
            match title.manifest.title.derived {
                Some(of) => derived.entry(of.parent).or_default().push(title),
                None => own.push(title),
            }
        }
        let (mut titles, mut left_out) = (BTreeMap::new(), Vec::new());
        // By id, so that the same one has a name at every server.
        for title in own {
            let info = &title.manifest.title;
            if titles.contains_key(&info.name) {
                left_out.push((info.id, info.name.clone()));
                continue;
            }
            let along = derived.remove(&info.id).unwrap_or_default();
            let family = std::iter::once(title).chain(along).cloned().collect();
            titles.insert(info.name.clone(), Arc::new(RemoteTitle { family }));
        }
        let mut state = self.lock();
        let there: HashSet<TitleId> =
            titles.values().map(|title: &Arc<RemoteTitle>| title.info().id).collect();
        state.fetches.retain(|id, fetch| there.contains(id) || matches!(fetch, FetchState::Running { .. }));
        state.queue.retain(|id| there.contains(id));
        state.retries.retain(|id, _| there.contains(id));
        state.titles = titles;
        drop(state);
        self.has_changed();
        left_out
    }

    /// The title of this name, if the store has neither it nor another title of the name.
    pub fn find(&self, name: &str) -> Option<Arc<RemoteTitle>> {
        let title = self.lock().titles.get(name).cloned()?;
        let is_local =
            self.open_titles.info_named(name).is_some() || self.local_ids().contains(&title.info().id);
        (!is_local).then_some(title)
    }

    /// The same as the control thread sees it: nothing of it can be opened.
    pub fn entry(&self, name: &str) -> Option<TitleEntry> {
        let title = self.find(name)?;
        let info = title.info();
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
            layout: WireLayout::new(DEFAULT_PACKET_BYTES)?,
            fec: None,
            access: Arc::new(NoAccess),
            transform: None,
            began_unix_ms: info.began_unix_ms,
        })
    }

    /// All titles of the library, whether the store has them or not.
    pub fn all(&self) -> Vec<Arc<RemoteTitle>> {
        self.lock().titles.values().cloned().collect()
    }

    /// The titles that the store does not have, in the order of their names, beside those of these names that it has.
    pub fn titles_beside(&self, local: &[TitleInfo]) -> Vec<TitleInfo> {
        let names: HashSet<&str> = local.iter().map(|info| info.name.as_str()).collect();
        let ids = self.local_ids();
        let all = self.all();
        let infos = all.iter().map(|title| title.info());
        infos.filter(|info| !names.contains(info.name.as_str()) && !ids.contains(&info.id)).cloned().collect()
    }

    /// A viewer would have this title: it is fetched, unless it is already, or has just failed. Returns the answer for the viewer.
    pub fn request(&self, title: &RemoteTitle, now: Instant) -> String {
        let id = title.info().id;
        let mut state = self.lock();
        state.cold_hits += 1;
        let may_begin = match state.fetches.get(&id) {
            None => true,
            Some(FetchState::Failed { .. }) => state.retries.get(&id).is_none_or(|retry| retry.is_due(now)),
            Some(FetchState::Waiting | FetchState::Running { .. }) => false,
        };
        if may_begin {
            if state.queue.len() >= MAX_FETCHES_WAITING {
                return "too many titles are waiting to be fetched from the library; try again later"
                    .to_owned();
            }
            state.fetches.insert(id, FetchState::Waiting);
            state.queue.push_back(id);
            self.wake.notify_one();
            self.has_changed();
        }
        match state.fetches.get(&id) {
            Some(FetchState::Running { percent }) => {
                format!(
                    "the title is being fetched from the library, {percent} % of it are here; try again later"
                )
            }
            Some(FetchState::Failed { .. }) => {
                "the title cannot be fetched from the library now; try again later".to_owned()
            }
            _ => "the title will be fetched from the library; try again later".to_owned(),
        }
    }

    /// Goes on with a fetch that the server's end has interrupted.
    pub fn resume(&self, title: &RemoteTitle) {
        let (id, mut state) = (title.info().id, self.lock());
        if state.queue.len() < MAX_FETCHES_WAITING && !state.fetches.contains_key(&id) {
            state.fetches.insert(id, FetchState::Waiting);
            state.queue.push_back(id);
            self.wake.notify_one();
        }
    }

    /// Puts those fetches into the queue again that failed for a cause that may pass, when their time has come.
    pub fn repeat_failed(&self, now: Instant) {
        let mut state = self.lock();
        let RemoteState { fetches, queue, retries, .. } = &mut *state;
        for (id, fetch) in fetches.iter_mut() {
            let is_due = retries.get(id).is_none_or(|retry| retry.is_due(now));
            let is_failed = matches!(fetch, FetchState::Failed { is_repeated: true, .. });
            if is_failed && is_due && queue.len() < MAX_FETCHES_WAITING {
                *fetch = FetchState::Waiting;
                queue.push_back(*id);
                self.wake.notify_one();
            }
        }
    }

    /// The library answers again: what failed meanwhile is tried again at once.
    pub fn expire_retries(&self, now: Instant) {
        self.lock().retries.values_mut().for_each(|retry| retry.expire(now));
    }

    /// The next title to fetch. Waits for one, at most for this time.
    pub fn next_fetch(&self, wait: Duration) -> Option<Arc<RemoteTitle>> {
        let state = self.lock();
        let waited = self.wake.wait_timeout_while(state, wait, |state| state.queue.is_empty());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let id = state.queue.pop_front()?;
        let title = state.titles.values().find(|title| title.info().id == id).cloned();
        match &title {
            Some(_) => drop(state.fetches.insert(id, FetchState::Running { percent: 0 })),
            None => drop(state.fetches.remove(&id)),
        }
        drop(state);
        self.has_changed();
        title
    }

    /// Notes how far the fetch of a title is.
    pub fn progress(&self, id: TitleId, progress: TransferProgress) {
        let share = u128::from(progress.bytes_done) * 100 / u128::from(progress.bytes_total.max(1));
        let now = FetchState::Running { percent: share.min(99) as u8 };
        let before = self.lock().fetches.insert(id, now.clone());
        if before != Some(now) {
            self.has_changed();
        }
    }

    /// It is here.
    pub fn fetched(&self, id: TitleId) {
        let mut state = self.lock();
        state.fetches.remove(&id);
        state.retries.remove(&id);
        drop(state);
        self.has_changed();
    }

    /// It could not be fetched. `is_repeated`: it is tried again without a viewer.
    pub fn failed(&self, id: TitleId, now: Instant, why: String, is_repeated: bool) {
        let mut state = self.lock();
        let retry = RetryTimer::after_failure(state.retries.get(&id).copied(), now);
        state.retries.insert(id, retry);
        state.fetches.insert(id, FetchState::Failed { why, is_repeated });
        drop(state);
        self.has_changed();
    }

    /// Where the copy of a title is, for listings; `None`: it is no title of the library.
    pub fn copy_of(&self, title: &TitleInfo) -> Option<LibraryCopy> {
        if title.origin.cached.is_some() {
            return Some(LibraryCopy { state: "cached", percent: 100 });
        }
        let is_it = |remote: &Arc<RemoteTitle>| remote.info().id == title.id;
        self.find(&title.name).filter(is_it)?;
        let (state, percent) = match self.lock().fetches.get(&title.id) {
            None => ("remote", 0),
            Some(FetchState::Waiting) => ("waiting", 0),
            Some(FetchState::Running { percent }) => ("fetching", *percent),
            Some(FetchState::Failed { .. }) => ("failed", 0),
        };
        Some(LibraryCopy { state, percent })
    }

    /// The fetches, by title.
    pub fn fetches(&self) -> Vec<FetchReport> {
        let state = self.lock();
        let report = |title: &Arc<RemoteTitle>| {
            let name = title.info().name.clone();
            Some(match state.fetches.get(&title.info().id)? {
                FetchState::Waiting => FetchReport { title: name, percent: 0, trouble: None },
                FetchState::Running { percent } => {
                    FetchReport { title: name, percent: *percent, trouble: None }
                }
                FetchState::Failed { why, .. } => {
                    FetchReport { title: name, percent: 0, trouble: Some(why.clone()) }
                }
            })
        };
        state.titles.values().filter_map(report).collect()
    }

    /// Requests by viewers for titles that were not here.
    pub fn cold_hits(&self) -> u64 {
        self.lock().cold_hits
    }

    /// One more viewer of a title of the store; `false`: it is being removed.
    pub fn begin_use(&self, id: TitleId) -> bool {
        self.lock().uses.begin(id, unix_now())
    }

    /// One viewer less.
    pub fn end_use(&self, id: TitleId) {
        self.lock().uses.end(id, unix_now());
    }

    /// Looks at the uses, or changes them.
    pub fn with_uses<R>(&self, look: impl FnOnce(&mut Uses) -> R) -> R {
        look(&mut self.lock().uses)
    }
}

/// Access points of a title that is not here. Nothing plays it.
struct NoAccess;

impl AccessPoints for NoAccess {
    fn is_remote(&self) -> bool {
        true
    }

    fn access_at_or_before(&self, _: MediaTicks) -> AccessPoint {
        AccessPoint { packet: 0, time: MediaTicks(0) }
    }

    fn access_at_or_after(&self, _: MediaTicks) -> Option<AccessPoint> {
        None
    }

    fn packet_at(&self, _: MediaTicks) -> u32 {
        0
    }

    fn time_of(&self, _: u32) -> Option<MediaTicks> {
        None
    }
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
