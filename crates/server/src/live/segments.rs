//! Segments of a live title, cut at its access points as they come, and their parts, cut where a picture begins: what HLS fetches.
//!
//! ```text
//!   access points   |     |     |        |  (silence, jump)       |     |
//!   segments        └─ 0 ─┴─ 1 ─┴── 2 ───┴─ 3 ─┘                  └─ 4 ─┴ ...
//!   parts           └┴┴┴┴─┴┴┴┴┴─┴┴┴┴┴┴┴──┴┴┴┴┴─┘                  └┴┴┴┴─┴ ...
//!                                                ^ discontinuity
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::time::MediaTicks;
use millrace_web::limits::PART_TICKS;
use millrace_web::{LiveEdge, LivePart};

use crate::limits::live::{
    MAX_LIVE_SEGMENTS, MAX_SEGMENT_PARTS, MIN_LIVE_SEGMENT_TICKS, MIN_PART_TICKS, SEGMENTS_WITH_PARTS,
};

/// Packets of a title that a player can decode alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSegment {
    /// Counted from the title's first one.
    pub number: u32,
    /// Its packets.
    pub packets: Range<u32>,
    /// Its media time.
    pub length: MediaTicks,
    /// The source was interrupted before it, or its clock jumped.
    pub is_discontinuous: bool,
    /// Its parts; none of older segments.
    pub parts: Vec<LivePart>,
}

/// The segment that is still growing.
#[derive(Clone, Debug)]
struct OpenSegment {
    from: u32,
    since: MediaTicks,
    is_discontinuous: bool,
    parts: Vec<LivePart>,
    /// Where its last part begins, in bytes of the title and in time.
    part_from: u64,
    part_since: MediaTicks,
    /// A player can begin there.
    is_part_independent: bool,
    /// Time of the last packet in which a picture begins.
    last_unit: MediaTicks,
}

/// The segments of a live title that are held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldSegments {
    /// The oldest first.
    pub segments: Vec<LiveSegment>,
    /// Breaks before the first of them.
    pub breaks_before: u32,
    /// The parts behind the last of them.
    pub growing: Vec<LivePart>,
    /// Whether there is a break before these.
    pub is_growing_discontinuous: bool,
    /// The longest segment there has been.
    pub longest: MediaTicks,
}

/// Cuts segments.
#[derive(Debug, Default)]
pub(super) struct Segmenter {
    open: Option<OpenSegment>,
    list: VecDeque<LiveSegment>,
    next: u32,
    /// The next segment is behind a break.
    is_broken: bool,
    /// Breaks before the segments that are listed.
    breaks_before: u32,
    /// The longest segment ever: a playlist's target duration must not fall (RFC 8216 section 6.2.1).
    longest: MediaTicks,
}

fn first_byte(packet: u32) -> u64 {
    u64::from(packet) * DEFAULT_PACKET_BYTES as u64
}

impl Segmenter {
    /// An access point has come. Returns whether it ends a segment.
    pub(super) fn point(&mut self, packet: u32, time: MediaTicks) -> bool {
        if self.open.as_ref().is_some_and(|open| time.since(open.since).0 < MIN_LIVE_SEGMENT_TICKS) {
            return false;
        }
        let before = self.open.take();
        let ends_segment = before.is_some();
        if let Some(before) = before {
            self.close(before, packet, time);
        }
        self.open = Some(OpenSegment {
            from: packet,
            since: time,
            is_discontinuous: std::mem::take(&mut self.is_broken),
            parts: Vec::new(),
            part_from: first_byte(packet),
            part_since: time,
            is_part_independent: true,
            last_unit: time,
        });
        ends_segment
    }

    /// A packet has come in which a picture begins with this TS packet, or none. Returns whether it ends a part. Parts end only there:
    /// players decode each part by itself. A picture longer than [`PART_TICKS`] therefore makes a longer part.
    pub(super) fn packet(
        &mut self,
        packet: u32,
        time: MediaTicks,
        begins_unit: Option<u8>,
        is_access: bool,
    ) -> bool {
        let (Some(unit), Some(open)) = (begins_unit, self.open.as_mut()) else { return false };
        if open.parts.len() >= MAX_SEGMENT_PARTS {
            return false;
        }
        let length = time.since(open.part_since);
        let since_last = time.since(std::mem::replace(&mut open.last_unit, time));
        // The next picture is expected as far behind this one as this is behind the last.
        if length.0 < MIN_PART_TICKS && length.0 + since_last.0 <= PART_TICKS || length.0 == 0 {
            return false;
        }
        // An access point begins with its tables.
        let into_packet = if is_access { 0 } else { u64::from(unit) * TS_PACKET_BYTES as u64 };
        open.end_part(first_byte(packet) + into_packet, time);
        open.is_part_independent = is_access;
        true
    }

    /// The stream was interrupted before this packet; `time` is that of the packet before it. Nothing is cut until the next access point.
    pub(super) fn break_before(&mut self, packet: u32, time: MediaTicks) {
        if let Some(open) = self.open.take().filter(|open| open.from < packet) {
            self.close(open, packet, time);
        }
        self.is_broken = self.next > 0;
    }

