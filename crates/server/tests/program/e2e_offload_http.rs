//! `serve --tcp engine`: HTTP carried by the offload engine beside the kernel's TCP (`support/offload.rs`). Viewers are on another host and have its kernel's
//! TCP: curl, ffmpeg, and requests that are written here. Needs root and a TUN device.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::http::{answer, frames, get, range};
use crate::support::offload::{HTTP_UP, LOST, TIMEOUT, add_tun, at_tun, ip, stats, up, wait_until};
use crate::support::two_hosts::{Scene, Site};
use crate::support::{header, read_head};
use serde_json::Value;

/// Where the engine carries HTTP, and the kernel.
const ENGINE: &str = "10.78.0.1:8080";
const KERNEL: &str = "10.77.0.1:8080";

/// A server's counters, and the resources it holds.
struct Counters(tempfile::TempDir);

impl Counters {
    fn path(&self) -> PathBuf {
        self.0.path().join("stats.json")
    }

    fn all(&self) -> Value {
        stats(&self.path())
    }

    fn of(&self, part: &str, counter: &str) -> u64 {
        self.all()[part][counter].as_u64().unwrap_or_else(|| panic!("no counter {part}.{counter}"))
    }
}

/// A server with a film of some seconds, whose engine carries HTTP.
fn site(film_secs: u64, args: &[&str]) -> Option<(Site, Counters)> {
    let counters = Counters(tempfile::tempdir().unwrap());
    let mut site = at_tun(film_secs, &[&["--stats", counters.path().to_str().unwrap()], args].concat())?;
    up(&mut site.server, HTTP_UP);
    Some((site, counters))
}

