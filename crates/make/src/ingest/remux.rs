//! Containers that are not transport streams, through the ffmpeg program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_core::limits::volume::BUFFER_BYTES;

use super::bounds::{OutputBound, ProcessBounds};
use super::child::{ChildStop, HelperProgram};
use super::clock_fill::ClockFiller;
use super::error::{IngestError, StreamError};
use super::mp4::Joined;
use super::pass::{ByteSource, PassProgress};
use super::plan::{self, ProbeOutput, RemuxPlan};
use super::sandbox::{HelperFiles, Sandbox};
use super::source::SourceFile;
use super::watch::ProgressReporter;
use super::web_audio::WebAudio;
use crate::limits::ingest::MAX_PROBE_BYTES;

/// ffmpeg's message when a container is not on the list of those that are read.
const NOT_LISTED: &str = "not on whitelist";

/// Why ffmpeg's output ended early.
#[derive(Debug)]
pub(crate) enum RemuxStop {
    /// ffmpeg.
    Child(ChildStop),
    /// ffmpeg's output.
    Stream(StreamError),
}

impl From<StreamError> for RemuxStop {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

impl From<ChildStop> for RemuxStop {
    fn from(stop: ChildStop) -> Self {
        Self::Child(stop)
    }
}

/// The programs to use for one title.
#[derive(Clone, Debug)]
pub(crate) struct Remuxer<'a> {
    /// The title.
    pub source: &'a SourceFile,
    /// ffmpeg; ffprobe is looked for beside it.
    pub ffmpeg: &'a Path,
    /// The resources that each of them may use.
    pub bounds: ProcessBounds,
}

impl Remuxer<'_> {
    /// Asks ffprobe for the contents of the file, and decides how to convert it.
    pub(crate) fn plan(
        &self,
        web_audio: WebAudio,
        watch: &mut ProgressReporter<'_>,
    ) -> Result<RemuxPlan, IngestError> {
        let path = || self.source.path().to_path_buf();
        let mut probe = self.probe(watch)?;
        let joined = self.source.again().and_then(|mut file| Joined::of(&mut file));
        probe.joined = joined.map_err(|error| IngestError::Open { path: path(), error })?;
        probe
            .plan(web_audio)
            .map_err(|nothing| IngestError::NothingToPlay { path: path(), found: nothing.found })
    }

    /// Asks ffprobe for the contents of the file.
    pub(crate) fn probe(&self, watch: &mut ProgressReporter<'_>) -> Result<ProbeOutput, IngestError> {
        let program = ffprobe_beside(self.ffmpeg);
        let failed = |stop| self.error(&program, stop);
        let mut command = Command::new(&program);
        command.args(plan::ffprobe_args());
        let mut child = self.run(command).map_err(failed)?;
        let cancel = watch.cancel_flag();
        let (mut json, mut room) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match child.read(&mut room, cancel, &mut || watch.tick()).map_err(failed)? {
                0 => break,
                n if json.len() + n > MAX_PROBE_BYTES => {
                    let said = format!("ffprobe's description is longer than {MAX_PROBE_BYTES} bytes");
                    return Err(IngestError::NotMedia { path: self.source.path().to_path_buf(), said });
                }
                n => json.extend_from_slice(&room[..n]),
            }
        }
        match child.finish(cancel, &mut || watch.tick()) {
            // That ffprobe cannot read it is no failure of ffprobe.
            Err(ChildStop::Failed { said, .. }) => {
                let is_listed = !said.contains(NOT_LISTED);
                let said = if is_listed { self.with_name(&said) } else { "not a media container".to_owned() };
                return Err(IngestError::NotMedia { path: self.source.path().to_path_buf(), said });
            }
            other => other.map_err(failed)?,
        }
        ProbeOutput::parse(&json).map_err(|error| IngestError::NotMedia {
            path: self.source.path().to_path_buf(),
            said: format!("ffprobe's description cannot be read: {error}"),
        })
    }

    /// Starts ffmpeg.
    pub(crate) fn start(&self, plan: &RemuxPlan) -> Result<HelperProgram, IngestError> {
        let mut command = Command::new(self.ffmpeg);
        command.args(plan.ffmpeg_args());
        self.run(command).map_err(|stop| self.error(self.ffmpeg, stop))
    }

    /// Starts a program that reads the title from its standard input.
    pub(crate) fn run(&self, command: Command) -> Result<HelperProgram, ChildStop> {
        self.run_to(command, &[])
    }

    /// The same for a program that writes files.
    pub(crate) fn run_to(&self, command: Command, outputs: &[File]) -> Result<HelperProgram, ChildStop> {
        let files = HelperFiles { input: Some(self.source.as_input()), outputs, ..HelperFiles::default() };
        HelperProgram::start(command, files, self.bounds.clone())
    }

    /// Replaces the input path in a program's message by the path of the file.
    fn with_name(&self, said: &str) -> String {
        said.replace(plan::INPUT, &self.source.path().to_string_lossy())
    }

    /// In words for the caller.
    pub(crate) fn error(&self, program: &Path, stop: ChildStop) -> IngestError {
        let (path, program) = (self.source.path().to_path_buf(), program.to_path_buf());
        match stop {
            ChildStop::Cancelled => IngestError::Cancelled { path },
            ChildStop::Start(error) => IngestError::NoFfmpeg { path, program, error },
            ChildStop::Read(error) => IngestError::Ffmpeg {
                path,
                program,
                status: "its output was lost".to_owned(),
                said: error.to_string(),
            },
            ChildStop::Exceeded(exceeded) => IngestError::Exceeded { path, program, exceeded },
            ChildStop::Failed { status, said } => {
                let said = with_remedy(&self.with_name(&said), &self.bounds);
                IngestError::Ffmpeg { path, program, status, said }
            }
        }
    }
}

