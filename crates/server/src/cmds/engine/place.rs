//! Where an offload engine is: an interface, addresses of its own and gateways, or ports of the kernel's addresses there. What `serve --tcp engine` and `millrace engine` take is checked and
//! opened here, whatever their options are called.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::ensure;
use millrace_core::limits::ip::MAX_ADDRESSES;
use millrace_core::limits::toe::MAX_OWN_PORTS;
use millrace_core::pool::ExtentArena;
use millrace_offload::egress_select::measure::TargetInterface;
use millrace_offload::features::DeviceFeatures;
use millrace_offload::toe::{Device, EngineSettings, PortSet, TunDevice, XdpDevice, XdpPorts};
use millrace_offload::xdp::XdpRawConfig;

/// An address and the length of its subnet's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnAddress {
    pub(crate) ip: IpAddr,
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

/// A command's names of the options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionNames {
    pub(crate) interface: &'static str,
    pub(crate) address: &'static str,
    pub(crate) gateway: &'static str,
    pub(crate) ports: &'static str,
}

impl OptionNames {
    /// Checks what ports of the kernel's addresses do not go with.
    pub(crate) fn check_ports(&self, ports: Option<&PortSet>, gateways: &[IpAddr]) -> anyhow::Result<()> {
        let Some(ports) = ports else { return Ok(()) };
        let (option, count) = (self.ports, ports.count());
        ensure!(count <= MAX_OWN_PORTS, "{option}: got {count} ports, at most {MAX_OWN_PORTS}");
        ensure!(
            gateways.is_empty(),
            "{}: has no effect with {option}, which uses the kernel's routes; omit it",
            self.gateway
        );
        Ok(())
    }

    /// Checks what no address and no gateway shows by itself.
    pub(crate) fn check(&self, addresses: &[OwnAddress], gateways: &[IpAddr]) -> anyhow::Result<()> {
        let Self { address: option, gateway: gateway_option, .. } = self;
        for (place, OwnAddress { ip, .. }) in addresses.iter().enumerate() {
            ensure!(addresses[..place].iter().all(|other| other.ip != *ip), "{option}: {ip} is named twice");
        }
        ensure!(
            addresses.len() <= MAX_ADDRESSES,
            "{option}: got {}, at most {MAX_ADDRESSES}",
            addresses.len()
        );
        for (place, gateway) in gateways.iter().enumerate() {
            ensure!(
                gateways[..place].iter().all(|other| other.is_ipv4() != gateway.is_ipv4()),
                "{gateway_option}: {gateway} is the second one of its family; give one for IPv4 and one for IPv6 at most"
            );
            let is_near = addresses.iter().any(|address| address.has_on_subnet(*gateway));
            let is_own = addresses.iter().any(|address| address.ip == *gateway);
            ensure!(
                is_near && !is_own,
                "{gateway_option}: {gateway} is not another host on a subnet of {option}; give the router's address there"
            );
        }
        Ok(())
    }
}

/// An interface, and the engine's addresses and ports there.
#[derive(Clone, Debug)]
pub(crate) struct EngineBinding {
    pub(crate) interface: String,
    pub(crate) addresses: Vec<OwnAddress>,
    pub(crate) gateways: Vec<IpAddr>,
    /// The TCP ports that it has of addresses that are the kernel's; `None`: the addresses are its own.
    pub(crate) ports: Option<PortSet>,
    /// Of these ports, listeners of the kernel's may stay beside the engine's.
    pub(crate) is_beside_listeners: bool,
    /// Longest IP packet; `None`: the interface's.
    pub(crate) mtu: Option<u16>,
    /// The cache's memory, which payload is sent from without a copy where the driver can.
    pub(crate) media: Option<Arc<ExtentArena>>,
    pub(crate) names: OptionNames,
}

impl EngineBinding {
    fn device_config(&self) -> XdpRawConfig {
        XdpRawConfig { media: self.media.clone(), ..XdpRawConfig::new(&self.interface) }
    }

