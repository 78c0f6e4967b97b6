//! A table that several groups share. Half of it is divided among them, and each part is the
//! group's own whatever the others do; the other half is first come, first served.

/// Shares of the groups in a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    /// Of each group; none: nothing is divided.
    used: Box<[u32]>,
    all: u32,
    /// Places that no other group gets.
    own: u32,
    /// Places in use or kept for a group.
    held: u32,
}

impl Shares {
    /// Divides a table of `all` places, none of them in use.
    pub(crate) fn new(all: u32, groups: u8) -> Self {
        let own = all / 2 / u32::from(groups).max(1);
        Self { used: vec![0; groups.into()].into(), all, own, held: own * u32::from(groups) }
    }

    /// Whether a group may have another place.
    #[inline]
    pub(crate) fn has_room(&self, group: u8) -> bool {
        self.used.get(usize::from(group)).is_none_or(|&used| used < self.own || self.held < self.all)
    }

    /// It has taken one.
    #[inline]
    pub(crate) fn take(&mut self, group: u8) {
        if let Some(used) = self.used.get_mut(usize::from(group)) {
            self.held += u32::from(*used >= self.own);
            *used += 1;
        }
    }

    /// It has given one back.
    #[inline]
    pub(crate) fn give(&mut self, group: u8) {
        if let Some(used) = self.used.get_mut(usize::from(group)).filter(|used| **used > 0) {
            *used -= 1;
            self.held -= u32::from(*used >= self.own);
        }
    }

    /// Places of a group.
    pub(crate) fn used(&self, group: u8) -> u32 {
        self.used.get(usize::from(group)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::random::SplitMix;

    use super::*;

    #[test]
    fn half_is_for_whoever_asks_and_each_has_its_own() {
        let mut shares = Shares::new(100, 5);
        let mut take = |group| {
            (0..).take_while(|_| shares.has_room(group).then(|| shares.take(group)).is_some()).count()
        };
        assert_eq!((take(0), take(1), take(2)), (60, 10, 10));
        shares.give(1);
        assert!(!shares.has_room(0), "it is not for others");
        assert!(shares.has_room(1));
        shares.give(0);
        assert!(shares.has_room(2));
        assert_eq!((shares.used(0), shares.used(1), shares.used(4), shares.used(5)), (59, 9, 0, 0));
    }

    #[test]
    fn shares_held_equals_used_plus_reserved() {
        let (mut shares, mut random) = (Shares::new(41, 4), SplitMix(5));
        for _ in 0..10_000 {
            let group = (random.next() % 5) as u8;
            match random.next() % 3 {
                0 => shares.give(group),
                _ if shares.has_room(group) => shares.take(group),
                _ => {}
            }
            let held: u32 = shares.used.iter().map(|&used| used.max(shares.own)).sum();
            assert_eq!(shares.held, held);
            assert!(held <= 41, "{shares:?}");
        }
    }

    #[test]
    fn shares_default_is_unlimited_for_any_group() {
        let mut shares = Shares::default();
        (0..1000).for_each(|_| shares.take(3));
        assert!(shares.has_room(3));
    }
}
