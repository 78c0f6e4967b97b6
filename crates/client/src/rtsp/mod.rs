//! RTSP 1.0 (RFC 2326) from the player's side, without I/O.
//!
//! | module | holds |
//! | --- | --- |
//! | [`dialogue`] | the state machine: commands in, request bytes out, replies in, events out |
//! | [`framing`] | the next item in the bytes of a connection: a message or an interleaved frame |
//! | [`headers`] | `Session`, `Range`, `RTP-Info`, `Scale` and `Speed` |
//! | [`transport`] | the `Transport` header, both ways |

pub mod dialogue;
pub mod framing;
pub mod headers;
pub mod transport;
