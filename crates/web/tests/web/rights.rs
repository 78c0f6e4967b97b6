//! Access by HTTP, over real sockets: every address without rights, and with those that it needs.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millrace_core::limits::rights::FAILURES_AT_ONCE;
use millrace_rights::{
    Advised, Gate, Keys, Limits, NewUser, Now, Policy, Quota, RightsFile, RightsSnapshot, SignedLink,
    TrustHere, Watching,
};
use millrace_web::{WebLimits, Webhook};
use tempfile::TempDir;

use super::client::{Client, Response, curl};
use super::connections::wait_for;
use super::hls::films;
use super::pages::examples;
use super::site::{Film, MadeUp, Manner, serve, serve_to};

const PASSWORD: &str = "secret-word";

pub(crate) struct Rights {
    pub(crate) gate: Arc<Gate>,
    known: RightsSnapshot,
    token: String,
    _dir: TempDir,
}

/// `anna` may watch `film` alone, `boss` everything, and manages.
pub(crate) fn rights() -> Rights {
    rights_of(&[("anna", &["film"], false), ("boss", &["*"], true)])
}

/// Users with the patterns that they may watch, and whether they manage; the last one has a token.
pub(crate) fn rights_of(users: &[(&str, &[&str], bool)]) -> Rights {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rights.sqlite");
    let mut file = RightsFile::open_or_create(&path).unwrap();
    for &(name, patterns, manages) in users {
        let cost = millrace_rights::Cost { kib: 8, passes: 1 };
        file.add_user(&NewUser { name, password: PASSWORD, digest: true, manages, cost }, 0).unwrap();
        patterns.iter().for_each(|pattern| file.grant(name, pattern).unwrap());
    }
    let (_, token) = file.add_token(users.last().unwrap().0, 0, None).unwrap();
    let known = file.read().unwrap();
    let policy = Policy { watching: Watching::ByRights, trust_here: TrustHere::Never, ..Policy::default() };
    let gate = Gate::start(policy, &millrace_rights::Copies::one(&path)).unwrap();
    Rights { gate, known, token, _dir: dir }
}

impl Rights {
    pub(crate) fn link(&self, title: &str, seconds: u64) -> String {
        let Keys { links, .. } = self.known.keys.as_ref().unwrap();
        SignedLink::sign(links, title, Now::read().unix_s + seconds).query().to_owned()
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.token)
    }
}

// printf 'anna:secret-word' | base64
const ANNA: &str = "Authorization: Basic YW5uYTpzZWNyZXQtd29yZA==\r\n";
const WRONG: &str = "Authorization: Basic YW5uYTp3cm9uZy13b3Jk\r\n";

fn challenges(response: &Response) -> Vec<&str> {
    let all = response.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("www-authenticate"));
    all.map(|(_, value)| value.as_str()).collect()
}

#[test]
fn whether_credentials_are_right_is_told_where_that_is_asked() {
    let rights = rights();
    let open = Gate::new(Policy::default(), rights.known.clone()).unwrap();
    let nobody = Gate::new(Policy::default(), RightsSnapshot::default()).unwrap();
    let site = &films().site;
    let ask = |gate: &Arc<Gate>, path: &str, lines: &str| {
        let (_web, address, _) = serve_to(site, WebLimits::default(), gate);
        let answer = Client::to(address).ask("GET", path, lines);
        (answer.status, answer.text().to_owned())
    };
    // Also where watching is open, and on the server's own machine.
    for gate in [&rights.gate, &Arc::new(open)] {
        let of = |lines: &str| ask(gate, "/api/v1/user", lines);
        assert_eq!(of(ANNA), (200, "{\"user\":\"anna\"}\n".to_owned()));
        assert_eq!(of(&rights.bearer()), (200, "{\"user\":\"boss\"}\n".to_owned()));
        for lines in ["", WRONG, "Authorization: Bearer mr_none\r\n", "Authorization: Digest x\r\n"] {
            let (status, said) = of(lines);
            assert_eq!(status, 401, "{lines}");
            assert!(said.contains(if lines.is_empty() { "sign in" } else { "are wrong" }), "{lines}: {said}");
        }
    }
    let nobody = Arc::new(nobody);
    // If there are no users, another party has asked for the credentials.
    assert_eq!(ask(&nobody, "/api/v1/user", ANNA).0, 404);
    // Elsewhere wrong credentials are ignored, as long as none are needed.
    for path in ["/api/v1/titles", "/titles/film/index.m3u8", "/"] {
        assert_eq!(ask(&nobody, path, WRONG).0, 200, "{path}");
    }
}

