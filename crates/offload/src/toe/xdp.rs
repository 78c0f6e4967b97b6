//! An Ethernet interface whose frames go past the kernel's network stack, by AF_XDP.
//!
//! ```text
//!   interface ─► steering program ─┬─ TCP and ICMP to the engine's addresses, ARP and neighbour discovery about them ─► engine
//!                                  └─ everything else, the kernel's own addresses first of all ─► kernel
//! ```

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{BorrowedFd, OwnedFd};

use millrace_core::limits::XDP_RAW_FRAME_BYTES;
use millrace_core::time::Instant;
use millrace_core::wire::frame::{ETHERNET_HEADER_BYTES, VLAN_TAG_BYTES};
use millrace_netio::bpf::BpfError;
use millrace_netio::features::{DeviceFeatures, XdpFeatures};
use millrace_netio::xdp::steer::{SteerError, Steering};
use millrace_netio::xdp::{Strategy, XdpError, XdpQueues, XdpRawConfig};
use millrace_tcp::ip;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::device::{Device, DeviceAccess, Inbound};
use super::settings::EngineSettings;

/// Longest IP packet of an engine behind such a device.
pub(super) const MAX_MTU: u32 = (XDP_RAW_FRAME_BYTES - ETHERNET_HEADER_BYTES - VLAN_TAG_BYTES) as u32;

/// All queues of an Ethernet interface, which the engine shares with the kernel: each has addresses of its own.
///
/// The kernel gets everything again when this is dropped, or the process ends however it does.
pub struct XdpDevice {
    // In this order: no frame is given to a socket that is gone.
    _steering: Steering,
    queues: XdpQueues,
    /// Member of the groups that others ask for the engine's addresses, so that the interface lets them in.
    _groups: Option<OwnedFd>,
}

impl XdpDevice {
    /// Longest IP packet, whatever the interface takes.
    pub const LONGEST_PACKET: u32 = MAX_MTU;

    /// Takes the queues, whichever `config` names, and the frames for the addresses of `interface` from the kernel. Those addresses must not be the kernel's. The
    /// interface is one of the calling thread's network namespace.
    ///
    /// # Errors
    /// Rights or abilities that are missing (a TUN device needs fewer), an interface that is not there; settings for another link.
    pub fn open(config: &XdpRawConfig, interface: &ip::Settings) -> io::Result<Self> {
        let features = DeviceFeatures::of(&config.interface).map_err(io::Error::other)?;
        check(&features, interface)?;
        let (queues, steering) = open_queues(config, &features, || Steering::attach(&config.interface))?;
        let groups = join(&features, interface)?;
        for address in &interface.addresses {
            steering.steer_address(address.ip).map_err(from_steering)?;
        }
        for (queue, socket) in queues.sockets() {
            steering.set_socket(queue, socket).map_err(from_steering)?;
        }
        Ok(Self { _steering: steering, queues, _groups: groups })
    }

    /// How frames are handed over, and why not better: for a line of the log.
    pub fn mode(&self) -> String {
        mode(self.queues.strategy(), self.queues.refusal())
    }
}

/// Takes the queues of an interface and its hook. Drivers use a socket's memory without copying only while a program is at the hook. In copy mode
/// the queues come first: the program that has them is named then.
pub(super) fn open_queues(
    config: &XdpRawConfig,
    features: &DeviceFeatures,
    attach: impl FnOnce() -> Result<Steering, SteerError>,
) -> io::Result<(XdpQueues, Steering)> {
    let open = || XdpQueues::open(config, features.rx_queues.unwrap_or(1)).map_err(from_xdp);
    if features.xdp_features.is_some_and(XdpFeatures::is_zero_copy) {
        let steering = attach().map_err(from_steering)?;
        return Ok((open()?, steering));
    }
    let queues = open()?;
    Ok((queues, attach().map_err(from_steering)?))
}

/// How a device hands frames over, in words.
pub(super) fn mode(strategy: Strategy, refusal: Option<&XdpError>) -> String {
    let by = if strategy.is_zero_copy() { "zero copy" } else { "copy mode" };
    let payload =
        if strategy.is_chained() { "sent from the cache's memory" } else { "copied once into a frame" };
    let why = refusal.map(|error| format!("; {error}")).unwrap_or_default();
    format!("AF_XDP in {by}, payload {payload}{why}")
}

/// How a device gets at the bytes of packets.
pub(super) fn access(queues: &XdpQueues) -> DeviceAccess {
    DeviceAccess { is_zero_copy: queues.strategy().is_zero_copy(), chained: queues.chained() }
}

