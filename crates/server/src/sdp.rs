//! What DESCRIBE says about a title: one MPEG-2 transport stream over RTP (RFC 2327, RFC 2326 appendix C, RFC 2250).
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::wire::frame::{IPV4_HEADER_BYTES, UDP_HEADER_BYTES};
use millrace_core::wire::rtp::PAYLOAD_TYPE_MP2T;
use sdp_types::{
    Attribute, Bandwidth, BandwidthType, Connection, Media, MediaType, Origin, Session, Time, TransportProto,
};

use crate::rtsp::range::npt;
use crate::rtsp::target;
use crate::service::{Entry, FecMode};

/// The description, for a viewer that reaches the server at `local`. `wish` and the
/// transformation are what its URL asks for: players leave the query out when they put URLs together, so they go into the track's.
pub fn describe(entry: &Entry, local: IpAddr, wish: Option<FecMode>) -> String {
    let attribute = |name: &str, value: String| Attribute { attribute: name.into(), value: Some(value) };
    let mut media = Media::new(MediaType::Video, 0, TransportProto::RtpAvp, PAYLOAD_TYPE_MP2T); // port: by SETUP
    media.bandwidths.push(Bandwidth::new(BandwidthType::As, session_kbits(entry)));
    media.attributes.push(attribute("rtpmap", format!("{PAYLOAD_TYPE_MP2T} MP2T/90000")));
    let fec = wish.map(|mode| format!("fec={mode}"));
    let transform = entry.transform.as_ref().map(|of| format!("{}={}", target::TRANSFORM, of.name));
    let query: Vec<_> = [transform, fec].into_iter().flatten().collect();
    let mark = if query.is_empty() { "" } else { "?" };
    media.attributes.push(attribute("control", format!("track1{mark}{}", query.join("&"))));
    if let Some(matrix) = entry.fec {
        media.attributes.push(attribute("x-millrace-fec", matrix.offer()));
    }

    let origin = Origin::with_ip_addr(entry.timeline.ssrc, 1, local);
    let mut session = Session::new(origin, text(&entry.name));
    // RFC 2326 appendix C.1.7: the null address, because SETUP says where packets go.
    session.connection = Some(Connection::from_ip_addr(match local {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }));
    session.times.push(Time::new(0, 0));
    session.attributes.push(attribute("control", "*".into()));
    session.attributes.push(attribute("range", format!("npt=0-{}", npt(entry.end()))));
    session.medias.push(media);
    let mut bytes = Vec::new();
    session.write(&mut bytes).expect("a Vec takes every byte");
    String::from_utf8(bytes).expect("written from strings")
}

/// `b=AS`: kilobits a second with RTP, UDP and IP headers, rounded up (RFC 3550 section 6.2 counts them).
fn session_kbits(entry: &Entry) -> u64 {
    let payload = entry.layout.packet_bytes() as u64;
    let datagram = payload + (RTP_HEADER_BYTES + UDP_HEADER_BYTES + IPV4_HEADER_BYTES) as u64;
    let bits = u128::from(entry.peak_rate.0) * u128::from(datagram) / u128::from(payload);
    u64::try_from(bits.div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

/// A line of text without anything that would end the line; never empty (RFC 2327 section 6, `s=`).
fn text(name: &str) -> String {
    let text: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.is_empty() { " ".into() } else { text }
}

#[cfg(test)]
#[path = "sdp_tests.rs"]
mod tests;
