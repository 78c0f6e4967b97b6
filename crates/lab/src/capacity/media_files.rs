//! The media of a measurement: one constant-rate transport stream, and copies that differ in every stuffing packet, so that
//! no cache can take one for the other.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use millrace_core::units::BitRate;

const PACKET_BYTES: usize = 188;

/// Media files of one rate in one folder: `media-0.ts`, `media-1.ts`, ...
#[derive(Clone, Debug)]
pub struct MediaFiles {
    /// The folder.
    pub dir: PathBuf,
    /// Rate of each.
    pub rate: BitRate,
    /// Length of each.
    pub seconds: u64,
    /// Their files.
    pub paths: Vec<PathBuf>,
}

impl MediaFiles {
    /// Makes them.
    ///
    /// # Errors
    /// When ffmpeg is missing or fails, or the disk is full.
    pub fn make(dir: &Path, rate: BitRate, seconds: u64, titles: usize) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        let path = |n: usize| dir.join(format!("media-{n}.ts"));
        make_full(&path(0), rate, seconds)?;
        let mut paths = vec![path(0)];
        if titles > 1 {
            let mut bytes = std::fs::read(path(0)).context("read the media file")?;
            for n in 1..titles {
                let stamped = stamp(&mut bytes, n as u32);
                ensure!(stamped > 0, "the media file has no stuffing packets to tell its copies apart by");
                std::fs::write(path(n), &bytes).with_context(|| format!("{}", path(n).display()))?;
                paths.push(path(n));
            }
        }
        Ok(Self { dir: dir.to_owned(), rate, seconds, paths })
    }

    /// Names of the titles: those of the files, without extension.
    pub fn titles(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.paths.len()).map(|n| format!("media-{n}"))
    }

    /// All of them together.
    pub fn bytes(&self) -> u64 {
        self.paths.iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum()
    }
}

/// A constant-rate stream that is full of pictures: noise takes all bits that it gets. What leaves the stuffing out must
/// still carry nearly the whole rate, or it would be measured with other media than the others.
fn make_full(path: &Path, rate: BitRate, seconds: u64) -> anyhow::Result<()> {
    let kbps = rate.0 / 1000;
    ensure!(kbps >= 1000, "the title's rate: got {rate}, at least 1Mb/s");
    let video = format!("{}k", kbps * 88 / 100 - 100);
    let mut command = std::process::Command::new("ffmpeg");
    command.args(["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i"]);
    command.arg(format!("testsrc2=s=640x360:r=25:d={seconds},noise=alls=60:allf=t"));
    command.args(["-f", "lavfi", "-i", &format!("sine=f=440:r=48000:d={seconds}")]);
    command.args(["-c:v", "libx264", "-preset", "ultrafast", "-g", "50", "-bf", "0", "-pix_fmt", "yuv420p"]);
    command.args(["-b:v", &video, "-maxrate", &video, "-bufsize", &video, "-c:a", "aac", "-b:a", "64k"]);
    command.args(["-f", "mpegts", "-muxrate", &format!("{kbps}k"), "-pcr_period", "20"]).arg(path);
    let output = command.output().context("ffmpeg: cannot be started (apt-get install ffmpeg)")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ffmpeg could not make {}: {}", path.display(), words.trim());
    Ok(())
}

/// Writes `number` into every stuffing packet (PID 0x1fff); returns how many there were.
fn stamp(bytes: &mut [u8], number: u32) -> usize {
    let mut stamped = 0;
    for packet in bytes.chunks_exact_mut(PACKET_BYTES) {
        if packet[0] == 0x47 && packet[1] & 0x1f == 0x1f && packet[2] == 0xff {
            packet[4..8].copy_from_slice(&number.to_be_bytes());
            stamped += 1;
        }
    }
    stamped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_changes_only_null_packets() {
        let mut bytes = [0x47; 3 * PACKET_BYTES];
        bytes[PACKET_BYTES + 1] = 0x1f;
        bytes[PACKET_BYTES + 2] = 0xff;
        let before = bytes;
        assert_eq!(stamp(&mut bytes, 0x0102_0304), 1);
        assert_eq!(bytes[PACKET_BYTES + 4..PACKET_BYTES + 8], [1, 2, 3, 4]);
        assert_eq!(bytes[..PACKET_BYTES], before[..PACKET_BYTES]);
        assert_eq!(bytes[2 * PACKET_BYTES..], before[2 * PACKET_BYTES..]);
    }
}
