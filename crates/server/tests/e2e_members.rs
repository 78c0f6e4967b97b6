//! A volume of several members under hundreds of viewers: members are lost, fail to answer, come back or are replaced, and
//! every receiver still gets every packet.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use support::{Server, film, millrace, ok, run};

const VIEWERS: u64 = 200;

/// A volume with films on it, and a server for it whose disks fail on order.
struct Site {
    server: Server,
    members: Vec<PathBuf>,
    orders: PathBuf,
    dir: tempfile::TempDir,
}

/// Makes a volume of `members` of which `parity` may be lost; its first member stands for all of it.
fn volume(dir: &Path, members: usize, parity: usize) -> Vec<PathBuf> {
    let members: Vec<_> = (0..members).map(|number| dir.join(format!("disk{number}"))).collect();
    let mut args = vec!["volume", "create"];
    args.extend(members.iter().map(|member| member.to_str().unwrap()));
    let parity = parity.to_string();
    args.extend(["--parity", &parity]);
    ok(&args);
    members
}

fn add(source: &Path, store: &Path) {
    ok(&["add", "--quiet", source.to_str().unwrap(), "--store", store.to_str().unwrap()]);
}

impl Site {
    /// `films` films of so many seconds.
    fn new(members: usize, parity: usize, films: usize, secs: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let members = volume(dir.path(), members, parity);
        let source = film(dir.path(), "film-0.ts", secs);
        for number in 0..films {
            let copy = dir.path().join(format!("film-{number}.ts"));
            if number > 0 {
                std::fs::copy(&source, &copy).unwrap();
            }
            add(&copy, &members[0]);
        }
        Self::serve(dir, members)
    }

    fn serve(dir: tempfile::TempDir, members: Vec<PathBuf>) -> Self {
        let orders = dir.path().join("orders.txt");
        std::fs::write(&orders, "").unwrap();
        let inject = ["--inject", orders.to_str().unwrap()];
        let server = Server::start(&members[0], &inject);
        Self { server, members, orders, dir }
    }

