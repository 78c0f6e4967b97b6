//! Subtitles of a new title: text streams of its container, and files beside it. Errors in
//! subtitles never prevent the title from being added; notes list the tracks left out.
//!
//! Subtitle times count from the point where players begin to show the file. A title begins with
//! its first picture or audio frame, which may be at a different time: encoders start audio
//! slightly earlier, and pictures before the first key picture are not copied. [`start_of`]
//! measures the difference.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use millrace_core::limits::subtitles::MAX_SUBTITLE_SOURCE_BYTES;
use millrace_media::limits::MAX_SUBTITLE_TRACKS;
use millrace_media::subtitles::{SubtitleLabel, Subtitles};
use millrace_store::volume::NewSubtitles;

use super::child::ChildStop;
use super::plan::input_args;
use super::remux::Remuxer;
use super::source::identify;
use super::watch::ProgressReporter;
use crate::limits::ingest::{MAX_START_BYTES, START_LOOK_S};
use crate::sidecar::{read_file, sidecars_of};

/// Text codecs by ffmpeg name, with the output codec (`copy`: unchanged) and output format of each.
const CODECS: &[(&str, &str, &str)] = &[
    ("subrip", "copy", "srt"),
    ("text", "copy", "srt"),
    ("ass", "copy", "ass"),
    ("ssa", "ass", "ass"),
    ("webvtt", "copy", "webvtt"),
    ("mov_text", "srt", "srt"),
    ("eia_608", "srt", "srt"),
    ("microdvd", "srt", "srt"),
    ("sami", "srt", "srt"),
    ("subviewer", "srt", "srt"),
];

/// A text stream of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextStream {
    pub index: u32,
    /// ffmpeg's codec and format for it.
    codec: &'static str,
    format: &'static str,
    pub label: SubtitleLabel,
    pub name: Option<String>,
    /// For notes.
    pub words: String,
}

impl TextStream {
    /// Whether a codec is a supported text codec.
    pub(crate) fn can_be(codec: &str) -> bool {
        CODECS.iter().any(|(known, ..)| *known == codec)
    }

    /// `None` if its codec is not text.
    pub(crate) fn new(index: u32, codec: &str, language: Option<&str>) -> Option<Self> {
        let (_, codec, format) = CODECS.iter().find(|(known, ..)| *known == codec)?;
        let label = language.and_then(SubtitleLabel::new).unwrap_or_else(SubtitleLabel::unknown);
        Some(Self { index, codec, format, label, name: None, words: index.to_string() })
    }
}

/// Subtitle tracks found for a title.
#[derive(Debug, Default)]
pub(crate) struct FoundSubtitles {
    pub tracks: Vec<NewSubtitles>,
    pub notes: Vec<String>,
}

impl FoundSubtitles {
    /// Adds the subtitle files beside a film. A file replaces the stream with the same language and
    /// kind.
    pub(crate) fn add_beside(&mut self, film: &Path, source_start: i64) {
        let streams = std::mem::take(&mut self.tracks);
        for sidecar in sidecars_of(film) {
            let shown = sidecar.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let identity = identify(&sidecar.path).ok();
            match read_file(&sidecar.path) {
                Ok(Ok(bytes)) => {
                    let new = NewSubtitles {
                        label: sidecar.label,
                        name: sidecar.name,
                        text: String::new(),
                        source: identity,
                    };
                    self.add(&shown, &bytes, source_start, new);
                }
                Ok(Err(error)) => self.notes.push(format!("left out: {shown}: {error}")),
                Err(error) => self.notes.push(format!("left out: {shown}: cannot be read: {error}")),
            }
        }
        for stream in streams {
            if self.tracks.iter().any(|beside| beside.label == stream.label) {
                self.notes
                    .push(format!("subtitles {} of the film replaced by the file beside it", stream.label));
            } else {
                self.push("subtitles", stream);
            }
        }
    }

