//! The table of neighbours: the knowledge of each, and the order of eviction.
//!
//! ```text
//!            used                answered
//!   Empty ─────────► Incomplete ──────────► Reachable ◄── answered, or TCP has moved on
//!     ▲               │ no answer              │ used after 30 s, or contradicted
//!     └─── Failed ◄───┘                        ▼
//!                     ▲ no answer  Probe ◄── Delay ◄── used ── Stale ◄── heard of
//! ```
//!
//! The table is made of sets of a few places, found by a keyed hash, so no attacker can choose
//! which addresses compete. Gateways have places of their own behind the sets.

use millrace_core::time::Instant;
use millrace_core::wheel::Wheel;

use super::addresses::{AddressKey, NO_KEY};
use super::frames::FrameSlot;
use super::link::Mac;
use crate::keyed::HashKey;
use crate::limits::{
    CONTRADICTED_TRIES, DELAY_PROBE_NS, NEIGHBOUR_IDLE_NS, NEIGHBOUR_WAYS, REACHABLE_NS, SOLICIT_RETRY_NS,
    SOLICIT_TRIES, UNREACHABLE_NS,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReachabilityState {
    /// Nothing is known, and no host was asked.
    #[default]
    Empty,
    /// Everybody was asked.
    Incomplete,
    /// No host answered.
    Failed,
    /// It answered a short while ago.
    Reachable,
    /// It is known from its own messages.
    Stale,
    /// It may have gone; TCP has a while to prove the opposite.
    Delay,
    /// It was asked whether it is still there.
    Probe,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Nothing has to be looked at before this moment: [`ReachabilityState::Reachable`].
    fresh_until: Instant,
    /// When something was last sent to it; 0: never.
    used: Instant,
    mac: Mac,
    state: ReachabilityState,
    tries: u8,
    /// Another Ethernet address has been claimed for it.
    is_contradicted: bool,
    /// The segment that waits for it.
    waiting: Option<FrameSlot>,
}

/// Action open to a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Send there.
    Send(Mac),
    /// Wait; a request must be sent first.
    Ask,
    /// Wait; everybody was asked.
    Wait,
    /// It does not answer.
    Unreachable,
}

/// Action due at a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fired {
    /// Ask everybody.
    Ask(u32),
    /// Ask the neighbour itself.
    Probe(u32, Mac),
    /// No host has answered.
    Failed(u32),
}

/// Kind of information received about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// An answer to this host.
    Answer,
    /// It was sent without a request, or is the sender of a request.
    Told,
}

/// Consequence of this information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing.
    Nothing,
    /// It is found: what waits for it may go.
    Found(Mac),
    /// It is known with another address, which has to be asked first.
    Contradicted,
}

/// All neighbours of an interface.
pub(super) struct Neighbours {
    hash: HashKey,
    sets: usize,
    keys: Box<[AddressKey]>,
    cells: Box<[Cell]>,
    timers: Wheel,
}

impl Neighbours {
    /// `places` neighbours, rounded up to a power of two, and the gateways.
    pub(super) fn new(hash: HashKey, places: u32, gateways: [AddressKey; 2]) -> Self {
        let sets = match places {
            0 => 0,
            places => (places as usize).div_ceil(NEIGHBOUR_WAYS).next_power_of_two(),
        };
        let places = sets * NEIGHBOUR_WAYS;
        let mut keys = vec![NO_KEY; places + gateways.len()];
        keys[places..].copy_from_slice(&gateways);
        let cells = vec![Cell::default(); keys.len()];
        Self { hash, sets, timers: Wheel::new(keys.len()), keys: keys.into(), cells: cells.into() }
    }

    /// The gateway of a family.
    pub(super) fn gateway(&self, is_v4: bool) -> u32 {
        (self.sets * NEIGHBOUR_WAYS + usize::from(!is_v4)) as u32
    }

    /// Whether it has a place of its own.
    pub(super) fn is_gateway(&self, index: u32) -> bool {
        index as usize >= self.sets * NEIGHBOUR_WAYS
    }

    /// The address of a neighbour.
    pub(super) fn key(&self, index: u32) -> AddressKey {
        self.keys[index as usize]
    }

    /// The first place of the set that a neighbour belongs to.
    fn set(&self, key: AddressKey) -> usize {
        (self.hash.fast(&key) as usize & self.sets.wrapping_sub(1)) * NEIGHBOUR_WAYS
    }

    /// Where a neighbour is in the table.
    pub(super) fn find(&self, key: AddressKey) -> Option<u32> {
        if key == NO_KEY {
            return None;
        }
        let gateways = self.sets * NEIGHBOUR_WAYS;
        let set = if self.sets == 0 { 0..0 } else { self.set(key)..self.set(key) + NEIGHBOUR_WAYS };
        (gateways..self.keys.len()).chain(set).find(|&at| self.keys[at] == key).map(|at| at as u32)
    }

