//! `rtsp://[user[:password]@]host[:port]/path[?query]` (RFC 2326 section 3.2).

use std::fmt;

use crate::error::ClientError;

/// Port of RTSP (RFC 2326 section 3.2).
pub const RTSP_PORT: u16 = 554;

/// A parsed URL. Its text form has no user information: that never goes into a request line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RtspUrl {
    host: String,
    port: u16,
    path: String,
    user: Option<String>,
}

fn encode(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            0x21..=0x7e => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

impl RtspUrl {
    /// Parses `given`; spaces and bytes beyond ASCII in the path are percent-encoded.
    ///
    /// # Errors
    /// Returns [`ClientError::Url`] with the reason.
    pub fn parse(given: &str) -> Result<Self, ClientError> {
        let error = |why| ClientError::Url { given: given.chars().take(200).collect(), why };
        let (scheme, rest) = given.trim().split_once("://").ok_or_else(|| error("no scheme"))?;
        match scheme.to_ascii_lowercase().as_str() {
            "rtsp" | "rtspt" | "rtspu" => {}
            "rtsps" => return Err(error("RTSP over TLS is not supported")),
            _ => return Err(error("the scheme is not rtsp")),
        }
        let cut = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(cut);
        let path = path.split('#').next().unwrap_or_default();
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user.to_owned()), address),
            None => (None, authority),
        };
        let (host, port) = if let Some(bracketed) = address.strip_prefix('[') {
            let (host, port) = bracketed.split_once(']').ok_or_else(|| error("\"[\" without \"]\""))?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| error("no IPv6 address between \"[\" and \"]\""))?;
            (host, port)
        } else {
            address.split_at(address.find(':').unwrap_or(address.len()))
        };
        let port = match port.strip_prefix(':') {
            Some(digits) => digits.parse().map_err(|_| error("the port is not a number from 1 to 65535"))?,
            None if port.is_empty() => RTSP_PORT,
            None => return Err(error("something stands between \"]\" and the port")),
        };
        if port == 0 {
            return Err(error("the port is not a number from 1 to 65535"));
        }
        let host_is_clean = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:~%".contains(&b));
        if host.is_empty() || !host_is_clean {
            return Err(error("the host name is missing or has a character that no host name has"));
        }
        Ok(Self { host: host.to_owned(), port, path: encode(path), user })
    }

    /// Host name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// User information before the `@`, if given. Not used: this receiver does not authenticate.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// `rtsp://host[:port]`.
    fn origin(&self) -> String {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        let port = if self.port == RTSP_PORT { String::new() } else { format!(":{}", self.port) };
        format!("rtsp://{open}{}{close}{port}", self.host)
    }
}

impl fmt::Display for RtspUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path)
    }
}

/// Resolves an `a=control` value against the base of a description (RFC 2326 section C.1.1), the way players do: a
/// relative value is appended to the whole base rather than put in place of its last part. A value with characters
/// that may not stand in a request line is ignored and gives the base.
pub(crate) fn resolve_control(base: &str, control: Option<&str>) -> String {
    let control = control.unwrap_or("*").trim();
    if control.is_empty() || control == "*" || !control.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
        return base.to_owned();
    }
    if control.split_once("://").is_some_and(|(scheme, _)| scheme.bytes().all(|b| b.is_ascii_alphanumeric()))
    {
        return control.to_owned();
    }
    if control.starts_with('/') {
        let origin_end = base.find("://").map_or(0, |at| at + 3);
        let path_start = base[origin_end..].find('/').map_or(base.len(), |at| origin_end + at);
        return format!("{}{control}", &base[..path_start]);
    }
    let slash = if base.ends_with('/') { "" } else { "/" };
    format!("{base}{slash}{control}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_parse_and_print() {
        for (given, printed) in [
            ("rtsp://h/film", "rtsp://h/film"),
            ("RTSP://user:pw@h:8554/a b?x=1#frag", "rtsp://h:8554/a%20b?x=1"),
            ("rtsp://[::1]:8554/f", "rtsp://[::1]:8554/f"),
            ("rtsp://10.0.0.1", "rtsp://10.0.0.1"),
            ("rtsp://h:554/ä", "rtsp://h/%C3%A4"),
        ] {
            assert_eq!(RtspUrl::parse(given).unwrap().to_string(), printed, "{given}");
        }
        assert_eq!(RtspUrl::parse("rtsp://u:p@h/").unwrap().user(), Some("u:p"));
    }

    #[test]
    fn bad_urls_say_why() {
        for (given, why) in [
            ("film.ts", "no scheme"),
            ("http://h/x", "the scheme is not rtsp"),
            ("rtsps://h/x", "RTSP over TLS is not supported"),
            ("rtsp://h:0/x", "the port is not a number"),
            ("rtsp://h:99999/x", "the port is not a number"),
            ("rtsp:///x", "the host name is missing"),
            ("rtsp://[::1/x", "without"),
            ("rtsp://h\r\nX: y/x", "the port is not a number"),
            ("rtsp://h\r\n/x", "a character that no host name has"),
        ] {
            let error = RtspUrl::parse(given).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("rtsp://host"), "{given:?}: {error}");
        }
    }

    #[test]
    fn control_values_resolve_as_players_do() {
        for (base, control, expected) in [
            ("rtsp://h/film/", Some("track1"), "rtsp://h/film/track1"),
            ("rtsp://h/film", Some("track1"), "rtsp://h/film/track1"),
            ("rtsp://h/film", Some("*"), "rtsp://h/film"),
            ("rtsp://h/film", None, "rtsp://h/film"),
            ("rtsp://h/film", Some("rtsp://h/other"), "rtsp://h/other"),
            ("rtsp://h:1/film/x", Some("/abs"), "rtsp://h:1/abs"),
            ("rtsp://h", Some("/abs"), "rtsp://h/abs"),
            ("rtsp://h/film", Some("a\r\nX: y"), "rtsp://h/film"),
        ] {
            assert_eq!(resolve_control(base, control), expected);
        }
    }
}
