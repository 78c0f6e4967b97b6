//! The pictures of a title that are shown to who looks for something: where they are, when they are shown, their bytes.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::MediaTicks;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_packet::{PesStart, TsPacket};
use millrace_store::StoreError;
use millrace_store::index::{PidRole, RandomAccessPoint, TitleIndex};
use millrace_store::volume::MediaReader;

use crate::limits::pictures::{
    LEAST_BETWEEN_TICKS, MAX_STILL_BYTES, MAX_STILL_LOOK_BYTES, MAX_STILLS, STILL_READ_BYTES,
};

/// A picture that can be decoded alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Still {
    /// When the title shows it.
    pub(super) time_ms: u64,
    /// Type of its stream.
    pub(super) kind: u8,
    /// As it is in its stream.
    pub(super) bytes: Vec<u8>,
}

/// Stream types of pictures that need no word beside it in the tables (ISO/IEC 13818-1 table 2-34): MPEG-1, MPEG-2, MPEG-4, H.264, H.265.
const PICTURES: [u8; 5] = [0x01, 0x02, 0x10, 0x1b, 0x24];

/// Which access points are shown: the first, and each that is far enough behind the last one.
pub(super) fn choose(index: &TitleIndex) -> Vec<RandomAccessPoint> {
    let between = (index.duration().0 / MAX_STILLS as u64).max(LEAST_BETWEEN_TICKS);
    let mut next = 0;
    let mut chosen = Vec::new();
    for point in index.access_points() {
        if point.time.0 >= next && chosen.len() < MAX_STILLS {
            next = point.time.0 + between;
            chosen.push(*point);
        }
    }
    chosen
}

/// The picture at an access point; `None` if there is none, or it is too large.
pub(super) fn read(
    reader: &mut MediaReader,
    index: &TitleIndex,
    point: RandomAccessPoint,
) -> Result<Option<Still>, StoreError> {
    let mut unit = PesCollector::default();
    let mut room = vec![0; STILL_READ_BYTES];
    let end = index.data_bytes().min(point.byte + MAX_STILL_LOOK_BYTES);
    let mut at = point.byte;
    while at < end && !unit.is_over {
        let count = usize::try_from(end - at).unwrap_or(STILL_READ_BYTES).min(STILL_READ_BYTES);
        reader.read_exact(at, &mut room[..count])?;
        let (packets, _) = room[..count].as_chunks::<TS_PACKET_BYTES>();
        packets.iter().for_each(|packet| unit.packet(TsPacket(packet)));
        at += count as u64;
    }
    let is_whole = unit.is_over || at == index.data_bytes();
    let Some(pid) =
        unit.pid.filter(|_| is_whole && !unit.bytes.is_empty() && unit.bytes.len() <= MAX_STILL_BYTES)
    else {
        return Ok(None);
    };
    let of = index.pids().iter().find(|used| used.pid == pid && used.role == PidRole::Stream);
    let Some(of) = of.filter(|used| PICTURES.contains(&used.stream_type)) else { return Ok(None) };
    let time = time(index, point, unit.stamp);
    Ok(Some(Still { time_ms: time.0 / 90, kind: of.stream_type, bytes: unit.bytes }))
}

/// When it is shown: by its time stamp, or, where that makes no sense, when it is sent.
fn time(index: &TitleIndex, point: RandomAccessPoint, stamp: Option<u64>) -> MediaTicks {
    let sent = index.time_of(point.byte);
    let base = index.bases().iter().rev().find(|base| base.byte <= point.byte);
    let shown = base.zip(stamp).map(|(base, stamp)| {
        let since = stamp.wrapping_sub(base.first_pts) % PTS_MODULUS;
        base.time.0.saturating_add(since)
    });
    // A decoder holds a picture for seconds at most.
    let is_near =
        |shown: &u64| shown.abs_diff(sent.0) <= millrace_core::limits::web::MAX_STAMP_DISTANCE_TICKS;
    MediaTicks(shown.filter(is_near).unwrap_or(sent.0).min(index.duration().0))
}

