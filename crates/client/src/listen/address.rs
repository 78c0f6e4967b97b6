//! `udp://` and `rtp://` addresses to listen at.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Default number of ports from one stream to the next: an even one for RTP, an odd one for RTCP.
const DEFAULT_STEP: u16 = 2;
/// Default port, as in other players.
const DEFAULT_PORT: u16 = 5004;

/// The protocol expected at the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// `udp://`: TS packets in datagrams.
    Raw,
    /// `rtp://`: RTP.
    Rtp,
    /// `nvod://`: announcements of near video on demand.
    Nvod,
}

/// An address to listen at: `udp://[address][:port][?step=N&interface=NAME]`, `rtp://…`.
///
/// Without an address it is any of this machine; a multicast group is joined, at the interface with this name or IPv4
/// address if one is given. The n-th stream, from 0, listens at port + n × step; the step is 2 unless it is given. As in
/// the addresses of other players an `@` may stand before the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenUrl {
    /// The protocol expected.
    pub carriage: Carriage,
    /// Address of this machine, or a multicast group.
    pub address: IpAddr,
    /// Port of the first stream.
    pub port: u16,
    /// Ports from one stream to the next.
    pub step: u16,
    /// Name or IPv4 address of the interface at which a group is joined.
    pub interface: Option<String>,
}

impl ListenUrl {
    /// Parses an address.
    ///
    /// # Errors
    /// Returns the problem with it, in a few words.
    pub fn parse(given: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = given.trim().split_once("://").ok_or("no scheme")?;
        let carriage = match scheme.to_ascii_lowercase().as_str() {
            "udp" => Carriage::Raw,
            "rtp" => Carriage::Rtp,
            "nvod" => Carriage::Nvod,
            _ => return Err("the scheme is neither udp nor rtp"),
        };
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let place = place.trim_end_matches('/').trim_start_matches('@');
        let (address, port) = if let Some(bracketed) = place.strip_prefix('[') {
            let (address, port) = bracketed.split_once(']').ok_or("\"[\" without \"]\"")?;
            let address =
                address.parse::<Ipv6Addr>().map_err(|_| "no IPv6 address between \"[\" and \"]\"")?;
            (IpAddr::from(address), port)
        } else {
            let (address, port) = place.split_at(place.find(':').unwrap_or(place.len()));
            let address = if address.is_empty() { "0.0.0.0" } else { address };
            let address =
                address.parse::<Ipv4Addr>().map_err(|_| "listening needs an address, not a name")?;
            (IpAddr::from(address), port)
        };
        let port = match port.strip_prefix(':') {
            Some(digits) => digits.parse().map_err(|_| "the port is not a number from 1 to 65535")?,
            None if port.is_empty() => DEFAULT_PORT,
            None => return Err("something stands between \"]\" and the port"),
        };
        if port == 0 {
            return Err("the port is not a number from 1 to 65535");
        }
        let mut url = Self { carriage, address, port, step: DEFAULT_STEP, interface: None };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            url.set(option)?;
        }
        Ok(url)
    }

    fn set(&mut self, option: &str) -> Result<(), &'static str> {
        match option.split_once('=') {
            Some(("step", value)) => {
                self.step = value.parse().ok().filter(|step| *step > 0).ok_or("the step is not a number")?;
            }
            Some(("interface" | "localaddr", value)) if !value.is_empty() => {
                self.interface = Some(value.to_owned());
            }
            // The address that the sender was given is good for receivers too.
            Some(("iface", value)) if self.carriage == Carriage::Nvod && !value.is_empty() => {
                self.interface = Some(value.to_owned());
            }
            Some(("channels" | "scheme" | "ttl" | "dscp", _)) if self.carriage == Carriage::Nvod => {}
            _ => return Err("the options are step and interface"),
        }
        Ok(())
    }

    /// Where stream `number` listens.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn place(&self, number: u32) -> Result<SocketAddr, &'static str> {
        let port = u64::from(self.port) + u64::from(number) * u64::from(self.step);
        let port =
            u16::try_from(port).map_err(|_| "the ports go beyond 65535: begin lower, or make the step 1")?;
        Ok(SocketAddr::new(self.address, port))
    }
}

impl std::fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = match self.carriage {
            Carriage::Raw => "udp",
            Carriage::Rtp => "rtp",
            Carriage::Nvod => "nvod",
        };
        write!(f, "{scheme}://{}", SocketAddr::new(self.address, self.port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (given, printed, step, interface) in [
            ("udp://127.0.0.1:5000", "udp://127.0.0.1:5000", 2, None),
            ("rtp://@239.1.2.3:6000/?interface=eth0&step=1", "rtp://239.1.2.3:6000", 1, Some("eth0")),
            ("UDP://[ff15::1]:7000?localaddr=x", "udp://[ff15::1]:7000", 2, Some("x")),
            ("udp://:1234", "udp://0.0.0.0:1234", 2, None),
            ("rtp://@", "rtp://0.0.0.0:5004", 2, None),
            ("nvod://239.1.2.3:6000?channels=3&iface=lo&ttl=2", "nvod://239.1.2.3:6000", 2, Some("lo")),
            ("rtp://[::]", "rtp://[::]:5004", 2, None),
        ] {
            let url = ListenUrl::parse(given).unwrap();
            assert_eq!((url.to_string().as_str(), url.step), (printed, step), "{given}");
            assert_eq!(url.interface.as_deref(), interface);
        }
    }

    #[test]
    fn bad_addresses_say_why() {
        for (given, why) in [
            ("127.0.0.1", "no scheme"),
            ("tcp://127.0.0.1", "neither udp nor rtp"),
            ("udp://server:5000", "not a name"),
            ("udp://[::1:5000", "without"),
            ("udp://[::g]:5000", "no IPv6"),
            ("udp://[::1]5000", "between"),
            ("udp://1.2.3.4:0", "1 to 65535"),
            ("udp://1.2.3.4:70000", "1 to 65535"),
            ("udp://1.2.3.4?step=0", "the step"),
            ("udp://1.2.3.4?pkt_size=1316", "step and interface"),
        ] {
            let error = ListenUrl::parse(given).unwrap_err();
            assert!(error.contains(why), "{given}: {error}");
        }
    }

    #[test]
    fn streams_have_consecutive_ports() {
        let url = ListenUrl::parse("udp://127.0.0.1:65000").unwrap();
        assert_eq!(url.place(0), Ok("127.0.0.1:65000".parse().unwrap()));
        assert_eq!(url.place(267), Ok("127.0.0.1:65534".parse().unwrap()));
        assert!(url.place(268).is_err() && url.place(u32::MAX).is_err());
        let close = ListenUrl::parse("udp://127.0.0.1:65000?step=1").unwrap();
        assert_eq!(close.place(535), Ok("127.0.0.1:65535".parse().unwrap()));
    }
}
