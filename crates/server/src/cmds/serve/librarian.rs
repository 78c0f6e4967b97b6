//! The library thread: looks at the folders, adds what has come to rest, keeps the open titles in step with the store, and says what
//! can be watched: one line a title, and once how to open them.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::limits::control::LIBRARY_LOOK_EVERY;
use millrace_core::units::Count;
use millrace_store::ingest::{self, IngestError, IngestOptions, SourceFile};
use millrace_store::volume::{TitleInfo, Volume};

use super::worker::Worker;
use crate::cmds::ffmpeg::FfmpegArgs;
use crate::cmds::progress::{IngestBar, describe};
use crate::library::open_titles::{Changes, OpenTitles};
use crate::library::skipped::Skipped;
use crate::library::watch::Watcher;

/// What the thread needs.
pub(super) struct Librarian {
    /// Where titles are kept.
    pub(super) volume: Arc<Volume>,
    /// Where the control side looks them up.
    pub(super) open_titles: Arc<OpenTitles>,
    /// Folders of films.
    pub(super) folders: Vec<PathBuf>,
    /// Whether symbolic links in them are followed wherever they lead.
    pub(super) follow_symlinks: bool,
    /// The ffmpeg program and what it may use.
    pub(super) ffmpeg: FfmpegArgs,
    /// No progress bars, no lines to paste.
    pub(super) quiet: bool,
    /// `rtsp://host:port/`
    pub(super) base_url: String,
    /// Titles that could not be played at the last look, because too many of their members were missing.
    pub(super) lost: Cell<usize>,
    /// What has been said already.
    pub(super) said: Said,
    /// When the open titles were brought up to date.
    pub(super) refreshed: Refreshed,
}

/// How far the open titles are in step with the store.
#[derive(Default)]
pub(super) struct Refreshed {
    at: Cell<Option<Instant>>,
    /// Whether a film was added since.
    is_behind: Cell<bool>,
}

/// What need not be said again.
#[derive(Default)]
pub(super) struct Said {
    /// That the catalogue is kept in memory.
    pub(super) in_memory: Cell<bool>,
    /// The titles that were there at the start.
    titles: Cell<bool>,
    /// How to open a title.
    invitation: Cell<bool>,
    /// Files and folders that were left out.
    skipped: RefCell<Skipped>,
}

impl Librarian {
    /// Starts the thread; `first` is what was put among the open titles before. `ready` is called once, after the first look at all
    /// folders.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(
        self,
        first: Changes,
        ready: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Worker> {
        Worker::start("library", move |stop| self.run(stop, first, ready))
    }

    fn run(self, stop: &Arc<AtomicBool>, first: Changes, ready: impl FnOnce()) {
        let mut watcher = Watcher::new(self.folders.clone()).following_symlinks(self.follow_symlinks);
        let mut ready = Some(ready);
        self.announce(&first);
        while !stop.load(Ordering::Relaxed) {
            let (films, errors) = watcher.scan(SystemTime::now());
            for error in self.said.skipped.borrow_mut().new_folders(errors) {
                tracing::warn!("left out: {error}");
            }
            for media in films {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                self.add(&media, stop);
            }
            // The first time they are up to date, unless films were added.
            if ready.is_none() || self.refreshed.is_behind.get() {
                self.refresh();
            } else if self.open_titles.titles().is_empty() {
                println!("no titles yet; add one with: millrace add FILE");
            }
            self.invite();
            if let Some(ready) = ready.take() {
                ready();
            }
            // Woken by stop(); an early wake-up only means an early look.
            std::thread::park_timeout(LIBRARY_LOOK_EVERY);
        }
    }

