//! TCP ports of addresses that the kernel has, at an Ethernet interface by AF_XDP. Everything else of these addresses stays the kernel's.
//!
//! ```text
//!   interface ─► steering program ─┬─ TCP to the ports, ICMP errors that quote TCP from them ─► engine
//!                                  └─ everything else: ARP, neighbour discovery, echo, other ports ─► kernel
//!   engine ─► IP packet ─► Ethernet header of the kernel's way to there ─► interface
//! ```
//!
//! To the engine it is a device for IP packets, like a TUN device: neighbours and routes are the kernel's.
//!
//! | file | holds |
//! | --- | --- |
//! | `held` | the kernel's side of the ports, so that no other program gets one |
//! | `ways` | Ethernet headers, and packets that wait for one |
//! | `stations` | the stations that answers to callers go back to |

mod held;
mod stations;
mod ways;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use millrace_core::limits::toe::MAX_OWN_PORTS;
use millrace_core::limits::{MAX_STEERED_PORTS, XDP_RAW_FRAME_BYTES};
use millrace_core::time::Instant;
use millrace_core::wire::frame::layout::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, put_link};
use millrace_core::wire::frame::{ETHERNET_HEADER_BYTES, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, LinkHeader};
use millrace_netio::features::DeviceFeatures;
use millrace_netio::route::RouteWatch;
use millrace_netio::xdp::steer::Steering;
use millrace_netio::xdp::{XdpQueues, XdpRawConfig};
use millrace_tcp::ip;
use millrace_tcp::keyed::HashKey;
use millrace_tcp::ports::PortSet;
use millrace_tcp::wire::Flags;

pub use self::held::ports_given_out;
use self::held::{PortReservation, no_connections};
use self::stations::{Mac, Stations};
use self::ways::{SteeredPacketKind, Ways, Where};
use super::device::{Device, DeviceAccess, Inbound};
use super::settings::EngineSettings;
use super::xdp::{MAX_MTU, access, from_steering, mode, no_ethernet, open_queues, station};

/// Room for an Ethernet header and all before the payload.
const FRONT_BYTES: usize = 160;

/// Ports of the kernel's addresses at an Ethernet interface.
///
/// The kernel gets everything again when this is dropped, or the process ends however it does; it knows nothing of the connections, and answers
/// their segments with resets.
pub struct XdpPorts {
    // Dropped in this order: no frame is given to a socket that is gone, and no other program gets
    // a port while its segments still arrive here.
    _steering: Steering,
    queues: XdpQueues,
    _held: Option<PortReservation>,
    mac: Mac,
    ways: Ways,
    /// When the last turn was.
    now: Instant,
}

impl XdpPorts {
    /// Takes the queues of the interface, whichever `config` names, and the ports `settings.stack.ports` of its addresses from the kernel. Settings are
    /// those of [`EngineSettings::on_ports`]; the interface is one of the calling thread's network namespace.
    ///
    /// # Errors
    /// Rights or abilities that are missing; an interface that is not there; an address that the kernel does not have; a port that it uses.
    pub fn open(config: &XdpRawConfig, settings: &EngineSettings) -> io::Result<Self> {
        let features = DeviceFeatures::of(&config.interface).map_err(io::Error::other)?;
        let mac = station(&features).ok_or_else(|| no_ethernet(&config.interface))?;
        let addresses: Vec<IpAddr> = settings.interface.addresses.iter().map(|address| address.ip).collect();
        let ports = &settings.stack.ports;
        check(&features, settings)?;
        let held = if settings.is_beside_listeners {
            no_connections(&addresses, ports)?;
            None
        } else {
            Some(PortReservation::take(&addresses, ports)?)
        };
        // Of each port of each address its segments, and the errors about them.
        let entries = 2 * ports.count() * addresses.len() as u32;
        let attach = || Steering::attach_with_room(&config.interface, entries.max(MAX_STEERED_PORTS));
        let (queues, steering) = open_queues(config, &features, attach)?;
        let watch = RouteWatch::start().map_err(io::Error::other)?;
        let (hops, mtu) = (watch.table(), settings.interface.mtu);
        let stations = Stations::new(HashKey::new([(); 2].map(|()| RandomState::new().hash_one(0))));
        let longest = ETHERNET_HEADER_BYTES + usize::from(mtu);
        let ways = Ways::new(hops, Some(watch), (features.if_index, mac), stations, longest);
        for &address in &addresses {
            for port in ports.iter() {
                steering.steer_tcp(SocketAddr::new(address, port)).map_err(from_steering)?;
            }
        }
        for (queue, socket) in queues.sockets() {
            steering.set_socket(queue, socket).map_err(from_steering)?;
        }
        Ok(Self { _steering: steering, queues, _held: held, mac, ways, now: Instant(0) })
    }

    /// How frames are handed over, and why not better: for a line of the log.
    pub fn mode(&self) -> String {
        mode(self.queues.strategy(), self.queues.refusal())
    }

