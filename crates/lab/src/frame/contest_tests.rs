use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use millrace_core::random::SplitMix;

use super::*;
use crate::frame::Cancelled;

fn how() -> ContestOptions {
    ContestOptions { is_pinned: false, ..ContestOptions::from_options(&Options::tiny("x")) }
}

/// Does `steps` dependent multiplications.
fn chew(steps: u64) -> u64 {
    (0..std::hint::black_box(steps)).fold(1u64, |x, i| std::hint::black_box(x.wrapping_mul(3) ^ i))
}

#[test]
fn everybody_takes_turns() {
    let log = RefCell::new(String::new());
    let work = |letter: char, steps: u64| {
        let log = &log;
        move |slot: &mut ContenderSlot| {
            log.borrow_mut().push(letter);
            while slot.goes_on() {
                slot.batch(10, || chew(steps));
                slot.produced(7);
            }
            Ok(())
        }
    };
    let mut contest = Contest::new("chewing");
    contest.contender("one", work('a', 2_000)).contender("eight", work('b', 16_000));
    let result = contest.run(&ContestOptions { rounds: 9, ..how() }).unwrap();
    // One slot to compare results, one to warm up, nine that count.
    let log = log.borrow();
    assert_eq!((log.matches('a').count(), log.matches('b').count()), (11, 11));
    let rounds: BTreeSet<&str> = (1..11).map(|round| &log[2 * round..2 * round + 2]).collect();
    assert_eq!(rounds, BTreeSet::from(["ab", "ba"]), "the order inside a round varies: {log}");
    let [one, eight] = &result.contenders[..] else { panic!("two contenders") };
    assert_eq!((one.rounds.len(), eight.rounds.len()), (9, 9));
    assert_eq!((one.ratio.low, one.ratio.mid, one.ratio.high), (1.0, 1.0, 1.0));
    assert!(eight.ratio.low <= eight.ratio.mid && eight.ratio.mid <= eight.ratio.high);
    assert!(one.p10 <= one.p50 && one.p50 <= one.p99);
    assert_eq!(one.items, one.batches as u64 * 10);
    assert_eq!(one.hash, eight.hash);
}

#[test]
fn ratios_are_taken_within_a_round() {
    // The machine is three times slower in the second round; that must not show.
    let gathered = |rounds: &[f64]| Gathered {
        samples: rounds.iter().rev().copied().collect(),
        rounds: rounds.to_vec(),
        items: 9,
        hash: None,
    };
    let mut contest = Contest::new("known");
    contest.contender("base", |_| Ok(())).contender("double", |_| Ok(()));
    let rounds = vec![gathered(&[10.0, 30.0, 11.0]), gathered(&[20.0, 60.0, 33.0])];
    let result = contest.result(rounds, NoiseMeter::start(), 0.95);
    let double = result.of("double").unwrap();
    assert_eq!((double.ratio.low, double.ratio.mid, double.ratio.high), (2.0, 2.0, 3.0));
    assert_eq!(result.ratio("base", "double").mid, 0.5);
    assert!(result.ratio("base", "absent").mid.is_nan());
    assert_eq!((double.p10, double.p50, double.p99), (20.0, 33.0, 60.0));
    assert!(result.noise.why.iter().any(|why| why.starts_with("base in known: ")), "{:?}", result.noise);
}

#[test]
fn contest_with_goal_runs_until_it_is_decided() {
    let rounds = |bound: TargetBound| {
        let mut contest = Contest::new("goal");
        for (name, steps) in [("one", 2_000), ("eight", 16_000)] {
            contest.contender(name, move |slot| {
                while slot.goes_on() {
                    slot.batch(10, || chew(steps));
                }
                Ok(())
            });
        }
        contest.goal("eight", "one", bound).goal("absent", "one", bound);
        // A goal at the true ratio would go on for a minute; this machine must have its say.
        let options = Options { limit_s: Some(1), quick: true, ..Options::new("x") };
        let how = ContestOptions { slot_ms: 2, is_pinned: false, ..ContestOptions::from_options(&options) };
        let result = contest.run(&how).unwrap();
        (result.contenders[0].rounds.len(), result.contenders[1].ratio)
    };
    let (few, ratio) = rounds(TargetBound::AtLeast(1.5));
    assert!(
        (6..100).contains(&few) && ratio.keeps(TargetBound::AtLeast(1.5)) == Some(true),
        "{few} {ratio:?}"
    );
    let (more, undecided) = rounds(TargetBound::AtMost(ratio.mid));
    assert!(more > 6 || undecided.keeps(TargetBound::AtMost(ratio.mid)).is_some(), "{more} {undecided:?}");
}

