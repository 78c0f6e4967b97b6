//! The titles that streams play: the library, the openings that requests wait for, and the made
//! titles that could not be read.

use std::os::fd::BorrowedFd;

use millrace_core::ids::TitleRef;
use millrace_core::scale::Scale;
use millrace_core::time::Instant;

use super::keys::ConnKey;
use super::opening::Openings;
use super::ports::{CachedParity, Library, NeededPart, OpenError, Rendition, TitleEntry};
use super::refusal::Refusal;
use super::rendition::Renditions;
use super::shown::SubstituteTitle;
use super::unread::Unread;
use crate::admission::CacheFigures;

/// All titles.
pub(super) struct TitleCatalogue {
    library: Box<dyn Library>,
    openings: Openings,
    unread: Unread,
}

/// One answer of the library.
pub(super) struct OpeningAnswer {
    /// The title that could not be opened, and why, if no request is refused for it.
    pub(super) unreported: Option<(String, OpenError)>,
}

impl TitleCatalogue {
    pub(super) fn new(library: Box<dyn Library>) -> Self {
        Self { library, openings: Openings::default(), unread: Unread::default() }
    }

    /// The title of this name, with its open parts.
    pub(super) fn find(&mut self, name: &str) -> Option<TitleEntry> {
        self.library.find(name)
    }

    /// The same in the form for connections of bytes: without RTP headers, so that the bytes are contiguous and need not be
    /// copied. If only viewers of RTP have the title in the cache now, they share their copy.
    pub(super) fn find_for_bytes(&mut self, name: &str) -> Option<TitleEntry> {
        let entry = self.library.find(name)?;
        let raw = entry.raw().filter(|raw| self.library.is_cached(raw) || !self.library.is_cached(&entry));
        Some(raw.unwrap_or(entry))
    }

    /// The same title in packets of another size.
    pub(super) fn sized(&mut self, entry: &TitleEntry, packet_bytes: usize) -> Option<TitleEntry> {
        self.library.sized(entry, packet_bytes)
    }

    /// Returns the title with the operator's transformation of this name; `None`: there is none.
    pub(super) fn transformed(&mut self, entry: &TitleEntry, name: &str) -> Option<TitleEntry> {
        self.library.transformed(entry, name)
    }

    /// Titles made from this one for other speeds.
    pub(super) fn derived(&mut self, entry: &TitleEntry) -> Vec<(Scale, String)> {
        self.library.derived(entry)
    }

    /// Returns the available bit rates of a title, the best first; empty if there is only one.
    pub(super) fn renditions(&mut self, entry: &TitleEntry) -> Vec<Rendition> {
        self.library.renditions(entry)
    }

    /// A viewer would rather have this title at this speed.
    pub(super) fn wish(&mut self, entry: &TitleEntry, scale: Scale) {
        self.library.wish(entry, scale);
    }

    /// Checks whether enough of the title is there for playing it.
    ///
    /// # Errors
    /// [`Refusal::MembersLost`].
    pub(super) fn check_members(&mut self, entry: &TitleEntry) -> Result<(), Refusal> {
        self.library.lost(entry).map_or(Ok(()), |lost| Err(Refusal::MembersLost(lost)))
    }

    pub(super) fn cache_figures(&self) -> Option<CacheFigures> {
        self.library.cache_figures()
    }
}

/// Titles in the cache.
impl TitleCatalogue {
    /// One more viewer of the title.
    pub(super) fn open(&mut self, entry: &TitleEntry) -> Result<TitleRef, OpenError> {
        self.library.open(entry)
    }

    /// The same for a parity track of it.
    pub(super) fn open_track(&mut self, entry: &TitleEntry, track: u8) -> Result<CachedParity, OpenError> {
        self.library.open_track(entry, track)
    }

    /// Opens all of these, or none.
    pub(super) fn open_made(
        &mut self,
        entries: impl IntoIterator<Item = TitleEntry>,
    ) -> Option<Vec<SubstituteTitle>> {
        let mut opened = Vec::new();
        for entry in entries {
            match self.library.open(&entry) {
                Ok(title) => opened.push(SubstituteTitle { entry, title }),
                Err(_) => {
                    self.close_made(opened);
                    return None;
                }
            }
        }
        Some(opened)
    }

    pub(super) fn close(&mut self, title: TitleRef) {
        self.library.close(title);
    }

    pub(super) fn close_made(&mut self, made: Vec<SubstituteTitle>) {
        made.into_iter().for_each(|made| self.library.close(made.title));
    }
}

/// Openings.
impl TitleCatalogue {
    pub(super) fn openings(&self) -> &Openings {
        &self.openings
    }

    pub(super) fn forget_opening(&mut self, conn: ConnKey) {
        self.openings.forget(conn);
    }

    /// Connections whose requests have waited too long, the oldest connection first: they wait no more.
    pub(super) fn overdue_openings(&mut self, now: Instant) -> Vec<ConnKey> {
        self.openings.take_overdue(now)
    }

    /// Readable when there may be answers; `None` if there never are.
    pub(super) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.library.event_fd()
    }

    /// Makes that descriptor quiet until the next answer.
    pub(super) fn rearm(&mut self) {
        self.library.rearm();
    }

    /// Takes the next answer; adds the connections whose requests have all their answers now.
    pub(super) fn take_answer(&mut self, complete: &mut Vec<ConnKey>) -> Option<OpeningAnswer> {
        let (need, result) = self.library.poll_answer()?;
        let is_awaited = self.openings.answered(&need, &result, complete);
        let unreported = result.err().filter(|_| !is_awaited).map(|error| (need.title, error));
        Some(OpeningAnswer { unreported })
    }

    /// Those of these needs that are not met, without those that have failed for the request on
    /// `conn`.
    pub(super) fn missing(
        &mut self,
        conn: Option<ConnKey>,
        needs: impl IntoIterator<Item = NeededPart>,
    ) -> Vec<NeededPart> {
        let Self { library, openings, .. } = self;
        let failed = |need: &NeededPart| conn.is_some_and(|conn| openings.has_failed(conn, need));
        let mut missing: Vec<_> = needs.into_iter().filter(|need| !failed(need)).collect();
        missing.retain(|need| !library.has(need));
        missing
    }

    /// Has the request on `conn` wait for these; returns its refusal until then.
    pub(super) fn begin_opening(
        &mut self,
        now: Instant,
        conn: Option<ConnKey>,
        missing: Vec<NeededPart>,
    ) -> Refusal {
        self.openings.begin(self.library.as_mut(), now, conn, missing)
    }
}

/// Made titles that could not be read.
impl TitleCatalogue {
    /// Leaves this made title out for a while.
    pub(super) fn note_unread(&mut self, now: Instant, name: String) {
        self.unread.note(now, name);
    }

    pub(super) fn is_unread(&self, now: Instant, name: &str) -> bool {
        self.unread.has(now, name)
    }

    /// Whether the server may choose this one of a title's renditions.
    pub(super) fn allows(&self, now: Instant, all: &Renditions, rendition: usize) -> bool {
        self.unread.allows(now, all, rendition)
    }
}

#[cfg(test)]
#[path = "catalogue_tests.rs"]
mod tests;
