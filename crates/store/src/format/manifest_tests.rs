use millrace_core::ids::TitleId;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_media::codec::StreamRole;
use proptest::prelude::*;

use super::*;
use crate::volume::{ElementaryStream, Origin, SourceIdentity};

fn manifest(bytes: u64, sizes: &[u16]) -> Manifest {
    let blake3 = blake3::hash(b"film").to_hex().to_string();
    let packets = bytes.div_ceil(1316) as u32;
    let title = TitleInfo {
        id: TitleId([0xab; 16]),
        name: "big-buck-bunny".to_owned(),
        bytes,
        packets,
        packet_sizes: sizes.to_vec(),
        duration: MediaTicks(90_000 * 600),
        mean_rate: BitRate(2_000_000),
        peak_rate: BitRate(5_000_000),
        constant_rate: false,
        streams: vec![ElementaryStream {
            pid: 0x100,
            stream_type: 0x1b,
            codec: "H.264".to_owned(),
            language: None,
            role: None,
        }],
        timeline: Timeline { ssrc: u32::MAX, timestamp_base: 0 },
        source: SourceIdentity {
            path: PathBuf::from("/films/Big Buck Bunny.mkv"),
            bytes: u64::MAX,
            modified_unix_ns: u64::MAX,
        },
        added_unix_s: 1_790_000_000,
        blake3: blake3.clone(),
        notes: vec!["audio: AC-4 → AAC".to_owned()],
        derived: None,
        rendition: None,
        title: None,
        origin: Origin::default(),
        subtitles: Vec::new(),
        source_start: 0,
        chapters: Vec::new(),
        began_unix_ms: None,
    };
    let placement = Placement::new(Uuid([1; 16]), &[Uuid([2; 16])], Geometry::SINGLE, bytes);
    let files = Manifest::expected_files(&title, &Geometry::SINGLE)
        .into_iter()
        .map(|name| FileEntry {
            bytes: if name == DATA_FILE { bytes } else { 4096 },
            name,
            blake3: blake3.clone(),
        })
        .collect();
    Manifest { title, placement, files }
}

fn sample() -> Manifest {
    manifest(188 * 1000, &[1316, 9024])
}

#[test]
fn round_trip_and_the_body_is_readable() {
    let file = sample().encode();
    assert_eq!(Manifest::decode(&file), Ok(sample()));
    let text = std::str::from_utf8(&file[frame::FRAME_BYTES..]).unwrap();
    assert!(text.contains("\"name\": \"big-buck-bunny\"") && text.contains("\"rows\": 8"), "{text}");
    assert!(text.contains(&"ab".repeat(16)), "ids are written as people see them: {text}");
}

#[test]
fn manifest_with_non_utf8_source_path_round_trips() {
    let mut manifest = sample();
    manifest.title.source.path = PathBuf::from(OsString::from_vec(b"/films/\xff\xfe.ts".to_vec()));
    assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
}

#[test]
fn stream_without_role_is_read_and_written_as_before() {
    let mut manifest = sample();
    let text =
        |manifest: &Manifest| String::from_utf8(manifest.encode()[frame::FRAME_BYTES..].to_vec()).unwrap();
    assert!(!text(&manifest).contains("role"), "{}", text(&manifest));
    manifest.title.streams[0].role = Some(StreamRole::AudioDescription);
    assert!(text(&manifest).contains("\"role\": \"audio-description\""), "{}", text(&manifest));
    assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
}

#[test]
fn decode_of_flipped_byte_or_truncated_manifest_fails() {
    let file = sample().encode();
    for at in 0..file.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = file.clone();
            damaged[at] ^= flip;
            assert!(Manifest::decode(&damaged).is_err(), "byte {at} ^ {flip:#x}");
        }
    }
    for len in 0..file.len() {
        assert!(Manifest::decode(&file[..len]).is_err(), "cut to {len}");
    }
}

