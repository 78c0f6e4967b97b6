//! Checks titles that ffmpeg made from containers: a clock without gaps, access points that can be
//! decoded, layouts and audio times. The analyser and ffmpeg examine the stored titles.

use std::path::Path;

use crate::ingest_support::ffmpeg;
use millrace_make::ingest::{IngestOptions, Sandbox, WebAudio, ingest};
use millrace_make::pictures;
use millrace_store::pictures::PictureFiles;
use millrace_store::volume::{TitleFiles, TitleInfo, Volume};
use millrace_ts::{Analyser, AnalyserOptions, AnalysisReport, Check};
use tempfile::TempDir;

/// A title, and where it lies.
struct Stored {
    dir: TempDir,
    volume: Volume,
    info: TitleInfo,
    files: TitleFiles,
}

/// Makes a file by ffmpeg.
fn make(path: &Path, args: &[&str]) {
    ffmpeg::run("ffmpeg", &[&["-nostdin", "-v", "error"], args, &[path.to_str().unwrap()]].concat());
}

/// A file that ffmpeg makes with these arguments, taken in.
fn stored(name: &str, args: &[&str]) -> Stored {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    make(&path, args);
    take(dir, &path, WebAudio::Never)
}

/// The same of pictures and audio that are made apart, so that the file is as well interleaved as one can be.
fn stored_of_both(name: &str, pictures: &[&str], audio: &[&str], container: &[&str]) -> Stored {
    let dir = tempfile::tempdir().unwrap();
    let [v, a, path] = ["v.mp4", "a.m4a", name].map(|name| dir.path().join(name));
    make(&v, &[pictures, &X264].concat());
    make(&a, &[audio, &["-c:a", "aac", "-b:a", "64k"]].concat());
    let inputs =
        ["-i", v.to_str().unwrap(), "-i", a.to_str().unwrap(), "-map", "0", "-map", "1", "-c", "copy"];
    make(&path, &[&inputs[..], container].concat());
    take(dir, &path, WebAudio::Never)
}

fn take(dir: TempDir, path: &Path, web_audio: WebAudio) -> Stored {
    let volume = Volume::open_or_create(&dir.path().join("store")).unwrap();
    let options = IngestOptions { web_audio, ..IngestOptions::default() };
    let info = ingest(&volume, path, &options, &mut |_| {}).unwrap();
    let files = volume.open_title(info.id, 1316).unwrap();
    Stored { dir, volume, info, files }
}

impl Stored {
    fn data(&self) -> &Path {
        &self.files.data_path
    }

    fn report(&self) -> AnalysisReport {
        let mut analyser = Analyser::new(AnalyserOptions::default());
        analyser.push(&std::fs::read(self.data()).unwrap());
        analyser.finish()
    }

    /// Asserts that clock and tables have no errors, and that decoding can start at every marked
    /// point.
    fn assert_clean(&self) -> AnalysisReport {
        let report = self.report();
        for check in
            [Check::PcrRepetition, Check::PcrDiscontinuity, Check::Pid, Check::AccessPoint, Check::DecodeTime]
        {
            assert_eq!(report.count(check), 0, "{}: {report}", check.id());
        }
        assert_eq!(report.count(Check::Continuity), 0, "{report}");
        report
    }

