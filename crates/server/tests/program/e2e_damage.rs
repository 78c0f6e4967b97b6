//! Damage on two disks of a volume that tolerates the loss of one, as bit rot and careless hands
//! leave it: no viewer is cut off while each codeword is available, and a scrub repairs it while
//! viewers play. Also a sector that cannot be read where nothing makes up for it.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::viewers;
use crate::support::viewers::Load;
use crate::support::viewers::Viewers::{Restless, Steady};
use crate::support::{Server, add, film, millrace, run, volume};

/// Viewers that begin to play the damaged film, and compare every byte.
const PLAYERS: usize = 20;
/// From one bad packet to the next.
const STEP_BYTES: usize = 3 * 1316;

/// A volume of four members that tolerates the loss of one, with one film, and a server for it.
struct Site {
    server: Server,
    members: Vec<PathBuf>,
    source: PathBuf,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new(secs: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let members: Vec<_> = (0..4).map(|number| dir.path().join(format!("disk{number}"))).collect();
        volume(&members, 1);
        let source = film(dir.path(), "film.ts", secs);
        add(&source, &members[0]);
        let server = Server::start(&members[0], &[]);
        Self { server, members, source, _dir: dir }
    }

    fn data(&self, member: usize) -> PathBuf {
        let mut titles = std::fs::read_dir(self.members[member].join("titles")).unwrap();
        titles.next().unwrap().unwrap().path().join("data.mru")
    }

