//! Two hosts joined by a veth pair, both of whose ends are served by kernel threads of their own
//! (threaded NAPI): the kernel's work on received packets, from any sender, is then charged to a
//! thread that can be pinned and read, and not to the thread that happens to run.
//!
//! ```text
//!   measured host                      the other one
//!   application ── kernel TCP ─┐      ┌── kernel TCP ── peer
//!   application ── engine ── AF_XDP   │
//!   application ── engine ── TUN ── IP │
//!                    napi/mtNs ╘══════╛ napi/mtNc
//! ```

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use millrace_netio::tun::GsoTun;
use millrace_netio::xdp::XdpRawConfig;
use millrace_offload::toe::{Device, Engine, EngineSettings, TunDevice, XdpDevice};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::frame::ticks::thread_cpu_time;
use crate::netns::{CLIENT_IP, SERVER_IP, TwoHosts, output_of, tun_here};
use crate::proc;
use crate::tcp_host::{KERNEL_IP, OUR_IP};

/// Names that identify the threads.
pub(in crate::benches) const HOST: &str = "bench-host";
pub(in crate::benches) const PEER: &str = "bench-peer";
const ENGINE: &str = "toe";
/// The engine's own address at the measured host's interface.
pub(in crate::benches) const ENGINE_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// Looks for a kernel thread that was just asked for.
const LOOKS: u32 = 200;
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Which processor does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::benches) struct Places {
    /// The application of the measured host.
    pub(in crate::benches) app: usize,
    /// Its engine.
    pub(in crate::benches) engine: usize,
    /// The thread that receives at its interface.
    pub(in crate::benches) napi: usize,
    /// The peer, and the thread that receives at the peer's interface.
    pub(in crate::benches) peer: usize,
    pub(in crate::benches) peer_napi: usize,
}

/// Processors that this process may use.
pub(in crate::benches) fn processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

impl Places {
    /// Application and interrupts of the measured host on one processor, the peer on others.
    pub(in crate::benches) fn together() -> Self {
        let all = processors();
        let at = |n: usize| all[n.min(all.len() - 1)];
        Self { app: at(0), engine: at(0), napi: at(0), peer: at(1), peer_napi: at(2) }
    }

    /// Application and interrupts apart. With two processors the application shares its one with the peer.
    pub(in crate::benches) fn apart() -> Self {
        let all = processors();
        let at = |n: usize| all[n.min(all.len() - 1)];
        Self { app: at(1), engine: at(0), napi: at(0), peer: at(2), peer_napi: at(3) }
    }

    /// In words.
    pub(in crate::benches) fn describe(&self, engine: bool) -> String {
        let Self { app, engine: at, napi, peer, peer_napi } = self;
        let engine = if engine { format!("engine {at}, ") } else { String::new() };
        format!(
            "application {app}, {engine}receiving at its interface {napi}; peer {peer}, receiving at its interface {peer_napi}"
        )
    }
}

/// Runs a program on one of the hosts.
fn at(host: &str, program: &str, args: &[&str]) -> anyhow::Result<()> {
    output_of("ip", &[&["netns", "exec", host, program][..], args].concat()).map(drop)
}

/// Pins the thread with the id `thread`.
fn pin(thread: u32, cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    let pid = i32::try_from(thread).ok().and_then(Pid::from_raw).context("a thread id")?;
    sched_setaffinity(Some(pid), &set).with_context(|| format!("pin thread {thread} to processor {cpu}"))
}

/// Pins this thread and gives it a name.
pub(in crate::benches) fn become_(name: &str, cpu: usize) -> anyhow::Result<()> {
    rustix::thread::set_name(&std::ffi::CString::new(name)?).context("name a thread")?;
    millrace_offload::affinity::pin_to(cpu).context("pin a thread")
}

/// What segmentation and checksums are left to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::benches) enum Offload {
    /// None: every packet is made and summed by the processor, one at a time.
    Off,
    /// The kernel sends trains and cuts them at the last moment (GSO), sums by the processor.
    Software,
}

impl Offload {
    fn arguments(self) -> [&'static str; 8] {
        let gso = if self == Self::Off { "off" } else { "on" };
        ["tx", "off", "tso", "off", "gso", gso, "gro", "on"]
    }
}

/// The hosts. Segmentation and checksums are never left to a card, which a veth pair does not have.
pub(in crate::benches) struct ToeRig {
    hosts: TwoHosts,
    devices: [String; 2],
    napi: [u32; 2],
    /// The engine is behind a TUN device.
    is_tun: bool,
}