    /// Logs how the device gets at packets: a figure that was measured depends on it.
    fn log_mode(&self, mode: &str) {
        tracing::info!("the offload engine is at {}: {mode}", self.interface);
    }

    /// Opens the device and creates the matching settings; `adjust` sets those that do not concern
    /// the place.
    ///
    /// # Errors
    /// Why that cannot be now: what failed, where, and what to do.
    pub(crate) fn open(
        &self,
        adjust: impl FnOnce(&mut EngineSettings),
    ) -> Result<(EngineSettings, Box<dyn Device>), String> {
        let (name, OptionNames { interface: option, .. }) = (&self.interface, self.names);
        if self.ports.is_none() {
            self.are_free(&TargetInterface::all().map_err(|error| error.to_string())?)?;
        }
        let target = TargetInterface::of(name).map_err(|error| error.to_string())?;
        let features = DeviceFeatures::of(name).map_err(|error| error.to_string())?;
        let is_tun = !target.is_ethernet && features.driver.as_deref() == Some("tun");
        if !target.is_ethernet && !is_tun {
            return Err(format!(
                "{name} is neither an Ethernet interface nor a TUN device: name another one with {option}"
            ));
        }
        if !features.is_up {
            return Err(format!("interface {name} is down: switch it on (ip link set {name} up)"));
        }
        let mut settings = self.settings();
        adjust(&mut settings);
        if let Some(ports) = &self.ports {
            return self.open_ports(settings, ports, &target, is_tun);
        }
        if is_tun {
            settings = self.with_mtu(settings, target.mtu.min(u32::from(u16::MAX)) as u16)?;
            let device = TunDevice::open(name).map_err(|error| error.to_string())?;
            return Ok((settings, Box::new(device)));
        }
        let settings = settings.on_ethernet(name).map_err(|error| error.to_string())?;
        let longest = settings.interface.mtu;
        let settings = self.with_mtu(settings, longest)?;
        let device =
            XdpDevice::open(&self.device_config(), &settings.interface).map_err(|error| error.to_string())?;
        self.log_mode(&device.mode());
        Ok((settings, Box::new(device)))
    }

    /// Whether the kernel has none of the addresses.
    fn are_free(&self, all: &[TargetInterface]) -> Result<(), String> {
        let of_kernel = |ip| all.iter().find(|target| target.addresses.contains(&ip));
        let taken = self.addresses.iter().find_map(|own| Some((own.ip, of_kernel(own.ip)?)));
        let Some((ip, of)) = taken else { return Ok(()) };
        let OptionNames { address, ports, .. } = self.names;
        Err(format!(
            "{ip} is the kernel's address at {}: take it away there (ip address del), give the engine another one with {address}, or let the \
             kernel keep it and the engine have TCP ports of it only, with {ports}",
            of.name
        ))
    }

    /// Opens the device for ports of addresses that the kernel has at the interface.
    fn open_ports(
        &self,
        settings: EngineSettings,
        ports: &PortSet,
        target: &TargetInterface,
        is_tun: bool,
    ) -> Result<(EngineSettings, Box<dyn Device>), String> {
        let (name, OptionNames { ports: option, address, .. }) = (&self.interface, self.names);
        if is_tun {
            return Err(format!(
                "{name} is a TUN device, and ports of the kernel's addresses can be had at an Ethernet interface only: leave out {option}, and \
                 give the engine an address of its own"
            ));
        }
        if let Some(own) = self.addresses.iter().find(|own| !target.addresses.contains(&own.ip)) {
            let has: Vec<String> = target.addresses.iter().map(IpAddr::to_string).collect();
            return Err(format!(
                "{} is no address of {name}: with {option} {address} names addresses that the kernel has there, which are {}",
                own.ip,
                if has.is_empty() { "none now".to_owned() } else { has.join(", ") }
            ));
        }
        let mut settings = settings.on_ports(name, ports.clone()).map_err(|error| error.to_string())?;
        settings.is_beside_listeners = self.is_beside_listeners;
        let longest = settings.interface.mtu;
        let settings = self.with_mtu(settings, longest)?;
        let device = XdpPorts::open(&self.device_config(), &settings).map_err(|error| error.to_string())?;
        self.log_mode(&device.mode());
        Ok((settings, Box::new(device)))
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
        settings
    }