/// A PES packet whose packets come one after the other.
#[derive(Default)]
struct PesCollector {
    pid: Option<u16>,
    stamp: Option<u64>,
    bytes: Vec<u8>,
    is_over: bool,
}

impl PesCollector {
    fn packet(&mut self, packet: TsPacket<'_>) {
        let pid = *self.pid.get_or_insert(packet.pid());
        if self.is_over || packet.pid() != pid || !packet.has_payload() {
            return;
        }
        if packet.is_scrambled() || packet.has_error() {
            self.bytes.clear();
            self.is_over = true;
        } else if !packet.starts_unit() {
            self.bytes.extend_from_slice(packet.payload());
        } else if self.bytes.is_empty() {
            if let Some(start) = PesStart::parse(packet.payload()) {
                self.stamp = start.presentation_stamp;
                self.bytes.extend_from_slice(start.payload);
            }
        } else {
            self.is_over = true;
        }
        self.is_over |= self.bytes.len() > MAX_STILL_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_store::index::IndexParts;
    use proptest::prelude::*;

    fn index(times: &[u64], duration: u64) -> TitleIndex {
        let access = times
            .iter()
            .enumerate()
            .map(|(n, &time)| RandomAccessPoint {
                packet: n as u32,
                time: MediaTicks(time),
                byte: n as u64 * 1316,
            })
            .collect();
        let parts = IndexParts {
            access,
            times: vec![MediaTicks(0)],
            data_bytes: times.len() as u64 * 1316,
            duration: MediaTicks(duration),
            ..IndexParts::default()
        };
        TitleIndex::from_parts(parts).unwrap()
    }

    proptest! {
        #[test]
        fn so_many_at_most_and_not_too_close(steps in proptest::collection::vec(9_000u64..900_000, 1..200)) {
            let times: Vec<u64> = steps.iter().scan(0, |at, step| { let now = *at; *at += step; Some(now) }).collect();
            let duration = times.last().unwrap() + 90_000;
            let chosen = choose(&index(&times, duration));
            prop_assert!(!chosen.is_empty() && chosen.len() <= MAX_STILLS);
            prop_assert_eq!(chosen[0].time, MediaTicks(0));
            prop_assert!(chosen.windows(2).all(|two| two[1].time.0 - two[0].time.0 >= LEAST_BETWEEN_TICKS));
        }
    }

    #[test]
    fn unit_packet_ends_unit_at_next_start_and_clears_it_on_damage() {
        let packet = |pid: u16, control: u8, starts: bool, payload: &[u8]| {
            let mut bytes = [0xff; TS_PACKET_BYTES];
            let [high, low] = pid.to_be_bytes();
            bytes[..4].copy_from_slice(&[0x47, u8::from(starts) << 6 | high, low, control]);
            bytes[4..4 + payload.len()].copy_from_slice(payload);
            bytes
        };
        let begin = packet(256, 0x10, true, &[0, 0, 1, 0xe0, 0, 0, 0x80, 0x80, 5, 0x21, 0, 1, 0, 3, 7]);
        let (more, other) = (packet(256, 0x10, false, &[8; 184]), packet(257, 0x10, true, &[9; 184]));
        let of = |packets: &[[u8; TS_PACKET_BYTES]]| {
            let mut unit = PesCollector::default();
            packets.iter().for_each(|bytes| unit.packet(TsPacket(bytes)));
            unit
        };
        let unit = of(&[begin, other, more, begin, more]);
        assert_eq!((unit.pid, unit.stamp, unit.is_over), (Some(256), Some(1), true));
        assert_eq!((unit.bytes.len(), unit.bytes[0]), (170 + 184, 7));
        assert!(!of(&[begin, other, more]).is_over);
        let unit = of(&[begin, packet(256, 0x90, false, &[8; 184])]);
        assert!(unit.is_over && unit.bytes.is_empty());
    }
}