    /// Adds one film, unless the store has it already.
    fn add(&self, media: &Path, stop: &Arc<AtomicBool>) {
        match self.known(media) {
            Ok(Some(title)) => {
                return tracing::debug!("{}: already there as {}", media.display(), title.name);
            }
            Ok(None) => {}
            Err(error) => return self.skip(media, &error),
        }
        let options = IngestOptions {
            name: None,
            packet_sizes: vec![DEFAULT_PACKET_BYTES as u16],
            ffmpeg: self.ffmpeg.program.clone(),
            bounds: self.ffmpeg.bounds(),
            web_audio: self.ffmpeg.web_audio(),
            cancel: Arc::clone(stop),
        };
        let shown = media.file_name().unwrap_or(media.as_os_str()).to_string_lossy();
        let bar = IngestBar::new(&shown, self.quiet);
        let result = self.open(media).and_then(|file| {
            ingest::ingest_file(&self.volume, &file, &options, &mut |progress| bar.show(progress))
        });
        bar.finish();
        match result {
            Ok(title) => {
                title.notes.iter().for_each(|note| tracing::info!("{}: {note}", title.name));
                // Each film can be asked for soon after it is there, not when the whole folder is done. But a look at all titles for
                // each of many films would take longer than adding them.
                self.refreshed.is_behind.set(true);
                if self.refreshed.at.get().is_none_or(|at| at.elapsed() >= LIBRARY_LOOK_EVERY) {
                    self.refresh();
                }
            }
            Err(_) if stop.load(Ordering::Relaxed) => {}
            Err(error) => self.skip(media, &error.into()),
        }
    }

    /// Opens a film. What the scan has seen may have become a link by now.
    fn open(&self, media: &Path) -> Result<SourceFile, IngestError> {
        match self.folders.iter().find(|folder| media.starts_with(folder)) {
            Some(folder) if !self.follow_symlinks => SourceFile::open_beneath(folder, media),
            _ => SourceFile::open(media),
        }
    }

    /// Names a file that is left out, unless the same was said of it before.
    fn skip(&self, media: &Path, why: &anyhow::Error) {
        let why = format!("{why:#}");
        if self.said.skipped.borrow_mut().is_new(media, &why) {
            let media = media.display().to_string();
            let name = if why.contains(&media) { String::new() } else { format!("{media}: ") };
            tracing::warn!("not added: {name}{why}");
        }
    }

    /// Says how titles are opened, when there is one and it has not been said.
    fn invite(&self) {
        if self.said.invitation.get() {
            return;
        }
        let titles = self.open_titles.titles();
        let Some(example) = titles.first() else { return };
        self.said.invitation.set(true);
        tracing::info!("{} at {}", Count(titles.len() as u64, "title"), self.base_url);
        if !self.quiet {
            println!("{}", super::invite::block(&self.base_url, &example.name));
        }
    }

    fn known(&self, media: &Path) -> anyhow::Result<Option<TitleInfo>> {
        Ok(self.volume.find_source(&ingest::identify(media)?)?)
    }

    fn refresh(&self) {
        match self.open_titles.refresh(&self.volume) {
            Ok(changes) => self.announce(&changes),
            Err(error) => {
                tracing::warn!("the store cannot be read, the list of titles stays as it was: {error}")
            }
        }
        self.refreshed.is_behind.set(false);
        self.refreshed.at.set(Some(Instant::now()));
    }

    /// Says what is new among the open titles.
    fn announce(&self, changes: &Changes) {
        let at_start = !self.said.titles.replace(true);
        for title in &changes.added {
            match at_start {
                true if self.quiet => {}
                true => println!("{}", describe(title)),
                false => tracing::info!("new: {}  {}{}", describe(title), self.base_url, title.name),
            }
        }
        match (self.lost.replace(changes.lost), changes.lost) {
            (before, now) if before == now => {}
            (_, 0) => tracing::info!("all titles can be played again"),
            (_, now) => tracing::warn!(
                "titles that cannot be played because too many of their members are missing: {now}; see: millrace ls"
            ),
        }
        changes.removed.iter().for_each(|name| tracing::info!("{name}: removed from the store"));
        if let Some(why) = self.volume.catalogue_in_memory()
            && !self.said.in_memory.replace(true)
        {
            tracing::warn!("{why}");
        }
    }
}
