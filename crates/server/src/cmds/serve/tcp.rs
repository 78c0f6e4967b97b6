//! `--tcp`: whether an offload engine carries connections beside the kernel's TCP, and how it is started.
//!
//! Impossible settings are refused when they are read. If only the present state (rights, the
//! interface, this kernel) prevents the start, the kernel's TCP remains, with a message about it,
//! and the start is retried ([`OpenOffload`]).

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};
use millrace_core::limits::control::KEEPALIVE_IDLE;
use millrace_core::pool::ExtentArena;
use millrace_offload::features::DeviceFeatures;
use millrace_offload::toe::{Access, Engine, EngineSettings, PortSet, Seat};
use millrace_offload::xdp::{Abilities, XdpRawConfig};
use millrace_web::Carrier;
use tokio::sync::watch;

use crate::cmds::engine::place::{EngineBinding, OptionNames, OwnAddress};
use crate::control::{Offload, OpenOffload, http_by_offload};
use crate::limits::control::{
    OFFLOAD_CONNECTIONS, OFFLOAD_DESCRIPTORS, OFFLOAD_RECEIVE_SHARE, OFFLOAD_RETRY_MOST,
    OFFLOAD_SEND_BUFFERS, OFFLOAD_SEND_RESERVE, OFFLOAD_SEND_SHARE_BYTES,
};

/// Settings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
pub(crate) struct TcpArgs {
    /// What carries RTSP and HTTP connections, and the media in them: kernel, or engine (also a TCP offload engine, which has an interface and addresses
    /// of its own; where it cannot run, the kernel alone). The kernel's addresses are listened on in both cases; those by TLS are the kernel's
    #[arg(long, value_name = "WHAT", default_value = "kernel")]
    pub(crate) tcp: TcpChoice,
    /// Interface of the offload engine: an Ethernet interface, which it shares with the kernel by AF_XDP (needs CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN),
    /// or a TUN device (CAP_NET_ADMIN, unless the server's user may open it)
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) tcp_interface: Option<String>,
    /// Addresses of the offload engine, each with the length of its subnet's prefix: free ones, not the kernel's, unless --tcp-port-only is set
    #[arg(long = "tcp-address", value_name = "ADDR/PREFIX", value_delimiter = ',')]
    pub(crate) tcp_addresses: Vec<OwnAddress>,
    /// The addresses of --tcp-address are those that the kernel has at --tcp-interface, an Ethernet interface: the offload engine has the ports of
    /// --listen and --http of them and the kernel everything else, and these ports too while the engine does not run
    #[arg(long)]
    pub(crate) tcp_port_only: bool,
    /// Gateways of the offload engine at an Ethernet interface, at most one for IPv4 and one for IPv6 [default: only viewers on the subnets of
    /// --tcp-address are reached]
    #[arg(long = "tcp-gateway", value_name = "ADDR", value_delimiter = ',')]
    pub(crate) tcp_gateways: Vec<IpAddr>,
    /// Unix socket at which `millrace engine status` shows the connections of the offload engine [default: none]
    #[arg(long, value_name = "PATH")]
    pub(crate) tcp_socket: Option<PathBuf>,
}

/// Which TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TcpChoice {
    /// The kernel's.
    Kernel,
    /// An offload engine's beside it.
    Engine,
}

/// The names of a place's options here.
const NAMES: OptionNames = OptionNames {
    interface: "--tcp-interface",
    address: "--tcp-address",
    gateway: "--tcp-gateway",
    ports: "--tcp-port-only",
};

