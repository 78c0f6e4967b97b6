//! Subtitles and chapters of new titles, from their containers and from files beside them, at the
//! times of their pictures. Errors in subtitles never prevent a title from being added.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_make::ingest::{IngestOptions, ingest};
use millrace_media::subtitles::Subtitles;
use millrace_store::volume::{TitleInfo, Volume};

use crate::ingest_support::ffmpeg;

const SRT: &str =
    "1\n00:00:01,000 --> 00:00:02,000\n<i>one</i> & two\n\n2\n00:00:02,500 --> 00:00:02,000\nbackwards\n";
const ASS: &str = "[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name, Fontname, Fontsize, Bold, Italic, Alignment\n\
    Style: Default,Arial,16,0,0,2\n\n[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n\
    Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,{\\an8}sign {\\b1}bold{\\b0}\n";

fn films() -> (tempfile::TempDir, Volume) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("films")).unwrap();
    fs::write(dir.path().join("in.srt"), SRT).unwrap();
    fs::write(dir.path().join("in.ass"), ASS).unwrap();
    let volume = Volume::open_or_create(&dir.path().join("store")).unwrap();
    (dir, volume)
}

/// A film of 3 s with SubRip in German and forced ASS in English, or what `texts` makes of both.
fn film(dir: &Path, name: &str, texts: &[&str]) -> PathBuf {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (srt, ass, out) = (path("in.srt"), path("in.ass"), dir.join("films").join(name));
    let inputs = [
        "-i", &srt, "-i", &ass, "-map", "0", "-map", "1", "-map", "2", "-map", "3", "-c:a", "aac", "-bf", "3",
    ];
    let named =
        ["-metadata:s:s:0", "language=ger", "-metadata:s:s:1", "language=eng", "-disposition:s:1", "forced"];
    ffmpeg::make(&out, 3, &[&inputs[..], ffmpeg::H264, &named, texts].concat());
    out
}

fn take(volume: &Volume, film: &Path) -> TitleInfo {
    ingest(volume, film, &IngestOptions::default(), &mut |_| {}).unwrap()
}

fn labels(info: &TitleInfo) -> Vec<String> {
    info.subtitles.iter().map(|track| track.label.to_string()).collect()
}

/// Start, end, settings and payload of the first cue of a track.
fn first_cue(volume: &Volume, info: &TitleInfo, at: usize) -> (u64, u64, String, String) {
    let text = volume.read_subtitles(info.id, &info.subtitles[at].file).unwrap();
    let cue = Subtitles::read(text.as_bytes(), 0).unwrap().cues.remove(0);
    (cue.start_ms, cue.end_ms, cue.settings, cue.payload)
}

/// How much later the second of the test picture that begins at 1 s is shown than the title's first picture or sound, in milliseconds.
fn lead(volume: &Volume, info: &TitleInfo) -> i64 {
    let data = volume.open_title(info.id, 1316).unwrap().data_path;
    let first = |stream: &str| {
        let args = ["-select_streams", stream, "-show_entries", "packet=pts_time", "-read_intervals", "%+#1"];
        let time = ffmpeg::probe(&data, &args);
        (time.trim_end_matches(',').parse::<f64>().unwrap() * 1000.0).round() as i64
    };
    first("v:0") - first("v:0").min(first("a:0"))
}

#[test]
fn text_streams_become_tracks_at_the_times_of_the_pictures() {
    let (dir, volume) = films();
    for (name, texts) in [
        ("film.mkv", &["-c:s:0", "srt", "-c:s:1", "ass"][..]),
        ("film.mp4", &["-c:s", "mov_text"]),
        ("film.webm.mkv", &["-c:s", "webvtt"]),
    ] {
        let info = take(&volume, &film(dir.path(), name, texts));
        assert_eq!(labels(&info), ["de", "en.forced"], "{name}: {:?}", info.notes);
        let (start, end, _, payload) = first_cue(&volume, &info, 0);
        let pictures = 1000 + lead(&volume, &info);
        assert!(start.abs_diff(pictures as u64) <= 20 && end - start == 1000, "{name}: {start}, {pictures}");
        assert!(payload.ends_with("&amp; two"), "{name}: {payload}");
        assert!(first_cue(&volume, &info, 1).3.contains("bold"), "{name}");
        assert!(!info.notes.iter().any(|note| note.starts_with("left out")), "{name}: {:?}", info.notes);
    }
    let mkv = volume.find("film").unwrap().unwrap();
    let (_, _, settings, payload) = first_cue(&volume, &mkv, 1);
    assert_eq!((settings.as_str(), payload.as_str()), ("line:0", "sign <b>bold</b>"));
    assert_eq!(first_cue(&volume, &mkv, 0).3, "<i>one</i> &amp; two");
    assert!(volume.find("film").unwrap().unwrap().subtitles.iter().all(|track| track.source.is_none()));
}

