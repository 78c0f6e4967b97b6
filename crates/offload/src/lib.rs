//! The loop of a dedicated core (TOAD 2004): commands in, leases in, bursts out, events out.
//!
//! Forbidden inside [`core_loop`]: allocating, locking, logging, waiting (except in [`idle`]). The
//! control side and the loop meet only in rings of 64-byte records ([`command`]) and in counters
//! ([`load`]).
//!
//! | module | holds |
//! | --- | --- |
//! | [`core_loop`] | the loop and its named phases: read this to understand the running system |
//! | [`command`] | what crosses the boundary |
//! | [`handle`] | the control side's end: start an engine, talk to it, stop it |
//! | [`places`] | which places in an engine's tables are taken, for the control side |
//! | [`idle`] | busy, adaptive, sleeping |
//! | [`load`] | how busy the core is, in nanoseconds |
//! | [`adaptive_burst`] | longer bursts when it is busy |
//! | [`again`] | extents that an egress path gave back and needs again |
//! | [`reception`] | packets received by a device, passed to a sink |
//! | [`toe`] | the TCP offload engine: another loop, and sockets for host threads |
//! | [`background`] | threads that give way to all others |
//! | [`hugepage`], [`heap`], [`affinity`], [`clock`] | memory, cores and time of the real machine |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | one turn of the loop | `crates/offload/src/core_loop.rs`: one turn, its phases |
//! | ports of the kernel's address for an engine | `docs/design/0035-offload-engine.md`, `crates/offload/src/toe/steered/mod.rs`, `crates/netio/src/xdp/steer/program.rs` |
//! | media by our own TCP | `docs/design/0036-media-by-our-tcp.md`, `crates/offload/src/toe/egress.rs`, then `engine/lend.rs`; `apart.rs` where the engine has a thread of its own |
//! | sockets of an offload engine for host threads | `docs/design/0035-offload-engine.md`, `crates/offload/src/toe/mod.rs`, then `engine/`, `host/`, `remote/` |
#![deny(unsafe_code)]

pub mod adaptive_burst;
pub mod affinity;
pub mod again;
pub mod background;
pub mod clock;
pub mod command;
pub mod core_loop;
pub mod handle;
pub mod heap;
pub mod hugepage;
pub mod idle;
pub mod limits;
pub mod load;
pub mod places;
pub mod reception;
pub mod toe;

/// Socket set-up for starting engines: the ports that they share, the egress paths made from them,
/// and reception on them.
pub use millrace_netio::{
    GsoMode, IcmpReader, KernelTx, KernelTxConfig, NetError, TxCounters, UdpPair, UdpPorts, bind_pair,
    bind_ports,
};
/// The choice of an egress path, devices, next hops, and what this kernel can do.
pub use millrace_netio::{best, features, probe, route, xdp};

/// The doorbell that wakes a sleeping loop, and its control side.
pub use millrace_store::bell;
