//! `--tcp`: whether an offload engine carries RTSP connections beside the kernel's TCP, and how it is started.
//!
//! What can never be is refused when the settings are read. What cannot be now (rights, the interface, this kernel) leaves the kernel's TCP, with a
//! sentence that says so, and is tried again ([`OpenOffload`]).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use millrace_core::limits::control::{
    KEEPALIVE_IDLE, OFFLOAD_CONNECTIONS, OFFLOAD_DESCRIPTORS, OFFLOAD_RECEIVE_SHARE, OFFLOAD_RETRY_MOST,
};
use millrace_core::limits::ip::MAX_ADDRESSES;
use millrace_offload::best::measure::Target;
use millrace_offload::features::DeviceFeatures;
use millrace_offload::toe::{Device, Engine, EngineSettings, Seat, TunDevice, XdpDevice};
use millrace_offload::xdp::XdpRawConfig;

use crate::control::{Offload, OpenOffload};

/// Settings.
#[derive(Args, Clone, Debug)]
pub(crate) struct TcpArgs {
    /// What carries RTSP connections, and the media in them: kernel, or engine (also a TCP offload engine, which has an interface and addresses of
    /// its own; where it cannot run, the kernel alone). The kernel's addresses are listened on in both cases
    #[arg(long, value_name = "WHAT", default_value = "kernel")]
    pub(crate) tcp: TcpChoice,
    /// Interface of the offload engine: an Ethernet interface, which it shares with the kernel by AF_XDP (needs CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN),
    /// or a TUN device (CAP_NET_ADMIN, unless the server's user may open it)
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) tcp_interface: Option<String>,
    /// Addresses of the offload engine, each with the length of its subnet's prefix: free ones, not the kernel's
    #[arg(long = "tcp-address", value_name = "ADDR/PREFIX", value_delimiter = ',')]
    pub(crate) tcp_addresses: Vec<OwnAddress>,
    /// Gateways of the offload engine at an Ethernet interface, at most one for IPv4 and one for IPv6 [default: only viewers on the subnets of
    /// --tcp-address are reached]
    #[arg(long = "tcp-gateway", value_name = "ADDR", value_delimiter = ',')]
    pub(crate) tcp_gateways: Vec<IpAddr>,
}

/// Which TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TcpChoice {
    /// The kernel's.
    Kernel,
    /// An offload engine's beside it.
    Engine,
}

/// An address and the length of its subnet's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnAddress {
    ip: IpAddr,
    prefix: u8,
}

impl FromStr for OwnAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/');
        let parsed = parts.and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
        let Some((ip, prefix)) = parsed else {
            return Err(format!(
                "got \"{text}\"; write an address and the length of its subnet's prefix, for example 10.0.0.5/24"
            ));
        };
        let longest = if IpAddr::is_ipv4(&ip) { 32 } else { 128 };
        if prefix > longest || !is_host(ip) {
            return Err(format!(
                "got \"{text}\", which no host can have; write an address of its own for the engine, for example 10.0.0.5/24"
            ));
        }
        Ok(Self { ip, prefix })
    }
}

impl fmt::Display for OwnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl OwnAddress {
    fn has_on_subnet(&self, other: IpAddr) -> bool {
        let bits = |ip| match ip {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)) << 96, 32),
            IpAddr::V6(ip) => (u128::from(ip), 128),
        };
        let ((own, own_bits), (other, other_bits)) = (bits(self.ip), bits(other));
        let differing = (own ^ other).checked_shr(128 - u32::from(self.prefix)).unwrap_or(0);
        own_bits == other_bits && differing == 0
    }
}

fn is_host(ip: IpAddr) -> bool {
    let is_mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    let is_this_network = matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0 || ip.octets()[0] >= 240);
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_mapped || is_this_network)
}

impl TcpArgs {
    /// Checks what no setting shows by itself.
    pub(crate) fn check(&self, listen: Option<IpAddr>) -> anyhow::Result<()> {
        let addresses = &self.tcp_addresses;
        for (place, address) in addresses.iter().enumerate() {
            let ip = address.ip;
            ensure!(
                addresses[..place].iter().all(|other| other.ip != ip),
                "--tcp-address: {ip} is named twice"
            );
            ensure!(
                listen != Some(ip),
                "--tcp-address: {ip} is where --listen has the kernel listen; give the offload engine an address of its own"
            );
        }
        ensure!(
            addresses.len() <= MAX_ADDRESSES,
            "--tcp-address: got {}, at most {MAX_ADDRESSES}",
            addresses.len()
        );
        for (place, gateway) in self.tcp_gateways.iter().enumerate() {
            ensure!(
                self.tcp_gateways[..place].iter().all(|other| other.is_ipv4() != gateway.is_ipv4()),
                "--tcp-gateway: {gateway} is the second one of its family; give one for IPv4 and one for IPv6 at most"
            );
            let is_near = addresses.iter().any(|address| address.has_on_subnet(*gateway));
            let is_own = addresses.iter().any(|address| address.ip == *gateway);
            ensure!(
                is_near && !is_own,
                "--tcp-gateway: {gateway} is no other host on a subnet of --tcp-address; give the router's address there"
            );
        }
        if self.tcp == TcpChoice::Engine {
            ensure!(
                self.tcp_interface.is_some(),
                "--tcp engine: name the offload engine's interface, for example --tcp-interface eth0"
            );
            ensure!(
                !addresses.is_empty(),
                "--tcp engine: give the offload engine an address of its own, for example --tcp-address 10.0.0.5/24"
            );
        }
        Ok(())
    }

