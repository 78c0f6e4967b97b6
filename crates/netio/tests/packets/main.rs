//! Packets through real sockets, AF_XDP and TUN devices, on loopback and between network namespaces.

mod egress_measure;
mod features;
mod gso_tun;
mod model;
mod multicast;
mod receive;
mod route;
mod steer;
#[path = "../support/mod.rs"]
mod support;
mod tcp;
mod tcp_bytes;
mod tcp_full;
mod tun;
mod udp_loopback;
mod udp_netns;
mod xdp_netns;
mod xdp_raw;
mod xdp_zero_touch;
mod zero_copy;
