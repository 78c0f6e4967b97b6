//! Sessions without sockets: requests, engine events, datagrams and the clock come in, [`Output`]s go out.
//!
//! Order of calls: any `handle_*`, `conn_*` or [`Server::tick`], then [`Server::poll_output`] until `None`. Outputs are
//! to be carried out in their order: a PLAY reply stands before the command that lets the packets out.
//!
//! | module | holds |
//! | --- | --- |
//! | [`entropy`] | where session names come from |
//! | [`config`] | settings and their defaults |
//! | [`notice`], [`counters`] | what happened, for logs and metrics |
//! | `state` | the life of a session, with its table |
//! | `server` | connections, and which request goes where |
//! | `describe`, `setup`, `play`, `params` | the methods |
//! | `admission` | SETUP checks, PLAY reserves, a long pause gives back |
//! | `seek` | which media time the start of a range means |
//! | `refusal` | the log line of a request that was turned down |
//! | `fec` | parity beside the title: wishes, grants, the streams that carry it |
//! | `end` | TEARDOWN, expiry, shutdown |
//! | `events` | what the engines say |
//! | `liveness` | what viewers send beside requests: RTCP, hole punches |
//!
//! A session stays alive by any request that names it, by any RTCP from its viewer, and, interleaved, by its
//! connection being open: openRTSP never sends a keep-alive, GStreamer and VLC send none while paused over TCP. What
//! viewers report about loss is never acted upon: the first reports of live555 claim 99 % loss on a perfect stream.
#![forbid(unsafe_code)]

mod admission;
pub mod config;
pub mod counters;
mod describe;
mod end;
pub mod entropy;
mod events;
mod fec;
mod liveness;
pub mod notice;
mod params;
mod play;
mod refusal;
mod seek;
mod server;
mod setup;
mod state;

pub use config::{RateBasis, ServerConfig};
pub use counters::{Counters, Held};
pub use entropy::{Entropy, SystemEntropy};
pub use liveness::UdpPort;
pub use notice::Notice;
pub use seek::{Presentation, TimeBase};
pub use server::{ConnKey, ConnRefusal, Output, Server, SessionInfo, SessionKey};
pub use state::{EndReason, Path, State};
