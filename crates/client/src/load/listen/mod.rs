//! Listeners: streams that somebody sends without being asked, as TS packets in UDP datagrams or as RTP, to an address
//! of this machine or to a multicast group.
//!
//! A listener is up with its first packet; one that hears nothing in the time for a reply fails.

pub mod address;
mod raw;
pub(crate) mod socket;
mod viewer;

pub use address::ListenUrl;
pub(super) use viewer::Listener;
