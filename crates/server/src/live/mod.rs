//! Live titles: sources that send, and the titles that viewers join.
//!
//! ```text
//!   HTTP bodies (web) ──► LivePush ─┐
//!   ffmpeg ──► pull (threads) ──────┤
//!   sockets ──► receive (thread) ───┴► LiveInput: RTP, TS, clock (millrace_make::live) ──► Feeder ══ cache ══► engines
//!                                       │ state, counters, access points    └► tap ──► Recordings ──► store
//!                                       ▼
//!   service ──► library ──► LiveTitles: LiveChannel of each title ◄── web: /live/NAME.ts, /api/v1/live
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`address`] | `NAME=URL`, as an operator writes it |
//! | [`titles`] | the live titles that there are |
//! | [`channel`] | one of them, as its viewers see it |
//! | [`library`] | live titles beside stored ones, for the service |
//! | [`input`] | the path from one source to the cache |
//! | [`push`] | a title whose media a client brings by HTTP |
//! | [`pull`] | the threads that run ffmpeg for sources that are fetched |
//! | [`segments`] | segments of it, for HLS |
//! | [`state`] | the state of a source, in one sentence |
//! | [`receive`] | the thread that receives |
//! | [`recordings`] | live titles that become titles of the store |
//! | `tap` | where a recording gets its media |
//!
//! `docs/design/0048-live-sources.md`.

pub mod address;
pub mod channel;
pub mod input;
pub mod library;
pub mod pull;
pub mod push;
pub mod receive;
pub mod recordings;
pub mod segments;
pub mod state;
mod tap;
pub mod titles;

pub use address::LiveSource;
pub use channel::{LIVE_PREFIX, LiveChannel};
pub use library::LiveLibrary;
pub use push::LivePush;
pub use recordings::Recordings;
pub use titles::LiveTitles;
