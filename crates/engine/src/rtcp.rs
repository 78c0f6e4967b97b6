//! The reports of a stream about itself: a sender report and its name now and then, and a BYE at
//! the end.
//!
//! While it plays, SR + SDES go out [`FIRST_REPORT_NS`] after the first media packet and then every
//! [`RTCP_INTERVAL_NS`]; SR + SDES + BYE go out [`BYE_DELAY_NS`] after the last packet, when every
//! player has shown the media it held back. No random variation of the interval (RFC 3550 section
//! 6.3.5): streams start at different times anyway, and a unicast session has no other sender to
//! collide with.
//!
//! [`FIRST_REPORT_NS`]: crate::limits::FIRST_REPORT_NS
//! [`RTCP_INTERVAL_NS`]: crate::limits::RTCP_INTERVAL_NS
//! [`BYE_DELAY_NS`]: millrace_core::limits::BYE_DELAY_NS

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::time::Instant;
use millrace_core::wire::rtcp::{SenderReport, ntp_from_unix_ns};

use crate::stream::HotStream;

/// What `stream` reports at `now`; `wall_offset_ns` is Unix time minus monotonic time.
///
/// The RTP timestamp is the media time that departs now by the stream's anchor, whether it is on time or catching up.
/// The counts are of the stream's whole life and wrap, as RFC 3550 section 6.4.1 has them.
pub(crate) fn sender_report(stream: &HotStream, now: Instant, wall_offset_ns: u64) -> SenderReport {
    let headers = stream.packets.wrapping_mul(RTP_HEADER_BYTES as u64);
    SenderReport {
        ssrc: stream.timeline.ssrc,
        ntp: ntp_from_unix_ns(now.0.wrapping_add(wall_offset_ns)),
        rtp_timestamp: stream.timeline.timestamp(stream.pace.media_at(now)),
        packets: stream.packets as u32,
        octets: stream.bytes.wrapping_sub(headers) as u32,
    }
}
