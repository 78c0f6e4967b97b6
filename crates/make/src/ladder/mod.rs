//! Makes a title and its renditions from one film.
//!
//! ```text
//!  film ► ffmpeg, one rung after the other, then the sound ► work (tmp/<key>.ladder) ► encoded ► mux ► indexer ► writer, all made visible at once
//!           plan, encode: closed groups of the same pictures      kept if interrupted            by groups of pictures
//! ```
//!
//! All rungs have the same packets except for the pictures, the same timeline, and the same
//! continuity counters at each access point: data that follows there in one rung can follow in
//! every other. A viewer is therefore switched by sending other packets, and nothing is rewritten.
//! `docs/design/0029-ladders.md` explains how.
//!
//! `join` adds files that were made this way elsewhere; `fit` checks whether they were.

mod encode;
mod encoded;
mod error;
mod fit;
mod join;
mod list;
mod mux;
mod plan;
mod time;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use millrace_core::rendition::RenditionName;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_packet::{PesStart, TsPacket};
use millrace_store::volume::{FinishTitle, LadderDir, TitleInfo, TitleWriter, Volume};

pub use self::error::LadderError;
pub use self::fit::Misfit;
pub use self::join::{Joining, check, compare, join};
pub use self::list::{Ladder, LadderListError, Rung};
pub(super) use self::plan::{LadderSource, Sound};

use self::encoded::{FIRST_PID, Pictures, Sounds};
use self::mux::RungMux;
use self::plan::{LadderPlan, RungPlan};
use crate::ingest::bounds::OutputBound;
use crate::ingest::child::ChildStop;
use crate::ingest::indexer::Indexer;
use crate::ingest::remux::Remuxer;
use crate::ingest::source::SourceFile;
use crate::ingest::subtitles::FoundSubtitles;
use crate::ingest::watch::ProgressReporter;
use crate::ingest::{Indexed, IngestOptions, StreamError, check_packet_sizes, naming};

/// How to make a ladder.
#[derive(Clone, Debug)]
pub struct LadderOptions {
    /// Name, packet sizes, ffmpeg and its bounds, as for a film that is added alone.
    pub ingest: IngestOptions,
    /// The requested ladder.
    pub ladder: Ladder,
    /// Preset of x264: how long it looks for a better picture.
    pub preset: String,
    /// The clock's first value, in ticks of 90 kHz: for tests of streams whose clock wraps. A second for all others, because stamps have no sign.
    pub clock_start_ticks: u64,
}

