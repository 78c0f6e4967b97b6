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

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use millrace_core::address::network_of;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::units::BitRate;
use millrace_rights::{Quota, base};

use super::event::{ServiceEvent, Totals};
use super::ports::TitleEntry;
use super::quota::{CountedViewer, Player};
use super::refusal::Refusal;
use super::request::{FetchedSegment, Sender, StreamRequest, Which};
use super::state::Service;
use super::stream::EndReason;
use crate::admission::Demand;
use crate::limits::control::{FETCH_AHEAD_NS, FETCH_GRACE_NS};

/// A request for a segment.
#[derive(Clone, Copy, Debug)]
pub struct Fetch<'a> {
    /// The viewer.
    pub viewer: SocketAddr,
    /// What log lines call the viewer if it is a new one.
    pub label: &'a str,
    /// What its program calls itself.
    pub agent: Option<&'a str>,
    /// What its user may have.
    pub quota: Option<&'a Quota>,
    /// The title.
    pub title: &'a str,
    /// Its bit rates, or those of the sound.
    pub mean_rate: BitRate,
    /// Its highest second.
    pub peak_rate: BitRate,
    /// The segment.
    pub segment: FetchedSegment,
    /// It is a sound that is fetched apart, and its viewer may be one that fetches the pictures.
    pub is_sound: bool,
}

impl<'a> Fetch<'a> {
    /// Returns `None` if the request is not for a segment.
    pub(super) fn of(request: &'a StreamRequest, entry: &'a TitleEntry) -> Option<Self> {
        let Which::New { label, agent } = &request.which else { return None };
        Some(Self {
            viewer: request.viewer,
            label,
            agent: agent.as_deref(),
            quota: request.quota.as_ref(),
            title: &entry.name,
            mean_rate: entry.mean_rate,
            peak_rate: entry.peak_rate,
            segment: request.segment?,
            is_sound: false,
        })
    }
}

/// A viewer that fetches segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetcher {
    /// What log lines call it.
    pub label: String,
    /// The title, or rendition of one, that it fetches.
    pub title: String,
    /// Where it is.
    pub viewer: SocketAddr,
    /// Bits a second that admission counts for it.
    pub rate: u64,
    /// Since when.
    pub started: Instant,
    /// Where in the title the last segment is that it fetched.
    pub at: MediaTicks,
    player: Player,
    quota: Option<Quota>,
    /// The engine that sent its last segment, and holds room for the next; `None`: none is needed.
    engine: Option<(usize, Demand)>,
    /// Who goes on with it.
    who: u64,
    /// How far it is with the title or its pictures, and with the sounds that are apart from them. At least one of them.
    tracks: [Option<FetchProgress>; 2],
    /// Segments that are sent to it now: it stays for as long, however slowly it takes them.
    sending: u32,
}

/// A viewer's progress in fetching one segment after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FetchProgress {
    /// The connection of the last segment.
    conn: u64,
    /// The one that comes next.
    next: u32,
    /// When the fetched media has been played.
    played: Instant,
}

/// The known identity of a fetching viewer, and the segment that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NextSegment {
    who: u64,
    is_sound: bool,
    segment: u32,
}

impl NextSegment {
    /// Instead of a segment's number: whatever its viewer asks for next. The last one was cut off, or there was none.
    const ANY: u32 = u32::MAX;

