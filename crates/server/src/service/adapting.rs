//! Renditions that the server chooses: reports on viewers go into [`super::adapt`], and its
//! verdicts are carried out.

use millrace_core::time::{Instant, NS_PER_S};

use super::adapt::{AdaptDecision, Cause, Trouble};
use super::exhausted::Exhausted;
use super::keys::StreamKey;
use super::measured::demand_of;
use super::ports::TitleEntry;
use super::refusal::Refusal;
use super::rendition::Renditions;
use super::request::{StreamPlacement, StreamRequest};
use super::run::DeliveryState;
use super::state::Service;
use super::stream::PlaybackStream;
use crate::limits::adapt::RENDITION_STALE_NS;

impl PlaybackStream {
    /// Whether the server may change its rendition now.
    fn adapts(&self) -> bool {
        let is_settled = self.queued.is_none() && !self.renditions.is_changing();
        self.renditions.is_auto
            && is_settled
            && matches!(self.media, DeliveryState::Running(_))
            && self.scale.is_normal()
            && self.fec.is_none()
            && self.ending.is_none()
            && self.moves_to.is_none()
    }

    /// Records that its connection holds `bytes` bytes that its viewer has not acknowledged, and
    /// that the next packet has been due for `behind_ns`.
    pub(super) fn hear_backlog(&mut self, now: Instant, bytes: u64, behind_ns: u64) {
        let DeliveryState::Running(run) = self.media else { return };
        let rate = self.title_rate();
        if !self.renditions.is_auto || rate == 0 {
            return;
        }
        self.behind = Some((now, behind_ns));
        let held_ns = u128::from(bytes) * 8 * u128::from(NS_PER_S) / u128::from(rate);
        let ahead_ns = u64::from(run.ahead_ms) * 1_000_000;
        let lacks_ns = behind_ns.saturating_add(u64::try_from(held_ns).unwrap_or(u64::MAX));
        if self.adapts() {
            self.renditions.adapter.behind(now, lacks_ns.saturating_sub(ahead_ns));
        }
    }

    /// Its viewer has reported that this share of the packets was lost, in 1/256.
    pub(super) fn hear_report(&mut self, now: Instant, fraction_256: u8) {
        if self.adapts() {
            self.renditions.adapter.report(now, fraction_256);
        }
    }

    /// Returns how far the engine's sending is behind its position, if it is known.
    pub(super) fn known_behind_ns(&self, now: Instant) -> u64 {
        let known = self.behind.filter(|(at, _)| now.ns_since(*at) < RENDITION_STALE_NS);
        known.map_or(0, |(_, behind_ns)| behind_ns)
    }
}

impl Service {
    /// Returns the rendition that a stream begins with, and the engine that takes it. A stream
    /// whose rendition the server chooses begins with the best one that there is room for: `entry`
    /// is the title itself.
    ///
    /// # Errors
    /// The resource that is lacking for the rendition it should begin with.
    pub(super) fn place_first(
        &mut self,
        now: Instant,
        request: &StreamRequest,
        own: Option<StreamKey>,
        entry: &TitleEntry,
        renditions: &mut Renditions,
    ) -> Result<(TitleEntry, StreamPlacement), Refusal> {
        let mut lacking = None;
        loop {
            let first = self.first_sent(entry, renditions)?;
            let refusal = match self.place(now, request, own, &first) {
                Ok(place) => return Ok((first, place)),
                Err(refusal) => refusal,
            };
            // A viewer that has seen one rendition stays with it.
            let helps = own.is_none()
                && refusal.is_of_rate()
                && renditions.begin_lower(|all, one| self.titles.unread.allows(now, all, one));
            let lacking = lacking.get_or_insert(refusal);
            if !helps {
                return Err(lacking.clone());
            }
        }
    }

