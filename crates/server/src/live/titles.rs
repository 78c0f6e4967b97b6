//! The live titles that there are.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES, MAX_LIVE_EXTENTS, MIN_LIVE_EXTENTS};
use millrace_core::packet::WireLayout;
use millrace_core::seam::Doorbell;
use millrace_core::time::Instant;
use millrace_core::units::ByteLen;
use millrace_core::wire::rtp::Timeline;
use millrace_store::cache::{Cache, CacheError, Feeder, Keep, LiveTitle};

use super::address::LiveTransport;
use super::channel::LiveChannel;
use super::input::LiveInput;
use super::state::{BY_HTTP, report};
use crate::limits::live::{DEFAULT_LIVE_BYTES, LIVE_EXTENTS_APART, LIVE_LINGER_NS, MAX_LIVE_TITLES};

/// Why a live title cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLiveError {
    /// One of this name is open.
    #[error("another source feeds it; choose another name")]
    InUse,
    /// There are enough.
    #[error("{MAX_LIVE_TITLES} live titles are open; end one first")]
    TooMany,
    /// The cache refuses it.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// All live titles, by name.
pub struct LiveTitles {
    cache: Arc<Cache>,
    plan: WindowPlan,
    lists: Mutex<LiveLists>,
    /// Titles whose client has lost its connection, and since when.
    parked: Mutex<Vec<(LiveInput, Instant)>>,
}

#[derive(Default)]
struct LiveLists {
    /// Those that can be asked for.
    channels: BTreeMap<String, Arc<LiveChannel>>,
    /// Streams of each title in the cache, also of those that have ended: these are closed with the last one.
    viewers: HashMap<TitleRef, usize>,
    ended: Vec<TitleRef>,
    /// Extents of each title that is not closed.
    extents: HashMap<TitleRef, usize>,
}

/// No thread waits for room: data that does not fit is lost.
struct NoBell;

impl Doorbell for NoBell {
    fn ring(&self) {}
}

