//! Uploads over real sockets: whole, cut off and gone on with, refused before and in the middle, too slow, too many, without rights.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_rights::{Gate, NewUser, Policy, RightsFile, RightsSnapshot, TrustHere};
use millrace_web::WebLimits;
use millrace_web::limits::{MAX_UPLOAD_THREADS, MAX_UPLOADS};
use serde_json::Value;

use super::client::{Client, curl};
use super::site::{Film, MadeUp, Manner, serve, serve_to};

/// More than the room between connection and ingest.
const BYTES: usize = 3_000_001;

fn bytes(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
}

fn site() -> Arc<MadeUp> {
    MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)])
}

fn taken(site: &MadeUp, name: &str) -> Option<Vec<u8>> {
    site.taken.lock().unwrap().get(name).cloned()
}

fn put(address: SocketAddr, path: &str, lines: &str, body: &[u8]) -> Client {
    let mut client = Client::to(address);
    client.send(format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"));
    client.send(body);
    client
}

fn length(bytes: &[u8]) -> String {
    format!("Content-Length: {}\r\n", bytes.len())
}

/// Waits until the condition holds; fails if that takes longer than anything here does.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How far an upload is, and whether a connection has it; `None`: there is none.
fn state(address: SocketAddr, name: &str) -> Option<(u64, bool)> {
    let answer = Client::to(address).get(&format!("/titles/{name}"));
    // 410: it became no title.
    if matches!(answer.status, 404 | 410) {
        return None;
    }
    assert_eq!(answer.status, 200, "{answer:?}");
    let state: Value = serde_json::from_str(answer.text()).unwrap();
    let received = state["received_bytes"].as_u64().unwrap();
    assert_eq!(answer.header("Upload-Offset"), Some(received.to_string().as_str()));
    let head = Client::to(address).ask("HEAD", &format!("/titles/{name}"), "");
    assert!(head.header("Upload-Offset").is_some() && head.body.is_empty());
    Some((received, state["is_sending"].as_bool().unwrap()))
}

/// Begins an upload of `whole`, and disconnects after `after` bytes.
fn cut_off(address: SocketAddr, name: &str, whole: &[u8], after: usize) {
    drop(put(address, &format!("/titles/{name}"), &length(whole), &whole[..after]));
    until("the upload waits", || state(address, name) == Some((after as u64, false)));
}

#[test]
fn upload_by_curl_succeeds_with_each_transfer_form() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let film = dir.path().join("new.ts");
    let film = film.to_str().unwrap();
    let ways: [&[&str]; 4] = [
        &["--http1.1"],
        &["--http2-prior-knowledge"],
        &["--http1.1", "-H", "Transfer-Encoding: chunked"],
        &["--http1.1", "-H", "Expect:"],
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let whole = bytes(number);
        std::fs::write(film, &whole).unwrap();
        // With a slash at the end curl puts the file's name behind it.
        for (path, name) in
            [(format!("title-{number}"), format!("title-{number}")), (String::new(), "new".to_owned())]
        {
            let url = format!("http://{address}/titles/{path}");
            let said = curl(
                &[&["-T", film, "-w", "%{http_code} %header{location}", "-o", "/dev/null", &url], way]
                    .concat(),
            );
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            assert_eq!(said, format!("201 /titles/{name}.ts"), "{way:?}");
            assert!(taken(&site, &name).unwrap() == whole, "{way:?}: other bytes");
            assert_eq!(state(address, &name), None);
            site.taken.lock().unwrap().clear();
        }
    }
    assert!(site.file_names.lock().unwrap().is_empty());
    let counters = totals.read();
    assert_eq!((counters.uploads, counters.uploads_failed, counters.uploads_now), (8, 0, 0));
    assert_eq!(counters.upload_bytes, 8 * BYTES as u64);
}

