//! Settings, from the environment: the program that is preloaded knows nothing of them.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// What decides whose a socket is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// The engine's socket; `None`: this library does nothing.
    pub(crate) engine: Option<PathBuf>,
    /// Ports that are the engine's if they are bound at the unspecified address.
    pub(crate) listen: Ports,
    /// Where connections go by the engine; `None`: to the subnets of its addresses.
    pub(crate) connect: Option<Vec<Subnet>>,
}

/// Ports of a list, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ports {
    #[default]
    None,
    All,
    Of(Vec<u16>),
}

/// An address and how many of its bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
}

impl Subnet {
    pub(crate) fn contains(&self, other: IpAddr) -> bool {
        let (own, other, bits) = match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let behind = bits - u32::from(self.prefix).min(bits);
        behind == 128 || own >> behind == other >> behind
    }

    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(most), |prefix| prefix.parse().ok())?;
        (prefix <= most).then_some(Self { address, prefix })
    }
}

impl Config {
    /// From the environment, and what in it cannot be.
    pub(crate) fn read(get: impl Fn(&str) -> Option<OsString>) -> (Self, Vec<String>) {
        let mut faults = Vec::new();
        let list = |name: &str| {
            let text = get(name)?.to_string_lossy().into_owned();
            Some(text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect())
        };
        let engine = get("MILLRACE_ENGINE").filter(|path| !path.is_empty()).map(PathBuf::from);
        let words: Vec<String> = list("MILLRACE_LISTEN").unwrap_or_default();
        let listen = if words.is_empty() {
            Ports::None
        } else if words.iter().any(|word| word == "all") {
            Ports::All
        } else {
            let port = |word: &String| {
                let port = word.parse().ok().filter(|&port: &u16| port != 0);
                if port.is_none() {
                    faults.push(format!("MILLRACE_LISTEN: {word} is no port; write ports (80,443) or all"));
                }
                port
            };
            Ports::Of(words.iter().filter_map(port).collect())
        };
        let connect = list("MILLRACE_CONNECT").map(|words: Vec<String>| {
            let subnet = |word: &String| {
                let subnet = Subnet::parse(word);
                if subnet.is_none() {
                    faults.push(format!(
                        "MILLRACE_CONNECT: {word} is no subnet; write some as 10.0.0.0/8,2001:db8::/32"
                    ));
                }
                subnet
            };
            words.iter().filter_map(subnet).collect()
        });
        (Self { engine, listen, connect }, faults)
    }

    /// Whether a socket bound there is the engine's, which has these addresses.
    pub(crate) fn binds(&self, local: SocketAddr, engine: &[Subnet]) -> bool {
        let ip = local.ip().to_canonical();
        if ip.is_unspecified() {
            return match &self.listen {
                Ports::None => false,
                Ports::All => local.port() != 0,
                Ports::Of(ports) => ports.contains(&local.port()),
            };
        }
        engine.iter().any(|own| own.address == ip)
    }

    /// Whether a connection to there is the engine's.
    pub(crate) fn connects(&self, remote: SocketAddr, engine: &[Subnet]) -> bool {
        let ip = remote.ip().to_canonical();
        self.connect.as_deref().unwrap_or(engine).iter().any(|subnet| subnet.contains(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> (Config, Vec<String>) {
        Config::read(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.into()))
    }

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn whose_a_socket_is_follows_from_the_settings() {
        let (none, faults) = config(&[]);
        assert_eq!((none.engine, faults), (None, Vec::new()));
        let engine = [Subnet::parse("10.0.0.1/24").unwrap(), Subnet::parse("2001:db8::1/64").unwrap()];
        let (given, _) = config(&[("MILLRACE_ENGINE", "/run/e"), ("MILLRACE_LISTEN", "80, 443")]);
        for (local, is_ours) in [
            ("10.0.0.1:7", true),
            ("10.0.0.1:0", true),
            ("[::ffff:10.0.0.1]:7", true),
            ("[2001:db8::1]:7", true),
            ("10.0.0.2:7", false),
            ("127.0.0.1:80", false),
            ("0.0.0.0:80", true),
            ("[::]:443", true),
            ("0.0.0.0:81", false),
            ("0.0.0.0:0", false),
        ] {
            assert_eq!(given.binds(end(local), &engine), is_ours, "{local}");
        }
        for (remote, is_ours) in [
            ("10.0.0.200:7", true),
            ("[::ffff:10.0.0.2]:7", true),
            ("[2001:db8::9]:7", true),
            ("10.0.1.1:7", false),
            ("127.0.0.1:80", false),
        ] {
            assert_eq!(given.connects(end(remote), &engine), is_ours, "{remote}");
        }
        let (given, _) =
            config(&[("MILLRACE_CONNECT", "192.0.2.0/24,0.0.0.0/0"), ("MILLRACE_LISTEN", "all")]);
        assert!(given.connects(end("198.51.100.1:1"), &engine));
        assert!(!given.connects(end("[2001:db8::9]:7"), &engine), "only what is named");
        assert!(given.binds(end("0.0.0.0:81"), &engine));
        assert!(!given.binds(end("0.0.0.0:0"), &engine), "a port that nobody knows");
    }

    #[test]
    fn config_with_invalid_values_reports_fault_with_remedy() {
        let (given, faults) = config(&[
            ("MILLRACE_LISTEN", "80,http,0,70000"),
            ("MILLRACE_CONNECT", "10.0.0.0/33,here,::/129,10.0.0.1"),
        ]);
        assert_eq!(given.listen, Ports::Of(vec![80]));
        assert_eq!(given.connect, Some(vec![Subnet { address: [10, 0, 0, 1].into(), prefix: 32 }]));
        assert_eq!(faults.len(), 6, "{faults:?}");
        assert!(faults.iter().all(|fault| fault.contains("write ")), "{faults:?}");
    }
}