impl LiveTitles {
    /// For `count` sources that are known, in a cache of `extents`, with windows of `wanted` bytes. Half of the cache is for live titles at
    /// most; a share is left for sources that come later.
    pub fn new(cache: Arc<Cache>, extents: usize, count: usize, wanted: ByteLen) -> Self {
        let wanted_extents = usize::try_from(wanted.0 / EXTENT_BYTES as u64).unwrap_or(usize::MAX);
        let plan = WindowPlan::new(extents / 2, wanted_extents, count);
        let bytes = ByteLen((plan.window(0, 0) * EXTENT_BYTES) as u64);
        if bytes.0 < wanted.0 && wanted.0 > DEFAULT_LIVE_BYTES {
            tracing::warn!(
                "live titles keep {bytes} each, not {wanted}: half of the cache is for all of them; raise --cache"
            );
        }
        Self { cache, plan, lists: Mutex::default(), parked: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, LiveLists> {
        // A panic elsewhere can at most leave a count of viewers wrong.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a title of this name, and the way in for its media.
    ///
    /// # Errors
    /// [`OpenLiveError`].
    pub fn open(&self, name: &str) -> Result<(Arc<LiveChannel>, Feeder), OpenLiveError> {
        let mut lists = self.lock();
        let LiveLists { channels, extents: sizes, .. } = &mut *lists;
        if channels.contains_key(name) {
            return Err(OpenLiveError::InUse);
        }
        if channels.len() >= MAX_LIVE_TITLES {
            return Err(OpenLiveError::TooMany);
        }
        let extents = self.plan.window(channels.len(), sizes.values().sum());
        let random = RandomState::new();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&random.hash_one(0).to_le_bytes());
        id[8..].copy_from_slice(&random.hash_one(1).to_le_bytes());
        let timeline =
            Timeline { ssrc: random.hash_one(2) as u32, timestamp_base: random.hash_one(3) as u32 };
        // The default size is one of those that a layout has.
        let layout = WireLayout::new(DEFAULT_PACKET_BYTES).ok_or(CacheError::NoMemory)?;
        let id = TitleId(id);
        let title = LiveTitle { id, layout, timeline, extents, keep: Keep::Newest };
        let (title, feeder) = self.cache.open_live(title, Arc::new(NoBell))?;
        sizes.insert(title, extents);
        let window = (extents - LIVE_EXTENTS_APART) as u32 * layout.packets_per_extent();
        let channel = Arc::new(LiveChannel::new(name, title, id, timeline, layout, window));
        channels.insert(name.to_owned(), Arc::clone(&channel));
        Ok((channel, feeder))
    }

    /// Ends a title: it cannot be asked for any more. It is closed in the cache when its last viewer has gone.
    pub fn close(&self, channel: &LiveChannel) {
        let title = channel.title();
        channel.tap().close();
        let mut lists = self.lock();
        lists.channels.retain(|_, open| open.title() != title);
        let has_viewers = lists.viewers.contains_key(&title);
        if has_viewers {
            lists.ended.push(title);
        }
        drop(lists);
        if !has_viewers {
            self.forget(title);
        }
    }

    /// Closes a title in the cache.
    fn forget(&self, title: TitleRef) {
        // First: another title may have this name in the cache from then on.
        self.lock().extents.remove(&title);
        self.cache.close_title(title);
    }

    /// One viewer more; `None`: there is no such title.
    pub(super) fn join(&self, name: &str, id: TitleId) -> Option<TitleRef> {
        let mut lists = self.lock();
        let title = lists.channels.get(name).filter(|channel| channel.id() == id)?.title();
        *lists.viewers.entry(title).or_default() += 1;
        Some(title)
    }

    /// One viewer less; `false`: it is no live title.
    pub(super) fn leave(&self, title: TitleRef) -> bool {
        let mut lists = self.lock();
        let Some(viewers) = lists.viewers.get_mut(&title) else { return false };
        *viewers -= 1;
        if *viewers > 0 {
            return true;
        }
        lists.viewers.remove(&title);
        let is_over = lists.ended.contains(&title);
        lists.ended.retain(|ended| *ended != title);
        drop(lists);
        if is_over {
            self.forget(title);
        }
        true
    }

    /// Streams that play a title now.
    pub fn viewers(&self, channel: &LiveChannel) -> usize {
        self.lock().viewers.get(&channel.title()).copied().unwrap_or(0)
    }

    /// The input of a title that a client brings: a new one, or the one whose connection broke.
    ///
    /// # Errors
    /// [`OpenLiveError`].
    pub(super) fn claim(&self, name: &str, now: Instant) -> Result<LiveInput, OpenLiveError> {
        let mut parked = self.lock_parked();
        if let Some(at) = parked.iter().position(|(input, _)| input.channel().name() == name) {
            return Ok(parked.swap_remove(at).0);
        }
        drop(parked);
        let (channel, feeder) = self.open(name)?;
        Ok(LiveInput::new(LiveTransport::Udp, channel, feeder, now))
    }

    /// Keeps a title for its client and its viewers.
    pub(super) fn park(&self, input: LiveInput, now: Instant) {
        self.lock_parked().push((input, now));
    }

    /// Ends titles that were kept for long enough; reports the states of the others.
    pub(super) fn look_parked(&self, now: Instant) {
        let mut parked = self.lock_parked();
        for (input, _) in parked.iter_mut() {
            if let Some(state) = input.look(now, 0) {
                report(input.channel().name(), BY_HTTP, state);
            }
            input.publish();
        }
        let is_over = |(_, since): &mut (LiveInput, Instant)| now.ns_since(*since) >= LIVE_LINGER_NS;
        let over: Vec<_> = parked.extract_if(.., is_over).collect();
        drop(parked);
        for (input, _) in over {
            tracing::info!(
                "live source {} ({BY_HTTP}): ended: its sender has not come back",
                input.channel().name()
            );
            self.end(input);
        }
    }

    /// Ends a title with its source.
    pub(super) fn end(&self, input: LiveInput) {
        let channel = Arc::clone(input.channel());
        // Viewers get all of it first.
        input.finish();
        self.close(&channel);
    }

    fn lock_parked(&self) -> MutexGuard<'_, Vec<(LiveInput, Instant)>> {
        // Each change is one push or removal: a panic elsewhere cannot leave it half done.
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The title of this name.
    pub fn get(&self, name: &str) -> Option<Arc<LiveChannel>> {
        self.lock().channels.get(name).cloned()
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<Arc<LiveChannel>> {
        self.lock().channels.values().cloned().collect()
    }
}

/// How the memory for live titles is divided, in extents.
struct WindowPlan {
    /// For all of them.
    most: usize,
    /// For each at most.
    wanted: usize,
    /// Titles that are known at the start, and the share of each.
    known: usize,
    share: usize,
}

impl WindowPlan {
    fn new(most: usize, wanted: usize, known: usize) -> Self {
        let wanted = wanted.clamp(MIN_LIVE_EXTENTS, MAX_LIVE_EXTENTS);
        Self { most, wanted, known, share: (most / (known + 1)).clamp(MIN_LIVE_EXTENTS, wanted) }
    }

    /// The window of another title beside `open` ones, which have `used`. One that was not known has a quarter of the rest, so that
    /// the next ones find some too.
    fn window(&self, open: usize, used: usize) -> usize {
        if open < self.known {
            return self.share;
        }
        (self.most.saturating_sub(used) / 4).clamp(MIN_LIVE_EXTENTS, self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_that_come_later_leave_room_for_others() {
        let (most, mut sizes) = (512, vec![102; 4]);
        let plan = WindowPlan::new(most, 128, 4);
        while sizes.iter().sum::<usize>() + MIN_LIVE_EXTENTS <= most {
            sizes.push(plan.window(sizes.len(), sizes.iter().sum()));
        }
        assert_eq!(sizes[4..7], [26, 19, 14]);
        assert!(sizes.len() > 10 && sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        assert_eq!(plan.window(0, 0), 102);
        assert_eq!(WindowPlan::new(2048, 128, 0).window(0, 0), 128, "no more than is wanted");
        assert_eq!(WindowPlan::new(2048, 600, 0).window(0, 0), 512);
    }
}
