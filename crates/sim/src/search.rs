//! Many seeds, and the least of a scenario that still fails.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::scenario::Scenario;
use crate::titles::Stores;
use crate::world::{Summary, Violation, simulate};

/// Runs a scenario; a panic of the server is a failure like any other.
///
/// # Errors
/// The first invariant that does not hold.
pub fn run_scenario(stores: &Stores, scenario: &Scenario, is_verbose: bool) -> Result<Summary, Violation> {
    let run = || simulate(stores, scenario, is_verbose);
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(Violation { at_ns: 0, what: format!("panic: {}", message_of(&*panic)) }))
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("of an unknown kind")
}

/// Leaves out faults, viewers and actions as long as the scenario fails without them. Returns the
/// rest, and how it fails.
pub fn shrink_scenario(stores: &Stores, scenario: &Scenario, violation: Violation) -> (Scenario, Violation) {
    let (mut least, mut how) = (scenario.clone(), violation);
    loop {
        let smaller = smaller_than(&least).into_iter().find_map(|smaller| {
            let violation = run_scenario(stores, &smaller, false).err()?;
            Some((smaller, violation))
        });
        match smaller {
            Some((smaller, violation)) => (least, how) = (smaller, violation),
            None => return (least, how),
        }
    }
}

/// The scenarios with one thing less, the largest things first.
fn smaller_than(scenario: &Scenario) -> Vec<Scenario> {
    let mut smaller = Vec::new();
    let mut with = |change: &dyn Fn(&mut Scenario)| {
        let mut changed = scenario.clone();
        change(&mut changed);
        smaller.push(changed);
    };
    if scenario.viewers.len() > 1 {
        (0..scenario.viewers.len()).for_each(|index| with(&|less| _ = less.viewers.remove(index)));
    }
    (0..scenario.faults.len()).for_each(|index| with(&|less| _ = less.faults.remove(index)));
    for (viewer, plan) in scenario.viewers.iter().enumerate() {
        (0..plan.steps.len()).for_each(|step| with(&|less| _ = less.viewers[viewer].steps.remove(step)));
        if plan.loss_ppm > 0 {
            with(&|less| less.viewers[viewer].loss_ppm = 0);
        }
        if plan.from_ms.is_some() {
            with(&|less| less.viewers[viewer].from_ms = None);
        }
    }
    if scenario.server.engines > 1 {
        with(&|less| less.server.engines = 1);
    }
    smaller
}

/// The result of a search.
#[derive(Debug)]
pub enum SearchOutcome {
    /// Every seed held.
    Held(Summary),
    /// One did not.
    Failed {
        /// The first that did not.
        seed: u64,
        /// How.
        violation: Violation,
    },
}

/// Runs seeds `first..first + count` until one fails. Calls `progress` after each.
pub fn search_seeds(
    stores: &Stores,
    first: u64,
    count: u64,
    mut progress: impl FnMut(u64, &Summary),
) -> SearchOutcome {
    let mut all = Summary::default();
    for seed in first..first.saturating_add(count) {
        match run_scenario(stores, &Scenario::from_seed(stores, seed), false) {
            Ok(summary) => {
                all.steps += summary.steps;
                all.packets += summary.packets;
                all.sessions += summary.sessions;
                all.failed += summary.failed;
                all.refused += summary.refused;
                progress(seed, &all);
            }
            Err(violation) => return SearchOutcome::Failed { seed, violation },
        }
    }
    SearchOutcome::Held(all)
}
