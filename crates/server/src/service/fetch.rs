//! Viewers that fetch a title segment by segment, from what is made of it beside the engines: they have no stream, and hold room as one does, for as long as
//! they go on fetching.
//!
//! ```text
//!   fetch ─► whose is it?
//!              │ the segment behind the last one of a viewer, or one that came by its connection ─► it plays so much longer
//!              └ nobody's ─► is there room? ─► a new viewer
//!                                                 └─► what it has got is played, and no more was fetched ─► its room is free
//! ```
//!
//! Nothing but addresses, programs and places in a title tells viewers apart. Two behind one address who watch the same title by the same program are two as long as they are at different
//! places in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use millrace_core::limits::control::{FETCH_AHEAD_NS, FETCH_GRACE_NS};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::units::BitRate;
use millrace_rights::base;

use super::config::RateBasis;
use super::event::Event;
use super::refusal::Refusal;
use super::{Service, bucket};

/// A segment that a viewer wants.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The viewer.
    pub viewer: SocketAddr,
    /// The connection by which it asks, as whoever has that calls it.
    pub conn: String,
    /// What log lines call the viewer if it is a new one.
    pub label: String,
    /// What its program calls itself.
    pub agent: Option<String>,
    /// The title.
    pub title: String,
    /// Its bit rates.
    pub mean_rate: BitRate,
    /// Its highest second.
    pub peak_rate: BitRate,
    /// Which of its segments.
    pub segment: u32,
    /// Where in the title that begins.
    pub at: MediaTicks,
    /// Its length.
    pub length: MediaTicks,
}

/// A viewer that fetches segments, for show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetcher {
    /// What log lines call it.
    pub label: String,
    /// What it fetches: a title, or a rendition of one.
    pub title: String,
    /// Where it is.
    pub viewer: SocketAddr,
    /// Bits a second that admission counts for it.
    pub rate: u64,
    /// Since when.
    pub started: Instant,
    /// Where in the title the last segment is that it fetched.
    pub at: MediaTicks,
    conn: String,
    /// Who goes on with it, and with which segment.
    next: Next,
    /// When what it has fetched is played.
    played: Instant,
}

/// What is known of who fetches, and the segment that comes next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Next {
    who: Arc<str>,
    segment: u32,
}

