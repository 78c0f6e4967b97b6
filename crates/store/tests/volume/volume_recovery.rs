//! Whatever dies and whatever is lost: visible titles stay whole, titles that were not yet visible
//! are gone.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use millrace_store::StoreError;
use millrace_store::check::{Depth, Severity, check_store};
use millrace_store::format::superblock::{Geometry, Superblock};
use millrace_store::volume::{TitleInfo, TitleWriter, Volume};
use millrace_testkit::titles::{Film, SIZE, tree};
use rusqlite::Connection;

/// A store with two titles, closed again.
fn store_with_two() -> (tempfile::TempDir, Vec<TitleInfo>) {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let titles = vec![Film::new(3000, 1).add(&volume, "a"), Film::new(20, 2).add(&volume, "b")];
    (dir, titles)
}

fn tmp_entries(store: &Path) -> Vec<String> {
    tree(&store.join("tmp"))
}

#[test]
fn title_writer_drop_removes_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let writer = Film::new(20_000, 1).write(&volume, &[SIZE, 188]).unwrap();
    let id = writer.id();
    assert_eq!(
        tmp_entries(dir.path()).len(),
        7,
        "directory, lock, data, range sums, CRCs and two metadata files"
    );
    drop(writer);
    assert_eq!(tmp_entries(dir.path()), [""; 0]);
    assert!(matches!(volume.open_title(id, 1316), Err(StoreError::NoTitle { .. })));
    assert_eq!(volume.titles().unwrap(), []);
}

/// Runs one of the `child_` tests below in a process of its own, with `store` for it to work in.
fn child(test: &str, store: &Path) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("MILLRACE_TEST_STORE", store)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    (child, lines)
}

/// Where a `child_` test is to work; `None` in an ordinary run of the tests, in which it does nothing.
fn store_of_child() -> Option<PathBuf> {
    std::env::var_os("MILLRACE_TEST_STORE").map(PathBuf::from)
}

fn say(line: &str) {
    println!("\n{line}");
    std::io::stdout().flush().unwrap();
}

#[test]
fn child_that_ingests_until_it_is_killed() {
    let Some(dir) = store_of_child() else { return };
    let volume = Volume::open(&dir).unwrap();
    let writer = Film::new(20_000, 1).write(&volume, &[SIZE]).unwrap();
    say(&format!("ingesting {}", writer.id()));
    std::io::stdin().read_line(&mut String::new()).unwrap();
    panic!("the parent died first");
}

#[test]
fn killed_ingest_is_invisible_and_swept_at_open() {
    let (dir, titles) = store_with_two();
    let (mut child, mut lines) = child("volume_recovery::child_that_ingests_until_it_is_killed", dir.path());
    let id = lines.find_map(|line| line.strip_prefix("ingesting ").map(str::to_owned)).unwrap();
    // While it lives, others may open the store and do not touch its work.
    let volume = Volume::open(dir.path()).unwrap();
    assert!(tmp_entries(dir.path()).contains(&format!("{id}/data.ts")));
    assert_eq!(volume.titles().unwrap(), titles);
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    assert!(tmp_entries(dir.path()).contains(&format!("{id}/data.ts")), "nobody cleaned up: it was killed");
    assert_eq!(volume.titles().unwrap(), titles);
    let volume = Volume::open(dir.path()).unwrap();
    assert_eq!(tmp_entries(dir.path()), [""; 0]);
    assert_eq!(volume.titles().unwrap(), titles);
}

#[test]
fn child_that_works_until_it_is_killed() {
    let Some(dir) = store_of_child() else { return };
    let volume = Volume::open(&dir).unwrap();
    let film = Film::new(300, 7);
    loop {
        let first = film.add(&volume, "x");
        say("added");
        volume.add_packet_size(first.id, 188).unwrap();
        say("resized");
        film.add(&volume, "x");
        say("added");
        volume.remove(first.id).unwrap();
        say("removed");
    }
}

