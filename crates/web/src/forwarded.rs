//! Clients behind trusted proxies: the address that a proxy names in `X-Forwarded-For` or `Forwarded` (RFC 7239).
//!
//! Each proxy on the way adds the address that its own request came from at the end. So the list is read from its end, and only as far as those that
//! added to it are trusted: the last address that is not a trusted proxy's is the client. The entries before it were written by the client itself.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use millrace_core::text::excerpt;

use crate::limits::MAX_QUOTED_NETWORK;
use crate::request::Fields;

/// Optional white space (RFC 9110 section 5.6.3).
const OWS: [char; 2] = [' ', '\t'];

/// An address, or a network with the length of its prefix: `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Text that is no [`Network`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("got \"{0}\"; write an address or a network, such as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32")]
pub struct NetworkError(String);

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let error = || NetworkError(excerpt(text, MAX_QUOTED_NETWORK));
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| error())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let network = Self { address, prefix: prefix.unwrap_or(most) };
        // Bits behind the prefix are a slip of the pen: either the address is meant, or another network.
        let is_network =
            network.prefix <= most && network.masked(address) == network.masked_bits(address, most);
        is_network.then_some(network).ok_or_else(error)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Network {
    fn masked(&self, address: IpAddr) -> u128 {
        self.masked_bits(address, self.prefix)
    }

    /// The first `prefix` bits of an address, at the top of the number.
    fn masked_bits(&self, address: IpAddr, prefix: u8) -> u128 {
        let bits = match address {
            IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
            IpAddr::V6(v6) => u128::from(v6),
        };
        let behind = 128 - u32::from(prefix.min(128));
        bits.checked_shr(behind).and_then(|bits| bits.checked_shl(behind)).unwrap_or(0)
    }

    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && self.masked(address) == self.masked(self.address)
    }
}

/// The proxies that are trusted to name their clients.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Vec<Network>);

impl TrustedProxies {
    /// Proxies in these networks.
    pub fn new(networks: Vec<Network>) -> Self {
        Self(networks)
    }

    /// Whether the proxy at this address is trusted.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// The client of a request that came from `peer`: the peer itself, unless it is a trusted proxy that names another. A client without a port has port 0.
    pub(crate) fn client_of(&self, peer: SocketAddr, fields: &Fields) -> SocketAddr {
        if !self.trusts(peer.ip()) {
            return peer;
        }
        let by_list = fields.forwarded_for.as_deref().map(|value| self.last_hop(peer, list(value)));
        let by_rfc = fields.forwarded.as_deref().map(|value| self.last_hop(peer, elements(value)));
        match (by_list, by_rfc) {
            // Most proxies add to one of the two and pass the other on as the client wrote it. If they differ, one of them is a lie.
            (Some(one), Some(other)) if one.ip() != other.ip() => peer,
            (Some(client), _) | (None, Some(client)) => client,
            (None, None) => peer,
        }
    }

    /// Follows `hops`, the nearest last, from `peer` to the first that is not trusted. A hop without an address ends the way: the proxy before it counts.
    fn last_hop(&self, peer: SocketAddr, hops: Vec<Option<SocketAddr>>) -> SocketAddr {
        let mut reached = peer;
        for hop in hops.into_iter().rev() {
            let Some(hop) = hop else { break };
            reached = hop;
            if !self.trusts(hop.ip()) {
                break;
            }
        }
        reached
    }
}

/// The hops in `X-Forwarded-For`.
fn list(value: &str) -> Vec<Option<SocketAddr>> {
    value.split(',').map(|hop| node(hop.trim_matches(OWS))).collect()
}

/// The hops in `Forwarded`; unknown if the value has a mistake. Behind a string that a client has left open, the element of a proxy would become a part of it.
fn elements(value: &str) -> Vec<Option<SocketAddr>> {
    let (mut hops, mut rest) = (Vec::new(), value);
    loop {
        let Some((hop, behind)) = element(rest) else { return vec![None] };
        hops.push(hop);
        match behind {
            Some(behind) => rest = behind,
            None => return hops,
        }
    }
}

/// The node of `for=` in the first element, and what stands behind the element's comma; `None`: it is malformed.
#[allow(clippy::type_complexity, reason = "the hop may be unknown, and the element the last")]
fn element(text: &str) -> Option<(Option<SocketAddr>, Option<&str>)> {
    let (mut hop, mut has_for, mut rest) = (None, false, text);
    loop {
        let (name, behind) = rest.split_once('=')?;
        let name = name.trim_matches(OWS);
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || "\",;".contains(c)) {
            return None;
        }
        let (value, behind) = pair_value(behind)?;
        if name.eq_ignore_ascii_case("for") {
            // Two in one element can be read in two ways.
            if std::mem::replace(&mut has_for, true) {
                return None;
            }
            hop = node(&value);
        }
        let behind = behind.trim_start_matches(OWS);
        match behind.chars().next() {
            None => return Some((hop, None)),
            Some(',') => return Some((hop, Some(&behind[1..]))),
            Some(';') => rest = &behind[1..],
            Some(_) => return None,
        }
    }
}

/// A token or a quoted string (RFC 9110 section 5.6.4), and what stands behind it. A token may also have the brackets and colons of an address.
fn pair_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c: char| c.is_whitespace() || ",;".contains(c)).unwrap_or(text.len());
        let (token, behind) = text.split_at(end);
        return (!token.is_empty() && !token.contains('"')).then(|| (token.to_owned(), behind));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    loop {
        match chars.next()?.1 {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
}

/// An address with or without a port, IPv6 with or without brackets; `None` for `unknown` and for names (RFC 7239 section 6).
fn node(text: &str) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = match bare.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, 0),
        Err(_) => text.parse().ok()?,
    };
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

#[cfg(test)]
#[path = "forwarded_tests.rs"]
mod tests;
