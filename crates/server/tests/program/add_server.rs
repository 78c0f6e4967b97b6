//! `millrace add --server`: files uploaded to a running server, byte for byte; a connection that
//! breaks, a client that is killed or ordered to stop, a server that is restarted; and uploads that
//! a server refuses.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support;
use crate::support::certificate::{Certificate, line};
use crate::support::real_disks::{Tmpfs, missing, until};
use crate::support::{Server, add, fails, film, millrace, ok, run, signal};
use serde_json::Value;

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

struct Site {
    server: Server,
    page: String,
    address: SocketAddr,
    store: PathBuf,
    stats: PathBuf,
}

impl Site {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let (store, stats) = (dir.join("store"), dir.join("stats.json"));
        let server = Server::start(&store, &[args, &["--stats", stats.to_str().unwrap()]].concat());
        let address = server.page();
        Self { server, page: format!("http://{address}/"), address, store, stats }
    }

    /// Bytes of uploads that have come, in all, once that many have.
    fn upload_bytes(&self, expected: u64) -> u64 {
        let count = || {
            let counters = millrace_lab::held::counters(&self.stats).ok()?;
            counters["web"]["upload_bytes"].as_u64()
        };
        until("the counters are written", LIMIT, || count() >= Some(expected));
        count().unwrap()
    }

    /// How far an upload is.
    fn received(&self, name: &str) -> Option<u64> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(stream, "HEAD /titles/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        support::header(&support::read_head(&mut stream), "Upload-Offset").map(|at| at.parse().unwrap())
    }

    /// Returns the store's record of a title.
    fn title(&self, name: &str) -> Value {
        let list: Value =
            serde_json::from_str(&ok(&["ls", "--json", "--store", self.store.to_str().unwrap()])).unwrap();
        list.as_array().unwrap().iter().find(|title| title["name"] == name).cloned().unwrap_or(Value::Null)
    }

    /// The file of a title as it lies in the store.
    fn stored(&self, name: &str) -> Vec<u8> {
        let id = self.title(name)["id"].as_str().expect("the title is there").to_owned();
        let dir = self.store.join("titles").join(id);
        let mut files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        let data = files.find(|path| path.extension().is_some_and(|ext| ext == "ts"));
        std::fs::read(data.expect("a transport stream")).unwrap()
    }
}

/// A client that is running.
fn begin(file: &Path, page: &str, args: &[&str]) -> Child {
    let mut command = millrace();
    command.args(["add", file.to_str().unwrap(), "--server", page]).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn is_tidy(store: &Path) {
    let said = ok(&["fsck", "--full", "--store", store.to_str().unwrap()]);
    assert!(said.contains("no problem"), "{said}");
}

#[test]
fn upload_of_file_creates_same_title_as_local_add() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::start(dir.path(), &[]);
    let (first, second) = (film(dir.path(), "One Film.ts", 6), film(dir.path(), "other.ts", 3));
    let said = ok(&["add", first.to_str().unwrap(), second.to_str().unwrap(), "--server", &site.page]);
    assert!(said.contains("added one-film  ") && said.contains("added other  "), "{said}");
    let json = ok(&["add", "--json", "--name", "again", first.to_str().unwrap(), "--server", &site.page]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let length = std::fs::metadata(&first).unwrap().len();
    assert_eq!((&json["name"], json["bytes"].as_u64()), (&"again".into(), Some(length)));
    assert!(site.stored("one-film") == std::fs::read(&first).unwrap(), "other bytes");
    let local = dir.path().join("local");
    add(&first, &local);
    let local: Value =
        serde_json::from_str(&ok(&["ls", "--json", "--store", local.to_str().unwrap()])).unwrap();
    let uploaded = site.title("one-film");
    for what in ["blake3", "bytes", "duration_s", "mean_bits_per_s", "peak_bits_per_s", "streams"] {
        assert_eq!(uploaded[what], local[0][what], "{what}");
        assert!(!local[0][what].is_null(), "{what}: {local}");
    }
    assert!(site.server.interrupt());
    is_tidy(&site.store);
}

/// Forwards the data for the server. Once, it stops forwarding a connection after this number of
/// bytes and cuts it when [`Self::is_let_go`] is set. It cuts the next connection before a byte has
/// come.
struct Proxy {
    page: String,
    address: SocketAddr,
    cuts: Arc<AtomicU64>,
    is_let_go: Arc<AtomicBool>,
}

impl Proxy {
    fn start(to: SocketAddr, cut_at: u64, is_let_go: bool) -> Self {
        Self::start_hiding(to, cut_at, is_let_go, u64::MAX)
    }

    /// As [`Self::start`]; cuts each connection instead of passing on an answer to more than
    /// `hide_from` bytes.
    fn start_hiding(to: SocketAddr, cut_at: u64, is_let_go: bool, hide_from: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let page = format!("http://{address}/");
        let (cuts, is_let_go) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(is_let_go)));
        let (counted, let_go) = (Arc::clone(&cuts), Arc::clone(&is_let_go));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if counted.compare_exchange(1, 2, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    continue;
                }
                let server = TcpStream::connect(to).unwrap();
                let (back, client_back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let passed = Arc::new(AtomicU64::new(0));
                let seen = Arc::clone(&passed);
                std::thread::spawn(move || pass_back(back, client_back, &seen, hide_from));
                let (cuts, let_go) = (Arc::clone(&counted), Arc::clone(&let_go));
                std::thread::spawn(move || pass_on(client, server, cut_at, &passed, &cuts, &let_go));
            }
        });
        Self { page, address, cuts, is_let_go }
    }

    fn let_go(&self) {
        self.is_let_go.store(true, Ordering::Relaxed);
    }
}