/// Kills a working process at many places, with nothing but luck to choose them, and holds the store against every
/// promise each time.
#[test]
fn store_after_kill_at_any_point_is_repaired_by_open() {
    let dir = tempfile::tempdir().unwrap();
    let film = Film::new(300, 7);
    drop(Volume::open_or_create(dir.path()).unwrap());
    for round in 0..24usize {
        let (mut child, lines) = child("volume_recovery::child_that_works_until_it_is_killed", dir.path());
        let said =
            lines.filter(|line| matches!(line.as_str(), "added" | "resized" | "removed")).nth(round % 8);
        assert!(said.is_some(), "the child ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        let findings = check_store(dir.path(), Depth::Full, &mut |_| {}).unwrap();
        let errors: Vec<_> = findings.iter().filter(|f| f.severity == Severity::Error).collect();
        assert!(errors.is_empty(), "round {round}: {errors:#?}");
        let volume = Volume::open(dir.path()).unwrap();
        let findings = check_store(dir.path(), Depth::Full, &mut |_| {}).unwrap();
        let left: Vec<_> = findings.iter().filter(|f| f.promise != "no_other_file_is_there").collect();
        assert!(left.is_empty(), "round {round}, after the open: {left:#?}");
        for info in volume.titles().unwrap() {
            assert_eq!(info.blake3, blake3::hash(&film.bytes).to_hex().as_str());
            for &size in &info.packet_sizes {
                volume.open_title(info.id, usize::from(size)).unwrap();
            }
            volume.remove(info.id).unwrap();
        }
        assert_eq!(tree(&dir.path().join("titles")), [""; 0]);
    }
}

#[test]
fn open_does_not_sweep_writer_of_same_process() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(20, 3);
    let writer = film.write(&volume, &[SIZE]).unwrap();
    Volume::open(dir.path()).unwrap();
    let info = writer.commit(film.finish("x")).unwrap();
    assert_eq!(Volume::open(dir.path()).unwrap().titles().unwrap(), [info]);
}

#[test]
fn open_finishes_interrupted_removal() {
    let (dir, titles) = store_with_two();
    // Killed after the catalogue's stripe went: the title is still there.
    let sql = Connection::open(dir.path().join("catalogue.sqlite")).unwrap();
    sql.execute("DELETE FROM title WHERE name = 'a'", []).unwrap();
    drop(sql);
    assert_eq!(Volume::open(dir.path()).unwrap().titles().unwrap(), titles);
    // Killed after the rename: the title is gone, its files go at the next open.
    let id = titles[0].id;
    let removed = dir.path().join(format!("tmp/{id}.rm"));
    fs::rename(dir.path().join(format!("titles/{id}")), &removed).unwrap();
    let volume = Volume::open(dir.path()).unwrap();
    assert_eq!(volume.titles().unwrap(), titles[1..]);
    assert!(!removed.exists());
}

#[test]
fn open_keeps_foreign_entries_in_tmp() {
    let (dir, _) = store_with_two();
    fs::write(dir.path().join("tmp/notes.txt"), "mine").unwrap();
    fs::create_dir_all(dir.path().join("tmp/backup.rm/deep")).unwrap();
    fs::create_dir(dir.path().join(format!("tmp/{}", "AB".repeat(16)))).unwrap(); // not how an id is printed
    fs::create_dir(dir.path().join(format!("tmp/{}", "ab".repeat(16)))).unwrap(); // an ingest that died at once
    Volume::open(dir.path()).unwrap();
    let expected = ["AB".repeat(16), "backup.rm".into(), "backup.rm/deep".into(), "notes.txt".into()];
    assert_eq!(tmp_entries(dir.path()), expected);
}

#[test]
fn open_or_create_by_many_threads_yields_one_volume() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("new/store");
    let blocks: Vec<Superblock> = std::thread::scope(|scope| {
        let open = || *Volume::open_or_create(&store).unwrap().superblock();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(blocks.iter().all(|block| *block == blocks[0]), "{blocks:?}");
    assert_eq!(Superblock::decode(&fs::read(store.join("volume.mrv")).unwrap()), Ok(blocks[0]));
}

#[test]
fn open_of_directory_without_superblock_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = Volume::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("not a Millrace store: it has no volume.mrv"), "{error}");
    assert!(Volume::open(&dir.path().join("missing")).is_err());
    fs::create_dir_all(dir.path().join(format!("tmp/{}", "ab".repeat(16)))).unwrap();
    let error = Volume::open_or_create(dir.path()).unwrap_err();
    assert!(error.to_string().contains("restore volume.mrv from a backup"), "{error}");
    assert_eq!(tree(dir.path()).len(), 2, "nothing was made and nothing removed");
}

