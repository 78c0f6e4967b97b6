//! Where a stream's packets go: one type from the control side to the devices.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use crate::ids::{ConnId, MulticastId};
use crate::source::SourceId;

/// A destination. Whether the packets that go there begin with RTP headers is a property of their layout
/// ([`crate::packet::WireLayout::is_raw`]), not of this.
///
/// `C` is the name of a connection: engines and devices have numbers of their own, the control side calls it as it likes until an
/// engine writes to it ([`Dest::with_conn`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dest<C = ConnId> {
    /// Datagrams to one viewer, whose two ports share one address.
    Udp {
        /// The viewer.
        ip: IpAddr,
        /// IPv6 zone of a link-local address, 0 otherwise.
        scope_id: u32,
        /// Port of the media.
        port: u16,
        /// Port of RTCP; `None`: no client listens for it, and none is sent.
        rtcp_port: Option<u16>,
        /// Source address of the datagrams.
        source: SourceId,
    },
    /// Datagrams to a group, for every receiver that has joined it. No receiver answers, and no
    /// neighbour has to be known.
    Multicast {
        /// The group.
        group: IpAddr,
        /// Port of the media.
        port: u16,
        /// Port of RTCP; `None`: none is sent.
        rtcp_port: Option<u16>,
        /// The egress socket: interface, source address, time to live and whether this host hears
        /// it.
        via: MulticastId,
    },
    /// RTP and RTCP interleaved in an RTSP connection (RFC 2326 section 10.12).
    Interleaved {
        /// The connection.
        conn: C,
        /// Channel of RTP.
        rtp_channel: u8,
        /// Channel of RTCP.
        rtcp_channel: u8,
    },
    /// Bytes in a connection: the payloads of packets, one behind the other, with nothing around them
    /// ([`crate::seam::Payload::Bytes`]). No RTCP.
    Bytes {
        /// The connection.
        conn: C,
    },
}

const _: () = assert!(size_of::<Dest>() == 28, "a destination lies beside two leases, and in a command");

impl<C: Copy> Dest<C> {
    /// Datagrams to `to`, RTCP to another port of the same address.
    pub fn udp(to: SocketAddr, rtcp_port: Option<u16>) -> Self {
        let scope_id = match to {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(to) => to.scope_id(),
        };
        Self::Udp { ip: to.ip(), scope_id, port: to.port(), rtcp_port, source: SourceId::BY_ROUTE }
    }

    /// Returns the destination with this source address; only [`Dest::Udp`] takes one.
    #[must_use]
    pub fn with_source(mut self, from: SourceId) -> Self {
        if let Self::Udp { source, .. } = &mut self {
            *source = from;
        }
        self
    }

    /// Returns the source address of datagrams to one viewer. Other destinations return
    /// [`SourceId::BY_ROUTE`], because their socket or connection determines the address.
    #[inline]
    pub fn source(&self) -> SourceId {
        match *self {
            Self::Udp { source, .. } => source,
            Self::Multicast { .. } | Self::Interleaved { .. } | Self::Bytes { .. } => SourceId::BY_ROUTE,
        }
    }

