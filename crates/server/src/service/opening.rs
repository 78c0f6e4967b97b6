//! Opens everything that a request needs before it can be granted: the service asks the library,
//! and the request waits for the answer.
//!
//! A request that needs something which is not open is refused with [`Refusal::Opening`], before it has taken anything; whoever made it
//! keeps it and makes it again, unchanged, when [`super::Service::take_openings`] names its connection. It may find then that more is needed, and
//! wait again: [`OPENING_NS`] after it was first made [`super::Service::overdue_openings`] names it, and that is the end of it. Requests that need
//! the same share one opening. The number of openings is bounded, and so is that of waiting requests: a connection has one at most.
//!
//! | a request's need | what becomes of it |
//! | --- | --- |
//! | is met, or failed since the request was first made | the request goes on |
//! | is under way | the request waits for it |
//! | is not, and there is room | it is begun, and the request waits for it |
//! | is not, and there is none | the request is refused, nothing is begun |

use std::collections::HashMap;

use millrace_core::time::Instant;

use super::exhausted::Exhausted;
use super::keys::ConnKey;
use super::ports::{Library, NeededPart, OpenError};
use super::refusal::Refusal;
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
    pub(super) fn has_failed(&self, conn: ConnKey, need: &NeededPart) -> bool {
        self.waiting.get(&conn).is_some_and(|waiting| waiting.failed.contains(need))
    }

    /// An answer has come. Adds the connections whose requests have all their answers now; `false` if no request has waited for it.
    pub(super) fn answered(
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

    pub(super) fn forget(&mut self, conn: ConnKey) {
        if self.waiting.remove(&conn).is_some_and(|waiting| waiting.missing > 0) {
            self.under_way.values_mut().for_each(|conns| conns.retain(|other| *other != conn));
        }
    }

    /// Whether the request on this connection waits for something to be opened.
    pub(super) fn is_waiting(&self, conn: ConnKey) -> bool {
        self.waiting.get(&conn).is_some_and(|waiting| waiting.missing > 0)
    }

    /// Connections whose requests have waited too long, the oldest connection first: they wait no more.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<ConnKey> {
        let is_late =
            |waiting: &PendingOpening| waiting.missing > 0 && now.ns_since(waiting.since) >= OPENING_NS;
        let waiting = self.waiting.iter();
        let mut late: Vec<_> =
            waiting.filter(|(_, waiting)| is_late(waiting)).map(|(conn, _)| *conn).collect();
        late.sort_unstable();
        late.iter().for_each(|conn| self.forget(*conn));
        late
    }

    /// Begins the openings that are not under way, and has the request on `conn` wait for all of
    /// them; returns the refusal that the request gets meanwhile, or because there is no room.
    pub(super) fn begin(
        &mut self,
        library: &mut dyn Library,
        now: Instant,
        conn: Option<ConnKey>,
        missing: Vec<NeededPart>,
    ) -> Refusal {
        let is_new = |need: &&NeededPart| !self.under_way.contains_key(*need);
        if self.under_way.len() + missing.iter().filter(is_new).count() > MAX_OPENINGS {
            return Refusal::Exhausted(Exhausted::Openings);
        }
        if let Some(conn) = conn {
            let waiting = PendingOpening { since: now, missing: 0, failed: Vec::new() };
            self.waiting.entry(conn).or_insert(waiting).missing += missing.len();
        }
        for need in missing {
            if !self.under_way.contains_key(&need) {
                library.begin(&need);
            }
            self.under_way.entry(need).or_default().extend(conn);
        }
        Refusal::Opening
    }
}
