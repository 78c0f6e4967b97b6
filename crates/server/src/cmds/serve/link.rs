//! How much the machine's network hardware carries.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use millrace_core::units::BitRate;

/// The operator's setting for the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkRate {
    /// The rate that the hardware reports, if it reports one.
    #[default]
    Auto,
    /// Not counted.
    Off,
    /// This much.
    Fixed(BitRate),
}

impl FromStr for LinkRate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            rate => match rate.parse::<BitRate>() {
                Ok(BitRate(0)) => {
                    Err("got 0; write a rate such as 940Mb/s, auto, or off for no limit".to_owned())
                }
                Ok(rate) => Ok(Self::Fixed(rate)),
                Err(_) => Err(format!("got \"{text}\"; write auto, off or a rate such as 940Mb/s")),
            },
        }
    }
}

impl std::fmt::Display for LinkRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Fixed(rate) => rate.fmt(f),
        }
    }
}

/// Share of a link's rate that is left to media, in percent: the rest are headers (42 bytes and the
/// gap between frames for 1370 bytes of frame) and other traffic.
const MEDIA_PERCENT: u64 = 95;

impl LinkRate {
    /// The bound on all media together; `devices` is where the kernel shows its network devices (`/sys/class/net`).
    pub(super) fn bound(self, devices: &Path) -> Option<BitRate> {
        match self {
            Self::Off => None,
            Self::Fixed(rate) => Some(rate),
            Self::Auto => hardware_rate(devices).map(|rate| BitRate(rate.0 / 100 * MEDIA_PERCENT)),
        }
    }
}

/// The rates of all network devices together that have hardware behind them, are up and say how fast they are. `None` if there is
/// none, or if one of those that are up does not say: then nothing is known.
fn hardware_rate(devices: &Path) -> Option<BitRate> {
    let mut total = 0;
    for device in fs::read_dir(devices).ok()?.flatten() {
        let file = |name: &str| fs::read_to_string(device.path().join(name)).unwrap_or_default();
        if !device.path().join("device").exists() || file("operstate").trim() != "up" {
            continue;
        }
        // Megabits; -1 or an error where the device does not know.
        let megabits: u64 = file("speed").trim().parse().ok().filter(|speed| *speed > 0)?;
        total += megabits * 1_000_000;
    }
    (total > 0).then_some(BitRate(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(root: &Path, name: &str, is_hardware: bool, state: &str, speed: &str) {
        let dir = root.join(name);
        fs::create_dir_all(dir.join(if is_hardware { "device" } else { "queues" })).unwrap();
        fs::write(dir.join("operstate"), state).unwrap();
        fs::write(dir.join("speed"), speed).unwrap();
    }

    #[test]
    fn hardware_rate_counts_only_physical_links_that_are_up() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(hardware_rate(root.path()), None);
        device(root.path(), "lo", false, "unknown\n", "");
        device(root.path(), "veth0", false, "up\n", "10000\n");
        device(root.path(), "eth1", true, "down\n", "-1\n");
        assert_eq!(hardware_rate(root.path()), None);
        device(root.path(), "eth0", true, "up\n", "1000\n");
        assert_eq!(hardware_rate(root.path()), Some(BitRate(1_000_000_000)));
        assert_eq!(LinkRate::Auto.bound(root.path()), Some(BitRate(950_000_000)));
        device(root.path(), "eth2", true, "up\n", "-1\n");
        assert_eq!(hardware_rate(root.path()), None, "one that does not say how fast it is");
        assert_eq!(LinkRate::Auto.bound(&root.path().join("none")), None);
    }

    #[test]
    fn link_rate_parse_accepts_auto_off_and_rates() {
        assert_eq!("auto".parse(), Ok(LinkRate::Auto));
        assert_eq!("off".parse(), Ok(LinkRate::Off));
        assert_eq!("940Mb/s".parse(), Ok(LinkRate::Fixed(BitRate(940_000_000))));
        for text in ["", "fast", "0Mb/s"] {
            assert!(text.parse::<LinkRate>().unwrap_err().contains("off"), "{text}");
        }
    }
}
