use super::*;
use std::net::UdpSocket;
use std::time::Duration;

/// Either kind of pair; `None`, with the reason printed, if this process may not make them.
fn pairs() -> Option<Vec<TwoHosts>> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return None;
    }
    let mut pairs = vec![TwoHosts::new(false).unwrap()];
    if Path::new("/dev/net/tun").exists() {
        pairs.push(TwoHosts::with_link(Impairment::default(), Impairment::default()).unwrap());
    } else {
        eprintln!("skipped in part: this kernel has no /dev/net/tun");
    }
    Some(pairs)
}

fn bound(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Returns the link's statistics as soon as it has counted anything: it counts at the end of a
/// turn, which may be after the packet has arrived.
fn settled(hosts: &TwoHosts) -> [LinkStats; 2] {
    let timeout = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let stats = hosts.link_stats().unwrap();
        if stats.iter().any(|way| way.all.received > 0) || std::time::Instant::now() > timeout {
            return stats;
        }
        std::thread::yield_now();
    }
}

#[test]
fn netns_hosts_reach_each_other_and_are_removed_on_drop() {
    // All at once: the same addresses in different worlds.
    let Some(pairs) = pairs() else { return };
    for hosts in &pairs {
        let server = hosts.inside_server(|| bound(SERVER_IP)).unwrap();
        let client = hosts.on_client(|| bound(CLIENT_IP)).unwrap();
        client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 10];
        let (bytes, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..bytes], from), (&b"hello"[..], client.local_addr().unwrap()));
    }
    assert!(pairs[0].link_stats().is_none());
    if let Some(linked) = pairs.get(1) {
        let [there, back] = settled(linked);
        assert_eq!((there.all.received, back.all.received), (0, 1), "nothing but our own packet: {back}");
    }
    for hosts in pairs {
        let names = [hosts.server.clone(), hosts.client.clone()];
        drop(hosts);
        assert!(names.iter().all(|name| !namespace_path(name).exists()));
    }
}

#[test]
fn threads_started_on_the_client_live_there() {
    let Some(pairs) = pairs() else { return };
    for hosts in &pairs {
        let local = hosts
            .on_client(|| {
                let all: Vec<_> = (0..4).map(|_| std::thread::spawn(|| bound(CLIENT_IP))).collect();
                all.into_iter().map(|thread| thread.join().unwrap().local_addr().unwrap()).collect::<Vec<_>>()
            })
            .unwrap();
        assert!(local.iter().all(|addr| addr.ip().to_string() == CLIENT_IP));
    }
}

#[test]
fn add_client_addresses_assigns_600_usable_addresses() {
    let Some(pairs) = pairs() else { return };
    for hosts in &pairs {
        let all = hosts.add_client_addresses(600).unwrap();
        assert_eq!((all.len(), all[0].to_string().as_str()), (600, CLIENT_IP));
        assert_eq!(all, hosts.add_client_addresses(600).unwrap(), "asking again is no mistake");
        let server = hosts.inside_server(|| bound(SERVER_IP)).unwrap();
        let mut buffer = [0; 10];
        for address in [all[1], all[249], all[250], all[599]] {
            let client = hosts.on_client(|| bound(&address.to_string())).unwrap();
            server.send_to(b"there", client.local_addr().unwrap()).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 5, "{address}");
            client.send_to(b"back", server.local_addr().unwrap()).unwrap();
            assert_eq!(server.recv_from(&mut buffer).unwrap(), (4, client.local_addr().unwrap()));
        }
        assert!(hosts.add_client_addresses(MAX_CLIENT_ADDRESSES + 1).is_err());
    }
}
