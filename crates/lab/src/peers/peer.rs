//! What all peers share: the description of one, programs and files, services of one kind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_client::play::TransportChoice;
use millrace_load::MediaClock;

use crate::capacity::Scene;
use crate::capacity::site::Group;
use crate::capacity::trial::{Delivery, RunningService, Service};

/// Port of everything that viewers connect to.
pub(super) const PORT: u16 = 8554;
/// That of our HTTP.
pub(crate) const HTTP_PORT: u16 = 8555;
/// And HTTPS, if it does.
pub(crate) const HTTPS_PORT: u16 = 8557;
/// First port of viewers that listen.
pub(super) const LISTEN_PORT: u16 = 10_000;

/// A server that can be compared with.
pub struct Peer {
    /// Its name for `--peers`.
    pub name: &'static str,
    /// Where it comes from.
    pub install: &'static str,
    /// Checks for the required programs, and describes any that are missing.
    pub(super) missing: fn() -> Option<String>,
    /// The ways in which it can serve.
    pub(super) services: for<'a> fn(Scene<'a>) -> anyhow::Result<Vec<Service<'a>>>,
}

impl Peer {
    /// Describes the requirements that are missing to run it, if any.
    pub fn missing(&self) -> Option<String> {
        (self.missing)().map(|what| format!("missing: {what}; {}", self.install))
    }

    /// The ways in which it can serve the titles of `scene`.
    ///
    /// # Errors
    /// When its files cannot be prepared.
    pub fn services<'a>(&self, scene: Scene<'a>) -> anyhow::Result<Vec<Service<'a>>> {
        (self.services)(scene)
    }

    /// Returns whether this is one of our own senders that bound the kernel's capability.
    pub fn is_reference(&self) -> bool {
        self.name.starts_with("reference")
    }
}

/// Finds a program: the file that the environment variable names, or the first of `names` on the
/// PATH.
pub(super) fn program(variable: &str, names: &[&str]) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable).map(PathBuf::from) {
        return path.is_file().then_some(path);
    }
    let mut folders: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    // Where Debian has daemons; not on everybody's PATH.
    folders.push("/usr/sbin".into());
    names.iter().flat_map(|name| folders.iter().map(move |dir| dir.join(name))).find(|path| path.is_file())
}

/// Returns the names of the missing programs, if any of these is missing.
pub(super) fn need(programs: &[&str]) -> Option<String> {
    let missing: Vec<&str> = programs.iter().copied().filter(|name| program("", &[name]).is_none()).collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name}: cannot be started"))?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", words.trim().lines().last().unwrap_or_default());
    Ok(())
}

/// Media files as `ffmpeg -c copy` makes them of ours, once each: `convert` gets our file and the new one.
pub(super) fn converted(
    scene: Scene<'_>,
    extension: &str,
    convert: impl Fn(&Path, &Path) -> Command,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for file in &scene.files.paths {
        let path = file.with_extension(extension);
        if !path.exists() {
            run(&mut convert(file, &path))?;
        }
        paths.push(path);
    }
    Ok(paths)
}

/// The titles as MP4.
pub(super) fn mp4_files(scene: Scene<'_>) -> anyhow::Result<Vec<PathBuf>> {
    converted(scene, "mp4", |file, path| {
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-v", "error", "-y", "-i"]).arg(file);
        command.args(["-c", "copy", "-movflags", "+faststart"]).arg(path);
        command
    })
}

/// A server that viewers ask over RTSP: one service for each transport.
pub(super) fn rtsp_services<'a>(
    name: &str,
    scene: Scene<'a>,
    start: impl Fn(Scene<'a>) -> anyhow::Result<RunningService> + Copy + Sync + 'a,
) -> Vec<Service<'a>> {
    let of = |transport: TransportChoice, label: &str| Service {
        name: format!("{name}, RTP/{label}"),
        transport,
        delivery: Delivery::Asked,
        arrivals_per_s: 50.0,
        spread: Duration::ZERO,
        nominal: None,
        media_clock: MediaClock::Rtp,
        takes_range: true,
        period: Duration::ZERO,
        max_viewers: 10_000,
        first: 32,
        start: Box::new(move |_| start(scene)),
    };
    vec![of(TransportChoice::Udp, "UDP"), of(TransportChoice::Tcp, "TCP")]
}

/// A process for every viewer, started by a shell: `line` is the command of viewer n.
pub(super) fn process_each<'a>(
    name: &'static str,
    scene: Scene<'a>,
    arrivals_per_s: f64,
    line: impl Fn(u32, u32) -> String + Sync + 'a,
) -> Service<'a> {
    let start = move |count: u32| {
        let mut script = String::new();
        for n in 0..count {
            // A shell that is killed takes them with it.
            script.push_str(&format!("setpriv --pdeathsig KILL {} &\n", line(n, count)));
            if n % 10 == 9 {
                script.push_str(&format!("sleep {:.3}\n", 10.0 / (1.5 * arrivals_per_s)));
            }
        }
        script.push_str("wait\n");
        let path = scene.site.dir.join(format!("{name}.sh"));
        std::fs::write(&path, script).with_context(|| format!("{}", path.display()))?;
        let mut command = scene.site.command("sh");
        command.arg(&path);
        Ok(RunningService { groups: vec![Group::start(scene.site, name, command)?], targets: Vec::new() })
    };
    Service {
        name: format!("{name}, a process a viewer, RTP/UDP"),
        transport: TransportChoice::Udp,
        delivery: Delivery::Pushed { base_port: LISTEN_PORT },
        arrivals_per_s,
        spread: Duration::ZERO,
        nominal: Some(scene.files.rate),
        media_clock: MediaClock::Rtp,
        takes_range: true,
        period: Duration::ZERO,
        max_viewers: 2_000,
        first: 64,
        start: Box::new(start),
    }
}

/// Port at which viewer `n` listens.
pub(super) fn listen_port(n: u32) -> u32 {
    u32::from(LISTEN_PORT) + 2 * n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_or_named() {
        assert!(need(&["sh"]).is_none());
        assert_eq!(need(&["sh", "no-such-program-1", "no-such-2"]).unwrap(), "no-such-program-1, no-such-2");
        assert!(program("", &["sh"]).is_some_and(|path| path.ends_with("sh")));
    }
}
