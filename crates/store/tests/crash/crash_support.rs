//! Looks at a store after every power cut and every failed operation that a piece of work can meet.
//!
//! A test does its work on a simulated disk and marks the guarantees that it gives to a user;
//! [`each_state`] then rebuilds the states that a power cut at any moment may leave, each once, and
//! [`Library::verify`] verifies them against the guarantees. `MILLRACE_CRASH_SEEDS=N` tries N
//! random states at every moment (a few by default): `make crash` runs it with many.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use crate::sim::{Fate, Recording};
use millrace_core::packet::PacketMeta;
use millrace_core::wire::checksum::sum16;
use millrace_store::check::{Depth, Severity, check_store};
use millrace_store::format::manifest::{CRC_FILE, MANIFEST_FILE, PARITY_CRC_FILE, SUMS_FILE};
use millrace_store::volume::{CATALOGUE_FILE, MediaReader, TitleInfo, Volume};

use crate::crc_support::strip;
use millrace_testkit::titles::{Film, SIZE};

/// A directory in memory where there is one: states are many and small.
pub(crate) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let in_memory = memory.is_dir().then(|| tempfile::tempdir_in(memory).ok()).flatten();
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// Returns the number of random states to examine for each moment, besides the plain ones; `few`
/// unless the environment sets another.
pub(crate) fn seeds(few: u64) -> u64 {
    std::env::var("MILLRACE_CRASH_SEEDS")
        .ok()
        .map_or(few, |n| n.parse().expect("MILLRACE_CRASH_SEEDS: a number"))
}

/// State after a power cut.
pub(crate) struct Left<'a> {
    /// The directories, in the order of the simulation's.
    pub(crate) roots: &'a [PathBuf],
    /// Guarantees given before it.
    pub(crate) marks: Vec<&'a str>,
    /// Where and how the power was cut: repeats it.
    pub(crate) what: String,
    /// Which state this is of those looked at: varies what else is done with it.
    pub(crate) number: u64,
}

