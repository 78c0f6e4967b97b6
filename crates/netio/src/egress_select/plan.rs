//! Which egress path a burst takes, by its length.

use std::fmt;

/// Classes of burst lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// One datagram.
    One,
    /// Two.
    Two,
    /// Three or four.
    Four,
    /// Five to eight.
    Eight,
    /// Nine to sixteen.
    Sixteen,
    /// Seventeen and more.
    More,
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = 6;
    /// All, in order.
    pub const ALL: [Self; Self::COUNT] =
        [Self::One, Self::Two, Self::Four, Self::Eight, Self::Sixteen, Self::More];

    /// The class of a burst of `datagrams`.
    pub fn of(datagrams: usize) -> Self {
        match datagrams {
            0..=1 => Self::One,
            2 => Self::Two,
            3..=4 => Self::Four,
            5..=8 => Self::Eight,
            9..=16 => Self::Sixteen,
            17.. => Self::More,
        }
    }

    /// Returns a burst that stands for the class when it is measured: the longest, and for the last
    /// class the size of a UDP GSO send of usual datagrams.
    pub fn sample(self) -> usize {
        [1, 2, 4, 8, 16, 44][self as usize]
    }

    /// For people: how many datagrams.
    pub fn name(self) -> &'static str {
        ["1", "2", "3-4", "5-8", "9-16", "17+"][self as usize]
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A egress path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EgressPath {
    /// The kernel's UDP socket, with segmentation where it can.
    #[default]
    Kernel,
    /// The same, and the kernel reads the datagrams where they lie (`MSG_ZEROCOPY`).
    KernelZeroCopy,
    /// The AF_XDP device of the interface.
    Xdp,
}

impl EgressPath {
    /// How many there are.
    pub const COUNT: usize = 3;
    /// All.
    pub const ALL: [Self; Self::COUNT] = [Self::Kernel, Self::KernelZeroCopy, Self::Xdp];

    /// For people, and for files.
    pub fn name(self) -> &'static str {
        ["kernel", "kernel-zero-copy", "xdp"][self as usize]
    }

    /// Returns the path called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }
}

impl fmt::Display for EgressPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The facts about an interface that are known without measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceClass {
    /// The driver sends frames where they lie.
    ZeroCopy,
    /// The kernel copies each frame; the interface cuts bursts into datagrams by itself.
    CopySegmenting,
    /// The kernel copies each frame and cuts bursts in software.
    Copy,
    /// AF_XDP cannot be used.
    NoXdp,
}

/// The egress path for each class of bursts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressPlan(pub [EgressPath; Class::COUNT]);

impl EgressPlan {
    /// Everything by this way.
    pub const fn all(way: EgressPath) -> Self {
        Self([way; Class::COUNT])
    }

    /// Returns a good plan where nothing could be measured. On virtual Ethernet, nanoseconds a
    /// datagram of 1400 bytes that was not in the processor's cache: AF_XDP 590 at any length of
    /// burst, the kernel's segmentation 1560 at 1, 1080 at 2, 700 at 4 and 550 at 8
    /// (`millrace bench backends` repeats it). With frames sent where they lie AF_XDP costs a
    /// fraction of this; an interface that segments by itself makes the kernel cheap from the third
    /// datagram on.
    pub const fn default_for(class: DeviceClass) -> Self {
        use EgressPath::{Kernel, Xdp};
        match class {
            DeviceClass::ZeroCopy => Self::all(Xdp),
            DeviceClass::CopySegmenting => Self([Xdp, Xdp, Kernel, Kernel, Kernel, Kernel]),
            DeviceClass::Copy => Self([Xdp, Xdp, Xdp, Kernel, Kernel, Kernel]),
            DeviceClass::NoXdp => Self::all(Kernel),
        }
    }

    /// Returns the path for bursts of class `class`.
    pub fn way(&self, class: Class) -> EgressPath {
        self.0[class as usize]
    }

    /// Whether any burst goes that way.
    pub fn uses(&self, way: EgressPath) -> bool {
        self.0.contains(&way)
    }
}

impl fmt::Display for EgressPlan {
    /// Neighbours with the same path are printed together: `1-4 xdp, 5+ kernel`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FIRST: [&str; Class::COUNT] = ["1", "2", "3", "5", "9", "17"];
        const LAST: [&str; Class::COUNT] = ["1", "2", "4", "8", "16", ""];
        let mut from = 0;
        for (to, last) in LAST.into_iter().enumerate() {
            let way = self.0[from];
            if self.0.get(to + 1) == Some(&way) {
                continue;
            }
            let comma = if from == 0 { "" } else { ", " };
            match (FIRST[from], last) {
                ("1", "") => write!(f, "all bursts {way}")?,
                (first, "") => write!(f, "{comma}{first}+ {way}")?,
                (first, last) if first == last => write!(f, "{comma}{first} {way}")?,
                (first, last) => write!(f, "{comma}{first}-{last} {way}")?,
            }
            from = to + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_all_lengths_in_order() {
        let of: Vec<_> = (0..=20).map(|n| Class::of(n) as usize).collect();
        assert_eq!(of, [0, 0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5]);
        for class in Class::ALL {
            assert_eq!(Class::of(class.sample()), class);
        }
    }

    #[test]
    fn plan_display_lists_burst_ranges() {
        use EgressPath::{Kernel, KernelZeroCopy, Xdp};
        assert_eq!(EgressPlan::all(Xdp).to_string(), "all bursts xdp");
        assert_eq!(EgressPlan::default_for(DeviceClass::Copy).to_string(), "1-4 xdp, 5+ kernel");
        let plan = EgressPlan([Xdp, Kernel, Xdp, Xdp, Kernel, KernelZeroCopy]);
        assert_eq!(plan.to_string(), "1 xdp, 2 kernel, 3-8 xdp, 9-16 kernel, 17+ kernel-zero-copy");
        assert!(plan.uses(KernelZeroCopy) && !EgressPlan::all(Kernel).uses(Xdp));
    }

    #[test]
    fn names_lead_back_to_ways() {
        for way in EgressPath::ALL {
            assert_eq!(EgressPath::from_name(way.name()), Some(way));
        }
        assert_eq!(EgressPath::from_name("pigeon"), None);
    }
}
