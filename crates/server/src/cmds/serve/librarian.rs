//! The library thread: scans the folders, adds files that have come to rest, keeps the open titles
//! in step with the store, and reports the titles that can be watched: one line per title, and once
//! how to open them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use millrace_core::ids::TitleId;
use millrace_core::limits::volume::SNIFF_BYTES;
use millrace_core::units::{Count, HumanDuration};
use millrace_make::confine::explain;
use millrace_make::ingest::{self, IngestError, IngestOptions, SourceFile};
use millrace_media::codec::{StreamKind, identify};
use millrace_media::kinds::may_be_film;
use millrace_store::StoreError;
use millrace_store::volume::{
    KnownSource, SourceIdentity, SourceMatch, Sources, TitleEdit, TitleInfo, Volume,
};

use super::worker::Worker;
use crate::cmds::ffmpeg::FfmpegArgs;
use crate::cmds::progress::{IngestBar, describe};
use crate::library::open_titles::{Changes, OpenTitles};
use crate::library::sidecars::SidecarWatch;
use crate::library::skipped::Skipped;
use crate::library::watch::{FoundFile, Scan, Watcher};
use crate::library::writers;
use crate::limits::control::{LIBRARY_LOOK_EVERY, SETTLE_MISSING};

/// Settings of the librarian.
pub(super) struct LibrarySettings {
    /// Folders of films.
    pub(super) folders: Vec<PathBuf>,
    /// Whether symbolic links in them are followed wherever they lead.
    pub(super) follow_symlinks: bool,
    /// How long a file must stay unchanged before it is added.
    pub(super) settle: Duration,
    /// Action for a title whose file is gone.
    pub(super) deleted_files: DeletedFiles,
    /// The ffmpeg program and the resources it may use.
    pub(super) ffmpeg: FfmpegArgs,
    /// No progress bars, no lines to paste.
    pub(super) quiet: bool,
    /// Whether only users may watch.
    pub(super) needs_user: bool,
    /// The library of `--library`.
    pub(super) library: Option<String>,
}

/// Everything that the thread needs.
pub(super) struct Librarian {
    /// Where titles are kept.
    pub(super) volume: Arc<Volume>,
    /// Where the control side looks them up.
    pub(super) open_titles: Arc<OpenTitles>,
    pub(super) settings: LibrarySettings,
    /// Source files of the titles, as of a version of the open titles.
    pub(super) sources: RefCell<(u64, Sources)>,
    /// Titles whose files are missing, and since when.
    pub(super) missing: RefCell<HashMap<TitleId, SystemTime>>,
    /// `rtsp://host:port/`
    pub(super) base_url: String,
    /// Titles that could not be played at the last look, because too many of their members were missing.
    pub(super) lost: Cell<usize>,
    /// Reports already made.
    pub(super) said: Said,
    /// When the open titles were brought up to date.
    pub(super) refreshed: Refreshed,
}

/// What becomes of a title whose file is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeletedFiles {
    /// It stays: the store has a copy.
    Keep,
    /// It goes too.
    Remove,
}

/// Why a file was not added.
struct NotTaken {
    error: anyhow::Error,
    /// A later attempt may succeed although the file has not changed.
    may_pass: bool,
}

impl From<StoreError> for NotTaken {
    fn from(error: StoreError) -> Self {
        Self { error: error.into(), may_pass: true }
    }
}

/// Whether a file may be a film although its name does not show it. An unreadable file is tried, so
/// that the error is reported.
fn looks_like_film(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SNIFF_BYTES as u64).read_to_end(&mut head));
    read.is_err() || may_be_film(&head)
}

/// Whether a title has video.
fn has_video(title: &TitleInfo) -> bool {
    let kind = |stream_type| identify(stream_type, &[], &[]).1;
    title.streams.iter().any(|stream| matches!(kind(stream.stream_type), StreamKind::Video(_)))
}

/// How far the open titles are in step with the store.
#[derive(Default)]
pub(super) struct Refreshed {
    at: Cell<Option<Instant>>,
    /// Whether a film was added since.
    is_behind: Cell<bool>,
}

