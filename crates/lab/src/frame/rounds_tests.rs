use millrace_core::random::SplitMix;

use super::*;
use crate::frame::stats::{Interval, TargetBound, median_interval_at};

const LIMIT: Duration = Duration::from_secs(60);

fn plan(next_look: usize) -> RoundPlan {
    RoundPlan { limit: LIMIT, least: LEAST_ROUNDS, is_fixed: false, done: 0, next_look, looks: 0 }
}

/// A number from 0 to 1.
fn uniform(random: &mut SplitMix) -> f64 {
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// A ratio whose median is `middle`, as a busy machine measures it: skewed, and every tenth is far off.
fn noisy(middle: f64, random: &mut SplitMix) -> f64 {
    let draw = uniform(random) - 0.5;
    let scatter = if uniform(random) < 0.1 { 4.0 } else { 0.2 };
    // The middle stays where it is: half of the draws are on each side.
    let scatter = if draw < 0.0 { scatter / 4.0 } else { scatter };
    middle * (1.0 + draw * scatter)
}

/// Runs rounds of a second each until they decide. Returns the last interval, and their number.
fn decide(middle: f64, bound: TargetBound, seed: u64) -> (Interval, usize) {
    let mut random = SplitMix(seed);
    let (mut plan, mut ratios, mut last) = (plan(LEAST_ROUNDS), Vec::new(), None);
    while plan.go_on(Duration::from_secs(ratios.len() as u64), |confidence| {
        let interval = median_interval_at(&ratios, confidence);
        last = Some(interval);
        interval.keeps(bound).is_some()
    }) {
        ratios.push(noisy(middle, &mut random));
    }
    (last.expect("a look"), ratios.len())
}

#[test]
fn rounds_interval_covers_true_ratio_in_93_of_100_draws() {
    // At the bound every look that errs is counted: the worst case of stopping when decided.
    for (true_ratio, bound) in [(1.0, 1.0), (1.0, 1.02), (1.3, 1.25)] {
        let covers = |seed: &u64| {
            let (interval, _) = decide(true_ratio, TargetBound::AtMost(bound), *seed);
            interval.low <= true_ratio && true_ratio <= interval.high
        };
        let covered = (0..1_000).filter(covers).count();
        assert!(covered >= 930, "{covered} of 1000 at {true_ratio} against {bound}");
    }
}

#[test]
fn ratio_far_from_bound_is_decided_soon() {
    for seed in 0..1_000 {
        let (met, rounds) = decide(1.0, TargetBound::AtMost(2.0), seed);
        assert_ne!(met.keeps(TargetBound::AtMost(2.0)), Some(false), "{met:?}");
        assert!(rounds <= 60, "{rounds}");
    }
    let decided = |bound: TargetBound| {
        let keeps = (0..1_000).filter_map(|seed| decide(1.0, bound, seed).0.keeps(bound));
        keeps.fold((0, 0), |(met, missed), kept| if kept { (met + 1, missed) } else { (met, missed + 1) })
    };
    assert_eq!(decided(TargetBound::AtMost(2.0)), (1_000, 0));
    assert_eq!(decided(TargetBound::AtLeast(2.0)), (0, 1_000));
}

#[test]
fn ratio_at_bound_stays_undecided() {
    let bound = TargetBound::AtLeast(1.0);
    let ends: Vec<_> = (0..1_000).map(|seed| decide(1.0, bound, seed)).collect();
    let undecided = ends.iter().filter(|(interval, _)| interval.keeps(bound).is_none());
    let rounds: Vec<usize> = undecided.map(|(_, rounds)| *rounds).collect();
    assert!(rounds.len() >= 930, "{} of 1000", rounds.len());
    assert!(rounds.iter().all(|rounds| *rounds == 60), "it went on until the limit");
}

#[test]
fn looks_share_the_error() {
    let error: f64 = (0..60).map(|look| 1.0 - confidence(look)).sum();
    assert!((error - 0.05).abs() < 1e-9, "{error}");
    let mut asked = Vec::new();
    let mut plan = plan(LEAST_ROUNDS);
    let mut rounds = 0;
    while plan.go_on(Duration::ZERO, |_| {
        asked.push(rounds);
        asked.len() == 4
    }) {
        rounds += 1;
    }
    assert_eq!(asked, [6, 12, 24, 48]);
}

#[test]
fn rounds_end_at_limit_with_a_look() {
    let mut plan = plan(LEAST_ROUNDS);
    // Six at least, however long they take.
    (0..6).for_each(|_| assert!(plan.go_on(LIMIT * 2, |_| panic!("too early to look"))));
    assert!(plan.go_on(LIMIT / 2, |_| false));
    let mut wanted = 0.0;
    assert!(!plan.go_on(LIMIT, |confidence| {
        wanted = confidence;
        false
    }));
    assert!((wanted - 0.990_625).abs() < 1e-12, "{wanted}");
}

#[test]
fn rounds_of_user_are_neither_more_nor_fewer() {
    let count = |options: Options| {
        let mut rounds = Rounds::new(&options);
        while rounds.go_on(|_| false) {}
        rounds.count()
    };
    assert_eq!(count(Options { runs: Some(9), ..Options::new("x") }), 9);
    assert_eq!(count(Options { runs: Some(1), ..Options::new("x") }), 1);
    assert_eq!(count(Options::tiny("x")), 3);
    assert_eq!(count(Options { limit_s: Some(0), ..Options::new("x") }), LEAST_ROUNDS);
}
