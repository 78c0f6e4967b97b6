//! What one user may have at once, and how many may watch one title, whatever protocol they watch by. Streams count that have reserved room to play, and viewers
//! that fetch segments.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use millrace_core::units::BitRate;
use millrace_rights::{Quota, base};

use super::Service;
use super::refusal::{FecRefusal, Refusal};
use super::stream::Stream;

/// What is counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Whose {
    /// What this user watches.
    User(Arc<str>),
    /// Who watches this title, or what was made of it.
    Title(Box<str>),
}

/// A program at an address, by what it calls itself. Viewers that fetch segments cannot always be told from one that seeks or goes over to another title: here, where
/// a mistake would refuse users what they may have, those of one player count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Player(u64);

impl Player {
    pub(super) fn new(address: IpAddr, agent: Option<&str>) -> Self {
        let mut hasher = DefaultHasher::new();
        (address, agent).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// As what somebody counts who watches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted<'a> {
    pub(super) title: &'a str,
    /// What its user may have.
    pub(super) quota: Option<&'a Quota>,
    /// Bits a second.
    pub(super) rate: u64,
    /// Who fetches segments; a stream counts by itself.
    pub(super) player: Option<Player>,
}

impl<'a> Counted<'a> {
    /// `None`: its viewer counts, and not each segment.
    pub(super) fn of(stream: &'a Stream) -> Option<Self> {
        let Stream { entry, quota, rate, fetcher: None, .. } = stream else { return None };
        Some(Self { title: &entry.name, quota: quota.as_ref(), rate: *rate, player: None })
    }

    fn whose(self) -> impl Iterator<Item = Whose> {
        let user = self.quota.map(|quota| Whose::User(quota.user.clone()));
        user.into_iter().chain([Whose::Title(base(self.title).into())])
    }
}

/// What is watched, for each user with limits and of each title.
#[derive(Debug, Default)]
pub(super) struct Watched(HashMap<Whose, Taken>);

#[derive(Debug, Default)]
struct Taken {
    streams: usize,
    rate: u64,
    /// The bit rates of each player's viewers.
    players: HashMap<Player, Vec<u64>>,
}

impl Watched {
    /// Somebody watches from now on.
    pub(super) fn begin(&mut self, who: Counted<'_>) {
        for whose in who.whose() {
            let taken = self.0.entry(whose).or_default();
            match who.player {
                Some(player) => taken.players.entry(player).or_default().push(who.rate),
                None => (taken.streams, taken.rate) = (taken.streams + 1, taken.rate + who.rate),
            }
        }
    }

    /// It watches no more.
    pub(super) fn end(&mut self, who: Counted<'_>) {
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

    /// Streams, and their bits a second, without those of one player.
    fn used(&self, whose: &Whose, without: Option<Player>) -> (usize, u64) {
        let Some(taken) = self.0.get(whose) else { return (0, 0) };
        let others = taken.players.iter().filter(|(player, _)| Some(**player) != without);
        // One that goes over to another bit rate may for a moment be two.
        let rates = others.filter_map(|(_, rates)| rates.iter().max());
        rates.fold((taken.streams, taken.rate), |(streams, sum), rate| (streams + 1, sum + rate))
    }
}

impl Taken {
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
    pub(super) fn room_by_counts(&self, who: Counted<'_>, own: Option<&Stream>) -> Result<(), Refusal> {
        let own = own.and_then(Counted::of);
        let used = |whose: Whose| {
            let (streams, rate) = self.watched.used(&whose, who.player);
            match own.filter(|own| own.whose().any(|of| of == whose)) {
                Some(own) => (streams - 1, rate - own.rate),
                None => (streams, rate),
            }
        };
        if let Some(max) = self.config.max_streams_per_title
            && used(Whose::Title(base(who.title).into())).0 >= max
        {
            return Err(Refusal::TitleStreams { max });
        }
        let Some(Quota { user, limits }) = who.quota else { return Ok(()) };
        let (streams, rate) = used(Whose::User(user.clone()));
        if let Some(max) = limits.streams
            && streams >= max as usize
        {
            return Err(Refusal::UserStreams { max });
        }
        match limits.bits_per_s.map(BitRate) {
            Some(max) if rate.saturating_add(who.rate) > max.0 => {
                Err(Refusal::UserRate { used: BitRate(rate), max, more: BitRate(who.rate) })
            }
            _ => Ok(()),
        }
    }

    /// Whether the user of a stream may have so many bits a second more, for what is beside the title.
    pub(super) fn user_room_for_more(&self, stream: &Stream, more: u64) -> Result<(), FecRefusal> {
        let Some(Quota { user, limits }) = &stream.quota else { return Ok(()) };
        let Some(max) = limits.bits_per_s.map(BitRate) else { return Ok(()) };
        let (_, used) = self.watched.used(&Whose::User(user.clone()), None);
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
