//! Our TCP at one end of an emulated link. At the other end, behind a TUN device in a namespace of its own, is this kernel's. Needs root.
//!
//! ```text
//!   our stack ──────────────┐                 ┌── the kernel, 10.79.0.2
//!   10.79.0.1               ├── one link ─────┤
//!   the rival, 10.79.0.3 ───┘                 └
//! ```
//!
//! The rival is a second instance of this kernel, on our side of the link: its behaviour there can
//! be compared with ours, and both can share the link. One thread is the link and our host. None of
//! its addresses exists on this machine itself; nothing else can reach them.

use std::collections::VecDeque;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::Context;
use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::Flow;
use millrace_core::wire::frame::layout::{IPV4_CHECK, IPV4_LENGTH, IPV4_PROTOCOL, ipv4};
use millrace_link::{ImpairmentModel, LinkCounts, LinkSpec, Traffic};
use millrace_netio::NetError;
use millrace_netio::tun::Tun;
use millrace_tcp::conn::TcpCounters;
use millrace_tcp::ip::{self, LinkLayer};
use millrace_tcp::stack::Settings;

use crate::netns::{inside, nameless, tun_here};
use crate::runner::{self, Application, FrameWire, READS_PER_TURN, RunningStack};

/// Address of the stack.
pub const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
/// Address of the kernel's end.
pub const KERNEL_IP: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
/// Address of the kernel on our side.
pub const RIVAL_IP: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 3);

/// Length of the prefix that all of them have in common.
const PREFIX: u8 = 24;
/// Position of the source and destination addresses in an IPv4 header.
const SOURCE: usize = 12;
const DESTINATION: std::ops::Range<usize> = 16..20;
const ICMP: u8 = 1;
/// Destination unreachable, and of its codes: fragmentation needed and DF set (RFC 792, RFC 1191 section 4).
const UNREACHABLE: u8 = 3;
const TOO_LARGE: u8 = 4;
const ICMP_HEADER_BYTES: usize = 8;
/// Bytes of a packet that a router's report quotes, behind the IP header (RFC 792).
const QUOTED_BYTES: usize = 8;
const HOPS: u8 = 64;
const LARGEST_PACKET: usize = 65_536;

/// Results of a stopped stack and of its packets.
#[derive(Clone, Copy, Debug)]
pub struct TcpHostResult {
    /// The stack's counters.
    pub tcp: TcpCounters,
    /// The link's counters for packets from our side and for those from the kernel.
    pub link: [LinkCounts; 2],
    /// Packets larger than the link lets pass, from our side and from the kernel.
    pub too_large: [u64; 2],
}

/// Orders to the link.
struct Orders {
    /// Largest packet that the link lets pass.
    mtu: AtomicU32,
    /// Our side gets a report of each packet that the link drops, as the kernel does.
    reports_to_us: AtomicBool,
}

/// A running stack. It ends when it is dropped.
pub struct TcpHost {
    orders: Arc<Orders>,
    running: RunningStack<LinkWire>,
    kernel: File,
    rival: File,
}

/// A namespace that has no name any more, and its TUN device.
pub(crate) fn kernel_at<T: Send>(
    address: Ipv4Addr,
    open: impl FnOnce(&str) -> Result<T, NetError> + Send,
) -> anyhow::Result<(File, T)> {
    nameless(|| tun_here("mill-tcp", &format!("{address}/{PREFIX}"), open))
}

impl TcpHost {
    /// Starts a stack and a kernel's network that is joined to it. `spec.there` is the way from the stack to the kernel.
    ///
    /// # Errors
    /// Without root, `ip` or TUN devices.
    pub fn start(
        spec: &LinkSpec,
        settings: &Settings,
        app: impl Application + 'static,
    ) -> anyhow::Result<Self> {
        let ((kernel, tun), (rival, rival_tun)) =
            (kernel_at(KERNEL_IP, Tun::open)?, kernel_at(RIVAL_IP, Tun::open)?);
        let mut addresses = ip::Settings::new(LinkLayer::Ip, settings.secret).with(OUR_IP, PREFIX);
        addresses.mtu = settings.config.mtu;
        let orders =
            Arc::new(Orders { mtu: AtomicU32::new(u32::MAX), reports_to_us: AtomicBool::new(false) });
        let wire = LinkWire {
            tun,
            rival: rival_tun,
            there: ImpairmentModel::with_stream(&spec.there, 0),
            back: ImpairmentModel::with_stream(&spec.back, 1),
            entering: Default::default(),
            random: SplitMix(spec.there.seed),
            too_large: [0; 2],
            reports: Vec::new(),
            scratch: vec![0; LARGEST_PACKET],
            orders: Arc::clone(&orders),
        };
        let running = RunningStack::start(settings, &addresses, wire, app)?;
        Ok(Self { orders, running, kernel, rival })
    }

    /// Runs `work` on a thread whose sockets are those of the kernel at the other end.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn in_kernel<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        inside(&self.kernel, work)
    }

    /// The same on our side of the link.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn in_rival<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        inside(&self.rival, work)
    }

    /// From now on the link drops packets of more than `bytes`, in both directions. The kernel gets
    /// an ICMP report of each dropped packet, our side only if `reports_to_us`; otherwise our side
    /// has to find out.
    pub fn set_mtu(&self, bytes: u32, reports_to_us: bool) {
        self.orders.reports_to_us.store(reports_to_us, Ordering::Relaxed);
        self.orders.mtu.store(bytes, Ordering::Relaxed);
    }

    /// Ends the stack's thread and returns the stack's counters.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn stop(self) -> anyhow::Result<TcpCounters> {
        self.finish().map(|ended| ended.tcp)
    }

    /// Does the same and also returns the link's counters.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn finish(self) -> anyhow::Result<TcpHostResult> {
        let runner::StoppedStack { tcp, wire, .. } = self.running.stop()?;
        Ok(TcpHostResult { tcp, link: [wire.there.counts(), wire.back.counts()], too_large: wire.too_large })
    }
}

