//! The title's clock in as few straight pieces as keep it within one media tick.

use millrace_core::time::MediaTicks;
use millrace_media::ts_packet::SYSTEM_TICKS_PER_MEDIA_TICK;

use millrace_store::index::ClockPiece;

use super::clock::Point;

/// How far a piece may be from a point that it passes over.
const TOLERANCE_TICKS: i128 = SYSTEM_TICKS_PER_MEDIA_TICK as i128;

/// A slope in ticks per byte.
#[derive(Clone, Copy, Debug)]
struct Slope {
    ticks: i128,
    bytes: i128,
}

impl Slope {
    fn new(from: &Point, to: &Point, shift: i128) -> Self {
        Self { ticks: i128::from(to.ticks - from.ticks) + shift, bytes: i128::from(to.byte - from.byte) }
    }

    fn is_less(&self, other: &Self) -> bool {
        self.ticks * other.bytes < other.ticks * self.bytes
    }
}

/// Merges points that lie on a line: a constant rate becomes one piece, a variable one keeps its points.
#[derive(Clone, Debug)]
pub(crate) struct PieceList {
    pieces: Vec<ClockPiece>,
    start: Point,
    last: Point,
    /// Slopes from `start` that pass all points since within the tolerance.
    cone: Option<(Slope, Slope)>,
}

impl PieceList {
    /// Begins at byte 0 and time 0.
    pub(crate) fn new() -> Self {
        Self {
            pieces: vec![ClockPiece::default()],
            start: Point::default(),
            last: Point::default(),
            cone: None,
        }
    }

    /// The next point; bytes ascend, times do not run back.
    pub(crate) fn push(&mut self, point: Point) {
        if point.byte <= self.last.byte {
            return;
        }
        let slope = Slope::new(&self.start, &point, 0);
        if self.cone.is_some_and(|(low, high)| slope.is_less(&low) || high.is_less(&slope)) {
            self.start = self.last;
            self.cone = None;
            let time = MediaTicks(self.start.ticks / SYSTEM_TICKS_PER_MEDIA_TICK);
            self.pieces.push(ClockPiece { byte: self.start.byte, time });
        }
        let low = Slope::new(&self.start, &point, -TOLERANCE_TICKS);
        let high = Slope::new(&self.start, &point, TOLERANCE_TICKS);
        self.cone = Some(match self.cone {
            None => (low, high),
            Some((l, h)) => (if l.is_less(&low) { low } else { l }, if high.is_less(&h) { high } else { h }),
        });
        self.last = point;
    }

    /// The pieces.
    pub(crate) fn into_pieces(self) -> Vec<ClockPiece> {
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(byte: u64, ticks: u64) -> Point {
        Point { byte, ticks, jump: false }
    }

    #[test]
    fn piece_list_at_constant_rate_has_one_piece() {
        let mut list = PieceList::new();
        for i in 1..10_000 {
            // 40 ms apart, with a jitter of one tick of the system clock.
            list.push(point(i * 25_000, i * 1_080_000 + i % 2));
        }
        assert_eq!(list.into_pieces(), [ClockPiece::default()]);
    }

    #[test]
    fn piece_list_at_rate_change_starts_new_piece() {
        let mut list = PieceList::new();
        list.push(point(1880, 27_000_000));
        list.push(point(3760, 54_000_000));
        list.push(point(188_000, 81_000_000));
        let bend = ClockPiece { byte: 3760, time: MediaTicks(180_000) };
        assert_eq!(list.into_pieces(), [ClockPiece::default(), bend]);
    }

    proptest! {
        #[test]
        fn piece_list_stays_within_two_media_ticks_of_points(steps in proptest::collection::vec((1u64..100_000, 0u64..3_000_000), 1..200)) {
            let mut points = vec![Point::default()];
            for (bytes, ticks) in steps {
                let last = points[points.len() - 1];
                points.push(point(last.byte + bytes, last.ticks + ticks));
            }
            let mut list = PieceList::new();
            points.iter().for_each(|&p| list.push(p));
            let end = points[points.len() - 1];
            let mut pieces = list.into_pieces();
            pieces.push(ClockPiece { byte: end.byte, time: MediaTicks(end.ticks / 300) });
            for p in &points {
                let at = pieces.partition_point(|piece| piece.byte <= p.byte).min(pieces.len() - 1);
                let (from, to) = (pieces[at - 1], pieces[at]);
                let line = point(from.byte, from.time.0).time_at(&point(to.byte, to.time.0), p.byte);
                prop_assert!(line.abs_diff(p.ticks / 300) <= 2, "{line} for {p:?}");
            }
        }
    }
}
