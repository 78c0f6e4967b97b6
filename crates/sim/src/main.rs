//! Runs simulations of the whole server, and reports the first that fails.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use millrace_sim::scenario::Scenario;
use millrace_sim::search::{SearchOutcome, run_scenario, search_seeds, shrink_scenario};
use millrace_sim::titles::Stores;
use millrace_sim::world::Violation;

/// Simulates the whole server, one seed after the other, and reports the first that fails
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Number of seeds to run
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this seed alone
    #[arg(long)]
    seed: Option<u64>,
    /// Print everything that happens
    #[arg(long)]
    verbose: bool,
    /// Report the failure as it is, without looking for less that fails too
    #[arg(long)]
    no_shrink: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let stores = Stores::write();
    if let Some(seed) = options.seed {
        let scenario = Scenario::from_seed(&stores, seed);
        return match run_scenario(&stores, &scenario, options.verbose) {
            Ok(summary) => {
                println!("seed {seed} held: {summary:?}");
                ExitCode::SUCCESS
            }
            Err(violation) => report(&options, &stores, seed, violation),
        };
    }
    let begun = Instant::now();
    let progress = |seed: u64, all: &millrace_sim::world::Summary| {
        if seed % 10_000 == 9_999 {
            eprintln!("{} seeds, {} s: {all:?}", seed + 1 - options.first, begun.elapsed().as_secs());
        }
    };
    match search_seeds(&stores, options.first, options.seeds, progress) {
        SearchOutcome::Held(all) => {
            println!("{} seeds held in {} s: {all:?}", options.seeds, begun.elapsed().as_secs());
            ExitCode::SUCCESS
        }
        SearchOutcome::Failed { seed, violation } => report(&options, &stores, seed, violation),
    }
}

fn report(options: &Options, stores: &Stores, seed: u64, violation: Violation) -> ExitCode {
    let scenario = Scenario::from_seed(stores, seed);
    println!("seed {seed} fails after {} ms: {}", violation.at_ns / 1_000_000, violation.what);
    if !options.no_shrink {
        let (least, how) = shrink_scenario(stores, &scenario, violation);
        println!("this much of it still fails, after {} ms: {}", how.at_ns / 1_000_000, how.what);
        println!("{least:#?}");
        if options.verbose {
            let _ = run_scenario(stores, &least, true);
        }
    }
    println!("replay: cargo run -p millrace-sim --release -- --seed {seed} --verbose");
    ExitCode::FAILURE
}
