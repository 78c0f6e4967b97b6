//! The service's state: each owner keeps one table, and the service coordinates them.

use std::net::IpAddr;

use millrace_core::time::Instant;
use millrace_offload::command::Command;

use super::catalogue::TitleCatalogue;
use super::config::ServiceConfig;
use super::conn_table::ConnTable;
use super::event::ServiceEvent;
use super::fetchers::Fetchers;
use super::keys::StreamKey;
use super::ledger::UsageLedger;
use super::listeners::CastTable;
use super::output::{Outbox, Output};
use super::ports::{Library, TitleEntry};
use super::refusal::Refusal;
use super::slots::SlotTable;
use super::stream::PlaybackStream;
use super::streams::PlaybackStreams;
use crate::admission::Admission;

/// The service that all protocols share.
pub struct Service {
    pub(super) config: ServiceConfig,
    pub(super) titles: TitleCatalogue,
    pub(super) streams: PlaybackStreams,
    pub(super) conns: ConnTable,
    pub(super) fetchers: Fetchers,
    pub(super) casts: CastTable,
    pub(super) usage: UsageLedger,
    pub(super) slots: SlotTable,
    pub(super) admission: Admission,
    pub(super) outputs: Outbox,
    pub(super) shutting_down: bool,
    next_key: u64,
}

impl Service {
    /// No streams, no connections.
    pub fn new(config: ServiceConfig, library: Box<dyn Library>) -> Self {
        let slots = SlotTable::new(config.engines, config.streams_per_engine, config.conns_per_engine);
        let admission = Admission::new(config.admission.clone(), slots.len());
        Self {
            config,
            titles: TitleCatalogue::new(library),
            streams: PlaybackStreams::default(),
            conns: ConnTable::default(),
            fetchers: Fetchers::default(),
            casts: CastTable::default(),
            usage: UsageLedger::default(),
            slots,
            admission,
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

    /// Takes those of the settings that may change while viewers are served.
    pub fn set_limits(&mut self, new: &ServiceConfig) {
        self.config.set_limits(new);
        self.admission.set_config(self.config.admission.clone());
    }

    /// Returns the title of this name, with its open parts ([`Service::prepare`]).
    pub fn find(&mut self, name: &str) -> Option<TitleEntry> {
        self.titles.library.find(name)
    }

    /// The same in the form in which connections get its bytes.
    pub fn find_for_bytes(&mut self, name: &str) -> Option<TitleEntry> {
        self.titles.find_for_bytes(name)
    }

    /// Returns the title with the operator's transformation of this name; `None`: there is none.
    pub fn transformed(&mut self, entry: &TitleEntry, name: &str) -> Option<TitleEntry> {
        self.titles.library.transformed(entry, name)
    }

    /// Checks whether enough of the title is there for playing it.
    ///
    /// # Errors
    /// [`Refusal::MembersLost`].
    pub fn check_members(&mut self, entry: &TitleEntry) -> Result<(), Refusal> {
        self.titles.check_members(entry)
    }

    /// A stream that has not ended.
    pub fn stream(&self, key: StreamKey) -> Option<&PlaybackStream> {
        self.streams.get(&key)
    }

    /// All that have not ended, the oldest first.
    pub fn streams(&self) -> Vec<&PlaybackStream> {
        self.streams.in_order()
    }

    /// Returns the number of those that a viewer set up, and that are not for bytes alone.
    pub fn session_count(&self) -> usize {
        self.streams.session_count() + self.casts.len()
    }

    /// Returns the number of places taken in the engines, including those of streams that they are
    /// about to forget.
    pub fn place_count(&self) -> usize {
        self.streams.place_count()
    }

    /// Streams to which something is sent at this port.
    pub fn at_port(&self, ip: IpAddr, port: u16) -> &[StreamKey] {
        self.streams.at_port(ip, port)
    }

    /// Records a sign of life from the viewer of this stream.
    pub fn note_alive(&mut self, now: Instant, key: StreamKey) {
        match self.casts.listener_mut(key) {
            Some(listener) => listener.last_heard = now,
            None => self.streams.note_alive(now, key),
        }
    }

    /// The title of a stream, or of a listener of this name.
    pub fn title_of(&self, key: StreamKey) -> Option<&str> {
        let title = self.streams.get(&key).map(|stream| stream.entry.name.as_str());
        title.or_else(|| self.casts.listener(key).map(super::Listener::title))
    }

    /// The last sign of life from the viewer of a stream, or from a listener.
    pub fn last_heard(&self, key: StreamKey) -> Option<Instant> {
        let stream = self.streams.get(&key).map(|stream| stream.last_heard);
        stream.or_else(|| self.casts.listener(key).map(|listener| listener.last_heard))
    }

    /// The stream by UDP to this address whose RTP source is this, if there is exactly one.
    pub fn only_stream_of(&self, ip: IpAddr, ssrc: u32) -> Option<StreamKey> {
        self.streams.only_stream_of(ip, ssrc)
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
