//! Casts: a splice of titles, sent by the clock to UDP addresses without any viewer asking for it.
//!
//! ```text
//!   Playout (thread): items ► SpliceSource ► Splicer ──runs──► pace: datagrams at their times ──► CastSender: UDP, RTP
//!                                                                                           └──► live title of a channel
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`url`] | `udp://` and `rtp://` addresses to send to |
//! | [`items`] | entries of a playlist, and how each is opened |
//! | [`programme`] | a list in a loop, and shows at their times of day |
//! | [`playout`] | the thread that reads items and splices them |
//! | [`pace`] | datagrams at their times |
//! | [`origin`] | times of the splice, and of our clock |
//! | [`sender`] | a socket, with RTP headers where the address asks for them |
//! | [`sap`] | announcements of casts |
//! | [`nvod`] | near video on demand: one title on several channels |
//! | [`schedule`] | the items of a channel with their times |
//! | [`channel`] | a channel as an operator writes it, and its state |
//! | [`channel_feed`] | the thread of a channel: its live title and its outputs |
//!
//! A cast has one destination, so the engine's machinery for many viewers of one copy would carry a single stream; a thread that
//! sleeps until each datagram is due is simpler and is as exact (`docs/design/0050-channels.md`).

pub mod channel;
pub mod channel_feed;
pub mod items;
pub mod nvod;
pub mod origin;
pub mod pace;
pub mod playout;
pub mod programme;
pub mod sap;
pub mod schedule;
pub mod sender;
pub mod url;

pub use channel::{ChannelReport, ChannelSpec};
pub use items::{CastItem, ItemList, ItemOpener};
pub use pace::{PaceEnd, PacedSink, Pacer};
pub use playout::{Playout, PlayoutNews};
pub use programme::ChannelProgramme;
pub use schedule::ChannelSchedule;
pub use sender::CastSender;
pub use url::CastUrl;
