//! A title of 64 GiB is opened, searched and read in a few megabytes of memory: of its metadata and
//! range sums, 1.1 GB together, only the requested parts are read. The files are sparse: they
//! contain only the blocks that are examined.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_store::cache::TitleSource;
use millrace_store::format::index;
use millrace_store::format::manifest::{INDEX_FILE, Manifest, SUMS_FILE, meta_file};
use millrace_store::format::meta::{META_BLOCK_BYTES, MetaHeader, RECORDS_PER_BLOCK, seal_block};
use millrace_store::format::sums::{self, SUMS_BLOCK_BYTES, SumsHeader};
use millrace_store::index::{TIME_STEP_PACKETS, TitleIndex};
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::titles::{Film, SIZE};

/// 64 GiB in whole packets, with a short last one.
const BYTES: u64 = (64 << 30) / 188 * 188;
/// From one packet to the next.
const TICKS: u64 = 60;

fn time(byte: u64) -> MediaTicks {
    MediaTicks(byte * TICKS / u64::from(SIZE))
}

/// Makes of a small title one of [`BYTES`] zeros, all of whose records say when a packet is due.
fn grow(dir: &Path, info: &TitleInfo) {
    let title = dir.join(format!("titles/{}", info.id));
    let open = |name: &str| File::options().read(true).write(true).open(title.join(name)).unwrap();
    open("data.ts").set_len(0).unwrap();
    open("data.ts").set_len(BYTES).unwrap();
    let packets = BYTES.div_ceil(u64::from(SIZE)) as u32;
    let good = index::decode(&std::fs::read(title.join(INDEX_FILE)).unwrap()).unwrap();
    let mut parts = good.parts().clone();
    let step = TIME_STEP_PACKETS as usize;
    parts.times = (0..packets).step_by(step).map(|packet| MediaTicks(u64::from(packet) * TICKS)).collect();
    (parts.data_bytes, parts.duration) = (BYTES, time(BYTES));
    parts.access.truncate(1);
    parts.pids.clear();
    let index = index::encode(&TitleIndex::from_parts(parts).unwrap());
    std::fs::write(title.join(INDEX_FILE), &index).unwrap();

    let meta = open(&meta_file(SIZE));
    let header = MetaHeader::new(info.id, SIZE, BYTES).unwrap();
    meta.set_len(0).unwrap();
    meta.set_len(header.file_bytes()).unwrap();
    meta.write_all_at(&header.encode()[..], 0).unwrap();
    let sums = open(SUMS_FILE);
    let sums_header = SumsHeader::new(info.id, 188, BYTES).unwrap();
    sums.set_len(0).unwrap();
    sums.set_len(sums_header.file_bytes()).unwrap();
    sums.write_all_at(&sums_header.encode()[..], 0).unwrap();
    for place in 0..3u64 {
        // Four blocks each at the beginning, in the middle and at the end.
        let from = |blocks: u32| (u64::from(blocks.saturating_sub(4)) * place / 2) as u32;
        for number in from(header.blocks())..from(header.blocks()) + 4 {
            let mut block = [0; META_BLOCK_BYTES];
            let first = number * RECORDS_PER_BLOCK;
            for (record, packet) in
                block.chunks_exact_mut(8).take(RECORDS_PER_BLOCK as usize).zip(first..packets)
            {
                let due = MediaTicks(u64::from(packet) * TICKS);
                record.copy_from_slice(&PacketMeta::new(0, 0, due).to_bytes());
            }
            seal_block(&mut block, number);
            meta.write_all_at(&block, (1 + u64::from(number)) * META_BLOCK_BYTES as u64).unwrap();
        }
        for number in from(sums_header.blocks())..from(sums_header.blocks()) + 4 {
            let mut block = [0; SUMS_BLOCK_BYTES];
            sums::seal_block(&mut block, number, 0);
            sums.write_all_at(&block, (1 + u64::from(number)) * SUMS_BLOCK_BYTES as u64).unwrap();
        }
    }
    let path = title.join("manifest.mrm");
    let mut manifest = Manifest::decode(&std::fs::read(&path).unwrap()).unwrap();
    (manifest.title.bytes, manifest.title.packets, manifest.title.duration) = (BYTES, packets, time(BYTES));
    manifest.placement.stripes = manifest.placement.geometry().stripes(packets);
    for file in &mut manifest.files {
        file.bytes = std::fs::metadata(title.join(&file.name)).unwrap().len();
    }
    std::fs::write(path, manifest.encode()).unwrap();
}

/// Memory of this process that is resident.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn title_of_64_gib_is_read_with_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = Film::new(6000, 1).add(&volume, "large");
    grow(dir.path(), &info);
    let before = resident_bytes();
    for size in [1316, 8084, 940] {
        let files = volume.open_title(info.id, size).unwrap();
        assert_eq!(files.info.bytes, BYTES);
        assert_eq!(files.derived.is_some(), size != 1316);
        for byte in [0, BYTES / 2, BYTES - 400_000] {
            let first = (byte / size as u64) as u32;
            let mut metas = [PacketMeta::default(); 30];
            files.read_metas(first, &mut metas).unwrap();
            for (packet, meta) in (u64::from(first)..).zip(metas) {
                assert_eq!(
                    (meta.sum(), meta.time()),
                    (0, time(packet * size as u64)),
                    "packet {packet} of {size}"
                );
            }
            assert_eq!(files.packet_at(metas[3].time()).unwrap(), first + 3);
            // The cache reads only a few blocks for an extent there.
            let per_extent = files.layout.packets_per_extent();
            let ranges = [files.meta_range(first, per_extent), files.sums_range(first, per_extent)];
            assert!(ranges.iter().all(|range| range.end - range.start <= 3 * 4096), "{ranges:?}");
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    // One index of 1.6 MB is open at a time, and was read in one piece.
    assert!(grown < 12 << 20, "{grown} bytes more are resident");
}
