//! Grouping of addresses by client, for limits that count per client.

use std::net::IpAddr;

/// Returns the network that counts as one client: the IPv4 address, or the IPv6 /64, because a host
/// has a /64 to itself. An IPv4-mapped IPv6 address counts as the IPv4 address.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_of_addresses_of_one_host_is_one() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
