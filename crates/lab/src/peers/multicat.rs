//! multicat: a process a stream, paced by a clock file that `ingests` makes beforehand.

use std::process::Command;

use super::peer::{Peer, converted, listen_port, need, process_each};
use crate::capacity::Scene;
use crate::capacity::trial::Service;

pub(super) const PEER: Peer = Peer {
    name: "multicat",
    install: "apt-get install multicat",
    missing: || need(&["multicat", "ingests"]),
    services,
};

/// PID of the program clock in files that ffmpeg made.
const PCR_PID: &str = "256";
/// Ticks of its clock in a millisecond.
const TICKS_PER_MS: u64 = 27_000;

fn services(scene: Scene<'_>) -> anyhow::Result<Vec<Service<'_>>> {
    converted(scene, "aux", |file, _| {
        let mut command = Command::new("ingests");
        command.args(["-p", PCR_PID]).arg(file);
        command
    })?;
    let to = scene.site.client_ips[0];
    let spread_ms = scene.spread.as_millis() as u64;
    let line = move |n: u32, count: u32| {
        let file = &scene.files.paths[n as usize % scene.files.paths.len()];
        let place = spread_ms * u64::from(n) / u64::from(count) * TICKS_PER_MS;
        format!("multicat -p {PCR_PID} -k {place} -u {} {to}:{}", file.display(), listen_port(n))
    };
    let mut service = process_each("multicat", scene, 200.0, line);
    service.first = 192;
    Ok(vec![service])
}