impl Next {
    /// Whose next segment this may be.
    fn of(fetch: &Fetch) -> Self {
        let agent = fetch.agent.as_deref().unwrap_or_default();
        let who = format!("{}\n{agent}\n{}", fetch.viewer.ip(), base(&fetch.title));
        Self { who: who.into(), segment: fetch.segment }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Fetchers {
    all: BTreeMap<u64, Fetcher>,
    /// When each is forgotten.
    ends: BTreeSet<(Instant, u64)>,
    by_conn: HashMap<String, u64>,
    by_next: HashMap<Next, Vec<u64>>,
    /// Bits a second of all.
    rate: u64,
}

impl Fetchers {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    fn find(&self, next: &Next, conn: &str) -> Option<u64> {
        let goes_on = self.by_next.get(next).and_then(|all| all.first());
        // A seek, or the same segment again.
        let by_conn = self.by_conn.get(conn).filter(|&number| self.all[number].next.who == next.who);
        goes_on.or(by_conn).copied()
    }

    fn insert(&mut self, number: u64, fetcher: Fetcher) {
        self.rate += fetcher.rate;
        self.ends.insert((fetcher.ends(), number));
        self.by_conn.insert(fetcher.conn.clone(), number);
        self.by_next.entry(fetcher.next.clone()).or_default().push(number);
        self.all.insert(number, fetcher);
    }

    fn remove(&mut self, number: u64) -> Option<Fetcher> {
        let fetcher = self.all.remove(&number)?;
        self.rate -= fetcher.rate;
        self.ends.remove(&(fetcher.ends(), number));
        if self.by_conn.get(&fetcher.conn) == Some(&number) {
            self.by_conn.remove(&fetcher.conn);
        }
        if let Some(others) = self.by_next.get_mut(&fetcher.next) {
            others.retain(|other| *other != number);
            if others.is_empty() {
                self.by_next.remove(&fetcher.next);
            }
        }
        Some(fetcher)
    }
}

impl Fetcher {
    fn ends(&self) -> Instant {
        self.played.plus_ns(FETCH_GRACE_NS)
    }
}

impl Service {
    /// A viewer wants a segment: whether it may have it. If it may, its bit rate is reserved until it has played what it has fetched.
    ///
    /// # Errors
    /// What is used up. Who has a place keeps it, at the rate that it had.
    pub fn fetch(&mut self, now: Instant, fetch: Fetch) -> Result<(), Refusal> {
        let (viewer, title) = (fetch.viewer, fetch.title.clone());
        self.try_fetch(now, fetch).map_err(|refusal| self.told(viewer, &title, refusal))
    }

    fn try_fetch(&mut self, now: Instant, fetch: Fetch) -> Result<(), Refusal> {
        if self.shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        self.end_fetchers(now);
        let rate = match self.config.rate_basis {
            RateBasis::Mean => fetch.mean_rate.0,
            RateBasis::Peak => fetch.peak_rate.0,
        };
        let mut next = Next::of(&fetch);
        let number = self.fetchers.find(&next, &fetch.conn);
        // What it has is not counted against it.
        let before = number.and_then(|number| self.take_out(number));
        if before.as_ref().is_none_or(|before| before.rate < rate)
            && let Err(refusal) = self.room_for_fetcher(now, fetch.viewer.ip(), rate)
        {
            if let Some((number, before)) = number.zip(before) {
                self.put_in(number, before);
            }
            return Err(refusal);
        }
        let follows = before.as_ref().is_some_and(|before| before.next == next);
        let has_played = before.as_ref().map_or(now, |before| before.played.max(now));
        let length = fetch.length.to_ns();
        let played = match follows {
            true => has_played.plus_ns(length).min(now.plus_ns(FETCH_AHEAD_NS.max(length))),
            false => has_played.max(now.plus_ns(length)),
        };
        next.segment = next.segment.saturating_add(1);
        let Fetch { viewer, conn, label, agent, title, at, .. } = fetch;
        let (label, started) = match before {
            Some(before) => (before.label, before.started),
            None => {
                let (session, title) = (label.clone(), base(&title).to_owned());
                self.tell(Event::FetchBegan { session, title, peer: viewer, agent });
                (label, now)
            }
        };
        let number = number.unwrap_or_else(|| self.new_key());
        self.put_in(number, Fetcher { label, title, viewer, rate, started, at, conn, next, played });
        Ok(())
    }

    fn put_in(&mut self, number: u64, fetcher: Fetcher) {
        let usage = self.usage.entry(bucket(fetcher.viewer.ip())).or_default();
        usage.sessions += 1;
        (usage.streams, usage.rate) = (usage.streams + 1, usage.rate + fetcher.rate);
        self.fetchers.insert(number, fetcher);
    }

    fn take_out(&mut self, number: u64) -> Option<Fetcher> {
        let fetcher = self.fetchers.remove(number)?;
        let address = bucket(fetcher.viewer.ip());
        if let Some(usage) = self.usage.get_mut(&address) {
            (usage.streams, usage.rate) = (usage.streams - 1, usage.rate - fetcher.rate);
        }
        self.release_usage(address, |usage| &mut usage.sessions);
        Some(fetcher)
    }

    /// Forgets those who have played what they have, and fetch no more.
    pub(super) fn end_fetchers(&mut self, now: Instant) {
        while let Some(&(end, number)) = self.fetchers.ends.first().filter(|(end, _)| *end <= now) {
            self.end_fetcher(end, number);
        }
    }

    /// Forgets all.
    pub(super) fn end_all_fetchers(&mut self, now: Instant) {
        while let Some(&(_, number)) = self.fetchers.ends.first() {
            self.end_fetcher(now, number);
        }
    }

    fn end_fetcher(&mut self, end: Instant, number: u64) {
        let Some(fetcher) = self.take_out(number) else { return };
        let lasted_ns = end.ns_since(fetcher.started);
        let Fetcher { label: session, title, viewer: peer, .. } = fetcher;
        let title = base(&title).to_owned();
        self.tell(Event::FetchEnded { session, title, peer, lasted_ns });
    }

    /// Viewers that fetch segments, the oldest first.
    pub fn fetchers(&self) -> impl Iterator<Item = &Fetcher> {
        self.fetchers.all.values()
    }
}
