//! `millrace engine`: a TCP offload engine as a process of its own, for programs on this machine.

pub(crate) mod place;
mod status;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use millrace_core::counters::Registry;
use millrace_core::limits::toe::MAX_PAIRS;
use millrace_core::units::HumanDuration;
use millrace_offload::toe::{
    Access, Capture, CounterSheets, Engine, EngineSettings, PortSet, default_socket, ports_given_out,
};

use self::place::{EngineBinding, OptionNames, OwnAddress};
use super::stats_file::StatsFile;
use super::{cancel_on_signals, usage};
use crate::limits::control::CONTROL_TICK;

/// Run a TCP offload engine that other programs on this machine use
///
/// The engine has addresses of its own, and a TCP of its own for them: at an Ethernet interface, which it shares with the kernel by AF_XDP, or
/// behind a TUN device. Or it has TCP ports of an address that the kernel has at an Ethernet interface (--ports), and the kernel all else of it. Programs connect to its Unix socket and have TCP connections by the engine instead of by the kernel. Ctrl-C ends it, and
/// with it the connections that it carries.
#[derive(Args)]
#[command(
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  millrace engine --interface eth1 --address 192.0.2.7/24 --gateway 192.0.2.1\n  \
                        millrace engine --interface toe0 --address 10.9.0.1/24 --allow-uid 1000\n  \
                        millrace engine --interface eth1 --address 192.0.2.7/24 --poll always --cpu 3\n  \
                        millrace engine --interface eth1 --address 192.0.2.5/24 --ports 8080,61000-61099\n  \
                        millrace engine status\n\n\
                        docs/guide/engine.md: what it needs, and what happens when something ends."
)]
pub(super) struct EngineArgs {
    #[command(subcommand)]
    command: Option<EngineCommand>,
    /// Interface: an Ethernet interface, which the engine shares with the kernel by AF_XDP (needs CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN), or a
    /// TUN device that exists (CAP_NET_ADMIN, unless the device belongs to this user)
    #[arg(long, value_name = "INTERFACE", required = true)]
    interface: Option<String>,
    /// Address of the engine with the length of its subnet's prefix: a free one, not the kernel's (with --ports, one that the kernel has at the
    /// interface). Repeat it for more
    #[arg(long = "address", value_name = "ADDR/PREFIX", value_delimiter = ',', required = true)]
    addresses: Vec<OwnAddress>,
    /// TCP ports of addresses that the kernel has at the interface: the engine has these and nothing else of them, for listeners and for connections
    /// that programs open. At an Ethernet interface only
    #[arg(long, value_name = "PORTS")]
    ports: Option<PortSet>,
    /// Gateway at an Ethernet interface, at most one for IPv4 and one for IPv6 [default: only hosts on the subnets of --address are reached]
    #[arg(long = "gateway", value_name = "ADDR", value_delimiter = ',')]
    gateways: Vec<IpAddr>,
    /// Longest IP packet in bytes [default: the interface's]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,
    /// Unix socket where programs connect [default: /run/millrace/engine.sock; for other users than root millrace/engine.sock in
    /// $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH", env = "MILLRACE_ENGINE")]
    socket: Option<PathBuf>,
    /// Threads of other programs that may use the engine at once, 1 to 64; each has 17 MB of memory while it does
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = pairs)]
    pairs: usize,
    /// User that may connect, beside root and the user of the engine. Repeat it for more
    #[arg(long = "allow-uid", value_name = "UID", value_delimiter = ',')]
    uids: Vec<u32>,
    /// Group whose programs may connect. Repeat it for more
    #[arg(long = "allow-gid", value_name = "GID", value_delimiter = ',')]
    gids: Vec<u32>,
    /// Pin the engine's thread to this core
    #[arg(long, value_name = "CORE")]
    cpu: Option<usize>,
    /// How long the engine looks for work before it sleeps; always: it never sleeps, and takes a core
    #[arg(long, value_name = "TIME", default_value = "20us")]
    poll: Poll,
    /// Write every counter into this file once a second, as JSON
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Write every packet to this file, for tcpdump and Wireshark, up to 1 GiB; a file that is there is replaced
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
}

