//! How many packets a second an emulated link carries here before it misses some: `cargo run --release -p millrace-lab
//! --example link_rate -- 'delay 20ms'` (root).

use std::time::{Duration, Instant as StdInstant};

use anyhow::Context;
use millrace_core::ids::StreamId;
use millrace_core::seam::{Dest, PacketTx, Payload, SendOutcome, Transmit};
use millrace_lab::link_host::Impairment;
use millrace_lab::netns::{CLIENT_IP, SERVER_IP, TwoHosts};
use millrace_netio::null::SliceBatch;
use millrace_netio::{GsoMode, KernelTx, KernelTxConfig, bind_pair};

const PACKET_BYTES: usize = 1328;
const PACKETS_PER_SEND: usize = 20;
const STEP: Duration = Duration::from_secs(3);

fn main() -> anyhow::Result<()> {
    let spec: Impairment = std::env::args().nth(1).as_deref().unwrap_or("none").parse()?;
    println!("link: {spec}");
    for packets_per_s in [25_000, 50_000, 75_000, 100_000, 125_000, 150_000, 200_000, 300_000] {
        if !carries(&spec, packets_per_s)? {
            break;
        }
    }
    Ok(())
}

/// Offers `packets_per_s` packets per second; returns whether all of them reached the link.
fn carries(spec: &Impairment, packets_per_s: u64) -> anyhow::Result<bool> {
    let hosts = TwoHosts::with_link(spec.clone(), Impairment::default())?;
    let viewer = hosts.on_client(|| std::net::UdpSocket::bind((CLIENT_IP, 0)))??;
    let pair = hosts.inside_server(|| {
        bind_pair(SERVER_IP.parse().context("an address")?, 20_000, 21_000).context("ports")
    })??;
    let mut tx =
        KernelTx::new(KernelTxConfig { v4: Some(pair), gso: GsoMode::Auto, ..KernelTxConfig::default() })?;
    let to = viewer.local_addr()?;
    // Looks like RTP, so that it is counted as such.
    let bytes = [[0x80, 33].as_slice(), &[0; PACKET_BYTES - 2]].concat().repeat(PACKETS_PER_SEND);
    let train = Transmit {
        stream: StreamId { index: 0, generation: 0 },
        dest: Dest::udp(to, None),
        payload: Payload::Wire { bytes: &bytes, segment: PACKET_BYTES },
    };
    let start = StdInstant::now();
    let mut sent = 0;
    while start.elapsed() < STEP {
        if start.elapsed().as_nanos() * u128::from(packets_per_s) < u128::from(sent) * 1_000_000_000 {
            std::hint::spin_loop();
            continue;
        }
        let mut outcome = [SendOutcome::Sent];
        tx.send(&SliceBatch(&[train]), &mut outcome);
        sent += PACKETS_PER_SEND as u64;
    }
    // Wait for the packets that are still in the device's queue and in the link.
    std::thread::sleep(Duration::from_millis(200) + spec.delay + spec.jitter);
    let [there, _] = hosts.link_stats().context("an emulated link")?;
    println!("{packets_per_s} packets/s offered, {} missed of {sent}; {}", there.missed, there.rtp);
    Ok(there.missed == 0)
}
