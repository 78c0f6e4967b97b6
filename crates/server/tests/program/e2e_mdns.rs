//! `--mdns`: a server is found by another host, with its ports, and is listed no longer when it has ended.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mdns_sd::{Receiver, ServiceDaemon, ServiceEvent};
use millrace_testkit::hosts::Netns;

use crate::support::Server;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits for an event that `pick` takes.
fn until<T>(events: &Receiver<ServiceEvent>, what: &str, pick: impl Fn(ServiceEvent) -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        let event = events.recv_timeout(Duration::from_millis(100)).ok();
        if let Some(found) = event.and_then(&pick) {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
    }
}

/// A server in a network namespace, with ports of its own.
fn serve(host: &Netns, store: &Path, [http, rtsp]: [u16; 2]) -> Server {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &host.name, env!("CARGO_BIN_EXE_millrace"), "serve", "--mdns"]);
    command.args(["--listen", &format!("0.0.0.0:{rtsp}"), "--http", &format!("0.0.0.0:{http}")]);
    command.args(["--cache", "32MiB", "--store"]).arg(store);
    command.env_remove("MILLRACE_STORE").env_remove("RUST_LOG");
    Server::spawn(command)
}

/// Waits for the service at this port; returns its name.
fn find(events: &Receiver<ServiceEvent>, kind: &str, port: u16) -> String {
    let host = "10.92.0.1".parse::<IpAddr>().unwrap();
    let found = until(events, kind, |event| match event {
        // Addresses come in messages of their own.
        ServiceEvent::ServiceResolved(found) => {
            let is_whole = found.addresses.iter().any(|it| it.to_ip_addr() == host);
            (found.port == port && is_whole).then_some(found)
        }
        _ => None,
    });
    assert!(found.fullname.starts_with("Millrace on "), "{found:?}");
    let addresses: Vec<String> = found.addresses.iter().map(|it| it.to_ip_addr().to_string()).collect();
    assert!(!addresses.contains(&"127.0.0.1".to_owned()), "{addresses:?}");
    let path = kind.starts_with("_http").then_some("/");
    assert_eq!(found.txt_properties.get_property_val_str("path"), path, "{found:?}");
    found.fullname
}

#[test]
fn announced_servers_of_one_machine_are_found_by_another_host_until_each_ends() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let (host, client) = (Netns::new("m"), Netns::new("n"));
    host.ip(&format!("link add eth0 type veth peer name eth0 netns {}", client.name));
    for (hosts, address) in [(&host, "10.92.0.1/24"), (&client, "10.92.0.2/24")] {
        hosts.ip(&format!("addr add {address} dev eth0"));
        hosts.ip("link set eth0 up");
    }
    [&host, &client].iter().for_each(|host| host.wait_until_up("eth0"));
    let dir = tempfile::tempdir().unwrap();
    client.inside(|| {
        // Its thread gets this thread's network.
        let browser = ServiceDaemon::new().unwrap();
        let kinds = ["_http._tcp.local.", "_rtsp._tcp.local."];
        let services = kinds.map(|kind| (kind, browser.browse(kind).unwrap()));
        // The second comes when the first has its name.
        let servers = [("a", [8080, 8554]), ("b", [8180, 8654])].map(|(store, ports)| {
            let server = serve(&host, &dir.path().join(store), ports);
            let found = services.iter().zip(ports).map(|((kind, events), port)| find(events, kind, port));
            (found.collect::<Vec<_>>(), server)
        });
        let [(stays, mut first), (goes, mut second)] = servers;
        assert!(second.interrupt());
        for ((_, events), (goes, stays)) in services.iter().zip(goes.iter().zip(&stays)) {
            until(events, "the end of the announcement", |event| match event {
                ServiceEvent::ServiceRemoved(_, name) => {
                    assert_ne!(&name, stays, "the server that stays is not taken back with the other");
                    (&name == goes).then_some(())
                }
                _ => None,
            });
        }
        assert!(first.interrupt());
        for ((_, events), stays) in services.iter().zip(&stays) {
            until(events, "the end of the announcement", |event| match event {
                ServiceEvent::ServiceRemoved(_, name) => (&name == stays).then_some(()),
                _ => None,
            });
        }
        browser.shutdown().unwrap();
    });
}
