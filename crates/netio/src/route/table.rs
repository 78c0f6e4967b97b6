//! The loop's side: a table of next hops that is asked per packet, and the two rings that join it to the watch.
//!
//! A destination is requested once; from then on the watch follows it and reports changes. While
//! there is no path, one request at a time is outstanding, which the watch answers at most once a
//! second. Now and then the watch asks whether a destination is still used; if it was not looked up
//! since, its slot becomes free.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};

use super::hop::{Hop, HopId};
use crate::limits::{EVICTION_STEPS, HOP_RING_RECORDS, MAX_HOPS};

/// A message from the loop to the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// How is this destination reached? The slot's previous destination is forgotten.
    EgressPath { id: HopId, destination: IpAddr },
    /// Nothing is sent there any more.
    Forget { id: HopId },
}

/// A message from the watch to the loop. A message for a slot that was reassigned in the meantime
/// means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Update {
    /// The way is this from now on (the generation is the table's to give).
    Hop { id: HopId, hop: Hop },
    /// Does anybody still send there? Only "no" is answered.
    IsUsed { id: HopId },
}

/// The watch's ends of the rings.
#[derive(Debug)]
pub(super) struct TableEnd {
    pub(super) asks: Consumer<Ask>,
    pub(super) updates: Producer<Update>,
}

/// The loop's ends.
#[derive(Debug)]
struct LoopEnd {
    asks: Producer<Ask>,
    updates: Consumer<Update>,
    /// Rung after an ask, so that the watch may sleep.
    bell: Option<Arc<OwnedFd>>,
}

impl LoopEnd {
    /// Whether there was room.
    fn ask(&mut self, ask: Ask) -> bool {
        let is_said = self.asks.push(ask).is_ok();
        if let (true, Some(bell)) = (is_said, &self.bell) {
            // Full means that it rings already. Nothing else can go wrong with an event descriptor of ours.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
        is_said
    }
}

#[derive(Debug)]
struct HopSlot {
    hop: Hop,
    destination: IpAddr,
    tenancy: u32,
    is_taken: bool,
    /// A question is out.
    is_asked: bool,
    /// Looked at since the watch last asked. A cell, since looking must not need the table for oneself.
    is_used: Cell<bool>,
}

impl HopSlot {
    fn free() -> Self {
        Self {
            hop: Hop::UNUSABLE,
            destination: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            tenancy: 0,
            is_taken: false,
            is_asked: false,
            is_used: Cell::new(false),
        }
    }
}

/// Next hops of destinations. Owned by one device in the loop.
#[derive(Debug)]
pub struct HopTable {
    slots: Vec<HopSlot>,
    places: HashMap<IpAddr, u32>,
    free: Vec<u32>,
    hand: usize,
    end: Option<LoopEnd>,
}

impl HopTable {
    /// A table and the other ends of its rings.
    pub(super) fn joined(slots: usize, bell: Option<Arc<OwnedFd>>) -> (Self, TableEnd) {
        let (ask_end, asks) = RingBuffer::new(HOP_RING_RECORDS);
        let (updates, update_end) = RingBuffer::new(HOP_RING_RECORDS);
        let mut table = Self::alone(slots);
        table.end = Some(LoopEnd { asks: ask_end, updates: update_end, bell });
        (table, TableEnd { asks, updates })
    }

    fn alone(slots: usize) -> Self {
        Self {
            slots: (0..slots).map(|_| HopSlot::free()).collect(),
            // Twice the room: a map that is at most half full tidies itself up in place and never allocates again.
            places: HashMap::with_capacity(slots * 2),
            free: (0..slots as u32).rev().collect(),
            hand: 0,
            end: None,
        }
    }

