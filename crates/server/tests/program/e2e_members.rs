//! A volume of several members under hundreds of viewers: members are lost, fail to answer, come back or are replaced, and
//! every receiver still gets every packet.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::http::get;
use crate::support::viewers::Viewers::{Restless, Steady};
use crate::support::viewers::{Load, Viewers, packets_of};
use crate::support::{Server, add, film, ok, run, volume};

/// Viewers who seek, and viewers who never do.
const RESTLESS: u64 = 160;
const STEADY: u64 = 40;
/// A film that those who never seek see from its first packet to its last.
const SHORT: &str = "short";
const SHORT_SECS: u64 = 10;

/// A volume with films on it, and a server for it whose disks fail on order.
struct Site {
    server: Server,
    members: Vec<PathBuf>,
    orders: PathBuf,
    dir: tempfile::TempDir,
}

/// Returns the directories of this many members; the first stands for all of the volume.
fn directories(dir: &Path, members: usize) -> Vec<PathBuf> {
    (0..members).map(|number| dir.join(format!("disk{number}"))).collect()
}

impl Site {
    /// Makes `films` films of `secs` seconds, and the short one.
    fn new(members: usize, parity: usize, films: usize, secs: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let members = directories(dir.path(), members);
        volume(&members, parity);
        let source = film(dir.path(), "film-0.ts", secs);
        for number in 0..films {
            let copy = dir.path().join(format!("film-{number}.ts"));
            if number > 0 {
                std::fs::copy(&source, &copy).unwrap();
            }
            add(&copy, &members[0]);
        }
        add(&film(dir.path(), &format!("{SHORT}.ts"), SHORT_SECS), &members[0]);
        Self::serve(dir, members)
    }

    fn serve(dir: tempfile::TempDir, members: Vec<PathBuf>) -> Self {
        let orders = dir.path().join("orders.txt");
        std::fs::write(&orders, "").unwrap();
        let inject = ["--inject", orders.to_str().unwrap()];
        let server = Server::start(&members[0], &inject);
        Self { server, members, orders, dir }
    }

