//! Many seeds, and the least of a scenario that still fails.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::scenario::{Scenario, SignIn};
use crate::titles::Stores;
use crate::world::{Summary, Violation, simulate};

/// Runs a scenario; a panic of the server is a failure like any other.
///
/// # Errors
/// The first invariant that does not hold.
pub fn run_scenario(stores: &Stores, scenario: &Scenario, is_verbose: bool) -> Result<Summary, Violation> {
    watch_panics();
    let _ = take_panic();
    let run = || simulate(stores, scenario, is_verbose);
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(Violation { at_ns: 0, what: format!("panic: {}", message_of(&*panic)) }))
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the message of each panic, so that one that a runtime catches is a failure too.
fn watch_panics() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANIC.set(Some(info.to_string()));
            before(info);
        }));
    });
}

/// The last panic of this thread since the last call.
pub fn take_panic() -> Option<String> {
    PANIC.take()
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
    if scenario.viewers.len() + scenario.http.len() > 1 {
        (0..scenario.viewers.len()).for_each(|index| with(&|less| _ = less.viewers.remove(index)));
        (0..scenario.http.len()).for_each(|index| with(&|less| _ = less.http.remove(index)));
    }
    (0..scenario.faults.len()).for_each(|index| with(&|less| _ = less.faults.remove(index)));
    for (viewer, plan) in scenario.viewers.iter().enumerate() {
        (0..plan.steps.len()).for_each(|step| with(&|less| _ = less.viewers[viewer].steps.remove(step)));
        if plan.loss_ppm > 0 {
            with(&|less| less.viewers[viewer].loss_ppm = 0);
        }
        if plan.fec {
            with(&|less| less.viewers[viewer].fec = false);
        }
        if plan.from_ms.is_some() {
            with(&|less| less.viewers[viewer].from_ms = None);
        }
    }
    for (viewer, plan) in scenario.http.iter().enumerate() {
        (0..plan.steps.len()).for_each(|step| with(&|less| _ = less.http[viewer].steps.remove(step)));
        if plan.shares_address {
            with(&|less| less.http[viewer].shares_address = false);
        }
        if plan.pipelines {
            with(&|less| less.http[viewer].pipelines = false);
        }
    }
    if !scenario.users.is_empty() {
        with(&|less| {
            less.users.clear();
            less.viewers.iter_mut().for_each(|viewer| viewer.sign_in = SignIn::Not);
            less.http.iter_mut().for_each(|viewer| viewer.sign_in = SignIn::Not);
        });
        for (user, plan) in scenario.users.iter().enumerate() {
            if plan.bits_per_s.is_some() {
                with(&|less| less.users[user].bits_per_s = None);
            }
            if plan.streams.is_some() {
                with(&|less| less.users[user].streams = None);
            }
        }
    }
    if scenario.server.address_share_percent < 100 {
        with(&|less| less.server.address_share_percent = 100);
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
                all.refused_users += summary.refused_users;
                all.denied += summary.denied;
                all.late_leases += summary.late_leases;
                all.fec_packets += summary.fec_packets;
                all.http_bytes += summary.http_bytes;
                all.http_answers += summary.http_answers;
                all.http_cut += summary.http_cut;
                progress(seed, &all);
            }
            Err(violation) => return SearchOutcome::Failed { seed, violation },
        }
    }
    SearchOutcome::Held(all)
}
