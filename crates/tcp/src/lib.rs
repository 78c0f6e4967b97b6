//! TCP as a state machine: segments and the time come in, segments come out. No I/O, no clock, nothing allocated after the start.
//!
//! | module | holds |
//! | --- | --- |
//! | [`seq`] | sequence numbers |
//! | [`wire`] | headers and options |
//! | [`sender`] | what may be sent, when: the front of the four below |
//! | [`recover`] | segments in flight, losses |
//! | [`cc`] | congestion control |
//! | [`rtt`] | round-trip times |
//! | [`limits`] | bounds and constants, with their reasons |
#![forbid(unsafe_code)]

pub mod cc;
pub mod limits;
mod mtu;
mod pace;
pub mod recover;
pub mod rtt;
pub mod sender;
pub mod seq;
pub mod wire;
