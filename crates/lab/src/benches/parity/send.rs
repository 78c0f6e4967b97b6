//! What sending an FEC packet costs beside sending a data packet: the same device, the same egress path, bursts of the same length.
//! An FEC packet carries sixteen bytes more and is otherwise a packet that lies ready in the cache, like any other.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::ensure;
use millrace_core::ids::StreamId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, FEC_HEADER_BYTES, RTP_HEADER_BYTES};
use millrace_core::seam::{Dest, PacketTx, Payload, SendOutcome, Transmit};
use millrace_netio::null::SliceBatch;
use millrace_netio::{GsoMode, KernelTx, KernelTxConfig, bind_pair};

use super::track;
use crate::benches::tx::{DropSink, NOWHERE};
use crate::frame::{ContenderSlot, Contest, ContestOptions, ContestResult, Noise, Options, Promise, Report};
use crate::netns::TwoHosts;

const DATA_BYTES: usize = RTP_HEADER_BYTES + DEFAULT_PACKET_BYTES;
const FEC_BYTES: usize = DATA_BYTES + FEC_HEADER_BYTES;
/// Datagrams in a batch, about; entries are this divided by the burst, at most 64.
const BATCH_DATAGRAMS: usize = 176;
const MOST_ENTRIES: usize = 64;
const DATA: &str = "a data packet";
const FEC: &str = "an FEC packet";

/// All contests; needs what `bench tx` needs.
pub(super) fn run(options: &Options, report: &mut Report) -> anyhow::Result<Noise> {
    let bursts = options.pick(vec![1], vec![1, 8], vec![1, 2, 4, 8, 16]);
    let hosts = TwoHosts::new(false)?;
    let drop_sink = DropSink::build(&hosts)?;
    let run_all = || -> anyhow::Result<(u64, Noise)> {
        let (mut missing, mut noise) = (0, Noise::quiet());
        let tx = open()?;
        for burst in bursts {
            let before = drop_sink.received()?;
            let (result, sent) = compare(&tx, burst, options)?;
            missing += drop_sink.missing(before, sent)?;
            report.rows.extend(result.rows("datagram").into_iter().map(|mut row| {
                row.label = format!("sending, bursts of {burst}: {}", row.label);
                row
            }));
            noise = noise.and(result.noise);
        }
        let before = drop_sink.received()?;
        let (result, sent) = track::run(&tx, options, report)?;
        missing += drop_sink.missing(before, sent)?;
        Ok((missing, noise.and(result.noise)))
    };
    let (missing, noise) = hosts.on_client(run_all)??;
    let missing = Promise::at_most("parity-fec-missing", missing as f64, 0.0, "datagrams");
    report.promises.push(missing);
    Ok(noise)
}

fn open() -> anyhow::Result<RefCell<KernelTx>> {
    let first = 20_000 + (std::process::id() % 20_000) as u16;
    let v4 = bind_pair(IpAddr::V4(Ipv4Addr::UNSPECIFIED), first, u16::MAX - 1)?;
    let config = KernelTxConfig { v4: Some(v4), v6: None, gso: GsoMode::Auto, conns: 0 };
    Ok(RefCell::new(KernelTx::new(config)?))
}

/// One length of burst; also how many datagrams were sent in all.
fn compare(tx: &RefCell<KernelTx>, burst: usize, options: &Options) -> anyhow::Result<(ContestResult, u64)> {
    let entries = (BATCH_DATAGRAMS / burst).clamp(1, MOST_ENTRIES);
    let sent = Cell::new(0);
    let megabytes = options.pick(2, 64, 64);
    let mut contest = Contest::new(format!("sending, bursts of {burst}"));
    for (name, segment) in [(DATA, DATA_BYTES), (FEC, FEC_BYTES)] {
        let packets: Vec<u8> = (0..megabytes << 20).map(|at: usize| (at % 251) as u8).collect();
        let (sent, mut next) = (&sent, 0);
        contest.contender(name, move |slot: &mut ContenderSlot| {
            while slot.goes_on() {
                let transmit = |n: usize| {
                    let to = SocketAddr::new(NOWHERE.into(), 6_000 + 2 * n as u16);
                    let burst_bytes = burst * segment;
                    let at = (next + n) % (packets.len() / burst_bytes) * burst_bytes;
                    Transmit {
                        stream: StreamId { index: n as u32, generation: 0 },
                        dest: Dest::udp(to, None),
                        payload: Payload::Wire { bytes: &packets[at..at + burst_bytes], segment },
                    }
                };
                let batch: Vec<Transmit<'_>> = (0..entries).map(transmit).collect();
                next += entries;
                let mut outcomes = [SendOutcome::Closed { errno: 0 }; MOST_ENTRIES];
                let outcomes = &mut outcomes[..entries];
                let mut tx = tx.borrow_mut();
                slot.batch((burst * entries) as u64, || tx.send(&SliceBatch(&batch), outcomes));
                ensure!(outcomes.iter().all(|o| *o == SendOutcome::Sent), "not all was sent: {outcomes:?}");
                sent.set(sent.get() + (burst * entries) as u64);
            }
            Ok(())
        });
    }
    let result = contest.run(&ContestOptions::from_options(options))?;
    Ok((result, sent.get()))
}