    /// Sends a packet by a way that is known.
    fn send_by(queues: &mut XdpQueues, link: &LinkHeader, head: &[u8], body: &[&[u8]]) -> io::Result<bool> {
        let mut front = [0; FRONT_BYTES];
        let bytes = put_link(&mut front, link, ethertype(head));
        let Some(room) = front.get_mut(bytes..bytes + head.len()) else {
            // A packet that waited has its payload in its head.
            return queues.gather(&front[..bytes], &[head]).map_err(io::Error::other);
        };
        room.copy_from_slice(head);
        queues.gather(&front[..bytes + head.len()], body).map_err(io::Error::other)
    }
}

impl Device for XdpPorts {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        let Self { queues, ways, mac, .. } = self;
        Ok(queues.receive(&mut |frame| {
            if let Some((station, packet)) = packet_of(frame, *mac) {
                if let Some(host) = source(packet) {
                    ways.heard(host, station);
                }
                take(Inbound::new(packet));
            }
        }))
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        self.gather(packet, &[], &mut [])
    }

    fn gather(&mut self, head: &[u8], body: &[&[u8]], _: &mut [u8]) -> io::Result<bool> {
        let Some(remote) = destination(head) else { return Ok(true) };
        let kind = kind(head);
        match self.ways.way(remote, kind, self.now) {
            Where::There(link) => Self::send_by(&mut self.queues, &link, head, body),
            Where::NotKnown => {
                self.ways.put_off((remote, kind), head, body, self.now);
                Ok(true)
            }
            // As on any network without a way to there; TCP sends it again.
            Where::Elsewhere => Ok(true),
        }
    }

    fn flush(&mut self, now: Instant) -> io::Result<bool> {
        self.now = now;
        let queues = &mut self.queues;
        self.ways.look(now, &mut |link, packet| Self::send_by(queues, link, packet, &[]))?;
        self.queues.flush(now).map_err(io::Error::other)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.queues.readable()
    }

    fn due(&self) -> Option<Instant> {
        self.ways.due()
    }

    fn access(&self) -> DeviceAccess {
        access(&self.queues)
    }
}

impl EngineSettings {
    /// For an [`XdpPorts`] at an Ethernet interface of the calling thread's network namespace: the addresses are those that the kernel has there, and the
    /// engine has these TCP ports of them and nothing else. Connections from here have local ports among them.
    ///
    /// # Errors
    /// There is no such interface, or it has no Ethernet address.
    pub fn on_ports(mut self, interface: &str, ports: PortSet) -> io::Result<Self> {
        let features = DeviceFeatures::of(interface).map_err(io::Error::other)?;
        station(&features).ok_or_else(|| no_ethernet(interface))?;
        (self.has_ports_only, self.stack.ports) = (true, ports);
        self.interface.link = ip::LinkLayer::Ip;
        self.interface.answers_echo = false;
        self.interface.scope = features.if_index;
        self.interface.mtu = features.mtu.min(MAX_MTU) as u16;
        self.stack.config.mtu = self.interface.mtu;
        Ok(self)
    }

    /// The ports that the engine has of addresses that are the kernel's; `None`: the addresses are its own.
    pub fn own_ports(&self) -> Option<&PortSet> {
        self.has_ports_only.then_some(&self.stack.ports)
    }
}

/// Whether the settings are for such a device.
fn check(features: &DeviceFeatures, settings: &EngineSettings) -> io::Result<()> {
    let name = &features.name;
    let invalid = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    if !settings.has_ports_only || settings.interface.link != ip::LinkLayer::Ip {
        return invalid(format!(
            "the engine's settings are not for ports of the kernel's addresses at {name}: make them by EngineSettings::on_ports"
        ));
    }
    let count = settings.stack.ports.count();
    if count > MAX_OWN_PORTS {
        return invalid(format!("{count} ports of the kernel's addresses: choose {MAX_OWN_PORTS} at most"));
    }
    let longest = features.mtu.min(MAX_MTU);
    if u32::from(settings.interface.mtu) > longest {
        return invalid(format!(
            "the engine's packets have up to {} bytes, and interface {name} takes {longest} by AF_XDP: set a smaller MTU",
            settings.interface.mtu
        ));
    }
    Ok(())
}

/// The station that has sent a frame to this one, and the IP packet in it. One with a VLAN tag is another network's.
fn packet_of(frame: &[u8], mac: Mac) -> Option<(Mac, &[u8])> {
    let (header, packet) = frame.split_at_checked(ETHERNET_HEADER_BYTES)?;
    let is_ip = [ETHERTYPE_IPV4, ETHERTYPE_IPV6].iter().any(|kind| header.ends_with(kind));
    let station = header.get(6..12)?.try_into().ok()?;
    (header.starts_with(&mac) && is_ip).then_some((station, packet))
}

/// Where a packet comes from.
fn source(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 12, 8)
}

/// Where a packet goes to.
fn destination(head: &[u8]) -> Option<IpAddr> {
    address(head, 16, 24)
}

/// The address at this place of the header of IPv4 or IPv6.
fn address(head: &[u8], v4: usize, v6: usize) -> Option<IpAddr> {
    if is_v4(head) {
        return Some(Ipv4Addr::from(*head.get(v4..)?.first_chunk::<4>()?).into());
    }
    Some(Ipv6Addr::from(*head.get(v6..)?.first_chunk::<16>()?).into())
}

