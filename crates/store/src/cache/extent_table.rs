//! The content of the arena: the data in each extent, the free extents, and the extents that may
//! go.

use std::collections::HashMap;
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::pool::{ExtentArena, ExtentContent, Fill, Lease};

use super::evict::{Candidate, Freshness, Victims};
use super::plan::ExtentKey;
use super::playheads::{NextUse, Ns};
use super::residents::ResidentExtents;
use super::titles::TitleTable;
use crate::limits::CACHE_SPACE_RETRY_NS;

#[derive(Clone, Copy, Debug)]
enum ExtentSlot {
    /// Free, or being filled by whoever took it.
    Empty,
    /// Filled.
    Held {
        content: ExtentContent,
        /// Media time of its first packet.
        start_ns: Ns,
        /// Stamp of its last use.
        used: u64,
    },
    /// Filled with data that may no longer be leased (its title is closed, or it has holes and by
    /// now the extent is here, or available, without holes), but still leased.
    Orphan,
}

/// The purpose of an extent, which determines the extents that may go for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brings {
    /// A stream waits for it and needs it soon: anything may go.
    Demand,
    /// It is needed at this moment: only extents that are needed later may go.
    Ahead(Ns),
    /// A playhead will need it some time later: only extents that no playhead will read may go.
    /// Reading early takes room early, and any extent evicted for it must be read once more: there
    /// is no need yet.
    FarAhead,
}

impl Brings {
    fn displaces(self, next_use: NextUse) -> bool {
        match self {
            Self::Demand => true,
            Self::Ahead(need) => next_use > NextUse::At(need),
            Self::FarAhead => next_use == NextUse::Never,
        }
    }
}

/// The arena's extents and their content.
pub(super) struct ExtentTable {
    arena: Arc<ExtentArena>,
    slots: Box<[ExtentSlot]>,
    free: Vec<u32>,
    orphans: Vec<u32>,
    by_key: HashMap<ExtentKey, u32>,
    /// The extents without holes, for the engines.
    residents: Arc<ResidentExtents>,
    victims: Victims,
    stamp: u64,
    evictions: usize,
}

impl ExtentTable {
    /// Makes an empty extent table. The arena belongs to it: no other code fills or reclaims its
    /// extents.
    pub(super) fn new(residents: Arc<ResidentExtents>) -> Self {
        let arena = Arc::clone(residents.arena());
        let extents = arena.extents();
        Self {
            slots: vec![ExtentSlot::Empty; extents as usize].into(),
            free: (0..extents).rev().collect(),
            orphans: Vec::new(),
            by_key: HashMap::with_capacity(extents as usize),
            residents,
            victims: Victims::new(extents as usize),
            stamp: 0,
            evictions: 0,
            arena,
        }
    }

    /// Where its extents lie.
    pub(super) fn arena(&self) -> &ExtentArena {
        &self.arena
    }

    /// Extents that are free.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Extents that can be lent.
    pub(super) fn held(&self) -> usize {
        self.by_key.len()
    }

    /// Returns the number of extents evicted up to now.
    pub(super) fn evictions(&self) -> usize {
        self.evictions
    }

    /// Returns the number of extents that may no longer be leased and are still leased.
    pub(super) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Returns whether this extent is here, either complete enough for a viewer that can spare
    /// `spare` packets of a codeword, or as complete as it can be made.
    pub(super) fn holds(&self, key: ExtentKey, spare: u8) -> bool {
        self.held_spare(key).is_some_and(|held| does(held, spare))
    }

    fn held_spare(&self, key: ExtentKey) -> Option<u8> {
        match self.slots[*self.by_key.get(&key)? as usize] {
            ExtentSlot::Held { content, .. } => Some(content.spare),
            _ => None,
        }
    }

    /// Leases an extent to a viewer that can spare `spare` packets of a codeword, if it is here and
    /// this complete.
    pub(super) fn lend(&mut self, key: ExtentKey, spare: u8) -> Option<Lease> {
        let slot = *self.by_key.get(&key)?;
        let ExtentSlot::Held { content, used, .. } = &mut self.slots[slot as usize] else { return None };
        if !does(content.spare, spare) {
            return None;
        }
        self.stamp += 1;
        *used = self.stamp;
        self.arena.lend(slot, *content)
    }

    /// Notes the use of an extent that an engine leased without asking.
    pub(super) fn note_use(&mut self, key: ExtentKey) {
        let Some(&slot) = self.by_key.get(&key) else { return };
        if let ExtentSlot::Held { used, .. } = &mut self.slots[slot as usize] {
            self.stamp += 1;
            *used = self.stamp;
        }
    }

    /// Makes the data of a read available for leases, in place of the same extent with more holes.
    /// Damaged data may be leased to all viewers, so it replaces anything that may not, and data
    /// read later replaces data read earlier.
    pub(super) fn put(&mut self, fill: Fill, content: ExtentContent, start_ns: Ns) {
        let key = ExtentKey { title: content.title, extent: content.number };
        let damaged = ExtentContent::DAMAGED;
        let keeps = |held| held == 0 || (held <= content.spare && content.spare != damaged);
        if self.held_spare(key).is_some_and(keeps) {
            return self.give_back(fill);
        }
        let slot = fill.extent();
        fill.publish();
        self.stamp += 1;
        self.slots[slot as usize] = ExtentSlot::Held { content, start_ns, used: self.stamp };
        self.residents.put(slot, content);
        if let Some(older) = self.by_key.insert(key, slot) {
            self.retire(older);
        }
    }

