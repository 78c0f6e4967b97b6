//! Titles uploaded to a running server: a real film by curl, byte for byte; interrupted and
//! resumed; the server killed in the middle; a full disk; files that are no film; viewers beside
//! it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::real_disks::{Tmpfs, missing, until};
use crate::support::{Server, add, film, header, ok, play, read_head};

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn site(store: &Path, args: &[&str]) -> (Server, SocketAddr) {
    let server = Server::start(store, args);
    let page = server.page();
    (server, page)
}

/// Runs curl; returns its output, and the output of `-w`.
fn curl(args: &[&str]) -> (Vec<u8>, String) {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--show-error",
        "--max-time",
        "60",
        "--noproxy",
        "*",
        "-w",
        "%{stderr}%{http_code}",
    ]);
    let output = command.args(args).stdin(Stdio::null()).output().expect("curl can be started");
    (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Uploads a file with curl; returns the status and the message.
fn upload(address: SocketAddr, name: &str, file: &Path, more: &[&str]) -> (String, String) {
    let url = format!("http://{address}/titles/{name}");
    let (body, status) = curl(&[&["-T", file.to_str().unwrap(), &url], more].concat());
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// Begins an upload of a file, and sends this many bytes of it.
fn begin(address: SocketAddr, name: &str, film: &[u8], bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(
        stream,
        "PUT /titles/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        film.len()
    )
    .unwrap();
    stream.write_all(&film[..bytes]).unwrap();
    until("the bytes have come", LIMIT, || offset(address, name) == Some(bytes));
    stream
}

/// How far an upload is.
fn offset(address: SocketAddr, name: &str) -> Option<usize> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "HEAD /titles/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    header(&read_head(&mut stream), "Upload-Offset").map(|offset| offset.parse().unwrap())
}

/// The title as a file, which comes at its pace.
fn file(address: SocketAddr, name: &str) -> Vec<u8> {
    curl(&[&format!("http://{address}/titles/{name}.ts")]).0
}

fn is_tidy(store: &Path) {
    let said = ok(&["fsck", "--full", "--store", store.to_str().unwrap()]);
    assert!(said.contains("no problem"), "{said}");
}

/// Returns the number of entries below `tmp` of a store.
fn unfinished(store: &Path) -> usize {
    std::fs::read_dir(store.join("tmp")).unwrap().count()
}

#[test]
fn upload_of_media_file_creates_identical_title() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = film(dir.path(), "new.ts", 8);
    let bytes = std::fs::read(&source).unwrap();
    let (mut server, address) = site(&store, &[]);
    let (status, said) = upload(address, "", &source, &[]);
    assert_eq!(status, "201", "{said}");
    let title: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&title["name"], title["bytes"].as_u64()), (&"new".into(), Some(bytes.len() as u64)));
    assert!(file(address, "new") == bytes, "other bytes");
    let (_, playlist) = curl(&["-o", "/dev/null", &format!("http://{address}/titles/new/index.m3u8")]);
    assert_eq!(playlist, "200");
    let out = dir.path().join("played.ts");
    play(&[&server.title("new"), "-o", out.to_str().unwrap()]);
    assert!(std::fs::read(&out).unwrap() == bytes, "other bytes by RTSP");
    // The title exists, so no other upload gets its name or leaves anything behind.
    assert_eq!(upload(address, "new", &source, &[]).0, "409");
    // By HTTP/2, and without a length.
    assert_eq!(upload(address, "new2", &source, &["--http2-prior-knowledge"]).0, "201");
    assert_eq!(upload(address, "new3", &source, &["-H", "Transfer-Encoding: chunked"]).0, "201");
    // Cut off, and gone on with.
    drop(begin(address, "new4", &bytes, 1_000_003));
    let resumed = || upload(address, "new4", &source, &["-C", "1000003"]).0;
    until("the lost connection is noticed", LIMIT, || {
        let status = resumed();
        assert!(status == "409" || status == "201", "{status}");
        status == "201"
    });
    assert!(file(address, "new4") == bytes);
    assert!(server.interrupt());
    is_tidy(&store);
    let list = ok(&["ls", "--json", "--store", store.to_str().unwrap()]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let hashes: Vec<_> = list.as_array().unwrap().iter().map(|title| &title["blake3"]).collect();
    assert!(hashes.len() == 4 && hashes.iter().all(|hash| *hash == hashes[0]), "{list}");
}

