//! Listeners: streams that a sender sends without a request, as TS packets in UDP datagrams or as
//! RTP, to an address of this machine or to a multicast group.
//!
//! A listener is up with its first packet; one that hears nothing in the time for a reply fails.

pub mod address;
mod raw;
pub(crate) mod socket;
mod viewer;

pub use address::ListenUrl;
pub(super) use viewer::Listener;
