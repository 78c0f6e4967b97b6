use std::ops::Range;

use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_store::index::{IndexParts, LayoutStream, RandomAccessPoint, TimeBase, TitleIndex};
use proptest::prelude::*;

use super::first_pictures::Captions;
use super::master::{Beside, StreamAttributes, rates};
use super::playlist::{self, PlaylistContents, target_s};
use super::segments::{MediaSegment, Segments, segments, settled};

const PACKET: u64 = 1316;

/// A title with these access points and jumps of its time stamps, in packets, of a constant rate.
fn index(packets: u64, packet_ticks: u64, access: &[u64], jumps: &[u64]) -> TitleIndex {
    let time = |packet: u64| MediaTicks(packet * packet_ticks);
    let point = |&packet: &u64| RandomAccessPoint {
        packet: packet as u32,
        time: time(packet),
        byte: packet * PACKET + 188 * (packet % 7),
    };
    let base = |&packet: &u64| TimeBase { byte: packet * PACKET, time: time(packet), first_pts: packet };
    let bases = [0].iter().chain(jumps).map(base).collect();
    TitleIndex::from_parts(IndexParts {
        access: access.iter().map(point).collect(),
        times: (0..packets.div_ceil(256)).map(|n| time(n * 256)).collect(),
        data_bytes: packets * PACKET,
        duration: time(packets),
        bases,
        end: Some(time(packets + 3)),
        ..IndexParts::default()
    })
    .unwrap()
}

/// 100 packets a second, with an access point every `gop` packets.
fn regular(seconds: u64, gop: u64) -> TitleIndex {
    let access: Vec<u64> = (0..seconds * 100).step_by(gop as usize).collect();
    index(seconds * 100, MEDIA_HZ / 100, &access, &[])
}

fn lengths(found: &Segments) -> Vec<u64> {
    found.list.iter().map(|segment| (segment.duration.0 + MEDIA_HZ / 2) / MEDIA_HZ).collect()
}

#[test]
fn cuts_are_near_the_target_and_at_access_points() {
    for (seconds, gop, expected) in [
        (20, 200, vec![6, 6, 6, 2]),
        (20, 500, vec![5, 5, 5, 5]),
        (20, 400, vec![4, 4, 4, 4, 4]),
        (30, 1000, vec![10, 10, 10]),
        (13, 100, vec![6, 6, 1]),
        (20, 3000, vec![20]),
        (1, 50, vec![1]),
    ] {
        let found = segments(&regular(seconds, gop));
        assert_eq!(lengths(&found), expected, "{seconds} s, {gop}");
        assert!(found.are_independent);
    }
    // A picture at a scene's cut just behind the beginning is no place to end a segment.
    let found = segments(&index(2000, MEDIA_HZ / 100, &[0, 10, 1200, 1210], &[]));
    assert_eq!(lengths(&found), [12, 8]);
    // Without access points any place will do, and the result reports it.
    let found = segments(&index(2000, MEDIA_HZ / 100, &[], &[]));
    assert_eq!((lengths(&found), found.are_independent), (vec![6, 6, 6, 2], false));
}

#[test]
fn settled_segments_of_title_that_grows_are_those_of_the_whole() {
    let irregular = [0, 10, 180, 590, 640, 1190, 1700, 1790, 1830, 2900, 2950, 3700, 3740];
    let patterns: [(Vec<u64>, &[u64]); 4] = [
        ((0..4000).step_by(100).collect(), &[]),
        ((0..4000).step_by(270).collect(), &[]),
        ((0..4000).step_by(50).collect(), &[730, 1400, 1410]),
        (irregular.to_vec(), &[2000]),
    ];
    for (access, jumps) in patterns {
        let up_to = |packets: u64, all: &[u64]| -> Vec<u64> {
            all.iter().copied().filter(|&packet| packet < packets).collect()
        };
        let whole = segments(&index(4000, MEDIA_HZ / 100, &access, jumps));
        let mut most = 0;
        for packets in (100..4000).step_by(7) {
            let (access, jumps) = (up_to(packets, &access), up_to(packets, jumps));
            let grown = index(packets, MEDIA_HZ / 100, &access, &jumps);
            let found = segments(&grown);
            let count = settled(&grown, &found);
            assert!(count >= most, "{packets}: none is taken away");
            assert_eq!(found.list[..count], whole.list[..count], "{packets} of {access:?}, {jumps:?}");
            most = count;
        }
        assert!(most + 3 >= whole.list.len(), "{most} of {}", whole.list.len());
    }
}

