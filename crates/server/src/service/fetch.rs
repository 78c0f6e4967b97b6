//! Viewers that fetch a title segment by segment, whether engines send the segments or the web side
//! makes them. This is the one place that distinguishes such viewers: code that counts or shows
//! them asks here. Each holds room as a stream does, for as long as it goes on fetching; the
//! engines' streams that send its segments hold none.
//!
//! ```text
//!   segment ─► whose is it?
//!              │ the segment behind the last one of a viewer, one that came by its connection, or the next
//!              │ by any after its last was cut off; a sound beside the pictures of one ─► it plays so much longer
//!              └ nobody's ─► is there room? ─► a new viewer
//!                                                 └─► what it has got is played, and no more was fetched ─► its room is free
//! ```
//!
//! Only addresses, programs, users with limits and places in a title distinguish viewers. Two
//! behind one address that watch the same title with the same program are two as long as they are
//! at different places in it; limits of users and titles take them for one (`quota`).

use millrace_core::time::Instant;
use millrace_rights::base;

use super::counted::{CountedViewer, Player};
use super::event::ServiceEvent;
use super::exhausted::Exhausted;
use super::fetchers::{Fetch, Fetcher, Fetching, NextSegment};
use super::refusal::Refusal;
use super::request::Sender;
use super::state::Service;
use super::stream::{EndReason, Totals};
use crate::admission::Demand;

impl Service {
    /// Decides whether a viewer may have a segment that no engine sends. If it may, its bit rate is
    /// reserved until it has played the fetched media, and at least until it has the segment.
    ///
    /// # Errors
    /// The resource that is used up. A viewer with a place keeps it, at the rate that it had.
    pub fn fetch(&mut self, now: Instant, fetch: &Fetch<'_>) -> Result<Fetching, Refusal> {
        let &Fetch { viewer, label, title, is_sound, .. } = fetch;
        let counted = self.count_fetch(now, fetch, Sender::Web);
        let fetcher = counted.map_err(|refusal| self.told(viewer, title, refusal))?;
        self.fetchers.begin_segment(fetcher);
        let (label, title) = (label.to_owned(), title.to_owned());
        Ok(Fetching { fetcher, is_sound, label, title, viewer, since: now })
    }

    /// Records that the viewer has taken `bytes` bytes of it: all that it wanted, or the segment
    /// was cut off.
    pub fn end_fetch(&mut self, now: Instant, fetching: Fetching, bytes: u64, is_whole: bool) {
        let Fetching { fetcher, is_sound, label, title, viewer: peer, since } = fetching;
        self.fetchers.end_segment(now, fetcher, is_sound, is_whole);
        if bytes > 0 {
            self.tell(ServiceEvent::Sent { title: title.clone(), packets: 0, bytes, missing: 0 });
        }
        let reason = if is_whole { EndReason::Sent } else { EndReason::Disconnected };
        let totals = Some(Totals { bytes, ..Totals::default() });
        self.tell(ServiceEvent::Delivered {
            label,
            title,
            peer,
            reason,
            lasted_ns: now.ns_since(since),
            totals,
        });
    }

