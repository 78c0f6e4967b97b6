use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream as StdUnix;

use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use tokio::net::TcpSocket;
use tokio_rustls::client::TlsStream as ClientStream;

use super::*;
use crate::certificates::Certificates;
use crate::made::{self, TestCertificate};

/// Bounds, not measurements: nothing here takes this long unless it hangs.
const LONG: Duration = Duration::from_secs(60);

struct RelayFixture {
    files: TestCertificate,
    certificates: Arc<Certificates>,
    trusted: CertificateDer<'static>,
    relay: Relay,
    arrivals: mpsc::Receiver<Relayed>,
    runtime: Runtime,
}

type TestTlsClient = ClientStream<TcpStream>;

impl RelayFixture {
    fn new(stall: Duration) -> Self {
        let (files, certificates, trusted) = TestCertificate::ready();
        let acceptor = Acceptor::new(&certificates, &[], &files.totals).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Connections inherit it: a test that fills the buffers on the path has less to write.
        sockopt::set_socket_send_buffer_size(&listener, 4096).unwrap();
        let (relay, arrivals) = Relay::start(vec![listener], acceptor, stall).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        Self { files, certificates, trusted, relay, arrivals, runtime }
    }

    fn connect(&self, trusted: &CertificateDer<'static>) -> io::Result<TestTlsClient> {
        let (address, client) = (self.relay.addresses()[0], made::client(trusted, &[&TLS13, &TLS12]));
        self.runtime.block_on(async {
            let socket = TcpSocket::new_v4()?;
            socket.set_recv_buffer_size(8192)?;
            client.connect(made::localhost(), socket.connect(address).await?).await
        })
    }

    /// A client, and the end that it is relayed to, which blocks.
    fn open(&mut self) -> (TestTlsClient, StdUnix) {
        let client = self.connect(&self.trusted).unwrap();
        let arrived = self.runtime.block_on(async { timeout(LONG, self.arrivals.recv()).await });
        let Relayed { stream, peer, local } = arrived.unwrap().unwrap();
        let (tcp, _) = client.get_ref();
        assert_eq!((peer, local), (tcp.local_addr().unwrap(), tcp.peer_addr().unwrap()));
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        (client, stream)
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + at / 65_521) as u8).collect()
}

#[test]
fn bytes_go_both_ways_unchanged_and_ends_are_passed_on() {
    let mut site = RelayFixture::new(LONG);
    let (mut client, mut inside) = site.open();
    let (up, down) = (pattern(300_000), pattern(3_000_000));
    let expected = down.clone();
    let thread = std::thread::spawn(move || {
        let mut came = vec![0; 300_000];
        inside.read_exact(&mut came).unwrap();
        inside.write_all(&down).unwrap();
        // The viewer has finished sending; so have we.
        assert_eq!(inside.read(&mut [0]).unwrap(), 0);
        came
    });
    site.runtime.block_on(async {
        client.write_all(&up).await.unwrap();
        client.flush().await.unwrap();
        let mut came = vec![0; expected.len()];
        client.read_exact(&mut came).await.unwrap();
        assert!(came == expected);
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    });
    assert!(thread.join().unwrap() == up);
    site.relay.stop(LONG);
    assert_eq!(site.files.totals.read().relayed, 0);
}

#[test]
fn relay_sends_close_notify_after_last_byte() {
    let mut site = RelayFixture::new(LONG);
    let (mut client, mut inside) = site.open();
    inside.write_all(b"the last reply").unwrap();
    drop(inside);
    site.runtime.block_on(async {
        let mut came = Vec::new();
        // Without the notice of TLS that nothing follows this fails.
        client.read_to_end(&mut came).await.unwrap();
        assert_eq!(came, b"the last reply");
    });
}

/// Encryption accepts more data than a full connection does, and no later data would push the rest
/// out: these are the last bytes for now.
#[test]
fn relay_sends_buffered_bytes_when_full_connection_drains() {
    let mut site = RelayFixture::new(LONG);
    let (mut client, mut inside) = site.open();
    let (mut other, mut beside) = site.open();
    // More than fits on the way, and less than TLS takes beyond that (64 KiB).
    let bytes = pattern(3 * TLS_RECORD_BYTES);
    inside.write_all(&bytes).unwrap();
    // All connections share one thread: once others have been served a few times, it has done all
    // it can with these bytes.
    for _ in 0..10 {
        beside.write_all(b"x").unwrap();
        site.runtime.block_on(async { other.read_u8().await.unwrap() });
    }
    let mut came = vec![0; bytes.len()];
    let all = site.runtime.block_on(async { timeout(LONG, client.read_exact(&mut came)).await });
    assert!(all.is_ok(), "the end does not come");
    assert!(came == bytes);
}

#[test]
fn relay_applies_backpressure_and_closes_viewer_that_stops_reading() {
    let mut site = RelayFixture::new(Duration::from_millis(300));
    let (client, inside) = site.open();
    let (mut other, mut beside) = site.open();
    inside.set_nonblocking(true).unwrap();
    // The buffers on the path are bounded; then the writer waits, and in the end the connection is
    // over.
    let (chunk, mut taken) = (pattern(64 * 1024), 0);
    let end = loop {
        match (&inside).write(&chunk) {
            Ok(count) => taken += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Another viewer is served meanwhile.
                beside.write_all(b"x").unwrap();
                site.runtime.block_on(async { other.read_u8().await.unwrap() });
            }
            Err(error) => break error.kind(),
        }
        assert!(taken < 64 << 20, "nothing holds the writer up");
    };
    assert!(matches!(end, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{end:?}");
    assert_eq!(site.files.totals.read().relayed_too_slow, 1);
    drop(client);
}

#[test]
fn relay_shows_new_certificate_to_new_connections_only() {
    let mut site = RelayFixture::new(LONG);
    let (mut before, mut inside) = site.open();
    let second = made::certificate();
    site.files.write(&second);
    site.certificates.reload().unwrap();
    // The old one is no longer shown.
    assert!(site.connect(&site.trusted).is_err());
    site.trusted = second.cert.der().clone();
    let _after = site.open();
    inside.write_all(b"still here").unwrap();
    site.runtime.block_on(async {
        let mut came = [0; 10];
        before.read_exact(&mut came).await.unwrap();
        assert_eq!(&came, b"still here");
    });
    // A broken one changes nothing.
    std::fs::write(&site.files.files()[0], "nothing").unwrap();
    site.certificates.reload().unwrap_err();
    let _again = site.open();
}

#[test]
fn relay_with_200_stalled_handshakes_serves_other_client() {
    let mut site = RelayFixture::new(LONG);
    let address = site.relay.addresses()[0];
    let stalled: Vec<_> = (0..200)
        .map(|number| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            // Some say nothing, some the beginning of a hello.
            stream.write_all(&[0x16, 3, 1, 2, 0, 1][..number % 7]).unwrap();
            stream
        })
        .collect();
    let (mut client, mut inside) = site.open();
    inside.write_all(b"y").unwrap();
    assert_eq!(site.runtime.block_on(async { client.read_u8().await.unwrap() }), b'y');
    assert_eq!(site.files.totals.read().handshakes, 1);
    drop(stalled);
}