#[test]
fn jumps_of_the_time_stamps_are_cuts() {
    let access: Vec<u64> = (0..2000).step_by(100).collect();
    let found = segments(&index(2000, MEDIA_HZ / 100, &access, &[750, 1400]));
    assert_eq!(lengths(&found), [6, 1, 6, 1, 6]);
    let marked: Vec<_> = found.list.iter().map(|segment| segment.is_discontinuous).collect();
    assert_eq!(marked, [false, false, true, false, true]);
    assert_eq!(found.list[2].bytes.start, 750 * PACKET);
    let text = write(&found, true);
    assert_eq!(text.matches("#EXT-X-DISCONTINUITY\n").count(), 2);
    assert!(text.contains("hls/1.ts\n#EXT-X-DISCONTINUITY\n#EXTINF:"), "{text}");
}

fn stream(packet: u64, pid: u16, config: u32, language: &str) -> LayoutStream {
    LayoutStream {
        byte: packet * PACKET,
        pid,
        codec: "AAC".to_owned(),
        language: Some(language.to_owned()),
        config,
        ..LayoutStream::default()
    }
}

#[test]
fn segments_of_changing_streams_begin_at_the_access_point_behind_the_change() {
    let access: Vec<u64> = (0..2000).step_by(100).collect();
    let with = |jumps: &[u64], layouts: Vec<LayoutStream>| {
        let parts = index(2000, MEDIA_HZ / 100, &access, jumps).parts().clone();
        segments(&TitleIndex::from_parts(IndexParts { layouts, ..parts }).unwrap())
    };
    let layouts = vec![
        stream(0, 1, 0, "eng"),
        stream(300, 1, 7, "deu"),
        stream(750, 1, 8, "deu"),
        stream(900, 2, 8, "deu"),
        stream(1950, 3, 8, "deu"),
    ];
    let found = with(&[], layouts.clone());
    let parts = |found: &Segments| {
        let all = found.list.iter().filter(|segment| segment.is_discontinuous);
        all.map(|s| (s.bytes.start / PACKET, s.is_jump, s.layout)).collect::<Vec<_>>()
    };
    assert_eq!(
        parts(&found),
        [(800, false, 2), (900, false, 3)],
        "neither the language nor what becomes known"
    );
    assert_eq!(found.list[0].layout, 0);
    // After a jump nothing can be decoded before the first access point, whose layout applies.
    assert_eq!(parts(&with(&[740], layouts)), [(740, true, 2), (900, false, 3)]);
}

fn write(found: &Segments, is_whole: bool) -> String {
    let source = PlaylistContents {
        segments: &found.list,
        first: 0,
        discontinuities: 0,
        target_s: target_s(&found.list),
        is_whole,
        are_independent: found.are_independent,
        maps: &[],
        are_pictures: false,
        began_unix_ms: None,
    };
    playlist::write(&source, |number| format!("hls/{number}.ts"))
}

#[test]
fn media_playlist_has_exact_text() {
    let found = segments(&regular(13, 200));
    assert_eq!(
        write(&found, true),
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-INDEPENDENT-SEGMENTS\n#EXT-X-PLAYLIST-TYPE:VOD\n#EXT-X-TARGETDURATION:6\n\
         #EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:6.007133,\nhls/0.ts\n#EXTINF:5.997144,\nhls/1.ts\n#EXTINF:0.995722,\nhls/2.ts\n\
         #EXT-X-ENDLIST\n"
    );
}

