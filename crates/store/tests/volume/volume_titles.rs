//! Titles come in whole, are found by every process, and go.

use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_store::StoreError;
use millrace_store::check::{Depth, check_store};
use millrace_store::format::crc32c;
use millrace_store::format::frame::{self, FRAME_BYTES, FileKind};
use millrace_store::format::manifest::{Manifest, SUMS_FILE};
use millrace_store::sums::congruent;
use millrace_store::volume::{TitleFiles, TitleInfo, TitleWriter, Volume};
use millrace_testkit::titles::{Film, SIZE, source, tree};

fn metas(files: &TitleFiles) -> Vec<PacketMeta> {
    let mut metas = vec![PacketMeta::default(); files.packets() as usize];
    files.read_metas(0, &mut metas).unwrap();
    metas
}

/// Holds every packet of an open title against the title: bytes, sum, flags, time.
fn assert_is(files: &TitleFiles, film: &Film, size: u16) {
    let mut data = vec![0; film.bytes.len()];
    files.data.read_exact_at(&mut data, 0).unwrap();
    assert!(data == film.bytes);
    let metas = metas(files);
    assert_eq!(metas.len() as u32, film.packets(size));
    for (packet, payload) in film.bytes.chunks(usize::from(size)).enumerate() {
        let expected = film.meta(size, packet as u32);
        let expected = PacketMeta::new(sum16(payload), expected.flags(), expected.time());
        assert_eq!(metas[packet], expected, "packet {packet} of size {size}");
        assert_eq!(files.packet_bytes_at(packet as u32), payload.len());
    }
    assert_eq!(files.packet_bytes_at(metas.len() as u32), 0);
}

/// Makes of a title one of an older version, which has no range sums.
fn forget_sums(store: &std::path::Path, info: &TitleInfo) {
    let path = store.join(format!("titles/{}/manifest.mrm", info.id));
    let mut manifest = Manifest::decode(&std::fs::read(&path).unwrap()).unwrap();
    manifest.files.retain(|file| file.name != SUMS_FILE);
    std::fs::remove_file(path.with_file_name(SUMS_FILE)).unwrap();
    let body = &manifest.encode()[FRAME_BYTES..];
    let mut frame = frame::seal(FileKind::Manifest, body);
    frame[12] = 1;
    let crc = crc32c(&frame[..60]);
    frame[60..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(path, [&frame, body].concat()).unwrap();
}

/// Gives the directory of titles another modification time.
fn touch_titles(store: &std::path::Path, time: SystemTime) {
    std::fs::File::open(store.join("titles")).unwrap().set_modified(time).unwrap();
}

#[test]
fn titles_are_listed_again_when_one_may_have_come_or_gone() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let first = Film::new(7, 1).add(&volume, "first");
    let long_ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
    touch_titles(dir.path(), long_ago(100));
    let as_of = volume.listing().unwrap().as_of.expect("nothing has changed for long");
    assert!(volume.listing_since(Some(&as_of)).unwrap().is_none());
    // Another process adds one.
    let other = Volume::open(dir.path()).unwrap();
    Film::new(7, 2).add(&other, "second");
    let listing = volume.listing_since(Some(&as_of)).unwrap().expect("another title");
    assert_eq!(listing.titles.len(), 2);
    // A third might come without another modification time, if the file system counts in steps.
    assert!(listing.as_of.is_none());
    assert!(volume.listing_since(None).unwrap().is_some());
    // One goes.
    touch_titles(dir.path(), long_ago(50));
    let as_of = volume.listing().unwrap().as_of.unwrap();
    other.remove(first.id).unwrap();
    assert_eq!(volume.listing_since(Some(&as_of)).unwrap().unwrap().titles.len(), 1);
    // One that cannot be read may become readable at any time.
    touch_titles(dir.path(), long_ago(20));
    let manifest = dir.path().join(format!("titles/{}/manifest.mrm", other.titles().unwrap()[0].id));
    let whole = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, "no manifest").unwrap();
    let listing = volume.listing().unwrap();
    assert_eq!((listing.unreadable.len(), listing.as_of.is_none()), (1, true));
    std::fs::write(&manifest, whole).unwrap();
    assert_eq!(volume.listing().unwrap().titles.len(), 1);
}

