//! Addresses and sockets of streams that a sender sends without a request, to an address of this machine or to a
//! multicast group.

pub mod address;
pub mod socket;

pub use address::ListenUrl;
