//! What one user may have at once, and how many may watch one title, whatever protocol they watch by. Streams count that have reserved room to play, and viewers
//! that fetch segments.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use millrace_core::units::BitRate;
use millrace_rights::{Quota, base};

use super::refusal::{FecRefusal, Refusal};
use super::state::Service;
use super::stream::PlaybackStream;
use crate::limits::control::VIEWERS_OF_PLAYER;

/// A group of viewers that is counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Whose {
    /// What this user watches.
    User(Arc<str>),
    /// The viewers of this title, or of titles made from it.
    Title(Box<str>),
}

/// A program at an address, identified by its User-Agent. Several viewers that fetch segments
/// cannot always be distinguished from one that seeks or changes to another title. Here a mistake
/// would deny users something within their limits, so the viewers of one player count as one, up to
/// [`VIEWERS_OF_PLAYER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Player(u64);

impl Player {
    pub(super) fn new(address: IpAddr, agent: Option<&str>) -> Self {
        let mut hasher = DefaultHasher::new();
        (address, agent).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// How a viewer is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedViewer<'a> {
    pub(super) title: &'a str,
    /// What its user may have.
    pub(super) quota: Option<&'a Quota>,
    /// Bits a second.
    pub(super) rate: u64,
    /// Who fetches segments; a stream counts by itself.
    pub(super) player: Option<Player>,
}

impl<'a> CountedViewer<'a> {
    /// `None`: its viewer counts, and not each segment.
    pub(super) fn of(stream: &'a PlaybackStream) -> Option<Self> {
        let PlaybackStream { entry, quota, rate, fetcher: None, .. } = stream else { return None };
        Some(Self { title: &entry.name, quota: quota.as_ref(), rate: *rate, player: None })
    }

    fn whose(self) -> impl Iterator<Item = Whose> {
        let user = self.quota.map(|quota| Whose::User(quota.user.clone()));
        user.into_iter().chain([Whose::Title(base(self.title).into())])
    }
}

/// The use of each title, and of each user with limits.
#[derive(Debug, Default)]
pub(super) struct Watched(HashMap<Whose, QuotaUsage>);

#[derive(Debug, Default)]
struct QuotaUsage {
    streams: usize,
    rate: u64,
    /// The bit rates of each player's viewers.
    players: HashMap<Player, Vec<u64>>,
}

impl Watched {
    /// Counts one more viewer.
    pub(super) fn begin(&mut self, who: CountedViewer<'_>) {
        for whose in who.whose() {
            let taken = self.0.entry(whose).or_default();
            match who.player {
                Some(player) => taken.players.entry(player).or_default().push(who.rate),
                None => (taken.streams, taken.rate) = (taken.streams + 1, taken.rate + who.rate),
            }
        }
    }

    /// It watches no more.
    pub(super) fn end(&mut self, who: CountedViewer<'_>) {
        for whose in who.whose() {
            let Some(taken) = self.0.get_mut(&whose) else { continue };
            match who.player {
                Some(player) => taken.end_viewer(player, who.rate),
                None => (taken.streams, taken.rate) = (taken.streams - 1, taken.rate - who.rate),
            }
            if taken.streams == 0 && taken.players.is_empty() {
                self.0.remove(&whose);
            }
        }
    }

    /// Number of streams and their bits a second, without those of one player. `sending` returns
    /// the number of segments that are being sent to a player.
    fn used(
        &self,
        whose: &Whose,
        without: Option<Player>,
        sending: impl Fn(Player) -> usize,
    ) -> (usize, u64) {
        let Some(taken) = self.0.get(whose) else { return (0, 0) };
        let others = taken.players.iter().filter(|(player, _)| Some(**player) != without);
        others.fold((taken.streams, taken.rate), |(streams, sum), (player, rates)| {
            let count = players(rates.len(), sending(*player));
            // A player that changes its bit rate may have two for a moment; the higher one counts.
            let rate = rates.iter().max().copied().unwrap_or(0);
            (streams + count, sum + rate * count as u64)
        })
    }

