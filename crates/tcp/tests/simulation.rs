//! Connections over bad links in virtual time: every byte right, nothing left behind, everything done once the links are well.
//!
//! A failure names its seed: `MILLRACE_TCP_SEED=1234 cargo test -p millrace-tcp --test simulation` runs that one alone.
//! `MILLRACE_TCP_RUNS=1000000` runs that many of each kind.

mod sim;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_tcp::cc::Algorithm;
use millrace_tcp::conn::Config;

use sim::app::App;
use sim::link::{Link, Plan};
use sim::ours::{Ours, settings};
use sim::smol::Smol;
use sim::{Endpoint, MS, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `one` with as many seeds as asked for.
fn seeds(count: u64, one: impl Fn(u64)) {
    if let Some(seed) = number("MILLRACE_TCP_SEED") {
        return one(seed);
    }
    for seed in 0..number("MILLRACE_TCP_RUNS").unwrap_or(count) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| one(seed))) {
            eprintln!("seed {seed}: MILLRACE_TCP_SEED={seed} runs it alone");
            resume_unwind(panic);
        }
    }
}

fn client_end() -> SocketAddr {
    "10.0.0.1:40000".parse().expect("an address")
}

fn server_end() -> SocketAddr {
    "10.0.0.2:80".parse().expect("an address")
}

fn config(random: &mut SplitMix) -> Config {
    let mut coin = || random.below(4) > 0;
    let (stamps, sack, scaling, ecn, paced, nagle) = (coin(), coin(), coin(), coin(), coin(), coin());
    Config {
        mtu: [1500, 1500, 1400, 1280, 576][random.below(5) as usize],
        receive_bytes: 2_000 + random.below(120_000) as u32,
        stamps,
        sack,
        scaling,
        ecn,
        paced,
        nagle,
        algorithm: if random.below(4) == 0 { Algorithm::Reno } else { Algorithm::Cubic },
        ..Config::default()
    }
}

/// Both applications of a run.
fn apps(random: &mut SplitMix) -> [App; 2] {
    let mut length = || match random.below(4) {
        0 => random.below(3),
        1 => random.below(2_000),
        _ => random.below(80_000),
    };
    let (up, down) = (length(), length());
    let (a, b) = (random.next(), random.next());
    let mut apps = [App::new(a, b, up, down), App::new(b, a, down, up)];
    for app in &mut apps {
        app.chunk = 1 + random.below(6_000) as usize;
        if random.below(4) == 0 {
            app.gulp = 500 + random.below(4_000) as usize;
            app.pause_ns = random.below(40) * MS;
        }
    }
    apps
}

fn links(random: &mut SplitMix) -> [Link; 2] {
    [0, 1].map(|number| Link::new(Plan::random(random), SplitMix::numbered(random.next(), number)))
}

fn ours(random: &mut SplitMix, local: SocketAddr, app: App) -> Ours {
    let mut settings = settings(config(random), random.next());
    settings.defers_acks = random.below(3) > 0;
    let mut ours = Ours::new(&settings, local, app, SplitMix(random.next()));
    ours.uses_extents = random.below(2) == 0;
    ours.device_ns = if random.below(2) == 0 { 0 } else { random.below(200) * MS };
    ours
}

fn between_two_of_ours(seed: u64) {
    let mut random = SplitMix::numbered(seed, 1);
    let [up, down] = apps(&mut random);
    let mut client = ours(&mut random, client_end(), up);
    let mut server = ours(&mut random, server_end(), down);
    server.listen();
    client.open(server_end());
    run(&mut [&mut client, &mut server], &mut links(&mut random));
}

fn with_smoltcp_as_client(seed: u64) {
    let mut random = SplitMix::numbered(seed, 2);
    let [up, down] = apps(&mut random);
    let buffer = 2_000 + random.below(60_000) as usize;
    let mut client = Smol::new(client_end().ip(), up, buffer, random.next());
    let mut server = ours(&mut random, server_end(), down);
    server.listen();
    client.open(server_end(), client_end().port());
    run(&mut [&mut client, &mut server], &mut links(&mut random));
}

fn with_smoltcp_as_server(seed: u64) {
    let mut random = SplitMix::numbered(seed, 3);
    let [up, down] = apps(&mut random);
    let mut client = ours(&mut random, client_end(), up);
    let buffer = 2_000 + random.below(60_000) as usize;
    let mut server = Smol::new(server_end().ip(), down, buffer, random.next());
    server.listen(server_end().port());
    client.open(server_end());
    run(&mut [&mut client, &mut server], &mut links(&mut random));
}

#[test]
fn two_stacks_over_bad_links() {
    seeds(2_000, between_two_of_ours);
}

#[test]
fn smoltcp_opens_to_us_over_bad_links() {
    seeds(1_000, with_smoltcp_as_client);
}

#[test]
fn we_open_to_smoltcp_over_bad_links() {
    seeds(1_000, with_smoltcp_as_server);
}

#[test]
fn a_perfect_link_is_used_and_nothing_times_out() {
    let mut random = SplitMix(1);
    let apps = [App::new(1, 2, 0, 2_000_000), App::new(2, 1, 2_000_000, 0)];
    let [up, down] = apps;
    let big = Config { receive_bytes: 1 << 18, ..Config::default() };
    let mut client = Ours::new(&settings(big, 5), client_end(), up, SplitMix(random.next()));
    let mut server = Ours::new(&settings(big, 6), server_end(), down, SplitMix(random.next()));
    server.uses_extents = true;
    server.listen();
    client.open(server_end());
    let plan = Plan::perfect(5 * MS, 20_000_000);
    let mut links = [Link::new(plan, SplitMix(1)), Link::new(plan, SplitMix(2))];
    let outcome = run(&mut [&mut client as &mut dyn Endpoint, &mut server], &mut links);
    let counters = server.stack.counters();
    // A tail loss probe may meet a delayed ACK.
    assert!(counters.retransmitted <= 2 && counters.timeouts == 0, "{counters:?}");
    let ideal_ns = 2_000_000 * 8 * 50;
    assert!(outcome.took_ns < ideal_ns * 13 / 10, "{outcome:?}");
    assert!(Instant(outcome.took_ns) > Instant(ideal_ns));
}
