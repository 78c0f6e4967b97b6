//! Hostile clients of a running server's HTTP: viewers that play by RTSP beside them miss nothing,
//! and when the clients are gone the server holds the same resources as before. Also ten thousand
//! clients that send nothing.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::viewers::Load;
use crate::support::viewers::Viewers::Steady;
use crate::support::{Server, add, film, play};
use millrace_lab::held::{HeldResources, counters};
use millrace_lab::hostile::{ATTACKS, AttackTarget, Response, idle};
use millrace_lab::proc::resident_bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For things that must happen on their own, on a machine that has other things to do.
const TIMEOUT: Duration = Duration::from_secs(60);
const VIEWERS: u64 = 12;
const SECS: u64 = 5;
/// Between two rounds of a client: the test is not about processor scheduling.
const PAUSE: Duration = Duration::from_millis(3);
/// Rounds of one client at most.
const ROUNDS: u64 = 3_000;
const FILM: &str = "/titles/film.ts";

/// A server with a film in a store of its own.
struct Site {
    server: Server,
    web: SocketAddr,
    stats: PathBuf,
    _dir: tempfile::TempDir,
}

impl Site {
    fn start(secs: u64, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (store, stats) = (dir.path().join("store"), dir.path().join("stats.json"));
        add(&film(dir.path(), "film.ts", secs), &store);
        let server = Server::start(&store, &[args, &["--stats", stats.to_str().unwrap()]].concat());
        let web = server.page();
        Self { server, web, stats, _dir: dir }
    }

    /// Returns its resources once it holds no more than `expected`.
    fn settled(&self, expected: HeldResources) -> HeldResources {
        HeldResources::settle(self.server.child.id(), &self.stats, expected, TIMEOUT)
            .expect("the server's counters")
    }

    fn web_counter(&self, name: &str) -> u64 {
        counters(&self.stats).unwrap()["web"][name].as_u64().unwrap()
    }

    fn memory(&self) -> u64 {
        resident_bytes(self.server.child.id()).unwrap()
    }

    /// The site as seen from this address of the machine itself: as another client than the viewers.
    fn target(&self, from: Ipv4Addr) -> AttackTarget {
        AttackTarget { web: self.web, from: IpAddr::V4(from), title: FILM.to_owned() }
    }
}

/// Tells all to stop when it is dropped, however that comes.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn viewers_miss_nothing_beside_hostile_clients_and_everything_is_given_back() {
    let site = Site::start(SECS + 25, &["--max-connections-per-address", "4000"]);
    // The server keeps the files of a title open, in the form for RTP and in that for bytes.
    play(&[&site.server.title("film"), "-o", "null", "--duration", "1s"]);
    site.settled(HeldResources::nothing_but(u64::MAX));
    read_response_of(&site, "Range: bytes=0-187\r\n");
    let before = site.settled(HeldResources::nothing_but(u64::MAX));
    assert_eq!(before, HeldResources::nothing_but(before.descriptors));
    let memory = site.memory();

    let load = Load::start(&site.server, &["film"], (VIEWERS, SECS), Steady, &[]);
    let stop = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let (stop, site) = (&stop, &site);
        let clients = ATTACKS.iter().zip(2u8..).map(|(attack, last)| {
            let target = site.target(Ipv4Addr::new(127, 0, 0, last));
            scope.spawn(move || (attack.name, attack.run(&target, ROUNDS, PAUSE, stop)))
        });
        let clients: Vec<_> = clients.collect();
        load.assert_nothing_missing();
        drop(stopping);
        clients.into_iter().map(|client| client.join().expect("a hostile client")).collect::<Vec<_>>()
    });
    for (name, done) in &done {
        assert!(done.rounds > 0 && done.wrong == 0, "{name}: {done:?}");
    }
    let expected = HeldResources::nothing_but(before.descriptors);
    let held = site.settled(expected);
    assert_eq!(held.beyond(expected), 0, "something is left after {done:?}: {held:?}");
    assert_eq!(site.web_counter("connections"), 0);
    let more = site.memory().saturating_sub(memory);
    assert!(more < 48 << 20, "{} MiB more than before", more >> 20);
    read_response_of(&site, "Range: bytes=0-187\r\n");
}

/// Another client is sent a part of the film.
fn read_response_of(site: &Site, lines: &str) {
    let target = site.target(Ipv4Addr::LOCALHOST);
    let mut client = target.dial().unwrap();
    client.write_all(target.request(lines).as_bytes()).unwrap();
    assert_eq!(Response::read(&mut client).unwrap().expect("a response").status, 206);
}

const IDLE: usize = 10_000;
/// Addresses that they come from: fewer from each than the default bound.
const IDLE_ADDRESSES: u8 = 10;
/// Memory of the program for one that is idle, at most; a debug build takes more than others.
const MOST_IDLE_BYTES: u64 = 4096;

/// Room for both ends, if this machine gives that much.
fn has_descriptors() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    limit.maximum.is_none_or(|most| most >= IDLE as u64 + 1_000)
}

fn wait_until(site: &Site, name: &str, count: u64) {
    let end = Instant::now() + TIMEOUT;
    while site.web_counter(name) != count {
        assert!(Instant::now() < end, "{name}: {}, not {count}", site.web_counter(name));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn ten_thousand_idle_connections_cost_little_and_keep_nobody_out() {
    if !has_descriptors() {
        eprintln!("skipped: a process may not open {IDLE} files here (ulimit -Hn)");
        return;
    }
    let site = Site::start(20, &[]);
    // After this the cache's memory is present, and everything that is made and opened once.
    play(&[&site.server.title("film"), "-o", "null", "--duration", "1s"]);
    read_response_of(&site, "Range: bytes=0-187\r\n");
    let descriptors = site.settled(HeldResources::nothing_but(u64::MAX)).descriptors;
    let before = site.memory();
    let from: Vec<_> = (1..=IDLE_ADDRESSES).map(|last| Ipv4Addr::new(127, 0, 1, last).into()).collect();
    let idle = || idle(&site.target(Ipv4Addr::LOCALHOST), &from, IDLE).unwrap();
    let all = idle();
    wait_until(&site, "connections", IDLE as u64);
    let first = site.memory().saturating_sub(before);
    assert!(first < IDLE as u64 * MOST_IDLE_BYTES, "{} bytes for each", first / IDLE as u64);
    drop(all);
    wait_until(&site, "connections", 0);
    // The next connections reuse the memory that these have left.
    let before = site.memory();
    let all = idle();
    wait_until(&site, "connections", IDLE as u64);
    let more = site.memory().saturating_sub(before);
    assert!(more < first.max(8 << 20), "{more} bytes more with the next, {first} with the first");
    read_response_of(&site, "Range: bytes=0-187\r\n");
    let report = play(&[&site.server.title("film"), "-o", "null", "--duration", "2s"]);
    assert_eq!(report["sequence"]["lost"], 0, "{report}");
    drop(all);
    wait_until(&site, "connections", 0);
    let expected = HeldResources::nothing_but(descriptors);
    let held = site.settled(expected);
    assert_eq!(held.beyond(expected), 0, "{held:?}");
}
