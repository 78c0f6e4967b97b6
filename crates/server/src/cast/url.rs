//! Addresses to send to, with the options that ffmpeg has for them.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use url::Url;

use crate::limits::cast::MAX_DSCP;
use crate::live::address::{LiveTransport, datagram_address};

/// Time to live of multicast without `ttl=`: datagrams stay on the link.
const DEFAULT_TTL: u8 = 1;

/// A destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CastUrl {
    /// As it was written.
    pub text: String,
    /// Content of the datagrams.
    pub transport: LiveTransport,
    /// Where they go.
    pub to: SocketAddr,
    /// Time to live, or hop limit. `None`: the system's default, for unicast.
    pub ttl: Option<u8>,
    /// Name of an interface, or one of its addresses.
    pub interface: Option<String>,
    /// Differentiated services code point.
    pub dscp: Option<u8>,
    /// Bytes of TS packets in a datagram.
    pub payload_bytes: usize,
}

/// Why a text is no destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CastUrlError {
    /// It is no address to send to.
    #[error("\"{0}\": write udp://ADDR:PORT or rtp://ADDR:PORT, ADDR an IP address")]
    Form(String),
    /// An option.
    #[error(
        "option \"{0}\": write ttl=1 to 255, iface=NAME or ADDR, dscp=0 to {MAX_DSCP}, pkt_size=a multiple of {TS_PACKET_BYTES} up to {DEFAULT_PACKET_BYTES}"
    )]
    Parameter(String),
}

impl FromStr for CastUrl {
    type Err = CastUrlError;

    fn from_str(text: &str) -> Result<Self, CastUrlError> {
        let bad = || CastUrlError::Form(text.to_owned());
        let url = Url::parse(text).map_err(|_| bad())?;
        let (transport, to) = datagram_address(&url).ok_or_else(bad)?;
        let ip = to.ip();
        if ip.is_unspecified() || !matches!(url.path(), "" | "/") {
            return Err(bad());
        }
        let mut cast = Self {
            text: text.to_owned(),
            transport,
            to,
            ttl: ip.is_multicast().then_some(DEFAULT_TTL),
            interface: None,
            dscp: None,
            payload_bytes: DEFAULT_PACKET_BYTES,
        };
        for (key, value) in url.query_pairs() {
            cast.set(&key, &value).ok_or_else(|| CastUrlError::Parameter(format!("{key}={value}")))?;
        }
        Ok(cast)
    }
}

impl CastUrl {
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "ttl" => self.ttl = Some(value.parse().ok().filter(|&ttl| ttl > 0)?),
            "dscp" => self.dscp = Some(value.parse().ok().filter(|&dscp| dscp <= MAX_DSCP)?),
            "iface" if !value.is_empty() => self.interface = Some(value.to_owned()),
            "pkt_size" => {
                let bytes: usize = value.parse().ok()?;
                let fits = (TS_PACKET_BYTES..=DEFAULT_PACKET_BYTES).contains(&bytes);
                self.payload_bytes = Some(bytes).filter(|_| fits && bytes.is_multiple_of(TS_PACKET_BYTES))?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Whether it is a multicast group.
    pub fn is_multicast(&self) -> bool {
        self.to.ip().is_multicast()
    }

    /// The session description that receivers of `rtp://` read (RFC 4566, RFC 3551 section 6).
    pub fn session_description(&self, name: &str, session: u32) -> String {
        let family = if self.to.is_ipv4() { "IP4" } else { "IP6" };
        let (ip, port) = (self.to.ip(), self.to.port());
        let any = if self.to.is_ipv4() { "0.0.0.0" } else { "::" };
        // The time to live is part of IPv4 groups alone (RFC 4566 section 5.7).
        let ttl = self.ttl.filter(|_| self.is_multicast() && self.to.is_ipv4());
        let ttl = ttl.map(|ttl| format!("/{ttl}")).unwrap_or_default();
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        let name = if name.is_empty() { "-" } else { &name };
        format!(
            "v=0\r\no=- {session} 1 IN {family} {any}\r\ns={name}\r\nc=IN {family} {ip}{ttl}\r\nt=0 0\r\na=type:broadcast\r\n\
             a=recvonly\r\nm=video {port} RTP/AVP 33\r\na=rtpmap:33 MP2T/90000\r\n"
        )
    }
}

impl fmt::Display for CastUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cast_url_with_options_keeps_each() {
        let url: CastUrl = "rtp://239.1.2.3:5000?ttl=4&iface=eth1&dscp=34&pkt_size=752".parse().unwrap();
        assert_eq!((url.transport, url.to), (LiveTransport::Rtp, "239.1.2.3:5000".parse().unwrap()));
        assert_eq!((url.ttl, url.dscp, url.payload_bytes), (Some(4), Some(34), 752));
        assert_eq!(url.interface.as_deref(), Some("eth1"));
        let plain: CastUrl = "udp://[::1]:5000".parse().unwrap();
        assert_eq!((plain.ttl, plain.payload_bytes, plain.is_multicast()), (None, 1316, false));
        assert_eq!("udp://239.1.2.3:5000".parse::<CastUrl>().unwrap().ttl, Some(1));
    }

    #[test]
    fn cast_url_that_cannot_be_sent_to_is_refused() {
        for text in [
            "239.1.1.1:5000",
            "http://1.2.3.4:5",
            "udp://host:5000",
            "udp://1.2.3.4",
            "udp://1.2.3.4:0",
            "udp://0.0.0.0:5000",
            "udp://1.2.3.4:5/path",
        ] {
            assert!(matches!(text.parse::<CastUrl>(), Err(CastUrlError::Form(_))), "{text}");
        }
        for option in
            ["ttl=0", "ttl=256", "dscp=64", "iface=", "pkt_size=1000", "pkt_size=1504", "pkt_size=0", "x=1"]
        {
            let text = format!("udp://239.1.1.1:5000?{option}");
            assert_eq!(text.parse::<CastUrl>(), Err(CastUrlError::Parameter(option.to_owned())));
        }
    }

    #[test]
    fn session_description_of_group_has_ttl() {
        let url: CastUrl = "rtp://239.1.2.3:5000?ttl=4".parse().unwrap();
        let text = url.session_description("A \r\nfilm", 7);
        assert!(text.contains("\r\ns=A film\r\nc=IN IP4 239.1.2.3/4\r\n"), "{text}");
        assert!(text.contains("\r\nm=video 5000 RTP/AVP 33\r\n"));
        let url: CastUrl = "rtp://127.0.0.1:5000?ttl=4".parse().unwrap();
        assert!(url.session_description("", 7).contains("\r\ns=-\r\nc=IN IP4 127.0.0.1\r\n"));
    }
}