    /// Puts a neighbour in that is not there. `is_wanted`: something will be sent to it; otherwise
    /// only a message about it was received. Returns its place, and the segment that waited for the
    /// previous neighbour there. `None`: there is no room.
    pub(super) fn insert(
        &mut self,
        key: AddressKey,
        is_wanted: bool,
        now: Instant,
    ) -> Option<(u32, Option<FrameSlot>)> {
        if self.sets == 0 || key == NO_KEY {
            return None;
        }
        let set = self.set(key);
        let rank =
            |at: usize| self.cells[at].rank(is_wanted, now).map(|rank| (rank, self.cells[at].used, at));
        let (_, _, at) = (set..set + NEIGHBOUR_WAYS).filter_map(rank).min()?;
        let evicted = std::mem::take(&mut self.cells[at]);
        self.timers.cancel(at as u32);
        self.keys[at] = key;
        Some((at as u32, evicted.waiting))
    }

    /// Prepares to send to a neighbour, for a connection whose data moved `moved_ns` ago.
    #[inline]
    pub(super) fn use_at(&mut self, index: u32, now: Instant, moved_ns: u64) -> Use {
        let cell = &mut self.cells[index as usize];
        cell.used = now;
        if now < cell.fresh_until { Use::Send(cell.mac) } else { self.use_aged(index, now, moved_ns) }
    }

    #[cold]
    fn use_aged(&mut self, index: u32, now: Instant, moved_ns: u64) -> Use {
        if moved_ns < REACHABLE_NS {
            self.confirm(index, Instant(now.0.saturating_sub(moved_ns)));
        }
        let cell = &mut self.cells[index as usize];
        match cell.state {
            ReachabilityState::Empty => {
                (cell.state, cell.tries) = (ReachabilityState::Incomplete, 1);
                self.timers.set(index, now.plus_ns(SOLICIT_RETRY_NS), now);
                Use::Ask
            }
            ReachabilityState::Incomplete => Use::Wait,
            ReachabilityState::Failed => Use::Unreachable,
            ReachabilityState::Delay | ReachabilityState::Probe => Use::Send(cell.mac),
            ReachabilityState::Reachable if now < cell.fresh_until => Use::Send(cell.mac),
            ReachabilityState::Reachable | ReachabilityState::Stale => {
                cell.state = ReachabilityState::Delay;
                self.timers.set(index, now.plus_ns(DELAY_PROBE_NS), now);
                Use::Send(cell.mac)
            }
        }
    }

    /// The segment that waits for a neighbour, to be replaced.
    pub(super) fn waiting(&mut self, index: u32) -> &mut Option<FrameSlot> {
        &mut self.cells[index as usize].waiting
    }

    /// Takes in a message about a neighbour: its Ethernet address, if the message had it.
    pub(super) fn heard(&mut self, index: u32, mac: Option<Mac>, claim: Claim, now: Instant) -> Heard {
        let cell = &mut self.cells[index as usize];
        match (cell.state, mac) {
            (ReachabilityState::Empty | ReachabilityState::Incomplete | ReachabilityState::Failed, None) => {
                Heard::Nothing
            }
            (ReachabilityState::Incomplete, Some(mac)) if claim == Claim::Answer => {
                cell.mac = mac;
                self.reach(index, now);
                Heard::Found(mac)
            }
            (
                ReachabilityState::Empty | ReachabilityState::Incomplete | ReachabilityState::Failed,
                Some(mac),
            ) => {
                (cell.mac, cell.state) = (mac, ReachabilityState::Stale);
                self.timers.cancel(index);
                // A waiting segment is a use: the neighbour must be asked whether it is still
                // there.
                if cell.waiting.is_some() {
                    cell.state = ReachabilityState::Delay;
                    self.timers.set(index, now.plus_ns(DELAY_PROBE_NS), now);
                }
                Heard::Found(mac)
            }
            (_, Some(mac)) if mac != cell.mac => {
                self.contradict(index, now);
                Heard::Contradicted
            }
            (ReachabilityState::Probe, _) if claim == Claim::Answer => {
                self.reach(index, now);
                Heard::Nothing
            }
            _ => Heard::Nothing,
        }
    }

