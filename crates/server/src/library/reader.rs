//! The control thread's access to the titles: looks them up, requests their opening, and counts
//! their viewers.
//!
//! Nothing here waits for a disk. If a request needs something that is not open, a thread of
//! `openers` opens it and answers through the bell; open titles are handed out at once. A title
//! that was opened stays open when its last viewer leaves, so that its data in the cache are there
//! for the next one; only the most recently used idle titles are kept.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_OPEN_TITLES};
use millrace_core::packet::WireLayout;
use millrace_core::scale::Scale;
use millrace_core::seam::Clock;
use millrace_offload::clock::MonotonicClock;
use millrace_store::StoreError;
use millrace_store::cache::{Cache, GrowingTitle as GrowingSource, ReadyTitle, TitleSource};
use millrace_store::transform::{Derivation, DeriveTitleError, Transforms, timeline_of};
use millrace_store::volume::{self, Derived, Volume};

use super::access::{matrix, presentation};
use super::on_use::OnUse;
use super::open_titles::{OpenTitles, ServedTitle};
use super::openers::{Openers, Results};
use super::remote::RemoteTitles;
use crate::admission::CacheFigures;
use crate::limits::MAX_OPENINGS;
use crate::limits::control::MAX_IDLE_TITLES;
use crate::service::{
    CachedParity, Library, NeededPart, OpenError, Rendition, TitleEntry, TitlePart, Transformed,
};

/// The control thread's hand among the titles.
pub struct TitleReader {
    open_titles: Arc<OpenTitles>,
    volume: Arc<Volume>,
    cache: Arc<Cache>,
    openers: Openers<LibraryEvent>,
    transforms: Transforms,
    open: HashMap<OpenKey, OpenTrack>,
    by_ref: HashMap<TitleRef, OpenKey>,
    /// Open titles without viewers, the longest unused first.
    idle: VecDeque<OpenKey>,
    /// The last failures to open something, with their reasons, for the requests that have waited
    /// for it.
    failed: VecDeque<(OpenKey, OpenError)>,
    /// Where viewers' wishes go, if they are collected.
    on_use: Option<Arc<OnUse>>,
    /// Titles that only a library has, and the uses of its copies.
    remote: Option<Arc<RemoteTitles>>,
}

/// A title in one packet size, or one of its parity tracks: each is open, cached and closed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OpenKey {
    Media {
        id: TitleId,
        packet_bytes: usize,
        is_raw: bool,
        transform: Option<u8>,
    },
    Parity {
        id: TitleId,
        track: u8,
    },
    /// A recording that is being made. The stored title that it becomes has another key.
    Growing {
        id: TitleId,
    },
}

impl OpenKey {
    fn id(self) -> TitleId {
        let (Self::Media { id, .. } | Self::Parity { id, .. } | Self::Growing { id }) = self;
        id
    }
}

struct OpenTrack {
    /// A title as well as a parity track is packets in a layout.
    track: CachedParity,
    viewers: usize,
}

/// What other threads have done.
enum LibraryEvent {
    /// An opener has opened this.
    Opened(NeededPart, Opened),
    /// This title has been removed to make room.
    Removed(TitleId),
}

/// Requests the closing of files of removed titles, because only then their space is free.
pub struct Closer(Results<LibraryEvent>);

impl Closer {
    /// Reports that this title has been removed and has no viewers.
    pub fn removed(&self, id: TitleId) {
        self.0.send(LibraryEvent::Removed(id));
    }
}

enum Opened {
    /// Index and times: they have been put where they belong.
    Times(Result<(), OpenError>),
    /// Media or parity, whose files are open.
    Track(OpenKey, Result<Box<UncachedTrack>, OpenError>),
}

/// An opened title or parity track before it goes to the cache.
struct UncachedTrack {
    title: ReadyTitle,
    packets: u32,
    layout: WireLayout,
}

