//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

/// Descriptors whose number may be an offload socket's: four times the usual hard limit of services is no use, and the table is 256 KiB of which only
/// touched pages exist. A socket with a larger number stays the kernel's.
pub const MAX_DESCRIPTORS: usize = 1 << 16;
/// Bytes that `sendfile` reads at once: eight chunks of a queue pair, small enough for any thread's stack.
pub const FILE_CHUNK_BYTES: usize = 64 << 10;
/// Ports that are tried for a listener at port 0, before it is told that there is none.
pub const PORT_TRIES: u32 = 64;
/// How long a process that ends waits for the engine to have taken what it has written: as long as a peer may need to make room.
pub const LEAVE_NS: u64 = 5_000_000_000;
/// Texts for the user that are remembered, so that none is said twice; later ones are not said, and a program that fails in many ways does not drown
/// its own output.
pub const MAX_TEXTS: usize = 64;
