//! The thread that has posters and pictures for seeking made, one title after the other: requested
//! titles first, then the newest. It gives way to all others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::ids::TitleId;
use millrace_core::units::ByteLen;
use millrace_make::pictures::{self, PicturesError};
use millrace_offload::thread_priority::yield_to_all;
use millrace_store::pictures::{PictureFiles, Pictures};
use millrace_store::volume::{TitleInfo, Volume};
use millrace_web::PicturesState;

use super::rests::Rests;
use super::worker::Worker;
use crate::library::open_titles::OpenTitles;
use crate::limits::{MAX_PICTURES_WANTED, PICTURES_LOOK_EVERY};

/// The state of each title's pictures: written by the thread, read by the code that shows them.
pub(super) struct Album {
    files: PictureFiles,
    state: Mutex<AlbumState>,
}

#[derive(Default)]
struct AlbumState {
    titles: HashMap<TitleId, PicturesState>,
    /// Requested titles, the latest at the back.
    wanted: VecDeque<TitleId>,
    /// Why no more are made at all.
    never: Option<String>,
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
        PicturesState::Waiting
    }

    /// A number that changes whenever a result of [`Album::state`] does.
    pub(super) fn version(&self) -> u64 {
        self.lock().version
    }

    fn know(&self, id: TitleId, known: PicturesState) {
        let mut state = self.lock();
        state.titles.insert(id, known);
        state.version += 1;
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
    /// Limit for the pictures of all titles.
    pub(super) space: ByteLen,
}

/// The parts that the thread works with.
pub(super) struct PicturesMaker {
    volume: Arc<Volume>,
    open_titles: Arc<OpenTitles>,
    album: Arc<Album>,
    ffmpeg: PathBuf,
    rests: Rests,
    /// Limit for the pictures of all titles.
    space: ByteLen,
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
        let PictureSettings { ffmpeg, space } = settings;
        (Arc::clone(&album), Self { volume, open_titles, album, ffmpeg, rests, space })
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
            match self.next(titles) {
                Some(title) => {
                    if let Some(state) = self.make(&title, &mut held, stop) {
                        self.album.know(title.id, state);
                    }
                }
                None => std::thread::park_timeout(PICTURES_LOOK_EVERY),
            }
        }
    }

    /// Titles that are gone take their pictures with them.
    fn forget(&self, titles: &[TitleInfo], held: &mut HashMap<TitleId, u64>) {
        let there: HashSet<TitleId> = titles.iter().map(|title| title.id).collect();
        held.retain(|id, _| {
            let stays = there.contains(id);
            if !stays {
                self.album.files.remove(*id);
            }
            stays
        });
        let mut state = self.album.lock();
        state.titles.retain(|id, _| there.contains(id));
        state.wanted.retain(|id| there.contains(id));
    }

    /// Whose pictures are looked for next.
    fn next(&self, titles: Vec<TitleInfo>) -> Option<TitleInfo> {
        let mut state = self.album.lock();
        if state.never.is_some() {
            return None;
        }
        let AlbumState { titles: known, wanted, .. } = &mut *state;
        wanted.retain(|id| !known.contains_key(id));
        let first = wanted.front().copied();
        let unknown = titles.into_iter().filter(|title| !known.contains_key(&title.id));
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
        let space = self.space;
        if held.values().sum::<u64>() >= space.0 {
            return Some(PicturesState::Never(format!(
                "the pictures of other titles take {space} (--picture-space)"
            )));
        }
        let Self { volume, album, ffmpeg, rests, .. } = self;
        let mut rest = || while !stop.load(Ordering::Relaxed) && !rests.may_go_on() {};
        let made = pictures::make(volume, title, ffmpeg, &album.files, stop, &mut rest);
        let made = made.and_then(|made| Ok((album.files.keep(title.id, &made)?, made)));
        match made {
            Ok((bytes, made)) => {
                held.insert(title.id, bytes);
                tracing::debug!("{}: {} pictures for seeking", title.name, made.about.times_ms.len());
                Some(PicturesState::Made(Arc::new(made.about)))
            }
            Err(PicturesError::Cancelled) => None,
            Err(error @ PicturesError::NoFfmpeg(_)) => {
                tracing::info!("titles have no pictures on the page: {error}");
                album.give_up(error.to_string());
                None
            }
            Err(PicturesError::Store(error)) => {
                tracing::info!("{}: no pictures for the page: {error}", title.name);
                Some(PicturesState::Never(
                    "the title cannot be read, or its pictures cannot be kept, at the moment".to_owned(),
                ))
            }
            Err(error) => {
                tracing::info!("{}: no pictures for the page: {error}", title.name);
                Some(PicturesState::Never(error.to_string()))
            }
        }
    }
}
