//! Cost of a datagram through the kernel backend, beside the plain sendmmsg loop with segmentation
//! offload.
//!
//! Both send the same media across a veth pair that cuts and sums in software, into a host that
//! drops everything: the receiving half of a veth pair runs on the sender's core, so it is kept
//! short. The first batches go to a socket instead, and the bytes that arrive there must be the
//! same for all contenders; afterwards the peer's device counts the arrivals.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, ensure};
use millrace_core::ids::StreamId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, RTP_HEADER_BYTES};
use millrace_core::seam::{Dest, PacketTx, Payload, SendOutcome, Transmit};
use millrace_netio::null::SliceBatch;
use millrace_netio::{GsoMode, KernelTx, KernelTxConfig, bind_pair};

use crate::frame::{
    Axis, Bench, ContenderSlot, Contest, ContestOptions, ContestResult, Interval, Need, Noise, Options, Plot,
    PlotKind, Point, Promise, Report, TargetBound,
};
use crate::netns::{SERVER_IP, TwoHosts};
use crate::raw_send::{RawMessage, RawSender};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "tx",
    shows: "ns a datagram of our kernel backend beside the plain sendmmsg loop with segmentation offload",
    not_for: "the speed of a network card: a veth pair cuts and sums in software; read the ratios",
    options: &["runs"],
    targets: &["tx-ratio", "tx-missing"],
    needs: &[
        Need::Root,
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ip", "apt-get install iproute2"),
        Need::Program("tc", "apt-get install iproute2"),
    ],
    run,
};

const SEGMENT: usize = RTP_HEADER_BYTES + DEFAULT_PACKET_BYTES;
/// Datagrams in a batch, about; entries are this divided by the burst, at most 64.
const BATCH_DATAGRAMS: usize = 176;
const MOST_ENTRIES: usize = 64;
/// Address where nothing arrives: the sink of the receiving host drops packets to it.
pub(super) const NOWHERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
const RATIO_BOUND: f64 = 1.25;
const RAW: &str = "raw loop";
const SHARED: &str = "backend, shared headers";
const OWN: &str = "backend, headers per viewer";

fn run(options: &Options) -> anyhow::Result<Report> {
    let bursts = options.pick(vec![1, 8], vec![1, 8, 44], vec![1, 2, 4, 8, 16, 44]);
    let media = media(options.pick(4 << 20, 64 << 20, 64 << 20));
    let hosts = TwoHosts::new(false)?;
    let drop_sink = DropSink::build(&hosts)?;
    let sink =
        hosts.inside_server(|| UdpSocket::bind((SERVER_IP, 0)))?.context("a socket on the receiving host")?;
    // Room for the largest batch, wherever net.core.rmem_max stands.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&sink, 16 << 20)?;
    sink.set_read_timeout(Some(Duration::from_secs(5)))?;
    let run_all = || -> anyhow::Result<Report> {
        let mut report = Report::new("tx");
        let (mut noise, mut worst, mut missing) = (Noise::quiet(), Interval::from(0.0), 0);
        let mut lines =
            [RAW, SHARED, OWN].map(|name| ContenderCurve { name, costs: Vec::new(), ratios: Vec::new() });
        for burst in bursts {
            let before = drop_sink.received()?;
            let (result, sent) = compare(burst, &media, &sink, options)?;
            missing += drop_sink.missing(before, sent)?;
            write_up(burst, &result, &mut report, &mut lines);
            worst = [SHARED, OWN].map(|name| result.ratio(name, RAW)).into_iter().fold(worst, Interval::max);
            noise = noise.and(result.noise);
        }
        draw(lines, &mut report);
        report.promises.push(Promise::at_most("tx-ratio", worst, RATIO_BOUND, ""));
        report.promises.push(Promise::at_most("tx-missing", missing as f64, 0.0, "datagrams"));
        report.noise = Some(noise);
        Ok(report)
    };
    hosts.on_client(run_all)?
}

/// Points of one contender: its cost at every burst, and its ratio to the raw loop.
struct ContenderCurve {
    name: &'static str,
    costs: Vec<Point>,
    ratios: Vec<Point>,
}

fn write_up(burst: usize, result: &ContestResult, report: &mut Report, lines: &mut [ContenderCurve; 3]) {
    report.rows.extend(result.rows("datagram").into_iter().map(|mut row| {
        row.label = format!("bursts of {burst}: {}", row.label);
        row
    }));
    for (line, c) in lines.iter_mut().zip(&result.contenders) {
        line.costs.push(Point::xy(burst as f64, c.p50).within(c.p10, c.p99));
        line.ratios.push(Point::spread(format!("bursts of {burst}"), c.ratio.low, c.ratio.mid, c.ratio.high));
    }
}

