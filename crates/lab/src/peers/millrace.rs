//! Our own server, and any other that is given as a command line.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use millrace_client::play::TransportChoice;
use millrace_load::MediaClock;
use millrace_offload::hugepage::Touching;

use super::peer::{HTTP_PORT, HTTPS_PORT, PORT, Peer, run};
use crate::capacity::Scene;
use crate::capacity::site::{BenchSite, Group, SERVER_INTERFACE};
use crate::capacity::trial::{Delivery, RunningService, SEGMENT_S, Service};

pub(super) const PEER: Peer =
    Peer { name: "millrace", install: "it is this program", missing: || None, services };

/// Viewers of ours that may arrive in a second.
const ARRIVALS_PER_S: f64 = 600.0;
/// The same of those over HTTP, as for other servers.
const HTTP_ARRIVALS_PER_S: f64 = 100.0;
/// Connections by HTTP that one client address may have, for each of the receiver's.
const MAX_HTTP_VIEWERS: u32 = 8_000;
/// A rate that a core of some years ago sends with ease: the search begins here.
const EASY_BITS_PER_S: u64 = 4_000_000_000;
/// A cache that holds all of one title.
const CACHE_BYTES: u64 = 512 << 20;
/// Longest time that its memory takes to be there, on a virtual machine whose host has to find it.
const CACHE_MEMORY_TIME: Duration = Duration::from_secs(120);
/// The least cache with many titles.
const SMALL_CACHE_BYTES: u64 = 256 << 20;

/// Where our server writes its counters, once a second.
pub fn stats_file(site: &BenchSite) -> PathBuf {
    site.dir.join("stats.json")
}

/// A store with all titles.
fn store(scene: Scene<'_>) -> anyhow::Result<PathBuf> {
    let store = scene.files.dir.join("store");
    if !store.exists() {
        let mut add = Command::new(scene.program);
        add.args(["add", "--quiet"]).args(&scene.files.paths).arg("--store").arg(&store);
        run(&mut add).context("put the titles into a store")?;
    }
    Ok(store)
}