impl LadderOptions {
    /// As `millrace add --ladder` makes it.
    pub fn new(ingest: IngestOptions, ladder: Ladder) -> Self {
        Self { ingest, ladder, preset: "veryfast".to_owned(), clock_start_ticks: 90_000 }
    }
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LadderProgress {
    /// The rendition that is encoded or written; `None`: sound.
    pub name: Option<RenditionName>,
    /// Whether it is encoded already, and becomes a title.
    pub is_writing: bool,
    /// Work done for all rungs (in `total`: the work to do), in units of its own; data left by an
    /// interrupted try is not counted.
    pub done: u64,
    /// All of it; 0 if the film does not say how long it is.
    pub total: u64,
}

/// The result of making a ladder.
#[derive(Clone, Debug)]
pub struct LadderMade {
    /// The best rendition.
    pub title: TitleInfo,
    /// The others, best first.
    pub renditions: Vec<TitleInfo>,
    /// Usual rungs that are larger than the film, and streams that are not kept.
    pub notes: Vec<String>,
    /// Encodings that an interrupted try had left.
    pub reused: usize,
}

/// Makes a title of the file `source`, with the renditions that `options` ask for. All become
/// visible together or none does. If it is interrupted, the next call for the same file uses the
/// data already encoded.
///
/// # Errors
/// [`LadderError`] describes the problem with the list, the film, ffmpeg or the store.
pub fn make(
    volume: &Volume,
    source: &Path,
    options: &LadderOptions,
    tell: &mut dyn FnMut(&LadderProgress),
) -> Result<LadderMade, LadderError> {
    check_packet_sizes(&options.ingest.packet_sizes)?;
    let file = SourceFile::open(source)?;
    let film = film(&file, options)?;
    let plan = LadderPlan::new(&options.ladder, &film)?;
    let work = LadderDir::open(volume, file.identity())?
        .ok_or_else(|| LadderError::Busy { path: file.identity().path.clone() })?;
    let mut making = Making {
        volume,
        source: &file,
        options,
        film: &film,
        plan: &plan,
        work,
        progress: Work::default(),
        reused: 0,
        tell,
    };
    let (pictures, sounds) = making.encode()?;
    file.check_unchanged()?;
    let mut written = making.write(&pictures, sounds.as_deref())?;
    file.check_unchanged()?;
    let found = making.subtitles(file.identity().bytes);
    if making.is_cancelled() {
        return Err(making.cancelled());
    }
    let Making { work, reused, .. } = making;
    let (name, mut naming) = naming(source, &options.ingest, film.tag.as_deref());
    naming.source_blake3 = Some(file.blake3(&options.ingest.cancel)?);
    file.check_unchanged()?;
    let duration = written.iter().map(|(_, indexed)| indexed.duration).max().unwrap_or_default();
    if let Some((best, _)) = written.first_mut() {
        found.tracks.into_iter().for_each(|track| best.add_subtitles(track));
        best.has_chapters(film.chapters.of_title(0, duration));
    }
    let note = format!(
        "made from {} by ffmpeg: pictures and sound encoded anew",
        source.file_name().unwrap_or_default().to_string_lossy()
    );
    let all = written.into_iter().zip(&plan.rungs).map(|((writer, indexed), rung)| {
        let finish = FinishTitle {
            duration,
            notes: vec![note.clone()],
            rendition: Some(rung.rung.name),
            naming: naming.clone(),
            ..indexed.finish(name.clone(), file.identity().clone())
        };
        (writer, finish)
    });
    let mut titles = TitleWriter::commit_ladder(all.collect())?;
    // The titles are there; files that cannot be removed now are removed after a week.
    let _ = work.remove();
    let title = titles.remove(0);
    let notes = film.notes.iter().chain(&plan.left_out).chain(&found.notes).cloned().collect();
    Ok(LadderMade { title, renditions: titles, notes, reused })
}

/// Asks ffprobe for the properties of the film.
fn film(source: &SourceFile, options: &LadderOptions) -> Result<LadderSource, LadderError> {
    let bounds = options.ingest.bounds.of_process(source.identity().bytes);
    let remuxer = Remuxer { source, ffmpeg: &options.ingest.ffmpeg, bounds };
    let mut quiet = |_: &crate::ingest::IngestProgress| {};
    let probe = remuxer.probe(&mut ProgressReporter::new(&mut quiet, &options.ingest.cancel))?;
    if !probe.has_pictures() {
        return Err(LadderError::NoPictures { path: source.path().to_path_buf() });
    }
    probe.film().ok_or_else(|| LadderError::NoShape { path: source.path().to_path_buf() })
}

/// Work done and to be done.
#[derive(Debug, Default)]
struct Work {
    done: u64,
    total: u64,
}

struct Making<'a> {
    volume: &'a Volume,
    source: &'a SourceFile,
    options: &'a LadderOptions,
    film: &'a LadderSource,
    plan: &'a LadderPlan,
    work: LadderDir,
    progress: Work,
    reused: usize,
    tell: &'a mut dyn FnMut(&LadderProgress),
}

/// What encoding a picture costs beside its size: decoding the film.
const DECODE_PIXELS: u64 = 500_000;
/// Cost of a second of audio, in the same measure.
const SOUND_PIXELS: u64 = 1_000_000;

