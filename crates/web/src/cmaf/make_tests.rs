//! Segments of a stream that is made up: each picture and each frame of sound has a number, and the segments have to have all of them once and in order.

use std::path::PathBuf;
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline as RtpTimeline;
use millrace_store::index::{ClockPiece, IndexParts, LayoutStream, RandomAccessPoint, TimeBase, TitleIndex};
use millrace_store::volume::{ElementaryStream, Origin, SourceIdentity, TitleInfo};
use proptest::prelude::*;

use super::super::plan::{PlanError, plan};
use super::*;

const PICTURE: u64 = 3600;
const FRAME: u64 = 1920;
const VIDEO_PID: u16 = 256;
const SOUND_PID: u16 = 257;

/// One recording.
#[derive(Clone, Debug)]
struct Recording {
    gops: u64,
    /// Pictures of each; odd.
    gop: u64,
    /// Where its time stamps begin.
    origin: u64,
    /// How much later than pictures of the same time sound is sent, and how much later it begins.
    skew: i64,
    sound_from: u64,
    frames: u64,
    /// Frames of a PES packet, and bytes of the first of them that are in the one before.
    together: usize,
    unaligned: usize,
    /// Offset of the PIDs, and whether the audio is mono.
    pids: u16,
    is_mono: bool,
    /// Whether its time stamps continue those of the previous recording.
    goes_on: bool,
}

/// Two bytes that are neither start codes nor headers.
fn numbered(number: u64) -> [u8; 2] {
    [0x80 | (number >> 6) as u8 & 0x3f, 0x80 | number as u8 & 0x3f]
}

/// How many numbers there are before the first one comes again.
const NUMBERS: u64 = 1 << 12;

fn number_in(bytes: &[u8]) -> u64 {
    u64::from(bytes[0] & 0x3f) << 6 | u64::from(bytes[1] & 0x3f)
}

fn pes(id: u8, pts: u64, dts: u64, payload: &[u8]) -> Vec<u8> {
    let stamp = |mark: u8, v: u64| {
        let v = v % (1 << 33);
        [
            mark << 4 | ((v >> 30) as u8 & 7) << 1 | 1,
            (v >> 22) as u8,
            (v >> 14) as u8 | 1,
            (v >> 7) as u8,
            (v << 1) as u8 | 1,
        ]
    };
    let head = [0, 0, 1, id, 0, 0, 0x80, 0xc0, 10];
    [&head[..], &stamp(3, pts), &stamp(1, dts), payload].concat()
}

impl Recording {
    /// The streams of the recording, starting at `byte`.
    fn layout(&self, byte: u64) -> [LayoutStream; 2] {
        let stream = |pid, codec: &str, config| LayoutStream {
            byte,
            pid: pid + self.pids,
            codec: codec.to_owned(),
            config,
            ..LayoutStream::default()
        };
        [stream(VIDEO_PID, "H.264", 1), stream(SOUND_PID, "AAC", 1 + u32::from(self.is_mono))]
    }

