use super::super::sample::{SampleFiles, SampleSource};
use super::*;

#[test]
fn extents_cover_the_title_without_gap_or_overlap() {
    for packet_bytes in [188, 1316, 188 * 11, 188 * 48] {
        let sample = SampleFiles::new(packet_bytes, 900_000);
        let title = OpenTitle::new(Box::new(sample.open()));
        assert_eq!(title.extents(), sample.extents());
        let (mut packet, mut byte) = (0, 0);
        for extent in 0..title.extents() {
            let geometry = title.geometry(extent).unwrap();
            assert_eq!((geometry.first_packet, geometry.data.start), (packet, byte));
            packet += geometry.packets;
            byte = geometry.data.end;
            assert!(geometry.meta.end - geometry.meta.start <= META_STAGING_BYTES as u64);
            assert!(geometry.data.end - geometry.data.start <= EXTENT_BYTES as u64);
            let full = extent + 1 < title.extents();
            assert!(!full || geometry.packets == sample.layout.packets_per_extent());
        }
        assert_eq!((packet, byte), (sample.packets(), 900_000));
        let last = title.geometry(title.extents() - 1).unwrap().last_packet_bytes;
        assert_eq!(usize::from(last), (900_000 - 1) % packet_bytes + 1);
        assert_eq!(title.geometry(title.extents()), None);
        assert_eq!(title.geometry(u32::MAX), None);
    }
}

/// A title without a single packet, and one whose packet lengths make no sense.
struct Odd {
    inner: SampleSource,
    packets: u32,
    packet_bytes: usize,
}

impl TitleSource for Odd {
    fn id(&self) -> TitleId {
        self.inner.id()
    }
    fn layout(&self) -> WireLayout {
        self.inner.layout()
    }
    fn timeline(&self) -> Timeline {
        self.inner.timeline()
    }
    fn packets(&self) -> u32 {
        self.packets
    }
    fn packet_bytes_at(&self, _: u32) -> usize {
        self.packet_bytes
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        self.inner.media_time(packet)
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Plain(self)
    }
}

impl PlainSource for Odd {
    fn data(&self) -> &File {
        self.inner.data()
    }
    fn data_path(&self) -> &Path {
        self.inner.data_path()
    }
    fn meta(&self) -> &File {
        self.inner.meta()
    }
}

#[test]
fn geometry_of_inconsistent_source_returns_none() {
    let sample = SampleFiles::of_extents(1);
    for (packets, packet_bytes) in [(0, 1316), (5, 0), (5, 1317), (5, 70_000)] {
        let odd = OpenTitle::new(Box::new(Odd { inner: sample.open(), packets, packet_bytes }));
        assert_eq!(odd.geometry(0), None, "{packets} packets of {packet_bytes}");
    }
    let largest = Odd { inner: sample.open(), packets: u32::MAX, packet_bytes: 1316 };
    let largest = OpenTitle::new(Box::new(largest));
    let last = largest.geometry(largest.extents() - 1).unwrap();
    assert_eq!(last.data.end, u64::from(u32::MAX) * 1316);
}
