//! Bounds of TCP (`crates/tcp`).

// --- connections, send queue, stages ---

/// Most pieces of one segment's payload. A jumbo segment (8,948 bytes) takes six packets of 1316 bytes that lie apart because their
/// slots have headers, and the bytes of a framing layer before and behind them.
pub const MAX_PIECES: usize = 8;
/// Pieces of a packet that goes out: its headers, and those of its payload.
pub const MAX_PACKET_PIECES: usize = 1 + MAX_PIECES;
