//! Bounds of packet I/O: sockets, devices, next hops, the emulated link.

use crate::limits::MAX_TCP_WRITE_BYTES;

// TCP.

/// Bytes that TCP may hold without having sent them: two writes, so that there is always one to send while the next is
/// made.
pub const TCP_NOT_SENT_BYTES: i32 = 2 * MAX_TCP_WRITE_BYTES as i32;