    /// Makes the changes that are due, and asks the engines how far viewers are behind: the answers
    /// count the next time. Call it about once a second.
    pub(super) fn adapt_all(&mut self, now: Instant) {
        // Reports from before a pause, or at another speed, are no reason for anything after it.
        let others = self.streams.values_mut().filter(|stream| !stream.adapts());
        others.for_each(|stream| stream.renditions.adapter.interrupted());
        let mut adapting: Vec<_> =
            self.streams.values().filter(|stream| stream.adapts()).map(|stream| stream.key).collect();
        adapting.sort_unstable();
        for key in adapting {
            self.adapt(now, key);
            self.measure(key);
        }
    }

    fn adapt(&mut self, now: Instant, key: StreamKey) {
        let basis = self.config.rate_basis;
        let Self { streams, titles, .. } = self;
        let Some(PlaybackStream { renditions, .. }) = streams.get_mut(&key) else { return };
        let Some(verdict) = renditions.adapter.verdict(now) else { return };
        let can = |rendition: &usize| titles.unread.allows(now, renditions, *rendition);
        let (wanted, cause) = match verdict {
            AdaptDecision::Up => (renditions.higher(can), Cause::Recovered),
            AdaptDecision::Down { through_permille, trouble } => {
                (renditions.lower(through_permille, basis, can), Cause::Trouble(trouble))
            }
        };
        let Some(wanted) = wanted else { return };
        match self.go_over(now, key, wanted, cause) {
            Ok(()) => self.note_change(now, key, verdict == AdaptDecision::Up),
            // It is there the next time.
            Err(Refusal::Opening | Refusal::Exhausted(Exhausted::Openings)) => {}
            // The next time it is another one.
            Err(refusal) if refusal.is_of_title() => {}
            Err(_) if verdict == AdaptDecision::Up => {
                if let Some(stream) = self.streams.get_mut(&key) {
                    stream.renditions.adapter.refused(now);
                }
            }
            // Not again the next second.
            Err(_) => self.note_change(now, key, false),
        }
    }

    /// Carries out the server's own wish. A rendition that cannot be opened, which was reported to
    /// the operator, is left alone for a while.
    fn go_over(&mut self, now: Instant, key: StreamKey, wanted: usize, cause: Cause) -> Result<(), Refusal> {
        let wish = self.want_rendition(now, key, wanted, cause, None);
        if wish.as_ref().is_err_and(Refusal::is_of_title) {
            self.leave_alone(now, key, wanted);
        }
        wish
    }

    /// Records a change: reports on earlier media mean nothing for the media sent now.
    pub(super) fn note_change(&mut self, now: Instant, key: StreamKey, is_up: bool) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.renditions.adapter.changed(now, is_up);
        }
    }

    /// Relieves an engine that serves less than it has promised: of the newest streams whose
    /// rendition the server chooses, enough are sent the lowest one that `packets_per_s` packets
    /// per second are gone. Returns how many are gone; those of streams already on their way down
    /// count.
    pub(super) fn lower_newest(&mut self, now: Instant, engine: usize, packets_per_s: u64) -> u64 {
        let newest: Vec<_> = self.streams.newest(engine).into_iter().map(|stream| stream.key).collect();
        let relief = |service: &Self, key: StreamKey| {
            let stream = service.streams.get(&key)?;
            let less = stream.renditions.relief(service.config.rate_basis);
            Some(demand_of(&stream.entry, less).packets_per_s)
        };
        let mut gone: u64 = newest.iter().filter_map(|key| relief(self, *key)).sum();
        for key in newest {
            let Self { streams, titles, .. } = self;
            let Some(stream) = streams.get_mut(&key).filter(|_| gone < packets_per_s) else { continue };
            stream.renditions.adapter.pressure();
            let may_change = stream.adapts() && stream.renditions.adapter.may_change(now);
            let lowest = stream.renditions.lowest(|one| titles.unread.allows(now, &stream.renditions, *one));
            let Some(lowest) = lowest.filter(|_| may_change) else { continue };
            // Streams that cannot change are left to the steps after this.
            if self.go_over(now, key, lowest, Cause::Trouble(Trouble::Overload)).is_ok() {
                self.note_change(now, key, false);
                gone += relief(self, key).unwrap_or(0);
            }
        }
        gone.min(packets_per_s)
    }
}
