//! The content of a description (SDP, RFC 8866) that a receiver uses: where the transport stream
//! is, or, for receivers that take anything, the first video.

use millrace_core::text::{Printable, excerpt};
use millrace_core::wire::rtp::PAYLOAD_TYPE_MP2T;
use sdp_types::{Media, Session};

use crate::rtsp::headers::NptRange;

/// The one stream that this receiver takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Title (`s=`), if any.
    pub name: String,
    /// RTP payload type of the stream.
    pub payload_type: u8,
    /// Whether it is an MPEG transport stream.
    pub is_transport_stream: bool,
    /// Ticks of its RTP clock in a second.
    pub clock_hz: u32,
    /// The stream's `a=control`.
    pub control: Option<String>,
    /// The session's `a=control`.
    pub session_control: Option<String>,
    /// `a=range`, of the stream or of the session.
    pub range: Option<NptRange>,
}

/// Clock of transport streams over RTP (RFC 2250 section 2).
const MEDIA_CLOCK_HZ: u32 = 90_000;

fn attribute<'a>(attributes: &'a [sdp_types::Attribute], name: &str) -> Option<&'a str> {
    attributes.iter().find(|a| a.attribute == name).and_then(|a| a.value.as_deref())
}

/// Returns the payload type under which `media` carries a transport stream: static 33 (RFC 3551),
/// or one mapped to `MP2T`.
fn transport_stream_type(media: &Media) -> Option<u8> {
    if !media.proto.to_ascii_uppercase().starts_with("RTP/AVP") {
        return None;
    }
    let mapped = |payload_type: u8| {
        media.attributes.iter().filter(|a| a.attribute == "rtpmap").any(|a| {
            let value = a.value.as_deref().unwrap_or_default();
            value.split_once(' ').is_some_and(|(number, encoding)| {
                number.parse() == Ok(payload_type)
                    && encoding.trim().to_ascii_uppercase().starts_with("MP2T/")
            })
        })
    };
    media.fmt.split_ascii_whitespace().filter_map(|format| format.parse::<u8>().ok()).find(|payload_type| {
        *payload_type == PAYLOAD_TYPE_MP2T || (*payload_type < 128 && mapped(*payload_type))
    })
}

fn offered(session: &Session) -> String {
    let medias = session.medias.iter().take(8).map(|media| {
        let maps =
            media.attributes.iter().filter(|a| a.attribute == "rtpmap").filter_map(|a| a.value.as_deref());
        let maps: Vec<&str> = maps.take(4).collect();
        let offer = format!("{} {} {} {}", media.media, media.proto, media.fmt, maps.join(" "));
        excerpt(offer.trim(), 100)
    });
    medias.collect::<Vec<_>>().join(", ")
}

/// Clock rate of a payload type without a map (RFC 3551 section 6): audio at 8000 Hz with exceptions, video at 90 kHz.
fn static_clock_hz(payload_type: u8) -> Option<u32> {
    match payload_type {
        0 | 3..=5 | 7..=9 | 12 | 13 | 15 | 18 => Some(8000),
        6 => Some(16_000),
        10 | 11 => Some(44_100),
        16 => Some(11_025),
        17 => Some(22_050),
        14 | 25 | 26 | 28 | 31..=34 => Some(90_000),
        _ => None,
    }
}

/// First payload type of `media` that can be timed, and its clock rate.
fn timed_type(media: &Media) -> Option<(u8, u32)> {
    if !media.proto.to_ascii_uppercase().starts_with("RTP/AVP") {
        return None;
    }
    let mapped = |payload_type: u8| {
        media.attributes.iter().filter(|a| a.attribute == "rtpmap").find_map(|a| {
            let (number, encoding) = a.value.as_deref()?.trim().split_once(' ')?;
            let rate = encoding.trim().split('/').nth(1)?.trim().parse().ok().filter(|hz| *hz > 0)?;
            (number.parse() == Ok(payload_type)).then_some(rate)
        })
    };
    let types = media.fmt.split_ascii_whitespace().filter_map(|format| format.parse::<u8>().ok());
    types.filter(|payload_type| *payload_type < 128).find_map(|payload_type| {
        mapped(payload_type).or_else(|| static_clock_hz(payload_type)).map(|hz| (payload_type, hz))
    })
}

/// Which streams are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Take {
    /// Transport streams.
    #[default]
    TransportStream,
    /// The transport stream if there is one, else the first video, else the first stream at all: to count its packets
    /// and to time them.
    Any,
}

