//! The program as a process among others: signals of terminals and service managers, locks that
//! other processes hold, memory limits.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Server, add, film, header, millrace, play, read_message, run, signal};

const LIMIT: Duration = Duration::from_secs(60);

/// A command that starts with the signal handling of `option` (of `env`), whatever the test
/// inherited.
fn with_signals(option: &str) -> Command {
    let mut command = Command::new("env");
    command.arg(option).arg(millrace().get_program());
    command
}

fn serve(command: &mut Command, store: &Path) {
    command.args(["serve", "--listen", "127.0.0.1:0", "--http", "off", "--store"]).arg(store);
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn server_goes_on_at_signals_that_are_not_for_it_and_ends_at_sigquit() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = film(dir.path(), "film.ts", 2);
    add(&source, &store);
    let mut command = with_signals("--default-signal=HUP,USR1,USR2,QUIT");
    serve(&mut command, &store);
    let mut server = Server::spawn(command);
    for name in ["HUP", "USR1", "USR2"] {
        signal(server.child.id(), name);
        server.wait_for(&format!("SIG{name}: "), LIMIT);
    }
    let out = dir.path().join("out");
    play(&[&server.title("film"), "-o", out.to_str().unwrap()]);
    assert_eq!(fs::read(out).unwrap(), fs::read(source).unwrap());
    signal(server.child.id(), "QUIT");
    assert!(server.ends());
}

/// An ingest whose ffmpeg does not end by itself.
struct EndlessAdd {
    child: Child,
    store: PathBuf,
}

impl EndlessAdd {
    fn start(dir: &Path, option: &str) -> Self {
        for name in ["ffmpeg", "ffprobe"] {
            let path = dir.join(name);
            fs::write(&path, "#!/bin/sh\ntouch \"$0.begun\"\nexec sleep 600\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            let _ = fs::remove_file(dir.join(format!("{name}.begun")));
        }
        let source = dir.join("film.mkv");
        fs::write(&source, [0x1a, 0x45, 0xdf, 0xa3]).unwrap();
        let store = dir.join("store");
        let mut command = with_signals(option);
        command
            .arg("add")
            .arg(&source)
            .arg("--ffmpeg")
            .arg(dir.join("ffmpeg"))
            .args(["--ffmpeg-sandbox", "off"])
            .arg("--store")
            .arg(&store);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("ffmpeg or ffprobe begins", || {
            ["ffmpeg.begun", "ffprobe.begun"].iter().any(|name| dir.join(name).exists())
        });
        Self { child, store }
    }

    /// Asserts that the command exited with an error message and left no temporary files.
    fn assert_ended(self) {
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.signal().is_none() && !output.status.success(), "{output:?}");
        assert!(!output.stderr.is_empty());
        assert_eq!(fs::read_dir(self.store.join("tmp")).unwrap().count(), 0);
    }
}

#[test]
fn add_at_sighup_ends_as_at_sigint_and_goes_on_under_nohup() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["HUP", "QUIT"] {
        let add = EndlessAdd::start(dir.path(), "--default-signal=HUP,QUIT");
        signal(add.child.id(), name);
        add.assert_ended();
    }
    let mut add = EndlessAdd::start(dir.path(), "--ignore-signal=HUP");
    signal(add.child.id(), "HUP");
    let status = fs::read_to_string(format!("/proc/{}/status", add.child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & 1, 1, "SIGHUP stays ignored");
    assert!(add.child.try_wait().unwrap().is_none());
    signal(add.child.id(), "TERM");
    add.assert_ended();
}

#[test]
fn lock_that_another_process_holds_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = film(dir.path(), "film.ts", 2);
    add(&source, &store);
    let mut holder = Command::new("flock")
        .arg("--no-fork")
        .arg(store.join("volume.mrv"))
        .args(["sh", "-c", "echo held; exec sleep 600"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("flock runs");
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    let store = store.to_str().unwrap();
    let waiting: Vec<_> =
        [&["ls"][..], &["rm", "film"], &["add", source.to_str().unwrap(), "--name", "more"]]
            .into_iter()
            .map(|args| {
                let args = [args, &["--store", store]].concat();
                let child =
                    millrace().args(args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
                std::thread::spawn(move || child.wait_with_output().unwrap())
            })
            .collect();
    for output in waiting.into_iter().map(|waiting| waiting.join().unwrap()) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("volume.mrv: locked by process ") && said.contains("end it"), "{said}");
    }
    let _ = holder.kill();
    let _ = holder.wait();
}

/// A control group with a memory limit, below the group of the test.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(bytes: u64) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let v1 = groups.lines().find_map(|line| line.split_once(":memory:").map(|(_, path)| path));
        let v2 = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let (top, path, file) = match (v1, v2) {
            (Some(path), _) => ("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"),
            (None, Some(path)) => ("/sys/fs/cgroup", path, "memory.max"),
            _ => return Err("no control groups".to_owned()),
        };
        let below = Path::new(top).join(path.trim_start_matches('/'));
        let parent = if below.is_dir() { below } else { top.into() };
        let dir = parent.join(format!("millrace-test-{}", std::process::id()));
        let failed = |error| format!("{}: {error}", dir.display());
        fs::create_dir(&dir).map_err(failed)?;
        let group = Self(dir.clone());
        fs::write(dir.join(file), bytes.to_string()).map_err(failed)?;
        Ok(group)
    }

    /// Returns a command of the program that runs in the group.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.0);
        command.arg(millrace().get_program()).args(args);
        command
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The group is busy until its last process has gone.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

