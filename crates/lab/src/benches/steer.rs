//! Cost of the steering program for traffic that it does not steer: UDP and TCP of kernel sockets
//! at other ports, with our program at the receiving interface, with an offload engine there, with
//! a program that passes everything, and with none.
//!
//! Each of the four has a pair of hosts of its own, so nothing is attached or taken away while it is measured. A batch is
//! sent on one host and received to its last byte on the other by the same thread; its time is that of the whole path. The
//! base is the bare program, since any XDP program makes a veth pair work in another manner than none.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, RTP_HEADER_BYTES};
use millrace_core::random::SplitMix;
use millrace_netio::bpf::{Assembler, BpfProgram, InterfaceLink, ProgramType, Reg};
use millrace_netio::xdp::XdpRawConfig;
use millrace_netio::xdp::steer::{Protocol, Steering};
use millrace_offload::toe::{Engine, EngineSettings, XdpDevice};

use crate::frame::{
    Bench, ContenderSlot, Contest, ContestOptions, ContestResult, Interval, Need, Noise, Options, Promise,
    Report, TargetBound,
};
use crate::netns::{CLIENT_IP, SERVER_IP, TwoHosts};
use crate::raw_send::{RawMessage, RawSender};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "steer",
    shows: "what our XDP steering program costs kernel UDP and TCP at other ports, beside a program that does nothing",
    not_for: "the speed of a network card: the hosts are joined by a veth pair; read the ratios",
    options: &["runs"],
    targets: &["steer-udp-rate", "steer-tcp-rate"],
    needs: &[
        Need::Root,
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ip", "apt-get install iproute2"),
    ],
    run,
};

/// Datagrams of a batch: a quarter of the ring of a veth device.
const DATAGRAMS: usize = 64;
/// Smallest payloads show the program's share best, media packets are the rule.
const DATAGRAM_BYTES: [usize; 2] = [64, RTP_HEADER_BYTES + DEFAULT_PACKET_BYTES];
/// Bytes of a TCP batch: fewer than a receive buffer holds, since no thread reads while they are
/// written.
const TCP_BYTES: usize = 64 * 1024;
const KIB: usize = 1024;
const BUFFER_BYTES: usize = 4 << 20;
/// Part of the bare program's rate that must be left.
const RATE_BOUND: f64 = 0.95;
/// Ports configured for steering; the measured traffic uses none of them.
const STEERED: [(Protocol, u16); 3] = [(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Udp, 5004)];
/// The engine's own address; no host sends to it.
const ENGINES_IP: &str = "10.77.0.100";
const PASSES: &str = "program that passes everything";
const OURS: &str = "steering program";
const ENGINE: &str = "offload engine";
const NONE: &str = "no program";

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut rigs =
        [SteerRig::build(PASSES)?, SteerRig::build(OURS)?, SteerRig::build(ENGINE)?, SteerRig::build(NONE)?];
    let mut report = Report::new("steer");
    let (mut noise, mut worst) = (Noise::quiet(), Interval::from(1.0));
    for bytes in DATAGRAM_BYTES {
        let what = format!("UDP, {bytes} bytes");
        let result = compare(&what, options, &mut rigs, |rig, slot| rig.udp(slot, bytes))?;
        worst = worst.min(rate(&result));
        write_up(&what, "datagram", &result, &mut report);
        noise = noise.and(result.noise);
    }
    report.promises.push(Promise::at_least("steer-udp-rate", worst, RATE_BOUND, ""));
    let result = compare("TCP", options, &mut rigs, SteerRig::tcp)?;
    report.promises.push(Promise::at_least("steer-tcp-rate", rate(&result), RATE_BOUND, ""));
    write_up("TCP", "KiB", &result, &mut report);
    report.noise = Some(noise.and(result.noise));
    Ok(report)
}

fn compare(
    what: &str,
    options: &Options,
    rigs: &mut [SteerRig],
    mut work: impl FnMut(&mut SteerRig, &mut ContenderSlot) -> anyhow::Result<()> + Copy,
) -> anyhow::Result<ContestResult> {
    let mut contest = Contest::new(what);
    for rig in rigs {
        contest.contender(rig.name, move |slot| work(rig, slot));
    }
    for name in [OURS, ENGINE] {
        contest.goal(PASSES, name, TargetBound::AtLeast(RATE_BOUND));
    }
    contest.run(&ContestOptions::from_options(options))
}

/// The rate with our program, alone or an engine's, in parts of the rate with the bare one.
fn rate(result: &ContestResult) -> Interval {
    result.ratio(PASSES, OURS).min(result.ratio(PASSES, ENGINE))
}

fn write_up(what: &str, item: &str, result: &ContestResult, report: &mut Report) {
    report.rows.extend(result.rows(item).into_iter().map(|mut row| {
        row.label = format!("{what}: {}", row.label);
        row
    }));
    report.plots.push(result.plot(&format!("{what}: from socket to socket"), item));
}

/// Two hosts, the attachment at the receiving one's interface, and sockets on both.
struct SteerRig {
    name: &'static str,
    udp_tx: RawSender,
    udp_rx: UdpSocket,
    tcp_tx: TcpStream,
    tcp_rx: TcpStream,
    media: Vec<u8>,
    // Before the hosts, whose interface it is at.
    _program: Attached,
    _hosts: TwoHosts,
}