/// The list is the router's: an address without a rule cannot be added, and one whose rule lets everybody in has to be named here.
#[test]
fn routes_without_credentials_return_401_except_health_checks() {
    let rights = rights();
    let site = &films().site;
    let examples = {
        let (_web, address, _) = serve(site, WebLimits::default());
        examples(&mut Client::to(address))
    };
    let (_web, address, _) = serve_to(site, WebLimits::default(), &rights.gate);
    assert_eq!(millrace_web::routes_without_rights().collect::<Vec<_>>(), ["/healthz", "/readyz"]);
    let bearer = rights.bearer();
    for (route, path) in examples {
        let is_open = millrace_web::routes_without_rights().any(|open| open == route);
        for method in ["GET", "HEAD"] {
            let response = Client::to(address).ask(method, &path, "");
            assert_eq!(response.status, if is_open { 200 } else { 401 }, "{method} {path}");
            if is_open {
                continue;
            }
            let asked = challenges(&response);
            assert!(
                asked[0].starts_with("Basic realm=") && asked[1].starts_with("Bearer realm="),
                "{asked:?}"
            );
            assert!(method == "HEAD" || response.text().contains("sign in"), "{path}");
            let range = Client::to(address).ask(method, &path, "Range: bytes=0-1\r\n");
            assert_eq!(range.status, 401, "{method} {path}");
        }
        for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE"] {
            // The title exists. Methods that a route lacks get the same answer for every visitor.
            let expected = match (method, route) {
                ("DELETE", "/api/v1/titles/{name}" | "/api/v1/live/{name}") => [401, 403, 204],
                ("POST", "/api/v1/live" | "/api/v1/reload") => [401, 403, 415],
                ("PUT", "/titles/{name}" | "/titles/{name}.ts" | "/live/{name}/recording")
                | ("PUT" | "POST", "/live/{name}") => [401, 403, 409],
                ("DELETE", "/live/{name}/recording") => [401, 403, 200],
                ("PUT", "/titles/{name}/subtitles/{file}") => [401, 403, 400],
                ("DELETE", "/titles/{name}/subtitles/{file}") => [401, 403, 204],
                // An empty body changes nothing.
                ("PATCH", "/api/v1/titles/{name}") => [401, 403, 400],
                _ => [405; 3],
            };
            for (lines, status) in ["", ANNA, &bearer].into_iter().zip(expected) {
                let answer = Client::to(address).ask(method, &path, lines);
                assert_eq!(answer.status, status, "{method} {path}");
                assert_eq!(status == 405, answer.header("Allow").is_some(), "{method} {path}");
            }
        }
        // The response to a browser's preflight reveals nothing.
        let preflight = Client::to(address).ask("OPTIONS", &path, "");
        assert_eq!((preflight.status, preflight.body.len()), (204, 0), "{path}");
        assert!(preflight.header("Access-Control-Allow-Headers").unwrap().contains("Authorization"));
        let is_there = match route {
            "/hls.js" => millrace_web::HAS_HLS_JS,
            "/titles/{name}" => false, // nothing is being uploaded
            _ => true,
        };
        let found = if is_there { 200 } else { 404 };
        assert_eq!(Client::to(address).ask("GET", &path, &bearer).status, found, "{path}");
        // By HTTP/2 as well.
        let url = format!("http://{address}{path}");
        // Events have no end.
        let seconds = if route == "/api/v1/events" { "1" } else { "60" };
        let status =
            ["--max-time", seconds, "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_code}", &url];
        let without = curl(&status);
        assert_eq!(String::from_utf8_lossy(&without.stdout), if is_open { "200" } else { "401" }, "{path}");
        let header = bearer.trim_end();
        let with = curl(&[&["-H", header], &status[..]].concat());
        assert_eq!(String::from_utf8_lossy(&with.stdout), found.to_string(), "{path}");
    }
}

