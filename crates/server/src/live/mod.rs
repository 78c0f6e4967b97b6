//! Live titles: sources that send, and the titles that viewers join.
//!
//! ```text
//!   HTTP bodies (web) ──► LivePush ─┐
//!   ffmpeg ──► pull (threads) ──┐   │
//!   sockets ──► receive (thread)┴ pair ► LiveInput: RTP, TS, clock (millrace_make::live) ──► Feeder ══ cache ══► engines
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
//! | [`pair`] | that for one source or two; one of them is fed |
//! | [`standby`] | the one that is not fed |
//! | [`choice`] | which of the two is fed |
//! | [`kept`] | the file of sources that were added while the server ran |
//! | [`push`] | a title whose media a client brings by HTTP |
//! | [`pull`] | the threads that run ffmpeg for sources that are fetched |
//! | [`segments`] | segments of it, for HLS |
//! | [`state`] | the state of a source, in one sentence |
//! | [`receive`] | the thread that receives |
//! | [`plan`] | recordings at a time of day |
//! | [`recordings`] | live titles that become titles of the store |
//! | `tap` | where a recording gets its media |
//!
//! `docs/design/0048-live-sources.md`.

pub mod address;
pub mod channel;
pub mod choice;
pub mod input;
pub mod kept;
pub mod library;
pub mod pair;
pub mod plan;
pub mod pull;
pub mod push;
pub mod receive;
pub mod recordings;
pub mod segments;
pub mod standby;
pub mod state;
mod tap;
pub mod titles;

pub use address::{LiveSource, SourcePair};
pub use channel::{LIVE_PREFIX, LiveChannel};
pub use library::LiveLibrary;
pub use pair::TitleSources;
pub use plan::RecordingPlan;
pub use push::LivePush;
pub use recordings::Recordings;
pub use titles::LiveTitles;
