//! The indexer on streams made packet by packet: the computed values must equal the input values
//! exactly.

use crate::ingest_support::{index, sum, try_index};
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_make::ingest::{
    ClockOrigin, Framing, IndexOptions, IndexSink, Skipped, StreamError, index_only,
};
use millrace_store::error::StoreError;
use millrace_store::index::{ClockPiece, PidRole};
use millrace_testkit::mux::*;

/// Seven TS packets of one millisecond.
const PACKET_TICKS: u64 = 7 * 90;

#[test]
fn index_at_constant_rate_has_exact_times() {
    let source = usual_film();
    let (passed, sink) = index(&source);
    let indexed = &passed.indexed;
    assert_eq!(sink.data, source);
    let expected: Vec<u64> = (0..sink.times().len() as u64).map(|n| n * PACKET_TICKS).collect();
    assert_eq!(sink.times(), expected);
    assert_eq!(indexed.duration, MediaTicks(4002 * 90));
    assert_eq!(indexed.mean_rate, BitRate(PACKET_A_MS));
    assert!(indexed.constant_rate);
    assert!(indexed.peak_rate.0 <= PACKET_A_MS + 2 * 1316 * 8, "{}", indexed.peak_rate);
    assert_eq!(indexed.index.pieces(), [ClockPiece::default()]);
    assert_eq!(indexed.clock, ClockOrigin::Announced(VIDEO));
    assert_eq!((passed.framing, passed.skipped), (Framing::Plain, Skipped::default()));
    let odd = indexed.oddities;
    assert_eq!((odd.breaks, odd.jumps, odd.wrong_crcs, odd.scrambled, odd.table_changes), (0, 0, 0, 0, 0));
}

#[test]
fn streams_and_pids_are_listed() {
    let (passed, _) = index(&usual_film());
    let streams: Vec<_> = passed
        .indexed
        .streams
        .iter()
        .map(|s| (s.pid, s.stream_type, s.codec.as_str(), s.language.as_deref()))
        .collect();
    assert_eq!(streams, [(VIDEO, 0x1b, "H.264", None), (AUDIO, 0x0f, "AAC", Some("eng"))]);
    let pids: Vec<_> = passed.indexed.index.pids().iter().map(|p| (p.pid, p.role, p.pcr)).collect();
    assert_eq!(
        pids,
        [
            (0, PidRole::Pat, false),
            (VIDEO, PidRole::Stream, true),
            (AUDIO, PidRole::Stream, false),
            (PMT, PidRole::Pmt, false),
            (0x1fff, PidRole::Null, false)
        ]
    );
}

#[test]
fn index_of_several_packet_sizes_has_sums_and_times() {
    let source = usual_film();
    let options = IndexOptions { packet_sizes: vec![1316, 188, 2632, 9024], ..IndexOptions::default() };
    let (_, sink) = try_index(&source, &options).unwrap();
    for size in [188u16, 1316, 2632, 9024] {
        let ticks: Vec<u64> = sink.of(size).iter().map(|m| m.time().0).collect();
        let expected: Vec<u64> = (0..ticks.len() as u64).map(|n| n * u64::from(size) / 188 * 90).collect();
        assert_eq!(ticks, expected, "{size}");
        assert_eq!(sink.of(size)[0].sum(), sum(&source[..usize::from(size)]));
    }
}

#[test]
fn index_across_pcr_wrap_has_no_jump() {
    let source = film(&Film { start: WRAP - 1500 * HZ / 1000, ..Film::default() });
    let (passed, sink) = index(&source);
    let expected: Vec<u64> = (0..sink.times().len() as u64).map(|n| n * PACKET_TICKS).collect();
    assert_eq!(sink.times(), expected);
    assert_eq!((passed.indexed.oddities.jumps, passed.indexed.duration), (0, MediaTicks(4002 * 90)));
}

