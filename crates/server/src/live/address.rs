//! `NAME=URL`: a live source as an operator writes it.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use millrace_make::live::PullUrl;
use millrace_make::live::pull::{PULL_SCHEMES, without_secrets};
use millrace_offload::IngestAddress;
use url::Url;

use super::choice::SourceRank;
use crate::limits::live::MAX_LIVE_NAME_BYTES;

/// Content of the datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveTransport {
    /// TS packets.
    Udp,
    /// TS packets behind an RTP header (RFC 2250).
    Rtp,
}

/// How the media comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveReception {
    /// In datagrams, to a socket.
    Datagrams(LiveTransport, IngestAddress),
    /// By the ffmpeg program, which fetches it.
    Program(PullUrl),
}

/// A live title, and where its media comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSource {
    /// The title's name.
    pub name: String,
    /// As the operator wrote it, without the secrets of one that is fetched.
    pub url: String,
    /// How it comes.
    pub reception: LiveReception,
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
        "URL \"{0}\": write udp://ADDR:PORT or rtp://ADDR:PORT, ADDR an IP address of this machine or a multicast group; or a URL that ffmpeg fetches ({schemes})",
        schemes = PULL_SCHEMES.join(", ")
    )]
    Url(String),
    /// A parameter of the URL.
    #[error("URL parameter \"{0}\": write source=IP or interface=NAME, for a multicast group")]
    Parameter(String),
    /// There are more sources of one name than a title can have.
    #[error("live source {0}: got more than 2 URLs; give one, and at most one more as its backup")]
    TooMany(String),
}

/// The source of a live title, and perhaps one that stands in for it. Both have the title's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePair {
    /// The one that viewers get if it runs.
    pub first: LiveSource,
    /// The other one.
    pub backup: Option<LiveSource>,
}

impl SourcePair {
    /// Sources in the order in which they were written: the second one of a name is the backup of the first.
    ///
    /// # Errors
    /// [`LiveSourceError::TooMany`].
    pub fn all(sources: &[LiveSource]) -> Result<Vec<Self>, LiveSourceError> {
        let mut pairs = Vec::<Self>::new();
        for source in sources.iter().cloned() {
            match pairs.iter_mut().find(|pair| pair.first.name == source.name) {
                None => pairs.push(Self { first: source, backup: None }),
                Some(pair) if pair.backup.is_none() => pair.backup = Some(source),
                Some(_) => return Err(LiveSourceError::TooMany(source.name)),
            }
        }
        Ok(pairs)
    }

    /// The source of this rank; without a backup the first one.
    pub fn get(&self, rank: SourceRank) -> &LiveSource {
        match (rank, &self.backup) {
            (SourceRank::Backup, Some(backup)) => backup,
            _ => &self.first,
        }
    }

    /// Its sources.
    pub fn ranks(&self) -> &'static [SourceRank] {
        let count = 1 + usize::from(self.backup.is_some());
        &[SourceRank::First, SourceRank::Backup][..count]
    }
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
    if is_name { Ok(()) } else { Err(LiveSourceError::Name(without_secrets(name))) }
}

/// What `udp://ADDR:PORT` and `rtp://ADDR:PORT` name.
pub(crate) fn datagram_address(url: &Url) -> Option<(LiveTransport, SocketAddr)> {
    let transport = match url.scheme() {
        "udp" => LiveTransport::Udp,
        "rtp" => LiveTransport::Rtp,
        _ => return None,
    };
    let ip: IpAddr = url.host_str()?.trim_matches(['[', ']']).parse().ok()?;
    Some((transport, SocketAddr::new(ip, url.port().filter(|&port| port > 0)?)))
}

impl FromStr for LiveSource {
    type Err = LiveSourceError;

    fn from_str(text: &str) -> Result<Self, LiveSourceError> {
        let (name, url) = text.split_once('=').ok_or_else(|| LiveSourceError::Form(without_secrets(text)))?;
        Self::new(name, url)
    }
}

impl LiveSource {
    /// Content of its datagrams; a fetched source has no RTP here.
    pub fn transport(&self) -> LiveTransport {
        match self.reception {
            LiveReception::Datagrams(transport, _) => transport,
            LiveReception::Program(_) => LiveTransport::Udp,
        }
    }