/// Changes a good manifest and expects the change to be refused with these words.
fn refused(words: &str, change: impl FnOnce(&mut Manifest)) {
    let mut manifest = sample();
    change(&mut manifest);
    let error = Manifest::decode(&manifest.encode()).unwrap_err().to_string();
    assert!(error.contains(words), "wanted \"{words}\", got \"{error}\"");
}

#[test]
fn contradictions_are_refused_by_name() {
    refused("manifest: name is", |m| m.title.name = "../x".to_owned());
    refused("manifest: name is", |m| m.title.name = "0123456789abcdef0123456789abcdef".to_owned());
    refused("manifest: bytes is 0", |m| m.title.bytes = 0);
    refused("manifest: bytes is 189", |m| m.title.bytes = 189);
    refused("manifest: packets is 7", |m| m.title.packets = 7);
    refused("manifest: packet sizes is [9024]", |m| m.title.packet_sizes = vec![9024]);
    refused("manifest: packet sizes", |m| m.title.packet_sizes = vec![9024, 1316]);
    refused("manifest: packet sizes", |m| m.title.packet_sizes = vec![1316, 1317]);
    refused("manifest: duration", |m| m.title.duration = MediaTicks(1 << 40));
    refused("manifest: blake3", |m| m.title.blake3 = "AB".repeat(32));
    refused("manifest: blake3 of data.ts", |m| m.title.blake3 = "ab".repeat(32));
    refused("manifest: rows is 1", |m| m.placement.stripes = 1);
    refused("manifest: data units k is 0", |m| m.placement.k = 0);
    refused("manifest: unit packets U is 21", |m| m.placement.unit_packets = 21);
    refused("manifest: members is 0", |m| m.placement.members.clear());
    refused("manifest: member index is 3", |m| m.placement.members[0].index = 3);
    refused("manifest: files", |m| m.files.truncate(2));
    refused("manifest: files", |m| m.files[0].name = "/etc/passwd".to_owned());
    refused("manifest: file blake3", |m| m.files[1].blake3.clear());
    refused("manifest: bytes of data.ts", |m| m.files[0].bytes = 188);
}

#[test]
fn decode_of_non_manifest_body_returns_error() {
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    for body in [&b""[..], b"{}", b"null", b"{\"title\":1}", &[0xff, 0xfe], &deep] {
        let error = Manifest::decode(&frame::seal_file(FileKind::Manifest, body)).unwrap_err();
        assert!(error.to_string().contains("not a manifest"), "{error}");
    }
}

/// The sample as it lies on several members, or on one with parity.
fn in_stripes(members: usize, tolerance: usize, network: usize) -> Manifest {
    let mut manifest = sample();
    let geometry = Geometry::choose(members, tolerance, network).unwrap();
    let uuids: Vec<Uuid> = (0..members).map(|i| Uuid([i as u8; 16])).collect();
    let blake3 = manifest.title.blake3.clone();
    manifest.placement = Placement::new(Uuid([1; 16]), &uuids, geometry, manifest.title.bytes);
    let stripes = manifest.stripes().unwrap();
    let entry = |name: &str, bytes| FileEntry { name: name.to_owned(), bytes, blake3: blake3.clone() };
    let bytes = |name: &str| match name {
        DATA_FILE => manifest.title.bytes,
        PARITY_UNITS_FILE => stripes.parity_file_bytes(0),
        _ => 4096,
    };
    let names = Manifest::expected_files(&manifest.title, &geometry);
    manifest.files = names.iter().map(|name| entry(name, bytes(name))).collect();
    if members > 1 {
        for (position, member) in manifest.placement.members.iter_mut().enumerate() {
            member.files.push(entry(DATA_UNITS_FILE, stripes.data_file_bytes(position)));
            if geometry.m > 0 {
                member.files.push(entry(PARITY_UNITS_FILE, stripes.parity_file_bytes(position)));
            }
        }
    }
    manifest
}

