//! GStreamer's RTSP server: a library without a program, so a launcher of a few lines. Every viewer gets a pipeline of its
//! own, as on-demand viewing needs.

use anyhow::Context;

use super::peer::{PORT, Peer, need, rtsp_services};
use crate::capacity::Scene;
use crate::capacity::site::Group;
use crate::capacity::trial::{RunningService, Service};

pub(super) const PEER: Peer = Peer {
    name: "gstreamer",
    install: "apt-get install python3-gi gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good gstreamer1.0-plugins-bad",
    missing,
    services,
};

/// Debian's python3 has Debian's packages; another one first on the PATH would not.
const PYTHON: &str = "/usr/bin/python3";

const LAUNCHER: &str = r#"
import sys
import gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer

Gst.init(None)
if len(sys.argv) > 1:
    server = GstRtspServer.RTSPServer()
    server.set_address(sys.argv[1])
    server.set_service(sys.argv[2])
    server.set_backlog(512)
    for number, file in enumerate(sys.argv[3:]):
        factory = GstRtspServer.RTSPMediaFactory()
        factory.set_launch("( filesrc location=%s ! tsparse set-timestamps=true ! rtpmp2tpay name=pay0 pt=33 )" % file)
        factory.set_shared(False)
        server.get_mount_points().add_factory("/media-%d" % number, factory)
    server.attach(None)
    GLib.MainLoop().run()
"#;

fn missing() -> Option<String> {
    if let Some(missing) = need(&["python3"]) {
        return Some(missing);
    }
    let status = std::process::Command::new(PYTHON)
        .args(["-c", LAUNCHER])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    (!status.is_ok_and(|status| status.success())).then(|| "the library for Python".to_owned())
}

fn start(scene: Scene<'_>) -> anyhow::Result<RunningService> {
    let site = scene.site;
    let path = site.dir.join("rtsp_server.py");
    std::fs::write(&path, LAUNCHER).with_context(|| format!("{}", path.display()))?;
    let mut command = site.command(PYTHON);
    command.arg(&path).arg(site.server_ip()).arg(PORT.to_string()).args(&scene.files.paths);
    let mut group = Group::start(site, "gst-rtsp-server", command)?;
    site.wait_for_port(PORT, &mut group)?;
    let url = |title| format!("rtsp://{}:{PORT}/{title}", site.server_ip());
    Ok(RunningService { groups: vec![group], targets: scene.files.titles().map(url).collect() })
}

fn services(scene: Scene<'_>) -> anyhow::Result<Vec<Service<'_>>> {
    let mut services = rtsp_services("gst-rtsp-server, TS", scene, start);
    // Every viewer costs a pipeline: some milliseconds each.
    services.iter_mut().for_each(|service| (service.arrivals_per_s, service.first) = (20.0, 48));
    Ok(services)
}
