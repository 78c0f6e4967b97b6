//! TCP as a state machine: segments and the time come in, segments come out. No I/O, no clock, nothing allocated after the start.
//!
//! | module | holds |
//! | --- | --- |
//! | [`seq`] | sequence numbers |
//! | [`wire`] | headers and options |
#![forbid(unsafe_code)]

pub mod seq;
pub mod wire;
