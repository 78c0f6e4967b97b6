//! Events, as listeners receive them.

use std::sync::Arc;
use std::time::Duration;

use millrace_rights::{Gate, Policy, RightsSnapshot};
use millrace_web::limits::{EVENTS_QUEUED, MAX_EVENT_LISTENERS, MAX_EVENTS_PER_S};
use millrace_web::{Feed, SiteEvent, Totals, WebHandle, WebLimits};
use serde_json::Value;

use super::client::Client;
use super::openapi::Described;
use super::site::{Film, MadeUp, Manner, serve_with};

/// A server whose happenings a test makes.
struct Server {
    web: WebHandle,
    address: std::net::SocketAddr,
    site: Arc<MadeUp>,
    feed: Feed,
}

fn server() -> Server {
    let site = MadeUp::with(["a", "b"].map(|name| Film::pattern(name, 10, Manner::Sends)).into());
    let gate = Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap());
    let feed = Feed::default();
    let totals = Arc::new(Totals::default());
    let (web, address) = serve_with(&site, WebLimits::default(), &gate, &totals, feed.clone());
    Server { web, address, site, feed }
}

/// A listener: the events received and not examined yet.
struct Listener {
    client: Client,
    text: String,
}

impl Listener {
    fn to(server: &Server) -> Self {
        let mut client = Client::to(server.address);
        let response = client.get("/api/v1/events");
        assert_eq!((response.status, response.header("Content-Type")), (200, Some("text/event-stream")));
        assert_eq!(response.header("Cache-Control"), Some("no-store"));
        Self { client, text: String::from_utf8(response.body).unwrap() }
    }

    /// The next event: its name and its data; `None`: there will be no more.
    fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((frame, rest)) = self.text.split_once("\n\n") {
                let (name, data) = frame.split_once('\n').unwrap_or((frame, ""));
                let name = name.strip_prefix("event: ").expect(frame).to_owned();
                let data = serde_json::from_str(data.strip_prefix("data: ").expect(frame)).unwrap();
                self.text = rest.to_owned();
                return Some((name, data));
            }
            self.text += &String::from_utf8(self.client.chunk()?).unwrap();
        }
    }

    /// The next event of this name.
    fn wait_for(&mut self, name: &str) -> Value {
        let mut seconds = 0;
        while seconds < 30 {
            let (other, data) = self.next().expect("an event");
            if other == name {
                return data;
            }
            seconds += u32::from(other == "figures");
        }
        panic!("no {name} in 30 s");
    }
}

fn begun(session: &str) -> SiteEvent {
    SiteEvent::SessionBegun {
        session: session.to_owned(),
        title: "a".to_owned(),
        peer: "192.0.2.1:5000".to_owned(),
        transport: "udp 5000-5001".to_owned(),
        agent: Some("a line\nand another".to_owned()),
    }
}

#[test]
fn listeners_are_told_what_happens() {
    let server = server();
    let described = Described::by(server.address);
    let mut listeners = [Listener::to(&server), Listener::to(&server)];
    // The first figures of all have no second before them.
    let first = listeners[0].wait_for("figures");
    assert_eq!((&first["bits_per_s"], &first["limit"]["what"]), (&Value::Null, &"streams".into()));
    assert_eq!(described.judge_event(&first), Ok(()));
    listeners[1].wait_for("figures");
    server.feed.tell(|| begun("1"));
    server.feed.tell(|| SiteEvent::Refusal { what: "a for 192.0.2.9: full".to_owned() });
    let ended = SiteEvent::SessionEnded {
        session: "1".to_owned(),
        title: "a".to_owned(),
        peer: "192.0.2.1:5000".to_owned(),
        reason: "the viewer has gone".to_owned(),
        lasted_s: 1.5,
        packets: None,
        late_packets: Some(0),
    };
    server.feed.tell(|| ended.clone());
    server.site.hide("a", true);
    *server.site.trouble.lock().unwrap() = Some("it is gone".to_owned());
    for listener in &mut listeners {
        let session = listener.wait_for("session_begun");
        assert_eq!((&session["session"], &session["agent"]), (&"1".into(), &"a line\nand another".into()));
        let refusal = listener.wait_for("refusal");
        assert_eq!(refusal["what"], "a for 192.0.2.9: full");
        let ended = listener.wait_for("session_ended");
        assert_eq!((&ended["lasted_s"], &ended["packets"]), (&1.5.into(), &Value::Null));
        let removed = listener.wait_for("title_removed");
        assert_eq!((&removed["title"], &removed["id"]), (&"a".into(), &"07".repeat(16).into()));
        let members = listener.wait_for("members");
        assert_eq!(members["members"][0]["trouble"], "it is gone");
        let figures = listener.wait_for("figures");
        assert_eq!((&figures["bits_per_s"], &figures["left_out"]), (&0.into(), &0.into()));
        for data in [session, refusal, ended, removed, members, figures] {
            assert_eq!(described.judge_event(&data), Ok(()));
        }
    }
    server.site.hide("a", false);
    assert_eq!(listeners[0].wait_for("title_added")["title"], "a");
}

#[test]
fn event_listener_limit_returns_503_and_slots_are_released() {
    let server = server();
    // All ask before the first receives anything: the first data comes with the next figures.
    let ask = |_| {
        let mut client = Client::to(server.address);
        client.send("GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client
    };
    let mut clients: Vec<_> = (0..MAX_EVENT_LISTENERS).map(ask).collect();
    assert!(clients.iter_mut().all(|client| client.response(false).status == 200));
    let refused = Client::to(server.address).get("/api/v1/events");
    assert_eq!((refused.status, refused.header("Retry-After")), (503, Some("5")));
    // To be asked what would come takes no place.
    assert_eq!(Client::to(server.address).ask("HEAD", "/api/v1/events", "").status, 200);
    clients.pop();
    // It is noticed when the next figures cannot be written.
    let has_room = || Client::to(server.address).get("/api/v1/events").status == 200;
    let is_given_back = (0..30).any(|_| {
        clients[0].chunk().expect("figures");
        has_room()
    });
    assert!(is_given_back, "all places are still taken after 30 s");
}

#[test]
fn slow_event_listener_is_dropped_and_stop_ends_all() {
    let server = server();
    let (mut slow, mut quick) = (Listener::to(&server), Listener::to(&server));
    // More than sockets and queues hold: the maximum number of events each second.
    let long = "x".repeat(200_000);
    let mut received = 0;
    for _ in 0..60 {
        (0..MAX_EVENTS_PER_S).for_each(|_| server.feed.tell(|| begun(&long)));
        while quick.next().expect("an event").0 != "figures" {
            received += 1;
        }
        if received >= 2 * EVENTS_QUEUED {
            break;
        }
    }
    assert!(received >= 2 * EVENTS_QUEUED, "the quick one was told of {received}");
    let mut last = Vec::new();
    while let Some(chunk) = slow.client.chunk() {
        last = chunk;
    }
    assert!(last.starts_with(b": closed: you do not read"), "{}", String::from_utf8_lossy(&last[..40]));
    server.web.stop(Duration::from_secs(1));
    while quick.next().is_some() {}
}
