//! The paper's Figure 4: processor time of a whole send, by `getrusage`, including the preparation
//! for the viewer.
//!
//! Twice: into a device that only counts, which is what framing itself costs when nothing is copied; and into a TUN device, where each
//! packet is a system call with headers and payload apart, which the kernel gathers into a buffer of its own. The paper's path
//! into the network card copied nothing, so its figure lies between the two.

use std::fs::File;
use std::hint::black_box;
use std::io::IoSlice;
use std::process::Command;
use std::time::Duration;

use crate::framing::{Connection, VERSIONS, Version, full_fast, v4};
use anyhow::{Context, ensure};
use millrace_core::wire::frame::{ETHERNET_HEADER_BYTES, MAX_HEADER_BYTES};
use millrace_netio::tun::Tun;

use super::stream::{PacketStream, VIEWER, connection_to};
use crate::frame::ticks::thread_cpu_time;
use crate::frame::{Options, Row, stats};
use crate::netns::{add_namespace, inside, ip, namespace_path, unique_name};

/// Cost of a version's sends, one line per size and device.
pub(super) struct SendCostLine {
    pub(super) device: &'static str,
    pub(super) packet_bytes: usize,
    pub(super) name: &'static str,
    /// Median of the runs.
    pub(super) cpu_ms: f64,
    /// In which all of the stream was framed as a traditional stack does.
    pub(super) full_ms: f64,
}

impl SendCostLine {
    pub(super) fn row(&self) -> Row {
        let label = format!("figure 4, {}, {} KB: {}", self.device, self.packet_bytes >> 10, self.name);
        Row::new(label).with("processor time", self.cpu_ms, "ms").with(
            "saved of full",
            (1.0 - self.cpu_ms / self.full_ms) * 100.0,
            "%",
        )
    }
}

/// The kernel's counts of the packets that it checked.
pub(super) struct KernelCheckCounts {
    pub(super) sent: u64,
    /// Not accepted: damaged headers or checksums, or lost.
    pub(super) bad: u64,
}

const NULL: &str = "null device";
const TUN: &str = "TUN device";
/// A closed port and an address that is not the machine's: the kernel looks at IP and drops the packet.
const NOBODY: [u8; 4] = [10, 99, 0, 99];

fn versions() -> Vec<(&'static str, Version)> {
    let mut all = VERSIONS.to_vec();
    all.insert(1, ("full, fastest sum", full_fast));
    all
}

/// Sends into the device that only counts.
pub(super) fn into_null(
    stream: &PacketStream<'_>,
    stream_bytes: usize,
    options: &Options,
) -> anyhow::Result<Vec<SendCostLine>> {
    runs(NULL, stream, options, |version| {
        let connection = connection_to(NOBODY)?;
        let mut device = Null::default();
        send(stream, stream_bytes, &connection, version, |headers, payload| {
            device.take(headers, payload);
            Ok(())
        })?;
        black_box(device);
        Ok(())
    })
}

/// Counts the descriptors handed to it: one for the headers and one for the payload.
#[derive(Default)]
struct Null {
    frames: u64,
    bytes: u64,
}

impl Null {
    fn take(&mut self, headers: &[u8], payload: &[u8]) {
        self.frames += 1;
        self.bytes += (headers.len() + payload.len()) as u64;
        black_box((headers.as_ptr(), payload.as_ptr()));
    }
}

