//! Bytes: how many leave at once, and those that go out as fast as their connection takes them: the
//! bytes that a run sends ahead of its pace ([`super::ahead`]), such as a segment of HLS or the
//! first seconds of a file.
//!
//! ```text
//!   due, extent at hand ─► in line ─► burst: all of the extent ─► in line again, behind the others
//!                             ▲                │ full            │ extent is not there
//!                             └── has room ◄───┴── it comes ◄────┘
//! ```
//!
//! Such a burst has no time of its own, so it needs no timer. It leaves when everything that is due has left, those who stand in line one after the other,
//! and no more of them at one moment than [`RUSHES_PER_TURN`]: that is how long packets of others wait at most. The extents come by two, so
//! that a connection which is written to gets half a megabyte, and one round to the cache serves for both.
//!
//! At its pace such a run still sends an extent at a time too, or about [`BYTES_BURST_NS`] of one that lasts longer ([`count_bytes`]).

use millrace_core::packet::PacketMeta;
use millrace_core::pool::Lease;
use millrace_core::time::{Instant, MediaTicks};

use super::{Engine, time_of};
use crate::limits::{BYTES_BURST_NS, RUSHES_PER_TURN};
use crate::queue::IndexQueue;
use crate::stream::{ExtentProgress, HotStream, StreamState, flag};

/// Who stands in line.
pub(super) struct Rush {
    line: IndexQueue,
    /// The moment of the last look, and how many have left at it.
    at: Instant,
    left: usize,
}

impl Rush {
    pub(super) fn new(streams: usize) -> Self {
        Self { line: IndexQueue::new(streams), at: Instant(0), left: 0 }
    }

    /// When those in line go on; `None` if there are none. `looked_at`: the last look.
    pub(super) fn poll_at(&self, looked_at: Instant) -> Option<Instant> {
        // At any other moment.
        self.line.front().map(|_| looked_at.plus_ns(1))
    }
}

impl Engine {
    /// Puts a stream that [rushes](crate::stream::HotStream::rushes) in line, without a timer, if its next
    /// burst may leave; else `false`.
    pub(super) fn line_up(&mut self, index: u32, now: Instant) -> bool {
        let stream = self.stream(index);
        if stream.state != StreamState::Playing || stream.due > now {
            return false;
        }
        self.wheel.cancel(index);
        self.rush.line.push_back(index);
        true
    }

    /// Fills the batch from the line.
    pub(super) fn rush(&mut self, now: Instant) {
        if self.rush.at != now {
            (self.rush.at, self.rush.left) = (now, 0);
        }
        while self.batch.room() > 0 && self.rush.left < RUSHES_PER_TURN {
            let Some(index) = self.rush.line.front() else { break };
            self.rush.line.pop_front();
            let stream = self.stream(index);
            if stream.state == StreamState::Playing && stream.rushes() && stream.due <= now {
                self.burst(index, now);
                self.rush.left += 1;
            } else {
                // Much may have happened to it since: whatever comes next has its time.
                self.arm(index, now);
            }
        }
    }

    /// The run has just entered an extent: that and the one behind it are asked for, if they have not been. `span`: of the extent before.
    pub(super) fn want_both(&mut self, index: u32, span: MediaTicks) {
        let (owed, mut time) = (self.owed(index), self.cold[index as usize].time_behind);
        let here = self.stream(index).extent;
        for extent in [here, here + 1] {
            let stream = self.stream(index);
            if stream.reaches(extent) && stream.slots[(extent % 2) as usize] == ExtentProgress::Idle {
                self.want(index, extent, owed.departure(time));
            }
            time.0 += span.0;
        }
    }
}

/// How many of `most` packets from `place` on leave together, as bytes of a run that may be ahead of its pace: those that may be there already, if the run sends ahead, else those of the next
/// [`BYTES_BURST_NS`]. Nothing is lost by being early, and long writes cost least; so what would be left as the smaller half goes with them.
pub(super) fn count_bytes(stream: &HotStream, lease: &Lease, (place, most): (u32, u32), now: Instant) -> u32 {
    let until = match stream.has(flag::AHEAD) {
        true => now,
        false => stream.pace.departure(time_of(lease, place)).plus_ns(BYTES_BURST_NS),
    };
    let end = stream.pace.media_at(until);
    let is_before = |bytes: &[u8; 8]| PacketMeta::from_bytes(*bytes).time() < end;
    let count = lease.metas(place, most).partition_point(is_before) as u32;
    if 2 * count >= most { most } else { count.max(1) }
}