/// The attachment at the interface, for as long as this lives.
enum Attached {
    Nothing,
    Bare { _link: InterfaceLink },
    Ours { _steering: Steering },
    Engine { _engine: Engine },
}

impl Attached {
    fn build(name: &str) -> anyhow::Result<Self> {
        const DEVICE: &str = "vs";
        const XDP_PASS: i32 = 2;
        match name {
            PASSES => {
                let mut code = Assembler::default();
                code.mov(Reg::R0, XDP_PASS);
                code.exit();
                let program = BpfProgram::load("pass", ProgramType::XdpFrags, code)?;
                Ok(Self::Bare { _link: InterfaceLink::attach(&program, DEVICE)? })
            }
            OURS => {
                let steering = Steering::attach(DEVICE)?;
                let own: IpAddr = SERVER_IP.parse()?;
                for (protocol, port) in STEERED {
                    steering.steer(protocol, SocketAddr::new(own, port))?;
                }
                Ok(Self::Ours { _steering: steering })
            }
            ENGINE => {
                let settings = EngineSettings::new(&[(ENGINES_IP.parse()?, 24)]).on_ethernet(DEVICE)?;
                let device = XdpDevice::open(&XdpRawConfig::new(DEVICE), &settings.interface)?;
                Ok(Self::Engine { _engine: Engine::start(&settings, Box::new(device))? })
            }
            _ => Ok(Self::Nothing),
        }
    }
}

impl SteerRig {
    fn build(name: &'static str) -> anyhow::Result<Self> {
        let hosts = TwoHosts::new(false)?;
        let program = hosts.inside_server(|| Attached::build(name))??;
        let udp_rx = hosts.inside_server(|| UdpSocket::bind((SERVER_IP, 0)))?.context("a UDP socket")?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&udp_rx, BUFFER_BYTES)?;
        udp_rx.set_read_timeout(Some(Duration::from_secs(5)))?;
        let udp_tx = hosts.on_client(|| UdpSocket::bind((CLIENT_IP, 0)))?.context("a UDP socket")?;
        rustix::net::sockopt::set_socket_send_buffer_size_force(&udp_tx, BUFFER_BYTES)?;
        let listener = hosts.inside_server(|| TcpListener::bind((SERVER_IP, 0)))?.context("a listener")?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&listener, BUFFER_BYTES)?;
        let to = listener.local_addr()?;
        let tcp_tx = hosts.on_client(|| TcpStream::connect(to))?.context("a connection")?;
        let (tcp_rx, _) = listener.accept()?;
        tcp_tx.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_send_buffer_size_force(&tcp_tx, BUFFER_BYTES)?;
        tcp_rx.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut random = SplitMix(1);
        let media = (0..TCP_BYTES).map(|_| random.next() as u8).collect();
        let udp_tx = RawSender::new(udp_tx, DATAGRAMS);
        Ok(Self { name, udp_tx, udp_rx, tcp_tx, tcp_rx, media, _program: program, _hosts: hosts })
    }

    /// Runs a slot of datagrams of `bytes` bytes.
    fn udp(&mut self, slot: &mut ContenderSlot, bytes: usize) -> anyhow::Result<()> {
        let to = self.udp_rx.local_addr()?;
        let message =
            |n: usize| RawMessage { to, bytes: &self.media[n * 8..n * 8 + bytes], segment_bytes: 0 };
        let messages: Vec<RawMessage<'_>> = (0..DATAGRAMS).map(message).collect();
        let mut datagram = [0; 2048];
        while slot.goes_on() {
            let mut hash = 0;
            let is_check = slot.is_check();
            slot.batch(DATAGRAMS as u64, || -> anyhow::Result<()> {
                let taken = self.udp_tx.send(&messages)?;
                ensure!(taken == DATAGRAMS, "the kernel took {taken} of {DATAGRAMS} datagrams");
                for n in 0..DATAGRAMS {
                    let length = self.udp_rx.recv(&mut datagram).with_context(|| {
                        format!("datagram {n} of a batch of {DATAGRAMS} did not arrive within 5 s")
                    })?;
                    ensure!(length == bytes, "a datagram of {length} bytes arrived, {bytes} were sent");
                    if is_check {
                        hash = hash_of(hash, &datagram[..length]);
                    }
                }
                Ok(())
            })?;
            slot.produced(hash);
        }
        Ok(())
    }

    /// A slot of bytes through a connection.
    fn tcp(&mut self, slot: &mut ContenderSlot) -> anyhow::Result<()> {
        let mut got = vec![0; TCP_BYTES];
        while slot.goes_on() {
            slot.batch((TCP_BYTES / KIB) as u64, || -> anyhow::Result<()> {
                self.tcp_tx.write_all(&self.media).context("write to the connection")?;
                self.tcp_rx.read_exact(&mut got).context("read a batch from the connection within 5 s")
            })?;
            if slot.is_check() {
                slot.produced(hash_of(0, &got));
            }
        }
        Ok(())
    }
}

/// A number that other bytes, or the same in another order, hardly have.
fn hash_of(from: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(from ^ 0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}