/// A film of 3 s with a chapter in each of them, whose clock begins at `offset_s`.
fn film_with_chapters(dir: &Path, name: &str, offset_s: u32) -> PathBuf {
    let chapters = dir.join("chapters.txt");
    let one = |at: u32, title: &str| {
        let (start, end) = (offset_s + at, offset_s + at + 1);
        format!("[CHAPTER]\nTIMEBASE=1/1\nSTART={start}\nEND={end}\ntitle={title}\n")
    };
    let all = [one(0, "The \t Start"), one(1, "Mitte"), one(2, "Ende \u{fc}ber")];
    fs::write(&chapters, format!(";FFMETADATA1\n{}", all.concat())).unwrap();
    let (out, offset) = (dir.join("films").join(name), offset_s.to_string());
    let inputs = ["-i", chapters.to_str().unwrap(), "-map", "0", "-map", "1", "-map_chapters", "2"];
    let clock = ["-c:a", "aac", "-bf", "3", "-output_ts_offset", &offset];
    ffmpeg::make(&out, 3, &[&inputs[..], ffmpeg::H264, &clock].concat());
    out
}

#[test]
fn chapters_of_containers_begin_at_the_times_of_the_pictures() {
    let (dir, volume) = films();
    for (name, offset_s) in [("chapters.mkv", 0), ("chapters.mp4", 0), ("later.mkv", 5)] {
        let info = take(&volume, &film_with_chapters(dir.path(), name, offset_s));
        assert!(!info.notes.iter().any(|note| note.contains("left out")), "{name}: {:?}", info.notes);
        let titles: Vec<_> = info.chapters.iter().map(|chapter| &chapter.title[..]).collect();
        assert_eq!(titles, ["The Start", "Mitte", "Ende \u{fc}ber"], "{name}");
        let starts: Vec<_> = info.chapters.iter().map(|chapter| chapter.start.0 / 90).collect();
        let lead = lead(&volume, &info).cast_unsigned();
        // Matroska has no time before 0: its muxer moves the streams, and leaves the chapters.
        let moved = if name == "chapters.mkv" { 0 } else { lead };
        for (start, expected) in starts[1..].iter().zip([1000 + moved, 2000 + moved]) {
            assert!(start.abs_diff(expected) <= 3 && lead > 10, "{name}: {starts:?}, {lead} ms");
        }
        assert_eq!(volume.find(&info.name).unwrap().unwrap().chapters, info.chapters, "{name}");
    }
}

#[test]
fn files_beside_a_film_are_tracks_and_bad_ones_are_notes() {
    let (dir, volume) = films();
    let source = film(dir.path(), "film.mkv", &["-c:s:0", "srt", "-c:s:1", "ass"]);
    let beside = |name: &str, bytes: &[u8]| fs::write(dir.path().join("films").join(name), bytes).unwrap();
    beside("film.de.srt", SRT.replace("one", "beside").as_bytes());
    beside("film.pt-BR.sdh.vtt", b"WEBVTT\n\n00:01.000 --> 00:02.000\nol\xc3\xa1\n");
    beside("film.fr.srt", b"1\n00:00:01,000 --> 00:00:02,000\nd\xe9j\xe0\n");
    beside("film.it.srt", &[0, 1, 2, 255].repeat(500));
    beside("film.es.srt", b"");
    beside("other.nl.srt", SRT.as_bytes());
    let info = take(&volume, &source);
    assert_eq!(labels(&info), ["de", "en.forced", "fr", "pt-BR.sdh"], "{:?}", info.notes);
    assert_eq!(first_cue(&volume, &info, 0).3, "<i>beside</i> &amp; two");
    assert_eq!(first_cue(&volume, &info, 2).3, "d\u{e9}j\u{e0}");
    let has = |words: &str| info.notes.iter().any(|note| note.contains(words));
    for words in [
        "subtitles de of the film replaced by the file beside it",
        "film.fr.srt: not UTF-8: read as Windows-1252",
        "left out: film.it.srt: subtitles: no cue found",
        "left out: film.es.srt: subtitles: no cue found",
        "1 cue left out: the end comes before the beginning",
    ] {
        assert!(has(words), "{words}: {:?}", info.notes);
    }
    assert!(info.subtitles[0].source.as_ref().unwrap().path.ends_with("films/film.de.srt"));
    let title = dir.path().join(format!("store/titles/{}", info.id));
    let names = fs::read_dir(title).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(
        !names.collect::<Vec<_>>().iter().any(|name| name.ends_with(".text")),
        "what ffmpeg wrote is gone"
    );
}
