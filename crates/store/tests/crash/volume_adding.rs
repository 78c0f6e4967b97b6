//! Adding a title beside many: it takes no more than beside none, and no other title is looked at.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sim::Sim;
use millrace_store::StoreError;
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{FinishTitle, Volume};
use millrace_testkit::titles::{Film, SIZE, source};
use rusqlite::Connection;

fn sql(store: &Path) -> Connection {
    Connection::open(store.join("catalogue.sqlite")).unwrap()
}

fn run(store: &Path, statement: &str) {
    sql(store).execute(statement, []).unwrap();
}

/// Something that is done to the catalogue of a store.
type Damage = fn(&Path);

/// Creates the members of a new volume that has `titles` titles, "film-0" and so on; closed again.
fn members(count: usize, titles: u64) -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let roots: Vec<_> = (0..count).map(|i| dir.path().join(format!("m{i}"))).collect();
    let volume = match count {
        1 => Volume::open_or_create(&roots[0]).unwrap(),
        _ => Volume::create(&roots, Geometry::choose(count, 1, 0).unwrap()).unwrap(),
    };
    (0..titles).for_each(|i| drop(Film::new(7, i).add(&volume, &format!("film-{i}"))));
    (dir, roots)
}

/// After this, a title can no longer be examined unnoticed: its manifest is unreadable, and reading
/// its row in the catalogue causes the catalogue to be set aside.
fn make_unreadable(roots: &[PathBuf]) {
    for title in roots.iter().flat_map(|root| fs::read_dir(root.join("titles")).unwrap()) {
        fs::write(title.unwrap().path().join("manifest.mrm"), b"nothing").unwrap();
    }
    run(&roots[0], "UPDATE title SET info = 'nobody has looked'");
}

/// Adds two titles in one process, one of them under a taken name if there is one, and a third in another. Returns how
/// many operations that took.
fn operations_of_additions(roots: &[PathBuf], titles: u64) -> u64 {
    let sim = Sim::new(&roots.iter().map(PathBuf::as_path).collect::<Vec<_>>()).unwrap();
    let open = || Volume::open_on(&roots[0], sim.disk()).unwrap();
    let volume = open();
    for (wish, taken) in [("film-0", titles > 0), ("another", false)] {
        assert_eq!(volume.find_source(&source(&format!("new {wish}"))).unwrap(), None);
        let film = Film::new(7, 99);
        let finish = FinishTitle { source: source(&format!("new {wish}")), ..film.finish(wish) };
        let info = film.write(&volume, &[SIZE]).unwrap().commit(finish).unwrap();
        assert_eq!(info.name, if taken { format!("{wish}-2") } else { wish.to_owned() });
        assert_eq!(volume.find_source(&info.source).unwrap(), Some(info));
    }
    drop(volume);
    assert_eq!(Film::new(7, 98).add(&open(), "another").name, "another-2");
    sim.operations()
}

#[test]
fn adding_title_reads_no_other_titles() {
    for count in [1, 3] {
        let (_dir, roots) = members(count, 0);
        let alone = operations_of_additions(&roots, 0);
        let (_dir, roots) = members(count, 12);
        make_unreadable(&roots);
        let beside = operations_of_additions(&roots, 12);
        assert_eq!(beside, alone, "operations on {count} members");
        let not_looked_at = "SELECT count(*) FROM title WHERE info = 'nobody has looked'";
        let rows: i64 = sql(&roots[0]).query_row(not_looked_at, [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 12, "rows that nobody has looked at, {count} members");
        assert!(!roots[0].join("catalogue.sqlite.damaged").exists());
        // Whoever lists the titles sees it all.
        let volume = Volume::open(&roots[0]).unwrap();
        assert_eq!((volume.titles().unwrap().len(), volume.unreadable().unwrap().len()), (3, 12));
    }
}

/// A catalogue that is stale, or lies, gives no name twice, and no title of a source twice.
#[test]
fn names_stay_unique_whatever_becomes_of_the_catalogue() {
    let damages: [(&str, Damage); 8] = [
        ("deleted", |store| fs::remove_file(store.join("catalogue.sqlite")).unwrap()),
        ("no database", |store| fs::write(store.join("catalogue.sqlite"), [7; 9000]).unwrap()),
        ("no rows", |store| run(store, "DELETE FROM title")),
        ("one row", |store| run(store, "DELETE FROM title WHERE name = 'film-0'")),
        ("another name", |store| run(store, "UPDATE title SET name = 'x'")),
        ("another source", |store| run(store, "UPDATE title SET source_key = 7")),
        ("other members", |store| run(store, "UPDATE title SET members = 9")),
        ("no index", |store| run(store, "DROP INDEX title_in_brief")),
    ];
    for (what, damage) in damages {
        let (_dir, roots) = members(1, 3);
        damage(&roots[0]);
        let volume = Volume::open(&roots[0]).unwrap();
        let known = volume.find_source(&source("film-0")).unwrap();
        assert_eq!(known.map(|info| info.name).as_deref(), Some("film-0"), "{what}");
        drop(volume);
        damage(&roots[0]);
        let volume = Volume::open(&roots[0]).unwrap();
        assert_eq!(Film::new(7, 9).add(&volume, "film-0").name, "film-0-2", "{what}");
        damage(&roots[0]);
        assert_eq!(Film::new(7, 9).add(&volume, "film-0").name, "film-0-3", "{what}, while it is open");
        let names: Vec<String> = volume.titles().unwrap().into_iter().map(|info| info.name).collect();
        assert_eq!(names, ["film-0", "film-0-2", "film-0-3", "film-1", "film-2"], "{what}");
    }
}

#[test]
fn title_name_is_free_after_removal_by_other_process() -> Result<(), StoreError> {
    let (_dir, roots) = members(1, 2);
    let (ours, theirs) = (Volume::open(&roots[0])?, Volume::open(&roots[0])?);
    assert_eq!(Film::new(7, 9).add(&ours, "film-0").name, "film-0-2");
    let id = theirs.find("film-0")?.unwrap().id;
    theirs.remove(id)?;
    assert_eq!(Film::new(7, 9).add(&ours, "film-0").name, "film-0");
    // Also one whose row is still there, as after a crash.
    let id = theirs.find("film-1")?.unwrap().id;
    fs::remove_dir_all(roots[0].join(format!("titles/{id}"))).unwrap();
    assert_eq!(Film::new(7, 9).add(&ours, "film-1").name, "film-1");
    Ok(())
}
