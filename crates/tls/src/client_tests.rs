use std::net::{SocketAddr, TcpListener, TcpStream};

use rcgen::{BasicConstraints, CertificateParams, CertifiedKey, IsCa, Issuer, KeyPair, date_time_ymd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::made::TestCertificate;
use crate::{Acceptor, Certificates};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// An authority, and its certificate in a file.
fn authority(files: &TestCertificate) -> (Issuer<'static, KeyPair>, PathBuf) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let path = files.at("ca.pem");
    std::fs::write(&path, params.self_signed(&key).unwrap().pem()).unwrap();
    (Issuer::new(params, key), path)
}

/// A certificate for `localhost` and 127.0.0.1 that it has signed.
fn signed(by: &Issuer<'_, KeyPair>, change: impl FnOnce(&mut CertificateParams)) -> CertifiedKey<KeyPair> {
    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let mut params = CertificateParams::new(names).unwrap();
    change(&mut params);
    let signing_key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&signing_key, by).unwrap();
    CertifiedKey { cert, signing_key }
}

/// A server with this certificate that sends hello to every client that trusts it.
fn server(files: &TestCertificate, made: &CertifiedKey<KeyPair>) -> SocketAddr {
    files.write(made);
    let [certificate, key] = files.files();
    let certificates = Certificates::read(&certificate, &key, &files.totals).unwrap();
    let acceptor = Acceptor::new(&certificates, &["h2", "http/1.1"], &files.totals).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            stream.set_nonblocking(true).unwrap();
            runtime().block_on(async {
                let stream = tokio::net::TcpStream::from_std(stream).unwrap();
                if let Some(mut stream) = acceptor.accept(stream, [127, 0, 0, 1].into()).await {
                    stream.write_all(b"hello").await.unwrap();
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    address
}

fn connect(trust: &Trust, host: &str, address: SocketAddr) -> Result<String, ConnectError> {
    let mut stream = trust.connect(host, TcpStream::connect(address).unwrap())?;
    let mut said = String::new();
    // The server announces its end, too: without that, this fails.
    stream.read_to_string(&mut said).unwrap();
    Ok(said)
}

#[test]
fn trust_accepts_server_by_authority_or_own_certificate() {
    let files = TestCertificate::new();
    let (issuer, ca) = authority(&files);
    let made = signed(&issuer, |_| ());
    let address = server(&files, &made);
    let own = crate::made::certificate();
    let own_files = TestCertificate::new();
    let own_address = server(&own_files, &own);
    for (file, address, hosts) in [
        (ca, address, &["localhost", "127.0.0.1"][..]),
        (own_files.files()[0].clone(), own_address, &["localhost"]),
    ] {
        let trust = Trust::read(Some(&file), "--ca").unwrap();
        for host in hosts {
            assert_eq!(connect(&trust, host, address).unwrap(), "hello", "{host}");
            runtime().block_on(async {
                let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                let mut stream = trust.connect_async(host, stream).await.unwrap();
                let mut said = String::new();
                stream.read_to_string(&mut said).await.unwrap();
                assert_eq!(said, "hello", "{host}");
            });
        }
    }
}

#[test]
fn connect_with_invalid_certificate_returns_specific_advice() {
    let files = TestCertificate::new();
    let (issuer, ca) = authority(&files);
    let (other_files, trust) = (TestCertificate::new(), Trust::read(Some(&ca), "--ca").unwrap());
    let (other, _) = authority(&other_files);
    let day = |params: &mut CertificateParams, year: i32| params.not_after = date_time_ymd(year, 1, 2);
    for (made, host, part) in [
        (signed(&other, |_| ()), "localhost", "--ca FILE"),
        (crate::made::certificate(), "localhost", "not trusted"),
        (signed(&issuer, |_| ()), "tv.example", "is for localhost, 127.0.0.1, not for tv.example"),
        (signed(&issuer, |_| ()), "127.0.0.2", "not for 127.0.0.2"),
        (signed(&issuer, |params| day(params, 2001)), "localhost", "days ago"),
        (
            signed(&issuer, |params| params.not_before = date_time_ymd(2990, 1, 1)),
            "localhost",
            "not valid yet",
        ),
        (
            signed(&issuer, |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            "localhost",
            "CA:FALSE",
        ),
    ] {
        let address = server(&other_files, &made);
        let error = connect(&trust, host, address).expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
        let of_async = runtime().block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            trust.connect_async(host, stream).await.expect_err(part).to_string()
        });
        assert_eq!(of_async, error);
    }
    let untrusted = connect(&trust, "localhost", server(&other_files, &signed(&other, |_| ()))).unwrap_err();
    assert!(untrusted.to_string().contains("ca.pem"), "{untrusted}");
    assert_eq!((days(3600), days(90_000)), ("less than a day ago".to_owned(), "1 day ago".to_owned()));
}

#[test]
fn connect_to_server_without_tls_names_the_cause() {
    let files = TestCertificate::new();
    let (_, ca) = authority(&files);
    let trust = Trust::read(Some(&ca), "--ca").unwrap();
    for (answer, part) in [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "write http://"), (b"", "TLS: ")] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Unread data would reset the connection before the answer arrives.
            let mut hello = [0; 5];
            stream.read_exact(&mut hello).unwrap();
            let mut rest = vec![0; usize::from(u16::from_be_bytes([hello[3], hello[4]]))];
            stream.read_exact(&mut rest).unwrap();
            stream.write_all(answer).unwrap();
        });
        let error = connect(&trust, "localhost", address).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        thread.join().unwrap();
    }
    let nowhere = std::io::Cursor::new(Vec::new());
    let error = trust.connect("a b", nowhere).err().unwrap().to_string();
    assert!(error.contains("\"a b\" is not a valid server name"), "{error}");
}

#[test]
fn files_of_authorities() {
    let files = TestCertificate::new();
    let (_, ca) = authority(&files);
    let read = |path: &Path| Trust::read(Some(path), "--ca").map(drop).unwrap_err().to_string();
    assert!(read(&files.at("none")).contains("none: No such file"));
    let broken = files.at("broken.pem");
    for (content, part) in [
        ("", "contains no certificate"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificates of authorities"),
        ("-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n", "not PEM"),
    ] {
        std::fs::write(&broken, content).unwrap();
        assert!(read(&broken).contains(part), "{}", read(&broken));
    }
    // The system's: the named file, else the first that exists.
    let [ca, broken] = [&ca, &broken].map(|path| path.to_str().unwrap());
    let of = |named: Option<&str>, known: &[&str]| {
        system_file(named.map(Into::into), known, "--ca").map_err(|error| error.to_string())
    };
    assert_eq!(of(None, &["/none", ca, broken]), Ok(ca.into()));
    assert_eq!(of(Some(broken), &[ca]), Ok(broken.into()));
    assert_eq!(of(Some(""), &[ca]), Ok(ca.into()));
    assert!(of(None, &["/none"]).unwrap_err().contains("name one with --ca FILE"));
}
