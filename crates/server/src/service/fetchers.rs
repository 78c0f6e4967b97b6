//! The table of viewers that fetch segments ([`super::fetch`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use millrace_core::address::network_of;
use millrace_core::ids::ViewerSession;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::units::BitRate;
use millrace_rights::{Quota, base};

use super::counted::{CountedViewer, Player};
use super::ports::TitleEntry;
use super::request::{FetchedSegment, StreamRequest, Which};
use crate::admission::Demand;
use crate::limits::control::{
    FETCH_AHEAD_NS, FETCH_GRACE_NS, SESSION_BEGIN_NS, SESSION_IDLE_NS, SESSION_SEGMENTS,
};

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
    /// The session that identifies it; `None`: its address and program do.
    session: Option<ViewerSession>,
    /// When it last asked for a playlist.
    asked: Instant,
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
pub(super) struct NextSegment {
    pub(super) who: u64,
    is_sound: bool,
    segment: u32,
}

impl NextSegment {
    /// Instead of a segment's number: whatever its viewer asks for next. The last one was cut off, or there was none.
    const ANY: u32 = u32::MAX;

    /// Whose next segment this may be.
    pub(super) fn of(fetch: &Fetch<'_>, player: Player) -> Self {
        let mut hasher = DefaultHasher::new();
        (player, base(fetch.title), fetch.quota.map(|quota| &quota.user)).hash(&mut hasher);
        Self { who: hasher.finish(), is_sound: fetch.is_sound, segment: fetch.segment.number }
    }
}

