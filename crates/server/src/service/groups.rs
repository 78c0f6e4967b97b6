//! The multicast groups of casts: which there are, and which one a title gets.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_core::ids::MulticastId;

use crate::limits::cast::MAX_GROUPS;

/// Groups with a common beginning, such as `239.192.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRange {
    first: IpAddr,
    prefix: u8,
}

impl GroupRange {
    /// `None`: the prefix is too long, or the address has bits behind it.
    pub fn new(first: IpAddr, prefix: u8) -> Option<Self> {
        let (bits, rest) = match first {
            IpAddr::V4(ip) => (32, u128::from(ip.to_bits())),
            IpAddr::V6(ip) => (128, ip.to_bits()),
        };
        let free = 1u128.checked_shl(u32::from(bits) - u32::from(prefix.min(bits))).unwrap_or(0);
        (prefix <= bits && rest & free.wrapping_sub(1) == 0).then_some(Self { first, prefix })
    }

    /// Its first group.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// The number of groups that are used of it.
    pub fn count(&self) -> u32 {
        let bits: u8 = if self.first.is_ipv4() { 32 } else { 128 };
        1u32.checked_shl((bits - self.prefix).into()).unwrap_or(MAX_GROUPS).min(MAX_GROUPS)
    }

    fn group(&self, number: u32) -> IpAddr {
        match self.first {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() + number).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() + u128::from(number)).into(),
        }
    }
}

impl fmt::Display for GroupRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

/// The operator's choices for casts that viewers start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastGroups {
    /// Groups for viewers by IPv4.
    pub v4: Option<GroupRange>,
    /// Groups for viewers by IPv6.
    pub v6: Option<GroupRange>,
    /// A cast gets an even port from here on, and the next one for RTCP.
    pub first_port: u16,
    /// The last port.
    pub last_port: u16,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Name of the interface; `None`: by the route to the group.
    pub interface: Option<String>,
    /// Groups that something else sends to.
    pub taken: Vec<IpAddr>,
}

/// A group with the even port of its media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupAddress {
    /// The group.
    pub group: IpAddr,
    /// Port of RTP; RTCP has the next one.
    pub port: u16,
}

impl MulticastGroups {
    /// The groups for viewers of one family.
    pub fn range(&self, is_v4: bool) -> Option<GroupRange> {
        if is_v4 { self.v4 } else { self.v6 }
    }

    /// The ranges that there are. The engines' sockets for them have the numbers of this order.
    pub fn ranges(&self) -> impl Iterator<Item = GroupRange> {
        self.v4.into_iter().chain(self.v6)
    }

    /// The engines' socket for this group.
    pub(super) fn via(&self, group: IpAddr) -> MulticastId {
        MulticastId(u8::from(group.is_ipv6() && self.v4.is_some()))
    }

    /// A free group for the title of this name: always the same one if it is free, so that the restart of a server gives no receiver
    /// another title. `None`: none is free.
    pub(super) fn choose(
        &self,
        title: &str,
        is_v4: bool,
        is_free: impl Fn(IpAddr) -> bool,
    ) -> Option<GroupAddress> {
        let range = self.range(is_v4)?;
        let count = range.count();
        let mut hasher = DefaultHasher::new();
        title.hash(&mut hasher);
        let wanted = (hasher.finish() % u64::from(count)) as u32;
        let mut numbers = (wanted..count).chain(0..wanted);
        let is_unused = |number: &u32| {
            let group = range.group(*number);
            !self.taken.contains(&group) && is_free(group)
        };
        let number = numbers.find(is_unused)?;
        let pairs = (u32::from(self.last_port) + 1 - u32::from(self.first_port)) / 2;
        // Hosts with receivers of several groups tell them apart by the port, too.
        let port = u32::from(self.first_port) + number % pairs.max(1) * 2;
        Some(GroupAddress { group: range.group(number), port: port as u16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn groups(v4: (&str, u8), taken: &[&str]) -> MulticastGroups {
        MulticastGroups {
            v4: GroupRange::new(ip(v4.0), v4.1),
            v6: GroupRange::new(ip("ff18::4d52:0"), 112),
            first_port: 20_000,
            last_port: 20_003,
            ttl: 1,
            interface: None,
            taken: taken.iter().map(|text| ip(text)).collect(),
        }
    }

    #[test]
    fn group_range_counts_its_groups_and_refuses_bits_behind_prefix() {
        for (first, prefix, count) in [
            ("239.192.0.0", 16, Some(65_536)),
            ("239.192.0.0", 14, Some(MAX_GROUPS)),
            ("239.1.2.3", 32, Some(1)),
            ("239.1.2.4", 30, Some(4)),
            ("239.1.2.3", 30, None),
            ("239.1.2.3", 33, None),
            ("ff18::", 16, Some(MAX_GROUPS)),
            ("ff18::1", 128, Some(1)),
            ("ff18::1", 127, None),
            ("0.0.0.0", 0, Some(MAX_GROUPS)),
            ("::", 0, Some(MAX_GROUPS)),
        ] {
            let range = GroupRange::new(ip(first), prefix);
            assert_eq!(range.map(|range| range.count()), count, "{first}/{prefix}");
        }
    }

    #[test]
    fn title_gets_same_group_again_and_next_one_if_that_is_used() {
        let all = groups(("239.192.0.0", 16), &[]);
        let first = all.choose("live/news", true, |_| true).unwrap();
        assert_eq!(all.choose("live/news", true, |_| true), Some(first));
        assert!(first.port.is_multiple_of(2) && (20_000..20_003).contains(&first.port), "{first:?}");
        let next = all.choose("live/news", true, |group| group != first.group).unwrap();
        let (IpAddr::V4(first), IpAddr::V4(next)) = (first.group, next.group) else { panic!() };
        assert!(next.to_bits() == first.to_bits() + 1 || next == Ipv4Addr::new(239, 192, 0, 0));
        let v6 = all.choose("live/news", false, |_| true).unwrap();
        assert!(v6.group.is_ipv6() && all.via(v6.group) == MulticastId(1));
        assert_eq!(MulticastGroups { v4: None, ..all }.via(v6.group), MulticastId(0));
    }

    #[test]
    fn range_whose_groups_are_all_used_gives_none() {
        let all = groups(("239.192.0.0", 30), &["239.192.0.2"]);
        let mut used = Vec::new();
        while let Some(address) = all.choose("live/news", true, |group| !used.contains(&group)) {
            used.push(address.group);
        }
        used.sort_unstable();
        assert_eq!(used, ["239.192.0.0", "239.192.0.1", "239.192.0.3"].map(ip));
    }
}
