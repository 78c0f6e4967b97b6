//! Recordings of live titles: each becomes a title of the store.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_core::time::MediaTicks;
use millrace_make::ingest::{IngestError, IngestOptions, finish_interrupted, record};
use millrace_offload::clock::MonotonicClock;
use millrace_offload::thread_priority::yield_to_all;
use millrace_store::index::TitleIndex;
use millrace_store::volume::{GrowingMedia, RecordingNote, TitleInfo, Volume, slug, title_text, unix_s};
use millrace_web::{LiveRecording, RecordingRefusal, RecordingWish};

use super::tap::{RecordingProgress, TapReader};
use super::titles::LiveTitles;
use crate::date::utc_minute;
use crate::library::growing::GrowingTitle;
use crate::library::open_titles::OpenTitles;
use crate::limits::live::{
    RECORD_ROOM_BYTES, RECORD_SPACE_LOOK_BYTES, RECORDING_STOP, RECORDING_STOP_LOOK, RELIST_TICKS,
};

struct RunningRecording {
    /// Name of the live title.
    source: String,
    note: RecordingNote,
    ends_unix_s: Option<u64>,
    progress: Arc<RecordingProgress>,
    thread: JoinHandle<()>,
}

/// All recordings.
pub struct Recordings {
    titles: Arc<LiveTitles>,
    store: RecordingStore,
    running: Mutex<Vec<RunningRecording>>,
}

/// Where recordings go.
#[derive(Clone)]
struct RecordingStore {
    volume: Arc<Volume>,
    open_titles: Arc<OpenTitles>,
    ingest: IngestOptions,
}

impl Recordings {
    /// None yet.
    pub fn new(
        titles: Arc<LiveTitles>,
        volume: Arc<Volume>,
        open_titles: Arc<OpenTitles>,
        ingest: IngestOptions,
    ) -> Self {
        Self { titles, store: RecordingStore { volume, open_titles, ingest }, running: Mutex::default() }
    }

    /// Begins to record a live title.
    ///
    /// # Errors
    /// [`RecordingRefusal`].
    pub fn start(&self, source: &str, wish: RecordingWish) -> Result<LiveRecording, RecordingRefusal> {
        let channel = self.titles.get(source).ok_or(RecordingRefusal::NoSource)?;
        self.store.has_room()?;
        let mut running = self.lock();
        let mut reader = channel.tap().open().ok_or(RecordingRefusal::Busy)?;
        let began_unix_s = unix_s();
        let title = wish.title.map(|title| title_text(&title)).filter(|title| !title.is_empty());
        let title = title.unwrap_or_else(|| format!("{source} {}", utc_minute(began_unix_s)));
        let path = format!("live:{source}").into();
        let (name, title) = self.free_names(&running, &title)?;
        let note = RecordingNote { name, title, source: path, began_unix_s };
        reader.end_after(wish.for_s.map(Duration::from_secs));
        let progress = Arc::clone(reader.progress());
        let ends_unix_s = wish.for_s.map(|length_s| began_unix_s.saturating_add(length_s));
        let (store, of_thread) = (self.store.clone(), note.clone());
        let thread = std::thread::Builder::new().name("recording".into());
        let thread = thread.spawn(move || store.record(&of_thread, reader));
        let thread = thread.map_err(|error| RecordingRefusal::NoRoom(error.to_string()))?;
        tracing::info!("live source {source}: recording of \"{}\" begins", note.title);
        let recording = RunningRecording { source: source.to_owned(), note, ends_unix_s, progress, thread };
        let report = recording.report();
        running.retain(|recording| !recording.thread.is_finished());
        running.push(recording);
        Ok(report)
    }

    /// Name and display name that neither a title nor another recording has.
    fn free_names(
        &self,
        running: &[RunningRecording],
        title: &str,
    ) -> Result<(String, String), RecordingRefusal> {
        let (mut wish, mut shown, mut number) = (slug(title), title.to_owned(), 1);
        loop {
            let free = self.store.volume.free_names(&wish, &shown);
            let (name, title) = free.map_err(|error| RecordingRefusal::NoRoom(error.to_string()))?;
            let is_taken = |other: &RunningRecording| !other.thread.is_finished() && other.note.name == name;
            if !running.iter().any(is_taken) {
                return Ok((name, title));
            }
            number += 1;
            (wish, shown) = (slug(&format!("{title} {number}")), format!("{title} ({number})"));
        }
    }

