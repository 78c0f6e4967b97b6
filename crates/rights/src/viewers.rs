//! What is watched at once, for each user with limits and of each title, over all faces: streams that last, and players that fetch one segment after the
//! other. A segment is sent in a moment, so what counts is its player, from its first request until a while after the last one.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::limits::rights::PLAYER_HOLD_NS;
use millrace_core::time::Instant;
use millrace_core::units::BitRate;

use crate::known::{Limits, Quota};
use crate::name::base;

/// What is counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// What this user watches.
    User(Arc<str>),
    /// Who watches this title, or what was made of it.
    Title(Box<str>),
}

impl Whose {
    /// Those of a title, also if it is named by what was made of it.
    pub fn title(name: &str) -> Self {
        Self::Title(base(name).into())
    }
}

/// A program that fetches segments, as far as it can be told from others: its address and what it calls itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Player {
    address: IpAddr,
    agent: u64,
}

impl Player {
    /// At this address, with this name.
    pub fn new(address: IpAddr, agent: Option<&str>) -> Self {
        let mut hasher = DefaultHasher::new();
        agent.hash(&mut hasher);
        Self { address: address.to_canonical(), agent: hasher.finish() }
    }
}

/// How a stream counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// As one, for its title and for this user if it has limits.
    Stream(Option<Quota>),
    /// Not by itself: its player counts.
    Fetched,
}

impl Counts {
    /// What its user may have.
    pub fn quota(&self) -> Option<&Quota> {
        match self {
            Self::Stream(quota) => quota.as_ref(),
            Self::Fetched => None,
        }
    }
}

/// What is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverLimit {
    /// As many are watched as may be.
    #[error("all {max} streams that this {of} may have are in use")]
    Streams {
        /// A user, or a title.
        of: &'static str,
        /// How many.
        max: u32,
    },
    /// As much is played as may be.
    #[error("{used} of {max} that this {of} may have in use, {more} more asked")]
    Rate {
        /// A user, or a title.
        of: &'static str,
        /// By others.
        used: BitRate,
        /// Allowed.
        max: BitRate,
        /// By this one.
        more: BitRate,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub struct Viewers(Mutex<Live>);

#[derive(Debug, Default)]
struct Live {
    taken: HashMap<Whose, Taken>,
    /// The latest time that anybody has told.
    now: Instant,
    /// When all players were last looked at.
    swept: Instant,
}

#[derive(Debug, Default)]
struct Taken {
    streams: usize,
    rate: u64,
    /// Each with its bit rate, and until when it counts.
    players: HashMap<Player, (u64, Instant)>,
}

impl Viewers {
    /// A stream plays from now on.
    pub fn begin(&self, whose: &Whose, rate: u64) {
        let mut live = self.live();
        let taken = live.taken.entry(whose.clone()).or_default();
        (taken.streams, taken.rate) = (taken.streams + 1, taken.rate + rate);
    }

    /// It plays no more.
    pub fn end(&self, whose: &Whose, rate: u64) {
        let mut live = self.live();
        let Some(taken) = live.taken.get_mut(whose) else { return };
        (taken.streams, taken.rate) = (taken.streams - 1, taken.rate - rate);
        if taken.streams == 0 && taken.players.is_empty() {
            live.taken.remove(whose);
        }
    }

    /// The bit rate of a stream that plays has changed.
    pub fn change(&self, whose: &Whose, before: u64, rate: u64) {
        if let Some(taken) = self.live().taken.get_mut(whose) {
            taken.rate = taken.rate - before + rate;
        }
    }

    /// Whether one more may play, with this bit rate. `own`: that of one which plays already, and would be this one.
    ///
    /// # Errors
    /// It may not.
    pub fn room(
        &self,
        now: Instant,
        whose: &Whose,
        limits: Limits,
        rate: u64,
        own: Option<u64>,
    ) -> Result<(), OverLimit> {
        let live = &mut *self.live();
        live.now = live.now.max(now);
        let (streams, used) = live.taken.get(whose).map_or((0, 0), |taken| taken.sum(live.now, None));
        let (streams, used) = (streams - usize::from(own.is_some()), used - own.unwrap_or(0));
        fits(whose, limits, (streams, used), rate)
    }

    /// Bits a second that are played, by players too.
    pub fn rate(&self, whose: &Whose) -> u64 {
        let live = self.live();
        live.taken.get(whose).map_or(0, |taken| taken.sum(live.now, None).1)
    }

    /// A player fetches a segment of something with this bit rate, if it may; whatever it has fetched before, it counts once.
    ///
    /// # Errors
    /// It may not.
    pub fn fetch(
        &self,
        now: Instant,
        whose: &Whose,
        limits: Limits,
        player: Player,
        rate: u64,
    ) -> Result<(), OverLimit> {
        let live = &mut *self.live();
        live.now = live.now.max(now);
        live.sweep();
        let others = live.taken.get(whose).map_or((0, 0), |taken| taken.sum(live.now, Some(player)));
        fits(whose, limits, others, rate)?;
        let until = live.now.plus_ns(PLAYER_HOLD_NS);
        live.taken.entry(whose.clone()).or_default().players.insert(player, (rate, until));
        Ok(())
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// Forgets players that count no more, now and then.
    fn sweep(&mut self) {
        if self.now.ns_since(self.swept) < PLAYER_HOLD_NS {
            return;
        }
        self.swept = self.now;
        let now = self.now;
        self.taken.retain(|_, taken| {
            taken.players.retain(|_, (_, until)| now < *until);
            taken.streams > 0 || !taken.players.is_empty()
        });
    }
}

impl Taken {
    /// Streams and their bits a second, without one player.
    fn sum(&self, now: Instant, without: Option<Player>) -> (usize, u64) {
        let counted =
            self.players.iter().filter(|(player, (_, until))| now < *until && Some(**player) != without);
        counted.fold((self.streams, self.rate), |(streams, sum), (_, (rate, _))| (streams + 1, sum + rate))
    }
}

fn fits(whose: &Whose, limits: Limits, (streams, used): (usize, u64), rate: u64) -> Result<(), OverLimit> {
    let of = match whose {
        Whose::User(_) => "user",
        Whose::Title(_) => "title",
    };
    if let Some(max) = limits.streams
        && streams >= max as usize
    {
        return Err(OverLimit::Streams { of, max });
    }
    match limits.bits_per_s.map(BitRate) {
        Some(max) if used.saturating_add(rate) > max.0 => {
            Err(OverLimit::Rate { of, used: BitRate(used), max, more: BitRate(rate) })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "viewers_tests.rs"]
mod tests;
