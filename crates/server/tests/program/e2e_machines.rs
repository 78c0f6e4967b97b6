//! Several machines with one library: a title that one publishes plays at another, which fetches it when its first viewer comes. The object
//! store is a server of others (`s3s-fs`), with faults between it and the nodes.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millrace_store::volume::{TitleEdit, TitleInfo, Volume};
use millrace_testkit::titles::Film;
use serde_json::Value;

use crate::s3_server::{Fault, KEY, S3Server, SECRET};
use crate::support::http::get;
use crate::support::{Server, add, fails, film, header, millrace, ok, read_message, signal};

const LIMIT: Duration = Duration::from_secs(90);
const URL: &str = "s3://films/hotel";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// An object store, a store whose titles are published there, and a node that has none.
struct Scene {
    s3: S3Server,
    dir: tempfile::TempDir,
    store: PathBuf,
    node: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [store, node] = ["store", "node"].map(|name| dir.path().join(name));
        Volume::open_or_create(&store).unwrap();
        Self { s3: S3Server::start(), store, node, dir }
    }

    fn add(&self, name: &str, packets: usize) -> TitleInfo {
        let volume = Volume::open(&self.store).unwrap();
        Film::new(packets, packets as u64).add(&volume, name)
    }

    fn publish(&self) {
        let mut command = millrace();
        self.with_access(&mut command);
        let args = ["publish", "--all", "--to", URL, "--endpoint", &self.s3.endpoint(), "--store"];
        let output = command.args(args).arg(&self.store).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn with_access(&self, command: &mut std::process::Command) {
        command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command.env("HOME", self.dir.path()).env("XDG_STATE_HOME", self.dir.path());
    }

    /// A node that serves the library.
    fn node(&self, more: &[&str]) -> Server {
        let mut command = millrace();
        self.with_access(&mut command);
        command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--cache", "32MiB"]);
        command.args(["--library-interval", "1s", "--library", URL, "--endpoint", &self.s3.endpoint()]);
        Server::spawn(self.at_store(command, more))
    }

    /// The same with a directory as the library.
    fn node_of_directory(&self, directory: &Path, more: &[&str]) -> Server {
        let mut command = millrace();
        command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--cache", "32MiB"]);
        command.args(["--library-interval", "1s", "--library", &format!("file://{}", directory.display())]);
        Server::spawn(self.at_store(command, more))
    }

    fn at_store(&self, mut command: std::process::Command, more: &[&str]) -> std::process::Command {
        command.args(more).arg("--store").arg(&self.node);
        command
    }

    /// The media of a title of the node, as they lie there.
    fn copy(&self, id: millrace_core::ids::TitleId) -> PathBuf {
        self.node.join(format!("titles/{id}/data.ts"))
    }
}

fn api(server: &Server, path: &str) -> Value {
    let mut stream = TcpStream::connect(server.page()).unwrap();
    let (head, body) = get(&mut stream, path, "");
    serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {head}"))
}

fn status_of(server: &Server, path: &str) -> (String, Vec<u8>) {
    get(&mut TcpStream::connect(server.page()).unwrap(), path, "")
}

/// Where a title's copy is; `none` if the server does not list it, `local` if it is no title of the library.
fn state(server: &Server, name: &str) -> String {
    let list = api(server, "/api/v1/titles");
    let title = list["titles"].as_array().unwrap().iter().find(|title| title["name"] == name).cloned();
    let Some(title) = title else { return "none".to_owned() };
    title["library"]["state"].as_str().unwrap_or("local").to_owned()
}

