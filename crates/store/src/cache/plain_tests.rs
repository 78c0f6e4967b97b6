use std::path::PathBuf;

use millrace_core::ids::TitleId;
use millrace_core::packet::WireLayout;
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;

use super::super::order::MemberView;
use super::super::sample::{SampleFiles, SampleSource};
use super::super::source::SourceKind;
use super::*;

#[test]
fn direct_reads_are_of_the_same_file_or_not_at_all() {
    let sample = SampleFiles::of_extents(1);
    let file = File::open(sample.data_path()).unwrap();
    let elsewhere = sample.dir.path().join("other");
    std::fs::write(&elsewhere, b"something else").unwrap();
    assert!(open_direct(&elsewhere, &file).is_none(), "another file by now");
    assert!(open_direct(&PathBuf::from("/nowhere"), &file).is_none());
    let title = Plain::open(Box::new(sample.open()));
    for direct in [true, false] {
        let data = title.files.file(Role::Data { position: 0 }, direct);
        assert_eq!(data.metadata().unwrap().ino(), file.metadata().unwrap().ino());
    }
    eprintln!("direct reads in {}: {}", sample.dir.path().display(), title.files.direct.is_some());
}

/// Records that are derived from sums that are not there.
struct WithoutSums(SampleSource);

impl TitleSource for WithoutSums {
    fn id(&self) -> TitleId {
        self.0.id()
    }
    fn layout(&self) -> WireLayout {
        self.0.layout()
    }
    fn timeline(&self) -> Timeline {
        self.0.timeline()
    }
    fn packets(&self) -> u32 {
        self.0.packets()
    }
    fn packet_bytes_at(&self, packet: u32) -> usize {
        self.0.packet_bytes_at(packet)
    }
    fn media_time(&self, packet: u32) -> MediaTicks {
        self.0.media_time(packet)
    }
    fn sums_range(&self, _: u32, _: u32) -> Range<u64> {
        0..512
    }
    fn kind(self: Box<Self>) -> SourceKind {
        SourceKind::Plain(self)
    }
}

impl PlainSource for WithoutSums {
    fn data(&self) -> &File {
        self.0.data()
    }
    fn data_path(&self) -> &Path {
        self.0.data_path()
    }
    fn meta(&self) -> &File {
        self.0.meta()
    }
}

#[test]
fn records_that_cannot_be_derived_cannot_be_ordered() {
    let sample = SampleFiles::of_extents(1);
    let order = |source: Box<dyn TitleSource>| {
        OpenTitle::new(source).order(0, 0, MemberView::default(), false).map(|order| order.spans.len())
    };
    assert_eq!(order(Box::new(sample.open())), Ok(2));
    assert_eq!(order(Box::new(WithoutSums(sample.open()))), Err(ReadFailure::OutOfRange));
}