    /// PES packets in the order in which they are sent: when, on which PID, and whether it is an access point.
    fn packets(&self, first_picture: u64, first_frame: u64) -> Vec<(i64, u16, bool, Vec<u8>)> {
        let sps: Vec<u8> = (0..27)
            .map(|at| {
                u8::from_str_radix(
                    &"64001facd9405005bbff000300041000003e90000ea600f183196000"[at * 2..at * 2 + 2],
                    16,
                )
                .unwrap()
            })
            .collect();
        let mut list = Vec::new();
        for at in 0..self.gops * self.gop {
            let is_access = at % self.gop == 0;
            // Every other picture is shown after the one behind it.
            let late = if is_access { 1 } else { at % self.gop % 2 * 2 };
            let (dts, pts) = (self.origin + at * PICTURE, self.origin + (at + late) * PICTURE);
            let mut bytes = vec![0, 0, 0, 1, 9, 0xf0];
            if is_access {
                bytes.extend([&[0, 0, 1, 0x67][..], &sps, &[0, 0, 1, 0x68, 0xee, 0x3c, 0x80]].concat());
            }
            bytes.extend([0, 0, 1, if is_access { 0x65 } else { 0x41 }, 0x88]);
            bytes.extend(numbered(first_picture + at));
            list.push(((at * PICTURE) as i64, VIDEO_PID + self.pids, is_access, pes(0xe0, pts, dts, &bytes)));
        }
        let sound: Vec<Vec<u8>> = (0..self.frames)
            .map(|at| {
                let channels = if self.is_mono { 0x40 } else { 0x80 };
                let mut frame = vec![0xff, 0xf1, 0x4c, channels, 0x03, 0x1f | 7 << 5, 0xfc];
                frame[4] = (31 >> 3) as u8;
                frame.extend(numbered(first_frame + at));
                frame.resize(31, 0x11);
                frame
            })
            .collect();
        for (n, frames) in sound.chunks(self.together).enumerate() {
            let first = n * self.together;
            let own = self.unaligned.min(30);
            let mut bytes = if n == 0 { frames[0].clone() } else { frames[0][own..].to_vec() };
            frames[1..].iter().for_each(|frame| bytes.extend(frame));
            if let Some(next) = sound.get(first + self.together) {
                bytes.extend(&next[..own]);
            }
            // The stamp is of the first frame that begins here; none begins if there is one alone and its beginning is in the packet before.
            let begins = first as u64 + u64::from(n > 0 && own > 0);
            let pts = self.origin + PICTURE + self.sound_from + begins * FRAME;
            let sent = (self.sound_from + first as u64 * FRAME) as i64 + self.skew;
            list.push((sent, SOUND_PID + self.pids, false, pes(0xc0, pts, pts, &bytes)));
        }
        list.sort_by_key(|(sent, pid, ..)| (*sent, *pid));
        list
    }
}

struct TitleBuilder(Vec<u8>);

impl TitleBytes for TitleBuilder {
    fn read(&mut self, from: u64, out: &mut [u8]) -> Result<(), SiteError> {
        out.copy_from_slice(&self.0[from as usize..from as usize + out.len()]);
        Ok(())
    }
}

/// A title of recordings, one behind the other.
fn film(recordings: &[Recording]) -> (TitleInfo, Arc<TitleIndex>, TitleBuilder) {
    let (mut bytes, mut access, mut pieces, mut bases) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut layouts = Vec::new();
    let (mut counters, mut numbers, mut start) = ([0u8; 2], (0, 0), 0u64);
    for (n, recording) in recordings.iter().enumerate() {
        let packets = recording.packets(numbers.0, numbers.1);
        numbers.0 += recording.gops * recording.gop;
        numbers.1 += recording.frames;
        let first = packets[0].0;
        let first_pts = recording.origin + PICTURE;
        layouts.extend(recording.layout(bytes.len() as u64));
        let mut time = pieces.last().map_or(start, |last: &ClockPiece| start.max(last.time.0));
        // If the time stamps continue, the clock does too, and stays ahead of them by the same
        // amount.
        let from = if recording.goes_on { start.cast_signed() } else { start.cast_signed() - first };
        if !recording.goes_on {
            bases.push(TimeBase {
                byte: bytes.len() as u64,
                time: MediaTicks(start),
                first_pts: first_pts % (1 << 33),
            });
        }
        for (sent, pid, is_access, pes) in packets {
            time = u64::try_from(from + sent).unwrap_or(0).max(time);
            let byte = bytes.len() as u64;
            if pieces.last().is_none_or(|last: &ClockPiece| last.byte < byte) {
                pieces.push(ClockPiece { byte, time: MediaTicks(time) });
            }
            if is_access {
                access.push(RandomAccessPoint { packet: (byte / 1316) as u32, time: MediaTicks(time), byte });
            }
            for (n, payload) in pes.chunks(184).enumerate() {
                let counter = &mut counters[usize::from((pid - VIDEO_PID) % 2)];
                *counter = (*counter + 1) & 15;
                bytes.extend(crate::elementary::packet(pid, *counter, n == 0, payload));
            }
        }
        start = match recordings.get(n + 1).is_some_and(|next| next.goes_on) {
            true => start + recording.gops * recording.gop * PICTURE,
            false => time + PICTURE,
        };
    }
    let index = TitleIndex::from_parts(IndexParts {
        access,
        times: times(&pieces, bytes.len() as u64, start),
        pieces,
        data_bytes: bytes.len() as u64,
        duration: MediaTicks(start),
        bases,
        layouts,
        ..IndexParts::default()
    });
    (info(bytes.len() as u64), Arc::new(index.unwrap()), TitleBuilder(bytes))
}