    /// Adds streams of a container. ffmpeg writes them into files in `dir`, which are removed
    /// before this returns.
    pub(crate) fn add_streams(
        &mut self,
        remuxer: &Remuxer<'_>,
        streams: &[TextStream],
        dir: &Path,
        source_start: i64,
        watch: &mut ProgressReporter<'_>,
    ) {
        let (streams, more) = streams.split_at(streams.len().min(MAX_SUBTITLE_TRACKS));
        if streams.is_empty() {
            return;
        }
        if !more.is_empty() {
            self.notes.push(format!("left out: {} more streams of subtitles", more.len()));
        }
        // One pass over the film for all of them. If one of them makes ffmpeg fail, each is tried alone.
        let is_done = extract(remuxer, streams, dir, watch).is_ok();
        for stream in streams {
            let result = match is_done {
                true => Ok(()),
                false => {
                    remove(stream, dir);
                    extract(remuxer, std::slice::from_ref(stream), dir, watch)
                }
            };
            let what = format!("subtitles {}", stream.words);
            match (result, read_file(&dir.join(file_of(stream)))) {
                (Err(why), _) => self.notes.push(format!("left out: {what}: {why}")),
                (Ok(()), Ok(Ok(bytes))) => {
                    let (label, name) = (stream.label.clone(), stream.name.clone());
                    let new = NewSubtitles { label, name, text: String::new(), source: None };
                    self.add(&what, &bytes, source_start, new);
                }
                (Ok(()), Ok(Err(error))) => self.notes.push(format!("left out: {what}: {error}")),
                (Ok(()), Err(error)) => self.notes.push(format!("left out: {what}: {error}")),
            }
            remove(stream, dir);
        }
    }

    /// Parses `bytes` and adds them to the tracks as WebVTT.
    fn add(&mut self, what: &str, bytes: &[u8], source_start: i64, new: NewSubtitles) {
        let read = Subtitles::read(bytes, -source_start / 90)
            .and_then(|subtitles| Ok((subtitles.to_webvtt()?, subtitles.notes)));
        match read {
            Ok((text, notes)) => {
                self.notes.extend(notes.into_iter().map(|note| format!("{what}: {note}")));
                self.push(what, NewSubtitles { text, ..new });
            }
            Err(error) => self.notes.push(format!("left out: {what}: {error}")),
        }
    }

    /// Adds a track; further tracks with the same language and kind get a number.
    fn push(&mut self, what: &str, mut new: NewSubtitles) {
        if self.tracks.len() == MAX_SUBTITLE_TRACKS {
            self.notes.push(format!(
                "left out: {what}: a title has at most {MAX_SUBTITLE_TRACKS} tracks of subtitles"
            ));
            return;
        }
        while self.tracks.iter().any(|track| track.label == new.label) {
            new.label.number += 1;
        }
        self.tracks.push(new);
    }
}

/// Name of the file for ffmpeg's output of a stream.
fn file_of(stream: &TextStream) -> String {
    format!("stream-{}.text", stream.index)
}

fn remove(stream: &TextStream, dir: &Path) {
    // The file is missing if ffmpeg did not create it. If it cannot be removed, it goes with the
    // directory, or fsck reports it.
    let _ = std::fs::remove_file(dir.join(file_of(stream)));
}

fn extract(
    remuxer: &Remuxer<'_>,
    streams: &[TextStream],
    dir: &Path,
    watch: &mut ProgressReporter<'_>,
) -> Result<(), String> {
    let mut args = words(&["-nostdin", "-hide_banner", "-v", "error", "-y"]);
    args.extend(input_args());
    let mut outputs = Vec::new();
    for stream in streams {
        let map = format!("0:{}", stream.index);
        // A stream that begins before the film must not shift the others.
        args.extend(words(&["-map", &map, "-c:s", stream.codec, "-avoid_negative_ts", "disabled"]));
        // One byte more than the limit, so that the reader detects a longer file.
        args.extend(words(&["-fs", &(MAX_SUBTITLE_SOURCE_BYTES + 1).to_string(), "-f", stream.format]));
        let path = dir.join(file_of(stream));
        // ffmpeg may write files that are there, and create none.
        outputs.push(File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?);
        let mut file = OsString::from("file:");
        file.push(path);
        args.push(file);
    }
    run(remuxer, args, &outputs, watch).map(drop)
}