    /// Each access point of the index, decoded from there to the next, gives a whole picture first, without an error.
    fn assert_access_points_decode(&self) {
        let data = std::fs::read(self.data()).unwrap();
        let part = self.dir.path().join("part.ts");
        let points = self.files.index.access_points();
        for (at, point) in points.iter().enumerate() {
            let from = point.packet as usize * 1316;
            let to = points.get(at + 1).map_or(data.len(), |next| next.packet as usize * 1316);
            std::fs::write(&part, &data[from..to]).unwrap();
            let path = part.to_str().unwrap();
            let args = ["-nostdin", "-v", "error", "-i", path, "-map", "0:v", "-f", "framemd5", "-"];
            let output = ffmpeg::run("ffmpeg", &args);
            let frames =
                String::from_utf8(output.stdout).unwrap().lines().filter(|l| !l.starts_with('#')).count();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                frames > 0 && !said.contains("PPS") && !said.contains("decode"),
                "{at}: {frames} frames, {said}"
            );
        }
    }

    fn codecs(&self) -> Vec<&str> {
        self.info.streams.iter().map(|stream| stream.codec.as_str()).collect()
    }

    fn has_poster(&self) {
        let files = PictureFiles::of(&self.dir.path().join("store"));
        let no = std::sync::atomic::AtomicBool::new(false);
        let made = pictures::make(
            &self.volume,
            &self.info,
            Path::new("ffmpeg"),
            Sandbox::Auto,
            &files,
            &no,
            &mut || (),
        )
        .unwrap();
        assert!(made.poster.len() > 1000 && made.sheet.len() > 500);
        // Each tile of the sheet is another picture.
        let count = made.about.times_ms.len();
        assert!(count >= 2);
        let sheet = self.dir.path().join("sheet.jpg");
        std::fs::write(&sheet, &made.sheet).unwrap();
        let tile = |at: usize| {
            let crop = format!("crop=160:90:{}:0", 160 * at);
            let args = [
                "-nostdin",
                "-v",
                "error",
                "-i",
                sheet.to_str().unwrap(),
                "-vf",
                &crop,
                "-f",
                "rawvideo",
                "-",
            ];
            ffmpeg::run("ffmpeg", &args).stdout
        };
        let tiles: Vec<_> = (0..count).map(tile).collect();
        assert!(tiles.iter().all(|tile| tile.iter().max() > Some(&60)), "a tile is black");
        assert!((0..count).all(|at| !tiles[..at].contains(&tiles[at])), "two tiles are the same");
    }
}

const PICTURES_10_S: [&str; 4] = ["-f", "lavfi", "-i", "testsrc2=s=320x180:r=25:d=10"];
const X264: [&str; 6] = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p"];

#[test]
fn audio_longer_than_pictures_is_paced_in_real_time() {
    let tone = ["-f", "lavfi", "-i", "sine=d=60"];
    let film = stored_of_both("long.mkv", &PICTURES_10_S, &tone, &[]);
    let seconds = film.info.duration.as_secs_f64();
    assert!((59.7..60.2).contains(&seconds), "{seconds}");
    film.assert_clean();
    // It can be sought in where no picture comes any more.
    let points = film.files.index.access_points();
    let near = |time: f64| points.iter().any(|point| (point.time.as_secs_f64() - time).abs() < 2.5);
    assert!((12..60).all(|second| near(f64::from(second))), "{points:?}");
    assert!(film.files.index.end().as_secs_f64() < 61.0);
    // The same film as MPEG-TS that another muxer has made, with the clock on the pictures.
    let film = stored_of_both("long.ts", &PICTURES_10_S, &tone, &[]);
    let seconds = film.info.duration.as_secs_f64();
    assert!((58.5..60.5).contains(&seconds), "{seconds}");
    assert!((59.5..61.0).contains(&film.files.index.end().as_secs_f64()), "{:?}", film.files.index.end());
}

#[test]
fn audio_that_begins_before_the_pictures_is_paced_in_real_time() {
    let inputs = [
        "-itsoffset",
        "15",
        "-f",
        "lavfi",
        "-i",
        "testsrc2=s=320x180:r=25:d=5",
        "-f",
        "lavfi",
        "-i",
        "sine=d=20",
    ];
    let film = stored("late.mkv", &[&inputs[..], &X264, &["-c:a", "aac", "-b:a", "64k"]].concat());
    let seconds = film.info.duration.as_secs_f64();
    assert!((19.7..20.2).contains(&seconds), "{seconds}");
    film.assert_clean();
}

#[test]
fn sparse_pictures_have_a_clock_throughout() {
    for (rate, audio) in [("1/4", true), ("1/4", false), ("5", true)] {
        let pictures = format!("testsrc2=s=640x360:r={rate}:d=24");
        let mut args = vec!["-f", "lavfi", "-i", &pictures];
        if audio {
            args.extend(["-f", "lavfi", "-i", "sine=d=24", "-c:a", "aac"]);
        }
        args.extend(X264);
        let film = stored("slides.mp4", &args);
        film.assert_clean();
        let seconds = film.info.duration.as_secs_f64();
        assert!((20.0..24.3).contains(&seconds), "{rate}: {seconds}");
    }
}

