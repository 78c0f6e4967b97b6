//! Live sources that are added and removed while the server runs, and sources with a backup.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use millrace_core::wire::rtp::RtpHeader;
use serde_json::Value;

use super::e2e_live::{DATAGRAM, Sender, Site, TIMEOUT, Viewer, decoded, free_port, pids};
use crate::support::http::{answer, get};
use crate::support::{Server, fails, film, ok};

/// A server with these sources; `to` is where the first one of `news` is sent.
fn site(sources: &[String], to: SocketAddr) -> Site {
    let dir = tempfile::tempdir().unwrap();
    let options: Vec<_> = sources.iter().flat_map(|source| ["--live", source]).collect();
    let server = Server::start(&dir.path().join("store"), &options);
    Site { dir, server, to }
}

/// Sends a film in RTP.
fn rtp_sender(film: &Path, to: SocketAddr) -> Sender {
    Sender::start(film, to, |number, piece, send| {
        let header =
            RtpHeader { marker: false, payload_type: 33, sequence: number as u16, timestamp: 0, ssrc: 7 };
        send(&[&header.emit()[..], piece].concat());
    })
}

/// Whether a TS packet has the mark of a jump of the clock.
fn is_marked(ts: &[u8]) -> bool {
    ts[3] & 0x20 != 0 && ts[4] > 0 && ts[5] & 0x80 != 0
}

/// Reads until a jump is marked. The packet with the mark begins with tables and a key picture. Then reads on; there is no second mark.
fn read_jump(viewer: &mut TcpStream) {
    let mut packet = [0; DATAGRAM];
    let mut read = || {
        viewer.read_exact(&mut packet).unwrap();
        assert!(packet.chunks(188).all(|ts| ts[0] == 0x47));
        (packet.chunks(188).filter(|ts| is_marked(ts)).count(), pids(&packet))
    };
    let pids = loop {
        match read() {
            (0, _) => {}
            (marks, pids) => {
                assert_eq!(marks, 1);
                break pids;
            }
        }
    };
    assert_eq!(pids[..3], [0, 0x1000, 0x100], "decoders can begin here");
    assert_eq!((0..200).map(|_| read().0).sum::<usize>(), 0, "the jump is marked once");
}

#[test]
fn backup_takes_over_with_one_marked_jump_and_the_first_source_comes_back() {
    let (first, backup) = (free_port(), free_port());
    let mut site = site(&[format!("news=udp://{first}"), format!("news=rtp://{backup}")], first);
    assert_eq!((&site.state()["on_air"], &site.state()["state"]), (&"first".into(), &"waiting".into()));
    let film = site.film(100);
    // The first source alone: a backup that comes before it would stand in for it.
    let sender = Sender::plain(&film, first);
    site.server.wait_for(&format!("news (udp://{first}): media comes"), TIMEOUT);
    let _backup = rtp_sender(&film, backup);
    site.until("both come", |site| {
        site.state()["message"] == "media comes; backup: media comes" && site.state()["on_air"] == "first"
    });
    let mut viewer = site.open_http();
    let mut begin = vec![0; 50 * DATAGRAM];
    viewer.read_exact(&mut begin).unwrap();
    assert_eq!((site.counter("takeovers"), site.counter("on_backup")), (0, 0));
    let before = site.counter("discontinuities");
    drop(sender);
    site.server.wait_for(&format!("news (udp://{first}): silent: no media for 3 s"), TIMEOUT);
    site.server.wait_for(&format!("live source news: the backup (rtp://{backup}) is on the air"), TIMEOUT);
    read_jump(&mut viewer);
    let state = site.state();
    assert_eq!((&state["on_air"], &state["state"]), (&"backup".into(), &"running".into()), "{state}");
    let message = state["message"].as_str().unwrap();
    assert!(message.starts_with("on the backup: media comes; first source: silent for "), "{message}");
    assert_eq!((site.counter("takeovers"), site.counter("on_backup")), (1, 1));
    let list = ok(&["live", "--server", &format!("http://{}/", site.server.page())]);
    assert!(list.contains("on the backup: media comes"), "{list}");
    // The first source comes back, from the beginning of its clock.
    let _sender = Sender::plain(&film, first);
    site.server.wait_for(&format!("news: the first source (udp://{first}) is on the air again"), TIMEOUT);
    read_jump(&mut viewer);
    assert_eq!((site.counter("takeovers"), site.counter("on_backup")), (2, 0));
    assert_eq!(site.counter("discontinuities"), before + 2);
    assert_eq!((site.counter("no_room"), &site.state()["viewers"]), (0, &1.into()), "the viewer has stayed");
}