#[test]
fn upload_that_replaces_a_title_keeps_its_name_and_display_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let (old, new) = (film(dir.path(), "old.ts", 3), film(dir.path(), "new.ts", 5));
    let (old_bytes, new_bytes) = (std::fs::read(&old).unwrap(), std::fs::read(&new).unwrap());
    let (mut server, address) = site(&store, &[]);
    assert_eq!(upload(address, "film", &old, &[]).0, "201");
    let id = described(address, "film")["id"].as_str().unwrap().to_owned();
    ok(&["title", "film", "War and Peace", "--store", store.to_str().unwrap()]);
    until("the display name is seen", LIMIT, || described(address, "film")["title"] == "War and Peace");
    // One that breaks off takes nothing away.
    let name = format!("film?replace={id}");
    drop(begin(address, &name, &new_bytes, 300_000));
    assert!(file(address, "film") == old_bytes);
    until("the lost connection is noticed", LIMIT, || {
        let (status, said) = upload(address, &name, &new, &["-C", "300000"]);
        assert!(status == "409" || status == "201", "{status} {said}");
        status == "201"
    });
    assert!(file(address, "film") == new_bytes);
    let now = described(address, "film");
    assert_eq!((&now["title"], &now["renditions"]), (&"War and Peace".into(), &serde_json::json!([])));
    assert_ne!(now["id"], *id);
    // The same request again names a title that is gone.
    assert_eq!(upload(address, &name, &new, &[]).0, "412");
    assert!(server.interrupt());
    is_tidy(&store);
    let list: serde_json::Value =
        serde_json::from_str(&ok(&["ls", "--json", "--store", store.to_str().unwrap()])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
}

#[test]
fn upload_of_non_media_file_is_refused_with_ingest_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let (mut server, address) = site(&store, &[]);
    let source = film(dir.path(), "a.ts", 4);
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    // Packets without tables.
    let packets: Vec<u8> =
        (0..4000).flat_map(|_| [&[0x47, 0x1f, 0xff, 0x10][..], &[0xff; 184]].concat()).collect();
    for (path, status, part) in [
        (write("text", &b"once upon a time ".repeat(100_000)), "415", "begins like text"),
        (
            write("cut.mkv", &[&b"\x1a\x45\xdf\xa3"[..], &[0; 300_000]].concat()),
            "415",
            "not a readable media file",
        ),
        (write("nulls.ts", &packets), "422", "PAT"),
        (write("one", b"x"), "415", "not a readable media file"),
    ] {
        let (found, said) = upload(address, "film", &path, &[]);
        assert!(found == status && said.contains(part), "{}: {found} {said}", path.display());
        assert_eq!(unfinished(&store), 0, "{}", path.display());
    }
    assert_eq!(upload(address, "film", &source, &[]).0, "201", "the name is still free");
    assert!(server.interrupt());
    is_tidy(&store);
}

/// The film in another container.
fn remuxed(source: &Path, name: &str, args: &[&str]) -> PathBuf {
    let path = source.with_file_name(name);
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-nostdin", "-i"]).arg(source).args(["-c", "copy"]).args(args).arg(&path);
    assert!(ffmpeg.status().expect("ffmpeg can be started").success());
    path
}

/// The title as the API describes it.
fn described(address: SocketAddr, name: &str) -> serde_json::Value {
    let (body, status) = curl(&[&format!("http://{address}/api/v1/titles/{name}")]);
    assert_eq!(status, "200", "{name}");
    serde_json::from_slice(&body).unwrap()
}

#[test]
fn upload_of_a_container_becomes_a_title_with_the_name_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let (mut server, address) = site(&store, &[]);
    let source = film(dir.path(), "a.ts", 4);
    let mkv = remuxed(&source, "Ein F\u{f6}hn.mkv", &[]);
    // Its tables are at its end: nothing of it can be read before all of it has come.
    let mp4 = remuxed(&source, "b.mp4", &["-metadata", "title=The Tagged Film"]);
    let named = "Content-Disposition: attachment; filename*=UTF-8''Ein%20F%C3%B6hn.mkv";
    let (status, said) = upload(address, "foehn", &mkv, &["-H", named]);
    assert_eq!(status, "201", "{said}");
    let (status, said) = upload(address, "", &mp4, &[]);
    assert_eq!(status, "201", "{said}");
    for (name, title) in [("foehn", "Ein F\u{f6}hn"), ("b", "The Tagged Film")] {
        let about = described(address, name);
        assert_eq!(about["title"], title, "{about}");
        let out = dir.path().join(name).with_extension("ts");
        play(&[&server.title(name), "-o", out.to_str().unwrap()]);
        assert!(std::fs::read(&out).unwrap() == file(address, name), "{name}: other bytes by RTSP");
    }
    assert_eq!(unfinished(&store), 0);
    // The client that shows progress does the same.
    let page = format!("http://{address}/");
    let said = ok(&["add", "--name", "Zweiter F\u{f6}hn", mkv.to_str().unwrap(), "--server", &page]);
    assert!(said.contains("zweiter-foehn"), "{said}");
    assert_eq!(described(address, "zweiter-foehn")["title"], "Zweiter F\u{f6}hn");
    assert!(server.interrupt());
    is_tidy(&store);
}