/// Frames the whole stream with one version and hands each packet to `take`.
fn send(
    stream: &PacketStream<'_>,
    stream_bytes: usize,
    connection: &Connection,
    version: Version,
    mut take: impl FnMut(&[u8], &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let packets = (stream_bytes / stream.packet_bytes).max(1);
    let mut out = [[0; MAX_HEADER_BYTES]; 64];
    for number in 0..packets {
        let datagram = stream.datagram(number);
        let room = &mut out[number % 64];
        let written = version(connection, &datagram, room);
        take(&room[..written], datagram.payload)?;
    }
    Ok(packets as u64)
}

/// Every version in turns, several times; medians.
fn runs(
    device: &'static str,
    stream: &PacketStream<'_>,
    options: &Options,
    mut send: impl FnMut(Version) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<SendCostLine>> {
    let all = versions();
    let mut times = vec![Vec::new(); all.len()];
    // The stream is sent until a run is long beside the step of getrusage, which is a tick of the kernel on many machines: 4 ms.
    let least = options.pick(Duration::ZERO, Duration::from_millis(60), Duration::from_millis(200));
    let rounds = options.runs.unwrap_or(options.pick(1, 3, 5));
    for round in 0..=rounds {
        options.say(&format!(
            "whole sends into the {device}, {} KB: round {round} of {rounds}",
            stream.packet_bytes >> 10
        ));
        for (&(_, version), times) in all.iter().zip(&mut times) {
            options.go_on()?;
            let (mut used, mut sends) = (Duration::ZERO, 0);
            let before = thread_cpu_time();
            while sends == 0 || used < least {
                send(version)?;
                sends += 1;
                used = thread_cpu_time().saturating_sub(before);
            }
            // Round 0 warms up.
            if round > 0 {
                times.push(used.as_secs_f64() * 1000.0 / f64::from(sends));
            }
        }
    }
    let full_ms = stats::median(&times[0]);
    let line = |((name, _), times): ((&'static str, _), Vec<f64>)| SendCostLine {
        device,
        packet_bytes: stream.packet_bytes,
        name,
        cpu_ms: stats::median(&times),
        full_ms,
    };
    Ok(all.into_iter().zip(times).map(line).collect())
}

/// A network namespace of our own; gone with everything in it when dropped.
struct Namespace(String);

impl Namespace {
    fn new() -> anyhow::Result<Self> {
        let name = unique_name("n");
        add_namespace(&name)?;
        Ok(Self(name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Sends into a TUN device in a namespace of its own; then `checked` packets that the kernel verifies.
pub(super) fn into_tun(
    streams: &[PacketStream<'_>],
    stream_bytes: usize,
    checked: u64,
    options: &Options,
) -> anyhow::Result<(Vec<SendCostLine>, KernelCheckCounts)> {
    let namespace = Namespace::new()?;
    let path = namespace_path(&namespace.0);
    let file = File::open(&path).with_context(|| format!("{}: open the namespace", path.display()))?;
    // The device belongs to the namespace of the thread that makes it, whoever writes to it later; so do the counters.
    let (tun, snmp) = inside(&file, || {
        let tun = Tun::open("mill0")?;
        ip(None, "link set mill0 up")?;
        ip(None, "addr add 10.99.0.1/24 dev mill0")?;
        let snmp = File::open("/proc/thread-self/net/snmp").context("/proc/net/snmp")?;
        anyhow::Ok((tun, snmp))
    })??;
    let mut lines = Vec::new();
    for stream in streams {
        lines.extend(runs(TUN, stream, options, |version| {
            let connection = connection_to(NOBODY)?;
            send(stream, stream_bytes, &connection, version, |headers, payload| write(&tun, headers, payload))
                .map(drop)
        })?);
    }
    let verdict = verify(streams, checked, &tun, &snmp, options)?;
    drop(tun);
    Ok((lines, verdict))
}

/// One packet, without its Ethernet header.
fn write(tun: &Tun, headers: &[u8], payload: &[u8]) -> anyhow::Result<()> {
    let parts = [IoSlice::new(&headers[ETHERNET_HEADER_BYTES..]), IoSlice::new(payload)];
    let written = rustix::io::writev(tun, &parts).context("write into the TUN device")?;
    ensure!(
        written == headers.len() - ETHERNET_HEADER_BYTES + payload.len(),
        "the TUN device took {written} bytes of a packet"
    );
    Ok(())
}

/// Sends to a port of the machine without a listener: the kernel verifies both checksums, counts
/// the packet under "no port" if they are right, under an error if not, and drops it.
fn verify(
    streams: &[PacketStream<'_>],
    packets: u64,
    tun: &Tun,
    snmp: &File,
    options: &Options,
) -> anyhow::Result<KernelCheckCounts> {
    options.say(&format!("{packets} packets that the kernel verifies"));
    let connection = connection_to(VIEWER)?;
    let before = NamespaceCounters::read(snmp)?;
    let mut room = [0; MAX_HEADER_BYTES];
    for number in 0..packets as usize {
        if number % 10_000 == 0 {
            options.go_on()?;
        }
        let datagram = streams[number % streams.len()].datagram(number);
        let written = v4(&connection, &datagram, &mut room);
        write(tun, &room[..written], datagram.payload)?;
    }
    let after = NamespaceCounters::read(snmp)?;
    let accepted = after.no_ports - before.no_ports;
    let refused = (after.udp_errors - before.udp_errors) + (after.ip_errors - before.ip_errors);
    Ok(KernelCheckCounts { sent: packets, bad: packets.saturating_sub(accepted).max(refused) })
}

/// The kernel's counters of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamespaceCounters {
    no_ports: u64,
    udp_errors: u64,
    ip_errors: u64,
}

impl NamespaceCounters {
    fn read(mut snmp: &File) -> anyhow::Result<Self> {
        use std::io::{Read, Seek, SeekFrom};
        let mut text = String::new();
        snmp.seek(SeekFrom::Start(0))?;
        snmp.read_to_string(&mut text).context("/proc/net/snmp")?;
        Self::parse(&text).context("/proc/net/snmp lacks counters of IP or UDP")
    }

    /// Pairs of lines: names, then values.
    fn parse(text: &str) -> Option<Self> {
        let value = |protocol: &str, name: &str| {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
            let at = lines.next()?.split_whitespace().position(|other| other == name)?;
            lines.next()?.split_whitespace().nth(at)?.parse().ok()
        };
        Some(Self {
            no_ports: value("Udp", "NoPorts")?,
            udp_errors: value("Udp", "InErrors")?,
            ip_errors: value("Ip", "InHdrErrors")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "Ip: Forwarding InHdrErrors\nIp: 2 7\nUdp: InDatagrams NoPorts InErrors\nUdp: 1 2 3\n";
        assert_eq!(
            NamespaceCounters::parse(text),
            Some(NamespaceCounters { no_ports: 2, udp_errors: 3, ip_errors: 7 })
        );
        assert_eq!(NamespaceCounters::parse("Ip: InHdrErrors\nIp: x\n"), None);
        assert_eq!(NamespaceCounters::parse(""), None);
    }
}
