//! How large a viewer's packets are: the largest of the allowed sizes that its path carries in one piece.
//!
//! Fewer, larger packets cost less everywhere; a packet that has to be cut into IP fragments costs more, and is lost when
//! one fragment is. So the kernel is asked how large a datagram may be on the way to the viewer.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

use millrace_core::limits::{DEFAULT_PACKET_BYTES, RTP_HEADER_BYTES};
use millrace_core::wire::frame::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, UDP_HEADER_BYTES};
use millrace_store::packet_size::{PACKET_CLASSES, PacketSize, PacketSizeError};

/// Packet sizes that viewers by UDP may get, ascending, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketSizes(Vec<u16>);

impl Default for PacketSizes {
    /// The default size only.
    fn default() -> Self {
        Self(vec![DEFAULT_PACKET_BYTES as u16])
    }
}

impl PacketSizes {
    /// Whether no path has to be asked about.
    pub(super) fn is_default_only(&self) -> bool {
        *self == Self::default()
    }

    /// The largest that fits a path of this MTU; the default size if none does, or the MTU is not known.
    pub(super) fn choose(&self, dest: SocketAddr, mtu: Option<u32>) -> usize {
        let ip = if dest.is_ipv4() { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
        let headers = ip + UDP_HEADER_BYTES + RTP_HEADER_BYTES;
        let room = mtu.map_or(0, |mtu| (mtu as usize).saturating_sub(headers));
        let fitting = self.0.iter().rev().find(|&&size| usize::from(size) <= room);
        fitting.map_or(DEFAULT_PACKET_BYTES, |&size| usize::from(size))
    }
}

impl FromStr for PacketSizes {
    type Err = PacketSizeError;

    /// `auto`, or sizes and names of classes between commas.
    fn from_str(text: &str) -> Result<Self, PacketSizeError> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self(PACKET_CLASSES.iter().map(|class| class.1).collect()));
        }
        let size = |text: &str| Ok(text.trim().parse::<PacketSize>()?.0);
        let mut sizes = text.split(',').map(size).collect::<Result<Vec<u16>, PacketSizeError>>()?;
        sizes.sort_unstable();
        sizes.dedup();
        Ok(Self(sizes))
    }
}

impl fmt::Display for PacketSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.0.iter().map(u16::to_string).collect();
        f.write_str(&sizes.join(","))
    }
}

/// A source of path MTUs towards addresses.
pub type PathMtu = fn(SocketAddr) -> Option<u32>;

/// The kernel: what its route to `dest` and the ICMP messages that came from there say. Nothing is sent. `None` if there is
/// no route.
pub fn kernel_path_mtu(dest: SocketAddr) -> Option<u32> {
    let socket = connected(dest)?;
    let mtu = match dest.ip().to_canonical() {
        IpAddr::V4(_) => rustix::net::sockopt::ip_mtu(&socket),
        IpAddr::V6(_) => rustix::net::sockopt::ipv6_mtu(&socket),
    };
    mtu.ok()
}

/// The source address that the kernel's route to `dest` uses; `None` if there is no route.
pub fn kernel_source(dest: SocketAddr) -> Option<IpAddr> {
    Some(connected(dest)?.local_addr().ok()?.ip())
}

fn connected(dest: SocketAddr) -> Option<UdpSocket> {
    let dest = SocketAddr::new(dest.ip().to_canonical(), dest.port());
    let socket = match dest {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = socket.ok()?;
    socket.connect(dest).ok()?;
    Some(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), 9)
    }

    #[test]
    fn choose_returns_largest_packet_size_within_mtu() {
        let auto: PacketSizes = "auto".parse().unwrap();
        let (v4, v6) = (at("10.0.0.1"), at("fd00::1"));
        for (mtu, v4_size, v6_size) in [
            (1500, 1316, 1316),
            (1356, 1316, 940),
            (1355, 940, 940),
            (1999, 1880, 1880),
            (1939, 1880, 1316),
            (9000, 8084, 8084),
            (8124, 8084, 3948),
            (65_536, 8084, 8084),
            (576, 1316, 1316),
            (0, 1316, 1316),
        ] {
            let found = [v4, v6].map(|dest| auto.choose(dest, Some(mtu)));
            assert_eq!(found, [v4_size, v6_size], "MTU {mtu}");
        }
        assert_eq!(auto.choose(v4, None), 1316);
        let only: PacketSizes = "8k".parse().unwrap();
        assert_eq!([only.choose(v4, Some(9000)), only.choose(v4, Some(1500))], [8084, 1316]);
        assert_eq!(PacketSizes::default().choose(v4, Some(65_536)), 1316);
    }

    #[test]
    fn lists_of_sizes() {
        assert_eq!("8084, 1316,8k,1k".parse::<PacketSizes>().unwrap().to_string(), "940,1316,8084");
        assert!("1316".parse::<PacketSizes>().unwrap().is_default_only());
        assert_eq!("auto".parse::<PacketSizes>().unwrap().to_string(), "940,1316,1880,3948,8084");
        for bad in ["", "1316,", "1000", "any"] {
            assert!(bad.parse::<PacketSizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kernel_path_mtu_of_loopback_equals_device_mtu() {
        let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        // No IPv4 datagram is longer than 65535 bytes, whatever the device takes.
        let mtu = mtu.trim().parse::<u32>().unwrap().min(65_535);
        assert_eq!(kernel_path_mtu(at("127.0.0.1")), Some(mtu));
        assert_eq!(kernel_path_mtu(at("::ffff:127.0.0.1")), Some(mtu));
    }
}
