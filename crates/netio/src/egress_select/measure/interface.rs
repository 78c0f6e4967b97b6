//! The real egress paths of one interface, for a moment, and without disturbing anybody.
//!
//! It sends ordinary datagrams from and to the interface's own Ethernet address: a switch never
//! forwards a frame to the port that it came from, and a host drops frames for other hosts. They go
//! to port 9 of an address that is reserved for documentation (RFC 5737), with a time to live of 1.
//! For the kernel's paths the socket is bound to the interface and set not to use routers, and the
//! address gets a neighbour entry until the measurement ends, however it ends.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;

use millrace_core::limits::XDP_ASIDE_EXTENTS;
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{PacketTx, SendOutcome, TransmitBatch};
use millrace_core::time::{Instant, NS_PER_S};
use millrace_core::wire::frame::LinkHeader;
use rustix::time::{ClockId, clock_gettime};

use super::contest::{Contender, Effort, contest};
use super::error::MeasureError;
use super::sample::SamplePackets;
use super::table::CostTable;
use super::target::TargetInterface;
use crate::egress_select::paths::XdpDevice;
use crate::egress_select::plan::EgressPath;
use crate::kernel::{KernelTx, KernelTxConfig, UdpPair};
use crate::limits::{MEASURED_EXTENTS, SETTLE_NS};
use crate::netlink::{Family, Netlink, NetlinkRequest};
use crate::route::{Hop, HopTable};
use crate::sys::socket::set_int;

/// Networks for documentation: no host has these addresses.
const NOBODY: [Ipv4Addr; 3] =
    [Ipv4Addr::new(192, 0, 2, 77), Ipv4Addr::new(198, 51, 100, 77), Ipv4Addr::new(203, 0, 113, 77)];
/// The discard service.
const PORT: u16 = 9;
/// `SO_BINDTOIFINDEX` (Linux 5.0).
const SO_BINDTOIFINDEX: i32 = 62;

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const NLM_F_CREATE_EXCL: u16 = 0x600;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

/// Results of measuring the egress paths of an interface.
#[derive(Clone, Debug)]
pub struct EgressMeasurement {
    /// The figures.
    pub table: CostTable,
    /// Why there is no figure of AF_XDP, if there is none.
    pub no_xdp: Option<String>,
}

/// Opens an AF_XDP device that sends data from the arena, with these hops.
pub type OpenXdp<'a, D> = &'a mut dyn FnMut(Arc<ExtentArena>, HopTable) -> Result<D, String>;

/// Measures an interface, with AF_XDP if there is a way to open it. Takes some tens of milliseconds.
///
/// # Errors
/// [`MeasureError`]: nothing could be measured.
pub fn measure<D: XdpDevice>(
    target: &TargetInterface,
    effort: Effort,
    open: Option<OpenXdp<'_, D>>,
) -> Result<EgressMeasurement, MeasureError> {
    let failed =
        |what, source, remedy| MeasureError::Call { interface: target.name.clone(), what, source, remedy };
    let v4 = |target: &TargetInterface| -> Vec<Ipv4Addr> {
        let v4 = |address: &IpAddr| if let IpAddr::V4(v4) = address { Some(*v4) } else { None };
        target.addresses.iter().filter_map(v4).collect()
    };
    let own = v4(target).first().copied();
    let own = own.ok_or_else(|| MeasureError::NoAddress { interface: target.name.clone() })?;
    let all: Vec<Ipv4Addr> = TargetInterface::all()?.iter().flat_map(v4).collect();
    let is_free = |nobody: &Ipv4Addr| all.iter().all(|used| used.octets()[..3] != nobody.octets()[..3]);
    let nobody = NOBODY.into_iter().find(is_free);
    let nobody = nobody.ok_or_else(|| MeasureError::NoTarget { interface: target.name.clone() })?;
    let dest = SocketAddr::from((nobody, PORT));

    let sockets = sockets(target)
        .map_err(|source| failed("bind a socket to it", source, "Linux 5.7 lets anybody do so"))?;
    let kernel = KernelTx::new(KernelTxConfig { v4: Some(sockets), ..KernelTxConfig::default() })
        .map_err(|error| failed("make a sender", io::Error::other(error), "see there"))?;
    let mut netlink = Netlink::open(Family::Route)
        .map_err(|source| failed("speak to rtnetlink", source, "allow netlink sockets"))?;
    let _neighbour = Neighbour::add(&mut netlink, target, nobody)
        .map_err(|source| failed("add a neighbour entry for a moment", source, "grant CAP_NET_ADMIN"))?;

    let region = HeapRegion::new(MEASURED_EXTENTS + XDP_ASIDE_EXTENTS as usize);
    let arena = ExtentArena::with_aside(Box::new(region), XDP_ASIDE_EXTENTS);
    let mut sample = SamplePackets::new(&arena, MEASURED_EXTENTS as u32, dest)
        .ok_or_else(|| failed("make packets", io::Error::other("a fresh arena is in use"), "report this"))?;
    let kernel = RefCell::new(kernel);
    let mut plain = ByKernel { tx: &kernel, way: EgressPath::Kernel };
    let mut zero_copy = ByKernel { tx: &kernel, way: EgressPath::KernelZeroCopy };
    let device = open.map(|open| open(arena, hops(target, own, nobody)));
    let (device, no_xdp) = match device {
        Some(Ok(device)) => (Some(device), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, Some("not asked for".to_owned())),
    };
    let mut device = device.map(ByDevice);
    let mut contenders: Vec<&mut dyn Contender> = vec![&mut plain, &mut zero_copy];
    contenders.extend(device.as_mut().map(|device| device as &mut dyn Contender));
    let table = contest(&mut contenders, &mut sample, effort, &cpu_ns, &|| now().0);
    Ok(EgressMeasurement { table, no_xdp })
}

