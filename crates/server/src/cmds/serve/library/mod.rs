//! `--library`: titles of an object store that this server does not hold. One thread lists the library and removes copies that it does not
//! list any more; others fetch titles that viewers ask for ([`fetch`]); the copies have a limit ([`space`]).
//!
//! A library that is away stops nothing: the titles of the store are served, and the library is tried again.

mod fetch;
mod space;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use millrace_core::ids::TitleId;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::units::{ByteLen, HumanDuration};
use millrace_objects::{LibraryIndex, LibraryUrl, ObjectLibrary};
use millrace_offload::clock::MonotonicClock;
use millrace_store::volume::Volume;
use millrace_web::{LibraryFetch, LibraryStatus};

use super::worker::Worker;
use crate::cmds::objects::{ObjectArgs, library_url};
use crate::control::Asker;
use crate::library::on_use::unix_now;
use crate::library::open_titles::OpenTitles;
use crate::library::reader::{Closer, TitleReader};
use crate::library::remote::{FetchReport, RemoteTitles};
use crate::library::retry_timer::RetryTimer;
use crate::limits::remote::{
    LIBRARY_FETCHES, LIBRARY_INTERVAL, LIBRARY_LOOK_EVERY, LIBRARY_SPACE_DIVISOR, NOTE_WATCHED_NS,
};

/// Titles of a library.
#[derive(Args, Debug)]
#[command(next_help_heading = "Library")]
pub(crate) struct LibraryArgs {
    /// Library whose titles are served too, though the store does not hold them: s3://BUCKET/PREFIX or file:///DIR, as millrace publish fills
    /// it. A title is fetched when its first viewer comes. See also: docs/guide/machines.md
    #[arg(long, value_name = "URL")]
    pub(crate) library: Option<String>,
    /// Space for copies of titles of the library, on all members together; those not watched for the longest time are removed for others
    /// [default: half of the space that is free or taken by copies at the start]
    #[arg(long, value_name = "SIZE")]
    pub(crate) library_cache: Option<ByteLen>,
    /// How often the library is listed
    #[arg(long, value_name = "TIME", default_value_t = HumanDuration(LIBRARY_INTERVAL))]
    pub(crate) library_interval: HumanDuration,
    #[command(flatten)]
    objects: ObjectArgs,
}

millrace_core::counters! {
    /// Titles of the library.
    pub(crate) struct LibraryCounters {
        /// Requests by viewers for titles that were not here.
        sum cold_hits,
        /// Titles fetched, without those derived from them.
        sum fetched,
        /// Bytes that came from the library.
        sum fetched_bytes,
        /// Bytes that interrupted fetches had left, and that were not fetched again.
        sum resumed_bytes,
        /// Fetches that failed.
        sum failed,
        /// Listings of the library that failed.
        sum list_errors,
        /// Copies removed because others needed their space.
        sum evicted,
        /// What these took.
        sum evicted_bytes,
        /// Copies removed because the library has the title no longer, or another version of it.
        sum withdrawn,
        /// Titles in the library, as it was listed last.
        gauge titles,
        /// Whether the library could be listed last time.
        gauge reachable,
        /// Titles that are being fetched or wait to be.
        gauge fetching,
        /// Copies that are here.
        gauge cached_titles,
        /// Their size on all members together.
        gauge cached_bytes,
        /// The size that they may have.
        gauge space_bytes,
    }
}

/// The store.
struct LibraryParts {
    volume: Arc<Volume>,
    open_titles: Arc<OpenTitles>,
    closer: Closer,
}

/// The library, as web side and threads see it.
pub(super) struct LibraryNode {
    url: LibraryUrl,
    objects: ObjectArgs,
    interval: Duration,
    wanted_space: Option<ByteLen>,
    parts: LibraryParts,
    pub(super) remote: Arc<RemoteTitles>,
    /// Opened as soon as it is there.
    opened: OnceLock<ObjectLibrary>,
    shared: Mutex<Shared>,
    /// Held while copies are removed for others.
    eviction: Mutex<()>,
    asker: OnceLock<Asker>,
}

#[derive(Default)]
struct Shared {
    counters: LibraryCounters,
    trouble: Option<String>,
    space: u64,
    /// What running fetches need.
    reserved: HashMap<TitleId, u64>,
    /// Sizes of copies whose manifests have been read.
    bytes: HashMap<TitleId, u64>,
}

