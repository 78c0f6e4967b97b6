//! The `Transport` header (RFC 2326 section 12.39): the client's request and the server's answer.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use millrace_core::text::excerpt;

use crate::fec::FecGrant;

/// The transport that a SETUP requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportRequest {
    /// RTP and RTCP by UDP to these ports of ours.
    Udp {
        /// Port of RTP.
        rtp: u16,
        /// Port of RTCP.
        rtcp: u16,
    },
    /// Interleaved in the RTSP connection on these channels.
    Tcp {
        /// Channel of RTP.
        rtp: u8,
        /// Channel of RTCP.
        rtcp: u8,
    },
}

impl fmt::Display for TransportRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp { rtp, rtcp } => write!(f, "RTP/AVP;unicast;client_port={rtp}-{rtcp}"),
            Self::Tcp { rtp, rtcp } => write!(f, "RTP/AVP/TCP;unicast;interleaved={rtp}-{rtcp}"),
        }
    }
}

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportReply {
    /// The transport it agreed to: UDP with the ports it will send to, or TCP with its channels.
    pub agreed: TransportRequest,
    /// Its own ports for RTP and RTCP, if it names them (UDP only).
    pub server_ports: Option<(u16, u16)>,
    /// Address its packets come from, if it is not the one of the RTSP connection.
    pub source: Option<IpAddr>,
    /// Synchronisation source of its packets.
    pub ssrc: Option<u32>,
    /// The FEC it grants, if it names it.
    pub fec: Option<FecGrant>,
}

/// `a-b` or `a`, where the second number is then the next one.
fn pair<T: std::str::FromStr + Copy>(text: &str, next: impl Fn(T) -> Option<T>) -> Option<(T, T)> {
    match text.split_once('-') {
        Some((first, second)) => Some((first.trim().parse().ok()?, second.trim().parse().ok()?)),
        None => {
            let first: T = text.trim().parse().ok()?;
            Some((first, next(first)?))
        }
    }
}

impl TransportReply {
    /// Reads the answer to `wanted`. Ports or channels that the server leaves out are those that were asked for.
    ///
    /// # Errors
    /// What does not fit: another profile, another lower transport, multicast, a number that is none.
    pub fn parse(value: &str, wanted: TransportRequest) -> Result<Self, String> {
        let value = value.split(',').next().unwrap_or_default();
        let mut parts = value.split(';').map(str::trim);
        let profile = parts.next().unwrap_or_default().to_ascii_uppercase();
        let is_tcp = match profile.as_str() {
            "RTP/AVP" | "RTP/AVP/UDP" => false,
            "RTP/AVP/TCP" => true,
            _ => {
                return Err(format!(
                    "Transport: got \"{}\", allowed RTP/AVP and RTP/AVP/TCP",
                    excerpt(&profile, 100)
                ));
            }
        };
        if is_tcp != matches!(wanted, TransportRequest::Tcp { .. }) {
            return Err(format!("Transport: requested \"{wanted}\", got \"{}\"", excerpt(value, 100)));
        }
        let mut reply = Self { agreed: wanted, server_ports: None, source: None, ssrc: None, fec: None };
        for part in parts {
            reply
                .parameter(part, wanted)
                .map_err(|()| format!("Transport: \"{}\" is not valid", excerpt(part, 100)))?;
        }
        Ok(reply)
    }

    fn parameter(&mut self, part: &str, wanted: TransportRequest) -> Result<(), ()> {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let value = value.trim().trim_matches('"');
        match (name.trim().to_ascii_lowercase().as_str(), wanted) {
            ("multicast", _) => return Err(()),
            ("client_port", TransportRequest::Udp { .. }) => {
                let (rtp, rtcp) = pair(value, |port: u16| port.checked_add(1)).ok_or(())?;
                self.agreed = TransportRequest::Udp { rtp, rtcp };
            }
            ("interleaved", TransportRequest::Tcp { .. }) => {
                let (rtp, rtcp) = pair(value, |channel: u8| channel.checked_add(1)).ok_or(())?;
                self.agreed = TransportRequest::Tcp { rtp, rtcp };
            }
            ("server_port", TransportRequest::Udp { .. }) => {
                self.server_ports = Some(pair(value, |port: u16| port.checked_add(1)).ok_or(())?);
            }
            // A host name here is rare and of no use without a resolver: the connection's address is taken instead.
            ("source", _) => self.source = value.trim_matches(['[', ']']).parse().ok(),
            ("ssrc", _) => self.ssrc = u32::from_str_radix(value, 16).ok(),
            _ => {}
        }
        Ok(())
    }

