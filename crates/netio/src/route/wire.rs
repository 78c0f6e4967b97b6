//! Rtnetlink: the queries, and the content of the kernel's messages about links, neighbours,
//! addresses and routes (linux/rtnetlink.h, linux/if_link.h, linux/neighbour.h).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{Attributes, NetlinkMessage, NetlinkRequest, bytes_of, u32_of};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;

/// LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE, NEXTHOP.
pub(super) const GROUPS: [u32; 9] = [1, 3, 5, 7, 8, 9, 11, 19, 32];

const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;
const ARPHRD_ETHER: u16 = 1;
const VLAN_8021Q: u16 = 0x8100;
const RTN_UNICAST: u8 = 1;
const RTN_MULTICAST: u8 = 5;
/// `RTNH_F_DEAD` and `RTNH_F_LINKDOWN`.
const RTNH_DEAD: u8 = 1 | 16;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NTF_USE: u8 = 1;
const NTF_EXT_LEARNED: u8 = 1 << 4;
const NTF_EXT_MANAGED: u32 = 1;

/// Ethernet address.
pub(super) type Mac = [u8; 6];

/// What frames put on a device become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    /// They leave as they are.
    Ethernet,
    /// They get a tag and leave by another device of the same namespace.
    Vlan { id: u16, lower: u32 },
    /// Something else: loopback, tunnels, bridges, bonds.
    Other,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkDevice {
    pub(super) index: u32,
    pub(super) kind: LinkKind,
    /// Up, with a carrier.
    pub(super) is_running: bool,
    pub(super) mac: Option<Mac>,
    pub(super) mtu: u32,
    /// Hop limit of IPv6 packets that leave here.
    pub(super) hop_limit_v6: Option<u8>,
}

/// The known state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    pub(super) key: NeighbourKey,
    pub(super) state: NeighbourState,
    /// Made and kept by an administrator or a routing daemon: not to be touched.
    pub(super) is_foreign: bool,
    /// Kept alive by the kernel already.
    pub(super) is_managed: bool,
}

/// Which neighbour it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NeighbourKey {
    pub(super) if_index: u32,
    pub(super) address: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighbourState {
    /// Being asked for.
    Incomplete,
    /// Its address is known; stale: not confirmed for a while.
    Valid { mac: Mac, is_stale: bool },
    /// It does not answer.
    Failed,
}

/// One of the ways that a route offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextHop {
    pub(super) if_index: u32,
    /// None: the destination itself is on the link.
    pub(super) gateway: Option<IpAddr>,
}

impl NextHop {
    /// Whose Ethernet address packets to `destination` bear.
    pub(super) fn neighbour(&self, destination: IpAddr) -> NeighbourKey {
        NeighbourKey { if_index: self.if_index, address: self.gateway.unwrap_or(destination) }
    }
}

/// How the kernel would send to one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// In the order in which to try them; empty: packets must not leave by a device of ours.
    pub(super) next_hops: Vec<NextHop>,
    pub(super) source: Option<IpAddr>,
    pub(super) mtu: Option<u32>,
    pub(super) hop_limit: Option<u8>,
}

/// A notification of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Link(LinkDevice),
    LinkGone(u32),
    Neighbour(Neighbour),
    NeighbourGone(NeighbourKey),
    /// Routes to these destinations may be others now.
    Routes(Prefix),
    /// Addresses, and with them sources, of a family (IPv6: true).
    Addresses(bool),
    /// Rules or shared next hops: anything may be different.
    Anything,
}

/// Destinations whose first bits are these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) address: IpAddr,
    pub(super) bits: u8,
}

impl Prefix {
    pub(super) fn holds(&self, other: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                bits == 0 || (a.to_bits() ^ b.to_bits()) >> 32u32.saturating_sub(bits).min(31) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                bits == 0 || (a.to_bits() ^ b.to_bits()) >> 128u32.saturating_sub(bits).min(127) == 0
            }
            _ => false,
        }
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