#[test]
fn backup_stands_in_for_what_cannot_be_used_or_fetched() {
    let (first, backup) = (free_port(), free_port());
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // Another server is the backup of the second title.
    let cameras = tempfile::tempdir().unwrap();
    let film = film(cameras.path(), "film.ts", 30);
    crate::support::add(&film, &cameras.path().join("store"));
    let camera = Server::start(&cameras.path().join("store"), &[]);
    let sources = [
        format!("news=udp://{first}"),
        format!("yard=http://viewer:secret@{gone}/stream"),
        format!("news=udp://{backup}"),
        format!("yard=http://{}/titles/film/index.m3u8", camera.page()),
    ];
    let mut site = site(&sources, first);
    let _backup = Sender::plain(&film, backup);
    // RTP where plain datagrams are expected.
    let _first = rtp_sender(&film, first);
    let on_air = |site: &Site, name: &str| {
        let (_, body) =
            get(&mut TcpStream::connect(site.server.page()).unwrap(), &format!("/api/v1/live/{name}"), "");
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    site.until("both backups are on the air", |site| {
        ["news", "yard"].iter().all(|name| on_air(site, name)["on_air"] == "backup")
    });
    let (news, yard) =
        (on_air(&site, "news")["message"].to_string(), on_air(&site, "yard")["message"].to_string());
    assert!(news.contains("first source: cannot use what comes: it is MPEG-TS in RTP"), "{news}");
    assert!(yard.contains("first source: ffprobe: ") && yard.contains("Connection refused"), "{yard}");
    assert_eq!(decoded(&format!("http://{}/live/yard.ts", site.server.page()), &[], 75), (75, String::new()));
    let elsewhere = "X-Forwarded-For: 192.0.2.1\r\n";
    let (_, body) = get(&mut TcpStream::connect(site.server.page()).unwrap(), "/api/v1/live", elsewhere);
    let told = site.server.said("").join("\n") + &yard + &String::from_utf8(body.clone()).unwrap();
    assert!(!told.contains("secret"), "{told}");
    assert!(!String::from_utf8(body).unwrap().contains("refused"), "causes are for operators");
    let third = fails(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
        "--store",
        cameras.path().join("other").to_str().unwrap(),
        "--live",
        &sources[0],
        "--live",
        &sources[2],
        "--live",
        &sources[2],
    ]);
    assert!(third.contains("live source news: got more than 2 URLs"), "{third}");
}

/// Posts a source.
fn post(site: &Site, source: &Value) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(site.server.page()).unwrap();
    let body = source.to_string();
    let head = "POST /api/v1/live HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    answer(&mut stream)
}

/// States of all live titles, by name.
fn states(site: &Site) -> Vec<(String, String)> {
    let (_, body) = get(&mut TcpStream::connect(site.server.page()).unwrap(), "/api/v1/live", "");
    let list = serde_json::from_slice::<Value>(&body).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    list["live"].as_array().unwrap().iter().map(|live| (text(&live["name"]), text(&live["state"]))).collect()
}