#[test]
fn stored_title_reads_back_unchanged_in_all_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(40_003, 1); // 7.5 MB: several writes, a short last packet, many metadata blocks
    let sizes = [188, SIZE, 188 * 5, 188 * 48];
    let info = film.add_sizes(&volume, "A Film", &sizes);
    assert_eq!(info.name, "a-film");
    assert_eq!(info.packet_sizes, [188, 940, 1316, 9024]);
    assert_eq!(info.blake3, blake3::hash(&film.bytes).to_hex().to_string());
    assert_eq!((info.bytes, info.packets), (film.bytes.len() as u64, film.packets(SIZE)));
    for size in sizes {
        let files = volume.open_title(info.id, usize::from(size)).unwrap();
        assert_is(&files, &film, size);
        assert_eq!(*files.info, info);
        assert_eq!(files.index.access_points(), film.index().access_points());
        assert_eq!(files.extents(), files.packets().div_ceil(files.layout.packets_per_extent()));
    }
    assert!(volume.open_title(info.id, 376).unwrap().derived.is_some(), "from the range sums");
    forget_sums(dir.path(), &info);
    let error = volume.open_title(info.id, 376).unwrap_err();
    assert!(matches!(error, StoreError::NoPacketSize { packet_bytes: 376, .. }), "{error}");
    let error = volume.open_title(info.id, 1300).unwrap_err();
    assert!(matches!(error, StoreError::BadPacketSize { packet_bytes: 1300 }), "{error}");
}

#[test]
fn push_meta_before_or_after_write_data_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(700, 2);
    let mut writer = TitleWriter::begin(&volume, &[SIZE]).unwrap();
    for packet in 0..50 {
        // A wrong sum does no harm: the writer's own counts.
        let meta = film.meta(SIZE, packet);
        writer.push_meta(SIZE, PacketMeta::new(0xdead, meta.flags(), meta.time())).unwrap();
    }
    writer.write_data(&film.bytes).unwrap();
    (50..film.packets(SIZE)).for_each(|packet| writer.push_meta(SIZE, film.meta(SIZE, packet)).unwrap());
    let info = writer.commit(film.finish("x")).unwrap();
    assert_is(&volume.open_title(info.id, 1316).unwrap(), &film, SIZE);
}

#[test]
fn titles_are_found_by_name_id_and_source() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(20, 3);
    assert_eq!(volume.titles().unwrap(), []);
    let b = film.add(&volume, "b");
    let a = film.add(&volume, "a");
    assert_eq!(volume.titles().unwrap(), [a.clone(), b.clone()]);
    assert_eq!(volume.find("a").unwrap(), Some(a.clone()));
    assert_eq!(volume.find(&b.id.to_string()).unwrap(), Some(b.clone()));
    assert_eq!(volume.find("c").unwrap(), None);
    assert_eq!(volume.find("").unwrap(), None);
    assert_eq!(volume.find(&"0".repeat(32)).unwrap(), None);
    assert_eq!(volume.find_source(&source("a")).unwrap(), Some(a));
    let mut changed = source("b");
    changed.modified_unix_ns -= 1;
    assert_eq!(volume.find_source(&changed).unwrap(), None);
    assert_ne!(b.timeline.ssrc, 0, "random at ingest");
}