#[test]
fn cover_as_an_ordinary_stream_has_a_clock_throughout() {
    let picture = ["-f", "lavfi", "-i", "testsrc2=s=320x320:r=1:d=1"];
    let film = stored_of_both("song.mkv", &picture, &["-f", "lavfi", "-i", "sine=d=30"], &[]);
    film.assert_clean();
    let seconds = film.info.duration.as_secs_f64();
    assert!((29.7..30.3).contains(&seconds), "{seconds}");
    // Segments are cut at access points: without any behind the picture, HLS would have one of 30 s.
    let points = film.files.index.access_points();
    let near = |time: f64| points.iter().any(|point| (point.time.as_secs_f64() - time).abs() < 2.5);
    assert!((0..30).all(|second| near(f64::from(second))), "{points:?}");
}

#[test]
fn audio_alone_has_a_clock_throughout() {
    let film = stored("song.mka", &["-f", "lavfi", "-i", "sine=d=20", "-c:a", "aac", "-b:a", "24k"]);
    film.assert_clean();
    let seconds = film.info.duration.as_secs_f64();
    assert!((19.7..20.3).contains(&seconds), "{seconds}");
}

#[test]
fn open_groups_of_h264_can_be_decoded_at_each_access_point() {
    for (name, aud) in [("open.mp4", 0), ("open.mkv", 1)] {
        let params = format!("open-gop=1:bframes=3:keyint=50:scenecut=0:aud={aud}");
        let film = stored(name, &[&PICTURES_10_S[..], &X264, &["-x264-params", &params]].concat());
        film.assert_clean();
        assert_eq!(film.files.index.access_points().len(), 5);
        film.assert_access_points_decode();
        film.has_poster();
    }
}

#[test]
fn h265_with_default_settings_has_access_points_and_a_poster() {
    let pictures = ["-f", "lavfi", "-i", "testsrc2=s=320x180:r=25:d=24"];
    let x265 = ["-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none"];
    let film = stored("open.mkv", &[&pictures[..], &x265].concat());
    film.assert_clean();
    assert_eq!(film.files.index.access_points().len(), 3);
    film.assert_access_points_decode();
    film.has_poster();
}

#[test]
fn mpeg_2_without_repeated_headers_can_be_decoded_at_each_access_point() {
    let dir = tempfile::tempdir().unwrap();
    let mkv = dir.path().join("film.mkv");
    let mpeg2 = ["-c:v", "mpeg2video", "-g", "25", "-flags", "+global_header", "-bf", "2"];
    make(&mkv, &[&PICTURES_10_S[..], &mpeg2].concat());
    let film = take(dir, &mkv, WebAudio::Never);
    film.assert_clean();
    assert!(film.files.index.access_points().len() >= 9);
    film.assert_access_points_decode();
}

#[test]
fn transport_stream_with_bare_pictures_lists_those_that_can_be_decoded_and_notes_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mkv, ts) = (dir.path().join("open.mkv"), dir.path().join("open.ts"));
    let params = ["-x264-params", "open-gop=1:bframes=3:keyint=50:scenecut=0"];
    make(&mkv, &[&PICTURES_10_S[..], &X264, &params].concat());
    make(&ts, &["-i", mkv.to_str().unwrap(), "-c", "copy", "-f", "mpegts"]);
    let film = take(dir, &ts, WebAudio::Never);
    assert_eq!(std::fs::read(film.data()).unwrap(), std::fs::read(&ts).unwrap(), "byte for byte");
    assert_eq!(film.files.index.access_points().len(), 1);
    assert_eq!(film.report().count(Check::AccessPoint), 4);
    let noted = film.info.notes.iter().any(|note| note.contains("4 pictures") && note.contains("dump_extra"));
    assert!(noted, "{:?}", film.info.notes);
}

