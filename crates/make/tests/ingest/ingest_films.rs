//! Real titles, made by ffmpeg, go through the whole ingest into a store; the result is compared
//! with ffmpeg's view.

use std::path::{Path, PathBuf};

use crate::ingest_support::{ffmpeg, sum};
use millrace_core::packet::PacketMeta;
use millrace_make::ingest::{IngestOptions, WebAudio, ingest};
use millrace_store::volume::{TitleFiles, TitleInfo, Volume};
use tempfile::TempDir;

/// A store, and one title in it.
struct Stored {
    dir: TempDir,
    source: PathBuf,
    info: TitleInfo,
    files: TitleFiles,
}

/// Makes a title with these ffmpeg arguments and takes it in.
fn stored(name: &str, secs: u32, args: &[&str]) -> Stored {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join(name);
    ffmpeg::make(&source, secs, args);
    take(dir, source)
}

fn take(dir: TempDir, source: PathBuf) -> Stored {
    let volume = Volume::open_or_create(&dir.path().join("store")).unwrap();
    let options = IngestOptions {
        packet_sizes: vec![1316, 2632],
        web_audio: WebAudio::Never,
        ..IngestOptions::default()
    };
    let info = ingest(&volume, &source, &options, &mut |_| {}).unwrap();
    let files = volume.open_title(info.id, 1316).unwrap();
    let stored = Stored { dir, source, info, files };
    stored.check(&volume);
    stored
}

impl Stored {
    fn data(&self) -> &Path {
        &self.files.data_path
    }

    /// Checks the properties that every title must have.
    fn check(&self, volume: &Volume) {
        let data = std::fs::read(self.data()).unwrap();
        assert_eq!(self.info.bytes, data.len() as u64);
        for size in [1316usize, 2632] {
            let files = volume.open_title(self.info.id, size).unwrap();
            let mut metas = vec![PacketMeta::default(); files.packets() as usize];
            files.meta.read(0, &mut metas).unwrap();
            assert_eq!(metas.len(), data.len().div_ceil(size));
            for (i, (meta, bytes)) in metas.iter().zip(data.chunks(size)).enumerate() {
                assert_eq!(meta.sum(), sum(bytes), "sum of packet {i} of {size} bytes");
            }
            assert!(metas.windows(2).all(|w| w[0].time() <= w[1].time()));
            assert_eq!(metas[0].time().0, 0);
        }
        let identity = &self.info.source;
        assert_eq!(identity.path, self.source);
        assert_eq!(identity.bytes, std::fs::metadata(&self.source).unwrap().len());
        assert_eq!(volume.find_source(identity).unwrap().map(|t| t.id), Some(self.info.id));
        assert_eq!(std::fs::read_dir(self.dir.path().join("store/tmp")).unwrap().count(), 0);
    }

    /// The access points are ffprobe's key frames, and sending starts at most a second earlier, at a PAT.
    fn check_access_points(&self) {
        let points = self.files.index.access_points();
        let bytes: Vec<u64> = points.iter().map(|p| p.byte).collect();
        assert_eq!(bytes, ffmpeg::key_frames(self.data()));
        let data = std::fs::read(self.data()).unwrap();
        for point in points {
            let from = point.packet as usize * 1316;
            let own = point.byte as usize / 1316 * 1316;
            let first = data[from..].chunks(188).take(7).any(|p| p[1] & 0x1f == 0 && p[2] == 0);
            assert!(first || from == own, "packet {} holds no PAT", point.packet);
        }
    }

    /// Media time is ffprobe's of the source within a frame of 40 ms on either side.
    fn check_duration(&self) {
        let (ours, theirs) = (self.info.duration.as_secs_f64(), ffmpeg::duration(&self.source));
        assert!((ours - theirs).abs() <= 0.045, "{ours} s, ffprobe says {theirs} s");
    }

