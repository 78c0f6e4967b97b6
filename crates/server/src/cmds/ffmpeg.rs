//! Settings of the ffmpeg program, for the commands that take files in.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, ValueEnum};
use millrace_core::limits::FFMPEG_MEMORY_BYTES;
use millrace_core::units::{ByteLen, HumanDuration};
use millrace_make::ingest::{FfmpegBounds, IngestOptions, Sandbox, WebAudio};
use millrace_make::live::LivePull;

/// The ffmpeg program and the resources it may use.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Conversion by ffmpeg")]
pub(crate) struct FfmpegArgs {
    /// The ffmpeg program
    #[arg(long = "ffmpeg", value_name = "PROGRAM", default_value = "ffmpeg", env = "MILLRACE_FFMPEG")]
    pub(crate) program: PathBuf,
    /// Most memory that ffmpeg may use for one file
    #[arg(long = "ffmpeg-memory", value_name = "SIZE", default_value_t = ByteLen(FFMPEG_MEMORY_BYTES), env = "MILLRACE_FFMPEG_MEMORY")]
    memory: ByteLen,
    /// Most that ffmpeg may write for one file [default: 256MiB and 64 times the size of the file]
    #[arg(long = "ffmpeg-output", value_name = "SIZE", env = "MILLRACE_FFMPEG_OUTPUT")]
    output: Option<ByteLen>,
    /// Most processor time that ffmpeg may use for one file, all threads together [default: 20m and 2m for each MiB of
    /// the file]
    #[arg(long = "ffmpeg-time", value_name = "TIME", env = "MILLRACE_FFMPEG_TIME")]
    time: Option<HumanDuration>,
    /// Whether ffmpeg is kept from all files but the film, from the network and from other programs: auto (as far as the
    /// kernel can), require (completely, or nothing is converted), or off (for an ffmpeg that needs files or devices of its
    /// own, such as a graphics card)
    #[arg(
        long = "ffmpeg-sandbox",
        value_name = "WHEN",
        value_enum,
        default_value = "auto",
        hide_possible_values = true,
        env = "MILLRACE_FFMPEG_SANDBOX"
    )]
    sandbox: SandboxChoice,
    /// AAC beside audio that browsers do not play (AC-3, DTS, MP2 and others), 60 MB an hour for each language: auto (where a
    /// container is converted; MPEG-TS is stored as it is), always (MPEG-TS too, which is then converted), or never
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value = "auto",
        hide_possible_values = true,
        env = "MILLRACE_WEB_AUDIO"
    )]
    web_audio: WebAudioChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WebAudioChoice {
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SandboxChoice {
    Auto,
    Require,
    Off,
}

impl FfmpegArgs {
    /// How a file is taken in; `cancel` stops it.
    pub(crate) fn ingest_options(&self, cancel: &Arc<AtomicBool>) -> IngestOptions {
        IngestOptions {
            ffmpeg: self.program.clone(),
            bounds: self.bounds(),
            web_audio: self.web_audio(),
            cancel: Arc::clone(cancel),
            ..IngestOptions::default()
        }
    }

    /// The program as it fetches live sources.
    pub(crate) fn live_pull(&self) -> LivePull {
        LivePull { ffmpeg: self.program.clone(), bounds: self.bounds() }
    }

    /// The limits of ffmpeg for one file.
    fn bounds(&self) -> FfmpegBounds {
        FfmpegBounds {
            memory: self.memory,
            output: self.output,
            processor: self.time.map(|time| time.0),
            sandbox: self.sandbox(),
            ..FfmpegBounds::default()
        }
    }

    /// Whether ffmpeg is locked in.
    pub(crate) fn sandbox(&self) -> Sandbox {
        match self.sandbox {
            SandboxChoice::Auto => Sandbox::Auto,
            SandboxChoice::Require => Sandbox::Require,
            SandboxChoice::Off => Sandbox::Off,
        }
    }

    /// The choice as an option of the ingest.
    fn web_audio(&self) -> WebAudio {
        match self.web_audio {
            WebAudioChoice::Auto => WebAudio::Auto,
            WebAudioChoice::Always => WebAudio::Always,
            WebAudioChoice::Never => WebAudio::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct FfmpegCli {
        #[command(flatten)]
        ffmpeg: FfmpegArgs,
    }

    #[test]
    fn settings_become_bounds() {
        let bounds = |line: &[&str]| FfmpegCli::parse_from(line).ffmpeg.bounds();
        assert_eq!(bounds(&["x"]), FfmpegBounds::default());
        let set = ["x", "--ffmpeg-memory", "3GiB", "--ffmpeg-output", "1MB", "--ffmpeg-time", "90s"];
        let FfmpegBounds { memory, output, processor, .. } = bounds(&set);
        assert_eq!((memory, output), (ByteLen(3 << 30), Some(ByteLen(1_000_000))));
        assert_eq!(processor, Some(Duration::from_secs(90)));
        let web_audio = |line: &[&str]| FfmpegCli::parse_from(line).ffmpeg.web_audio();
        assert_eq!(
            (web_audio(&["x"]), web_audio(&["x", "--web-audio", "never"])),
            (WebAudio::Auto, WebAudio::Never)
        );
    }
}
