//! The whole server in one process and one thread, on one virtual clock, from one seed: viewers, RTSP,
//! service, engines, cache and disks, and the faults of all of them.
//!
//! | module | holds |
//! | --- | --- |
//! | [`scenario`] | actions and faults, drawn from the seed |
//! | [`world`] | the clock, the order of events, the invariants |
//! | [`host`] | the server: the real control plane, web side, loops and cache |
//! | [`sockets`] | the ends of its connections |
//! | [`transmit`], [`network`] | the loops' egress path, and where it leads |
//! | [`library`], [`site`], [`titles`] | the titles as service and web side see them, and the volumes that they lie on |
//! | [`viewer`], [`reception`] | a viewer by RTSP: the client's dialogue, and its media, packet by packet |
//! | [`fec`] | the FEC beside that media |
//! | [`http_viewer`], [`http_answer`] | a viewer by HTTP: its requests, and the answers, byte by byte |
//! | [`users`] | users, their grants and quotas |
//! | [`shares`] | limits of all viewers, of an address and of a user |
//! | [`search`] | many seeds, and the least of a scenario that still fails |
//!
//! `docs/design/0047-simulator.md` lists its real parts and its checks.
#![forbid(unsafe_code)]

pub mod fec;
pub mod host;
pub mod http_answer;
pub mod http_viewer;
pub mod library;
pub mod network;
pub mod reception;
pub mod scenario;
pub mod search;
pub mod shares;
pub mod site;
pub mod sockets;
pub mod titles;
pub mod transmit;
pub mod users;
pub mod viewer;
pub mod world;
