//! ZLMediaKit: on-demand viewing of MP4 files over RTSP, a position for each viewer.

use anyhow::Context;

use super::peer::{PORT, Peer, mp4_files, program, rtsp_services};
use crate::capacity::Scene;
use crate::capacity::site::Group;
use crate::capacity::trial::{RunningService, Service};

const VARIABLE: &str = "MILLRACE_PEER_ZLMEDIAKIT";
const NAME: &str = "MediaServer";
/// Interval in milliseconds between its sends of due packets; its default is half a second.
const SAMPLE_MS: u32 = 40;

pub(super) const PEER: Peer = Peer {
    name: "zlmediakit",
    install: "build it (https://github.com/ZLMediaKit/ZLMediaKit) and put MediaServer on the PATH or name the file in MILLRACE_PEER_ZLMEDIAKIT",
    missing: || program(VARIABLE, &[NAME]).is_none().then(|| NAME.to_owned()),
    services,
};

fn start(scene: Scene<'_>) -> anyhow::Result<RunningService> {
    let site = scene.site;
    // Files are found in the folder "record" below the path that [protocol] mp4_save_path names.
    let record = site.dir.join("zlm/www/record");
    std::fs::create_dir_all(&record).with_context(|| format!("{}", record.display()))?;
    for file in mp4_files(scene)? {
        let link = record.join(file.file_name().context("a file without name")?);
        if !link.exists() {
            std::fs::hard_link(&file, &link).with_context(|| format!("{}", link.display()))?;
        }
    }
    let path = site.dir.join("zlm/config.ini");
    let configuration = format!(
        "[general]\nmediaServerId=bench\n[http]\nrootPath={root}\nport=18080\nsslport=0\n[rtsp]\nport={PORT}\nsslport=0\n\
         [rtmp]\nport=0\nsslport=0\n[rtp_proxy]\nport=0\n[rtc]\nport=0\n[srt]\nport=0\n[shell]\nport=0\n[hook]\nenable=0\n\
         [protocol]\nmp4_save_path={root}\n[record]\nappName=record\nfileRepeat=1\nsampleMS={SAMPLE_MS}\n",
        root = site.dir.join("zlm/www").display()
    );
    std::fs::write(&path, configuration).with_context(|| format!("{}", path.display()))?;
    let mut command = site.command(program(VARIABLE, &[NAME]).context(NAME)?);
    command.current_dir(site.dir.join("zlm")).arg("-c").arg(&path);
    command.args(["-t", &site.server_cores.len().to_string(), "-l", "3"]);
    let mut group = Group::start(site, NAME, command)?;
    site.wait_for_port(PORT, &mut group)?;
    let url = |title| format!("rtsp://{}:{PORT}/record/{title}.mp4", site.server_ip());
    Ok(RunningService { groups: vec![group], targets: scene.files.titles().map(url).collect() })
}

fn services(scene: Scene<'_>) -> anyhow::Result<Vec<Service<'_>>> {
    let mut services = rtsp_services("ZLMediaKit, MP4", scene, start);
    // A PLAY with a Range is answered, and nothing follows.
    services.iter_mut().for_each(|service| service.takes_range = false);
    Ok(services)
}
