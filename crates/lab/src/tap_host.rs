//! Our IP layer and TCP at one end of an Ethernet. At the other end, behind a TAP device in a namespace of its own, is this kernel's. Needs root.
//!
//! Both ends find each other by ARP and neighbour discovery. No address of it exists on this machine itself; nobody else can reach them.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_netio::link::Tun;
use millrace_tcp::conn::TcpCounters;
use millrace_tcp::ip::{self, Incoming, Interface, IpCounters, Link, Outgoing};
use millrace_tcp::stack::{Settings, Stack, Taken};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::netns::{inside, ip, nameless};
use crate::tcp_host::Application;

/// Addresses of the stack.
pub const OUR_V4: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The same of IPv6.
pub const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1);
/// Addresses of the kernel's end.
pub const KERNEL_V4: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The same of IPv6.
pub const KERNEL_V6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 2);
/// An address on a network of the kernel's: it is the stack's gateway to it.
pub const FAR_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);
/// The kernel's device.
pub const DEVICE: &str = "mill-tap";
/// The stack's Ethernet address.
pub const OUR_MAC: [u8; 6] = [2, 0x6d, 0x69, 0x6c, 0x6c, 1];

/// Frames taken from the device in one turn.
const READS_PER_TURN: usize = 256;
/// A turn at least so often: the application may have something new to do.
const IDLE_NS: u64 = 5_000_000;

/// A running stack. Its thread ends when it is dropped.
pub struct TapHost {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<(TcpCounters, IpCounters)>>>,
    kernel: File,
}

/// Whether this kernel has IPv6.
pub fn has_v6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

fn tap_here() -> anyhow::Result<Tun> {
    let tap = Tun::open_tap(DEVICE)?;
    ip(None, &format!("addr add {KERNEL_V4}/24 dev {DEVICE}"))?;
    ip(None, &format!("addr add {FAR_V4}/32 dev lo"))?;
    if has_v6() {
        ip(None, &format!("addr add {KERNEL_V6}/64 dev {DEVICE} nodad"))?;
    }
    ip(None, &format!("link set {DEVICE} up"))?;
    Ok(tap)
}

impl TapHost {
    /// Starts a stack and a kernel's network that is joined to it.
    ///
    /// # Errors
    /// Without root, `ip` or TAP devices.
    pub fn start(settings: &Settings, app: impl Application + 'static) -> anyhow::Result<Self> {
        let (kernel, tap) = nameless(tap_here)?;
        let link = Link::Ethernet { mac: OUR_MAC, vlan: None };
        let mut addresses = ip::Settings::new(link, settings.secret).with(OUR_V4, 24).with(OUR_V6, 64);
        addresses.gateway_v4 = Some(KERNEL_V4);
        addresses.mtu = settings.config.mtu;
        let stop = Arc::new(AtomicBool::new(false));
        let mut runner = Runner {
            stack: Stack::new(settings),
            interface: Interface::new(&addresses, Instant(1)).context("the stack's interface")?,
            tap,
            app: Box::new(app),
            epoch: std::time::Instant::now(),
        };
        let ends = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("tap".to_owned())
            .spawn(move || runner.run(&ends))
            .context("a thread")?;
        Ok(Self { stop, thread: Some(thread), kernel })
    }

    /// Runs `work` on a thread whose sockets are those of the kernel at the other end.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn in_kernel<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        inside(&self.kernel, work)
    }

    /// Runs `ip` with these arguments at the other end.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn ip_in_kernel(&self, args: &str) -> anyhow::Result<()> {
        inside(&self.kernel, || ip(None, args))?
    }

    /// Ends the stack's thread; what stack and interface have counted.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn stop(mut self) -> anyhow::Result<(TcpCounters, IpCounters)> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it is stopped once");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for TapHost {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            let _ = thread.join();
        }
    }
}

/// The thread.
struct Runner {
    stack: Stack,
    interface: Interface,
    tap: Tun,
    app: Box<dyn Application>,
    epoch: std::time::Instant,
}

impl Runner {
    fn run(&mut self, stop: &AtomicBool) -> anyhow::Result<(TcpCounters, IpCounters)> {
        let mut frame = vec![0; self.interface.frame_bytes()];
        // It listens before anybody can call.
        let now = self.now();
        self.app.turn(&mut self.stack, now);
        while !stop.load(Ordering::Relaxed) {
            self.wait()?;
            self.take_in(&mut frame)?;
            let now = self.now();
            self.stack.protocol(now);
            self.interface.protocol(now);
            self.app.turn(&mut self.stack, now);
            self.send(now, &mut frame);
        }
        Ok((*self.stack.counters(), *self.interface.counters()))
    }

    /// Never 0, which is no moment of a stack.
    fn now(&self) -> Instant {
        Instant(1 + u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
    }

    fn wait(&self) -> anyhow::Result<()> {
        let now = self.now();
        let next = [self.stack.next_due(now), self.interface.next_due(now)];
        let wait_ns =
            next.into_iter().flatten().map(|at| at.ns_since(now)).min().unwrap_or(IDLE_NS).min(IDLE_NS);
        let timeout = Timespec {
            tv_sec: (wait_ns / NS_PER_S).cast_signed(),
            tv_nsec: (wait_ns % NS_PER_S).cast_signed(),
        };
        let mut fds = [PollFd::from_borrowed_fd(self.tap.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("wait for frames"),
        }
    }

    fn take_in(&mut self, frame: &mut [u8]) -> anyhow::Result<()> {
        for _ in 0..READS_PER_TURN {
            let Some(bytes) = self.tap.read(frame).context("read from the device")? else { break };
            let now = self.now();
            match self.interface.input(&frame[..bytes], now) {
                Incoming::Segment(arrived) => self.stack.input(&arrived, now),
                Incoming::Error(error) => self.stack.icmp(&error, now),
                Incoming::Done | Incoming::Dropped | Incoming::ForKernel => {}
            }
        }
        Ok(())
    }

    fn send(&mut self, now: Instant, frame: &mut [u8]) {
        let Self { stack, interface, tap, .. } = self;
        stack.output(now, &mut |out| {
            if let Outgoing::Written(bytes) = interface.frame(out, now, frame) {
                // A full device drops, as any does.
                let _ = tap.write(&frame[..bytes]);
            }
            Taken::Copied
        });
        interface.output(&mut |frame| {
            let _ = tap.write(frame);
            true
        });
    }
}