    fn with_mtu(&self, mut settings: EngineSettings, longest: u16) -> Result<EngineSettings, String> {
        let mtu = self.mtu.unwrap_or(longest);
        if mtu > longest {
            return Err(format!(
                "{} takes packets of up to {longest} bytes, and an MTU of {mtu} was asked for: choose a smaller one",
                self.interface
            ));
        }
        (settings.interface.mtu, settings.stack.config.mtu) = (mtu, mtu);
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_address_parse_requires_prefix_and_host_address() {
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
    fn place_open_on_unsuitable_interface_reports_cause() {
        let names = OptionNames {
            interface: "--interface",
            address: "--address",
            gateway: "--gateway",
            ports: "--ports",
        };
        let open = |interface: &str, address: &str, mtu| {
            let addresses = vec![address.parse().unwrap()];
            let place = EngineBinding {
                interface: interface.into(),
                addresses,
                gateways: Vec::new(),
                ports: None,
                is_beside_listeners: false,
                mtu,
                media: None,
                names,
            };
            place.open(|_| ()).err().unwrap()
        };
        let free = "192.0.2.55/24";
        assert!(open("no-such-if", free, None).contains("no such interface"));
        let on_lo = open("lo", free, None);
        assert!(on_lo.starts_with("lo is neither an Ethernet interface nor a TUN device"), "{on_lo}");
        assert!(on_lo.ends_with("--interface"), "{on_lo}");
    }

    #[test]
    fn ports_go_with_no_gateway_and_are_not_too_many() {
        let names = OptionNames { interface: "", address: "", gateway: "--gateway", ports: "--ports" };
        let check = |ports: &str, gateways: &[&str]| {
            let gateways: Vec<IpAddr> = gateways.iter().map(|ip| ip.parse().unwrap()).collect();
            let ports = ports.parse().ok();
            names.check_ports(ports.as_ref(), &gateways).map_err(|error| error.to_string())
        };
        assert_eq!(check("8080,5540-5560", &[]), Ok(()));
        assert_eq!(check("", &["10.0.0.1"]), Ok(()), "no ports");
        assert_eq!(check("1-1024", &[]), Ok(()));
        assert_eq!(check("1-1025", &[]), Err("--ports: got 1025 ports, at most 1024".to_owned()));
        let error = check("80", &["10.0.0.1"]).unwrap_err();
        assert!(error.starts_with("--gateway: has no effect with --ports"), "{error}");
    }

    #[test]
    fn packets_are_no_longer_than_the_interface_takes() {
        let names = OptionNames { interface: "", address: "", gateway: "", ports: "" };
        let place = |mtu| {
            let addresses = vec!["192.0.2.55/24".parse().unwrap()];
            let (ports, is_beside_listeners) = (None, false);
            let interface = "toe0".into();
            EngineBinding {
                interface,
                addresses,
                gateways: Vec::new(),
                ports,
                is_beside_listeners,
                mtu,
                media: None,
                names,
            }
        };
        for (wanted, expected) in [(None, 1500), (Some(1500), 1500), (Some(1280), 1280)] {
            let place = place(wanted);
            let settings = place.with_mtu(place.settings(), 1500).unwrap();
            assert_eq!((settings.interface.mtu, settings.stack.config.mtu), (expected, expected));
        }
        let place = place(Some(1501));
        let error = place.with_mtu(place.settings(), 1500).err().unwrap();
        assert!(error.starts_with("toe0 takes packets of up to 1500 bytes"), "{error}");
    }
}