fn draw(lines: [ContenderCurve; 3], report: &mut Report) {
    let (x, y) = (Axis::log("datagrams in a burst", ""), Axis::log("time per datagram, p10 to p99", "ns"));
    let mut costs = Plot::new(PlotKind::Lines, "What a datagram costs", x, y);
    let y = Axis::new("time of the raw loop in the same round, median with its 95 % interval", "times");
    let mut ratios = Plot::new(PlotKind::Spread, "Beside the raw loop", Axis::default(), y);
    for line in lines {
        costs = costs.with(line.name, line.costs);
        if line.name != RAW {
            ratios = ratios.with(line.name, line.ratios);
        }
    }
    report.plots.extend([ratios, costs]);
}

/// One size of burst; also how many datagrams were sent in all.
fn compare(
    burst: usize,
    media: &[u8],
    sink: &UdpSocket,
    options: &Options,
) -> anyhow::Result<(ContestResult, u64)> {
    let entries = (BATCH_DATAGRAMS / burst).clamp(1, MOST_ENTRIES);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, 4 << 20)?;
    let mut raw = RawSender::new(socket, entries);
    let first = 20_000 + (std::process::id() % 20_000) as u16;
    let v4 = bind_pair(IpAddr::V4(Ipv4Addr::UNSPECIFIED), first, u16::MAX - 1)?;
    let config = KernelTxConfig { v4: Some(v4), v6: None, gso: GsoMode::Auto, conns: 0 };
    let tx = std::cell::RefCell::new(KernelTx::new(config)?);
    // Sequence numbers and times of a viewer's own; which ones makes no difference.
    let headers: Vec<u8> = (0..RTP_HEADER_BYTES * burst).map(|n| n as u8).collect();
    let sent = Cell::new(0);
    let stage = BurstContext { burst, entries, media, sink, sent: &sent, checked_at: sink.local_addr()? };

    let mut contest = Contest::new(format!("bursts of {burst}"));
    contest.contender(RAW, |slot| {
        stage.slot(slot, |slot, to, bursts| {
            let segment_bytes = if burst > 1 { SEGMENT as u16 } else { 0 };
            let message = |(n, &bytes)| RawMessage { to: to[n], bytes, segment_bytes };
            let messages: Vec<RawMessage<'_>> = std::iter::zip(0.., bursts).map(message).collect();
            let taken = slot.batch((burst * entries) as u64, || raw.send(&messages))?;
            ensure!(taken == entries, "the kernel took {taken} of {entries} messages");
            Ok(())
        })
    });
    for (name, is_own) in [(SHARED, false), (OWN, true)] {
        let (tx, headers) = (&tx, &headers);
        contest.contender(name, move |slot| {
            stage.slot(slot, |slot, to, bursts| {
                let transmit = |(n, &bytes)| Transmit {
                    stream: StreamId { index: n, generation: 0 },
                    dest: Dest::udp(to[n as usize], None),
                    payload: match is_own {
                        true => Payload::Patched { headers, bytes, segment: SEGMENT },
                        false => Payload::Wire { bytes, segment: SEGMENT },
                    },
                };
                let batch: Vec<Transmit<'_>> = std::iter::zip(0u32.., bursts).map(transmit).collect();
                let mut outcomes = [SendOutcome::Closed { errno: 0 }; MOST_ENTRIES];
                let outcomes = &mut outcomes[..batch.len()];
                let mut tx = tx.borrow_mut();
                slot.batch((burst * entries) as u64, || tx.send(&SliceBatch(&batch), outcomes));
                ensure!(outcomes.iter().all(|o| *o == SendOutcome::Sent), "not all was sent: {outcomes:?}");
                Ok(())
            })
        });
    }
    for name in [SHARED, OWN] {
        contest.goal(name, RAW, TargetBound::AtMost(RATIO_BOUND));
    }
    let result = contest.run(&ContestOptions::from_options(options))?;
    Ok((result, sent.get()))
}

/// Settings that all contenders of one burst size share.
#[derive(Clone, Copy)]
struct BurstContext<'a> {
    burst: usize,
    entries: usize,
    media: &'a [u8],
    sink: &'a UdpSocket,
    sent: &'a Cell<u64>,
    checked_at: SocketAddr,
}