#[test]
fn index_at_variable_rate_has_exact_times() {
    // 200 pictures of 40 ms, of 1 to 300 packets each; the clock comes with each picture's first packet.
    let mut mux = Mux::new();
    let mut starts = Vec::new();
    let start = 123_456_789;
    for picture in 0..200u64 {
        if picture % 25 == 0 {
            mux.usual_tables();
        }
        let now = start + picture * HZ / 25;
        starts.push((mux.packets() * 188, now - start));
        let adapt = Adapt { pcr: Some(now), random_access: picture % 25 == 0, ..Adapt::default() };
        mux.pes_start(VIDEO, adapt, now / 300 + 9000, if picture % 25 == 0 { IDR } else { NON_IDR });
        for _ in 0..picture * 7919 % 300 {
            mux.more(VIDEO);
        }
    }
    let (passed, sink) = index(&mux.out);
    // The two packets of tables before the first clock value take the rate of the first second.
    let lead = sink.of(1316).len();
    assert!(lead > 100);
    let (_, first) = index_time(&starts, 376);
    let offset = passed.indexed.index.pieces()[1].time.0;
    assert!(offset <= 90 * 3, "376 bytes take at most a picture's time: {offset}");
    for (n, time) in sink.times().iter().enumerate().skip(1) {
        let byte = n as u64 * 1316;
        if byte >= starts[199].0 {
            break;
        }
        let (ticks, _) = index_time(&starts, byte);
        let expected = (ticks - first) / 300 + offset;
        assert!(time.abs_diff(expected) <= 1, "packet {n}: {time}, expected {expected}");
    }
    assert!(!passed.indexed.constant_rate);
    let (mean, peak) = (passed.indexed.mean_rate.0, passed.indexed.peak_rate.0);
    assert!(peak > mean && peak < 2 * mean, "{peak} {mean}");
    // 199 intervals of 40 ms, and a last picture that takes no longer than the longest.
    let duration = passed.indexed.duration.0 - offset;
    assert!((199 * 3600..=200 * 3600).contains(&duration), "{duration}");
    assert_eq!(passed.indexed.index.access_points().len(), 8);
}

/// Time of a byte by the definition, and the time of the first anchor.
fn index_time(anchors: &[(u64, u64)], byte: u64) -> (u64, u64) {
    let at = anchors.iter().rposition(|&(b, _)| b <= byte).unwrap_or(0);
    let ((b0, t0), (b1, t1)) = (anchors[at], anchors[at + 1]);
    let into = u128::from(byte - b0) * u128::from(t1 - t0) / u128::from(b1 - b0);
    (t0 + into as u64, anchors[0].1)
}

#[test]
fn clock_jumps_are_taken_out_and_marked() {
    for (name, start, discontinuity) in
        [("back", 1_000_000u64, false), ("an hour on", 3600 * HZ, false), ("announced", 2 * HZ, true)]
    {
        let mut mux = Mux::new();
        mux.usual_tables();
        Film { start: 60 * HZ, packets: 2000, ..Film::default() }.write(&mut mux);
        if discontinuity {
            mux.packet(VIDEO, false, Adapt { discontinuity: true, ..Adapt::default() }, &[1; 182]);
        } else {
            mux.more(VIDEO);
        }
        let splice = mux.packets();
        Film { start, packets: 2000, ..Film::default() }.write(&mut mux);
        let (passed, sink) = index(&mux.out);
        let expected: Vec<u64> = (0..sink.times().len() as u64).map(|n| n * PACKET_TICKS).collect();
        assert_eq!(sink.times(), expected, "{name}");
        assert_eq!(passed.indexed.oddities.jumps, 1, "{name}");
        assert_eq!(passed.indexed.oddities.first_jump, splice * 188);
        assert_eq!(sink.flagged(PacketMeta::DISCONTINUITY), [(splice / 7) as usize], "{name}");
        assert_eq!(passed.indexed.duration, MediaTicks(4003 * 90));
    }
}

