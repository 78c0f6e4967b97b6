//! The `Transport` header (RFC 2326 section 12.39): a list of the transports that the viewer
//! accepts, best first.

/// One entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Profile and lower transport.
    pub spec: Spec,
    /// The viewer asks for multicast.
    pub multicast: bool,
    /// `client_port=`: RTP, RTCP.
    pub client_port: Option<(u16, Option<u16>)>,
    /// `interleaved=`: RTP, RTCP.
    pub interleaved: Option<(u8, Option<u8>)>,
    /// No `mode`, or one that contains PLAY.
    pub mode_is_play: bool,
    /// The destination that the viewer prefers for packets. They go to its own address, whatever
    /// this contains.
    pub destination: Option<String>,
}

/// The part of a viewer's transport before the first `;`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The name that the viewer used; the reply repeats it.
    name: &'static str,
    /// Whether packets have RTP headers.
    pub media: MediaForm,
    /// The lower transport.
    pub lower: Lower,
}

/// The format of media packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaForm {
    /// RTP.
    Rtp,
    /// A transport stream without RTP.
    Raw,
}

/// The lower transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lower {
    /// UDP datagrams.
    Udp,
    /// Interleaved frames in the RTSP connection.
    Interleaved,
}

/// All supported names. The first are those of RFC 2326 section 12.39 for RTP. Then come names that
/// set-top boxes use for the same RTP, whose only payload here is a transport stream, and names
/// that live555 and set-top boxes use for a transport stream without RTP. A name without a lower
/// transport means UDP, as in the RFC.
const SPECS: [Spec; 15] = {
    use Lower::{Interleaved, Udp};
    use MediaForm::{Raw, Rtp};
    const fn spec(name: &'static str, media: MediaForm, lower: Lower) -> Spec {
        Spec { name, media, lower }
    }
    [
        spec("RTP/AVP", Rtp, Udp),
        spec("RTP/AVP/UDP", Rtp, Udp),
        spec("RTP/AVP/TCP", Rtp, Interleaved),
        spec("MP2T/RTP", Rtp, Udp),
        spec("MP2T/RTP/UDP", Rtp, Udp),
        spec("MP2T/RTP/TCP", Rtp, Interleaved),
        spec("RAW/RAW", Raw, Udp),
        spec("RAW/RAW/UDP", Raw, Udp),
        spec("RAW/RAW/TCP", Raw, Interleaved),
        spec("MP2T/H2221", Raw, Udp),
        spec("MP2T/H2221/UDP", Raw, Udp),
        spec("MP2T/H2221/TCP", Raw, Interleaved),
        spec("MP2T", Raw, Udp),
        spec("MP2T/UDP", Raw, Udp),
        spec("MP2T/TCP", Raw, Interleaved),
    ]
};

impl Spec {
    /// As it stands in the answer.
    pub fn as_str(self) -> &'static str {
        self.name
    }

    /// Parses a name, in any letter case and with optional spaces around the slashes. Returns
    /// `None` if it is not supported.
    fn of(text: &str) -> Option<Self> {
        let words = || text.split('/').map(str::trim);
        let is_same = |spec: &&Self| {
            let mut own = spec.name.split('/');
            words().all(|word| own.next().is_some_and(|own| own.eq_ignore_ascii_case(word)))
                && own.next().is_none()
        };
        SPECS.iter().find(is_same).copied()
    }
}

/// Returns the supported entries with valid parameters, in the viewer's order, and skips the
/// others.
pub fn parse(value: &str) -> Vec<Offer> {
    split_outside_quotes(value, ',').filter_map(offer).collect()
}

