//! Common parts of the tests with real programs: the library, running engines, and programs that
//! are terminated in any case.
#![allow(unreachable_pub)]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use millrace_core::random::SplitMix;
use millrace_lab::toe_host::{Lossy, ToeHost, wire};
use millrace_offload::toe::{Access, Engine, EngineSettings, PairSettings};
use rustix::process::{Pid, Signal};

/// Bytes of the large transfers: `MILLRACE_BYTES=1000000000` for a gigabyte.
pub fn bytes() -> usize {
    std::env::var("MILLRACE_BYTES").ok().and_then(|text| text.parse().ok()).unwrap_or(4_000_000)
}

/// No program here needs as long on any machine; one that hangs does.
fn time_limit() -> Duration {
    Duration::from_secs(120 + bytes() as u64 / 2_000_000)
}
/// Programs and workers at once: two servers with two workers each, those that a reload replaces, and some that are just ending.
pub const PAIRS: usize = 16;
/// Debian's user without rights, which is neither root's nor the engine's.
pub const OTHER_USER: u32 = 65_534;
/// Addresses of the two engines of [`two_engines`].
pub const FIRST: [u8; 4] = [10, 80, 0, 1];
pub const SECOND: [u8; 4] = [10, 80, 0, 2];

/// The library, which lies beside the test programs.
pub fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libmillrace_preload.so");
    assert!(path.exists(), "{}: build it with: cargo build -p millrace-preload", path.display());
    path
}

/// Returns whether these programs are installed; reports the missing ones.
pub fn have(programs: &[&str]) -> bool {
    let is_there = |program: &&&str| {
        let dirs = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&dirs).chain([PathBuf::from("/usr/sbin")]).any(|dir| dir.join(program).exists())
    };
    let missing: Vec<_> = programs.iter().filter(|program| !is_there(program)).collect();
    if !missing.is_empty() {
        eprintln!("skipped: {missing:?} not installed; scripts/deps.sh test");
    }
    missing.is_empty()
}

/// Returns whether a namespace and a TUN device can be created here; reports why not.
pub fn has_tun() -> bool {
    let root = std::fs::read_dir("/proc/1/fd").is_ok();
    let tun = Path::new("/dev/net/tun").exists();
    if !root || !tun {
        eprintln!("skipped: needs root ({root}) and /dev/net/tun ({tun})");
    }
    root && tun
}

fn for_programs(mut settings: EngineSettings) -> EngineSettings {
    (settings.pairs, settings.remote_pairs) = (0, PAIRS);
    settings.pair = PairSettings { sockets: 256, ..settings.pair };
    settings
}

/// Starts an engine opposite the kernel that loses `lost` packets per thousand; also returns the
/// path of its socket.
pub fn engine_and_kernel(dir: &Path, lost: u64) -> (ToeHost, PathBuf) {
    let path = dir.join("engine.sock");
    let mut toe = ToeHost::start_with_loss(&for_programs(ToeHost::settings()), lost).unwrap();
    // Workers that give up the rights of root get there too.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir, mode).unwrap();
    toe.serve_to(&path, Access { uids: vec![OTHER_USER], gids: Vec::new() }).unwrap();
    (toe, path)
}

/// Starts two engines on one wire that loses `lost` packets per thousand.
pub fn two_engines(dir: &Path, lost: u64) -> [(Engine, PathBuf); 2] {
    let [a, b] = wire().unwrap();
    let start = |address: [u8; 4], device, name| {
        let settings = for_programs(EngineSettings::new(&[(IpAddr::from(address), 24)]));
        let mut engine = Engine::start(&settings, device).unwrap();
        let path = dir.join(name);
        engine.serve(&path, Access::default()).unwrap();
        (engine, path)
    };
    let a = if lost > 0 { Box::new(Lossy::new(a, lost)) } else { a };
    [start(FIRST, a, "first.sock"), start(SECOND, b, "second.sock")]
}

/// A program with sockets of an engine.
pub fn preloaded(program: &str, engine: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).env("MILLRACE_ENGINE", engine).stdin(Stdio::null());
    command
}

/// A program that is ended when this goes, with all processes of its group.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // All may have ended by themselves.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self(command.process_group(0).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits for its end.
    pub fn end(&mut self, what: &str) -> ExitStatus {
        until(what, || self.has_ended())
    }
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> Output {
    let (out, err) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    command.stdout(out.reopen().unwrap()).stderr(err.reopen().unwrap());
    let status = Running::start(command).end(&format!("{command:?}"));
    let [stdout, stderr] = [out, err].map(|file| std::fs::read(file.path()).unwrap());
    Output { status, stdout, stderr }
}

/// Returns the output of a program, which must succeed.
pub fn output(command: &mut Command) -> String {
    let output = run(command);
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out
}

/// Waits until it is so.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(begun.elapsed() < time_limit(), "{what}: not within {:?}", time_limit());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A file of bytes that depend on the seed.
pub fn random_file(path: &Path, seed: u64, bytes: usize) {
    let mut random = SplitMix(seed);
    let mut file = BufWriter::new(File::create(path).unwrap());
    for _ in 0..bytes.div_ceil(8) {
        file.write_all(&random.next().to_ne_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// Whether two files are the same.
pub fn assert_same(one: &Path, other: &Path) {
    let (one_bytes, other_bytes) = (std::fs::read(one).unwrap(), std::fs::read(other).unwrap());
    assert_eq!(one_bytes.len(), other_bytes.len(), "{} and {}", one.display(), other.display());
    assert!(one_bytes == other_bytes, "{} and {} differ", one.display(), other.display());
}

/// An nginx that serves `dir`, in the foreground and without workers.
pub fn nginx(command: &mut Command, dir: &Path, address: &str) -> Running {
    nginx_with(command, dir, "master_process off;", address)
}

/// An nginx that serves `dir`, in the foreground, with more of its configuration.
pub fn nginx_with(command: &mut Command, dir: &Path, main: &str, listen: &str) -> Running {
    let config = dir.join("nginx.conf");
    let here = dir.display();
    let text = format!(
        "daemon off; {main} pid {here}/nginx.pid; error_log {here}/error.log info;
         events {{ worker_connections 200; use epoll; }}
         http {{
           access_log off; sendfile on; client_max_body_size 0; tcp_nopush on; keepalive_requests 10000000;
           client_body_temp_path {here}/t1; proxy_temp_path {here}/t2; fastcgi_temp_path {here}/t3;
           uwsgi_temp_path {here}/t4; scgi_temp_path {here}/t5;
           add_header X-Worker $pid;
           server {{ listen {listen}; root {here}; }}
         }}"
    );
    std::fs::write(&config, text).unwrap();
    Running::start(command.arg("-p").arg(dir).arg("-c").arg(&config).arg("-e").arg(dir.join("error.log")))
}
