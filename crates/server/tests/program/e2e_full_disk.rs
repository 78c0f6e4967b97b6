//! Stores on real file systems that take nothing more: filled to the last byte, or mounted read-only. Looking, playing and checking
//! work all the same, and removing a title frees its space.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::support::real_disks::{FailingDisk, ReadOnlyView, Tmpfs, missing, until};
use crate::support::{Server, fails, film, http, millrace, ok, play, run};

/// What commands say, once, about a catalogue that they cannot write.
const IN_MEMORY: &str = "the catalogue cannot be written";

/// Writes until not even one byte fits.
fn fill(dir: &Path) {
    for (number, bytes) in [1 << 16, 1024, 1].into_iter().enumerate() {
        // Some file systems have no room for another name either.
        let Ok(mut ballast) = File::create(dir.join(format!("ballast-{number}"))) else { return };
        while ballast.write_all(&vec![1; bytes]).is_ok() {}
    }
}

fn free_bytes(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).unwrap();
    // Those that only root may use too: the tests fill them as well.
    stat.f_bfree * stat.f_frsize
}

/// Runs a command that must succeed without an error about the catalogue; one warning is allowed.
fn works(args: &[&str]) -> String {
    let output: Output = run(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "millrace {args:?}: {output:?}");
    assert!(said.matches(IN_MEMORY).count() <= 1, "millrace {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that only looks; `out` is a place on another disk.
fn can_be_used(store: &str, titles: usize, out: &Path) {
    let list: serde_json::Value = serde_json::from_str(&works(&["ls", "--json", "--store", store])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), titles);
    assert!(works(&["fsck", "--full", "--store", store]).contains("no problem"));
    works(&["scrub", "--check", "--store", store]);
    let mut server = Server::start(Path::new(store), &[]);
    let name = list[0]["name"].as_str().unwrap();
    let report = play(&[&server.title(name), "-o", out.to_str().unwrap()]);
    let data = format!("{store}/titles/{}/data.ts", list[0]["id"].as_str().unwrap());
    assert_eq!(std::fs::read(out).unwrap(), std::fs::read(data).unwrap(), "{report}");
    assert!(server.interrupt());
    assert!(server.said(IN_MEMORY).len() <= 1, "{:?}", server.log);
}

/// A store with two titles on a disk that is full.
fn a_full_disk(dir: &Path, disk: &Path) {
    let store = disk.join("store");
    let store = store.to_str().unwrap();
    let sources = ["a.ts", "b.ts"].map(|name| film(dir, name, 2));
    for source in &sources {
        ok(&["add", "--quiet", source.to_str().unwrap(), "--store", store]);
    }
    fill(disk);
    can_be_used(store, 2, &dir.join("out"));
    let error = fails(&["add", film(dir, "c.ts", 3).to_str().unwrap(), "--store", store]);
    assert!(error.contains("remove a title"), "{error}");

    let before = free_bytes(disk);
    works(&["rm", "a", "--store", store]);
    let freed = free_bytes(disk) - before;
    let bytes = sources[0].metadata().unwrap().len();
    assert!(freed >= bytes, "{freed} of {bytes} bytes are free again");
    // Nothing is left for others to clean up.
    assert!(works(&["fsck", "--store", store]).contains("no problem"));

    // Full again, and without its catalogue, as after a user has deleted the files that may be
    // deleted.
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{store}/catalogue.sqlite{suffix}"));
    }
    fill(disk);
    assert!(works(&["ls", "--store", store]).contains('b'));
    works(&["rm", "b", "--store", store]);
    assert_eq!(works(&["ls", "--json", "--store", store]).trim(), "[]");
    std::fs::remove_file(disk.join("ballast-0")).unwrap();
    ok(&["add", "--quiet", sources[0].to_str().unwrap(), "--store", store]);
    can_be_used(store, 1, &dir.join("out"));
}

/// Runs a command to its end and asserts that no signal killed it.
fn ends_itself(args: &[&str]) -> Output {
    let output = run(args);
    assert_eq!(output.status.signal(), None, "millrace {args:?}: {output:?}");
    output
}