/// ffprobe as it is installed beside this ffmpeg: `/opt/x/ffmpeg-6` has `/opt/x/ffprobe-6`.
pub(crate) fn ffprobe_beside(ffmpeg: &Path) -> PathBuf {
    let name = ffmpeg.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
    match name.rsplit_once("ffmpeg") {
        Some((before, after)) => ffmpeg.with_file_name(format!("{before}ffprobe{after}")),
        None => ffmpeg.with_file_name("ffprobe"),
    }
}

fn with_remedy(said: &str, bounds: &ProcessBounds) -> String {
    let memory = bounds.memory;
    let said = if said.is_empty() { "it said nothing" } else { said };
    if said.contains("Unknown encoder") {
        return format!(
            "{said}; install an ffmpeg with libx264, or transcode the film to H.264 and AAC yourself"
        );
    }
    // libx264 does not say why; a picture of ordinary size it takes.
    if said.contains("Error while opening encoder") {
        return format!(
            "{said}; if the picture is very large, {memory} of memory may be too little (--ffmpeg-memory)"
        );
    }
    if bounds.sandbox != Sandbox::Off && said.contains("Permission denied") {
        return format!("{said}; an ffmpeg that needs files or devices of its own: --ffmpeg-sandbox off");
    }
    said.to_owned()
}

/// ffmpeg's output as a source of the pass, with the gaps in its clock filled.
pub(crate) struct RemuxSource<'a, 'w> {
    child: &'a mut HelperProgram,
    watch: &'a mut ProgressReporter<'w>,
    bound: OutputBound,
    filler: ClockFiller,
    /// Where ffmpeg's bytes are read to.
    buffer: Vec<u8>,
    has_ended: bool,
    written: u64,
}

impl<'a, 'w> RemuxSource<'a, 'w> {
    /// Reads what `child` writes, up to its bound.
    pub(crate) fn new(
        child: &'a mut HelperProgram,
        watch: &'a mut ProgressReporter<'w>,
        bound: OutputBound,
    ) -> Self {
        let (filler, buffer) = (ClockFiller::new(), vec![0; BUFFER_BYTES]);
        Self { child, watch, bound, filler, buffer, has_ended: false, written: 0 }
    }
}

impl ByteSource for RemuxSource<'_, '_> {
    type Error = RemuxStop;

    /// At the end waits for ffmpeg to say whether it was successful, so that half a title is never taken for a whole.
    fn read(&mut self, room: &mut [u8], done: PassProgress) -> Result<usize, RemuxStop> {
        self.watch.done(done.source_bytes, done.media);
        let cancel = self.watch.cancel_flag();
        self.bound.check(self.written).map_err(ChildStop::Exceeded)?;
        loop {
            let count = self.filler.read(room);
            self.written += count as u64;
            if count > 0 || self.has_ended {
                return Ok(count);
            }
            match self.child.read(&mut self.buffer, cancel, &mut || self.watch.tick())? {
                0 => {
                    self.child.finish(cancel, &mut || self.watch.tick())?;
                    self.filler.end();
                    self.has_ended = true;
                }
                count => self.filler.push(&self.buffer[..count]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bounds::FfmpegBounds;
    use super::*;

    #[test]
    fn ffprobe_lies_beside_ffmpeg() {
        for (ffmpeg, ffprobe) in [
            ("ffmpeg", "ffprobe"),
            ("/usr/bin/ffmpeg", "/usr/bin/ffprobe"),
            ("/opt/ffmpeg/bin/ffmpeg-6.1", "/opt/ffmpeg/bin/ffprobe-6.1"),
            ("/opt/av/convert", "/opt/av/ffprobe"),
        ] {
            assert_eq!(ffprobe_beside(Path::new(ffmpeg)), Path::new(ffprobe));
        }
    }

    #[test]
    fn with_remedy_of_missing_encoder_names_remedy() {
        let bounds = FfmpegBounds::default().of_process(1000);
        let remedy = |said| with_remedy(said, &bounds);
        assert!(remedy("Unknown encoder 'libx264'").contains("install an ffmpeg with libx264"));
        assert!(remedy("Error while opening encoder for #0:0").contains("2GiB of memory may be too little"));
        assert_eq!(remedy("moov atom not found"), "moov atom not found");
        assert_eq!(remedy(""), "it said nothing");
        let denied = "/dev/dri/renderD128: Permission denied";
        assert!(remedy(denied).ends_with("of its own: --ffmpeg-sandbox off"), "{}", remedy(denied));
        let free = ProcessBounds { sandbox: Sandbox::Off, ..bounds.clone() };
        assert_eq!(with_remedy(denied, &free), denied);
    }
}
