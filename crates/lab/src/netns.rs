//! Two hosts on one machine: network namespaces joined by a veth pair, removed again when dropped. Needs root.

use std::fs::File;
use std::process::Command;

use anyhow::{Context, bail};

/// A server host and a client host, 10.77.0.1 and 10.77.0.2, with nothing else in their world.
pub struct TwoHosts {
    /// Namespace of the server.
    pub server: String,
    /// Namespace of the client.
    pub client: String,
}

/// Address of the server host.
pub const SERVER_IP: &str = "10.77.0.1";
/// Address of the client host.
pub const CLIENT_IP: &str = "10.77.0.2";

fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("{program}: cannot be started"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

impl TwoHosts {
    /// Makes them. Segmentation offload is off: with it on, a veth pair passes whole trains of datagrams as one packet
    /// and every figure is a fairy tale.
    ///
    /// # Errors
    /// When not root, or when `ip` or `ethtool` are missing.
    pub fn new(offload: bool) -> anyhow::Result<Self> {
        let pid = std::process::id();
        let hosts = Self { server: format!("mill-s{pid}"), client: format!("mill-c{pid}") };
        let (s, c) = (hosts.server.as_str(), hosts.client.as_str());
        run("ip", &["netns", "add", s]).context("make a network namespace (needs root)")?;
        run("ip", &["netns", "add", c])?;
        run("ip", &["-n", s, "link", "add", "vs", "type", "veth", "peer", "name", "vc", "netns", c])?;
        for (ns, dev, ip) in [(s, "vs", SERVER_IP), (c, "vc", CLIENT_IP)] {
            run("ip", &["-n", ns, "addr", "add", &format!("{ip}/24"), "dev", dev])?;
            run("ip", &["-n", ns, "link", "set", "lo", "up"])?;
            run("ip", &["-n", ns, "link", "set", dev, "up"])?;
            if !offload {
                let off =
                    ["netns", "exec", ns, "ethtool", "-K", dev, "tso", "off", "tx-udp-segmentation", "off"];
                run("ip", &off)?;
            }
        }
        Ok(hosts)
    }

    /// A command that runs on the server host.
    pub fn on_server(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.server]).arg(program);
        command
    }

    /// Runs `work` on a thread that lives on the client host.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn on_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        let ns = File::open(format!("/run/netns/{}", self.client)).context("open the client's namespace")?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
                use std::os::fd::AsFd;
                move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network))
                    .context("enter the client's namespace")?;
                Ok(work())
            });
            thread.join().map_err(|_| anyhow::anyhow!("the client's thread panicked"))?
        })
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        // Removing a namespace removes its end of the pair, and with it the other end.
        for ns in [&self.server, &self.client] {
            let _ = Command::new("ip").args(["netns", "del", ns]).output();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_reach_each_other_and_vanish() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return;
        }
        let hosts = TwoHosts::new(false).unwrap();
        let listener_ns = hosts.client.clone();
        let port = hosts
            .on_client(|| {
                let socket = std::net::UdpSocket::bind((CLIENT_IP, 0)).unwrap();
                socket.connect((SERVER_IP, 9)).unwrap();
                socket.local_addr().unwrap().port()
            })
            .unwrap();
        assert_ne!(port, 0);
        drop(hosts);
        assert!(!std::path::Path::new("/run/netns").join(listener_ns).exists());
    }
}
