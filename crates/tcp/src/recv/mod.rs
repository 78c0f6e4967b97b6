//! Received data: pages, reassembly, the window and when to acknowledge.
//!
//! | module | holds |
//! | --- | --- |
//! | [`pages`] | pages of fixed size, shared by all connections |
//! | [`reassembly`] | a connection's data in pages, in order of sequence numbers |
//! | [`receiver`] | one connection's receiver: [`Receiver`] |
//! | [`window`] | what of the window is announced, and which segments are acceptable |
//! | [`acks`] | when an ACK is due, and its SACK blocks |
//! | `reports` | the blocks, in a pool: few connections have any |

pub mod acks;
pub mod pages;
pub mod reassembly;
pub mod receiver;
mod reports;
pub mod window;

pub use acks::AckDue;
pub use pages::{ClusterSize, PageId, Pages};
pub use receiver::{Offered, ReceivedSegment, Receiver, ReceiverSettings, SegmentRefusal};