    /// Number of places in titles at which a player fetches.
    fn places(&self, whose: &Whose, player: Player) -> usize {
        self.0.get(whose).and_then(|taken| taken.players.get(&player)).map_or(0, Vec::len)
    }
}

/// Number of players that a program counts as, from the number of places at which it fetches and
/// the number of segments that are being sent to it.
fn players(places: usize, sending: usize) -> usize {
    places.max(sending).div_ceil(VIEWERS_OF_PLAYER).max(1)
}

impl QuotaUsage {
    fn end_viewer(&mut self, player: Player, rate: u64) {
        let Some(rates) = self.players.get_mut(&player) else { return };
        if let Some(at) = rates.iter().position(|of| *of == rate) {
            rates.swap_remove(at);
        }
        if rates.is_empty() {
            self.players.remove(&player);
        }
    }
}

impl Service {
    /// Whether user and title may have one more; what `own` has reserved is not counted against it.
    pub(super) fn room_by_counts(
        &self,
        who: CountedViewer<'_>,
        own: Option<&PlaybackStream>,
    ) -> Result<(), Refusal> {
        let own = own.and_then(CountedViewer::of);
        let used = |whose: &Whose| {
            let (streams, rate) = self.watched.used(whose, who.player, |other| self.fetchers.sending(other));
            match own.filter(|own| own.whose().any(|of| of == *whose)) {
                Some(own) => (streams - 1, rate - own.rate),
                None => (streams, rate),
            }
        };
        let title = Whose::Title(base(who.title).into());
        if let Some(max) = self.config.max_streams_per_title
            && used(&title).0 + self.counts_as(&title, who) > max
        {
            return Err(Refusal::TitleStreams { max });
        }
        let Some(Quota { user, limits }) = who.quota else { return Ok(()) };
        let user = Whose::User(user.clone());
        let ((streams, rate), count) = (used(&user), self.counts_as(&user, who));
        if let Some(max) = limits.streams
            && streams + count > max as usize
        {
            return Err(Refusal::UserStreams { max });
        }
        let more = who.rate.saturating_mul(count as u64);
        match limits.bits_per_s.map(BitRate) {
            Some(max) if rate.saturating_add(more) > max.0 => {
                Err(Refusal::UserRate { used: BitRate(rate), max, more: BitRate(more) })
            }
            _ => Ok(()),
        }
    }

    /// Number of players that a viewer counts as if it is sent one more segment.
    fn counts_as(&self, whose: &Whose, who: CountedViewer<'_>) -> usize {
        let Some(player) = who.player else { return 1 };
        players(self.watched.places(whose, player) + 1, self.fetchers.sending(player) + 1)
    }

    /// Checks whether a player that continues fetching may be sent one more segment at the same
    /// time. If that makes it count as several players, the limits apply.
    pub(super) fn room_for_segment(&self, who: CountedViewer<'_>) -> Result<(), Refusal> {
        let is_one = who.player.is_none_or(|player| players(0, self.fetchers.sending(player) + 1) == 1);
        if is_one { Ok(()) } else { self.room_by_counts(who, None) }
    }

    /// Checks whether the user of a stream may have this many more bits a second, for data beside
    /// the title.
    pub(super) fn user_room_for_more(&self, stream: &PlaybackStream, more: u64) -> Result<(), FecRefusal> {
        let Some(Quota { user, limits }) = &stream.quota else { return Ok(()) };
        let Some(max) = limits.bits_per_s.map(BitRate) else { return Ok(()) };
        let (_, used) =
            self.watched.used(&Whose::User(user.clone()), None, |player| self.fetchers.sending(player));
        let used = used + if stream.is_reserved { 0 } else { stream.rate };
        if used.saturating_add(more) > max.0 {
            return Err(FecRefusal::UserRate { used: BitRate(used), max, more: BitRate(more) });
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