    /// Retires a slot whose content must not be leased any more, or that was taken for a title that
    /// is fed and is not in the table: it is free as soon as no lease remains.
    pub(super) fn retire(&mut self, slot: u32) {
        if self.arena.reclaim(slot) {
            self.slots[slot as usize] = ExtentSlot::Empty;
            self.free.push(slot);
        } else {
            self.slots[slot as usize] = ExtentSlot::Orphan;
            self.orphans.push(slot);
        }
    }

    /// Takes back an extent that was taken but not filled.
    pub(super) fn give_back(&mut self, fill: Fill) {
        let slot = fill.extent();
        drop(fill);
        self.free.push(slot);
    }

    /// An extent to fill: a free one, or the one whose next use is latest, if that may go for this. `None`: there is
    /// no room now.
    pub(super) fn take(&mut self, now: Ns, brings: Brings, titles: &mut TitleTable) -> Option<Fill> {
        loop {
            let slot = match self.free.pop() {
                Some(slot) => slot,
                None => self.evict(now, brings, titles)?,
            };
            if let Some(fill) = self.arena.fill(slot) {
                return Some(fill);
            }
            // Other code writes into our arena: this extent is not ours, do without it.
        }
    }

    /// Something may have been given back: look again even if nothing could go a moment ago.
    pub(super) fn retry(&mut self) {
        self.victims.retry();
    }

    fn evict(&mut self, now: Ns, brings: Brings, titles: &mut TitleTable) -> Option<u32> {
        loop {
            match self.victims.freshness(now, CACHE_SPACE_RETRY_NS as Ns) {
                Freshness::Good => {}
                Freshness::Stale => self.choose(now, titles),
                Freshness::Nothing => return None,
            }
            let victim = self.victims.peek()?;
            let next_use = match self.slots[victim.slot as usize] {
                ExtentSlot::Held { content, start_ns, used } if used == victim.used => {
                    next_use(titles, &content, start_ns)
                }
                _ => {
                    self.victims.pop();
                    continue;
                }
            };
            if next_use < self.victims.cut() {
                self.victims.pop(); // somebody has turned up who needs it sooner than what was left out
            } else if !brings.displaces(next_use) {
                return None;
            } else {
                self.victims.pop();
                if self.drop_held(victim.slot) {
                    self.evictions += 1;
                    return Some(victim.slot);
                }
            }
        }
    }

    fn choose(&mut self, now: Ns, titles: &mut TitleTable) {
        let heads: usize = titles.iter_mut().map(|title| title.heads.freeze()).sum();
        let arena = &self.arena;
        let held = self.slots.iter().enumerate().filter_map(|(slot, held)| match held {
            ExtentSlot::Held { content, start_ns, used } if arena.leases(slot as u32) == 0 => {
                let next_use = next_use(titles, content, *start_ns);
                Some(Candidate { slot: slot as u32, next_use, used: *used })
            }
            _ => None,
        });
        self.victims.choose(now, self.slots.len() + heads, held);
    }

    /// Frees a held slot in the arena and in the tables; `false`: it is lent out.
    fn drop_held(&mut self, slot: u32) -> bool {
        let ExtentSlot::Held { content, .. } = self.slots[slot as usize] else { return false };
        let key = ExtentKey { title: content.title, extent: content.number };
        // First of all: otherwise an engine could lease the slot after its next fill.
        self.residents.remove(key);
        if !self.arena.reclaim(slot) {
            self.residents.put(slot, content);
            return false;
        }
        self.by_key.remove(&key);
        self.slots[slot as usize] = ExtentSlot::Empty;
        true
    }

    /// Drops all extents of a title; an extent that is still leased goes when it comes back
    /// ([`ExtentTable::sweep`]).
    pub(super) fn drop_title(&mut self, title: TitleRef) {
        self.drop_those(|content| content.title == title);
    }

    /// The same for all extents with holes: the missing data is available now.
    pub(super) fn drop_holes(&mut self) {
        self.drop_those(|content| content.spare > 0);
    }

    /// Drops an extent if it is damaged: it may have been repaired.
    pub(super) fn drop_damaged(&mut self, key: ExtentKey) {
        if self.held_spare(key) == Some(ExtentContent::DAMAGED)
            && let Some(slot) = self.by_key.remove(&key)
        {
            self.residents.remove(key);
            self.retire(slot);
        }
    }

    fn drop_those(&mut self, are: impl Fn(&ExtentContent) -> bool) {
        for slot in 0..self.slots.len() as u32 {
            if let ExtentSlot::Held { content, .. } = self.slots[slot as usize]
                && are(&content)
            {
                let key = ExtentKey { title: content.title, extent: content.number };
                self.by_key.remove(&key);
                self.residents.remove(key);
                self.retire(slot);
            }
        }
    }

    /// Frees the extents that may no longer be leased and have come back.
    pub(super) fn sweep(&mut self) {
        let (arena, slots, free) = (&self.arena, &mut self.slots, &mut self.free);
        self.orphans.retain(|&slot| {
            let back = arena.reclaim(slot);
            if back {
                slots[slot as usize] = ExtentSlot::Empty;
                free.push(slot);
            }
            !back
        });
    }
}

/// Returns whether data read with `held` holes suffices for a viewer that can spare `spare` packets
/// of a codeword.
fn does(held: u8, spare: u8) -> bool {
    held <= spare || held == ExtentContent::DAMAGED
}

fn next_use(titles: &mut TitleTable, content: &ExtentContent, start_ns: Ns) -> NextUse {
    titles.get_mut(content.title).map_or(NextUse::Never, |t| t.heads.next_use(content.number, start_ns))
}

#[cfg(test)]
#[path = "extent_table_tests.rs"]
mod tests;
