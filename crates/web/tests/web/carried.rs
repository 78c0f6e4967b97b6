//! Connections that another TCP carries. The other TCP is the kernel's here, which the web side does not know: it has the connections as streams that stay
//! with it, and orders have their names.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use millrace_rights::{Gate, Policy, RightsSnapshot};
use millrace_web::{
    Arrivals, Carried, CarriedStream, Carrier, DeliveryRefusal, Feed, ReadWrite, Totals, TrustedProxies,
    WebConfig, WebHandle, WebLimits, start,
};

use tokio::io::Join;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::client::Client;
use super::connections::wait_for;
use super::site::{Film, MadeUp, Manner};

/// The web side without a listener of its own.
fn serve(site: &Arc<MadeUp>, limits: WebLimits) -> (WebHandle, SocketAddr, Arc<Totals>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let totals = Arc::new(Totals::default());
    let config = WebConfig {
        listeners: Vec::new(),
        carrier: Some(Carrier::new(|arrivals| bring(listener, arrivals))),
        secure: None,
        limits,
        proxies: TrustedProxies::default(),
        gate: Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap()),
        feed: Feed::default(),
        totals: Arc::clone(&totals),
    };
    (start(config, Arc::<MadeUp>::clone(site)).unwrap(), address, totals)
}

async fn bring(listener: TcpListener, arrivals: Arrivals) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, peer) = listener.accept().await.unwrap();
        let name = TcpStream::from(stream.as_fd().try_clone_to_owned().unwrap());
        // When dropped, the writing half ends the connection for the holder of its name too.
        let (from, to) = stream.into_split();
        arrivals.take(Carried::new(Viewer(tokio::io::join(from, to)), Arc::new(name)), peer);
    }
}

struct Viewer(Join<OwnedReadHalf, OwnedWriteHalf>);

impl CarriedStream for Viewer {
    fn io(&mut self) -> &mut dyn ReadWrite {
        &mut self.0
    }

    fn reset_when_dropped(&self, is_reset: bool) {
        let linger = is_reset.then_some(Duration::ZERO);
        let socket: &tokio::net::TcpStream = self.0.reader().as_ref();
        rustix::net::sockopt::set_socket_linger(socket, linger).unwrap();
    }
}

fn range(from: usize, to: usize) -> String {
    format!("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\nRange: bytes={from}-{}\r\n\r\n", to - 1)
}

#[test]
fn everything_is_answered_on_one_connection_and_media_by_its_name() {
    let site = MadeUp::with(vec![Film::pattern("film", 4_000, Manner::Sends)]);
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let film = &site.films["film"].bytes;
    let mut client = Client::to(address);
    let whole = client.ask("GET", "/titles/film.ts", "");
    assert_eq!((whole.status, whole.body == film[..]), (200, true));
    // The page is hyper's, and the connection comes back from there too.
    assert_eq!(client.get("/").status, 200);
    assert_eq!(client.get("/titles/other.ts").status, 404);
    // Requests that come while an engine writes are read here.
    client.send([range(5, 500_000), range(500_000, 500_001), range(0, 9)].concat());
    for bytes in [5..500_000, 500_000..500_001, 0..9] {
        let part = client.response(false);
        assert_eq!((part.status, part.body == film[bytes.clone()]), (206, true), "{bytes:?}");
    }
    let head = client.ask("HEAD", "/titles/film.ts", "");
    assert_eq!(head.header("Content-Length"), Some(&film.len().to_string()[..]));
    let last = client.ask("GET", "/titles/film.ts", "Connection: close\r\n");
    assert!(last.body == film[..] && client.rest().is_empty());
    let orders = site.orders();
    assert_eq!(orders.len(), 5);
    assert!(orders.iter().all(|order| !order.is_inside && order.peer.ip().is_loopback()));
    let counted = totals.read();
    assert_eq!((counted.media_orders, counted.connections_accepted), (5, 1));
    wait_for("its place is free", || totals.read().connections == 0);
}

#[test]
fn refused_media_request_returns_503_and_keeps_connection() {
    let full = Manner::Refuses(DeliveryRefusal::Full("all streams are in use".to_owned()));
    let site = MadeUp::with(vec![Film::pattern("film", 10, full), Film::pattern("other", 10, Manner::Sends)]);
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    for _ in 0..2 {
        let refused = client.get("/titles/film.ts");
        assert_eq!((refused.status, refused.header("Retry-After")), (503, Some("5")));
        assert!(refused.text().contains("in use"));
        assert!(client.get("/titles/other.ts").body == site.films["other"].bytes[..]);
    }
    // The last one is counted when the viewer may have it already.
    wait_for("all are counted", || totals.read().requests == 4);
    let counted = totals.read();
    assert_eq!((counted.media_refused, counted.replies_server_error, counted.replies_ok), (2, 2, 2));
}

/// A reply that breaks off ends the connection, so that no client takes it for a whole one.
#[test]
fn broken_media_reply_closes_connection() {
    for manner in [Manner::BreaksOff(1000), Manner::Forgets] {
        let site = MadeUp::with(vec![Film::pattern("film", 100, manner)]);
        let (_web, address, totals) = serve(&site, WebLimits::default());
        let mut client = Client::to(address);
        client.send("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.rest().len() <= 1000);
        wait_for("it is counted", || totals.read().media_broken == 1 && totals.read().connections == 0);
    }
}

/// Data that a viewer sends while it is sent to is taken in, up to a bound: otherwise it would fill
/// buffers that others need.
#[test]
fn viewer_sending_too_much_during_reply_is_disconnected() {
    let site = MadeUp::with(vec![Film::pattern("film", 100, Manner::Keeps)]);
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    client.send("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for("it is sent to", || site.orders().len() == 1);
    let mut endless = Client::to(address);
    endless.send("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for("both are sent to", || site.orders().len() == 2);
    client.send(vec![b'x'; 60_000]);
    // It may have been cut off before it has sent all.
    endless.send_some(vec![b'x'; 100_000]);
    assert!(endless.rest().is_empty());
    // The other one has its order and its place.
    assert_eq!(totals.read().connections, 2);
    site.let_go();
    assert!(client.rest().is_empty());
    wait_for("no connection is left", || totals.read().connections == 0);
    assert_eq!(totals.read().media_broken, 2);
}

#[test]
fn connection_limit_returns_503_and_stop_waits_for_replies() {
    let manner = Manner::Slowly(10_000, Duration::from_millis(20));
    let site = MadeUp::with(vec![Film::pattern("film", 500, manner)]);
    let (web, address, totals) = serve(&site, WebLimits { connections: 1, ..WebLimits::default() });
    let mut first = Client::to(address);
    first.send("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for("it is sent to", || site.orders().len() == 1);
    assert_eq!(Client::to(address).response(false).status, 503);
    assert_eq!(totals.read().connections_refused, 1);
    let reads = std::thread::spawn(move || first.response(false).body);
    web.stop(Duration::from_secs(60));
    assert!(reads.join().unwrap() == site.films["film"].bytes[..]);
    assert!(TcpStream::connect(address).is_err());
}
