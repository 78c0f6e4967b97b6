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
//! | [`slot_allocator`] | free slots of an engine's tables, for the control side |
//! | [`idle`] | busy, adaptive, sleeping |
//! | [`load`] | how busy the core is, in nanoseconds |
//! | [`adaptive_burst`] | longer bursts when it is busy |
//! | `extent_refetch` | re-requests extents that were released while a receiver was stalled |
//! | [`loop_tx`] | the egress path that a loop needs, as traits |
//! | [`toe`] | the TCP offload engine: another loop, and sockets for host threads |
//! | [`thread_priority`] | short slices for engines, the lowest priority for background threads |
//! | [`hugepage`], [`heap`], [`affinity`], [`clock`] | memory, cores and time of the real machine |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | one turn of the loop | `crates/offload/src/core_loop.rs`: one turn, its phases |
//! | ports of the kernel's address for an engine | `docs/design/0035-offload-engine.md`, `crates/offload/src/toe/steered/mod.rs`, `crates/netio/src/xdp/steer/program.rs` |
//! | media by our own TCP | `docs/design/0036-media-by-our-tcp.md`, `crates/offload/src/toe/egress.rs`, then `engine/lend.rs`; `queue_pair_access.rs` where the engine has a thread of its own |
//! | sockets of an offload engine for host threads | `docs/design/0035-offload-engine.md`, `crates/offload/src/toe/mod.rs`, then `engine/`, `host/`, `remote/` |
#![deny(unsafe_code)]

pub mod adaptive_burst;
pub mod affinity;
pub mod clock;
pub mod command;
pub mod core_loop;
mod engine_socket;
mod extent_refetch;
pub mod handle;
pub mod heap;
pub mod hugepage;
pub mod idle;
pub mod limits;
pub mod load;
pub mod loop_tx;
pub mod slot_allocator;
pub mod thread_priority;
pub mod toe;

/// Sockets for groups.
pub use millrace_netio::multicast::{MulticastSettings, MulticastSocket};
/// Socket set-up for starting engines: the ports that they share and the egress paths made from them.
pub use millrace_netio::{
    GsoMode, IcmpReader, KernelTx, KernelTxConfig, NetError, TxCounters, UdpPair, UdpPorts, bind_pair,
    bind_ports,
};
/// Reception of live sources.
pub use millrace_netio::{IngestAddress, KernelRx, open_ingest, recv::UdpRxConfig};
/// Sockets that the service manager passes to the process.
pub use millrace_netio::{InheritedSocket, has_writer, inherited_sockets};
/// The choice of an egress path, devices, next hops, and what this kernel can do.
pub use millrace_netio::{egress_select, features, probe, route, xdp};

/// The doorbell that wakes a sleeping loop, and its control side.
pub use millrace_store::bell;
