//! Media in memory, two hosts, a sink that drops, and whose turn it is.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_core::ids::TitleRef;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES, RTP_HEADER_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, Lease};
use millrace_core::random::SplitMix;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_offload::hugepage::PageRegion;

use crate::frame::ContenderSlot;
use crate::netns::{CLIENT_IP, SERVER_IP, TwoHosts};
use crate::raw_loops::ViewerDatagrams;

/// Length of a datagram.
pub(super) const SEGMENT: usize = RTP_HEADER_BYTES + DEFAULT_PACKET_BYTES;
/// Viewers, each with an address of its own.
pub(super) const VIEWERS: usize = 256;
/// Datagrams in a batch, about; entries are this divided by the burst, at most 64.
const BATCH_DATAGRAMS: usize = 176;
const MOST_ENTRIES: usize = 64;
/// Queues of the sender's interface: one for each AF_XDP socket.
pub(super) const QUEUES: u32 = 6;
/// The sender's interface.
pub(super) const INTERFACE: &str = "vs";

/// Whether media lie in the processor's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Temperature {
    /// All bursts from a few extents.
    Hot,
    /// Each burst from anywhere.
    Cold,
}

impl Temperature {
    pub(super) const ALL: [Self; 2] = [Self::Hot, Self::Cold];
}

impl fmt::Display for Temperature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        })
    }
}

/// Extents full of packets with their metadata, as the cache has them.
pub(super) struct Extents {
    pub(super) arena: Arc<ExtentArena>,
    leases: Vec<Lease>,
    hot_extents: u32,
}

impl Extents {
    /// `extents` of them, and as many aside as they and `more` together: for frames that were built before.
    pub(super) fn new(hot_extents: u32, extents: u32, more: u32) -> anyhow::Result<Self> {
        let bytes = u64::from(2 * extents + more) * EXTENT_BYTES as u64;
        let region = PageRegion::present(bytes)?;
        let arena = ExtentArena::with_aside(Box::new(region), extents + more);
        let layout = WireLayout::new(DEFAULT_PACKET_BYTES).context("the default packet")?;
        let mut random = SplitMix(4);
        let fill = |extent| filled(&arena, extent, layout, &mut random);
        let leases: Vec<Lease> = (0..extents).map(fill).collect::<anyhow::Result<_>>()?;
        Ok(Self { arena, leases, hot_extents })
    }

    /// Their number.
    pub(super) fn count(&self) -> usize {
        self.leases.len()
    }

    /// All packets, from the first extent on.
    pub(super) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.leases.iter().flat_map(|lease| lease.wire(0, lease.content().packets).chunks(SEGMENT))
    }
}

fn filled(
    arena: &Arc<ExtentArena>,
    extent: u32,
    layout: WireLayout,
    random: &mut SplitMix,
) -> anyhow::Result<Lease> {
    let packets = layout.packets_per_extent();
    let mut fill = arena.fill(extent).context("a new arena is in use")?;
    let bytes = fill.bytes_mut();
    for place in 0..packets {
        let slot = &mut bytes[place as usize * SEGMENT..][..SEGMENT];
        let (header, payload) = slot.split_at_mut(RTP_HEADER_BYTES);
        header.copy_from_slice(&[0x80, 33, (place >> 8) as u8, place as u8, 0, 0, 0, 0, 1, 2, 3, 4]);
        for word in payload.chunks_mut(8) {
            let value = random.next().to_le_bytes();
            word.copy_from_slice(&value[..word.len()]);
        }
        let meta = PacketMeta::new(sum16(payload), 0, MediaTicks(u64::from(place)));
        let at = layout.meta_offset(place, packets);
        bytes[at..at + PacketMeta::BYTES].copy_from_slice(&meta.to_bytes());
    }
    fill.publish();
    let content = ExtentContent {
        title: TitleRef(0),
        number: extent,
        first_packet: extent * packets,
        packets,
        last_packet_bytes: DEFAULT_PACKET_BYTES as u16,
        layout,
        spare: 0,
    };
    arena.lend(extent, content).context("an extent that was filled cannot be lent")
}

/// Two hosts with a sink between them.
pub(super) struct SinkTestbed {
    pub(super) extents: Extents,
    hosts: TwoHosts,
    sink: UdpSocket,
    /// Ethernet addresses of the sender and of the receiver.
    pub(super) macs: [[u8; 6]; 2],
    sent: AtomicU64,
}

