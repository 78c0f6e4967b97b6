//! Viewers behind a proxy that the server trusts: each address has its own streams, and a viewer that lies about its address gains nothing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::http::get;
use crate::support::{Server, add, fails, film};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 9, 1);
const LIAR: Ipv4Addr = Ipv4Addr::new(127, 0, 8, 1);
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Status and text of an answer, on a connection from this address.
fn ask(from: Ipv4Addr, to: SocketAddr, path: &str, agent: &str, lines: &str) -> (String, String) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::new(IpAddr::V4(from), 0)).unwrap();
    connect(&socket, &to).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (head, body) = get(&mut stream, path, &format!("User-Agent: {agent}\r\n{lines}"));
    let status = head.split(' ').nth(1).expect("a status").to_owned();
    (status, String::from_utf8(body).unwrap())
}

#[test]
fn streams_per_address_count_clients_that_trusted_proxy_names() {
    let dir = tempfile::tempdir().unwrap();
    let (store, film) = (dir.path().join("store"), film(dir.path(), "film.ts", 10));
    add(&film, &store);
    let args = [
        "--http",
        "127.0.0.1:0",
        "--trusted-proxy",
        "127.0.9.0/24",
        "--streams-per-address",
        "2",
        "--picture-space",
        "0B",
    ];
    let server = Server::start(&store, &args);
    let page = server.page();
    // Each agent is a viewer, and begins a session.
    let watch = |from, agent: &str, lines: &str| ask(from, page, "/titles/film/media.m3u8", agent, lines);
    let status = |from, agent: &str, lines: &str| watch(from, agent, lines).0;
    let (one, other) = ("X-Forwarded-For: 203.0.113.1\r\n", "Forwarded: for=203.0.113.2;proto=https\r\n");
    assert_eq!([status(PROXY, "a", one), status(PROXY, "b", one)], ["200", "200"]);
    let (refused, why) = watch(PROXY, "c", one);
    assert_eq!(refused, "503");
    assert!(
        why.contains("all 2 streams that one address may have are in use (--streams-per-address)"),
        "{why}"
    );
    // A lie in front of the entry that the proxy adds.
    let lie = "X-Forwarded-For: 198.51.100.1, 203.0.113.1\r\n";
    assert_eq!(status(PROXY, "d", lie), "503");
    assert_eq!([status(PROXY, "a", other), status(PROXY, "b", other)], ["200", "200"]);
    // A lie around the proxy: as another viewer, and as the proxy.
    for (agent, lines) in [("a", one), ("b", "X-Forwarded-For: 198.51.100.1\r\n")] {
        assert_eq!(status(LIAR, agent, lines), "200", "in the liar's own name");
    }
    assert_eq!(status(LIAR, "c", "X-Forwarded-For: 198.51.100.2, 127.0.9.1\r\n"), "503");

    let (_, sessions) = ask(HERE, page, "/api/v1/status", "operator", "");
    for shown in ["203.0.113.1", "203.0.113.2", "127.0.8.1"] {
        assert!(sessions.contains(shown), "{shown}: {sessions}");
    }
    for hidden in ["198.51.100", "127.0.9.1"] {
        assert!(!sessions.contains(hidden), "{hidden}: {sessions}");
    }
}

#[test]
fn trusted_proxy_that_is_no_network_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let error = fails(&["serve", "--store", store.to_str().unwrap(), "--trusted-proxy", "10.0.0.1/8"]);
    assert!(error.contains("got \"10.0.0.1/8\"; write an address or a network"), "{error}");
}
