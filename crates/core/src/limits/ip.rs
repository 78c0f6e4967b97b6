//! Bounds of the IP layer (`crates/tcp/src/ip`).

/// Addresses of an interface: one or two of IPv4, a link-local and a few other ones of IPv6. Each incoming packet is compared with all of them.
pub const MAX_ADDRESSES: usize = 8;
