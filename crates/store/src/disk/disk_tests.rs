use std::sync::Mutex;

use super::*;

/// Notes every operation; fails or shortens the write of its choice.
#[derive(Debug, Default)]
struct Notes {
    seen: Mutex<Vec<String>>,
    short_write: bool,
}

impl DiskInterceptor for Notes {
    fn run(&self, op: &Op<'_>, perform: &mut dyn FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        let (verb, path) = op.name();
        let name = path.file_name().unwrap().to_string_lossy();
        self.seen.lock().unwrap().push(format!("{verb} {name}"));
        if self.short_write && matches!(op, Op::Write { .. }) {
            perform(2)?;
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        perform(usize::MAX)
    }
}

fn work(disk: &Disk, dir: &Path) -> io::Result<()> {
    let (new, name) = (dir.join("a/b"), dir.join("a/b/file"));
    disk.create_dir_all(&new)?;
    let mut file = disk.create_new(&name)?;
    file.write_all(b"hello ")?;
    file.write_all(b"world")?;
    file.write_all_at(b"H", 0)?;
    file.set_len(8)?;
    file.sync_all()?;
    disk.sync_dir(&new)?;
    disk.rename(&name, &dir.join("moved"))?;
    let again = disk.open_or_create(&dir.join("moved"))?;
    again.write_all_at(b"W", 6)?;
    disk.create_dir(&new.join("c"))?;
    drop(disk.open_or_create(&new.join("c/d"))?);
    disk.remove_tree(&dir.join("a"))?;
    disk.create_new(&dir.join("gone")).map(drop)?;
    disk.remove_file(&dir.join("gone"))
}

#[test]
fn watched_disk_behaves_like_unwatched_disk() {
    let notes = Arc::new(Notes::default());
    for disk in [Disk::default(), Disk::watched(notes.clone())] {
        let dir = tempfile::tempdir().unwrap();
        work(&disk, dir.path()).unwrap();
        assert_eq!(fs::read(dir.path().join("moved")).unwrap(), b"Hello Wo");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
    let seen = notes.seen.lock().unwrap();
    let from_the_removal = seen.iter().position(|op| op == "remove d").unwrap();
    assert_eq!(
        seen[from_the_removal..],
        [
            "remove d",
            "remove directory c",
            "remove directory b",
            "remove directory a",
            "create gone",
            "remove gone"
        ]
    );
    let sync = seen.iter().filter(|op| op.starts_with("sync directory")).count();
    assert_eq!(sync, 3, "each new directory's name, and that of the file");
}

#[test]
fn short_write_keeps_written_bytes_and_returns_error() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::watched(Arc::new(Notes { short_write: true, ..Notes::default() }));
    let mut file = disk.create_new(&dir.path().join("f")).unwrap();
    let error = file.write_all(b"hello").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs::read(file.path()).unwrap(), b"he");
}