/// Classifies a packet of the engine by its relation to the receiver. Its IP header has neither
/// options nor extension headers.
fn kind(head: &[u8]) -> SteeredPacketKind {
    const FLAGS: usize = 13;
    let tcp = if is_v4(head) { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
    let flags = Flags(head.get(tcp + FLAGS).copied().unwrap_or(0));
    if flags.has(Flags::RST) {
        SteeredPacketKind::Reset
    } else if flags.has(Flags::SYN.with(Flags::ACK)) {
        SteeredPacketKind::Handshake
    } else {
        SteeredPacketKind::Other
    }
}

fn is_v4(head: &[u8]) -> bool {
    head.first().is_some_and(|first| first >> 4 == 4)
}

fn ethertype(head: &[u8]) -> [u8; 2] {
    if is_v4(head) { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }
}

const _: () = assert!(MAX_MTU as usize + ETHERNET_HEADER_BYTES <= XDP_RAW_FRAME_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    fn frame(mac: Mac, kind: [u8; 2], packet: &[u8]) -> Vec<u8> {
        [&mac[..], &[2; 6], &kind, packet].concat()
    }

    #[test]
    fn packets_of_frames_to_this_station_are_shown() {
        for kind in [ETHERTYPE_IPV4, ETHERTYPE_IPV6] {
            assert_eq!(packet_of(&frame(MAC, kind, b"packet"), MAC), Some(([2; 6], &b"packet"[..])));
        }
        let others = [
            frame([2; 6], ETHERTYPE_IPV4, b"packet"),
            frame([0xff; 6], ETHERTYPE_IPV4, b"packet"),
            frame(MAC, [8, 6], b"packet"),
            frame(MAC, [0x81, 0], b"packet"),
            frame(MAC, ETHERTYPE_IPV4, b"")[..13].to_vec(),
            Vec::new(),
        ];
        for frame in others {
            assert_eq!(packet_of(&frame, MAC), None, "{frame:?}");
        }
    }

    #[test]
    fn destination_source_and_ethertype_are_read_from_header() {
        let mut v4 = [0; 20];
        v4[0] = 0x45;
        v4[12..].copy_from_slice(&[10, 3, 2, 1, 10, 1, 2, 3]);
        assert_eq!(destination(&v4), Some("10.1.2.3".parse().unwrap()));
        let mut v6 = [0; 40];
        (v6[0], v6[8], v6[23], v6[24], v6[39]) = (0x60, 0xfe, 9, 0xfd, 7);
        assert_eq!(destination(&v6), Some("fd00::7".parse().unwrap()));
        assert_eq!(source(&v4), Some("10.3.2.1".parse().unwrap()));
        assert_eq!(source(&v6), Some("fe00::9".parse().unwrap()));
        assert_eq!((ethertype(&v4), ethertype(&v6)), (ETHERTYPE_IPV4, ETHERTYPE_IPV6));
        assert_eq!((destination(&v4[..19]), destination(&v6[..39]), destination(&[])), (None, None, None));
    }

    #[test]
    fn kind_of_syn_ack_is_handshake_and_of_rst_is_reset() {
        let (fin, syn, rst, ack) = (Flags::FIN, Flags::SYN, Flags::RST, Flags::ACK);
        for (flags, expected) in [
            (syn.with(ack), SteeredPacketKind::Handshake),
            (syn.with(ack).with(Flags::ECE), SteeredPacketKind::Handshake),
            (rst, SteeredPacketKind::Reset),
            (rst.with(ack), SteeredPacketKind::Reset),
            // A host of the engine calls.
            (syn, SteeredPacketKind::Other),
            (ack, SteeredPacketKind::Other),
            (fin.with(ack), SteeredPacketKind::Other),
        ] {
            for (version, header) in [(0x45, 20), (0x60, 40)] {
                let mut head = vec![0; header + 20];
                (head[0], head[header + 13]) = (version, flags.0);
                assert_eq!(kind(&head), expected, "{flags:?}");
            }
        }
        assert_eq!(kind(&[0x45; 33]), SteeredPacketKind::Other, "no whole segment");
    }

    #[test]
    fn settings_for_another_device_say_what_to_do() {
        let mut features = DeviceFeatures::of("lo").unwrap();
        (features.name, features.mtu) = ("eth7".to_owned(), 1500);
        let addresses = [("10.0.0.1".parse().unwrap(), 24)];
        let refusal = |settings: &EngineSettings| check(&features, settings).unwrap_err().to_string();
        let mut settings = EngineSettings::new(&addresses);
        assert!(refusal(&settings).contains("EngineSettings::on_ports"));
        (settings.has_ports_only, settings.stack.ports) = (true, (80..=1103).into());
        assert!(check(&features, &settings).is_ok());
        settings.interface.mtu = 1501;
        assert!(refusal(&settings).contains("1501") && refusal(&settings).contains("eth7"));
        settings.stack.ports = (80..=1104).into();
        assert!(refusal(&settings).contains("1025 ports") && refusal(&settings).contains("1024 at most"));
    }
}