    /// Decoded, every picture and every piece of sound is that of the source. Of sound the first and the last piece may
    /// differ: containers say how much of them to cut off, a transport stream cannot.
    fn check_frames(&self, streams: &[&str]) {
        for stream in streams {
            let (ours, theirs) =
                (ffmpeg::frame_md5(self.data(), stream), ffmpeg::frame_md5(&self.source, stream));
            assert!(theirs.len() > 50, "{stream}: {} frames", theirs.len());
            let same = match stream.contains('a') {
                true => {
                    let inner = &theirs[1..theirs.len() - 1];
                    ours.len() <= theirs.len() + 2 && ours.windows(inner.len()).any(|w| w == inner)
                }
                false => ours == theirs,
            };
            assert!(same, "{stream}: {} frames differ from the source's {}", ours.len(), theirs.len());
        }
    }

    fn codecs(&self) -> Vec<&str> {
        self.info.streams.iter().map(|s| s.codec.as_str()).collect()
    }
}

fn args<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

#[test]
fn transport_stream_at_constant_rate_is_stored_unchanged() {
    let film = stored(
        "Größe 1.ts",
        6,
        &args(&[ffmpeg::H264, &["-c:a", "mp2", "-f", "mpegts", "-muxrate", "1500k", "-pcr_period", "20"]]),
    );
    assert_eq!(std::fs::read(film.data()).unwrap(), std::fs::read(&film.source).unwrap(), "byte for byte");
    assert_eq!(film.info.name, "groesse-1");
    assert_eq!(film.codecs(), ["H.264", "MP2"]);
    assert!(film.info.constant_rate);
    let rate = film.info.mean_rate.0;
    assert!(rate.abs_diff(1_500_000) < 1500, "{rate}");
    assert!(film.info.peak_rate.0.abs_diff(rate) < 2 * 1316 * 8, "{}", film.info.peak_rate);
    assert_eq!(film.info.notes, Vec::<String>::new());
    film.check_access_points();
    // The multiplexer sends each picture up to 0.7 s before it is shown; media time is the time of sending.
    let (ours, bytes) = (film.info.duration.as_secs_f64(), film.info.bytes as f64 * 8.0 / 1_500_000.0);
    assert!((ours - bytes).abs() < 0.001, "{ours} s, the rate says {bytes} s");
}

#[test]
fn transport_stream_at_variable_rate_is_stored_unchanged() {
    let film = stored("clip.m2t", 6, &args(&[ffmpeg::H264, &["-c:a", "aac", "-f", "mpegts"]]));
    assert_eq!(std::fs::read(film.data()).unwrap(), std::fs::read(&film.source).unwrap());
    assert!(!film.info.constant_rate);
    assert!(film.info.peak_rate >= film.info.mean_rate);
    film.check_access_points();
    film.check_duration();
}

#[test]
fn m2ts_stream_is_stripped_to_188_byte_packets() {
    let film = stored(
        "bd.m2ts",
        5,
        &args(&[ffmpeg::H264, &["-c:a", "ac3", "-f", "mpegts", "-mpegts_m2ts_mode", "1"]]),
    );
    let source = std::fs::read(&film.source).unwrap();
    let expected: Vec<u8> = source.chunks(192).flat_map(|p| p[4..].to_vec()).collect();
    assert_eq!(std::fs::read(film.data()).unwrap(), expected);
    assert!(film.info.notes[0].contains("192-byte packets"), "{:?}", film.info.notes);
    film.check_access_points();
    film.check_frames(&["0:v", "0:a"]);
}

