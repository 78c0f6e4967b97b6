//! Two hosts on one machine: network namespaces joined by a veth pair or by an emulated link, removed again when
//! dropped. Needs root.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use millrace_link::{Impairment, LinkSpec, LinkStats, TunLink};
use millrace_netio::NetError;
use millrace_netio::tun::Tun;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A server host and a client host, 10.77.0.1 and 10.77.0.2, with nothing else in their world. Several may exist side by
/// side: addresses are the same, names are not.
pub struct TwoHosts {
    /// Namespace of the server.
    pub server: String,
    /// Namespace of the client.
    pub client: String,
    link: Option<TunLink>,
}

/// Address of the server host.
pub const SERVER_IP: &str = "10.77.0.1";
/// Address of the client host.
pub const CLIENT_IP: &str = "10.77.0.2";
/// Addresses that the client host can have.
pub const MAX_CLIENT_ADDRESSES: u32 = HOSTS_PER_NET * 256;
const HOSTS_PER_NET: u32 = 250;
/// Packets that may wait in a TUN device: 100 ms of 100,000 packets a second, in case the link's
/// thread gets no processor during that time.
const TUN_QUEUE_PACKETS: &str = "10000";

/// Time for a link to come up. On an idle machine it carries packets within milliseconds of the
/// command.
const LINK_UP_WITHIN: Duration = Duration::from_secs(20);

/// Runs `ip` or another program to its end.
fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    output_of(program, args).map(|_| ())
}

