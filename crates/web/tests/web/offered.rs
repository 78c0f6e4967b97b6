//! Titles with audio that some forms do not carry or some players do not decode: their master
//! playlists, and the streams that FFmpeg finds there.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use millrace_web::WebLimits;
use tempfile::TempDir;

use super::client::Client;
use super::cmaf::resolved;
use super::hls::{run, taken_in};
use super::site::{MadeUp, serve};

const AVC: &[&str] = &["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-g", "50"];
const HEVC: &[&str] = &[
    "-c:v",
    "libx265",
    "-preset",
    "ultrafast",
    "-pix_fmt",
    "yuv420p10le",
    "-x265-params",
    "log-level=none:keyint=50:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc",
];

struct Titles {
    site: Arc<MadeUp>,
    _dir: TempDir,
}

/// Each film has the video and one audio stream for each codec, in this order.
const FILMS: [(&str, &[&str], &[&str]); 10] = [
    ("aac-ac3", AVC, &["aac", "ac3"]),
    ("ac3-aac", AVC, &["ac3", "aac"]),
    ("aac-eac3", AVC, &["aac", "eac3"]),
    ("mp2-aac", AVC, &["mp2", "aac"]),
    ("mp2", AVC, &["mp2"]),
    ("hevc-mp3", HEVC, &["libmp3lame"]),
    ("hevc-mp2", HEVC, &["mp2"]),
    ("hevc-latm", HEVC, &["aac"]),
    ("hevc-aac-dts", HEVC, &["aac", "dca"]),
    ("described", AVC, &["aac", "aac"]),
];

fn make(path: &Path, pictures: &[&str], audio: &[&str]) {
    let inputs = ["testsrc2=size=320x180:rate=25:duration=5", "sine=frequency=440:duration=5"];
    let mut args = vec!["-nostdin", "-v", "error", "-y"];
    for input in inputs {
        args.extend(["-f", "lavfi", "-i", input]);
    }
    args.extend(["-map", "0:v"]);
    args.extend(pictures);
    let names: Vec<String> = (0..audio.len()).map(|at| format!("-c:a:{at}")).collect();
    for (name, codec) in names.iter().zip(audio) {
        args.extend(["-map", "1:a", name, codec]);
    }
    if path.ends_with("described.ts") {
        args.extend(["-disposition:a:0", "visual_impaired"]);
        args.extend(["-metadata:s:a:0", "language=ger", "-metadata:s:a:1", "language=ger"]);
    }
    if path.ends_with("hevc-latm.ts") {
        args.extend(["-mpegts_flags", "latm"]);
    }
    args.extend(["-strict", "-2", path.to_str().unwrap()]);
    run("ffmpeg", &args);
}

fn titles() -> &'static Titles {
    static TITLES: OnceLock<Titles> = OnceLock::new();
    TITLES.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let films = FILMS.iter().map(|(name, pictures, audio)| {
            let path = dir.path().join(name).with_extension("ts");
            make(&path, pictures, audio);
            taken_in(dir.path(), &path)
        });
        Titles { site: MadeUp::with(films.collect()), _dir: dir }
    })
}

/// For each variant of a master playlist: its codecs without profiles, its audio group, and whether
/// it is fragmented MP4.
fn variants(client: &mut Client, path: &str) -> Vec<String> {
    let answer = client.get(path);
    assert_eq!(answer.status, 200, "{path}");
    let list = m3u8_rs::parse_master_playlist_res(&answer.body).unwrap();
    let shown = list.variants.iter().filter(|variant| !variant.is_i_frame);
    let line = |variant: &m3u8_rs::VariantStream| {
        let codecs = variant.codecs.as_deref().unwrap_or("?").split(',');
        let codecs: Vec<_> =
            codecs.map(|codec| if codec.starts_with("hvc1") { "hvc1" } else { codec }).collect();
        let codecs: Vec<_> = codecs.iter().map(|codec| codec.split(".42").next().unwrap()).collect();
        let form = if variant.uri.starts_with("cmaf/") { "made" } else { "stored" };
        format!("{} {} {form}", codecs.join("+"), variant.audio.as_deref().unwrap_or("-"))
    };
    shown.map(line).collect()
}

