//! Addresses that send wrong passwords.

use std::collections::HashMap;
use std::net::IpAddr;

use millrace_core::address::network_of;
use millrace_core::limits::rights::FAILURES_AT_ONCE;
use millrace_core::time::Instant;

use crate::limits::{FAILURE_REST_NS, MAX_FAILING};

/// Bounded, and cheap however many come: one look-up for each failure.
#[derive(Debug)]
pub(crate) struct Throttle {
    failing: HashMap<IpAddr, Instant>,
    most: usize,
}

/// A failure moves the time at which an address would be free of all of them this far into the future.
const REST: u64 = FAILURE_REST_NS;
/// How far into the future it may be.
const MOST: u64 = REST * FAILURES_AT_ONCE as u64;

impl Default for Throttle {
    fn default() -> Self {
        Self { failing: HashMap::new(), most: MAX_FAILING }
    }
}

impl Throttle {
    /// Whether an address has failed too often to be looked at.
    pub(crate) fn is_shut(&self, address: IpAddr, now: Instant) -> bool {
        self.failing.get(&network_of(address)).is_some_and(|free| free.ns_since(now) > MOST - REST)
    }

    /// Notes a failure.
    pub(crate) fn fail(&mut self, address: IpAddr, now: Instant) {
        let address = network_of(address);
        if self.failing.len() >= self.most && !self.failing.contains_key(&address) {
            // One that need not be known any more, if the first ones are such; else any.
            let some =
                self.failing.iter().take(8).min_by_key(|(_, free)| **free).map(|(address, _)| *address);
            if let Some(some) = some {
                self.failing.remove(&some);
            }
        }
        let free = self.failing.entry(address).or_insert(now);
        *free = (*free).max(now).plus_ns(REST).min(now.plus_ns(MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_at_once_then_one_every_six_seconds() {
        let mut throttle = Throttle::default();
        let (bad, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let at = |s: u64| Instant(s * 1_000_000_000);
        for _ in 0..10 {
            assert!(!throttle.is_shut(bad, at(1)));
            throttle.fail(bad, at(1));
        }
        assert!(throttle.is_shut(bad, at(1)) && !throttle.is_shut(other, at(1)));
        // Going on does not make it longer.
        (0..1000).for_each(|_| throttle.fail(bad, at(1)));
        assert!(throttle.is_shut(bad, at(6)) && !throttle.is_shut(bad, at(7)));
        throttle.fail(bad, at(7));
        assert!(throttle.is_shut(bad, at(7)) && !throttle.is_shut(bad, at(100)));
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        assert!(throttle.is_shut(mapped, at(7)));
    }

    #[test]
    fn throttle_with_many_failing_addresses_stays_bounded() {
        let mut throttle = Throttle { most: 16, ..Throttle::default() };
        for number in 0..1000u128 {
            throttle.fail(IpAddr::V6((number << 64).into()), Instant(0));
            throttle.fail(IpAddr::V6((number << 64 | 1).into()), Instant(0));
        }
        assert_eq!(throttle.failing.len(), 16);
    }
}
