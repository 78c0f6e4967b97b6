//! Re-requests extents whose lease was released while a receiver was stalled
//! (`docs/design/0036-media-by-our-tcp.md`). Uses cache stream ids above those of the engine's
//! streams: to the cache, each such extent is a stream of its own.

use millrace_core::ids::{RunSerial, StreamId};
use millrace_core::limits::AGAIN_PLACES;
use millrace_core::seam::Want;
use millrace_core::time::Instant;
use millrace_store::cache::{CacheHandle, Grant};
use millrace_tcp::stack::WantedExtent;

use crate::loop_tx::LoopEngine;

/// Extents that were requested again and have not been answered.
#[derive(Default)]
pub(crate) struct ExtentRefetch {
    places: [Option<WantedExtent>; AGAIN_PLACES],
    /// How often each slot was used: a late answer matches none.
    generations: [u32; AGAIN_PLACES],
    /// A request that found no room in the ring.
    held: Option<WantedExtent>,
    /// A stream that the cache must forget, if there was no room for the message.
    leaving: Option<StreamId>,
}

impl ExtentRefetch {
    /// Requests the extents needed, while slots are free. `streams`: the number of streams of the
    /// engine. Returns the number of requests made.
    pub(crate) fn post(
        &mut self,
        now: Instant,
        streams: usize,
        tx: &mut impl LoopEngine,
        handle: &mut CacheHandle,
    ) -> usize {
        let mut posted = 0;
        if !self.leave(now, None, handle) {
            return posted;
        }
        while let Some(place) = self.places.iter().position(Option::is_none) {
            let Some(wanted) = self.held.take().or_else(|| tx.poll_wanted()) else { break };
            let stream = self.name(place, streams);
            let WantedExtent { content, .. } = wanted;
            let want = Want {
                stream,
                run: RunSerial(0),
                title: content.title,
                extent: content.number,
                // All that it had, of one that grows too.
                place: content.packets.saturating_sub(1) as u16,
                by: now,
                spare: 0,
            };
            if !handle.want(&want) {
                self.held = Some(wanted);
                break;
            }
            self.places[place] = Some(wanted);
            posted += 1;
        }
        posted
    }

    fn name(&self, place: usize, streams: usize) -> StreamId {
        StreamId { index: (streams + place) as u32, generation: self.generations[place] }
    }

    /// Hands an answer to the egress path if it is one of these; gives it back otherwise.
    pub(crate) fn answer(
        &mut self,
        now: Instant,
        streams: usize,
        grant: Grant,
        tx: &mut impl LoopEngine,
        handle: &mut CacheHandle,
    ) -> Option<Grant> {
        let Some(place) = (grant.stream.index as usize).checked_sub(streams) else { return Some(grant) };
        if place < AGAIN_PLACES
            && grant.stream == self.name(place, streams)
            && let Some(wanted) = self.places[place].take()
        {
            self.generations[place] = self.generations[place].wrapping_add(1);
            tx.supply(now, &wanted, grant.lease.ok());
            self.leave(now, Some(grant.stream), handle);
        }
        None
    }

    /// Reports a stream that the cache need not remember; returns whether all such reports are
    /// delivered.
    fn leave(&mut self, now: Instant, stream: Option<StreamId>, handle: &mut CacheHandle) -> bool {
        // A stream whose report is not delivered is forgotten when its slot is used again: it has
        // another generation then.
        self.leaving = stream.or(self.leaving).filter(|&stream| !handle.leave(now, stream));
        self.leaving.is_none()
    }
}
