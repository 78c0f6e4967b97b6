//! A real server, real sockets, our own receiver: the received data is the stored data.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Server, film, ok, play};
use millrace_core::time::MediaTicks;
use millrace_lab::proc::wait_for_end_of;
use millrace_load::{Arrivals, LoadOptions, load};
use millrace_offload::hugepage::Touching;

/// A store with one title of `secs` seconds; returns (store, path of its data file).
fn store_with(dir: &std::path::Path, name: &str, secs: u64) -> (std::path::PathBuf, String) {
    let store = dir.join("store");
    let source = film(dir, &format!("{name}.ts"), secs);
    ok(&["add", "--quiet", source.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    std::fs::remove_file(&source).unwrap();
    let list = ok(&["ls", "--json", "--store", store.to_str().unwrap()]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let id = list.as_array().unwrap().iter().find(|t| t["name"] == name).unwrap()["id"].clone();
    let data = format!("{}/titles/{}/data.ts", store.display(), id.as_str().unwrap());
    (store, data)
}

#[test]
fn play_by_udp_and_tcp_delivers_whole_title_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store_with(dir.path(), "film", 6);
    // As it is started by default.
    let mut server = Server::start(&store, &["--engines", "1"]);
    for transport in ["udp", "tcp"] {
        let out = dir.path().join(format!("{transport}.ts"));
        let report = play(&[
            &server.title("film"),
            "--transport",
            transport,
            "-o",
            out.to_str().unwrap(),
            "--verify",
            &data,
        ]);
        assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(&data).unwrap(), "{transport}: {report}");
        assert_eq!(report["sequence"]["lost"], 0, "{transport}: {report}");
        assert_eq!(report["rtp_info_exact"], true, "{transport}: {report}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

#[test]
fn serve_of_folder_includes_files_added_later() {
    let dir = tempfile::tempdir().unwrap();
    let films = dir.path().join("films");
    std::fs::create_dir(&films).unwrap();
    film(&films, "first.ts", 3);
    let old = std::time::SystemTime::now() - Duration::from_secs(60);
    std::fs::File::options().write(true).open(films.join("first.ts")).unwrap().set_modified(old).unwrap();
    let mut server = Server::start(&dir.path().join("store"), &[films.to_str().unwrap()]);
    assert!(!server.said("vlc rtsp://").is_empty(), "what to paste is printed: {:?}", server.log);
    assert_eq!(play(&[&server.title("first"), "-o", "null"])["sequence"]["lost"], 0);
    film(&films, "second.ts", 3);
    server.wait_for("/second", Duration::from_secs(60));
    assert_eq!(play(&[&server.title("second"), "-o", "null"])["sequence"]["lost"], 0);
    assert!(server.interrupt());
}

#[test]
fn serve_output_has_one_line_per_title_and_usage_hint_once() {
    let dir = tempfile::tempdir().unwrap();
    let (films, store) = (dir.path().join("films"), dir.path().join("store"));
    std::fs::create_dir(&films).unwrap();
    let source = film(dir.path(), "source.ts", 2);
    for number in 0..6 {
        std::fs::copy(&source, dir.path().join(format!("known-{number}.ts"))).unwrap();
        support::add(&dir.path().join(format!("known-{number}.ts")), &store);
    }
    // The first by name, but no example of a film.
    let song = dir.path().join("a-song.ts");
    let mut ffmpeg = std::process::Command::new("ffmpeg");
    ffmpeg.args(["-nostdin", "-v", "error", "-f", "lavfi", "-i", "sine=d=2", "-c:a", "mp2"]).arg(&song);
    assert!(ffmpeg.status().expect("ffmpeg can be started").success());
    support::add(&song, &store);
    let old = std::time::SystemTime::now() - Duration::from_secs(60);
    let put = |name: &str, bytes: &[u8]| {
        let path = films.join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    };
    let [new, later] = ["new", "later"].map(|name| std::fs::read(film(dir.path(), name, 2)).unwrap());
    put("new.ts", &new);
    put("broken.ts", b"no film");
    let mut server = Server::start(&store, &[films.to_str().unwrap()]);
    // A line may be read after a later line on the other pipe.
    let said = |server: &mut Server, text: &str, times: usize| {
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while server.said(text).len() < times && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(server.said(text).len(), times, "{text}: {:?}", server.log);
    };
    for number in 0..6 {
        let lines = server.said(&format!("known-{number} "));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("H.264 + AAC"), "{lines:?}");
    }
    for (text, times) in [("ffplay", 2), ("vlc", 1), ("gst-launch", 1), ("8 titles at", 1), ("/new", 1)] {
        said(&mut server, text, times);
    }
    said(&mut server, "broken.ts", 1);
    let example = server.said("for example");
    assert!(example[0].ends_with("for example known-0:"), "{example:?}");
    let new = server.said("/new");
    assert!(new[0].contains("new: new "), "{new:?}");
    // All addresses are one command away, and the server prints this command.
    let how = server.said("millrace ls --urls").pop().unwrap();
    let base = how.rsplit(' ').next().unwrap().to_owned();
    let urls = ok(&["ls", "--urls", &base, "--store", store.to_str().unwrap()]);
    assert_eq!(urls.lines().count(), 8, "{urls}");
    assert!(urls.lines().any(|url| url == server.title("known-3")), "{urls}");
    // A file that fails again for the same reason is named once, and one that arrives later is announced.
    put("broken.ts", b"still no film");
    put("later.ts", &later);
    server.wait_for("/later", Duration::from_secs(30));
    said(&mut server, "broken.ts", 1);
    said(&mut server, "ffplay", 2);
}

#[test]
fn viewers_spread_over_one_title_cause_one_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store_with(dir.path(), "film", 40);
    let bytes = std::fs::metadata(&data).unwrap().len();
    let mut server = Server::start(&store, &["--max-streams", "300", "--share-per-address", "100%"]);
    let memory = |server: &Server| millrace_lab::proc::resident_bytes(server.child.id()).unwrap();
    wait_for_end_of(server.child.id(), Touching::THREAD, Duration::from_secs(60)).unwrap();
    let before = memory(&server);
    let report = load(&viewers(&server, 200, 8), &AtomicBool::new(false), &mut |_| ()).unwrap();
    assert_eq!((report.failed, report.lost, report.lost_at_start), (0, 0, 0), "{report}");
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 24 << 20, "200 viewers took {grown} bytes of memory");
    assert!(server.interrupt());
    let line = server.wait_for("cache: read", Duration::from_secs(5));
    let read: u64 = line.split("read ").nth(1).and_then(|t| t.split(' ').next()).unwrap().parse().unwrap();
    assert!(read <= bytes + bytes / 10 + (1 << 20), "read {read} of a film of {bytes}: {line}");
}

/// Viewers of the title `film`, the first at its beginning, the others evenly spread over half a minute of it.
fn viewers(server: &Server, count: u32, secs: u64) -> LoadOptions {
    let mut options = LoadOptions::new(vec![server.title("film")], count);
    options.arrivals = Arrivals::Ramp(Duration::from_secs(2));
    options.duration = Duration::from_secs(secs);
    options.start_spread = MediaTicks(90_000 * 30);
    options
}

#[test]
fn hostile_connections_disturb_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store_with(dir.path(), "film", 12);
    let mut server = Server::start(&store, &[]);
    let url = server.title("film");
    let addr = server.addr;
    std::thread::scope(|scope| {
        let viewer = scope.spawn(|| play(&[&url, "--transport", "udp", "-o", "null", "--verify", &data]));
        server.wait_for("plays", Duration::from_secs(10));
        // A flood of connections that say nothing.
        let idle: Vec<_> =
            (0..5000).map_while(|_| TcpStream::connect_timeout(&addr, Duration::from_secs(2)).ok()).collect();
        assert!(idle.len() > 500, "only {} connections were taken", idle.len());
        // Garbage, and a header of a million bytes.
        for junk in [b"\x16\x03\x01\x02\x00 hello \xff\xfe\r\n\r\n".repeat(10), {
            let mut request = b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\nX: ".to_vec();
            request.resize(1_000_000, b'a');
            request
        }] {
            if let Ok(mut stream) = TcpStream::connect_timeout(&addr, Duration::from_secs(2)) {
                stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                // The server may close before it has read all: both outcomes of this race are
                // right.
                let _ = stream.write_all(&junk);
                let mut answer = Vec::new();
                let _ = stream.take(4096).read_to_end(&mut answer);
                let answer = String::from_utf8_lossy(&answer);
                assert!(
                    answer.is_empty() || answer.starts_with("RTSP/1.0 4") || answer.starts_with("RTSP/1.0 5"),
                    "{answer}"
                );
            }
        }
        let report = viewer.join().unwrap();
        assert_eq!(report["sequence"]["lost"], 0, "{report}");
        assert!(report["byte_check"]["first_difference"].is_null(), "{report}");
        drop(idle);
    });
}