fn pass_back(mut server: TcpStream, mut client: TcpStream, passed: &AtomicU64, hide_from: u64) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = server.read(&mut bytes) {
        if passed.load(Ordering::Relaxed) > hide_from {
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
            return;
        }
        if client.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Write);
}

fn pass_on(
    mut client: TcpStream,
    mut server: TcpStream,
    cut_at: u64,
    passed: &AtomicU64,
    cuts: &AtomicU64,
    let_go: &AtomicBool,
) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        // Before they are written: the answer to them must find the sum.
        let sum = passed.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        if server.write_all(&bytes[..count]).is_err() {
            break;
        }
        if sum >= cut_at && cuts.fetch_add(1, Ordering::Relaxed) == 0 {
            until("it is cut", LIMIT, || let_go.load(Ordering::Relaxed));
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

/// Where a server takes connections by HTTPS.
fn https(site: &Site) -> SocketAddr {
    line(&site.server, "page https://").trim_end_matches('/').parse().unwrap()
}

#[test]
fn upload_over_broken_connections_resumes_without_resending() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = Certificate::at(dir.path());
    let site = Site::start(dir.path(), &certificate.args());
    let source = film(dir.path(), "film.ts", 20);
    let length = std::fs::metadata(&source).unwrap().len();
    let [_, ca, ..] = certificate.args();
    let ways = [("http", site.address, &[][..]), ("https", https(&site), &["--ca", ca])];
    for (number, (scheme, to, args)) in ways.into_iter().enumerate() {
        let proxy = Proxy::start(to, 1_500_000, true);
        let page = format!("{scheme}://{}/", proxy.address);
        let done = begin(&source, &page, &[args, &["--name", scheme]].concat()).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{scheme}: {said}");
        // Once in the middle, once before it was gone on.
        assert!(proxy.cuts.load(Ordering::Relaxed) >= 2 && said.contains("trying again"), "{scheme}: {said}");
        assert!(site.stored(scheme) == std::fs::read(&source).unwrap(), "{scheme}: other bytes");
        let all = (number as u64 + 1) * length;
        assert_eq!(site.upload_bytes(all), all, "{scheme}: bytes that were there came again");
    }
}

