use super::*;

fn whole(text: &str) -> Parsed {
    parse(text.as_bytes(), 0)
}

fn get(lines: &str) -> Parsed {
    whole(&format!("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\n{lines}\r\n"))
}

#[test]
fn media_requests_are_for_the_front() {
    let Parsed::Front(front, length) =
        whole("GET /titles/film.ts?x=1 HTTP/1.1\r\nhost: a:8080\r\nRange: bytes=0-\r\n\r\nGET /next")
    else {
        panic!("not for the front");
    };
    assert_eq!(length, "GET /titles/film.ts?x=1 HTTP/1.1\r\nhost: a:8080\r\nRange: bytes=0-\r\n\r\n".len());
    assert_eq!((front.request.method, front.request.path.as_str()), (Method::Get, "/titles/film.ts"));
    assert_eq!(front.request.fields.range.as_deref(), Some("bytes=0-"));
    assert!(front.keeps && !front.is_old);
    for (text, keeps) in [
        ("HEAD http://other/titles/film.ts HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n", false),
        ("\r\nGET /titles/film.ts HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", true),
        ("GET /titles/film.ts HTTP/1.0\r\n\r\n", false),
        ("GET /titles/film.ts HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true),
        ("OPTIONS /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n", true),
    ] {
        let Parsed::Front(front, length) = whole(text) else { panic!("{text}: {:?}", whole(text)) };
        assert_eq!((front.keeps, length), (keeps, text.len()), "{text}");
    }
}

#[test]
fn everything_else_is_for_hyper() {
    for (line, is_whole, keeps) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n", true, true),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n", true, true),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n", true, false),
        ("GET / HTTP/1.0\r\n", true, false),
        ("GET /titles/film HTTP/1.1\r\nHost: a\r\n", true, true),
        ("GET /titles/../film.ts HTTP/1.1\r\nHost: a\r\n", true, true),
        ("POST /titles/film.ts HTTP/1.1\r\nHost: a\r\n", true, true),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n", true, true),
        ("GET ftp://a/titles/film.ts HTTP/1.1\r\nHost: a\r\n", true, true),
        // What follows is no request, or may be none.
        ("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n", false, false),
        ("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n", false, false),
        ("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n", false, false),
        ("GET /titles/film.ts HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n", false, false),
    ] {
        let parsed = whole(&format!("{line}\r\n0\r\n\r\n"));
        let Parsed::Other(other) = parsed else { panic!("{line}: {parsed:?}") };
        assert_eq!(other, OtherRequest { length: line.len() + 2, is_whole, keeps }, "{line}");
    }
    assert!(matches!(parse(H2_PREFACE, 0), Parsed::Http2));
    for end in 1..H2_PREFACE.len() {
        assert!(matches!(parse(&H2_PREFACE[..end], 0), Parsed::More), "{end}");
    }
}

#[test]
fn ambiguous_request_head_is_rejected() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Content-Length:\r\n",
        "Content-Length : 5\r\n",
        "X: a\n",
        "X: a\r\n\tfolded\r\n",
        " X: folded\r\n",
        "X: a\0b\r\n",
        "X: a\rb\r\n",
        "Host: b\r\n",
        ": no name\r\n",
        "no colon\r\n",
        "b\u{e4}d: x\r\n",
    ] {
        assert!(matches!(get(lines), Parsed::Bad(400, _)), "{lines:?}: {:?}", get(lines));
    }
    for text in [
        "GET /titles/film.ts HTTP/1.1\r\n\r\n",
        "GET /titles/film.ts HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /titles/film.ts\r\n\r\n",
        "GET  /titles/film.ts HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /titles/film.ts HTTP/1.1\nHost: a\n\n",
        "\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\r\n\r\n",
        "\r\n\r\n\r\n\r\n",
    ] {
        let parsed = whole(text);
        assert!(matches!(parsed, Parsed::Bad(400, _)), "{text:?}: {parsed:?}");
    }
    assert!(matches!(whole("GET / HTTP/3.0\r\n\r\n"), Parsed::Bad(505, _)));
}

#[test]
fn heads_are_bounded() {
    let many = "X: y\r\n".repeat(MAX_REQUEST_HEADERS);
    assert!(matches!(get(&many), Parsed::Bad(431, _)));
    let long = "a".repeat(MAX_REQUEST_HEAD_BYTES);
    assert!(matches!(get(&format!("X: {long}\r\n")), Parsed::Bad(431, _)));
    assert!(matches!(whole(&format!("GET /{long}")), Parsed::Bad(414, _)));
    let target = "a".repeat(MAX_TARGET_BYTES);
    assert!(matches!(whole(&format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n")), Parsed::Bad(414, _)));
}

/// However the bytes of a request arrive, it is the same request.
#[test]
fn pieces_make_the_same_request() {
    let text = "GET /titles/film.ts HTTP/1.1\r\nHost: a\r\nRange: bytes=5-\r\n\r\nGET";
    let head = text.len() - 3;
    let mut seen = 0;
    for end in 0..head {
        assert!(matches!(parse(&text.as_bytes()[..end], seen), Parsed::More), "{end}");
        seen = end;
    }
    let Parsed::Front(_, length) = parse(text.as_bytes(), seen) else { panic!() };
    assert_eq!(length, head);
}

/// Any input is judged without a panic, a request is no longer than the input, and more bytes after
/// it change nothing.
#[test]
fn anything_at_all() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Parsed::Front(front, length) = parse(bytes, 0) {
            assert!(length <= bytes.len());
            let more = [bytes, b"GET /"].concat();
            let Parsed::Front(again, same) = parse(&more, 0) else { panic!("{more:?}") };
            assert_eq!((same, &again.request.path), (length, &front.request.path));
        }
    });
}

#[test]
fn parse_of_a_head_with_a_tunnel_cookie_is_for_rtsp() {
    let tunnel = "x-sessioncookie: 1a2b\r\nAccept: application/x-rtsp-tunnelled\r\nContent-Length: 32767\r\n";
    for method in ["GET", "POST"] {
        let parsed = whole(&format!("{method} /film HTTP/1.0\r\n{tunnel}\r\n"));
        assert!(matches!(parsed, Parsed::Tunnel(_)), "{method}: {parsed:?}");
    }
    let other = whole(&format!("PUT /film HTTP/1.1\r\nHost: a\r\n{tunnel}\r\n"));
    assert!(!matches!(other, Parsed::Tunnel(_)), "{other:?}");
}