fn wait_for_state(server: &Server, name: &str, wanted: &str) {
    until(&format!("{name} is {wanted}"), || state(server, name) == wanted);
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks for the media of a title, and returns the status and how long to wait.
fn ask(server: &Server, name: &str) -> (String, Option<String>) {
    let (head, _) = status_of(server, &format!("/titles/{name}.ts"));
    let status = head.split(' ').nth(1).unwrap().to_owned();
    (status, header(&head, "Retry-After").map(str::to_owned))
}

/// Asks for a title that is not here, and waits until it is.
fn bring(server: &Server, name: &str) {
    wait_for_state(server, name, "remote");
    assert_eq!(ask(server, name).0, "503");
    wait_for_state(server, name, "cached");
}

fn library(server: &Server) -> Value {
    api(server, "/api/v1/status")["library"].clone()
}

#[test]
fn title_published_at_one_node_plays_at_another_by_rtsp_and_http() {
    let scene = Scene::new();
    let source = film(scene.dir.path(), "movie.ts", 3);
    add(&source, &scene.store);
    let info = Volume::open(&scene.store).unwrap().find("movie").unwrap().unwrap();
    scene.publish();
    let mut server = scene.node(&[]);
    wait_for_state(&server, "movie", "remote");
    let (_, playlist) = status_of(&server, "/titles.m3u");
    assert!(String::from_utf8(playlist).unwrap().contains("titles/movie/index.m3u8"));
    let mut stream = TcpStream::connect(server.addr).unwrap();
    use std::io::Write;
    write!(stream, "DESCRIBE {} RTSP/1.0\r\nCSeq: 1\r\n\r\n", server.title("movie")).unwrap();
    let (head, body) = read_message(&mut stream);
    assert!(head.starts_with("RTSP/1.0 200"), "{head}");
    assert!(body.contains("a=x-millrace-library:remote"), "{body}");
    let setup = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1";
    write!(stream, "SETUP {}/track1 RTSP/1.0\r\nCSeq: 2\r\n{setup}\r\n\r\n", server.title("movie")).unwrap();
    let (head, body) = read_message(&mut stream);
    assert!(head.starts_with("RTSP/1.0 453"), "{head}");
    assert!(header(&head, "Retry-After").is_some(), "{head}");
    assert!(format!("{head}{body}").contains("fetched from the library"), "{head}{body}");
    wait_for_state(&server, "movie", "cached");
    let expected = fs::read(&source).unwrap();
    assert!(fs::read(scene.copy(info.id)).unwrap() == expected);
    let by_rtsp = scene.dir.path().join("rtsp.ts");
    ok(&["play", &server.title("movie"), "--transport", "tcp", "-o", text(&by_rtsp)]);
    assert!(fs::read(&by_rtsp).unwrap() == expected, "by RTSP");
    let (head, by_http) = status_of(&server, "/titles/movie.ts");
    assert!(head.starts_with("HTTP/1.1 200") && by_http == expected, "by HTTP: {head}");
    for path in ["/titles/movie/index.m3u8", "/titles/movie/master.m3u8"] {
        let (head, _) = status_of(&server, path);
        assert!(head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 404"), "{path}: {head}");
    }
    let now = library(&server);
    assert_eq!((&now["titles"], &now["cached_titles"]), (&1.into(), &1.into()), "{now}");
    assert!(server.said(SECRET).is_empty() && !now.to_string().contains(SECRET));
    // The copy is sound.
    assert!(server.interrupt());
    assert!(ok(&["fsck", "--full", "--store", text(&scene.node)]).contains("no problem"));
}

#[test]
fn playlists_of_a_cold_title_are_answered_with_503_and_begin_its_fetch() {
    let scene = Scene::new();
    scene.add("film", 3_000);
    scene.publish();
    let mut server = scene.node(&[]);
    let empty = format!("no titles here yet; those of the library {URL} are fetched when a viewer asks");
    assert_eq!(server.said("no titles"), [empty]);
    wait_for_state(&server, "film", "remote");
    scene.s3.plan("GET", "data.ts", 0, usize::MAX, Fault::Hold);
    let (head, _) = status_of(&server, "/titles/film/index.m3u8");
    assert!(head.starts_with("HTTP/1.1 503") && header(&head, "Retry-After").is_some(), "{head}");
    wait_for_state(&server, "film", "fetching");
    scene.s3.release();
    wait_for_state(&server, "film", "cached");
}

#[test]
fn two_viewers_at_once_cause_one_fetch() {
    let scene = Scene::new();
    scene.add("film", 3_000);
    scene.publish();
    let mut server = scene.node(&[]);
    wait_for_state(&server, "film", "remote");
    scene.s3.count("GET", "");
    scene.s3.plan("GET", "data.ts", 0, usize::MAX, Fault::Hold);
    for _ in 0..2 {
        let (status, retry) = ask(&server, "film");
        assert_eq!((status.as_str(), retry.is_some()), ("503", true));
    }
    let error = fails(&["play", &server.title("film"), "--duration", "1s", "-o", "null"]);
    assert!(error.contains("453") || error.contains("library"), "{error}");
    scene.s3.release();
    wait_for_state(&server, "film", "cached");
    assert_eq!(scene.s3.count("GET", "data.ts"), 1);
    assert!(server.said("cannot be fetched").is_empty(), "one fetch, and none that met another");
}

#[test]
fn node_killed_in_the_middle_of_a_fetch_goes_on_behind_what_has_come() {
    let scene = Scene::new();
    let info = scene.add("film", 350_077);
    scene.publish();
    let mut server = scene.node(&[]);
    wait_for_state(&server, "film", "remote");
    scene.s3.plan("GET", "data.ts", 4, usize::MAX, Fault::Hold);
    assert_eq!(ask(&server, "film").0, "503");
    until("half of it", || library(&server)["fetches"][0]["percent"].as_u64() >= Some(45));
    signal(server.child.id(), "KILL");
    server.child.wait().unwrap();
    scene.s3.forget_plan();
    scene.s3.count("GET", "");
    let server = scene.node(&[]);
    wait_for_state(&server, "film", "cached");
    let requests = scene.s3.count("GET", "data.ts");
    assert!((1..=6).contains(&requests), "{requests} of 8 ranges");
    let published = fs::read(scene.store.join(format!("titles/{}/data.ts", info.id))).unwrap();
    assert!(fs::read(scene.copy(info.id)).unwrap() == published);
    assert_eq!(fs::read_dir(scene.node.join("tmp")).unwrap().count(), 0);
    assert!(ok(&["fsck", "--full", "--store", text(&scene.node)]).contains("no problem"));
}

#[test]
fn library_that_is_away_at_the_start_stops_nothing() {
    let scene = Scene::new();
    scene.add("film", 3_000);
    let own = Film::new(2_000, 9).add(&Volume::open_or_create(&scene.node).unwrap(), "own");
    let directory = scene.dir.path().join("shared");
    let mut server = scene.node_of_directory(&directory, &[]);
    assert_eq!(state(&server, "own"), "local");
    until("trouble", || {
        library(&server)["trouble"].as_str().is_some_and(|why| why.contains("no such directory"))
    });
    let (head, body) = status_of(&server, "/titles/own.ts");
    assert!(head.starts_with("HTTP/1.1 200") && body.len() as u64 == own.bytes, "{head}");
    fs::create_dir(&directory).unwrap();
    let url = format!("file://{}", directory.display());
    ok(&["publish", "--all", "--to", &url, "--store", text(&scene.store)]);
    bring(&server, "film");
    assert_eq!(library(&server)["trouble"], Value::Null);
    assert_eq!(server.said("no such directory").len(), 1, "it is logged once");
}

#[test]
fn wrong_truncated_and_refused_answers_do_not_reach_viewers() {
    let scene = Scene::new();
    let names = ["flip", "cut", "busy", "bad", "good"];
    let infos: Vec<TitleInfo> =
        (3_000..).zip(names).map(|(packets, name)| scene.add(name, packets)).collect();
    scene.publish();
    let published = |info: &TitleInfo| scene.s3.file(&format!("hotel/t/{}/data.ts", info.id));
    let mut bytes = fs::read(published(&infos[3])).unwrap();
    bytes[300_000] ^= 1;
    fs::write(published(&infos[3]), bytes).unwrap();
    let server = scene.node(&[]);
    wait_for_state(&server, "bad", "remote");
    for (name, fault) in
        [("flip", Fault::Flip), ("cut", Fault::Cut), ("busy", Fault::Status(503, "SlowDown"))]
    {
        scene.s3.plan("GET", "data.ts", 0, 1, fault);
        bring(&server, name);
    }
    assert_eq!(ask(&server, "bad").0, "503");
    wait_for_state(&server, "bad", "failed");
    assert_eq!(ask(&server, "bad").0, "503", "it is not tried again at once");
    let trouble = library(&server)["fetches"][0]["trouble"].as_str().unwrap().to_owned();
    assert!(trouble.contains("is wrong at byte"), "{trouble}");
    assert_eq!(fs::read_dir(scene.node.join("tmp")).unwrap().count(), 0, "nothing is left of it");
    bring(&server, "good");
    for info in [&infos[0], &infos[1], &infos[2], &infos[4]] {
        let own = scene.store.join(format!("titles/{}/data.ts", info.id));
        assert!(fs::read(scene.copy(info.id)).unwrap() == fs::read(own).unwrap(), "{}", info.name);
    }
    assert_eq!(state(&server, "bad"), "failed");
}

#[test]
fn full_cache_loses_the_copy_that_was_not_watched_for_longest() {
    let scene = Scene::new();
    for (name, packets) in [("a", 3_000), ("b", 3_001), ("c", 3_002), ("long", 9_000)] {
        scene.add(name, packets);
    }
    scene.publish();
    Film::new(3_000, 9).add(&Volume::open_or_create(&scene.node).unwrap(), "own");
    // Two of 0.6 MB and not three.
    let server = scene.node(&["--library-cache", "1500000B"]);
    bring(&server, "a");
    bring(&server, "b");
    // From now on b is the one that was not watched for longest.
    let (head, _) = status_of(&server, "/titles/a.ts");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    bring(&server, "c");
    assert_eq!(
        ["a", "b", "c", "own"].map(|name| state(&server, name)),
        ["cached", "remote", "cached", "local"]
    );
    assert_eq!(ask(&server, "long").0, "503");
    wait_for_state(&server, "long", "failed");
    assert!(library(&server)["fetches"][0]["trouble"].as_str().unwrap().contains("--library-cache"));
    assert_eq!(["a", "c", "own"].map(|name| state(&server, name)), ["cached", "cached", "local"]);
    let now = library(&server);
    assert!(now["cached_bytes"].as_u64() < Some(1_500_000) && now["space_bytes"] == 1_500_000, "{now}");
}

#[test]
fn copies_that_are_watched_stay() {
    let scene = Scene::new();
    for (name, packets) in [("a", 3_000), ("b", 3_001), ("c", 3_002)] {
        scene.add(name, packets);
    }
    scene.publish();
    let server = scene.node(&["--library-cache", "1500000B"]);
    bring(&server, "a");
    bring(&server, "b");
    // Sessions that have been set up hold their titles.
    let held = ["a", "b"].map(|name| {
        use std::io::Write;
        let mut stream = TcpStream::connect(server.addr).unwrap();
        let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1";
        write!(stream, "SETUP {}/track1 RTSP/1.0\r\nCSeq: 1\r\n{transport}\r\n\r\n", server.title(name))
            .unwrap();
        let (head, _) = read_message(&mut stream);
        assert!(head.starts_with("RTSP/1.0 200"), "{head}");
        stream
    });
    assert_eq!(ask(&server, "c").0, "503");
    wait_for_state(&server, "c", "failed");
    assert_eq!(["a", "b"].map(|name| state(&server, name)), ["cached", "cached"]);
    drop(held);
    // It is tried again by itself.
    wait_for_state(&server, "c", "cached");
}

#[test]
fn titles_withdrawn_from_the_library_or_changed_there_disappear() {
    let scene = Scene::new();
    let [gone, changed, cold] = [("gone", 3_000), ("changed", 3_001), ("cold", 3_002)]
        .map(|(name, packets)| scene.add(name, packets));
    let directory = scene.dir.path().join("shared");
    fs::create_dir(&directory).unwrap();
    let url = format!("file://{}", directory.display());
    let publish = || ok(&["publish", "--all", "--to", &url, "--store", text(&scene.store)]);
    publish();
    let server = scene.node_of_directory(&directory, &[]);
    bring(&server, "gone");
    bring(&server, "changed");
    let manifest = |info: &TitleInfo| directory.join(format!("t/{}/manifest.mrm", info.id));
    fs::remove_file(manifest(&gone)).unwrap();
    fs::remove_file(manifest(&cold)).unwrap();
    wait_for_state(&server, "gone", "none");
    wait_for_state(&server, "cold", "none");
    assert!(!scene.copy(gone.id).exists());
    let volume = Volume::open(&scene.store).unwrap();
    volume.edit_title(changed.id, TitleEdit::Title("Another Name".to_owned())).unwrap();
    volume.remove(gone.id).unwrap();
    volume.remove(cold.id).unwrap();
    publish();
    wait_for_state(&server, "changed", "remote");
    bring(&server, "changed");
    // A directory that is not mounted is empty: copies stay, though others cannot be asked for.
    fs::rename(directory.join("t"), scene.dir.path().join("elsewhere")).unwrap();
    until("an empty library", || library(&server)["titles"] == 0);
    assert_eq!(state(&server, "changed"), "cached");
}

#[test]
fn local_title_has_its_name_and_is_never_replaced_or_removed() {
    let scene = Scene::new();
    scene.add("film", 3_000);
    scene.publish();
    let own = Film::new(2_000, 9).add(&Volume::open_or_create(&scene.node).unwrap(), "film");
    let mut server = scene.node(&[]);
    server.wait_for("a title of this store has this name", LIMIT);
    assert_eq!(state(&server, "film"), "local");
    let (head, body) = status_of(&server, "/titles/film.ts");
    assert!(head.starts_with("HTTP/1.1 200") && body.len() as u64 == own.bytes, "{head}");
}
