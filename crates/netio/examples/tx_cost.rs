//! What a datagram costs through `KernelTx`, against a bare sendmmsg loop in the same run.
//!
//! `cargo run --release -p millrace-netio --example tx_cost [rounds]`
//!
//! As root it sends across a veth pair that cuts and sums in software (tso and tx-udp-segmentation off) into a
//! namespace that drops, and checks the peer's packet count; otherwise on the loopback device into a full socket. The
//! contenders take turns in slots of 40 ms on one CPU; every batch is timed. Printed: p10 and p50 of ns per datagram over
//! all batches, and the median over the rounds of (KernelTx p50 / raw p50) within a round.
#[path = "../tests/support/mod.rs"]
mod support;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use millrace_core::seam::{Dest, PacketTx, Payload, SendOutcome, Transmit};
use millrace_netio::null::SliceBatch;
use millrace_netio::{GsoMode, KernelTx};
use support::{Wire, patched, sender, wire};

const SEGMENT: usize = 1328;
const BURSTS: [usize; 5] = [1, 2, 4, 8, 44];
/// Datagrams in a batch, about; entries are this divided by the burst, at most 64.
const BATCH_DATAGRAMS: usize = 176;
const SLOT: Duration = Duration::from_millis(40);
/// Film that the bursts are taken from, one after the other: larger than the second-level cache.
const FILM_BYTES: usize = 64 << 20;

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(15);
    let net = Wire::new();
    let (dest, where_) = match &net {
        Some(net) => {
            net.server.ip("route add 10.78.0.0/16 via 10.77.0.2");
            drop_at_the_door(net);
            ("10.78.0.1", "veth, segmentation and checksums in software")
        }
        None => ("127.0.0.1", "loopback"),
    };
    pin();
    let sink = UdpSocket::bind("127.0.0.1:0").expect("a sink");
    let port = if net.is_some() { 6000 } else { sink.local_addr().expect("bound").port() };
    let dests: Vec<SocketAddr> = (0..64)
        .map(|n| {
            SocketAddr::new(dest.parse().expect("address"), if net.is_some() { port + 2 * n } else { port })
        })
        .collect();
    let (mut tx, raw) = inside(net.as_ref(), || {
        let raw = UdpSocket::bind("0.0.0.0:0").expect("a raw sender");
        rustix::net::sockopt::set_socket_send_buffer_size(&raw, 4 << 20).expect("a large send buffer");
        (sender(GsoMode::Auto, 0), raw)
    });
    let film = support::pattern(1, FILM_BYTES);
    println!("{where_}; {rounds} rounds; {SEGMENT}-byte datagrams; ns per datagram");
    println!("burst   raw p10   p50   wire p10   p50   patched p10   p50   wire/raw   patched/raw");
    for burst in BURSTS {
        let mut table = Contest::new(burst, &film, &dests);
        let before = net.as_ref().map(received);
        table.run(rounds, &mut tx, &raw);
        if let (Some(net), Some(before)) = (&net, before) {
            // Other packets (neighbour discovery) may come on top.
            let got = received(net) - before;
            assert!((table.sent..table.sent + 100).contains(&got), "sent {}, the peer got {got}", table.sent);
        }
        table.print();
    }
}

/// The receiving half of a veth pair runs on the sender's CPU: let it do as little as can be. One BPF instruction returns
/// TC_ACT_SHOT for every packet; without it the peer's stack drops them for want of a route, at a higher price.
fn drop_at_the_door(net: &Wire) {
    net.viewers.must("tc qdisc add dev vb clsact");
    let filter = ["tc", "filter", "add", "dev", "vb", "ingress", "bpf", "da", "bytecode", "1,6 0 0 2,"];
    if !net.viewers.command_of(&filter).status.success() {
        println!("no tc filter with BPF here: the peer's stack drops the packets");
    }
}

/// Packets that the peer's device has received.
fn received(net: &Wire) -> u64 {
    net.viewers.must("cat /sys/class/net/vb/statistics/rx_packets").trim().parse().expect("a number")
}

fn inside<R: Send>(net: Option<&Wire>, f: impl FnOnce() -> R + Send) -> R {
    match net {
        Some(net) => net.server.inside(f),
        None => f(),
    }
}

/// Onto the last CPU that we may use, so that all contenders share its noise.
fn pin() {
    let allowed = rustix::thread::sched_getaffinity(None).expect("affinity");
    let last = (0..1024).rev().find(|cpu| allowed.is_set(*cpu)).expect("a CPU");
    let mut one = rustix::thread::CpuSet::new();
    one.set(last);
    rustix::thread::sched_setaffinity(None, &one).expect("pinning");
}

#[derive(Clone, Copy, PartialEq)]
enum Contender {
    Raw,
    Wire,
    Patched,
}

struct Contest<'a> {
    burst: usize,
    film: &'a [u8],
    at: usize,
    dests: &'a [SocketAddr],
    headers: Vec<u8>,
    entries: usize,
    sent: u64,
    /// Samples in ns per datagram of each contender, and the medians of each round.
    samples: [Vec<f64>; 3],
    medians: [Vec<f64>; 3],
}

impl<'a> Contest<'a> {
    fn new(burst: usize, film: &'a [u8], dests: &'a [SocketAddr]) -> Self {
        let entries = (BATCH_DATAGRAMS / burst).clamp(1, 64);
        let headers = support::pattern(2, 12 * burst);
        Self {
            burst,
            film,
            at: 0,
            dests,
            headers,
            entries,
            sent: 0,
            samples: Default::default(),
            medians: Default::default(),
        }
    }

