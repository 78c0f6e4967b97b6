//! Where the records of an extent come from: a metadata file for its packet size, or the range sums that stand for every
//! size. Nanoseconds a packet with the blocks in the processor's caches and with blocks that were not touched for long, and
//! bytes on disk for each form.
//!
//! Both contenders verify their blocks as the cache does. A third one does the work that was
//! necessary without any stored sum: it adds up the payload.

use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::random::SplitMix;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::checksum::sum16;
use millrace_store::cache::{PlainSource, TitleSource};
use millrace_store::index::{ClockPiece, TitleIndex};
use millrace_store::packet_size::PACKET_CLASSES;
use millrace_store::sums::{GRAIN_BYTES, SumsHeader};
use millrace_store::volume::{FinishTitle, Naming, SourceIdentity, TitleFiles, TitleWriter, Volume};

use crate::frame::{
    Axis, Bench, Contest, ContestOptions, Noise, Options, Plot, PlotKind, Point, Promise, Report, Row,
};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "sums",
    shows: "ns a packet to get the records of an extent, and bytes on disk: a file per packet size beside range sums",
    not_for: "the disk's own time: the files lie in memory; one more read of 4 KiB an extent is not counted",
    options: &["runs"],
    targets: &["sums-same-records"],
    needs: &[],
    run,
};

const SIZES: [u16; 5] =
    [PACKET_CLASSES[0].1, PACKET_CLASSES[1].1, PACKET_CLASSES[2].1, PACKET_CLASSES[3].1, PACKET_CLASSES[4].1];
const TICKS_PER_PACKET: u64 = 60;
/// Grains that storage is shown for beside the one that is used.
const GRAINS: [u16; 4] = [64, GRAIN_BYTES, 2 * GRAIN_BYTES, DEFAULT_PACKET_BYTES as u16];

fn run(options: &Options) -> anyhow::Result<Report> {
    let dir = Scratch::new(options)?;
    options.say("making a title");
    let megabytes = options.pick(4, 256, 1024);
    let volume = Volume::open_or_create(&dir.0)?;
    let id = make_title(&volume, megabytes << 20)?;
    let mut report = Report::new("sums");
    let mut noise = Noise::quiet();
    let mut lines: Vec<(String, Vec<Point>)> = Vec::new();
    for size in SIZES {
        options.go_on()?;
        options.say(&format!("packets of {size} bytes"));
        let (stored, derived) = (
            Records::new(volume.open_title(id, usize::from(size))?)?,
            Records::new(volume.open_title_derived(id, usize::from(size))?)?,
        );
        for hot in [true, false] {
            let state = if hot { "hot" } else { "cold" };
            let mut contest = Contest::new(format!("{size} {state}"));
            contest.contender("file of the size", stored.work(hot)).as_base();
            contest.contender("range sums", derived.work(hot));
            contest.contender("adding up the payload", stored.sum_payload(hot)?);
            let result = contest.run(&ContestOptions::from_options(options))?;
            for contender in &result.contenders {
                let point = Point::xy(f64::from(size), contender.p50).within(contender.p10, contender.p99);
                let name = format!("{}, {state}", contender.name);
                match lines.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, points)) => points.push(point),
                    None => lines.push((name, vec![point])),
                }
            }
            report.rows.extend(result.rows("packet").into_iter().map(|mut row| {
                row.label = format!("{size} bytes, {state}: {}", row.label);
                row
            }));
            noise = noise.and(result.noise);
        }
    }
    report.rows.extend(storage(&volume, id)?);
    let (x, y) = (Axis::log("packet", "bytes"), Axis::log("time per packet, p10 to p99 of extents", "ns"));
    let plot = Plot::new(PlotKind::Lines, "Records of an extent", x, y);
    report.plots.push(lines.into_iter().fold(plot, |plot, (name, points)| plot.with(name, points)));
    report.promises.push(agree(&volume, id)?);
    report.noise = Some(noise);
    Ok(report)
}

/// Bytes on disk of each form, and what these are of the data's length.
fn storage(volume: &Volume, id: TitleId) -> anyhow::Result<Vec<Row>> {
    let data_bytes = volume.open_title(id, DEFAULT_PACKET_BYTES)?.info.bytes;
    let row = |label: String, bytes: u64| {
        let percent = bytes as f64 * 100.0 / data_bytes as f64;
        Row::new(label).with("on disk", bytes as f64, "bytes").with("of the data", percent, "%")
    };
    let grains = |bytes: u16| SumsHeader::new(id, bytes, data_bytes).map_or(0, |header| header.file_bytes());
    let mut rows = Vec::new();
    let mut all_files = 0;
    for size in SIZES {
        let bytes = volume.open_title(id, usize::from(size))?.meta.header().file_bytes();
        all_files += bytes;
        rows.push(row(format!("storage: file of records, packets of {size}"), bytes));
    }
    rows.extend(SIZES.map(|size| row(format!("storage: sums alone, packets of {size}"), grains(size))));
    rows.extend(GRAINS.map(|grain| row(format!("storage: range sums, grains of {grain}"), grains(grain))));
    let default = volume.open_title(id, DEFAULT_PACKET_BYTES)?.meta.header().file_bytes();
    rows.push(row("storage: five files of records".to_owned(), all_files));
    rows.push(row("storage: default file and range sums".to_owned(), default + grains(GRAIN_BYTES)));
    Ok(rows)
}

