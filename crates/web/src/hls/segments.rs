//! Where a title is cut into segments.

use std::ops::Range;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::limits::web::HLS_TARGET_TICKS;
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_store::index::{LayoutStream, TitleIndex};

use crate::limits::HLS_LEAST_TICKS;

/// Version of the rules for cutting titles. It is part of segments' addresses: a change of the
/// rules must increment it, because everything with an address is kept for ever.
pub(crate) const CUTS: u32 = 2;

/// A piece of a title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MediaSegment {
    /// Its bytes in the title.
    pub(crate) bytes: Range<u64>,
    /// Where in the title it begins.
    pub(crate) at: MediaTicks,
    /// Its length.
    pub(crate) duration: MediaTicks,
    /// Whether decoders must restart here, because time stamps jump or the streams change.
    pub(crate) is_discontinuous: bool,
    /// Whether time stamps jump.
    pub(crate) is_jump: bool,
    /// Number of the layout in force at its access point.
    pub(crate) layout: usize,
    /// The byte of the TS packet that sending for an access point at its beginning starts with: the tables are behind it. The beginning itself
    /// where it is no access point.
    pub(crate) tables: u64,
}

/// All pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    pub(crate) list: Vec<MediaSegment>,
    /// Whether each begins where a decoder can start.
    pub(crate) are_independent: bool,
}

/// A place where one segment ends and the next begins.
#[derive(Clone, Copy, Debug)]
struct SegmentBoundary {
    byte: u64,
    time: MediaTicks,
    tables: u64,
    /// `Some` if another part begins here; true if time stamps jump.
    begins_part: Option<bool>,
}

/// Cuts a title into segments: at the access point nearest to the target duration after the
/// previous cut, where time stamps jump, and where the streams change.
pub(crate) fn segments(index: &TitleIndex) -> Segments {
    let data_bytes = index.data_bytes();
    let points = points(index);
    let layouts: Vec<&[LayoutStream]> = index.layouts().collect();
    let parts = parts(index, &points, &layouts);
    let mut cuts: Vec<SegmentBoundary> = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        if cuts.last().is_some_and(|last| part.byte <= last.byte) {
            continue;
        }
        let (end, end_time) =
            parts.get(i + 1).map_or((data_bytes, index.end()), |next| (next.byte, next.time));
        cut_part(*part, end, end_time, &points, !index.access_points().is_empty(), &mut cuts);
    }
    // The lengths add up to the title's: that of its packets, as everywhere but in RTSP. Its last picture is shown later on the packets' clock, but so is
    // its first, by the delay of a decoder; players count from the first picture.
    let last =
        SegmentBoundary { byte: data_bytes, time: index.duration(), tables: data_bytes, begins_part: None };
    let ends = cuts.iter().skip(1).chain([&last]);
    let mut layout = 0;
    let list = cuts.iter().zip(ends).enumerate().map(|(at, (cut, end))| {
        if at == 0 || cut.begins_part.is_some() {
            layout = layout_at(&layouts, first_point(&points, cut.byte, end.byte));
        }
        MediaSegment {
            bytes: cut.byte..end.byte,
            at: cut.time,
            duration: end.time.since(cut.time),
            is_discontinuous: cut.begins_part.is_some(),
            is_jump: cut.begins_part == Some(true),
            layout,
            tables: cut.tables,
        }
    });
    let list: Vec<_> = list.filter(|segment| !segment.bytes.is_empty()).collect();
    Segments { list, are_independent: !index.access_points().is_empty() }
}

/// How many of the segments of a title that grows stay as they are when more comes.
pub(crate) fn settled(index: &TitleIndex, segments: &Segments) -> usize {
    let list = &segments.list;
    let last_point = index.access_points().last().map_or(MediaTicks(0), |point| point.time);
    let is_settled = |pair: &[MediaSegment]| {
        let (segment, next) = (&pair[0], &pair[1]);
        let target = MediaTicks(segment.at.0 + HLS_TARGET_TICKS);
        // The choice between the points on both sides of the target has been made, and the end is further away than the one chosen.
        let is_chosen =
            last_point >= target && index.duration().since(target).0 >= next.at.0.abs_diff(target.0);
        next.is_discontinuous || is_chosen
    };
    list.windows(2).take_while(|pair| is_settled(pair)).count()
}

