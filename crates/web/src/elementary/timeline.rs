//! The title's time of time stamps: 33 bits that wrap, and that count from another origin where recordings were joined.

use std::ops::Range;
use std::sync::Arc;

use millrace_core::limits::web::MAX_STAMP_DISTANCE_TICKS;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::time::MediaTicks;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_store::index::TitleIndex;

/// Ticks of 90 kHz from where the title's first picture or sound is shown.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    index: Arc<TitleIndex>,
    /// Taken for the origin of a title whose index has none.
    first: u64,
    /// Where a part begins, and how much later it is shown than its clock indicates: late enough
    /// that no track of it begins before that track has ended in the previous part.
    shifts: Vec<(u64, i64)>,
}

impl Timeline {
    pub(crate) fn new(index: Arc<TitleIndex>, first: u64) -> Self {
        Self { index, first, shifts: Vec::new() }
    }

    /// Shifts all of the title from `byte` on: it is shown `by` ticks later than its clock
    /// indicates.
    pub(crate) fn shift(&mut self, byte: u64, by: i64) {
        self.shifts.push((byte, by));
    }

    /// The title's time of a stamp in the packet at `byte`. `None` if it is far from where that packet is: it counts from another origin, or is damaged.
    pub(crate) fn time(&self, byte: u64, stamp: u64) -> Option<i64> {
        let bases = self.index.bases();
        let packet = TS_PACKET_BYTES as u64;
        let base = bases.partition_point(|base| base.byte / packet * packet <= byte).checked_sub(1);
        let (time, first) = match base.map(|at| bases[at]) {
            Some(base) => (base.time, base.first_pts),
            None => (MediaTicks(0), self.first),
        };
        let about = self.index.time_of(byte).0.cast_signed();
        let modulus = PTS_MODULUS.cast_signed();
        let counted = stamp.cast_signed() - first.cast_signed() + time.0.cast_signed();
        let ahead = (counted - about).rem_euclid(modulus);
        let far = if ahead < modulus / 2 { ahead } else { ahead - modulus };
        (far.unsigned_abs() <= MAX_STAMP_DISTANCE_TICKS).then(|| about + far + self.shift_at(byte))
    }

    /// About when the packet at `byte` is shown.
    pub(crate) fn about(&self, byte: u64) -> i64 {
        self.index.time_of(byte).0.cast_signed() + self.shift_at(byte)
    }

    /// Returns the place `ticks` before or after `byte`, within these bytes.
    pub(crate) fn place(&self, byte: u64, ticks: i64, within: Range<u64>) -> u64 {
        let time = self.index.time_of(byte).0.saturating_add_signed(ticks);
        let packet = u64::from(self.index.packet_at(MediaTicks(time)));
        (packet * DEFAULT_PACKET_BYTES as u64).clamp(within.start, within.end)
    }

    /// Whether the title's index has an access point at `byte`.
    pub(crate) fn is_access(&self, byte: u64) -> bool {
        self.index.access_points().binary_search_by_key(&byte, |point| point.byte).is_ok()
    }

    fn shift_at(&self, byte: u64) -> i64 {
        let after = self.shifts.partition_point(|(from, _)| *from <= byte);
        after.checked_sub(1).map_or(0, |at| self.shifts[at].1)
    }
}
