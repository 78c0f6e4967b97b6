use millrace_testkit::mux::{AUDIO, Adapt, Film, HZ, IDR, Mux, PMT, VIDEO, film, usual_film};

use super::*;

const MS: u64 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Packed {
    bytes: Vec<u8>,
    flags: u8,
    time: u64,
}

/// The output for TS packets that arrive one a millisecond, in datagrams of `per_datagram`.
fn packed(packer: &mut LivePacker, ts: &[u8], per_datagram: usize, from_ms: u64) -> Vec<Packed> {
    let mut out = Vec::new();
    for (n, datagram) in (0..).zip(ts.chunks(per_datagram * 188)) {
        let at = Instant((from_ms + n * per_datagram as u64) * MS);
        let mut sink = |packet: LivePacket<'_>| {
            out.push(Packed { bytes: packet.bytes.to_vec(), flags: packet.flags, time: packet.time.0 });
        };
        packer.push(at, datagram, &mut sink).unwrap();
    }
    out
}

fn joins(packed: &[Packed]) -> Vec<&Packed> {
    packed.iter().filter(|packet| packet.flags & PacketMeta::RANDOM_ACCESS != 0).collect()
}

fn pids(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks::<188>().0.iter().map(|packet| TsPacket(packet).pid()).collect()
}

/// The stream without stuffing, and without a table that is the same packet as the one before it of its PID.
fn essence(ts: &[u8]) -> Vec<&TsBytes> {
    let mut last = std::collections::HashMap::new();
    let mut keep = |packet: &TsBytes| {
        let pid = TsPacket(packet).pid();
        let is_table = pid == PID_PAT || pid == PMT;
        pid != PID_NULL && !(is_table && last.insert(pid, *packet) == Some(*packet))
    };
    ts.as_chunks::<188>().0.iter().filter(|packet| keep(packet)).collect()
}

#[test]
fn every_packet_is_kept_whatever_the_datagrams_are() {
    let ts = usual_film();
    for per_datagram in [1, 3, 7, 40] {
        let out = packed(&mut LivePacker::new(Instant(0)), &ts, per_datagram, 0);
        let bytes: Vec<u8> = out.iter().flat_map(|packet| packet.bytes.clone()).collect();
        let kept = essence(&bytes);
        let sent = essence(&ts);
        assert!(kept.len() + 7 > sent.len() && kept[..] == sent[..kept.len()], "{per_datagram}");
        assert!(out.iter().all(|packet| packet.bytes.len() == 1316));
    }
}

#[test]
fn access_points_begin_with_tables_and_key_picture() {
    for indicator in [true, false] {
        let ts = film(&Film { indicator, ..Film::default() });
        let out = packed(&mut LivePacker::new(Instant(0)), &ts, 7, 0);
        let joins = joins(&out);
        assert_eq!(joins.len(), 4, "one a second");
        for join in joins {
            assert_eq!(pids(&join.bytes)[..3], [PID_PAT, PMT, VIDEO]);
            let picture = TsPacket(join.bytes[376..].first_chunk().unwrap());
            assert!(
                picture.starts_unit() && picture.payload().windows(5).any(|w| w == [0, 0, 1, 0x65, 0x88])
            );
        }
    }
}

#[test]
fn times_are_those_of_the_clock_and_never_descend() {
    let out = packed(&mut LivePacker::new(Instant(0)), &usual_film(), 7, 0);
    let times: Vec<u64> = out.iter().map(|packet| packet.time / 90).collect();
    assert!(times.is_sorted());
    for (at, join) in joins(&out).iter().enumerate() {
        assert!((join.time / 90).abs_diff(at as u64 * 1000) < 30, "{at}: {}", join.time);
    }
}

#[test]
fn clock_that_jumps_after_silence_is_marked_once_and_time_goes_on() {
    let mut packer = LivePacker::new(Instant(0));
    packed(&mut packer, &usual_film(), 7, 0);
    let later = film(&Film { start: 77_777 * HZ, ..Film::default() });
    let out = packed(&mut packer, &later, 7, 14_000);
    let marked: Vec<_> = out.iter().filter(|packet| packet.flags & PacketMeta::DISCONTINUITY != 0).collect();
    assert_eq!((marked.len(), packer.discontinuities()), (1, 1));
    let is_marked = |bytes: &TsBytes| TsPacket(bytes).adaptation().is_some_and(|f| f.is_discontinuity());
    let count = |packet: &Packed| packet.bytes.as_chunks().0.iter().filter(|ts| is_marked(ts)).count();
    assert_eq!(out.iter().map(count).sum::<usize>(), 1);
    let first = joins(&out)[0].time / 90;
    assert!((13_990..14_100).contains(&first), "{first}");
}