fn times(pieces: &[ClockPiece], bytes: u64, end: u64) -> Vec<MediaTicks> {
    let last = ClockPiece { byte: bytes, time: MediaTicks(end) };
    let time = |byte: u64| {
        let at = pieces.partition_point(|piece| piece.byte <= byte) - 1;
        pieces[at].time_of(pieces.get(at + 1).unwrap_or(&last), byte)
    };
    (0..bytes.div_ceil(1316).div_ceil(256)).map(|n| time(n * 256 * 1316)).collect()
}

fn info(bytes: u64) -> TitleInfo {
    let stream = |pid, stream_type, codec: &str| ElementaryStream {
        pid,
        stream_type,
        codec: codec.to_owned(),
        language: None,
        role: None,
    };
    TitleInfo {
        id: TitleId([7; 16]),
        name: "film".to_owned(),
        bytes,
        packets: bytes.div_ceil(1316) as u32,
        packet_sizes: vec![1316],
        duration: MediaTicks(0),
        mean_rate: BitRate(0),
        peak_rate: BitRate(0),
        constant_rate: false,
        streams: vec![stream(VIDEO_PID, 0x1b, "H.264"), stream(SOUND_PID, 0x0f, "AAC")],
        timeline: RtpTimeline { ssrc: 1, timestamp_base: 2 },
        source: SourceIdentity { path: PathBuf::from("/film.ts"), bytes, modified_unix_ns: 0 },
        added_unix_s: 0,
        blake3: String::new(),
        notes: Vec::new(),
        derived: None,
        rendition: None,
        title: None,
        origin: Origin::default(),
        subtitles: Vec::new(),
        source_start: 0,
        chapters: Vec::new(),
        began_unix_ms: None,
    }
}

/// Reads a made segment back: its start time, and its samples' bytes with duration and offset.
fn read_back(segment: &[u8]) -> (u64, Vec<(Vec<u8>, u64, i64)>) {
    let number = |at: usize| u64::from(u32::from_be_bytes(segment[at..at + 4].try_into().unwrap()));
    let find = |name: &[u8]| segment.windows(4).position(|w| w == name).map(|at| at + 4);
    let tfdt = find(b"tfdt").unwrap();
    let start = number(tfdt + 4) << 32 | number(tfdt + 8);
    let Some(trun) = find(b"trun") else { return (start, Vec::new()) };
    let mut at = find(b"moof").unwrap() - 8 + number(trun + 8) as usize;
    let samples = (0..number(trun + 4) as usize).map(|n| {
        let entry = trun + 12 + n * 16;
        let bytes = segment[at..at + number(entry + 4) as usize].to_vec();
        at += bytes.len();
        (bytes, number(entry), (number(entry + 12) as u32).cast_signed().into())
    });
    (start, samples.collect())
}