#[test]
fn contest_with_differing_result_fails() {
    let say = |result: u64| {
        move |slot: &mut ContenderSlot| {
            while slot.goes_on() {
                slot.batch(1, || ());
                slot.produced(result);
            }
            Ok(())
        }
    };
    let mut contest = Contest::new("liars");
    contest.contender("honest", say(1)).contender("honest too", say(1)).contender("liar", say(2));
    let error = format!("{:#}", contest.run(&how()).unwrap_err());
    assert!(
        error.contains("honest, honest too") && error.contains("liar (") && error.contains("against"),
        "{error}"
    );
}

#[test]
fn results_are_compared_over_the_same_number_of_batches() {
    let batches = [Cell::new(0), Cell::new(0)];
    let count = |cell: &'static str, at: usize| {
        let batches = &batches;
        (cell, move |slot: &mut ContenderSlot| {
            while slot.goes_on() {
                let n = if slot.is_check() { batches[at].replace(batches[at].get() + 1) } else { 0 };
                slot.batch(1, || chew(if at == 0 { 1 } else { 1_000 }));
                slot.produced(n);
            }
            Ok(())
        })
    };
    let mut contest = Contest::new("counting");
    for (name, work) in [count("fast", 0), count("slow", 1)] {
        contest.contender(name, work);
    }
    contest.run(&how()).unwrap();
    assert_eq!((batches[0].get(), batches[1].get()), (16, 16));
}

#[test]
fn errors_name_the_contest_and_the_contender() {
    let message = |contest: Contest<'_>| format!("{:#}", contest.run(&how()).unwrap_err());
    assert_eq!(message(Contest::new("nobody")), "contest nobody: nobody has entered");
    let mut fails = Contest::new("failing");
    fails.contender("broken", |_| bail!("no socket"));
    assert_eq!(message(fails), "contest failing: broken: no socket");
    let mut idle = Contest::new("idle");
    idle.contender("lazy", |slot| {
        while slot.goes_on() {
            slot.batch_counted(|| 0);
        }
        Ok(())
    });
    assert_eq!(message(idle), "contest idle: lazy measured nothing in round 0");
}

#[test]
fn contest_with_cancel_stops_at_next_slot() {
    let how = how();
    let slots = Cell::new(0);
    let mut contest = Contest::new("stopped");
    contest.contender("any", |slot| {
        slots.set(slots.get() + 1);
        how.options.cancel.store(true, Ordering::Relaxed);
        slot.batch(1, || ());
        Ok(())
    });
    let error = contest.run(&how).unwrap_err();
    assert_eq!(error.downcast_ref::<Cancelled>(), Some(&Cancelled));
    assert_eq!(slots.get(), 1);
}

#[test]
fn contest_as_base_sets_reference_and_rows_share_columns() {
    let work = |slot: &mut ContenderSlot| {
        while slot.goes_on() {
            slot.batch(1, || chew(100));
        }
        Ok(())
    };
    let mut contest = Contest::new("base");
    contest.contender("ours", work).contender("theirs", work).as_base();
    let result = contest.run(&how()).unwrap();
    assert_eq!(result.base, "theirs");
    assert_eq!(result.of("theirs").unwrap().ratio.mid, 1.0);
    assert!(result.of("nobody's").is_none());
    let names = |row: &Row| row.figures.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
    let rows = result.rows("packet");
    assert_eq!(names(&rows[0]), names(&rows[1]));
    assert_eq!(rows[0].figures[1].unit, "ns/packet");
    assert_eq!(result.plot("t", "packet").series[0].points.len(), 2);
}

#[test]
fn shuffles_are_permutations_and_repeat_with_the_seed() {
    let orders = |seed: u64| {
        let mut random = SplitMix(seed);
        (0..50).map(|_| shuffled(5, &mut random)).collect::<Vec<_>>()
    };
    assert_eq!(orders(3), orders(3));
    assert_ne!(orders(3), orders(4));
    for mut order in orders(3) {
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }
    assert_eq!(shuffled(0, &mut SplitMix(1)), [0usize; 0]);
}

#[test]
fn pinned_drop_restores_cpu_affinity() {
    std::thread::spawn(|| {
        let count = || rustix::thread::sched_getaffinity(None).unwrap().count();
        let before = count();
        let pinned = Pinned::to_last();
        assert_eq!(count(), 1);
        drop(pinned);
        assert_eq!(count(), before);
    })
    .join()
    .unwrap();
}
