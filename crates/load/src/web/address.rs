//! `http://` addresses of viewers, and how references in playlists and redirects are resolved against them.

use std::fmt;

use url::{Host, Url};

use crate::limits::MAX_HTTP_URL_BYTES;

/// An address that a viewer can ask for. Its text form has no user information and no fragment: neither is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUrl {
    url: Url,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
}

impl HttpUrl {
    /// Parses an absolute address.
    ///
    /// # Errors
    /// Returns the problem with it, in a few words.
    pub fn parse(given: &str) -> Result<Self, &'static str> {
        let given = given.trim();
        if given.len() > MAX_HTTP_URL_BYTES {
            return Err("the address is too long");
        }
        Self::check(Url::parse(given).map_err(|_| "not an absolute http:// address")?)
    }

    /// Returns the address that `reference`, found in a reply from this one, leads to (RFC 3986
    /// section 5).
    ///
    /// # Errors
    /// Returns the problem with it, in a few words.
    pub fn join(&self, reference: &str) -> Result<Self, &'static str> {
        if reference.len() > MAX_HTTP_URL_BYTES {
            return Err("the address is too long");
        }
        Self::check(self.url.join(reference).map_err(|_| "the address cannot be resolved")?)
    }

    fn check(mut url: Url) -> Result<Self, &'static str> {
        match url.scheme() {
            "http" => {}
            "https" => return Err("HTTPS is not supported: use http://"),
            _ => return Err("the scheme is not http"),
        }
        let host = match url.host() {
            Some(Host::Domain(name)) => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            None => return Err("the host name is missing"),
        };
        let port = url.port_or_known_default().filter(|port| *port != 0).ok_or("the port is 0")?;
        url.set_fragment(None);
        // An http address with a host takes both.
        let _ = url.set_username("").and_then(|()| url.set_password(None));
        if url.as_str().len() > MAX_HTTP_URL_BYTES {
            return Err("the address is too long");
        }
        Ok(Self { url, host, port })
    }

    /// Host name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The value of a `Host` header.
    pub fn authority(&self) -> &str {
        &self.url[url::Position::BeforeHost..url::Position::AfterPort]
    }

    /// Path and query: what stands in a request line.
    pub fn target(&self) -> &str {
        &self.url[url::Position::BeforePath..url::Position::AfterQuery]
    }

    /// Whether one connection can serve both.
    pub fn has_same_server(&self, other: &Self) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    /// Whether the path is that of an HLS playlist.
    pub fn is_playlist(&self) -> bool {
        let path = self.url.path().to_ascii_lowercase();
        path.ends_with(".m3u8") || path.ends_with(".m3u")
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_resolve_as_rfc_3986_says() {
        let base = HttpUrl::parse("http://a/b/c/d;p?q").unwrap();
        // Sections 5.4.1 and 5.4.2; "#s" is cut off because a request never carries it.
        for (reference, expected) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("#s", "http://a/b/c/d;p?q"),
            ("g#s", "http://a/b/c/g"),
            ("g?y#s", "http://a/b/c/g?y"),
            (";x", "http://a/b/c/;x"),
            ("g;x?y#s", "http://a/b/c/g;x?y"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("./", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../..", "http://a/"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("../../../../g", "http://a/g"),
            ("/./g", "http://a/g"),
            ("/../g", "http://a/g"),
            ("g.", "http://a/b/c/g."),
            ("..g", "http://a/b/c/..g"),
            ("./../g", "http://a/b/g"),
            ("./g/.", "http://a/b/c/g/"),
            ("g/./h", "http://a/b/c/g/h"),
            ("g/../h", "http://a/b/c/h"),
            ("g;x=1/../y", "http://a/b/c/y"),
            ("http://h:81/x", "http://h:81/x"),
        ] {
            assert_eq!(base.join(reference).unwrap().to_string(), expected, "{reference}");
        }
    }

    #[test]
    fn parts_are_what_a_request_needs() {
        let url = HttpUrl::parse(" HTTP://user:pw@[::1]:8080/a b/ä.m3u8?x=1 2#f ").unwrap();
        assert_eq!((url.host(), url.port(), url.authority()), ("::1", 8080, "[::1]:8080"));
        assert_eq!(url.target(), "/a%20b/%C3%A4.m3u8?x=1%202");
        assert_eq!(url.to_string(), "http://[::1]:8080/a%20b/%C3%A4.m3u8?x=1%202");
        assert!(url.is_playlist());
        let plain = HttpUrl::parse("http://h:80").unwrap();
        assert_eq!((plain.authority(), plain.target(), plain.port()), ("h", "/", 80));
        assert!(!plain.is_playlist() && plain.has_same_server(&HttpUrl::parse("http://h/x").unwrap()));
        assert!(!plain.has_same_server(&HttpUrl::parse("http://h:81/x").unwrap()));
    }

    #[test]
    fn addresses_that_cannot_be_asked_for_say_why() {
        for (given, why) in [
            ("film.ts", "not an absolute"),
            ("https://h/x", "HTTPS is not supported"),
            ("ftp://h/x", "the scheme is not http"),
            ("http://", "not an absolute"),
            ("http://h:0/x", "the port is 0"),
            ("http://h:99999/x", "not an absolute"),
        ] {
            let error = HttpUrl::parse(given).unwrap_err();
            assert!(error.contains(why), "{given}: {error}");
        }
        let long = format!("http://h/{}", "x".repeat(MAX_HTTP_URL_BYTES));
        assert_eq!(HttpUrl::parse(&long), Err("the address is too long"));
        // It fits as it is written, but not as it is sent.
        let swelling = format!("http://h/{}", "ä".repeat(MAX_HTTP_URL_BYTES / 3));
        assert_eq!(HttpUrl::parse(&swelling), Err("the address is too long"));
        let base = HttpUrl::parse("http://h/").unwrap();
        assert_eq!(base.join("https://h/x"), Err("HTTPS is not supported: use http://"));
        assert_eq!(base.join("http://[x/"), Err("the address cannot be resolved"));
    }
}
