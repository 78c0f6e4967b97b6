//! Titles made by hand on some members: what is lost, stale or damaged there comes back byte for byte.

use std::cell::Cell;
use std::fs;
use std::sync::atomic::AtomicBool;

use millrace_core::fec::Code;
use millrace_core::packet::PacketMeta;
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;

use super::*;
use crate::disk::ReadFaults;
use crate::format::Uuid;
use crate::format::manifest::{Manifest, Placement, SUMS_FILE};
use crate::format::superblock::Geometry;
use crate::meta::MetaWriter;
use crate::repair::set::Home;
use crate::repair::{Report, Setting, Timekeeper};
use crate::volume::{SourceIdentity, TitleInfo};
use millrace_core::ids::TitleId;
use millrace_core::wire::checksum::sum16;

const PACKET: usize = DEFAULT_PACKET_BYTES;

/// A clock that only counts, and may ask to stop after some waits.
struct Counted {
    now: Cell<u64>,
    stop_at_ns: u64,
    stop: AtomicBool,
}

impl Clock for Counted {
    fn now(&self) -> Instant {
        Instant(self.now.get())
    }
}

impl Timekeeper for Counted {
    fn wait_ns(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
        if self.now.get() >= self.stop_at_ns {
            self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

/// Member directories with one title.
struct World {
    root: tempfile::TempDir,
    manifest: Manifest,
    n: usize,
}

impl World {
    fn new(geometry: Geometry, packets: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let n = usize::from(geometry.members);
        let bytes = film(packets * PACKET - 188 * 3);
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

    fn write(&mut self, film: &[u8], geometry: &Geometry) {
        let rows = crate::rows::Rows::new(geometry, film.len() as u64).unwrap();
        let code = Code::new(rows.k(), rows.m()).unwrap();
        let (mut data, mut parity) = (vec![Vec::new(); self.n], vec![Vec::new(); self.n]);
        let mut parity_sums = Vec::new();
        for row in 0..rows.rows() {
            let start = u64::from(row) * rows.row_bytes();
            let unit = |u: usize| {
                let from = (start as usize + u * rows.unit_bytes()).min(film.len());
                &film[from..from + rows.film_in_unit(row, u)]
            };
            let units: Vec<&[u8]> = (0..rows.k()).map(unit).collect();
            let mut made = vec![vec![0; rows.unit_bytes()]; rows.m()];
            code.encode(&units, &mut made.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            for (u, unit) in units.iter().enumerate() {
                data[rows.position_of(row, u)].extend_from_slice(unit);
            }
            for (p, unit) in made.iter().enumerate() {
                parity[rows.position_of(row, rows.k() + p)].extend_from_slice(unit);
                parity_sums.extend(unit.chunks(PACKET).map(sum16));
            }
        }
        let sums: Vec<u16> = film.chunks(PACKET).map(sum16).collect();
        let mut shared = vec![
            ("index.mri".to_owned(), b"an index".to_vec()),
            ("meta-1316.mrp".to_owned(), self.meta(&sums, film.len() as u64)),
            (SUMS_FILE.to_owned(), b"range sums".to_vec()),
        ];
        if rows.m() > 0 {
            let bytes = rows.parity_packets() * PACKET as u64;
            shared.push((PARITY_META_FILE.to_owned(), self.meta(&parity_sums, bytes)));
        }
        if self.n == 1 {
            shared.push(("data.ts".to_owned(), data[0].clone()));
            if rows.m() > 0 {
                shared.push(("parity.mru".to_owned(), parity[0].clone()));
            }
        }
        for (i, (data, parity)) in data.iter().zip(&parity).enumerate() {
            let dir = self.dirs(i).title(self.manifest.title.id);
            shared.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).unwrap());
            if self.n > 1 {
                let mut own = vec![("data.mru", data)];
                own.extend((rows.m() > 0).then_some(("parity.mru", parity)));
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

    fn dirs(&self, i: usize) -> Dirs {
        Dirs::new(&self.root.path().join(format!("m{i}")))
    }

    fn title(&self, i: usize) -> PathBuf {
        self.dirs(i).title(self.manifest.title.id)
    }

    fn set(&self) -> TitleSet {
        let home = |slot: u16| Some(Home { slot, dirs: self.dirs(usize::from(slot)), active: true });
        TitleSet::new(self.manifest.clone(), self.manifest.encode(), home).unwrap()
    }

    /// Every file of every member with its bytes.
    fn tree(&self) -> Vec<(PathBuf, Vec<u8>)> {
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

    fn mend(&self, needs: &[Need], suspects: &[(usize, Units)]) -> Report {
        self.mend_until(needs, suspects, 0, u64::MAX).0
    }

    fn mend_until(
        &self,
        needs: &[Need],
        suspects: &[(usize, Units)],
        rate: u64,
        stop_at_ns: u64,
    ) -> (Report, u64, Result<(), RepairError>) {
        let time = Counted { now: Cell::new(0), stop_at_ns, stop: AtomicBool::new(false) };
        let tell = &mut |_: &_| ();
        let setting = Setting { time: &time, stop: &time.stop, tell, faults: ReadFaults::default() };
        let mut work = Work::new(setting, rate);
        let result = mend(&self.set(), needs, suspects, &mut work);
        (work.report, time.now.get(), result)
    }

    fn flip(&self, member: usize, name: &str, at: usize) {
        let path = self.title(member).join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 4;
        fs::write(path, bytes).unwrap();
    }
}

fn film(bytes: usize) -> Vec<u8> {
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

fn info(id: TitleId, film: &[u8]) -> TitleInfo {
    TitleInfo {
        id,
        name: "film".to_owned(),
        bytes: film.len() as u64,
        packets: film.len().div_ceil(PACKET) as u32,
        packet_sizes: vec![PACKET as u16],
        duration: MediaTicks(90_000),
        mean_rate: BitRate(1),
        peak_rate: BitRate(1),
        constant_rate: true,
        streams: Vec::new(),
        timeline: Timeline { ssrc: 1, timestamp_base: 2 },
        source: SourceIdentity { path: PathBuf::from("/films/film"), bytes: 1, modified_unix_ns: 1 },
        added_unix_s: 1,
        blake3: blake3::hash(film).to_hex().to_string(),
        notes: Vec::new(),
    }
}

fn whole(position: usize) -> Need {
    Need { position, whole: true, files: Vec::new() }
}

fn file(position: usize, name: &str) -> Need {
    Need { position, whole: false, files: vec![(name.to_owned(), "wrong".to_owned())] }
}

fn geometry(members: usize, tolerance: usize) -> Geometry {
    Geometry::choose(members, tolerance, 0).unwrap()
}

#[test]
fn members_that_were_lost_come_back_byte_for_byte() {
    for (members, tolerance) in [(2, 1), (3, 1), (4, 2), (5, 1), (5, 3)] {
        let world = World::new(geometry(members, tolerance), 400);
        let before = world.tree();
        for first in 0..members {
            let lost: Vec<usize> = (0..tolerance).map(|i| (first + i * 2) % members).collect();
            lost.iter().for_each(|&i| fs::remove_dir_all(world.title(i)).unwrap());
            let mut lost: Vec<usize> = lost;
            lost.sort_unstable();
            lost.dedup();
            let report = world.mend(&lost.iter().map(|&i| whole(i)).collect::<Vec<_>>(), &[]);
            assert_eq!(report.count(Fate::Mended), lost.len(), "{members} members, {report:?}");
            assert!(world.tree() == before, "{members} members, {lost:?} lost");
        }
    }
}

#[test]
fn one_lost_member_too_many_is_said_and_nothing_is_touched() {
    let world = World::new(geometry(3, 1), 100);
    fs::remove_dir_all(world.title(0)).unwrap();
    fs::remove_dir_all(world.title(2)).unwrap();
    let before = world.tree();
    let report = world.mend(&[whole(0), whole(2)], &[]);
    assert_eq!(report.count(Fate::Lost), 2, "{report:?}");
    assert!(report.found[0].what.contains("row 0 of the title cannot be restored"), "{report:?}");
    assert!(world.tree() == before);
}

#[test]
fn a_stopped_repair_goes_on_where_it_was() {
    let world = World::new(geometry(3, 1), 26_000);
    let before = world.tree();
    fs::remove_dir_all(world.title(1)).unwrap();
    let (_, _, result) = world.mend_until(&[whole(1)], &[], 100_000_000, 500_000_000);
    assert!(matches!(result, Err(RepairError::Stopped)));
    assert!(!world.title(1).exists());
    let half = world.dirs(1).tmp.join(world.manifest.title.id.to_string());
    let made = fs::metadata(half.join("data.mru")).unwrap().len();
    assert!(made > 4 << 20 && made < 10 << 20, "{made} bytes");
    // The last bytes written never came to the disk.
    let mut bytes = fs::read(half.join("data.mru")).unwrap();
    let end = bytes.len() - 5000;
    bytes[end..].fill(0);
    fs::write(half.join("data.mru"), bytes).unwrap();
    let (report, _, result) = world.mend_until(&[whole(1)], &[], 0, u64::MAX);
    result.unwrap();
    assert_eq!(report.count(Fate::Mended), 1, "{report:?}");
    assert!(world.tree() == before);
    let full = world.manifest.files_on(1).iter().map(|f| f.bytes).sum::<u64>();
    assert!(report.bytes_written < full - made / 2, "{} of {full} written again", report.bytes_written);
}

#[test]
fn never_faster_than_the_bound() {
    let world = World::new(geometry(3, 1), 3000);
    fs::remove_dir_all(world.title(1)).unwrap();
    let (report, ns, result) = world.mend_until(&[whole(1)], &[], 1_000_000, u64::MAX);
    result.unwrap();
    let moved = report.bytes_read + report.bytes_written;
    let allowed = (ns + 100_000_000) / 1000;
    assert!(moved > 5_000_000 && moved <= allowed, "{moved} bytes in {ns} ns");
    assert!(moved + moved / 10 > allowed - 100_000, "and not much slower: {moved} of {allowed}");
}

#[test]
fn files_are_mended_one_by_one() {
    for name in ["data.mru", "parity.mru", "index.mri", "meta-1316.mrp", "parity.mrp", "manifest.mrm"] {
        let world = World::new(geometry(3, 1), 500);
        let before = world.tree();
        world.flip(1, name, 3);
        world.flip(1, name, 0);
        let report = world.mend(&[file(1, name)], &[]);
        assert_eq!(report.count(Fate::Mended), 1, "{name}: {report:?}");
        assert!(world.tree() == before, "{name}");
        fs::remove_file(world.title(1).join(name)).unwrap();
        world.mend(&[file(1, name)], &[]);
        assert!(world.tree() == before, "{name}");
    }
}

#[test]
fn parity_on_one_member_mends_its_film() {
    let world = World::new(Geometry::choose(1, 0, 2).unwrap(), 500);
    let before = world.tree();
    world.flip(0, "data.ts", 77);
    world.flip(0, "data.ts", 20 * PACKET * 7);
    world.flip(0, "parity.mru", 20 * PACKET * 2 + 5);
    let report = world.mend(&[file(0, "data.ts"), file(0, "parity.mru")], &[]);
    assert_eq!(report.count(Fate::Mended), 2, "{report:?}");
    assert!(world.tree() == before);
}

#[test]
fn damage_that_the_sums_do_not_see_is_mended_by_its_hash() {
    for (members, tolerance) in [(2, 1), (3, 1), (5, 1)] {
        let world = World::new(geometry(members, tolerance), 500);
        let before = world.tree();
        let path = world.title(1).join("data.mru");
        let mut bytes = fs::read(&path).unwrap();
        bytes.swap(100, 102);
        bytes.swap(101, 103);
        fs::write(path, bytes).unwrap();
        let report = world.mend(&[file(1, "data.mru")], &[(1, Units::Data)]);
        assert_eq!(report.count(Fate::Mended), 1, "{members} members: {report:?}");
        assert!(world.tree() == before, "{members} members");
    }
}

#[test]
fn copies_that_are_damaged_in_different_places_make_one_that_is_not() {
    let world = World::new(geometry(2, 1), 3000);
    let before = world.tree();
    world.flip(0, "meta-1316.mrp", 4096 * 2 + 9);
    world.flip(1, "meta-1316.mrp", 4096 * 4 + 9);
    let report = world.mend(&[file(0, "meta-1316.mrp"), file(1, "meta-1316.mrp")], &[]);
    assert_eq!(report.count(Fate::Mended), 2, "{report:?}");
    assert!(world.tree() == before);
    world.flip(0, "meta-1316.mrp", 4096 * 2 + 9);
    world.flip(1, "meta-1316.mrp", 4096 * 2 + 9);
    let before = world.tree();
    let report = world.mend(&[file(0, "meta-1316.mrp"), file(1, "data.mru")], &[]);
    assert_eq!(report.count(Fate::Lost), 2, "{report:?}");
    assert!(world.tree() == before);
}

#[test]
fn a_title_that_is_gone_is_not_brought_back() {
    let world = World::new(geometry(2, 1), 50);
    let set = world.set();
    (0..2).for_each(|i| fs::remove_dir_all(world.title(i)).unwrap());
    let time = Counted { now: Cell::new(0), stop_at_ns: u64::MAX, stop: AtomicBool::new(false) };
    let tell = &mut |_: &_| ();
    let setting = Setting { time: &time, stop: &time.stop, tell, faults: ReadFaults::default() };
    let mut work = Work::new(setting, 0);
    mend(&set, &[whole(1)], &[], &mut work).unwrap();
    assert_eq!(work.report.found, []);
    assert!(world.tree().is_empty());
}