/// The first access point in a range of bytes, or the start of the range.
fn first_point(points: &[SegmentBoundary], from: u64, end: u64) -> u64 {
    let at = points.partition_point(|point| point.byte < from);
    points.get(at).map(|point| point.byte).filter(|&byte| byte < end).unwrap_or(from)
}

/// The layout in force at a byte.
fn layout_at(layouts: &[&[LayoutStream]], byte: u64) -> usize {
    layouts.partition_point(|layout| layout[0].byte <= byte).saturating_sub(1)
}

/// Whether decoders must restart between two layouts. Another language alone needs no restart.
fn differ(one: &[LayoutStream], other: &[LayoutStream]) -> bool {
    let is_same = |(one, other): (&LayoutStream, &LayoutStream)| {
        let is_config_same = one.config == other.config || one.config == 0 || other.config == 0;
        (one.pid, &one.codec) == (other.pid, &other.codec) && is_config_same
    };
    one.len() != other.len() || !one.iter().zip(other).all(is_same)
}

/// Whether another recording begins with a layout: no stream goes on.
fn share_nothing(one: &[LayoutStream], other: &[LayoutStream]) -> bool {
    let goes_on = |stream: &LayoutStream| {
        other.iter().any(|next| (next.pid, &next.codec) == (stream.pid, &stream.codec))
    };
    !one.iter().any(goes_on)
}

/// Where parts begin: at the title's beginning, where time stamps jump, and at the first access point behind a change of the streams, or at the change itself
/// where no stream goes on: otherwise the part before would end with the tables, and with some packets, of the recording that follows. What changes between a
/// jump and the first access point behind it is no part of its own: nothing can be decoded there.
fn parts(
    index: &TitleIndex,
    points: &[SegmentBoundary],
    layouts: &[&[LayoutStream]],
) -> Vec<SegmentBoundary> {
    let mut parts = vec![SegmentBoundary { byte: 0, time: MediaTicks(0), tables: 0, begins_part: None }];
    // Time stamps jump within a packet of some stream; segments hold whole packets.
    parts.extend(index.bases().iter().skip(1).map(|base| {
        let byte = base.byte / TS_PACKET_BYTES as u64 * TS_PACKET_BYTES as u64;
        SegmentBoundary { byte, time: index.time_of(byte), tables: byte, begins_part: Some(true) }
    }));
    let jumps = parts.len();
    let mut before: Option<&[LayoutStream]> = None;
    for layout in layouts {
        let is_change = before.is_some_and(|before| differ(before, layout));
        let is_other = before.is_some_and(|before| share_nothing(before, layout));
        before = Some(layout);
        let Some(point) = points.get(points.partition_point(|point| point.byte < layout[0].byte)) else {
            break;
        };
        let jump = parts[..jumps].partition_point(|part| part.byte <= point.byte).saturating_sub(1);
        if is_change && first_point(points, parts[jump].byte, u64::MAX) != point.byte {
            let byte = layout[0].byte / TS_PACKET_BYTES as u64 * TS_PACKET_BYTES as u64;
            parts.push(match is_other {
                true => SegmentBoundary {
                    byte,
                    time: index.time_of(byte),
                    tables: byte,
                    begins_part: Some(false),
                },
                false => SegmentBoundary { begins_part: Some(false), ..*point },
            });
        }
    }
    parts.sort_by_key(|part| part.byte);
    parts
}

/// Where a title can be cut. One without access points, whose pictures a decoder enters as they come, is cut anywhere.
fn points(index: &TitleIndex) -> Vec<SegmentBoundary> {
    let cut = |byte, tables| SegmentBoundary { byte, time: index.time_of(byte), tables, begins_part: None };
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
fn cut_part(
    start: SegmentBoundary,
    end: u64,
    end_time: MediaTicks,
    points: &[SegmentBoundary],
    are_access: bool,
    cuts: &mut Vec<SegmentBoundary>,
) {
    let mut from = start;
    let mut next = points.partition_point(|point| point.byte <= start.byte);
    // The bytes before the first access point are not a segment of their own, because nothing can
    // be decoded there.
    let begins_at_point = next.checked_sub(1).is_some_and(|at| points[at].byte == start.byte);
    next += usize::from(!begins_at_point && are_access);
    cuts.push(from);
    loop {
        let ahead = &points[next.min(points.len())..];
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
