//! Media files made on the spot with ffmpeg: a moving test picture and a tone, so that decoders have something to chew.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// Writes a constant-rate transport stream of `secs` seconds at `rate_kbps` (mux rate, 600 at least) to `path`.
///
/// # Errors
/// When ffmpeg is missing or fails: its last words are in the error.
pub fn make_cbr_ts(path: &Path, secs: u64, rate_kbps: u64) -> anyhow::Result<()> {
    let video_kbps = rate_kbps * 85 / 100 - 100;
    // The service name distinguishes files of the same length, so that none counts as a copy of
    // another.
    let service = path.file_stem().unwrap_or_default().to_string_lossy();
    let output = Command::new("ffmpeg")
        .args(["-hide_banner", "-nostdin", "-v", "error", "-y"])
        .args(["-f", "lavfi", "-i", &format!("testsrc2=s=320x180:r=25:d={secs}")])
        .args(["-f", "lavfi", "-i", &format!("sine=f=440:r=48000:d={secs}")])
        .args(["-c:v", "libx264", "-preset", "ultrafast", "-g", "50", "-bf", "0", "-pix_fmt", "yuv420p"])
        .args(["-b:v", &format!("{video_kbps}k"), "-maxrate", &format!("{video_kbps}k")])
        .args(["-bufsize", &format!("{video_kbps}k"), "-c:a", "aac", "-b:a", "64k"])
        .args(["-metadata", &format!("service_name={service}")])
        .args(["-f", "mpegts", "-muxrate", &format!("{rate_kbps}k"), "-pcr_period", "20"])
        .arg(path)
        .output()
        .context("ffmpeg: cannot be started; install it (Debian: apt-get install ffmpeg)")?;
    if !output.status.success() {
        bail!("ffmpeg could not make {}: {}", path.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
