//! Network namespaces that clean up after themselves.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Long enough for any datagram on a loaded machine; tests wait this long only if they fail.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A network namespace, removed when dropped.
pub struct Netns {
    pub name: String,
}

impl Netns {
    pub fn new(tag: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mr-test-{}-{serial}-{tag}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let ns = Self { name };
        ns.ip("link set lo up");
        ns
    }

    /// Runs `ip` in here; panics if it fails.
    pub fn ip(&self, arguments: &str) {
        let all: Vec<&str> = ["-n", &self.name].into_iter().chain(arguments.split_whitespace()).collect();
        run("ip", &all);
    }

    /// Waits until a link carries packets. The kernel brings it up after `ip` has ended, late where
    /// many namespaces come and go at once, and drops packets sent before.
    pub fn wait_until_up(&self, device: &str) {
        let end = Instant::now() + TIMEOUT;
        while !self.must(&format!("ip -o link show dev {device}")).contains("state UP") {
            assert!(Instant::now() < end, "{device} does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs a command in here.
    pub fn command(&self, command: &str) -> Output {
        self.command_of(&command.split_whitespace().collect::<Vec<_>>())
    }

    /// The same from words that may hold spaces.
    pub fn command_of(&self, words: &[&str]) -> Output {
        Command::new("ip").args(["netns", "exec", &self.name]).args(words).output().expect("the ip program")
    }

    /// Runs a command in here; panics if it fails. Returns its output.
    pub fn must(&self, command: &str) -> String {
        let output = self.command(command);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `f` on a thread that is in here: sockets made there stay in here.
    pub fn inside<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let path = format!("/run/netns/{}", self.name);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let file = std::fs::File::open(path).expect("the namespace's file");
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind)
                    .expect("setns");
                f()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A counter of /proc/net/snmp or snmp6, e.g. ("snmp", "Udp", "InCsumErrors") or ("snmp6", "", "Udp6InDatagrams").
    pub fn counter(&self, file: &str, group: &str, name: &str) -> u64 {
        let text = self.must(&format!("cat /proc/net/{file}"));
        if group.is_empty() {
            let line = text.lines().find(|l| l.split_whitespace().next() == Some(name)).expect(name);
            return line.split_whitespace().nth(1).expect("a value").parse().expect("a number");
        }
        let prefix = format!("{group}:");
        let mut lines = text.lines().filter(|l| l.starts_with(&prefix)).map(str::split_whitespace);
        let (mut names, mut values) = (lines.next().expect("names"), lines.next().expect("values"));
        let place = names.position(|n| n == name).expect(name);
        values.nth(place).expect("a value").parse().expect("a number")
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect(program);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {errors}", arguments.join(" "));
}

/// Two namespaces joined by a veth pair that cuts and sums in software, as a plain network card would have it done:
/// server 10.77.0.1, fd77::1 on `va`; viewers 10.77.0.2, .3 and fd77::2, ::3 on `vb`.
pub struct Wire {
    pub server: Netns,
    pub viewers: Netns,
}

impl Wire {
    /// `None`, with the reason printed, if this process may not make namespaces.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return None;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            eprintln!("skipped: the ip program (iproute2) is not installed");
            return None;
        }
        let wire = Self { server: Netns::new("s"), viewers: Netns::new("v") };
        wire.server.ip(&format!("link add va type veth peer name vb netns {}", wire.viewers.name));
        wire.server.ip("addr add 10.77.0.1/24 dev va");
        wire.server.ip("addr add fd77::1/64 dev va nodad");
        for (v4, v6) in [("10.77.0.2/24", "fd77::2/64"), ("10.77.0.3/24", "fd77::3/64")] {
            wire.viewers.ip(&format!("addr add {v4} dev vb"));
            wire.viewers.ip(&format!("addr add {v6} dev vb nodad"));
        }
        wire.server.ip("link set va address 02:00:00:77:00:01");
        wire.viewers.ip("link set vb address 02:00:00:77:00:02");
        wire.server.ip("link set va up");
        wire.viewers.ip("link set vb up");
        // Known neighbours: the first burst to an unknown one may overflow the queue that waits for its address.
        for addr in ["10.77.0.2", "10.77.0.3", "fd77::2", "fd77::3"] {
            wire.server.ip(&format!("neigh add {addr} lladdr 02:00:00:77:00:02 dev va nud permanent"));
        }
        for addr in ["10.77.0.1", "fd77::1"] {
            wire.viewers.ip(&format!("neigh add {addr} lladdr 02:00:00:77:00:01 dev vb nud permanent"));
        }
        wire.server.wait_until_up("va");
        wire.viewers.wait_until_up("vb");
        // Without this a burst crosses a veth pair uncut and unsummed, which no network does.
        let offload = "ethtool -K va tx off tso off tx-udp-segmentation off";
        match wire.server.command(offload) {
            output if output.status.success() => Some(wire),
            output => {
                eprintln!("skipped: {offload}: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
        }
    }
}
