//! Scenarios in real time on a machine that has other things to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Times a scenario may be played again because the machine stood still.
const AGAIN: usize = 4;
/// The scenarios tolerate being late by this much.
const STANDSTILL: Duration = Duration::from_millis(100);

/// Pages that this process had to fetch from disk.
fn major_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(9)?.parse().ok()).unwrap_or(0)
}

/// Runs a scenario that takes place in real time. If it fails while the machine demonstrably stood still (a thread that
/// only sleeps was held up, or pages of this program had to come from disk), it has shown nothing and is run again.
pub fn steady(scenario: impl Fn()) {
    for attempt in 1.. {
        let (stop, faults_before) = (AtomicBool::new(false), major_faults());
        let (outcome, longest) = std::thread::scope(|scope| {
            let watchdog = scope.spawn(|| {
                let mut longest = Duration::ZERO;
                while !stop.load(Ordering::Relaxed) {
                    let before = Instant::now();
                    std::thread::sleep(Duration::from_millis(5));
                    longest = longest.max(before.elapsed());
                }
                longest
            });
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&scenario));
            stop.store(true, Ordering::Relaxed);
            (outcome, watchdog.join().unwrap())
        });
        let faults = major_faults() - faults_before;
        match outcome {
            Ok(()) => return,
            Err(_) if attempt < AGAIN && (longest > STANDSTILL || faults > 0) => {
                eprintln!(
                    "attempt {attempt}: the machine stood still for {longest:?}, {faults} pages from disk; again"
                );
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
