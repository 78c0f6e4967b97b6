//! Folders of films in ordinary use: files arrive slowly, move, change, are copied and deleted,
//! with a server running and without one. Each film stays one title with one name.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::support;
use crate::support::{Server, film, ok, play, signal};

/// Limit for actions that normally take seconds, because the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A folder, a store, and films that are put into the folder.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(site.folder()).unwrap();
        site
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("films")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Puts a film into the folder with an old modification time.
    fn put(&self, name: &str, secs: u64) -> Vec<u8> {
        // A different file name gives the film different content.
        let made = film(self.dir.path(), &format!("made-{}", name.replace('/', "-")), secs);
        let bytes = fs::read(made).unwrap();
        self.put_bytes(name, &bytes);
        bytes
    }

    fn put_bytes(&self, name: &str, bytes: &[u8]) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        set_age(&path, 600);
    }

    /// Serves the folder with a short settle time.
    fn serve(&self, args: &[&str]) -> Server {
        let folder = self.folder();
        let all = [&[folder.to_str().unwrap(), "--settle", "400ms", "--trick-space", "0B"], args].concat();
        Server::start(&self.store(), &all)
    }

    fn titles(&self) -> Vec<Title> {
        let text = ok(&["ls", "--json", "--store", self.store().to_str().unwrap()]);
        let list: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        list.iter().map(Title::of).collect()
    }

    fn names(&self) -> Vec<String> {
        self.titles().into_iter().map(|title| title.name).collect()
    }

    /// Waits until the titles meet the condition.
    fn wait_for(&self, what: &str, is_so: impl Fn(&[Title]) -> bool) -> Vec<Title> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let titles = self.titles();
            if is_so(&titles) {
                return titles;
            }
            assert!(Instant::now() < end, "{what}: {titles:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Puts another film into the folder and waits for its title. By then the server has looked at
    /// every earlier file.
    fn wait_for_marker(&self, name: &str) {
        self.put(&format!("{name}.ts"), 1);
        self.wait_for(name, |titles| titles.iter().any(|title| title.name == name));
    }
}

#[derive(Debug, PartialEq)]
struct Title {
    id: String,
    name: String,
    title: String,
    blake3: String,
    source: String,
}