fn connect(scene: &Scene, server: &str) -> TcpStream {
    let address = server.parse().unwrap();
    let connect = || TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
    let stream = scene.hosts.on_client(connect).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Asks for the film and reads the head of the answer.
fn begin(scene: &Scene, server: &str) -> TcpStream {
    try_to_begin(scene, server).unwrap_or_else(|head| panic!("{head}"))
}

/// The same if it is answered with 200.
fn try_to_begin(scene: &Scene, server: &str) -> Result<TcpStream, String> {
    let mut stream = connect(scene, server);
    write!(stream, "GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n\r\n").unwrap();
    let head = read_head(&mut stream);
    if head.starts_with("HTTP/1.1 200 ") { Ok(stream) } else { Err(head) }
}

/// Runs curl on the client host; returns its output.
fn curl(scene: &Scene, args: &[&str]) -> Vec<u8> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--noproxy", "*", "--max-time", "60"]).args(args);
    let done = scene.hosts.on_client(|| curl.output().expect("curl can be started")).unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

#[test]
fn titles_and_ranges_come_byte_for_byte_on_one_connection() {
    let Some((mut site, counters)) = site(5, &[]) else { return };
    let film = fs::read(&site.scene.data).unwrap();
    let scene = &site.scene;
    let url = format!("http://{ENGINE}/titles/film.ts");
    assert!(curl(scene, &[&url]) == film);
    assert!(curl(scene, &["-r", "1000-70000", &url]) == film[1000..=70_000]);
    // Three of them, on one connection.
    let connects = curl(
        scene,
        &[&url, &url, &url, "-o", "/dev/null", "-o", "/dev/null", "-o", "/dev/null", "-w", "%{num_connects}"],
    );
    assert_eq!(connects, b"100");
    let mut stream = connect(scene, ENGINE);
    let end = film.len();
    for bytes in [0..end, 0..1, 1315..1317, 196 * 1316 - 5..196 * 1316 + 5, 300_003..900_001, end - 1..end] {
        let (head, body) = get(&mut stream, "/titles/film.ts", &range(&bytes));
        assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
        assert!(body == film[bytes.clone()], "{bytes:?}");
    }
    // Requests that come at once, media and others, are answered in their order.
    let (first, second) = (5..500_000, 70_000..70_001);
    let asked: String = [&first, &second]
        .map(|bytes| format!("GET /titles/film.ts HTTP/1.1\r\nHost: tv\r\n{}\r\n", range(bytes)))
        .concat();
    write!(stream, "{asked}GET /titles/none.ts HTTP/1.1\r\nHost: tv\r\n\r\n").unwrap();
    assert!(answer(&mut stream).1 == film[first]);
    assert!(answer(&mut stream).1 == film[second]);
    assert!(answer(&mut stream).0.starts_with("HTTP/1.1 404 "));
    // The page and playlists, which are in memory, and media behind them.
    assert!(get(&mut stream, "/", "").0.starts_with("HTTP/1.1 200 "));
    let (_, playlist) = get(&mut stream, "/titles/film/index.m3u8", "");
    assert!(playlist.starts_with(b"#EXTM3U"), "{}", String::from_utf8_lossy(&playlist));
    assert!(get(&mut stream, "/titles/film.ts", "").1 == film);
    // A client that is not on the server's machine has no more rights than by the kernel's TCP.
    let status = ["-o", "/dev/null", "-w", "%{http_code}"];
    for server in [ENGINE, KERNEL] {
        assert_eq!(
            curl(scene, &[&status[..], &[&format!("http://{server}/api/v1/status")]].concat()),
            b"403"
        );
        let upload = ["-T", scene.data.to_str().unwrap(), &format!("http://{server}/titles/new")];
        assert_eq!(curl(scene, &[&status[..], &upload].concat()), b"403");
    }
    // HTTP/2 is hyper's; an engine writes the bytes that hyper passes on.
    assert!(curl(scene, &["--http2-prior-knowledge", &url]) == film);
    assert!(curl(scene, &[&format!("http://{KERNEL}/titles/film.ts")]) == film);
    // The end of a connection is announced.
    let (head, body) = get(&mut stream, "/titles/film.ts", "Connection: close\r\n");
    assert!(header(&head, "Connection") == Some("close") && body == film);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    let pages = site.server.said(&format!("page http://{ENGINE}/"));
    assert_eq!(pages.len(), 1, "the page's address is the engine's: {:?}", site.server.log);
    assert!(site.server.interrupt());
    let all = counters.all();
    let (web, sessions) = (&all["web"], &all["sessions"]);
    assert_eq!((&web["media_orders"], &web["media_broken"]), (&17.into(), &0.into()), "{all:#}");
    assert_eq!(sessions["deliveries"], 17, "{all:#}");
    // Four of curl's were the kernel's: two of them refused, one with the film.
    assert_eq!(all["offload_tcp"]["accepted"], 7, "{all:#}");
    assert_eq!(web["connections_accepted"], 10, "{all:#}");
}

#[test]
fn ffmpeg_sees_by_hls_what_the_source_shows() {
    let Some((mut site, _)) = site(20, &[]) else { return };
    let source = site.scene.dir.path().join("film.ts");
    let expected = frames(source.to_str().unwrap());
    assert!(expected.len() >= 400, "{}", expected.len());
    for path in ["film/index.m3u8", "film/cmaf.m3u8", "film.ts"] {
        let url = format!("http://{ENGINE}/titles/{path}");
        let seen = site.scene.hosts.on_client(|| frames(&url)).unwrap();
        assert!(seen == expected, "{path}: {} pictures of {}", seen.len(), expected.len());
    }
    assert!(site.server.interrupt());
}

#[test]
fn viewers_who_hang_up_leave_nothing_and_one_who_stands_still_hurts_nobody() {
    let Some((mut site, counters)) = site(15, &[]) else { return };
    let scene = &site.scene;
    let film = fs::read(&scene.data).unwrap();
    // Its buffer and the data in flight are soon full; it reads on much later.
    let mut still = begin(scene, ENGINE);
    rustix::net::sockopt::set_socket_recv_buffer_size(&still, 65_536).unwrap();
    for number in 0..20 {
        let mut stream = begin(scene, ENGINE);
        stream.read_exact(&mut vec![0; 1 + number * 30_000]).unwrap();
        if number % 2 == 0 {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
    }
    let mut others: Vec<_> = (0..2).map(|_| connect(scene, ENGINE)).collect();
    for stream in &mut others {
        let (_, body) = get(stream, "/titles/film.ts", &range(&(0..1_000_000)));
        assert!(body == film[..1_000_000]);
    }
    wait_until("20 are noticed", || counters.of("sessions", "deliveries_broken") >= 20);
    assert!(
        curl(scene, &["-r", "2000000-2999999", &format!("http://{ENGINE}/titles/film.ts")])
            == film[2_000_000..3_000_000]
    );
    let mut rest = vec![0; film.len()];
    still.read_exact(&mut rest).unwrap();
    assert!(rest == film);
    drop((still, others));
    // Nothing is pinned: neither an extent nor a place of the engine, and no stream holds room.
    wait_until("all has come back", || {
        [("cache", "leased"), ("offload", "descriptors"), ("offload", "host_pages"), ("now", "deliveries")]
            .iter()
            .chain(&[("now", "streams"), ("now", "reserved_bits_per_s"), ("offload", "connections")])
            .all(|(part, counter)| counters.of(part, counter) == 0)
    });
    assert!(site.server.interrupt());
    assert_eq!(site.server.said("panicked"), [""; 0]);
    let all = counters.all();
    assert_eq!(all["sessions"]["deliveries_broken"], 20, "{all:#}");
    assert_eq!(all["offload"]["rejected"], 0, "{all:#}");
}

/// Admission is shared by both: when one has the last place, the other gets a refusal.
#[test]
fn http_offload_with_all_streams_in_use_returns_503_until_one_ends() {
    let Some((mut site, _)) = site(30, &["--max-streams", "1"]) else { return };
    let scene = &site.scene;
    let film = fs::read(&scene.data).unwrap();
    let mut waits = connect(scene, ENGINE);
    for has_it in [ENGINE, KERNEL] {
        // The place of the previous response is free when its engine reports so.
        let mut first = Err(String::new());
        wait_until("there is room for the film", || {
            first = try_to_begin(scene, has_it);
            first.is_ok()
        });
        let (head, body) = get(&mut waits, "/titles/film.ts", &range(&(0..10)));
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(header(&head, "Retry-After").is_some(), "{head}");
        assert!(String::from_utf8_lossy(&body).contains("in use"), "{}", String::from_utf8_lossy(&body));
        drop(first);
        wait_until("there is room", || {
            let (head, body) = get(&mut waits, "/titles/film.ts", &range(&(0..10)));
            head.starts_with("HTTP/1.1 206 ") && body == film[..10]
        });
    }
    assert!(site.server.interrupt());
}

#[test]
fn http_offload_device_loss_moves_new_connections_to_kernel() {
    let Some((mut site, counters)) = site(15, &[]) else { return };
    let scene = &site.scene;
    let film = fs::read(&scene.data).unwrap();
    let mut by_engine = begin(scene, ENGINE);
    let mut idle = connect(scene, ENGINE);
    assert!(get(&mut idle, "/", "").0.starts_with("HTTP/1.1 200 "));
    let mut by_kernel = begin(scene, KERNEL);
    let mut body = vec![0; film.len()];
    by_engine.read_exact(&mut body[..200_000]).unwrap();
    assert!(body[..200_000] == film[..200_000]);
    ip(&scene.hosts.server, "link del mill0");
    site.server.wait_for(LOST, TIMEOUT);
    // Its deliveries are over, and its connections.
    wait_until("it is over", || counters.of("sessions", "deliveries_broken") == 1);
    wait_until("its connections are gone", || counters.of("web", "connections") == 1);
    let mut fresh = connect(scene, KERNEL);
    assert!(get(&mut fresh, "/titles/film.ts", &range(&(0..500_000))).1 == film[..500_000]);
    add_tun(&scene.hosts);
    site.server.wait_for(HTTP_UP, TIMEOUT);
    let mut again = connect(scene, ENGINE);
    for _ in 0..2 {
        assert!(get(&mut again, "/titles/film.ts", &range(&(0..500_000))).1 == film[..500_000]);
    }
    by_kernel.read_exact(&mut body).unwrap();
    assert!(body == film, "the kernel's viewers have not noticed");
    assert!(site.server.interrupt());
}

/// Where the operator wants HTTP at one address, it is there only.
#[test]
fn http_at_an_address_of_its_own_is_not_the_engines() {
    let Some(mut site) = at_tun(2, &["--http", KERNEL]) else { return };
    let scene = &site.scene;
    let film = fs::read(&scene.data).unwrap();
    assert!(curl(scene, &[&format!("http://{KERNEL}/titles/film.ts")]) == film);
    let refused = scene.hosts.on_client(|| TcpStream::connect(ENGINE)).unwrap();
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(site.server.said("page http://10.77.0.1:8080/").len(), 1, "{:?}", site.server.log);
    assert_eq!(site.server.said(HTTP_UP), [""; 0]);
    assert!(site.server.interrupt());
}

/// A server that ends lets go of its viewers.
#[test]
fn http_offload_on_interrupt_closes_idle_and_resets_busy_connection() {
    let Some((mut site, counters)) = site(30, &[]) else { return };
    let scene = &site.scene;
    let (mut busy, mut idle) = (begin(scene, ENGINE), connect(scene, ENGINE));
    assert!(get(&mut idle, "/", "").0.starts_with("HTTP/1.1 200 "));
    assert!(site.server.interrupt());
    let mut rest = Vec::new();
    assert_eq!(idle.read_to_end(&mut rest).map_err(|error| error.kind()), Ok(0));
    // A response that is cut off is neither taken for a complete one nor waited for.
    let cut = busy.read_to_end(&mut rest).map_err(|error| error.kind());
    assert_eq!(cut, Err(std::io::ErrorKind::ConnectionReset));
    assert!(fs::read(&scene.data).unwrap().starts_with(&rest), "what came is right");
    let all = counters.all();
    assert_eq!(all["offload"]["rejected"], 0, "{all:#}");
}
