//! VLC: one title to all clients that connect (`#rtp{sdp=...}`); they share one position. Its
//! on-demand server starts a whole player for every viewer and is left out.

use super::peer::{PORT, Peer, need, rtsp_services};
use crate::capacity::Scene;
use crate::capacity::site::Group;
use crate::capacity::trial::{RunningService, Service};

pub(super) const PEER: Peer = Peer {
    name: "vlc",
    install: "apt-get install vlc-bin vlc-plugin-base",
    missing: || need(&["cvlc"]),
    services,
};

/// It does not run as root.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

fn start(scene: Scene<'_>) -> anyhow::Result<RunningService> {
    let site = scene.site;
    let (mut groups, mut targets) = (Vec::new(), Vec::new());
    for (n, (file, title)) in (0u16..).zip(scene.files.paths.iter().zip(scene.files.titles())) {
        let port = PORT + n;
        let url = format!("rtsp://{}:{port}/{title}", site.server_ip());
        let mut command = site.command(NOBODY[0]);
        command.args(&NOBODY[1..]).env("HOME", "/tmp").args(["cvlc", "-q", "--no-sout-all", "--loop"]);
        command.args(["--sout", &format!("#rtp{{sdp={url},mux=ts}}"), "--sout-keep"]).arg(file);
        let mut group = Group::start(site, &format!("vlc {title}"), command)?;
        site.wait_for_port(port, &mut group)?;
        groups.push(group);
        targets.push(url);
    }
    Ok(RunningService { groups, targets })
}

fn services(scene: Scene<'_>) -> anyhow::Result<Vec<Service<'_>>> {
    // It refuses TCP with 461.
    let mut services = rtsp_services("VLC, one position for all", scene, start);
    services.truncate(1);
    Ok(services)
}
