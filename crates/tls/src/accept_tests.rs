use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::made::{self, Made};

/// Room of a connection in memory.
const ROOM: usize = 64 * 1024;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Starts to accept one end; the other is the client's.
fn arrive(acceptor: &Acceptor) -> (DuplexStream, tokio::task::JoinHandle<Option<TlsStream<DuplexStream>>>) {
    let (near, far) = duplex(ROOM);
    let acceptor = acceptor.clone();
    (near, tokio::spawn(async move { acceptor.accept(far).await }))
}

#[test]
fn both_versions_are_spoken_and_protocols_are_chosen() {
    let (files, certificates, trusted) = Made::ready();
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
fn what_is_no_handshake_and_who_does_not_trust_are_counted() {
    let (files, certificates, _) = Made::ready();
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
fn a_handshake_has_its_time() {
    let (files, certificates, _) = Made::ready();
    let mut acceptor = Acceptor::new(&certificates, &[], &files.totals).unwrap();
    acceptor.limit = Duration::from_millis(20);
    runtime().block_on(async {
        let (_near, accepted) = arrive(&acceptor);
        assert!(accepted.await.unwrap().is_none());
    });
    assert_eq!(files.totals.read().handshakes_too_slow, 1);
    assert!(acceptor.under_way.lock().unwrap().all.is_empty());
}

#[test]
fn clients_that_stall_keep_nobody_out() {
    let (files, certificates, trusted) = Made::ready();
    let acceptor = Acceptor::new(&certificates, &[], &files.totals).unwrap();
    runtime().block_on(async {
        let stalled: Vec<_> = (0..MAX_HANDSHAKES).map(|_| arrive(&acceptor)).collect();
        // All of them have begun.
        while acceptor.under_way.lock().unwrap().all.len() < MAX_HANDSHAKES {
            tokio::task::yield_now().await;
        }
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
