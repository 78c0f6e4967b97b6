//! The way of a packet that does not go through the kernel's sockets: which interface, which Ethernet header, which
//! source address, how long it may be. What is asked of the kernel, and followed from then on, by rtnetlink.
//!
//! ```text
//!   loop                          thread "route"
//!   HopTable ── asks ──────────►  RouteWatch ──► RTM_GETROUTE, RTM_GETNEIGH, NTF_USE
//!            ◄───── updates ────             ◄── groups LINK, NEIGH, ROUTE, IFADDR, RULE, NEXTHOP
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `hop` | [`Hop`]: the answer; [`HopId`]: its place in a table |
//! | `table` | [`HopTable`]: the loop's side; neither locks nor allocates nor waits |

mod error;
mod hop;
mod table;

pub use error::RouteError;
pub use hop::{Hop, HopId};
pub use table::{HopFeed, HopTable};