impl LibraryArgs {
    /// Checks what no setting shows by itself.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match &self.library {
            Some(url) => library_url("--library", url).map(drop),
            None => {
                anyhow::ensure!(
                    !self.objects.is_given() && self.library_cache.is_none(),
                    "--library-cache, --endpoint, --region, --addressing and --endpoint-ca are for a library; give --library too"
                );
                Ok(())
            }
        }
    }

    /// Certificates for the library.
    pub(super) fn authority(&self) -> Option<&Path> {
        self.objects.authority()
    }

    /// The library, if there is one. `reader` then finds its titles too.
    pub(super) fn node(
        &self,
        reader: TitleReader,
        volume: &Arc<Volume>,
        open_titles: &Arc<OpenTitles>,
    ) -> anyhow::Result<(TitleReader, Option<Arc<LibraryNode>>)> {
        let Some(url) = &self.library else { return Ok((reader, None)) };
        let remote = Arc::new(RemoteTitles::new(Arc::clone(open_titles)));
        let parts = LibraryParts {
            volume: Arc::clone(volume),
            open_titles: Arc::clone(open_titles),
            closer: reader.closer(),
        };
        let node = Arc::new(LibraryNode {
            url: library_url("--library", url)?,
            objects: self.objects.clone(),
            interval: self.library_interval.0,
            wanted_space: self.library_cache,
            parts,
            remote: Arc::clone(&remote),
            opened: OnceLock::new(),
            shared: Mutex::default(),
            eviction: Mutex::default(),
            asker: OnceLock::new(),
        });
        Ok((reader.with_remote(remote), Some(node)))
    }
}

impl LibraryNode {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Tables without relations that a panic could leave half changed.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the threads. `asker` knows the viewers.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(self: &Arc<Self>, asker: Asker) -> std::io::Result<Worker> {
        let _ = self.asker.set(asker);
        let node = Arc::clone(self);
        Worker::start("shared-library", move |stop| node.run(stop))
    }

    fn run(&self, stop: &Arc<AtomicBool>) {
        self.set_space();
        std::thread::scope(|scope| {
            for number in 0..LIBRARY_FETCHES {
                let name = format!("fetch-{number}");
                let started =
                    std::thread::Builder::new().name(name).spawn_scoped(scope, || self.fetch_until(stop));
                if let Err(error) = started {
                    tracing::error!("library {}: cannot start a thread that fetches: {error}", self.url);
                }
            }
            self.look_until(stop);
        });
    }

    /// Lists the library until the server stops.
    fn look_until(&self, stop: &Arc<AtomicBool>) {
        let mut known = LibraryIndex::default();
        let mut names = NamesSaid::default();
        let (mut due, mut noted, mut retry) = (MonotonicClock.now(), Instant(0), None);
        while !stop.load(Ordering::Relaxed) {
            let now = MonotonicClock.now();
            if now >= due {
                let listed = self.look(&mut known, &mut names, stop);
                let (now, was_away) = (MonotonicClock.now(), retry.is_some());
                match listed {
                    Ok(()) => {
                        (due, retry) = (now + self.interval, None);
                        self.is_there(was_away, now);
                    }
                    Err(_) if stop.load(Ordering::Relaxed) => break,
                    Err(error) => {
                        let timer = RetryTimer::after_failure(retry, now);
                        retry = Some(timer);
                        due = timer.due();
                        self.is_away(&error, was_away);
                    }
                }
            }
            self.remote.repeat_failed(now);
            if now.ns_since(noted) >= NOTE_WATCHED_NS {
                noted = now;
                self.note_uses();
            }
            std::thread::park_timeout(LIBRARY_LOOK_EVERY);
        }
        self.note_uses();
    }

    fn is_there(&self, was_away: bool, now: Instant) {
        if was_away {
            tracing::info!("library {}: can be listed again", self.url);
            self.remote.expire_retries(now);
        }
        let mut shared = self.lock();
        shared.trouble = None;
        shared.counters.reachable = 1;
    }

    fn is_away(&self, error: &anyhow::Error, was_away: bool) {
        if !was_away {
            tracing::warn!(
                "{error:#}; titles that are here are served, others of library {} are not, and it is tried again",
                self.url
            );
        }
        let mut shared = self.lock();
        shared.trouble = Some(format!("{error:#}"));
        shared.counters.list_errors += 1;
        shared.counters.reachable = 0;
    }

    /// The library. A directory may be mounted later.
    fn open(&self, stop: &Arc<AtomicBool>) -> anyhow::Result<&ObjectLibrary> {
        if self.opened.get().is_none() {
            let _ = self.opened.set(self.objects.open(&self.url, stop)?);
        }
        self.opened.get().ok_or_else(|| anyhow::anyhow!("library {}: not open", self.url))
    }

