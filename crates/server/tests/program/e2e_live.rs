//! Live sources: ffmpeg and senders of our own send, and viewers join by RTSP and HTTP.

use std::cell::OnceCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_core::wire::rtp::RtpHeader;
use serde_json::Value;

use crate::support::http::get;
use crate::support::{Server, film, header, read_head, read_message};

/// For things that must happen on their own within seconds, on a machine that has other things to do.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Bits a second of the films here, and length of a datagram.
const RATE: u64 = 2_000_000;
pub(crate) const DATAGRAM: usize = 1316;

/// A server with the live source `news`, and where that has to be sent.
pub(crate) struct Site {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) server: Server,
    pub(crate) to: SocketAddr,
}

pub(crate) fn free_port() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Site {
    pub(crate) fn start(scheme: &str) -> Self {
        Self::with(scheme, &[])
    }

    /// With its store in this directory.
    pub(crate) fn in_dir(dir: tempfile::TempDir) -> Self {
        let to = free_port();
        let server = Server::start(&dir.path().join("store"), &["--live", &format!("news=udp://{to}")]);
        Self { dir, server, to }
    }

    /// With more options of `serve`.
    pub(crate) fn with(scheme: &str, options: &[&str]) -> Self {
        let (dir, to) = (tempfile::tempdir().unwrap(), free_port());
        let source = format!("news={scheme}://{to}");
        let options = [&["--live", &source], options].concat();
        let server = Server::start(&dir.path().join("store"), &options);
        Self { dir, server, to }
    }

    /// Without a source of its own.
    pub(crate) fn without_source() -> Self {
        let (dir, to) = (tempfile::tempdir().unwrap(), free_port());
        let server = Server::start(&dir.path().join("store"), &[]);
        Self { dir, server, to }
    }

    /// Where clients bring its media.
    fn input(&self) -> String {
        format!("http://{}/live/news", self.server.page())
    }

    /// A viewer by HTTP, behind the head of its response.
    pub(crate) fn open_http(&self) -> TcpStream {
        let mut viewer = TcpStream::connect(self.server.page()).unwrap();
        viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(viewer, "GET /live/news.ts HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let head = read_head(&mut viewer);
        assert!(head.starts_with("HTTP/1.1 200") && header(&head, "Content-Length").is_none(), "{head}");
        viewer
    }

    pub(crate) fn film(&self, secs: u64) -> PathBuf {
        film(self.dir.path(), "film.ts", secs)
    }

    fn rtsp(&self) -> String {
        self.server.title("live/news")
    }

    fn http(&self) -> String {
        format!("http://{}/live/news.ts", self.server.page())
    }

    /// The source in the API.
    pub(crate) fn state(&self) -> Value {
        let mut stream = TcpStream::connect(self.server.page()).unwrap();
        let (_, body) = get(&mut stream, "/api/v1/live", "");
        serde_json::from_slice::<Value>(&body).unwrap()["live"][0].clone()
    }

    /// A counter of the source.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.server.page()).unwrap();
        let (_, body) = get(&mut stream, "/metrics", "");
        let text = String::from_utf8(body).unwrap();
        let is_it = |line: &&str| line.contains("title=\"news\"") && line.starts_with("millrace_live_");
        let named = |line: &&str| line.split(['{', ' ']).next().is_some_and(|found| found.contains(name));
        let line = text.lines().filter(is_it).find(named);
        let line = line.unwrap_or_else(|| panic!("no counter {name} in\n{text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
    }

    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !is_so(self) {
            assert!(Instant::now() < end, "{what}: {}", self.state());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// ffmpeg as an encoder that sends; ended when dropped.
struct Encoder(Child);

impl Encoder {
    fn start(film: &Path, form: &str, url: &str) -> Self {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-hide_banner", "-nostdin", "-v", "error", "-re", "-stream_loop", "-1", "-i"]);
        ffmpeg.arg(film).args(["-c", "copy", "-f", form, url]);
        Self(ffmpeg.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a film in its own time; ends with its last packet, or when dropped.
pub(crate) struct Sender {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    /// `send` makes datagrams of each piece of the film.
    pub(crate) fn start(
        film: &Path,
        to: SocketAddr,
        mut send: impl FnMut(usize, &[u8], &mut dyn FnMut(&[u8])) + Send + 'static,
    ) -> Self {
        let bytes = std::fs::read(film).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let begin = Instant::now();
            for (number, piece) in bytes.chunks(DATAGRAM).enumerate() {
                let due = Duration::from_micros((number * DATAGRAM) as u64 * 8_000_000 / RATE);
                std::thread::sleep(due.saturating_sub(begin.elapsed()));
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                send(number, piece, &mut |datagram| {
                    // This fails after the server has ended.
                    let _ = socket.send_to(datagram, to);
                });
            }
        });
        Self { stop, thread: Some(thread) }
    }

    pub(crate) fn plain(film: &Path, to: SocketAddr) -> Self {
        Self::start(film, to, |_, piece, send| send(piece))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Pictures of the first `frames` of a stream that ffmpeg decodes, and its complaints.
pub(crate) fn decoded(url: &str, input: &[&str], frames: usize) -> (usize, String) {
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-hide_banner", "-nostdin", "-v", "error"]).args(input).args(["-i", url]);
    ffmpeg.args(["-map", "0:v", "-frames:v", &frames.to_string(), "-f", "framemd5", "-"]);
    let output = ffmpeg.output().unwrap();
    let frames = String::from_utf8_lossy(&output.stdout);
    let count = frames.lines().filter(|line| !line.starts_with('#')).count();
    (count, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn live_source_of_ffmpeg_plays_in_ffmpeg_by_every_transport() {
    for (scheme, form, options) in [("udp", "mpegts", "?pkt_size=1316"), ("rtp", "rtp_mpegts", "")] {
        let mut site = Site::start(scheme);
        let film = site.film(10);
        let to = site.to;
        let _encoder = Encoder::start(&film, form, &format!("{scheme}://{to}{options}"));
        site.server.wait_for("media comes", TIMEOUT);
        let rtsp = site.rtsp();
        for (url, input) in [
            (&rtsp, &["-rtsp_transport", "udp"][..]),
            (&rtsp, &["-rtsp_transport", "tcp"]),
            (&site.http(), &[]),
        ] {
            let (frames, errors) = decoded(url, input, 100);
            assert_eq!((frames, &*errors), (100, ""), "{form}, {url}, {input:?}");
        }
        assert_eq!(site.state()["state"], "running");
        assert_eq!((site.counter("unusable"), site.counter("lost"), site.counter("no_room")), (0, 0, 0));
    }
}

/// A connection for RTSP requests made by hand.
pub(crate) struct Viewer {
    stream: TcpStream,
    url: String,
    cseq: u32,
}

impl Viewer {
    pub(crate) fn of(site: &Site) -> Self {
        Self::of_title(site, "live/news")
    }

    pub(crate) fn of_title(site: &Site, name: &str) -> Self {
        let stream = TcpStream::connect(site.server.addr).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { stream, url: site.server.title(name), cseq: 0 }
    }

    /// The description.
    pub(crate) fn describe(&mut self) -> String {
        self.ask("DESCRIBE", "", "Accept: application/sdp\r\n").1
    }

    fn send(&mut self, method: &str, track: &str, headers: &str) {
        self.cseq += 1;
        let (url, cseq) = (&self.url, self.cseq);
        write!(self.stream, "{method} {url}{track} RTSP/1.0\r\nCSeq: {cseq}\r\n{headers}\r\n").unwrap();
    }

    fn ask(&mut self, method: &str, track: &str, headers: &str) -> (String, String) {
        self.send(method, track, headers);
        read_message(&mut self.stream)
    }

    /// Sets up interleaved channels and plays; returns the session and the reply to PLAY.
    pub(crate) fn play(&mut self, range: &str) -> (String, String) {
        let (head, _) = self.ask("SETUP", "/track1", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n");
        let session = header(&head, "Session").unwrap_or_else(|| panic!("{head}"));
        let session = session.split(';').next().unwrap().to_owned();
        let (head, _) = self.ask("PLAY", "", &format!("Session: {session}\r\n{range}"));
        (session, head)
    }

    /// The next RTP packet in the connection.
    pub(crate) fn rtp(&mut self) -> Vec<u8> {
        loop {
            let (channel, packet) = self.frame();
            if channel == 0 {
                return packet;
            }
        }
    }

    /// Whether RTCP ends the stream; otherwise this fails at the end of the connection.
    pub(crate) fn gets_bye(&mut self) -> bool {
        loop {
            let (channel, packet) = self.frame();
            // The packets of a compound one (RFC 3550 section 6.1): each has its type and its length in words.
            let mut rest = &packet[..];
            while let (1, [_, kind, high, low, ..]) = (channel, rest) {
                if *kind == 203 {
                    return true;
                }
                let bytes = 4 * (usize::from(u16::from_be_bytes([*high, *low])) + 1);
                rest = rest.get(bytes..).unwrap_or_default();
            }
        }
    }

    /// The next packet in the connection, and its channel.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut frame = [0; 4];
        self.stream.read_exact(&mut frame).unwrap();
        assert_eq!(frame[0], b'$', "a frame");
        let mut packet = vec![0; usize::from(u16::from_be_bytes([frame[2], frame[3]]))];
        self.stream.read_exact(&mut packet).unwrap();
        (frame[1], packet)
    }
}

/// PIDs of the TS packets of a payload.
pub(crate) fn pids(payload: &[u8]) -> Vec<u16> {
    let pid = |ts: &[u8]| u16::from_be_bytes([ts[1] & 0x1f, ts[2]]);
    payload.chunks(188).map(pid).collect()
}

#[test]
fn viewers_join_at_the_last_access_point_whatever_range_they_ask_for() {
    let mut site = Site::start("udp");
    let film = site.film(20);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    // The film has a key picture every two seconds.
    site.until("more than one group of pictures", |site| site.counter("packets") > 450);
    let mut viewer = Viewer::of(&site);
    let (_, sdp) = viewer.ask("DESCRIBE", "", "Accept: application/sdp\r\n");
    assert!(sdp.contains("a=range:npt=now-\r\n"), "{sdp}");
    let mut of_session = Viewer::of(&site);
    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
    let (head, _) = of_session.ask("SETUP", "/track1", transport);
    let session = header(&head, "Session").unwrap().split(';').next().unwrap().to_owned();
    let mut parameter = |name: &str| {
        let length = name.len();
        let about =
            format!("Session: {session}\r\nContent-Type: text/parameters\r\nContent-Length: {length}\r\n");
        of_session.send("GET_PARAMETER", "", &about);
        of_session.stream.write_all(name.as_bytes()).unwrap();
        read_message(&mut of_session.stream)
    };
    assert_eq!(parameter("range").1, "range: npt=now-\r\n");
    let (head, body) = parameter("duration");
    assert!(head.starts_with("RTSP/1.0 451") && body.contains("duration"), "{head}{body}");
    for range in ["", "Range: npt=now-\r\n", "Range: npt=0.000-\r\n", "Range: npt=3600-\r\n"] {
        let asked = Instant::now();
        let mut viewer = Viewer::of(&site);
        let (_, head) = viewer.play(range);
        let begun = header(&head, "Range").unwrap_or_else(|| panic!("{range}: {head}")).to_owned();
        assert!(begun.starts_with("npt=") && begun.ends_with('-') && begun != "npt=now-", "{range}: {begun}");
        let info = header(&head, "RTP-Info").unwrap_or_else(|| panic!("{range}: {head}")).to_owned();
        let packet = viewer.rtp();
        assert!(asked.elapsed() < Duration::from_secs(2), "{range}: the first packet comes at once");
        let (rtp, payload) = RtpHeader::parse(&packet).unwrap();
        assert!(info.contains(&format!("seq={};rtptime={}", rtp.sequence, rtp.timestamp)), "{info}: {rtp:?}");
        // Tables, then the picture: 0x100 is the video of ffmpeg.
        assert_eq!(pids(payload)[..3], [0, 0x1000, 0x100], "{range}");
    }
    // No transport of plain datagrams, which the title is not kept for.
    let (head, _) = viewer.ask("SETUP", "/track1", "Transport: RAW/RAW/UDP;unicast;client_port=40000\r\n");
    assert!(head.starts_with("RTSP/1.0 461"), "{head}");
}

#[test]
fn rtp_is_put_in_order_and_duplicates_are_dropped() {
    let mut site = Site::start("rtp");
    let film = site.film(8);
    let mut swapped: Option<Vec<u8>> = None;
    let _sender = Sender::start(&film, site.to, move |number, piece, send| {
        let sequence = (number as u16).wrapping_add(65_500);
        let header = RtpHeader { marker: false, payload_type: 33, sequence, timestamp: 0, ssrc: 7 };
        let datagram = [&header.emit()[..], piece].concat();
        match number % 10 {
            3 => swapped = Some(datagram),
            4 => {
                send(&datagram);
                send(&swapped.take().unwrap());
            }
            7 => {
                send(&datagram);
                send(&datagram);
            }
            _ => send(&datagram),
        }
    });
    site.server.wait_for("media comes", TIMEOUT);
    assert_eq!(decoded(&site.http(), &[], 75), (75, String::new()));
    assert_eq!(site.counter("lost"), 0);
    assert!(site.counter("reordered") > 10 && site.counter("late") > 10);
}

#[test]
fn garbage_is_counted_and_silence_is_reported_once() {
    let mut site = Site::start("udp");
    assert_eq!(site.state()["state"], "waiting");
    let film = site.film(3);
    drop(Sender::start(&film, site.to, |number, piece, send| {
        send(piece);
        if number % 5 == 0 {
            send(&piece[..700]);
        }
    }));
    let sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    let garbage: Vec<u8> = (0..1316).map(|n| n as u8).collect();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in [0, 1, 187, 188, 1316] {
        socket.send_to(&garbage[..length], site.to).unwrap();
    }
    site.until("garbage is counted", |site| site.counter("unusable") >= 5);
    drop(sender);
    site.server.wait_for("silent: no media for 3 s", TIMEOUT);
    assert_eq!(site.state()["state"], "silent");
    // RTP where plain datagrams are expected is named.
    let rtp = RtpHeader { marker: false, payload_type: 33, sequence: 1, timestamp: 0, ssrc: 7 };
    let datagram = [&rtp.emit()[..], &std::fs::read(&film).unwrap()[..1316]].concat();
    let end = Instant::now() + TIMEOUT;
    while site.server.said("write rtp:// in place of udp://").is_empty() {
        assert!(Instant::now() < end, "{:?}", site.server.log);
        socket.send_to(&datagram, site.to).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(site.state()["state"], "not-ts");
    assert_eq!(site.server.said("silent: no media").len(), 1, "once");
}

#[test]
fn viewer_stays_while_the_source_is_silent_and_gets_what_comes_after() {
    let mut site = Site::start("udp");
    let film = site.film(6);
    let sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    let mut viewer = site.open_http();
    let mut first = vec![0; 50 * DATAGRAM];
    viewer.read_exact(&mut first).unwrap();
    let other = site.open_http();
    drop(sender);
    site.server.wait_for("silent: no media for 3 s", TIMEOUT);
    // No engine has anything to write, and would notice.
    site.until("two viewers", |site| site.state()["viewers"] == 2);
    drop(other);
    site.until("one has gone", |site| site.state()["viewers"] == 1);
    let before = site.counter("discontinuities");
    // The encoder is restarted: its clock starts from the beginning.
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    let mut after = vec![0; 200 * DATAGRAM];
    viewer.read_exact(&mut after).unwrap();
    let packets = || after.chunks(188);
    assert!(packets().all(|ts| ts[0] == 0x47));
    let is_marked = |ts: &&[u8]| ts[3] & 0x20 != 0 && ts[4] > 0 && ts[5] & 0x80 != 0;
    assert_eq!(packets().filter(is_marked).count(), 1, "the jump is marked once");
    assert_eq!(site.counter("discontinuities"), before + 1);
    assert_eq!(site.state()["viewers"], 1);
}

#[test]
fn viewer_that_reads_too_slowly_is_ended_and_others_go_on() {
    let mut site = Site::start("udp");
    let film = site.film(60);
    // Ten times as fast as it plays, so that the window passes within seconds; both viewers get it so.
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, to) = (Arc::clone(&stop), site.to);
    let sender = std::thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let bytes = std::fs::read(&film).unwrap();
        for piece in bytes.chunks(DATAGRAM).cycle() {
            if stopped.load(Ordering::Relaxed) {
                return;
            }
            let _ = socket.send_to(piece, to);
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    site.server.wait_for("media comes", TIMEOUT);
    let (mut reader, mut slow) = (site.open_http(), site.open_http());
    let slow = std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        // To its end, or until the connection is reset.
        while matches!(slow.read(&mut buffer), Ok(1..)) {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let mut total = 0;
    let end = Instant::now() + Duration::from_secs(60);
    let mut buffer = vec![0; 100 * DATAGRAM];
    while !slow.is_finished() {
        assert!(Instant::now() < end, "{total} bytes read: {:?}", site.server.said(""));
        reader.read_exact(&mut buffer).unwrap();
        assert!(buffer.chunks(188).all(|ts| ts[0] == 0x47));
        total += buffer.len();
    }
    slow.join().unwrap();
    reader.read_exact(&mut buffer).unwrap();
    site.until("one viewer is left", |site| site.state()["viewers"] == 1);
    assert_eq!(site.state()["state"], "too-fast");
    stop.store(true, Ordering::Relaxed);
    sender.join().unwrap();
}

#[test]
fn live_titles_are_listed_and_bad_sources_are_refused_with_a_remedy() {
    let site = Site::start("udp");
    let mut stream = TcpStream::connect(site.server.page()).unwrap();
    let (_, body) = get(&mut stream, "/titles.m3u", "");
    assert!(String::from_utf8(body).unwrap().ends_with("#EXTINF:-1,news\nlive/news.ts\n"));
    let state = site.state();
    assert_eq!((&state["name"], &state["file"]), (&"news".into(), &"/live/news.ts".into()));
    let (head, _) = get(&mut stream, "/live/sport.ts", "");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let (head, _) =
        Viewer { url: site.server.title("live/sport"), ..Viewer::of(&site) }.ask("DESCRIBE", "", "");
    assert!(head.starts_with("RTSP/1.0 404"), "{head}");
    let store = site.dir.path().join("other");
    let serve = |source: &str| {
        let listen = ["serve", "--listen", "127.0.0.1:0", "--http", "off", "--store"];
        let store = store.to_str().unwrap();
        crate::support::fails(&[&listen[..], &[store, "--live", source]].concat())
    };
    assert!(serve("news").contains("write NAME=URL"));
    assert!(serve("news=ftp://127.0.0.1:1").contains("write udp://ADDR:PORT or rtp://ADDR:PORT"));
    let used = serve(&format!("news=udp://{}", site.to));
    assert!(used.contains("live source news: UDP") && used.contains("ss -ulpn"), "{used}");
}

#[test]
fn sources_of_running_server_are_listed_with_state_and_badge() {
    let mut site = Site::start("udp");
    let server = format!("http://{}/", site.server.page());
    let list = || crate::support::ok(&["live", "--server", &server]);
    assert!(list().contains("news  waiting  ") && list().contains("nothing has come yet"), "{}", list());
    let film = site.film(3);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    assert!(list().contains("news  running  "), "{}", list());
    let json = crate::support::ok(&["live", "--json", "--server", &server]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["name"], &json[0]["state"]), (&"news".into(), &"running".into()));
    site.server.wait_for("silent: no media for 3 s", TIMEOUT);
    let message = site.state()["message"].as_str().unwrap().to_owned();
    let seconds =
        message.strip_prefix("silent for ").and_then(|rest| rest.split_once(" s; check the encoder"));
    assert!(seconds.is_some_and(|(seconds, _)| seconds.parse::<u64>().unwrap() >= 3), "{message}");
    let page = get(&mut TcpStream::connect(site.server.page()).unwrap(), "/page.js", "").1;
    assert!(String::from_utf8(page).unwrap().contains("api/v1/live"), "the page lists live titles");
}

/// Processes that a server has started and that run.
fn children(server: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = stat.rsplit_once(") ")?.1.to_owned();
        let mut fields = fields.split(' ');
        let state = fields.next()?.to_owned();
        (state != "Z").then(|| fields.next()?.parse::<u32>().ok()).flatten()
    };
    pids.filter(|pid| parent(pid) == Some(server)).collect()
}

fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn source_that_ffmpeg_fetches_plays_comes_back_and_ends_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let film = film(dir.path(), "film.ts", 8);
    let cameras = dir.path().join("cameras");
    crate::support::add(&film, &cameras);
    let camera = Server::start(&cameras, &[]);
    for (ending, url) in [
        ("INT", format!("rtsp://viewer:secret@{}/film", camera.addr)),
        ("KILL", format!("http://viewer:secret@{}/titles/film/index.m3u8?key=secret", camera.page())),
    ] {
        let source = format!("news={url}");
        let server = Server::start(&dir.path().join("store"), &["--live", &source]);
        let mut site = Site { dir: tempfile::tempdir().unwrap(), server, to: free_port() };
        site.server.wait_for("media comes", TIMEOUT);
        let begun = Instant::now();
        assert_eq!(decoded(&site.http(), &[], 75), (75, String::new()), "{url}");
        // The film ends after 8 s, and is fetched again.
        let ended = site.server.wait_for("the source has ended; trying again in 1s", TIMEOUT);
        assert!(
            begun.elapsed() > Duration::from_secs(5),
            "{url} plays in its own time: {:?}",
            begun.elapsed()
        );
        assert!(ended.contains("live source news (") && ended.contains("film"), "{ended}");
        site.server.wait_for("media comes", TIMEOUT);
        assert_eq!(site.state()["state"], "running");
        let told = site.server.said("").join("\n") + &site.state().to_string();
        assert!(!told.contains("secret"), "{told}");
        let programs = children(site.server.child.id());
        assert!(!programs.is_empty(), "ffmpeg runs");
        crate::support::signal(site.server.child.id(), ending);
        site.server.ends();
        let end = Instant::now() + TIMEOUT;
        while programs.iter().any(|pid| runs(*pid)) {
            assert!(Instant::now() < end, "{ending}: a program outlives its server: {programs:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn source_that_cannot_be_fetched_says_why_without_its_password() {
    let dir = tempfile::tempdir().unwrap();
    let to = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let source = format!("news=rtsp://viewer:secret@{to}/film?key=secret");
    let server = Server::start(&dir.path().join("store"), &["--live", &source]);
    let mut site = Site { dir, server, to };
    let line = site.server.find("Connection refused; trying again in 1s", TIMEOUT);
    assert!(line.contains(&format!("live source news (rtsp://{to}/film): ffprobe: ")), "{line}");
    let state = site.state();
    assert_eq!(state["state"], "failed");
    assert!(state["message"].as_str().unwrap().contains("Connection refused"), "{state}");
    assert!(!(site.server.said("").join("\n") + &state.to_string()).contains("secret"));
}

/// Sends a piece of a body without a length.
fn send_chunk(stream: &mut TcpStream, bytes: &[u8]) {
    let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    stream.write_all(&chunk).unwrap();
}

/// Begins to bring media by a connection of our own.
fn begin_input(site: &Site, method: &str) -> TcpStream {
    let mut stream = TcpStream::connect(site.server.page()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head =
        format!("{method} /live/news HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn ffmpeg_brings_a_live_title_by_http_and_viewers_stay_when_it_comes_back() {
    let mut site = Site::without_source();
    let film = site.film(10);
    let encoder = Encoder::start(&film, "mpegts", &site.input());
    site.server.wait_for("live source news (HTTP): media comes", TIMEOUT);
    for url in [site.rtsp(), site.http()] {
        assert_eq!(decoded(&url, &[], 75), (75, String::new()), "{url}");
    }
    let mut viewer = site.open_http();
    let mut buffer = vec![0; 200 * DATAGRAM];
    viewer.read_exact(&mut buffer).unwrap();
    // Another client cannot have the name.
    let mut second = begin_input(&site, "PUT");
    send_chunk(&mut second, &std::fs::read(&film).unwrap()[..1316]);
    let head = read_head(&mut second);
    assert!(head.starts_with("HTTP/1.1 409"), "{head}");
    // The connection breaks, and the encoder connects again.
    drop(encoder);
    site.server.wait_for("silent: no media for 3 s", TIMEOUT);
    let encoder = Encoder::start(&film, "mpegts", &site.input());
    site.server.wait_for("media comes", TIMEOUT);
    viewer.read_exact(&mut buffer).unwrap();
    assert!(buffer.chunks(188).all(|ts| ts[0] == 0x47));
    assert_eq!(site.counter("no_room"), 0);
    drop(encoder);
    // This time it does not come back.
    site.server.wait_for("ended: its sender has not come back", 2 * TIMEOUT);
    site.until("the title has ended", |site| site.state().is_null());
}

#[test]
fn group_with_named_sender_takes_datagrams_of_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let to = SocketAddr::from(([239, 255, 77, 1], free_port().port()));
    // With the interface by its name the kernel passes on the datagrams of every sender.
    let source = format!("news=udp://{to}?source=127.0.0.2&interface=lo");
    let server = Server::start(&dir.path().join("store"), &["--live", &source]);
    let site = Site { dir, server, to };
    let film = std::fs::read(site.film(2)).unwrap();
    // The address of a socket chooses the interface that it sends by.
    for sender in ["127.0.0.3:0", "127.0.0.2:0"] {
        let socket = UdpSocket::bind(sender).unwrap();
        for piece in film.chunks(DATAGRAM).take(10) {
            socket.send_to(piece, to).unwrap();
        }
    }
    site.until("all datagrams have come", |site| site.counter("datagrams") >= 10);
    assert_eq!(site.counter("datagrams"), 10);
}

#[test]
fn body_that_ends_ends_the_live_title_and_other_formats_are_refused() {
    let mut site = Site::without_source();
    let film = std::fs::read(site.film(4)).unwrap();
    let begun = Instant::now();
    let mut input = begin_input(&site, "POST");
    send_chunk(&mut input, &film[..film.len() / 2 / 188 * 188]);
    site.server.wait_for("live source news (HTTP): media comes", TIMEOUT);
    let mut viewer = site.open_http();
    // Faster than time: it is read no faster than it plays, and nothing of it is lost.
    for piece in film[film.len() / 2 / 188 * 188..].chunks(10_000) {
        send_chunk(&mut input, piece);
    }
    input.write_all(b"0\r\n\r\n").unwrap();
    let head = read_head(&mut input);
    assert!(head.starts_with("HTTP/1.1 204"), "{head}");
    assert!(begun.elapsed() > Duration::from_secs(2), "4 s of media came in {:?}", begun.elapsed());
    let mut rest = Vec::new();
    viewer.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > film.len() / 2 && rest.chunks(188).all(|ts| ts[0] == 0x47), "{}", rest.len());
    site.server.wait_for("ended by its sender", TIMEOUT);
    assert!(site.state().is_null(), "{}", site.state());
    let mut other = begin_input(&site, "PUT");
    send_chunk(&mut other, &vec![b'x'; 100_000]);
    let head = read_head(&mut other);
    assert!(head.starts_with("HTTP/1.1 415"), "{head}");
}

/// A viewer's session, and the address of the media playlist that carries it; otherwise the refusal.
fn join_hls(stream: &mut TcpStream) -> Result<(String, String), String> {
    let (head, body) = get(stream, "/live/news/index.m3u8", "");
    let master = String::from_utf8(body).unwrap();
    if !head.starts_with("HTTP/1.1 200") {
        return Err(head + &master);
    }
    let address = master.lines().last().unwrap();
    let (_, session) = address.split_once("media.m3u8?session=").unwrap_or_else(|| panic!("{master}"));
    Ok((session.to_owned(), format!("/live/news/{address}")))
}

#[test]
fn surplus_hls_viewer_of_live_title_is_refused_at_the_playlist_and_admitted_ones_never() {
    let mut site = Site::with("udp", &["--max-streams", "2", "--share-per-address", "100%"]);
    let film = site.film(60);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    let connect = || TcpStream::connect(site.server.page()).unwrap();
    let mut viewers = Vec::new();
    site.until("two viewers are admitted", |_| {
        let mut stream = connect();
        viewers.extend(join_hls(&mut stream).ok().map(|(session, list)| (stream, session, list)));
        viewers.len() == 2
    });
    assert_ne!(viewers[0].1, viewers[1].1, "each has a session of its own");
    let refused = join_hls(&mut connect()).unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("--max-streams"), "{refused}");
    // For longer than a session without a request lasts: each playlist is loaded again, each segment once.
    let mut fetched = [0, 0];
    let mut last = [String::new(), String::new()];
    site.until("both viewers have played for 18 s", |_| {
        for (n, (stream, session, list)) in viewers.iter_mut().enumerate() {
            let (head, body) = get(stream, list, "");
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            let text = String::from_utf8(body).unwrap();
            let newest = text.lines().last().unwrap();
            assert!(newest.ends_with(&format!("?session={session}")), "the session stays: {text}");
            if last[n] != newest {
                let (head, body) = get(stream, &format!("/live/news/{newest}"), "");
                assert!(head.starts_with("HTTP/1.1 200") && body.len() > 100_000, "{head}");
                newest.clone_into(&mut last[n]);
                fetched[n] += 1;
            }
        }
        fetched.iter().all(|count| *count >= 9)
    });
    let refused = join_hls(&mut connect()).unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 503"), "still full: {refused}");
    // A session that has ended begins again under its name, since players go on to reload its address.
    drop(viewers.pop());
    let address = "/live/news/media.m3u8?session=00000000000000a1";
    let (stream, _, list) = &mut viewers[0];
    site.until("the capacity is free, and the old session begins again", |_| {
        // The other viewer goes on.
        let (head, _) = get(stream, list, "");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let (_, body) = get(&mut connect(), address, "");
        String::from_utf8(body).unwrap().trim_end().ends_with("?session=00000000000000a1")
    });
    let sessions = || {
        let (_, body) = get(&mut connect(), "/api/v1/status", "");
        let status = serde_json::from_slice::<Value>(&body).unwrap();
        status["sessions"].as_array().unwrap().clone()
    };
    assert_eq!(sessions().len(), 2);
    get(&mut connect(), address, "");
    assert_eq!(sessions().len(), 2, "a reload is no viewer more");
    assert!(sessions().iter().all(|session| session["position_s"].is_null()), "{:?}", sessions());
}

#[test]
fn live_title_plays_by_hls_and_its_playlist_moves_on() {
    let mut site = Site::start("udp");
    let film = site.film(60);
    let _sender = Sender::plain(&film, site.to);
    site.server.wait_for("media comes", TIMEOUT);
    let joined = OnceCell::new();
    let list = |site: &Site| {
        let mut stream = TcpStream::connect(site.server.page()).unwrap();
        if joined.get().is_none() {
            let (_, list) = join_hls(&mut stream).ok()?;
            joined.set(list).unwrap();
        }
        Some(String::from_utf8(get(&mut stream, joined.get()?, "").1).unwrap())
    };
    let segments = |list: &str| list.lines().filter(|line| line.contains(".ts?session=")).count();
    site.until("three segments", |site| list(site).is_some_and(|list| segments(&list) >= 3));
    let playlist = format!("http://{}/live/news/index.m3u8", site.server.page());
    // 8 s of pictures: more than the segments that were there at the start.
    assert_eq!(decoded(&playlist, &[], 200), (200, String::new()));
    let now = list(&site).unwrap();
    assert!(!now.contains("#EXT-X-ENDLIST") && now.contains("#EXT-X-TARGETDURATION:2\n"), "{now}");
    let lengths = now.lines().filter_map(|line| line.strip_prefix("#EXTINF:")?.strip_suffix(','));
    // A group of pictures each, as exactly as packet times are.
    let mut lengths = lengths.map(|length| length.parse::<f64>().unwrap());
    assert!(lengths.all(|length| (length - 2.0).abs() < 0.1), "{now}");
    let sequence = |list: &str| -> u32 {
        let line = list.lines().find_map(|line| line.strip_prefix("#EXT-X-MEDIA-SEQUENCE:"));
        line.unwrap().parse().unwrap()
    };
    let before = sequence(&now);
    site.until("the playlist moves on", |site| list(site).is_some_and(|list| sequence(&list) > before));
}

/// ffmpeg waits for no answer: it closes its connection behind the last byte, which the server has not come to yet.
#[test]
fn live_title_ends_with_body_whose_client_does_not_wait() {
    let mut site = Site::without_source();
    let media = std::fs::read(site.film(5)).unwrap();
    let mut client = begin_input(&site, "POST");
    media.chunks(32 << 10).for_each(|piece| send_chunk(&mut client, piece));
    client.write_all(b"0\r\n\r\n").unwrap();
    drop(client);
    site.server.wait_for("ended by its sender", TIMEOUT);
}
