//! A host behind a bad network: a namespace joined to this one by an emulated link, so that viewers started in it meet
//! this machine's servers through loss and delay. Needs root.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use anyhow::{Context, bail};
use millrace_link::TunLink;
use millrace_netio::tun::Tun;

// Commands know packet I/O through this crate only.
pub use millrace_link::{Impairment, LinkCounts, LinkSpec, LinkStats};
use serde_json::json;

use crate::netns::{add_namespace, inside, ip, namespace_path, tun_here, unique_name};

/// A host inside this machine, 10.78.x.2, behind a link to 10.78.x.1 here. It is gone when this is dropped, and when the
/// process ends, however it ends.
pub struct LinkHost {
    spec: LinkSpec,
    // The order matters: first the devices go, then the namespace.
    link: TunLink,
    namespace: File,
    net: u8,
}

impl LinkHost {
    /// Makes it. `spec.there` is the way from this machine to the host inside.
    ///
    /// # Errors
    /// When not root, when `ip` is missing, without TUN devices in the kernel, or when all 256 networks are taken.
    pub fn new(spec: &LinkSpec) -> anyhow::Result<Self> {
        let name = unique_name("l");
        add_namespace(&name)?;
        // Opened, it needs no name any more: without one nothing is left behind even if this process is killed.
        let opened = File::open(namespace_path(&name));
        let set_up = opened.context("open the namespace").and_then(|namespace| {
            let (tun, net) = near_end()?;
            let far = inside(&namespace, || {
                ip(None, "link set lo up")?;
                let far = tun_here("mill-in", &format!("10.78.{net}.2/30"), Tun::open)?;
                ip(None, &format!("route add default via 10.78.{net}.1"))?;
                anyhow::Ok(far)
            })??;
            Ok(Self { spec: spec.clone(), link: TunLink::start(tun, far, spec)?, namespace, net })
        });
        let removed = ip(None, &format!("netns del {name}"));
        let host = set_up?;
        removed?;
        Ok(host)
    }

    /// The address of this machine as the host inside knows it.
    pub fn outside_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.net, 1)
    }

    /// The address of the host inside.
    pub fn inside_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.net, 2)
    }

    /// Runs `work` on a thread that lives inside; every thread that it starts lives there too.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn run_inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        inside(&self.namespace, work)
    }

    /// Where other programs find the namespace while this exists: `nsenter --net=PATH PLAYER URL`.
    pub fn namespace_path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd()).into()
    }

    /// Returns the link's statistics, towards the host inside and back.
    pub fn stats(&self) -> [LinkStats; 2] {
        self.link.stats()
    }

    /// Returns the link's statistics as a few lines of text.
    pub fn report(&self) -> String {
        let [there, back] = self.stats();
        let mut text =
            format!("link: {}\n  to the viewers:   {there}\n  from the viewers: {back}\n", self.spec);
        if there.unplanned() + back.unplanned() > 0 {
            text += "  the emulator lost packets that it was not asked to lose: take fewer viewers, or free a processor\n";
        }
        if let Some(failure) = self.failure() {
            text += &format!("  the link has stood still: {failure}\n");
        }
        text
    }

    /// The same for programs.
    pub fn report_json(&self) -> serde_json::Value {
        let [there, back] = self.stats();
        json!({
            "spec": self.spec.to_string(),
            "to_viewers": way_json(&there),
            "from_viewers": way_json(&back),
            "failure": self.failure(),
        })
    }

    /// Why the link stands still, if it does.
    pub fn failure(&self) -> Option<String> {
        self.link.failure()
    }

    /// The URL under which the host inside reaches `target`: an address of this machine becomes [`LinkHost::outside_ip`]. What
    /// is only listened for (`udp://`, `rtp://`) stays as it is. To be asked outside.
    ///
    /// # Errors
    /// For targets on other machines, unless this machine forwards packets.
    pub fn target_inside(&self, target: &str) -> anyhow::Result<String> {
        let Some(url) = UrlParts::of(target) else {
            bail!("{target}: no host can be seen in it; write a URL, e.g. rtsp://127.0.0.1:8554/title");
        };
        if ["udp", "rtp"].contains(&url.scheme) {
            return Ok(target.to_owned());
        }
        let addresses = addresses_of(url.host).with_context(|| format!("{target}: look up {}", url.host))?;
        if addresses.iter().any(|address| is_of_this_machine(*address)) {
            return Ok(format!("{}{}{}", url.before, self.outside_ip(), url.after));
        }
        if std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() == "1") {
            return Ok(target.to_owned());
        }
        bail!(
            "{target}: {} is another machine, and this one forwards no packets; to measure through the emulated link all the \
             same, turn on forwarding (sysctl net.ipv4.ip_forward=1) and hide 10.78.0.0/16 behind this machine's address (nft or \
             iptables: masquerade), or run millrace load on that machine",
            url.host
        )
    }
}

