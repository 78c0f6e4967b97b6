//! Damage beyond repair: how much of a title may be left out before its stream is ended, and which
//! titles' damage was already reported. Damaged records of packets that are sent anyway are only
//! reported.

use std::collections::{BTreeMap, HashMap, HashSet};

use millrace_core::ids::{TitleId, TitleRef};

use super::super::order::LeftOut;
use super::super::policy::ReadOrder;
use super::super::stats::Damage;
use super::flights::whereabouts;
use crate::limits::{DAMAGE_WINDOW_EXTENTS, MAX_DAMAGE_SAID};
use crate::member_set::MemberSet;

/// Damage of one title: packets that are left out, by extent.
#[derive(Default)]
struct Extents(BTreeMap<u32, u32>);

impl Extents {
    /// Packets left out of the extents of the window that ends with `extent`, as far as they were read.
    fn in_window(&self, extent: u32) -> u64 {
        let first = (extent + 1).saturating_sub(DAMAGE_WINDOW_EXTENTS);
        self.0.range(first..=extent).map(|(_, &packets)| u64::from(packets)).sum()
    }
}

/// The known damage.
pub(super) struct DamageBook {
    max_permille: u32,
    titles: HashMap<TitleRef, Extents>,
    /// Titles whose damage was reported: damaged packets, or damaged records of packets that are
    /// sent.
    said: HashSet<(TitleId, bool)>,
}

impl DamageBook {
    pub(super) fn new(max_permille: u32) -> Self {
        Self { max_permille, titles: HashMap::new(), said: HashSet::new() }
    }

    /// Records the packets left out of an extent. Returns whether the damage is tolerable: of the
    /// window's packets, at most the allowed share or a single one is damaged. A title shorter than
    /// the window is its own window.
    pub(super) fn note(&mut self, read: &ReadOrder, left_out: LeftOut) -> bool {
        let window = DAMAGE_WINDOW_EXTENTS.saturating_mul(read.title.layout().packets_per_extent());
        let window = u64::from(window.min(read.title.source().packets()));
        let extents = self.titles.entry(read.key.title).or_default();
        extents.0.insert(read.key.extent, left_out.packets);
        let damaged = extents.in_window(read.key.extent);
        let allowed = window * u64::from(self.max_permille) / 1000;
        self.max_permille > 0 && damaged <= allowed.max(1)
    }

    /// Nothing is missing of an extent, or nothing that cannot be repaired.
    pub(super) fn note_whole(&mut self, read: &ReadOrder) {
        // Nearly always there is nothing here.
        let Some(extents) = self.titles.get_mut(&read.key.title) else { return };
        extents.0.remove(&read.key.extent);
        if extents.0.is_empty() {
            self.titles.remove(&read.key.title);
            self.said.remove(&(read.title.source().id(), false));
        }
    }

    /// Returns the damage to report; `None` if similar damage of the title was reported before.
    /// `are_sent`: only the records of these packets are damaged.
    pub(super) fn say(
        &mut self,
        read: &ReadOrder,
        (packets, are_sent): (LeftOut, bool),
        at_fault: MemberSet,
    ) -> Option<Damage> {
        let id = read.title.source().id();
        if self.said.len() >= MAX_DAMAGE_SAID {
            self.said.clear();
        }
        if !self.said.insert((id, are_sent)) {
            return None;
        }
        let (path, members) = whereabouts(&read.title, at_fault);
        let packet_bytes = read.title.layout().packet_bytes() as u64;
        let geometry = read.title.geometry(read.key.extent);
        let end = geometry.map_or(u64::MAX, |geometry| geometry.data.end);
        let LeftOut { first, last, packets } = packets;
        let bytes = u64::from(first) * packet_bytes..((u64::from(last) + 1) * packet_bytes).min(end);
        let (title, span) = (read.key.title, first..last + 1);
        Some(Damage { title, id, path, span, packets, are_sent, bytes, members })
    }

    /// A title was closed.
    pub(super) fn forget_title(&mut self, title: TitleRef) {
        self.titles.remove(&title);
    }
}