    /// Whether an engine is wanted.
    pub(super) fn is_engine(&self) -> bool {
        self.tcp == TcpChoice::Engine
    }

    /// Starts the engine at the seat of the first loop, if one is wanted; whether that works now is said in the log.
    pub(super) fn start(&self, port: u16, seat: Option<Seat>) -> Option<Offload> {
        let (seat, interface) = (seat?, self.tcp_interface.clone()?);
        let (addresses, gateways) = (self.tcp_addresses.clone(), self.tcp_gateways.clone());
        let mut opener = Opener { interface, addresses, gateways, seat };
        let engine = opener.open().inspect_err(|why| {
            tracing::warn!(
                "the kernel's TCP carries all connections, because the offload engine cannot be started: {why}. It is tried again, at least every {} s",
                OFFLOAD_RETRY_MOST.as_secs()
            );
        });
        let addresses = self.tcp_addresses.iter().map(|address| address.ip).collect();
        Some(Offload { engine, opener: Box::new(opener), addresses, port, writer: 0 })
    }
}

/// The address that URLs name while the engine runs: what most players reach.
pub(super) fn url_host(offload: Option<&Offload>) -> Option<String> {
    let Offload { addresses, .. } = offload.filter(|offload| offload.engine.is_ok())?;
    let first = addresses.iter().find(|ip| ip.is_ipv4()).or(addresses.first())?;
    Some(first.to_string())
}

/// Starts the engine, as often as it has to be.
struct Opener {
    interface: String,
    addresses: Vec<OwnAddress>,
    gateways: Vec<IpAddr>,
    seat: Seat,
}

impl OpenOffload for Opener {
    fn open(&mut self) -> Result<Engine, String> {
        let (settings, device) = self.device()?;
        self.seat.start(&settings, device).map_err(|error| error.to_string())
    }
}

impl Opener {
    /// The engine's device, and the settings that go with it.
    fn device(&self) -> Result<(EngineSettings, Box<dyn Device>), String> {
        let name = &self.interface;
        let all = Target::all().map_err(|error| error.to_string())?;
        let of_kernel = |ip| all.iter().find(|target| target.addresses.contains(&ip));
        if let Some((ip, of)) = self.addresses.iter().find_map(|own| Some((own.ip, of_kernel(own.ip)?))) {
            return Err(format!(
                "{ip} is the kernel's address at {}: take it away there (ip address del), or give the engine another one with --tcp-address",
                of.name
            ));
        }
        let target = Target::of(name).map_err(|error| error.to_string())?;
        let features = DeviceFeatures::of(name).map_err(|error| error.to_string())?;
        if !features.is_up {
            return Err(format!("interface {name} is down: switch it on (ip link set {name} up)"));
        }
        let is_tun = !target.is_ethernet && features.driver.as_deref() == Some("tun");
        if !target.is_ethernet && !is_tun {
            return Err(format!(
                "{name} is neither an Ethernet interface nor a TUN device: name another one with --tcp-interface"
            ));
        }
        let opened = if is_tun { self.at_tun(&target) } else { self.at_ethernet() };
        opened.map_err(|error| error.to_string())
    }

    fn settings(&self) -> EngineSettings {
        let addresses: Vec<_> = self.addresses.iter().map(|own| (own.ip, own.prefix)).collect();
        let mut settings = EngineSettings::new(&addresses);
        for gateway in &self.gateways {
            match gateway {
                IpAddr::V4(ip) => settings.interface.gateway_v4 = Some(*ip),
                IpAddr::V6(ip) => settings.interface.gateway_v6 = Some(*ip),
            }
        }
        // The control thread is the one host.
        settings.pairs = 1;
        settings.pair.sockets = OFFLOAD_CONNECTIONS;
        settings.pair.receive_share = OFFLOAD_RECEIVE_SHARE;
        // Replies leave at once.
        settings.stack.config.nagle = false;
        settings.stack.descriptors = OFFLOAD_DESCRIPTORS;
        // A viewer that vanished without a word is noticed, paused or not.
        settings.keeps_alive = true;
        settings.stack.config.keep_alive_ns = KEEPALIVE_IDLE.as_nanos() as u64;
        settings
    }

    fn at_tun(&self, target: &Target) -> std::io::Result<(EngineSettings, Box<dyn Device>)> {
        let mut settings = self.settings();
        settings.interface.mtu = target.mtu.min(u32::from(u16::MAX)) as u16;
        settings.stack.config.mtu = settings.interface.mtu;
        Ok((settings, Box::new(TunDevice::open(&self.interface)?)))
    }

