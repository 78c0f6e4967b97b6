//! Viewers over HTTP: one file that is played while it comes, and HLS.
//!
//! ```text
//!  bytes ─► exchange (head, body) ─► media_clock (ts_scan) ─► buffer (play time, stalls)
//!                    └─► playlist ─► hls: what to fetch next ────┘
//! ```
//!
//! Everything but [the viewer's sockets](self) is without I/O and on a clock that is passed in. Payload is looked at
//! where it lies in the thread's read buffer, and not kept.

pub mod address;
pub mod body;
pub mod buffer;
pub mod exchange;
pub mod head;
pub mod media_clock;
pub mod playlist;
pub mod ts_scan;
