//! TCP as a state machine: segments and the time come in, segments come out. No I/O, no clock, nothing allocated after the start.
//!
//! | module | holds |
//! | --- | --- |
//! | [`seq`] | sequence numbers |
//! | [`wire`] | headers and options |
//! | [`keyed`] | the keyed hash behind values that no outsider may compute |
//! | [`isn`], [`ports`], [`cookies`] | initial sequence numbers, source ports, SYN cookies |
//! | [`table`], [`time_wait`] | connections by their ends; connections that are over |
//! | [`recv`] | received data: pages, reassembly, window, ACKs |
//! | [`sender`] | which data may be sent, when: the front of the four below |
//! | [`recover`] | segments in flight, losses |
//! | [`cc`] | congestion control |
//! | [`rtt`] | round-trip times |
//! | [`send`] | the send queue: the data to send, and its location |
//! | [`conn`] | one connection: the state machine of RFC 9293 |
//! | [`ip`] | the layer below: Ethernet, IP, ICMP, neighbours |
//! | [`stack`] | many connections, listeners, the turn of three stages |
//! | [`limits`] | bounds and constants, with their reasons |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | the TCP state machine and its proofs | `docs/design/0033-tcp.md`, `crates/tcp/src/lib.rs`, then `conn/arrive/`, `stack/` |
//! | the IP layer and its neighbours | `docs/design/0034-ip-layer.md`, `crates/tcp/src/ip/mod.rs`, then `input`, `output`, `neighbours` |
#![forbid(unsafe_code)]

pub mod cc;
pub mod conn;
pub mod cookies;
pub mod ip;
pub mod isn;
pub mod keyed;
pub mod limits;
mod mtu;
mod pace;
pub mod ports;
pub mod recover;
pub mod recv;
pub mod rtt;
pub mod send;
pub mod sender;
pub mod seq;
mod shares;
pub mod stack;
pub mod table;
pub mod time_wait;
pub mod wire;
