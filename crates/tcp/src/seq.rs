//! Sequence numbers (RFC 9293 section 3.4): numbers modulo 2^32. Only neighbours within half the
//! space can be compared.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A sequence number.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// How far this is behind `earlier`, in bytes; negative if it is before it.
    #[inline]
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// `self < other` (RFC 9293 section 3.4).
    #[inline]
    pub const fn before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// `self > other`.
    #[inline]
    pub const fn after(self, other: Self) -> bool {
        self.since(other) > 0
    }

    /// `self <= other`.
    #[inline]
    pub const fn up_to(self, other: Self) -> bool {
        self.since(other) <= 0
    }

    /// Whether it lies in `first .. first + bytes`.
    #[inline]
    pub const fn is_within(self, first: Self, bytes: u32) -> bool {
        self.0.wrapping_sub(first.0) < bytes
    }

    /// The later of both.
    #[inline]
    pub const fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// The earlier of both.
    #[inline]
    pub const fn min(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Self;
    #[inline]
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_compare_across_the_wrap() {
        let (before, after) = (Seq(u32::MAX - 5), Seq(10));
        assert!(before.before(after) && after.after(before) && !after.before(before));
        assert!(before.up_to(before) && before.up_to(after) && !after.up_to(before));
        assert_eq!(after.since(before), 16);
        assert_eq!(before.since(after), -16);
        assert_eq!((before.max(after), before.min(after)), (after, before));
        assert_eq!((before + 16, after - 16), (after, before));
    }

    #[test]
    fn is_within_handles_wrapped_and_empty_windows() {
        let first = Seq(u32::MAX - 1);
        assert!(Seq(u32::MAX).is_within(first, 4) && Seq(1).is_within(first, 4));
        assert!(!Seq(2).is_within(first, 4) && !(first - 1).is_within(first, 4));
        assert!(!first.is_within(first, 0));
    }
}