#[test]
fn source_is_added_to_a_running_server_and_its_removal_ends_its_viewers() {
    let mut site = Site::without_source();
    let server = format!("http://{}/", site.server.page());
    let url = format!("udp://{}", site.to);
    let added = ok(&["live", "add", "news", &url, "--server", &server]);
    assert!(added.contains("added news"), "{added}");
    let again = fails(&["live", "add", "news", "udp://127.0.0.1:1", "--server", &server]);
    assert!(again.contains("409") && again.contains("another source feeds this live title"), "{again}");
    let used = fails(&["live", "add", "other", &url, "--server", &server]);
    assert!(used.contains("409") && used.contains("ss -ulpn"), "{used}");
    let bad = fails(&["live", "add", "other", "ftp://viewer:secret@host/", "--server", &server]);
    assert!(bad.contains("write udp://ADDR:PORT") && !bad.contains("secret"), "{bad}");
    let bad = serde_json::json!({ "name": "other", "url": "ftp://viewer:secret@host/" });
    let (head, body) = post(&site, &bad);
    let body = String::from_utf8(body).unwrap();
    assert!(head.starts_with("HTTP/1.1 400") && body.contains("write udp://ADDR:PORT"), "{head}{body}");
    assert!(!body.contains("secret"), "{body}");
    let film = site.film(60);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for(&format!("live source news ({url}): media comes"), TIMEOUT);
    let (mut by_http, mut by_rtsp) = (site.open_http(), Viewer::of(&site));
    by_rtsp.play("");
    by_rtsp.rtp();
    site.until("two viewers", |site| site.state()["viewers"] == 2);
    assert_eq!(ok(&["live", "remove", "news", "--server", &server]), "removed news\n");
    let mut rest = Vec::new();
    by_http.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > DATAGRAM && rest.chunks(188).all(|ts| ts[0] == 0x47), "{}", rest.len());
    assert!(by_rtsp.gets_bye(), "the viewer by RTSP is told the end");
    assert_eq!(states(&site), []);
    let gone = fails(&["live", "remove", "news", "--server", &server]);
    assert!(gone.contains("no live source news"), "{gone}");
    // Its port is free at once.
    let source = serde_json::json!({ "name": "news", "url": url });
    let (head, body) = post(&site, &source);
    assert!(head.starts_with("HTTP/1.1 201") && head.contains("/api/v1/live/news"), "{head}");
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["name"], "news");
    site.server.wait_for(&format!("live source news ({url}): media comes"), TIMEOUT);
}

#[test]
fn added_sources_survive_a_restart_and_those_of_the_settings_win() {
    let (dir, set, other, third) = (tempfile::tempdir().unwrap(), free_port(), free_port(), free_port());
    let store = dir.path().join("store");
    let of_settings = format!("news=udp://{set}");
    let server = Server::start(&store, &["--live", &of_settings]);
    let mut site = Site { dir, server, to: set };
    let file = store.join("live.json");
    assert!(!file.exists());
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (name, url, backup) in [
        ("sport", format!("udp://{other}"), Some(format!("rtp://{third}"))),
        ("yard", format!("http://viewer:secret@{gone}/stream?key=secret"), None),
    ] {
        let mut source = serde_json::json!({ "name": name, "url": url });
        if let Some(backup) = backup {
            source["backup"] = backup.into();
        }
        let (head, body) = post(&site, &source);
        let body = String::from_utf8(body).unwrap();
        assert!(head.starts_with("HTTP/1.1 201") && !body.contains("secret"), "{head}{body}");
    }
    site.server.wait_for("live source yard", TIMEOUT);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(site.server.interrupt());
    let checked = ok(&["fsck", "--store", store.to_str().unwrap()]);
    assert!(!checked.contains("live.json"), "{checked}");
    // A kept source that cannot be opened does not keep the server from its start, nor does one that the settings have too.
    let taken = std::net::UdpSocket::bind(third).unwrap();
    let server =
        Server::start(&store, &["--live", &of_settings, "--live", &format!("yard=udp://{}", free_port())]);
    site.server = server;
    let server = format!("http://{}/", site.server.page());
    assert_eq!(site.server.said("live source yard: the one of the settings is used").len(), 1);
    let left_out = site.server.said("live source sport, which was added while the server ran, is left out: ");
    assert!(left_out.len() == 1 && left_out[0].contains("ss -ulpn"), "{left_out:?}");
    let names = |site: &Site| states(site).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&site), ["news", "yard"]);
    for name in ["news", "yard"] {
        let fixed = fails(&["live", "remove", name, "--server", &server]);
        assert!(fixed.contains("409") && fixed.contains("remove it there and restart the server"), "{fixed}");
    }
    drop(taken);
    assert!(site.server.interrupt());
    site.server = Server::start(&store, &["--live", &of_settings]);
    let server = format!("http://{}/", site.server.page());
    assert_eq!(names(&site), ["news", "sport", "yard"]);
    ok(&["live", "remove", "sport", "--server", &server]);
    assert!(site.server.interrupt());
    site.server = Server::start(&store, &[]);
    assert_eq!(names(&site), ["yard"], "what is removed stays so");
    assert!(!site.server.said("").join("\n").contains("secret"));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("viewer:secret@"), "the file has what is needed");
}