/// The file is sent once, although the response with the cause never comes.
#[test]
fn failed_conversion_behind_broken_connection_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), &[]);
    let source = dir.path().join("film.mkv");
    // Matroska by its first bytes; the rest cannot be converted.
    let mut bytes = vec![0x1a, 0x45, 0xdf, 0xa3];
    bytes.resize(2_000_000, 0x55);
    std::fs::write(&source, &bytes).unwrap();
    let proxy = Proxy::start_hiding(site.address, u64::MAX, true, bytes.len() as u64);
    let done = begin(&source, &proxy.page, &[]).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("trying again"), "{said}");
    assert!(said.contains("the upload became no title: "), "{said}");
    assert!(said.contains("not a readable media file"), "{said}");
    assert!(!said.contains("from the beginning"), "{said}");
    // The record does not stand in the way of another file of this name.
    let film = film(dir.path(), "film.ts", 4);
    ok(&["add", film.to_str().unwrap(), "--server", &site.page]);
    let once = bytes.len() as u64 + std::fs::metadata(&film).unwrap().len();
    assert_eq!(site.upload_bytes(once), once, "the file came again");
}

/// Not one byte goes to an untrusted server, at the beginning or in the middle.
#[test]
fn upload_to_server_with_untrusted_certificate_is_aborted() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = Certificate::at(dir.path());
    certificate.renew_for(&["tv.example"]);
    let ca = dir.path().join("ca.pem");
    std::fs::copy(&certificate.certificate, &ca).unwrap();
    let ca = ca.to_str().unwrap();
    let mut site = Site::start(dir.path(), &certificate.args());
    let source = film(dir.path(), "film.ts", 16);
    let file = source.to_str().unwrap();
    let secure = format!("https://{}/", https(&site));
    let elsewhere = tempfile::tempdir().unwrap();
    let others = Certificate::at(elsewhere.path());
    let [_, other, ..] = others.args();
    for (page, args, part) in [
        (&secure, &["--ca", other][..], "not trusted"),
        (&secure, &[], "--ca FILE"),
        (&secure, &["--ca", ca], "is for tv.example, not for 127.0.0.1"),
        (&secure.replace("https:", "http:"), &[], "https://"),
        (&site.page.replace("http:", "https:"), &["--ca", ca], "write http://"),
    ] {
        let said = fails(&[&["add", file, "--server", page], args].concat());
        assert!(said.contains(part), "{page} {args:?}: {said}");
        assert_eq!(site.received("film"), None, "{page} {args:?}");
    }
    let renew = |site: &mut Site| {
        certificate.renew();
        signal(site.server.child.id(), "HUP");
        site.server.wait_for("is used from now on", LIMIT);
    };
    renew(&mut site);
    std::fs::copy(&certificate.certificate, ca).unwrap();
    let proxy = Proxy::start(https(&site), 1_500_000, false);
    let client = begin(&source, &format!("https://{}/", proxy.address), &["--ca", ca]);
    until("some of it is there", LIMIT, || site.received("film") > Some(1_400_000));
    renew(&mut site);
    proxy.let_go();
    let done = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && said.contains("not trusted"), "{said}");
    // The bytes received earlier stay for a client that trusts the server.
    let [_, ca, ..] = certificate.args();
    ok(&["add", file, "--server", &secure, "--ca", ca]);
    let expected = std::fs::read(&source).unwrap();
    assert!(site.stored("film") == expected, "other bytes");
    assert_eq!(site.upload_bytes(expected.len() as u64), expected.len() as u64, "bytes came again");
}

