//! Published titles are fetched byte for byte, whatever the volumes look like.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millrace_core::ids::TitleId;
use millrace_core::scale::Scale;
use millrace_objects::{LibraryUrl, ObjectError, ObjectLibrary, Published};
use millrace_store::StoreError;
use millrace_store::check::{Depth, check_members, check_store};
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{Derived, FinishTitle, MediaReader, TitleImport, Volume};
use millrace_testkit::titles::{Film, SIZE};

use crate::s3_server::{Fault, S3Server, open};

/// A store of plain files, in a directory of its own.
fn plain() -> (tempfile::TempDir, Volume) {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    (dir, volume)
}

/// A volume of three members that tolerates the loss of one.
fn striped() -> (tempfile::TempDir, Vec<PathBuf>, Volume) {
    let dir = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = (0..3).map(|i| dir.path().join(format!("m{i}"))).collect();
    let volume = Volume::create(&dirs, Geometry::choose(3, 1, 0).unwrap()).unwrap();
    (dir, dirs, volume)
}

fn media(volume: &Volume, id: TitleId) -> Vec<u8> {
    let mut reader = MediaReader::open(volume, id).unwrap();
    let mut media = vec![0; reader.files().info.bytes as usize];
    reader.read_exact(0, &mut media).unwrap();
    media
}

fn fetch_all(library: &ObjectLibrary, volume: &Volume) -> Result<usize, ObjectError> {
    let listing = library.list()?;
    assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
    let own = listing.titles.iter().filter(|manifest| manifest.title.derived.is_none());
    own.map(|manifest| {
        let family: Vec<_> =
            std::iter::once(manifest).chain(listing.derived_from(manifest.title.id)).cloned().collect();
        library.fetch(volume, &family, &mut |_| {}).map(|added| added.len())
    })
    .sum()
}

#[test]
fn title_published_to_s3_is_fetched_byte_for_byte() {
    let server = S3Server::start();
    let ((_from, source), (to, target)) = (plain(), plain());
    // Longer than a range, and not whole ranges, packets or stripes.
    let film = Film::new(50_011, 5);
    let info = film.add_sizes(&source, "film", &[SIZE, 940]);
    let library = server.library();
    let mut last = None;
    let sent = library.publish(&source, info.id, false, &mut |progress| last = Some(progress)).unwrap();
    let last = last.unwrap();
    assert_eq!(last.bytes_done, last.bytes_total);
    assert_eq!(sent, Published::Sent(last.bytes_total));
    let object = server.file(&format!("some/prefix/t/{}/data.ts", info.id));
    assert_eq!(fs::read(&object).unwrap(), film.bytes, "the object is the transport stream");
    assert_eq!(fetch_all(&library, &target).unwrap(), 1);
    let fetched = target.find("film").unwrap().unwrap();
    assert_eq!(fetched, info, "id, time line and names are the same");
    assert_eq!(media(&target, info.id), film.bytes);
    assert_eq!(check_store(to.path(), Depth::Full, &mut |_| {}).unwrap(), []);
    assert_eq!(fetch_all(&library, &target).unwrap(), 0, "what is there is left alone");
}

#[test]
fn title_travels_between_volumes_of_several_members_and_survives_a_lost_disk() {
    let server = S3Server::start();
    let ((_from, _, source), (_to, dirs, target)) = (striped(), striped());
    let film = Film::new(30_007, 6);
    let info = film.add(&source, "film");
    let library = server.library();
    library.publish(&source, info.id, false, &mut |_| {}).unwrap();
    let objects = server.file(&format!("some/prefix/t/{}", info.id));
    let names: Vec<String> =
        fs::read_dir(objects).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| !name.contains("parity")), "{names:?}");
    assert_eq!(fetch_all(&library, &target).unwrap(), 1);
    assert_eq!(check_members(&dirs, Depth::Full, &mut |_| {}).unwrap(), []);
    fs::rename(&dirs[1], dirs[1].with_extension("gone")).unwrap();
    let degraded = Volume::open_members(&[dirs[0].clone(), dirs[2].clone()]).unwrap();
    assert_eq!(media(&degraded, info.id), film.bytes, "by the parity that the fetch computed");
}

#[test]
fn title_in_a_shared_directory_is_the_directory_of_a_title() {
    let shared = tempfile::tempdir().unwrap();
    let ((_from, source), (_to, _, target)) = (plain(), striped());
    let film = Film::new(9_000, 7);
    let info = film.add(&source, "film");
    let library =
        open(&format!("file://{}", shared.path().display()), &millrace_objects::AccessOptions::default());
    assert!(library.list().unwrap().titles.is_empty());
    library.publish(&source, info.id, false, &mut |_| {}).unwrap();
    assert_eq!(library.publish(&source, info.id, false, &mut |_| {}).unwrap(), Published::Already);
    assert_eq!(fetch_all(&library, &target).unwrap(), 1);
    assert_eq!(media(&target, info.id), film.bytes);
}

