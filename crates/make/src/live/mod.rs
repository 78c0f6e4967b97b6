//! Live sources: data from the network becomes packets of a title that is sent while it is written. No I/O, except for
//! [`pull`]; the time is an argument.
//!
//! | module | holds |
//! | --- | --- |
//! | [`rtp`] | RTP headers taken off, packets put in order |
//! | [`packer`] | TS packets repacked, access points found, tables put in front of them |
//! | [`ts_stream`] | TS packets in a stream of bytes |
//! | [`pull`] | sources that the ffmpeg program fetches |
//! | [`clock`] | media time of the packets, by the source's clock and ours |
//!
//! Sockets, feeders and viewers are the server's (`crates/server/src/live/`); `docs/design/0048-live-sources.md`.

pub mod clock;
pub mod packer;
pub mod pull;
pub mod rtp;
pub mod ts_stream;

pub use packer::{LivePacker, LivePacket, NotTs};
pub use pull::{LivePull, PullEvent, PullUrl};
pub use rtp::{RtpCounts, RtpReorder};
pub use ts_stream::TsStream;
