//! `millrace publish`, `fetch` and `ls --from` with a shared directory: what people see, and exit codes. Servers that speak S3 are in the tests of
//! `crates/objects`.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_store::volume::Volume;
use millrace_testkit::titles::Film;

use crate::support::{fails, ok, run};

/// A store with the titles `film` and `other`, an empty library, and the place for another store.
struct Scene {
    _dir: tempfile::TempDir,
    a: String,
    b: String,
    shared: PathBuf,
    url: String,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (a, b, shared) = (at("a"), at("b"), PathBuf::from(at("shared")));
        let volume = Volume::open_or_create(Path::new(&a)).unwrap();
        Film::new(3_000, 1).add(&volume, "film");
        Film::new(2_000, 2).add(&volume, "other");
        fs::create_dir(&shared).unwrap();
        Self { a, b, url: format!("file://{}", shared.display()), shared, _dir: dir }
    }

    fn media(&self, store: &str) -> PathBuf {
        let id = Volume::open(Path::new(store)).unwrap().find("film").unwrap().unwrap().id;
        Path::new(store).join(format!("titles/{id}/data.ts"))
    }
}

#[test]
fn titles_are_published_listed_and_fetched_by_name_and_pattern() {
    let scene = Scene::new();
    let Scene { a, b, url, .. } = &scene;
    let publish = |titles: &str| ok(&["publish", titles, "--to", url, "--store", a]);
    assert!(publish("f*").starts_with("published film  "));
    assert_eq!(publish("film"), "already there: film\n");
    let listed = ok(&["ls", "--from", url]);
    assert!(listed.contains("film") && !listed.contains("other"), "{listed}");
    assert_eq!(ok(&["publish", "--all", "--quiet", "--to", url, "--store", a]), "");
    let listed: Vec<serde_json::Value> = serde_json::from_str(&ok(&["ls", "--json", "--from", url])).unwrap();
    let names: Vec<&str> = listed.iter().map(|title| title["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["film", "other"]);
    assert!(ok(&["fetch", "oth?r", "--from", url, "--store", b]).contains("fetched other  "));
    let all = ok(&["fetch", "--all", "--from", url, "--store", b]);
    assert!(all.contains("already there: other\n") && all.contains("fetched film  "), "{all}");
    ok(&["fsck", "--full", "--store", b]);
    assert_eq!(fs::read(scene.media(a)).unwrap(), fs::read(scene.media(b)).unwrap());
}

#[test]
fn wrong_command_lines_and_titles_are_refused_with_their_exit_codes() {
    let Scene { a, url, _dir, .. } = &Scene::new();
    for (args, expected, text) in [
        (&["publish", "film", "--to", "http://x/y"][..], 2, "write s3://BUCKET/PREFIX or file:///DIR"),
        (&["publish", "film", "--to", "s3://k:hunter2@films"], 2, "--to: credentials in the URL"),
        (&["publish", "film", "--to", url, "--endpoint", "http://x"], 2, "omit them with file://"),
        (&["publish", "film", "--to", "s3://films", "--endpoint", "films"], 2, "write https://HOST:PORT"),
        (&["publish", "nothing", "--to", url], 1, "nothing: no such title"),
        (&["fetch", "nothing", "--from", url], 1, "nothing: no such title in the library"),
        (&["fetch", "film", "--from", "file:///no/such"], 1, "/no/such: no such directory; create it"),
        (&["ls", "--from", url], 2, "omit one of them"),
    ] {
        let output = run(&[args, &["--store", a]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(expected), "{args:?}: {said}");
        assert!(said.contains(text) && !said.contains("hunter2"), "{args:?}: {said}");
    }
}

#[test]
fn damaged_object_fails_its_title_alone() {
    let scene = Scene::new();
    let Scene { a, b, url, shared, .. } = &scene;
    ok(&["publish", "--all", "--to", url, "--store", a]);
    let id = Volume::open(Path::new(a)).unwrap().find("film").unwrap().unwrap().id;
    let object = shared.join(format!("t/{id}/data.ts"));
    let mut bytes = fs::read(&object).unwrap();
    bytes[200_000] ^= 1;
    fs::write(&object, bytes).unwrap();
    let error = fails(&["fetch", "--all", "--from", url, "--store", b]);
    let place = "data.ts is wrong at byte 198716; publish the title again with --overwrite";
    assert!(error.contains(place), "{error}");
    let listed = ok(&["ls", "--store", b]);
    assert!(listed.contains("other") && !listed.contains("film"), "{listed}");
}
