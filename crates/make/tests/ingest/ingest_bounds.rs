//! Files made to exhaust memory, disk or processor, and files made to lead ffmpeg to others: refused with a clear word, and nothing
//! is left behind.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::ingest_support::{bombs, ffmpeg};
use millrace_core::units::ByteLen;
use millrace_make::ingest::{Exceeded, FfmpegBounds, IngestError, IngestOptions, ingest};
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::mux::usual_film;
use tempfile::TempDir;

struct Bench {
    dir: TempDir,
    volume: Volume,
    options: IngestOptions,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::open_or_create(&dir.path().join("store")).unwrap();
        Self { dir, volume, options: IngestOptions::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ingest(&self, source: &Path) -> Result<TitleInfo, IngestError> {
        ingest(&self.volume, source, &self.options, &mut |_| {})
    }

    /// Refused for want of something; nothing is left of it.
    fn exceeded(&self, source: &Path) -> Exceeded {
        let error = self.ingest(source).unwrap_err();
        self.nothing_left();
        let text = error.to_string();
        assert!(text.contains(&*source.to_string_lossy()) && text.contains("was stopped: "), "{text}");
        let IngestError::Exceeded { exceeded, .. } = error else { panic!("{error}") };
        exceeded
    }

    fn nothing_left(&self) {
        for folder in ["tmp", "titles"] {
            let left: Vec<_> = fs::read_dir(self.volume.dir().join(folder)).unwrap().collect();
            assert!(left.is_empty(), "{folder}: {left:?}");
        }
        assert!(self.volume.titles().unwrap().is_empty());
    }
}

#[test]
fn half_a_megabyte_that_becomes_six_hundred_is_stopped_by_default() {
    let bench = Bench::new();
    let source = bench.path("bomb.mkv");
    bombs::matroska(&source, 500_000, 1250);
    let file = fs::metadata(&source).unwrap().len();
    assert!(file < 600_000, "{file}");
    let exceeded = bench.exceeded(&source);
    assert_eq!(exceeded, Exceeded::Output { most: ByteLen((256 << 20) + 64 * file), file: ByteLen(file) });
    assert!(exceeded.to_string().contains("--ffmpeg-output"), "{exceeded}");
}

#[test]
fn ingest_within_output_bound_adds_title() {
    let mut bench = Bench::new();
    let source = bench.path("small.mkv");
    bombs::matroska(&source, 100_000, 50);
    bench.options.bounds.output = Some(ByteLen(4 << 20));
    assert_eq!(bench.exceeded(&source).to_string().matches("4MiB").count(), 1);
    bench.options.bounds.output = Some(ByteLen(6 << 20));
    let title = bench.ingest(&source).unwrap();
    assert!((5_000_000..6 << 20).contains(&title.bytes), "{}", title.bytes);
}

#[test]
fn pictures_that_need_too_much_memory_are_refused_and_ordinary_ones_are_not() {
    let mut bench = Bench::new();
    let source = bench.path("bomb.mov");
    bombs::quicktime(&source, 4096);
    assert!(fs::metadata(&source).unwrap().len() < 100_000);
    let most = ByteLen(96 << 20);
    bench.options.bounds.memory = most;
    let exceeded = bench.exceeded(&source);
    assert_eq!(exceeded, Exceeded::Memory { most });
    assert!(exceeded.to_string().contains("96MiB") && exceeded.to_string().contains("--ffmpeg-memory"));
    let film = bench.path("film.mp4");
    ffmpeg::make(&film, 1, ffmpeg::H264);
    assert_eq!(bench.ingest(&film).unwrap().name, "film");
}

#[test]
fn ffmpeg_beyond_processor_time_limit_is_stopped() {
    let mut bench = Bench::new();
    let source = bench.path("film.mp4");
    ffmpeg::make(&source, 1, ffmpeg::H264);
    let spin = bench.path("ffmpeg");
    // Written by a program of its own: a child forked meanwhile would hold the file open for writing.
    let write = r#"printf '#!/bin/sh\nwhile :; do :; done\n' > "$0" && chmod 755 "$0""#;
    assert!(Command::new("sh").args(["-c", write]).arg(&spin).status().unwrap().success());
    std::os::unix::fs::symlink(which("ffprobe"), bench.path("ffprobe")).unwrap();
    bench.options.ffmpeg = spin;
    bench.options.bounds =
        FfmpegBounds { processor: Some(Duration::from_secs(1)), ..FfmpegBounds::default() };
    let exceeded = bench.exceeded(&source).to_string();
    assert!(exceeded.contains("1s of processor time") && exceeded.contains("--ffmpeg-time"), "{exceeded}");
}

fn which(program: &str) -> PathBuf {
    let output = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// A small file system; `None`, and a printed reason, if mounting is not permitted.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(dir.path()).output();
        let said = match mount {
            Ok(output) if output.status.success() => return Some(Self(dir)),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        eprintln!("skipped: cannot mount a tmpfs: {said}");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(done.is_ok_and(|status| status.success()), "umount {}", self.0.path().display());
    }
}

#[test]
fn ingest_on_small_disk_stops_at_reserve() {
    let Some(disk) = SmallDisk::mount("60m") else { return };
    let mut bench = Bench::new();
    bench.volume = Volume::open_or_create(&disk.0.path().join("store")).unwrap();
    let source = bench.path("bomb.mkv");
    bombs::matroska(&source, 500_000, 1250);
    let exceeded = bench.exceeded(&source);
    let Exceeded::Space { free, reserve, .. } = &exceeded else { panic!("{exceeded}") };
    assert_eq!(*reserve, ByteLen(3 << 20));
    // Detected at the next check, so some space is left.
    assert!(*free < *reserve, "{exceeded}");
    assert!(exceeded.to_string().contains("millrace rm"), "{exceeded}");
}

#[test]
fn ingest_of_playlist_opens_no_other_file_or_server() {
    let bench = Bench::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let url = format!("http://{}/film.ts", server.local_addr().unwrap());
    let other = bench.path("other.ts");
    fs::write(&other, usual_film()).unwrap();
    let other = other.display().to_string();
    let sdp = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 33\n";
    for (number, goal) in [&url, &other, &format!("file:{other}"), "/etc/passwd"].into_iter().enumerate() {
        let playlist = format!(
            "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXT-X-KEY:METHOD=AES-128,URI=\"{goal}\"\n#EXTINF:9,\n{goal}\n#EXT-X-ENDLIST\n"
        );
        let dash = format!(
            "<?xml version=\"1.0\"?>\n<MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" type=\"static\" mediaPresentationDuration=\"PT9S\">\
             <Period><AdaptationSet mimeType=\"video/mp4\"><Representation id=\"1\" bandwidth=\"9\"><BaseURL>{goal}</BaseURL>\
             <SegmentBase/></Representation></AdaptationSet></Period></MPD>\n"
        );
        let concat = format!("ffconcat version 1.0\nfile '{goal}'\nduration 9\n");
        for (kind, text) in [("m3u8", &*playlist), ("dash", &*dash), ("concat", &*concat), ("sdp", sdp)] {
            for ending in ["mp4", "mkv", "ts", "m3u8"] {
                let path = bench.path(&format!("{kind}{number}.{ending}"));
                fs::write(&path, text).unwrap();
                let error = bench.ingest(&path).unwrap_err();
                assert!(matches!(error, IngestError::NotMedia { .. }), "{kind} to {goal}: {error}");
            }
        }
    }
    assert!(server.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it was asked");
    bench.nothing_left();
}

#[test]
fn ingest_of_file_named_like_protocol_reads_that_file() {
    let bench = Bench::new();
    let folder = bench.path("http:");
    fs::create_dir(&folder).unwrap();
    for name in ["concat:a|b.mp4", "-i.mp4", "pipe:0.mp4", "http:/x.mp4"] {
        let path = bench.path(name);
        ffmpeg::make(&bench.path("made.mp4"), 1, ffmpeg::H264);
        fs::rename(bench.path("made.mp4"), &path).unwrap();
        bench.ingest(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn ingest_of_quicktime_reference_reads_no_other_file() {
    let bench = Bench::new();
    let whole = bench.path("whole.mov");
    ffmpeg::make(&whole, 1, ffmpeg::H264);
    let mut bytes = fs::read(&whole).unwrap();
    // "Self-contained" is a flag of each data reference; without it the data lies in the file that is named there.
    let mut references = 0;
    for at in 0..bytes.len() - 12 {
        if &bytes[at..at + 4] == b"dref" {
            let entry = at + 12;
            assert_eq!(bytes[entry + 11], 1, "self-contained");
            bytes[entry + 4..entry + 8].copy_from_slice(b"alis");
            bytes[entry + 11] = 0;
            references += 1;
        }
    }
    assert!(references > 0);
    let file = bench.path("refers.mov");
    fs::write(&file, &bytes).unwrap();
    // Whatever ffmpeg thinks of it, it reads this file or none.
    match bench.ingest(&file) {
        Ok(title) => assert_eq!(title.name, "refers"),
        Err(error) => assert!(error.to_string().contains("refers.mov"), "{error}"),
    }
}
