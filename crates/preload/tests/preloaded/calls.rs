//! Every call that programs make on sockets, by a program that is preloaded; its peer is this kernel.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;

use crate::support::{engine_and_kernel, has_tun, have, preloaded, run};
use millrace_lab::tcp_host::{KERNEL_IP, OUR_IP};

const PORT: u16 = 7300;

/// Echoes the received data, then half-closes.
fn echo(mut stream: TcpStream) {
    // A peer that breaks off is not this side's business.
    let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
    let _ = stream.shutdown(Shutdown::Write);
}

/// Resets behind one byte.
fn reset(mut stream: TcpStream) {
    let mut bytes = [0; 1];
    let _ = stream.read(&mut bytes);
    // Bytes that are not read make a close a reset; there is one more, which is waited for.
    let socket = rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO));
    socket.unwrap();
}

/// Takes ports and connects there.
fn dial(stream: TcpStream) {
    for port in BufReader::new(stream).lines().map_while(Result::ok) {
        let back = TcpStream::connect((OUR_IP, port.parse().unwrap())).unwrap();
        std::thread::spawn(move || echo(back));
    }
}

/// Starts a peer for each connection to a port.
fn serve(port: u16, peer: fn(TcpStream)) {
    let listener = TcpListener::bind((KERNEL_IP, port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || peer(stream));
        }
    });
}

/// Runs a case; returns the number of segments that the engine sent, and the program's standard
/// error.
fn case(name: &str) -> Option<(u64, String)> {
    if !has_tun() || !have(&["python3"]) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let (toe, engine) = engine_and_kernel(dir.path(), 0);
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/preloaded/program.py");
    let left = toe
        .in_kernel(|| {
            serve(PORT, echo);
            serve(PORT + 1, reset);
            serve(PORT + 2, dial);
            TcpListener::bind((KERNEL_IP, PORT + 4)).unwrap()
        })
        .unwrap();
    let mut command = preloaded("python3", &engine);
    let [kernel, own] = [KERNEL_IP, OUR_IP].map(|address| address.to_string());
    let output = run(command.arg(script).args([name, &kernel, &own, &PORT.to_string()]));
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success() && out == "done\n", "{name}: {}\n{out}{err}", output.status);
    if name == "leaves" {
        let (mut stream, _) = left.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert!(all == [b'y'; 300_000], "{} bytes", all.len());
        stream.write_all(b"nobody hears it").unwrap();
    }
    let counters = toe.stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.engine.events_lost), (0, 0), "{counters:?}");
    Some((counters.stack.segments_out, err))
}

#[test]
fn epoll_with_levels_edges_and_sockets_of_the_kernel() {
    case("epoll");
}

#[test]
fn select_and_poll_with_sockets_of_the_kernel() {
    case("select_and_poll");
}

#[test]
fn connections_that_are_refused() {
    case("refused");
}

#[test]
fn half_closed_and_reset_connections() {
    case("half_close_and_reset");
}

#[test]
fn socket_calls_for_read_write_and_dup_work() {
    case("calls");
}

#[test]
fn corked_pieces_share_one_segment() {
    let Some((segments, _)) = case("corks") else { return };
    // 200 answers in two pieces. Each is acknowledged by the echo, which costs a segment where it is not sent along.
    assert!((200..300).contains(&segments), "{segments} segments");
}

#[test]
fn unsupported_calls_are_refused_and_logged_once() {
    let Some((_, err)) = case("refusals") else { return };
    assert_eq!(err.matches("O_ASYNC").count(), 1, "{err}");
}

#[test]
fn listener_on_port_zero_accepts_connections() {
    case("serve");
}

#[test]
fn forked_child_does_not_inherit_connections() {
    let Some((_, err)) = case("forks") else { return };
    assert_eq!(err.matches("connections of the engine stay with the process").count(), 1, "{err}");
}

#[test]
fn threads_that_share_sockets() {
    case("threads");
}

#[test]
fn signals_end_waits() {
    case("signals");
}

#[test]
fn data_written_before_exit_is_delivered() {
    case("leaves");
}