#[derive(Subcommand)]
enum EngineCommand {
    Status(status::StatusArgs),
}

const NAMES: OptionNames =
    OptionNames { interface: "--interface", address: "--address", gateway: "--gateway", ports: "--ports" };

fn pairs(text: &str) -> Result<usize, String> {
    let allowed = 1..=MAX_PAIRS;
    let count = text.parse().ok().filter(|count| allowed.contains(count));
    count.ok_or_else(|| format!("got {text}, allowed: 1 to {MAX_PAIRS}"))
}

/// How long is looked for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Poll {
    ns: u64,
}

impl FromStr for Poll {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "always" {
            return Ok(Self { ns: u64::MAX });
        }
        let time: HumanDuration = text.parse().map_err(|error| format!("{error}; or always"))?;
        Ok(Self { ns: u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX) })
    }
}

/// Runs until a signal comes or the device is gone; or shows what one that runs does.
pub(super) fn run(args: &EngineArgs) -> anyhow::Result<ExitCode> {
    if let Some(EngineCommand::Status(args)) = &args.command {
        return status::run(args);
    }
    NAMES.check_ports(args.ports.as_ref(), &args.gateways).map_err(usage)?;
    NAMES.check(&args.addresses, &args.gateways).map_err(usage)?;
    let cancel = cancel_on_signals()?;
    let engine = start(args)?;
    let registry = Arc::new(registry(engine.sheets()));
    let stats = args.stats.as_ref().map(|path| StatsFile::start(path, &registry)).transpose()?;
    let socket = args.socket();
    print!("{}", greeting(args, &socket, library().as_deref()));
    while !cancel.load(Ordering::SeqCst) && !engine.is_finished() {
        std::thread::sleep(CONTROL_TICK);
    }
    if let Some(stats) = stats {
        stats.stop();
    }
    engine.stop().with_context(|| format!("the offload engine at {} has ended", args.interface()))?;
    Ok(ExitCode::SUCCESS)
}

fn start(args: &EngineArgs) -> anyhow::Result<Engine> {
    let place = EngineBinding {
        interface: args.interface().to_owned(),
        addresses: args.addresses.clone(),
        gateways: args.gateways.clone(),
        ports: args.ports.clone(),
        is_beside_listeners: false,
        mtu: args.mtu,
        media: None,
        names: NAMES,
    };
    // The caller of this command has read about the purpose of the engine, and about the
    // alternative without one.
    let instead = "without an engine programs use the kernel's TCP";
    let refused = |why: String| anyhow!("the offload engine cannot be started: {why}; {instead}");
    let (settings, device) = place.open(|settings| adjust(args, settings)).map_err(refused)?;
    if let Some(warning) = args.ports.as_ref().and_then(|ports| warning(ports_given_out(ports))) {
        eprintln!("millrace: {warning}");
    }
    let mut engine = Engine::start(&settings, device).map_err(|error| refused(error.to_string()))?;
    engine.serve(&args.socket(), Access { uids: args.uids.clone(), gids: args.gids.clone() })?;
    Ok(engine)
}

/// Returns the warning about ports that the kernel gives to its own connections: how many could
/// keep an engine from starting, and how to prevent this.
fn warning(given_out: Option<(PortSet, String)>) -> Option<String> {
    let (ports, remedy) = given_out?;
    Some(format!(
        "warning: --ports: the kernel gives {ports} to its own connections while no engine runs, and no engine can start while it does; keep them: {remedy}"
    ))
}

fn adjust(args: &EngineArgs, settings: &mut EngineSettings) {
    (settings.pairs, settings.remote_pairs) = (0, args.pairs);
    (settings.cpu, settings.poll_ns) = (args.cpu, args.poll.ns);
    settings.capture =
        args.capture.as_ref().map(|file| Capture::to(file, |why| eprintln!("millrace: {why}")));
}

impl EngineArgs {
    fn interface(&self) -> &str {
        // It is there whenever there is no subcommand.
        self.interface.as_deref().unwrap_or_default()
    }

    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }
}

