//! Opens everything that a request needs before it can be granted: the service asks the library,
//! and the request waits for the answer.
//!
//! A request that needs something which is not open is refused with [`Refusal::Opening`], before it has taken anything; whoever made it
//! keeps it and makes it again, unchanged, when [`Service::take_openings`] names its connection. It may find then that more is needed, and
//! wait again: [`OPENING_NS`] after it was first made [`Service::overdue_openings`] names it, and that is the end of it. Requests that need
//! the same share one opening. The number of openings is bounded, and so is that of waiting requests: a connection has one at most.
//!
//! | a request's need | what becomes of it |
//! | --- | --- |
//! | is met, or failed since the request was first made | the request goes on |
//! | is under way | the request waits for it |
//! | is not, and there is room | it is begun, and the request waits for it |
//! | is not, and there is none | the request is refused, nothing is begun |

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use millrace_core::time::Instant;

use super::keys::ConnKey;
use super::ports::{NeededPart, OpenError};
use super::refusal::Refusal;
use super::state::Service;
use crate::limits::{MAX_OPENINGS, OPENING_NS};

/// The openings under way, and the requests that wait for them.
#[derive(Default)]
pub(super) struct Openings {
    /// Maps each opening to the connections whose requests wait for it, in their order. An opening
    /// that no request waits for any more stays here until it has been answered, because it keeps a
    /// thread busy.
    under_way: HashMap<NeededPart, Vec<ConnKey>>,
    waiting: HashMap<ConnKey, PendingOpening>,
}

/// A request that waits, or is being made again.
struct PendingOpening {
    /// When it was first made.
    since: Instant,
    /// Answers that are still to come.
    missing: usize,
    /// What could not be opened meanwhile: it is not tried again for this request.
    failed: Vec<NeededPart>,
}

impl Openings {
    fn has_failed(&self, conn: ConnKey, need: &NeededPart) -> bool {
        self.waiting.get(&conn).is_some_and(|waiting| waiting.failed.contains(need))
    }

    /// An answer has come. Adds the connections whose requests have all their answers now; `false` if no request has waited for it.
    fn answered(
        &mut self,
        need: &NeededPart,
        result: &Result<(), OpenError>,
        complete: &mut Vec<ConnKey>,
    ) -> bool {
        let conns = self.under_way.remove(need).unwrap_or_default();
        let is_awaited = !conns.is_empty();
        for conn in conns {
            let Some(waiting) = self.waiting.get_mut(&conn) else { continue };
            waiting.missing -= 1;
            if result.is_err() {
                waiting.failed.push(need.clone());
            }
            if waiting.missing == 0 {
                complete.push(conn);
            }
        }
        is_awaited
    }

    fn forget(&mut self, conn: ConnKey) {
        if self.waiting.remove(&conn).is_some_and(|waiting| waiting.missing > 0) {
            self.under_way.values_mut().for_each(|conns| conns.retain(|other| *other != conn));
        }
    }
}

impl Service {
    /// Sees to it that the title of this name can be looked up ([`Service::find`]) with all that is known of it.
    ///
    /// # Errors
    /// [`Refusal::Opening`], or why it cannot be opened now.
    pub fn prepare(&mut self, now: Instant, conn: ConnKey, name: &str) -> Result<(), Refusal> {
        self.need(now, Some(conn), [NeededPart::title(name)])
    }

    /// Whether the request on this connection waits for something to be opened.
    pub fn is_opening(&self, conn: ConnKey) -> bool {
        self.openings.waiting.get(&conn).is_some_and(|waiting| waiting.missing > 0)
    }

    /// Ends the wait of the request on this connection: it has been answered, or never will be. An
    /// opening that is under way for it still completes.
    pub fn end_opening(&mut self, conn: ConnKey) {
        self.openings.forget(conn);
    }

    /// Takes the library's answers; returns the connections whose requests can be retried, in the
    /// order of the answers.
    pub fn take_openings(&mut self, now: Instant) -> Vec<ConnKey> {
        let mut complete = Vec::new();
        self.library.rearm();
        while let Some((need, result)) = self.library.poll_answer() {
            let is_awaited = self.openings.answered(&need, &result, &mut complete);
            if let Err(error) = result.as_ref()
                && !is_awaited
            {
                self.note_unopened(now, need.title, error);
            }
        }
        complete
    }

    /// Connections whose requests have waited too long, the oldest connection first: they wait no more.
    pub fn overdue_openings(&mut self, now: Instant) -> Vec<ConnKey> {
        let is_late =
            |waiting: &PendingOpening| waiting.missing > 0 && now.ns_since(waiting.since) >= OPENING_NS;
        let waiting = self.openings.waiting.iter();
        let mut late: Vec<_> =
            waiting.filter(|(_, waiting)| is_late(waiting)).map(|(conn, _)| *conn).collect();
        late.sort_unstable();
        late.iter().for_each(|conn| self.openings.forget(*conn));
        late
    }

    /// Readable when [`Service::take_openings`] should be called; `None` if that is never.
    pub fn openings_fd(&self) -> Option<BorrowedFd<'_>> {
        self.library.event_fd()
    }

    /// Opens everything that a request on `conn` needs, all at once. A request without a connection
    /// cannot wait: it is refused, and finds everything it needs the next time.
    ///
    /// # Errors
    /// [`Refusal::Opening`], or why it is not opened.
    pub(super) fn need(
        &mut self,
        now: Instant,
        conn: Option<ConnKey>,
        needs: impl IntoIterator<Item = NeededPart>,
    ) -> Result<(), Refusal> {
        let Self { library, openings, shutting_down, .. } = self;
        let failed = |need: &NeededPart| conn.is_some_and(|conn| openings.has_failed(conn, need));
        let mut missing: Vec<_> = needs.into_iter().filter(|need| !failed(need)).collect();
        missing.retain(|need| !library.has(need));
        if missing.is_empty() {
            return Ok(());
        }
        if *shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        let is_new = |need: &&NeededPart| !openings.under_way.contains_key(*need);
        if openings.under_way.len() + missing.iter().filter(is_new).count() > MAX_OPENINGS {
            return Err(Refusal::TooManyOpenings);
        }
        if let Some(conn) = conn {
            let waiting = PendingOpening { since: now, missing: 0, failed: Vec::new() };
            openings.waiting.entry(conn).or_insert(waiting).missing += missing.len();
        }
        for need in missing {
            if !openings.under_way.contains_key(&need) {
                library.begin(&need);
            }
            openings.under_way.entry(need).or_default().extend(conn);
        }
        Err(Refusal::Opening)
    }
}
