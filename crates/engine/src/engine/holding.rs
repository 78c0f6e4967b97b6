//! Streams whose device reads lent data after it has taken it: sends without copying, a TCP of our
//! own.
//!
//! ```text
//!   burst ──► taken ──► end of the extent ──► held ──► the device is done with it ──► given back
//!     ▲                                        │ no place for one more
//!     └────────── a place is free ◄────────────┴──► the stream waits, without a timer
//! ```
//!
//! A place is taken before the first packet of an extent leaves, so there is one when its last has.
//! Held extents outlive the run, and a stream that is closed: the close is reported when the device
//! is done, or its connection gone.

use millrace_core::ids::StreamId;
use millrace_core::limits::MAX_TCP_BEHIND_NS;
use millrace_core::time::Instant;

use super::{Engine, time_of};
use crate::stream::{NEVER, StreamState, flag, pending};
use crate::types::FailReason;

impl Engine {
    /// Arrival: the device no longer reads the first `packets` packets that it has taken of this
    /// stream, counted over all its runs ([`crate::StreamSpec::lends`]). A report that comes late,
    /// twice or for a stream that is gone changes nothing.
    pub fn handle_done(&mut self, now: Instant, id: StreamId, packets: u64) {
        let Ok(index) = self.find(id) else { return };
        self.held.done(index, packets.min(self.stream(index).packets));
        self.given_back(now, index);
    }

    /// Handles the loss of a stream's connection: the data sent there is not read any more.
    pub(super) fn give_all_back(&mut self, now: Instant, index: u32) {
        if self.stream(index).has(flag::LENDS) {
            self.held.done(index, u64::MAX);
            self.given_back(now, index);
        }
    }

    /// Handles extents that may have been given back: a stream that waited for this goes on, and a
    /// stream that is closed may be forgotten.
    fn given_back(&mut self, now: Instant, index: u32) {
        if self.held.take_waiting(index) {
            self.go_on_lending(index, now);
        }
        for _ in 0..self.held.free_places() {
            let Some(other) = self.held.poll_waiting() else { break };
            self.go_on_lending(other, now);
        }
        if self.stream(index).state == StreamState::Closing {
            self.forget(index);
        }
    }

    fn go_on_lending(&mut self, index: u32, now: Instant) {
        self.schedule(index, now);
        let stream = self.stream_mut(index);
        if stream.due != NEVER {
            // The hole is not ours.
            stream.due = stream.due.max(now);
        }
        self.arm(index, now);
    }

    /// Handles a lack of a place for the extent that would be sent now. A viewer that does not even
    /// acknowledge is detected like one that does not read. Nothing of the stream is in the batch.
    #[cold]
    pub(super) fn wait_for_device(&mut self, index: u32, now: Instant) {
        let stream = self.stream(index);
        let mut due = NEVER;
        if self.batch.rows[index as usize].dest.conn().is_some()
            && let Some(lease) = self.batch.lease(index, stream.extent)
        {
            due = self.owed(index).departure(time_of(lease, stream.place())).plus_ns(MAX_TCP_BEHIND_NS);
            if now >= due {
                return self.give_up(index, FailReason::SlowReader);
            }
        }
        self.counters.waits_for_device += 1;
        let stream = self.stream_mut(index);
        (stream.due, stream.may_lead) = (due, false);
        self.arm(index, now);
    }

    /// A stream that is closed is forgotten, unless the device still reads something of it.
    pub(super) fn forget(&mut self, index: u32) {
        if self.held.is_empty(index) {
            self.conns.remove(index);
            self.tell(index, pending::CLOSED);
        }
    }
}
