//! Our TCP, IP layer, offload engine and emulated link against this kernel. They need root and TUN or veth devices.

mod ip_linux;
mod link;
mod support;
mod tcp_linux;
mod toe_linux;
mod toe_media;
mod toe_ports;
mod toe_soak;
mod toe_std;
mod toe_stream;
mod toe_tokio;
mod toe_xdp;
