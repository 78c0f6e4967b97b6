//! From a title as people have it to a title as the store keeps it.
//!
//! ```text
//!                     file ──► framing ──► indexer ──► sink (TitleWriter, NullSink)
//!  file ► ffmpeg ► pipe ──┘    188-byte     │ psi, program: which streams
//!                              packets      │ clock_source, clock: media time of every byte
//!                                           │ access, access_list: where a decoder can start
//!                                           └ packetize: sum, flags and time of every media packet
//! ```
//!
//! A transport stream is taken byte for byte (`framing` strips all bytes outside packets). The
//! `ffmpeg` program converts other containers into one, copying video and audio wherever a
//! transport stream can carry them (`plan`). Both go through the same one pass (`pass`): each byte
//! is read once, and written, hashed, summed and parsed while in cache.

pub(crate) mod access;
pub(crate) mod access_list;
pub(crate) mod access_watch;
pub(crate) mod bounds;
pub(crate) mod chapters;
pub(crate) mod child;
pub(crate) mod clock;
pub(crate) mod clock_fill;
pub(crate) mod clock_source;
pub(crate) mod content;
pub(crate) mod error;
pub(crate) mod framing;
pub(crate) mod indexed;
pub(crate) mod indexer;
pub(crate) mod layout;
pub(crate) mod mp4;
pub(crate) mod notes;
pub(crate) mod packetize;
pub(crate) mod pass;
pub(crate) mod pieces;
pub(crate) mod plan;
pub(crate) mod presentation;
pub(crate) mod program;
pub(crate) mod recording;
pub(crate) mod remux;
pub(crate) mod sandbox;
pub(crate) mod sink;
pub(crate) mod source;
pub(crate) mod stream;
pub(crate) mod subtitles;
pub(crate) mod watch;
pub(crate) mod web_audio;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::WireLayout;

use millrace_store::StoreError;
use millrace_store::volume::{
    Derived, FinishTitle, Naming, SourceIdentity, TitleInfo, TitleWriter, Volume, is_good_tag, names_of_file,
    title_text,
};

pub use bounds::FfmpegBounds;
pub use clock_source::ClockOrigin;
pub use content::blake3_of_file;
pub use error::{Exceeded, IngestError, StreamError};
pub use framing::{Framing, Skipped};
pub use indexer::{Indexed, Oddities};
pub use pass::{IndexOptions, Passed, index_only};
pub use recording::{finish_interrupted, record};
pub use sandbox::{Sandbox, is_sandbox_complete};
pub use sink::{IndexSink, NullSink};
pub use source::{SourceFile, identify};
pub use stream::ingest_stream;
pub use watch::{IngestProgress, IngestStage};
pub use web_audio::WebAudio;

use bounds::OutputBound;
use chapters::FileChapters;
use plan::RemuxPlan;
use remux::{RemuxSource, RemuxStop, Remuxer};
use source::FileStop;
use subtitles::FoundSubtitles;
use watch::ProgressReporter;

/// How to take a title in.
#[derive(Clone, Debug)]
pub struct IngestOptions {
    /// Name of the title; `None`: made from the file's name. Either way the volume makes it URL-safe and unique.
    pub name: Option<String>,
    /// Display name; `None`: the `title` tag of the container, or the file's name.
    pub title: Option<String>,
    /// Names use only the path below this folder ([`names_of_file`]);
    /// `None`: the whole path.
    pub root: Option<PathBuf>,
    /// The title to replace ([`Naming::replaces`]).
    pub replaces: Option<TitleId>,
    /// Packet sizes to prepare; must contain 1316.
    pub packet_sizes: Vec<u16>,
    /// The ffmpeg program: a path, or a name to be found in `PATH`. ffprobe is looked for beside it.
    pub ffmpeg: PathBuf,
    /// What ffmpeg may use for one file.
    pub bounds: FfmpegBounds,
    /// Whether AAC is added beside audio that browsers do not play.
    pub web_audio: WebAudio,
    /// Set it to stop the ingest within a tenth of a second; nothing is left behind.
    pub cancel: Arc<AtomicBool>,
}