#[test]
fn transcoded_audio_has_a_layout_with_a_number() {
    for (layout, channels, expected) in
        [("5.1(side)", 6, 6), ("quad", 4, 5), ("2.1", 3, 2), ("6.1", 7, 7), ("7.1", 8, 7)]
    {
        let source = format!("aevalsrc={}:c={layout}:d=2", vec!["0.1*sin(2764*t)"; channels].join("|"));
        let film = stored("film.mkv", &["-f", "lavfi", "-i", &source, "-c:a", "flac"]);
        assert_eq!(film.codecs(), ["AAC"], "{layout}");
        let aac = film.dir.path().join("out.aac");
        make(&aac, &["-i", film.data().to_str().unwrap(), "-c", "copy"]);
        let bytes = std::fs::read(&aac).unwrap();
        assert_eq!((bytes[2] & 1) << 2 | bytes[3] >> 6, expected, "{layout}");
    }
}

#[test]
fn audio_that_browsers_do_not_play_gets_aac_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("film.mkv");
    let tone = ["-f", "lavfi", "-i", "sine=d=10", "-map", "0:v", "-map", "1:a", "-map", "1:a"];
    let audio = [
        "-c:a:0",
        "ac3",
        "-c:a:1",
        "aac",
        "-metadata:s:a:0",
        "language=ger",
        "-metadata:s:a:1",
        "language=eng",
    ];
    make(&path, &[&PICTURES_10_S[..], &tone, &X264, &audio].concat());
    let film = take(dir, &path, WebAudio::Auto);
    assert_eq!(film.codecs(), ["H.264", "AC-3", "AAC", "AAC"]);
    let languages: Vec<_> = film.info.streams.iter().map(|stream| stream.language.as_deref()).collect();
    assert_eq!(languages, [None, Some("ger"), Some("eng"), Some("ger")]);
    film.assert_clean();
    // Both begin at the same time: priming of the encoder is no delay.
    let first = |stream: &str| -> f64 {
        let args = ["-select_streams", stream, "-read_intervals", "%+#1", "-show_entries", "packet=pts_time"];
        ffmpeg::probe(film.data(), &args).trim_end_matches(',').parse().unwrap()
    };
    assert!((first("a:0") - first("a:2")).abs() < 0.025, "{} and {}", first("a:0"), first("a:2"));
}

#[test]
fn transport_stream_gets_aac_only_with_the_setting_always() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("film.ts");
    let audio = ["-f", "lavfi", "-i", "sine=d=10", "-c:a", "mp2", "-f", "mpegts"];
    make(&path, &[&PICTURES_10_S[..], &audio, &X264].concat());
    let film = take(dir, &path, WebAudio::Auto);
    assert_eq!(film.codecs(), ["H.264", "MP2"]);
    assert_eq!(std::fs::read(film.data()).unwrap(), std::fs::read(&path).unwrap(), "byte for byte");
    let film = take(film.dir, &path, WebAudio::Always);
    assert_eq!(film.codecs(), ["H.264", "MP2", "AAC"]);
}

#[test]
fn video_with_rotation_is_stored_turned() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, turned) = (dir.path().join("plain.mp4"), dir.path().join("turned.mp4"));
    make(&plain, &[&PICTURES_10_S[..], &X264].concat());
    make(&turned, &["-i", plain.to_str().unwrap(), "-c", "copy", "-metadata:s:v", "rotate=90"]);
    let film = take(dir, &turned, WebAudio::Never);
    let size = ffmpeg::probe(film.data(), &["-show_entries", "stream=width,height"]);
    assert_eq!(size.lines().next(), Some("180,320"));
    assert!(film.info.notes.iter().any(|note| note.contains("turned")), "{:?}", film.info.notes);
}

#[test]
fn interlaced_video_that_is_transcoded_has_no_combs() {
    let interlaced = [
        "-vf",
        "tinterlace=interleave_top,fieldorder=bff,scale=720:576",
        "-c:v",
        "dvvideo",
        "-pix_fmt",
        "yuv420p",
    ];
    let pictures = ["-f", "lavfi", "-i", "testsrc2=s=720x576:r=50:d=4"];
    let film = stored("tape.avi", &[&pictures[..], &interlaced].concat());
    assert!(film.info.notes.iter().any(|note| note.contains("interlaced")), "{:?}", film.info.notes);
    let frames = ffmpeg::frame_md5(film.data(), "0:v").len();
    assert!((195..=201).contains(&frames), "{frames} pictures of 100 with two fields");
}