#[test]
fn title_name_added_concurrently_gets_unique_number() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    // Two volumes are two processes to each other: own connections, own locks.
    let names: Vec<String> = std::thread::scope(|scope| {
        let add = || {
            let volume = Volume::open(dir.path()).unwrap();
            let film = Film::new(20, 4);
            (0..5).map(|_| film.add(&volume, "Same Name").name).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(add)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    let mut expected: Vec<String> = (2..=15).map(|n| format!("same-name-{n}")).collect();
    expected.push("same-name".to_owned());
    let (mut names, mut listed) =
        (names, volume.titles().unwrap().into_iter().map(|t| t.name).collect::<Vec<_>>());
    expected.sort();
    names.sort();
    listed.sort();
    assert_eq!(names, expected);
    assert_eq!(listed, expected);
}

#[test]
fn volume_sees_titles_changed_by_other_process() {
    let dir = tempfile::tempdir().unwrap();
    let here = Volume::open_or_create(dir.path()).unwrap();
    let there = Volume::open(dir.path()).unwrap();
    let film = Film::new(20, 5);
    assert_eq!(here.find("x").unwrap(), None);
    let info = film.add(&there, "x");
    assert_eq!(here.find("x").unwrap(), Some(info.clone()));
    assert_eq!(here.titles().unwrap(), std::slice::from_ref(&info));
    there.add_packet_size(info.id, 188).unwrap();
    assert_eq!(here.find("x").unwrap().unwrap().packet_sizes, [188, 1316]);
    there.remove(info.id).unwrap();
    assert_eq!(here.find("x").unwrap(), None);
    assert_eq!(here.titles().unwrap(), []);
    assert!(matches!(here.open_title(info.id, 1316), Err(StoreError::NoTitle { .. })));
    assert!(matches!(here.remove(info.id), Err(StoreError::NoTitle { .. })));
}

#[test]
fn removed_title_remains_readable_while_open() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(2000, 6);
    let info = film.add(&volume, "x");
    let files = volume.open_title(info.id, 1316).unwrap();
    volume.remove(info.id).unwrap();
    assert_is(&files, &film, SIZE);
    assert_eq!(tree(&dir.path().join("titles")), [""; 0]);
    assert_eq!(tree(&dir.path().join("tmp")), [""; 0]);
}

#[test]
fn add_packet_size_later_equals_size_made_at_ingest() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(30_011, 7);
    let info = film.add(&volume, "x");
    for size in [188, 188 * 6, 188 * 13, 188 * 48] {
        volume.add_packet_size(info.id, usize::from(size)).unwrap();
        volume.add_packet_size(info.id, usize::from(size)).unwrap(); // again: nothing to do
        let files = volume.open_title(info.id, usize::from(size)).unwrap();
        for (packet, payload) in film.bytes.chunks(usize::from(size)).enumerate() {
            let mut meta = [PacketMeta::default()];
            files.meta.read(packet as u32, &mut meta).unwrap();
            assert_eq!(meta[0].sum(), sum16(payload), "packet {packet} of {size}");
            assert_eq!(meta[0].time(), film.meta(size, packet as u32).time(), "packet {packet} of {size}");
            // A packet has the flags of every default-size packet it shares bytes with.
            let start = packet * usize::from(size);
            let touched = start as u32 / 1316..=((start + payload.len() - 1) as u32 / 1316);
            let expected = touched.fold(0, |flags, p| flags | film.meta(SIZE, p).flags());
            assert_eq!(meta[0].flags(), expected, "packet {packet} of {size}");
        }
    }
    let sizes = volume.find("x").unwrap().unwrap().packet_sizes;
    assert_eq!(sizes, [188, 1128, 1316, 2444, 9024]);
    assert_is(&volume.open_title(info.id, 1316).unwrap(), &film, SIZE);
    assert_eq!(tree(&dir.path().join("tmp")), [""; 0]);
    assert!(matches!(volume.add_packet_size(info.id, 1000), Err(StoreError::BadPacketSize { .. })));
}

/// Whatever the size, and wherever a reader begins: records derived from the range sums are those of a file.
#[test]
fn derived_records_are_those_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    for (name, ts_packets) in [("short", 3), ("whole blocks", 2040 * 2), ("long", 30_011)] {
        let mut film = Film::new(ts_packets, 7);
        film.bytes[1880 * (ts_packets / 20)..].iter_mut().take(9400).for_each(|byte| *byte = 0); // the other zero
        let info = film.add(&volume, name);
        for size in [188, 564, 940, 1316, 1880, 3948, 8084, 9024] {
            let derived = volume.open_title_derived(info.id, size).unwrap();
            let times: Vec<_> = (0..4).map(|n| MediaTicks(info.duration.0 * n / 3)).collect();
            let found: Vec<_> = times.iter().map(|&t| derived.packet_at(t).unwrap()).collect();
            volume.add_packet_size(info.id, size).unwrap();
            let stored = volume.open_title(info.id, size).unwrap();
            assert!(derived.derived.is_some() && stored.derived.is_none());
            assert_eq!(derived.packets(), stored.packets());
            assert_eq!(found, times.iter().map(|&t| stored.packet_at(t).unwrap()).collect::<Vec<_>>());
            let expected = metas(&stored);
            for (from, to) in [(0, expected.len()), (expected.len() / 3, expected.len() / 2 + 1)] {
                let mut out = vec![PacketMeta::default(); to - from];
                derived.read_metas(from as u32, &mut out).unwrap();
                for (packet, (out, expected)) in (from..).zip(out.iter().zip(&expected[from..to])) {
                    let same = (out.flags(), out.time()) == (expected.flags(), expected.time());
                    assert!(
                        same && congruent(out.sum(), expected.sum()),
                        "{name}: packet {packet} of {size}"
                    );
                }
            }
            let mut beyond = vec![PacketMeta::default(); 2];
            assert!(derived.read_metas(derived.packets() - 1, &mut beyond).is_err());
        }
    }
}

