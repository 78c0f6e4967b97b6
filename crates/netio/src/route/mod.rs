//! The way of a packet that does not go through the kernel's sockets: which interface, which Ethernet header, which
//! source address, how long it may be. The kernel is asked by rtnetlink, and its answers are followed from then on.
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
//! | `wire` | what rtnetlink's messages say |
//! | `neighbour_table` | the known state, and which loops subscribe to it: messages in, updates out |
//! | `outbox` | updates that wait for room in a loop's ring |
//! | `watch` | [`RouteWatch`]: the thread with the sockets |
//!
//! Only plain Ethernet is usable, and VLANs on it: there the frame is put on the lower device with a tag. Loopback,
//! tunnels, bridges, bonds and encapsulating routes are left to the kernel, and so are broadcasts. Multicast addresses
//! need no neighbour. Of several next hops the first one that can be used is taken.

mod error;
mod hop;
mod neighbour_table;
mod outbox;
mod table;
mod watch;
mod wire;

pub use error::RouteError;
pub use hop::{Hop, HopId};
pub(crate) use neighbour_table::multicast_mac;
pub use table::{HopFeed, HopTable};
pub use watch::RouteWatch;