/// What `add --server` does, by a client that anybody has, in both versions of HTTP.
#[test]
fn curl_goes_on_by_https_and_only_with_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = Certificate::at(dir.path());
    let site = Site::start(dir.path(), &certificate.args());
    let (source, other) = (film(dir.path(), "film.ts", 16), dir.path().join("other.ts"));
    let expected = std::fs::read(&source).unwrap();
    for (number, (option, version)) in [("--http1.1", "1.1"), ("--http2", "2")].into_iter().enumerate() {
        let name = format!("film{number}");
        let upload = |file: &Path, at: SocketAddr, args: &[&str]| {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*", "-o", "/dev/null"]);
            curl.args([option, "-w", "%{http_version} %{http_code}", "--cacert"])
                .arg(&certificate.certificate);
            curl.arg("-T").arg(file).args(args).arg(format!("https://{at}/titles/{name}"));
            let done = curl.output().expect("curl can be started");
            (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
        };
        let proxy = Proxy::start(https(&site), 1_500_000, true);
        let (is_done, said) = upload(&source, proxy.address, &[]);
        assert!(!is_done, "{said}");
        // Another file differs in the last byte that the server has.
        let go_on = |flipped_bits: u8| {
            let mut status = String::new();
            until("the lost connection is noticed", LIMIT, || {
                let there = site.received(&name).unwrap() as usize;
                if there == 0 {
                    return false;
                }
                let mut bytes = expected.clone();
                bytes[there - 1] ^= flipped_bits;
                std::fs::write(&other, &bytes).unwrap();
                let tag = format!("If-Match: \"{}\"", blake3::hash(&bytes[..there]).to_hex());
                status = upload(&other, https(&site), &["-C", &there.to_string(), "-H", &tag]).1;
                !status.ends_with(" 409")
            });
            status
        };
        assert_eq!(go_on(1), format!("{version} 412"));
        assert_eq!(go_on(0), format!("{version} 201"));
        assert!(site.stored(&name) == expected, "{version}: other bytes");
        let all = (number as u64 + 1) * expected.len() as u64;
        assert_eq!(site.upload_bytes(all), all, "{version}: bytes that were there came again");
    }
}

/// Uploads a part of a file, with a client that is then killed.
fn begin_and_kill(site: &Site, source: &Path, args: &[&str], name: &str) {
    let proxy = Proxy::start(site.address, 1_500_000, false);
    let mut client = begin(source, &proxy.page, args);
    until("some of it is there", LIMIT, || site.received(name) > Some(1_400_000));
    client.kill().unwrap();
    client.wait().unwrap();
    proxy.let_go();
}

#[test]
fn upload_by_killed_or_interrupted_client_resumes_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), &[]);
    let source = film(dir.path(), "film.ts", 16);
    let length = std::fs::metadata(&source).unwrap().len();
    begin_and_kill(&site, &source, &[], "film");
    // The next one is ordered to stop, as by Ctrl-C.
    let proxy = Proxy::start(site.address, 600_000, false);
    let client = begin(&source, &proxy.page, &[]);
    until("it goes on", LIMIT, || site.received("film") > Some(2_000_000));
    signal(client.id(), "INT");
    let stopped = client.wait_with_output().unwrap();
    proxy.let_go();
    let said = String::from_utf8_lossy(&stopped.stderr);
    assert_eq!(stopped.status.code(), Some(1), "{said}");
    assert!(
        said.contains("interrupted with") && said.contains("goes on from there within 10 minutes"),
        "{said}"
    );
    let last = begin(&source, &site.page, &["--quiet"]).wait_with_output().unwrap();
    assert!(last.status.success() && last.stdout.is_empty(), "{}", String::from_utf8_lossy(&last.stderr));
    assert!(site.stored("film") == std::fs::read(&source).unwrap(), "other bytes");
    assert_eq!(site.upload_bytes(length), length, "bytes that were there came again");
}

/// A title has the bytes of one file, or there is none.
#[test]
fn upload_of_changed_file_is_not_joined_to_partial_data() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), &[]);
    let source = film(dir.path(), "film.ts", 16);
    let original = std::fs::read(&source).unwrap();
    let changed_at = |at: usize| {
        let mut bytes = original.clone();
        bytes[at] ^= 1;
        std::fs::write(&source, &bytes).unwrap();
        bytes
    };
    begin_and_kill(&site, &source, &[], "film");
    // A change in the part that was sent already.
    let changed = changed_at(100_010);
    let said = fails(&["add", source.to_str().unwrap(), "--server", &site.page]);
    assert!(said.contains("does not begin with them") && said.contains("--restart"), "{said}");
    let discarded = site.received("film").expect("what was there is kept");
    ok(&["add", source.to_str().unwrap(), "--server", &site.page, "--restart"]);
    assert!(site.stored("film") == changed, "other bytes");
    // Of another length.
    std::fs::write(&source, &original).unwrap();
    begin_and_kill(&site, &source, &["--name", "second"], "second");
    std::fs::write(&source, &original[..original.len() - 188]).unwrap();
    let add = ["add", source.to_str().unwrap(), "--server", &site.page, "--name", "second"];
    let said = fails(&add);
    assert!(said.contains("does not begin with them") && said.contains("--restart"), "{said}");
    // A change in the part not sent yet: the result is the file as it is now.
    let changed = changed_at(original.len() - 10);
    ok(&add);
    assert!(site.stored("second") == changed, "other bytes");
    let sent = discarded + 2 * original.len() as u64;
    assert_eq!(site.upload_bytes(sent), sent, "bytes that were there came again");
    let said = fails(&["add", source.to_str().unwrap(), "--restart"]);
    assert!(said.contains("--server"), "{said}");
}