impl Title {
    fn of(value: &serde_json::Value) -> Self {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            id: text(&value["id"]),
            name: text(&value["name"]),
            title: text(&value["title"]),
            blake3: text(&value["blake3"]),
            source: text(&value["source"]["path"]),
        }
    }
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn set_age(path: &Path, secs: u64) {
    let time = SystemTime::now() - Duration::from_secs(secs);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn film_written_in_bursts_becomes_one_title() {
    let site = Site::new();
    let bytes = fs::read(film(site.dir.path(), "made.ts", 6)).unwrap();
    let third = bytes.len() / 3 / 188 * 188;
    let mut server = site.serve(&[]);
    // The file stays open for writing, with pauses in which the server looks and adds other films.
    let mut file = fs::File::create(site.at("copy.ts")).unwrap();
    file.write_all(&bytes[..third]).unwrap();
    set_age(&site.at("copy.ts"), 600);
    site.wait_for_marker("first");
    assert_eq!(site.names(), ["first"]);
    file.write_all(&bytes[third..2 * third]).unwrap();
    drop(file);
    // The file is closed, and another program opens it again later: the title added meanwhile is
    // replaced.
    site.wait_for("the first two bursts", |titles| titles.len() == 2);
    let mut file = fs::File::options().append(true).open(site.at("copy.ts")).unwrap();
    file.write_all(&bytes[2 * third..]).unwrap();
    drop(file);
    let titles = site.wait_for("the whole film", |titles| titles.iter().any(|t| t.blake3 == hash(&bytes)));
    assert_eq!(titles.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["copy", "first"]);
    assert!(server.interrupt());
}

#[test]
fn moved_and_touched_files_keep_their_titles_with_a_server_and_without() {
    let site = Site::new();
    site.put("a.ts", 2);
    let mut server = site.serve(&[]);
    let before = site.wait_for("a", |titles| titles.len() == 1).remove(0);
    let is_at = |titles: &[Title], name: &str| {
        titles
            .iter()
            .any(|t| t.id == before.id && t.name == "a" && t.source == site.at(name).to_str().unwrap())
    };
    fs::create_dir(site.at("sub")).unwrap();
    fs::rename(site.at("a.ts"), site.at("sub/b.ts")).unwrap();
    site.wait_for("moved", |titles| is_at(titles, "sub/b.ts"));
    set_age(&site.at("sub/b.ts"), 300);
    site.wait_for_marker("touched");
    assert_eq!(site.names(), ["a", "touched"]);
    assert!(server.interrupt());
    // While no server runs, the folder itself is renamed and the file gets another time.
    fs::rename(site.at("sub"), site.at("other")).unwrap();
    set_age(&site.at("other/b.ts"), 200);
    let mut server = site.serve(&[]);
    site.wait_for("moved while the server was stopped", |titles| is_at(titles, "other/b.ts"));
    assert_eq!(site.names(), ["a", "touched"]);
    assert!(server.interrupt());
}

#[test]
fn changed_file_replaces_its_title_and_a_viewer_of_the_old_one_sees_it_to_its_end() {
    let site = Site::new();
    let old = site.put("news.ts", 12);
    let mut server = site.serve(&[]);
    let before = site.wait_for("news", |titles| titles.len() == 1).remove(0);
    ok(&["title", "news", "Evening News", "--store", site.store().to_str().unwrap()]);
    let (out, url) = (site.dir.path().join("out.ts"), server.title("news"));
    let viewer = std::thread::spawn({
        let out = out.clone();
        move || play(&[&url, "--transport", "tcp", "-o", out.to_str().unwrap()])
    });
    let end = Instant::now() + TIMEOUT;
    while fs::metadata(&out).map_or(0, |file| file.len()) == 0 {
        assert!(Instant::now() < end, "the viewer gets nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    let new = fs::read(film(site.dir.path(), "made-anew.ts", 3)).unwrap();
    site.put_bytes("news.ts", &new);
    let after = site.wait_for("replaced", |titles| titles.iter().any(|t| t.blake3 == hash(&new)));
    assert_eq!(after.len(), 1, "{after:?}");
    assert_eq!(after[0].name, "news");
    assert_ne!(after[0].id, before.id);
    let report = viewer.join().unwrap();
    assert_eq!(report["sequence"]["lost"], 0, "{report}");
    assert!(fs::read(&out).unwrap() == old, "the viewer has the old film, all of it");
    server.wait_for("replaced: news", TIMEOUT);
    play(&[&server.title("news"), "--transport", "tcp", "-o", out.to_str().unwrap()]);
    assert!(fs::read(&out).unwrap() == new, "the next viewer has the new one");
    assert!(server.interrupt());
}

#[test]
fn same_content_twice_is_one_title() {
    let site = Site::new();
    let bytes = site.put("a.ts", 2);
    let mut server = site.serve(&[]);
    site.wait_for("a", |titles| titles.len() == 1);
    site.put_bytes("copies/b.ts", &bytes);
    server.wait_for("has the content of", TIMEOUT);
    site.wait_for_marker("later");
    assert_eq!(site.names(), ["a", "later"]);
    let said =
        ok(&["add", site.at("copies/b.ts").to_str().unwrap(), "--store", site.store().to_str().unwrap()]);
    assert!(said.contains("already there: a "), "{said}");
    assert!(server.interrupt());
    // The new server recognises the copy without logging it.
    let mut server = site.serve(&[]);
    site.wait_for_marker("last");
    assert_eq!(site.names(), ["a", "last", "later"]);
    assert!(server.said("has the content of").is_empty(), "{:?}", server.log);
    assert!(server.interrupt());
}

#[test]
fn title_of_a_deleted_file_stays_or_goes_as_the_operator_wants() {
    let site = Site::new();
    site.put("gone.ts", 2);
    site.put("kept.ts", 3);
    let mut server = site.serve(&[]);
    site.wait_for("both", |titles| titles.len() == 2);
    fs::remove_file(site.at("gone.ts")).unwrap();
    site.wait_for_marker("later");
    assert!(site.names().contains(&"gone".to_owned()));
    assert!(server.interrupt());
    let mut server = site.serve(&["--deleted-files", "remove"]);
    site.wait_for("removed", |titles| titles.len() == 2 && titles.iter().all(|t| t.name != "gone"));
    // A folder that is suddenly empty may be a disk that is not mounted.
    fs::rename(site.folder(), site.dir.path().join("unmounted")).unwrap();
    fs::create_dir(site.folder()).unwrap();
    server.wait_for("removed from the store", TIMEOUT);
    assert!(server.interrupt());
    assert_eq!(site.names(), ["kept", "later"]);
}

#[test]
fn removed_title_comes_back_while_its_file_is_there() {
    let site = Site::new();
    site.put("a.ts", 2);
    let mut server = site.serve(&[]);
    let before = site.wait_for("a", |titles| titles.len() == 1).remove(0);
    ok(&["rm", "a", "--store", site.store().to_str().unwrap()]);
    site.wait_for("a again", |titles| {
        titles.len() == 1 && titles[0].id != before.id && titles[0].name == "a"
    });
    assert!(server.interrupt());
}

#[test]
fn names_in_any_script_and_of_seasons_tell_films_apart() {
    let site = Site::new();
    let films = [
        ("Война и мир.ts", "voina-i-mir", "Война и мир"),
        ("千と千尋.ts", "qian-toqian-xun", "千と千尋"),
        ("Ο Θίασος.ts", "o-thiasos", "Ο Θίασος"),
        ("تايتانيك.ts", "tytnyk", "تايتانيك"),
        ("기생충.ts", "gisaengcung", "기생충"),
        ("कहानी.ts", "khaanii", "कहानी"),
        ("Amélie.ts", "amelie", "Amélie"),
        ("סרט.ts", "srt", "סרט"),
        ("Season 1/01.ts", "season-1-01", "Season 1 - 01"),
        ("Season 2/01.ts", "season-2-01", "Season 2 - 01"),
        ("Show A/Pilot.ts", "pilot", "Pilot"),
        ("Show B/Pilot.ts", "show-b-pilot", "Show B - Pilot"),
    ];
    let bytes = fs::read(film(site.dir.path(), "made.ts", 1)).unwrap();
    for (number, (path, _, _)) in films.iter().enumerate() {
        // A different number of null packets makes a different film.
        let null = [&[0x47, 0x1f, 0xff, 0x10][..], &[0xff; 184]].concat();
        site.put_bytes(path, &[&bytes[..], &null.repeat(number)].concat());
    }
    let mut server = site.serve(&[]);
    let titles = site.wait_for("all", |titles| titles.len() == films.len());
    for (path, name, title) in films {
        let found = titles.iter().find(|t| t.source == site.at(path).to_str().unwrap()).expect(path);
        assert_eq!((found.name.as_str(), found.title.as_str()), (name, title), "{path}");
    }
    let listed = ok(&["ls", "--store", site.store().to_str().unwrap()]);
    assert!(listed.contains("(Война и мир)"), "{listed}");
    assert!(server.interrupt());
}

#[test]
fn film_that_failed_for_want_of_a_program_is_tried_again() {
    let site = Site::new();
    let source = film(site.dir.path(), "made.ts", 2);
    let mkv = site.at("film.mka");
    let made = std::process::Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-i", source.to_str().unwrap(), "-map", "0:a", "-c", "copy"])
        .args(["-f", "matroska", "-metadata", "title=The Sound of It", mkv.to_str().unwrap()])
        .status()
        .unwrap();
    assert!(made.success());
    set_age(&mkv, 600);
    let programs = site.dir.path().join("bin");
    fs::create_dir(&programs).unwrap();
    let program = programs.join("ffmpeg");
    let mut server = site.serve(&["--ffmpeg", program.to_str().unwrap()]);
    // The first try may come before the server is ready.
    if server.said("not added").is_empty() {
        server.wait_for("not added", TIMEOUT);
    }
    assert!(site.names().is_empty());
    for name in ["ffprobe", "ffmpeg"] {
        std::os::unix::fs::symlink(which(name), programs.join(name)).unwrap();
    }
    let titles = site.wait_for("added at a further try", |titles| titles.len() == 1);
    assert_eq!((titles[0].name.as_str(), titles[0].title.as_str()), ("film", "The Sound of It"));
    assert!(server.interrupt());
}

fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file()).expect(name)
}

#[test]
fn unknown_and_unfinished_files_are_told_apart_by_name_and_content() {
    let site = Site::new();
    let bytes = fs::read(film(site.dir.path(), "made.ts", 1)).unwrap();
    for name in ["recording", "b.mpegts.part", "c.xyz"] {
        site.put_bytes(name, if name == "c.xyz" { b"plain words\n" } else { &bytes });
    }
    let mut server = site.serve(&[]);
    site.wait_for("recording", |titles| titles.len() == 1);
    assert_eq!(site.names(), ["recording"]);
    assert!(server.said("not added").is_empty(), "{:?}", server.log);
    fs::rename(site.at("b.mpegts.part"), site.at("b.mpegts")).unwrap();
    // The store has its content already.
    server.wait_for("has the content of", TIMEOUT);
    // A killed server leaves a store that the next one can use.
    signal(server.child.id(), "KILL");
    let _ = server.child.wait();
    let mut server = site.serve(&[]);
    site.wait_for_marker("after");
    assert_eq!(site.names(), ["after", "recording"]);
    assert!(server.interrupt());
}

#[test]
fn add_with_a_name_that_is_taken_replaces_or_leaves_or_adds() {
    let site = Site::new();
    let store = site.store();
    let store = store.to_str().unwrap();
    let file = site.at("film.ts");
    let file = file.to_str().unwrap();
    let change = |name: &str| {
        let bytes = fs::read(film(site.dir.path(), name, 2)).unwrap();
        site.put_bytes("film.ts", &bytes);
        hash(&bytes)
    };
    let first = change("one.ts");
    ok(&["add", file, "--store", store]);
    assert!(ok(&["add", file, "--store", store]).contains("already there: film "));
    let second = change("two.ts");
    assert!(ok(&["add", file, "--if-absent", "--store", store]).contains("already there: film "));
    assert_eq!(
        site.titles().iter().map(|t| t.blake3.clone()).collect::<Vec<_>>(),
        std::slice::from_ref(&first)
    );
    ok(&["add", file, "--replace", "--store", store]);
    let titles = site.titles();
    assert_eq!((titles.len(), titles[0].name.as_str(), &titles[0].blake3), (1, "film", &second));
    change("three.ts");
    ok(&["add", file, "--title", "Third", "--store", store]);
    let titles = site.titles();
    let found: Vec<_> = titles.iter().map(|t| (t.name.as_str(), t.title.as_str())).collect();
    assert_eq!(found, [("film", "film"), ("films-film", "films - Third")]);
    assert_eq!(ok(&["title", "film", "  Der\nFilm ", "--store", store]).trim(), "Der Film");
    assert_eq!(ok(&["title", "film", "--store", store]).trim(), "Der Film");
    assert!(support::fails(&["title", "film", " ", "--store", store]).contains("display name"));
}

/// The name of the served folder is the same for all titles at its top, so it is left out.
#[test]
fn api_folders_of_title_begin_below_served_folder() {
    let site = Site::new();
    site.put("top.ts", 1);
    site.put("Show/Season 1/below.ts", 2);
    let mut server = site.serve(&[]);
    site.wait_for("both titles", |titles| titles.len() == 2);
    let field = |name: &str, field: &str| {
        let mut connection = std::net::TcpStream::connect(server.page()).unwrap();
        let (_, body) = support::http::get(&mut connection, &format!("/api/v1/titles/{name}"), "");
        serde_json::from_slice::<serde_json::Value>(&body).unwrap()[field].clone()
    };
    // The server lists a title soon after it is in the store.
    let end = Instant::now() + TIMEOUT;
    while field("below", "folder") != "Season 1" {
        assert!(Instant::now() < end, "{}", field("below", "folder"));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(field("below", "folders"), serde_json::json!(["Show", "Season 1"]));
    assert_eq!(field("top", "folder"), serde_json::Value::Null);
    assert_eq!(field("top", "folders"), serde_json::json!([]));
    assert!(server.interrupt());
}
