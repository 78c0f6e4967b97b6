//! A server whose offload engine is at a TUN device, and viewers on another host. Needs root.
//!
//! ```text
//!   client host 10.77.0.2 ── veth ── 10.77.0.1 server host: kernel ── TUN, 10.78.0.2 ── engine 10.78.0.1
//! ```
#![allow(unreachable_pub)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use millrace_lab::netns::TwoHosts;
use serde_json::Value;

use crate::support::Server;
use crate::support::two_hosts::Site;

/// Options that put the engine at the TUN device.
pub const AT_TUN: [&str; 6] =
    ["--tcp", "engine", "--tcp-interface", "mill0", "--tcp-address", "10.78.0.1/24"];
/// RTSP at the kernel's address.
pub const KERNEL: &str = "10.77.0.1:8554";
/// For things that must happen on their own, on a machine that has other things to do.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// The server's log line when its engine listens.
pub const UP: &str = "the offload engine carries connections to";
/// The same of HTTP, which another thread listens for.
pub const HTTP_UP: &str = "the offload engine carries HTTP to";
/// Its log line when the device has gone.
pub const LOST: &str = "the offload engine has ended";

pub fn ip(namespace: &str, args: &str) {
    let output = Command::new("ip").args(["-n", namespace]).args(args.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip -n {namespace} {args}: {output:?}");
}

/// Runs a command line on a host.
pub fn on(namespace: &str, line: &str) {
    let words = line.split_whitespace();
    let output = Command::new("ip").args(["netns", "exec", namespace]).args(words).output().unwrap();
    assert!(output.status.success(), "{namespace}: {line}: {output:?}");
}

/// A TUN device of the server host, without anybody at its other end.
pub fn add_tun(hosts: &TwoHosts) {
    ip(&hosts.server, "tuntap add dev mill0 mode tun");
    ip(&hosts.server, "addr add 10.78.0.2/24 dev mill0");
    ip(&hosts.server, "link set mill0 up");
}

/// Both hosts; `None`, with the reason printed, without rights.
pub fn hosts() -> Option<TwoHosts> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return None;
    }
    let hosts = TwoHosts::new(false).unwrap();
    on(&hosts.server, "sysctl -qw net.ipv4.ip_forward=1");
    ip(&hosts.client, "route add 10.78.0.0/24 via 10.77.0.1");
    Some(hosts)
}

/// A server whose engine is at a TUN device.
pub fn at_tun(film_secs: u64, args: &[&str]) -> Option<Site> {
    let hosts = hosts()?;
    add_tun(&hosts);
    let mut site = Site::new(hosts, film_secs, KERNEL, &[&AT_TUN, args].concat());
    up(&mut site.server, UP);
    Some(site)
}

/// Waits until the server has logged this, if it has not yet.
pub fn up(server: &mut Server, what: &str) {
    if server.said(what).is_empty() {
        server.wait_for(what, TIMEOUT);
    }
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What `--stats` has written last.
pub fn stats(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}
