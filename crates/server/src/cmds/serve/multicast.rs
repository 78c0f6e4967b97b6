//! `--multicast`: the groups that viewers may have live titles sent to, and the engines' sockets for them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context;
use millrace_offload::{KernelTx, MulticastSettings, MulticastSocket};

use super::ServeArgs;
use crate::cast::sender::interface_index;
use crate::limits::cast::DEFAULT_GROUP_PORTS;
use crate::live::address::LiveReception;
use crate::service::{GroupRange, MulticastGroups};

/// Groups of routing protocols and the like, which no router passes on (RFC 5771 section 4).
const LINK_CONTROL: [u8; 3] = [224, 0, 0];

/// Parses `239.192.0.0/16,ff18::4d52:0/112,ttl=8,interface=eth1,ports=20000-20999`.
pub(super) fn parse_multicast(text: &str) -> Result<MulticastGroups, String> {
    let (first_port, last_port) = DEFAULT_GROUP_PORTS;
    let mut groups = MulticastGroups {
        v4: None,
        v6: None,
        first_port,
        last_port,
        ttl: 1,
        interface: None,
        taken: Vec::new(),
    };
    for part in text.split(',').map(str::trim) {
        match part.split_once('=') {
            Some(("ttl", value)) => {
                let ttl = value.parse().ok().filter(|&ttl: &u8| ttl > 0);
                groups.ttl = ttl.ok_or_else(|| format!("got \"{part}\"; write ttl=1 to ttl=255"))?;
            }
            Some(("interface", value)) if !value.is_empty() => groups.interface = Some(value.to_owned()),
            Some(("ports", value)) => {
                let ports = value.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                let ports = ports
                    .filter(|&(first, last): &(u16, u16)| first >= 1024 && first % 2 == 0 && first < last);
                (groups.first_port, groups.last_port) = ports.ok_or_else(|| {
                    format!("got \"{part}\"; write ports=FIRST-LAST, FIRST even and at least 1024, for example ports=20000-20999")
                })?;
            }
            Some(_) => {
                return Err(format!("got \"{part}\"; write ttl=N, interface=NAME or ports=FIRST-LAST"));
            }
            None => {
                let range = parse_range(part)?;
                let place = if range.first().is_ipv4() { &mut groups.v4 } else { &mut groups.v6 };
                if place.replace(range).is_some() {
                    return Err(format!(
                        "got \"{part}\" as another range; write one of IPv4 and one of IPv6 at most"
                    ));
                }
            }
        }
    }
    if groups.v4.is_none() && groups.v6.is_none() {
        return Err("got no groups; write for example 239.192.0.0/16".to_owned());
    }
    Ok(groups)
}

fn parse_range(text: &str) -> Result<GroupRange, String> {
    let form = || {
        format!(
            "got \"{text}\"; write multicast groups as FIRST/PREFIX, for example 239.192.0.0/16 or ff18::4d52:0/112"
        )
    };
    let (first, prefix) = text.split_once('/').map_or((text, None), |(first, prefix)| (first, Some(prefix)));
    let first: IpAddr = first.parse().map_err(|_| form())?;
    let longest = if first.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.map_or(Ok(longest), |prefix| prefix.parse()).map_err(|_| form())?;
    if !first.is_multicast() {
        return Err(format!("got \"{text}\", which is no multicast group; write for example 239.192.0.0/16"));
    }
    // The whole range must be of groups.
    let shortest = if first.is_ipv4() { 4 } else { 16 };
    let range = GroupRange::new(first, prefix).filter(|_| prefix >= shortest);
    let range = range.ok_or_else(|| {
        format!("got \"{text}\": {first} is not the first address of a range of /{shortest} to /{longest}; write for example 239.192.0.0/16")
    })?;
    match first {
        IpAddr::V4(ip) if ip.octets()[..3] == LINK_CONTROL => Err(format!(
            "got \"{text}\": 224.0.0.0/24 is for routing protocols; write for example 239.192.0.0/16"
        )),
        _ => Ok(range),
    }
}

impl ServeArgs {
    /// The groups for casts, without those that channels send to and live sources come by.
    pub(super) fn multicast_groups(&self) -> Option<MulticastGroups> {
        let outputs = self.channels.iter().flat_map(|channel| channel.to.iter().map(|url| url.to.ip()));
        let sources = self.live.iter().filter_map(|source| match &source.reception {
            LiveReception::Datagrams(_, address) => Some(address.place.ip()),
            LiveReception::Program(_) => None,
        });
        let mut groups = self.multicast.clone()?;
        groups.taken = outputs.chain(sources).filter(IpAddr::is_multicast).collect();
        Some(groups)
    }
}

/// Opens the sockets of an engine for these groups, in the order of [`MulticastGroups::ranges`].
pub(super) fn add_sockets(kernel: &mut KernelTx, groups: &MulticastGroups) -> anyhow::Result<()> {
    let if_index = match &groups.interface {
        Some(name) => interface_index(name).with_context(|| {
            format!("--multicast: interface {name}: not there; give the name of an interface (ip link)")
        })?,
        None => 0,
    };
    for range in groups.ranges() {
        let any = match range.first() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        // Receivers on this machine get it too.
        let settings =
            MulticastSettings { if_index, source: SocketAddr::new(any, 0), ttl: groups.ttl, is_looped: true };
        kernel.add_multicast(MulticastSocket::open(settings)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_setting_of_each_part_is_parsed() {
        let groups =
            parse_multicast("239.192.0.0/16, ff18::4d52:0/112,ttl=8,interface=eth1,ports=5004-5099").unwrap();
        let ranges: Vec<_> = groups.ranges().map(|range| range.to_string()).collect();
        assert_eq!(ranges, ["239.192.0.0/16", "ff18::4d52:0/112"]);
        assert_eq!((groups.ttl, groups.first_port, groups.last_port), (8, 5004, 5099));
        assert_eq!(groups.interface.as_deref(), Some("eth1"));
        let groups = parse_multicast("239.1.2.3").unwrap();
        assert_eq!((groups.ranges().count(), groups.ttl, groups.interface), (1, 1, None));
    }

    #[test]
    fn multicast_setting_with_fault_is_refused_with_remedy() {
        for (text, part) in [
            ("", "FIRST/PREFIX"),
            ("ttl=3", "got no groups"),
            ("239.192.0.0/16,ttl=0", "ttl=1 to ttl=255"),
            ("239.192.0.0/16,ttl=256", "ttl=1 to ttl=255"),
            ("239.192.0.0/16,interface=", "interface=NAME"),
            ("239.192.0.0/16,ports=5005-5010", "FIRST even"),
            ("239.192.0.0/16,ports=5004-5004", "FIRST even"),
            ("239.192.0.0/16,ports=80-90", "FIRST even"),
            ("239.192.0.0/16,colour=red", "ttl=N"),
            ("239.192.0.0/16,239.193.0.0/16", "another range"),
            ("10.0.0.0/8", "no multicast group"),
            ("fd00::/16", "no multicast group"),
            ("239.192.0.1/16", "not the first address"),
            ("224.0.0.0/3", "not the first address"),
            ("ff00::/8", "not the first address"),
            ("224.0.0.5", "routing protocols"),
            ("239.192.0.0/x", "FIRST/PREFIX"),
        ] {
            let error = parse_multicast(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
