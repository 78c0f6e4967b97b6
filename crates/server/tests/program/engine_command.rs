//! `millrace engine` and programs that use it, all as processes of their own: the engine's output
//! and status, its access control, and the remains after a program or the engine is killed. Needs
//! root and a TUN device.
//!
//! ```text
//!   program ── Unix socket ── engine 10.78.0.1 ── TUN ── 10.78.0.2 kernel (a network namespace)
//! ```

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{fails, millrace, signal};
use millrace_core::random::SplitMix;
use millrace_lab::netns::TwoHosts;
use millrace_offload::toe;
use serde_json::Value;

const ENGINE: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// An unused address.
const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 77);
const PORT: u16 = 8100;
/// For things that must happen on their own, on a machine that has other things to do.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Set for a host's process: the engine's socket.
const IS_HOST: &str = "MILLRACE_TEST_HOST";
/// User IDs without an account.
const ALLOWED: u32 = 54_201;
const OTHER: u32 = 54_202;

/// A host with a TUN device `toe0` that no process has open, and a world-readable directory.
struct Scene {
    hosts: TwoHosts,
    dir: tempfile::TempDir,
}

impl Scene {
    /// `None`, with the reason printed, where it cannot be.
    fn new() -> Option<Self> {
        let (root, tun) = (rustix::process::geteuid().is_root(), Path::new("/dev/net/tun").exists());
        if !root || !tun {
            eprintln!("skipped: needs root ({root}) and /dev/net/tun ({tun})");
            return None;
        }
        let (hosts, dir) = (TwoHosts::new(false).unwrap(), tempfile::tempdir().unwrap());
        for line in ["tuntap add dev toe0 mode tun", "addr add 10.78.0.2/24 dev toe0", "link set toe0 up"] {
            let args = ["-n", &hosts.server].into_iter().chain(line.split(' '));
            let output = Command::new("ip").args(args).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Some(Self { hosts, dir })
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("engine.sock")
    }

    /// The command of an engine.
    fn command(&self, interface: &str, args: &[&str]) -> Command {
        let mut command = self.hosts.on_server(Path::new(env!("CARGO_BIN_EXE_millrace")));
        command.args(["engine", "--interface", interface, "--address", "10.78.0.1/24", "--socket"]);
        command.arg(self.socket()).args(args).stdin(Stdio::null());
        command
    }

    fn engine(&self, args: &[&str]) -> EngineProcess {
        EngineProcess::start(self.command("toe0", args))
    }

    /// Returns the output of `millrace engine status`.
    fn status(&self) -> Value {
        let args = ["engine", "status", "--json", "--socket"];
        let output = millrace().args(args).arg(self.socket()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn status_text(&self) -> String {
        let output = millrace().args(["engine", "status", "--socket"]).arg(self.socket()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until the status is so.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(begun.elapsed() < TIMEOUT, "never: {what}: {status:#}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A listener of the kernel that the engine is opposite of.
    fn kernel_listener(&self) -> std::net::TcpListener {
        self.hosts.inside_server(|| std::net::TcpListener::bind((KERNEL, PORT)).unwrap()).unwrap()
    }

    /// Starts a host's process, which connects to the engine and then prints "ready".
    fn host(&self) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "engine_command::host_process", "--nocapture"]).env(IS_HOST, self.socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    }
}

/// Reads lines up to one that contains this.
fn until_said(lines: &mut std::io::Lines<BufReader<ChildStdout>>, text: &str) -> Vec<String> {
    let mut said = Vec::new();
    for line in lines.by_ref().map(Result::unwrap) {
        let is_it = line.contains(text);
        said.push(line);
        if is_it {
            return said;
        }
    }
    panic!("it has ended before it said {text:?}: {said:?}");
}

/// A running `millrace engine`; killed when dropped.
struct EngineProcess {
    child: Child,
    said: Vec<String>,
}

impl EngineProcess {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = until_said(&mut lines, "LD_PRELOAD=");
        Self { child, said }
    }

    /// The same, with its standard error kept.
    fn start_hearing(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = until_said(&mut lines, "LD_PRELOAD=");
        Self { child, said }
    }

    /// The first line on standard error of one that is heard.
    fn warned(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        line
    }

    /// Bytes of memory that it has taken.
    fn memory(&self) -> u64 {
        let pages = fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        pages.split_whitespace().nth(5).unwrap().parse::<u64>().unwrap() * 4096
    }

    fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ctrl-C; whether it ends well.
    fn interrupt(mut self) -> bool {
        signal(self.child.id(), "INT");
        self.child.wait().unwrap().success()
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(path: &Path) -> toe::Host {
    toe::connect(path).unwrap()
}

/// A host's process: it listens, has a connection that it writes to and one that it reads from, and goes on until it is killed.
#[test]
fn host_process() {
    let Some(socket) = std::env::var_os(IS_HOST) else { return };
    let host = toe::connect(socket).unwrap();
    let _listener = toe::TcpListener::bind(&host, SocketAddr::from((ENGINE, PORT))).unwrap();
    let streams = [(); 2].map(|()| toe::TcpStream::connect(&host, (KERNEL, PORT).into()).unwrap());
    println!("ready");
    let [mut reads, mut writes] = streams;
    reads.set_nonblocking(true).unwrap();
    loop {
        writes.write_all(&[7; 10_000]).unwrap();
        match reads.read(&mut [0; 8192]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => drop(read.unwrap()),
        }
    }
}

#[test]
fn engine_reports_address_and_status_and_exits_cleanly() {
    let Some(scene) = Scene::new() else { return };
    let listener = scene.kernel_listener();
    let engine = scene.engine(&["--pairs", "2", "--poll", "50us"]);
    let socket = scene.socket();
    assert_eq!(engine.said[0], "offload engine at toe0: 10.78.0.1/24");
    assert!(engine.said[2].contains(&format!("MILLRACE_ENGINE={} LD_PRELOAD=", socket.display())));
    let host = connect(&socket);
    let ours = toe::TcpListener::bind(&host, SocketAddr::from((ENGINE, PORT))).unwrap();
    let mut stream = toe::TcpStream::connect(&host, (KERNEL, PORT).into()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    stream.write_all(b"12345").unwrap();
    peer.read_exact(&mut [0; 5]).unwrap();
    // The received data is in a buffer of the host, which has not read it.
    peer.write_all(b"123").unwrap();
    let status =
        scene.until("the buffer is handed over", |status| status["connections"][1]["host_buffers"] == 1);
    let [listening, open] = [&status["connections"][0], &status["connections"][1]];
    assert_eq!((&listening["state"], &listening["backlog"]), (&"LISTEN".into(), &128.into()), "{status:#}");
    assert_eq!((&open["state"], &open["given_bytes"]), (&"ESTAB".into(), &5.into()), "{status:#}");
    assert_eq!(open["remote"], format!("{KERNEL}:{PORT}"), "{status:#}");
    assert_eq!(open["local"], stream.local_addr().unwrap().to_string(), "{status:#}");
    assert!(open["rtt_ns"].as_u64() > Some(0) && open["cwnd_bytes"].as_u64() > Some(1000), "{status:#}");
    let own = std::process::id();
    assert_eq!((&status["hosts"][0]["pid"], &status["hosts"][0]["pair"]), (&own.into(), &0.into()));
    assert_eq!((&status["offload_tcp"]["opened"], &status["offload_gate"]["hosts"]), (&1.into(), &1.into()));
    assert!(status["offload_ip"]["segments_in"].as_u64() > Some(0), "{status:#}");
    let text = scene.status_text();
    for part in [
        "1 of 2 hosts have a queue pair",
        "LISTEN",
        "ESTAB",
        "rtt:",
        "cwnd:",
        "retrans:0",
        &format!("pid {own}"),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    drop((ours, stream, host));
    assert!(engine.interrupt());
    assert!(!socket.exists(), "the socket goes with its engine");
    let error = fails(&["engine", "status", "--socket", socket.to_str().unwrap()]);
    assert!(error.contains("no offload engine listens at"), "{error}");
}

#[test]
fn engine_unable_to_start_reports_reason_and_exit_code() {
    let Some(scene) = Scene::new() else { return };
    let refusal = |command: &mut Command| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !said.contains("panicked"), "{output:?}");
        (output.status.code().unwrap(), said)
    };
    let at = |interface: &str, args: &[&str]| refusal(&mut scene.command(interface, args));
    for (interface, args, part) in [
        (
            "lo",
            &[][..],
            "lo is neither an Ethernet interface nor a TUN device: name another one with --interface; without an engine programs use the kernel's TCP",
        ),
        ("none0", &[], "none0: no such interface"),
        ("vs", &["--address", "10.77.0.1/24"], "10.77.0.1 is the kernel's address at vs"),
        ("toe0", &["--mtu", "9000"], "toe0 takes packets of up to 1500 bytes"),
        ("toe0", &["--cpu", "1000"], "core 1000"),
        ("toe0", &["--capture", "/none/of/these"], "/none/of/these"),
    ] {
        let (code, said) = at(interface, args);
        assert!(code == 1 && said.contains(part), "{interface} {args:?}: {code} {said}");
    }
    for (args, part) in [
        (["--gateway", "10.99.0.1"], "--gateway: 10.99.0.1 is not another host on a subnet of --address"),
        (["--address", "10.78.0.1/16"], "--address: 10.78.0.1 is named twice"),
        (["--address", "10.78.0.1"], "10.0.0.5/24"),
        (["--pairs", "65"], "1 to 64"),
    ] {
        let (code, said) = at("toe0", &args);
        assert!(code == 2 && said.contains(part), "{args:?}: {code} {said}");
    }
    // Root without its rights.
    let mut command = scene.hosts.on_server(Path::new("setpriv"));
    command.args(["--bounding-set=-all", env!("CARGO_BIN_EXE_millrace"), "engine", "--interface", "vs"]);
    let (code, said) = refusal(command.args(["--address", "10.77.0.100/24", "--socket"]).arg(scene.socket()));
    let parts = ["the offload engine cannot be started", "ot permitted", "programs use the kernel's TCP"];
    assert!(code == 1 && parts.iter().all(|part| said.contains(part)), "{code} {said}");
    assert!(!scene.socket().exists());
}

#[test]
fn engine_refuses_socket_in_use_and_reuses_stale_socket() {
    let Some(scene) = Scene::new() else { return };
    let mut engine = scene.engine(&[]);
    let output = scene.command("vs", &[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("another engine listens there"), "{output:?}");
    let output = scene.command("toe0", &[]).output().unwrap();
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("toe0"),
        "{output:?}"
    );
    assert_eq!(scene.status()["hosts"], Value::Array(Vec::new()), "the first one does not mind");
    engine.kill();
    assert!(scene.socket().exists());
    let engine = scene.engine(&[]);
    assert_eq!(scene.status()["pairs"], 8);
    assert!(engine.interrupt());
}

/// A file already at the socket's path stays there, unless it is the socket of an engine that is
/// gone.
#[test]
fn engine_refuses_foreign_file_at_socket_path_and_keeps_it() {
    let Some(scene) = Scene::new() else { return };
    let path = scene.socket();
    let refusal = || {
        let output = scene.command("toe0", &[]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
        assert!(said.contains(&path.display().to_string()) && !said.contains("panicked"), "{said}");
        said
    };
    fs::write(&path, b"notes").unwrap();
    let said = refusal();
    assert!(said.contains("which is no socket; choose another one"), "{said}");
    assert_eq!(fs::read(&path).unwrap(), b"notes");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(refusal().contains("which is no socket"));
    fs::remove_dir(&path).unwrap();
    // A program of another kind that listens there.
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let said = refusal();
    assert!(said.contains("stop it, or choose another one"), "{said}");
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    drop((other, fs::remove_file(&path)));
    // Neither device nor socket is held by one that did not start.
    let engine = scene.engine(&[]);
    assert!(engine.interrupt() && !path.exists());
}

#[test]
fn engine_after_device_removal_exits_with_error_and_no_socket() {
    let Some(scene) = Scene::new() else { return };
    let (stats, capture) = (scene.dir.path().join("stats.json"), scene.dir.path().join("packets.pcapng"));
    let listener = scene.kernel_listener();
    let options = ["--stats", stats.to_str().unwrap(), "--capture", capture.to_str().unwrap()];
    let mut engine = EngineProcess::start_hearing(scene.command("toe0", &options));
    let host = connect(&scene.socket());
    let mut stream = stream(&host);
    let _peer = listener.accept().unwrap();
    let begun = Instant::now();
    let counters = || -> Option<Value> { serde_json::from_slice(&fs::read(&stats).ok()?).ok() };
    let has_both = |all: &Value| all["offload_gate"]["hosts"] == 1 && all["offload_tcp"]["opened"] == 1;
    while !counters().as_ref().is_some_and(has_both) {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", counters());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(counters().is_some_and(|all| all["offload_ip"]["segments_in"].as_u64() > Some(0)));
    let args = ["-n", &scene.hosts.server, "link", "del", "toe0"];
    assert!(Command::new("ip").args(args).status().unwrap().success());
    let error = stream.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    let ended = engine.child.wait().unwrap();
    let mut said = String::new();
    engine.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(said.contains("the offload engine at toe0 has ended: ") && !said.contains("panicked"), "{said}");
    assert!(!scene.socket().exists());
    // A section header of pcapng, and the packets of the handshake.
    let packets = fs::read(&capture).unwrap();
    assert!(packets.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && packets.len() > 300, "{} bytes", packets.len());
}

/// A host that is stopped reads no events, takes no bytes and returns nothing. It delays no other
/// host, goes on when it is resumed, and is cleaned up when it is killed while stopped.
#[test]
fn host_stopped_by_signal_delays_no_other_host() {
    const BYTES: usize = 1_000_000;
    let Some(scene) = Scene::new() else { return };
    let listener = scene.kernel_listener();
    let engine = scene.engine(&["--pairs", "2"]);
    let mut stopped = scene.host();
    let [mut writes, mut reads] = [(); 2].map(|()| listener.accept().unwrap().0);
    until_said(&mut BufReader::new(stopped.stdout.take().unwrap()).lines(), "ready");
    signal(stopped.id(), "STOP");
    writes.set_nonblocking(true).unwrap();
    let mut taken = 0;
    let begun = Instant::now();
    // Until neither its buffers nor the engine take any more.
    while begun.elapsed() < TIMEOUT {
        match writes.write(&[7; 65_536]) {
            Ok(count) => taken += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let status = scene.status();
                let lines = status["connections"].as_array().unwrap();
                if taken > 65_536 && lines.iter().any(|line| line["receive_window_bytes"] == 0) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(begun.elapsed() < TIMEOUT, "{taken} bytes, and there is still room: {:#}", scene.status());
    std::thread::scope(|scope| {
        let host = connect(&scene.socket());
        let mut ours = stream(&host);
        ours.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        scope.spawn(move || std::io::copy(&mut peer.try_clone().unwrap(), &mut peer).unwrap());
        for _ in 0..BYTES / 10_000 {
            ours.write_all(&[9; 10_000]).unwrap();
            ours.read_exact(&mut [0; 10_000]).unwrap();
        }
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(ours.read(&mut [0; 10]).unwrap(), 0);
    });
    // It writes too, so its data must be read.
    let drain = std::thread::spawn(move || std::io::copy(&mut reads, &mut std::io::sink()));
    signal(stopped.id(), "CONT");
    writes.set_nonblocking(false).unwrap();
    writes.set_write_timeout(Some(TIMEOUT)).unwrap();
    writes.write_all(&vec![7; BYTES]).unwrap();
    signal(stopped.id(), "STOP");
    stopped.kill().unwrap();
    stopped.wait().unwrap();
    let reset = drain.join().unwrap().unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset, "{reset}");
    let status = scene.until("both are cleared", |status| status["offload"]["pairs_cleared"] == 2);
    for counter in ["connections", "descriptors", "host_pages", "receive_pages", "rejected", "events_lost"] {
        assert_eq!(status["offload"][counter], 0, "{counter}: {status:#}");
    }
    assert!(engine.interrupt());
}

/// The address of the kernel at the interface `vs`, and the other end of its cable.
const SHARED: &str = "10.77.0.1";
const SHARED_PORT: u16 = 8200;

#[test]
fn ports_of_the_kernels_address_are_steered_to_the_engine_until_it_is_killed() {
    let Some(scene) = Scene::new() else { return };
    // An XDP program gets packets without computed checksums.
    let output = Command::new("ip")
        .args([
            "netns",
            "exec",
            &scene.hosts.client,
            "ethtool",
            "-K",
            "vc",
            "tx",
            "off",
            "tso",
            "off",
            "gso",
            "off",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let command = |address: &str, args: &[&str]| {
        let mut command = scene.hosts.on_server(Path::new(env!("CARGO_BIN_EXE_millrace")));
        command.args(["engine", "--interface", "vs", "--address", address, "--socket"]).arg(scene.socket());
        command.args(args);
        command
    };
    let refusal = |mut command: Command| {
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (command, code, part) in [
        (scene.command("toe0", &["--ports", "8200"]), 1, "toe0 is a TUN device"),
        (
            command("10.77.0.9/24", &["--ports", "8200"]),
            1,
            "addresses that the kernel has there, which are 10.77.0.1",
        ),
        (
            command("10.77.0.1/24", &["--ports", "8200", "--gateway", "10.77.0.2"]),
            2,
            "--gateway: has no effect with --ports",
        ),
        (command("10.77.0.1/24", &["--ports", "1-2000"]), 2, "--ports: got 2000 ports, at most 1024"),
        (command("10.77.0.1/24", &["--ports", "8200-"]), 2, "8080,5540-5560"),
        (command("10.77.0.1/24", &[]), 1, "the engine have TCP ports of it only, with --ports"),
    ] {
        let (is, said) = refusal(command);
        assert!(is == code && said.contains(part), "{part}: {is} {said}");
    }
    let taken =
        scene.hosts.inside_server(|| std::net::TcpListener::bind((SHARED, SHARED_PORT)).unwrap()).unwrap();
    let (code, said) = refusal(command("10.77.0.1/24", &["--ports", "8200"]));
    assert!(code == 1 && said.contains("10.77.0.1:8200") && said.contains("ss -tanp"), "{code} {said}");
    drop(taken);
    // One of the ports is the kernel's to give to its own connections.
    let mut engine = EngineProcess::start_hearing(command("10.77.0.1/24", &["--ports", "8200,40000"]));
    let warned = engine.warned();
    assert!(warned.contains("net.ipv4.ip_local_reserved_ports=40000"), "{warned}");
    assert_eq!(engine.said[0], "offload engine at vs: TCP ports 8200,40000 of 10.77.0.1/24");
    assert_eq!(scene.status()["ports"], "8200,40000");
    assert!(
        scene.status_text().contains(": TCP ports 8200,40000 of 10.77.0.1/24, up "),
        "{}",
        scene.status_text()
    );
    let host = connect(&scene.socket());
    assert_eq!(host.ports().map(ToString::to_string), Some("8200,40000".to_owned()));
    let listener = toe::TcpListener::bind(&host, format!("{SHARED}:{SHARED_PORT}").parse().unwrap()).unwrap();
    let call = || std::net::TcpStream::connect((SHARED, SHARED_PORT)).unwrap();
    let mut peer = scene.hosts.on_client(call).unwrap();
    peer.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"12345").unwrap();
    peer.read_exact(&mut [0; 5]).unwrap();
    engine.kill();
    // Whose program, sockets and ports have gone with it, at the latest a moment later: the kernel knows of no connection, and has the port.
    let begun = Instant::now();
    let error = loop {
        let failed = peer.write_all(b"67890").err();
        peer.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let error = failed.or_else(|| peer.read(&mut [0; 5]).err()).expect("there is nobody who answers");
        if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
            break error;
        }
        assert!(begun.elapsed() < TIMEOUT, "no reset comes");
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    let listen = || std::net::TcpListener::bind((SHARED, SHARED_PORT));
    let listener = loop {
        match scene.hosts.inside_server(listen).unwrap() {
            Ok(listener) => break listener,
            Err(error) => assert!(begun.elapsed() < TIMEOUT, "{error}"),
        }
    };
    let mut peer = scene.hosts.on_client(call).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.write_all(b"kernel").unwrap();
    let mut said = [0; 6];
    peer.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"kernel");
}

/// Serves one file to each client.
fn serve_http(listener: &std::net::TcpListener, body: &[u8], times: usize) {
    for _ in 0..times {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())
            .unwrap();
        stream.write_all(body).unwrap();
    }
}

#[test]
fn curl_of_a_user_who_is_allowed_downloads_by_the_engine_and_others_are_refused() {
    let Some(scene) = Scene::new() else { return };
    let beside = std::env::current_exe().unwrap().with_file_name("libmillrace_preload.so");
    let library = scene.dir.path().join("preload.so");
    fs::copy(&beside, &library).unwrap_or_else(|error| panic!("{}: {error}", beside.display()));
    fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).unwrap();
    let listener = scene.kernel_listener();
    let mut random = SplitMix(3);
    let body: Vec<u8> = (0..2_000_000).map(|_| random.next() as u8).collect();
    let engine = scene.engine(&["--allow-uid", &ALLOWED.to_string(), "--allow-gid", "54203"]);
    // On a host that has no way there of its own.
    let curl = |uid: u32, gid: u32| {
        let fetch = || {
            let mut curl = Command::new("curl");
            curl.uid(uid).gid(gid).env("LD_PRELOAD", &library).env("MILLRACE_ENGINE", scene.socket());
            curl.args(["-sS", "--fail", &format!("http://{KERNEL}:{PORT}/")])
                .current_dir("/")
                .output()
                .unwrap()
        };
        scene.hosts.on_client(fetch).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| serve_http(&listener, &body, 2));
        for (uid, gid) in [(ALLOWED, OTHER), (OTHER, 54_203)] {
            let output = curl(uid, gid);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout == body, "{} bytes", output.stdout.len());
        }
    });
    let output = curl(OTHER, OTHER);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(said.contains(&format!("user {OTHER} may not use this engine")), "{said}");
    let status = scene.until("both have gone", |status| status["offload"]["pairs_cleared"] == 2);
    assert_eq!(
        (&status["offload_gate"]["not_allowed"], &status["offload_tcp"]["opened"]),
        (&1.into(), &2.into())
    );
    assert!(engine.interrupt());
}

/// Hosts that are killed, one after the other on the only pair: their peers see resets, and the engine has everything back.
#[test]
fn hosts_are_killed_two_hundred_times() {
    const TIMES: u64 = 200;
    let Some(scene) = Scene::new() else { return };
    let listener = scene.kernel_listener();
    let engine = scene.engine(&["--pairs", "1"]);
    let (files, mut before, mut random) = (engine.files(), 0, SplitMix(TIMES));
    for time in 0..TIMES {
        let mut host = scene.host();
        let peers = [(); 2].map(|()| listener.accept().unwrap().0);
        until_said(&mut BufReader::new(host.stdout.take().unwrap()).lines(), "ready");
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        host.kill().unwrap();
        host.wait().unwrap();
        for mut peer in peers {
            peer.set_read_timeout(Some(TIMEOUT)).unwrap();
            let error = std::io::copy(&mut peer, &mut std::io::sink()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "time {time}: {error}");
        }
        if time == TIMES / 4 {
            before = engine.memory();
        }
    }
    let status = scene.until("the last one is cleared", |status| status["offload"]["pairs_cleared"] == TIMES);
    let offload = &status["offload"];
    for counter in ["connections", "descriptors", "host_pages", "receive_pages", "rejected", "events_lost"] {
        assert_eq!(offload[counter], 0, "{counter}: {status:#}");
    }
    // Two connections and a listener each.
    assert_eq!(offload["left_open"], 3 * TIMES, "{status:#}");
    assert_eq!(status["connections"], Value::Array(Vec::new()));
    let after = engine.memory();
    assert!(after <= before + (4 << 20), "memory grows: {before} bytes, then {after}");
    // The engine closes the connection of the status query when it notices that the client is gone.
    let end = Instant::now() + TIMEOUT;
    while engine.files() != files {
        assert!(Instant::now() < end, "files of the engine: {} where {files} were", engine.files());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(engine.interrupt());
}

/// A call that a host may be in when its engine is killed; the call runs the other argument when it
/// is about to wait.
type Call = fn(&toe::Host, &dyn Fn()) -> std::io::Error;

const CALLS: [Call; 5] = [reads, writes, accepts, connects, polls];

fn stream(host: &toe::Host) -> toe::TcpStream {
    toe::TcpStream::connect(host, (KERNEL, PORT).into()).unwrap()
}

fn reads(host: &toe::Host, ready: &dyn Fn()) -> std::io::Error {
    let mut stream = stream(host);
    ready();
    stream.read(&mut [0; 10]).unwrap_err()
}

fn writes(host: &toe::Host, ready: &dyn Fn()) -> std::io::Error {
    let mut stream = stream(host);
    ready();
    loop {
        if let Err(error) = stream.write_all(&[7; 10_000]) {
            return error;
        }
    }
}

fn accepts(host: &toe::Host, ready: &dyn Fn()) -> std::io::Error {
    let listener = toe::TcpListener::bind(host, SocketAddr::from((ENGINE, PORT))).unwrap();
    ready();
    listener.accept().err().unwrap()
}

fn connects(host: &toe::Host, ready: &dyn Fn()) -> std::io::Error {
    ready();
    toe::TcpStream::connect(host, (NOBODY, PORT).into()).err().unwrap()
}

fn polls(host: &toe::Host, ready: &dyn Fn()) -> std::io::Error {
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;
    let mut stream = stream(host);
    stream.set_nonblocking(true).unwrap();
    ready();
    loop {
        match stream.read(&mut [0; 10]).unwrap_err() {
            error if error.kind() != ErrorKind::WouldBlock => return error,
            _ if host.arm() => {}
            _ => {
                let fd = host.readiness();
                poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], None).unwrap();
            }
        }
    }
}

/// An engine that is killed while its hosts read, write, accept, connect and poll: each call fails, none hangs, and another engine takes its place.
#[test]
fn engine_killed_hundred_times_aborts_pending_calls_of_hosts() {
    const TIMES: u64 = 100;
    let Some(scene) = Scene::new() else { return };
    let (listener, mut random) = (scene.kernel_listener(), SplitMix(TIMES));
    let files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = 0;
    for time in 0..TIMES {
        let mut engine = scene.engine(&[]);
        let (socket, ready) = (scene.socket(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let calls = CALLS.map(|call| {
                let (socket, ready) = (&socket, &ready);
                scope.spawn(move || {
                    call(&connect(socket), &|| {
                        ready.fetch_add(1, Ordering::SeqCst);
                    })
                })
            });
            // Of those that read, write and poll.
            let _peers = [(); 3].map(|()| listener.accept().unwrap());
            let begun = Instant::now();
            while ready.load(Ordering::SeqCst) < CALLS.len() {
                assert!(begun.elapsed() < TIMEOUT, "time {time}: a host does not come so far");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(random.below(5000)));
            engine.kill();
            let killed = Instant::now();
            for (index, call) in calls.into_iter().enumerate() {
                let error = call.join().unwrap();
                assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "time {time}, call {index}: {error}");
            }
            assert!(killed.elapsed() < TIMEOUT, "time {time}: {:?}", killed.elapsed());
        });
        if time == 0 {
            before = files();
        }
    }
    // Other tests of this process have some too.
    assert!(files() < before + TIMES as usize, "files of the hosts: {before}, then {}", files());
}
