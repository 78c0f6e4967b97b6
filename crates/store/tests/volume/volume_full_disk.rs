//! A full disk, or one that no longer accepts writes: the error names the missing resource, and
//! nothing is left behind. Needs to mount a tmpfs; reports if it may not.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_store::StoreError;
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{TitleWriter, Volume};
use millrace_testkit::titles::{Film, SIZE, tree};

/// One test at a time: between fork and exec the `mount` of one holds the open files of another, and with them the
/// space of files just deleted.
static ALONE: Mutex<()> = Mutex::new(());

/// A file system of a given size, unmounted when dropped.
struct SmallDisk {
    dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl SmallDisk {
    /// `None`, and a printed reason, if mounting is not permitted.
    fn mount(size: &str) -> Option<Self> {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(dir.path()).output();
        match mount {
            Ok(output) if output.status.success() => Some(Self { dir, _alone }),
            Ok(output) => {
                eprintln!(
                    "skipped: cannot mount a tmpfs: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                );
                None
            }
            Err(e) => {
                eprintln!("skipped: cannot run mount: {e}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// As the kernel does after errors (`read-only` or `read-write`).
    fn remount(&self, how: &str) {
        let done =
            Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(self.dir.path()).status();
        assert!(done.is_ok_and(|status| status.success()), "remount {}", self.dir.path().display());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(self.dir.path()).status();
        assert!(done.is_ok_and(|status| status.success()), "umount {}", self.dir.path().display());
    }
}

/// Writes until the disk is full; returns the error.
fn fill(writer: &mut TitleWriter, film: &Film) -> StoreError {
    film.bytes
        .chunks(188 * 100)
        .find_map(|portion| writer.write_data(portion).err())
        .expect("the disk is full")
}

#[test]
fn title_writer_on_full_disk_returns_no_space_with_path_and_size() {
    let Some(disk) = SmallDisk::mount("3m") else { return };
    let volume = Volume::open_or_create(disk.path()).unwrap();
    let small = Film::new(50, 1).add(&volume, "small");
    let before = tree(disk.path());
    let film = Film::new(40_000, 2);
    let mut writer = TitleWriter::begin(&volume, &[SIZE]).unwrap();
    let data: PathBuf = disk.path().join(format!("tmp/{}/data.ts", writer.id()));
    let error = fill(&mut writer, &film);
    let StoreError::NoSpace { path, offset, needed_bytes } = &error else { panic!("{error}") };
    assert_eq!(path, &data);
    assert_eq!((*offset, *needed_bytes), (2 << 20, 1 << 20));
    let text = error.to_string();
    assert!(text.contains("no space left") && text.contains("1048576") && text.contains("data.ts"), "{text}");
    // The space is free again before the writer is dropped, and the store works on.
    assert_eq!(tree(disk.path()), before);
    let other = Film::new(50, 3).add(&volume, "other");
    drop(writer);
    assert_eq!(volume.titles().unwrap(), [other, small]);
}

#[test]
fn commit_on_full_disk_returns_no_space_and_leaves_nothing() {
    let Some(disk) = SmallDisk::mount("3m") else { return };
    let volume = Volume::open_or_create(disk.path()).unwrap();
    let film = Film::new(5_000, 4); // 940 kB: all of it is in the writer's buffer until commit
    let before = tree(disk.path());
    let writer = film.write(&volume, &[SIZE]).unwrap();
    let ballast = disk.path().join("ballast");
    let full = std::fs::write(&ballast, vec![1; 4 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let error = writer.commit(film.finish("x")).unwrap_err();
    assert!(matches!(error, StoreError::NoSpace { .. }), "{error}");
    std::fs::remove_file(ballast).unwrap();
    assert_eq!(tree(disk.path()), before);
    assert_eq!(film.add(&volume, "x").name, "x");
}

#[test]
fn add_packet_size_on_full_disk_leaves_title_unchanged() {
    let Some(disk) = SmallDisk::mount("3m") else { return };
    let volume = Volume::open_or_create(disk.path()).unwrap();
    let info = Film::new(5_000, 5).add(&volume, "x");
    let before = tree(disk.path());
    let _ = std::fs::write(disk.path().join("ballast"), vec![1; 4 << 20]);
    let error = volume.add_packet_size(info.id, 188).unwrap_err();
    assert!(matches!(error, StoreError::NoSpace { .. }), "{error}");
    std::fs::remove_file(disk.path().join("ballast")).unwrap();
    assert_eq!(tree(disk.path()), before);
    assert_eq!(volume.find("x").unwrap(), Some(info.clone()));
    volume.add_packet_size(info.id, 188).unwrap();
    assert_eq!(volume.open_title(info.id, 188).unwrap().packets(), 5_000);
}

#[test]
fn note_damaged_on_full_disk_leaves_no_file() {
    let Some(disk) = SmallDisk::mount("3m") else { return };
    let volume = Volume::open_or_create(disk.path()).unwrap();
    let info = Film::new(50, 9).add(&volume, "x");
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).unwrap_err();
    let before = tree(disk.path());
    volume.note_damaged(info.id);
    assert!(volume.damaged_titles().is_empty());
    assert_eq!(tree(disk.path()), before);
    std::fs::remove_file(ballast).unwrap();
    volume.note_damaged(info.id);
    assert_eq!(volume.damaged_titles(), [info.id]);
}

#[test]
fn read_only_member_refuses_changes_and_is_named() {
    let Some(disk) = SmallDisk::mount("8m") else { return };
    let others = tempfile::tempdir().unwrap();
    let dirs = [others.path().join("a"), disk.path().join("b"), others.path().join("c")];
    let volume = Volume::create(&dirs, Geometry::choose(3, 1, 0).unwrap()).unwrap();
    let (info, kept) = (Film::new(500, 6).add(&volume, "x"), Film::new(50, 7).add(&volume, "kept"));
    // A removal that was begun has to be finished, which cannot be done on the disk that refuses.
    let begun = |dir: &Path| dir.join(format!("tmp/{}.rm", info.id));
    std::fs::rename(dirs[0].join(format!("titles/{}", info.id)), begun(&dirs[0])).unwrap();
    disk.remount("ro");
    let before = tree(disk.path());
    let volume = {
        drop(volume);
        Volume::open(&dirs[0]).unwrap()
    };
    for error in [
        volume.remove(info.id).unwrap_err(),
        TitleWriter::begin(&volume, &[SIZE]).map(drop).unwrap_err(),
        volume.add_packet_size(kept.id, 188).unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(matches!(error, StoreError::ReadOnly { .. }) && text.contains("read-only"), "{text}");
        assert!(text.contains(&dirs[1].display().to_string()), "{text}");
    }
    assert_eq!(tree(disk.path()), before);

    disk.remount("rw");
    let other = Film::new(50, 8).add(&volume, "other");
    assert_eq!(volume.titles().unwrap(), [kept, other]);
    assert!(dirs.iter().all(|dir| !begun(dir).exists() && !dir.join(format!("titles/{}", info.id)).exists()));
}