/// All devices.
pub(super) fn list_links() -> NetlinkRequest {
    const IFLA_EXT_MASK: u16 = 29;
    const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
    NetlinkRequest::new(RTM_GETLINK, 0, &[0; 16]).with_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
}

/// How packets to `destination` would leave.
pub(super) fn find_route(destination: IpAddr) -> NetlinkRequest {
    const RTA_DST: u16 = 1;
    let octets = octets(destination);
    let mut fixed = [0; 12];
    (fixed[0], fixed[1]) = (family(destination), octets.len() as u8 * 8);
    NetlinkRequest::new(RTM_GETROUTE, 0, &fixed).with(RTA_DST, &octets)
}

/// `struct ndmsg`.
fn neighbour_head(key: NeighbourKey, flags: u8) -> [u8; 12] {
    let mut fixed = [0; 12];
    fixed[0] = family(key.address);
    fixed[4..8].copy_from_slice(&key.if_index.to_ne_bytes());
    fixed[10] = flags;
    fixed
}

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_FLAGS_EXT: u16 = 15;

/// Requests the kernel's state of a neighbour.
pub(super) fn find_neighbour(key: NeighbourKey) -> NetlinkRequest {
    NetlinkRequest::new(RTM_GETNEIGH, 0, &neighbour_head(key, 0)).with(NDA_DST, &octets(key.address))
}

/// Has the kernel find a neighbour's address as if a packet went there, and, if it can (Linux 5.16), keep it fresh from
/// then on as long as `is_kept`. Older kernels do not look at that wish.
pub(super) fn use_neighbour(key: NeighbourKey, is_kept: bool) -> NetlinkRequest {
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    let request = NetlinkRequest::new(RTM_NEWNEIGH, flags, &neighbour_head(key, NTF_USE))
        .with(NDA_DST, &octets(key.address));
    if is_kept { request.with_u32(NDA_FLAGS_EXT, NTF_EXT_MANAGED) } else { request }
}

/// Reads a message; `None` if it is irrelevant here, or too short for its content.
pub(super) fn read(message: NetlinkMessage<'_>) -> Option<Told> {
    let body = message.body;
    match message.kind {
        RTM_NEWLINK => link(body).map(Told::Link),
        RTM_DELLINK if is_device(body) => u32_of(body, 4).map(Told::LinkGone),
        RTM_NEWNEIGH => neighbour(body),
        RTM_DELNEIGH => neighbour_key(body).map(Told::NeighbourGone),
        RTM_NEWROUTE | RTM_DELROUTE => prefix(body).map(Told::Routes),
        RTM_NEWADDR | RTM_DELADDR => Some(Told::Addresses(*body.first()? == AF_INET6)),
        RTM_NEWRULE | RTM_DELRULE | RTM_NEWNEXTHOP | RTM_DELNEXTHOP => Some(Told::Anything),
        _ => None,
    }
}

/// Bridges tell of their ports as links of their own family.
fn is_device(body: &[u8]) -> bool {
    body.first() == Some(&(libc::AF_UNSPEC as u8))
}

fn link(body: &[u8]) -> Option<LinkDevice> {
    const IFLA_ADDRESS: u16 = 1;
    const IFLA_MTU: u16 = 4;
    const IFLA_AF_SPEC: u16 = 26;
    const RUNNING: u32 = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;
    if !is_device(body) {
        return None;
    }
    let (link_type, index, flags) =
        (u16::from_ne_bytes(bytes_of(body, 2)?), u32_of(body, 4)?, u32_of(body, 8)?);
    let attributes = Attributes::behind(body, 16);
    let number = |kind| attributes.get(kind).and_then(|value| u32_of(value, 0));
    Some(LinkDevice {
        index,
        kind: if link_type == ARPHRD_ETHER { link_kind(&attributes) } else { LinkKind::Other },
        is_running: flags & RUNNING == RUNNING,
        mac: attributes.get(IFLA_ADDRESS).and_then(|value| value.try_into().ok()),
        mtu: number(IFLA_MTU)?,
        hop_limit_v6: attributes.get(IFLA_AF_SPEC).and_then(hop_limit_v6),
    })
}

