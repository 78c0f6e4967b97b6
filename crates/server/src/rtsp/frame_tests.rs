use super::*;

fn framer(bytes: &[u8]) -> Framer {
    let mut framer = Framer::default();
    framer.push(bytes);
    framer
}

fn request(bytes: &[u8]) -> RtspRequest {
    match framer(bytes).next_incoming() {
        Ok(Some(Incoming::Request(request))) => *request,
        other => panic!("{other:?}"),
    }
}

fn error(bytes: &[u8]) -> (u16, Option<u32>) {
    let mut framer = framer(bytes);
    let error = framer.next_incoming().expect_err("an error");
    // Nothing more comes out, and nothing more is kept.
    framer.push(b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n");
    assert_eq!(framer.next_incoming(), Ok(None));
    assert_eq!(framer.buffered_bytes(), 0);
    (error.status.into(), error.cseq)
}

const OPTIONS: &[u8] = b"OPTIONS rtsp://h/film RTSP/1.0\r\nCSeq: 7\r\nUser-Agent: x\r\n\r\n";

#[test]
fn framer_fed_byte_by_byte_yields_request_at_last_byte() {
    let whole = request(OPTIONS);
    assert_eq!(whole.request_uri().unwrap().as_str(), "rtsp://h/film");
    let mut framer = Framer::default();
    for (i, &byte) in OPTIONS.iter().enumerate() {
        framer.push(&[byte]);
        let incoming = framer.next_incoming().unwrap();
        assert_eq!(incoming.is_some(), i + 1 == OPTIONS.len());
        assert_eq!(framer.is_mid_message(), i + 1 < OPTIONS.len());
    }
}

#[test]
fn several_messages_frames_and_blank_lines_in_one_read() {
    let mut bytes = b"\r\n\r\n".to_vec();
    bytes.extend_from_slice(OPTIONS);
    bytes.extend_from_slice(b"$\x01\x00\x03abc");
    bytes.extend_from_slice(b"SET_PARAMETER * RTSP/1.0\r\nCSeq: 8\r\nContent-Length: 4\r\n\r\nbody");
    bytes.extend_from_slice(b"RTSP/1.0 200 OK\r\nCSeq: 3\r\n\r\n");
    let mut framer = framer(&bytes);
    assert!(matches!(framer.next_incoming(), Ok(Some(Incoming::Request(_)))));
    assert_eq!(
        framer.next_incoming(),
        Ok(Some(Incoming::Interleaved { channel: 1, bytes: b"abc".to_vec() }))
    );
    let Ok(Some(Incoming::Request(with_body))) = framer.next_incoming() else { panic!("a request") };
    assert_eq!(with_body.body(), b"body");
    assert_eq!(framer.next_incoming(), Ok(Some(Incoming::Response)));
    assert_eq!(framer.next_incoming(), Ok(None));
    assert!(!framer.is_mid_message());
}

#[test]
fn bare_line_feeds_and_continued_lines_are_read() {
    let lf = request(b"OPTIONS rtsp://h/film RTSP/1.0\nCSeq: 7\nRequire: a,\n b\n\n");
    assert_eq!(lf.header(&rtsp_types::headers::CSEQ).unwrap().as_str(), "7");
    assert_eq!(lf.header(&rtsp_types::headers::REQUIRE).unwrap().as_str(), "a, b");
    let folded = request(b"OPTIONS * RTSP/1.0\r\nCSeq: 7\r\nX: 1\r\n\t2\r\n   3\r\n\r\n");
    let value = folded.headers().find(|(name, _)| name.as_str() == "X").unwrap().1;
    assert_eq!(value.as_str(), "1 2 3");
}

#[test]
fn limits_of_length_and_number() {
    let long_url = format!("OPTIONS rtsp://h/{} RTSP/1.0\r\nCSeq: 9\r\n\r\n", "x".repeat(MAX_RTSP_URL_BYTES));
    assert_eq!(error(long_url.as_bytes()), (414, Some(9)));
    let endless_line = "x".repeat(MAX_RTSP_URL_BYTES + 100);
    assert_eq!(error(endless_line.as_bytes()).0, 414);
    let long_head = format!("OPTIONS * RTSP/1.0\r\nCSeq: 9\r\nX: {}", "x".repeat(1_000_000));
    assert_eq!(error(long_head.as_bytes()), (413, Some(9)));
    let many = format!("OPTIONS * RTSP/1.0\r\nCSeq: 9\r\n{}\r\n", "X: 1\r\n".repeat(MAX_RTSP_HEADERS));
    assert_eq!(error(many.as_bytes()), (400, Some(9)));
    let just_enough =
        format!("OPTIONS * RTSP/1.0\r\nCSeq: 9\r\n{}\r\n", "X: 1\r\n".repeat(MAX_RTSP_HEADERS - 1));
    request(just_enough.as_bytes());
    let body =
        format!("SET_PARAMETER * RTSP/1.0\r\nCSeq: 9\r\nContent-Length: {MAX_RTSP_MESSAGE_BYTES}\r\n\r\n");
    assert_eq!(error(body.as_bytes()), (413, Some(9)));
    for length in ["-1", "1x", "99999999999999999999999", "+5", ""] {
        let bad = format!("SET_PARAMETER * RTSP/1.0\r\nCSeq: 9\r\nContent-Length: {length}\r\n\r\n");
        assert_eq!(error(bad.as_bytes()), (400, Some(9)), "{length}");
    }
    let two = b"SET_PARAMETER * RTSP/1.0\r\nCSeq: 9\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab";
    assert_eq!(error(two), (400, Some(9)));
}

#[test]
fn framer_given_malformed_or_foreign_message_returns_400_or_505() {
    assert_eq!(error(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"), (400, None));
    assert_eq!(error(b"OPTIONS * RTSP/3.0\r\nCSeq: 4\r\n\r\n"), (505, Some(4)));
    assert_eq!(error(b"OPTIONS * RTSP/1.1\r\nCSeq: 4\r\n\r\n"), (505, Some(4)));
    assert_eq!(error(b"OPTIONS *\r\nCSeq: 4\r\n\r\n"), (400, Some(4)));
    assert_eq!(error(b"OPTIONS not-a-url RTSP/1.0\r\nCSeq: 4\r\n\r\n"), (400, Some(4)));
    assert_eq!(error(b"OPTIONS * RTSP/1.0\r\nno colon here\r\nCSeq: 4\r\n\r\n"), (400, Some(4)));
    assert_eq!(error(b"\x16\x03\x01\x02\x00\x01"), (400, None)); // a TLS client
    assert_eq!(error(b"OPTIONS * RTSP/1.0\r\nX: a\rb\r\n\r\n"), (400, None));
    // Version 2.0 is a message; the session layer refuses it and the connection goes on.
    request(b"OPTIONS * RTSP/2.0\r\nCSeq: 4\r\n\r\n");
}

#[test]
fn framer_with_oversized_frame_skips_it_without_buffering() {
    let mut framer = framer(b"$\x00\xff\xff");
    for _ in 0..65 {
        framer.push(&[b'R'; 1000]);
        assert_eq!(framer.next_incoming(), Ok(None));
        assert_eq!(framer.buffered_bytes(), 0);
        assert!(framer.is_mid_message());
    }
    framer.push(&[b'R'; 535]);
    framer.push(b"$\x01\x00\x01x");
    assert_eq!(framer.next_incoming(), Ok(Some(Incoming::Interleaved { channel: 1, bytes: b"x".to_vec() })));
    assert_eq!(framer.skipped_frames(), 1);
    // Whole in one read, and followed by another frame.
    let mut bytes = vec![b'$', 0, 0x20, 0];
    bytes.extend([b'$'; 0x2000]);
    bytes.extend_from_slice(b"$\x02\x00\x01y");
    framer.push(&bytes);
    assert_eq!(framer.next_incoming(), Ok(Some(Incoming::Interleaved { channel: 2, bytes: b"y".to_vec() })));
}

#[test]
fn memory_stays_bounded_while_a_message_is_incomplete() {
    let mut framer = framer(b"SET_PARAMETER * RTSP/1.0\r\nCSeq: 1\r\nContent-Length: 16000\r\n\r\n");
    for _ in 0..15 {
        framer.push(&[0; 1000]);
        assert_eq!(framer.next_incoming(), Ok(None));
        assert!(framer.buffered_bytes() <= MAX_RTSP_MESSAGE_BYTES);
    }
    framer.push(&[0; 1000]);
    assert!(matches!(framer.next_incoming(), Ok(Some(Incoming::Request(_)))));
}
