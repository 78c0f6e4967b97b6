//! Cost of receiving a datagram: our devices (`docs/design/0020-receive-side.md`) beside the plain
//! recvmmsg loop.
//!
//! Each contender has its own pair of hosts. One thread sends a batch on one host and receives it
//! to its last datagram on the other, and the kernel's part of receiving runs in the soft
//! interrupts of this thread's core: the thread's time covers everything. One contender receives
//! nothing, since a program at the interface drops incoming packets: its time is the cost of the
//! sender and of the interface, and the time of another contender above it is the core time spent
//! on receiving.

use std::hint::black_box;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, bail, ensure};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES, RTP_HEADER_BYTES};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::random::SplitMix;
use millrace_core::seam::{PacketRx, Protocol, Received};
use millrace_core::time::Instant;
use millrace_netio::KernelRx;
use millrace_netio::bpf::{Assembler, BpfProgram, InterfaceLink, ProgramType, Reg};
use millrace_netio::recv::UdpRxConfig;
use millrace_netio::xdp::steer::Steering;
use millrace_netio::xdp::umem::CHUNK_BYTES;
use millrace_netio::xdp::{XdpRx, XdpRxConfig};

use crate::frame::stats::{Interval, median_interval};
use crate::frame::{
    Bench, ContenderSlot, Contest, ContestOptions, ContestResult, Need, Noise, Options, Promise, Report, Row,
};
use crate::netns::{CLIENT_IP, SERVER_IP, TwoHosts};
use crate::raw_recv::RawReceiver;
use crate::raw_send::{RawMessage, RawSender};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "rx",
    shows: "packets a second that one core receives by KernelRx, with and without GRO, and by XdpRx, beside a plain recvmmsg loop",
    not_for: "the speed of a network card: a veth pair copies each packet for AF_XDP, and checksums are verified in software; read the ratios",
    options: &["runs"],
    targets: &["rx-kernel-rate", "rx-gro-rate", "rx-xdp-rate"],
    needs: &[
        Need::Root,
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ip", "apt-get install iproute2"),
    ],
    run,
};

const DATAGRAM_BYTES: usize = RTP_HEADER_BYTES + DEFAULT_PACKET_BYTES;
/// Datagrams of a train: as many as a message of 64 KiB holds, less than a veth interface does.
const TRAIN: usize = 44;
/// Datagrams of a batch.
const DATAGRAMS: usize = 2 * TRAIN;
/// Messages of one recvmmsg call: as many as our devices take at a time.
const MESSAGES: usize = 64;
const BUFFER_BYTES: usize = 8 << 20;
/// Frames of the AF_XDP device: several batches.
const FRAMES: u32 = 512;
/// How long a batch may take to come.
const TIMEOUT: Duration = Duration::from_secs(5);
const PORT: u16 = 5004;
const DEVICE: &str = "vs";
const SERVER_MAC: &str = "02:00:00:77:00:01";

const PLAIN: &str = "recvmmsg, a plain loop";
const KERNEL: &str = "KernelRx";
const GRO: &str = "KernelRx with GRO";
const XDP: &str = "XdpRx";
const DROPPED: &str = "dropped at the interface";

/// Share of the plain loop's packets a second that must be left, per contender: stamps, drop counts
/// and addresses have their price, trains and rings must earn theirs.
const TARGETS: [(&str, &str, usize, f64); 3] =
    [("rx-kernel-rate", KERNEL, 1, 0.8), ("rx-gro-rate", GRO, TRAIN, 1.0), ("rx-xdp-rate", XDP, TRAIN, 1.0)];

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("rx");
    let mut rigs = Vec::new();
    for name in [PLAIN, KERNEL, GRO, XDP, DROPPED] {
        match ReceiveRig::build(name) {
            Ok(rig) => rigs.push(rig),
            Err(error) if name == XDP => report.rows.push(Row::new(format!("{XDP}: not here: {error:#}"))),
            Err(error) => return Err(error.context(name)),
        }
    }
    let mut noise = Noise::quiet();
    for burst in [1, TRAIN] {
        let what = if burst == 1 { "single datagrams".to_owned() } else { format!("trains of {burst}") };
        let mut contest = Contest::new(what.as_str());
        for rig in &mut rigs {
            contest.contender(rig.name, move |slot| rig.slot(slot, burst));
        }
        let result = contest.run(&ContestOptions::from_options(options))?;
        write_up(&what, burst, &result, &mut report)?;
        noise = noise.and(result.noise);
    }
    report.noise = Some(noise);
    Ok(report)
}

