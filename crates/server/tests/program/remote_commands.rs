//! Commands that ask a running server: `ls --server`, `rm --server`, `top`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Server, add, fails, film, ok, run};
use serde_json::{Map, Value};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A server with a title, and the address of its page.
fn serving(dir: &Path) -> (Server, String) {
    let store = dir.join("store");
    add(&film(dir, "film.ts", 4), &store);
    add(&film(dir, "other.ts", 2), &store);
    let mut server = Server::start(&store, &["--http", "127.0.0.1:0"]);
    let page = server.said("page http://")[0].trim_start_matches("page ").trim().to_owned();
    (server, page)
}

/// A viewer by RTSP over TCP that has set up a session.
fn viewer(server: &Server) -> TcpStream {
    let rtsp: SocketAddr = server.addr;
    let mut viewer = TcpStream::connect(rtsp).unwrap();
    let url = server.title("film");
    write!(
        viewer,
        "SETUP {url} RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n\r\n"
    )
    .unwrap();
    let mut reply = [0; 15];
    viewer.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"RTSP/1.0 200 OK");
    viewer
}

#[test]
fn titles_of_a_server_are_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, page) = serving(dir.path());
    let store = dir.path().join("store");
    let by_store = ok(&["ls", "--store", store.to_str().unwrap()]);
    assert_eq!(ok(&["ls", "--server", &page]), by_store, "both say the same of the same titles");
    let json: Value = serde_json::from_str(&ok(&["ls", "--json", "--server", &page])).unwrap();
    assert_eq!((&json[0]["name"], &json[1]["name"]), (&"film".into(), &"other".into()));
    assert!(json[0]["hls"].is_string());
    same_fields_by_store_and_server(store.to_str().unwrap(), &page);
    assert_eq!(ok(&["rm", "--server", &page, "other"]), "removed other\n");
    // It is not listed any more at once, nor is it in the store.
    let listed = ok(&["ls", "--server", &page]);
    assert!(listed.contains("film") && !listed.contains("other"), "{listed}");
    assert!(!ok(&["ls", "--store", store.to_str().unwrap()]).contains("other"));
    let missing = fails(&["rm", "--server", &page, "other", "a/../b"]);
    assert!(
        missing.contains("other: no such title") && missing.contains("a/../b: no such title"),
        "{missing}"
    );
    // Errors are reported with a remedy.
    for (args, why) in [
        (&["ls", "--server", "http://127.0.0.1:1/"][..], "refused"),
        (&["ls", "--server", "tv"], "write http://HOST:PORT/"),
        (&["ls", "--server", &page, "--all"], "are for a store"),
        (&["ls", "--server", &page, "--store", store.to_str().unwrap()], "omit one of them"),
        (&["rm", "--server", &page, "film", "--member", "/none"], "omit one of them"),
        (&["ls", "--server", &page, "--ca", "/none.pem"], "--ca: has no effect with a server at http://"),
        (
            &["top", "--once", "--server", &page, "--ca", "/none.pem"],
            "--ca: has no effect with a server at http://",
        ),
        (&["ls", "--token", "secret"], "say which with --server"),
        (&["ls", "--server", &format!("{page}none")], "none/api/v1/titles: the server says 404"),
        (&["ls", "--server", &format!("{page}none")], "address of the page is http://HOST:PORT/"),
    ] {
        let said = fails(args);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    assert!(server.interrupt());
}

/// A script that reads the JSON of the server reads the JSON of the store: it has the same fields with
/// the same values, and further ones.
fn same_fields_by_store_and_server(store: &str, page: &str) {
    let listed = |args: &[&str]| -> Vec<Map<String, Value>> {
        serde_json::from_str(&ok(&[&["ls", "--json"], args].concat())).unwrap()
    };
    let end = Instant::now() + Duration::from_secs(60);
    let by_server = loop {
        let by_server = listed(&["--server", page]);
        // A running server makes pictures in the background.
        if by_server.iter().all(|title| title["pictures"] == "made") {
            break by_server;
        }
        assert!(Instant::now() < end, "no pictures: {by_server:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let by_store = listed(&["--store", store]);
    assert_eq!(by_store.len(), by_server.len());
    for (ours, theirs) in by_store.iter().zip(&by_server) {
        for (field, value) in theirs {
            assert_eq!(ours.get(field), Some(value), "{field}");
        }
        for field in ["notes", "source", "blake3", "playable", "damaged"] {
            assert!(ours.contains_key(field), "{field}: {ours:?}");
        }
        for field in ["duration", "mean_rate", "peak_rate", "constant_rate"] {
            assert!(!ours.contains_key(field), "{field} is there in another form: {ours:?}");
        }
    }
}

#[test]
fn titles_are_listed_and_removed_by_patterns() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, page) = serving(dir.path());
    let store = dir.path().join("store");
    for at in [["--server", &page], ["--store", store.to_str().unwrap()]] {
        let of = |args: &[&'static str]| args.iter().copied().chain(at).collect::<Vec<&str>>();
        let listed: Value = serde_json::from_str(&ok(&of(&["ls", "fi*", "--json"]))).unwrap();
        assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &"film".into()));
        assert!(fails(&of(&["ls", "none"])).contains("none: no such title"));
        assert!(fails(&of(&["rm", "none*"])).contains("none*: no such title"));
    }
    assert_eq!(ok(&["rm", "--server", &page, "o*r", "other"]), "removed other\n");
    assert!(ok(&["rm", "--store", store.to_str().unwrap(), "*"]).starts_with("removed film ("));
    assert!(ok(&["ls", "--store", store.to_str().unwrap()]).starts_with("no titles yet"));
    assert!(server.interrupt());
}

