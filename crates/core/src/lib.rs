//! The words that every part of Millrace uses, and nothing else.
//!
//! One crate, because if any of these words lived in the store, the engine or the packet I/O, the arrows between
//! those three would have to turn around. It depends on the standard library only. `unsafe` lives in [`pool`],
//! in [`prefetch`] and in the vector forms of [`wire::checksum`] and [`fec`], nowhere else here.
//!
//! | module | holds |
//! | --- | --- |
//! | [`units`] | bit rates, byte lengths, durations: parse and print, always with the unit |
//! | [`time`] | [`time::Instant`] in nanoseconds, [`time::MediaTicks`] at 90 kHz |
//! | [`address`] | grouping of addresses by client |
//! | [`byte_range`] | a title's bytes, without what its packets have around them |
//! | [`counters`](mod@counters) | counters that one thread writes and anybody reads |
//! | [`limits`] | every bound of the system, with the reason, relations asserted at compile time |
//! | [`dest`] | where a stream's packets go, from the control side to the devices |
//! | [`fec`] | the code that protects titles on disk and on the network |
//! | [`ids`] | newtypes for titles, streams and connections |
//! | [`packet`] | [`packet::PacketMeta`]: the record stored for each media packet; [`packet::WireLayout`] |
//! | [`pool`] | the extent arena: one copy of the title in memory, filled once, lent to many |
//! | [`prefetch`] | asking for memory before it is needed |
//! | [`random`] | numbers that a seed repeats |
//! | [`rendition`] | the name of the same media at another bit rate |
//! | [`scale`] | how fast and in which direction a title is shown |
//! | [`seam`] | the ports: clock, packets out, doorbells |
//! | [`shape`] | a payload, checked: which bytes make which datagram |
//! | [`shared`] | memory of two sides that do not trust each other, and rings of records in it |
//! | [`sleep`] | who sleeps and has to be woken: the protocol of a doorbell |
//! | [`source`] | source addresses of datagrams |
//! | [`text`] | text from outside, made fit for terminals and logs |
//! | [`wheel`] | a timing wheel: one timer for each of many owners |
//! | [`wire`] | checksums, headers, RTP, RTCP: bytes on the wire |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | the vocabulary | `crates/core/src/lib.rs`, then `seam.rs`, `packet.rs`, `pool.rs` |
//! | source address of datagrams | `crates/core/src/source.rs`, `Server::source_for` in `crates/server/src/session/setup.rs` |
//! | destinations of packets | `crates/core/src/dest.rs`, `docs/design/0019-ways-out.md` |
//! | counters and their output | `crates/core/src/counters.rs`, `docs/ref/counters.md` |
#![deny(unsafe_code)]

pub mod address;
pub mod byte_range;
pub mod counters;
pub mod dest;
pub mod fec;
pub mod ids;
pub mod limits;
pub mod memory;
pub mod packet;
pub mod pool;
pub mod prefetch;
pub mod random;
pub mod rendition;
pub mod scale;
pub mod seam;
pub mod shape;
pub mod shared;
pub mod sleep;
pub mod source;
mod sync;
pub mod text;
pub mod time;
pub mod units;
pub mod wheel;
pub mod wire;