#[test]
fn upload_passes_on_the_name_of_its_file_and_drops_the_extension_of_its_address() {
    let site = site();
    let (_web, address, _) = serve(&site, WebLimits::default());
    let whole = bytes(1);
    let field = "Content-Disposition: attachment; filename*=UTF-8''Ein%20F%C3%B6hn.mkv\r\n";
    for (path, lines) in
        [("new.mkv", field), ("new2.m3u8x", ""), ("new3.MP4", "Content-Disposition: inline\r\n")]
    {
        let lines = format!("{}{lines}", length(&whole));
        let answer = put(address, &format!("/titles/{path}"), &lines, &whole).response(false);
        assert_eq!(answer.status, 201, "{path}");
    }
    let taken: Vec<String> = site.taken.lock().unwrap().keys().cloned().collect();
    assert_eq!(taken, ["new", "new2.m3u8x", "new3"]);
    let names = site.file_names.lock().unwrap().clone();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), [("new".to_owned(), "Ein F\u{f6}hn.mkv".to_owned())]);
}

#[test]
fn expect_100_continue_is_answered_only_if_upload_is_acceptable() {
    let mut made_up = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)]);
    Arc::get_mut(&mut made_up).unwrap().room = Some(2000);
    let (_web, address, _) = serve(&made_up, WebLimits { upload_bytes: 5000, ..WebLimits::default() });
    let expect = "Expect: 100-continue\r\n";
    let mut client = put(address, "/titles/new", &format!("{expect}Content-Length: 5\r\n"), b"");
    assert_eq!(client.response(false).status, 100);
    client.send(b"hello");
    assert_eq!(client.response(false).status, 201);
    assert_eq!(taken(&made_up, "new").unwrap(), b"hello");
    for (path, lines, status) in [
        ("/titles/film", "Content-Length: 5\r\n", 409),
        ("/titles/film.ts", "Content-Length: 5\r\nIf-None-Match: *\r\n", 412),
        ("/titles/Film", "Content-Length: 5\r\n", 400),
        ("/titles/x@540p", "Content-Length: 5\r\n", 400),
        ("/titles/other", "Content-Length: 5001\r\n", 413),
        ("/titles/other", "Content-Length: 2001\r\n", 507),
        ("/titles/other", "Content-Length: 5\r\nContent-Range: bytes 0-4/5001\r\n", 413),
        ("/titles/other", "Content-Length: 5\r\nContent-Range: bytes 0-4/2001\r\n", 507),
        ("/titles/other", "Content-Length: 5\r\nContent-Range: bytes 0-5/9\r\n", 400),
        ("/titles/other", "Content-Length: 5\r\nContent-Range: bytes 3-7/9\r\n", 409),
        ("/titles/other", "Content-Length: 5\r\nX-Forwarded-For: 192.0.2.1\r\n", 403),
        ("/titles/other", "Content-Length: 5\r\nOrigin: https://example.org\r\n", 403),
        ("/", "Content-Length: 5\r\n", 405),
    ] {
        let mut client = put(address, path, &format!("{expect}{lines}"), b"");
        let answer = client.response(false);
        assert_eq!(answer.status, status, "{path} {lines}");
        assert!(answer.text().contains("\"message\""), "{}", answer.text());
        assert!(client.rest().is_empty(), "the connection ends: its body has not come");
        assert_eq!(state(address, "other"), None, "{path} {lines}");
    }
    let off = serve(&made_up, WebLimits { upload_bytes: 0, ..WebLimits::default() });
    assert_eq!(put(off.1, "/titles/other", "Content-Length: 5\r\n", b"").response(false).status, 403);
}

