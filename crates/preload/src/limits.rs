//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

/// Descriptors whose number may be an offload socket's: four times the usual hard limit of services
/// would be no use, and only the touched pages of the 256 KiB table exist. A socket with a larger
/// number stays the kernel's.
pub const MAX_DESCRIPTORS: usize = 1 << 16;
/// Bytes that `sendfile` reads at once: eight chunks of a queue pair, small enough for any thread's stack.
pub const FILE_CHUNK_BYTES: usize = 64 << 10;
/// Ports that are tried for a listener at port 0 before it gets the error that none is free.
pub const PORT_TRIES: u32 = 64;
/// How long an ending process waits for the engine to take the data it has written: as long as a
/// peer may need to free space.
pub const LEAVE_NS: u64 = 5_000_000_000;
/// Messages to the user that are remembered, so that none is printed twice. Later ones are not
/// printed, so a program that fails in many ways does not drown its own output.
pub const MAX_TEXTS: usize = 64;