/// The same writer lists a window whose ends move.
#[test]
fn playlist_of_moving_window_lists_sequence_numbers() {
    let found =
        segments(&index(4000, MEDIA_HZ / 100, &(0..4000).step_by(100).collect::<Vec<_>>(), &[1000, 2000]));
    let source = PlaylistContents {
        segments: &found.list[2..5],
        first: 2,
        discontinuities: 1,
        target_s: target_s(&found.list),
        is_whole: false,
        began_unix_ms: None,
        are_independent: true,
        maps: &[],
        are_pictures: false,
    };
    let text = playlist::write(&source, |number| format!("{number}.ts"));
    let parsed = m3u8_rs::parse_media_playlist_res(text.as_bytes()).unwrap();
    assert_eq!((parsed.media_sequence, parsed.discontinuity_sequence, parsed.end_list), (2, 1, false));
    assert_eq!(parsed.playlist_type, None);
    let listed: Vec<_> =
        parsed.segments.iter().map(|segment| (&segment.uri[..], segment.discontinuity)).collect();
    assert_eq!(listed, [("2.ts", false), ("3.ts", false), ("4.ts", true)]);
}

#[test]
fn rates_are_those_of_the_segments() {
    let segment = |bytes: Range<u64>, seconds: u64| MediaSegment {
        bytes,
        at: MediaTicks(0),
        duration: MediaTicks(seconds * MEDIA_HZ),
        is_discontinuous: false,
        is_jump: false,
        layout: 0,
        tables: 0,
    };
    let list = [
        segment(0..6_000, 6),
        segment(6_000..36_000, 6),
        segment(36_000..42_000, 6),
        segment(42_000..52_000, 1),
    ];
    // 30,000 bytes in 6 s are the most; the last one is too short to count, with the one before it is 16,000 in 7 s.
    let found = rates(&list, 6, 0);
    assert_eq!((found.peak, found.mean), (40_000, (52_000u64 * 8).div_ceil(19)));
    assert_eq!(rates(&list, 6, 376).peak, (30_376u64 * 8).div_ceil(6));
    // Nothing but a short one.
    assert_eq!(rates(&list[3..], 1, 0).peak, 80_000);
    assert_eq!(rates(&[segment(0..1000, 0)], 1, 0).peak, u64::from(1000u32) * 8 * MEDIA_HZ);
    assert_eq!(rates(&[], 1, 0), super::master::Rates::default());
}

#[test]
fn master_playlist_lists_known_attributes_only() {
    let rates = super::master::Rates { peak: 5_000_000, mean: 4_000_000 };
    let known = StreamAttributes {
        codecs: Some("avc1.64001f,mp4a.40.2".to_owned()),
        resolution: Some((1280, 720)),
        frame_rate: Some(29_970),
        video_range: Some("PQ"),
    };
    let variants = [
        super::master::Variant {
            address: "media.m3u8".to_owned(),
            rates,
            streams: known,
            audio: None,
            subtitles: None,
            captions: None,
        },
        super::master::Variant {
            address: "../film@540p/media.m3u8".to_owned(),
            rates,
            streams: StreamAttributes::default(),
            audio: None,
            subtitles: None,
            captions: None,
        },
    ];
    let text = super::master::write(3, &variants, Beside::default(), true);
    let parsed = m3u8_rs::parse_master_playlist_res(text.as_bytes()).unwrap();
    assert!(parsed.independent_segments);
    let [first, second] = &parsed.variants[..] else { panic!("{text}") };
    assert_eq!((first.bandwidth, first.average_bandwidth), (5_000_000, Some(4_000_000)));
    assert_eq!(first.codecs.as_deref(), Some("avc1.64001f,mp4a.40.2"));
    assert_eq!(first.resolution.map(|r| (r.width, r.height)), Some((1280, 720)));
    assert_eq!(first.frame_rate, Some(29.97));
    assert!(text.contains(",FRAME-RATE=29.970,VIDEO-RANGE=PQ\n"), "{text}");
    assert_eq!(
        (&second.uri[..], &second.codecs, second.resolution),
        ("../film@540p/media.m3u8", &None, None)
    );
}

/// A master playlist with one variant for each of these captions.
fn with_captions(captions: &[Option<Captions>]) -> String {
    let variant = |&captions: &Option<Captions>| super::master::Variant {
        address: "media.m3u8".to_owned(),
        rates: super::master::Rates::default(),
        streams: StreamAttributes::default(),
        audio: None,
        subtitles: None,
        captions,
    };
    super::master::write(3, &captions.iter().map(variant).collect::<Vec<_>>(), Beside::default(), false)
}