    /// Where the server sends from, given the address that was expected: that with the `source` of the reply in it, if it
    /// names one of the same family; and the same with the server's RTP and RTCP ports, if it names them.
    pub fn server_addresses(&self, mut source: SocketAddr) -> (SocketAddr, Option<(SocketAddr, SocketAddr)>) {
        let fits = |ip: &IpAddr| ip.is_ipv4() == source.is_ipv4() && !ip.is_unspecified();
        if let Some(ip) = self.source.filter(fits) {
            source.set_ip(ip);
        }
        let with = |port| {
            let mut address = source;
            address.set_port(port);
            address
        };
        (source, self.server_ports.map(|(rtp, rtcp)| (with(rtp), with(rtcp))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: TransportRequest = TransportRequest::Udp { rtp: 5000, rtcp: 5001 };
    const TCP: TransportRequest = TransportRequest::Tcp { rtp: 0, rtcp: 1 };

    #[test]
    fn requests_have_the_players_form() {
        assert_eq!(UDP.to_string(), "RTP/AVP;unicast;client_port=5000-5001");
        assert_eq!(TCP.to_string(), "RTP/AVP/TCP;unicast;interleaved=0-1");
    }

    #[test]
    fn udp_answers() {
        let value = "RTP/AVP/UDP;unicast;client_port=5000-5001;server_port=6970-6971;source=10.0.0.9;ssrc=0000CAFE;mode=\"PLAY\"";
        let reply = TransportReply::parse(value, UDP).unwrap();
        assert_eq!(reply.agreed, UDP);
        assert_eq!(reply.server_ports, Some((6970, 6971)));
        assert_eq!(reply.source, Some("10.0.0.9".parse().unwrap()));
        assert_eq!(reply.ssrc, Some(0xcafe));
        let short = TransportReply::parse("RTP/AVP;unicast;server_port=6970", UDP).unwrap();
        assert_eq!((short.agreed, short.server_ports, short.ssrc), (UDP, Some((6970, 6971)), None));
        assert_eq!(TransportReply::parse("RTP/AVP;source=host.example", UDP).unwrap().source, None);
    }

    #[test]
    fn tcp_answers() {
        let reply = TransportReply::parse("rtp/avp/tcp; unicast; interleaved=2-3", TCP).unwrap();
        assert_eq!(reply.agreed, TransportRequest::Tcp { rtp: 2, rtcp: 3 });
        let reply = TransportReply::parse("RTP/AVP/TCP;interleaved=254", TCP).unwrap();
        assert_eq!(reply.agreed, TransportRequest::Tcp { rtp: 254, rtcp: 255 });
    }

    #[test]
    fn answers_that_do_not_fit_say_why() {
        for (value, wanted, why) in [
            ("RTP/AVP/TCP;interleaved=0-1", UDP, "requested"),
            ("RTP/AVP;unicast", TCP, "requested"),
            ("RTP/SAVP;unicast", UDP, "RTP/SAVP"),
            ("RTP/AVP;multicast;port=5000", UDP, "multicast"),
            ("RTP/AVP;server_port=70000", UDP, "server_port=70000"),
            ("RTP/AVP/TCP;interleaved=255", TCP, "interleaved=255"),
            ("", UDP, "allowed RTP/AVP"),
        ] {
            let error = TransportReply::parse(value, wanted).unwrap_err();
            assert!(error.contains(why), "{value}: {error}");
        }
    }
}
