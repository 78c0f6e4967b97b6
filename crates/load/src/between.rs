//! Packets that come between the replies to PAUSE and PLAY: it is not yet known to which run they
//! belong.
//!
//! A server may answer PAUSE before its last packets have left, and a reply may be read after the packets that it announces.
//! So packets wait here until the reply to PLAY names the first number of the run.

use std::collections::VecDeque;

pub(super) use crate::limits::BYE_WAIT_NS;
use crate::limits::{MAX_HELD, NEAR_END_S};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::RtpHeader;

use millrace_client::receive::MAX_STEP;
use millrace_client::rtsp::dialogue::PlayReply;

/// A packet that waits.
#[derive(Debug)]
pub(super) struct HeldPacket {
    pub(super) now: Instant,
    pub(super) arrival_ns: u64,
    pub(super) datagram: Vec<u8>,
}

impl HeldPacket {
    fn sequence(&self) -> Option<u16> {
        RtpHeader::parse(&self.datagram).map(|(header, _)| header.sequence)
    }
}

/// The packets that wait, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Between {
    held: VecDeque<HeldPacket>,
    has_overflowed: bool,
}

impl Between {
    /// Takes one packet; returns the one that waits no longer.
    pub(super) fn push(&mut self, packet: HeldPacket) -> Option<HeldPacket> {
        self.held.push_back(packet);
        let first = if self.held.len() > MAX_HELD { self.held.pop_front() } else { None };
        self.has_overflowed |= first.is_some();
        first
    }

    /// Parts the packets of the run before from those of the run that begins with number `start`. If the server does not say where
    /// it begins, all came before.
    pub(super) fn split(self, start: Option<u16>) -> Parted {
        let mut before: Vec<_> = self.held.into();
        let ahead = |packet: &HeldPacket, most: u16| {
            packet.sequence().zip(start).is_some_and(|(number, start)| number.wrapping_sub(start) < most)
        };
        // Its first packet may be lost; packets left over from the previous run came in front of
        // it.
        let first = before.iter().position(|packet| ahead(packet, 1));
        let at = first.or_else(|| before.iter().position(|packet| ahead(packet, MAX_STEP)));
        let behind = before.split_off(at.unwrap_or(before.len()));
        // Packets of the run that did not wait are not lost.
        let counted = self.has_overflowed.then(|| behind.first().and_then(HeldPacket::sequence)).flatten();
        Parted { before, behind, start: counted.or(start) }
    }

    /// All of them.
    pub(super) fn into_all(self) -> impl Iterator<Item = HeldPacket> {
        self.held.into_iter()
    }
}

/// The packets received between two runs.
#[derive(Debug)]
pub(super) struct Parted {
    pub(super) before: Vec<HeldPacket>,
    pub(super) behind: Vec<HeldPacket>,
    /// The first number of the run that is expected.
    pub(super) start: Option<u16>,
}

/// Whether the first packet received is the one that `RTP-Info` announced, by sequence number and
/// timestamp; `None` if this is unknown, because nothing came, or because the first packets were
/// lost, which is counted as loss.
///
/// The player is stricter: its record of a PLAY shows the announced and the first packet beside each other, and the loss of
/// the first one is a difference there.
pub(super) fn is_as_announced(
    announced: Option<(Option<u16>, Option<u32>)>,
    first: Option<(u16, u32)>,
) -> Option<bool> {
    let ((sequence, timestamp), first) = announced.zip(first)?;
    let missing = sequence.map_or(0, |sequence| first.0.wrapping_sub(sequence));
    if (1..MAX_STEP).contains(&missing) {
        return None;
    }
    Some(missing == 0 && timestamp.is_none_or(|timestamp| timestamp == first.1))
}

/// RTP timestamp of the end that the reply to PLAY announces, or the description's, where the reply has none.
pub(super) fn end_timestamp(reply: &PlayReply, length: Option<MediaTicks>, clock_hz: u32) -> Option<u32> {
    let range = reply.range?;
    let first = reply.rtp_info.as_ref()?.timestamp?;
    let end = range.end.or(length)?;
    // Timestamps run as the packets come, whatever they show.
    let start = range.start?;
    let shown =
        if reply.scale().is_reverse() { start.0.checked_sub(end.0)? } else { end.0.checked_sub(start.0)? };
    let ticks = reply.scale().slowed(MediaTicks(shown)).0;
    let ticks = u128::from(ticks) * u128::from(clock_hz) / u128::from(millrace_core::time::MEDIA_HZ);
    Some(first.wrapping_add(ticks as u32))
}

