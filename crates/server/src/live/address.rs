//! `NAME=URL`: a live source as an operator writes it.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use millrace_offload::IngestAddress;
use url::Url;

use crate::limits::live::MAX_LIVE_NAME_BYTES;

/// Content of the datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveTransport {
    /// TS packets.
    Udp,
    /// TS packets behind an RTP header (RFC 2250).
    Rtp,
}

/// A live title, and where its media comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSource {
    /// The title's name.
    pub name: String,
    /// As the operator wrote it.
    pub url: String,
    /// The protocol.
    pub transport: LiveTransport,
    /// Where it comes.
    pub address: IngestAddress,
}

/// Why a text is no live source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LiveSourceError {
    /// There is no `=`.
    #[error("got \"{0}\"; write NAME=URL, for example news=udp://239.1.1.1:5000")]
    Form(String),
    /// It cannot be part of a URL.
    #[error(
        "name \"{0}\": write 1 to {MAX_LIVE_NAME_BYTES} characters of a-z, A-Z, 0-9 and -_., the first one a letter or a digit"
    )]
    Name(String),
    /// It is no URL that can be received.
    #[error(
        "URL \"{0}\": write udp://ADDR:PORT or rtp://ADDR:PORT, ADDR an IP address of this machine or a multicast group"
    )]
    Url(String),
    /// A parameter of the URL.
    #[error("URL parameter \"{0}\": write source=IP or interface=NAME, for a multicast group")]
    Parameter(String),
}

/// Checks the name of a live title.
///
/// # Errors
/// [`LiveSourceError::Name`].
pub fn check_live_name(name: &str) -> Result<(), LiveSourceError> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_name = (1..=MAX_LIVE_NAME_BYTES).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.bytes().all(is_allowed);
    if is_name { Ok(()) } else { Err(LiveSourceError::Name(name.to_owned())) }
}

impl FromStr for LiveSource {
    type Err = LiveSourceError;

    fn from_str(text: &str) -> Result<Self, LiveSourceError> {
        let (name, url) = text.split_once('=').ok_or_else(|| LiveSourceError::Form(text.to_owned()))?;
        check_live_name(name)?;
        let bad = || LiveSourceError::Url(url.to_owned());
        let parsed = Url::parse(url).map_err(|_| bad())?;
        let transport = match parsed.scheme() {
            "udp" => LiveTransport::Udp,
            "rtp" => LiveTransport::Rtp,
            _ => return Err(bad()),
        };
        let host = parsed.host_str().map(|host| host.trim_matches(['[', ']']));
        let ip: IpAddr = host.and_then(|host| host.parse().ok()).ok_or_else(bad)?;
        let place = SocketAddr::new(ip, parsed.port().filter(|&port| port > 0).ok_or_else(bad)?);
        let mut address = IngestAddress { place, source: None, interface: None };
        for (key, value) in parsed.query_pairs() {
            let bad = || LiveSourceError::Parameter(format!("{key}={value}"));
            let fits = |source: &IpAddr| source.is_ipv4() == ip.is_ipv4();
            match &*key {
                _ if !ip.is_multicast() => return Err(bad()),
                "source" => {
                    address.source = Some(value.parse().ok().filter(fits).ok_or_else(bad)?);
                }
                "interface" if !value.is_empty() => address.interface = Some(value.into_owned()),
                _ => return Err(bad()),
            }
        }
        Ok(Self { name: name.to_owned(), url: url.to_owned(), transport, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_of_each_kind() {
        let source: LiveSource = "news-1=udp://127.0.0.1:5000".parse().unwrap();
        assert_eq!((source.name.as_str(), source.transport), ("news-1", LiveTransport::Udp));
        assert_eq!(source.address.place, "127.0.0.1:5000".parse().unwrap());
        let text = "a=rtp://239.1.1.1:6000?source=10.0.0.7&interface=eth0";
        let IngestAddress { source, interface, .. } = text.parse::<LiveSource>().unwrap().address;
        assert_eq!((source, interface.as_deref()), (Some("10.0.0.7".parse().unwrap()), Some("eth0")));
        let v6: LiveSource = "a=udp://[ff12::1]:6000?interface=lo".parse().unwrap();
        assert_eq!(v6.address.place, "[ff12::1]:6000".parse().unwrap());
        assert!("a=udp://@239.1.1.1:5000".parse::<LiveSource>().is_ok(), "as VLC writes it");
    }

    #[test]
    fn what_is_no_source_is_refused_with_its_part() {
        for (text, part) in [
            ("udp", "NAME=URL"),
            ("=udp://1.2.3.4:5", "name"),
            ("a/b=udp://1.2.3.4:5", "name"),
            (".a=udp://1.2.3.4:5", "name"),
            ("a=http://1.2.3.4:5", "URL \""),
            ("a=udp://1.2.3.4", "URL \""),
            ("a=udp://1.2.3.4:0", "URL \""),
            ("a=udp://encoder:5000", "URL \""),
            ("a=udp://1.2.3.4:5?source=1.2.3.5", "parameter"),
            ("a=udp://239.1.1.1:5?source=::1", "parameter"),
            ("a=udp://239.1.1.1:5?ttl=3", "parameter"),
            ("a=udp://239.1.1.1:5?interface=", "parameter"),
        ] {
            let error = text.parse::<LiveSource>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(check_live_name(&"a".repeat(65)).is_err());
    }
}
