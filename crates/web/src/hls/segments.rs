//! Where a title is cut into segments.

use std::ops::Range;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::limits::web::{HLS_LEAST_TICKS, HLS_TARGET_TICKS};
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_store::index::TitleIndex;

/// A piece of a title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its bytes in the title.
    pub(crate) bytes: Range<u64>,
    /// Where in the title it begins.
    pub(crate) at: MediaTicks,
    /// Its length.
    pub(crate) duration: MediaTicks,
    /// Whether the stream's time stamps count from another origin than in the segment before.
    pub(crate) is_discontinuous: bool,
    /// The byte of the TS packet that sending for an access point at its beginning starts with: the tables are behind it. The beginning itself
    /// where it is no access point.
    pub(crate) tables: u64,
}

/// All pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    pub(crate) list: Vec<Segment>,
    /// Whether each begins where a decoder can start.
    pub(crate) are_independent: bool,
}

/// A place where one segment ends and the next begins.
#[derive(Clone, Copy, Debug)]
struct Cut {
    byte: u64,
    time: MediaTicks,
    tables: u64,
    is_discontinuous: bool,
}

/// Cuts a title: at the access point nearest to the target duration behind the cut before, and where the time stamps jump.
pub(crate) fn segments(index: &TitleIndex) -> Segments {
    let data_bytes = index.data_bytes();
    let mut parts = vec![Cut { byte: 0, time: MediaTicks(0), tables: 0, is_discontinuous: false }];
    // Time stamps jump within a packet of some stream; segments hold whole packets.
    parts.extend(index.bases().iter().skip(1).map(|base| {
        let byte = base.byte / TS_PACKET_BYTES as u64 * TS_PACKET_BYTES as u64;
        Cut { byte, time: index.time_of(byte), tables: byte, is_discontinuous: true }
    }));
    let points = points(index);
    let mut cuts: Vec<Cut> = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        if cuts.last().is_some_and(|last| part.byte <= last.byte) {
            continue;
        }
        let next = parts.get(i + 1).map_or((data_bytes, index.end()), |next| (next.byte, next.time));
        cut_part(*part, next, &points, &mut cuts);
    }
    let last = Cut { byte: data_bytes, time: index.end(), tables: data_bytes, is_discontinuous: false };
    let ends = cuts.iter().skip(1).chain([&last]);
    let list = cuts.iter().zip(ends).map(|(cut, end)| Segment {
        bytes: cut.byte..end.byte,
        at: cut.time,
        duration: end.time.since(cut.time),
        is_discontinuous: cut.is_discontinuous,
        tables: cut.tables,
    });
    let list: Vec<_> = list.filter(|segment| !segment.bytes.is_empty()).collect();
    Segments { list, are_independent: !index.access_points().is_empty() }
}

/// Where a title can be cut. One without access points, whose pictures a decoder enters as they come, is cut anywhere.
fn points(index: &TitleIndex) -> Vec<Cut> {
    let cut = |byte, tables| Cut { byte, time: index.time_of(byte), tables, is_discontinuous: false };
    if !index.access_points().is_empty() {
        let of_packet = |packet: u32| u64::from(packet) * millrace_core::limits::DEFAULT_PACKET_BYTES as u64;
        return index.access_points().iter().map(|point| cut(point.byte, of_packet(point.packet))).collect();
    }
    let steps = index.duration().0 / HLS_TARGET_TICKS;
    let places = (1..=steps).map(|n| {
        let packet = index.packet_at(MediaTicks(n * HLS_TARGET_TICKS));
        u64::from(packet) * millrace_core::limits::DEFAULT_PACKET_BYTES as u64
    });
    places.filter(|&byte| byte < index.data_bytes()).map(|byte| cut(byte, byte)).collect()
}

/// Cuts one part, from `start` to a byte and its time, within which time stamps do not jump.
fn cut_part(start: Cut, (end, end_time): (u64, MediaTicks), points: &[Cut], cuts: &mut Vec<Cut>) {
    let mut from = start;
    let mut next = points.partition_point(|point| point.byte <= start.byte);
    cuts.push(from);
    loop {
        let ahead = &points[next..];
        let within = ahead.partition_point(|point| point.byte < end);
        let ahead = &ahead[..within];
        let far_enough = ahead.partition_point(|point| point.time.since(from.time).0 < HLS_LEAST_TICKS);
        let behind = ahead.partition_point(|point| point.time.since(from.time).0 < HLS_TARGET_TICKS);
        // The last before the target and the first at or behind it; a little counts for nothing, so that renditions are cut alike.
        let before = behind.checked_sub(1).filter(|&before| before >= far_enough);
        let distance_of = |time: MediaTicks| time.since(from.time).0.abs_diff(HLS_TARGET_TICKS);
        let distance = |at: usize| distance_of(ahead[at].time);
        let chosen = match (before, (behind < ahead.len()).then_some(behind)) {
            (Some(before), Some(behind)) => {
                if distance(behind) + MEDIA_HZ / 4 < distance(before) {
                    behind
                } else {
                    before
                }
            }
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return,
        };
        if distance_of(end_time) < distance(chosen) {
            return;
        }
        from = ahead[chosen];
        cuts.push(from);
        next += chosen + 1;
    }
}
