//! What viewers have asked for and is not there: a bounded list without duplicates.
//!
//! Next is the title requested most often, among equals the oldest. When the list is full, the one
//! requested least often, among equals the one not requested for the longest time, gives way,
//! unless it was requested again. Titles that could not be made are remembered and not accepted
//! again.

use std::cmp::Reverse;
use std::collections::VecDeque;

use millrace_core::ids::TitleId;
use millrace_core::scale::Scale;
use millrace_core::time::Instant;

use crate::limits::trick::{MAX_REFUSED_WISHES, MAX_WISHES, WISH_KEPT_NS};

/// A title at a speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The title.
    pub parent: TitleId,
    /// The speed.
    pub scale: Scale,
}

/// Result of recording a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WishOutcome {
    /// It is on the list.
    New,
    /// It is on the list in the place of another.
    Crowded,
    /// It was on the list, or is being made.
    Known,
    /// The list is full of titles that are requested more often.
    Dropped,
    /// It cannot be made.
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct PendingWish {
    wish: Wish,
    asked: u64,
    first: Instant,
    last: Instant,
    not_before: Instant,
}

/// Something that cannot be made.
#[derive(Clone, Copy, Debug)]
struct RefusedWish {
    parent: TitleId,
    /// `None`: at no speed.
    scale: Option<Scale>,
    /// `None`: for as long as the server runs. A title that was changed is another title.
    until: Option<Instant>,
}

/// All wishes.
#[derive(Debug, Default)]
pub struct Wishes {
    waiting: Vec<PendingWish>,
    making: Option<PendingWish>,
    /// The oldest first.
    refused: VecDeque<RefusedWish>,
}

impl Wishes {
    /// A viewer has asked for it.
    pub fn ask(&mut self, now: Instant, wish: Wish) -> WishOutcome {
        self.forget_old(now);
        let refuses = |refused: &RefusedWish| {
            refused.parent == wish.parent && refused.scale.is_none_or(|scale| scale == wish.scale)
        };
        if self.refused.iter().any(refuses) {
            return WishOutcome::Refused;
        }
        let mut known = self.waiting.iter_mut().chain(&mut self.making);
        if let Some(known) = known.find(|waiting| waiting.wish == wish) {
            (known.asked, known.last) = (known.asked + 1, now);
            return WishOutcome::Known;
        }
        let is_full = self.waiting.len() >= MAX_WISHES;
        if is_full && !self.drop_least() {
            return WishOutcome::Dropped;
        }
        self.waiting.push(PendingWish { wish, asked: 1, first: now, last: now, not_before: now });
        if is_full { WishOutcome::Crowded } else { WishOutcome::New }
    }

    /// Makes room for one that is asked for the first time.
    fn drop_least(&mut self) -> bool {
        let by_use = |(_, waiting): &(usize, &PendingWish)| (waiting.asked, waiting.last);
        let least = self.waiting.iter().enumerate().min_by_key(by_use);
        let Some((index, _)) = least.filter(|(_, least)| least.asked == 1) else { return false };
        self.waiting.remove(index);
        true
    }

