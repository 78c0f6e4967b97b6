//! Titles made by hand on some member directories, for tests of repair and scrub.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::fec::Code;
use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, REPAIR_ANSWER_NS};
use millrace_core::packet::PacketMeta;
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::units::BitRate;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::rtp::Timeline;

use super::set::{Home, TitleSet, Units};
use super::title::{MissingFiles, mend};
use super::work::Work;
use super::{RepairError, RepairReport, Setting, Timekeeper};
use crate::dirs::Dirs;
use crate::disk::{Disk, ReadFaults};
use crate::format::Uuid;
use crate::format::manifest::{
    CRC_FILE, FileEntry, Manifest, PARITY_CRC_FILE, PARITY_META_FILE, Placement, SUMS_FILE,
};
use crate::format::superblock::Geometry;
use crate::meta::{CrcWriter, MetaWriter, PacketCrc};
use crate::sums::{GRAIN_BYTES, SumsWriter};
use crate::volume::{Origin, SourceIdentity, TitleInfo};

pub(crate) const PACKET: usize = DEFAULT_PACKET_BYTES;

/// A clock that only counts, and may ask to stop after some waits.
pub(crate) struct CountingClock {
    pub(crate) now: Cell<u64>,
    pub(crate) stop_at_ns: u64,
    pub(crate) stop: AtomicBool,
}

impl Clock for CountingClock {
    fn now(&self) -> Instant {
        Instant(self.now.get())
    }
}

impl Timekeeper for CountingClock {
    fn wait_ns(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
        if self.now.get() >= self.stop_at_ns {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Member directories with one title.
pub(crate) struct RepairFixture {
    root: tempfile::TempDir,
    pub(crate) manifest: Manifest,
    n: usize,
}

impl RepairFixture {
    pub(crate) fn new(geometry: Geometry, packets: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let n = usize::from(geometry.members);
        let bytes = media(packets * PACKET - 188 * 3);
        let id = TitleId([7; 16]);
        let info = info(id, &bytes);
        let members: Vec<Uuid> = (0..n).map(|i| Uuid([i as u8 + 1; 16])).collect();
        let placement = Placement::new(Uuid([9; 16]), &members, geometry, bytes.len() as u64);
        let mut world = Self { root, manifest: Manifest { title: info, placement, files: Vec::new() }, n };
        for i in 0..n {
            fs::create_dir_all(world.dirs(i).tmp).unwrap();
            fs::create_dir_all(world.dirs(i).title(id)).unwrap();
            fs::write(world.dirs(i).superblock(), b"locked only").unwrap();
        }
        world.write(&bytes, &geometry);
        world
    }

    fn write(&mut self, media: &[u8], geometry: &Geometry) {
        let stripes = crate::stripes::StripeLayout::new(geometry, media.len() as u64).unwrap();
        let code = Code::new(stripes.k(), stripes.m()).unwrap();
        let (mut data, mut parity) = (vec![Vec::new(); self.n], vec![Vec::new(); self.n]);
        let (mut parity_sums, mut all_parity) = (Vec::new(), Vec::new());
        for stripe in 0..stripes.stripes() {
            let start = u64::from(stripe) * stripes.stripe_bytes();
            let unit = |u: usize| {
                let from = (start as usize + u * stripes.unit_bytes()).min(media.len());
                &media[from..from + stripes.media_in_unit(stripe, u)]
            };
            let units: Vec<&[u8]> = (0..stripes.k()).map(unit).collect();
            let mut made = vec![vec![0; stripes.unit_bytes()]; stripes.m()];
            code.encode(&units, &mut made.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            for (u, unit) in units.iter().enumerate() {
                data[stripes.position_of(stripe, u)].extend_from_slice(unit);
            }
            for (p, unit) in made.iter().enumerate() {
                parity[stripes.position_of(stripe, stripes.k() + p)].extend_from_slice(unit);
                parity_sums.extend(unit.chunks(PACKET).map(sum16));
                all_parity.extend_from_slice(unit);
            }
        }
        let sums: Vec<u16> = media.chunks(PACKET).map(sum16).collect();
        let mut shared = vec![
            ("index.mri".to_owned(), b"an index".to_vec()),
            ("meta-1316.mrp".to_owned(), self.meta(&sums, media.len() as u64)),
            (SUMS_FILE.to_owned(), self.range_sums(media)),
            (CRC_FILE.to_owned(), self.crcs(media)),
        ];
        if stripes.m() > 0 {
            let bytes = stripes.parity_packets() * PACKET as u64;
            shared.push((PARITY_META_FILE.to_owned(), self.meta(&parity_sums, bytes)));
            shared.push((PARITY_CRC_FILE.to_owned(), self.crcs(&all_parity)));
        }
        if self.n == 1 {
            shared.push(("data.ts".to_owned(), data[0].clone()));
            if stripes.m() > 0 {
                shared.push(("parity.mru".to_owned(), parity[0].clone()));
            }
        }
        for (i, (data, parity)) in data.iter().zip(&parity).enumerate() {
            let dir = self.dirs(i).title(self.manifest.title.id);
            shared.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).unwrap());
            if self.n > 1 {
                let mut own = vec![("data.mru", data)];
                own.extend((stripes.m() > 0).then_some(("parity.mru", parity)));
                own.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).unwrap());
                self.manifest.placement.members[i].files = own.iter().map(|(n, b)| entry(n, b)).collect();
            }
        }
        self.manifest.files = shared.iter().map(|(name, bytes)| entry(name, bytes)).collect();
        self.manifest.files.sort_by(|a, b| a.name.cmp(&b.name));
        self.manifest.validate().unwrap();
        for i in 0..self.n {
            let dirs = self.dirs(i);
            fs::write(dirs.manifest(self.manifest.title.id), self.manifest.encode()).unwrap();
        }
    }

