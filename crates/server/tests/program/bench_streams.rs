//! The senders of `bench streams`: each sends every byte of its titles, block by block, to ten viewers on this host.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use crate::support::millrace;
use millrace_core::units::BitRate;
use millrace_lab::streams::{Blocks, SendMethod, TitleFolder, Transport};

const STREAMS: usize = 10;
const TITLES: u32 = 2;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A sender; ended with its processes when dropped.
struct Sender {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sender {
    fn start(kind: SendMethod, media: &TitleFolder, transport: Transport, more: &[String]) -> Self {
        let blocks = media.blocks;
        let mut command = millrace();
        command.args(["bench-stream", kind.name(), "--transport", transport.name()]);
        command.arg("--dir").arg(&media.dir).args(["--titles", &TITLES.to_string()]);
        command.args(["--streams", &STREAMS.to_string(), "--interval", &format!("{}ns", blocks.interval_ns)]);
        command.args(["--datagram-bytes", &blocks.datagram_bytes.to_string()]);
        command.args(["--datagrams", &blocks.datagrams.to_string()]).args(more);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn wait_until_ready(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
    }

    fn wait(&mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

/// Ten sockets at ports that follow one another.
fn receivers() -> (u16, Vec<UdpSocket>) {
    let in_a_row = |base: u16| -> Option<Vec<UdpSocket>> {
        let port = |n| base.checked_add(n as u16);
        (0..STREAMS).map(|n| UdpSocket::bind((Ipv4Addr::LOCALHOST, port(n)?)).ok()).collect()
    };
    for _ in 0..100 {
        let base = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if let Some(sockets) = in_a_row(base) {
            for socket in &sockets {
                rustix::net::sockopt::set_socket_recv_buffer_size(socket, 8 << 20).unwrap();
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            }
            return (base, sockets);
        }
    }
    panic!("no ten ports in a row");
}

fn file_of(dir: &Path, stream: usize, extension: &str) -> Vec<u8> {
    std::fs::read(dir.join(format!("title-{}.{extension}", stream as u32 % TITLES))).unwrap()
}

fn by_datagrams(kind: SendMethod, media: &TitleFolder, more: &[&str]) {
    let (base, sockets) = receivers();
    let mut all = vec!["--to".to_owned(), "127.0.0.1".to_owned(), "--base-port".to_owned(), base.to_string()];
    all.extend(more.iter().map(|word| (*word).to_owned()));
    let mut sender = Sender::start(kind, media, Transport::Udp, &all);
    sender.wait_until_ready();
    let unit = usize::from(media.blocks.datagram_bytes) + 12;
    for (n, socket) in sockets.iter().enumerate() {
        let expected = file_of(&media.dir, n, "rtp");
        for (at, datagram) in expected.chunks_exact(unit).enumerate() {
            let mut got = [0; 2048];
            let length = socket
                .recv(&mut got)
                .unwrap_or_else(|error| panic!("{kind:?}, stream {n}, datagram {at}: {error}"));
            assert!(got[..length] == *datagram, "{kind:?}, stream {n}, datagram {at} of {length} bytes");
        }
    }
    sender.wait();
    for socket in &sockets {
        socket.set_nonblocking(true).unwrap();
        assert!(socket.recv(&mut [0; 16]).is_err(), "{kind:?} sent more than there is");
    }
}

fn by_connections(kind: SendMethod, media: &TitleFolder) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let more = ["--listen".to_owned(), address.to_string()];
    let mut sender = Sender::start(kind, media, Transport::Tcp, &more);
    sender.wait_until_ready();
    let mut viewers: Vec<TcpStream> = (0..STREAMS).map(|_| TcpStream::connect(address).unwrap()).collect();
    viewers.iter_mut().for_each(|viewer| viewer.write_all(&[1]).unwrap());
    for (n, viewer) in viewers.iter_mut().enumerate() {
        viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut got = Vec::new();
        viewer.read_to_end(&mut got).unwrap();
        // Connections are taken in any order.
        let which = (0..TITLES as usize).find(|title| got == file_of(&media.dir, *title, "ts"));
        assert!(which.is_some(), "{kind:?}, viewer {n}: {} bytes", got.len());
    }
    sender.wait();
}

fn media(dir: &Path, kbps: u64, ms: u64) -> TitleFolder {
    let blocks = Blocks::of(BitRate(kbps * 1000), Duration::from_millis(ms)).unwrap();
    TitleFolder::make(dir, blocks, 2, TITLES).unwrap()
}

fn every_way_of(kind: SendMethod) {
    let dir = tempfile::tempdir().unwrap();
    // A datagram a block, of another size than the usual; then several a block.
    for (kbps, ms) in [(300, 20), (500, 100)] {
        let media = media(&dir.path().join(ms.to_string()), kbps, ms);
        if kind.can(Transport::Udp) {
            by_datagrams(kind, &media, &[]);
        }
        by_connections(kind, &media);
    }
}

#[test]
fn process_sender_sends_every_byte() {
    every_way_of(SendMethod::Process);
}

#[test]
fn sendfile_sends_every_byte() {
    every_way_of(SendMethod::Sendfile);
}

#[test]
fn event_loop_senders_send_every_byte() {
    every_way_of(SendMethod::Events);
    every_way_of(SendMethod::EventsMemory);
    every_way_of(SendMethod::EventsSendfile);
}

#[test]
fn engine_sender_sends_every_byte() {
    every_way_of(SendMethod::Engine);
}

#[test]
fn reads_past_the_cache_send_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let media = media(dir.path(), 500, 100);
    media.forget().unwrap();
    by_datagrams(SendMethod::Process, &media, &["--read-bytes", "4096"]);
    by_datagrams(SendMethod::Events, &media, &["--read-bytes", "131072"]);
}

#[test]
fn library_call_sender_sends_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    // The call opens titles with packets of the usual size.
    let media = media(dir.path(), 500, 100);
    by_datagrams(SendMethod::Call, &media, &[]);
    by_connections(SendMethod::Call, &media);
}