/// Reads a description.
///
/// # Errors
/// Returns the problem with it, or the media it offers instead of a transport stream.
pub fn parse(body: &[u8], take: Take) -> Result<Description, String> {
    let session =
        Session::parse(body).map_err(|error| format!("the SDP cannot be read: {}", Printable(error)))?;
    let transport_stream =
        session.medias.iter().find_map(|media| Some((media, transport_stream_type(media)?, MEDIA_CLOCK_HZ)));
    let timed = |media| timed_type(media).map(|(payload_type, hz)| (media, payload_type, hz));
    let any = || {
        let videos = session.medias.iter().filter(|media| media.media == "video");
        videos.chain(session.medias.iter().filter(|media| media.media == "audio")).find_map(timed)
    };
    let found = match take {
        Take::TransportStream => transport_stream,
        Take::Any => transport_stream.or_else(any),
    };
    let Some((media, payload_type, clock_hz)) = found else {
        return Err(format!(
            "no MPEG transport stream over RTP (payload type {PAYLOAD_TYPE_MP2T}); the server offers: {}",
            offered(&session)
        ));
    };
    // There may be one for each unit.
    let ranges = media.attributes.iter().chain(&session.attributes).filter(|a| a.attribute == "range");
    Ok(Description {
        name: session.session_name.clone(),
        payload_type,
        is_transport_stream: transport_stream.is_some(),
        clock_hz,
        control: attribute(&media.attributes, "control").map(str::to_owned),
        session_control: attribute(&session.attributes, "control").map(str::to_owned),
        range: ranges.filter_map(|range| NptRange::parse(range.value.as_deref()?)).next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_core::time::MediaTicks;

    #[test]
    fn live555_transport_stream() {
        let sdp = b"v=0\r\no=- 1 1 IN IP4 10.0.0.1\r\ns=MPEG Transport Stream\r\ni=x.ts\r\nt=0 0\r\na=tool:LIVE555\r\n\
            a=type:broadcast\r\na=control:*\r\na=range:npt=0-60.5\r\nm=video 0 RTP/AVP 33\r\nc=IN IP4 0.0.0.0\r\n\
            b=AS:5000\r\na=control:track1\r\n";
        let found = parse(sdp, Take::TransportStream).unwrap();
        assert_eq!(found.name, "MPEG Transport Stream");
        assert_eq!((found.payload_type, found.control.as_deref()), (33, Some("track1")));
        assert_eq!(found.session_control.as_deref(), Some("*"));
        assert_eq!(found.range.unwrap().end, MediaTicks::from_secs_f64(60.5));
    }

    #[test]
    fn sdp_parse_finds_dynamic_payload_type_after_other_stream() {
        let sdp = b"v=0\r\ns=-\r\nm=audio 0 RTP/AVP 97\r\na=rtpmap:97 MPEG4-GENERIC/48000\r\na=control:a\r\n\
            m=video 0 RTP/AVP 98 99\r\na=rtpmap:98 H264/90000\r\na=rtpmap:99 mp2t/90000\r\na=control:v\r\n";
        let found = parse(sdp, Take::TransportStream).unwrap();
        assert_eq!((found.payload_type, found.control.as_deref(), found.range), (99, Some("v"), None));
    }

    #[test]
    fn sdp_parse_without_transport_stream_names_offered_codec() {
        let sdp = b"v=0\r\ns=-\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n";
        let error = parse(sdp, Take::TransportStream).unwrap_err();
        assert!(error.contains("H264/90000") && error.contains("33"), "{error}");
        // The terminal that shows the error must not obey it.
        let sdp = "v=0\r\ns=-\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 \u{1b}[2J\u{202e}H264/90000\r\n";
        let error = parse(sdp.as_bytes(), Take::TransportStream).unwrap_err();
        assert!(error.contains("\\u{1b}[2J\\u{202e}H264/90000"), "{error}");
        assert!(parse(b"<html>", Take::Any).unwrap_err().contains("cannot be read"));
        assert!(parse(b"", Take::Any).is_err());
    }

    #[test]
    fn sdp_take_any_prefers_transport_stream_over_first_video() {
        let h264 = "v=0\r\ns=-\r\na=control:*\r\nm=audio 0 RTP/AVP 97\r\na=rtpmap:97 MPEG4-GENERIC/48000/2\r\n\
            a=control:stream=1\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=control:stream=0\r\n";
        let found = parse(h264.as_bytes(), Take::Any).unwrap();
        assert_eq!((found.payload_type, found.clock_hz, found.is_transport_stream), (96, 90_000, false));
        assert_eq!(found.control.as_deref(), Some("stream=0"));
        let audio = parse(&h264.as_bytes()[..h264.find("m=video").unwrap()], Take::Any).unwrap();
        assert_eq!((audio.payload_type, audio.clock_hz), (97, 48_000));
        let both = format!("{h264}m=video 0 RTP/AVP 33\r\na=control:ts\r\n");
        let found = parse(both.as_bytes(), Take::Any).unwrap();
        assert_eq!((found.payload_type, found.is_transport_stream), (33, true));
        let untimed =
            b"v=0\r\ns=-\r\nm=video 0 RTP/AVP 96\r\nm=application 0 RTP/AVP 98\r\na=rtpmap:98 x/1000\r\n";
        assert!(parse(untimed, Take::Any).is_err());
        let pcm = parse(b"v=0\r\ns=-\r\nm=audio 0 RTP/AVP 0\r\n", Take::Any).unwrap();
        assert_eq!(pcm.clock_hz, 8000);
    }
}