#[test]
fn mp4_with_b_frames_is_copied() {
    let h264 = ["-c:v", "libx264", "-preset", "fast", "-bf", "3", "-pix_fmt", "yuv420p", "-g", "50"];
    let film = stored("film.mp4", 8, &args(&[&h264, &["-c:a", "aac", "-metadata:s:a:0", "language=deu"]]));
    assert_eq!(film.codecs(), ["H.264", "AAC"]);
    assert_eq!(film.info.streams[1].language.as_deref(), Some("deu"));
    film.check_access_points();
    film.check_frames(&["0:v", "0:a"]);
    film.check_duration();
    assert_eq!(film.info.notes, ["made from mov,mp4,m4a,3gp,3g2,mj2 by ffmpeg"]);
    // No stuffing: the stream is hardly longer than the file it came from.
    let (bytes, source) = (film.info.bytes as f64, film.info.source.bytes as f64);
    assert!(bytes < source * 1.6, "{bytes} from {source}");
    // Every picture states its length: FFmpeg shows the last one over RTP although nothing follows.
    let data = std::fs::read(film.data()).unwrap();
    let pid = film.info.streams[0].pid;
    let lengths: Vec<u16> = data.chunks(188).filter_map(|packet| pes_length(packet, pid)).collect();
    assert_eq!((lengths.len(), lengths.iter().filter(|&&length| length == 0).count()), (200, 0));
    // The clock is 0.7 s ahead of the first picture, and so the last is shown 0.7 s after its packets have come.
    let (index, duration) = (&film.files.index, film.info.duration);
    assert!(index.end().0 > duration.0 + 45_000, "{} and {duration}", index.end());
    assert_eq!(index.bases().len(), 1);
}

/// `PES_packet_length` of a PES packet of `pid` that begins in this TS packet.
fn pes_length(packet: &[u8], pid: u16) -> Option<u16> {
    let found = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
    let field = if packet[3] & 0x20 != 0 { 1 + usize::from(packet[4]) } else { 0 };
    let starts = found == pid && packet[1] & 0x40 != 0;
    starts.then(|| u16::from_be_bytes([packet[4 + field + 4], packet[4 + field + 5]]))
}

#[test]
fn mkv_with_h265_and_ac3_is_copied() {
    let h265 = [
        "-c:v",
        "libx265",
        "-preset",
        "ultrafast",
        "-pix_fmt",
        "yuv420p",
        "-x265-params",
        "keyint=25:log-level=none",
    ];
    let film = stored("film.mkv", 5, &args(&[&h265, &["-c:a", "ac3"]]));
    assert_eq!(film.codecs(), ["H.265", "AC-3"]);
    film.check_access_points();
    film.check_frames(&["0:v", "0:a"]);
    film.check_duration();
}

#[test]
fn mpeg_2_in_a_program_stream_is_copied() {
    let film =
        stored("dvd.vob", 5, &["-c:v", "mpeg2video", "-g", "12", "-b:v", "1M", "-c:a", "mp2", "-f", "vob"]);
    assert_eq!(film.codecs(), ["MPEG-2 video", "MP2"]);
    film.check_access_points();
    film.check_frames(&["0:v"]);
}

#[test]
fn avi_with_mpeg_4_is_copied() {
    let film = stored("old.avi", 5, &["-c:v", "mpeg4", "-bf", "2", "-b:v", "800k", "-c:a", "libmp3lame"]);
    assert_eq!(film.codecs(), ["MPEG-4 video", "MP3"]);
    film.check_frames(&["0:v", "0:a"]);
    film.check_access_points();
}

#[test]
fn avi_with_h264_gets_its_missing_time_stamps() {
    let h264 = ["-c:v", "libx264", "-bf", "2", "-g", "25", "-pix_fmt", "yuv420p"];
    let film = stored("camera.avi", 5, &args(&[&h264, &["-c:a", "libmp3lame"]]));
    film.check_frames(&["0:v", "0:a"]);
    film.check_access_points();
    // The container counts the encoder's delay of two pictures as media time; the title has 5 s.
    let seconds = film.info.duration.as_secs_f64();
    assert!((4.96..=5.05).contains(&seconds), "{seconds}");
}

#[test]
fn bare_pictures_are_transcoded() {
    let film = stored("bare.h264", 5, &args(&[&["-map", "0:v"], ffmpeg::H264, &["-bf", "2"]]));
    assert_eq!(film.codecs(), ["H.264"]);
    assert_eq!(ffmpeg::frame_md5(film.data(), "0:v").len(), 125);
    film.check_access_points();
}

