//! Fetches for viewers that are interrupted: their media are verified and used, and nothing is left of media without use.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_objects::{LibraryIndex, ObjectError, PublishedTitle, TransferProgress};
use millrace_store::check::{Depth, check_members};
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{MediaReader, TitleInfo, Volume};
use millrace_testkit::titles::Film;

use crate::s3_server::{Fault, S3Server};

/// Ranges of the film's media.
const RANGES: usize = 8;

struct Scene {
    server: S3Server,
    info: TitleInfo,
    source: Volume,
    dirs: Vec<PathBuf>,
    target: Volume,
    _dir: tempfile::TempDir,
}

impl Scene {
    /// A published title, and a volume of this number of members.
    fn new(members: usize) -> Self {
        let (server, dir) = (S3Server::start(), tempfile::tempdir().unwrap());
        let source = Volume::open_or_create(&dir.path().join("source")).unwrap();
        let info = Film::new(350_077, 5).add(&source, "film");
        server.library().publish(&source, info.id, false, &mut |_| {}).unwrap();
        let dirs: Vec<PathBuf> = (0..members).map(|i| dir.path().join(format!("m{i}"))).collect();
        let target = match members {
            1 => Volume::open_or_create(&dirs[0]).unwrap(),
            n => Volume::create(&dirs, Geometry::choose(n, 1, 0).unwrap()).unwrap(),
        };
        Self { server, info, source, dirs, target, _dir: dir }
    }

    fn titles(&self) -> Vec<Arc<PublishedTitle>> {
        let (index, unusable) = self.server.library().relist(&LibraryIndex::default()).unwrap();
        assert!(unusable.is_empty(), "{unusable:?}");
        index.titles().cloned().collect()
    }

    fn fetch(&self, volume: &Volume) -> Result<TransferProgress, ObjectError> {
        let mut last = TransferProgress::default();
        let titles = self.titles();
        self.server.library().fetch_cached(volume, &titles, &mut |progress| last = progress).map(|_| last)
    }

    /// Three ranges come, then the object store refuses.
    fn interrupt(&self) {
        // The first byte of the fourth range.
        self.server.plan("GET", "bytes=25267200-", 0, usize::MAX, Fault::Status(403, "AccessDenied"));
        self.fetch(&self.target).unwrap_err();
        assert!(self.target.titles().unwrap().is_empty());
        self.server.forget_plan();
    }

    /// The members, opened by a program that knows nothing of the interruption.
    fn open_again(&self) -> Volume {
        match &self.dirs[..] {
            [dir] => Volume::open(dir).unwrap(),
            dirs => Volume::open_members(dirs).unwrap(),
        }
    }

    fn entries(&self) -> usize {
        self.dirs.iter().map(|dir| fs::read_dir(dir.join("tmp")).unwrap().count()).sum()
    }

    /// The title is there, whole.
    fn is_sound(&self, volume: &Volume) {
        let media = |volume: &Volume| {
            let mut media = vec![0; self.info.bytes as usize];
            MediaReader::open(volume, self.info.id).unwrap().read_exact(0, &mut media).unwrap();
            media
        };
        assert!(media(volume) == media(&self.source));
        assert_eq!(check_members(&self.dirs, Depth::Full, &mut |_| {}).unwrap(), []);
        assert_eq!(self.entries(), 0);
    }

    /// The first file of media that the interrupted fetch has left.
    fn left(&self) -> PathBuf {
        let found = |dir: &Path| {
            let tmp = dir.join("tmp").join(self.info.id.to_string());
            ["data.ts", "data.mru"].map(|name| tmp.join(name)).into_iter().find(|path| path.exists())
        };
        self.dirs.iter().find_map(|dir| found(dir)).expect("media")
    }
}

#[test]
fn interrupted_fetch_goes_on_behind_what_has_come() {
    for members in [1, 3] {
        let scene = Scene::new(members);
        scene.interrupt();
        let volume = scene.open_again();
        assert_eq!(volume.interrupted_imports().unwrap(), [scene.info.id]);
        scene.server.count("GET", "");
        let progress = scene.fetch(&volume).unwrap();
        assert!(progress.bytes_left_before > 10_000_000, "{members}: {progress:?}");
        let requests = scene.server.count("GET", "data.ts");
        assert!((1..=RANGES - 2).contains(&requests), "{members}: {requests}");
        scene.is_sound(&volume);
        let title = volume.find("film").unwrap().unwrap();
        assert_eq!(title.origin.cached.as_deref(), Some(&*scene.titles()[0].manifest_blake3));
    }
}

#[test]
fn damaged_byte_in_what_has_come_is_fetched_again() {
    for members in [1, 3] {
        let scene = Scene::new(members);
        scene.interrupt();
        let mut bytes = fs::read(scene.left()).unwrap();
        bytes[100_000] ^= 1;
        fs::write(scene.left(), bytes).unwrap();
        let volume = scene.open_again();
        scene.server.count("GET", "");
        scene.fetch(&volume).unwrap();
        assert_eq!(scene.server.count("GET", "data.ts"), RANGES, "{members}");
        scene.is_sound(&volume);
    }
}

#[test]
fn parts_of_a_title_are_removed_on_request_and_kept_only_for_a_week() {
    let scene = Scene::new(3);
    scene.interrupt();
    assert!(scene.target.interrupted_import_bytes(scene.info.id) > 10_000_000);
    scene.target.remove_interrupted_import(scene.info.id).unwrap();
    assert_eq!(scene.entries(), 0);
    scene.interrupt();
    for dir in &scene.dirs {
        let note = dir.join("tmp").join(scene.info.id.to_string()).with_extension("import");
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(8 * 86_400);
        fs::File::open(note).and_then(|file| file.set_modified(old)).unwrap();
    }
    drop(scene.open_again());
    assert_eq!(scene.entries(), 0);
}

#[test]
fn library_is_listed_again_with_requests_for_new_manifests_only() {
    let scene = Scene::new(1);
    let library = scene.server.library();
    let (first, _) = library.relist(&LibraryIndex::default()).unwrap();
    assert!(first.get(scene.info.id).is_some() && first.lists(scene.info.id));
    scene.server.count("GET", "");
    let (second, _) = library.relist(&first).unwrap();
    assert_eq!((second.titles().count(), scene.server.count("GET", "manifest.mrm")), (1, 0));
    let other = Film::new(2_000, 2).add(&scene.source, "other");
    library.publish(&scene.source, other.id, false, &mut |_| {}).unwrap();
    scene.server.count("GET", "");
    let (third, _) = library.relist(&second).unwrap();
    assert_eq!((third.titles().count(), scene.server.count("GET", "manifest.mrm")), (2, 1));
    let manifest = scene.server.file(&format!("some/prefix/t/{}/manifest.mrm", other.id));
    fs::write(&manifest, b"broken").unwrap();
    let (fourth, unusable) = library.relist(&third).unwrap();
    assert_eq!((fourth.titles().count(), unusable.len(), fourth.lists(other.id)), (1, 1, true));
    assert!(library.relist(&fourth).unwrap().1.is_empty(), "it is reported once");
    fs::remove_file(manifest).unwrap();
    assert!(!library.relist(&fourth).unwrap().0.lists(other.id));
}
