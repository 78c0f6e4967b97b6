use std::path::{Path, PathBuf};

use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;

use super::super::Stamp;
use super::super::db::Db;
use super::*;
use crate::dirs::Dirs;
use crate::volume::{Origin, PlacedOn};

fn row(number: u8) -> CatalogueRow {
    let info = TitleInfo {
        id: TitleId([number; 16]),
        name: format!("film-{number}"),
        bytes: 1316,
        packets: 1,
        packet_sizes: vec![1316],
        duration: MediaTicks(9),
        mean_rate: BitRate(1),
        peak_rate: BitRate(2),
        constant_rate: true,
        streams: Vec::new(),
        timeline: Timeline { ssrc: 1, timestamp_base: 2 },
        source: SourceIdentity {
            path: PathBuf::from(format!("/films/{number}")),
            bytes: 1,
            modified_unix_ns: 2,
        },
        added_unix_s: 3,
        blake3: "0".repeat(64),
        notes: Vec::new(),
        derived: None,
        rendition: None,
        title: None,
        origin: Origin::default(),
        subtitles: Vec::new(),
        source_start: 0,
        chapters: Vec::new(),
        began_unix_ms: None,
    };
    let stamp = Stamp { inode: 1, bytes: 2, modified_ns: 3 };
    CatalogueRow { info, stamp, placed: PlacedOn { members: 3, may: 1 } }
}

fn with_rows(path: &Path, rows: &[CatalogueRow]) {
    Db::open(path, Check::Whole).unwrap().change(rows, &[]).unwrap();
}

/// Whole checks are left out where names are read, so damage has to show in the entries themselves: whatever byte is wrong, a
/// title is there as it was, or missing, which a look at the names below `titles` finds out, or the damage is found.
#[test]
fn names_from_damaged_catalogue_are_correct_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalogue.sqlite");
    let rows: Vec<CatalogueRow> = (0..20).map(row).collect();
    with_rows(&path, &rows);
    let good = fs::read(&path).unwrap();
    let (mut refused, mut whole) = (0, 0);
    for at in (0..good.len()).step_by(7) {
        let mut damaged = good.clone();
        damaged[at] ^= 0x15;
        fs::write(&path, damaged).unwrap();
        for log in ["-wal", "-shm"] {
            let _ = fs::remove_file(dir.path().join(format!("catalogue.sqlite{log}")));
        }
        let read = Db::open(&path, Check::Entries).and_then(|mut db| {
            let names = db.names()?;
            for row in &rows {
                if let Some(brief) = names.titles.get(&row.info.id) {
                    assert_eq!(*brief, Brief::of(row), "byte {at}");
                    assert!(names.has(&brief.name) && names.of_source(brief.source_key) == [brief.id]);
                }
            }
            Ok(names.titles.len())
        });
        match read {
            Ok(count) => whole += usize::from(count == rows.len()),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 20 && whole > 20, "{refused} refused, {whole} not touched");
}

#[test]
fn names_follow_the_changes_of_every_connection() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalogue.sqlite");
    let mut ours = Db::open(&path, Check::Entries).unwrap();
    let mut theirs = Db::open(&path, Check::Entries).unwrap();
    let ids = |db: &mut Db| {
        let mut ids: Vec<u8> = db.names().unwrap().titles.keys().map(|id| id.0[0]).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids(&mut ours), [0_u8; 0]);
    ours.change(&[row(1), row(2)], &[]).unwrap();
    assert_eq!(ids(&mut ours), [1, 2]);
    theirs.change(&[row(3)], &[row(1).info.id]).unwrap();
    assert_eq!(ids(&mut ours), [2, 3]);
    let mut renamed = row(2);
    renamed.info.name = "another".to_owned();
    ours.change(&[renamed], &[]).unwrap();
    let names = ours.names().unwrap();
    assert!(names.has("another") && names.has("film-3") && !names.has("film-2") && !names.has("film"));
    assert!(theirs.names().unwrap().has("another"));
}

#[test]
fn names_has_matches_whole_name_not_prefix() {
    let mut names = Names::default();
    names.insert(Brief::of(&row(11)));
    assert!(names.has("film-11") && !names.has("film-1") && !names.has("film-111"));
    names.remove(TitleId([11; 16]));
    assert!(!names.has("film-11"));
    assert_eq!(names.of_source(Brief::of(&row(11)).source_key), []);
}

/// Number of rows that a reader sees, and number of files in the catalogue's directory.
fn rows_and_files(path: &Path) -> (usize, usize) {
    let rows = Db::open(path, Check::Whole).unwrap().all().unwrap().len();
    (rows, fs::read_dir(path.parent().unwrap()).unwrap().count())
}

#[test]
fn open_maps_no_file_and_converts_a_catalogue_in_wal_mode_with_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("a/catalogue.sqlite"), dir.path().join("b/catalogue.sqlite"));
    for path in [&path, &copy] {
        fs::create_dir(path.parent().unwrap()).unwrap();
    }
    with_rows(&path, &[row(1)]);
    let db = Db::open(&path, Check::Whole).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(dir.path().to_str().unwrap()), "{maps}");
    drop(db);

    // As an earlier version had it open, with a row in its log only.
    let old = rusqlite::Connection::open(&path).unwrap();
    old.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    old.execute("UPDATE title SET name = name", []).unwrap();
    assert!(path.with_file_name("catalogue.sqlite-shm").exists());
    for suffix in ["", "-wal"] {
        let name = format!("catalogue.sqlite{suffix}");
        fs::copy(path.with_file_name(&name), copy.with_file_name(&name)).unwrap();
    }
    // While the catalogue is in use, it is neither converted nor set aside.
    let error = Db::open(&path, Check::Whole).unwrap_err();
    assert!(super::super::db::is_the_disk(&error), "{error}");
    drop(old);
    // A catalogue left by a crash can be read without write access, and a normal open converts it
    // with its log.
    assert_eq!(Db::open_to_look(&copy).unwrap().all().unwrap().len(), 1);
    assert_eq!(rows_and_files(&copy), (1, 1));
    assert_eq!(rows_and_files(&path), (1, 1));
    let mode = rusqlite::Connection::open(&copy).unwrap();
    let mode: String = mode.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete");
}

/// `add` looks up a free name for each file: that must not look at all other titles again.
#[test]
fn look_up_of_absent_title_examines_only_titles_that_came_or_went() {
    let dir = tempfile::tempdir().unwrap();
    let volume = crate::volume::Volume::open_or_create(dir.path()).unwrap();
    let mut catalogue = Catalogue::open(&volume.inner.members).unwrap();
    let broken = Dirs::new(dir.path()).title(TitleId([9; 16]));
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("manifest.mrm"), b"not a manifest").unwrap();
    assert_eq!(catalogue.by_name("film").unwrap(), None);
    assert_eq!(catalogue.by_id(TitleId([7; 16])).unwrap(), None);
    assert_eq!(catalogue.unreadable.len(), 0, "all titles were looked at");
    catalogue.refresh().unwrap();
    assert_eq!(catalogue.unreadable.len(), 1);
}
