//! Admission by measured capacity, as the service uses it: what its streams need, and who goes when an engine has promised too much.

use millrace_core::time::Instant;

use super::event::ServiceEvent;
use super::exhausted::Exhausted;
use super::ports::TitleEntry;
use super::refusal::Refusal;
use super::state::Service;
use super::stream::PlaybackStream;
use crate::admission::{Demand, EngineFigures, Full};

/// Returns the demand of a viewer of this title at `rate` bits per second, FEC included.
pub(super) fn demand_of(entry: &TitleEntry, rate: u64) -> Demand {
    let packet_bits = entry.layout.packet_bytes() as u64 * 8;
    Demand { packets_per_s: rate.div_ceil(packet_bits.max(1)), bits_per_s: rate }
}

impl PlaybackStream {
    /// Returns its demand while it plays.
    pub(super) fn demand(&self) -> Demand {
        demand_of(&self.entry, self.rate)
    }
}

impl Service {
    /// Whether this engine is seen to carry one more viewer beside those that it has and `more`.
    pub(super) fn room_as_measured(
        &self,
        engine: usize,
        viewer: Demand,
        more: Demand,
    ) -> Result<(), Refusal> {
        let mut promised = self.slots.reserved(engine);
        promised += more;
        self.admission
            .room(engine, promised, self.reserved_rate(), viewer)
            .map_err(|full| Exhausted::Full(full).into())
    }

    /// A viewer was turned away for this.
    pub(super) fn note_full(&mut self, full: Full) {
        self.admission.refused(full);
        self.tell_admission_news();
    }

    /// Records an engine's work until now: call it about every
    /// [`crate::limits::ADMISSION_LOOK_NS`]. The newest viewers of an engine that no longer serves
    /// all go over to others that have room, are sent less, or end.
    pub fn look_at_load(&mut self, now: Instant, engine: usize, figures: EngineFigures) {
        if !self.admission.is_on() || engine >= self.slots.len() {
            return;
        }
        let promised = self.streams.playing(engine).map(PlaybackStream::demand).sum();
        let excess = self.admission.look(now, engine, figures, promised);
        if excess > 0 {
            let moved = self.move_newest(engine, excess);
            let lowered = self.lower_newest(now, engine, excess.saturating_sub(moved));
            let count = self.streams.newest_with(engine, excess.saturating_sub(moved + lowered));
            let ended = self.end_newest(now, engine, count);
            self.admission.ended(now, engine, ended as u64);
        }
        self.tell_admission_news();
    }

    /// Records the cache's work until now: call it as often.
    pub fn look_at_cache(&mut self, now: Instant) {
        if let Some(figures) = self.titles.library.cache_figures() {
            self.admission.look_at_cache(now, figures);
        }
    }

    fn tell_admission_news(&mut self) {
        while let Some(news) = self.admission.poll_news() {
            self.tell(ServiceEvent::Admission(news));
        }
    }
}
