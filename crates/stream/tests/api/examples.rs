//! The examples with real players: curl, ffmpeg, VLC. Each server is a process of its own: this
//! program again, with its role set by its environment.

#[path = "../../examples/radio.rs"]
#[allow(dead_code, unreachable_pub)] // its `main` is not used
mod radio;
#[path = "../../examples/ts_control.rs"]
#[allow(dead_code, unreachable_pub)] // its `main` is not used
mod ts_control;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{film, has, noise, sound};

const WHICH: &str = "MILLRACE_EXAMPLE";
const ARGUMENTS: &str = "MILLRACE_EXAMPLE_ARGUMENTS";

/// Nothing, unless this process was started by [`Server::start`].
#[test]
fn be_the_server() {
    let arguments = std::env::var(ARGUMENTS).unwrap_or_default().lines().map(str::to_owned).collect();
    match std::env::var(WHICH).as_deref() {
        Ok("radio") => radio::run(arguments).unwrap(),
        Ok("ts_control") => ts_control::run(arguments).unwrap(),
        _ => {}
    }
}

struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(which: &str, arguments: &[&str]) -> Self {
        let arguments = [&["--listen", "127.0.0.1:0"][..], arguments].concat().join("\n");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "examples::be_the_server", "--nocapture"])
            .envs([(WHICH, which), (ARGUMENTS, &arguments)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready =
            lines.find_map(|line| Some(line.unwrap().split_once("ready ")?.1.to_owned())).expect("it starts");
        let address = ready.split_once("://").unwrap().1.trim_end_matches('/').parse().unwrap();
        // The rest of its output is read, so that it need not wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    /// As Ctrl-C does.
    fn interrupt(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let gives_up = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < gives_up, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let peer = TcpStream::connect(address).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    peer
}

/// Records with VLC as an unprivileged user: VLC does not run as root.
fn vlc(url: &str, seconds: u32) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let file = folder.path().join("recorded.ts");
    let status = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--",
            "cvlc",
            "-q",
            "--no-video-title-show",
        ])
        .args(["--play-and-exit", "--run-time", &seconds.to_string(), "--sout"])
        .arg(format!("#std{{access=file,mux=ts,dst={}}}", file.display()))
        .args([url, "vlc://quit"])
        .env("HOME", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::read(file).unwrap_or_default()
}

/// Milliseconds of media that ffmpeg decodes.
fn decoded_ms(input: &str, limit: &[&str]) -> u64 {
    let ffmpeg = Command::new("ffmpeg")
        .args(["-v", "error", "-i", input])
        .args(limit)
        .args(["-progress", "pipe:1", "-f", "null", "-"])
        .output()
        .unwrap();
    assert!(ffmpeg.status.success(), "{}", String::from_utf8_lossy(&ffmpeg.stderr));
    let said = String::from_utf8(ffmpeg.stdout).unwrap();
    let last = said.lines().filter_map(|line| line.strip_prefix("out_time_us=")).next_back();
    last.and_then(|us| us.trim().parse::<u64>().ok()).unwrap_or(0) / 1000
}

fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn radio_loops_file_bytes_endlessly_to_curl() {
    let bytes = noise(120_000);
    let file = file_of(&bytes);
    let mount = format!("noise={}", file.path().display());
    let server = Server::start("radio", &["--rate", "800kb/s", &mount]);
    let url = format!("http://{}", server.address);
    if has("curl") {
        let got = tempfile::NamedTempFile::new().unwrap();
        let curl = |path: &str, seconds: &str| {
            let status = Command::new("curl")
                .args(["-s", "--max-time", seconds, "-o"])
                .arg(got.path())
                .arg(path)
                .status();
            (status.unwrap().code(), std::fs::read(got.path()).unwrap())
        };
        let (code, played) = curl(&format!("{url}/noise"), "3");
        assert_eq!(code, Some(28), "it goes on as long as it is listened to");
        let begin = bytes.windows(64).position(|part| part == &played[..64]).expect("a place of the file");
        assert!(begin.is_multiple_of(1000) && played.len() > 240_000, "{begin}, {}", played.len());
        assert!(played.iter().eq(bytes.iter().cycle().skip(begin).take(played.len())));
        assert_eq!(curl(&url, "5"), (Some(0), b"/noise\n".to_vec()));
        assert_eq!(curl(&format!("{url}/other"), "5").1, b"/noise\n");
    }
    server.interrupt();
}

#[test]
fn radio_sends_icy_titles_on_request() {
    let bytes = noise(90_000);
    let file = file_of(&bytes);
    let mount = format!("noise={}", file.path().display());
    let server = Server::start("radio", &["--rate", "64kb/s", &mount]);
    let mut peer = connect(server.address);
    peer.write_all(b"GET /noise HTTP/1.1\r\nHost: x\r\nIcy-MetaData: 1\r\n\r\n").unwrap();
    let (mut peer, mut head) = (BufReader::new(peer), String::new());
    while !head.ends_with("\r\n\r\n") {
        peer.read_line(&mut head).unwrap();
    }
    assert!(head.contains("icy-metaint: 64000\r\n") && head.contains("icy-br: 64\r\n"), "{head}");
    let mut played = vec![0; 64_000];
    peer.read_exact(&mut played).unwrap();
    let mut length = [0];
    peer.read_exact(&mut length).unwrap();
    let mut title = vec![0; usize::from(length[0]) * 16];
    peer.read_exact(&mut title).unwrap();
    assert!(title.starts_with(b"StreamTitle='noise';\0"), "{title:?}");
    let mut more = vec![0; 2000];
    peer.read_exact(&mut more).unwrap();
    played.extend_from_slice(&more);
    let begin = bytes.windows(64).position(|part| part == &played[..64]).expect("a place of the file");
    assert!(played.iter().eq(bytes.iter().cycle().skip(begin).take(played.len())));
}