    fn at_ethernet(&self) -> std::io::Result<(EngineSettings, Box<dyn Device>)> {
        let settings = self.settings().on_ethernet(&self.interface)?;
        let device = XdpDevice::open(&XdpRawConfig::new(&self.interface), &settings.interface)?;
        Ok((settings, Box::new(device)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millrace_offload::bell::EventBell;
    use millrace_offload::toe::EngineTx;
    use millrace_offload::{GsoMode, KernelTx, KernelTxConfig};

    use super::*;

    fn args(addresses: &[&str], gateways: &[&str]) -> TcpArgs {
        TcpArgs {
            tcp: TcpChoice::Engine,
            tcp_interface: Some("eth9".into()),
            tcp_addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            tcp_gateways: gateways.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn opener(interface: &str, addresses: &[&str]) -> Opener {
        let kernel = KernelTx::new(KernelTxConfig { v4: None, v6: None, gso: GsoMode::Off, conns: 1 });
        let (_, seat) = EngineTx::with_seat(kernel.unwrap(), 1, Arc::new(EventBell::new().unwrap()));
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Opener { interface: interface.into(), addresses, gateways: Vec::new(), seat }
    }

    fn refusal(args: &TcpArgs) -> String {
        args.check(Some("10.0.0.9".parse().unwrap())).unwrap_err().to_string()
    }

    #[test]
    fn an_address_has_a_prefix_and_is_one_of_a_host() {
        for text in ["10.0.0.5/24", "fd00::5/64", "10.0.0.5/32", "10.0.0.5/0"] {
            assert_eq!(text.parse::<OwnAddress>().unwrap().to_string(), text);
        }
        for text in ["10.0.0.5", "10.0.0.5/", "/24", "10.0.0.5/33", "fd00::5/129", "eth0", "10.0.0.5/-1", ""]
        {
            let error = text.parse::<OwnAddress>().unwrap_err();
            assert!(error.contains(&format!("\"{text}\"")) && error.contains("10.0.0.5/24"), "{error}");
        }
        for text in
            ["0.0.0.0/0", "127.0.0.1/8", "224.0.0.1/4", "::/0", "::1/128", "ff02::1/64", "::ffff:10.0.0.1/96"]
        {
            assert!(text.parse::<OwnAddress>().unwrap_err().contains("which no host can have"), "{text}");
        }
    }

    #[test]
    fn what_can_never_be_is_refused() {
        let fits = [
            args(&["10.0.0.5/24"], &[]),
            args(&["10.0.0.5/24", "fd00::5/64"], &["10.0.0.1", "fd00::1"]),
            args(&["10.0.0.5/0"], &["192.0.2.1"]),
            // Without the engine its settings wait.
            TcpArgs { tcp: TcpChoice::Kernel, tcp_interface: None, ..args(&[], &[]) },
            TcpArgs { tcp: TcpChoice::Kernel, ..args(&["10.0.0.5/24"], &[]) },
        ];
        for args in &fits {
            args.check(Some("10.0.0.9".parse().unwrap())).unwrap();
            args.check(None).unwrap();
        }
        let no_interface = TcpArgs { tcp_interface: None, ..args(&["10.0.0.5/24"], &[]) };
        assert!(refusal(&no_interface).contains("--tcp-interface eth0"));
        assert!(refusal(&args(&[], &[])).contains("--tcp-address 10.0.0.5/24"));
        assert!(refusal(&args(&["10.0.0.5/24", "10.0.0.5/16"], &[])).contains("10.0.0.5 is named twice"));
        assert!(refusal(&args(&["10.0.0.9/24"], &[])).contains("where --listen has the kernel listen"));
        let many: Vec<_> = (0..=MAX_ADDRESSES).map(|last| format!("10.0.1.{}/24", last + 1)).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(refusal(&args(&many, &[])).contains(&format!("at most {MAX_ADDRESSES}")));
        for far in ["10.0.1.1", "fd00::1", "10.0.0.5"] {
            assert!(refusal(&args(&["10.0.0.5/24"], &[far])).contains(&format!("{far} is no other host")));
        }
        assert!(
            refusal(&args(&["10.0.0.5/8"], &["10.0.0.1", "10.1.0.1"])).contains("10.1.0.1 is the second one")
        );
    }

    #[test]
    fn where_it_cannot_run_it_is_said_why() {
        let open = |interface: &str, address: &str| opener(interface, &[address]).open().err().unwrap();
        let free = "192.0.2.55/24";
        assert!(open("no-such-if", free).contains("no such interface"), "{}", open("no-such-if", free));
        let on_lo = open("lo", free);
        assert!(on_lo.starts_with("lo is neither an Ethernet interface nor a TUN device"), "{on_lo}");
    }

    #[test]
    fn urls_name_the_engine_while_it_runs() {
        assert_eq!(url_host(None), None);
        let opener = opener("lo", &[]);
        let addresses = ["fd00::5", "10.0.0.5"].map(|text| text.parse().unwrap()).into();
        let offload =
            Offload { engine: Err(String::new()), opener: Box::new(opener), addresses, port: 554, writer: 0 };
        assert_eq!(url_host(Some(&offload)), None);
    }
}
