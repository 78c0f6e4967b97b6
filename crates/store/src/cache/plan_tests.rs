use proptest::prelude::*;

use super::*;

fn key(title: u32, extent: u32) -> ExtentKey {
    ExtentKey { title: TitleRef(title), extent }
}

fn waiter(serial: u64) -> Waiter {
    Waiter { handle: 0, stream: StreamId { index: serial as u32 % 7, generation: 0 }, serial }
}

#[test]
fn plan_demands_for_same_extent_share_read_at_soonest_deadline() {
    let mut plan = ReadPlan::new(10);
    assert!(plan.ahead(key(1, 5), 900, 0));
    assert!(plan.demand(key(1, 5), (700, 0), waiter(1), |_| true), "joined what was planned ahead");
    assert!(plan.demand(key(1, 5), (800, 0), waiter(2), |_| true));
    assert!(!plan.demand(key(1, 6), (650, 0), waiter(3), |_| true));
    assert!(!plan.ahead(key(1, 6), 600, 0), "hastened, not planned twice");
    assert_eq!(plan.first_demand(), Some(NextRead { key: key(1, 6), by: 600, demand: true, spare: 0 }));
    plan.begin(key(1, 6));
    assert_eq!(plan.first_demand(), Some(NextRead { key: key(1, 5), by: 700, demand: true, spare: 0 }));
    assert_eq!(plan.queued(), 1);
    assert!(plan.demand(key(1, 6), (1, 0), waiter(4), |_| true), "joins a read in flight");
    assert_eq!(plan.finish(key(1, 6)), [waiter(3), waiter(4)]);
    assert_eq!(plan.finish(key(1, 5)), [waiter(1), waiter(2)]);
    assert_eq!((plan.queued(), plan.first_demand(), plan.finish(key(1, 5))), (0, None, vec![]));
}

#[test]
fn reads_ahead_have_a_limit_and_demands_have_not() {
    let mut plan = ReadPlan::new(2);
    assert!(plan.ahead(key(1, 1), 1, 0) && plan.ahead(key(1, 2), 2, 0));
    assert!(!plan.ahead(key(1, 3), 3, 0));
    assert!(!plan.demand(key(1, 3), (3, 0), waiter(1), |_| true));
    assert_eq!(plan.queued(), 3);
}

#[test]
fn unwant_by_last_waiter_turns_demand_into_read_ahead() {
    let mut plan = ReadPlan::new(2);
    plan.demand(key(1, 1), (5, 0), waiter(1), |_| true);
    plan.demand(key(1, 1), (5, 0), waiter(2), |_| true);
    plan.unwant(key(1, 1));
    assert!(plan.first_demand().is_some());
    plan.unwant(key(1, 1));
    assert_eq!((plan.first_demand(), plan.first_ahead().unwrap().key), (None, key(1, 1)));
    plan.unwant(key(1, 1));
    plan.unwant(key(9, 9));
    assert!(plan.note_wait(key(1, 1)) && !plan.note_wait(key(1, 1)) && !plan.note_wait(key(9, 9)));
}

#[test]
fn forget_title_leaves_only_reads_in_flight() {
    let mut plan = ReadPlan::new(9);
    plan.demand(key(1, 1), (5, 0), waiter(1), |_| true);
    plan.demand(key(1, 2), (5, 0), waiter(2), |_| true);
    plan.demand(key(2, 1), (5, 0), waiter(3), |_| true);
    plan.ahead(key(1, 3), 5, 0);
    plan.begin(key(1, 2));
    let mut waiters = plan.forget_title(TitleRef(1));
    waiters.sort_by_key(|(key, _)| *key);
    assert_eq!(waiters, [(key(1, 1), waiter(1)), (key(1, 2), waiter(2))]);
    assert_eq!((plan.queued(), plan.first_ahead()), (1, None));
    assert_eq!(plan.finish(key(1, 2)), []);
    assert_eq!(plan.first_demand().unwrap().key, key(2, 1));
}

#[test]
fn demand_repeated_by_returning_stream_keeps_waiters_bounded() {
    let mut plan = ReadPlan::new(1);
    for serial in 0..10_000 {
        plan.demand(key(1, 1), (5, 0), waiter(serial), |old| old.serial == serial);
        plan.unwant(key(1, 1));
    }
    assert!(plan.finish(key(1, 1)).len() < 20);
}

#[derive(Clone, Debug)]
enum Op {
    Demand(u32, Ns),
    Ahead(u32, Ns),
    Unwant(u32),
    Begin,
    Finish(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0u32..12, 0i64..50).prop_map(|(e, by)| Op::Demand(e, by)),
        (0u32..12, 0i64..50).prop_map(|(e, by)| Op::Ahead(e, by)),
        (0u32..12).prop_map(Op::Unwant),
        Just(Op::Begin),
        (0u32..12).prop_map(Op::Finish),
    ]
}

/// The same in a flat list.
#[derive(Clone, Debug)]
struct Flat {
    extent: u32,
    by: Ns,
    live: usize,
    reading: bool,
}

proptest! {
    #[test]
    fn behaves_like_a_flat_list(ops in proptest::collection::vec(op(), 0..200)) {
        let mut plan = ReadPlan::new(usize::MAX);
        let mut flat: Vec<Flat> = Vec::new();
        for (serial, op) in ops.into_iter().enumerate() {
            match op {
                Op::Demand(extent, by) => {
                    let joined = plan.demand(key(0, extent), (by, 0), waiter(serial as u64), |_| true);
                    let known = flat.iter_mut().find(|f| f.extent == extent);
                    prop_assert_eq!(joined, known.is_some());
                    match known {
                        Some(f) => (f.by, f.live) = (f.by.min(by), f.live + 1),
                        None => flat.push(Flat { extent, by, live: 1, reading: false }),
                    }
                }
                Op::Ahead(extent, by) => {
                    let new = plan.ahead(key(0, extent), by, 0);
                    match flat.iter_mut().find(|f| f.extent == extent) {
                        Some(f) => f.by = f.by.min(by),
                        None => flat.push(Flat { extent, by, live: 0, reading: !new }),
                    }
                }
                Op::Unwant(extent) => {
                    plan.unwant(key(0, extent));
                    flat.iter_mut().filter(|f| f.extent == extent).for_each(|f| f.live = f.live.saturating_sub(1));
                }
                Op::Begin => {
                    if let Some(next) = plan.first_demand().or(plan.first_ahead()) {
                        plan.begin(next.key);
                        flat.iter_mut().filter(|f| f.extent == next.key.extent).for_each(|f| f.reading = true);
                    }
                }
                Op::Finish(extent) => {
                    plan.finish(key(0, extent));
                    flat.retain(|f| f.extent != extent);
                }
            }
            let first = |demand: bool| {
                let queued = flat.iter().filter(|f| !f.reading && (f.live > 0) == demand);
                queued.map(|f| (f.by, f.extent)).min()
            };
            prop_assert_eq!(plan.first_demand().map(|n| (n.by, n.key.extent)), first(true));
            prop_assert_eq!(plan.first_ahead().map(|n| (n.by, n.key.extent)), first(false));
            prop_assert_eq!(plan.queued(), flat.iter().filter(|f| !f.reading).count());
        }
    }
}
