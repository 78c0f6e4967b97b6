//! The service that every protocol offers to viewers: titles, room, streams in the engines. A state
//! machine without I/O: viewers' requests, engines' events and the clock come in, [`Output`]s go
//! out.
//!
//! ```text
//!   session (RTSP) · orders (HTTP) · later casts              control: log, counters, later webhooks
//!      │ find  admit  play  pause  set_fec  close                  ▲
//!      ▼                                                           │ Output::Event, in one stream
//!   ┌───────────────────────── Service ────────────────────────────┴─────────┐
//!   │ streams:   StreamKey ─► title · path · engine, StreamId · media · FEC  │◄── Library (store, cache)
//!   │ room:      places in the engines · reservations · shares of addresses  │
//!   │ conns:     ConnKey ─► its streams · the engine that writes to it       │
//!   └──────┬──────────────────────────────────────────────────▲──────────────┘
//!          ▼ Output::Command, Output::Attach                  │ engine_event
//!                              engines
//! ```
//!
//! Order of calls: any method that takes the time, then [`Service::poll_output`] until `None`.
//! Outputs must be carried out in their order: [`ServiceEvent::Playing`], which lets a protocol announce
//! the coming media to its viewer, stands before the command that lets the packets out.
//!
//! The answer to a viewer's request that cannot be granted is a [`Refusal`]; each protocol has one
//! place that makes statuses of them. A service knows no protocol: nothing here names a method, a
//! status or a header, and `cargo xtask tidy` enforces this.
//!
//! | module | holds |
//! | --- | --- |
//! | `state` | the owners of all state: |
//! | `streams` | the table of streams, by key, port and place in an engine |
//! | `conn_table` | the table of connections |
//! | `fetchers` | the table of viewers that fetch segments |
//! | `catalogue`, `opening`, `unread` | the titles: the library, openings under way, made titles that are left out for a while |
//! | `ledger`, `counted` | the usage of each address, each user and each title |
//! | `slots` | the resources taken of each engine |
//! | `keys`, `run`, `speed`, `shown`, `request`, `output`, `parity`, `presentation` | plain types, below all that acts on them |
//! | [`ports`] | the library as a trait |
//! | [`config`] | settings and their defaults |
//! | [`stream`] | one viewer's stream, and where it stands |
//! | [`event`] | what happened, for protocols, logs and counters |
//! | [`refusal`], `exhausted` | why a request cannot be granted; exhausted resources and their scopes |
//! | `admit` | a new stream, and one that moves to another path |
//! | `room` | whether there is room: `admit` checks, `play` reserves, a long pause gives back |
//! | `quota` | what one user may have, and how many may watch one title |
//! | `measured` | whether engines, disks, cache and links carry it, and who goes when they no longer do ([`crate::admission`]) |
//! | `moving` | streams that go over to another engine |
//! | `preparing` | requests that wait for titles to be opened |
//! | `bytes` | bytes of a title in a connection |
//! | `play`, `seek` | play and pause; which media time a place means |
//! | `scale` | other speeds: the media sent in place of the title, and faster delivery |
//! | `read_errors` | those that fail to be read or opened |
//! | [`rendition`], `switching` | other bit rates: which one is sent, and going over to another |
//! | [`adapt`], `adapting` | when the server changes that by itself |
//! | `queued` | runs that follow without a break |
//! | `fetch` | viewers of segments that are made beside the engines |
//! | `viewers` | their sessions: admitted by a playlist, never refused a segment for load |
//! | `matrix`, `fec`, `fec_wanted` | parity beside the title: wishes, grants, the streams that carry it |
//! | `casts`, `listeners`, [`groups`] | streams to multicast groups, the viewers that listen to them, the groups that there are |
//! | `end` | how streams end, one by one and all together |
//! | `engines` | events of the engines |
//! | `conns` | connections that streams are made on, or go through |
//! | [`packet_size`] | how large a viewer's packets are |
#![forbid(unsafe_code)]

pub mod adapt;
mod adapting;
mod admit;
mod bytes;
mod casts;
mod catalogue;
pub mod config;
mod conn_table;
mod conns;
mod counted;
mod end;
mod engines;
pub mod event;
mod exhausted;
mod fec;
mod fec_wanted;
mod fetch;
mod fetchers;
pub mod groups;
mod keys;
mod ledger;
mod listeners;
mod matrix;
mod measured;
mod moving;
mod opening;
mod output;
pub mod packet_size;
mod parity;
mod play;
pub mod ports;
mod preparing;
mod presentation;
mod queued;
mod quota;
mod read_errors;
pub mod refusal;
pub mod rendition;
mod request;
mod room;
mod run;
#[cfg(test)]
mod sample_tests;
mod scale;
mod seek;
mod shown;
mod slots;
mod speed;
mod state;
pub mod stream;
mod streams;
mod switching;
mod time_shift;
mod unread;
mod viewers;

pub use adapt::Cause;
pub use casts::ListenRequest;
pub use config::{RateBasis, ServiceConfig};
pub use event::{FecChange, Playing, ServiceEvent};
pub use exhausted::{Exhausted, ShareScope};
pub use fetchers::{Fetch, Fetcher, Fetching};
pub use groups::{GroupAddress, GroupRange, MulticastGroups};
pub use keys::{ConnKey, StreamKey, StreamPath};
pub use listeners::{CastNotice, CastStatus, Listener};
pub use matrix::{FecMatrix, FecMode, FecWish, TRACK_RS, TRACK_XOR, port_offset};
pub use output::Output;
pub use packet_size::{PacketSizes, PathMtu, kernel_path_mtu, kernel_source};
pub use play::{PlayRequest, Played};
pub use ports::{
    AccessPoint, AccessPoints, CachedParity, Library, NeededPart, OpenError, Rendition, TitleEntry,
    TitlePart, Transformed,
};
pub use presentation::{Presentation, TimeBase};
pub use refusal::{ConnRefusal, FecRefusal, MulticastRefusal, Refusal};
pub use rendition::{Begins, Change, RenditionWish};
pub use request::{Admitted, FetchedSegment, StreamRequest, Which};
pub use seek::{From, Span};
pub use speed::Speed;
pub use state::Service;
pub use stream::{EndReason, PlaybackStream, ReportedLoss, Totals};
