//! Many seeds; and of a failure the smallest scenario that still fails.
//!
//! A failure names its seed. Parts of its scenario are left out one by one while it still fails;
//! the rest is printed, with the command to run it again.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;

use super::scenario::{Kind, Scenario};

/// Runs that the search for a smaller scenario may take.
const MOST_TRIES: usize = 400;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `count` seeds of a kind, or as many as make the connections that the environment asks for.
pub(crate) fn seeds(kind: Kind, count: u64) {
    if let Some(seed) = number("MILLRACE_TCP_SEED") {
        let without = std::env::var("MILLRACE_TCP_WITHOUT").unwrap_or_default();
        let scenario = without.split_whitespace().fold(Scenario::of(kind, seed), |scenario, what| {
            let found = scenario.simpler().into_iter().find(|(other, _)| other == what);
            found.unwrap_or_else(|| panic!("there is no {what} in {scenario:#?}")).1
        });
        scenario.run();
        return;
    }
    let first = number("MILLRACE_TCP_FROM").unwrap_or(0);
    let asked = number("MILLRACE_TCP_RUNS").map(|connections| connections / kind.connections());
    for seed in first..first + asked.unwrap_or(count) {
        let scenario = Scenario::of(kind, seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario.run())) {
            eprintln!(
                "{kind:?}, seed {seed} fails (MILLRACE_TCP_SEED={seed}); the smallest of it that fails:"
            );
            let (smallest, without) = shrink(scenario, &|scenario| is_failing(scenario));
            let without = without.join(" ");
            eprintln!(
                "{smallest:#?}\nMILLRACE_TCP_SEED={seed} MILLRACE_TCP_WITHOUT='{without}' runs it alone"
            );
            resume_unwind(panic);
        }
    }
}

/// Leaves parts out while the scenario fails; returns the rest, and the parts left out.
pub(crate) fn shrink(mut scenario: Scenario, fails: &dyn Fn(&Scenario) -> bool) -> (Scenario, Vec<String>) {
    let (mut without, mut tries) = (Vec::new(), 0);
    loop {
        let (mut place, before) = (0, without.len());
        while let Some((what, simpler)) = scenario.simpler().into_iter().nth(place) {
            tries += 1;
            if tries > MOST_TRIES {
                return (scenario, without);
            }
            match fails(&simpler) {
                // The next part has taken its place.
                true => (scenario, _) = (simpler, without.push(what)),
                false => place += 1,
            }
        }
        if without.len() == before {
            return (scenario, without);
        }
    }
}

/// Whether a scenario fails, without a word.
fn is_failing(scenario: &Scenario) -> bool {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if !IS_QUIET.get() {
                before(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let is_failing = catch_unwind(AssertUnwindSafe(|| scenario.run())).is_err();
    IS_QUIET.set(false);
    is_failing
}