fn offer(text: &str) -> Option<Offer> {
    let mut parts = split_outside_quotes(text, ';');
    let spec = Spec::of(parts.next()?)?;
    let mut offer = Offer {
        spec,
        multicast: false,
        client_port: None,
        interleaved: None,
        mode_is_play: true,
        destination: None,
    };
    for part in parts {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let value = value.trim().trim_matches('"');
        match (name.trim().to_ascii_lowercase().as_str(), spec.lower) {
            ("multicast", _) => offer.multicast = true,
            // Set-top boxes also send ports for interleaved media and channels for UDP; these have
            // no meaning.
            ("client_port", Lower::Udp) => {
                offer.client_port = Some(pair(value).filter(|&(rtp, _)| rtp > 0)?);
            }
            ("interleaved", Lower::Interleaved) => offer.interleaved = Some(pair(value)?),
            ("mode", _) => {
                offer.mode_is_play =
                    value.split(',').any(|m| m.trim().trim_matches('"').eq_ignore_ascii_case("play"))
            }
            ("destination", _) => offer.destination = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(offer)
}

/// `a-b`, `a-` or `a`.
fn pair<T: std::str::FromStr>(text: &str) -> Option<(T, Option<T>)> {
    match text.split_once('-') {
        Some((first, second)) => {
            let second = second.trim();
            let second = if second.is_empty() { None } else { Some(second.parse().ok()?) };
            Some((first.trim().parse().ok()?, second))
        }
        None => Some((text.parse().ok()?, None)),
    }
}

/// Trimmed pieces between `separator`s that are not inside quotation marks.
fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c: char| {
        quoted ^= c == '"';
        c == separator && !quoted
    })
    .map(str::trim)
    .filter(|piece| !piece.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Offer {
        let offers = parse(text);
        assert_eq!(offers.len(), 1, "{text}");
        offers[0].clone()
    }

    #[test]
    fn parse_of_offers_of_players_has_their_ports_and_channels() {
        let ffmpeg = one("RTP/AVP/UDP;unicast;client_port=24016-24017");
        assert_eq!((ffmpeg.spec.as_str(), ffmpeg.client_port), ("RTP/AVP/UDP", Some((24016, Some(24017)))));
        let vlc = one("RTP/AVP;unicast;client_port=5004");
        assert_eq!((vlc.spec.as_str(), vlc.client_port), ("RTP/AVP", Some((5004, None))));
        let tcp = one("RTP/AVP/TCP;unicast;interleaved=2-3;mode=\"PLAY\"");
        assert_eq!((tcp.spec.lower, tcp.interleaved), (Lower::Interleaved, Some((2, Some(3)))));
        assert!(tcp.mode_is_play);
        assert!(one("RTP/AVP;multicast").multicast);
        assert!(!one("RTP/AVP/TCP;mode=record").mode_is_play);
        assert!(one("RTP/AVP/TCP;mode=\"RECORD,PLAY\"").mode_is_play);
    }

    #[test]
    fn parse_of_every_name_answers_in_that_name() {
        use Lower::{Interleaved, Udp};
        use MediaForm::{Raw, Rtp};
        for (name, media, lower) in [
            ("RTP/AVP", Rtp, Udp),
            ("RTP/AVP/TCP", Rtp, Interleaved),
            ("MP2T/RTP/UDP", Rtp, Udp),
            ("MP2T/RTP/TCP", Rtp, Interleaved),
            ("MP2T/UDP", Raw, Udp),
            ("MP2T/TCP", Raw, Interleaved),
            // live555 sends the first name, set-top boxes send the next one.
            ("RAW/RAW/UDP", Raw, Udp),
            ("MP2T/H2221/UDP", Raw, Udp),
            ("MP2T/H2221/TCP", Raw, Interleaved),
        ] {
            for text in [name.to_owned(), name.to_lowercase(), format!(" {} ", name.replace('/', " / "))] {
                let offer = one(&format!("{text};unicast;client_port=5004-5005"));
                assert_eq!((offer.spec.as_str(), offer.spec.media, offer.spec.lower), (name, media, lower));
            }
        }
    }

    #[test]
    fn parse_of_list_keeps_its_order_and_loses_what_makes_no_sense() {
        let offers = parse(
            "RTP/AVP;multicast;ttl=127, RTP/AVP;client_port=99999-1,MP2T/H2222/TCP;unicast, RTP/AVP/TCP;x=\"a,b;c\"",
        );
        let specs: Vec<_> = offers.iter().map(|o| o.spec.as_str()).collect();
        assert_eq!(specs, ["RTP/AVP", "RTP/AVP/TCP"]);
        for bad in [
            "RTP/AVP;client_port=0-1",
            "RTP/AVP;client_port",
            "",
            "RTP/AVP/TCP;interleaved=256-257",
            "RTP/AVP/",
            "/RTP/AVP",
            "RTP/AVP/UDP/UDP",
        ] {
            assert_eq!(parse(bad), [], "{bad}");
        }
    }

    #[test]
    fn parse_of_parameters_of_boxes_takes_those_that_count() {
        // The list that rtp2httpd sends to such servers.
        let list = "MP2T/RTP/TCP;unicast;interleaved=0-1,MP2T/TCP;unicast;interleaved=0-1,\
                    MP2T/RTP/UDP;unicast;client_port=9000-9001,MP2T/UDP;unicast;client_port=9000-9001,\
                    RTP/AVP;unicast;client_port=9000-9001";
        assert_eq!(parse(list).len(), 5);
        let tcp =
            one("MP2T/RTP/TCP;unicast;destination=192.0.2.7;client_port=0-0;interleaved= 4 - 5 ;x-burst=1");
        assert_eq!((tcp.interleaved, tcp.client_port), (Some((4, Some(5))), None));
        let udp = one("MP2T/UDP; unicast ; client_port = 9000- ;X-Fast=\"a;b\";interleaved=x");
        assert_eq!((udp.client_port, udp.interleaved), (Some((9000, None)), None));
        assert_eq!(one("mp2t/rtp/tcp;unicast").interleaved, None);
    }

    #[test]
    fn odd_quotation_marks_are_only_text() {
        for text in ["RTP/AVP;dest_addr=\"/\"", "RTP/AVP;mode=\"", "\"", "RTP/AVP;destination=\"\\\"", ";;,;"]
        {
            let _ = parse(text);
        }
        assert_eq!(one("RTP/AVP;destination=\"192.0.2.1\"").destination.as_deref(), Some("192.0.2.1"));
    }
}