#[test]
fn master_playlists_offer_each_player_something_that_it_decodes() {
    let (_web, address, _) = serve(&titles().site, WebLimits::default());
    let mut client = Client::to(address);
    let avc = "avc1";
    let both = [format!("{avc}+mp4a.40.2 aac made"), format!("{avc}+ac-3 ac-3 made")];
    for (path, expected) in [
        ("aac-ac3/index", vec![format!("{avc}+mp4a.40.2 - stored")]),
        ("ac3-aac/index", vec![format!("{avc}+mp4a.40.2 - stored")]),
        ("aac-ac3/cmaf", both.to_vec()),
        ("ac3-aac/cmaf", both.to_vec()),
        // Browsers fail at E-AC-3 in a transport stream.
        ("aac-eac3/index", vec![format!("{avc}+mp4a.40.2 aac made"), format!("{avc}+ec-3 ec-3 made")]),
        ("mp2-aac/index", vec![format!("{avc}+mp4a.40.2 aac made"), format!("{avc}+mp4a.40.33 - stored")]),
        ("mp2/index", vec![format!("{avc}+mp4a.40.33 - stored")]),
        ("mp2/cmaf", vec![format!("{avc} - made"), format!("{avc}+mp4a.40.33 - stored")]),
        ("hevc-mp3/index", vec!["hvc1+mp4a.40.34 - stored".to_owned()]),
        ("hevc-mp2/index", vec!["hvc1+mp4a.40.33 - stored".to_owned()]),
        ("hevc-latm/index", vec!["hvc1+mp4a.40.2 - stored".to_owned()]),
        ("hevc-aac-dts/index", vec!["hvc1+mp4a.40.2 aac made".to_owned(), "hvc1+dtsc - stored".to_owned()]),
    ] {
        assert_eq!(variants(&mut client, &format!("/titles/{path}.m3u8")), expected, "{path}");
    }
}

#[test]
fn master_playlists_have_audio_for_ffmpeg() {
    let (_web, address, _) = serve(&titles().site, WebLimits::default());
    for (name, _, audio) in &FILMS {
        for list in ["index", "cmaf"] {
            let url = format!("http://{address}/titles/{name}/{list}.m3u8");
            let shown = ["-v", "error", "-show_entries", "stream=codec_name", "-of", "csv=p=0", &url];
            let found = String::from_utf8(run("ffprobe", &shown)).unwrap();
            for codec in *audio {
                let codec = if *codec == "libmp3lame" { "mp3" } else { codec };
                let codec = if codec == "dca" { "dts" } else { codec };
                let codec = if *name == "hevc-latm" { "aac_latm" } else { codec };
                assert!(
                    found.lines().any(|line| line.trim_end_matches(',') == codec),
                    "{name} {list} {codec}: {found}"
                );
            }
        }
    }
}

#[test]
fn master_playlist_of_hdr_pictures_says_range_and_rate() {
    let (_web, address, _) = serve(&titles().site, WebLimits::default());
    let mut client = Client::to(address);
    for path in ["/titles/hevc-aac-dts/index.m3u8", "/titles/hevc-mp3/index.m3u8"] {
        let answer = client.get(path);
        let lines: Vec<_> =
            answer.text().lines().filter(|line| line.starts_with("#EXT-X-STREAM-INF")).collect();
        assert!(!lines.is_empty());
        for line in lines {
            assert!(
                line.contains(",FRAME-RATE=25.000,VIDEO-RANGE=PQ") && line.ends_with(",CLOSED-CAPTIONS=NONE"),
                "{line}"
            );
        }
    }
}

/// Browsers decide by the `colr` box before they decode a picture whether it is HDR.
#[test]
fn init_segment_of_hdr_pictures_has_their_colours() {
    let (_web, address, _) = serve(&titles().site, WebLimits::default());
    let mut client = Client::to(address);
    let list = client.get("/titles/hevc-aac-dts/cmaf/256.m3u8");
    let init = list.text().split("#EXT-X-MAP:URI=\"").nth(1).and_then(|rest| rest.split('"').next());
    let init = resolved("/titles/hevc-aac-dts/cmaf/256.m3u8", init.expect("an init segment"));
    let answer = client.get(&init);
    assert_eq!(answer.status, 200, "{init}");
    // BT.2020 primaries, PQ, BT.2020 with non-constant luminance, limited range.
    let expected = [&[0, 0, 0, 19][..], b"colrnclx", &[0, 9, 0, 16, 0, 9, 0]].concat();
    let found = answer.body.windows(expected.len()).filter(|window| *window == expected).count();
    assert_eq!(found, 1, "{:?}", answer.body);
}

#[test]
fn audio_description_is_named_and_never_the_default() {
    let (_web, address, _) = serve(&titles().site, WebLimits::default());
    let mut client = Client::to(address);
    // A player of the transport stream would take the audio description, which comes first.
    let answer = client.get("/titles/described/index.m3u8");
    let lines: Vec<_> = answer.text().lines().filter(|line| line.contains("TYPE=AUDIO")).collect();
    let [main, described] = lines[..] else { panic!("{}", answer.text()) };
    assert!(main.contains("NAME=\"German\",LANGUAGE=\"de\",DEFAULT=YES,AUTOSELECT=YES,CHANNELS"), "{main}");
    let expected = "NAME=\"German (audio description)\",LANGUAGE=\"de\",DEFAULT=NO,AUTOSELECT=YES,\
                    CHARACTERISTICS=\"public.accessibility.describes-video\",CHANNELS";
    assert!(described.contains(expected), "{described}");
    let title = client.get("/api/v1/titles/described");
    assert!(title.text().contains("\"role\":\"audio-description\""), "{}", title.text());
}
