//! The watchdog of a service manager: it is fed while all parts make progress, and starves when a thread really stands still.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{Server, add, film, millrace};

const LIMIT: Duration = Duration::from_secs(60);
/// Of the manager in this test.
const INTERVAL: Duration = Duration::from_secs(2);

struct Manager {
    socket: UnixDatagram,
    server: Server,
    _dir: tempfile::TempDir,
}

impl Manager {
    fn start(variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (path, store) = (dir.path().join("notify"), dir.path().join("store"));
        add(&film(dir.path(), "film.ts", 1), &store);
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut command = millrace();
        command.env("NOTIFY_SOCKET", &path).envs(variables.iter().copied());
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--cache",
            "32MiB",
            "--store",
        ]);
        let server = Server::spawn({
            command.arg(&store);
            command
        });
        let manager = Self { socket, server, _dir: dir };
        assert_eq!(manager.state(LIMIT).as_deref(), Some("READY=1"));
        manager
    }

    /// The next state; `None`: none comes within this time.
    fn state(&self, limit: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(limit)).unwrap();
        let mut buffer = [0; 256];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    fn is_fed(&self) -> bool {
        self.state(LIMIT).as_deref() == Some("WATCHDOG=1")
    }

    /// Takes the states that have come already.
    fn drain(&self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 256]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
    }

    /// The first thread of this name.
    fn thread(&self, name: &str) -> String {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.server.child.id())).unwrap();
        let mut tasks = tasks.map(|task| task.unwrap().path());
        let task =
            tasks.find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name));
        task.expect(name).file_name().unwrap().to_str().unwrap().to_owned()
    }
}

/// Stops a thread until it is dropped.
struct StoppedThread(Child);

impl StoppedThread {
    fn new(thread: &str) -> Result<Self, String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/support/stop_thread.py");
        let mut child = Command::new("python3")
            .args([script, thread])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let stopped = Self(child);
        if line == "stopped\n" {
            Ok(stopped)
        } else {
            Err("a thread cannot be stopped without CAP_SYS_PTRACE".to_owned())
        }
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn watchdog_is_fed_until_an_engine_the_control_thread_or_the_web_side_stands_still() {
    let usec = INTERVAL.as_micros().to_string();
    let mut manager = Manager::start(&[("WATCHDOG_USEC", &usec)]);
    for _ in 0..4 {
        assert!(manager.is_fed());
    }
    for (thread, part) in
        [("engine-1", "engine 1"), ("control", "the control thread"), ("web", "the thread web of HTTP")]
    {
        let stopped = match StoppedThread::new(&manager.thread(thread)) {
            Ok(stopped) => stopped,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        manager.server.wait_for(&format!("watchdog: {part} makes no progress"), LIMIT);
        manager.drain();
        assert_eq!(manager.state(INTERVAL), None, "{part} stands still, and the watchdog is fed");
        drop(stopped);
        manager.server.wait_for(&format!("watchdog: {part} makes progress again"), LIMIT);
        assert!(manager.is_fed(), "{part} goes on");
    }
    assert!(manager.server.interrupt());
}

#[test]
fn watchdog_for_another_process_is_not_fed() {
    let mut manager = Manager::start(&[("WATCHDOG_USEC", "100000"), ("WATCHDOG_PID", "1")]);
    assert!(manager.server.said("watchdog: fed").is_empty());
    assert_eq!(manager.state(INTERVAL), None);
    assert!(manager.server.interrupt());
    assert_eq!(manager.state(LIMIT).as_deref(), Some("STOPPING=1"));
}
