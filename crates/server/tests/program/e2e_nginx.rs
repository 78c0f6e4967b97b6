//! nginx in front, configured as in docs/guide/proxy.md: the same bytes, viewers that hang up,
//! refusals, untrusted addresses.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Server, add, film, header, read_head};
use millrace_lab::held::{HeldResources, counters};
use millrace_store::volume::Volume;
use millrace_testkit::titles::Film;

const TIMEOUT: Duration = Duration::from_secs(60);
const GUIDE: &str = include_str!("../../../../docs/guide/proxy.md");
/// TS packets of a film of 2.2 s.
const TS_PACKETS: usize = 20_000;

/// Where Debian has it; not on everybody's PATH.
fn nginx_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    folders.map(|dir| dir.join("nginx")).find(|program| program.is_file())
}

/// Returns whether these tests cannot run here, and prints why.
fn is_skipped() -> bool {
    let why = match nginx_program() {
        None => "nginx is not installed (apt-get install nginx-light)",
        Some(_) if !rustix::process::geteuid().is_root() => {
            "Debian's nginx has folders that only root may use"
        }
        Some(_) => return false,
    };
    eprintln!("skipped: {why}");
    true
}

/// A running nginx; ended when dropped.
struct Nginx {
    child: Child,
    address: SocketAddr,
}