    /// Creates a table without a watch: these destinations, and no others. For tests, and devices
    /// whose rings are in memory.
    pub fn fixed(hops: Vec<(IpAddr, Hop)>) -> Self {
        let mut table = Self::alone(hops.len());
        for (destination, hop) in hops {
            let destination = destination.to_canonical();
            let id = match table.places.get(&destination) {
                Some(&slot) => Some(table.id(slot)),
                None => table.take(destination, true),
            };
            if let Some(id) = id {
                table.set(id, hop);
            }
        }
        table
    }

    /// Creates a table that is not fed by the kernel: for tests in which hops change.
    pub fn fed() -> (Self, HopFeed) {
        let (table, end) = Self::joined(MAX_HOPS, None);
        (table, HopFeed { end, known: HashMap::new() })
    }

    fn id(&self, slot: u32) -> HopId {
        HopId { slot, tenancy: self.slots[slot as usize].tenancy }
    }

    /// The next hop of a destination. `None`: not known yet, or not reachable now; send by the kernel and look again with
    /// the next burst. The question goes out by itself, one at a time, and unreachable ones are tried at most once a second.
    pub fn hop(&mut self, destination: IpAddr) -> Option<HopId> {
        let destination = destination.to_canonical();
        let Some(&slot) = self.places.get(&destination) else {
            self.begin(destination, true);
            return None;
        };
        self.slots[slot as usize].is_used.set(true);
        self.ask_again(slot);
        self.slots[slot as usize].hop.usable.then(|| self.id(slot))
    }

    /// Sends the request for a destination that may be an invented address from any host. It takes
    /// only a free slot, which counts as unused, so that others may take it at any time. Returns
    /// whether there was one. The answer is available from [`known`](Self::known);
    /// [`forget_unused`](Self::forget_unused) frees the slot.
    pub fn ask_unused(&mut self, destination: IpAddr) -> bool {
        let destination = destination.to_canonical();
        match self.places.get(&destination) {
            Some(&slot) => self.ask_again(slot),
            None => self.begin(destination, false),
        }
        self.places.contains_key(&destination)
    }

    /// Frees the destination's slot, unless packets were sent there in the meantime other than by
    /// [`known`](Self::known).
    pub fn forget_unused(&mut self, destination: IpAddr) {
        let Some(&slot) = self.places.get(&destination.to_canonical()) else { return };
        if !self.slots[slot as usize].is_used.get() {
            self.give_up(slot);
        }
    }

    /// Puts the question again, if there is no way and none is out.
    fn ask_again(&mut self, slot: u32) {
        let id = self.id(slot);
        let entry = &mut self.slots[slot as usize];
        if let (false, false, Some(end)) = (entry.hop.usable, entry.is_asked, &mut self.end) {
            entry.is_asked = end.ask(Ask::EgressPath { id, destination: entry.destination });
        }
    }

    /// Returns the known hop of a destination, if frames may be sent there now. Sends no request,
    /// and does not count as a use of the slot.
    pub fn known(&self, destination: IpAddr) -> Option<&Hop> {
        let &slot = self.places.get(&destination.to_canonical())?;
        Some(&self.slots[slot as usize].hop).filter(|hop| hop.usable)
    }

    /// Returns the known hop now; [`Hop::UNUSABLE`] if the slot belongs to another destination by
    /// now. Ask [`Self::hop`] again when it is not usable.
    pub fn get(&self, id: HopId) -> &Hop {
        match self.slots.get(id.slot as usize) {
            Some(entry) if entry.tenancy == id.tenancy => {
                entry.is_used.set(true);
                &entry.hop
            }
            _ => &Hop::UNUSABLE,
        }
    }

    /// Applies the updates of the watch. If the watch is gone, no hop is usable any more.
    pub fn poll(&mut self) {
        while let Some(update) = self.end.as_mut().and_then(|end| end.updates.pop().ok()) {
            self.apply(update);
        }
        if self.end.as_ref().is_some_and(|end| end.updates.is_abandoned()) {
            // An update sent between the loop above and the end of the watch could only report that
            // there is no path.
            self.end = None;
            for slot in 0..self.slots.len() as u32 {
                self.set(self.id(slot), Hop::UNUSABLE);
            }
        }
    }

