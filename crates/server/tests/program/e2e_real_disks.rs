//! A volume with a disk that really hangs (a mount whose program is stopped: every system call on
//! it waits), really fails (a device that has lost its end) or is really gone (unmounted), under
//! viewers: no viewer misses a packet and no other client waits for this disk.
//!
//! `MILLRACE_E2E_VIEWERS=200` has as many viewers with FEC; without it they are fewer, for machines that are slow or busy.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use crate::support;
use crate::support::real_disks::{FailingDisk, HangingDisk, Tmpfs, missing, state, until};
use crate::support::viewers::Viewers::{Restless, Steady};
use crate::support::viewers::{Load, Viewers, packets_of};
use crate::support::{Server, add, film, millrace, run, signal};

/// Viewers that watch when the disk goes.
const VIEWERS: u64 = 36;
/// Viewers that watch the short film then, and never seek.
const STEADY: u64 = 6;
/// Viewers with FEC, unless the environment sets another number.
const WITH_FEC: u64 = 60;
/// A film that those who never seek see from its first packet to its last.
const SHORT: &str = "short";
const SHORT_SECS: u64 = 12;
/// A command that asks a disk which hangs waits some seconds for it; this machine may be busy besides.
const COMMAND: Duration = Duration::from_secs(90);

/// Makes a volume of these directories that tolerates the loss of one, and adds `films` films of
/// `secs` seconds, and the short one.
fn volume(dir: &Path, members: &[PathBuf], films: usize, secs: u64) {
    support::volume(members, 1);
    let source = film(dir, "film-0.ts", secs);
    for number in 0..films {
        let copy = dir.join(format!("film-{number}.ts"));
        if number > 0 {
            std::fs::copy(&source, &copy).unwrap();
        }
        add(&copy, &members[0]);
    }
    add(&film(dir, &format!("{SHORT}.ts"), SHORT_SECS), &members[0]);
}

/// Returns four members; the third is at `odd`.
fn members(dir: &Path, odd: &Path) -> Vec<PathBuf> {
    let plain = |number: usize| dir.join(format!("disk{number}"));
    vec![plain(0), plain(1), odd.join("store"), plain(3)]
}

/// Runs the program to its end, which has to come in time.
fn run_within(args: &[&str], limit: Duration) -> Output {
    let mut command = millrace();
    let child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match ended.recv_timeout(limit) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            signal(pid, "KILL");
            panic!("millrace {args:?} does not end within {limit:?}")
        }
    }
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

/// Viewers who bear a stall of 10 s: a disk that hangs may take seconds to be found out.
fn load(server: &Server, titles: &[&str], (viewers, secs): (u64, u64), how: Viewers) -> Load {
    Load::start(server, titles, (viewers, secs), how, &["--stall", "10s"])
}

/// Viewers of the short film, who have time to see all of it.
fn short_film(server: &Server) -> Load {
    load(server, &[SHORT], (STEADY, SHORT_SECS + 10), Steady)
}

fn short_packets(dir: &Path) -> u64 {
    packets_of(&dir.join(format!("{SHORT}.ts")))
}

fn wait_for_viewers(server: &mut Server, viewers: u64) {
    for _ in 0..viewers {
        server.wait_for("plays", Duration::from_secs(90));
    }
}

/// Asks and returns the first line of the answer, which has to come within seconds.
fn ask(server: &Server, method: &str, url: &str, headers: &str) -> String {
    let mut connection = TcpStream::connect(server.addr).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(connection, "{method} {url} RTSP/1.0\r\nCSeq: 1\r\n{headers}\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line).unwrap_or_else(|error| panic!("{method} {url}: {error}"));
    line
}

/// Asserts that a player's first requests are answered, for a title that is played and for one that
/// no viewer has requested yet.
fn assert_answers(server: &Server, titles: &[&str]) {
    assert!(ask(server, "OPTIONS", "*", "").contains("200"));
    for title in titles {
        let url = server.title(title);
        let described = ask(server, "DESCRIBE", &url, "Accept: application/sdp\r\n");
        assert!(described.contains("200"), "{title}: {described}");
        let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
        let set_up = ask(server, "SETUP", &format!("{url}/track1"), transport);
        assert!(set_up.contains("200"), "{title}: {set_up}");
    }
}

/// Ends the server by SIGTERM while a disk hangs: by its own doing, whatever the kernel still waits for on its behalf.
fn assert_ends(server: &mut Server, disk: &HangingDisk) {
    let pid = server.child.id();
    signal(pid, "TERM");
    // A thread inside an uninterruptible system call keeps the ended process from being reaped.
    until("the server ends", Duration::from_secs(60), || matches!(state(pid), None | Some('Z')));
    disk.go_on();
    let status = server.child.wait().unwrap();
    assert!(status.success(), "{status}: {:?}", server.said(""));
}

/// A player that asks one thing after the other on one connection.
struct Player(TcpStream);

impl Player {
    fn connect(server: &Server) -> Self {
        let connection = TcpStream::connect(server.addr).unwrap();
        connection.set_read_timeout(Some(COMMAND)).unwrap();
        Self(connection)
    }

    fn send(&mut self, method: &str, url: &str, headers: &str) {
        write!(self.0, "{method} {url} RTSP/1.0\r\nCSeq: 1\r\n{headers}\r\n").unwrap();
    }

    /// Asks, and returns the head of the answer.
    fn ask(&mut self, method: &str, url: &str, headers: &str) -> String {
        self.send(method, url, headers);
        support::read_message(&mut self.0).0
    }

    /// Makes the requests that precede playing a title; returns its session.
    fn set_up(&mut self, url: &str) -> String {
        assert!(self.ask("DESCRIBE", url, "").starts_with("RTSP/1.0 200"));
        let set_up = self.ask("SETUP", url, "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n");
        let session = support::header(&set_up, "Session").unwrap_or_else(|| panic!("{set_up}"));
        session.split(';').next().unwrap().to_owned()
    }

    fn play(&mut self, url: &str, session: &str) {
        let played = self.ask("PLAY", url, &format!("Session: {session}\r\n"));
        assert!(played.starts_with("RTSP/1.0 200"), "{played}");
    }

    /// Whether something has come that has not been read.
    fn is_answered(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let looked = self.0.peek(&mut [0]);
        self.0.set_nonblocking(false).unwrap();
        match looked {
            Ok(bytes) => bytes > 0,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                false
            }
        }
    }
}