fn link_kind(attributes: &Attributes<'_>) -> LinkKind {
    const IFLA_LINK: u16 = 5;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_LINK_NETNSID: u16 = 37;
    const IFLA_INFO_KIND: u16 = 1;
    const IFLA_INFO_DATA: u16 = 2;
    const IFLA_VLAN_ID: u16 = 1;
    const IFLA_VLAN_PROTOCOL: u16 = 5;
    // A device without a kind is a piece of hardware.
    let Some(info) = attributes.get(IFLA_LINKINFO).map(Attributes::new) else { return LinkKind::Ethernet };
    let Some(kind) = info.get(IFLA_INFO_KIND) else { return LinkKind::Ethernet };
    match kind.split(|&byte| byte == 0).next() {
        Some(b"veth" | b"tun" | b"netdevsim") => LinkKind::Ethernet,
        Some(b"vlan") if attributes.get(IFLA_LINK_NETNSID).is_none() => {
            let data = info.get(IFLA_INFO_DATA).map(Attributes::new);
            let of = |kind| data.as_ref().and_then(|d| d.get(kind)).and_then(|v| bytes_of::<2>(v, 0));
            let lower = attributes.get(IFLA_LINK).and_then(|value| u32_of(value, 0));
            match (of(IFLA_VLAN_ID).map(u16::from_ne_bytes), lower) {
                (Some(id), Some(lower))
                    if of(IFLA_VLAN_PROTOCOL).is_none_or(|p| u16::from_be_bytes(p) == VLAN_8021Q) =>
                {
                    LinkKind::Vlan { id, lower }
                }
                _ => LinkKind::Other,
            }
        }
        _ => LinkKind::Other,
    }
}

/// From the array of a device's IPv6 settings.
fn hop_limit_v6(af_spec: &[u8]) -> Option<u8> {
    const IFLA_INET6_CONF: u16 = 2;
    const DEVCONF_HOPLIMIT: usize = 1;
    let v6 = Attributes::new(Attributes::new(af_spec).get(u16::from(AF_INET6))?);
    u32_of(v6.get(IFLA_INET6_CONF)?, DEVCONF_HOPLIMIT * 4).and_then(|limit| u8::try_from(limit).ok())
}

fn neighbour_key(body: &[u8]) -> Option<NeighbourKey> {
    let of = Attributes::behind(body, 12).get(NDA_DST)?;
    Some(NeighbourKey { if_index: u32_of(body, 4)?, address: address(*body.first()?, of)? })
}

fn neighbour(body: &[u8]) -> Option<Told> {
    const NUD_STALE: u16 = 4;
    const NUD_FAILED: u16 = 32;
    const NUD_NOARP: u16 = 64;
    const NUD_PERMANENT: u16 = 128;
    /// Reachable, stale, delay, probe, or without resolution.
    const NUD_VALID: u16 = 2 | NUD_STALE | 8 | 16 | NUD_NOARP | NUD_PERMANENT;
    let key = neighbour_key(body)?;
    let (state, flags) = (u16::from_ne_bytes(bytes_of(body, 8)?), *body.get(10)?);
    let attributes = Attributes::behind(body, 12);
    let mac = attributes.get(NDA_LLADDR).and_then(|value| Mac::try_from(value).ok());
    let extended = attributes.get(NDA_FLAGS_EXT).and_then(|value| u32_of(value, 0)).unwrap_or(0);
    let told = match mac {
        Some(mac) if state & NUD_VALID != 0 => {
            NeighbourState::Valid { mac, is_stale: state & NUD_STALE != 0 }
        }
        _ if state & NUD_FAILED != 0 => NeighbourState::Failed,
        _ => NeighbourState::Incomplete,
    };
    Some(Told::Neighbour(Neighbour {
        key,
        state: told,
        is_foreign: state & (NUD_NOARP | NUD_PERMANENT) != 0 || flags & NTF_EXT_LEARNED != 0,
        is_managed: extended & NTF_EXT_MANAGED != 0,
    }))
}