#[test]
fn interrupted_upload_resumes_at_received_offset() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    let (_web, address, _) = serve(&site, WebLimits::default());
    let whole = bytes(1);
    cut_off(address, "new", &whole, 1_234_567);
    // From elsewhere in it, or of another length: it stays as it was.
    let range = |from: usize, to: usize, total: usize| {
        format!("Content-Range: bytes {from}-{}/{total}\r\nContent-Length: {}\r\n", to - 1, to - from)
    };
    for (from, total) in [(1_234_566, BYTES), (1_234_568, BYTES), (1_234_567, BYTES + 1)] {
        let answer = put(address, "/titles/new", &range(from, from + 1, total), b"x").response(false);
        assert_eq!(answer.status, 409, "{from} of {total}");
        if total == BYTES {
            assert_eq!(answer.header("Upload-Offset"), Some("1234567"));
        }
    }
    // In pieces.
    let part = 1_234_567..2_000_000;
    let answer = put(address, "/titles/new", &range(part.start, part.end, BYTES), &whole[part.clone()])
        .response(false);
    assert_eq!((answer.status, answer.header("Upload-Offset")), (202, Some("2000000")));
    let answer =
        put(address, "/titles/new", &range(2_000_000, BYTES, BYTES), &whole[2_000_000..]).response(false);
    assert_eq!(answer.status, 201);
    assert!(taken(&site, "new").unwrap() == whole);
    // As curl does it.
    let film = dir.path().join("film.ts");
    std::fs::write(&film, &whole).unwrap();
    for (name, version) in [("again", "--http1.1"), ("again2", "--http2-prior-knowledge")] {
        cut_off(address, name, &whole, 777);
        let url = format!("http://{address}/titles/{name}");
        let said = curl(&[
            version,
            "-C",
            "777",
            "-T",
            film.to_str().unwrap(),
            "-w",
            "%{http_code}",
            "-o",
            "/dev/null",
            &url,
        ]);
        assert_eq!(String::from_utf8_lossy(&said.stdout), "201");
        assert!(taken(&site, name).unwrap() == whole);
    }
    // From the beginning: what there was is forgotten.
    cut_off(address, "new2", &bytes(7), 100_000);
    assert_eq!(put(address, "/titles/new2", &length(&whole), &whole).response(false).status, 201);
    assert!(taken(&site, "new2").unwrap() == whole);
    until("the first one is given up", || site.failed.lock().unwrap().contains_key("new2"));
}

#[test]
fn upload_with_replace_takes_the_place_of_the_named_title_only() {
    const ID: &str = "07070707070707070707070707070707";
    let mut served = Film::pattern("served", 10, Manner::Sends);
    served.info.source.path = "/served/show/film.ts".into();
    let site = MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends), served]);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let whole = bytes(1);
    let other = ID.replace('7', "8");
    for (path, status) in [
        (format!("/titles/film?replace={other}"), 412),
        ("/titles/film?replace=".to_owned(), 412),
        (format!("/titles/new?replace={ID}"), 412),
        (format!("/titles/served?replace={ID}"), 409),
        (format!("/titles/film?until={ID}"), 409),
    ] {
        let lines = format!("{}Expect: 100-continue\r\n", length(&whole));
        assert_eq!(put(address, &path, &lines, b"").response(false).status, status, "{path}");
    }
    // What breaks off changes nothing; it goes on by a request that names the same title.
    let path = format!("/titles/film?replace={ID}");
    drop(put(address, &path, &length(&whole), &whole[..1000]));
    until("the upload waits", || state(address, "film") == Some((1000, false)));
    assert!(site.replaced.lock().unwrap().is_empty());
    let rest =
        format!("Content-Range: bytes 1000-{}/{BYTES}\r\nContent-Length: {}\r\n", BYTES - 1, BYTES - 1000);
    assert_eq!(put(address, "/titles/film", &rest, b"").response(false).status, 409);
    assert_eq!(put(address, &path, &rest, &whole[1000..]).response(false).status, 201);
    assert!(taken(&site, "film").unwrap() == whole);
    assert_eq!(*site.replaced.lock().unwrap(), ["film"]);
}

