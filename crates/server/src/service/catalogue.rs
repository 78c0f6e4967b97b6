//! The titles that streams play: the library, the openings that requests wait for, and the made
//! titles that could not be read.

use millrace_core::time::Instant;

use super::keys::ConnKey;
use super::opening::Openings;
use super::ports::{Library, NeededPart, OpenError, TitleEntry};
use super::refusal::Refusal;
use super::shown::SubstituteTitle;
use super::unread::Unread;

/// All titles.
pub(super) struct TitleCatalogue {
    pub(super) library: Box<dyn Library>,
    pub(super) openings: Openings,
    /// Made titles that could not be read.
    pub(super) unread: Unread,
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

    /// The same in the form for connections of bytes: without RTP headers, so that the bytes are contiguous and need not be
    /// copied. If only viewers of RTP have the title in the cache now, they share their copy.
    pub(super) fn find_for_bytes(&mut self, name: &str) -> Option<TitleEntry> {
        let entry = self.library.find(name)?;
        let raw = entry.raw().filter(|raw| self.library.is_cached(raw) || !self.library.is_cached(&entry));
        Some(raw.unwrap_or(entry))
    }

    /// Checks whether enough of the title is there for playing it.
    ///
    /// # Errors
    /// [`Refusal::MembersLost`].
    pub(super) fn check_members(&mut self, entry: &TitleEntry) -> Result<(), Refusal> {
        self.library.lost(entry).map_or(Ok(()), |lost| Err(Refusal::MembersLost(lost)))
    }
}

/// Titles in the cache.
impl TitleCatalogue {
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

    pub(super) fn close_made(&mut self, made: Vec<SubstituteTitle>) {
        made.into_iter().for_each(|made| self.library.close(made.title));
    }
}

/// Openings.
impl TitleCatalogue {
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

#[cfg(test)]
#[path = "catalogue_tests.rs"]
mod tests;
