//! The thread that has posters and pictures for seeking made, one title after the other: requested
//! titles first, then the newest. It gives way to all others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::{Discriminant, discriminant};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::ids::TitleId;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::units::ByteLen;
use millrace_make::ingest::Sandbox;
use millrace_make::pictures::{self, PicturesError};
use millrace_offload::clock::MonotonicClock;
use millrace_offload::thread_priority::yield_to_all;
use millrace_store::StoreError;
use millrace_store::pictures::{PictureFiles, Pictures};
use millrace_store::volume::{TitleInfo, Volume};
use millrace_web::PicturesState;

use super::rests::Rests;
use super::worker::Worker;
use crate::library::open_titles::OpenTitles;
use crate::library::retry_timer::RetryTimer;
use crate::limits::{MAX_PICTURES_WANTED, PICTURES_LOOK_EVERY};

/// The state of each title's pictures: written by the thread, read by the code that shows them.
pub(super) struct Album {
    files: PictureFiles,
    state: Mutex<AlbumState>,
}

#[derive(Default)]
struct AlbumState {
    titles: HashMap<TitleId, PicturesState>,
    /// Titles that could not be read, and when they are tried again.
    unreadable: HashMap<TitleId, RetryTimer<Instant>>,
    /// Requested titles, the latest at the back.
    wanted: VecDeque<TitleId>,
    /// Why no more are made at all.
    never: Option<String>,
    /// Why none are made now.
    delayed: Option<String>,
    /// Incremented when the result of [`Album::state`] may have changed for a title.
    version: u64,
}

