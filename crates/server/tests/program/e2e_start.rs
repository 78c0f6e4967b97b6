//! The start of a server: whoever gets a connection gets answers, however many titles there are and however large the cache is.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Server, millrace, read_message};
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