/// The link, and the kernels behind it.
struct LinkWire {
    tun: Tun,
    rival: Tun,
    there: ImpairmentModel<Vec<u8>>,
    back: ImpairmentModel<Vec<u8>>,
    /// Packets that the stack and the rival have sent in this turn.
    entering: [VecDeque<Vec<u8>>; 2],
    random: SplitMix,
    too_large: [u64; 2],
    /// Of routers to the stack, which it has not got yet.
    reports: Vec<Vec<u8>>,
    scratch: Vec<u8>,
    orders: Arc<Orders>,
}

impl LinkWire {
    fn mtu(&self) -> usize {
        self.orders.mtu.load(Ordering::Relaxed) as usize
    }

    /// Moves the packets that the kernels have sent into the link.
    fn take_in(&mut self, now: Instant) -> anyhow::Result<()> {
        let mtu = self.mtu();
        for _ in 0..READS_PER_TURN {
            let read = self.tun.read(&mut self.scratch).context("read from the kernel's device")?;
            let Some(bytes) = read else { break };
            let packet = &self.scratch[..bytes];
            if bytes > mtu {
                self.too_large[1] += 1;
                // A full device drops, as any does.
                let _ = too_large(packet, mtu).map(|report| self.tun.write(&report));
                continue;
            }
            let _ = self.back.handle_packet(now, bytes, Traffic::Other, packet.to_vec());
        }
        for _ in 0..READS_PER_TURN {
            let read = self.rival.read(&mut self.scratch).context("read from the rival's device")?;
            let Some(bytes) = read else { break };
            self.entering[1].push_back(self.scratch[..bytes].to_vec());
        }
        Ok(())
    }

    /// What our side has sent in this turn enters the link in an order of chance that keeps that of each: whoever came first each time would find room
    /// in a queue that is nearly full, and the other would not; and taking turns keeps step with the packets that leave the queue.
    fn enter(&mut self, now: Instant) {
        loop {
            let [ours, rivals] = self.entering.each_ref().map(|packets| packets.len() as u64);
            if ours + rivals == 0 {
                return;
            }
            let is_rival = self.random.below(ours + rivals) < rivals;
            if let Some(packet) = self.entering[usize::from(is_rival)].pop_front() {
                let _ = self.there.handle_packet(now, packet.len(), Traffic::Other, packet);
            }
        }
    }
}

impl FrameWire for LinkWire {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.tun.as_fd(), self.rival.as_fd()]
    }

    fn due(&self) -> Option<Instant> {
        let reports = (!self.reports.is_empty()).then_some(Instant(0));
        [reports, self.there.poll_at(), self.back.poll_at()].into_iter().flatten().min()
    }

    fn receive(&mut self, now: Instant, take: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        self.reports.drain(..).for_each(|report| take(&report));
        self.take_in(now)?;
        while let Some(departure) = self.back.poll_output(now) {
            let packet = &departure.packet;
            for _ in 0..departure.times {
                if packet.get(DESTINATION) == Some(&RIVAL_IP.octets()) {
                    // A full device drops, as any does.
                    let _ = self.rival.write(packet);
                } else {
                    take(packet);
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, _: Instant, packet: &[u8]) {
        let mtu = self.mtu();
        if packet.len() <= mtu {
            self.entering[0].push_back(packet.to_vec());
            return;
        }
        self.too_large[0] += 1;
        if self.orders.reports_to_us.load(Ordering::Relaxed) {
            self.reports.extend(too_large(packet, mtu));
        }
    }

    fn flush(&mut self, now: Instant) {
        self.enter(now);
        while let Some(departure) = self.there.poll_output(now) {
            for _ in 0..departure.times {
                // A full device drops, as any does.
                let _ = self.tun.write(&departure.packet);
            }
        }
    }
}

/// The report of a router to the sender of a packet that is too large (RFC 1191 section 4).
fn too_large(packet: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let quoted = packet.get(..usize::from(packet.first()? & 15) * 4 + QUOTED_BYTES)?;
    let end = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(quoted.get(at..at + 4)?).ok()?));
    // As if from where it was to go.
    let (from, to) = (end(DESTINATION.start)?, end(SOURCE)?);
    let ends = [from, to].map(|ip| SocketAddr::from((ip, 0)));
    let flow = Flow { source: ends[0], destination: ends[1], hop_limit: HOPS, traffic_class: 0 };
    let mut header = ipv4(&flow, from, to);
    let length = (header.len() + ICMP_HEADER_BYTES + quoted.len()) as u16;
    header[IPV4_LENGTH..IPV4_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
    header[IPV4_PROTOCOL] = ICMP;
    let sum = !sum16(&header);
    header[IPV4_CHECK..IPV4_CHECK + 2].copy_from_slice(&sum.to_be_bytes());
    let [high, low] = (mtu as u16).to_be_bytes();
    let mut message = [&[UNREACHABLE, TOO_LARGE, 0, 0, 0, 0, high, low], quoted].concat();
    let sum = !sum16(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some([&header[..], &message].concat())
}