    fn meta(&self, sums: &[u16], bytes: u64) -> Vec<u8> {
        let path = self.root.path().join("meta");
        let mut writer = MetaWriter::create(&Disk::default(), &path).unwrap();
        sums.iter().for_each(|&sum| writer.push(PacketMeta::new(sum, 0, MediaTicks(0))).unwrap());
        writer.finish(self.manifest.title.id, PACKET as u16, bytes).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(path).unwrap();
        bytes
    }

    fn crcs(&self, bytes: &[u8]) -> Vec<u8> {
        let path = self.root.path().join("crcs");
        let mut writer = CrcWriter::create(&Disk::default(), &path).unwrap();
        bytes.chunks(PACKET).for_each(|packet| writer.push(PacketCrc::of(packet)).unwrap());
        writer.finish(self.manifest.title.id, PACKET as u16, bytes.len() as u64).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(path).unwrap();
        bytes
    }

    fn range_sums(&self, media: &[u8]) -> Vec<u8> {
        let path = self.root.path().join("sums");
        let mut writer = SumsWriter::create(&Disk::default(), &path, GRAIN_BYTES).unwrap();
        media.chunks(usize::from(GRAIN_BYTES)).for_each(|grain| writer.push(sum16(grain)).unwrap());
        writer.finish(self.manifest.title.id, media.len() as u64).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(path).unwrap();
        bytes
    }

    pub(crate) fn dirs(&self, i: usize) -> Dirs {
        Dirs::new(&self.root.path().join(format!("m{i}")))
    }

    pub(crate) fn title(&self, i: usize) -> PathBuf {
        self.dirs(i).title(self.manifest.title.id)
    }

    pub(crate) fn set(&self) -> TitleSet {
        let home = |slot: u16| Some(Home { dirs: self.dirs(usize::from(slot)), active: true });
        TitleSet::new(self.manifest.clone(), self.manifest.encode(), home).unwrap()
    }

    /// Every file of every member with its bytes.
    pub(crate) fn tree(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        for i in 0..self.n {
            for sub in [self.title(i), self.dirs(i).tmp] {
                for entry in fs::read_dir(&sub).into_iter().flatten() {
                    let path = entry.unwrap().path();
                    found.push((path.clone(), fs::read(&path).unwrap_or_default()));
                }
            }
        }
        found.sort();
        found
    }

    pub(crate) fn mend(&self, needs: &[MissingFiles], suspects: &[(usize, Units)]) -> RepairReport {
        self.mend_until(needs, suspects, 0, u64::MAX).0
    }

    pub(crate) fn mend_until(
        &self,
        needs: &[MissingFiles],
        suspects: &[(usize, Units)],
        rate: u64,
        stop_at_ns: u64,
    ) -> (RepairReport, u64, Result<(), RepairError>) {
        let set = self.set();
        self.work(rate, stop_at_ns, |work| mend(&set, needs, suspects, work))
    }

    /// Does some work by a clock that only counts; the report, how long it took in ns, and how it ended.
    pub(crate) fn work(
        &self,
        rate: u64,
        stop_at_ns: u64,
        step: impl FnOnce(&mut Work<'_>) -> Result<(), RepairError>,
    ) -> (RepairReport, u64, Result<(), RepairError>) {
        let time = CountingClock { now: Cell::new(0), stop_at_ns, stop: AtomicBool::new(false) };
        let tell = &mut |_: &_| ();
        let setting = Setting {
            time: &time,
            stop: &time.stop,
            tell,
            faults: ReadFaults::default(),
            answer_ns: REPAIR_ANSWER_NS,
        };
        let mut work = Work::new(setting, rate);
        let result = step(&mut work);
        (work.report, time.now.get(), result)
    }

    pub(crate) fn flip(&self, member: usize, name: &str, at: usize) {
        let path = self.title(member).join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 4;
        fs::write(path, bytes).unwrap();
    }
}

fn media(bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(next).collect()
}

fn entry(name: &str, bytes: &[u8]) -> FileEntry {
    let blake3 = blake3::hash(bytes).to_hex().to_string();
    FileEntry { name: name.to_owned(), bytes: bytes.len() as u64, blake3 }
}

pub(crate) fn info(id: TitleId, media: &[u8]) -> TitleInfo {
    TitleInfo {
        id,
        name: "film".to_owned(),
        bytes: media.len() as u64,
        packets: media.len().div_ceil(PACKET) as u32,
        packet_sizes: vec![PACKET as u16],
        duration: MediaTicks(90_000),
        mean_rate: BitRate(1),
        peak_rate: BitRate(1),
        constant_rate: true,
        streams: Vec::new(),
        timeline: Timeline { ssrc: 1, timestamp_base: 2 },
        source: SourceIdentity { path: PathBuf::from("/films/film"), bytes: 1, modified_unix_ns: 1 },
        added_unix_s: 1,
        blake3: blake3::hash(media).to_hex().to_string(),
        notes: Vec::new(),
        derived: None,
        rendition: None,
        title: None,
        origin: Origin::default(),
        subtitles: Vec::new(),
        source_start: 0,
        chapters: Vec::new(),
        began_unix_ms: None,
    }
}

pub(crate) fn geometry(members: usize, tolerance: usize) -> Geometry {
    Geometry::choose(members, tolerance, 0).unwrap()
}