/// Whether a packet with timestamp `last` may be the last before `end`.
pub(super) fn is_near_end(last: u32, end: u32, clock_hz: u32) -> bool {
    i64::from(end.wrapping_sub(last).cast_signed()) <= i64::from(NEAR_END_S) * i64::from(clock_hz)
}

#[cfg(test)]
mod tests {
    use millrace_core::wire::rtp::PAYLOAD_TYPE_MP2T;

    use super::*;
    use millrace_client::rtsp::headers::{NptRange, RtpInfo};

    fn packet(sequence: u16) -> HeldPacket {
        let mut datagram = vec![0x80, PAYLOAD_TYPE_MP2T];
        datagram.extend(sequence.to_be_bytes());
        datagram.extend([0; 8]);
        HeldPacket { now: Instant(0), arrival_ns: 0, datagram }
    }

    fn split(numbers: &[u16], start: Option<u16>) -> (usize, usize) {
        let mut between = Between::default();
        for number in numbers {
            assert!(between.push(packet(*number)).is_none());
        }
        let parted = between.split(start);
        assert_eq!(parted.start, start);
        (parted.before.len(), parted.behind.len())
    }

    #[test]
    fn between_split_at_announced_sequence_separates_runs() {
        assert_eq!(split(&[65_534, 65_535, 0, 1, 2], Some(0)), (2, 3));
        assert_eq!(split(&[8, 9, 11, 12], Some(10)), (2, 2)); // 10 is lost
        assert_eq!(split(&[8, 9], Some(10)), (2, 0));
        assert_eq!(split(&[8, 9], None), (2, 0));
        assert_eq!(split(&[10, 11], Some(10)), (0, 2));
        // A seek back on a timeline that all viewers share: the packets left over have numbers that
        // come again.
        assert_eq!(split(&[700, 701, 100, 101], Some(100)), (2, 2));
    }

    #[test]
    fn between_push_when_full_returns_oldest_packet() {
        let mut between = Between::default();
        for number in 0..MAX_HELD as u16 {
            assert!(between.push(packet(number)).is_none());
        }
        assert_eq!(between.push(packet(9000)).and_then(|packet| packet.sequence()), Some(0));
        let parted = between.split(Some(0));
        assert_eq!((parted.start, parted.behind.len()), (Some(1), MAX_HELD));
    }

    #[test]
    fn lost_first_packets_do_not_make_the_announcement_wrong() {
        let judge = |first| is_as_announced(Some((Some(65_535), Some(90))), first);
        assert_eq!(judge(None), None);
        assert_eq!(judge(Some((65_535, 90))), Some(true));
        assert_eq!(judge(Some((65_535, 91))), Some(false));
        assert_eq!(judge(Some((3, 5000))), None);
        assert_eq!(judge(Some((65_530, 80))), Some(false));
        assert_eq!(is_as_announced(Some((None, Some(7))), Some((1, 7))), Some(true));
        assert_eq!(is_as_announced(None, Some((1, 7))), None);
    }

    #[test]
    fn end_timestamp_follows_range_and_scale_of_play_reply() {
        let secs = |secs: u64| MediaTicks(secs * 90_000);
        let info = RtpInfo { url: String::new(), sequence: None, timestamp: Some(u32::MAX) };
        let mut reply = PlayReply { range: None, rtp_info: Some(info), scale: None };
        assert_eq!(end_timestamp(&reply, None, 90_000), None);
        reply.range = Some(NptRange { start: Some(secs(10)), end: Some(secs(72)) });
        let end = 62 * 90_000 - 1;
        assert_eq!(end_timestamp(&reply, None, 90_000), Some(end));
        assert_eq!(end_timestamp(&reply, None, 1000), Some(61_999));
        reply.range = Some(NptRange { start: Some(secs(10)), end: None });
        assert_eq!(end_timestamp(&reply, None, 90_000), None);
        assert_eq!(end_timestamp(&reply, Some(secs(72)), 90_000), Some(end));
        // 62 s at four times the speed, either way.
        for (scale, start, last) in [("4", 10, 72), ("-4", 72, 10)] {
            reply.range = Some(NptRange { start: Some(secs(start)), end: Some(secs(last)) });
            reply.scale = scale.parse().ok();
            assert_eq!(end_timestamp(&reply, None, 90_000), Some(62 * 90_000 / 4 - 1), "{scale}");
        }
        assert!(is_near_end(end - 1, end, 90_000) && is_near_end(end.wrapping_add(9), end, 90_000));
        assert!(!is_near_end(end - 7 * 90_000, end, 90_000));
    }
}