#[test]
fn variable_frame_rate_keeps_its_pictures_and_times() {
    // A time base of 1/1000, as browsers record, must not become 1000 pictures a second.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("screen.webm");
    let vp8 = [
        "-vf",
        "select='not(mod(n,7))+not(mod(n,5))'",
        "-vsync",
        "vfr",
        "-c:v",
        "libvpx",
        "-deadline",
        "realtime",
    ];
    make(&path, &[&PICTURES_10_S[..], &vp8].concat());
    let film = take(dir, &path, WebAudio::Never);
    assert_eq!(ffmpeg::frame_md5(film.data(), "0:v").len(), ffmpeg::frame_md5(&path, "0:v").len());
    film.assert_clean();
}

#[test]
fn pictures_before_the_edit_list_are_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, cut) = (dir.path().join("whole.mp4"), dir.path().join("cut.mp4"));
    let tone = ["-f", "lavfi", "-i", "sine=d=10", "-c:a", "aac", "-g", "50", "-bf", "2"];
    make(&whole, &[&PICTURES_10_S[..], &tone, &X264].concat());
    make(&cut, &["-ss", "3.2", "-i", whole.to_str().unwrap(), "-c", "copy"]);
    let shown = ffmpeg::frame_md5(&cut, "0:v").len();
    let film = take(dir, &cut, WebAudio::Never);
    let pictures = ffmpeg::frame_md5(film.data(), "0:v").len();
    assert!(shown < 175 && pictures == shown, "{pictures} pictures of {shown}");
    assert!(film.info.notes.iter().any(|note| note.contains("edit list")), "{:?}", film.info.notes);
    let first = |stream: &str| -> f64 {
        ffmpeg::probe(film.data(), &["-select_streams", stream, "-show_entries", "stream=start_time"])
            .lines()
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!((first("v:0") - first("a:0")).abs() < 0.025, "{} and {}", first("v:0"), first("a:0"));
    film.assert_clean();
}

/// Shows 2 s from the beginning and 3 s from between two key pictures on.
fn join_two_pieces(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let places: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, w)| w == b"elst").map(|(at, _)| at).collect();
    assert_eq!(places.len(), 2, "pictures and sound");
    for at in places.into_iter().rev() {
        let track = bytes[..at].windows(4).rposition(|w| w == b"trak").unwrap();
        let hz_at = track + bytes[track..].windows(4).position(|w| w == b"mdhd").unwrap() + 16;
        let hz = u32::from_be_bytes(bytes[hz_at..hz_at + 4].try_into().unwrap());
        let first = u32::from_be_bytes(bytes[at + 16..at + 20].try_into().unwrap());
        let mut list = 2u32.to_be_bytes().to_vec();
        // Lengths are of the film's time scale, which ffmpeg writes as 1000 a second.
        for (length, start) in [(2000u32, first), (3000, first + hz * 138 / 25)] {
            list.extend([length, start, 1 << 16].map(u32::to_be_bytes).concat());
        }
        bytes.splice(at + 8..at + 24, list);
        for container in [b"elst", b"edts", b"trak", b"moov"] {
            let at = bytes[..at + 4].windows(4).rposition(|w| w == container).unwrap() - 4;
            let length = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) + 12;
            bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
        }
    }
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn pieces_of_an_edit_list_are_joined_as_players_show_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pieces.mp4");
    let tone = ["-f", "lavfi", "-i", "sine=d=10", "-c:a", "aac", "-g", "25", "-bf", "0"];
    make(&path, &[&PICTURES_10_S[..], &tone, &X264].concat());
    join_two_pieces(&path);
    let shown = ffmpeg::frame_md5(&path, "0:v").len();
    let film = take(dir, &path, WebAudio::Never);
    let pictures = ffmpeg::frame_md5(film.data(), "0:v").len();
    assert!(shown == 125 && pictures == shown, "{pictures} pictures of {shown}");
    assert!(film.info.notes.iter().any(|note| note.contains("several pieces")), "{:?}", film.info.notes);
    film.assert_clean();
}