#[test]
fn vp9_and_flac_are_transcoded_and_that_is_said() {
    let vp9 = ["-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", "8", "-c:a", "flac"];
    let film = stored("film.webm.mkv", 5, &vp9);
    assert_eq!(film.codecs(), ["H.264", "AAC"]);
    assert_eq!(
        film.info.notes[1..],
        [
            "picture: vp9 cannot be carried, transcoded to H.264",
            "sound stream 1 (flac): cannot be carried, transcoded to AAC"
        ]
    );
    assert_eq!(ffmpeg::frame_md5(film.data(), "0:v").len(), 125);
    // A key picture every two seconds to seek to.
    assert_eq!(film.files.index.access_points().len(), 3);
    film.check_access_points();
    film.check_duration();
}

#[test]
fn copied_picture_beside_transcoded_sound_is_untouched() {
    let film = stored("film.mov", 5, &args(&[ffmpeg::H264, &["-c:a", "pcm_s16le"]]));
    assert_eq!(film.codecs(), ["H.264", "AAC"]);
    film.check_frames(&["0:v"]);
}

#[test]
fn sound_alone() {
    let film = stored("song.mp3", 10, &["-map", "1:a", "-c:a", "libmp3lame"]);
    assert_eq!(film.codecs(), ["MP3"]);
    let (ours, theirs) = (film.info.duration.as_secs_f64(), ffmpeg::duration(&film.source));
    assert!((ours - theirs).abs() < 0.4, "{ours} s, ffprobe says {theirs} s");
    assert!(film.files.index.access_points().len() >= 10, "{:?}", film.files.index.access_points());
    film.check_frames(&["0:a"]);
}

#[test]
fn subtitles_are_kept_and_covers_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    ffmpeg::make(&path("plain.mkv"), 3, &args(&[ffmpeg::H264, &["-c:a", "aac"]]));
    std::fs::write(path("s.srt"), "1\n00:00:00,000 --> 00:00:02,000\nHello\n").unwrap();
    ffmpeg::run(
        "ffmpeg",
        &["-v", "error", "-f", "lavfi", "-i", "color=red:s=64x64:d=0.04", "-frames:v", "1", &text("c.png")],
    );
    let (plain, subtitles, cover, source) =
        (text("plain.mkv"), text("s.srt"), text("c.png"), text("film.mkv"));
    let attach = ["-attach", &cover, "-metadata:s:t", "mimetype=image/png"];
    let mut all = vec!["-v", "error", "-i", &plain, "-i", &subtitles, "-map", "0", "-map", "1", "-c", "copy"];
    all.extend(attach);
    all.push(&source);
    ffmpeg::run("ffmpeg", &all);
    let film = take(dir, PathBuf::from(&source));
    assert_eq!(film.codecs(), ["H.264", "AAC"]);
    let note = &film.info.notes[1];
    assert!(note.contains("cover picture") && !note.contains("subtitles"), "{note}");
    assert_eq!(film.info.subtitles.len(), 1, "{:?}", film.info.subtitles);
}

#[test]
fn ingest_of_slideshow_keeps_duration_without_jumps() {
    // One picture every three seconds, sound all the time: the clock of the file that ffmpeg makes comes with the
    // pictures only.
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("slides.mp4");
    let path = source.to_str().unwrap();
    let slides = [
        "-v",
        "error",
        "-f",
        "lavfi",
        "-i",
        "testsrc=s=320x180:r=1/3:d=30",
        "-f",
        "lavfi",
        "-i",
        "sine=d=30",
    ];
    let codecs = ["-c:v", "libx264", "-bf", "0", "-g", "2", "-pix_fmt", "yuv420p", "-c:a", "aac", path];
    ffmpeg::run("ffmpeg", &args(&[&slides, &codecs]));
    let film = take(dir, source);
    let seconds = film.info.duration.as_secs_f64();
    assert!((26.9..=30.5).contains(&seconds), "{seconds}");
    assert!(film.info.notes.iter().all(|n| !n.contains("jump")), "{:?}", film.info.notes);
}

