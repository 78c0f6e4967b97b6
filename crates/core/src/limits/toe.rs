//! Bounds of the TCP offload engine (`crates/offload/src/toe`).

/// Queue pairs of an engine: a host thread each. Each turn of the engine looks at the ring of every one.
pub const MAX_PAIRS: usize = 64;
/// Backlog of a listener at most: what Linux takes (net.core.somaxconn).
pub const MAX_BACKLOG: u32 = 4096;
/// Longest sleep of an engine, of a host thread that waits without a limit too: everything that has work for either rings, so this only bounds
/// the damage of a ring that was lost.
pub const MAX_SLEEP_NS: u64 = 1_000_000_000;
/// TCP ports that an engine may have of the kernel's addresses: the kernel holds a socket for each of them on each address, and the steering
/// program two entries of 100 bytes.
pub const MAX_OWN_PORTS: u32 = 1024;
/// Ranges of ports in a set: those that a person writes down; all of them fit a message of the engine's socket.
pub const MAX_PORT_RANGES: usize = 64;