#[test]
fn upload_with_if_match_hash_resumes_only_on_match() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    let (_web, address, _) = serve(&site, WebLimits::default());
    let (whole, other) = (bytes(1), bytes(2));
    const THERE: usize = 1_234_567;
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let rest = format!(
        "Content-Range: bytes {THERE}-{}/{BYTES}\r\nContent-Length: {}\r\n",
        BYTES - 1,
        BYTES - THERE
    );
    let matching = |hash: &str| format!("If-Match: \"{hash}\"\r\n");
    let told = |name: &str| {
        let answer = Client::to(address).get(&format!("/titles/{name}"));
        let state: Value = serde_json::from_str(answer.text()).unwrap();
        (state["received_blake3"].as_str().map(str::to_owned), answer.header("ETag").map(str::to_owned))
    };
    // A missing upload has no bytes to name; nor is there a title, so that it can still be begun.
    let mut begun = put(address, "/titles/new", &format!("{}{}", matching(&hash(b"")), length(&whole)), b"");
    assert_eq!(begun.response(false).status, 412);
    cut_off(address, "new", &whole, THERE);
    let there = hash(&whole[..THERE]);
    assert_eq!(told("new"), (Some(there.clone()), Some(format!("\"{there}\""))));
    let list: Value = serde_json::from_str(Client::to(address).get("/api/v1/uploads").text()).unwrap();
    assert_eq!(list["uploads"][0]["received_blake3"], there);
    // The beginning of another file, a byte less, and the same as a weak tag; the body is not asked for, and all stays as it was.
    for tag in [
        matching(&hash(&other[..THERE])),
        matching(&hash(&whole[..THERE - 1])),
        format!("If-Match: W/\"{there}\"\r\n"),
    ] {
        let lines = format!("{tag}{rest}Expect: 100-continue\r\n");
        let answer = put(address, "/titles/new", &lines, b"").response(false);
        assert_eq!((answer.status, answer.header("Upload-Offset")), (412, Some("1234567")), "{tag}");
        assert_eq!(state(address, "new"), Some((THERE as u64, false)), "{tag}");
    }
    // A restart, but not over the data that others have sent.
    let lines = format!("{}{}", matching(&hash(&other[..THERE])), length(&whole));
    assert_eq!(put(address, "/titles/new", &lines, b"").response(false).status, 412);
    // While more comes, no hash is reported: it would not be true for long.
    let part = THERE..2_000_000;
    let range = format!("Content-Range: bytes {THERE}-1999999/{BYTES}\r\nContent-Length: {}\r\n", part.len());
    let mut sending = put(address, "/titles/new", &format!("{}{range}", matching(&there)), b"");
    until("it goes on", || state(address, "new") == Some((THERE as u64, true)));
    assert_eq!(told("new"), (None, None));
    sending.send(&whole[part]);
    assert_eq!(sending.response(false).status, 202);
    // All of the bytes received, in however many requests.
    let there = hash(&whole[..2_000_000]);
    assert_eq!(told("new"), (Some(there.clone()), Some(format!("\"{there}\""))));
    let film = dir.path().join("film.ts");
    for (bytes, version, status) in [
        (&other, "--http1.1", "412"),
        (&other, "--http2-prior-knowledge", "412"),
        (&whole, "--http1.1", "201"),
    ] {
        std::fs::write(&film, bytes).unwrap();
        let [tag, url] = [matching(&hash(&bytes[..2_000_000])), format!("http://{address}/titles/new")];
        let said = curl(&[
            version,
            "-C",
            "2000000",
            "-T",
            film.to_str().unwrap(),
            "-H",
            tag.trim_end(),
            "-w",
            "%{http_code}",
            "-o",
            "/dev/null",
            &url,
        ]);
        assert_eq!(String::from_utf8_lossy(&said.stdout), status, "{version}");
    }
    assert!(taken(&site, "new").unwrap() == whole);
}

