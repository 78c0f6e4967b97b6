//! The `millrace` program: its commands, and the RTSP control plane that decides what the engine's loop executes.
//!
//! | module | holds |
//! | --- | --- |
//! | [`rtsp`] | messages: framing, parsing, replies; no sockets, no sessions |
//! | [`sdp`] | the description of a title that DESCRIBE answers |
//! | [`service`] | what every protocol serves titles with |
//! | [`session`] | sessions, admission, expiry: a state machine without I/O, the clock is passed in |
//! | [`control`] | sockets and tasks that carry out what [`session`] decides |
//! | [`library`] | the titles that can be asked for, in step with folders and store |
//! | [`cmds`] | the subcommands |
#![forbid(unsafe_code)]

pub mod cmds;
pub mod control;
pub mod library;
pub mod rtsp;
pub mod sdp;
pub mod service;
pub mod session;
