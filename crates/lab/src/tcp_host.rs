//! Our TCP at one end of an emulated link. At the other end, behind a TUN device in a namespace of its own, is this kernel's. Needs root.
//!
//! ```text
//!   our stack ──────────────┐                 ┌── the kernel, 10.79.0.2
//!   10.79.0.1               ├── one link ─────┤
//!   the rival, 10.79.0.3 ───┘                 └
//! ```
//!
//! The rival is this kernel once more, on our side of the link: what it does there can be compared with what we do, and both can share it. One thread
//! is the link and our host. No address of it exists on this machine itself; nobody else can reach them.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::Flow;
use millrace_core::wire::frame::layout::{IPV4_CHECK, IPV4_LENGTH, IPV4_PROTOCOL, ipv4};
use millrace_netio::link::{ImpairmentModel, LinkCounts, LinkSpec, Traffic, Tun};
use millrace_tcp::conn::TcpCounters;
use millrace_tcp::ip::{self, Incoming, Interface, Link, Outgoing};
use millrace_tcp::stack::{Settings, Stack, Taken};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::netns::{inside, nameless, tun_here};

/// Address of the stack.
pub const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
/// Address of the kernel's end.
pub const KERNEL_IP: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
/// Address of the kernel on our side.
pub const RIVAL_IP: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 3);

/// Length of the prefix that all of them have in common.
const PREFIX: u8 = 24;
/// Where an IPv4 header says from whom it comes, and to whom it goes.
const SOURCE: usize = 12;
const DESTINATION: std::ops::Range<usize> = 16..20;
const ICMP: u8 = 1;
/// Destination unreachable, and of its codes: fragmentation needed and DF set (RFC 792, RFC 1191 section 4).
const UNREACHABLE: u8 = 3;
const TOO_LARGE: u8 = 4;
const ICMP_HEADER_BYTES: usize = 8;
/// What a report of a router quotes of a packet, behind its IP header (RFC 792).
const QUOTED_BYTES: usize = 8;
const HOPS: u8 = 64;
/// Packets taken from the device in one turn.
const READS_PER_TURN: usize = 256;
/// A turn at least so often: the application may have something new to do.
const IDLE_NS: u64 = 5_000_000;
const LARGEST_PACKET: usize = 65_536;

/// What uses the stack.
pub trait Application: Send {
    /// Called once a turn, between input and output.
    fn turn(&mut self, stack: &mut Stack, now: Instant);
}

/// What has become of a stack that was stopped, and of its packets.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// What the stack has counted.
    pub tcp: TcpCounters,
    /// What the link did to packets from our side, and to those from the kernel.
    pub link: [LinkCounts; 2],
    /// Packets larger than the link lets pass, from our side and from the kernel.
    pub too_large: [u64; 2],
}

/// What the thread is told.
struct Orders {
    stop: AtomicBool,
    /// Largest packet that the link lets pass.
    mtu: AtomicU32,
    /// Our side is told of each that it drops, as the kernel is.
    reports_to_us: AtomicBool,
}

/// A running stack. Its thread ends when it is dropped.
pub struct TcpHost {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<anyhow::Result<Ended>>>,
    kernel: File,
    rival: File,
}