#[test]
fn concurrent_uploads_are_limited_by_name_and_total() {
    let site = site();
    let (_web, address, _) = serve(&site, WebLimits::default());
    let whole = bytes(2);
    let mut first = put(address, "/titles/new", &length(&whole), &whole[..1000]);
    until("it has begun", || state(address, "new") == Some((1000, true)));
    let second = put(address, "/titles/new", &length(&whole), &whole[..10]).response(false);
    assert_eq!((second.status, second.header("Upload-Offset")), (409, Some("1000")));
    assert!(second.header("Retry-After").is_some());
    let others: Vec<_> = (1..MAX_UPLOADS)
        .map(|number| put(address, &format!("/titles/new-{number}"), &length(&whole), &whole[..10]))
        .collect();
    until("all have begun", || {
        (1..MAX_UPLOADS).all(|number| state(address, &format!("new-{number}")).is_some())
    });
    let full = put(address, "/titles/more", &length(&whole), b"").response(false);
    assert_eq!(full.status, 503);
    let list: Value = serde_json::from_str(Client::to(address).get("/api/v1/uploads").text()).unwrap();
    let list = list["uploads"].as_array().unwrap();
    assert_eq!(list.len(), MAX_UPLOADS);
    assert_eq!(
        (&list[0]["name"], &list[0]["received_bytes"], &list[0]["total_bytes"]),
        (&"new".into(), &1000.into(), &BYTES.into())
    );
    first.send(&whole[1000..]);
    assert_eq!(first.response(false).status, 201);
    assert!(taken(&site, "new").unwrap() == whole);
    drop(others);
}

/// The received bytes stay, unless the client restarts by a request without a range.
#[test]
fn upload_with_a_range_out_of_step_keeps_its_bytes() {
    let site = site();
    let (_web, address, _) = serve(&site, WebLimits::default());
    let whole = bytes(7);
    cut_off(address, "new", &whole, 2_000_000);
    for (range, count) in [("0-99", 100), ("1-100", 100), ("1999999-2000098", 100), ("2000001-2000100", 100)]
    {
        let lines = format!("Content-Length: {count}\r\nContent-Range: bytes {range}/{BYTES}\r\n");
        let answer = put(address, "/titles/new", &lines, &whole[..count]).response(false);
        assert_eq!((answer.status, answer.header("Upload-Offset")), (409, Some("2000000")), "{range}");
        assert_eq!(state(address, "new"), Some((2_000_000, false)), "{range}");
    }
    let rest = &whole[2_000_000..];
    let lines = format!("{}Content-Range: bytes 2000000-{}/{BYTES}\r\n", length(rest), BYTES - 1);
    assert_eq!(put(address, "/titles/new", &lines, rest).response(false).status, 201);
    assert!(taken(&site, "new").unwrap() == whole);
}

/// curl appends the name of the file after the slash, even if no title can have that name.
#[test]
fn upload_with_a_name_that_no_title_has_is_refused_with_the_letters() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    let (_web, address, _) = serve(&site, WebLimits::default());
    let film = dir.path().join("Mein Film.ts");
    std::fs::write(&film, bytes(1)).unwrap();
    let url = format!("http://{address}/titles/");
    let said = curl(&["-T", film.to_str().unwrap(), "-w", "%{http_code}", &url]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.ends_with("400") && said.contains("a-z, 0-9") && said.contains("mein-film"), "{said}");
    for name in ["-x", "x-", "_x", "a--b", "M%C3%BCller", "a%2fb", "a%20b.ts"] {
        let answer =
            put(address, &format!("/titles/{name}"), "Content-Length: 5\r\n", b"hello").response(false);
        assert_eq!(answer.status, 400, "{name}");
        assert!(answer.text().contains("a-z, 0-9"), "{name}: {}", answer.text());
    }
    assert!(site.taken.lock().unwrap().is_empty());
}