    fn apply(&mut self, update: Update) {
        let (Update::Hop { id, .. } | Update::IsUsed { id }) = update;
        let Some(entry) = self.slots.get_mut(id.slot as usize) else { return };
        if entry.tenancy != id.tenancy || !entry.is_taken {
            return;
        }
        match update {
            Update::Hop { hop, .. } => {
                entry.is_asked = false;
                self.set(id, hop);
            }
            Update::IsUsed { .. } => {
                if !entry.is_used.replace(false) {
                    // Without room for the answer it is asked again.
                    self.give_up(id.slot);
                }
            }
        }
    }

    fn set(&mut self, id: HopId, hop: Hop) {
        let now = &mut self.slots[id.slot as usize].hop;
        if !now.says_as(&hop) {
            *now = Hop { generation: now.generation.wrapping_add(1), ..hop };
        }
    }

    /// Frees the slot and notifies the watch. Does nothing if the ring has no room for the message.
    fn give_up(&mut self, slot: u32) {
        let id = self.id(slot);
        if self.end.as_mut().is_some_and(|end| end.ask(Ask::Forget { id })) {
            self.leave(slot);
            self.free.push(slot);
        }
    }

    /// Makes the slot ownerless from now on.
    fn leave(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        self.places.remove(&entry.destination);
        entry.is_taken = false;
        entry.tenancy = entry.tenancy.wrapping_add(1);
        self.set(self.id(slot), Hop::UNUSABLE);
    }

    /// A place for a destination that has none; `None` if all are in use, or none is free and it would not be used.
    fn take(&mut self, destination: IpAddr, is_used: bool) -> Option<HopId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if is_used => self.evict()?,
            None => return None,
        };
        let entry = &mut self.slots[slot as usize];
        (entry.destination, entry.is_taken, entry.is_asked) = (destination, true, false);
        entry.is_used.set(is_used);
        self.places.insert(destination, slot);
        Some(self.id(slot))
    }

    /// Takes a place from a destination that was not looked at since the watch last asked.
    fn evict(&mut self) -> Option<u32> {
        for _ in 0..self.slots.len().min(EVICTION_STEPS) {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !self.slots[slot].is_used.get() {
                self.leave(slot as u32);
                return Some(slot as u32);
            }
        }
        None
    }

    fn begin(&mut self, destination: IpAddr, is_used: bool) {
        // A full ring is not worth a place: the next burst asks again.
        if self.end.as_ref().is_none_or(|end| end.asks.is_full()) {
            return;
        }
        if let (Some(id), Some(end)) = (self.take(destination, is_used), &mut self.end) {
            self.slots[id.slot as usize].is_asked = end.ask(Ask::EgressPath { id, destination });
        }
    }
}

/// What answers a table in place of the kernel: see [`HopTable::fed`].
#[derive(Debug)]
pub struct HopFeed {
    end: TableEnd,
    known: HashMap<IpAddr, HopId>,
}

impl HopFeed {
    /// Destinations that the table has asked for since the last call.
    pub fn asked(&mut self) -> Vec<IpAddr> {
        let mut asked = Vec::new();
        while let Ok(ask) = self.end.asks.pop() {
            match ask {
                Ask::EgressPath { id, destination } => {
                    self.known.retain(|_, other| other.slot != id.slot);
                    self.known.insert(destination, id);
                    asked.push(destination);
                }
                Ask::Forget { id } => self.known.retain(|_, other| *other != id),
            }
        }
        asked
    }

    /// Reports a destination's hop from now on. Returns whether the table has requested it and
    /// there was room.
    pub fn say(&mut self, destination: IpAddr, hop: Hop) -> bool {
        self.known
            .get(&destination.to_canonical())
            .is_some_and(|&id| self.end.updates.push(Update::Hop { id, hop }).is_ok())
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
