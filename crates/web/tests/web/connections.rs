//! Many connections, and their end.

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use millrace_web::WebLimits;
use rustix::process::Resource;

use super::client::Client;
use super::site::{Film, MadeUp, Manner, serve};

pub(crate) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {what}");
}

/// Two thousand connections that have made a request and are idle now: new clients are served, and
/// closing frees all places.
#[test]
fn idle_connections_stand_in_nobodys_way() {
    let site = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)]);
    // Both ends of each are in this process.
    let mut files = rustix::process::getrlimit(Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(Resource::Nofile, files).unwrap();
    let limits = WebLimits { connections: 2_001, connections_per_address: 10_000, ..WebLimits::default() };
    let (_web, address, totals) = serve(&site, limits);
    let mut idle: Vec<Client> = (0..2_000).map(|_| Client::to(address)).collect();
    for client in &mut idle {
        client.send("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\nRange: bytes=0-187\r\n\r\n");
    }
    for client in &mut idle {
        assert_eq!(client.response(false).status, 206);
    }
    let mut last = Client::to(address);
    assert_eq!(last.get("/titles/film.ts").status, 200);
    assert_eq!(totals.read().connections, 2_001);
    // There is no room for one more, and the answer reports it.
    let mut refused = Client::to(address);
    let answer = refused.response(false);
    assert_eq!((answer.status, answer.header("Retry-After")), (503, Some("5")));
    assert_eq!(totals.read().connections_refused, 1);
    // Those that were idle can still ask.
    for client in idle.iter_mut().step_by(100) {
        assert_eq!(client.get("/titles/film.ts").status, 200);
    }
    drop(idle);
    wait_for("all places are free", || totals.read().connections == 1);
    let mut next: Vec<Client> = (0..100).map(|_| Client::to(address)).collect();
    assert!(next.iter_mut().all(|client| client.get("/titles/film.ts").status == 200));
}

#[test]
fn connection_limit_per_address_returns_503() {
    let site = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)]);
    let (_web, address, totals) =
        serve(&site, WebLimits { connections: 100, connections_per_address: 2, ..WebLimits::default() });
    let mut first = Client::to(address);
    let mut second = Client::to(address);
    assert_eq!((first.get("/titles/film.ts").status, second.get("/titles/film.ts").status), (200, 200));
    let answer = Client::to(address).response(false);
    assert_eq!(answer.status, 503);
    assert_eq!(totals.read().connections_refused_address, 1);
    drop(second);
    wait_for("the place is free", || totals.read().connections == 1);
    assert_eq!(Client::to(address).get("/titles/film.ts").status, 200);
}

/// At the end those that are idle are closed, those that are being sent something get it whole, and no more come in.
#[test]
fn stop_closes_idle_connections_and_finishes_replies() {
    let manner = Manner::Slowly(10_000, Duration::from_millis(20));
    let site = MadeUp::with(vec![Film::pattern("film", 1_000, manner)]);
    let (web, address, _) = serve(&site, WebLimits::default());
    let mut idle = TcpStream::connect(address).unwrap();
    let busy: Vec<_> = [false, true]
        .map(|is_inside| {
            let mut client = Client::to(address);
            match is_inside {
                true => client.ask_by_hyper("/titles/film.ts"),
                false => client.send("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n"),
            }
            std::thread::spawn(move || client.response(false).body)
        })
        .into();
    wait_for("both are sent to", || site.orders().len() == 2);
    web.stop(Duration::from_secs(60));
    for client in busy {
        assert!(client.join().unwrap() == site.films["film"].bytes[..]);
    }
    let mut said = Vec::new();
    let _ = idle.read_to_end(&mut said);
    assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
    assert!(TcpStream::connect(address).is_err());
}

/// A viewer that goes away while it is sent to costs its own connection only.
#[test]
fn viewers_that_go_away() {
    let site = MadeUp::with(vec![Film::pattern("film", 40_000, Manner::Sends)]);
    let (_web, address, totals) = serve(&site, WebLimits::default());
    for is_inside in [false, true] {
        let mut client = Client::to(address);
        match is_inside {
            true => client.ask_by_hyper("/titles/film.ts"),
            false => client.send("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n"),
        }
        wait_for("it is sent to", || site.orders().iter().any(|order| order.is_inside == is_inside));
        drop(client);
    }
    wait_for("both were given up", || totals.read().media_broken == 2);
    wait_for("no connection is left", || totals.read().connections == 0);
    assert_eq!(Arc::strong_count(&site), 2);
}