/// Rebuilds every state that a power cut may leave, each once, and passes it to `look`. Returns the
/// number of states.
pub(crate) fn each_state(
    recording: &Recording,
    roots: usize,
    few: u64,
    mut look: impl FnMut(&Left<'_>),
) -> usize {
    let mut seen = HashSet::new();
    for point in 0..recording.points() {
        let seeded = (0..seeds(few)).map(|seed| Fate::Seeded(seed ^ (point as u64) << 20));
        for fate in Fate::PLAIN.into_iter().chain(seeded) {
            let state = recording.state(point, fate);
            let marks = recording.marks(point);
            if !seen.insert((state.digest(), marks.len())) {
                continue;
            }
            let dir = scratch();
            let roots: Vec<PathBuf> = (0..roots).map(|root| dir.path().join(root.to_string())).collect();
            roots.iter().for_each(|root| std::fs::create_dir(root).unwrap());
            state.rebuild(&roots.iter().map(PathBuf::as_path).collect::<Vec<_>>()).unwrap();
            let what = format!("power cut at {point}, after \"{}\", {fate:?}", recording.before(point));
            look(&Left { roots: &roots, marks, what, number: seen.len() as u64 });
        }
    }
    seen.len()
}

/// Puts a catalogue there that the disk may have made of SQLite's writes: none, rubbish, or one of another time.
pub(crate) fn spoil_catalogue(root: &Path, other: &Path, number: u64) {
    let to = root.join(CATALOGUE_FILE);
    match number % 3 {
        0 => {}
        1 => std::fs::write(to, number.to_le_bytes().repeat(700)).unwrap(),
        _ => {
            for suffix in ["", "-wal"] {
                let from = other.join(format!("{CATALOGUE_FILE}{suffix}"));
                let _ = std::fs::copy(from, root.join(format!("{CATALOGUE_FILE}{suffix}")));
            }
        }
    }
}

/// The titles that a test works with, by the names it gives them.
#[derive(Default)]
pub(crate) struct Library(pub(crate) BTreeMap<&'static str, Film>);

/// Guarantee given for one title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Promise {
    /// An ingest was begun, or nothing: it may be there, whole.
    Nothing,
    There,
    /// A removal was begun.
    Going,
    Gone,
}

/// The last word on title `name` in `marks`: "adding NAME", "added NAME", "removing NAME", "removed NAME".
fn promise(marks: &[&str], name: &str) -> Promise {
    let word = |mark: &&str| match mark.split_once(' ') {
        Some(("added", n)) if n == name => Some(Promise::There),
        Some(("adding", n)) if n == name => Some(Promise::Nothing),
        Some(("removing", n)) if n == name => Some(Promise::Going),
        Some(("removed", n)) if n == name => Some(Promise::Gone),
        _ => None,
    };
    marks.iter().rev().find_map(word).unwrap_or(Promise::Nothing)
}

impl Library {
    pub(crate) fn new(films: impl IntoIterator<Item = (&'static str, Film)>) -> Self {
        Self(films.into_iter().collect())
    }

    pub(crate) fn add(&self, volume: &Volume, name: &str, sizes: &[u16]) -> TitleInfo {
        self.0[name].add_sizes(volume, name, sizes)
    }

    /// Holds the titles of an open volume against the promises, byte by byte.
    pub(crate) fn verify(&self, volume: &Volume, marks: &[&str], what: &str) {
        let unreadable = volume.unreadable().unwrap();
        assert!(unreadable.is_empty(), "{what}: {unreadable:?}");
        let titles = volume.titles().unwrap();
        let names: Vec<&str> = titles.iter().map(|info| info.name.as_str()).collect();
        for name in self.0.keys() {
            match promise(marks, name) {
                Promise::There => {
                    assert!(names.contains(name), "{what}: {name} is lost; there are {names:?}")
                }
                Promise::Gone => assert!(!names.contains(name), "{what}: {name} is back"),
                Promise::Nothing | Promise::Going => {}
            }
        }
        for info in &titles {
            let film =
                self.0.get(info.name.as_str()).unwrap_or_else(|| panic!("{what}: {} came up", info.name));
            assert_eq!(info.blake3, blake3::hash(&film.bytes).to_hex().as_str(), "{what}: {}", info.name);
            for size in promised_sizes(marks, &info.name) {
                assert!(info.packet_sizes.contains(&size), "{what}: {} lost {size}", info.name);
            }
            for &size in &info.packet_sizes {
                assert_reads(volume, info, film, size, what);
            }
        }
    }
}

/// "prepared NAME SIZE".
fn promised_sizes<'a>(marks: &'a [&str], name: &'a str) -> impl Iterator<Item = u16> + 'a {
    marks.iter().filter_map(move |mark| {
        let rest = mark.strip_prefix("prepared ")?.strip_prefix(name)?.strip_prefix(' ')?;
        rest.parse().ok()
    })
}

/// Asserts that every packet of a title is as it was ingested, with its sum and time, however its
/// bytes must be obtained.
fn assert_reads(volume: &Volume, info: &TitleInfo, film: &Film, size: u16, what: &str) {
    let mut bytes = vec![0; film.bytes.len()];
    let read = MediaReader::open(volume, info.id).and_then(|mut reader| reader.read_exact(0, &mut bytes));
    read.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(bytes == film.bytes, "{what}: {} has other bytes", info.name);
    let files = volume.open_title(info.id, usize::from(size)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut metas = vec![PacketMeta::default(); film.packets(size) as usize];
    files.meta.read(0, &mut metas).unwrap_or_else(|e| panic!("{what}: {e}"));
    for ((packet, meta), payload) in (0..).zip(&metas).zip(bytes.chunks(usize::from(size))) {
        assert_eq!(meta.sum(), sum16(payload), "{what}: {}, packet {packet} of {size}", info.name);
        assert_eq!(meta.time(), film.meta(size, packet).time(), "{what}: {}, packet {packet}", info.name);
    }
}

/// No promise of the format is broken.
pub(crate) fn assert_sound(root: &Path, what: &str) {
    let findings = check_store(root, Depth::Full, &mut |_| {}).unwrap_or_else(|e| panic!("{what}: {e}"));
    let errors: Vec<_> = findings.iter().filter(|f| f.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{what}: {errors:#?}");
}

/// Titles as versions without range sums and CRCs made them, and what `prepare` is to make of them.
pub(crate) struct Older {
    /// By member: each file of a title but its manifest, as the present version made it.
    whole: Vec<BTreeMap<PathBuf, Vec<u8>>>,
}

impl Older {
    /// Makes older titles of all that are below these directories.
    pub(crate) fn make(roots: &[PathBuf]) -> Self {
        let whole = roots.iter().map(|root| records(root)).collect();
        for title in roots.iter().flat_map(|root| std::fs::read_dir(root.join("titles")).unwrap()) {
            strip(&title.unwrap().path(), &[SUMS_FILE, CRC_FILE, PARITY_CRC_FILE]);
        }
        Self { whole }
    }

    /// Every title is the older one or the new one: the new one if that was promised ("upgraded NAME").
    pub(crate) fn verify(&self, volume: &Volume, marks: &[&str], what: &str) {
        for info in volume.titles().unwrap() {
            let name = &info.name;
            let open = |size: u16| volume.open_title(info.id, usize::from(size));
            let files = open(SIZE).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
            assert_eq!(files.has_crcs, files.crcs.is_some(), "{what}: {name} is half upgraded");
            // Another size is derived from the range sums.
            assert_eq!(files.has_crcs, open(8 * 188).is_ok(), "{what}: {name} is half upgraded");
            let is_promised = marks.iter().any(|mark| mark.strip_prefix("upgraded ") == Some(name.as_str()));
            assert!(files.has_crcs || !is_promised, "{what}: {name} is the older one again");
        }
    }

    /// Another attempt upgrades the remaining titles: then all files of all titles are as if the
    /// present version had made them, and there are no others beside them.
    pub(crate) fn complete(&self, volume: &Volume, roots: &[PathBuf], what: &str) {
        let titles = volume.titles().unwrap();
        for info in &titles {
            let prepared = volume.prepare(info.id, &[], &mut |_| ());
            prepared.unwrap_or_else(|e| panic!("{what}: {} again: {e}", info.name));
        }
        let ids: HashSet<String> = titles.iter().map(|info| info.id.to_string()).collect();
        for (root, whole) in roots.iter().zip(&self.whole) {
            let is_there =
                |path: &Path| path.iter().next().is_some_and(|id| ids.contains(&*id.to_string_lossy()));
            let whole: BTreeMap<_, _> = whole.iter().filter(|(path, _)| is_there(path)).collect();
            let found = records(root);
            assert!(
                found.keys().eq(whole.keys().copied()),
                "{what}: {:?} for {:?}",
                found.keys(),
                whole.keys()
            );
            for (path, bytes) in &found {
                assert!(bytes == whole[path], "{what}: {} has other bytes", root.join(path).display());
            }
        }
    }
}

/// All files of the titles of a store but the manifests, by their paths below `titles`.
fn records(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let titles = root.join("titles");
    let paths = millrace_testkit::titles::tree(&titles).into_iter().map(PathBuf::from);
    let files = paths.filter(|path| path.file_name().is_some_and(|name| name != MANIFEST_FILE));
    files.filter_map(|path| Some((path.clone(), std::fs::read(titles.join(&path)).ok()?))).collect()
}