/// Returns the address of viewer `n`: no host answers there, and the sink drops packets to it.
fn viewer(n: usize) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 1, n as u8), 6000)
}

impl SinkTestbed {
    pub(super) fn build(extents: Extents) -> anyhow::Result<Self> {
        let hosts = TwoHosts::with_queues(false, QUEUES)?;
        let (s, c) = (hosts.server.as_str(), hosts.client.as_str());
        let macs = [[2, 0, 0, 0x77, 0, 1], [2, 0, 0, 0x77, 0, 2]];
        for (ns, device, mac) in [(s, INTERFACE, macs[0]), (c, "vc", macs[1])] {
            must("ip", &["-n", ns, "link", "set", device, "address", &text_of(mac)])?;
        }
        // Known neighbours: nothing waits for an address while it is measured.
        for (ns, device, ip, mac) in [(s, INTERFACE, CLIENT_IP, macs[1]), (c, "vc", SERVER_IP, macs[0])] {
            let words = ["lladdr", &text_of(mac), "dev", device, "nud", "permanent"];
            must("ip", &[&["-n", ns, "neigh", "replace", ip][..], &words].concat())?;
        }
        must("ip", &["-n", s, "route", "add", "10.77.1.0/24", "via", CLIENT_IP, "dev", INTERFACE])?;
        must("tc", &["-n", c, "qdisc", "add", "dev", "vc", "clsact"])?;
        // ld [30] (where IPv4 packets go); jeq CLIENT_IP: go on, else TC_ACT_SHOT.
        let open_for: Ipv4Addr = CLIENT_IP.parse()?;
        let code = format!("4,32 0 0 30,21 0 1 {},6 0 0 4294967295,6 0 0 2", u32::from(open_for));
        let filter = ["-n", c, "filter", "add", "dev", "vc", "ingress", "protocol", "ip"];
        must("tc", &[&filter[..], &["bpf", "da", "bytecode", &code]].concat())?;
        let sink =
            hosts.on_client(|| UdpSocket::bind((CLIENT_IP, 0)))?.context("a socket on the receiving host")?;
        // Room for the largest batch, wherever net.core.rmem_max stands.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&sink, 16 << 20)?;
        sink.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self { extents, hosts, sink, macs, sent: AtomicU64::new(0) })
    }

    /// Runs `work` on a thread of the sending host.
    pub(super) fn on_server<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        self.hosts.inside_server(work)
    }

    /// Where each viewer is; in a slot where results are compared they are all at the socket.
    pub(super) fn viewers(&self, is_check: bool) -> anyhow::Result<Vec<SocketAddr>> {
        let sink = self.sink.local_addr()?;
        Ok((0..VIEWERS).map(|n| if is_check { sink } else { viewer(n).into() }).collect())
    }

    /// The address of the sender.
    pub(super) fn source(&self) -> anyhow::Result<Ipv4Addr> {
        Ok(SERVER_IP.parse()?)
    }

    /// Returns the number of datagrams sent by all until now.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Packets that the receiving host's device has counted.
    pub(super) fn received(&self) -> anyhow::Result<u64> {
        let file = "/sys/class/net/vc/statistics/rx_packets";
        let text = must("ip", &["netns", "exec", &self.hosts.client, "cat", file])?;
        text.trim().parse().with_context(|| format!("{file}: not a number: {text}"))
    }

    /// UDP datagrams that the receiving host threw away because of their checksums.
    pub(super) fn checksum_errors(&self) -> anyhow::Result<u64> {
        let text = must("ip", &["netns", "exec", &self.hosts.client, "cat", "/proc/net/snmp"])?;
        let mut lines = text.lines().filter(|line| line.starts_with("Udp:")).map(str::split_whitespace);
        let place = lines.next().and_then(|mut names| names.position(|name| name == "InCsumErrors"));
        let value = place.and_then(|place| lines.next()?.nth(place)?.parse().ok());
        value.with_context(|| format!("/proc/net/snmp has no Udp InCsumErrors: {text}"))
    }

    /// How turns are taken with this length of bursts.
    pub(super) fn turns(&self, temperature: Temperature, burst: usize) -> Turns<'_> {
        Turns { stage: self, temperature, burst, entries: (BATCH_DATAGRAMS / burst).clamp(1, MOST_ENTRIES) }
    }
}

