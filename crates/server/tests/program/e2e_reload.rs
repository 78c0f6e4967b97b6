//! The settings of a running server are changed by its API and `millrace config reload`: callers get the outcome, and viewers
//! notice nothing.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::http::{answer, get};
use crate::support::{Server, add, fails, film, millrace, ok, play, run};

const LIMIT: Duration = Duration::from_secs(60);
const JSON: &str = "Content-Type: application/json\r\n";

struct ReloadSite {
    server: Server,
    settings: PathBuf,
    _dir: tempfile::TempDir,
}

impl ReloadSite {
    fn new(film_secs: u64, settings: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (store, path) = (dir.path().join("store"), dir.path().join("millrace.toml"));
        add(&film(dir.path(), "film.ts", film_secs), &store);
        fs::write(&path, settings).unwrap();
        let mut command = millrace();
        command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--cache", "32MiB"]);
        command.arg("--store").arg(&store).arg("--config").arg(&path);
        Self { server: Server::spawn(command), settings: path, _dir: dir }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.server.page())
    }

    fn write(&self, settings: &str) {
        // Replaced as a whole: a reload that runs must not read half of it.
        let new = self.settings.with_extension("new");
        fs::write(&new, settings).unwrap();
        fs::rename(&new, &self.settings).unwrap();
    }
}

fn post(page: std::net::SocketAddr, lines: &str) -> TcpStream {
    let mut stream = TcpStream::connect(page).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").unwrap();
    stream
}

fn report(body: &[u8]) -> Value {
    serde_json::from_slice(body).expect("a report")
}

#[test]
fn config_reload_prints_what_became_of_each_change() {
    let mut site = ReloadSite::new(2, "max-streams = 2\n");
    let url = site.url();
    let reload = ["config", "reload", "--server", &url];
    assert_eq!(ok(&reload), "no setting has changed\n");
    site.write("max-streams = 1\nread = \"threads\"\n");
    let printed = ok(&reload);
    let expected = "max-streams: 1 now in effect, before 2\nread: threads needs a restart; until then auto\n";
    assert_eq!(printed, expected);
    site.server.wait_for("API: reading the settings again", LIMIT);
    site.server.wait_for("reload: max-streams: 1 from now on, before 2", LIMIT);
    // One mistake, and nothing changes.
    site.write("max-rate = \"5Mb/s\"\nmax-streams = 2\nsettle = \"soon\"\n");
    let refused = run(&reload);
    let printed = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{printed}");
    assert!(printed.contains("no setting was changed: ") && printed.contains("millrace.toml:3"), "{printed}");
    let refused = run(&[&reload[..], &["--json"]].concat());
    let printed = report(&refused.stdout);
    assert_eq!(refused.status.code(), Some(1), "{printed}");
    assert!(printed["faults"][0].as_str().unwrap().contains("millrace.toml:3"), "{printed}");
    // The API shows the last outcome.
    let (_, body) = get(&mut TcpStream::connect(site.server.page()).unwrap(), "/api/v1/reload", "");
    assert_eq!(report(&body), printed);
    fs::remove_file(&site.settings).unwrap();
    assert!(fails(&reload).contains("millrace.toml: the configuration cannot be read: No such file"));
    // Changes are compared with the values that are in effect.
    site.write("max-rate = \"5Mb/s\"\n");
    let printed = report(&run(&[&reload[..], &["--json"]].concat()).stdout);
    let names: Vec<_> = printed["changes"].as_array().unwrap().iter().map(|change| &change["name"]).collect();
    assert_eq!(names, ["max-streams", "max-rate"], "{printed}");
    assert!(site.server.interrupt());
}

#[test]
fn config_reload_without_a_web_side_names_sighup() {
    let page = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let printed = fails(&["config", "reload", "--server", &format!("http://{page}/")]);
    assert!(printed.contains("--http off") && printed.contains("kill -HUP PID"), "{printed}");
    let help = ok(&["config", "reload", "--help"]);
    assert!(help.contains("ports 8080 to 8089") && help.contains("SIGHUP"), "{help}");
}

#[test]
fn every_caller_gets_the_outcome_and_callers_without_the_right_cause_nothing() {
    let mut site = ReloadSite::new(2, "max-streams = 2\n");
    let page = site.server.page();
    let (head, _) = answer(&mut post(page, &format!("{JSON}X-Forwarded-For: 192.0.2.1\r\n")));
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    assert!(site.server.said("reading the settings").is_empty());
    site.write("max-streams = 1\n");
    // More than may wait vanish before they are answered.
    for _ in 0..24 {
        drop(post(page, JSON));
    }
    let mut waiting: Vec<_> = (0..8).map(|_| post(page, JSON)).collect();
    for stream in &mut waiting {
        let (mut head, mut body) = answer(stream);
        // Those that have gone may still have their places.
        let end = Instant::now() + LIMIT;
        while head.starts_with("HTTP/1.1 503") && Instant::now() < end {
            (head, body) = answer(&mut post(page, JSON));
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(report(&body)["faults"], Value::Array(Vec::new()));
    }
    let (head, body) = answer(&mut post(page, JSON));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(report(&body)["changes"], Value::Array(Vec::new()), "the change was taken over once");
    assert!(site.server.interrupt());
}

/// Reloads until `is_over`, each with another value; returns how many there were.
fn reload_until(is_over: &AtomicBool, site: &Path, page: std::net::SocketAddr) -> usize {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let new = site.with_extension("next");
        let settings = format!(
            "share-per-address = \"100%\"\nmax-streams = {}\nmax-rate = \"{}Mb/s\"\nread = \"threads\"\n",
            3 + count % 5,
            50 + count % 7
        );
        fs::write(&new, settings).unwrap();
        fs::rename(&new, site).unwrap();
        let (head, body) = answer(&mut post(page, JSON));
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let changes = report(&body)["changes"].as_array().unwrap().len();
        assert_eq!(changes, 3, "both values and the one that needs a restart");
        count += 1;
    }
    count
}

#[test]
fn viewers_beside_reloads_in_a_loop_get_every_packet() {
    let site = ReloadSite::new(6, "share-per-address = \"100%\"\n");
    let packets = fs::metadata(site.settings.with_file_name("film.ts")).unwrap().len().div_ceil(1316);
    let (page, title) = (site.server.page(), site.server.title("film"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reloads = scope.spawn(|| reload_until(&is_over, &site.settings, page));
        let viewers: Vec<_> = ["udp", "tcp"]
            .map(|transport| {
                let title = &title;
                scope.spawn(move || play(&[title, "--transport", transport, "-o", "null"]))
            })
            .into_iter()
            .collect();
        for viewer in viewers {
            let report = viewer.join().unwrap();
            assert_eq!((&report["packets"], &report["end"]), (&packets.into(), &"bye".into()), "{report}");
            assert_eq!(report["sequence"]["lost"], 0, "{report}");
        }
        is_over.store(true, Ordering::Relaxed);
        let count = reloads.join().unwrap();
        assert!(count > 0, "no reload beside the viewers");
    });
}