impl Default for IngestOptions {
    fn default() -> Self {
        Self {
            name: None,
            title: None,
            root: None,
            replaces: None,
            packet_sizes: vec![DEFAULT_PACKET_BYTES as u16],
            ffmpeg: PathBuf::from("ffmpeg"),
            bounds: FfmpegBounds::default(),
            web_audio: WebAudio::default(),
            cancel: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// Makes a title in `volume` from the file `source`. `progress` is called at every change of stage and at most 20 times
/// a second in between.
///
/// # Errors
/// [`IngestError`] describes the problem with the file, the options, ffmpeg or the store. The store
/// is then as before.
pub fn ingest(
    volume: &Volume,
    source: &Path,
    options: &IngestOptions,
    progress: &mut dyn FnMut(&IngestProgress),
) -> Result<TitleInfo, IngestError> {
    ingest_file(volume, &SourceFile::open(source)?, options, progress)
}

/// Like [`ingest`] for an open file: see [`SourceFile::open_beneath`].
///
/// # Errors
/// As [`ingest`].
pub fn ingest_file(
    volume: &Volume,
    source: &SourceFile,
    options: &IngestOptions,
    progress: &mut dyn FnMut(&IngestProgress),
) -> Result<TitleInfo, IngestError> {
    ingest_as(volume, source, options, None, progress)
}

/// The same for a title that may be derived from another.
pub(crate) fn ingest_as(
    volume: &Volume,
    file: &SourceFile,
    options: &IngestOptions,
    derived: Option<Derived>,
    progress: &mut dyn FnMut(&IngestProgress),
) -> Result<TitleInfo, IngestError> {
    check_packet_sizes(&options.packet_sizes)?;
    let mut watch = ProgressReporter::new(progress, &options.cancel);
    watch.stage(IngestStage::Probing);
    let source = file.path();
    let framing = file.framing().map_err(|error| stream_error(source, error))?;
    let mut taken = match framing {
        Some(framing) if options.web_audio != WebAudio::Always => {
            take_stream(volume, file, options, framing, &mut watch)?
        }
        Some(framing) => match remuxer(file, options).plan(options.web_audio, &mut watch)? {
            plan if plan.adds_audio => take_container(volume, file, options, plan, &mut watch)?,
            _ => take_stream(volume, file, options, framing, &mut watch)?,
        },
        None => {
            let plan = remuxer(file, options).plan(options.web_audio, &mut watch)?;
            take_container(volume, file, options, plan, &mut watch)?
        }
    };
    file.check_unchanged()?;
    match derived {
        None if file.has_folder() => taken.subtitles.add_beside(source, taken.source_start),
        None => {}
        // Subtitles and chapters belong to the parent title, so a derived title has none.
        Some(_) => {
            (taken.subtitles, taken.chapters) = (FoundSubtitles::default(), FileChapters::default());
        }
    }
    watch.stage(IngestStage::Committing);
    if watch.is_cancelled() {
        return Err(IngestError::Cancelled { path: source.to_path_buf() });
    }
    let (name, mut naming) = naming(source, options, taken.tag.as_deref());
    // A stream that is stored unchanged has the hash of its data.
    if derived.is_none() && taken.writer.bytes() != file.identity().bytes {
        naming.source_blake3 = Some(file.blake3(&options.cancel)?);
        file.check_unchanged()?;
    }
    Ok(taken.commit(name, file.identity().clone(), derived, naming)?)
}

/// The names of the title made from a file; `tag` is the title in its container.
pub(crate) fn naming(source: &Path, options: &IngestOptions, tag: Option<&str>) -> (String, Naming) {
    let absolute = std::path::absolute(source);
    let of_file = names_of_file(absolute.as_deref().unwrap_or(source), options.root.as_deref());
    let given = options.title.as_ref().map(|text| title_text(text));
    let tag = tag.filter(|tag| is_good_tag(tag, &of_file.title)).map(title_text);
    let title = given.or(tag).unwrap_or(of_file.title);
    let title = Some(title).filter(|title| !title.is_empty());
    let (name, folder) = match &options.name {
        Some(name) => (name.clone(), None),
        None => (of_file.name, of_file.folder),
    };
    (name, Naming { title, folder, replaces: options.replaces, source_blake3: None })
}

/// The path of a file that came without a folder, so that no folder becomes part of its names.
fn as_alone(file_name: &str) -> PathBuf {
    Path::new("/").join(file_name)
}

/// Looks whether there is a file at `source` that can be opened and has something in it.
///
/// # Errors
/// As for [`ingest`] of such a file.
pub fn check_file(source: &Path) -> Result<(), IngestError> {
    SourceFile::open(source).map(drop)
}

/// A title that is written and not yet committed; dropped, nothing of it is left.
struct UncommittedTitle {
    writer: TitleWriter,
    passed: Passed,
    notes: Vec<String>,
    /// The `title` tag of the container.
    tag: Option<String>,
    /// Start of the title on the clock of its source, in ticks.
    source_start: i64,
    chapters: FileChapters,
    subtitles: FoundSubtitles,
}

impl UncommittedTitle {
    fn new(writer: TitleWriter, passed: Passed, notes: Vec<String>) -> Self {
        let (chapters, subtitles) = (FileChapters::default(), FoundSubtitles::default());
        Self { writer, passed, notes, tag: None, source_start: 0, chapters, subtitles }
    }

    fn commit(
        mut self,
        name: String,
        source: SourceIdentity,
        derived: Option<Derived>,
        naming: Naming,
    ) -> Result<TitleInfo, StoreError> {
        self.notes.extend(notes::notes(&self.passed));
        self.notes.append(&mut self.subtitles.notes);
        self.writer.begins_at(self.source_start);
        let chapters = self.chapters.of_title(self.source_start, self.passed.indexed.duration);
        self.writer.has_chapters(chapters);
        self.subtitles.tracks.into_iter().for_each(|track| self.writer.add_subtitles(track));
        let title = self.passed.indexed.finish(name, source);
        self.writer.commit(FinishTitle { notes: self.notes, derived, naming, ..title })
    }
}

/// A transport stream: its bytes as they are.
fn take_stream(
    volume: &Volume,
    file: &SourceFile,
    options: &IngestOptions,
    framing: Framing,
    watch: &mut ProgressReporter<'_>,
) -> Result<UncommittedTitle, IngestError> {
    watch.totals(Some(file.identity().bytes), None);
    watch.stage(IngestStage::Indexing);
    let mut writer = TitleWriter::begin(volume, &options.packet_sizes)?;
    let how = IndexOptions {
        packet_sizes: options.packet_sizes.clone(),
        framing: Some(framing),
        trusted_clock: false,
    };
    let passed = pass::pass(&mut file.reader(watch), &how, &mut writer).map_err(|stop| match stop {
        FileStop::Cancelled => IngestError::Cancelled { path: file.path().to_path_buf() },
        FileStop::Stream(error) => stream_error(file.path(), error),
    })?;
    Ok(UncommittedTitle::new(writer, passed, Vec::new()))
}

/// The programs that read this file.
fn remuxer<'a>(file: &'a SourceFile, options: &'a IngestOptions) -> Remuxer<'a> {
    let bounds = options.bounds.of_process(file.identity().bytes);
    Remuxer { source: file, ffmpeg: &options.ffmpeg, bounds }
}

/// Another container: ffmpeg makes a transport stream of it.
fn take_container(
    volume: &Volume,
    file: &SourceFile,
    options: &IngestOptions,
    plan: RemuxPlan,
    watch: &mut ProgressReporter<'_>,
) -> Result<UncommittedTitle, IngestError> {
    let source_bytes = file.identity().bytes;
    let remuxer = remuxer(file, options);
    watch.totals(None, plan.duration);
    watch.stage(IngestStage::Remuxing);
    let mut writer = TitleWriter::begin(volume, &options.packet_sizes)?;
    let bound = OutputBound::new(&options.bounds, source_bytes, writer.dirs());
    let mut child = remuxer.start(&plan)?;
    let how = IndexOptions {
        packet_sizes: options.packet_sizes.clone(),
        framing: Some(Framing::Plain),
        trusted_clock: true,
    };
    let passed =
        pass::pass(&mut RemuxSource::new(&mut child, watch, bound), &how, &mut writer).map_err(|stop| {
            match stop {
                RemuxStop::Child(stop) => remuxer.error(child.program(), stop),
                RemuxStop::Stream(error) => stream_error(file.path(), error),
            }
        })?;
    let (tag, chapters) = (plan.title.clone(), plan.chapters.clone());
    let mut notes = vec![format!("made from {} by ffmpeg", plan.format)];
    notes.extend(plan.notes.iter().cloned());
    if child.said_lines() > 0 {
        notes.push(format!("ffmpeg had {} lines to say, the last: {}", child.said_lines(), child.said(1)));
    }
    let source_start = subtitles::start_of(&remuxer, plan.stream_args(), watch);
    let mut taken =
        UncommittedTitle { source_start, tag, chapters, ..UncommittedTitle::new(writer, passed, notes) };
    let dir = taken.writer.dirs().swap_remove(0);
    taken.subtitles.add_streams(&remuxer, &plan.subtitles, &dir, source_start, watch);
    Ok(taken)
}

pub(crate) fn stream_error(source: &Path, error: StreamError) -> IngestError {
    match error {
        StreamError::Store(error) => IngestError::Store(error),
        error => IngestError::Stream { path: source.to_path_buf(), error: Box::new(error) },
    }
}

pub(crate) fn check_packet_sizes(sizes: &[u16]) -> Result<(), IngestError> {
    let fit = sizes.iter().all(|&size| WireLayout::new(usize::from(size)).is_some());
    let has_default = sizes.iter().any(|&size| usize::from(size) == DEFAULT_PACKET_BYTES);
    if fit && has_default {
        return Ok(());
    }
    Err(IngestError::PacketSizes { given: sizes.to_vec() })
}