/// A browser sends a form of another site with the password that it knows for this one.
#[test]
fn live_media_from_page_of_another_site_is_refused() {
    let rights = rights();
    let (_web, address, _) = serve_to(&films().site, WebLimits::default(), &rights.gate);
    for (origin, status) in [("cross-site", 403), ("same-origin", 409)] {
        let lines = format!("{}Sec-Fetch-Site: {origin}\r\n", rights.bearer());
        let response = Client::to(address).ask("POST", "/live/film", &lines);
        assert_eq!(response.status, status, "{origin}: {}", response.text());
    }
}

#[test]
fn admin_routes_without_users_require_local_client() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    let ask = |client: &mut Client, host: &str, path: &str| {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.response(false).status
    };
    assert_eq!(ask(&mut client, "localhost", "/metrics"), 200);
    // Behind a proxy, or by a name that leads here: everybody could be that.
    assert_eq!(ask(&mut client, "tv.example", "/metrics"), 403);
    assert_eq!(ask(&mut client, "localhost\r\nX-Forwarded-For: 192.0.2.1", "/metrics"), 403);
    assert_eq!(ask(&mut client, "tv.example", "/titles/film.ts"), 200);
    assert_eq!(ask(&mut client, "tv.example", "/api/v1/titles"), 200);
    client.send("DELETE /api/v1/titles/film HTTP/1.1\r\nHost: tv.example\r\n\r\n");
    assert_eq!(client.response(false).status, 403);
}

#[test]
fn user_sees_only_granted_titles() {
    let rights = rights();
    let films = ["film", "other"].map(|name| Film::pattern(name, 100, Manner::Sends));
    let site = MadeUp::with(films.into());
    let (_web, address, _) = serve_to(&site, WebLimits::default(), &rights.gate);
    let mut client = Client::to(address);
    let list = client.ask("GET", "/api/v1/titles", ANNA);
    assert!(list.text().contains("\"film\"") && !list.text().contains("other"), "{}", list.text());
    let whole = client.ask("GET", "/api/v1/titles", &rights.bearer());
    assert!(whole.text().contains("\"other\""), "{}", whole.text());
    assert_eq!(client.ask("GET", "/titles/film.ts", ANNA).body.len(), 18_800);
    for path in ["/titles/other.ts", "/api/v1/titles/other", "/titles/none.ts", "/metrics"] {
        let refused = client.ask("GET", path, ANNA);
        assert_eq!(refused.status, 403, "{path}: a title is not told to be there");
        assert!(refused.text().contains("may not"), "{}", refused.text());
    }
    assert_eq!(site.orders().len(), 1, "an engine was asked for what was refused");
}

#[test]
fn signed_link_is_carried_from_playlist_to_segments() {
    let rights = rights();
    let (_web, address, _) = serve_to(&films().site, WebLimits::default(), &rights.gate);
    let mut client = Client::to(address);
    let link = rights.link("film", 600);
    let master = client.get(&format!("/titles/film/index.m3u8?{link}"));
    assert_eq!(master.status, 200);
    let addresses = |text: &str| {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let media = addresses(master.text());
    assert!(!media.is_empty() && media.iter().all(|address| address.ends_with(&link)), "{media:?}");
    for playlist in media {
        let path = match playlist.strip_prefix("../") {
            Some(path) => format!("/titles/{path}"),
            None => format!("/titles/film/{playlist}"),
        };
        let list = client.get(&path);
        assert_eq!(list.status, 200, "{path}");
        let base = path.split("media.m3u8").next().unwrap();
        for segment in addresses(list.text()) {
            let segment = format!("{base}{segment}");
            let answer = client.get(&segment);
            assert_eq!(answer.status, 200, "{segment}");
            let cached = answer.header("Cache-Control").unwrap();
            assert!(cached.contains("private") && !cached.contains("public"), "{cached}");
            assert_eq!(client.get(segment.split('?').next().unwrap()).status, 401, "{segment}");
        }
    }
    for (path, why) in [
        (format!("/titles/other.ts?{link}"), "not valid"),
        (format!("/titles/film.ts?{}", rights.link("other", 600)), "not valid"),
        (format!("/titles/film.ts?{}", rights.link("film", 0)), "expired"),
        (format!("/titles/film.ts?{link}A"), "not valid"),
        (format!("/titles/film.ts?{link}&until=9"), "not valid"),
    ] {
        let refused = client.get(&path);
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.text().contains(why), "{}", refused.text());
    }
    assert_eq!(client.get(&format!("/api/v1/titles?{link}")).status, 401);
    assert_eq!(client.get(&format!("/metrics?{link}")).status, 401);
    // By HTTP/2, where another parser reads the address.
    let url = format!("http://{address}/titles/film/index.m3u8?{link}");
    let by_h2 = curl(&["--http2-prior-knowledge", &url]);
    assert!(String::from_utf8_lossy(&by_h2.stdout).contains(&link));
}