#[test]
fn open_with_damaged_or_unsupported_superblock_fails() {
    let (dir, titles) = store_with_two();
    let path = dir.path().join("volume.mrv");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0x20;
        fs::write(&path, damaged).unwrap();
        let error = Volume::open(dir.path()).unwrap_err();
        assert!(error.to_string().starts_with(path.to_str().unwrap()), "byte {at}: {error}");
    }
    for len in 0..good.len() {
        fs::write(&path, &good[..len]).unwrap();
        assert!(Volume::open(dir.path()).is_err(), "cut to {len}");
    }
    fs::write(&path, [&good[..], b"x"].concat()).unwrap();
    assert!(Volume::open(dir.path()).is_err(), "longer");
    let mut block = Superblock::decode(&good).unwrap();
    block.geometry = Geometry { k: 80, m: 1, unit_packets: 20, members: 3 };
    fs::write(&path, block.encode()).unwrap();
    let error = Volume::open_or_create(dir.path()).unwrap_err().to_string();
    assert!(error.contains("data units k is 80; this version of Millrace supports up to 64"), "{error}");
    fs::write(&path, good).unwrap();
    assert_eq!(Volume::open(dir.path()).unwrap().titles().unwrap(), titles);
}

#[test]
fn open_title_with_missing_or_truncated_file_names_it() {
    let (dir, titles) = store_with_two();
    let volume = Volume::open(dir.path()).unwrap();
    let id = titles[0].id;
    for name in ["data.ts", "index.mri", "meta-1316.mrp", "manifest.mrm"] {
        let path = dir.path().join(format!("titles/{id}/{name}"));
        let good = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = volume.open_title(id, 1316).unwrap_err().to_string();
        assert!(error.contains(&format!("{name}: is missing")), "{error}");
        for len in [0, 1, 63, 64, 188, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..len.min(good.len() - 1)]).unwrap();
            let error = volume.open_title(id, 1316).unwrap_err().to_string();
            assert!(error.contains(name), "{len}: {error}");
        }
        fs::write(&path, [&good[..], &[0; 188]].concat()).unwrap();
        assert!(volume.open_title(id, 1316).unwrap_err().to_string().contains(name), "longer");
        fs::write(&path, good).unwrap();
        volume.open_title(id, 1316).unwrap();
    }
}

#[test]
fn files_of_another_title_are_not_taken_for_this_ones() {
    let (dir, titles) = store_with_two();
    let volume = Volume::open(dir.path()).unwrap();
    let file = |i: usize, name: &str| dir.path().join(format!("titles/{}/{name}", titles[i].id));
    for name in ["index.mri", "meta-1316.mrp", "manifest.mrm"] {
        let good = fs::read(file(1, name)).unwrap();
        fs::copy(file(0, name), file(1, name)).unwrap();
        let error = volume.open_title(titles[1].id, 1316).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        fs::write(file(1, name), good).unwrap();
    }
    volume.open_title(titles[1].id, 1316).unwrap();
}

#[test]
fn unreadable_title_is_reported_and_others_stay_listed() {
    let (dir, titles) = store_with_two();
    let volume = Volume::open(dir.path()).unwrap();
    assert!(volume.unreadable().unwrap().is_empty());
    let manifest = dir.path().join(format!("titles/{}/manifest.mrm", titles[0].id));
    let mut bytes = fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    // Replaced as a whole, as a damaged file system would show it: another inode.
    fs::remove_file(&manifest).unwrap();
    fs::write(&manifest, bytes).unwrap();
    for volume in [&volume, &Volume::open(dir.path()).unwrap()] {
        assert_eq!(volume.titles().unwrap(), titles[1..]);
        assert_eq!(volume.find("a").unwrap(), None);
        let unreadable = volume.unreadable().unwrap();
        assert_eq!(unreadable.len(), 1);
        assert_eq!(unreadable[0].id, titles[0].id);
        let error = unreadable[0].error.to_string();
        assert!(error.contains("manifest.mrm: manifest: body checksum"), "{error}");
    }
    fs::remove_file(&manifest).unwrap();
    let error = volume.unreadable().unwrap()[0].error.to_string();
    assert!(error.contains("manifest.mrm"), "{error}");
    volume.remove(titles[0].id).unwrap();
    assert!(volume.unreadable().unwrap().is_empty());
    assert_eq!(volume.titles().unwrap(), titles[1..]);
}

