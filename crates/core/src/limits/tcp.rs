//! Bounds of TCP (`crates/tcp`).

// --- headers, tables, receiver ---

// --- recovery and congestion control ---

// --- connections, send queue, stages ---