#[test]
fn upload_when_server_is_killed_is_discarded_without_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = film(dir.path(), "new.ts", 20);
    add(&film(dir.path(), "old.ts", 2), &store);
    let bytes = std::fs::read(&source).unwrap();
    let (mut server, address) = site(&store, &[]);
    let _stream = begin(address, "new", &bytes, bytes.len() - 100_000);
    assert_eq!(unfinished(&store), 1);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    // The check finds the upload that no process works on any more, and the next open removes it.
    let (mut server, address) = site(&store, &[]);
    assert_eq!((offset(address, "new"), unfinished(&store)), (None, 0));
    is_tidy(&store);
    // A client that continues it is asked to start over.
    assert_eq!(upload(address, "new", &source, &["-C", "1000"]).0, "409");
    assert_eq!(upload(address, "new", &source, &[]).0, "201");
    // A server that is ordered to end gives up the uploads under way.
    let _stream = begin(address, "other", &bytes, 1_000_000);
    assert!(server.interrupt());
    assert_eq!(unfinished(&store), 0);
    is_tidy(&store);
}

#[test]
fn upload_to_full_disk_returns_507_and_leaves_nothing() {
    if let Some(why) = missing(&["mount", "umount"]) {
        eprintln!("skipped: mounting a tmpfs needs root: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Tmpfs::mount(&dir.path().join("disk"), "8m");
    let store = disk.at.join("store");
    let (small, large) = (film(dir.path(), "small.ts", 6), film(dir.path(), "large.ts", 40));
    let bytes = std::fs::read(&small).unwrap();
    let (mut server, address) = site(&store, &[]);
    assert_eq!(upload(address, "small", &small, &[]).0, "201");
    for (more, how) in
        [(&[][..], "its length is known"), (&["-H", "Transfer-Encoding: chunked"][..], "it is not")]
    {
        for _ in 0..2 {
            let (status, said) = upload(address, "large", &large, more);
            assert!(status.starts_with("507") || status.ends_with("507"), "{how}: {status} {said}");
            until("nothing is left of it", LIMIT, || unfinished(&store) == 0);
        }
    }
    assert!(file(address, "small") == bytes, "viewers are not concerned");
    assert_eq!(upload(address, "small2", &small, &[]).0, "201", "what was taken is free again");
    assert!(server.interrupt());
    is_tidy(&store);
}

/// Viewers receive everything while films are uploaded, and the films are complete.
#[test]
fn viewers_and_uploads_beside_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let (old, new) = (film(dir.path(), "old.ts", 6), film(dir.path(), "new.ts", 60));
    add(&old, &store);
    let (mut server, address) = site(&store, &["--upload-rate", "200Mb/s"]);
    let url = server.title("old");
    let viewers: Vec<_> = (0..3)
        .map(|number| {
            let (out, url) = (dir.path().join(format!("played-{number}")), url.clone());
            std::thread::spawn(move || {
                play(&[&url, "-o", out.to_str().unwrap()]);
                std::fs::read(out).unwrap()
            })
        })
        .collect();
    let uploads: Vec<_> = (0..3)
        .map(|number| {
            let new = new.clone();
            std::thread::spawn(move || upload(address, &format!("new-{number}"), &new, &[]).0)
        })
        .collect();
    let old = std::fs::read(old).unwrap();
    for viewer in viewers {
        assert!(viewer.join().unwrap() == old, "a viewer did not get everything");
    }
    for upload in uploads {
        assert_eq!(upload.join().unwrap(), "201");
    }
    let mut page = TcpStream::connect(address).unwrap();
    write!(page, "GET /api/v1/uploads HTTP/1.0\r\n\r\n").unwrap();
    let mut list = String::new();
    page.read_to_string(&mut list).unwrap();
    assert!(list.contains("\"uploads\":[]"), "{list}");
    assert!(server.interrupt());
    is_tidy(&store);
}
