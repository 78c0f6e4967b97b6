//! Servers with worker processes: forked ones that have inherited a listener, and those with `SO_REUSEPORT`. Their peer is this kernel.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use millrace_lab::tcp_host::OUR_IP;
use millrace_lab::toe_host::ToeHost;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    OTHER_USER, PAIRS, Running, bytes, engine_and_kernel, has_tun, have, nginx_with, preloaded, random_file,
    run, until,
};

const PORT: u16 = 7400;

fn script(engine: &Path, case: &str) -> Command {
    let mut command = preloaded("python3", engine);
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/preloaded/workers.py");
    command.arg(script).args([case, &OUR_IP.to_string(), &PORT.to_string()]);
    command
}

/// A server of the script, and the files with its output.
struct Server {
    _running: Running,
    out: PathBuf,
    err: PathBuf,
}

impl Server {
    fn start(dir: &Path, name: &str, command: &mut Command) -> Self {
        let [out, err] = ["out", "err"].map(|kind| dir.join(format!("{name}.{kind}")));
        let running =
            Running::start(command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap()));
        let server = Self { _running: running, out, err };
        server.line();
        server
    }

    /// Its first line.
    fn line(&self) -> String {
        until("the server prints a line", || {
            let text = std::fs::read_to_string(&self.out).unwrap();
            let err = || std::fs::read_to_string(&self.err).unwrap();
            assert!(!err().contains("Traceback"), "{}", err());
            text.contains('\n').then(|| text.trim().to_owned())
        })
    }

    fn pid(&self) -> u32 {
        self.line().parse().unwrap()
    }
}

/// A connection, from its handshake to its end: which process has answered.
fn call(count: usize) -> io::Result<u32> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((OUR_IP, PORT)), Duration::from_secs(60))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let sent: Vec<u8> = (0..count).map(|at| at as u8).collect();
    stream.write_all(&sent)?;
    stream.shutdown(Shutdown::Write)?;
    let mut reader = BufReader::new(stream);
    let (mut line, mut back) = (String::new(), Vec::new());
    reader.read_line(&mut line)?;
    reader.read_to_end(&mut back)?;
    let pid = line.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    if back != sent {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(pid)
}

/// Calls until each of `count` processes has answered, and whose they are.
fn answering(toe: &ToeHost, count: usize, mut is_wanted: impl FnMut(u32) -> bool + Send) -> BTreeSet<u32> {
    toe.in_kernel(|| {
        let mut seen = BTreeSet::new();
        until("all workers answer", || {
            let pid = call(3000).unwrap();
            if is_wanted(pid) {
                seen.insert(pid);
            }
            (seen.len() == count).then(|| seen.clone())
        })
    })
    .unwrap()
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Ends the engine, which must not have noticed anything wrong.
fn stop(toe: ToeHost) {
    let counters = toe.stop().unwrap();
    assert_eq!((counters.engine.rejected, counters.engine.events_lost), (0, 0), "{counters:?}");
}

/// Both workers answer and the parent does not; a killed one is replaced, and meanwhile the other one answers all.
fn workers(case: &str) {
    if !has_tun() || !have(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (toe, engine) = engine_and_kernel(dir.path(), 0);
    let server = Server::start(dir.path(), case, &mut script(&engine, case));
    let first = answering(&toe, 2, |_| true);
    assert!(!first.contains(&server.pid()), "the parent never accepts");
    let killed = *first.first().unwrap();
    kill(killed);
    // Whatever has not been accepted by the one that is gone is accepted by the others.
    let later = answering(&toe, 2, |pid| pid != killed);
    assert!(later.contains(first.last().unwrap()), "{first:?} {later:?}");
    drop(server);
    stop(toe);
}

#[test]
fn forked_workers_that_accept_share_inherited_listener() {
    workers("accepts");
}

#[test]
fn forked_workers_that_select_share_inherited_listener() {
    workers("selects");
}

#[test]
fn forked_workers_with_epoll_sets_share_inherited_listener() {
    workers("polls");
}

#[test]
fn forked_workers_with_inherited_epoll_set_share_inherited_listener() {
    workers("one_set");
}

#[test]
fn forked_workers_with_threads_share_inherited_listener() {
    workers("in_threads");
}

/// Calls from several threads while `disturb` runs: how many were answered, and why others failed.
fn calls_during(
    toe: &ToeHost,
    callers: usize,
    call: impl Fn() -> io::Result<u32> + Sync,
    disturb: impl FnOnce(&AtomicU64),
) -> (u64, Vec<io::Error>) {
    /// However the disturbance ends, the callers do.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (is_over, good, bad) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..callers {
            scope.spawn(|| {
                toe.in_kernel(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        match call() {
                            Ok(_) => _ = good.fetch_add(1, Ordering::Relaxed),
                            Err(error) => bad.lock().unwrap().push(error),
                        }
                    }
                })
                .unwrap();
            });
        }
        disturb(&good);
    });
    (good.into_inner(), bad.into_inner().unwrap())
}

