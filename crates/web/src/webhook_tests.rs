use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc as std_mpsc};

use millrace_tls::{Acceptor, Certificates};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A bound, not a measure.
const LONG: Duration = Duration::from_secs(60);

/// A program that sends these bytes on each connection once it has the whole question; the channel
/// returns the questions.
fn program(answer: &'static [u8]) -> (SocketAddr, std_mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = std_mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut came = Vec::new();
            while !came.ends_with(b"}") {
                let mut bytes = [0; 4096];
                match stream.read(&mut bytes).unwrap() {
                    0 => break,
                    count => came.extend_from_slice(&bytes[..count]),
                }
            }
            stream.write_all(answer).unwrap();
            if sender.send(String::from_utf8(came).unwrap()).is_err() {
                return;
            }
        }
    });
    (address, asked)
}

fn question() -> Question {
    Question {
        title: "fi\"lm".to_owned(),
        user: Some("anna".into()),
        has_link: false,
        address: [192, 0, 2, 1].into(),
    }
}

fn ask_once(webhook: &Webhook) -> Result<bool, String> {
    let (sender, answer) = std_mpsc::channel();
    webhook.ask(&question(), Box::new(move |answered| drop(sender.send(answered))));
    answer.recv_timeout(LONG).unwrap()
}

#[test]
fn webhook_status_decides_access() {
    for (answer, expected) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"[..], Ok(true)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Ok(true)),
        // The body may have any length: it is not read.
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\nx", Ok(true)),
        (b"HTTP/1.0 403 Forbidden\r\n\r\nno", Ok(false)),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", Ok(false)),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", Err("it answers 302")),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", Err("it answers 500")),
        (b"no HTTP at all\r\n\r\n", Err("answer")),
        (b"", Err("answer")),
    ] {
        let (address, asked) = program(answer);
        let webhook = Webhook::start(&format!("http://{address}/may?x=1"), LONG, None).unwrap();
        let said = ask_once(&webhook);
        match (&said, &expected) {
            (Err(said), Err(part)) => assert!(said.contains(part), "{said}"),
            _ => assert_eq!(said.as_ref().ok(), expected.as_ref().ok(), "{said:?}"),
        }
        let question = asked.recv_timeout(LONG).unwrap();
        assert!(question.starts_with("POST /may?x=1 HTTP/1.1\r\n"), "{question}");
        assert!(question.contains(&format!("host: {address}\r\n")), "{question}");
        let (_, body) = question.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let expected = json!({ "title": "fi\"lm", "user": "anna", "link": false, "address": "192.0.2.1" });
        assert_eq!(body, expected);
    }
}

#[test]
fn webhook_without_reply_returns_error() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", silent.local_addr().unwrap());
    let webhook = Webhook::start(&address, Duration::from_millis(50), None).unwrap();
    assert!(ask_once(&webhook).unwrap_err().contains("nothing within"));
    drop(silent);
    let webhook = Webhook::start(&address, LONG, None).unwrap();
    assert!(ask_once(&webhook).unwrap_err().contains("connect"));
}

#[test]
fn webhook_with_endless_head_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        // Until it is closed.
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let webhook = Webhook::start(&format!("http://{address}/"), LONG, None).unwrap();
    assert!(ask_once(&webhook).unwrap_err().contains("answer"));
}

/// A program behind TLS, with this certificate, that answers yes.
fn behind_tls(made: &rcgen::CertifiedKey<rcgen::KeyPair>, dir: &Path) -> SocketAddr {
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.join(name));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let totals = Arc::default();
    let certificates = Certificates::read(&certificate, &key, &totals).unwrap();
    let acceptor = Acceptor::new(&certificates, &[], &totals).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            stream.set_nonblocking(true).unwrap();
            runtime.block_on(async {
                let stream = TcpStream::from_std(stream).unwrap();
                // A client that does not trust it asks nothing.
                let Some(mut stream) = acceptor.accept(stream, [127, 0, 0, 1].into()).await else { return };
                let mut came = Vec::new();
                while !came.ends_with(b"}") {
                    assert!(stream.read_buf(&mut came).await.unwrap() > 0);
                }
                stream.write_all(b"HTTP/1.1 204 Yes\r\n\r\n").await.unwrap();
                let _ = stream.shutdown().await;
            });
        }
    });
    address
}

#[test]
fn webhook_by_tls_requires_trusted_certificate() {
    let names = ["127.0.0.1".to_owned()];
    let (here, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let address = behind_tls(&rcgen::generate_simple_self_signed(names.clone()).unwrap(), here.path());
    let elsewhere = behind_tls(&rcgen::generate_simple_self_signed(names).unwrap(), other.path());
    let ca = here.path().join("cert.pem");
    let asked = |url: String| ask_once(&Webhook::start(&url, LONG, Some(&ca)).unwrap());
    assert_eq!(asked(format!("https://{address}/may")), Ok(true));
    let said = asked(format!("https://{elsewhere}/may")).unwrap_err();
    assert!(said.contains("not trusted") && said.contains("--webhook-ca FILE"), "{said}");
    // For another name.
    let said = asked(format!("https://localhost:{}/", address.port())).unwrap_err();
    assert!(said.contains("is for 127.0.0.1, not for localhost"), "{said}");
    let missing =
        Webhook::start("https://x/", LONG, Some(&here.path().join("none"))).unwrap_err().to_string();
    assert!(missing.contains("none: No such file"), "{missing}");
    // In the clear nothing is read of it.
    assert!(Webhook::start("http://x/", LONG, Some(&here.path().join("none"))).is_ok());
}

#[test]
fn addresses() {
    let target = |text: &str| text.parse::<WebhookUrl>();
    let of = target("http://[::1]:9000/may?x").unwrap();
    assert_eq!((&*of.host, of.port, &*of.authority, &*of.path), ("::1", 9000, "[::1]:9000", "/may?x"));
    let of = target("http://hooks.example").unwrap();
    assert_eq!((of.is_tls, of.port, &*of.path), (false, 80, "/"));
    let of = target("https://hooks.example/may").unwrap();
    assert_eq!((of.is_tls, of.port, &*of.path), (true, 443, "/may"));
    for text in
        ["", "hooks.example", "https://a@hooks.example/", "http://", "http://a@b/", "ftp://x/", "http:///x"]
    {
        assert!(target(text).unwrap_err().to_string().contains("http://HOST:PORT/PATH"), "{text}");
    }
}
