//! Live titles beside stored ones, as the service looks titles up.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::scale::Scale;

use super::channel::LIVE_PREFIX;
use super::titles::LiveTitles;
use crate::admission::CacheFigures;
use crate::service::{CachedParity, Library, NeededPart, OpenError, Rendition, TitleEntry};

/// A library with the live titles added to it. Nothing of them has to be opened: their media is in memory.
pub struct LiveLibrary<L> {
    stored: L,
    live: Arc<LiveTitles>,
}

impl<L: Library> LiveLibrary<L> {
    /// Adds `live` to `stored`.
    pub fn new(stored: L, live: Arc<LiveTitles>) -> Self {
        Self { stored, live }
    }
}

impl<L: Library> Library for LiveLibrary<L> {
    fn has(&mut self, need: &NeededPart) -> bool {
        need.title.starts_with(LIVE_PREFIX) || self.stored.has(need)
    }

    fn begin(&mut self, need: &NeededPart) {
        self.stored.begin(need);
    }

    fn poll_answer(&mut self) -> Option<(NeededPart, Result<(), OpenError>)> {
        self.stored.poll_answer()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.stored.event_fd()
    }

    fn rearm(&mut self) {
        self.stored.rearm();
    }

    fn find(&mut self, name: &str) -> Option<TitleEntry> {
        match name.strip_prefix(LIVE_PREFIX) {
            Some(name) => self.live.get(name).map(|channel| channel.entry()),
            None => self.stored.find(name),
        }
    }

    fn sized(&mut self, entry: &TitleEntry, packet_bytes: usize) -> Option<TitleEntry> {
        self.stored.sized(entry, packet_bytes)
    }

    fn transformed(&mut self, entry: &TitleEntry, name: &str) -> Option<TitleEntry> {
        self.stored.transformed(entry, name)
    }

    fn open(&mut self, entry: &TitleEntry) -> Result<TitleRef, OpenError> {
        match entry.name.strip_prefix(LIVE_PREFIX) {
            Some(name) => self
                .live
                .join(name, entry.id)
                .ok_or_else(|| OpenError::Broken("its source has just ended".into())),
            None => self.stored.open(entry),
        }
    }

    fn open_track(&mut self, entry: &TitleEntry, track: u8) -> Result<CachedParity, OpenError> {
        self.stored.open_track(entry, track)
    }

    fn derived(&mut self, entry: &TitleEntry) -> Vec<(Scale, String)> {
        self.stored.derived(entry)
    }

    fn renditions(&mut self, entry: &TitleEntry) -> Vec<Rendition> {
        self.stored.renditions(entry)
    }

    fn wish(&mut self, entry: &TitleEntry, scale: Scale) {
        self.stored.wish(entry, scale);
    }

    fn lost(&mut self, entry: &TitleEntry) -> Option<String> {
        self.stored.lost(entry)
    }

    fn cache_figures(&self) -> Option<CacheFigures> {
        self.stored.cache_figures()
    }

    fn close(&mut self, title: TitleRef) {
        if !self.live.leave(title) {
            self.stored.close(title);
        }
    }
}
