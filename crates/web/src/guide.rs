//! The programme of channels, as the server reports it, and the address of the server as lists for TV players have it.

use crate::request::{Request, RequestSource};

/// The programme of a channel: what plays now, and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelGuide {
    /// Name of its live title.
    pub channel: String,
    /// In order, the one that plays now first; empty: nothing plays, or nothing is known of it.
    pub programmes: Vec<GuideProgramme>,
}

/// An item of a channel with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuideProgramme {
    /// Name of the title. For a file that no title was made of, the name of the file without its extension. Viewers that may not watch a title of this
    /// name do not learn what plays.
    pub title: String,
    /// The name for people.
    pub display_name: String,
    /// When it begins, in milliseconds since 1970 (UTC).
    pub from_unix_ms: u64,
    /// When it ends, likewise; `None`: its length is not known, and it is the last one.
    pub to_unix_ms: Option<u64>,
}

/// Scheme, host and port of this server as the client has reached it, as in `http://tv.example:8080`. TV players resolve no relative addresses in
/// guides and lineups. `None`: the request names no host that an address can have.
pub(crate) fn server_origin(request: &Request, source: RequestSource) -> Option<String> {
    let host = request.fields.host.as_deref().filter(|host| !host.is_empty())?;
    let is_of_host = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    let by_proxy = request.fields.forwarded_proto.as_deref().and_then(|list| list.split(',').next());
    let is_https =
        source.is_encrypted || by_proxy.is_some_and(|proto| proto.trim().eq_ignore_ascii_case("https"));
    let scheme = if is_https { "https" } else { "http" };
    host.bytes().all(is_of_host).then(|| format!("{scheme}://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Fields, Method, RequestId};

    fn origin(lines: &[(&str, &str)], is_encrypted: bool) -> Option<String> {
        let mut fields = Fields::default();
        lines.iter().for_each(|(name, value)| fields.note(name, value.as_bytes()));
        let request = Request { method: Method::Get, path: "/guide.xml".to_owned(), query: None, fields };
        let id = RequestId { conn: 1, number: 1 };
        server_origin(&request, RequestSource { peer: "192.0.2.1:5".parse().unwrap(), is_encrypted, id })
    }

    #[test]
    fn server_origin_has_host_and_scheme_of_the_client() {
        let here = |text: &str| Some(text.to_owned());
        assert_eq!(origin(&[("Host", "tv.example:8080")], false), here("http://tv.example:8080"));
        assert_eq!(origin(&[("Host", "[2001:db8::1]:443")], true), here("https://[2001:db8::1]:443"));
        let by_proxy = |proto| origin(&[("Host", "tv.example"), ("X-Forwarded-Proto", proto)], false);
        assert_eq!(by_proxy("HTTPS, http"), here("https://tv.example"));
        assert_eq!(by_proxy("ftp\"><x>"), here("http://tv.example"));
    }

    #[test]
    fn server_origin_of_text_that_is_no_host_is_none() {
        for host in ["", "a b", "tv.example/x", "\"><evil>", "user@host", "h\u{f6}st"] {
            assert_eq!(origin(&[("Host", host)], false), None, "{host}");
        }
        assert_eq!(origin(&[], true), None);
    }
}
