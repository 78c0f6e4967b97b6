//! `ffmpeg -re`: a process a stream that unpacks the file and packs it again.

use super::peer::{Peer, listen_port, need, process_each};
use crate::capacity::Scene;
use crate::capacity::trial::Service;

pub(super) const PEER: Peer =
    Peer { name: "ffmpeg", install: "apt-get install ffmpeg", missing: || need(&["ffmpeg"]), services };

fn services(scene: Scene<'_>) -> anyhow::Result<Vec<Service<'_>>> {
    let to = scene.site.client_ips[0];
    let line = move |n: u32, _: u32| {
        let file = &scene.files.paths[n as usize % scene.files.paths.len()];
        format!(
            "ffmpeg -nostdin -v error -re -i {} -c copy -f rtp_mpegts 'rtp://{to}:{}?pkt_size=1328' >/dev/null",
            file.display(),
            listen_port(n)
        )
    };
    let mut service = process_each("ffmpeg -re", scene, 20.0, line);
    // It leaves the stuffing out.
    (service.nominal, service.first) = (None, 96);
    Ok(vec![service])
}
