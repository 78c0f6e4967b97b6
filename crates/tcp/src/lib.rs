//! TCP as a state machine: segments and the time come in, segments come out. No I/O, no clock, nothing allocated after the start.
//!
//! | module | holds |
//! | --- | --- |
//! | [`seq`] | sequence numbers |
//! | [`wire`] | headers and options |
//! | [`keyed`] | the keyed hash behind what nobody outside may compute |
//! | [`isn`], [`ports`], [`cookies`] | initial sequence numbers, source ports, SYN cookies |
//! | [`table`], [`time_wait`] | connections by their ends; connections that are over |
//! | [`recv`] | received data: pages, reassembly, window, ACKs |
#![forbid(unsafe_code)]

pub mod cookies;
pub mod isn;
pub mod keyed;
pub mod limits;
pub mod ports;
pub mod recv;
pub mod seq;
pub mod table;
pub mod time_wait;
pub mod wire;