impl TcpArgs {
    /// Checks what no setting shows by itself.
    pub(crate) fn check(&self, listen: Option<IpAddr>) -> anyhow::Result<()> {
        let addresses = &self.tcp_addresses;
        for (name, is_set) in [
            ("--tcp-interface", self.tcp_interface.is_some()),
            ("--tcp-address", !addresses.is_empty()),
            ("--tcp-gateway", !self.tcp_gateways.is_empty()),
            ("--tcp-port-only", self.tcp_port_only),
            ("--tcp-socket", self.tcp_socket.is_some()),
        ] {
            ensure!(
                !is_set || self.is_engine(),
                "{name}: has no effect with --tcp kernel; add --tcp engine, or omit {name}"
            );
        }
        NAMES.check_ports(self.ports(1, None).as_ref(), &self.tcp_gateways)?;
        NAMES.check(addresses, &self.tcp_gateways)?;
        let own = listen.filter(|_| !self.tcp_port_only);
        if let Some(ip) = own.filter(|listen| addresses.iter().any(|address| address.ip == *listen)) {
            bail!(
                "--tcp-address: {ip} is where --listen has the kernel listen; give the offload engine an address of its own, or only this port of it (--tcp-port-only)"
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

    /// Returns the engine's ports of addresses that are the kernel's, if they are.
    fn ports(&self, rtsp: u16, http: Option<u16>) -> Option<PortSet> {
        let ports = [Some(rtsp), http].into_iter().flatten().map(|port| port..=port);
        PortSet::of(ports).filter(|_| self.tcp_port_only)
    }

    /// Whether the engine listens at this address.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.tcp_addresses.iter().any(|address| address.ip == ip)
    }

    /// Whether an engine is wanted.
    pub(super) fn is_engine(&self) -> bool {
        self.tcp == TcpChoice::Engine
    }

    /// Extents that the cache has to set aside for the engine's frames: none unless the driver can send payload from the cache's memory.
    pub(super) fn aside_extents(&self) -> u32 {
        let Some(name) = self.tcp_interface.as_deref().filter(|_| self.is_engine()) else { return 0 };
        // An interface that is not there yet gets frames of its own when it comes. Whether the cache will be on huge pages is not known here.
        let features = DeviceFeatures::of(name).ok();
        let can_chain =
            Abilities::of(features.as_ref(), true).candidates().any(|strategy| strategy.is_chained());
        if can_chain { XdpRawConfig::new(name).aside_extents() } else { 0 }
    }

    /// Starts the engine at the seat of the first loop, if one is wanted, and logs whether this
    /// works now. It takes these ports, the one for HTTP through the carrier that is also returned.
    pub(super) fn start(
        &self,
        rtsp: u16,
        http: Option<u16>,
        seat: Option<Seat>,
        media: Option<Arc<ExtentArena>>,
    ) -> Option<Started> {
        let (seat, interface) = (seat?, self.tcp_interface.clone()?);
        let (addresses, gateways) = (self.tcp_addresses.clone(), self.tcp_gateways.clone());
        let (ports, is_beside_listeners) = (self.ports(rtsp, http), self.tcp_port_only);
        let place = EngineBinding {
            interface,
            addresses,
            gateways,
            ports,
            is_beside_listeners,
            mtu: None,
            media,
            names: NAMES,
        };
        // The control thread is a host of it, and the web side's is one.
        let hosts = 1 + usize::from(http.is_some());
        let mut opener = Opener { place, hosts, seat, socket: self.tcp_socket.clone() };
        let engine = opener.open().inspect_err(|why| {
            tracing::warn!(
                "the kernel's TCP carries all connections, because the offload engine cannot be started: {why}. It is tried again, at least every {} s",
                OFFLOAD_RETRY_MOST.as_secs()
            );
        });
        let addresses: Vec<_> = self.tcp_addresses.iter().map(|address| address.ip).collect();
        let (shown, engines) = watch::channel(Weak::new());
        let ends = |port| addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        let http = http.map(|port| http_by_offload(engines, ends(port)));
        Some((Offload { engine, opener: Box::new(opener), addresses, port: rtsp, writer: 0, shown }, http))
    }
}

/// An engine, and what brings its connections to the web side.
type Started = (Offload, Option<Carrier>);

/// The address that URLs name while the engine runs: what most players reach.
pub(super) fn url_host(offload: Option<&Offload>) -> Option<String> {
    let Offload { addresses, .. } = offload.filter(|offload| offload.engine.is_ok())?;
    let first = addresses.iter().find(|ip| ip.is_ipv4()).or(addresses.first())?;
    Some(first.to_string())
}

/// Starts the engine, as often as it has to be.
struct Opener {
    place: EngineBinding,
    /// Threads that use it.
    hosts: usize,
    /// Where it shows its activity.
    socket: Option<PathBuf>,
    seat: Seat,
}

impl OpenOffload for Opener {
    fn open(&mut self) -> Result<Engine, String> {
        let (settings, device) = self.place.open(|settings| adjust(settings, self.hosts))?;
        let mut engine = self.seat.start(&settings, device).map_err(|error| error.to_string())?;
        if let Some(socket) = &self.socket
            && let Err(error) = engine.serve(socket, Access::default())
        {
            tracing::warn!("--tcp-socket: cannot serve the status of the offload engine: {error}");
        }
        Ok(engine)
    }
}

/// The memory that the engine's payload is sent from, once some of it was set aside for its frames.
pub(super) fn media_of(arena: &Arc<ExtentArena>) -> Arc<ExtentArena> {
    // The engine may be opened later, when the kernel's sockets would already refer to pages.
    arena.registered();
    Arc::clone(arena)
}

fn adjust(settings: &mut EngineSettings, hosts: usize) {
    settings.pairs = hosts;
    settings.stack.connections = hosts as u32 * OFFLOAD_CONNECTIONS;
    settings.pair.sockets = OFFLOAD_CONNECTIONS;
    settings.pair.receive_share = OFFLOAD_RECEIVE_SHARE;
    settings.pair.send_buffers = OFFLOAD_SEND_BUFFERS;
    settings.pair.send_reserve = OFFLOAD_SEND_RESERVE;
    settings.pair.send_share_bytes = OFFLOAD_SEND_SHARE_BYTES;
    settings.pair.wake_bytes = OFFLOAD_SEND_SHARE_BYTES / 4;
    // Replies leave at once.
    settings.stack.config.nagle = false;
    settings.stack.descriptors = OFFLOAD_DESCRIPTORS;
    // A viewer that vanished without a word is noticed, paused or not.
    settings.keeps_alive = true;
    settings.stack.config.keep_alive_ns = KEEPALIVE_IDLE.as_nanos() as u64;
}

#[cfg(test)]
mod tests {
    use millrace_core::limits::ip::MAX_ADDRESSES;
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
            tcp_port_only: false,
            tcp_socket: None,
        }
    }