    /// The source of this name that comes from `url`.
    ///
    /// # Errors
    /// [`LiveSourceError`].
    pub fn new(name: &str, url: &str) -> Result<Self, LiveSourceError> {
        check_live_name(name)?;
        if let Some(fetched) = PullUrl::new(url) {
            let (name, url) = (name.to_owned(), fetched.to_string());
            return Ok(Self { name, url, reception: LiveReception::Program(fetched) });
        }
        let bad = || LiveSourceError::Url(without_secrets(url));
        let parsed = Url::parse(url).map_err(|_| bad())?;
        let (transport, place) = datagram_address(&parsed).ok_or_else(bad)?;
        let ip = place.ip();
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
        let reception = LiveReception::Datagrams(transport, address);
        Ok(Self { name: name.to_owned(), url: url.to_owned(), reception })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transport and address of a source that comes in datagrams.
    fn datagrams(text: &str) -> (LiveTransport, IngestAddress) {
        match text.parse::<LiveSource>().unwrap().reception {
            LiveReception::Datagrams(transport, address) => (transport, address),
            LiveReception::Program(url) => panic!("fetched: {url}"),
        }
    }

    #[test]
    fn sources_of_each_kind() {
        let source: LiveSource = "news-1=udp://127.0.0.1:5000".parse().unwrap();
        assert_eq!(source.name, "news-1");
        let (transport, address) = datagrams("news-1=udp://127.0.0.1:5000");
        assert_eq!((transport, address.place), (LiveTransport::Udp, "127.0.0.1:5000".parse().unwrap()));
        let (transport, address) = datagrams("a=rtp://239.1.1.1:6000?source=10.0.0.7&interface=eth0");
        let IngestAddress { source, interface, .. } = address;
        assert_eq!((source, interface.as_deref()), (Some("10.0.0.7".parse().unwrap()), Some("eth0")));
        assert_eq!(transport, LiveTransport::Rtp);
        let (_, v6) = datagrams("a=udp://[ff12::1]:6000?interface=lo");
        assert_eq!(v6.place, "[ff12::1]:6000".parse().unwrap());
        assert!("a=udp://@239.1.1.1:5000".parse::<LiveSource>().is_ok(), "as VLC writes it");
    }

    #[test]
    fn source_that_is_fetched_is_shown_without_its_secrets() {
        let source: LiveSource = "cam=rtsp://user:secret@cam:554/live?key=secret".parse().unwrap();
        assert_eq!(source.url, "rtsp://cam:554/live");
        assert!(matches!(source.reception, LiveReception::Program(_)));
        assert!(!format!("{source:?}").contains("secret"), "{source:?}");
        let error = "cam=rtsp://user:secret@".parse::<LiveSource>().unwrap_err().to_string();
        assert!(error.contains("rtsp, rtsps, http") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn second_source_of_a_name_is_the_backup_and_a_third_is_refused() {
        let source = |text: &str| text.parse::<LiveSource>().unwrap();
        let all = ["a=udp://1.2.3.4:1", "b=udp://1.2.3.4:2", "a=rtp://1.2.3.4:3"].map(source);
        let pairs = SourcePair::all(&all).unwrap();
        let [a, b] = &pairs[..] else { panic!("{pairs:?}") };
        assert_eq!((&a.first, a.backup.as_ref(), a.ranks().len()), (&all[0], Some(&all[2]), 2));
        assert_eq!((&b.first, &b.backup, b.ranks().len()), (&all[1], &None, 1));
        let third = [&all[..], &[source("a=udp://1.2.3.4:4")]].concat();
        assert!(SourcePair::all(&third).unwrap_err().to_string().contains("live source a: got more than 2"));
    }

    #[test]
    fn what_is_no_source_is_refused_with_its_part() {
        for (text, part) in [
            ("udp", "NAME=URL"),
            ("=udp://1.2.3.4:5", "name"),
            ("a/b=udp://1.2.3.4:5", "name"),
            (".a=udp://1.2.3.4:5", "name"),
            ("a=ftp://1.2.3.4:5", "URL \""),
            ("a=http://", "URL \""),
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
