//! The `Transport` header (RFC 2326 section 12.39): a list of what the viewer can take, best first.

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
    /// Where the viewer would like packets to go. They go to its own address, whatever this says.
    pub destination: Option<String>,
}

/// What a viewer names before the first `;`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spec {
    /// `RTP/AVP` or `RTP/AVP/UDP`.
    Udp {
        /// The `/UDP` was written: the answer writes it too.
        named: bool,
    },
    /// `RTP/AVP/TCP`.
    Tcp,
    /// `RAW/RAW/UDP` or `MP2T/H2221/UDP`: a transport stream in plain datagrams.
    Raw {
        /// The second name was written: the answer writes it too.
        h2221: bool,
    },
    /// Something else.
    Unknown,
}

impl Spec {
    /// As it stands in the answer.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Udp { named: false } => "RTP/AVP",
            Self::Udp { named: true } => "RTP/AVP/UDP",
            Self::Tcp => "RTP/AVP/TCP",
            Self::Raw { h2221: false } => "RAW/RAW/UDP",
            Self::Raw { h2221: true } => "MP2T/H2221/UDP",
            Self::Unknown => "?",
        }
    }
}

/// Entries whose parameters make sense, in the viewer's order; the others are left out.
pub fn parse(value: &str) -> Vec<Offer> {
    split_outside_quotes(value, ',').filter_map(offer).collect()
}

fn offer(text: &str) -> Option<Offer> {
    let mut parts = split_outside_quotes(text, ';');
    let spec = match parts.next()?.to_ascii_uppercase().as_str() {
        "RTP/AVP" => Spec::Udp { named: false },
        "RTP/AVP/UDP" => Spec::Udp { named: true },
        "RTP/AVP/TCP" => Spec::Tcp,
        "RAW/RAW/UDP" => Spec::Raw { h2221: false },
        "MP2T/H2221/UDP" => Spec::Raw { h2221: true },
        _ => Spec::Unknown,
    };
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
        match name.trim().to_ascii_lowercase().as_str() {
            "multicast" => offer.multicast = true,
            "client_port" => offer.client_port = Some(pair(value).filter(|&(rtp, _)| rtp > 0)?),
            "interleaved" => offer.interleaved = Some(pair(value)?),
            "mode" => {
                offer.mode_is_play =
                    value.split(',').any(|m| m.trim().trim_matches('"').eq_ignore_ascii_case("play"))
            }
            "destination" => offer.destination = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(offer)
}

/// `a-b` or `a`.
fn pair<T: std::str::FromStr>(text: &str) -> Option<(T, Option<T>)> {
    match text.split_once('-') {
        Some((first, second)) => Some((first.trim().parse().ok()?, Some(second.trim().parse().ok()?))),
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
    fn what_players_send() {
        let ffmpeg = one("RTP/AVP/UDP;unicast;client_port=24016-24017");
        assert_eq!(
            (ffmpeg.spec, ffmpeg.client_port),
            (Spec::Udp { named: true }, Some((24016, Some(24017))))
        );
        let vlc = one("RTP/AVP;unicast;client_port=5004");
        assert_eq!((vlc.spec, vlc.client_port), (Spec::Udp { named: false }, Some((5004, None))));
        let tcp = one("RTP/AVP/TCP;unicast;interleaved=2-3;mode=\"PLAY\"");
        assert_eq!((tcp.spec, tcp.interleaved, tcp.mode_is_play), (Spec::Tcp, Some((2, Some(3))), true));
        // live555 writes the first, set-top boxes the second.
        for (text, spec) in
            [("RAW/RAW/UDP", Spec::Raw { h2221: false }), ("MP2T/H2221/UDP", Spec::Raw { h2221: true })]
        {
            let raw = one(&format!("{text};unicast;client_port=5004-5005"));
            assert_eq!(
                (raw.spec, raw.spec.as_str(), raw.client_port),
                (spec, text, Some((5004, Some(5005))))
            );
        }
        assert!(one("RTP/AVP;multicast").multicast);
        assert!(!one("RTP/AVP/TCP;mode=record").mode_is_play);
        assert!(one("RTP/AVP/TCP;mode=\"RECORD,PLAY\"").mode_is_play);
    }

    #[test]
    fn a_list_keeps_its_order_and_loses_what_makes_no_sense() {
        let offers = parse(
            "RTP/AVP;multicast;ttl=127, RTP/AVP;client_port=99999-1,MP2T/H2221/TCP;unicast, RTP/AVP/TCP;x=\"a,b;c\"",
        );
        let specs: Vec<_> = offers.iter().map(|o| o.spec).collect();
        assert_eq!(specs, [Spec::Udp { named: false }, Spec::Unknown, Spec::Tcp]);
        assert_eq!(parse("RTP/AVP;client_port=0-1"), []);
        assert_eq!(parse("RTP/AVP;client_port"), []);
        assert_eq!(parse(""), []);
        assert_eq!(parse("RTP/AVP/TCP;interleaved=256-257"), []);
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