#[test]
fn access_points_are_where_sending_can_start() {
    for indicator in [true, false] {
        let source = film(&Film { indicator, ..Film::default() });
        let (passed, sink) = index(&source);
        // A key picture every 1000 packets; tables in the two packets before it.
        let points = passed.indexed.index.access_points();
        let bytes: Vec<u64> = points.iter().map(|p| p.byte / 188).collect();
        assert_eq!(bytes, [2, 1002, 2002, 3002], "indicator {indicator}");
        let packets: Vec<u64> = points.iter().map(|p| u64::from(p.packet)).collect();
        assert_eq!(packets, [0, 1000 / 7, 2000 / 7, 3000 / 7]);
        assert_eq!(points[1].time, MediaTicks(1000 / 7 * PACKET_TICKS));
        assert_eq!(sink.flagged(PacketMeta::RANDOM_ACCESS), [0, 1002 / 7, 2002 / 7, 3002 / 7]);
        let at = passed.indexed.index.access_at_or_before(MediaTicks(2500 * 90));
        assert_eq!(at, points[2]);
    }
}

#[test]
fn access_point_far_from_tables_starts_at_its_own_packet() {
    // Tables only at the start; key pictures every 1000 ms.
    let mut mux = Mux::new();
    mux.usual_tables();
    for n in 0..4000u64 {
        let now = n * HZ / 1000;
        let pcr = (n % 20 == 0).then_some(now);
        match n % 1000 {
            0 => mux.pes_start(VIDEO, Adapt { pcr, ..Adapt::default() }, now / 300, IDR),
            _ if n % 40 == 0 => mux.pes_start(VIDEO, Adapt { pcr, ..Adapt::default() }, now / 300, NON_IDR),
            _ if n % 20 == 0 => {
                mux.packet(VIDEO, false, Adapt { pcr, ..Adapt::default() }, &[7; 184]);
            }
            _ => mux.more(VIDEO),
        }
    }
    let (passed, _) = index(&mux.out);
    let points: Vec<_> =
        passed.indexed.index.access_points().iter().map(|p| (p.packet, p.byte / 188)).collect();
    assert_eq!(points, [(0, 2), (1002 / 7, 1002), (2002 / 7, 2002), (3002 / 7, 3002)]);
}

#[test]
fn sound_alone_has_access_points_twice_a_second() {
    let mut mux = Mux::new();
    for n in 0..5000u64 {
        let now = n * HZ / 1000;
        match n % 25 {
            23 if n % 100 == 98 => mux.pat(&[(1, PMT)]),
            24 if n % 100 == 99 => mux.pmt(PMT, 1, AUDIO, &[(0x03, AUDIO, &[])]),
            0 => mux.pes_start(
                AUDIO,
                Adapt { pcr: Some(now), ..Adapt::default() },
                now / 300,
                &[0xff, 0xfb, 0x90, 0],
            ),
            _ => mux.more(AUDIO),
        }
    }
    let (passed, _) = index(&mux.out);
    let points = passed.indexed.index.access_points();
    assert!((9..=10).contains(&points.len()), "{}", points.len());
    assert_eq!(passed.indexed.streams[0].codec, "MP3");
    assert_eq!(points[1].packet, 598 / 7, "sending starts at the tables before the sound");
}

#[test]
fn wrapped_packets_are_unwrapped() {
    let ts = usual_film();
    let (_, plain) = index(&ts);
    let m2ts: Vec<u8> = ts.chunks(188).flat_map(|p| [&[0, 1, 2, 3], p].concat()).collect();
    let rs: Vec<u8> = ts.chunks(188).flat_map(|p| [p, &[0x47; 16]].concat()).collect();
    for (source, framing) in [(m2ts, Framing::M2ts), (rs, Framing::ReedSolomon)] {
        let (passed, sink) = index(&source);
        assert_eq!((passed.framing, passed.skipped), (framing, Skipped::default()));
        assert_eq!(sink.data, ts);
        assert!(sink.metas == plain.metas);
    }
}

