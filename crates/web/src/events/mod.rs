//! Events for operators and their programs, as they happen, and their listeners.
//! `handlers/events.rs` sends them.
//!
//! ```text
//!   control side ── Feed::tell ──┐
//!                                ├─► a short queue for each listener ─► body of its response
//!   ticker, each second ─────────┘    full: the listener is dropped
//!     figures, titles, members
//! ```
//!
//! The server never waits for a listener: one that does not read loses its place, and learns of it
//! if it ever reads again. Without listeners no events are made.

mod feed;
mod figures;
mod news;

pub use self::feed::Feed;
pub(crate) use self::feed::Listener;
pub(crate) use self::figures::sums;
pub use self::figures::{EngineFigures, LiveFigures};
pub use self::news::SiteEvent;
pub(crate) use self::news::SiteSnapshot;
