//! The items of a channel from the present one on, with their times, as far as their lengths are known.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::items::CastItem;
use super::programme::{ChannelProgramme, ProgrammeItems};
use crate::limits::cast::{GUIDE_AHEAD_MS, MAX_GUIDE_PROGRAMMES, MAX_KNOWN_LENGTHS};

/// The items of a channel, and the one that plays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelSchedule {
    programme: Arc<ChannelProgramme>,
    /// The items of this round.
    round: Arc<[CastItem]>,
    /// The place in the round that follows the show.
    resume_at: usize,
    /// The items of the show that plays instead of the round.
    show: Option<Arc<[CastItem]>>,
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
    pub fn new(programme: &ChannelProgramme) -> Self {
        Self { programme: Arc::new(programme.clone()), ..Self::default() }
    }

    /// A round begins with these items. Returns the addresses of the round before that it no longer has.
    pub(super) fn begin_round(&mut self, items: &[CastItem]) -> HashSet<String> {
        let addresses: HashSet<&str> = items.iter().map(|item| item.address.as_str()).collect();
        let before = self.round.iter().map(|item| &item.address);
        let gone: HashSet<_> =
            before.filter(|&address| !addresses.contains(address.as_str())).cloned().collect();
        Arc::make_mut(&mut self.lengths).retain(|address, _| !gone.contains(address));
        (self.round, self.resume_at, self.show) = (items.into(), 0, None);
        // It is a place among the items of the round before.
        self.playing = None;
        gone
    }

    /// A show begins with these items.
    pub(super) fn begin_show(&mut self, items: &[CastItem]) {
        self.show = Some(items.into());
        self.playing = None;
    }

    /// The round goes on.
    pub(super) fn end_show(&mut self) {
        self.show = None;
        self.playing = None;
    }

    /// The address of the item at a place of the round, or of the show if one plays.
    pub(super) fn address(&self, number: usize) -> String {
        self.items().get(number).map(|item| item.address.clone()).unwrap_or_default()
    }

    /// Whether an item of this address is in the round, or in the show that plays.
    pub(super) fn has(&self, address: &str) -> bool {
        self.round
            .iter()
            .chain(self.show.iter().flat_map(|show| show.iter()))
            .any(|item| item.address == address)
    }

    /// The items among which places count now.
    fn items(&self) -> &[CastItem] {
        self.show.as_ref().unwrap_or(&self.round)
    }

    /// This item begins.
    pub(super) fn begin_item(&mut self, number: usize, now_unix_ms: u64) {
        self.playing = Some(PlayingItem { number, began_unix_ms: now_unix_ms });
        if self.show.is_none() {
            self.resume_at = number + 1;
        }
    }

    /// This item has ended, after all of it was played.
    pub(super) fn end_item(&mut self, number: usize, length_ms: u64) {
        let Some(address) = self.items().get(number).map(|item| item.address.clone()) else { return };
        let lengths = Arc::make_mut(&mut self.lengths);
        lengths.insert(address, length_ms);
        if lengths.len() > MAX_KNOWN_LENGTHS {
            lengths.pop_first();
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

    /// The items of the next round and of all shows, as far as is known now. Reads playlists.
    pub fn read(&self) -> ProgrammeItems {
        let ChannelProgramme { round, shows, .. } = &*self.programme;
        ProgrammeItems {
            round: round.items().unwrap_or_else(|_| self.round.to_vec()),
            shows: shows.iter().map(|show| show.list.items().unwrap_or_default()).collect(),
        }
    }

    /// The items from the one that plays now on. `know` returns the item as the caller knows it, with its length in milliseconds; `None`: it will not
    /// be played. The schedule ends with an item of unknown length that no show cuts off, after [`GUIDE_AHEAD_MS`], or with [`MAX_GUIDE_PROGRAMMES`].
    pub fn upcoming<T>(
        &self,
        lists: &ProgrammeItems,
        now_unix_ms: u64,
        mut know: impl FnMut(&CastItem) -> Option<(T, Option<u64>)>,
    ) -> Vec<ScheduledItem<T>> {
        let Some(PlayingItem { number, began_unix_ms }) = self.playing else { return Vec::new() };
        let (mut at, mut scheduled) = (began_unix_ms, Vec::new());
        let present = self.items().get(number..).unwrap_or_default();
        let rest = self.round.get(self.resume_at..).unwrap_or_default();
        let (mut of_show, rest) = if self.show.is_some() { (present, rest) } else { (&[][..], present) };
        let mut of_round = rest.iter().chain(lists.round.iter().cycle());
        let mut start = self.programme.next_after(at.max(now_unix_ms));
        // Items that are skipped or have no length count too: the number of steps has a limit.
        for place in 0..MAX_GUIDE_PROGRAMMES {
            if at >= now_unix_ms.saturating_add(GUIDE_AHEAD_MS) {
                break;
            }
            if let Some(due) = start.filter(|start| start.unix_ms <= at) {
                of_show = lists.shows.get(due.show).map_or(&[], Vec::as_slice);
                start = self.programme.next_after(at);
            }
            let next = of_show.split_off_first().or_else(|| of_round.next());
            let Some(item) = next else { break };
            let known = know(item);
            if known.is_none() && place > 0 {
                continue;
            }
            // What plays although it cannot be found has no end that is known.
            let length_ms = known.as_ref().and_then(|(_, length_ms)| *length_ms);
            let mut to_unix_ms = length_ms.map(|length| at.saturating_add(length));
            if place == 0 {
                // It still plays, even if it takes longer than it should.
                to_unix_ms = to_unix_ms.map(|to| to.max(now_unix_ms));
            }
            let cut = start.map(|start| start.unix_ms);
            to_unix_ms = to_unix_ms.map(|to| cut.map_or(to, |cut| to.min(cut)));
            if to_unix_ms == Some(at) {
                continue;
            }
            if let Some((item, _)) = known {
                scheduled.push(ScheduledItem { item, from_unix_ms: at, to_unix_ms });
            }
            match to_unix_ms.or(cut) {
                Some(next) => at = next,
                None => break,
            }
        }
        scheduled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::cast::items::ItemList;

    const HOUR_MS: u64 = 3_600_000;

    fn items(names: &[&str]) -> Vec<CastItem> {
        names.iter().map(|name| CastItem::new(name)).collect()
    }

    /// A channel in whose round of `names` item `number` began at 1 h.
    fn playing(names: &[&str], number: usize) -> ChannelSchedule {
        let mut schedule = ChannelSchedule::new(&ItemList::Fixed(items(names)).into());
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
        let upcoming = schedule.upcoming(&schedule.read(), now_hours * HOUR_MS, know);
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
        let second = schedule.upcoming(&schedule.read(), HOUR_MS, |_| Some(((), Some(1000))));
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

    /// As [`playing`], with a show of `s1` and `gone` each day at 4 h.
    fn with_show(names: &[&str], number: usize) -> ChannelSchedule {
        let show = r#"{"at": "04:00", "items": ["s1", "gone"]}"#;
        let shows = vec![serde_json::from_str(show).unwrap()];
        let round = ItemList::Fixed(items(names));
        let programme = ChannelProgramme::new(round, shows, jiff::tz::TimeZone::UTC).unwrap();
        let mut schedule = ChannelSchedule::new(&programme);
        schedule.begin_round(&items(names));
        schedule.begin_item(number, HOUR_MS);
        schedule
    }

    fn named(expected: &[(&str, u64, Option<u64>)]) -> Vec<(String, u64, Option<u64>)> {
        expected.iter().map(|&(name, from, to)| (name.to_owned(), from, to)).collect()
    }

    #[test]
    fn upcoming_has_shows_that_cut_off_the_round() {
        let found = hours(&with_show(&["a2", "b7"], 0), 1);
        let (a, b) = ("a2", "b7");
        let expected = [
            (a, 1, Some(3)),
            (b, 3, Some(4)),
            ("s1", 4, Some(5)),
            (a, 5, Some(7)),
            (b, 7, Some(14)),
            (a, 14, Some(16)),
            (b, 16, Some(23)),
            (a, 23, Some(25)),
            (b, 25, Some(28)),
            ("s1", 28, Some(29)),
            (a, 29, Some(31)),
            (b, 31, Some(38)),
        ];
        assert_eq!(found, named(&expected));
        // An item of unknown length ends with the show at the latest, and one that cannot be found does, too.
        let found = hours(&with_show(&["??", "b7"], 0), 1);
        assert_eq!(found[..3], named(&[("??", 1, None), ("s1", 4, Some(5)), (b, 5, Some(12))]));
        assert_eq!(hours(&with_show(&["gone", "b7"], 0), 1)[0], named(&[("s1", 4, Some(5))])[0]);
    }

    #[test]
    fn upcoming_within_a_show_goes_on_behind_the_item_that_it_cut_off() {
        let mut schedule = with_show(&["a2", "b7", "c1"], 0);
        schedule.begin_show(&items(&["s1", "gone"]));
        assert!(schedule.has("b7") && schedule.has("gone") && !schedule.has("d1"));
        assert_eq!(hours(&schedule, 4), [], "its first item has not begun");
        schedule.begin_item(0, 4 * HOUR_MS);
        schedule.end_item(0, 5000);
        assert_eq!(schedule.length_ms(&CastItem::new("s1")), Some(5000));
        let expected =
            named(&[("s1", 4, Some(5)), ("b7", 5, Some(12)), ("c1", 12, Some(13)), ("a2", 13, Some(15))]);
        assert_eq!(hours(&schedule, 4)[..4], expected);
        schedule.end_show();
        schedule.begin_item(1, 5 * HOUR_MS);
        assert_eq!(hours(&schedule, 5)[..2], expected[1..3]);
    }

    #[test]
    fn length_of_played_item_is_known_until_it_leaves_the_list() {
        let mut schedule = playing(&["a", "b"], 1);
        schedule.end_item(1, 5000);
        schedule.end_item(7, 5000);
        let [a, b] = [CastItem::new("a"), CastItem::new("b")];
        assert_eq!((schedule.length_ms(&a), schedule.length_ms(&b)), (None, Some(5000)));
        assert_eq!(schedule.begin_round(std::slice::from_ref(&a)), HashSet::from(["b".to_owned()]));
        assert_eq!(schedule.length_ms(&b), None);
    }
}