#[test]
fn ffmpeg_and_vlc_play_the_radio() {
    let (tone, picture) = (sound(20), film(20));
    let mounts = [("tone", &tone), ("picture.ts", &picture)]
        .map(|(name, file)| format!("{name}={}", file.path().display()));
    let server = Server::start("radio", &["--rate", "128kb/s", &mounts[0], &mounts[1]]);
    let url = |name: &str| format!("http://{}/{name}", server.address);
    for name in ["tone", "picture.ts"] {
        let ms = decoded_ms(&url(name), &["-t", "3"]);
        assert!(ms > 2500, "{name}: {ms} ms");
    }
    if has("cvlc") && has("setpriv") {
        let recorded = vlc(&url("picture.ts"), 4);
        assert!(recorded.len() > 100_000, "{} bytes", recorded.len());
        let file = file_of(&recorded);
        let ms = decoded_ms(file.path().to_str().unwrap(), &[]);
        assert!(ms > 1000, "{ms} ms");
    }
}

#[test]
fn lines_of_text_steer_a_film_in_the_same_connection() {
    let picture = film(6);
    let bytes = std::fs::read(picture.path()).unwrap();
    let server = Server::start("ts_control", &[&format!("high={}", picture.path().display())]);
    let url = format!("tcp://{}", server.address);
    // No answers are sent: it plays to its end.
    let mut peer = connect(server.address);
    peer.write_all(b"faster\nfaster\n").unwrap();
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert!(got == bytes);
    let ms = decoded_ms(&url, &[]);
    assert!(ms > 5000, "{ms} ms");
    if has("cvlc") && has("setpriv") {
        assert!(vlc(&url, 12).len() > 100_000);
    }
    if has("curl") {
        // curl sends a line to a gopher server, and takes the data received as it is.
        let url = format!("gopher://{}/0seek%204", server.address);
        let got = Command::new("curl").args(["-s", "--max-time", "30", &url]).output().unwrap();
        assert!(got.status.success(), "{got:?}");
        let got = got.stdout;
        // The part from the beginning is the data sent before the line was read.
        let same = got.iter().zip(&bytes).take_while(|(a, b)| a == b).count();
        let (rest, cut) = (&got[same / 1316 * 1316..], same / 1316 * 1316);
        assert!(bytes.ends_with(rest) && rest.len() < bytes.len() - cut, "{same} of {} bytes", got.len());
    }
    server.interrupt();
}

#[test]
fn lines_of_text_are_answered_while_the_film_goes_elsewhere() {
    let (high, low) = (film(5), film(4));
    let arguments =
        [("high", &high), ("low", &low)].map(|(name, file)| format!("{name}={}", file.path().display()));
    let server = Server::start("ts_control", &[&arguments[0], &arguments[1]]);
    let peer = connect(server.address);
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut lines = BufReader::new(peer.try_clone().unwrap());
    let say = |words: &str| (&peer).write_all(format!("{words}\n").as_bytes()).unwrap();
    say("pause");
    say(&format!("to {}", elsewhere.local_addr().unwrap().port()));
    let mut media = elsewhere.accept().unwrap().0;
    media.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The media played on this connection comes before the first answer.
    let mut begun = Vec::new();
    while !begun.ends_with(b"ok to ") {
        lines.read_until(b' ', &mut begun).unwrap();
    }
    let mut answer = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    assert_eq!(answer(), elsewhere.local_addr().unwrap().port().to_string());
    for (words, wanted) in [
        ("quality none", "no: there is no such quality"),
        ("quality low", "ok quality low"),
        ("seek 1e99", "no: "),
        ("seek 0", "ok seek 0"),
        ("faster", "ok faster"),
        ("slower", "ok slower"),
        ("dance", "no: seek"),
        ("play", "ok play"),
    ] {
        say(words);
        let answer = answer();
        assert!(answer.starts_with(wanted), "{words}: {answer}");
    }
    let bytes = std::fs::read(low.path()).unwrap();
    let mut got = vec![0; bytes.len()];
    media.read_exact(&mut got).unwrap();
    assert!(got == bytes);
    assert_eq!(answer(), "end");
    say("quit");
    assert_eq!(media.read(&mut [0]).unwrap(), 0);
}

/// Whatever the input: no panic, and anything accepted as a request or a command is one.
#[test]
fn requests_and_commands_of_any_bytes() {
    bolero::check!(name = "requests_and_commands_of_any_bytes").for_each(|input| {
        if let Some(request) = radio::parse(input) {
            assert!(input.starts_with(b"GET ") && !request.path.starts_with('/'));
        }
        let (mut lines, mut whole, mut seen) =
            (ts_control::Lines::default(), ts_control::Lines::default(), Vec::new());
        let is_long = input.chunks(7).any(|piece| {
            let failed = lines.push(piece).is_err();
            seen.extend(std::iter::from_fn(|| lines.next_line()));
            failed
        });
        let all = whole.push(input).map(|()| std::iter::from_fn(|| whole.next_line()).collect::<Vec<_>>());
        assert!(is_long || all.is_err() || all == Ok(seen.clone()));
        for line in seen {
            if let Some(ts_control::Word::To(port)) = ts_control::parse(&line) {
                assert!(port > 0);
            }
        }
    });
}
