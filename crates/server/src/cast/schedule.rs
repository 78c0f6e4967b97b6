//! The items of a channel from the present one on, with their times, as far as their lengths are known.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::items::{CastItem, ItemList};
use crate::limits::cast::{GUIDE_AHEAD_MS, MAX_GUIDE_PROGRAMMES};

/// The items of a channel, and the one that plays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelSchedule {
    /// Where the items of each round come from.
    list: Arc<ItemList>,
    /// The items of this round.
    items: Arc<[CastItem]>,
    playing: Option<PlayingItem>,
    /// Lengths in milliseconds of items that were played, by address.
    lengths: Arc<BTreeMap<String, u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlayingItem {
    /// Its place among the items.
    number: usize,
    began_unix_ms: u64,
}

/// An item with its times, in milliseconds since 1970 (UTC).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledItem<T> {
    /// The item, as the caller knows it.
    pub item: T,
    /// When it begins.
    pub from_unix_ms: u64,
    /// When it ends; `None`: its length is not known.
    pub to_unix_ms: Option<u64>,
}

impl ChannelSchedule {
    /// Nothing plays yet.
    pub fn new(list: &ItemList) -> Self {
        Self { list: Arc::new(list.clone()), ..Self::default() }
    }

    /// A round begins with these items.
    pub(super) fn begin_round(&mut self, items: &[CastItem]) {
        let addresses: HashSet<&str> = items.iter().map(|item| item.address.as_str()).collect();
        Arc::make_mut(&mut self.lengths).retain(|address, _| addresses.contains(address.as_str()));
        self.items = items.into();
        // It is a place among the items of the round before.
        self.playing = None;
    }

    /// This item begins.
    pub(super) fn begin_item(&mut self, number: usize, now_unix_ms: u64) {
        self.playing = Some(PlayingItem { number, began_unix_ms: now_unix_ms });
    }

    /// This item has ended, after all of it was played.
    pub(super) fn end_item(&mut self, number: usize, length_ms: u64) {
        if let Some(item) = self.items.get(number) {
            Arc::make_mut(&mut self.lengths).insert(item.address.clone(), length_ms);
        }
    }

    /// Nothing can be played.
    pub(super) fn stop(&mut self) {
        self.playing = None;
    }

    /// The length of an item when it was played last, in milliseconds.
    pub fn length_ms(&self, item: &CastItem) -> Option<u64> {
        self.lengths.get(&item.address).copied()
    }

    /// The items of the next round, as far as is known now. Reads the playlist.
    pub fn next_round(&self) -> Vec<CastItem> {
        self.list.items().unwrap_or_else(|_| self.items.to_vec())
    }

