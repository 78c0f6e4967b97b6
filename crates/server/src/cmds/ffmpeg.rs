//! Settings of the ffmpeg program, for the commands that take files in.

use std::path::PathBuf;

use clap::Args;
use millrace_core::limits::FFMPEG_MEMORY_BYTES;
use millrace_core::units::{ByteLen, HumanDuration};
use millrace_store::ingest::FfmpegBounds;

/// The ffmpeg program and what it may use.
#[derive(Args, Clone, Debug)]
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
}

impl FfmpegArgs {
    /// As the ingest takes them.
    pub(crate) fn bounds(&self) -> FfmpegBounds {
        FfmpegBounds {
            memory: self.memory,
            output: self.output,
            processor: self.time.map(|time| time.0),
            ..FfmpegBounds::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        ffmpeg: FfmpegArgs,
    }

    #[test]
    fn settings_become_bounds() {
        let bounds = |line: &[&str]| Line::parse_from(line).ffmpeg.bounds();
        assert_eq!(bounds(&["x"]), FfmpegBounds::default());
        let set = ["x", "--ffmpeg-memory", "3GiB", "--ffmpeg-output", "1MB", "--ffmpeg-time", "90s"];
        let FfmpegBounds { memory, output, processor, .. } = bounds(&set);
        assert_eq!((memory, output), (ByteLen(3 << 30), Some(ByteLen(1_000_000))));
        assert_eq!(processor, Some(Duration::from_secs(90)));
    }
}