/// A namespace that has no name any more, and its TUN device.
pub(crate) fn kernel_at(address: Ipv4Addr) -> anyhow::Result<(File, Tun)> {
    nameless(|| tun_here("mill-tcp", &format!("{address}/{PREFIX}")))
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
        let ((kernel, tun), (rival, rival_tun)) = (kernel_at(KERNEL_IP)?, kernel_at(RIVAL_IP)?);
        let mut addresses = ip::Settings::new(Link::Ip, settings.secret).with(OUR_IP, PREFIX);
        addresses.mtu = settings.config.mtu;
        let orders = Arc::new(Orders {
            stop: AtomicBool::new(false),
            mtu: AtomicU32::new(u32::MAX),
            reports_to_us: AtomicBool::new(false),
        });
        let mut runner = Runner {
            stack: Stack::new(settings),
            interface: Interface::new(&addresses, Instant(1)).context("the stack's interface")?,
            tun,
            rival: rival_tun,
            app: Box::new(app),
            there: ImpairmentModel::with_stream(&spec.there, 0),
            back: ImpairmentModel::with_stream(&spec.back, 1),
            epoch: std::time::Instant::now(),
            too_large: [0; 2],
            orders: Arc::clone(&orders),
        };
        let thread = std::thread::Builder::new()
            .name("tcp".to_owned())
            .spawn(move || runner.run())
            .context("a thread")?;
        Ok(Self { orders, thread: Some(thread), kernel, rival })
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

    /// From now on the link lets no packet of more than `bytes` pass, either way. The kernel is told by ICMP of each that is dropped, our side if
    /// `reports_to_us`; otherwise it has to find out.
    pub fn set_mtu(&self, bytes: u32, reports_to_us: bool) {
        self.orders.reports_to_us.store(reports_to_us, Ordering::Relaxed);
        self.orders.mtu.store(bytes, Ordering::Relaxed);
    }

    /// Ends the stack's thread; what it has counted.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn stop(self) -> anyhow::Result<TcpCounters> {
        self.finish().map(|ended| ended.tcp)
    }

    /// The same with what the link has done.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn finish(mut self) -> anyhow::Result<Ended> {
        self.end().expect("it is stopped once")
    }

    fn end(&mut self) -> Option<anyhow::Result<Ended>> {
        self.orders.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for TcpHost {
    fn drop(&mut self) {
        // While a panic unwinds nobody waits for it.
        self.orders.stop.store(true, Ordering::Relaxed);
        if !std::thread::panicking() {
            let _ = self.end();
        }
    }
}

/// The thread.
struct Runner {
    stack: Stack,
    interface: Interface,
    tun: Tun,
    rival: Tun,
    app: Box<dyn Application>,
    there: ImpairmentModel<Vec<u8>>,
    back: ImpairmentModel<Vec<u8>>,
    epoch: std::time::Instant,
    too_large: [u64; 2],
    orders: Arc<Orders>,
}

impl Runner {
    fn run(&mut self) -> anyhow::Result<Ended> {
        // The kernel may else put off every wake-up by 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut scratch = vec![0; LARGEST_PACKET];
        // It listens before anybody can call.
        let now = self.now();
        self.app.turn(&mut self.stack, now);
        while !self.orders.stop.load(Ordering::Relaxed) {
            self.wait()?;
            self.take_in(&mut scratch)?;
            let now = self.now();
            self.stack.protocol(now);
            self.app.turn(&mut self.stack, now);
            self.send(now);
            self.let_out();
        }
        let link = [self.there.counts(), self.back.counts()];
        Ok(Ended { tcp: *self.stack.counters(), link, too_large: self.too_large })
    }

    /// Never 0, which is no moment of a stack.
    fn now(&self) -> Instant {
        Instant(1 + u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
    }

    fn wait(&self) -> anyhow::Result<()> {
        let now = self.now();
        let next = [
            self.stack.next_due(now),
            self.interface.next_due(now),
            self.there.poll_at(),
            self.back.poll_at(),
        ];
        let wait_ns =
            next.into_iter().flatten().map(|at| at.ns_since(now)).min().unwrap_or(IDLE_NS).min(IDLE_NS);
        let timeout = Timespec {
            tv_sec: (wait_ns / NS_PER_S).cast_signed(),
            tv_nsec: (wait_ns % NS_PER_S).cast_signed(),
        };
        let mut fds =
            [&self.tun, &self.rival].map(|tun| PollFd::from_borrowed_fd(tun.as_fd(), PollFlags::IN));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("wait for packets"),
        }
    }

    fn mtu(&self) -> usize {
        self.orders.mtu.load(Ordering::Relaxed) as usize
    }

    fn take_in(&mut self, scratch: &mut [u8]) -> anyhow::Result<()> {
        let mtu = self.mtu();
        for _ in 0..READS_PER_TURN {
            let now = self.now();
            let Some(bytes) = self.tun.read(scratch).context("read from the kernel's device")? else { break };
            if bytes > mtu {
                self.too_large[1] += 1;
                // A full device drops, as any does.
                let _ = too_large(&scratch[..bytes], mtu).map(|report| self.tun.write(&report));
                continue;
            }
            let _ = self.back.handle_packet(now, bytes, Traffic::Other, scratch[..bytes].to_vec());
        }
        for _ in 0..READS_PER_TURN {
            let now = self.now();
            let Some(bytes) = self.rival.read(scratch).context("read from the rival's device")? else {
                break;
            };
            let _ = self.there.handle_packet(now, bytes, Traffic::Other, scratch[..bytes].to_vec());
        }
        let now = self.now();
        while let Some(departure) = self.back.poll_output(now) {
            for _ in 0..departure.times {
                self.deliver(&departure.packet, now);
            }
        }
        Ok(())
    }

    /// A packet has crossed the link to our side.
    fn deliver(&mut self, packet: &[u8], now: Instant) {
        if packet.get(DESTINATION) == Some(&RIVAL_IP.octets()) {
            // A full device drops, as any does.
            let _ = self.rival.write(packet);
            return;
        }
        match self.interface.input(packet, now) {
            Incoming::Segment(arrived) => self.stack.input(&arrived, now),
            Incoming::Error(error) => self.stack.icmp(&error, now),
            // There is no kernel with that address, and the interface counts what it drops.
            Incoming::Done | Incoming::Dropped | Incoming::ForKernel => {}
        }
    }

    fn send(&mut self, now: Instant) {
        let mtu = self.mtu();
        let Self { stack, interface, there, .. } = self;
        let mut dropped = Vec::new();
        let mut send = |packet: Vec<u8>| {
            if packet.len() > mtu {
                dropped.push(packet);
            } else {
                let _ = there.handle_packet(now, packet.len(), Traffic::Other, packet);
            }
        };
        stack.output(now, &mut |out| {
            let mut packet = vec![0; interface.frame_bytes()];
            if let Outgoing::Written(bytes) = interface.frame(out, now, &mut packet) {
                packet.truncate(bytes);
                send(packet);
            }
            Taken::Copied
        });
        interface.output(&mut |packet| {
            send(packet.to_vec());
            true
        });
        self.too_large[0] += dropped.len() as u64;
        if self.orders.reports_to_us.load(Ordering::Relaxed) {
            for report in dropped.iter().filter_map(|packet| too_large(packet, mtu)) {
                self.deliver(&report, now);
            }
        }
    }

    fn let_out(&mut self) {
        let now = self.now();
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