impl ToeRig {
    /// Makes them. `mtu` is that of the pair.
    ///
    /// # Errors
    /// Without root, `ip`, `ethtool`, or threaded NAPI.
    pub(in crate::benches) fn lay(mtu: u32) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let hosts = TwoHosts::new(true)?;
        let number = format!("{}{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let devices = ["s", "c"].map(|end| format!("mt{number}{end}"));
        let mut napi = [0; 2];
        let names = [("vs", &hosts.server), ("vc", &hosts.client)];
        for (((old, host), new), napi) in names.into_iter().zip(&devices).zip(&mut napi) {
            at(host, "ip", &["link", "set", old, "name", new])?;
            at(host, "ip", &["link", "set", new, "mtu", &mtu.to_string()])?;
            at(host, "ethtool", &[&["-K", new][..], &Offload::Off.arguments()].concat())?;
            let file = format!("/sys/class/net/{new}/threaded");
            at(host, "sh", &["-c", &format!("echo 1 > {file}")]).context("threaded NAPI")?;
            *napi = thread_of(&format!("napi/{new}-"))?;
            // Slots with 10,000 connections follow each other faster than ports come back from TIME_WAIT.
            for (name, value) in [("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")] {
                at(host, "sh", &["-c", &format!("echo {value} > /proc/sys/net/ipv4/{name}")])?;
            }
        }
        // An engine behind a TUN device is reached through the host's kernel.
        at(&hosts.server, "sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        at(&hosts.client, "ip", &["route", "add", &format!("{OUR_IP}/32"), "via", SERVER_IP])?;
        Ok(Self { hosts, devices, napi, is_tun: false })
    }

    /// Where threads of the kernel run.
    pub(in crate::benches) fn place(&self, places: &Places) -> anyhow::Result<()> {
        pin(self.napi[0], places.napi)?;
        pin(self.napi[1], places.peer_napi)
    }

    /// Sets the measured host's offloads, and those of the other one.
    pub(in crate::benches) fn offload(&self, own: Offload, peer: Offload) -> anyhow::Result<()> {
        for ((host, device), how) in
            [&self.hosts.server, &self.hosts.client].into_iter().zip(&self.devices).zip([own, peer])
        {
            at(host, "ethtool", &[&["-K", device.as_str()][..], &how.arguments()].concat())?;
        }
        Ok(())
    }

    /// The measured host's interface.
    pub(in crate::benches) fn interface(&self) -> &str {
        &self.devices[0]
    }

    /// A command that runs on the measured host and on that processor only, and dies with this process.
    pub(in crate::benches) fn command(&self, cpu: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts.server, "setpriv", "--pdeathsig", "KILL"]);
        command.args(["taskset", "-c", &cpu.to_string()]).arg(program);
        command
    }

    /// Gives the measured host a TUN device, with an address of its kernel there.
    pub(in crate::benches) fn add_tun(&self, name: &str, address: &str) -> anyhow::Result<()> {
        let host = self.hosts.server.as_str();
        at(host, "ip", &["tuntap", "add", "dev", name, "mode", "tun"])?;
        at(host, "ip", &["addr", "add", address, "dev", name])?;
        at(host, "ip", &["link", "set", name, "up"])
    }

    /// Runs `work` on a thread whose sockets are those of the measured host's kernel.
    pub(in crate::benches) fn host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        self.hosts.inside_server(work)
    }

    /// The same on the other host.
    pub(in crate::benches) fn peer<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        self.hosts.on_client(work)
    }

    /// Takes the other host's address away, so that no packet finds a path from there.
    #[cfg(test)]
    pub(in crate::benches) fn cut(&self) -> anyhow::Result<()> {
        at(&self.hosts.client, "ip", &["addr", "flush", "dev", &self.devices[1]])
    }

    /// Starts an engine at the measured host's interface, or at a TUN device.
    ///
    /// # Errors
    /// Without the rights, or a kernel with AF_XDP.
    pub(in crate::benches) fn engine(
        &mut self,
        tun: bool,
        change: impl FnOnce(&mut EngineSettings) + Send,
    ) -> anyhow::Result<Engine> {
        let (settings, device) = self.engine_parts(tun, change)?;
        Ok(Engine::start(&settings, device)?)
    }

    /// Returns the parts of an engine there.
    ///
    /// # Errors
    /// As [`ToeRig::engine`].
    pub(in crate::benches) fn engine_parts(
        &mut self,
        tun: bool,
        change: impl FnOnce(&mut EngineSettings) + Send,
    ) -> anyhow::Result<(EngineSettings, Box<dyn Device>)> {
        self.is_tun = tun;
        if tun {
            let tun = self.host(|| tun_here("mill-toe", &format!("{KERNEL_IP}/24"), GsoTun::open))??;
            let mut settings = EngineSettings::new(&[(OUR_IP.into(), 24)]);
            change(&mut settings);
            return Ok((settings, Box::new(TunDevice::new(tun))));
        }
        let device = self.devices[0].clone();
        let parts = self.host(move || -> std::io::Result<(EngineSettings, XdpDevice)> {
            let mut settings = EngineSettings::new(&[(ENGINE_IP.into(), 24)]).on_ethernet(&device)?;
            change(&mut settings);
            let xdp = XdpDevice::open(&XdpRawConfig::new(&device), &settings.interface)?;
            Ok((settings, xdp))
        })?;
        let (settings, xdp) = parts?;
        Ok((settings, Box::new(xdp)))
    }

    /// Returns the addresses of the measured host, of its kernel or its engine, and of the peer,
    /// for the next measurement.
    pub(in crate::benches) fn ends(&self, engine: bool) -> anyhow::Result<(IpAddr, IpAddr)> {
        let own = match (self.is_tun, engine) {
            (true, true) => OUR_IP.into(),
            (false, true) => ENGINE_IP.into(),
            (_, false) => SERVER_IP.parse()?,
        };
        Ok((own, CLIENT_IP.parse()?))
    }

    /// Returns the usage of all threads until now. Must be called on the application's thread.
    pub(in crate::benches) fn look(&self) -> anyhow::Result<ClockReadings> {
        let pid = std::process::id();
        Ok(ClockReadings {
            host_ns: thread_cpu_time().as_nanos() as u64,
            waits: proc::switches(pid, HOST)?.0,
            engine_ns: proc::cpu_ns(pid, ENGINE)?,
            peer_ns: proc::cpu_ns(pid, PEER)?,
            napi_ns: thread_ns(self.napi[0])?,
            peer_napi_ns: thread_ns(self.napi[1])?,
            retransmitted: retransmitted(),
            softirqs: softirqs(),
        })
    }

    /// The threads of the measured host's side: the application (this one), the engine's and the one that receives at the interface.
    pub(super) fn threads(&self) -> anyhow::Result<[(Side, Option<u32>); 3]> {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        Ok([
            (Side::Application, Some(own)),
            (Side::Engine, own_thread(ENGINE)?),
            (Side::Receiver, Some(self.napi[0])),
        ])
    }
}