/// Both forms give the same records, all through the title.
fn agree(volume: &Volume, id: TitleId) -> anyhow::Result<Promise> {
    let mut wrong = 0;
    for size in SIZES.map(usize::from) {
        let (stored, derived) = (volume.open_title(id, size)?, volume.open_title_derived(id, size)?);
        let mut records = [vec![], vec![]].map(|_: Vec<PacketMeta>| vec![PacketMeta::default(); 5000]);
        for first in (0..stored.packets()).step_by(5000) {
            let count = (stored.packets() - first).min(5000) as usize;
            let [a, b] = &mut records;
            stored.read_metas(first, &mut a[..count])?;
            derived.read_metas(first, &mut b[..count])?;
            wrong += a[..count].iter().zip(&b[..count]).filter(|(a, b)| a != b).count();
        }
    }
    Ok(Promise::at_most("sums-same-records", wrong as f64, 0.0, "records").correctness())
}

/// The blocks of every extent of a title, in memory, as the cache's reads bring them.
struct Records {
    files: TitleFiles,
    /// Of each extent: first packet, packets, blocks of metadata, blocks of range sums.
    extents: Vec<(u32, u32, Vec<u8>, Vec<u8>)>,
    packets: u64,
}

impl Records {
    fn new(files: TitleFiles) -> anyhow::Result<Self> {
        let per_extent = files.layout.packets_per_extent();
        let mut extents = Vec::new();
        for first in (0..files.packets()).step_by(per_extent as usize) {
            let count = (files.packets() - first).min(per_extent);
            let (meta_range, sums_range) = (files.meta_range(first, count), files.sums_range(first, count));
            let mut meta = vec![0; (meta_range.end - meta_range.start) as usize];
            let mut sums = vec![0; (sums_range.end - sums_range.start) as usize];
            files.meta.file().read_exact_at(&mut meta, meta_range.start)?;
            if let Some(file) = files.sums() {
                file.read_exact_at(&mut sums, sums_range.start)?;
            }
            extents.push((first, count, meta, sums));
        }
        let packets = u64::from(per_extent);
        Ok(Self { files, extents, packets })
    }

    /// Gets the records of one extent over and over, or of each in turn.
    fn work(&self, hot: bool) -> impl FnMut(&mut crate::frame::Slot) -> anyhow::Result<()> + '_ {
        let mut out = vec![PacketMeta::default(); self.packets as usize];
        let mut next = 0;
        move |slot| {
            while slot.goes_on() {
                let (first, count, meta, sums) = &self.extents[next];
                next = if hot { next } else { (next + 1) % self.extents.len() };
                let out = &mut out[..*count as usize];
                slot.batch(u64::from(*count), || self.files.records(meta, sums, *first, out))?;
                black_box(&out);
            }
            Ok(())
        }
    }

    /// Adds up the payload of one extent over and over, or of each in turn.
    fn sum_payload(
        &self,
        hot: bool,
    ) -> anyhow::Result<impl FnMut(&mut crate::frame::Slot) -> anyhow::Result<()> + '_> {
        let size = self.files.layout.packet_bytes();
        let extent_bytes = self.packets as usize * size;
        let bytes = if hot { extent_bytes as u64 } else { self.files.info.bytes };
        let mut data = vec![0; bytes.min(self.files.info.bytes) as usize];
        self.files.data.read_exact_at(&mut data, 0).context("the data")?;
        let mut next = 0;
        Ok(move |slot: &mut crate::frame::Slot| {
            while slot.goes_on() {
                let extents = data.len().div_ceil(extent_bytes);
                let extent =
                    &data[next * extent_bytes..][..extent_bytes.min(data.len() - next * extent_bytes)];
                next = (next + 1) % extents;
                let packets = extent.len().div_ceil(size) as u64;
                let sum = slot
                    .batch(packets, || extent.chunks(size).fold(0u32, |sum, p| sum + u32::from(sum16(p))));
                black_box(sum);
            }
            Ok(())
        })
    }
}

/// A title of noise, prepared for every size.
fn make_title(volume: &Volume, bytes: usize) -> anyhow::Result<TitleId> {
    let bytes = bytes / (7 * TS_PACKET_BYTES) * 7 * TS_PACKET_BYTES;
    let mut random = SplitMix(1);
    let mut portion = vec![0; 64 * DEFAULT_PACKET_BYTES];
    let mut writer = TitleWriter::begin(volume, &[])?;
    let mut written = 0;
    while written < bytes {
        let now = portion.len().min(bytes - written);
        for word in portion[..now].chunks_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
        }
        portion[..now].iter_mut().step_by(TS_PACKET_BYTES).for_each(|byte| *byte = 0x47);
        for packet in written / DEFAULT_PACKET_BYTES..(written + now) / DEFAULT_PACKET_BYTES {
            let time = MediaTicks(packet as u64 * TICKS_PER_PACKET);
            writer.push_meta(DEFAULT_PACKET_BYTES as u16, PacketMeta::new(0, 0, time))?;
        }
        writer.write_data(&portion[..now])?;
        written += now;
    }
    let pieces = vec![ClockPiece { byte: 0, time: MediaTicks(0) }];
    let info = writer.commit(FinishTitle {
        name: "noise".to_owned(),
        source: SourceIdentity { path: "noise".into(), bytes: bytes as u64, modified_unix_ns: 0 },
        duration: MediaTicks((bytes / DEFAULT_PACKET_BYTES) as u64 * TICKS_PER_PACKET),
        mean_rate: BitRate(15_000_000),
        peak_rate: BitRate(15_000_000),
        constant_rate: true,
        streams: Vec::new(),
        index: TitleIndex::new(Vec::new(), pieces, Vec::new())?,
        notes: Vec::new(),
        derived: None,
        rendition: None,
        naming: Naming::default(),
    })?;
    volume.prepare(info.id, &SIZES.map(usize::from), &mut |_| ())?;
    Ok(info.id)
}

/// A folder that goes when the benchmark ends; in memory if the machine has /dev/shm.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm } else { &options.scratch };
        let dir = base.join(format!("millrace-bench-sums-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