#[test]
fn damage_and_a_cut_end_are_stepped_over_and_counted() {
    let ts = usual_film();
    let mut source = ts.clone();
    source.truncate(4000 * 188 + 77);
    source.drain(2000 * 188 + 10..2003 * 188 + 33);
    let (passed, sink) = index(&source);
    let s = passed.skipped;
    assert_eq!((s.places, s.first_offset, s.tail_bytes), (1, 2000 * 188, 77));
    // The packet whose end is lost, and the rest of the one whose beginning is lost.
    assert_eq!(s.bytes, 10 + 155);
    let expected = [&ts[..2000 * 188], &ts[2004 * 188..4000 * 188]].concat();
    assert_eq!(sink.data, expected);
    assert!(passed.indexed.oddities.breaks > 0);
    // 4 ms are missing: the clock value behind them is right, so time is again n ms from there on.
    assert_eq!(sink.times().last().copied(), Some((3995 / 7 * 7 + 4) * 90));
}

#[test]
fn garbage_before_the_first_packet_is_left_out() {
    let source = [&[0x13; 5000][..], &usual_film()].concat();
    let (passed, sink) = index(&source);
    assert_eq!(passed.skipped.before_bytes, 5000);
    assert_eq!(sink.data, usual_film());
}

#[test]
fn index_without_pcr_uses_time_stamps() {
    let (passed, sink) = index(&film(&Film { pcr: false, ..Film::default() }));
    assert_eq!(passed.indexed.clock, ClockOrigin::Stamps(VIDEO));
    let expected: Vec<u64> = (0..sink.times().len() as u64).map(|n| n * PACKET_TICKS).collect();
    assert_eq!(sink.times(), expected);
    assert!(!passed.indexed.constant_rate, "an estimate promises nothing");
}

#[test]
fn index_of_long_stream_without_pcr_does_not_wait_for_end() {
    let source = film(&Film { pcr: false, packets: 300_000, ..Film::default() });
    let (passed, sink) = index(&source);
    assert_eq!(passed.indexed.clock, ClockOrigin::Stamps(VIDEO));
    let expected: Vec<u64> = (0..sink.times().len() as u64).map(|n| n * PACKET_TICKS).collect();
    assert!(sink.times() == expected, "seven milliseconds a packet");
}