const SERVE: [&str; 6] = ["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store"];

#[test]
fn server_in_a_small_control_group_takes_a_smaller_cache_or_says_what_does_not_fit() {
    let group = match MemoryGroup::new(200 << 20) {
        Ok(group) => group,
        Err(why) => {
            return eprintln!("skipped: a control group of its own needs root and the controller: {why}");
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = film(dir.path(), "film.ts", 3);
    add(&source, &store);
    let args = [&SERVE[..], &[store.to_str().unwrap()]].concat();
    let mut server = Server::spawn(group.command(&args));
    assert!(!server.said("memory: limited to 200MiB").is_empty(), "{:?}", server.log);
    let out = dir.path().join("out");
    play(&[&server.title("film"), "-o", out.to_str().unwrap()]);
    assert_eq!(fs::read(out).unwrap(), fs::read(source).unwrap());
    assert!(server.interrupt(), "{:?}", server.log);
    drop(server);

    let doctor = group.command(&["doctor"]).output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("memory-limit") && said.contains("200MiB (control group: "), "{said}");

    let refused = group.command(&[&args[..], &["--cache", "256MiB"]].concat()).output().unwrap();
    assert_refused(&refused, "--cache: 256MiB of cache");
}

#[test]
fn server_with_few_addresses_says_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    add(&film(dir.path(), "film.ts", 1), &store);
    for kib in [200_000, 400_000, 1_048_576] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v \"$0\" && exec \"$@\""]).arg(kib.to_string());
        command.arg(millrace().get_program()).args(SERVE).arg(&store);
        let refused = command.output().unwrap();
        assert_refused(&refused, "(ulimit -v); raise the limit (ulimit -v unlimited;");
        assert!(!String::from_utf8_lossy(&refused.stderr).contains("MemoryMax"), "{refused:?}");
    }
    let listed = run(&["ls", "--store", store.to_str().unwrap()]);
    assert!(listed.status.success());
}

/// Asserts that the command exited with an error that names the limit.
fn assert_refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(why) && said.contains("choose a smaller"), "{said}");
}

/// Has a viewer begin to watch; returns its connection and the status of the answer to SETUP.
fn viewer(server: &Server) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.addr).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let (url, transport) = (server.title("film"), "RTP/AVP/TCP;unicast;interleaved=0-1");
    write!(stream, "SETUP {url}/track1 RTSP/1.0\r\nCSeq: 1\r\nTransport: {transport}\r\n\r\n").unwrap();
    let (head, _) = read_message(&mut stream);
    let session = header(&head, "Session").map(|session| session.split(';').next().unwrap().to_owned());
    let Some(session) = session else { return (stream, head.lines().next().unwrap().to_owned()) };
    write!(stream, "PLAY {url} RTSP/1.0\r\nCSeq: 2\r\nSession: {session}\r\n\r\n").unwrap();
    let (head, _) = read_message(&mut stream);
    (stream, head.lines().next().unwrap().to_owned())
}

#[test]
fn server_at_sighup_takes_over_limits_and_keeps_viewers() {
    let dir = tempfile::tempdir().unwrap();
    let (store, settings) = (dir.path().join("store"), dir.path().join("millrace.toml"));
    add(&film(dir.path(), "film.ts", 60), &store);
    fs::write(&settings, "max-streams = 2\n").unwrap();
    let mut command = millrace();
    serve(&mut command, &store);
    command.args(["--share-per-address", "100%", "--config"]).arg(&settings);
    let mut server = Server::spawn(command);
    let (mut first, status) = viewer(&server);
    assert_eq!(status, "RTSP/1.0 200 OK");
    // Fewer than before, and one that waits for a restart.
    fs::write(&settings, "max-streams = 1\ncache = \"64MiB\"\n").unwrap();
    signal(server.child.id(), "HUP");
    server.wait_for("reload: cache: 64MiB needs a restart; until then the default", LIMIT);
    server.wait_for("reload: max-streams: 1 from now on, before 2", LIMIT);
    let (_second, status) = viewer(&server);
    assert!(status.starts_with("RTSP/1.0 453 Not Enough Bandwidth: all 1 streams are in use"), "{status}");
    // A mistake changes nothing.
    fs::write(&settings, "max-streams = 2\nmax-rate = \"fast\"\n").unwrap();
    signal(server.child.id(), "HUP");
    let said = server.wait_for("reload: no setting was changed: ", LIMIT);
    assert!(said.contains("millrace.toml:2"), "{said}");
    let (_second, status) = viewer(&server);
    assert!(status.starts_with("RTSP/1.0 453 Not Enough Bandwidth: all 1 streams are in use"), "{status}");
    fs::write(&settings, "max-streams = 2\n").unwrap();
    signal(server.child.id(), "HUP");
    server.wait_for("reload: max-streams: 2 from now on, before 1", LIMIT);
    let (_second, status) = viewer(&server);
    assert_eq!(status, "RTSP/1.0 200 OK");
    // Media still comes to the first viewer: interleaved packets, each behind a dollar sign.
    let mut byte = [0];
    first.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"$");
    assert!(server.interrupt());
}
