//! Renditions with a real server, real sockets and our own receiver: what arrives are the pieces of the renditions byte for byte, one row of packets, and a
//! stream in which neither the analyser nor ffmpeg finds a seam; and a viewer that reads slowly is sent less by itself.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Server, ffprobe_kinds, header, ok, play, read_head};
use millrace_client::TransportChoice;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_load::{LoadOptions, load};
use millrace_store::index::RandomAccessPoint;
use millrace_store::volume::Volume;

/// A store with one title at three bit rates.
struct Site {
    dir: tempfile::TempDir,
    store: PathBuf,
}

/// The sent data of a rendition: its bytes, and the points where it can begin.
struct Rung {
    data: Vec<u8>,
    access: Vec<RandomAccessPoint>,
}

impl Rung {
    /// From the access point at this time on, in seconds with three decimals.
    fn packet_at(&self, npt: &str) -> usize {
        let time = npt.parse::<f64>().unwrap() * 90_000.0;
        let point = self.access.iter().find(|point| (point.time.0 as f64 - time).abs() < 100.0);
        point.unwrap_or_else(|| panic!("no access point at {npt}: {:?}", self.access)).packet as usize
    }
}

impl Site {
    fn new(secs: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let site = Self { store: dir.path().join("store"), dir };
        let source = site.file("film.mp4");
        let picture = format!("testsrc2=size=320x180:rate=25:duration={secs}");
        let tone = format!("sine=duration={secs}");
        let status = Command::new("ffmpeg")
            .args(["-nostdin", "-v", "error", "-f", "lavfi", "-i", &picture, "-f", "lavfi", "-i", &tone])
            .args(["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac"])
            .arg(&source)
            .status();
        assert!(status.expect("these tests need ffmpeg: apt-get install ffmpeg").success());
        let ladder = "180p:1200k,120p:700k,90p:400k";
        ok(&[
            "add",
            "--quiet",
            "--ladder",
            ladder,
            "--preset",
            "ultrafast",
            text(&source),
            "--store",
            text(&site.store),
        ]);
        site
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn rung(&self, name: &str) -> Rung {
        let volume = Arc::new(Volume::open_any(&self.store).unwrap());
        let title = if name == "180p" { "film".to_owned() } else { format!("film@{name}") };
        let titles = volume.listing().unwrap().titles;
        let id = titles.iter().find(|listed| listed.info.name == title).expect("it was added").info.id;
        let access = volume.open_title(id, DEFAULT_PACKET_BYTES).unwrap().index.access_points().to_vec();
        let data = fs::read(self.store.join("titles").join(id.to_string()).join("data.ts")).unwrap();
        Rung { data, access }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns ffmpeg's messages while it decodes everything.
fn decoded(path: &Path) -> String {
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-nostdin", "-hide_banner", "-v", "warning", "-i"]).arg(path).args(["-f", "null", "-"]);
    let done = ffmpeg.output().expect("ffmpeg can be started");
    assert!(done.status.success());
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn rendition_switches_deliver_exact_bytes_of_each_rendition() {
    let site = Site::new(16);
    let mut server = Server::start(&site.store, &["--engines", "2"]);
    for transport in ["udp", "tcp"] {
        let out = site.file("out.ts");
        let report = play(&[
            &server.title("film"),
            "--transport",
            transport,
            "--rendition",
            "120p",
            "--do",
            "rendition@0.5=180p,rendition@3=90p,rendition@6=120p,pause@8.1,rendition@8.4=180p,play@8.7,rendition@11=90p",
            "--analyse",
            "-o",
            text(&out),
        ]);
        assert_eq!(
            (&report["sequence"]["lost"], &report["sequence"]["restarts"]),
            (&0.into(), &0.into()),
            "{report:#}"
        );
        assert_eq!(report["analysis"]["verdict"], "clean", "{report:#}");
        assert_eq!(report["rtp_info_exact"], true, "{report:#}");
        // The beginning of each rendition: as announced, and for the one that came with a pause, as
        // logged.
        let told: Vec<&str> =
            report["renditions"].as_array().unwrap().iter().map(|told| told.as_str().unwrap()).collect();
        assert_eq!((told.len(), told[3]), (5, "180p;after=play"), "{told:?}");
        let mut expected = Vec::new();
        let mut sent = ("120p".to_owned(), 0);
        let lines = server.said("goes from");
        let begins = lines[lines.len() - 5..].iter().map(|line| {
            let (names, at) = line.split_once(": film at 0:00:").expect("a line of a change");
            (names.rsplit_once(' ').unwrap().1.to_owned(), at.split(' ').next().unwrap().to_owned())
        });
        let all = ["180p", "120p", "90p"].map(|name| (name, site.rung(name)));
        let rung = |name: &str| &all.iter().find(|(other, _)| *other == name).expect("one of the three").1;
        for (to, at) in begins {
            let (from, cut) = (rung(&sent.0), rung(&sent.0).packet_at(&at));
            expected.extend_from_slice(&from.data[sent.1 * DEFAULT_PACKET_BYTES..cut * DEFAULT_PACKET_BYTES]);
            sent = (to.clone(), rung(&to).packet_at(&at));
        }
        expected.extend_from_slice(&rung(&sent.0).data[sent.1 * DEFAULT_PACKET_BYTES..]);
        assert!(fs::read(&out).unwrap() == expected, "{transport}: other bytes: {report:#}");
        assert_eq!(decoded(&out), "", "{transport}");
    }
    // Players do not mind what SDP lists.
    let kinds = ffprobe_kinds(&server.title("film"));
    assert!(kinds.contains("video") && kinds.contains("audio"), "{kinds}");
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}

/// Viewers who change the rendition over and over lose nothing by it.
#[test]
fn rendition_switches_by_many_viewers_lose_no_packet() {
    let site = Site::new(10);
    let mut server = Server::start(&site.store, &["--engines", "2"]);
    for transport in [TransportChoice::Udp, TransportChoice::Tcp] {
        let mut options = LoadOptions::new(vec![server.title("film")], 20);
        options.transport = transport;
        options.duration = Duration::from_secs(8);
        options.behaviour =
            "switch 1500ms fixed between 90p 180p,switch 2s between 120p 90p".parse().unwrap();
        let report = load(&options, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!((report.failed, report.lost, report.restarts), (0, 0, 0), "{transport:?}: {report}");
        assert!(report.switches > 40, "{transport:?}: {report}");
    }
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
    assert!(server.said("goes from").len() > 40);
}

/// Starts a player through the RTSP connection; its caller reads the following data.
fn player(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.addr).unwrap();
    let url = server.title("film");
    let mut ask = |request: String| {
        stream.write_all(request.as_bytes()).unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with("RTSP/1.0 200"), "{head}");
        header(&head, "Session").unwrap_or_default().to_owned()
    };
    let session = ask(format!(
        "SETUP {url} RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n\r\n"
    ));
    let session = session.split(';').next().unwrap();
    ask(format!("PLAY {url} RTSP/1.0\r\nCSeq: 2\r\nSession: {session}\r\n\r\n"));
    stream
}

#[test]
fn rendition_of_slow_reader_goes_down_and_up_again() {
    let site = Site::new(75);
    let mut server = Server::start(&site.store, &["--engines", "1"]);
    let mut stream = player(&server);
    let (is_fast, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (fast, over) = (Arc::clone(&is_fast), Arc::clone(&is_over));
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 6_000];
        // 60 kB a second: 0.48 Mb/s of 1.2.
        while !over.load(Ordering::Relaxed) && stream.read(&mut buffer).unwrap_or(0) > 0 {
            if !fast.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let limit = Duration::from_secs(60);
    let line = server.wait_for("goes from 180p to", limit);
    assert!(line.contains("because its viewer reads too slowly"), "{line}");
    is_fast.store(true, Ordering::Relaxed);
    let line = server.wait_for("because all has been well for a while", limit);
    assert!(line.contains("goes from"), "{line}");
    is_over.store(true, Ordering::Relaxed);
    reader.join().unwrap();
    assert!(server.interrupt(), "clean shutdown: {:?}", server.log);
}
