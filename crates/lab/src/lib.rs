//! Benchmarks, and the proofs that need more than one crate.
//!
//! | module | holds |
//! | --- | --- |
//! | [`frame`] | what every benchmark has: name, purpose, rows, promises, machine and commit |
//! | [`benches`] | the benchmarks, one file each |
//! | [`netns`] | hosts on one machine: network namespaces joined by a veth pair |
//! | [`media`] | films made on the spot |
//! | [`proc`] | processor time and memory of a process, from /proc |
//! | [`raw_send`] | sendmmsg with UDP_SEGMENT as a C program would call it: the yardstick |
#![deny(unsafe_code)]

pub mod benches;
pub mod frame;
pub mod media;
pub mod netns;
pub mod proc;
pub mod raw_send;
