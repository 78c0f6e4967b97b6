//! Packets in and out of Linux.
//!
//! | device | purpose | requirements |
//! | --- | --- | --- |
//! | [`KernelTx`] | the egress path everywhere: UDP (with GSO where the kernel has it), multicast, RTP interleaved in TCP, a title's bytes in TCP | sockets from [`bind_pair`]; no privileges. `CAP_NET_ADMIN` or `net.core.wmem_max` for the full send buffer |
//! | [`xdp::XdpTx`] | frames of our own straight to a network interface | `CAP_NET_RAW`, memory that may be locked |
//! | [`null::NullTx`] | measuring everything but the sending | nothing |
//! | [`null::CollectTx`] | tests: keeps what would have been sent | memory |
//! | [`KernelRx`] | the ingress path everywhere: datagrams that come to a UDP socket | a socket, for a group of receivers that of [`open_ingest`] |
//! | [`recv::UdpRx`] | the way in for players, load generators and tests | a UDP socket |
//!
//! [`tun`] has network devices that a program reads and writes. [`bpf`] assembles and
//! attaches programs for the kernel. [`probe`] reports the capabilities of this
//! kernel, [`features`] those of an interface, [`route`] how frames reach a destination. `unsafe`
//! lives in `sys` (raw layouts, each asserted), in `bpf/sys.rs` (the system call and the memory of
//! maps) and in `xdp/sys.rs` (the memory of rings).
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | frames past the kernel's sockets (AF_XDP) | `crates/netio/src/xdp/mod.rs`, `docs/guide/xdp.md` |
//! | choice of the egress path | `crates/netio/src/egress_select/mod.rs`, `docs/design/0007-egress-path.md` |
//! | choice of the engine, and ports that engines share | `docs/design/0018-several-engines.md`, `crates/netio/src/kernel/udp.rs`, `crates/server/src/service/moving.rs` |
#![deny(unsafe_code)]

pub mod bpf;
pub mod egress_select;
mod errno;
pub mod error;
pub mod features;
mod ingest_socket;
mod kernel;
mod kernel_rx;
pub mod limits;
pub mod multicast;
mod netlink;
pub mod null;
pub mod probe;
pub mod recv;
pub mod route;
mod sys;
pub mod tun;
pub mod xdp;

pub use error::{ConnError, NetError};
pub use ingest_socket::{IngestAddress, open_ingest};
pub use kernel::{
    GsoMode, IcmpReader, KernelTx, KernelTxConfig, TxCounters, UdpPair, UdpPorts, ZERO_COPY_MIN_BYTES,
    ZeroCopy, bind_pair, bind_ports,
};
pub use kernel_rx::{KernelRx, ReceivedDatagram};
pub use sys::inherited::{InheritedSocket, inherited_sockets};
pub use sys::lease::has_writer;
