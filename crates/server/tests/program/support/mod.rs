//! Shared parts of the end-to-end tests: films, a running server, a clock with a limit.
#![allow(unreachable_pub)]

pub mod certificate;
pub mod http;
pub mod offload;
pub mod real_disks;
pub mod two_hosts;
pub mod viewers;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The program under test.
pub fn millrace() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.env_remove("MILLRACE_STORE").env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Copies the program into a directory. By `install`, because a file that this process has open for writing cannot be run
/// (ETXTBSY), and a child that another test has just forked holds it open until its `exec`.
pub fn copy_program(dir: &Path) -> PathBuf {
    let program = dir.join("millrace");
    let mut install = Command::new("install");
    let done = install.arg("--mode=755").args([millrace().get_program(), program.as_os_str()]).status();
    assert!(done.expect("install can be started").success());
    program
}

/// What ffprobe sees behind a URL by UDP: the kinds of streams.
pub fn ffprobe_kinds(url: &str) -> String {
    let mut probe = Command::new("ffprobe");
    probe.args([
        "-v",
        "error",
        "-rtsp_transport",
        "udp",
        "-show_entries",
        "stream=codec_type",
        "-of",
        "csv",
        url,
    ]);
    let done = probe.output().expect("ffprobe can be started");
    // Shown if the test fails.
    eprint!("{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Runs the program to its end.
pub fn run(args: &[&str]) -> Output {
    millrace().args(args).output().expect("millrace can be started")
}

/// Runs the program, expects success, returns standard output.
pub fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "millrace {args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// Runs the program, expects failure, returns standard error.
pub fn fails(args: &[&str]) -> String {
    let output = run(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "millrace {args:?} should fail: {output:?}");
    assert!(!error.contains("panicked"), "{error}");
    error
}

/// A constant-rate film in `dir`.
pub fn film(dir: &Path, name: &str, secs: u64) -> PathBuf {
    let path = dir.join(name);
    millrace_lab::media::make_cbr_ts(&path, secs, 2_000).expect("ffmpeg makes a film");
    path
}

/// Makes a volume of these directories that tolerates the loss of `parity` of them.
pub fn volume(members: &[PathBuf], parity: usize) {
    let parity = parity.to_string();
    let mut args = vec!["volume", "create", "--parity", &parity];
    args.extend(members.iter().map(|member| member.to_str().unwrap()));
    ok(&args);
}

/// Adds a film to a store under the name of its file, even if it is a copy of another film.
pub fn add(source: &Path, store: &Path) {
    let name = source.file_stem().unwrap().to_str().unwrap();
    let (source, store) = (source.to_str().unwrap(), store.to_str().unwrap());
    ok(&["add", "--quiet", "--name", name, source, "--store", store]);
}

/// A running `millrace serve`; killed when dropped.
pub struct Server {
    /// The process.
    pub child: Child,
    /// `rtsp://127.0.0.1:port/`
    pub url: String,
    /// Its address.
    pub addr: std::net::SocketAddr,
    lines: mpsc::Receiver<String>,
    /// Its output up to now.
    pub log: Vec<String>,
}

impl Server {
    /// Where it has printed that its page is.
    pub fn page(&self) -> std::net::SocketAddr {
        let line =
            self.log.iter().find_map(|line| line.strip_prefix("page http://")).expect("the page is printed");
        line.trim_end_matches('/').parse().expect("an address")
    }

    /// Starts it on a free port and waits until it is ready.
    pub fn start(store: &Path, args: &[&str]) -> Self {
        let mut command = millrace();
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--cache", "32MiB", "--store"])
            .arg(store)
            .args(args);
        Self::spawn(command)
    }

    /// Starts `command` and waits for its ready line.
    pub fn spawn(mut command: Command) -> Self {
        // Tests wait for lines about single viewers, and the rate limit omits some of these lines.
        if !command.get_envs().any(|(name, _)| name == "MILLRACE_LOG") {
            command.env("MILLRACE_LOG", "info,millrace_server::control::log=debug");
        }
        // The capacity of a debug build on a busy machine is not the subject of most tests.
        if !command.get_envs().any(|(name, _)| name == "MILLRACE_ADMISSION") {
            command.env("MILLRACE_ADMISSION", "off");
        }
        // Whatever is right with two engines is right with one; a test about one engine sets the
        // number.
        if !command.get_envs().any(|(name, _)| name == "MILLRACE_ENGINES") {
            command.env("MILLRACE_ENGINES", "2");
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("millrace can be started");
        let (sender, lines) = mpsc::channel();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        for pipe in [Box::new(out) as Box<dyn Read + Send>, Box::new(err)] {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let mut server =
            Self { child, url: String::new(), addr: "127.0.0.1:0".parse().unwrap(), lines, log: vec![] };
        let ready = server.wait_for("ready rtsp://", Duration::from_secs(60));
        server.url = ready[ready.find("rtsp://").unwrap()..].trim().to_owned();
        server.addr = server.url["rtsp://".len()..]
            .trim_end_matches('/')
            .replace("localhost", "127.0.0.1")
            .parse()
            .expect("an address");
        server
    }

    /// The first line from now on that contains `text`.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> String {
        let end = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.log.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(error) => {
                    panic!("no \"{text}\" from the server ({error}); it said:\n{}", self.log.join("\n"))
                }
            }
        }
    }

    /// The first line since the start that contains `text`.
    pub fn find(&mut self, text: &str, limit: Duration) -> String {
        match self.said(text).into_iter().next() {
            Some(line) => line,
            None => self.wait_for(text, limit),
        }
    }

    /// Returns all lines up to now that contain `text`.
    pub fn said(&mut self, text: &str) -> Vec<String> {
        self.log.extend(self.lines.try_iter());
        self.log.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// URL of a title.
    pub fn title(&self, name: &str) -> String {
        format!("{}{name}", self.url)
    }

    /// Ends it as Ctrl-C does; returns whether it sent BYE with exit code 0.
    pub fn interrupt(&mut self) -> bool {
        signal(self.child.id(), "INT");
        self.ends()
    }

    /// Waits until it ends, after it was ordered to; returns whether with exit code 0.
    pub fn ends(&mut self) -> bool {
        // A disk with many writers may take its time with the data flushed at the end.
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().expect("the server is our child") {
                return status.success();
            }
            if Instant::now() >= end {
                self.log.extend(self.lines.try_iter());
                panic!("the server does not end; it said:\n{}", self.log.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to one process that a test has started.
pub fn signal(pid: u32, name: &str) {
    let status =
        Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().expect("kill runs");
    assert!(status.success());
}

/// Runs `millrace play` and returns its report.
pub fn play(args: &[&str]) -> serde_json::Value {
    let mut all = vec!["play", "--stats", "json"];
    all.extend(args);
    let text = ok(&all);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Reads the head of a message, up to its empty line and not a byte further: what follows may be anything.
pub fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a whole head");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("a head is text")
}

/// Reads a message: its head, and as many body bytes as the head announces.
pub fn read_message(stream: &mut impl Read) -> (String, String) {
    let head = read_head(stream);
    let bytes = header(&head, "Content-Length").map_or(0, |bytes| bytes.parse().expect("a number"));
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).expect("a whole body");
    (head, String::from_utf8(body).expect("a body is text"))
}

/// A header's value.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}
