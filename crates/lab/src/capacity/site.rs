//! Where a measurement happens: two hosts on one machine, the server's processes pinned to some cores, the receiver to the
//! others.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, bail, ensure};
use millrace_client::play::TransportChoice;

use crate::netns::{SERVER_IP, TwoHosts};
use crate::proc;

/// Addresses of the client: servers limit what one address may do.
const CLIENT_ADDRESSES: u8 = 8;
/// The first of them is the client's own.
const FIRST_CLIENT_ADDRESS: u8 = 2;
/// The receiving interface.
pub const CLIENT_INTERFACE: &str = "vc";
/// The sending interface.
pub const SERVER_INTERFACE: &str = "vs";

/// The server's host and the client's host of a benchmark.
pub struct BenchSite {
    hosts: TwoHosts,
    /// Addresses of the client.
    pub client_ips: Vec<IpAddr>,
    /// Cores of the server.
    pub server_cores: Vec<usize>,
    /// Cores of the receiver.
    pub client_cores: Vec<usize>,
    /// A folder for whoever needs one.
    pub dir: PathBuf,
    /// Whether packets are counted in the kernel, before they reach sockets, where that is possible.
    pub has_probe: AtomicBool,
}

impl BenchSite {
    /// Makes the hosts; the server gets the first `cores` cores.
    ///
    /// # Errors
    /// When not root, without the programs `ip` and `ethtool`, or when the kernel allows neither cubic nor Reno.
    pub fn new(offload: bool, cores: usize, dir: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        ensure!((1..=all).contains(&cores), "cores: got {cores}, this machine has {all}");
        let client_cores: Vec<usize> = (cores..all).collect();
        let hosts = TwoHosts::new(offload)?;
        let addresses = FIRST_CLIENT_ADDRESS..FIRST_CLIENT_ADDRESS + CLIENT_ADDRESSES;
        let mut client_ips = Vec::new();
        for last in addresses {
            let ip = Ipv4Addr::new(10, 77, 0, last);
            if last > FIRST_CLIENT_ADDRESS {
                let address = format!("{ip}/24");
                let add = ["-n", &hosts.client, "addr", "add", &address, "dev", CLIENT_INTERFACE];
                let status = Command::new("ip").args(add).status().context("ip: cannot be started")?;
                ensure!(status.success(), "the client host could not be given the address {address}");
            }
            client_ips.push(IpAddr::V4(ip));
        }
        let site = Self {
            hosts,
            client_ips,
            server_cores: (0..cores).collect(),
            // With one core for all, both share it: figures mean little then, but it works.
            client_cores: if client_cores.is_empty() { vec![0] } else { client_cores },
            dir,
            has_probe: AtomicBool::new(true),
        };
        site.set_congestion_control()?;
        Ok(site)
    }