#[test]
fn killed_while_serving_the_store_is_whole_and_the_next_start_serves() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store_with(dir.path(), "film", 6);
    let mut server = Server::start(&store, &[]);
    let mut viewer = support::millrace()
        .args(["play", &server.title("film"), "-o", "null", "--quiet"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    server.wait_for("plays", Duration::from_secs(10));
    server.child.kill().unwrap();
    viewer.kill().unwrap();
    viewer.wait().unwrap();
    assert!(ok(&["fsck", "--full", "--store", store.to_str().unwrap()]).contains("no problem"));
    let server = Server::start(&store, &[]);
    let report = play(&[&server.title("film"), "-o", "null", "--verify", &data]);
    assert_eq!(report["sequence"]["lost"], 0, "{report}");
}

/// Flips one bit in the middle of a file; where that is.
fn damage(path: &str) -> usize {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, &bytes).unwrap();
    middle
}

#[test]
fn bit_flip_in_media_loses_only_one_packet() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store_with(dir.path(), "damaged", 6);
    let original = dir.path().join("original.ts");
    std::fs::copy(&data, &original).unwrap();
    let packet = damage(&data) / 1316;
    let packets = std::fs::metadata(&data).unwrap().len().div_ceil(1316);
    let mut server = Server::start(&store, &[]);
    for transport in ["udp", "tcp"] {
        let (url, original) = (server.title("damaged"), original.to_str().unwrap());
        let args = ["play", &url, "--transport", transport, "--verify", original, "--stats", "json"];
        let output = support::run(&args);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["packets"], &report["end"]), (&(packets - 1).into(), &"bye".into()), "{report}");
        let sequence = &report["sequence"];
        assert_eq!((&sequence["lost"], &sequence["lost_at_end"]), (&1.into(), &0.into()), "{report}");
        assert_eq!(report["byte_check"]["different_bytes"], 0, "{report}");
        assert_eq!(output.status.code(), Some(1), "one packet is missing: {report}");
    }
    // Logged once, with the place and the cure; and counted.
    let said = server.said("damaged and left out");
    assert_eq!(said.len(), 1, "{said:?}");
    let expected = format!("title damaged: packet {packet} is damaged and left out");
    assert!(said[0].contains(&expected) && said[0].contains(&data) && said[0].contains("fsck"), "{said:?}");
    assert!(server.interrupt());
    let counted = server.said("damaged packets of");
    assert!(counted.len() == 1 && !counted[0].contains(" 0 damaged"), "{counted:?}");
}