/// Start of the streams that these arguments map, in ticks on the clock of ffmpeg's other output of
/// the same file: the earliest of their first time stamps. If it cannot be determined, 0, the value
/// for most files.
pub(crate) fn start_of(
    remuxer: &Remuxer<'_>,
    stream_args: &[String],
    watch: &mut ProgressReporter<'_>,
) -> i64 {
    let mut args = words(&["-nostdin", "-hide_banner", "-v", "error", "-fflags", "+genpts"]);
    args.extend(input_args());
    args.extend(stream_args.iter().map(OsString::from));
    args.extend(words(&["-t", START_LOOK_S, "-avoid_negative_ts", "disabled", "-f", "framecrc", "pipe:1"]));
    let said = run(remuxer, args, &[], watch).unwrap_or_default();
    earliest(&String::from_utf8_lossy(&said)).unwrap_or(0)
}

/// The earliest of the first time stamps of all streams, in ticks, from ffmpeg's output in the
/// format `framecrc`.
fn earliest(text: &str) -> Option<i64> {
    let (mut bases, mut seen, mut earliest) = (Vec::new(), Vec::new(), None::<i64>);
    for line in text.lines() {
        if let Some(base) = line.strip_prefix("#tb ") {
            let (stream, base) = base.split_once(": ")?;
            let (num, den) = base.split_once('/')?;
            bases.push((stream.trim(), num.trim().parse::<i128>().ok()?, den.trim().parse::<i128>().ok()?));
            continue;
        }
        let mut fields = line.split(',').map(str::trim);
        let (stream, Some(pts)) = (fields.next()?, fields.nth(1)) else { continue };
        let Some((_, num, den)) = bases.iter().find(|(of, ..)| *of == stream) else { continue };
        if seen.contains(&stream) || *den == 0 {
            continue;
        }
        let Ok(pts) = pts.parse::<i64>() else { continue };
        seen.push(stream);
        let ticks = i64::try_from(i128::from(pts) * 90_000 * num / den).ok()?;
        earliest = Some(earliest.map_or(ticks, |before| before.min(ticks)));
    }
    earliest
}

/// Runs ffmpeg and returns its output, up to a bound.
fn run(
    remuxer: &Remuxer<'_>,
    args: Vec<OsString>,
    outputs: &[File],
    watch: &mut ProgressReporter<'_>,
) -> Result<Vec<u8>, String> {
    let mut command = Command::new(remuxer.ffmpeg);
    command.args(args);
    let said = |stop: ChildStop| remuxer.error(remuxer.ffmpeg, stop).to_string();
    let mut child = remuxer.run_to(command, outputs).map_err(said)?;
    let cancel = watch.cancel_flag();
    let (mut output, mut room) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match child.read(&mut room, cancel, &mut || watch.tick()).map_err(said)? {
            0 => break,
            n if output.len() + n > MAX_START_BYTES => return Ok(output),
            n => output.extend_from_slice(&room[..n]),
        }
    }
    child.finish(cancel, &mut || watch.tick()).map_err(said)?;
    Ok(output)
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_of_several_streams_is_the_lowest_first_stamp() {
        let text = "#software: Lavf\n#tb 0: 1/1000\n#media_type 0: video\n#tb 1: 1/48000\n\
            0,        -57,         23,       40,     8311, 0x90dd74b3\n\
            1,      -1024,      -1024,     1024,      212, 0x1\n\
            0,        -17,       -900,       40,       11, 0x2\n";
        assert_eq!(earliest(text), Some(-1920));
        assert_eq!(earliest("#tb 0: 1/1000\n0, NOPTS, NOPTS, 1, 1, 0\n"), None);
        assert_eq!(earliest("garbage, , \n\n#tb"), None);
    }
}