    /// What the disks do from now on; the server looks at it several times a second and says so.
    fn order(&mut self, text: &str) {
        let new = self.dir.path().join("orders.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &self.orders).unwrap();
        self.server.wait_for("faults of disks on order", Duration::from_secs(10));
    }

    /// Begins a load on these titles.
    fn load(&self, titles: &[&str], viewers: u64, secs: u64, more: &[&str]) -> Child {
        let urls: Vec<_> = titles.iter().map(|title| self.server.title(title)).collect();
        let mut command = millrace();
        command.arg("load").args(&urls).args(["--streams", &viewers.to_string()]);
        command.args(["--duration", &format!("{secs}s"), "--arrivals", "ramp:2s", "--json", "--quiet"]);
        command.args(more).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until so many viewers have begun to play.
    fn wait_for_viewers(&mut self, viewers: u64) {
        for _ in 0..viewers {
            self.server.wait_for("plays", Duration::from_secs(60));
        }
    }
}

fn report(load: Child) -> serde_json::Value {
    let output = load.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Everybody got everything.
fn assert_nothing_missing(report: &serde_json::Value, viewers: u64) {
    let of = |name: &str| report[name].as_u64();
    assert_eq!((of("streams"), of("failed")), (Some(viewers), Some(0)), "{report}");
    assert_eq!(report["lost"], 0, "{report}");
    assert_eq!(report["ts"]["continuity_errors"], 0, "{report}");
    assert!(of("packets").unwrap() > viewers * 100, "{report}");
}

/// Every file of a title's member directory with its bytes.
fn files_of(member: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for title in std::fs::read_dir(member.join("titles")).unwrap() {
        for file in std::fs::read_dir(title.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            files.insert(path.strip_prefix(member).unwrap().to_path_buf(), std::fs::read(&path).unwrap());
        }
    }
    files
}

/// Seeks, so that viewers are everywhere in their films and disks are asked all the time.
const RESTLESS: &[&str] = &["--behaviour", "seek 2s fixed:1", "--stall", "3s"];

#[test]
fn a_disk_that_fails_under_two_hundred_viewers_is_not_noticed() {
    let mut site = Site::new(5, 1, 4, 40);
    let load = site.load(&["film-0", "film-1", "film-2", "film-3"], VIEWERS, 14, RESTLESS);
    site.wait_for_viewers(VIEWERS);
    site.order("member 2 eio\n");
    // A dead disk is gone altogether, too.
    std::fs::rename(&site.members[2], site.dir.path().join("gone")).unwrap();
    let report = report(load);
    assert_nothing_missing(&report, VIEWERS);
    let said = site.server.said("member 2");
    assert!(said.iter().any(|line| line.contains("missing")), "{said:?}");
}

#[test]
fn two_disks_of_six_one_dead_and_one_hanging() {
    let mut site = Site::new(6, 2, 4, 40);
    let load = site.load(&["film-0", "film-1", "film-2", "film-3"], VIEWERS, 16, RESTLESS);
    site.wait_for_viewers(VIEWERS);
    site.order("member 1 eio\nmember 4 hang\n");
    let report = report(load);
    assert_nothing_missing(&report, VIEWERS);
    assert!(!site.server.said("member 4 is slow").is_empty(), "{:?}", site.server.log);
    assert!(!site.server.said("member 1 is failing").is_empty(), "{:?}", site.server.log);
    // They come back, and are used again after a while.
    site.order("");
    site.server.wait_for("is healthy again", Duration::from_secs(60));
    assert!(site.server.interrupt());
}

#[test]
fn a_replaced_disk_is_made_whole_while_viewers_play() {
    let mut site = Site::new(5, 1, 2, 60);
    let before = files_of(&site.members[3]);
    assert!(before.keys().any(|path| path.ends_with("data.mru")), "{:?}", before.keys());
    let load = site.load(&["film-0", "film-1"], 50, 25, RESTLESS);
    site.wait_for_viewers(50);
    site.order("member 3 eio\n");
    std::fs::rename(&site.members[3], site.dir.path().join("gone")).unwrap();
    let store = site.members[0].to_str().unwrap().to_owned();
    let new = site.dir.path().join("new3");
    ok(&["volume", "replace", &store, "--member", "3", new.to_str().unwrap()]);
    site.order("");
    ok(&["repair", "--quiet", "--store", &store]);
    let report = report(load);
    assert_nothing_missing(&report, 50);
    let after = files_of(&new);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (path, bytes) in &before {
        assert!(after[path] == *bytes, "{path:?} is not as it was");
    }
    let checked = run(&["fsck", "--full", "--store", &store]);
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn with_too_many_disks_gone_only_the_titles_on_them_stop() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = volume(dir.path(), 3, 1);
    let source = film(dir.path(), "old.ts", 60);
    add(&source, &members[0]);
    // A title that is added after a member was added lies on all four.
    let fourth = dir.path().join("disk3");
    ok(&["volume", "add", members[0].to_str().unwrap(), fourth.to_str().unwrap()]);
    members.push(fourth);
    let copy = dir.path().join("new.ts");
    std::fs::copy(&source, &copy).unwrap();
    add(&copy, &members[0]);
    let mut site = Site::serve(dir, members);
    let old = site.load(&["old"], 20, 12, RESTLESS);
    let new = site.load(&["new"], 20, 12, RESTLESS);
    site.wait_for_viewers(40);
    site.order("member 1 eio\nmember 3 eio\n");
    assert_nothing_missing(&report(old), 20);
    let new = report(new);
    assert!(new["failed"].as_u64() > Some(0), "{new}");
    let said =
        site.server.said("film cannot be read: 2 disks of the title are lost, its parity makes up for 1");
    assert!(!said.is_empty(), "{:?}", site.server.log);
    assert!(site.server.interrupt());
}
