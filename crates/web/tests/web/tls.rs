//! The same by TLS: what HTTP serves, HTTPS serves, in both versions of HTTP; curl is the client.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use millrace_web::{DeliveryRefusal, WebLimits};

use super::client::curl;
use super::site::{Film, MadeUp, Manner, serve_by_tls};

/// Requests these paths on one connection; curl's report about each is in its standard error.
fn fetch(dir: &Path, address: SocketAddr, args: &[&str], paths: &[&str]) -> Output {
    let certificate = dir.join("cert.pem");
    let mut all = vec![
        "--cacert",
        certificate.to_str().unwrap(),
        "-w",
        "%{stderr}%{http_code} %{http_version} %{num_connects}\n",
    ];
    all.extend(args);
    let urls: Vec<_> =
        paths.iter().map(|path| format!("https://localhost:{}{path}", address.port())).collect();
    let to = format!("localhost:{}:127.0.0.1", address.port());
    all.extend(["--resolve", &to]);
    all.extend(urls.iter().map(String::as_str));
    curl(&all)
}

fn said(output: &Output) -> Vec<&str> {
    std::str::from_utf8(&output.stderr).unwrap().lines().collect()
}

#[test]
fn titles_come_whole_and_in_ranges_by_both_versions_on_one_connection() {
    let dir = tempfile::tempdir().unwrap();
    let site = MadeUp::with(vec![Film::pattern("film", 20_000, Manner::Sends)]);
    let (_web, address, totals) = serve_by_tls(&site, WebLimits::default(), dir.path());
    let film = &site.films["film"].bytes;
    for (version, name) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let done = fetch(dir.path(), address, &[version], &["/titles/film.ts", "/titles/film.ts"]);
        assert!(done.stdout == [&film[..], film].concat(), "{name}: {} bytes", done.stdout.len());
        assert_eq!(said(&done), [format!("200 {name} 1"), format!("200 {name} 0")]);
        let part = fetch(
            dir.path(),
            address,
            &[version, "-r", "1000-70000"],
            &["/titles/film.ts", "/titles/film.ts"],
        );
        assert!(part.stdout == [&film[1000..70_001], &film[1000..70_001]].concat(), "{name}");
        assert_eq!(said(&part), [format!("206 {name} 1"), format!("206 {name} 0")]);
        let head = fetch(dir.path(), address, &[version, "-I"], &["/titles/film.ts"]);
        assert!(
            String::from_utf8_lossy(&head.stdout)
                .to_lowercase()
                .contains(&format!("content-length: {}", film.len()))
        );
    }
    // Engines never get a connection that they cannot write to, and know whose it is.
    let orders = site.orders();
    assert_eq!(orders.len(), 8);
    assert!(
        orders.iter().all(|order| order.is_inside && order.peer.ip().is_loopback() && order.peer != address)
    );
    assert_eq!(totals.read().media_bytes, 2 * 2 * (film.len() as u64 + 69_001));
}

#[test]
fn tls_serves_page_and_applies_local_client_rules() {
    let dir = tempfile::tempdir().unwrap();
    let site = MadeUp::with(vec![Film::pattern("film", 100, Manner::Sends)]);
    let (_web, address, _) = serve_by_tls(&site, WebLimits::default(), dir.path());
    for version in ["--http1.1", "--http2"] {
        let page =
            fetch(dir.path(), address, &[version], &["/", "/api/v1/titles", "/metrics", "/titles/film.ts"]);
        let text = String::from_utf8_lossy(&page.stdout);
        assert!(text.contains("<html") && text.contains("\"film\""), "{text}");
        // It links to nothing that is not by TLS.
        assert!(!text.contains("http://"), "{text}");
        let said = said(&page);
        assert!(said.iter().all(|line| line.starts_with("200 ")), "{said:?}");
        assert!(said[1..].iter().all(|line| line.ends_with(" 0")), "{said:?}");
        // TLS changes nothing about who counts as this machine.
        for line in ["X-Forwarded-For: 192.0.2.1", "Host: tv.example", "Origin: https://example.org"] {
            let refused =
                fetch(dir.path(), address, &[version, "-H", line, "-o", "/dev/null"], &["/metrics"]);
            assert!(String::from_utf8_lossy(&refused.stderr).starts_with("403 "), "{line}: {refused:?}");
        }
    }
}

#[test]
fn tls_reports_refused_and_broken_media_like_http() {
    let dir = tempfile::tempdir().unwrap();
    let site = MadeUp::with(vec![
        Film::pattern("film", 2_000, Manner::Slowly(50_000, Duration::from_millis(1))),
        Film::pattern(
            "full",
            2_000,
            Manner::Refuses(DeliveryRefusal::Full("all 7 streams are in use".to_owned())),
        ),
        Film::pattern("short", 2_000, Manner::BreaksOff(100_000)),
        Film::pattern("lost", 2_000, Manner::Forgets),
    ]);
    let (_web, address, totals) = serve_by_tls(&site, WebLimits::default(), dir.path());
    for (version, name) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let full = fetch(dir.path(), address, &[version], &["/titles/full.ts", "/titles/film.ts"]);
        assert!(full.stdout.ends_with(&site.films["film"].bytes));
        assert_eq!(said(&full), [format!("503 {name} 1"), format!("200 {name} 0")]);
        for path in ["/titles/short.ts", "/titles/lost.ts"] {
            let broken = fetch(dir.path(), address, &[version], &[path]);
            let is_told = !broken.status.success() || said(&broken)[0].starts_with("500 ");
            assert!(is_told, "{version} {path}: {broken:?}");
        }
    }
    assert!(totals.read().media_broken >= 3);
}

#[test]
fn tls_rejects_ambiguous_request_head() {
    let dir = tempfile::tempdir().unwrap();
    let site = MadeUp::with(vec![Film::pattern("film", 100, Manner::Sends)]);
    let (_web, address, totals) = serve_by_tls(&site, WebLimits::default(), dir.path());
    for path in ["/titles/film.ts", "/api/v1/titles"] {
        let lines = ["--http1.1", "-H", "Content-Length: 3", "-H", "Transfer-Encoding: chunked"];
        let done = fetch(dir.path(), address, &lines, &[path]);
        assert!(String::from_utf8_lossy(&done.stderr).contains("400 1.1"), "{path}: {done:?}");
    }
    assert_eq!(totals.read().bad_messages, 2);
    assert!(site.orders().is_empty());
}

#[test]
fn connections_count_from_before_their_handshake_and_stalled_ones_hurt_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let site = MadeUp::with(vec![Film::pattern("film", 100, Manner::Sends)]);
    let limits = WebLimits { connections: 1_000, connections_per_address: 202, ..WebLimits::default() };
    let (_web, address, totals) = serve_by_tls(&site, limits, dir.path());
    let stalled: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let done = fetch(dir.path(), address, &[], &["/titles/film.ts"]);
    assert!(done.stdout == site.films["film"].bytes[..], "{done:?}");
    // One more than there may be.
    let more: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    let begun = std::time::Instant::now();
    while totals.read().connections_refused_address == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", totals.read());
        std::thread::yield_now();
    }
    drop((stalled, more));
}
