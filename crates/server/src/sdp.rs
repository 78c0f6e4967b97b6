//! The description that DESCRIBE returns for a title: one MPEG-2 transport stream over RTP (RFC
//! 2327, RFC 2326 appendix C, RFC 2250).
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_core::units::BitRate;
use millrace_core::wire::frame::{IPV4_HEADER_BYTES, UDP_HEADER_BYTES};
use millrace_core::wire::rtp::PAYLOAD_TYPE_MP2T;
use sdp_types::{
    Attribute, Bandwidth, BandwidthType, Connection, Media, MediaType, Origin, Session, Time, TransportProto,
};

use crate::rtsp::range::{clock, npt};
use crate::rtsp::target;
use crate::service::{FecMode, GroupAddress, Rendition, TitleEntry};

/// The options in the URL of a DESCRIBE: players drop the query when they combine URLs, so it goes
/// into the track's URL.
#[derive(Clone, Debug, Default)]
pub struct UrlOptions {
    /// How much FEC.
    pub fec: Option<FecMode>,
    /// Which rendition.
    pub rendition: Option<String>,
    /// How much later than the actual end the announced end is.
    pub late_end: MediaTicks,
    /// The group for viewers by multicast, with its time to live.
    pub group: Option<(GroupAddress, u8)>,
    /// Whether the range is described by the time of day, too.
    pub clock: bool,
}

impl UrlOptions {
    /// As the query of a URL, with the transformation of the title; empty if nothing was asked for.
    fn query(&self, entry: &TitleEntry) -> String {
        let transform = entry.transform.as_ref().map(|of| format!("{}={}", target::TRANSFORM, of.name));
        let fec = self.fec.map(|mode| format!("fec={mode}"));
        let rendition = self.rendition.as_ref().map(|name| format!("rendition={name}"));
        let asked: Vec<_> = [transform, fec, rendition].into_iter().flatten().collect();
        if asked.is_empty() { String::new() } else { format!("?{}", asked.join("&")) }
    }

    /// Of the renditions, the one that is asked for.
    fn of<'a>(&self, renditions: &'a [Rendition]) -> Option<&'a Rendition> {
        let asked = self.rendition.as_deref()?;
        renditions.iter().find(|rendition| rendition.name.as_str() == asked)
    }
}

/// The range of a live title, in descriptions and replies (RFC 2326 section 3.6).
pub const LIVE_RANGE: &str = "npt=now-";

/// The range of a recording that is still being made: its end is not known.
pub const GROWING_RANGE: &str = "npt=0-";

/// A range of media time, in these two places of `Range` and `a=range`; `until` is left out of an open one.
pub fn range_text(from: MediaTicks, until: Option<MediaTicks>) -> String {
    format!("npt={}-{}", npt(from), until.map(npt).unwrap_or_default())
}

/// The same by the time of day, if the title's is known.
pub fn clock_range_text(entry: &TitleEntry, from: MediaTicks, until: Option<MediaTicks>) -> Option<String> {
    let began = MediaTicks(entry.began_unix_ms?.saturating_mul(MEDIA_HZ / 1_000));
    let at = |time: MediaTicks| clock(MediaTicks(began.0.saturating_add(time.0)));
    Some(format!("clock={}-{}", at(from), until.map(at).unwrap_or_default()))
}

/// The playable part of the title in all of its units: the value of `Media-Range` (RFC 7826 section 18.30).
pub fn media_range(entry: &TitleEntry) -> String {
    let Range { start, end } = entry.available();
    let clock = clock_range_text(entry, start, Some(end));
    [Some(range_text(start, Some(end))), clock].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The description, for a viewer that reaches the server at `local`.
pub fn describe(entry: &TitleEntry, local: IpAddr, renditions: &[Rendition], asked: &UrlOptions) -> String {
    let attribute = |name: &str, value: String| Attribute { attribute: name.into(), value: Some(value) };
    // Without a group, SETUP determines the port.
    let port = asked.group.map_or(0, |(to, _)| to.port);
    let mut media = Media::new(MediaType::Video, port, TransportProto::RtpAvp, PAYLOAD_TYPE_MP2T);
    let peak_rate = asked.of(renditions).map_or(entry.peak_rate, |rendition| rendition.peak_rate);
    media.bandwidths.push(Bandwidth::new(BandwidthType::As, session_kbits(entry, peak_rate)));
    media.attributes.push(attribute("rtpmap", format!("{PAYLOAD_TYPE_MP2T} MP2T/90000")));
    media.attributes.push(attribute("control", format!("track1{}", asked.query(entry))));
    if entry.access.is_remote() {
        media.attributes.push(attribute("x-millrace-library", "remote".to_owned()));
    }
    if entry.access.grown_to().is_some() {
        media.attributes.push(attribute("x-millrace-recording", "growing".to_owned()));
    }
    if let Some(matrix) = entry.fec {
        media.attributes.push(attribute("x-millrace-fec", matrix.offer()));
    }
    for Rendition { name, mean_rate, peak_rate, .. } in renditions {
        let (mean, peak) = (mean_rate.0, peak_rate.0);
        media.attributes.push(attribute("x-millrace-rendition", format!("{name};mean={mean};peak={peak}")));
    }

    let origin = Origin::with_ip_addr(entry.timeline.ssrc, 1, local);
    let mut session = Session::new(origin, text(&entry.title));
    // RFC 2326 appendix C.1.7: the null address, because SETUP determines the destination of the
    // packets. A group is fixed; IPv6 has no time to live there (RFC 8866 section 5.7).
    session.connection = Some(match (asked.group, local) {
        (Some((to, ttl)), _) => Connection::from_ip_addr_ttl(to.group, to.group.is_ipv4().then_some(ttl)),
        (None, IpAddr::V4(_)) => Connection::from_ip_addr(Ipv4Addr::UNSPECIFIED),
        (None, IpAddr::V6(_)) => Connection::from_ip_addr(Ipv6Addr::UNSPECIFIED),
    });
    session.times.push(Time::new(0, 0));
    session.attributes.push(attribute("control", "*".into()));
    let range = match entry.is_live() {
        true => LIVE_RANGE.to_owned(),
        false if entry.is_endless() => GROWING_RANGE.to_owned(),
        false => format!("npt=0-{}", npt(MediaTicks(entry.end().0 + asked.late_end.0))),
    };
    let Range { start, end } = entry.available();
    let end = Some(end).filter(|_| !entry.is_endless());
    if let Some(clock) = clock_range_text(entry, start, end).filter(|_| asked.clock && asked.group.is_none())
    {
        // Of all these lines GStreamer uses the first of the session, and FFmpeg the last one.
        media.attributes.push(attribute("range", clock));
        media.attributes.push(attribute("range", range.clone()));
    }
    session.attributes.push(attribute("range", range));
    session.medias.push(media);
    let mut bytes = Vec::new();
    session.write(&mut bytes).expect("a Vec takes every byte");
    String::from_utf8(bytes).expect("written from strings")
}

/// `b=AS`: kilobits a second with RTP, UDP and IP headers, rounded up (RFC 3550 section 6.2 counts them).
fn session_kbits(entry: &TitleEntry, peak_rate: BitRate) -> u64 {
    let payload = entry.layout.packet_bytes() as u64;
    let datagram = payload + (RTP_HEADER_BYTES + UDP_HEADER_BYTES + IPV4_HEADER_BYTES) as u64;
    let bits = u128::from(peak_rate.0) * u128::from(datagram) / u128::from(payload);
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
