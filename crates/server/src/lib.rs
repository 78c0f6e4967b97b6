//! The `millrace` program: its commands, and the control plane, whose decisions the engine's loop
//! executes.
//!
//! | module | holds |
//! | --- | --- |
//! | [`rtsp`] | messages: framing, parsing, replies; no sockets, no sessions |
//! | [`sdp`] | the description of a title that DESCRIBE answers |
//! | [`admission`] | whether cores, disks, cache and links carry one more viewer, judged by their measured load |
//! | [`service`] | titles, admission, streams: a state machine without I/O that knows no protocol, the clock is passed in |
//! | [`session`] | the service's RTSP face: requests to replies, session names, expiry; without I/O too |
//! | [`control`] | sockets and tasks that carry out what both decide; the log and the counters of what happens |
//! | [`library`] | the titles that can be asked for, in step with folders and store |
//! | [`cmds`] | the subcommands |
#![forbid(unsafe_code)]

pub mod admission;
pub mod cmds;
pub mod control;
pub mod library;
pub mod limits;
pub mod rtsp;
pub mod sdp;
pub mod service;
pub mod session;
