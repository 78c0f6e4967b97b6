//! Socket activation: the program gets its listeners from the one that starts it, and answers clients that came before.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::support::http::{answer, get};
use crate::support::{Server, add, fails, film, millrace, play, read_message};

const LIMIT: Duration = Duration::from_secs(60);

/// Starts the server as systemd does, with these listeners as the descriptors 3 and 4.
fn activated(listeners: [&TcpListener; 2], names: &str, store: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("bash");
    // By way of numbers that are free: the listeners may be 3 and 4 themselves.
    let move_them = "exec 63<&\"$0\" 62<&\"$1\"; exec 3<&63 4<&62 63<&- 62<&-";
    command.args(["-c", &format!("{move_them}; shift; export LISTEN_PID=$$; exec \"$@\"")]);
    for listener in listeners {
        fcntl_setfd(listener.as_fd(), FdFlags::empty()).unwrap();
        command.arg(listener.as_raw_fd().to_string());
    }
    command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", names);
    command
        .arg(millrace().get_program())
        .args(["serve", "--cache", "32MiB", "--store"])
        .arg(store)
        .args(args);
    command
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn clients_that_connect_before_the_server_runs_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 2), &store);
    let (rtsp, http) = (listener(), listener());
    let connect = |listener: &TcpListener| {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let (mut player, mut browser) = (connect(&rtsp), connect(&http));
    let url = format!("rtsp://{}/film", rtsp.local_addr().unwrap());
    write!(player, "DESCRIBE {url} RTSP/1.0\r\nCSeq: 1\r\n\r\n").unwrap();
    write!(browser, "GET /api/v1/titles/film HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    // The first of the names is HTTP's.
    let mut server = Server::spawn(activated([&http, &rtsp], "http:rtsp", &store, &[]));
    let (head, sdp) = read_message(&mut player);
    assert!(head.starts_with("RTSP/1.0 200") && sdp.contains("m=video"), "{head}{sdp}");
    assert!(answer(&mut browser).0.starts_with("HTTP/1.1 200"));
    assert_eq!((server.addr, server.page()), (rtsp.local_addr().unwrap(), http.local_addr().unwrap()));
    // They are the server's for good: the next clients come in there too.
    assert_eq!(play(&[&url, "-o", "null"])["sequence"]["lost"], 0);
    assert!(get(&mut connect(&http), "/readyz", "").0.starts_with("HTTP/1.1 200"));
    assert!(server.interrupt());
}

#[test]
fn listeners_are_found_by_their_addresses_and_the_rest_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 1), &store);
    let (rtsp, other) = (listener(), listener());
    let address = rtsp.local_addr().unwrap();
    let args = ["--listen", &address.to_string(), "--http", "off"];
    let mut server = Server::spawn(activated([&rtsp, &other], "millrace.socket:http", &store, &args));
    assert_eq!(server.addr, address);
    let rest = server.said("not used");
    let expected = format!("\"http\" at {}: not used: it does not fit --http", other.local_addr().unwrap());
    assert!(rest.len() == 1 && rest[0].contains(&expected), "{rest:?}");
    assert!(server.interrupt());
}

#[test]
fn variables_that_announce_no_sockets_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\"", "sh"]);
    command.arg(millrace().get_program()).args(["serve", "--listen", "127.0.0.1:0", "--store"]).arg(&store);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("descriptor 3 is no socket") && printed.contains("LISTEN_FDS"), "{printed}");
    assert!(fails(&["ls", "--store", store.to_str().unwrap()]).contains("store"), "nothing was created");
}