    /// Ends the recording that is the title of this name, and waits until nothing is left of it. One whose title was
    /// being stored has become a title. `false`: a disk does not answer in time, and it ends when that does.
    pub fn abort(&self, name: &str) -> bool {
        let is_it = |of: &&RunningRecording| of.note.name == name && !of.thread.is_finished();
        let is_running = || self.lock().iter().any(|recording| is_it(&recording));
        match self.lock().iter().find(is_it) {
            Some(recording) => recording.progress.abort(),
            None => return true,
        }
        self.store.open_titles.remove_growing(name);
        for _ in 0..RECORDING_STOP.as_millis() / RECORDING_STOP_LOOK.as_millis() {
            if !is_running() {
                return true;
            }
            std::thread::sleep(RECORDING_STOP_LOOK);
        }
        false
    }

    /// Ends the recording of a live title; it becomes a title within moments.
    ///
    /// # Errors
    /// [`RecordingRefusal::NotRecorded`].
    pub fn stop(&self, source: &str) -> Result<LiveRecording, RecordingRefusal> {
        let running = self.lock();
        let recording =
            running.iter().find(|recording| recording.source == source && recording.is_going_on());
        let recording = recording.ok_or(RecordingRefusal::NotRecorded)?;
        recording.progress.stop();
        Ok(recording.report())
    }

    /// The recording of a live title, if it is recorded.
    pub fn of(&self, source: &str) -> Option<LiveRecording> {
        let running = self.lock();
        let recording =
            running.iter().find(|recording| recording.source == source && recording.is_going_on())?;
        Some(recording.report())
    }

    /// Makes titles of the recordings that a server before this one has left, until the flag is set.
    pub fn finish_interrupted(&self, stop: &Arc<AtomicBool>) {
        yield_to_all();
        let RecordingStore { volume, ingest, .. } = &self.store;
        let left = match volume.interrupted_recordings() {
            Ok(left) => left,
            Err(error) => return tracing::warn!("interrupted recordings: cannot be looked for: {error}"),
        };
        for recording in left {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let note = recording.note().clone();
            tracing::info!(
                "recording of \"{}\": it was interrupted; a title is made of what there is",
                note.title
            );
            match finish_interrupted(volume, recording, ingest) {
                Ok(Some(title)) => self.store.added(&title),
                Ok(None) => tracing::warn!("recording of \"{}\": nothing had come", note.title),
                Err(error) => tracing::error!(
                    "recording of \"{}\": no title can be made of it now: {error}; the next start of the server tries again",
                    note.title
                ),
            }
        }
    }

