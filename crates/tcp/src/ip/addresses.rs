//! Own addresses, their subnets and gateways, as words that are compared with those of a [`FlowKey`](crate::wire::FlowKey).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_core::limits::ip::MAX_ADDRESSES;

use super::settings::{Settings, is_host};

/// An address as [`FlowKey::words`](crate::wire::FlowKey::words) has it: IPv4 mapped to IPv6, bytes as they lie in memory.
pub(super) type AddressKey = [u64; 2];

/// No address.
pub(super) const NO_KEY: AddressKey = [0; 2];

/// Words of an address.
#[inline]
pub(super) fn key_v6(octets: &[u8; 16]) -> AddressKey {
    let (words, _) = octets.as_chunks::<8>();
    [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])]
}

/// The same of an IPv4 address.
#[inline]
pub(super) fn key_v4([a, b, c, d]: [u8; 4]) -> AddressKey {
    [0, u64::from_ne_bytes([0, 0, 0xff, 0xff, a, b, c, d])]
}

/// The same of either.
pub(super) fn key_of(ip: IpAddr) -> AddressKey {
    match ip {
        IpAddr::V4(ip) => key_v4(ip.octets()),
        IpAddr::V6(ip) => key_v6(&ip.octets()),
    }
}

/// The address of these words.
pub(super) fn ip_of(key: AddressKey) -> IpAddr {
    let mut octets = [0; 16];
    octets[..8].copy_from_slice(&key[0].to_ne_bytes());
    octets[8..].copy_from_slice(&key[1].to_ne_bytes());
    Ipv6Addr::from(octets).to_canonical()
}

/// Whether the words are those of an IPv4 address.
#[inline]
pub(super) fn is_v4(key: AddressKey) -> bool {
    key[0] == 0 && key[1].to_ne_bytes()[..4] == [0, 0, 0xff, 0xff]
}

/// A subnet.
#[derive(Clone, Copy, Debug, Default)]
struct Subnet {
    network: AddressKey,
    mask: AddressKey,
    /// Its directed broadcast address, or [`NO_KEY`].
    broadcast: AddressKey,
}

impl Subnet {
    fn new(network: AddressKey, bits: u32) -> Self {
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        let mask = key_v6(&mask.to_be_bytes());
        // The last two addresses of a subnet of two are hosts (RFC 3021).
        let has_broadcast = is_v4(network) && bits < 127;
        let broadcast = if has_broadcast { [network[0] | !mask[0], network[1] | !mask[1]] } else { NO_KEY };
        Self { network: [network[0] & mask[0], network[1] & mask[1]], mask, broadcast }
    }

    #[inline]
    fn has(&self, key: AddressKey) -> bool {
        ((key[0] ^ self.network[0]) & self.mask[0]) | ((key[1] ^ self.network[1]) & self.mask[1]) == 0
    }
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    /// To the destination itself.
    OnLink,
    /// To the gateway of its family.
    Gateway,
    /// There is no way.
    None,
}

/// Everything that is known without asking anybody.
#[derive(Debug)]
pub(super) struct Addresses {
    own: [AddressKey; MAX_ADDRESSES],
    subnets: [Subnet; MAX_ADDRESSES],
    count: usize,
    /// Of IPv4 and IPv6, or [`NO_KEY`].
    gateways: [AddressKey; 2],
}

impl Addresses {
    /// Of settings that were checked.
    pub(super) fn new(settings: &Settings) -> Self {
        let mut own = [NO_KEY; MAX_ADDRESSES];
        let mut subnets = [Subnet::default(); MAX_ADDRESSES];
        for (at, address) in settings.addresses.iter().enumerate() {
            own[at] = key_of(address.ip);
            let bits = u32::from(address.prefix) + if address.ip.is_ipv4() { 96 } else { 0 };
            subnets[at] = Subnet::new(own[at], bits);
        }
        let gateways = [
            settings.gateway_v4.map_or(NO_KEY, |ip| key_v4(ip.octets())),
            settings.gateway_v6.map_or(NO_KEY, |ip| key_v6(&ip.octets())),
        ];
        Self { own, subnets, count: settings.addresses.len(), gateways }
    }

    pub(super) fn gateways(&self) -> [AddressKey; 2] {
        self.gateways
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Own addresses.
    #[inline]
    pub(super) fn own(&self) -> &[AddressKey] {
        &self.own[..self.count]
    }

    #[inline]
    pub(super) fn is_own(&self, key: AddressKey) -> bool {
        self.own().contains(&key)
    }

    /// Whether a host of this link may have that address, as far as the subnets say.
    #[inline]
    pub(super) fn is_on_link(&self, key: AddressKey) -> bool {
        let is_in_subnet = self.subnets[..self.count].iter().any(|subnet| subnet.has(key));
        is_in_subnet || self.is_link_local(key)
    }

    /// Link-local addresses are on the link whatever the prefix is, if there is IPv6.
    fn is_link_local(&self, key: AddressKey) -> bool {
        let [a, b, ..] = key[0].to_ne_bytes();
        a == 0xfe && b & 0xc0 == 0x80 && self.own().iter().any(|&own| !is_v4(own))
    }

    #[inline]
    pub(super) fn next_hop(&self, destination: AddressKey) -> NextHop {
        if self.is_on_link(destination) {
            let is_broadcast =
                self.subnets[..self.count].iter().any(|subnet| subnet.broadcast == destination);
            return if is_broadcast { NextHop::None } else { NextHop::OnLink };
        }
        match self.gateways[usize::from(!is_v4(destination))] {
            NO_KEY => NextHop::None,
            _ => NextHop::Gateway,
        }
    }

    /// Returns whether no host can have sent from this address: it belongs to no host, is the
    /// address of a whole subnet, or is an own address.
    #[inline]
    pub(super) fn is_martian(&self, source: AddressKey, ip: IpAddr) -> bool {
        !is_host(ip) || self.is_own(source) || self.is_broadcast(source)
    }

    fn is_broadcast(&self, key: AddressKey) -> bool {
        self.subnets[..self.count].iter().any(|subnet| subnet.broadcast == key && key != NO_KEY)
    }

    /// An own IPv4 address to ask for `target` from: one of its subnet, or any.
    pub(super) fn source_v4(&self, target: AddressKey) -> Option<Ipv4Addr> {
        self.source(target, true).map(|key| {
            let [.., a, b, c, d] = key[1].to_ne_bytes();
            Ipv4Addr::new(a, b, c, d)
        })
    }

    /// The same of IPv6.
    pub(super) fn source_v6(&self, target: AddressKey) -> Option<Ipv6Addr> {
        self.source(target, false).and_then(|key| match ip_of(key) {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        })
    }

    fn source(&self, target: AddressKey, wants_v4: bool) -> Option<AddressKey> {
        let of_family = || self.own().iter().enumerate().filter(|(_, key)| is_v4(**key) == wants_v4);
        let near = of_family().find(|&(at, _)| self.subnets[at].has(target));
        near.or_else(|| of_family().next()).map(|(_, &key)| key)
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