    /// The items from the one that plays now on. `know` returns the item as the caller knows it, with its length in milliseconds; `None`: it will not
    /// be played. The schedule ends with an item of unknown length, after [`GUIDE_AHEAD_MS`], or with [`MAX_GUIDE_PROGRAMMES`].
    pub fn upcoming<T>(
        &self,
        next_round: &[CastItem],
        now_unix_ms: u64,
        mut know: impl FnMut(&CastItem) -> Option<(T, Option<u64>)>,
    ) -> Vec<ScheduledItem<T>> {
        let Some(PlayingItem { number, began_unix_ms }) = self.playing else { return Vec::new() };
        let (mut at, mut scheduled) = (began_unix_ms, Vec::new());
        let of_round = self.items.get(number..).unwrap_or_default();
        // Items that are skipped or have no length count too: the number of steps has a limit.
        let items = of_round.iter().chain(next_round.iter().cycle()).take(MAX_GUIDE_PROGRAMMES);
        for (place, item) in items.enumerate() {
            if at >= now_unix_ms.saturating_add(GUIDE_AHEAD_MS) {
                break;
            }
            let Some((item, length_ms)) = know(item) else {
                // It plays although it cannot be found, so its end is not known.
                if place == 0 {
                    break;
                }
                continue;
            };
            let mut to_unix_ms = length_ms.map(|length| at.saturating_add(length));
            if place == 0 {
                // It still plays, even if it takes longer than it should.
                to_unix_ms = to_unix_ms.map(|to| to.max(now_unix_ms));
            }
            if to_unix_ms == Some(at) {
                continue;
            }
            scheduled.push(ScheduledItem { item, from_unix_ms: at, to_unix_ms });
            match to_unix_ms {
                Some(to) => at = to,
                None => break,
            }
        }
        scheduled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn items(names: &[&str]) -> Vec<CastItem> {
        names.iter().map(|name| CastItem::new(name)).collect()
    }

    /// A channel in whose round of `names` item `number` began at 1 h.
    fn playing(names: &[&str], number: usize) -> ChannelSchedule {
        let mut schedule = ChannelSchedule::new(&ItemList::Fixed(items(names)));
        schedule.begin_round(&items(names));
        schedule.begin_item(number, HOUR_MS);
        schedule
    }

    /// Upcoming items with their times in hours; the number in a name is its length in hours, `?` is of unknown length, and `gone` is skipped.
    fn hours(schedule: &ChannelSchedule, now_hours: u64) -> Vec<(String, u64, Option<u64>)> {
        let know = |item: &CastItem| {
            let length = item.address[1..].parse::<u64>().ok().map(|hours| hours * HOUR_MS);
            (item.address != "gone").then(|| (item.address.clone(), length))
        };
        let upcoming = schedule.upcoming(&schedule.next_round(), now_hours * HOUR_MS, know);
        upcoming
            .into_iter()
            .map(|it| (it.item, it.from_unix_ms / HOUR_MS, it.to_unix_ms.map(|to| to / HOUR_MS)))
            .collect()
    }

    #[test]
    fn upcoming_goes_on_behind_the_end_of_the_round_for_a_day_and_a_half() {
        let found = hours(&playing(&["a2", "gone", "b10", "c0"], 2), 3);
        let expected = [
            ("b10", 1, 11),
            ("a2", 11, 13),
            ("b10", 13, 23),
            ("a2", 23, 25),
            ("b10", 25, 35),
            ("a2", 35, 37),
        ];
        let mut expected: Vec<_> =
            expected.iter().map(|&(name, from, to)| (name.to_owned(), from, Some(to))).collect();
        expected.push(("b10".to_owned(), 37, Some(47)));
        assert_eq!(found, expected);
    }

    #[test]
    fn upcoming_ends_with_an_item_of_unknown_length() {
        let found = hours(&playing(&["a2", "??", "b3"], 0), 1);
        assert_eq!(found, [("a2".to_owned(), 1, Some(3)), ("??".to_owned(), 3, None)]);
        let found = hours(&playing(&["??"], 0), 9);
        assert_eq!(found, [("??".to_owned(), 1, None)]);
    }

    #[test]
    fn upcoming_of_item_that_takes_longer_ends_now() {
        let found = hours(&playing(&["a2", "b3"], 0), 4);
        assert_eq!(found[..2], [("a2".to_owned(), 1, Some(4)), ("b3".to_owned(), 4, Some(7))]);
    }

    #[test]
    fn upcoming_of_short_and_of_empty_items_is_bounded() {
        let schedule = playing(&["a0"], 0);
        assert_eq!(hours(&schedule, 1), []);
        let second = schedule.upcoming(&items(&["a0"]), HOUR_MS, |_| Some(((), Some(1000))));
        assert_eq!(second.len(), MAX_GUIDE_PROGRAMMES);
        assert_eq!(hours(&playing(&["gone"], 0), 1), []);
    }

    #[test]
    fn upcoming_of_channel_that_plays_nothing_is_empty() {
        let mut schedule = playing(&["a2"], 0);
        schedule.stop();
        assert_eq!(hours(&schedule, 1), []);
        schedule.begin_item(0, HOUR_MS);
        assert_eq!(hours(&schedule, 1)[0], ("a2".to_owned(), 1, Some(3)));
        // The list has become shorter: its old places mean nothing.
        schedule.begin_round(&[]);
        assert_eq!(hours(&schedule, 1), []);
    }

    #[test]
    fn length_of_played_item_is_known_until_it_leaves_the_list() {
        let mut schedule = playing(&["a", "b"], 1);
        schedule.end_item(1, 5000);
        schedule.end_item(7, 5000);
        let [a, b] = [CastItem::new("a"), CastItem::new("b")];
        assert_eq!((schedule.length_ms(&a), schedule.length_ms(&b)), (None, Some(5000)));
        schedule.begin_round(std::slice::from_ref(&a));
        assert_eq!(schedule.length_ms(&b), None);
    }
}
