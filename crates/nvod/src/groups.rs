//! The groups of a cast: announcements go to the one in its address, channel `n` to the `n + 1`th after it, all on one port. A host
//! joins and leaves groups, not ports, so only a channel with a group of its own is kept from links without viewers of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The group of a channel; `None` if the addresses end before it, or are none of multicast.
pub fn channel_group(control: SocketAddr, channel: u8) -> Option<SocketAddr> {
    let distance = u32::from(channel) + 1;
    let group: IpAddr = match control.ip() {
        IpAddr::V4(group) => Ipv4Addr::from(u32::from(group).checked_add(distance)?).into(),
        IpAddr::V6(group) => Ipv6Addr::from(u128::from(group).checked_add(distance.into())?).into(),
    };
    let is_multicast = control.ip().is_multicast() && group.is_multicast();
    is_multicast.then(|| SocketAddr::new(group, control.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_groups_follow_control_group_and_stay_multicast() {
        let of = |text: &str, channel| {
            channel_group(text.parse().unwrap(), channel).map(|group| group.to_string())
        };
        assert_eq!(of("239.1.1.1:5000", 0).as_deref(), Some("239.1.1.2:5000"));
        assert_eq!(of("239.1.1.250:5000", 7).as_deref(), Some("239.1.2.2:5000"));
        assert_eq!(of("[ff15::ffff]:5000", 0).as_deref(), Some("[ff15::1:0]:5000"));
        assert_eq!(of("239.255.255.255:5000", 0), None);
        assert_eq!(of("127.0.0.1:5000", 0), None);
        assert_eq!(of("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:5000", 0), None);
    }
}