#[test]
fn remote_commands_without_valid_credentials_report_reason() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 2), &store);
    let mut user = support::millrace();
    user.args(["user", "add", "boss", "--manage", "--store", store.to_str().unwrap()]);
    let mut user = user.stdin(Stdio::piped()).spawn().unwrap();
    user.stdin.take().unwrap().write_all(b"secret-word\n").unwrap();
    assert!(user.wait().unwrap().success());
    let mut server = Server::start(&store, &["--http", "127.0.0.1:0", "--trust-loopback", "off"]);
    let page = server.said("page http://")[0].trim_start_matches("page ").trim().to_owned();
    for args in [&["rm", "--server", &page, "film"][..], &["top", "--once", "--server", &page]] {
        let said = fails(args);
        assert!(said.contains("the server says 40"), "{said}");
    }
    assert!(ok(&["ls", "--server", &page]).contains("film"));
    let with_user = page.replace("http://", "http://boss:wrong-word@");
    let file = dir.path().join("film.ts");
    let file = ["add", "--name", "new", file.to_str().unwrap()];
    let commands = [&["ls"][..], &["top", "--once"], &["rm", "film"], &file];
    for args in commands {
        let done = run(&[args, &["--server", &with_user]].concat());
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.code() == Some(1)
                && said.contains("the server says 401")
                && said.contains("password or the token is wrong"),
            "{args:?}: {done:?}"
        );
    }
    assert!(server.interrupt());
    // Wrong credentials are also reported where none are needed: all clients may list, and here
    // they may do all the rest.
    let mut server = Server::start(&store, &["--http", "127.0.0.1:0"]);
    let page = server.said("page http://")[0].trim_start_matches("page ").trim().to_owned();
    for who in ["boss:wrong-word@", "nobody:secret-word@"] {
        let with_user = page.replace("http://", &format!("http://{who}"));
        for args in commands {
            let done = run(&[args, &["--server", &with_user]].concat());
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(
                done.status.code() == Some(1) && said.contains("password or the token is wrong"),
                "{args:?}: {done:?}"
            );
        }
    }
    assert!(fails(&["ls", "--server", &page, "--token", "mr_none"]).contains("the token is wrong"));
    let with_user = page.replace("http://", "http://boss:secret-word@");
    assert!(ok(&["ls", "--server", &with_user]).contains("film"));
    // Players with an old password in their address play on.
    let mut player = TcpStream::connect(server.page()).unwrap();
    write!(
        player,
        "GET /titles/film/index.m3u8 HTTP/1.1\r\nHost: tv\r\nAuthorization: Basic Ym9zczp3cm9uZw==\r\n\r\n"
    )
    .unwrap();
    assert!(support::read_head(&mut player).starts_with("HTTP/1.1 200 "));
    assert!(server.interrupt());
}

/// As proxies have it that want to be asked by https.
#[test]
fn remote_commands_on_redirect_name_new_location() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let page = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            support::read_head(&mut stream);
            let answer = "HTTP/1.1 301 Moved Permanently\r\nLocation: https://tv.example/x\r\n\r\n<html>";
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let film = film(dir.path(), "film.ts", 1);
    let file = film.to_str().unwrap();
    for args in [&["ls"][..], &["rm", "film"], &["top", "--once"], &["add", file]] {
        let said = fails(&[args, &["--server", &page]].concat());
        assert!(said.contains("redirects to https://tv.example/x; give --server"), "{args:?}: {said}");
    }
}

#[test]
fn top_says_once_how_the_server_is() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, page) = serving(dir.path());
    let viewer = viewer(&server);
    let said: Value = serde_json::from_str(&ok(&["top", "--once", "--json", "--server", &page])).unwrap();
    assert!(said["figures"]["bits_per_s"].is_u64() && said["figures"]["limit"].is_object(), "{said}");
    assert_eq!(said["figures"]["engines"].as_array().map(Vec::len), Some(2));
    assert_eq!(said["status"]["sessions"][0]["peer"], viewer.local_addr().unwrap().to_string());
    let text = ok(&["top", "--once", "--server", &page]);
    assert!(text.starts_with(&format!("millrace top  {page}\n")) && text.contains("engine 1  "), "{text}");
    assert!(text.contains("SESSION") && text.contains(&viewer.local_addr().unwrap().to_string()), "{text}");
    let none = fails(&["top", "--server", &page]);
    assert!(none.contains("--once"), "without a terminal it says what to do: {none}");
    drop(viewer);
    assert!(server.interrupt());
}

