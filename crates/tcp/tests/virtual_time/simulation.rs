//! Connections over bad links in virtual time: every byte right, nothing left behind, everything done once the links are well.
//!
//! A failure names its seed and the smallest part of its scenario that still fails:
//! `sim/shrink.rs`. `MILLRACE_TCP_RUNS=250000` runs that many connections of each of the four
//! kinds, `MILLRACE_TCP_FROM=5000` starts at that seed.

use millrace_core::random::SplitMix;
use millrace_tcp::conn::Config;

use crate::sim::MS;
use crate::sim::app::Side;
use crate::sim::link::Plan;
use crate::sim::scenario::{Host, Kind, Scenario, Talk};
use crate::sim::shrink::{seeds, shrink};

#[test]
fn stack_pair_over_bad_links_delivers_all_bytes() {
    seeds(Kind::Pair, 1_500);
}

#[test]
fn hub_of_stacks_over_bad_links_delivers_all_bytes() {
    seeds(Kind::Hub, 250);
}

#[test]
fn smoltcp_opens_to_us_over_bad_links() {
    seeds(Kind::SmolOpens, 1_000);
}

#[test]
fn we_open_to_smoltcp_over_bad_links() {
    seeds(Kind::SmolListens, 1_000);
}

#[test]
fn perfect_link_is_filled_without_timeout() {
    let host = Host {
        link: Plan::perfect(5 * MS, 20_000_000),
        config: Config { receive_bytes: 1 << 18, ..Config::default() },
        defers_acks: true,
        device_ns: 0,
        smoltcp: None,
    };
    let sides = [Side::sending(0), Side { uses_extents: true, ..Side::sending(2_000_000) }];
    let talk = Talk { hosts: [0, 1], sides, opens_at_ns: 0, is_simultaneous: false };
    let scenario = Scenario { seed: 1, is_v6: false, hosts: vec![host.clone(), host], talks: vec![talk] };
    let outcome = scenario.run();
    // A tail loss probe may meet a delayed ACK.
    let counters = &outcome.counters[1];
    assert!(counters.retransmitted <= 2 && counters.timeouts == 0, "{counters:?}");
    let ideal_ns = 2_000_000 * 8 * 50;
    assert!((ideal_ns..ideal_ns * 13 / 10).contains(&outcome.took_ns), "{outcome:?}");
}

/// A reader that pauses until extents go back: the window probe asks for them again, and the data
/// that the window has room for arrives.
#[test]
fn window_probe_requests_released_extent_again() {
    let host = |receive_bytes| Host {
        link: Plan::perfect(5 * MS, 20_000_000),
        config: Config { receive_bytes, ..Config::default() },
        defers_acks: true,
        device_ns: 0,
        smoltcp: None,
    };
    let reader = Side { gulp: 4000, pause_ns: 10_000 * MS, ..Side::sending(0) };
    let sides = [reader, Side { uses_extents: true, ..Side::sending(30_000) }];
    let talk = Talk { hosts: [0, 1], sides, opens_at_ns: 0, is_simultaneous: false };
    let hosts = vec![host(8192), host(1 << 18)];
    let outcome = Scenario { seed: 1, is_v6: false, hosts, talks: vec![talk] }.run();
    let counters = &outcome.counters[1];
    assert!(counters.unpinned > 0 && counters.window_probes > 10, "{counters:?}");
    assert_eq!(counters.timed_out, 0);
    // Probes wait longer each time, whether or not their extent is there: a pause sees four.
    assert!(counters.window_probes <= 8 * 4, "{counters:?}");
}

#[test]
fn shrink_reduces_scenario_to_cause_of_failure() {
    // A scenario "fails" while one thing is in it: only that is left.
    for seed in 0..20 {
        let mut random = SplitMix(seed);
        let mut scenario = Scenario::of(Kind::Hub, seed);
        let culprit = random.below(scenario.hosts.len() as u64) as usize;
        scenario.hosts[culprit].link.loss = 77;
        let (smallest, without) = shrink(scenario, &|scenario| scenario.hosts[culprit].link.loss == 77);
        assert_eq!(smallest.talks.len(), 1, "seed {seed}");
        assert!(smallest.talks[0].sides.iter().all(|side| side.bytes == 0), "seed {seed}");
        assert_eq!(smallest.hosts[culprit].link.loss, 77, "seed {seed}");
        // The same once more, by name, as a person would.
        let mut again = Scenario::of(Kind::Hub, seed);
        again.hosts[culprit].link.loss = 77;
        for what in &without {
            let simpler = again.simpler();
            again = simpler.into_iter().find(|(other, _)| other == what).expect("the name of a step").1;
        }
        assert_eq!(format!("{again:?}"), format!("{smallest:?}"), "seed {seed}");
    }
}
