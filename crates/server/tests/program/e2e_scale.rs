//! Other speeds with a real server, real sockets and our own receiver: what shows the title at another speed arrives byte for byte, and the
//! numbers of its packets go on from speed to speed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Server, add, film, header, ok, play, read_head, run};
use millrace_client::TransportChoice;
use millrace_core::time::MediaTicks;
use millrace_load::{LoadOptions, load};
use millrace_store::format::manifest::Manifest;
use serde_json::Value;

/// A store with one title, and the titles made from it.
struct Site {
    dir: tempfile::TempDir,
    store: PathBuf,
}

impl Site {
    /// `film`, 16 s, at four times the speed in either direction.
    fn new() -> Self {
        Self::with_film_of(16)
    }

    fn with_film_of(seconds: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let site = Self { store: dir.path().join("store"), dir };
        let source = film(site.dir.path(), "film.ts", seconds);
        ok(&["add", "--quiet", "--trick=4,-4", text(&source), "--store", text(&site.store)]);
        site
    }

    /// Returns the file with the data that is sent of a title.
    fn data(&self, name: &str) -> String {
        let mut dirs = fs::read_dir(self.store.join("titles")).unwrap().map(|entry| entry.unwrap().path());
        let is_named = |dir: &PathBuf| {
            let manifest = Manifest::decode(&fs::read(dir.join("manifest.mrm")).unwrap()).unwrap();
            manifest.title.name == name
        };
        let dir = dirs.find(is_named).expect("a title of this name");
        text(&dir.join("data.ts")).to_owned()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn play_with_scale_delivers_trick_title_byte_for_byte() {
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    for (transport, scale, start, shown) in
        [("udp", "4", "0s", "film@4"), ("tcp", "4", "0s", "film@4"), ("udp", "-4", "16s", "film@-4")]
    {
        let (out, data) = (site.file("out.ts"), site.data(shown));
        let report = play(&[
            &server.title("film"),
            "--transport",
            transport,
            "--start",
            start,
            "--scale",
            scale,
            "-o",
            text(&out),
            "--verify",
            &data,
        ]);
        assert_eq!(fs::read(&out).unwrap(), fs::read(&data).unwrap(), "{transport} {scale}: {report}");
        assert_eq!(
            (&report["sequence"]["lost"], &report["rtp_info_exact"]),
            (&0.into(), &true.into()),
            "{report}"
        );
        // Backwards it stops at the beginning, without an announcement of the end.
        assert_eq!(report["bye"].is_null(), scale == "-4", "{report}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

#[test]
fn numbers_go_on_from_speed_to_speed() {
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    for transport in ["udp", "tcp"] {
        let script = "scale@1.5=4,scale@3=-4,pause@4,play@4.5,scale@5.5=1";
        let report =
            play(&[&server.title("film"), "--transport", transport, "--do", script, "--duration", "7s"]);
        assert_eq!(report["sequence"]["lost"], 0, "{transport}: {report}");
        assert_eq!(report["sequence"]["restarts"], 0, "{transport}: {report}");
        let plays = report["plays"].as_array().unwrap();
        assert_eq!(plays.len(), 5, "{report}");
        let number = |play: &Value, key: &str| play[key].as_u64().unwrap_or_else(|| panic!("{key}: {play}"));
        for pair in plays.windows(2) {
            let (one, next) = (&pair[0], &pair[1]);
            assert_eq!(next["rtp_info_exact"], true, "{next}");
            let behind = number(one, "announced_sequence") + number(one, "packets");
            assert_eq!(behind % 65_536, number(next, "announced_sequence"), "{one} {next}");
            // As much as the packets took, and not a jump of a title's timeline.
            let passed = (number(next, "announced_timestamp") as u32)
                .wrapping_sub(number(one, "announced_timestamp") as u32);
            assert!((30_000..200_000).contains(&passed), "{passed} ticks: {one} {next}");
        }
        let ranges: Vec<_> = plays.iter().map(|play| play["range_answered"].as_str().unwrap()).collect();
        assert!(ranges[2].ends_with("-0.000") && ranges[3].ends_with("-0.000"), "{ranges:?}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
    let speeds = server.said("at speed");
    assert_eq!(speeds.len(), 6, "{speeds:?}");
}

/// Viewers who change the speed over and over lose nothing by it, and each reply names the packet that follows.
#[test]
fn scale_changes_by_many_viewers_lose_no_packet() {
    let site = Site::with_film_of(60);
    let mut server = Server::start(&site.store, &["--engines", "2"]);
    for transport in [TransportChoice::Udp, TransportChoice::Tcp] {
        let mut options = LoadOptions::new(vec![server.title("film")], 20);
        options.transport = transport;
        // No viewer reaches an end of the title, at four times the speed in one direction all the
        // time: there is no PLAY from there. A busy machine has twice the time.
        options.start = MediaTicks::from_ns(30_000_000_000);
        options.duration = Duration::from_secs(3);
        options.behaviour = "trick 700ms fixed at 4:2,trick 500ms fixed at -4".parse().unwrap();
        let report = load(&options, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!((report.failed, report.lost, report.rtp_info_wrong), (0, 0, 0), "{transport:?}: {report}");
        assert!(report.tricks > 40 && report.packets > 1_000, "{transport:?}: {report}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

#[test]
fn packets_come_as_fast_as_was_asked() {
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    for speed in ["2", "4"] {
        let data = site.data("film");
        let report =
            play(&[&server.title("film"), "--transport", "tcp", "--speed", speed, "--verify", &data]);
        assert_eq!(
            (&report["sequence"]["lost"], &report["byte_check"]["different_bytes"]),
            (&0.into(), &0.into())
        );
        assert_eq!(report["byte_check"]["checked_bytes"], fs::metadata(&data).unwrap().len());
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

#[test]
fn trick_title_requested_by_name_returns_404() {
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    let out = support::run(&["play", &server.title("film@4")]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("404"), "{said}");
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

/// GStreamer sends `Scale` for a rate in trick mode. It shows pictures at each speed, and goes on from a rewind.
#[test]
fn gstreamer_shows_pictures_at_each_speed() {
    // The interpreter that finds the bindings which the distribution installs.
    let python = || Command::new("/usr/bin/python3");
    if !python().args(["-c", "import gi"]).output().is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: GStreamer's bindings for Python are not installed");
        return;
    }
    let site = Site::new();
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/interop/gst_play.py");
    let players = ["udp", "tcp"].map(|transport| {
        let player = python()
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .args([
                script,
                &server.title("film"),
                "--transport",
                transport,
                "--latency",
                "300",
                "--limit",
                "15",
            ])
            .args(["--step=3:seek=13", "--step=5:rate=-4", "--step=8:rate=4", "--step=11:rate=1"])
            .stdout(Stdio::piped())
            .spawn();
        (transport, player.expect("python can be started"))
    });
    for (transport, player) in players {
        let done = player.wait_with_output().expect("our child");
        let report: Value = serde_json::from_slice(&done.stdout).expect("gst_play.py prints JSON");
        assert_eq!(
            (&report["errors"], &report["hangs"]),
            (&Value::Array(vec![]), &false.into()),
            "{transport}"
        );
        let mut pictures: Vec<_> =
            report["rates"].as_array().unwrap().iter().map(|change| change[2].as_u64().unwrap()).collect();
        pictures.push(report["pictures"].as_array().unwrap().len() as u64);
        let shown: Vec<_> = pictures.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // At -4, at 4 and at normal speed again.
        assert!(shown.len() == 3 && shown.iter().all(|shown| *shown > 0), "{transport}: {pictures:?}");
        assert!(shown[2] > shown[0], "{transport}: {pictures:?}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
    let said = |speed: &str, server: &mut Server| server.said(&format!("at speed {speed}")).len();
    assert_eq!([said("-4", &mut server), said("4", &mut server)], [2, 2], "{:?}", server.log);
}

/// The title for four times the speed is damaged from its middle on. A viewer that reaches the
/// damage is ended; the next one gets the nearest other speed.
#[test]
fn damaged_trick_title_is_not_sent_to_next_viewer() {
    let site = Site::new();
    ok(&["trick", "film", "--speeds=2", "--quiet", "--store", text(&site.store)]);
    let data = site.data("film@4");
    let mut bytes = fs::read(&data).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..].iter_mut().step_by(1_000).for_each(|byte| *byte ^= 1);
    fs::write(&data, bytes).unwrap();
    let mut server = Server::start(&site.store, &["--engines", "1", "--max-damaged", "0%"]);
    let url = server.title("film");
    let plays = |asked: &str, start: &str| {
        let scale = format!("--scale={asked}");
        run(&["play", &url, &scale, "--start", start, "--stats", "json", "-o", "null"])
    };
    let ended = plays("4", "0s");
    server.wait_for("title film@4 cannot be played", Duration::from_secs(20));
    assert!(!ended.status.success(), "{ended:?}");
    let scale = |done: &std::process::Output| {
        let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"));
        assert!(done.status.success(), "{report}");
        report["place"]["scale_hundredths"].as_i64().unwrap()
    };
    assert_eq!((scale(&plays("4", "8s")), scale(&plays("-4", "8s"))), (200, -400));
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
    assert_eq!(server.said("title film@4 cannot be played").len(), 1, "{:?}", server.log);
}

/// Titles that players meet: the options for ffmpeg, and the changes made afterwards.
const ODD: [(&str, &str); 7] = [
    (
        "open",
        "PICTURES SOUND -c:v libx264 -preset ultrafast -g 25 -bf 2 -x264-params open-gop=1:scenecut=0 -c:a aac",
    ),
    (
        "interlaced",
        "PICTURES SOUND -c:v libx264 -preset ultrafast -g 25 -flags +ilme+ildct -x264-params tff=1 -c:a aac",
    ),
    ("broadcast", "PICTURES SOUND -c:v mpeg2video -g 12 -flags +ilme+ildct -top 1 -b:v 800k -c:a mp2"),
    (
        "pair",
        "PICTURES SOUND PICTURES SOUND -map 0 -map 1 -map 2 -map 3 -program program_num=7:st=0:st=1 -program program_num=9:st=2:st=3 -c:v libx264 -preset ultrafast -g 25 -c:a aac",
    ),
    ("radio", "SOUND -c:a aac"),
    ("scrambled", "PICTURES SOUND -c:v libx264 -preset ultrafast -g 25 -c:a aac"),
    ("blind", "PICTURES SOUND -c:v libx264 -preset ultrafast -g 9999 -c:a aac"),
];

/// One of these, of 6 s. Of `scrambled` the packets of its pictures are marked as such; `blind` has lost the only picture that can be decoded alone.
fn odd(dir: &Path, name: &str, arguments: &str) -> PathBuf {
    let file = dir.join(format!("{name}.ts"));
    let pictures = "-f lavfi -i testsrc2=size=320x180:rate=25:duration=6";
    let arguments = arguments.replace("PICTURES", pictures).replace("SOUND", "-f lavfi -i sine=duration=6");
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-nostdin", "-v", "error"]).args(arguments.split_whitespace());
    let status = ffmpeg.args(["-pix_fmt", "yuv420p"]).arg(&file).status();
    assert!(status.expect("these tests need ffmpeg: apt-get install ffmpeg").success(), "{arguments}");
    let mut bytes = fs::read(&file).unwrap();
    let is_of_pictures = |packet: &[u8]| packet[1] & 0x1f == 1 && packet[2] == 0;
    if name == "scrambled" {
        let packets = bytes.chunks_exact_mut(188).filter(|packet| is_of_pictures(packet));
        packets.for_each(|packet| packet[3] |= 0x80);
    }
    if name == "blind" {
        let mut begun = 0;
        let packets = bytes.chunks_exact(188).filter(|packet| {
            begun += usize::from(is_of_pictures(packet) && packet[1] & 0x40 != 0);
            begun > 1 || !is_of_pictures(packet)
        });
        bytes = packets.flatten().copied().collect();
    }
    fs::write(&file, bytes).unwrap();
    file
}

/// A player through its connection.
struct Player {
    stream: BufReader<TcpStream>,
    url: String,
    session: String,
}

impl Player {
    fn new(server: &Server, title: &str) -> Self {
        let stream = TcpStream::connect(server.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut player =
            Self { stream: BufReader::new(stream), url: server.title(title), session: String::new() };
        let setup = player.ask("SETUP", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1");
        let session = header(&setup, "Session").unwrap().split(';').next().unwrap();
        player.session = format!("Session: {session}\r\n");
        player
    }

    /// The head of the answer; packets that come before it are passed over.
    fn ask(&mut self, method: &str, line: &str) -> String {
        let request = format!("{method} {} RTSP/1.0\r\nCSeq: 1\r\n{}{line}\r\n\r\n", self.url, self.session);
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        while self.packet() {}
        read_head(&mut self.stream)
    }

    /// Passes over a packet; `false`: something else comes.
    fn packet(&mut self) -> bool {
        if self.stream.fill_buf().expect("something comes").first() != Some(&b'$') {
            return false;
        }
        let mut frame = [0; 4];
        self.stream.read_exact(&mut frame).unwrap();
        let mut packet = vec![0; usize::from(u16::from_be_bytes([frame[2], frame[3]]))];
        self.stream.read_exact(&mut packet).unwrap();
        true
    }

    /// Asserts that packets come, for longer than the packets in flight last.
    fn is_sent_more(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            assert!(self.packet(), "an answer that nobody has asked for, or the end");
        }
    }
}

/// Asks for speeds of one title that exist, that do not exist, and that are not speeds; `""` is the
/// value given for those.
fn ask_everything(mut player: Player, name: &str) {
    let has = |scale: &str| match name {
        "radio" | "scrambled" => false,
        "blind" => scale == "0.5",
        _ => true,
    };
    let answer = player.ask("PLAY", "Range: npt=0-");
    assert!(answer.starts_with("RTSP/1.0 200"), "{name}: {answer}");
    player.is_sent_more();
    for (asked, range, given) in [
        ("4", "1-", "4.0"),
        ("3", "1-", "4.0"),
        ("-4", "5-0", "-4.0"),
        ("0.5", "1-", "0.5"),
        ("1000", "1-", "4.0"),
        ("-1000", "5-0", "-4.0"),
        ("1", "1-", "1.0"),
        ("0", "1-", ""),
        ("-0", "5-0", ""),
        ("nan", "1-", ""),
        ("inf", "1-", ""),
        ("1e3", "1-", ""),
    ] {
        let answer = player.ask("PLAY", &format!("Scale: {asked}\r\nRange: npt={range}"));
        let (status, scale) = (&answer[9..12], header(&answer, "Scale").unwrap_or_default());
        let expected = match given {
            "" => ("400", ""),
            given if given == "1.0" || has(given) => ("200", given),
            given if given.starts_with('-') => ("456", ""),
            _ => ("200", "1.0"),
        };
        assert_eq!((status, scale), expected, "{name}, Scale: {asked}: {answer}");
        player.is_sent_more();
    }
    assert!(player.ask("TEARDOWN", "User-Agent: test").starts_with("RTSP/1.0 200"), "{name}");
}

/// Whatever speed is requested of whatever title, the answer announces the media, or the reason why
/// nothing changes, and packets keep coming.
#[test]
fn scale_requests_on_odd_titles_are_answered_and_packets_continue() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let at = ["--quiet", "--store", text(&store)];
    for (name, arguments) in ODD {
        add(&odd(dir.path(), name, arguments), &store);
        match name {
            "radio" | "scrambled" => continue,
            "blind" => ok(&[&["trick", name, "--speeds=0.5"], &at[..]].concat()),
            _ => ok(&[&["trick", name, "--speeds=0.5,4,-4"], &at[..]].concat()),
        };
    }
    let mut server = Server::start(&store, &["--engines", "1", "--trick-space", "0B"]);
    std::thread::scope(|scope| {
        for (name, _) in ODD {
            let player = Player::new(&server, name);
            scope.spawn(move || ask_everything(player, name));
        }
    });
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
    assert_eq!(server.said("panicked"), [""; 0]);
}