/// Waits until as many more calls have been answered.
fn more_answers(good: &AtomicU64, count: u64) {
    let before = good.load(Ordering::Relaxed);
    until("calls are answered", || (good.load(Ordering::Relaxed) >= before + count).then_some(()));
}

#[test]
fn workers_killed_while_they_accept_lose_only_accepted_connections() {
    const CALLERS: usize = 4;
    const KILLS: u64 = 20;
    if !has_tun() || !have(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (toe, engine) = engine_and_kernel(dir.path(), 0);
    let server = Server::start(dir.path(), "polls", &mut script(&engine, "polls"));
    answering(&toe, 2, |_| true);
    let children = format!("/proc/{0}/task/{0}/children", server.pid());
    let (good, bad) = calls_during(
        &toe,
        CALLERS,
        || call(3000),
        |good| {
            for _ in 0..KILLS {
                let text = std::fs::read_to_string(&children).unwrap();
                kill(text.split_whitespace().next().unwrap().parse().unwrap());
                more_answers(good, 10);
            }
        },
    );
    // A worker has one connection at a time: the one that it has accepted is the only one that its end may break off.
    assert!(bad.len() as u64 <= KILLS && good >= KILLS * 10, "{good} answered, failed: {bad:?}");
    drop(server);
    stop(toe);
}

#[test]
fn children_without_queue_pair_are_silent_and_others_serve() {
    const CHILDREN: usize = 50;
    if !has_tun() || !have(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (toe, engine) = engine_and_kernel(dir.path(), 0);
    let server = Server::start(dir.path(), "bomb", script(&engine, "accepts").arg(CHILDREN.to_string()));
    // The parent has one of the pairs. Some children may have given up before all pairs were taken.
    let seen = answering(&toe, PAIRS / 2, |_| true);
    assert!(!seen.contains(&server.pid()));
    until("the others know that they have no queue pair", || {
        let text = std::fs::read_to_string(&server.err).unwrap();
        let count = text.matches("inherited from the parent process: cannot be opened").count();
        (count >= CHILDREN - PAIRS).then_some(())
    });
    for pid in toe.in_kernel(|| (0..100).map(|_| call(100).unwrap()).collect::<Vec<_>>()).unwrap() {
        assert_ne!(pid, server.pid());
    }
    drop(server);
    stop(toe);
}

#[test]
fn processes_with_so_reuseport_share_a_port_and_others_are_refused() {
    if !has_tun() || !have(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (toe, engine) = engine_and_kernel(dir.path(), 0);
    let servers =
        ["first", "second"].map(|name| Server::start(dir.path(), name, &mut script(&engine, "shares")));
    let pids: BTreeSet<u32> = servers.iter().map(Server::pid).collect();
    assert_eq!(answering(&toe, 2, |_| true), pids);
    let user = OTHER_USER.to_string();
    for (case, user) in [("refused", None), ("refused", Some(&user)), ("refused_shared", Some(&user))] {
        let output = run(script(&engine, case).args(user));
        let [out, err] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert_eq!(out, "EADDRINUSE\n", "{case} {user:?}: {err}");
    }
    // Neither a listener that never accepts nor as many as a process may have get in the way of the others.
    let idle = Server::start(dir.path(), "idle", &mut script(&engine, "shares_and_never_accepts"));
    let many = Server::start(dir.path(), "many", &mut script(&engine, "many"));
    assert_eq!(many.line(), "16 ENOBUFS");
    assert_eq!(answering(&toe, 2, |_| true), pids);
    let (good, bad) = calls_during(&toe, 40, || call(3000), |good| more_answers(good, 400));
    assert!(bad.is_empty() && good >= 400, "{good} answered, failed: {bad:?}");
    drop((idle, many));
    // One goes: the other one has all.
    let [first, second] = servers;
    drop(first);
    let left = toe.in_kernel(|| (0..50).map(|_| call(100).unwrap()).collect::<BTreeSet<_>>()).unwrap();
    assert_eq!(left, BTreeSet::from([second.pid()]));
    drop(second);
    stop(toe);
}

/// Downloads a file by a connection of its own: which worker of nginx has answered.
fn download(path: &str, expected: &[u8]) -> io::Result<u32> {
    let to = SocketAddr::from((OUR_IP, PORT));
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(60))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(format!("GET /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let head = String::from_utf8_lossy(&all[..end]).into_owned();
    if &all[end + 4..] != expected || !head.starts_with("HTTP/1.1 200") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, head));
    }
    let pid = head.lines().find_map(|line| line.strip_prefix("X-Worker: ")?.trim().parse().ok());
    pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Two workers of nginx answer with the bytes of files; one is killed and replaced; a reload replaces both without a failed request.
fn nginx_workers(main: &str, listen: &str, loss: u64) {
    const CALLERS: usize = 4;
    if !has_tun() || !have(&["nginx"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    random_file(&dir.path().join("film"), 4, bytes());
    random_file(&dir.path().join("small"), 5, 20_000);
    let [film, small] = ["film", "small"].map(|name| std::fs::read(dir.path().join(name)).unwrap());
    let (toe, engine) = engine_and_kernel(dir.path(), loss);
    let main = format!("worker_processes 2; {main}");
    let address = format!("{OUR_IP}:{PORT}{listen}");
    let mut server = nginx_with(&mut preloaded("nginx", &engine), dir.path(), &main, &address);
    let log = || std::fs::read_to_string(dir.path().join("error.log")).unwrap_or_default();
    let two = |is_wanted: &(dyn Fn(u32) -> bool + Sync)| {
        toe.in_kernel(|| {
            let mut seen = BTreeSet::new();
            until("two workers answer", || {
                match download("small", &small) {
                    Ok(pid) if is_wanted(pid) => _ = seen.insert(pid),
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{}", log()),
                }
                (seen.len() == 2).then(|| seen.clone())
            })
        })
        .unwrap()
    };
    let first = two(&|_| true);
    toe.in_kernel(|| {
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| download("film", &film).unwrap());
            }
        });
    })
    .unwrap();
    let killed = *first.first().unwrap();
    kill(killed);
    let second = two(&|pid| pid != killed);
    assert!(second.contains(first.last().unwrap()), "{first:?} {second:?}");
    let (_, bad) = calls_during(
        &toe,
        CALLERS,
        || download("small", &small),
        |good| {
            more_answers(good, 50);
            server.signal(Signal::HUP);
            let third = two(&|pid| !second.contains(&pid));
            until("the workers of before have gone", || {
                second.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()).then_some(())
            });
            more_answers(good, 50);
            assert!(third.is_disjoint(&second));
        },
    );
    assert!(bad.is_empty(), "{bad:?}\n{}", log());
    server.signal(Signal::QUIT);
    assert!(server.end("nginx ends").success(), "{}", log());
    stop(toe);
}

#[test]
fn nginx_with_two_workers_serves_through_loss_kill_and_reload() {
    nginx_workers("user root;", "", 5);
}

#[test]
fn nginx_with_two_workers_and_reuseport_serves_through_kill_and_reload() {
    nginx_workers("user root;", " reuseport", 0);
}

/// Workers that give up the rights of root have their listeners all the same.
#[test]
fn nginx_with_two_workers_of_another_user_serves_through_kill_and_reload() {
    nginx_workers("user nobody nogroup;", "", 0);
}