#[test]
fn playlists_without_a_link_have_none() {
    let rights = rights();
    let (_web, address, _) = serve_to(&films().site, WebLimits::default(), &rights.gate);
    let master = Client::to(address).ask("GET", "/titles/film/index.m3u8", ANNA);
    assert!(master.status == 200 && !master.text().contains('?'), "{}", master.text());
}

#[test]
fn wrong_tokens_are_throttled_without_blocking_others() {
    let rights = rights();
    let site = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)]);
    let (_web, address, _) = serve_to(&site, WebLimits::default(), &rights.gate);
    let mut client = Client::to(address);
    let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
    for number in 0..2000 {
        let bad = format!("Authorization: Bearer mr_{number:043}\r\n");
        *statuses.entry(client.ask("GET", "/titles/film.ts", &bad).status).or_default() += 1;
    }
    assert!(statuses[&401] >= FAILURES_AT_ONCE && statuses[&429] > 1900, "{statuses:?}");
    let wrong = client.ask("GET", "/titles/film.ts", WRONG);
    assert_eq!((wrong.status, wrong.header("Retry-After")), (429, Some("6")));
    assert_eq!(rights.gate.counters().passwords_checked, 0);
    assert_eq!(client.ask("GET", "/titles/film.ts", &rights.bearer()).status, 200);
}

#[test]
fn wrong_password_returns_401_with_challenges() {
    let rights = rights();
    let site = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)]);
    let (_web, address, _) = serve_to(&site, WebLimits::default(), &rights.gate);
    let mut client = Client::to(address);
    let wrong = client.ask("GET", "/titles/film.ts", WRONG);
    assert_eq!((wrong.status, challenges(&wrong).len()), (401, 2));
    assert!(wrong.text().contains("wrong"), "{}", wrong.text());
    assert_eq!(client.ask("GET", "/titles/film.ts", ANNA).status, 200);
    // Two lines are not one of them.
    assert_eq!(client.ask("GET", "/titles/film.ts", &format!("{ANNA}{ANNA}")).status, 401);
    assert_eq!(rights.gate.counters().passwords_checked, 2);
}

/// A program that answers every question with this status, and counts them; `None`: with nothing.
fn webhook(status: Option<u16>, limit: Duration) -> (Webhook, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let mut came = Vec::new();
            while !came.ends_with(b"}") {
                let mut bytes = [0; 1024];
                let length = stream.read(&mut bytes).unwrap();
                came.extend_from_slice(&bytes[..length]);
            }
            match status {
                Some(status) => {
                    let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
                    stream.write_all(answer.as_bytes()).unwrap();
                }
                None => silent.push(stream),
            }
        }
    });
    (Webhook::start(&format!("http://{address}/"), limit, None).unwrap(), asked)
}

#[test]
fn webhook_decides_access_and_is_cached() {
    let site = &films().site;
    let long = Duration::from_secs(60);
    for (status, limit, lets_in_without, expected) in [
        (Some(200), long, false, 200),
        (Some(403), long, true, 403),
        (Some(500), long, false, 503),
        (Some(500), long, true, 200),
        (None, Duration::from_millis(50), false, 503),
        (None, Duration::from_millis(50), true, 200),
    ] {
        let (webhook, asked) = webhook(status, limit);
        let gate = Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap());
        gate.be_advised(Advised::new(Box::new(webhook), lets_in_without));
        let (_web, address, _) = serve_to(site, WebLimits::default(), &gate);
        let mut client = Client::to(address);
        // What shows nothing but that there is a title is not its affair.
        for path in ["/healthz", "/api/v1/titles", "/titles/film/poster.jpg"] {
            assert_eq!(client.get(path).status, 200, "{status:?} {path}");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 0, "{status:?}");
        for path in [
            "/titles/film.ts",
            "/titles/film/index.m3u8",
            "/titles/film/media.m3u8",
            "/titles/film/sprites.jpg",
        ] {
            let found = client.get(path);
            assert_eq!(found.status, expected, "{status:?} {path}");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1, "{status:?}");
    }
}

