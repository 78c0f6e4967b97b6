//! A small table of addresses with a value each: fixed size, never allocates, forgets the oldest when full.

use std::net::{IpAddr, SocketAddr};

use crate::limits::{ADDRESS_SETS, ADDRESS_WAYS};

#[derive(Clone, Copy)]
struct AddrSlot<V> {
    addr: SocketAddr,
    value: V,
    /// When it was put in, on the owner's clock.
    born: u64,
}

/// Remembers a value for up to 256 addresses. A hostile peer can at worst make it forget: that costs its owner a
/// report, never a wrong one.
pub(super) struct AddrTable<V> {
    slots: Box<[Option<AddrSlot<V>>]>,
    used: usize,
    /// Age at which an entry is dead.
    lifetime: u64,
}

impl<V: Copy> AddrTable<V> {
    /// An empty table whose entries die after `lifetime` on the owner's clock.
    pub(super) fn new(lifetime: u64) -> Self {
        Self { slots: vec![None; ADDRESS_WAYS * ADDRESS_SETS].into(), used: 0, lifetime }
    }

    fn set(&mut self, addr: SocketAddr) -> &mut [Option<AddrSlot<V>>] {
        let ip = match addr.ip() {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64 ^ (v6.to_bits() as u64).rotate_left(17),
        };
        // Multiplicative hashing (Knuth 6.4): the top bits of the product depend on all bits of the key.
        let hash = (ip ^ u64::from(addr.port()) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let set = (hash >> (64 - ADDRESS_SETS.ilog2())) as usize;
        &mut self.slots[set * ADDRESS_WAYS..(set + 1) * ADDRESS_WAYS]
    }

    /// Puts `value` in for `addr`, over an older value of the same address, else over the oldest of the group.
    pub(super) fn put(&mut self, addr: SocketAddr, value: V, now: u64) {
        let set = self.set(addr);
        let place = set.iter().position(|s| s.is_some_and(|s| same(s.addr, addr)));
        let place = place.or_else(|| set.iter().position(Option::is_none));
        let place = place.unwrap_or_else(|| {
            let oldest = set.iter().enumerate().min_by_key(|(_, s)| s.map_or(0, |s| s.born));
            oldest.map_or(0, |(index, _)| index)
        });
        let was_free = set[place].is_none();
        set[place] = Some(AddrSlot { addr, value, born: now });
        self.used += usize::from(was_free);
    }

    /// The value of `addr`, unless it is too old.
    pub(super) fn get(&mut self, addr: SocketAddr, now: u64) -> Option<V> {
        self.find(addr, now, false)
    }

    /// The same, taken out.
    pub(super) fn take(&mut self, addr: SocketAddr, now: u64) -> Option<V> {
        self.find(addr, now, true)
    }

    fn find(&mut self, addr: SocketAddr, now: u64, take: bool) -> Option<V> {
        if self.used == 0 {
            return None;
        }
        let lifetime = self.lifetime;
        let slot = self.set(addr).iter_mut().find(|s| s.is_some_and(|s| same(s.addr, addr)))?;
        let found = (*slot)?;
        let alive = now.saturating_sub(found.born) <= lifetime;
        if take || !alive {
            *slot = None;
            self.used -= 1;
        }
        alive.then_some(found.value)
    }
}

/// Same address and port; the scope and flow that the kernel adds to an IPv6 address do not count.
fn same(a: SocketAddr, b: SocketAddr) -> bool {
    a.ip() == b.ip() && a.port() == b.port()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn addr(n: u32) -> SocketAddr {
        SocketAddr::from((n.to_be_bytes(), 5000))
    }

    #[test]
    fn entries_age_and_are_taken_once() {
        let mut table = AddrTable::new(10);
        table.put(addr(1), 'a', 100);
        assert_eq!(
            (table.get(addr(1), 110), table.take(addr(1), 110), table.get(addr(1), 110)),
            (Some('a'), Some('a'), None)
        );
        table.put(addr(1), 'b', 100);
        assert_eq!(table.get(addr(1), 111), None);
        assert!(table.used == 0);
    }

    #[test]
    fn scope_of_a_link_local_address_does_not_count() {
        let mut table = AddrTable::new(10);
        table.put("[fe80::1%7]:5".parse().unwrap(), 1, 0);
        assert_eq!(table.get("[fe80::1]:5".parse().unwrap(), 0), Some(1));
        assert_eq!(table.get("[fe80::1]:6".parse().unwrap(), 0), None);
    }

    proptest! {
        /// Against a map: whatever the table remembers is right, and nothing is forgotten before a group overflows.
        #[test]
        fn never_a_wrong_value(ops in proptest::collection::vec((0u32..40, any::<bool>(), any::<u8>()), 1..300)) {
            let mut table = AddrTable::new(u64::MAX);
            let mut model: HashMap<u32, u8> = HashMap::new();
            for (now, (n, put, value)) in ops.into_iter().enumerate() {
                if put {
                    table.put(addr(n), value, now as u64);
                    model.insert(n, value);
                } else if let Some(value) = table.take(addr(n), now as u64) {
                    prop_assert_eq!(model.remove(&n), Some(value));
                }
            }
            let mut left = 0;
            for n in 0..40 {
                if let Some(value) = table.get(addr(n), u64::MAX) {
                    prop_assert_eq!(model.get(&n), Some(&value));
                    left += 1;
                }
            }
            prop_assert_eq!(left, table.used);
                    }
    }
}
