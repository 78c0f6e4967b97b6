//! Sets of members of a volume, and of positions in a stripe. They are two types, because the member at position 2 of a
//! title may be in any slot of the volume.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub, SubAssign};

use crate::limits::MAX_MEMBERS;

const _: () = assert!(MAX_MEMBERS <= u32::BITS as usize, "a set has a bit for each member");

/// Defines a set of small numbers that is passed by value and never allocates.
macro_rules! number_set {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Default, PartialEq, Eq)]
        pub(crate) struct $name(u32);

        #[allow(dead_code)] // neither set needs every method
        impl $name {
            /// The set without elements.
            pub(crate) const EMPTY: Self = Self(0);

            /// The set of one number; empty if the number is out of range.
            pub(crate) const fn of(number: u16) -> Self {
                if (number as usize) < MAX_MEMBERS { Self(1 << number) } else { Self(0) }
            }

            /// The set of all numbers below `count`.
            pub(crate) fn below(count: usize) -> Self {
                (0..count.min(MAX_MEMBERS) as u16).collect()
            }

            /// Adds a number; one that is out of range is ignored.
            pub(crate) fn insert(&mut self, number: u16) {
                *self |= Self::of(number);
            }

            /// Removes a number.
            pub(crate) fn remove(&mut self, number: u16) {
                *self -= Self::of(number);
            }

            pub(crate) fn contains(self, number: u16) -> bool {
                !(self & Self::of(number)).is_empty()
            }

            pub(crate) fn len(self) -> usize {
                self.0.count_ones() as usize
            }

            pub(crate) fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// The numbers in ascending order.
            pub(crate) fn iter(self) -> impl Iterator<Item = u16> {
                let mut rest = self.0;
                std::iter::from_fn(move || {
                    let lowest = (rest != 0).then(|| rest.trailing_zeros() as u16)?;
                    rest &= rest - 1;
                    Some(lowest)
                })
            }
        }

        /// Union.
        impl BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        /// Intersection.
        impl BitAnd for $name {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        /// Difference.
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 &= !other.0;
            }
        }

        impl FromIterator<u16> for $name {
            fn from_iter<I: IntoIterator<Item = u16>>(numbers: I) -> Self {
                numbers.into_iter().fold(Self::EMPTY, |set, number| set | Self::of(number))
            }
        }

        impl<const N: usize> From<[u16; N]> for $name {
            fn from(numbers: [u16; N]) -> Self {
                numbers.into_iter().collect()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_set().entries(self.iter()).finish()
            }
        }
    };
}

number_set!(
    /// Members of a volume by their slots in it. A title without members counts as member 0 of its own.
    MemberSet
);

number_set!(
    /// Positions of members among the members of one title.
    PositionSet
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn set_holds_first_and_last_member_and_ignores_numbers_out_of_range() {
        let last = MAX_MEMBERS as u16 - 1;
        let mut set = MemberSet::from([last, 0, last]);
        assert_eq!((set.len(), set.contains(0), set.contains(1), set.contains(last)), (2, true, false, true));
        for number in [last + 1, 64, u16::MAX] {
            set.insert(number);
            set.remove(number);
            assert!(!set.contains(number) && MemberSet::of(number).is_empty());
            let mut none = MemberSet::EMPTY;
            none.insert(number);
            assert!(none.is_empty(), "{number}");
        }
        assert_eq!(format!("{set:?}"), format!("{{0, {last}}}"));
        set.remove(0);
        assert_eq!(set, MemberSet::of(last));
        set.remove(last);
        assert!(set.is_empty() && set == MemberSet::EMPTY);
    }

    #[test]
    fn below_holds_as_many_as_there_are() {
        let lengths = [0, 1, 5, MAX_MEMBERS, MAX_MEMBERS + 1].map(|count| PositionSet::below(count).len());
        assert_eq!(lengths, [0, 1, 5, MAX_MEMBERS, MAX_MEMBERS]);
        assert_eq!(PositionSet::below(3), PositionSet::from([0, 1, 2]));
    }

    proptest! {
        #[test]
        fn operators_agree_with_ordered_sets(a in proptest::collection::btree_set(0..MAX_MEMBERS as u16, 0..12),
                                             b in proptest::collection::btree_set(0..MAX_MEMBERS as u16, 0..12)) {
            let [x, y]: [MemberSet; 2] = [&a, &b].map(|set| set.iter().copied().collect());
            prop_assert!(x.iter().eq(a.iter().copied()), "in ascending order");
            prop_assert_eq!((x.len(), x.is_empty()), (a.len(), a.is_empty()));
            prop_assert!((x | y).iter().eq(a.union(&b).copied()));
            prop_assert!((x & y).iter().eq(a.intersection(&b).copied()));
            prop_assert!((x - y).iter().eq(a.difference(&b).copied()));
            let (mut union, mut difference) = (x, x);
            union |= y;
            difference -= y;
            prop_assert_eq!((union, difference), (x | y, x - y));
        }
    }
}