/// Titles of versions before range sums open as ever, and get them with the next packet size, or without one.
#[test]
fn prepare_of_older_title_adds_range_sums() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(6001, 9);
    for (name, sizes, made) in [
        ("alone", &[][..], &["sums.mrr"][..]),
        ("with sizes", &[8084, 940, 8084, 1316][..], &["sums.mrr", "meta-940.mrp", "meta-8084.mrp"][..]),
    ] {
        let info = film.add(&volume, name);
        let whole = std::fs::read(dir.path().join(format!("titles/{}/sums.mrr", info.id))).unwrap();
        forget_sums(dir.path(), &info);
        assert_is(&volume.open_title(info.id, 1316).unwrap(), &film, SIZE);
        assert!(matches!(volume.open_title(info.id, 8084), Err(StoreError::NoPacketSize { .. })));
        let mut told = Vec::new();
        let files = volume.prepare(info.id, sizes, &mut |bytes| told.push(bytes)).unwrap();
        assert_eq!(files, made);
        assert_eq!(told.last(), Some(&info.bytes));
        assert_eq!(std::fs::read(dir.path().join(format!("titles/{}/sums.mrr", info.id))).unwrap(), whole);
        assert_eq!(volume.prepare(info.id, sizes, &mut |_| ()).unwrap(), [""; 0], "all is there");
        assert!(volume.open_title(info.id, 376).unwrap().derived.is_some());
        let findings = check_store(dir.path(), Depth::Full, &mut |_| {}).unwrap();
        assert_eq!(findings, [], "{name}");
    }
}

#[test]
fn timeline_of_each_packet_size_has_unique_ssrc() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = Film::new(20, 9).add(&volume, "x");
    let ssrcs: std::collections::BTreeSet<u32> = (1..=48).map(|n| info.timeline_of(n * 188).ssrc).collect();
    assert_eq!(ssrcs.len(), 48);
    assert_eq!(info.timeline_of(1316), info.timeline);
    assert_eq!(volume.open_title(info.id, 8084).unwrap().timeline(), info.timeline_of(8084));
}

#[test]
fn damaged_data_gets_no_new_sums() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = Film::new(3000, 8).add(&volume, "x");
    let data = volume.open_title(info.id, 1316).unwrap().data_path;
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[1316 * 77 + 5] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    let error = volume.add_packet_size(info.id, 188).unwrap_err();
    assert!(error.to_string().contains("data.ts: packet 77 does not match its stored sum"), "{error}");
    assert_eq!(volume.find("x").unwrap().unwrap().packet_sizes, [1316]);
    assert_eq!(tree(&dir.path().join("tmp")), [""; 0]);
}

#[test]
fn packets_are_found_by_time_in_every_size() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(20_000, 9);
    let info = film.add_sizes(&volume, "x", &[188, SIZE, 9024]);
    for size in [188u16, SIZE, 9024] {
        let files = volume.open_title(info.id, usize::from(size)).unwrap();
        let times: Vec<MediaTicks> = metas(&files).iter().map(|m| m.time()).collect();
        for t in (0..film.duration().0 + 20).step_by(7).map(MediaTicks) {
            let expected = times.partition_point(|&time| time < t) as u32;
            assert_eq!(files.packet_at(t).unwrap(), expected, "{t} in packets of {size}");
            if size == SIZE {
                assert_eq!(files.index.packet_at(t), expected, "{t} by the index");
            }
        }
        for point in files.index.access_points() {
            let packet = files.packet_of_default(point.packet);
            let start = u64::from(packet) * u64::from(size);
            let default_start = u64::from(point.packet) * 1316;
            assert!(start <= default_start && default_start < start + u64::from(size));
        }
    }
}

