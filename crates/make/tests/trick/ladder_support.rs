//! Helpers that the ladder tests share: films whose pictures carry their numbers, and the
//! properties required of a rung and of any sequence of rungs.
#![allow(unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_make::ingest::IngestOptions;
use millrace_make::ladder::{LadderError, LadderMade, LadderOptions, LadderProgress, make};
use millrace_store::volume::{MediaReader, TitleInfo, Volume};
use millrace_ts::{Analyser, AnalyserOptions, AnalysisReport, AnalysisVerdict};

const WIDTH: usize = 320;
const HEIGHT: usize = 180;
/// Writes a picture's number into its upper part, in 16 blocks: white is 1, the lowest bit on the left.
const NUMBER: &str =
    "geq=lum='if(lt(Y,32),16+219*mod(floor(N/pow(2,floor(X/20))),2),lum(X,Y))':cb=128:cr=128";

/// Runs ffmpeg; panics with its messages if it fails or prints any.
pub fn ffmpeg(args: &[&str]) -> Vec<u8> {
    let output =
        Command::new("ffmpeg").args(["-nostdin", "-v", "warning"]).args(args).stdin(Stdio::null()).output();
    let output =
        output.unwrap_or_else(|e| panic!("ffmpeg: {e}; these tests need it: apt-get install ffmpeg"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "ffmpeg {args:?}: {said}");
    output.stdout
}

/// Makes a film of `pictures` pictures at this rate ("25", "30000/1001"), with `sounds` tones.
pub fn film(path: &Path, pictures: u64, rate: &str, sounds: usize) {
    let source = format!("testsrc2=size={WIDTH}x{HEIGHT}:rate={rate}");
    let mut args = vec!["-y", "-f", "lavfi", "-i", &source];
    let tones: Vec<String> =
        (0..sounds).map(|n| format!("sine=frequency={}:beep_factor=3", 440 * (n + 1))).collect();
    tones.iter().for_each(|tone| args.extend(["-f", "lavfi", "-i", tone]));
    let count = pictures.to_string();
    args.extend(["-vf", NUMBER, "-frames:v", &count, "-shortest", "-map", "0:v"]);
    let maps: Vec<String> = (1..=sounds).map(|n| format!("{n}:a")).collect();
    maps.iter().for_each(|map| args.extend(["-map", map]));
    args.extend(["-metadata:s:a:0", "language=nor", "-c:v", "libx264", "-preset", "ultrafast", "-crf", "12"]);
    args.extend(["-pix_fmt", "yuv420p", "-c:a", "flac", path.to_str().unwrap()]);
    ffmpeg(&args);
}

/// A film and a store beside it.
pub struct Fixture {
    pub dir: tempfile::TempDir,
    pub path: PathBuf,
    pub volume: Volume,
    pub options: LadderOptions,
}

impl Fixture {
    pub fn new(pictures: u64, rate: &str, sounds: usize, list: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("film.mkv");
        film(&path, pictures, rate, sounds);
        let volume = Volume::open_or_create(&dir.path().join("store")).unwrap();
        let preset = "ultrafast".to_owned();
        let options =
            LadderOptions { preset, ..LadderOptions::new(IngestOptions::default(), list.parse().unwrap()) };
        Self { dir, path, volume, options }
    }

    pub fn make(&self, tell: &mut dyn FnMut(&LadderProgress)) -> Result<LadderMade, LadderError> {
        make(&self.volume, &self.path, &self.options, tell)
    }

    /// Returns the rungs, best first: the title of each, and its bytes from each access point to
    /// the next.
    pub fn rungs(&self) -> Vec<Rung> {
        let LadderMade { title, renditions, .. } = self.make(&mut |_| ()).unwrap_or_else(|e| panic!("{e}"));
        std::iter::once(title).chain(renditions).map(|info| Rung::read(&self.volume, info)).collect()
    }

    /// Checks the required properties of a stream assembled from rungs: nothing is wrong with it,
    /// each picture and all audio is there, and ffmpeg reports nothing. Returns a hash of the
    /// audio.
    pub fn check(&self, stream: &[u8], pictures: u64, sounds: usize, what: &str) -> Vec<u8> {
        let report = analyse(stream);
        assert_eq!(report.verdict, AnalysisVerdict::Clean, "{what}: {report}");
        let path = self.dir.path().join("row.ts");
        std::fs::write(&path, stream).unwrap();
        assert_eq!(numbers(&path), (0..pictures).collect::<Vec<_>>(), "{what}");
        if sounds == 0 {
            return Vec::new();
        }
        let path = path.to_str().unwrap();
        ffmpeg(&["-i", path, "-map", "0:a", "-f", "streamhash", "-"])
    }
}

/// One rung.
pub struct Rung {
    pub info: TitleInfo,
    /// From each access point to the next.
    pub groups: Vec<Vec<u8>>,
    /// When they are sent.
    pub times: Vec<u64>,
}

impl Rung {
    fn read(volume: &Volume, info: TitleInfo) -> Self {
        let mut bytes = vec![0; info.bytes as usize];
        MediaReader::open(volume, info.id).unwrap().read_exact(0, &mut bytes).unwrap();
        let index = volume.open_title(info.id, 1316).unwrap().index;
        let points = index.access_points();
        let starts: Vec<usize> = points.iter().map(|point| point.packet as usize * 1316).collect();
        let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
        let groups = starts.iter().zip(ends).map(|(&from, to)| bytes[from..to].to_vec()).collect();
        Self { info, groups, times: points.iter().map(|point| point.time.0).collect() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.groups.concat()
    }
}

/// Returns the report of the transport stream analyser, the decoder's buffers included.
pub fn analyse(stream: &[u8]) -> AnalysisReport {
    let mut analyser = Analyser::new(AnalyserOptions { buffers: true, ..AnalyserOptions::default() });
    analyser.push(stream);
    analyser.finish()
}

/// The numbers of a stream's pictures, in the order of showing.
fn numbers(stream: &Path) -> Vec<u64> {
    let path = stream.to_str().unwrap();
    let scale = format!("scale={WIDTH}:{HEIGHT}:flags=area");
    let raw =
        ["-map", "0:v", "-vf", &scale, "-f", "rawvideo", "-pix_fmt", "gray", "-fps_mode", "passthrough"];
    let pictures = ffmpeg(&[&["-i", path][..], &raw, &["-enc_time_base", "1:90000", "-"]].concat());
    let block = |picture: &[u8], i: usize| u64::from(picture[16 * WIDTH + 20 * i + 10] > 125) << i;
    pictures.chunks(WIDTH * HEIGHT).map(|picture| (0..16).map(|i| block(picture, i)).sum()).collect()
}