    /// The same, whoever sends it; returns the viewer.
    pub(super) fn count_fetch(
        &mut self,
        now: Instant,
        fetch: &Fetch<'_>,
        sender: Sender,
    ) -> Result<u64, Refusal> {
        if self.shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        self.end_fetchers(now);
        let &Fetch { viewer, title, quota, segment, .. } = fetch;
        let rate = self.counted_rate(fetch.mean_rate, fetch.peak_rate);
        let engine = match sender {
            Sender::Engine(engine, load) => {
                Some((engine.ok_or(Refusal::Exhausted(Exhausted::EngineStreams))?, load))
            }
            Sender::Web => None,
        };
        if let Some(number) = self.fetchers.of_session(fetch) {
            self.go_on_in_session(now, number, fetch, engine);
            return Ok(number);
        }
        let player = Player::new(viewer.ip(), fetch.agent);
        let who = CountedViewer { title, quota, rate, player: Some(player) };
        self.room_for_segment(who)?;
        let next = NextSegment::of(fetch, player);
        let number = self.fetchers.find(next, segment.conn);
        if let Some(number) = number.filter(|number| self.fetchers.is_beside_pictures(*number, next)) {
            self.fetchers.change(number, |fetcher| fetcher.take(now, fetch));
            return Ok(number);
        }
        let before = number.and_then(|number| Some((number, self.fetchers.remove(number)?)));
        let holds = before.as_ref().map(|(_, before)| before.rate);
        if holds != Some(rate) {
            // Its present reservation is not counted against it.
            if let Some((_, before)) = &before {
                self.give_back_fetched(before);
            }
            if holds.is_none_or(|held| held < rate)
                && let Err(refusal) = self.room_for_fetcher(viewer.ip(), who, sender)
            {
                if let Some((number, before)) = before {
                    self.take_fetched(&before);
                    self.fetchers.insert(number, before);
                }
                return Err(refusal);
            }
        }
        let (number, mut fetcher) =
            before.unwrap_or_else(|| self.begin_fetcher(now, fetch, player, next.who));
        fetcher.take(now, fetch);
        if fetcher.title != title {
            title.clone_into(&mut fetcher.title);
        }
        let sent_by = fetcher.engine();
        fetcher.go_on(engine, rate, segment.at);
        if holds != Some(rate) {
            self.take_fetched(&fetcher);
        } else if sent_by != engine {
            self.give_back_rate(sent_by, rate);
            self.take_rate(engine, rate);
        }
        self.fetchers.insert(number, fetcher);
        Ok(number)
    }

    /// One more.
    pub(super) fn begin_fetcher(
        &mut self,
        now: Instant,
        fetch: &Fetch<'_>,
        player: Player,
        who: u64,
    ) -> (u64, Fetcher) {
        self.tell(ServiceEvent::FetchBegan {
            session: fetch.label.to_owned(),
            title: base(fetch.title).to_owned(),
            peer: fetch.viewer,
            agent: fetch.agent.map(str::to_owned),
        });
        (self.new_key(), Fetcher::new(now, fetch, player, who))
    }

    /// Reserves the resources that a viewer holds.
    pub(super) fn take_fetched(&mut self, fetcher: &Fetcher) {
        self.take_rate(fetcher.engine(), fetcher.rate);
        self.usage.add_viewer(fetcher.viewer.ip(), fetcher.counted());
    }

    /// Gives it back.
    pub(super) fn give_back_fetched(&mut self, fetcher: &Fetcher) {
        self.give_back_rate(fetcher.engine(), fetcher.rate);
        self.usage.remove_viewer(fetcher.viewer.ip(), fetcher.counted());
    }

    fn take_rate(&mut self, engine: Option<(usize, Demand)>, rate: u64) {
        match engine {
            Some((engine, load)) => self.slots.reserve(engine, load),
            None => self.fetchers.add_beside(rate),
        }
    }

    fn give_back_rate(&mut self, engine: Option<(usize, Demand)>, rate: u64) {
        match engine {
            Some((engine, load)) => self.slots.release(engine, load),
            None => self.fetchers.remove_beside(rate),
        }
    }

    /// Forgets viewers that have played their media and fetch no more.
    pub(super) fn end_fetchers(&mut self, now: Instant) {
        while let Some((end, number)) = self.fetchers.next_overdue(now) {
            self.end_fetcher(end, number, EndReason::NoMoreFetched);
        }
    }

    /// Forgets all, as the server ends.
    pub(super) fn end_all_fetchers(&mut self, now: Instant) {
        while let Some(number) = self.fetchers.first_to_end() {
            self.end_fetcher(now, number, EndReason::Shutdown);
        }
    }

    /// Forgets one.
    pub(super) fn end_fetcher(&mut self, end: Instant, number: u64, reason: EndReason) {
        let Some(fetcher) = self.fetchers.remove(number) else { return };
        self.fetchers.end_sending(fetcher.player(), fetcher.sending());
        self.give_back_fetched(&fetcher);
        let lasted_ns = end.ns_since(fetcher.started);
        let Fetcher { label: session, title, viewer: peer, .. } = fetcher;
        let title = base(&title).to_owned();
        self.tell(ServiceEvent::FetchEnded { session, title, peer, reason, lasted_ns });
    }

    /// Viewers that fetch segments, the oldest first.
    pub fn fetchers(&self) -> impl Iterator<Item = &Fetcher> {
        self.fetchers.values()
    }
}
