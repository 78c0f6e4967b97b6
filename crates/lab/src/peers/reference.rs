//! Our own reference senders as services.

use std::time::Duration;

use millrace_client::play::TransportChoice;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::units::BitRate;
use millrace_load::MediaClock;

use super::peer::{LISTEN_PORT, PORT, Peer};
use crate::capacity::Scene;
use crate::capacity::site::Group;
use crate::capacity::trial::{Delivery, RunningService, Service};
use crate::reference::SenderKind;

/// The most packets that one send with segmentation offload carries.
const LONG_BURST_PACKETS: u64 = 44;
/// The longest bursts that leave something of the strict limit of lateness to the machine; about as long as the engine's longest.
const LONGEST_WHOLE_MS: u64 = 17;
/// Longer bursts are late by themselves: the patient limit is 100 ms.
const LONGEST_DISTANCE_MS: u64 = 80;

const INSTALL: &str = "it is part of this program";

pub(super) const RING: Peer = Peer {
    name: "reference-ring",
    install: INSTALL,
    missing: || None,
    services: |scene| {
        let every = [10, LONGEST_WHOLE_MS];
        let mut services = Vec::new();
        // The cost of a burst depends on its packets, so rates are compared by lengths in packets.
        for packets in [8, LONG_BURST_PACKETS] {
            let distance_ms = distance_ms(packets, scene.files.rate);
            if !every.contains(&distance_ms) && distance_ms <= LONGEST_DISTANCE_MS {
                services.push(ring(
                    scene,
                    format!("of {packets} packets every {distance_ms} ms"),
                    distance_ms,
                ));
            }
        }
        services.extend(every.map(|ms| ring(scene, format!("every {ms} ms"), ms)));
        Ok(services)
    },
};

pub(super) const EVENTS: Peer = Peer {
    name: "reference-events",
    install: INSTALL,
    missing: || None,
    services: |scene| {
        Ok(vec![pushed(scene, SenderKind::Events, "event loop with sendmmsg, every 10 ms", 10, 5000.0, 512)])
    },
};

pub(super) const PROCESS: Peer = Peer {
    name: "reference-process",
    install: INSTALL,
    missing: || None,
    services: |scene| {
        Ok(vec![
            pushed(scene, SenderKind::Process, "a process a stream, a packet a time", 0, 100.0, 64),
            pushed(scene, SenderKind::Process, "a process a stream, every 10 ms", 10, 100.0, 192),
        ])
    },
};

pub(super) const SENDFILE: Peer = Peer {
    name: "reference-sendfile",
    install: INSTALL,
    missing: || None,
    services: |scene| Ok(vec![sendfile(scene)]),
};

/// A ring of viewers, each with a burst every `distance_ms`.
fn ring<'a>(scene: Scene<'a>, label: String, distance_ms: u64) -> Service<'a> {
    pushed(scene, SenderKind::Ring, &format!("GSO ring, a burst {label}"), distance_ms, 5000.0, 1024)
}

/// Returns the milliseconds that `packets` packets of a title of this rate last.
fn distance_ms(packets: u64, rate: BitRate) -> u64 {
    packets * 8 * DEFAULT_PACKET_BYTES as u64 * 1_000 / rate.0.max(1)
}

/// The command line that all of them share.
fn command(scene: Scene<'_>, kind: SenderKind, distance_ms: u64, count: u32) -> std::process::Command {
    let mut command = scene.site.command(scene.program);
    command.args(["bench-sender", kind.name(), "--streams", &count.to_string()]);
    command.args(["--rate", &format!("{}b/s", scene.files.rate.0)]);
    command.args(["--distance", &format!("{distance_ms}ms")]);
    command.args(["--spread", &format!("{}ms", scene.spread.as_millis())]);
    for file in &scene.files.paths {
        command.arg("--file").arg(file);
    }
    command
}

/// Returns a sender of `kind` with bursts every `distance_ms`; also used for comparisons with just
/// this one.
pub(super) fn pushed<'a>(
    scene: Scene<'a>,
    kind: SenderKind,
    label: &str,
    distance_ms: u64,
    arrivals_per_s: f64,
    first: u32,
) -> Service<'a> {
    let start = move |count| {
        let mut command = command(scene, kind, distance_ms, count);
        command.args(["--to", &scene.site.client_ips[0].to_string()]);
        command.args(["--base-port", &LISTEN_PORT.to_string()]);
        let group = Group::start(scene.site, kind.name(), command)?;
        Ok(RunningService { groups: vec![group], targets: Vec::new() })
    };
    Service {
        name: format!("reference: {label}, RTP/UDP"),
        transport: TransportChoice::Udp,
        delivery: Delivery::Pushed { base_port: LISTEN_PORT },
        arrivals_per_s,
        spread: scene.spread,
        nominal: Some(scene.files.rate),
        media_clock: MediaClock::Rtp,
        takes_range: true,
        period: Duration::ZERO,
        max_viewers: 16_000,
        first,
        start: Box::new(start),
    }
}

fn sendfile(scene: Scene<'_>) -> Service<'_> {
    let start = move |count| {
        // One more than there are viewers: who tries whether it is there is one too.
        let mut command = command(scene, SenderKind::Sendfile, 10, count + 1);
        command.args(["--listen", &format!("{}:{PORT}", scene.site.server_ip())]);
        let mut group = Group::start(scene.site, "sendfile", command)?;
        scene.site.wait_for_port(PORT, &mut group)?;
        let url = format!("http://{}:{PORT}/media.ts", scene.site.server_ip());
        Ok(RunningService { groups: vec![group], targets: vec![url] })
    };
    Service {
        name: "reference: a process a connection with sendfile, HTTP".to_owned(),
        transport: TransportChoice::Tcp,
        delivery: Delivery::AskedAfresh,
        arrivals_per_s: 100.0,
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
