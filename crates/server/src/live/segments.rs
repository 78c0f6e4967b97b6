//! Segments of a live title, cut at its access points as they come: what HLS fetches.
//!
//! ```text
//!   access points   |     |     |        |  (silence, jump)       |     |
//!   segments        └─ 0 ─┴─ 1 ─┴── 2 ───┴─ 3 ─┘                  └─ 4 ─┴ ...
//!                                                ^ discontinuity
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use millrace_core::time::MediaTicks;

use crate::limits::live::{MAX_LIVE_SEGMENTS, MIN_LIVE_SEGMENT_TICKS};

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
}

#[derive(Clone, Copy, Debug)]
struct OpenSegment {
    from: u32,
    since: MediaTicks,
    is_discontinuous: bool,
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
}

impl Segmenter {
    /// An access point has come.
    pub(super) fn point(&mut self, packet: u32, time: MediaTicks) {
        match self.open {
            Some(open) if time.since(open.since).0 < MIN_LIVE_SEGMENT_TICKS => return,
            Some(open) => self.close(open, packet, time),
            None => {}
        }
        let is_discontinuous = std::mem::take(&mut self.is_broken);
        self.open = Some(OpenSegment { from: packet, since: time, is_discontinuous });
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

    /// The segments that are held, the oldest first, and the breaks before them.
    pub(super) fn held(&self) -> (Vec<LiveSegment>, u32) {
        (self.list.iter().cloned().collect(), self.breaks_before)
    }

    fn close(&mut self, open: OpenSegment, end: u32, time: MediaTicks) {
        let OpenSegment { from, since, is_discontinuous } = open;
        let (number, length) = (self.next, time.since(since));
        self.list.push_back(LiveSegment { number, packets: from..end, length, is_discontinuous });
        self.next = self.next.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 90_000;

    /// Cuts at access points `(packet, seconds)`.
    fn cut(segmenter: &mut Segmenter, points: &[(u32, u64)]) {
        points.iter().for_each(|&(packet, second)| segmenter.point(packet, MediaTicks(second * S)));
    }

    fn ranges(segmenter: &Segmenter) -> Vec<(u32, Range<u32>)> {
        segmenter.held().0.into_iter().map(|segment| (segment.number, segment.packets)).collect()
    }

    #[test]
    fn segments_end_at_the_first_access_point_behind_two_seconds() {
        let mut segmenter = Segmenter::default();
        cut(&mut segmenter, &[(5, 0), (10, 1), (20, 2), (30, 3), (60, 6), (70, 7)]);
        assert_eq!(ranges(&segmenter), [(0, 5..20), (1, 20..60)]);
        let lengths: Vec<_> = segmenter.held().0.iter().map(|segment| segment.length.0 / S).collect();
        assert_eq!(lengths, [2, 4]);
    }

    #[test]
    fn break_ends_a_segment_and_marks_the_next() {
        let mut segmenter = Segmenter::default();
        cut(&mut segmenter, &[(0, 0), (20, 2)]);
        segmenter.break_before(33, MediaTicks(3 * S));
        cut(&mut segmenter, &[(40, 15), (60, 17)]);
        assert_eq!(ranges(&segmenter), [(0, 0..20), (1, 20..33), (2, 40..60)]);
        let marks: Vec<_> = segmenter.held().0.iter().map(|segment| segment.is_discontinuous).collect();
        assert_eq!(marks, [false, false, true]);
        segmenter.forget_before(60);
        assert_eq!(segmenter.held(), (vec![], 1), "the break went with its segment");
    }

    #[test]
    fn list_is_bounded_and_numbers_go_on() {
        let mut segmenter = Segmenter::default();
        for n in 0..10 * MAX_LIVE_SEGMENTS as u32 {
            segmenter.point(n * 10, MediaTicks(u64::from(n) * 2 * S));
            segmenter.forget_before(0);
        }
        let (held, _) = segmenter.held();
        assert!(held.len() <= MAX_LIVE_SEGMENTS);
        assert_eq!(held.last().unwrap().number, 10 * MAX_LIVE_SEGMENTS as u32 - 2);
    }
}
