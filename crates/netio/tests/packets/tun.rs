//! TUN devices as the kernel meets them. Needs root; skipped otherwise.

use std::net::{SocketAddr, UdpSocket};

use crate::support::*;
use millrace_netio::tun::Tun;

/// A device `ta` with the address 10.77.0.1 in a namespace of its own.
fn device() -> Option<(Netns, Tun)> {
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: network namespaces need root, and TUN devices a kernel that has them");
        return None;
    }
    let ns = Netns::new("t");
    let tun = ns.inside(|| Tun::open("ta")).expect("a TUN device");
    // The kernel sends a few packets of its own over IPv6, which would disturb the count.
    ns.must("sysctl -qw net.ipv6.conf.ta.disable_ipv6=1");
    ns.ip("link set ta addrgenmode none txqueuelen 10000 up");
    ns.ip("addr add 10.77.0.1/24 dev ta");
    Some((ns, tun))
}

#[test]
fn tun_missed_counts_kernel_drops_before_reader() {
    let Some((server, tun)) = device() else { return };
    server.ip("link set ta txqueuelen 50");
    let socket = server.inside(|| UdpSocket::bind("10.77.0.1:7000").unwrap());
    let to: SocketAddr = "10.77.0.2:7000".parse().unwrap();
    let sent = (0..500).filter(|_| socket.send_to(&[7; 100], to).is_ok()).count() as u64;
    let mut buffer = [0; 200];
    let read = std::iter::from_fn(|| tun.read(&mut buffer).unwrap()).count() as u64;
    assert!((1..=100).contains(&read), "{read} of {sent}");
    assert_eq!(read + tun.missed(), 500, "{sent} were taken without an error");
}

#[test]
fn names_that_are_taken_or_too_long_are_refused() {
    let Some((server, _first)) = device() else { return };
    let error = server.inside(|| Tun::open("ta")).unwrap_err();
    assert!(Tun::is_taken(&error) && error.to_string().contains("another name"), "{error}");
    let error = server.inside(|| Tun::open("a-name-of-sixteen")).unwrap_err();
    assert!(!Tun::is_taken(&error) && error.to_string().contains("15 bytes"), "{error}");
}