    /// Ends all of them. Those that take longer to be written are finished by the next start.
    pub fn stop_all(&self) {
        let running = std::mem::take(&mut *self.lock());
        running.iter().for_each(|recording| recording.progress.cut());
        let mut looks = RECORDING_STOP.as_millis() / RECORDING_STOP_LOOK.as_millis();
        for RunningRecording { note, thread, .. } in running {
            while !thread.is_finished() && looks > 0 {
                std::thread::sleep(RECORDING_STOP_LOOK);
                looks -= 1;
            }
            if !thread.is_finished() {
                let title = note.title;
                tracing::warn!(
                    "recording of \"{title}\": not written yet; the next start of the server finishes it"
                );
            } else if thread.join().is_err() {
                tracing::error!("the thread of a recording panicked");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RunningRecording>> {
        // Each change is one push or removal: a panic elsewhere cannot leave it half done.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningRecording {
    fn is_going_on(&self) -> bool {
        self.progress.is_going() && !self.thread.is_finished()
    }

    fn report(&self) -> LiveRecording {
        let (bytes, lost_bytes) = self.progress.bytes();
        LiveRecording {
            title: self.note.title.clone(),
            began_unix_s: self.note.began_unix_s,
            ends_unix_s: self.ends_unix_s,
            bytes,
            lost_bytes,
        }
    }
}

impl RecordingStore {
    fn has_room(&self) -> Result<(), RecordingRefusal> {
        let no_room = |error: millrace_store::StoreError| {
            tracing::warn!("recordings: the store takes none: {error}");
            RecordingRefusal::NoRoom(
                "the server's disks cannot take it now; its operator finds more in the log".to_owned(),
            )
        };
        self.volume.can_take_titles().map_err(no_room)?;
        match is_full(&self.volume.room().map_err(no_room)?) {
            true => Err(RecordingRefusal::NoRoom(
                "the server's disks are full; remove a title, or free some space".to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// The work of a recording's thread.
    fn record(&self, note: &RecordingNote, reader: TapReader) {
        let progress = Arc::clone(reader.progress());
        let _listed = ListedRecording { titles: &self.open_titles, name: &note.name };
        let mut reader = WhileThereIsRoom { reader, store: self, taken: 0, looked: 0 };
        let mut shown = Shown { store: self, title: None, listed: MediaTicks(0) };
        let mut grew = |media: &_, info, index| shown.grow(media, info, index);
        let title = record(&self.volume, note, &self.ingest, &MonotonicClock, &mut reader, &mut grew);
        match title {
            Ok(title) => self.added(&title),
            Err(IngestError::Cancelled { .. }) => {
                tracing::info!("recording of \"{}\": removed before its end", note.title);
            }
            Err(IngestError::Empty { .. }) => {
                tracing::warn!("recording of \"{}\": nothing came that a title can begin with", note.title);
            }
            Err(error) => tracing::error!(
                "recording of \"{}\": {error}; what came until now is kept, and the next start of the server makes a title of it",
                note.title
            ),
        }
        if let (_, lost_bytes @ 1..) = progress.bytes() {
            tracing::warn!(
                "recording of \"{}\": {lost_bytes} bytes are missing, because the disks did not take them in time",
                note.title
            );
        }
    }

    fn added(&self, title: &TitleInfo) {
        tracing::info!("recorded {}: {}", title.name, title.display_name());
        title.notes.iter().for_each(|note| tracing::info!("{}: {note}", title.name));
        if let Err(error) = self.open_titles.look(&self.volume) {
            tracing::warn!("cannot read the store: {error}; keeping the previous list of titles");
        }
    }
}

/// The title that a recording is while it is being made.
struct Shown<'a> {
    store: &'a RecordingStore,
    title: Option<Arc<GrowingTitle>>,
    /// How long it was when the list of titles was made again.
    listed: MediaTicks,
}

impl Shown<'_> {
    fn grow(&mut self, media: &Arc<GrowingMedia>, info: TitleInfo, index: TitleIndex) {
        let (titles, duration) = (&self.store.open_titles, info.duration);
        match &self.title {
            Some(title) => title.replace(info, index),
            None => {
                let title = Arc::new(GrowingTitle::new(Arc::clone(media), info, index));
                titles.add_growing(Arc::clone(&title));
                self.title = Some(title);
            }
        }
        if duration.since(self.listed).0 >= RELIST_TICKS {
            self.listed = duration;
            titles.note_growth();
        }
    }
}

/// A recording is listed until its thread ends, also by a panic; the stored title is listed by then, if there is one.
struct ListedRecording<'a> {
    titles: &'a OpenTitles,
    name: &'a str,
}

impl Drop for ListedRecording<'_> {
    fn drop(&mut self) {
        self.titles.remove_growing(self.name);
    }
}

/// Whether a disk has too little room for a recording.
fn is_full(room: &[u64]) -> bool {
    room.iter().any(|&bytes| bytes < RECORD_ROOM_BYTES)
}

/// Ends a recording before a disk is full, so that its media becomes a title.
struct WhileThereIsRoom<'a> {
    reader: TapReader,
    store: &'a RecordingStore,
    taken: u64,
    looked: u64,
}

impl Read for WhileThereIsRoom<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken - self.looked >= RECORD_SPACE_LOOK_BYTES {
            self.looked = self.taken;
            if self.store.volume.room().is_ok_and(|room| is_full(&room)) {
                tracing::warn!("a recording ends: the disks are full; remove a title, or free some space");
                return Ok(0);
            }
        }
        let count = self.reader.read(out)?;
        self.taken += count as u64;
        Ok(count)
    }
}
