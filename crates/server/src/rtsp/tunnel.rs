//! RTSP in HTTP, which QuickTime introduced for viewers whose network lets only HTTP out. The
//! response to a GET carries everything that the server sends, and the body of a POST carries
//! everything that the viewer sends, in base64. Both requests have the same cookie.

use crate::limits::control::MAX_TUNNEL_COOKIE_BYTES;

/// The response to the GET. The POST gets none.
pub const OPENED: &[u8] = b"HTTP/1.0 200 OK\r\nConnection: close\r\nCache-Control: no-store\r\n\
    Pragma: no-cache\r\nContent-Type: application/x-rtsp-tunnelled\r\n\r\n";

/// The response to a half that is refused.
pub fn refused(status: u16, reason: &str) -> Vec<u8> {
    format!("HTTP/1.0 {status} {reason}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").into_bytes()
}

/// One of the two connections of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelHalf {
    /// Whether it is the GET, which carries replies and media. The POST carries requests.
    pub is_get: bool,
    /// The cookie of both halves.
    pub cookie: Box<str>,
}

impl TunnelHalf {
    /// Reads a request line and the header lines after it. Returns `None` if this is no half of a
    /// tunnel.
    pub fn of<'a>(
        first_line: &[u8],
        mut headers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Option<Self> {
        let mut words = first_line.split(|&b| b == b' ');
        let is_get = match words.next()? {
            b"GET" => true,
            b"POST" => false,
            _ => return None,
        };
        let version = words.nth(1)?;
        if !version.starts_with(b"HTTP/1.") || words.next().is_some() {
            return None;
        }
        let (_, cookie) = headers.find(|(name, _)| name.eq_ignore_ascii_case(b"x-sessioncookie"))?;
        let is_fit =
            (1..=MAX_TUNNEL_COOKIE_BYTES).contains(&cookie.len()) && cookie.iter().all(u8::is_ascii_graphic);
        let cookie = std::str::from_utf8(cookie).ok().filter(|_| is_fit)?;
        Some(Self { is_get, cookie: cookie.into() })
    }
}

/// The body of the POST is not base64, so the beginning of the next message is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RTSP in HTTP: the body of the POST is not base64; the connection is closed")]
pub struct NotBase64;

/// Decodes base64 (RFC 4648 section 4) that arrives in pieces of any length. Players encode each
/// message separately, so there may be padding between two messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Base64Stream {
    /// Bits of the incomplete group, then its number of characters, including padding.
    bits: u32,
    characters: u8,
    padding: u8,
}

impl Base64Stream {
    /// Appends the complete bytes to `out`.
    ///
    /// # Errors
    /// [`NotBase64`]; the bytes before the error are in `out`.
    pub fn decode(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<(), NotBase64> {
        for &character in text {
            let value = match character {
                b'A'..=b'Z' => character - b'A',
                b'a'..=b'z' => character - b'a' + 26,
                b'0'..=b'9' => character - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' if self.characters >= 2 => {
                    self.padding += 1;
                    0
                }
                // Line breaks and spaces are ignored (RFC 2045 section 6.8).
                b'\r' | b'\n' | b' ' | b'\t' => continue,
                _ => return Err(NotBase64),
            };
            if self.padding > 0 && character != b'=' {
                return Err(NotBase64);
            }
            self.bits = self.bits << 6 | u32::from(value);
            self.characters += 1;
            if self.characters == 4 {
                let bytes = self.bits.to_be_bytes();
                out.extend_from_slice(&bytes[1..4 - usize::from(self.padding)]);
                *self = Self::default();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes each message separately, as players do.
    fn encoded(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut out = String::new();
        for group in bytes.chunks(3) {
            let bits =
                group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
            for place in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
                out.push(if place <= group.len() { char::from(digit) } else { '=' });
            }
        }
        out
    }

    fn half(head: &str) -> Option<TunnelHalf> {
        let mut lines = head.split('\n');
        let first = lines.next().unwrap().as_bytes();
        TunnelHalf::of(
            first,
            lines.filter_map(|line| line.split_once(": ")).map(|(n, v)| (n.as_bytes(), v.as_bytes())),
        )
    }

    #[test]
    fn half_of_heads_of_players_has_method_and_cookie() {
        let get = half("GET /film HTTP/1.1\nAccept: application/x-rtsp-tunnelled\nx-sessioncookie: 1a2b");
        assert_eq!(get, Some(TunnelHalf { is_get: true, cookie: "1a2b".into() }));
        let post = half("POST /film HTTP/1.0\nContent-Length: 32767\nX-SessionCookie: 1a2b");
        assert_eq!(post, Some(TunnelHalf { is_get: false, cookie: "1a2b".into() }));
        let long = format!("GET / HTTP/1.1\nx-sessioncookie: {}", "a".repeat(MAX_TUNNEL_COOKIE_BYTES + 1));
        for other in [
            "GET / HTTP/1.1\nAccept: */*",
            "PUT / HTTP/1.1\nx-sessioncookie: 1",
            "GET / HTTP/2.0\nx-sessioncookie: 1",
            "GET / RTSP/1.0\nx-sessioncookie: 1",
            "GET / HTTP/1.1\nx-sessioncookie: ",
            "GET / HTTP/1.1\nx-sessioncookie: a b",
            "GET /a b HTTP/1.1\nx-sessioncookie: 1",
            &long,
        ] {
            assert_eq!(half(other), None, "{other}");
        }
    }

    #[test]
    fn decode_of_text_that_is_no_base64_is_an_error() {
        for bad in ["!", "=", "A=", "AB=C", "AB=!", "QUJD-", "\0", "QQ==="] {
            let mut out = Vec::new();
            assert_eq!(Base64Stream::default().decode(bad.as_bytes(), &mut out), Err(NotBase64), "{bad}");
        }
        let mut out = Vec::new();
        Base64Stream::default().decode(b"QUJD\r\nRA==RUY=R0hJ", &mut out).unwrap();
        assert_eq!(out, b"ABCDEFGHI");
    }

    proptest! {
        #[test]
        fn decode_of_pieces_is_what_was_encoded(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..5),
            piece in 1usize..20,
        ) {
            let text: String = messages.iter().map(|message| encoded(message)).collect();
            let (mut decoder, mut out) = (Base64Stream::default(), Vec::new());
            for piece in text.as_bytes().chunks(piece) {
                decoder.decode(piece, &mut out).unwrap();
            }
            prop_assert_eq!(out, messages.concat());
        }

        #[test]
        fn decode_of_any_bytes_never_gives_more_than_three_quarters(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut out = Vec::new();
            let _ = Base64Stream::default().decode(&text, &mut out);
            prop_assert!(out.len() * 4 <= text.len() * 3);
        }
    }
}