    /// Whose next segment this may be.
    fn of(fetch: &Fetch<'_>, player: Player) -> Self {
        let mut hasher = DefaultHasher::new();
        (player, base(fetch.title), fetch.quota.map(|quota| &quota.user)).hash(&mut hasher);
        Self { who: hasher.finish(), is_sound: fetch.is_sound, segment: fetch.segment.number }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Fetchers {
    all: BTreeMap<u64, Fetcher>,
    /// When each is forgotten.
    ends: BTreeSet<(Instant, u64)>,
    by_conn: HashMap<u64, u64>,
    by_next: HashMap<NextSegment, Vec<u64>>,
    /// Number of segments that are being sent to each player.
    sending: HashMap<Player, usize>,
    /// Bits a second of those that need no engine.
    beside: u64,
}

impl Fetchers {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn beside(&self) -> u64 {
        self.beside
    }

    fn find(&self, next: NextSegment, conn: u64) -> Option<u64> {
        let of_conn = self.by_conn.get(&conn).and_then(|number| Some((*number, self.all.get(number)?)));
        let first = |next| self.by_next.get(&next).and_then(|all| all.first()).copied();
        match of_conn.filter(|(_, fetcher)| fetcher.who == next.who) {
            Some((number, fetcher)) if fetcher.nexts().any(|its| its == next) => Some(number),
            // Unless another goes on with it: a seek, or the same segment again.
            of_conn => first(next)
                .or(of_conn.map(|(number, _)| number))
                .or_else(|| first(NextSegment { segment: NextSegment::ANY, ..next })),
        }
    }

    /// Whether what this viewer fetches is already counted with the pictures that it fetches.
    fn is_beside_pictures(&self, number: u64, next: NextSegment) -> bool {
        next.is_sound && self.all.get(&number).is_some_and(|fetcher| fetcher.tracks[0].is_some())
    }

    /// A viewer is being sent a segment.
    pub(super) fn begin_segment(&mut self, number: u64) {
        if let Some(fetcher) = self.all.get_mut(&number) {
            fetcher.sending += 1;
            *self.sending.entry(fetcher.player).or_default() += 1;
        }
    }

    /// Number of segments that are being sent to a player.
    pub(super) fn sending(&self, player: Player) -> usize {
        self.sending.get(&player).copied().unwrap_or(0)
    }

    fn end_sending(&mut self, player: Player, count: usize) {
        if let Some(sending) = self.sending.get_mut(&player) {
            *sending = sending.saturating_sub(count);
            if *sending == 0 {
                self.sending.remove(&player);
            }
        }
    }

    /// That is over. Players cut segments off themselves, to fetch something else by another connection.
    pub(super) fn end_segment(&mut self, now: Instant, number: u64, is_sound: bool, is_whole: bool) {
        let Some(fetcher) = self.all.get_mut(&number) else { return };
        fetcher.sending -= 1;
        let (player, track) = (fetcher.player, fetcher.tracks[usize::from(is_sound)]);
        self.end_sending(player, 1);
        let Some(track) = track else { return };
        if !is_whole || track.played < now {
            let next = if is_whole { track.next } else { NextSegment::ANY };
            let track = FetchProgress { next, played: track.played.max(now), ..track };
            self.change(number, |fetcher| fetcher.tracks[usize::from(is_sound)] = Some(track));
        }
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut Fetcher)) {
        if let Some(mut fetcher) = self.remove(number) {
            change(&mut fetcher);
            self.insert(number, fetcher);
        }
    }

    fn insert(&mut self, number: u64, fetcher: Fetcher) {
        self.ends.insert((fetcher.ends(), number));
        for track in fetcher.tracks.iter().flatten() {
            self.by_conn.insert(track.conn, number);
        }
        for next in fetcher.nexts() {
            self.by_next.entry(next).or_default().push(number);
        }
        self.all.insert(number, fetcher);
    }

    fn remove(&mut self, number: u64) -> Option<Fetcher> {
        let fetcher = self.all.remove(&number)?;
        self.ends.remove(&(fetcher.ends(), number));
        for track in fetcher.tracks.iter().flatten() {
            if self.by_conn.get(&track.conn) == Some(&number) {
                self.by_conn.remove(&track.conn);
            }
        }
        for next in fetcher.nexts() {
            let Some(others) = self.by_next.get_mut(&next) else { continue };
            others.retain(|other| *other != number);
            if others.is_empty() {
                self.by_next.remove(&next);
            }
        }
        Some(fetcher)
    }
}

impl Fetcher {
    fn ends(&self) -> Instant {
        let played = self.tracks.iter().flatten().map(|track| track.played).max();
        played.unwrap_or(self.started).plus_ns(FETCH_GRACE_NS)
    }

    /// With which segments it goes on. Sounds are not looked at closely if it has pictures, nor are pictures if it has none yet: players fetch both at a time, and either may
    /// come first.
    fn nexts(&self) -> impl Iterator<Item = NextSegment> {
        let &Self { who, tracks: [pictures, sounds], .. } = self;
        let next = move |is_sound, segment| NextSegment { who, is_sound, segment };
        let sound = sounds.map(|track| next(true, track.next));
        let any_sound = pictures.map(|_| next(true, NextSegment::ANY)).filter(|any| sound != Some(*any));
        let picture = next(false, pictures.map_or(NextSegment::ANY, |track| track.next));
        [Some(picture), sound, any_sound].into_iter().flatten()
    }

    /// It fetches this segment.
    fn take(&mut self, now: Instant, fetch: &Fetch<'_>) {
        let FetchedSegment { conn, number, length, .. } = fetch.segment;
        let track = &mut self.tracks[usize::from(fetch.is_sound)];
        let (follows, has_played) = match track {
            Some(before) => (before.next == number, before.played.max(now)),
            None => (false, now),
        };
        let length = length.to_ns();
        let played = match follows {
            true => has_played.plus_ns(length).min(now.plus_ns(FETCH_AHEAD_NS.max(length))),
            false => has_played.max(now.plus_ns(length)),
        };
        *track = Some(FetchProgress { conn, next: number.saturating_add(1), played });
        self.viewer = fetch.viewer;
    }

