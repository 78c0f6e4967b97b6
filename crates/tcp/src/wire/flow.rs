//! The two ends of a connection in 40 bytes, ready to be hashed, compared and summed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use millrace_core::wire::checksum::{add, fold};

/// TCP in the protocol field of IP.
const PROTOCOL: u16 = 6;

/// The two ends of a connection as the local host sees them. IPv4 addresses are in it mapped to IPv6.
#[derive(Clone, Copy, Eq, Hash)]
#[expect(clippy::derived_hash_with_manual_eq, reason = "what is equal is what would be with a derived one")]
pub struct FlowKey {
    /// Local and remote address, two words each, as their bytes lie in memory; then scope, local and remote port.
    words: [u64; 5],
}

const _: () = assert!(size_of::<FlowKey>() == 40);

/// In place: the derived one calls a function that compares bytes, for each segment several times.
impl PartialEq for FlowKey {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl FlowKey {
    /// What stands in tables where there is no flow: no end has port 0 at the unspecified address.
    pub(crate) const NONE: Self = Self { words: [0; 5] };

    /// `None` when the ends are of two families (an IPv4 address mapped to IPv6 is one of IPv4).
    #[inline]
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Option<Self> {
        let (SocketAddr::V4(here), SocketAddr::V4(there)) = (local, remote) else {
            return Self::of_any(local, remote);
        };
        let ([a, b], [c, d]) = (words_v4(*here.ip()), words_v4(*there.ip()));
        let ports = u64::from(here.port()) << 16 | u64::from(there.port());
        Some(Self { words: [a, b, c, d, ports] })
    }

    fn of_any(local: SocketAddr, remote: SocketAddr) -> Option<Self> {
        let (local_ip, remote_ip) = (local.ip().to_canonical(), remote.ip().to_canonical());
        if local_ip.is_ipv4() != remote_ip.is_ipv4() {
            return None;
        }
        let [a, b] = words(local_ip);
        let [c, d] = words(remote_ip);
        // A link-local address means something only with the interface's number. Either end may have been given it.
        let scope = scope(local).max(scope(remote));
        let ports = u64::from(local.port()) << 16 | u64::from(remote.port());
        Some(Self { words: [a, b, c, d, u64::from(scope) << 32 | ports] })
    }

    /// The end that is here.
    pub fn local(&self) -> SocketAddr {
        self.end(0, self.local_port())
    }

    /// The other end.
    pub fn remote(&self) -> SocketAddr {
        self.end(2, self.remote_port())
    }

    /// The port that is here.
    #[inline]
    pub const fn local_port(&self) -> u16 {
        (self.words[4] >> 16) as u16
    }

    /// The port of the other end.
    #[inline]
    pub const fn remote_port(&self) -> u16 {
        self.words[4] as u16
    }

    /// The same ends seen from the other side.
    pub const fn reversed(&self) -> Self {
        let [a, b, c, d, rest] = self.words;
        let ports = (rest & 0xffff) << 16 | rest >> 16 & 0xffff;
        Self { words: [c, d, a, b, rest >> 32 << 32 | ports] }
    }

    /// The same ends with other ports.
    #[inline]
    pub const fn with_ports(mut self, local: u16, remote: u16) -> Self {
        self.words[4] = self.words[4] >> 32 << 32 | (local as u64) << 16 | remote as u64;
        self
    }

    /// The same ends with another port here.
    pub const fn with_local_port(mut self, port: u16) -> Self {
        self.words[4] = self.words[4] & !0xffff_0000 | (port as u64) << 16;
        self
    }

    /// Whether the ends are of IPv4.
    pub fn is_v4(&self) -> bool {
        self.words[0] == 0 && self.words[1].to_ne_bytes()[..4] == [0, 0, 0xff, 0xff]
    }

    /// Whether both ends are one host each, as far as their addresses say: neither is unspecified, a multicast group or the broadcast address.
    /// The broadcast addresses of networks are known to whoever knows the networks.
    pub fn is_unicast(&self) -> bool {
        [self.local(), self.remote()].iter().all(|end| match end.ip() {
            IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
            IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
        })
    }

    /// Input of a keyed hash.
    #[inline]
    pub const fn words(&self) -> &[u64; 5] {
        &self.words
    }

    /// Uncomplemented sum of the pseudo-header but for the length, in network byte order; never zero.
    ///
    /// The mark of a mapped IPv4 address is in it twice, which changes nothing: it is 0xffff, one of the zeros of this arithmetic.
    #[inline]
    pub fn pseudo_sum(&self) -> u16 {
        // One word at a time: vector instructions would have to wait until the words just written
        // are in memory.
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| u128::from(self.words[at]));
        let sum = a + b + c + d;
        let (sum, carry) = (sum as u64).overflowing_add((sum >> 64) as u64);
        add(u16::from_be(fold(sum + u64::from(carry))), PROTOCOL)
    }

    fn end(&self, at: usize, port: u16) -> SocketAddr {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.words[at].to_ne_bytes());
        bytes[8..].copy_from_slice(&self.words[at + 1].to_ne_bytes());
        match Ipv6Addr::from(bytes).to_canonical() {
            IpAddr::V4(address) => SocketAddr::from((address, port)),
            IpAddr::V6(address) => {
                let scope = if address.is_unicast_link_local() { (self.words[4] >> 32) as u32 } else { 0 };
                SocketAddrV6::new(address, port, 0, scope).into()
            }
        }
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} - {}", self.local(), self.remote())
    }
}

fn scope(end: SocketAddr) -> u32 {
    match end {
        SocketAddr::V6(end) if end.ip().is_unicast_link_local() => end.scope_id(),
        _ => 0,
    }
}

fn words(address: IpAddr) -> [u64; 2] {
    match address {
        IpAddr::V4(address) => words_v4(address),
        IpAddr::V6(address) => {
            let bytes = address.octets();
            [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i])))
        }
    }
}

/// Mapped to IPv6 (RFC 4291 section 2.5.5.2).
#[inline]
fn words_v4(address: Ipv4Addr) -> [u64; 2] {
    let [a, b, c, d] = address.octets();
    [0, u64::from_ne_bytes([0, 0, 0xff, 0xff, a, b, c, d])]
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
