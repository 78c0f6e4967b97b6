//! TLS of a running server: players by HTTPS and RTSPS, another certificate while it runs, clients that stall.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::support::certificate::{Certificate, line};
use crate::support::two_hosts::Site;
use crate::support::{Server, add, fails, film, ok, signal};
use millrace_lab::netns::{CLIENT_IP, SERVER_IP, TwoHosts};
use serde_json::Value;

/// Longest that a player, or an answer, may take on a busy machine.
const LIMIT: &str = "60";
const LONG: Duration = Duration::from_secs(60);

fn curl(certificate: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", LIMIT, "--noproxy", "*", "--cacert"]);
    command.arg(certificate).args(args).output().expect("curl can be started")
}

/// Sums of the decoded pictures.
fn pictures(args: &[&str]) -> Vec<String> {
    let mut ffmpeg = Command::new("timeout");
    ffmpeg.args([LIMIT, "ffmpeg", "-nostdin", "-v", "error"]).args(args);
    ffmpeg.args(["-map", "0:v", "-f", "framemd5", "-"]);
    let done = ffmpeg.stdin(Stdio::null()).output().expect("ffmpeg can be started");
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    let sums = text.lines().filter(|line| !line.starts_with('#'));
    sums.filter_map(|line| line.rsplit(',').next()).map(|sum| sum.trim().to_owned()).collect()
}

#[test]
fn players_see_by_https_and_rtsps_what_the_source_shows() {
    let dir = tempfile::tempdir().unwrap();
    let source = film(dir.path(), "film.ts", 8);
    let store = dir.path().join("store");
    add(&source, &store);
    let certificate = Certificate::at(dir.path());
    let mut server = Server::start(&store, &certificate.args());
    let expected = pictures(&["-i", source.to_str().unwrap()]);
    assert!(expected.len() >= 150, "{}", expected.len());
    let page = line(&server, "page https://").to_owned();
    let rtsps = line(&server, "rtsps rtsps://").to_owned();

    let file = format!("https://{page}titles/film.ts");
    let trusted = certificate.certificate.to_str().unwrap();
    let by_file = ["-tls_verify", "1", "-ca_file", trusted, "-i", &file];
    let by_hls = format!("https://{page}titles/film/index.m3u8");
    let by_rtsps = format!("rtsps://{rtsps}film");
    for args in [&by_file[..], &["-i", &by_hls]] {
        let seen = pictures(args);
        assert!(seen == expected, "{args:?}: {} pictures of {}", seen.len(), expected.len());
    }
    // FFmpeg 5.1 does not decode the end of a stream by RTSP: the last picture has no next one that
    // would end it. Without TLS it does the same.
    let plain = pictures(&["-rtsp_transport", "tcp", "-i", &server.title("film")]);
    let seen = pictures(&["-i", &by_rtsps]);
    assert!(seen == plain, "{} pictures, {} without TLS", seen.len(), plain.len());
    assert!(seen.len() + 1 >= expected.len() && expected.starts_with(&seen), "{}", seen.len());
    // RTSP that is tunnelled in HTTPS, at the port of the page.
    let by_tunnel = format!("rtsp://{page}film");
    let seen = pictures(&["-rtsp_transport", "https", "-i", &by_tunnel]);
    assert!(seen == plain, "{} pictures in a tunnel, {} without TLS", seen.len(), plain.len());
    // Rights and log know the viewer's own address, and how it is sent to.
    let mut ended = server.said("ended: film for 127.0.0.1:");
    // A viewer that fetches segments ends when its segments are played.
    ended.retain(|line| !line.contains("no more segments"));
    assert_eq!(ended.len(), 3, "{ended:?}");

    // Every way to HTTP, and the engine's bytes unchanged.
    let expected = std::fs::read(&source).unwrap();
    for version in ["--http1.1", "--http2"] {
        let whole = curl(&certificate.certificate, &[version, "-r", "0-999999", &file]);
        assert!(
            whole.stdout == expected[..1_000_000],
            "{version}: {}",
            String::from_utf8_lossy(&whole.stderr)
        );
    }
    let unknown = Command::new("curl").args(["-s", "--noproxy", "*", &file]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(60), "an unknown certificate is refused by curl");
    assert!(server.interrupt());
}

