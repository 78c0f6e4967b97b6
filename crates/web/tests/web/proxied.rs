//! Clients behind proxies: their addresses, and the limits that count for these.

use std::net::SocketAddr;

use millrace_web::WebLimits;

use super::client::Client;
use super::connections::wait_for;
use super::site::{Film, MadeUp, Manner, serve_behind};

const PROXY: [u8; 4] = [127, 0, 9, 1];
const INNER_PROXY: [u8; 4] = [127, 0, 9, 2];
const STRANGER: [u8; 4] = [127, 0, 8, 1];
const TRUSTED: &[&str] = &["127.0.9.0/24"];

/// The address that an order for the film is counted for.
fn ordered_for(site: &MadeUp, from: [u8; 4], address: SocketAddr, lines: &str, is_by_hyper: bool) -> String {
    let mut client = Client::from(from, address);
    let body = if is_by_hyper { ("Content-Length: 1\r\n", "x") } else { ("", "") };
    client.send(format!("GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n{lines}{}\r\n{}", body.0, body.1));
    assert_eq!(client.response(false).status, 200);
    site.orders().last().expect("an order").peer.ip().to_string()
}

#[test]
fn client_of_trusted_proxy_is_last_untrusted_hop() {
    let site = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)]);
    let (_web, address, _) = serve_behind(&site, TRUSTED, WebLimits::default());
    let chain = "X-Forwarded-For: 198.51.100.1, 203.0.113.9, 127.0.9.2\r\n";
    for is_by_hyper in [false, true] {
        for (from, lines, expected) in [
            // Through the proxy: entries of the client itself count for nothing.
            (PROXY, "X-Forwarded-For: 203.0.113.9\r\n", "203.0.113.9"),
            (PROXY, "X-Forwarded-For: 198.51.100.1\r\nX-Forwarded-For: 203.0.113.9\r\n", "203.0.113.9"),
            (PROXY, chain, "203.0.113.9"),
            (INNER_PROXY, "Forwarded: for=198.51.100.1, for=\"[2001:db8::7]:80\"\r\n", "2001:db8::7"),
            (PROXY, "Forwarded: for=198.51.100.1\r\nX-Forwarded-For: 203.0.113.9\r\n", "127.0.9.1"),
            (PROXY, "", "127.0.9.1"),
            // Around it.
            (STRANGER, "X-Forwarded-For: 203.0.113.9\r\n", "127.0.8.1"),
            (STRANGER, "X-Forwarded-For: 203.0.113.9, 127.0.9.1\r\n", "127.0.8.1"),
            (STRANGER, "Forwarded: for=203.0.113.9\r\n", "127.0.8.1"),
        ] {
            let counted = ordered_for(&site, from, address, lines, is_by_hyper);
            assert_eq!(counted, expected, "{from:?} {lines} {is_by_hyper}");
        }
    }
}

/// Routes for this machine alone are closed to a proxy, whichever client it names.
#[test]
fn client_that_proxy_calls_loopback_is_not_this_machine() {
    let site = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)]);
    let (_web, address, _) = serve_behind(&site, TRUSTED, WebLimits::default());
    let mut own = Client::from(PROXY, address);
    assert_eq!(own.get("/metrics").status, 200, "a program of this machine");
    for line in ["X-Forwarded-For: 127.0.0.1\r\n", "Forwarded: for=127.0.0.1\r\n", "X-Forwarded-For: \r\n"] {
        assert_eq!(own.ask("GET", "/metrics", line).status, 403, "{line}");
    }
}

#[test]
fn connection_limit_counts_requests_of_clients_behind_proxy() {
    let kept = Film::pattern("kept", 10, Manner::Keeps);
    let site = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends), kept]);
    let limits = WebLimits { connections_per_address: 2, ..WebLimits::default() };
    let (_web, address, totals) = serve_behind(&site, TRUSTED, limits);
    let (one, other) = ("X-Forwarded-For: 203.0.113.1\r\n", "X-Forwarded-For: 203.0.113.2\r\n");
    // The proxy itself may have more connections than one address.
    let mut connections: Vec<Client> = (0..4).map(|_| Client::from(PROXY, address)).collect();
    for connection in &mut connections[..2] {
        connection.send(format!("GET /titles/kept.ts HTTP/1.1\r\nHost: tv\r\n{one}\r\n"));
    }
    wait_for("both are under way", || site.orders().len() == 2);
    let refused = connections[2].ask("GET", "/titles/film.ts", one);
    assert_eq!((refused.status, refused.header("Retry-After")), (503, Some("5")));
    assert!(refused.text().contains("--max-connections-per-address"), "{}", refused.text());
    assert_eq!(totals.read().connections_refused_address, 1);
    connections[2]
        .send(format!("GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n{one}Content-Length: 1\r\n\r\nx"));
    assert_eq!(connections[2].response(false).status, 503, "by hyper");
    assert_eq!(connections[3].ask("GET", "/titles/film.ts", other).status, 200);
    // A client without the proxy has as many connections as before.
    let mut strangers: Vec<Client> = (0..3).map(|_| Client::from(STRANGER, address)).collect();
    assert_eq!(strangers[2].response(false).status, 503);
    assert!(strangers[..2].iter_mut().all(|client| client.ask("GET", "/titles/film.ts", one).status == 200));
    // When a request is over its place is free.
    drop(std::mem::take(&mut *site.kept.lock().unwrap()));
    wait_for("a place is free", || {
        let mut next = Client::from(PROXY, address);
        next.ask("GET", "/titles/film.ts", one).status == 200
    });
}
