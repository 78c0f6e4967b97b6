//! `--mdns`: announces RTSP and HTTP in the local network, by multicast DNS (RFC 6762, RFC 6763).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use mdns_sd::{DaemonEvent, IfKind, Receiver, ServiceDaemon, ServiceInfo};

use super::ServeArgs;
use super::access::Listening;
use super::worker::Worker;
use crate::limits::control::{MAX_HOST_LABEL, MDNS_LOOK, MDNS_STOP};

impl ServeArgs {
    /// Announces the listening sockets, if the operator wants that.
    pub(super) fn announce_services(&self, listening: &[Listening]) -> anyhow::Result<Option<Worker>> {
        if !self.mdns {
            return Ok(None);
        }
        let host = host_name();
        let services = listening.iter().filter_map(|(protocol, at)| service(protocol, *at, &host));
        let services = services.collect::<Result<Vec<_>, _>>().context("--mdns")?;
        if services.is_empty() {
            tracing::warn!("--mdns: nothing to announce: all addresses are reached from this machine only");
            return Ok(None);
        }
        let daemon =
            ServiceDaemon::new().context("--mdns: cannot start its thread; raise the limit of threads")?;
        daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6]).context("--mdns")?;
        let events = daemon.monitor().context("--mdns")?;
        for service in services {
            daemon.register(service).context("--mdns")?;
        }
        let run = move |stop: &Arc<AtomicBool>| {
            follow(&events, stop);
            end(&daemon);
        };
        Worker::start("mdns", run).context("thread of announcements").map(Some)
    }
}

/// The service of a protocol; `None`: there is no type for it, or no other host reaches it.
fn service(protocol: &str, at: SocketAddr, host: &str) -> Option<mdns_sd::Result<ServiceInfo>> {
    let (kind, properties) = match protocol {
        "RTSP" => ("_rtsp._tcp.local.", &[][..]),
        "HTTP" => ("_http._tcp.local.", &[("path", "/")][..]),
        _ => return None,
    };
    if at.ip().is_loopback() {
        return None;
    }
    let name = format!("Millrace on {host}");
    // A name of its own: another responder on this machine may have the host's name.
    let host = format!("millrace-{host}.local.");
    let address = if at.ip().is_unspecified() { String::new() } else { at.ip().to_string() };
    let service = ServiceInfo::new(kind, &name, &host, address.as_str(), at.port(), properties);
    Some(service.map(|service| if address.is_empty() { service.enable_addr_auto() } else { service }))
}

/// The first part of the host's name, with the characters that host names have.
fn host_name() -> String {
    label(&rustix::system::uname().nodename().to_string_lossy())
}

fn label(name: &str) -> String {
    let first = name.split('.').next().unwrap_or_default();
    let clean: String =
        first.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(MAX_HOST_LABEL).collect();
    if clean.is_empty() { "server".to_owned() } else { clean }
}

/// Logs what happens, each failure once, until the server ends.
fn follow(events: &Receiver<DaemonEvent>, stop: &AtomicBool) {
    let mut failure = String::new();
    while !stop.load(Ordering::Relaxed) {
        match events.recv_timeout(MDNS_LOOK) {
            Ok(DaemonEvent::Error(error)) => {
                let error = error.to_string();
                if failure != error {
                    tracing::warn!("multicast DNS: {error}; check the interfaces");
                    failure = error;
                }
            }
            Ok(DaemonEvent::NameChange(change)) => {
                tracing::info!("multicast DNS: the name is in use, announced as {}", change.new_name);
            }
            Ok(DaemonEvent::Announce(name, interfaces)) => {
                tracing::debug!("multicast DNS: announced {name} on {interfaces}");
            }
            Ok(_) => {}
            // Its thread has ended.
            Err(_) if events.is_disconnected() => std::thread::park_timeout(MDNS_LOOK),
            Err(_) => {}
        }
    }
}

/// Takes the announcements back (RFC 6762 section 10.1), so that the server is listed no longer.
fn end(daemon: &ServiceDaemon) {
    let ended = daemon.shutdown().map(|ended| ended.recv_timeout(MDNS_STOP).is_ok());
    if !matches!(ended, Ok(true)) {
        tracing::warn!(
            "multicast DNS: its thread did not end; the server may be listed for another two minutes"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_announced_where_other_hosts_reach_it() {
        let of = |protocol, at: &str| service(protocol, at.parse().unwrap(), "tv").map(Result::unwrap);
        let http = of("HTTP", "0.0.0.0:8080").unwrap();
        assert_eq!(http.get_fullname(), "Millrace on tv._http._tcp.local.");
        assert!(http.is_addr_auto() && http.get_property_val_str("path") == Some("/"));
        assert_eq!((http.get_hostname(), http.get_port()), ("millrace-tv.local.", 8080));
        let rtsp = of("RTSP", "192.0.2.5:554").unwrap();
        assert!(!rtsp.is_addr_auto() && rtsp.get_addresses().len() == 1);
        for (protocol, at) in [("HTTP", "127.0.0.1:8080"), ("RTSP", "[::1]:554"), ("HTTPS", "0.0.0.0:443")] {
            assert!(of(protocol, at).is_none(), "{protocol} {at}");
        }
    }

    #[test]
    fn label_of_host_name_fits() {
        assert_eq!(label("tv.example.org"), "tv");
        assert_eq!(label("T\u{f6}_v-1"), "Tv-1");
        assert_eq!(label("\u{f6}"), "server");
        assert_eq!(label(&"a".repeat(64)).len(), MAX_HOST_LABEL);
    }
}