/// Damages the catalogue of a store, once while it is closed and once while it is open, and expects
/// the truth all the same.
fn survives(what: &str, damage: impl Fn(&Path)) {
    let (dir, titles) = store_with_two();
    let catalogue = dir.path().join("catalogue.sqlite");
    let expect = |volume: &Volume| {
        assert_eq!(volume.find("a").unwrap().as_ref(), Some(&titles[0]), "{what}");
        assert_eq!(volume.find_source(&titles[1].source).unwrap().as_ref(), Some(&titles[1]), "{what}");
        assert_eq!(volume.titles().unwrap(), titles, "{what}");
    };
    damage(&catalogue);
    let volume = Volume::open(dir.path()).unwrap();
    expect(&volume);
    damage(&catalogue);
    expect(&volume);
    let info = Film::new(20, 9).add(&volume, "c");
    assert_eq!(Volume::open(dir.path()).unwrap().find("c").unwrap(), Some(info), "{what}");
}

#[test]
fn catalogue_missing_at_open_is_rebuilt() {
    survives("deleted", |path| fs::remove_file(path).unwrap());
    survives("deleted with its log", |path| {
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{suffix}", path.display()));
        }
    });
    survives("empty", |path| fs::write(path, b"").unwrap());
}

#[test]
fn catalogue_invalid_at_open_is_set_aside_and_rebuilt() {
    survives("text", |path| {
        fs::remove_file(path).unwrap();
        fs::write(path, b"this is not a database, not at all, and long enough to be seen as one").unwrap();
        let aside = format!("{}.damaged", path.display());
        let _ = fs::remove_file(aside);
    });
    survives("a directory", |path| {
        fs::remove_file(path).unwrap();
        fs::create_dir_all(path.join("full")).unwrap();
    });
    survives("somebody else's database", |path| {
        fs::remove_file(path).unwrap();
        let sql = Connection::open(path).unwrap();
        sql.execute_batch("CREATE TABLE title (id TEXT); INSERT INTO title VALUES ('x')").unwrap();
    });
    survives("of a later version", |path| {
        Connection::open(path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    });
    let (dir, _) = store_with_two();
    fs::write(dir.path().join("catalogue.sqlite"), b"junk of some length, enough to be read as a header")
        .unwrap();
    Volume::open(dir.path()).unwrap();
    let aside = fs::read(dir.path().join("catalogue.sqlite.damaged")).unwrap();
    assert!(aside.starts_with(b"junk"), "kept for a person to look at");
}

#[test]
fn rows_that_lie_are_found_out() {
    let change = |sql: &'static str| {
        move |path: &Path| {
            Connection::open(path).unwrap().execute_batch(sql).unwrap();
        }
    };
    survives("no table", change("DROP TABLE title"));
    survives("stripes lost", change("DELETE FROM title"));
    survives(
        "a stripe too many",
        change("UPDATE title SET id = 'ffffffffffffffffffffffffffffffff' WHERE name = 'a'"),
    );
    survives("no id", change("UPDATE title SET id = 'x' WHERE name = 'a'"));
    survives("another name", change("UPDATE title SET name = 'b' WHERE name = 'a'"));
    survives(
        "a changed description",
        change("UPDATE title SET info = replace(info, '\"bytes\":', '\"bytes\":1')"),
    );
    survives("an old stamp", change("UPDATE title SET manifest_inode = manifest_inode + 1"));
    survives("another source", change("UPDATE title SET source_bytes = source_bytes + 1"));
    survives("no description", change("UPDATE title SET info = '{}', crc = 0"));
}

#[test]
fn catalogue_with_flipped_byte_yields_all_titles() {
    let (dir, titles) = store_with_two();
    let path = dir.path().join("catalogue.sqlite");
    let good = fs::read(&path).unwrap();
    assert!(good.len() > 8192, "the last connection moves its log into the file");
    for at in (0..good.len()).step_by(61) {
        let mut damaged = good.clone();
        damaged[at] ^= 0x55;
        fs::write(&path, damaged).unwrap();
        let volume = Volume::open(dir.path()).unwrap();
        assert_eq!(volume.titles().unwrap(), titles, "byte {at}");
        assert_eq!(volume.find("b").unwrap().as_ref(), Some(&titles[1]), "byte {at}");
    }
}

#[test]
fn title_writer_does_not_wait_for_concurrent_writer() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let film = Film::new(700, 4);
    let first = film.write(&volume, &[SIZE]).unwrap();
    let mut second = TitleWriter::begin(&volume, &[SIZE]).unwrap();
    second.write_data(&film.bytes).unwrap();
    (0..film.packets(SIZE)).for_each(|p| second.push_meta(SIZE, film.meta(SIZE, p)).unwrap());
    assert_eq!(second.commit(film.finish("x")).unwrap().name, "x");
    assert_eq!(first.commit(film.finish("x")).unwrap().name, "x-2");
}