    fn run(&mut self, rounds: usize, tx: &mut KernelTx, raw: &UdpSocket) {
        let mut raw = RawLoop::new(raw, self.dests, self.entries, self.burst);
        for round in 0..rounds {
            // Another order each round: nobody always comes behind the same neighbour.
            let mut order = [Contender::Raw, Contender::Wire, Contender::Patched];
            order.rotate_left(round % 3);
            for contender in order {
                let mut slot = Vec::new();
                let end = Instant::now() + SLOT;
                while Instant::now() < end {
                    let bursts: Vec<&[u8]> = (0..self.entries).map(|_| self.next()).collect();
                    slot.push(self.batch(contender, &bursts, tx, &mut raw));
                }
                self.medians[contender as usize].push(quantile(&mut slot.clone(), 0.5));
                self.samples[contender as usize].extend(slot);
            }
        }
    }

    /// The next burst of the film.
    fn next(&mut self) -> &'a [u8] {
        let length = self.burst * SEGMENT;
        if self.at + length > self.film.len() {
            self.at = 0;
        }
        self.at += length;
        &self.film[self.at - length..self.at]
    }

    /// Sends one batch; ns per datagram.
    fn batch(
        &mut self,
        contender: Contender,
        bursts: &[&[u8]],
        tx: &mut KernelTx,
        raw: &mut RawLoop<'_>,
    ) -> f64 {
        let dest = |n: usize| Dest::Udp { rtp: self.dests[n], rtcp: self.dests[n] };
        let batch: Vec<Transmit<'_>> = bursts
            .iter()
            .enumerate()
            .map(|(n, bytes)| match contender {
                Contender::Patched => patched(n as u32, dest(n), &self.headers, bytes, SEGMENT),
                _ => wire(n as u32, dest(n), bytes, SEGMENT),
            })
            .collect();
        let mut outcomes = [SendOutcome::Closed { errno: 0 }; 64];
        let start = Instant::now();
        match contender {
            Contender::Raw => raw.send(&batch),
            _ => tx.send(&SliceBatch(&batch), &mut outcomes[..batch.len()]),
        }
        let elapsed = start.elapsed();
        if contender != Contender::Raw {
            assert!(outcomes[..batch.len()].iter().all(|o| *o == SendOutcome::Sent), "{outcomes:?}");
        }
        self.sent += (self.burst * batch.len()) as u64;
        elapsed.as_nanos() as f64 / (self.burst * batch.len()) as f64
    }

    fn print(&mut self) {
        let ratio = |a: &[f64], b: &[f64]| {
            quantile(&mut a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>(), 0.5)
        };
        let wire = ratio(&self.medians[1], &self.medians[0]);
        let patched = ratio(&self.medians[2], &self.medians[0]);
        let [raw10, raw50, wire10, wire50, patched10, patched50] =
            [(0, 0.1), (0, 0.5), (1, 0.1), (1, 0.5), (2, 0.1), (2, 0.5)]
                .map(|(who, q)| quantile(&mut self.samples[who], q));
        println!(
            "{:5}   {raw10:7.0} {raw50:5.0}   {wire10:8.0} {wire50:5.0}   {patched10:11.0} {patched50:5.0}   {wire:8.3}   {patched:11.3}",
            self.burst
        );
    }
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q) as usize]
}

/// The least that a program can do: arrays made once, only the payload pointers change.
struct RawLoop<'a> {
    socket: &'a UdpSocket,
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    _names: Vec<libc::sockaddr_in>,
    _control: Vec<[u64; 3]>,
}

impl<'a> RawLoop<'a> {
    fn new(socket: &'a UdpSocket, dests: &[SocketAddr], entries: usize, burst: usize) -> Self {
        let mut names: Vec<libc::sockaddr_in> = dests
            .iter()
            .map(|dest| {
                let std::net::IpAddr::V4(ip) = dest.ip() else { panic!("IPv4 only") };
                libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: dest.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                    sin_zero: [0; 8],
                }
            })
            .collect();
        let null = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut parts = vec![null; entries];
        // A cmsghdr: length 18, level SOL_UDP, type UDP_SEGMENT; then the segment's length.
        let kind = (libc::SOL_UDP as u64) | (libc::UDP_SEGMENT as u64) << 32;
        let mut control = vec![[18, kind, SEGMENT as u64]; entries];
        let headers = (0..entries)
            .map(|n| {
                // SAFETY: all-zero bytes are a valid mmsghdr: integers and null pointers.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_name = (&raw mut names[n]).cast();
                header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
                header.msg_hdr.msg_iov = &raw mut parts[n];
                header.msg_hdr.msg_iovlen = 1;
                if burst > 1 {
                    header.msg_hdr.msg_control = control[n].as_mut_ptr().cast();
                    header.msg_hdr.msg_controllen = 24;
                }
                header
            })
            .collect();
        Self { socket, headers, parts, _names: names, _control: control }
    }

    fn send(&mut self, batch: &[Transmit<'_>]) {
        for (part, entry) in self.parts.iter_mut().zip(batch) {
            let Payload::Wire { bytes, .. } = entry.payload else { panic!("wire only") };
            *part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        }
        let (fd, count) = (self.socket.as_raw_fd(), batch.len() as u32);
        // SAFETY: the headers point to names, parts and control messages that this value owns and that have not moved
        // since (vectors keep their heap memory), the parts to bytes borrowed by `batch`; sendmmsg only reads them.
        let sent = unsafe { libc::sendmmsg(fd, self.headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
        assert_eq!(sent, count as i32, "{}", std::io::Error::last_os_error());
    }
}
