//! The open titles. A reference to a closed title never leads to another one: it carries the generation of its place.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::limits::MAX_OPEN_TITLES;

use super::playheads::Playheads;
use super::source::OpenTitle;

/// Low bits of a [`TitleRef`]: the place in the table. The others: how often that place was used before.
const PLACE_BITS: u32 = MAX_OPEN_TITLES.ilog2();
const LAST_GENERATION: u32 = u32::MAX >> PLACE_BITS;
const _: () = assert!(MAX_OPEN_TITLES.is_power_of_two());

/// A title, its viewers, and how often it was opened.
pub(super) struct Title {
    pub(super) open: Arc<OpenTitle>,
    pub(super) heads: Playheads,
    opened: u32,
}

impl Title {
    /// Whether it is the same in the same layout.
    fn is(&self, open: &OpenTitle) -> bool {
        let (a, b) = (self.open.source(), open.source());
        (a.id(), a.track(), self.open.layout()) == (b.id(), b.track(), open.layout())
    }
}

#[derive(Default)]
struct TitleSlot {
    generation: u32,
    title: Option<Title>,
}

/// The open titles, at most [`MAX_OPEN_TITLES`].
#[derive(Default)]
pub(super) struct TitleTable {
    places: Vec<TitleSlot>,
    /// Places that a title has left, the longest free first.
    free: VecDeque<u32>,
    open: usize,
}

impl TitleTable {
    /// Adds a title, or opens it once more if it is open in the same layout. `None`: the table is full.
    pub(super) fn add(&mut self, open: OpenTitle) -> Option<TitleRef> {
        for (place, entry) in self.places.iter_mut().enumerate() {
            if let Some(title) = entry.title.as_mut().filter(|title| title.is(&open)) {
                title.opened += 1;
                return Some(TitleRef(entry.generation << PLACE_BITS | place as u32));
            }
        }
        let place = match self.free.pop_front() {
            Some(place) => place,
            None if self.places.len() < MAX_OPEN_TITLES => {
                self.places.push(TitleSlot::default());
                self.places.len() as u32 - 1
            }
            None => return None,
        };
        self.open += 1;
        let entry = &mut self.places[place as usize];
        entry.title = Some(Title { open: Arc::new(open), heads: Playheads::default(), opened: 1 });
        Some(TitleRef(entry.generation << PLACE_BITS | place))
    }

    /// Whether a title is open in this layout.
    pub(super) fn has(&self, open: &OpenTitle) -> bool {
        self.places.iter().flat_map(|place| &place.title).any(|title| title.is(open))
    }

    /// How often a title is open.
    pub(super) fn opened(&self, title: TitleRef) -> u32 {
        self.get(title).map_or(0, |title| title.opened)
    }

    /// Closes a title once; returns it if that was the last time.
    pub(super) fn remove(&mut self, title: TitleRef) -> Option<Title> {
        let open = self.get_mut(title)?;
        open.opened -= 1;
        if open.opened > 0 {
            return None;
        }
        self.open -= 1;
        let place = title.0 & (MAX_OPEN_TITLES as u32 - 1);
        let entry = &mut self.places[place as usize];
        // A place whose generations are used up is not used again: after 2^20 titles in it.
        if entry.generation < LAST_GENERATION {
            entry.generation += 1;
            self.free.push_back(place);
        }
        entry.title.take()
    }

    pub(super) fn get(&self, title: TitleRef) -> Option<&Title> {
        let entry = self.places.get(title.0 as usize % MAX_OPEN_TITLES)?;
        entry.title.as_ref().filter(|_| entry.generation == title.0 >> PLACE_BITS)
    }

    pub(super) fn get_mut(&mut self, title: TitleRef) -> Option<&mut Title> {
        let entry = self.places.get_mut(title.0 as usize % MAX_OPEN_TITLES)?;
        entry.title.as_mut().filter(|_| entry.generation == title.0 >> PLACE_BITS)
    }

    /// All titles.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Title> {
        self.places.iter_mut().filter_map(|place| place.title.as_mut())
    }

    /// Titles that are open.
    pub(super) fn len(&self) -> usize {
        self.open
    }
}

#[cfg(test)]
#[path = "titles_tests.rs"]
mod tests;