impl Device for XdpDevice {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        Ok(self.queues.receive(&mut |frame| take(Inbound::new(frame))))
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        self.queues.send(packet).map_err(io::Error::other)
    }

    fn gather(&mut self, head: &[u8], body: &[&[u8]], _: &mut [u8]) -> io::Result<bool> {
        self.queues.gather(head, body).map_err(io::Error::other)
    }

    fn flush(&mut self, now: Instant) -> io::Result<bool> {
        self.queues.flush(now).map_err(io::Error::other)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.queues.readable()
    }

    fn access(&self) -> DeviceAccess {
        access(&self.queues)
    }
}

impl EngineSettings {
    /// With the link, the MTU and the number of an Ethernet interface of the calling thread's network namespace, for an [`XdpDevice`] there.
    /// Gateways are still to be set, if there are any.
    ///
    /// # Errors
    /// There is no such interface, or it has no Ethernet address.
    pub fn on_ethernet(mut self, interface: &str) -> io::Result<Self> {
        let features = DeviceFeatures::of(interface).map_err(io::Error::other)?;
        let Some(mac) = station(&features) else { return Err(no_ethernet(interface)) };
        self.interface.link = ip::LinkLayer::Ethernet { mac, vlan: None };
        self.interface.scope = features.if_index;
        self.interface.mtu = features.mtu.min(MAX_MTU) as u16;
        self.stack.config.mtu = self.interface.mtu;
        Ok(self)
    }
}

/// The Ethernet address of an interface. That of loopback is all zeros, and is none.
pub(super) fn station(features: &DeviceFeatures) -> Option<[u8; 6]> {
    features.mac.filter(|mac| *mac != [0; 6])
}

pub(super) fn no_ethernet(interface: &str) -> io::Error {
    let text = format!(
        "interface {interface} has no Ethernet address: choose an Ethernet interface, or a TUN device"
    );
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Checks that the engine's packets fit the interface, and that packets for it reach the queue.
fn check(features: &DeviceFeatures, settings: &ip::Settings) -> io::Result<()> {
    let name = &features.name;
    let own = station(features).ok_or_else(|| no_ethernet(name))?;
    let invalid = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    if !matches!(settings.link, ip::LinkLayer::Ethernet { mac, .. } if mac == own) {
        return invalid(format!(
            "the engine's link is {:?}, and interface {name} is Ethernet with the address {own:x?}: make the settings by EngineSettings::on_ethernet",
            settings.link
        ));
    }
    let longest = features.mtu.min(MAX_MTU);
    if u32::from(settings.mtu) > longest {
        return invalid(format!(
            "the engine's packets have up to {} bytes, and interface {name} takes {longest} by AF_XDP: set a smaller MTU",
            settings.mtu
        ));
    }
    Ok(())
}

/// Makes the interface receive packets sent to the groups of the engine's IPv6 addresses, while the
/// descriptor is open.
fn join(features: &DeviceFeatures, settings: &ip::Settings) -> io::Result<Option<OwnedFd>> {
    let fault = |group: Ipv6Addr, source: Errno| {
        let source = io::Error::from(source);
        let text = format!(
            "interface {}: cannot receive the group {group}, by which neighbours ask for the engine's address ({source}); switch IPv6 on in \
             the kernel (it needs no address there), or give the engine none",
            features.name
        );
        io::Error::new(source.kind(), text)
    };
    let mut socket = None;
    for group in settings.solicited_groups() {
        let fd = match &socket {
            Some(fd) => fd,
            None => socket.insert(
                socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                    .map_err(|errno| fault(group, errno))?,
            ),
        };
        match sockopt::set_ipv6_add_membership(fd, &group, features.if_index) {
            // Addresses with the same last bytes have one group.
            Ok(()) | Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(fault(group, errno)),
        }
    }
    Ok(socket)
}

/// Returns an error that also names the alternative without these requirements.
fn with_remedy(source: Option<&io::Error>, error: &dyn std::error::Error) -> io::Error {
    let kind = source.map_or(io::ErrorKind::Other, io::Error::kind);
    io::Error::new(kind, format!("{error}. Or give the engine a TUN device, which needs CAP_NET_ADMIN only"))
}

pub(super) fn from_xdp(error: XdpError) -> io::Error {
    let source = match &error {
        XdpError::Call { source, .. } | XdpError::Locked { source, .. } => Some(source),
        _ => None,
    };
    with_remedy(source, &error)
}

pub(super) fn from_steering(error: SteerError) -> io::Error {
    let source = match &error {
        SteerError::Bpf(BpfError::Call { source, .. }) => Some(source),
        _ => None,
    };
    with_remedy(source, &error)
}

#[cfg(test)]
#[path = "xdp_tests.rs"]
mod tests;