#[test]
fn derived_titles_come_with_their_parent_and_taken_names_get_a_number() {
    let server = S3Server::start();
    let ((_from, source), (to, target)) = (plain(), plain());
    let info = Film::new(3_000, 8).add(&source, "film");
    let fast = Film::new(1_000, 9);
    let scale: Scale = "4".parse().unwrap();
    let finish = FinishTitle { derived: Some(Derived::at_speed(info.id, scale)), ..fast.finish("film") };
    let fast = fast.write(&source, &[SIZE]).unwrap().commit(finish).unwrap();
    let library = server.library();
    for id in [fast.id, info.id] {
        library.publish(&source, id, false, &mut |_| {}).unwrap();
    }
    Film::new(2_000, 10).add(&target, "film");
    assert_eq!(fetch_all(&library, &target).unwrap(), 2);
    let names: Vec<String> = target.titles().unwrap().into_iter().map(|title| title.name).collect();
    assert_eq!(names, ["film", "film-2", "film-2@4"]);
    assert_eq!(check_store(to.path(), Depth::Full, &mut |_| {}).unwrap(), []);
}

#[test]
fn publish_again_sends_only_what_is_missing() {
    let server = S3Server::start();
    let (_from, source) = plain();
    let info = Film::new(5_000, 11).add(&source, "film");
    let library = server.library();
    library.publish(&source, info.id, false, &mut |_| {}).unwrap();
    server.count("PUT", "");
    assert_eq!(library.publish(&source, info.id, false, &mut |_| {}).unwrap(), Published::Already);
    assert_eq!(server.count("PUT", ""), 0);
    // An object of the right length that was put there by something else counts as missing.
    let index = server.file(&format!("some/prefix/t/{}/index.mri", info.id));
    fs::remove_file(&index).unwrap();
    let Published::Sent(bytes) = library.publish(&source, info.id, false, &mut |_| {}).unwrap() else {
        panic!()
    };
    assert_eq!(bytes, fs::metadata(&index).unwrap().len());
    assert_eq!(server.count("PUT", ""), 2, "the index and the manifest");
}

#[test]
fn interrupted_upload_continues_with_the_parts_that_are_missing() {
    let server = S3Server::start();
    let (_from, source) = plain();
    // Five parts of 16 MiB.
    let film = Film::new(400_000, 12);
    let info = film.add(&source, "film");
    let library = server.library();
    server.plan("PUT", "partNumber=4", 0, 1, Fault::Status(403, "AccessDenied"));
    let error = library.publish(&source, info.id, false, &mut |_| {}).unwrap_err();
    assert!(matches!(error, ObjectError::Denied { .. }), "{error}");
    let object = server.file(&format!("some/prefix/t/{}/data.ts", info.id));
    assert!(!object.exists() && library.list().unwrap().titles.is_empty(), "nothing incomplete is visible");
    let first = server.count("PUT", "partNumber=");
    library.publish(&source, info.id, false, &mut |_| {}).unwrap();
    let second = server.count("PUT", "partNumber=");
    assert!(first >= 4 && second <= 2, "{first} parts were sent, then {second}");
    assert_eq!(fs::read(&object).unwrap(), film.bytes);
}

#[test]
fn damaged_media_are_not_published() {
    let server = S3Server::start();
    let (dir, source) = plain();
    let info = Film::new(5_000, 13).add(&source, "film");
    let data = dir.path().join(format!("titles/{}/data.ts", info.id));
    let mut bytes = fs::read(&data).unwrap();
    bytes[100_000] ^= 1;
    fs::write(&data, bytes).unwrap();
    let library = server.library();
    let error = library.publish(&source, info.id, false, &mut |_| {}).unwrap_err();
    assert!(matches!(error, ObjectError::Damaged { .. }), "{error}");
    assert!(library.list().unwrap().titles.is_empty());
}

#[test]
fn title_is_fetched_by_one_process_at_a_time() {
    let server = S3Server::start();
    let ((_from, source), (_to, target)) = (plain(), plain());
    let info = Film::new(2_000, 14).add(&source, "film");
    let library = server.library();
    library.publish(&source, info.id, false, &mut |_| {}).unwrap();
    let manifest = library.list().unwrap().titles.remove(0);
    let first = TitleImport::begin(&target, manifest).unwrap().unwrap();
    let error = fetch_all(&library, &target).unwrap_err();
    assert!(matches!(error, ObjectError::Store(StoreError::TitleInProgress { .. })), "{error}");
    drop(first);
    assert_eq!(fetch_all(&library, &target).unwrap(), 1);
}

#[test]
fn cancelled_fetch_leaves_nothing() {
    let server = S3Server::start();
    let ((_from, source), (to, target)) = (plain(), plain());
    let info = Film::new(50_000, 15).add(&source, "film");
    server.library().publish(&source, info.id, false, &mut |_| {}).unwrap();
    let cancel = Arc::new(AtomicBool::new(false));
    let url: LibraryUrl = "s3://films/some/prefix".parse().unwrap();
    let library = ObjectLibrary::open(&url, &server.options(), &cancel).unwrap();
    let family = library.list().unwrap().titles;
    let mut tell = |_| cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = library.fetch(&target, &family, &mut tell).unwrap_err();
    assert!(matches!(error, ObjectError::Cancelled), "{error}");
    assert!(target.titles().unwrap().is_empty());
    assert_eq!(fs::read_dir(to.path().join("tmp")).unwrap().count(), 0);
}