const RTA_DST: u16 = 1;

fn prefix(body: &[u8]) -> Option<Prefix> {
    let (family, bits) = (*body.first()?, *body.get(1)?);
    let address = match (Attributes::behind(body, 12).get(RTA_DST), family) {
        (Some(value), _) => address(family, value)?,
        (None, AF_INET) => Ipv4Addr::UNSPECIFIED.into(),
        (None, AF_INET6) => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    // A route to one of the host's own addresses, or for a path's MTU, concerns that address alone.
    Some(Prefix { address, bits })
}

/// The answer to [`find_route`].
pub(super) fn read_route(message: NetlinkMessage<'_>) -> Option<Route> {
    const RTA_OIF: u16 = 4;
    const RTA_GATEWAY: u16 = 5;
    const RTA_PREFSRC: u16 = 7;
    const RTA_METRICS: u16 = 8;
    const RTA_MULTIPATH: u16 = 9;
    const RTA_VIA: u16 = 18;
    const RTA_NEWDST: u16 = 19;
    const RTA_ENCAP: u16 = 22;
    const RTAX_MTU: u16 = 2;
    const RTAX_HOPLIMIT: u16 = 10;
    let body = message.body;
    let (family, route_type) = (*body.first()?, *body.get(7)?);
    if message.kind != RTM_NEWROUTE {
        return None;
    }
    let attributes = Attributes::behind(body, 12);
    let metric = |kind| {
        let metrics = attributes.get(RTA_METRICS).map(Attributes::new)?;
        u32_of(metrics.get(kind)?, 0).filter(|&value| value > 0)
    };
    let gateway = |of: &Attributes<'_>| match (of.get(RTA_GATEWAY), of.get(RTA_VIA)) {
        (Some(value), _) => address(family, value),
        // A gateway of the other family.
        (None, Some(via)) => {
            let family = u8::try_from(u16::from_ne_bytes(bytes_of(via, 0)?)).ok()?;
            address(family, via.get(2..)?)
        }
        (None, None) => None,
    };
    let mut next_hops = Vec::new();
    let is_wrapped = |of: &Attributes<'_>| of.get(RTA_ENCAP).or(of.get(RTA_NEWDST)).is_some();
    if matches!(route_type, RTN_UNICAST | RTN_MULTICAST) && !is_wrapped(&attributes) {
        if let Some(if_index) = attributes.get(RTA_OIF).and_then(|value| u32_of(value, 0)) {
            next_hops.push(NextHop { if_index, gateway: gateway(&attributes) });
        }
        let mut rest = attributes.get(RTA_MULTIPATH).unwrap_or_default();
        // `struct rtnexthop`: length, flags, weight, interface; then attributes.
        while let Some(length) = bytes_of(rest, 0).map(u16::from_ne_bytes).map(usize::from) {
            let (Some(one), Some(if_index)) = (rest.get(..length), u32_of(rest, 4)) else { break };
            let of = Attributes::behind(one, 8);
            if length < 8 {
                break;
            }
            if one[2] & RTNH_DEAD == 0 && !is_wrapped(&of) {
                next_hops.push(NextHop { if_index, gateway: gateway(&of) });
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    Some(Route {
        next_hops,
        source: attributes.get(RTA_PREFSRC).and_then(|value| address(family, value)),
        mtu: metric(RTAX_MTU),
        hop_limit: metric(RTAX_HOPLIMIT).and_then(|limit| u8::try_from(limit).ok()),
    })
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