#[test]
fn withheld_packer_begins_with_a_marked_access_point() {
    let (ts, mut packer) = (usual_film(), LivePacker::new(Instant(0)));
    packer.withhold();
    let (before, after) = ts.split_at(ts.len() / 188 / 7 / 3 * 188 * 7);
    let half_ms = before.len() as u64 / 188;
    assert_eq!(packed(&mut packer, before, 7, 0), [], "nothing is given out");
    packer.resume(Instant(half_ms * MS));
    assert!(!packer.gives());
    let out = packed(&mut packer, after, 7, half_ms);
    assert!(packer.gives());
    assert_eq!(out[0].flags, PacketMeta::RANDOM_ACCESS | PacketMeta::DISCONTINUITY);
    assert_eq!(pids(&out[0].bytes)[..3], [PID_PAT, PMT, VIDEO]);
    let is_marked = |bytes: &&TsBytes| TsPacket(bytes).adaptation().is_some_and(|f| f.is_discontinuity());
    let marked = |packet: &Packed| packet.bytes.as_chunks().0.iter().filter(is_marked).count();
    assert_eq!(out.iter().map(marked).sum::<usize>(), 1, "one mark");
    assert!(out[0].time / 90 >= half_ms, "in the time of its origin");
}

#[test]
fn stream_without_access_points_begins_after_a_while() {
    let mut packer = LivePacker::new(Instant(0));
    packer.withhold();
    packer.resume(Instant(0));
    let mut mux = Mux::new();
    (0..700).for_each(|_| mux.more(VIDEO));
    let out = packed(&mut packer, &mux.out[..188 * 350], 7, MAX_ACCESS_WAIT_NS / MS - 350);
    assert_eq!(out, []);
    let out = packed(&mut packer, &mux.out[188 * 350..], 7, MAX_ACCESS_WAIT_NS / MS);
    assert_eq!((out.len(), out[0].flags), (50, PacketMeta::DISCONTINUITY));
}

#[test]
fn silence_is_marked_although_the_clock_went_on() {
    let mut packer = LivePacker::new(Instant(0));
    packed(&mut packer, &usual_film(), 7, 0);
    let later = film(&Film { start: Film::default().start + 8 * HZ, ..Film::default() });
    let out = packed(&mut packer, &later, 7, 8_000);
    let is_marked = |packet: &&Packed| packet.flags & PacketMeta::DISCONTINUITY != 0;
    assert_eq!((out.iter().filter(is_marked).count(), packer.discontinuities()), (1, 1));
}

#[test]
fn audio_alone_is_joined_at_its_frames() {
    let mut mux = Mux::new();
    mux.pat(&[(1, PMT)]);
    mux.pmt(PMT, 1, AUDIO, &[(0x0f, AUDIO, &[])]);
    for n in 0..40 {
        let adapt = Adapt { pcr: Some(n * 24 * HZ / 1000), ..Adapt::default() };
        mux.pes_start(AUDIO, adapt, n * 24 * 90, &[0xff, 0xf1]);
        (0..23).for_each(|_| mux.more(AUDIO));
    }
    let out = packed(&mut LivePacker::new(Instant(0)), &mux.out, 7, 0);
    let joins = joins(&out);
    assert_eq!(joins.len(), 4, "every quarter of a second");
    assert!(joins.iter().all(|join| pids(&join.bytes)[..3] == [PID_PAT, PMT, AUDIO]));
}

#[test]
fn slow_source_is_flushed_with_stuffing() {
    let mut packer = LivePacker::new(Instant(0));
    let out = packed(&mut packer, &usual_film()[..188 * 5], 5, 0);
    assert_eq!(pids(&out[0].bytes)[..3], [PID_PAT, PMT, PID_NULL], "what is before the access point");
    let deadline = packer.deadline().unwrap();
    let mut padded = Vec::new();
    packer.flush(Instant(deadline.0 - 1), &mut |_| panic!("too early"));
    packer.flush(deadline, &mut |packet| padded.extend_from_slice(packet.bytes));
    assert_eq!(pids(&padded), [PID_PAT, PMT, VIDEO, VIDEO, VIDEO, PID_NULL, PID_NULL]);
    assert_eq!(packer.deadline(), None);
}

#[test]
fn datagrams_of_anything_else_are_refused_whole() {
    let mut packer = LivePacker::new(Instant(0));
    let mut refused = |bytes: &[u8]| packer.push(Instant(0), bytes, &mut |_| panic!("taken")).unwrap_err();
    let ts = usual_film();
    assert_eq!(refused(&[]), NotTs::Garbage);
    assert_eq!(refused(&ts[..187]), NotTs::Garbage);
    assert_eq!(refused(&ts[1..377]), NotTs::Garbage);
    assert_eq!(refused(&[&ts[..188], &[0; 188]].concat()), NotTs::Garbage);
    let rtp = [&[0x80, 33, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1][..], &ts[..1316]].concat();
    assert_eq!(refused(&rtp), NotTs::Rtp);
}

#[test]
fn key_picture_is_found_behind_other_pids() {
    let mut mux = Mux::new();
    mux.usual_tables();
    // The picture's slice comes in the second packet of the video, with audio between.
    mux.pes_start(VIDEO, Adapt { pcr: Some(0), ..Adapt::default() }, 0, &[]);
    (0..5).for_each(|_| mux.more(AUDIO));
    mux.packet(VIDEO, false, Adapt::default(), IDR);
    (0..20).for_each(|_| mux.more(VIDEO));
    let out = packed(&mut LivePacker::new(Instant(0)), &mux.out, 7, 0);
    assert_eq!(joins(&out).len(), 1);
    assert_eq!(pids(&joins(&out)[0].bytes)[..4], [PID_PAT, PMT, VIDEO, AUDIO]);
}