#[test]
fn master_playlist_with_captions_announces_each_or_none() {
    let carried = |data: &[u8]| {
        let mut found = Captions::default();
        let bytes = [&[0, 0, 1, 0xb2][..], b"GA94\x03", data].concat();
        found.look(&crate::elementary::Elementary { bytes, ..Default::default() }, "MPEG-2 video");
        Some(found)
    };
    let text = with_captions(&[carried(&[0x41, 0xff, 0xfc, 0x94, 0x20]), Some(Captions::default())]);
    let tag = "#EXT-X-MEDIA:TYPE=CLOSED-CAPTIONS,GROUP-ID=\"captions\",NAME=\"CC1\",DEFAULT=NO,AUTOSELECT=YES,INSTREAM-ID=\"CC1\"\n";
    assert!(text.starts_with("#EXTM3U\n#EXT-X-VERSION:3\n") && text.contains(tag), "{text}");
    assert_eq!(text.matches(",CLOSED-CAPTIONS=\"captions\"\n").count(), 1, "{text}");
    // If one variant has captions, no variant may state that there are none.
    assert!(!text.contains("NONE"), "{text}");
    let text = with_captions(&[carried(&[0x43, 0xff, 0xff, 0x02, 0x22, 0xfe, 0x41, 0x42])]);
    assert!(
        text.starts_with("#EXTM3U\n#EXT-X-VERSION:7\n") && text.contains("INSTREAM-ID=\"SERVICE1\""),
        "{text}"
    );
    assert!(with_captions(&[Some(Captions::default())]).contains(",CLOSED-CAPTIONS=NONE\n"));
    assert!(!with_captions(&[None]).contains("CAPTIONS"), "what cannot be looked at");
}

proptest! {
    /// For any index: the segments are the title, each byte once and in order, they begin at whole
    /// packets, their lengths add up to the title's length, none is longer than the target, and
    /// another reader understands the playlist.
    #[test]
    fn segments_are_the_title(
        packets in 1u64..6000,
        packet_ticks in 1u64..4000,
        access in proptest::collection::btree_set(0u64..6000, 0..80),
        jumps in proptest::collection::btree_set(1u64..6000, 0..6),
    ) {
        let access: Vec<u64> = access.into_iter().filter(|packet| packet + 1 < packets).collect();
        let jumps: Vec<u64> = jumps.into_iter().filter(|&packet| packet < packets).collect();
        let index = index(packets, packet_ticks, &access, &jumps);
        let found = segments(&index);
        prop_assert_eq!(found.list[0].bytes.start, 0);
        prop_assert_eq!(found.list.last().unwrap().bytes.end, index.data_bytes());
        prop_assert!(found.list.windows(2).all(|pair| pair[0].bytes.end == pair[1].bytes.start));
        prop_assert!(found.list.iter().all(|s| s.bytes.start < s.bytes.end && s.bytes.start % 188 == 0 && s.tables <= s.bytes.start));
        let all: u64 = found.list.iter().map(|segment| segment.duration.0).sum();
        prop_assert_eq!(all, index.duration().0);
        prop_assert_eq!(found.list.iter().filter(|segment| segment.is_discontinuous).count(), jumps.len());
        // Where nothing else asks for it, no segment is short, and each begins at an access point.
        let points: Vec<u64> = index.access_points().iter().map(|point| point.byte).collect();
        for pair in found.list.windows(2).filter(|pair| !pair[1].is_discontinuous) {
            prop_assert!(pair[0].duration.0 >= 2 * MEDIA_HZ);
            prop_assert!(points.is_empty() || points.contains(&pair[1].bytes.start));
        }

        let text = write(&found, true);
        let parsed = m3u8_rs::parse_media_playlist_res(text.as_bytes()).unwrap();
        prop_assert_eq!(parsed.segments.len(), found.list.len());
        prop_assert!(parsed.end_list && parsed.unknown_tags.is_empty());
        prop_assert!(parsed.segments.iter().all(|segment| segment.duration.round() as u64 <= parsed.target_duration));
        let sum: f64 = parsed.segments.iter().map(|segment| f64::from(segment.duration)).sum();
        prop_assert!((sum - index.duration().as_secs_f64()).abs() < 1e-4 * found.list.len() as f64 + sum * 1e-6);
        let found_rates = rates(&found.list, target_s(&found.list), 376);
        prop_assert!(found_rates.mean <= found_rates.peak);
    }
}