impl<'a> BurstContext<'a> {
    /// Runs a slot of a contender that sends batches of bursts. All contenders send the media from
    /// its beginning.
    fn slot(
        &self,
        slot: &mut ContenderSlot,
        mut send: impl FnMut(&mut ContenderSlot, &[SocketAddr], &[&'a [u8]]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let nowhere = |n| SocketAddr::new(NOWHERE.into(), 6_000 + 2 * n as u16);
        let to: Vec<SocketAddr> =
            (0..self.entries).map(|n| if slot.is_check() { self.checked_at } else { nowhere(n) }).collect();
        let mut bursts = self.media.chunks_exact(self.burst * SEGMENT).cycle();
        while slot.goes_on() {
            let batch: Vec<&[u8]> = bursts.by_ref().take(self.entries).collect();
            send(slot, &to, &batch)?;
            self.sent.set(self.sent.get() + (self.burst * self.entries) as u64);
            if slot.is_check() {
                let arrived = self.arrived()?;
                slot.produced(arrived);
            }
        }
        Ok(())
    }

    /// Hash of a batch as it arrives: lengths and bytes behind the headers, which may be a viewer's own.
    fn arrived(&self) -> anyhow::Result<u64> {
        let mut datagram = [0; 2048];
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for n in 0..self.burst * self.entries {
            let length = self
                .sink
                .recv(&mut datagram)
                .with_context(|| format!("datagram {n} of a batch did not arrive"))?;
            ensure!(length > RTP_HEADER_BYTES, "a datagram of {length} bytes arrived");
            let bytes =
                (length as u16).to_be_bytes().into_iter().chain(datagram[RTP_HEADER_BYTES..length].to_vec());
            hash = bytes.fold(hash, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        }
        Ok(hash)
    }
}

/// The way into the receiving host: known to its neighbour, shut for one address.
pub(super) struct DropSink<'a>(&'a TwoHosts);

impl<'a> DropSink<'a> {
    pub(super) fn build(hosts: &'a TwoHosts) -> anyhow::Result<Self> {
        let (s, c) = (hosts.server.as_str(), hosts.client.as_str());
        // Known neighbours: nothing waits for an address while it is measured.
        let mac = "02:00:00:77:00:01";
        must("ip", &["-n", s, "link", "set", "vs", "address", mac])?;
        for ip in [SERVER_IP, &NOWHERE.to_string()] {
            must("ip", &["-n", c, "neigh", "replace", ip, "lladdr", mac, "dev", "vc", "nud", "permanent"])?;
        }
        must("tc", &["-n", s, "qdisc", "add", "dev", "vs", "clsact"])?;
        // ld [30] (where IPv4 packets go); jeq NOWHERE; then TC_ACT_SHOT, else go on.
        let code = format!("4,32 0 0 30,21 0 1 {},6 0 0 2,6 0 0 4294967295", u32::from(NOWHERE));
        let filter = ["-n", s, "filter", "add", "dev", "vs", "ingress", "protocol", "ip"];
        must("tc", &[&filter[..], &["bpf", "da", "bytecode", &code]].concat())?;
        Ok(Self(hosts))
    }

    /// Packets that the receiving host's device has counted.
    pub(super) fn received(&self) -> anyhow::Result<u64> {
        let file = "/sys/class/net/vs/statistics/rx_packets";
        let text = must("ip", &["netns", "exec", &self.0.server, "cat", file])?;
        text.trim().parse().with_context(|| format!("{file}: not a number: {text}"))
    }

    /// Of `sent` packets since the device had counted `before`, those that it has not counted. Others may come on top (neighbour
    /// discovery).
    pub(super) fn missing(&self, before: u64, sent: u64) -> anyhow::Result<u64> {
        missing(sent, || Ok(self.received()? - before))
    }
}

/// Time that a count may stand still before the rest counts as missing. Packets lie in a queue of
/// the kernel until its soft interrupts have a processor, and beside busy programs they wait for
/// one.
const STANDSTILL: Duration = Duration::from_secs(2);

/// Of `sent` packets, those that `received` does not come to count.
pub(super) fn missing(sent: u64, received: impl Fn() -> anyhow::Result<u64>) -> anyhow::Result<u64> {
    let (mut counted, mut moved) = (received()?, StdInstant::now());
    while counted < sent && moved.elapsed() < STANDSTILL {
        std::thread::sleep(Duration::from_millis(10));
        let now = received()?;
        if now > counted {
            (counted, moved) = (now, StdInstant::now());
        }
    }
    Ok(sent.saturating_sub(counted))
}

/// Runs a program to its end and returns its output.
fn must(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("{program}: cannot be started"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", args.join(" "), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Bytes that the bursts are taken from, one after the other; more than the second-level cache holds.
fn media(bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}
