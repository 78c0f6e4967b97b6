//! How a datagram gets from the cache to the device, and which way suits which device.

use std::fmt;

use crate::features::DeviceFeatures;

/// How the bytes of a datagram are handed over.
///
/// | | bound with | payload | descriptors | good for |
/// | --- | --- | --- | --- | --- |
/// | `Staging` | copy | copied behind its header into a small ring of frames that stays in the processor's cache | one | most drivers: the kernel copies anyway, and from hot memory it does so faster |
/// | `Chained` | copy | sent from the cache's memory | header, then payload | virtio_net, which takes pages without copying them |
/// | `ZeroCopyStaging` | zero-copy | copied into a frame, fetched by the device | one | drivers that take one descriptor a packet |
/// | `ZeroCopyChained` | zero-copy | fetched by the device from the cache's memory | header, then payload | drivers that take several (ice, i40e): the payload is never copied |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Copy payload and header into a frame; the kernel copies it.
    Staging,
    /// A header frame, and the payload where it lies; the kernel copies or refers to it.
    Chained,
    /// Copy payload and header into a frame; the device reads it there.
    ZeroCopyStaging,
    /// A header frame, and the payload where it lies; the device reads both there.
    ZeroCopyChained,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Staging, Self::Chained, Self::ZeroCopyStaging, Self::ZeroCopyChained];

    /// Whether the payload is sent from where it lies.
    pub fn is_chained(self) -> bool {
        matches!(self, Self::Chained | Self::ZeroCopyChained)
    }

    /// Whether the device reads this process's memory.
    pub fn is_zero_copy(self) -> bool {
        matches!(self, Self::ZeroCopyStaging | Self::ZeroCopyChained)
    }

    /// The same bind mode, with every payload copied into a frame.
    pub fn staged(self) -> Self {
        if self.is_zero_copy() { Self::ZeroCopyStaging } else { Self::Staging }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Staging => "staging",
            Self::Chained => "chained",
            Self::ZeroCopyStaging => "zero-copy staging",
            Self::ZeroCopyChained => "zero-copy chained",
        })
    }
}

/// The facts known about a device before anything is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Whether the driver has a zero-copy mode; `None` if the kernel cannot report it, so that only
    /// a trial shows it.
    pub zero_copy: Option<bool>,
    /// Most descriptors of one packet in zero-copy mode; `None` if the kernel cannot say.
    pub zero_copy_segments: Option<u32>,
    /// Whether the driver takes payload by reference in copy mode (virtio_net).
    pub takes_pages: bool,
    /// Whether the arena lies on huge pages: a range in one is contiguous for the device too.
    pub huge_pages: bool,
}

impl Abilities {
    /// The kernel's report about a device, empty for one that it does not know. `huge_pages`: whether the arena lies on such.
    pub fn of(features: Option<&DeviceFeatures>, huge_pages: bool) -> Self {
        Self {
            zero_copy: features.and_then(|f| f.xdp_features).map(|f| f.is_zero_copy()),
            zero_copy_segments: features.and_then(|f| f.zc_max_segs),
            takes_pages: features.is_some_and(|f| f.is_tx_no_linear),
            huge_pages,
        }
    }

    /// Descriptors that a chained datagram of an ordinary MTU needs in zero-copy mode: on ordinary pages a payload may
    /// lie across a page's end and is cut there.
    fn chained_segments(self) -> u32 {
        if self.huge_pages { 2 } else { 3 }
    }

    /// Strategies worth trying on such a device, best first. Zero-copy ones may turn out not to work; the last one
    /// always does.
    pub fn candidates(self) -> impl Iterator<Item = Strategy> {
        let chained = self.zero_copy_segments.is_some_and(|n| n >= self.chained_segments());
        let staged = self.zero_copy != Some(false);
        let zero_copy = [(chained && staged, Strategy::ZeroCopyChained), (staged, Strategy::ZeroCopyStaging)];
        let zero_copy = zero_copy.map(|(is_likely, strategy)| is_likely.then_some(strategy));
        let copy = if self.takes_pages { Strategy::Chained } else { Strategy::Staging };
        zero_copy.into_iter().flatten().chain([copy])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_ordered_by_expected_performance() {
        let among = |zero_copy, zero_copy_segments, takes_pages, huge_pages| {
            let abilities = Abilities { zero_copy, zero_copy_segments, takes_pages, huge_pages };
            abilities.candidates().collect::<Vec<_>>()
        };
        let of = |segments, takes_pages, huge_pages| among(None, segments, takes_pages, huge_pages);
        use Strategy::*;
        assert_eq!(of(None, false, true), [ZeroCopyStaging, Staging], "an old kernel does not say");
        assert_eq!(among(Some(false), Some(1), false, true), [Staging], "veth");
        assert_eq!(among(Some(false), Some(8), false, true), [Staging], "one contradicts the other");
        assert_eq!(among(Some(true), Some(8), false, false), [ZeroCopyChained, ZeroCopyStaging, Staging]);
        assert_eq!(of(Some(1), false, true), [ZeroCopyStaging, Staging], "mlx5");
        assert_eq!(of(Some(8), false, true), [ZeroCopyChained, ZeroCopyStaging, Staging], "ice");
        assert_eq!(of(Some(2), false, false), [ZeroCopyStaging, Staging], "payloads across pages need three");
        assert_eq!(of(None, true, false), [ZeroCopyStaging, Chained], "virtio_net");
    }

    #[test]
    fn names_and_kinds() {
        assert_eq!(Strategy::ALL.map(Strategy::is_chained), [false, true, false, true]);
        assert_eq!(Strategy::ALL.map(Strategy::is_zero_copy), [false, false, true, true]);
        let names: std::collections::HashSet<_> = Strategy::ALL.map(|s| s.to_string()).into();
        assert_eq!(names.len(), 4);
        for strategy in Strategy::ALL {
            let staged = strategy.staged();
            assert_eq!((staged.is_chained(), staged.is_zero_copy()), (false, strategy.is_zero_copy()));
        }
    }
}
