//! What ffmpeg may use for one file: memory, processor time, output, disk. A small file can be made to ask for any amount.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use millrace_core::limits::FFMPEG_MEMORY_BYTES;
use millrace_core::units::ByteLen;
use millrace_store::volume::reserve;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::error::Exceeded;
use super::sandbox::Sandbox;
use crate::limits::ingest::MIN_LOOK_BYTES;
use crate::limits::{
    DISK_LOOK_BYTES, FFMPEG_OUTPUT_BYTES, FFMPEG_OUTPUT_RATIO, FFMPEG_PROCESSOR_NS,
    FFMPEG_PROCESSOR_NS_PER_MIB, FFMPEG_SILENCE_NS,
};

/// How much ffmpeg may use for one file. The default is far above what titles need, and below what hurts a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FfmpegBounds {
    /// Memory (the kernel's `RLIMIT_DATA`: heap, private mappings, stacks).
    pub memory: ByteLen,
    /// Bytes of transport stream; `None`: 256 MiB and 64 times the length of the file.
    pub output: Option<ByteLen>,
    /// Processor time of all its threads, in whole seconds; `None`: 20 minutes and 2 for each MiB of the file.
    pub processor: Option<Duration>,
    /// Longest time without any output.
    pub silence: Duration,
    /// Whether it is kept from everything but the file.
    pub sandbox: Sandbox,
}

impl Default for FfmpegBounds {
    fn default() -> Self {
        Self {
            memory: ByteLen(FFMPEG_MEMORY_BYTES),
            output: None,
            processor: None,
            silence: Duration::from_nanos(FFMPEG_SILENCE_NS),
            sandbox: Sandbox::default(),
        }
    }
}

impl FfmpegBounds {
    /// Returns the bounds of the program while it works on a file of `source_bytes` bytes.
    pub(crate) fn of_process(&self, source_bytes: u64) -> ProcessBounds {
        let by_size = || {
            let mib = source_bytes.div_ceil(1 << 20);
            let ns = FFMPEG_PROCESSOR_NS.saturating_add(mib.saturating_mul(FFMPEG_PROCESSOR_NS_PER_MIB));
            Duration::from_nanos(ns)
        };
        let processor = self.processor.unwrap_or_else(by_size).max(Duration::from_secs(1));
        ProcessBounds { memory: self.memory, processor, silence: self.silence, sandbox: self.sandbox }
    }

    /// Returns the most that it may write for a file of `source_bytes` bytes.
    fn most_output(&self, source_bytes: u64) -> u64 {
        let by_size = FFMPEG_OUTPUT_BYTES.saturating_add(source_bytes.saturating_mul(FFMPEG_OUTPUT_RATIO));
        self.output.map_or(by_size, |output| output.0)
    }
}

/// What one helper program may use.
#[derive(Clone, Debug)]
pub(crate) struct ProcessBounds {
    /// Memory.
    pub memory: ByteLen,
    /// Processor time, at least a second.
    pub processor: Duration,
    /// Longest time without output.
    pub silence: Duration,
    /// Whether it is locked in.
    pub sandbox: Sandbox,
}

impl ProcessBounds {
    /// Puts a running program under the kernel's limits; programs that it starts from then on are under them too.
    pub(crate) fn put_on(&self, pid: Pid) -> io::Result<()> {
        // No core file: that of a program that has run out of memory would fill the disk in its place.
        let limits =
            [(Resource::Data, self.memory.0), (Resource::Cpu, self.processor.as_secs()), (Resource::Core, 0)];
        for (resource, most) in limits {
            // What we ourselves are limited to stays: raising a limit is not ours to do.
            let most = getrlimit(resource).maximum.map_or(most, |ours| ours.min(most));
            prlimit(Some(pid), resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        Ok(())
    }
}

/// Watches how much ffmpeg has written, and the free space at the destination.
pub(crate) struct OutputBound {
    source_bytes: u64,
    most: u64,
    next_look: u64,
    dirs: Vec<PathBuf>,
}

impl OutputBound {
    /// Creates the bound for a file of `source_bytes` bytes that becomes a title in `dirs`, one on
    /// each disk.
    pub(crate) fn new(bounds: &FfmpegBounds, source_bytes: u64, dirs: Vec<PathBuf>) -> Self {
        Self { source_bytes, most: bounds.most_output(source_bytes), next_look: 0, dirs }
    }

    /// Checks the bound after `written` bytes of output.
    pub(crate) fn check(&mut self, written: u64) -> Result<(), Exceeded> {
        if written > self.most {
            return Err(Exceeded::Output { most: ByteLen(self.most), file: ByteLen(self.source_bytes) });
        }
        if written < self.next_look {
            return Ok(());
        }
        let mut wait = DISK_LOOK_BYTES;
        for dir in &self.dirs {
            // A disk that cannot say how much is free will say so when it is written to.
            let Ok(disk) = rustix::fs::statvfs(dir) else { continue };
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let reserve = reserve(disk.f_blocks.saturating_mul(disk.f_frsize));
            if free < reserve {
                let (free, reserve) = (ByteLen(free), ByteLen(reserve));
                return Err(Exceeded::Space { dir: dir.clone(), free, reserve });
            }
            // A small disk may be full before the usual next look.
            wait = wait.min((free - reserve) / 2);
        }
        self.next_look = written + wait.max(MIN_LOOK_BYTES);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_grow_with_the_file_and_settings_replace_them() {
        let usual = FfmpegBounds::default();
        assert_eq!(usual.most_output(600_000), (256 << 20) + 64 * 600_000);
        assert_eq!(usual.most_output(u64::MAX), u64::MAX);
        assert_eq!(usual.of_process(1).processor, Duration::from_secs(22 * 60));
        assert_eq!(usual.of_process(100 << 20).processor, Duration::from_secs(220 * 60));
        assert!(usual.of_process(u64::MAX).processor > Duration::from_secs(1 << 30));
        let set = FfmpegBounds {
            output: Some(ByteLen(1)),
            processor: Some(Duration::ZERO),
            ..FfmpegBounds::default()
        };
        assert_eq!((set.most_output(600), set.of_process(600).processor), (1, Duration::from_secs(1)));
    }

    #[test]
    fn output_is_refused_beyond_its_bound_only() {
        let bounds = FfmpegBounds { output: Some(ByteLen(100)), ..FfmpegBounds::default() };
        let mut bound = OutputBound::new(&bounds, 10, Vec::new());
        bound.check(0).unwrap();
        bound.check(100).unwrap();
        let text = bound.check(101).unwrap_err().to_string();
        assert!(text.contains("100B") && text.contains("10B") && text.contains("--ffmpeg-output"), "{text}");
    }
}