/// Runs a program and returns its output if it succeeds.
pub(crate) fn output_of(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("{program}: cannot be started"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until a link carries packets. The kernel brings this about after `ip` has ended, late
/// where many namespaces come and go at once, and drops packets sent earlier.
fn wait_until_up(namespace: &str, device: &str) -> anyhow::Result<()> {
    let pause = Duration::from_millis(5);
    for _ in 0..LINK_UP_WITHIN.as_millis() / pause.as_millis() {
        if output_of("ip", &["-n", namespace, "-o", "link", "show", "dev", device])?.contains("state UP") {
            return Ok(());
        }
        std::thread::sleep(pause);
    }
    bail!("{device} in {namespace} has not come up within {LINK_UP_WITHIN:?}")
}

/// Runs `ip` in the given namespace, or in this thread's.
pub(crate) fn ip(namespace: Option<&str>, args: &str) -> anyhow::Result<()> {
    let place = namespace.map(|name| ["-n", name]);
    let all: Vec<&str> = place.into_iter().flatten().chain(args.split_whitespace()).collect();
    run("ip", &all)
}

/// A name that no other namespace or device of this program has.
pub(crate) fn unique_name(tag: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("mill-{tag}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Makes an empty network namespace.
pub(crate) fn add_namespace(name: &str) -> anyhow::Result<()> {
    run("ip", &["netns", "add", name]).context("make a network namespace (needs root)")
}

/// Returns the path where `ip` keeps the namespace `name`.
pub(crate) fn namespace_path(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// Runs `work` on a thread of its own that has entered a network namespace. Threads and processes that it starts
/// are in there too.
pub(crate) fn inside<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .context("enter a network namespace")?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A namespace that has no name any more, and what `make` has made in it.
pub(crate) fn nameless<T: Send>(
    make: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<(File, T)> {
    let name = unique_name("t");
    add_namespace(&name)?;
    // Opened, it needs no name: nothing is left behind even if this process is killed.
    let made = File::open(namespace_path(&name)).context("open the namespace").and_then(|namespace| {
        let made = inside(&namespace, || {
            ip(None, "link set lo up")?;
            make()
        })??;
        Ok((namespace, made))
    });
    ip(None, &format!("netns del {name}"))?;
    made
}

/// Opens a TUN device in this thread's namespace, up, with an address. The device speaks IPv4 only
/// and sends nothing of its own.
pub(crate) fn tun_here<T>(
    device: &str,
    address: &str,
    open: impl FnOnce(&str) -> Result<T, NetError>,
) -> anyhow::Result<T> {
    let tun = open(device)?;
    ip(None, &format!("link set {device} addrgenmode none"))?;
    // A kernel without IPv6 has no such file, and nothing to be silenced.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1");
    ip(None, &format!("addr add {address} dev {device}"))?;
    ip(None, &format!("link set {device} txqueuelen {TUN_QUEUE_PACKETS} up"))?;
    Ok(tun)
}

impl TwoHosts {
    /// Makes two empty hosts.
    fn unjoined() -> anyhow::Result<Self> {
        let hosts = Self { server: unique_name("s"), client: unique_name("c"), link: None };
        for name in [&hosts.server, &hosts.client] {
            add_namespace(name)?;
            ip(Some(name), "link set lo up")?;
        }
        Ok(hosts)
    }

    /// Makes them, joined by a veth pair. Segmentation offload is off: with it on, a veth pair passes whole trains of
    /// datagrams as one packet and every figure is a fairy tale.
    ///
    /// # Errors
    /// When not root, or when `ip` or `ethtool` are missing.
    pub fn new(offload: bool) -> anyhow::Result<Self> {
        Self::with_queues(offload, 1)
    }

    /// The same with several queues each way: an AF_XDP socket needs one for itself.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_queues(offload: bool, queues: u32) -> anyhow::Result<Self> {
        let hosts = Self::unjoined()?;
        let (s, c) = (hosts.server.as_str(), hosts.client.as_str());
        let count = format!("numtxqueues {queues} numrxqueues {queues}");
        ip(Some(s), &format!("link add vs {count} type veth peer name vc {count} netns {c}"))?;
        for (ns, dev, address) in [(s, "vs", SERVER_IP), (c, "vc", CLIENT_IP)] {
            ip(Some(ns), &format!("addr add {address}/24 dev {dev}"))?;
            ip(Some(ns), &format!("link set {dev} up"))?;
            if !offload {
                let off =
                    ["netns", "exec", ns, "ethtool", "-K", dev, "tso", "off", "tx-udp-segmentation", "off"];
                run("ip", &off)?;
            }
        }
        wait_until_up(s, "vs")?;
        wait_until_up(c, "vc")?;
        Ok(hosts)
    }

    /// Creates two hosts joined by an emulated link that impairs packets as specified for each
    /// direction. The link carries only the hosts' own packets: no IPv6, no ARP.
    ///
    /// # Errors
    /// When not root, when `ip` is missing, or without TUN devices in the kernel.
    pub fn with_link(server_to_client: Impairment, client_to_server: Impairment) -> anyhow::Result<Self> {
        let mut hosts = Self::unjoined()?;
        let end = |name: &str, device: &str, address: &str| {
            inside(&open(name)?, || tun_here(device, &format!("{address}/24"), Tun::open))?
        };
        let server = end(&hosts.server, "vs", SERVER_IP)?;
        let client = end(&hosts.client, "vc", CLIENT_IP)?;
        let spec = LinkSpec { there: server_to_client, back: client_to_server };
        hosts.link = Some(TunLink::start(server, client, &spec)?);
        Ok(hosts)
    }

    /// Returns the emulated link's statistics, from the server to the client and back; `None` with
    /// a veth pair.
    pub fn link_stats(&self) -> Option<[LinkStats; 2]> {
        self.link.as_ref().map(TunLink::stats)
    }

    /// A command that runs on the server host.
    pub fn on_server(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.server]).arg(program);
        command
    }

    /// Runs `work` on a thread that lives on the server host.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn inside_server<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        inside(&open(&self.server)?, work)
    }

    /// Runs `work` on a thread that lives on the client host. Every thread that `work` starts lives there too, so a whole
    /// load generator needs to be brought here only once.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn on_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        inside(&open(&self.client)?, work)
    }

    /// Gives the client host `count` addresses in all, the first of them [`CLIENT_IP`], and returns them: 10.77.0.2 to
    /// 10.77.0.251, then 10.77.1.2 and so on. The server knows the way to all.
    ///
    /// # Errors
    /// When more are wanted than [`MAX_CLIENT_ADDRESSES`], or `ip` refuses.
    pub fn add_client_addresses(&self, count: u32) -> anyhow::Result<Vec<Ipv4Addr>> {
        ensure!(
            count <= MAX_CLIENT_ADDRESSES,
            "the client host can have {MAX_CLIENT_ADDRESSES} addresses, not {count}; ask for fewer"
        );
        let address = |n: u32| {
            let [net, host] = [(n / HOSTS_PER_NET) as u8, (2 + n % HOSTS_PER_NET) as u8];
            Ipv4Addr::new(10, 77, net, host)
        };
        let all: Vec<Ipv4Addr> = (0..count).map(address).collect();
        let batch: String = all.iter().skip(1).map(|a| format!("addr replace {a}/32 dev vc\n")).collect();
        let mut child = Command::new("ip")
            .args(["-n", &self.client, "-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("ip: cannot be started")?;
        // If ip ends early, its exit code and words say why; the pipe's error would not.
        let _ = child.stdin.take().context("ip's input")?.write_all(batch.as_bytes());
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "add addresses to the client: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        // Through one neighbour: the table of neighbours holds about a thousand.
        ip(Some(&self.server), &format!("route replace 10.77.0.0/16 via {CLIENT_IP} dev vs"))?;
        Ok(all)
    }
}

fn open(namespace: &str) -> anyhow::Result<File> {
    let path = namespace_path(namespace);
    File::open(&path).with_context(|| format!("{}: open the namespace", path.display()))
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        // Its devices go with it; a namespace with a device of ours in it would outlive its name.
        drop(self.link.take());
        // Removing a namespace removes its end of the pair, and with it the other end.
        for ns in [&self.server, &self.client] {
            let _ = Command::new("ip").args(["netns", "del", ns]).output();
        }
    }
}

#[cfg(test)]
#[path = "netns_tests.rs"]
mod tests;
