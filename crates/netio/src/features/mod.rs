//! Capabilities of a network interface, as the kernel reports them: rtnetlink for properties that
//! every interface has, the netdev family for XDP and queues, the ethtool family for offloads. All
//! queries are made in the calling thread's network namespace.

mod ask;

use std::fmt;
use std::io;

use crate::error::NetError;

/// Capabilities of a driver with XDP (linux/netdev.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpFeatures(pub u64);

impl XdpFeatures {
    const WORDS: [(u64, &str); 7] = [
        (1, "programs"),
        (2, "redirect"),
        (4, "target of redirect"),
        (8, "AF_XDP zero-copy"),
        (16, "hardware offload"),
        (32, "frames in pieces in"),
        (64, "frames in pieces out"),
    ];

    /// Programs run in the driver, not behind it.
    pub fn runs_programs(self) -> bool {
        self.0 & 1 != 0
    }

    /// AF_XDP sockets can be bound without copying.
    pub fn is_zero_copy(self) -> bool {
        self.0 & 8 != 0
    }

    /// Programs get frames that consist of several pieces.
    pub fn takes_pieces(self) -> bool {
        self.0 & 32 != 0
    }
}

impl fmt::Display for XdpFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_words(f, Self::WORDS.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, word)| *word))
    }
}

/// Capabilities of a driver for frames of AF_XDP sockets (linux/netdev.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskFeatures(pub u64);

impl XskFeatures {
    const WORDS: [(u64, &str); 3] = [(1, "time stamps"), (2, "checksums"), (4, "launch times")];

    /// The device can fill in checksums.
    pub fn fills_checksums(self) -> bool {
        self.0 & 2 != 0
    }
}

impl fmt::Display for XskFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_words(f, Self::WORDS.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, word)| *word))
    }
}

/// Work of the device on packets that sockets send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Cuts TCP.
    pub tso: bool,
    /// Trains of packets stay together until just before the driver.
    pub gso: bool,
    /// Cuts trains of datagrams.
    pub udp_segmentation: bool,
    /// Fills in checksums.
    pub checksum: bool,
}

/// An interface. A value is `None` if the kernel cannot report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFeatures {
    /// Its name.
    pub name: String,
    /// Its number.
    pub if_index: u32,
    /// Its Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// Longest IP packet.
    pub mtu: u32,
    /// The driver; for virtual devices often their kind.
    pub driver: Option<String>,
    /// Switched on.
    pub is_up: bool,
    /// Connected.
    pub has_carrier: Option<bool>,
    /// Queues that receive.
    pub rx_queues: Option<u32>,
    /// Queues that send.
    pub tx_queues: Option<u32>,
    /// Capabilities of the driver with XDP.
    pub xdp_features: Option<XdpFeatures>,
    /// Pieces of one frame that the driver sends without copying.
    pub zc_max_segs: Option<u32>,
    /// Capabilities of the driver for AF_XDP frames.
    pub xsk_features: Option<XskFeatures>,
    /// In copy mode frames go out from where they lie (`IFF_TX_SKB_NO_LINEAR`): virtio-net alone does so.
    pub is_tx_no_linear: bool,
    /// A program is at its XDP hook.
    pub has_xdp_program: Option<bool>,
    /// Its work for sockets.
    pub offloads: Option<Offloads>,
}

impl DeviceFeatures {
    /// Asks about an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When there is no such interface, or netlink cannot be used.
    pub fn of(interface: &str) -> Result<Self, NetError> {
        ask::features(interface).map_err(|source| fault(interface, source))
    }
}

fn fault(interface: &str, source: io::Error) -> NetError {
    let remedy = match source.raw_os_error() {
        Some(libc::ENODEV | libc::ERANGE | libc::EINVAL) => "`ip link` lists the interfaces that are here",
        Some(libc::EMFILE | libc::ENFILE) => "raise the number of open files (ulimit -n)",
        _ => "allow netlink sockets in this process's sandbox",
    };
    NetError::Socket { socket: format!("interface {interface}"), what: "ask what it can do", source, remedy }
}

fn write_words<'a>(f: &mut fmt::Formatter<'_>, words: impl Iterator<Item = &'a str>) -> fmt::Result {
    let mut is_first = true;
    for word in words {
        write!(f, "{}{word}", if is_first { "" } else { ", " })?;
        is_first = false;
    }
    if is_first { f.write_str("nothing") } else { Ok(()) }
}

/// One line for each thing that a user may want to know or change.
impl fmt::Display for DeviceFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = || "unknown".to_owned();
        let number = |n: Option<u32>| n.map_or_else(unknown, |n| n.to_string());
        let state = match (self.is_up, self.has_carrier) {
            (false, _) => "down",
            (true, Some(false)) => "up, no carrier",
            (true, _) => "up",
        };
        let driver = self.driver.as_deref().unwrap_or("no driver");
        writeln!(f, "{} ({driver}): {state}, MTU {}", self.name, self.mtu)?;
        writeln!(f, "  queues: {} in, {} out", number(self.rx_queues), number(self.tx_queues))?;
        match self.xdp_features {
            Some(xdp) => writeln!(f, "  XDP: {xdp}")?,
            None => writeln!(f, "  XDP: unknown (Linux 6.3 can say)")?,
        }
        if self.has_xdp_program == Some(true) {
            writeln!(f, "  XDP program: one is there (ip link set dev {} xdp off takes it away)", self.name)?;
        }
        if let Some(segs) =
            self.zc_max_segs.filter(|_| self.xdp_features.is_some_and(XdpFeatures::is_zero_copy))
        {
            writeln!(f, "  AF_XDP: {segs} pieces a frame without copying")?;
        }
        if let Some(xsk) = self.xsk_features.filter(|xsk| xsk.0 != 0) {
            writeln!(f, "  AF_XDP frames: {xsk}")?;
        }
        if self.is_tx_no_linear {
            writeln!(f, "  AF_XDP in copy mode sends payloads from where they lie")?;
        }
        let word = |is_on: bool| if is_on { "on" } else { "off" };
        match self.offloads {
            Some(o) => writeln!(
                f,
                "  offloads: TCP segmentation {}, UDP segmentation {}, generic segmentation {}, checksums {}",
                word(o.tso),
                word(o.udp_segmentation),
                word(o.gso),
                word(o.checksum)
            ),
            None => writeln!(f, "  offloads: unknown (Linux 5.9 can say)"),
        }
    }
}

#[cfg(test)]
#[path = "features_tests.rs"]
mod tests;