/// On a full disk, the server and commands beside it add and remove titles while a viewer plays; no
/// signal may kill a process.
fn a_full_disk_under_a_server(dir: &Path, disk: &Path) {
    let store = disk.join("store");
    let store = store.to_str().unwrap();
    let long = film(dir, "long.ts", 25);
    let more = film(dir, "more.ts", 20);
    ok(&["add", "--quiet", long.to_str().unwrap(), "--store", store]);
    for number in 0..8 {
        let small = film(dir, &format!("t{number}.ts"), 1);
        ok(&["add", "--quiet", small.to_str().unwrap(), "--store", store]);
    }
    let mut server = Server::start(Path::new(store), &[]);
    let page = format!("http://{}/", server.page());
    let out = dir.join("out");
    let mut viewer = millrace()
        .args(["play", &server.title("long"), "-o", out.to_str().unwrap()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    for number in [0, 2, 4, 6] {
        fill(disk);
        // Remove one title through the server, which has the catalogue open, and one by a command
        // beside it.
        let by_server = ends_itself(&["rm", &format!("t{number}"), "--server", &page]);
        fill(disk);
        let by_command = ends_itself(&["rm", &format!("t{}", number + 1), "--store", store]);
        fill(disk);
        ends_itself(&["ls", "--store", store]);
        let added = ends_itself(&["add", "--quiet", more.to_str().unwrap(), "--store", store]);
        assert!(!added.status.success(), "{added:?}");
        for output in [by_server, by_command] {
            assert!(output.status.success(), "{output:?}");
        }
        assert_eq!(viewer.try_wait().unwrap().and_then(|status| status.signal()), None);
    }
    assert!(viewer.wait().unwrap().success());
    let played = std::fs::read(&out).unwrap();
    assert_eq!(played, std::fs::read(&long).unwrap());
    assert!(server.interrupt());
    let list: serde_json::Value = serde_json::from_str(&ok(&["ls", "--json", "--store", store])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
    assert!(ok(&["fsck", "--store", store]).contains("no problem"));
}

fn on(mkfs: &[&str], bytes: u64) {
    if let Some(why) = missing(&[mkfs[0], "mount", "umount"]) {
        eprintln!("skipped: mounting a small file system needs root, its mkfs and loop devices: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    match FailingDisk::mount_made_by(mkfs, &dir.path().join("image"), &dir.path().join("disk"), bytes) {
        Ok(disk) => a_full_disk_under_a_server(dir.path(), &disk.at),
        Err(why) => eprintln!("skipped: no such file system here: {why}"),
    }
}

#[test]
fn full_ext4_of_small_blocks_ends_nothing_by_a_signal() {
    on(&["mkfs.ext4", "-q", "-F", "-b", "1024"], 48 << 20);
}

#[test]
fn full_ext4_ends_nothing_by_a_signal() {
    on(&["mkfs.ext4", "-q", "-F", "-b", "4096"], 48 << 20);
}

#[test]
fn full_btrfs_ends_nothing_by_a_signal() {
    on(&["mkfs.btrfs", "-q", "-f", "-m", "single"], 150 << 20);
}

#[test]
fn full_xfs_ends_nothing_by_a_signal() {
    on(&["mkfs.xfs", "-q", "-f"], 320 << 20);
}

#[test]
fn store_on_full_ext4_can_be_read_and_emptied() {
    if let Some(why) = missing(&["mkfs.ext4", "mount", "umount"]) {
        eprintln!("skipped: mounting a small ext4 needs root and loop devices: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    match FailingDisk::mount(&dir.path().join("image"), &dir.path().join("disk"), 24 << 20) {
        Ok(disk) => a_full_disk(dir.path(), &disk.at),
        Err(why) => eprintln!("skipped: no loop device: {why}"),
    }
}

#[test]
fn store_on_full_tmpfs_can_be_read_and_emptied() {
    if let Some(why) = missing(&["mount", "umount"]) {
        eprintln!("skipped: mounting a tmpfs needs root: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Tmpfs::mount(&dir.path().join("disk"), "8m");
    a_full_disk(dir.path(), &disk.at);
}

/// Half of a rights file would leave the store with users that cannot be read.
#[test]
fn user_add_on_a_full_disk_leaves_the_store_as_it_was() {
    if let Some(why) = missing(&["mount", "umount"]) {
        eprintln!("skipped: mounting a tmpfs needs root: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Tmpfs::mount(&dir.path().join("disk"), "8m");
    let store = disk.at.join("store");
    let store = store.to_str().unwrap();
    ok(&["add", "--quiet", film(dir.path(), "a.ts", 2).to_str().unwrap(), "--store", store]);
    fill(&disk.at);
    let add_user = || {
        let mut child = millrace()
            .args(["user", "add", "anna", "--store", store])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may have ended before it read the password.
        let _ = child.stdin.take().unwrap().write_all(b"secret-word\n");
        child.wait_with_output().unwrap()
    };
    // As long as a file; the lock of the rights has no bytes.
    let files = || {
        let entries = std::fs::read_dir(store).unwrap().map(|entry| entry.unwrap());
        let with_bytes =
            entries.filter(|entry| entry.metadata().unwrap().len() > 0 && entry.path().is_file());
        let mut names: Vec<_> = with_bytes.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let before = files();
    let output = add_user();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("rights.sqlite"), "{output:?}");
    assert_eq!(files(), before);
    assert!(!Path::new(store).join("rights.sqlite").exists());
    // There are no users, so the title is served as before.
    can_be_used(store, 1, &dir.path().join("out"));
    std::fs::remove_file(disk.at.join("ballast-0")).unwrap();
    let output = add_user();
    assert!(output.status.success(), "{output:?}");
    assert!(ok(&["user", "ls", "--store", store]).contains("anna"));
}

#[test]
fn store_mounted_read_only_can_be_read_but_not_changed() {
    if let Some(why) = missing(&["mount", "umount"]) {
        eprintln!("skipped: a read-only mount needs root: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for name in ["a.ts", "b.ts"] {
        let source = film(dir.path(), name, 2);
        ok(&["add", "--quiet", source.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    }
    let view = ReadOnlyView::mount(&store, &dir.path().join("view"));
    let shown = view.at.to_str().unwrap();
    can_be_used(shown, 2, &dir.path().join("out"));
    for refused in [
        &["rm", "a"][..],
        &["add", film(dir.path(), "c.ts", 2).to_str().unwrap()],
        &["prepare", "a", "--packet-sizes", "1k"],
    ] {
        let error = fails(&[refused, &["--store", shown]].concat());
        assert!(error.contains("read-only") || error.contains("Read-only"), "{refused:?}: {error}");
    }
    assert_eq!(
        std::fs::read_dir(&store).unwrap().count(),
        4,
        "superblock, catalogue, titles, tmp: all as before"
    );

    // Also without a catalogue, and with rubbish in its place that cannot be set aside.
    let catalogue = store.join("catalogue.sqlite");
    std::fs::write(&catalogue, b"rubbish, as a power cut may leave it, longer than a header would be")
        .unwrap();
    assert!(works(&["ls", "--store", shown]).contains('b'));
    std::fs::remove_file(&catalogue).unwrap();
    assert!(works(&["ls", "--store", shown]).contains('b'));
    assert_eq!(std::fs::read_dir(&store).unwrap().count(), 3);
}

/// With a full disk, the server reports once that pictures cannot be kept, and makes them when there
/// is space again.
#[test]
fn pictures_on_full_disk_are_made_once_it_has_space() {
    if let Some(why) = missing(&["mount", "umount", "ffmpeg"]) {
        eprintln!("skipped: mounting a tmpfs needs root: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Tmpfs::mount(&dir.path().join("disk"), "16m");
    let store = disk.at.join("store");
    for number in 0..4 {
        let source = film(dir.path(), &format!("t{number}.ts"), 2);
        ok(&["add", "--quiet", source.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    }
    fill(&disk.at);
    let mut command = millrace();
    command.args(["serve", "--listen", "127.0.0.1:0", "--cache", "32MiB", "--store"]).arg(&store);
    command.env("MILLRACE_LOG", "info,millrace_server::cmds::serve::pictures=debug");
    let mut server = Server::spawn(command);
    let address = server.page();
    let states = || {
        let mut connection = std::net::TcpStream::connect(address).unwrap();
        let (_, body) = http::get(&mut connection, "/api/v1/titles", "");
        let list: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let titles = list["titles"].as_array().unwrap().clone();
        titles.iter().map(|title| title["pictures"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let limit = std::time::Duration::from_secs(120);
    until("all titles tell that the disk is full", limit, || {
        states().iter().all(|state| state.contains("the disk of the pictures is full"))
    });
    server.wait_for("none can be kept yet", limit);
    std::fs::remove_file(disk.at.join("ballast-0")).unwrap();
    // A removed title may have freed space, so that the server does not wait for its next attempt.
    ok(&["rm", "t0", "--store", store.to_str().unwrap()]);
    until("all pictures are made", limit, || {
        let states = states();
        states.len() == 3 && states.iter().all(|state| state == "made")
    });
    assert!(server.interrupt());
    let lines = server.said("pictures for the page: ");
    let of = |level: &str| lines.iter().filter(|line| line.contains(level)).collect::<Vec<_>>();
    let ([warning], [info]) = (&of(" WARN ")[..], &of(" INFO ")[..]) else { panic!("{lines:?}") };
    assert!(warning.contains("no space left on the disk") && info.contains("again"), "{lines:?}");
}