#[test]
fn index_without_pcr_and_time_stamps_is_refused() {
    let source = film(&Film { pcr: false, stamps: false, ..Film::default() });
    match try_index(&source, &IndexOptions::default()).map(|_| ()) {
        Err(error @ StreamError::NoClock { pcrs: 0, .. }) => {
            let text = error.to_string();
            assert!(text.contains("no clock") && text.contains("ffmpeg -i"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn index_with_pcr_on_unannounced_pid_finds_it() {
    let mut mux = Mux::new();
    mux.pat(&[(1, PMT)]);
    mux.pmt(PMT, 1, 0x77, &[(0x1b, VIDEO, &[])]);
    for n in 0..2000u64 {
        let now = n * HZ / 1000;
        match n % 40 {
            0 => mux.pes_start(VIDEO, Adapt { pcr: Some(now), ..Adapt::default() }, now / 300, NON_IDR),
            _ => mux.more(VIDEO),
        }
    }
    let (passed, sink) = index(&mux.out);
    assert_eq!(passed.indexed.clock, ClockOrigin::Unannounced(VIDEO));
    assert_eq!(sink.times()[100], 100 * PACKET_TICKS);
}

#[test]
fn index_of_several_programs_uses_first_and_keeps_all_data() {
    let mut mux = Mux::new();
    for n in 0..3000u64 {
        let now = n * HZ / 1000;
        match n % 40 {
            0 => mux.pat(&[(0, 0x10), (5, 0x500), (6, 0x600)]),
            1 => mux.pmt(0x600, 6, 0x601, &[(0x24, 0x601, &[])]),
            2 => mux.pmt(0x500, 5, 0x501, &[(0x02, 0x501, &[])]),
            3 => mux.pes_start(
                0x501,
                Adapt { pcr: Some(now), ..Adapt::default() },
                now / 300,
                &[0, 0, 1, 0xb3, 1, 1, 0, 0, 1, 0, 0, 8, 0, 0, 9, 9],
            ),
            4 => mux.pes_start(
                0x601,
                Adapt { pcr: Some(7 * now), random_access: true, ..Adapt::default() },
                now / 300,
                &[],
            ),
            _ => mux.more(if n % 2 == 0 { 0x501 } else { 0x601 }),
        }
    }
    let (passed, sink) = index(&mux.out);
    assert_eq!((passed.indexed.program, passed.indexed.oddities.programs), (5, 2));
    assert_eq!(sink.data, mux.out);
    assert_eq!(sink.times()[200], 200 * PACKET_TICKS);
    assert_eq!(passed.indexed.streams.len(), 1);
    assert_eq!(passed.indexed.streams[0].codec, "MPEG-2 video");
    let points = passed.indexed.index.access_points();
    assert!(points.len() > 20 && points.iter().all(|p| p.byte / 188 % 40 == 3), "{points:?}");
}

#[test]
fn index_follows_changed_program_map() {
    let mut mux = Mux::new();
    mux.usual_tables();
    Film { packets: 2000, ..Film::default() }.write(&mut mux);
    mux.pat(&[(1, PMT)]);
    mux.pmt(PMT, 1, 0x200, &[(0x24, 0x200, &[])]);
    for n in 0..2000u64 {
        let now = 77 * HZ + n * HZ / 1000;
        match n % 40 {
            0 => {
                let sets = [0, 0, 1, 0x40, 1, 0, 0, 1, 0x42, 1, 0, 0, 1, 0x44, 1];
                let idr = &[&sets[..], &[0, 0, 1, 0x26, 1, 0xaf, 9, 9, 9, 9, 9, 9]].concat()[..];
                let adapt = Adapt { pcr: Some(now), ..Adapt::default() };
                mux.pes_start(
                    0x200,
                    adapt,
                    now / 300,
                    if n.is_multiple_of(1000) { idr } else { &[0, 0, 1, 2, 1] },
                );
            }
            _ => mux.more(0x200),
        }
    }
    let (passed, sink) = index(&mux.out);
    let odd = passed.indexed.oddities;
    assert_eq!((odd.table_changes, odd.jumps), (1, 1));
    let codecs: Vec<&str> = passed.indexed.streams.iter().map(|s| s.codec.as_str()).collect();
    assert_eq!(codecs, ["H.265", "H.264", "AAC"]);
    let bytes: Vec<u64> = passed.indexed.index.access_points().iter().map(|p| p.byte / 188).collect();
    assert_eq!(bytes, [2, 1002, 2004, 3004]);
    let expected: Vec<u64> = (0..sink.times().len() as u64).map(|n| n * PACKET_TICKS).collect();
    assert_eq!(sink.times(), expected);
}

#[test]
fn streams_without_tables_are_refused() {
    let mut mux = Mux::new();
    (0..1000).for_each(|_| mux.more(VIDEO));
    let error = try_index(&mux.out, &IndexOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no program association table (PAT) in the first 188000 bytes"), "{error}");
    let mut mux = Mux::new();
    mux.pat(&[(1, PMT)]);
    (0..1000).for_each(|_| mux.more(VIDEO));
    let error = try_index(&mux.out, &IndexOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no program map table (PMT)"), "{error}");
}

#[test]
fn index_of_non_transport_stream_is_refused() {
    for (source, word) in
        [(&b""[..], "no transport stream packet"), (b"Good evening.", "no transport stream packet")]
    {
        let error = try_index(source, &IndexOptions::default()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let mostly_garbage = [&usual_film()[..], &vec![0x22; 900_000]].concat();
    match try_index(&mostly_garbage, &IndexOptions::default()).map(|_| ()) {
        Err(StreamError::Damaged { skipped_bytes: 900_000, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn lost_and_scrambled_packets_are_counted() {
    let mut mux = Mux::new();
    mux.usual_tables();
    Film { packets: 1000, ..Film::default() }.write(&mut mux);
    mux.lose(VIDEO, 3);
    mux.lose(AUDIO, 1);
    Film { start: HZ, packets: 1000, ..Film::default() }.write(&mut mux);
    let scrambled = 1500 * 188;
    mux.out[scrambled + 3] |= 0x80;
    mux.out[scrambled + 1] |= 0x80;
    let (passed, _) = index(&mux.out);
    let odd = passed.indexed.oddities;
    assert_eq!((odd.breaks, odd.scrambled, odd.marked_damaged, odd.jumps), (2, 1, 1, 0));
    assert!(odd.first_break / 188 >= 1002 && odd.first_break / 188 < 1005);
}

/// A stream as long as wanted that takes no memory, and a sink that sees how far metadata is behind the data.
struct Endless {
    made: Vec<u8>,
    packets: u64,
    left: u64,
    one: fn(&mut Mux, u64),
    mux: Mux,
}

impl std::io::Read for Endless {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        while self.made.len() < 1 << 20 && self.left > 0 {
            (self.one)(&mut self.mux, self.packets);
            self.packets += 1;
            self.left -= 1;
            self.made.append(&mut self.mux.out);
        }
        let n = room.len().min(self.made.len());
        room[..n].copy_from_slice(&self.made[..n]);
        self.made.drain(..n);
        Ok(n)
    }
}

#[derive(Default)]
struct Behind {
    data: u64,
    meta: u64,
    most: u64,
}

impl IndexSink for Behind {
    const SUMS: bool = false;

    fn data(&mut self, ts: &[u8]) -> Result<(), StoreError> {
        self.data += ts.len() as u64;
        self.most = self.most.max(self.data - self.meta);
        Ok(())
    }

    fn meta(&mut self, packet_bytes: u16, _meta: PacketMeta) -> Result<(), StoreError> {
        self.meta = (self.meta + u64::from(packet_bytes)).min(self.data);
        Ok(())
    }
}

#[test]
fn index_of_huge_stream_uses_bounded_memory() {
    fn clock_that_stops(mux: &mut Mux, n: u64) {
        match n {
            0 => mux.usual_tables(),
            1..4000 if n % 20 == 1 => {
                mux.packet(VIDEO, false, Adapt { pcr: Some(n * HZ / 1000), ..Adapt::default() }, &[1; 184]);
            }
            _ => mux.more(VIDEO),
        }
    }
    fn clock_that_stands(mux: &mut Mux, n: u64) {
        match n {
            0 => mux.usual_tables(),
            _ if n % 20 == 1 => {
                let pcr = Some(n.min(4001) * HZ / 1000);
                mux.packet(VIDEO, false, Adapt { pcr, ..Adapt::default() }, &[1; 184]);
            }
            _ => mux.more(VIDEO),
        }
    }
    fn picture_that_never_shows(mux: &mut Mux, n: u64) {
        match n {
            0 => mux.usual_tables(),
            2000 => mux.pes_start(VIDEO, Adapt::default(), 5, &[]),
            _ if n % 20 == 1 => {
                mux.packet(VIDEO, false, Adapt { pcr: Some(n * HZ / 1000), ..Adapt::default() }, &[]);
            }
            _ => mux.more(0x500),
        }
    }
    let within = 33 << 20;
    for (name, one, bound) in [
        ("a clock that stops", clock_that_stops as fn(&mut Mux, u64), within),
        ("a clock that stands still", clock_that_stands, within),
        ("a picture that never shows", picture_that_never_shows, 3 << 20),
    ] {
        let mut source = Endless { made: vec![], packets: 0, left: 600_000, one, mux: Mux::new() };
        let mut sink = Behind::default();
        let passed = index_only(&mut source, &IndexOptions::default(), &mut sink).unwrap();
        assert!(passed.indexed.bytes > 112_000_000);
        assert!(sink.most <= bound, "{name}: {} bytes wait", sink.most);
    }
    // Without any clock at all it is refused within the same bound.
    fn no_clock(mux: &mut Mux, n: u64) {
        if n.is_multiple_of(1000) { mux.usual_tables() } else { mux.more(VIDEO) }
    }
    let mut source = Endless { made: vec![], packets: 0, left: u64::MAX, one: no_clock, mux: Mux::new() };
    match index_only(&mut source, &IndexOptions::default(), &mut Behind::default()) {
        Err(StreamError::NoClock { bytes, .. }) => assert!(bytes <= within, "{bytes}"),
        other => panic!("{:?}", other.map(|p| p.source_bytes)),
    }
}
