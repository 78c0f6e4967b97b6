//! Runs that the engine switches to without a break (`docs/design/0012-runs.md`): with other FEC,
//! or in another rendition. Only one can be queued: the engine takes a cut for it in the run that
//! it is sending, and only while nothing is queued does the service know for certain which run that
//! is. Requests made meanwhile follow when the queued run has taken over.

use millrace_core::ids::RunSerial;
use millrace_core::time::Instant;
use millrace_offload::command::{FailReason, RunEnd};

use super::keys::StreamKey;
use super::run::{ActiveRun, DeliveryState, Queued, QueuedChange};
use super::state::Service;

/// Why a queued run will not be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Missed {
    /// The packet before which it was to begin had been sent.
    Passed,
    /// The engine refused it for another reason.
    Refused,
    /// It cannot be read.
    Failed(FailReason),
}

impl Service {
    /// The run that lasted has ended; `false` if none was queued behind it.
    pub(super) fn taken_over(&mut self, now: Instant, key: StreamKey, end: &RunEnd) -> bool {
        let Some(stream) = self.streams.get_mut(&key) else { return false };
        let Some(Queued { run: serial, from, time, stop, next }) = stream.queued.take() else { return false };
        let follow = |run: ActiveRun| ActiveRun {
            serial,
            from,
            sequence: end.next_sequence,
            from_time: Some(time),
            at: end.next_due,
            stop,
            due: if run.ahead_ms > 0 { run.due_at(time) } else { Instant(0) },
            ..run
        };
        stream.media = match stream.media {
            DeliveryState::Running(run) => DeliveryState::Running(follow(run)),
            DeliveryState::Pausing(run) => DeliveryState::Pausing(follow(run)),
            other => other,
        };
        match next {
            QueuedChange::Fec => self.fec_switched(key, from..stop.packet),
            QueuedChange::Rendition(rendition, cause) => {
                self.rendition_taken_over(now, key, rendition, time, cause);
            }
        }
        true
    }

    /// The queued run will not be. `false`: there is none of this name.
    pub(super) fn queued_missed(
        &mut self,
        now: Instant,
        key: StreamKey,
        serial: RunSerial,
        missed: Missed,
    ) -> bool {
        let Some(stream) = self.streams.get_mut(&key) else { return false };
        let Some(queued) = stream.queued.take_if(|queued| queued.run == serial) else { return false };
        match queued.next {
            QueuedChange::Fec => self.fec_missed(key),
            QueuedChange::Rendition(rendition, _) => {
                self.rendition_missed(now, key, rendition, queued.time, missed)
            }
        }
        true
    }
}
