//! Faults of an object store, its answers and the network between. Nothing wrong becomes visible.

use std::fs;
use std::path::PathBuf;

use millrace_objects::{AccessOptions, ObjectError, Published};
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::titles::Film;

use crate::s3_server::{Fault, KEY, S3Server, SECRET, open};

/// A server with a published title, and an empty store.
struct Scene {
    server: S3Server,
    info: TitleInfo,
    _from: tempfile::TempDir,
    source: Volume,
    dir: tempfile::TempDir,
    target: Volume,
}

impl Scene {
    fn new() -> Self {
        let server = S3Server::start();
        let from = tempfile::tempdir().unwrap();
        let source = Volume::open_or_create(from.path()).unwrap();
        let info = Film::new(60_000, 21).add(&source, "film");
        server.library().publish(&source, info.id, false, &mut |_| {}).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let target = Volume::open_or_create(dir.path()).unwrap();
        Self { server, info, _from: from, source, dir, target }
    }

    fn object(&self, name: &str) -> PathBuf {
        self.server.file(&format!("some/prefix/t/{}/{name}", self.info.id))
    }

    fn fetch(&self) -> Result<(), ObjectError> {
        let library = self.server.library();
        let titles = library.list()?.titles;
        library.fetch(&self.target, &titles, &mut |_| {}).map(drop)
    }

    /// The fault passes, and the title comes.
    fn comes_all_the_same(&self) {
        self.fetch().unwrap();
        let check = millrace_store::check::check_store(
            self.dir.path(),
            millrace_store::check::Depth::Full,
            &mut |_| {},
        );
        assert_eq!(check.unwrap(), []);
        assert_eq!(self.target.titles().unwrap(), std::slice::from_ref(&self.info));
    }

    /// The fault stays, and nothing is left of the title.
    fn fails(&self) -> String {
        let error = self.fetch().unwrap_err().to_string();
        assert!(self.target.titles().unwrap().is_empty(), "{error}");
        assert_eq!(fs::read_dir(self.dir.path().join("tmp")).unwrap().count(), 0, "{error}");
        assert!(!error.contains(SECRET) && !error.contains(KEY), "{error}");
        error
    }
}

#[test]
fn wrong_byte_on_the_way_is_requested_again() {
    for name in ["data.ts", "crcs.mrc", "meta-1316.mrp", "index.mri"] {
        let scene = Scene::new();
        scene.server.plan("GET", name, 0, 1, Fault::Flip);
        scene.comes_all_the_same();
    }
}

#[test]
fn wrong_byte_in_an_object_is_reported_with_its_place() {
    let scene = Scene::new();
    let mut bytes = fs::read(scene.object("data.ts")).unwrap();
    bytes[9_000_000] ^= 1;
    fs::write(scene.object("data.ts"), bytes).unwrap();
    let error = scene.fails();
    let at = 9_000_000 / 1316 * 1316;
    assert!(
        error.contains(&format!("data.ts is wrong at byte {at}; publish the title again with --overwrite")),
        "{error}"
    );
}

#[test]
fn overwriting_repairs_a_damaged_object() {
    let scene = Scene::new();
    fs::write(scene.object("data.ts"), &Film::new(60_000, 98).bytes).unwrap();
    scene.fails();
    let library = scene.server.library();
    assert_eq!(
        library.publish(&scene.source, scene.info.id, false, &mut |_| {}).unwrap(),
        Published::Already
    );
    let sent = library.publish(&scene.source, scene.info.id, true, &mut |_| {}).unwrap();
    assert!(matches!(sent, Published::Sent(bytes) if bytes > scene.info.bytes), "{sent:?}");
    scene.comes_all_the_same();
}

#[test]
fn words_that_changed_places_are_found_though_their_sum_is_right() {
    let scene = Scene::new();
    let mut bytes = fs::read(scene.object("data.ts")).unwrap();
    bytes.swap(1316 * 10 + 40, 1316 * 10 + 60);
    bytes.swap(1316 * 10 + 41, 1316 * 10 + 61);
    fs::write(scene.object("data.ts"), bytes).unwrap();
    assert!(scene.fails().contains("data.ts is wrong at byte 13160"));
}

#[test]
fn wrong_files_beside_the_media_are_reported() {
    for name in ["crcs.mrc", "sums.mrr", "meta-1316.mrp", "index.mri"] {
        let scene = Scene::new();
        let mut bytes = fs::read(scene.object(name)).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(scene.object(name), bytes).unwrap();
        let error = scene.fails();
        assert!(error.contains(&format!("{name} does not have the BLAKE3 of its manifest")), "{error}");
    }
}

#[test]
fn damaged_manifest_names_the_title_and_hides_it() {
    let scene = Scene::new();
    let mut bytes = fs::read(scene.object("manifest.mrm")).unwrap();
    let last = bytes.len() - 9;
    bytes[last] ^= 1;
    fs::write(scene.object("manifest.mrm"), bytes).unwrap();
    let listing = scene.server.library().list().unwrap();
    assert!(listing.titles.is_empty());
    assert_eq!(listing.unreadable.len(), 1);
    assert!(listing.unreadable[0].1.to_string().contains("manifest.mrm"), "{:?}", listing.unreadable);
}