/// Rows of one kind of traffic, and the targets that are judged by it.
fn write_up(what: &str, burst: usize, result: &ContestResult, report: &mut Report) -> anyhow::Result<()> {
    report.rows.extend(result.rows("datagram, sent and received").into_iter().map(|mut row| {
        row.label = format!("{what}: {}", row.label);
        row
    }));
    let rounds = |name: &str| result.of(name).map(|contender| contender.rounds.as_slice());
    let (Some(plain), Some(dropped)) = (rounds(PLAIN), rounds(DROPPED)) else {
        bail!("{what}: the plain loop was not measured");
    };
    for name in [PLAIN, KERNEL, GRO, XDP] {
        let Some(own) = rounds(name) else { continue };
        let (cost, rate) = (above(own, dropped), rate_beside(own, plain, dropped));
        report.rows.push(
            Row::new(format!("{what}: {name}"))
                .with("receiving", cost.mid, "ns/datagram")
                .with("of one core", 1e9 / cost.mid, "datagrams/s")
                .with("of the plain loop's", rate.mid, "")
                .with("low end", rate.low, "")
                .with("high end", rate.high, ""),
        );
        let judged = TARGETS.iter().filter(|(_, of, with, _)| *of == name && *with == burst);
        report.promises.extend(
            judged.map(|(id, _, _, bound)| Promise::at_least(id, rate, *bound, "of the plain loop's")),
        );
    }
    report.plots.push(result.plot(&format!("{what}: sent and received"), "datagram"));
    Ok(())
}

/// Returns the time of a contender above that of dropping in the same round.
fn above(own: &[f64], dropped: &[f64]) -> Interval {
    let differences: Vec<f64> = own.iter().zip(dropped).map(|(own, dropped)| own - dropped).collect();
    median_interval(&differences)
}

/// Returns a contender's packets a second relative to the plain loop, each above the time of
/// dropping in the same round.
fn rate_beside(own: &[f64], plain: &[f64], dropped: &[f64]) -> Interval {
    let ratios =
        own.iter().zip(plain).zip(dropped).map(|((own, plain), dropped)| (plain - dropped) / (own - dropped));
    median_interval(&ratios.collect::<Vec<f64>>())
}

/// How datagrams are received.
enum Receiver {
    Plain(RawReceiver),
    Device {
        // In this order: nothing is steered to a socket that is gone.
        _steering: Option<Steering>,
        rx: Box<dyn PacketRx + Send>,
    },
    /// Not at all.
    Nobody {
        _link: InterfaceLink,
    },
}

/// Two hosts, a sender on one and a receiver on the other.
struct ReceiveRig {
    name: &'static str,
    tx: RawSender,
    rx: Receiver,
    to: SocketAddr,
    media: Vec<u8>,
    begun: StdInstant,
    // Declared last, so it is dropped after everything at its interfaces.
    _hosts: TwoHosts,
}

impl ReceiveRig {
    fn build(name: &'static str) -> anyhow::Result<Self> {
        let hosts = TwoHosts::new(false)?;
        let (s, c) = (hosts.server.as_str(), hosts.client.as_str());
        must(&["-n", s, "link", "set", DEVICE, "address", SERVER_MAC])?;
        must(&[
            "-n",
            c,
            "neigh",
            "replace",
            SERVER_IP,
            "lladdr",
            SERVER_MAC,
            "dev",
            "vc",
            "nud",
            "permanent",
        ])?;
        // A sender on the same machine leaves sums to a device that is never reached; packets from a network have them.
        must(&["netns", "exec", c, "ethtool", "-K", "vc", "tx", "off"])?;
        // Like network cards: packets come by the polling of the driver, which gathers trains for
        // sockets that want them.
        must(&["netns", "exec", s, "ethtool", "-K", DEVICE, "gro", "on"])?;
        let tx = hosts.on_client(|| UdpSocket::bind((CLIENT_IP, 0)))?.context("a socket to send from")?;
        rustix::net::sockopt::set_socket_send_buffer_size_force(&tx, BUFFER_BYTES)?;
        let to = SocketAddr::new(SERVER_IP.parse()?, PORT);
        let rx = hosts.inside_server(|| Receiver::build(name, to))??;
        let mut random = SplitMix(1);
        let media = (0..DATAGRAMS * DATAGRAM_BYTES).map(|_| random.next() as u8).collect();
        let (tx, begun) = (RawSender::new(tx, DATAGRAMS), StdInstant::now());
        Ok(Self { name, tx, rx, to, media, begun, _hosts: hosts })
    }

    /// A slot of batches that are sent in bursts.
    fn slot(&mut self, slot: &mut ContenderSlot, burst: usize) -> anyhow::Result<()> {
        let segment_bytes = if burst > 1 { DATAGRAM_BYTES as u16 } else { 0 };
        let Self { tx, rx, to, media, begun, .. } = self;
        let message = |bytes| RawMessage { to: *to, bytes, segment_bytes };
        let messages: Vec<RawMessage<'_>> = media.chunks_exact(burst * DATAGRAM_BYTES).map(message).collect();
        while slot.goes_on() {
            let is_check = slot.is_check();
            let mut seen = ReceivedBatch { is_check, datagrams: 0, hash: 0 };
            slot.batch(DATAGRAMS as u64, || {
                let taken = tx
                    .send(&messages)
                    .context("send (trains without the device's checksums need Linux 6.11 or later)")?;
                ensure!(taken == messages.len(), "the kernel took {taken} of {} messages", messages.len());
                rx.receive(&mut seen, *begun)
            })?;
            if !matches!(rx, Receiver::Nobody { .. }) {
                slot.produced(seen.hash);
            }
        }
        Ok(())
    }
}

