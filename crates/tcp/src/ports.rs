//! Sets of ports; and source ports of connections opened from here, hard to guess and late to return (RFC 6056).

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use millrace_core::limits::toe::MAX_PORT_RANGES;
use millrace_core::random::SplitMix;

use crate::keyed::HashKey;
use crate::limits::PORT_COUNTERS;
use crate::wire::FlowKey;

/// Tells the two hashes of one key apart.
const OFFSET: u64 = 1;
const INDEX: u64 = 2;

/// A set of ports, one at least.
///
/// ```
/// use millrace_tcp::ports::PortSet;
/// let ports: PortSet = "5540-5560,8080".parse().unwrap();
/// assert_eq!((ports.count(), ports.nth(21), ports.contains(5561)), (22, Some(8080), false));
/// assert_eq!(ports.to_string(), "5540-5560,8080");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSet(
    /// First and last port of each range; sorted, with a gap between any two.
    Box<[(u16, u16)]>,
);

impl PortSet {
    /// The ports of these ranges, which may touch and overlap. `None`: there are none, a range ends before it begins, or more than
    /// [`MAX_PORT_RANGES`] are left when neighbours are joined.
    pub fn of(ranges: impl IntoIterator<Item = RangeInclusive<u16>>) -> Option<Self> {
        let mut all: Vec<(u16, u16)> =
            ranges.into_iter().map(|range| (*range.start(), *range.end())).collect();
        if all.is_empty() || all.iter().any(|(first, last)| first > last) {
            return None;
        }
        all.sort_unstable();
        // The second one is put into the first one if it begins no later than behind its end.
        all.dedup_by(|next, before| {
            let touches = u32::from(next.0) <= u32::from(before.1) + 1;
            if touches {
                before.1 = before.1.max(next.1);
            }
            touches
        });
        (all.len() <= MAX_PORT_RANGES).then(|| Self(all.into()))
    }

    /// Its ranges, in order.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u16>> {
        self.0.iter().map(|&(first, last)| first..=last)
    }

    /// All ports, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.ranges().flatten()
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|(first, last)| u32::from(last - first) + 1).sum()
    }

    /// Whether it is one of them.
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|&(first, last)| (first..=last).contains(&port))
    }

    /// The port before which there are `index` others.
    pub fn nth(&self, mut index: u32) -> Option<u16> {
        for (first, last) in &self.0 {
            let count = u32::from(last - first) + 1;
            if index < count {
                return Some(first + index as u16);
            }
            index -= count;
        }
        None
    }
}

/// An empty range is its first port.
impl From<RangeInclusive<u16>> for PortSet {
    fn from(range: RangeInclusive<u16>) -> Self {
        let (first, last) = range.into_inner();
        Self([(first, last.max(first))].into())
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (first, last)) in self.0.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for PortSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let [first, last] =
                [first, last].map(|port| port.trim().parse::<u16>().ok().filter(|&port| port != 0));
            Some(first?..=last?)
        };
        let ranges: Option<Vec<RangeInclusive<u16>>> = text.split(',').map(range).collect();
        ranges.and_then(Self::of).ok_or_else(|| {
            format!(
                "got \"{text}\"; write ports and ranges of ports, at most {MAX_PORT_RANGES}, for example 8080,5540-5560"
            )
        })
    }
}

/// Chooses source ports by the double hash of RFC 6056 section 3.3.4: each remote end has its own sequence of ports, and they advance in
/// [`PORT_COUNTERS`] separate spaces.
#[derive(Debug)]
pub struct Ports {
    key: HashKey,
    counters: Box<[u16]>,
    ports: PortSet,
    count: u32,
}

