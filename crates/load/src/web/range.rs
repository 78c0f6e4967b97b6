//! Maps a position in the title to bytes of a file, and checks that a reply has the bytes
//! requested.

use super::exchange::ByteRange;
use super::head::Head;

/// The range from `byte` on.
pub(crate) fn from(byte: u64) -> ByteRange {
    if byte == 0 { ByteRange::Whole } else { ByteRange::From(byte) }
}

/// The byte whose media time is `media_ns`, at the beginning of a TS packet.
pub(crate) fn byte_at(media_ns: u64, time_of: impl Fn(u64) -> u64) -> u64 {
    let megabyte_ns = time_of(1_000_000).max(1);
    let byte = u64::try_from(u128::from(media_ns) * 1_000_000 / u128::from(megabyte_ns)).unwrap_or(u64::MAX);
    byte - byte % 188
}

/// Returns the problem with a reply to a request for `range`.
pub(crate) fn judge(head: &Head, range: ByteRange) -> Option<String> {
    let start = match range {
        ByteRange::Whole => 0,
        ByteRange::From(start) | ByteRange::Part { start, .. } => start,
    };
    match (head.status, range) {
        (200, ByteRange::Whole) => None,
        (206, _) if head.content_range.is_some_and(|(first, _)| first == start) => None,
        (206, _) => Some("the reply has other bytes than were requested".to_owned()),
        // From the beginning: the rest would be another title than was asked for.
        (200, _) => Some("the server does not serve byte ranges".to_owned()),
        (status, _) => Some(format!("HTTP {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::head::parse_head;
    use super::*;

    fn fault(head: &str, range: ByteRange) -> Option<String> {
        let (head, _) = parse_head(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).unwrap().unwrap();
        judge(&head, range)
    }

    #[test]
    fn replies_must_have_the_bytes_that_were_asked_for() {
        let (whole, part) = (ByteRange::Whole, ByteRange::Part { start: 10, len: 5 });
        assert_eq!(fault("200 OK", whole), None);
        assert_eq!(fault("206 Partial\r\nContent-Range: bytes 10-14/20", part), None);
        assert_eq!(fault("206 Partial\r\nContent-Range: bytes 10-14/20", ByteRange::From(10)), None);
        let other = fault("206 Partial\r\nContent-Range: bytes 0-4/20", part).unwrap();
        assert!(other.contains("other bytes"));
        assert!(fault("206 Partial", part).unwrap().contains("other bytes"));
        assert!(fault("200 OK", part).unwrap().contains("does not serve byte ranges"));
        for status in
            ["204 No Content", "304 Not Modified", "404 Not Found", "416 Range Not Satisfiable", "500 Oops"]
        {
            assert_eq!(fault(status, part), Some(format!("HTTP {}", &status[..3])));
        }
    }

    #[test]
    fn places_begin_at_ts_packets() {
        // A microsecond a byte.
        let time = |bytes: u64| bytes * 1000;
        assert_eq!(
            (byte_at(0, time), byte_at(1_000_000, time), byte_at(200_000_000, time)),
            (0, 940, 199_844)
        );
        assert_eq!((from(0), from(188)), (ByteRange::Whole, ByteRange::From(188)));
        assert_eq!(byte_at(u64::MAX, |_| 0) % 188, 0);
    }
}
