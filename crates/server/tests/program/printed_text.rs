//! What commands print: nothing from outside reaches the terminal or the log raw, and a reader that has seen enough is no error.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::time::Duration;

use crate::support::{Server, film, millrace, ok, run};
use millrace_core::text::is_printable;

/// Clears the screen, sets the title, begins a forged line, turns the order of characters round.
const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}31m\u{202e}4pm";

#[track_caller]
fn assert_printable(text: &[u8]) {
    let text = std::str::from_utf8(text).expect("UTF-8");
    assert!(text.chars().all(|c| is_printable(c) || matches!(c, '\n' | '\t')), "{text:?}");
}

fn with_closed_stdout(args: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = millrace().args(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn head_may_end_before_the_command_does() {
    let dir = tempfile::tempdir().unwrap();
    let m: Vec<_> = (0..3).map(|i| dir.path().join(format!("m{i}")).to_str().unwrap().to_owned()).collect();
    ok(&["volume", "create", &m[0], &m[1], &m[2]]);
    let source = film(dir.path(), "film.ts", 2);
    ok(&["add", source.to_str().unwrap(), "--store", &m[0]]);
    let check = |args: &[&str], code: i32| {
        let output = with_closed_stdout(args);
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(code), &b""[..]), "{args:?}");
    };
    check(&["volume", "status", &m[0]], 0);
    check(&["volume", "status", "--json", &m[0]], 0);
    check(&["ls", "--store", &m[0]], 0);
    check(&["ls", "--json", "--store", &m[0]], 0);
    check(&["inspect", "film", "--store", &m[0]], 0);
    check(&["fsck", "--store", &m[0]], 0);
    check(&["bench", "list"], 0);
    // The exit code for a volume does not depend on the output's reader.
    std::fs::rename(&m[1], dir.path().join("lost")).unwrap();
    check(&["volume", "status", &m[0]], 1);
}

#[test]
fn names_of_files_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let plain = film(dir.path(), "plain.ts", 2);
    let hostile = dir.path().join(format!("{HOSTILE}.ts"));
    std::fs::rename(plain, &hostile).unwrap();
    let store = dir.path().join("store");
    let (hostile, store) = (hostile.to_str().unwrap(), store.to_str().unwrap());
    for args in [
        &["add", hostile, "--store", store][..],
        &["ls", "--store", store],
        &["ls", "--json", "--store", store],
        &["fsck", "--store", store],
        // Messages about an existing title and about a missing file contain the name.
        &["add", hostile, "--store", store],
        &["add", "/nowhere/\u{1b}[2J.ts", "--store", store],
        &["inspect", "\u{202e}film", "--store", store],
    ] {
        let output = run(args);
        assert_printable(&output.stdout);
        assert_printable(&output.stderr);
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{args:?}");
    }
    let list: serde_json::Value = serde_json::from_str(&ok(&["ls", "--json", "--store", store])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 1, "it was added once");
    let mut server = Server::start(std::path::Path::new(store), &[]);
    assert!(server.interrupt());
    server.wait_for("stopping", Duration::from_secs(10));
    server.log.iter().for_each(|line| assert_printable(line.as_bytes()));
}

#[test]
fn server_reply_with_terminal_escapes_is_printed_escaped() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rtsp://{}/film", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        // Every request of two clients is refused with words that a terminal would obey.
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = stream.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
                let cseq = text.lines().find(|line| line.starts_with("CSeq")).unwrap_or("CSeq: 1").to_owned();
                let status = if text.starts_with("OPTIONS") { 501 } else { 404 };
                let reply = format!("RTSP/1.0 {status} no {HOSTILE}\r\n{cseq}\r\n\r\n");
                if stream.write_all(reply.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    for args in
        [&["play", &url, "-o", "null"][..], &["load", &url, "--streams", "1", "--duration", "1s", "--quiet"]]
    {
        let output = run(args);
        assert!(!output.status.success());
        assert_printable(&output.stdout);
        assert_printable(&output.stderr);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(args[0] == "load" || said.contains(" no \\u{1b}[2J"), "{said}");
    }
    server.join().unwrap();
}

#[test]
fn user_agent_with_control_characters_is_escaped_in_log() {
    let dir = tempfile::tempdir().unwrap();
    let source = film(dir.path(), "film.ts", 2);
    let store = dir.path().join("store");
    ok(&["add", source.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    let mut server = Server::start(&store, &[]);
    let mut stream = TcpStream::connect(server.addr).unwrap();
    let request = format!(
        "SETUP {} RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP/TCP\r\nUser-Agent: VLC\u{202e}4pm\r\n\r\n",
        server.title("film")
    );
    stream.write_all(request.as_bytes()).unwrap();
    let line = server.wait_for("started: film", Duration::from_secs(10));
    assert!(line.contains("(VLC\\u{202e}4pm)"), "{line}");
    assert_printable(line.as_bytes());
}