/// Returns the hop to an address that no host has.
fn hops(target: &TargetInterface, own: Ipv4Addr, nobody: Ipv4Addr) -> HopTable {
    let hop = Hop {
        if_index: target.if_index,
        link: LinkHeader { destination: target.mac, source: target.mac, vlan: None },
        source: IpAddr::V4(own),
        mtu: target.mtu,
        hop_limit: 1,
        usable: true,
        generation: 0,
    };
    HopTable::fixed(vec![(IpAddr::V4(nobody), hop)])
}

/// Processor time of this thread.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec.max(0) as u64) * NS_PER_S + time.tv_nsec as u64
}

fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    Instant((time.tv_sec.max(0) as u64) * NS_PER_S + time.tv_nsec as u64)
}

/// Two sockets that send by this interface only, to hosts on its link only, no farther than the first router.
fn sockets(target: &TargetInterface) -> io::Result<UdpPair> {
    let socket = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let index = i32::try_from(target.if_index).map_err(io::Error::other)?;
        set_int(socket.as_fd(), libc::SOL_SOCKET, SO_BINDTOIFINDEX, index)?;
        set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_DONTROUTE, 1)?;
        socket.set_ttl(1)?;
        socket.set_nonblocking(true)?;
        io::Result::Ok(socket)
    };
    Ok(UdpPair { rtp: socket()?, rtcp: socket()? })
}

/// A neighbour entry that is removed when the value is dropped.
struct Neighbour<'a> {
    netlink: &'a mut Netlink,
    if_index: u32,
    address: Ipv4Addr,
}

impl<'a> Neighbour<'a> {
    /// Adds an entry that maps `address` to the interface itself. Fails if there is one already.
    fn add(netlink: &'a mut Netlink, target: &TargetInterface, address: Ipv4Addr) -> io::Result<Self> {
        let request = Self::request(RTM_NEWNEIGH, NLM_F_CREATE_EXCL, target.if_index, address);
        netlink.ask(request.with(NDA_LLADDR, &target.mac), |_| ())?;
        Ok(Self { netlink, if_index: target.if_index, address })
    }

    fn request(kind: u16, flags: u16, if_index: u32, address: Ipv4Addr) -> NetlinkRequest {
        // struct ndmsg: family, padding, index, state, flags, type.
        let mut fixed = [0; 12];
        fixed[0] = libc::AF_INET as u8;
        fixed[4..8].copy_from_slice(&if_index.to_ne_bytes());
        fixed[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
        NetlinkRequest::new(kind, flags, &fixed).with(NDA_DST, &address.octets())
    }
}

impl Drop for Neighbour<'_> {
    fn drop(&mut self) {
        let request = Self::request(RTM_DELNEIGH, 0, self.if_index, self.address);
        // It fails only if the interface has gone, and the entry with it.
        let _ = self.netlink.ask(request, |_| ());
    }
}

/// One of the kernel's ways.
struct ByKernel<'a> {
    tx: &'a RefCell<KernelTx>,
    way: EgressPath,
}

impl Contender for ByKernel<'_> {
    fn way(&self) -> EgressPath {
        self.way
    }
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        let mut tx = self.tx.borrow_mut();
        match self.way {
            EgressPath::KernelZeroCopy => tx.send_zero_copy(batch, outcomes),
            _ => tx.send(batch, outcomes),
        }
    }
    fn settle(&mut self) {}
}

/// An AF_XDP device.
struct ByDevice<D>(D);

impl<D: XdpDevice> Contender for ByDevice<D> {
    fn way(&self) -> EgressPath {
        EgressPath::Xdp
    }
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        // Whether it can is asked for every burst in the loop, so it belongs to the price.
        let mut can_send = |index| {
            let transmit = batch.get(index);
            batch.shape(index, transmit.payload).is_ok_and(|shape| self.0.can_send(&transmit, &shape))
        };
        let can = (0..batch.len()).filter(|&index| can_send(index)).count();
        if can == batch.len() && !self.0.has_failed() {
            self.0.send(batch, outcomes);
            self.0.tend();
        } else {
            outcomes.fill(SendOutcome::Unreachable { errno: libc::EHOSTUNREACH });
        }
    }
    fn settle(&mut self) {
        let end = now().plus_ns(SETTLE_NS);
        while self.0.tend() && now() < end {
            std::thread::yield_now();
        }
    }
}
