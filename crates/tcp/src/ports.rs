//! Source ports of connections opened from here, hard to guess and late to return (RFC 6056).

use std::ops::RangeInclusive;

use millrace_core::random::SplitMix;

use crate::keyed::HashKey;
use crate::limits::PORT_COUNTERS;
use crate::wire::FlowKey;

/// Tells the two hashes of one key apart.
const OFFSET: u64 = 1;
const INDEX: u64 = 2;

/// Chooses source ports by the double hash of RFC 6056 section 3.3.4: each remote end has its own sequence of ports, and they advance in
/// [`PORT_COUNTERS`] separate spaces.
#[derive(Debug)]
pub struct Ports {
    key: HashKey,
    counters: Box<[u16]>,
    first: u16,
    count: u32,
}

impl Ports {
    /// Chooses among `ports`; among its first port only if the range is empty. `seed` is where the counters begin: random, but no
    /// secret.
    pub fn new(key: HashKey, seed: u64, ports: RangeInclusive<u16>) -> Self {
        let mut random = SplitMix(seed);
        let counters = (0..PORT_COUNTERS).map(|_| random.next() as u16).collect();
        let count = u32::from(ports.end().saturating_sub(*ports.start())) + 1;
        Self { key, counters, first: *ports.start(), count }
    }

    /// A port for a connection between the ends of `flow` (its local port does not matter) that `is_free` agrees to; `None` when it
    /// agrees to none.
    pub fn pick(&mut self, flow: &FlowKey, mut is_free: impl FnMut(u16) -> bool) -> Option<u16> {
        let [a, b, c, d, rest] = *flow.with_local_port(0).words();
        let hash = |salt| self.key.strong(&[a, b, c, d, rest, salt]);
        // RFC 6056 section 3.3.4: offset = F(..), index = G(..), port = min + (offset + table[index]) % num.
        let (offset, index) = (hash(OFFSET) as u32, hash(INDEX) as usize % PORT_COUNTERS);
        let counter = self.counters.get_mut(index)?;
        let from = offset % self.count + u32::from(*counter);
        for step in 0..self.count {
            let port = self.first + ((from + step) % self.count) as u16;
            if is_free(port) {
                *counter = counter.wrapping_add(step as u16).wrapping_add(1);
                return Some(port);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn flow(remote: &str) -> FlowKey {
        FlowKey::new("192.0.2.1:0".parse().unwrap(), remote.parse().unwrap()).unwrap()
    }

    #[test]
    fn each_port_comes_up_once_before_one_returns() {
        let mut ports = Ports::new(HashKey::new([1, 2]), 3, 50_000..=50_099);
        let flow = flow("198.51.100.7:80");
        let first: Vec<u16> = (0..100).map(|_| ports.pick(&flow, |_| true).unwrap()).collect();
        assert_eq!(BTreeSet::from_iter(first.clone()), BTreeSet::from_iter(50_000..=50_099));
        assert_eq!(ports.pick(&flow, |_| true), Some(first[0]));
    }

    #[test]
    fn the_only_free_port_is_found_also_where_the_counter_wraps() {
        let mut ports = Ports::new(HashKey::new([1, 2]), 3, 49_152..=u16::MAX);
        let flow = flow("198.51.100.7:80");
        for counter in [0, u16::MAX - 1, u16::MAX] {
            ports.counters.fill(counter);
            for free in [49_152, 60_000, u16::MAX] {
                assert_eq!(ports.pick(&flow, |port| port == free), Some(free));
            }
        }
        assert_eq!(ports.pick(&flow, |_| false), None);
        assert_eq!(Ports::new(HashKey::new([1, 2]), 3, 7..=7).pick(&flow, |_| true), Some(7));
        let mut all = Ports::new(HashKey::new([1, 2]), 3, 0..=u16::MAX);
        assert_eq!(all.pick(&flow, |port| port == u16::MAX), Some(u16::MAX));
    }

    #[test]
    fn the_largest_offset_and_counter_are_added_without_an_overflow() {
        let (flow, ports) = (flow("198.51.100.7:80"), 0..=u16::MAX);
        let [a, b, c, d, rest] = *flow.words();
        let offset = |key: u64| HashKey::new([key, 2]).strong(&[a, b, c, d, rest, OFFSET]) as u32;
        let key = (0..).find(|key| offset(*key) > u32::MAX - u32::from(u16::MAX)).unwrap();
        let mut ports = Ports::new(HashKey::new([key, 2]), 3, ports);
        ports.counters.fill(u16::MAX);
        let expected = offset(key).wrapping_add(u32::from(u16::MAX)) as u16;
        assert_eq!(ports.pick(&flow, |_| true), Some(expected));
    }

    #[test]
    fn other_remote_ends_and_other_keys_begin_elsewhere() {
        let first = |key, remote: &str| {
            Ports::new(HashKey::new([key, 2]), 3, 1024..=u16::MAX).pick(&flow(remote), |_| true).unwrap()
        };
        let mut seen = BTreeSet::new();
        for key in 0..8 {
            for remote in ["198.51.100.7:80", "198.51.100.7:81", "198.51.100.8:80"] {
                seen.insert(first(key, remote));
            }
        }
        assert!(seen.len() >= 23, "{} of 24 differ", seen.len());
        // The own port is what is asked for: it changes nothing.
        let mut ports = Ports::new(HashKey::new([1, 2]), 3, 1024..=u16::MAX);
        let a = ports.pick(&flow("198.51.100.7:80"), |_| true).unwrap();
        let b = ports.pick(&flow("198.51.100.7:80").with_local_port(77), |_| true).unwrap();
        assert_eq!(b, a + 1);
    }
}