/// Identifies a session with its title and its user: it is good for no others.
pub(super) fn session_identity(session: ViewerSession, title: &str, quota: Option<&Quota>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (session, base(title), quota.map(|quota| &quota.user)).hash(&mut hasher);
    hasher.finish()
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Fetchers {
    all: BTreeMap<u64, Fetcher>,
    /// When each is forgotten.
    ends: BTreeSet<(Instant, u64)>,
    by_conn: HashMap<u64, u64>,
    /// Those with a session. Each holds a reservation, so `--max-streams` bounds the table.
    by_session: HashMap<ViewerSession, u64>,
    /// Sessions of each network that have fetched no segment yet.
    pending: HashMap<IpAddr, usize>,
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

    pub(super) fn values(&self) -> impl Iterator<Item = &Fetcher> {
        self.all.values()
    }

    /// Counts the bit rate of a viewer that needs no engine.
    pub(super) fn add_beside(&mut self, rate: u64) {
        self.beside += rate;
    }

    pub(super) fn remove_beside(&mut self, rate: u64) {
        self.beside -= rate;
    }

    /// Returns a viewer that has played its media and fetches no more, and since when. Those that
    /// are being sent something stay.
    pub(super) fn next_overdue(&mut self, now: Instant) -> Option<(Instant, u64)> {
        loop {
            let &(end, number) = self.ends.first().filter(|(end, _)| *end <= now)?;
            if self.all.get(&number).is_none_or(|fetcher| fetcher.sending == 0) {
                return Some((end, number));
            }
            self.change(number, |fetcher| {
                fetcher.tracks.iter_mut().flatten().for_each(|track| track.played = now);
            });
        }
    }

    /// Returns the viewer that would be forgotten first.
    pub(super) fn first_to_end(&self) -> Option<u64> {
        self.ends.first().map(|&(_, number)| number)
    }

    /// The viewer with this session, if the session is of this title and user.
    pub(super) fn in_session(
        &self,
        session: Option<ViewerSession>,
        title: &str,
        quota: Option<&Quota>,
    ) -> Option<u64> {
        let number = *self.by_session.get(&session?)?;
        let who = session_identity(session?, title, quota);
        self.all.get(&number).filter(|fetcher| fetcher.who == who).map(|_| number)
    }

    /// The viewer in whose session a segment is requested. Addresses can be passed on, so a session
    /// that is already sent as many segments as a player needs covers no more.
    pub(super) fn of_session(&self, fetch: &Fetch<'_>) -> Option<u64> {
        let number = self.in_session(fetch.segment.session, fetch.title, fetch.quota)?;
        self.all.get(&number).filter(|fetcher| fetcher.sending < SESSION_SEGMENTS).map(|_| number)
    }

    /// Sessions of this address that have fetched no segment yet.
    pub(super) fn pending(&self, ip: IpAddr) -> usize {
        self.pending.get(&network_of(ip)).copied().unwrap_or(0)
    }

    fn end_pending(&mut self, network: IpAddr) {
        if let Some(count) = self.pending.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.pending.remove(&network);
            }
        }
    }

    /// Whether there is such a session, of whatever title.
    pub(super) fn has_session(&self, session: ViewerSession) -> bool {
        self.by_session.contains_key(&session)
    }

    pub(super) fn find(&self, next: NextSegment, conn: u64) -> Option<u64> {
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
    pub(super) fn is_beside_pictures(&self, number: u64, next: NextSegment) -> bool {
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

    pub(super) fn end_sending(&mut self, player: Player, count: usize) {
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

    pub(super) fn change(&mut self, number: u64, change: impl FnOnce(&mut Fetcher)) {
        if let Some(mut fetcher) = self.remove(number) {
            change(&mut fetcher);
            self.insert(number, fetcher);
        }
    }

    pub(super) fn insert(&mut self, number: u64, fetcher: Fetcher) {
        self.ends.insert((fetcher.ends(), number));
        if let Some(session) = fetcher.session {
            self.by_session.insert(session, number);
            if fetcher.is_pending() {
                *self.pending.entry(network_of(fetcher.viewer.ip())).or_default() += 1;
            }
            self.all.insert(number, fetcher);
            return;
        }
        for track in fetcher.tracks.iter().flatten() {
            self.by_conn.insert(track.conn, number);
        }
        for next in fetcher.nexts() {
            self.by_next.entry(next).or_default().push(number);
        }
        self.all.insert(number, fetcher);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Fetcher> {
        let fetcher = self.all.remove(&number)?;
        self.ends.remove(&(fetcher.ends(), number));
        if let Some(session) = fetcher.session {
            self.by_session.remove(&session);
            if fetcher.is_pending() {
                self.end_pending(network_of(fetcher.viewer.ip()));
            }
            return Some(fetcher);
        }
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
    /// A viewer that has fetched nothing yet, and holds no room.
    pub(super) fn new(now: Instant, fetch: &Fetch<'_>, player: Player, who: u64) -> Self {
        Self {
            label: fetch.label.to_owned(),
            title: fetch.title.to_owned(),
            viewer: fetch.viewer,
            rate: 0,
            started: now,
            at: fetch.segment.at,
            player,
            quota: fetch.quota.cloned(),
            session: None,
            asked: now,
            engine: None,
            who,
            tracks: [None; 2],
            sending: 0,
        }
    }

    /// The same, known by a session.
    pub(super) fn with_session(mut self, session: ViewerSession) -> Self {
        self.who = session_identity(session, &self.title, self.quota.as_ref());
        self.session = Some(session);
        self
    }

    /// It asks for a playlist.
    pub(super) fn ask_playlist(&mut self, now: Instant) {
        self.asked = now;
    }

    /// Whether it has fetched no segment yet.
    fn is_pending(&self) -> bool {
        self.tracks == [None; 2]
    }

    /// Whether the segments of its pictures, or of its only track, are counted already.
    pub(super) fn has_pictures(&self) -> bool {
        self.tracks[0].is_some()
    }

    pub(super) fn player(&self) -> Player {
        self.player
    }

    /// Segments that are sent to it now.
    pub(super) fn sending(&self) -> usize {
        self.sending as usize
    }

    /// The engine that sent its last segment, and holds room for the next; `None`: none is needed.
    pub(super) fn engine(&self) -> Option<(usize, Demand)> {
        self.engine
    }

    /// The segment at this time is sent by `engine`, and counts with this bit rate.
    pub(super) fn go_on(&mut self, engine: Option<(usize, Demand)>, rate: u64, at: MediaTicks) {
        (self.engine, self.rate, self.at) = (engine, rate, at);
    }

    fn ends(&self) -> Instant {
        let played = self.tracks.iter().flatten().map(|track| track.played).max();
        match (self.session, played) {
            (Some(_), None) => self.asked.plus_ns(SESSION_BEGIN_NS),
            (Some(_), Some(played)) => played.max(self.asked).plus_ns(SESSION_IDLE_NS),
            (None, played) => played.unwrap_or(self.started).plus_ns(FETCH_GRACE_NS),
        }
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
    pub(super) fn take(&mut self, now: Instant, fetch: &Fetch<'_>) {
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

    pub(super) fn counted(&self) -> CountedViewer<'_> {
        let Self { title, quota, rate, player, .. } = self;
        CountedViewer { title, quota: quota.as_ref(), rate: *rate, player: Some(*player) }
    }
}

/// A segment that is sent to a viewer without an engine: [`super::Service::end_fetch`] takes it back.
#[derive(Debug)]
#[must_use]
pub struct Fetching {
    pub(super) fetcher: u64,
    pub(super) is_sound: bool,
    pub(super) label: String,
    pub(super) title: String,
    pub(super) viewer: SocketAddr,
    pub(super) since: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetch(conn: u64, number: u32) -> Fetch<'static> {
        Fetch {
            viewer: ([192, 0, 2, 1], 5000).into(),
            label: "test",
            agent: None,
            quota: None,
            title: "film",
            mean_rate: BitRate(1),
            peak_rate: BitRate(1),
            segment: FetchedSegment {
                conn,
                number,
                at: MediaTicks(0),
                length: MediaTicks(90_000),
                session: None,
            },
            is_sound: false,
        }
    }

    /// One player that has fetched the same segment for two viewers, each on its own connection.
    fn two_viewers() -> Fetchers {
        let mut fetchers = Fetchers::default();
        for conn in [1, 2] {
            let fetch = fetch(conn, 0);
            let player = Player::new(fetch.viewer.ip(), fetch.agent);
            let who = NextSegment::of(&fetch, player).who;
            let mut fetcher = Fetcher::new(Instant(0), &fetch, player, who);
            fetcher.take(Instant(0), &fetch);
            fetchers.insert(conn, fetcher);
        }
        fetchers
    }

    #[test]
    fn next_segment_is_of_the_viewer_on_its_connection() {
        let fetchers = two_viewers();
        let player = fetchers.values().next().expect("two viewers").player();
        let find = |conn, number| fetchers.find(NextSegment::of(&fetch(conn, number), player), conn);
        assert_eq!([1, 2].map(|conn| find(conn, 1)), [Some(1), Some(2)]);
        assert_eq!(find(3, 1), Some(1), "either may go on");
        assert_eq!((find(2, 7), find(3, 7)), (Some(2), None), "a seek, and another viewer");
    }

    #[test]
    fn removed_viewers_leave_nothing_in_the_tables() {
        let mut fetchers = two_viewers();
        for number in [1, 2] {
            assert!(fetchers.remove(number).is_some() && fetchers.remove(number).is_none());
        }
        let Fetchers { all, ends, by_conn, by_next, .. } = &fetchers;
        assert_eq!([all.len(), ends.len(), by_conn.len(), by_next.len()], [0; 4]);
    }
}
