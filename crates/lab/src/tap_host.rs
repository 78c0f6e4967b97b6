//! Our IP layer and TCP at one end of an Ethernet. At the other end, behind a TAP device in a namespace of its own, is this kernel's. Needs root.
//!
//! Both ends find each other by ARP and neighbour discovery. None of its addresses exists on this
//! machine itself; nothing else can reach them.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use millrace_core::time::Instant;
use millrace_netio::tun::Tun;
use millrace_tcp::conn::TcpCounters;
use millrace_tcp::ip::{self, IpCounters, LinkLayer};
use millrace_tcp::stack::Settings;

use crate::netns::{inside, ip, nameless};
use crate::runner::{Application, FrameWire, READS_PER_TURN, RunningStack};

/// Longest frame of the kernel.
const LARGEST_FRAME: usize = 65_550;
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

/// A running stack. Its thread ends when it is dropped.
pub struct TapHost {
    running: RunningStack<TapWire>,
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
        let link = LinkLayer::Ethernet { mac: OUR_MAC, vlan: None };
        let mut addresses = ip::Settings::new(link, settings.secret).with(OUR_V4, 24).with(OUR_V6, 64);
        addresses.gateway_v4 = Some(KERNEL_V4);
        addresses.mtu = settings.config.mtu;
        let wire = TapWire { tap, scratch: vec![0; LARGEST_FRAME] };
        Ok(Self { running: RunningStack::start(settings, &addresses, wire, app)?, kernel })
    }

    /// Lets `time` pass for the stack at once, and none for the kernel.
    pub fn leap(&self, time: Duration) {
        self.running.leap(time.as_nanos() as u64);
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
    /// The error that `ip` reports.
    pub fn ip_in_kernel(&self, args: &str) -> anyhow::Result<()> {
        inside(&self.kernel, || ip(None, args))?
    }

    /// Ends the stack's thread; what stack and interface have counted.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn stop(self) -> anyhow::Result<(TcpCounters, IpCounters)> {
        self.running.stop().map(|ended| (ended.tcp, ended.ip))
    }
}

/// The device.
struct TapWire {
    tap: Tun,
    scratch: Vec<u8>,
}

impl FrameWire for TapWire {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.tap.as_fd()]
    }

    fn receive(&mut self, _now: Instant, take: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        for _ in 0..READS_PER_TURN {
            let Some(bytes) = self.tap.read(&mut self.scratch).context("read from the device")? else {
                break;
            };
            take(&self.scratch[..bytes]);
        }
        Ok(())
    }

    fn send(&mut self, _now: Instant, frame: &[u8]) {
        let _ = self.tap.write(frame);
    }
}