    /// Packets before this one are held no more.
    pub(super) fn forget_before(&mut self, packet: u32) {
        while self.list.len() > MAX_LIVE_SEGMENTS
            || self.list.front().is_some_and(|segment| segment.packets.start < packet)
        {
            let gone = self.list.pop_front();
            self.breaks_before += gone.map_or(0, |segment| u32::from(segment.is_discontinuous));
        }
    }

    /// The number of the segment that grows, and how many parts it has.
    pub(super) fn edge(&self) -> LiveEdge {
        LiveEdge {
            segment: self.next,
            parts: self.open.as_ref().map_or(0, |open| open.parts.len()),
            parts_before: self.list.back().map_or(0, |segment| segment.parts.len()),
        }
    }

    /// The segments that are held.
    pub(super) fn held(&self) -> HeldSegments {
        let segments = self.list.iter().cloned().collect();
        let (growing, is_growing_discontinuous) = self
            .open
            .as_ref()
            .map_or_else(Default::default, |open| (open.parts.clone(), open.is_discontinuous));
        let (breaks_before, longest) = (self.breaks_before, self.longest);
        HeldSegments { segments, breaks_before, growing, is_growing_discontinuous, longest }
    }

    fn close(&mut self, mut open: OpenSegment, end: u32, time: MediaTicks) {
        if open.parts.len() < MAX_SEGMENT_PARTS {
            open.end_part(first_byte(end), time);
        } else {
            // It has parts to its first minute alone, which are of no use to anyone.
            open.parts.clear();
        }
        let OpenSegment { from, since, is_discontinuous, parts, .. } = open;
        let (number, length) = (self.next, time.since(since));
        self.longest = self.longest.max(length);
        self.list.push_back(LiveSegment { number, packets: from..end, length, is_discontinuous, parts });
        self.next = self.next.wrapping_add(1);
        if let Some(older) = self.list.len().checked_sub(SEGMENTS_WITH_PARTS + 1) {
            self.list[older].parts = Vec::new();
        }
    }
}