/// A browser has several requests of one connection answered at once, and several connections.
#[test]
fn segment_viewer_over_many_http2_streams_counts_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 20), &store);
    let certificate = Certificate::at(dir.path());
    for (list, media) in [("media.m3u8", ""), ("cmaf.m3u8", "cmaf/")] {
        let mut server = Server::start(&store, &[&["--max-streams", "1"], &certificate.args()[..]].concat());
        let page = line(&server, "page https://").to_owned();
        let get = |agent: &str, args: &[&str], paths: &[&str]| {
            let urls: Vec<_> = paths.iter().map(|path| format!("https://{page}{path}")).collect();
            let urls = urls.iter().flat_map(|url| [url.as_str(), "-o", "-"]);
            let args: Vec<_> = ["-A", agent, "-w", "%{http_code} "]
                .into_iter()
                .chain(args.iter().copied())
                .chain(urls)
                .collect();
            String::from_utf8_lossy(&curl(&certificate.certificate, &args).stdout).into_owned()
        };
        let addresses = |path: &str| {
            let list = get("tv", &["--http2"], &[path]);
            let lines = list.lines().filter(|line| !line.starts_with('#') && line.contains('/'));
            lines.map(|at| format!("titles/film/{media}{at}")).collect::<Vec<_>>()
        };
        let first = format!("titles/film/{list}");
        let segments = match media {
            "" => addresses(&first),
            _ => addresses(&addresses(&first)[0].replace("film/cmaf/", "film/")),
        };
        let [zero, one, two] = [0, 1, 2].map(|number| segments[number].as_str());
        // Bytes of media stand before each status.
        let statuses = |answer: String, wanted: &str, times: usize| {
            assert_eq!(answer.matches(wanted).count(), times, "{media}: {} bytes", answer.len());
        };
        // More than the tables before a segment, which are in memory.
        let discard = ["-r", "0-18799"];
        let http2 = |more: &[&'static str]| [&["--http2"], &discard[..], more].concat();
        // Streams of one connection at once, then one behind the other on another, then HTTP/1.1.
        statuses(get("tv", &http2(&["--parallel"]), &[zero, zero, zero]), "206 ", 3);
        statuses(get("tv", &http2(&[]), &[one, one]), "206 ", 2);
        statuses(get("tv", &["--http1.1", discard[0], discard[1]], &[two]), "206 ", 1);
        // Another viewer, without a session of its own.
        let bare = zero.split('?').next().expect("an address");
        let refused = get("phone", &["--http2"], &[bare]);
        assert!(
            refused.contains("all 1 streams are in use (--max-streams)") && refused.ends_with("503 "),
            "{media}: {} bytes",
            refused.len()
        );
        let status = get("tv", &["--http2"], &["api/v1/status"]);
        let status: Value =
            serde_json::from_str(status.trim_end_matches(" 200 ").trim_end_matches("200 ")).unwrap();
        assert_eq!(status["sessions"].as_array().unwrap().len(), 1, "{status}");
        assert!(
            status["refusals"].to_string().contains("all 1 streams are in use (--max-streams)"),
            "{status}"
        );
        // Nor was there another for a moment.
        let begun = server.said("by segments");
        assert!(begun.len() == 1 && begun[0].contains("film for 127.0.0.1:"), "{begun:?}");
        assert!(server.interrupt());
    }
}

/// Media beside an encrypted connection would be in the clear, and it would go unnoticed.
#[test]
fn udp_is_refused_by_rtsps_and_the_reason_said() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 2), &store);
    let certificate = Certificate::at(dir.path());
    let mut server = Server::start(&store, &certificate.args());
    let address = line(&server, "rtsps rtsps://").trim_end_matches('/').to_owned();
    let setup = |transport: &str| {
        let mut client = Command::new("timeout")
            .args([LIMIT, "openssl", "s_client", "-quiet", "-connect", &address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl can be started");
        let url = format!("rtsps://{address}/film/track1");
        let request =
            format!("SETUP {url} RTSP/1.0\r\nCSeq: 1\r\nTransport: {transport}\r\nConnection: close\r\n\r\n");
        client.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        String::from_utf8_lossy(&client.wait_with_output().unwrap().stdout).into_owned()
    };
    for transport in ["RTP/AVP;unicast;client_port=5000-5001", "RAW/RAW/UDP;unicast;client_port=5000-5001"] {
        let reply = setup(transport);
        assert!(reply.starts_with("RTSP/1.0 461 ") && reply.contains("not be encrypted"), "{reply}");
    }
    let reply = setup("RTP/AVP;unicast;client_port=5000-5001,RTP/AVP/TCP;unicast;interleaved=0-1");
    assert!(reply.starts_with("RTSP/1.0 200 ") && reply.contains("RTP/AVP/TCP"), "{reply}");
    assert!(server.interrupt());
}

#[test]
fn another_certificate_is_used_without_a_drop_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 20), &store);
    let certificate = Certificate::at(dir.path());
    let old = dir.path().join("old.pem");
    std::fs::copy(&certificate.certificate, &old).unwrap();
    let mut server = Server::start(&store, &certificate.args());
    let page = line(&server, "page https://").to_owned();
    let health = format!("https://{page}healthz");
    let is_trusted = |certificate: &Path| curl(certificate, &[&health]).status.success();
    assert!(is_trusted(&old));
    // One viewer watches all the time: 20 s of a film at its pace.
    let url = format!("rtsps://{}film", line(&server, "rtsps rtsps://"));
    let watching = std::thread::spawn(move || pictures(&["-i", &url]));
    server.wait_for("session", LONG);

    certificate.renew();
    server.wait_for("is used from now on", LONG);
    assert!(is_trusted(&certificate.certificate) && !is_trusted(&old));
    // Broken: the previous one stays, and the server reports it.
    let good = dir.path().join("good.pem");
    std::fs::copy(&certificate.certificate, &good).unwrap();
    std::fs::write(&certificate.certificate, "-----BEGIN CERTIFICATE-----\n").unwrap();
    let said = server.wait_for("stays in use", LONG);
    assert!(said.contains("ERROR") && said.contains("cert.pem"), "{said}");
    assert!(is_trusted(&good));
    // By signal, at once, and no viewer is dropped.
    certificate.renew();
    signal(server.child.id(), "HUP");
    server.wait_for("is used from now on", LONG);
    assert!(is_trusted(&certificate.certificate));
    let seen = watching.join().unwrap();
    assert!(seen.len() >= 400, "{}", seen.len());
    assert!(server.interrupt());
}