fn check(recordings: &[Recording]) -> Result<(), TestCaseError> {
    let (info, index, mut film) = film(recordings);
    let plan = plan(&info, index, &mut film).unwrap();
    let is_part = |pair: &&[Recording]| {
        !pair[1].goes_on || (pair[0].pids, pair[0].is_mono) != (pair[1].pids, pair[1].is_mono)
    };
    prop_assert_eq!(plan.parts.len(), 1 + recordings.windows(2).filter(is_part).count());
    prop_assert_eq!(plan.tracks.len(), 2);
    let all: Vec<_> = (0..plan.segments.len()).map(|n| make(&plan, &mut film, n).unwrap()).collect();
    let listed = [plan.listed(0), plan.listed(1)];
    for (track, per_sample) in [(0, 2), (1, 0)] {
        let mut numbers = Vec::new();
        let mut next = 0;
        for (n, made) in all.iter().enumerate() {
            let listed = &listed[track][n];
            if listed.duration.0 == 0 {
                continue;
            }
            let (start, samples) = read_back(&made[track]);
            prop_assert!(!samples.is_empty(), "track {track}, segment {n} is listed and empty");
            let is_first = plan.parts.iter().any(|part| part.segments.start == n);
            if !samples.is_empty() {
                prop_assert!(
                    start == next && n > 0 || is_first && start >= next,
                    "track {track}, segment {n}: {start} {next}"
                );
                next = start + samples.iter().map(|sample| sample.1).sum::<u64>();
            }
            let of =
                |bytes: &[u8]| number_in(if per_sample == 2 { &bytes[bytes.len() - 2..] } else { bytes });
            numbers.extend(samples.iter().map(|sample| of(&sample.0)));
            if track == 0 {
                // Pictures are shown at their time stamps: one each 3,600 ticks, without a hole.
                let mut time = start.cast_signed();
                let mut shown: Vec<i64> = samples
                    .iter()
                    .map(|sample| {
                        let shown = time + sample.2;
                        time += sample.1.cast_signed();
                        shown
                    })
                    .collect();
                shown.sort_unstable();
                prop_assert!(shown.windows(2).all(|pair| pair[1] - pair[0] == 3600), "{shown:?}");
                // The first one a picture's length after it was decoded; where a part begins, at once.
                let delay = if is_first { 0 } else { 3600 };
                prop_assert_eq!(shown.first().copied(), Some(start.cast_signed() + delay));
            }
        }
        let count: u64 = recordings.iter().map(|r| if track == 0 { r.gops * r.gop } else { r.frames }).sum();
        prop_assert_eq!(numbers, (0..count).map(|n| n % NUMBERS).collect::<Vec<_>>(), "track {}", track);
    }
    Ok(())
}

