use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    /// Sets an owner's timer this far from now; negative is overdue.
    Set(u32, i64),
    Cancel(u32),
    /// Time passes by this much, then everything due is popped.
    Pass(u64),
    /// Pops at most this many, while no time passes.
    Pop(u8),
    /// The same in one call.
    PopMany(u8),
    /// Goes to the moment that `next_due` names.
    Jump,
}

fn distance() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..3_000,                           // within near slots
        0u64..1_000_000,                       // some far slots
        0u64..2_000_000_000,                   // beyond the far wheel
        Just(1 << FAR_SHIFT),                  // exactly one far slot
        Just((FAR_SLOTS as u64) << FAR_SHIFT), // exactly once round
        0u64..100_000_000_000_000,             // a day
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..64, distance()).prop_map(|(owner, d)| Op::Set(owner, d as i64)),
        1 => (0u32..64, distance()).prop_map(|(owner, d)| Op::Set(owner, -(d as i64))),
        2 => (0u32..64).prop_map(Op::Cancel),
        3 => distance().prop_map(Op::Pass),
        2 => (1u8..5).prop_map(Op::Pop),
        2 => (1u8..20).prop_map(Op::PopMany),
        4 => Just(Op::Jump),
    ]
}

/// The wheel beside a map that is plainly right.
struct Pair {
    wheel: Wheel,
    model: BTreeMap<u32, u64>,
    now: u64,
}

impl Pair {
    fn pop(&mut self) -> Result<bool, TestCaseError> {
        let earliest = self.model.values().min().copied();
        match self.wheel.pop_due(Instant(self.now)) {
            Some(owner) => {
                let due = self.model.remove(&owner);
                prop_assert!(
                    due.is_some_and(|due| due <= self.now),
                    "{owner} fired early: {due:?} at {}",
                    self.now
                );
                // Earlier ones first, to within a near slot; all that is overdue when set counts as equally early.
                let (due, earliest) = (due.unwrap_or(0), earliest.unwrap_or(0));
                let floor = self.wheel.cursor << FAR_SHIFT;
                prop_assert!(due.max(floor) >> NEAR_SHIFT == earliest.max(floor) >> NEAR_SHIFT);
                Ok(true)
            }
            None => {
                prop_assert!(
                    earliest.is_none_or(|due| due > self.now),
                    "{earliest:?} missed at {}",
                    self.now
                );
                let next = self.wheel.next_due();
                prop_assert_eq!(next.is_none(), self.model.is_empty());
                if let (Some(next), Some(earliest)) = (next, earliest) {
                    prop_assert!(next.0 > self.now, "no progress: next {} at {}", next.0, self.now);
                    prop_assert!(next.0 <= earliest, "next {} after {earliest}", next.0);
                }
                Ok(false)
            }
        }
    }

    /// As many as there are of those due, and no other.
    fn pop_many(&mut self, room: u8) -> Result<(), TestCaseError> {
        let mut owners = vec![0; usize::from(room)];
        let count = self.wheel.pop_due_into(Instant(self.now), &mut owners);
        let due = self.model.values().filter(|&&due| due <= self.now).count();
        prop_assert_eq!(count, due.min(owners.len()));
        for owner in &owners[..count] {
            let due = self.model.remove(owner);
            prop_assert!(due.is_some_and(|due| due <= self.now), "{owner} fired early: {due:?}");
        }
        Ok(())
    }

    fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Set(owner, distance) => {
                let due = self.now.saturating_add_signed(distance);
                self.wheel.set(owner, Instant(due), Instant(self.now));
                self.model.insert(owner, due);
            }
            Op::Cancel(owner) => {
                self.wheel.cancel(owner);
                self.model.remove(&owner);
            }
            Op::Pass(ns) => {
                self.now += ns;
                while self.pop()? {}
            }
            Op::PopMany(count) => self.pop_many(count)?,
            Op::Pop(count) => {
                for _ in 0..count {
                    self.pop()?;
                }
            }
            Op::Jump => {
                if let Some(next) = self.wheel.next_due() {
                    self.now = self.now.max(next.0);
                    while self.pop()? {}
                }
            }
        }
        prop_assert_eq!(self.wheel.len(), self.model.len());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn behaves_like_an_ordered_map(start in 0u64..10_000_000_000_000_000, ops in proptest::collection::vec(op(), 1..80)) {
        let mut pair = Pair { wheel: Wheel::new(64), model: BTreeMap::new(), now: start };
        for op in &ops {
            pair.run(op)?;
        }
    }

    /// Queues of many blocks: all timers within a microsecond.
    #[test]
    fn crowded_slots_behave_so_too(
        start in 0u64..10_000_000_000_000,
        crowd in proptest::collection::vec((0u32..64, 0u64..1_000), 20..200),
        ops in proptest::collection::vec(op(), 1..60),
    ) {
        let mut pair = Pair { wheel: Wheel::new(64), model: BTreeMap::new(), now: start };
        for (owner, ahead) in crowd {
            pair.run(&Op::Set(owner, ahead as i64))?;
        }
        for op in &ops {
            pair.run(&match *op {
                Op::Pass(ns) => Op::Pass(ns % 300),
                Op::Set(owner, ahead) => Op::Set(owner, ahead % 400),
                ref op => op.clone(),
            })?;
        }
    }

    #[test]
    fn bits_find_the_next_one(set in proptest::collection::btree_set(0usize..4096, 0..20), start in 0usize..4096) {
        let mut bits = Bits::<64>::new();
        set.iter().for_each(|&bit| bits.set(bit));
        prop_assert_eq!(bits.first(), set.first().copied());
        prop_assert_eq!(bits.first_from(start), set.range(start..).next().or(set.first()).copied());
        set.iter().for_each(|&bit| bits.clear(bit));
        prop_assert_eq!(bits.first(), None);
    }
}

#[test]
fn next_due_is_exact_once_the_timer_is_near() {
    let mut wheel = Wheel::new(3);
    let start = 123_456_789_012_345;
    wheel.set(0, Instant(start + 777), Instant(start));
    wheel.set(1, Instant(start + 779), Instant(start));
    assert_eq!(wheel.next_due(), Some(Instant(start + 777)));
    wheel.cancel(0);
    assert_eq!(wheel.pop_due(Instant(start + 700)), None);
    assert_eq!(wheel.next_due(), Some(Instant(start + 779)));
    assert_eq!(wheel.pop_due(Instant(start + 778)), None);
    assert_eq!(wheel.pop_due(Instant(start + 779)), Some(1));
    assert!(wheel.is_empty() && wheel.next_due().is_none());
}

#[test]
fn timers_of_one_moment_fire_in_the_order_they_were_set() {
    let mut wheel = Wheel::new(100);
    for owner in (0..100).rev() {
        wheel.set(owner, Instant(5_000_000), Instant(0));
    }
    let fired: Vec<_> = std::iter::from_fn(|| wheel.pop_due(Instant(5_000_000))).collect();
    assert_eq!(fired, (0..100).rev().collect::<Vec<_>>());
}

#[test]
#[should_panic(expected = "timer 3 of 3")]
fn set_with_owner_out_of_range_panics() {
    Wheel::new(3).set(3, Instant(0), Instant(0));
}

#[test]
fn timer_in_last_far_slot_does_not_hide_nearer_timer() {
    let mut wheel = Wheel::new(2);
    let round = (FAR_SLOTS as u64) << FAR_SHIFT;
    wheel.set(0, Instant(1_000 * round), Instant(0));
    assert_eq!(wheel.pop_due(Instant(1 << FAR_SHIFT)), None);
    wheel.set(1, Instant(round), Instant(1 << FAR_SHIFT));
    assert!(wheel.next_due().unwrap() <= Instant(round));
    assert_eq!(wheel.pop_due(Instant(round)), Some(1));
}
