//! Helpers that the tests of derived titles share: media whose pictures carry their numbers, and
//! the properties required of a derived title.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;
use millrace_make::ingest::{IngestOptions, ingest};
use millrace_make::trick::{SpeedResult, TrickError, make};
use millrace_store::volume::{Derived, MediaReader, TitleInfo, Volume};
use millrace_ts::{Analyser, AnalyserOptions, AnalysisReport, Check, Severity};

const WIDTH: usize = 320;
const HEIGHT: usize = 96;
/// Frames a second.
pub const FPS: u64 = 25;
const FRAME_TICKS: i64 = 90_000 / FPS as i64;
/// The filter of ffmpeg that writes a picture's number into its upper third, in 16 blocks: white is 1, the lowest bit on the left.
pub const NUMBER: &str =
    "geq=lum='if(lt(Y,32),16+219*mod(floor(N/pow(2,floor(X/20))),2),lum(X,Y))':cb=128:cr=128";

/// x264 with a key picture each second and nothing between them.
pub const X264: &[&str] = &[
    "-c:v",
    "libx264",
    "-preset",
    "veryfast",
    "-g",
    "25",
    "-keyint_min",
    "25",
    "-sc_threshold",
    "0",
    "-bf",
    "3",
];

/// Runs ffmpeg; panics with its messages if it fails, or prints any although it should not.
pub fn ffmpeg(args: &[&str]) -> Vec<u8> {
    let output =
        Command::new("ffmpeg").args(["-nostdin", "-v", "error"]).args(args).stdin(Stdio::null()).output();
    let output =
        output.unwrap_or_else(|e| panic!("ffmpeg: {e}; these tests need it: apt-get install ffmpeg"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "ffmpeg {args:?}: {said}");
    output.stdout
}

/// Makes a film of `secs` seconds whose pictures carry their number ([`NUMBER`]). Noise gives it a
/// rate as films have. `more` comes before the name of the file.
pub fn film(out: &Path, secs: u64, more: &[&str]) {
    let picture = format!("testsrc2=size={WIDTH}x{HEIGHT}:rate={FPS}:duration={secs}");
    let numbered = format!("noise=alls=15:allf=t,{NUMBER}");
    let source = ["-y", "-f", "lavfi", "-i", &picture, "-vf", &numbered, "-pix_fmt", "yuv420p"];
    ffmpeg(&[&source[..], more, &[out.to_str().unwrap()]].concat());
}

/// The numbers of a stream's pictures as ffmpeg decodes them, in the order of showing.
pub fn numbers(stream: &Path) -> Vec<u64> {
    let path = stream.to_str().unwrap();
    let gray = [
        "-i",
        path,
        "-map",
        "0:v",
        "-f",
        "rawvideo",
        "-pix_fmt",
        "gray",
        "-fps_mode",
        "passthrough",
        "-enc_time_base",
        "1:90000",
        "-",
    ];
    let pictures = ffmpeg(&gray);
    let block = |picture: &[u8], i: usize| u64::from(picture[16 * WIDTH + 20 * i + 10] > 125) << i;
    pictures.chunks(WIDTH * HEIGHT).map(|picture| (0..16).map(|i| block(picture, i)).sum()).collect()
}

/// Returns the presentation time stamps of a stream's pictures and whether these are key pictures,
/// as ffprobe reports them, in transmission order.
pub fn packets(stream: &Path) -> Vec<(i64, bool)> {
    let args = ["-v", "error", "-select_streams", "v", "-show_entries", "packet=pts,flags", "-of", "csv=p=0"];
    let output = Command::new("ffprobe").args(args).arg(stream).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let packets = lines.lines().filter_map(|line| line.split_once(','));
    packets.map(|(pts, flags)| (pts.parse().unwrap(), flags.starts_with('K'))).collect()
}

/// The values of a field of the headers, as ffmpeg reads them.
pub fn headers(stream: &Path, field: &str) -> Vec<u64> {
    let args = ["-c", "copy", "-bsf:v", "trace_headers", "-f", "null", "-"];
    let mut ffmpeg = Command::new("ffmpeg");
    let output = ffmpeg.args(["-nostdin", "-v", "verbose", "-i"]).arg(stream).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = said.lines().filter(|line| line.split_whitespace().any(|word| word == field));
    lines.filter_map(|line| line.rsplit(" = ").next()?.parse().ok()).collect()
}

/// The numbers of the pictures that ffprobe calls key pictures.
pub fn key_numbers(stream: &Path) -> Vec<u64> {
    let packets = packets(stream);
    let first = packets.iter().map(|packet| packet.0).min().unwrap();
    packets.iter().filter(|packet| packet.1).map(|packet| (packet.0 - first).cast_unsigned() / 3600).collect()
}

/// A store with one film in it.
pub struct Fixture {
    pub dir: tempfile::TempDir,
    pub volume: Volume,
    pub parent: TitleInfo,
}

impl Fixture {
    pub fn new(secs: u64, more: &[&str]) -> Self {
        Self::changed(secs, more, |_| ())
    }

    /// The same, with the film changed before it is added.
    pub fn changed(secs: u64, more: &[&str], change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("film.ts");
        film(&path, secs, more);
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let volume = Volume::open_or_create(&dir.path().join("store")).unwrap();
        let parent = add(&volume, &path);
        Self { dir, volume, parent }
    }

    pub fn make(&self, speeds: &str) -> Result<Vec<SpeedResult>, TrickError> {
        make_of(&self.volume, &self.parent, speeds)
    }

    /// Makes one speed; the title and a file with its data.
    pub fn one(&self, speed: &str) -> (TitleInfo, std::path::PathBuf) {
        let made = self.make(speed).unwrap().remove(0);
        let info = made.result.unwrap().unwrap();
        let path = self.dir.path().join(format!("{}.ts", info.name));
        std::fs::write(&path, media(&self.volume, &info)).unwrap();
        (info, path)
    }

    /// Makes one speed and checks all that must hold of it; returns its pictures.
    pub fn checked(&self, speed: &str) -> Vec<u64> {
        let (info, path) = self.one(speed);
        check(&self.volume, &self.parent, &info, &path)
    }
}

pub fn add(volume: &Volume, path: &Path) -> TitleInfo {
    ingest(volume, path, &IngestOptions::default(), &mut |_| {}).unwrap()
}

pub fn make_of(volume: &Volume, parent: &TitleInfo, speeds: &str) -> Result<Vec<SpeedResult>, TrickError> {
    let scales: Vec<Scale> = speeds.split(',').map(|speed| speed.parse().unwrap()).collect();
    make(volume, parent, &scales, &AtomicBool::new(false), &mut |_| {})
}

pub fn media(volume: &Volume, info: &TitleInfo) -> Vec<u8> {
    let mut media = vec![0; info.bytes as usize];
    MediaReader::open(volume, info.id).unwrap().read_exact(0, &mut media).unwrap();
    media
}

/// The parent's time at which a picture of this number is shown.
pub fn shown_at(number: u64) -> MediaTicks {
    MediaTicks(number * FRAME_TICKS as u64)
}

/// All that must hold of a derived title: decodes without a word, right times, right order, a sound stream, not above the parent's
/// peak rate. Returns its pictures, repetitions left out.
pub fn check(volume: &Volume, parent: &TitleInfo, info: &TitleInfo, path: &Path) -> Vec<u64> {
    let derived: Derived = info.derived.unwrap();
    assert_eq!(info.name, format!("{}@{}", parent.name, derived.scale()));
    check_stream(volume, parent, info);
    let stream = Stream::read(&std::fs::read(path).unwrap());
    let exact = derived.duration(parent.duration);
    assert!(info.duration.0.abs_diff(exact.0) <= 3600, "{} for {exact}", info.duration);
    let mut pictures = numbers(path);
    let sent = packets(path);
    let mut stamps: Vec<i64> = sent.iter().map(|packet| packet.0).collect();
    stamps.sort_unstable();
    assert_eq!(stream.accesses, sent.iter().filter(|packet| packet.1).count(), "key pictures are announced");
    assert_eq!(pictures.len(), stamps.len(), "each picture that is sent is shown: {pictures:?}");
    let own = |number: u64| derived.own_time(shown_at(number), parent.duration).0.cast_signed();
    for (i, (number, stamp)) in pictures.iter().zip(&stamps).enumerate() {
        if i > 0 && pictures[i - 1] == *number {
            let apart = stamp - stamps[i - 1];
            assert!(apart > 31_500, "picture {number} is shown again after {apart} ticks; 63,000 are enough");
            continue;
        }
        let (expected, is) = (own(*number) - own(pictures[0]), stamp - stamps[0]);
        // The parent's first stamp is a whole number of ticks from its clock, its duration need not be of frames.
        assert!(expected.abs_diff(is) <= 2, "picture {number}: {is} ticks behind the first, not {expected}");
    }
    pictures.dedup();
    let index = &volume.open_title(info.id, 1316).unwrap().index;
    for &number in &pictures {
        let start = derived.start_at(index, shown_at(number), parent.duration);
        let late = own(number) - start.time.0.cast_signed();
        let is_first = start.packet == 0;
        assert!(
            late >= 0 && (late <= 90_000 * 5 / 2 || is_first),
            "picture {number}: playing starts {late} ticks before"
        );
    }
    pictures
}

/// Checks the packets of a derived title: no fault that its parent does not have, clock and tables
/// in time, not above the parent's peak rate.
pub fn check_stream(volume: &Volume, parent: &TitleInfo, info: &TitleInfo) {
    let bytes = media(volume, info);
    let (report, of_parent) = (analyse(&bytes), analyse(&media(volume, parent)));
    let is_new = |check: &&Check| check.severity() == Severity::Fault && of_parent.count(**check) == 0;
    let new: Vec<_> = Check::ALL.iter().filter(is_new).filter(|check| report.count(**check) > 0).collect();
    assert!(new.is_empty(), "{} has faults that its parent has not: {new:?}\n{report}", info.name);
    Stream::read(&bytes).check(parent.peak_rate.0);
    assert!(info.peak_rate <= parent.peak_rate, "{} above {}", info.peak_rate, parent.peak_rate);
}

/// Returns the report of the transport stream analyser, the decoder's buffers included.
pub fn analyse(stream: &[u8]) -> AnalysisReport {
    let mut analyser = Analyser::new(AnalyserOptions { buffers: true, ..AnalyserOptions::default() });
    analyser.push(stream);
    analyser.finish()
}

/// Guarantees of a derived title beyond being a transport stream without faults: the intervals of
/// clock and tables, and the amount per second.
pub struct Stream {
    /// Packet number and value in 27 MHz ticks of each clock value.
    clock: Vec<(usize, i64)>,
    /// Packet numbers of the first packets of tables, by PID.
    tables: BTreeMap<u16, Vec<usize>>,
    /// PES packets that do not say how long they are.
    endless: usize,
    /// Packets with random_access_indicator.
    accesses: usize,
    packets: usize,
}

impl Stream {
    pub fn read(bytes: &[u8]) -> Self {
        let mut stream = Self {
            clock: vec![],
            tables: BTreeMap::new(),
            endless: 0,
            accesses: 0,
            packets: bytes.len() / 188,
        };
        for (number, packet) in bytes.chunks(188).enumerate() {
            let pid = u16::from(packet[1] & 0x1f) << 8 | u16::from(packet[2]);
            let (starts, has_field) = (packet[1] & 0x40 != 0, packet[3] & 0x20 != 0);
            let payload = &packet[if has_field { 5 + usize::from(packet[4]) } else { 4 }..];
            stream.endless += usize::from(starts && payload.starts_with(&[0, 0, 1, 0xe0, 0, 0]));
            stream.accesses += usize::from(has_field && packet[4] > 0 && packet[5] & 0x40 != 0);
            if has_field && packet[4] > 0 && packet[5] & 0x10 != 0 {
                let base = packet[6..11].iter().fold(0i64, |value, byte| value << 8 | i64::from(*byte)) >> 7;
                stream.clock.push((number, base * 300));
            } else if starts && !has_field && packet[4] == 0 && packet[6] == 0xb0 {
                stream.tables.entry(pid).or_default().push(number);
            }
        }
        stream
    }

    /// When a packet leaves, in 27 MHz ticks, by the line between the clock values around it.
    fn time(&self, packet: usize) -> i64 {
        let after = self.clock.partition_point(|(at, _)| *at <= packet).clamp(1, self.clock.len() - 1);
        let ((a, from), (b, to)) = (self.clock[after - 1], self.clock[after]);
        from + (to - from) * (packet as i64 - a as i64) / (b as i64 - a as i64)
    }

    /// Checks the clock once in 40 ms, tables once in 100 ms (ETSI TS 101 154), and at most `peak`
    /// bits a second.
    fn check(&self, peak: u64) {
        assert_eq!(self.clock[0].0, 0, "the clock comes first");
        assert!(self.clock.windows(2).all(|pair| pair[1].1 - pair[0].1 <= 27_000_000 / 25));
        assert_eq!((self.tables.len(), self.endless), (2, 0));
        for places in self.tables.values() {
            let ends = std::iter::once(&0).chain(places).zip(places.iter().chain([&self.packets]));
            ends.for_each(|(a, b)| assert!(self.time(*b) - self.time(*a) <= 2_700_000, "tables at {a}, {b}"));
        }
        // All windows of a second between two clock values.
        for (first, (packet, from)) in self.clock.iter().enumerate() {
            let end = self.clock[first..].iter().find(|(_, to)| to - from >= 27_000_000);
            let Some((end, _)) = end else { break };
            assert!(((end - packet) * 188 * 8) as u64 <= peak, "{} packets in a second", end - packet);
        }
    }
}