#[test]
fn title_writer_with_invalid_input_fails_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(700, 10);
    let refused = |words: &str, error: StoreError| {
        assert!(error.to_string().contains(words), "wanted \"{words}\", got \"{error}\"");
        assert_eq!(tree(&dir.path().join("tmp")), [""; 0], "after: {words}");
    };
    refused("packet size 1300", TitleWriter::begin(&volume, &[SIZE, 1300]).unwrap_err());
    let begin = || TitleWriter::begin(&volume, &[SIZE]).unwrap();
    refused("no data", begin().commit(film.finish("x")).unwrap_err());

    let mut writer = begin();
    refused("187 bytes of data are not whole", writer.write_data(&film.bytes[..187]).unwrap_err());
    refused("an earlier step failed", writer.write_data(&film.bytes[..188]).unwrap_err());
    refused("an earlier step failed", writer.commit(film.finish("x")).unwrap_err());

    refused("packets of 188 bytes, a size not begun", begin().push_meta(188, film.meta(188, 0)).unwrap_err());
    let mut writer = begin();
    writer.push_meta(SIZE, film.meta(SIZE, 5)).unwrap();
    refused("media time runs back", writer.push_meta(SIZE, film.meta(SIZE, 4)).unwrap_err());

    let mut writer = begin();
    writer.write_data(&film.bytes).unwrap();
    refused("100 without metadata, 0 metadata too many", writer.commit(film.finish("x")).unwrap_err());
    let mut writer = film.write(&volume, &[SIZE]).unwrap();
    writer.push_meta(SIZE, film.meta(SIZE, 100)).unwrap();
    refused("0 without metadata, 1 metadata too many", writer.commit(film.finish("x")).unwrap_err());

    let mut finish = film.finish("x");
    finish.duration = MediaTicks(1);
    refused("duration is 0:00:00.000", film.write(&volume, &[SIZE]).unwrap().commit(finish).unwrap_err());
    let mut finish = film.finish("x");
    finish.index = Film::new(100_000, 1).index();
    refused("access points number", film.write(&volume, &[SIZE]).unwrap().commit(finish).unwrap_err());
    assert_eq!(volume.titles().unwrap(), []);
}

#[test]
fn add_packet_size_after_killed_attempt_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(700, 11);
    let info = film.add(&volume, "x");
    // Killed between the two renames: the file is there, the manifest does not name it.
    let path = dir.path().join(format!("titles/{}/meta-188.mrp", info.id));
    std::fs::write(&path, b"of a process that died").unwrap();
    assert!(volume.open_title(info.id, 188).unwrap().derived.is_some(), "the file is not looked at");
    volume.add_packet_size(info.id, 188).unwrap();
    assert_eq!(metas(&volume.open_title(info.id, 188).unwrap()).len(), 700);
}

#[test]
fn titles_come_and_go_under_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(40, 12);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let volume = Volume::open(dir.path()).unwrap();
            let mut opened = 0u32;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                for info in volume.titles().unwrap() {
                    match volume.open_title(info.id, 1316) {
                        Ok(files) => {
                            assert_is(&files, &film, SIZE);
                            opened += 1;
                        }
                        Err(StoreError::NoTitle { .. }) => {}
                        Err(error) => panic!("neither there nor gone: {error}"),
                    }
                }
                assert!(volume.unreadable().unwrap().is_empty());
            }
            opened
        });
        for _ in 0..30 {
            let info = film.add(&volume, "x");
            volume.add_packet_size(info.id, 188).unwrap();
            volume.remove(info.id).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0, "the reader met a title at least once");
    });
}

#[test]
fn handles_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Volume>();
    shared::<TitleFiles>();
    sent::<TitleWriter>();
}
