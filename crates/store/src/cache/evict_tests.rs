use proptest::prelude::*;

use super::*;

fn candidate(slot: u32, next_use: NextUse, used: u64) -> Candidate {
    Candidate { slot, next_use, used }
}

proptest! {
    #[test]
    fn victims_batch_is_ordered_by_latest_next_use_first(uses in proptest::collection::vec((0i64..1000, any::<bool>()), 0..600)) {
        let all: Vec<_> = uses.iter().enumerate().map(|(i, &(at, never))| {
            let next_use = if never && at < 300 { NextUse::Never } else { NextUse::At(at) };
            candidate(i as u32, next_use, (i as u64 * 7919) % 601)
        }).collect();
        let mut victims = Victims::new(600);
        victims.choose(5, 64 * 37, all.iter().copied());
        let mut expected = all.clone();
        // Never first, then latest first; among equals the one used longest ago.
        expected.sort_by(|a, b| b.next_use.cmp(&a.next_use).then(a.used.cmp(&b.used)));
        expected.truncate(37);
        let cut = victims.cut();
        let mut got = Vec::new();
        while let Some(victim) = victims.peek() {
            got.push(victim);
            victims.pop();
        }
        prop_assert_eq!(&got, &expected);
        if let Some(last) = expected.last() {
            prop_assert_eq!(cut, last.next_use);
        }
    }
}

#[test]
fn freshness_of_used_up_or_old_batch_is_stale() {
    let mut victims = Victims::new(64);
    assert_eq!(victims.freshness(0, 10), Freshness::Stale, "never chosen");
    let two = [candidate(1, NextUse::At(5), 1), candidate(2, NextUse::Never, 2)];
    victims.choose(100, 128, two.into_iter());
    assert_eq!(victims.freshness(100, 10), Freshness::Good);
    assert_eq!(victims.freshness(100 + victims.max_age_ns, 10), Freshness::Good);
    assert_eq!(victims.freshness(101 + victims.max_age_ns, 10), Freshness::Stale);
    assert_eq!(victims.peek(), Some(two[1]));
    victims.pop();
    assert_eq!((victims.peek(), victims.freshness(100, 10)), (Some(two[0]), Freshness::Good));
    victims.pop();
    assert_eq!(victims.freshness(100, 10), Freshness::Stale, "used up");
}

#[test]
fn freshness_after_empty_choice_is_nothing_until_delay_or_retry() {
    let mut victims = Victims::new(64);
    victims.choose(100, 64, std::iter::empty());
    assert_eq!(victims.freshness(109, 10), Freshness::Nothing);
    assert_eq!(victims.freshness(110, 10), Freshness::Stale);
    victims.retry();
    assert_eq!(victims.freshness(101, 10), Freshness::Stale);
}
