use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// A folder with a film in a directory, and a file outside of it.
struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("folder/sub")).unwrap();
        fs::write(dir.path().join("folder/sub/film.ts"), b"inside").unwrap();
        fs::write(dir.path().join("secret.ts"), b"outside").unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, IngestError> {
        let file = SourceFile::open_beneath(&self.path("folder"), &self.path(name))?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file.again().unwrap(), &mut bytes).unwrap();
        Ok(bytes)
    }
}

#[test]
fn open_beneath_with_links_follows_those_within_the_folder() {
    let folder = Folder::new();
    symlink(folder.path("folder/sub/film.ts"), folder.path("folder/absolute.ts")).unwrap();
    symlink("sub/../sub/film.ts", folder.path("folder/relative.ts")).unwrap();
    symlink(folder.path("folder"), folder.path("link")).unwrap();
    for name in ["sub/film.ts", "absolute.ts", "relative.ts"] {
        assert_eq!(folder.read(&format!("folder/{name}")).unwrap(), b"inside", "{name}");
    }
    let by_link = SourceFile::open_beneath(&folder.path("link"), &folder.path("link/sub/film.ts"));
    assert_eq!(by_link.unwrap().identity().path, folder.path("link/sub/film.ts"));
}

#[test]
fn open_beneath_with_links_refuses_those_out_of_the_folder() {
    let folder = Folder::new();
    symlink(folder.path("secret.ts"), folder.path("folder/out.ts")).unwrap();
    symlink(folder.path("folder/out.ts"), folder.path("folder/twice.ts")).unwrap();
    symlink(folder.dir.path(), folder.path("folder/up")).unwrap();
    for name in
        ["folder/out.ts", "folder/twice.ts", "folder/up/secret.ts", "folder/../secret.ts", "secret.ts"]
    {
        let error = folder.read(name).unwrap_err();
        assert!(matches!(error, IngestError::OutsideFolder { .. }), "{name}: {error}");
    }
    assert_eq!(
        fs::read(SourceFile::open(&folder.path("folder/out.ts")).unwrap().path()).unwrap(),
        b"outside"
    );
}

#[test]
fn open_beneath_with_a_link_put_in_after_resolving_refuses_it() {
    let folder = Folder::new();
    let root = folder.path("folder");
    // The file, and a directory on the way to it, are swapped for links between the two steps.
    for swapped in ["sub/film.ts", "sub"] {
        fs::rename(root.join(swapped), folder.path("old")).unwrap();
        symlink(folder.dir.path(), root.join(swapped)).unwrap();
        let found = open_without_links(&root, Path::new("sub/film.ts"));
        assert!(SourceFile::of(&root.join("sub/film.ts"), found).is_err(), "{swapped}");
        fs::remove_file(root.join(swapped)).unwrap();
        fs::rename(folder.path("old"), root.join(swapped)).unwrap();
    }
    assert!(open_without_links(&root, Path::new("sub/film.ts")).is_ok());
}

#[test]
fn source_whose_path_is_swapped_after_opening_stays_the_file() {
    let folder = Folder::new();
    let film = folder.path("folder/sub/film.ts");
    let file = SourceFile::open_beneath(&folder.path("folder"), &film).unwrap();
    fs::remove_file(&film).unwrap();
    symlink(folder.path("secret.ts"), &film).unwrap();
    let input = file.as_input().try_clone().unwrap();
    let cat = std::process::Command::new("cat").arg("/proc/self/fd/0").stdin(input).output();
    assert_eq!(cat.unwrap().stdout, b"inside");
}

#[test]
fn source_that_is_a_pipe_is_refused_without_waiting() {
    let folder = Folder::new();
    let pipe = folder.path("folder/pipe.ts");
    rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    let error = SourceFile::open(&pipe).unwrap_err();
    assert!(matches!(error, IngestError::NotAFile { what: "a pipe", .. }), "{error}");
}
