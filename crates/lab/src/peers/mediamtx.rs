//! MediaMTX: it has no files, so one ffmpeg feeds each title, and all viewers of it share that one position.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::peer::{PORT, Peer, program, rtsp_services};
use crate::capacity::Scene;
use crate::capacity::site::Group;
use crate::capacity::trial::{RunningService, Service};

const VARIABLE: &str = "MILLRACE_PEER_MEDIAMTX";
const NAME: &str = "mediamtx";

pub(super) const PEER: Peer = Peer {
    name: "mediamtx",
    install: "get it from https://github.com/bluenviron/mediamtx and put it on the PATH or name the file in MILLRACE_PEER_MEDIAMTX",
    missing: || {
        let missing = program(VARIABLE, &[NAME]).is_none().then(|| NAME.to_owned());
        missing.or_else(|| super::peer::need(&["ffmpeg"]))
    },
    services,
};

fn feeder(scene: Scene<'_>, file: &Path, url: &str) -> std::process::Command {
    let mut command = scene.site.command("ffmpeg");
    command.args(["-nostdin", "-v", "error", "-re", "-stream_loop", "-1", "-i"]).arg(file);
    command.args(["-map", "0:v", "-c", "copy", "-f", "rtsp", "-rtsp_transport", "tcp", url]);
    command
}

/// A folder for it alone: it writes a certificate and a private key into its working directory.
fn work_dir(site: &Path) -> anyhow::Result<PathBuf> {
    let dir = std::path::absolute(site)?.join(NAME);
    std::fs::create_dir_all(&dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    Ok(dir)
}

fn start(scene: Scene<'_>) -> anyhow::Result<RunningService> {
    let site = scene.site;
    let dir = work_dir(&site.dir)?;
    let path = dir.join("mediamtx.yml");
    let configuration = format!(
        "logLevel: warn\nrtspAddress: {}:{PORT}\nwriteQueueSize: 1024\nrtmp: no\nhls: no\nwebrtc: no\nsrt: no\n\
         paths:\n  all_others:\n",
        site.server_ip()
    );
    std::fs::write(&path, configuration).with_context(|| format!("{}", path.display()))?;
    // From its own folder a relative path would lead elsewhere.
    let program = std::path::absolute(program(VARIABLE, &[NAME]).context(NAME)?)?;
    let mut command = site.command(program);
    command.arg(&path).current_dir(&dir).env("GOMAXPROCS", site.server_cores.len().to_string());
    let mut server = Group::start(site, NAME, command)?;
    site.wait_for_port(PORT, &mut server)?;
    let (mut groups, mut targets) = (vec![server], Vec::new());
    for (file, title) in scene.files.paths.iter().zip(scene.files.titles()) {
        let url = format!("rtsp://{}:{PORT}/{title}", site.server_ip());
        groups.push(Group::start(site, &format!("feeder of {title}"), feeder(scene, file, &url))?);
        targets.push(url);
    }
    // A title is there once its feeder has announced it.
    std::thread::sleep(std::time::Duration::from_secs(2));
    Ok(RunningService { groups, targets })
}

fn services(scene: Scene<'_>) -> anyhow::Result<Vec<Service<'_>>> {
    let mut services = rtsp_services("MediaMTX, one position for all", scene, start);
    services.iter_mut().for_each(|service| (service.arrivals_per_s, service.first) = (100.0, 192));
    Ok(services)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_dir_creates_separate_folder() {
        let site = tempfile::tempdir().unwrap();
        let dir = work_dir(site.path()).unwrap();
        assert!(dir.is_absolute() && dir.is_dir() && dir.starts_with(site.path()) && dir != site.path());
        assert_eq!(work_dir(site.path()).unwrap(), dir, "again");
    }
}
