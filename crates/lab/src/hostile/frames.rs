//! Bytes of HTTP/2 frames (RFC 9113 section 4.1), those that no client would send too. Tests of the web side have this file as well.
#![allow(dead_code)] // each of them uses its part

/// Kinds of frames.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Error codes (RFC 9113 section 7).
pub(crate) const CANCEL: u32 = 8;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// The first bytes that a client sends.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The bytes of a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header field as a literal that is not indexed (RFC 7541 section 6.2.2).
pub(crate) fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        match text.len() {
            length @ 0..127 => bytes.push(length as u8),
            // An integer that begins with seven bits (RFC 7541 section 5.1).
            length => {
                let mut rest = length - 127;
                bytes.push(127);
                while rest >= 128 {
                    bytes.push(rest as u8 | 128);
                    rest /= 128;
                }
                bytes.push(rest as u8);
            }
        }
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// The header fields of a GET.
pub(crate) fn get_fields(path: &str) -> Vec<u8> {
    [(":method", "GET"), (":scheme", "http"), (":authority", "tv"), (":path", path), ("host", "tv")]
        .map(|(name, value)| literal(name, value))
        .concat()
}

/// A GET in one frame.
pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &get_fields(path))
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

/// Returns the first bytes that a client sends, with these settings.
pub(crate) fn hello(settings: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = settings
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    [PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat()
}
