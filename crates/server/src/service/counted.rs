//! How viewers are counted by title and by user, whatever protocol they watch by.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use millrace_rights::{Quota, base};

use super::keys::StreamPath;
use super::ports::TitleEntry;
use super::stream::PlaybackStream;
use crate::limits::control::VIEWERS_OF_PLAYER;

/// A group of viewers that is counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
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
    /// Empty for a cast: its listeners are the title's viewers.
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
        let PlaybackStream { entry, quota, rate, fetcher: None, path, .. } = stream else { return None };
        Some(Self { title: counted_title(entry, *path), quota: quota.as_ref(), rate: *rate, player: None })
    }

    pub(super) fn whose(self) -> impl Iterator<Item = Whose> {
        let user = self.quota.map(|quota| Whose::User(quota.user.clone()));
        let title = (!self.title.is_empty()).then(|| Whose::Title(base(self.title).into()));
        user.into_iter().chain(title)
    }
}

/// The title that a stream by this path is a viewer of.
pub(super) fn counted_title(entry: &TitleEntry, path: StreamPath) -> &str {
    if let StreamPath::Multicast { .. } = path { "" } else { &entry.name }
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
    pub(super) fn used(
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
    pub(super) fn places(&self, whose: &Whose, player: Player) -> usize {
        self.0.get(whose).and_then(|taken| taken.players.get(&player)).map_or(0, Vec::len)
    }
}

/// Number of players that a program counts as, from the number of places at which it fetches and
/// the number of segments that are being sent to it.
pub(super) fn players(places: usize, sending: usize) -> usize {
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

#[cfg(test)]
#[path = "counted_tests.rs"]
mod tests;
