//! Some hundreds of seeds, and that a seed means the same each time.

use millrace_sim::scenario::Scenario;
use millrace_sim::search::{SearchOutcome, run_scenario, search_seeds};
use millrace_sim::titles::Stores;

/// Takes some 20 seconds of processor time in the debug build.
const SEEDS: u64 = 300;

#[test]
fn some_hundred_seeds_hold() {
    match search_seeds(&Stores::write(), 0, SEEDS, |_, _| ()) {
        SearchOutcome::Held(all) => {
            assert!(all.sessions > SEEDS && all.packets > 500 * SEEDS, "they do little: {all:?}");
            assert!(all.failed > 0 && all.refused > 0, "faults and limits are never met: {all:?}");
            assert!(all.refused_users > 0 && all.denied > 0, "users are never turned away: {all:?}");
            assert!(all.late_leases > 0, "no lease comes late: {all:?}");
            assert!(all.http_answers > SEEDS && all.fec_packets > SEEDS, "HTTP or FEC is rare: {all:?}");
        }
        SearchOutcome::Failed { seed, violation } => panic!(
            "seed {seed} fails after {} ms: {}; for less that fails too: cargo run -p millrace-sim -- --seed {seed}",
            violation.at_ns / 1_000_000,
            violation.what
        ),
    }
}

/// These seeds fetch files and segments from a volume with a lost disk, whose packets must be decoded from parity.
#[test]
fn seeds_that_failed_once_hold() {
    let stores = Stores::write();
    for seed in [985, 1167] {
        if let SearchOutcome::Failed { seed, violation } = search_seeds(&stores, seed, 1, |_, _| ()) {
            panic!("seed {seed} fails after {} ms: {}", violation.at_ns / 1_000_000, violation.what);
        }
    }
}

#[test]
fn one_seed_happens_the_same_way_twice() {
    let stores = Stores::write();
    for seed in 0..20 {
        let run = || run_scenario(&stores, &Scenario::from_seed(&stores, seed), false);
        assert_eq!(run(), run(), "seed {seed}");
    }
}