impl TitleReader {
    /// A reader of `open_titles`.
    ///
    /// # Errors
    /// If the system has no more threads or descriptors.
    pub fn new(
        open_titles: Arc<OpenTitles>,
        volume: Arc<Volume>,
        cache: Arc<Cache>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            open_titles,
            volume,
            cache,
            openers: Openers::start()?,
            transforms: Transforms::default(),
            open: HashMap::new(),
            by_ref: HashMap::new(),
            idle: VecDeque::new(),
            failed: VecDeque::new(),
            on_use: None,
            remote: None,
        })
    }

    /// The same with these transformations.
    pub fn with_transforms(self, transforms: Transforms) -> Self {
        Self { transforms, ..self }
    }

    /// Passes on which speeds viewers wish for, and which of those that were made so are used.
    pub fn with_wishes(self, on_use: Arc<OnUse>) -> Self {
        Self { on_use: Some(on_use), ..self }
    }

    /// Also finds titles that only a library has.
    pub fn with_remote(self, remote: Arc<RemoteTitles>) -> Self {
        Self { remote: Some(remote), ..self }
    }

    /// For whoever removes titles.
    pub fn closer(&self) -> Closer {
        Closer(self.openers.results())
    }

    /// Returns the members that the volume misses. How well the others are read does not determine
    /// whether a title is available: each packet of it is requested from all of them.
    fn lost_of(&self, served: &ServedTitle) -> Option<String> {
        let members = self.volume.members();
        // A store with one directory can only lose all of it, and this is reported as it is.
        if members.len() < 2 {
            return None;
        }
        let lost = served.listed.lost(|slot| members.is_usable(slot))?;
        Some(lost.to_string())
    }

    /// The title of an entry, unless another title has replaced it: a viewer of the old one
    /// continues with the files that are open.
    fn current(&self, entry: &TitleEntry) -> Option<Arc<ServedTitle>> {
        self.open_titles.get(&entry.name).filter(|served| served.id() == entry.id)
    }

    /// Returns its key in the cache.
    fn key(served: &ServedTitle, part: TitlePart) -> Option<OpenKey> {
        let id = served.id();
        match part {
            TitlePart::Times { .. } => None,
            TitlePart::Media { packet_bytes, is_raw } => {
                Some(OpenKey::Media { id, packet_bytes, is_raw, transform: None })
            }
            TitlePart::Derived { packet_bytes, is_raw, number } => {
                Some(OpenKey::Media { id, packet_bytes, is_raw, transform: Some(number) })
            }
            TitlePart::Parity { track } => Some(OpenKey::Parity { id, track }),
        }
    }

    /// The title for one more viewer, if it is open.
    fn take(&mut self, need: &NeededPart) -> Result<CachedParity, OpenError> {
        let served = self.open_titles.get(&need.title).ok_or_else(removed)?;
        let key = Self::key(&served, need.part).ok_or_else(removed)?;
        let id = served.id();
        let is_on_use = served.listed.info.derived.is_some_and(|derived| derived.on_use);
        if let Some(on_use) = self.on_use.as_ref().filter(|_| is_on_use && self.open.contains_key(&key))
            && !on_use.begin_use(id)
        {
            return Err(removed());
        }
        if let Some(remote) = self.remote.as_ref().filter(|_| self.open.contains_key(&key))
            && !remote.begin_use(id)
        {
            if let Some(on_use) = self.on_use.as_ref().filter(|_| is_on_use) {
                on_use.end_use(id);
            }
            return Err(removed());
        }
        if let Some(open) = self.open.get_mut(&key) {
            open.viewers += 1;
            self.idle.retain(|&idle| idle != key);
            return Ok(open.track);
        }
        let failed = self.failed.iter().find(|(failed, _)| *failed == key).map(|(_, error)| error.clone());
        // One that is not open and has not failed was refused for want of room, or another one has got its name in this moment.
        let is_full = self.open.len() >= MAX_OPEN_TITLES;
        Err(failed.unwrap_or_else(|| if is_full { OpenError::Full } else { removed() }))
    }

    /// Makes room for one more title by closing the one that has been without viewers for the longest; `false` if all have viewers.
    fn make_room(&mut self) -> bool {
        if self.open.len() >= MAX_OPEN_TITLES {
            self.close_idle(self.idle.len().saturating_sub(1));
        }
        self.open.len() < MAX_OPEN_TITLES
    }

    /// One more viewer of a recording that is being made, or was when it was looked up.
    fn open_growing(&mut self, entry: &TitleEntry) -> Result<TitleRef, OpenError> {
        let key = OpenKey::Growing { id: entry.id };
        if !self.open.contains_key(&key) {
            let growing =
                self.open_titles.growing(&entry.name).filter(|growing| growing.media().id() == entry.id);
            let media = Arc::clone(growing.ok_or_else(removed)?.media());
            let (packets, layout) = (entry.packets, entry.layout);
            let title = ReadyTitle::of_source(Box::new(GrowingSource(media)));
            self.adopt(key, UncachedTrack { title, packets, layout })?;
        }
        let open = self.open.get_mut(&key).ok_or(OpenError::Full)?;
        open.viewers += 1;
        self.idle.retain(|&idle| idle != key);
        Ok(open.track.title)
    }

    /// Hands a title over to the cache. It has no viewers yet.
    fn adopt(&mut self, key: OpenKey, ready: UncachedTrack) -> Result<(), OpenError> {
        if self.open.contains_key(&key) {
            return Ok(());
        }
        if !self.make_room() {
            return Err(OpenError::Full);
        }
        let UncachedTrack { title, packets, layout } = ready;
        let title = self.cache.open_ready(title).map_err(|error| OpenError::Broken(error.to_string()))?;
        self.open.insert(key, OpenTrack { track: CachedParity { title, packets, layout }, viewers: 0 });
        self.by_ref.insert(title, key);
        self.idle.push_back(key);
        self.close_idle(MAX_IDLE_TITLES);
        Ok(())
    }

    fn adopt_or_note(
        &mut self,
        key: OpenKey,
        ready: Result<Box<UncachedTrack>, OpenError>,
    ) -> Result<(), OpenError> {
        let adopted = ready.and_then(|ready| self.adopt(key, *ready));
        self.failed.retain(|(failed, _)| *failed != key);
        if let Err(error) = &adopted {
            self.failed.push_back((key, error.clone()));
            // As many requests as are under way at once may still wait for their answer.
            if self.failed.len() > MAX_OPENINGS {
                self.failed.pop_front();
            }
        }
        adopted
    }

    fn close_idle(&mut self, keep: usize) {
        while self.idle.len() > keep {
            let Some(key) = self.idle.pop_front() else { break };
            self.close_key(key);
        }
    }

    /// Closes the open parts without viewers of a removed title.
    fn close_removed(&mut self, id: TitleId) {
        let (removed, idle) =
            std::mem::take(&mut self.idle).into_iter().partition::<VecDeque<_>, _>(|key| key.id() == id);
        self.idle = idle;
        removed.into_iter().for_each(|key| self.close_key(key));
    }

    fn close_key(&mut self, key: OpenKey) {
        if let Some(open) = self.open.remove(&key) {
            self.by_ref.remove(&open.track.title);
            self.cache.close_title(open.track.title);
        }
    }
}

