//! Near video on demand: a title is sent again and again on a few channels, so that any number of viewers begin within a short time
//! and none of them asks for anything (`docs/design/0053-near-vod.md`).
//!
//! Sender and receiver both make a [`Plan`] of the same few numbers. All of it is integer arithmetic without I/O and without a clock.
//!
//! | module | holds |
//! | --- | --- |
//! | [`scheme`] | staggered, skyscraper, pagoda and fixed-delay pagoda broadcasting: the segments of each channel |
//! | [`plan`] | a scheme for one title: slots, delay, buffer, and which channel a viewer hears when |
//! | [`bound`] | the shortest delay that any scheme can have |
//! | [`announcement`] | the packet that describes the plan to receivers |
//! | [`packet`] | RTP packets that carry their place in the title |
//! | [`groups`] | where each channel is sent |
#![forbid(unsafe_code)]

pub mod announcement;
pub mod bound;
pub mod groups;
pub mod limits;
pub mod packet;
pub mod plan;
pub mod scheme;

#[cfg(test)]
mod plan_tests;

pub use announcement::{Announcement, AnnouncementError};
pub use bound::least_delay_ns;
pub use groups::channel_group;
pub use packet::PlacedPacket;
pub use plan::{ChannelJoin, Plan, PlanError, PlanRequest};
pub use scheme::{SCHEMES, Scheme};
