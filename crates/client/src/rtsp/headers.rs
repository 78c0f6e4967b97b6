//! `Session`, `Range` and `RTP-Info` of a reply. Readers are lenient where players are, and never panic.

use std::fmt;

use millrace_core::scale::Scale;
use millrace_core::time::{MediaTicks, NS_PER_S};

use crate::limits::DEFAULT_TIMEOUT_S;

/// A session as the server names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionHeader {
    /// Identifier, sent back in every request.
    pub id: String,
    /// After this time without a sign of life the server may drop the session.
    pub timeout_ns: u64,
}

impl SessionHeader {
    /// `id[;timeout=seconds]`; `None` if the identifier is missing or could not stand in a header line.
    pub fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split(';');
        let id = parts.next()?.trim();
        if id.is_empty() || id.len() > 512 || !id.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
            return None;
        }
        let timeout_s = parts
            .filter_map(|part| part.trim().split_once('='))
            .find(|(name, _)| name.trim().eq_ignore_ascii_case("timeout"))
            .and_then(|(_, seconds)| seconds.trim().parse::<u64>().ok())
            .unwrap_or(DEFAULT_TIMEOUT_S)
            .clamp(1, 86_400);
        Some(Self { id: id.to_owned(), timeout_ns: timeout_s * NS_PER_S })
    }
}

/// `Range: npt=start-end` (RFC 2326 sections 3.6 and 12.29).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NptRange {
    /// First moment; `None` if open (`npt=-20`) or `now`.
    pub start: Option<MediaTicks>,
    /// End; `None` if open.
    pub end: Option<MediaTicks>,
}

fn npt_time(text: &str) -> Option<MediaTicks> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b':') {
        return None;
    }
    let mut seconds = 0.0;
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() > 3 {
        return None;
    }
    for part in parts {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    MediaTicks::from_secs_f64(seconds)
}

impl NptRange {
    /// From a `Range` header or an `a=range` attribute; `None` if it is not an npt range (`clock=`, `smpte=`) or not
    /// well formed.
    pub fn parse(value: &str) -> Option<Self> {
        let value = value.split(';').next()?.trim();
        let (unit, range) = value.split_once('=').or_else(|| value.split_once(':'))?;
        if !unit.trim().eq_ignore_ascii_case("npt") {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let side = |text: &str| match text.trim() {
            "" | "now" => Some(None),
            text => npt_time(text).map(Some),
        };
        let (start, end) = (side(start)?, side(end)?);
        Some(Self { start, end })
    }
}

impl fmt::Display for NptRange {
    /// The form that players send: `npt=12.500-` or `npt=0.000-30.250`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("npt=")?;
        if let Some(start) = self.start {
            write!(f, "{:.3}", start.as_secs_f64())?;
        }
        f.write_str("-")?;
        if let Some(end) = self.end {
            write!(f, "{:.3}", end.as_secs_f64())?;
        }
        Ok(())
    }
}

/// How fast a title should be shown and delivered (RFC 2326 sections 12.34 and 12.35); `None`: not
/// given, which means normally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaybackPace {
    /// `Scale`.
    pub scale: Option<Scale>,
    /// `Speed`, in thousandths of real time.
    pub speed_permille: Option<u16>,
}

impl fmt::Display for PlaybackPace {
    /// Header lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scale) = self.scale {
            write!(f, "Scale: {:.2}\r\n", f64::from(scale.hundredths()) / 100.0)?;
        }
        if let Some(permille) = self.speed_permille {
            write!(f, "Speed: {:.3}\r\n", f64::from(permille) / 1000.0)?;
        }
        Ok(())
    }
}

/// One stream of an `RTP-Info` header (RFC 2326 section 12.33).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RtpInfo {
    /// The stream's URL as the server writes it.
    pub url: String,
    /// Sequence number of the first packet.
    pub sequence: Option<u16>,
    /// RTP timestamp of the range's start.
    pub timestamp: Option<u32>,
}

/// Streams of an `RTP-Info` value, at most 16. A number out of its range counts as missing.
pub fn parse_rtp_info(value: &str) -> Vec<RtpInfo> {
    value
        .split(',')
        .take(16)
        .map(|stream| {
            let mut info = RtpInfo::default();
            for (name, value) in stream.split(';').filter_map(|part| part.split_once('=')) {
                let value = value.trim().trim_matches('"');
                match name.trim().to_ascii_lowercase().as_str() {
                    "url" => info.url = value.to_owned(),
                    "seq" => info.sequence = value.parse().ok(),
                    "rtptime" => info.timestamp = value.parse().ok(),
                    _ => {}
                }
            }
            info
        })
        .filter(|info| info.sequence.is_some() || info.timestamp.is_some())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(s: f64) -> Option<MediaTicks> {
        MediaTicks::from_secs_f64(s)
    }

    #[test]
    fn sessions() {
        let session = SessionHeader::parse("a-1$b;timeout=10").unwrap();
        assert_eq!((session.id.as_str(), session.timeout_ns), ("a-1$b", 10 * NS_PER_S));
        assert_eq!(SessionHeader::parse(" x ").unwrap().timeout_ns, 60 * NS_PER_S);
        assert_eq!(SessionHeader::parse("x; Timeout = 0").unwrap().timeout_ns, NS_PER_S);
        assert_eq!(SessionHeader::parse("x;timeout=-1").unwrap().timeout_ns, 60 * NS_PER_S);
        assert_eq!(SessionHeader::parse(";timeout=10"), None);
        assert_eq!(SessionHeader::parse("a\r\nb"), None);
    }

    #[test]
    fn ranges_parse_and_print() {
        for (text, start, end) in [
            ("npt=0.000-30.25", ticks(0.0), ticks(30.25)),
            ("npt=12-", ticks(12.0), None),
            ("npt=-20", None, ticks(20.0)),
            ("npt=now-", None, None),
            ("NPT:1:02:03.5-;time=x", ticks(3723.5), None),
        ] {
            assert_eq!(NptRange::parse(text), Some(NptRange { start, end }), "{text}");
        }
        for text in
            ["clock=19961108T143720.25Z-", "npt", "npt=", "npt=1", "npt=a-b", "npt=1:2:3:4-", "npt=1e9-", ""]
        {
            assert_eq!(NptRange::parse(text), None, "{text}");
        }
        assert_eq!(NptRange { start: ticks(12.5), end: None }.to_string(), "npt=12.500-");
        assert_eq!(NptRange { start: ticks(0.0), end: ticks(3.0) }.to_string(), "npt=0.000-3.000");
    }

    #[test]
    fn pace_display_writes_scale_and_speed_headers() {
        let pace = PlaybackPace { scale: "-4".parse().ok(), speed_permille: Some(2_500) };
        assert_eq!(pace.to_string(), "Scale: -4.00\r\nSpeed: 2.500\r\n");
        assert_eq!(PlaybackPace::default().to_string(), "");
    }

    #[test]
    fn rtp_info_of_several_streams() {
        let streams =
            parse_rtp_info("url=rtsp://h/a/track1;seq=65535;rtptime=4294967295, url=\"b\"; RtpTime=7");
        assert_eq!(streams.len(), 2);
        assert_eq!(streams[0].url, "rtsp://h/a/track1");
        assert_eq!((streams[0].sequence, streams[0].timestamp), (Some(u16::MAX), Some(u32::MAX)));
        assert_eq!(
            (streams[1].url.as_str(), streams[1].sequence, streams[1].timestamp),
            ("b", None, Some(7))
        );
        assert!(parse_rtp_info("url=x;seq=65536;rtptime=-1").is_empty());
        assert!(parse_rtp_info("").is_empty());
    }
}