    /// Address of the server.
    pub fn server_ip(&self) -> &'static str {
        SERVER_IP
    }

    /// A command that runs on the server host, on the server's cores only, and dies with this process.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let cores = self.server_cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts.server, "setpriv", "--pdeathsig", "KILL"]);
        command.args(["taskset", "-c", &cores]).arg(program);
        command
    }

    /// Selects the cores that receive packets. By default a veth pair receives them on the core that sent them, which suits
    /// UDP: datagrams are counted and dropped in the call that sent them. By TCP each host receives on its own cores, as
    /// two machines do; otherwise the viewers' core would process acknowledgements for the server.
    ///
    /// # Errors
    /// When the kernel has no receive packet steering.
    pub fn steer(&self, transport: TransportChoice) -> anyhow::Result<()> {
        let mask = |cores: &[usize]| match transport {
            TransportChoice::Udp => 0,
            _ => cores.iter().fold(0u64, |mask, core| mask | 1 << (core % 64)),
        };
        let steer = |host: &str, interface: &str, cores: &[usize]| {
            let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
            write_on(host, &file, &format!("{:x}", mask(cores)))
        };
        steer(&self.hosts.server, SERVER_INTERFACE, &self.server_cores)?;
        steer(&self.hosts.client, CLIENT_INTERFACE, &self.client_cores)
    }

    /// Selects a congestion control that sends when acknowledgements arrive, whatever the default of this machine. BBR
    /// would send by timers, also the streams that are paced already. Cubic is the default of Linux; where it is not, a
    /// namespace may be allowed Reno alone.
    fn set_congestion_control(&self) -> anyhow::Result<()> {
        let set = |name| write_on(&self.hosts.server, "/proc/sys/net/ipv4/tcp_congestion_control", name);
        set("cubic").or_else(|_| set("reno"))
    }

    /// Runs `work` on a thread of the client host, on the receiver's cores.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn on_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        let cores = &self.client_cores;
        self.hosts.on_client(move || {
            let mut set = rustix::thread::CpuSet::new();
            cores.iter().for_each(|core| set.set(*core));
            // Not pinned is still measured.
            let _ = rustix::thread::sched_setaffinity(None, &set);
            work()
        })
    }

    /// Waits until something on the server host accepts connections to `port`.
    ///
    /// # Errors
    /// When `group` ends first, or after 20 seconds.
    pub fn wait_for_port(&self, port: u16, group: &mut Group) -> anyhow::Result<()> {
        let address = SocketAddr::new(SERVER_IP.parse().context("the server's address")?, port);
        let end = StdInstant::now() + Duration::from_secs(20);
        while StdInstant::now() < end {
            if let Some(status) = group.child.try_wait()? {
                bail!("{}: ended at once ({status}); its last words: {}", group.name, group.last_words());
            }
            let connects = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(500));
            if self.hosts.on_client(connects)?.is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{}: accepts no connections on {address}; its last words: {}", group.name, group.last_words())
    }
}

/// Writes a setting of a host's kernel.
fn write_on(host: &str, file: &str, text: &str) -> anyhow::Result<()> {
    let line = format!("echo {text} > {file}");
    let output = Command::new("ip").args(["netns", "exec", host, "sh", "-c", &line]).output()?;
    ensure!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// A process that we started, with everything that it started itself; killed when dropped.
pub struct Group {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Group {
    /// Starts `command` in a process group of its own; its output goes into a file of `site`'s
    /// folder.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(site: &BenchSite, name: &str, command: Command) -> anyhow::Result<Self> {
        Self::start_in(&site.dir, name, command)
    }

    /// Does the same without a site: the output goes into a file of `dir`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_in(dir: &Path, name: &str, mut command: Command) -> anyhow::Result<Self> {
        let log = dir.join(format!("{}.log", name.replace([' ', '/', ','], "-")));
        let out = std::fs::File::create(&log).with_context(|| format!("{}", log.display()))?;
        let errors = out.try_clone()?;
        command.process_group(0).stdin(Stdio::null()).stdout(out).stderr(errors);
        let child = command.spawn().with_context(|| format!("{name}: cannot be started"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it prints a line that begins with `word`.
    ///
    /// # Errors
    /// When it ends first, or after 20 seconds.
    pub fn wait_for_word(&mut self, word: &str) -> anyhow::Result<()> {
        self.wait_for_word_within(word, Duration::from_secs(20))
    }

    /// The same, for as long as it may take.
    ///
    /// # Errors
    /// When it ends first, or does not say it in time.
    pub fn wait_for_word_within(&mut self, word: &str, time: Duration) -> anyhow::Result<()> {
        let end = StdInstant::now() + time;
        while StdInstant::now() < end {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            if text.lines().any(|line| line.starts_with(word)) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{}: ended at once ({status}); its last words: {}", self.name, self.last_words());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("{}: does not say \"{word}\"; its last words: {}", self.name, self.last_words())
    }

    /// Waits until none of its threads is called `thread`.
    ///
    /// # Errors
    /// When it has ended, or one still runs after `limit`.
    pub fn wait_for_end_of(&self, thread: &str, limit: Duration) -> anyhow::Result<()> {
        proc::wait_for_end_of(self.child.id(), thread, limit).context(self.name.clone())
    }

    /// Returns the end of its output.
    pub fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_raw(self.child.id().cast_signed());
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
        // Its children hold its ports until they are gone too; the next server wants them.
        let end = StdInstant::now() + Duration::from_secs(1);
        let remains = |group| rustix::process::test_kill_process_group(group).is_ok();
        while group.is_some_and(remains) && StdInstant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