    fn opener(interface: &str, addresses: &[&str]) -> Opener {
        let kernel = KernelTx::new(KernelTxConfig { v4: None, v6: None, gso: GsoMode::Off, conns: 1 });
        let (_, seat) = EngineTx::with_seat(kernel.unwrap(), 1, Arc::new(EventBell::new().unwrap()));
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let place = EngineBinding {
            interface: interface.into(),
            addresses,
            gateways: Vec::new(),
            ports: None,
            is_beside_listeners: false,
            mtu: None,
            media: None,
            names: NAMES,
        };
        Opener { place, hosts: 1, seat, socket: None }
    }

    fn refusal(args: &TcpArgs) -> String {
        args.check(Some("10.0.0.9".parse().unwrap())).unwrap_err().to_string()
    }

    #[test]
    fn tcp_args_check_rejects_impossible_settings() {
        let fits = [
            args(&["10.0.0.5/24"], &[]),
            args(&["10.0.0.5/24", "fd00::5/64"], &["10.0.0.1", "fd00::1"]),
            args(&["10.0.0.5/0"], &["192.0.2.1"]),
            TcpArgs { tcp: TcpChoice::Kernel, tcp_interface: None, ..args(&[], &[]) },
        ];
        for args in &fits {
            args.check(Some("10.0.0.9".parse().unwrap())).unwrap();
            args.check(None).unwrap();
        }
        let kernels = TcpArgs { tcp: TcpChoice::Kernel, ..args(&["10.0.0.5/24"], &[]) };
        assert!(refusal(&kernels).contains("has no effect with --tcp kernel"));
        let no_interface = TcpArgs { tcp_interface: None, ..args(&["10.0.0.5/24"], &[]) };
        assert!(refusal(&no_interface).contains("--tcp-interface eth0"));
        assert!(refusal(&args(&[], &[])).contains("--tcp-address 10.0.0.5/24"));
        assert!(refusal(&args(&["10.0.0.5/24", "10.0.0.5/16"], &[])).contains("10.0.0.5 is named twice"));
        assert!(refusal(&args(&["10.0.0.9/24"], &[])).contains("where --listen has the kernel listen"));
        let shared = TcpArgs { tcp_port_only: true, ..args(&["10.0.0.9/24"], &[]) };
        shared.check(Some("10.0.0.9".parse().unwrap())).unwrap();
        let routed = TcpArgs { tcp_port_only: true, ..args(&["10.0.0.9/24"], &["10.0.0.1"]) };
        assert!(refusal(&routed).contains("--tcp-gateway: has no effect with --tcp-port-only"));
        let many: Vec<_> = (0..=MAX_ADDRESSES).map(|last| format!("10.0.1.{}/24", last + 1)).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(refusal(&args(&many, &[])).contains(&format!("at most {MAX_ADDRESSES}")));
        for far in ["10.0.1.1", "fd00::1", "10.0.0.5"] {
            assert!(refusal(&args(&["10.0.0.5/24"], &[far])).contains(&format!("{far} is not another host")));
        }
        assert!(
            refusal(&args(&["10.0.0.5/8"], &["10.0.0.1", "10.1.0.1"])).contains("10.1.0.1 is the second one")
        );
    }

    #[test]
    fn tcp_args_ports_with_port_only_match_listeners() {
        let own = args(&["10.0.0.5/24"], &[]);
        assert_eq!(own.ports(554, Some(8080)), None, "addresses of its own");
        let shared = TcpArgs { tcp_port_only: true, ..own };
        let of = |http| shared.ports(554, http).unwrap().to_string();
        assert_eq!((of(None), of(Some(8080))), ("554".to_owned(), "554,8080".to_owned()));
        assert!(shared.has([10, 0, 0, 5].into()) && !shared.has([10, 0, 0, 6].into()));
    }

    #[test]
    fn urls_name_the_engine_while_it_runs() {
        assert_eq!(url_host(None), None);
        let opener = opener("lo", &[]);
        let addresses = ["fd00::5", "10.0.0.5"].map(|text| text.parse().unwrap()).into();
        let (engine, shown) = (Err(String::new()), watch::Sender::default());
        let offload = Offload { engine, opener: Box::new(opener), addresses, port: 554, writer: 0, shown };
        assert_eq!(url_host(Some(&offload)), None);
    }
}