    /// Lists the library once.
    fn look(
        &self,
        known: &mut LibraryIndex,
        names: &mut NamesSaid,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<()> {
        let is_first = known.is_empty();
        let (index, unusable) = self.open(stop)?.relist(known)?;
        for (id, error) in unusable {
            tracing::warn!("title {id} of the library is left out: {error}");
        }
        let left_out = self.remote.set_titles(&index);
        names.report(self, &left_out);
        if !index.is_empty() {
            self.withdraw(&index);
            self.sort_out_parts(&index, is_first);
        }
        self.lock().counters.titles = self.remote.all().len() as u64;
        *known = index;
        Ok(())
    }

    /// Removes copies of titles that the library has no longer, or in another version. A library without any title is more likely a
    /// directory that is not mounted: then they stay.
    fn withdraw(&self, index: &LibraryIndex) {
        for info in self.parts.open_titles.cached() {
            let is_same = match index.get(info.id) {
                Some(title) => info.origin.cached.as_ref() == Some(&title.manifest_blake3),
                // One whose manifest cannot be read just now may be the same.
                None => index.lists(info.id),
            };
            if !is_same && self.remove_copy(info.id) {
                tracing::info!(
                    "{}: removed, the library has {}",
                    info.name,
                    if index.get(info.id).is_some() { "another version of it" } else { "it no longer" }
                );
                self.lock().counters.withdrawn += 1;
            }
        }
    }

    /// Goes on with fetches that were interrupted, and removes parts of titles that the library does not have.
    fn sort_out_parts(&self, index: &LibraryIndex, is_first: bool) {
        let parts = self.parts.volume.interrupted_imports().unwrap_or_default();
        if parts.is_empty() {
            return;
        }
        let all = self.remote.all();
        for id in parts {
            let title =
                all.iter().find(|title| title.family().iter().any(|part| part.manifest.title.id == id));
            match title {
                Some(title) if is_first => self.remote.resume(title),
                None if !index.lists(id) => {
                    if let Err(error) = self.parts.volume.remove_interrupted_import(id) {
                        tracing::warn!("title {id}: a part that was fetched cannot be removed: {error}");
                    }
                }
                _ => {}
            }
        }
    }

    /// Names of titles that are being watched by segments: those are not open all the time. `None`: not known now.
    fn watched(&self) -> Option<HashSet<String>> {
        let snapshot = self.asker.get()?.snapshot()?;
        Some(snapshot.fetchers.into_iter().map(|fetcher| fetcher.title).collect())
    }

    /// Writes down which titles were watched.
    fn note_uses(&self) {
        let titles = &self.parts.open_titles;
        let now = unix_now();
        for name in self.watched().unwrap_or_default() {
            if let Some(id) = titles.info_named(&name).map(|info| info.id) {
                self.remote.begin_use(id);
                self.remote.end_use(id);
            }
        }
        let there = titles.ids();
        let news = self.remote.with_uses(|uses| {
            uses.keep_only(|id| there.contains(&id));
            uses.take_news(now)
        });
        let cached: HashSet<TitleId> = titles.cached().iter().map(|info| info.id).collect();
        for (id, at) in news.into_iter().filter(|(id, _)| cached.contains(id)) {
            self.parts.volume.note_use(id, UNIX_EPOCH + Duration::from_nanos(at.0));
        }
    }

    /// By default half of the free space and of the space of copies: the same at each start, however many copies there are.
    fn set_space(&self) {
        let free: u64 = self.parts.volume.room().unwrap_or_default().iter().sum();
        let usual = free.saturating_add(self.copies_bytes()) / LIBRARY_SPACE_DIVISOR;
        let space = self.wanted_space.map_or(usual, |wanted| wanted.0);
        let mut shared = self.lock();
        (shared.space, shared.counters.space_bytes) = (space, space);
        drop(shared);
        tracing::info!("library {}: copies of its titles may take {}", self.url, ByteLen(space));
    }

    /// The counters, up to date.
    pub(super) fn counters(&self) -> LibraryCounters {
        let fetches = self.remote.fetches();
        let (titles, bytes) = (self.parts.open_titles.cached().len() as u64, self.copies_bytes());
        let mut shared = self.lock();
        let counters = &mut shared.counters;
        (counters.cached_titles, counters.cached_bytes) = (titles, bytes);
        counters.fetching = fetches.iter().filter(|fetch| fetch.trouble.is_none()).count() as u64;
        counters.cold_hits = self.remote.cold_hits();
        *counters
    }

    /// For operators.
    pub(super) fn status(&self) -> LibraryStatus {
        let LibraryCounters { titles, cached_titles, cached_bytes, space_bytes, .. } = self.counters();
        let fetch = |FetchReport { title, percent, trouble }| LibraryFetch { title, percent, trouble };
        LibraryStatus {
            url: self.url.to_string(),
            trouble: self.lock().trouble.clone(),
            titles,
            cached_titles,
            cached_bytes,
            space_bytes,
            fetches: self.remote.fetches().into_iter().map(fetch).collect(),
        }
    }
}

/// Names of the library that have been reported as taken; each is once.
#[derive(Default)]
struct NamesSaid(HashSet<TitleId>);

impl NamesSaid {
    fn report(&mut self, node: &LibraryNode, left_out: &[(TitleId, String)]) {
        for (id, name) in left_out {
            if self.0.insert(*id) {
                tracing::warn!("{name}: another title of the library has this name; title {id} is left out");
            }
        }
        for title in node.remote.all() {
            let info = title.info();
            let local = node.parts.open_titles.info_named(&info.name).filter(|local| local.id != info.id);
            if local.is_some() && self.0.insert(info.id) {
                tracing::warn!(
                    "{}: a title of this store has this name; title {} of the library is left out",
                    info.name,
                    info.id
                );
            }
        }
    }
}

/// The counters of the library; zeros without one.
pub(super) fn sheet(node: Option<Arc<LibraryNode>>) -> impl Fn() -> LibraryCounters + Send + Sync + 'static {
    move || node.as_ref().map(|node| node.counters()).unwrap_or_default()
}