fn way_json(stats: &LinkStats) -> serde_json::Value {
    let counts = |c: &LinkCounts| {
        json!({
            "received": c.received,
            "forwarded": c.forwarded,
            "lost": c.lost,
            "duplicated": c.duplicated,
            "corrupted": c.corrupted,
            "marked": c.marked,
            "reordered": c.reordered,
            "queue_drops": c.queue_drops,
            "overflow": c.overflow,
            "waiting": c.waiting,
            "received_bytes": c.received_bytes,
            "forwarded_bytes": c.forwarded_bytes,
        })
    };
    json!({
        "all": counts(&stats.all),
        "rtp": counts(&stats.rtp),
        "missed": stats.missed,
        "refused": stats.refused,
    })
}

/// Opens the end of the link in this namespace, on the first free network. The device's name
/// reserves the network, so that two processes never take the same one.
fn near_end() -> anyhow::Result<(Tun, u8)> {
    for net in 0..=u8::MAX {
        let device = format!("mill-link{net}");
        if is_reachable_already(net) {
            continue;
        }
        match tun_here(&device, &format!("10.78.{net}.1/30"), Tun::open) {
            Ok(tun) => return Ok((tun, net)),
            Err(error) if error.downcast_ref().is_some_and(Tun::is_taken) => {}
            Err(error) => return Err(error),
        }
    }
    bail!(
        "all networks from 10.78.0.0/30 to 10.78.255.0/30 are taken; end other emulated links (ip link | grep mill-link)"
    )
}

/// Whether some address of this machine is in 10.78.`net`.0/30 already, however it came there.
fn is_reachable_already(net: u8) -> bool {
    [1, 2].into_iter().any(|host| is_of_this_machine(Ipv4Addr::new(10, 78, net, host).into()))
}

/// Whether an address is one of this machine's: only those can be bound.
fn is_of_this_machine(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified() || UdpSocket::bind((address, 0)).is_ok()
}

fn addresses_of(host: &str) -> anyhow::Result<Vec<IpAddr>> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse() {
        return Ok(vec![address]);
    }
    Ok((bare, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

/// A URL cut around its host.
#[derive(Debug, PartialEq, Eq)]
struct UrlParts<'a> {
    scheme: &'a str,
    before: &'a str,
    host: &'a str,
    after: &'a str,
}

impl<'a> UrlParts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let authority = url.find("://")? + 3;
        let path = url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at);
        let host = url[authority..path].rfind('@').map_or(authority, |at| authority + at + 1);
        let end = if url[host..].starts_with('[') {
            host + url[host..path].find(']')? + 1
        } else {
            url[host..path].find(':').map_or(path, |at| host + at)
        };
        let scheme = &url[..authority - 3];
        let listens = ["udp", "rtp"].contains(&scheme);
        (end > host || listens).then(|| Self {
            scheme,
            before: &url[..host],
            host: &url[host..end],
            after: &url[end..],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_in_urls() {
        for (url, before, host, after) in [
            ("rtsp://127.0.0.1:8554/title", "rtsp://", "127.0.0.1", ":8554/title"),
            ("http://localhost/a@b:1?q", "http://", "localhost", "/a@b:1?q"),
            ("rtsp://me:pass@[::1]:554", "rtsp://me:pass@", "[::1]", ":554"),
            ("rtsp://host", "rtsp://", "host", ""),
        ] {
            let parts = UrlParts::of(url).unwrap();
            assert_eq!((parts.before, parts.host, parts.after), (before, host, after));
        }
        for bad in ["", "title", "rtsp://", "rtsp:///title", "rtsp://[::1/title", "rtsp://@:1/"] {
            assert_eq!(UrlParts::of(bad), None, "{bad}");
        }
        assert_eq!(UrlParts::of("udp://:5004").unwrap().host, "");
    }

    #[test]
    fn own_addresses_are_told_from_others() {
        assert!(is_of_this_machine("127.0.0.1".parse().unwrap()));
        assert!(is_of_this_machine("0.0.0.0".parse().unwrap()));
        // Addresses for documentation (RFC 5737): no host has them.
        assert!(!is_of_this_machine("192.0.2.1".parse().unwrap()));
        assert_eq!(addresses_of("[::1]").unwrap(), ["::1".parse::<IpAddr>().unwrap()]);
    }
}