/// A batch as it was when it arrived.
struct ReceivedBatch {
    is_check: bool,
    datagrams: usize,
    hash: u64,
}

impl ReceivedBatch {
    fn take(&mut self, bytes: &[u8]) {
        self.datagrams += 1;
        // A program looks at the data it receives, at least at the header.
        black_box((bytes.len(), bytes.first()));
        if self.is_check {
            let length = (bytes.len() as u64).to_ne_bytes();
            let all = length.iter().chain(bytes);
            self.hash = all.fold(self.hash, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
        }
    }
}

impl Receiver {
    /// On the receiving host.
    fn build(name: &str, local: SocketAddr) -> anyhow::Result<Self> {
        const XDP_DROP: i32 = 1;
        let socket = || -> anyhow::Result<UdpSocket> {
            let socket = UdpSocket::bind(local)?;
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES)?;
            Ok(socket)
        };
        let device = |rx: Box<dyn PacketRx + Send>, steering| Self::Device { _steering: steering, rx };
        match name {
            PLAIN => Ok(Self::Plain(RawReceiver::new(socket()?, MESSAGES, 2048))),
            KERNEL | GRO => {
                let config = UdpRxConfig { batch: MESSAGES, gro: name == GRO, ..UdpRxConfig::default() };
                Ok(device(Box::new(KernelRx::new(socket()?, config)?), None))
            }
            XDP => {
                let extents = FRAMES.div_ceil((EXTENT_BYTES / CHUNK_BYTES) as u32);
                let arena = ExtentArena::with_aside(Box::new(HeapRegion::new(extents as usize)), extents);
                let interface = DEVICE.to_owned();
                let rx = XdpRx::open(&XdpRxConfig {
                    interface,
                    queue: 0,
                    arena,
                    frames: FRAMES,
                    zero_copy: false,
                })?;
                let steering = Steering::attach(DEVICE)?;
                steering.steer(Protocol::Udp, local)?;
                steering.set_socket(0, rx.socket_fd().context("a socket of an AF_XDP device")?)?;
                Ok(device(Box::new(rx), Some(steering)))
            }
            _ => {
                let mut code = Assembler::default();
                code.mov(Reg::R0, XDP_DROP);
                code.exit();
                let program = BpfProgram::load("drop", ProgramType::XdpFrags, code)?;
                Ok(Self::Nobody { _link: InterfaceLink::attach(&program, DEVICE)? })
            }
        }
    }

    /// Receives until a whole batch has come.
    fn receive(&mut self, seen: &mut ReceivedBatch, begun: StdInstant) -> anyhow::Result<()> {
        if matches!(self, Self::Nobody { .. }) {
            return Ok(());
        }
        let mut waiting = None;
        while seen.datagrams < DATAGRAMS {
            let before = seen.datagrams;
            match self {
                Self::Plain(rx) => {
                    rx.receive()?;
                    rx.datagrams().for_each(|bytes| seen.take(bytes));
                }
                Self::Device { rx, .. } => {
                    let now = Instant(1 << 40).plus_ns(begun.elapsed().as_nanos() as u64);
                    rx.receive(now, &mut |received: &Received<'_>| seen.take(received.bytes))
                        .map_err(|gone| anyhow::anyhow!("{gone}"))?;
                }
                Self::Nobody { .. } => {}
            }
            if seen.datagrams == before {
                let since = *waiting.get_or_insert_with(StdInstant::now);
                ensure!(since.elapsed() < TIMEOUT, "{before} of {DATAGRAMS} datagrams came in {TIMEOUT:?}");
            }
        }
        ensure!(seen.datagrams == DATAGRAMS, "{} datagrams came, {DATAGRAMS} were sent", seen.datagrams);
        Ok(())
    }
}

/// Runs `ip` to its end.
fn must(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(args).output().context("ip: cannot be started")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", args.join(" "), errors.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_beside_subtracts_send_cost() {
        let (dropped, plain) = ([1000.0; 5], [1800.0; 5]);
        assert_eq!(above(&plain, &dropped).mid, 800.0);
        assert_eq!(rate_beside(&plain, &plain, &dropped).mid, 1.0);
        // Half of the receiving, though nine tenths of the whole time.
        assert_eq!(rate_beside(&[1400.0; 5], &plain, &dropped).mid, 2.0);
        assert_eq!(rate_beside(&[2600.0; 5], &plain, &dropped).mid, 0.5);
    }

    #[test]
    fn targets_match_those_of_bench() {
        assert_eq!(TARGETS.map(|(id, ..)| id), BENCH.targets);
    }
}
