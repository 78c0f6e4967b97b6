//! The state of the service.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::time::Instant;
use millrace_offload::command::Command;

use super::config::ServiceConfig;
use super::conns::ConnRecord;
use super::event::ServiceEvent;
use super::fetch::Fetchers;
use super::keys::{ConnKey, StreamKey, StreamPath};
use super::ledger::Usage;
use super::opening::Openings;
use super::output::{Outbox, Output};
use super::ports::{Library, TitleEntry};
use super::quota::Watched;
use super::refusal::Refusal;
use super::slots::EngineSlots;
use super::stream::PlaybackStream;
use super::streams::Closing;
use super::unread::Unread;
use crate::admission::Admission;

/// All streams.
pub struct Service {
    pub(super) config: ServiceConfig,
    pub(super) library: Box<dyn Library>,
    pub(super) openings: Openings,
    pub(super) streams: HashMap<StreamKey, PlaybackStream>,
    /// Streams that have reserved nothing, by the time since which they do not play.
    pub(super) idle: BTreeSet<(Instant, StreamKey)>,
    /// UDP ports of viewers that something is sent to: media, its reports, FEC.
    pub(super) by_port: HashMap<(IpAddr, u16), Vec<StreamKey>>,
    pub(super) by_place: HashMap<(usize, StreamId), StreamKey>,
    /// Places that the engines were ordered to clear.
    pub(super) closing: HashMap<(usize, StreamId), Closing>,
    pub(super) conns: HashMap<ConnKey, ConnRecord>,
    /// Those of them that are lent.
    pub(super) lent_conns: usize,
    pub(super) by_conn: HashMap<(usize, ConnId), ConnKey>,
    pub(super) usage: HashMap<IpAddr, Usage>,
    pub(super) fetchers: Fetchers,
    pub(super) watched: Watched,
    pub(super) slots: Vec<EngineSlots>,
    pub(super) admission: Admission,
    /// Titles made from others that could not be read.
    pub(super) unread: Unread,
    pub(super) outputs: Outbox,
    pub(super) shutting_down: bool,
    pub(super) next_key: u64,
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
            fetchers: Fetchers::default(),
            watched: Watched::default(),
            slots,
            admission,
            unread: Unread::default(),
            outputs: Outbox::default(),
            shutting_down: false,
            next_key: 0,
        }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop()
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

    pub(super) fn command(&mut self, engine: usize, command: Command) {
        self.outputs.command(engine, command);
    }

    pub(super) fn tell(&mut self, event: ServiceEvent) {
        self.outputs.tell(event);
    }

    pub(super) fn new_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }
}