#[test]
fn upload_across_server_restart_delivers_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::start(dir.path(), &["--upload-rate", "4Mb/s"]);
    let source = film(dir.path(), "film.ts", 12);
    let client = begin(&source, &site.page, &[]);
    until("some of it is there", LIMIT, || site.received("film") > Some(1_200_000));
    site.server.child.kill().unwrap();
    site.server.child.wait().unwrap();
    let at = site.address.to_string();
    let again = Site::start(dir.path(), &["--http", &at]);
    assert_eq!(again.address, site.address);
    let done = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("from the beginning"), "{said}");
    assert!(again.stored("film") == std::fs::read(&source).unwrap(), "other bytes");
}

#[test]
fn upload_refused_by_server_reports_cause_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::start(dir.path(), &["--max-upload", "2MiB"]);
    let (small, large) = (film(dir.path(), "small.ts", 4), film(dir.path(), "large.ts", 20));
    let text = dir.path().join("text.ts");
    std::fs::write(&text, "once upon a time ".repeat(100_000)).unwrap();
    let [small, large, text] = [&small, &large, &text].map(|path| path.to_str().unwrap());
    ok(&["add", small, "--server", &site.page]);
    for (args, why) in [
        (&["add", small, "--server", &site.page][..], "there is a title of this name"),
        (&["add", large, "--server", &site.page], "an upload may have 2MiB at most"),
        (&["add", text, "--server", &site.page], "not a readable media file"),
        (&["add", "/none/film.ts", "--server", &site.page], "No such file"),
        (&["add", small, "--trick", "--server", &site.page], "are for a store"),
        (&["add", small, "--server", "http://127.0.0.1:1/"], "refused"),
    ] {
        let said = fails(args);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    // A name that nothing of can stand in a title's is no name, here as for a store.
    for name in ["", "...", "\u{3002}"] {
        let store = dir.path().join("none");
        for to in [["--server", &site.page], ["--store", store.to_str().unwrap()]] {
            let done = run(&[&["add", small, "--name", name], &to[..]].concat());
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(
                done.status.code() == Some(2) && said.contains("a letter or a digit"),
                "{name}: {done:?}"
            );
            assert!(!store.exists());
        }
    }
    // One that fails does not stop the others.
    let said = fails(&["add", text, large, "--server", &site.page]);
    assert!(said.contains("text.ts") && said.contains("large.ts"), "{said}");
    assert!(site.server.interrupt());
    let site = Site::start(&dir.path().join("other"), &["--trust-loopback", "off"]);
    let said = fails(&["add", small, "--server", &site.page]);
    assert!(said.contains("the server says 40") && said.contains("--upload"), "{said}");
    assert!(site.title("small").is_null());
}

#[test]
fn upload_to_full_disk_is_refused_before_sending() {
    if let Some(why) = missing(&["mount", "umount"]) {
        eprintln!("skipped: mounting a tmpfs needs root: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let large = film(dir.path(), "large.ts", 40);
    let disk = Tmpfs::mount(&dir.path().join("disk"), "8m");
    let mut site = Site::start(&disk.at, &[]);
    let said = fails(&["add", large.to_str().unwrap(), "--server", &site.page]);
    assert!(said.contains("507") && said.contains("have room for"), "{said}");
    assert!(site.server.interrupt());
}