/// A command on a terminal of 80 columns and 24 lines; a thread collects its output.
pub(crate) struct Terminal {
    child: Child,
    said: std::sync::mpsc::Receiver<Vec<u8>>,
    /// All output up to now.
    pub(crate) text: String,
}

impl Terminal {
    fn of(page: &str) -> Self {
        Self::running(&format!("top --server {page}"))
    }

    pub(crate) fn running(command: &str) -> Self {
        let millrace = env!("CARGO_BIN_EXE_millrace");
        // The shell outlives Ctrl-C, to say how the terminal is behind it.
        let line = format!(
            "trap : INT; stty rows 24 cols 80; '{millrace}' {command}; echo code $?; stty -a; echo that was it"
        );
        let mut child = Command::new("script")
            .args(["-q", "-e", "-c", &line, "/dev/null"])
            .env_remove("MILLRACE_STORE")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script of util-linux can be started");
        let mut out = child.stdout.take().unwrap();
        let (to, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                if to.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, said, text: String::new() }
    }

    /// Waits until it has written this text.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let end = Instant::now() + TIMEOUT;
        while !self.text.contains(text) {
            let left = end.saturating_duration_since(Instant::now());
            let bytes =
                self.said.recv_timeout(left).unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.text));
            self.text += &String::from_utf8_lossy(&bytes);
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Ends by these keys; how the terminal is behind it.
    fn end_by(mut self, keys: &str, code: u8) {
        self.press(keys);
        self.wait_for("that was it");
        let text = &self.text;
        let left =
            text.find("\x1b[?25h\x1b[?1049l").unwrap_or_else(|| panic!("the other screen stays: {text:?}"));
        assert!(left < text.find(&format!("code {code}")).unwrap_or(0), "{text:?}");
        assert!(
            text.contains(" icanon") && text.contains(" echo ") && !text.contains("susp = <undef>"),
            "{text:?}"
        );
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_lives_on_a_terminal_and_gives_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, page) = serving(dir.path());
    let mut terminal = Terminal::of(&page);
    terminal.wait_for("\x1b[?1049h");
    terminal.wait_for("engine 1  ");
    // What happens while it looks is seen.
    let viewer = viewer(&server);
    let peer = viewer.local_addr().unwrap().to_string();
    terminal.wait_for(&format!("begins: film for {peer}"));
    terminal.wait_for(&format!("{:<17} {peer}", "film"));
    // Each screen is 24 lines that fit.
    let screen = terminal.text.rsplit("\x1b[H").nth(1).expect("a whole screen").replace("\x1b[K", "");
    let lines: Vec<_> = screen.trim_end_matches("\x1b[J").split("\r\n").collect();
    assert_eq!(lines.len(), 24, "{screen:?}");
    // The terminal makes CR and LF of each LF.
    assert!(lines.iter().all(|line| line.trim_end_matches('\r').chars().count() <= 80), "{screen:?}");
    drop(viewer);
    terminal.wait_for("ended: film");
    terminal.end_by("q", 0);
    let mut terminal = Terminal::of(&page);
    terminal.wait_for("engine 1  ");
    terminal.end_by("\x03", 0);
    // A server that goes away is no end.
    let mut terminal = Terminal::of(&page);
    terminal.wait_for("engine 1  ");
    assert!(server.interrupt());
    terminal.wait_for("no response, retrying");
    terminal.end_by("q", 0);
}

/// What `script` cannot show: a terminal that is not read, and one that goes away.
#[test]
fn top_gives_back_terminals_that_are_stuck_and_ends_with_those_that_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, page) = serving(dir.path());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/support/top_terminal.py");
    let python = Command::new("python3").args([script, env!("CARGO_BIN_EXE_millrace"), &page]).output();
    match python {
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{said}");
        }
        Err(error) => eprintln!("skipped: python3 cannot be started: {error}"),
    }
    assert!(server.interrupt());
}

#[test]
fn password_prompt_on_interrupt_restores_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let rights = dir.path().join("rights.sqlite");
    let mut terminal = Terminal::running(&format!("user add anna --rights '{}'", rights.display()));
    terminal.wait_for("Password of anna: ");
    terminal.press("secret\x03");
    terminal.wait_for("that was it");
    let text = &terminal.text;
    assert!(text.contains("code 130") && text.contains(" echo ") && !text.contains("secret"), "{text:?}");
    assert!(text.contains("susp = ^Z") && text.contains("quit = ^\\"), "{text:?}");
    assert!(!ok(&["user", "ls", "--rights", rights.to_str().unwrap()]).contains("anna"));
}

#[test]
fn rm_at_something_else_than_millrace_reports_no_removal() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        "HTTP/1.1 202 Accepted\r\nServer: millrace/1\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n<p>no</p>",
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}/", listener.local_addr().unwrap());
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            support::read_head(&mut stream);
            std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
        });
        let output = support::run(&["rm", "film", "--server", &server]);
        other.join().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(output.stdout.is_empty() && said.contains("is not that of a Millrace server"), "{output:?}");
    }
}