#[test]
fn streams_joined_end_to_end_have_one_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let (one, both) = (dir.path().join("one.ts"), dir.path().join("both.ts"));
    ffmpeg::make(
        &one,
        5,
        &args(&[ffmpeg::H264, &["-c:a", "mp2", "-f", "mpegts", "-muxrate", "1500k", "-pcr_period", "20"]]),
    );
    let bytes = std::fs::read(&one).unwrap();
    std::fs::write(&both, [&bytes[..], &bytes].concat()).unwrap();
    let film = take(dir, both);
    let (ours, expected) = (film.info.duration.as_secs_f64(), bytes.len() as f64 * 2.0 * 8.0 / 1_500_000.0);
    assert!((ours - expected).abs() < 0.01, "{ours} s, the rate says {expected} s");
    assert!(film.info.constant_rate);
    // An ordinary join is reported once, and nothing is called damage.
    let [note] = &film.info.notes[..] else { panic!("{:?}", film.info.notes) };
    assert!(note.contains("2 recordings") && note.contains("once"), "{note}");
    assert_eq!(film.files.index.access_points().len(), 10);
}

#[test]
fn change_of_codec_within_a_pid_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let part = |codec: &str| {
        let path = dir.path().join(format!("{codec}.ts"));
        ffmpeg::make(&path, 3, &args(&[ffmpeg::H264, &["-c:a", codec, "-f", "mpegts"]]));
        std::fs::read(&path).unwrap()
    };
    let (aac, ac3) = (part("aac"), part("ac3"));
    let joined = dir.path().join("joined.ts");
    std::fs::write(&joined, [&*aac, &ac3, &aac].concat()).unwrap();
    let film = take(dir, joined);
    // The change back to AAC is not another note, and no other stream has one.
    let told: Vec<_> = film.info.notes.iter().filter(|note| note.contains("changes from")).collect();
    let [note] = &told[..] else { panic!("{:?}", film.info.notes) };
    let byte = note.strip_prefix("the stream on PID 257 changes from AAC to AC-3 at byte ");
    let byte: usize = byte.and_then(|rest| rest.split(' ').next()).expect(note).parse().unwrap();
    // The guide cuts there: at the new tables, a few packets behind the end of the first part.
    assert!((aac.len()..aac.len() + 8 * 188).contains(&byte), "{note}, first part: {}", aac.len());
    assert_eq!(byte % 188, 0, "{note}");
}

#[test]
fn sound_that_the_program_map_hides_is_named_and_told() {
    // Blu-ray's tables have no type for AAC, so ffmpeg writes it as private data.
    let film = stored("camera.m2ts", 3, &args(&[ffmpeg::H264, &["-c:a", "aac", "-mpegts_m2ts_mode", "1"]]));
    assert_eq!(film.codecs(), ["H.264", "AAC"]);
    let told = film.info.notes.iter().filter(|note| note.contains("stay silent")).count();
    assert_eq!(told, 1, "{:?}", film.info.notes);
    // Following the advice in the note helps.
    let copy = film.dir.path().join("copy.ts");
    let (from, to) = (film.source.to_str().unwrap(), copy.to_str().unwrap());
    ffmpeg::run(
        "ffmpeg",
        &["-nostdin", "-v", "error", "-i", from, "-map", "0", "-c", "copy", "-f", "mpegts", to],
    );
    std::fs::remove_dir_all(film.dir.path().join("store")).unwrap();
    let film = take(film.dir, copy);
    assert_eq!(film.codecs(), ["H.264", "AAC"]);
    assert!(film.info.notes.iter().all(|note| !note.contains("stay silent")), "{:?}", film.info.notes);
}