    /// Flips bits of a member's data in this part of the file, in percent.
    fn flip(&self, member: usize, part: Range<u64>) {
        let file = File::options().read(true).write(true).open(self.data(member)).unwrap();
        let bytes = file.metadata().unwrap().len();
        for at in (bytes * part.start / 100..bytes * part.end / 100).step_by(STEP_BYTES) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 8], at).unwrap();
        }
        file.sync_all().unwrap();
    }

    fn scrub(&self, more: &[&str]) -> Output {
        run(&[&["scrub", "--json", "--store", self.members[0].to_str().unwrap()], more].concat())
    }

    /// New viewers see the film from its first byte to its last, each of them right.
    fn assert_players_see_every_byte(&self, players: usize) {
        let (url, source) = (self.server.title("film"), self.source.to_str().unwrap());
        let play = |_| {
            let mut command = millrace();
            command.args(["play", "--quiet", "--stats", "json", "--verify", source, &url]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let players: Vec<_> = (0..players).map(play).collect();
        for player in players {
            let output = player.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{output:?}");
        }
    }
}

/// A sector of a plain store cannot be read: viewers lose the packets in it and nothing else, whichever way it is read, and the title is
/// listed for the next scrub.
#[test]
fn bad_sector_of_unprotected_store_loses_only_its_packets() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = (dir.path().join("store"), dir.path().join("faults.txt"));
    let stats = dir.path().join("stats.json");
    let source = film(dir.path(), "film.ts", 4);
    add(&source, &store);
    let sector = std::fs::metadata(&source).unwrap().len() / 2 / 4096 * 4096;
    std::fs::write(&faults, format!("member 0 eio {sector} 4096\n")).unwrap();
    let lost = (sector + 4096).div_ceil(1316) - sector / 1316;
    for read in ["auto", "threads"] {
        let list = store.join("damaged.txt");
        let _ = std::fs::remove_file(&list);
        let more = ["--read", read, "--inject", faults.to_str().unwrap(), "--stats", stats.to_str().unwrap()];
        let mut server = Server::start(&store, &more);
        let play = |transport: &str| {
            let mut command = millrace();
            command.args(["play", &server.title("film"), "--transport", transport, "--stats", "json"]);
            command.args(["--verify", source.to_str().unwrap()]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        for player in ["udp", "tcp"].map(play) {
            let output = player.wait_with_output().unwrap();
            let report: serde_json::Value =
                serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
            let packets = viewers::packets_of(&source) - lost;
            assert_eq!((&report["packets"], &report["end"]), (&packets.into(), &"bye".into()), "{report}");
            let sequence = &report["sequence"];
            assert_eq!((&sequence["lost"], &sequence["lost_at_end"]), (&lost.into(), &0.into()), "{report}");
            assert_eq!(report["byte_check"]["different_bytes"], 0, "{report}");
            assert_eq!(output.status.code(), Some(1), "packets are missing: {report}");
        }
        let end = Instant::now() + Duration::from_secs(20);
        while !list.exists() {
            assert!(Instant::now() < end, "not listed: {:?}", server.log);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(server.said("damaged and left out").len(), 1, "{:?}", server.log);
        assert!(server.interrupt());
        let counters: serde_json::Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
        assert_eq!(counters["titles"][0]["missing"], 2 * lost, "{counters}");
    }
}

/// Asserts that all of the scrub's findings have this fate.
fn assert_all_are(output: &Output, fate: &str) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = report["found"].as_array().unwrap();
    assert!(!found.is_empty() && found.iter().all(|found| found["fate"] == fate), "{report}");
}

#[test]
fn damage_on_two_disks_with_single_parity_cuts_off_no_viewer() {
    let mut site = Site::new(16);
    let before = [1, 2].map(|member| std::fs::read(site.data(member)).unwrap());
    // Units of one stripe are at about the same place of each file, so no codeword has bad packets of both.
    site.flip(1, 65..100);
    site.flip(2, 0..60);
    assert_all_are(&site.scrub(&["--check"]), "repairable");
    site.assert_players_see_every_byte(PLAYERS);
    // It is listed for the next scrub, on each disk.
    let lists: Vec<_> = site.members.iter().map(|member| member.join("damaged.txt")).collect();
    let end = Instant::now() + Duration::from_secs(20);
    while !lists.iter().all(|list| list.exists()) {
        assert!(Instant::now() < end, "not listed: {:?}", site.server.log);
        std::thread::sleep(Duration::from_millis(20));
    }
    // And no viewer is cut off while it is repaired.
    let load = Load::start(&site.server, &["film"], (20, 12), Restless, &[]);
    let steady = Load::start(&site.server, &["film"], (6, 24), Steady, &[]);
    (0..26).for_each(|_| drop(site.server.wait_for("plays", Duration::from_secs(60))));
    assert_all_are(&site.scrub(&[]), "repaired");
    assert!(lists.iter().all(|list| !list.exists()), "it is whole");
    load.assert_nothing_missing();
    steady.assert_all_of(viewers::packets_of(&site.source));
    for (member, before) in [1, 2].into_iter().zip(before) {
        assert!(std::fs::read(site.data(member)).unwrap() == before, "member {member}");
    }
    assert!(site.server.interrupt());
}

#[test]
fn repaired_member_reconstructs_data_of_damaged_member_at_once() {
    let mut site = Site::new(24);
    let load = Load::start(&site.server, &["film"], (20, 20), Restless, &[]);
    let steady = Load::start(&site.server, &["film"], (6, 32), Steady, &[]);
    (0..26).for_each(|_| drop(site.server.wait_for("plays", Duration::from_secs(60))));
    let data = site.data(1);
    File::options().write(true).open(&data).unwrap().set_len(0).unwrap();
    std::fs::remove_file(&data).unwrap();
    site.server.wait_for("member 1 is failing", Duration::from_secs(60));
    assert_all_are(&site.scrub(&[]), "repaired");
    site.flip(2, 0..100);
    site.server.wait_for("member 1 is healthy again", Duration::from_secs(60));
    // Without the first disk the second cannot be made up for.
    site.assert_players_see_every_byte(4);
    load.assert_nothing_missing();
    steady.assert_all_of(viewers::packets_of(&site.source));
    let said = site.server.said("member 1 is");
    assert_eq!(said.last().map(|line| line.contains("healthy again")), Some(true), "{said:?}");
    assert!(site.server.interrupt());
}