/// Reports that need no repetition.
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
    /// Starts the thread; `first` holds the titles opened before. `ready` is called once, after the
    /// first scan of all folders.
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
        let watcher = Watcher::new(self.settings.folders.clone());
        let mut watcher =
            watcher.following_symlinks(self.settings.follow_symlinks).resting(self.settings.settle);
        let (mut ready, mut sidecars) = (Some(ready), SidecarWatch::default());
        self.announce(&first);
        while !stop.load(Ordering::Relaxed) {
            self.forget_removed(&mut watcher);
            let mut scan = watcher.scan(SystemTime::now(), &writers::open_for_writing);
            for error in self.said.skipped.borrow_mut().new_folders(std::mem::take(&mut scan.errors)) {
                tracing::warn!("left out: {}", explain(error.to_string()));
            }
            // Files at new paths come first, so that a moved file is found before another file at
            // its old path takes over the title.
            let has_title = |file: &FoundFile| self.sources.borrow().1.at_path(&file.path).is_some();
            scan.ready.sort_by_cached_key(has_title);
            for file in &scan.ready {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                self.take(file, &mut watcher, stop);
            }
            self.look_for_missing(&scan, SystemTime::now());
            self.add_sidecars(&mut sidecars);
            // The first time they are up to date, unless films were added.
            if ready.is_none() || self.refreshed.is_behind.get() {
                self.refresh();
            } else if self.open_titles.titles().is_empty() {
                println!("{}", self.nothing_yet(scan.settling));
            }
            self.invite();
            if let Some(ready) = ready.take() {
                ready();
            }
            // Woken by stop(); an early wake-up only means an early look.
            std::thread::park_timeout(LIBRARY_LOOK_EVERY);
        }
    }

    /// The line that is printed at startup if there are no titles.
    fn nothing_yet(&self, settling: usize) -> String {
        if let Some(library) = self.settings.library.as_ref().filter(|_| settling == 0) {
            return format!(
                "no titles here yet; those of the library {library} are fetched when a viewer asks"
            );
        }
        match (settling, self.settings.folders.first()) {
            (0, None) => "no titles yet; add one with: millrace add FILE".to_owned(),
            (0, Some(folder)) => format!("no titles yet; put films into {}", folder.display()),
            (count, _) => format!(
                "no titles yet; {} still arriving, added when unchanged for {}",
                Count(count as u64, "file"),
                HumanDuration(self.settings.settle)
            ),
        }
    }

    /// Brings the table of sources in line with the open titles. Files of removed titles are handed out again.
    fn forget_removed(&self, watcher: &mut Watcher) {
        let version = self.open_titles.version();
        // Titles added by this thread may not be among the open titles yet.
        if self.refreshed.is_behind.get() {
            return;
        }
        let mut sources = self.sources.borrow_mut();
        if sources.0 == version {
            return;
        }
        let now = Sources::new(&self.open_titles.titles());
        for known in sources.1.iter() {
            for file in std::iter::once(&known.source).chain(&known.copies) {
                if now.at_path(&file.path).is_none() {
                    watcher.forget(&file.path);
                }
            }
        }
        *sources = (version, now);
    }

    /// Adds a file that has come to rest, unless the store has it already.
    fn take(&self, file: &FoundFile, watcher: &mut Watcher, stop: &Arc<AtomicBool>) {
        if file.is_unknown && !looks_like_film(&file.path) {
            return watcher.settle(&file.path);
        }
        match self.try_to_take(file, stop) {
            Ok(()) => watcher.settle(&file.path),
            Err(_) if stop.load(Ordering::Relaxed) => {}
            Err(NotTaken { error, may_pass }) => {
                match may_pass {
                    true => watcher.retry_later(&file.path, SystemTime::now()),
                    false => watcher.settle(&file.path),
                }
                self.skip(&file.path, &error);
            }
        }
    }

    fn try_to_take(&self, file: &FoundFile, stop: &Arc<AtomicBool>) -> Result<(), NotTaken> {
        let path = &file.path;
        let unread = |error: std::io::Error| NotTaken {
            error: anyhow::Error::new(error).context(format!("{}: cannot read", path.display())),
            may_pass: true,
        };
        let identity = ingest::identify(path).map_err(unread)?;
        let mut hash = || ingest::blake3_of_file(path, stop);
        let found = self.sources.borrow().1.look_up(&identity, &mut hash).map_err(unread)?;
        let is_as_it_was =
            |known: &KnownSource| ingest::identify(&known.source.path).is_ok_and(|now| now == known.source);
        match found {
            SourceMatch::New => self.add(file, None, stop),
            SourceMatch::Changed(known) => self.add(file, Some(known.id), stop),
            SourceMatch::Same(known) => {
                tracing::debug!("{}: already there as {}", path.display(), known.name);
                Ok(())
            }
            SourceMatch::Elsewhere(known, _) if is_as_it_was(&known) => {
                let (path, source) = (path.display(), known.source.path.display());
                tracing::info!(
                    "{path}: has the content of {source}, which is there as {}; not added again",
                    known.name
                );
                self.edit(known.id, TitleEdit::Copy(identity))
            }
            SourceMatch::Touched(known, _) if known.source.path != *path => {
                self.edit(known.id, TitleEdit::Copy(identity))
            }
            SourceMatch::Elsewhere(known, blake3) => {
                tracing::info!("{}: was moved to {}", known.name, path.display());
                self.edit(known.id, TitleEdit::Source { source: identity, blake3 })
            }
            SourceMatch::Touched(known, blake3) => {
                self.edit(known.id, TitleEdit::Source { source: identity, blake3 })
            }
        }
    }

    /// Changes the manifest of a title and the tables derived from it.
    fn edit(&self, id: TitleId, edit: TitleEdit) -> Result<(), NotTaken> {
        self.volume.edit_title(id, edit)?;
        if let Some(info) = self.volume.find(&id.to_string())? {
            self.sources.borrow_mut().1.insert(&info);
        }
        self.open_titles.forget_look();
        self.refreshed.is_behind.set(true);
        Ok(())
    }

    /// Adds one film as a new title, which replaces `replaces`.
    fn add(
        &self,
        file: &FoundFile,
        replaces: Option<TitleId>,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), NotTaken> {
        let media = &file.path;
        let options = IngestOptions {
            root: Some(file.root.clone()),
            replaces,
            ..self.settings.ffmpeg.ingest_options(stop)
        };
        let shown = media.file_name().unwrap_or(media.as_os_str()).to_string_lossy();
        let bar = IngestBar::new(&shown, self.settings.quiet);
        let result = self.open(media).and_then(|file| {
            ingest::ingest_file(&self.volume, &file, &options, &mut |progress| bar.show(progress))
        });
        bar.finish();
        let title = result.map_err(|error| NotTaken { may_pass: error.may_pass(), error: error.into() })?;
        title.notes.iter().for_each(|note| tracing::info!("{}: {note}", title.name));
        self.sources.borrow_mut().1.insert(&title);
        // Viewers can request each film soon after it was added, not only when the whole folder is
        // done. A look at all titles after each of many films would take longer than adding them.
        self.refreshed.is_behind.set(true);
        if self.refreshed.at.get().is_none_or(|at| at.elapsed() >= LIBRARY_LOOK_EVERY) {
            self.refresh();
        }
        Ok(())
    }

    /// Finds the titles of the folders whose files are gone and applies `--deleted-files` to them.
    fn look_for_missing(&self, scan: &Scan, now: SystemTime) {
        // An empty folder may be a disk that is not mounted.
        let has_files = |folder: &&PathBuf| scan.present.iter().any(|path| path.starts_with(folder));
        let folders: Vec<&PathBuf> = self.settings.folders.iter().filter(has_files).collect();
        let is_watched = |path: &Path| folders.iter().any(|folder| path.starts_with(folder));
        // A file that cannot be examined is assumed to exist.
        let is_there = |source: &SourceIdentity| {
            scan.present.contains(&source.path) || source.path.try_exists().unwrap_or(true)
        };
        let gone: Vec<KnownSource> = {
            let sources = self.sources.borrow();
            let is_gone = |known: &&KnownSource| is_watched(&known.source.path) && !is_there(&known.source);
            sources.1.iter().filter(is_gone).cloned().collect()
        };
        let mut missing = self.missing.borrow_mut();
        missing.retain(|id, _| gone.iter().any(|known| known.id == *id));
        for known in gone {
            let since = *missing.entry(known.id).or_insert(now);
            if now.duration_since(since).is_ok_and(|since| since >= self.settings.settle * SETTLE_MISSING) {
                missing.insert(known.id, now);
                self.lost_its_file(&known, is_there);
            }
        }
    }

    fn lost_its_file(&self, known: &KnownSource, is_there: impl Fn(&SourceIdentity) -> bool) {
        let (name, path) = (&known.name, known.source.path.display());
        let done = match known.copies.iter().find(|copy| is_there(copy)) {
            Some(copy) => {
                let blake3 = known.blake3.clone().unwrap_or_default();
                self.edit(known.id, TitleEdit::Source { source: copy.clone(), blake3 })
            }
            None if self.settings.deleted_files == DeletedFiles::Remove => {
                tracing::info!("{name}: {path} was deleted; removing the title");
                self.refreshed.is_behind.set(true);
                self.volume.remove(known.id).map_err(NotTaken::from)
            }
            None => {
                tracing::debug!("{name}: {path} was deleted; the title stays");
                Ok(())
            }
        };
        if let Err(NotTaken { error, .. }) = done {
            tracing::warn!("{name}: {error:#}");
        }
    }

    /// Opens a film. The file may have been replaced by a symbolic link since the scan.
    fn open(&self, media: &Path) -> Result<SourceFile, IngestError> {
        match self.settings.folders.iter().find(|folder| media.starts_with(folder)) {
            Some(folder) if !self.settings.follow_symlinks => SourceFile::open_beneath(folder, media),
            _ => SourceFile::open(media),
        }
    }

    /// Adds subtitles that appeared beside films after the films were added.
    fn add_sidecars(&self, sidecars: &mut SidecarWatch) {
        for (path, outcome) in
            sidecars.look(&self.volume, &self.settings.folders, &self.open_titles, SystemTime::now())
        {
            match outcome {
                Ok(title) => {
                    tracing::info!("{title}: subtitles of {} added", path.display());
                    self.open_titles.forget_look();
                    self.refreshed.is_behind.set(true);
                }
                Err(why) => self.skip(&path, &anyhow::anyhow!(why)),
            }
        }
    }

    /// Reports a file that is left out, unless the same reason was reported before.
    fn skip(&self, media: &Path, why: &anyhow::Error) {
        let why = format!("{why:#}");
        if self.said.skipped.borrow_mut().is_new(media, &why) {
            let media = media.display().to_string();
            let name = if why.contains(&media) { String::new() } else { format!("{media}: ") };
            tracing::warn!("not added: {name}{why}");
        }
    }

    /// Reports how titles are opened, if there is one and it was not reported before.
    fn invite(&self) {
        if self.said.invitation.get() {
            return;
        }
        let titles = self.open_titles.titles();
        // Someone who tries a line for the first time expects to see something.
        let with_video = titles.iter().find(|title| has_video(title));
        let Some(example) = with_video.or(titles.first()) else { return };
        self.said.invitation.set(true);
        tracing::info!("{} at {}", Count(titles.len() as u64, "title"), self.base_url);
        if !self.settings.quiet {
            println!("{}", super::invite::block(&self.base_url, &example.name, self.settings.needs_user));
        }
    }

    fn refresh(&self) {
        match self.open_titles.refresh(&self.volume) {
            Ok(changes) => {
                self.refreshed.is_behind.set(false);
                self.announce(&changes);
            }
            Err(error) => {
                tracing::warn!("cannot read the store: {error}; keeping the previous list of titles")
            }
        }
        self.refreshed.at.set(Some(Instant::now()));
    }

    /// Reports changes of the open titles.
    fn announce(&self, changes: &Changes) {
        let at_start = !self.said.titles.replace(true);
        for title in &changes.added {
            match at_start {
                true if self.settings.quiet => {}
                true => println!("{}", describe(title)),
                false => {
                    let what = if title.origin.replaces.is_some() { "replaced" } else { "new" };
                    tracing::info!("{what}: {}  {}{}", describe(title), self.base_url, title.name);
                }
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