impl Album {
    /// That of the volume.
    pub(super) fn of(volume: &Volume) -> Self {
        Self { files: PictureFiles::of(&volume.present_dir()), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, AlbumState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of a title's pictures. Those of a waiting title are made next.
    pub(super) fn state(&self, id: TitleId) -> PicturesState {
        let mut state = self.lock();
        if let Some(found) = state.titles.get(&id) {
            return found.clone();
        }
        if let Some(why) = &state.never {
            return PicturesState::Never(why.clone());
        }
        if !state.wanted.contains(&id) {
            if state.wanted.len() >= MAX_PICTURES_WANTED {
                state.wanted.pop_front();
            }
            state.wanted.push_back(id);
        }
        if state.unreadable.contains_key(&id) {
            return PicturesState::Delayed("the title cannot be read at the moment".to_owned());
        }
        state.delayed.clone().map_or(PicturesState::Waiting, PicturesState::Delayed)
    }

    /// A number that changes whenever a result of [`Album::state`] does.
    pub(super) fn version(&self) -> u64 {
        self.lock().version
    }

    fn know(&self, id: TitleId, known: PicturesState) {
        let mut state = self.lock();
        state.titles.insert(id, known);
        state.unreadable.remove(&id);
        state.version += 1;
    }

    /// Puts a title that could not be read in the queue for another try. Returns whether this is its first
    /// failure.
    fn retry_title(&self, id: TitleId, now: Instant) -> bool {
        let mut state = self.lock();
        let before = state.unreadable.get(&id).copied();
        state.unreadable.insert(id, RetryTimer::after_failure(before, now));
        state.version += 1;
        before.is_none()
    }

    /// Records why no pictures are made now; `None`: they are made.
    fn delay(&self, why: Option<String>) {
        let mut state = self.lock();
        if state.delayed != why {
            state.delayed = why;
            state.version += 1;
        }
    }

    /// Records why no more pictures are made.
    fn give_up(&self, why: String) {
        let mut state = self.lock();
        state.never = Some(why);
        state.version += 1;
    }

    /// A title's pictures; reads a file.
    pub(super) fn read(&self, id: TitleId) -> Option<Pictures> {
        let pictures = self.files.read(id);
        if pictures.is_none() {
            // They are made again.
            self.files.remove(id);
            let mut state = self.lock();
            state.titles.remove(&id);
            state.version += 1;
        }
        pictures
    }
}

/// Settings of the maker.
pub(super) struct PictureSettings {
    /// The program.
    pub(super) ffmpeg: PathBuf,
    /// Whether it is locked in.
    pub(super) sandbox: Sandbox,
    /// Limit for the pictures of all titles.
    pub(super) space: ByteLen,
}

/// The parts that the thread works with.
pub(super) struct PicturesMaker {
    volume: Arc<Volume>,
    open_titles: Arc<OpenTitles>,
    album: Arc<Album>,
    ffmpeg: PathBuf,
    sandbox: Sandbox,
    rests: Rests,
    /// Limit for the pictures of all titles.
    space: ByteLen,
    pause: Option<PicturesPause>,
    /// The titles there were when last looked at.
    there: HashSet<TitleId>,
}

/// Nothing is made because the directory of the pictures cannot be written to: the other titles
/// would fail as well.
struct PicturesPause {
    retry: RetryTimer<Instant>,
    cause: Discriminant<StoreError>,
    /// The cause for viewers, who need not know paths.
    why: &'static str,
}

impl PicturesMaker {
    /// Creates, for a volume, the album that shows the results, and the maker itself.
    pub(super) fn of(
        settings: PictureSettings,
        volume: &Arc<Volume>,
        open_titles: &Arc<OpenTitles>,
        rests: Rests,
    ) -> (Arc<Album>, Self) {
        let album = Arc::new(Album::of(volume));
        let (volume, open_titles) = (Arc::clone(volume), Arc::clone(open_titles));
        let PictureSettings { ffmpeg, sandbox, space } = settings;
        (
            Arc::clone(&album),
            Self {
                volume,
                open_titles,
                album,
                ffmpeg,
                sandbox,
                rests,
                space,
                pause: None,
                there: HashSet::new(),
            },
        )
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(self) -> std::io::Result<Worker> {
        Worker::start("pictures", move |stop| self.run(stop))
    }

    fn run(mut self, stop: &AtomicBool) {
        yield_to_all();
        if self.space.0 == 0 {
            self.album.give_up("this server makes no pictures (--picture-space 0B)".to_owned());
            return;
        }
        let mut held = self.album.files.sweep().into_iter().collect::<HashMap<_, _>>();
        while !stop.load(Ordering::Relaxed) {
            let titles = self.open_titles.titles();
            self.forget(&titles, &mut held);
            self.find(&titles, &mut held);
            let next = if self.may_work(&held) { self.next(titles) } else { None };
            match next {
                Some(title) => {
                    if let Some(state) = self.make(&title, &mut held, stop) {
                        self.album.know(title.id, state);
                    }
                }
                None => std::thread::park_timeout(PICTURES_LOOK_EVERY),
            }
        }
    }

    /// Whether pictures of another title may be made now. If not, records why.
    fn may_work(&self, held: &HashMap<TitleId, u64>) -> bool {
        let space = self.space;
        if held.values().sum::<u64>() >= space.0 {
            let why = format!("the pictures of other titles take {space} (--picture-space)");
            self.album.delay(Some(why));
            return false;
        }
        self.album.delay(self.pause.as_ref().map(|pause| pause.why.to_owned()));
        self.pause.as_ref().is_none_or(|pause| pause.retry.is_due(MonotonicClock.now()))
    }

    /// Titles that are gone take their pictures with them, and free space for those of others.
    fn forget(&mut self, titles: &[TitleInfo], held: &mut HashMap<TitleId, u64>) {
        let there: HashSet<TitleId> = titles.iter().map(|title| title.id).collect();
        let is_gone = self.there.iter().any(|id| !there.contains(id));
        if let (Some(pause), true) = (&mut self.pause, is_gone) {
            pause.retry.expire(MonotonicClock.now());
        }
        held.retain(|id, _| {
            let stays = there.contains(id);
            if !stays {
                self.album.files.remove(*id);
            }
            stays
        });
        let mut state = self.album.lock();
        state.titles.retain(|id, _| there.contains(id));
        state.unreadable.retain(|id, _| there.contains(id));
        state.wanted.retain(|id| there.contains(id));
        drop(state);
        self.there = there;
    }

    /// Whose pictures are looked for next.
    fn next(&self, titles: Vec<TitleInfo>) -> Option<TitleInfo> {
        let mut state = self.album.lock();
        if state.never.is_some() {
            return None;
        }
        let AlbumState { titles: known, unreadable, wanted, .. } = &mut *state;
        let now = MonotonicClock.now();
        let may_be_made = |id: &TitleId| {
            !known.contains_key(id) && unreadable.get(id).is_none_or(|retry| retry.is_due(now))
        };
        wanted.retain(may_be_made);
        let first = wanted.front().copied();
        let unknown = titles.into_iter().filter(|title| may_be_made(&title.id));
        unknown.max_by_key(|title| (Some(title.id) == first, title.added_unix_s))
    }

    /// Those that were made before are known again.
    fn find(&self, titles: &[TitleInfo], held: &mut HashMap<TitleId, u64>) {
        let known: HashSet<TitleId> = self.album.lock().titles.keys().copied().collect();
        let ids = titles.iter().map(|title| title.id);
        let unknown: Vec<_> = ids.filter(|id| held.contains_key(id) && !known.contains(id)).collect();
        for id in unknown {
            match self.album.files.about(id) {
                Some(about) => self.album.know(id, PicturesState::Made(Arc::new(about))),
                None => drop(held.remove(&id)),
            }
        }
    }

    /// Makes those of a title; `None`: not now, and perhaps none any more.
    fn make(
        &mut self,
        title: &TitleInfo,
        held: &mut HashMap<TitleId, u64>,
        stop: &AtomicBool,
    ) -> Option<PicturesState> {
        let Self { volume, album, ffmpeg, sandbox, rests, .. } = self;
        let mut rest = || while !stop.load(Ordering::Relaxed) && !rests.may_go_on() {};
        let made = pictures::make(volume, title, ffmpeg, *sandbox, &album.files, stop, &mut rest);
        let made = made.and_then(|made| {
            let bytes = album.files.keep(title.id, &made).map_err(PicturesError::NotKept)?;
            Ok((bytes, made))
        });
        match made {
            Ok((bytes, made)) => {
                held.insert(title.id, bytes);
                if self.pause.take().is_some() {
                    tracing::info!("pictures for the page: they can be made again");
                }
                tracing::debug!("{}: {} pictures for seeking", title.name, made.about.times_ms.len());
                Some(PicturesState::Made(Arc::new(made.about)))
            }
            Err(PicturesError::Cancelled) => None,
            Err(error @ PicturesError::NoFfmpeg(_)) => {
                tracing::info!("titles have no pictures on the page: {error}");
                album.give_up(error.to_string());
                None
            }
            Err(PicturesError::NotKept(error)) => {
                self.pause_for(&error);
                None
            }
            Err(PicturesError::Store(error)) => {
                if album.retry_title(title.id, MonotonicClock.now()) {
                    tracing::info!("{}: no pictures for the page yet: {error}; retrying", title.name);
                }
                None
            }
            Err(error) => {
                tracing::info!("{}: no pictures for the page: {error}", title.name);
                Some(PicturesState::Never(error.to_string()))
            }
        }
    }

    /// Stops all work for a while. This is reported once, until pictures were made again or there is
    /// another cause.
    fn pause_for(&mut self, error: &StoreError) {
        let cause = discriminant(error);
        let before = self.pause.as_ref();
        if before.is_none_or(|pause| pause.cause != cause) {
            tracing::warn!("pictures for the page: none can be kept now, retrying: {error}");
        } else {
            tracing::debug!("pictures for the page: none can be kept yet: {error}");
        }
        let why = match error.is_no_space() {
            true => "the disk of the pictures is full; they are made when it has space again",
            false => "the pictures cannot be kept at the moment",
        };
        let retry = RetryTimer::after_failure(before.map(|pause| pause.retry), MonotonicClock.now());
        self.pause = Some(PicturesPause { retry, cause, why });
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::pool::{ExtentArena, HeapRegion};
    use millrace_store::cache::{Cache, CacheConfig};

    use super::*;

    #[test]
    fn album_state_of_delayed_titles_tells_why_until_they_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let album = Album::of(&Volume::open_or_create(dir.path()).unwrap());
        let [unreadable, other] = [1, 2].map(|number| TitleId([number; 16]));
        assert_eq!(album.state(unreadable), PicturesState::Waiting);
        let mut version = album.version();
        let mut is_changed = || std::mem::replace(&mut version, album.version()) != album.version();
        // Only the first failure of a title is logged.
        assert!(album.retry_title(unreadable, Instant(0)) && !album.retry_title(unreadable, Instant(0)));
        assert!(matches!(album.state(unreadable), PicturesState::Delayed(why) if why.contains("read")));
        assert_eq!((album.state(other), is_changed()), (PicturesState::Waiting, true));
        album.delay(Some("the disk is full".to_owned()));
        assert_eq!(album.state(other), PicturesState::Delayed("the disk is full".to_owned()));
        assert!(is_changed());
        album.delay(Some("the disk is full".to_owned()));
        assert!(!is_changed(), "lists are made again for nothing");
        album.know(unreadable, PicturesState::Never("no pictures".to_owned()));
        album.delay(None);
        assert_eq!(album.state(unreadable), PicturesState::Never("no pictures".to_owned()));
        assert_eq!((album.state(other), is_changed()), (PicturesState::Waiting, true));
    }

    /// A removed title may have freed the space that was missing.
    #[test]
    fn removal_of_a_title_ends_pause_of_full_disk() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Arc::new(Volume::open_or_create(dir.path()).unwrap());
        let arena = ExtentArena::new(Box::new(HeapRegion::new(4)));
        let clock = Arc::new(MonotonicClock);
        let (cache, _) = Cache::start(CacheConfig::default(), arena, clock, Vec::new()).unwrap();
        let settings = PictureSettings { ffmpeg: PathBuf::new(), sandbox: Sandbox::Off, space: ByteLen(1) };
        let rests = Rests::new(Arc::new(cache), Vec::new());
        let (_, mut maker) = PicturesMaker::of(settings, &volume, &Arc::default(), rests);
        let mut held = HashMap::new();
        assert!(maker.may_work(&held));
        maker.pause_for(&StoreError::NoTitle { id: TitleId([1; 16]) });
        maker.forget(&[], &mut held);
        assert!(!maker.may_work(&held), "no title has gone");
        maker.there.insert(TitleId([1; 16]));
        maker.forget(&[], &mut held);
        assert!(maker.may_work(&held));
    }
}
