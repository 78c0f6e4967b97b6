//! Near video on demand: one title on several channels again and again, so that viewers who join at any time begin soon
//! (`docs/design/0053-near-vod.md`).
//!
//! ```text
//!   NvodFeed (thread): Plan, title ──50 ms of all channels, by time──► NvodSender ──► one CastSender each: channels, announcements
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`url`] | `nvod://` addresses to send to |
//! | [`title`] | a title cut into the segments of a plan |
//! | [`feed`] | the thread that reads ahead |
//! | [`sender`] | packets at their times |

pub mod feed;
pub mod sender;
pub mod title;
pub mod url;

pub use feed::NvodFeed;
pub use sender::{NvodEnd, NvodSender};
pub use title::SegmentedTitle;
pub use url::NvodUrl;