fn registry(sheets: &CounterSheets) -> Registry {
    let mut registry = Registry::default();
    let [engine, tcp, ip, gate] = [(); 4].map(|()| sheets.clone());
    registry.add("offload", None, move || engine.engine());
    registry.add("offload_tcp", None, move || tcp.stack());
    registry.add("offload_ip", None, move || ip.ip());
    registry.add("offload_gate", None, move || gate.gate());
    registry
}

/// The preload library, if it lies beside this program.
fn library() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name("libmillrace_preload.so");
    beside.exists().then_some(beside)
}

/// What runs, and how programs use it.
fn greeting(args: &EngineArgs, socket: &Path, library: Option<&Path>) -> String {
    let addresses: Vec<String> = args.addresses.iter().map(OwnAddress::to_string).collect();
    let library = library.unwrap_or(Path::new("libmillrace_preload.so")).display();
    let (interface, socket) = (args.interface(), socket.display());
    let ports = args.ports.as_ref().map(|ports| format!("TCP ports {ports} of ")).unwrap_or_default();
    format!(
        "offload engine at {interface}: {ports}{}\nprograms connect at {socket}, for example:\n  \
         MILLRACE_ENGINE={socket} LD_PRELOAD={library} curl http://HOST/\n",
        addresses.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct EngineCli {
        #[command(flatten)]
        args: EngineArgs,
    }

    fn parse(more: &[&str]) -> Result<EngineArgs, String> {
        let begin = ["engine", "--interface", "toe0", "--address", "10.9.0.1/24"];
        let line = EngineCli::try_parse_from(begin.iter().chain(more));
        line.map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn times_may_be_endless_and_pairs_have_a_range() {
        assert_eq!("always".parse(), Ok(Poll { ns: u64::MAX }));
        assert_eq!("20us".parse(), Ok(Poll { ns: 20_000 }));
        assert!("soon".parse::<Poll>().unwrap_err().ends_with("or always"));
        for wrong in ["0", "65", "-1", "many"] {
            let error = parse(&[&format!("--pairs={wrong}")]).err().unwrap();
            assert!(error.contains(&format!("got {wrong}, allowed: 1 to 64")), "{error}");
        }
    }

    #[test]
    fn adjust_applies_command_line_options_to_engine_settings() {
        let line = "--address fd00::1/64 --pairs 3 --cpu 1 --poll 1ms --capture /tmp/x --socket /tmp/s";
        let args = parse(&line.split(' ').collect::<Vec<_>>()).unwrap();
        let mut settings = EngineSettings::new(&[]);
        adjust(&args, &mut settings);
        assert_eq!((settings.pairs, settings.remote_pairs), (0, 3));
        assert_eq!((settings.cpu, settings.poll_ns), (Some(1), 1_000_000));
        assert_eq!(settings.capture.map(|capture| capture.file), Some("/tmp/x".into()));
        let said = greeting(&args, &args.socket(), Some(Path::new("/usr/lib/p.so")));
        assert_eq!(
            said,
            "offload engine at toe0: 10.9.0.1/24, fd00::1/64\nprograms connect at /tmp/s, for example:\n  \
             MILLRACE_ENGINE=/tmp/s LD_PRELOAD=/usr/lib/p.so curl http://HOST/\n"
        );
        let args = parse(&["--ports", "8080,5540-5560"]).unwrap();
        let said = greeting(&args, &args.socket(), None);
        assert!(
            said.starts_with("offload engine at toe0: TCP ports 5540-5560,8080 of 10.9.0.1/24\n"),
            "{said}"
        );
        let error = parse(&["--ports", "http"]).err().unwrap();
        assert!(error.contains("8080,5540-5560"), "{error}");
    }

    #[test]
    fn ports_that_the_kernel_gives_out_are_warned_of() {
        assert_eq!(warning(None), None);
        let said = warning(Some(("40000".parse().unwrap(), "sysctl -w x=40000".to_owned()))).unwrap();
        assert!(said.starts_with("warning: --ports: ") && said.ends_with("sysctl -w x=40000"), "{said}");
    }
}
