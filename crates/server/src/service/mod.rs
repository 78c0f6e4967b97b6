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
//! | [`ports`] | the library as a trait |
//! | [`config`] | settings and their defaults |
//! | [`stream`] | one viewer's stream, and where it stands |
//! | [`event`] | what happened, for protocols, logs and counters |
//! | [`refusal`] | why a request cannot be granted |
//! | `admit` | a new stream, and one that moves to another path |
//! | `room` | whether there is room: `admit` checks, `play` reserves, a long pause gives back |
//! | `quota` | what one user may have, and how many may watch one title |
//! | `measured` | whether engines, disks, cache and links carry it, and who goes when they no longer do ([`crate::admission`]) |
//! | `moving` | streams that go over to another engine |
//! | `opening` | titles that are being opened, and the requests that wait for them |
//! | `bytes` | bytes of a title in a connection |
//! | `play`, `seek` | play and pause; which media time a place means |
//! | `scale` | other speeds: the media sent in place of the title, and faster delivery |
//! | `unread` | which of those could not be read, and are left out for a while |
//! | [`rendition`] | other bit rates: which one is sent, and going over to another |
//! | [`adapt`], `adapting` | when the server changes that by itself |
//! | `queued` | runs that follow without a break |
//! | [`fetch`] | viewers of segments that are made beside the engines |
//! | `fec` | parity beside the title: wishes, grants, the streams that carry it |
//! | `end` | how streams end, one by one and all together |
//! | `engines` | events of the engines |
//! | `conns` | connections that streams are made on, or go through |
//! | [`packet_size`] | how large a viewer's packets are |
//! | `slots` | the resources taken of each engine |
#![forbid(unsafe_code)]

pub mod adapt;
mod adapting;
mod admit;
mod bytes;
pub mod config;
mod conns;
mod end;
mod engines;
pub mod event;
mod fec;
pub mod fetch;
mod measured;
mod moving;
mod opening;
pub mod packet_size;
mod play;
pub mod ports;
mod queued;
mod quota;
pub mod refusal;
pub mod rendition;
mod room;
mod scale;
mod seek;
mod slots;
pub mod stream;
mod unread;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::time::Instant;
use millrace_offload::command::Command;

use crate::admission::Admission;

pub use admit::{Admitted, StreamRequest, Which};
pub use config::{RateBasis, ServiceConfig};
pub use conns::ConnKey;
use conns::ConnRecord;
use end::Closing;
pub use event::{FecChange, Playing, ServiceEvent, Totals};
pub use fec::{FecMatrix, FecMode, FecWish, TRACK_RS, TRACK_XOR, port_offset};
pub use fetch::{Fetch, FetchedSegment, Fetcher, Fetching};
use opening::Openings;
pub use packet_size::{PacketSizes, PathMtu, kernel_path_mtu, kernel_source};
pub use play::{PlayRequest, Played};
pub use ports::{
    AccessPoint, AccessPoints, CachedParity, Library, NeededPart, OpenError, Rendition, TitleEntry,
    TitlePart, Transformed,
};
pub use refusal::{ConnRefusal, FecRefusal, Refusal};
pub use rendition::{Begins, Cause, Change, RenditionWish};
pub use scale::Speed;
pub use seek::{From, Presentation, Span, TimeBase};
use slots::EngineSlots;
pub use stream::{EndReason, PlaybackStream, ReportedLoss, StreamKey, StreamPath};

/// The actions to carry out, in this order.
#[derive(Debug)]
pub enum Output {
    /// Send this command to an engine.
    Command {
        /// To whom.
        engine: usize,
        /// What.
        command: Command,
    },
    /// Hand a duplicate of the connection's descriptor to this engine, under this name ([`Command::ConnAdd`]). If that fails, say
    /// [`Service::conn_closed`].
    Attach {
        /// The connection.
        conn: ConnKey,
        /// The engine.
        engine: usize,
        /// Its name there.
        id: ConnId,
    },
    /// No engine writes to this connection for a while: keep its output until the next
    /// [`Output::Attach`].
    Hold {
        /// The connection.
        conn: ConnKey,
    },
    /// This has happened.
    Event(ServiceEvent),
}

/// What one address holds.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    connections: usize,
    /// Streams, playing or not.
    sessions: usize,
    /// Those that have reserved room to play, and viewers that fetch segments.
    streams: usize,
    /// Bits a second that they have reserved.
    rate: u64,
}