    //= RFC 4861 section 7.2.5
    //= type=exception
    //= reason=any station of the link could take over any address at once: the known one is asked first, and only if it is silent everybody is
    //# The link-layer address in the Target Link-Layer Address option
    //# MUST be inserted in the cache (if one is supplied and differs
    //# from the already recorded address).
    /// Another Ethernet address is claimed for a neighbour: it is asked at once, but not more often
    /// than once in a retry.
    fn contradict(&mut self, index: u32, now: Instant) {
        let cell = &mut self.cells[index as usize];
        if cell.is_contradicted || cell.state == ReachabilityState::Probe {
            cell.is_contradicted = true;
            return;
        }
        let confirmed = Instant(cell.fresh_until.0.saturating_sub(REACHABLE_NS));
        (cell.state, cell.is_contradicted, cell.fresh_until) = (ReachabilityState::Delay, true, Instant(0));
        let at = now.max(confirmed.plus_ns(SOLICIT_RETRY_NS));
        self.timers.set(index, at, now);
    }

    //= RFC 4861 section 7.3.1
    //# If
    //# packets are reaching the peer, they must also be reaching the
    //# sender's next-hop neighbor; thus, "forward progress" is a
    //# confirmation that the next-hop neighbor is reachable.
    /// Packets had reached a neighbour at this moment, as data of a connection through it shows.
    /// This does not refute a claim of another Ethernet address for it since: it is asked all the
    /// same.
    fn confirm(&mut self, index: u32, at: Instant) {
        let cell = &self.cells[index as usize];
        if matches!(
            cell.state,
            ReachabilityState::Reachable
                | ReachabilityState::Stale
                | ReachabilityState::Delay
                | ReachabilityState::Probe
        ) && !cell.is_contradicted
        {
            self.reach(index, at);
        }
    }

    fn reach(&mut self, index: u32, now: Instant) {
        let cell = &mut self.cells[index as usize];
        (cell.state, cell.tries, cell.is_contradicted) = (ReachabilityState::Reachable, 0, false);
        cell.fresh_until = now.plus_ns(REACHABLE_NS);
        self.timers.cancel(index);
    }

    /// When [`Neighbours::pop_fired`] has something to do next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.next_due()
    }

    /// Returns the actions due at timers, one at a time.
    pub(super) fn pop_fired(&mut self, now: Instant) -> Option<Fired> {
        while let Some(index) = self.timers.pop_due(now) {
            let fired = self.fired(index, now);
            if fired.is_some() {
                return fired;
            }
        }
        None
    }

    fn fired(&mut self, index: u32, now: Instant) -> Option<Fired> {
        let cell = &mut self.cells[index as usize];
        let retry_at = now.plus_ns(SOLICIT_RETRY_NS);
        let probes = if cell.is_contradicted { CONTRADICTED_TRIES } else { SOLICIT_TRIES };
        let (state, tries, due, fired) = match cell.state {
            ReachabilityState::Incomplete if cell.tries < SOLICIT_TRIES => {
                (ReachabilityState::Incomplete, cell.tries + 1, retry_at, Fired::Ask(index))
            }
            ReachabilityState::Incomplete => {
                (ReachabilityState::Failed, 0, now.plus_ns(UNREACHABLE_NS), Fired::Failed(index))
            }
            ReachabilityState::Delay => {
                (ReachabilityState::Probe, 1, retry_at, Fired::Probe(index, cell.mac))
            }
            ReachabilityState::Probe if cell.tries < probes => {
                (ReachabilityState::Probe, cell.tries + 1, retry_at, Fired::Probe(index, cell.mac))
            }
            ReachabilityState::Probe => {
                cell.is_contradicted = false;
                (ReachabilityState::Incomplete, 1, retry_at, Fired::Ask(index))
            }
            ReachabilityState::Failed => {
                // It keeps its place until another neighbour needs it.
                *cell = Cell::default();
                return None;
            }
            ReachabilityState::Empty | ReachabilityState::Reachable | ReachabilityState::Stale => {
                return None;
            }
        };
        (cell.state, cell.tries) = (state, tries);
        self.timers.set(index, due, now);
        Some(fired)
    }

    #[cfg(test)]
    pub(super) fn state(&self, index: u32) -> ReachabilityState {
        self.cells[index as usize].state
    }
}

impl Cell {
    /// How readily it makes room for another one; lower ones first. `None`: not at all.
    fn rank(&self, is_wanted: bool, now: Instant) -> Option<u8> {
        let is_heard_only = self.used == Instant(0);
        match self.state {
            ReachabilityState::Empty => Some(0),
            ReachabilityState::Stale if is_heard_only => Some(1),
            _ if !is_wanted => None,
            ReachabilityState::Failed => Some(2),
            ReachabilityState::Incomplete => Some(3),
            _ => (now.ns_since(self.used) >= NEIGHBOUR_IDLE_NS).then_some(4),
        }
    }
}

#[cfg(test)]
#[path = "neighbours_tests.rs"]
mod tests;