#[test]
fn tls_with_200_stalled_handshakes_serves_other_clients() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = film(dir.path(), "film.ts", 2);
    add(&source, &store);
    let certificate = Certificate::at(dir.path());
    let mut server = Server::start(&store, &certificate.args());
    let page = line(&server, "page https://").to_owned();
    let rtsps = line(&server, "rtsps rtsps://").to_owned();
    let stalled: Vec<_> = (0..200)
        .map(|number| {
            let address = if number % 2 == 0 { &page } else { &rtsps };
            let mut stream = TcpStream::connect(address.trim_end_matches('/')).unwrap();
            stream.write_all(&[0x16, 3, 1, 2, 0, 1][..number % 7]).unwrap();
            stream
        })
        .collect();
    let done = curl(&certificate.certificate, &[&format!("https://{page}titles/film.ts")]);
    assert!(done.stdout == std::fs::read(&source).unwrap(), "{}", String::from_utf8_lossy(&done.stderr));
    let seen = pictures(&["-i", &format!("rtsps://{rtsps}film")]);
    assert!(seen.len() >= 40, "{}", seen.len());
    drop(stalled);
    assert!(server.interrupt());
}

#[test]
fn signed_link_over_tls_grants_access_and_bare_url_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 8), &store);
    let certificate = Certificate::at(dir.path());
    let mut server = Server::start(&store, &[&certificate.args()[..], &["--watching", "users"]].concat());
    let (page, rtsps) =
        (line(&server, "page https://").to_owned(), line(&server, "rtsps rtsps://").to_owned());
    // Signed after the start: the key is made with the file.
    let sign = |base: &str| {
        ok(&["user", "sign", "film", "--for", "1h", "--base", base, "--store", store.to_str().unwrap()])
    };
    let hls = sign(&format!("https://{page}"));
    let by_rtsps = sign(&format!("rtsps://{rtsps}"));
    assert!(hls.starts_with("https://") && by_rtsps.starts_with("rtsps://"), "{hls} {by_rtsps}");
    server.wait_for("are known", LONG);
    for url in [hls.trim(), by_rtsps.trim()] {
        assert!(pictures(&["-i", url]).len() >= 150, "{url}");
        let bare = url.split('?').next().unwrap();
        let mut ffmpeg = Command::new("timeout");
        ffmpeg.args([LIMIT, "ffmpeg", "-nostdin", "-v", "error", "-i", bare, "-f", "null", "-"]);
        let refused = ffmpeg.stdin(Stdio::null()).output().unwrap();
        assert!(!refused.status.success(), "{bare}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("401"), "{refused:?}");
    }
    assert!(server.interrupt());
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = Certificate::at(dir.path());
    let [_, cert, _, key] = certificate.args();
    let store = dir.path().join("store");
    let serve = |more: &[&str]| {
        let args =
            ["serve", "--listen", "127.0.0.1:0", "--cache", "32MiB", "--store", store.to_str().unwrap()];
        fails(&[&args[..], more].concat())
    };
    for (more, part) in [
        (&["--tls-certificate", cert][..], "--tls-key"),
        (&["--tls-key", key], "--tls-certificate"),
        (&["--https", "127.0.0.1:0"], "needs a certificate"),
        (&["--rtsps", "127.0.0.1:0"], "needs a certificate"),
        (&["--tls-certificate", key, "--tls-key", key], "contains no certificate"),
        (&["--tls-certificate", cert, "--tls-key", cert], "private key"),
        (&["--tls-certificate", "/none.pem", "--tls-key", key], "No such file"),
    ] {
        let said = serve(more);
        assert!(said.contains(part), "{more:?}: {said}");
    }
}