    /// Returns the UDP address that RTCP, or else media, goes to; `None` if it does not go by UDP,
    /// or if no client listens for RTCP.
    #[inline]
    pub fn address(&self, is_rtcp: bool) -> Option<SocketAddr> {
        let (ip, scope_id, port, rtcp_port) = match *self {
            Self::Udp { ip, scope_id, port, rtcp_port, .. } => (ip, scope_id, port, rtcp_port),
            // The socket's interface is the zone.
            Self::Multicast { group, port, rtcp_port, .. } => (group, 0, port, rtcp_port),
            Self::Interleaved { .. } | Self::Bytes { .. } => return None,
        };
        let port = if is_rtcp { rtcp_port? } else { port };
        Some(match ip {
            IpAddr::V4(ip) => SocketAddr::from((ip, port)),
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope_id)),
        })
    }

    /// Returns the connection that it goes through; the owner of the connection reports when it has
    /// room.
    #[inline]
    pub fn conn(&self) -> Option<C> {
        match *self {
            Self::Interleaved { conn, .. } | Self::Bytes { conn } => Some(conn),
            Self::Udp { .. } | Self::Multicast { .. } => None,
        }
    }

    /// The same through the connection that `name` knows by another name; `None` if it knows none.
    pub fn with_conn<D>(self, name: impl FnOnce(C) -> Option<D>) -> Option<Dest<D>> {
        Some(match self {
            Self::Udp { ip, scope_id, port, rtcp_port, source } => {
                Dest::Udp { ip, scope_id, port, rtcp_port, source }
            }
            Self::Multicast { group, port, rtcp_port, via } => {
                Dest::Multicast { group, port, rtcp_port, via }
            }
            Self::Interleaved { conn, rtp_channel, rtcp_channel } => {
                Dest::Interleaved { conn: name(conn)?, rtp_channel, rtcp_channel }
            }
            Self::Bytes { conn } => Dest::Bytes { conn: name(conn)? },
        })
    }

    /// The same ports at the address of `viewer`.
    pub fn at(self, viewer: SocketAddr) -> Self {
        match self {
            Self::Udp { port, rtcp_port, source, .. } => {
                let mut to = viewer;
                to.set_port(port);
                Self::udp(to, rtcp_port).with_source(source)
            }
            Self::Multicast { .. } | Self::Interleaved { .. } | Self::Bytes { .. } => self,
        }
    }

    /// Another UDP port of the same viewer, or group, without RTCP; `None` if it has no UDP ports.
    pub fn beside<D>(self, port: u16) -> Option<Dest<D>> {
        match self {
            Self::Udp { ip, scope_id, source, .. } => {
                Some(Dest::Udp { ip, scope_id, port, rtcp_port: None, source })
            }
            Self::Multicast { group, via, .. } => Some(Dest::Multicast { group, port, rtcp_port: None, via }),
            Self::Interleaved { .. } | Self::Bytes { .. } => None,
        }
    }

    /// Whether anybody listens for RTCP there.
    pub fn has_rtcp(&self) -> bool {
        match self {
            Self::Udp { rtcp_port, .. } | Self::Multicast { rtcp_port, .. } => rtcp_port.is_some(),
            Self::Interleaved { .. } => true,
            Self::Bytes { .. } => false,
        }
    }
}

impl<C> fmt::Display for Dest<C> {
    /// Shows the transport, not the address: the viewer's address stands beside it wherever this is
    /// printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp { port, rtcp_port: Some(rtcp_port), .. } => write!(f, "udp {port}-{rtcp_port}"),
            Self::Udp { port, rtcp_port: None, .. } => write!(f, "udp {port}"),
            Self::Multicast { group, port, .. } => write!(f, "multicast {group} port {port}"),
            Self::Interleaved { rtp_channel, rtcp_channel, .. } => {
                write!(f, "tcp channels {rtp_channel}-{rtcp_channel}")
            }
            Self::Bytes { .. } => f.write_str("tcp bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn udp_has_two_ports_of_one_address() {
        for (text, rtcp) in [("192.0.2.7:5000", "192.0.2.7:5001"), ("[fe80::1%3]:5000", "[fe80::1%3]:5001")] {
            let dest: Dest = Dest::udp(addr(text), Some(5001));
            assert_eq!([dest.address(false), dest.address(true)], [Some(addr(text)), Some(addr(rtcp))]);
            assert_eq!((dest.conn(), dest.to_string()), (None, "udp 5000-5001".into()));
            let beside: Dest = dest.beside(5002).unwrap();
            assert_eq!((beside.address(false).unwrap().port(), beside.address(true)), (5002, None));
            assert_eq!(beside.to_string(), "udp 5002");
        }
    }