/// The records of a packet follow from its bytes, which its CRC proves, and from the index; where the CRC is damaged, they prove the bytes.
#[test]
fn bit_flip_in_packet_records_loses_no_packet() {
    let dir = tempfile::tempdir().unwrap();
    // Each in the middle of a title of its own.
    let titles: Vec<_> = ["meta-1316.mrp", "sums.mrr", "crcs.mrc"]
        .into_iter()
        .map(|file| {
            let name = &file[..4];
            let (store, data) = store_with(dir.path(), name, 6);
            damage(&data.replace("data.ts", file));
            (name, store, data)
        })
        .collect();
    let store = titles[0].1.to_str().unwrap();
    // By UDP packets of 8084 bytes, whose records are derived from both files; by TCP those of the default size.
    let mut server = Server::start(&titles[0].1, &["--packet-sizes", "1316,8084"]);
    std::thread::scope(|scope| {
        for (name, _, data) in &titles {
            let title = server.title(name);
            for (transport, packet_bytes) in [("udp", 8084), ("tcp", 1316)] {
                let title = title.clone();
                scope.spawn(move || {
                    let report = play(&[&title, "--transport", transport, "--verify", data]);
                    let packets = std::fs::metadata(data).unwrap().len().div_ceil(packet_bytes);
                    assert_eq!(
                        (&report["packets"], &report["end"]),
                        (&packets.into(), &"bye".into()),
                        "{report}"
                    );
                    assert_eq!(report["byte_check"]["different_bytes"], 0, "{report}");
                    // From the damaged place on, to the damaged place.
                    let part = ["--transport", transport, "--start", "2s", "--end", "4s", "--verify", data];
                    let report = play(&[&[title.as_str()], &part[..]].concat());
                    let least = packets / 6;
                    assert!(report["packets"].as_u64().is_some_and(|packets| packets > least), "{report}");
                    assert_eq!(report["rtp_info_exact"], true, "{report}");
                    assert_eq!(report["byte_check"]["different_bytes"], 0, "{report}");
                });
            }
        }
    });
    // Logged once for each title in each size; this does not cover CRCs.
    for (name, ..) in &titles {
        let said = server.said(&format!("title {name}: the stored records of"));
        assert!(said.iter().all(|line| line.contains("scrub")), "{said:?}");
        assert_eq!(said.is_empty(), *name == "crcs", "{said:?}");
    }
    assert!(!support::run(&["fsck", "--full", "--store", store]).status.success());
    // All are listed for a scrub. It repairs everything that follows from the media, and reports
    // the rest as lost.
    let end = Instant::now() + Duration::from_secs(20);
    while listed_as_damaged(store).len() < titles.len() {
        assert!(Instant::now() < end, "{:?}", listed_as_damaged(store));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.interrupt());
    assert!(ok(&["ls", "--store", store]).contains("sums is damaged: run millrace scrub"));
    let scrub = support::run(&["scrub", "--quiet", "--store", store]);
    assert_eq!(scrub.status.code(), Some(4), "{scrub:?}");
    assert_eq!(listed_as_damaged(store), ["meta"]);
}