#[test]
fn titles_in_rows_name_the_files_of_each_member() {
    for (members, tolerance, network) in [(1, 0, 2), (2, 1, 0), (3, 1, 0), (5, 2, 0), (3, 0, 0)] {
        let manifest = in_stripes(members, tolerance, network);
        let file = manifest.encode();
        assert_eq!(Manifest::decode(&file), Ok(manifest.clone()));
        assert_eq!(frame::peek(&file).unwrap().version, 3, "older programs must not read it");
        let units: u64 = manifest.placement.members.iter().map(|member| member.units).sum();
        // 143 packets: fewer units than whole stripes have only if the title ends before the stripe.
        let geometry = manifest.placement.geometry();
        let data = u64::from(manifest.title.packets.div_ceil(geometry.unit_packets));
        assert_eq!(units, data + manifest.placement.stripes * u64::from(geometry.m), "{geometry:?}");
        let names: Vec<&str> = manifest.files_on(0).iter().map(|file| file.name.as_str()).collect();
        assert!(names.is_sorted() && names.contains(&INDEX_FILE), "{names:?}");
        assert_eq!(names.contains(&DATA_FILE), members == 1, "{names:?}");
        assert_eq!(names.contains(&PARITY_META_FILE), geometry.m > 0, "{names:?}");
    }
    assert_eq!(
        frame::peek(&sample().encode()).unwrap().version,
        2,
        "older programs read what they can serve"
    );
}

#[test]
fn contradictions_between_rows_and_files_are_refused() {
    let refused = |words: &str, change: fn(&mut Manifest)| {
        let mut manifest = in_stripes(3, 1, 0);
        change(&mut manifest);
        let error = Manifest::decode(&manifest.encode()).unwrap_err().to_string();
        assert!(error.contains(words), "wanted \"{words}\", got \"{error}\"");
    };
    refused("manifest: members is 3", |m| m.placement.k = 5);
    refused("manifest: bytes is", |m| m.placement.members.truncate(2));
    refused("manifest: bytes is", |m| m.placement.members[1].files[0].bytes += 1316);
    refused("manifest: bytes is", |m| m.placement.members[2].files[1].bytes -= 1);
    refused("manifest: files", |m| m.placement.members[0].files.truncate(1));
    refused("manifest: files", |m| m.placement.members[0].files.clear());
    refused("manifest: file blake3", |m| m.placement.members[0].files[0].blake3.clear());
    refused("manifest: files", |m| m.files.retain(|f| f.name != PARITY_META_FILE));
    refused("manifest: files", |m| m.files[0].name = DATA_FILE.to_owned());
}

#[test]
fn rows_of_a_later_version_are_decoded_but_not_supported() {
    let mut manifest = sample();
    let geometry = Geometry { k: 80, m: 0, unit_packets: 10, members: 80 };
    let uuids: Vec<Uuid> = (0..80).map(|i| Uuid([i as u8; 16])).collect();
    manifest.placement = Placement::new(Uuid([1; 16]), &uuids, geometry, manifest.title.bytes);
    manifest.files.retain(|file| file.name != DATA_FILE);
    for member in &mut manifest.placement.members {
        let blake3 = manifest.title.blake3.clone();
        member.files.push(FileEntry { name: DATA_UNITS_FILE.to_owned(), bytes: 1316, blake3 });
    }
    let decoded = Manifest::decode(&manifest.encode()).unwrap();
    assert_eq!(decoded, manifest);
    let error = decoded.placement.geometry().check_supported("manifest").unwrap_err();
    assert!(matches!(error, FormatError::Unsupported { found: 80, .. }), "{error}");
}

proptest! {
    #[test]
    fn manifest_with_arbitrary_title_round_trips(ts_packets in 1u64..1_000_000, sizes in proptest::collection::btree_set(1u16..=48, 0..6),
                          notes in proptest::collection::vec(".*", 0..4), rate: u64, time in 0u64..1 << 40,
                          path in "(/.{1,9}){1,5}") {
        let mut sizes: Vec<u16> = sizes.into_iter().map(|n| n * 188).chain([1316]).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut manifest = manifest(ts_packets * 188, &sizes);
        manifest.title.notes = notes;
        manifest.title.peak_rate = BitRate(rate);
        manifest.title.duration = MediaTicks(time);
        manifest.title.source.path = PathBuf::from(path);
        prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
    }
}
