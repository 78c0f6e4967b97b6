//! Requests that wait for their title to be opened ([`crate::service::Service::take_openings`]). A
//! request is kept as it came and carried out again when all its needs have been answered: open and
//! unopened titles share one path.

use millrace_core::time::Instant;

use super::refusal::refusal_reply;
use super::rights::AccessStage;
use super::server::RtspFace;
use super::state::ReceivedRequest;
use crate::rtsp::RtspRequest;
use crate::service::{ConnKey, Refusal};

impl RtspFace<'_> {
    /// Handles the library's answers: carries out the requests that have waited for them. Returns
    /// the connections of others whose requests can now go on as well.
    pub fn take_openings(&mut self, now: Instant) -> Vec<ConnKey> {
        let mut others = self.service.take_openings(now);
        others.retain(|&conn| {
            if let Some(request) = self.take_waiting(conn) {
                self.carry_out(ReceivedRequest { now, conn, request: &request }, AccessStage::LetIn);
            }
            !self.conns.contains_key(&conn)
        });
        others
    }

    /// Answers requests whose titles have not been opened in time.
    pub(super) fn refuse_overdue(&mut self, now: Instant) {
        for conn in self.service.overdue_openings(now) {
            self.refuse_waiting(now, conn, &Refusal::TimedOut);
        }
    }

    /// Answers the request on this connection that waits, if one does, with a refusal.
    pub(super) fn refuse_waiting(&mut self, now: Instant, conn: ConnKey, refusal: &Refusal) {
        if let Some(request) = self.take_waiting(conn) {
            self.service.end_opening(conn);
            self.answer(ReceivedRequest { now, conn, request: &request }, &refusal_reply(refusal));
        }
    }

    pub(super) fn take_waiting(&mut self, conn: ConnKey) -> Option<Box<RtspRequest>> {
        let conn = self.conns.get_mut(&conn)?;
        (conn.is_checking, conn.question) = (false, None);
        conn.waiting.take()
    }
}
