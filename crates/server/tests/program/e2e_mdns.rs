//! `--mdns`: a server is found by another host, with its ports, and is listed no longer when it has ended.

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
fn serve(host: &Netns, store: &Path, [rtsp, http]: [u16; 2]) -> Server {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &host.name, env!("CARGO_BIN_EXE_millrace"), "serve", "--mdns"]);
    command.args(["--listen", &format!("0.0.0.0:{rtsp}"), "--http", &format!("0.0.0.0:{http}")]);
    command.args(["--cache", "32MiB", "--store"]).arg(store);
    command.env_remove("MILLRACE_STORE").env_remove("RUST_LOG");
    Server::spawn(command)
}

/// Browses for services of a type until two are found, at these ports; returns their names, in the order of the ports.
fn find(browser: &ServiceDaemon, kind: &str, ports: [u16; 2]) -> (Receiver<ServiceEvent>, [String; 2]) {
    let events = browser.browse(kind).unwrap();
    let mut names = [None, None];
    while names.iter().any(Option::is_none) {
        let found = until(&events, kind, |event| match event {
            ServiceEvent::ServiceResolved(found) => Some(found),
            _ => None,
        });
        assert!(found.fullname.starts_with("Millrace on "), "{found:?}");
        let addresses: Vec<String> = found.addresses.iter().map(|it| it.to_ip_addr().to_string()).collect();
        assert!(!addresses.contains(&"127.0.0.1".to_owned()), "{addresses:?}");
        let path = kind.starts_with("_http").then_some("/");
        assert_eq!(found.txt_properties.get_property_val_str("path"), path, "{found:?}");
        // Addresses come in messages of their own.
        if addresses.contains(&"10.92.0.1".to_owned()) {
            let at = ports.iter().position(|port| *port == found.port).expect("a port of ours");
            names[at] = Some(found.fullname);
        }
    }
    let names = names.map(Option::unwrap);
    assert_ne!(names[0], names[1], "no responder has to give one of them another name");
    (events, names)
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
    let mut servers = [("a", [8554, 8080]), ("b", [8654, 8180])]
        .map(|(store, ports)| serve(&host, &dir.path().join(store), ports));
    client.inside(|| {
        // Its thread gets this thread's network.
        let browser = ServiceDaemon::new().unwrap();
        let services = [("_http._tcp.local.", [8080, 8180]), ("_rtsp._tcp.local.", [8554, 8654])]
            .map(|(kind, ports)| find(&browser, kind, ports));
        // The one that stays is not taken back with the other.
        for (at, server) in servers.iter_mut().enumerate().rev() {
            assert!(server.interrupt());
            for (events, names) in &services {
                let gone = until(events, "the end of the announcement", |event| match event {
                    ServiceEvent::ServiceRemoved(_, name) => Some(name),
                    _ => None,
                });
                assert_eq!(gone, names[at]);
            }
        }
        browser.shutdown().unwrap();
    });
}