/// Uploads whose clients have gone do not block other clients.
#[test]
fn uploads_that_wait_give_way_to_other_owners() {
    let site = site();
    let gate = Arc::new(
        Gate::new(Policy { trust_here: TrustHere::Always, ..Policy::default() }, RightsSnapshot::default())
            .unwrap(),
    );
    let (_web, address, _) = serve_to(&site, WebLimits::default(), &gate);
    let whole = bytes(3);
    // Short uploads give way regardless of their owner, because a restart costs little.
    for number in 0..MAX_UPLOADS {
        cut_off(address, &format!("small-{number}"), &whole, 1000 + number);
    }
    assert_eq!(put(address, "/titles/new", &length(&whole), &whole).response(false).status, 201);
    let left = (0..MAX_UPLOADS).filter(|number| state(address, &format!("small-{number}")).is_some());
    assert_eq!(left.collect::<Vec<_>>(), (1..MAX_UPLOADS).collect::<Vec<_>>(), "the smallest went");
    for number in 0..MAX_UPLOADS {
        cut_off(address, &format!("large-{number}"), &whole, 2_000_000 + number);
    }
    assert_eq!(put(address, "/titles/more", &length(&whole), b"").response(false).status, 503);
    let mut other = Client::from([127, 0, 0, 2], address);
    other.send(format!("PUT /titles/more HTTP/1.1\r\nHost: localhost\r\n{}\r\n", length(&whole)));
    other.send(&whole);
    assert_eq!(other.response(false).status, 201);
    assert!(state(address, "large-0").is_none() && state(address, "large-1").is_some());
}

/// An upload that starts again leaves its thread behind until the disk answers, and threads are not
/// unlimited.
#[test]
fn uploads_on_a_disk_that_hangs_have_a_limited_number_of_threads() {
    let site = site();
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let whole = bytes(5);
    let disk = site.disk.lock().unwrap();
    for _ in 0..MAX_UPLOAD_THREADS {
        cut_off(address, "new", &whole, 1000);
    }
    assert_eq!(totals.read().uploads_now, MAX_UPLOAD_THREADS as u64);
    let answer = put(address, "/titles/new", &length(&whole), &whole[..1000]).response(false);
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.header("Retry-After").is_some(), "{answer:?}");
    assert_eq!(totals.read().uploads_now, MAX_UPLOAD_THREADS as u64);
    drop(disk);
    until("the threads end", || totals.read().uploads_now == 0);
    assert_eq!(put(address, "/titles/new", &length(&whole), &whole).response(false).status, 201);
    assert!(taken(&site, "new").unwrap() == whole);
}

#[test]
fn upload_with_wrong_length_creates_no_title() {
    let site = site();
    let (_web, address, totals) =
        serve(&site, WebLimits { upload_kept: Duration::from_secs(2), ..WebLimits::default() });
    // Less comes: it waits for the rest, for a time.
    drop(put(address, "/titles/short", "Content-Length: 1000\r\n", &[7; 500]));
    until("it is given up", || site.failed.lock().unwrap().contains_key("short"));
    until("nothing is left of it", || state(address, "short").is_none());
    assert_eq!(site.failed.lock().unwrap()["short"], [7; 500]);
    assert_eq!(totals.read().uploads_failed, 1);
    // More comes: that is no part of it, nor another request.
    let mut client = put(address, "/titles/long", "Content-Length: 500\r\n", &[7; 500]);
    let _ = TcpStream::connect(address);
    client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response(false).status, 201);
    assert!(client.try_response(false).is_none(), "the connection ends");
    assert_eq!(taken(&site, "long").unwrap(), [7; 500]);
    // More than the range names, in chunks without a stated total length.
    let lines = "Transfer-Encoding: chunked\r\nContent-Range: bytes 0-4/9\r\n";
    let answer = put(address, "/titles/range", lines, b"6\r\nabcdef\r\n0\r\n\r\n").response(false);
    assert_eq!(answer.status, 400);
    assert_eq!(taken(&site, "range"), None);
}

