//! `--mdns`: a server is found by another host, with its ports, and is listed no longer when it has ended.

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

#[test]
fn announced_server_is_found_by_another_host_until_it_ends() {
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
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &host.name, env!("CARGO_BIN_EXE_millrace"), "serve", "--mdns"]);
    command.args(["--listen", "0.0.0.0:8554", "--http", "0.0.0.0:8080", "--cache", "32MiB", "--store"]);
    command.arg(dir.path().join("store")).env_remove("MILLRACE_STORE").env_remove("RUST_LOG");
    let mut server = Server::spawn(command);
    client.inside(|| {
        // Its thread gets this thread's network.
        let browser = ServiceDaemon::new().unwrap();
        let events = [("_http._tcp.local.", 8080), ("_rtsp._tcp.local.", 8554)].map(|(kind, port)| {
            let events = browser.browse(kind).unwrap();
            let resolved = until(&events, kind, |event| match event {
                ServiceEvent::ServiceResolved(found) => Some(found),
                _ => None,
            });
            assert!(resolved.fullname.starts_with("Millrace on "), "{resolved:?}");
            assert_eq!(resolved.port, port, "{resolved:?}");
            let addresses: Vec<String> =
                resolved.addresses.iter().map(|it| it.to_ip_addr().to_string()).collect();
            assert!(addresses.contains(&"10.92.0.1".to_owned()), "{addresses:?}");
            assert!(!addresses.contains(&"127.0.0.1".to_owned()), "{addresses:?}");
            let path = (port == 8080).then_some("/");
            assert_eq!(resolved.txt_properties.get_property_val_str("path"), path, "{resolved:?}");
            events
        });
        assert!(server.interrupt());
        for events in &events {
            until(events, "the end of the announcement", |event| match event {
                ServiceEvent::ServiceRemoved(_, name) => name.starts_with("Millrace on ").then_some(()),
                _ => None,
            });
        }
        browser.shutdown().unwrap();
    });
}