impl Nginx {
    /// The guide's configuration, in front of `upstream`; without a cache its lines about one are left out.
    fn start(dir: &Path, upstream: SocketAddr, has_cache: bool) -> Self {
        let block =
            GUIDE.split("```nginx\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
        let dir = dir.join(if has_cache { "cached" } else { "plain" });
        std::fs::create_dir(&dir).unwrap();
        // The port is free until another process takes it; then another is tried.
        for _ in 0..5 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let lines = block.lines().filter(|line| has_cache || !line.contains("proxy_cache"));
            let site = lines.collect::<Vec<_>>().join("\n");
            for place in ["listen 80;", "127.0.0.1:8080", "/var/cache/nginx/millrace"] {
                assert!(!has_cache || site.contains(place), "{place} is not in the guide");
            }
            let site = site
                .replace("listen 80;", &format!("listen {address};"))
                .replace("127.0.0.1:8080", &upstream.to_string())
                .replace("/var/cache/nginx/millrace", &dir.join("cache").display().to_string());
            let file = dir.join("nginx.conf");
            let pid = dir.join("pid").display().to_string();
            let text = format!(
                "daemon off;\nuser root;\npid {pid};\nerror_log stderr warn;\nevents {{}}\nhttp {{\naccess_log off;\n{site}\n}}\n"
            );
            std::fs::write(&file, text).unwrap();
            let mut command = Command::new(nginx_program().unwrap());
            command.arg("-p").arg(&dir).arg("-c").arg(&file).args(["-e", "stderr"]);
            let mut child = command.process_group(0).stdin(Stdio::null()).spawn().expect("nginx starts");
            let end = Instant::now() + TIMEOUT;
            while child.try_wait().unwrap().is_none() {
                if TcpStream::connect(address).is_ok() {
                    return Self { child, address };
                }
                assert!(Instant::now() < end, "nginx does not listen");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        panic!("nginx ends at once");
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The workers are in its group.
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// A server of one film, and its counters.
struct Site {
    server: Server,
    web: SocketAddr,
    stats: PathBuf,
    dir: tempfile::TempDir,
}

impl Site {
    fn start(add: impl FnOnce(&Path, &Path), args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (store, stats) = (dir.path().join("store"), dir.path().join("stats.json"));
        add(dir.path(), &store);
        // As the guide has it: all come from one address.
        let all = ["--share-per-address", "100%", "--max-connections-per-address", "4000"];
        let server = Server::start(&store, &[&all[..], args, &["--stats", stats.to_str().unwrap()]].concat());
        let web = server.page();
        Self { server, web, stats, dir }
    }

    /// Returns a counter of the web side, once the file of counters has been rewritten.
    fn count(&self, name: &str) -> u64 {
        let old = counters(&self.stats).unwrap()["uptime_ms"].clone();
        let end = Instant::now() + TIMEOUT;
        loop {
            let counters = counters(&self.stats).unwrap();
            if counters["uptime_ms"] != old {
                return counters["web"][name].as_u64().unwrap();
            }
            assert!(Instant::now() < end, "the counters are not written");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Asks on a connection that is used further; head and body.
fn ask(stream: &mut TcpStream, method: &str, path: &str, lines: &str) -> (String, Vec<u8>) {
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").unwrap();
    let head = read_head(stream);
    if method == "HEAD" || head.starts_with("HTTP/1.1 304") {
        return (head, Vec::new());
    }
    let mut body = Vec::new();
    match header(&head, "Content-Length") {
        Some(length) => {
            body.resize(length.parse().unwrap(), 0);
            stream.read_exact(&mut body).expect("a whole body");
        }
        // What nginx writes itself may come in chunks; it is short.
        None => panic!("no length: {head}"),
    }
    (head, body)
}

fn status(head: &str) -> &str {
    &head["HTTP/1.1 ".len()..][..3]
}

#[test]
fn hls_and_ranges_are_the_same_through_nginx() {
    if is_skipped() {
        return;
    }
    let site = Site::start(|dir, store| add(&film(dir, "film.ts", 20), store), &[]);
    for has_cache in [true, false] {
        let nginx = Nginx::start(site.dir.path(), site.web, has_cache);
        let (mut direct, mut client) = (connect(site.web), connect(nginx.address));
        let mut both = |method: &str, path: &str, lines: &str| {
            let (expected, got) =
                (ask(&mut direct, method, path, lines), ask(&mut client, method, path, lines));
            assert_eq!(status(&got.0), status(&expected.0), "{method} {path} {lines}");
            assert!(got.1 == expected.1, "{method} {path} {lines}: {} bytes", got.1.len());
            for name in
                ["Content-Type", "ETag", "Content-Range", "Cache-Control", "Access-Control-Allow-Origin"]
            {
                assert_eq!(header(&got.0, name), header(&expected.0, name), "{path}: {name}");
            }
            got
        };
        // Each playlist begins a session: in one session both are the same.
        let (_, master) = ask(&mut connect(site.web), "GET", "/titles/film/index.m3u8", "");
        let master = String::from_utf8(master).unwrap();
        let variant = master.lines().find(|line| !line.starts_with('#')).expect("a variant");
        let session = variant.split_once('?').expect("a session").1;
        both("GET", &format!("/titles/film/index.m3u8?{session}"), "");
        let (_, list) = both("GET", &format!("/titles/film/{variant}"), "");
        let list = String::from_utf8(list).unwrap();
        let names: Vec<String> = list
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|name| format!("/titles/film/{name}"))
            .collect();
        assert!(names.len() >= 3, "{list}");
        for path in &names {
            both("GET", path, "");
            both("GET", path, "Range: bytes=100-1999\r\n");
            both("HEAD", path, "");
        }
        let (head, _) = both("GET", "/titles/film.ts", "Range: bytes=1000003-1500001\r\n");
        let tag = header(&head, "ETag").unwrap().to_owned();
        both("GET", "/titles/film.ts", "Range: bytes=-1\r\n");
        both("GET", "/titles/film.ts", "Range: bytes=99999999-\r\n");
        both("GET", "/titles/film.ts", "Range: bytes=0-1,5-6\r\n");
        both("GET", "/titles/film.ts", &format!("Range: bytes=5-99\r\nIf-Range: {tag}\r\n"));
        both("GET", "/titles/film.ts", &format!("If-None-Match: {tag}\r\n"));
        both("HEAD", "/titles/film.ts", "");
        both("GET", "/titles/none.ts", "");
        both("GET", "/healthz", "");

        // nginx does not repeat a request for a resource that it has, in whatever session; and its
        // requests come on few connections.
        let (orders, connections) = (site.count("media_orders"), site.count("connections_accepted"));
        for _ in 0..3 {
            let mut client = connect(nginx.address);
            let (_, list) = ask(&mut client, "GET", "/titles/film/media.m3u8", "");
            let list = String::from_utf8(list).unwrap();
            let own = list.lines().filter(|line| !line.starts_with('#'));
            let own: Vec<_> = own.map(|name| format!("/titles/film/{name}")).collect();
            assert!(own.len() == names.len() && own != names, "{list}");
            own.iter().for_each(|path| assert_eq!(status(&ask(&mut client, "GET", path, "").0), "200"));
        }
        let more = site.count("media_orders") - orders;
        assert_eq!(more, if has_cache { 0 } else { 3 * names.len() as u64 }, "with a cache: {has_cache}");
        assert!(site.count("connections_accepted") - connections <= 2, "connections are not used again");
    }
}

#[test]
fn nginx_proxies_whole_title_and_client_abort_frees_stream() {
    if is_skipped() {
        return;
    }
    let mut bytes = Vec::new();
    let add = |_: &Path, store: &Path| {
        let film = Film::new(20 * TS_PACKETS, 7);
        film.add(&Volume::open_or_create(store).unwrap(), "film");
        let short = Film::new(TS_PACKETS, 8);
        short.add(&Volume::open_or_create(store).unwrap(), "short");
        bytes = short.bytes;
    };
    let mut site = Site::start(add, &[]);
    let nginx = Nginx::start(site.dir.path(), site.web, true);
    let (head, body) = ask(&mut connect(nginx.address), "GET", "/titles/short.ts", "");
    assert!(status(&head) == "200" && body == bytes, "{head}: {} bytes", body.len());
    for _ in 0..5 {
        let mut client = connect(nginx.address);
        write!(client, "GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n\r\n").unwrap();
        client.read_exact(&mut [0; 50_000]).unwrap();
    }
    // The film lasts for 44 s.
    let expected = HeldResources::nothing_but(u64::MAX);
    let begun = Instant::now();
    let held = HeldResources::settle(site.server.child.id(), &site.stats, expected, Duration::from_secs(25))
        .unwrap();
    assert_eq!(held.beyond(expected), 0, "{held:?} after {:?}", begun.elapsed());
    assert_eq!(site.count("media_broken"), 5);
    drop(nginx);
    assert!(site.server.interrupt());
}

#[test]
fn nginx_proxies_refusal_uncached_and_is_not_trusted_as_local() {
    if is_skipped() {
        return;
    }
    let add = |_: &Path, store: &Path| {
        Film::new(10 * TS_PACKETS, 9).add(&Volume::open_or_create(store).unwrap(), "film");
    };
    let site = Site::start(add, &["--max-streams", "1"]);
    let nginx = Nginx::start(site.dir.path(), site.web, true);
    let mut client = connect(nginx.address);
    let (_, list) = ask(&mut client, "GET", "/titles/film/media.m3u8", "");
    let list = String::from_utf8(list).unwrap();
    let first = list.lines().find(|line| !line.starts_with('#')).expect("a segment");
    let first = first.split('?').next().expect("an address");
    // The place of the playlist's session is free when that has been idle for a while.
    let end = Instant::now() + TIMEOUT;
    let viewer = loop {
        let mut viewer = connect(site.web);
        write!(viewer, "GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n\r\n").unwrap();
        if status(&read_head(&mut viewer)) == "200" {
            break viewer;
        }
        assert!(Instant::now() < end, "the session does not end");
        std::thread::sleep(Duration::from_millis(50));
    };
    let (head, _) = ask(&mut client, "GET", "/titles/film/media.m3u8", "");
    assert_eq!((status(&head), header(&head, "Retry-After")), ("503", Some("5")), "{head}");
    let paths = [format!("/titles/film/{first}"), "/titles/film.ts".to_owned()];
    let range = "Range: bytes=0-4999\r\n";
    for path in &paths {
        let (head, body) = ask(&mut client, "GET", path, range);
        assert_eq!((status(&head), header(&head, "Retry-After")), ("503", Some("5")), "{path}: {head}");
        assert!(String::from_utf8_lossy(&body).contains("in use"), "{path}");
    }
    drop(viewer);
    let end = Instant::now() + TIMEOUT;
    for path in &paths {
        while status(&ask(&mut client, "GET", path, range).0) != "206" {
            assert!(Instant::now() < end, "{path}: still refused");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    assert_eq!(status(&ask(&mut connect(site.web), "GET", "/metrics", "").0), "200");
    assert_eq!(status(&ask(&mut client, "GET", "/metrics", "").0), "403");
    for lines in ["X-Forwarded-For: 127.0.0.1\r\n", "Forwarded: for=127.0.0.1\r\n", "Via: 1.1 nginx\r\n"] {
        assert_eq!(status(&ask(&mut connect(site.web), "GET", "/metrics", lines).0), "403", "{lines}");
    }
}