/// Titles that `ls` marks as damaged.
fn listed_as_damaged(store: &str) -> Vec<String> {
    let list: serde_json::Value = serde_json::from_str(&ok(&["ls", "--json", "--store", store])).unwrap();
    let damaged = list.as_array().unwrap().iter().filter(|title| title["damaged"] == true);
    damaged.map(|title| title["name"].as_str().unwrap().to_owned()).collect()
}

/// One bit in the middle of one title is wrong; a viewer plays it, another one plays another title.
#[test]
fn max_damaged_exceeded_ends_title_while_others_play() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store_with(dir.path(), "damaged", 6);
    let (_, whole) = store_with(dir.path(), "whole", 6);
    damage(&data);
    let mut server = Server::start(&store, &["--max-damaged", "0%"]);
    let url = server.title("damaged");
    let mut viewer = support::millrace().args(["play", &url, "-o", "null", "--quiet"]).spawn().unwrap();
    let report = play(&[&server.title("whole"), "-o", "null", "--verify", &whole]);
    assert_eq!(report["sequence"]["lost"], 0, "{report}");
    assert!(report["byte_check"]["first_difference"].is_null(), "{report}");
    // Both lines come in any order: the damaged file, and the viewer that was informed.
    server.wait_for("checksum", Duration::from_secs(20));
    let end = Instant::now() + Duration::from_secs(10);
    while server.said("media cannot be read").iter().all(|line| !line.contains("damaged for")) {
        assert!(Instant::now() < end, "no line names title and viewer: {}", server.log.join("\n"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let folder = std::path::Path::new(&data).parent().unwrap().to_str().unwrap();
    assert!(!server.said(folder).is_empty(), "no line names the place: {}", server.log.join("\n"));
    // It was cut off, and reports it.
    assert_eq!(viewer.wait().unwrap().code(), Some(3));
    assert!(server.interrupt());
    assert!(!support::run(&["fsck", "--full", "--store", store.to_str().unwrap()]).status.success());
}

#[test]
fn viewers_are_told_when_the_server_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store_with(dir.path(), "film", 30);
    let mut server = Server::start(&store, &[]);
    let url = server.title("film");
    let viewer = support::millrace()
        .args(["play", &url, "--transport", "udp", "-o", "null", "--stats", "json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for("plays", Duration::from_secs(10));
    // Some film has to come before there is something to end.
    std::thread::sleep(Duration::from_secs(1));
    assert!(server.interrupt(), "{:?}", server.log);
    let output = viewer.wait_with_output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // The connection is closed right behind it; which of the two the viewer takes for the end is its business.
    assert!(!report["bye"].is_null(), "no BYE: {report}");
    assert_eq!(report["sequence"]["lost"], 0, "{report}");
    let ended = server.said("ended: film");
    assert!(ended.iter().any(|line| !line.contains(" 0 packets")), "totals at the end: {ended:?}");
}

#[test]
fn serve_of_empty_folder_reports_no_titles_and_returns_404() {
    let dir = tempfile::tempdir().unwrap();
    let films = dir.path().join("films");
    std::fs::create_dir(&films).unwrap();
    let mut server = Server::start(&dir.path().join("store"), &[films.to_str().unwrap()]);
    let said = format!("no titles yet; put films into {}", films.display());
    assert!(!server.said(&said).is_empty(), "{:?}", server.log);
    let error = support::fails(&["play", &server.title("film"), "-o", "null"]);
    assert!(error.contains("404"), "{error}");
    assert!(server.interrupt());
    // A film that is still being copied.
    film(&films, "film.ts", 1);
    let args = [films.to_str().unwrap(), "--settle", "1h"];
    let mut server = Server::start(&dir.path().join("store"), &args);
    let said = "no titles yet; 1 file still arriving, added when unchanged for 3600s";
    assert!(!server.said(said).is_empty(), "{:?}", server.log);
    assert!(server.interrupt());
}

/// Sends a request that must succeed; returns the head of the reply.
fn ask(control: &mut TcpStream, request: &str) -> String {
    control.write_all(request.as_bytes()).unwrap();
    let reply = support::read_head(control);
    assert!(reply.starts_with("RTSP/1.0 200 "), "{request}{reply}");
    reply
}

/// Sets a title up and plays it; returns the head of the reply to SETUP.
fn set_up_and_play(control: &mut TcpStream, url: &str, transport: &str) -> String {
    control.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let reply = ask(control, &format!("SETUP {url} RTSP/1.0\r\nCSeq: 1\r\nTransport: {transport}\r\n\r\n"));
    let session = support::header(&reply, "Session").and_then(|line| line.split(';').next()).unwrap();
    ask(control, &format!("PLAY {url} RTSP/1.0\r\nCSeq: 2\r\nSession: {session}\r\n\r\n"));
    reply
}

/// A client behind NAT or a firewall receives only packets from the address that it called, whatever
/// the address of the route back.
#[test]
fn media_by_udp_comes_from_the_address_of_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store_with(dir.path(), "film", 3);
    let mut command = support::millrace();
    command.args(["serve", "--listen", "0.0.0.0:0", "--cache", "32MiB", "--store"]).arg(&store);
    let mut server = Server::spawn(command);
    for called in ["127.0.1.1", "127.0.0.1", "127.9.9.9"] {
        let media = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        media.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let port = media.local_addr().unwrap().port();
        let url = format!("rtsp://{called}:{}/film", server.addr.port());
        let mut control = TcpStream::connect((called, server.addr.port())).unwrap();
        assert_eq!(control.local_addr().unwrap().ip().to_string(), "127.0.0.1", "the route back");
        // It has one port, so no report goes to a port of another program.
        let transport = format!("RAW/RAW/UDP;unicast;client_port={port}");
        let reply = set_up_and_play(&mut control, &url, &transport);
        let transport = support::header(&reply, "Transport").unwrap();
        assert!(transport.contains(&format!(";source={called};")), "{transport}");
        for _ in 0..20 {
            let (_, from) = media.recv_from(&mut [0; 2048]).unwrap();
            assert_eq!(from.ip().to_string(), called);
        }
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

#[test]
fn raw_udp_receiver_gets_file_bytes_without_headers() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store_with(dir.path(), "film", 3);
    let mut server = Server::start(&store, &[]);
    let media = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&media, 1 << 20).unwrap();
    media.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (url, port) = (server.title("film"), media.local_addr().unwrap().port());
    let mut control = TcpStream::connect(server.addr).unwrap();
    let transport = format!("RAW/RAW/UDP;unicast;client_port={port}-{}", port.wrapping_add(1));
    let reply = set_up_and_play(&mut control, &url, &transport);
    assert!(
        reply.contains(&format!("Transport: RAW/RAW/UDP;unicast;client_port={port};server_port=")),
        "{reply}"
    );
    let wanted = std::fs::read(&data).unwrap();
    let (mut got, mut datagram) = (Vec::new(), [0; 2048]);
    while got.len() < wanted.len() {
        let count = media.recv(&mut datagram).unwrap();
        assert_eq!(count, 1316.min(wanted.len() - got.len()));
        got.extend_from_slice(&datagram[..count]);
    }
    assert!(got == wanted);
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

/// Starts a viewer by TCP with a small receive buffer that never reads the data.
fn viewer_who_does_not_read(addr: std::net::SocketAddr, url: &str) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&fd, 16 * 1024).unwrap();
    connect(&fd, &addr).unwrap();
    let mut stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let setup =
        format!("SETUP {url} RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n\r\n");
    stream.write_all(setup.as_bytes()).unwrap();
    let mut reply = [0; 2048];
    let length = stream.read(&mut reply).unwrap();
    let reply = String::from_utf8_lossy(&reply[..length]).into_owned();
    let session =
        reply.split("Session: ").nth(1).and_then(|t| t.split([';', '\r']).next()).expect("a session");
    write!(stream, "PLAY {url} RTSP/1.0\r\nCSeq: 2\r\nSession: {session}\r\n\r\n").unwrap();
    stream
}

#[test]
fn slow_reader_over_tcp_is_dropped_without_affecting_others() {
    let dir = tempfile::tempdir().unwrap();
    let (store, data) = store_with(dir.path(), "film", 25);
    let mut server = Server::start(&store, &[]);
    let url = server.title("film");
    let lazy = viewer_who_does_not_read(server.addr, &url);
    let report = play(&[&url, "--transport", "tcp", "-o", "null", "--verify", &data]);
    assert_eq!(report["sequence"]["lost"], 0, "{report}");
    assert!(report["byte_check"]["first_difference"].is_null(), "{report}");
    assert_eq!(report["end"], "bye", "{report}");
    let line = server.wait_for("slower than the title plays", Duration::from_secs(20));
    assert!(line.contains("film"), "{line}");
    drop(lazy);
    assert!(server.interrupt());
}
