//! Options and shell commands of a script as settings of a stack.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use millrace_tcp::cc::Algorithm;
use millrace_tcp::conn::Config;
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::stack::Settings;

use super::script::{Dialect, Script};
use super::text::Fault;
use crate::sim;

/// Which IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// Our address, and the peer's.
    pub(super) fn ends(self) -> (IpAddr, IpAddr) {
        let (local, remote) = match self {
            Self::V4 => ("192.168.0.1", "192.0.2.1"),
            Self::V6 => ("fd3d:a0b:17d6::1", "fd3d:fa7b:d17d::1"),
        };
        (local.parse().expect("an address"), remote.parse().expect("an address"))
    }

    pub(super) fn local(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ends().0, port)
    }

    pub(super) fn remote(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ends().1, port)
    }
}

/// How a script is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) family: Family,
    /// Begins where the stack's first sequence numbers are just below 2^32.
    pub(crate) wraps: bool,
    /// Plain ACKs are noted on arrival and processed after the output stage.
    pub(crate) defers: bool,
}

/// The settings that result from a script's options and commands.
pub(super) struct Setup {
    pub(super) settings: Settings,
    /// How far from its time an event may be, in nanoseconds.
    pub(super) tolerance_ns: i64,
    /// Only with this IP.
    pub(super) family: Option<Family>,
    /// Commands that mean nothing here.
    pub(super) passed_over: BTreeSet<String>,
}

/// Linux settings without a counterpart in this stack, whatever their value: buffers and batches of
/// Linux itself, and features that are always on here.
const WITHOUT_MEANING: [&str; 16] = [
    "tcp_wmem",
    "tcp_syn_retries",
    "tcp_synack_retries",
    "tcp_frto",
    "tcp_dsack",
    "tcp_fack",
    "tcp_reordering",
    "tcp_early_retrans",
    "tcp_recovery",
    "tcp_tso_win_divisor",
    "tcp_min_tso_segs",
    "tcp_notsent_lowat",
    "tcp_pacing_ss_ratio",
    "tcp_pacing_ca_ratio",
    "tcp_fastopen_key",
    "tcp_fastopen",
];

impl Setup {
    pub(super) fn new(script: &Script, start: Start, dialect: Dialect) -> Result<Self, Fault> {
        // The same segment size with either IP.
        let mtu = if start.family == Family::V4 { 1500 } else { 1520 };
        let config = Config { paced: false, mtu, receive_bytes: 60_000, ..Config::default() };
        let base = sim::ours::settings(config, 0x00de_c0de);
        let cluster = ClusterSize { bytes: 1 << 20, page_bytes: 2048 };
        let settings = Settings {
            records: 256,
            descriptors: 256,
            host_pages: 256,
            clusters: vec![cluster, cluster],
            defers_acks: start.defers,
            ..base
        };
        let tolerance_ns = if dialect == Dialect::Ours { 1_000_000 } else { 4_000_000 };
        let mut setup = Self { settings, tolerance_ns, family: None, passed_over: BTreeSet::new() };
        for (name, value) in &script.options {
            setup.option(name, value).map_err(|what| Fault { line: 1, what })?;
        }
        for (line, commands) in &script.init {
            setup.shell(commands).map_err(|what| Fault { line: *line, what })?;
        }
        Ok(setup)
    }

    fn option(&mut self, name: &str, value: &str) -> Result<(), String> {
        match (name, value) {
            ("ip_version", "ipv4") => self.family = Some(Family::V4),
            ("ip_version", "ipv6") => self.family = Some(Family::V6),
            ("tolerance_usecs", _) => self.tolerance_ns = number::<i64>(name, value)? * 1000,
            ("mtu", _) => self.settings.config.mtu = number(name, value)?,
            _ => return Err(format!("the option --{name}={value} is not known")),
        }
        Ok(())
    }

    /// Commands, one a line.
    pub(super) fn shell(&mut self, commands: &str) -> Result<(), String> {
        // A backslash at the end of a line joins it with the next one.
        for command in commands.replace("\\\n", " ").lines().map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = command.split_whitespace();
            let program = words.next().unwrap_or_default();
            let assignments = || words.clone().filter_map(|word| word.split_once('='));
            match program.rsplit('/').next().unwrap_or_default() {
                // Its values for TCP, as the kernel's own tests set them.
                "defaults.sh" => {
                    self.sysctl("tcp_rmem", "15728640")?;
                    self.sysctl("tcp_ecn", "0")?;
                }
                "sysctl" | "set_sysctls.py" => {
                    for (name, value) in assignments() {
                        self.sysctl(name.rsplit(['.', '/']).next().unwrap_or_default(), value)?;
                    }
                }
                "settings" => assignments().try_for_each(|(name, value)| self.setting(name, value))?,
                "tc" if command.ends_with(" fq") => self.settings.config.paced = true,
                _ => drop(self.passed_over.insert(command.to_owned())),
            }
        }
        Ok(())
    }

    fn sysctl(&mut self, name: &str, value: &str) -> Result<(), String> {
        let config = &mut self.settings.config;
        let value = value.trim_matches('"');
        match name {
            "tcp_ecn" if value != "2" => config.ecn = is_on(name, value)?,
            "tcp_sack" => config.sack = is_on(name, value)?,
            "tcp_timestamps" => config.stamps = is_on(name, value)?,
            "tcp_window_scaling" => config.scaling = is_on(name, value)?,
            "tcp_syncookies" => self.settings.cookies = is_on(name, value)?,
            "tcp_rmem" => {
                config.receive_bytes = number(name, value.rsplit([' ', ',']).next().unwrap_or(value))?
            }
            "tcp_keepalive_time" => config.keep_alive_ns = number::<u64>(name, value)? * 1_000_000_000,
            "tcp_congestion_control" => {
                config.algorithm = match value {
                    "reno" => Algorithm::Reno,
                    "cubic" => Algorithm::Cubic,
                    _ => return Err(format!("the congestion control '{value}' is not known")),
                }
            }
            _ if WITHOUT_MEANING.contains(&name) => drop(self.passed_over.insert(name.to_owned())),
            _ => return Err(format!("{name}={value} has no counterpart in this stack's settings")),
        }
        Ok(())
    }

    /// What Linux has no name for.
    fn setting(&mut self, name: &str, value: &str) -> Result<(), String> {
        let config = &mut self.settings.config;
        match name {
            "paced" => config.paced = is_on(name, value)?,
            "nagle" => config.nagle = is_on(name, value)?,
            "takes_user_timeout" => config.takes_user_timeout = is_on(name, value)?,
            "user_timeout_s" => config.user_timeout_ns = number::<u64>(name, value)? * 1_000_000_000,
            "receive_bytes" => config.receive_bytes = number(name, value)?,
            "requests" => self.settings.requests = number(name, value)?,
            _ => return Err(format!("there is no setting '{name}'")),
        }
        Ok(())
    }
}

fn is_on(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("{name}={value} has no counterpart in this stack's settings")),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name}={value}: not a number that fits"))
}