#[test]
fn truncated_and_missing_objects_are_reported() {
    let scene = Scene::new();
    let bytes = fs::read(scene.object("data.ts")).unwrap();
    fs::write(scene.object("data.ts"), &bytes[..9_000_000]).unwrap();
    let error = scene.fails();
    assert!(error.contains("data.ts has 9000000 bytes, fewer than its manifest promises"), "{error}");
    fs::remove_file(scene.object("data.ts")).unwrap();
    let error = scene.fails();
    assert!(error.contains("data.ts is missing; publish the title again"), "{error}");
}

#[test]
fn object_of_another_time_is_reported() {
    let scene = Scene::new();
    fs::write(scene.object("data.ts"), &Film::new(60_000, 99).bytes).unwrap();
    assert!(scene.fails().contains("data.ts is wrong at byte 0"));
}

#[test]
fn connection_that_is_cut_or_hangs_in_the_middle_is_replaced() {
    for fault in [Fault::Cut, Fault::Hang] {
        let scene = Scene::new();
        scene.server.plan("GET", "data.ts", 1, 2, fault);
        scene.server.plan("GET", "manifest.mrm", 0, 1, fault);
        scene.comes_all_the_same();
    }
}

#[test]
fn server_error_that_passes_is_waited_for() {
    for (status, code) in [(500, "InternalError"), (503, "SlowDown")] {
        let scene = Scene::new();
        scene.server.plan("GET", "data.ts", 0, 2, Fault::Status(status, code));
        scene.comes_all_the_same();
    }
}

#[test]
fn errors_of_the_object_store_have_a_remedy() {
    let forever = usize::MAX;
    for (status, code, remedy) in [
        (503, "SlowDown", "overloaded or has an internal error (SlowDown); try again later"),
        (403, "AccessDenied", "access denied (AccessDenied); allow this key s3:ListBucket"),
        (403, "SignatureDoesNotMatch", "credentials refused (SignatureDoesNotMatch); check the access key"),
        (400, "ExpiredToken", "credentials refused (ExpiredToken); check the access key"),
        (403, "RequestTimeTooSkewed", "differ by too much; set this machine's clock"),
        (301, "PermanentRedirect", "in another region; give its region with --region"),
        (404, "NoSuchBucket", "no such bucket at http://127.0.0.1:"),
    ] {
        let scene = Scene::new();
        scene.server.plan("GET", "", 0, forever, Fault::Status(status, code));
        let error = scene.fails();
        assert!(error.contains(remedy), "{code}: {error}");
    }
}

#[test]
fn wrong_credentials_are_refused_and_not_repeated() {
    let server = S3Server::start();
    for (key, secret) in [(KEY, "wrong-secret-7777"), ("AKIAOTHER", SECRET)] {
        let options = server.options_with([("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)]);
        let library = open("s3://films", &options);
        let error = library.list().unwrap_err();
        let shown = format!("{error} {error:?} {library:?} {options:?}");
        assert!(matches!(error, ObjectError::Credentials { .. }), "{shown}");
        assert!(!shown.contains(secret) && !shown.contains(key), "{shown}");
    }
}

#[test]
fn credentials_and_endpoint_of_a_profile_are_used() {
    let scene = Scene::new();
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".aws")).unwrap();
    let keys = format!("[hotel]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n");
    fs::write(home.path().join(".aws/credentials"), keys).unwrap();
    let AccessOptions { endpoint, .. } = scene.server.options();
    let settings = format!("[profile hotel]\nregion = eu-north-1\nendpoint_url = {}\n", endpoint.unwrap());
    fs::write(home.path().join(".aws/config"), settings).unwrap();
    let variables = [("HOME", home.path().to_str().unwrap()), ("AWS_PROFILE", "hotel")];
    let options = AccessOptions { endpoint: None, ..scene.server.options_with(variables) };
    assert_eq!(open("s3://films/some/prefix", &options).list().unwrap().titles.len(), 1);
}

#[test]
fn missing_bucket_directory_and_server_are_named() {
    let server = S3Server::start();
    let error = open("s3://other-films", &server.options()).list().unwrap_err().to_string();
    assert!(error.contains("s3://other-films: no such bucket at http://127.0.0.1:"), "{error}");
    let options = AccessOptions { endpoint: Some("http://127.0.0.1:1".to_owned()), ..server.options() };
    let error = open("s3://films", &options).list().unwrap_err();
    assert!(error.is_temporary(), "{error}");
    let error = error.to_string();
    assert!(error.contains("cannot reach http://127.0.0.1:1: ") && error.contains("refused"), "{error}");
    let cancel = std::sync::Arc::default();
    let gone = millrace_objects::ObjectLibrary::open(
        &"file:///no/such/dir".parse().unwrap(),
        &AccessOptions::default(),
        &cancel,
    );
    assert!(gone.unwrap_err().to_string().contains("/no/such/dir: no such directory; create it, or mount"));
}
