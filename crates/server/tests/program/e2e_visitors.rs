//! Connections that come and go as fast as a client can make them: viewers that play beside them
//! miss nothing, and in the end the server holds the same resources as before.
//! `millrace bench sessions` measures the speed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::viewers::Load;
use crate::support::viewers::Viewers::Steady;
use crate::support::{Server, add, film, play};
use millrace_lab::held::{HeldResources, counters};
use millrace_lab::visitors::{Visits, visit};

const VIEWERS: u64 = 50;
const SECS: u64 = 4;
/// Clients that visit, side by side.
const CLIENTS: usize = 2;
/// For things that must happen on their own, on a machine that has other things to do.
const TIMEOUT: Duration = Duration::from_secs(60);

fn settled(server: &Server, stats: &Path, expected: HeldResources) -> HeldResources {
    HeldResources::settle(server.child.id(), stats, expected, TIMEOUT).expect("the server's counters")
}

/// Lets clients go when it is dropped, however that comes.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What clients come to who visit a film until `done` returns, which gives the other result.
fn beside<T>(server: &Server, done: impl FnOnce() -> T) -> (Vec<Visits>, T) {
    let (stop, url, addr) = (AtomicBool::new(false), server.title("film"), server.addr);
    std::thread::scope(|scope| {
        let client = || visit(addr, &url, &stop);
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let stopping = Stop(&stop);
        let result = done();
        drop(stopping);
        (clients.into_iter().map(|client| client.join().expect("a client")).collect(), result)
    })
}

#[test]
fn viewers_miss_nothing_and_everything_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, stats) = (dir.path().join("store"), dir.path().join("stats.json"));
    add(&film(dir.path(), "film.ts", SECS + 20), &store);
    let limits = ["--max-connections-per-address", "4000", "--share-per-address", "100%"];
    let server = Server::start(&store, &[&limits[..], &["--stats", stats.to_str().unwrap()]].concat());
    // After this, everything that is opened once and stays open has been opened.
    play(&[&server.title("film"), "-o", "null", "--duration", "1s"]);
    let before = settled(&server, &stats, HeldResources::nothing_but(u64::MAX));
    assert_eq!(before, HeldResources::nothing_but(before.descriptors));

    let load = Load::start(&server, &["film"], (VIEWERS, SECS), Steady, &[]);
    let (clients, report) = beside(&server, || load.assert_nothing_missing());
    assert_eq!(report["played"], VIEWERS);
    for client in &clients {
        assert_eq!((client.refused, client.failed), (0, 0), "{client:?}");
        assert!(client.set_up > 0 && client.played > 0, "{client:?}");
    }
    let expected = HeldResources::nothing_but(before.descriptors);
    let held = settled(&server, &stats, expected);
    assert_eq!(held.beyond(expected), 0, "something is left: {held:?}");
    // Each was a session of its own, and ended with its connection.
    let sum = |what: fn(&Visits) -> u64| clients.iter().map(what).sum::<u64>();
    let sessions = &counters(&stats).unwrap()["sessions"];
    assert_eq!(sessions["sessions_disconnected"], sum(|client| client.set_up), "{sessions}");
    assert_eq!(sessions["sessions_started"], sum(|client| client.set_up) + VIEWERS + 1, "{sessions}");
}