    #[test]
    fn dest_source_is_kept_by_beside_at_and_with_conn() {
        let source = crate::source::SourceTable::default().row_of([192, 0, 2, 1].into());
        let dest: Dest = Dest::udp(addr("192.0.2.7:5000"), Some(5001)).with_source(source);
        let beside: Dest = dest.beside(5002).unwrap();
        let named: Dest<u64> = dest.with_conn(|_| None).unwrap();
        let all = [dest.source(), beside.source(), dest.at(addr("192.0.2.8:1")).source(), named.source()];
        assert_eq!(all, [source; 4]);
        let conn: Dest<u64> = Dest::Bytes { conn: 9 };
        assert!(conn.with_source(source).source().is_by_route());
    }

    #[test]
    fn multicast_dest_has_group_addresses_and_ignores_viewer_address() {
        let (group, via) = ("239.1.2.3".parse().unwrap(), MulticastId(2));
        let dest: Dest = Dest::Multicast { group, port: 5000, rtcp_port: Some(5001), via };
        let addresses = [dest.address(false), dest.address(true)];
        assert_eq!(addresses, [Some(addr("239.1.2.3:5000")), Some(addr("239.1.2.3:5001"))]);
        let without = Dest::Multicast { group, port: 5002, rtcp_port: None, via };
        assert_eq!((dest.beside(5002), dest.at(addr("192.0.2.7:1"))), (Some(without), dest));
        assert_eq!([dest, without].map(|dest| dest.has_rtcp()), [true, false]);
        assert_eq!((dest.conn(), dest.to_string()), (None, "multicast 239.1.2.3 port 5000".into()));
        assert_eq!(dest.with_conn(|_| None), Some(dest));
    }

    #[test]
    fn dest_at_changes_udp_address_but_not_tcp() {
        let dest: Dest = Dest::udp(addr("192.0.2.7:5000"), Some(5001));
        assert_eq!(dest.at(addr("[fe80::9%2]:99")), Dest::udp(addr("[fe80::9%2]:5000"), Some(5001)));
        let conn: Dest<u64> = Dest::Interleaved { conn: 9, rtp_channel: 2, rtcp_channel: 3 };
        assert_eq!((conn.at(addr("192.0.2.7:1")), conn.beside::<u64>(1)), (conn, None));
        assert_eq!((conn.address(false), conn.to_string()), (None, "tcp channels 2-3".into()));
        let bytes: Dest<u64> = Dest::Bytes { conn: 9 };
        assert_eq!(
            (bytes.at(addr("192.0.2.7:1")), bytes.conn(), bytes.to_string()),
            (bytes, Some(9), "tcp bytes".into())
        );
        assert_eq!([dest, dest.beside(5).unwrap()].map(|dest| dest.has_rtcp()), [true, false]);
        assert_eq!([conn, bytes].map(|dest| dest.has_rtcp()), [true, false]);
    }

    #[test]
    fn connections_are_renamed_where_they_are_known() {
        let dest: Dest<u64> = Dest::Interleaved { conn: 9, rtp_channel: 2, rtcp_channel: 3 };
        let named = dest.with_conn(|conn| (conn == 9).then_some(ConnId(1)));
        assert_eq!(named, Some(Dest::Interleaved { conn: ConnId(1), rtp_channel: 2, rtcp_channel: 3 }));
        assert_eq!(dest.with_conn(|_| None::<ConnId>), None);
        let bytes = Dest::Bytes { conn: 9 };
        assert_eq!(bytes.with_conn(|_| Some(ConnId(4))), Some(Dest::Bytes { conn: ConnId(4) }));
        let udp: Dest<u64> = Dest::udp(addr("192.0.2.7:5000"), None);
        assert_eq!(udp.with_conn(|_| None), Some(Dest::<ConnId>::udp(addr("192.0.2.7:5000"), None)));
    }
}
