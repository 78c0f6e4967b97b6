//! Benchmarks, and the proofs that need more than one crate.
//!
//! | module | holds |
//! | --- | --- |
//! | [`cmds`] | the commands of the program `millrace-lab` |
//! | [`frame`] | the common parts of every benchmark: name, purpose, rows, targets, machine and commit |
//! | [`benches`] | the benchmarks, one file each |
//! | [`framing`] | the older ways to frame a datagram, to compare with the one that runs |
//! | [`report`] | results, as a web page or in a Markdown document |
//! | [`capacity`] | how many viewers a service carries: search, trials, limits, meters |
//! | [`peers`] | other servers, started and asked like ours |
//! | [`netns`] | hosts on one machine: network namespaces joined by a veth pair or an emulated link |
//! | [`held`] | resources that a running server holds for its viewers |
//! | [`isal`] | another erasure code, if the machine has it, to compare with |
//! | [`link_host`] | a host on this machine that meets its servers through an emulated link |
//! | [`media`] | media files made on the spot |
//! | [`proc`] | processor time and memory of a process, from /proc |
//! | [`raw_send`] | sendmmsg with UDP_SEGMENT as a C program would call it: the yardstick |
//! | [`raw_loops`] | send loops that do nothing else, by sockets and by AF_XDP |
//! | [`runner`] | the thread of our TCP in these two |
//! | [`tap_host`] | our IP layer and TCP on an Ethernet, opposite this kernel's |
//! | [`tcp_host`] | our TCP behind an emulated link, opposite this kernel's |
//! | [`toe_host`] | the TCP offload engine opposite this kernel's TCP |
//! | [`visitors`] | a client that sets streams up and is gone, as fast as it can |
//! | [`mod@reference`] | senders that anybody could write, to compare with |
//! | [`streams`] | the experiment of the Stream Engine paper: its senders, and how many streams a core carries |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | writing a benchmark | `crates/lab/src/frame/mod.rs` |
//! | other ways to send the same blocks, and their cost | `crates/lab/src/streams/mod.rs` |
#![deny(unsafe_code)]

pub mod benches;
pub mod capacity;
pub mod cmds;
pub mod frame;
pub mod framing;
pub mod held;
pub mod hostile;
pub mod isal;
pub mod link_host;
pub mod media;
pub mod netns;
pub mod peers;
pub mod proc;
pub mod raw_loops;
pub mod raw_send;
pub mod reference;
pub mod report;
pub mod runner;
pub mod streams;
pub mod tap_host;
pub mod tcp_host;
pub mod toe_host;
pub mod visitors;