/// A shared cache would serve other viewers a response that the webhook allowed for one of them.
#[test]
fn responses_with_a_webhook_are_private_to_caches() {
    let site = &films().site;
    let (_open, open, _) = serve(site, WebLimits::default());
    let (webhook, _) = webhook(Some(200), Duration::from_secs(60));
    let gate = Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap());
    gate.be_advised(Advised::new(Box::new(webhook), false));
    let (_web, address, _) = serve_to(site, WebLimits::default(), &gate);
    for (route, path) in examples(&mut Client::to(open)) {
        // Event streams do not end, and public addresses need no decision.
        if !route.starts_with("/titles/") || route == "/titles/{name}" {
            continue;
        }
        let cached = |address| {
            let answer = Client::to(address).get(&path);
            assert_eq!(answer.status, 200, "{path}");
            answer.header("Cache-Control").unwrap().to_owned()
        };
        assert_eq!(cached(address), cached(open).replace("public", "private"), "{path}");
        assert!(!cached(address).contains("public"), "{path}");
    }
}

/// Titles that do not exist cause no webhook calls. A client that requests every existing title
/// does not block the calls for other clients, and does not cause them to be let in without one.
#[test]
fn slow_webhook_with_a_flood_of_one_client_is_asked_about_others() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hook = listener.local_addr().unwrap();
    // The webhook answers once released: 403 for `forbidden`.
    let (let_go, waits) = std::sync::mpsc::channel::<()>();
    let asked = Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let noted = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut held = Vec::new();
        listener.set_nonblocking(true).unwrap();
        loop {
            let is_over = waits.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected);
            if let Ok((mut stream, _)) = listener.accept() {
                stream.set_nonblocking(false).unwrap();
                let mut came = Vec::new();
                while !came.ends_with(b"}") {
                    let mut bytes = [0; 1024];
                    let length = stream.read(&mut bytes).unwrap();
                    came.extend_from_slice(&bytes[..length]);
                }
                let question = String::from_utf8(came).unwrap().split("\r\n\r\n").nth(1).unwrap().to_owned();
                noted.lock().unwrap().push(question.clone());
                held.push((stream, question));
            }
            // Calls for other clients are answered at once, those for the flood after it ends.
            held.retain_mut(|(stream, question)| {
                if !is_over && question.contains("127.0.0.1\"") {
                    return true;
                }
                let status = if question.contains("forbidden") { 403 } else { 200 };
                let _ = write!(stream, "HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
                false
            });
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let names: Vec<String> = (0..200).map(|number| format!("film{number}")).collect();
    let all = names.iter().map(String::as_str).chain(["film", "forbidden"]);
    let site = MadeUp::with(all.map(|name| Film::pattern(name, 10, Manner::Sends)).collect());
    for lets_in_without in [false, true] {
        let hook = Webhook::start(&format!("http://{hook}/"), Duration::from_secs(60), None).unwrap();
        let gate = Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap());
        gate.be_advised(Advised::new(Box::new(hook), lets_in_without));
        let (_web, address, _) = serve_to(&site, WebLimits::default(), &gate);
        asked.lock().unwrap().clear();
        let mut flood = Client::to(address);
        for number in 0..500 {
            assert_eq!(flood.get(&format!("/titles/nosuch{number}.ts")).status, 404);
        }
        assert!(asked.lock().unwrap().is_empty(), "about titles that do not exist");
        let mut waiting: Vec<Client> = names.iter().map(|_| Client::to(address)).collect();
        for (client, name) in waiting.iter_mut().zip(&names) {
            client.send(format!("GET /titles/{name}.ts HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        }
        // Some requests wait for an answer, the others are refused under either policy.
        let most = millrace_core::limits::rights::MAX_ADVICE_ASKED_PER_ADDRESS;
        wait_for("they are refused", || gate.counters().webhook_crowded as usize == names.len() - most);
        assert_eq!(flood.get("/titles/film.ts").status, 503);
        for host in 2..20 {
            let mut other = Client::from([127, 0, 0, host], address);
            assert_eq!(other.get("/titles/film.ts").status, 200, "{host}");
            assert_eq!(other.get("/titles/forbidden.ts").status, 403, "{host}");
        }
        assert_eq!(gate.counters().webhook_failed, 0);
    }
    drop(let_go);
}

#[test]
fn media_order_carries_quota_of_user() {
    let site = MadeUp::with(vec![Film::pattern("film", 100, Manner::Sends)]);
    let rights = rights();
    let limits = Limits { streams: Some(2), bits_per_s: None };
    let mut known = rights.known.clone();
    known.users.get_mut("anna").unwrap().limits = limits;
    let policy = Policy { watching: Watching::ByRights, ..Policy::default() };
    let gate = Arc::new(Gate::new(policy, known).unwrap());
    let (_web, address, _) = serve_to(&site, WebLimits::default(), &gate);
    let mut client = Client::to(address);
    assert_eq!(client.ask("GET", "/titles/film.ts", ANNA).status, 200);
    assert_eq!(client.ask("GET", "/titles/film.ts", &rights.bearer()).status, 200);
    let orders = site.orders();
    let quotas: Vec<_> = orders.iter().map(|order| order.quota.clone()).collect();
    assert_eq!(quotas, [Some(Quota { user: "anna".into(), limits }), None]);
    assert!(orders.iter().all(|order| order.segment.is_none()), "a file is no segment");
}

/// Segments are sent in a moment: their viewers are counted, and the service gets enough
/// information to recognize them, whatever segments are made of.
#[test]
fn segment_fetch_carries_quota_and_viewer_identity() {
    let Film { info, index, bytes, .. } = &films().site.films["film"];
    let (info, index, bytes) = (info.clone(), Arc::clone(index), Arc::clone(bytes));
    let site = MadeUp::with(vec![Film { info, index, bytes, manner: Manner::Sends }]);
    let rights = rights();
    let mut known = rights.known.clone();
    known.users.get_mut("anna").unwrap().limits.streams = Some(1);
    let anna = Quota { user: "anna".into(), limits: known.users["anna"].limits };
    let policy = Policy { watching: Watching::ByRights, ..Policy::default() };
    let gate = Arc::new(Gate::new(policy, known).unwrap());
    let (_web, address, _) = serve_to(&site, WebLimits::default(), &gate);
    let segments = {
        let (_web, address, _) = serve(&site, WebLimits::default());
        let examples = examples(&mut Client::to(address));
        let path = |route: &str| examples.iter().find(|(of, _)| *of == route).expect(route).1.clone();
        ["/titles/{name}/hls/{version}/{number}.ts", "/titles/{name}/cmaf/{version}/{track}/{number}.m4s"]
            .map(path)
    };
    site.orders.lock().unwrap().clear();
    site.fetches.lock().unwrap().clear();
    let mut client = Client::to(address);
    for path in &segments {
        assert_eq!(client.ask("GET", path, ANNA).status, 200, "{path}");
        // Nothing is taken by asking how it would be.
        assert_eq!(client.ask("HEAD", path, ANNA).status, 200, "{path}");
    }
    assert_eq!(client.ask("GET", &segments[0], &rights.bearer()).status, 200);
    let fetched = site.fetches.lock().unwrap().clone();
    let ordered: Vec<_> = site.orders().into_iter().map(|order| (order.segment, order.quota)).collect();
    let [(made, of_made)] = &fetched[..] else { panic!("{fetched:?}") };
    let [(Some(first), of_first), (Some(second), of_second)] = &ordered[..] else { panic!("{ordered:?}") };
    assert_eq!((of_made, of_first, of_second), (&Some(anna.clone()), &Some(anna), &None));
    assert_eq!((made.conn, made.number), (first.conn, first.number), "the same for both forms");
    assert_eq!(first, second);
    assert!(first.length.0 > 0);
}
