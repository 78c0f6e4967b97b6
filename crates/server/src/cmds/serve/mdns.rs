//! `--mdns`: announces RTSP and HTTP in the local network, by multicast DNS (RFC 6762, RFC 6763).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use mdns_sd::{DaemonEvent, IfKind, Receiver, ServiceDaemon, ServiceInfo};
use millrace_store::format::Uuid;

use super::ServeArgs;
use super::access::Listening;
use super::worker::Worker;
use crate::limits::control::{MAX_HOST_LABEL, MDNS_LOOK, MDNS_STOP};

impl ServeArgs {
    /// Announces the listening sockets, if the operator wants that.
    pub(super) fn announce_services(
        &self,
        listening: &[Listening],
        id: Uuid,
    ) -> anyhow::Result<Option<Worker>> {
        if !self.mdns {
            return Ok(None);
        }
        let host = HostName::new(&rustix::system::uname().nodename().to_string_lossy(), id);
        let services = listening.iter().filter_map(|(protocol, at)| host.service(protocol, *at));
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

/// The name of this server in the network. It must be another one than those of all servers there: where a responder gives a service another
/// name than it has registered, [`mdns_sd`] takes back the registered one, which is then that of the other server.
struct HostName {
    /// The first part of the machine's name, with the characters that host names have.
    machine: String,
    /// Distinguishes servers of one machine, and machines of one name.
    id: String,
}

impl HostName {
    fn new(machine: &str, volume: Uuid) -> Self {
        let first = machine.split('.').next().unwrap_or_default();
        let is_fit = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
        let clean: String = first.chars().filter(is_fit).take(MAX_HOST_LABEL).collect();
        let machine = if clean.is_empty() { "server".to_owned() } else { clean };
        let id = volume.0[..3].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { machine, id }
    }

    /// The service of a protocol; `None`: there is no type for it, or no other host reaches it.
    fn service(&self, protocol: &str, at: SocketAddr) -> Option<mdns_sd::Result<ServiceInfo>> {
        let (kind, properties) = match protocol {
            "RTSP" => ("_rtsp._tcp.local.", &[][..]),
            "HTTP" => ("_http._tcp.local.", &[("path", "/")][..]),
            _ => return None,
        };
        if at.ip().is_loopback() {
            return None;
        }
        let Self { machine, id } = self;
        let name = format!("Millrace on {machine} ({id})");
        // A name of its own: another responder on this machine may have the host's name.
        let host = format!("millrace-{machine}-{id}.local.");
        let address = if at.ip().is_unspecified() { String::new() } else { at.ip().to_string() };
        let service = ServiceInfo::new(kind, &name, &host, address.as_str(), at.port(), properties);
        Some(service.map(|service| if address.is_empty() { service.enable_addr_auto() } else { service }))
    }
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

    const ID: Uuid = Uuid([0xab; 16]);

    #[test]
    fn service_is_announced_where_other_hosts_reach_it() {
        let host = HostName::new("tv.example.org", ID);
        let of = |protocol, at: &str| host.service(protocol, at.parse().unwrap()).map(Result::unwrap);
        let http = of("HTTP", "0.0.0.0:8080").unwrap();
        assert_eq!(http.get_fullname(), "Millrace on tv (ababab)._http._tcp.local.");
        assert!(http.is_addr_auto() && http.get_property_val_str("path") == Some("/"));
        assert_eq!((http.get_hostname(), http.get_port()), ("millrace-tv-ababab.local.", 8080));
        let rtsp = of("RTSP", "192.0.2.5:554").unwrap();
        assert!(!rtsp.is_addr_auto() && rtsp.get_addresses().len() == 1);
        for (protocol, at) in [("HTTP", "127.0.0.1:8080"), ("RTSP", "[::1]:554"), ("HTTPS", "0.0.0.0:443")] {
            assert!(of(protocol, at).is_none(), "{protocol} {at}");
        }
    }

    #[test]
    fn name_of_the_machine_fits_into_a_label() {
        let machine = |name: &str| HostName::new(name, ID).machine;
        assert_eq!(machine("T\u{f6}_v-1"), "Tv-1");
        assert_eq!(machine("\u{f6}"), "server");
        assert_eq!(machine(&"a".repeat(64)).len(), MAX_HOST_LABEL);
    }
}
