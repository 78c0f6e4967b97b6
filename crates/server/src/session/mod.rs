//! The service's RTSP face, without sockets: requests, engine events, datagrams and the clock come in, [`Output`]s go out.
//!
//! Order of calls: any `handle_*`, `conn_*` or [`RtspFace::tick`], or anything of the service and [`RtspFace::drain_service`]; then
//! [`Server::poll_output`] until `None`. The order of the outputs matters: a PLAY reply stands before the command that lets the packets
//! out.
//!
//! The [`service`](crate::service) knows the limits and the state of each viewer. This module adds
//! the RTSP part: connections that answer one request after the other, names of sessions, headers
//! and statuses, time-outs.
//!
//! | module | holds |
//! | --- | --- |
//! | [`entropy`] | where session names come from |
//! | [`config`] | settings and their defaults |
//! | `state` | the life of a session, with its table |
//! | `server` | connections, and the outputs |
//! | `requests` | which request goes where |
//! | `describe`, `setup`, `play`, `params` | the methods |
//! | `fec` | `X-Millrace-FEC` |
//! | `listen` | multicast: viewers that share the cast of a live title |
//! | `rights` | viewing access, and how players are asked to identify themselves |
//! | `refusal` | statuses of refusals, and the log line of a refused request |
//! | `events` | the service's events: replies that waited, sessions that are over |
//! | `opening` | requests that wait for their title to be opened |
//! | `end` | TEARDOWN, expiry, shutdown |
//! | `liveness` | what viewers send beside requests: RTCP, hole punches |
//!
//! A session stays alive by any request that names it, by any RTCP from its viewer, and, interleaved, by its
//! connection being open: openRTSP never sends a keep-alive, GStreamer and VLC send none while paused over TCP. What
//! viewers report about loss is never acted upon: the first reports of live555 claim 99 % loss on a perfect stream.
#![forbid(unsafe_code)]

pub mod config;
mod describe;
mod end;
pub mod entropy;
mod events;
mod fec;
mod listen;
mod liveness;
mod opening;
mod params;
mod play;
mod refusal;
mod rendition;
mod requests;
mod rights;
mod server;
mod setup;
mod state;
mod tunnel;

pub use config::ServerConfig;
pub use entropy::{Entropy, SystemEntropy};
pub use liveness::UdpPort;
pub use server::{Output, RtspFace, Server, SessionInfo, canonical};
pub use state::SessionState;