fn removed() -> OpenError {
    OpenError::Broken("it was just removed".into())
}

fn panicked() -> OpenError {
    OpenError::Broken("opening it failed; see the log".into())
}

/// Opens index and times. On an opener's thread.
fn open_times(volume: &Volume, served: &ServedTitle, part: TitlePart) -> Result<(), OpenError> {
    let TitlePart::Times { packet_bytes } = part else { return Ok(()) };
    let files = volume.open_title(served.id(), packet_bytes).map_err(|error| said_of(volume, error))?;
    // A title that is unavailable in this size is requested again the next time: range sums may
    // come while the server runs.
    let access = served.access(packet_bytes).or_else(|| served.add_access(packet_bytes));
    if let Some(access) = access {
        access.set(files);
    }
    Ok(())
}

/// Opens all files of media or parity. On an opener's thread.
fn open_track(
    volume: &Volume,
    transforms: &Transforms,
    key: OpenKey,
) -> Result<Box<UncachedTrack>, OpenError> {
    let (packets, layout, title) = match key {
        OpenKey::Media { id, packet_bytes, is_raw, transform } => {
            let files = volume.open_title(id, packet_bytes).map_err(|error| said_of(volume, error))?;
            let files = if is_raw { files.raw() } else { Some(files) };
            let files = files.ok_or_else(|| OpenError::Broken("it cannot be had without RTP".into()))?;
            let (packets, layout) = (files.packets(), files.layout);
            let title = match transform.map(|number| transforms.get(number)) {
                None => ReadyTitle::of_title(files),
                Some(None) => return Err(OpenError::Broken("there is no such transformation".into())),
                Some(Some(named)) => {
                    let derivation = Derivation::of_title(named, volume, id);
                    ReadyTitle::of_derived(
                        files,
                        derivation.map_err(|error| unfit(volume, named.name(), error))?,
                    )
                }
            };
            (packets, layout, title)
        }
        OpenKey::Parity { id, track } => {
            let files = volume.open_parity(id, track).map_err(|error| said_of(volume, error))?;
            (files.packets(), files.layout(), ReadyTitle::of_source(Box::new(files)))
        }
        // Its files are open already: it is never asked for here.
        OpenKey::Growing { .. } => return Err(removed()),
    };
    Ok(Box::new(UncachedTrack { title, packets, layout }))
}

/// Returns the error for the viewer that requested the transformation.
fn unfit(volume: &Volume, name: &str, error: DeriveTitleError) -> OpenError {
    match error {
        DeriveTitleError::Store(error) => said_of(volume, error),
        DeriveTitleError::Bind(error) => OpenError::Unfit(format!("transformation {name}: {error}")),
    }
}

