//! Backpressure: streams whose transport is full, and the extents they hold while they wait.
//!
//! ```text
//!   blocked ──── its connection can be written again ───► sends on
//!      │ nothing taken for 200 ms                            ▲
//!      ▼                                                     │ the extent is lent again
//!   parked: no lease ── can be written again ──► resumed: asks for its extent
//!      │ 10 s behind; of bytes, nothing taken for two minutes
//!      ▼
//!   failed: reads too slowly
//! ```
//!
//! A player that is 10 s behind shows nothing any more. Who fetches bytes may be as slow as it likes, and a browser that has enough stops reading
//! until it needs more.
//!
//! A stream without a connection (a full UDP socket, a ring) gets no report when there is room, and
//! is tried again soon.

use millrace_core::ids::ConnId;
use millrace_core::limits::web::MAX_BYTES_STALL_NS;
use millrace_core::limits::{MAX_TCP_BEHIND_NS, RETRY_NS};
use millrace_core::time::Instant;

use super::ahead::owed;
use super::{Engine, time_of};
use crate::limits::{START_READ_NS, TCP_PARK_NS};
use crate::stream::{NEVER, StreamState, flag, pending};
use crate::types::FailReason;

impl Engine {
    /// Arrival: a connection that had no room for a burst or a BYE can be written again. Its
    /// streams go on where they are; those that gave their extents back after a long wait ask for
    /// them again.
    pub fn conn_writable(&mut self, now: Instant, conn: ConnId) {
        self.abandon_batch(now);
        let mut next = self.conns.first(conn);
        while let Some(index) = next {
            self.go_on_writing(index, now);
            next = self.conns.behind(index);
        }
    }

    fn go_on_writing(&mut self, index: u32, now: Instant) {
        let stream = self.stream_mut(index);
        if !stream.has(flag::BLOCKED) {
            return;
        }
        if stream.state == StreamState::Draining {
            stream.flags &= !flag::BLOCKED;
            stream.report_due = now;
        } else if stream.has(flag::PARKED) {
            stream.flags &= !(flag::BLOCKED | flag::PARKED);
            stream.flags |= flag::RESUMED;
            stream.events &= !pending::LEFT;
            stream.due = NEVER;
            let extent = stream.extent;
            // As a run that begins: it has waited long enough, but not through the fault of those who are in time.
            self.want(index, extent, now.plus_ns(START_READ_NS));
        } else {
            stream.due = now;
        }
        self.arm(index, now);
    }

    /// The way is full; of the burst, something was taken before or nothing.
    pub(super) fn blocked(&mut self, now: Instant, index: u32, has_taken: bool) {
        let (stream, cold) = (&mut self.streams[index as usize], &mut self.cold[index as usize]);
        if stream.state != StreamState::Playing {
            return;
        }
        let Some(lease) = self.batch.lease(index, stream.extent) else { return };
        if self.batch.rows[index as usize].dest.conn().is_none() {
            stream.due = stream.due.max(now.plus_ns(RETRY_NS));
            stream.may_lead = false;
            self.exact_until = self.exact_until.max(stream.due);
            return;
        }
        if has_taken || !stream.has(flag::BLOCKED) {
            stream.flags |= flag::BLOCKED;
            cold.blocked_since = now;
        }
        let gives_up = if stream.has(flag::BYTES) {
            cold.blocked_since.plus_ns(MAX_BYTES_STALL_NS)
        } else {
            owed(stream, cold).departure(time_of(lease, stream.place())).plus_ns(MAX_TCP_BEHIND_NS)
        };
        if now >= gives_up {
            return self.fail(index, now, FailReason::SlowReader);
        }
        // Then it is tried once more, whatever was heard of the connection until then.
        let parks = cold.blocked_since.plus_ns(TCP_PARK_NS);
        if now < parks {
            stream.due = parks.min(gives_up);
            stream.may_lead = false;
        } else {
            self.park(index, gives_up);
        }
    }

    /// The stream waits without its extents from here on, at most until `gives_up`.
    fn park(&mut self, index: u32, gives_up: Instant) {
        self.note_time_behind(index);
        self.release(index, 0);
        self.release(index, 1);
        self.cold_mut(index).queued_slot = None;
        self.counters.parked += 1;
        let stream = self.stream_mut(index);
        stream.flags |= flag::PARKED;
        stream.due = gives_up;
        stream.may_lead = false;
        if stream.has(flag::PLAYHEAD) {
            self.tell(index, pending::LEFT);
        }
    }

    /// The way is full for a BYE.
    pub(super) fn bye_blocked(&mut self, now: Instant, index: u32) {
        let gives_up = self.cold[index as usize].bye_due.plus_ns(MAX_TCP_BEHIND_NS);
        if now >= gives_up {
            return self.fail(index, now, FailReason::SlowReader);
        }
        let waits = self.batch.rows[index as usize].dest.conn().is_some();
        let stream = self.stream_mut(index);
        stream.report_due = if waits { gives_up } else { now.plus_ns(RETRY_NS).min(gives_up) };
        if waits {
            stream.flags |= flag::BLOCKED;
        }
    }
}
