//! Where a phase takes place: on the loopback, or between two network namespaces joined by a pair of virtual
//! Ethernet devices. On the pair all checksum and segmentation offload is off, so every packet is cut, summed and
//! checked in software as on a real wire; the loopback checks no checksum at all.

use std::process::Command;

/// Address of the server between namespaces.
const SERVER: &str = "10.213.77.1";
const CLIENT: &str = "10.213.77.2";

/// Where the server's multicast leaves.
pub(super) const SERVER_DEVICE: &str = "veths";

/// Address of the server's offload engine, behind a TUN device, and of the kernel at that device.
const ENGINE: &str = "10.213.78.1";
const AT_TUN: &str = "10.213.78.2";

/// Prefix of the namespaces; the number of the process that made them follows.
const PREFIX: &str = "millrace-interop-";

/// Where server and clients live.
pub(super) struct Ground {
    pub(super) host: &'static str,
    pub(super) server: Option<String>,
    pub(super) client: Option<String>,
    /// Address of an offload engine, and what makes the server have one.
    pub(super) engine: Option<(&'static str, String)>,
    /// Deletes the namespaces in the end.
    _network: Option<Network>,
}

impl Ground {
    pub(super) fn loopback() -> Self {
        Self { host: "127.0.0.1", server: None, client: None, engine: None, _network: None }
    }

    pub(super) fn namespaces() -> Result<Self, String> {
        let network = Network::make()?;
        let (server, client) = (Some(network.name('s')), Some(network.name('c')));
        Ok(Self { host: SERVER, server, client, engine: None, _network: Some(network) })
    }

    /// As between namespaces, but clients call an address of the server's offload engine, which is at a TUN device behind the server's kernel.
    pub(super) fn by_engine() -> Result<Self, String> {
        let mut ground = Self::namespaces()?;
        let (server, client) = (ground.server.clone(), ground.client.clone());
        let (server, client) = (server.unwrap_or_default(), client.unwrap_or_default());
        command(&format!("ip -n {server} tuntap add dev mill0 mode tun"))?;
        command(&format!("ip -n {server} addr add {AT_TUN}/24 dev mill0"))?;
        command(&format!("ip -n {server} link set mill0 up"))?;
        command(&format!("ip netns exec {server} sysctl -qw net.ipv4.ip_forward=1"))?;
        command(&format!("ip -n {client} route add {ENGINE}/32 via {SERVER}"))?;
        let args = format!("--tcp engine --tcp-interface mill0 --tcp-address {ENGINE}/24");
        ground.engine = Some((ENGINE, args));
        Ok(ground)
    }

    /// As between namespaces, but the client's firewall drops all UDP.
    pub(super) fn without_udp() -> Result<Self, String> {
        let ground = Self::namespaces()?;
        let client = ground.client.as_deref().unwrap_or_default();
        command(&format!("ip netns exec {client} iptables -A INPUT -p udp -j DROP"))?;
        Ok(ground)
    }
}

/// Why there can be no namespaces, if so.
pub(super) fn no_namespaces() -> Option<String> {
    let missing: Vec<_> =
        ["ip", "ethtool", "iptables"].into_iter().filter(|p| !crate::workspace::has_program(p)).collect();
    if !missing.is_empty() {
        return Some(format!("{} not installed; `make deps` installs it", missing.join(", ")));
    }
    (!super::process::is_root()).then(|| "network namespaces need root".to_owned())
}

/// The two namespaces.
struct Network {
    process: u32,
}

impl Network {
    fn make() -> Result<Self, String> {
        sweep();
        let network = Self { process: std::process::id() };
        let (s, c) = (network.name('s'), network.name('c'));
        command(&format!("ip netns add {s}"))?;
        command(&format!("ip netns add {c}"))?;
        command(&format!("ip link add veths netns {s} type veth peer name vethc netns {c}"))?;
        for (namespace, device, address) in [(&s, SERVER_DEVICE, SERVER), (&c, "vethc", CLIENT)] {
            command(&format!("ip -n {namespace} addr add {address}/24 dev {device}"))?;
            command(&format!("ip -n {namespace} link set lo up"))?;
            command(&format!("ip -n {namespace} link set {device} up"))?;
            // Players join groups at the interface of their route.
            command(&format!("ip -n {namespace} route add 224.0.0.0/4 dev {device}"))?;
            command(&format!(
                "ip netns exec {namespace} ethtool -K {device} tx off rx off tso off gso off gro off"
            ))?;
        }
        Ok(network)
    }

    fn name(&self, end: char) -> String {
        format!("{PREFIX}{}{end}", self.process)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for end in ['s', 'c'] {
            if let Err(e) = command(&format!("ip netns del {}", self.name(end))) {
                eprintln!("interop: {e}");
            }
        }
    }
}

/// Deletes namespaces of runs that were killed.
fn sweep() {
    let Ok(output) = command("ip netns list") else { return };
    for name in output.lines().filter_map(|line| line.split_whitespace().next()) {
        let process = name.strip_prefix(PREFIX).map(|rest| rest.trim_end_matches(['s', 'c']));
        if let Some(process) = process
            && !std::path::Path::new("/proc").join(process).exists()
        {
            // Another run may delete it at the same moment.
            let _ = command(&format!("ip netns del {name}"));
        }
    }
}

fn command(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output().map_err(|e| format!("{line}: {e}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{line}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// The kernel's UDP counters in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UdpCounters {
    pub(super) received: u64,
    pub(super) checksum_errors: u64,
    pub(super) buffer_errors: u64,
}

impl UdpCounters {
    pub(super) fn read(namespace: &str) -> Result<Self, String> {
        Self::parse(&command(&format!("ip netns exec {namespace} cat /proc/net/snmp"))?)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let (names, values) = lines.next().zip(lines.next()).ok_or("/proc/net/snmp has no lines for UDP")?;
        let value = |wanted: &str| {
            let mut pairs = names.split_whitespace().zip(values.split_whitespace());
            let value = pairs.find(|(name, _)| *name == wanted).and_then(|(_, value)| value.parse().ok());
            value.ok_or_else(|| format!("/proc/net/snmp has no UDP counter {wanted}"))
        };
        Ok(Self {
            received: value("InDatagrams")?,
            checksum_errors: value("InCsumErrors")?,
            buffer_errors: value("RcvbufErrors")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "Tcp: A InCsumErrors\nTcp: 1 9\nUdp: InDatagrams NoPorts RcvbufErrors InCsumErrors\nUdp: 7 1 2 3\n\
                    UdpLite: InDatagrams\nUdpLite: 0\n";
        let counters = UdpCounters { received: 7, checksum_errors: 3, buffer_errors: 2 };
        assert_eq!(UdpCounters::parse(text), Ok(counters));
        assert!(UdpCounters::parse("Udp: InDatagrams\nUdp: 7\n").unwrap_err().ends_with("InCsumErrors"));
        assert!(UdpCounters::parse("Tcp: A\nTcp: 1\n").is_err());
    }

    #[test]
    fn command_failure_reports_arguments() {
        assert!(command("ls /no/such/folder").unwrap_err().contains("/no/such/folder"));
        assert_eq!(command("echo a b").unwrap(), "a b\n");
    }
}
