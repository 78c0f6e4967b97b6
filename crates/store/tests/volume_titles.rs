//! Titles come in whole, are found by every process, and go.

mod common;

use std::os::unix::fs::FileExt;

use common::{Film, SIZE};
use millrace_core::packet::PacketMeta;
use millrace_core::wire::checksum::sum16;
use millrace_store::StoreError;
use millrace_store::volume::{TitleFiles, Volume};

fn metas(files: &TitleFiles) -> Vec<PacketMeta> {
    let mut metas = vec![PacketMeta::default(); files.packets() as usize];
    files.meta.read(0, &mut metas).unwrap();
    metas
}

/// Holds every packet of an open title against the film: bytes, sum, flags, time.
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

#[test]
fn a_title_comes_back_as_it_was_written_in_every_size() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(40_003, 1); // 7.5 MB: several writes, a short last packet, many meta-data blocks
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
    let error = volume.open_title(info.id, 376).unwrap_err();
    assert!(matches!(error, StoreError::NoPacketSize { packet_bytes: 376, .. }), "{error}");
    let error = volume.open_title(info.id, 1300).unwrap_err();
    assert!(matches!(error, StoreError::BadPacketSize { packet_bytes: 1300 }), "{error}");
}
