//! The target of a request's URL: a title, or the one track of a title.

use rtsp_types::Url;

/// A URL's path in our words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTarget {
    /// The title's name, percent signs decoded, no slash at either end; empty for the root.
    pub title: String,
    /// `…/track1`
    pub track: Option<u32>,
}

/// Reads the path; query ([`query`]) and fragment name no title. `None` if it is not UTF-8.
pub fn parse(url: &Url) -> Option<RequestTarget> {
    let path = url.path().trim_matches('/');
    let (title, track) = match path.rsplit_once('/') {
        Some((title, last)) => match last.strip_prefix("track").map(str::parse) {
            Some(Ok(track)) => (title.trim_end_matches('/'), Some(track)),
            _ => (path, None),
        },
        None => (path, None),
    };
    Some(RequestTarget { title: decode(title)?, track })
}

/// Names a transformation in the query of a URL.
pub const TRANSFORM: &str = "transform";

/// Asks for a description with the multicast group of a live title, in the query of a URL.
pub const MULTICAST: &str = "multicast";

/// Returns the value of `name` in the URL's query.
pub fn query(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
}

/// Percent signs decoded (RFC 3986 section 2.1); one without two hexadecimal digits stands for itself. `None`: that is no UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = text.as_bytes().iter();
    let mut out = Vec::with_capacity(text.len());
    while let Some(&byte) = bytes.next() {
        let rest = bytes.as_slice();
        match (byte, rest.get(..2).and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok())) {
            (b'%', Some(decoded)) if rest[0] != b'+' => {
                out.push(decoded);
                bytes.nth(1);
            }
            _ => out.push(byte),
        }
    }
    String::from_utf8(out).ok()
}

/// The URL without user, password, query and fragment, with one slash at its end: what `a=control:*` stands for
/// (RFC 2326 appendix C.1.1).
pub fn base(url: &Url, target: &RequestTarget) -> String {
    let mut url = plain(url);
    if target.track.is_some()
        && let Ok(mut segments) = url.path_segments_mut()
    {
        segments.pop_if_empty().pop();
    }
    let text = url.as_str();
    format!("{}/", text.trim_end_matches('/'))
}

/// The URL without user, password, query and fragment.
pub fn plain(url: &Url) -> Url {
    let mut url = url.clone();
    // These fail only for URLs that cannot have a user, which have nothing to remove.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> RequestTarget {
        parse(&Url::parse(url).unwrap()).unwrap()
    }

    fn title(name: &str, track: Option<u32>) -> RequestTarget {
        RequestTarget { title: name.to_owned(), track }
    }

    #[test]
    fn titles_and_tracks_with_and_without_slashes() {
        for url in ["rtsp://h/film", "rtsp://h:8554/film/", "rtsp://u:p@h/film?x=1", "rtsp://h//film//"] {
            assert_eq!(parsed(url), title("film", None), "{url}");
        }
        for url in ["rtsp://h/film/track1", "rtsp://h/film/track1/", "rtsp://h/film//track1"] {
            assert_eq!(parsed(url), title("film", Some(1)), "{url}");
        }
        assert_eq!(parsed("rtsp://h/track1"), title("track1", None));
        assert_eq!(parsed("rtsp://h/film/trackx"), title("film/trackx", None));
        assert_eq!(parsed("rtsp://h"), title("", None));
        assert_eq!(parsed("rtsp://h/"), title("", None));
        assert_eq!(parsed("rtsp://h/stream=0"), title("stream=0", None));
    }

    #[test]
    fn percent_signs() {
        assert_eq!(parsed("rtsp://h/a%20b").title, "a b");
        assert_eq!(parsed("rtsp://h/100%").title, "100%");
        assert_eq!(parsed("rtsp://h/a%+1b").title, "a%+1b");
        assert_eq!(parse(&Url::parse("rtsp://h/%ff").unwrap()), None);
    }

    #[test]
    fn base_ends_with_one_slash_and_tells_no_password() {
        for url in ["rtsp://u:p@h:8554/film?x=1#y", "rtsp://h:8554/film/", "rtsp://h:8554/film/track1"] {
            let url = Url::parse(url).unwrap();
            assert_eq!(base(&url, &parse(&url).unwrap()), "rtsp://h:8554/film/");
        }
    }
}