/// All streams.
pub struct Service {
    config: ServiceConfig,
    library: Box<dyn Library>,
    openings: Openings,
    streams: HashMap<StreamKey, PlaybackStream>,
    /// Streams that have reserved nothing, by the time since which they do not play.
    idle: BTreeSet<(Instant, StreamKey)>,
    /// UDP ports of viewers that something is sent to: media, its reports, FEC.
    by_port: HashMap<(IpAddr, u16), Vec<StreamKey>>,
    by_place: HashMap<(usize, StreamId), StreamKey>,
    /// Places that the engines were ordered to clear.
    closing: HashMap<(usize, StreamId), Closing>,
    conns: HashMap<ConnKey, ConnRecord>,
    /// Those of them that are lent.
    lent_conns: usize,
    by_conn: HashMap<(usize, ConnId), ConnKey>,
    usage: HashMap<IpAddr, Usage>,
    fetchers: fetch::Fetchers,
    watched: quota::Watched,
    slots: Vec<EngineSlots>,
    admission: Admission,
    /// Titles made from others that could not be read.
    unread: unread::Unread,
    outputs: VecDeque<Output>,
    shutting_down: bool,
    next_key: u64,
}

impl Service {
    /// No streams, no connections.
    pub fn new(config: ServiceConfig, library: Box<dyn Library>) -> Self {
        let slot = || EngineSlots::new(config.streams_per_engine, config.conns_per_engine);
        let slots: Vec<_> = (0..config.engines.max(1)).map(|_| slot()).collect();
        let admission = Admission::new(config.admission.clone(), slots.len());
        Self {
            config,
            library,
            openings: Openings::default(),
            streams: HashMap::new(),
            idle: BTreeSet::new(),
            by_port: HashMap::new(),
            by_place: HashMap::new(),
            closing: HashMap::new(),
            conns: HashMap::new(),
            lent_conns: 0,
            by_conn: HashMap::new(),
            usage: HashMap::new(),
            fetchers: fetch::Fetchers::default(),
            watched: quota::Watched::default(),
            slots,
            admission,
            unread: unread::Unread::default(),
            outputs: VecDeque::new(),
            shutting_down: false,
            next_key: 0,
        }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Its settings.
    pub fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// Returns the title of this name, with its open parts ([`Service::prepare`]).
    pub fn find(&mut self, name: &str) -> Option<TitleEntry> {
        self.library.find(name)
    }

    /// Returns the title with the operator's transformation of this name; `None`: there is none.
    pub fn transformed(&mut self, entry: &TitleEntry, name: &str) -> Option<TitleEntry> {
        self.library.transformed(entry, name)
    }

    /// Checks whether enough of the title is there for playing it.
    ///
    /// # Errors
    /// [`Refusal::MembersLost`].
    pub fn check_members(&mut self, entry: &TitleEntry) -> Result<(), Refusal> {
        self.library.lost(entry).map_or(Ok(()), |lost| Err(Refusal::MembersLost(lost)))
    }

    /// A stream that has not ended.
    pub fn stream(&self, key: StreamKey) -> Option<&PlaybackStream> {
        self.streams.get(&key)
    }

    /// All that have not ended, the oldest first.
    pub fn streams(&self) -> Vec<&PlaybackStream> {
        let mut streams: Vec<_> = self.streams.values().collect();
        streams.sort_unstable_by_key(|stream| stream.key);
        streams
    }

    /// Streams that have not ended.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Returns the number of those that a viewer set up, and that are not for bytes alone.
    pub fn session_count(&self) -> usize {
        self.streams.values().filter(|stream| !matches!(stream.path, StreamPath::Bytes { .. })).count()
    }

    /// Returns the number of places taken in the engines, including those of streams that they are
    /// about to forget.
    pub fn place_count(&self) -> usize {
        self.by_place.len() + self.closing.len()
    }

    /// Streams to which something is sent at this port.
    pub fn at_port(&self, ip: IpAddr, port: u16) -> &[StreamKey] {
        self.by_port.get(&(ip, port)).map_or(&[], Vec::as_slice)
    }

    /// Records a sign of life from the viewer of this stream.
    pub fn note_alive(&mut self, now: Instant, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.last_heard = now;
        }
    }

    /// The stream by UDP to this address whose RTP source is this, if there is exactly one.
    pub fn only_stream_of(&self, ip: IpAddr, ssrc: u32) -> Option<StreamKey> {
        let mut fitting = self.streams.values().filter(|stream| {
            matches!(stream.path, StreamPath::Udp { .. }) && stream.viewer.ip() == ip && stream.ssrc() == ssrc
        });
        match (fitting.next(), fitting.next()) {
            (Some(stream), None) => Some(stream.key),
            _ => None,
        }
    }

    fn command(&mut self, engine: usize, command: Command) {
        self.outputs.push_back(Output::Command { engine, command });
    }

    fn tell(&mut self, event: ServiceEvent) {
        self.outputs.push_back(Output::Event(event));
    }

    fn new_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }
}