fn recording() -> impl Strategy<Value = Recording> {
    (
        4u64..12,
        10u64..40,
        any::<u64>(),
        -150_000i64..150_000,
        0u64..60_000,
        100u64..900,
        1usize..12,
        0usize..31,
    )
        .prop_map(|(gops, half, origin, skew, sound_from, frames, together, unaligned)| Recording {
            gops,
            gop: half * 2 + 1,
            origin: origin % (1 << 33),
            skew,
            sound_from,
            frames,
            together,
            // A packet in which no frame begins has no stamp of its own to give.
            unaligned: if together == 1 { 0 } else { unaligned },
            pids: 0,
            is_mono: false,
            goes_on: false,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the multiplexer did: each picture and each frame is in exactly one segment, in order, and times run on without a seam.
    #[test]
    fn everything_is_there_once(recordings in proptest::collection::vec(recording(), 1..3)) {
        check(&recordings)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Continuous time stamps with changing streams: other PIDs, another audio format, both, or
    /// neither, in any order.
    #[test]
    fn make_of_changing_streams_has_everything_once(
        recordings in proptest::collection::vec((recording(), any::<bool>(), any::<bool>()), 1..5),
        skew in -30_000i64..30_000,
    ) {
        let mut joined: Vec<Recording> = Vec::new();
        for (recording, has_other_pids, is_mono) in recordings {
            let length = recording.gops * recording.gop * PICTURE;
            let origin = match joined.last() {
                Some(before) => before.origin + before.gops * before.gop * PICTURE,
                None => recording.origin % (1 << 32),
            };
            joined.push(Recording {
                origin,
                skew,
                sound_from: 0,
                frames: length / FRAME,
                pids: if has_other_pids { 0x100 } else { 0 },
                is_mono,
                goes_on: !joined.is_empty(),
                ..recording
            });
        }
        check(&joined)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any change to the bytes: nothing panics, and the output is no larger than the input.
    #[test]
    fn damaged_titles(
        recording in recording(),
        edits in proptest::collection::vec((any::<u32>(), any::<u8>()), 0..60),
        hole in any::<u32>(),
    ) {
        let (info, index, mut film) = film(&[Recording { gops: 5, frames: 300, ..recording }]);
        let length = film.0.len();
        for (at, value) in edits {
            film.0[at as usize % length] = value;
        }
        let hole = hole as usize % length;
        film.0[hole..length.min(hole + 1880)].fill(0xff);
        let plan = plan(&info, index, &mut film);
        prop_assert!(!matches!(plan, Err(PlanError::Site(_))));
        if let Ok(plan) = plan {
            for n in 0..plan.segments.len() {
                let made = make(&plan, &mut film, n).unwrap();
                prop_assert_eq!(made.len(), plan.tracks.len());
                prop_assert!(made.iter().all(|segment| segment.len() < length * 4 + 4096));
                first_picture(&plan, &mut film, n).unwrap();
            }
        }
    }
}

#[test]
fn show_first_at_once_moves_what_is_decoded_before() {
    let moved = |mut times: Vec<i64>, shown: &[i64]| {
        show_first_at_once(&mut times, shown);
        times
    };
    // I P B B P, the first one shown two pictures after it is decoded.
    assert_eq!(moved(vec![0, 10, 20, 30, 40, 50], &[20, 50, 30, 40, 80]), [20, 23, 26, 30, 40, 50]);
    // It is so already, or it cannot be.
    assert_eq!(moved(vec![0, 10, 20], &[0, 10]), [0, 10, 20]);
    assert_eq!(moved(vec![0, 10, 20], &[15, 10]), [0, 10, 20]);
    assert_eq!(moved(vec![0, 10], &[30]), [0, 10]);
    assert_eq!(moved(vec![7], &[]), [7]);
}

#[test]
fn gaps_between_known_times_are_filled_evenly() {
    assert_eq!(decode_times(&[Some(5), None, None, Some(40)], 10, 50), [10, 20, 30, 40, 50]);
    assert_eq!(decode_times(&[None, None], 0, 100), [0, 50, 100]);
    assert_eq!(decode_times(&[None; 3], 0, 90), [0, 30, 60, 90]);
    // Times that run back do not.
    assert_eq!(decode_times(&[Some(0), Some(9), Some(3)], 0, 20), [0, 9, 10, 20]);
    // Those that reach into the next segment stay before it, if there is room.
    assert_eq!(decode_times(&[Some(0), Some(9), Some(3)], 0, 6), [0, 2, 4, 6]);
    assert_eq!(decode_times(&[Some(0), Some(6)], 0, 6), [0, 3, 6], "as late as the next segment");
    assert_eq!(decode_times(&[Some(0), Some(9), Some(3)], 0, 2), [0, 9, 10, 11]);
    assert_eq!(decode_times(&[], 7, 9), [7]);
}

#[test]
fn rounding_is_no_gap() {
    assert_eq!(smooth(vec![10, 1000, 999], &[1024; 3], 48_000), [10, 1034, 1035], "cut short");
    assert_eq!(smooth(vec![10, 1035, 2057, 5000, 6023], &[1024; 5], 44_100), [10, 1034, 2058, 5000, 6024]);
}