/// One burst for one viewer.
pub(super) struct Pick<'a> {
    pub(super) piece: ViewerDatagrams<'a>,
    pub(super) lease: &'a Lease,
    pub(super) place: u32,
}

/// What all contenders of one contest share.
#[derive(Clone, Copy)]
pub(super) struct Turns<'a> {
    pub(super) stage: &'a SinkTestbed,
    temperature: Temperature,
    burst: usize,
    entries: usize,
}

/// Where a contender is in its media: it goes on there in its next slot, so that nothing it sends was sent a moment ago
/// by another.
pub(super) struct MediaCursor {
    random: SplitMix,
    viewer: usize,
}

impl MediaCursor {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: SplitMix(seed), viewer: 0 }
    }
}

impl<'a> Turns<'a> {
    /// Datagrams in a batch.
    pub(super) fn datagrams(&self) -> usize {
        self.burst * self.entries
    }

    /// Picks one of `count` things; the first `hot` of them stay in the cache.
    pub(super) fn any_of(&self, place: &mut MediaCursor, hot: usize, count: usize) -> usize {
        let among = if self.temperature == Temperature::Hot { hot.min(count) } else { count };
        place.random.below(among as u64) as usize
    }

    fn pick(&self, place: &mut MediaCursor, to: &[SocketAddr]) -> Pick<'a> {
        let extents = &self.stage.extents;
        let lease = &extents.leases[self.any_of(place, extents.hot_extents as usize, extents.leases.len())];
        let places = u64::from(lease.content().packets) + 1 - self.burst as u64;
        let first = place.random.below(places) as u32;
        let viewer = place.viewer;
        place.viewer = (viewer + 1) % VIEWERS;
        let piece = ViewerDatagrams {
            viewer,
            to: to[viewer],
            bytes: lease.wire(first, self.burst as u32),
            address: u64::from(lease.extent()) * EXTENT_BYTES as u64 + u64::from(first) * SEGMENT as u64,
        };
        Pick { piece, lease, place: first }
    }

    /// Runs a slot of a contender that sends batches of bursts with `send`, which times itself.
    pub(super) fn play(
        &self,
        slot: &mut ContenderSlot,
        place: &mut MediaCursor,
        mut send: impl FnMut(&mut ContenderSlot, &mut MediaCursor, &[Pick<'a>]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let is_check = slot.is_check();
        let to = self.stage.viewers(is_check)?;
        // Where results are compared everybody sends the same.
        let mut same = MediaCursor::new(1);
        let place = if is_check { &mut same } else { place };
        while slot.goes_on() {
            let batch: Vec<Pick<'_>> = (0..self.entries).map(|_| self.pick(place, &to)).collect();
            send(slot, place, &batch)?;
            self.stage.sent.fetch_add(self.datagrams() as u64, Ordering::Relaxed);
            if is_check {
                slot.produced(self.arrived()?);
            }
        }
        Ok(())
    }

    /// Hash of a batch as it arrives: lengths and bytes of its datagrams. Their order is not in it: between viewers there
    /// is none, and all are at one socket here.
    fn arrived(&self) -> anyhow::Result<u64> {
        let mut datagram = [0; 2048];
        let mut sum = 0u64;
        for n in 0..self.datagrams() {
            let length = self.stage.sink.recv(&mut datagram);
            let length = length.with_context(|| format!("datagram {n} of a batch did not arrive"))?;
            let words = datagram[..length].chunks(8).map(|w| {
                let mut word = [0; 8];
                word[..w.len()].copy_from_slice(w);
                u64::from_le_bytes(word)
            });
            let all = std::iter::once(length as u64).chain(words);
            let start = 0xcbf2_9ce4_8422_2325u64;
            let hash = all.fold(start, |hash, w| (hash ^ w).wrapping_mul(0x0100_0000_01b3).rotate_left(17));
            sum = sum.wrapping_add(hash);
        }
        Ok(sum)
    }
}

fn text_of(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Runs a program to its end and returns its output.
fn must(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("{program}: cannot be started"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", args.join(" "), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
