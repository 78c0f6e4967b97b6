//! Requests that wait for parts of titles to be opened; [`super::opening`] has the rules.

use std::os::fd::BorrowedFd;

use millrace_core::time::Instant;

use super::keys::ConnKey;
use super::ports::NeededPart;
use super::refusal::Refusal;
use super::state::Service;

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
        self.titles.openings.is_waiting(conn)
    }

    /// Ends the wait of the request on this connection: it has been answered, or never will be. An
    /// opening that is under way for it still completes.
    pub fn end_opening(&mut self, conn: ConnKey) {
        self.titles.openings.forget(conn);
    }

    /// Takes the library's answers; returns the connections whose requests can be retried, in the
    /// order of the answers.
    pub fn take_openings(&mut self, now: Instant) -> Vec<ConnKey> {
        let mut complete = Vec::new();
        self.titles.library.rearm();
        while let Some(answer) = self.titles.take_answer(&mut complete) {
            if let Some((title, error)) = answer.unreported {
                self.note_unopened(now, title, &error);
            }
        }
        complete
    }

    /// Connections whose requests have waited too long, the oldest connection first: they wait no more.
    pub fn overdue_openings(&mut self, now: Instant) -> Vec<ConnKey> {
        self.titles.openings.take_overdue(now)
    }

    /// Readable when [`Service::take_openings`] should be called; `None` if that is never.
    pub fn openings_fd(&self) -> Option<BorrowedFd<'_>> {
        self.titles.library.event_fd()
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
        let missing = self.titles.missing(conn, needs);
        if missing.is_empty() {
            return Ok(());
        }
        if self.shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        Err(self.titles.begin_opening(now, conn, missing))
    }
}