/// Whose processor time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Application,
    Engine,
    Receiver,
}

/// A thread of this process, by its name.
fn own_thread(name: &str) -> anyhow::Result<Option<u32>> {
    let tasks = fs::read_dir("/proc/self/task").context("/proc/self/task")?;
    Ok(tasks.flatten().find_map(|task| {
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        (comm.trim_end() == name).then(|| task.file_name().to_str()?.parse().ok())?
    }))
}

/// Readings of clocks and counters.
#[derive(Clone, Debug, Default)]
pub(in crate::benches) struct ClockReadings {
    pub(in crate::benches) host_ns: u64,
    /// Times that the application waited.
    pub(in crate::benches) waits: u64,
    pub(in crate::benches) engine_ns: u64,
    pub(in crate::benches) peer_ns: u64,
    pub(in crate::benches) napi_ns: u64,
    pub(in crate::benches) peer_napi_ns: u64,
    /// Segments that the kernel of this thread's network namespace has sent again.
    pub(in crate::benches) retransmitted: u64,
    /// Soft interrupts of received packets, of each processor.
    pub(in crate::benches) softirqs: Vec<u64>,
}

impl ClockReadings {
    /// Returns the usage since an earlier look.
    pub(in crate::benches) fn since(&self, before: &Self) -> Self {
        Self {
            host_ns: self.host_ns.saturating_sub(before.host_ns),
            waits: self.waits.saturating_sub(before.waits),
            engine_ns: self.engine_ns.saturating_sub(before.engine_ns),
            peer_ns: self.peer_ns.saturating_sub(before.peer_ns),
            napi_ns: self.napi_ns.saturating_sub(before.napi_ns),
            peer_napi_ns: self.peer_napi_ns.saturating_sub(before.peer_napi_ns),
            retransmitted: self.retransmitted.saturating_sub(before.retransmitted),
            softirqs: self
                .softirqs
                .iter()
                .zip(&before.softirqs)
                .map(|(now, before)| now.saturating_sub(*before))
                .collect(),
        }
    }
}

/// NET_RX of each processor.
fn softirqs() -> Vec<u64> {
    let text = fs::read_to_string("/proc/softirqs").unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("NET_RX:"));
    line.unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect()
}

/// RetransSegs of this thread's network namespace.
fn retransmitted() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let at = lines.next().and_then(|head| head.split(' ').position(|name| name == "RetransSegs"));
    let value = at.zip(lines.next()).and_then(|(at, line)| line.split(' ').nth(at)?.parse().ok());
    value.unwrap_or(0)
}

/// Processor time that a kernel thread has used.
pub(in crate::benches) fn thread_ns(id: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{id}/schedstat")).context("a kernel thread")?;
    text.split(' ').next().and_then(|ns| ns.parse().ok()).context("schedstat")
}

/// The kernel thread that does the soft interrupts of a processor which are too many for whoever runs there.
pub(in crate::benches) fn softirq_thread(cpu: usize) -> anyhow::Result<u32> {
    thread_of(&format!("ksoftirqd/{cpu}"))
}

/// The kernel thread whose name begins so.
fn thread_of(name: &str) -> anyhow::Result<u32> {
    for _ in 0..LOOKS {
        for entry in fs::read_dir("/proc")?.flatten() {
            let is_it = fs::read_to_string(Path::new(&entry.path()).join("comm"))
                .is_ok_and(|comm| comm.starts_with(name));
            if is_it && let Some(id) = entry.file_name().to_str().and_then(|id| id.parse().ok()) {
                return Ok(id);
            }
        }
        sleep(LOOK_EVERY);
    }
    bail!("no kernel thread {name}*: this kernel does not receive by threads (threaded NAPI, Linux 5.12)")
}
