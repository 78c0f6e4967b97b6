//! What a description (SDP, RFC 8866) tells a receiver of MPEG transport streams.

use millrace_core::wire::rtp::PAYLOAD_TYPE_MP2T;
use sdp_types::{Media, Session};

use crate::rtsp::headers::NptRange;

/// The one stream that this receiver takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Title (`s=`), if any.
    pub name: String,
    /// RTP payload type of the transport stream.
    pub payload_type: u8,
    /// The stream's `a=control`.
    pub control: Option<String>,
    /// The session's `a=control`.
    pub session_control: Option<String>,
    /// `a=range`, of the stream or of the session.
    pub range: Option<NptRange>,
}

fn attribute<'a>(attributes: &'a [sdp_types::Attribute], name: &str) -> Option<&'a str> {
    attributes.iter().find(|a| a.attribute == name).and_then(|a| a.value.as_deref())
}

/// The payload type with which `media` carries a transport stream: static 33 (RFC 3551), or one mapped to `MP2T`.
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
        format!("{} {} {} {}", media.media, media.proto, media.fmt, maps.join(" ")).trim().to_owned()
    });
    medias.collect::<Vec<_>>().join(", ")
}

/// Reads a description.
///
/// # Errors
/// What is wrong with it, or what it offers instead of a transport stream.
pub fn parse(body: &[u8]) -> Result<Description, String> {
    let session = Session::parse(body).map_err(|error| format!("the SDP cannot be read: {error}"))?;
    let found = session.medias.iter().find_map(|media| transport_stream_type(media).map(|pt| (media, pt)));
    let Some((media, payload_type)) = found else {
        return Err(format!(
            "no MPEG transport stream over RTP (payload type {PAYLOAD_TYPE_MP2T}); the server offers: {}",
            offered(&session)
        ));
    };
    let range = attribute(&media.attributes, "range").or_else(|| attribute(&session.attributes, "range"));
    Ok(Description {
        name: session.session_name.clone(),
        payload_type,
        control: attribute(&media.attributes, "control").map(str::to_owned),
        session_control: attribute(&session.attributes, "control").map(str::to_owned),
        range: range.and_then(NptRange::parse),
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
        let found = parse(sdp).unwrap();
        assert_eq!(found.name, "MPEG Transport Stream");
        assert_eq!((found.payload_type, found.control.as_deref()), (33, Some("track1")));
        assert_eq!(found.session_control.as_deref(), Some("*"));
        assert_eq!(found.range.unwrap().end, MediaTicks::from_secs_f64(60.5));
    }

    #[test]
    fn a_dynamic_payload_type_behind_another_stream() {
        let sdp = b"v=0\r\ns=-\r\nm=audio 0 RTP/AVP 97\r\na=rtpmap:97 MPEG4-GENERIC/48000\r\na=control:a\r\n\
            m=video 0 RTP/AVP 98 99\r\na=rtpmap:98 H264/90000\r\na=rtpmap:99 mp2t/90000\r\na=control:v\r\n";
        let found = parse(sdp).unwrap();
        assert_eq!((found.payload_type, found.control.as_deref(), found.range), (99, Some("v"), None));
    }

    #[test]
    fn what_is_offered_instead_is_named() {
        let sdp = b"v=0\r\ns=-\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n";
        let error = parse(sdp).unwrap_err();
        assert!(error.contains("H264/90000") && error.contains("33"), "{error}");
        assert!(parse(b"<html>").unwrap_err().contains("cannot be read"));
        assert!(parse(b"").is_err());
    }
}
