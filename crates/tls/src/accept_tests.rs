use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::made::{self, TestCertificate};

/// Room of a connection in memory.
const ROOM: usize = 64 * 1024;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The client's end, and the task that performs the handshake.
type Arrived = (DuplexStream, tokio::task::JoinHandle<Option<TlsStream<DuplexStream>>>);

/// Starts to accept one end; the other is the client's.
fn arrive(acceptor: &Acceptor) -> Arrived {
    arrive_from(acceptor, 1)
}

/// The same for a client with an address of its own.
fn arrive_from(acceptor: &Acceptor, host: u8) -> Arrived {
    let (near, far) = duplex(ROOM);
    let acceptor = acceptor.clone();
    (near, tokio::spawn(async move { acceptor.accept(far, IpAddr::from([192, 0, 2, host])).await }))
}

/// Waits until `count` handshakes are in progress and `begun` of them have a ClientHello.
async fn under_way(acceptor: &Acceptor, count: usize, begun: usize) {
    loop {
        {
            let under_way = acceptor.under_way.lock().unwrap();
            let has_begun: usize = under_way.clients.values().map(|client| client.begun.len()).sum();
            if (under_way.count, has_begun) == (count, begun) {
                return;
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Returns the first bytes that a client sends.
fn hello() -> Vec<u8> {
    let (_, _, trusted) = TestCertificate::ready();
    let config = made::client(&trusted, &[&TLS13]);
    let mut client = rustls::ClientConnection::new(Arc::clone(config.config()), made::localhost()).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn acceptor_completes_tls_1_2_and_1_3_handshakes() {
    let (files, certificates, trusted) = TestCertificate::ready();
    let acceptor = Acceptor::new(&certificates, &["h2", "http/1.1"], &files.totals).unwrap();
    runtime().block_on(async {
        for (version, number) in
            [(&TLS12, rustls::ProtocolVersion::TLSv1_2), (&TLS13, rustls::ProtocolVersion::TLSv1_3)]
        {
            let (near, accepted) = arrive(&acceptor);
            let mut client =
                made::client(&trusted, &[version]).connect(made::localhost(), near).await.unwrap();
            assert_eq!(client.get_ref().1.protocol_version(), Some(number));
            let mut server = accepted.await.unwrap().unwrap();
            client.write_all(b"hello").await.unwrap();
            client.flush().await.unwrap();
            let mut came = [0; 5];
            server.read_exact(&mut came).await.unwrap();
            assert_eq!(&came, b"hello");
        }
    });
    assert_eq!(files.totals.read().handshakes, 2);
}

#[test]
fn acceptor_counts_failed_handshakes() {
    let (files, certificates, _) = TestCertificate::ready();
    let other = made::certificate();
    let acceptor = Acceptor::new(&certificates, &[], &files.totals).unwrap();
    runtime().block_on(async {
        let (mut near, accepted) = arrive(&acceptor);
        near.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        assert!(accepted.await.unwrap().is_none());
        let (near, accepted) = arrive(&acceptor);
        drop(near);
        assert!(accepted.await.unwrap().is_none());
        let (near, accepted) = arrive(&acceptor);
        let client = made::client(other.cert.der(), &[&TLS12]);
        assert!(client.connect(made::localhost(), near).await.is_err());
        assert!(accepted.await.unwrap().is_none());
    });
    let counted = files.totals.read();
    assert_eq!((counted.handshakes, counted.handshakes_failed), (0, 3));
}

#[test]
fn acceptor_drops_handshake_beyond_time_limit() {
    let (files, certificates, _) = TestCertificate::ready();
    let mut acceptor = Acceptor::new(&certificates, &[], &files.totals).unwrap();
    acceptor.limit = Duration::from_millis(20);
    runtime().block_on(async {
        let (_near, accepted) = arrive(&acceptor);
        assert!(accepted.await.unwrap().is_none());
    });
    assert_eq!(files.totals.read().handshakes_too_slow, 1);
    assert!(acceptor.under_way.lock().unwrap().clients.is_empty());
}

#[test]
fn accept_with_too_many_of_one_client_gives_up_its_oldest() {
    let (files, certificates, trusted) = TestCertificate::ready();
    let acceptor = Acceptor::new(&certificates, &[], &files.totals).unwrap();
    runtime().block_on(async {
        let stalled: Vec<_> = (0..MAX_HANDSHAKES).map(|_| arrive(&acceptor)).collect();
        under_way(&acceptor, MAX_HANDSHAKES, 0).await;
        let (near, accepted) = arrive(&acceptor);
        let _client = made::client(&trusted, &[&TLS13]).connect(made::localhost(), near).await.unwrap();
        assert!(accepted.await.unwrap().is_some());
        // For it the oldest was given up, and no other.
        let mut stalled = stalled.into_iter();
        assert!(stalled.next().unwrap().1.await.unwrap().is_none());
        assert!(stalled.all(|(_, accepted)| !accepted.is_finished()));
    });
    let counted = files.totals.read();
    assert_eq!((counted.handshakes, counted.handshakes_dropped), (1, 1));
}

/// A client with a slow network stays silent for a while, or has sent its ClientHello and not the
/// rest. It gets in, however many connections others open meanwhile, whether these stay silent or
/// send a ClientHello each.
#[test]
fn accept_beside_floods_of_others_lets_slow_clients_in() {
    let (files, certificates, trusted) = TestCertificate::ready();
    let acceptor = Acceptor::new(&certificates, &[], &files.totals).unwrap();
    let hello = hello();
    runtime().block_on(async {
        let (mut begun, begun_accepted) = arrive_from(&acceptor, 100);
        begun.write_all(&hello).await.unwrap();
        under_way(&acceptor, 1, 1).await;
        let (silent, silent_accepted) = arrive_from(&acceptor, 101);
        for says_hello in [false, true] {
            let mut flood = Vec::new();
            for number in 0..4 * MAX_HANDSHAKES {
                let mut arrived = arrive_from(&acceptor, (number % 4) as u8);
                if says_hello {
                    arrived.0.write_all(&hello).await.unwrap();
                }
                flood.push(arrived);
                tokio::task::yield_now().await;
            }
            assert!(
                flood.iter().filter(|(_, accepted)| accepted.is_finished()).count() >= 3 * MAX_HANDSHAKES
            );
            assert!(!begun_accepted.is_finished() && !silent_accepted.is_finished(), "{says_hello}");
            drop(flood);
        }
        let _client = made::client(&trusted, &[&TLS13]).connect(made::localhost(), silent).await.unwrap();
        assert!(silent_accepted.await.unwrap().is_some());
        assert!(!begun_accepted.is_finished());
    });
    assert!(files.totals.read().handshakes_dropped >= 6 * MAX_HANDSHAKES as u64);
}