#[test]
fn upload_too_long_or_invalid_is_refused_midway() {
    let mut site = site();
    Arc::get_mut(&mut site).unwrap().room = Some(100_000);
    let (_web, address, totals) = serve(&site, WebLimits::default());
    let (_short, short, _) = serve(&site, WebLimits { upload_bytes: 50_000, ..WebLimits::default() });
    let chunked = |body: &[u8]| {
        let mut all = format!("{:x}\r\n", body.len()).into_bytes();
        all.extend_from_slice(body);
        all.extend_from_slice(b"\r\n0\r\n\r\n");
        all
    };
    let coded = "Transfer-Encoding: chunked\r\n";
    for (name, body, status) in [
        ("long", vec![1; 50_001], 413),
        ("full", vec![1; 140_000], 507),
        ("bad", [b"BAD".to_vec(), vec![1; 50_000]].concat(), 422),
        ("other", [b"MP4".to_vec(), vec![1; 50_000]].concat(), 415),
        ("empty", Vec::new(), 201),
    ] {
        let body = if body.is_empty() { b"0\r\n\r\n".to_vec() } else { chunked(&body) };
        let address = if name == "long" { short } else { address };
        let answer = put(address, &format!("/titles/{name}"), coded, &body).response(false);
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
        until("nothing is left of it", || state(address, name).is_none());
        assert_eq!(taken(&site, name).is_some(), status == 201, "{name}");
    }
    let bad = Client::to(address).get("/titles/bad");
    assert_eq!(bad.status, 410, "{bad:?}");
    assert!(bad.text().contains("the upload became no title"), "{bad:?}");
    assert_eq!(totals.read().uploads_failed, 3);
    assert_eq!(put(address, "/titles/none", "Content-Length: 0\r\n", b"").response(false).status, 422);
}

#[test]
fn slow_upload_times_out_and_keeps_received_bytes() {
    let site = site();
    let limits = WebLimits { upload_stall: Duration::from_millis(300), ..WebLimits::default() };
    let (_web, address, totals) = serve(&site, limits);
    let mut client = put(address, "/titles/new", "Content-Length: 100000\r\n", b"");
    let begun = Instant::now();
    let dripping = std::thread::spawn(move || {
        let mut sent = 0;
        // A byte that comes in time changes nothing: it is good for 60 us.
        while sent < 2000
            && std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.send(b"x"))).is_ok()
        {
            sent += 1;
            std::thread::sleep(Duration::from_millis(20));
            if sent == 60 {
                break;
            }
        }
        (client.try_response(false), sent)
    });
    let (answer, sent) = dripping.join().unwrap();
    assert_eq!(answer.map(|answer| answer.status), Some(408), "after {sent} bytes and {:?}", begun.elapsed());
    until("it waits", || {
        state(address, "new").is_some_and(|(received, is_sending)| !is_sending && received < 60)
    });
    assert_eq!(totals.read().connections_too_slow, 1);
}

#[test]
fn server_stop_aborts_uploads() {
    let site = site();
    let (web, address, totals) = serve(&site, WebLimits::default());
    let whole = bytes(3);
    let _sending = put(address, "/titles/sending", &length(&whole), &whole[..1000]);
    cut_off(address, "waiting", &whole, 2000);
    until("both are there", || state(address, "sending") == Some((1000, true)));
    web.stop(Duration::from_millis(50));
    let failed = site.failed.lock().unwrap();
    assert_eq!((failed["sending"].len(), failed["waiting"].len()), (1000, 2000));
    assert_eq!(totals.read().uploads_now, 0);
    assert!(site.taken.lock().unwrap().is_empty());
}