/// Commands that ask a running server do it by HTTPS, and believe no certificate that they have no reason to.
#[test]
fn commands_ask_by_https_and_check_the_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for name in ["film.ts", "other.ts"] {
        add(&film(dir.path(), name, 2), &store);
    }
    let certificate = Certificate::at(dir.path());
    let mut server = Server::start(&store, &certificate.args());
    let page = format!("https://{}", line(&server, "page https://"));
    let [_, ca, _, key] = certificate.args();
    assert_eq!(ok(&["ls", "--server", &page, "--ca", ca]), ok(&["ls", "--store", store.to_str().unwrap()]));
    assert_eq!(ok(&["rm", "--server", &page, "--ca", ca, "other"]), "removed other\n");
    let top = ok(&["top", "--once", "--server", &page, "--ca", ca]);
    assert!(top.starts_with(&format!("millrace top  {page}\n")), "{top}");
    // Without a file of one's own it is the system's that counts.
    let by_system = |file: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.args(["ls", "--server", &page]).env("SSL_CERT_FILE", file);
        let done = command.output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    assert_eq!(by_system(ca), (true, String::new()));
    let others = tempfile::tempdir().unwrap();
    let other = Certificate::at(others.path());
    let other = other.certificate.to_str().unwrap();
    let (is_done, said) = by_system(other);
    assert!(!is_done && said.contains("not trusted") && said.contains(other), "{said}");
    let plain = server.said("page http://")[0].trim_start_matches("page ").trim().replace("http:", "https:");
    for (args, part) in [
        (&["ls", "--server", &page, "--ca", other][..], "--ca FILE"),
        (&["ls", "--server", &page, "--ca", key], "contains no certificate"),
        (&["ls", "--server", &page, "--ca", "/none.pem"], "No such file"),
        (&["ls", "--server", &plain, "--ca", ca], "write http://"),
        (&["ls", "--ca", ca], "--server"),
    ] {
        let said = fails(args);
        assert!(said.contains(part), "{args:?}: {said}");
    }
    assert!(server.interrupt());
}

/// Between TLS and the rest is a socket pair on this machine: it gives no client the rights of a
/// program on this machine.
#[test]
fn remote_client_over_tls_is_not_treated_as_local() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let certificate = Certificate::at(dir.path());
    let listen = format!("{SERVER_IP}:0");
    let site = Site::new(TwoHosts::new(false).unwrap(), 2, &listen, &certificate.args());
    let page = line(&site.server, "page https://").to_owned();
    let rtsps = line(&site.server, "rtsps rtsps://").trim_end_matches('/').to_owned();
    let status = |version: &str, path: &str, lines: &[&str]| {
        let url = format!("https://{page}{path}");
        let args = [&[version, "-o", "/dev/null", "-w", "%{http_code}"], lines, &[&*url]].concat();
        let done = site.scene.hosts.on_client(|| curl(&certificate.certificate, &args)).unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    for version in ["--http1.1", "--http2"] {
        assert_eq!(status(version, "", &[]), "200");
        assert_eq!(status(version, "titles/film.ts", &[]), "200");
        for path in ["metrics", "api/v1/status"] {
            assert_eq!(status(version, path, &[]), "403", "{version} {path}");
            assert_eq!(status(version, path, &["-H", "Host: localhost"]), "403", "{version} {path}");
        }
    }
    // An RTSP session is of the client's own address.
    let mut client = site
        .scene
        .hosts
        .on_client(|| {
            Command::new("timeout")
                .args([LIMIT, "openssl", "s_client", "-quiet", "-connect", &rtsps])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("openssl can be started")
        })
        .unwrap();
    let request = format!(
        "SETUP rtsps://{rtsps}/film/track1 RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP/TCP;interleaved=0-1\r\n\r\n"
    );
    client.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
    let mut server = site.server;
    let started = server.wait_for("session", LONG);
    assert!(started.contains(CLIENT_IP), "{started}");
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(server.interrupt());
}
