//! RTSP 1.0 messages (RFC 2326): bytes to requests, replies to bytes. No sockets, no sessions, no clock.
//!
//! | module | holds |
//! | --- | --- |
//! | [`frame`] | bytes as they arrive to whole messages and interleaved frames, with every limit |
//! | [`reply`] | replies and the headers that each of them carries |
//! | [`transport`] | the `Transport` header |
//! | [`range`] | the `Range` header and normal play time |
//! | [`speeds`] | the `Scale` and `Speed` headers |
//! | [`target`] | the title or track that a URL names |
//! | [`tunnel`] | RTSP in HTTP |
//!
//! Messages are those of `rtsp-types`. Its typed `Transport` and `Range` headers are not used: the first panics on a
//! `dest_addr` of one quotation mark, the second refuses times that players send (`npt=12.`).
#![forbid(unsafe_code)]

pub mod frame;
pub mod range;
pub mod reply;
mod request;
pub mod speeds;
pub mod target;
pub mod transport;
pub mod tunnel;

pub use frame::{FrameError, Framer, Incoming};
pub use reply::Reply;
pub use request::RtspRequest;