#[test]
fn title_opening_on_hanging_disk_delays_only_its_requesters() {
    if let Some(why) = missing(&["bindfs", "setpriv", "umount"]) {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = HangingDisk::mount(&dir.path().join("under"), &dir.path().join("mnt"));
    let members = members(dir.path(), &disk.at);
    volume(dir.path(), &members, 2, 20);
    let mut server = Server::start(&members[0], &[]);
    let (open, closed) = (server.title("film-0"), server.title("film-1"));
    let [mut waiting, mut ready, mut other] = [(); 3].map(|()| Player::connect(&server));
    assert!(waiting.ask("OPTIONS", "*", "").starts_with("RTSP/1.0 200"));
    let session = ready.set_up(&open);
    disk.stop();
    // No client has requested this title before: the server must first find out that the disk
    // hangs.
    waiting.send("DESCRIBE", &closed, "");
    assert!(other.ask("OPTIONS", "*", "").starts_with("RTSP/1.0 200"));
    let mut newcomer = Player::connect(&server);
    assert!(newcomer.ask("DESCRIBE", &open, "").starts_with("RTSP/1.0 200"));
    // These answers would have come after the one to the first request, had they waited for it. They take no more than the processor.
    assert!(!waiting.is_answered());
    ready.play(&open, &session);
    let session = other.set_up(&open);
    other.play(&open, &session);
    let described = support::read_message(&mut waiting.0).0;
    assert!(described.starts_with("RTSP/1.0 200"), "the other disks have what is needed: {described}");
    waiting.set_up(&closed);
    drop((waiting, ready, other, newcomer));
    disk.go_on();
    assert!(server.interrupt());
}

#[test]
fn hanging_disk_delays_no_viewer_command_or_shutdown() {
    if let Some(why) = missing(&["bindfs", "setpriv", "umount"]) {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = HangingDisk::mount(&dir.path().join("under"), &dir.path().join("mnt"));
    let mut members = members(dir.path(), &disk.at);
    // Reads of this one take the same way through the kernel, and must not wait behind those that hang.
    let other = HangingDisk::mount(&dir.path().join("under-3"), &dir.path().join("mnt-3"));
    members[3] = other.at.join("store");
    volume(dir.path(), &members, 3, 40);
    let store = members[0].to_str().unwrap();
    let mut server = Server::start(&members[0], &[]);
    let viewers = load(&server, &["film-0", "film-1"], (VIEWERS, 22), Restless);
    let steady = short_film(&server);
    wait_for_viewers(&mut server, VIEWERS + STEADY);
    disk.stop();
    assert_answers(&server, &["film-0", "film-2"]);
    let newcomers = load(&server, &["film-1", "film-2"], (6, 8), Steady);
    server.wait_for("member 2 at", Duration::from_secs(60));
    let status = run_within(&["volume", "status", store], COMMAND);
    assert_eq!(status.status.code(), Some(1), "{}", text(&status));
    assert!(text(&status).contains("not responding"), "{}", text(&status));
    let checked = run_within(&["fsck", "--store", store], COMMAND);
    assert!(text(&checked).contains("member 2 cannot be used: disk not responding"), "{}", text(&checked));
    let listed = run_within(&["ls", "--store", store], COMMAND);
    assert!(text(&listed).contains("film-2"), "{}", text(&listed));
    newcomers.assert_nothing_missing();
    steady.assert_all_of(short_packets(dir.path()));
    viewers.assert_nothing_missing();
    disk.go_on();
    server.wait_for("is used again", Duration::from_secs(60));
    // Once more, and now the server is to end.
    let viewers = load(&server, &["film-0"], (6, 60), Restless);
    wait_for_viewers(&mut server, 6);
    disk.stop();
    assert_ends(&mut server, &disk);
    viewers.stop();
}

#[test]
fn server_start_with_hanging_disk_succeeds_and_uses_it_later() {
    if let Some(why) = missing(&["bindfs", "setpriv", "umount"]) {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut disk = HangingDisk::mount(&dir.path().join("under"), &dir.path().join("mnt"));
    let members = members(dir.path(), &disk.at);
    volume(dir.path(), &members, 2, 30);
    disk.stop();
    let mut server = Server::start(&members[0], &[]);
    let said = server.said("member 2 at");
    assert!(said.iter().any(|line| line.contains("not responding")), "{said:?}");
    assert_answers(&server, &["film-0"]);
    let viewers = load(&server, &["film-0", "film-1"], (12, 20), Restless);
    let steady = short_film(&server);
    wait_for_viewers(&mut server, 12 + STEADY);
    // Its program dies: what hung fails, and so does everything until it is mounted again.
    disk.die();
    server.wait_for("member 2 at", Duration::from_secs(60));
    disk.mount_again();
    server.wait_for("is used again", Duration::from_secs(60));
    steady.assert_all_of(short_packets(dir.path()));
    viewers.assert_nothing_missing();
    assert_answers(&server, &["film-0", "film-1"]);
    assert!(server.interrupt());
}

#[test]
fn truncated_disk_fails_without_packet_loss() {
    if let Some(why) = missing(&["mkfs.ext4", "mount", "umount"]) {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = match FailingDisk::mount(&dir.path().join("image"), &dir.path().join("mnt"), 64 << 20) {
        Ok(disk) => disk,
        Err(why) => return println!("skipped: {why}"),
    };
    let members = members(dir.path(), &disk.at);
    volume(dir.path(), &members, 3, 40);
    let store = members[0].to_str().unwrap();
    let mut server = Server::start(&members[0], &[]);
    let viewers = load(&server, &["film-0", "film-1"], (VIEWERS, 16), Restless);
    let steady = short_film(&server);
    wait_for_viewers(&mut server, VIEWERS + STEADY);
    disk.cut(4096);
    server.wait_for("member 2", Duration::from_secs(60));
    assert_answers(&server, &["film-0", "film-2"]);
    let newcomers = load(&server, &["film-1", "film-2"], (6, 6), Steady);
    let status = run_within(&["volume", "status", store], COMMAND);
    assert!(matches!(status.status.code(), Some(0 | 1)), "{}", text(&status));
    // Its findings depend on the data of this disk in the kernel's memory; it must end.
    let checked = run_within(&["fsck", "--full", "--store", store], COMMAND);
    assert!(matches!(checked.status.code(), Some(0 | 1)), "{}", text(&checked));
    newcomers.assert_nothing_missing();
    steady.assert_all_of(short_packets(dir.path()));
    viewers.assert_nothing_missing();
    assert!(server.interrupt());
    // And it starts with such a disk, too.
    let mut server = Server::start(&members[0], &[]);
    assert_answers(&server, &["film-0"]);
    assert!(server.interrupt());
}

/// Viewers with FEC repair the data that a lost disk held, and lose nothing.
#[test]
fn unmounted_disk_under_fec_viewers_loses_no_packet() {
    if let Some(why) = missing(&["mount", "umount"]) {
        println!("skipped: {why}");
        return;
    }
    let viewers = std::env::var("MILLRACE_E2E_VIEWERS")
        .map_or(WITH_FEC, |viewers| viewers.parse().expect("MILLRACE_E2E_VIEWERS: a number"));
    let dir = tempfile::tempdir().unwrap();
    let disk = Tmpfs::mount(&dir.path().join("mnt"), "64m");
    let mut members = members(dir.path(), &disk.at);
    members.push(dir.path().join("disk4"));
    volume(dir.path(), &members, 3, 40);
    let mut server = Server::start(&members[0], &[]);
    let fec = ["--fec", "all"];
    let restless = Load::start(&server, &["film-0", "film-1"], (viewers * 4 / 5, 14), Restless, &fec);
    let steady = Load::start(&server, &[SHORT], (viewers / 5, SHORT_SECS + 10), Steady, &fec);
    wait_for_viewers(&mut server, viewers * 4 / 5 + viewers / 5);
    disk.disappear();
    server.wait_for("member 2", Duration::from_secs(60));
    // Also of a title that no viewer has opened yet.
    let newcomers = Load::start(&server, &["film-2"], (6, 6), Steady, &fec);
    restless.assert_nothing_missing();
    steady.assert_all_of(short_packets(dir.path()));
    let report = newcomers.assert_nothing_missing();
    assert!(report["fec"]["repaired"].as_u64() > Some(0), "{report}");
    let status = run(&["volume", "status", members[0].to_str().unwrap()]);
    assert_eq!(status.status.code(), Some(1), "{}", text(&status));
    assert!(server.interrupt());
}