    fn counted(&self) -> CountedViewer<'_> {
        let Self { title, quota, rate, player, .. } = self;
        CountedViewer { title, quota: quota.as_ref(), rate: *rate, player: Some(*player) }
    }
}

/// A segment that is sent to a viewer without an engine: [`Service::end_fetch`] takes it back.
#[derive(Debug)]
#[must_use]
pub struct Fetching {
    fetcher: u64,
    is_sound: bool,
    label: String,
    title: String,
    viewer: SocketAddr,
    since: Instant,
}

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
            Sender::Engine(engine, load) => Some((engine.ok_or(Refusal::EngineStreams)?, load)),
            Sender::Web => None,
        };
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
        let sent_by = std::mem::replace(&mut fetcher.engine, engine);
        (fetcher.rate, fetcher.at) = (rate, segment.at);
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
    fn begin_fetcher(&mut self, now: Instant, fetch: &Fetch<'_>, player: Player, who: u64) -> (u64, Fetcher) {
        let (label, title) = (fetch.label.to_owned(), fetch.title.to_owned());
        let (session, agent) = (label.clone(), fetch.agent.map(str::to_owned));
        self.tell(ServiceEvent::FetchBegan {
            session,
            title: base(&title).to_owned(),
            peer: fetch.viewer,
            agent,
        });
        let fetcher = Fetcher {
            label,
            title,
            viewer: fetch.viewer,
            rate: 0,
            started: now,
            at: fetch.segment.at,
            player,
            quota: fetch.quota.cloned(),
            engine: None,
            who,
            tracks: [None; 2],
            sending: 0,
        };
        (self.new_key(), fetcher)
    }

    /// Reserves the resources that a viewer holds.
    fn take_fetched(&mut self, fetcher: &Fetcher) {
        self.take_rate(fetcher.engine, fetcher.rate);
        let usage = self.usage.entry(network_of(fetcher.viewer.ip())).or_default();
        (usage.streams, usage.rate) = (usage.streams + 1, usage.rate + fetcher.rate);
        self.watched.begin(fetcher.counted());
    }

    /// Gives it back.
    fn give_back_fetched(&mut self, fetcher: &Fetcher) {
        self.give_back_rate(fetcher.engine, fetcher.rate);
        let address = network_of(fetcher.viewer.ip());
        if let Some(usage) = self.usage.get_mut(&address) {
            usage.rate -= fetcher.rate;
        }
        self.release_usage(address, |usage| &mut usage.streams);
        self.watched.end(fetcher.counted());
    }

    fn take_rate(&mut self, engine: Option<(usize, Demand)>, rate: u64) {
        match engine {
            Some((engine, load)) => self.slots[engine].reserved += load,
            None => self.fetchers.beside += rate,
        }
    }

    fn give_back_rate(&mut self, engine: Option<(usize, Demand)>, rate: u64) {
        match engine {
            Some((engine, load)) => self.slots[engine].reserved -= load,
            None => self.fetchers.beside -= rate,
        }
    }

    /// Forgets viewers that have played their media and fetch no more.
    pub(super) fn end_fetchers(&mut self, now: Instant) {
        while let Some(&(end, number)) = self.fetchers.ends.first().filter(|(end, _)| *end <= now) {
            match self.fetchers.all.get(&number) {
                Some(fetcher) if fetcher.sending > 0 => {
                    self.fetchers.change(number, |fetcher| {
                        fetcher.tracks.iter_mut().flatten().for_each(|track| track.played = now);
                    });
                }
                _ => self.end_fetcher(end, number, EndReason::NoMoreFetched),
            }
        }
    }

    /// Forgets all, as the server ends.
    pub(super) fn end_all_fetchers(&mut self, now: Instant) {
        while let Some(&(_, number)) = self.fetchers.ends.first() {
            self.end_fetcher(now, number, EndReason::Shutdown);
        }
    }

    /// Forgets one.
    pub(super) fn end_fetcher(&mut self, end: Instant, number: u64, reason: EndReason) {
        let Some(fetcher) = self.fetchers.remove(number) else { return };
        self.fetchers.end_sending(fetcher.player, fetcher.sending as usize);
        self.give_back_fetched(&fetcher);
        let lasted_ns = end.ns_since(fetcher.started);
        let Fetcher { label: session, title, viewer: peer, .. } = fetcher;
        let title = base(&title).to_owned();
        self.tell(ServiceEvent::FetchEnded { session, title, peer, reason, lasted_ns });
    }

    /// Viewers that fetch segments, the oldest first.
    pub fn fetchers(&self) -> impl Iterator<Item = &Fetcher> {
        self.fetchers.all.values()
    }
}