/// `anna` may watch, `olga` may upload; no client is trusted for being here.
#[test]
fn uploading_is_a_right_of_its_own() {
    const PASSWORD: &str = "secret-word";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rights.sqlite");
    let mut file = RightsFile::open_or_create(&path).unwrap();
    for name in ["anna", "olga", "oleg"] {
        let cost = millrace_rights::Cost { kib: 8, passes: 1 };
        file.add_user(&NewUser { name, password: PASSWORD, digest: true, manages: false, cost }, 0).unwrap();
        file.grant(name, "*").unwrap();
        file.set_uploads(name, name != "anna").unwrap();
    }
    let bearer = |file: &mut RightsFile, name: &str| {
        format!("Authorization: Bearer {}\r\n", file.add_token(name, 0, None).unwrap().1)
    };
    let [anna, olga, oleg] = ["anna", "olga", "oleg"].map(|name| bearer(&mut file, name));
    let policy = Policy { trust_here: TrustHere::Never, ..Policy::default() };
    let gate = Arc::new(Gate::new(policy, file.read().unwrap()).unwrap());
    let site = site();
    let (_web, address, _) = serve_to(&site, WebLimits::default(), &gate);
    let try_all = |who: &str| {
        let mut statuses = vec![
            put(address, "/titles/new", &format!("{who}Content-Length: 5\r\n"), b"hello")
                .response(false)
                .status,
        ];
        for (method, path) in [("GET", "/titles/new"), ("HEAD", "/titles/new"), ("GET", "/api/v1/uploads")] {
            statuses.push(Client::to(address).ask(method, path, who).status);
        }
        statuses
    };
    let offered = |who: &str| {
        let list: Value =
            serde_json::from_str(Client::to(address).ask("GET", "/api/v1/titles", who).text()).unwrap();
        list["upload"].as_str().unwrap().to_owned()
    };
    // No client is asked for its identity to see the list.
    assert_eq!(offered(""), "sign-in");
    assert_eq!(offered(&olga), "sign-in");
    assert_eq!(try_all(""), [401; 4]);
    assert_eq!(try_all("Authorization: Bearer none\r\n"), [401; 4]);
    assert_eq!(try_all(&anna), [403; 4]);
    assert!(site.taken.lock().unwrap().is_empty() && site.failed.lock().unwrap().is_empty());
    for way in ["--http1.1", "--http2-prior-knowledge"] {
        let file = dir.path().join("x.ts");
        std::fs::write(&file, bytes(4)).unwrap();
        let url = format!("http://{address}/titles/new");
        for (who, status) in [("", "401"), (&anna[..], "403")] {
            let said = curl(&[
                way,
                "-T",
                file.to_str().unwrap(),
                "-H",
                who.trim_end(),
                "-w",
                "%{http_code}",
                "-o",
                "/dev/null",
                &url,
            ]);
            assert_eq!(String::from_utf8_lossy(&said.stdout), status, "{way}");
        }
    }
    assert!(site.taken.lock().unwrap().is_empty() && site.failed.lock().unwrap().is_empty());
    assert_eq!(try_all(&olga), [201, 404, 404, 200]);
    // It takes nothing away.
    let path = format!("/titles/film?replace={}", "07".repeat(16));
    let lines = format!("{olga}Content-Length: 5\r\n");
    assert_eq!(put(address, &path, &lines, b"hello").response(false).status, 403);
    // What one has begun no other goes on with.
    drop(put(address, "/titles/mine", &format!("{olga}Content-Length: 9\r\n"), b"hello"));
    until("it waits", || {
        Client::to(address).ask("GET", "/titles/mine", &olga).text().contains("\"is_sending\":false")
    });
    let rest = |who: &str| {
        put(
            address,
            "/titles/mine",
            &format!("{who}Content-Length: 4\r\nContent-Range: bytes 5-8/9\r\n"),
            b"more",
        )
        .response(false)
        .status
    };
    assert_eq!(rest(&oleg), 409);
    assert_eq!(
        put(address, "/titles/mine", &format!("{oleg}Content-Length: 4\r\n"), b"more").response(false).status,
        409
    );
    assert_eq!(rest(&olga), 201);
    assert_eq!(taken(&site, "mine").unwrap(), b"hellomore");
    // If no user has that right, the server asks no client for a name.
    let gate = Arc::new(Gate::new(policy, RightsSnapshot::default()).unwrap());
    let (_web, address, _) = serve_to(&site, WebLimits::default(), &gate);
    assert!(Client::to(address).get("/api/v1/titles").text().contains("\"upload\":\"no\""));
    let refused = put(address, "/titles/new2", "Content-Length: 5\r\n", b"hello").response(false);
    assert_eq!((refused.status, refused.header("WWW-Authenticate")), (403, None));
    assert!(refused.text().contains("machine"), "{}", refused.text());
}