impl Ports {
    /// Chooses among `ports`. `seed` is where the counters begin: random, but no secret.
    pub fn new(key: HashKey, seed: u64, ports: PortSet) -> Self {
        let mut random = SplitMix(seed);
        let counters = (0..PORT_COUNTERS).map(|_| random.next() as u16).collect();
        let count = ports.count();
        Self { key, counters, ports, count }
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
            let port = self.ports.nth((from + step) % self.count)?;
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
    fn pick_returns_all_ports_before_repeating() {
        let mut ports = Ports::new(HashKey::new([1, 2]), 3, (50_000..=50_099).into());
        let flow = flow("198.51.100.7:80");
        let first: Vec<u16> = (0..100).map(|_| ports.pick(&flow, |_| true).unwrap()).collect();
        assert_eq!(BTreeSet::from_iter(first.clone()), BTreeSet::from_iter(50_000..=50_099));
        assert_eq!(ports.pick(&flow, |_| true), Some(first[0]));
    }

    #[test]
    fn pick_finds_single_free_port_when_counter_wraps() {
        let mut ports = Ports::new(HashKey::new([1, 2]), 3, (49_152..=u16::MAX).into());
        let flow = flow("198.51.100.7:80");
        for counter in [0, u16::MAX - 1, u16::MAX] {
            ports.counters.fill(counter);
            for free in [49_152, 60_000, u16::MAX] {
                assert_eq!(ports.pick(&flow, |port| port == free), Some(free));
            }
        }
        assert_eq!(ports.pick(&flow, |_| false), None);
        assert_eq!(Ports::new(HashKey::new([1, 2]), 3, (7..=7).into()).pick(&flow, |_| true), Some(7));
        let mut all = Ports::new(HashKey::new([1, 2]), 3, (0..=u16::MAX).into());
        assert_eq!(all.pick(&flow, |port| port == u16::MAX), Some(u16::MAX));
    }

    #[test]
    fn pick_with_largest_offset_and_counter_does_not_overflow() {
        let (flow, ports) = (flow("198.51.100.7:80"), PortSet::from(0..=u16::MAX));
        let [a, b, c, d, rest] = *flow.words();
        let offset = |key: u64| HashKey::new([key, 2]).strong(&[a, b, c, d, rest, OFFSET]) as u32;
        let key = (0..).find(|key| offset(*key) > u32::MAX - u32::from(u16::MAX)).unwrap();
        let mut ports = Ports::new(HashKey::new([key, 2]), 3, ports);
        ports.counters.fill(u16::MAX);
        let expected = offset(key).wrapping_add(u32::from(u16::MAX)) as u16;
        assert_eq!(ports.pick(&flow, |_| true), Some(expected));
    }

    #[test]
    fn ports_of_several_ranges_come_up_each_once() {
        let set: PortSet = "7,50000-50009,65535".parse().unwrap();
        let mut ports = Ports::new(HashKey::new([1, 2]), 3, set.clone());
        let flow = flow("198.51.100.7:80");
        let all: BTreeSet<u16> = (0..12).map(|_| ports.pick(&flow, |_| true).unwrap()).collect();
        assert_eq!(all, set.iter().collect());
        assert_eq!(ports.pick(&flow, |port| port == 65_535), Some(65_535));
        assert_eq!(ports.pick(&flow, |port| port == 8), None);
    }

    #[test]
    fn sets_are_read_joined_and_written() {
        for (text, written) in [
            ("8080", "8080"),
            ("8080,5540-5560", "5540-5560,8080"),
            ("1-65535", "1-65535"),
            ("5,7,6,1-4", "1-7"),
            ("10-20,15-30,31,33", "10-31,33"),
            (" 80 , 81 - 90", "80-90"),
            ("65535,65534", "65534-65535"),
        ] {
            let set: PortSet = text.parse().unwrap();
            assert_eq!(set.to_string(), written);
            assert_eq!(set.count() as usize, set.iter().count(), "{text}");
            for (index, port) in (0..).zip(set.iter()) {
                assert!(set.nth(index) == Some(port) && set.contains(port), "{text}: {port}");
            }
            assert_eq!(set.nth(set.count()), None);
            assert_eq!((0..=u16::MAX).filter(|&port| set.contains(port)).count(), set.iter().count());
        }
        for text in ["", ",", "0", "0-5", "5-4", "80,", "80-", "-80", "65536", "http", "1-2-3", "80;81"] {
            let error = text.parse::<PortSet>().unwrap_err();
            assert!(error.contains(&format!("\"{text}\"")) && error.contains("8080,5540-5560"), "{error}");
        }
        let apart = |count: u16| (1..=count).map(|n| 2 * n..=2 * n);
        assert!(PortSet::of(apart(MAX_PORT_RANGES as u16)).is_some());
        assert!(PortSet::of(apart(MAX_PORT_RANGES as u16 + 1)).is_none());
    }

    #[test]
    fn other_remote_ends_and_other_keys_begin_elsewhere() {
        let first = |key, remote: &str| {
            Ports::new(HashKey::new([key, 2]), 3, (1024..=u16::MAX).into())
                .pick(&flow(remote), |_| true)
                .unwrap()
        };
        let mut seen = BTreeSet::new();
        for key in 0..8 {
            for remote in ["198.51.100.7:80", "198.51.100.7:81", "198.51.100.8:80"] {
                seen.insert(first(key, remote));
            }
        }
        assert!(seen.len() >= 23, "{} of 24 differ", seen.len());
        // The local port is the value to be chosen: it changes nothing.
        let mut ports = Ports::new(HashKey::new([1, 2]), 3, (1024..=u16::MAX).into());
        let a = ports.pick(&flow("198.51.100.7:80"), |_| true).unwrap();
        let b = ports.pick(&flow("198.51.100.7:80").with_local_port(77), |_| true).unwrap();
        assert_eq!(b, a + 1);
    }
}
