//! One id follows a request in the log, from its socket to the engine that sends for it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::{Server, add, film, millrace};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

/// Waits for a line of the log whose message has this text.
fn line(server: &mut Server, text: &str) -> Value {
    let line = server.wait_for(text, LIMIT);
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn lines_of_one_request_have_one_id() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 2), &store);
    let mut command = millrace();
    command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--cache", "32MiB"]);
    command.args(["--log-format", "json", "--store"]).arg(&store);
    command.env("MILLRACE_LOG", "info,millrace::requests=debug");
    let mut server = Server::spawn(command);
    let page = server.said("page http://")[0].clone();
    let web: SocketAddr = page.trim_start_matches("page http://").trim_end_matches('/').parse().unwrap();

    let mut viewer = TcpStream::connect(web).unwrap();
    write!(viewer, "GET /titles/film.ts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    viewer.read_to_end(&mut Vec::new()).unwrap();
    let answered = line(&mut server, "GET /titles/film.ts");
    let id = answered["id"].as_str().expect("an id").to_owned();
    assert_eq!((&answered["level"], &answered["target"]), (&"DEBUG".into(), &"millrace::requests".into()));
    let ordered = line(&mut server, ", engine ");
    assert!(
        ordered["message"].as_str().unwrap().starts_with(&format!("{id}: film for 127.0.0.1:")),
        "{ordered}"
    );
    let sent = line(&mut server, "film for 127.0.0.1:");
    assert_eq!((&ordered["id"], &sent["id"]), (&answered["id"], &answered["id"]));

    let mut viewer = TcpStream::connect(server.addr).unwrap();
    let url = server.title("film");
    write!(
        viewer,
        "SETUP {url} RTSP/1.0\r\nCSeq: 7\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n\r\n"
    )
    .unwrap();
    let opened = line(&mut server, &format!("opened by {}", viewer.local_addr().unwrap()));
    let conn = opened["id"].as_str().expect("an id");
    let started = line(&mut server, "started: film");
    let message = started["message"].as_str().unwrap();
    assert!(message.contains(&format!("asked for by {conn}, engine ")), "{message}");
    assert!(message.starts_with(&format!("session {} ", started["id"].as_str().unwrap())), "{message}");
    let answered = line(&mut server, "SETUP 7 answered with 200");
    assert_eq!(answered["id"], *conn);
    drop(viewer);
    assert_eq!(line(&mut server, "ended: film")["id"], started["id"]);
    assert!(server.interrupt());
}