    /// Returns the title that must be made next, until [`Wishes::done`], [`Wishes::later`] or
    /// [`Wishes::refuse`] reports the result.
    pub fn next(&mut self, now: Instant) -> Option<Wish> {
        self.forget_old(now);
        let ready = self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.not_before <= now);
        let (index, _) = ready.max_by_key(|(_, waiting)| (waiting.asked, Reverse(waiting.first)))?;
        self.making = Some(self.waiting.remove(index));
        self.making.map(|making| making.wish)
    }

    /// Records that the title being made is there, or that no viewer can want it any more.
    pub fn done(&mut self) {
        self.making = None;
    }

    /// Records that it could not be made now: it waits for `ns`, unless the list has been filled
    /// meanwhile.
    pub fn later(&mut self, now: Instant, ns: u64) {
        if let Some(making) = self.making.take()
            && self.waiting.len() < MAX_WISHES
        {
            self.waiting.push(PendingWish { not_before: now.plus_ns(ns), ..making });
        }
    }

    /// Records that it cannot be made: at no speed, if `all` is true, and for as long as the server
    /// runs, if `until` is `None`.
    pub fn refuse(&mut self, all: bool, until: Option<Instant>) {
        let Some(making) = self.making.take() else { return };
        let Wish { parent, scale } = making.wish;
        if all {
            self.waiting.retain(|waiting| waiting.wish.parent != parent);
        }
        if self.refused.len() >= MAX_REFUSED_WISHES {
            self.refused.pop_front();
        }
        self.refused.push_back(RefusedWish { parent, scale: (!all).then_some(scale), until });
    }

    /// Wishes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn forget_old(&mut self, now: Instant) {
        self.waiting.retain(|waiting| now.ns_since(waiting.last) < WISH_KEPT_NS);
        self.refused.retain(|refused| refused.until.is_none_or(|until| now < until));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wish(title: u8, scale: i16) -> Wish {
        Wish { parent: TitleId([title; 16]), scale: Scale::from_hundredths(scale).unwrap() }
    }

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Instant {
        Instant(seconds * SECOND)
    }

    #[test]
    fn wishes_next_returns_most_requested_then_oldest() {
        let mut wishes = Wishes::default();
        for (second, title) in [(1, 1), (2, 2), (3, 3), (4, 3), (5, 2)] {
            wishes.ask(at(second), wish(title, 400));
        }
        let mut order = Vec::new();
        while let Some(next) = wishes.next(at(6)) {
            assert_eq!(wishes.ask(at(6), next), WishOutcome::Known, "it is being made");
            order.push(next.parent.0[0]);
            wishes.done();
        }
        assert_eq!(order, [2, 3, 1]);
    }

    #[test]
    fn wishes_when_full_keep_repeated_requests() {
        let mut wishes = Wishes::default();
        wishes.ask(at(1), wish(0, 400));
        wishes.ask(at(2), wish(0, 400));
        for title in 1..=255 {
            wishes.ask(at(3), wish(title, 400));
        }
        assert_eq!(wishes.waiting(), MAX_WISHES);
        assert_eq!(wishes.next(at(4)), Some(wish(0, 400)));
        wishes.done();
        // The last ones have stayed, and then nothing gives way to something new.
        for title in 256 - MAX_WISHES as u16 + 1..256 {
            assert_eq!(wishes.ask(at(5), wish(title as u8, 400)), WishOutcome::Known, "{title}");
        }
        assert_eq!(wishes.ask(at(6), wish(7, 800)), WishOutcome::New);
        assert_eq!(wishes.ask(at(6), wish(8, 800)), WishOutcome::Crowded);
        wishes.ask(at(7), wish(8, 800));
        assert_eq!(wishes.ask(at(8), wish(9, 800)), WishOutcome::Dropped);
    }

    #[test]
    fn wishes_ask_for_refused_title_returns_refused() {
        let mut wishes = Wishes::default();
        let mut refuse = |title, scale, all, until| {
            wishes.ask(at(1), wish(title, scale));
            assert_eq!(wishes.next(at(1)), Some(wish(title, scale)));
            wishes.refuse(all, until);
        };
        refuse(1, 400, true, None);
        refuse(2, 400, false, None);
        refuse(3, 400, true, Some(at(10)));
        let mut ask = |second, title, scale| {
            let asked = wishes.ask(at(second), wish(title, scale));
            wishes.next(at(second));
            wishes.done();
            asked
        };
        assert_eq!(ask(9, 1, 800), WishOutcome::Refused);
        assert_eq!(ask(9, 2, 400), WishOutcome::Refused);
        assert_eq!(ask(9, 2, 800), WishOutcome::New);
        assert_eq!(ask(9, 3, 400), WishOutcome::Refused);
        assert_eq!(ask(10, 3, 400), WishOutcome::New);
        assert_eq!(ask(100_000, 1, 400), WishOutcome::Refused);
    }

    #[test]
    fn wishes_later_defers_entry_until_due_or_expired() {
        let mut wishes = Wishes::default();
        wishes.ask(at(1), wish(1, 400));
        wishes.next(at(1));
        wishes.later(at(1), 60 * SECOND);
        assert_eq!(wishes.next(at(60)), None);
        assert_eq!(wishes.next(at(61)), Some(wish(1, 400)));
        wishes.later(at(61), 0);
        assert_eq!(wishes.next(at(1).plus_ns(WISH_KEPT_NS)), None, "nobody has asked again");
    }

    proptest! {
        #[test]
        fn never_more_than_allowed_never_one_twice(
            steps in prop::collection::vec((0u8..8, 0u8..100, prop::sample::select(vec![-400i16, 50, 800])), 1..400)
        ) {
            let mut wishes = Wishes::default();
            let mut making = None;
            for (second, (step, title, scale)) in steps.into_iter().enumerate() {
                let now = at(second as u64);
                match step {
                    0 if making.is_none() => making = wishes.next(now),
                    1 if making.take().is_some() => wishes.done(),
                    2 if making.take().is_some() => wishes.later(now, SECOND),
                    3 if making.take().is_some() => wishes.refuse(title % 2 == 0, Some(now.plus_ns(SECOND))),
                    _ => {
                        let before = wishes.waiting();
                        let asked = wishes.ask(now, wish(title, scale));
                        prop_assert_eq!(wishes.waiting(), before + usize::from(asked == WishOutcome::New));
                    }
                }
                prop_assert!(wishes.waiting() <= MAX_WISHES);
                for (index, one) in wishes.waiting.iter().enumerate() {
                    prop_assert!(wishes.waiting[..index].iter().all(|other| other.wish != one.wish));
                    prop_assert!(Some(one.wish) != making);
                }
            }
        }
    }
}
