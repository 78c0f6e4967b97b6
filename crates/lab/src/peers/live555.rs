//! live555 Media Server: one thread, everything in the folder that it is started in.

use anyhow::Context;
use millrace_load::MediaClock;

use super::peer::{Peer, program, rtsp_services};
use crate::capacity::Scene;
use crate::capacity::site::Group;
use crate::capacity::trial::{RunningService, Service};

const VARIABLE: &str = "MILLRACE_PEER_LIVE555";
const NAME: &str = "live555MediaServer";

pub(super) const PEER: Peer = Peer {
    name: "live555",
    install: "build it (http://www.live555.com/mediaServer) and put it on the PATH or name the file in MILLRACE_PEER_LIVE555",
    missing: || program(VARIABLE, &[NAME]).is_none().then(|| NAME.to_owned()),
    services,
};

/// The port that it takes when it may.
const ITS_PORT: u16 = 554;

fn start(scene: Scene<'_>) -> anyhow::Result<RunningService> {
    let site = scene.site;
    let mut command = site.command(program(VARIABLE, &[NAME]).context(NAME)?);
    command.current_dir(&scene.files.dir);
    let mut group = Group::start(site, NAME, command)?;
    site.wait_for_port(ITS_PORT, &mut group)?;
    let url = |title| format!("rtsp://{}:{ITS_PORT}/{title}.ts", site.server_ip());
    Ok(RunningService { groups: vec![group], targets: scene.files.titles().map(url).collect() })
}

fn services(scene: Scene<'_>) -> anyhow::Result<Vec<Service<'_>>> {
    let mut services = rtsp_services("live555MediaServer, TS", scene, start);
    for service in &mut services {
        service.nominal = Some(scene.files.rate);
        // It stamps packets when it sends them: by their timestamps it would never be late.
        service.media_clock = MediaClock::Pcr;
    }
    Ok(services)
}