    /// Orders the disks' behaviour from now on; the server looks at it several times a second and
    /// logs it.
    fn order(&mut self, text: &str) {
        let new = self.dir.path().join("orders.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &self.orders).unwrap();
        self.server.wait_for("fault injection", Duration::from_secs(10));
    }

    /// Begins a load on these titles.
    fn load(&self, titles: &[&str], viewers: u64, secs: u64, how: Viewers) -> Load {
        Load::start(&self.server, titles, (viewers, secs), how, &[])
    }

    /// The packets of the short film.
    fn short_packets(&self) -> u64 {
        packets_of(&self.dir.path().join(format!("{SHORT}.ts")))
    }

    /// Waits until this many viewers have begun to play.
    fn wait_for_viewers(&mut self, viewers: u64) {
        for _ in 0..viewers {
            self.server.wait_for("plays", Duration::from_secs(60));
        }
    }
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

const FILMS: [&str; 4] = ["film-0", "film-1", "film-2", "film-3"];

#[test]
fn disk_failure_under_two_hundred_viewers_loses_no_packet() {
    let mut site = Site::new(5, 1, 4, 40);
    let load = site.load(&FILMS, RESTLESS, 14, Restless);
    let steady = site.load(&[SHORT], STEADY, SHORT_SECS + 8, Steady);
    site.wait_for_viewers(RESTLESS + STEADY);
    site.order("member 2 eio\n");
    // A dead disk is gone altogether, too.
    std::fs::rename(&site.members[2], site.dir.path().join("gone")).unwrap();
    load.assert_nothing_missing();
    steady.assert_all_of(site.short_packets());
    let said = site.server.said("member 2");
    assert!(said.iter().any(|line| line.contains("missing")), "{said:?}");
    assert!(site.server.interrupt());
}

/// Viewers of RTP with FEC repair the packets of a lost disk themselves; viewers of bytes cannot.
#[test]
fn file_of_title_with_a_dead_hanging_or_missing_disk_is_decoded_from_parity() {
    let mut site = Site::new(5, 1, 1, 4);
    let film = std::fs::read(site.dir.path().join(format!("{SHORT}.ts"))).unwrap();
    let missing = site.members[1].clone();
    let away = site.dir.path().join("away");
    for fault in ["member 2 eio\n", "member 3 hang\n", "missing"] {
        // Extents in memory would hide it.
        assert!(site.server.interrupt());
        std::fs::write(&site.orders, "").unwrap();
        if fault == "missing" {
            std::fs::rename(&missing, &away).unwrap();
        }
        site.server = Server::start(&site.members[0], &["--inject", site.orders.to_str().unwrap()]);
        if fault != "missing" {
            site.order(fault);
        }
        let mut stream = TcpStream::connect(site.server.page()).unwrap();
        let (_, bytes) = get(&mut stream, &format!("/titles/{SHORT}.ts"), "");
        assert!(bytes == film, "{fault}: other bytes, {:?}", site.server.log);
    }
}

#[test]
fn dead_and_hanging_disk_of_six_lose_no_packet() {
    let mut site = Site::new(6, 2, 4, 40);
    let load = site.load(&FILMS, RESTLESS, 16, Restless);
    let steady = site.load(&[SHORT], STEADY, SHORT_SECS + 8, Steady);
    site.wait_for_viewers(RESTLESS + STEADY);
    site.order("member 1 eio\nmember 4 hang\n");
    load.assert_nothing_missing();
    steady.assert_all_of(site.short_packets());
    assert!(!site.server.said("member 4 is slow").is_empty(), "{:?}", site.server.log);
    assert!(!site.server.said("member 1 is failing").is_empty(), "{:?}", site.server.log);
    // They come back, and are used again after a while.
    site.order("");
    site.server.wait_for("is healthy again", Duration::from_secs(60));
    assert!(site.server.interrupt());
}

#[test]
fn replaced_disk_is_rebuilt_identically_while_viewers_play() {
    let mut site = Site::new(5, 1, 2, 60);
    let before = files_of(&site.members[3]);
    assert!(before.keys().any(|path| path.ends_with("data.mru")), "{:?}", before.keys());
    let load = site.load(&FILMS[..2], 50, 25, Restless);
    let steady = site.load(&FILMS[..2], 10, 25, Steady);
    site.wait_for_viewers(60);
    site.order("member 3 eio\n");
    std::fs::rename(&site.members[3], site.dir.path().join("gone")).unwrap();
    let store = site.members[0].to_str().unwrap().to_owned();
    let new = site.dir.path().join("new3");
    ok(&["volume", "replace", &store, "--old", "3", new.to_str().unwrap()]);
    site.order("");
    ok(&["repair", "--quiet", "--store", &store]);
    load.assert_nothing_missing();
    steady.assert_nothing_missing();
    let after = files_of(&new);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (path, bytes) in &before {
        assert!(after[path] == *bytes, "{path:?} is not as it was");
    }
    let checked = run(&["fsck", "--full", "--store", &store]);
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn disk_losses_beyond_parity_stop_only_affected_titles() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = directories(dir.path(), 3);
    volume(&members, 1);
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
    let old = site.load(&["old"], 20, 12, Restless);
    let new = site.load(&["new"], 20, 12, Restless);
    site.wait_for_viewers(40);
    site.order("member 1 eio\nmember 3 eio\n");
    old.assert_nothing_missing();
    let (new, output) = new.end();
    assert!(new["failed"].as_u64() > Some(0), "{new}");
    assert_eq!(output.status.code(), Some(1), "viewers were cut off: {output:?}");
    let said =
        site.server.said("media cannot be read: 2 disks of the title are lost, its parity makes up for 1");
    assert!(!said.is_empty(), "{:?}", site.server.log);
    assert!(site.server.interrupt());
}