/// A store none of whose disks can be used seems to have no titles; that does not mean that this one was removed.
fn said_of(volume: &Volume, error: StoreError) -> OpenError {
    match error {
        StoreError::NoTitle { .. } if volume.members().usable().is_empty() => {
            OpenError::TimedOut("none of the store's disks answers".into())
        }
        other => not_opened(other),
    }
}

/// Members may have gone since the titles were brought up to date. Viewers do not learn where the
/// operator's disks are.
fn not_opened(error: StoreError) -> OpenError {
    match error {
        StoreError::MembersLost { lost, may, .. } => OpenError::MembersLost(format!(
            "{lost} of the title's members are lost; it tolerates the loss of {may}"
        )),
        StoreError::TimedOut { .. } => OpenError::TimedOut(error.to_string()),
        other => OpenError::Broken(other.to_string()),
    }
}

impl Library for TitleReader {
    fn has(&mut self, need: &NeededPart) -> bool {
        // The answer for a title that is not there, or has lost too much, is known without its
        // files.
        let Some(served) = self.open_titles.get(&need.title) else { return true };
        if self.lost_of(&served).is_some() {
            return true;
        }
        match (need.part, Self::key(&served, need.part)) {
            (_, Some(key)) => self.open.contains_key(&key) || !self.make_room(),
            (TitlePart::Times { packet_bytes }, None) => {
                served.access(packet_bytes).is_some_and(|access| access.is_open())
            }
            (_, None) => true,
        }
    }

    fn begin(&mut self, need: &NeededPart) {
        let (served, volume) = (self.open_titles.get(&need.title), Arc::clone(&self.volume));
        let transforms = self.transforms.clone();
        let key = served.as_ref().and_then(|served| Self::key(served, need.part));
        let (need, of) = (need.clone(), need.clone());
        match key {
            Some(key) => self.openers.begin(
                move || LibraryEvent::Opened(need, Opened::Track(key, open_track(&volume, &transforms, key))),
                move || LibraryEvent::Opened(of, Opened::Track(key, Err(panicked()))),
            ),
            None => self.openers.begin(
                move || {
                    // One that has just been removed has nothing to be opened, and is answered all the same.
                    let times = served.ok_or_else(removed);
                    let times = times.and_then(|served| open_times(&volume, &served, need.part));
                    LibraryEvent::Opened(need, Opened::Times(times))
                },
                move || LibraryEvent::Opened(of, Opened::Times(Err(panicked()))),
            ),
        }
    }

    fn poll_answer(&mut self) -> Option<(NeededPart, Result<(), OpenError>)> {
        loop {
            match self.openers.poll()? {
                LibraryEvent::Opened(need, Opened::Times(result)) => return Some((need, result)),
                LibraryEvent::Opened(need, Opened::Track(key, ready)) => {
                    // A title that was removed meanwhile would keep its space for no viewer.
                    let is_there = self.open_titles.get(&need.title).is_some_and(|at| at.id() == key.id());
                    let ready = ready.and_then(|ready| if is_there { Ok(ready) } else { Err(removed()) });
                    return Some((need, self.adopt_or_note(key, ready)));
                }
                LibraryEvent::Removed(id) => self.close_removed(id),
            }
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.openers.event_fd())
    }

    fn rearm(&mut self) {
        self.openers.rearm();
    }

    fn cache_figures(&self) -> Option<CacheFigures> {
        let stats = self.cache.stats();
        Some(CacheFigures {
            grants: stats.hits + stats.joins + stats.misses,
            late_grants: stats.late_grants,
            positions: stats.positions,
            positions_max: stats.positions_max,
        })
    }

    fn find(&mut self, name: &str) -> Option<TitleEntry> {
        let Some(served) = self.open_titles.get(name) else {
            let growing = self.open_titles.growing(name).map(|growing| growing.entry());
            return growing.or_else(|| self.remote.as_ref()?.entry(name));
        };
        let (info, files) = (&served.listed.info, served.access.files());
        let layout = files.as_ref().map(|files| files.layout);
        Some(TitleEntry {
            id: info.id,
            name: info.name.clone(),
            title: info.display_name(),
            is_made: info.derived.is_some(),
            scale: info.derived.map_or(Scale::NORMAL, Derived::scale),
            duration: info.duration,
            presentation: files.as_ref().map(|files| presentation(&files.index, 0)).unwrap_or_default(),
            mean_rate: info.mean_rate,
            peak_rate: info.peak_rate,
            packets: info.packets,
            timeline: info.timeline,
            layout: layout.or_else(|| WireLayout::new(DEFAULT_PACKET_BYTES))?,
            fec: files.and_then(|files| files.stripes).as_ref().and_then(matrix),
            access: served.access.clone(),
            transform: None,
            began_unix_ms: info.began_unix_ms,
        })
    }

