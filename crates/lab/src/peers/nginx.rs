//! nginx: titles as they are over HTTP, and as HLS segments that ffmpeg made beforehand.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use millrace_client::play::TransportChoice;
use millrace_core::units::BitRate;
use millrace_load::MediaClock;

use super::peer::{PORT, Peer, converted, need};
use crate::capacity::Scene;
use crate::capacity::site::{BenchSite, Group};
use crate::capacity::trial::{Delivery, RunningService, SEGMENT_S, Service};

pub(super) const PEER: Peer = Peer {
    name: "nginx",
    install: "apt-get install nginx-light (do not start it as a service)",
    missing: || need(&["nginx"]),
    services,
};

/// Sendfile from `root`, with everything that costs time for nothing off.
fn configuration(site: &BenchSite, root: &Path, port: u16) -> String {
    let dir = site.dir.display();
    format!(
        "daemon off;\nuser root;\nworker_processes {workers};\npid {dir}/nginx-{port}.pid;\nerror_log stderr crit;\n\
         worker_rlimit_nofile 65536;\n\
         events {{ worker_connections 32768; multi_accept on; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  sendfile_max_chunk 256k;\n  tcp_nopush on;\n  \
         keepalive_requests 100000;\n  open_file_cache max=1000;\n  types {{ video/mp2t ts; \
         application/vnd.apple.mpegurl m3u8; }}\n  server {{ listen {ip}:{port} backlog=4096; root {root}; }}\n}}\n",
        workers = site.server_cores.len(),
        ip = site.server_ip(),
        root = root.display(),
    )
}

/// nginx on the server's host: the files in `root`, at `port`.
pub(crate) fn serves(site: &BenchSite, root: &Path, port: u16) -> anyhow::Result<Group> {
    let path = site.dir.join(format!("nginx-{port}.conf"));
    std::fs::write(&path, configuration(site, root, port)).with_context(|| format!("{}", path.display()))?;
    let mut command = site.command(super::peer::program("", &["nginx"]).context("nginx")?);
    command.arg("-p").arg(&site.dir).arg("-c").arg(&path).args(["-e", "stderr"]);
    let mut group = Group::start(site, "nginx", command)?;
    site.wait_for_port(port, &mut group)?;
    Ok(group)
}

fn start(scene: Scene<'_>, targets: Vec<String>) -> anyhow::Result<RunningService> {
    Ok(RunningService { groups: vec![serves(scene.site, &scene.files.dir, PORT)?], targets })
}

/// Rate of the segments of the first title: ffmpeg leaves the stuffing out.
fn segments_rate(scene: Scene<'_>) -> anyhow::Result<BitRate> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(&scene.files.dir).context("read the folder of media files")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("media-0").and_then(|rest| rest.strip_suffix(".ts"));
        if number.is_some_and(|n| !n.is_empty()) {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(BitRate(bytes * 8 / scene.files.seconds.max(1)))
}

fn services(scene: Scene<'_>) -> anyhow::Result<Vec<Service<'_>>> {
    let playlists = converted(scene, "m3u8", |file, path| {
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-v", "error", "-y", "-i"]).arg(file);
        command
            .args([
                "-c",
                "copy",
                "-f",
                "hls",
                "-hls_time",
                &SEGMENT_S.to_string(),
                "-hls_playlist_type",
                "vod",
            ])
            .arg(path);
        command
    })?;
    let url = |name: &str| format!("http://{}:{PORT}/{name}", scene.site.server_ip());
    let names = |paths: &[PathBuf]| {
        let name = |path: &PathBuf| path.file_name().map(|n| url(&n.to_string_lossy()));
        paths.iter().filter_map(name).collect::<Vec<String>>()
    };
    let of = |label: &str, targets: Vec<String>, rate, segment_s| Service {
        name: format!("nginx, {label}"),
        transport: TransportChoice::Tcp,
        delivery: Delivery::Asked,
        arrivals_per_s: 100.0,
        spread: Duration::ZERO,
        nominal: rate,
        media_clock: MediaClock::Rtp,
        takes_range: true,
        period: Duration::from_secs(segment_s),
        max_viewers: 10_000,
        first: 512,
        start: Box::new(move |_| start(scene, targets.clone())),
    };
    Ok(vec![
        of("HTTP progressive", names(&scene.files.paths), Some(scene.files.rate), 0),
        of("HLS", names(&playlists), Some(segments_rate(scene)?), SEGMENT_S),
    ])
}
