//! A request, as those who answer it see it: from the front parser and from hyper alike.

use std::fmt;
use std::net::SocketAddr;

use millrace_core::text;

/// Method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Options,
    Delete,
    /// Changes the display name of a title.
    Patch,
    /// Creates a title from the body.
    Put,
    /// As PUT, for live titles: encoders use either. Adds a live source.
    Post,
    /// Nothing that is done here.
    Other,
}

/// Where lines about single requests can be asked for, as for those by RTSP.
pub(crate) const REQUESTS: &str = "millrace::requests";

impl Method {
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "OPTIONS" => Self::Options,
            "DELETE" => Self::Delete,
            "PATCH" => Self::Patch,
            "PUT" => Self::Put,
            "POST" => Self::Post,
            _ => Self::Other,
        }
    }

    /// Returns its name; unsupported methods have none.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Options => "OPTIONS",
            Self::Delete => "DELETE",
            Self::Patch => "PATCH",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Other => "",
        }
    }
}

/// A request among all, as log lines call it: `http-3.1`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestId {
    /// The connection.
    pub(crate) conn: u64,
    /// Which of its requests.
    pub(crate) number: u64,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http-{}.{}", self.conn, self.number)
    }
}

/// The client of a request, and the request's id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSource {
    pub(crate) peer: SocketAddr,
    /// Whether its connection uses TLS.
    pub(crate) is_encrypted: bool,
    pub(crate) id: RequestId,
}

/// A request without a body.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Without the query.
    pub(crate) path: String,
    /// What stands behind the `?`.
    pub(crate) query: Option<String>,
    pub(crate) fields: Fields,
}

/// The header fields that anything depends on. A field that came twice is joined by a comma, as RFC 9110 section 5.3 has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) range: Option<String>,
    pub(crate) if_range: Option<String>,
    pub(crate) if_match: Option<String>,
    pub(crate) if_none_match: Option<String>,
    pub(crate) if_modified_since: Option<String>,
    pub(crate) if_unmodified_since: Option<String>,
    pub(crate) user_agent: Option<String>,
    pub(crate) authorization: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) origin: Option<String>,
    pub(crate) content_range: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) accept_encoding: Option<String>,
    pub(crate) content_type: Option<String>,
    /// The clients that proxies name. Anybody can write these fields, so they count for trusted proxies only
    /// ([`TrustedProxies::client_of`](crate::forwarded::TrustedProxies::client_of)).
    pub(crate) forwarded: Option<String>,
    pub(crate) forwarded_for: Option<String>,
    /// The scheme between the client and a proxy. Any client can write this field, so it changes nothing but addresses in the answer.
    pub(crate) forwarded_proto: Option<String>,
    /// A proxy has forwarded the request, by its own account.
    pub(crate) is_forwarded: bool,
    /// Whether a page of another site caused the request (`Sec-Fetch-Site`).
    pub(crate) is_of_other_page: bool,
}

/// Headers that proxies add: Forwarded (RFC 7239), Via (RFC 9110 section 7.6.3), and those of
/// nginx, Envoy, load balancers and content delivery networks.
const ADDED_BY_PROXIES: [&str; 14] = [
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "x-originating-ip",
    "x-envoy-external-address",
    "x-amzn-trace-id",
    "x-azure-clientip",
    "cf-connecting-ip",
    "cdn-loop",
    "true-client-ip",
    "fastly-client-ip",
];

/// Prefix of further proxy headers: `X-Forwarded-For`, `-Host`, `-Proto`, `-Port` and others.
const FORWARDED: &str = "x-forwarded-";

/// Values of `Sec-Fetch-Site` for requests that only this server's page or the user can cause.
const OWN_SITES: [&str; 2] = ["same-origin", "none"];

fn is_added_by_proxies(name: &str) -> bool {
    let begins = name.get(..FORWARDED.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(FORWARDED));
    begins || ADDED_BY_PROXIES.iter().any(|added| name.eq_ignore_ascii_case(added))
}

impl Fields {
    /// Takes a header line; those that nothing depends on, and values that are not text, are left out.
    pub(crate) fn note(&mut self, name: &str, value: &[u8]) {
        let known = [
            ("range", &mut self.range),
            ("if-range", &mut self.if_range),
            ("if-match", &mut self.if_match),
            ("if-none-match", &mut self.if_none_match),
            ("if-modified-since", &mut self.if_modified_since),
            ("if-unmodified-since", &mut self.if_unmodified_since),
            ("user-agent", &mut self.user_agent),
            ("authorization", &mut self.authorization),
            ("host", &mut self.host),
            ("origin", &mut self.origin),
            ("content-range", &mut self.content_range),
            ("content-disposition", &mut self.content_disposition),
            ("accept-encoding", &mut self.accept_encoding),
            ("content-type", &mut self.content_type),
            ("forwarded", &mut self.forwarded),
            ("x-forwarded-for", &mut self.forwarded_for),
            ("x-forwarded-proto", &mut self.forwarded_proto),
        ];
        self.is_forwarded |= is_added_by_proxies(name);
        self.is_of_other_page |= name.eq_ignore_ascii_case("sec-fetch-site")
            && !OWN_SITES.iter().any(|own| value.trim_ascii().eq_ignore_ascii_case(own.as_bytes()));
        let Some((_, field)) = known.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known)) else {
            return;
        };
        // A range that is no text must not become none: it would be answered by the whole.
        let value = String::from_utf8_lossy(value);
        let value = value.trim_matches([' ', '\t']);
        match field {
            Some(before) => {
                before.push_str(", ");
                before.push_str(value);
            }
            None => *field = Some(value.to_owned()),
        }
    }

    /// Whether the body is announced as JSON.
    pub(crate) fn is_json(&self) -> bool {
        let kind = self.content_type.as_deref().and_then(|kind| kind.split(';').next());
        kind.is_some_and(|kind| kind.trim_end().eq_ignore_ascii_case("application/json"))
    }

    /// Returns the name that the viewer's program gives itself, fit for a log.
    pub(crate) fn agent(&self) -> Option<String> {
        self.user_agent.as_ref().map(|agent| text::excerpt(agent, millrace_core::limits::control::MAX_QUOTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_come_twice_are_joined() {
        let mut fields = Fields::default();
        for (name, value) in [
            ("If-None-Match", &b"\"a\""[..]),
            ("RANGE", b" bytes=0-1\t"),
            ("if-none-match", b"\"b\""),
            ("Cookie", b"x"),
            ("User-Agent", b"\xff\x1b[2J"),
        ] {
            fields.note(name, value);
        }
        assert_eq!(fields.if_none_match.as_deref(), Some("\"a\", \"b\""));
        assert_eq!(fields.range.as_deref(), Some("bytes=0-1"));
        assert_eq!(fields.agent().as_deref(), Some("\u{fffd}\\u{1b}[2J"));
        assert!(!fields.is_forwarded);
        for name in ["X-Forwarded-For", "forwarded", "VIA", "X-Real-IP"] {
            let mut fields = Fields::default();
            fields.note(name, b"127.0.0.1");
            assert!(fields.is_forwarded, "{name}");
        }
    }
}
