//! Connections by their two ends: an open-addressed table of fixed capacity.
//!
//! A place holds 8 bytes, the number of a connection and 32 bits of the hash; the ends themselves lie in an array by number, 40 bytes
//! each, so that a search reads one line of places and one pair of ends, and a connection need not store its ends again. Places are
//! found by a keyed hash, since peers choose addresses and ports. Removing shifts what follows back: no marks stay behind that
//! searches would have to pass.

use millrace_core::prefetch::prefetch;

use crate::keyed::HashKey;
use crate::wire::FlowKey;

/// A place without a connection. Numbers stay below it.
const FREE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct HashSlot {
    hash: u32,
    number: u32,
}

/// At most seven places in eight are taken.
const fn places_for(capacity: u32) -> usize {
    let places = (capacity as u64 * 8).div_ceil(7).next_power_of_two() as usize;
    if places < 2 { 2 } else { places }
}

/// Numbers of connections by their ends.
#[derive(Debug)]
pub struct FlowTable {
    key: HashKey,
    /// A power of two of them; at most seven in eight are taken.
    places: Box<[HashSlot]>,
    /// By number; [`FlowKey::NONE`] where there is no connection of this number.
    flows: Box<[FlowKey]>,
    len: u32,
}

impl FlowTable {
    /// For connections numbered from 0 to below `capacity` (at most 2^31).
    pub fn new(key: HashKey, capacity: u32) -> Self {
        let capacity = capacity.min(1 << 31);
        Self {
            key,
            places: vec![HashSlot { hash: 0, number: FREE }; places_for(capacity)].into(),
            flows: vec![FlowKey::NONE; capacity as usize].into(),
            len: 0,
        }
    }

    /// Returns the bytes of a table for `capacity` connections.
    pub const fn bytes(capacity: u32) -> usize {
        places_for(capacity) * size_of::<HashSlot>() + capacity as usize * size_of::<FlowKey>()
    }

    /// How many connections are in it.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether none is.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the search for `flow` begins: to be worked out for several segments before the first of them is looked up.
    #[inline]
    pub fn hash(&self, flow: &FlowKey) -> u32 {
        let [a, local, b, remote, rest] = *flow.words();
        // Words that are the same in all flows of IPv4 need not be mixed in; the number of words is
        // part of the hash.
        let hash =
            if a | b == 0 { self.key.fast(&[local, remote, rest]) } else { self.key.fast(flow.words()) };
        hash as u32
    }

    /// Asks for the memory that [`FlowTable::find_hashed`] will read first.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        if let Some(place) = self.places.get(self.home(hash)) {
            prefetch(place);
        }
    }

    /// The number of a connection whose hash is `hash`: as a rule the one that [`FlowTable::find_hashed`]
    /// will find, whose ends this does not look at but asks for.
    #[inline]
    pub fn likely(&self, hash: u32) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            let place = self.places[at];
            if place.number == FREE {
                return None;
            }
            if place.hash == hash {
                prefetch(&self.flows[place.number as usize]);
                return Some(place.number);
            }
            at = self.next(at);
        }
    }

    /// The number of the connection between the ends of `flow`.
    #[inline]
    pub fn find(&self, flow: &FlowKey) -> Option<u32> {
        self.find_hashed(self.hash(flow), flow)
    }

    /// The same with the hash worked out.
    #[inline]
    pub fn find_hashed(&self, hash: u32, flow: &FlowKey) -> Option<u32> {
        self.place_of(hash, flow).map(|at| self.places[at].number)
    }

    /// Whether `flow` are the ends of connection `number`.
    #[inline]
    pub fn is(&self, number: u32, flow: &FlowKey) -> bool {
        self.flows.get(number as usize).is_some_and(|found| found == flow)
    }

    /// The ends of connection `number`.
    #[inline]
    pub fn flow(&self, number: u32) -> Option<&FlowKey> {
        self.flows.get(number as usize).filter(|flow| **flow != FlowKey::NONE)
    }

    /// Puts a connection in. False, and nothing changes, if there is one between these ends, or one of this number, or the number is not
    /// below the capacity.
    pub fn insert(&mut self, flow: &FlowKey, number: u32) -> bool {
        let hash = self.hash(flow);
        let is_free = self.flows.get(number as usize).is_some_and(|flow| *flow == FlowKey::NONE);
        if !is_free || *flow == FlowKey::NONE || self.place_of(hash, flow).is_some() {
            return false;
        }
        let mut at = self.home(hash);
        while self.places[at].number != FREE {
            at = self.next(at);
        }
        self.places[at] = HashSlot { hash, number };
        self.flows[number as usize] = *flow;
        self.len += 1;
        true
    }

    /// Takes the connection between the ends of `flow` out; its number, if there was one.
    pub fn remove(&mut self, flow: &FlowKey) -> Option<u32> {
        let mut gap = self.place_of(self.hash(flow), flow)?;
        let number = self.places[gap].number;
        self.flows[number as usize] = FlowKey::NONE;
        self.len -= 1;
        // What follows without a gap moves up, unless that would be before its home.
        let mut at = gap;
        loop {
            at = self.next(at);
            let place = self.places[at];
            if place.number == FREE {
                break;
            }
            let mask = self.places.len() - 1;
            let from_home = at.wrapping_sub(self.home(place.hash)) & mask;
            if from_home >= at.wrapping_sub(gap) & mask {
                self.places[gap] = place;
                gap = at;
            }
        }
        self.places[gap].number = FREE;
        Some(number)
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.places.len() - 1)
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    /// A free place ends the search, and there is always one.
    #[inline]
    fn place_of(&self, hash: u32, flow: &FlowKey) -> Option<usize> {
        let mut at = self.home(hash);
        loop {
            let place = self.places[at];
            if place.number == FREE {
                return None;
            }
            if place.hash == hash && self.flows[place.number as usize] == *flow {
                return Some(at);
            }
            at = self.next(at);
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