    fn is_cached(&self, entry: &TitleEntry) -> bool {
        let key = self.current(entry).and_then(|served| Self::key(&served, NeededPart::media(entry).part));
        key.and_then(|key| self.open.get(&key)).is_some_and(|open| open.viewers > 0)
    }

    fn transformed(&mut self, entry: &TitleEntry, name: &str) -> Option<TitleEntry> {
        let named = self.transforms.find(name)?;
        let files = self.current(entry)?.access.files();
        let presentation = files.map(|files| presentation(&files.index, named.stamp_offset()));
        Some(TitleEntry {
            presentation: presentation.unwrap_or_default(),
            timeline: timeline_of(entry.timeline, named.number()),
            // The parity is that of the packets as they are stored.
            fec: None,
            transform: Some(Transformed { name: named.name().into(), number: named.number() }),
            ..entry.clone()
        })
    }

    fn derived(&mut self, entry: &TitleEntry) -> Vec<(Scale, String)> {
        self.current(entry).map(|_| self.open_titles.speeds_of(&entry.name)).unwrap_or_default()
    }

    fn renditions(&mut self, entry: &TitleEntry) -> Vec<Rendition> {
        if self.current(entry).is_none() {
            return Vec::new();
        }
        let all = self.open_titles.renditions_of(&entry.name).into_iter();
        let as_served = |rendition: volume::Rendition| {
            let volume::Rendition { name, title, mean_rate, peak_rate } = rendition;
            Rendition { name, title, mean_rate, peak_rate }
        };
        all.map(as_served).collect()
    }

    fn wish(&mut self, entry: &TitleEntry, scale: Scale) {
        if let (Some(on_use), Some(served)) = (&self.on_use, self.current(entry)) {
            on_use.wish(served.id(), scale);
        }
    }

    fn sized(&mut self, entry: &TitleEntry, packet_bytes: usize) -> Option<TitleEntry> {
        if entry.layout.packet_bytes() == packet_bytes {
            return Some(entry.clone());
        }
        let served = self.current(entry)?;
        let access = served.access(packet_bytes)?;
        let files = access.files()?;
        let timeline = served.listed.info.timeline_of(packet_bytes);
        let of = |transform: &Transformed| timeline_of(timeline, transform.number);
        Some(TitleEntry {
            packets: files.packets(),
            timeline: entry.transform.as_ref().map_or(timeline, of),
            layout: files.layout,
            fec: None,
            access,
            ..entry.clone()
        })
    }

    fn open(&mut self, entry: &TitleEntry) -> Result<TitleRef, OpenError> {
        if entry.access.is_remote() {
            let remote = self.remote.as_ref().and_then(|remote| Some((remote, remote.find(&entry.name)?)));
            let (remote, title) = remote.ok_or_else(removed)?;
            return Err(OpenError::Coming(remote.request(&title, MonotonicClock.now())));
        }
        if entry.is_endless() {
            return self.open_growing(entry);
        }
        self.current(entry).ok_or_else(removed)?;
        if let Some(lost) = self.lost(entry) {
            return Err(OpenError::MembersLost(lost));
        }
        Ok(self.take(&NeededPart::media(entry))?.title)
    }

    fn open_track(&mut self, entry: &TitleEntry, track: u8) -> Result<CachedParity, OpenError> {
        self.current(entry).ok_or_else(removed)?;
        self.take(&NeededPart::parity(entry, track))
    }

    fn lost(&mut self, entry: &TitleEntry) -> Option<String> {
        let served = self.current(entry)?;
        self.lost_of(&served)
    }

    fn close(&mut self, title: TitleRef) {
        let Some(&key) = self.by_ref.get(&title) else { return };
        let Some(open) = self.open.get_mut(&key) else { return };
        open.viewers = open.viewers.saturating_sub(1);
        if let Some(on_use) = &self.on_use {
            on_use.end_use(key.id());
        }
        if let Some(remote) = &self.remote {
            remote.end_use(key.id());
        }
        if open.viewers == 0 && matches!(key, OpenKey::Growing { .. }) {
            // Its files are those of another title by now, or of none: they must not keep their space.
            self.close_key(key);
        } else if open.viewers == 0 {
            self.idle.push_back(key);
            self.close_idle(MAX_IDLE_TITLES);
        }
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