fn services(scene: Scene<'_>) -> anyhow::Result<Vec<Service<'_>>> {
    let store = store(scene)?;
    // Many titles: a third of them fits, the rest is read from the disk while it is watched.
    let cache = match (scene.cache_bytes, scene.files.paths.len()) {
        (Some(bytes), _) => bytes,
        (None, 1) => CACHE_BYTES,
        (None, _) => (scene.files.bytes() / 3).max(SMALL_CACHE_BYTES),
    };
    let start = move |store: &PathBuf, url: fn(&str, &str) -> String| {
        let site = scene.site;
        let cores: Vec<String> = site.server_cores.iter().map(usize::to_string).collect();
        let mut command = site.command(scene.program);
        let at = |port| format!("{}:{port}", site.server_ip());
        command.args(["serve", "--quiet", "--listen", &at(PORT), "--http", &at(HTTP_PORT)]);
        command.args(["--admission", if scene.has_admission { "measured" } else { "off" }]);
        command.arg("--stats").arg(stats_file(site));
        command.args(["--cpu", &cores.join(","), "--engines", &cores.len().to_string()]);
        command.args(["--max-streams", "16000", "--max-connections-per-address", "20000"]);
        command.args(["--share-per-address", "100%"]);
        by_tls(scene, &mut command);
        if let Some(backend) = scene.backend {
            command.args(["--backend", backend]);
            if backend == "xdp" {
                command.args(["--xdp-interface", SERVER_INTERFACE]);
            }
        }
        command.args(["--cache", &format!("{cache}B"), "--store"]).arg(store);
        let mut group = Group::start(site, "millrace", command)?;
        group.wait_for_word("ready ")?;
        // It takes idle time only, which a measurement counts as well.
        group.wait_for_end_of(Touching::THREAD, CACHE_MEMORY_TIME)?;
        let url = |title: String| url(site.server_ip(), &title);
        Ok(RunningService { groups: vec![group], targets: scene.files.titles().map(url).collect() })
    };
    let of = |transport: TransportChoice, label: &str, url: fn(&str, &str) -> String| {
        let store = store.clone();
        Service {
            name: match scene.backend {
                Some(backend) => format!("millrace ({backend}), {label}"),
                None => format!("millrace, {label}"),
            },
            transport,
            delivery: Delivery::Asked,
            arrivals_per_s: ARRIVALS_PER_S,
            spread: scene.spread,
            nominal: Some(scene.files.rate),
            media_clock: MediaClock::Rtp,
            takes_range: true,
            period: Duration::ZERO,
            max_viewers: 16_000,
            first: (EASY_BITS_PER_S / scene.files.rate.0.max(1)).clamp(64, 4_000) as u32,
            start: Box::new(move |_| start(&store, url)),
        }
    };
    let rtsp = |ip: &str, title: &str| format!("rtsp://{ip}:{PORT}/{title}");
    Ok(vec![
        of(TransportChoice::Udp, "RTP/UDP", rtsp),
        of(TransportChoice::Tcp, "RTP/TCP", rtsp),
        fetched(of(TransportChoice::Tcp, "HTTP progressive", |ip, title| {
            format!("http://{ip}:{HTTP_PORT}/titles/{title}.ts")
        })),
        in_segments(fetched(of(TransportChoice::Tcp, "HLS", |ip, title| {
            format!("http://{ip}:{HTTP_PORT}/titles/{title}/index.m3u8")
        }))),
    ])
}

/// Has our server speak TLS as well, if there is a certificate.
fn by_tls(scene: Scene<'_>, command: &mut Command) {
    if let Some([certificate, key]) = scene.tls {
        command.arg("--tls-certificate").arg(certificate).arg("--tls-key").arg(key);
        let at = format!("{}:{HTTPS_PORT}", scene.site.server_ip());
        command.args(["--https", &at, "--rtsps", "off"]);
    }
}

/// The same over HTTP: whoever fetches files begins at their beginning.
fn fetched(service: Service<'_>) -> Service<'_> {
    Service {
        spread: Duration::ZERO,
        arrivals_per_s: HTTP_ARRIVALS_PER_S,
        max_viewers: MAX_HTTP_VIEWERS,
        first: 512,
        ..service
    }
}

/// The same by segments.
fn in_segments(service: Service<'_>) -> Service<'_> {
    Service { period: Duration::from_secs(SEGMENT_S), ..service }
}

/// Returns a server that the user gives as a command with {ip}, {port}, {file} and {dir} in it, and
/// a URL with {ip}, {port} and {title}; one service for each transport.
pub fn custom<'a>(scene: Scene<'a>, command: &str, url: &str, is_tcp: bool) -> Service<'a> {
    let site = scene.site;
    let fill = |text: &str| {
        text.replace("{ip}", site.server_ip())
            .replace("{port}", &PORT.to_string())
            .replace("{file}", &scene.files.paths[0].display().to_string())
            .replace("{dir}", &scene.files.dir.display().to_string())
    };
    let line = fill(command);
    let url = fill(url);
    let targets: Vec<String> = scene.files.titles().map(|title| url.replace("{title}", &title)).collect();
    let start = move |_| {
        let mut command = site.command("sh");
        command.args(["-c", &line]);
        let mut group = Group::start(site, "server", command)?;
        site.wait_for_port(PORT, &mut group)?;
        Ok(RunningService { groups: vec![group], targets: targets.clone() })
    };
    let (transport, label) =
        if is_tcp { (TransportChoice::Tcp, "TCP") } else { (TransportChoice::Udp, "UDP") };
    Service {
        name: format!("given server, {label}"),
        transport,
        delivery: Delivery::Asked,
        arrivals_per_s: 100.0,
        spread: Duration::ZERO,
        nominal: None,
        media_clock: MediaClock::Rtp,
        takes_range: true,
        period: Duration::ZERO,
        max_viewers: 16_000,
        first: 64,
        start: Box::new(start),
    }
}