impl OpenSegment {
    fn end_part(&mut self, until: u64, time: MediaTicks) {
        let (bytes, length) = (self.part_from..until, time.since(self.part_since));
        if !bytes.is_empty() {
            self.parts.push(LivePart { bytes, length, is_independent: self.is_part_independent });
        }
        (self.part_from, self.part_since) = (until, time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 90_000;

    /// Cuts at access points `(packet, seconds)`.
    fn cut(segmenter: &mut Segmenter, points: &[(u32, u64)]) {
        for &(packet, second) in points {
            segmenter.point(packet, MediaTicks(second * S));
        }
    }

    fn ranges(segmenter: &Segmenter) -> Vec<(u32, Range<u32>)> {
        segmenter.held().segments.into_iter().map(|segment| (segment.number, segment.packets)).collect()
    }

    #[test]
    fn segments_end_at_the_first_access_point_behind_two_seconds() {
        let mut segmenter = Segmenter::default();
        cut(&mut segmenter, &[(5, 0), (10, 1), (20, 2), (30, 3), (60, 6), (70, 7)]);
        assert_eq!(ranges(&segmenter), [(0, 5..20), (1, 20..60)]);
        let lengths: Vec<_> = segmenter.held().segments.iter().map(|segment| segment.length.0 / S).collect();
        assert_eq!(lengths, [2, 4]);
    }

    #[test]
    fn break_ends_a_segment_and_marks_the_next() {
        let mut segmenter = Segmenter::default();
        cut(&mut segmenter, &[(0, 0), (20, 2)]);
        segmenter.break_before(33, MediaTicks(3 * S));
        cut(&mut segmenter, &[(40, 15), (60, 17)]);
        assert_eq!(ranges(&segmenter), [(0, 0..20), (1, 20..33), (2, 40..60)]);
        let marks: Vec<_> =
            segmenter.held().segments.iter().map(|segment| segment.is_discontinuous).collect();
        assert_eq!(marks, [false, false, true]);
        segmenter.forget_before(60);
        let held = segmenter.held();
        assert_eq!((held.segments.len(), held.breaks_before), (0, 1), "the break went with its segment");
    }

    #[test]
    fn list_is_bounded_and_numbers_go_on() {
        let mut segmenter = Segmenter::default();
        for n in 0..10 * MAX_LIVE_SEGMENTS as u32 {
            segmenter.point(n * 10, MediaTicks(u64::from(n) * 2 * S));
            segmenter.forget_before(0);
        }
        let held = segmenter.held().segments;
        assert!(held.len() <= MAX_LIVE_SEGMENTS);
        assert_eq!(held.last().unwrap().number, 10 * MAX_LIVE_SEGMENTS as u32 - 2);
    }

    /// Packets of a tenth of a second; a picture begins in each of them, with its third TS packet.
    fn tenths(segmenter: &mut Segmenter, packets: Range<u32>) -> Vec<u32> {
        let time = |packet: u32| MediaTicks(u64::from(packet) * S / 10);
        packets.filter(|&packet| segmenter.packet(packet, time(packet), Some(2), false)).collect()
    }

    #[test]
    fn parts_end_where_a_picture_begins_and_make_up_their_segment() {
        let mut segmenter = Segmenter::default();
        segmenter.point(0, MediaTicks(0));
        assert_eq!(tenths(&mut segmenter, 0..23), [5, 10, 15, 20]);
        assert_eq!(segmenter.edge(), LiveEdge { segment: 0, parts: 4, parts_before: 0 });
        let growing = segmenter.held().growing;
        assert_eq!(growing[0].bytes, 0..5 * 1316 + 2 * 188, "no longer than a part may be");
        assert!(growing.iter().all(|part| part.length.0 == S / 2));
        assert!(segmenter.point(23, MediaTicks(23 * S / 10)));
        let [segment] = &segmenter.held().segments[..] else { panic!("one segment") };
        let independent: Vec<bool> = segment.parts.iter().map(|part| part.is_independent).collect();
        assert_eq!(independent, [true, false, false, false, false]);
        assert!(segment.parts.windows(2).all(|pair| pair[0].bytes.end == pair[1].bytes.start));
        assert_eq!(segment.parts.last().unwrap().bytes.end, 23 * 1316);
        assert_eq!(segment.parts.iter().map(|part| part.length.0).sum::<u64>(), segment.length.0);
        assert_eq!(segmenter.edge(), LiveEdge { segment: 1, parts: 0, parts_before: 5 });
    }

    #[test]
    fn part_that_is_long_enough_ends_within_the_packet_of_the_next_picture() {
        let mut segmenter = Segmenter::default();
        segmenter.point(0, MediaTicks(0));
        assert!(tenths(&mut segmenter, 0..5).is_empty());
        assert!(!segmenter.packet(40, MediaTicks(44 * S / 100), None, false), "no picture begins in it");
        assert!(segmenter.packet(41, MediaTicks(45 * S / 100), Some(2), false));
        assert!(segmenter.packet(90, MediaTicks(90 * S / 100), Some(2), true));
        let growing = segmenter.held().growing;
        assert_eq!(growing[0].bytes, 0..41 * 1316 + 2 * 188);
        assert_eq!(growing[1].bytes.end, 90 * 1316, "the tables before a key picture belong to its part");
        segmenter.packet(141, MediaTicks(140 * S / 100), Some(0), false);
        assert!(segmenter.held().growing[2].is_independent);
    }

    #[test]
    fn parts_of_few_packets_are_no_longer_than_the_limit_unless_a_picture_is() {
        let mut segmenter = Segmenter::default();
        segmenter.point(0, MediaTicks(0));
        // A packet of sound at 64 kb/s lasts for 164 ms.
        let time = |packet: u32| MediaTicks(u64::from(packet) * 164 * S / 1000);
        let ends = (0..12).filter(|&packet| segmenter.packet(packet, time(packet), Some(0), false));
        assert_eq!(ends.collect::<Vec<_>>(), [3, 6, 9]);
        assert!(segmenter.held().growing.iter().all(|part| part.length.0 <= PART_TICKS));
        assert!(
            (12..40).all(|packet| !segmenter.packet(packet, time(packet), None, false)),
            "a picture goes on"
        );
        assert!(segmenter.packet(40, time(40), Some(3), false));
        assert_eq!(segmenter.held().growing[3].bytes, 9 * 1316..40 * 1316 + 3 * 188);
    }

    #[test]
    fn longest_segment_is_remembered_when_it_is_held_no_more() {
        let mut segmenter = Segmenter::default();
        cut(&mut segmenter, &[(0, 0), (50, 5), (70, 7), (90, 9)]);
        segmenter.forget_before(70);
        assert_eq!((segmenter.held().segments.len(), segmenter.held().longest), (1, MediaTicks(5 * S)));
    }

    #[test]
    fn parts_are_kept_of_the_newest_segments_and_of_none_that_is_too_long() {
        let mut segmenter = Segmenter::default();
        for n in 0..3 * SEGMENTS_WITH_PARTS as u32 {
            segmenter.point(n * 20, MediaTicks(u64::from(n) * 2 * S));
            tenths(&mut segmenter, n * 20..n * 20 + 20);
        }
        let with_parts = segmenter.held().segments.iter().filter(|segment| !segment.parts.is_empty()).count();
        assert_eq!(with_parts, SEGMENTS_WITH_PARTS);
        let mut segmenter = Segmenter::default();
        segmenter.point(0, MediaTicks(0));
        tenths(&mut segmenter, 0..20 * MAX_SEGMENT_PARTS as u32);
        assert_eq!(segmenter.edge().parts, MAX_SEGMENT_PARTS);
        segmenter.break_before(30_000, MediaTicks(3_000 * S));
        assert!(segmenter.held().segments[0].parts.is_empty());
    }
}