impl Making<'_> {
    fn cancelled(&self) -> LadderError {
        LadderError::Cancelled { path: self.source.path().to_path_buf() }
    }

    fn is_cancelled(&self) -> bool {
        self.options.ingest.cancel.load(Ordering::Relaxed)
    }

    /// Returns the cost of a second of a rung, in pixels.
    fn cost(&self, rung: &RungPlan) -> u64 {
        let pixels = u64::from(rung.width) * u64::from(rung.height) + DECODE_PIXELS;
        pixels * self.plan.times.pictures / self.plan.times.seconds
    }

    /// Encodes the files that are not there yet. Returns the files, best rung first, and that of
    /// the audio.
    fn encode(&mut self) -> Result<(Vec<PathBuf>, Option<PathBuf>), LadderError> {
        let preset = &self.options.preset;
        let jobs: Vec<(Vec<OsString>, &RungPlan)> = self
            .plan
            .rungs
            .iter()
            .map(|rung| (encode::pictures(self.film, self.plan, rung, preset), rung))
            .collect();
        let seconds = self.film.duration.unwrap_or_default().0 / 90_000;
        let missing = jobs.iter().filter(|(args, _)| !self.work.file(args).exists());
        let cost: u64 = missing.map(|(_, rung)| self.cost(rung)).sum();
        self.progress.total = seconds * (cost + if self.film.sounds.is_empty() { 0 } else { SOUND_PIXELS });
        let mut files = Vec::new();
        for (args, rung) in &jobs {
            files.push(self.encode_one(args, Some(rung.rung.name), self.cost(rung))?);
        }
        if self.film.sounds.is_empty() {
            return Ok((files, None));
        }
        let pictures = self.count(&files[0])?;
        let args = encode::sounds(self.film, self.plan.times.ticks(pictures));
        let sound = self.encode_one(&args, None, SOUND_PIXELS)?;
        Ok((files, Some(sound)))
    }

    /// Reads the film's subtitles. Their times need no shift, because the encoded video starts
    /// where players begin to show the film.
    fn subtitles(&self, source_bytes: u64) -> FoundSubtitles {
        let options = &self.options.ingest;
        let bounds = options.bounds.of_process(source_bytes);
        let remuxer = Remuxer { source: self.source, ffmpeg: &options.ffmpeg, bounds };
        let mut quiet = |_: &crate::ingest::IngestProgress| {};
        let mut watch = ProgressReporter::new(&mut quiet, &options.cancel);
        let mut found = FoundSubtitles::default();
        found.add_streams(&remuxer, &self.film.texts, self.work.path(), 0, &mut watch);
        found.add_beside(self.source.path(), 0);
        found
    }

    /// How many pictures there are.
    fn count(&self, file: &Path) -> Result<u64, LadderError> {
        let mut pictures = Pictures::open(file, "pictures", self.plan.times)?;
        let mut count = 0;
        loop {
            match pictures.group()?.len() as u64 {
                0 => return Ok(count),
                group => count += group,
            }
            if self.is_cancelled() {
                return Err(self.cancelled());
            }
        }
    }

    fn encode_one(
        &mut self,
        args: &[OsString],
        name: Option<RenditionName>,
        cost: u64,
    ) -> Result<PathBuf, LadderError> {
        let file = self.work.file(args);
        if file.exists() {
            self.reused += 1;
            return Ok(file);
        }
        let options = &self.options.ingest;
        let source_bytes = self.source.identity().bytes;
        let bounds = options.bounds.of_process(source_bytes);
        let remuxer = Remuxer { source: self.source, ffmpeg: &options.ffmpeg, bounds };
        let failed = |stop| match stop {
            ChildStop::Cancelled => LadderError::Cancelled { path: self.source.path().to_path_buf() },
            stop => remuxer.error(&options.ffmpeg, stop).into(),
        };
        let mut command = Command::new(&options.ffmpeg);
        command.args(args);
        let mut bound = OutputBound::new(&options.bounds, source_bytes, vec![self.work.path().to_path_buf()]);
        let mut child = remuxer.run(command).map_err(failed)?;
        let mut part = self.work.begin(&file)?;
        let (mut room, mut clock, before) = (vec![0; 64 << 10], MediaClock::default(), self.progress.done);
        loop {
            bound.check(part.bytes()).map_err(|exceeded| failed(ChildStop::Exceeded(exceeded)))?;
            let read = child.read(&mut room, &options.cancel, &mut || ()).map_err(failed)?;
            if read == 0 {
                break;
            }
            part.write(&room[..read])?;
            clock.push(&room[..read]);
            self.progress.done =
                before + u64::try_from(u128::from(clock.ticks) * u128::from(cost) / 90_000).unwrap_or(0);
            let (done, total) = (self.progress.done.min(self.progress.total), self.progress.total);
            (self.tell)(&LadderProgress { name, is_writing: false, done, total });
        }
        child.finish(&options.cancel, &mut || ()).map_err(failed)?;
        part.finish()?;
        Ok(file)
    }

    /// Writes the titles; nothing of them is visible yet.
    fn write(
        &mut self,
        pictures: &[PathBuf],
        sounds: Option<&Path>,
    ) -> Result<Vec<(TitleWriter, Indexed)>, LadderError> {
        let mut written = Vec::new();
        let mut shape = None;
        for (rung, path) in self.plan.rungs.iter().zip(pictures) {
            let name = rung.rung.name;
            let of = Pictures::open(path, name.as_str(), self.plan.times)?;
            let sounds = sounds.map(|sounds| Sounds::open(sounds, self.film.sounds.len())).transpose()?;
            let start = self.options.clock_start_ticks;
            let mut mux = RungMux::new(rung, of, self.plan.times, sounds, &self.film.sounds, start)?;
            let mut writer = TitleWriter::begin(self.volume, &self.options.ingest.packet_sizes)?;
            let mut indexer = Indexer::new(&self.options.ingest.packet_sizes, false, true);
            let mut group = Vec::new();
            let failed = |error| match error {
                StreamError::Store(error) => LadderError::Store(error),
                error => LadderError::Stream { name, error: Box::new(error) },
            };
            while mux.group(&mut group)? {
                if self.is_cancelled() {
                    return Err(self.cancelled());
                }
                indexer.run(&group, false, &mut writer).map_err(failed)?;
                let (done, total) = (self.progress.total, self.progress.total);
                (self.tell)(&LadderProgress { name: Some(name), is_writing: true, done, total });
            }
            let found = (mux.sent(), mux.reorder());
            if *shape.get_or_insert(found) != found {
                let what =
                    format!("{} pictures, shown {} behind, where another rung has others", found.0, found.1);
                return Err(LadderError::Encoded { name: name.to_string(), what, path: path.clone() });
            }
            let indexed = indexer.finish(&mut writer).map_err(failed)?;
            written.push((writer, indexed));
        }
        Ok(written)
    }
}

/// Media time of ffmpeg's output until now.
#[derive(Debug, Default)]
struct MediaClock {
    rest: Vec<u8>,
    first: Option<u64>,
    ticks: u64,
}

impl MediaClock {
    fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let (packets, rest) = self.rest.as_chunks();
        let starts =
            packets.iter().map(TsPacket).filter(|packet| packet.pid() == FIRST_PID && packet.starts_unit());
        if let Some(stamp) = starts.rev().find_map(|packet| PesStart::parse(packet.payload())?.decode_stamp) {
            let first = *self.first.get_or_insert(stamp);
            // A film longer than stamps count is shown as behind: this is for a bar.
            self.ticks = stamp.wrapping_sub(first) % PTS_MODULUS;
        }
        self.rest = rest.to_vec();
    }
}
