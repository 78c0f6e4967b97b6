//! The start of a server: whoever gets a connection gets answers, however many titles there are and however large the cache is.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Server, film, http, millrace, read_message};
use millrace_store::volume::Volume;
use millrace_testkit::titles::Film;

/// Titles in the store.
const TITLES: usize = 400;

/// Makes a store of `titles` titles of a few packets, named `title-0` and so on.
fn store_of(dir: &Path, titles: usize) {
    let volume = Volume::open_or_create(dir).unwrap();
    for number in 0..titles {
        Film::new(7, number as u64).add(&volume, &format!("title-{number}"));
    }
}

/// Returns a port that is free now.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Connects as soon as anybody listens.
fn first_connection(address: SocketAddr) -> TcpStream {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < end, "nobody listens on {address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The first line of the answer to DESCRIBE.
fn describe(stream: &mut TcpStream, url: &str) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "DESCRIBE {url} RTSP/1.0\r\nCSeq: 1\r\n\r\n").unwrap();
    let (head, _) = read_message(stream);
    head.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn server_start_answers_first_connection_with_all_titles() {
    let dir = tempfile::tempdir().unwrap();
    store_of(dir.path(), TITLES);
    let address = free_address();
    let mut command = millrace();
    command.args(["serve", "--quiet", "--listen", &address.to_string(), "--cache", "1GiB", "--store"]);
    command.arg(dir.path());
    let asker = std::thread::spawn(move || {
        let mut stream = first_connection(address);
        // By name the last that a server would put on its list.
        [0, TITLES - 1, TITLES / 2]
            .map(|number| describe(&mut stream, &format!("rtsp://{address}/title-{number}")))
    });
    let _server = Server::spawn(command);
    let answers = asker.join().unwrap();
    assert!(answers.iter().all(|line| line.starts_with("RTSP/1.0 200")), "{answers:?}");
}

#[test]
fn server_start_reports_readiness_and_access_to_service_manager_and_terminal() {
    let dir = tempfile::tempdir().unwrap();
    store_of(dir.path(), 1);
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let state = move || {
        let mut buffer = [0; 256];
        let length = manager.recv(&mut buffer).expect("a state within a minute");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let address = free_address();
    let mut command = millrace();
    command.env("NOTIFY_SOCKET", &socket);
    command.args(["serve", "--listen", &address.to_string(), "--store"]).arg(dir.path());
    let waiter = std::thread::spawn(move || {
        assert_eq!(state(), "READY=1");
        // A client may rely on the listeners from now on.
        TcpStream::connect(address).expect("the server listens");
        state
    });
    let mut server = Server::spawn(command);
    let state = waiter.join().unwrap();
    let reach = server.said("reachable ");
    assert!(
        reach[0].starts_with(&format!("reachable from this machine only: RTSP on {address}, HTTP on ")),
        "{reach:?}"
    );
    let access = server.said("access: ");
    assert!(
        access[0].starts_with("access: anyone may watch, only programs on this machine may change"),
        "{access:?}"
    );
    assert!(server.interrupt());
    assert_eq!(state(), "STOPPING=1");
}

/// The arguments of a demo of `films`, with its temporary store below `scratch`.
fn demo(films: &Path, scratch: &Path, page: SocketAddr) -> std::process::Command {
    let mut command = millrace();
    command.arg("demo").arg(films).args(["--listen", "127.0.0.1:0", "--http", &page.to_string()]);
    command.env("TMPDIR", scratch).env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    // What stands in variables is for `serve`.
    command.env("MILLRACE_MAX_STREAMS", "0").env("MILLRACE_STORE", scratch.join("not-this-one"));
    command
}

#[test]
fn demo_with_display_opens_page_with_title_and_leaves_nothing() {
    let (dir, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let films = dir.path().join("films");
    std::fs::create_dir(&films).unwrap();
    film(&films, "first.ts", 2);
    // A browser that notes the address that it opens.
    let (opener, opened) = (dir.path().join("xdg-open"), dir.path().join("opened"));
    let script = format!("#!/bin/sh\necho \"$1\" >{0}.part\nmv {0}.part {0}\n", opened.display());
    std::fs::write(&opener, script).unwrap();
    std::fs::set_permissions(&opener, PermissionsExt::from_mode(0o755)).unwrap();
    let page = free_address();
    let mut command = demo(&films, scratch.path(), page);
    command.env("DISPLAY", ":0");
    command.env("PATH", format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap()));
    let mut server = Server::spawn(command);
    let said = server.wait_for("demo: ", Duration::from_secs(60));
    assert_eq!(said, format!("demo: http://{page}/ opens in your browser; Ctrl-C here ends the demo"));
    let (_, titles) = http::get(&mut TcpStream::connect(page).unwrap(), "/api/v1/titles", "");
    let titles = String::from_utf8(titles).unwrap();
    assert!(titles.contains("\"name\":\"first\""), "{titles}");
    let end = Instant::now() + Duration::from_secs(60);
    while !opened.exists() {
        assert!(Instant::now() < end, "nothing was opened");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(std::fs::read_to_string(&opened).unwrap(), format!("http://{page}/\n"));
    assert!(server.interrupt());
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "the store of the demo is left");
    assert_eq!(std::fs::read_dir(&films).unwrap().count(), 1, "the films are not touched");
}

#[test]
fn demo_without_display_prints_address_of_page() {
    let (films, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    film(films.path(), "first.ts", 2);
    let page = free_address();
    let mut server = Server::spawn(demo(films.path(), scratch.path(), page));
    let said = server.wait_for("demo: ", Duration::from_secs(60));
    assert_eq!(said, format!("demo: open http://{page}/ in a browser; Ctrl-C here ends the demo"));
    assert!(server.interrupt());
}

#[test]
fn demo_without_film_and_ffmpeg_says_what_to_do() {
    let scratch = tempfile::tempdir().unwrap();
    let output =
        millrace().arg("demo").env("TMPDIR", scratch.path()).env("PATH", "/nowhere").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("install ffmpeg, or name a folder of films: millrace demo DIR"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "something is left");
}
